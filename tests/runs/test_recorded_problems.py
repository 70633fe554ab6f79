"""What `e3rl record` samples, and what it cannot record, told before anything is copied."""

import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from compositions import composed
from e3rl.analysis.sources.runs import Run
from e3rl.config.composition import to_plain_dict
from e3rl.data.carries import carry_problems
from e3rl.policy.policy import Policy
from e3rl.record import main
from e3rl.runs import recording
from e3rl.runs.extent import WHOLE
from e3rl.runs.light_copies import hide_folder
from e3rl.runs.recording import Sampling
from e3rl.runs.resampling import rebuild, validation_problems

ROOT = Path(__file__).parents[2]
MakeRun = Callable[..., Run]
EMPTY = pd.DataFrame()
T1 = {"name": "t1", "rollout_step": 8, "entropy": 0.5, "temperature": 1.0}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    def make(folder: str, config: dict[str, Any], ids: tuple[str, ...] = ("p",)) -> Run:
        problems = pd.DataFrame(
            [{"name": "t1", "rollout_step": 8, "problem_id": i, "n": 4, "correct": 2} for i in ids]
        )
        evaluations = pd.DataFrame([T1])
        given = (tmp_path / folder, "grpo", 1, config, EMPTY, EMPTY, evaluations, problems)
        return Run(*given, EMPTY, {})

    return make


def overlapping(tmp_path: Path) -> dict[str, Any]:
    """A configuration whose second validation problem is trained on, and is dropped."""
    for name, sums in (("train", (3, 4, 5)), ("test", (6, 4, 7))):
        rows = [{"prompt": f"1+{x}=?", "answer": str(1 + x)} for x in sums]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [
        f"data.{n}.path={tmp_path}/{f}.jsonl"
        for n, f in (("train", "train"), ("validation", "test"))
    ]
    given = ("data=problem_files", "data.on_overlap=drop", "prompts_per_step=2", *files)
    return to_plain_dict(composed("logger=ledger_only", f"paths.run_dir={tmp_path}/run", *given))


@pytest.mark.filterwarnings("ignore:.*also trained on")
def test_what_is_sampled_is_what_the_run_was_validated_on(
    tmp_path: Path, make_run: MakeRun, policy: Policy
) -> None:
    config = overlapping(tmp_path)
    run = make_run("seed-1", config, ("test:0", "test:2"))
    found = validation_problems(run, policy)
    assert [problem.id for problem in found] == ["test:0", "test:2"]
    run = make_run("seed-1", config, ("test:0", "test:1", "test:2"))
    with pytest.raises(ValueError, match="validated on 3 problems, and its settings now give 2"):
        validation_problems(run, policy)


