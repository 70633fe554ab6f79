"""A vLLM server that is started anew when it ends, and ends with the process that keeps it."""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import Protocol

# Becomes the command, beside a shell that ends the whole process group once this process has ended
# or closes the pipe: whatever ends it, no process of the server is left.
WITH_US = 'exec 3<&0; { read _ <&3; kill -KILL 0; } & exec "$@" </dev/null 3<&-'
ATTEMPTS = 3  # starts in a row that may fail
LOOK_S = 0.2  # between two looks at the process
RETRY_S = 5.0  # before a start that follows a failed one, and as much more for each before
HEALTH_S = 5.0
GRACE_S = 20.0  # for a server to end in order
SHOWN = 3000  # bytes of what it has said
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxies are set


@dataclass(frozen=True)
class Look:
    """What is known of a server.

    Attributes:
        url: where it is, or will be once it has started.
        failures: starts in a row that ended before it answered; after `ATTEMPTS` it is given up.
        said: the end of its output, and of those that were before it.
    """

    url: str
    failures: int
    said: str


class Command(Protocol):
    """What starts a server, such as `Launch`."""

    def command(self, host: str, port: int) -> Sequence[str]:
        """Its words, for a server at an address of this machine."""


class SupervisedServer:
    """A server on a free port, as a process group of its own.

    It is started anew when it ends, at another port; no more after `ATTEMPTS` starts in a row that
    ended before it answered.

    Args:
        launch: what starts it.
        host: address of this machine that it listens at.
        environment: of its processes.
    """

    def __init__(self, launch: Command, host: str, environment: Mapping[str, str]) -> None:
        self._launch, self._host, self._environment = launch, host, environment
        self._output = TemporaryFile()  # noqa: SIM115 (has no name, so that nothing is left of it)
        self._closing = Event()
        self._failures = 0
        self._begin()
        self._thread = Thread(target=self._keep, name="server", daemon=True)
        self._thread.start()

    def look(self) -> Look:
        """Where the server is, and how it does."""
        size = os.fstat(self._output.fileno()).st_size
        said = os.pread(self._output.fileno(), SHOWN, max(0, size - SHOWN))
        return Look(self._url, self._failures, said.decode(errors="replace").strip())

    def stop(self) -> None:
        """End the server with all its processes; safe to call twice."""
        self._closing.set()
        self._thread.join()
        if self._process.poll() is None:  # something has ended the thread before
            end_group(self._process)
        self._output.close()

    def _begin(self) -> None:
        port = free_port(self._host)
        self._url = f"http://{self._host}:{port}"
        self._process = subprocess.Popen(
            ["sh", "-c", WITH_US, "server", *self._launch.command(self._host, port)],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )

    def _keep(self) -> None:
        while True:
            was_up = self._follow()
            end_group(self._process)
            self._failures = 0 if was_up else self._failures + 1
            if self._failures == ATTEMPTS or self._closing.wait(RETRY_S * self._failures):
                return
            self._begin()

    def _follow(self) -> bool:
        """Wait until the server has ended, or is to; whether it has answered before."""
        was_up = False
        while self._process.poll() is None and not self._closing.wait(LOOK_S):
            if not was_up and answers(self._url):
                was_up, self._failures = True, 0
        return was_up


def free_port(host: str) -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def answers(url: str) -> bool:
    """Whether a server is up; one of another kind at its port is not."""
    try:
        with DIRECTLY.open(f"{url}/health", timeout=HEALTH_S):
            return True
    except (urllib.error.URLError, HTTPException, ConnectionError, TimeoutError):
        return False


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process with all those of its group: in order, and by force where that takes long."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
