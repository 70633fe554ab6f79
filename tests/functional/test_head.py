"""Log-probs and entropies by blocks: the same values and gradients as from whole logits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from e3rl.functional import head as functional_head
from e3rl.functional.grad_norms import logit_grad_norm_squared
from e3rl.functional.head import Adjustment, Head, block_scores
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.predictions import LogitBlocks, WholeLogits

PLAIN = Adjustment()
ADJUSTMENTS = (PLAIN, Adjustment(factor=0.25), Adjustment(divisor=8.0), Adjustment(softcap=2.0))


@pytest.fixture(autouse=True, scope="module", params=["blocks in one strip", "in strips of rows"])
def _strips(request):
    """What a block's logits are worked on in, where the vocabulary is 11 words."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in strips of rows":
            patch.setattr(functional_head, "STRIP", 2 * 11)
        yield


def made(
    number: int = 7,
    width: int = 5,
    vocabulary: int = 11,
    biased: bool = False,
    adjustment: Adjustment = PLAIN,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
):
    """Hidden states, an output layer that both want gradients, tokens and temperatures."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.to(dtype).requires_grad_()

    bias = normal(vocabulary) if biased else None
    head = Head(normal(vocabulary, width), bias, adjustment, dtype)
    tokens = torch.randint(vocabulary, (number,), generator=generator)
    taus = 0.3 + 2 * torch.rand(number, generator=generator)
    return normal(number, width), head, tokens, taus


def leaves(hidden: torch.Tensor, head: Head) -> list[torch.Tensor]:
    return [x for x in (hidden, head.weight, head.bias) if x is not None]


def gradients(outputs, hidden: torch.Tensor, head: Head) -> list[torch.Tensor]:
    """Of a weighted sum, with other weights for every token and for both quantities."""
    terms = [(x * torch.linspace(-1, 2 + i, len(x))).sum() for i, x in enumerate(outputs)]
    return list(torch.autograd.grad(sum(terms), leaves(hidden, head)))


# -- values and gradients


@settings(max_examples=40, deadline=None)
@given(
    number=st.integers(1, 12),
    width=st.integers(1, 6),
    vocabulary=st.integers(1, 12),
    block=st.integers(1, 15),
    adjustment=st.sampled_from(ADJUSTMENTS),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_blocks_give_the_values_and_gradients_of_whole_logits(
    number, width, vocabulary, block, adjustment, biased, seed
):
    hidden, head, tokens, taus = made(
        number, width, vocabulary, biased, adjustment=adjustment, seed=seed
    )
    whole = WholeLogits(head.logits(hidden)).scores(tokens, taus, entropies=True)
    blocks = LogitBlocks(hidden, head, block).scores(tokens, taus, entropies=True)
    torch.testing.assert_close(blocks, whole, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(
        gradients(blocks, hidden, head), gradients(whole, hidden, head), rtol=1e-8, atol=1e-9
    )


@pytest.mark.end_to_end
@pytest.mark.parametrize("adjustment", ADJUSTMENTS)
@pytest.mark.parametrize("entropies", [False, True])
def test_the_gradient_is_that_of_finite_differences(adjustment, entropies):
    hidden, head, tokens, taus = made(5, 3, 4, biased=True, adjustment=adjustment)

    def scores(hidden, weight, bias):
        found = block_scores(
            hidden, replace(head, weight=weight, bias=bias), tokens, taus, 2, entropies
        )
        return found if entropies else found[0]

    assert torch.autograd.gradcheck(scores, (hidden, head.weight, head.bias))


def test_either_quantity_may_be_the_only_one_that_is_trained_on():
    hidden, head, tokens, taus = made()
    for place in (0, 1):
        whole, blocks = (
            p.scores(tokens, taus, entropies=True)[place]
            for p in (WholeLogits(head.logits(hidden)), LogitBlocks(hidden, head, 3))
        )
        torch.testing.assert_close(
            gradients([blocks], hidden, head), gradients([whole], hidden, head)
        )


def test_a_head_that_is_shared_with_the_embedding_gets_both_gradients():
    _, head, tokens, taus = made()
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    found = []
    for block in (None, 2):
        hidden = torch.nn.functional.embedding(ids, head.weight)
        predictions = (
            LogitBlocks(hidden, head, block) if block else WholeLogits(head.logits(hidden))
        )
        logprobs, _ = predictions.scores(tokens, taus)
        found.append(torch.autograd.grad(logprobs.sum(), head.weight)[0])
    torch.testing.assert_close(*found)


def test_a_frozen_head_gets_no_gradient_and_the_states_get_theirs():
    hidden, head, tokens, taus = made()
    frozen = replace(head, weight=head.weight.detach())
    wanted = torch.autograd.grad(block_scores(hidden, head, tokens, taus, 3)[0].sum(), hidden)
    found = torch.autograd.grad(block_scores(hidden, frozen, tokens, taus, 3)[0].sum(), hidden)
    assert torch.equal(found[0], wanted[0])


def test_measures_are_those_of_whole_logits_and_have_no_gradient():
    hidden, head, tokens, taus = made()
    for measure in (token_logprobs, logit_grad_norm_squared):
        found = LogitBlocks(hidden, head, 2).measure(measure, tokens, taus)
        wanted = WholeLogits(head.logits(hidden)).measure(measure, tokens, taus)
        torch.testing.assert_close(found, wanted)
        assert not found.requires_grad


def test_nothing_to_score_gives_nothing():
    hidden, head, tokens, taus = made(number=0)
    logprobs, entropies = block_scores(hidden, head, tokens, taus, 4, entropies=True)
    assert logprobs.shape == entropies.shape == (0,)
    assert LogitBlocks(hidden, head, 4).measure(token_logprobs, tokens, taus).shape == (0,)


# -- precision


def test_bfloat16_weights_are_scored_in_float32_where_that_is_asked_for():
    hidden, head, tokens, taus = made(64, 32, 50, dtype=torch.bfloat16)
    exact = Head(head.weight.double(), None, PLAIN, torch.float64)
    wanted = block_scores(hidden.double(), exact, tokens, taus, 10)[0]
    errors = []
    for dtype in (torch.float32, torch.bfloat16):
        found = block_scores(hidden, replace(head, dtype=dtype), tokens, taus, 10)[0]
        assert found.dtype == torch.float32
        errors.append((found - wanted).abs().max().item())
    assert errors[0] < 1e-4 < 1e-2 < errors[1]


@pytest.mark.end_to_end
def test_the_weights_gradient_is_summed_over_blocks_in_float32():
    # In bfloat16 each of 4096 additions would be wrong by up to 1/512 of the sum so far.
    hidden, head, tokens, taus = made(4096, 4, 3, dtype=torch.bfloat16)
    exact = Head(head.weight.double(), None, PLAIN, torch.float64)
    summands = block_scores(hidden.double(), exact, tokens, taus, 64)[0]
    (wanted,) = torch.autograd.grad(summands.sum(), head.weight)
    logprobs = block_scores(hidden, replace(head, dtype=torch.float32), tokens, taus, 1)[0]
    (found,) = torch.autograd.grad(logprobs.sum(), head.weight)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01 * float(wanted.abs().max()))


def test_autocast_does_not_lower_the_precision_that_was_asked_for():
    hidden, head, tokens, taus = made(dtype=torch.float32)
    plain = block_scores(hidden, head, tokens, taus, 3)[0]
    wanted = torch.autograd.grad(plain.sum(), leaves(hidden, head))
    with torch.autocast("cpu", torch.bfloat16):
        found = block_scores(hidden, head, tokens, taus, 3)[0]
        assert torch.equal(found, plain)
        for one, other in zip(
            torch.autograd.grad(found.sum(), leaves(hidden, head)), wanted, strict=True
        ):
            assert torch.equal(one, other)


# -- memory


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


class Wide(TorchDispatchMode):
    """Every tensor of at least so many elements that an operation returns, kept."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().nbytes() >= 8 * self.elements:
                self.kept.append(x)
        return result

    def memories(self) -> int:
        return len({x.untyped_storage().data_ptr() for x in self.kept})


