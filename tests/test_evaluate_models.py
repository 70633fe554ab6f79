"""The command on several models and problem sets, stopped and gone on with."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import compositions
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.config.composition import ConfigurationError
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import TransformersEngine
from e3rl.evaluate import choose_baseline, evaluate
from e3rl.evaluation.targets import Model, find_models, load_problem_sets
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.rewards.pool import RewardPool

pytestmark = pytest.mark.end_to_end

E3_TEST = Path(__file__).parents[2] / "shared" / "data" / "e3_test_sample.jsonl"  # not in git
SMALL = ("n=4", "ks=[1,2,4]", "max_new_tokens=20", "prompts_per_batch=2", "engine=transformers")
Command = Callable[..., float]


def composed(*overrides: str) -> DictConfig:
    return compositions.composed(*SMALL, *overrides, root="evaluate")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two problem sets: one of one digit, and one of two, which is harder."""
    paths = []
    for name, start, size in (("easy", 1, 5), ("hard", 31, 3)):
        lines = [
            {
                "id": f"{name}{i}",
                "prompt": f"{start + i}+{2 + i}=?",
                "answer": str(start + 2 + 2 * i),
            }
            for i in range(size)
        ]
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return paths


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of 8 steps whose policy differs a little from the embedded one."""
    folder, other = tmp_path / "run", Policy()
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(0.9)
    state = {f"policy.{name}": value for name, value in other.state_dict().items()}
    checkpoint = folder / "checkpoints" / "step-000008.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": state}, checkpoint)
    node = {"policy": {"_target_": "e3rl.policy.policy.Policy", "path": "embedded"}}
    (folder / "config.yaml").write_text(json.dumps({"name": "e3", "seed": 1, **node}))
    return folder


@pytest.fixture
def arguments(files: list[Path], run_folder: Path) -> list[str]:
    """Two models on two sets."""
    sets = ",".join(map(str, files))
    return [f"models={{base: embedded, trained: {run_folder}}}", f"sets=[{sets}]"]


@pytest.fixture(autouse=True)
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)  # integers need no worker


class Watched(TransformersEngine):
    """Writes down whose weights it took over, and when it was closed."""

    life: ClassVar[list[str]] = []

    def sync(self, policy: Policy, *others: Any) -> None:
        self.life.append(
            f"{float(policy.model.get_output_embeddings().weight.detach().norm()):.3f}"
        )
        super().sync(policy, *others)

    def close(self) -> None:
        self.life.append("closed")
        super().close()


def test_two_models_on_two_sets_leave_tables_curves_and_completions(
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("e3rl.engines.transformers.TransformersEngine", Watched)
    monkeypatch.setattr(Watched, "life", [])
    out = tmp_path / "out"
    result = evaluate(composed(*arguments, f"out={out}", "latex=true", "table_ks=[2,4]"))
    results = pd.read_csv(out / "results.csv")
    assert list(zip(results["model"], results["set"], strict=True)) == [
        (model, name) for model in ("base", "trained") for name in ("easy", "hard", "mean of sets")
    ]
    assert results["avg@n"][0] == pytest.approx(result)
    assert results["problems"].tolist() == [5, 3, 8] * 2
    for measure in ("avg@n", "pass@2", "pass@4", "maj@2", "maj@4"):
        low, middle, high = (results[f"{measure}{end}"] for end in ("_low", "", "_high"))
        assert ((low <= middle) & (middle <= high)).all()
    assert (results["pass@4"] >= results["maj@4"]).all()
    validations = read_rows(out / "validation.jsonl")
    assert [(v["model"], v["set"], v["rollout_step"]) for v in validations] == [
        *(("base", "easy", 0), ("base", "hard", 0), ("trained", "easy", 8), ("trained", "hard", 8))
    ]
    completions = read_rows(out / "trained" / "hard" / "completions.jsonl")
    assert sum(each["correct"] for each in completions) == sum(validations[3]["correct"])
    assert sum(each["tokens"] for each in completions) == validations[3]["tokens"]
    assert len(completions) == 3 * 4
    comparison = pd.read_csv(out / "comparison.csv")
    assert set(comparison["model"]) == {"trained"}
    assert set(comparison["set"]) == {"easy", "hard", "mean of sets"}
    first = comparison.iloc[0]
    assert first["difference"] == pytest.approx(results["avg@n"][3] - results["avg@n"][0])
    assert [row["set"] for row in json.loads((out / "summary.json").read_text())] == [
        *("easy", "easy", "hard", "hard")
    ]
    assert (out / "pass_at_k.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    for text in (printed, (out / "table.md").read_text(), (out / "table.tex").read_text()):
        assert "mean of sets" in text
        assert "pass@2" in text
        assert "maj@4" in text
    assert "trained on hard: 3 problems x 4 samples" in printed
    first, second = dict.fromkeys(each for each in Watched.life if each != "closed")
    batches = 3 + 2  # of two problems
    assert Watched.life == [*[first] * batches, "closed", *[second] * batches, "closed"]


class Dying(TransformersEngine):
    """Dies where a rollout too many is asked for; counts the problems of its requests."""

    left = 10**9
    asked: ClassVar[list[RolloutRequest]] = []

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Any]:
        type(self).asked = [*type(self).asked, *requests]
        for rollout in super().generate(requests):
            type(self).left -= 1
            if type(self).left < 0:
                raise KeyboardInterrupt
            yield rollout


def figures(out: Path) -> list[dict[str, Any]]:
    """The counts of an evaluation; log-probs depend on the batch in their last digits."""
    return [
        row
        | {
            "entropy_sum": round(row["entropy_sum"], 3),
            "entropy_error": round(row["entropy_error"], 4),
        }
        for row in read_rows(out / "validation.jsonl")
    ]


def same_tables(one: Path, other: Path) -> None:
    for name in ("results.csv", "comparison.csv"):
        pd.testing.assert_frame_equal(pd.read_csv(one / name), pd.read_csv(other / name), rtol=1e-4)


def test_a_stopped_evaluation_goes_on_without_repeating_a_problem(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e3rl.engines.transformers.TransformersEngine", Dying)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    evaluate(composed(*arguments, f"out={whole}"))
    everything = len(Dying.asked)
    assert everything == 2 * (5 + 3) * 4
    monkeypatch.setattr(Dying, "left", 43)  # within the second batch of the second model
    monkeypatch.setattr(Dying, "asked", [])
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        evaluate(composed(*arguments, f"out={torn}"))
    assert not (torn / "results.csv").exists()
    monkeypatch.setattr(Dying, "left", 10**9)
    monkeypatch.setattr(Dying, "asked", [])
    evaluate(composed(*arguments, f"out={torn}"))
    assert len(Dying.asked) == everything - (8 + 2) * 4  # one model, and a batch of two problems
    assert figures(torn) == figures(whole)
    same_tables(torn, whole)
    monkeypatch.setattr(Dying, "left", 0)  # nothing is sampled any more
    evaluate(composed(*arguments, f"out={torn}", "ks=[1,4]", "against=trained"))
    assert set(pd.read_csv(torn / "comparison.csv")["model"]) == {"base"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n=8", r"evaluations\.t1\.n: 4 there, 8 now"),
        ("temperatures=[0.7]", r"evaluations\.t1: .* there, None now"),
        ("max_new_tokens=21", "max_new_tokens: 20 there, 21 now"),
        ("reward=math_box", r"reward\.answer_format: 'integer_box' there, 'math_box' now"),
        ("policy.dtype=bfloat16", r"model\.weights: .* there"),
        ("+policy.instruction='=?'", r"prompts: '\w+' there, '\w+' now"),
        ("problems.size=3", r"problems\.n: 2 there, 3 now"),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_name(
    override: str, message: str, tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    own = ["+policy.dtype=float32", "problems.size=2", f"out={tmp_path / 'out'}"]
    with pytest.raises(ConfigurationError, match=message):
        evaluate(composed(*own, override))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation of two generated problems."""
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RewardPool, "self_test", lambda _: None)
        evaluate(composed("problems.size=2", f"out={out}"))
    return out


