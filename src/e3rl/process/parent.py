"""A process that ends when the one that started it does."""

import os
import sys
import threading
import time

LOOK_S = 0.5  # between two looks
GRACE_S = 20.0  # for it to end by itself


def watch_over_parent(parent: int) -> None:
    """End this process a while after its parent, whatever it is doing then."""
    threading.Thread(target=_follow, args=(parent,), name="watch over parent", daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    time.sleep(GRACE_S)
    sys.stderr.write(f"\nprocess {parent}, which started this one, is gone: so is its work\n")
    sys.stderr.flush()
    os._exit(1)
