"""What is said of speed beside TRL is what the results hold, and its arithmetic is right."""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from e3rl.ledger.archive import open_runs
from e3rl.ledger.ledger import read_rows
from pages import ROOT
from study_scripts import study_modules

STUDY = ROOT / "experiments" / "speed"
RUN = {"seconds": 2.0, "cpu_s": 3.0, "peak_gib": 1.0, "start_s": 5.0, "tokens": 8.0, "dead": 0.0}
RUN |= {"others_cpu_s": 0.2}
PHASES = {"rollout": 0.5, "update": 1.4, "rest": 0.1}
SIZE = {"layers": 1, "hidden": 2, "inner": 3, "heads": 1, "key_value_heads": 1, "vocabulary": 5}


@pytest.fixture(scope="module")
def study() -> Iterator[dict[str, Any]]:
    """The modules of the study by name."""
    names = ("inputs", "report", "reward", "sides", "watch", "works")
    names += ("levers", "memory_profile", "messages")
    with study_modules(STUDY, *names) as modules:
        yield modules


def side(seconds: float, **others: float) -> dict[str, Any]:
    return {
        **RUN,
        "seconds": seconds,
        "phases": PHASES,
        "times": {"time/budget_s": 0.004},
        **others,
    }


@pytest.fixture
def results(study: Any) -> dict[str, Any]:
    work = {"kind": "a", "prompts": 2, "group": 2, "aim": {"seconds": 0.7, "memory": None}}
    work["aim"] |= {"utilization": 0.6}
    runs = {"trl": [side(4.0), side(2.0)], "vllm": [side(2.0), side(1.5)]}
    entry = {"work": work, "size": {**SIZE, "prompt": 3.0}, "peak": [1e-6, 1e-6], "runs": runs}
    growth = [
        {"kind": "problems", "size": n, "prompts": 32, "group": 8, "vllm": [side(s)]}
        for n, s in ((1000, 2.0), (10**6, 2.2))
    ]
    versions = {"cpu": "CPU", "cpus": 2, "ram_gib": 8.0, "platform": "P", "python": "3.11"}
    machine = versions | {"device": "cpu", "precision": "float32", "threads": 2, "commit": "abc"}
    machine |= {"e3rl": {"torch": "2"}, "trl": {"trl": "1.16.0"}}
    return {"machine": machine, "works": {"equal": entry}, "growth": growth}


def test_ratios_are_those_of_pairs(study: Any, results: dict[str, Any]) -> None:
    table = study["report"].work_table(results)
    # 2 / 4 and 1.5 / 2: not 1.75 / 3
    assert "0.62 [0.50, 0.75]" in table
    assert "something else took 7 % in the worst run" in table  # 0.2 of 1.5 s on 2 processors


def test_the_verdict_holds_every_figure_against_its_aim(
    study: Any, results: dict[str, Any]
) -> None:
    said = study["report"].verdict(results).splitlines()
    assert said[0] == "- equal, vLLM: seconds 0.62 of TRL's (aim: at most 0.7): reached."
    assert "(aim: at least 0.6)" in said[1]
    assert said[2].endswith("(aim: at most 0.03): **not reached**.")  # 0.1 of 2 and of 1.5 s
    assert "seconds per token 1.10 of the smallest's" in said[3]
    assert "budget 0.0018 of a step (aim: at most 0.01): reached" in said[4]


def test_the_operations_of_an_update_count_prompts_once_and_no_dead_groups(study: Any) -> None:
    work = {"prompts": 2, "group": 2}
    size = {**SIZE, "prompt": 3.0}
    weights = 2 * 4 + 2 * 2 * 2 + 3 * 2 * 3  # 34 in the linear layers
    pairs = 2 * 4.5 + 4 * (2 * 3 + 2)  # two prompts of 3, four completions of 2
    alive = 3 * (2 * weights * (6 + 8) + 2 * 2 * 5 * 8 + 4 * 2 * pairs)
    flops = study["report"].update_flops
    assert flops(size, work, {"tokens": 8.0, "dead": 0.0}) == alive
    assert flops(size, work, {"tokens": 8.0, "dead": 0.5}) == alive / 2


