"""What decides the numbers of a run, and what does not: the determinism contract of the docs."""

from pathlib import Path
from typing import Any

import pytest
from lightning import Callback
from tiny_runs import E3, assert_same, final_state, ledger_rows, only_train, run

from e3rl.callbacks.health import RunHealth
from e3rl.callbacks.speed import Speedometer
from e3rl.runs import run as running
from update_harness import gap, share_apart

Run = tuple[Path, dict[int, str]]
OBSERVERS = (
    *("reward.workers=3", "profiler=simple", "callbacks.metrics.completions_per_step=3"),
    *("checkpoint_every=3", "callbacks.checkpoint.keep=5"),
)
STEP = 2e-4  # the learning rate: what AdamW moves a weight by in a step


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that others are held against."""
    with pytest.MonkeyPatch.context() as patch:
        only_train(patch)
        folder = tmp_path_factory.mktemp("whole")
        return folder, run(folder, *E3, "seed=3")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    only_train(monkeypatch)


@pytest.mark.parametrize("settings", [(), OBSERVERS], ids=["nothing changed", "observers"])
def test_what_only_observes_changes_no_bit(
    settings: tuple[str, ...], whole: Run, tmp_path: Path
) -> None:
    digests = run(tmp_path, *E3, "seed=3", *settings)
    assert digests == whole[1]
    found, expected = ledger_rows(tmp_path), ledger_rows(whole[0])
    for name in ("metrics", "prompts", "validation"):
        assert found[name] == expected[name]
    assert_same(weights(tmp_path), weights(whole[0]))


def test_a_run_is_the_same_however_often_it_is_validated(whole: Run, tmp_path: Path) -> None:
    digests = run(tmp_path, *E3, "seed=3", "validate_every=3")
    assert digests == whole[1]
    found, expected = (ledger_rows(folder)["validation"] for folder in (tmp_path, whole[0]))
    assert {row["rollout_step"] for row in found} != {row["rollout_step"] for row in expected}
    assert_same(weights(tmp_path), weights(whole[0]))


def test_without_those_who_only_watch_a_run_no_bit_is_another(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "StallGuard", lambda _: Callback())
    monkeypatch.setattr(Speedometer, "of", lambda *_: None)
    monkeypatch.setattr(RunHealth, "remarks", lambda *_: [])
    digests = run(tmp_path, *E3, "seed=3", "callbacks.metrics.completions_per_step=0")
    assert digests == whole[1]
    assert_same(weights(tmp_path), weights(whole[0]))


def test_another_seed_is_another_run(whole: Run, tmp_path: Path) -> None:
    digests = run(tmp_path, *E3, "seed=4")
    assert not set(digests.values()) & set(whole[1].values())


def test_an_update_does_not_depend_on_how_it_is_cut(whole: Run, tmp_path: Path) -> None:
    run(tmp_path, *E3, "seed=3", "module.settings.tokens_per_microbatch=64")
    found, expected = ledger_rows(tmp_path), ledger_rows(whole[0])
    same = ("prompt_id", "n", "correct", "rank")
    for row, other in zip(found["prompts"], expected["prompts"], strict=True):
        assert {key: row[key] for key in same} == {key: other[key] for key in same}
    norms = [[row["policy/grad_norm"] for row in trained(rows)] for rows in (found, expected)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0][0] == pytest.approx(norms[1][0], rel=1e-6)
    assert share_apart(weights(tmp_path), weights(whole[0]), STEP / 100) < 1e-4
    assert gap(weights(tmp_path), weights(whole[0])) < STEP


def test_rollouts_do_not_depend_on_how_many_are_sampled_at_once(whole: Run, tmp_path: Path) -> None:
    """Tokens are the same; log-probs differ in their last bits, and so do weights after a while."""
    run(tmp_path, *E3, "seed=3", "engine.rows_per_call=5")
    for row, expected in zip(
        ledger_rows(tmp_path)["completions"], ledger_rows(whole[0])["completions"], strict=True
    ):
        assert (row["prompt_id"], row["completion"]) == (
            expected["prompt_id"],
            expected["completion"],
        )


def trained(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [row for row in rows["metrics"] if row["kind"] == "train" and row["policy/grad_norm"]]


def weights(folder: Path) -> dict[str, Any]:
    state = final_state(folder)["state_dict"]
    return dict(state)
