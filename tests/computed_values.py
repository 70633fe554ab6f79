"""What computes numbers of studies' prose that no table prints; see `computed_numbers.py`."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from e3rl.analysis.sources.runs import load_runs
from pages import ROOT
from prose_cells import cell
from run_on_a_gpu import figures, forecast_gib, forecast_update

STUDIES = ROOT / "experiments"


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
    text = f"{value:{sign}.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def noise(budget: str, loss: str) -> list[float]:
    """Noise of a rule beside even groups' under the same arm and loss, %, from the lowest on."""
    cells = csv("ablation_grid", "cells").set_index(["budget", "loss", "arm"])["noise"].sort_index()
    return sorted(100 * (cells[budget, loss] / cells["uniform", loss] - 1))


def noise_of_grpo(budget: str) -> float:
    cells = csv("ablation_grid", "cells").set_index(["budget", "loss", "arm"])["noise"]
    return float(100 * (cells[budget, "grpo", "grpo"] / cells["uniform", "grpo", "grpo"] - 1))


def noise_of_knapsack() -> Iterator[str]:
    yield short(abs(noise_of_grpo("knapsack")), 1)


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


def schedules_of_smollm2() -> Iterator[str]:
    """Mean temperature over training of runs with a schedule, the least and the greatest."""
    runs = load_runs(STUDIES / "smollm2_schedules" / "runs")
    scheduled = [run for run in runs if run.name in ("smollm2_ts", "smollm2_ts_an")]
    means = [run.train["rollout/temperature"].mean() for run in scheduled]
    yield from (f"{found:.2f}" for found in (min(means), max(means)))


def seconds_of_a_step() -> Iterator[str]:
    """Of the run that README shows, by the clock beside its first and its last step."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"(?m)^step +(\d+)/128 .* (\d+):(\d+)$", text)
    (first, start), (last, end) = ((int(n), 60 * int(m) + int(s)) for n, m, s in found)
    assert (first, last) == (0, 128)
    yield f"{(end - start) / last:.1f}"


def seconds_of_a_step_in_the_ledger() -> Iterator[str]:
    """Of the kept run that has README's numbers, without validations."""
    (run,) = load_runs(STUDIES / "carries_bed" / "first_run")
    yield f"{run.train['cost/seconds'].iloc[-1] / len(run.train):.1f}"


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


