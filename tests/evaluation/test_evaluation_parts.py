"""Problems of an evaluation shared out among processes, and what each is given."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from part_workers import fail, tell
from test_evaluation_sampling import (
    GREEDY,
    PROBLEMS,
    T1,
    DyingEngine,
    Killed,
    ListeningEngine,
    logged,
)

from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.config.composition import ConfigurationError
from e3rl.evaluation.log import COMPLETIONS, OtherSettingsError, UnusableLogError
from e3rl.evaluation.parts import PARTS, Part, open_log, parse_part
from e3rl.evaluation.processes import count_processes, run_parts, visible_devices, wait_for
from e3rl.evaluation.sampling import sample_unfinished, sampling_settings
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy
from e3rl.rewards.maths import build_math_rewards

MATCHED = Evaluation("matched", n=3, entropy=0.7)


def sampled(
    index: int,
    count: int,
    folder: Path,
    policy: Policy,
    evaluations: Sequence[Evaluation],
    engine: ListeningEngine,
) -> None:
    """What the process of a part does."""
    settings = sampling_settings(policy, PROBLEMS, evaluations, 24)
    part = Part(index, count, folder)
    opened = open_log(folder, settings, PROBLEMS, part)
    with opened as log, build_math_rewards("integer_box") as pool:
        sample_unfinished(
            *(log, policy, PROBLEMS, evaluations, engine, pool, 24, 2), progress=False, part=part
        )


def opened(folder: Path, policy: Policy, evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    with open_log(folder, sampling_settings(policy, PROBLEMS, evaluations, 24), PROBLEMS) as log:
        return log.rows


def assert_alike(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    """The same rows; sums of log-probs depend on the batch in their last digits."""
    for one, other in zip(found, expected, strict=True):
        for mine, its in zip(one["evaluations"], other["evaluations"], strict=True):
            assert mine["entropy_sum"] == pytest.approx(its["entropy_sum"], rel=1e-4)
            for a, b in zip(mine["scatter"] or [], its["scatter"] or [], strict=True):
                assert a == pytest.approx(b, rel=1e-3)
            assert mine | {"entropy_sum": 0, "scatter": 0} == its | {"entropy_sum": 0, "scatter": 0}
        assert one | {"evaluations": 0} == other | {"evaluations": 0}


@pytest.mark.parametrize("count", [2, 5, 8])
def test_parts_find_together_what_one_process_finds(
    policy: Policy, tmp_path: Path, count: int
) -> None:
    whole = logged(tmp_path / "whole", policy, [T1, GREEDY], ListeningEngine())
    engine = ListeningEngine()
    for index in range(count, 0, -1):
        sampled(index, count, tmp_path / "parts", policy, [T1, GREEDY], engine)
    assert len(engine.requests) == 6 * 4
    assert_alike(opened(tmp_path / "parts", policy, [T1, GREEDY]), whole)
    texts = [(tmp_path / name / COMPLETIONS).read_text() for name in ("parts", "whole")]
    assert texts[0] == texts[1]
    assert not (tmp_path / "parts" / PARTS).exists()
    again = ListeningEngine()
    assert logged(tmp_path / "parts", policy, [T1, GREEDY], again)
    assert again.requests == []


def test_what_a_killed_part_has_finished_is_not_sampled_again_by_others(
    policy: Policy, tmp_path: Path
) -> None:
    whole = logged(tmp_path / "whole", policy, [T1], ListeningEngine())
    with pytest.raises(Killed):  # of its three problems two are a batch
        sampled(1, 2, tmp_path / "x", policy, [T1], DyingEngine(7))
    engine = ListeningEngine()
    for index in (1, 2, 3):
        sampled(index, 3, tmp_path / "x", policy, [T1], engine)
    assert len(engine.requests) == (6 - 2) * 3
    assert_alike(opened(tmp_path / "x", policy, [T1]), whole)


def test_one_part_looks_for_a_temperature_that_all_sample_at(
    policy: Policy, tmp_path: Path
) -> None:
    whole = logged(tmp_path / "whole", policy, [MATCHED], ListeningEngine())
    first, second = ListeningEngine(), ListeningEngine()
    sampled(1, 2, tmp_path / "x", policy, [MATCHED], first)
    sampled(2, 2, tmp_path / "x", policy, [MATCHED], second)
    assert len(first.requests) >= 6 * 2 * 32 + 3 * 3  # all problems at two temperatures or more
    assert len(second.requests) == 3 * 3
    assert_alike(opened(tmp_path / "x", policy, [MATCHED]), whole)


def test_parts_with_other_settings_are_refused(policy: Policy, tmp_path: Path) -> None:
    sampled(1, 2, tmp_path, policy, [T1], ListeningEngine())
    with pytest.raises(OtherSettingsError, match=r"parts/1-of-2 holds an evaluation with other"):
        opened(tmp_path, policy, [GREEDY])
    with pytest.raises(OtherSettingsError, match=r"parts/1-of-2 holds an evaluation with other"):
        sampled(1, 3, tmp_path, policy, [GREEDY], ListeningEngine())  # before it samples anything
    assert len(read_rows(tmp_path / PARTS / "1-of-2" / COMPLETIONS)) == 3 * 3


def test_parts_that_are_still_written_are_not_taken_in(policy: Policy, tmp_path: Path) -> None:
    settings = sampling_settings(policy, PROBLEMS, [T1], 24)
    sampled(1, 2, tmp_path, policy, [T1], ListeningEngine())
    part = Part(2, 2, tmp_path)
    with open_log(tmp_path, settings, PROBLEMS, part):
        with pytest.raises(UnusableLogError, match=r"is writing an evaluation into .*/2-of-2"):
            open_log(tmp_path, settings, PROBLEMS)
        with pytest.raises(UnusableLogError, match=r"is writing an evaluation into .*/2-of-2"):
            open_log(tmp_path, settings, PROBLEMS, part)
    assert len(opened(tmp_path, policy, [T1])) == 3


def test_a_part_is_written_as_two_numbers() -> None:
    assert parse_part("2/8") == (2, 8)
    for wrong in ("0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3"):
        with pytest.raises(ConfigurationError, match="write 1/8 for the first of eight"):
            parse_part(wrong)


def test_gpus_decide_how_many_processes_there_may_be() -> None:
    four = ["0", "1", "2", "3"]
    assert count_processes("auto", [], 1) == count_processes("auto", ["0"], 2) == 1
    assert (count_processes("auto", four, 1), count_processes("auto", four, 2)) == (4, 2)
    assert (count_processes(3, [], 2), count_processes(1, ["0"], 2)) == (3, 1)
    for wrong in (0, -1, True, "many", 1.5):
        with pytest.raises(ConfigurationError, match=f"processes={wrong}: use a number above 0"):
            count_processes(wrong, four, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="processes=3 with 2 GPUs each: there are 4"):
        count_processes(3, four, 2)


def test_gpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-a")
    assert visible_devices() == ["5", "GPU-a"]


@pytest.mark.end_to_end
def test_every_process_has_a_part_and_gpus_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    run_parts(tell, {"out": str(tmp_path)}, 2, ["4", "5", "6", "7"], 2)
    told = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert told == {"1-2": "4,5", "2-2": "6,7"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    run_parts(tell, {"out": str(tmp_path)}, 1, [], 1)
    assert (tmp_path / "1-1").read_text() == "none"


def test_a_process_that_fails_after_the_last_look_is_noticed() -> None:
    class Late:
        exitcode: int | None = None
        looks = 0

        def is_alive(self) -> bool:
            self.looks += 1
            self.exitcode = 1 if self.looks > 1 else None
            return self.exitcode is None

    with pytest.raises(ChildProcessError, match="process 1 of 1 ended with exit code 1"):
        wait_for([Late()])  # type: ignore[list-item]


@pytest.mark.end_to_end
def test_one_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(ChildProcessError, match="process 2 of 3 ended with exit code 7: what it"):
        run_parts(fail, {}, 3, [], 1)
    assert time.monotonic() - began < 60
