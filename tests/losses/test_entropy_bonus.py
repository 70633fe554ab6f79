import pytest
import torch

from e3rl.losses.entropy_bonus import AdaptiveEntropyBonus, DifficultyEntropyBonus


def test_the_weight_climbs_below_the_target_and_falls_above_within_its_bounds():
    bonus = AdaptiveEntropyBonus(target=0.5, delta=0.25, highest=0.4)
    seen = []
    for entropy in (0.4, 0.3, 0.6, 0.7, 0.4, 0.5):
        bonus.observe(entropy)
        seen.append((bonus.metrics()["entropy_coef_held"], bonus.value))
    # At the target itself the weight falls, but is still used.
    assert [x for x, _ in seen] == pytest.approx([0.25, 0.4, 0.15, 0.0, 0.25, 0.0])
    assert [x for _, x in seen] == pytest.approx([0.25, 0.4, 0.0, 0.0, 0.25, 0.0])


def test_without_a_target_it_holds_the_entropy_of_the_first_batch():
    bonus = AdaptiveEntropyBonus(delta=0.1, highest=1.0, start=0.5)
    assert bonus.value == 0.0  # nothing was observed
    bonus.observe(0.8)
    assert bonus.metrics() == pytest.approx(
        {"entropy_coef": 0.4, "entropy_coef_held": 0.4, "entropy_target": 0.8}
    )
    bonus.observe(0.7)
    assert bonus.value == pytest.approx(0.5)


def test_it_goes_on_where_its_state_was_saved():
    whole, first = (
        AdaptiveEntropyBonus(delta=0.1, highest=1.0),
        AdaptiveEntropyBonus(delta=0.1, highest=1.0),
    )
    for entropy in (0.8, 0.6, 0.5):
        whole.observe(entropy)
        first.observe(entropy)
    second = AdaptiveEntropyBonus(delta=0.1, highest=1.0)
    state = first.state_dict()
    assert {type(value) for value in state.values()} <= {float, bool}
    second.load_state_dict(state)
    assert second.value == first.value
    for bonus in (whole, second):
        bonus.observe(0.7)
    assert second.metrics() == whole.metrics()


def test_state_of_something_else_is_refused():
    with pytest.raises(ValueError, match=r"unknown keys \['tau'\], missing keys \['weight'\]"):
        AdaptiveEntropyBonus().load_state_dict({"target": 1.0, "active": True, "tau": 1.0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": 0.0}, r"entropy_coef\.target=0\.0: use a number above 0"),
        ({"delta": float("nan")}, r"entropy_coef\.delta=nan: use a number above 0"),
        ({"delta": 0.0}, r"entropy_coef\.delta=0\.0"),
        ({"highest": -1.0}, r"entropy_coef\.highest=-1\.0"),
        ({"start": 1.0}, r"entropy_coef\.start=1\.0 must lie in \[0, highest=0\.005\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveEntropyBonus(**settings)


def test_the_weight_follows_the_distance_to_a_share_of_the_first_entropy():
    bonus = DifficultyEntropyBonus(anchor=0.5, delta=0.1, highest=0.12)
    seen = []
    for entropy in (0.8, 0.3, 0.2, 0.5, 0.1, 0.1):
        bonus.observe(entropy)
        seen.append(bonus.value)
    # H* = .4: at twice it the weight cannot fall below 0; then (.4 - H)/.4 tenths, at most .12.
    assert seen == pytest.approx([0.0, 0.025, 0.075, 0.05, 0.12, 0.12])
    assert bonus.metrics() == pytest.approx({"entropy_coef": 0.12, "entropy_target": 0.4})
    resumed = DifficultyEntropyBonus(anchor=0.5, delta=0.1, highest=0.12)
    resumed.load_state_dict(bonus.state_dict())
    for each in (bonus, resumed):
        each.observe(0.6)
    assert resumed.metrics() == bonus.metrics()


def test_prompts_that_are_seldom_right_get_the_weight_and_those_above_a_bound_nothing():
    accuracies = torch.tensor([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
    shares = DifficultyEntropyBonus(hard=0.5).shares(accuracies)
    assert shares.tolist() == [1.0, 0.75, 0.5, 0.0, 0.0, 0.0]
    assert AdaptiveEntropyBonus().shares(accuracies) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchor": 0.0}, r"entropy_coef\.anchor=0\.0: use a number above 0"),
        ({"hard": 0.0}, r"entropy_coef\.hard=0\.0"),
        ({"hard": 1.5}, r"entropy_coef\.hard=1\.5"),
        ({"delta": 0.0}, r"entropy_coef\.delta=0\.0"),
        ({"highest": -1.0}, r"entropy_coef\.highest=-1\.0"),
        ({"start": 1.0}, r"entropy_coef\.start=1\.0 must lie in \[0, highest=0\.005\]"),
    ],
)
def test_settings_by_difficulty_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DifficultyEntropyBonus(**settings)
