import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from e3rl.process.environment import DEFAULTS, cache_folder, peak_memory_gib, prepare


def test_prepare_fills_in_what_is_not_set_and_leaves_the_users_choice(monkeypatch):
    for name in DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    prepare()
    assert {name: os.environ[name] for name in DEFAULTS} == DEFAULTS | {"WANDB_MODE": "online"}


def test_the_cache_is_where_the_user_says_or_where_caches_are(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("E3RL_CACHE", "own")
    assert cache_folder() == Path("own")
    monkeypatch.delenv("E3RL_CACHE")
    assert cache_folder() == Path("caches/e3rl")


def test_importing_the_package_prepares_the_process_before_torch_is_loaded():
    code = "import sys, os, e3rl; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    clean = {k: v for k, v in os.environ.items() if k not in DEFAULTS}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean
    )
    assert run.stdout.split() == ["False", "PASSIVE"]


def test_triton_computes_float32_as_torch_does(monkeypatch):
    """The name that it reads, and the words that it knows."""
    triton = pytest.importorskip("triton")
    for precision in ("ieee", "tf32"):
        monkeypatch.setenv("TRITON_F32_DEFAULT", precision)
        assert triton.knobs.language.fp32_default == precision
    assert DEFAULTS["TRITON_F32_DEFAULT"] == "ieee"
    assert torch.get_float32_matmul_precision() == "highest"  # which is the same


@pytest.mark.end_to_end
def test_peak_memory_is_in_gib_and_grows_with_what_is_held():
    before = peak_memory_gib()
    held = bytearray(b"x" * 2**28)  # a quarter of a GiB
    assert 0.01 < before < 1024
    assert peak_memory_gib() >= max(before, len(held) / 2**30)
