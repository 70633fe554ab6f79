#!/usr/bin/env bash
# The tables of README.md; about two minutes on one core.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1
PYTHON=${PYTHON:-.venv/bin/python}
OUT=experiments/budget_simulator/results
simulate() { "$PYTHON" -m e3rl.simulate hydra.run.dir=runs/simulate/last "$@"; }

simulate out=$OUT/generated table.prompts=16384 prompts_per_step=256 epochs=6
simulate out=$OUT/learning table.prompts=16384 prompts_per_step=256 epochs=6 learning=0.5
RUNS=experiments/runs
simulate out=$OUT/recorded "runs=[$RUNS/seed-1_experiment-budget,$RUNS/seed-2_experiment-budget,\
$RUNS/seed-1_experiment-e3,$RUNS/seed-2_experiment-e3]"
rm $OUT/*/histogram.csv $OUT/*/by_pass_rate.csv
simulate out=runs/simulate/million table.prompts=1000000 prompts_per_step=1000000 epochs=2 \
  budgets.balanced.max_rounds=3 budgets.positive.max_rounds=3 budgets.dynamic_sampling.max_rounds=3
