"""Rollouts by the policy's own model: the reference engine, on every machine.

It samples from the policy's live weights, so `sync` copies nothing, unless ranks share them: each
then samples with a whole copy. A prompt is computed once for all of its rollouts, and those that
are finished leave the batch. Each rollout owns a stream of uniform numbers derived from its seed
and picks tokens by inverse cumulative probability. Its tokens therefore do not depend on what else
is in the call (up to the rounding of padded matrix products), and the log-prob kept is that of the
distribution sampled from (of the truncated one where a request has a top-p or top-k).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest, stop_finder, to_rollout
from e3rl.engines.decoding import Decoding, check_cache
from e3rl.engines.progress import rollout_bar
from e3rl.engines.truncation import truncate
from e3rl.engines.weight_checks import check_finite
from e3rl.engines.whole_copy import WholeCopy
from e3rl.policy.policy import Policy
from e3rl.process.distributed import is_sharded

CROWDED = 0.85  # part of the rows in a batch that go on, below which the others are taken out


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

        Raises FloatingPointError naming the first parameter that is not finite, ValueError for a
        model whose states of earlier tokens are not all in its cache.
        """
        if policy is self._policy and version == self._version:
            return
        check_cache(policy.model)
        check_finite(policy.model, version)
        if is_sharded(policy.model):
            self._sampler = self._whole(policy)
        else:
            _ = policy.sharing  # its attention, which repeats no keys for heads that share them
            self._sampler = policy
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

    @torch.no_grad()
    def _generate(self, policy: Policy, requests: list[RolloutRequest]) -> list[Rollout]:
        sampler = InverseCdfSampler(requests, policy.device)
        ends = CompletionEnds(policy, requests)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        with _in_eval_mode(policy.model):
            decoding = Decoding(policy, requests)
            rows = torch.arange(len(requests), device=policy.device)
            while len(rows):
                chosen, own = sampler.draw(decoding.logits, rows)
                goes_on = ends.look_at(rows.tolist(), chosen.tolist())
                taken = zip(rows.tolist(), chosen.tolist(), own.tolist(), strict=True)
                for row, token, logprob in taken:
                    if len(tokens[row]) < ends.lengths[row]:
                        tokens[row].append(token)
                        logprobs[row].append(logprob)
                if sum(goes_on) <= CROWDED * len(rows):
                    kept = torch.tensor(goes_on, device=rows.device).nonzero()[:, 0]
                    rows, chosen = rows[kept], chosen[kept]
                    decoding.keep(kept)
                if len(rows):
                    decoding.step(chosen)
        finished = [
            FinishedRequest(r, tokens[row], logprobs[row], ends.stopped[row])
            for row, r in enumerate(requests)
        ]
        return [to_rollout(each, policy, self._version) for each in finished]

    def close(self) -> None:
        self._policy = self._sampler = self._copy = None


@contextmanager
def _in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Without recomputed activations, which go with no cache."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class InverseCdfSampler:
    """Draws the next token of each request, and keeps count of how many it has drawn."""

    def __init__(self, requests: Sequence[RolloutRequest], device: torch.device) -> None:
        longest = max(r.max_new_tokens for r in requests)
        noise = [np.random.Generator(np.random.Philox(r.seed)).random(longest) for r in requests]
        self._uniform = torch.from_numpy(np.stack(noise)).to(device)  # (n, longest) float64
        taus = torch.tensor([r.temperature for r in requests], device=device)
        self._greedy = taus == 0
        self._divisor = torch.where(self._greedy, 1.0, taus)[:, None]  # greedy is scored at 1
        whole = [r.temperature == 0 or (r.top_p == 1 and r.top_k == 0) for r in requests]
        self._cut = torch.tensor([not each for each in whole], device=device)
        self._top_p = torch.tensor([r.top_p for r in requests], device=device)
        self._top_k = torch.tensor([r.top_k for r in requests], device=device)
        self._step = 0

    def draw(self, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (m, V) of the requests `rows` (m,) -> tokens (m,) and their log-probs (m,)."""
        scaled = logits.float() / self._divisor[rows]  # (m, V)
        cut = self._cut[rows].nonzero()[:, 0]
        if len(cut):
            limits = self._top_p[rows[cut]], self._top_k[rows[cut]]
            scaled[cut] = truncate(scaled[cut], *limits)
        logprobs = torch.log_softmax(scaled, dim=-1)
        cumulative = logprobs.double().exp().cumsum(dim=-1)
        u = self._uniform[rows, self._step, None] * cumulative[:, -1:]
        drawn = (cumulative <= u).sum(dim=-1).clamp(max=logits.shape[1] - 1)
        chosen = torch.where(self._greedy[rows], logprobs.argmax(dim=-1), drawn)
        self._step += 1
        return chosen, logprobs.gather(1, chosen[:, None])[:, 0]


class CompletionEnds:
    """Ends each completion at its first stop token, at a stop string, or at its own length."""

    def __init__(self, policy: Policy, requests: Sequence[RolloutRequest]) -> None:
        self._stop_ids = set(policy.stop_ids)
        self._finders = [stop_finder(policy, r) for r in requests]
        self._limits = [r.max_new_tokens for r in requests]
        self.lengths = [0] * len(requests)  # sampled tokens
        self.stopped = [False] * len(requests)  # by a stop string
        self._done = [False] * len(requests)

    def look_at(self, rows: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Whether each of some completions goes on after its next token; what is sampled of those
        that have ended does not count."""
        for row, token in zip(rows, tokens, strict=True):
            if not self._done[row]:
                self._done[row] = self._ends(row, token)
        return [not self._done[row] for row in rows]

    def _ends(self, row: int, token: int) -> bool:
        self.lengths[row] += 1
        if token in self._stop_ids:
            return True
        finder = self._finders[row]
        self.stopped[row] = finder is not None and finder.ends_with(token)
        return self.stopped[row] or self.lengths[row] == self._limits[row]
