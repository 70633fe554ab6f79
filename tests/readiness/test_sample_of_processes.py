"""One sample of what several processes measured, and how many processes there are."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.readiness import processes
from e3rl.readiness.partial_sample import PartialSample, combine
from e3rl.readiness.processes import choose_processes


def part(names: str, **changes: Any) -> PartialSample:
    """Prompts named by letters, two rollouts of three tokens each; half of the rollouts right."""
    n = len(names)
    values: dict[str, Any] = {
        "prompt_ids": list(names),
        "right": np.array([ord(name) % 3 for name in names]),
        "rollouts": np.full(n, 2),
        "lengths": np.full(2 * n, 3),
        "truncated": np.zeros(2 * n, dtype=bool),
        "answered": np.ones(2 * n, dtype=bool),
        "statuses": {"correct": n, "wrong": n},
        "surprise": 0.5 * 6 * n,
        "generation_s": 2.0,
        "reward_s": 0.0,
        "update_s": 0.1,
        "gaps": np.zeros(4),
    }
    return PartialSample(**(values | changes))


def test_parts_make_one_sample_in_the_order_of_the_problems() -> None:
    second = part(
        "bd",
        **{"surprise": 12.0, "generation_s": 3.0, "reward_s": 0.5, "update_s": 0.3},
        **{"gaps": np.array([0.0, 0.2, 0.0, -0.1]), "statuses": {"correct": 1, "timeout": 3}},
    )
    whole = combine([part("ace"), second], "abcde", 0.9)
    assert whole.prompt_ids == list("abcde")
    assert whole.right.tolist() == [ord(name) % 3 for name in "abcde"]
    assert whole.statuses == {"correct": 4, "wrong": 3, "timeout": 3}
    assert whole.entropy == pytest.approx((0.5 * 18 + 12.0) / 30)
    assert (whole.generation_s, whole.reward_s, whole.processes) == (3.0, 0.5, 2)
    assert whole.tokens_per_s == pytest.approx(30 / 3.0)
    assert whole.update_s == pytest.approx(0.2)
    # A token takes 1/10 s to sample, and 0.2 s on one of two devices.
    assert whole.trained_tokens_per_s == pytest.approx(1 / (0.1 + 0.1))
    assert whole.mismatch.tokens == 8
    assert whole.mismatch.largest == pytest.approx(0.2)


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = part("ac", statuses=Counter(correct=3, wrong=1))
    written.write(tmp_path / "part.npz")
    found = PartialSample.read(tmp_path / "part.npz")
    assert found.prompt_ids == ["a", "c"]
    assert found.statuses == {"correct": 3, "wrong": 1}
    assert (found.surprise, found.generation_s) == (written.surprise, 2.0)
    for name in ("right", "rollouts", "lengths", "truncated", "answered", "gaps"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ((), 1),
        (("trainer=ddp", "trainer.devices=4"), 4),
        (("trainer=ddp", "trainer.devices=4", "trainer.num_nodes=2"), 4),
        (("trainer=ddp", "trainer.devices=4", "preflight.prompts=3"), 3),
        (("trainer=ddp", "trainer.devices=4", "preflight.processes=2"), 2),
        (("trainer=ddp", "trainer.devices=2", "engine=vllm_server", "engine.urls=[http://a]"), 1),
    ],
)
def test_as_many_processes_sample_as_train_on_this_machine(
    settings: tuple[str, ...], count: int
) -> None:
    cfg = composed(*settings, "trainer.accelerator=cpu", root="preflight")
    assert choose_processes(cfg, cfg.preflight.prompts) == count


def test_there_are_no_more_processes_than_problems_or_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    four = ("trainer=ddp", "trainer.devices=4")
    cpu = composed(*four, "trainer.accelerator=cpu", root="preflight")
    assert choose_processes(cpu, 3) == 3
    monkeypatch.setattr(processes, "visible_devices", lambda: ["0", "1"])
    assert choose_processes(composed(*four, root="preflight"), 2) == 2
    with pytest.raises(ConfigurationError, match="processes=4 with 1 GPUs each: there are 2"):
        choose_processes(composed(*four, root="preflight"), 64)
