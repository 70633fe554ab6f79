"""Loaders that turn problems into batches: training resumes anywhere, validation starts over.

A training run gives out one sequence of global batches 0, 1, 2, ...; epoch e is batches e*L to
(e+1)*L - 1 of it (L batches an epoch), and unless prompts are handed back, one pass over the
problems in the order of a permutation of its own. The batches given out so far and a `PromptOrder`
say where a loader stands: at the last batch of an epoch it already points at the first batch of
the next. With look-ahead each batch brings later ones along, which are made by then: their rows
are state as well, and their rollouts once they are sampled.

Where a batch says so (`requeue`), prompts that got no rollout come again, first in the batch that
is made next: with look-ahead that is one that was not made yet when this one was given out. Epochs
keep their length.
"""

import hashlib
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from e3rl.batch import RolloutBatch, batch_from_state, batch_state
from e3rl.data.problem import Problem
from e3rl.data.prompt_lengths import Encode
from e3rl.data.prompt_order import PromptOrder
from e3rl.process.distributed import all_gather


class PromptLoader:
    """Training batches of `prompts_per_step` prompts over all ranks; sized, resumable.

    Every rank takes each `world_size`-th prompt of the global batch, so the sequence of prompts
    does not depend on the number of ranks. Prompts that do not fill a batch are left out of a
    pass, other ones in every pass, with a warning at construction. Batches may hand prompts back,
    which all ranks learn of together.

    Args:
        lookahead: steps that rollouts are sampled ahead. Batches bring those among the next so
            many along (`upcoming`) that none before did, the very objects that are given out later.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        encode: Encode,
        prompts_per_step: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        lookahead: int = 0,
    ) -> None:
        _check_sizes("prompts_per_step", prompts_per_step, rank, world_size)
        if lookahead < 0:
            raise ValueError(
                f"rollout.lookahead={lookahead}: use 0, or a number of steps to sample ahead"
            )
        if prompts_per_step % world_size:
            raise ValueError(
                f"prompts_per_step={prompts_per_step} cannot be shared equally by {world_size} "
                f"ranks: make it a multiple of {world_size}"
            )
        if prompts_per_step > len(problems):
            raise ValueError(
                f"prompts_per_step={prompts_per_step} is more than the {len(problems)} training "
                "problems: lower it or add problems"
            )
        self.problems = problems
        self.encode = encode
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.lookahead = lookahead
        self.step = 0  # global batches given out so far, over all passes
        self._made: deque[tuple[RolloutBatch, list[int]]] = deque()  # with rows, to be given out
        self._order = PromptOrder(len(problems), prompts_per_step, seed)
        self._given: tuple[RolloutBatch, list[int]] | None = None  # may hand rows back
        self._left: list[int] = []  # to be handed back of a batch before a checkpoint
        left_out = len(problems) % prompts_per_step
        if left_out:
            warnings.warn(
                f"{len(problems)} training problems are no multiple of "
                f"prompts_per_step={prompts_per_step}: every pass leaves {left_out} of them out, "
                "other ones each time",
                stacklevel=2,
            )

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.problems) // self.prompts_per_step

    def __iter__(self) -> Iterator[RolloutBatch]:
        """As many batches as an epoch has, from wherever the loader stands.

        Lightning ends a resumed epoch after what was left of it. Ending here instead would cut
        epochs short wherever `limit_train_batches` makes them shorter than a pass.
        """
        for _ in range(len(self)):
            self._take_back()  # of the batch before, where it was given out unsampled
            if not self._made:
                self._make(1)
            self._given = batch, _ = self._made.popleft()
            # Counted before the step is taken, since the checkpoint is written within the step.
            self.step += 1
            if batch.group is not None:
                self._take_back()
            self._make(self.lookahead)
            later = enumerate((each for each, _ in self._made), start=1)
            new = {n: x for n, x in later if x.group is None and x.under_way is None}
            batch.upcoming = new
            batch.born, batch.born_cpu = time.monotonic(), time.process_time()
            yield batch

    def peek(self) -> RolloutBatch:
        """The batch that comes next, at the end of an epoch that of the next one; uses up nothing.

        Each call makes a new batch, equal to the one that is later given out unless prompts are
        handed back before.
        """
        rows = self._made[0][1] if self._made else self._order.peek()
        return self._batch(rows, self.step)

    def _make(self, wanted: int) -> None:
        """Have so many batches made that are not given out yet, or more."""
        while len(self._made) < wanted:
            rows = self._order.take()
            self._made.append((self._batch(rows, self.step + len(self._made)), rows))

    def _batch(self, rows: Sequence[int], step: int) -> RolloutBatch:
        chosen = [self.problems[row] for row in rows[self.rank :: self.world_size]]
        return collate(chosen, self.encode, ("train", step))

    def _take_back(self) -> None:
        """Queue what the batch given out last, if it is sampled, hands back."""
        self._order.hand_back(self._leftovers())
        self._given, self._left = None, []

    def _leftovers(self) -> list[int]:
        """Rows to be handed back, in the order they were given out. All ranks must call it."""
        if self._given is None or not self._given[0].requeue:
            return self._left
        batch, rows = self._given
        sizes = batch.group_sizes.tolist()
        own = [name for name, n in zip(batch.prompt_ids, sizes, strict=True) if n == 0]
        left = {name for shard in all_gather(own) for name in shard}
        return [row for row in rows if self.problems[row].id in left]

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, what that refers to, and the batches that were made but not
        given out: their rows, and of each rank's batch what has been sampled, once that is all.

        All ranks must call it.
        """
        for batch, _ in self._made:
            batch.settle()
        own = [None if batch.group is None else batch_state(batch) for batch, _ in self._made]
        shards = list(zip(*all_gather(own), strict=True))
        upcoming = [
            {"rows": rows, "shards": None if None in found else list(found)}
            for (_, rows), found in zip(self._made, shards, strict=True)
        ]
        return {
            "step": self.step,
            "order": self._order.state_dict(),
            "left": self._leftovers(),
            **self._problems_state(),
            "upcoming": upcoming,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch that the state was taken at.

        Rollouts of upcoming batches are taken over, unless the number of ranks has changed: they
        are then sampled anew.

        Raises ValueError for unknown or missing keys, and where seed, batch size or problems
        differ, because the remaining prompts would be others.
        """
        own = self._problems_state()
        expected = sorted(["step", "order", "left", *own, "upcoming"])
        if sorted(state) != expected:
            raise ValueError(f"loader state has keys {sorted(state)}, expected {expected}")
        other = [
            f"{key}: {state[key]!r} in the checkpoint, {own[key]!r} now"
            for key in own
            if state[key] != own[key]
            # Older checkpoints have the digest of what is asked alone.
            and not (key == "problems" and state[key] == fingerprint(self.problems))
        ]
        if other:
            raise ValueError(
                "the checkpoint was made with other training prompts ("
                + "; ".join(other)
                + "): resume with the data settings it was made with, or start a new run"
            )
        step = state["step"]
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"loader state has step={step!r}, expected a count of batches")
        self.step = step
        self._order.load_state_dict(state["order"])
        self._given, self._left = None, list(state["left"])
        self._made = deque()
        for each in state["upcoming"]:
            rows, shards = list(each["rows"]), each["shards"]
            if shards is not None and len(shards) == self.world_size:
                self._made.append((batch_from_state(shards[self.rank]), rows))
            else:
                self._made.append((self._batch(rows, step + len(self._made)), rows))

    def _problems_state(self) -> dict[str, int | str]:
        return {
            "seed": self.seed,
            "prompts_per_step": self.prompts_per_step,
            "problems": fingerprint_all(self.problems),
        }


class ValidationLoader:
    """All problems in order, `prompts_per_batch` at a time over all ranks; sized, stateless.

    Every rank gets equally many: where a batch does not divide, its first prompts are repeated,
    so results gathered over ranks must be made unique by prompt id.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        encode: Encode,
        prompts_per_batch: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check_sizes("prompts_per_batch", prompts_per_batch, rank, world_size)
        self.problems = problems
        self.encode = encode
        self.prompts_per_batch = prompts_per_batch
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return -(-len(self.problems) // self.prompts_per_batch)

    def __iter__(self) -> Iterator[RolloutBatch]:
        for start in range(0, len(self.problems), self.prompts_per_batch):
            chosen = self.problems[start : start + self.prompts_per_batch]
            share = -(-len(chosen) // self.world_size)
            rows = range(self.rank, share * self.world_size, self.world_size)
            own = [chosen[row % len(chosen)] for row in rows]
            yield collate(own, self.encode, ("validation",))


def collate(
    problems: Sequence[Problem], encode: Encode, stream: tuple[int | str, ...]
) -> RolloutBatch:
    """The loader's part of a batch; `stream` is what the seeds of its rollouts derive from."""
    encoded = [encode(problem) for problem in problems]
    return RolloutBatch(
        prompt_ids=[p.id for p in problems],
        prompts=[text for text, _ in encoded],
        answers=[p.answer for p in problems],
        sources=[p.source for p in problems],
        prompt_tokens=[list(tokens) for _, tokens in encoded],
        levels=[p.level for p in problems],
        priors=[p.prior for p in problems],
        problem_rows=[p.row for p in problems],
        stream=stream,
    )


def fingerprint(problems: Sequence[Problem]) -> str:
    """Short digest of what is asked and judged: ids, prompts, answers, further columns and their
    order."""
    digest = hashlib.blake2b(digest_size=8)
    for problem in problems:
        digest.update(repr((problem.id, problem.prompt, problem.answer)).encode())
        if problem.row:
            digest.update(repr(sorted(problem.row.items())).encode())
    return digest.hexdigest()


def fingerprint_all(problems: Sequence[Problem]) -> str:
    """Short digest of everything that is known about problems, and their order.

    Sources, levels and ranks of difficulty decide no completion, but how rollouts are shared out
    and what they are counted with.
    """
    known = repr([(each.source, each.level, each.prior) for each in problems])
    return hashlib.blake2b((fingerprint(problems) + known).encode(), digest_size=8).hexdigest()


def _check_sizes(name: str, size: int, rank: int, world_size: int) -> None:
    if size < 1:
        raise ValueError(f"{name}={size}: take at least 1 prompt")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not exist among {world_size} ranks")
