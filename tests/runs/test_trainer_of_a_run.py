"""The trainer that a configuration gives."""

import pytest

from compositions import composed
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
