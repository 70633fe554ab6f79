"""The control at the entropy of an arm: what an arm at a temperature of its own is judged by, and
any arm where a study asks for equal entropies.

Seed by seed, pass@k of the control is put on a line in ln H between the two of its evaluations
whose entropies are next to the arm's (`temperatures.matching`). An evaluation counts with
`FEWEST_ROLLOUTS` rollouts of every problem or more; all are of the last validation. Where no two
enclose the arm's entropy closely enough, the nearest stands in, and unless its entropy is the
arm's within `MATCHED_WITHIN` there is no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from e3rl.analysis.measures.arms import LIVE, Row
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.evaluations import EvaluationResult, find_evaluation, pass_table
from e3rl.analysis.measures.scores import Scores
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.temperatures.matching import FEWEST_ROLLOUTS, MATCHED_WITHIN, Reading, read_at_entropy

MATCHED, NEAREST = "matched", "nearest"
TOO_FEW = f"the control has no evaluation of {FEWEST_ROLLOUTS} rollouts per problem"
NO_ENTROPY = "its entropy is 0 or not recorded"
WHOLE_RUN = "entropies are matched at the end alone"
TWO_SIDED = 1.96


@dataclass(frozen=True)
class Sampled:
    """One evaluation of a run at its end: entropy and its standard error, nats; pass@k (P,)."""

    temperature: float
    entropy: float
    error: float  # NaN where it was not recorded
    table: pd.Series


@dataclass(frozen=True)
class MatchedControl:
    """The control's scores at an arm's entropy, and how well that was met.

    `gap` is the largest relative difference of entropies over seeds, control less arm; `error` the
    95 % half-width of the mean difference, relative, of the noise of sampling (NaN where it was not
    recorded). It counts both sides as independent, which same random numbers make them less.
    """

    scores: Scores
    gap: float
    error: float


def at_own_temperature(item: Scores, control: Scores | None) -> bool:
    """Whether an evaluation is an arm's at a temperature of its own, which its control's of that
    name (None: it has none) was not sampled at."""
    alike = control is not None and math.isclose(item.temperature, control.temperature)
    return item.name == LIVE and not alike


def match_control(
    item: Scores, arms: Arms, control: str, axis: str = "tokens"
) -> MatchedControl | None:
    """The control at the entropy of `item`, for the seeds that both have, or for all of the
    control's where they share none; None where the control has no fit evaluation, or the arm not
    `has_entropies`. `axis` is of what it had cost by then."""
    if not has_entropies(item, arms):
        return None
    k = int(item.measure.rpartition("@")[2])
    own = _own_samples(item, arms)
    runs = [run for run in arms[control] if run.seed in own] or list(arms[control])
    rows, gaps, noise, heat, spent = {}, [], [], [], []
    for run in runs:
        mine = [own[run.seed]] if run.seed in own else list(own.values())
        target = float(np.mean([each.entropy for each in mine]))
        there = {name: each for name, each in sampled_at_end(run, k).items() if _fits(run, name)}
        if not there:
            continue
        reading = read_at_entropy({name: each.entropy for name, each in there.items()}, target)
        rows[run.seed] = sum_weighted(reading, {name: each.table for name, each in there.items()})
        spent.append(cost_before(run.train, [run.evaluations["rollout_step"].max()], axis)[0])
        gaps.append(reading.entropy / target - 1)
        noise.append(_relative_variance(reading, there) + _mean_variance(mine))
        heat.append(sum(w * there[name].temperature for name, w in reading.weights.items()))
    if not rows:
        return None
    gap = max(gaps, key=abs)
    name = MATCHED if abs(gap) <= MATCHED_WITHIN else NEAREST
    table = pd.concat(rows, axis="columns", join="inner").T
    entropy = float(np.mean([each.entropy for each in own.values()]) * (1 + np.mean(gaps)))
    scores = replace(item, arm=control, name=name, table=table)
    cost = None if item.spent is None else float(np.mean(spent))
    scores = replace(scores, temperature=float(np.mean(heat)), entropy=entropy, spent=cost)
    return MatchedControl(scores, gap, TWO_SIDED * math.sqrt(sum(noise)) / len(noise))


def has_entropies(item: Scores, arms: Arms) -> bool:
    """Whether every seed of an arm recorded an entropy above 0 at its end, which alone can be
    matched."""
    own = _own_samples(item, arms)
    return own.keys() >= set(item.table.index) and all(each.entropy > 0 for each in own.values())


def matching_columns(
    item: Scores,
    row: Row,
    found: MatchedControl | None,
    matched: bool = True,
    why: str = TOO_FEW,
) -> Row:
    """Columns of a comparison about its entropies, without what a verdict takes where they differ;
    `why` there is no control at the arm's, where none was found.

    `entropy_gap` and `entropy_error` as in `MatchedControl`, None where nothing had to be matched;
    `unmatched` says why there is no verdict.
    """
    facts: Row = {"entropy_gap": None, "entropy_error": None, "unmatched": None}
    if not matched or (row["against"] is None and why != NO_ENTROPY):
        return facts
    if found is None:
        return facts | {"unmatched": why, "comparison": None, "p": None}
    known = None if math.isnan(found.error) else found.error
    facts |= {"entropy_gap": found.gap, "entropy_error": known}
    if item.measure.startswith("mean"):
        return facts | {"unmatched": WHOLE_RUN, "comparison": None, "p": None}
    if abs(found.gap) > MATCHED_WITHIN:
        words = f"entropies differ by {100 * found.gap:+.1f} %"
        return facts | {"unmatched": words, "comparison": None, "p": None}
    return facts


def at_entropy(results: Sequence[EvaluationResult], entropy: float) -> EvaluationResult | None:
    """The control's results of one validation read at an entropy; None without a fit one."""
    fit = {r.name: r for r in results if r.temperature > 0 and r.n_samples >= FEWEST_ROLLOUTS}
    known = {name: each for name, each in fit.items() if each.entropy > 0}
    if not known or not entropy > 0:
        return None
    reading = read_at_entropy({name: each.entropy for name, each in known.items()}, entropy)
    parts = tuple((weight, known[name]) for name, weight in reading.weights.items())
    if len(parts) == 1:
        return parts[0][1]
    first = parts[0][1]
    heat = math.fsum(weight * each.temperature for weight, each in parts)
    return InterpolatedResult(
        first.arm, MATCHED, heat, reading.entropy, first.seeds, first.no_answer, parts
    )


