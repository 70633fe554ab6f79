"""Raw values of a problem file's columns, turned into fields of a `Problem` or into a `Fault`.

Each function takes the value as jsonl or parquet gave it (None where absent) and the column name.
"""

import re
from collections.abc import Mapping

from e3rl.data.bad_rows import Fault
from e3rl.data.problem import Message

EXACT = 2**53  # whole floats below this stand for one integer
_GROUPED = re.compile(r"[^\d,]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", re.ASCII)  # perhaps with a sign
ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_prompt(value: object, column: str) -> str | tuple[Message, ...] | Fault:
    """Plain text as it stands, or a chat: a list of {role, content} that leaves the turn open."""
    if isinstance(value, list) and value:
        return _parse_chat(value, column)
    if value is None or value == [] or _is_blank(value):
        return Fault("missing prompt", f"column '{column}' is empty", "give the question")
    return _parse_text(value, column, "give text or a list of {role, content} messages")


def parse_answer(value: object, column: str, after: str | None = None) -> str | Fault:
    """Text without surrounding blanks, of a number or of a list of one.

    With `after` the answer is what stands behind the last such mark of a text that derives it, a
    number without digit groups (72,000 is 72000).

    Whole numbers become text, 27.0 like 27 (tables of competitions hold floats); other floats are
    refused as inexact, and lists of several answers as ambiguous.
    """
    if isinstance(value, list) and len(value) > 1:
        return Fault(
            "several answers",
            f"column '{column}' lists {len(value)}",
            f"write them as one text, or choose one with columns.answer={column}.0",
        )
    if isinstance(value, list):
        return parse_answer(value[0] if value else None, column, after)
    if after is not None and isinstance(value, str):
        return _parse_marked(value, column, after)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or _is_blank(value):
        return Fault("missing answer", f"column '{column}' is empty", "give the gold answer")
    text = _parse_text(value, column, 'write the gold answer as text, e.g. "3" or "1/3"')
    return text if isinstance(text, Fault) else text.strip()


def _parse_marked(text: str, column: str, mark: str) -> str | Fault:
    _, found, answer = text.rpartition(mark)
    if not found or not answer.strip():
        return Fault(
            "no marked answer",
            f"column '{column}' has no answer behind {mark!r}",
            "write the gold answer there, or set answer_after=null if the column holds it alone",
        )
    answer = answer.strip()
    return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer


def parse_id(value: object, column: str | None, default: str) -> str | Fault:
    """Text or an integer; `default` where the row has none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or _is_blank(value):
        return default
    return _parse_text(value, column, "give a unique text or integer, or none at all")


def parse_source(value: object, column: str | None, default: str) -> str | Fault:
    """The origin that results are broken down by; `default` where the row has none."""
    if value is None or _is_blank(value):
        return default
    return _parse_text(value, column, "name the source in text, or set columns.source=null")


def parse_level(value: object, column: str | None) -> int | Fault | None:
    """A whole number; 3.0 counts as 3, because a table column with gaps holds floats."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        return int(value)
    return _wrong_type(value, column, "give a whole number, or set columns.level=null")


def parse_prior(value: object, column: str | None) -> float | Fault | None:
    """A difficulty rank in [0, 1), 0 = easiest."""
    remedy = "rank the problems from 0 (easiest) to below 1, or set columns.prior=null"
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _wrong_type(value, column, remedy)
    if not 0 <= value < 1:
        return Fault("prior out of range", f"column '{column}' is {value}", remedy)
    return float(value)


def _parse_chat(messages: list[object], column: str) -> tuple[Message, ...] | Fault:
    parsed: list[Message] = []
    for number, message in enumerate(messages):
        detail = _message_fault(message)
        if detail:
            return Fault(
                "broken chat",
                f"message {number} of column '{column}' {detail}",
                "give every message one 'role' and one 'content', both text",
            )
        assert isinstance(message, Mapping)
        parsed.append({"role": message["role"], "content": message["content"]})
    if not parsed[-1]["content"].strip() or parsed[-1]["role"] == "assistant":
        return Fault(
            "missing prompt",
            f"the last message of column '{column}' asks nothing",
            "end the chat with the user's question",
        )
    return tuple(parsed)


def _message_fault(message: object) -> str | None:
    """What keeps a chat message from being {role, content}; columns of other rows may be null."""
    if not isinstance(message, Mapping):
        return f"is a {type(message).__name__}"
    if message.get("role") not in ROLES:
        return f"has the role {message.get('role')!r}, known are {', '.join(ROLES)}"
    content = message.get("content")
    if not isinstance(content, str):
        return f"has a content of type {type(content).__name__}"
    if not _is_unicode(content):
        return "has half a surrogate pair in its content"
    others = sorted(k for k, v in message.items() if k not in ("role", "content") and v is not None)
    return f"has keys that would be lost: {', '.join(others)}" if others else None


def _parse_text(value: object, column: str | None, remedy: str) -> str | Fault:
    if not isinstance(value, str):
        return _wrong_type(value, column, remedy)
    if not _is_unicode(value):
        return Fault(
            "not UTF-8", f"column '{column}' has half a surrogate pair", "write the text again"
        )
    return value


def _wrong_type(value: object, column: str | None, remedy: str) -> Fault:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return Fault("wrong type", f"column '{column}' is {shown} ({type(value).__name__})", remedy)


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which JSON escapes can spell but no tokenizer can encode."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
