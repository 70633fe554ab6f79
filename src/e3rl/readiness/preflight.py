"""A preflight: a run is built as training would build it, sampled without an update, and judged."""

from dataclasses import dataclass
from typing import Annotated, Literal

from omegaconf import DictConfig
from pydantic import Field, PositiveInt

from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.config.build import (
    bind_data,
    build,
    build_callbacks,
    build_data,
    check_devices,
    check_optimizer,
)
from e3rl.config.cautions import find_cautions, mean_group_size
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError
from e3rl.data.problem import Problem
from e3rl.evaluation.policy_check import check_positions
from e3rl.planning.device_memory import TOO_MUCH, forecast_memory
from e3rl.planning.forecast import forecast_hours, forecast_work, with_measured_speed
from e3rl.planning.plan import ProblemCounts, check_before_policy, derive_plan
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape
from e3rl.readiness import checks
from e3rl.readiness.answer_test import run_answer_test
from e3rl.readiness.checks import Finding
from e3rl.readiness.partial_sample import combine
from e3rl.readiness.pass_rates import GroupOutcomes, predict_group_outcomes
from e3rl.readiness.processes import (
    build_policy,
    choose_processes,
    draw_problems,
    sample_in_processes,
    sample_once,
)
from e3rl.readiness.rule_choice import compare_rules, find_comparable_rules
from e3rl.readiness.rule_ranking import RuleScore
from e3rl.readiness.sample import Sample
from e3rl.seeds import derive_seed
from e3rl.temperatures.base import TemperatureRule


@dataclass(frozen=True)
class PreflightSettings:
    """The node `preflight` of conf/preflight.yaml.

    Args:
        prompts: training problems that are sampled. rollouts: of each, None for the group size.
        processes: that sample at once, a device each; auto: those that train on this machine.
        rules: budget rules to compare with the run's own, empty for all.
        tables: of pass rates, that rules are compared on.
        hours: that the run may take at most, None for any length.
    """

    prompts: Annotated[int, Field(ge=2)]
    rollouts: Annotated[int, Field(ge=2)] | None
    processes: PositiveInt | Literal["auto"]
    rules: list[str]
    tables: PositiveInt
    hours: Annotated[float, Field(gt=0)] | None


@dataclass(frozen=True)
class PreflightResult:
    """What a preflight measured, expects and found."""

    sample: Sample
    groups: GroupOutcomes
    scores: list[RuleScore]  # the best first; empty where rules cannot be compared
    forecast: dict[str, str]  # time, tokens and memory by name, as texts
    findings: list[Finding]  # one per check


def run_preflight(cfg: DictConfig) -> PreflightResult:
    """Build the run of a composed configuration, sample some problems, and judge what is seen.

    Engine and reward workers are closed again.

    Raises ConfigurationError for every mistake that can be known before anything is sampled.
    """
    check_preflight(cfg)
    rules, own = find_comparable_rules(cfg)
    data = build_data(cfg)
    check_before_policy(cfg, data)
    policy = build_policy(cfg)
    cfg.vocabulary_size = policy.vocabulary_size
    bind_data(data, policy)
    check_positions(cfg, policy, data.longest_prompt)
    counts, shape = ProblemCounts.of(data), ModelShape.of_policy(policy)
    steps = derive_plan(cfg, counts, shape).total_steps
    check_parts(cfg, policy)
    needed, inert = forecast_memory(cfg, shape), find_cautions(cfg)
    problems, temperature = draw_problems(data, cfg), first_temperature(cfg, steps)
    sample, answers = sample_and_test_answers(cfg, policy, problems, temperature)
    size, seed = round(mean_group_size(cfg)), derive_seed(cfg.seed, "preflight", "groups")
    groups = predict_group_outcomes(sample.right, sample.rollouts, size, seed)
    scores, rule = compare_rules(rules, own, sample, cfg, counts.train)
    # Lengths are as measured: those in `plan` were a guess, and may be above max_new_tokens.
    planned = with_measured_speed(
        cfg, sample.tokens_per_s, float(sample.lengths.mean()), sample.update_s, sample.processes
    )
    forecast = forecast_work(planned, steps, counts.validation) | needed
    length = forecast_hours(planned, steps, counts.validation)
    findings = [
        checks.check_signal(sample, groups, size),
        rule,
        checks.check_truncation(sample, cfg.max_new_tokens),
        checks.check_format(sample),
        answers,
        checks.check_verdicts(sample),
        checks.check_mismatch(sample),
        checks.check_memory(forecast["memory: peak"], TOO_MUCH),
        checks.check_time(length, forecast["time"], cfg.preflight.hours),
        *checks.list_cautions(inert),
    ]
    return PreflightResult(sample, groups, scores, forecast, findings)


def check_preflight(cfg: DictConfig) -> None:
    """Raise ConfigurationError for what is wrong before anything is loaded."""
    check(cfg, also={"preflight": PreflightSettings})
    if cfg.ckpt_path:
        raise ConfigurationError(
            f"ckpt_path={cfg.ckpt_path}: preflight looks at a run before its first step; leave it "
            "out, or measure a checkpoint by e3rl evaluate"
        )
    check_devices(cfg)
    check_optimizer(cfg)
    for part in ("budget", "advantage", "shaping", "loss"):
        build(cfg, part)  # a value that its constructor refuses


def check_parts(cfg: DictConfig, policy: Policy) -> None:
    """Raise ConfigurationError where the module or a callback, which a preflight has no use for,
    refuses a value, or a callback lacks another."""
    build(cfg, "module", policy=policy)
    for callback in build_callbacks(cfg):
        if isinstance(callback, RolloutSampler):
            callback.engine.close()
        elif isinstance(callback, RewardScorer):
            callback.pool.close()


def sample_and_test_answers(
    cfg: DictConfig, policy: Policy, problems: list[Problem], temperature: float
) -> tuple[Sample, Finding]:
    """A few rollouts, and whether gold answers score."""
    if (count := choose_processes(cfg, len(problems))) > 1:
        sample = sample_in_processes(cfg, count, problems, temperature)
    else:
        part = sample_once(cfg, policy, problems, temperature)
        sample = combine([part], [problem.id for problem in problems], temperature)
    with build(cfg, "reward") as pool:
        return sample, checks.check_answers(run_answer_test(pool, problems), len(problems))


def first_temperature(cfg: DictConfig, total_steps: int) -> float:
    """The temperature that the run's first step is sampled at, without `temperature.spread`."""
    rule: TemperatureRule = build(cfg, "temperature")
    rule.bind(total_steps, cfg.rollout.lookahead)
    return float(rule.decide(0).temperature)
