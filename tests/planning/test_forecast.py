"""`debug=plan`: tokens, hours and memory, worked by hand; nothing is loaded or left behind."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig

import compositions
from e3rl.config.check import check
from e3rl.config.composition import ConfigurationError
from e3rl.planning.forecast import (
    find_gpu,
    forecast_hours,
    forecast_work,
    plan_ahead,
    with_measured_speed,
)
from e3rl.policy.policy import Policy

pytestmark = pytest.mark.end_to_end


def composed(*overrides: str) -> DictConfig:
    common = ("debug=plan", "logger=ledger_only", "paths.run_dir=x", "trainer.accelerator=cpu")
    return compositions.composed(*common, *overrides)


@cache
def planned(*overrides: str) -> dict[str, str]:
    cfg = composed(*overrides)
    check(cfg)
    return plan_ahead(cfg).quantities


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a plan loads no weights")

    monkeypatch.setattr(Policy, "__init__", load)


@pytest.mark.usefixtures("unloaded")
def test_the_embedded_default_without_its_weights() -> None:
    found = planned("plan.tokens_per_s=3000", "plan.mean_tokens=24")
    assert found["problems"] == "1024 to train on, 256 to validate on"
    assert found["the run"] == "4 epochs x 32 = 128 steps, 32768 rollouts"
    assert found["optimiser steps"] == "128"
    # 32768 x 80; three validations of 17 rollouts and 16 at the live temperature in the last
    assert found["tokens trained on"] == "at most 2.62 M, 0.79 M expected at 24 each"
    assert found["tokens validated"] == (
        "at most 1.37 M, 0.41 M expected at 24 each; 17152 rollouts in 3 validations"
    )
    # (32768 + 17152) x 80 / 3000 / 3600 s
    assert found["time"] == "at most 0.4 hours, 0.1 expected, at 3000 tokens per second"
    # 526464 weights of 4 bytes; a cache of 256 MiB at 3 layers x 2 x 64 x 4 bytes per token
    assert found["memory: weights"] == "2.0 MiB"
    assert found["memory: engine"] == (
        "0.3 GiB; its cache holds 174762 tokens, 1213 of the longest rollouts"
    )
    assert " of " not in found["memory: peak"]


@pytest.mark.usefixtures("unloaded")
def test_the_papers_run_at_1_5b_fits_an_a100_with_whole_copies() -> None:
    found = planned("experiment=paper/1_5b/e3", "plan.tokens_per_s=10000")
    assert found["policy"] == "1777.09 M parameters, vocabulary 151936"
    assert found["the run"] == "3 epochs x 160 = 480 steps, 245760 rollouts"
    assert found["annealing"] == "from step 288 on, to 0.9 of the target entropy"
    assert found["tokens trained on"] == "at most 1,509.95 M, 879.82 M expected at 3580 each"
    # 49 greedy ones of 512 problems, and 16 in the last
    assert found["tokens validated"] == (
        "at most 204.47 M, 119.14 M expected at 3580 each; 33280 rollouts in 49 validations"
    )
    assert found["time"] == "at most 47.6 hours, 27.7 expected, at 10000 tokens per second"
    assert {key: value for key, value in found.items() if key.startswith("memory")} == {
        "memory: weights": "6.6 GiB",  # 1777088000 x 4 bytes
        "memory: gradients": "13.2 GiB",  # and in DDP's buckets
        "memory: optimiser states": "13.2 GiB",
        "memory: weights as computed": "89.3 MiB",  # of the block that is computed again
        "memory: activations": "1.0 GiB",
        # a quarter of 80 GiB less 2 x 1777088000, at 28 x 2 x 256 x 2 bytes per token
        "memory: engine": "20.0 GiB; its cache holds 625023 tokens, 76 of the longest rollouts",
        "memory: peak": "54.1 GiB per device of 80.0 GiB",  # at the end of the backward pass
    }


def test_the_hours_of_a_plan_are_those_that_its_page_says() -> None:
    told = planned("experiment=paper/1_5b/e3", "trainer.devices=4")["time"]
    hours = told.removeprefix("about ").split()[0]
    page = (Path(__file__).parents[2] / "docs" / "data_and_models.md").read_text(encoding="utf-8")
    assert f"24 on 4 at 1.5B, where the plan says {hours}." in page


@pytest.mark.parametrize(("size", "published", "devices"), [("1_5b", 24, 4), ("7b", 36, 8)])
def test_hours_of_a_named_gpu_are_of_the_size_of_the_papers(
    size: str, published: int, devices: int
) -> None:
    found = planned(f"experiment=paper/{size}/e3", f"trainer.devices={devices}")
    form = rf"about ([\d.]+) hours on {devices} a100, at most ([\d.]+); .*"
    told = re.fullmatch(form, found["time"])
    assert told is not None
    hours, most = map(float, told.groups())
    assert published / 2 < hours < published
    assert hours < most
    parts = re.findall(r"([\d.]+) s", found["time: a step"])
    step, rollouts, update, sync = map(float, parts)
    assert step == pytest.approx(rollouts + update + sync, abs=0.2)
    validation = re.fullmatch(r"49 take ([\d.]+) hours", found["time: validation"])
    assert validation is not None
    assert hours == pytest.approx(480 * step / 3600 + float(validation[1]), abs=0.2)
    faster = planned(f"experiment=paper/{size}/e3", f"trainer.devices={devices}", "plan.gpu=h100")
    assert float(faster["time"].split()[1]) < hours


def test_look_ahead_hides_the_shorter_of_rollouts_and_update() -> None:
    found = planned("experiment=paper/1_5b/e3", "rollout.lookahead=1")
    step, rollouts, update, sync = map(float, re.findall(r"([\d.]+) s", found["time: a step"]))
    assert step == pytest.approx(max(rollouts, update) + sync, abs=0.2)


def test_without_a_known_gpu_hours_take_a_speed() -> None:
    assert planned()["time"].startswith("give plan.gpu (a10, a100, ")
    with pytest.raises(ConfigurationError, match=r"plan.gpu=tpu: known are a10, a100"):
        planned("plan.gpu=tpu")
    assert "of 141.0 GiB" in planned("plan.gpu=h200")["memory: peak"]


def test_7b_does_not_fit_as_whole_copies_and_does_when_sharded() -> None:
    whole = planned("experiment=paper/7b/e3", "trainer=ddp")
    assert whole["policy"] == "7615.62 M parameters, vocabulary 152064"
    assert whole["memory: peak"].startswith("180.4 GiB per device of 80.0 GiB: does not fit; ")
    assert "trainer=fsdp2" in whole["memory: peak"]
    sharded = planned("experiment=paper/7b/e3")
    assert sharded["memory: weights"] == "3.5 GiB"
    # An eighth of 4 x 7615616512, and 6 x 1090128384 outside of blocks on their way to the ranks
    assert sharded["memory: gradients"] == "9.6 GiB"
    # 2 x (1090128384 outside of blocks, and two blocks of 233053184)
    assert sharded["memory: weights as computed"] == "2.9 GiB"
    # 8192 x (2 x 3584 + 16 x 3584 + 4 x 3584 + 4 x 512 + 8 x 18944)
    assert sharded["memory: activations"] == "1.8 GiB"
    assert sharded["memory: peak"] == "60.9 GiB per device of 80.0 GiB"


def test_groups_of_four_hold_quarters_and_add_up_their_gradients() -> None:
    one = planned("experiment=paper/7b/e3")
    two = planned("experiment=paper/7b/e3", "trainer.strategy.replicas=2")
    assert two["memory: weights"] == "7.1 GiB"  # 4 x 7615616512 / 4
    assert "gradients added up 0.0 s" in one["time: update"]
    # 2 x 4 x 7615616512 / 4 bytes at 300e9 a second
    assert "gradients added up 0.1 s" in two["time: update"]
    machines = ("trainer.strategy.replicas=machines", "trainer.num_nodes=2", "trainer.devices=4")
    assert planned("experiment=paper/7b/e3", *machines)["memory: weights"] == "7.1 GiB"
    with pytest.raises(ConfigurationError, match=r"replicas=3: 8 ranks do not make 3 groups"):
        planned("experiment=paper/7b/e3", "trainer.strategy.replicas=3")


def test_offloaded_states_take_room_in_the_optimisers_step_alone() -> None:
    kept = planned("experiment=paper/7b/e3")
    away = planned("experiment=paper/7b/e3", "module.settings.offload_optimizer=true")
    # 2 x 4 x 7615616512 / 8
    assert kept["memory: optimiser states"] == "7.1 GiB"
    peaks = [float(each["memory: peak"].split(" GiB")[0]) for each in (kept, away)]
    assert peaks[0] - peaks[1] == pytest.approx(7.1, abs=0.1)
    assert "memory: optimiser states" not in away  # the peak is in the backward pass
    one = ("trainer.devices=1", "trainer=default")  # its peak is in the step, where they are
    found = [
        planned("experiment=paper/1_5b/e3", *one, f"module.settings.offload_optimizer={each}")
        for each in ("true", "false")
    ]
    assert found[0]["memory: optimiser states"] == found[1]["memory: optimiser states"]


def test_an_engine_that_sleeps_is_not_there_during_the_update() -> None:
    asleep = planned("experiment=paper/1_5b/e3", "engine.settings.sleep_level=1")
    # while it samples: weights, gradients, optimiser states, and 20 GiB
    assert asleep["memory: peak"] == "53.1 GiB per device of 80.0 GiB"
    ahead = planned(
        "experiment=paper/1_5b/e3", "engine.settings.sleep_level=1", "rollout.lookahead=1"
    )
    assert ahead["memory: peak"] == "54.1 GiB per device of 80.0 GiB"


@pytest.mark.parametrize("engine", ["vllm_server_gpu", "vllm_ray_gpu"])
def test_servers_take_no_memory_of_the_trainers(engine: str) -> None:
    found = planned("experiment=paper/1_5b/e3", f"engine={engine}")
    assert found["memory: engine"] == "none: servers have devices of their own"
    beside = planned("experiment=paper/1_5b/e3")
    peaks = [float(each["memory: peak"].split(" GiB")[0]) for each in (found, beside)]
    assert peaks[1] - peaks[0] == pytest.approx(20.0, abs=0.2)  # a quarter of 80 GiB
    assert "lower" not in found["memory: peak"]


def test_a_cache_without_room_for_a_rollout_is_told() -> None:
    found = planned("experiment=paper/1_5b/e3", "engine.settings.gpu_memory_utilization=0.04")
    assert found["memory: engine"].endswith("holds 0 tokens, 0 of the longest rollouts")
    assert "raise engine.settings.gpu_memory_utilization" in found["memory: peak"]


def test_a_bonus_costs_copies_of_whole_logits_and_nothing_by_blocks() -> None:
    for bonus in ("adaptive_entropy_bonus", "difficulty_entropy_bonus", "entropy_bonus"):
        choice = f"loss/exploration={bonus}"
        arm = ("experiment=paper/1_5b/grpo", choice)
        plain = planned("experiment=paper/1_5b/grpo")["memory: peak"]
        assert planned(*arm)["memory: peak"] == plain
        # 8192 x 151936 x (2 x 2 + 5 x 4) bytes
        assert planned(*arm, "policy/head=full")["memory: logits"] == "27.8 GiB"


def test_adapters_shrink_gradients_and_optimiser_states() -> None:
    found = planned("experiment=paper/1_5b/grpo", "policy/lora=linear", "trainer.devices=1")
    assert found["memory: weights"] == "6.7 GiB"  # 1777088000 + 18464768 of 4 bytes
    # 28 layers x 16 x (2 x 3072 + 2 x 1792 + 3 x 10496) x 8 bytes
    assert found["memory: optimiser states"] == "0.1 GiB"
    assert "memory: gradients" not in found  # at the peak, before there are any
    assert found["memory: peak"] == "29.9 GiB per device of 80.0 GiB"
    with pytest.raises(ConfigurationError, match="qproj names no linear layer inside the qwen2"):
        planned(
            *("experiment=paper/1_5b/grpo", "policy/lora=attention"),
            "policy.lora.target_modules=[qproj]",
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("plan.mean_tokens=6145", r"plan.mean_tokens=6145.* max_new_tokens=6144"),
        ("plan.train_problems=63", r"plan.train_problems=63 .* prompts_per_step=64"),
        ("plan.train_problems=10000", r"validate_every=10 does not divide the run's 468 steps"),
        ("plan.tokens_per_s=0", r"plan.tokens_per_s=0: input should be greater than 0"),
        ("plan.gpu_gib=-80", r"plan.gpu_gib=-80: input should be greater than 0"),
        ("plan.validation_problems=null", r"data.validation.path is missing"),
        ("plan.model_config=nowhere.json", r"plan.model_config=nowhere.json: no model config"),
    ],
)
def test_what_cannot_be_planned_is_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        planned("experiment=paper/1_5b/grpo", given)


def test_a_reward_that_is_not_there_is_refused_as_by_the_run() -> None:
    with pytest.raises(ConfigurationError, match=r"reward: .*there is no file .*/nowhere.py"):
        planned("experiment=grpo", "reward=function", "reward.path=nowhere.py:score")


def test_a_measured_length_takes_the_place_of_a_planned_one_and_stays_within_the_limit() -> None:
    cut = ("experiment=paper/1_5b/e3", "max_new_tokens=2048", "plan.tokens_per_s=10000")
    with pytest.raises(ConfigurationError, match=r"plan.mean_tokens=3580 is above max_new_tokens"):
        planned(*cut)
    # All completions are cut: 2048 to three digits would be 2050.
    found = with_measured_speed(composed(*cut), tokens_per_s=1.0, mean_tokens=2048.0)
    assert (found.plan.mean_tokens, found.plan.tokens_per_s) == (2048, 10000)
    told = forecast_work(found, 480, 512)
    assert told["tokens trained on"] == "at most 503.32 M, 503.32 M expected at 2048 each"
    # (245760 + 33280) rollouts x 2048 / 10000 / 3600 s
    assert forecast_hours(found, 480, 512) == pytest.approx(15.87, abs=0.01)
    short = with_measured_speed(composed(*cut), tokens_per_s=1.0, mean_tokens=123.45)
    assert short.plan.mean_tokens == 123
    own = with_measured_speed(composed("max_new_tokens=40", "trainer.devices=2"), 1234.5, 39.96)
    assert (own.plan.mean_tokens, own.plan.tokens_per_s) == (40, 2470)  # 2 x 1234.5 to 3 digits


def test_more_processes_update_faster_and_make_servers_sample_no_faster() -> None:
    two = ("max_new_tokens=40", "trainer.devices=2")
    beside = with_measured_speed(composed(*two), 1000, 40, update_s=0.003)
    assert beside.plan.tokens_per_s == 500  # 2 / (0.001 + 0.003)
    servers = with_measured_speed(composed(*two, "engine=vllm_server"), 1000, 40, update_s=0.003)
    assert servers.plan.tokens_per_s == 400  # 1 / (0.001 + 0.003 / 2)


def test_files_that_are_given_are_counted(tmp_path: Path) -> None:
    paths = []
    for split, size in (("train", 640), ("validation", 3)):
        row = {"data_source": "mine", "rank": 0.5, "reward_model": {"ground_truth": "1"}}
        rows = [row | {"prompt": f"{split} {i}?"} for i in range(size)]
        file = tmp_path / f"{split}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paths.append(f"data.{split}.path={file}")
    found = planned("experiment=paper/1_5b/grpo", *paths)
    assert found["problems"] == "640 to train on, 3 to validate on"
    assert found["the run"] == "3 epochs x 10 = 30 steps, 15360 rollouts"


def test_validations_that_are_cut_short_cost_less() -> None:
    short = ("prompts_per_step=4", "epochs=1", "+trainer.limit_train_batches=4", "validate_every=4")
    whole = planned(*short, "data.validation_prompts_per_batch=8")
    cut = planned(
        *short, "data.validation_prompts_per_batch=8", "+trainer.limit_val_batches=1", "epochs=1"
    )
    # 17 rollouts of a problem before training, 33 after it; of 256 problems, or of 8
    assert whole["tokens validated"].endswith("; 12800 rollouts in 2 validations")
    assert cut["tokens validated"].endswith("; 400 rollouts in 2 validations")
    limited = ("experiment=paper/1_5b/e3", "data.validation_prompts_per_batch=8")
    hours = [
        float(found["time: validation"].split()[2])
        for found in (planned(*limited), planned(*limited, "+trainer.limit_val_batches=1"))
    ]
    assert hours[1] < hours[0]


def test_ranks_that_share_an_engine_need_no_further_gpus() -> None:
    """A process alone has vLLM start workers on others. The update is the same."""
    ranks = ("experiment=paper/7b/e3", "trainer.devices=4")
    apart, together = (planned(*ranks, f"engine.settings.tensor_parallel_size={n}") for n in (1, 2))
    assert "hours on 4 a100, at most" in apart["time"]
    assert "hours on 4 a100, at most" in together["time"]
    assert together["time: update"] == apart["time: update"]
    alone = planned(ranks[0], "trainer.devices=1", "engine.settings.tensor_parallel_size=2")
    assert "hours on 2 a100, at most" in alone["time"]


@pytest.mark.end_to_end
def test_the_command_prints_the_plan_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "e3rl.train", "experiment=paper/1_5b/e3", "debug=plan"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "time  " in done.stdout
    assert "hours on 4 a100, at most" in done.stdout
    assert "run folder" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_pass_has_more_tokens_on_a_gpu_than_on_a_cpu() -> None:
    peaks = [
        planned("policy=random", "plan.gpu=h100", *given)["memory: peak"]
        for given in ([], ["module.settings.tokens_per_microbatch=16384"])
    ]
    assert peaks[0] == peaks[1]
    small = planned("policy=random", "plan.gpu=h100", "module.settings.tokens_per_microbatch=2048")
    assert small["time: update"] != planned("policy=random", "plan.gpu=h100")["time: update"]


def test_the_documentation_shows_the_plan_of_the_papers_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data_and_models.md").read_text("utf-8")
    plan = plan_ahead(composed("experiment=paper/7b/e3")).render()
    assert f"```text\n{plan}\n```" in page


@pytest.mark.parametrize(
    ("device", "known"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX A1000 6GB Laptop GPU", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A10G", None),
        ("NVIDIA GH200 480GB", None),
    ],
)
def test_a_gpu_is_known_by_its_name(
    device: str, known: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: device)
    found = find_gpu(composed("trainer.accelerator=gpu"))
    assert (found and found[0]) == known


def test_servers_decode_as_many_at_once_as_their_own_devices_hold() -> None:
    run = ("experiment=paper/1_5b/e3", "plan.gpu=a100")

    def at_once(*more: str) -> int:
        return int(planned(*run, *more)["time: rollouts"].split("; ")[1].split()[0])

    # Two processes send each server 256 at most, one in its place half of that.
    alone = ("engine=vllm_server_gpu", "trainer.devices=1", "engine.settings.max_num_seqs=1024")
    held = at_once(*alone, "engine.at_once=4096")
    assert 256 < held <= 1024
    assert at_once(*alone, "engine.at_once=100") == 100
    two = (*alone, "engine.at_once=4096", "engine.urls=[http://a:1,http://b:1]")
    hours = [_hours_of(planned(*run, *more)) for more in ((*alone, "engine.at_once=4096"), two)]
    assert hours[1] < hours[0]
    assert " on 3 a100" in planned(*run, *two)["time"]  # one trains, two serve


def _hours_of(found: dict[str, str]) -> float:
    return float(found["time"].split()[1])


def test_a_reference_takes_the_memory_of_its_weights() -> None:
    run = ("experiment=paper/1_5b/grpo", "plan.gpu=a100")
    kept = planned(*run, "loss.kl_coef=0.01")
    assert kept["memory: reference"] == kept["memory: weights"] == "6.6 GiB"
    peaks = [float(each["memory: peak"].split(" GiB")[0]) for each in (kept, planned(*run))]
    assert peaks[0] - peaks[1] == pytest.approx(6.6, abs=0.1)
    adapted = planned(*run, "loss.kl_coef=0.01", "policy/lora=linear")
    assert "memory: reference" not in adapted  # without its adapters the policy is its own start


def test_a_measured_pass_counts_as_often_as_the_update_makes_it() -> None:
    def speed(*more: str) -> float:
        cfg = composed("max_new_tokens=40", *more)
        return float(with_measured_speed(cfg, 1000, 40, update_s=0.003).plan.tokens_per_s)

    assert speed() == 250  # 1 / (0.001 + 0.003)
    assert speed("module.settings.minibatches=4") == 200  # and a pass forwards, a third as long
    assert speed("loss.kl_coef=0.01") == 200
    assert speed("module.settings.inner_epochs=4") == 71.4  # 1 / (0.001 + 4 x 0.003 + 0.001)
    assert speed("rollout.lookahead=1", "engine=vllm") == 333  # the longer of both
