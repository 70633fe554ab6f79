"""FSDP2 in one process, where it is quick to look at; on two see training/test_update_on_two_ranks.

One rank goes through all that several go through: parameters are gathered, used and put back.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch.distributed.tensor import DTensor

from e3rl.batch import RolloutBatch
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import MANIFEST, DamagedCheckpointError, find_damage
from e3rl.policy.adapters import LoRA
from e3rl.policy.head import HeadSettings
from e3rl.policy.policy import Policy
from e3rl.policy.sharding import idle_packs, shard
from e3rl.training.fsdp2 import FSDP2Strategy
from e3rl.training.module import GRPOModule
from update_harness import ADAMW, QUIET, Batches, fit, gap, make_loss, make_module, weights_of

pytestmark = [pytest.mark.usefixtures("rank_of_its_own"), pytest.mark.end_to_end]


class SaveEveryStep(Callback):
    """Checkpoints after each batch; in turn it may look at what is trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen.append(weights_of(pl_module.policy))
        trainer.save_checkpoint(self.folder / f"step-{len(self.seen):06d}.ckpt")


def train(
    module: GRPOModule,
    batches: list[RolloutBatch],
    folder: Path,
    start: Path | None = None,
    **options: Any,
) -> SaveEveryStep:
    saving = SaveEveryStep(folder)
    settings = QUIET | {"devices": 1, "callbacks": [saving], "plugins": [AtomicCheckpointIO()]}
    trainer = Trainer(**settings | options)
    trainer.fit(module, train_dataloaders=Batches(batches), ckpt_path=start, weights_only=True)
    return saving


def sharded() -> dict[str, Any]:
    return {"strategy": FSDP2Strategy()}


PLACES: dict[str, Callable[[], dict[str, Any]]] = {"fsdp2": sharded, "one process": dict}


@pytest.mark.parametrize("before", PLACES)
@pytest.mark.parametrize("after", PLACES)
def test_weights_and_optimiser_go_on_where_they_stood(
    before: str, after: str, policy: Policy, make_batch: Callable[..., RolloutBatch], tmp_path: Path
) -> None:
    batches = [make_batch(seed=seed) for seed in range(3)]
    whole = train(make_module(policy, optimizer=ADAMW), batches, tmp_path / "a", **PLACES[before]())
    start = tmp_path / "a" / "step-000001.ckpt"
    assert start.is_dir() == (before == "fsdp2")
    assert find_damage(start) == ""
    other = make_module(Policy("random"), optimizer=ADAMW)
    left = [*batches[1:], batches[0]]  # a loader without state starts over, and ends a batch early
    resumed = train(other, left, tmp_path / "b", start, **PLACES[after]())
    assert len(resumed.seen) == 2
    for own, expected in zip(resumed.seen, whole.seen[1:], strict=True):
        assert gap(own, expected) < 1e-6
    assert gap(resumed.seen[0], whole.seen[0]) > 1e-4


