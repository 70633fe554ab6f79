"""What is tried, in the order of its worth: each stage says what must hold and what it measured."""

import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bench import SPEED, Bench, Figures, Run, StageError

from e3rl.engines.canary import ROUNDING

sys.path.insert(0, str(SPEED))
from inputs import make_policy, make_problems
from works import WORKS, Work

PRODUCT = {"cuda": 8192, "cpu": 1024}  # rows and columns of the matrices
# Nats that no more than a token in fifty may be off: what the canary takes for rounding.
GAPS = {name: ROUNDING[name].tolerance for name in ("float32", "tf32", "bfloat16")}
CACHE_GIB = 4  # of vLLM's keys and values, where it sleeps
FORECAST = 0.05  # relative error of the memory that is predicted


@dataclass(frozen=True)
class Check:
    """Something that must hold."""

    what: str
    holds: bool


Result = tuple[Figures, list[Check]]


@dataclass(frozen=True)
class Stage:
    """Something that is tried.

    Attributes:
        name: as in the table and after --only.
        question: that it answers.
        needs: keys of `bench.NEEDS`.
        run: gives figures and checks; raises StageError where a command fails.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    run: Callable[[Bench], Result]


def machine(bench: Bench) -> Result:
    """How fast products of square matrices are, by precision."""
    figures: Figures = {"torch": torch.__version__}
    if bench.device == "cuda":
        about = torch.cuda.get_device_properties(0)
        figures |= {"GPU": about.name, "GiB": about.total_memory / 2**30}
    for name, dtype, how in (
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "highest"),
    ):
        if name == "tf32" and bench.device == "cpu":
            continue
        torch.set_float32_matmul_precision(how)
        figures[f"{name} TFLOP/s"] = product_rate(bench.device, dtype) / 1e12
    torch.set_float32_matmul_precision("highest")
    return figures, []


def product_rate(device: str, dtype: torch.dtype) -> float:
    """Operations per second of the fastest of some products."""
    size = PRODUCT[device]
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = math.inf
    for _ in range(6):
        started = time.perf_counter()
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best


def numerics(bench: Bench) -> Result:
    text = bench.call([str(Path(__file__).parent / "numerics.py"), bench.device])
    found = json.loads(text.strip().splitlines()[-1])
    figures: Figures = {}
    checks = []
    for name, gaps in found.items():
        figures[f"{name}: gap of 1 in 50, nats"] = gaps["usual"]
        figures[f"{name}: largest"] = gaps["largest"]
        figures[f"{name}: gradient off by"] = gaps["gradient"]
        within = gaps["usual"] <= GAPS[name]
        checks.append(Check(f"{name}: gaps as the canary takes them, {GAPS[name]}", within))
    return figures, checks


def healthy(run: Run, steps: int) -> list[Check]:
    """What holds of every run: all its steps, finite gradients, the right tokens' log-probs."""
    norms = [row["policy/grad_norm"] for row in run.rows if "policy/grad_norm" in row]
    return [
        Check(f"{steps} steps", len(run.rows) == steps),
        Check("finite gradients", bool(norms) and all(map(math.isfinite, norms))),
    ]


def mismatch(run: Run) -> Figures:
    """How far the sampler's log-probs are from the policy's."""
    figures: Figures = {"largest sampler gap": run.largest("policy/mismatch_max")}
    if not math.isnan(gap := run.largest("engine/canary_quartile")):
        figures["canary quartile"] = gap
    return figures


def default_run(bench: Bench) -> Result:
    run = bench.train("default", *bench.embedded("transformers"))
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def default_vllm(bench: Bench) -> Result:
    engine = "vllm_gpu" if bench.device == "cuda" else "vllm"
    run = bench.train("vllm", *bench.embedded(engine), "engine.settings.enforce_eager=true")
    start: Figures = {"start s": run.largest("engine/start_s"), "sync s": run.median("time/sync_s")}
    return run.speed() | start | mismatch(run), healthy(run, bench.sizes.steps)


