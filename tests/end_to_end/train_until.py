"""`e3rl train`, where one rank gets a signal or raises when something is called for the n-th time.

AT="RANK MODULE:CLASS.METHOD COUNT SIGUSR1|raise" python train_until.py [KEY=VALUE ...]
"""

import importlib
import os
import signal
import sys
from typing import Any

from e3rl.config.composition import accept_new_keys
from e3rl.train import main


def disturb(rank: str, place: str, count: str, what: str) -> None:
    """Have a method do something else first, in one rank."""
    if os.environ.get("LOCAL_RANK", "0") != rank:
        return
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, method = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    function, calls = getattr(owner, method), []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == int(count):
            if what == "raise":
                raise RuntimeError(f"mine, on rank {rank}")
            signal.raise_signal(signal.Signals[what])
        return function(*args, **kwargs)

    setattr(owner, method, called)


if __name__ == "__main__":
    disturb(*os.environ["AT"].split())
    sys.argv[1:] = accept_new_keys(sys.argv[1:])
    main()
