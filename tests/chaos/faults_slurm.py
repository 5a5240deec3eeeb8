"""Faults of Slurm, its daemons and its jobs, put into campaigns on the testbed."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ground as testbed
from fault import Seen
from ground import Ground, ask, first, ground, queued, until

missing = testbed.missing
CONF = Path("/etc/slurm/slurm.conf")
BEFORE = ["collective", "strong", "weak"]  # the strong case, which is gated, has some before it
NUM_BEFORE = 10
# A rank that does not answer is given up after 15 s.
SHORT = {"PYTEST_ADDOPTS": "--comm-timeout=5"}


def measured(here: Ground, launch: str = "w2-r0") -> list[str]:
    """Return the cases that a launch has measured, in the order it did."""
    return [one["case"] for one in here.entries(launch) if one["kind"] == "case"]


@contextmanager
def configured(*lines: str) -> Iterator[None]:
    """Give Slurm further lines of configuration for a while."""
    before = CONF.read_text()
    CONF.write_text("\n".join([before.rstrip("\n"), *lines, ""]))
    try:
        ask("scontrol", "reconfigure")
        time.sleep(1)
        yield
    finally:
        CONF.write_text(before)
        ask("scontrol", "reconfigure")


def over_memory(folder: Path) -> Seen:
    with ExitStack() as stack:
        stack.enter_context(configured("JobAcctGatherParams=OverMemoryKill"))
        here = stack.enter_context(ground("memory", site={"mem": "3G"}))
        here.put("hold", "eat-1")
        job_id = here.submit()
        here.at_gate(0, 1)
        here.let_go()
        began = time.monotonic()
        until(lambda: "exceeded memory limit" in here.log() + here.said(job_id), "its end")
        took = time.monotonic() - began
        facts = here.finished(job_id)
        word = testbed.state(job_id)
        reasons = [one["reason"] for one in here.entries() if one["kind"] == "fail"]
        told = here.told()
        text = (
            f"job {word}, exit {facts['exit_code']}; fail: {reasons}; good: {here.cases()}; {told}"
        )
        named = all("memory" in reason for reason in reasons) and len(reasons) == 1
        return Seen(text, named and len(here.cases()) == 1 and facts["exit_code"] == 1, took)


def unwritable(folder: Path) -> Seen:
    with ground("unwritable", site={"max_ranks_per_node": 1}, env=SHORT) as here:
        here.bind_on("node2", f"{here.results}:{here.results}:ro")
        job_id = here.submit()
        facts = here.finished(job_id)
        line = first(here.log().splitlines(), "cannot write")
        text = f"exit {facts['exit_code']}, srun: {code(here, job_id)}; {line}"
        holds = "rank 1" in line and not measured(here) and facts["exit_code"] == 1
        return Seen(text, holds)


def code(here: Ground, job_id: str) -> str:
    """Return what the script said of the ends of its steps."""
    said = [line.partition("lockstep: ")[2] for line in here.said(job_id).splitlines()]
    return "; ".join(line for line in said if "srun ended" in line)


def cancelled(folder: Path) -> Seen:
    with ground("cancelled", studies=BEFORE, env=SHORT) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        before = measured(here)
        began = time.monotonic()
        ask("scancel", job_id)
        until(lambda: here.job()["state"] == "CANCELLED", "CANCELLED")
        took = time.monotonic() - began
        kept = measured(here)
        half = list(here.results.glob("launches/*/result.json"))
        here.let_go()
        last = here.resume()
        facts = here.finished(last)
        good = measured(here)
        text = (
            f"CANCELLED; {len(before)} finished cases before, {len(kept)} after, {len(half)} JSON; "
            f"resumed: {len(good)} cases, exit {facts['exit_code']}"
        )
        holds = len(kept) == len(before) == NUM_BEFORE and not half
        whole = len(set(good)) == len(good) == NUM_BEFORE + 2 and facts["exit_code"] == 0
        return Seen(text, holds and whole, took)


def nearly_over(folder: Path) -> Seen:
    with ground("nearly-over", jobs={"time": "00:02:00"}) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        until(lambda: (here.results / "jobs" / f"stop-{job_id}").exists(), "the stop file", 200)
        began = time.monotonic()
        here.let_go()
        facts = here.finished(job_id)
        took = time.monotonic() - began
        before = measured(here)
        last = here.resume()
        again = here.finished(last)
        text = (
            f"stop file at Slurm's signal; exit {facts['exit_code']}, "
            f"stopped {facts['stopped']}, {len(before)} of 2 cases; resumed: exit "
            f"{again['exit_code']}, {len(measured(here))} cases"
        )
        holds = facts["exit_code"] == 75 and facts["stopped"] and len(before) == 1
        return Seen(text, holds and again["exit_code"] == 0 and len(measured(here)) == 2, took)


def over_time(folder: Path) -> Seen:
    with ground("over-time", jobs={"time": "00:01:00"}, studies=BEFORE) as here:
        here.put("hold")
        here.rewrite_site(shell_before="trap '' USR1")
        job_id = here.submit()
        here.at_gate(0, 1)
        until(lambda: testbed.state(job_id) == "TIMEOUT", "TIMEOUT", 200)
        began = time.monotonic()
        until(lambda: here.job()["state"] == "TIMEOUT", "status TIMEOUT")
        took = time.monotonic() - began
        told = here.told()
        testbed.done(here.lockstep("status", "--collect", "results/fault"))
        path = here.results / "launches" / "w2-r0" / "result.json"
        found = json.loads(path.read_text())
        block = found["lockstep"]
        left = len(block["expected"]) - len(found["benchmarks"]) - len(block["failed"])
        text = f"{told.split('log:')[0]}; collected {len(found['benchmarks'])}, {left} left"
        holds = not block["complete"] and len(found["benchmarks"]) == NUM_BEFORE and left == 2
        return Seen(text, holds and "raise time" in told, took)


def requeued(folder: Path) -> Seen:
    with ground("requeued", studies=BEFORE) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        before = measured(here)
        refused = subprocess.run(
            ["scontrol", "requeue", job_id], capture_output=True, text=True, check=False
        ).stderr.strip()
        ask("scontrol", "update", f"jobid={job_id}", "requeue=1")
        ask("scontrol", "requeue", job_id)
        began = time.monotonic()
        here.let_go()
        until(lambda: testbed.state(job_id) == "PENDING", "the requeued job")
        ask("scontrol", "update", f"jobid={job_id}", "starttime=now")
        until(lambda: len(attempts(here)) == 2, "a second attempt")
        took = time.monotonic() - began
        during = here.job()["state"]
        facts = here.finished(job_id)
        good = measured(here)
        text = (
            f"unasked: {refused.partition(':')[0] or 'taken'}; forced: 2 attempts, second seen as "
            f"{during}; {len(before)} cases kept, {len(good)} in the end, exit {facts['exit_code']}"
        )
        whole = len(set(good)) == len(good) == NUM_BEFORE + 2
        return Seen(text, whole and bool(refused) and facts["exit_code"] == 0, took)


def attempts(here: Ground, launch: str = "w2-r0") -> list[str]:
    """Return the attempts of a launch, in the order they began."""
    return [one["attempt"] for one in here.entries(launch) if one["kind"] == "launch"]


def node_lost(folder: Path) -> Seen:
    with ground("node-lost", site={"max_ranks_per_node": 1}, studies=BEFORE, env=SHORT) as here:
        here.put("hold")
        here.submit()
        here.at_gate(0, 1)
        kept = measured(here)
        testbed.node("lose", "node2")
        try:
            began = time.monotonic()
            until(lambda: here.job()["state"] == "NODE_FAIL", "NODE_FAIL")
            took = time.monotonic() - began
            told = here.told()
        finally:
            testbed.node("return", "node2")
        until(testbed.all_idle, "four idle nodes", 90)
        here.let_go()
        facts = here.finished(here.resume())
        good = measured(here)
        text = (
            f"{told.split('log:')[0]}; {len(kept)} cases kept; resumed: {len(good)} cases, "
            f"exit {facts['exit_code']}"
        )
        whole = len(set(good)) == len(good) == NUM_BEFORE + 2
        return Seen(text, "node2" in told and whole, took)


def split_brain(folder: Path) -> Seen:
    with ground("split-brain", studies=BEFORE) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        name = ask("squeue", "--noheader", f"--job={job_id}", "--format=%N")
        with testbed.frozen(name):
            began = time.monotonic()
            until(lambda: testbed.state(job_id) == "NODE_FAIL", "NODE_FAIL")
            took = time.monotonic() - began
            alive = len(testbed.processes("pytest", job_id=job_id))
            second = here.resume()
            facts = here.finished(second)
            refused = first(here.log().splitlines(), "writes into")
            here.let_go()  # the old ranks go on, unknown to Slurm
            until(lambda: not testbed.processes("pytest", job_id=job_id), "the old ranks' end")
        late = len(measured(here))
        until(testbed.all_idle, "four idle nodes", 90)
        last = here.finished(here.resume())
        stray = {"kind": "fail", "case": measured(here)[0], "reason": "late", "attempt": "0" * 8}
        path = here.results / "launches" / "w2-r0" / "journal.jsonl"
        with path.open("a") as file:  # as on a file system without locks
            file.write(json.dumps(stray) + "\n")
        testbed.done(here.lockstep("status", "--collect", "results/fault"))
        block = json.loads(path.with_name("result.json").read_text())["lockstep"]
        good = measured(here)  # of the journal's own lines: a document has each case once
        none_twice = len(set(good)) == len(good)
        text = (
            f"NODE_FAIL, {alive} processes of the first attempt alive; second attempt: exit "
            f"{facts['exit_code']}, {refused[:200]}; {late} cases when the old ranks had ended; "
            f"third: exit {last['exit_code']}, {len(good)} cases, none twice: {none_twice}; a "
            f"stray line of another attempt is read: {bool(block['failed'])}"
        )
        holds = bool(refused) and not block["failed"] and block["complete"]
        whole = none_twice and len(good) == NUM_BEFORE + 2 and last["exit_code"] == 0
        return Seen(text, holds and whole, took)


def stepd_killed(folder: Path) -> Seen:
    with ground("stepd", studies=BEFORE, env=SHORT) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        stepds = testbed.processes(f"slurmstepd: [{job_id}")
        for pid in stepds:
            os.kill(pid, signal.SIGKILL)
        time.sleep(3)
        word = testbed.state(job_id)
        for path in here.results.rglob("*"):
            if path.is_file():  # a quarter of an hour later
                then = path.stat().st_mtime - 1000
                os.utime(path, (then, then))
        row = here.job()
        told = here.told()
        for pid in testbed.processes("pytest", job_id=job_id):
            os.kill(pid, signal.SIGKILL)
        text = f"{len(stepds)} slurmstepd killed; Slurm: {word}; 1000 s later: {told[:400]}"
        return Seen(text, row["state"] == "STALLED" and "lockstep cancel" in str(row["advice"]))


def prolog_fails(folder: Path) -> Seen:
    prolog = testbed.SHARED / "prolog-that-fails"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    with ground("unstarted") as here:
        try:
            with configured(f"Prolog={prolog}"):
                job_id = here.submit()
                began = time.monotonic()
                until(lambda: "drain" in ask("sinfo", "-h", "-o", "%T"), "a drained node")
                until(lambda: testbed.state(job_id) not in ("RUNNING", "CONFIGURING"), "its end")
                until(lambda: "did not start" in here.told(), "accounting to hear of it", 30)
                took = time.monotonic() - began
                row, told = here.job(), here.told()
        finally:
            for name in ("node1", "node2", "node3", "node4"):
                ask("scontrol", "update", f"nodename={name}", "state=resume")
            prolog.unlink()
        text = told.split("log:")[0]
        return Seen(text, "prolog" in told and row["state"] == "CANCELLED", took)


# The real sbatch, once a file says so: a daemon can then be frozen at the right moment.
GATED_SBATCH = """touch sending; until [ -e go ]; do sleep 0.05; done
/usr/bin/sbatch "$@"; code=$?; echo "$code" >code; exit "$code"
"""


@contextmanager
def sending(here: Ground) -> Iterator["subprocess.Popen[str]"]:
    """Give a `lockstep submit` whose sbatch waits for an answer of a frozen slurmctld."""
    tools = here.tool("sbatch", GATED_SBATCH)
    command = here.begin("submit", "campaign.toml", "--site", "site.toml", tools=tools)
    until((here.folder / "sending").exists, "sbatch")
    with testbed.frozen("slurmctld"):
        here.put("go")
        yield command


def frozen_at_submit(folder: Path) -> Seen:
    with ground("frozen") as here:
        here.put("hold")
        began = time.monotonic()
        with sending(here) as command:
            time.sleep(12)  # sbatch gives up after 10 s
        out, err = command.communicate(timeout=120)
        took = time.monotonic() - began
        until(lambda: bool(queued()), "the job")
        uuids = ask("squeue", "--noheader", "--format=%k").split()
        again = here.lockstep("submit", "campaign.toml", "--site", "site.toml")
        row = here.job()
        text = (
            f"sbatch: exit {(here.folder / 'code').read_text().strip()}; "
            f"submit: exit {command.returncode}, {' '.join((err or out).split())[:160]}; "
            f"{len(uuids)} job; submit again: exit {again.returncode}, "
            f"{again.stderr.strip()[:160]}; status knows it as {row['id']}, {row['state']}"
        )
        once = uuids == asked(here)
        return Seen(text, once and again.returncode == 2 and row["id"] is not None, took)


def asked(here: Ground) -> list[str]:
    """Return the UUIDs of the jobs that were to be sent."""
    path = here.results / "jobs" / "submitted.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry["uuid"] for entry in map(json.loads, lines) if "job" in entry]


def controller_down(folder: Path) -> Seen:
    with ground("controller", studies=["strong"]) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        os.kill(testbed.pid_of("slurmctld"), signal.SIGKILL)
        try:
            began = time.monotonic()
            ended = here.lockstep("status", "results/fault", "--json")
            took = time.monotonic() - began
            during = json.loads(ended.stdout)["jobs"][0]["state"]
        finally:
            restart("slurmctld")
        until(lambda: testbed.state(job_id) == "RUNNING", "the controller", 60)
        after = here.job()["state"]
        here.let_go()
        facts = here.finished(job_id)
        text = (
            f"during: {during}, {' '.join(ended.stderr.split())[:160]}; restarted: {after}; "
            f"exit {facts['exit_code']}, {len(measured(here))} case"
        )
        holds = (
            during in ("unknown", "RUNNING") and after == "RUNNING" and "not all" in ended.stderr
        )
        return Seen(text, holds and facts["exit_code"] == 0, took)


def restart(daemon: str) -> None:
    """Start a daemon of the testbed that was killed."""
    line = f". {testbed.TESTBED}/common.sh; start {daemon} {daemon} -D"
    subprocess.run(["bash", "-c", line, str(testbed.TESTBED / "up")], check=True)


def alone(here: Ground) -> str:
    """Return the id of a job of one rank that has ended well."""
    job_id = here.submit()
    here.finished(job_id)
    return job_id


NO_SACCT = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


def purged(folder: Path) -> Seen:
    with configured("MinJobAge=2"), ground("purged", world_sizes=[1], studies=["weak"]) as here:
        job_id = alone(here)
        until(lambda: not testbed.state(job_id), "the record to be purged", 150)
        tools = here.tool("sacct", NO_SACCT)
        known = here.job(tools)["state"]
        (here.results / "jobs" / f"exit-{job_id}.json").unlink()
        row = here.job(tools)
        text = f"from the script's record: {known}; without it: {row['state']}, {row['meaning']}"
        return Seen(text, known == "COMPLETED" and row["state"] in ("unknown", "LOST"))


def without_accounting(folder: Path) -> Seen:
    with ground("accounting", world_sizes=[1], studies=["weak"]) as here:
        here.put("hold")
        job_id = here.submit()
        until(lambda: testbed.state(job_id) == "RUNNING", "the job")
        running = {}
        answers = {"absent": NO_SACCT, "empty": ":", "garbage": "head -c 4096 /dev/urandom"}
        for name, body in answers.items():
            running[name] = here.job(here.tool("sacct", body))["state"]
        here.let_go()
        here.finished(job_id)
        ended = {
            name: here.job(here.tool("sacct", body))["state"] for name, body in answers.items()
        }
        resent = len(here.sent())
        text = f"running: {running}; ended: {ended}; jobs sent: {resent}"
        holds = set(running.values()) == {"RUNNING"} and set(ended.values()) == {"COMPLETED"}
        return Seen(text, holds and resent == 1)


def dependency(folder: Path) -> Seen:
    with ground("dependency", jobs={"preflight": True}) as here:
        here.rewrite_site(shell_before="exit 3")
        testbed.done(here.lockstep("submit", "campaign.toml", "--site", "site.toml"))
        began = time.monotonic()
        last = here.sent()[-1]
        until(lambda: testbed.state(last) == "CANCELLED", "the job behind it cancelled")
        took = time.monotonic() - began
        rows = {row["job"]: row["state"] for row in here.status()["jobs"]}
        ended = here.lockstep("status", "results/fault")
        text = f"{rows}; exit {ended.returncode}, {' '.join(ended.stdout.split())[-120:]}"
        holds = rows == {"fault-preflight": "FAILED", "fault": "CANCELLED"}
        return Seen(text, holds and ended.returncode == 1 and "lockstep resume" in text, took)


def partition_down(folder: Path) -> Seen:
    with ground("partition") as here:
        ask("scontrol", "update", "partitionname=debug", "state=down")
        try:
            here.submit()
            began = time.monotonic()
            down = here.job()["meaning"]
            took = time.monotonic() - began
        finally:
            ask("scontrol", "update", "partitionname=debug", "state=up")
        testbed.done(here.lockstep("cancel", "results/fault"))
    with ground("partition") as here:
        for name in ("node1", "node2"):
            ask("scontrol", "update", f"nodename={name}", "state=drain", "reason=fault")
        try:
            here.submit()
            until(lambda: "until" in here.job()["meaning"], "a reason")
            time.sleep(3)
            drained = here.job()["meaning"]
        finally:
            for name in ("node1", "node2"):
                ask("scontrol", "update", f"nodename={name}", "state=resume")
    text = f"down: {down}; drained: {drained}; nothing cancels by itself"
    return Seen(text, "partition" in down and "nodes" in drained, took)


def element_fails(folder: Path) -> Seen:
    with ground("element", jobs={"allocation": "array"}, world_sizes=[1]) as here:
        here.rewrite_site(shell_before='[ "${SLURM_ARRAY_TASK_ID:-0}" != 1 ] || exit 9')
        here.submit()
        until(lambda: not queued(), "the array's end")
        row = here.status()["jobs"][0]
        bad = [one["launch"] for one in row["ended_badly"]]
        again = here.resume()
        lines = (here.results / "jobs" / "submitted.jsonl").read_text().splitlines()
        launches = [entry for entry in map(json.loads, lines) if "launches" in entry][-1][
            "launches"
        ]
        text = f"{row['elements']}, bad: {bad}; resume sends {launches} as job {again}"
        holds = row["elements"] == {"COMPLETED": 1, "FAILED": 1} and launches == bad
        return Seen(text, holds)


def ports_taken(folder: Path) -> Seen:
    with ExitStack() as stack:
        taken = 0
        for port in (29500, *range(20000, 20400), *range(32768, 33168)):
            holder = stack.enter_context(socket.socket())
            try:
                holder.bind(("", port))
                holder.listen()
                taken += 1
            except OSError:
                continue
        one = stack.enter_context(ground("ports-1", studies=["weak"]))
        two = stack.enter_context(ground("ports-2", studies=["weak"]))
        ids = [one.submit(), two.submit()]
        codes = [here.finished(job)["exit_code"] for here, job in zip((one, two), ids, strict=True)]
        text = f"{taken} ports taken, two jobs at once: exit codes {codes}"
        return Seen(text, codes == [0, 0])


def flood(folder: Path) -> Seen:
    texts, holds = [], []
    for name, good in (("flood", ["strong", "weak"]), ("raise", ["weak"])):
        with ground("flood", env=SHORT) as here:
            here.put("flood-0", "flood-1", f"{name}-0")
            job_id = here.submit()
            facts = here.finished(job_id)
            size = (here.results / "launches" / "w2-r0" / "log.txt").stat().st_size
            line = first(here.log().splitlines(), "lockstep: of", "left out")
            texts.append(
                f"{name}: exit {facts['exit_code']}, good {here.cases()}, {size} B; {line}"
            )
            holds.append(here.cases() == good and size < 70_000_000)
    return Seen("; ".join(texts), all(holds))


def driver_killed(folder: Path) -> Seen:
    with ground("driver", jobs={"allocation": "job"}, world_sizes=[1, 2]) as here:
        here.put("hold")
        with sending(here) as command:
            time.sleep(0.5)
            for pid in testbed.processes("-m", "lockstep", "submit"):
                os.kill(pid, signal.SIGKILL)
            command.communicate()
        until(lambda: bool(queued()), "the job that was being sent")
        time.sleep(2)
        before = len(queued())
        again = here.lockstep("submit", "campaign.toml", "--site", "site.toml")
        here.let_go()
        until(lambda: not queued(), "its end")
        testbed.done(here.lockstep("resume", "results/fault"))
        until(lambda: not queued(), "the rest")
        found = here.status()
        good = {name: len(measured(here, name)) for name in ("w1-r0", "w2-r0")}
        text = (
            f"{before} job of the killed driver runs; submit again: {again.stderr.strip()[:140]}; "
            f"resume: {found['num_complete']} of 2 launches, cases {good}"
        )
        holds = before == 1 and again.returncode == 2 and found["num_complete"] == 2
        return Seen(text, holds and set(good.values()) == {2})


def two_drivers(folder: Path) -> Seen:
    with ground("drivers") as here:
        here.put("hold")
        both = [here.begin("submit", "campaign.toml", "--site", "site.toml") for _ in range(2)]
        texts = [one.communicate(timeout=60) for one in both]
        codes = sorted(one.returncode for one in both)
        refusal = next((err for out, err in texts if err), "")
        jobs = len(queued())
        text = f"exit codes {codes}, {jobs} job; {refusal.strip()}"
        return Seen(text, codes == [0, 2] and jobs == 1)
