"""A server that is kept running, against processes that answer at /health as vLLM's server does."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from e3rl.engines.servers import supervised
from e3rl.engines.servers.supervised import SupervisedServer, answers

SERVE = """
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())
    def log_message(self, *args): pass
print("listening", sys.argv[2], flush=True)
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Answer).serve_forever()
"""
KEEP = """
import sys, time
from e3rl.engines.servers.supervised import SupervisedServer
class Started:
    def command(self, host, port):
        return [sys.executable, "-c", sys.argv[1], host, str(port)]
print(SupervisedServer(Started(), "127.0.0.1", {}).look().url, flush=True)
time.sleep(300)
"""


class Started:
    def __init__(self, code: str = SERVE) -> None:
        self.code = code
        self.ports: list[int] = []

    def command(self, host: str, port: int) -> list[str]:
        self.ports.append(port)
        return [sys.executable, "-S", "-c", self.code, host, str(port)]


def wait_until(holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def child_of(url: str) -> int:
    """A process that the server has started."""
    wait_until(lambda: answers(url))
    with urllib.request.urlopen(url) as answer:
        return int(answer.read())


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervised, "LOOK_S", 0.02)
    monkeypatch.setattr(supervised, "RETRY_S", 0.01)


def test_a_server_that_is_killed_is_started_anew_and_nothing_is_left_of_the_old_one():
    server = SupervisedServer(Started(), "127.0.0.1", os.environ)
    old = server.look().url
    child = child_of(old)
    time.sleep(0.1)  # it has been seen to answer
    os.kill(server._process.pid, signal.SIGKILL)
    wait_until(lambda: server.look().url != old)
    new = child_of(server.look().url)
    wait_until(lambda: not runs(child))
    look = server.look()
    assert look.failures == 0
    ports = [url.rpartition(":")[2] for url in (old, look.url)]
    assert look.said.splitlines() == [f"listening {port}" for port in ports]
    server.stop()
    wait_until(lambda: not runs(new))
    assert not answers(look.url)
    server.stop()


def test_a_server_that_ends_before_it_answers_is_given_up_after_some_attempts():
    started = Started("raise SystemExit('no memory is left')")
    server = SupervisedServer(started, "127.0.0.1", os.environ)
    server._thread.join(20)
    assert not server._thread.is_alive()
    assert len(started.ports) == supervised.ATTEMPTS
    look = server.look()
    assert look.failures == supervised.ATTEMPTS
    assert look.said.splitlines() == ["no memory is left"] * supervised.ATTEMPTS
    server.stop()


def test_a_server_ends_with_the_process_that_keeps_it_whatever_ends_that():
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEP, SERVE],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    url = keeper.stdout.readline().strip()
    child = child_of(url)
    keeper.kill()
    keeper.wait()
    wait_until(lambda: not runs(child))
    assert not answers(url)
    keeper.stdout.close()


OTHER = """
import socket, sys
listening = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listening.accept()
    connection.recv(100)
    connection.sendall(b"no such protocol\\r\\n\\r\\n")
    connection.close()
"""


def test_what_speaks_another_protocol_is_no_server_that_is_up():
    server = SupervisedServer(Started(OTHER), "127.0.0.1", os.environ)
    url = server.look().url
    wait_until(lambda: speaks(url))
    assert not answers(url)
    time.sleep(0.1)  # it has been looked at
    assert server._thread.is_alive()
    process = server._process.pid
    server.stop()
    assert not runs(process)


def speaks(url: str) -> bool:
    """Whether anybody listens there."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_is_stopped_though_the_thread_that_keeps_it_has_ended(monkeypatch):
    def broken(url: str) -> bool:
        raise ValueError(url)

    monkeypatch.setattr(supervised, "answers", broken)
    server = SupervisedServer(Started(), "127.0.0.1", os.environ)
    server._thread.join(20)
    assert runs(server._process.pid)
    server.stop()
    assert not runs(server._process.pid)
    server.stop()
