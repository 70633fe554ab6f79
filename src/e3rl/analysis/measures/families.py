"""Families of comparisons that a study declares before its runs, and what counts as exploratory.

A family is a few comparisons that one question needs, with their endpoints. Its p values are
corrected for each other by Holm's method. Every other comparison that is printed is exploratory:
corrected by the same method for all exploratory ones of the study, or of the page.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from e3rl.analysis.measures.arms import AND, LIVE, Row
from e3rl.analysis.sources.runs import Arms
from e3rl.config.check import wrong_values
from e3rl.statistics.holm import adjust_holm
from e3rl.statistics.interval import Estimate
from e3rl.statistics.power import detectable_difference
from e3rl.statistics.student import t_p_value

BETTER, WORSE, NEITHER = "better", "worse", "not distinguishable"
DAGGER = "†"  # marks what `hangs_on_problems`
EXPLORATORY = "exploratory"
LEVEL, POWER = 0.95, 0.8
MAY = "have an axis, be at_equal_entropy, count looks, or be of untrained pass rates"
ALONE = "are a family of their own, on all problems and not at equal entropy"
KEYS = {"endpoints", "comparisons", "axis", "at_equal_entropy", "looks", "untrained"}
Side = str | list[str]  # of a comparison: an arm, or several, whose mean it is


@dataclass(frozen=True)
class Declaration:
    """What `study.yaml` says of a family."""

    endpoints: list[dict[str, str | float]]
    comparisons: list[tuple[Side, Side]]
    axis: str
    at_equal_entropy: bool
    untrained: tuple[float, float]


@dataclass(frozen=True)
class Family:
    """What one family compares: arms in pairs, at every endpoint, at equal cost on an axis.

    A side of a pair may be the mean of several arms, as main effects in a factorial need: it has
    their names, joined by `arms.AND`.

    At equal entropy: after the last step, with the second arm read at the first one's entropy.
    `looks` is how often its question is judged where seeds are added because of what earlier ones
    showed, this time included; p values count as often (Bonferroni), so that all looks together
    are wrong as rarely as one. With `untrained`, on the problems alone that the untrained policy
    solves so often.

    A family has endpoints, or else accuracies to `reach`, whose costs on the axis are compared.
    """

    name: str
    endpoints: tuple[tuple[str, str], ...]  # evaluation and measure
    comparisons: tuple[tuple[str, str], ...]  # arm and the one that it is compared with
    axis: str = "tokens"
    at_equal_entropy: bool = False
    looks: int = 1
    untrained: tuple[float, float] | None = None  # lowest and highest pass rate
    reach: tuple[tuple[str, float], ...] = ()  # evaluation, and pass@1 as a share

    def __len__(self) -> int:
        """How many comparisons it is corrected for."""
        return (len(self.endpoints) + len(self.reach)) * len(self.comparisons)

    def pairs(self) -> list[tuple[tuple[str, str], tuple[str, str]]]:
        """Every comparison with every endpoint."""
        return list(product(self.comparisons, self.endpoints))


def read_families(asked: Mapping[str, Any], arms: Arms) -> list[Family]:
    """Families as `study.yaml` declares them, by name:

        primary:
          endpoints: [{evaluation: t1, measure: pass@1}]
          comparisons: [[ts_an, grpo], [e3, ts_an], [[e3, budget], [ts_an, grpo]]]
          axis: tokens
          at_equal_entropy: false  # true: the second arm of each pair is read at the first's
          looks: 1  # 2: seeds were added because of what the first ones showed; p counts twice
          untrained: [0, 0.1]  # on problems that the untrained policy solves so often; or on all
        rollouts_to:
          endpoints: [{evaluation: t1, reach: 0.4}]  # the cost at which pass@1 is .4
          comparisons: [[ts_an, grpo]]
          axis: rollouts

    A side in brackets is the mean of its arms.

    Raises:
        ValueError: unknown keys, values of another kind, nothing to compare, an arm that has no
            recorded run, an arm beside itself, a comparison or an endpoint that is there twice, a
            mean of fewer than two arms, at equal entropy or of `live`, looks that are no whole
            number from 1 on, pass rates that are no shares in order, or accuracies to reach beside
            other endpoints, at equal entropy, of a mean or on some problems alone.
    """
    return [_read_family(str(name), given, arms) for name, given in asked.items()]


def _read_family(name: str, given: Any, arms: Arms) -> Family:
    """One of them. Raises ValueError as `read_families` says."""
    if not isinstance(given, dict) or not {"endpoints", "comparisons"} <= given.keys() <= KEYS:
        raise ValueError(f"family {name} must have endpoints and comparisons, and may {MAY}")
    if name == EXPLORATORY:
        raise ValueError(f"{EXPLORATORY} is what no family declares; name it otherwise")
    if mistakes := list(wrong_values(given, Declaration)):
        raise ValueError(f"family {name}: {'; '.join(mistakes)}")
    equal = bool(given.get("at_equal_entropy", False))
    matched = equal or any(end.get("evaluation") == LIVE for end in given["endpoints"])
    pairs = tuple(
        (_side(name, arm, arms, matched), _side(name, other, arms, matched))
        for arm, other in given["comparisons"]
    )
    if not pairs or not given["endpoints"]:
        raise ValueError(f"family {name} compares nothing: {given}")
    reach = tuple(_accuracy(name, end) for end in given["endpoints"] if "reach" in end)
    if reach and (equal or "untrained" in given or len(reach) < len(given["endpoints"])):
        raise ValueError(f"family {name}: accuracies to reach {ALONE}")
    if reach and (means := [side for side in chain.from_iterable(pairs) if AND in side]):
        raise ValueError(f"family {name}: {means[0]} is a mean, which has no curve")
    ends = () if reach else tuple(_endpoint(name, end) for end in given["endpoints"])
    _refuse_repeated(name, pairs, ends or reach)
    looks = given.get("looks", 1)
    if type(looks) is not int or looks < 1:
        raise ValueError(f"family {name}: looks={looks!r} is to be a whole number from 1 on")
    return Family(
        name=name,
        endpoints=ends,
        comparisons=pairs,
        axis=str(given.get("axis", "tokens")),
        at_equal_entropy=equal,
        looks=looks,
        untrained=_pass_rates(name, given.get("untrained")),
        reach=reach,
    )


def _side(family: str, given: Side, arms: Arms, matched: bool) -> str:
    """The name of one side of a comparison. Raises ValueError as `read_families` says."""
    several = isinstance(given, list)
    names = list(given) if several else [str(given)]
    for arm in names:
        if arm not in arms:
            raise ValueError(
                f"family {family}: no recorded arm {arm!r}; there are {', '.join(arms)}"
            )
    if several and (len(names) < 2 or len(set(names)) < len(names)):
        raise ValueError(f"family {family}: a mean of {names}: name two arms or more, each once")
    if several and matched:
        raise ValueError(f"family {family}: the mean of {names} has no entropy to be matched at")
    return AND.join(names)


def _refuse_repeated(
    family: str, pairs: Sequence[tuple[str, str]], ends: Sequence[tuple[str, str | float]]
) -> None:
    """Raise ValueError for an arm beside itself, and for what is there twice."""
    sides = [tuple(frozenset(side.split(AND)) for side in pair) for pair in pairs]
    if alone := [pair for pair, (arm, other) in zip(pairs, sides, strict=True) if arm == other]:
        raise ValueError(f"family {family}: {alone[0][0]} beside itself: name two arms")
    for what, named, keys in (("comparison", pairs, sides), ("endpoint", ends, ends)):
        times = Counter(keys)
        if twice := [each for each, key in zip(named, keys, strict=True) if times[key] > 1]:
            raise ValueError(f"family {family}: {what} {list(twice[0])} is there twice: drop one")


def _pass_rates(family: str, given: Sequence[float] | None) -> tuple[float, float] | None:
    """Lowest and highest. Raises ValueError as `check_pass_rates`."""
    if given is None:
        return None
    low, high = given
    check_pass_rates(f"family {family}", low, high)
    return low, high


def check_pass_rates(what: str, low: float, high: float) -> None:
    """Raise ValueError, which begins with `what` they are of, where they are no shares in order."""
    if not 0 <= low <= high <= 1:
        raise ValueError(f"{what}: untrained={[low, high]}: give shares, the lower first")


def _accuracy(family: str, given: Mapping[str, Any]) -> tuple[str, float]:
    """Evaluation and pass@1. Raises ValueError where one lacks, or pass@1 is no share."""
    target = given["reach"]
    if given.keys() != {"evaluation", "reach"} or type(target) is not float or not 0 < target < 1:
        raise ValueError(
            f"family {family}: endpoint {dict(given)}: give {{evaluation: t1, reach: 0.4}}"
        )
    return str(given["evaluation"]), target


def _endpoint(family: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Evaluation and measure. Raises ValueError where one lacks, or the measure is of no k."""
    measure = str(given.get("measure", ""))
    if given.keys() != {"evaluation", "measure"} or not measure.rpartition("@")[2].isdecimal():
        raise ValueError(
            f"family {family}: endpoint {dict(given)}: give {{evaluation: t1, measure: pass@1}}"
        )
    return str(given["evaluation"]), measure


