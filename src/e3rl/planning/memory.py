"""How much memory training and sampling take on one device, reckoned from shapes.

Peaks of the parts that grow with model, batch and vocabulary. Not counted: the CUDA context
(about 0.5 GiB), kernels' workspaces and fragmentation.
"""

from dataclasses import dataclass

from e3rl.policy.shape import ModelShape

GIB = 2**30
ADAM_MOMENTS = 2
# Float32 tensors of the logits' shape alive at once. Update: the log-softmax and its gradient.
LOGITS_IN_UPDATE = 2
# Each token entropy that is trained on: its log-softmax, probabilities, and their gradient.
LOGITS_OF_ENTROPY = 3
# The probe: log-probs, probabilities, and their product at another temperature.
LOGITS_IN_PROBE = 3
# A block of a chunked head: the logits raised to float32 and divided by the temperature, in the
# backward pass then the probabilities and their slopes.
LOGITS_IN_BLOCK = 2
# Gradients alive at once in the backward pass of a block, of its inner width.
WORKING = 2


@dataclass(frozen=True)
class Training:
    """What the update's memory depends on.

    Args:
        weight_bytes: of an element of weights, gradients and optimiser states.
        compute_bytes: of an element of activations.
        shards: processes that share weights, gradients and optimiser states (1: whole copies).
        bucketed: gradients exist twice, as DDP's buckets hold them.
        moments: optimiser states per weight.
        fused: the optimiser's step is one kernel, which keeps no square roots of them.
        offloaded: they are on the device in the optimiser's step alone.
        tokens: of one micro-batch, padding included.
        checkpointing: activations are recomputed layer by layer in the backward pass.
        entropy: the loss has an entropy bonus.
        probe: exact entropies are measured before the update.
        block: tokens whose logits exist at a time; None: all of a micro-batch.
        head_bytes: of an element of the logits as they come out of the head.
        reference: a KL penalty keeps the policy's start beside it, but for adapters, without which
            the policy is its own start.
    """

    weight_bytes: int
    compute_bytes: int
    shards: int
    bucketed: bool
    moments: int
    tokens: int
    checkpointing: bool
    entropy: bool
    probe: bool
    block: int | None = None
    head_bytes: int | None = None  # None: as the activations
    offloaded: bool = False
    fused: bool = False
    reference: bool = False


def training_bytes(shape: ModelShape, training: Training) -> dict[str, int]:
    """Bytes on one device by part, at the moment of an update when they are most together.

    The moments are: the loss and its gradient with respect to the logits; the backward pass of the
    last block; the end of the backward pass; and the optimiser's step. With P parameters, of which
    B in a block and R in none, N trained ones, s shards, w and c bytes of a weight and an
    activation, r bytes of the residual stream (w, or c with shards), T tokens in a micro-batch, L
    layers, width h, V words, z bytes of a logit from the head:

        weights             P w / s, and adapters in float32
        reference           P w / s where a KL penalty needs one
        optimiser states    moments · N w / s, offloaded ones in the step alone, and N w / s in the
                            step, for Adam's square roots where it is not fused
        gradients           N w / s at the end, twice in DDP, whose buckets are always there. The
                            head's is there first. Those of what is in no block are shared out last:
                            until then R c, and R 4 on their way
        weights as computed what autocast has cast, B c of each block that keeps its activations,
                            and of the head; with shards R c, gathered, and two blocks
        activations         T r h of each layer and a block's own with checkpointing; without, every
                            block's own
        logits              T V (2 z + 4 n): the head's output and its gradient, n float32 copies
            in blocks       K V (z + 4 n) for a block of K tokens; V h 4 for the gradient of the
                            head, where it is trained, and V h z for a raised copy of it

    See `block_bytes` for what is a block's own. All T tokens count as sampled, so short prompts are
    the worst case.
    """
    moments = update_moments(shape, training).values()
    return max(moments, key=lambda parts: sum(parts.values()))


