"""Prompts as chats; tokens as text, which may depend on those before; what ends a completion."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from e3rl.data.problem import Message

UNFINISHED = "\ufffd"  # what decoders write for bytes that are no character, or not yet one
CONTEXT = 6  # tokens before a piece of text that may decide how it is spelled, such as its space

Decode = Callable[[list[int]], str]


def make_messages(
    prompt: str | tuple[Message, ...], system: str, instruction: str
) -> list[Message]:
    """The chat that a prompt is, with the system message and the instruction."""
    asked = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
    messages = [dict(message) for message in asked]
    if system and messages[0]["role"] not in ("system", "developer"):
        messages.insert(0, {"role": "system", "content": system})
    messages[-1]["content"] += instruction
    return messages


def continuation(decode: Decode, before: Sequence[int], tokens: Sequence[int]) -> str:
    """What `tokens` add to the text of those before them."""
    start = list(before[-CONTEXT:])
    old, whole = decode(start), decode(start + list(tokens))
    same = takewhile(lambda pair: pair[0] == pair[1], zip(old, whole, strict=False))
    return whole[sum(1 for _ in same) :]


def unknown_pieces(tokenizer: Any, text: str, tokens: Sequence[int], most: int = 5) -> str:
    """The first pieces of a text, quoted, that a tokenizer has put its unknown token for; empty
    where there is none, or where that token begins or ends texts as well and so says nothing."""
    unknown = tokenizer.unk_token_id
    if unknown not in tokens or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        return ""
    if not tokenizer.is_fast:
        return "some of it"
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = zip(found["input_ids"], found["offset_mapping"], strict=True)
    pieces = dict.fromkeys(repr(text[low:high]) for token, (low, high) in spans if token == unknown)
    return ", ".join([*list(pieces)[:most], *["..."] * (len(pieces) > most)])


def check_stop(stop: Sequence[str]) -> None:
    """Raise ValueError for stop strings that are none, or that no text can hold."""
    if isinstance(stop, str):
        raise ValueError(f"policy.stop={stop!r}: give a list, policy.stop=[{stop!r}]")
    for string in stop:
        if not isinstance(string, str) or not string or UNFINISHED in string:
            raise ValueError(
                f"policy.stop={list(stop)!r}: {string!r} is no text that a completion could end "
                "with; give texts of one character or more, in quotes where they look like numbers"
            )
