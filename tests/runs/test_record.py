"""Recorded runs: light copies, arms and their control sampled again as studies need them."""

import dataclasses
import json
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from compositions import composed
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.costs import total_cost
from e3rl.analysis.sources.runs import Run, group_by_arm, load_run, load_runs
from e3rl.callbacks.pass_at_k import EvaluationCounts
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.files import DamagedCheckpointError, checksum_file, sha256
from e3rl.config.composition import ConfigurationError
from e3rl.ledger.ledger import find_ledger, read_rows
from e3rl.record import main
from e3rl.runs import recording as record
from e3rl.runs.control import check_control, unlike_control
from e3rl.runs.extent import WHOLE, Extent, shorten_row
from e3rl.runs.light_copies import check_recorded, copy_new_runs, copy_run
from e3rl.runs.outcome import control_evaluations
from e3rl.runs.provenance import write_provenance
from e3rl.runs.recording import Sampling
from e3rl.runs.resampling import last_weights
from e3rl.temperatures.matching import read_at_entropy

pytestmark = pytest.mark.end_to_end


ROOT = Path(__file__).parents[2]
Arms = dict[str, list[Run]]
LAST = "step-000024.ckpt"
PROBLEMS = [f"problem-{i}" for i in range(30)]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    folder = tmp_path_factory.mktemp("study")
    for arm in ("grpo", "ts_an", "e3"):
        for seed in (1, 2):
            run = folder / f"seed-{seed}_experiment-{arm}"
            recorded_runs["write_run"](run, arm, seed)
            (run / "checkpoints").mkdir()
            (run / "checkpoints" / "step-000024.ckpt").touch()
    for file in folder.rglob("validation.jsonl"):  # as training leaves them
        rows = [row for row in read_rows(file) if row["name"] != "matched"]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return group_by_arm(load_runs(folder))


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, bool]]:
    """What was sampled in place of a policy: arm, seed, evaluation, trained."""
    calls = []

    def sample(run: Run, wanted: list[Evaluation], trained: bool = True) -> list[EvaluationCounts]:
        calls.extend((run.name, run.seed, each.name, trained) for each in wanted)
        heat = [each.temperature or 1.0 for each in wanted]
        return [
            EvaluationCounts(
                each.name,
                temperature,
                PROBLEMS,
                ["x"] * 30,
                [each.n] * 30,
                [each.n // 2] * 30,
                1000 * 0.4 * temperature**1.2,
                1000,
                0,
            )
            for each, temperature in zip(wanted, heat, strict=True)
        ]

    monkeypatch.setattr(record, "sample_policy", sample)
    monkeypatch.setattr(record, "check_parts", lambda *_: None)
    return calls


def runs_of(arms: Arms) -> list[Run]:
    return [run for runs in arms.values() for run in runs]


def test_only_arms_with_a_temperature_of_their_own_have_an_entropy_to_match(arms: Arms) -> None:
    assert record.entropies_to_match(arms["grpo"]) == []
    found = record.entropies_to_match([arms["ts_an"][0], arms["e3"][0]])
    assert found == pytest.approx([0.486, 0.486])  # nine tenths of .54


def test_two_per_cent_from_one_are_no_temperature_of_its_own() -> None:
    heats = (0.97, 0.981, 1.0, 1.019, 1.03)
    assert [record.has_its_own(t) for t in heats] == [True, False, False, False, True]


def test_evaluations_of_a_truncated_sampler_match_no_entropy(tmp_path: Path) -> None:
    row = {"rollout_step": 8, "n": [64, 32], "entropy_sum": 30.0, "tokens": 100}
    rows = [
        row | {"temperature": 1.0},
        row | {"temperature": 1.1, "top_p": 1, "top_k": 0},
        row | {"temperature": 1.2, "top_p": 0.9, "top_k": 0},
        row | {"temperature": 1.3, "top_p": 1, "top_k": 20},
        row | {"temperature": 1.4, "n": [64, 31]},
        row | {"temperature": 1.5, "rollout_step": 4},
        row | {"temperature": 0.0},
    ]
    (tmp_path / record.VALIDATION).write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert record.entropies_by_temperature(tmp_path, 8) == {1.0: 0.3, 1.1: 0.3}


def test_each_seed_of_the_control_is_sampled_around_the_entropy_of_the_arms_of_its_seed(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    copy_new_runs(runs_of(arms), tmp_path)
    record.add_evaluations(arms, "grpo", tmp_path, Sampling(32))
    assert ("grpo", 1, "t1", False) in sampled  # the untrained policy, once for all
    assert [call for call in sampled if not call[3]] == [("grpo", 1, "t1", False)]
    # Own temperatures are sampled anew where the run had fewer rollouts than asked for.
    assert {c[:3] for c in sampled if c[2] == "live"} == {
        (arm, seed, "live") for arm in ("ts_an", "e3") for seed in (1, 2)
    }
    recorded = group_by_arm(load_runs(tmp_path))
    for run, arm in zip(recorded["grpo"], recorded["ts_an"], strict=True):
        rungs = record.entropies_by_temperature(run.path, 24)
        (wanted,) = record.entropies_to_match([arm])
        reading = read_at_entropy(rungs, wanted)
        assert reading.entropy == wanted
        assert len(reading.weights) == 2
    control = [c[2] for c in sampled if c[:2] == ("grpo", 1) and c[3]]
    assert len(control) == len(set(control)) <= 4  # for both arms together
    starts = [run.problems.query("rollout_step == 0 and name == 't1'") for run in runs_of(recorded)]
    assert all(set(start["n"]) == {32} for start in starts)
    rows = compare_arms(recorded, "grpo", [1])
    live = [r for r in rows if (r["against"], r["measure"]) == ("grpo matched", "pass@1")]
    assert [(row["arm"], row["unmatched"]) for row in live] == [("ts_an", None), ("e3", None)]


def test_all_arms_are_sampled_at_given_temperatures_and_the_control_at_their_entropies(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    copy_new_runs(runs_of(arms), tmp_path, Extent(last=True))
    sampling = Sampling(32, temperatures=(0.8, 1.0), matched=("t0.8",))
    record.add_evaluations(arms, "grpo", tmp_path, sampling)
    assert sorted(call[2] for call in sampled if not call[3]) == ["t0.8", "t1"]
    names = {run.name: set(run.evaluations["name"]) for run in load_runs(tmp_path)}
    assert all({"t0.8", "t1"} <= each for each in names.values())
    assert not any(c[2] == "live" for c in sampled)
    control = {c[2] for c in sampled if c[:2] == ("grpo", 1) and c[3]}
    assert control == {"t0.8", "t1"}  # the stand-in's entropy depends on the temperature alone
    again = len(sampled)
    record.add_evaluations(arms, "grpo", tmp_path, sampling)
    assert len(sampled) == again


def test_final_policies_are_kept_once_under_the_names_of_their_runs(
    arms: Arms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exported = []

    def export(checkpoint: Path, out: Path) -> None:
        exported.append((checkpoint.parents[1].name, checkpoint.name, out.name))
        out.mkdir()

    monkeypatch.setattr(record, "export", export)
    monkeypatch.setattr(record, "check_parts", lambda *_: None)
    monkeypatch.setattr(record, "last_weights", lambda run: run.path / "checkpoints" / LAST)
    sweep = tmp_path / "sweep"
    shutil.copytree(arms["grpo"][0].path.parent, sweep)
    (sweep / "seed-2_experiment-e3" / "checkpoints" / LAST).unlink()
    for _ in range(2):
        record.record_runs(sweep, tmp_path, "grpo", Sampling(0), keep_policies=True)
    names = sorted(run.path.name for run in runs_of(arms))
    names.remove("seed-2_experiment-e3")
    assert sorted(exported) == [(name, LAST, name) for name in names]
    assert "seed-2_experiment-e3: no policy kept, its weights are gone" in capsys.readouterr().out


def test_the_last_step_alone_may_be_kept(arms: Arms, tmp_path: Path) -> None:
    copy_new_runs(runs_of(arms), tmp_path, Extent(last=True))
    for run, whole in zip(runs_of(group_by_arm(load_runs(tmp_path))), runs_of(arms), strict=True):
        assert run.train["rollout_step"].tolist() == [whole.train["rollout_step"].max()]
        assert set(run.evaluations["rollout_step"]) == {24}
        assert total_cost(run.train, "tokens") == total_cost(whole.train, "tokens")
        assert run.prompts.empty


def test_the_recorded_control_is_the_last_validation_of_each_of_its_seeds(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    record.record_runs(
        arms["grpo"][0].path.parent, tmp_path, "grpo", Sampling(32), keep_control=True
    )
    control = load_runs(tmp_path / "control")
    assert [(run.name, run.seed) for run in control] == [("grpo", 1), ("grpo", 2)]
    for run in control:
        whole = load_run(tmp_path / "runs" / run.path.name)
        rungs = record.entropies_by_temperature(run.path, 24)
        assert rungs == record.entropies_by_temperature(whole.path, 24)
        assert len(rungs) >= 2
        assert set(run.evaluations["rollout_step"]) == {24}
        assert set(run.evaluations["name"]) == set(
            whole.evaluations.query("rollout_step == 24")["name"]
        )
        assert run.train.empty
    before = (tmp_path / "control.tar.xz").read_bytes()
    record.record_runs(
        arms["grpo"][0].path.parent, tmp_path, "grpo", Sampling(32), keep_control=True
    )
    assert (tmp_path / "control.tar.xz").read_bytes() == before


def test_a_run_is_compared_with_all_seeds_of_the_recorded_control(
    arms: Arms, tmp_path: Path
) -> None:
    sweep = arms["grpo"][0].path.parent
    record.record_runs(sweep, tmp_path, "grpo", Sampling(0), keep_control=True)
    cfg = OmegaConf.create({"control": str(tmp_path / "control")})
    check_control(cfg)
    found = {each.name: each for each in control_evaluations(cfg, arms["e3"][0])}
    assert {each.arm for each in found.values()} == {"grpo (recorded)"}
    shares = [
        run.problems.query("rollout_step == 24 and name == 't1'")[["correct", "n"]].sum()
        for run in arms["grpo"]
    ]
    expected = [each["correct"] / each["n"] for each in shares]
    assert found["t1"].by_seed(1).tolist() == pytest.approx(expected)
    one = OmegaConf.create({"control": str(sweep / "seed-2_experiment-grpo")})
    (t1,) = [each for each in control_evaluations(one, arms["e3"][0]) if each.name == "t1"]
    assert t1.by_seed(1).tolist() == pytest.approx(expected[1:])
    for nothing in (None, str(tmp_path / "absent")):
        assert control_evaluations(OmegaConf.create({"control": nothing}), arms["e3"][0]) == []


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("policy=random", "policy.path=embedded where this run has random"),
        ("reward=last_number", "reward.answer_format=integer_box where this run has last_number"),
        ("max_new_tokens=7", "where this run has 7"),
    ],
)
def test_a_control_that_was_judged_or_started_otherwise_is_not_compared(
    override: str, reason: str
) -> None:
    control = f"control={ROOT / 'experiments' / 'carries_core' / 'control'}"
    assert unlike_control(composed("experiment=e3", control)) is None
    assert unlike_control(composed("experiment=e3", control, "reward.deadline_s=9")) is None
    found = unlike_control(composed("experiment=e3", control, override))
    assert found is not None
    assert found.startswith(f"not compared with the {control.replace('=', ' in ')}, which has ")
    assert reason in found
    assert unlike_control(composed("experiment=e3", "control=null", override)) is None


def test_a_control_that_records_no_policy_is_not_compared() -> None:
    folder = ROOT / "experiments" / "parity" / "runs"
    found = unlike_control(composed("experiment=grpo", f"control={folder}"))
    assert (
        found == f"not compared with the control in {folder}, which does not record "
        "max_new_tokens, policy, reward"
    )


def test_a_control_of_several_arms_is_refused_before_anything_is_done(arms: Arms) -> None:
    cfg = OmegaConf.create({"control": str(arms["grpo"][0].path.parent)})
    with pytest.raises(ConfigurationError, match="has runs of e3, grpo, ts_an: give the folder of"):
        check_control(cfg)


def test_a_control_whose_reward_was_edited_since_is_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def score(completion, answer):\n    return 0.0\n")
    own = ("reward=function", f"reward.path={file}:score", f"control={tmp_path / 'control'}")
    cfg = composed(*own, f"paths.run_dir={tmp_path / 'control'}", "logger=ledger_only")
    write_provenance(cfg, tmp_path / "control", None)
    (tmp_path / "control" / "metrics.jsonl").touch()
    assert unlike_control(cfg) is None
    file.write_text("def score(completion, answer):\n    return 1.0\n")
    found = unlike_control(cfg)
    assert found is not None
    assert "which has reward.code=" in found


@pytest.mark.parametrize("given", ["", []])
def test_a_control_that_is_given_without_a_value_is_an_error(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^control= is empty"):
        check_control(OmegaConf.create({"control": given}))


def test_nothing_but_a_copy_that_was_cut_short_is_replaced(arms: Arms, tmp_path: Path) -> None:
    run = arms["grpo"][0]
    folder = tmp_path / run.path.name
    folder.mkdir()
    for name in ("config.yaml", "metrics.jsonl.xz", ".validation.jsonl.xz.tmp"):
        (folder / name).touch()
    check_recorded([run], tmp_path)
    (folder / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="holds checkpoints, which a copy would replace: rename"):
        check_recorded([run], tmp_path)


def test_a_run_is_not_recorded_over_itself(arms: Arms) -> None:
    run = arms["grpo"][0]
    with pytest.raises(ValueError, match="is the run itself, which its light copy would replace"):
        check_recorded([run], run.path.parent)


def test_what_is_recorded_already_is_neither_copied_nor_sampled_again(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    assert len(copy_new_runs(runs_of(arms), tmp_path)) == 6
    record.add_evaluations(arms, "grpo", tmp_path, Sampling(32))
    sampled.clear()
    assert copy_new_runs(runs_of(arms), tmp_path) == []
    record.add_evaluations(arms, "grpo", tmp_path, Sampling(32))
    assert sampled == []


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def another(run: Run, folder: Path, **settings: object) -> Path:
    """A run in a folder of the same name, in another sweep."""
    shutil.copytree(run.path, folder / run.path.name)
    config = OmegaConf.merge(OmegaConf.load(run.path / "config.yaml"), settings)
    OmegaConf.save(config, folder / run.path.name / "config.yaml")
    return folder


def test_another_run_with_the_name_of_a_recorded_one_is_refused_before_anything_is_written(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    run, out = arms["grpo"][0], tmp_path / "out"
    record.record_runs(run.path.parent, out, "grpo", Sampling(0))
    before = files_of(out)
    other = another(run, tmp_path / "other", seed=101)
    another(arms["grpo"][1], tmp_path / "other" / "more", seed=102)
    with pytest.raises(ValueError, match=r"of another run than .*other") as caught:
        record.record_runs(other, out, "grpo", Sampling(32), keep_control=True)
    assert f"{out / 'runs' / run.path.name} is recorded of another run" in str(caught.value)
    assert "seed: 1 there, 101 in the run\nrecord these runs into another OUT" in str(caught.value)
    assert files_of(out) == before
    assert sampled == []
    record.record_runs(other, tmp_path / "out2", "grpo", Sampling(0))
    assert [run.seed for run in load_runs(tmp_path / "out2")] == [101, 102]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"correct": [0] * 30}, "evaluation t1 of step 24: other counts there than in the run"),
        ({"rollout_step": 32}, "last validation: step 24 there, step 32 in the run"),
    ],
)
def test_equal_settings_with_another_last_validation_are_another_run(
    change: dict[str, object], told: str, arms: Arms, tmp_path: Path
) -> None:
    run = arms["grpo"][0]
    copy_new_runs([run], tmp_path / "out")
    file = another(run, tmp_path / "again") / run.path.name / "validation.jsonl"
    rows = [
        row | change if (row["rollout_step"], row["name"]) == (24, "t1") else row
        for row in read_rows(file)
    ]
    check_recorded(load_runs(tmp_path / "again"), tmp_path / "out")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=told):
        check_recorded(load_runs(tmp_path / "again"), tmp_path / "out")


@pytest.mark.parametrize(
    "extent", [WHOLE, Extent(prompts=False, metrics=("cost/*",)), Extent(last=True)]
)
def test_evaluations_are_added_to_copies_that_are_lighter_than_their_runs(
    extent: Extent,
    arms: Arms,
    tmp_path: Path,
    sampled: list[tuple[str, int, str, bool]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = arms["grpo"][0].path.parent
    record.record_runs(source, tmp_path / "out", "grpo", Sampling(0), extent, archive=True)
    moved = shutil.copytree(source, tmp_path / "moved")
    for _ in range(2):
        record.record_runs(moved, tmp_path / "out", "grpo", Sampling(32), extent)
    assert capsys.readouterr().out.count("6 finished runs, 0 of them new") == 2
    copies = load_runs(tmp_path / "out" / "runs")
    assert all("t1" in set(run.evaluations.query("rollout_step == 0")["name"]) for run in copies)
    record.record_runs(tmp_path / "out" / "runs", tmp_path / "out", "grpo", Sampling(0))


def test_where_the_files_of_a_run_lay_makes_no_other_run(arms: Arms, tmp_path: Path) -> None:
    run = arms["grpo"][0]
    for name, root in (("a", "/mine/e3rl"), ("b", "/other/place")):
        folder = f"{root}/sweeps/{name}/seed-1"
        paths = {"root": root, "sweeps": f"{root}/sweeps", "run_dir": folder}
        callbacks = {"checkpoint": {"folder": f"{folder}/checkpoints"}}
        logger = {"id": name}
        another(run, tmp_path / name, paths=paths, callbacks=callbacks, logger=logger)
    first, second = (load_runs(tmp_path / name) for name in ("a", "b"))
    copy_new_runs(first, tmp_path / "out")
    check_recorded([*first, *second], tmp_path / "out")


def test_a_kept_policy_of_an_unknown_run_is_refused_before_anything_is_written(
    arms: Arms, tmp_path: Path
) -> None:
    run = arms["grpo"][0]
    (tmp_path / "policies" / run.path.name).mkdir(parents=True)
    with pytest.raises(ValueError, match="no run of its name is recorded, so whose policy it is"):
        record.record_runs(run.path.parent, tmp_path, "grpo", Sampling(0), keep_policies=True)
    assert files_of(tmp_path) == {}


def test_without_rollouts_runs_are_copied_and_nothing_is_sampled(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    source = arms["grpo"][0].path.parent
    record.record_runs(source, tmp_path, "grpo", Sampling(0))
    assert len(list((tmp_path / "runs").iterdir())) == 6
    assert sampled == []
    record.record_runs(source, tmp_path, "grpo", Sampling(32))
    assert sampled != []


def test_what_each_prompt_got_may_be_left_out(arms: Arms, tmp_path: Path) -> None:
    source = arms["grpo"][0].path.parent
    for prompts, out in ((True, "with"), (False, "without")):
        record.record_runs(source, tmp_path / out, "grpo", Sampling(0), Extent(prompts))
    kept = [len(list((tmp_path / out).rglob("prompts.jsonl*"))) for out in ("with", "without")]
    assert kept[0] > 0
    assert kept[1] == 0
    assert len(list((tmp_path / "without").rglob("metrics.jsonl*"))) == 6


def test_a_run_whose_weights_are_gone_is_not_sampled(
    arms: Arms,
    tmp_path: Path,
    sampled: list[tuple[str, int, str, bool]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy_new_runs(runs_of(arms), tmp_path / "recorded")
    copies = group_by_arm(load_runs(tmp_path / "recorded"))
    record.add_evaluations(copies, "grpo", tmp_path / "recorded", Sampling(32))
    assert [call for call in sampled if call[3]] == []
    printed = capsys.readouterr().out
    assert "seed-1_experiment-e3: not sampled, its weights are gone: live" in printed


def test_a_run_that_starts_from_another_policy_does_not_get_the_start_of_the_control(
    arms: Arms,
    tmp_path: Path,
    sampled: list[tuple[str, int, str, bool]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = dataclasses.replace(
        arms["e3"][0], config=arms["e3"][0].config | {"policy": {"path": "x"}}
    )
    mixed = {**arms, "e3": [other, *arms["e3"][1:]]}
    copy_new_runs(runs_of(mixed), tmp_path)
    record.add_evaluations(mixed, "grpo", tmp_path, Sampling(32))
    assert record.find_recorded(tmp_path / other.path.name, 0, "t1", 32) is None
    assert record.find_recorded(tmp_path / arms["e3"][1].path.name, 0, "t1", 32) is not None
    assert f"{other.path.name}: starts or is validated otherwise" in capsys.readouterr().out


def test_a_run_that_only_trains_otherwise_gets_the_start_of_the_control(
    arms: Arms, tmp_path: Path, sampled: list[tuple[str, int, str, bool]]
) -> None:
    policy = {"path": "embedded"}
    trained = {"head": {"mode": "chunked"}, "lora": None, "gradient_checkpointing": True}
    mixed = {
        arm: [replace(run, config=run.config | {"policy": policy | settings}) for run in arms[arm]]
        for arm, settings in (("grpo", {}), ("e3", trained))
    }
    copy_new_runs(runs_of(mixed), tmp_path)
    record.add_evaluations(mixed, "grpo", tmp_path, Sampling(32))
    for run in runs_of(mixed):
        assert record.find_recorded(tmp_path / run.path.name, 0, "t1", 32) is not None


def test_weights_of_an_earlier_step_are_not_taken_for_the_last_ones(
    arms: Arms, tmp_path: Path
) -> None:
    run = dataclasses.replace(arms["e3"][0], path=tmp_path)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for step in (16, 24):
        file = folder / f"step-{step:06d}.ckpt"
        file.write_bytes(b"weights")
        checksum_file(file).write_text(sha256(file))
    assert last_weights(run) == folder / "step-000024.ckpt"
    (folder / "step-000024.ckpt").write_bytes(b"altered")
    with (
        pytest.warns(UserWarning, match="passing over"),
        pytest.raises(DamagedCheckpointError, match="last at step 24"),
    ):
        last_weights(run)


def test_a_file_in_place_of_the_folder_is_named_before_runs_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    monkeypatch.setattr(sys, "argv", ["record", str(tmp_path / "nowhere"), str(file / "out")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"error: {file}/out: {file} is a file and no folder" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:passing over checkpoint")
def test_a_damaged_checkpoint_is_told_without_a_traceback(
    arms: Arms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(record, "check_parts", lambda *_: None)
    source = arms["grpo"][0].path.parent  # its checkpoints have no checksums
    asked = [str(source), str(tmp_path / "out"), "--n", "0", "--keep-policies"]
    monkeypatch.setattr(sys, "argv", ["record", *asked])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "error: no sound checkpoint at " in capsys.readouterr().err


def test_copies_name_no_folders_of_the_machine(arms: Arms, tmp_path: Path) -> None:
    run = arms["grpo"][0]
    paths = {"root": "/mine/e3rl", "sweeps": "/scratch/sweeps"}
    text = "control: /mine/e3rl/experiments/control\nrun_dir: /scratch/sweeps/mine/seed-1\n"
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(config + text)
    copy_run(replace(run, config={**run.config, "paths": paths}), tmp_path / "x")
    (run.path / "config.yaml").write_text(config)
    assert (tmp_path / "x" / "config.yaml").read_text() == config + (
        "control: ./experiments/control\nrun_dir: ./sweeps/mine/seed-1\n"
    )


def test_copies_hold_budgets_where_they_differ_or_once_and_no_paths(
    arms: Arms, tmp_path: Path
) -> None:
    copy_new_runs(runs_of(arms), tmp_path)
    assert {file.name for file in tmp_path.rglob("*.jsonl*")} == {
        *("metrics.jsonl.xz", "prompts.jsonl.xz", "validation.jsonl.xz")
    }
    assert find_ledger(tmp_path / "seed-2_experiment-e3" / "prompts.jsonl")
    assert find_ledger(tmp_path / "seed-1_experiment-grpo" / "prompts.jsonl")
    assert not find_ledger(tmp_path / "seed-2_experiment-grpo" / "prompts.jsonl")
    rows = read_rows(tmp_path / "seed-2_experiment-e3" / "metrics.jsonl")
    number = rows[-2]["policy/entropy"]
    assert number == float(f"{number:.6g}")


def test_copies_are_kept_as_one_archive_where_asked_and_from_then_on(
    arms: Arms, tmp_path: Path
) -> None:
    sweep, out = arms["grpo"][0].path.parent, tmp_path / "study"
    record.record_runs(sweep, out, "grpo", Sampling(0), archive=True)
    names = {path.name for path in (out / "runs").glob("seed-*")}
    assert names == {run.path.name for run in runs_of(arms)}
    shutil.rmtree(out / "runs")
    archived = [run.path.name for run in load_runs(out / "runs")]
    assert set(archived) == names
    before = (out / "runs.tar.xz").read_bytes()
    shutil.rmtree(out / "runs")
    record.record_runs(sweep, out, "grpo", Sampling(0))
    assert (out / "runs.tar.xz").read_bytes() == before


def test_metrics_of_training_may_be_kept_by_pattern(arms: Arms, tmp_path: Path) -> None:
    some = Extent(metrics=("cost/*", "policy/entropy"))
    copy_new_runs(runs_of(arms), tmp_path, some)
    for run, whole in zip(runs_of(group_by_arm(load_runs(tmp_path))), runs_of(arms), strict=True):
        costs = {each for each in whole.train.columns if each.startswith("cost/")}
        assert set(run.train.columns) == {*costs, "policy/entropy", "rollout_step", "epoch"}
        assert len(run.train) == len(whole.train)
        assert len(run.evaluations) == len(whole.evaluations)
        rows = [
            [row for row in read_rows(each.path / "metrics.jsonl") if row["kind"] == "validation"]
            for each in (run, whole)
        ]
        assert rows[0] == [shorten_row(row) for row in rows[1]]


def test_a_pattern_of_no_metric_is_refused_before_anything_is_copied(
    arms: Arms, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="no metric of training fits 'policy/entropi'; near it: "):
        copy_new_runs(runs_of(arms), tmp_path, Extent(metrics=("policy/entropi",)))
    assert not list(tmp_path.iterdir())


def test_rows_keep_no_clock_of_parts_of_a_step() -> None:
    row = {"kind": "train", "time/step_s": 1.23456789, "time/sync_s": 1.0, "phase/rest_s": 1.0}
    row |= {"speed/mfu": 0.5, "cost/seconds": 9.87654, "resources/cpu_s": 2.0}
    assert shorten_row(row) == {
        **{"kind": "train", "time/step_s": 1.235},
        **{"cost/seconds": 9.877, "resources/cpu_s": 2.0},
    }
