"""A run that was killed at any moment goes on as if nothing had happened, bit for bit on a CPU."""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import (
    E3,
    LEDGERS,
    STEPS,
    assert_same,
    every_state_of_the_disk,
    final_state,
    last_before_each_checkpoint,
    ledger_rows,
    only_train,
    run,
    sound,
)

from e3rl.config.composition import ConfigurationError
from e3rl.ledger.ledger import read_rows
from e3rl.runs import run as running

Rows = dict[str, list[dict[str, Any]]]

SCHEDULE = (
    "module.scheduler={_target_: torch.optim.lr_scheduler.CosineAnnealingLR,"
    "_partial_: true, T_max: 6}"
)
# When it is saved and validated: 3 is an epoch's last step, 6 the run's.
RHYTHMS = {
    "saved at ends of epochs": ["validate_every=2", "checkpoint_every=3"],
    "saved rarely": ["validate_every=6", "checkpoint_every=4"],
}
AHEAD = ("rollout.lookahead=1", "loss/correction=tis")
# What has a state of its own.
ARMS = {
    "minibatches, falling k, KL-Cov, utilities paid in tokens": [
        *("experiment=grpo", "module.settings.minibatches=2", "module.settings.inner_epochs=2"),
        *("advantage=pass_at_k", "advantage.k=2", "advantage.final_k=1", "loss/exploration=kl_cov"),
        *("budget=knapsack", "budget.cost=tokens", "budget.decay=0.5"),
    ],
    "entropy bonus, KL, a pilot and then the rest": [
        *("experiment=grpo_er", "loss.kl_coef=0.1", f"+{SCHEDULE}"),
        *("budget=hora", "budget.mode=pilot"),
    ],
    "elasticity, adaptive entropy bonus, ranks within an epoch": [
        *("experiment=ts", "temperature/gain=elasticity", "temperature.init_steps=2"),
        *("loss/exploration=adaptive_entropy_bonus", "module.settings.empty_batch=skip"),
        *("budget=e3_rank", "budget.n_low=2", "budget.n_high=4", "budget.rank_update=2"),
    ],
    "solve, leftovers handed back": [
        *("experiment=ts_an", "temperature/gain=solve", "module.probe.factors=[0.7,1.0,1.4]"),
        *("temperature.init_steps=2", "budget=dynamic_sampling", "budget.max_rounds=1"),
    ],
    "temperatures by difficulty": [
        *("experiment=budget", "budget.n_low=2", "budget.n_high=4"),
        *("temperature=multi_temperature", "temperature/spread=by_difficulty"),
        "temperature@temperature.rule=piecewise",
    ],
    "ranks by answers, sampled ahead": [*E3, "budget.difficulty=disagreement", *AHEAD],
    "a pilot, sampled ahead": ["experiment=grpo", "budget=hora", "budget.mode=pilot", *AHEAD],
    "rounds, sampled ahead": [
        *("experiment=grpo", "budget=sequential", "budget.per_round=2", "budget.wanted=2"),
        *AHEAD,
    ],
    "leftovers handed back, sampled ahead": [
        *("experiment=grpo", "budget=dynamic_sampling", "budget.max_rounds=1", *AHEAD),
    ],
    "passes cut short": [*E3, "+trainer.limit_train_batches=2", "epochs=3"],
}


