"""What the module measures of the sampling policy before it updates it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EntropyProbe:
    """Exact entropies of the sampling policy on a uniform sample of this step's rollouts.

    Sums over tokens and a token count, so that ranks and micro-batches add up exactly. All in
    nats, at the states that the sampler visited.
    """

    tokens: int
    entropy_sum: float  # at the sampling temperature
    entropy_t1_sum: float  # at temperature 1
    varentropy_sum: float  # Var[log p] at the sampling temperature = dH / d ln tau
    sampled_t1_sum: float  # importance-weighted sampled estimate at temperature 1
    factors: tuple[float, ...] = ()  # temperature multipliers of the curve below
    curve_sums: tuple[float, ...] = ()  # entropy sums at factor * sampling temperature
