"""Problems of the tasks of reasoning-gym: any of them, or a mixture.

They are generated once, in a process of its own whose hashes are not randomised: some tasks (word
ladders, ransom notes) walk over sets of strings and would give other problems in every process,
others draw from the random numbers of the process, which are seeded for each problem. The same
settings give the same problems everywhere, which a checkpoint and all ranks rely on.

Splits are disjoint for every seed and size because the hash of a question decides its split. The
question is hashed in a normal form, so that 3+4 and 4+3 are one (`normal_form`).
"""

import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from tqdm import tqdm

from e3rl.data.problem import Problem
from e3rl.data.questions import question_key
from e3rl.rewards.gym_task import BLOCK, GymTask, list_tasks, require_reasoning_gym, write_entry
from e3rl.seeds import derive_seed
from e3rl.statistics.apportion import water_fill

Split = Literal["train", "validation"]
Tasks = str | Sequence[str] | Mapping[str, float]
Knobs = Mapping[str, Mapping[str, Any]]
Levels = Mapping[str, int | Sequence[int]]

BUCKETS = 4  # of the hash of a question; one of them is validated on
PATIENCE = 400  # draws in a row that bring no new question, after which there are none left
SEED_RANGE = 2**31  # NumPy takes no larger ones
# A solution that is not given as the answer, since others are right as well.
SOLUTIONS = {
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
    "graph_color": "possible_answer",
}
_FACTOR = r"[+-]?\d+(?:\.\d+)?"
_TERM = re.compile(rf"([+-]?)({_FACTOR}(?:[*/]{_FACTOR})*)")


@dataclass(frozen=True)
class _Share:
    """So many problems of a task and level."""

    task: GymTask
    count: int


def reasoning_gym_problems(
    tasks: Tasks,
    split: Split,
    size: int,
    seed: int = 0,
    knobs: Knobs | None = None,
    levels: Levels | None = None,
) -> list[Problem]:
    """`size` different problems, in mixed order.

    A problem's source is its task and its id `task:settings:seed:number of the draw`, so that
    equal ids are equal problems whatever the size. Its level is that of the task's curriculum
    where one is given, else a whole `difficulty` that the task says it has, else None. Its `row`
    holds what `reward=reasoning_gym` needs.

    Args:
        tasks: a name, several for equal shares, or a weight by name.
        split: `train`, three quarters of all questions, or `validation`, the others.
        size: number of problems.
        seed: of the draws; any will do, splits are disjoint for all of them.
        knobs: settings by task, fields of its configuration in reasoning-gym.
        levels: level, or levels in equal shares, of the curriculum by task, 0 = easiest.

    Raises ValueError for unknown tasks, knobs and levels, with those there are, and where a task
    does not have that many different questions; ModuleNotFoundError without reasoning-gym.
    """
    (problems,) = reasoning_gym_sets(tasks, {split: size}, seed, knobs, levels)
    return problems


def reasoning_gym_sets(
    tasks: Tasks,
    sizes: Mapping[Split, int],
    seed: int = 0,
    knobs: Knobs | None = None,
    levels: Levels | None = None,
) -> list[list[Problem]]:
    """`reasoning_gym_problems` of several splits, by their sizes.

    The process that they are generated in takes seconds to load reasoning-gym; here it is one.
    """
    require_reasoning_gym()
    if unknown := sizes.keys() - set(get_args(Split)):
        raise ValueError(f"split={unknown.pop()!r}: choose one of {', '.join(get_args(Split))}")
    wanted = [
        (_share_out(tasks, size, knobs or {}, levels or {}), split, seed)
        for split, size in sizes.items()
    ]
    found = _run_reproducibly(wanted)
    for problems, split in zip(found, sizes, strict=True):
        random.Random(derive_seed("reasoning-gym", seed, split, "order")).shuffle(problems)
    return found


def normal_form(task: str, question: str, metadata: Mapping[str, Any]) -> str:
    """Equal for questions that ask the same.

    Sums and products are equal when they have the same terms, gcd and lcm when they have the same
    numbers, and the legs of animals when they have the same animals, in any order. Brackets and
    quotients are kept as they are; of other tasks, the text counts (`question_key`).
    """
    match task:
        case "chain_sum" | "decimal_chain_sum" | "products" | "basic_arithmetic":
            return f"{task}:{_sort_terms(metadata['expression'])}"
        case "gcd" | "lcm":
            return f"{task}:{sorted(metadata['numbers'])}"
        case "leg_counting":
            return f"{task}:{sorted(metadata['animals'].items())}"
        case _:
            return question_key(Problem("", question, "", task))


def _sort_terms(expression: str) -> str:
    """`7 - 2*3 + 4` as `+4 +7 -2*3`; an expression with brackets without blanks."""
    text = "".join(expression.split())
    terms = []
    position = 0
    while term := _TERM.match(text, position):
        sign, factors = term.groups()
        if "/" not in factors:
            factors = "*".join(sorted(factors.split("*")))
        terms.append(f"{sign}{factors}".replace("--", "+").replace("+-", "-").replace("-+", "-"))
        position = term.end()
    if position < len(text):
        return text
    return " ".join(sorted(t if t[0] in "+-" else f"+{t}" for t in terms))


