"""The canary: does an engine sample from the policy that it was given?

A few tokens are generated from fixed prompts and their log-probs compared with the policy's own
forward pass, which catches whatever makes the two differ: weights that did not arrive, a prefix
cache that outlived them, a temperature that is ignored. *Generated* tokens are compared because
log-probs of prompt tokens are taken at temperature 1 and bypass vLLM's prefix cache. Several short
completions are sampled at each temperature rather than a long one, since an engine takes as many
steps as the longest has tokens; their prompts begin alike, which it computes once.

Of weights that an engine takes over later, when the policy has others, the policy's logits are kept
meanwhile. That is possible of a completion's first token alone, so there each has but that one.

Rounding makes healthy engines differ as well, and now and then a token by a lot. So what counts is
not the largest gap but the upper quartile at each temperature: an engine is stopped where a quarter
of its n tokens are beyond the tolerance. If a share p of healthy tokens is, each on its own, that
happens by chance with probability P(Binomial(n, p) >= n / 4): 1.8e-7 for n = 32 and p = 1/50. Gaps
are taken times the temperature, since a logit that is off by d moves log-probs by about d / τ.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed


@dataclass(frozen=True)
class Rounding:
    """How far healthy engines are off.

    Attributes:
        tolerance: nats at temperature 1, which a token in fifty or fewer exceeds by rounding.
        tokens: sampled at each temperature, so that chance does not exceed it in a quarter of
            them; a multiple of COMPLETIONS, and of LENGTH where there are more.
    """

    tolerance: float
    tokens: int


# By the coarser precision of the two. bfloat16: of 768 tokens of SmolLM2-135M on a CPU 3 were off
# by more than 0.3, and no prompt's quarter by more than 0.16; of Qwen2.5-7B on GPUs 0.039 is
# published as the root mean square. A stale prefix cache moves a quarter of a small policy's tokens
# by 0.27 and more. float16 and TF32, which GPUs compute float32 in, have 3 bits
# more. float8 (e4m3 weights and activations of linear layers, scaled by blocks of 128): emulated
# with SmolLM2-135M, 2 % of 768 tokens were off by more than 1.0, and no prompt's quarter by more
# than 0.69; a root mean square of 0.39, where bfloat16 has 0.076 and larger models less.
ROUNDING = {
    "float32": Rounding(1e-3, 8),
    "tf32": Rounding(0.05, 32),
    "float16": Rounding(0.05, 32),
    "bfloat16": Rounding(0.25, 64),
    "float8": Rounding(1.7, 32),
}
# Beside the live temperature, which may be 1 and then hides that it is ignored. Of a policy that is
# sure of its tokens, lower ones would change little.
FIXED_TEMPERATURE = 2.0
TAIL = 8  # prompt tokens behind the cached block, of each completion's own
COMPLETIONS, LENGTH = 4, 8  # at each temperature at least, and tokens of each at most
SHARE = 4  # one in so many tokens beyond the tolerance is too much


class EngineMismatchError(RuntimeError):
    """An engine samples from another distribution than the policy's."""


def expected_rounding(dtypes: Iterable[str], on_cpu: bool) -> Rounding:
    """The coarsest rounding of some precisions by name; GPUs may compute float32 in TF32."""
    names = ("tf32" if name == "float32" and not on_cpu else name for name in dtypes)
    return max((ROUNDING[name] for name in names), key=lambda rounding: rounding.tolerance)


