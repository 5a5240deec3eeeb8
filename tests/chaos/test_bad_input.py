"""Bad input by theme: one sentence that names what is wrong, its exit code, and nothing changed."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cluster import missing
from commands import finish
from data.job_samples import CAMPAIGN_FILE as CAMPAIGN
from data.job_samples import SITE_FILE as SITE
from data.report_samples import provenance, strong_tree
from launched import environ
from stand_ins import ROOT, StandIns, lockstep

from lockstep.core.record import SCHEMA_VERSION
from lockstep.report.page.render import MARK

COMMAND = Path(sys.executable).with_name("lockstep")
AT_ONCE = 3

RESULT = (
    '{"benchmarks": [{"name": "a", "stats": {"rounds": 3, "mean": 1.0, "median": 1.0, '
    '"min": 1.0, "max": 1.0, "stddev": 0.0}}]}'
)
# A header as Apptainer writes it: magic word, architecture arm64, where its data end.
SIF = bytearray(200)
SIF[32:42], SIF[45:48], SIF[112], SIF[120] = b"SIF_MAGIC\0", b"04\0", 150, 50

JOURNAL = "".join(
    f"{json.dumps(line)}\n"
    for line in (
        {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": False, "document": {},
         "launch": {"world_size": 1}, "expected": ["a"]},
        {"kind": "case", "case": "a", "benchmark": {"name": "a", "stats": {}}},
    )
)  # fmt: skip

# What a command leaves that has begun to work in the folder of the results.
CLAIMED = ("results", "results/ladder", "results/ladder/.lock", "results/ladder/jobs")

Content = str | bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Row:
    """A command line over bad input, and how it must end.

    Attributes:
        line: What is typed after `lockstep`.
        names: What the one sentence must name: a file, a key, a value, a remedy.
        files: Name -> content, or what makes the file.
        code: The exit code.
        commands: Name -> shell lines of the only commands on PATH; None leaves PATH.
        leaves: What may be there afterwards that was not; a folder with all that is in it.
    """

    line: str
    names: str
    files: Mapping[str, Content] = field(default_factory=dict)
    code: int = 2
    commands: Mapping[str, str] | None = None
    leaves: tuple[str, ...] = ()


def changed(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


def campaigns(old, **rows):
    """Campaign files of which a part reads otherwise: name -> what is there, what is named."""
    return {
        f"campaign: {name}": Row(
            "run bad.toml --dry-run", f"bad.toml {names}", {"bad.toml": changed(CAMPAIGN, old, new)}
        )
        for name, (new, names) in rows.items()
    }


def sites(old, line="plan", leaves=(), **rows):
    """Site files of which a part reads otherwise: name -> what is there, what is named."""
    return {
        f"site: {name}": Row(
            f"{line} campaign.toml --site bad.toml",
            names,
            {"campaign.toml": CAMPAIGN, "bad.toml": changed(SITE, old, new)},
            leaves=leaves,
        )
        for name, (new, names) in rows.items()
    }


def planned(names, options="", text=CAMPAIGN, line="plan", **more):
    """A good site, and a campaign or options that do not fit it."""
    files = {"campaign.toml": text, "site.toml": SITE}
    return Row(f"{line} campaign.toml --site site.toml {options}", names, files, **more)


def report(content, names, options=""):
    return Row(f"report x.json {options}", names, {"x.json": content})


def table(text, names, options="--to cited"):
    return Row(f"import x.csv {options}", f"x.csv {names}", {"x.csv": text})


def sparse(num_bytes):
    return lambda path: path.write_bytes(b"") or os.truncate(path, num_bytes)


def claimed(text, names):
    """A folder of results whose campaign file holds a text."""
    files = {"results/smoke/campaign.json": text}
    files |= {"results/smoke/launches/w1-r0/journal.jsonl": JOURNAL}
    return Row("run smoke", names, files, leaves=("results/smoke/.lock",))


FILES = {
    "campaign: not there": Row("run gone.toml", "gone.toml ladder"),
    "campaign: 2 MB": Row("run x.toml", "x.toml larger", {"x.toml": sparse(2**21)}),
    "folder: nothing sent": Row("resume .", "jobs submit"),
    "folder: run here": Row(
        "resume .",
        "lockstep run",
        {"campaign.json": '{"schema": 1}', "launches/w1-r0/journal.jsonl": ""},
    ),
    "folder: below a file": Row("run smoke --to x/y", "x/y/smoke", {"x": ""}, 3),
    "script: a NUL": Row("lint zero.sh", "zero.sh ", {"zero.sh": b"#!/bin/bash\n\0"}),
    "init: a file is there": Row("init --site example", "site.toml --force", {"site.toml": "mine"}),
    "files: swapped": Row(
        "plan site.toml --site campaign.toml",
        "site.toml site campaign",
        {"site.toml": SITE, "campaign.toml": CAMPAIGN},
    ),
}
# What else a file may say wrong is in the tables of tests/test_campaign.py and tests/test_site.py.
KEYS = (
    campaigns("[1, 8]", syntax=("[1, 8", "line 5"))
    | campaigns("repeats", misspelt=("repeat", "'repeat' 'repeats'"))
    | sites('image = "/images/lockstep.sif"', missing_key=("", "container.image"))
)
VALUES = campaigns(
    "repeats = 2",
    nan=("rounds = nan", "rounds"),
    too_many_launches=("repeats = 1_000_000", "2,000,000"),
) | sites(
    "time =",
    "submit --by-hand",
    CLAIMED,
    shell_that_bash_cannot_read=("shell_before = 'echo a; fi'\ntime =", "shell_before fi"),
)
OPTIONS = {
    "option: a size": Row("run smoke --world-sizes 1,3", "global_batch=64 world_size=3"),
    "option: studies": Row("run --studies nosuch", "--studies 'nosuch' 'strong'"),
    "option: no case is left": Row(
        "run --set num_workers=0 --set prefetch_factor=4", "no case study loader"
    ),
    "option: hours": planned("--budget nan", "--budget nan"),
    "option: site missing": Row("plan smoke", "--site"),
    "option: host": Row("status x --host -oProxyCommand=touch", "'-oProxyCommand=touch' LOGIN"),
    "option: two outputs": report(RESULT, "stdout", "--csv --json"),
    "name: up": Row("run smoke --name ../up", "name ../up"),
    "workload: unknown": Row("run smoke --workload nosuchmodel", "'nosuchmodel'"),
    "workload: exits": Row("run smoke -n --workload sys:exit", "sys:exit SystemExit"),
    "template: undefined": Row(
        "submit --by-hand campaign.toml --site site.toml",
        "own.sh.j2:2 acount",
        {
            "campaign.toml": CAMPAIGN,
            "own.sh.j2": '{% extends "base.sh.j2" %}\n{% block before %}{{ acount }}{% endblock %}',
            "site.toml": lambda path: path.write_text(
                changed(SITE, "time =", f'template = "{path.with_name("own.sh.j2")}"\ntime =')
            ),
        },
        leaves=CLAIMED,
    ),
}
STRONG = changed(CAMPAIGN, '["weak"]', '["strong"]')
SHAPES = {
    "shape: nodes not filled": planned("6 4 8", text=changed(CAMPAIGN, "[1, 8]", "[6]")),
    "shape: batch": planned("global_batch=100 96 104", text=f"{STRONG}global_batch = 100\n"),
} | sites("[container]", small_partition=("[partitions.gpu]\nmax_nodes = 1\n[container]", "8 2 1"))
NOT_INSTALLED = {"line": "submit", "code": 3, "leaves": CLAIMED}
REFUSES = "echo 'sbatch: error: Invalid account or account/partition combination' >&2; exit 1"
SLURM = {
    "slurm: not installed": planned("squeue", commands={}, **NOT_INSTALLED),
    "slurm: account": planned(
        "account project",
        line="submit",
        commands={"squeue": "exit 0", "sbatch": REFUSES, "sacctmgr": "echo project"},
        leaves=("results",),
    ),
}
DEFINITION = "Bootstrap: docker\nFrom: {{ BASE }}\n"
TOO_OLD = "echo apptainer version 1.1.9"
IMAGES = {
    "image: no SIF": Row("image inspect x.sif", "x.sif SIF", {"x.sif": "text"}),
    "image: cut short": Row("image inspect x.sif", "x.sif 10 bytes", {"x.sif": bytes(SIF[:190])}),
    "image: another machine's": Row("image verify x.sif", "arm64", {"x.sif": bytes(SIF)}, 1),
    "image: somebody's": Row("image build cpu x.sif", "x.sif", {"x.sif": "mine"}),
    "argument: undefined": Row("image build x.def", "BASE", {"x.def": DEFINITION}),
    "argument: unquoted": Row('image build cpu --apptainer-options "\'"', "quot"),
    "apptainer: not installed": Row("image build cpu x.sif", "apptainer", {}, 3, {}),
    "apptainer: too old": Row("image build cpu x.sif", "1.1.9 1.2", {}, 3, {"apptainer": TOO_OLD}),
}
A100 = provenance(device_names=["A100"])
HEADER = "n,value,metric,unit"
RESULTS = {
    "results: another campaign": claimed('{"schema": 1, "size": "node"}', "results/smoke node"),
    "results: newer": claimed('{"schema": 99}', "99"),
    "results: corrupt journal": Row(
        "run smoke",
        "launches/w1-r0/journal.jsonl:1",
        {"results/smoke/launches/w1-r0/journal.jsonl": "garbage\n"},
        leaves=("results/smoke/.lock", "results/smoke/campaign.json"),
    ),
    "results: journal gone": Row(
        "run smoke",
        "results/smoke/launches/w1-r0/result.json journal",
        {"results/smoke/launches/w1-r0/result.json": '{"benchmarks": [{"name": "a"}]}'},
        leaves=("results/smoke/.lock",),
    ),
    "report: nothing": Row("report .", "launch"),
    "report: cut short": report('{"benchmarks": [', "x.json JSON"),
    "report: no result": Row(
        "report .", "x.json", {"x.json": '{"a": 1}', "report.html": f"{MARK} the report before"}
    ),
    "report: 2 GB": report(sparse(2**31), "x.json 64 MiB"),
    "report: page is somebody's": Row(
        "report x.json --output x.html", "x.html --force", {"x.json": RESULT, "x.html": "mine"}
    ),
    "compare: other devices": Row(
        "compare a b",
        "H100 A100 --allow",
        {"a": strong_tree, "b": lambda path: strong_tree(path, provenance=A100)},
    ),
    "import: unit": table(f"{HEADER}\n1,1,time,y\n", "'y' ms"),
}
TRAIN = "run train --device cpu"
DIGITS = f"{TRAIN} --workload mlp --data digits"
TRAINING = {
    "train: data": Row(
        f"{TRAIN} --workload mlp --data nowhere --global-batch 64", "nowhere digits"
    ),
    "train: no batch": Row(DIGITS, "global local"),
    "train: batch": Row(f"{DIGITS} --global-batch 7 --world-size 2", "global_batch=7 world_size=2"),
}
ROWS = TRAINING | FILES | KEYS | VALUES | OPTIONS | SHAPES | SLURM | IMAGES | RESULTS


def look(folder):
    """Return each name below a folder with what changes when it is written."""
    found = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        is_folder = path.is_dir() and not path.is_symlink()
        kept = (facts.st_mode,) if is_folder else (facts.st_mode, facts.st_size, facts.st_mtime_ns)
        found[str(path.relative_to(folder))] = kept
    return found


def make(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_bad_input_ends_in_one_sentence_and_changes_nothing(row, tmp_path):
    folder, path = tmp_path / "here", None
    folder.mkdir()
    make(folder, row.files)
    if row.commands is not None:
        stand_ins = StandIns(tmp_path / "bin")
        for name, lines in row.commands.items():
            stand_ins.act(name, lines)
        path = str(tmp_path / "bin")
    before = look(folder)
    ended = lockstep(row.line, folder, path or os.environ["PATH"])
    (error,) = re.findall("^Error: (.*)$", ended.stderr, re.MULTILINE)
    assert ended.stderr.endswith(f"Error: {error}\n")
    assert [word for word in row.names.split() if word not in error] == [], error
    assert ended.returncode == row.code
    assert "Error" not in ended.stdout
    after = look(folder)
    new = {
        name: facts
        for name, facts in after.items()
        if not any(name == left or (name.startswith("results/") and left == "results")
                   for left in row.leaves)
    }  # fmt: skip
    assert new == before


# What starts torch: sessions of pytest that are refused before their first case.

ALLOCATION = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@dataclass(frozen=True)
class Session:
    """A session of pytest that is refused before its first case.

    Attributes:
        names: What the one sentence must name.
        options: What pytest is given besides the folder and the smallest size.
        environ: Variables, as a launcher sets them.
        code: The exit code.
    """

    names: str
    options: str = "-k weak"
    environ: Mapping[str, str] = field(default_factory=dict)
    code: int = 4


SESSIONS = {
    "ranks: srun alone": Session(
        "srun LOCKSTEP_LAUNCHER", environ=ALLOCATION | {"SLURM_STEP_NUM_TASKS": "8"}
    ),
    "device: no GPU": Session(
        "GPU 0 --device", "-k weak --device cuda", {"CUDA_VISIBLE_DEVICES": ""}, code=78
    ),
    "rounds: nan": Session("--rounds 'nan'", "--rounds nan"),
    "seconds: budget too short": Session(
        "--case-budget --comm-timeout", "--case-budget 5 --comm-timeout 5"
    ),
    "benchmark: rounds": Session("--benchmark-min-rounds --rounds", "--benchmark-min-rounds 9"),
    "campaign: a keyword in the shell": Session(
        "-k 'strong' weak", "--label studies=strong,weak", {"PYTEST_ADDOPTS": "-k strong"}
    ),
    "part: empty": Session("--part 2/3", "-k weak --part 2/3"),
    "case: unknown study": Session("weka", "-m weka"),
    "workload: exits": Session("sys:exit", "-k weak --workload sys:exit"),
    "journal: no folder": Session(
        "/proc/x/journal.jsonl --journal", "-k weak --journal /proc/x/journal.jsonl", code=78
    ),
    "json: the journal": Session(
        "--journal --benchmark-json", "-k weak --journal own/../x.json --benchmark-json x.json"
    ),
}
# The others are options and variables that are malformed, each in a session of its own.
IN_TEST = ("benchmark: rounds", "campaign: a keyword", "ranks: srun alone", "device: no GPU")


def arguments(session):
    journal = () if "--journal" in session.options else ("--journal", "kept/journal.jsonl")
    words = ("--size", "smoke", *journal, *shlex.split(session.options))
    return ["-m", "pytest", ROOT / "bench", *words]


def start(session, folder):
    folder.mkdir()
    command = [sys.executable, *arguments(session)]
    return finish(command, cwd=folder, env=environ(ROOT) | session.environ)


def assert_nothing_kept(folder):
    # pytest-benchmark makes the empty folder of its storage before anything else.
    assert {path.name for path in folder.rglob("*")} <= {".benchmarks"}


@pytest.fixture(scope="module")
def sessions_ended(request, tmp_path_factory):
    """How the chosen sessions ended, a few at a time, each in a folder of its own."""
    items = [item for item in request.session.items if "sessions_ended" in item.fixturenames]
    names = [item.callspec.params["name"] for item in items]
    place = tmp_path_factory.mktemp("sessions")
    folders = [place / str(number) for number in range(len(names))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = pool.map(start, map(SESSIONS.get, names), folders)
        return dict(zip(names, zip(ended, folders, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith(IN_TEST) else pytest.param(name, marks=pytest.mark.chaos)
        for name in SESSIONS
    ],
)
def test_a_session_that_cannot_measure_says_why_before_its_first_case(name, sessions_ended):
    (ended, folder), session = sessions_ended[name], SESSIONS[name]
    text = ended.stdout + ended.stderr
    assert "Traceback" not in text
    pattern = r"^ERROR: (?!usage:)(.*)$|: error: (.*)$|outcomes\.Exit: (.*?) !+$"
    (found,) = re.findall(pattern, text, re.M)
    assert [word for word in session.names.split() if word not in "".join(found)] == [], found
    assert ended.returncode == session.code
    assert_nothing_kept(folder)


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "names"),
    [("--lf", "--lf --resume"), ("-m strong --global-batch 7", "global_batch=7 world_size=2")],
)
def test_what_several_ranks_cannot_do_ends_all_of_them(options, names, run_ranks, tmp_path):
    ended = run_ranks([arguments(Session("", options))] * 2, tmp_path)
    assert [rank.returncode for rank in ended] == [4, 4]
    (error,) = re.findall("^ERROR: (.*)$", ended[0].stdout + ended[0].stderr, re.MULTILINE)
    assert [word for word in names.split() if word not in error] == [], error
    assert ended[1].stdout == ""
    assert_nothing_kept(tmp_path)


# A rank whose host has a file system of its own where the others share one.
UNSHARED = """
import os, sys
mounted = 'mount -t tmpfs none shared && exec "$@"'
apart, session = sys.argv[1].split(), [sys.executable, *sys.argv[2:]]
os.execvp("unshare", [*apart, "sh", "-c", mounted, "sh", *session])
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_results_that_a_host_does_not_share_are_refused_by_all(run_ranks, tmp_path):
    unshare = ("unshare", "--user", "--map-root-user", "--mount")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        missing("this user may not make a namespace")
    (tmp_path / "shared").mkdir()
    journal = "shared/results/journal.jsonl"
    session = arguments(Session("", f"-k weak --device cpu --comm-timeout 6 --journal {journal}"))
    ended = run_ranks([session, ("-c", UNSHARED, shlex.join(unshare), *session)], tmp_path)
    assert [rank.returncode for rank in ended] == [78, 78]
    assert re.search(rf"rank 1 .*{journal}.*--journal", ended[0].stdout), ended[0].stdout
    assert (tmp_path / journal).read_text() == ""


