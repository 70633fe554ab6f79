"""What `e3rl.preflight` looks at: a composed run, measured by a sample and judged."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from omegaconf import DictConfig
from pydantic import Field, PositiveInt

from e3rl.config.build import build, build_data
from e3rl.config.cautions import cautions
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.problem import Problem
from e3rl.planning.forecast import TOO_MUCH, as_measured, hours, memory, work
from e3rl.planning.plan import ProblemCounts, derive_plan
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape
from e3rl.readiness import checks
from e3rl.readiness.answers import answer_test
from e3rl.readiness.finding import Finding
from e3rl.readiness.pass_rates import DeadGroups, believed, dead_groups
from e3rl.readiness.rule_choice import compared, rules_of
from e3rl.readiness.rules import Worth
from e3rl.readiness.sample import Sample
from e3rl.readiness.sampling import sample_rollouts
from e3rl.seeds import derive_seed
from e3rl.temperatures.base import TemperatureRule


@dataclass(frozen=True)
class Look:
    """What the command itself may be told."""

    prompts: Annotated[int, Field(ge=2)]
    rollouts: Annotated[int, Field(ge=2)] | None
    rules: list[str]
    tables: PositiveInt
    hours: Annotated[float, Field(gt=0)] | None


@dataclass(frozen=True)
class Seen:
    """All that a preflight has found out."""

    sample: Sample
    dead: DeadGroups
    worths: list[Worth]
    forecast: dict[str, str]
    findings: list[Finding]


def look(cfg: DictConfig) -> Seen:
    """Build a run as training would, sample, and judge; closes what it started.

    Raises ConfigurationError with every mistake that can be known before the sample.
    """
    check(cfg, also={"preflight": Look})
    if cfg.ckpt_path:
        raise ConfigurationError(
            f"ckpt_path={cfg.ckpt_path}: preflight looks at a run before its first step; leave it "
            "out, or measure a checkpoint by e3rl.evaluate"
        )
    for part in ("budget", "advantage", "shaping", "loss"):
        build(cfg, part)  # a value that its constructor refuses
    rules, own = rules_of(cfg)
    policy: Policy = build(cfg, "policy")
    cfg.vocabulary_size = policy.vocabulary_size
    data = build_data(cfg, policy)
    counts, shape = ProblemCounts.of(data), ModelShape.of_policy(policy)
    steps = derive_plan(cfg, counts, shape).total_steps
    needed, inert = memory(cfg, shape), cautions(cfg)
    problems, temperature = drawn(data, cfg), first_temperature(cfg, steps)
    sample, answers = sampled(cfg, policy, problems, temperature)
    dead = dead_groups(believed(sample.right, sample.rollouts), cfg.rollouts_per_prompt)
    worths, rule = compared(rules, own, sample, cfg, counts.train)
    # Lengths are as measured: those in `plan` were a guess, and may be above max_new_tokens.
    planned = as_measured(cfg, sample.trained_tokens_per_s, float(sample.lengths.mean()))
    forecast = work(planned, steps, counts.validation) | needed
    length = hours(planned, steps, counts.validation)
    findings = [
        checks.check_signal(sample, dead, cfg.rollouts_per_prompt),
        rule,
        checks.check_truncation(sample, cfg.max_new_tokens),
        checks.check_format(sample),
        answers,
        checks.check_verdicts(sample),
        checks.check_mismatch(sample),
        checks.check_memory(forecast["memory: peak"], TOO_MUCH),
        checks.check_time(length, forecast["time"], cfg.preflight.hours),
        *checks.as_findings(inert),
    ]
    return Seen(sample, dead, worths, forecast, findings)


def sampled(
    cfg: DictConfig, policy: Policy, problems: list[Problem], temperature: float
) -> tuple[Sample, Finding]:
    """A few rollouts, and whether the gold answers score; engine and workers are closed again."""
    engine, pool = build(cfg, "engine"), build(cfg, "reward")
    try:
        sample = sample_rollouts(cfg, policy, problems, temperature, engine, pool)
        return sample, checks.check_answers(answer_test(pool, problems), len(problems))
    finally:
        engine.close()
        pool.close()


def drawn(data: PromptDataModule, cfg: DictConfig) -> list[Problem]:
    """Training problems of the sample, without repeats."""
    problems = data.train_problems
    generator = np.random.default_rng(derive_seed(cfg.seed, "preflight", "problems"))
    count = min(cfg.preflight.prompts, len(problems))
    return [problems[row] for row in sorted(generator.permutation(len(problems))[:count].tolist())]


def first_temperature(cfg: DictConfig, total_steps: int) -> float:
    """What the run's first step is sampled at."""
    rule: TemperatureRule = build(cfg, "temperature")
    rule.bind(total_steps, cfg.rollout.lookahead)
    return float(rule.decide(0).temperature)
