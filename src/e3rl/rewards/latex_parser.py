r"""math-verify's parser of LaTeX, with a cheaper way that is tried first.

ANTLR predicts which rule applies from the whole context of the rules around it (LL), or from the
tokens alone (SLL). Where the second way comes to an end, it makes the tree that the first one makes
(`PredictionMode` in its documentation, which recommends the two stages); where it does not, the
first one decides. `\ln(\sin(\cos(x)))` takes a tenth of the time.
"""

from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from antlr4.error.ErrorListener import ErrorListener
from latex2sympy2_extended import latex2sympy2


class Undecided(Exception):
    """The first stage did not come to an end."""


class FirstStage(ErrorListener):  # type: ignore[misc]
    """Raises Undecided where there would be an error of syntax."""

    def syntaxError(self, *_: Any) -> None:
        raise Undecided


class TwoStageParser(latex2sympy2.PSParser):  # type: ignore[misc]
    """The grammar's parser; raises what it raises for text that is no LaTeX of the grammar's."""

    def math(self) -> Any:
        """The tree of the whole input."""
        self._input.fill()  # a letter that is no token's is told here, and not passed over below
        listeners: list[Any] = self._listeners  # type: ignore[has-type]
        self._listeners = [FirstStage()]
        self._interp.predictionMode = PredictionMode.SLL
        try:
            return super().math()
        except Undecided:
            self.reset()
        finally:
            self._listeners = listeners
        self._interp.predictionMode = PredictionMode.LL
        return super().math()


def install() -> None:
    """Let math-verify parse in two stages, in this process."""
    latex2sympy2.PSParser = TwoStageParser
