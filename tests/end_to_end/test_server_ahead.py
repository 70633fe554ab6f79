"""Look-ahead with servers: the rollouts of the next step are sampled while this one trains."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import E3, configuration, only_train

from e3rl.batch import RolloutBatch
from e3rl.callbacks.rollout import RolloutSampler
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
    ahead, update = RolloutSampler._sample_ahead, GRPOModule.training_step

    def held(sampler: RolloutSampler, batch: RolloutBatch, policy: Policy) -> None:
        server.gate.clear()
        ahead(sampler, batch, policy)

    def updated(module: GRPOModule, batch: RolloutBatch, batch_idx: int) -> None:
        waiting = not server.gate.is_set()
        if waiting:
            wait_until(lambda: server.running)
        before = len(server.running)
        update(module, batch, batch_idx)
        (version,) = set(batch.tensor("policy_version").tolist())
        seen.append((before, len(server.running), int(version)))
        server.gate.set()

    monkeypatch.setattr(RolloutSampler, "_sample_ahead", held)
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
