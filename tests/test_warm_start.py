import random
import re
import sys

import pytest
import torch

from e3rl import warm_start as command
from e3rl.data import carries
from e3rl.data.arithmetic import FAMILIES, LEVELS, N_BUCKETS, SPLIT_BUCKETS, draw
from e3rl.policy import warm_start as training
from e3rl.policy.demonstrations import (
    BOX_CLOSE,
    BOX_OPEN,
    P_BARE,
    P_DIRECT,
    P_LONG,
    TASKS,
    WORDS,
    demonstrate_arithmetic,
    demonstrate_chain,
)
from e3rl.policy.policy import Policy
from e3rl.policy.warm_start import (
    END,
    WARM_UP_STEPS,
    batches,
    build_model,
    build_tokenizer,
    learning_rate,
    train,
)
from e3rl.seeds import derive_seed


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def problems(n: int = 200):
    rng = random.Random(1)
    return [
        draw("warm_start", rng.randrange(len(FAMILIES)), rng.choice(LEVELS), rng) for _ in range(n)
    ]


def chains(n: int = 200):
    rng = random.Random(1)
    return [carries.draw("warm_start", rng.choice(carries.CARRIES), rng) for _ in range(n)]


def steps_of(text: str) -> list[tuple[str, int]]:
    shown = re.split("|".join(WORDS), text.split(BOX_OPEN)[0])[1:]
    return [(step.rsplit("=", 1)[0], int(step.rsplit("=", 1)[1])) for step in shown]


def answer_of(text: str) -> int:
    assert text.count(BOX_OPEN) == 1
    return int(text.split(BOX_OPEN)[1].removesuffix(BOX_CLOSE))


# -- tokenizer


def test_demonstrations_survive_the_tokenizer(tokenizer):
    rng = random.Random(0)
    unknown = tokenizer.unk_token_id
    pairs = [(problem.prompt, demonstrate_arithmetic(problem, rng)) for problem in problems()]
    pairs += [(chain.prompt, demonstrate_chain(chain, rng)) for chain in chains()]
    for pair in pairs:
        for text in pair:
            ids = tokenizer(text)["input_ids"]
            assert unknown not in ids
            assert tokenizer.decode(ids) == text


def test_connectives_and_the_box_are_single_tokens_and_all_else_is_characters(tokenizer):
    text = f"{WORDS[0]}12+3=15{BOX_OPEN}15{BOX_CLOSE}"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert pieces == [WORDS[0], *"12+3=15", BOX_OPEN, *"15", BOX_CLOSE]


def test_the_end_token_is_one_id_and_is_left_out_of_texts(tokenizer):
    ids = tokenizer("7" + END)["input_ids"]
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "7"


def test_the_shipped_policy_has_the_tokenizer_and_the_shape_that_are_made_here(policy, tokenizer):
    assert policy.tokenizer.get_vocab() == tokenizer.get_vocab()
    made = build_model(len(tokenizer), seed=0).state_dict()
    shipped = policy.model.state_dict()
    assert {k: v.shape for k, v in made.items()} == {k: v.shape for k, v in shipped.items()}
    text = f"{WORDS[3]}4*5=20{BOX_OPEN}20{BOX_CLOSE}"
    assert policy.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]


# -- demonstrations


def test_without_mistakes_every_demonstration_ends_in_the_gold_answer(monkeypatch):
    monkeypatch.setattr("e3rl.policy.demonstrations.P_MISTAKE", 0.0)
    rng = random.Random(0)
    for problem in problems():
        text = demonstrate_arithmetic(problem, rng)
        assert answer_of(text) == problem.answer
        for step in re.split("|".join(WORDS), text.split(BOX_OPEN)[0])[1:]:
            expression, value = step.rsplit("=", 1)  # swapped operands or not
            assert eval(expression) == int(value), text


def test_with_certain_mistakes_no_single_step_is_right(monkeypatch):
    monkeypatch.setattr("e3rl.policy.demonstrations.P_MISTAKE", 1.0)
    monkeypatch.setattr("e3rl.policy.demonstrations.P_DIRECT", 0.0)
    rng = random.Random(0)
    for problem in problems(50):
        text = demonstrate_arithmetic(problem, rng)
        steps = re.split("|".join(WORDS), text.split(BOX_OPEN)[0])[1:]
        assert steps
        for step in steps:
            expression, value = step.rsplit("=", 1)
            if "/" not in expression and not expression.endswith("%0"):
                assert eval(expression) != int(value)


def test_some_demonstrations_are_wrong_and_some_show_no_step():
    rng = random.Random(0)
    made = [(p, demonstrate_arithmetic(p, rng)) for p in problems(1000)]
    direct = sum(text.startswith(BOX_OPEN) for _, text in made) / 1000
    wrong = sum(answer_of(text) != p.answer for p, text in made) / 1000
    assert abs(direct - P_DIRECT) < 0.05
    assert 0.1 < wrong < 0.4
    assert {word for word in WORDS if any(word in text for _, text in made)} == set(WORDS)


