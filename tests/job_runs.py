"""Jobs' scripts, run with stand-ins for Slurm, Apptainer and Python that write down their words.

The stand-ins are the scripts in `data/stubs`. srun runs its command as one rank would; what the
others were given lies in files `seen.*`, words divided by zero bytes.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from data.job_samples import site_of, small

from lockstep.core.record import SCHEMA_VERSION
from lockstep.slurm.submit.job import jobs
from lockstep.slurm.submit.script import LIBRARY, library, render

ROOT = Path(__file__).parents[1]
STUBS = ROOT / "tests" / "data" / "stubs"
# How a session begins its part of a journal; here of a launch that has no case to measure.
LAUNCH = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": False, "expected": []}
LAUNCH |= {"document": {}, "launch": {}}
HARMFUL = ["$(touch BROKEN)", "`touch BROKEN`", "'; touch BROKEN; '", '"; touch BROKEN; "',
           "x\ntouch BROKEN", "a b", "-x", "{{ 7 }}", "{% raw %}", "\\"]  # fmt: skip


def environ_of(stubs, folder, **environ):
    return {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "SUITE": str(ROOT),
        "PYTHON": sys.executable,
        "SEEN": str(folder / "seen"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "STRANGE": "host",
        "LAUNCH": json.dumps(LAUNCH),
        **environ,
    }


def execute(script, stubs, folder, **environ):
    return subprocess.run(
        ["bash", "-c", script, "job"],
        cwd=folder,
        env=environ_of(stubs, folder, **environ),
        capture_output=True,
        text=True,
        timeout=180,  # of seconds, on a busy machine
        check=False,
    )


def made(folder, old="", new=""):
    """Make a campaign's folder as rendering does, with one change in the library, and return it."""
    path = folder / "jobs" / LIBRARY
    path.parent.mkdir(parents=True, exist_ok=True)
    assert old in library()
    path.write_text(library().replace(old, new))
    return folder


def seen(folder, what):
    return (folder / f"seen.{what}").read_bytes().decode().split("\0")[:-1]


def plain(**changes):
    return site_of(**{"shell_before": ""} | changes)


@dataclass(frozen=True)
class JobRun:
    folder: Path
    results: Path

    def script(self, campaign=None, site=None, index=0):
        site = site or plain()
        return render(jobs(campaign or small(), site, self.results)[index], site)

    def run(self, campaign=None, site=None, index=0, **environ):
        return self.execute(self.script(campaign, site, index), **environ)

    def execute(self, script, **environ):
        return execute(script, STUBS, self.folder, **environ)

    def start(self, script, **environ):
        return subprocess.Popen(
            ["bash", "-c", script, "job"],
            cwd=self.folder,
            env=environ_of(STUBS, self.folder, **environ),
            stdout=subprocess.PIPE,
            text=True,
        )

    def seen(self, what):
        return seen(self.folder, what)

    @property
    def has_measured(self):
        return (self.folder / "seen.arguments").exists()

    @property
    def environment(self):
        """The variables of the rank that began last."""
        return dict(pair.split("=", 1) for pair in self.seen("environment"))

    @property
    def in_image(self):
        """The variables that the last rank handed on into its image."""
        prefix = "APPTAINERENV_"
        return {
            name.removeprefix(prefix): value
            for name, value in self.environment.items()
            if name.startswith(prefix)
        }

    def end(self, job_id="7"):
        return json.loads((self.results / "jobs" / f"exit-{job_id}.json").read_text())

    def launches(self):
        prefix = "--label=launch="
        words = self.seen("arguments")
        return [word.removeprefix(prefix) for word in words if word.startswith(prefix)]


def with_real_stat(folder):
    """Return a PATH on which files are looked at as they are."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "stat").symlink_to("/usr/bin/stat")
    return f"{tools}:{STUBS}:{os.defpath}"
