"""One GPU of a Ray cluster for the smoke run; the checkout must be at the same place everywhere.

    .venv/bin/python experiments/gpu_smoke/on_ray.py [--gpus 0] [arguments of smoke.py]

Needs ray (`pip install -e ".[ray]"`), and RAY_ADDRESS where the cluster is not on this machine.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import ray

SMOKE = Path(__file__).resolve().with_name("smoke.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=float, default=1)
    given, others = parser.parse_known_args()

    @ray.remote(num_gpus=given.gpus, max_retries=0)
    def smoke() -> int:
        return subprocess.run([sys.executable, str(SMOKE), *others], check=False).returncode

    return int(ray.get(smoke.remote()))


if __name__ == "__main__":
    sys.exit(main())
