"""What has hung is known again, and what only looks a little like it is not."""

from e3rl.rewards import hung
from e3rl.rewards.hung import HungTasks
from e3rl.rewards.scorer import Task

TOWER = "9^{9^{9^{9}}}"


def task(answer: str, gold: str = "7") -> Task:
    return Task((gold, answer), (gold, answer), group=gold, text=answer)


def test_the_same_task_is_known_at_once_and_for_its_problem_alone() -> None:
    memory = HungTasks()
    memory.add(task(TOWER))
    assert memory.knows(task(TOWER))
    assert not memory.knows(task(TOWER, gold="8"))
    assert not memory.knows(task(TOWER + "+1"))


def test_answers_that_begin_like_two_that_hung_are_known() -> None:
    memory = HungTasks()
    memory.add(task(f"{TOWER}+1"))
    memory.add(task(f"{TOWER}+2"))
    assert memory.knows(task(f"{TOWER}+3"))
    assert not memory.knows(task(f"{TOWER}+3", gold="8"))
    assert not memory.knows(task("9^{9^{9}}"))  # the beginning is not half of what hung
    assert not memory.knows(task(f"{TOWER[:12]}" + "x" * 20))  # nor of this one


def test_short_beginnings_prove_nothing() -> None:
    memory = HungTasks()
    memory.add(task("99999a"))
    memory.add(task("99999b"))
    assert not memory.knows(task("99999c"))


def test_tasks_without_a_text_are_known_by_their_keys() -> None:
    memory = HungTasks()
    for key in ("a", "b"):
        memory.add(Task(key, None))
    assert memory.knows(Task("a", None))
    assert not memory.knows(Task("c", None))


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(hung, "LONGEST_MEMORY", 3)
    memory = HungTasks()
    for number in range(5):
        memory.add(task(TOWER, gold=str(number)))
    assert [memory.knows(task(TOWER, gold=str(n))) for n in range(5)] == [
        *(False, False, True, True, True)
    ]
