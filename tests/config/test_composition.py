"""Folders of runs and sweeps, keys of the command line, and what a checkpoint path means."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from compositions import composed_with_hydra
from e3rl.checkpoints.files import checksum_file, sha256
from e3rl.config.composition import (
    ConfigurationError,
    accept_new_keys,
    checkpoint_to_resume,
    job_folder_name,
    run_dir,
    run_folder_of,
    run_id,
    tokens_per_pass,
    wandb_group,
)


def make_run(folder: Path, *steps: int) -> Path:
    for step in steps:
        path = folder / "checkpoints" / f"step-{step:06d}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"weights")
        checksum_file(path).write_text(f"{sha256(path)}  {path.name}\n")
    return folder


def compose_train(*overrides: str) -> DictConfig:
    return composed_with_hydra(*overrides)


def test_two_runs_in_the_same_moment_have_folders_of_their_own() -> None:
    assert run_dir("runs", "e3", None) != run_dir("runs", "e3", None)
    assert Path(run_dir("runs", "e3", None)).parent == Path("runs/e3")


def test_one_configuration_has_one_folder_and_another_has_another() -> None:
    one, other = compose_train(), compose_train()
    assert one.hydra.run.dir == one.hydra.run.dir
    assert one.hydra.run.dir != other.hydra.run.dir


def test_last_is_the_newest_run_of_that_name_that_has_a_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path / "e3" / "2025-01-01_00-00-00-000001", 1)
    newest = make_run(tmp_path / "e3" / "2025-01-02_00-00-00-000000", 1)
    (tmp_path / "e3" / "2025-01-03_00-00-00-000000").mkdir()
    make_run(tmp_path / "grpo" / "2025-01-04_00-00-00-000000", 1)
    assert run_dir(str(tmp_path), "e3", "last") == str(newest)


def test_last_is_no_copy_that_somebody_has_made_of_a_run(tmp_path: Path) -> None:
    own = make_run(tmp_path / "e3" / "2025-01-01_00-00-00-000001", 1)
    make_run(tmp_path / "e3" / "backup", 1)
    make_run(tmp_path / "e3" / "2025-copy", 1)
    assert run_dir(str(tmp_path), "e3", "last") == str(own)


def test_an_empty_ckpt_path_is_not_the_working_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^ckpt_path= is empty: give it a value, or"):
        run_dir(str(tmp_path), "e3", "")


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/step-000002.ckpt"])
def test_a_run_is_continued_in_its_own_folder_however_it_is_named(
    below: str, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "mine", 1, 2)
    assert run_folder_of(folder / below) == folder
    assert run_dir("runs", "e3", str(folder / below)) == str(folder)
    found = checkpoint_to_resume(str(folder / below), folder)
    assert found == folder / "checkpoints" / "step-000002.ckpt"


@pytest.mark.parametrize("ckpt_path", ["last", "nowhere", "nowhere/checkpoints/step-000001.ckpt"])
def test_a_path_that_leads_nowhere_is_a_plain_error_and_names_no_foreign_folder(
    ckpt_path: str, tmp_path: Path
) -> None:
    folder = run_dir(str(tmp_path), "e3", ckpt_path)
    assert Path(folder).parent == tmp_path / "e3"
    with pytest.raises(
        ConfigurationError, match=f"ckpt_path={ckpt_path}: no .*leave ckpt_path out"
    ):
        checkpoint_to_resume(ckpt_path, Path(folder))


def test_a_run_whose_checkpoints_are_all_damaged_is_an_error(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "mine", 1)
    (folder / "checkpoints" / "step-000001.ckpt").write_bytes(b"other")
    with (
        pytest.warns(UserWarning, match="passing over"),
        pytest.raises(
            ConfigurationError, match=r"no sound checkpoint .*\n.*checksum does not match"
        ),
    ):
        checkpoint_to_resume(str(folder), folder)


def test_the_run_id_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_id("runs/a") == run_id(str(tmp_path / "runs" / "a")) != run_id("runs/b")


def test_seeds_of_an_arm_are_one_group_of_a_sweep_or_of_all_single_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wandb_group("2026-11-27_04-04", "mine") == "mine"
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    for mode, group in ((RunMode.RUN, "mine"), (RunMode.MULTIRUN, "first/mine")):
        monkeypatch.setattr(HydraConfig, "get", lambda mode=mode: SimpleNamespace(mode=mode))
        assert wandb_group("first", "mine") == group


def test_a_sweeps_folders_tell_what_their_jobs_are() -> None:
    overrides = [
        *("experiment=grpo", "++seed=1", "paths.sweeps=/somewhere", "logger=ledger_only"),
        "temperature/gain=solve",
    ]
    assert job_folder_name(overrides) == "experiment-grpo_seed-1_temperature.gain-solve"
    assert job_folder_name([]) == "default"


def test_long_sweeps_keep_folders_of_their_own() -> None:
    common = [f"module.settings.something_{i}={i}" for i in range(20)]
    names = {job_folder_name([*common, f"seed={seed}"]) for seed in range(10)}
    assert len(names) == 10
    assert {len(name) for name in names} == {200}


@given(st.lists(st.text(max_size=80), max_size=8))
@settings(deadline=None, max_examples=100)
def test_any_overrides_make_one_folder_that_needs_no_quotes(overrides: list[str]) -> None:
    name = job_folder_name(overrides)
    assert 0 < len(name.encode()) <= 200
    assert all(c.isalnum() or c in "_.-" for c in name)


def test_names_of_long_signs_fit_a_file_system(tmp_path: Path) -> None:
    names = [job_folder_name([f"data.train.path={'数' * 90}.jsonl", f"seed={n}"]) for n in (1, 2)]
    assert names[0] != names[1]
    for name in names:
        assert len(name.encode()) <= 200
        (tmp_path / name).mkdir()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("data.train.path=a/b.jsonl", "data.train.path=a.b.jsonl"),
        ("module.probe.factors=[1,2]", "module.probe.factors=_1_2_"),
        ("module.probe.factors=[1,2]", "module.probe.factors={1,2}"),
        ("name=a=b", "name=a-b"),
        ("++name=a b", "name=a_b"),
        ("name=a,seed=1", "name=a_seed-1"),
    ],
)
def test_values_that_a_folder_cannot_have_in_its_name_have_folders_of_their_own(
    one: str, other: str
) -> None:
    assert job_folder_name([one, "seed=1"]) != job_folder_name([other, "seed=1"])


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (
            ["++seed=101", "experiment=shootout/cool", "engine=transformers"],
            "seed-101_experiment-shootout.cool_engine-transformers",
        ),
        (["experiment=ts", "temperature/gain=paper"], "experiment-ts_temperature.gain-paper"),
        (["temperature@temperature.rule=ts"], "temperature_temperature.rule-ts"),
        (["experiment=short", "++shaping.mu=1e-3"], "experiment-short_shaping.mu-1e-3"),
        (["paths.sweeps=/a/b", "logger=[x]", "sweep.name=a b"], "default"),
    ],
)
def test_names_of_groups_numbers_and_words_have_no_digest(overrides: list[str], name: str) -> None:
    assert job_folder_name(overrides) == name


def test_a_long_name_of_plain_signs_stays_what_it_was() -> None:
    name = job_folder_name([f"module.settings.something_{i}={i}" for i in range(20)])
    assert name.endswith("_module.settings.something_5-5_module.sett_708a37b9")


def test_keys_are_left_to_the_check_and_groups_to_hydra() -> None:
    given_ = [
        *("experiment=grpo", "temperature/gain=solve", "hydra.run.dir=x", "hydra/launcher=basic"),
        *("-m", "--config-dir=x", "+new=1", "++force=1", "~callbacks.metrics", "control=null"),
    ]
    assert accept_new_keys(given_) == given_
    assert accept_new_keys(["seed=1,2", "module.optimizer.lr=0.1", "name=a=b"]) == [
        *("++seed=1,2", "++module.optimizer.lr=0.1", "++name=a=b"),
    ]


def test_a_pass_has_more_tokens_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    planned = {"only": True}
    nothing, h100, gib = (
        OmegaConf.create(planned | gpu) for gpu in ({"gpu": None}, {"gpu": "h100"}, {"gpu_gib": 80})
    )
    assert tokens_per_pass("auto", nothing) == tokens_per_pass("cpu") == 2048
    assert tokens_per_pass("cpu", h100) == tokens_per_pass("auto", gib) == 16384
    training = OmegaConf.create({"only": False, "gpu": "h100"})
    assert tokens_per_pass("cpu", training) == 2048  # a run goes by its own device
    assert tokens_per_pass("cpu", training, OmegaConf.create({"prompts": 64})) == 16384
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert (tokens_per_pass("auto"), tokens_per_pass("gpu"), tokens_per_pass("cpu")) == (
        16384,
        16384,
        2048,
    )
