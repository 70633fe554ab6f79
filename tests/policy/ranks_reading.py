"""What two gloo ranks do that read their parts of a policy; see test_own_parts.py."""

import copy
import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from e3rl.checkpoints.sharded import load_shards, save_shards
from e3rl.policy.adapters import LoRA, base_weights
from e3rl.policy.policy import EMBEDDED, Policy
from e3rl.policy.sharding import shard
from e3rl.process.distributed import gather_full
from e3rl.process.environment import prepare

CPU = torch.device("cpu")


def read_on_two_ranks(folder: Path, path: Path, lora: LoRA | None) -> list[dict[str, Any]]:
    """On each rank: bytes that reading took at most, those of its part, and digests of weights."""
    torch.multiprocessing.spawn(_meet, args=(str(folder), str(path), lora), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def _meet(rank: int, folder: str, path: str, lora: LoRA | None) -> None:
    prepare()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        for each in _shared_out(EMBEDDED, lora):  # libraries are loaded and have what they keep
            each.read_weights(CPU)
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        policy, reference = _shared_out(path, lora)
        policy.read_weights(CPU)
        peak = _memory("VmHWM") - before
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        reference.read_weights(CPU)
        peak_of_reference = _memory("VmHWM") - before
        restored = _restore(policy, Path(folder) / "step-000001.ckpt")
        torch.save(
            {
                "peak": peak,
                "peak of reference": peak_of_reference,
                "restored": restored,
                "own": sum(p.to_local().nbytes for p in policy.parameters()),
                "weights": _digests(policy),
                "reference": _digests(reference),
            },
            Path(folder) / f"{rank}.pt",
        )
    finally:
        dist.destroy_process_group()


def _shared_out(path: str, lora: LoRA | None) -> tuple[Policy, Policy]:
    """A policy and a KL term's reference, shared among ranks and without weights."""
    policy = Policy(path, lora=lora, in_parts=True)
    reference = copy.deepcopy(policy)
    mesh = init_device_mesh("cpu", (2,))
    for each in (policy, reference):
        shard(each, mesh)
    return policy, reference


def _restore(policy: Policy, path: Path) -> int:
    """Bytes that taking weights from a checkpoint takes at most beside the weights."""
    tensors = {f"state_dict/{name}": p.detach() for name, p in policy.named_parameters()}
    save_shards(tensors, {}, path)
    for tensor in tensors.values():
        tensor.zero_()
    gc.collect()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    load_shards(tensors, path)
    return _memory("VmHWM") - before


def _digests(policy: Policy) -> dict[str, float]:
    """A number for each parameter of the base: that of the same bits, and hardly of others."""
    found = {}
    for name, weight in base_weights(policy.model.named_parameters(), policy.model).items():
        bits = gather_full(weight.value.detach()).view(torch.int32).long().flatten()
        found[name] = int((bits * torch.arange(1, len(bits) + 1)).sum())
    return found


def _memory(kind: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{kind}:")[1].split()[0]) * 1024
