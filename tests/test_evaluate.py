"""The command that evaluates a checkpoint or a model."""

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compositions import composed
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import checksum_file
from e3rl.config.composition import ConfigurationError
from e3rl.evaluate import evaluate, main
from e3rl.evaluation import sampling as evaluating
from e3rl.evaluation.log import PROBLEMS, claim_log
from e3rl.evaluation.settings import check_problems
from e3rl.evaluation.targets import Model, check_overrides, find_models, folder_name
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.process.output import NoPlaceError
from e3rl.rewards.pool import RewardPool
from server_stand_in import stand_ins

pytestmark = pytest.mark.end_to_end

SMALL = ("n=2", "ks=[1,2]", "max_new_tokens=20", "prompts_per_batch=4", "engine=transformers")
Run = Callable[..., float]


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command's function in this process, results in `tmp_path/out`."""
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)  # integers need no worker

    def run(*overrides: str) -> float:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        out = f"out={tmp_path / 'out'}"
        own = [] if "problems=file" in overrides else ["problems.size=4"]
        return evaluate(composed(*SMALL, out, *own, *overrides, root="evaluate"))

    return run


@pytest.fixture
def run_folder(tmp_path: Path, policy: Policy) -> Path:
    """A run with two checkpoints: the warm start, and one that ends every answer at once."""
    folder = tmp_path / "run"
    mute = copy.deepcopy(policy)
    head = mute.model.get_output_embeddings().weight
    with torch.no_grad():
        head.zero_()
        head[policy.eos_id] = 0.0
    for step, each in ((4, policy), (8, mute)):
        state = {f"policy.{name}": value for name, value in each.state_dict().items()}
        path = folder / "checkpoints" / f"step-{step:06d}.ckpt"
        AtomicCheckpointIO().save_checkpoint({"state_dict": state}, path)
    node = {"policy": {"_target_": "e3rl.policy.policy.Policy", "path": "embedded"}}
    (folder / "config.yaml").write_text(json.dumps(node))
    return folder