def bfloat16(bench: Bench) -> Result:
    told = [*bench.embedded(), "trainer.precision=bf16-mixed"]
    if bench.engine != "transformers":
        told.append("engine.settings.dtype=bfloat16")
    run = bench.train("bfloat16", *told)
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def large_overrides(bench: Bench, shape: str, new_tokens: int, prompts: int) -> list[str]:
    """A policy with random weights on random words, rewarded by a hash."""
    size = bench.sizes
    work: Work = replace(
        WORKS[1],
        policy=shape,
        prompts=prompts,
        group=size.group,
        new_tokens=new_tokens,
        prompt_tokens=64,
    )
    made = bench.folder / "inputs"
    made.mkdir(exist_ok=True)
    policy = make_policy(made, shape, fixed=True)
    train, validation = make_problems(made, work, prompts * size.steps)
    return [
        *("experiment=grpo", "data=problem_files", f"data.train.path={train}"),
        *(f"data.validation.path={validation}", "policy=pretrained", f"policy.path={policy}"),
        *("reward=function", f"reward.path={SPEED / 'reward.py'}:score"),
        *("reward.correct_above=0.5", f"prompts_per_step={prompts}", "epochs=1"),
        *(f"rollouts_per_prompt={size.group}", f"max_new_tokens={new_tokens}"),
        *(f"validate_every={size.steps}", f"checkpoint_every={10**6}"),
        "callbacks.pass_at_k.evaluations=[{_target_:e3rl.callbacks.validation_schedule.Evaluation,"
        "name:t1,n:1,temperature:1.0}]",
        *("callbacks.pass_at_k.ks=[1]", "trainer.precision=bf16-mixed"),
        *(
            ["engine=transformers"]
            if bench.engine == "transformers"
            else [f"engine={bench.engine}"]
        ),
    ]


def chunked_head(bench: Bench) -> Result:
    """One layer under a vocabulary of 151,936 words: the logits are nearly all there is."""
    size = bench.sizes
    told = large_overrides(bench, "wide", min(size.new_tokens, 64), size.prompts)
    told = [each for each in told if not each.startswith("engine=")] + ["engine=transformers"]
    column = "gpu_memory_gib" if bench.device == "cuda" else "memory_gib"
    peaks, seconds = {}, {}
    for mode in ("full", "chunked"):
        run = bench.train(f"head-{mode}", *told, f"policy/head={mode}", "policy.head.block=128")
        peaks[mode] = run.last(f"resources/{column}")
        seconds[mode] = run.median("time/update_s")
    figures: Figures = {f"{mode} head, GiB": peak for mode, peak in peaks.items()}
    figures |= {f"{mode} head, update s": each for mode, each in seconds.items()}
    return figures, [Check("chunked takes less memory", peaks["chunked"] < peaks["full"])]


def lora(bench: Bench) -> Result:
    told = ["policy=pretrained", "policy.path=embedded", "policy/lora=linear"]
    run = bench.train("lora", *bench.embedded("transformers"), *told)
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def sleep(level: int) -> Callable[[Bench], Result]:
    """Memory between rollouts: at least half of the cache has to come back while a step trains."""

    def tried(bench: Bench) -> Result:
        run = bench.train(
            f"sleep-{level}",
            *bench.embedded(),
            f"engine.settings.sleep_level={level}",
            f"engine.settings.kv_cache_memory_bytes={CACHE_GIB * 2**30}",
        )
        figures, checks = run.speed() | mismatch(run), healthy(run, bench.sizes.steps)
        if run.used:
            back = run.used[1] - run.used[0]
            figures["given back GiB"] = back
            checks.append(
                Check(f"half of {CACHE_GIB} GiB of cache come back", back > CACHE_GIB / 2)
            )
        return figures, checks

    return tried


