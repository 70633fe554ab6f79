"""A sweep that is started again: what is skipped, what goes on, and what is refused."""

import json
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig

from compositions import composed
from e3rl.checkpoints.durable import write_atomically
from e3rl.checkpoints.files import checksum_file, sha256
from e3rl.config.composition import ConfigurationError
from e3rl.runs.provenance import write_provenance
from e3rl.runs.run import resume_hint
from e3rl.runs.sweep_jobs import (
    check_resumed_settings,
    find_resume_checkpoint,
    finished_job,
    is_job,
)

pytestmark = pytest.mark.end_to_end


def job(tmp_path: Path, *overrides: str, folder: str = "sweeps/mine/seed-1") -> DictConfig:
    fixed = ["logger=ledger_only", f"paths.sweeps={tmp_path}/sweeps", "sweep.name=mine"]
    return composed(*fixed, f"paths.run_dir={tmp_path}/{folder}", *overrides)


def begun(cfg: DictConfig, *steps: int, finished: bool = False) -> Path:
    """The folder of a run with that configuration, its checkpoints, and maybe its summary."""
    run_dir = Path(cfg.paths.run_dir)
    cfg.vocabulary_size = 34  # the policy's, as the run wrote it
    write_provenance(cfg, run_dir, None)
    for step in steps:
        path = run_dir / "checkpoints" / f"step-{step:06d}.ckpt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"weights")
        checksum_file(path).write_text(f"{sha256(path)}  {path.name}\n")
    if finished:
        (run_dir / "summary.json").write_text(json.dumps({"pass@1": 0.5}))
    return run_dir


def test_a_job_is_a_run_whose_folder_is_its_sweeps(tmp_path: Path) -> None:
    assert is_job(job(tmp_path))
    assert is_job(job(tmp_path, folder="sweeps/other/../mine/seed-1"))
    assert not is_job(job(tmp_path, folder="runs/e3/now"))
    assert not is_job(job(tmp_path, folder="sweeps/other/seed-1"))
    assert not is_job(job(tmp_path, folder="sweeps/mine/seed-1/deeper"))


def test_a_finished_job_of_the_same_configuration_is_told_by_its_summary(tmp_path: Path) -> None:
    assert finished_job(job(tmp_path)) is None
    begun(job(tmp_path), 64)
    assert finished_job(job(tmp_path)) is None
    begun(job(tmp_path), 64, 192, finished=True)
    again = job(tmp_path, "sweep.seconds_per_job=9.0", "control=null")  # decide no number
    assert finished_job(again) == {"pass@1": 0.5}
    assert again.vocabulary_size == 0  # asking changes nothing


def test_a_finished_job_of_another_configuration_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    begun(job(tmp_path), 64, finished=True)
    with pytest.raises(ConfigurationError) as refused:
        finished_job(job(tmp_path, "epochs=5"))
    assert "seed-1 was started with other settings" in str(refused.value)
    assert "choose another sweep.name than mine" in str(refused.value)
    assert "  - epochs: 4 at the start, 5 now" in str(refused.value)


def test_a_finished_job_need_not_mention_settings_that_are_newer(tmp_path: Path) -> None:
    run_dir = begun(job(tmp_path), 64, finished=True)
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    del written["loss"]["kl_coef"]
    (run_dir / "config.yaml").write_text(yaml.safe_dump(written))
    assert finished_job(job(tmp_path)) is not None
    # One that goes on is trained by what it says now.
    with pytest.raises(ConfigurationError, match=r"loss.kl_coef: None at the start, 0.0 now"):
        check_resumed_settings(job(tmp_path), run_dir / "checkpoints" / "step-000064.ckpt")
    written["loss"]["entropy_coef"] = 0.5
    (run_dir / "config.yaml").write_text(yaml.safe_dump(written))
    with pytest.raises(ConfigurationError, match=r"loss.entropy_coef: 0.5 at the start, 0.0 now"):
        finished_job(job(tmp_path))


