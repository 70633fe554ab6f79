"""What `e3rl evaluate` is told, checked before anything is loaded, sampled or written."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from omegaconf import DictConfig
from pydantic import Field, FiniteFloat, PositiveInt

from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.config.command import check_own_settings
from e3rl.config.composition import ConfigurationError


@dataclass(frozen=True)
class OwnSettings:
    """The settings of the command itself, whose values have a type."""

    n: PositiveInt
    ks: Annotated[list[PositiveInt], Field(min_length=1)]
    table_ks: list[PositiveInt] | None
    temperatures: list[FiniteFloat]
    entropies: list[FiniteFloat]
    top_p: FiniteFloat
    top_k: int
    max_new_tokens: PositiveInt
    prompts_per_batch: PositiveInt
    seed: int
    latex: bool


def check_settings(cfg: DictConfig) -> None:
    """Raise ConfigurationError for values of a wrong type or size, a number where a list is
    meant, columns that the table cannot have, and several processes for a part."""
    check_own_settings(cfg, OwnSettings)
    if cfg.part is not None and cfg.processes != 1:
        raise ConfigurationError(
            f"part={cfg.part} beside processes={cfg.processes}: one process samples a part; leave "
            "processes out and give each process of each machine a part of its own, or leave part "
            "out"
        )
    for k in cfg.table_ks or []:
        if k not in cfg.ks:
            raise ConfigurationError(
                f"table_ks={list(cfg.table_ks)}: {k} is not among ks={list(cfg.ks)}; add it there"
            )
        if k > cfg.n:
            raise ConfigurationError(
                f"table_ks={list(cfg.table_ks)}: {k} of n={cfg.n} samples cannot be chosen; lower "
                "it, or raise n"
            )


def check_problems(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigurationError for overrides of `problems` beside `sets`, which stand in its
    place."""
    given = [each for each in overrides if re.match(r"[+~]*problems[.=]", each)]
    if given and cfg.sets:
        raise ConfigurationError(
            f"{', '.join(given)} beside sets: these are sampled in place of problems; leave it "
            "out, or give it as one of them (+problems@sets.NAME=... sets.NAME.KEY=VALUE)"
        )


def evaluations_of(cfg: DictConfig) -> list[Evaluation]:
    """One evaluation per temperature and entropy, named after it and what truncates it.

    Raises ConfigurationError where a value makes no sense, where there is none, and where one is
    given twice.
    """
    cut = {"top_p": cfg.top_p, "top_k": cfg.top_k}
    suffix = f"_p{cfg.top_p:g}" * (cfg.top_p != 1) + f"_k{cfg.top_k}" * (cfg.top_k != 0)
    try:
        found = [
            Evaluation("greedy", 1, temperature=0)
            if t == 0
            else Evaluation(f"t{t:g}{suffix}", cfg.n, temperature=t, **cut)
            for t in cfg.temperatures
        ] + [Evaluation(f"h{h:g}{suffix}", cfg.n, entropy=h, **cut) for h in cfg.entropies]
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    _check_names(cfg, [each.name for each in found])
    return found


def _check_names(cfg: DictConfig, names: Sequence[str]) -> None:
    given = f"temperatures={list(cfg.temperatures)} and entropies={list(cfg.entropies)}"
    if not names:
        raise ConfigurationError(
            f"{given} ask for no sample: give one of either, for instance temperatures=[1.0]"
        )
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigurationError(
            f"{given} ask for {', '.join(repeated)} more than once: leave out the repeats"
        )


def table_ks(cfg: DictConfig) -> list[int]:
    """The k of a table's columns: the configured ones, or the largest that n allows."""
    if cfg.table_ks is not None:
        return list(cfg.table_ks)
    return [max((k for k in cfg.ks if k <= cfg.n), default=1)]
