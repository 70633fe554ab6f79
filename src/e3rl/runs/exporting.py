"""Checkpoints as model folders, as transformers and vLLM load them; see `e3rl.export`."""

import json
import os
import shutil
from pathlib import Path

from e3rl.checkpoints.files import DamagedCheckpointError, checkpoints, find_damage, newest_sound
from e3rl.config.composition import run_folder_of
from e3rl.evaluation.targets import model_of_run
from e3rl.policy.policy import DTYPES
from e3rl.process.output import check_folder

PROMPTING = "e3rl_prompting.json"


def export(path: Path, out: Path, dtype: str | None = None) -> Path:
    """Write the policy of a checkpoint to `out`, whole or not at all; returns the checkpoint.

    Raises:
        FileNotFoundError: no checkpoint at `path`, or its run's configuration is not there.
        DamagedCheckpointError: the named one is damaged, or all of the run.
        NoPlaceError: no folder can be made at `out`.
        FileExistsError: `out` is a file or a folder that is not empty.
    """
    checkpoint = find_checkpoint(path)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not empty: name a folder to be made")
    check_folder("", out)
    out = out.resolve()  # "." has no name to make a draft's from
    draft = out.with_name(f".{out.name}.tmp")
    policy = model_of_run(checkpoint).policy()
    shutil.rmtree(draft, ignore_errors=True)
    try:
        policy.save(draft, None if dtype is None else DTYPES[dtype])
        text = json.dumps(policy.prompting(), indent=1, ensure_ascii=False) + "\n"
        (draft / PROMPTING).write_text(text, encoding="utf-8")
        os.replace(draft, out)  # in the place of an empty folder, too
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return checkpoint


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, or the newest sound one of a run folder.

    Another one is never taken in the place of one that is named.
    """
    if path.suffix == ".ckpt" and path.exists():
        if reason := find_damage(path):
            raise DamagedCheckpointError(f"checkpoint {path}: {reason}")
        return path
    folder = run_folder_of(path) / "checkpoints"
    if path.suffix == ".ckpt" or not checkpoints(folder):
        raise FileNotFoundError(
            f"{path} is no checkpoint: give one like step-000064.ckpt, or a run folder with "
            "checkpoints"
        )
    return newest_sound(folder)
