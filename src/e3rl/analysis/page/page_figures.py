"""The figures of the report page as plain numbers, which its script draws."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from e3rl.analysis.figures.training_panels import (
    EXACT_AT_ONE,
    NATS,
    SAMPLED,
    TARGET,
    annealing_starts,
)
from e3rl.analysis.figures.validation_panels import (
    band_at_k,
    bands_over_training,
    evaluation_title,
)
from e3rl.analysis.measures.axes import AXES, AXIS_LABELS
from e3rl.analysis.measures.curves import Band, seed_band, smoothing_window, without_short
from e3rl.analysis.measures.difficulty import budget_by_difficulty
from e3rl.analysis.measures.evaluations import (
    evaluation_names,
    has_groups,
)
from e3rl.analysis.measures.frontier import frontier_rows, frontier_sources
from e3rl.analysis.sources.runs import Arms

FigureData = dict[str, Any]
CurveData = dict[str, Any]

POINTS = 240  # of a curve at most; a screen shows no more
DIGITS = 5
BULK, FLATTENED = 5, 2.0  # arms, of which one can be far from the others; times their height
SEEDS = "Lines: mean over seeds; bands: smallest to largest seed."
INTERVALS = "95 % intervals over seeds and problems (over problems where an arm has one seed)."


def page_figures(arms: Arms) -> list[FigureData]:
    """Every figure of the page: id, title, y, note, percent, and curves by axis.

    A curve has arm (its position), x, mean, low, high, and dashed for targets; a figure that knows
    one axis alone has its curves under that axis' label. Marks are x positions of upright lines, by
    axis and by arm (its position). A figure of what no run recorded is left out. Curves over
    training are without runs far shorter than others of their arm (`curves.without_short`).
    """
    drawn, _ = without_short(arms)
    window = smoothing_window([run.train for runs in drawn.values() for run in runs])
    smoothed = f" {window}-step means." if window > 1 else ""
    marks = _annealing(drawn)
    dotted = " Dotted: annealing starts." * any(marks.values())
    figures = [
        _training("entropy", "Entropy at the sampling temperature", drawn, SAMPLED, window)
        | {"y": NATS, "marks": marks}
        | _with_targets(drawn, SAMPLED, window)
        | {"note": f"{SEEDS}{smoothed} Dashed: target.{dotted}"},
        _training("entropy-t1", "Entropy of the policy at T = 1", drawn, EXACT_AT_ONE, window)
        | {"y": NATS, "note": SEEDS + smoothed},
        _training("temperature", "Sampling temperature", drawn, "rollout/temperature", 1)
        | {"y": "temperature", "marks": marks, "note": SEEDS + dotted},
        _training("accuracy", "Training accuracy", drawn, "rollout/accuracy", window)
        | {"y": "mean over prompts", "percent": True}
        | {"note": f"{SEEDS}{smoothed} At each arm's own temperature: compare arms below."},
        *(_validation(drawn, name) for name in _repeated_evaluations(arms)),
        *(_pass_at_k(arms, name) for name in _shared_evaluations(arms) if has_groups(arms, name)),
        *_frontier(arms),
        _training(
            "all-wrong", "Prompts with every rollout wrong", drawn, "rollout/all_wrong", window
        )
        | {"y": "share of prompts", "percent": True, "note": SEEDS + smoothed},
        _difficulty(drawn),
    ]
    return [figure for figure in figures if any(figure["curves"].values())]


def far_arms(curves: Sequence[CurveData], control: int | None) -> list[int]:
    """Positions of arms with which the others' panels, on one scale, would be `FLATTENED`.

    The others are all arms within half a height of the bulk, which reaches from the first quartile
    of the arms' smallest values to the third of their largest. No more than a quarter of the arms
    are far: these would be a second group. None of fewer than `BULK` arms is, nor the control,
    which is in every panel.
    """
    ends: dict[int, list[float]] = {}
    for curve in curves:
        values = [x for name in ("mean", "low", "high") for x in curve[name] if x is not None]
        if curve["arm"] is not None and values:
            known = [*values, *ends.get(curve["arm"], [])]
            ends[curve["arm"]] = [min(known), max(known)]
    if len(ends) < BULK:
        return []
    lows, highs = zip(*ends.values(), strict=True)
    low, high = np.quantile(lows, 0.25), np.quantile(highs, 0.75)
    room = (high - low) / 2
    near = [
        x
        for arm, own in ends.items()
        if arm == control or low - room <= own[0] <= own[1] <= high + room
        for x in own
    ]
    height = max(near) - min(near)
    far = [
        arm
        for arm, own in ends.items()
        if max(*own, *near) - min(*own, *near) > FLATTENED * height > 0
    ]
    return far if 4 * len(far) <= len(ends) else []


def _figure(name: str, title: str, curves: Mapping[str, list[CurveData]]) -> FigureData:
    base = {"y": "", "note": "", "percent": False, "percent_x": False, "log": False}
    base |= {"points": False, "marks": {}}
    identifier = re.sub(r"[^\w-]+", "-", name)
    return {"id": identifier, "title": title, "curves": curves} | base


def _training(name: str, title: str, arms: Arms, column: str, window: int) -> FigureData:
    curves = {axis: _bands(arms, column, window, axis) for axis in AXES}
    return _figure(name, title, curves)


def _bands(arms: Arms, column: str, window: int, axis: str) -> list[CurveData]:
    bands = [seed_band([run.train for run in runs], column, window, axis) for runs in arms.values()]
    return [_curve(i, band) for i, band in enumerate(bands) if band is not None]


def _with_targets(arms: Arms, column: str, window: int) -> FigureData:
    """Curves of a column with the targets of the schedule."""
    return {
        "curves": {
            axis: _bands(arms, column, window, axis)
            + [curve | {"dashed": True} for curve in _bands(arms, TARGET, 1, axis)]
            for axis in AXES
        }
    }


def _annealing(arms: Arms) -> dict[str, dict[int, list[float]]]:
    """Where annealing starts, on every axis, by the position of an arm that anneals."""
    found = {
        axis: {i: annealing_starts(runs, axis) for i, runs in enumerate(arms.values())}
        for axis in AXES
    }
    return {axis: {i: at for i, at in places.items() if at} for axis, places in found.items()}


def _validation(arms: Arms, name: str) -> FigureData:
    title = f"Validation pass@1 {evaluation_title(name)}"
    curves: dict[str, list[CurveData]] = {axis: [] for axis in AXES}
    for i, runs in enumerate(arms.values()):
        for axis, band in bands_over_training(runs, name, AXES).items():
            curves[axis].append(_curve(i, band))
    figure = _figure(f"validation-{name}", title, curves)
    return figure | {"y": "pass@1", "percent": True, "points": True, "note": INTERVALS}


def _pass_at_k(arms: Arms, name: str) -> FigureData:
    curves = []
    for i, runs in enumerate(arms.values()):
        band = band_at_k(runs, name)
        if band is not None:
            curves.append(_curve(i, band))
    figure = _figure(
        f"pass-at-k-{name}",
        f"pass@k {evaluation_title(name)}, last validation",
        {"k, rollouts that one may try": curves},
    )
    look = {"y": "pass@k", "percent": True, "log": True, "points": True}
    return figure | look | {"note": INTERVALS}


def _frontier(arms: Arms) -> list[FigureData]:
    """pass@k against pass@1 over temperatures; none where no arm has two of them."""
    if not any(has_groups(arms, name) for name in evaluation_names(arms)):
        return []
    rows = frontier_rows(arms)
    curves = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        names = ("pass@1", "pass@k", "pass@k_low", "pass@k_high")
        x, mean, low, high = (np.array([row[name] for row in own], float) for name in names)
        place = list(arms).index(arm) if arm in arms else None
        named = [f"T {row['temperature']:.3g}" for row in own]
        curve = _curve(place, Band(x, mean, low, high, own[0]["seeds"]))
        curves.append(curve | {"names": named, "upright": True})
    if max(len(curve["x"]) for curve in curves if curve["arm"] is not None) < 2:
        return []
    figure = _figure("frontier", "Frontier over sampling temperatures", {"pass@1": curves})
    look = {"y": f"pass@{rows[0]['k']}", "percent": True, "percent_x": True, "points": True}
    return [figure | look | {"note": f"{frontier_sources(rows)} {INTERVALS}"}]


def _shared_evaluations(arms: Arms) -> list[str]:
    """Evaluations of two arms and more, or of the only one."""
    names = [
        {str(name) for run in runs for name in run.evaluations["name"]} for runs in arms.values()
    ]
    fewest = min(2, len(arms))
    return [n for n in evaluation_names(arms) if sum(n in own for own in names) >= fewest]


def _difficulty(arms: Arms) -> FigureData:
    bands = [budget_by_difficulty(runs) for runs in arms.values()]
    curves = [_curve(i, band) for i, band in enumerate(bands) if band is not None]
    label = "difficulty rank, 0 = easiest"
    figure = _figure("difficulty", "Rollouts per prompt by difficulty", {label: curves})
    note = f"Last epoch. {SEEDS} Arms that give every prompt the same may not record their prompts."
    return figure | {"y": "rollouts per prompt", "points": True, "note": note}


def _curve(arm: int | None, band: Band) -> CurveData:
    """`arm` is a position, None for the policy before training."""
    keep = np.unique(np.linspace(0, len(band.x) - 1, min(len(band.x), POINTS)).round().astype(int))
    parts = {"x": band.x, "mean": band.mean, "low": band.low, "high": band.high}
    return {"arm": arm, "seeds": band.n_seeds, "dashed": False} | {
        name: [_number(value) for value in values[keep]] for name, values in parts.items()
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _repeated_evaluations(arms: Arms) -> Iterable[str]:
    """Evaluations that some run has at several steps."""
    return [
        name
        for name in evaluation_names(arms)
        if any((r.evaluations["name"] == name).sum() > 1 for runs in arms.values() for r in runs)
    ]


def axes_of(figures: Sequence[FigureData]) -> dict[str, str]:
    """The axes that some figure can be drawn on, with their labels."""
    drawn = {axis for figure in figures for axis, curves in figure["curves"].items() if curves}
    return {axis: AXIS_LABELS[axis] for axis in AXES if axis in drawn}