def with_interval(row: dict[str, Any], name: str = "difference") -> str:
    """In points, with one digit."""
    mean, low, high = (100 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
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


def contrast(*first: str) -> list[str]:
    """The other cells of the row of contrasts.md that begins so."""
    text = (STUDIES / "contrasts.md").read_text(encoding="utf-8")
    begin = f"| {' | '.join(first)} |"
    (line,) = (line for line in text.splitlines() if line.startswith(begin))
    return [cell.strip() for cell in line.removeprefix(begin).split("|")[:-1]]


def p_of(*rows: tuple[str, str]) -> Iterator[str]:
    """Of arms at equal tokens or rollouts, among the seven of the core."""
    yield from (contrast(arm, cost)[-1] for arm, cost in rows)


def p_of_schedules() -> Iterator[str]:
    (tokens,) = {*p_of(("ts", "tokens"), ("ts_an", "tokens"))}
    yield from (tokens, *p_of(("ts", "rollouts"), ("ts_an", "rollouts")))


def p_of_budgets() -> Iterator[str]:
    rules = ("hora", "knapsack", "budget")
    yield from p_of(*((rule, cost) for cost in ("tokens", "rollouts") for rule in rules))


def ratios_by_seed(arm: str, target: str) -> list[str]:
    return [cell.removeprefix("0") for cell in contrast(arm, f"{target} %")]


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


def covered(file: str, wanted: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """Least and largest share of intervals that hold the truth, of 100."""
    rows = json.loads((STUDIES / "coverage" / f"{file}.json").read_text())
    found = [100 * row["covered"] for row in rows if wanted(row)]
    yield from (f"{min(found):.0f}", f"{max(found):.0f}")


def of_seeds(row: dict[str, Any]) -> bool:
    return row["n_seeds"] in (5, 10)


def surer_than_said() -> Iterator[str]:
    """Cells of 5 and 10 seeds above 97 of 100, all of them, and those beyond twice the simulation's
    error with those of them that are pass@16 near 1."""
    rows = [
        row
        for row in json.loads((STUDIES / "coverage" / "results.json").read_text())
        if of_seeds(row)
    ]
    above = [row for row in rows if row["covered"] > 0.97]
    sure = [row for row in above if row["covered"] > 0.97 + 2 * (0.03 * 0.97 / row["draws"]) ** 0.5]
    near_one = [row for row in sure if "pass@16" in row["measure"] and row["level"] == ".98"]
    yield from map(str, map(len, (above, rows, sure, near_one)))


def surer_where_studies_differ() -> Iterator[str]:
    """As `surer_than_said`, of cells in which fewer than half of the studies have one interval."""
    rows = json.loads((STUDIES / "coverage" / "results.json").read_text())
    rows = [row for row in rows if of_seeds(row) and row["alike"] < 0.5]
    sure = [row for row in rows if row["covered"] > 0.97 + 2 * (0.03 * 0.97 / row["draws"]) ** 0.5]
    yield from map(str, map(len, (sure, rows)))


def of_policies(truth: str, multiple: float | None = None) -> Callable[[], Iterator[str]]:
    """Of the truth that starts with this word, at one multiple or at all."""
    return lambda: covered(
        "pooled",
        lambda row: (
            row["truth"].startswith(truth) and (multiple is None or row["multiple"] == multiple)
        ),
    )


def of_failures(*measures: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: row["luck"] == "failures" and row["measure"] in measures


def of_stage(stage: str, *columns: str, digits: int = 2) -> Callable[[], Iterator[str]]:
    """Figures of a stage of the run on a GPU."""
    return lambda: (short(figures(stage)[column], digits) for column in columns)


def canaries_on_a_gpu() -> Iterator[str]:
    yield f"{figures('vllm')['canary quartile']:.0e}".replace("e-0", "e-")
    yield from (short(figures(each)["canary quartile"], 2) for each in ("bfloat16, vLLM", "large"))


def gaps_on_a_gpu() -> Iterator[str]:
    found = figures("numerics")
    yield f"{found['float32: gap of 1 in 50, nats']:.0e}".replace("e-0", "e-")
    yield short(found["tf32: gap of 1 in 50, nats"], 3)
    yield short(found["bfloat16: gap of 1 in 50, nats"], 2)


def gradients_on_a_gpu() -> Iterator[str]:
    found = figures("numerics")
    for name in ("float32", "tf32"):
        yield f"{found[f'{name}: gradient off by']:.0e}".replace("e-0", "e-")
    yield short(found["bfloat16: gradient off by"], 3)


def updates_forecast(tokens: int) -> Iterator[str]:
    yield f"{forecast_update(tokens)['total']:.1f}"


def memory_forecast() -> Iterator[str]:
    yield f"{forecast_gib():.1f}"


def blocks_on_a_gpu() -> Iterator[str]:
    found = figures("chunked_head")
    yield from (f"{found[f'{mode} head, GiB']:.2f}" for mode in ("chunked", "full"))
    yield f"{found['chunked head, update s'] / found['full head, update s']:.1f}"


def largest_shifts() -> Iterator[str]:
    """Of a difference between an equal-cost page's own cost and the common one, of all pages and
    but for one."""
    pages = csv("equal_cost", "pages").set_index("page")["common_shift"]
    yield f"{100 * pages.max():.1f}"
    yield f"{100 * pages.drop('carries_abort').max():.1f}"


ROLLOUT, UPDATE = 1, 2


def of_trl(phase: int, work: str, engine: str = "vLLM", digits: int = 2) -> str:
    """Seconds of a phase of e3rl's in one process, of TRL's."""
    ours, trl = (
        float(cell("speed", f"work | rollout + update + rest #{phase} | {work} | {side}")[0])
        for side in (f"e3rl, {engine}", "TRL")
    )
    return f"{ours / trl:.{digits}f}"


def updates_of_trl() -> Iterator[str]:
    yield of_trl(UPDATE, "(a) equal work, embedded", "transformers")
    yield of_trl(UPDATE, "(a) equal work, 134M")


def rollouts_of_trl() -> Iterator[str]:
    yield of_trl(ROLLOUT, "(a) equal work, 134M")
    yield of_trl(ROLLOUT, "(c) large vocabulary, 43M")
    yield of_trl(ROLLOUT, "(a) equal work, embedded", digits=1)


def beyond_the_dual_clip() -> Iterator[str]:
    """Largest mean of r - 1 - ln r over a run and over a step, and the shares of their tokens with
    r > 3, %, at most: at 3 the former is 2 - ln 3."""
    runs = load_runs(STUDIES / "carries_parts" / "runs")
    found = [run.train["policy/approx_kl"] for run in runs if run.name == "dapo_without_penalty"]
    run, step = max(each.mean() for each in found), max(each.max() for each in found)
    yield from (f"{run:.5f}", f"{step:.4f}")
    yield from (f"{100 * run / (2 - np.log(3)):.3f}", f"{100 * step / (2 - np.log(3)):.2f}")
