"""Tokens per second of `VLLMEngine.generate` beside those of `vllm.LLM.generate`, and sync times.

    .venv/bin/python experiments/vllm_throughput/benchmark.py > result.json

Both sample the same requests with the same seeds and settings on the same engine, in turns; rewards
are not scored. Rates are by the clock; their ratio is by the process's CPU time (one thread), which
other work on the machine disturbs less. What e3rl adds: the step loop, reading log-probs, decoding
text, and guarding torch's random state.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from e3rl.engines.base import RolloutRequest
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy import Policy, embedded_folder
from e3rl.seeds import derive_seed

# Layers, width, feed-forward width and query heads of random policies; the vocabulary is the
# embedded policy's.
SIZES = {"random 30M": (8, 512, 2048, 8)}


def random_policy(layers: int, width: int, inner: int, heads: int) -> Policy:
    """A policy of the embedded one's kind with other sizes and fresh weights."""
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
        return Policy(str(folder), random_weights=True)


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


def raw(engine: VLLMEngine, policy: Policy, requests: list[RolloutRequest]) -> Call:
    """vLLM's own `generate`; its prompts and parameters are made before the clock starts."""
    assert engine._loop is not None
    params = [engine._loop._sampling_of(r, policy.stop_ids) for r in requests]
    prompts = [{"prompt_token_ids": list(r.prompt_tokens)} for r in requests]

    def sample() -> int:
        outputs = engine._llm.generate(prompts, params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    return timed(sample)


def ours(engine: VLLMEngine, requests: list[RolloutRequest]) -> Call:
    """The call of the training loop."""
    return timed(lambda: sum(len(r.tokens) for r in engine.generate(requests)))


def measure(policy: Policy, repeats: int, prompts: int, group: int, limit: int) -> dict[str, Any]:
    """Medians over `repeats` turns of both, and of as many syncs."""
    engine = VLLMEngine(VLLMSettings(max_num_seqs=prompts * group), progress=False)
    engine.sync(policy, 0)
    requests = requests_of(policy, prompts, group, limit)
    ours(engine, requests), raw(engine, policy, requests)  # the first calls compile
    calls: dict[str, list[Call]] = {"ours": [], "raw": []}
    syncs, canaries = [], []
    for turn in range(repeats):
        for who in ("ours", "raw") if turn % 2 else ("raw", "ours"):
            call = ours(engine, requests) if who == "ours" else raw(engine, policy, requests)
            calls[who].append(call)
        engine.sync(policy, turn + 1)
        syncs.append(engine.metrics()["engine/sync_s"])
        canaries.append(engine.metrics()["engine/canary_s"])
    engine.close()
    size = sum(p.numel() * p.element_size() for p in policy.parameters())
    counts = {call.tokens for side in calls.values() for call in side}
    if len(counts) != 1:
        raise RuntimeError(f"the two sampled different numbers of tokens: {counts}")
    pairs = zip(calls["ours"], calls["raw"], strict=True)
    ratios = [b.cpu_seconds / a.cpu_seconds for a, b in pairs]
    rates = {who: statistics.median(c.tokens / c.seconds for c in calls[who]) for who in calls}
    return {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "rollouts": len(requests),
        "tokens": counts.pop(),
        "tokens_per_s": round(rates["ours"]),
        "tokens_per_s_raw": round(rates["raw"]),
        "cpu_ratio": round(statistics.median(ratios), 3),
        "cpu_ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "sync_ms": round(1000 * statistics.median(syncs), 1),
        "sync_s_per_gb": round(statistics.median(syncs) / (size / 1e9), 2),
        "canary_ms": round(1000 * statistics.median(canaries), 1),
    }


def main() -> None:
    """Measure every size and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--limit", type=int, default=48, help="new tokens at most")
    parser.add_argument("--embedded-only", action="store_true", help="leave the random ones out")
    given = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
    }
    sizes = {} if given.embedded_only else SIZES
    for name in ("embedded", *sizes):
        policy = random_policy(*sizes[name]) if name in sizes else Policy()
        result[name] = measure(policy, given.repeats, given.prompts, given.group, given.limit)
        print(name, result[name], file=sys.stderr)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
