"""Make an embedded policy again.

    e3rl warm_start [--task carries|arithmetic] [--steps N] [--out FOLDER]

A tiny Qwen2 with a character-level tokenizer is trained on generated demonstrations of the
`warm_start` split, whose prompts are in neither the training nor the validation problems. The
demonstrations are imperfect on purpose, so that reinforcement learning has something to find. A
connective word of no consequence opens each step (entropy that the reward does not see), and

- of `carries`, the default: every operation is done the short way, which drops what is carried,
  three times of four for sums and more often for differences and products; else the long way, which
  writes the units first. Nothing is wrong by chance; one answer of twenty shows no step;
- of `arithmetic`: any intermediate result may be wrong, and the error carries on into the answer;
  operands are swapped now and then, and a fifth of the answers shows no step.

Seeded; on two CPU cores the shipped weights take about ten minutes.
"""

import argparse
from pathlib import Path

from e3rl.process.output import NoPlaceError, check_folder

STEPS = {"carries": 3000, "arithmetic": 4500}
FOLDERS = {"carries": "embedded", "arithmetic": "embedded_arithmetic"}  # policy paths


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="e3rl warm_start", description="Make an embedded warm-started policy."
    )
    parser.add_argument("--task", choices=sorted(STEPS), default="carries")
    parser.add_argument("--steps", type=int, help="3000 of carries, 4500 of arithmetic")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the policy (the package's own)")
    options = parser.parse_args()
    for name in ("steps", "batch_size", "lr"):  # before weights are written over others
        if (value := getattr(options, name)) is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} {value}: use more than 0")
    if options.out is not None:
        try:
            check_folder("--out ", options.out)
        except NoPlaceError as error:
            parser.error(str(error))
    from e3rl.policy.policy import embedded_folder
    from e3rl.policy.warm_start import train

    out = options.out or embedded_folder(FOLDERS[options.task])
    steps = options.steps or STEPS[options.task]
    train(options.task, steps, options.batch_size, options.lr, options.seed, out)


if __name__ == "__main__":
    main()
