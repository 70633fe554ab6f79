"""Make the embedded policy again.

    e3rl warm_start [--steps N] [--out FOLDER]

A tiny Qwen2 with a character-level tokenizer is trained on generated demonstrations of the
`warm_start` split, whose prompts are in neither the training nor the validation problems. The
demonstrations are imperfect on purpose, so that reinforcement learning has something to find:

- a connective word of no consequence opens each step (entropy that the reward does not see);
- operands of sums and products are swapped now and then;
- a fifth of them answers without showing a step;
- every intermediate result may be wrong, and the error carries on into the answer.

Seeded; on two CPU cores the shipped weights take about ten minutes.
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="e3rl warm_start", description="Make the embedded warm-started policy."
    )
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the policy (the package's own)")
    options = parser.parse_args()
    from e3rl.policy.policy import embedded_folder
    from e3rl.policy.warm_start import train

    out = options.out or embedded_folder()
    train(options.steps, options.batch_size, options.lr, options.seed, out)


if __name__ == "__main__":
    main()
