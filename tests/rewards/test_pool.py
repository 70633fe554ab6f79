import multiprocessing
import os
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import reward_compares

from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import CORRECT, ERROR, TIMEOUT, UNPARSED, WRONG, Verdict
from e3rl.rewards.worker_pool import makespan

pytestmark = pytest.mark.end_to_end

GOLD = r"\sqrt{2}"  # no number, so that answers reach the workers
RIGHT = rf"\boxed{{good {GOLD}}}"


@pytest.fixture(scope="module")
def scripted() -> Iterator[RewardPool]:
    """One pool for the tests that only look at verdicts."""
    with build_math_rewards("math_box", deadline_s=0.5, compare=reward_compares.scripted) as pool:
        yield pool


def judge(pool: RewardPool, *answers: str) -> list[Verdict]:
    for answer in answers:
        pool.submit(rf"\boxed{{{answer}}}", Question("", "", GOLD))
    return pool.collect()


def worker_pids() -> list[int]:
    children = multiprocessing.active_children()
    return [c.pid for c in children if c.name == "reward-worker" and c.pid is not None]


def test_verdicts_come_in_the_order_of_submission(scripted: RewardPool) -> None:
    answers = [f"{i} {GOLD if i % 3 else 'x'}" for i in range(40)]
    expected = [CORRECT if i % 3 else WRONG for i in range(40)]
    assert judge(scripted, *answers) == expected
    assert scripted.collect() == []


def test_verdicts_tell_what_was_answered_in_one_spelling(scripted: RewardPool) -> None:
    answers = [
        verdict.answer for verdict in judge(scripted, r"\dfrac 1 2", r"$\tfrac{1}{2}$", "hang")
    ]
    assert answers == [r"\frac{1}{2}", r"\frac{1}{2}", "hang"]


def test_submission_returns_the_position_in_the_next_collection(scripted: RewardPool) -> None:
    assert [scripted.submit(RIGHT, Question("", "", GOLD)) for _ in range(3)] == [0, 1, 2]
    assert scripted.collect() == [CORRECT] * 3
    assert scripted.submit("no box", Question("", "", GOLD)) == 0
    assert scripted.collect(progress=True) == [UNPARSED]


def test_a_hanging_answer_costs_itself_only(scripted: RewardPool) -> None:
    verdicts = judge(scripted, "hang", f"a {GOLD}", "deaf hang", f"b {GOLD}", "x")
    assert verdicts == [TIMEOUT, CORRECT, TIMEOUT, CORRECT, WRONG]


@pytest.mark.parametrize("how", ["killed", "segfault"])
def test_an_answer_that_kills_its_worker_twice_is_an_error(scripted: RewardPool, how: str) -> None:
    assert judge(scripted, how, f"c {GOLD}", "y") == [ERROR, CORRECT, WRONG]


def test_what_computed_until_the_deadline_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with build_math_rewards("math_box", 1, 0.3, compare=reward_compares.burning_forever) as pool:
        for _ in range(3):
            for answer in ("same x", "prefix of it 1", "prefix of it 2", "prefix of it 3", "quick"):
                pool.submit(rf"\boxed{{{answer}}}", Question("", "", str(log)))
            assert pool.collect() == [TIMEOUT] * 4 + [WRONG]
    assert log.read_text().splitlines() == ["same x", "prefix of it 1", "prefix of it 2", "quick"]


def test_what_only_waited_is_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with build_math_rewards("math_box", 1, 0.3, compare=reward_compares.waiting) as pool:
        for _ in range(2):
            pool.submit(r"\boxed{x}", Question("", "", str(log)))
            assert pool.collect() == [TIMEOUT]
    assert log.read_text().splitlines() == ["x", "x"]


def test_a_worker_that_dies_once_is_forgiven(tmp_path: Path) -> None:
    gold = str(tmp_path / "mark")
    with build_math_rewards("math_box", workers=1, compare=reward_compares.dies_once) as pool:
        pool.submit(r"\boxed{x}", Question("", "", gold))
        assert pool.collect() == [CORRECT]


def test_workers_killed_while_idle_are_replaced(scripted: RewardPool) -> None:
    judge(scripted, "z1")
    for pid in worker_pids():
        os.kill(pid, signal.SIGKILL)
    assert judge(scripted, *(f"{i} q" for i in range(300))) == [WRONG] * 300


def test_a_bug_in_a_worker_is_raised_with_its_traceback(scripted: RewardPool) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug of ours"):
        judge(scripted, "bug", "v")
    assert judge(scripted, f"d {GOLD}") == [CORRECT]


def test_submitting_and_collecting_work_off_the_main_thread(scripted: RewardPool) -> None:
    done: list[Verdict] = []

    def work() -> None:
        for i in range(30):
            scripted.submit(rf"\boxed{{thread {i} {GOLD}}}", Question("", "", GOLD))
        done.extend(scripted.collect())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [CORRECT] * 30


