"""Requests and yardsticks that the tests of all engines share."""

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed

PROMPTS = ("12+34=?", "7*8=?", "(3+4)*5-6=?", "99-1=?", "4*x+3=23,x=?")


def request(
    policy: Policy, prompt: int, sample: int, tau: float = 1.0, limit: int = 24, seed: int = 0
) -> RolloutRequest:
    return RolloutRequest(
        prompt=prompt,
        sample=sample,
        prompt_tokens=tuple(policy.tokenizer(PROMPTS[prompt])["input_ids"]),
        temperature=tau,
        seed=derive_seed(seed, prompt, sample),
        max_new_tokens=limit,
    )


def many(policy: Policy, n: int = 4, **settings: float) -> list[RolloutRequest]:
    return [request(policy, p, s, **settings) for p in range(len(PROMPTS)) for s in range(n)]


def by_place(rollouts: Iterable[Rollout]) -> dict[tuple[int, int], Rollout]:
    return {(r.prompt, r.sample): r for r in rollouts}


def stopping(policy: Policy, *stop: str, prefill: str = "") -> Policy:
    """The same policy with stop strings and a prefill; it shares the weights."""
    other = copy.copy(policy)
    other.stop, other.prefill = stop, prefill
    return other


def cut_at_stop(policy: Policy, rollout: Rollout) -> Rollout:
    """What remains of a rollout that did not look for the stop strings of `policy`."""
    texts = [policy.spell(list(rollout.tokens[:n])) for n in range(1, len(rollout.tokens) + 1)]
    end = next((n for n, t in enumerate(texts, 1) if any(s in t for s in policy.stop)), None)
    if end is None:
        return rollout
    tokens, logprobs = rollout.tokens[:end], rollout.logprobs[:end]
    text = policy.decode(list(tokens))
    return replace(rollout, tokens=tokens, logprobs=logprobs, text=text, truncated=False)


def trainer_logits(policy: Policy, rollout: Rollout) -> torch.Tensor:
    """(t, V) logits of a rollout's tokens by one plain forward pass without cache or padding."""
    ids = torch.tensor([rollout.prompt_tokens + rollout.tokens])
    with torch.no_grad():
        logits = policy.model(input_ids=ids, use_cache=False).logits[0, :-1]
    return logits[len(rollout.prompt_tokens) - 1 :].float()


def trainer_logprobs(policy: Policy, rollout: Rollout) -> torch.Tensor:
    """(t,) log-probs of a rollout's tokens; a greedy choice is scored at temperature 1."""
    scaled = torch.log_softmax(trainer_logits(policy, rollout) / (rollout.temperature or 1.0), -1)
    return scaled.gather(1, torch.tensor(rollout.tokens)[:, None])[:, 0]


def largest_gap_to_the_nucleus(
    policy: Policy, rollouts: Iterable[Rollout], top_p: float, top_k: int
) -> float:
    """The same against log-probs that are renormalised over the likeliest tokens."""
    gaps = []
    for r in rollouts:
        for logits, token, value in zip(
            trainer_logits(policy, r) / r.temperature, r.tokens, r.logprobs, strict=True
        ):
            likeliest = sorted(range(len(logits)), key=lambda i, x=logits: -float(x[i]))[:top_k]
            chances = torch.softmax(logits[likeliest].double(), dim=0).tolist()
            size = next(i for i in range(len(chances)) if sum(chances[: i + 1]) >= top_p - 1e-7) + 1
            place = likeliest.index(token)
            assert place < size
            own = torch.log_softmax(logits[likeliest[:size]], dim=0)[place]
            gaps.append(abs(float(own) - value))
    return max(gaps)


def truncated(requests: Iterable[RolloutRequest], top_p: float, top_k: int) -> list[RolloutRequest]:
    """The same requests with a top-p and a top-k."""
    return [replace(r, top_p=top_p, top_k=top_k) for r in requests]


def largest_gap(policy: Policy, rollouts: Iterable[Rollout]) -> float:
    """max |log-prob of the engine - log-prob of the policy| over all tokens, nats."""
    return max(
        float((torch.tensor(r.logprobs) - trainer_logprobs(policy, r)).abs().max())
        for r in rollouts
    )
