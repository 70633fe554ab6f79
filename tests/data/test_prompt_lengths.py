import pytest

from e3rl.data.bad_rows import BadRowsError
from e3rl.data.problem import Problem
from e3rl.data.problems import ProblemSet
from e3rl.data.prompt_lengths import UnknownTokensError, check_prompt_lengths


def encode(problem):
    return problem.prompt, [ord(character) for character in problem.prompt]


def problem_set(prompts):
    problems = tuple(Problem(f"f:{row}", prompt, "1", "s") for row, prompt in prompts.items())
    return ProblemSet(problems, "f.jsonl", tuple(prompts), {"missing answer": 1})


def test_prompts_up_to_the_limit_pass():
    problems = problem_set({0: "a", 2: "abc"})
    assert check_prompt_lengths(problems, encode, 3) == (problems, 3)


def test_over_long_and_empty_prompts_are_reported_together_with_their_rows():
    problems = problem_set({0: "abcd", 2: "abc", 5: ""})
    with pytest.raises(BadRowsError) as error:
        check_prompt_lengths(problems, encode, 3)
    reasons = [(bad.row, bad.faults[0].reason) for bad in error.value.bad]
    assert reasons == [(0, "over-long prompt"), (5, "empty prompt")]
    assert "f.jsonl: 2 of 3 rows are bad" in str(error.value)
    assert "'f:0' has 4 tokens, 3 are allowed; shorten it or raise max_" in str(error.value)


def test_skipped_prompts_are_counted_beside_what_was_dropped_before():
    problems = problem_set({0: "abcd", 2: "abc", 5: "", 6: "abcde"})
    with pytest.warns(UserWarning, match="dropped 3 of 4 rows"):
        kept, longest = check_prompt_lengths(problems, encode, 3, on_bad_row="skip")
    assert [p.id for p in kept] == ["f:2"]
    assert longest == 3  # of those that are left
    assert kept.rows == (2,)
    assert kept.dropped == {"missing answer": 1, "over-long prompt": 2, "empty prompt": 1}


def test_a_limit_below_one_token_is_refused():
    with pytest.raises(ValueError, match="max_prompt_tokens is 0"):
        check_prompt_lengths(problem_set({0: "a"}), encode, 0)


def encode_letters(problem):
    if strange := set(problem.prompt) - set("abc"):
        raise UnknownTokensError(f"no tokens for {sorted(strange)} in {problem.id!r}")
    return encode(problem)


def test_prompts_that_the_tokenizer_cannot_spell_are_bad_rows_too():
    problems = problem_set({0: "ab", 3: "a?"})
    with pytest.raises(BadRowsError, match=r"no tokens for \['\?'\] in 'f:3'; take a policy that"):
        check_prompt_lengths(problems, encode_letters, 3)
    with pytest.warns(UserWarning, match="unknown tokens: 1"):
        kept, _ = check_prompt_lengths(problems, encode_letters, 3, on_bad_row="skip")
    assert kept.dropped == {"missing answer": 1, "unknown tokens": 1}
