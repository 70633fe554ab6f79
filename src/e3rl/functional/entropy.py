"""Entropy of the policy at sampled tokens: exact from logits, estimated from log-probs. Nats."""

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors
from e3rl.functional.logprobs import check_temperatures, scaled_logits


def token_entropy(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Shannon entropy H = -Σ_v p_v ln p_v of p = softmax(z/τ), differentiable.

    Args:
        logits: (M, V) finite.
        temperatures: (M,) > 0.

    Returns:
        (M,) nats, 0 <= H <= ln V.

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not above 0.
    """
    check_temperatures(logits, temperatures)
    logprobs = torch.log_softmax(scaled_logits(logits, temperatures), dim=1)
    return -(logprobs.exp() * logprobs).sum(dim=1)


@torch.no_grad()
def measure_tokens(
    logits: Tensor, tokens: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """ln p of the sampled tokens, entropy H and varentropy W, by one softmax, without gradient.

    W = Var_p[ln p] = Σ_v p_v (ln p_v + H)² is the slope dH / d ln τ at fixed states, for any
    distribution; ΣW/ΣH is the elasticity d ln H / d ln τ of a batch.

    Args:
        logits: (M, V) finite.
        tokens: (M,) int64, the sampled ids.
        temperatures: (M,) > 0.

    Returns:
        (M,) nats, (M,) nats and (M,) nats².

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not above 0.
    """
    check_vectors(tokens=tokens, temperatures=temperatures)
    check_temperatures(logits, temperatures)
    logprobs = torch.log_softmax(scaled_logits(logits, temperatures), dim=1)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    probs = logprobs.exp()
    entropy = -torch.linalg.vecdot(probs, logprobs)
    deviations = logprobs.add_(entropy[:, None])  # two buffers of (M, V) in all
    return chosen, entropy, torch.linalg.vecdot(probs, deviations.square_())


def sampled_entropy_t1(logprobs_tau: Tensor, logprobs_t1: Tensor) -> Tensor:
    """Entropy at temperature 1 from a token that was sampled at temperature τ.

        X = w·(-ln p₁(a)),  w = p₁(a)/p_τ(a),  E_{a~p_τ}[X] = H(p₁) exactly at each state.

    The states are still those that the sampler visited. Without w the mean would be the cross
    entropy H(p_τ) + KL(p_τ‖p₁). Where tokens were sampled ahead, by an earlier policy than that of
    both log-probs, the mean is H(p₁) only as far as the policies agree.

    Args:
        logprobs_tau: (M,) ln p_τ of the sampled tokens.
        logprobs_t1: (M,) ln p₁ of the same tokens.

    Returns:
        (M,) nats, >= 0.
    """
    check_vectors(logprobs_tau=logprobs_tau, logprobs_t1=logprobs_t1)
    return -(logprobs_t1 - logprobs_tau).exp() * logprobs_t1


def sampled_entropy(logprobs: Tensor, mask: Tensor, counts: Tensor) -> tuple[float, float]:
    """Σ -ln p(token) over the sampled tokens, and their number.

    Sum over sum of whole batches estimates the token-mean entropy of the sampling distribution:
    -ln p - H is a martingale difference, so E[Σ -ln p] = E[Σ H] exactly, also for completions
    that end at random. The mean of per-completion means is biased, however much data there is
    (short completions end by a surprising token). Every rollout must be in the sum, those of
    constant groups too.

    Args:
        logprobs: (N, T) at the sampling temperature, nats.
        mask: (N, T) bool, True on sampled tokens, the end-of-sequence token included.
        counts: (N,) float64, how often each rollout counts: 1, where none was stopped early. One
            that goes on for others that were counts for them too, and they do not.

    Returns:
        (sum in nats, tokens); add both over ranks before dividing.
    """
    if logprobs.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"expected log-probs and a bool mask of one shape, got {tuple(logprobs.shape)} and "
            f"{tuple(mask.shape)} {mask.dtype}"
        )
    weights = counts[:, None].expand_as(mask)[mask]
    return float(-(logprobs[mask].double() * weights).sum()), float(weights.sum())