def rows(tmp_path: Path) -> list[dict[str, Any]]:
    text = (tmp_path / "out" / "validation.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_counts_summary_and_table_are_written(
    evaluated: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated("temperatures=[1.0,0]", "n=3")
    t1, greedy = rows(tmp_path)
    assert (t1["name"], t1["n"], greedy["name"], greedy["n"]) == ("t1", [3] * 4, "greedy", [1] * 4)
    assert (t1["rollout_step"], t1["temperature"], greedy["temperature"]) == (0, 1.0, 0.0)
    assert len(set(t1["problem_id"])) == 4
    assert result == pytest.approx(sum(t1["correct"]) / 12)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [row["evaluation"] for row in summary] == ["t1", "greedy"]
    assert summary[0]["pass@1"] == pytest.approx(result)
    assert summary[0]["pass@2"] >= summary[0]["pass@1"]
    assert summary[1]["pass@2"] is None  # greedy has one rollout
    printed = capsys.readouterr().out
    assert "pass@1 %" in printed
    assert str(tmp_path / "out" / "validation.jsonl") in printed


def test_a_top_p_and_a_top_k_may_be_asked_for(evaluated: Run, tmp_path: Path) -> None:
    evaluated("temperatures=[1.0,0]", "top_p=0.5", "top_k=9")
    cut, greedy = rows(tmp_path)
    assert (cut["name"], cut["top_p"], cut["top_k"]) == ("t1_p0.5_k9", 0.5, 9)
    assert (greedy["name"], greedy["top_p"], greedy["top_k"]) == ("greedy", 1.0, 0)
    evaluated()
    (whole,) = rows(tmp_path)
    assert cut["entropy_sum"] / cut["tokens"] < whole["entropy_sum"] / whole["tokens"]
    with pytest.raises(ConfigurationError, match=r"t1_p1\.5: top_p=1\.5, use more than 0"):
        evaluated("top_p=1.5")


def test_an_entropy_may_be_asked_for(evaluated: Run, tmp_path: Path) -> None:
    evaluated("temperatures=[]", "entropies=[0.6]")
    (row,) = rows(tmp_path)
    assert row["name"] == "h0.6"
    assert row["temperature"] > 1.05


def test_the_newest_checkpoint_of_a_run_is_evaluated_with_its_own_weights(
    evaluated: Run, run_folder: Path, tmp_path: Path, policy: Policy
) -> None:
    for given in (run_folder, run_folder / "checkpoints"):
        evaluated(f"ckpt_path={given}")
        (row,) = rows(tmp_path)
        assert row["rollout_step"] == 8
        # All tokens are equally likely: ln V nats each.
        uniform = torch.log(torch.tensor(float(policy.vocabulary_size)))
        assert row["entropy_sum"] / row["tokens"] == pytest.approx(float(uniform), rel=1e-4)
    evaluated(f"ckpt_path={run_folder}/checkpoints/step-000004.ckpt")
    (row,) = rows(tmp_path)
    assert row["rollout_step"] == 4
    assert row["entropy_sum"] / row["tokens"] < 1.0
    evaluated("policy=embedded_arithmetic")
    # The warm start itself.
    assert rows(tmp_path) == [{**row, "rollout_step": 0, "model": "embedded_arithmetic"}]


@pytest.mark.parametrize(
    "settings",
    [
        ["policy=pretrained", "policy.path=MODEL"],
        ["+policy.dtype=bfloat16"],
        ["policy/head=chunked"],
    ],
)
@pytest.mark.parametrize("run", ["ckpt_path={}", "models=[{}]", "models={{a: {0}, b: {0}}}"])
def test_settings_of_the_policy_beside_runs_alone_are_refused_by_name(
    settings: list[str],
    run: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [run.format(run_folder), *settings, f"hydra.run.dir={tmp_path}/hydra"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    monkeypatch.setattr(evaluating, "sample_unfinished", lambda *_, **__: pytest.fail("sampled"))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"error: {', '.join(settings)}: a run is evaluated with" in capsys.readouterr().err


def test_settings_of_the_policy_are_those_of_models_beside_runs(run_folder: Path) -> None:
    cfg = composed(f"models={{a: {run_folder}, b: embedded}}", "out=x", root="evaluate")
    check_overrides(["+policy.dtype=bfloat16"], find_models(cfg))
    with pytest.raises(ConfigurationError, match=r"^\+policy\.dtype=bfloat16: .*e3rl export"):
        check_overrides(["n=2", "+policy.dtype=bfloat16"], find_models(cfg)[:1])


def test_what_a_run_was_trained_with_and_is_another_here_is_told_before_it_is_sampled(
    evaluated: Run, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((run_folder / "config.yaml").read_text()) | {"max_new_tokens": 1024}
    (run_folder / "config.yaml").write_text(json.dumps(config))
    evaluated(f"ckpt_path={run_folder}")
    told = capsys.readouterr().out
    caution = f"caution: max_new_tokens=20, and it was 1024 in the training of {run_folder}:"
    assert told.index(caution) < told.index("step-000008 on ")


@pytest.mark.parametrize("given", ["problems=gsm8k", "++problems.size=4"])
def test_problems_beside_sets_are_refused_by_name(
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [given, "sets=[arithmetic]", f"hydra.run.dir={tmp_path}/hydra"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    monkeypatch.setattr(evaluating, "sample_unfinished", lambda *_, **__: pytest.fail("sampled"))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"error: {given} beside sets: these are sampled in place of" in capsys.readouterr().err


def test_sets_with_settings_of_their_own_are_no_problems_beside_sets() -> None:
    given = ("+problems@sets.few=arithmetic", "sets.few.size=2")
    check_problems(composed("out=x", *given, root="evaluate"), given)
    check_problems(composed("out=x", "problems.size=2", root="evaluate"), ["problems.size=2"])


def test_a_folder_that_another_process_writes_into_is_named(evaluated: Run, tmp_path: Path) -> None:
    first = evaluated()
    again = composed(*SMALL, f"out={tmp_path / 'out'}", "problems.size=4", root="evaluate")
    (log,) = (tmp_path / "out").rglob(PROBLEMS)
    lock = claim_log(log.parent)
    with pytest.raises(ConfigurationError, match=r"another process is writing an evaluation into"):
        evaluate(again)
    lock.release()
    assert evaluate(again) == first


def test_a_damaged_checkpoint_is_named_and_passed_over(
    evaluated: Run, run_folder: Path, tmp_path: Path
) -> None:
    (run_folder / "checkpoints" / "step-000008.ckpt").write_bytes(b"cut short")
    with pytest.warns(UserWarning, match=r"passing over checkpoint .*step-000008.ckpt"):
        evaluated(f"ckpt_path={run_folder}")
    assert rows(tmp_path)[0]["rollout_step"] == 4


def test_a_checkpoint_under_another_name_counts_no_steps(
    evaluated: Run, run_folder: Path, tmp_path: Path
) -> None:
    best = run_folder / "checkpoints" / "best.ckpt"
    (run_folder / "checkpoints" / "step-000004.ckpt").rename(best)
    checksum_file(run_folder / "checkpoints" / "step-000004.ckpt").rename(checksum_file(best))
    evaluated(f"ckpt_path={best}")
    assert rows(tmp_path)[0]["rollout_step"] == 0


def test_any_model_on_any_problem_file(evaluated: Run, tmp_path: Path) -> None:
    problems = tmp_path / "mine.jsonl"
    lines = [{"id": f"m{i}", "prompt": f"{i}+1=?", "answer": str(i + 1)} for i in range(3)]
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluated(
        "policy=pretrained",
        f"policy.path={embedded_folder()}",
        *("policy.dtype=float32", "policy.gradient_checkpointing=false"),
        *("problems=file", f"problems.path={problems}"),
    )
    (row,) = rows(tmp_path)
    assert row["problem_id"] == ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "no checkpoint at"),
        (lambda run: (run / "config.yaml").unlink(), "config.yaml is missing"),
        (
            lambda run: [p.write_bytes(b"x") for p in run.glob("checkpoints/*.ckpt")],
            "no sound checkpoint at",
        ),
    ],
    ids=["absent", "no configuration", "all damaged"],
)
@pytest.mark.filterwarnings("ignore:passing over checkpoint")
def test_what_cannot_be_evaluated_ends_with_a_plain_message(
    prepare: Callable[[Path], Any],
    message: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(run_folder)
    given = tmp_path / "elsewhere" if message == "no checkpoint at" else run_folder
    arguments = [f"ckpt_path={given}", f"hydra.run.dir={tmp_path}/hydra"]
    monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
    monkeypatch.setattr(evaluating, "sample_unfinished", lambda *_, **__: pytest.fail("sampled"))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"error: {message}" in capsys.readouterr().err.replace(f"{given}/", "")


def test_a_problem_file_that_is_not_there_is_named(evaluated: Run) -> None:
    with pytest.raises(ConfigurationError, match=r"problems: .*no-such.jsonl"):
        evaluated("problems=file", "problems.path=no-such.jsonl")


def test_prompts_are_checked_before_anything_is_sampled(
    evaluated: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "sample_unfinished", lambda *_, **__: pytest.fail("sampled"))
    monkeypatch.setattr(Model, "policy", lambda _: pytest.fail("loaded"))
    prompts = ["1+1=?", "What is 6 times 7?", f"{'1+' * 120}1=?"]  # the last one of 243 tokens
    lines = [json.dumps({"prompt": each, "answer": "42"}) + "\n" for each in prompts]
    (tmp_path / "mine.jsonl").write_text("".join(lines))
    with pytest.raises(ConfigurationError) as error:  # 256 positions, 20 of them to be sampled
        evaluated("models=[embedded]", f"sets=[{tmp_path}/mine.jsonl]")
    told = str(error.value)
    assert "model embedded, problems mine: 2 of 3 rows are bad" in told
    assert "row 1: unknown tokens:" in told
    assert "take a policy that can read it" in told
    assert (
        "row 2: over-long prompt: 'mine:2' has 243 tokens, 236 are allowed; shorten it or lower"
        in told
    )
    assert "on_bad_row" not in told


@pytest.mark.slow
def test_the_command_as_it_is_typed(run_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e3rl.evaluate", f"ckpt_path={run_folder}"]
    done = subprocess.run(
        [*command, *SMALL, "problems.size=4", f"hydra.run.dir={tmp_path}/out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step-000008" in done.stdout
    assert rows(tmp_path)[0]["n"] == [2] * 4


@pytest.mark.slow  # three processes that load torch
def test_processes_find_together_what_one_finds(
    evaluated: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = evaluated("temperatures=[1.0,0]", "problems.size=7")
    expected = rows(tmp_path)
    assert evaluated("temperatures=[1.0,0]", "problems.size=7", "processes=2") == alone
    for found, row in zip(rows(tmp_path), expected, strict=True):
        for name in ("entropy_sum", "entropy_error"):  # sums depend on batches in their last digits
            assert (found.pop(name) or 0) == pytest.approx(row.pop(name) or 0, rel=1e-4)
        assert found == row
    assert "7 of them finished before" in capsys.readouterr().out


def test_problems_are_shared_out_over_servers(
    evaluated: Run, policy: Policy, tmp_path: Path
) -> None:
    """How several devices evaluate: one process asks all of them, and counts are the same."""

    def counts(*overrides: str) -> list[list[int]]:
        evaluated(*overrides)
        (row,) = read_rows(tmp_path / "out" / "validation.jsonl")
        return [row["correct"], row["tokens"], row["truncated"]]

    models = ("policy=embedded", "policy=random")  # one after the other on the same servers
    alone = [counts(model) for model in models]
    assert alone[0] != alone[1]
    with stand_ins(policy, 2) as servers:
        urls = f"engine.urls=[{','.join(server.url for server in servers)}]"
        assert [counts(model, "engine=vllm_server", urls) for model in models] == alone
        assert min(server.calls["/inference/v1/generate"] for server in servers) > 0


def test_a_file_in_place_of_the_folder_is_named_before_a_model_is_looked_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    cfg = composed(*SMALL, f"out={file}/out", "models=[nowhere]", root="evaluate")
    with pytest.raises(NoPlaceError, match=f"^out={file}/out: {file} is a file and no"):
        evaluate(cfg)


def test_results_of_an_earlier_command_that_are_not_written_anew_are_removed(
    evaluated: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated()
    out = tmp_path / "out"
    (out / "comparison.csv").write_text("of two models")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the fixture's fresh start
    evaluated()
    assert not (out / "comparison.csv").exists()
    assert (out / "results.csv").exists()
    (out / "config.yaml").touch()
    with pytest.raises(ConfigurationError, match="is a run's folder"):
        evaluated()


@pytest.mark.parametrize("setting", ["ckpt_path=", "models=[]", "sets=[]"])
def test_a_setting_that_is_given_without_a_value_is_an_error(evaluated: Run, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{setting.partition('=')[0]}= is empty"):
        evaluated(setting)


def test_a_model_in_the_folder_above_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(embedded_folder(), tmp_path / "mine")
    (model / "work").mkdir()
    monkeypatch.chdir(model / "work")
    (found,) = find_models(composed(*SMALL, "policy.path=..", root="evaluate"))
    assert found.label == "mine"


@pytest.mark.parametrize("label", ["", ".", ".."])
def test_a_label_that_names_no_folder_is_refused(label: str) -> None:
    with pytest.raises(ConfigurationError, match="can be no folder's name"):
        folder_name(label)
