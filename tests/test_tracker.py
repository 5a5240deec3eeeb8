"""A tracker receives each result once, whatever fails, and no key is written to a file."""

import fcntl
import importlib
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from launched import environ
from tracker_server import KEY, serving

from lockstep.core.record import KEY as RECORD
from lockstep.report.tracker import export_cli, live, sending, stores, tracked
from lockstep.report.tracker.runs import read_runs
from lockstep.report.tracker.stores import LARGEST_BATCH

ROOT = Path(__file__).parents[1]
BEFORE = ROOT / "tests" / "data" / "measured_before"
CASE = "bench/test_train.py::test_train[workload=mlp-lr=0.1-seed=0]"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A campaign's results, and a user who has a key and no site file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(tracked.KEY_VARIABLE, KEY)
    monkeypatch.delenv(tracked.SITE_VARIABLE, raising=False)
    return Path(shutil.copytree(BEFORE, tmp_path / "before"))


def lines(folder, name="w2-r1"):
    """Return a launch's journal as a list to change, and what writes it back."""
    path = folder / "launches" / name / "journal.jsonl"

    def write(entries):
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))

    return [json.loads(line) for line in path.read_text().splitlines()], write


def launch(folder, name):
    return next(run for run in read_runs(folder)[0] if run.name == name)


def send(folder, tracker, **options):
    return sending.send(folder, tracked.Tracker(kind="http", uri=tracker.uri), **options)


def received(tracker):
    """Return what a tracker holds; fail if it holds anything twice or a request was malformed."""
    assert tracker.problems == []
    for run in tracker.runs.values():
        points = Counter((metric["name"], metric["step"]) for metric in run["metrics"])
        assert set(points.values()) <= {1}
        assert len(set(run["artifacts"])) == len(run["artifacts"])
    assert all(count <= LARGEST_BATCH for *_, count in tracker.requests)
    return {
        run["key"]: (run["status"], len(run["metrics"]), sorted(run["artifacts"]))
        for run in tracker.runs.values()
    }


def test_a_launch_is_a_run_with_its_rounds(folder):
    run = launch(folder, "w2-r1")
    rounds = [m for m in run.metrics if m.name.startswith("strong") and m.name.endswith("step_s")]
    assert [(m.step, m.value) for m in rounds] == [
        (0, 0.025847861999864108 / 2),
        (1, 0.016344086000572133 / 2),
        (2, 0.018944409000141604 / 2),
    ]
    assert (run.params["world_size"], run.facts["node"], run.facts["seed"]) == ("2", "vm", "0")
    assert "gpu_type" not in run.facts  # measured on CPUs


def efficiencies(folder, name):
    return [m for m in launch(folder, name).metrics if m.name.endswith("efficiency")]


def test_a_blocked_point_and_a_smaller_batch_have_no_efficiency(folder):
    assert len(efficiencies(folder, "w2-r1")) == 2
    path = folder / "launches" / "w2-r0" / "result.json"
    document = json.loads(path.read_text())
    for entry in document["benchmarks"]:
        entry["extra_info"][RECORD]["flags"] = [{"kind": "smaller-batch", "asked": 32}]
    path.write_text(json.dumps(document))
    assert efficiencies(folder, "w2-r0") == []
    assert len(efficiencies(folder, "w2-r1")) > 0
    shutil.rmtree(path.parent)
    assert efficiencies(folder, "w2-r1") == []


def test_a_launch_ends_as_its_journal_says(folder):
    entries, write = lines(folder)
    begin, case = entries[3:5]
    fail = begin | {"kind": "fail", "reason": "it broke"}
    ends = {"FINISHED": [begin, case], "FAILED": [begin, fail], "KILLED": [begin]}
    for status, last in ends.items():
        write([*entries[:3], *(line | {"time": "2026-11-23T08:00:00+00:00"} for line in last)])
        run = launch(folder, "w2-r1")
        assert (run.status, run.ended_ms) == (status, 1795420800000)
    with (folder / "launches" / "w2-r1" / "journal.jsonl").open("ab") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        run = launch(folder, "w2-r1")
        assert (run.status, run.ended_ms) == ("RUNNING", None)


