"""Stand-ins for Slurm's commands: they record what they are asked, and answer as they are told."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from data.job_samples import write_lines
from data.report_samples import entry, record

from lockstep import cli
from lockstep.core.record import KEY, SCHEMA_VERSION
from lockstep.slurm.client import own_name
from lockstep.slurm.status import accounting
from lockstep.slurm.status.accounting import FIELDS

ROOT = Path(__file__).parents[1]


class StandIns:
    """Commands in a folder that is all of PATH, so that what is not there is not installed."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)

    def say(self, name, *answers, rc=0, error="", seconds=0):
        """Let a command answer: its nth call gets the nth answer, later calls the last."""
        own = self.folder / f"{name}.answers"
        own.mkdir(exist_ok=True)
        for number, answer in enumerate(answers or ("",), start=1):
            (own / str(number)).write_text(answer.replace("|me|", f"|{own_name()}|"))
        last = len(answers or ("",))
        self.act(
            name,
            f"/bin/sleep {seconds}\n"
            f"n=$(/bin/grep -c '^{name} ' {self.folder}/calls)\n"
            f'[ "$n" -le {last} ] || n={last}\n'
            f"/bin/cat {own}/$n\nprintf '%s' {shlex.quote(error)} >&2\nexit {rc}",
        )

    def act(self, name, body):
        """Let a command do as a shell does; what it is asked is recorded."""
        calls = shlex.quote(f"{self.folder}/calls")
        script = f"#!/bin/sh\nprintf '%s\\n' \"{name} $*\" >>{calls}\n{body}\n"
        (self.folder / name).write_text(script)
        (self.folder / name).chmod(0o755)

    def calls(self, name=""):
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(name)]


def lockstep(arguments, cwd, path):
    """Run the command in this process as it is typed, with nothing but the stand-ins on PATH."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    code = 0
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, PATH=str(path)),
        mock.patch.object(sys, "argv", ["lockstep", *shlex.split(arguments)]),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    output, errors = (_text(stream) for stream in streams)
    return subprocess.CompletedProcess(arguments, code, output, errors)


def _text(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


def sacct(*rows):
    lines = ["|".join(row.get(name, "") for name in FIELDS) for row in rows]
    return "\n".join(["|".join(FIELDS), *lines, ""])


def now():
    """Return this moment as submissions record it; at an import it would be minutes ago."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def send(folder, job, job_id, launches=(), kind="ladder", time="2026-01-01T00:00:00+00:00"):
    uuid = f"lockstep:{job}-{job_id}"
    head = {"uuid": uuid, "job": job, "time": time, "launches": list(launches)}
    taken = [] if job_id is None else [{"uuid": uuid, "id": job_id}]
    path = folder / "jobs" / "submitted.jsonl"
    write_lines(path, head | {"kind": kind, "after": []}, *taken)
    return uuid


def keep(
    folder, name, *cases, expected=("a", "b"), job_id=None, world_size=4, elapsed_s=900.0,
    devices=(), **more
):  # fmt: skip
    """Write into the journal of a launch, as a session in a job does."""
    path = folder / "launches" / name / "journal.jsonl"
    slurm = {"SLURM_JOB_ID": job_id} if job_id else {}
    facts = {"world_size": world_size, "studies": "weak", "provenance": {"slurm": slurm}}
    facts |= {"launch": name}
    facts["provenance"]["device_names"] = list(devices)
    is_resumed = path.exists() and path.stat().st_size > 0
    head = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": is_resumed}
    lines = [head | {"document": {"version": "5"}, "launch": facts, "expected": list(expected)}]
    for case in cases:
        benchmark = entry(case, record("weak", world_size, elapsed_s / 20, **more))
        benchmark["extra_info"][KEY]["elapsed_s"] = elapsed_s
        lines.append({"kind": "case", "case": case, "benchmark": benchmark})
    write_lines(path, *lines)


def leave(folder, job_id, exit_code, **facts):
    record = {"job_id": job_id, "exit_code": exit_code, "stopped": False, "ended": "now"} | facts
    (folder / "jobs" / f"exit-{job_id}.json").write_text(json.dumps(record))


def account_of(job_id, state):
    return accounting.read(sacct({"JobID": job_id, "JobIDRaw": job_id, "State": state}))
