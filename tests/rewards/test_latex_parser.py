r"""Two stages of parsing: the trees of the full one, and its errors."""

import pytest
from antlr4.atn.PredictionMode import PredictionMode
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latex2sympy2_extended import latex2sympy2

from e3rl.rewards.latex_parser import TwoStageParser, install

install()

ATOMS = st.sampled_from(["1", "12", "x", "y", r"\pi", r"\frac{1}{2}", "2.5", r"\infty"])


def nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, inner)
    return (
        pairs.map(lambda ab: f"{ab[0]}+{ab[1]}")
        | pairs.map(lambda ab: f"{ab[0]}{ab[1]}")
        | pairs.map(lambda ab: rf"\frac{{{ab[0]}}}{{{ab[1]}}}")
        | pairs.map(lambda ab: f"({ab[0]})^{{{ab[1]}}}")
        | pairs.map(lambda ab: f"{ab[0]}, {ab[1]}")
        | pairs.map(lambda ab: f"{ab[0]} = {ab[1]}")
        | pairs.map(lambda ab: rf"\left[{ab[0]}, {ab[1]}\right)")
        | inner.map(lambda a: rf"\sqrt{{{a}}}")
        | inner.map(lambda a: rf"\sin({a})")
        | inner.map(lambda a: rf"\ln {a}")
        | inner.map(lambda a: f"-{a}")
        | inner.map(lambda a: rf"\{{{a}\}}")
    )


FORMULAS = st.recursive(ATOMS, nest, max_leaves=5)


def parser(text: str) -> TwoStageParser:
    made = latex2sympy2._Latex2Sympy().create_parser(text)
    assert isinstance(made, TwoStageParser)
    return made


def tree_of(text: str, mode: PredictionMode | None = None) -> str:
    """The tree by the two stages, or by one way of predicting alone; "error" without one."""
    try:
        made = parser(text)
        if mode is None:
            return made.math().toStringTree(recog=made)
        made._interp.predictionMode = mode
        return super(TwoStageParser, made).math().toStringTree(recog=made)
    except Exception:
        return "error"


@settings(deadline=None, max_examples=60, derandomize=True)
@given(FORMULAS | st.text(alphabet="12x+-*/^_(){}[],=\\ ", max_size=12))
@example("\\")
@example("\\1")
@example("1 @ 2")
@example("x^2 @")
def test_what_is_read_and_what_is_refused_is_as_by_the_full_parse(text: str) -> None:
    assert tree_of(text) == tree_of(text, PredictionMode.LL)


@pytest.mark.parametrize(
    ("text", "decided_first"), [(r"\ln(\sin(\cos(x)))", True), ("1, 2", True), ("x^2+3x", False)]
)
def test_both_stages_are_needed(text: str, decided_first: bool) -> None:
    first = tree_of(text, PredictionMode.SLL)
    assert first.startswith("(math") == decided_first
    assert tree_of(text).startswith("(math")
