from e3rl.analysis.figures.style import (
    ARM_COLOURS,
    BEYOND,
    OTHER_COLOURS,
    arm_colour,
)


def test_arms_that_are_called_after_known_ones_have_their_colours_and_none_is_shared():
    arms = ["smollm2_grpo", "smollm2_ts_an", "other_ts_an", "mine_ts", "ts", "ants"]
    colours = [arm_colour(arm, arms) for arm in arms]
    known = [ARM_COLOURS[arm] for arm in ("grpo", "ts_an", "ts")]
    spare = OTHER_COLOURS[:3]
    assert colours == [*known[:2], *spare[:2], known[2], spare[2]]
    assert arm_colour("mine_e3") == ARM_COLOURS["e3"]
    many = [f"arm {i}" for i in range(len(OTHER_COLOURS) + 2)]
    assert [arm_colour(arm, many) for arm in many] == [*OTHER_COLOURS, BEYOND, BEYOND]
