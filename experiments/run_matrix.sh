#!/usr/bin/env bash
# The run matrix that all studies draw on, two jobs at a time, then its tables and figures. Every
# sweep says first how many hours it plans. What is recorded in experiments/runs counts as finished
# and broken jobs go on, so call it again after an interruption.
#   bash experiments/run_matrix.sh [SWEEP...]     default: core gain_modes length grid_best
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
python=${PYTHON:-.venv/bin/python}
if [ $# -eq 0 ]; then set -- core gain_modes length grid_best; fi

mkdir -p sweeps/studies
$python -c 'from pathlib import Path; from e3rl.ledger.archive import open_runs
open_runs(Path("experiments/runs"))'
for run in experiments/runs/*/; do
  [ ! -d "$run" ] || [ -e "sweeps/studies/$(basename "$run")" ] || cp -r "$run" sweeps/studies/
done
for sweep in "$@"; do
  $python -m e3rl.train -m sweep="$sweep" sweep.name=studies sweep.seconds_per_job=540 \
    hydra/launcher=local
done
$python -m e3rl.record sweeps/studies experiments --archive
for study in experiments/*/study.yaml; do
  $python -m e3rl.study "$(dirname "$study")"
done