def sharded(bench: Bench) -> Result:
    """FSDP2 over all GPUs (or alone), with the optimiser's states in the machine's memory."""
    devices = torch.cuda.device_count() if bench.device == "cuda" else 1
    told = [*bench.embedded(), "trainer=fsdp2", f"trainer.devices={devices}"]
    if bench.device == "cuda":
        told.append("trainer.accelerator=gpu")
    told.append("module.settings.offload_optimizer=true")
    run = bench.train("sharded", *told)
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def second_gpu(bench: Bench) -> Result:
    """A process on the second GPU trains and samples there."""
    run = bench.train("second", *bench.embedded(), "trainer.devices=[1]")
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def tensor_parallel(bench: Bench) -> Result:
    """Two ranks share one engine."""
    told = [*bench.embedded(), "trainer=ddp", "trainer.accelerator=gpu", "trainer.devices=2"]
    run = bench.train("parallel", *told, "engine.settings.tensor_parallel_size=2")
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def nccl(bench: Bench) -> Result:
    """A server on the second GPU gets its weights over NCCL, two steps ahead."""
    second = {"CUDA_VISIBLE_DEVICES": "1"}
    with bench.serve("policy=embedded", "engine/weights=nccl", environment=second) as url:
        told = [*bench.embedded("vllm_server"), "engine/weights=nccl", "rollout.lookahead=2"]
        run = bench.train("nccl", *told, f"engine.urls=[{url}]", "loss/correction=tis")
    return run.speed() | mismatch(run), healthy(run, bench.sizes.steps)


def seeds(bench: Bench) -> Result:
    """The same sampling with a seed for each rollout and without."""
    from e3rl.policy.policy import embedded_folder

    size = bench.sizes
    rollouts = str(size.prompts * max(8, size.group))
    script = str(Path(__file__).parent / "seeds.py")
    told = [script, str(embedded_folder()), bench.device, rollouts, str(size.new_tokens)]
    found = json.loads(bench.call(told).strip().splitlines()[-1])
    return {
        "with seeds s": found["seeds"],
        "without s": found["none"],
        "ratio": found["seeds"] / found["none"],
    }, []


def servers(bench: Bench) -> Result:
    """A server on the same device, beside the trainer, and rollouts two steps ahead."""
    with bench.serve("policy=embedded", "engine.settings.gpu_memory_utilization=0.3") as url:
        told = [*bench.embedded("vllm_server"), "engine/weights=files", "rollout.lookahead=2"]
        run = bench.train("servers", *told, f"engine.urls=[{url}]", "loss/correction=tis")
    steps = bench.sizes.steps
    checks = [
        *healthy(run, steps),
        Check("rollouts two updates old", run.last("policy/age") == min(2, steps - 1)),
    ]
    sync: Figures = {"sync s": run.median("time/sync_s")}
    return run.speed() | sync | mismatch(run), checks


def look_ahead(bench: Bench) -> Result:
    """A step with the next one's sampling beside its update, against one after the other."""
    told = large_overrides(bench, bench.sizes.shape, bench.sizes.new_tokens, bench.sizes.prompts)
    runs = {n: bench.train(f"ahead-{n}", *told, f"rollout.lookahead={n}") for n in (0, 1)}
    seconds = {n: run.median("time/step_s") for n, run in runs.items()}
    longest = max(runs[0].median("time/rollout_s"), runs[0].median("time/update_s"))
    figures: Figures = {
        "s/step": seconds[0],
        "s/step, ahead": seconds[1],
        "longer phase s": longest,
        "age": runs[1].last("policy/age"),
    }
    return figures, [
        Check("rollouts one update old", runs[1].last("policy/age") == 1),
        Check("a step is shorter than one after the other", seconds[1] < seconds[0]),
    ]


def large(bench: Bench) -> Result:
    """The policy of a user's size, and what `debug=plan` had said of its memory."""
    told = large_overrides(bench, bench.sizes.shape, bench.sizes.new_tokens, bench.sizes.prompts)
    plan = bench.call(["-m", "e3rl", "train", *told, "debug=plan"])
    run = bench.train("large", *told)
    figures, checks = run.speed() | mismatch(run), healthy(run, bench.sizes.steps)
    found = re.search(r"memory: peak\s+([\d.]+) (GiB|MiB)", plan)
    if found is None:
        raise StageError(f"debug=plan says nothing of memory:\n{plan}")
    predicted = float(found[1]) / (1024 if found[2] == "MiB" else 1)
    figures["predicted GiB"] = predicted
    if time_of := re.search(r"time: a step .*update ([\d.]+) s", plan):
        figures["predicted update s"] = float(time_of[1])
        ratio = run.median("time/update_s") / max(float(time_of[1]), 1e-9)
        checks.append(Check("the update takes .5 to 2 times its forecast", 0.5 < ratio < 2))
    if run.used:  # a process's context is not forecast, so it is what torch allocated that counts
        error = predicted / run.last("resources/gpu_memory_gib") - 1
        checks.append(Check(f"memory predicted within {FORECAST:.0%}", abs(error) <= FORECAST))
    return figures, checks