@dataclass(frozen=True)
class InterpolatedResult(EvaluationResult):
    """A weighted mean of evaluations, problem by problem; weights sum to 1."""

    parts: tuple[tuple[float, EvaluationResult], ...] = ()

    @property
    def n_samples(self) -> int:
        """Fewest rollouts of any problem in any of the evaluations."""
        return min(each.n_samples for _, each in self.parts)

    def per_problem(self, ks: Sequence[int]) -> pd.DataFrame:
        """pass@k averaged over seeds: a row per problem of all evaluations, a column per k."""
        tables = [weight * each.per_problem(ks) for weight, each in self.parts]
        total = tables[0]
        for table in tables[1:]:
            total = total.add(table).dropna()
        return total


def sampled_at_end(run: Run, k: int) -> dict[str, Sampled]:
    """Evaluations of a run's last validation that have k rollouts, by name."""
    if run.evaluations.empty:
        return {}
    here = run.evaluations[run.evaluations["rollout_step"] == run.evaluations["rollout_step"].max()]
    found = {}
    for fact in here.to_dict("records"):
        result = find_evaluation([run], fact["name"])
        if result is not None and result.n_samples >= k:
            table = pass_table(result.seeds[0], [k])[k]
            error = float(fact.get("entropy_error", math.nan))
            found[str(fact["name"])] = Sampled(result.temperature, result.entropy, error, table)
    return found


def sum_weighted(reading: Reading[str], tables: Mapping[str, pd.Series]) -> pd.Series:
    """The weighted sum of tables, on the problems that all have."""
    parts = [weight * tables[name] for name, weight in reading.weights.items()]
    joined = pd.concat(parts, axis="columns", join="inner")
    return joined.sum(axis="columns")


def _own_samples(item: Scores, arms: Arms) -> dict[int, Sampled]:
    """What an arm was scored by, at the end of each run, by seed."""
    k = int(item.measure.rpartition("@")[2])
    there = {run.seed: sampled_at_end(run, k) for run in arms[item.arm]}
    return {seed: each[item.name] for seed, each in there.items() if item.name in each}


def _fits(run: Run, name: str) -> bool:
    """Whether others may be matched with an evaluation of a run's last validation."""
    result = find_evaluation([run], name)
    if result is None or result.n_samples < FEWEST_ROLLOUTS:
        return False
    rows = run.evaluations[run.evaluations["name"] == name].iloc[-1]
    whole = rows.get("top_p") in (None, 1) or pd.isna(rows.get("top_p"))
    every = rows.get("top_k") in (None, 0) or pd.isna(rows.get("top_k"))
    return bool(result.temperature > 0 and result.entropy > 0 and whole and every)


def _relative_variance(reading: Reading[str], there: Mapping[str, Sampled]) -> float:
    return math.fsum(
        (weight * there[name].error / there[name].entropy) ** 2
        for name, weight in reading.weights.items()
    )


def _mean_variance(sampled: Sequence[Sampled]) -> float:
    return math.fsum((each.error / each.entropy) ** 2 for each in sampled) / len(sampled) ** 2