@pytest.mark.filterwarnings("ignore:.*also trained on")
@pytest.mark.parametrize("gone", ["a model", "problems", "a reward"])
def test_what_a_run_was_trained_with_and_is_gone_is_told_before_anything_is_written(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = overlapping(tmp_path) | {"name": "grpo", "seed": 1}
    recorded_runs = runpy.run_path(str(ROOT / "tests" / "analysis" / "recorded_runs.py"))
    run = recorded_runs["write_run"](tmp_path / "sweep" / "grpo-1", "grpo", 1)
    if gone == "a model":
        config["policy"]["path"] = str(tmp_path / "gone")
    if gone == "problems":
        (tmp_path / "test.jsonl").unlink()
    if gone == "a reward":
        reward = {"_target_": "e3rl.rewards.functions.build_function_rewards"}
        config["reward"] = reward | {"path": f"{tmp_path}/gone.py:score"}
    (run / "config.yaml").write_text(json.dumps(config))
    asked = [str(tmp_path / "sweep"), str(tmp_path / "out"), "--match", "t1"]
    monkeypatch.setattr(sys, "argv", ["record", *asked])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert f"error: {run} was trained with what is gone or has changed: bring it back, or" in told
    assert str(tmp_path / {"problems": "test.jsonl"}.get(gone, "gone")) in told
    assert not (tmp_path / "out" / "runs").exists()
    monkeypatch.setattr(sys, "argv", ["record", *asked, "--n", "0"])
    main()
    assert (tmp_path / "out" / "runs" / "grpo-1" / "summary.json").is_file()


def test_two_runs_whose_folders_have_one_name_are_refused(make_run: MakeRun) -> None:
    first, second = make_run("core/seed-1", {}), make_run("other/seed-1", {})
    recording.check_names([first, make_run("core/seed-2", {})])
    told = (
        r"core/seed-1 and .*other/seed-1 have one name.* record each sweep into an OUT of its own"
    )
    with pytest.raises(ValueError, match=told):
        recording.check_names([first, second])


def test_too_few_rollouts_to_match_an_entropy_with_are_refused(make_run: MakeRun) -> None:
    arms = {"grpo": [make_run("grpo-1", {})], "hot": [make_run("hot-1", {})]}
    with pytest.raises(ValueError, match=r"n=16: a control at the entropy .* 32 rollouts"):
        recording.check_rollouts(arms, "grpo", Sampling(16, matched=("t1",)))
    for fits in (Sampling(32, matched=("t1",)), Sampling(16, matched=()), Sampling(0)):
        recording.check_rollouts(arms, "grpo", fits)


def test_another_reward_is_another_start(make_run: MakeRun) -> None:
    box, hashes = ({"reward": {"answer_format": name}} for name in ("integer_box", "hashes"))
    assert recording.start_of(make_run("a", box)) != recording.start_of(make_run("b", hashes))
    slower = {"reward": box["reward"] | {"workers": 1}}
    assert recording.start_of(make_run("a", box)) == recording.start_of(make_run("b", slower))


def test_fresh_weights_are_another_start_for_every_seed(make_run: MakeRun) -> None:
    for config, alike in (({"path": "embedded"}, True), ({"path": "random"}, False)):
        runs = [make_run(f"seed-{seed}", {"policy": config}) for seed in (1, 2)]
        starts = [recording.start_of(replace(run, seed=s)) for s, run in enumerate(runs)]
        assert (starts[0] == starts[1]) == alike


def test_an_untrained_policy_is_made_again_as_its_run_began(
    make_run: MakeRun, tmp_path: Path
) -> None:
    cfg = composed("logger=ledger_only", f"paths.run_dir={tmp_path}/run", "policy=random")
    run = make_run("seed-1", to_plain_dict(cfg))
    before = torch.get_rng_state()
    weights = [rebuild(each, "policy").state_dict() for each in (run, run, replace(run, seed=2))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(run.seed)
    started = Policy("random").state_dict()
    same = [all(torch.equal(x, started[name]) for name, x in w.items()) for w in weights]
    assert same == [True, True, False]


def test_validations_of_the_first_batches_are_of_their_problems(
    make_run: MakeRun, tmp_path: Path, policy: Policy
) -> None:
    cut = ("data.validation_prompts_per_batch=4", "+trainer.limit_val_batches=2")
    cfg = composed("logger=ledger_only", f"paths.run_dir={tmp_path}/run", *cut)
    whole = [problem.id for problem in carry_problems("validation", 256)]
    found = validation_problems(make_run("seed-1", to_plain_dict(cfg), tuple(whole[:8])), policy)
    assert [problem.id for problem in found] == whole[:8]


def test_what_was_recorded_without_prompts_is_recorded_again_without_them(
    make_run: MakeRun,
) -> None:
    assert WHOLE.ledgers_of(make_run("seed-1", {})) == ("metrics", "validation")


def test_a_folder_is_hidden_where_paths_begin_with_it_alone() -> None:
    text = (
        "path: hf://datasets/a/b\nroot: /data\nruns: '/data/runs'\n- x=/data/y\nz: /data2/data/q\n"
    )
    hidden = "path: hf://datasets/a/b\nroot: .\nruns: './runs'\n- x=./y\nz: /data2/data/q\n"
    assert hide_folder(text, "/data") == hidden
