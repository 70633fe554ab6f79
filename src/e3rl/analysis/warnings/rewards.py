"""Warnings about who judged: a reward function that was edited between the runs of a comparison."""

from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.warnings.compared import Compared
from e3rl.ledger.files import recorded_code


def edited_rewards(compared: Compared) -> list[str]:
    """Files of the user's reward functions that were not the same when all runs began."""
    digests: dict[str, dict[str, set[str]]] = {}
    for arm, runs in compared.arms.items():
        for run in runs:
            for file, digest in (recorded_code(run.path) or {}).items():
                digests.setdefault(file, {}).setdefault(digest, set()).add(arm_label(arm))
    return [
        f"{file} was edited between these runs, of which {len(versions)} versions judged: "
        f"{'; '.join(', '.join(sorted(arms)) for arms in versions.values())}. A difference in "
        "accuracy may come from that."
        for file, versions in digests.items()
        if len(versions) > 1
    ]
