"""`Run`: everything a run folder recorded, as tidy tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import pandas as pd

from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.archive import ledger_folders, open_run
from e3rl.ledger.files import CONFIG, METRICS, PROMPTS, VALIDATION, read_summary
from e3rl.ledger.ledger import find_ledger, read_rows

PROBLEM_COLUMNS = ("rollout_step", "name", "temperature", "problem_id", "source", "n", "correct")
EVALUATION_COLUMNS = (
    *("rollout_step", "name", "temperature", "entropy", "entropy_error", "tokens"),
    *("no_answer", "top_p", "top_k"),
)
REALS = ("temperature", "entropy", "entropy_error", "no_answer")
PROMPT_COLUMNS = ("rollout_step", "epoch", "prompt_id", "source", "n", "correct", "rank")

T = TypeVar("T")
Args = TypeVarTuple("Args")

AND = "&"  # between the names of arms whose mean is compared, so in no arm's own
ARM_ORDER = ("grpo", "grpo_er", "ts", "ts_an", "budget", "e3")


@dataclass(frozen=True)
class Run:
    """One recorded run. Entropies are in nats per token; `rollout_step` counts batches.

    Tables stay as they are: what is derived from them is kept. Other ones make another run
    (`dataclasses.replace`).
    """

    path: Path
    name: str  # the arm: runs that differ in the seed only share it
    seed: int
    config: dict[str, Any]
    train: pd.DataFrame  # one row per rollout step, metrics as columns
    validation: pd.DataFrame  # one row per validation, metrics as columns
    evaluations: pd.DataFrame  # long: one row per validation and evaluation
    problems: pd.DataFrame  # long: one row per validation, evaluation and problem
    prompts: pd.DataFrame  # long: one row per rollout step and prompt
    summary: dict[str, Any] | None

    @cached_property
    def counts(self) -> dict[tuple[str, int], pd.DataFrame]:
        """problem_id, n and correct of each validation, by evaluation and rollout step."""
        columns = ["problem_id", "n", "correct"]
        parts = self.problems.groupby(["name", "rollout_step"], sort=False)[columns]
        return {(str(name), int(step)): part for (name, step), part in parts}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Family of each validation problem by its id."""
        here = self.problems.drop_duplicates("problem_id")
        return dict(zip(here["problem_id"].astype(str), here["source"].astype(str), strict=True))

    @cached_property
    def made(self) -> dict[Any, Any]:
        """What `kept_with_run` keeps, by function and arguments."""
        return {}


Arms = Mapping[str, Sequence[Run]]  # runs by arm, from `group_by_arm`


def kept_with_run(make: Callable[[Run, *Args], T]) -> Callable[[Run, *Args], T]:
    """Decorates what makes something of a run's tables: it is made once for each run and arguments,
    which must be hashable. Callers leave it as it is."""

    @wraps(make)
    def kept(run: Run, /, *args: *Args) -> T:
        key = (make, *args)
        if key not in run.made:
            run.made[key] = make(run, *args)
        found: T = run.made[key]
        return found

    return kept


def load_run(run_dir: str | Path) -> Run:
    """Read one run folder.

    config.yaml (with `name` and `seed`) and metrics.jsonl must be there; a run without
    validation, prompt records or summary has empty tables and None. Ledgers may be packed.

    Raises FileNotFoundError naming the missing file, ValueError for a broken one.
    """
    path = open_run(Path(run_dir))
    there = {CONFIG: (path / CONFIG).is_file(), METRICS: find_ledger(path / METRICS) is not None}
    for needed, found in there.items():
        if not found:
            raise FileNotFoundError(f"{path / needed} is missing: is {path} a run folder?")
    config = read_saved_configuration(path / CONFIG)
    if not {"name", "seed"} <= config.keys():
        raise ValueError(f"{path / CONFIG} must have the top-level keys `name` and `seed`")
    metrics = pd.DataFrame(read_rows(path / METRICS))
    evaluations = _rows_or_none(path / VALIDATION)
    return Run(
        path=path,
        name=str(config["name"]),
        seed=seed_of(config, path / CONFIG),
        config=config,
        train=rows_of_kind(metrics, "train"),
        validation=rows_of_kind(metrics, "validation"),
        evaluations=_evaluation_table(evaluations),
        problems=_long_table(evaluations, PROBLEM_COLUMNS, path / VALIDATION),
        prompts=_long_table(_rows_or_none(path / PROMPTS), PROMPT_COLUMNS, path / PROMPTS),
        summary=read_summary(path),
    )


