import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from e3rl.analysis.sources.config_differences import config_differences, is_unsaid
from e3rl.analysis.sources.runs import Run
from e3rl.config.copies import COPIES
from e3rl.config.differences import flatten

CONF = Path(__file__).parents[2] / "conf"
PLAIN = re.compile(r"\$\{([a-z_]+(?:\.[a-z_]+)*)\}")  # an interpolation, and nothing beside it
# Groups of where runs lie and how they are watched and arranged; the last two are presets.
NO_SETTINGS = ("logger", "profiler", "paths", "hydra", "hydra.launcher", "hydra.sweeper", "sweep")


def arm(run: Run, *configs: dict[str, Any]) -> list[Run]:
    return [replace(run, config=config) for config in configs]


def test_only_what_differs_is_told_once_at_its_shortest_key(run: Run) -> None:
    def config(low: int, rate: float) -> dict[str, Any]:
        budget = {"_target_": "x.Rank", "n_low": low}
        return {"budget": budget, "callbacks": {"budget": {"strategy": budget}}, "lr": rate}

    found = config_differences({"a": arm(run, config(4, 0.1)), "b": arm(run, config(6, 0.1))})
    assert found == {"budget.n_low": {"a": "4", "b": "6"}}


def test_settings_that_an_arm_lacks_and_seeds_that_differ_are_shown(run: Run) -> None:
    first = arm(run, {"temperature": {"target": 0.5}}, {"temperature": {"target": 0.6}})
    second = arm(run, {"temperature": {"gain": [1, 2]}})
    assert config_differences({"a": first, "b": second}) == {
        "temperature.gain": {"a": "-", "b": "[1, 2]"},
        "temperature.target": {"a": "0.5 | 0.6", "b": "-"},
    }


def test_names_seeds_and_folders_are_no_difference(run: Run) -> None:
    def config(name: str, seed: int) -> dict[str, Any]:
        folder = f"runs/{name}"
        facts = {"name": name, "seed": seed, "paths": {"run_dir": folder}}
        return {**facts, "checkpoint": {"folder": f"{folder}/checkpoints"}, "empty": {}}

    assert config_differences({"a": arm(run, config("a", 1)), "b": arm(run, config("b", 2))}) == {}


def test_settings_of_one_group_that_end_alike_are_two(run: Run) -> None:
    def config(ema: float) -> dict[str, Any]:
        temperature = {"ema": ema, "gain": {"ema": ema}}
        return {"temperature": temperature, "callbacks": {"temperature": {"strategy": temperature}}}

    found = config_differences({"a": arm(run, config(0.0)), "b": arm(run, config(0.5))})
    assert list(found) == ["temperature.ema", "temperature.gain.ema"]


def test_settings_that_only_happen_to_change_alike_are_two(run: Run) -> None:
    def config(dtype: str, tokens: int) -> dict[str, Any]:
        nodes = {"policy": {"dtype": dtype}, "engine": {"settings": {"dtype": dtype}}}
        engine, length = {"engine": nodes["engine"]}, {"max_length": tokens}
        return {**nodes, "callbacks": {"rollout": engine}, "max_new_tokens": tokens, "loss": length}

    arms = {"a": arm(run, config("float32", 80)), "b": arm(run, config("bfloat16", 96))}
    names = ["engine.settings.dtype", "max_new_tokens", "policy.dtype"]
    assert list(config_differences(arms)) == names
    arms["b"][0].config["loss"]["max_length"] = 128  # a value of its own, so a setting
    assert list(config_differences(arms)) == [names[0], "loss.max_length", *names[1:]]


def test_the_copies_are_those_of_the_configurations() -> None:
    found = {}
    for file in CONF.rglob("*/*.yaml"):
        node = ".".join(file.relative_to(CONF).parent.parts)
        for key, value in flatten(yaml.safe_load(file.read_text()) or {}).items():
            source = PLAIN.fullmatch(str(value))
            if source and node not in NO_SETTINGS:
                found[f"{node}.{key}"] = source[1]
    copies = {key: of for key, of in found.items() if of != "seed" and not is_within(key, of)}
    assert {key: of for key, of in copies.items() if not of.startswith("paths.")} == COPIES


def is_within(key: str, source: str) -> bool:
    """Whether both are of one group, which shows them both."""
    return key.split(".")[0] == source.split(".")[0]


def test_a_copy_of_the_seed_is_no_difference_and_another_seed_is_one(run: Run) -> None:
    def config(seed: int) -> dict[str, Any]:
        return {"data": {"seed": seed}, "callbacks": {"rollout": {"seed": seed}}}

    first, second = (replace(run, seed=seed, config=config(seed)) for seed in (1, 2))
    assert config_differences({"a": [first, second], "b": [first]}) == {}
    fixed = replace(run, seed=2, config=config(1))
    both = ["callbacks.rollout.seed", "data.seed"]
    assert list(config_differences({"a": [second], "b": [fixed]})) == both


def test_null_is_as_good_as_absent() -> None:
    assert is_unsaid(["-", "None | -"])
    assert not is_unsaid(["-", "0"])
