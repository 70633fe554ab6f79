"""The W&B mirror, offline: rows on the axis of rollout steps, one id per run folder, no prompt."""

import http.server
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from e3rl.ledger.ledger import Ledger
from e3rl.ledger.wandb_mirror import WandbMirror, _parts

pytestmark = pytest.mark.end_to_end

BLOCK, HEAD = 32768, struct.Struct("<IHB")  # checksum, length, kind of a record's part
WHOLE, LAST = 1, 4
COMPLETION = {
    "rollout_step": 3,
    "prompt_id": "p0",
    "prompt": "1+1=?",
    "completion": r"\boxed{2}",
    "answer": "2",
    "reward": 1.0,
    "advantage": 0.5,
    "temperature": 0.9,
    "tokens": 7,
    "truncated": False,
}


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("W&B asked for a login")

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setattr("getpass.getpass", asked)
    monkeypatch.setattr(wandb, "login", asked)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield
    wandb.teardown()  # W&B reads the environment once


def mirror(folder: Path, run_id: str = "run1", **settings: Any) -> WandbMirror:
    folder.mkdir(exist_ok=True)
    settings = {"project": "e3rl", "name": "e3-seed1", "group": "sweep", **settings}
    return WandbMirror(tags=["e3"], id=run_id, save_dir=str(folder), job_type="train", **settings)


def records(file: Path) -> Iterator[Any]:
    """Records of a `.wandb` file, which is written in blocks like LevelDB's log."""
    raw, position, part = file.read_bytes(), 7, b""
    while position + HEAD.size <= len(raw):
        if BLOCK - position % BLOCK < HEAD.size:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = HEAD.unpack_from(raw, position)
        position += HEAD.size
        part += raw[position : position + length]
        position += length
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
            part = b""


def files(folder: Path) -> list[Path]:
    """The offline runs below a folder, by path; the service must end to have written them whole."""
    wandb.teardown()
    return sorted(folder.rglob("offline-run-*/*.wandb"))


def history(file: Path) -> list[dict[str, str]]:
    return [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in records(file)
        if record.WhichOneof("record_type") == "history"
    ]


def test_rows_are_read_back_on_the_axis_of_rollout_steps_and_the_id_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    first = mirror(tmp_path)
    first.log_hyperparams({"seed": 1, "data": {"size": 16}})
    first.log_metrics({"rollout_step": 0, "epoch": 0, "val/t1/pass@1": 0.5}, step=0)
    first.log_metrics({"rollout_step": 0, "epoch": 0, "policy/entropy": float("nan")}, step=0)
    first.log_metrics({"epoch": 0, "accuracy": 0.1}, step=0)  # Lightning's own
    first.log_metrics({"rollout_step": 1, "epoch": 0, "policy/entropy": 0.4}, step=1)
    first.log_completions([COMPLETION])
    first.experiment.finish()
    # The resumed run; elsewhere, since W&B names its folder by the second.
    second = mirror(tmp_path / "later")
    second.log_metrics({"rollout_step": 2, "epoch": 0, "policy/entropy": 0.3}, step=2)
    second.experiment.finish()

    after, before = files(tmp_path)  # later/..., wandb/...
    assert before.name == after.name == "run-run1.wandb"
    rows = history(before)
    assert [row["rollout_step"] for row in rows[:3]] == ["0", "0", "1"]
    assert rows[0]["val/t1/pass@1"] == "0.5"
    assert rows[2]["policy/entropy"] == "0.4"
    assert not any("accuracy" in row for row in rows)
    tables = [row for row in rows if any(key.startswith("completions") for key in row)]
    assert tables[0]["completions/nrows"] == "1"
    (row,) = history(after)
    assert (row["rollout_step"], row["policy/entropy"]) == ("2", "0.3")

    found = list(records(before))
    axes = [r.metric.step_metric for r in found if r.metric.glob_name == "*"]
    assert axes[-1] == "rollout_step"
    (run,) = [r.run for r in found if r.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.run_group, run.job_type) == ("run1", "sweep", "train")
    assert list(run.tags) == ["e3"]
    config = {u.key: u.value_json for r in found for u in r.config.update}
    assert json.loads(config["data"]) == {"size": 16}


