import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.ranks import mid_ranks


def test_the_highest_mean_reward_is_the_easiest():
    np.testing.assert_array_equal(mid_ranks([0.0, 1.0, 0.5, 0.25]), [0.75, 0.0, 0.25, 0.5])


def test_ties_share_the_average_position():
    # Positions 0 | 1, 2, 3 | 4 of five: the three in the middle all stand at 2.
    np.testing.assert_allclose(mid_ranks([0.5, 1.0, 0.5, 0.0, 0.5]), [0.4, 0.0, 0.4, 0.8, 0.4])


def test_unseen_prompts_stay_nan_and_do_not_shift_the_others():
    ranks = mid_ranks([np.nan, 1.0, np.nan, 0.0])
    np.testing.assert_array_equal(ranks, [np.nan, 0.0, np.nan, 0.5])


def test_all_unseen_is_all_nan():
    assert np.isnan(mid_ranks([np.nan, np.nan])).all()


rewards = st.lists(st.sampled_from([0.0, 0.125, 1 / 3, 0.5, 1.0, float("nan")]), max_size=20)


@given(rewards, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_permuting_the_prompts_permutes_the_ranks(values, random):
    order = random.sample(range(len(values)), len(values))
    shuffled = mid_ranks([values[i] for i in order])
    np.testing.assert_array_equal(shuffled, mid_ranks(values)[order])


@given(rewards)
@settings(deadline=None, max_examples=60)
def test_ranks_lie_in_the_half_open_unit_interval_with_the_mean_of_a_full_ranking(values):
    ranks = mid_ranks(values)
    seen = ranks[~np.isnan(ranks)]
    assert ((seen >= 0) & (seen < 1)).all()
    if seen.size:
        np.testing.assert_allclose(seen.mean(), (seen.size - 1) / (2 * seen.size))