def labels(*overrides: str) -> list[str]:
    return [model.label for model in find_models(composed(*overrides, "out=x"))]


def test_models_are_told_apart_by_name_then_seed_then_step(run_folder: Path) -> None:
    assert labels("models=[embedded]") == ["embedded"]
    assert labels(f"models=[{embedded_folder()},{run_folder}]") == ["carries", "e3"]
    second = run_folder.with_name("second")
    shutil.copytree(run_folder, second)
    config = json.loads((second / "config.yaml").read_text()) | {"seed": 2}
    (second / "config.yaml").write_text(json.dumps(config))
    assert labels(f"models=[{run_folder},{second}]") == ["e3-seed1", "e3-seed2"]
    checkpoints = run_folder / "checkpoints"
    for end in ("", ".sha256"):
        shutil.copy(checkpoints / f"step-000008.ckpt{end}", checkpoints / f"step-000004.ckpt{end}")
    steps = ",".join(str(checkpoints / f"step-00000{step}.ckpt") for step in (4, 8))
    assert labels(f"models=[{steps}]") == ["e3-seed1-step-000004", "e3-seed1-step-000008"]
    assert labels(f"ckpt_path={run_folder}") == ["step-000008"]
    with pytest.raises(ConfigurationError, match=r"several are called embedded: .* models=\{LABEL"):
        labels("models=[embedded,embedded]")


