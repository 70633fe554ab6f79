"""Upload what was logged offline: `python -m e3rl.sync FOLDERS... [options of wandb sync]`.

Finds every offline W&B run below the folders, wherever in a sweep it lies, and hands all of them
to `wandb sync`, which skips those that are uploaded already and puts the parts of a resumed run in
order. Needs `wandb login` or WANDB_API_KEY, and the network; `--dry-run` needs neither.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e3rl.analysis.wandb_offline import offline_files

OFFLINE = "offline-run-"  # W&B names the folders of runs that it uploaded itself `run-`


def main(arguments: Sequence[str] | None = None) -> None:
    """Find and upload; ends with the exit code of `wandb sync`, 2 where there is nothing."""
    found = argparse.ArgumentParser(
        prog="python -m e3rl.sync",
        description="Upload offline W&B runs.",
        epilog="Other options, such as --project, --entity and --dry-run, go to `wandb sync`.",
    )
    found.add_argument("folders", nargs="+", type=Path, help="run folders, or folders above them")
    options, passed_on = found.parse_known_args(arguments)
    folders = offline_folders(options.folders)
    if not folders:
        listed = ", ".join(map(str, options.folders))
        print(f"error: no offline W&B run below {listed}", file=sys.stderr)
        raise SystemExit(2)
    command = [sys.executable, "-m", "wandb", "sync", *passed_on, *map(str, folders)]
    raise SystemExit(subprocess.run(command, check=False).returncode)


def offline_folders(roots: Sequence[Path]) -> list[Path]:
    """Folders of offline runs below the given ones, oldest first, each once."""
    files = [file for root in roots for file in offline_files(root)]
    folders = {file.parent.resolve(): file.parent for file in files}
    return [folder for folder in folders.values() if folder.name.startswith(OFFLINE)]


if __name__ == "__main__":
    main()
