"""Operations of passes: by hand, and as torch counts them."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from e3rl.functional.flops import MatmulSizes, PassCounts
from e3rl.policy.adapters import LoRA
from e3rl.policy.policy import Policy
from e3rl.policy.shape import matmul_sizes

SIZES = MatmulSizes(trained=100, frozen=10, head=7, head_trained=True, layers=2, query=3)


def attended(*lengths: int) -> torch.Tensor:
    """What the tokens of sequences attend to: 1, 2, 3, ... of each."""
    return torch.cat([torch.arange(1, length + 1) for length in lengths])


def test_a_pass_without_gradient_takes_two_per_weight_and_token() -> None:
    counts = PassCounts()
    with torch.no_grad():
        counts.add(attended(2, 3), logits=4)
    # 5 tokens; 1+2 and 1+2+3 pairs; 2*110*5 + 4*2*3*9 + 2*7*4
    assert counts.flops(SIZES) == 1100 + 216 + 56


def test_a_pass_with_gradient_takes_six_and_four_of_what_is_frozen() -> None:
    counts = PassCounts()
    counts.add(attended(2, 3), logits=4)
    # (6*100 + 4*10)*5 + 12*2*3*9 + 6*7*4
    assert counts.flops(SIZES) == 3200 + 648 + 168
    frozen_head = MatmulSizes(100, 10, 7, False, 2, 3)
    assert counts.flops(frozen_head) == 3200 + 648 + 112


def test_passes_add_up() -> None:
    counts = PassCounts()
    for _ in range(2):
        counts.add(attended(4), logits=1)
    with torch.no_grad():
        counts.add(attended(5), logits=0)
    assert counts.with_gradient.tolist() == [8, 20, 2]
    assert counts.without.tolist() == [5, 15, 0]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlopCounterMode]:
    """Counts operations. Of attention torch counts what no token attends to as well."""
    with FlopCounterMode(display=False) as counter:
        yield counter


def of_matrices(counter: FlopCounterMode) -> int:
    found = counter.get_flop_counts().get("Global", {})
    return sum(n for operation, n in found.items() if operation.__name__ in ("mm", "addmm"))


@pytest.mark.parametrize("lora", [None, LoRA(r=2, target_modules=("q_proj", "down_proj"))])
def test_the_embedded_policys_products_are_those_that_torch_counts(
    lora: LoRA | None, products: FlopCounterMode
) -> None:
    policy = Policy("random", lora=lora)
    sizes = matmul_sizes(policy)
    without_attention = MatmulSizes(**{**vars(sizes), "layers": 0})
    tokens = torch.arange(1, 25).reshape(2, 12)
    positions = torch.zeros(2, 12, dtype=torch.bool)
    positions[:, 5:] = True
    policy(tokens, positions)  # finds out how logits are made
    counts = PassCounts()
    before = of_matrices(products)
    with torch.no_grad():
        counts.add(attended(12, 12), int(positions.sum()))
        policy(tokens, positions)
    forward = of_matrices(products) - before
    assert forward == counts.flops(without_attention)

    counts = PassCounts()
    counts.add(attended(12, 12), int(positions.sum()))
    policy(tokens, positions).sum().backward()
    both = of_matrices(products) - before - forward
    # Below the first adapter nothing asks for a gradient.
    assert both == pytest.approx(counts.flops(without_attention), rel=1e-12 if not lora else 0.15)