def judge_rows(
    rows: Sequence[Row],
    families: Mapping[str, Sequence[Row]] | None = None,
) -> list[Row]:
    """The rows, with what can be said of each comparison among all.

    Args:
        rows: all that are printed together; those of comparisons have the columns of
            `comparison.difference_columns`, others stay as they are. `looks`, their own or that
            of the family which declares them, counts their p as often. Each is judged at its own
            `level`, or at `LEVEL`: 1 - level is the error that the correction keeps.
        families: rows of each declared family by name, whether printed or not; one without a p,
            whose entropies could not be made equal, counts for the correction as p = 1.

    Returns:
        copies with family (its name or `exploratory`), family_size and p_adjusted; and for rows
        with a measure of success verdict and detectable, the smallest difference that Holm's
        strictest step, at (1 - level)/family_size, finds with 80 % power. Neither is there for an
        arm with one seed, which says nothing of others. None where nothing is compared.

    Raises:
        ValueError: a comparison that two families declare, or two of one name with unlike p, of
            which one may be a family's.
    """
    declared = families or {}
    rows = _with_looks(rows, declared)
    groups = {name: _p_values(members) for name, members in declared.items()}
    sizes = {name: max(len(members), len(groups[name])) for name, members in declared.items()}
    family_of = _families_by_comparison(groups)
    loose = _p_values(rows)
    for comparison, name in family_of.items():
        _check_alike(comparison, name, groups[name][comparison], loose.get(comparison))
    groups[EXPLORATORY] = {key: p for key, p in loose.items() if key not in family_of}
    adjusted: dict[str, tuple[str, int, float]] = {}
    for name, group in groups.items():
        size = sizes.get(name, len(group))  # what has no p, as unequal entropies, counts with 1
        every = adjust_holm([*group.values(), *[1.0] * (size - len(group))])
        adjusted |= {each: (name, size, p) for each, p in zip(group, every, strict=False)}
    return [row | _judgement(row, adjusted) for row in rows]