# torch as it may be built
LESS = """
from torch import distributed

distributed.is_available = lambda: False
del distributed.HashStore, distributed.is_initialized
"""
IN_RANKS = """
import sys
if "lockstep.launch.hooks" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv:
    import less
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_a_torch_without_what_ranks_speak_through_is_refused(tmp_path):
    (tmp_path / "less.py").write_text(LESS)
    (tmp_path / "sitecustomize.py").write_text(IN_RANKS)
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    measured = start(Session("", "-p less -k weak --device cpu", path), tmp_path / "here")
    line = f"{DIGITS} --global-batch 64"
    own = environ(ROOT, **path)
    trained = finish([COMMAND, *line.split()], cwd=tmp_path, env=own)
    assert (measured.returncode, trained.returncode) == (78, 3)
    for text in (measured.stdout, trained.stderr):
        assert re.search(r"rank 0 on .*torch .* without torch\.distributed", text), text
    assert_nothing_kept(tmp_path / "here")


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_whose_cases_are_all_skipped_measures_nothing_and_says_so(tmp_path):
    smallest = changed(CAMPAIGN, "[1, 8]\nrepeats = 2", "[1]\nrepeats = 1")
    (tmp_path / "fp16.toml").write_text(f'{smallest}device = "cpu"\nprecision = "fp16"\n')
    ended = lockstep("run fp16.toml", tmp_path, os.environ["PATH"])
    assert (ended.returncode, "fp16 needs a GPU" in ended.stderr) == (1, True)
