"""Policies and problem files of the benchmark, made from seeds in a folder; none is stored."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast
from works import SHAPES, Shape, Work

from e3rl.data.arithmetic import arithmetic_problems
from e3rl.policy.policy import embedded_folder

END = 1  # the token that ends a completion
END_SHARE = (
    0.02  # of a random policy's vocabulary does where lengths are free: some 20 of 24 tokens
)


def make_policy(folder: Path, name: str, fixed: bool) -> Path:
    """A folder with config, weights and tokenizer; made once.

    With `fixed` its completions never end by themselves, whoever samples.
    """
    place = folder / f"{name}-{'fixed' if fixed else 'free'}"
    if (place / "done").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    ends = END
    if name == "embedded":
        shutil.copytree(embedded_folder("embedded_arithmetic"), place)
    else:
        shape = SHAPES[name]
        make_random_weights(place, shape)
        word_tokenizer(shape.vocabulary).save_pretrained(place)
        ends = END if fixed else list(range(END, round(END_SHARE * shape.vocabulary)))
    set_ends(place, ends)
    if fixed:
        forbid_the_end(place)
    (place / "done").touch()
    return place


@torch.no_grad()
def forbid_the_end(folder: Path) -> None:
    """Change weights so that the logit of the end token is always far below the others.

    The last element of the residual stream gets a constant that no layer writes to, and the output
    layer's row of the end token answers it. For models with RMS norms and no bias there.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[-1] = 0
        layer.mlp.down_proj.weight[-1] = 0
    model.model.norm.weight[-1] = 1
    model.get_input_embeddings().weight[:, -1] = 0.2
    model.get_output_embeddings().weight[END, -1] = -10_000
    model.save_pretrained(folder)


def make_random_weights(folder: Path, shape: Shape) -> None:
    """Config and weights in float32, drawn from seed 0."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word for every token of the vocabulary, so that texts are as different as tokens are."""
    special = ["<pad>", "<eos>", "<unk>"]
    words = [*special, *(f"w{i}" for i in range(len(special), vocabulary))]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def set_ends(folder: Path, ends: int | list[int]) -> None:
    """Write the tokens that end a completion into the generation config."""
    path = folder / "generation_config.json"
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings | {"eos_token_id": ends, "pad_token_id": 0}, indent=1))


def make_problems(folder: Path, work: Work, count: int | None = None) -> tuple[Path, Path]:
    """Files of the problems to train on and of one to validate on, as both sides read them; made
    once."""
    count = count or work.problems
    dead = round(work.forced_dead * count)
    length = work.prompt_tokens or ""
    name = f"{work.policy}-{work.questions}{length}-{work.judge}-{dead}-of-{count}"
    train, validation = folder / f"{name}.jsonl", folder / f"{name}-validation.jsonl"
    if validation.is_file():  # written last
        return train, validation
    marks = [i < dead for i in range(count)]
    random.Random(1).shuffle(marks)
    problems = [
        {"prompt": prompt, "answer": answer, "judge": work.judge, "dead": mark}
        for (prompt, answer), mark in zip(questions(work, count + 1), [*marks, False], strict=False)
    ]
    write_rows(train, problems[:-1])
    write_rows(validation, problems[-1:])
    return train, validation


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def questions(work: Work, count: int) -> Iterator[tuple[str, str]]:
    """Different prompts with their answers."""
    if work.questions == "arithmetic":
        for problem in arithmetic_problems("train", size=count, seed=0):
            yield str(problem.prompt), str(problem.answer)
    elif work.questions == "sums":
        places = itertools.product(range(11, 99), repeat=4)
        for a, b, c, d in itertools.islice(places, count):
            yield f"{a}+{b}-{c}+{d}=?", str(a + b - c + d)
    else:
        draw = random.Random(0)
        top = SHAPES[work.policy].vocabulary
        while True:  # the first words of a vocabulary may end a completion
            words = (f"w{draw.randrange(top // 10, top)}" for _ in range(work.prompt_tokens or 1))
            yield " ".join(words), "0"