def _share_out(tasks: Tasks, size: int, knobs: Knobs, levels: Levels) -> list[_Share]:
    """How many problems of each task and level, as near to the weights as whole numbers are."""
    tasks = [tasks] if isinstance(tasks, str) else tasks
    weights = dict(tasks) if isinstance(tasks, Mapping) else dict.fromkeys(tasks, 1.0)
    if not weights:
        raise ValueError("tasks: name at least one task of reasoning-gym, e.g. tasks=[chain_sum]")
    if bad := [f"{name}: {w!r}" for name, w in weights.items() if not _is_weight(w)]:
        raise ValueError(f"tasks: weights must be numbers above 0, not {', '.join(bad)}")
    for name, given in (("knobs", knobs), ("levels", levels)):
        if strange := sorted(set(given) - set(weights)):
            raise ValueError(
                f"{name}: {', '.join(strange)} is not among the tasks {', '.join(weights)}"
            )
    chosen = [
        (GymTask(name, level, dict(knobs.get(name) or {})), weight / len(each))
        for name, weight in weights.items()
        for each in [_as_list(levels.get(name))]
        for level in each
    ]
    kinds = range(len(chosen))
    counts = water_fill([weight for _, weight in chosen], max(size, 0), 0, max(size, 0), kinds)
    if without := [task.name for (task, _), n in zip(chosen, counts, strict=True) if n == 0]:
        raise ValueError(
            f"size={size} leaves no problem for {', '.join(without)}: ask for more, or for fewer "
            "tasks and levels"
        )
    return [_Share(task, int(n)) for (task, _), n in zip(chosen, counts, strict=True)]


def _as_list(levels: int | Sequence[int] | None) -> Sequence[int | None]:
    return [levels] if levels is None or isinstance(levels, int) else list(dict.fromkeys(levels))


def _is_weight(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


def _run_reproducibly(wanted: list[tuple[list[_Share], Split, int]]) -> list[list[Problem]]:
    """`_generate` of each in a process where equal strings have equal hashes."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return [process.submit(_generate, *each).result() for each in wanted]
    finally:
        del os.environ["PYTHONHASHSEED"]
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


def _generate(shares: list[_Share], split: Split, seed: int) -> list[Problem]:
    """The problems of all shares; of a question that two shares ask, the first one's."""
    list_tasks()  # loads reasoning-gym, whose seconds are not to count as the first problem's
    seen: set[str] = set()
    return [problem for share in shares for problem in _draw_distinct(share, split, seed, seen)]


def _draw_distinct(share: _Share, split: Split, seed: int, seen: set[str]) -> list[Problem]:
    """The first problems in the sequence of draws that are of the split and not in `seen`."""
    found: list[Problem] = []
    fruitless = 0
    draws = _draw(share.task, seed)
    with tqdm(total=share.count, desc=f"{share.task.name} problems", delay=5) as bar:
        while len(found) < share.count:
            number, entry = next(draws)
            key = normal_form(share.task.name, entry["question"], entry["metadata"])
            fruitless = fruitless + 1 if key in seen else 0
            if fruitless > PATIENCE:
                raise ValueError(
                    f"task {share.task.name} with {share.task.settings} gave only {len(found)} "
                    f"different questions to {'train' if split == 'train' else 'validate'} on, not "
                    f"{share.count}, and {PATIENCE} draws no other: ask for a smaller size, or "
                    "make it harder"
                )
            is_wanted = key not in seen and split_of(key) == split
            seen.add(key)
            if is_wanted:
                found.append(_make_problem(share.task, f"{seed}:{number}", entry))
                bar.update()
    return found


def split_of(key: str) -> Split:
    """The split that a question belongs to, by its normal form."""
    return "train" if derive_seed("reasoning-gym", key) % BUCKETS else "validation"


def _draw(task: GymTask, seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered entries without end. A dataset is a function of its seed plus the index, so blocks
    have seeds that are far apart."""
    number = 0
    while True:
        block = derive_seed("reasoning-gym", task.name, task.settings, seed, number // BLOCK)
        dataset = task.dataset(block % SEED_RANGE)
        for index in range(BLOCK):
            yield number, _generate_entry(dataset, index, (block + index) % SEED_RANGE)
            number += 1


def _generate_entry(dataset: Any, index: int, seed: int) -> dict[str, Any]:
    """An entry that does not depend on those before it: programs that tasks run (codeio) draw from
    the random numbers of the process."""
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry: dict[str, Any] = dataset[index]
    return entry


def _make_problem(task: GymTask, place: str, entry: Mapping[str, Any]) -> Problem:
    answer = entry["answer"]
    if answer is None and task.name in SOLUTIONS:
        solution = entry["metadata"][SOLUTIONS[task.name]]
        answer = solution if isinstance(solution, str) else json.dumps(solution)
    return Problem(
        id=f"{task.name}:{task.digest}:{place}",
        prompt=entry["question"],
        answer="" if answer is None else str(answer),
        source=task.name,
        level=_level(entry["metadata"]) if task.level is None else task.level,
        row={"task": task.name, "settings": task.settings, "entry": write_entry(entry)},
    )


def _level(metadata: Mapping[str, Any]) -> int | None:
    """The difficulty that a task states as one whole number."""
    stated = metadata.get("difficulty_rating", metadata.get("difficulty"))
    if isinstance(stated, Mapping):
        stated = stated.get("difficulty")
    whole = isinstance(stated, int | float) and not isinstance(stated, bool) and stated % 1 == 0
    return int(stated) if whole else None
