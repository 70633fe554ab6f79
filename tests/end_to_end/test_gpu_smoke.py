"""experiments/gpu_smoke: what runs without a GPU runs here, and what does not says why."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from study_scripts import study_modules

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "experiments" / "gpu_smoke"
LONGER = {
    "bfloat16": "torch",
    "vllm": "vllm",
    "chunked_head": "torch",
    "lora": "peft",
    "sharded": "torch",
} | dict.fromkeys(("servers", "seeds"), "vllm")
WITHOUT_A_GPU = ("large", "look_ahead", "sleep_1", "sleep_2", "compile_cache")
WITHOUT_TWO = ("second_gpu", "tensor_parallel", "nccl")


def smoke(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, str(SMOKE / "smoke.py"), "--out", str(folder), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def stages(folder: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads((folder / "results.json").read_text())["stages"]
    return {row["name"]: row for row in rows}


def check_stages(folder: Path, passed: tuple[str, ...]) -> None:
    found = stages(folder)
    assert {name: found[name]["status"] for name in passed} == dict.fromkeys(passed, "passed")
    for name in (*WITHOUT_A_GPU, *WITHOUT_TWO):
        assert found[name]["status"] == "skipped"
        assert f"needs {'a GPU' if name in WITHOUT_A_GPU else 'two GPUs'}" in found[name]["why"]
    table = (folder / "README.md").read_text()
    assert all(f"| {name} |" in table for name in found)
    assert (folder / "smoke.png").stat().st_size > 1000


@pytest.mark.slow
def test_without_a_gpu_its_stages_are_skipped_and_the_others_pass(tmp_path: Path) -> None:
    passed = ("machine", "numerics", "default")
    done = smoke(tmp_path, "--only", *passed, *WITHOUT_A_GPU, *WITHOUT_TWO)
    assert done.returncode == 0, done.stdout + done.stderr
    check_stages(tmp_path, passed)
    figures = stages(tmp_path)["default"]["figures"]
    assert figures["s/step"] >= figures["rollout s"] > 0
    assert figures["largest sampler gap"] < 1e-3


@pytest.mark.slow
def test_the_longer_stages_pass_without_a_gpu(tmp_path: Path) -> None:
    passed = [name for name, needs in LONGER.items() if importlib.util.find_spec(needs)]
    done = smoke(tmp_path, "--only", *LONGER, *WITHOUT_A_GPU, *WITHOUT_TWO)
    assert done.returncode == 0, done.stdout + done.stderr
    check_stages(tmp_path, tuple(passed))


@pytest.fixture
def modules() -> Iterator[Any]:
    with study_modules(SMOKE, "bench", "smoke") as found:
        yield found["bench"], found["smoke"]


def test_a_stage_that_fails_leaves_its_reason_and_the_others_their_turn(
    modules: Any, tmp_path: Path
) -> None:
    bench, smoke = modules
    place = bench.Bench(tmp_path, "cpu", bench.SMALL, time.monotonic() + 60)
    place.log = tmp_path / "log"

    class Stage:
        name, question, needs = "broken", "?", ()

        @staticmethod
        def run(place: Any) -> Any:
            place.call(["-c", "print('what went wrong'); raise SystemExit(3)"])

    row = smoke.try_stage(place, Stage)
    assert row["status"] == "failed"
    assert "exit code 3" in row["why"]
    assert "what went wrong" in row["why"]


def test_a_command_that_hangs_is_ended_at_the_deadline_with_all_that_it_started(
    modules: Any, tmp_path: Path
) -> None:
    bench, _ = modules
    place = bench.Bench(tmp_path, "cpu", bench.SMALL, time.monotonic() + 1)
    place.log = tmp_path / "log"
    child = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    )
    with pytest.raises(bench.StageError, match="the time was up"):
        place.call(["-c", f"{child}; p.wait()"])
    pid = int((tmp_path / "log").read_text())
    deadline = time.monotonic() + 10
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_memory_that_comes_back_is_what_ebbs_between_two_tides(modules: Any) -> None:
    bench, _ = modules
    assert bench.ebb([1, 2, 8, 7.9, 3, 8, 7.5, 1]) == (3, 8)
    assert bench.ebb([1, 2, 8, 7.9, 7.8, 1]) == (7.8, 8)
    assert bench.ebb([]) == (0, 0)


def test_an_unknown_stage_is_named(
    modules: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, smoke = modules
    monkeypatch.setattr(sys, "argv", ["smoke.py", "--only", "sleep_3"])
    assert smoke.main() == 2
    assert "sleep_3: unknown" in capsys.readouterr().out


def test_the_page_shows_what_was_kept_of_a_run() -> None:
    with study_modules(SMOKE, "report") as found:
        table = found["report"].short_table(json.loads((SMOKE / "h200/results.json").read_text()))
    assert f"<!-- seen -->\n{table}\n<!-- end -->" in (SMOKE / "README.md").read_text()
