"""Events of jobs that ended: who is believed, what the epilog sends, and what they add to polls."""

import http.client
import itertools
import json
import random
import socket
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from stand_ins import account_of, leave, now, send

from lockstep.slurm import client
from lockstep.slurm.status import accounting, serve_cli
from lockstep.slurm.status.sent import Results
from lockstep.slurm.status.serve_cli import (
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    WINDOW_S,
    Inbox,
    read_key,
    sign,
)
from lockstep.slurm.status.standing import GRACE_S, Board
from lockstep.slurm.status.status_record import Wanted

KEY = b"k" * 32
EVENT = {"job_id": "17", "status": "COMPLETED", "exit_code": 0}
SEED = 1


@pytest.fixture
def results(tmp_path):
    (tmp_path / "jobs").mkdir()
    send(tmp_path, "ladder", "17", ["w1-r0"])
    return Results(tmp_path)


@pytest.fixture
def server(results):
    page = serve_cli.StatusPage(results, "here", Wanted())
    served = serve_cli.Server(("127.0.0.1", 0), Inbox(results, KEY), page)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def post(server, body, headers, path="/events"):
    connection = http.client.HTTPConnection(*server.server_address, timeout=20)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse().status
    connection.close()
    return answer


def signed(body, at=None, key=KEY):
    timestamp = str(int(time.time() if at is None else at))
    return {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign(key, timestamp, body)}


def encoded(**changes):
    return json.dumps({k: v for k, v in (EVENT | changes).items() if v is not None}).encode()


# What is posted -> the answer; each makes (body, headers).
HOSTILE = {
    "unsigned": (401, lambda: (encoded(), {})),
    "of another key": (401, lambda: (encoded(), signed(encoded(), key=b"x" * 32))),
    "another body": (401, lambda: (encoded(exit_code=1), signed(encoded()))),
    "no time": (401, lambda: (encoded(), signed(encoded()) | {TIMESTAMP_HEADER: "now"})),
    "late": (401, lambda: (encoded(), signed(encoded(), at=time.time() - WINDOW_S - 9))),
    "too large": (413, lambda: (b" " * 5000, signed(b" " * 5000))),
    "no exit code": (422, lambda: _random(exit_code=None)),
    "a status that is none": (422, lambda: _random(status="FINE")),
    "no JSON": (422, lambda: _signed(b"\xff\x00%d" % random.getrandbits(60))),
    "nested too deep": (422, lambda: _signed(b"[" * 4000)),
    "another's job": (404, lambda: _random(job_id="18")),
}


def _random(**changes):
    return _signed(encoded(note=str(random.getrandbits(64)), **changes))


def _signed(body):
    return body, signed(body)


def test_a_thousand_posts_of_strangers_change_nothing(server, results):
    body, headers = _signed(encoded())
    assert post(server, body, headers) == 202
    before = results.events_file.read_bytes()
    random.seed(SEED)
    answers = dict.fromkeys([*HOSTILE, "replayed"], 0)
    for _ in range(1000):
        name = random.choice(list(answers))  # noqa: S311, a seeded choice
        want, made = HOSTILE.get(name, (409, lambda: (body, headers)))
        assert post(server, *made()) == want, name
        answers[name] += 1
    assert min(answers.values()) > 30
    assert results.events_file.read_bytes() == before
    (event,) = results.events().values()
    assert (event.job_id, event.status, event.exit_code) == ("17", "COMPLETED", 0)


def test_a_message_is_taken_once_also_after_a_restart_and_after_a_full_disk(
    server, results, monkeypatch
):
    message = body, headers = _signed(encoded())
    with monkeypatch.context() as full_disk:
        full_disk.setattr(serve_cli, "append_line", lambda path, _: (path / "no folder").open())
        assert post(server, *message) == 500
    assert [post(server, *message) for _ in range(2)] == [202, 409]
    given = (headers[TIMESTAMP_HEADER], headers[SIGNATURE_HEADER], body)
    assert Inbox(results, KEY).take(*given)[0] == 409


def test_a_key_is_made_once_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "events.key"
    assert read_key(path) == read_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ValueError, match="other users may read this key"):
        read_key(path)


def test_the_page_is_told_of_each_change(server):
    server.page.look()
    connection = http.client.HTTPConnection(*server.server_address, timeout=20)
    connection.request("GET", "/changes")
    stream = connection.getresponse()
    assert stream.headers["Content-Type"] == "text/event-stream"
    give_up = time.monotonic() + 10
    there = stream.fp.raw._sock
    there.settimeout(0.2)
    while time.monotonic() < give_up:  # the viewer may begin to wait a moment after its answer
        server.page._show(server.page.facts | {"folder": "new"}, [object()])
        with suppress(TimeoutError):
            if there.recv(14, socket.MSG_PEEK):
                break
    there.settimeout(20)
    assert stream.readline() == b"data: changed\n"
    connection.close()
    connection.request("GET", "/")
    assert b"<title>new: status" in connection.getresponse().read()


