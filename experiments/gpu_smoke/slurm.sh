#!/usr/bin/env bash
# One GPU of a Slurm cluster for ten minutes: sbatch experiments/gpu_smoke/slurm.sh
#SBATCH --job-name=e3rl-smoke --nodes=1 --ntasks=1 --gpus-per-task=1 --cpus-per-task=8
#SBATCH --mem=64G --time=00:15:00 --output=%x-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")/../..}"
srun .venv/bin/python experiments/gpu_smoke/smoke.py --out "build/gpu_smoke-${SLURM_JOB_ID:-here}" "$@"
