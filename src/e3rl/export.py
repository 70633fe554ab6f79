"""Write a checkpoint as a model folder.

    e3rl export CKPT OUT [--dtype bfloat16]

CKPT is a checkpoint of any trainer (a file or a folder of shards), or a run folder, of which the
newest sound one is taken. OUT gets configuration, weights (safetensors), tokenizer and generation
settings, as transformers and vLLM load them: `vllm serve OUT`, `policy=pretrained policy.path=OUT`.
OUT/e3rl_prompting.json says what else made its prompts and ended its answers (instruction, system
message, prefill, stop strings), by the settings of `policy`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from e3rl.checkpoints.files import DamagedCheckpointError
from e3rl.config.composition import ConfigurationError
from e3rl.process.output import NoPlaceError

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
    from e3rl.runs.exporting import export

    try:
        checkpoint = export(options.checkpoint, options.out, options.dtype)
    except (OSError, ConfigurationError, DamagedCheckpointError, NoPlaceError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    print(f"{checkpoint} -> {options.out}")


if __name__ == "__main__":
    main()
