"""The quantities that follow from a configuration, and the one that must divide."""

import json
from pathlib import Path

import pytest
from hydra.utils import instantiate

from compositions import composed
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError
from e3rl.planning.plan import ProblemCounts, RunPlan, derive_plan
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape

pytestmark = pytest.mark.end_to_end


def plan(policy: Policy, *overrides: str) -> RunPlan:
    cfg = composed("debug=tiny", "paths.run_dir=x", *overrides)
    data = instantiate(cfg.data, _convert_="all")
    data.bind(policy.encode)
    return derive_plan(cfg, ProblemCounts.of(data), ModelShape.of_policy(policy))


def test_a_plan_tells_what_a_run_amounts_to(policy: Policy) -> None:
    found = plan(policy, "module.settings.minibatches=2", "module.settings.inner_epochs=3")
    assert found.total_steps == 12
    assert found.quantities == {
        "arm": "e3, seed 1",
        "rules": "budget E3Rank, temperature EntropyTarget, advantage GroupNormalized, "
        "surrogate clipped",
        "policy": "0.53 M parameters, vocabulary 34",
        "problems": "16 to train on, 8 to validate on",
        "a rollout step": "4 prompts x 8 = 32 rollouts, 6 optimiser steps",
        "the run": "3 epochs x 4 = 12 steps, 384 rollouts",
        "validation": "before training and every 4 steps",
        "annealing": "from step 7 on, to 0.9 of the target entropy; the target is measured "
        "until step 8",
    }


def test_a_plan_names_the_rules_that_a_command_composes(policy: Policy) -> None:
    found = plan(policy, "experiment=grpo", "budget=knapsack", "loss=gspo")
    assert found.quantities["rules"].startswith("budget Knapsack, temperature Fixed, advantage ")
    assert found.quantities["rules"].endswith("surrogate gspo")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["temperature/gain=elasticity", "module.probe.rows=0"], "ElasticityGain goes by exact"),
        (
            ["temperature/gain=solve", "module.probe.factors=[1.0]", "module.probe.rows=0"],
            "rows=64",
        ),
        (["temperature/gain=solve"], r"module.probe.factors=\[\] measures one"),
        (
            [
                *("temperature=multi_temperature", "temperature@temperature.rule=entropy_target"),
                "temperature/gain@temperature.rule.gain=solve",
            ],
            r"module.probe.factors=\[\] measures one",
        ),
    ],
)
def test_a_gain_without_the_entropies_that_it_goes_by_is_refused_before_a_run(
    overrides: list[str], message: str, policy: Policy
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan(policy, *overrides)


def test_a_plan_says_which_stages_a_run_does_not_reach(policy: Policy) -> None:
    staged = ("experiment=grpo", "temperature=piecewise", "temperature.unit=step")
    found = plan(policy, *staged, "temperature.starts=[0,6,12]")
    assert found.quantities["temperature"].startswith("not all stages: the last begins at step 12")
    assert "temperature" not in plan(policy, *staged, "temperature.starts=[0,6,11]").quantities


def test_epochs_that_are_cut_short_count_as_such(policy: Policy) -> None:
    found = plan(policy, "+trainer.limit_train_batches=2", "validate_every=3", "experiment=grpo")
    assert found.quantities["the run"] == "3 epochs x 2 = 6 steps, 192 rollouts"
    assert "annealing" not in found.quantities


@pytest.mark.parametrize(("rows", "steps"), [(20, 12), (16, 12), (10, 6), (4, 3)])
def test_a_tiny_run_takes_the_problems_that_there_are_in_files(
    rows: int, steps: int, policy: Policy, tmp_path: Path
) -> None:
    files = []
    for name, count in (("train", rows), ("validation", 9)):
        file = tmp_path / f"{name}.jsonl"
        lines = [{"prompt": f"{len(name)}{n}+1=", "answer": f"{n}"} for n in range(count)]
        file.write_text("\n".join(map(json.dumps, lines)))
        files.append(f"data.{name}.path={file}")
    given = ("data=problem_files", *files)
    check(composed("debug=tiny", "paths.run_dir=x", "logger=ledger_only", "sweep.name=x", *given))
    found = plan(policy, *given)
    assert found.total_steps == steps
    assert found.quantities["problems"] == f"{min(rows, 16)} to train on, 8 to validate on"


@pytest.mark.parametrize(
    "option",
    [
        *("max_steps=6", "max_time=00:00:10:00", "fast_dev_run=true", "overfit_batches=0.5"),
        *("limit_train_batches=0.5", "limit_train_batches=0", "max_epochs=5", "max_epochs=-1"),
    ],
)
def test_what_ends_a_run_elsewhere_than_planned_is_refused(option: str, policy: Policy) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^trainer\.{option.split('=')[0]}=.* use epochs"
    ):
        plan(policy, f"++trainer.{option}")


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("profiler=simple", r"^trainer\.profiler would be ignored; use profiler="),
        ("logger=false", r"^trainer\.logger would be ignored; use logger="),
        ("callbacks=[]", r"^trainer\.callbacks would be ignored; use \+callbacks"),
        ("gradient_clip_val=1.0", r"^trainer\.gradient_clip_val=1.0: .*max_grad_norm"),
        ("accumulate_grad_batches=2", r"^trainer\.accumulate_.*=2: .*tokens_per_microbatch"),
        ("precision=16-mixed", r"^trainer\.precision=16-mixed .* use bf16-mixed or 32-true"),
    ],
)
def test_what_a_trainer_would_ignore_or_get_wrong_is_refused(
    option: str, remedy: str, policy: Policy
) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        plan(policy, f"++trainer.{option}")


