"""How the embedded policies were made; the command `e3rl.warm_start` says from what."""

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from e3rl.policy.demonstrations import BOX_CLOSE, BOX_OPEN, TASKS, WORDS, Task
from e3rl.seeds import derive_seed

CHARACTERS = "0123456789+-*/%()=,?x"
PAD, END, UNKNOWN = "<pad>", "<eos>", "<unk>"
WARM_UP_STEPS = 100
FINAL_LR_SHARE = 0.03


def build_tokenizer() -> object:
    """Character-level tokenizer; the connectives and the box are single tokens of their own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [PAD, END, UNKNOWN, *CHARACTERS, *WORDS, BOX_OPEN, BOX_CLOSE]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    pattern = "|".join([*WORDS, r" \\boxed\{", "."])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def build_model(vocabulary: int, seed: int) -> torch.nn.Module:
    """A Qwen2 of half a million parameters; the head is not tied, so every engine can update it."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(derive_seed("warm_start", seed))
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    )


def batches(
    tokenizer: object, task: Task, size: int, seed: int, pool: int = 32
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens (size, t), labels (size, t)) of similar lengths; -100 = not trained on."""
    rng = random.Random(derive_seed("warm_start", seed, "demonstrations"))
    while True:
        pairs = []
        for _ in range(pool * size):
            question, completion = task.demonstrate(rng)
            prompt = tokenizer(question)["input_ids"]  # type: ignore[operator]
            answer = tokenizer(completion + END)["input_ids"]  # type: ignore[operator]
            pairs.append((prompt, answer))
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        starts = list(range(0, len(pairs), size))
        rng.shuffle(starts)
        for start in starts:
            yield _pad(pairs[start : start + size])


def _pad(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    tokens = torch.zeros(len(pairs), width, dtype=torch.int64)
    labels = torch.full((len(pairs), width), -100, dtype=torch.int64)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return tokens, labels


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine to `FINAL_LR_SHARE` of the peak."""
    if step < WARM_UP_STEPS:
        return peak * (step + 1) / WARM_UP_STEPS
    progress = (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)
    share = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))
    return peak * share


def train(task: str, steps: int, batch_size: int, peak: float, seed: int, out: Path) -> None:
    """Train from scratch on demonstrations of one of TASKS; writes model and tokenizer to `out`."""
    taught = TASKS[task]
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), seed)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    data = batches(tokenizer, taught, batch_size, seed)
    started, mean_loss = time.monotonic(), 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        tokens, labels = next(data)
        logits = model(input_ids=tokens, use_cache=False).logits
        # A sum: batches hold similar lengths, and a mean would favour the tokens of short ones.
        total = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="sum")
        optimizer.zero_grad()
        (total / (batch_size * taught.typical_length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = total.item() / int((labels[:, 1:] != -100).sum())
        mean_loss += (loss - mean_loss) / min(step + 1, 100)
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - started
            print(f"step {step + 1}/{steps}  loss {mean_loss:.4f}  {seconds:.0f} s", flush=True)
    model.save_pretrained(out)  # type: ignore[operator]
    tokenizer.save_pretrained(out)  # type: ignore[attr-defined]
    print(f"wrote {out}")