def test_a_training_in_flight_is_a_run_with_its_epochs_so_far(folder):
    entries, write = lines(folder)
    row = {"epoch": 1, "time_s": 2.0, "loss": 0.5, "accuracy": 0.75, "lr": 0.1, "is_warmup": True}
    epochs = [
        {"kind": "epoch", "case": CASE, "attempt": entries[0]["attempt"],
         "row": row | {"epoch": n, "loss": 1 / n, "ended": f"2026-11-23T08:00:0{n}+00:00"}}
        for n in (1, 2, 2)
    ]  # fmt: skip
    entries[0]["expected"] += [CASE, CASE.replace("seed=0", "seed=1")]
    write([*entries, *epochs])
    run = next(run for run in read_runs(folder)[0] if run.kind == "training")
    losses = [(m.step, m.value, m.time_ms) for m in run.metrics if m.name == "train_loss"]
    assert losses == [(1, 1.0, 1795420801000), (2, 0.5, 1795420802000)]
    assert (run.name, run.status) == ("w2-r1 seed=0", "KILLED")
    needed("tensorboard")
    (written,) = list(export_cli.write_event_files([run], folder / "tensorboard"))
    list(export_cli.write_event_files([run], folder / "tensorboard"))  # again: nothing twice
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(written)).Reload()
    points = [(e.step, e.value, e.wall_time) for e in read.Scalars("train_loss")]
    assert points == [(1, 1.0, 1795420801.0), (2, 0.5, 1795420802.0)]


def test_the_http_interface_has_each_thing_once(folder):
    with serving() as tracker:
        first = send(folder, tracker)
        before = received(tracker)
        again = send(folder, tracker)
        assert (first.kind, first.num_new, again.kind, again.num_new) == ("sent", 5, "sent", 0)
        assert (received(tracker), len(tracker.runs)) == (before, 5)
        (folder / "report.html").write_text("<html></html>")
        entries, write = lines(folder)
        write(entries[:3])  # as if a case were still to come
        assert send(folder, tracker).num_artifacts == 1
        assert {state for state, *_ in received(tracker).values()} == {"FINISHED", "KILLED"}
        write(entries)
        assert send(folder, tracker).kind == "sent"
        assert received(tracker) != before
        whole = next(run for run in tracker.runs.values() if run["kind"] == "campaign")
        assert "report.html" in whole["artifacts"]
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY in path.read_text()]


def test_the_paths_of_the_http_interface_are_the_servers(folder):
    names = {name: f"/{{id}}/{name}" for name in ("metrics", "artifacts")} | {"status": "/{id}"}
    routes = {name: f"/api/{{experiment}}/runs{names.get(name, '')}" for name in ("run", *names)}
    with serving() as tracker:
        tracker.prefix = f"/api/{folder.name}"
        at = tracked.Tracker(kind="http", uri=tracker.uri, routes=routes)
        assert sending.send(folder, at).kind == "sent"
        assert (tracker.problems, len(tracker.runs)) == ([], 5)
    wrong = (("run", "/runs/{name}"), ("metrics", "/metrics"))
    for name, route in wrong:
        with pytest.raises(ValueError, match="a path in the table routes must begin with /"):
            tracked.Routes(**{name: route})


@pytest.mark.parametrize("dies_after", [1, 7])
def test_a_tracker_that_dies_is_sent_the_rest_and_nothing_twice(folder, monkeypatch, dies_after):
    monkeypatch.setattr(sending.stores, "LARGEST_BATCH", 5)
    with serving() as whole:
        send(Path(shutil.copytree(folder, folder.with_name("copy"))), whole)
        expected = received(whole)
    with serving(dies_after) as tracker:
        assert send(folder, tracker, timeout_s=1).kind == "out-of-reach"
        tracker.dies_after = None
        assert send(folder, tracker).kind == "sent"
        assert received(tracker) == expected