def test_a_chain_done_the_long_way_writes_the_units_first_and_is_right(monkeypatch):
    monkeypatch.setattr("e3rl.policy.demonstrations.P_LONG", dict.fromkeys("+-*", 1.0))
    monkeypatch.setattr("e3rl.policy.demonstrations.P_BARE", 0.0)
    worked = carries.Chain(81, (("-", 48), ("*", 3), ("+", 29)))
    text = demonstrate_chain(worked, random.Random(0))
    assert [f"{left}={right}" for left, right in steps_of(text)] == [
        *("11-8=3", "81-48=33", "3*3=9", "33*3=99", "9+9=18", "99+29=128"),
    ]
    assert answer_of(text) == 128
    for chain in chains():
        text = demonstrate_chain(chain, random.Random(1))
        assert answer_of(text) == chain.answer
        assert all(eval(expression) == value for expression, value in steps_of(text))


def test_a_chain_done_the_short_way_goes_on_with_what_it_got(monkeypatch):
    monkeypatch.setattr("e3rl.policy.demonstrations.P_LONG", dict.fromkeys("+-*", 0.0))
    monkeypatch.setattr("e3rl.policy.demonstrations.P_BARE", 0.0)
    worked = carries.Chain(81, (("-", 48), ("*", 3), ("+", 29)))
    text = demonstrate_chain(worked, random.Random(0))
    assert steps_of(text) == [("81-48", 43), ("43*3", 129), ("129+29", 148)]
    assert answer_of(text) == 148
    assert all(
        (answer_of(demonstrate_chain(chain, random.Random(1))) == chain.answer)
        == (chain.carries == 0)
        for chain in chains()
    )


def test_ways_are_as_frequent_as_they_are_meant_to_be():
    rng = random.Random(0)
    one = {sign: [0, 0] for sign in P_LONG}
    bare = 0
    for chain in chains(2000):
        text = demonstrate_chain(chain, rng)
        bare += text.startswith(BOX_OPEN)
        if len(chain.operations) == 1 and not text.startswith(BOX_OPEN):
            counts = one[chain.operations[0][0]]
            counts[0] += len(steps_of(text)) == 2
            counts[1] += 1
    assert abs(bare / 2000 - P_BARE) < 0.02
    for sign, (long, total) in one.items():
        assert abs(long / total - P_LONG[sign]) < 4 * (P_LONG[sign] / total) ** 0.5


# -- batches


@pytest.mark.parametrize("task", TASKS)
def test_batches_train_on_answers_only_and_use_prompts_of_their_own_split(tokenizer, task):
    data = batches(tokenizer, TASKS[task], size=8, seed=0, pool=4)
    for _ in range(6):
        tokens, labels = next(data)
        assert tokens.shape == labels.shape
        assert tokens.shape[0] == 8
        for row, label in zip(tokens.tolist(), labels.tolist(), strict=True):
            start = next(i for i, x in enumerate(label) if x != -100)
            end = max(i for i, x in enumerate(label) if x != -100) + 1
            assert row[start:end] == label[start:end]
            assert label[end - 1] == tokenizer.eos_token_id
            assert all(x == tokenizer.pad_token_id for x in row[end:])
            prompt = tokenizer.decode(row[:start])
            assert prompt.endswith("=?")
            bucket = derive_seed(task, prompt) % N_BUCKETS
            assert bucket in SPLIT_BUCKETS["warm_start"]


def test_batches_follow_the_seed(tokenizer):
    first, again, other = (
        [next(data)[0].tolist() for _ in range(2)]
        for data in (batches(tokenizer, TASKS["carries"], 4, seed, pool=2) for seed in (0, 0, 1))
    )
    assert first == again
    assert first != other


# -- training


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_share_of_it():
    steps = 1000
    rates = [learning_rate(step, steps, 2.0) for step in range(steps)]
    peak = rates.index(max(rates))
    assert rates[0] == pytest.approx(2.0 / WARM_UP_STEPS)
    assert max(rates) == pytest.approx(2.0)
    assert abs(peak - WARM_UP_STEPS) <= 1
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.06, abs=1e-3)


def loss_of(policy: Policy) -> float:
    """Mean loss per answer token on demonstrations that training has not seen."""
    data = batches(policy.tokenizer, TASKS["carries"], 32, seed=99, pool=1)
    tokens, labels = next(data)
    with torch.no_grad():
        logits = policy.model(input_ids=tokens).logits
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:]))


@pytest.mark.end_to_end
def test_a_short_training_lowers_the_loss_and_repeats_to_the_bit(tmp_path, capsys):
    for name in ("first", "second"):
        train("carries", steps=20, batch_size=8, peak=2e-2, seed=0, out=tmp_path / name)
    first, second = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("first", "second"))
    assert first == second
    untrained = Policy(str(tmp_path / "first"))
    untrained.model.load_state_dict(build_model(untrained.vocabulary_size, seed=0).state_dict())
    trained = Policy(str(tmp_path / "first"))
    assert loss_of(trained) < loss_of(untrained) - 0.5
    assert f"wrote {tmp_path / 'first'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--steps", "0", "--steps 0: use more than 0"),
        ("--steps", "-1", "--steps -1: use more than 0"),
        ("--batch-size", "0", "--batch-size 0: use more than 0"),
        ("--lr", "nan", "--lr nan: use more than 0"),
        ("--out", "file", "--out file: "),
    ],
)
def test_no_weights_are_written_over_others_where_nothing_was_trained(
    option, value, words, tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "train", None)
    monkeypatch.setattr(sys, "argv", ["warm_start", option, value])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