def block_bytes(shape: ModelShape, training: Training) -> int:
    """What a block keeps of a token for its backward pass, under fused attention.

    Norms keep what they get and, where they are trained, what they make of it; products keep
    their inputs, of which autocast casts one for each matrix. That is for queries q, keys k, inner
    width f: 24 h + 8 q + 8 k + 16 f bytes in float32, 26 h + 4 q + 4 k + 8 f under autocast,
    16 h + 4 q + 4 k + 8 f with weights in bfloat16.
    """
    h, c = shape.hidden, training.compute_bytes
    half_adapters = bool(shape.adapters) and c < 4
    norms = 2 * h * (4 if shape.adapters else 4 + _stream_bytes(training))
    inputs = (5 if half_adapters or _casts(training) else 2) * h * c
    attention = (2 + half_adapters) * shape.query * c + 2 * shape.key_value * c
    return norms + inputs + attention + 4 * shape.intermediate * c


@dataclass(frozen=True)
class _Sizes:
    """Elements and bytes that the moments of an update are made of."""

    shape: ModelShape
    training: Training

    @property
    def block(self) -> int:
        """Elements of a block's weights."""
        shape = self.shape
        matrices = 2 * shape.query + 2 * shape.key_value + 3 * shape.intermediate
        return shape.hidden * (matrices + 2)  # and its norms

    @property
    def rest(self) -> int:
        """Elements that are in no block."""
        return self.shape.parameters - self.shape.layers * self.block

    @property
    def head(self) -> int:
        """Elements of the output layer that have a gradient."""
        return self.shape.vocabulary * self.shape.hidden * (not self.shape.adapters)

    @property
    def weights(self) -> int:
        adapters = 4 * self.shape.adapters // self.training.shards
        return self.whole_weights + adapters

    @property
    def reference(self) -> int:
        return self.whole_weights * (self.training.reference and not self.shape.adapters)

    @property
    def whole_weights(self) -> int:
        return self.shape.parameters * self.training.weight_bytes // self.training.shards

    @property
    def trained(self) -> int:
        """Bytes of what has gradients."""
        return 4 * self.shape.adapters // self.training.shards or self.whole_weights

    @property
    def own(self) -> int:
        """Bytes that a block keeps of its activations."""
        return self.training.tokens * block_bytes(self.shape, self.training)

    @property
    def inputs(self) -> int:
        """Bytes of what goes into all blocks."""
        elements = self.training.tokens * self.shape.layers * self.shape.hidden
        return elements * _stream_bytes(self.training)

    @property
    def cast_blocks(self) -> int:
        """Bytes of weights that autocast has made for blocks that keep their activations."""
        if self.training.checkpointing or not _casts(self.training):
            return 0
        return self.training.compute_bytes * self.block * self.shape.layers

    @property
    def computed(self) -> int:
        """Bytes of weights as computed in the backward pass of a block."""
        training = self.training
        if training.shards > 1:
            return training.compute_bytes * (self.rest + 2 * self.block)
        alone = training.checkpointing and _casts(training)
        return self.cast_blocks + training.compute_bytes * self.block * alone