def test_a_wrong_key_is_refused_and_the_key_follows_no_redirection(folder, monkeypatch):
    with serving() as moved, serving() as other:
        moved.leads_to = other.uri
        sent = send(folder, moved)
        assert (sent.kind, other.heard, other.uri in sent.why) == ("refused", 0, True)
        monkeypatch.setenv(tracked.KEY_VARIABLE, "wrong")
        sent = send(folder, other)
    assert (sent.kind, sent.why) == (
        "refused",
        "the server answers POST /runs with 401 Unauthorized",
    )


def test_a_run_that_is_refused_keeps_no_other_back(folder):
    with serving() as tracker:
        tracker.refuses = launch(folder, "w1-r1").name
        sent = send(folder, tracker)
        assert (sent.kind, sent.num_refused, sent.num_runs) == ("refused", 1, 4)
        assert sent.why.startswith("the server answers POST /runs with 422 Unprocessable")
        tracker.refuses = ""
        assert (send(folder, tracker).num_new, len(received(tracker))) == (1, 5)


@pytest.mark.parametrize(
    ("code", "kind"), [("INVALID_PARAMETER_VALUE", "refused"), ("INTERNAL_ERROR", "out-of-reach")]
)
def test_a_refusal_by_mlflow_is_not_called_out_of_reach(code, kind):
    exceptions = needed("mlflow.exceptions")
    with pytest.raises(stores.NotSentError, match=code) as error, stores._translated_errors():
        raise exceptions.RestException({"error_code": code, "message": "so"})
    assert error.value.kind == kind


def test_unreadable_results_are_reported_and_an_empty_folder_is_not(folder, tmp_path, capsys):
    tracker = tracked.Tracker(kind="http", uri="http://127.0.0.1:1")
    (empty := tmp_path / "empty").mkdir()
    live.print_outcome(sending.send(empty, tracker), empty)
    assert capsys.readouterr().err == ""
    (folder / "campaign.json").write_text("{")
    live.print_outcome(sending.send(folder, tracker), folder)
    assert capsys.readouterr().err.count("campaign.json") == 1
    (other := tmp_path / "other").mkdir()
    (other / "x.json").write_text('{"benchmarks": []}')
    sent = sending.send(other, tracker)
    assert (sent.kind, sent.num_runs, (other / "tracker").exists()) == ("unreadable", 0, False)


def test_a_late_answer_is_not_taken_for_the_next(folder):
    with serving() as tracker:
        sender = live.Sender(folder, tracked.Tracker(kind="http", uri=tracker.uri))
        sender.send(0)
        assert select.select([sender._process.stdout], [], [], 180)[0]  # answered, not read
        (folder / "report.html").write_text("<html></html>")
        sender.send(60)
        assert any("report.html" in run["artifacts"] for run in tracker.runs.values())
        assert sender.close(60).kind == "sent"


@pytest.mark.slow
def test_nobody_waits_for_a_tracker_that_never_answers(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        uri = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        (folder.parent / "site.toml").write_text(f'[tracker]\nkind = "http"\nuri = "{uri}"\n')
        with live.live_sender(folder) as send_new:
            began = time.monotonic()
            send_new()
            assert time.monotonic() - began < 2 * sending.LIVE_TIMEOUT_S
    todo = f"; no result is lost: lockstep export again {folder}"
    assert todo in capsys.readouterr().err


@pytest.mark.slow
def test_a_measurement_goes_on_when_its_tracker_dies(tmp_path):
    run = [sys.executable, "-m", "lockstep"]
    with serving(dies_after=4) as tracker:
        site = tmp_path / "site.toml"
        site.write_text(f'[tracker]\nkind = "http"\nuri = "{tracker.uri}"\n')
        known = environ(ROOT) | {tracked.KEY_VARIABLE: KEY, tracked.SITE_VARIABLE: str(site)}
        options = ["smoke", "--studies", "weak", "--world-sizes", "1,2", "--device", "cpu"]
        command = partial(
            subprocess.run, cwd=tmp_path, env=known, capture_output=True, text=True, check=False
        )
        ended = command([*run, "run", *options])
        assert ended.returncode == 0, ended.stderr
        assert "lockstep export again results/smoke sends the rest" in ended.stderr
        results = tmp_path / "results" / "smoke"
        assert len(list(results.glob("launches/*/result.json"))) == 2
        tracker.dies_after = None
        # Whether it had the first whole when it died is a matter of time.
        for new in (r"new or changed runs: [23] ", "nothing is new"):
            ended = command([*run, "export", "again", results])
            assert ended.returncode == 0
            assert re.search(new, ended.stdout)
        states = received(tracker).values()
    assert sorted(state for state, *_ in states) == ["FINISHED"] * 3
    assert [files for *_, files in states].count(["log.txt", "result.json"]) == 2
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".pt"]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


