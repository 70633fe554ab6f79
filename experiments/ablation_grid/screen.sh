#!/usr/bin/env bash
# Screens the cells of the grid on the pass rates of the recorded arms; half a minute on one core.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1
RUNS=experiments/runs/seed-1_experiment
"${PYTHON:-.venv/bin/python}" -m e3rl.simulate hydra.run.dir=runs/simulate/last \
  out=experiments/ablation_grid/results by_arm=true "rules=[uniform,e3_rank,knapsack,hora]" \
  "runs=[$RUNS-grpo,$RUNS-grpo_er,$RUNS-ts,$RUNS-ts_an]"
rm experiments/ablation_grid/results/{histogram,by_pass_rate,summary}.csv
