#!/usr/bin/env bash
# The entropy-control study: six arms, two seeds, 192 steps each. Two lanes of one thread; it took
# 45 minutes on two busy cores. Runs that are finished are skipped; call it again after an interruption.
#   bash experiments/entropy_control/run.sh [FOLDER]     default: sweeps/entropy_control
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-sweeps/entropy_control}
python=${PYTHON:-.venv/bin/python}
export OMP_NUM_THREADS=1

lane() { # one seed, arm after arm
  for arm in grpo ts ts_an e3 grpo_er budget; do
    run="$folder/$arm/seed-$1"
    if [ -f "$run/summary.json" ]; then
      echo "$run is finished"
      continue
    fi
    resume=()
    if compgen -G "$run/checkpoints/*.ckpt" > /dev/null; then resume=("ckpt_path=$run"); fi
    $python -m e3rl.train experiment="$arm" seed="$1" engine=transformers sweep.name=entropy_control \
      control=null hydra.run.dir="$run" "${resume[@]}" > "$run.log" 2>&1
    echo "$run is finished"
  done
}

mkdir -p "$folder"/{grpo,grpo_er,ts,ts_an,budget,e3}
lane 1 &
lane 2 &
wait
$python -m e3rl.study "$folder" experiments/entropy_control --control grpo