def test_what_ends_no_run_is_taken(policy: Policy) -> None:
    idle = ("+trainer.max_steps=-1", "+trainer.limit_train_batches=1.0", "+trainer.max_time=null")
    idle += ("+trainer.gradient_clip_val=null", "+trainer.accumulate_grad_batches=1")
    assert plan(policy, *idle, "+trainer.limit_val_batches=1.0").total_steps == 12


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("val_check_interval=5", r"=5 is another rhythm than validate_every=4.* validate_every=N"),
        ("val_check_interval=0.5", "=0.5 is another rhythm"),
        ("val_check_interval=4.0", "=4.0 is another rhythm"),
        ("val_check_interval=null", "=None is another rhythm"),
        ("check_val_every_n_epoch=2", r"=2 validates by epochs.*check_val_every_n_epoch=null and"),
    ],
)
def test_validations_at_other_steps_than_planned_are_refused(
    option: str, remedy: str, policy: Policy
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^trainer\.{option.split('=')[0]}{remedy}"):
        plan(policy, f"trainer.{option}")


@pytest.mark.parametrize("limit", ["0", "-1", "0.5", "0.0", "true", "all"])
def test_a_validation_of_no_number_of_batches_is_refused(limit: str, policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match=r"^trainer\.limit_val_batches=.* or null for all"):
        plan(policy, f"+trainer.limit_val_batches={limit}")


@pytest.mark.parametrize(
    ("limit", "per_batch", "told"),
    [("1", 3, "3 of 8"), ("2", 3, "6 of 8"), ("3", 3, "8"), ("null", 3, "8"), ("1", 256, "8")],
)
def test_validations_that_are_cut_short_count_as_such(
    limit: str, per_batch: int, told: str, policy: Policy
) -> None:
    cut = (f"+trainer.limit_val_batches={limit}", f"data.validation_prompts_per_batch={per_batch}")
    assert plan(policy, *cut).quantities["problems"] == f"16 to train on, {told} to validate on"


def test_a_target_that_is_measured_all_along_moves_no_temperature(policy: Policy) -> None:
    found = plan(policy, "temperature.init_steps=12").quantities
    assert "annealing" not in found
    assert found["temperature"].startswith("never moves: it is 12 steps (temperature.init_steps)")
    given = plan(policy, "temperature.init_steps=12", "temperature.target=0.3").quantities
    assert given["annealing"] == "from step 7 on, to 0.9 of the target entropy"


def test_a_target_that_is_known_too_late_for_what_is_sampled_ahead_moves_no_temperature(
    policy: Policy,
) -> None:
    found = plan(policy, "temperature.init_steps=11", "rollout.lookahead=1").quantities
    assert "annealing" not in found
    assert found["temperature"] == (
        "never moves: it is 11 steps (temperature.init_steps) that measure the target entropy, 1 "
        "more are sampled before it is known (rollout.lookahead), and the run has 12"
    )
    assert "temperature" not in plan(policy, "temperature.init_steps=11").quantities
    earlier = plan(policy, "temperature.init_steps=10", "rollout.lookahead=1").quantities
    assert "temperature" not in earlier


def test_a_plan_is_of_settings_that_agree(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match=r"^data\.prompts_per_step=8 is another number"):
        plan(policy, "data.prompts_per_step=8")


def test_a_budget_by_history_that_meets_no_prompt_twice_is_told(policy: Policy) -> None:
    short = ("data.train.size=64", "+trainer.limit_train_batches=4")  # 3 x 4 steps of 4 prompts
    assert (
        plan(policy, *short)
        .quantities["budget"]
        .startswith("uniform all along: 48 of 64 problems are visited, once each")
    )
    assert "budget" not in plan(policy, *short, "data.train.size=47").quantities
    assert "budget" not in plan(policy, *short, "budget=sequential").quantities


def test_a_pilot_above_the_mean_is_refused_before_any_work(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match=r"rollouts_per_prompt=3 must .* budget\.pilot=4"):
        plan(policy, "experiment=grpo", "budget=pilot_commit", "rollouts_per_prompt=3")


def test_more_minibatches_than_rollouts_are_refused_before_any_work(policy: Policy) -> None:
    assert plan(policy, "module.settings.minibatches=32").total_steps == 12
    message = (
        r"minibatches=33 is more than a step has rollouts, 4 x 8 = 32: use at most 32, or raise "
        "prompts_per_step or rollouts_per_prompt"
    )
    with pytest.raises(ConfigurationError, match=message):
        plan(policy, "module.settings.minibatches=33")


def test_groups_of_one_are_never_mixed(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match="rollouts_per_prompt=1 makes none: use 2 or more"):
        plan(policy, "experiment=grpo", "budget=dynamic_sampling", "rollouts_per_prompt=1")


def test_rewards_below_0_have_no_likelihood(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match="use shaping=none, or advantage=centred"):
        plan(policy, "experiment=grpo", "loss=dapo", "advantage=maximum_likelihood")


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.4, 0.7, 0.9, 1.0])
def test_it_tells_the_step_at_which_annealing_does_begin(ratio: float, policy: Policy) -> None:
    from e3rl.temperatures.annealing import CosineAnnealing

    rule = CosineAnnealing(ratio=ratio)
    rule.bind(20)
    found = plan(policy, "epochs=5", "validate_every=5", f"temperature.annealing.ratio={ratio}")
    assert found.quantities["annealing"].startswith(f"from step {rule.start} on")