@pytest.mark.parametrize("after", PLACES)
@pytest.mark.parametrize("before", PLACES)
def test_adapters_go_on_where_they_stood(
    before: str, after: str, make_batch: Callable[..., RolloutBatch], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    policy = Policy(lora=LoRA(r=2, target_modules=("q_proj", "v_proj")))
    batches = [make_batch(seed=seed) for seed in range(2)]
    module = make_module(policy, make_loss(kl_coef=0.1), ADAMW)
    whole = train(module, batches, tmp_path / "a", **PLACES[before]())
    torch.manual_seed(1)  # other adapters
    other = Policy(lora=LoRA(r=2, target_modules=("q_proj", "v_proj")))
    resumed = train(
        make_module(other, make_loss(kl_coef=0.1), ADAMW),
        batches[::-1],
        tmp_path / "b",
        tmp_path / "a" / "step-000001.ckpt",
        **PLACES[after](),
    )
    assert gap(resumed.seen[0], whole.seen[1]) < 1e-6
    assert gap(whole.seen[0], whole.seen[1]) > 1e-4


def test_adapters_of_another_base_are_refused(
    make_batch: Callable[..., RolloutBatch], tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    lora = LoRA(r=2, target_modules=("q_proj",))
    train(make_module(Policy(lora=lora)), [make_batch()], tmp_path, **sharded())
    start = tmp_path / "step-000001.ckpt"
    with pytest.raises(ValueError, match="adapters belong to another base"):
        train(
            make_module(Policy("random", lora=lora)), [make_batch()], tmp_path, start, **sharded()
        )
    with pytest.raises(RuntimeError, match=r"could not be read|of another policy"):
        train(make_module(Policy()), [make_batch()], tmp_path, start, **sharded())


def test_a_damaged_shard_is_named_before_anything_is_taken_up(
    policy: Policy, make_batch: Callable[..., RolloutBatch], tmp_path: Path
) -> None:
    batches = [make_batch()]
    train(make_module(policy), batches, tmp_path, **sharded())
    path = tmp_path / "step-000001.ckpt"
    content = (path / "__0_0.distcp").read_bytes()
    (path / "__0_0.distcp").write_bytes(content[:-1])
    with pytest.raises(DamagedCheckpointError, match=r"step-000001\.ckpt: the checksum of __0_0"):
        train(make_module(policy), batches, tmp_path, path, **sharded())
    (path / MANIFEST).unlink()
    with pytest.raises(DamagedCheckpointError, match="its writing was interrupted"):
        train(make_module(policy), batches, tmp_path, path, **sharded())


class Look(Callback):
    """What is a part of a parameter, and what computes, while a policy is trained."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.parts = [isinstance(p, DTensor) for p in pl_module.policy.parameters()]
        self.references = [isinstance(p, DTensor) for p in pl_module._reference[0].parameters()]
        self.computed_in = pl_module.policy.computed_in
        tokens = torch.arange(8)[None] + 2
        with torch.no_grad():
            self.logits = pl_module.policy(tokens, tokens > 4).dtype
        self.parts_after = [isinstance(p, DTensor) for p in pl_module.policy.parameters()]
        self.stored = {p.dtype for p in pl_module.policy.parameters()}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_policy_and_reference_are_shared_and_compute_as_the_trainer_is_told(
    precision: str, policy: Policy, make_batch: Callable[..., RolloutBatch]
) -> None:
    look = Look()
    module = make_module(policy, make_loss(kl_coef=0.1), ADAMW)
    trainer = Trainer(
        **QUIET | {"devices": 1, "callbacks": [look], "precision": precision} | sharded()
    )
    trainer.fit(module, train_dataloaders=Batches([make_batch(policy=policy)]))
    assert all(look.parts)
    assert all(look.references)
    assert all(look.parts_after)  # a forward pass leaves nothing whole
    mixed = precision == "bf16-mixed"
    assert look.computed_in == ("bfloat16" if mixed else None)
    assert look.logits == (torch.bfloat16 if mixed else torch.float32)
    assert look.stored == {torch.float32}


def test_mixed_precision_learns_what_autocast_does_up_to_rounding(
    policy: Policy, make_batch: Callable[..., RolloutBatch]
) -> None:
    batches = [make_batch(policy=policy)]
    own = fit(make_module(policy), batches, precision="bf16-mixed", strategy=FSDP2Strategy())
    other = fit(make_module(policy), batches, precision="bf16-mixed")
    (found,), (expected,) = own.gradients, other.gradients
    flat, reference = (torch.cat([g[n].flatten() for n in expected]) for g in (found, expected))
    assert torch.cosine_similarity(flat, reference, dim=0) > 0.99
    assert flat.norm() == pytest.approx(float(reference.norm()), rel=0.05)


@pytest.mark.parametrize("head", ["full", "chunked"])
def test_weights_that_are_read_in_parts_learn_the_same(
    head: Literal["full", "chunked"], make_batch: Callable[..., RolloutBatch]
) -> None:
    """And so does the reference of a KL term, which is read once more."""
    seen = []
    for in_parts in (False, True):
        policy = Policy(in_parts=in_parts, head=HeadSettings(head, block=8))
        assert all(p.is_meta == in_parts for p in policy.parameters())
        module = make_module(policy, make_loss(kl_coef=0.1), ADAMW)
        seen.append(fit(module, [make_batch(seed=s) for s in range(2)], **sharded()))
    for name, expected in seen[0].gradients[1].items():
        assert torch.equal(seen[1].gradients[1][name], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_on_a_base_that_is_read_in_parts_learn_the_same(
    dtype: str, make_batch: Callable[..., RolloutBatch]
) -> None:
    pytest.importorskip("peft")
    seen = []
    for in_parts in (False, True):
        torch.manual_seed(1)
        policy = Policy(in_parts=in_parts, lora=LoRA(r=2), dtype=dtype)
        assert any(p.is_meta for p in policy.parameters()) == in_parts
        module = make_module(policy, make_loss(kl_coef=0.1), ADAMW)
        seen.append(fit(module, [make_batch(seed=s) for s in range(2)], **sharded()))
    assert seen[0].gradients[1]
    for name, expected in seen[0].gradients[1].items():
        assert torch.equal(seen[1].gradients[1][name], expected)


def test_a_policy_that_is_not_sharded_makes_no_idle_passes(
    policy: Policy, make_batch: Callable[..., RolloutBatch]
) -> None:
    assert idle_packs(policy, make_batch(), own=0, least=3) == []


def test_an_architecture_without_known_blocks_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(model_type="odd")  # type: ignore[assignment]
    odd = Policy.__new__(Policy)
    torch.nn.Module.__init__(odd)
    odd.model = model
    with pytest.raises(ValueError, match="modules of model type 'odd' are its blocks: use trainer"):
        shard(odd, None)  # type: ignore[arg-type]