def test_tables_go_between_their_marks_and_nowhere_else(study: Any) -> None:
    insert = study["report"].insert
    text = "a\n<!-- table: x -->\nold\n<!-- end -->\nb"
    once = insert(text, "x", "new")
    assert once == "a\n<!-- table: x -->\n\nnew\n\n<!-- end -->\nb"
    assert insert(once, "x", "new") == once
    with pytest.raises(ValueError, match="no place for the table y"):
        insert(text, "y", "new")


def test_a_report_is_drawn_and_written(study: Any, results: dict[str, Any], tmp_path: Path) -> None:
    study["report"].write_report(results, tmp_path)
    assert (tmp_path / "figures" / "speed.png").is_file()
    assert "| (a) equal | TRL |" in (tmp_path / "README.md").read_text()


def test_the_readme_is_that_of_the_results(study: Any, results: dict[str, Any]) -> None:
    found = STUDY / "results.json"
    text = (STUDY / "README.md").read_text()
    if not found.is_file():  # nothing is measured, so no number may stand there
        assert text.count("-->\n<!-- end -->") == len(study["report"].tables(results))
        return
    for name, table in study["report"].tables(json.loads(found.read_text())).items():
        assert study["report"].insert(text, name, table) == text, name


@pytest.mark.parametrize(
    ("module", "place", "name"),
    [
        ("levers", "levers", "levers.json"),
        ("memory_profile", "memory", "memory.json"),
        ("messages", "messages", "messages.json"),
    ],
)
def test_tables_of_profiles_are_those_of_their_results(
    module: str, place: str, name: str, study: Any
) -> None:
    readme = (STUDY / "README.md").read_text()
    table = study[module].table(json.loads((STUDY / name).read_text()))
    assert study["report"].insert(readme, place, table) == readme


