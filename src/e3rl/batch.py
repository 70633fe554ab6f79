"""`RolloutBatch`, the one type that travels through the pipeline.

Letters used for shapes everywhere in e3rl:
    P  prompts in the batch          N  rollouts in the batch (sum of the group sizes)
    T  padded tokens of a rollout    V  vocabulary size     B  prompts of an allocation

Groups are ragged by construction: a rollout points to its prompt through `group`; there is no
(P, n) rectangle anywhere. Every (N, T) tensor is aligned with the token it describes: index t
speaks about `tokens[:, t]`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e3rl.budgets.base import Allocation
from e3rl.checkpoints.strict_state import require_keys
from e3rl.functional.flops import PassCounts
from e3rl.rewards.scorer import Question, make_question


@dataclass(frozen=True)
class Rollout:
    """One sampled completion of one prompt, as an engine returns it."""

    prompt: int  # row of the prompt in the batch, 0 <= prompt < P
    sample: int  # index of this rollout within its group
    prompt_tokens: tuple[int, ...]  # the ids that were sampled from
    tokens: tuple[int, ...]  # sampled ids, the end-of-sequence token included
    logprobs: tuple[float, ...]  # log p of each sampled token at `temperature`, nats
    temperature: float
    truncated: bool  # reached the length limit without ending
    text: str  # decoded completion, special tokens left out
    policy_version: int  # optimiser state that sampled it, counted in rollout steps
    weight: float = 1.0  # how often it counts in the update; 0: stopped early, not trained on


@dataclass(frozen=True)
class RolloutScore:
    """What a rollout earned."""

    correct: float  # 0 or 1, which accuracies, pass@k and budgets are made from
    reward: float  # what advantages are made from; differs from `correct` under shaping
    answer: str | None = None  # the completion's own in one spelling; None where it has none


class RolloutScorer(Protocol):
    """Turns rollouts into scores while others are still being generated."""

    def submit(self, rollout: Rollout) -> None: ...

    def collect(self) -> Sequence[RolloutScore]:
        """Scores of everything submitted since the last call, in the order of submission."""


# Sampling temperature of rollouts, given (prompt rows (m,), sample indices (m,)) -> (m,).
TemperatureOf = Callable[[Sequence[int], Sequence[int]], Sequence[float]]
# (top_p, top_k) of rollouts, given prompts and samples; in validation alone.
TruncationOf = Callable[[Sequence[int], Sequence[int]], Sequence[tuple[float, int]]]


@dataclass(frozen=True)
class MeasuredEntropy:
    """Exact entropies of the sampling policy on a random sample of this step's rollouts.

    Sums over tokens and a token count, so that ranks and micro-batches add up exactly; a rollout
    counts by its weight in the sample. All in nats, at the states that the sampler visited.
    """

    tokens: float
    entropy_sum: float  # at the sampling temperature
    entropy_t1_sum: float  # at temperature 1
    varentropy_sum: float  # Var[log p] at the sampling temperature = dH / d ln tau
    sampled_t1_sum: float  # importance-weighted sampled estimate at temperature 1
    factors: tuple[float, ...] = ()  # temperature multipliers of the curve below
    curve_sums: tuple[float, ...] = ()  # entropy sums at factor * sampling temperature


@dataclass
class RolloutBatch:
    """Prompts, and everything that the slots of the pipeline add to them.

    Fields that a later slot writes start as None; `require` names the slot that should have.
    """

    # -- written by the loader
    prompt_ids: list[str]  # P stable problem ids, the key of every per-prompt statistic
    prompts: list[str]  # P rendered prompts
    answers: list[str]  # P gold answers
    sources: list[str]  # P families (generated) or sources (problem files)
    prompt_tokens: list[list[int]]  # P ragged
    levels: list[int | None] = field(default_factory=list)  # P difficulty levels, where known
    priors: list[float | None] = field(default_factory=list)  # P difficulty ranks in [0, 1)
    problem_rows: list[Mapping[str, Any]] = field(default_factory=list)  # P further columns
    stream: tuple[int | str, ...] = ()  # what the seeds of this batch derive from
    # Where a run looks ahead: batches that are sampled from this step on, by how many steps later.
    upcoming: "dict[int, RolloutBatch]" = field(default_factory=dict)
    under_way: "Future[None] | None" = None  # done once what is sampled beside updates is there

    # -- written by `budget` and `temperature` (in validation by `pass_at_k`)
    allocation: "Allocation[RolloutBatch] | None" = None
    requeue: bool = False  # whether prompts that got no rollout come again
    ranks: Tensor | None = None  # (P,) float, 0 = easiest, NaN = unseen; for shaping and logs
    always_right: Tensor | None = None  # (P,) bool, ranked and solved in all rollouts until now
    prompt_weights: Tensor | None = None  # (P,) float32, of mean 1: how much a prompt counts
    wants_grad_norms: bool = False  # whether the module is to write `grad_norms`
    base_temperature: float | None = None  # the step's, before single rollouts depart from it
    temperature_of: TemperatureOf | None = None
    truncation_of: TruncationOf | None = None  # None in training: the whole distribution

    scorer: RolloutScorer | None = None  # written by `reward`

    # -- written by `rollout`
    group: Tensor | None = None  # (N,) int64 in [0, P), the rollout's prompt
    sample: Tensor | None = None  # (N,) int64, index within the group
    temperatures: Tensor | None = None  # (N,) float32, as sampled
    tokens: Tensor | None = None  # (N, T) int64, prompt + completion, right-padded
    lengths: Tensor | None = None  # (N,) int64, prompt + completion tokens
    completion_mask: Tensor | None = None  # (N, T) bool, True on sampled tokens
    sampler_logprobs: Tensor | None = None  # (N, T) float32, 0 off the mask
    truncated: Tensor | None = None  # (N,) bool
    policy_version: Tensor | None = None  # (N,) int64
    weights: Tensor | None = None  # (N,) float32, how often a rollout counts in the update
    completions: list[str] | None = None  # N texts
    given_answers: list[str | None] | None = None  # N final answers, None where there is none
    correct: Tensor | None = None  # (N,) float32, verifier's 0 or 1
    rewards: Tensor | None = None  # (N,) float32, after shaping
    rounds: int = 0

    # -- written by `advantage`
    advantages: Tensor | None = None  # (N,) float32

    # -- written by the module
    entropy: MeasuredEntropy | None = None
    grad_norms: Tensor | None = None  # (N,) float32, ‖∂ ln p(completion) / ∂ logits‖
    passes: PassCounts = field(default_factory=PassCounts)  # what went through the policy

    metrics: dict[str, float] = field(default_factory=dict)  # of the step, by name
    born: float = field(default_factory=time.monotonic)  # seconds, for the length of the step
    born_cpu: float = field(default_factory=time.process_time)  # of this process, all threads

    @property
    def n_prompts(self) -> int:
        return len(self.prompt_ids)

    @property
    def n_rollouts(self) -> int:
        return 0 if self.group is None else int(self.group.numel())

    @property
    def group_sizes(self) -> Tensor:
        """(P,) int64 rollouts per prompt so far."""
        if self.group is None:
            return torch.zeros(self.n_prompts, dtype=torch.int64)
        return torch.bincount(self.group, minlength=self.n_prompts)

    def question(self, prompt: int) -> Question:
        """What a scorer may know of a prompt, by its row in the batch."""
        level = self.levels[prompt] if self.levels else None
        row = self.problem_rows[prompt] if self.problem_rows else {}
        i, question, answer = prompt, self.prompts[prompt], self.answers[prompt]
        return make_question(self.prompt_ids[i], question, answer, self.sources[i], level, row)

    def tally(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rollouts so far by prompt (P,), and how many of them were right (P,)."""
        right = torch.zeros(self.n_prompts, dtype=torch.float64)
        if self.n_rollouts:
            group, correct = self.tensor("group").cpu(), self.tensor("correct").cpu()
            right.index_add_(0, group, correct.double())
        return self.group_sizes.cpu().numpy(), right.numpy()

    def counts(self) -> Tensor:
        """(N,) float64, how often each rollout counts in a mean: its weight, or 1 where all of
        them were stopped early, so that none would count."""
        weights = self.tensor("weights").double()
        return weights if bool((weights > 0).any()) else torch.ones_like(weights)

    def settle(self) -> None:
        """Wait for rollouts that are being sampled; raises what went wrong with them."""
        if self.under_way is not None:
            self.under_way.result()

    def require(self, *names: str) -> None:
        """Raise a `RuntimeError` that names the slot whose field is missing."""
        for name in names:
            if getattr(self, name) is None:
                raise RuntimeError(
                    f"batch.{name} is missing: the `{WRITERS[name]}` slot must run earlier in "
                    "the callback stack (conf/callbacks/default.yaml)"
                )

    def tensor(self, name: str) -> Tensor:
        """The tensor field `name`; raises like `require` where it is missing."""
        self.require(name)
        value = getattr(self, name)
        assert isinstance(value, Tensor)
        return value

    def ranks_for_shaping(self) -> list[float]:
        """P difficulty ranks, 0 for prompts that were solved in every rollout until now.

        None is easier than those, but in `ranks` all of them have the mean of their places.
        """
        ranks = self.tensor("ranks")
        if self.always_right is not None:
            ranks = ranks.masked_fill(self.always_right, 0.0)
        found: list[float] = ranks.tolist()
        return found

    def to(self, device: torch.device | str) -> "RolloutBatch":
        """Move every tensor in place; returns self, so the object's identity is kept."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                setattr(self, item.name, value.to(device))
        return self

    def extend(self, rollouts: Sequence[Rollout], scores: Sequence[RolloutScore], pad: int) -> None:
        """Append one round of scored rollouts, padding to the longest so far.

        Raises ValueError where a rollout has no token or as many log-probs as tokens is not true,
        and where there is not one score per rollout.
        """
        if len(scores) != len(rollouts):
            raise ValueError(f"{len(rollouts)} rollouts came with {len(scores)} scores")
        added = _stack(rollouts, pad)
        added["correct"] = torch.tensor([score.correct for score in scores], dtype=torch.float32)
        added["rewards"] = torch.tensor([score.reward for score in scores], dtype=torch.float32)
        for name, value in added.items():
            old = getattr(self, name)
            setattr(self, name, value if old is None else _concat(old, value, PADS.get(name, pad)))
        self.completions = [*(self.completions or []), *(r.text for r in rollouts)]
        self.given_answers = [*(self.given_answers or []), *(score.answer for score in scores)]
        self.rounds += 1

    def check(self) -> None:
        """Verify shapes, dtypes and mask consistency; called once before the update."""
        self.require("tokens", "rewards", "advantages")
        for name, (shape, dtype) in self._expected().items():
            value = getattr(self, name)
            if value is None or tuple(value.shape) != shape or value.dtype != dtype:
                got = None if value is None else (tuple(value.shape), value.dtype)
                raise ValueError(f"batch.{name}: expected {shape} {dtype}, got {got}")
        for name in ("sampler_logprobs", "temperatures", "rewards", "advantages"):
            if not bool(torch.isfinite(self.tensor(name)).all()):
                raise ValueError(f"batch.{name} must be finite")
        if bool((self.tensor("temperatures") <= 0).any()):
            raise ValueError(
                "batch.temperatures must be above 0: greedy rollouts have no log-probabilities to "
                "train on"
            )
        self._check_mask(self.tensor("completion_mask"))

    def _check_mask(self, mask: Tensor) -> None:
        if bool((self.tensor("sampler_logprobs")[~mask] != 0).any()):
            raise ValueError("batch.sampler_logprobs must be 0 off the completion mask")
        if not bool(mask.any(dim=1).all()):
            raise ValueError("batch.completion_mask: a rollout has no sampled token")
        column = torch.arange(mask.shape[1], device=mask.device)
        allowed = (column > 0) & (column < self.tensor("lengths")[:, None])
        if bool((mask & ~allowed).any()):
            raise ValueError(
                "batch.completion_mask: sampled tokens must follow a prompt and lie within "
                "batch.lengths"
            )

    def _expected(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        n, t = self.n_rollouts, int(self.tensor("tokens").shape[1])
        return {
            "group": ((n,), torch.int64),
            "sample": ((n,), torch.int64),
            "temperatures": ((n,), torch.float32),
            "tokens": ((n, t), torch.int64),
            "lengths": ((n,), torch.int64),
            "completion_mask": ((n, t), torch.bool),
            "sampler_logprobs": ((n, t), torch.float32),
            "truncated": ((n,), torch.bool),
            "policy_version": ((n,), torch.int64),
            "correct": ((n,), torch.float32),
            "rewards": ((n,), torch.float32),
            "advantages": ((n,), torch.float32),
        }


WRITERS = {
    "allocation": "budget",
    **dict.fromkeys(("ranks", "always_right", "prompt_weights"), "budget"),
    **dict.fromkeys(("base_temperature", "temperature_of"), "temperature"),
    "scorer": "reward",
    **dict.fromkeys(
        (
            *("group", "sample", "temperatures", "tokens", "lengths", "completion_mask"),
            *("sampler_logprobs", "truncated", "policy_version", "weights", "completions"),
            *("given_answers", "correct", "rewards"),
        ),
        "rollout",
    ),
    "advantages": "advantage",
    **dict.fromkeys(("entropy", "grad_norms"), "module"),
}
# What the loader writes about each prompt; levels and priors may be missing altogether.
PROMPT_COLUMNS = (
    *("prompt_ids", "prompts", "answers", "sources", "prompt_tokens"),
    *("levels", "priors", "problem_rows"),
)
Columns = Mapping[str, list[Any]]
# Done with once a batch is sampled, or of the process that holds it.
LEFT_OUT = {
    *("allocation", "base_temperature", "temperature_of", "truncation_of", "scorer"),
    *("wants_grad_norms", "grad_norms", "entropy", "upcoming", "under_way", "born", "born_cpu"),
    "passes",
}
PADS = {"completion_mask": 0, "sampler_logprobs": 0}


def prompt_columns(batch: RolloutBatch) -> Columns:
    """The loader's fields by name, each with one entry per prompt."""
    return {name: list(getattr(batch, name)) for name in PROMPT_COLUMNS}


