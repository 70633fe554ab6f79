"""Numbers of studies' prose that no table prints: the words, and what computes them."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pages import ROOT

STUDIES = ROOT / "experiments"


class Computed(NamedTuple):
    page: str
    words: str  # with a place for every number
    numbers: Callable[[], Iterator[str]]


def csv(study: str, table: str) -> pd.DataFrame:
    return pd.read_csv(STUDIES / study / "results" / f"{table}.csv")


def one(study: str, table: str, **wanted: Any) -> dict[str, Any]:
    """The only row with these values."""
    found = csv(study, table)
    for column, value in wanted.items():
        found = found[found[column] == value]
    (row,) = found.to_dict("records")
    return row


def short(value: float, digits: int, sign: str = "") -> str:
    """Without a 0 before the point."""
    return (
        f"{value:{sign}.{digits}f}".replace("0.", ".", 1)
        if abs(value) < 1
        else (f"{value:{sign}.{digits}f}")
    )


def noise(budget: str, loss: str) -> list[float]:
    """Noise of a rule beside even groups' under the same arm and loss, %, from the lowest on."""
    cells = csv("ablation_grid", "cells").set_index(["budget", "loss", "arm"])["noise"].sort_index()
    return sorted(100 * (cells[budget, loss] / cells["uniform", loss] - 1))


def noise_of_grpo(budget: str) -> float:
    cells = csv("ablation_grid", "cells").set_index(["budget", "loss", "arm"])["noise"]
    return float(100 * (cells[budget, "grpo", "grpo"] / cells["uniform", "grpo", "grpo"] - 1))


def token_means() -> Iterator[str]:
    knapsack, e3, hora = (noise(budget, "grpo") for budget in ("knapsack", "e3_rank", "hora"))
    yield from (short(knapsack[0], 1), f"{knapsack[-1]:.1f}", f"{e3[0]:.1f}", f"{e3[-1]:.1f}")
    yield from (f"{hora[0]:.0f}", f"{hora[-1]:.0f}")


def prompt_means() -> Iterator[str]:
    for budget in ("knapsack", "hora"):
        found = noise(budget, "rloo_by_prompt")
        yield from (f"{found[0]:.0f}", f"{found[-1]:.0f}")


def order_of_noise() -> Iterator[str]:
    yield short(noise_of_grpo("knapsack"), 1)
    yield from (f"{noise_of_grpo(budget):+.1f}" for budget in ("e3_rank", "hora"))


def judged_512() -> Iterator[str]:
    found = json.loads((STUDIES / "answer_verification" / "results.json").read_text())
    yield from (
        f"{512 / pool['answers_per_s']:{form}}"
        for pool, form in zip(found["pool_long"], (".1f", ".2f"), strict=True)
    )


def overlap(policy: str) -> Iterator[str]:
    found = json.loads((STUDIES / "vllm_throughput" / "results.json").read_text())
    gain = found[policy]["scoring"]["gain_by_clock"]
    yield from (f"{gain[name]:.3f}" for name in ("median", "least", "greatest"))


def memory() -> Iterator[str]:
    found = csv("resources", "resources")["memory_gib"]
    yield from (f"{found.min():.1f}", f"{found.max():.1f}")


def means_over_training() -> Iterator[str]:
    """Both differences, and the least round bound that both p are below."""
    rows = [
        one("entropy_control", "accuracy", arm=arm, evaluation="t1", measure="mean pass@1")
        for arm in ("ts", "ts_an")
    ]
    yield from (short(100 * row["difference"], 1, "+") for row in rows)
    yield short(np.ceil(1e3 * max(row["p_adjusted"] for row in rows)) / 1e3, 3)


def schedule_of_the_older_runs() -> Iterator[str]:
    row = one("entropy_control", "accuracy", arm="ts", evaluation="t1", measure="pass@1")
    yield f"{100 * row['difference']:.2f}"


def p_of_one_look() -> Iterator[str]:
    row = one("carries_policies", "pass_at_1", arm="grpo_er")
    yield short(row["p_adjusted"] / row["looks"], 3)


def p_of_both_looks() -> Iterator[str]:
    row = one("carries_policies", "pass_at_1", arm="grpo_er")
    yield from (short(row["p_adjusted"] / row["looks"], 3), short(row["p_adjusted"], 3))


def entropy_errors() -> Iterator[str]:
    tables = [csv("carries_policies", name) for name in ("pass_at_64", "pass_at_16", "pass_at_1")]
    found = 100 * pd.concat(tables)["entropy_error"]
    yield from (short(found.min(), 2), short(found.max(), 2))


def p_among_four() -> Iterator[str]:
    """As it was corrected before more comparisons came to the page."""
    row = one("carries_policies", "unsolved", arm="budget")
    yield short(4 * row["p"], 3)


