r"""`AnswerReader`: where the answer of a completion stands, and how the prompt asks for it.

The forms that problem sets and models use: a box, the last number, a line after `####` (GSM8K),
`<answer>` tags, the letter of a choice, or a regular expression of the user's. What is read is
text; whether it is right, a scorer decides.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from e3rl.rewards.answer_formats import INTEGER, LATEX_GROUPS, compact, last_box
from e3rl.rewards.spellings import usual_spellings
from e3rl.rewards.wording import NO_BREAK

AnswerFormat = Literal[
    "integer_box",
    "math_box",
    "last_number",
    "hashes",
    "answer_tags",
    "choice",
    "pattern",
    "completion",
]

# A minus behind a number, a name or a bracket subtracts; anywhere else it is a sign.
_SIGN = r"(?:(?<![\w)\]}.])[-−–])?"
# A fraction in LaTeX, a mixed number, thousands behind blanks (the last with a zero in front, for
# 5 100 may be two numbers), or a number with what follows it: digits, an exponent, a denominator.
_NUMBER = re.compile(
    rf"{_SIGN}(?:"
    r"(?:(?<![\w.,/^])\d+ ?)?\\[dtc]?frac *(?:\{ *-?\d+ *\} *\{ *-?\d+ *\}|\d *\d|\d *\{ *\d+ *\})"
    r"|(?<![\d.,/])(?<!\d )\d+ \d+/\d+(?![\d/]|[.,]\d)"
    r"|(?<![\d.,])\d{1,3}(?: \d{3}){0,4}? 0\d\d(?: \d{3}){0,4}(?!\d)(?:\.\d+)?"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+| ?/ ?\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)
# A sign before a currency, or apart from its number and behind what no subtraction follows: a blank
# behind the minus of `10 - 5`, or of a list, makes no sign of it.
_SIGN_APART = re.compile(
    r"(?:(?<![\w)\]}.$])(?<![\d)\]}$] )[-−–]\\?\$ ?"
    r"|[=:(\[{,<>≤≥≈~&][ \t]*[-−–][ \t]+(?:\\?\$ ?)?)\Z"
)
# What to do where completions have no answer.
READ_ANSWERS = (
    "Take the reward that reads what the policy writes (reward=last_number, ...), ask for the form "
    "(policy/template=asked)"
)

_HASHES = "####"
_TAG = re.compile(r"<answer>|</answer>", re.IGNORECASE)
_MARKS = re.compile(r"([*_]{1,3}|`)([^\n]+)\1")  # of bold, italics and code in Markdown
_LABEL = r"(?i:option|choice|letter|answer)\b"
_DECORATION = r"(?:[*$_\"'\s]|\\[a-z]+\{)*+"
# "The answer is", with what may stand before a letter, then a letter in brackets, a capital that is
# no pronoun, or a letter that ends the statement: "the answer is a number" chooses nothing, nor
# does "A or B".
_STATED = re.compile(
    rf"\b{_LABEL}\s*+(?:(?i:is|(?:should|must|would|will|has\sto)\s+be)\b\s*+[:=]?|[:=]){_DECORATION}"
    rf"(?:(?i:therefore|thus|clearly|indeed|then)\b,?\s*+)?(?:(?i:the)\s++)?"
    rf"(?:{_LABEL}\s*+:?{_DECORATION})?"
    r"(?:\(([A-Za-z])\)|(?!I['’\s]+[a-z])([A-Z])(?![\w'’])"
    r"|([a-z])(?=[*$_}\"' \t]*+(?:[.,;:)!\n]|$)))(?![*$_}\"'\s]*+(?i:or)\s)"
)
# A capital at the very end, behind a sign or a word that leads up to it.
_CLOSING = re.compile(
    r"(?:[\n,:;.!?>→—](?=[\s*$_\"'(\[\\])|\b(?i:therefore|thus|hence|so|but|is|be|it's|choose|chose|"
    r"select|pick|say|go\swith|option|choice|letter|answer)\b)"
    r"(?:[*$_\"'(\[\s]|\\[a-z]+\{)*+([A-Z])[*$_}\"')\].!\s]*+\Z"
)
_CLOSING_CHARS = 60  # of the end of a completion that are looked at
_BEFORE_NUMBER = 20  # characters in which its sign is looked for
# Before a letter that is not chosen: a negation, an alternative, or others in a row.
_BETWEEN = rf"\b(?:\s+(?i:be|is|the|an?|either)\b)*(?:\s+{_LABEL})?[\s*$_\"'(\[]*\Z"
_NEGATED = re.compile(rf"(?:\b(?i:not|cannot|nor|neither|never|except)|n['’]t){_BETWEEN}")
_ONE_OF_SEVERAL = re.compile(
    rf"\b(?i:or|and){_BETWEEN}|(?<![\w'’])[A-Z]\)?[*_]*[.,/&)\s][\s*$_\"'(\[]*\Z"
)
_BRACKETED = re.compile(r"\(([A-Z])\)")
_OPTION = re.compile(r"(?<![\w'’(])[A-Z][).:]\s")
_LETTER = re.compile(
    rf"[\s(*$\"']*(?:{_LABEL}[\s:(]*)?([A-Za-z])(?:[\s).:*$\"']*|[).:]\s(.*))", re.DOTALL
)
_FONT = re.compile(r"\\(?:text|math)[a-z]*\s*\{(.*)\}", re.DOTALL)

# How the prompt asks for each form, as the end of a sentence; own patterns ask for themselves.
_REQUESTS: dict[str, str] = {
    "integer_box": r"put your final answer within \boxed{}",
    "math_box": r"put your final answer within \boxed{}",
    "last_number": "end with the final answer as a number",
    "hashes": "end with a line that holds #### and your final answer",
    "answer_tags": "put your final answer between <answer> and </answer>",
    "choice": "end with: The answer is (X), where X is the letter of your choice",
}

# Spellings of an integer that leave nothing but the literal in the box.
INTEGER_BOX = ("box", "blanks", "earlier box", "display", "box in a box")
_FORMS = {
    "last_number": "so it is {}.",
    "hashes": "#### {}",
    "answer_tags": "<answer>{}</answer>",
    "choice": "The answer is ({}).",
}


@dataclass(frozen=True)
class AnswerReader:
    r"""Finds the final answer of a completion.

    | format | the answer is |
    |---|---|
    | `integer_box` | the last `\boxed{}`, which holds an integer literal -?\d+ and nothing else |
    | `math_box` | the last `\boxed{}`, closed and not empty |
    | `last_number` | the last number of the text: 1,234.5, 3/4, 3 1/2, \frac{3}{4} are one each |
    | `hashes` | what follows the last `####` in its line, without `**` around it |
    | `answer_tags` | what the last `<answer>...</answer>` holds, without `**` around it |
    | `choice` | a letter: boxed, after "answer is", closing, the one in brackets, or all there is |
    | `pattern` | the group of the last match of `pattern`, or all of it without groups |
    | `completion` | the completion, without blanks around it |

    Args:
        answer_format: one of these.
        pattern: a regular expression, for `pattern` alone.
        max_chars: a longer answer is none, at least 1.

    Raises ValueError for an unknown format, a pattern that is missing, not wanted or no regular
    expression, and `max_chars` below 1.
    """

    answer_format: AnswerFormat
    pattern: str | None = None
    max_chars: int = 300

    def __post_init__(self) -> None:
        if self.answer_format not in get_args(AnswerFormat):
            known = ", ".join(get_args(AnswerFormat))
            raise ValueError(f"answer_format={self.answer_format!r}; choose one of {known}")
        if self.max_chars < 1:
            raise ValueError(f"max_answer_chars={self.max_chars}; it must be at least 1")
        if (self.pattern is not None) != (self.answer_format == "pattern"):
            raise ValueError(
                f"answer_pattern={self.pattern!r} with answer_format={self.answer_format}: "
                "answer_format=pattern needs a regular expression, the others take none"
            )
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(
                    f"answer_pattern={self.pattern!r} is no regular expression: {error}"
                ) from error

    def read(self, completion: str) -> str | None:
        """The answer as it is written there; None where the completion has none.

        The last answer is kept: a completion is read when it is submitted and when it is judged.
        """
        return _read(self, completion)

    def _read(self, completion: str) -> str | None:
        content = self._find(completion)
        if content is None:
            return None
        content = content.strip()
        if self.answer_format in ("hashes", "answer_tags"):
            content = _without_marks(content)
        if not content or len(content) > self.max_chars:
            return None
        if self.answer_format.endswith("_box") and not compact(content):
            return None
        if self.answer_format == "integer_box" and not INTEGER.fullmatch(content):
            return None
        return content

    def spell(self, gold: str) -> dict[str, str]:
        """Completions that give an answer in this form, by the name of the spelling, the plainest
        first; none for patterns."""
        match self.answer_format:
            case "integer_box":
                spelled = usual_spellings(gold)
                return {name: spelled[name] for name in INTEGER_BOX if name in spelled}
            case "math_box":
                return usual_spellings(gold)
            case "pattern":
                return {}
            case _:
                letter = gold.strip("(). ") if self.answer_format == "choice" else gold
                spelled = {"plain": _FORMS.get(self.answer_format, "{}").format(letter)}
                if self.answer_format == "last_number" and (groups := _in_groups(gold)):
                    spelled["thousands"] = f"so it is ${groups}$."
                return spelled

    def _find(self, text: str) -> str | None:
        match self.answer_format:
            case "integer_box" | "math_box":
                return last_box(text)
            case "last_number":
                return _last_number(text)
            case "hashes":
                return _behind_hashes(text)
            case "answer_tags":
                return _tagged(text)
            case "choice":
                return _choice(text)
            case "pattern":
                assert self.pattern is not None
                return _last(re.compile(self.pattern), text)
            case "completion":
                return text


@lru_cache(1)
def _read(reader: AnswerReader, completion: str) -> str | None:
    return reader._read(completion)


def answer_instruction(answer_format: str | None) -> str:
    """A sentence for the prompt that asks for reasoning and an answer in this form.

    Formats that a user defines are asked for by the user; None asks for reasoning alone.
    """
    request = _REQUESTS.get(answer_format or "")
    return "Please reason step by step" + (f", and {request}." if request else ".")


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    """The group of the last match that has text, or all of it where there are no groups."""
    found: re.Match[str] | None = None
    for match in pattern.finditer(text):
        found = match
    if found is None or not pattern.groups:
        return None if found is None else found[0]
    return next((group for group in found.groups() if group is not None), None)


def _behind_hashes(text: str) -> str | None:
    """What stands in the line behind the last `####` that anything stands behind."""
    for part in reversed(text.split(_HASHES)[1:]):
        if line := part.partition("\n")[0].strip():
            return line
    return None


def _last_number(text: str) -> str | None:
    """The last number with its sign, in front of a currency and behind `= ` too; groups of digits
    that LaTeX sets apart are one number, as 12{,}345."""
    text = LATEX_GROUPS.sub(",", text.translate(NO_BREAK))
    found: re.Match[str] | None = None
    for match in _NUMBER.finditer(text):
        found = match
    if found is None:
        return None
    before = text[max(0, found.start() - _BEFORE_NUMBER) : found.start()]
    if found[0][0] in "-−–":
        return f"-{found[0][1:]}"
    return f"-{found[0]}" if _SIGN_APART.search(before) else found[0]


def _in_groups(gold: str) -> str | None:
    """A whole number of four digits or more, its thousands set apart as in LaTeX."""
    plain = re.fullmatch(r"-?[1-9]\d{3,299}", gold, re.ASCII)
    return f"{int(gold):,}".replace(",", "{,}") if plain else None


def _tagged(text: str) -> str | None:
    """What stands between the last opening tag that is closed and the next closing one.

    One pass over the text: a pattern for the pair would look for the end from every opening tag.
    """
    found: str | None = None
    start: int | None = None
    for tag in _TAG.finditer(text):
        closes = tag[0].startswith("</")
        if closes and start is not None:
            found, start = text[start : tag.start()], None
        elif not closes:
            start = tag.end()
    return found


def _without_marks(text: str) -> str:
    """A line without Markdown around it, and without `**` at its end that opens before it."""
    if text.endswith("**") and text.count("**") == 1:
        return text.removesuffix("**").strip()
    marked = _MARKS.fullmatch(text)
    if marked is None or marked[1][0] in marked[2]:
        return text
    return _without_marks(marked[2].strip())


def _choice(text: str) -> str | None:
    """The letter that a completion chooses, as a capital."""
    box = last_box(text)
    if box is not None:
        letter = _LETTER.fullmatch(_FONT.sub(r"\1", box))
        return letter[1].upper() if letter else None
    if stated := _last(_STATED, text):
        return stated.upper()
    if closing := _closing(text):
        return closing
    if bracketed := _bracketed(text):
        return bracketed
    alone = _LETTER.fullmatch(text)
    if alone is None or (alone[2] and (_OPTION.search(alone[2]) or _BRACKETED.search(alone[2]))):
        return None
    return alone[1].upper()


def _closing(text: str) -> str | None:
    """The capital that ends the text, alone."""
    end = text.rstrip()[-_CLOSING_CHARS:]
    found = _CLOSING.search(end)
    if found is None:
        return None
    before = end[: found.start(1)]
    return None if _NEGATED.search(before) or _ONE_OF_SEVERAL.search(before) else found[1]


def _bracketed(text: str) -> str | None:
    """The one letter in brackets, options that are listed from (A) on and negations left aside."""
    found = list(_BRACKETED.finditer(text))
    listed = [match for match in found if match[1] == "A"][:1]
    for match in found:
        if (
            listed
            and match.start() > listed[-1].start()
            and ord(match[1]) == ord(listed[-1][1]) + 1
        ):
            listed.append(match)
    if len(listed) > 1:
        found = [match for match in found if match.start() > listed[-1].start()]
    chosen = {
        match[1]
        for match in found
        if not _NEGATED.search(text[max(0, match.start() - _CLOSING_CHARS) : match.start()])
    }
    return chosen.pop() if len(chosen) == 1 else None
