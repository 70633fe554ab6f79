"""Run by test_run_on_two_ranks.py: `python ranks_run.py FOLDER OVERRIDE ...` is a whole tiny run.

Lightning starts the second rank by the same command.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import E3, configuration, only_train

from e3rl.batch import RolloutBatch
from e3rl.process.environment import prepare
from e3rl.runs import run as running
from e3rl.training.module import GRPOModule

OVERRIDES = (*E3, "checkpoint_every=3")
Rollouts = dict[str, list[list[int]]]  # tokens by prompt id
Steps = list[tuple[float, Rollouts]]  # with the temperature of the step


def rollouts_of(batch: RolloutBatch) -> Rollouts:
    found: Rollouts = {prompt_id: [] for prompt_id in batch.prompt_ids}
    lengths, tokens = batch.tensor("lengths"), batch.tensor("tokens")
    for row, group in enumerate(batch.tensor("group").tolist()):
        found[batch.prompt_ids[group]].append(tokens[row, : lengths[row]].tolist())
    return found


def train(folder: Path, *overrides: str) -> Steps:
    """This rank's temperatures and rollouts of every step."""
    steps: Steps = []
    unread: list[bool] = []
    step, configure = GRPOModule.training_step, GRPOModule.configure_model

    def configured(module: GRPOModule) -> None:
        unread.append(any(parameter.is_meta for parameter in module.policy.parameters()))
        configure(module)

    def recorded(module: GRPOModule, batch: RolloutBatch, batch_idx: int) -> None:
        assert batch.base_temperature is not None
        steps.append((batch.base_temperature, rollouts_of(batch)))
        step(module, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        only_train(patch)
        patch.setattr(GRPOModule, "training_step", recorded)
        patch.setattr(GRPOModule, "configure_model", configured)
        running.execute(configuration(folder / "run", *OVERRIDES, *overrides))
    # Several ranks read their weights once each knows its device, and at no other time.
    several = any(each.startswith("trainer.devices=") and each[-1] != "1" for each in overrides)
    assert unread == [several] + [False] * (len(unread) - 1)
    return steps


if __name__ == "__main__":
    prepare()
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    mine = train(place, *sys.argv[2:])
    (place / f"rank{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(mine))