def of_the_core() -> Iterator[str]:
    budget = one("carries_core", "many_tries", arm="budget")
    e3 = one("carries_core", "primary", arm="e3")
    yield from (with_interval(row) for row in (budget, e3))


def rollouts_of_ten_seeds() -> Iterator[str]:
    found = csv("carries_weights", "main_effects")
    (row,) = found[found["arm"] == "budget&budget_by_prompt"].to_dict("records")
    yield f"{100 * row['difference']:+.1f}"


def with_interval(row: dict[str, Any]) -> str:
    mean, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def entropies(study: str, table: str, *cells: tuple[str, str], digits: int = 3) -> Iterator[str]:
    """Of arms and windows, in this order."""
    for arm, window in cells:
        yield short(one(study, table, arm=arm, window=window)["value"], digits)


def sds_of_seeds() -> Iterator[str]:
    found = 100 * np.sqrt(csv("entropy_control", "power")["seed_variance_high"])
    yield from (f"{found.min():.1f}", f"{found.max():.1f}")


def answers(column: str, digits: int, *arms: str) -> Iterator[str]:
    """Of gain modes, without a 0; by falling size where no arm is named."""
    found = csv("gain_modes", "response").set_index("arm")[column]
    scale = 1 if column == "rise" else 100
    values = [found[arm] for arm in arms] or sorted({found.min(), found.max()}, key=abs)
    yield from (short(scale * value, digits) for value in values)


def ratios_by_seed(arm: str, target: str) -> list[str]:
    text = (STUDIES / "contrasts.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {arm} | {target} % |"))
    return [cell.strip().removeprefix("0") for cell in line.split("|")[3:-1]]


def of_schedules_and_e3() -> Iterator[str]:
    assert ratios_by_seed("ts", "57.5") == ratios_by_seed("ts_an", "57.5")
    yield from ratios_by_seed("ts", "57.5")
    yield from ratios_by_seed("e3", "57.5")


def least_and_most(*targets: str) -> Iterator[str]:
    for target in targets:
        found = sorted(
            (ratio for arm in ("ts", "ts_an") for ratio in ratios_by_seed(arm, target)), key=float
        )
        yield from (found[0], found[-1])


def detectable(*tables: tuple[str, str]) -> Iterator[str]:
    """The least and the largest."""
    found = 100 * pd.concat([csv(*table)["detectable"].dropna() for table in tables])
    yield from (f"{found.min():.1f}", f"{found.max():.1f}")


def detectable_at_one(study: str) -> Iterator[str]:
    """Of pass@1 at temperature 1."""
    found = csv(study, "accuracy")
    found = found[(found["measure"] == "pass@1") & (found["evaluation"] == "t1")]
    found = 100 * found["detectable"].dropna()
    yield from (f"{found.min():.1f}", f"{found.max():.1f}")


def covered(
    file: str, wanted: Callable[[dict[str, Any]], bool], hundred: str = ".1f"
) -> Iterator[str]:
    """Least and largest share of intervals that hold the truth, %."""
    rows = json.loads((STUDIES / "coverage" / f"{file}.json").read_text())
    found = [100 * row["covered"] for row in rows if wanted(row)]
    yield f"{min(found):.1f}"
    yield f"{max(found):{hundred}}"


def of_seeds(row: dict[str, Any]) -> bool:
    return row["n_seeds"] in (5, 10)


