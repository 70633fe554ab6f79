"""Stop before gigabytes of CUDA libraries are downloaded that nobody asked for.

    python .ci/resolve_torch.py torch==2.13.0

Asks pip what installing the requirement would bring, from metadata alone, and exits with 1 and the
choices when that is a CUDA build and the user has made none of them. Standard library only: it runs
before anything is installed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

CUDA_PREFIXES = ("nvidia-", "cuda-")
CHOICES = """\
setup: here pip would install the CUDA build of torch, several gigabytes ({found}).
Choose one:
  TORCH_INDEX_URL=<url> make ...   take torch from another wheel index, such as PyTorch's CPU wheel
                                   index, listed on its install page
  TORCH_BUILD=cuda make ...        install the CUDA build
"""


def choice_made(environment: Mapping[str, str]) -> bool:
    """Whether the user has said which build to install; ValueError for an unknown build."""
    build = environment.get("TORCH_BUILD", "")
    if build not in ("", "cuda"):
        raise ValueError(f"TORCH_BUILD={build} is unknown: set TORCH_BUILD=cuda, or leave it out")
    return build == "cuda" or bool(environment.get("TORCH_INDEX_URL"))


def cuda_packages(report: dict) -> list[str]:
    """`name version` of everything in pip's installation report that belongs to a CUDA build."""
    packages = [item["metadata"] for item in report["install"]]
    return [
        f"{package['name']} {package['version']}"
        for package in packages
        if package["name"].lower().startswith(CUDA_PREFIXES)
        or (package["name"].lower() == "torch" and "+cu" in package["version"])
    ]


def pip_report(requirement: str) -> dict:
    """pip's report of what it would install; SystemExit with pip's exit code when it cannot say."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--dry-run", "--report", "-", requirement]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        raise SystemExit(answer.returncode)
    return json.loads(answer.stdout)


def main() -> int:
    if choice_made(os.environ):
        return 0
    found = cuda_packages(pip_report(sys.argv[1]))
    if found:
        more = ", ..." if len(found) > 3 else ""
        sys.stderr.write(CHOICES.format(found=", ".join(found[:3]) + more))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
