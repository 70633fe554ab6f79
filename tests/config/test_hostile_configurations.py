"""Configurations that nobody means: each passes the check, or its mistakes are listed."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from compositions import composed
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError

pytestmark = pytest.mark.end_to_end

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["${nothing}", "${seed", "e3rl.nothing", "1e400", "-1", "nan", "[", "null"]),
    st.lists(st.integers() | st.none() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text("abc_", min_size=1, max_size=9), st.integers() | st.none(), max_size=3),
    st.sampled_from([{"_target_": "os.system"}, {"_target_": 3}, {"_partial_": "yes"}, {}]),
)


def paths_of(node: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place of a configuration, groups and classes included."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    found = []
    for key, child in children:
        found.append((*at, key))
        if isinstance(child, dict | list):
            found += paths_of(child, (*at, key))
    return found


PLAIN = OmegaConf.to_container(
    composed("debug=tiny", "paths.run_dir=x", "logger=ledger_only"), resolve=False
)
PLACES = paths_of(PLAIN)


def changed(place: tuple[str | int, ...], value: Any) -> DictConfig:
    plain: Any = copy.deepcopy(PLAIN)
    *above, last = place
    node = plain
    for key in above:
        node = node[key]
    node[last] = value
    return OmegaConf.create(plain)


def mistakes(place: tuple[str | int, ...], value: Any) -> list[str] | None:
    """What the check finds; None where this is no configuration at all."""
    try:
        cfg = changed(place, value)
    except OmegaConfBaseException:
        return None
    try:
        check(cfg)
    except ConfigurationError as error:
        return str(error).splitlines()
    return []


@settings(deadline=None, max_examples=120, derandomize=True)
@given(st.sampled_from(PLACES), VALUES)
def test_any_value_in_any_place_passes_or_is_a_mistake(
    place: tuple[str | int, ...], value: Any
) -> None:
    found = mistakes(place, value)
    assert found is None or found == [] or found[0].startswith("the configuration ")


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("module",), 3, "module=3: choose a file of conf/module"),
        (("module", "_target_"), 3, "module._target_=3: give the name of a class"),
        (("callbacks",), [1], "callbacks=[1]: choose a file of conf/callbacks"),
        (("rollout",), 7, "`rollout` is not a container"),
        (("sweep",), "x", "sweep='x': give its settings by name"),
        (("plan",), [1], "plan=[1]: give its settings by name"),
        (("seed",), 2**70, "seed="),
        (("callbacks", "advantage", "estimator"), None, "estimator=None: give a node"),
        (("temperature", "gain"), None, "temperature.gain=None: give a node"),
        (("max_new_tokens",), "${nothing}", "does not resolve"),
    ],
)
def test_what_is_certainly_wrong_is_told_with_its_place(
    place: tuple[str | int, ...], value: Any, told: str
) -> None:
    found = mistakes(place, value)
    assert found
    assert told in "\n".join(found)
