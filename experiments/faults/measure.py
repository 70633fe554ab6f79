"""Does a run that something ends, anywhere, end as the one that nothing has ended?

    .venv/bin/python experiments/faults/measure.py [--faults 40] [--only "one process"]
    .venv/bin/python experiments/faults/measure.py --table       # what has been measured, once more
    .venv/bin/python experiments/faults/measure.py --faults 4 --signals SIGKILL --results FILE

Each fault is a run of six steps that gets a signal, in one rank or in all of them, and a second one
that goes on from what is left. The moment is drawn: one of the start, the six steps and the end,
each as likely, and any time within it. Ledgers (without what the clock says), weights, optimiser
and generators at the end must be those of the run that was left alone, bit for bit. A line per
fault goes to results.jsonl beside this file, so that more can be added at any time; with --results
to another file, and the README stays as it is. The exit code is 1 where a run did not end equal.
"""

import argparse
import atexit
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "end_to_end")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Workers of a run import this file again, so what is heavy is loaded by `main`, and then forked.

RESULTS = HERE / "results.jsonl"
HUNG = -999  # in place of an exit code
BOUND_S = 120.0  # within which every process of a run has to be gone, on a busy machine
RUN_S = 900.0  # of a whole run
LAUNCHER_S = 5.0  # after which a launcher ends the others of a rank that has failed
SAVED = ("checkpoint_every=1", "validate_every=2")
AHEAD = ("rollout.lookahead=1", "loss/correction=tis")
WAYS = {  # how runs are made: processes, who starts them, and settings
    "one process": (1, "", ()),
    "one process, ahead": (1, "", AHEAD),
    "one process, vLLM": (1, "", ("engine=vllm",)),
    "one process, vLLM, ahead": (1, "", ("engine=vllm", *AHEAD)),
    "two ranks, ddp": (2, "torchrun", ("trainer=ddp",)),
    "two ranks, ddp, ahead": (2, "torchrun", ("trainer=ddp", *AHEAD)),
    "two ranks, ddp, vLLM": (2, "srun", ("trainer=ddp", "engine=vllm")),
    "two ranks, fsdp2, ahead": (2, "srun", ("trainer=fsdp2", *AHEAD)),
    "four ranks, ddp": (4, "srun", ("trainer=ddp",)),
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1")
ALL = -1  # in place of a rank
STEPS = 6  # of a run
LISTENS = "0A"  # the state of an open port in /proc/net/tcp
# How far vLLM's log-probs are from the policy's: rounding of 1e-7, by what it computed before.
ROUNDING = ("engine/canary_mean", "engine/canary_quartile", "engine/canary_max")
Moments = list[float]  # seconds from the start to the row of each step, and to the end


@dataclass(frozen=True)
class Fault:
    """What was done to a run, and what became of it."""

    way: str
    sent: str
    rank: int  # that got the signal; -1: all of them
    at_s: float  # after the start
    step: int  # rollout steps that the ledger had by then
    saved: int  # newest step that was saved when all was over
    codes: tuple[int, ...]  # exit codes by rank
    gone_s: float  # until no process was left
    left: tuple[str, ...]  # files in the temporary folder, shared memory, open ports, processes
    equal: str  # "yes", or what differs


def start(folder: Path, scratch: Path, way: str) -> list[int]:
    """Process ids of a run's ranks, forked from this one, which has loaded everything."""
    ranks, launcher, settings = WAYS[way]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    scratch.mkdir(parents=True, exist_ok=True)
    pids = []
    for rank in range(ranks):
        if (pid := os.fork()) == 0:
            become(rank, ranks, launcher, port, scratch)
            os._exit(train(folder, settings, ranks))
        pids.append(pid)
    return pids


def become(rank: int, ranks: int, launcher: str, port: int, scratch: Path) -> None:
    """Be a process of its own, told what a launcher tells where there are several."""
    os.setsid()
    log = os.open(scratch.with_suffix(".log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["TMPDIR"], tempfile.tempdir = str(scratch), None
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told: dict[str, object] = {}
    if launcher == "torchrun":
        told = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": ranks}
        told |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told |= {"TORCHELASTIC_RUN_ID": "faults"}
    elif launcher == "srun":
        told = {"JOB_ID": 77, "JOB_NAME": "faults", "STEP_ID": 0, "STEP_NUM_TASKS": ranks}
        told |= {"NTASKS": ranks, "NTASKS_PER_NODE": ranks, "NNODES": 1, "NODELIST": "127.0.0.1"}
        told |= {"PROCID": rank, "LOCALID": rank, "NODEID": 0}
        told = {f"SLURM_{name}": value for name, value in told.items()} | {"MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})


def train(folder: Path, settings: Sequence[str], ranks: int) -> int:
    """The exit code of a run, or of what goes on with the one in the folder."""
    import torch
    from tiny_runs import E3, configuration, sound

    from e3rl.runs import run as running

    torch.set_num_threads(1)
    resume = [f"ckpt_path={folder}"] if sound(folder) else []
    devices = [f"trainer.devices={ranks}"] if ranks > 1 else []
    try:
        running.execute(configuration(folder, *E3, *SAVED, *settings, *devices, *resume))
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:  # before the run has handlers of its own
        code = 128 + signal.SIGINT
    except BaseException as error:  # what a command would end with
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    atexit._run_exitfuncs()
    return code


def wait(pids: Sequence[int], seconds: float) -> tuple[tuple[int, ...], float]:
    """Exit codes, negative for signals, and how long it took; what hangs is killed, and is HUNG.

    As launchers do, SIGTERM goes to the others a moment after one has failed.
    """
    began, codes = time.monotonic(), dict.fromkeys(pids, HUNG)
    left, failed_at = set(pids), float("inf")
    while left and time.monotonic() - began < seconds:
        for pid in tuple(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
                left.discard(pid)
                if codes[pid]:
                    failed_at = min(failed_at, time.monotonic())
        if time.monotonic() > failed_at + LAUNCHER_S:
            failed_at = float("inf")
            for pid in left:
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return tuple(codes[pid] for pid in pids), time.monotonic() - began


def shared() -> set[str]:
    """What processes of this machine share by name: blocks of memory, and open ports."""
    found = set(os.listdir("/dev/shm"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                found.add(f"port {int(fields[1].rpartition(':')[2], 16)}")
    return found


def leftovers(scratch: Path, before: set[str], pids: Sequence[int]) -> tuple[str, ...]:
    """What a run has left; its reward workers are given time to end and to clear up."""
    end = time.monotonic() + 15
    while True:
        found = [path.name for path in scratch.glob("*")]
        found += sorted(shared() - before)
        found += [f"process {pid}" for pid in alive(pids)]
        if not found or time.monotonic() > end:
            return tuple(found)
        time.sleep(0.2)


def alive(sessions: Sequence[int]) -> list[int]:
    """Processes of these sessions that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) in sessions and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def steps_in(folder: Path) -> int:
    from e3rl.ledger.ledger import read_rows

    path = folder / "prompts.jsonl"
    return len(read_rows(path)) if path.is_file() else 0


def reference(way: str, out: Path) -> tuple[Path, Moments]:
    """A run that nobody disturbs, and when it reached what; made once."""
    folder = out / way.replace(", ", "-").replace(" ", "_") / "whole"
    told = folder.with_suffix(".json")
    if not told.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        began, moments = time.monotonic(), [0.0]
        pids = start(folder, folder.with_name("tmp-whole"), way)
        while is_running(pids[0]) and len(moments) <= STEPS:
            moments += [time.monotonic() - began] * (1 + steps_in(folder) - len(moments))
            time.sleep(0.01)
        codes, _ = wait(pids, RUN_S)
        if set(codes) != {0}:
            raise RuntimeError(
                f"{way}: exit codes {codes}, see {folder.with_name('tmp-whole.log')}"
            )
        told.write_text(json.dumps([*moments, time.monotonic() - began]))
    return folder, json.loads(told.read_text())


def is_running(pid: int) -> bool:
    """Whether a child has not ended; its exit code stays to be read."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def inflict(
    way: str, sent: str, draw: random.Random, out: Path, after: int | None = None
) -> Fault | None:
    """End a run at a random moment, go on with it, and compare; None where it was over before.

    `after`: a step, with which the time begins that the moment is drawn from.
    """
    from tiny_runs import sound

    whole, moments = reference(way, out)
    name = f"{sent}-{draw.getrandbits(32):08x}"
    folder, scratch = whole.with_name(name), whole.with_name(f"tmp-{name}")
    rank = draw.randrange(ALL, WAYS[way][0]) if WAYS[way][0] > 1 else 0
    reached = draw.randrange(len(moments) - 1) if after is None else after
    then = draw.random() * (moments[reached + 1] - moments[reached])
    before, began = shared(), time.monotonic()
    pids = start(folder, scratch, way)
    hit = pids if rank == ALL else [pids[rank]]
    while steps_in(folder) < reached and is_running(pids[0]):
        time.sleep(0.01)
    time.sleep(then)
    if not all(map(is_running, pids)):
        wait(pids, RUN_S)
        return None
    step, at = steps_in(folder), time.monotonic() - began
    for pid in hit:
        os.kill(pid, signal.Signals[sent])
    codes, gone = wait(pids, BOUND_S)
    left = leftovers(scratch, before, pids)
    saved = max((int(path.stem.split("-")[1]) for path in sound(folder)), default=0)
    again, _ = wait(start(folder, scratch, way), RUN_S)
    equal = "yes" if set(again) == {0} else f"went on with exit codes {again}"
    if equal == "yes":
        equal = compare(folder, whole)
    if equal == "yes" and not left:
        shutil.rmtree(folder)
        scratch.with_suffix(".log").unlink()
    shutil.rmtree(scratch, ignore_errors=True)
    return Fault(way, sent, rank, round(at, 2), step, saved, codes, round(gone, 2), left, equal)


def compare(folder: Path, whole: Path) -> str:
    """ "yes", or what differs."""
    from tiny_runs import assert_same, final_state, ledger_rows

    found, expected = ledger_rows(folder), ledger_rows(whole)
    for row in (*found["metrics"], *expected["metrics"]):
        for name in ROUNDING:
            row.pop(name, None)
    if found != expected:
        return "ledgers differ"
    try:
        assert_same(final_state(folder), final_state(whole))
    except AssertionError as error:
        return f"{error} differs"
    return "yes"


def good(fault: dict[str, Any]) -> bool:
    """Equal in the end, nothing left, nothing hung, and the signal's exit code.

    The others of a rank that is killed end with 1, or by the launcher's SIGTERM, and so may those
    of one that ends by a signal before the first step. After the last step a run has nothing left
    to stop, and may end with 0.
    """
    number = int(signal.Signals[fault["sent"]])
    told = {-9} if fault["sent"] == "SIGKILL" else {128 + number, -number}
    hit = fault["codes"] if fault["rank"] == ALL else [fault["codes"][fault["rank"]]]
    others = told | ({1, -15, 143} if fault["sent"] == "SIGKILL" or not fault["step"] else set())
    ends = set(hit) <= told and set(fault["codes"]) <= others
    ends = ends or (fault["step"] == STEPS and set(fault["codes"]) <= {0, *told})
    return went_on(fault) and not fault["left"] and ends


def went_on(fault: dict[str, Any]) -> bool:
    """Nothing hung, and what went on ended as the run that nobody ended."""
    return fault["equal"] == "yes" and HUNG not in fault["codes"]


def table() -> str:
    """Markdown of results.jsonl."""
    faults = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    head = ("run", "started as by", "signal", "faults", "before the first step")
    head += ("equal in the end", "as they should end", "last process gone after, at most")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for way, (_, launcher, _) in WAYS.items():
        for sent in SIGNALS:
            own = [f for f in faults if (f["way"], f["sent"]) == (way, sent)]
            if own:
                lines.append(f"| {way} | {launcher} | {sent} | {counts(own)} |")
    kills = [fault for fault in faults if fault["sent"] == "SIGKILL"]
    lines += [f"| all | | SIGKILL | {counts(kills)} |"] if kills else []
    for number, ranks in ((1, "one process"), (2, "two ranks"), (4, "four ranks")):
        own = [f for f in faults if WAYS[f["way"]][0] == number and f["sent"] != "SIGKILL"]
        lines += [f"| {ranks} | | other signals | {counts(own)} |"] if own else []
    return "\n".join(lines)


def counts(faults: Sequence[dict[str, Any]]) -> str:
    """Cells of a row: how many, and how they ended."""
    early = sum(fault["step"] == 0 for fault in faults)
    equal = sum(fault["equal"] == "yes" for fault in faults)
    slowest = max(fault["gone_s"] for fault in faults)
    return f"{len(faults)} | {early} | {equal} | {sum(map(good, faults))} | {slowest:.1f} s"


def write_table() -> None:
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition("<!-- table: faults -->")
    _, _, after = rest.partition("<!-- end -->")
    readme.write_text(f"{before}<!-- table: faults -->\n\n{table()}\n\n<!-- end -->{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--only", action="append", choices=WAYS, help="may be repeated")
    parser.add_argument("--signals", default=",".join(SIGNALS))
    parser.add_argument("--after", type=int, choices=range(STEPS + 1), help="this step alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir(), "e3rl-faults"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="where lines are added")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    from e3rl.process.environment import prepare

    prepare()
    import tiny_runs  # noqa: F401  (loads what every run needs)

    results: Path = args.results
    done, failed = len(results.read_text().splitlines()) if results.is_file() else 0, 0
    ways = args.only or list(WAYS)
    for number in range(0 if args.table else args.faults):
        draw = random.Random(f"{args.seed} {done + number}")
        way, sent = ways[number % len(ways)], draw.choice(args.signals.split(","))
        fault = inflict(way, sent, draw, args.out, args.after)
        if fault is not None:
            with results.open("a") as file:
                file.write(json.dumps(asdict(fault)) + "\n")
            failed += not went_on(asdict(fault))
            print("ok " if good(asdict(fault)) else "BAD", fault, flush=True)
    if results == RESULTS:
        write_table()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
