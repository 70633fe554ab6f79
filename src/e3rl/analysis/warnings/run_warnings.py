"""What speaks against taking a comparison of recorded runs at its face: one function a warning."""

from collections.abc import Callable

from e3rl.analysis.warnings.changed_settings import (
    other_base_policy,
    repeated_seeds,
    several_settings,
    unlike_runs,
    weighty_rollouts,
)
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.rewards import edited_rewards
from e3rl.analysis.warnings.selection import many_arms, tried_on_validation, tuned_on_validation
from e3rl.analysis.warnings.validation import (
    lacking_counts,
    late_starts,
    lines_from_the_start,
    shared_validation_noise,
    unequal_entropies,
    unmatched_entropies,
)
from e3rl.analysis.warnings.verdicts import coarse_verdicts, few_seeds

WARNINGS: tuple[Callable[[Compared], list[str]], ...] = (
    few_seeds,
    other_base_policy,
    several_settings,
    weighty_rollouts,
    unlike_runs,
    edited_rewards,
    repeated_seeds,
    unmatched_entropies,
    unequal_entropies,
    lines_from_the_start,
    late_starts,
    lacking_counts,
    tuned_on_validation,
    tried_on_validation,
    coarse_verdicts,
    many_arms,
    shared_validation_noise,
)


def find_warnings(compared: Compared) -> list[str]:
    """All that is found, a sentence or two each."""
    return [line for warn in WARNINGS for line in warn(compared)]
