"""The checks: each turns measured numbers into a `Finding`. No check looks anything up itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from e3rl.readiness.answer_test import AnswerTestResult
from e3rl.readiness.pass_rates import GroupOutcomes
from e3rl.readiness.rule_ranking import RuleScore
from e3rl.readiness.sample import Sample
from e3rl.rewards.answer_reader import READ_ANSWERS

Level = Literal["ok", "warn", "fail"]

MIXED = (0.3, 0.05)  # share of groups that move the policy: below, a warning, and a failure
TRUNCATED = (0.1, 0.5)  # share of completions: above
UNPARSED = (0.2, 0.9)  # share of the completions that were not cut
UNJUDGED = (0.01, 0.1)  # share of verdicts that are time-outs or errors
DISAGREEING = (0.05, 0.5)  # 1 - effective share of the tokens
GAINED = (0.0, 0.02)  # share of foreign answers that score
WAITING = 0.2  # share of the time for rollouts that is spent waiting for verdicts
CLEARLY = 1.25  # times the rollouts of the best rule, by the lower bound, justifies a change
EXAMPLES = 3


@dataclass(frozen=True)
class Finding:
    """One check's result, with the remedy unless it is ok."""

    check: str
    level: Level
    says: str
    remedy: str = ""


def grade(check: str, value: float, warn: float, fail: float, says: str, remedy: str) -> Finding:
    """`fail` where the value lies above `fail`, `warn` where it lies above `warn`; a NaN fails."""
    if value <= warn:
        return Finding(check, "ok", says)
    return Finding(check, "warn" if value <= fail else "fail", says, remedy)


def is_go(findings: Iterable[Finding]) -> bool:
    """Warnings let a run start, failures do not."""
    return all(finding.level != "fail" for finding in findings)


def check_signal(sample: Sample, groups: GroupOutcomes, group_size: int) -> Finding:
    """Whether enough groups of the first pass will hold right and wrong rollouts."""
    share = groups.mixed
    says = (
        f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}] of groups of {group_size} will "
        f"be mixed, {groups.all_wrong.mean:.0%} all wrong, {groups.all_right.mean:.0%} all right"
    )
    too_hard = groups.all_wrong.mean > groups.all_right.mean
    remedy = (
        "take easier problems or a stronger start (policy.path), or more rollouts_per_prompt"
        if too_hard
        else "take harder problems, or leave out what is always solved"
    )
    warn, fail = MIXED
    # A sample without a right rollout leaves room for pass rates that nobody has seen.
    unmixed = 1 - share.mean if sample.has_signal else 1.0
    return grade("signal", unmixed, 1 - warn, 1 - fail, says, remedy)


def check_truncation(sample: Sample, max_new_tokens: int) -> Finding:
    """Whether completions end by themselves."""
    share = float(sample.truncated.mean())
    says = f"{share:.1%} of completions reach max_new_tokens={max_new_tokens}"
    remedy = "raise max_new_tokens, or shape rewards by length (shaping=overlong)"
    return grade("truncation", share, *TRUNCATED, says, remedy)


def check_format(sample: Sample) -> Finding:
    """Whether completions that end have an answer that the verifier finds."""
    whole = sample.answered[~sample.truncated]
    share = float(1 - whole.mean()) if whole.size else 0.0
    says = f"{share:.1%} of the completions that end have no answer in the required format"
    return grade("format", share, *UNPARSED, says, READ_ANSWERS)


def check_verdicts(sample: Sample) -> Finding:
    """Whether the verifier judges, and in time."""
    share = sample.share("timeout", "error")
    waiting = sample.reward_s / (sample.reward_s + sample.generation_s)
    says = f"{share:.1%} of verdicts are time-outs or errors; waiting for them takes {waiting:.0%}"
    remedy = "raise reward.workers or reward.deadline_s; sampling waits for rewards"
    found = grade("verdicts", share, *UNJUDGED, says, remedy)
    slow = found.level == "ok" and waiting > WAITING
    return Finding("verdicts", "warn", says, remedy) if slow else found


def check_answers(test: AnswerTestResult, problems: int) -> Finding:
    """Whether the reward reads gold answers as models write them, and no others."""
    if not test.own:
        return Finding("answers", "ok", "the reward names no completions of known standing")
    says = (
        f"{test.own - len(test.lost)} of {test.own} spellings of {problems} gold answers score, "
        f"{len(test.gained)} of {test.others} answers of other problems"
    )
    named = [*test.plain_lost, *test.lost, *test.gained][:EXAMPLES]
    remedy = f"look at {'; '.join(named)}: correct the answers, or choose another reward"
    if test.plain_lost:
        return Finding("answers", "fail", says, remedy)
    gained = len(test.gained) / test.others if test.others else 0.0
    found = grade("answers", gained, *GAINED, says, remedy)
    lost = found.level == "ok" and test.lost
    return Finding("answers", "warn", says, remedy) if lost else found


def check_mismatch(sample: Sample) -> Finding:
    """Whether the engine samples from the policy that the trainer differentiates."""
    gap = sample.mismatch
    says = (
        f"engine and trainer differ by KL {gap.kl:.1e} nats a token, at most {gap.largest:.2g}; "
        f"effective share {gap.ess:.1%} of {gap.tokens} tokens"
    )
    remedy = "set loss/correction=tis, or bring engine.settings.dtype nearer to the trainer's"
    return grade("mismatch", 1 - gap.ess, *DISAGREEING, says, remedy)


def check_rule(own: str, scores: Sequence[RuleScore], loss: str) -> Finding:
    """Whether another budget rule needs clearly fewer rollouts than the configured one.

    Args:
        own: name of the configured rule.
        scores: all rules beside the best, which comes first; empty without a signal.
        loss: whose gradient's noise was compared.
    """
    if not scores:
        says = "no prompt is solved at times, so no rule is better than another"
        return Finding("budget", "warn", says, "see the check `signal`")
    best, *others = scores
    what = f"{best.rule} needs the fewest rollouts for the same noise of a {loss} gradient"
    gap = f", the next, {others[0].rule}, {_more(others[0])} more" if others else ""
    if best.rule == own:
        return Finding("budget", "ok", f"{what}{gap}")
    mine = next(score for score in others if score.rule == own)
    says = f"{what}{gap}; {own}, as configured, {_more(mine)} more"
    if mine.low <= CLEARLY:
        return Finding("budget", "ok", f"{says}: no clear difference")
    return Finding("budget", "warn", says, "choose that rule by budget=...; see e3rl simulate")


def _more(score: RuleScore) -> str:
    shares = (f"{x - 1:.0%}" for x in (score.ratio, score.low, score.high))
    return "{} [{}, {}]".format(*shares)


def check_memory(peak: str, too_much: str) -> Finding:
    """Whether the reckoned peak fits; `too_much` is how a forecast says that it does not."""
    if too_much not in peak:
        return Finding("memory", "ok", f"peak {peak}")
    says, _, remedy = peak.partition(f": {too_much}; ")
    return Finding("memory", "fail", f"peak {says}: {too_much}", remedy)


def check_time(hours: float, time: str, limit: float | None) -> Finding:
    """Whether the run ends within `limit` hours, where one is given."""
    if limit is None or hours <= limit:
        return Finding("time", "ok", time)
    says = f"{time}; more than preflight.hours={limit:g}"
    return Finding("time", "fail", says, "lower epochs or max_new_tokens, or add devices")


def list_cautions(cautions: Sequence[str]) -> list[Finding]:
    """A warning for each setting that does nothing."""
    return [Finding("settings", "warn", caution, "as it says") for caution in cautions]
