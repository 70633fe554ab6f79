"""A step disturbance: where it acts, and that a resume neither loses nor repeats it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import SEED, BarePolicy, Fit, ScriptedEngine, StubModule, slots
from transformers import AutoConfig, AutoModelForCausalLM

from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.disturbance import Disturbance, check_linear
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.policy.policy import Policy


class NormPolicy(BarePolicy):
    """A policy with nothing but a last normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.model = torch.nn.Module()
        self.model.model.norm = torch.nn.Module()
        self.model.model.norm.weight = torch.nn.Parameter(torch.ones(2))


class Seeing(ScriptedEngine):
    """Writes down the gain that every sync brings."""

    def sync(self, policy: Policy, *arguments: Any) -> None:
        super().sync(policy, *arguments)
        if not hasattr(self, "gains"):
            self.gains: list[float] = []
        self.gains.append(float(policy.model.model.norm.weight[0]))


def fit(folder: Path, disturbance: Disturbance, resume: Path | None = None) -> Sequence[float]:
    """Gains that six steps were sampled with, a checkpoint after each of them."""
    engine = Seeing()
    stack: dict[str, Any] = slots(
        rollout=RolloutSampler(engine, 3, SEED),
        checkpoint=RunCheckpoint(str(folder / "checkpoints"), every=1, keep=9),
        disturbance=disturbance,
    )
    run = Fit(stack, folder, epochs=2)
    run.module = StubModule(NormPolicy())
    run.fit(resume)
    return engine.gains


def test_the_step_named_is_the_first_that_is_sampled_from_the_sharper_policy(
    tmp_path: Path,
) -> None:
    assert fit(tmp_path, Disturbance(step=3, factor=2.0)) == [1, 1, 1, 2, 2, 2]


def tiny(family: str, **settings: Any) -> Any:
    shape = {"vocab_size": 34, "hidden_size": 16, "intermediate_size": 24, "head_dim": 4}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(family, **shape, **settings, pad_token_id=0)
    return AutoModelForCausalLM.from_config(config)


def test_logits_that_are_not_linear_in_the_gain_are_refused() -> None:
    check_linear(tiny("qwen2"))
    check_linear(tiny("llama"))
    for family in ("gemma", "gemma2", "starcoder2"):  # 1 + w; that and a cap; a bias
        with pytest.raises(ValueError, match="ForCausalLM are not linear; leave it out"):
            check_linear(tiny(family))


def test_a_frozen_norm_is_refused_since_checkpoints_leave_it_out(tmp_path: Path) -> None:
    run = Fit(slots(disturbance=Disturbance(step=3, factor=2.0)), tmp_path)
    run.module = StubModule(NormPolicy())
    run.module.policy.model.model.norm.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"frozen here.*policy/lora=none"):
        run.fit()


@pytest.mark.parametrize(("after", "gains"), [(2, [1, 2, 2, 2]), (3, [2, 2, 2]), (4, [2, 2])])
def test_a_resumed_run_is_disturbed_once(tmp_path: Path, after: int, gains: list[float]) -> None:
    fit(tmp_path / "first", Disturbance(step=3, factor=2.0))
    (found,) = (tmp_path / "first" / "checkpoints").glob(f"*{after}.ckpt")
    assert fit(tmp_path / "second", Disturbance(step=3, factor=2.0), found) == gains


def test_a_policy_without_that_normalisation_is_refused_before_training(tmp_path: Path) -> None:
    run = Fit(slots(disturbance=Disturbance(step=3, factor=2.0)), tmp_path)
    run.module.policy.model = torch.nn.Identity()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="does not have; leave it out"):
        run.fit()
    assert run.engine.versions == []


@pytest.mark.parametrize(("step", "factor"), [(0, 2.0), (3, 0.0), (3, float("nan"))])
def test_settings_that_disturb_nothing_are_errors(step: int, factor: float) -> None:
    with pytest.raises(ValueError, match="use"):
        Disturbance(step, factor)