def canary_requests(
    policy: Policy,
    block_size: int,
    max_length: int,
    temperature: float,
    tokens: int,
    completions: int | None = None,
) -> list[RolloutRequest]:
    """Rollouts of together `tokens` tokens at `temperature` and as many at a fixed temperature,
    which have `prompt` 0 and 1; always from the same prompts.

    They are short ones, or as many as `completions` says.

    Where rollouts are going to be greedy (0), the first ones are sampled at temperature 1, by which
    engines score a greedy choice: two policies may well agree on the likeliest token.

    The prompts span more than a block of the KV cache where `max_length` has room for them, so
    that the second canary of a run would read a stale cache. Those at a temperature share that
    block and end differently, so that no two tokens compared come from the same logits.
    """
    completions = completions or max(COMPLETIONS, tokens // LENGTH)
    each = max(1, min(tokens // completions, max_length - 1))
    length = max(1, min(block_size + TAIL, max_length - each))
    requests = []
    for prompt, tau in enumerate((temperature or 1.0, FIXED_TEMPERATURE)):
        rng = np.random.default_rng(derive_seed("canary", prompt))
        ids = rng.integers(policy.vocabulary_size, size=length)
        for sample in range(completions):
            own = ids.copy()
            own[-TAIL:] = rng.integers(policy.vocabulary_size, size=len(own[-TAIL:]))
            requests.append(
                RolloutRequest(
                    prompt=prompt,
                    sample=sample,
                    prompt_tokens=tuple(own.tolist()),
                    temperature=tau,
                    seed=derive_seed("canary", prompt, sample),
                    max_new_tokens=each,
                )
            )
    return requests


def canary_gaps(policy: Policy, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """|log-prob of the engine - log-prob of the policy| of the tokens of all rollouts with the
    same `prompt`, (t,) for each, nats at temperature 1: times the temperature."""
    return gaps_from(_logits(policy, [(r.prompt_tokens, r.tokens) for r in rollouts]), rollouts)


def first_logits(policy: Policy, requests: Sequence[RolloutRequest]) -> Tensor:
    """The policy's logits of the first token of each completion, (n, v), float32 on the CPU."""
    return _logits(policy, [(r.prompt_tokens, (policy.pad_id,)) for r in requests])


def gaps_from(logits: Tensor, rollouts: Sequence[Rollout]) -> list[Tensor]:
    """Like `canary_gaps`, from the policy's logits of the rollouts' tokens, (t, v), one after the
    other; raises RuntimeError where there are not as many."""
    tokens = torch.tensor([token for r in rollouts for token in r.tokens])
    if len(tokens) != len(logits):
        raise RuntimeError(f"the engine sampled {len(tokens)} tokens where {len(logits)} were due")
    taus = torch.tensor([r.temperature for r in rollouts for _ in r.tokens])
    own = torch.log_softmax(logits / taus[:, None], dim=-1).gather(1, tokens[:, None])[:, 0]
    gaps = (own - torch.tensor([value for r in rollouts for value in r.logprobs])).abs() * taus
    prompts = torch.tensor([r.prompt for r in rollouts for _ in r.tokens])
    return [gaps[prompts == prompt] for prompt in prompts.unique()]


@torch.no_grad()
def _logits(policy: Policy, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Tensor:
    """Logits of the tokens of completions, (t, v), each behind its prompt."""
    lengths = torch.tensor([len(prompt) + len(completion) for prompt, completion in texts])
    starts = torch.tensor([len(prompt) for prompt, _ in texts])
    width = int(lengths.max())
    tokens = torch.full((len(texts), width), policy.pad_id)
    for row, (prompt, completion) in enumerate(texts):
        tokens[row, : lengths[row]] = torch.tensor(prompt + completion)
    column = torch.arange(width)
    sampled = (column >= starts[:, None]) & (column < lengths[:, None])  # (n, t)
    device = policy.device
    logits: Tensor = policy(tokens.to(device), sampled.to(device)).float().cpu()
    return logits


def largest_quartile(gaps: Sequence[Tensor]) -> float:
    """The largest of their upper quartiles, each of (t,) gaps: what a quarter of them, and
    no fewer, reach. NaN where a gap is not a number."""
    if bool(torch.cat(list(gaps)).isnan().any()):
        return math.nan
    return max(float(each.topk(math.ceil(len(each) / SHARE)).values[-1]) for each in gaps)


def gap_metrics(gaps: Sequence[Tensor]) -> dict[str, float]:
    """What gaps, (t,) at each temperature, are like: mean, largest quartile and maximum, nats."""
    every = torch.cat(list(gaps))
    return {
        "engine/canary_mean": float(every.mean()),
        "engine/canary_quartile": largest_quartile(gaps),
        "engine/canary_max": float(every.max()),
    }


def check_canary(
    gaps: Sequence[Tensor], tolerance: float, version: int, engine: str = "engine"
) -> None:
    """Raise EngineMismatchError where a quarter of some gaps exceed `tolerance`, or one is
    not a number.

    Args:
        gaps: at each temperature, (t,).
        tolerance: nats at temperature 1.
        version: the policy's.
        engine: which one, where there are several.
    """
    quartile = largest_quartile(gaps)
    if quartile <= tolerance:
        return
    every = torch.cat(list(gaps))
    raise EngineMismatchError(
        f"{engine} and policy disagree at policy version {version}: log-probs of a quarter of the "
        f"tokens that the engine sampled differ by {quartile:.3g} nats and more, by up to "
        f"{float(every.max()):.3g}, {float(every.mean()):.3g} in the mean (tolerance {tolerance:g} "
        "for a quarter). Check in this order: weights that did not arrive (tied heads, adapters); "
        "a prefix cache kept over a sync (try engine.settings.enable_prefix_caching=false); "
        "log-probs not taken at the sampling temperature; engine.settings.dtype against "
        "policy.dtype. Rounding alone calls for a higher engine.canary_tolerance; "
        "engine=transformers trains meanwhile."
    )
