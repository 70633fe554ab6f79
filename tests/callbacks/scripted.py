"""A policy, an engine, a reward pool and a module that do what a test says, and whole fits of them.

Only these four are stand-ins: loaders, slots, batch and Lightning's trainer are the real ones.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from e3rl.advantages.centred import Centred
from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.budgets.uniform import Uniform
from e3rl.callbacks.advantage import Advantage
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.metrics import RolloutMetrics
from e3rl.callbacks.pass_at_k import PassAtK
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.data.loader import PromptLoader, ValidationLoader, collate
from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutRequest
from e3rl.ledger.logger import LedgerLogger
from e3rl.policy.policy import Policy
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import Verdict
from e3rl.temperatures.fixed import Fixed

SEED = 5
Script = Callable[[RolloutRequest], tuple[str, list[float]]]


class BarePolicy(Policy):
    """A policy without a model: one weight, a pad token, no stop strings, no prefill."""

    stop: tuple[str, ...] = ()
    prefill: str = ""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    @property
    def pad_id(self) -> int:
        return 0

    @property
    def vocabulary_size(self) -> int:
        return 8


def coin(request: RolloutRequest) -> tuple[str, list[float]]:
    """Right or wrong by the parity of the seed, one to three tokens of one nat."""
    return ("right" if request.seed % 2 else "wrong"), [-1.0] * (1 + request.seed % 3)


@dataclass
class ScriptedEngine:
    """Completes requests by `script`, in the order of `arrange`, and writes down what happens."""

    script: Script = coin
    arrange: Callable[[list[RolloutRequest]], list[RolloutRequest]] = list
    events: list[str] = field(default_factory=list)
    requests: list[RolloutRequest] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of every sync
    temperatures: list[float] = field(default_factory=list)  # of every sync
    holds_weights: bool = False
    closed: int = 0

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        self.versions.append(version)
        self.temperatures.append(temperature)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        self.requests += requests
        for request in self.arrange(list(requests)):
            self.events.append("sample")
            yield self._complete(request)

    def close(self) -> None:
        self.closed += 1

    def _complete(self, request: RolloutRequest) -> Rollout:
        text, logprobs = self.script(request)
        return Rollout(
            prompt=request.prompt,
            sample=request.sample,
            prompt_tokens=request.prompt_tokens,
            tokens=(7,) * len(logprobs),
            logprobs=tuple(logprobs),
            temperature=request.temperature,
            truncated=len(logprobs) == request.max_new_tokens,
            text=text,
            policy_version=self.versions[-1],
        )


@dataclass
class ScriptedPool:
    """`right` is correct, `hung` timed out, everything else is wrong; a text is its own answer."""

    events: list[str] = field(default_factory=list)
    pending: list[Verdict] = field(default_factory=list)
    progress: list[bool] = field(default_factory=list)
    tested: int = 0
    closed: int = 0
    scoring_s: float = 0.0

    def submit(self, completion: str, question: Question) -> int:
        self.events.append("submit")
        verdicts = {"right": Verdict(1.0, "correct"), "hung": Verdict(0.0, "timeout")}
        verdict = verdicts.get(completion, Verdict(0.0, "wrong"))
        self.pending.append(replace(verdict, answer=completion))
        return len(self.pending) - 1

    def collect(self, progress: bool = False) -> list[Verdict]:
        self.progress.append(progress)
        done, self.pending = self.pending, []
        return done

    def self_test(self) -> None:
        self.tested += 1

    def close(self) -> None:
        self.closed += 1


class StubModule(LightningModule):
    """Takes one optimiser step per minibatch and leaves the policy as it is."""

    def __init__(self, policy: Policy | None = None, minibatches: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.policy = policy or BarePolicy()
        self.minibatches = minibatches

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.policy.parameters(), lr=0.0)

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        for _ in range(self.minibatches):
            self.optimizers().step()  # type: ignore[union-attr]

    def validation_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        """The slots do the work."""


class Watcher(Callback):
    """Keeps every finished batch."""

    def __init__(self) -> None:
        self.trained: list[RolloutBatch] = []
        self.validated: list[RolloutBatch] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.trained.append(batch)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *indices: int
    ) -> None:
        self.validated.append(batch)


def problems(n: int, name: str = "p") -> list[Problem]:
    return [
        Problem(f"{name}{i}", f"question {i}", "gold", source="even" if i % 2 == 0 else "odd")
        for i in range(n)
    ]


def encode(problem: Problem) -> tuple[str, list[int]]:
    return str(problem.prompt), [1, 2]


def slots(**changed: Any) -> dict[str, Callback]:
    """The stack by name, in order; a slot given as None is left out."""
    events: list[str] = []
    stack: dict[str, Any] = {
        "budget": RolloutBudget(Uniform(), 4),
        "temperature": TemperatureScheduler(Fixed()),
        "pass_at_k": PassAtK([Evaluation("t1", n=4, temperature=1.0)], ks=[1, 2]),
        "reward": RewardScorer(ScriptedPool(events)),  # type: ignore[arg-type]
        "rollout": RolloutSampler(ScriptedEngine(events=events), 3, SEED),
        "advantage": Advantage(Centred()),
        "metrics": RolloutMetrics(1),
    }
    return {name: x for name, x in (stack | changed).items() if x is not None}


@dataclass
class Fit:
    """One trainer over scripted parts; `validate` is the baseline, `fit` trains."""

    stack: dict[str, Callback]
    folder: Path | None = None
    n_prompts: int = 6
    per_step: int = 2
    epochs: int = 1
    validate_every: int | None = None
    minibatches: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    lookahead: int = 0

    def __post_init__(self) -> None:
        self.watcher = Watcher()
        self.module = StubModule(minibatches=self.minibatches)
        every = self.validate_every
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Lightning, about GPUs and loggers
            self.trainer = Trainer(
                accelerator="cpu",
                devices=1,
                max_epochs=self.epochs,
                logger=[LedgerLogger(str(self.folder))] if self.folder else False,
                callbacks=[*self.stack.values(), self.watcher],
                plugins=[AtomicCheckpointIO()],
                val_check_interval=every,
                check_val_every_n_epoch=None if every else 1,
                **{
                    "num_sanity_val_steps": 0,
                    "enable_checkpointing": "checkpoint" in self.stack,
                    "enable_progress_bar": False,
                    "enable_model_summary": False,
                    "use_distributed_sampler": False,
                    **self.options,
                },
            )
        self.training = PromptLoader(
            problems(self.n_prompts), encode, self.per_step, SEED, lookahead=self.lookahead
        )
        self.validation = ValidationLoader(problems(3, "v"), encode, 2)

    def validate(self) -> "Fit":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer.validate(self.module, self.validation, verbose=False)
        return self

    def fit(self, ckpt_path: Path | None = None) -> "Fit":
        validation = self.validation if self.validate_every else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trainer.fit(
                self.module, self.training, validation, ckpt_path=ckpt_path, weights_only=True
            )
        return self

    @property
    def engine(self) -> ScriptedEngine:
        rollout = self.stack["rollout"]
        assert isinstance(rollout, RolloutSampler)
        assert isinstance(rollout.engine, ScriptedEngine)
        return rollout.engine

    @property
    def pool(self) -> ScriptedPool:
        reward = self.stack["reward"]
        assert isinstance(reward, RewardScorer)
        assert isinstance(reward.pool, ScriptedPool)
        return reward.pool


def scored_batch(groups: Sequence[Sequence[tuple[float, Sequence[float]]]]) -> RolloutBatch:
    """A finished batch: per prompt, per rollout, (correct, log-probs of its tokens)."""
    batch = collate(problems(len(groups)), encode, ("train", 0))
    rollouts, scores = [], []
    for row, group in enumerate(groups):
        for j, (correct, logprobs) in enumerate(group):
            text = "right" if correct else "wrong"
            ids = (7,) * len(logprobs)
            place = (row, j, (1, 2), ids, tuple(logprobs))
            rollouts.append(Rollout(*place, 1.0, len(ids) >= 9, text, policy_version=0))
            scores.append(RolloutScore(correct, correct))
    batch.extend(rollouts, scores, pad=0)
    batch.advantages = batch.tensor("rewards") - 0.5
    return batch