def test_annealing_begins_at_the_last_whole_step(policy: Policy) -> None:
    """Of six epochs of four steps: 24 times .6 is 14.4."""
    found = plan(policy, "epochs=6", "validate_every=4", "temperature.annealing.ratio=0.4")
    assert found.quantities["annealing"].startswith("from step 14 on")


@pytest.mark.parametrize(("every", "near"), [(5, 4), (8, 6), (100, 12)])
def test_a_last_step_without_validation_is_refused_with_a_number_that_works(
    every: int, near: int, policy: Policy
) -> None:
    with pytest.raises(ConfigurationError, match=f"divide the run's 12 steps.*every={near}$"):
        plan(policy, f"validate_every={every}")


def test_it_is_shown_as_a_table_without_cutting_paths(policy: Policy) -> None:
    folder = Path("/a/very/long/path") / ("x" * 200)
    shown = plan(policy).render(folder, resume=folder / "step-000004.ckpt").splitlines()
    assert shown[0].split() == ["arm", "e3,", "seed", "1"]
    assert shown[-2].split() == ["run", "folder", str(folder)]
    assert shown[-1].split() == ["resumes", str(folder / "step-000004.ckpt")]
    assert all(line == line.rstrip() for line in shown)


@pytest.mark.parametrize("mean", [3, 13])
def test_a_mean_outside_the_budgets_bounds_is_refused_before_any_work(
    mean: int, policy: Policy
) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"rollouts_per_prompt={mean}.*n_low=4.*n_high=12"
    ):
        plan(policy, f"rollouts_per_prompt={mean}")
    assert plan(policy, f"rollouts_per_prompt={mean}", "budget=uniform").total_steps == 12


def test_a_mean_below_the_first_round_is_refused_before_any_work(policy: Policy) -> None:
    with pytest.raises(ConfigurationError, match=r"rollouts_per_prompt=3.*budget.per_round=4"):
        plan(policy, "rollouts_per_prompt=3", "budget=sequential")


def test_ranks_of_the_data_as_difficulty_need_data_that_bring_them(policy: Policy) -> None:
    asked = ("budget=e3_rank", "budget.difficulty=prior")
    with pytest.raises(ConfigurationError, match=r"difficulty=prior: 16 of 16 .* rank column"):
        plan(policy, *asked, "data=arithmetic")
    assert plan(policy, *asked).total_steps == 12  # the default brings them