def test_validation_stands_at_its_cost_and_the_list_of_runs_shows_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = mirror(tmp_path, validation_axis="cost/tokens")
    logger.log_metrics({"rollout_step": 0, "epoch": 0, "val/t1/pass@1": 0.6})
    costs = {"cost/rollouts": 8.0, "cost/tokens": 70.0, "cost/seconds": 1.5}
    logger.log_metrics({"rollout_step": 0, "epoch": 0, "policy/entropy": 0.4, **costs})
    logger.log_metrics({"rollout_step": 1, "epoch": 0, "val/t1/pass@1": 0.5})
    logger.experiment.finish()
    (file,) = files(tmp_path)
    before, _, after = history(file)
    assert [before[name] for name in costs] == ["0"] * 3
    assert {name: float(after[name]) for name in costs} == costs
    defined = {r.metric.name: r.metric for r in records(file) if r.metric.name}
    assert defined["val/t1/pass@1"].step_metric == "cost/tokens"
    assert defined["policy/entropy"].step_metric == "rollout_step"
    wanted = defined["val/t1/pass@1"].summary
    assert (wanted.max, wanted.last, wanted.min) == (True, True, False)
    shown = {
        "/".join(item.nested_key) or item.key: json.loads(item.value_json)
        for record in records(file)
        for item in record.summary.update
    }
    assert shown["val/t1/pass@1"] == {"max": 0.6, "last": 0.5}


def test_a_resumed_run_does_not_claim_that_validation_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = mirror(tmp_path)
    logger.log_metrics({"rollout_step": 8, "epoch": 0, "val/t1/pass@1": 0.6})
    logger.experiment.finish()
    (row,) = history(files(tmp_path)[0])
    assert not [name for name in row if name.startswith("cost/")]


def test_a_run_that_goes_on_with_a_validation_has_the_costs_of_its_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = mirror(tmp_path)
    rows = [{"kind": "train", "rollout_step": i, "cost/tokens": 100.0 * (i + 1)} for i in range(8)]
    rows.append({"kind": "validation", "rollout_step": 8, "val/t1/pass@1": 0.6})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    logger.log_metrics({"rollout_step": 8, "epoch": 0, "val/t1/pass@1": 0.6})
    logger.experiment.finish()
    (row,) = history(files(tmp_path)[0])
    assert float(row["cost/tokens"]) == 800.0


def logged_tables(folder: Path) -> list[tuple[str, Any]]:
    """Name and content of every table that a run logged, in order."""
    found = folder.rglob("media/table/*.json")
    order = sorted(found, key=lambda path: int(path.name.split("_")[1]))
    return [(path.name.split("_")[0], json.loads(path.read_text())) for path in order]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([3, 2, 3], [[0], [1, 2]]),  # the latest steps together
        ([2, 6, 1], [[0], [1], [2]]),  # one that is longer by itself is not cut
        ([1, 1, 2], [[0, 1, 2]]),
    ],
)
def test_a_long_table_is_parted_between_steps(
    sizes: list[int], parts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e3rl.ledger.wandb_mirror.TABLE_ROWS", 5)
    steps = [step for step, size in enumerate(sizes) for _ in range(size)]
    found = [
        part["rollout_step"].tolist() for part in _parts(pd.DataFrame({"rollout_step": steps}))
    ]
    assert [list(dict.fromkeys(part)) for part in found] == parts
    assert [step for part in found for step in part] == steps


def test_the_counts_of_a_validation_are_there_as_soon_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = mirror(tmp_path)
    with Ledger(tmp_path / "validation.jsonl") as ledger:
        for step in (0, 8):
            lists = {"problem_id": ["p", "q"], "source": ["x", "y"], "n": [4, 4]}
            row = {"name": "t1", "temperature": 1.0, **lists, "correct": [step, 1]}
            ledger.append({"rollout_step": step, **row})
            logger.log_metrics({"rollout_step": step, "epoch": 0, "val/t1/pass@1": 0.5})
    logger.experiment.finish()
    first, second = logged_tables(tmp_path)
    assert first[0] == second[0] == "validation"
    assert second[1]["data"] == [[8, "t1", 1.0, "p", "x", 4, 8], [8, "t1", 1.0, "q", "y", 4, 1]]
    assert [row[0] for row in first[1]["data"]] == [0, 0]


def test_counts_become_tables_with_missing_numbers_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr("e3rl.ledger.wandb_mirror.TABLE_ROWS", 2)
    logger = mirror(tmp_path)
    counts = {"rollout_step": [0, 1, 1], "n": [4, 8, 12], "rank": [0.5, 0.2, float("nan")]}
    logger.log_counts("prompts", pd.DataFrame(counts))
    logger.log_counts("validation", pd.DataFrame(columns=["problem_id"]))
    logger.log_completions([COMPLETION])
    logger.experiment.finish()
    tables = logged_tables(tmp_path)
    assert [name for name, _ in tables] == ["prompts", "prompts", "completions"]
    assert tables[0][1] == {"columns": list(counts), "data": [[0, 4, 0.5]]}
    assert tables[1][1] == {"columns": list(counts), "data": [[1, 8, 0.2], [1, 12, None]]}
    (row,), columns = tables[2][1]["data"], tables[2][1]["columns"]
    assert dict(zip(columns, row, strict=True)) == COMPLETION


def test_an_axis_that_is_no_cost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="validation_axis='epoch': use rollout_step"):
        mirror(tmp_path, validation_axis="epoch")


