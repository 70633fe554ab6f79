"""What a pass of a budget rule was worth: signal, variance, and who got how much."""

from typing import Any

import numpy as np

from e3rl.simulator.gradient import relative_variance
from e3rl.simulator.replay import Passage

RATE_BINS = 10


def figures(passage: Passage, rollouts_per_prompt: int) -> dict[str, float]:
    """One pass in numbers, over the prompts that were sampled.

    reached: share of all prompts that were; the figures of a rule that leaves prompts out are not
        those of the table;
    spent: rollouts; per_prompt: of them per sampled prompt; spent_share: of the cap;
    all_wrong, all_right, mixed: shares of prompts; hits: prompts with a right rollout;
    effective: share of the rollouts that are in mixed groups, which alone move the policy;
    gradient_variance: Σ pq/(n - 1) over Σ pq/(G - 1), the variance of a leave-one-out gradient
        of these prompts (`rloo_by_prompt`) beside that of G = rollouts_per_prompt for each (NaN
        for G = 1, or where all pass rates are 0 or 1);
    first_solved: prompts never solved before; n_05, n_50, n_95, n_max: quantiles of the counts;
    seconds: processor time of the rule.
    """
    sampled = passage.rollouts > 0
    n, right = passage.rollouts[sampled], passage.right[sampled]
    mixed = (right > 0) & (right < n)
    quantiles = np.quantile(n, [0.05, 0.5, 0.95], method="inverted_cdf")
    return {
        "reached": float(sampled.mean()),
        "spent": float(n.sum()),
        "per_prompt": float(n.mean()),
        "spent_share": float(n.sum() / passage.cap),
        "all_wrong": float((right == 0).mean()),
        "all_right": float((right == n).mean()),
        "mixed": float(mixed.mean()),
        "hits": float((right > 0).mean()),
        "effective": float(n[mixed].sum() / n.sum()),
        "gradient_variance": relative_variance(
            "rloo_by_prompt", passage.rates[sampled], n, rollouts_per_prompt
        ),
        "first_solved": float(passage.first_solved),
        **dict(zip(("n_05", "n_50", "n_95"), quantiles.astype(float).tolist(), strict=True)),
        "n_max": float(n.max()),
        "seconds": passage.seconds,
    }


def by_pass_rate(passage: Passage) -> list[dict[str, Any]]:
    """Rows of what prompts got by pass rate: those at 0, tenths of what lies between, those at 1.

    Each row has rate_low and rate_high, prompts, their mean number of rollouts (0 for those left
    out), the share of the spent rollouts, and the share of prompts whose group was mixed.
    """
    # 0 where the rate is 0, RATE_BINS + 1 where it is 1.
    bins = (passage.rates * RATE_BINS).astype(np.int64).clip(max=RATE_BINS - 1) + 1
    bins[passage.rates == 0] = 0
    bins[passage.rates == 1] = RATE_BINS + 1
    mixed = (passage.right > 0) & (passage.right < passage.rollouts)
    prompts, rollouts, mixed_groups = (
        np.bincount(bins, weights, minlength=RATE_BINS + 2)
        for weights in (None, passage.rollouts, mixed)
    )
    return [
        {
            "rate_low": min(max((i - 1) / RATE_BINS, 0.0), 1.0),
            "rate_high": min(i / RATE_BINS, 1.0),
            "prompts": int(prompts[i]),
            "rollouts": float(rollouts[i] / prompts[i]),
            "share": float(rollouts[i] / rollouts.sum()),
            "mixed": float(mixed_groups[i] / prompts[i]),
        }
        for i in np.flatnonzero(prompts).tolist()
    ]


def histogram(passage: Passage) -> list[dict[str, int]]:
    """Rows {n, prompts}: how many prompts got n rollouts, for every n that occurs."""
    prompts = np.bincount(passage.rollouts)
    return [{"n": n, "prompts": int(prompts[n])} for n in np.flatnonzero(prompts).tolist()]
