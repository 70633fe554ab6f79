"""The trainer that a configuration gives."""

import pytest

from compositions import composed
from e3rl.batch import RolloutBatch
from e3rl.config.composition import ConfigurationError
from e3rl.ledger.clock import PhaseClock
from e3rl.runs.run import build_trainer


def test_a_run_without_a_callback_that_others_need_is_refused_by_name() -> None:
    cfg = composed(
        *("logger=ledger_only", "engine=transformers", "paths.run_dir=nowhere"),
        "~callbacks.pass_at_k",
    )
    cfg.vocabulary_size = 34
    with pytest.raises(ConfigurationError, match="its producer `pass_at_k` is not in the stack"):
        build_trainer(cfg, 128, PhaseClock(None, 0.0))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_the_batch_that_trains_is_the_loaders_own(precision: str) -> None:
    """What is sampled ahead and handed back is found by the batch itself."""
    cfg = composed(
        *("logger=ledger_only", "engine=transformers", "paths.run_dir=nowhere"),
        *("trainer.accelerator=cpu", f"trainer.precision={precision}"),
    )
    cfg.vocabulary_size = 34
    trainer = build_trainer(cfg, 128, PhaseClock(None, 0.0))
    batch = RolloutBatch(["p"], ["2 + 2"], ["4"], ["sums"], [[1]])
    assert trainer.precision_plugin.convert_input(batch) is batch
