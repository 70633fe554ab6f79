"""What an update takes is what was reckoned, within 5 %: real tensors of one rank of eight.

The ranks' messages go nowhere. Bytes are counted where torch's allocator hands them out.
"""

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from e3rl.planning.memory import Training, training_bytes
from e3rl.policy.adapters import LoRA, add_adapters
from e3rl.policy.head import HeadSettings
from e3rl.policy.loading import set_checkpointing
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape
from e3rl.policy.sharding import shard

RANKS, ROWS, LENGTH, BLOCK = 8, 4, 128, 64
SIZES = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "head_dim": 32},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024},
}
Mode = Literal["full", "chunked"]

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def random_policy(head: Mode, checkpointing: bool, lora: bool) -> Policy:
    """Of 4 M weights, seven eighths of them in blocks."""
    torch.manual_seed(0)
    policy = Policy("random", head=HeadSettings(head, block=BLOCK), share_prompts=False)
    config = policy.model.config
    config.update(SIZES | {"tie_word_embeddings": False})
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    policy.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    if lora:
        add_adapters(policy.model, LoRA(r=8))
    set_checkpointing(policy.model, checkpointing)
    policy._detect_head_adjustment(policy.model)
    return policy


def share(policy: Policy, how: str, mixed: bool) -> Any:
    """What runs a micro-batch: ranks have parts of the policy, or a copy each with buckets."""
    if how == "fsdp2":
        mesh = init_device_mesh("cpu", (RANKS,))
        shard(policy, mesh, "bf16-mixed" if mixed else "32-true")
        return policy
    copies = DistributedDataParallel(policy)

    def unchanged(state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        future: Future[torch.Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    copies.register_comm_hook(None, unchanged)
    return copies


def held(policy: Policy, optimizer: torch.optim.Optimizer, buckets: bool) -> int:
    """Bytes between updates, without gradients."""
    states = [v for state in optimizer.state.values() for v in state.values()]
    tensors = [*policy.parameters(), *(v for v in states if torch.is_tensor(v))]
    if buckets:
        tensors += [p for p in policy.parameters() if p.requires_grad]
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def measure_update(policy: Policy, how: str, mixed: bool) -> int:
    """Most bytes at once of the third update of a run."""
    run = share(policy, how, mixed)
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)  # as on GPUs
    tokens = torch.randint(4, 1000, (ROWS, LENGTH))
    positions = torch.ones_like(tokens, dtype=torch.bool)
    positions[:, 0] = False
    sampled, taus = tokens[positions], torch.ones(int(positions.sum()))

    def update() -> None:
        optimizer.zero_grad()
        # As Lightning has it.
        casting = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with casting if mixed else nullcontext():
            logprobs = run(tokens, positions, lambda found: found.scores(sampled, taus, False)[0])
        logprobs.sum().backward()
        optimizer.step()

    for _ in range(2):
        update()
    optimizer.zero_grad()
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        update()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now, most = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return held(policy, optimizer, buckets=how == "ddp") + most


PLAIN = Training(
    weight_bytes=4,
    compute_bytes=4,
    shards=1,
    bucketed=False,
    moments=2,
    tokens=ROWS * LENGTH,
    checkpointing=False,
    entropy=False,
    probe=False,
)


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "lora", [pytest.param(False, marks=pytest.mark.slow, id=""), pytest.param(True, id="lora")]
)
@pytest.mark.parametrize(
    "mixed",
    [pytest.param(False, marks=pytest.mark.slow, id="float32"), pytest.param(True, id="mixed")],
)
@pytest.mark.parametrize(
    ("head", "checkpointing"),
    [
        pytest.param("full", False, marks=pytest.mark.slow),
        pytest.param("chunked", False, marks=pytest.mark.slow),
        ("chunked", True),
    ],
)
@pytest.mark.parametrize("how", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp2"])
def test_an_update_takes_what_was_reckoned(
    how: str, head: Mode, checkpointing: bool, mixed: bool, lora: bool
) -> None:
    policy = random_policy(head, checkpointing, lora)
    shape = ModelShape.of_policy(policy)
    reckoned = training_bytes(
        shape,
        replace(
            PLAIN,
            compute_bytes=2 if mixed else 4,
            shards=RANKS if how == "fsdp2" else 1,
            bucketed=how == "ddp",
            checkpointing=checkpointing,
            block=BLOCK if head == "chunked" else None,
        ),
    )
    assert sum(reckoned.values()) == pytest.approx(measure_update(policy, how, mixed), rel=0.05)
