"""`make audit` finds known vulnerabilities, passes over accepted ones, and never is silent."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT

pytestmark = pytest.mark.end_to_end

VULNERABLE, IDENTIFIER = "filelock", "GHSA-test-test-test"


class Database(BaseHTTPRequestHandler):
    """A stand-in for OSV's service, which knows of one vulnerability at most."""

    knows: str | None = None
    asked: set[str]

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        type(self).asked.add(name)
        found: dict[str, Any] = {}
        if name == self.knows:
            version = {"introduced": "0"}, {"fixed": "9999"}
            affected = {"package": query["package"], "ranges": [{"type": "ECOSYSTEM"}]}
            affected["ranges"][0]["events"] = list(version)
            found = {"id": IDENTIFIER, "summary": "made up", "details": "", "affected": [affected]}
            found |= {"modified": "2026-01-01T00:00:00Z", "aliases": []}
            found = {"vulns": [found]}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[str]:
    Database.knows, Database.asked = None, set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Database) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


def audit(place: Path, url: str, accepted: str = "", **settings: str) -> tuple[int, str]:
    """Exit code and output of `.ci/audit` in a checkout with this list of accepted ones."""
    (place / ".ci").mkdir(exist_ok=True)
    (place / ".ci" / "audit").write_text((ROOT / ".ci" / "audit").read_text())
    (place / ".ci" / "audit_accepted").write_text(accepted)
    if not (place / ".venv").exists():
        (place / ".venv").symlink_to(ROOT / ".venv")
    done = subprocess.run(
        ["bash", ".ci/audit"],
        cwd=place,
        env={**os.environ, "OSV_URL": url, **settings},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    return done.returncode, done.stdout


def test_every_package_is_looked_up(service: str, tmp_path: Path) -> None:
    code, output = audit(tmp_path, service)
    assert code == 0, output
    assert "No known vulnerabilities found" in output
    assert {"torch", "lightning", "transformers", "hydra-core", VULNERABLE} <= Database.asked


def test_a_known_vulnerability_fails_until_it_is_accepted(service: str, tmp_path: Path) -> None:
    Database.knows = VULNERABLE
    code, output = audit(tmp_path, service)
    assert code == 1
    assert VULNERABLE in output
    assert IDENTIFIER in output
    code, output = audit(tmp_path, service, f"# why\n\n{IDENTIFIER} # never reached from here\n")
    assert code == 0, output


def test_a_service_out_of_reach_is_said_and_fails_where_the_audit_is_required(
    tmp_path: Path,
) -> None:
    nowhere = "http://127.0.0.1:9/v1/query"
    code, output = audit(tmp_path, nowhere)
    assert (code, "audit: NOT DONE" in output) == (0, True)
    code, output = audit(tmp_path, nowhere, AUDIT="required")
    assert (code, "audit: NOT DONE" in output) == (1, True)


def test_what_is_accepted_has_a_reason() -> None:
    lines = (ROOT / ".ci" / "audit_accepted").read_text().splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in entries if not line.partition("#")[2].strip()] == []
