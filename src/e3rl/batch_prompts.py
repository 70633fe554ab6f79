"""The prompts of a batch as columns, which ranks exchange before anything is sampled."""

from collections.abc import Mapping, Sequence
from typing import Any

from e3rl.batch import RolloutBatch

# What the loader writes about each prompt; levels and priors may be missing altogether.
COLUMNS = ("prompt_ids", "prompts", "answers", "sources", "prompt_tokens", "levels", "priors")
Columns = Mapping[str, list[Any]]


def prompt_columns(batch: RolloutBatch) -> Columns:
    """The loader's fields by name, each with one entry per prompt."""
    return {name: list(getattr(batch, name)) for name in COLUMNS}


def join_columns(shards: Sequence[Columns]) -> Columns:
    """The prompts of all ranks, in rank order."""
    return {name: [x for shard in shards for x in shard[name]] for name in COLUMNS}


def hold_prompts(batch: RolloutBatch, columns: Columns, rows: Sequence[int]) -> None:
    """Make these rows of the columns the batch's prompts, in place, for others hold the batch.

    Raises RuntimeError where rollouts or a decision refer to the prompts that it has.
    """
    decided = [name for name in ("plan", "ranks", "group") if getattr(batch, name) is not None]
    if decided:
        raise RuntimeError(f"batch.{decided[0]} refers to the prompts that are to be replaced")
    for name, column in columns.items():
        setattr(batch, name, [column[row] for row in rows] if column else [])