def test_a_pass_makes_the_logits_of_all_blocks_in_one_memory(monkeypatch):
    monkeypatch.setattr(functional_head, "STRIP", 2 * 101)
    hidden, head, tokens, taus = made(96, 4, 101, biased=True)
    with Wide(8 * 101) as seen:
        scores = LogitBlocks(hidden, head, 8).scores(tokens, taus, entropies=True)
    assert seen.memories() == 1
    with Wide(8 * 101) as seen:
        gradients(scores, hidden, head)
    assert seen.memories() == 1


def test_no_tensor_is_larger_than_a_blocks_logits():
    number, vocabulary, block = 96, 101, 8
    hidden, head, tokens, taus = made(number, 4, vocabulary, biased=True)
    with Largest() as seen:
        predictions = LogitBlocks(hidden, head, block)
        scores = predictions.scores(tokens, taus, entropies=True)
        gradients(scores, hidden, head)
        predictions.measure(logit_grad_norm_squared, tokens, taus)
    assert seen.elements == block * vocabulary
    with Largest() as seen:
        whole = WholeLogits(head.logits(hidden)).scores(tokens, taus, entropies=True)
        gradients(whole, hidden, head)
    assert seen.elements == number * vocabulary  # the instrument would see them


def test_what_waits_for_the_backward_pass_does_not_grow_with_the_vocabulary():
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    hidden, head, tokens, taus = made(64, 4, 501)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        block_scores(hidden, head, tokens, taus, 8, entropies=True)
    assert max(kept) == head.weight.numel()  # the layer's own weight; 64 x 501 are not there


# -- bad input


def test_bad_input_is_refused():
    hidden, head, tokens, taus = made()
    with pytest.raises(ValueError, match=r"head\.block=0: use at least 1 token"):
        block_scores(hidden, head, tokens, taus, 0)
    with pytest.raises(ValueError, match="temperatures must be above 0"):
        block_scores(hidden, head, tokens, taus * 0, 2)
    with pytest.raises(ValueError, match=r"hidden \(M, H\) of 7 tokens, got 6"):
        block_scores(hidden[1:], head, tokens, taus, 2)
    with pytest.raises(ValueError, match="1-D tensors of one length"):
        block_scores(hidden, head, tokens[1:], taus, 2)