def needed(module):
    """Return a module that some users leave out; in CI, where it is missing, the test fails."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(module)
    return pytest.importorskip(module)


def _of_mlflow(uri):
    """Return MLflow's client and what it reads back: key -> status, number of metrics, files."""
    mlflow = needed("mlflow")
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("before")
    runs = client.search_runs([experiment.experiment_id])
    return client, {
        run.data.tags["lockstep.run"]: (
            run.info.status,
            sum(len(client.get_metric_history(run.info.run_id, n)) for n in run.data.metrics),
            sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        )
        for run in runs
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own, such as of what SQLAlchemy will drop
def test_mlflow_reads_back_what_was_exported(folder):
    needed("mlflow")
    (folder / "report.html").write_text("<html></html>")
    entries, write = lines(folder)
    write(entries[:3])
    tracker = tracked.Tracker(kind="mlflow")
    uri = f"sqlite:///{folder.parent / 'mlflow.db'}"
    assert sending.send(folder, tracker).kind == "sent"
    client, before = _of_mlflow(uri)
    assert Counter(state for state, *_ in before.values()) == {"FINISHED": 3, "KILLED": 2}
    assert ["campaign.json", "report.html"] in [files for *_, files in before.values()]
    for clean in (False, True):  # nothing twice, even after the confirmations are deleted
        if clean:
            shutil.rmtree(folder / "tracker")
        assert sending.send(folder, tracker, verifies=True).num_metrics == 0
        assert _of_mlflow(uri)[1] == before
    write(entries)
    sending.send(folder, tracker)
    after = _of_mlflow(uri)[1]
    assert (len(after), {state for state, *_ in after.values()}) == (5, {"FINISHED"})
    wanted = launch(folder, "w2-r1")
    (run,) = client.search_runs(
        [client.get_experiment_by_name("before").experiment_id],
        f"tags.`lockstep.run` = '{wanted.key}'",
    )
    assert run.info.run_name == "w2-r1"
    assert (run.info.start_time, run.info.end_time) == (wanted.started_ms, wanted.ended_ms)
    assert run.data.params == wanted.params
    assert wanted.facts.items() <= run.data.tags.items()
    read = [
        (m.key, m.value, m.step, m.timestamp)
        for name in run.data.metrics
        for m in client.get_metric_history(run.info.run_id, name)
    ]
    assert sorted(read) == sorted((m.name, m.value, m.step, m.time_ms) for m in wanted.metrics)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('uri = "http://me:secret@host"', "it must not contain a key"),
        ('uri = "ftp://host"', "address must begin with sqlite:///, http:// or https://"),
    ],
)
def test_a_table_that_says_what_it_may_not_is_refused(folder, table, said):
    (folder.parent / "site.toml").write_text(f"[tracker]\n{table}\n")
    with pytest.raises(ValueError, match=r"site\.toml: ") as refused:
        tracked.find_tracker(folder)
    assert said in str(refused.value)
    assert os.linesep not in str(refused.value)


def test_results_are_collected_where_what_a_tracker_keeps_cannot_be_written(
    folder, monkeypatch, capsys
):
    tracker = tracked.Tracker(kind="http", uri="http://127.0.0.1:9")
    monkeypatch.setattr(tracked, "find_tracker", lambda of: tracker)
    (folder / "tracker" / live.LOG).mkdir(parents=True)  # as a file of another user's would be
    live.send_collected(folder)
    with live.live_sender(folder) as send_new:
        send_new()
    errors = capsys.readouterr().err.splitlines()
    assert [str(folder / "tracker") in line for line in errors] == [True, True]