def test_concurrent_submitters_lose_nothing(scripted: RewardPool) -> None:
    def submit(name: int) -> None:
        for i in range(50):
            scripted.submit(rf"\boxed{{{name}-{i % 7} {GOLD}}}", Question("", "", GOLD))

    threads = [threading.Thread(target=submit, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scripted.collect() == [CORRECT] * 200


def test_the_same_answer_is_compared_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with build_math_rewards("math_box", compare=reward_compares.counted) as pool:
        for _ in range(2):
            for answer in ("x", "y", "x"):
                pool.submit(rf"\boxed{{{answer}}}", Question("", "any prompt", str(log)))
            assert pool.collect() == [WRONG] * 3
    assert sorted(log.read_text().split()) == ["x", "y"]


def test_jobs_take_as_long_as_the_workers_that_share_them() -> None:
    jobs = [3.0, 1.0, 1.0, 2.0]
    assert makespan(jobs, 1) == 7.0
    assert makespan(jobs, 2) == 4.0  # one does 3, the other 1 + 1 + 2
    assert makespan(jobs, 9) == 3.0
    assert makespan([1.0, 1.0, 2.0, 3.0], 2) == 4.0  # 1 + 2 beside 1 + 3
    assert makespan([], 2) == 0.0


def test_a_collection_knows_what_its_comparisons_cost_in_cpu_time() -> None:
    with build_math_rewards("math_box", workers=1, compare=reward_compares.burning) as pool:
        judge(pool, "a 0.02", "b 0.03", "a 0.02", GOLD)  # one comparison twice, one by its text
        assert 0.05 <= pool.scoring_s < 0.4  # the sleep does not count
        judge(pool, "a 0.02")
        assert pool.scoring_s == 0.0  # known
    with build_math_rewards(
        "math_box", 2, deadline_s=0.2, compare=reward_compares.scripted
    ) as pool:
        judge(pool, "hang", "hang on", "hang up")
        assert pool.scoring_s == pytest.approx(0.4)  # two deadlines in a row on one of them


def test_integers_and_wrong_formats_never_start_a_process() -> None:
    before = set(worker_pids())
    with build_math_rewards("integer_box") as pool:
        for answer in ("7", "8", "3+4", "007"):
            pool.submit(rf"\boxed{{{answer}}}", Question("", "3+4=?", "7"))
        verdicts = pool.collect()
        assert verdicts == [CORRECT, WRONG, UNPARSED, CORRECT]
        assert [verdict.answer for verdict in verdicts] == ["7", "8", None, "7"]
        assert set(worker_pids()) == before
        assert pool.counters == {"correct": 2, "wrong": 1, "unparsed": 1, "timeout": 0, "error": 0}


@pytest.mark.parametrize("answer_format", ["integer_box", "math_box"])
def test_self_test_passes_and_leaves_no_trace(answer_format: str) -> None:
    with build_math_rewards(answer_format, workers=1) as pool:  # type: ignore[arg-type]
        pool.submit("no box", Question("", "", "1"))
        pool.self_test()
        assert sum(pool.counters.values()) == 0
        assert pool.collect() == [UNPARSED]
    pool.self_test()  # closed, and not asked again


def test_self_test_names_what_a_broken_verifier_gets_wrong() -> None:
    with (
        build_math_rewards("integer_box", workers=1, compare=reward_compares.always_right) as pool,
        pytest.raises(RuntimeError, match=r"comparison of integers.*'47'.*'46'.*must be wrong"),
    ):
        pool.self_test()


def test_self_test_notices_swapped_arguments() -> None:
    with (
        build_math_rewards("math_box", workers=1, compare=reward_compares.gold_last) as pool,
        pytest.raises(RuntimeError, match="gold first"),
    ):
        pool.self_test()


def test_close_is_idempotent_and_quick_even_while_an_answer_hangs() -> None:
    others = set(worker_pids())
    pool = build_math_rewards("math_box", deadline_s=500, compare=reward_compares.scripted)
    judge(pool, "x", "y")
    pool.submit(r"\boxed{hang}", Question("", "", GOLD))
    pool.submit(r"\boxed{hang too}", Question("", "", GOLD))
    pool.submit(r"\boxed{hang as well}", Question("", "", GOLD))
    ours = set(worker_pids()) - others
    pool.close()
    pool.close()
    assert ours
    assert not ours & set(worker_pids())
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(r"\boxed{new}", Question("", "", GOLD))


def test_memory_of_a_comparison_is_bounded() -> None:
    with build_math_rewards(
        "math_box", workers=1, memory_limit_mb=128, compare=reward_compares.memory_hog
    ) as pool:
        assert judge(pool, "take 16", "take 512") == [CORRECT, WRONG]


def test_what_earlier_comparisons_have_leaked_costs_no_later_one_its_reward() -> None:
    with build_math_rewards(
        "math_box", workers=1, memory_limit_mb=128, compare=reward_compares.leaking
    ) as pool:
        answers = [f"{i} take 40" for i in range(7)]  # three fit into a worker
        assert judge(pool, *answers) == [CORRECT] * 7


def test_a_comparison_that_takes_too_much_by_itself_earns_nothing_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with build_math_rewards(
        "math_box", workers=1, memory_limit_mb=128, compare=reward_compares.leaking
    ) as pool:
        assert judge(pool, "take 16", "take 512", "take 8") == [CORRECT, ERROR, CORRECT]
    assert "it took more than memory_limit_mb=128" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"answer_format": "boxed"}, r"'boxed'.*integer_box.*math_box"),
        ({"workers": 0}, "workers=0"),
        ({"deadline_s": 0.0}, "deadline_s=0"),
        ({"deadline_s": float("nan")}, "deadline_s=nan"),
        ({"memory_limit_mb": 1}, "memory_limit_mb=1"),
        ({"max_answer_chars": 0}, "max_answer_chars=0"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build_math_rewards(**arguments)  # type: ignore[arg-type]


HOSTILE = [
    r"9^{9^{9^9}}\pi",
    r"10**10**10\pi",
    r"2^{10^9}\pi",
    r"((9!)!)!\pi",
    r"(x+y+z+w)^{200}",
    r"\sum_{n=1}^{10^9} n",
    "(" * 145 + "x" + ")" * 145,
    "9" * 10**6,
]


@pytest.mark.slow
def test_hostile_answers_earn_nothing_and_leave_their_neighbours_alone() -> None:
    neighbours = [rf"{i}+\sqrt{{2}}" for i in range(60)]
    with build_math_rewards("math_box", deadline_s=1.0, memory_limit_mb=512) as pool:
        pool.self_test()
        for i, answer in enumerate(neighbours):
            pool.submit(rf"\boxed{{{answer}}}", Question("", "", rf"\sqrt{{2}}+{i + i % 2}"))
            if i < len(HOSTILE):
                pool.submit(rf"\boxed{{{HOSTILE[i]}}}", Question("", "", r"\sqrt{5}"))
        verdicts = pool.collect()
        hostile = verdicts[1 : 2 * len(HOSTILE) : 2]
        others = verdicts[0 : 2 * len(HOSTILE) : 2] + verdicts[2 * len(HOSTILE) :]
        assert all(v.reward == 0 for v in hostile)
        assert hostile[-1] == UNPARSED
        assert others == [WRONG if i % 2 else CORRECT for i in range(60)]
        assert sum(pool.counters.values()) == len(verdicts)


STUDY = Path(__file__).parents[2] / "experiments" / "answer_verification"


@pytest.mark.parametrize("count", [68, pytest.param(10_000, marks=pytest.mark.slow)])
def test_answers_written_to_hang_crash_or_fool_a_verifier_earn_nothing(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = runpy.run_path(str(STUDY / "hostile.py"))
    answers = hostile["hostile_answers"](count, seed=7)
    assert answers == hostile["hostile_answers"](count, seed=7)
    assert {answer.family for answer in answers} == set(hostile["FAMILIES"])
    monkeypatch.chdir(tmp_path)
    scored = hostile["score"](answers)
    assert len(scored.verdicts) == count
    assert not any(verdict.reward for verdict in scored.verdicts)
    assert sum(verdict.status == "error" for verdict in scored.verdicts) == 0
    assert sum(verdict.status == "timeout" for verdict in scored.verdicts) <= count / 100 + 1
    assert list(tmp_path.iterdir()) == []  # nothing was executed


@pytest.mark.slow
def test_a_killed_trainer_leaves_no_hanging_worker(tmp_path: Path) -> None:
    """The worker's own alarm ends it, deadline and grace after the answer came."""
    pids = tmp_path / "pids"
    child = multiprocessing.get_context("spawn").Process(
        target=trainer_that_is_killed, args=(str(pids),)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = [int(pid) for pid in pids.read_text().split()]
    assert left
    patience = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in left) and time.monotonic() < patience:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in left)


def trainer_that_is_killed(pids: str) -> None:
    pool = build_math_rewards("math_box", deadline_s=3.0, compare=reward_compares.scripted)
    judge(pool, "x", "y")
    pool.submit(r"\boxed{hang}", Question("", "", GOLD))
    Path(pids).write_text(" ".join(map(str, worker_pids())))
    os.kill(os.getpid(), signal.SIGKILL)
