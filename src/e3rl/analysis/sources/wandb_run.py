"""A W&B run, however it was fetched, as the same `Run` that a run folder gives.

W&B mirrors the ledger: its history has the rows of metrics.jsonl, and its tables `validation` and
`prompts` the per-problem and per-prompt counts, of a validation by itself or of several steps.
Runs without these tables have curves only. Where a resumed run took a killed one up, W&B keeps the
rows of both, and the ledger those that count.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
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

ROUNDING = 1e-6  # of a share that was logged beside its counts

Record = Mapping[str, Any]
Tables = Mapping[str, Sequence[pd.DataFrame]]  # by name, in the order of their logging


def run_from_wandb(path: Path, config: Record, history: Iterable[Record], tables: Tables) -> Run:
    """The run of a W&B configuration, and of its history rows and tables in their order.

    Counts of a validation that are not those its row of metrics was made from, since a table was
    cut or is of a process that was killed, are left out (`warnings.validation.lacking_counts`
    tells of them).

    Raises ValueError where the configuration lacks `name` and `seed`: not a run of e3rl.
    """
    if not {"name", "seed"} <= config.keys():
        raise ValueError(
            f"{path} has no `name` and `seed` in its W&B configuration: was it logged by e3rl?"
        )
    metrics = pd.DataFrame(_rewound([row for item in history if (row := _metrics(item))]))
    validation, train = (rows_of_kind(metrics, kind) for kind in ("validation", "train"))
    problems = _joined(tables, "validation").astype({"temperature": "float64"})
    prompts = _joined(tables, "prompts").astype({"rank": "float64"})
    return Run(
        path=path,
        name=str(config["name"]),
        seed=seed_of(config, path),
        config=dict(config),
        train=train,
        validation=validation,
        evaluations=evaluations_of(validation),
        problems=_whole_counts(problems, validation),
        prompts=prompts[prompts[AXIS].isin(train[AXIS])].reset_index(drop=True),
        summary=None,
    )


def _rewound(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows in the order of training, as the ledger has them: those that a killed process wrote
    after the checkpoint from which a later one goes on are gone."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        while kept and _place(kept[-1]) >= _place(row):
            kept.pop()
        kept.append(row)
    return kept


def _place(row: Record) -> tuple[int, bool]:
    """Of a row in a run: a policy is validated before it trains on."""
    return row[AXIS], row["kind"] == "train"


def _joined(tables: Tables, name: str) -> pd.DataFrame:
    """All tables of one name by rollout step; of a step that several have, the last one stands."""
    columns, parts = list(TABLES[name]), tables.get(name) or ()
    if not parts:
        return pd.DataFrame(columns=columns)
    every = pd.concat([part[columns].assign(part=i) for i, part in enumerate(parts)])
    last = every.groupby(AXIS)["part"].transform("max")
    every = every[every["part"] == last].sort_values(AXIS, kind="stable")
    return every[columns].reset_index(drop=True)


def _whole_counts(problems: pd.DataFrame, validation: pd.DataFrame) -> pd.DataFrame:
    """Counts of the validations whose mean share is that of their row of metrics."""
    if problems.empty:
        return problems
    shares = (problems["correct"] / problems["n"]).astype("float64")
    found = shares.groupby([problems[AXIS], problems["name"]]).mean()
    told = {int(row[AXIS]): row for row in validation.to_dict("records")}
    whole = {
        (step, name)
        for (step, name), share in found.items()
        if math.isclose(share, _mean_share(told.get(step, {}), name), abs_tol=ROUNDING)
    }
    kept = [place in whole for place in zip(problems[AXIS], problems["name"], strict=True)]
    return problems[kept].reset_index(drop=True)


def _mean_share(row: Record, name: str) -> float:
    """Of right rollouts, over problems, in an evaluation, by a row of metrics; NaN where it has
    none. It is there as pass@1, or with the number of rollouts where that was not asked for."""
    one, several = f"val/{name}/pass@1", f"val/{name}/mean@"
    shares = (x for key, x in row.items() if key == one or key.startswith(several))
    return next((float(x) for x in shares if pd.notna(x)), math.nan)


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