KEPT = (*E3, "callbacks.checkpoint.keep=9")
Finished = tuple[Path, dict[int, str]]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run with all of its checkpoints, and its digests."""
    folder = tmp_path_factory.mktemp("once") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        only_train(patch)
        return folder, run(folder, *KEPT)


@pytest.fixture
def finished(once: Finished, tmp_path: Path) -> Finished:
    """A copy of it to try things on."""
    folder, digests = once
    return Path(shutil.copytree(folder, tmp_path / "whole")), digests


@pytest.fixture(autouse=True)
def _only_train(monkeypatch: pytest.MonkeyPatch) -> None:
    only_train(monkeypatch)


def resume(left: Path, *overrides: str) -> dict[int, str]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "passing over checkpoint")  # one being written
        return run(left, *overrides, f"ckpt_path={left}")


def check_resumed(
    left: Path, overrides: Sequence[str], digests: dict[int, str], rows: Rows, state: Any
) -> None:
    before = ledger_rows(left)
    resumed = resume(left, *overrides)
    assert resumed == {step: digests[step] for step in range(STEPS - len(resumed), STEPS)}
    assert_same(final_state(left), state)
    assert ledger_rows(left) == rows
    aside = ledger_rows(left, ".superseded")
    for file in LEDGERS:
        kept = len(before[file]) - len(aside[file])
        assert rows[file][:kept] + aside[file] == before[file]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_ends_as_the_uninterrupted_one(
    every: int, tmp_path: Path
) -> None:
    """Of the moments below one in `every`, and those at which a checkpoint was half written."""
    whole, overrides = tmp_path / "whole", [*E3, "checkpoint_every=1"]
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *overrides)
    resumable = [left for left in states if sound(left)]
    assert {sound(left)[-1].stem for left in resumable} == {f"step-00000{k}" for k in range(1, 7)}
    assert any(list((left / "checkpoints").glob(".*.tmp")) for left in resumable)
    rows, state = ledger_rows(whole), final_state(whole)
    assert len(digests) == STEPS
    # Every moment of the last step of an epoch, with its validation, and of the first of the next.
    within = {"step-000002", "step-000003"}
    moments = [left for left in resumable if sound(left)[-1].stem in within]
    half_written = [left for left in moments if list((left / "checkpoints").glob(".*.tmp"))]
    for number, left in enumerate(moments):
        if left in half_written or number % every == 0:
            check_resumed(left, overrides, digests, rows, state)


@pytest.mark.parametrize("rhythm", RHYTHMS)
def test_it_resumes_from_every_checkpoint_however_often_it_saves_and_validates(
    rhythm: str, tmp_path: Path
) -> None:
    whole, overrides = tmp_path / "whole", [*E3, *RHYTHMS[rhythm]]
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *overrides)
    rows, state = ledger_rows(whole), final_state(whole)
    for left in last_before_each_checkpoint(states):
        check_resumed(left, overrides, digests, rows, state)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_resumes_within_and_at_the_end_of_an_epoch(arm: str, tmp_path: Path) -> None:
    whole, overrides = tmp_path / "whole", [*ARMS[arm], "checkpoint_every=1"]
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *overrides)
    rows, state = ledger_rows(whole), final_state(whole)
    resumable = last_before_each_checkpoint(states)
    for left in (resumable[1], resumable[2]):
        check_resumed(left, overrides, digests, rows, state)


def test_a_resumed_run_can_be_killed_and_resumed_again(tmp_path: Path) -> None:
    whole, overrides = tmp_path / "whole", [*E3, "checkpoint_every=2"]
    with every_state_of_the_disk(whole, tmp_path / "first") as first:
        digests = run(whole, *overrides)
    once = last_before_each_checkpoint(first)[0]
    with every_state_of_the_disk(once, tmp_path / "second") as second:
        resume(once, *overrides)
    twice = last_before_each_checkpoint(second)[1]
    assert [sound(path)[-1].stem for path in (twice,)] == ["step-000004"]
    resumed = resume(twice, *overrides)
    assert resumed == {4: digests[4], 5: digests[5]}
    assert_same(final_state(twice), final_state(whole))
    assert ledger_rows(twice) == ledger_rows(whole)
    steps = [row["rollout_step"] for row in read_rows(twice / "prompts.jsonl.superseded")]
    assert steps == [2, 3, 4, 5]  # lost by the first kill, then by the second


@pytest.mark.slow
@pytest.mark.parametrize("validate_every", [1, 3])  # 3: each epoch's last step
def test_a_run_killed_after_every_step_ends_as_the_uninterrupted_one(
    validate_every: int, tmp_path: Path
) -> None:
    rhythm = ("checkpoint_every=1", f"validate_every={validate_every}")
    whole, overrides = tmp_path / "whole", [*E3, *rhythm]
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *overrides)
    left, *later = last_before_each_checkpoint(states)
    assert later
    while later:
        with every_state_of_the_disk(left, tmp_path / sound(left)[-1].stem) as states:
            resumed = resume(left, *overrides)
        assert resumed == {step: digests[step] for step in range(min(resumed), STEPS)}
        assert_same(final_state(left), final_state(whole))
        assert ledger_rows(left) == ledger_rows(whole)
        left, *later = last_before_each_checkpoint(states)[1:]


def test_a_finished_run_that_is_resumed_stays_as_it_is(finished: Finished) -> None:
    whole, _ = finished
    rows, state = ledger_rows(whole), final_state(whole)
    assert resume(whole, *KEPT) == {}
    assert ledger_rows(whole) == rows
    assert_same(final_state(whole), state)


def test_going_on_from_an_earlier_checkpoint_repeats_the_rest(finished: Finished) -> None:
    whole, digests = finished
    rows, state = ledger_rows(whole), final_state(whole)
    earlier = whole / "checkpoints" / "step-000003.ckpt"
    assert run(whole, *KEPT, f"ckpt_path={earlier}") == {k: digests[k] for k in (3, 4, 5)}
    assert ledger_rows(whole) == rows
    assert_same(final_state(whole), state)


def test_a_run_killed_before_its_first_checkpoint_starts_again_in_its_folder(
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    with every_state_of_the_disk(whole, tmp_path / "states") as states:
        digests = run(whole, *E3, "checkpoint_every=6")
    left = [path for path in states if not sound(path)][-1]
    assert len(ledger_rows(left)["prompts"]) == STEPS
    assert [path.name for path in (left / "checkpoints").glob("*.ckpt")] == ["step-000006.ckpt"]
    assert run(left, *E3, "checkpoint_every=6") == digests
    assert ledger_rows(left) == ledger_rows(whole)


def test_a_folder_that_holds_a_run_is_not_trained_into(finished: Finished) -> None:
    whole, _ = finished
    rows = ledger_rows(whole)
    with pytest.raises(ConfigurationError, match="holds a run already: go on with it by ckpt_path"):
        run(whole, *KEPT)
    assert ledger_rows(whole) == rows


def test_a_run_that_came_between_the_look_and_the_claim_is_not_trained_into(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = finished
    rows, look, looks = ledger_rows(whole), running.check_folder_is_free, []

    def looked(folder: Path) -> None:
        looks.append(folder)
        if len(looks) > 1:  # the first time the other run had not begun
            look(folder)

    monkeypatch.setattr(running, "check_folder_is_free", looked)
    with pytest.raises(ConfigurationError, match="holds a run already: go on with it by ckpt_path"):
        run(whole, *KEPT)
    assert looks == [whole, whole]
    assert ledger_rows(whole) == rows


def test_other_settings_are_refused_by_name_and_nothing_is_changed(finished: Finished) -> None:
    whole, _ = finished
    rows = ledger_rows(whole)
    changed = [
        *("module.optimizer.lr=0.1", "epochs=3", "budget.n_high=5", "engine.rows_per_call=7"),
        *("trainer.precision=bf16-mixed", "data.train.size=16"),
    ]
    with pytest.raises(ConfigurationError) as error:
        run(whole, *KEPT, *changed, f"ckpt_path={whole}")
    assert ledger_rows(whole) == rows
    lines = str(error.value).splitlines()[1:]
    assert [line.split(":")[0].removeprefix("  - ") for line in lines] == [
        *("budget.n_high", "data.train.size", "engine.rows_per_call", "epochs"),
        *("module.optimizer.lr", "trainer.precision"),
    ]


def test_a_value_that_was_given_at_the_start_must_be_given_again(finished: Finished) -> None:
    whole, _ = finished
    with pytest.raises(ConfigurationError, match=r"budget\.n_low: 2 at the start, 4 now"):
        run(whole, *[each for each in KEPT if "n_low" not in each], f"ckpt_path={whole}")


def test_what_only_watches_a_run_may_be_changed(finished: Finished) -> None:
    whole, digests = finished
    watching = [
        *("checkpoint_every=2", "validate_every=3", "callbacks.checkpoint.keep=1"),
        *("callbacks.metrics.completions_per_step=0", "reward.workers=1", "sweep.name=other"),
    ]
    earlier = whole / "checkpoints" / "step-000003.ckpt"
    resumed = run(whole, *E3, *watching, f"ckpt_path={earlier}")
    assert resumed == {k: digests[k] for k in (3, 4, 5)}
    assert [path.name for path in sound(whole)] == ["step-000006.ckpt"]


def test_a_checkpoint_without_its_run_folder_is_not_resumed(finished: Finished) -> None:
    whole, _ = finished
    (whole / "config.yaml").unlink()
    with pytest.raises(ConfigurationError, match=r"config\.yaml is missing: keep checkpoints in"):
        run(whole, *KEPT, f"ckpt_path={whole}")
