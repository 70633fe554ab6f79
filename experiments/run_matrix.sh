#!/usr/bin/env bash
# The run matrix that the studies draw on, two jobs at a time. Each sweep says how many hours it
# plans; finished jobs are skipped and broken ones go on, so call it again after an interruption.
#   bash experiments/run_matrix.sh [SWEEP...]     default: core gain_modes grid_best length
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${PYTHON:-.venv/bin/python}
sweeps=("${@:-core}")

for sweep in "${sweeps[@]}"; do
  $python -m e3rl.train -m sweep="$sweep" sweep.name=studies sweep.seconds_per_job=180 \
    hydra/launcher=local
done