def test_a_crashed_run_is_closed_so_that_the_next_one_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    crashed = mirror(tmp_path, "crashed")
    crashed.log_metrics({"rollout_step": 0, "x": 1.0})
    crashed.finalize("success")  # after the baseline: the run goes on
    assert wandb.run is not None
    crashed.finalize("failed")
    assert wandb.run is None
    following = mirror(tmp_path, "next")
    following.log_metrics({"rollout_step": 0, "x": 2.0})
    assert following.version == "next"
    following.experiment.finish()
    values = {f.name: [row["x"] for row in history(f)] for f in files(tmp_path)}
    assert values == {"run-crashed.wandb": ["1"], "run-next.wandb": ["2"]}


def test_disabled_mode_takes_rows_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logger = mirror(tmp_path)
    logger.log_hyperparams({"seed": 1})
    logger.log_metrics({"rollout_step": 0, "policy/entropy": 0.4}, step=0)
    logger.log_completions([COMPLETION])
    logger.experiment.finish()
    assert files(tmp_path) == []


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers what a run asks of W&B at its start, and takes everything."""

    BUCKET = {  # noqa: RUF012
        **{"id": "b", "name": "run1", "displayName": "run1", "config": "{}"},
        **{"project": {"id": "p", "name": "e3rl", "entity": {"id": "t", "name": "team"}}},
    }
    ANSWERS = {  # noqa: RUF012
        "RunResumeStatus": {"model": {"id": "p", "name": "e3rl", "bucket": None}},
        "UpsertBucket": {"upsertBucket": {"bucket": BUCKET, "inserted": True}},
    }

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"data": self.ANSWERS.get(asked.get("operationName"), {})}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.ThreadingHTTPServer]:
    """A W&B of its own, with a login."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{made.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_when_wandb_goes_away_the_run_ends_in_time_and_says_how_to_send_what_it_has(
    server: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    limits = wandb.Settings(finish_timeout=1, finish_timeout_raises=True)
    logger = mirror(tmp_path, settings=limits)
    logger.log_metrics({"rollout_step": 0, "policy/entropy": 0.4})
    server.shutdown()
    server.server_close()
    logger.log_metrics({"rollout_step": 1, "policy/entropy": 0.3})
    began = time.monotonic()
    with pytest.warns(UserWarning, match="did not answer at the end of the run") as caught:
        logger.close()
    assert time.monotonic() - began < 60
    logger.close()  # nothing is left to do
    (folder,) = (tmp_path / "wandb").glob("run-*-run1")
    assert f"wandb sync {folder}" in str(caught[0].message)
    wandb.teardown()
    steps = [row["rollout_step"] for row in history(folder / "run-run1.wandb")]
    assert steps == ["0", "1"]


def test_a_wandb_that_nobody_is_logged_in_to_ends_the_run_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(ConnectionError, match=r"(?s)takes no run: .*Log in with `wandb login`"):
        mirror(tmp_path).log_metrics({"rollout_step": 0, "policy/entropy": 0.4})


def test_a_wandb_that_is_not_there_ends_the_run_at_its_start_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    logger = mirror(tmp_path, settings=wandb.Settings(init_timeout=1))
    with pytest.raises(ConnectionError, match=r"(?s)does not answer: .*\nWith WANDB_MODE=offline"):
        logger.log_metrics({"rollout_step": 0, "policy/entropy": 0.4})
