"""Sweeps that lie around runs and were validated on the same problems."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e3rl.analysis.sources.config_differences import TARGET
from e3rl.analysis.sources.runs import Run
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.files import CONFIG, VALIDATION
from e3rl.ledger.ledger import find_ledger, read_rows

PROPOSED, MULTIRUN = "optimization_results.yaml", "multirun.yaml"
SHARED = 0.25  # of the problems of the smaller set, from which on two sets are of one kind
NOT_ASKED = ("size",)  # of a validation set: a smaller one is a part of a larger one
NOT_PROBLEMS = ("train", "seed", "lookahead", "prompts_per_step", "validation_prompts_per_batch")


@dataclass(frozen=True)
class Problems:
    """Validation problems of runs: their ids, as ledgers have them, and what configurations ask."""

    ids: frozenset[str]
    asked: frozenset[str]

    def shares(self, other: "Problems") -> bool:
        """Whether both have problems in common: ids tell, or else what was asked for."""
        if self.ids and other.ids:
            return len(self.ids & other.ids) >= SHARED * min(len(self.ids), len(other.ids))
        return bool(self.asked & other.asked)


@dataclass(frozen=True)
class Sweep:
    """A sweep, and those of its configurations that were validated on the problems asked about; of
    runs that are compared theirs."""

    folder: Path
    is_own: bool  # of runs that are compared
    proposes: bool  # values, by what its runs scored
    configs: Sequence[Mapping[str, Any]]


def sweeps_around(runs: Sequence[Run]) -> list[Sweep]:
    """The sweeps of runs and those beside them, where some run shares validation problems."""
    judged = problems_of(runs)
    own = {run.path.resolve().parent for run in runs} if judged.ids or judged.asked else set()
    beside = {each for parent in own for each in parent.parent.glob("*") if each.is_dir()}
    mine = [run.config for run in runs]
    found = [Sweep(folder, True, proposes_values(folder), mine) for folder in sorted(own)]
    for folder in sorted(beside - own):
        if configs := list(_configs_on(folder, judged)):
            found.append(Sweep(folder, False, proposes_values(folder), configs))
    return found


def problems_of(runs: Sequence[Run]) -> Problems:
    """The validation problems of recorded runs."""
    ids = frozenset().union(*(run.problems["problem_id"].unique() for run in runs))
    return Problems(ids, frozenset(each for run in runs if (each := _asked(run.config))))


def proposes_values(sweep: Path) -> bool:
    """Whether a sweep's settings were chosen by what its runs scored."""
    if (sweep / PROPOSED).is_file():
        return True
    if not (sweep / MULTIRUN).is_file():
        return False
    try:
        asked = read_saved_configuration(sweep / MULTIRUN)
    except ValueError:
        return False  # broken: it tells nothing
    return "optuna" in str(asked.get("hydra", {}).get("sweeper", {}).get(TARGET, "")).lower()


def _configs_on(sweep: Path, judged: Problems) -> Iterator[Mapping[str, Any]]:
    """Configurations of a sweep's runs that share problems. One ledger is read for all runs whose
    data are configured alike."""
    known: dict[str, bool] = {}
    for file in sorted(sweep.glob(f"*/{CONFIG}")):
        try:
            config = read_saved_configuration(file)
        except ValueError:
            continue  # broken, as below: it tells nothing
        data = _data_of(config)
        if data not in known:
            asked = _asked(config)
            mine = Problems(_recorded_ids(file.parent), frozenset([asked] if asked else []))
            if not (mine.ids or mine.asked):
                continue  # another run of these data may tell
            known[data] = mine.shares(judged)
        if known[data]:
            yield config


def _recorded_ids(run: Path) -> frozenset[str]:
    """Ids of the problems of a run's first validation; none where it has none, or is broken."""
    if find_ledger(run / VALIDATION) is None:
        return frozenset()
    try:
        rows = read_rows(run / VALIDATION)
    except ValueError:
        return frozenset()
    return frozenset(map(str, rows[0].get("problem_id", []))) if rows else frozenset()


def _asked(config: Mapping[str, Any]) -> str:
    """What a configuration asks for as validation problems, whatever their number; empty where it
    does not tell."""
    data = config.get("data")
    node = data.get("validation") if isinstance(data, Mapping) else None
    return str(_without(node, NOT_ASKED)) if node else ""


def _data_of(config: Mapping[str, Any]) -> str:
    return str(_without(config.get("data"), NOT_PROBLEMS))


def _without(node: Any, keys: Sequence[str]) -> Any:
    if not isinstance(node, Mapping):
        return node
    return sorted((key, str(value)) for key, value in node.items() if key not in keys)
