"""Policies of carries_four_steps on validation problems that no other page has."""

import csv
import json
import lzma
import runpy
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from e3rl.data.carries import carry_problems

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
STUDY = EXPERIMENTS / "carries_other_validation"
SEEDS = range(236, 246)


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "compare.py"))


def run(name: str, tokens_a_step: float) -> SimpleNamespace:
    steps = np.arange(128)
    train = pd.DataFrame({"rollout_step": steps, "cost/tokens": tokens_a_step * (steps + 1)})
    return SimpleNamespace(name=name, seed=236, train=train, path=Path(name))


def samples(study: dict[str, Any]) -> list[Any]:
    """The budget solves nothing after 120 steps and everything at last."""
    solved = {("grpo", 128): 8, ("budget", 120): 0, ("budget", 128): 16, ("e3", 128): 8}
    found = [
        study["Sample"](arm, 236, steps, [right] * 1024) for (arm, steps), right in solved.items()
    ]
    return [*found, study["Sample"]("untrained", 0, 0, [20] * 512 + [0] * 512)]


def test_the_budget_is_read_where_it_had_generated_as_many_tokens(study: dict[str, Any]) -> None:
    # GRPO's 12,800 tokens are those of 125 steps of the budget: five eighths of the way.
    runs = [run("budget", 102.4), run("grpo", 100)]
    read = study["at_equal_tokens"](runs, samples(study), 1)
    np.testing.assert_allclose(read, 5 / 8)
    with pytest.raises(ValueError, match="seed 236: its runs cannot be read"):
        study["at_equal_tokens"]([run("budget", 110), run("grpo", 100)], samples(study), 1)


def test_the_budgets_policies_are_sampled_before_their_end_too(study: dict[str, Any]) -> None:
    runs = [run(name, 100) for name in ("grpo", "budget", "ts_an", "e3")]
    asked = [(arm, steps) for arm, _, steps, _ in study["policies_of"](runs)]
    assert asked == [("grpo", 128), ("budget", 120), ("budget", 128), ("e3", 128)]


def test_problems_are_in_no_other_validation() -> None:
    used = {problem.prompt for problem in carry_problems("validation", 1024)}
    new = runpy.run_path(str(STUDY / "compare.py"))["is_new"]()
    fresh = [problem.prompt for problem in carry_problems("validation", 1024, 1)]
    kept = {prompt for prompt, is_new in zip(fresh, new, strict=True) if is_new}
    assert (len(kept), kept & used) == (999, set())


def test_the_page_has_the_table_of_the_samples(study: dict[str, Any]) -> None:
    families = study["compare"](study["load_runs"](study["RUNS"]), study["read_samples"]())
    made = study["as_markdown"](
        study["comparison_cells"](families), ("arm", "family", "measure", "verdict")
    )
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    between = text.split("<!-- table: comparisons -->")[1].split("<!-- end -->")[0]
    assert between.strip() == made.strip()


def test_differences_are_what_other_code_finds_in_the_samples() -> None:
    rows = json.loads(lzma.decompress((STUDY / "samples.json.xz").read_bytes()))
    right = {(row["arm"], row["seed"], row["steps"]): row["right"] for row in rows}
    used = {problem.prompt for problem in carry_problems("validation", 1024)}
    prompts = [problem.prompt for problem in carry_problems("validation", 1024, 1)]
    new = [place for place, prompt in enumerate(prompts) if prompt not in used]
    first = right["untrained", 0, 0]
    places = {
        "pass_at_16": new,
        "pass_at_1": new,
        "easy": [place for place in new if first[place] >= 20],
        "unsolved": [place for place in new if first[place] == 0],
    }

    def level(arm: str, seed: int, family: str, steps: int = 128) -> float:
        counts = [right[arm, seed, steps][place] for place in places[family]]
        whole = family in ("pass_at_16", "unsolved")
        return sum((count > 0) if whole else count / 16 for count in counts) / len(counts)

    for family in places:
        with (STUDY / "results" / f"{family}.csv").open(encoding="utf-8") as file:
            found = {row["arm"]: float(row["difference"]) for row in csv.DictReader(file)}
        assert found.keys() == {"budget", "e3"}
        for arm, difference in found.items():
            gaps = [level(arm, seed, family) - level("grpo", seed, family) for seed in SEEDS]
            assert difference == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)
    gaps = []
    for seed in SEEDS:
        mine, other = (tokens_of(f"seed-{seed}_experiment-{arm}_") for arm in ("budget", "grpo"))
        share = (other[127] - mine[119]) / (mine[127] - mine[119])
        ends = [level("budget", seed, "pass_at_16", steps) for steps in (120, 128)]
        own = (1 - share) * ends[0] + share * ends[1]
        gaps.append(own - level("grpo", seed, "pass_at_16"))
    with (STUDY / "results" / "equal_tokens.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["difference"]) == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)


def tokens_of(run: str) -> dict[int, float]:
    """Tokens that a recorded run had generated, by rollout step."""
    with tarfile.open(EXPERIMENTS / "carries_four_steps" / "runs.tar.xz") as archive:
        (member,) = (x for x in archive.getnames() if f"{run}" in x and "metrics.jsonl" in x)
        file = archive.extractfile(member)
        assert file is not None
        data = file.read()
    text = lzma.decompress(data) if member.endswith(".xz") else data
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["rollout_step"]: row["cost/tokens"] for row in rows if "cost/tokens" in row}
