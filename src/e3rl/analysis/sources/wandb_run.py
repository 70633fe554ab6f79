"""A W&B run, however it was fetched, as the same `Run` that a run folder gives.

W&B mirrors the ledger: its history has the rows of metrics.jsonl, and its tables `validation` and
`prompts` the per-problem and per-prompt counts. Runs without these tables have curves only.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from e3rl.analysis.sources.runs import (
    EVALUATION_COLUMNS,
    PROBLEM_COLUMNS,
    PROMPT_COLUMNS,
    Run,
    rows_of_kind,
    seed_of,
)

AXIS = "rollout_step"
TABLES: Mapping[str, tuple[str, ...]] = {"validation": PROBLEM_COLUMNS, "prompts": PROMPT_COLUMNS}
# W&B writes what JSON has no number for as text.
NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

Record = Mapping[str, Any]


def run_from_wandb(
    path: Path, config: Record, history: Iterable[Record], tables: Mapping[str, pd.DataFrame]
) -> Run:
    """The run of a W&B configuration, history rows and tables (by name, see `TABLES`).

    Raises ValueError where the configuration lacks `name` and `seed`: not a run of e3rl.
    """
    if not {"name", "seed"} <= config.keys():
        raise ValueError(
            f"{path} has no `name` and `seed` in its W&B configuration: was it logged by e3rl?"
        )
    metrics = pd.DataFrame([row for item in history if (row := _metrics(item))])
    validation = rows_of_kind(metrics, "validation")
    found = {
        name: table[list(columns)] if (table := tables.get(name)) is not None else _empty(columns)
        for name, columns in TABLES.items()
    }
    return Run(
        path=path,
        name=str(config["name"]),
        seed=seed_of(config, path),
        config=dict(config),
        train=rows_of_kind(metrics, "train"),
        validation=validation,
        evaluations=evaluations_of(validation),
        problems=found["validation"].astype({"temperature": "float64"}),
        prompts=found["prompts"].astype({"rank": "float64"}),
        summary=None,
    )


def table_path(item: Record, name: str) -> str | None:
    """Where a history row says that the table `name` lies, None where it does not mention one."""
    nested = item.get(name)
    path = nested.get("path") if isinstance(nested, Mapping) else item.get(f"{name}.path")
    return None if path is None else str(path)


def evaluations_of(validation: pd.DataFrame) -> pd.DataFrame:
    """A row per validation and evaluation, from the metrics `val/<name>/temperature`."""
    tails = "val/", "/temperature"
    names = [
        column.removeprefix(tails[0]).removesuffix(tails[1])
        for column in validation
        if column.startswith(tails[0]) and column.endswith(tails[1]) and column.count("/") == 2
    ]
    rows = [
        {
            AXIS: int(row[AXIS]),
            "name": name,
            "temperature": row[f"val/{name}/temperature"],
            "entropy": row.get(f"val/{name}/entropy", float("nan")),
            "tokens": None,
            "no_answer": float("nan"),
        }
        for row in validation.to_dict("records")
        for name in names
        if pd.notna(row[f"val/{name}/temperature"])
    ]
    table = pd.DataFrame(rows, columns=list(EVALUATION_COLUMNS))
    return table.astype(dict.fromkeys(("temperature", "entropy", "no_answer"), "float64"))


def _metrics(item: Record) -> dict[str, Any] | None:
    """The numbers of a history row, None for rows of W&B's or Lightning's own."""
    if item.get(AXIS) is None or item.get("epoch") is None:  # W&B adds its axis to tables as well
        return None
    texts = {key: NUMBERS[value] for key, value in item.items() if _is_odd_number(value)}
    row = {
        key: value
        for key, value in {**item, **texts}.items()
        if isinstance(value, int | float) and not key.startswith("_")
    }
    row[AXIS] = int(row[AXIS])
    if not any(key.startswith("val/") for key in row):
        return {"kind": "train", **row}
    # The mirror puts costs beside a validation to draw it against; in the ledger it has none.
    own = {key: value for key, value in row.items() if not key.startswith("cost/")}
    return {"kind": "validation", **own}


def _is_odd_number(value: Any) -> bool:
    return isinstance(value, str) and value in NUMBERS


def _empty(columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))