def epilog(url, folder, **variables):
    """Run the script that ships as slurmctld runs it, and return its code and seconds."""
    script = folder / "epilog.sh"
    script.write_text(serve_cli.epilog(url, key := folder / "events.key", key))
    script.chmod(0o755)
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_EXIT_CODE2": "0:0"} | variables
    began = time.monotonic()
    ended = subprocess.run([script], env=job, timeout=60, check=False)
    return ended.returncode, time.monotonic() - began


@pytest.mark.parametrize(
    ("variables", "job_id", "status", "code"),
    [
        ({}, "17", "COMPLETED", 0),
        ({"SLURM_JOB_EXIT_CODE2": "0:15"}, "17", "FAILED", 143),
        ({"SLURM_JOB_ID": "31", "SLURM_ARRAY_JOB_ID": "25", "SLURM_ARRAY_TASK_ID": "1"},
         "25_1", "COMPLETED", 0),
    ],
)  # fmt: skip
def test_the_epilog_sends_what_the_receiver_takes(
    server, results, tmp_path, variables, job_id, status, code
):
    send(tmp_path, "arr", "25", ["p0", "p1"], kind="array")
    (tmp_path / "events.key").write_bytes(KEY)
    url = f"http://127.0.0.1:{server.server_port}/events"
    assert epilog(url, tmp_path, **variables)[0] == 0
    (event,) = results.events().values()
    assert (event.job_id, event.status, event.exit_code) == (job_id, status, code)


@pytest.mark.slow
@pytest.mark.parametrize("receiver_is", ["silent", "without a key"])
def test_a_dead_receiver_holds_no_node(server, results, tmp_path, receiver_is):
    if receiver_is == "silent":
        (tmp_path / "events.key").write_bytes(KEY)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if receiver_is == "silent" else server.server_port
        code, seconds = epilog(f"http://127.0.0.1:{port}/events", tmp_path)
    assert code == 0
    assert seconds < 6  # its own limit is 2; a busy machine takes a while to begin
    assert results.events() == {}


# How a job may end -> what its script leaves; what the epilog of Slurm 22.05 is told, as tried on
# the testbed; what sacct says.
ENDS = {
    "well": ({"exit_code": 0}, ("COMPLETED", 0), "COMPLETED"),
    "an error": ({"exit_code": 1}, ("FAILED", 1), "FAILED"),
    "its limit": ({"exit_code": 75, "stopped": True}, ("COMPLETED", 0), "TIMEOUT"),
    "scancel": ({"exit_code": 143}, ("COMPLETED", 0), "CANCELLED"),
    "killed": (None, ("FAILED", 137), "OUT_OF_MEMORY"),
    "a lost node": (None, ("COMPLETED", 0), "NODE_FAIL"),
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_is_lost_and_in_whatever_order_it_comes_the_end_is_right(
    end, tmp_path, monkeypatch
):
    left, event, said = ENDS[end]
    for number, order in enumerate(itertools.permutations(["record", "event", "poll"])):
        for count in range(len(order) + 1):
            folder = tmp_path / f"{number}-{count}"
            (folder / "jobs").mkdir(parents=True)
            send(folder, "ladder", "17", ["w1-r0"], time=now() if count == 0 else "2026-01-01")
            state = _after(folder, order[:count], left, event, said, monkeypatch)
            came = set(order[:count]) - ({"record"} if left is None else set())
            if "poll" in came:
                assert state.name == said
            elif came:
                assert state.has_ended or state.name == "LOST"
                assert (state.name == "COMPLETED") == (said == "COMPLETED" and "record" in came)
            else:
                assert state.name == "unknown"


def _after(folder, arrived, left, event, said, monkeypatch):
    """Return a job's state after a look at each thing that arrived, one after another."""
    silent = RuntimeError("no answer")

    def refuse(*_):
        raise silent

    monkeypatch.setattr(client, "queue", refuse)
    monkeypatch.setattr(accounting, "ask", refuse)
    board = Board(Results(folder))
    states = [board.look().jobs[0].state]
    for what in arrived:
        if what == "record" and left is not None:
            leave(folder, "17", **left)
        elif what == "event":
            _write_event(folder, *event)
        elif what == "poll":
            monkeypatch.setattr(client, "queue", lambda *_: {})
            monkeypatch.setattr(accounting, "ask", lambda ids: account_of("17", said))
        states.append(board.look().jobs[0].state)
    wrong = [state for state in states if state.name == "COMPLETED" and said != "COMPLETED"]
    assert wrong == []
    return states[-1]


def _write_event(folder, status, code):
    at = int(time.time()) - 2 * GRACE_S
    inbox = Inbox(Results(folder), KEY, clock=lambda: at)
    body = json.dumps({"job_id": "17", "status": status, "exit_code": code}).encode()
    assert inbox.take(str(at), sign(KEY, str(at), body), body)[0] == 202


def test_an_event_does_not_end_a_job_that_squeue_still_holds(results, monkeypatch):
    _write_event(results.path, "FAILED", 1)
    held = client.parse_row(job_id="17", state="RUNNING", comment="lockstep:ladder-17", user="me")
    monkeypatch.setattr(client, "queue", lambda *_: {"17": held})
    monkeypatch.setattr(accounting, "ask", lambda _: {})
    assert Board(results).look().jobs[0].state.name == "RUNNING"
