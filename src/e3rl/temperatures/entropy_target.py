"""Temperature that holds the policy's entropy on a target (TS, and TS+AN with annealing)."""

import math
from collections.abc import Mapping
from typing import Any

from e3rl.checkpoints.strict_state import require_keys
from e3rl.temperatures.annealing import CosineAnnealing
from e3rl.temperatures.base import Constant, Difficulty, EntropyReading
from e3rl.temperatures.gains import Gain

# Below this many nats the policy is deterministic and ln(target/entropy) says nothing.
SMALLEST_ENTROPY = 1e-6

STATE = (
    *("step", "temperature", "planned", "entropy", "target", "surprisal", "tokens", "decision"),
    "gain",
)


class EntropyTarget:
    """After step t:  ln α = ln(H*·f(t + 1)/H_t),  τ_{t+1} = gain(τ_t, ln α)  within bounds.

    H_t is the token-weighted sampled entropy of step t at τ_t, in nats per token; H* is given, or
    the token-weighted mean of the first `init_steps` steps, which all run at `initial`; f is the
    annealing factor, 1 without one. Source: arXiv 2505.18573 eq. 4 and 5. There H* is one noisy
    batch, nothing is clamped, and τ_{t+1} aims at the target of step t, one step late.

    With look-ahead L, τ_{t+1+L} is decided: gain(τ_t, ln α) for that step's target. It starts from
    the temperature that H_t was measured at, so that a correction under way is not made twice. The
    steps fall into 1 + L classes that never see each other: a gain g per observation is g/(1 + L)
    per step, a drift's lag is 1 + L times as long, and neighbours differ by their own noise.

    Args:
        gain: how far τ moves for a given error (`temperatures/gains.py`).
        annealing: of the target, over the last part of the run; None keeps it constant.
        target: H* in nats per token; None measures it.
        init_steps: steps that measure H*; unused with a given target.
        initial: τ of step 0.
        bounds: smallest and largest τ.
        max_log_alpha: largest |ln α| that one step acts on.
        ema: weight of the past in H_t, in [0, 1). 0, each step by itself, is right for gains that
            average by being slow; smoothing answers late to its own corrections, so that a full
            step (`SolveGain` with μ = 1) rings.
    """

    def __init__(
        self,
        gain: Gain,
        annealing: CosineAnnealing | None = None,
        target: float | None = None,
        init_steps: int = 8,
        initial: float = 1.0,
        bounds: tuple[float, float] = (0.3, 3.0),
        max_log_alpha: float = 0.5,
        ema: float = 0.0,
    ) -> None:
        _check(target, init_steps, initial, bounds, max_log_alpha, ema)
        self.gain = gain
        self.annealing = annealing
        self.init_steps = init_steps
        self.bounds = bounds
        self.max_log_alpha = max_log_alpha
        self.ema = ema
        self._lookahead = 0
        self._temperature = initial  # decided last
        self._planned: dict[int, float] = {}  # by step, of those ahead; the others have the last
        self._step = -1  # last step observed
        self._entropy: float | None = None  # smoothed, nats
        self._target = target  # before annealing
        self._surprisal = 0.0  # nats summed over `_tokens`, while H* is measured
        self._tokens = 0
        self._decision: dict[str, float] = {}

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        """Tell the length of the run in rollout steps, and how far ahead is decided."""
        self._lookahead = lookahead
        if self.annealing is not None:
            self.annealing.bind(total_steps)

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Constant:
        """Temperature of a step; the same however often it is asked for.

        Raises RuntimeError where the step does not follow the last one observed.
        """
        if step > self._step + 1 + self._lookahead:
            raise RuntimeError(
                "temperature schedule is on and no entropy of step "
                f"{step - 1 - self._lookahead} reached it (last "
                f"one: step {self._step}); the engine must return sampler log-probs and the "
                "`temperature` callback must see the end of every training step"
            )
        if step <= self._step:
            raise RuntimeError(
                f"temperature of step {step} asked for, but step {self._step} was observed "
                "already; the rule's state and the trainer's progress are not of one run"
            )
        return Constant(self._planned.get(step, self._temperature))

    def observe(self, reading: EntropyReading) -> None:
        """Learn from the step just finished.

        Raises RuntimeError for a step that does not follow the last one, or a figure that the
        gain lacks; ValueError for an entropy that is not a number >= 0 of at least one token.
        """
        self._check_reading(reading)
        # Asked for in every step, so that an unknown length of the run shows in the first one.
        ahead = reading.step + 1 + self._lookahead
        factor = 1.0 if self.annealing is None else self.annealing.factor(ahead)
        self.gain.observe(reading)
        self._step = reading.step
        past = reading.sampled if self._entropy is None else self._entropy
        self._entropy = self.ema * past + (1 - self.ema) * reading.sampled
        if self._target is None:
            self._measure(reading)
        self._decision = {"annealing": factor}
        base = self._planned.pop(reading.step, self._temperature)
        for step in range(reading.step + 1, ahead):
            self._planned.setdefault(step, self._temperature)
        if self._target is not None:
            self._update(base, self._target * factor, self._entropy)
        self._planned[ahead] = self._temperature

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "temperature": self._temperature,
            "planned": dict(self._planned),
            "entropy": self._entropy,
            "target": self._target,
            "surprisal": self._surprisal,
            "tokens": self._tokens,
            "decision": dict(self._decision),
            "gain": self.gain.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("EntropyTarget", state, STATE)
        self.gain.load_state_dict(state["gain"])
        self._step = state["step"]
        self._temperature = state["temperature"]
        self._planned = dict(state["planned"])
        self._entropy = state["entropy"]
        self._target = state["target"]
        self._surprisal = state["surprisal"]
        self._tokens = state["tokens"]
        self._decision = dict(state["decision"])

    def metrics(self) -> dict[str, float]:
        """The last decision: the step ahead's temperature (`value`), its `target` in nats and
        `annealing` factor, `log_alpha` before its limit, `saturated` = 1 where a bound of τ cut
        the step short. Target and log_alpha are NaN until the target is known."""
        unknown = {"target": math.nan, "log_alpha": math.nan, "saturated": 0.0, "annealing": 1.0}
        return {"value": self._temperature} | unknown | self._decision

    def _check_reading(self, reading: EntropyReading) -> None:
        if reading.step != self._step + 1:
            raise RuntimeError(
                f"entropy of step {reading.step} observed after step {self._step}; every step must "
                "be observed once, in order"
            )
        if reading.tokens < 1 or not 0 <= reading.sampled < math.inf:
            raise ValueError(
                f"step {reading.step}: entropy {reading.sampled} over {reading.tokens} tokens; it "
                "must be finite and >= 0, check the sampler's log-probs"
            )

    def _measure(self, reading: EntropyReading) -> None:
        self._surprisal += reading.sampled * reading.tokens
        self._tokens += reading.tokens
        if reading.step + 1 >= self.init_steps:
            self._target = self._surprisal / self._tokens

    def _update(self, base: float, target: float, entropy: float) -> None:
        """Decide the temperature of the next step, from the one that the reading was made at."""
        target, entropy = max(target, SMALLEST_ENTROPY), max(entropy, SMALLEST_ENTROPY)
        log_alpha = math.log(target / entropy)
        limited = min(max(log_alpha, -self.max_log_alpha), self.max_log_alpha)
        wanted = self.gain.step(base, limited)
        self._temperature = min(max(wanted, self.bounds[0]), self.bounds[1])
        self._decision |= {
            "target": target,
            "log_alpha": log_alpha,
            "saturated": float(wanted != self._temperature),
        }


def _check(
    target: float | None,
    init_steps: int,
    initial: float,
    bounds: tuple[float, float],
    max_log_alpha: float,
    ema: float,
) -> None:
    low, high = bounds
    if target is not None and not 0 < target < math.inf:
        raise ValueError(f"target={target} must be above 0 nats per token; None measures it")
    if init_steps < 1:
        raise ValueError(f"init_steps={init_steps}: use at least 1; one step is 3-5% noisy")
    if not 0 < low <= initial <= high < math.inf:
        raise ValueError(f"initial={initial} must lie within bounds={bounds}, both above 0")
    if not 0 < max_log_alpha < math.inf:
        raise ValueError(f"max_log_alpha={max_log_alpha} must be above 0; 0.5 is a good limit")
    if not 0 <= ema < 1:
        raise ValueError(f"ema={ema} must lie in [0, 1); 0 takes each step by itself")
