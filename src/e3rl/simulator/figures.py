"""What a pass of a budget rule was worth: signal, variance, and who got how much."""

import math
from typing import Any

import numpy as np

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
        of these prompts beside that of G = rollouts_per_prompt for each (NaN for G = 1, or where
        all pass rates are 0 or 1);
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
        "gradient_variance": _variance(passage, rollouts_per_prompt),
        "first_solved": float(passage.first_solved),
        **dict(zip(("n_05", "n_50", "n_95"), quantiles.astype(float).tolist(), strict=True)),
        "n_max": float(n.max()),
        "seconds": passage.seconds,
    }


def _variance(passage: Passage, rollouts_per_prompt: int) -> float:
    several = passage.rollouts > 1
    p, n = passage.rates[several], passage.rollouts[several]
    even = (p * (1 - p)).sum() / max(rollouts_per_prompt - 1, 0) if rollouts_per_prompt > 1 else 0.0
    return float((p * (1 - p) / (n - 1)).sum() / even) if even > 0 else math.nan


def by_pass_rate(passage: Passage) -> list[dict[str, Any]]:
    """Rows of what prompts got by pass rate: those at 0, tenths of what lies between, those at 1.

    Each row has rate_low and rate_high, prompts, their mean number of rollouts (0 for those left
    out), the share of the spent rollouts, and the share of prompts whose group was mixed.
    """
    middle = np.floor(passage.rates * RATE_BINS).clip(0, RATE_BINS - 1) + 1
    bins = np.select([passage.rates == 0, passage.rates == 1], [0.0, RATE_BINS + 1.0], middle)
    rows = []
    for index in np.unique(bins):
        here = bins == index
        n, right = passage.rollouts[here], passage.right[here]
        low, high = (min(max(x / RATE_BINS, 0.0), 1.0) for x in (index - 1, index))
        ends = {0: (0.0, 0.0), RATE_BINS + 1: (1.0, 1.0)}
        low, high = ends.get(int(index), (low, high))
        rows.append(
            {
                "rate_low": low,
                "rate_high": high,
                "prompts": int(here.sum()),
                "rollouts": float(n.mean()),
                "share": float(n.sum() / passage.rollouts.sum()),
                "mixed": float(((right > 0) & (right < n)).mean()),
            }
        )
    return rows


def histogram(passage: Passage) -> list[dict[str, int]]:
    """Rows {n, prompts}: how many prompts got n rollouts, for every n that occurs."""
    n, prompts = np.unique(passage.rollouts, return_counts=True)
    return [
        {"n": int(x), "prompts": int(count)}
        for x, count in zip(n.tolist(), prompts.tolist(), strict=True)
    ]
