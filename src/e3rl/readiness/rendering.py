"""The result of a preflight as text for the console and as values for preflight.json."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from e3rl.analysis.tables.cells import Cells, as_text
from e3rl.readiness.checks import Finding, is_go
from e3rl.readiness.pass_rates import GroupOutcomes, count_by_solve_rate
from e3rl.readiness.rule_ranking import RuleScore
from e3rl.readiness.sample import Sample

BAR = 32  # letters of the longest bar
WIDTH = 120
NOISE = (
    "noise: rollouts, split by the rule, that make noise and signal of the gradient equal, in the "
    "last of the passes\nplayed, on the prompts that it reaches; less is better, for the gradient "
    "of a step and not for what comes of it"
)


def render_preflight(
    sample: Sample, findings: Sequence[Finding], scores: Sequence[RuleScore]
) -> str:
    """Sample, solve rates, budget rules, findings and verdict, as plain text."""
    parts = [
        render_sample(sample),
        render_solve_rates(sample),
        render_rules(scores),
        render_findings(findings),
        render_verdict(findings),
    ]
    return "\n\n".join(part for part in parts if part)


def render_sample(sample: Sample) -> str:
    """Two lines about the rollouts themselves."""
    share, tokens = sample.right.sum() / sample.rollouts.sum(), sample.lengths
    middle, high = np.quantile(tokens, [0.5, 0.95])
    return (
        f"{tokens.size} rollouts of {len(sample.prompt_ids)} training prompts at temperature "
        f"{sample.temperature:g}: {share:.1%} right, entropy {sample.entropy:.3f} nats a token\n"
        f"{tokens.mean():.1f} tokens in the mean, {middle:.0f} in the median, {high:.0f} for one "
        f"in 20, at most {tokens.max()}; sampled {sample.tokens_per_s:,.0f} a second"
        f"{f' by {sample.processes} processes' if sample.processes > 1 else ''}"
    )


def render_solve_rates(sample: Sample) -> str:
    """The solve rates of the prompts as a histogram."""
    counts = count_by_solve_rate(sample.right, sample.rollouts)
    most = max(counts.values())
    lines = [
        f"{name:>13} {'#' * round(BAR * count / most):{BAR}} {count}"
        for name, count in counts.items()
    ]
    return "\n".join(["prompts by how often they were solved", *lines])


def render_rules(scores: Sequence[RuleScore]) -> str:
    """Budget rules from the least noise to the most."""
    if not scores:
        return ""
    body = [
        [
            w.rule,
            f"{w.noise:.2f}",
            f"{w.ratio:.2f}",
            f"{w.low:.2f}-{w.high:.2f}",
            f"{w.reached:.0%}",
        ]
        for w in scores
    ]
    head = ["budget rule", "noise", "beside the best", "95 %", "reached"]
    return f"{as_text(Cells(head, body, ''), head[:1])}\n\n{NOISE}"


def render_findings(findings: Sequence[Finding]) -> str:
    """A row per check."""
    body = [
        [f.check, f.level, f"{f.says}. Remedy: {f.remedy}" if f.remedy else f.says]
        for f in findings
    ]
    words = ["check", "", "what it says"]
    return as_text(Cells(words, body, ""), words, WIDTH)


def render_verdict(findings: Sequence[Finding]) -> str:
    """GO or NO-GO, and because of which checks."""
    failed = [f.check for f in findings if f.level == "fail"]
    warned = [f.check for f in findings if f.level == "warn"]
    if not is_go(findings):
        return f"NO-GO: {', '.join(failed)}"
    return f"GO, with {len(warned)} warnings: {', '.join(warned)}" if warned else "GO"


def preflight_values(
    sample: Sample,
    groups: GroupOutcomes,
    findings: Sequence[Finding],
    scores: Sequence[RuleScore],
    forecast: Mapping[str, str],
) -> dict[str, Any]:
    """What preflight.json holds: plain numbers, texts, lists and dicts."""
    return {
        "go": is_go(findings),
        "findings": [asdict(finding) for finding in findings],
        "prompts": [
            {"prompt_id": name, "n": int(n), "correct": int(right)}
            for name, n, right in zip(sample.prompt_ids, sample.rollouts, sample.right, strict=True)
        ],
        "solved": count_by_solve_rate(sample.right, sample.rollouts),
        "groups": asdict(groups),
        "lengths": {
            "mean": float(sample.lengths.mean()),
            **{f"p{q}": float(np.percentile(sample.lengths, q)) for q in (5, 50, 95, 100)},
        },
        "truncated": float(sample.truncated.mean()),
        "statuses": dict(sample.statuses),
        "temperature": sample.temperature,
        "entropy": sample.entropy,
        "tokens_per_s": sample.tokens_per_s,
        "trained_tokens_per_s": sample.trained_tokens_per_s,
        "processes": sample.processes,
        "mismatch": asdict(sample.mismatch),
        "rules": [asdict(score) for score in scores],
        "forecast": dict(forecast),
    }
