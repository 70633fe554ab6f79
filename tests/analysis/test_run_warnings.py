"""What the report says against a comparison: each warning is made, and is not."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded_runs import Size, write_run

from e3rl.analysis.measures import run_warnings
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.run_warnings import Compared
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs

SMALL = Size(steps=4, prompts=4, problems=6, samples=32, every=2)
BASE: dict[str, Any] = {
    "policy": {"path": "embedded", "head": None},
    "data": {"validation": {"size": 6, "seed": 0}, "seed": 1},
    "temperature": {"_target_": "Fixed"},
    "budget": {"_target_": "Uniform"},
    "loss": {"clip_high": 0.2},
    "callbacks": {"pass_at_k": {"ks": [1]}, "temperature": {"strategy": {"_target_": "Fixed"}}},
}
HOTTER = {
    "temperature": {"_target_": "EntropyTarget", "gain": {"vocabulary": 34}},
    "callbacks": {
        "pass_at_k": {"ks": [1]},
        "temperature": {"strategy": {"_target_": "EntropyTarget", "gain": {"vocabulary": 34}}},
    },
}


def folder(
    root: Path, seeds: int = 2, changed: dict[str, Any] | None = None, own_noise: bool = False
) -> Path:
    """A sweep of the control and of an arm with another temperature and `changed` settings."""
    for arm, more in (("grpo", {}), ("mine", HOTTER | (changed or {}))):
        for seed in range(1, seeds + 1):
            run = write_run(root / f"{arm}-{seed}", arm, seed, SMALL)
            config = yaml.safe_load((run / "config.yaml").read_text()) | BASE | more
            config["paths"] = {"run_dir": str(run)}
            if own_noise:
                node = config["callbacks"]
                config["callbacks"] = node | {"pass_at_k": node["pass_at_k"] | {"seed": seed}}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    return root


def compared(root: Path, rows: bool = False) -> Compared:
    arms = group_by_arm(load_runs(root))
    return Compared(arms, "grpo", compare_arms(arms, "grpo", [1]) if rows else [])


def test_an_arm_that_differs_in_one_slot_is_a_clean_comparison(tmp_path: Path) -> None:
    assert run_warnings.several_settings(compared(folder(tmp_path))) == []


def test_settings_that_an_arm_differs_in_are_named(tmp_path: Path) -> None:
    changed = {"budget": {"_target_": "E3Rank", "n_low": 4}, "loss": {"clip_high": 0.28}}
    (line,) = run_warnings.several_settings(compared(folder(tmp_path, changed=changed)))
    assert line.startswith(
        "mine differs from GRPO in 3 settings: budget, loss.clip_high, temperature"
    )


def test_a_setting_that_came_with_a_later_version_is_no_difference(tmp_path: Path) -> None:
    runs = folder(tmp_path, changed={"module": {"nonfinite_steps": 3}})
    assert "module.nonfinite_steps" in run_warnings.several_settings(compared(runs))[0]
    newer = runs / "grpo-2" / "config.yaml"  # the control's second seed has it too, the first not
    config = yaml.safe_load(newer.read_text()) | {"module": {"nonfinite_steps": 3}}
    newer.write_text(yaml.safe_dump(config))
    assert run_warnings.several_settings(compared(runs)) == []


def test_settings_of_another_version_are_told_once_for_all_arms(tmp_path: Path) -> None:
    runs = folder(tmp_path, seeds=1)
    for arm in ("grpo", "mine", "yours"):
        run = (
            write_run(runs / "yours-1", "yours", 1, SMALL) if arm == "yours" else runs / f"{arm}-1"
        )
        file = run / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config |= BASE if arm == "yours" else {}
        config |= {} if arm == "grpo" else {"stall_s": 60, "module": {"offload": False}}
        file.write_text(yaml.safe_dump(config))
    (line,) = run_warnings.several_settings(compared(runs))
    assert line.startswith("Recorded by another version than GRPO")
    assert "(module.offload, stall_s): all other arms." in line


def test_two_runs_of_one_arm_and_seed_are_named(tmp_path: Path) -> None:
    root = folder(tmp_path)
    assert run_warnings.repeated_seeds(compared(root)) == []
    again = write_run(root / "mine-again", "mine", 2, SMALL)
    (line,) = run_warnings.repeated_seeds(compared(root))
    assert line.startswith("mine has 2 runs of seed 2, which count as 2 seeds: ")
    assert str(again) in line
    assert str(root / "mine-1") not in line
    config = yaml.safe_load((again / "config.yaml").read_text())
    config["budget"] = {"_target_": "e3rl.budgets.uniform.Other"}
    (again / "config.yaml").write_text(yaml.safe_dump(config))
    (line,) = run_warnings.repeated_seeds(compared(root))
    assert "They differ in budget, " in line


def matched(runs: list[Run], entropy: float) -> list[Run]:
    """Runs whose `live` has an entropy, at the last validation."""
    found = []
    for run in runs:
        table = run.evaluations.copy()
        table.loc[table["name"] == "live", "entropy"] = entropy
        found.append(replace(run, evaluations=table))
    return found


@pytest.mark.parametrize(("entropy", "words"), [(0.60, "mine (-10.0 %)"), (0.5408, None)])
def test_a_control_at_another_entropy_is_named(
    tmp_path: Path, entropy: float, words: str | None
) -> None:
    arms = dict(compared(folder(tmp_path)).arms)
    arms["mine"] = matched(list(arms["mine"]), entropy)  # the control has one at .54
    found = run_warnings.unmatched_entropies(
        Compared(arms, "grpo", compare_arms(arms, "grpo", [1]))
    )
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


@pytest.mark.parametrize("own", [True, False])
def test_random_numbers_that_all_validations_share_are_told(tmp_path: Path, own: bool) -> None:
    found = run_warnings.shared_validation_noise(compared(folder(tmp_path, own_noise=own)))
    assert len(found) == (not own)


def test_one_seed_shares_its_validation_with_nobody(tmp_path: Path) -> None:
    assert run_warnings.shared_validation_noise(compared(folder(tmp_path, seeds=1))) == []


@pytest.mark.parametrize("by", ["results", "sweeper"])
def test_problems_that_a_sweep_was_tuned_on_are_told(tmp_path: Path, by: str) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    assert run_warnings.tuned_on_validation(compared(runs)) == []
    tuning = folder(tmp_path / "lr", seeds=1)
    assert run_warnings.tuned_on_validation(compared(runs)) == []  # a sweep that chose nothing
    if by == "results":
        (tuning / "optimization_results.yaml").write_text("best_value: 0.6\n")
    else:
        node = {"hydra": {"sweeper": {"_target_": "hydra_plugins.hydra_optuna_sweeper.Optuna"}}}
        (tuning / "multirun.yaml").write_text(yaml.safe_dump(node))
    (line,) = run_warnings.tuned_on_validation(compared(runs))
    assert line.startswith("The sweep lr was tuned on these validation problems")


def test_a_sweep_that_was_tuned_on_other_problems_is_no_matter(tmp_path: Path) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    tuning = folder(tmp_path / "lr", seeds=1)
    (tuning / "optimization_results.yaml").write_text("best_value: 0.6\n")
    for file in tuning.glob("*/config.yaml"):
        config = yaml.safe_load(file.read_text())
        config["data"]["validation"]["seed"] = 7
        file.write_text(yaml.safe_dump(config))
    assert run_warnings.tuned_on_validation(compared(runs)) == []


@pytest.mark.parametrize(("seeds", "told"), [(2, True), (5, False)])
def test_verdicts_of_few_seeds_are_told(tmp_path: Path, seeds: int, told: bool) -> None:
    rows = [
        {"arm": "mine", "seeds": seeds, "difference": 0.1},
        {"arm": "grpo", "seeds": 1, "difference": None},
    ]
    found = run_warnings.few_seeds(Compared({}, "grpo", rows))
    assert len(found) == told
    assert not told or "(2 each)" in found[0]


def test_another_first_policy_is_told(tmp_path: Path) -> None:
    other = {"policy": {"path": "elsewhere", "head": None}}
    (line,) = run_warnings.other_base_policy(compared(folder(tmp_path, changed=other)))
    assert line.startswith("mine starts from another policy than GRPO")


def test_a_policy_that_only_trains_otherwise_starts_the_same(tmp_path: Path) -> None:
    other = {"policy": {"path": "embedded", "head": {"mode": "chunked"}, "lora": {"rank": 4}}}
    assert run_warnings.other_base_policy(compared(folder(tmp_path, changed=other))) == []


def test_without_a_control_arms_are_not_judged_by_it(tmp_path: Path) -> None:
    arms = compared(folder(tmp_path, seeds=1)).arms
    assert run_warnings.find_warnings(Compared(arms, None, [])) == []


def row(**changed: Any) -> dict[str, Any]:
    return {"arm": "mine", "seeds": 5, "difference": 0.1, "measure": "pass@16"} | changed


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "mine (+13 %)"),  # .266 nats against .235
        ({"entropy": 0.245}, None),  # 4 % is near enough
        ({"measure": "pass@1"}, None),  # does not gain by a flatter policy
        ({"entropy_gap": 0.001}, None),  # compared at equal entropy
        ({"entropy": None}, None),
    ],
)
def test_pass_at_k_of_a_flatter_policy_is_told(changed: dict[str, Any], words: str | None) -> None:
    rows = [row(**({"entropy": 0.266, "against_entropy": 0.235} | changed))]
    found = run_warnings.unequal_entropies(Compared({}, "grpo", rows))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_a_grid_over_the_problems_that_judge_it_is_told(tmp_path: Path) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    tuning = tmp_path / "lr"
    for place, rate in enumerate((1e-4, 2e-4, 4e-4)):
        run = write_run(tuning / str(place), f"lr_{place}", 1, SMALL)
        config = yaml.safe_load((run / "config.yaml").read_text()) | BASE
        config["module"] = {"optimizer": {"lr": rate}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    (line,) = run_warnings.tried_on_validation(compared(runs))
    assert line.startswith("The sweep lr tries 3 values of module.optimizer.lr on these")
    arms = group_by_arm(load_runs(tuning))
    (line,) = run_warnings.tried_on_validation(Compared(arms, "lr_0", []))
    assert "3 values of module.optimizer.lr (0.0001, 0.0002, 0.0004)" in line
    (tuning / "2" / "config.yaml").write_text((tuning / "1" / "config.yaml").read_text())
    assert run_warnings.tried_on_validation(compared(runs)) == []  # two values are no grid


def test_values_are_tried_of_one_mechanism_and_told_at_one_place() -> None:
    def configs(*targets: str) -> list[dict[str, Any]]:
        pairs = zip(targets, (0.0002, 0.002, 0.2), strict=True)
        losses = [{"exploration": {"_target_": t, "share": share}} for t, share in pairs]
        return [{"loss": loss, "module": {"loss": loss}} for loss in losses]

    assert run_warnings.values_tried(configs("x.KLCov", "x.ClipCov", "x.Mask")) == {}
    found = run_warnings.values_tried(configs("x.Mask", "x.Mask", "x.Mask"))
    assert found == {"loss.exploration.share": [0.0002, 0.002, 0.2]}


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_verdict_of_few_seeds_is_named(seeds: int) -> None:
    rows = [row(seeds=seeds, verdict="better"), row(seeds=seeds, verdict="not distinguishable")]
    found = run_warnings.few_seeds(Compared({}, "grpo", rows))
    assert len(found) == (2 if seeds == 3 else 0)
    assert seeds == 5 or "mine better in pass@16." in found[1]


@pytest.mark.parametrize(
    ("verdict", "detectable", "told"),
    [
        ("not distinguishable", 0.061, True),
        ("not distinguishable", 0.04, False),
        ("better", 0.2, False),
    ],
)
def test_what_could_not_have_been_found_is_told(
    verdict: str, detectable: float, told: bool
) -> None:
    rows = [row(verdict=verdict, detectable=detectable), row(verdict=verdict, detectable=0.01)]
    found = run_warnings.coarse_verdicts(Compared({}, "grpo", rows))
    assert len(found) == told
    assert not told or "mine (6 points)" in found[0]


@pytest.mark.parametrize(("every", "longer", "told"), [(4, 2, True), (2, 2, False), (4, 0, False)])
def test_what_is_read_on_a_line_from_the_untrained_policy_is_told(
    tmp_path: Path, every: int, longer: int, told: bool
) -> None:
    size = replace(SMALL, steps=4 + longer, every=every + longer if every == 4 else every)
    for arm, mine in (("grpo", SMALL), ("mine", size)):
        write_run(tmp_path / arm, arm, 1, mine)
    arms = group_by_arm(load_runs(tmp_path))
    rows = compare_arms(arms, "grpo", [1], axis="steps")
    found = run_warnings.lines_from_the_start(Compared(arms, "grpo", rows))
    assert len(found) == told
    assert not told or "than the others: mine. At" in found[0]
    ends = compare_arms(arms, "grpo", [1], axis="steps", cost=math.inf)
    assert run_warnings.lines_from_the_start(Compared(arms, "grpo", ends)) == []
