r"""The same answer as models usually write it: what a verifier must not tell apart.

Each spelling is named and says the same as the gold answer; those that make no sense for an answer
(digit groups of a root, say) are left out.
"""

import re
from collections.abc import Callable

from e3rl.rewards.answer_formats import INTEGER, is_number

_FRACTION = re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_SLASHED = re.compile(r"(-?)(\d+)\s*/\s*(\d+)")
_DRESSED = re.compile(r"text|math|mbox|circ|°|%|\$|=|≈|approx|equiv")  # has a unit or a name
_DOLLARS = re.compile(r"\$([^$]+)\$")


def usual_spellings(gold: str) -> dict[str, str]:
    """Completions that end in the gold answer, by the name of the spelling."""
    text = gold.strip()
    wrapped = _DOLLARS.fullmatch(text)
    inside = wrapped[1] if wrapped else text
    boxed = {
        name: rf"Thus the answer is $\boxed{{{written}}}$."
        for name, write in _ANSWERS.items()
        if (written := write(inside)) is not None and (name == "box" or written != inside)
    }
    return boxed | {
        "earlier box": rf"First \boxed{{0}}? No. So it is \boxed{{{text}}}",
        "display": f"Hence\n\\[\n\\boxed{{ {text} }}\n\\]",
        "box in a box": rf"\boxed{{\boxed{{{text}}}}}",
        "bold": rf"**Final answer**: \(\boxed{{\mathbf{{{text}}}}}\)"
        if INTEGER.fullmatch(text)
        else rf"**Final answer**: \(\boxed{{{text}}}\)",
    }


def _brackets(text: str) -> str:
    if any(f"\\{side}{sign}" in text for side in ("left", "right") for sign in "()[]"):
        return re.sub(r"\\(?:left|right)(?=[()\[\]])", "", text)
    return re.sub(r"(?<!\\)\(", r"\\left(", re.sub(r"(?<!\\)\)", r"\\right)", text))


def _grouped(separator: str) -> Callable[[str], str | None]:
    def write(text: str) -> str | None:
        if INTEGER.fullmatch(text) and abs(int(text)) >= 1000:
            return f"{int(text):,}".replace(",", separator)
        return None

    return write


def _of_number(form: str) -> Callable[[str], str | None]:
    """The form with the answer in place of @, for a single number without a unit or a name."""

    def write(text: str) -> str | None:
        bare = is_number(text) and not _DRESSED.search(text)
        return form.replace("@", text) if bare else None

    return write


_ANSWERS: dict[str, Callable[[str], str | None]] = {
    "box": lambda text: text,
    "dollars": lambda text: f"${text}$",
    "parentheses": lambda text: rf"\({text}\)",
    "period": lambda text: f"{text}.",
    "last thin space": lambda text: rf"{text}\,",
    "last thick space": lambda text: rf"{text}\;",
    "blanks": lambda text: f"  {text}\n",
    "display style": lambda text: rf"\displaystyle {text}",
    "large fractions": lambda text: re.sub(r"\\[dt]?frac", r"\\dfrac", text),
    "small fractions": lambda text: re.sub(r"\\[dt]?frac", r"\\tfrac", text),
    "plain fractions": lambda text: re.sub(r"\\[dt]frac", r"\\frac", text),
    "slashes": lambda text: _FRACTION.sub(r"\1/\2", text) if _FRACTION.fullmatch(text) else None,
    "fractions": lambda text: (
        _SLASHED.sub(r"\1\\frac{\2}{\3}", text) if _SLASHED.fullmatch(text) else None
    ),
    "short fractions": lambda text: re.sub(r"frac\{(\d)\}\{(\d)\}", r"frac\1\2", text),
    "roots without braces": lambda text: re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", text),
    "sized brackets": _brackets,
    "commas": _grouped(","),
    "commas in braces": _grouped("{,}"),
    "commas with a kern": _grouped(r",\!"),
    "thin spaces": _grouped(r"\,"),
    "unit": _of_number(r"@\text{ units}"),
    "unit behind a space": _of_number(r"@ \,\mathrm{cm}"),
    "squared unit": _of_number(r"@\text{ cm}^2"),
    "degrees": _of_number(r"@^\circ"),
    "percent behind a space": _of_number(r"@\,\%"),
    "name": _of_number("x = @"),
    "sum named": _of_number("m+n = @"),
    "decimal": lambda text: f"{text}.0" if INTEGER.fullmatch(text) else None,
    "true minus": lambda text: text.replace("-", "−"),
    "text": lambda text: rf"\text{{{text}}}" if re.fullmatch(r"[A-Za-z ]+", text) else None,
    "without text": lambda text: re.sub(r"\\text\{([A-Za-z ]+)\}", r"\1", text),
}
