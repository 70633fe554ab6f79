"""What the training loop costs on top of vLLM, what scoring beside generation gains, sync times.

    .venv/bin/python experiments/vllm_throughput/benchmark.py > result.json
    .venv/bin/python experiments/vllm_throughput/benchmark.py --policies "random 30M" --scoring

Everything is measured in one process on one engine, in turns that change their order:

* throughput: `VLLMEngine.generate` beside `vllm.LLM.generate` on the same requests, seeds and
  settings; rewards are not scored. What e3rl adds is the step loop, reading log-probs, decoding
  text, and guarding torch's random state.
* scoring (`--scoring`): the same step with every rollout handed to the reward workers as soon as
  it is finished, beside one that hands them over when all are; answers are made up, each of them
  new to the pool, and compared by math-verify.
* sync: checks, transfer and the prefix cache's reset, without the canary; also for policies that
  are only synced (`--sync-only`).
* memory (`--device cuda`): what is in use on the GPU at the end, and while the engine sleeps
  (`--sleep-level`).

Ratios are medians over pairs of turns, by the clock and, where one process does all the work, by
its CPU time, which other work on the machine disturbs less.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from e3rl.engines.base import RolloutRequest
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.rewards.maths import build_math_rewards
from e3rl.seeds import derive_seed

# Layers, width, feed-forward width and query heads of random policies; the vocabulary is the
# embedded policy's. Heads are 64 wide: vLLM's attention on CPU serves some widths only.
SIZES = {
    "random 30M": (8, 512, 2048, 8),
    "random 100M": (12, 768, 3072, 12),
    "random 450M": (24, 1152, 4608, 18),
    "random 1.3B": (28, 1536, 8960, 12),  # Qwen2.5-1.5B without its embeddings
}
SERVED = {32, 64, 80, 96, 112, 128, 192, 256}  # head widths
GOLD = r"\sqrt{2}+\frac{1}{3}"


def random_policy(layers: int, width: int, inner: int, heads: int, dtype: str) -> Policy:
    """A policy of the embedded one's kind with other sizes and fresh weights."""
    if width % heads or width // heads not in SERVED:
        raise ValueError(f"heads of {width / heads:g}: vLLM on CPU serves {sorted(SERVED)}")
    config = Policy().model.config
    config.num_hidden_layers, config.hidden_size, config.intermediate_size = layers, width, inner
    config.num_attention_heads, config.num_key_value_heads = heads, 2
    config.layer_types = ["full_attention"] * layers
    config.max_window_layers = layers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config.save_pretrained(folder)
        for file in embedded_folder().glob("*token*"):
            (folder / file.name).write_bytes(file.read_bytes())
        return Policy(str(folder), dtype=dtype, random_weights=True)


def requests_of(policy: Policy, prompts: int, group: int, limit: int) -> list[RolloutRequest]:
    """`group` rollouts for each of `prompts` problems, as a training step asks for them."""
    encoded = [tuple(policy.tokenizer(f"{11 + p}+{83 - p}=?")["input_ids"]) for p in range(prompts)]
    return [
        RolloutRequest(p, s, encoded[p], 1.0, derive_seed("benchmark", p, s), limit)
        for p in range(prompts)
        for s in range(group)
    ]


@dataclass(frozen=True)
class Call:
    """Tokens of one call, and the seconds it took by the clock and by the CPU."""

    tokens: int
    seconds: float
    cpu_seconds: float


def timed(sample: Callable[[], int]) -> Call:
    """Time a call that returns the number of tokens it sampled."""
    clock, cpu = time.perf_counter(), time.process_time()
    tokens = sample()
    return Call(tokens, time.perf_counter() - clock, time.process_time() - cpu)


