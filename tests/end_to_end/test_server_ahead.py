"""Look-ahead with servers: the rollouts of later steps are sampled while this one trains."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks_run import train
from test_run_on_two_ranks import check_one_course, run_on_ranks
from tiny_runs import E3, configuration, only_train

from e3rl.batch import RolloutBatch
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.engines.vllm_server import VLLMServerEngine
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy
from e3rl.runs import run as running
from e3rl.training.module import GRPOModule
from server_stand_in import StandIn, stand_ins


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def hold_rollouts_back(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, int, int]]:
    """Have the server answer what is sampled ahead after the update alone.

    Of each step: requests that the server has before the update, those after it, and how many
    rollouts old the policy's version is.
    """
    seen: list[tuple[int, int, int]] = []
    ahead, update = RolloutSampler._submit, GRPOModule.training_step

    def held(sampler: RolloutSampler, *args: Any, **named: Any) -> Any:
        server.gate.clear()
        return ahead(sampler, *args, **named)

    def updated(module: GRPOModule, batch: RolloutBatch, batch_idx: int) -> None:
        waiting = not server.gate.is_set()
        if waiting:
            wait_until(lambda: server.running)
        before = len(server.running)
        update(module, batch, batch_idx)
        (version,) = set(batch.tensor("policy_version").tolist())
        seen.append((before, len(server.running), int(version)))
        server.gate.set()

    monkeypatch.setattr(RolloutSampler, "_submit", held)
    monkeypatch.setattr(GRPOModule, "training_step", updated)
    return seen


@pytest.mark.parametrize("correction", ["tis", "mis"])
def test_servers_sample_the_next_step_while_this_one_trains(
    correction: str, tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    with stand_ins(policy, 1) as (server,):
        seen = hold_rollouts_back(server, monkeypatch)
        settings = ("engine=vllm_server", "engine/weights=files", f"engine.urls=[{server.url}]")
        run = tmp_path / "run"
        running.execute(
            configuration(
                run, *E3, *settings, "rollout.lookahead=1", f"loss/correction={correction}"
            )
        )
    assert len(seen) == 6
    assert all(before > 0 and after > 0 for before, after, _ in seen[:-1])
    assert seen[-1][:2] == (0, 0)
    assert [version for *_, version in seen] == [0, 0, 1, 2, 3, 4]
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["policy/age"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert rows[0]["policy/mismatch_max"] < 1e-4
    assert max(row["policy/mismatch_max"] for row in rows[1:]) > 1e-3
    learnt = [row for row in rows if row["policy/mismatch_ess"] > 0]
    assert all(0.5 < row["policy/correction_ess"] <= 1 + 1e-6 for row in learnt)


def by_servers(run: Path, server: StandIn, weights: Path, *settings: str) -> None:
    running.execute(
        configuration(
            run,
            *E3,
            *("engine=vllm_server", "engine/weights=files", f"engine.urls=[{server.url}]"),
            *(f"engine.weights.folder={weights}", "loss/correction=tis", *settings),
        )
    )


def test_three_steps_ahead_each_step_has_the_weights_of_three_updates_before(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers answer late, so that weights have to wait for them; what is trained on is the same as
    with an engine that samples right before each update."""
    only_train(monkeypatch)
    hold, held = VLLMServerEngine.hold, []

    def counted(engine: VLLMServerEngine, policy: Policy, version: int, temperature: float) -> Any:
        held.append(version)
        return hold(engine, policy, version, temperature)

    monkeypatch.setattr(VLLMServerEngine, "hold", counted)
    settings = ("rollout.lookahead=3", "validate_every=6", "checkpoint_every=6")
    with stand_ins(policy, 2, token_s=0.01) as (server, _):
        run = tmp_path / "run"
        by_servers(run, server, tmp_path / "weights", *settings)
    assert held in ([1], [2], [1, 2])  # version 0 is there at once
    running.execute(configuration(tmp_path / "alone", *E3, *settings, "loss/correction=tis"))
    rows, alone = (
        [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "train"]
        for folder in (run, tmp_path / "alone")
    )
    assert [row["policy/age"] for row in rows] == [0, 1, 2, 3, 3, 3]
    assert max(row["engine/canary_max"] for row in rows) < 1e-4
    for name in ("rollout/reward", "policy/entropy", "rollout/temperature", "policy/mismatch_max"):
        assert [row[name] for row in rows] == pytest.approx([r[name] for r in alone], abs=1e-4)
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_run_of_servers_three_steps_ahead_is_resumed_as_if_nothing_had_been(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    settings = ("rollout.lookahead=3", "checkpoint_every=2", "callbacks.checkpoint.keep=3")
    found = []
    with stand_ins(policy, 1, token_s=0.01) as (server,):
        by_servers(tmp_path / "whole", server, tmp_path / "weights", *settings)
        checkpoint = tmp_path / "whole" / "checkpoints" / "step-000002.ckpt"
        by_servers(
            tmp_path / "rest", server, tmp_path / "weights", *settings, f"ckpt_path={checkpoint}"
        )
    for folder in ("whole", "rest"):
        rows = list(read_rows(tmp_path / folder / "completions.jsonl"))
        found.append([row for row in rows if row["rollout_step"] >= 2])
    assert found[0] == found[1]
    assert len(found[0]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["ddp", "fsdp2"])
def test_ranks_that_train_three_steps_ahead_give_their_servers_the_same_weights(
    trainer: str, tmp_path: Path, policy: Policy
) -> None:
    """Their sampling threads meet beside the updates, whose messages are others."""
    ahead = ("rollout.lookahead=3", "loss/correction=tis", "validate_every=6")
    alone = train(tmp_path / "alone", *ahead)
    with stand_ins(policy, 2, token_s=0.01) as servers:
        urls = ",".join(server.url for server in servers)
        ranks = run_on_ranks(
            tmp_path / "ranks",
            *(f"trainer={trainer}", "engine=vllm_server", f"engine.urls=[{urls}]", *ahead),
            f"engine.weights.folder={tmp_path / 'weights'}",
        )
    check_one_course(ranks, alone)
    rows = [r for r in read_rows(tmp_path / "ranks/run/metrics.jsonl") if r["kind"] == "train"]
    assert [row["policy/age"] for row in rows] == [0, 1, 2, 3, 3, 3]
    assert list((tmp_path / "weights").iterdir()) == []
