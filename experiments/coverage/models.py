"""A model of training runs on validation problems, to draw studies from whose truth is known.

Arm r, training seed s and problem p have the pass rate

    logit π = μ + σ·z_p + r·(δ + γ·g_p) + τ·z_rs + κ·z_rsp,      all z and g standard normal

with z_rs of the two arms correlated where seeds are paired, and n rollouts are Bernoulli draws of
it. The truth of pass@k is its mean over seeds and problems, an integral over one normal. τ is set
so that seeds make a wanted share of the variance of the mean paired difference.

Luck z_rs of other kinds has mean 0 and variance 1 too: `long`, Student's t with 3 degrees of
freedom, both arms of a seed with the same scale; `rare`, of which one half of the variance is
normal, and the other one run in ten that is far below the rest, each arm's by itself; `failures`,
the latter alone.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.power import variance_components

Reals = NDArray[np.float64]

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
NORMAL, LONG, RARE, FAILURES = "normal", "long", "rare", "failures"  # kinds of luck
DEGREES = 3  # of freedom, of long luck
FAILED = 0.1  # share of runs that rare luck lets fail
NORMAL_SHARES = {RARE: 0.5, FAILURES: 0.0}  # of the variance


@dataclass(frozen=True)
class Model:
    """Pass rates of a control (arm 0) and an arm (1), on the scale of logits."""

    mean: float  # μ
    gain: float = 0.1  # δ
    problem: float = 1.8  # σ
    problem_gain: float = 0.3  # γ
    seed: float = 0.0  # τ
    rest: float = 0.3  # κ
    correlation: float = 0.5  # of the luck of paired seeds
    rollouts: int = 16
    n_problems: int = 128
    luck: str = NORMAL

    def truth(self, arm: int, k: int) -> float:
        """Expected pass@k of arm 0 or 1."""
        gain, normal = arm * self.problem_gain, self.luck == NORMAL
        spread = np.sqrt(
            self.problem**2 + gain**2 + self.rest**2 + (self.seed**2 if normal else 0.0)
        )
        level = self.mean + arm * self.gain
        if not normal:
            level = level + self.seed * typical_luck(self.luck)[:, None]
        rates = logistic(level + spread * NODES)
        return float((WEIGHTS * (1 - (1 - rates) ** k)).sum() / WEIGHTS.sum() / rates[..., 0].size)

    def draw_problems(self, rng: np.random.Generator) -> Reals:
        """(2, P) what the problems contribute for each arm."""
        base = self.mean + self.problem * rng.normal(size=self.n_problems)
        gains = self.gain + self.problem_gain * rng.normal(size=self.n_problems)
        return np.stack([base, base + gains])

    def draw_runs(
        self, rng: np.random.Generator, problems: Reals, n_seeds: int
    ) -> NDArray[np.int64]:
        """(2, S, P) right answers of both arms, whose seeds are paired."""
        rates = logistic(problems[:, None, :] + self.draw_luck(rng, n_seeds))
        return rng.binomial(self.rollouts, rates)

    def draw_runs_alike(
        self, rng: np.random.Generator, problems: Reals, n_seeds: int
    ) -> NDArray[np.int64]:
        """As `draw_runs`, where both arms of a seed validate with the same random numbers: what the
        worse of them solves in a rollout, the better does."""
        rates = logistic(problems[:, None, :] + self.draw_luck(rng, n_seeds))
        shared = rng.random((n_seeds, self.n_problems, self.rollouts))
        right: NDArray[np.int64] = (shared < rates[..., None]).sum(axis=-1)
        return right

    def draw_luck(self, rng: np.random.Generator, n_seeds: int) -> Reals:
        """(2, S, P) what runs have by luck, on the scale of logits."""
        shared, own = rng.normal(size=(1, n_seeds, 1)), rng.normal(size=(2, n_seeds, 1))
        seed = np.sqrt(self.correlation) * shared + np.sqrt(1 - self.correlation) * own
        if self.luck == LONG:
            seed = seed * long_scale(rng, n_seeds)[:, None]
        elif self.luck in NORMAL_SHARES:
            seed = rare_luck(seed, rng.random((2, n_seeds, 1)) < FAILED, NORMAL_SHARES[self.luck])
        rest = rng.normal(size=(2, n_seeds, self.n_problems))
        luck: Reals = self.seed * seed + self.rest * rest
        return luck

    def draw_scores(self, rng: np.random.Generator, n_seeds: int, k: int) -> Reals:
        """(2, S, P) pass@k of both arms on new problems."""
        return self.score(self.draw_runs(rng, self.draw_problems(rng), n_seeds), k)

    def score(self, right: NDArray[np.int64], k: int) -> Reals:
        """pass@k of every cell."""
        return pass_at_k(np.full(right.size, self.rollouts), right.ravel(), k).reshape(right.shape)


def long_scale(rng: np.random.Generator, n: int) -> Reals:
    """What makes n normals Student's t of `DEGREES`, with variance 1."""
    return np.sqrt((DEGREES - 2) / rng.chisquare(DEGREES, n))


def rare_luck(normal: Reals, failed: NDArray[np.bool_], share: float) -> Reals:
    """Luck of runs that failed, and of those that did not, with mean 0 and variance 1, of which
    `share` is normal."""
    failure = (FAILED - failed) / np.sqrt(FAILED * (1 - FAILED))
    luck: Reals = np.sqrt(share) * normal + np.sqrt(1 - share) * failure
    return luck


@cache
def typical_luck(kind: str) -> Reals:
    """(M,) values of luck, equally likely, that stand for its distribution."""
    rng, n = np.random.default_rng(0), 10_000
    half = np.abs(rng.normal(size=n))
    if kind == LONG:
        half = half * long_scale(rng, n)
    even = np.concatenate([half, -half])
    if kind == LONG:
        return even
    return rare_luck(even, np.arange(2 * n) % round(1 / FAILED) == 0, NORMAL_SHARES[kind])


def logistic(x: Reals) -> Reals:
    return 1 / (1 + np.exp(-x))


@cache
def with_seed_share(model: Model, share: float, n_seeds: int) -> Model:
    """The model whose seeds make this share of the variance of a mean difference of pass@1."""
    if share == 0:
        return model
    rng = np.random.default_rng(0)
    large = replace(model, n_problems=4000, seed=0.0)
    a, b = large.draw_scores(rng, 60, 1)[::-1]
    parts = variance_components(a - b)
    others = (parts.problem + parts.residual / n_seeds) / model.n_problems
    wanted = share / (1 - share) * others * n_seeds  # variance of the difference between seeds
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _between_seeds(model, middle) < wanted else (low, middle)
    return replace(model, seed=high)


def _between_seeds(model: Model, seed: float) -> float:
    """Variance over seeds of the arms' mean difference over all problems, to seeds alone."""
    spread = np.sqrt(model.problem**2 + model.rest**2)
    luck = seed * NODES
    rates = logistic(model.mean + spread * NODES[:, None] + luck) * WEIGHTS[:, None]
    by_luck = rates.sum(axis=0) / WEIGHTS.sum()
    mean = WEIGHTS @ by_luck / WEIGHTS.sum()
    variance = WEIGHTS @ (by_luck - mean) ** 2 / WEIGHTS.sum()
    return float(2 * (1 - model.correlation) * variance)
