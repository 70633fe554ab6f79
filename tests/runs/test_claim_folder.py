"""A run folder has one writer, who writes over nothing that no run has written."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.ledger.logger import LedgerLogger
from e3rl.runs.run import begin_folder, check_folder_is_free, claim_folder


def ranked(zero: bool) -> Any:
    return SimpleNamespace(is_global_zero=zero)


def test_a_second_run_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claim_folder(folder, ranked(True)):
        with (
            pytest.raises(ConfigurationError, match=r"another process is writing a run into .*run"),
            claim_folder(folder, ranked(True)),
        ):
            raise AssertionError("two at once")
        with claim_folder(folder, ranked(False)):  # other ranks of the first one
            pass
    with claim_folder(folder, ranked(True)):
        assert list(folder.iterdir()) == []  # nothing is left of a claim


RUN = "name: e3\nseed: 1\npolicy: {path: embedded}\n"


@pytest.mark.parametrize("name", ["validation.jsonl", "summary.json", "metrics.csv"])
@pytest.mark.parametrize("config", [None, "mine: 1\n", ""])
def test_files_of_others_are_not_replaced(tmp_path: Path, name: str, config: str | None) -> None:
    (tmp_path / "notes.txt").write_text("no name that a run writes")
    check_folder_is_free(tmp_path)
    (tmp_path / name).write_text("mine")
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    with pytest.raises(ConfigurationError, match="and is no run's folder: the run would replace"):
        check_folder_is_free(tmp_path)


class SeenByOthers(LedgerLogger):
    """What another rank, which checks too, finds when the first ledgers are made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))

    def rewind(self, rows: Mapping[str, int]) -> None:
        super().rewind(rows)
        check_folder_is_free(self.run_dir)


def test_what_an_unfinished_run_left_is_kept_with_its_settings(tmp_path: Path) -> None:
    left = {"config.yaml": RUN, "environment.json": "{}", "summary.json": "{}"}
    left |= {"validation.jsonl": "{}\n"}
    for name, text in left.items():
        (tmp_path / name).write_text(text)
    check_folder_is_free(tmp_path)
    cfg = composed("logger=ledger_only", f"paths.run_dir={tmp_path}")
    begin_folder(cfg, tmp_path, None, [SeenByOthers(tmp_path)])
    kept = {f"{name}.superseded": text for name, text in left.items()}
    found = {each.name: each.read_text() for each in tmp_path.iterdir() if each.is_file()}
    assert kept.items() <= found.items()
    assert found["config.yaml"] != RUN
    check_folder_is_free(tmp_path)


def test_other_ranks_of_a_new_run_find_its_settings_before_its_ledgers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cfg = composed("logger=ledger_only", f"paths.run_dir={folder}")
    begin_folder(cfg, folder, None, [SeenByOthers(folder)])
    assert (folder / "metrics.jsonl").exists()