def of_failures(*measures: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["luck"] == "failures" and row["measure"] in measures


FIRST, LAST = "first 8 steps", "last 10 steps"
COMPUTED = (
    Computed(
        "ablation_grid",
        "they cost {} to {} % (knapsack), {} to {} % (e3_rank) or {} to {} % (hora)",
        token_means,
    ),
    Computed("ablation_grid", "(knapsack +{} to {} %, hora +{} to {} %)", prompt_means),
    Computed("rollout_budget", "knapsack {} %, e3_rank {} %, hora {} %", order_of_noise),
    Computed("answer_verification", "are judged in {} s by one worker and {} s by two", judged_512),
    Computed("vllm_throughput", "a step took {} ({} to {}) times", lambda: overlap("embedded")),
    Computed(
        "vllm_throughput", "and {} ({} to {}) with the 30M one", lambda: overlap("random 30M")
    ),
    Computed("resources", "peaks at {} to {} GiB", memory),
    Computed(
        "entropy_control",
        "their means over training more clearly ({} and {}, p below {})",
        means_over_training,
    ),
    Computed(
        "arithmetic_schedules",
        "with a schedule was {} points above GRPO",
        schedule_of_the_older_runs,
    ),
    Computed(
        "arithmetic_schedules",
        "If the truth is the +{} of the older runs",
        schedule_of_the_older_runs,
    ),
    Computed("carries_policies", "p in pass@1 was {}, and no verdict", p_of_one_look),
    Computed("carries_ten_seeds", "in pass@1 goes from p {} to {})", p_of_both_looks),
    Computed("carries_policies", "themselves are known is {} to {} %", entropy_errors),
    Computed("carries_ten_seeds", "were looked at before ( p {})", p_among_four),
    Computed(
        "carries_first_policies",
        "after 128 steps, {}, and  lowers pass@1 at equal tokens, {}.",
        of_the_core,
    ),
    Computed("carries_factorial", "their page has {} for the rollouts", rollouts_of_ten_seeds),
    Computed(
        "carries_factorial", "of the rollouts was {}, with an interval", rollouts_of_ten_seeds
    ),
    Computed(
        "entropy_control",
        "of its entropy ({} → {}).",
        lambda: entropies("entropy_control", "entropy", ("grpo", FIRST), ("grpo", LAST)),
    ),
    Computed(
        "entropy_control",
        "TS holds it: {} up to the start of annealing, {} at the end.",
        lambda: entropies("entropy_control", "entropy", ("ts", "steps 20 to 115"), ("ts", LAST)),
    ),
    Computed(
        "entropy_control",
        "TS + AN ends at {} and E3 at {}, nine",
        lambda: entropies("entropy_control", "entropy", ("ts_an", LAST), ("e3", LAST)),
    ),
    Computed(
        "entropy_control",
        "ER slows the fall ({}).",
        lambda: entropies("entropy_control", "entropy", ("grpo_er", LAST)),
    ),
    Computed(
        "entropy_control",
        "where GRPO does ({} and {} against {}).",
        lambda: entropies(
            "entropy_control", "entropy_at_one", ("ts", LAST), ("ts_an", LAST), ("grpo", LAST)
        ),
    ),
    Computed(
        "entropy_control",
        "E3's {} is of rollouts",
        lambda: entropies("entropy_control", "entropy_at_one", ("e3", LAST)),
    ),
    Computed("entropy_control", "and may be {} to {} points", sds_of_seeds),
    Computed(
        "gain_modes", "alike and small: {} to {} % of the target", lambda: answers("steady", 1)
    ),
    Computed("gain_modes", "All end at {} to {} times", lambda: answers("rise", 2)),
    Computed(
        "gain_modes",
        "**solve pays in noise**: {} % against {} and {} % at the end",
        lambda: answers("noise", 1, "gain_solve", "gain_paper", "gain_elasticity"),
    ),
    Computed(
        "gain_modes",
        "and {} against {} and {} before",
        lambda: answers("before", 1, "gain_solve", "gain_paper", "gain_elasticity"),
    ),
    Computed(
        "rollouts_to_accuracy",
        "of TS + AN is {}, {}, {}, {} and {}, E3's {}, {}, {}, {} and {} (",
        of_schedules_and_e3,
    ),
    Computed(
        "rollouts_to_accuracy",
        "TS + AN are {} to {} seed by seed, at 55 % {} to {}",
        lambda: least_and_most("50", "55"),
    ),
    Computed(
        "pass_at_k",
        "detectable differences of {} to {} points",
        lambda: detectable(("pass_at_k", "at_one")),
    ),
    Computed(
        "pass_at_k",
        "in 80 of 100 such studies {} and {} would have been",
        lambda: detectable(("pass_at_k", "interaction")),
    ),
    Computed(
        "length_reward",
        "such a correction is {} to {} points",
        lambda: detectable_at_one("length_reward"),
    ),
    Computed(
        "carries_core",
        "entropy ends at {} nats where it begins at {}, and",
        lambda: (
            f"0{x}"
            for x in entropies(
                "carries_core", "entropy", ("grpo", "last 16 steps"), ("grpo", FIRST)
            )
        ),
    ),
    Computed(
        "coverage",
        "more than two points**: {} to {} of 100",
        lambda: covered("results", of_seeds, ".0f"),
    ),
    Computed(
        "coverage",
        "as sure as it says**, {} to {} of 100",
        lambda: covered("results", lambda row: of_seeds(row) and row["measure"] == "P(better)"),
    ),
    Computed(
        "coverage",
        "with 5 and 10 seeds, {} to {} of 100",
        lambda: covered("studies", lambda row: row["luck"] == "normal"),
    ),
    Computed(
        "coverage",
        "between two evaluations, {} to {} of 100",
        lambda: covered("equal_entropy", of_seeds),
    ),
    Computed(
        "coverage",
        "long tails and rare failures {} to {} of 100",
        lambda: covered("studies", lambda row: row["luck"] in ("long", "rare")),
    ),
    Computed(
        "coverage",
        "intervals of shares {} to {}, of IQM",
        lambda: covered("studies", of_failures("pass@1", "pass@16")),
    ),
    Computed("coverage", "of IQM {} to {}, while", lambda: covered("studies", of_failures("IQM"))),
    Computed(
        "coverage",
        "and P(better) {} to {} of 100.",
        lambda: covered("studies", of_failures("Δ pass@1", "Δ pass@16", "P(better)")),
    ),
)
