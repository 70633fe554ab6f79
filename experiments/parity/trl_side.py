"""A whole run of GRPO by TRL with the hyper-parameters of `experiment=grpo`, in TRL's environment.

    build/trl/bin/python experiments/parity/trl_side.py SETTINGS.json

Writes a row per step (what TRL logs), every completion with its reward, and the policy after the
steps that the settings name.
"""

import json
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

BOXED = re.compile(r"\\boxed\{\s*(-?\d+)\s*\}")


class StepRows(TrainerCallback):
    """A row per optimiser step, and the weights where they are wanted."""

    def __init__(self, folder: Path, kept: list[int], tokenizer: Any) -> None:
        self.folder, self.kept, self.tokenizer = folder, kept, tokenizer
        self.last = time.perf_counter()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.last = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if "completions/mean_length" not in logs:  # the summary of the run
            return
        now = time.perf_counter()
        row = {"step": state.global_step, "seconds": now - self.last, **logs}
        self.last = now
        append(self.folder / "rows.jsonl", [row])

    def on_step_end(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        if state.global_step in self.kept:
            place = self.folder / f"step-{state.global_step:06d}"
            kw["model"].save_pretrained(place)
            self.tokenizer.save_pretrained(place)


class Judge:
    """1 where the integer in the last box is the answer; keeps what it saw."""

    __name__ = "box"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "completions.jsonl"

    def __call__(
        self,
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        answer: list[str],
        **columns: Any,
    ) -> list[float]:
        rows = []
        given = zip(prompts, completions, completion_ids, answer, strict=True)
        for prompt, text, tokens, wanted in given:
            found = BOXED.findall(text)
            right = float(bool(found) and int(found[-1]) == int(wanted))
            row = {"prompt": prompt, "completion": text, "tokens": tokens, "answer": wanted}
            rows.append({**row, "reward": right})
        append(self.path, rows)
        return [row["reward"] for row in rows]


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def settings_of(given: dict[str, Any]) -> GRPOConfig:
    """`experiment=grpo` in TRL's words; what is not named has the same default on both sides."""
    rows = given["prompts_per_step"] * given["group"]
    return GRPOConfig(
        output_dir=given["folder"],
        max_steps=given["steps"],
        per_device_train_batch_size=given["micro_rows"],
        gradient_accumulation_steps=rows // given["micro_rows"],
        num_generations=given["group"],
        max_completion_length=given["max_new_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=given["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        num_iterations=1,
        loss_type="dapo",  # the mean over the tokens of the step, as aggregation=token_mean
        scale_rewards="group",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        model_init_kwargs={"dtype": "float32"},
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        seed=given["seed"],
    )


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(given["folder"])
    torch.set_num_threads(1)
    problems = load_dataset("json", data_files=given["problems"], split="train", cache_dir=folder)
    trainer = GRPOTrainer(
        model=given["policy"],
        reward_funcs=Judge(folder),
        args=settings_of(given),
        train_dataset=problems,
    )
    trainer.add_callback(StepRows(folder, given["kept"], trainer.processing_class))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    names = ("torch", "trl", "transformers", "accelerate")
    (folder / "about.json").write_text(json.dumps({name: version(name) for name in names}))


if __name__ == "__main__":
    main()
