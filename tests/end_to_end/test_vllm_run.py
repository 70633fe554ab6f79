import importlib.util
from pathlib import Path

import pytest
from tiny_runs import E3, only_train, run

from e3rl.callbacks.rollout import RolloutSampler
from e3rl.engines.vllm_build import INSTALL
from e3rl.ledger.ledger import read_rows

if importlib.util.find_spec("vllm") is None:
    pytest.skip(f"vLLM is not installed: {INSTALL}", allow_module_level=True)

MISMATCH = ("policy/mismatch_max", "engine/canary_max")


def test_a_run_with_vllm_stays_on_policy_and_one_that_is_killed_ends_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_train(monkeypatch)
    overrides = (*E3, "engine=vllm", "checkpoint_every=2")
    whole = run(tmp_path / "whole", *overrides)
    rows = [r for r in read_rows(tmp_path / "whole" / "metrics.jsonl") if r["kind"] == "train"]
    assert len(rows) == len(whole) == 6
    for name in MISMATCH:
        values = [row[name] for row in rows]  # 0 where a step forwards nothing
        assert 0 < max(values) < 1e-4
    sample = RolloutSampler.on_train_batch_start

    def killed(sampler, trainer, *args):
        if trainer.fit_loop.total_batch_idx == 4:
            raise KeyboardInterrupt
        sample(sampler, trainer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RolloutSampler, "on_train_batch_start", killed)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run(tmp_path / "torn", *overrides)
    checkpoint = tmp_path / "torn" / "checkpoints"
    rest = run(tmp_path / "torn", *overrides, f"ckpt_path={checkpoint}")
    assert rest == {step: whole[step] for step in (4, 5)}