def test_a_model_may_have_settings_of_its_own() -> None:
    cfg = composed(
        "out=x",
        f"models={{bare: {{path: {embedded_folder()}, instruction: '!'}}, plain: embedded}}",
    )
    bare, plain = find_models(cfg)
    assert (bare.policy().instruction, plain.policy().instruction) == ("!", "")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["models=[no/such/model]"], "no/such/model is no checkpoint, run folder, model folder"),
        (["models=[embedded]", "ckpt_path=x.ckpt"], "ckpt_path=x.ckpt beside models"),
        (["models={a: {render: plain}}"], "names no model"),
        (
            ["models={a: embedded, b: {path: embedded, rendr: plain}}"],
            r"model b: policy\.rendr is no setting .*: did you mean policy\.render\?",
        ),
        (
            ["models={a: embedded, b: {path: embedded, render: fancy}}"],
            r"model b: policy\.render='fancy': input should be 'auto', 'chat' or 'plain'",
        ),
        (
            ["models={a: embedded, b: {path: embedded, dtype: int8}}"],
            r"model b: policy\.dtype='int8': choose one of \['bfloat16', 'float16', 'float32'\]",
        ),
        (["policy=pretrained"], r"policy\.path is missing: give policy\.path=MODEL"),
        (["+temprature=0"], r"temprature is no setting: did you mean temperatures\?"),
        (["+reward.worker=9"], r"reward\.worker is no .*: did you mean reward\.workers\?"),
        (["policy=pretrained", "policy.path=no/such/model"], "no/such/model is no checkpoint"),
        # 256 positions, of which a prompt needs one
        (["models=[embedded]", "max_new_tokens=256"], "no room .* 256 positions of embedded"),
        (["ckpt_path=RUN", "max_new_tokens=300"], "no room .* 256 positions of embedded"),
        (["models=[embedded,GONE]"], r"policy\.path=no/such/folder, .*correct it in the run's"),
        (["ckpt_path=BARE"], "config.yaml has no policy"),
        (["models={a: {path: RUN, render: plain}}"], "leave out render"),
        (["models=[embedded]", "against=e3"], "against=e3 is no model; there are embedded"),
        (["sets=[no-such.jsonl]"], "problems: .*no-such.jsonl"),
        (["sets=[e3_test]"], r"\+problems@sets.e3_test=e3_test sets.e3_test.path=\.\.\."),
        (["sets=[arithmetic,arithmetic]"], "several are called arithmetic"),
        ([f"models={{{'x' * 260}: embedded}}"], "260 bytes is too long for a folder"),
        (["sets={mine: {path: no-such.jsonl}}"], "problems: .*no-such.jsonl"),
        (["sets={mine: {path: easy.jsonl, colums: {}}}"], r"sets\.easy\.colums is no setting"),
        (["sets=[FRACTIONS]"], "answer_format=integer_box: 1 gold answers cannot be matched"),
    ],
)
def test_what_is_asked_for_is_checked_before_anything_is_sampled(
    overrides: list[str],
    message: str,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fractions = tmp_path / "fractions.jsonl"
    fractions.write_text(json.dumps({"prompt": "1/2", "answer": r"\frac{1}{2}"}) + "\n")
    gone, bare = (shutil.copytree(run_folder, tmp_path / name) for name in ("gone", "bare"))
    node = {"policy": {"_target_": "e3rl.policy.policy.Policy", "path": "no/such/folder"}}
    (gone / "config.yaml").write_text(json.dumps(node))
    (bare / "config.yaml").write_text("name: e3\n")
    places = {"RUN": run_folder, "FRACTIONS": fractions, "GONE": gone, "BARE": bare}
    for name, path in places.items():
        overrides = [each.replace(name, str(path)) for each in overrides]
    monkeypatch.setattr(
        "e3rl.evaluation.sampling.sample_unfinished", lambda *_, **__: pytest.fail("sampled")
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(Model, "policy", lambda _: pytest.fail("loaded"))
    with pytest.raises((ConfigurationError, FileNotFoundError), match=message):
        evaluate(composed(*overrides, f"out={tmp_path / 'out'}"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ks=[]", r"ks=\[\]: list should have at least 1 item"),
        ("ks=[0]", r"ks\[0\]=0: input should be greater than 0"),
        ("ks=4", r"ks=4 is no list: write ks=\[4\]"),
        ("table_ks=[3]", r"table_ks=\[3\]: 3 is not among ks=\[1, 2, 4\]; add it there"),
        ("n=2 table_ks=[4]", r"table_ks=\[4\]: 4 of n=2 samples cannot be chosen"),
        ("temperatures=1", r"temperatures=1 is no list: write temperatures=\[1\]"),
        ("latex=ye", r"latex='ye': input should be a valid boolean"),
        ("entropies=0.5", r"entropies=0\.5 is no list: write entropies=\[0\.5\]"),
        ("temperatures=[warm]", r"temperatures\[0\]='warm': input should be a valid number"),
        ("temperatures=[-1]", r"temperature=-1, use 0 \(greedy\) or more"),
        ("temperatures=[]", r"temperatures=\[\] and entropies=\[\] ask for no sample"),
        ("temperatures=[1,0,1.0]", r"ask for t1 more than once"),
        ("entropies=[0.3,0.3]", r"ask for h0\.3 more than once"),
        ("part=1/2 processes=2", "part=1/2 beside processes=2: one process samples a part"),
        ("part=1/2 processes=auto", "part=1/2 beside processes=auto: one process"),
        ("n=0", r"n=0: input should be greater than 0"),
        ("max_new_tokens=0", r"max_new_tokens=0: input should be greater than 0"),
    ],
)
def test_numbers_are_checked_before_anything_is_loaded_or_written(
    override: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Policy, "__init__", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ConfigurationError, match=message):
        evaluate(composed("models=[embedded]", f"out={tmp_path / 'out'}", *override.split()))
    assert list(tmp_path.iterdir()) == []


def test_a_single_model_or_set_needs_no_list(run_folder: Path, files: list[Path]) -> None:
    assert labels(f"models={run_folder}") == ["e3"]
    assert list(load_problem_sets(composed("out=x", "sets=arithmetic"))) == ["arithmetic"]
    assert list(load_problem_sets(composed("out=x", f"sets={files[1]}"))) == ["hard"]


def test_a_reward_needs_no_answer_format_of_its_own(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return answer in completion\n"
    )
    monkeypatch.chdir(tmp_path)
    cfg = composed("out=x", f"sets={files[0]}", "reward=function", "reward.path=mine.py:score")
    OmegaConf.set_struct(cfg, False)
    del cfg.reward.answer_format
    assert len(load_problem_sets(cfg)["easy"]) == 5


def test_a_part_needs_the_folder_that_all_parts_share(tmp_path: Path) -> None:
    cfg = composed(f"out={tmp_path}", "part=1/2")
    with pytest.raises(ConfigurationError, match=r"^part=1/2 needs .* the same out=FOLDER"):
        evaluate(cfg, ["part=1/2", "n=4"])
    assert not list(tmp_path.iterdir())


def test_a_label_may_be_a_number() -> None:
    cfg = composed("out=x", "models={1: embedded, 2: embedded}", "against=2")
    models = find_models(cfg)
    assert [model.label for model in models] == ["1", "2"]
    assert choose_baseline(cfg, models) == "2"


def test_sets_are_named_by_their_yaml_or_file_or_by_hand(tmp_path: Path, files: list[Path]) -> None:
    cfg = composed("out=x", f"sets=[arithmetic,{files[0]}]")
    assert {name: len(found) for name, found in load_problem_sets(cfg).items()} == {
        "arithmetic": 256,
        "easy": 5,
    }
    named = composed(
        *("out=x", "+problems@sets.mine=file", f"sets.mine.path={files[1]}"),
        *("+problems@sets.few=arithmetic", "sets.few.size=7"),
    )
    assert {name: len(found) for name, found in load_problem_sets(named).items()} == {
        "mine": 3,
        "few": 7,
    }


def test_columns_of_a_file_may_be_named_in_a_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [{"question": f"{i}+1=?", "gold": f"It is #### {i + 1}"} for i in (1, 2, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ("columns.prompt=question", "columns.answer=gold", "answer_after='####'")
    settings += ("repeats=drop", "size=2")
    chosen = [f"sets.a.{each}" for each in (f"path={path}", *settings)]
    (found,) = load_problem_sets(composed("out=x", "+problems@sets.a=file", *chosen)).values()
    assert [(problem.prompt, problem.answer) for problem in found] == [
        ("1+1=?", "2"),
        ("2+1=?", "3"),
    ]
    one = [f"problems.{each}" for each in (f"path={path}", *settings)]
    (same,) = load_problem_sets(composed("out=x", "problems=file", *one)).values()
    assert list(same) == list(found)


@pytest.mark.skipif(not E3_TEST.is_file(), reason=f"{E3_TEST.name} is not beside the checkout")
def test_the_test_sets_of_the_paper_are_taken_apart_by_source() -> None:
    sizes = {"aime": 30, "amc": 40, "math": 40, "olympiad_bench": 40}
    chosen = [
        setting
        for name in sizes
        for setting in (
            f"+problems@sets.{name}=e3_test",
            f"sets.{name}.path={E3_TEST}",
            f"sets.{name}.where.source={name}",
        )
    ]
    found = load_problem_sets(composed("out=x", "reward=math_box", *chosen))
    assert {name: len(problems) for name, problems in found.items()} == sizes
    assert all(p.source == name for name, problems in found.items() for p in problems)


@pytest.mark.slow
def test_a_killed_process_leaves_what_the_next_one_goes_on_with(
    arguments: list[str], tmp_path: Path
) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    log = torn / "base" / "easy" / "problems.jsonl"
    patient = "reward.deadline_s=60"  # for the self-test on a busy machine
    common = [*SMALL, *arguments, patient, "prompts_per_batch=1", f"out={torn}"]
    command = [sys.executable, "-m", "e3rl.evaluate", *common, f"hydra.run.dir={torn}/hydra"]
    process = subprocess.Popen(command)
    while not log.is_file() or log.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = read_rows(log)
    assert len(before) >= 3
    assert not (torn / "results.csv").exists()  # killed before the end
    evaluate(composed(*arguments, patient, f"out={torn}"))
    evaluate(composed(*arguments, patient, f"out={whole}"))
    assert read_rows(log)[: len(before)] == before
    assert figures(torn) == figures(whole)
    same_tables(torn, whole)
    for model in ("base", "trained"):
        for name in ("easy", "hard"):
            texts = [(o / model / name / "completions.jsonl").read_text() for o in (whole, torn)]
            assert texts[0] == texts[1]
