"""How much memory training and sampling take on one device, reckoned from shapes.

Peaks of the parts that grow with model, batch and vocabulary. Not counted: the CUDA context
(about 0.5 GiB), kernels' workspaces, fragmentation, sharded gradients on their way to their ranks.
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


@dataclass(frozen=True)
class Training:
    """What the update's memory depends on.

    Args:
        weight_bytes: of an element of weights, gradients and optimiser states.
        compute_bytes: of an element of activations.
        shards: processes that share weights, gradients and optimiser states (1: whole copies).
        bucketed: gradients exist twice, as DDP's buckets hold them.
        moments: optimiser states per weight.
        tokens: of one micro-batch, padding included.
        checkpointing: activations are recomputed layer by layer in the backward pass.
        entropy: the loss has an entropy bonus.
        probe: exact entropies are measured before the update.
        block: tokens whose logits exist at a time; None: all of a micro-batch.
        head_bytes: of an element of the logits as they come out of the head.
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


def training_bytes(shape: ModelShape, training: Training) -> dict[str, int]:
    """Bytes on one device during the update, by part.

    With P parameters, s shards, w and c bytes of a weight and an activation, T tokens in a
    micro-batch, L layers, width h, V words, z bytes of a logit from the head:

        weights             P w / s
        gradients           P w / s, twice in DDP
        optimiser states    moments · P w / s
        adapters            float32, and in the place of P in the two lines above
        weights as computed P c where c < w (autocast keeps them for the whole step); with shards
                            c (R + 2 B), gathered: what is in no block, one block, and the next
        activations         T c (L h + b) with checkpointing, T c L b without
        logits              T V (2 z + 4 n): the head's output and its gradient, n float32 copies
            in blocks       B V (z + 4 n) for a block of B tokens; V h 4 for the gradient of the
                            head, where it is trained, and V h z for a raised copy of it

    b, the elements that a block keeps for its backward pass per token, are the inputs of its
    norms and matrix products: 4 h + 2 q + 2 k + 4 f for queries q, keys k and inner width f, under
    fused attention. All T tokens count as sampled, so short prompts are the worst case.
    """
    weights = shape.parameters * training.weight_bytes // training.shards
    per_token = training.tokens * training.compute_bytes
    block = 4 * shape.hidden + 2 * shape.query + 2 * shape.key_value + 4 * shape.intermediate
    kept = shape.layers * shape.hidden + block if training.checkpointing else shape.layers * block
    computed = shape.parameters * (training.compute_bytes < training.weight_bytes)
    if training.shards > 1:
        matrices = 2 * shape.query + 2 * shape.key_value + 3 * shape.intermediate
        of_block = shape.hidden * matrices
        computed = shape.parameters - (shape.layers - 2) * of_block
    adapters = 4 * shape.adapters // training.shards
    trained = adapters or weights
    return {
        "weights": weights + adapters,
        "gradients": trained * (2 if training.bucketed else 1),
        "optimiser states": trained * training.moments,
        "weights as computed": computed * training.compute_bytes,
        "activations": per_token * kept,
        "logits": _logit_bytes(shape, training),
    }


def _logit_bytes(shape: ModelShape, training: Training) -> int:
    size = training.head_bytes or training.compute_bytes
    if training.block is None:
        copies = LOGITS_IN_UPDATE + LOGITS_OF_ENTROPY * training.entropy
        copies = max(copies, LOGITS_IN_PROBE * training.probe)
        return training.tokens * shape.vocabulary * (2 * size + 4 * copies)
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