def join_columns(shards: Sequence[Columns]) -> Columns:
    """The prompts of all ranks, in rank order."""
    return {name: [x for shard in shards for x in shard[name]] for name in PROMPT_COLUMNS}


def hold_prompts(batch: RolloutBatch, columns: Columns, rows: Sequence[int]) -> None:
    """Make these rows of the columns the batch's prompts, in place, for others hold the batch.

    Raises RuntimeError where rollouts or a decision refer to the prompts that it has.
    """
    decided = [
        name for name in ("allocation", "ranks", "group") if getattr(batch, name) is not None
    ]
    if decided:
        raise RuntimeError(f"batch.{decided[0]} refers to the prompts that are to be replaced")
    for name, column in columns.items():
        setattr(batch, name, [column[row] for row in rows] if column else [])


def batch_state(batch: RolloutBatch) -> dict[str, Any]:
    """The batch's fields by name: builtins and CPU tensors."""
    kept = [item.name for item in fields(batch) if item.name not in LEFT_OUT]
    values = {name: getattr(batch, name) for name in kept}
    return {k: v.cpu() if hasattr(v, "cpu") else v for k, v in values.items()}


def batch_from_state(state: Mapping[str, Any]) -> RolloutBatch:
    """The batch that `batch_state` described; raises ValueError for other keys."""
    kept = [item.name for item in fields(RolloutBatch) if item.name not in LEFT_OUT]
    require_keys("RolloutBatch", state, kept)
    return RolloutBatch(**state)


