"""What processes do that are started in tests; they import this file and nothing heavy."""

import os
import time
from pathlib import Path
from typing import Any


def tell(settings: dict[str, Any]) -> None:
    """A process that writes what it was given."""
    name = settings["part"].replace("/", "-")
    Path(settings["out"], name).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))


def fail(settings: dict[str, Any]) -> None:
    """The second of three fails, the others have hours to go."""
    if settings["part"] == "2/3":
        raise SystemExit(7)
    time.sleep(3600)
