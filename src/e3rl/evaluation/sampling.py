"""Sampling a policy on problems outside of training, by the same slots that validate in it."""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning import Callback, LightningModule, Trainer

from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.batch import RolloutBatch
from e3rl.callbacks.pass_at_k import EvaluationCounts, PassAtK, ProblemTally, merge_tallies
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.atomic import read_weights
from e3rl.data.loader import ValidationLoader, fingerprint
from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutEngine
from e3rl.evaluation.log import EvaluationLog
from e3rl.evaluation.parts import Part
from e3rl.evaluation.recorder import EvaluationRecorder
from e3rl.policy.policy import Policy
from e3rl.rewards.pool import RewardPool
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.matching import FEWEST_ROLLOUTS, EntropyMatcher

POLICY_PREFIX = "policy."


class PolicyHolder(LightningModule):
    """What Lightning's validation loop needs of a module: a policy and a `validation_step`."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def validation_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """The slots do the work."""


@dataclass(frozen=True)
class Bench:
    """A policy on problems, with what samples and scores them; see `validate`."""

    policy: Policy
    problems: Sequence[Problem]
    sampler: RolloutSampler
    pool: RewardPool
    prompts_per_batch: int
    progress: bool
    seed: int = 0  # of the noise, as `PassAtK.seed`

    def sample(self, evaluations: Sequence[Evaluation], ks: Sequence[int] = (1,)) -> PassAtK:
        """Every evaluation of every problem, in one pass."""
        pass_at_k = PassAtK(evaluations, ks, self.seed)
        validate(
            *(PolicyHolder(self.policy), self.problems, pass_at_k, self.sampler, self.pool),
            prompts_per_batch=self.prompts_per_batch,
            progress=self.progress,
        )
        return pass_at_k


def evaluate_policy(
    policy: Policy,
    problems: Sequence[Problem],
    evaluations: Sequence[Evaluation],
    engine: RolloutEngine,
    pool: RewardPool,
    max_new_tokens: int,
    ks: Sequence[int] = (1,),
    prompts_per_batch: int = 64,
    progress: bool = True,
    seed: int = 0,
) -> list[EvaluationCounts]:
    """Per-problem counts of every evaluation; closes engine and pool, also after an error."""
    sampler = RolloutSampler(engine, max_new_tokens, seed=0)
    bench = Bench(policy, problems, sampler, pool, prompts_per_batch, progress, seed)
    try:
        return bench.sample(find_temperatures(evaluations, bench), ks).results
    finally:
        engine.close()
        pool.close()


def find_temperatures(evaluations: Sequence[Evaluation], bench: Bench) -> list[Evaluation]:
    """The evaluations, those that ask for an entropy at the temperature that gives it.

    Two to four evaluations of all problems, with `FEWEST_ROLLOUTS` each, enclose an entropy; what
    is truncated alike shares them. Every search has the same random numbers.
    """
    known: dict[tuple[float, int], dict[float, float]] = {}
    found = []
    for each in evaluations:
        if each.entropy is not None:
            entropies = known.setdefault((each.top_p, each.top_k), {})
            temperature = _temperature_of(each, entropies, bench)
            each = replace(each, entropy=None, temperature=temperature)
        found.append(each)
    return found


def _temperature_of(each: Evaluation, entropies: dict[float, float], bench: Bench) -> float:
    """Evaluates until the entropy is enclosed; `entropies` by temperature grow."""
    matcher = EntropyMatcher(each.entropy or 0.0, entropies)
    while (temperature := matcher.next()) is not None:
        pilot = replace(each, n=FEWEST_ROLLOUTS, entropy=None, temperature=temperature)
        (counts,) = bench.sample([pilot]).results
        matcher.observe(temperature, counts.entropy_sum / counts.tokens)
    entropies |= matcher.entropies
    return matcher.temperature


def sample_unfinished(
    log: EvaluationLog,
    policy: Policy,
    problems: Sequence[Problem],
    evaluations: Sequence[Evaluation],
    engine: RolloutEngine,
    pool: RewardPool,
    max_new_tokens: int,
    prompts_per_batch: int = 64,
    progress: bool = True,
    seed: int = 0,
    part: Part | None = None,
) -> None:
    """Sample the problems that a log lacks and append them; leaves engine and pool open.

    With `part`, whose log it is, only its problems.

    Seeds belong to problems, so an evaluation that was killed ends with the counts of one that was
    not. A temperature that was found for an entropy is the log's where it has one, else it is
    looked for on all problems, the finished ones too.
    """
    rows = log.rows if part is None else part.rows()
    finished = {row["problem_id"] for row in rows}
    own = problems if part is None else part.own(problems)
    waiting = [problem for problem in own if problem.id not in finished]
    if waiting:
        sampler = RolloutSampler(engine, max_new_tokens, seed=0)
        bench = Bench(policy, problems, sampler, pool, prompts_per_batch, progress, seed)
        find = partial(find_temperatures, bench=bench)
        known = fix_found_temperatures(evaluations, rows)
        wanted = find(known) if part is None else part.share_temperatures(known, find)
        pass_at_k, recorder = PassAtK(wanted, (1,), seed), EvaluationRecorder(log, pool)
        module = PolicyHolder(policy)
        validate(module, waiting, pass_at_k, sampler, pool, prompts_per_batch, progress, [recorder])


def validate(
    module: PolicyHolder,
    problems: Sequence[Problem],
    pass_at_k: PassAtK,
    sampler: RolloutSampler,
    pool: RewardPool,
    prompts_per_batch: int,
    progress: bool,
    more: Sequence[Callback] = (),
    temperature: float = 1.0,
    make_trainer: Callable[..., Trainer] = Trainer,
) -> None:
    """One pass of Lightning's validation over the problems, through the slots, on one device.

    Args:
        module: holds the policy; its `validation_step` gets every sampled and scored batch.
        problems: sampled in their order.
        pass_at_k: which evaluations are sampled; has their counts afterwards.
        sampler, pool: with the engine and the reward workers, which the caller closes.
        prompts_per_batch: problems that are sampled together.
        progress: show a bar, where there is a terminal.
        more: callbacks after the slots.
        temperature: what the engine is tested at, and evaluations without one are sampled at.
        make_trainer: `Trainer`, or what makes one with settings of a run, such as its precision.
    """
    trainer = make_trainer(
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=progress and sys.stdout.isatty(),
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[
            TemperatureScheduler(Fixed(temperature)),
            pass_at_k,
            RewardScorer(pool),
            sampler,
            *more,
        ],
    )
    sampler.plan_for(max(len(module.policy.encode(problem)[1]) for problem in problems))
    loader = ValidationLoader(problems, module.policy.encode, prompts_per_batch)
    trainer.validate(module, dataloaders=loader, verbose=False)


def fix_found_temperatures(
    evaluations: Sequence[Evaluation], rows: Sequence[Mapping[str, Any]]
) -> list[Evaluation]:
    """Evaluations that match an entropy, at the temperature that finished problems had."""
    found = {each["name"]: each["temperature"] for row in rows for each in row["evaluations"]}
    return [
        replace(each, entropy=None, temperature=found[each.name])
        if each.entropy is not None and each.name in found
        else each
        for each in evaluations
    ]


def merge_rows(rows: Sequence[Mapping[str, Any]]) -> list[EvaluationCounts]:
    """The counts of every evaluation in the rows of a log, problems in the order of the rows."""
    known = [field.name for field in fields(ProblemTally)]
    tallies = [
        ProblemTally(**{name: e[name] for name in known if name in e})
        for r in rows
        for e in r["evaluations"]
    ]
    names = dict.fromkeys(each.name for each in tallies)
    return [merge_tallies([each for each in tallies if each.name == name]) for name in names]


def sampling_settings(
    policy: Policy,
    problems: Sequence[Problem],
    evaluations: Sequence[Evaluation],
    max_new_tokens: int,
    seed: int = 0,
) -> dict[str, Any]:
    """What decides the completions, as far as model and problems do; see `EvaluationLog`."""
    prompts = hashlib.blake2b(digest_size=8)
    for problem in problems:
        prompts.update(repr(policy.encode(problem)[1]).encode())
    return {
        "model": {"weights": weights_digest(policy), "dtype": str(next(policy.parameters()).dtype)},
        "problems": {"n": len(problems), "content": fingerprint(problems)},
        "prompts": prompts.hexdigest(),  # as the template and the tokenizer make them
        "evaluations": {each.name: asdict(each) for each in evaluations},
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "prefill": policy.prefill,
        "stop": list(policy.stop),
    }


def weights_digest(policy: Policy) -> str:
    """Digest of all weights: the same file name may hold others tomorrow."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in sorted(policy.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def load_weights(policy: Policy, checkpoint: Path) -> None:
    """Put the weights of a run's checkpoint into a policy of the same architecture.

    Raises DamagedCheckpointError for a damaged one and RuntimeError naming the parameters that
    do not fit.
    """
    state = read_weights(checkpoint)
    own = {
        name.removeprefix(POLICY_PREFIX): value
        for name, value in state.items()
        if name.startswith(POLICY_PREFIX)
    }
    with torch.no_grad():
        policy.load_state_dict(own, strict=True)


def to_evaluation_result(arm: str, counts: EvaluationCounts) -> EvaluationResult:
    """Counts in the form that tables and figures take."""
    table = pd.DataFrame(
        {"problem_id": counts.problem_id, "n": counts.n, "correct": counts.correct}
    )
    entropy = counts.entropy_sum / counts.tokens
    without = None if counts.no_answer is None else counts.no_answer / sum(counts.n)
    return EvaluationResult(arm, counts.name, counts.temperature, entropy, (table,), without)
