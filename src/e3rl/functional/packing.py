"""Cutting a minibatch into micro-batches that fit a token budget."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Keys that attention may see per token of the budget: those of a prompt are there once per rollout.
KEYS_PER_TOKEN = 4
# Attention over rectangles takes so many times as long for its products as a layer for its own.
ATTENTION_COST = 2
WORTH = 0.95  # of the cost of a pass apart, below which sharing is worth its moves of tokens


@dataclass(frozen=True)
class Pack:
    """A micro-batch: (m,) int64 rollouts, and whether those of a group share their prompt."""

    rows: Tensor
    shared: bool = False


@dataclass(frozen=True)
class RolloutLengths:
    """What a pass over N rollouts costs follows from these, (N,) int64 each.

    Attributes:
        total: tokens, the prompt's included.
        prompt: tokens of the prompt.
        group: the prompt's number.
    """

    total: Tensor
    prompt: Tensor
    group: Tensor


def microbatches(lengths: Tensor, rows: Tensor, tokens_per_microbatch: int) -> list[Pack]:
    """Rows grouped by length so that rows x longest <= the budget, padding included.

    Args:
        lengths: (N,) int64 tokens per rollout.
        rows: (m,) int64 rollouts to place.
        tokens_per_microbatch: padded tokens of one forward pass; a single longer rollout still
            gets a micro-batch of its own.

    Returns:
        Disjoint micro-batches that cover `rows`, longest rollouts first.
    """
    ordered = rows[torch.argsort(lengths[rows], descending=True, stable=True)]
    packs, start = [], 0
    while start < len(ordered):
        longest = int(lengths[ordered[start]])
        size = max(1, tokens_per_microbatch // longest)
        packs.append(Pack(ordered[start : start + size]))
        start += size
    return packs


def shared_microbatches(of: RolloutLengths, rows: Tensor, budget: int) -> list[Pack]:
    """Rows grouped so that the prompts, once each, and the padded completions fit the budget.

    Groups stay together where they fit, those with the longest completions first; of one that does
    not fit, every micro-batch computes the prompt again. Attention sees at most KEYS_PER_TOKEN
    times the budget of keys.

    Args:
        of: lengths and groups of all rollouts.
        rows: (m,) int64 rollouts to place.
        budget: tokens of one forward pass; a single longer rollout gets a micro-batch of its own.

    Returns:
        Disjoint micro-batches that cover `rows`.
    """
    if not len(rows):
        return []
    prompts, groups = of.prompt[rows].tolist(), of.group[rows].tolist()
    inputs = (of.total[rows] - of.prompt[rows] - 1).tolist()  # the last token predicts nothing
    longest: dict[int, int] = {}
    for group, size in zip(groups, inputs, strict=True):
        longest[group] = max(size, longest.get(group, 0))
    order = sorted(range(len(groups)), key=lambda i: (-longest[groups[i]], groups[i], -inputs[i]))
    packs: list[list[int]] = [[]]
    tokens = widest = size = 0  # prompt tokens, widest prompt, widest completion of the pack
    for i in order:
        pack, last = packs[-1], packs[-1][-1] if packs[-1] else None
        new = last is None or groups[last] != groups[i]
        held = tokens + new * prompts[i], max(widest, prompts[i]), max(size, inputs[i])
        n = len(pack) + 1
        full = held[0] + n * held[2] > budget or n * (held[1] + held[2]) > KEYS_PER_TOKEN * budget
        if pack and full:
            packs.append([i])
            tokens, widest, size = prompts[i], prompts[i], inputs[i]
        else:
            pack.append(i)
            tokens, widest, size = held
    return [Pack(rows[torch.tensor(pack, device=rows.device)], shared=True) for pack in packs]


def pays_to_share(of: RolloutLengths, rows: Tensor, pairs_per_token: float) -> bool:
    """Whether a pass over these rollouts is shorter with each prompt once.

    The layers then see fewer tokens, but attention over completions is no longer causal as a
    whole, so that kernels cannot leave out half of it.

    Args:
        of: lengths and groups of all rollouts.
        rows: (m,) int64, the rollouts of the pass.
        pairs_per_token: pairs of query and key that cost as much as a token in all layers.
    """
    total, prompt = of.total[rows].double(), of.prompt[rows].double()
    own = torch.unique(of.group[rows], return_inverse=True)[1]
    once, inputs = prompt / own.bincount()[own], total - prompt - 1
    apart = total.sum() * pairs_per_token + ATTENTION_COST * (total * total).sum() / 2
    pairs = once * prompt / 2 + inputs * (prompt + inputs)
    shared = (once + inputs).sum() * pairs_per_token + ATTENTION_COST * pairs.sum()
    return bool(shared < WORTH * apart)
