"""vLLM's servers as `e3rl serve` starts them, for tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

START_S = 300.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class VLLMServer:
    """A server of the tests' policy; `wait` for it before use."""

    def __init__(self, folder: Path, port: int | None = None, *more: str) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"server-{self.port}-{time.monotonic_ns()}.log"
        settings = ("policy=embedded_arithmetic", f"serve.port={self.port}", *more)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "e3rl", "serve", *settings],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    def wait(self) -> "VLLMServer":
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return self
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        raise TimeoutError(self.log.read_text()[-3000:])

    def count(self, name: str) -> float:
        """One of vLLM's own counters, such as num_requests_running."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        found = [line for line in lines if line.startswith((f"vllm:{name}{{", f"vllm:{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def kill(self) -> None:
        """All its processes, by SIGKILL: as a machine fails that has no time to say so."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


def start(folder: Path, n: int) -> Sequence[VLLMServer]:
    """Several at the same time."""
    return [server.wait() for server in [VLLMServer(folder) for _ in range(n)]]
