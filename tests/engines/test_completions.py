"""Stop strings: where they end a completion, whatever the tokens are."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from e3rl.engines.completions import StopFinder
from e3rl.policy.policy import Policy
from e3rl.policy.text import check_stop, continuation

WORDS = ["the", " the", "\\boxed{", "}", "}.", "{5", "a}b", "}}", "\n", "\n\n", "e", " "]


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def byte_level() -> PreTrainedTokenizerFast:
    """Every byte is a token, as in GPT-2 and Qwen, and so are some words."""
    names = byte_names()
    pieces = [bytes([b]) for b in range(256)] + [w.encode() for w in WORDS if len(w) > 1]
    pieces += [b"}\xe2", b"\x82\xac}"]  # characters that are cut by the borders of tokens
    vocabulary = {"".join(names[b] for b in piece): i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | {"<eos>": len(pieces)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return wrap(tokenizer)


def byte_names() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in shown else chr(next(others)) for b in range(256)]


def sentence_pieces() -> PreTrainedTokenizerFast:
    """Words begin with their space, the first of which is dropped, as in Llama; rare characters
    are spelled by their bytes."""
    pieces = ["▁the", "▁A", "A", "}", "▁}", "the", "▁", *(f"<0x{b:02X}>" for b in range(256))]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<eos>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrap(tokenizer)


BYTE_LEVEL, PIECES = byte_level(), sentence_pieces()


def ids_of(tokenizer: Any, tokens: Sequence[str | bytes]) -> list[int]:
    names = byte_names()
    texts = ["".join(names[b] for b in t) if isinstance(t, bytes) else t for t in tokens]
    ids = tokenizer.convert_tokens_to_ids(texts)
    assert None not in ids
    return list(ids)


def end_of(tokenizer: Any, stop: Sequence[str], prompt: list[int], ids: list[int]) -> int | None:
    """Tokens up to the one that completes a stop string."""
    finder = StopFinder(stop, tokenizer.decode, prompt)
    return next((n for n, token in enumerate(ids, 1) if finder.ends_with(token)), None)


@pytest.mark.parametrize(
    ("stop", "tokens", "end"),
    [
        (["}"], [b"}"], 1),  # the very first token
        (["}"], [b"{5", b"}", b"}"], 2),
        (["}"], [b"{5", b"a}b", b"e"], 2),  # inside a token
        (["the}"], [b"the", b"{5", b"the", b"}."], 4),  # over several
        (["\n\n"], [b"e", b"\n", b"\n", b"e"], 3),
        (["\n\n"], [b"\n", b"e", b"\n"], None),
        (["}}", "e"], [b"}", b"the", b"}"], 2),  # whichever comes first
        (["€"], ["€".encode()[:1], "€".encode()[1:2], "€".encode()[2:], b"e"], 3),
        (["€"], [b"}\xe2", b"\x82\xac}"], 2),
        (["}"], [b"}\xe2", b"\x82\xac}"], 1),  # beside a part of a character
        (["}"], [b"\xe2", b"}"], 2),  # behind bytes that never become one
        (["e}"], [b"\xff"] * 9 + [b"e", b"}"], 11),
        (["😀!"], [*(bytes([b]) for b in "😀".encode()), b"!"], 5),
    ],
)
def test_the_token_that_completes_a_stop_string_is_the_last(
    stop: list[str], tokens: list[bytes], end: int | None
) -> None:
    prompt = ids_of(BYTE_LEVEL, [b"the", b"\\boxed{"])
    assert end_of(BYTE_LEVEL, stop, prompt, ids_of(BYTE_LEVEL, tokens)) == end


def test_the_prompt_is_no_part_of_a_stop_string() -> None:
    for prompt in ([b"}"], [b"e", b"\n"]):
        ids = ids_of(BYTE_LEVEL, prompt)
        assert end_of(BYTE_LEVEL, ["}", "\n\n"], ids, ids_of(BYTE_LEVEL, [b"\n", b"e"])) is None


@pytest.mark.parametrize(
    ("stop", "tokens", "end"),
    [
        ([" A"], ["▁A"], 1),  # decoded alone it would have no space
        ([" A"], ["A", "A", "▁A"], 3),
        (["the }"], ["▁the", "▁}"], 2),
        (["€}"], ["<0xE2>", "<0x82>", "<0xAC>", "}"], 4),
        (["A}"], ["<0xE2>", "<0x82>", "A", "}"], 4),
    ],
)
def test_tokens_are_spelled_as_they_are_behind_the_others(
    stop: list[str], tokens: list[str], end: int
) -> None:
    assert end_of(PIECES, stop, ids_of(PIECES, ["▁the"]), ids_of(PIECES, tokens)) == end


@given(
    st.lists(st.sampled_from(range(len(BYTE_LEVEL))), max_size=30),
    st.lists(st.sampled_from(["}", "}}", "the", "}.", "€", "é}", "\n\n", "{5}"]), min_size=1),
    st.lists(st.sampled_from([*range(33, 126), *range(256, 270)]), max_size=8),
)
def test_it_ends_where_the_whole_text_first_holds_a_stop_string(
    noise: list[int], stop: list[str], prompt: list[int]
) -> None:
    ids = [token for each in noise for token in (each, 256 + each % 13)]
    texts = [BYTE_LEVEL.decode(ids[:n]) for n in range(1, len(ids) + 1)]
    wanted = next((n for n, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
    assert end_of(BYTE_LEVEL, stop, prompt, ids) == wanted


def test_what_follows_keeps_the_space_that_it_would_lose_alone() -> None:
    before, after = ids_of(PIECES, ["▁the", "}"]), ids_of(PIECES, ["▁A", "A"])
    assert PIECES.decode(after) == "AA"
    assert continuation(PIECES.decode, before, after) == " AA"
    assert continuation(PIECES.decode, before, []) == ""


@pytest.mark.parametrize("stop", [[""], ["}", 5], ["�"]])
def test_stop_strings_that_no_text_can_hold_are_refused(stop: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"policy\.stop=.* is no text that a completion could"):
        check_stop(stop)


def test_a_text_in_the_place_of_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy\.stop='ab': give a list, policy\.stop=\['ab'\]"):
        Policy(stop="ab")
