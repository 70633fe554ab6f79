"""Pictures of figures: their colours, and whether they are of the numbers that there are now."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from e3rl.analysis.figures.saved import digest_figure, read_digest, save_figure
from e3rl.analysis.figures.style import ARM_COLOURS, OTHER_COLOURS


def test_a_figure_keeps_its_size_and_takes_less_room(tmp_path):
    figure = Figure(figsize=(4, 2), facecolor="white")
    ax = figure.subplots()
    ax.plot(np.random.default_rng(0).normal(size=200).cumsum(), color="#D55E00", linewidth=3)
    save_figure(figure, tmp_path / "small.png", dpi=100)
    figure.savefig(tmp_path / "large.png", dpi=100)
    small, large = (Image.open(tmp_path / f"{name}.png") for name in ("small", "large"))
    assert small.size == large.size == (400, 200)
    gap = np.abs(np.asarray(small.convert("RGB"), int) - np.asarray(large.convert("RGB"), int))
    assert gap.mean() < 0.5
    assert (tmp_path / "small.png").stat().st_size < (tmp_path / "large.png").stat().st_size


def test_every_arm_keeps_its_colour_beside_bands_and_text(tmp_path):
    figure = Figure(figsize=(6, 4), facecolor="white")
    ax = figure.subplots()
    rng, colours = np.random.default_rng(0), [*ARM_COLOURS.values(), *OTHER_COLOURS[:3]]
    for name, colour in zip("abcdefghi", colours, strict=True):
        curve = rng.normal(size=128).cumsum()
        ax.fill_between(range(128), curve - 1, curve + 1, color=colour, alpha=0.15, linewidth=0)
        ax.plot(curve, color=colour, linewidth=1.8, label=f"arm {name}")
    ax.legend()
    save_figure(figure, tmp_path / "figure.png", dpi=150)
    kept = Image.open(tmp_path / "figure.png").convert("RGB").getcolors(maxcolors=2**24)
    assert {f"#{r:02X}{g:02X}{b:02X}" for _, (r, g, b) in kept} >= set(colours)


def drawn(**changed) -> Figure:
    """A line, a band, bars, points and words."""
    numbers = {"line": 1.0, "band": 0.1, "bar": 2.0, "point": 3.0, "words": "E3", "colour": "C0"}
    of = numbers | changed
    figure = Figure(figsize=of.get("size", (3, 2)))
    ax = figure.subplots()
    ax.plot([0, 1, 2], [0, 0.5, of["line"]], color=of["colour"])
    ax.fill_between([0, 1], [0, 0], [of["band"], 1])
    ax.bar([0, 1], [1, of["bar"]])
    ax.scatter([0, 1], [0, of["point"]])
    ax.set_title(of["words"])
    return figure


@pytest.mark.parametrize(
    "changed",
    [
        {"line": 1.01},
        {"band": 0.11},
        {"bar": 2.1},
        {"point": 3.1},
        {"words": "ts"},
        {"colour": "C1"},
    ],
)
def test_a_picture_of_other_numbers_has_another_digest(tmp_path, changed):
    save_figure(drawn(), tmp_path / "old.png", dpi=60)
    assert read_digest(tmp_path / "old.png") == digest_figure(drawn(size=(5, 4), line=1.00001))
    assert read_digest(tmp_path / "old.png") != digest_figure(drawn(**changed))


def test_a_picture_without_a_digest_has_none(tmp_path):
    drawn().savefig(tmp_path / "plain.png")
    assert read_digest(tmp_path / "plain.png") is None
