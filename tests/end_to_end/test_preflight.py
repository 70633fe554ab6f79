"""Whole preflights: the embedded policy may start, random weights may not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import initialize_config_dir
from omegaconf import DictConfig

import compositions
import e3rl.preflight as command
from e3rl.config.composition import ConfigurationError, conf_dir
from e3rl.engines.memory_errors import EngineMemoryError
from e3rl.policy.policy import Policy
from e3rl.readiness.preflight import run_preflight
from e3rl.rewards.pool import RewardPool
from server_stand_in import stand_ins

SMALL = (
    *("engine=transformers", "logger=ledger_only", "trainer.accelerator=cpu", "max_new_tokens=80"),
    *("data.train.size=64", "prompts_per_step=8", "epochs=1", "validate_every=8"),
    *("preflight.prompts=12", "preflight.tables=3", "preflight.rules=[uniform,knapsack]"),
)


@pytest.fixture(autouse=True)
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)  # integers need no worker


def composed(run_dir: Path, *overrides: str) -> DictConfig:
    return compositions.composed(*SMALL, f"paths.run_dir={run_dir}", *overrides, root="preflight")


def run(run_dir: Path, *overrides: str) -> tuple[bool, dict[str, Any]]:
    cfg = composed(run_dir, *overrides)
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        go = command.preflight(cfg)
    return go, json.loads((run_dir / "preflight.json").read_text())


def test_the_embedded_policy_may_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go, found = run(tmp_path, "experiment=e3")
    assert go
    assert found["go"]
    assert [path.name for path in tmp_path.iterdir()] == ["preflight.json"]
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert levels["signal"] in ("ok", "warn")  # two of three groups may be all wrong
    checks = ("truncation", "format", "answers", "mismatch", "memory", "time")
    assert {name: levels[name] for name in checks if levels[name] != "ok"} == {}
    assert [each["n"] for each in found["prompts"]] == [8] * 12
    assert sum(found["solved"].values()) == 12
    assert sum(found["statuses"].values()) == 12 * 8
    assert 0.2 < found["groups"]["mixed"]["mean"] < 1
    assert found["mismatch"]["largest"] < 1e-4
    assert found["mismatch"]["tokens"] > 100
    assert found["trained_tokens_per_s"] < found["tokens_per_s"]
    assert {each["rule"] for each in found["rules"]} == {"uniform", "knapsack", "this run's"}
    printed = capsys.readouterr().out
    assert "96 rollouts of 12 training prompts at temperature 1" in printed
    assert "\n\nGO" in printed


def test_random_weights_may_not_start(tmp_path: Path) -> None:
    go, found = run(tmp_path, "experiment=grpo", "policy=random", "preflight.rollouts=2")
    assert not go
    assert not found["go"]
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert (levels["signal"], levels["format"], levels["budget"]) == ("fail", "fail", "warn")
    assert found["rules"] == []
    assert [each["n"] for each in found["prompts"]] == [2] * 12


def test_servers_sample_a_preflight_of_several_processes(tmp_path: Path) -> None:
    """One process asks all servers; the forecast is of both processes."""
    with stand_ins(Policy(), 2) as servers:
        urls = ",".join(server.url for server in servers)
        _, found = run(
            *(
                tmp_path,
                "experiment=e3",
                "trainer=ddp",
                "trainer.devices=2",
                "preflight.rollouts=2",
            ),
            *("engine=vllm_server", f"engine.urls=[{urls}]"),
        )
        assert min(server.calls["/inference/v1/generate"] for server in servers) > 0
    assert found["mismatch"]["largest"] < 1e-4
    speed = float(found["forecast"]["time"].split("at ")[-1].split(" tokens")[0])
    sampling, both = (1 / found[name] for name in ("tokens_per_s", "trained_tokens_per_s"))
    assert speed == pytest.approx(2 / (sampling + both), rel=0.01)  # half the update on each


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["embedded", "random"])
def test_as_many_processes_as_train_sample_what_one_does(policy: str, tmp_path: Path) -> None:
    settings = ("experiment=grpo", "max_new_tokens=24", "preflight.rollouts=2", f"policy={policy}")
    (_, one), (_, two) = (
        run(tmp_path / name, *settings, *more)
        for name, more in (
            ("one", ("preflight.processes=1",)),
            ("two", ("trainer=ddp", "trainer.devices=2")),
        )
    )
    for name in ("prompts", "solved", "statuses", "groups", "rules"):
        assert two[name] == one[name]
    assert two["entropy"] == pytest.approx(one["entropy"], rel=1e-6)
    assert two["mismatch"]["largest"] < 1e-4
    assert one["processes"] == 1
    assert two["processes"] == 2


@pytest.mark.slow
def test_a_process_whose_engine_has_no_memory_is_a_no_go(tmp_path: Path) -> None:
    go, found = run(
        tmp_path,
        *("experiment=grpo", "preflight.processes=2", "preflight.rollouts=2"),
        "engine._target_=hanging_engine.FullEngine",
    )
    assert not go
    assert [(each["check"], each["level"]) for each in found["findings"]] == [("memory", "fail")]
    assert "no room for 24 rollouts" in found["findings"][0]["says"]


@pytest.mark.slow
def test_a_process_that_ends_by_a_mistake_of_its_own_is_told(tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match=r"process [12] of 2 ended with exit code 1"):
        run(
            tmp_path,
            *("experiment=grpo", "preflight.processes=2"),
            "engine._target_=hanging_engine.BrokenEngine",
        )


def test_a_preset_whose_planned_length_is_above_the_limit_is_judged_by_what_is_measured(
    tmp_path: Path,
) -> None:
    preset = ("experiment=paper/1_5b/e3", "debug=tiny", "max_new_tokens=8", "sweep.name=test")
    few = ("data.train.size=8", "prompts_per_step=4", "validate_every=2", "epochs=1")
    go, found = run(tmp_path, *preset, *few, "preflight.prompts=4", "preflight.rollouts=2")
    assert not go
    levels = {each["check"]: each["level"] for each in found["findings"]}
    assert levels["truncation"] == "fail"
    mean = found["lengths"]["mean"]
    assert 4 < mean <= 8
    assert found["forecast"]["tokens trained on"].endswith(
        f"expected at {float(f'{mean:.3g}'):g} each"
    )


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("++preflight.promts=3",), r"did you mean preflight\.prompts\?"),
        (("preflight.prompts=1",), r"preflight\.prompts=1: input should be greater than"),
        (("preflight.rules=[best]",), r"rules=\['best'\]: use some of uniform"),
        (("ckpt_path=runs/e3",), "e3rl.evaluate"),
        (("budget=e3_rank", "budget.n_low=1"), r"budget: n_low=1: use at least 2"),
        (("loss.clip_low=0.1",), r"loss\.surrogate\.clip_low"),
    ],
)
def test_mistakes_are_named_before_anything_is_sampled(
    overrides: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    given = [o if o[0] == "+" or o.startswith("budget=") else f"++{o}" for o in overrides]
    cfg = composed(tmp_path, *given)
    with (
        initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())),
        pytest.raises(ConfigurationError, match=told),
    ):
        run_preflight(cfg)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("module.optimizer.lr=-1",), r"^module\.optimizer: Invalid learning rate: -1"),
        (("callbacks.advantage=null",), r"^callback `metrics` reads batch\.advantages"),
        (("module.settings.minibatches=0",), r"^module: settings\.minibatches=0: use at least 1"),
        (("callbacks.pass_at_k.ks=[]",), r"^callbacks\.pass_at_k: ks=\[\]: give one or more"),
        (("module.probe.share=2.0",), r"^module: probe\.share=2\.0: use a part in \(0, 1\]"),
        (("experiment=shootout/abort", "rollout.abort.keep=2"), r"abort: keep=2 must lie in"),
        (("data.prompts_per_step=16",), r"^data\.prompts_per_step=16 is another number"),
    ],
)
def test_what_training_refuses_is_refused_before_anything_is_sampled(
    overrides: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e3rl.readiness.preflight.sample_and_test_answers", lambda *_: 1 / 0)
    cfg = composed(tmp_path, *overrides)
    with (
        initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())),
        pytest.raises(ConfigurationError, match=told),
    ):
        run_preflight(cfg)


def test_a_gpu_that_there_is_not_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    cfg = composed(tmp_path)
    cfg.trainer.accelerator = "gpu"
    with pytest.raises(ConfigurationError, match=r"^trainer\.accelerator=gpu: .* no GPU here"):
        run_preflight(cfg)


def test_a_run_of_single_rollouts_is_looked_at(tmp_path: Path) -> None:
    single = ("experiment=grpo", "advantage=reinforce_pp", "rollouts_per_prompt=1")
    _, found = run(tmp_path, *single, "preflight.rules=[]", "preflight.tables=1")
    assert [each["n"] for each in found["prompts"]] == [1] * 12


def test_an_engine_that_runs_out_of_memory_is_a_no_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object) -> None:
        raise EngineMemoryError("no room for the cache: lower engine.settings.gpu_memory")

    monkeypatch.setattr("e3rl.engines.transformers.TransformersEngine.generate", without_memory)
    go, found = run(tmp_path)
    assert not go
    (finding,) = found["findings"]
    assert (finding["check"], finding["level"]) == ("memory", "fail")
    assert "no room for the cache" in str(finding)


def exit_code(monkeypatch: pytest.MonkeyPatch, folder: Path, verdict: bool | Exception) -> int:
    """Of the command, where looking ends with this."""

    def looked(cfg: DictConfig) -> bool:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    monkeypatch.setattr(command, "preflight", looked)
    monkeypatch.setattr(sys, "argv", ["e3rl.preflight", f"paths.runs={folder}", *SMALL])
    try:
        command.command()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_exit_codes_tell_go_from_no_go_from_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exit_code(monkeypatch, tmp_path, True) == 0
    assert exit_code(monkeypatch, tmp_path, False) == 1
    assert exit_code(monkeypatch, tmp_path, ConfigurationError("wrong")) == 2
    assert exit_code(monkeypatch, tmp_path, RuntimeError("a bug")) == 2


def test_a_choice_that_there_is_not_ends_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "e3rl.preflight", "budget=none_such"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "none_such" in done.stderr
