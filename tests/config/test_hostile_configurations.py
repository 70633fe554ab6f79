"""Configurations that nobody means: each passes the check, or its mistakes are listed."""

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

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


@settings(deadline=None, max_examples=120, derandomize=True)
@given(st.sampled_from(PLACES), VALUES)
@example(("module",), None)
@example(("module",), 3)
@example(("module", "_target_"), 3)
@example(("module", "_target_"), "os.system")
@example(("callbacks",), [])
@example(("callbacks",), None)
@example(("paths",), None)
@example(("sweep",), "x")
@example(("plan",), [1])
@example(("seed",), 2**70)
@example(("loss", "surrogate"), {"_target_": ""})
def test_any_value_in_any_place_passes_or_is_a_mistake(
    place: tuple[str | int, ...], value: Any
) -> None:
    try:
        cfg = changed(place, value)
    except Exception:  # no configuration at all for OmegaConf
        return
    with contextlib.suppress(ConfigurationError):
        check(cfg)
