"""How long a step takes on GPUs, from the operations and the bytes that it needs.

A device does some of its peak's operations in a second and moves some of its memory's bytes; how
large these shares are depends on kernels and shapes, and is assumed here. Beside what was published
for other code (arXiv 2505.18573, section 4: 24 hours on 4 A100 at 1.5B, 36 hours on 8 at 7B) the
estimates are 15 and 33 hours. Of these numbers one was measured, once: what a block's launches take
in an update, on an H200 (experiments/gpu_smoke).
"""

from dataclasses import dataclass

from e3rl.planning.memory import cache_bytes_per_token
from e3rl.policy.shape import ModelShape

FORWARDS = 3  # that a pass forwards and backwards is reckoned as
UPDATE_SHARE = 0.35  # of the peak's operations, in updates and prefills
BYTES_SHARE = 0.6  # of the memory's bandwidth, in decoding
GRAPH_S = 0.002  # a decoding step with CUDA graphs takes beside its kernels
EAGER_S = 0.0004  # a block's kernels take to be launched one by one
# A block's kernels of a pass forwards and backwards take to be launched, computed again or not:
# 14.7 s for 37 passes of 28 blocks whose operations would have taken a sixth of that.
PASS_S = 0.014


@dataclass(frozen=True)
class Gpu:
    """Peaks of a device by its data sheet, without sparsity.

    Args:
        half, single: operations per second in bfloat16, and in float32 without TF32.
        bandwidth: bytes per second of its memory.
        gib: of memory.
        link: bytes per second to the other devices of its machine.
    """

    half: float
    single: float
    bandwidth: float
    gib: int
    link: float


GPUS = {
    "a10": Gpu(125e12, 31e12, 0.6e12, 24, 32e9),
    "a100": Gpu(312e12, 19.5e12, 2.04e12, 80, 300e9),
    "b200": Gpu(2250e12, 75e12, 8e12, 180, 900e9),
    "h100": Gpu(989e12, 67e12, 3.35e12, 80, 450e9),
    "h200": Gpu(989e12, 67e12, 4.8e12, 141, 450e9),
    "l40s": Gpu(362e12, 92e12, 0.864e12, 48, 32e9),
    "rtx4090": Gpu(165e12, 83e12, 1.01e12, 24, 32e9),
}


@dataclass(frozen=True)
class Decoding:
    """How rollouts are sampled on one device.

    Args:
        element_bytes: of the engine's weights and cache.
        shards: devices that share the engine.
        at_once: rollouts that are decoded together.
        eager: kernels are launched one by one.
    """

    element_bytes: int
    shards: int
    at_once: int
    eager: bool


@dataclass(frozen=True)
class Passes:
    """What an update goes through on one device.

    Args:
        compute_bytes: of an element of activations.
        weight_bytes: of an element of weights.
        shards, ranks: devices that share the weights; that train.
        epochs: over each rollout with gradients.
        forwards: passes without gradients over each rollout.
        optimiser_steps: of a rollout step.
        tokens_per_pass: of a micro-batch.
        checkpointing: blocks are computed a second time.
    """

    compute_bytes: int
    weight_bytes: int
    shards: int
    ranks: int
    epochs: int
    forwards: int
    optimiser_steps: int
    tokens_per_pass: int
    checkpointing: bool


@dataclass(frozen=True)
class Sampled:
    """What is sampled on one device: numbers of rollouts and prompts, tokens of a prompt, of a
    completion in the mean, and of the longest one."""

    rollouts: float
    prompts: float
    prompt: float
    mean: float
    longest: float


