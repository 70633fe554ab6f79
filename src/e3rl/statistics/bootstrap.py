"""Percentile bootstrap intervals of means and differences over prompts, clusters and seeds.

The prompt is the unit that is drawn, never the single sample: rollouts of one prompt share its
difficulty, and an interval that ignores this is several times too narrow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.seeds import derive_seed

# Cells of a block of resampling counts (replicates x units), 32 MiB of float64.
BLOCK_CELLS = 1 << 22

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean with its percentile interval; the bounds are NaN where only one unit was seen."""

    mean: float
    low: float
    high: float
    level: float


def cluster_bootstrap(
    values: ArrayLike,
    level: float = 0.95,
    n_boot: int = 2000,
    seed: int = 0,
    clusters: ArrayLike | None = None,
) -> Interval:
    """Interval of the mean of one statistic per prompt, resampling prompts (or clusters).

    Each replicate draws as many clusters as there are, with replacement, and takes the mean over
    the prompts in them; the interval holds the central `level` of the replicates
    (Efron & Tibshirani 1993, chapter 13).

    Args:
        values: (P,) one number per prompt, e.g. its pass@k.
        level: coverage aimed at, in (0, 1).
        n_boot: replicates.
        seed: equal seeds draw equal prompts, so columns and calls can be compared.
        clusters: (P,) labels of prompts that are drawn together, e.g. their family; None = each
            prompt by itself.

    Raises:
        ValueError: no values, NaN or infinite values, a level or n_boot out of range.
    """
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1:
        raise ValueError(
            f"cluster_bootstrap takes (P,) values, got {column.shape}; "
            "cluster_bootstrap_columns takes (P, K)"
        )
    return cluster_bootstrap_columns(column[:, None], level, n_boot, seed, clusters)[0]


def cluster_bootstrap_columns(
    values: ArrayLike,
    level: float = 0.95,
    n_boot: int = 2000,
    seed: int = 0,
    clusters: ArrayLike | None = None,
) -> list[Interval]:
    """`cluster_bootstrap` of K statistics (P, K) -> K intervals from the same resamples."""
    table = _table(values, level, n_boot)
    sums, sizes = _cluster_sums(table, clusters)
    blocks = [
        (counts @ sums) / (counts @ sizes)[:, None]
        for counts in _resamples(np.random.default_rng(_seed(seed)), n_boot, len(sizes))
    ]
    return percentile_intervals(table.mean(axis=0), np.concatenate(blocks), level, len(sizes))


