"""Rollouts that are stopped without an answer in sight, and those that go on in their place."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from e3rl.batch import Rollout
from e3rl.engines.abort import MarkerGatedAbort
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import TransformersEngine
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed
from engine_requests import by_place, largest_gap, many

HORIZON, LIMIT, MARKER = 4, 10, "!"
PROMPT = (9, 9)


class Tape:
    """An engine whose rollout of a sample is tape `sample`, from where its prompt leaves off."""

    holds_weights = False

    def __init__(self, tapes: Sequence[str]) -> None:
        self.tapes = tapes
        self.asked: list[RolloutRequest] = []
        self.calls = 0

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        self.asked += requests
        self.calls += 1
        for request in reversed(requests):
            start = len(request.prompt_tokens) - len(PROMPT)
            text = self.tapes[request.sample][start : start + request.max_new_tokens]
            tokens = tuple(ord(letter) for letter in text)
            yield Rollout(
                prompt=request.prompt,
                sample=request.sample,
                prompt_tokens=request.prompt_tokens,
                tokens=tokens,
                logprobs=tuple(-token / 100 for token in tokens),
                temperature=request.temperature,
                truncated=not text.endswith("."),
                text=text,
                policy_version=3,
            )


def answer(prompt: Sequence[int], tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def ask(n: int, seed: int = 0) -> list[RolloutRequest]:
    return [RolloutRequest(0, j, PROMPT, 1.0, derive_seed(seed, j), LIMIT) for j in range(n)]


def sample(tapes: Sequence[str], keep: float, seed: int = 0) -> tuple[list[Rollout], Tape]:
    rule, engine = MarkerGatedAbort(HORIZON, MARKER, keep), Tape(tapes)
    found = list(rule.sample(engine, ask(len(tapes), seed), answer))  # type: ignore[arg-type]
    return sorted(found, key=lambda each: each.sample), engine


def test_ended_rollouts_and_those_with_a_marker_are_whole_and_count_once() -> None:
    rollouts, engine = sample(["ab.", "abc.", "a!cdef.", "abcd!xyzabcd"], keep=1e-9)
    assert [each.text for each in rollouts] == ["ab.", "abc.", "a!cdef.", "abcd"]
    assert [each.weight for each in rollouts] == [1, 1, 1, 0]  # a marker after the horizon is late
    assert [each.truncated for each in rollouts] == [False, False, False, True]
    whole = rollouts[2]
    assert whole.prompt_tokens == PROMPT
    assert whole.tokens == tuple(map(ord, "a!cdef."))
    assert whole.logprobs == tuple(-ord(letter) / 100 for letter in "a!cdef.")
    (second,) = engine.asked[4:]
    assert second.prompt_tokens == PROMPT + tuple(map(ord, "a!cd"))
    assert second.max_new_tokens == LIMIT - HORIZON
    assert second.seed == derive_seed(derive_seed(0, 2), "continued")


def test_of_the_others_a_few_go_on_and_count_for_all() -> None:
    tapes = ["abcdefgh."] * 2000
    rollouts, _ = sample(tapes, keep=0.25)
    kept = [each for each in rollouts if each.weight]
    assert {each.weight for each in kept} == {4.0}
    assert {each.text for each in kept} == {"abcdefgh."}
    assert {each.text for each in rollouts if not each.weight} == {"abcd"}
    assert len(kept) == pytest.approx(500, abs=4 * np.sqrt(2000 * 0.25 * 0.75))
    assert sample(tapes, keep=0.25)[0] == rollouts  # by seeds alone
    assert sample(tapes, keep=0.25, seed=1)[0] != rollouts
    assert all(each.weight == 1 for each in sample(tapes, keep=1.0)[0])


def test_weighted_sums_are_those_of_whole_rollouts_on_average() -> None:
    """500 studies of 40 rollouts, half of which end by the horizon: the mean sum of lengths."""
    tapes = ["ab.", "abcdefgh."] * 20
    sums = []
    for seed in range(500):
        rollouts, _ = sample(tapes, keep=0.2, seed=seed)
        sums.append(sum(each.weight * len(each.tokens) for each in rollouts))
    assert np.mean(sums) == pytest.approx(20 * (3 + 9), abs=4 * np.std(sums) / np.sqrt(500))


def test_ranks_that_share_an_engine_ask_as_often_where_nothing_goes_on() -> None:
    _, ended = sample(["ab."], keep=1.0)
    _, open_ones = sample(["abcdefgh."], keep=1.0)
    assert ended.calls == open_ones.calls == 2


def test_a_rollout_that_a_deadline_cut_is_left_as_it_is() -> None:
    rollouts, engine = sample(["ab"], keep=1.0)  # open at 2 tokens of the 4 it might have had
    assert [(each.text, each.weight) for each in rollouts] == [("ab", 1.0)]
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"horizon": 0}, "horizon=0"),
        ({"keep": 0.0}, "keep=0.0"),
        ({"keep": 1.5}, "keep=1.5"),
        ({"marker": ""}, "marker is empty"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MarkerGatedAbort(**({"horizon": 4, "marker": "!"} | values))  # type: ignore[arg-type]


def test_a_horizon_beyond_the_limit_and_stop_strings_are_refused() -> None:
    rule = MarkerGatedAbort(HORIZON, MARKER)
    rule.check(LIMIT, ())
    with pytest.raises(ValueError, match=r"horizon=4 is not below max_new_tokens=4"):
        rule.check(HORIZON, ())
    with pytest.raises(ValueError, match="stop strings"):
        rule.check(LIMIT, ("###",))


def test_a_marker_that_every_answer_begins_with_is_refused() -> None:
    rule = MarkerGatedAbort(HORIZON, "boxed")
    rule.check(LIMIT, (), prefill="I think")
    with pytest.raises(ValueError, match=r"policy\.prefill='so boxed' holds marker='boxed'"):
        rule.check(LIMIT, (), prefill="so boxed")


@pytest.mark.end_to_end
def test_a_continued_rollout_has_the_policys_log_probs(policy: Policy) -> None:
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 3)
    requests = many(policy, limit=24)
    rule = MarkerGatedAbort(3, "no such text", keep=1.0)
    rollouts = by_place(rule.sample(engine, requests, policy.answer))
    assert sum(len(each.tokens) > 3 for each in rollouts.values()) > 5
    assert largest_gap(policy, list(rollouts.values())) < 1e-4
    for place, whole in by_place(engine.generate(requests)).items():
        assert rollouts[place].tokens[:3] == whole.tokens[:3]
        assert rollouts[place].text == policy.answer(
            whole.prompt_tokens, list(rollouts[place].tokens)
        )
