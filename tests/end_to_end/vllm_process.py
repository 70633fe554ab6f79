"""A process that samples with vLLM and scores in workers, and then ends as its argument says."""

import json
import os
import signal
import sys
from collections.abc import Container
from pathlib import Path

from e3rl.config.build import silence_libraries
from e3rl.engines.base import RolloutRequest
from e3rl.engines.vllm import VLLMEngine
from e3rl.policy.policy import Policy
from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.scorer import Question


def ports_listened_on(sockets: Container[str] | None = None) -> list[int]:
    """TCP ports that somebody listens on, or only those of the given socket numbers."""
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and (sockets is None or inode in sockets):
                ports.append(int(local.split(":")[1], 16))
    return ports


def own_sockets() -> set[str]:
    """Numbers of the sockets that this process holds open."""
    names = [os.readlink(f"/proc/self/fd/{name}") for name in listed_handles()]
    return {name[len("socket:[") : -1] for name in names if name.startswith("socket:[")}


def listed_handles() -> list[str]:
    """Open handles; the one of listing them is closed by then."""
    return [
        name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")
    ]


def shared_memory() -> list[str]:
    """Files in shared memory that this process holds open or has mapped."""
    handles = [os.readlink(f"/proc/self/fd/{name}") for name in listed_handles()]
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({name for name in (*handles, *maps) if name.startswith("/dev/shm/")})


def main(end: str, told: Path) -> None:
    silence_libraries()
    policy = Policy()
    pool = build_math_rewards("math_box")
    pool.self_test()  # workers are there
    engine = VLLMEngine()
    engine.sync(policy, 0)
    prompt = tuple(policy.tokenizer("12+34=?")["input_ids"])
    stream = engine.generate([RolloutRequest(0, s, prompt, 1.0, s, 24) for s in range(8)])
    first = next(stream)
    pool.submit(r"\boxed{\sqrt{2}+1}", Question("", "", r"1+\sqrt{2}"))
    facts = {"ports": ports_listened_on(own_sockets()), "shared": shared_memory()}
    told.write_text(json.dumps({"tokens": len(first.tokens), **facts}))
    if end == "raise":
        raise RuntimeError("in the middle of a call")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
