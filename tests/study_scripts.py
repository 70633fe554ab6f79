"""Modules beside a study's script, as tests import them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType


@contextmanager
def study_modules(folder: Path, *names: str) -> Iterator[dict[str, ModuleType]]:
    """Modules of a study's folder by name, importable while this lasts as its script has them.

    Several studies have modules of the same name, so none of them stays behind.
    """
    own = {path.stem for path in folder.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & sys.modules.keys()}
    sys.path.insert(0, str(folder))
    try:
        yield {name: import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in own:
            sys.modules.pop(name, None)
        sys.modules.update(others)
