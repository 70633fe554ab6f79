"""How long a step takes where rollouts are sampled by servers that need longer than an update.

    e3rl serve policy=embedded serve.port=8001          # and another at 8002
    .venv/bin/python experiments/server_overlap/measure.py http://127.0.0.1:8001,http://127.0.0.1:8002
    .venv/bin/python experiments/server_overlap/measure.py http://127.0.0.1:8001 --throughput 5
    .venv/bin/python experiments/server_overlap/measure.py --stand-ins 5
    .venv/bin/python experiments/server_overlap/measure.py --uneven 5
    .venv/bin/python experiments/server_overlap/measure.py --table      # what has been measured

Servers and trainer share the cores of this machine, so real sampling cannot overlap with an update.
`--seconds` are added to what each step's sampling takes and to what its update takes, in which
nobody computes: as if both were slower, and servers elsewhere. Trains on the embedded default with
`rollout.lookahead` 0 and 1, and takes medians over the steps behind the first two. `--throughput`
compares rollouts through the engine with requests to the server by aiohttp alone. `--stand-ins`
takes one and two servers of the tests, which speak vLLM's routes and wait .3 s for each token.
`--uneven` has a stand-in sample, and makes both sampling and update of each step one or `SECONDS`
seconds longer, as its number decides. Everything is appended to results.jsonl, and the README's
table made from that.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import aiohttp
from hydra import compose, initialize_config_dir

from e3rl.batch import Rollout
from e3rl.config.composition import conf_dir, register_resolvers
from e3rl.engines.base import RolloutRequest
from e3rl.engines.servers.files import FileTransfer
from e3rl.engines.servers.fleet import request_body
from e3rl.engines.vllm_server import VLLMServerEngine
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy
from e3rl.runs import run as running
from e3rl.seeds import derive_seed
from e3rl.training.module import GRPOModule

WARM_UP = 2
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests"))  # where stand-ins for servers are
RESULTS, README = HERE / "results.jsonl", HERE / "README.md"
BEGIN, END = "<!-- table: measured -->", "<!-- end -->"


class SlowServerEngine(VLLMServerEngine):
    """Servers that take `seconds` more for a call, and leave the CPU alone meanwhile: always as
    many, or in turn."""

    seconds: Iterator[float] = repeat(0.0)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        if requests[0].may_be_cut:  # not in validation
            time.sleep(next(self.seconds))
        yield from super().generate(requests)


def one_or(seconds: float, stream: str) -> Iterator[float]:
    """One second or so many, by a coin for each step."""
    return ((seconds if derive_seed(stream, step) % 2 else 1.0) for step in count())


def steps(
    urls: str, lookahead: int, prompts: int, n: int = 8, *more: str
) -> list[dict[str, float]]:
    """Train on the embedded default for n steps; the rows of its ledger."""
    register_resolvers()
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            *(f"rollout.lookahead={lookahead}", "epochs=1", f"data.train.size={n * prompts}"),
            *(f"paths.run_dir={folder}/run", "logger=ledger_only", "control=null"),
            *("data.validation.size=8", f"validate_every={n}", "checkpoint_every=1000"),
            *("temperature=fixed", "budget=uniform", "sweep.name=overlap", "figures=false"),
            *(f"prompts_per_step={prompts}", "module.settings.skip_zero_advantage=off"),
            *("loss/correction=tis", "trainer.enable_progress_bar=false"),
            *("engine=vllm_server", "engine._target_=__main__.SlowServerEngine"),
            *(f"engine.urls=[{urls}]", "engine.progress=false", *more),
        )
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            cfg = compose("train", list(settings))
        running.execute(cfg)
        rows = read_rows(Path(folder) / "run" / "metrics.jsonl")
    return [row for row in rows if row["kind"] == "train"][WARM_UP:-1]


def overlap(urls: str, seconds: float, prompts: int) -> dict[str, Any]:
    """Seconds of sampling, update and step without look-ahead, and of a step with it."""
    found: dict[str, Any] = {"servers": urls.count(",") + 1, "added_s": seconds}
    for lookahead in (0, 1):
        SlowServerEngine.seconds = repeat(seconds)
        with slow_updates(repeat(seconds)):
            rows = steps(urls, lookahead, prompts)
        sampling, update, step = (
            median(row[f"time/{name}_s"] for row in rows) for name in ("rollout", "update", "step")
        )
        longer = max(sampling, update)
        found[f"lookahead_{lookahead}"] = {
            "sampling_s": sampling,
            "update_s": update,
            "step_s": step,
            "step_over_longer": step / longer,
        }
    return found


@contextmanager
def slow_updates(seconds: Iterator[float]) -> Iterator[None]:
    """Each update takes so many seconds more."""
    update = GRPOModule.training_step

    def slow(module: GRPOModule, batch: Any, batch_idx: int) -> None:
        started = time.monotonic()
        update(module, batch, batch_idx)
        time.sleep(next(seconds))
        batch.metrics["time/update_s"] = time.monotonic() - started

    GRPOModule.training_step = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        GRPOModule.training_step = update  # type: ignore[method-assign]


def uneven(seconds: float, prompts: int = 2, n: int = 32) -> dict[str, Any]:
    """Seconds of a step where sampling and update take now longer, now shorter."""
    from server_stand_in import stand_ins

    found: dict[str, Any] = {"uneven_s": seconds}
    for lookahead in (0, 1, 2, 4):
        SlowServerEngine.seconds = one_or(seconds, "sampling")
        with stand_ins(Policy("embedded"), 1) as (server,), slow_updates(one_or(seconds, "update")):
            rows = steps(server.url, lookahead, prompts, n, "rollouts_per_prompt=2")
        sampling, updating, step = (
            fmean(row[f"time/{name}_s"] for row in rows) for name in ("rollout", "update", "step")
        )
        found[f"lookahead_{lookahead}"] = {
            "sampling_s": sampling,
            "update_s": updating,
            "step_s": step,
            "step_over_longer": step / max(sampling, updating),
        }
    return found


def wanted(policy: Policy, n: int) -> list[RolloutRequest]:
    prompt = tuple(policy.tokenizer("12+34=?")["input_ids"])
    return [RolloutRequest(0, i, prompt, 1.0, derive_seed(i), 80) for i in range(n)]


async def ask(url: str, requests: Sequence[RolloutRequest], stop: Sequence[int], n: int) -> int:
    """Tokens of all completions, asked for by aiohttp alone, `n` at a time."""
    room, tokens = asyncio.Semaphore(n), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(request: RolloutRequest) -> int:
            body = request_body(request, f"raw-{request.sample}", stop, request.max_new_tokens)
            async with room, session.post(f"{url}/inference/v1/generate", json=body) as answer:
                return len((await answer.json())["choices"][0]["token_ids"])

        tokens = sum(await asyncio.gather(*(one(request) for request in requests)))
    return tokens


def throughput(url: str, turns: int, n: int = 512, at_once: int = 256) -> dict[str, Any]:
    """Tokens per second through the engine and by bare requests to the same server, in turns."""
    policy = Policy("embedded")
    engine = VLLMServerEngine([url], FileTransfer(), at_once=at_once, progress=False)
    engine.sync(policy, 0)
    requests, speeds = wanted(policy, n), {"engine": [], "raw": []}
    for _ in range(turns):
        started = time.monotonic()
        tokens = sum(len(rollout.tokens) for rollout in engine.generate(requests))
        speeds["engine"].append(tokens / (time.monotonic() - started))
        started = time.monotonic()
        tokens = asyncio.run(ask(url, requests, policy.stop_ids, at_once))
        speeds["raw"].append(tokens / (time.monotonic() - started))
    engine.close()
    own, raw = median(speeds["engine"]), median(speeds["raw"])
    return {"engine_tokens_per_s": own, "raw_tokens_per_s": raw, "engine_over_raw": own / raw}


def scaling(turns: int, n: int = 64, at_once: int = 8, token_s: float = 0.3) -> dict[str, Any]:
    """Seconds of the same rollouts by one and by two stand-ins that wait for each token."""
    from server_stand_in import stand_ins

    policy = Policy("embedded")
    requests, seconds = wanted(policy, n), {1: [], 2: []}
    with stand_ins(policy, 2, token_s=token_s) as servers:
        for _ in range(turns):
            for count, found in seconds.items():
                urls = [server.url for server in servers[:count]]
                engine = VLLMServerEngine(
                    urls, FileTransfer(), canary=False, at_once=at_once, progress=False
                )
                engine.sync(policy, 0)
                started = time.monotonic()
                assert len(list(engine.generate(requests))) == n
                found.append(time.monotonic() - started)
                engine.close()
    one, two = median(seconds[1]), median(seconds[2])
    return {"one_s": one, "two_s": two, "two_over_one": one / two}


def table() -> str:
    """Markdown of results.jsonl."""
    lines = ["| what | measured | ratio |", "|---|---|---|"]
    for found in map(json.loads, RESULTS.read_text().splitlines()):
        if "engine_over_raw" in found:
            own, raw = found["engine_tokens_per_s"], found["raw_tokens_per_s"]
            what = "tokens/s through the engine, of the bare server's"
            lines.append(f"| {what} | {own:.0f}, {raw:.0f} | {found['engine_over_raw']:.2f} |")
        elif "two_over_one" in found:
            what = "rollouts/s of two stand-ins, of one's"
            took = f"{found['one_s']:.1f} s, {found['two_s']:.1f} s"
            lines.append(f"| {what} | {took} | {found['two_over_one']:.2f} |")
        else:
            uneven_s = found.get("uneven_s")
            kind = (
                "step"
                if uneven_s is None
                else f"step of 1 or {uneven_s:g} s more each, in the mean"
            )
            for name in (name for name in found if name.startswith("lookahead_")):
                row, ahead = found[name], name.removeprefix("lookahead_")
                what = f"{kind}, of the longer of sampling and update, `rollout.lookahead={ahead}`"
                took = "step {step_s:.1f} s, sampling {sampling_s:.1f} s, update {update_s:.1f} s"
                took = took.format(**row)
                lines.append(f"| {what} | {took} | {row['step_over_longer']:.2f} |")
    return "\n".join(lines)


def write_table() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--prompts", type=int, default=8, help="of a step, 8 rollouts each")
    parser.add_argument("--throughput", type=int, default=0, metavar="TURNS")
    parser.add_argument("--stand-ins", type=int, default=0, metavar="TURNS")
    parser.add_argument("--uneven", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        write_table()
        return
    if given.stand_ins:
        found = scaling(given.stand_ins)
    elif given.uneven:
        found = uneven(given.uneven)
    elif given.throughput:
        found = throughput(given.urls.split(",")[0], given.throughput)
    else:
        found = overlap(given.urls, given.seconds, given.prompts)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))
    write_table()


if __name__ == "__main__":
    main()
