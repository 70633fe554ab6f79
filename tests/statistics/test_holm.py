import pytest

from e3rl.statistics.holm import adjust_holm


def test_p_values_worked_by_hand():
    # .01·4, .02·3, .03·2 rises to .06 as the one before it, .5·1.
    assert adjust_holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert adjust_holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert adjust_holm([0.02]) == [0.02]
    assert adjust_holm([]) == []


def test_what_is_no_p_value_is_refused():
    for wrong in (1.2, float("nan")):
        with pytest.raises(ValueError, match="p values lie in"):
            adjust_holm([0.1, wrong])
