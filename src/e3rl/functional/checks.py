"""Shape checks of the functions over flattened tokens."""

from torch import Tensor


def check_vectors(**vectors: Tensor) -> None:
    """Raise ValueError, naming all of them, unless the tensors are 1-D and equally long."""
    shapes = {name: tuple(x.shape) for name, x in vectors.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ValueError(f"expected 1-D tensors of one length, got {shapes}")
