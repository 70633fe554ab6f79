"""How often p values of a true difference of 0 fall below .05, .01 and .001, by what they say.

    .venv/bin/python experiments/coverage/tails.py

Mean squares of normal seeds, problems (with half of the rest's variance) and rest are drawn from
their chi-square distributions; columns are the rates over .05, .01 and .001.
"""

import numpy as np

from e3rl.statistics.student import t_p_value

DRAWS, PROBLEMS, LEVELS = 20_000, 256, (0.05, 0.01, 0.001)


def tail_rates(n_seeds: int, seed_share: float, draws: int = DRAWS) -> list[float]:
    """Rate of p below each level, over the level; `seed_share` is that of the variance."""
    rng, seeds, problems = np.random.default_rng(0), n_seeds - 1, PROBLEMS - 1
    others = 1.5  # of problems and rest
    of_seeds = seed_share / (1 - seed_share) * others
    rest = rng.chisquare(seeds * problems, draws) / (seeds * problems)
    by_problem = others * rng.chisquare(problems, draws) / problems
    by_seed = (of_seeds + 1) * rng.chisquare(seeds, draws) / seeds
    variance = by_seed + np.maximum(by_problem - rest, 0)
    spread = by_seed**2 / seeds + by_problem**2 / problems + rest**2 / (seeds * problems)
    df = np.maximum(1.0, variance**2 / spread)
    t = rng.normal(size=draws) * np.sqrt((of_seeds + others) / variance)
    p = np.array([t_p_value(*pair) for pair in zip(t.tolist(), df.tolist(), strict=True)])
    return [float((p < level).mean() / level) for level in LEVELS]


if __name__ == "__main__":
    for n in (3, 5, 10):
        for share in (0.0, 0.3, 0.6, 0.9):
            rates = " ".join(f"{rate:5.2f}" for rate in tail_rates(n, share))
            print(f"{n} seeds, {100 * share:g} % of the variance: {rates}")