def _stack(rollouts: Sequence[Rollout], pad: int) -> dict[str, Tensor]:
    """Rollouts as right-padded tensors, by field name."""
    n = len(rollouts)
    lengths = [len(r.prompt_tokens) + len(r.tokens) for r in rollouts]
    width = max(lengths, default=0)
    tokens = torch.full((n, width), pad, dtype=torch.int64)
    mask = torch.zeros((n, width), dtype=torch.bool)
    logprobs = torch.zeros((n, width), dtype=torch.float32)
    for row, (r, end) in enumerate(zip(rollouts, lengths, strict=True)):
        if not r.tokens or len(r.logprobs) != len(r.tokens):
            raise ValueError(
                f"rollout {r.sample} of prompt row {r.prompt}: {len(r.tokens)} tokens with "
                f"{len(r.logprobs)} log-probs; an engine must return one per sampled token"
            )
        start = len(r.prompt_tokens)
        tokens[row, :end] = torch.tensor(r.prompt_tokens + r.tokens)
        mask[row, start:end] = True
        logprobs[row, start:end] = torch.tensor(r.logprobs)
    return {
        "group": torch.tensor([r.prompt for r in rollouts], dtype=torch.int64),
        "sample": torch.tensor([r.sample for r in rollouts], dtype=torch.int64),
        "temperatures": torch.tensor([r.temperature for r in rollouts], dtype=torch.float32),
        "tokens": tokens,
        "lengths": torch.tensor(lengths, dtype=torch.int64),
        "completion_mask": mask,
        "sampler_logprobs": logprobs,
        "truncated": torch.tensor([r.truncated for r in rollouts], dtype=torch.bool),
        "policy_version": torch.tensor([r.policy_version for r in rollouts], dtype=torch.int64),
        "weights": torch.tensor([r.weight for r in rollouts], dtype=torch.float32),
    }


def _concat(old: Tensor, new: Tensor, pad: int) -> Tensor:
    """Stack rows, padding the narrower side on the right."""
    if old.ndim == 2:
        width = max(old.shape[1], new.shape[1])
        old, new = (
            torch.nn.functional.pad(x, (0, width - x.shape[1]), value=pad) for x in (old, new)
        )
    return torch.cat([old, new.to(old.device)])
