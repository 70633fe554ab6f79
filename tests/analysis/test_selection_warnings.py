"""What the report says of problems that settings may have been chosen by."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded_runs import write_run
from warned_runs import BASE, SMALL, compared, configure, folder, rename_problems

from e3rl.analysis.sources.runs import group_by_arm, load_runs
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.selection import (
    many_arms,
    tried_on_validation,
    tuned_on_validation,
    values_tried,
)


@pytest.mark.parametrize("by", ["results", "sweeper"])
def test_problems_that_a_sweep_was_tuned_on_are_told(tmp_path: Path, by: str) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    assert tuned_on_validation(compared(runs)) == []
    tuning = folder(tmp_path / "lr", seeds=1)
    assert tuned_on_validation(compared(runs)) == []  # a sweep that chose nothing
    if by == "results":
        (tuning / "optimization_results.yaml").write_text("best_value: 0.6\n")
    else:
        node = {"hydra": {"sweeper": {"_target_": "hydra_plugins.hydra_optuna_sweeper.Optuna"}}}
        (tuning / "multirun.yaml").write_text(yaml.safe_dump(node))
    (line,) = tuned_on_validation(compared(runs))
    assert line.startswith("The sweep lr was tuned on these validation problems")


def test_a_sweep_that_was_tuned_on_other_problems_is_no_matter(tmp_path: Path) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    tuning = folder(tmp_path / "lr", seeds=1)
    (tuning / "optimization_results.yaml").write_text("best_value: 0.6\n")
    for file in tuning.glob("*/config.yaml"):
        rename_problems(file.parent, "seed-7")
        config = yaml.safe_load(file.read_text())
        config["data"]["validation"]["seed"] = 7
        file.write_text(yaml.safe_dump(config))
    assert tuned_on_validation(compared(runs)) == []


@pytest.mark.parametrize("file", ["config.yaml", "multirun.yaml", "validation.jsonl"])
def test_a_sweep_beside_that_is_broken_tells_nothing_and_ends_nothing(
    tmp_path: Path, file: str
) -> None:
    runs, beside = folder(tmp_path / "arms", seeds=1), folder(tmp_path / "lr", seeds=1)
    torn = [beside / file] if file == "multirun.yaml" else list(beside.glob(f"*/{file}"))
    for path in torn:
        path.write_text("name: [torn\n")
    assert torn
    assert tuned_on_validation(compared(runs)) == tried_on_validation(compared(runs)) == []


def test_a_grid_over_the_problems_that_judge_it_is_told(tmp_path: Path) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    tuning = tmp_path / "lr"
    for place, rate in enumerate((1e-4, 2e-4, 4e-4)):
        run = write_run(tuning / str(place), f"lr_{place}", 1, SMALL)
        config = yaml.safe_load((run / "config.yaml").read_text()) | BASE
        config["module"] = {"optimizer": {"lr": rate}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    (line,) = tried_on_validation(compared(runs))
    assert line.startswith("The sweep lr tries 3 values of module.optimizer.lr on these")
    arms = group_by_arm(load_runs(tuning))
    (line,) = tried_on_validation(Compared(arms, "lr_0", []))
    assert "3 values of module.optimizer.lr (0.0001, 0.0002, 0.0004)" in line
    (tuning / "2" / "config.yaml").write_text((tuning / "1" / "config.yaml").read_text())
    assert tried_on_validation(compared(runs)) == []  # two values are no grid


def test_values_are_tried_of_one_mechanism_and_told_at_one_place() -> None:
    def configs(*targets: str) -> list[dict[str, Any]]:
        pairs = zip(targets, (0.0002, 0.002, 0.2), strict=True)
        losses = [{"exploration": {"_target_": t, "share": share}} for t, share in pairs]
        return [{"loss": loss, "module": {"loss": loss}} for loss in losses]

    assert values_tried(configs("x.KLCov", "x.ClipCov", "x.Mask")) == {}
    found = values_tried(configs("x.Mask", "x.Mask", "x.Mask"))
    assert found == {"loss.exploration.share": [0.0002, 0.002, 0.2]}


def tuning_beside(root: Path) -> Path:
    """The runs of a sweep that proposes values, beside the arms."""
    tuning = folder(root / "lr", seeds=1)
    (tuning / "optimization_results.yaml").write_text("best_value: 0.6\n")
    return tuning


@pytest.mark.parametrize(("kept", "told"), [(2, True), (1, False)])  # of 6: a third, a sixth
def test_problems_are_the_same_by_their_ids_however_they_were_asked_for(
    tmp_path: Path, kept: int, told: bool
) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    for run in tuning_beside(tmp_path).glob("*-1"):
        configure(run, data={"validation_size": 6})
        rename_problems(run, "other", kept)
    assert len(tuned_on_validation(compared(runs))) == told


@pytest.mark.parametrize(("changed", "told"), [({"size": 3}, True), ({"seed": 7}, False)])
def test_without_ids_a_smaller_set_is_a_part_of_the_larger(
    tmp_path: Path, changed: dict[str, int], told: bool
) -> None:
    runs = folder(tmp_path / "arms", seeds=1)
    for run in tuning_beside(tmp_path).glob("*-1"):
        (run / "validation.jsonl").unlink()
        configure(run, data={"validation": BASE["data"]["validation"] | changed})
    assert len(tuned_on_validation(compared(runs))) == told


def arms_of(root: Path, names: list[str]) -> Path:
    for name in names:
        configure(write_run(root / name, name, 1, SMALL), **BASE)
    return root


@pytest.mark.parametrize(("count", "told"), [(5, False), (6, True)])
def test_the_best_of_more_arms_than_a_handful_is_flattered(
    tmp_path: Path, count: int, told: bool
) -> None:
    found = many_arms(compared(arms_of(tmp_path, ["grpo", *"abcdefgh"][:count])))
    assert len(found) == told
    assert not told or found[0].startswith("6 arms were judged by the same validation problems: ")


@pytest.mark.parametrize(
    ("rules", "rule", "told"), [(6, "Rule3", True), (5, "Rule3", False), (6, "Mine", False)]
)
def test_a_rule_that_a_sweep_beside_tried_among_many_is_told(
    tmp_path: Path, rules: int, rule: str, told: bool
) -> None:
    """Six budgets beside, of which the arm here has one; but not one that it has alone."""
    runs = folder(tmp_path / "arms", seeds=1, changed={"budget": {"_target_": f"x.{rule}"}})
    for place, run in enumerate(arms_of(tmp_path / "all", list("abcdef")[:rules]).iterdir()):
        configure(run, budget={"_target_": f"x.Rule{place}"})
    found = tried_on_validation(compared(runs))
    assert len(found) == told
    assert (
        not told
        or "The sweep all tries 6 rules of budget on these validation problems, Rule3 am"
        in found[0]
    )
