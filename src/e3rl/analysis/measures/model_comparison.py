"""Models compared with one of them, paired by problem: differences, intervals, verdicts."""

from collections.abc import Mapping, Sequence

import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import difference_columns
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.measures.model_scores import ALL_SETS, ModelResult
from e3rl.statistics.interval import Estimate
from e3rl.statistics.shares import differences_of_sets, differences_of_shares
from e3rl.temperatures.matching import MATCHED_WITHIN

Key = tuple[str, str]  # problem set, evaluation


def compare_models(
    found: Sequence[ModelResult], against: str, ks: Sequence[int], level: float = 0.95
) -> list[Row]:
    """Every other model minus `against`, on every problem set, in every measure.

    Differences are taken by problem, so what makes problems differ cancels. A model with several
    sets in common with `against` is also compared over all of them, each set with the same weight.
    The verdict is that of `families.judge_rows`, all comparisons being exploratory; models at
    temperatures of their own, as at one entropy, have none where their entropies differ by more
    than `MATCHED_WITHIN`.

    Returns:
        dicts with model, set, evaluation, measure, against, problems (that both have), level,
        difference with _low and _high, p, p_adjusted and verdict.

    Raises:
        ValueError: `against` is none of the models, or a problem set shares no problem.
    """
    models = list(dict.fromkeys(each.model for each in found))
    if against not in models:
        raise ValueError(f"against={against!r} is no model; there are {', '.join(models)}")
    tables = {(e.model, e.problem_set, e.evaluation): e.measures(ks) for e in found}
    rows = []
    for model in (model for model in models if model != against):
        pairs = {
            (each.problem_set, each.evaluation): _difference(
                tables[model, each.problem_set, each.evaluation],
                tables[against, each.problem_set, each.evaluation],
                f"{model} and {against} on {each.problem_set}",
            )
            for each in found
            if each.model == model and (against, each.problem_set, each.evaluation) in tables
        }
        head = {"model": model, "against": against, "level": level}
        unlike = _unmatched(found, model, against)
        own = _rows(pairs, f"{model} - {against}", level)
        rows += [_withhold(head | row, unlike) for row in own]
    return judge_rows(rows)


def _unmatched(found: Sequence[ModelResult], model: str, against: str) -> set[Key]:
    """Evaluations in which two models have temperatures of their own and unlike entropies."""
    results = {(each.model, each.problem_set, each.evaluation): each for each in found}
    unlike = set()
    for (name, problem_set, evaluation), each in results.items():
        other = results.get((against, problem_set, evaluation))
        if name != model or other is None or each.temperature == other.temperature:
            continue
        if not abs(each.entropy / other.entropy - 1) <= MATCHED_WITHIN:
            unlike.add((problem_set, evaluation))
    return unlike


def _withhold(row: Row, unlike: set[Key]) -> Row:
    """The row without a verdict where a set that it speaks of is unmatched."""
    sets = {problem_set for problem_set, evaluation in unlike if evaluation == row["evaluation"]}
    stands = not sets & {row["set"]} and not (sets and row["set"] == ALL_SETS)
    return row if stands else row | {"comparison": None, "p": None, "unmatched": True}


def _difference(mine: pd.DataFrame, other: pd.DataFrame, where: str) -> pd.DataFrame:
    """Measures that both have, on the problems that both have: (P, M)."""
    common = mine.index.intersection(other.index, sort=False)
    if common.empty:
        raise ValueError(f"{where} have no problem in common")
    names = [name for name in mine if name in other]
    return mine.loc[common, names] - other.loc[common, names]


def _rows(pairs: Mapping[Key, pd.DataFrame], models: str, level: float) -> list[Row]:
    def add(where: Key, problems: int, names: Sequence[str], found: Sequence[Estimate]) -> None:
        for name, estimate in zip(names, found, strict=True):
            comparison = f"{models}: {name}, {where[1]}, {where[0]}"
            row = {"set": where[0], "evaluation": where[1], "measure": name, "problems": problems}
            rows.append(row | difference_columns(comparison, estimate, level))

    rows: list[Row] = []
    for key, table in pairs.items():
        add(key, len(table), list(table), differences_of_shares(table.to_numpy()))
    for evaluation in dict.fromkeys(evaluation for _, evaluation in pairs):
        alike = [table for (_, name), table in pairs.items() if name == evaluation]
        if len(alike) > 1:
            names = [name for name in alike[0] if all(name in table for table in alike)]
            found = differences_of_sets([table[names].to_numpy() for table in alike])
            add((ALL_SETS, evaluation), sum(map(len, alike)), names, found)
    return rows