def update_moments(shape: ModelShape, training: Training) -> dict[str, dict[str, int]]:
    """Bytes by part at the moments of an update; see `training_bytes`."""
    sizes, c = _Sizes(shape, training), training.compute_bytes
    tokens, shards, checkpointing = training.tokens, training.shards, training.checkpointing
    kept = sizes.inputs if checkpointing else shape.layers * sizes.own
    last = tokens * shape.hidden * (4 + _stream_bytes(training) + c)
    raised = 4 * (bool(shape.adapters) and c < 4)  # peft raises the inputs of adapters
    working = tokens * WORKING * shape.intermediate * (c + raised)
    head_cast = shape.vocabulary * shape.hidden * c * _casts(training)
    first_grads, shared_out = sizes.head * 4, 0
    if shards > 1:  # before ranks share them out: the head's and a block's, then all of the rest
        trains = not shape.adapters
        first_grads = c * (sizes.head + sizes.block * trains)
        shared_out = sizes.rest * (c + 4) * trains
    buckets, states = sizes.trained * training.bucketed, sizes.trained * training.moments
    kept_states = states * (not training.offloaded)
    roots = training.moments > 1 and not training.fused
    parts = ("gradients", "optimiser states", "weights as computed", "activations", "logits")
    sizes_of = {
        "loss": (
            *(buckets, kept_states, sizes.cast_blocks + head_cast + c * sizes.rest * (shards > 1)),
            *(kept + last, _logit_bytes(shape, training)),
        ),
        "backward": (
            *(buckets + first_grads, kept_states, sizes.computed),
            *(kept + sizes.own * checkpointing + working, 0),
        ),
        "end": (
            *(
                buckets + sizes.trained + shared_out,
                kept_states,
                sizes.computed - sizes.cast_blocks,
            ),
            *(sizes.inputs // shape.layers * checkpointing + sizes.own, 0),
        ),
        "step": (
            *(buckets + sizes.trained, states + sizes.trained * roots),
            *(0, 0, 0),
        ),
    }
    reference = {"reference": sizes.reference} if sizes.reference else {}
    return {
        moment: {"weights": sizes.weights} | reference | dict(zip(parts, found, strict=True))
        for moment, found in sizes_of.items()
    }


def resident_bytes(shape: ModelShape, training: Training) -> int:
    """Bytes of what is there between updates too: weights, those of a reference, gradients and
    optimiser states."""
    sizes = _Sizes(shape, training)
    moments = training.moments * (not training.offloaded)
    kept = sizes.trained * (1 + training.bucketed + moments)
    return sizes.weights + sizes.reference + kept


def _casts(training: Training) -> bool:
    """Whether autocast makes a copy of each weight for its product; shards are gathered cast."""
    return training.compute_bytes < training.weight_bytes and training.shards == 1


def _stream_bytes(training: Training) -> int:
    """Of an element that goes from block to block."""
    return training.compute_bytes if training.shards > 1 else training.weight_bytes


def _logit_bytes(shape: ModelShape, training: Training) -> int:
    size = training.head_bytes or training.compute_bytes
    if training.block is None:
        copies = LOGITS_IN_UPDATE + LOGITS_OF_ENTROPY * training.entropy
        copies = max(copies, LOGITS_IN_PROBE * training.probe)
        return training.tokens * shape.vocabulary * (size * (1 + (size < 4)) + 4 * copies)
    copies = max(LOGITS_IN_BLOCK, LOGITS_IN_PROBE * training.probe)
    block = min(training.block, training.tokens) * shape.vocabulary * (size + 4 * copies)
    raised = size * (size > training.weight_bytes)
    return block + shape.vocabulary * shape.hidden * (raised + 4 * (not shape.adapters))


def cache_bytes_per_token(shape: ModelShape, element_bytes: int) -> int:
    """Bytes of the KV cache for one token: keys and values of every layer."""
    return 2 * shape.layers * shape.key_value * element_bytes


@dataclass(frozen=True)
class EngineMemory:
    """Memory of a sampling engine on one device."""

    weights: int  # bytes of its own
    cache: int  # bytes of KV cache
    cache_tokens: int  # tokens that the cache holds

    @property
    def total(self) -> int:
        return self.weights + self.cache


def vllm_memory(
    shape: ModelShape, element_bytes: int, tensor_parallel: int, share: int | None, cache: int
) -> EngineMemory:
    """Of vLLM, with weights of its own.

    Args:
        shape: of the policy.
        element_bytes: of the engine's weights and cache.
        tensor_parallel: devices that share both.
        share: bytes that it may take, weights included; None: a cache of `cache` bytes.
        cache: bytes of KV cache where there is no share.

    A share smaller than the weights leaves a cache of 0.
    """
    weights = shape.parameters * element_bytes // tensor_parallel
    room = cache if share is None else max(0, share - weights)
    per_token = cache_bytes_per_token(shape, element_bytes)
    return EngineMemory(weights, room, room * tensor_parallel // per_token)


def transformers_memory(
    shape: ModelShape, element_bytes: int, tokens: int, copied_bytes: int = 0
) -> EngineMemory:
    """Of transformers' generate, which samples with the policy's own weights, or with a copy that
    has `copied_bytes` of an element."""
    cache = tokens * cache_bytes_per_token(shape, element_bytes)
    return EngineMemory(shape.parameters * copied_bytes, cache, tokens)