def seed_of(config: Mapping[str, Any], place: Path) -> int:
    """The seed of a configuration. Raises ValueError, with its place, for what is none."""
    if type(config["seed"]) is not int:
        raise ValueError(f"{place}: seed={config['seed']!r} is to be a whole number")
    return int(config["seed"])


def load_runs(source: str | Path | Iterable[str | Path]) -> list[Run]:
    """Read the given run folders, or every run folder below one root, by arm and seed.

    A root that is kept as an archive (`runs.tar.xz` for `runs`) is unpacked first.

    Raises FileNotFoundError where there is none.
    """
    if isinstance(source, str | Path):
        folders = ledger_folders(source, METRICS)
    else:
        folders = [Path(folder) for folder in source]
    if not folders:
        place = f"{source}" if not isinstance(source, str | Path) else f"{Path(source).absolute()}"
        raise FileNotFoundError(f"no run folder (one with {METRICS}) in {place}")
    return sorted((load_run(folder) for folder in folders), key=arm_and_seed)


def group_by_arm(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs grouped by name: the paper's arms in their order first, then others by name.

    Raises ValueError for a name that reads like the mean of several arms.
    """
    arms: dict[str, list[Run]] = {}
    for run in sorted(runs, key=arm_and_seed):
        if AND in run.name:
            raise ValueError(
                f"{run.path} is called {run.name!r}, and {AND} stands between arms whose mean is "
                f"compared: give it another `name` in its {CONFIG}"
            )
        arms.setdefault(run.name, []).append(run)
    return arms


def arm_and_seed(run: Run) -> tuple[int, str, int, str]:
    """Sorting key: the paper's arms in their order first, then others by name; then the seed."""
    known = ARM_ORDER.index(run.name) if run.name in ARM_ORDER else len(ARM_ORDER)
    return known, run.name, run.seed, str(run.path)


def rows_of_kind(metrics: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Rows of one kind by rollout step; metrics that this kind never has are left out."""
    rows = metrics if metrics.empty else metrics[metrics["kind"] == kind]
    if rows.empty:
        return pd.DataFrame({"rollout_step": pd.Series(dtype="int64")})
    rows = rows.sort_values("rollout_step", kind="stable")
    rows = rows.drop(columns="kind").dropna(axis="columns", how="all")
    return rows.drop_duplicates("rollout_step", keep="last").reset_index(drop=True)


def _rows_or_none(path: Path) -> list[dict[str, Any]]:
    return read_rows(path) if find_ledger(path) else []


def _evaluation_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Token-weighted entropy H = Σ entropy / Σ tokens of every validation and temperature."""
    table = pd.DataFrame(
        [
            {
                **{column: row.get(column) for column in EVALUATION_COLUMNS},
                "entropy": _ratio(row.get("entropy_sum"), row.get("tokens")),
            }
            for row in _latest(rows)
        ],
        columns=list(EVALUATION_COLUMNS),
    )
    return table.astype(dict.fromkeys(REALS, "float64"))


def _ratio(total: float | None, count: float | None) -> float:
    return total / count if total is not None and count else float("nan")


def _long_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], file: Path
) -> pd.DataFrame:
    """Rows that hold lists of equal length, one table row per list element."""
    cells: dict[str, list[Any]] = {name: [] for name in columns}
    for row in _latest(rows):
        lengths = {name: len(row[name]) for name in columns if isinstance(row.get(name), list)}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"{file}, rollout_step {row['rollout_step']}: list lengths {lengths}")
        (length,) = set(lengths.values())
        for name in columns:
            value = row.get(name)
            cells[name] += value if isinstance(value, list) else [value] * length
    if not rows:
        return pd.DataFrame(columns=list(columns))
    table = pd.DataFrame(cells)
    return table.astype({name: "float64" for name in ("temperature", "rank") if name in columns})


def _latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of a validation that was repeated at the same step, the last one stands."""
    unique = {(row["rollout_step"], row.get("name")): row for row in rows}
    return list(unique.values())