def test_a_message_belongs_to_the_function_that_sends_it(study: Any, tmp_path: Path) -> None:
    """Messages of objects, which are made of others, count once."""
    messages = study["messages"]
    sent: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in messages.MESSAGES:
            patch.setattr(torch.distributed, name, lambda *_, name=name, **__: sent.append(name))
        patch.setattr(messages.atexit, "register", lambda *_: None)
        patch.setattr(
            torch.distributed,
            "all_gather_object",
            lambda *_: torch.distributed.all_gather([], None),
        )
        profiler = messages.MessageProfiler(str(tmp_path / "found.json"))
        torch.distributed.all_gather_object([], 1)
        torch.distributed.all_reduce(1)
        profiler._write(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert sent == ["all_gather", "all_reduce"]
    assert [entry[0] for entry in found.values()] == [2]
    assert list(found) == ["Lightning"]  # no function of e3rl's is on the way here


def test_the_share_of_dead_groups_is_that_of_the_recorded_runs(study: Any) -> None:
    start, middle = [], []
    for folder in sorted(open_runs(ROOT / "experiments" / "runs").glob("seed-*_experiment-grpo")):
        rows = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "train"]
        silent = [row["advantage/silent"] for row in rows]
        start += silent[:8]
        middle += silent[len(silent) // 3 : 2 * len(silent) // 3]
    works = study["works"]
    assert pytest.approx(mean(start), abs=0.001) == works.DEAD_AT_THE_START
    assert pytest.approx(mean(middle), abs=0.001) == works.DEAD_AT_MID_TRAINING


def test_rewards_differ_between_completions_and_dead_problems_earn_nothing(study: Any) -> None:
    score = study["reward"].score
    drawn = {score(text, "0", "p", "hash", False) for text in ("a", "b", "c")}
    assert len(drawn) == 3
    assert all(0 <= reward < 1 for reward in drawn)
    assert score("a", "0", "p", "hash", True) == 0.0
    assert score(r"\boxed{1} so \boxed{-7}", "-7", "p", "box", False) == 1.0
    assert score("-7", "-7", "p", "box", False) == 0.0


def test_a_policy_whose_lengths_are_fixed_never_ends(study: Any, tmp_path: Path) -> None:
    from e3rl.engines.base import RolloutRequest
    from e3rl.engines.transformers import TransformersEngine
    from e3rl.policy.policy import Policy

    for name in ("embedded", "tiny"):
        policy = Policy(str(study["inputs"].make_policy(tmp_path, name, fixed=True)))
        engine = TransformersEngine(progress=False)
        engine.sync(policy, 0)
        prompt = tuple(range(4, 12))
        requests = [RolloutRequest(0, j, prompt, 1.0, j, 40) for j in range(16)]
        rollouts = list(engine.generate(requests))
        assert {len(rollout.tokens) for rollout in rollouts} == {40}
        assert len({rollout.tokens for rollout in rollouts}) == 16


def test_marked_problems_are_the_share_that_was_asked_for(study: Any, tmp_path: Path) -> None:
    work = replace(study["works"].WORKS[3], policy="tiny", prompts=8)
    train, validation = study["inputs"].make_problems(tmp_path, work)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert [row["dead"] for row in rows].count(True) == 2
    assert len({row["prompt"] for row in rows}) == 8
    assert len(validation.read_text().splitlines()) == 1


def test_a_watched_process_gives_its_rows_times_and_processor_seconds(
    study: Any, tmp_path: Path
) -> None:
    rows, log = tmp_path / "rows.jsonl", tmp_path / "log"
    code = (
        "import sys, time\n"
        "for i in range(2):\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    print('{\"step\": %d}' % i, file=open(sys.argv[1], 'a'), flush=True)\n"
        "time.sleep(0.5)\n"
    )
    watch = study["watch"].watch
    command = [sys.executable, "-c", code, str(rows)]
    seen = watch(command, rows, lambda row: True, {}, log)
    assert [s.row["step"] for s in seen] == [0, 1]
    assert seen[1].at > seen[0].at > 0
    rounded = 4 / study["watch"].TICKS  # the kernel cuts each of four counts to whole ticks
    assert seen[1].cpu_s >= 0.6 - rounded
    assert seen[1].peak_gib > 0
    with pytest.raises(RuntimeError, match="no_such_name"):
        watch([sys.executable, "-c", "no_such_name"], rows, lambda row: True, {}, log)


def test_a_step_lasts_from_row_to_row_and_the_first_is_dropped(study: Any) -> None:
    Seen, summarize = study["watch"].Seen, study["sides"].summarize
    row = {"tokens": 10, "dead": 0.5, "rollout": 1.0, "update": 0.5, "rest": 0.1, "reward": 0.0}
    seen = [Seen(row, at, 2 * at, 1.0, 3 * at) for at in (20.0, 22.0, 23.0, 27.0)]
    summary = summarize(seen, study["sides"].trl_phases, "tokens", "dead")
    assert (summary["seconds"], summary["cpu_s"], summary["steps"]) == (2.0, 4.0, 3)
    assert summary["start_s"] == 18.0
    assert summary["others_cpu_s"] == pytest.approx(7 / 3, abs=1e-3)
    with pytest.raises(RuntimeError, match="2 are needed"):
        summarize(seen[:1], study["sides"].trl_phases, "tokens", "dead")


def test_phases_of_the_ledger_make_up_the_step(study: Any) -> None:
    phases = study["sides"].e3rl_phases
    names = ("sync", "rollout", "reward", "probe", "forward", "backward", "optimizer")
    found = phases({f"phase/{name}_s": 0.25 for name in names}, 2.0)
    assert (found["rollout"], found["update"], found["rest"]) == (0.75, 1.0, 0.25)


def test_the_readme_says_the_sizes_that_are_run(study: Any) -> None:
    text = (STUDY / "README.md").read_text()
    works = {w.name: w for w in study["works"].WORKS}
    embedded, larger = works["equal work, embedded"], works["equal work, 134M"]
    assert f"32 x 8 x {embedded.new_tokens} tokens" in text
    assert f"2 x 8 x {larger.new_tokens} behind prompts of {larger.prompt_tokens}" in text
    share = works["real work, embedded"].forced_dead
    assert re.search(rf"{100 * share:.1f} % of the problems are marked", text)


def test_packages_that_are_on_the_path_alone_are_there_for_e3rls_side(
    study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/packages")
    assert study["sides"].python_path().split(os.pathsep)[2:] == ["/packages"]
    monkeypatch.delenv("PYTHONPATH")
    assert len(study["sides"].python_path().split(os.pathsep)) == 2