def in_turns(sides: dict[str, Callable[[], Call]], repeats: int) -> dict[str, list[Call]]:
    """`repeats` calls of each side, in an order that is turned round every time.

    The first call of each compiles and is left out. Raises RuntimeError where the sides sampled
    different numbers of tokens, which would make the comparison void.
    """
    calls: dict[str, list[Call]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            call = sides[name]()
            calls[name] += [call] if turn else []
    counts = {call.tokens for side in calls.values() for call in side}
    if len(counts) != 1:
        raise RuntimeError(f"the sides sampled different numbers of tokens: {counts}")
    return calls


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest quotient of the pairs."""
    quotients = [a / b for a, b in zip(above, below, strict=True)]
    middle = statistics.median(quotients)
    figures = {"median": middle, "least": min(quotients), "greatest": max(quotients)}
    return {name: round(value, 3) for name, value in figures.items()}


def throughput(
    engine: VLLMEngine, policy: Policy, requests: list[RolloutRequest], repeats: int
) -> dict[str, Any]:
    """The call of the training loop beside vLLM's own `generate`.

    vLLM's prompts and parameters are made before its clock starts.
    """
    assert engine._loop is not None
    params = [engine._loop._sampling_of(r, policy.stop_ids) for r in requests]
    prompts = [{"prompt_token_ids": list(r.prompt_tokens)} for r in requests]

    def raw() -> int:
        outputs = engine._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    def ours() -> int:
        return sum(len(r.tokens) for r in engine.generate(requests))

    calls = in_turns({"ours": lambda: timed(ours), "raw": lambda: timed(raw)}, repeats)
    rates = {name: [c.tokens / c.seconds for c in calls[name]] for name in calls}
    cpu_rates = {name: [c.tokens / c.cpu_seconds for c in calls[name]] for name in calls}
    return {
        "rollouts": len(requests),
        "tokens": calls["ours"][0].tokens,
        "tokens_per_s": round(statistics.median(rates["ours"])),
        "tokens_per_s_raw": round(statistics.median(rates["raw"])),
        "ratio_by_clock": ratio(rates["ours"], rates["raw"]),
        "ratio_by_cpu": ratio(cpu_rates["ours"], cpu_rates["raw"]),
    }


def scoring(
    engine: VLLMEngine, requests: list[RolloutRequest], repeats: int, workers: int
) -> dict[str, Any]:
    """Seconds of a step that scores while others are generated, and of one that scores after.

    `saved_s` is the pool's own estimate of the difference, as `time/reward_saved_s` logs it.
    """
    number = itertools.count(1)
    saved: list[float] = []
    pool = build_math_rewards("math_box", workers=workers)
    pool.self_test()

    def collect() -> None:
        started = time.perf_counter()
        pool.collect()
        saved.append(max(0.0, pool.scoring_s - (time.perf_counter() - started)))

    def submit() -> None:
        pool.submit(rf"\boxed{{\sqrt{{2}}+\frac{{{next(number)}}}{{7}}}}", GOLD, "")

    def streamed() -> int:
        tokens = 0
        for rollout in engine.generate(requests):
            tokens += len(rollout.tokens)
            submit()
        collect()
        return tokens

    def after() -> int:
        rollouts = list(engine.generate(requests))
        for _ in rollouts:
            submit()
        pool.collect()
        return sum(len(r.tokens) for r in rollouts)

    sides = {"streamed": lambda: timed(streamed), "after": lambda: timed(after)}
    try:
        calls = in_turns(sides, repeats)
    finally:
        pool.close()
    seconds = {name: [call.seconds for call in calls[name]] for name in calls}
    return {
        "workers": workers,
        "seconds_streamed": round(statistics.median(seconds["streamed"]), 3),
        "seconds_after": round(statistics.median(seconds["after"]), 3),
        "gain_by_clock": ratio(seconds["after"], seconds["streamed"]),
        "saved_s": round(statistics.median(saved[1:]), 3),
    }


def syncs(engine: VLLMEngine, policy: Policy, repeats: int) -> dict[str, Any]:
    """Milliseconds of a sync without and of the canary alone; seconds per GB of weights."""
    times: dict[str, list[float]] = {"engine/sync_s": [], "engine/canary_s": []}
    for version in range(1, repeats + 1):
        engine.sync(policy, version)
        for name, values in times.items():
            values.append(engine.metrics()[name])
    gigabytes = sum(p.numel() * p.element_size() for p in policy.parameters()) / 1e9
    sync = statistics.median(times["engine/sync_s"])
    return {
        "sync_ms": round(1000 * sync, 1),
        "sync_ms_least": round(1000 * min(times["engine/sync_s"]), 1),
        "sync_s_per_gb": round(sync / gigabytes, 2),
        "canary_ms": round(1000 * statistics.median(times["engine/canary_s"]), 1),
    }


def memory(engine: VLLMEngine) -> dict[str, float]:
    """GB of the whole GPU in use after everything above, and while the engine sleeps."""

    def used() -> float:
        free, total = torch.cuda.mem_get_info()
        return round((total - free) / 1e9, 2)

    busy = used()
    engine.rest()
    return {"busy_gb": busy, "asleep_gb": used()}


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """All figures of one policy that were asked for."""
    random = name in SIZES
    policy = random_policy(*SIZES[name], given.dtype) if random else Policy(dtype=given.dtype)
    policy.to(given.device)
    requests = requests_of(policy, given.prompts, given.group, given.limit)
    settings = VLLMSettings(max_num_seqs=len(requests), sleep_level=given.sleep_level)
    engine = VLLMEngine(settings, progress=False)
    result: dict[str, Any] = {"parameters": sum(p.numel() for p in policy.parameters())}
    try:
        engine.sync(policy, 0)
        if name not in given.sync_only:
            result["throughput"] = throughput(engine, policy, requests, given.repeats)
            if given.scoring:
                result["scoring"] = scoring(engine, requests, given.repeats, given.workers)
        result["sync"] = syncs(engine, policy, given.repeats)
        if given.device != "cpu":
            result["memory"] = memory(engine)
    finally:
        engine.close()
    return result


def main() -> None:
    """Measure every policy and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("embedded", *SIZES)
    parser.add_argument("--policies", nargs="*", choices=names, default=["embedded", "random 30M"])
    parser.add_argument("--sync-only", nargs="*", choices=names, default=[], metavar="POLICY")
    parser.add_argument("--scoring", action="store_true", help="also score, streamed and after")
    parser.add_argument("--workers", type=int, default=2, help="reward workers")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each side")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--device", default="cpu", help="cuda: not run yet")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--sleep-level", type=int, default=0, help="GPU only")
    parser.add_argument("--limit", type=int, default=48, help="new tokens at most")
    given = parser.parse_args()
    disable_progress_bar()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }
    for name in dict.fromkeys([*given.policies, *given.sync_only]):
        result[name] = measure(name, given)
        print(name, json.dumps(result[name], indent=1), file=sys.stderr)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
