"""What two gloo ranks do with a policy that is sharded over them; see test_sharded_sync.py."""

import copy
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import e3rl.engines.vllm as vllm_engine
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.vllm_parallel import load_on_all_ranks
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.engines.weight_checks import (
    check_finite,
    check_shapes,
    expected_shapes,
    named_weights,
)
from e3rl.policy.policy import Policy
from e3rl.process.environment import prepare
from engine_requests import largest_gap, many
from small_models import with_router_biases

Work = Callable[[int], dict[str, Any]]


def on_two_ranks(work: Work, folder: Path) -> list[dict[str, Any]]:
    """What `work` returns on each of two processes that form a gloo group."""
    torch.multiprocessing.spawn(_meet, args=(work, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def _meet(rank: int, work: Work, folder: str) -> None:
    prepare()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        torch.save(work(rank), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def sharded(policy: Policy) -> Policy:
    """A copy whose layers, and then the rest, are shared by both ranks."""
    own = copy.deepcopy(policy)
    mesh = init_device_mesh("cpu", (2,))
    for layer in own.model.get_decoder().layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(own, mesh=mesh)  # not own.model, whose forward nobody calls
    return own


def tied(policy: Policy) -> Policy:
    """The policy with its head tied to the embedding."""
    other = copy.deepcopy(policy)
    config = copy.deepcopy(policy.model.config)
    config.tie_word_embeddings = True
    torch.manual_seed(0)  # the same on both ranks
    other.model = type(policy.model)(config)
    return other


def message_of(call: Callable[[], Any]) -> str:
    """Type and text of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def at_once(weights: Iterator[tuple[str, Tensor]]) -> int:
    """Most elements of sent tensors that were alive at the same time."""
    alive: list[tuple[Any, int]] = []
    most = 0
    for _, value in weights:
        alive.append((weakref.ref(value), value.numel()))
        most = max(most, sum(n for ref, n in alive if ref() is not None))
    return most


def with_transformers(policy: Policy, whole: Policy, rank: int) -> tuple[float, float, float]:
    """Gaps to the policy's own log-probs before and after an update, and without a sync."""
    engine = TransformersEngine(progress=False)

    def gap(version: int, reference: Policy) -> float:
        engine.sync(policy, version)
        # Unequal numbers of rollouts: no rank waits for another one while it samples.
        return largest_gap(reference, list(engine.generate(many(reference, n=1 + rank))))

    before = gap(0, whole)
    moved = copy.deepcopy(whole)
    with torch.no_grad():
        for both in (policy, moved):
            both.model.get_decoder().layers[0].mlp.up_proj.weight.mul_(1.5)
    stale, after = gap(0, moved), gap(1, moved)
    with torch.no_grad():
        policy.model.get_decoder().layers[0].mlp.up_proj.weight.div_(1.5)
    return before, after, stale


def with_experts(policy: Policy) -> float:
    """Gap to the own log-probs of a sharded policy whose router has biases."""
    whole, engine = with_router_biases(policy), TransformersEngine(progress=False)
    _ = whole.sharing
    engine.sync(sharded(whole), 0)
    return largest_gap(whole, list(engine.generate(many(whole))))


def look(rank: int) -> dict[str, Any]:
    """Everything that needs no vLLM."""
    whole = Policy()
    policy = sharded(whole)
    shapes = expected_shapes(policy.model)
    check_shapes(policy.model, shapes)
    check_finite(policy.model, 0)
    local = sum(p.to_local().numel() for p in policy.model.parameters())
    found: dict[str, Any] = {
        "shapes": shapes,
        "local": local,
        "kept": {name: p.detach() for name, p in whole.model.named_parameters()},
        "sent": {name: w.clone() for name, w in named_weights(policy.model, tied_head=True)},
        "at_once": at_once(named_weights(policy.model, tied_head=True)),
    }
    randomness = torch.get_rng_state()
    found["transformers"] = with_transformers(policy, whole, rank)
    found["randomness_stays"] = torch.equal(randomness, torch.get_rng_state())
    found["experts"] = with_experts(whole)
    twin = tied(whole)
    found["tied"] = {n: w.clone() for n, w in named_weights(sharded(twin).model, tied_head=True)}
    found["embedding"] = twin.model.get_input_embeddings().weight.detach()

    def half_way(weights: Iterator[tuple[str, Tensor]]) -> None:
        for number, _ in enumerate(weights):
            if rank == 0 and number == 3:
                raise ValueError("no room")

    sent = named_weights(policy.model, tied_head=True)
    found["half_way"] = message_of(lambda: load_on_all_ranks(half_way, sent))
    with torch.no_grad():  # within this rank's part alone
        parameter = policy.model.get_decoder().layers[1].mlp.up_proj.weight
        assert isinstance(parameter, DTensor)
        if rank == 1:
            parameter.to_local()[2, 3] = torch.nan
    found["not_finite"] = message_of(lambda: check_finite(policy.model, 6))
    return found


def sample(rank: int) -> dict[str, Any]:
    """vLLM engines on both ranks that follow a sharded policy through an update."""
    engine = vllm_engine.VLLMEngine(VLLMSettings(max_num_seqs=32), progress=False)
    whole = Policy()
    policy = sharded(whole)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.05)
    gaps = []
    found: dict[str, Any] = {"gaps": gaps}

    def compare(version: int) -> None:
        engine.sync(policy, version)
        # Unequal numbers of rollouts: no rank waits for another one while it samples.
        rollouts = list(engine.generate(many(policy, n=1 + rank)))
        gaps.append(largest_gap(whole, rollouts))

    try:
        compare(0)
        tokens = torch.arange(20)[None] + 2
        policy(tokens, torch.arange(20)[None] > 4).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, weight in named_weights(policy.model, tied_head=False):
                whole.model.get_parameter(name).copy_(weight)
        found["stale"] = largest_gap(whole, list(engine.generate(many(policy, n=1))))
        compare(1)
        found["rebuilt"] = _fail_once(engine, rank)
        compare(2)
    finally:
        engine.close()
    found["group_survives"] = dist.get_world_size()
    found["unequal"] = message_of(lambda: _shared_by_ranks(policy, 3).sync(policy, 0))
    found["shared"] = _sample_together(policy, whole, rank)
    return found


def _fail_once(engine: vllm_engine.VLLMEngine, rank: int) -> list[int]:
    """Let the next load fail on rank 0; counts the engines that are built from now on."""
    built: list[int] = []
    start, load = engine._start, engine._load

    def counted(policy: Policy) -> None:
        built.append(rank)
        start(policy)

    def failing(weights: Iterator[tuple[str, Tensor]]) -> None:
        engine._load = load  # type: ignore[method-assign]
        if rank == 0:
            next(weights)
            raise RuntimeError("broken on purpose")
        load(weights)

    engine._start, engine._load = counted, failing  # type: ignore[method-assign]
    return built


def _shared_by_ranks(policy: Policy, ranks: int) -> vllm_engine.VLLMEngine:
    settings = VLLMSettings(tensor_parallel_size=ranks, max_num_seqs=32)
    return vllm_engine.VLLMEngine(settings, progress=False)


def _sample_together(policy: Policy, whole: Policy, rank: int) -> dict[str, Any]:
    """What two ranks sample by one engine, each something else: gaps, and whether it is theirs."""
    engine, gaps, own = _shared_by_ranks(policy, 2), [], []
    try:
        for version in (0, 1):
            engine.sync(policy, version)
            wanted = many(policy, n=1 + 2 * rank)
            rollouts = list(engine.generate(wanted))
            gaps.append(largest_gap(whole, rollouts))
            places = sorted((r.prompt, r.sample) for r in rollouts)
            own.append(places == sorted((r.prompt, r.sample) for r in wanted))
            with torch.no_grad():
                for parameter in (*policy.model.parameters(), *whole.model.parameters()):
                    parameter.mul_(1.02)
    finally:
        engine.close()
    return {"gaps": gaps, "own": own}
