"""A pass of a budget rule in numbers: its signal, its variance, and who got how many rollouts."""

from typing import Any

import numpy as np

from e3rl.simulator.gradient import relative_variance
from e3rl.simulator.replay import PassResult

RATE_BINS = 10


def summarize_pass(result: PassResult, rollouts_per_prompt: int) -> dict[str, float]:
    """One pass in numbers, over the prompts that were sampled.

    reached: share of all prompts that were sampled; where a rule leaves prompts out, the other
        numbers are not those of the whole table;
    spent: rollouts; per_prompt: of them per sampled prompt; spent_share: of the cap;
    all_wrong, all_right, mixed: shares of prompts; hits: prompts with a right rollout;
    effective: share of the rollouts that are in mixed groups, which alone move the policy;
    gradient_variance: Σ pq/(n - 1) over Σ pq/(G - 1), the variance of a leave-one-out gradient
        of these prompts (`rloo_by_prompt`) beside that of G = rollouts_per_prompt for each (NaN
        for G = 1, or where all pass rates are 0 or 1); where n followed the rewards, with
        c(n - c)/(n(n - 1)) of the c right ones for the first pq;
    first_solved: prompts never solved before; n_05, n_50, n_95, n_max: quantiles of the counts;
    seconds: processor time of the rule.
    """
    sampled = result.rollouts > 0
    n, right = result.rollouts[sampled], result.right[sampled]
    rates, _, followed = result.sampled_groups()
    mixed = (right > 0) & (right < n)
    quantiles = np.quantile(n, [0.05, 0.5, 0.95], method="inverted_cdf")
    return {
        "reached": float(sampled.mean()),
        "spent": float(n.sum()),
        "per_prompt": float(n.mean()),
        "spent_share": float(n.sum() / result.cap),
        "all_wrong": float((right == 0).mean()),
        "all_right": float((right == n).mean()),
        "mixed": float(mixed.mean()),
        "hits": float((right > 0).mean()),
        "effective": float(n[mixed].sum() / n.sum()),
        "gradient_variance": relative_variance(
            "rloo_by_prompt", rates, n, rollouts_per_prompt, followed
        ),
        "first_solved": float(result.first_solved),
        **dict(zip(("n_05", "n_50", "n_95"), quantiles.astype(float).tolist(), strict=True)),
        "n_max": float(n.max()),
        "seconds": result.seconds,
    }


def summarize_by_pass_rate(result: PassResult) -> list[dict[str, Any]]:
    """Rows of what prompts got by pass rate: those at 0, tenths of what lies between, those at 1.

    Each row has rate_low and rate_high, prompts, their mean number of rollouts (0 for those left
    out), the share of the spent rollouts, and the share of prompts whose group was mixed.
    """
    # 0 where the rate is 0, RATE_BINS + 1 where it is 1.
    bins = (result.rates * RATE_BINS).astype(np.int64).clip(max=RATE_BINS - 1) + 1
    bins[result.rates == 0] = 0
    bins[result.rates == 1] = RATE_BINS + 1
    mixed = (result.right > 0) & (result.right < result.rollouts)
    prompts, rollouts, mixed_groups = (
        np.bincount(bins, weights, minlength=RATE_BINS + 2)
        for weights in (None, result.rollouts, mixed)
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


def count_prompts_by_rollouts(result: PassResult) -> list[dict[str, int]]:
    """Rows {n, prompts}: how many prompts got n rollouts, for every n that occurs."""
    prompts = np.bincount(result.rollouts)
    return [{"n": n, "prompts": int(prompts[n])} for n in np.flatnonzero(prompts).tolist()]