def mean_of_sets(
    tables: Sequence[ArrayLike], level: float = 0.95, n_boot: int = 2000, seed: int = 0
) -> list[Interval]:
    """Intervals of K statistics' mean over sets, each set's mean over its problems counting once.

    Sets are what was chosen to be reported, so only problems are drawn, within each set as many as
    it has (the stratified bootstrap). Tables of differences give paired differences.

    Args:
        tables: of each set (P, K) one row per problem.

    Raises:
        ValueError: as `cluster_bootstrap`; no sets, or sets with other numbers of statistics.
    """
    checked = [_table(table, level, n_boot) for table in tables]
    if len({table.shape[1] for table in checked}) != 1:
        raise ValueError(f"sets need equally many statistics, got {[t.shape for t in checked]}")
    generators = np.random.default_rng(_seed(seed)).spawn(len(checked))
    replicates = [
        np.concatenate([counts @ table for counts in _resamples(rng, n_boot, len(table))])
        / len(table)
        for rng, table in zip(generators, checked, strict=True)
    ]
    means = np.mean([table.mean(axis=0) for table in checked], axis=0)
    units = min(len(table) for table in checked)
    return percentile_intervals(means, np.mean(replicates, axis=0), level, units)


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    level: float = 0.95,
    n_boot: int = 2000,
    seed: int = 0,
    clusters: ArrayLike | None = None,
) -> Interval:
    """Interval of mean(a - b) for two methods on the same problems, (P,) and (P,) in one order.

    Both methods keep the problem in every replicate, so what makes problems differ cancels.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(
            f"paired values must cover the same problems, got {first.shape} and {second.shape}"
        )
    return cluster_bootstrap(first - second, level, n_boot, seed, clusters)


def hierarchical_bootstrap(
    values: ArrayLike, level: float = 0.95, n_boot: int = 2000, seed: int = 0
) -> Interval:
    """Interval of the mean over S training seeds and P problems, both resampled.

    Every seed saw the same problems, so one draw of problems serves all drawn seeds of a
    replicate (the pigeonhole bootstrap, Owen 2007, Annals of Applied Statistics 1); drawing
    problems anew for each seed would divide their share of the variance by S. With S < 5 the
    seeds' share is hardly known: report the seeds' minimum and maximum beside it.

    Args:
        values: (S, P) one number per seed and problem.

    Raises:
        ValueError: as `cluster_bootstrap`.
    """
    table = _table(values, level, n_boot)
    (replicates,) = _two_way_means([table], n_boot, seed)
    mean = np.array([table.mean()])
    return percentile_intervals(mean, replicates, level, min(table.shape))[0]


def hierarchical_difference(
    a: ArrayLike,
    b: ArrayLike,
    level: float = 0.95,
    n_boot: int = 2000,
    seed: int = 0,
    paired_seeds: bool = False,
) -> Interval:
    """Interval of mean(a) - mean(b) for two methods on the same problems, seeds resampled too.

    The problems of a replicate serve both methods. Its seeds are drawn for each method by itself,
    or, for runs that share what a seed decides (first policy, order of prompts), as pairs.

    Args:
        a: (S, P) one number per seed and problem.
        b: (S', P) of the method compared with; with `paired_seeds` the same seeds in one order.

    Raises:
        ValueError: as `cluster_bootstrap`, or tables that do not fit together.
    """
    first, second = _table(a, level, n_boot), _table(b, level, n_boot)
    if first.shape[1] != second.shape[1] or (paired_seeds and first.shape != second.shape):
        raise ValueError(
            f"tables {first.shape} and {second.shape} must cover the same problems"
            f"{', and the same seeds to pair them' if paired_seeds else ''}"
        )
    if paired_seeds:
        return hierarchical_bootstrap(first - second, level, n_boot, seed)
    means, others = _two_way_means([first, second], n_boot, seed)
    mean = np.array([first.mean() - second.mean()])
    units = min(*first.shape, *second.shape)
    return percentile_intervals(mean, means - others, level, units)[0]


def percentile_intervals(
    means: Reals, replicates: Reals, level: float, n_units: int
) -> list[Interval]:
    """Percentile intervals of the columns of `replicates` (n_boot, K) around `means` (K,).

    With a single unit to resample the bounds are NaN.
    """
    tail = (1 - level) / 2
    if n_units > 1:
        low, high = np.quantile(replicates, [tail, 1 - tail], axis=0)
    else:
        low = high = np.full(means.shape, np.nan)
    return [
        Interval(float(m), float(lo), float(hi), level)
        for m, lo, hi in zip(means, low, high, strict=True)
    ]


def _two_way_means(tables: Sequence[Reals], n_boot: int, seed: int) -> list[Reals]:
    """Replicates (n_boot, 1) of each table's mean: own seeds, the same problems for all."""
    first, problems, *others = np.random.default_rng(_seed(seed)).spawn(1 + len(tables))
    seeds = [first, *others]
    draws = [
        np.concatenate(list(_resamples(rng, n_boot, len(table))))
        for rng, table in zip(seeds, tables, strict=True)
    ]
    means: list[list[Reals]] = [[] for _ in tables]
    start = 0
    for counts in _resamples(problems, n_boot, tables[0].shape[1]):
        for table, drawn, parts in zip(tables, draws, means, strict=True):
            weights = drawn[start : start + len(counts)]
            parts.append(((counts @ table.T) * weights).sum(axis=1, keepdims=True) / table.size)
        start += len(counts)
    return [np.concatenate(parts) for parts in means]


def _seed(seed: int) -> int:
    return derive_seed("bootstrap", seed)


def _table(values: ArrayLike, level: float, n_boot: int) -> Reals:
    """The (P, K) values, once they and the settings are known to make sense."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"a bootstrap needs a filled two-way table of values, got {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(
            f"{int((~np.isfinite(table)).sum())} of {table.size} values are NaN or infinite; "
            "leave those prompts out before the bootstrap"
        )
    if not 0 < level < 1 or n_boot < 1:
        raise ValueError(f"level={level} must lie in (0, 1) and n_boot={n_boot} be at least 1")
    return table


def _cluster_sums(table: Reals, clusters: ArrayLike | None) -> tuple[Reals, Reals]:
    """Sums (C, K) and sizes (C,) of the units that are drawn together."""
    if clusters is None:
        return table, np.ones(len(table))
    labels = np.asarray(clusters)
    if labels.shape != (len(table),):
        raise ValueError(f"clusters {labels.shape} must label each of the {len(table)} prompts")
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), table.shape[1]))
    np.add.at(sums, inverse, table)
    return sums, sizes.astype(np.float64)


def _resamples(rng: np.random.Generator, n_boot: int, n_units: int) -> Iterator[Reals]:
    """How often each unit occurs in each replicate, in blocks (replicates, n_units)."""
    rows = max(1, BLOCK_CELLS // n_units)
    for start in range(0, n_boot, rows):
        n = min(rows, n_boot - start)
        drawn = rng.integers(n_units, size=(n, n_units))
        flat = (drawn + n_units * np.arange(n)[:, None]).ravel()
        yield np.bincount(flat, minlength=n * n_units).reshape(n, n_units).astype(np.float64)
