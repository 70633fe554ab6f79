"""Rollouts by transformers' own `generate`: the reference engine, on every machine.

It samples from the policy's live weights, so `sync` copies nothing, unless ranks share them: each
then samples with a whole copy. Sampling itself is ours: each
rollout owns a stream of uniform numbers derived from its seed and picks tokens by inverse
cumulative probability. Its tokens therefore do not depend on what else is in the call (up to the
rounding of padded matrix products), and the log-prob kept is that of the distribution sampled from
(of the truncated one where a request has a top-p or top-k).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from e3rl.batch import Rollout
from e3rl.distributed import is_sharded
from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest, stop_finder, to_rollout
from e3rl.engines.progress import rollout_bar
from e3rl.engines.truncation import truncate
from e3rl.engines.weight_checks import check_finite
from e3rl.engines.whole_copy import WholeCopy
from e3rl.policy.policy import Policy


class TransformersEngine:
    """Batched sampling with per-rollout temperatures and seeds.

    Args:
        rows_per_call: rollouts that are generated together; bounds the KV cache.
        progress: show a bar where generation takes more than a few seconds.
    """

    holds_weights = False  # it reads the policy's own

    def __init__(self, rows_per_call: int = 512, progress: bool = True) -> None:
        if rows_per_call < 1:
            raise ValueError(f"engine.rows_per_call={rows_per_call}: use at least 1")
        self.rows_per_call = rows_per_call
        self.progress = progress
        self._policy: Policy | None = None
        self._sampler: Policy | None = None  # the policy itself, or a whole copy of it
        self._copy: WholeCopy | None = None
        self._version = -1

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        """Take over the policy's weights as they are, or gather those that are sharded.

        Raises FloatingPointError naming the first parameter that is not finite.
        """
        if policy is self._policy and version == self._version:
            return
        check_finite(policy.model, version)
        self._sampler = self._whole(policy) if is_sharded(policy.model) else policy
        self._policy, self._version = policy, version

    def _whole(self, policy: Policy) -> Policy:
        if self._copy is None or policy is not self._policy:
            self._copy = WholeCopy(policy)
        self._copy.follow(policy)
        return self._copy.policy

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        """Sample every request; calls are formed from prompts of similar length.

        Raises RuntimeError before the first `sync`, ValueError for an empty prompt.
        """
        policy = self._sampler
        if policy is None:
            raise RuntimeError("engine.generate was called before engine.sync")
        for request in requests:
            if not request.prompt_tokens:
                raise ValueError(f"prompt row {request.prompt} is empty: nothing to sample from")
        ordered = sorted(requests, key=lambda r: (len(r.prompt_tokens), r.prompt, r.sample))
        with rollout_bar(len(ordered), self.progress) as bar:
            for start in range(0, len(ordered), self.rows_per_call):
                call = ordered[start : start + self.rows_per_call]
                yield from self._generate(policy, call)
                bar.update(len(call))

    def _generate(self, policy: Policy, requests: list[RolloutRequest]) -> list[Rollout]:
        width = max(len(r.prompt_tokens) for r in requests)
        tokens = torch.full((len(requests), width), policy.pad_id)
        for row, r in enumerate(requests):  # left-padded: completions start in one column
            tokens[row, width - len(r.prompt_tokens) :] = torch.tensor(r.prompt_tokens)
        lengths = torch.tensor([len(r.prompt_tokens) for r in requests])
        mask = torch.arange(width)[None, :] >= width - lengths[:, None]
        sampler = InverseCdfSampler(requests, policy.device)
        ends = CompletionEnds(policy, requests)
        settings = GenerationConfig(
            do_sample=False,  # the sampler leaves exactly one possible token
            max_new_tokens=max(r.max_new_tokens for r in requests),
            eos_token_id=policy.stop_ids,  # has what is finished padded
            pad_token_id=policy.pad_id,
            use_cache=True,
        )
        with torch.no_grad(), _plain_generation(policy):
            out = policy.model.generate(
                tokens.to(policy.device),
                attention_mask=mask.long().to(policy.device),
                generation_config=settings,
                logits_processor=LogitsProcessorList([sampler]),
                stopping_criteria=StoppingCriteriaList([ends]),
            )
        sampled, logprobs = out[:, width:].tolist(), sampler.logprobs().tolist()
        finished = [
            FinishedRequest(r, sampled[row][:end], logprobs[row][:end], ends.stopped[row])
            for row, (r, end) in enumerate(zip(requests, ends.lengths, strict=True))
        ]
        return [to_rollout(each, policy, self._version) for each in finished]

    def close(self) -> None:
        self._policy = self._sampler = self._copy = None


@contextmanager
def _plain_generation(policy: Policy) -> Iterator[None]:
    """Eval mode, and none of the model's own generation defaults, which `generate` would mix in.

    A repetition penalty (Qwen2.5 ships one) or a top-k would sample from another distribution than
    the one that is trained.
    """
    model = policy.model
    modes = [(module, module.training) for module in model.modules()]
    defaults, model.generation_config = model.generation_config, GenerationConfig()
    model.eval()
    try:
        yield
    finally:
        model.generation_config = defaults
        for module, training in modes:
            module.training = training


class InverseCdfSampler(LogitsProcessor):
    """Picks each row's token itself and leaves only that one for `generate` to take."""

    def __init__(self, requests: Sequence[RolloutRequest], device: torch.device) -> None:
        longest = max(r.max_new_tokens for r in requests)
        noise = [np.random.Generator(np.random.Philox(r.seed)).random(longest) for r in requests]
        self._uniform = torch.from_numpy(np.stack(noise)).to(device)  # (n, longest) float64
        taus = torch.tensor([r.temperature for r in requests], device=device)
        self._greedy = taus == 0
        self._divisor = torch.where(self._greedy, 1.0, taus)[:, None]  # greedy is scored at 1
        whole = [r.temperature == 0 or (r.top_p == 1 and r.top_k == 0) for r in requests]
        self._cut = torch.tensor([not each for each in whole], device=device).nonzero()[:, 0]
        self._top_p = torch.tensor([r.top_p for r in requests], device=device)[self._cut]
        self._top_k = torch.tensor([r.top_k for r in requests], device=device)[self._cut]
        self._logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scaled = scores.float() / self._divisor  # (n, V)
        if len(self._cut):
            scaled[self._cut] = truncate(scaled[self._cut], self._top_p, self._top_k)
        logprobs = torch.log_softmax(scaled, dim=-1)
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        u = self._uniform[:, len(self._logprobs), None] * cumulative[:, -1:]
        drawn = (cumulative <= u).sum(dim=-1).clamp(max=scores.shape[1] - 1)
        chosen = torch.where(self._greedy, logprobs.argmax(dim=-1), drawn)[:, None]  # (n, 1)
        self._logprobs.append(logprobs.gather(1, chosen)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

    def logprobs(self) -> Tensor:
        """(n, t) log-probs of the chosen tokens, in the order of generation."""
        return torch.stack(self._logprobs, dim=1).cpu()


class CompletionEnds(StoppingCriteria):
    """Ends each row at its first stop token, at a stop string, or at its own length."""

    def __init__(self, policy: Policy, requests: Sequence[RolloutRequest]) -> None:
        self._stop_ids = set(policy.stop_ids)
        self._finders = [stop_finder(policy, r) for r in requests]
        self._limits = [r.max_new_tokens for r in requests]
        self.lengths = [0] * len(requests)  # sampled tokens
        self.stopped = [False] * len(requests)  # by a stop string
        self._done = [False] * len(requests)

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        for row, token in enumerate(input_ids[:, -1].tolist()):
            if not self._done[row]:
                self._done[row] = self._ends(row, token)
        return torch.tensor(self._done, device=input_ids.device)

    def _ends(self, row: int, token: int) -> bool:
        self.lengths[row] += 1
        if token in self._stop_ids:
            return True
        finder = self._finders[row]
        self.stopped[row] = finder is not None and finder.ends_with(token)
        return self.stopped[row] or self.lengths[row] == self._limits[row]
