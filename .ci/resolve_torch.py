"""Stop before gigabytes of CUDA libraries are downloaded that nobody asked for.

    python .ci/resolve_torch.py torch==2.13.0

Asks pip which torch it would install, from metadata alone, and exits with 1 and the choices when
that is a CUDA build and the user has made none of them. Standard library only: it runs before
anything is installed.
"""

import json
import os
import platform
import re
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
    """Whether the user has said which build to install; SystemExit for an unknown build."""
    build = environment.get("TORCH_BUILD", "")
    if build not in ("", "cuda"):
        raise SystemExit(f"TORCH_BUILD={build} is unknown: set TORCH_BUILD=cuda, or leave it out")
    return build == "cuda" or bool(environment.get("TORCH_INDEX_URL"))


def cuda_parts(report: dict, machine: str) -> list[str]:
    """What marks the torch in pip's installation report as a CUDA build on this Linux machine.

    Either its own version (2.13.0+cu130) or the libraries that it requires. Requirements of an
    extra, and those whose marker names another kind of processor, do not count.
    """
    found = []
    for package in (item["metadata"] for item in report["install"]):
        if "+cu" in package["version"]:
            found.append(f"{package['name']} {package['version']}")
        for line in package.get("requires_dist", []):
            requirement, _, marker = line.partition(";")
            machines = re.findall(r"platform_machine\s*==\s*[\"'](\w+)[\"']", marker)
            elsewhere = "extra" in marker or (machines and machine not in machines)
            if requirement.startswith(CUDA_PREFIXES) and not elsewhere:
                found.append(re.split(r"[\[<>=!~ ]", requirement)[0])
    return found


def pip_report(requirement: str) -> dict:
    """pip's report of what it would install; SystemExit with pip's exit code when it cannot say."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    # Reads the metadata inside a wheel by ranged requests where an index does not serve it alone.
    command += ["--use-feature=fast-deps", "--no-deps", "--dry-run", "--report", "-", requirement]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        raise SystemExit(answer.returncode)
    return json.loads(answer.stdout)


def main() -> int:
    if platform.system() != "Linux" or choice_made(os.environ):
        return 0
    found = cuda_parts(pip_report(sys.argv[1]), platform.machine())
    if found:
        more = ", ..." if len(found) > 3 else ""
        sys.stderr.write(CHOICES.format(found=", ".join(found[:3]) + more))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
