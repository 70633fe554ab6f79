"""The comparisons of a declared family, whatever kind of family it is."""

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_family
from e3rl.analysis.measures.families import Family
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.measures.subsets import keep_problems, name_subset
from e3rl.analysis.sources.runs import Arms


def declared_rows(arms: Arms, family: Family, cost: float | None = None) -> list[Row]:
    """A row for every comparison of a family, not yet judged.

    Args:
        arms: runs by arm; those that the family does not compare count for the common cost too,
            and for how often the untrained policy solves a problem.
        family: what to compare.
        cost: as in `comparison.compare_family`; accuracies to reach have none.

    Returns:
        rows as `comparison.compare_family`, with `subset` where the family is of some problems; of
        a family of accuracies to reach as `reaching.costs_to_reach`, those of its arms alone.

    Raises ValueError as these do.
    """
    if family.reach:
        return _reaching_rows(arms, family)
    if family.untrained is None:
        return compare_family(arms, family, cost=cost)
    rows = compare_family(keep_problems(arms, family.untrained), family, cost=cost)
    return name_subset(rows, arms, family.untrained)


def _reaching_rows(arms: Arms, family: Family) -> list[Row]:
    found: list[Row] = []
    looks = {"looks": family.looks} if family.looks > 1 else {}
    for evaluation, target in family.reach:
        for control in dict.fromkeys(control for _, control in family.comparisons):
            mine = {arm for arm, other in family.comparisons if other == control}
            rows = costs_to_reach(arms, control, [target], evaluation, family.axis, of=mine)
            if lacking := sorted(mine - {row["arm"] for row in rows}):
                raise ValueError(
                    f"family {family.name}: {lacking[0]} has no curve of {evaluation} to reach "
                    f"{target:g} on, it needs two validations or more"
                )
            found += [row | looks for row in rows if row["arm"] in mine]
    return found
