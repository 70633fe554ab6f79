"""`ModelResult`: one model sampled on one problem set, and the rows of the paper's table.

Everything is estimated from the finished problems of an evaluation's log (`evaluation.log`), by
problem first; intervals are then over problems (`statistics.shares`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.statistics.majority import majority_at_k, votes
from e3rl.statistics.pass_at_k import mean_at_n, pass_at_k
from e3rl.statistics.shares import share_intervals, share_intervals_of_sets

AVERAGE = "avg@n"  # mean@n, which is pass@1 and maj@1 as well
ALL_SETS = "mean of sets"


@dataclass(frozen=True)
class ModelResult:
    """One model on one problem set, sampled in one way. Entropy is in nats per token."""

    model: str
    problem_set: str
    evaluation: str
    temperature: float
    entropy: float
    problems: pd.DataFrame  # (P,) problem_id, n, correct, and `others`, sizes of wrong classes
    lengths: NDArray[np.int64]  # (N,) tokens of all completions
    truncated: int  # completions that reached the length limit
    no_answer: int  # completions without an answer in the required form

    @staticmethod
    def of_rows(
        model: str, problem_set: str, rows: Sequence[Mapping[str, Any]]
    ) -> "list[ModelResult]":
        """One for each evaluation in the rows of a log, in their order there."""
        evaluations: dict[str, list[Row]] = {}
        for row in rows:
            for each in row["evaluations"]:
                evaluations.setdefault(each["name"], []).append(each)
        return [_gather_result(model, problem_set, name, e) for name, e in evaluations.items()]

    @property
    def n_samples(self) -> int:
        """Fewest samples of any problem: the largest k."""
        return int(self.problems["n"].min())

    def as_evaluation_result(self) -> EvaluationResult:
        """In the form that curves of pass@k take."""
        return EvaluationResult(
            self.model, self.evaluation, self.temperature, self.entropy, (self.problems,)
        )

    def measures(self, ks: Sequence[int]) -> pd.DataFrame:
        """A row per problem: avg@n, pass@k and maj@k for every k above 1 that n allows."""
        n, correct = self.problems["n"], self.problems["correct"]
        allowed = [k for k in dict.fromkeys(ks) if 1 < k <= self.n_samples]
        columns = {AVERAGE: mean_at_n(n, correct)}
        columns |= {f"pass@{k}": pass_at_k(n, correct, k) for k in allowed}
        ballots = list(zip(correct, self.problems["others"], n, strict=True))
        columns |= {
            f"maj@{k}": np.array([majority_at_k(*ballot, k) for ballot in ballots]) for k in allowed
        }
        return pd.DataFrame(columns, index=pd.Index(self.problems["problem_id"].astype(str)))


def model_rows(found: Sequence[ModelResult], ks: Sequence[int], level: float = 0.95) -> list[Row]:
    """A row per model and problem set, and one over all sets of a model where it has several.

    The last gives every set the same weight, however many problems it has.

    Returns:
        dicts with model, set, evaluation, temperature, entropy, problems, samples, level; avg@n,
        pass@k and maj@k with _low and _high; length_mean, length_p50 and length_p95 in tokens, and
        truncated and no_answer, the shares of completions that reached the limit and that have no
        answer in the required form. Over all sets temperature and entropy are None where they
        differ, and so are percentiles of lengths.
    """
    tables = [each.measures(ks) for each in found]
    rows = []
    for i, each in enumerate(found):
        rows.append(_row(each, tables[i], level))
        alike = [j for j, other in enumerate(found) if _arm(other) == _arm(each)]
        if len(alike) > 1 and i == alike[-1]:
            rows.append(_over_sets([found[j] for j in alike], [tables[j] for j in alike], level))
    return rows


def _arm(each: ModelResult) -> tuple[str, str]:
    return each.model, each.evaluation


def _row(each: ModelResult, table: pd.DataFrame, level: float) -> Row:
    intervals = share_intervals(table.to_numpy(), level)
    middle, tail = np.percentile(each.lengths, [50, 95])
    row: Row = {
        "model": each.model,
        "set": each.problem_set,
        "evaluation": each.evaluation,
        "temperature": each.temperature,
        "entropy": each.entropy,
        "problems": len(each.problems),
        "samples": each.n_samples,
        "level": level,
    }
    for name, interval in zip(table.columns, intervals, strict=True):
        row |= interval_columns(name, interval)
    return row | {
        "length_mean": float(each.lengths.mean()),
        "length_p50": float(middle),
        "length_p95": float(tail),
        "truncated": each.truncated / len(each.lengths),
        "no_answer": each.no_answer / len(each.lengths),
    }


def _over_sets(found: Sequence[ModelResult], tables: Sequence[pd.DataFrame], level: float) -> Row:
    names = [name for name in tables[0] if all(name in table for table in tables)]
    intervals = share_intervals_of_sets([table[names].to_numpy() for table in tables], level)
    temperatures = {each.temperature for each in found}
    row: Row = {
        "model": found[0].model,
        "set": ALL_SETS,
        "evaluation": found[0].evaluation,
        "temperature": temperatures.pop() if len(temperatures) == 1 else None,
        "entropy": None,
        "problems": sum(len(each.problems) for each in found),
        "samples": min(each.n_samples for each in found),
        "level": level,
    }
    for name, interval in zip(names, intervals, strict=True):
        row |= interval_columns(str(name), interval)
    return row | {
        "length_mean": float(np.mean([each.lengths.mean() for each in found])),
        "length_p50": None,
        "length_p95": None,
        "truncated": float(np.mean([each.truncated / len(each.lengths) for each in found])),
        "no_answer": float(np.mean([each.no_answer / len(each.lengths) for each in found])),
    }


def _gather_result(model: str, problem_set: str, name: str, rows: Sequence[Row]) -> ModelResult:
    """From one evaluation's counts of every problem."""
    others = [votes(row["classes"], row["right"])[1] for row in rows]
    plain = pd.DataFrame([{key: r[key] for key in ("problem_id", "n", "correct")} for r in rows])
    return ModelResult(
        model,
        problem_set,
        name,
        temperature=_mean_temperature(rows),
        entropy=sum(row["entropy_sum"] for row in rows) / sum(row["tokens"] for row in rows),
        problems=plain.assign(others=others),
        lengths=np.array([tokens for row in rows for tokens in row["lengths"]]),
        truncated=sum(row["truncated"] for row in rows),
        no_answer=sum(number is None for row in rows for number in row["classes"]),
    )


def _mean_temperature(rows: Sequence[Row]) -> float:
    """Of all problems; what is the same for all has no rounding errors."""
    found = {float(row["temperature"]) for row in rows}
    return found.pop() if len(found) == 1 else float(np.mean([row["temperature"] for row in rows]))
