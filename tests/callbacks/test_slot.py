"""The order of the stack is checked before anything is sampled."""

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig
from scripted import Fit, ScriptedPool, slots

import compositions
from e3rl.batch import WRITERS
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.slot import Slot

NEEDS = (  # (reader, producer)
    ("temperature", "budget"),
    ("pass_at_k", "temperature"),
    ("rollout", "budget"),
    ("rollout", "temperature"),
    ("rollout", "pass_at_k"),
    ("rollout", "reward"),
    ("advantage", "rollout"),
    ("metrics", "advantage"),
)
INDEPENDENT = {("pass_at_k", "reward")}  # neighbours without an order


def trainer_of(stack: dict[str, Any], validates: bool = True) -> Any:
    return SimpleNamespace(callbacks=list(stack.values()), enable_validation=validates)


def set_up(stack: dict[str, Any], stage: str = "fit", validates: bool = True) -> None:
    for callback in stack.values():  # without the reward's self-test
        Slot.setup(callback, trainer_of(stack, validates), None, stage)


def moved_behind(name: str, other: str) -> dict[str, Any]:
    stack = slots()
    order = [key for key in stack if key != name]
    order.insert(order.index(other) + 1, name)
    return {key: stack[key] for key in order}


def composed(*overrides: str) -> DictConfig:
    fixed = ("engine=transformers", "vocabulary_size=34", "paths.run_dir=x", "logger=ledger_only")
    return compositions.composed(*fixed, *overrides)


def test_every_slot_declares_the_fields_that_the_batch_says_it_writes() -> None:
    for name, slot in slots().items():
        owned = {field for field, writer in WRITERS.items() if writer == name}
        assert owned <= set(slot.writes), name


def test_the_configured_stack_has_the_order_of_the_design() -> None:
    order = ["budget", "temperature", "pass_at_k", "reward", "rollout", "advantage", "metrics"]
    assert list(composed().callbacks) == [*order, "checkpoint"]
    assert list(slots()) == order


@pytest.mark.parametrize("stage", ["validate", "fit"])
def test_the_stack_in_order_is_accepted(stage: str) -> None:
    stack = slots()
    set_up(stack, stage)
    with pytest.raises(ValueError, match=r"`rollout` reads batch.scorer"):
        set_up(moved_behind("reward", "rollout"), stage)  # the same slots in another order


@pytest.mark.parametrize("stage", ["validate", "fit"])
@pytest.mark.parametrize(("reader", "producer"), NEEDS)
def test_a_reader_before_its_producer_is_an_error_that_names_both(
    reader: str, producer: str, stage: str
) -> None:
    stack = moved_behind(producer, reader)
    with pytest.raises(ValueError, match=r"` (stands after it|is not)"):
        set_up(stack, stage)
    with pytest.raises(ValueError, match=f"`{reader}` reads .* `{producer}` stands after it"):
        Slot.setup(stack[reader], trainer_of(stack), None, stage)


def test_neighbours_may_change_places_only_where_neither_reads_the_other() -> None:
    names = list(slots())
    for first, second in pairwise(names):
        if (first, second) in INDEPENDENT:
            set_up(moved_behind(first, second))
        else:
            with pytest.raises(ValueError, match=f"`{second}` reads .* `{first}` stands after"):
                set_up(moved_behind(first, second))


@pytest.mark.parametrize("stage", ["validate", "fit"])
@pytest.mark.parametrize(
    "missing", ["budget", "temperature", "pass_at_k", "reward", "rollout", "advantage"]
)
def test_a_missing_producer_is_an_error_that_names_both(missing: str, stage: str) -> None:
    readers = "|".join(reader for reader, producer in NEEDS if producer == missing)
    pattern = f"`({readers})` reads .* `{missing}` is not in the stack"
    with pytest.raises(ValueError, match=pattern):
        set_up(slots(**{missing: None}), stage)


def test_every_writer_of_a_field_must_stand_before_its_reader() -> None:
    class Second(Slot):
        slot = "second"
        writes = ("scorer",)  # besides the reward slot

    reader = slots()["rollout"]
    stack = {**slots(), "rollout": reader, "second": Second()}
    with pytest.raises(ValueError, match=r"reads batch.scorer, .* `second` stands after it"):
        Slot.setup(reader, trainer_of(stack, validates=False), None, "fit")


def test_shaping_needs_ranks_in_training_only() -> None:
    shaped = RewardScorer(ScriptedPool(), shaping=lambda rewards, lengths, ranks: rewards)  # type: ignore[arg-type]
    set_up(slots(reward=shaped))
    with pytest.raises(ValueError, match=r"`reward` reads batch.ranks, but its producer `budget`"):
        Slot.setup(shaped, trainer_of(slots(budget=None, reward=shaped)), None, "fit")  # type: ignore[arg-type]
    set_up(slots(budget=None, reward=shaped, advantage=None, metrics=None), "validate")


def test_validation_slots_are_needed_only_where_something_is_validated() -> None:
    set_up(slots(pass_at_k=None), validates=False)
    with pytest.raises(ValueError, match="`pass_at_k` is not in the stack"):
        set_up(slots(pass_at_k=None))
    set_up(slots(budget=None, advantage=None, metrics=None), "validate")


def test_a_wrong_stack_stops_the_baseline_before_anything_is_sampled() -> None:
    fit = Fit(slots(budget=None))
    with pytest.raises(ValueError, match=r"`temperature` reads batch.ranks, .* `budget`"):
        fit.validate()
    assert fit.engine.requests == []


def parts(item: Any, seen: set[int]) -> Iterator[Any]:
    """Objects of this project reachable from `item` through attributes and containers."""
    if id(item) in seen or isinstance(item, type | str | int | float):
        return
    seen.add(id(item))
    if isinstance(item, dict | list | tuple):
        for child in item.values() if isinstance(item, dict) else item:
            yield from parts(child, seen)
    elif type(item).__module__.startswith("e3rl."):
        yield item
        for child in vars(item).values():
            yield from parts(child, seen)


def test_no_strategy_object_is_in_two_callbacks() -> None:
    nodes = composed("experiment=e3").callbacks
    callbacks = {name: instantiate(node, _convert_="all") for name, node in nodes.items()}
    owners: dict[int, set[str]] = {}
    kept = []  # alive, so that no id is used twice
    for name, callback in callbacks.items():
        for part in parts(callback, set()):
            kept.append(part)
            owners.setdefault(id(part), set()).add(name)
    kinds = {type(part).__name__ for part in kept}
    assert {"E3Rank", "EntropyTarget", "RewardPool", "TransformersEngine"} <= kinds
    assert all(len(names) == 1 for names in owners.values())
    for single in ("E3Rank", "EntropyTarget", "RewardPool", "TransformersEngine"):
        assert sum(type(part).__name__ == single for part in kept) == 1
