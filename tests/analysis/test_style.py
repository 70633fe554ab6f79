import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from e3rl.analysis.figures.style import (
    ARM_COLOURS,
    BEYOND,
    OTHER_COLOURS,
    arm_colour,
    save_with_palette,
)


def test_a_figure_keeps_its_size_and_takes_less_room(tmp_path):
    figure = Figure(figsize=(4, 2), facecolor="white")
    ax = figure.subplots()
    ax.plot(np.random.default_rng(0).normal(size=200).cumsum(), color="#D55E00", linewidth=3)
    save_with_palette(figure, tmp_path / "small.png", dpi=100)
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
    save_with_palette(figure, tmp_path / "figure.png", dpi=150)
    kept = Image.open(tmp_path / "figure.png").convert("RGB").getcolors(maxcolors=2**24)
    assert {f"#{r:02X}{g:02X}{b:02X}" for _, (r, g, b) in kept} >= set(colours)


def test_arms_that_are_called_after_known_ones_have_their_colours_and_none_is_shared():
    arms = ["smollm2_grpo", "smollm2_ts_an", "other_ts_an", "mine_ts", "ts", "ants"]
    colours = [arm_colour(arm, arms) for arm in arms]
    known = [ARM_COLOURS[arm] for arm in ("grpo", "ts_an", "ts")]
    spare = OTHER_COLOURS[:3]
    assert colours == [*known[:2], *spare[:2], known[2], spare[2]]
    assert arm_colour("mine_e3") == ARM_COLOURS["e3"]
    many = [f"arm {i}" for i in range(len(OTHER_COLOURS) + 2)]
    assert [arm_colour(arm, many) for arm in many] == [*OTHER_COLOURS, BEYOND, BEYOND]
