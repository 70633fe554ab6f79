"""Nested settings compared and flattened."""

from e3rl.config.differences import ABSENT, differences, flatten


def test_every_leaf_that_differs_is_named_by_its_path_in_the_order_of_the_first() -> None:
    before = {"b": {"x": 1, "y": [1, 2]}, "a": 3, "gone": 4}
    after = {"a": 5, "b": {"x": 1, "y": [1, 3]}, "new": 6}
    assert list(differences(before, after)) == [
        ("b.y", [1, 2], [1, 3]),
        ("a", 3, 5),
        ("gone", 4, None),
        ("new", ABSENT, 6),
    ]


def test_a_setting_that_is_not_mentioned_is_as_good_as_one_that_is_none() -> None:
    assert list(differences({"a": None}, {"b": None, "c": {}})) == [("c", ABSENT, {})]


def test_a_node_in_the_place_of_a_value_is_one_difference() -> None:
    assert list(differences({"a": {"b": 1}}, {"a": 1})) == [("a", {"b": 1}, 1)]


def test_flatten_keeps_lists_and_empty_mappings_whole() -> None:
    assert flatten({"a": {"b": [1], "c": {}}, "d": None}) == {"a.b": [1], "a.c": {}, "d": None}