def rollout_seconds(shape: ModelShape, gpu: Gpu, how: Decoding, what: Sampled) -> dict[str, float]:
    """Seconds of the parts of sampling, of which `total` is the sum as they overlap.

    Some completion is as long as may be, so there are as many decoding steps, or more where not all
    rollouts fit at once. Each reads all weights, and every token the cache of those before it:

        steps     max(longest, rollouts · mean / at once)
        weights   steps · P b / shards
        cache     rollouts · mean · (prompt + mean / 2) · bytes of a token's cache / shards
    """
    tokens = what.rollouts * what.mean
    steps = max(what.longest, tokens / how.at_once)
    bandwidth = gpu.bandwidth * BYTES_SHARE * how.shards
    per_token = cache_bytes_per_token(shape, how.element_bytes)
    peak = gpu.half if how.element_bytes < 4 else gpu.single
    computed = 2 * multiplied(shape) * (tokens + what.prompts * what.prompt)
    parts = {
        "weights": steps * shape.parameters * how.element_bytes / bandwidth,
        "cache": tokens * (what.prompt + what.mean / 2) * per_token / bandwidth,
        "operations": computed / (peak * UPDATE_SHARE * how.shards),
        "launches": steps * (EAGER_S * shape.layers if how.eager else GRAPH_S),
    }
    kernels = max(parts["weights"], parts["operations"]) + parts["cache"]
    # An eager step's kernels run while the next ones are launched; graphs leave gaps.
    total = max(kernels, parts["launches"]) if how.eager else kernels + parts["launches"]
    return parts | {"total": total}


def update_seconds(shape: ModelShape, gpu: Gpu, how: Passes, what: Sampled) -> dict[str, float]:
    """Seconds of the parts of an update, of which `total` is the sum as they overlap.

    A pass with gradients takes three times the operations of one without, two times for frozen
    weights, and once more for blocks that are computed again (`functional/flops.py`). The prompt of
    a group is computed once. However few tokens a pass has, the kernels of its blocks are launched
    one by one, those of a pass without gradients, by assumption, in a third of the time; they run
    meanwhile. Ranks that share weights gather them for each pass forwards and backwards, and share
    gradients out, beneath the computing; ranks that hold the same weights add theirs up once an
    optimiser step.
    """
    sampled = what.rollouts * what.mean
    tokens = sampled + what.prompts * what.prompt
    pairs = sampled * (what.prompt + what.mean / 2) + what.prompts * what.prompt**2 / 2
    head = shape.hidden * shape.vocabulary
    blocks = 2 * (multiplied(shape) - head) * tokens + 4 * shape.layers * shape.query * pairs
    times = (2 if shape.adapters else FORWARDS) + how.checkpointing
    once = blocks + 2 * head * sampled
    operations = how.epochs * (times * blocks + 3 * 2 * head * sampled) + how.forwards * once
    peak = (gpu.half if how.compute_bytes < 4 else gpu.single) * UPDATE_SHARE
    cuts = max(1.0, tokens / how.tokens_per_pass)
    passes = (how.epochs + how.forwards) * cuts
    launches = (how.epochs + how.forwards / FORWARDS) * cuts * shape.layers * PASS_S
    parts = {"operations": operations / peak, "launches": launches, "gathers": 0.0, "sums": 0.0}
    if how.shards > 1:
        parts["gathers"] = 3 * passes * shape.parameters * how.compute_bytes / gpu.link
    if how.ranks > how.shards:  # each sums up its part with those who have the same
        parts["sums"] = how.optimiser_steps * 2 * shape.trained * 4 / how.shards / gpu.link
    beneath = max(parts["operations"], parts["launches"], parts["gathers"])
    return parts | {"total": beneath + parts["sums"]}


def sync_seconds(shape: ModelShape, gpu: Gpu, how: Passes, engine_bytes: int) -> float:
    """Seconds that weights take to the engine: gathered where they are shared, read, written."""
    gathered = shape.parameters * how.weight_bytes / gpu.link * (how.shards > 1)
    return gathered + shape.parameters * (how.weight_bytes + engine_bytes) / gpu.bandwidth


def multiplied(shape: ModelShape) -> int:
    """Weights that a token is multiplied with; embeddings are looked up."""
    of_block = 2 * shape.query + 2 * shape.key_value + 3 * shape.intermediate
    return shape.hidden * (shape.layers * of_block + shape.vocabulary)
