"""docs/what_was_tried.md says of each choice what runs, simulations and tests know of it."""

import pytest

from axis_status import AXES, PAGE, SETTINGS, page, status
from e3rl.config.composition import conf_dir

pytestmark = pytest.mark.end_to_end  # composes every choice of conf/, reads all recorded runs


def test_the_page_says_what_was_recorded() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "not what is recorded: python tests/axis_status.py > docs/what_was_tried.md"
    )


@pytest.mark.parametrize(
    ("group", "choice", "mark"),
    [
        (
            "budget",
            "e3_rank",
            "**trained** ([carries_budget], [carries_budget_constants], [carries_confirmation], ",
        ),
        ("budget", "mopps", "**trained** ([carries_shootout])"),
        (
            "budget.difficulty",
            "posterior",
            "**trained** ([carries_measures], [carries_measures_again])",
        ),
        ("policy", "smollm2", "**trained** ([smollm2], [smollm2_control], [smollm2_schedules])"),
        ("budget.weight", "cures", "**trained** ([carries_more_weights], [carries_shootout])"),
        ("loss", "rloo_by_prompt", "**trained** ([ablation_grid])"),
        ("loss", "gspo", "**trained** ([carries_bounds])"),
        ("reward", "choice", "untried"),
        ("loss/exploration", "kl_cov", "**trained** ([carries_shootout])"),
        ("temperature/gain", "solve", "**trained** ([gain_modes], [smollm2_control])"),
        ("shaping", "length", "**trained** ([length_reward])"),
        ("data", "arithmetic", "**trained** (the run matrix)"),
        ("rollout.lookahead", "1", "*tested*"),
    ],
)
def test_marks_of_choices_whose_story_is_known(group: str, choice: str, mark: str) -> None:
    assert status(group)[choice].startswith(mark)


def test_every_choice_of_a_group_has_a_mark() -> None:
    for group in (group for groups in AXES.values() for group in groups if group not in SETTINGS):
        files = {path.stem for path in (conf_dir() / group).glob("*.yaml")}
        assert set(status(group)) == files, group
