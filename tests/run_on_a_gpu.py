"""The run of 1.5 B parameters on an H200 that experiments/gpu_smoke kept, and what is forecast."""

import json
from typing import Any

from e3rl.planning.hours import GPUS, Passes, Sampled, update_seconds
from e3rl.planning.memory import GIB, Training, training_bytes
from e3rl.policy.shape import ModelShape
from pages import ROOT
from study_scripts import study_modules

with study_modules(ROOT / "experiments" / "speed", "works") as found:
    MADE = found["works"].SHAPES["1.5B"]
SHAPE = ModelShape(
    parameters=1_543_656_960,
    layers=MADE.layers,
    hidden=MADE.hidden,
    intermediate=MADE.inner,
    query=MADE.hidden,
    key_value=MADE.hidden * MADE.key_value_heads // MADE.heads,
    vocabulary=MADE.vocabulary,
)
TRAINING = Training(
    weight_bytes=4,
    compute_bytes=2,
    shards=1,
    bucketed=False,
    moments=2,
    tokens=2048,
    checkpointing=True,
    entropy=False,
    probe=True,
    block=512,
    fused=True,
)
ENGINE_GIB = 0.25 * 139.8  # vLLM's share of the device


def figures(stage: str) -> dict[str, Any]:
    """What a stage measured."""
    kept = json.loads((ROOT / "experiments/gpu_smoke/h200/results.json").read_text())
    found: dict[str, Any] = next(r["figures"] for r in kept["stages"] if r["name"] == stage)
    return found


def forecast_gib() -> float:
    return sum(training_bytes(SHAPE, TRAINING).values()) / GIB + ENGINE_GIB


def forecast_update(tokens: int) -> dict[str, float]:
    """Seconds of an update with as many tokens in a pass: 256 rollouts of 64 + 256 tokens."""
    passes = Passes(2, 4, 1, 1, 1, 0, 1, tokens, checkpointing=True)
    return update_seconds(SHAPE, GPUS["h200"], passes, Sampled(256, 32, 64, 256, 256))
