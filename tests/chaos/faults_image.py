"""Faults of the image and of the GPUs in it, put into campaigns on the testbed."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import ground as testbed
from cluster import IMAGE
from fault import Seen
from faults_slurm import BEFORE, NUM_BEFORE, SHORT, code, measured
from ground import Ground, first, ground

missing = testbed.missing
GPUS = {"gpus_per_node": 2, "gpu_type": "fake", "partition": "debug"}


def own_image(name: str) -> dict[str, Any]:
    """Return the site's keys for an image in the ground's own folder."""
    return {"container": {"image": str(testbed.SHARED / f"fault-{name}" / "image.sif")}}


def link_image(here: Ground) -> Path:
    """Give the ground the usual image under a name of its own."""
    path = here.folder / "image.sif"
    os.link(IMAGE, path)
    return path


def tracebacks(here: Ground, job_id: str) -> int:
    """Return how often Python's or Apptainer's own words for an error were said."""
    text = here.log() + here.said(job_id)
    return text.count("Traceback") + text.count("FATAL")


def gone(folder: Path) -> Seen:
    texts, holds = [], []
    moments = {"before the job starts": "rm -f", "while it runs": "true"}
    for when, command in moments.items():
        with ground("gone", site=own_image("gone"), env=SHORT) as here:
            image = link_image(here)
            later = (
                f"( until [ -e {here.folder}/arrived-1 ]; do sleep 0.05; done; rm -f {image} ) &"
            )
            here.rewrite_site(shell_before=f"{command} {image}; {later}")
            if command == "true":
                here.put("eat-none")
                here.put("hold")
            job_id = here.submit()
            if command == "true":
                here.at_gate(0, 1)
                testbed.until(lambda path=image: not path.exists(), "the image to go")
                for pid in testbed.processes("pytest", job_id=job_id, rank=1):
                    os.kill(pid, signal.SIGKILL)  # so that a step has to begin anew
                here.let_go()
            facts = here.finished(job_id)
            lines = (here.log() + here.said(job_id)).splitlines()
            line = first(lines, "not found on host")
            count = sum("not found on host" in one for one in lines)
            texts.append(f"{when}: exit {facts['exit_code']}, {count} line: {line[:160]}")
            holds.append(count == 1 and not tracebacks(here, job_id))
    return Seen("; ".join(texts), all(holds))


def tampered(folder: Path) -> Seen:
    texts, holds = [], []
    for what in ("cut short", "one byte flipped", "cut short, no record of its hash"):
        with ground("tampered", site=own_image("tampered"), env=SHORT) as here:
            image = here.folder / "image.sif"
            with IMAGE.open("rb") as whole, image.open("wb") as part:
                shutil.copyfileobj(_Head(whole, 200_000_000), part)
            if "cut" not in what:
                shutil.copy(IMAGE, image)
                with image.open("r+b") as file:
                    file.seek(1_500_000_000)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 1]))
            if "no record" not in what:
                shutil.copy(IMAGE.with_suffix(".sif.json"), here.folder / "image.sif.json")
            here.own(here.folder)
            began = time.monotonic()
            job_id = here.submit()
            facts = here.finished(job_id)
            took = time.monotonic() - began
            lines = here.said(job_id).splitlines()
            line = (
                first(lines, "has changed since") or first(lines, "FATAL") or " ".join(lines[-2:])
            )
            said = line.partition("lockstep: ")[2] or line
            texts.append(f"{what}: exit {facts['exit_code']} after {took:.0f} s, {said[:200]}")
            holds.append(bool(line) and facts["exit_code"] in (1, 78) and not here.log())
    return Seen("; ".join(texts), all(holds))


class _Head:
    """The first bytes of a file.

    Args:
        file: The file.
        left: How many.
    """

    def __init__(self, file: Any, left: int) -> None:
        self.file, self.left = file, left

    def read(self, size: int) -> bytes:
        found: bytes = self.file.read(min(size, self.left))
        self.left -= len(found)
        return found


def squashfuse_killed(folder: Path) -> Seen:
    with ground("squashfuse", studies=BEFORE, env=SHORT) as here:
        here.put("hold")
        job_id = here.submit()
        here.at_gate(0, 1)
        before = measured(here)
        victims = testbed.processes("squashfuse", job_id=job_id, rank=1)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        here.let_go()
        testbed.until(lambda: "srun ended with" in here.said(job_id), "the end of the step")
        took = time.monotonic() - began
        facts = here.finished(job_id)
        reasons = [one["reason"] for one in here.entries() if one["kind"] == "fail"]
        text = (
            f"{len(victims)} squashfuse of rank 1 killed: {code(here, job_id)[:200]}; "
            f"fail: {[reason[:160] for reason in reasons]}; {len(before)} cases before, "
            f"{len(measured(here))} good in the end, exit {facts['exit_code']}"
        )
        good = len(before) == NUM_BEFORE and len(measured(here)) == NUM_BEFORE + 1
        return Seen(text, good and len(reasons) == 1, took)


def no_gpu(folder: Path) -> Seen:
    with ground("no-gpu", site=GPUS, device="cuda", env=SHORT) as here:
        job_id = here.submit()
        facts = here.finished(job_id)
        line = first(here.log().splitlines(), "needs GPU")
        text = f"exit {facts['exit_code']}, {code(here, job_id)[:120]}; {line}"
        holds = "0 are visible" in line and "rank 0 on" in line and not here.entries()
        return Seen(text, holds)


def fewer_gpus(folder: Path) -> Seen:
    with ground("fewer-gpus", site=GPUS, device="cuda", world_sizes=[3], global_batch=12) as here:
        ended = here.lockstep("submit", "campaign.toml", "--site", "site.toml")
        by_hand = testbed.as_user(
            *("srun", "--partition=debug", "--account=project", "--nodes=1", "--ntasks=3"),
            *("--ntasks-per-node=3", "--gpus-per-node=fake:2", "--mem=3G", "--kill-on-bad-exit=1"),
            *("env", "LOCKSTEP_LAUNCHER=slurm", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=23999"),
            *("apptainer", "exec", f"--bind={testbed.suite()}", str(IMAGE), "python3", "-m"),
            *("pytest", str(testbed.suite() / "bench"), "-m", "weak", "--size=smoke"),
            *("--device=cuda", "--comm-timeout=20"),
            cwd=here.folder,
        )
        lines = (by_hand.stdout + by_hand.stderr).splitlines()
        line = first(lines, "needs GPU")
        text = (
            f"submit: exit {ended.returncode}, {ended.stderr.strip()[:200]}; three ranks by hand: "
            f"exit {by_hand.returncode}, {line[:200]} (stand-in GPUs are none to CUDA)"
        )
        return Seen(text, ended.returncode == 2 and "2" in ended.stderr and "GPU" in line)


def two_images(folder: Path) -> Seen:
    with ground("two-images", site={"max_ranks_per_node": 1}, env=SHORT) as here:
        labels = here.folder / "labels.json"
        labels.write_text('{"org.label-schema.build-date": "another day"}')
        here.bind_on("node2", f"{labels}:/.singularity.d/labels.json")
        job_id = here.submit()
        facts = here.finished(job_id)
        line = first(here.log().splitlines(), "image")
        text = f"exit {facts['exit_code']}, {code(here, job_id)[:120]}; {line[:240]}"
        return Seen(text, "rank 1" in line and not measured(here))
