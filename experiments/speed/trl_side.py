"""GRPO by TRL on one piece of work, in TRL's own environment.

    build/trl/bin/python experiments/speed/trl_side.py SETTINGS.json

Writes a row per step into the file that the settings name: seconds by phase, tokens, the share of
dead groups. Phases are those that TRL itself profiles; what it would send to a logger is kept.
"""

import json
import sys
import time
from collections import defaultdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.extras.profiling import ProfilingContext

sys.path.insert(0, str(Path(__file__).parent))
from reward import score

SPENT: dict[str, float] = defaultdict(float)  # seconds by profiled name since the last row


def keep(self: ProfilingContext, duration: float) -> None:
    SPENT[self.name.partition(".")[2]] += duration


class StepRows(TrainerCallback):
    """One row per optimiser step, which here is one per generation."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = Path(path)
        self.rows = rows
        self.last = time.perf_counter()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.last = time.perf_counter()
        SPENT.clear()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        if "completions/mean_length" not in logs:  # the summary of the run
            return
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        rollout = SPENT["transformers.generate"] + SPENT["vLLM.generate"] + SPENT["sync_weights"]
        prepared = SPENT["_prepare_inputs"]
        row = {
            "seconds": seconds,
            "rollout": rollout,
            "reward": SPENT["_calculate_rewards"],
            "update": seconds - prepared,
            "rest": prepared - rollout - SPENT["_calculate_rewards"],
            "tokens": logs["completions/mean_length"] * self.rows,
            "dead": logs["frac_reward_zero_std"],
        }
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        SPENT.clear()


def rewards(completions: list[str], **columns: Any) -> list[float]:
    """TRL's form of the reward."""
    wanted = zip(*(columns[name] for name in ("answer", "prompts", "judge", "dead")), strict=True)
    return [score(text, *row) for text, row in zip(completions, wanted, strict=True)]


def settings_of(given: dict[str, Any]) -> GRPOConfig:
    """TRL as fast as it goes here: no recomputed activations, no logger, no checkpoint."""
    rows = given["prompts"] * given["group"]
    on_gpu = given["device"] == "cuda"
    return GRPOConfig(
        output_dir=given["folder"],
        max_steps=given["steps"],
        per_device_train_batch_size=given["micro_rows"],
        gradient_accumulation_steps=rows // given["micro_rows"],
        num_generations=given["group"],
        max_completion_length=given["new_tokens"],
        temperature=1.0,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.0,
        epsilon=0.2,
        num_iterations=1,
        loss_type="dapo",  # the mean over the tokens of the step, whatever the micro-batches
        scale_rewards="group",
        gradient_checkpointing=False,
        bf16=given["precision"] == "bfloat16",
        use_cpu=not on_gpu,
        use_vllm=on_gpu and find_spec("vllm") is not None,
        cache_implementation=given["cache"],
        model_init_kwargs={"dtype": "float32"},
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        save_strategy="no",
        seed=1,
    )


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    ProfilingContext._log_metrics = keep
    trainer = GRPOTrainer(
        model=given["policy"],
        reward_funcs=rewards,
        args=settings_of(given),
        train_dataset=load_dataset(
            "json", data_files=given["problems"], split="train", cache_dir=given["folder"]
        ),
        callbacks=[StepRows(given["rows"], given["prompts"] * given["group"])],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    names = ("torch", "trl", "transformers", "accelerate")
    about = {name: version(name) for name in names} | {"threads": torch.get_num_threads()}
    Path(given["about"]).write_text(json.dumps(about))


if __name__ == "__main__":
    main()
