"""Pictures of figures in files: few colours, and a digest of what was drawn.

The digest is of the numbers in data coordinates, not of pixels, which differ with every release of
matplotlib: a picture that is older than its table has another one.
"""

import hashlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.typing import ArrayLike
from PIL import Image
from PIL.PngImagePlugin import PngInfo

COLOURS = 64  # of a saved picture
DRAWN = "drawn"  # the digest's name in the file
DIGITS = 4  # of a number that is drawn


def save_figure(figure: Figure, path: Path, dpi: int) -> None:
    """Save a figure as PNG with its 64 most frequent colours, which take a quarter of the room, and
    the digest of what it shows.

    Colours of lines and bands stay as they are; the rare ones in between, at edges of lines and
    letters, become the nearest of these. A palette that averages would make two arms alike.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi)
    with Image.open(drawn) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.int64)
    numbers = pixels @ (256**2, 256, 1)  # one for each colour, sorted far faster than rows
    numbers, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    found = np.stack([numbers // 256**2, numbers // 256 % 256, numbers % 256], axis=-1)
    palette = found[np.argsort(-counts, kind="stable")[:COLOURS]]
    nearest = ((found[:, None] - palette) ** 2).sum(axis=-1).argmin(axis=1)
    small = Image.fromarray(nearest[places].astype(np.uint8), mode="P")
    small.putpalette(palette.astype(np.uint8).tobytes())
    about = PngInfo()
    about.add_text(DRAWN, digest_figure(figure))
    small.save(path, optimize=True, pnginfo=about)


def read_digest(path: Path) -> str | None:
    """The digest that `save_figure` left in a picture, None where there is none."""
    with Image.open(path) as image:
        found = image.info.get(DRAWN)
    return None if found is None else str(found)


def digest_figure(figure: Figure) -> str:
    """16 hexadecimal digits of every line, band, bar, point and word of a figure."""
    lines = (line for ax in figure.axes for line in _describe_axes(ax))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _describe_axes(ax: Axes) -> Iterator[str]:
    """A line of text for everything that is drawn in data coordinates, in the order of drawing."""
    for item in ax.get_children():
        if isinstance(item, Line2D):
            yield f"line {_numbers(item.get_xydata())} {item.get_color()}"
        elif isinstance(item, Collection):
            yield f"points {_numbers(np.ma.filled(item.get_offsets(), np.nan))}"
            yield from (f"band {_numbers(path.vertices)}" for path in item.get_paths())
        elif isinstance(item, Rectangle) and item is not ax.patch:
            yield f"bar {_numbers(item.get_bbox().bounds)}"
        elif isinstance(item, Text) and item.get_text():
            yield f"words {item.get_text()}"


def _numbers(values: ArrayLike) -> str:
    flat = np.asarray(values, dtype=np.float64).ravel()
    return " ".join(f"{x + 0.0:.{DIGITS}g}" for x in flat.tolist())  # -0 is 0
