import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from e3rl.analysis.figures.style import save_with_palette


def test_a_figure_keeps_its_size_and_colours_and_takes_less_room(tmp_path):
    figure = Figure(figsize=(4, 2), facecolor="white")
    ax = figure.subplots()
    ax.plot(np.random.default_rng(0).normal(size=200).cumsum(), color="#D55E00", linewidth=3)
    save_with_palette(figure, tmp_path / "small.png", dpi=100)
    figure.savefig(tmp_path / "large.png", dpi=100)
    small, large = (Image.open(tmp_path / f"{name}.png") for name in ("small", "large"))
    assert small.size == large.size == (400, 200)
    gap = np.abs(np.asarray(small.convert("RGB"), int) - np.asarray(large.convert("RGB"), int))
    assert gap.max() <= 24
    assert (tmp_path / "small.png").stat().st_size < (tmp_path / "large.png").stat().st_size
