"""Light copies of runs: what of them is kept, and whether one is of the run it is named after."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from e3rl.analysis.sources.runs import Run
from e3rl.config.differences import ABSENT, differences
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.archive import archive_of, pack_runs
from e3rl.ledger.files import CONFIG, ENVIRONMENT, METRICS, SUMMARY, VALIDATION
from e3rl.ledger.ledger import find_ledger, pack, read_rows
from e3rl.runs.extent import LEDGERS, WHOLE, Extent, check_metrics, last_rows

COPIED = (CONFIG, ENVIRONMENT, SUMMARY)
OF_PLACES = ("paths", "logger", "sweep")  # of a configuration; a run may be moved
COUNTS = ("problem_id", "n", "correct", "tokens")  # of an evaluation; a copy rounds the rest
NAMED = 5  # differences that are named


def copy_new_runs(runs: Sequence[Run], out: Path, extent: Extent = WHOLE) -> list[Path]:
    """Light copies of the runs that are not there yet.

    Raises ValueError, before anything is copied, where a pattern of `extent` is of no metric. That
    folders which are there are of these runs says `check_recorded`.
    """
    check_metrics(runs, extent)
    new = []
    for run in runs:
        folder = out / run.path.name
        if is_recorded(folder):
            continue
        copy_run(run, folder, extent)
        new.append(folder)
    return new


def check_recorded(runs: Sequence[Run], out: Path) -> None:
    """Raise ValueError where a folder of `out` has the name of one of the runs and is another's, is
    the run itself, or holds what no recording wrote."""
    for run in runs:
        folder = out / run.path.name
        if folder.resolve() == run.path.resolve() and (folder / METRICS).is_file():
            raise ValueError(
                f"{folder} is the run itself, which its light copy would replace: record into "
                "another OUT"
            )
        if not is_recorded(folder):
            _check_half_copied(folder)
            continue
        different = [*differences_of_settings(run, folder), *differences_of_counts(run, folder)]
        if different:
            more = f"\n  - and {len(different) - NAMED} more" if len(different) > NAMED else ""
            listed = "".join(f"\n  - {each}" for each in different[:NAMED])
            raise ValueError(
                f"{folder} is recorded of another run than {run.path}:{listed}{more}\n"
                "record these runs into another OUT, or rename the folder of the run"
            )


def _check_half_copied(folder: Path) -> None:
    """Raise ValueError where a folder without a summary is more than a copy that was cut short."""
    if not folder.exists():
        return
    kept = {*COPIED, *(f"{name}.jsonl.xz" for name in LEDGERS)}
    there = [each.name for each in folder.iterdir()] if folder.is_dir() else [folder.name]
    if unknown := sorted(name for name in there if name not in kept and ".tmp" not in name):
        raise ValueError(
            f"{folder} is there, is no recorded run and holds {unknown[0]}, which a copy would "
            "replace: rename it, or record into another OUT"
        )


def is_recorded(folder: Path) -> bool:
    """Whether a light copy is there, and whole."""
    return (folder / SUMMARY).is_file()


def differences_of_settings(run: Run, folder: Path) -> Iterator[str]:
    """Settings that a run has otherwise than its copy; where its files lay is none of them."""
    there = _without_places(read_saved_configuration(folder / CONFIG))
    for path, old, new in differences(there, _without_places(run.config)):
        yield f"{path}: {None if old is ABSENT else old!r} there, {new!r} in the run"


def _without_places(config: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in config.items() if key not in OF_PLACES}
    text = json.dumps(own, ensure_ascii=False, default=str)
    for folder in _folders_of(config):
        text = hide_folder(text, folder)
    return dict(json.loads(text))


def differences_of_counts(run: Run, folder: Path) -> Iterator[str]:
    """What a run's last validation counted otherwise than its copy has it.

    A copy may have evaluations of its own, and lack some of the run; those of both are compared.
    """
    if not all(find_ledger(path / VALIDATION) for path in (run.path, folder)):
        return
    there, here = (_last_evaluations(path) for path in (folder, run.path))
    steps = [max((step for step, _ in each), default=0) for each in (there, here)]
    if steps[0] != steps[1]:
        yield f"last validation: step {steps[0]} there, step {steps[1]} in the run"
    for key in sorted(here.keys() & there.keys()):
        if not any(_alike(one, other) for one in here[key] for other in there[key]):
            yield f"evaluation {key[1]} of step {key[0]}: other counts there than in the run"


def _last_evaluations(folder: Path) -> dict[tuple[int, str], list[Mapping[str, Any]]]:
    """Rows of the last validation, by step and name; a repeated one has several."""
    found: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in last_rows(read_rows(folder / VALIDATION)):
        found.setdefault((row["rollout_step"], row["name"]), []).append(row)
    return found


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[key] == other[key] for key in COUNTS if key in one and key in other)


def copy_run(run: Run, out: Path, extent: Extent = WHOLE) -> None:
    """The files that analyses read; the summary last, since it says that all is there."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    for name in extent.ledgers_of(run):
        pack(out / f"{name}.jsonl", extent.rows_of(read_rows(run.path / f"{name}.jsonl")))
    for name in COPIED:
        if (run.path / name).is_file():
            text = (run.path / name).read_text()
            for root in _roots_of(run.config):  # what a machine calls them is its own concern
                text = hide_folder(text, root)
            (out / name).write_text(text)


def _folders_of(config: Mapping[str, Any]) -> list[str]:
    """Folders that a configuration names, that of the run first, which is in the others."""
    own = config.get("paths", {}).get("run_dir")
    return ([str(own)] if own else []) + _roots_of(config)


def _roots_of(config: Mapping[str, Any]) -> list[str]:
    paths = config.get("paths", {})
    roots = [str(Path(paths["sweeps"]).parent)] if "sweeps" in paths else []
    roots += [str(paths["root"])] if "root" in paths else []
    return [root for root in roots if len(root) > 1]


def hide_folder(text: str, folder: str) -> str:
    """`.` in place of an absolute folder where paths begin with it, and nowhere else."""
    return re.sub(rf"(?<![\w./-]){re.escape(folder)}(?![\w.-])", ".", text)


def copy_control(recorded: Sequence[Path], out: Path) -> None:
    """Write `<out>.tar.xz` with the last validation of each of some recorded runs."""
    with TemporaryDirectory() as place:
        runs = Path(place) / "control"
        for folder in recorded:
            copy = runs / folder.name
            copy.mkdir(parents=True)
            for name in COPIED:
                if (folder / name).is_file():
                    shutil.copy(folder / name, copy)
            for ledger in LEDGERS[:2]:
                rows = read_rows(folder / f"{ledger}.jsonl")
                step = max(row["rollout_step"] for row in rows)
                pack(copy / f"{ledger}.jsonl", [r for r in rows if r["rollout_step"] == step])
        shutil.copyfile(pack_runs(runs), archive_of(out))
