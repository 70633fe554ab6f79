"""Write a checkpoint as a model folder.

    e3rl export CKPT OUT [--dtype bfloat16]

CKPT is a checkpoint of any trainer (a file or a folder of shards), or a run folder, of which the
newest sound one is taken. OUT gets configuration, weights (safetensors), tokenizer and generation
settings, as transformers and vLLM load them: `vllm serve OUT`, `policy=pretrained policy.path=OUT`.
OUT/e3rl_prompting.json says what else made its prompts and ended its answers (instruction, system
message, prefill, stop strings), by the settings of `policy`.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from e3rl.checkpoints.files import DamagedCheckpointError, checkpoints, find_damage, newest_sound
from e3rl.config.composition import ConfigurationError, run_folder_of

PROMPTING = "e3rl_prompting.json"
DTYPES = ("float32", "bfloat16", "float16")


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, and say what of and where to; exits with 2 where that is not possible."""
    parser = argparse.ArgumentParser(
        prog="e3rl export", description="Write a checkpoint as a model folder."
    )
    parser.add_argument("checkpoint", type=Path, help="checkpoint, or run folder (its newest one)")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; as trained by default")
    options = parser.parse_args(arguments)
    try:
        checkpoint = export(options.checkpoint, options.out, options.dtype)
    except (OSError, ConfigurationError, DamagedCheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    print(f"{checkpoint} -> {options.out}")


def export(path: Path, out: Path, dtype: str | None = None) -> Path:
    """Write the policy of a checkpoint to `out`, whole or not at all; returns the checkpoint.

    Raises:
        FileNotFoundError: no checkpoint at `path`, or its run's configuration is not there.
        DamagedCheckpointError: the named one is damaged, or all of the run.
        FileExistsError: `out` is a file or a folder that is not empty.
    """
    checkpoint = find_checkpoint(path)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not empty: name a folder to be made")
    from e3rl.evaluation.targets import model_of_run
    from e3rl.policy.policy import DTYPES as dtype_of

    out = out.resolve()  # "." has no name to make a draft's from
    draft = out.with_name(f".{out.name}.tmp")
    policy = model_of_run(checkpoint).policy()
    shutil.rmtree(draft, ignore_errors=True)
    try:
        policy.save(draft, None if dtype is None else dtype_of[dtype])
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


if __name__ == "__main__":
    main()