def _families_by_comparison(groups: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """The family of each comparison. Raises ValueError for one that is in two."""
    found: dict[str, str] = {}
    for name, group in groups.items():
        for comparison in group:
            if comparison in found:
                raise ValueError(
                    f"{comparison} is in the families {found[comparison]} and {name}; one is enough"
                )
            found[comparison] = name
    return found


def _with_looks(rows: Sequence[Row], declared: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows with the looks of the family that declares their comparison."""
    looks = {
        row["comparison"]: {"looks": row["looks"]}
        for row in chain.from_iterable(declared.values())
        if "looks" in row
    }
    return [row | looks.get(row.get("comparison"), {}) for row in rows]


def _p_values(rows: Sequence[Row]) -> dict[str, float]:
    """By comparison; what several tables print counts once."""
    found: dict[str, float] = {}
    for row in rows:
        if row.get("comparison"):
            name, p = str(row["comparison"]), float(row["p"])
            if found.setdefault(name, p) != p:
                raise ValueError(
                    f"two comparisons are called {name!r}, with p = {found[name]:.4g} and {p:.4g}: "
                    "give windows and tables names that tell them apart"
                )
    return found


def _check_alike(comparison: str, family: str, declared: float, printed: float | None) -> None:
    """Raise ValueError where a table has another p of a comparison than its family."""
    if printed is not None and not math.isclose(declared, printed, rel_tol=1e-9):
        raise ValueError(
            f"{comparison!r} is declared in family {family} with p = {declared:.4g}, and a table "
            f"has it with p = {printed:.4g}: let both read the same runs at the same cost"
        )


def fewest_seeds(row: Row) -> int | None:
    """Seeds of the arm, or of its control where these are fewer; None where no row tells."""
    found = row.get("against_seeds", row.get("seeds"))
    return None if found is None else int(found)


def hangs_on_problems(row: Row) -> bool:
    """Whether a comparison that is significant would be open with the seeds' degrees of freedom
    alone, those of the problems not counted.

    Its p with these is taken times the factor by which the correction made the row's own larger.
    Rows from a file may have NaN for None.
    """
    p, adjusted, error = (_number(row.get(key)) for key in ("p", "p_adjusted", "difference_error"))
    seeds = _number(row.get("against_seeds")) or _number(row.get("seeds"))
    if p is None or adjusted is None or not error or not seeds or seeds < 2:
        return False
    if adjusted >= _allowed_error(row):
        return False
    alone = t_p_value(row["difference"] / error, seeds - 1)
    factor = adjusted / p if p > 0 else row["family_size"] * (_number(row.get("looks")) or 1)
    return alone * factor >= _allowed_error(row)


def _number(value: Any) -> float | None:
    """None for what does not exist, be it None or NaN."""
    return None if value is None or math.isnan(value) else float(value)


def _allowed_error(row: Row) -> float:
    """Below which a corrected p is significant."""
    return 1 - (_number(row.get("level")) or LEVEL)


def _judgement(row: Row, adjusted: Mapping[str, tuple[str, int, float]]) -> Row:
    if "comparison" not in row:
        return {}
    judged: Row = dict.fromkeys(("family", "family_size", "p_adjusted"))
    if row["comparison"]:
        judged = dict(zip(judged, adjusted[row["comparison"]], strict=True))
        judged["p_adjusted"] = min(1.0, judged["p_adjusted"] * row.get("looks", 1))
    if "measure" not in row:  # no measure of success, of which more is better
        return judged
    judged |= {"verdict": None, "detectable": None}
    if row["difference"] is not None and not row.get("unmatched") and fewest_seeds(row) != 1:
        found = judged["p_adjusted"] is not None and judged["p_adjusted"] < _allowed_error(row)
        sign = BETTER if row["difference"] > 0 else WORSE
        judged["verdict"] = sign if found else NEITHER
    if row["comparison"] and row["difference_error"] and (fewest_seeds(row) or 1) > 1:
        test = Estimate(0.0, row["difference_error"], row["difference_df"])
        strictest = 1 - _allowed_error(row) / (judged["family_size"] * row.get("looks", 1))
        detectable = detectable_difference(test, strictest, POWER)
        judged["detectable"] = detectable if detectable < 1 else None  # no share differs by more
    return judged
