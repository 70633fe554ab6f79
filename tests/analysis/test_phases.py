"""Where the time went, from recorded rows."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from recorded_runs import write_run

from e3rl.analysis.figures.run_figures import overview_figure
from e3rl.analysis.figures.time_panels import PHASE_COLOURS, format_seconds
from e3rl.analysis.measures.resources import (
    BARS,
    SINCE_LAST_ROW,
    mean_phase_seconds,
    phase_seconds,
    phases_by_step,
)
from e3rl.analysis.page.time_bars import time_bars
from e3rl.analysis.sources.runs import Run, load_run
from e3rl.ledger.phases import PHASES


def timed_run(path: Path, steps: int = 4) -> Run:
    """Each step samples 2 s and trains 1 s; validated for 3 s before and after, started in 5 s."""
    run = load_run(write_run(path, "e3", 1))
    train = pd.DataFrame(
        {
            "rollout_step": range(steps),
            "phase/rollout_s": [2.0] * steps,
            "phase/backward_s": [1.0] * steps,
            "phase/validation_s": [0.5] + [float("nan")] * (steps - 1),
        }
    )
    validation = pd.DataFrame(
        {
            "rollout_step": [0, steps],
            "phase/start_s": [5.0, float("nan")],
            "phase/validation_s": [2.5, 3.0],
        }
    )
    summary = {SINCE_LAST_ROW: {"phase/finish_s": 1.0, "phase/validation_s": 0.25}}
    return replace(run, train=train, validation=validation, summary=summary)


def test_seconds_of_all_rows_and_of_the_summary_add_up(tmp_path: Path) -> None:
    found = phase_seconds(timed_run(tmp_path / "run"))
    assert found == {"start": 5, "rollout": 8, "backward": 4, "validation": 6.25, "finish": 1}
    assert list(found) == [name for name in PHASES if name in found]


def test_a_step_has_its_validation_and_not_the_start(tmp_path: Path) -> None:
    table = phases_by_step(timed_run(tmp_path / "run"))
    assert list(table) == ["rollout", "backward", "validation"]
    assert table["rollout"].tolist() == [2, 2, 2, 2]
    assert table["validation"].tolist() == [0.5, 0, 0, 3]


def test_long_runs_are_drawn_as_means_of_stretches(tmp_path: Path) -> None:
    table = phases_by_step(timed_run(tmp_path / "run", steps=2 * BARS + 1))  # 3 steps a bar
    assert len(table) == 33
    assert table.index[1] == 3
    assert table["validation"].iloc[0] == pytest.approx(0.5 / 3)
    assert table["rollout"].tolist() == pytest.approx([2.0] * 33)
    assert table["validation"].iloc[-1] == pytest.approx(3.0)  # a stretch of a single step


def test_seeds_that_recorded_phases_are_averaged(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "run")
    other = replace(run, train=run.train.assign(**{"phase/rollout_s": 4.0}), summary=None)
    old = load_run(tmp_path / "run")
    assert mean_phase_seconds([run, other, old])["rollout"] == 12
    assert mean_phase_seconds([run, other, old])["finish"] == 0.5
    assert mean_phase_seconds([old]) == {}


def test_the_overview_and_the_page_show_the_shares(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "run")
    words = [text.get_text() for ax in overview_figure(run).axes for text in ax.texts]
    assert " 33 %, 8.0 s" in words
    assert "24.2 s in all" in words
    page = time_bars({"e3": [run], "old": [load_run(tmp_path / "run")]})
    assert 'title="rollout: 8.0 s, 33.0 %"' in page
    assert "not recorded" in page
    assert "24.2 s" in page


def test_runs_without_phases_say_so(tmp_path: Path) -> None:
    old = load_run(write_run(tmp_path / "run", "e3", 1))
    words = [text.get_text() for ax in overview_figure(old).axes for text in ax.texts]
    assert words.count("no phases recorded") == 2
    assert time_bars({"e3": [old]}) == '<p class="note">No run recorded its phases.</p>'


def test_a_ledger_without_phases_is_not_what_its_summary_adds(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "run")
    bare = {name: getattr(run, name)[["rollout_step"]] for name in ("train", "validation")}
    assert phase_seconds(replace(run, **bare)) == {}
    assert phase_seconds(replace(run, train=bare["train"]))["finish"] == 1


def test_every_phase_has_a_colour_of_its_own() -> None:
    assert list(PHASE_COLOURS) == list(PHASES)
    assert len(set(PHASE_COLOURS.values())) == len(PHASES)


def test_durations_are_written_in_two_units() -> None:
    assert [format_seconds(s) for s in (45.31, 725.2, 12_000)] == [
        "45.3 s",
        "12 min 5 s",
        "3 h 20 min",
    ]


def test_a_recorded_summary_is_read_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "e3", 1)
    (folder / "summary.json").write_text(json.dumps({SINCE_LAST_ROW: {"phase/finish_s": 2.0}}))
    run = load_run(folder)
    timed = replace(run, train=run.train.assign(**{"phase/rollout_s": 0.5}))
    assert phase_seconds(timed) == {"rollout": 12, "finish": 2}