def test_a_run_outside_of_its_sweep_is_never_skipped(tmp_path: Path) -> None:
    cfg = job(tmp_path, folder="runs/e3/now")
    begun(cfg, 64, finished=True)
    assert finished_job(cfg) is None
    assert find_resume_checkpoint(cfg) is None


def test_a_broken_job_goes_on_from_its_newest_sound_checkpoint(tmp_path: Path) -> None:
    run_dir = begun(job(tmp_path), 16, 32)
    newest = run_dir / "checkpoints" / "step-000032.ckpt"
    assert find_resume_checkpoint(job(tmp_path)) == newest
    newest.write_bytes(b"cut")
    with pytest.warns(UserWarning, match="passing over"):
        assert find_resume_checkpoint(job(tmp_path)) == run_dir / "checkpoints" / "step-000016.ckpt"


def test_a_job_without_a_sound_checkpoint_starts_anew(tmp_path: Path) -> None:
    assert find_resume_checkpoint(job(tmp_path)) is None
    run_dir = begun(job(tmp_path), 16)
    (run_dir / "checkpoints" / "step-000016.ckpt").write_bytes(b"cut")
    assert find_resume_checkpoint(job(tmp_path)) is None


def test_a_checkpoint_that_is_asked_for_comes_first(tmp_path: Path) -> None:
    run_dir = begun(job(tmp_path), 16, 32)
    older = run_dir / "checkpoints" / "step-000016.ckpt"
    assert find_resume_checkpoint(job(tmp_path, f"ckpt_path={older}")) == older
    with pytest.raises(ConfigurationError, match="ckpt_path=nowhere: no checkpoint"):
        find_resume_checkpoint(job(tmp_path, "ckpt_path=nowhere"))


@pytest.mark.parametrize("steps", [(), (16,)])
def test_another_configuration_is_refused_from_the_beginning_of_a_job_on(
    steps: tuple[int, ...], tmp_path: Path
) -> None:
    fresh = job(tmp_path)
    check_resumed_settings(fresh, find_resume_checkpoint(fresh))
    begun(job(tmp_path), *steps)
    same, other = (job(tmp_path, "vocabulary_size=34", f"seed={seed}") for seed in (1, 2))
    check_resumed_settings(same, find_resume_checkpoint(same))
    with pytest.raises(ConfigurationError, match=r"another sweep.name(.|\n)*seed: 1 at the start"):
        check_resumed_settings(other, find_resume_checkpoint(other))


@pytest.mark.parametrize("limit", ["limit_train_batches", "limit_val_batches"])
def test_what_a_run_is_trained_and_validated_on_stays(limit: str, tmp_path: Path) -> None:
    run_dir = begun(job(tmp_path), 16)
    checkpoint = run_dir / "checkpoints" / "step-000016.ckpt"
    check_resumed_settings(job(tmp_path, "vocabulary_size=34", "trainer.devices=2"), checkpoint)
    other = job(tmp_path, "vocabulary_size=34", f"+trainer.{limit}=1")
    with pytest.raises(ConfigurationError, match=rf"trainer\.{limit}: None at the start, 1 now"):
        check_resumed_settings(other, checkpoint)


def test_a_single_run_is_told_to_leave_out_ckpt_path_instead(tmp_path: Path) -> None:
    cfg = job(tmp_path, folder="runs/e3/now")
    run_dir = begun(cfg, 16)
    other = job(tmp_path, f"ckpt_path={run_dir}", "seed=2", folder="runs/e3/now")
    with pytest.raises(ConfigurationError, match="start a new run without ckpt_path"):
        check_resumed_settings(other, find_resume_checkpoint(other))


def test_somebody_who_stops_a_sweep_is_told_its_name(tmp_path: Path) -> None:
    cfg = job(tmp_path)
    begun(cfg, 16)
    assert resume_hint(cfg).endswith("by the same command and sweep.name=mine")
    alone = job(tmp_path, folder="runs/e3/now")
    run_dir = begun(alone, 16)
    told = resume_hint(alone)
    assert told.endswith(f"after rollout step 16 by the same command and ckpt_path={run_dir}")


def test_a_kill_while_a_file_is_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, "new")
    assert path.read_text() == "old"