def beside_trl(bench: Bench) -> Result:
    """One pair of the speed benchmark; TRL in this environment."""
    place = bench.folder / "trl" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    results = bench.folder / "speed.json"
    work = "equal work, embedded"
    bench.call(
        [
            *(str(SPEED / "measure.py"), "--only", work, "--pairs", "1", "--no-setup"),
            *("--trl", str(place.parent), "--device", bench.device, "--results", str(results)),
            *("--folder", str(bench.folder / "speed"), "--engines", "transformers"),
        ]
    )
    runs = json.loads(results.read_text())["works"][work]["runs"]
    seconds = {side: float(each[-1]["seconds"]) for side, each in runs.items()}
    figures: Figures = {f"{side} s/step": each for side, each in seconds.items()}
    figures["ratio"] = seconds["transformers"] / seconds["trl"]
    return figures, []


def compile_cache(bench: Bench) -> Result:
    """Two starts of a compiled engine; the second finds what the first one compiled."""
    places = {"VLLM_CACHE_ROOT": "vllm-cache", "TORCHINDUCTOR_CACHE_DIR": "inductor-cache"}
    cache = {name: str(bench.folder / place) for name, place in places.items()}
    told = [*bench.embedded(), "engine.settings.enforce_eager=false"]
    starts = [
        bench.train(f"start-{n}", *told, environment=cache).largest("engine/start_s")
        for n in (1, 2)
    ]
    figures: Figures = {"first start s": starts[0], "second start s": starts[1]}
    return figures, [Check("the second start is faster", starts[1] < 0.8 * starts[0])]


STAGES = (
    Stage("machine", "What is this machine, and how fast?", (), machine),
    Stage("numerics", "Do log-probs and gradients agree with float64?", (), numerics),
    Stage("default", "Does the default run, sampled by transformers?", (), default_run),
    Stage("vllm", "Does it run with vLLM, and does the canary let it?", ("vllm",), default_vllm),
    Stage("bfloat16", "Does it run in bfloat16?", (), bfloat16),
    Stage("sleep_1", "Does vLLM give memory back (level 1)?", ("cuda", "vllm"), sleep(1)),
    Stage("sleep_2", "Does vLLM give memory back (level 2)?", ("cuda", "vllm"), sleep(2)),
    Stage("seeds", "What does a seed for each rollout cost?", ("vllm",), seeds),
    Stage("chunked_head", "Does the chunked head save memory?", (), chunked_head),
    Stage("lora", "Do adapters train?", ("peft",), lora),
    Stage("large", "A policy of 1.5 B: speed and memory as forecast?", ("cuda",), large),
    Stage("look_ahead", "Does sampling overlap the update?", ("cuda", "vllm"), look_ahead),
    Stage("compile_cache", "Is the second compiled start faster?", ("cuda", "vllm"), compile_cache),
    Stage("servers", "Rollouts from a server, ahead of the update?", ("vllm",), servers),
    Stage("sharded", "FSDP2, and states in the machine's memory?", (), sharded),
    Stage("second_gpu", "Does a process on the second GPU stay there?", ("two",), second_gpu),
    Stage("tensor_parallel", "Do ranks share an engine?", ("two", "vllm"), tensor_parallel),
    Stage("nccl", "Do weights arrive over NCCL?", ("two", "vllm"), nccl),
    Stage("trl", "TRL's step beside ours?", ("trl",), beside_trl),
)
