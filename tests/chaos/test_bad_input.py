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


def refused(said, names, **answers):
    """A submission to a Slurm that refuses it, and says what it has."""
    sbatch = f"echo 'sbatch: error: {said}' >&2; exit 1"
    commands = {"squeue": "exit 0", "sbatch": sbatch}
    commands |= {name: f"echo {shlex.quote(text)}" for name, text in answers.items()}
    return planned(names, line="submit", commands=commands, leaves=("results",))


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
    "campaign: a folder": Row("run .", "Is a directory"),
    "campaign: 2 MB": Row("run x.toml", "x.toml larger", {"x.toml": sparse(2**21)}),
    "campaign: empty": Row("run x.toml", "x.toml schema missing", {"x.toml": ""}),
    "campaign: not UTF-8": Row("run x.toml", "x.toml TOML", {"x.toml": b"\xff"}),
    "campaign: a name of two lines": Row("run 'a\nb'", "a campaign"),
    "site: not there": Row("plan smoke --site gone", "gone example testbed"),
    "folder: not there": Row("status gone", "gone exist"),
    "folder: a file": Row("status --collect x", "x file folder", {"x": ""}),
    "folder: empty": Row("cancel .", "campaign folder"),
    "folder: nothing sent": Row("resume .", "jobs submit"),
    "folder: run here": Row(
        "resume .",
        "lockstep run",
        {"campaign.json": '{"schema": 1}', "launches/w1-r0/journal.jsonl": ""},
    ),
    "folder: below a file": Row("run smoke --to x/y", "x/y/smoke", {"x": ""}, 3),
    "script: not there": Row("lint gone.sh", "gone.sh"),
    "script: a folder": Row("lint .", "folder . "),
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
    | campaigns("repeats", misspelt=("repeat", "'repeat' 'repeats'"), unknown=("colour", "colour"))
    | sites("partition", misspelt=("partitio", "bad.toml 'partition'"))
    | sites('image = "/images/lockstep.sif"', missing_key=("", "container.image"))
)
VALUES = (
    campaigns('"smoke"', size=('"smok"', "size 'smok' 'smoke'"))
    | campaigns('"ladder"', name_of_two_lines=(r'"a\nb"', r"name a\nb"))
    | campaigns(
        "repeats = 2",
        nan=("rounds = nan", "rounds"),
        table=("jobs = 3", "jobs 3"),
        too_many_launches=("repeats = 1_000_000", "2,000,000"),
    )
    | sites("per_node = 4", gpus=("per_node = -1", "gpus_per_node -1"))
    | sites(
        "time =",
        "submit --by-hand",
        CLAIMED,
        shell_that_bash_cannot_read=("shell_before = 'echo a; fi'\ntime =", "shell_before fi"),
        shell_without_an_end=("shell_before = 'if true; then'\ntime =", "shell_before end"),
    )
)
OPTIONS = {
    "option: no sizes": Row("run smoke --world-sizes ''", "''"),
    "option: unknown": Row("run '--x\ny'", "--x"),
    "option: a size": Row("run smoke --world-sizes 1,3", "global_batch=64 world_size=3"),
    "option: studies": Row("run --studies nosuch", "--studies 'nosuch' 'strong'"),
    "option: repeats": Row("run smoke --repeats 0", "--repeats greater"),
    "option: factor": Row("run smoke --set bucket=1", "'bucket' workload precision"),
    "option: no case is left": Row(
        "run --set num_workers=0 --set prefetch_factor=4", "no case study loader"
    ),
    "option: tests have no factor": Row("run --tests . --set precision=bf16", "--set studies"),
    "option: small budget": planned("0.5 small", "--budget 0.5"),
    "option: hours": planned("--budget nan", "--budget nan"),
    "option: negative hours": planned("--budget -1", "--budget=-1"),
    "option: overhead": planned("--overhead nan", "--overhead nan --json"),
    "option: site missing": Row("plan smoke", "--site"),
    "option: watch": Row("status . --watch=nan", "--watch nan"),
    "option: element": Row("cancel . --point -1", "--point -1"),
    "option: host": Row("status x --host -oProxyCommand=touch", "'-oProxyCommand=touch' LOGIN"),
    "option: baseline": report(RESULT, "baseline 0", "--baseline 0"),
    "option: threshold": report(RESULT, "--threshold 2", "--threshold 2"),
    "option: price": report(RESULT, "--cost-per-gpu-hour", "--cost-per-gpu-hour nan"),
    "option: two outputs": report(RESULT, "stdout", "--csv --json"),
    "name: up": Row("run smoke --name ../up", "name ../up"),
    "name: command": Row("reprot", "'reprot' 'report'"),
    "explain: an own script": Row("explain train.py", "lockstep.explain(step, model=ddp,"),
    "name: built-in site": Row("init --site exmple", "exmple example"),
    "workload: unknown": Row("run smoke --workload nosuchmodel", "'nosuchmodel'"),
    "workload: depth": Row("run smoke --workload mlp:depth=0", "mlp:depth=0 depth from 1"),
    "workload: no value": Row("run smoke -n --workload mlp:depth", "mlp:depth"),
    "workload: exits": Row("run smoke -n --workload sys:exit", "sys:exit SystemExit"),
    "workload: a command": Row("run smoke -n --workload os:system", "os:system TypeError"),
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
    "shape: batch too small": planned("global_batch=4 8", text=f"{STRONG}global_batch = 4\n"),
    "shape: partition unknown": planned("gpuu gpu", "--partition gpuu"),
} | sites("[container]", small_partition=("[partitions.gpu]\nmax_nodes = 1\n[container]", "8 2 1"))
NOT_INSTALLED = {"line": "submit", "code": 3, "leaves": CLAIMED}
SLURM = {
    "slurm: not installed": planned("squeue", commands={}, **NOT_INSTALLED),
    "slurm: no sbatch": planned("sbatch", commands={"squeue": "exit 0"}, **NOT_INSTALLED),
    "slurm: partition": refused("invalid partition: gpu", "partition debug", sinfo="debug"),
    "slurm: nodes": refused(
        "Node count specification invalid", "world_sizes", sinfo="gpu has 1 nodes, jobs of 1-1"
    ),
    "slurm: time": refused("Requested time limit is invalid", "time", sinfo="gpu 1:00:00"),
    "slurm: GPUs": refused(
        "Invalid generic resource (gres) specification", "gpu_type h100", sinfo="gpu:h100:4"
    ),
    "slurm: account": refused(
        "Invalid account or account/partition combination specified",
        "account project",
        sacctmgr="project",
    ),
    "slurm: QOS": refused("Invalid qos specification", "qos tiny", sacctmgr="tiny\nnormal"),
    "slurm: policy": refused("Job violates accounting/QOS policy (job submit limit)", "share_job"),
}
DEFINITION = "Bootstrap: docker\nFrom: {{ BASE }}\n"
TOO_OLD = "echo apptainer version 1.1.9"
IMAGES = {
    "image: not there": Row("image inspect gone.sif", "gone.sif"),
    "image: a folder": Row("image hash .", "directory"),
    "image: no SIF": Row("image inspect x.sif", "x.sif SIF", {"x.sif": "text"}),
    "image: cut short": Row("image inspect x.sif", "x.sif 10 bytes", {"x.sif": bytes(SIF[:190])}),
    "image: another machine's": Row("image verify x.sif", "arm64", {"x.sif": bytes(SIF)}, 1),
    "image: foreign record": Row(
        "image hash x.sif", "x.sif.json", {"x.sif": bytes(SIF), "x.sif.json": "{"}
    ),
    "image: somebody's": Row("image build cpu x.sif", "x.sif", {"x.sif": "mine"}),
    "definition: not there": Row("image build gone", "gone"),
    "definition: an image": Row("image build x.sif", "x.sif image", {"x.sif": "text"}),
    "definition: empty": Row("image build x.def -n", "x.def", {"x.def": ""}),
    "definition: 2 MB": Row("image build x.def", "larger", {"x.def": sparse(2**21)}),
    "argument: undefined": Row("image build x.def", "BASE", {"x.def": DEFINITION}),
    "argument: unused": Row(
        "image build x.def --build-arg NOPE=1", "NOPE BASE", {"x.def": DEFINITION}
    ),
    "argument: of two lines": Row(
        "image build x.def --build-arg 'BASE=a\nb'", "BASE newline", {"x.def": DEFINITION}
    ),
    "argument: no value": Row("image build cpu --build-arg BASE", "BASE NAME=VALUE"),
    "argument: unquoted": Row('image build cpu --apptainer-options "\'"', "quot"),
    "apptainer: not installed": Row("image build cpu x.sif", "apptainer", {}, 3, {}),
    "apptainer: says nothing": Row(
        "image build cpu x.sif", "--version", {}, 3, {"apptainer": "exit 0"}
    ),
    "apptainer: too old": Row("image build cpu x.sif", "1.1.9 1.2", {}, 3, {"apptainer": TOO_OLD}),
}
A100 = provenance(device_names=["A100"])
HEADER = "n,value,metric,unit"
RESULTS = {
    "results: another campaign": claimed('{"schema": 1, "size": "node"}', "results/smoke node"),
    "results: another campaign, dry": Row(
        "run smoke --size laptop --dry-run",
        "results/smoke laptop",
        {
            "results/smoke/campaign.json": '{"schema": 1, "size": "smoke"}',
            "results/smoke/launches/w1-r0/journal.jsonl": JOURNAL,
        },
    ),
    "results: cut short": claimed('{"schema": ', "campaign.json"),
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
    "report: not there": Row("report gone", "gone"),
    "report: nothing": Row("report .", "launch"),
    "report: cut short": report('{"benchmarks": [', "x.json JSON"),
    "report: empty": report("", "x.json"),
    "report: no result": Row(
        "report .",
        "x.json",
        {"x.json": '{"a": 1}', "report.html": f"{MARK} the report before"},
    ),
    "report: not UTF-8": report(b'{"benchmarks": "\xff"}', "x.json"),
    "report: 2 GB": report(sparse(2**31), "x.json 64 MiB"),
    "report: page is a folder": report(RESULT, "folder", "--output ."),
    "report: page is somebody's": Row(
        "report x.json --output x.html", "x.html --force", {"x.json": RESULT, "x.html": "mine"}
    ),
    "compare: other devices": Row(
        "compare a b",
        "H100 A100 --allow",
        {"a": strong_tree, "b": lambda path: strong_tree(path, provenance=A100)},
    ),
    "compare: nothing in common": Row(
        "compare a b",
        "A B",
        {"a": strong_tree, "b": lambda path: strong_tree(path, {4: (0.1,)})},
    ),
    "import: not there": Row("import gone.csv --to cited", "gone.csv"),
    "import: empty": table("", "empty"),
    "import: columns": table("a,b\n1,2\n", "value metric unit"),
    "import: unit": table(f"{HEADER}\n1,1,time,y\n", "'y' ms"),
    "import: endless cell": table(f'n,value\n1,"{"x" * 200_000}', "line 1"),
    "import: into a file": table("n\n", "--to", "--to x.csv"),
    "import: size 0": Row(
        "import x.csv --to cited --dataset-size 0", "--dataset-size", {"x.csv": "n\n"}
    ),
}
TRAIN = "run train --device cpu"
DIGITS = f"{TRAIN} --workload mlp --data digits"
TRAINING = {
    "train: workload": Row(f"{TRAIN} --workload nosuch --data digits --global-batch 64", "nosuch"),
    "train: data": Row(
        f"{TRAIN} --workload mlp --data nowhere --global-batch 64", "nowhere digits"
    ),
    "train: batch 0": Row(f"{DIGITS} --global-batch 0", "global_batch 0"),
    "train: no batch": Row(DIGITS, "global local"),
    "train: batch": Row(f"{DIGITS} --global-batch 7 --world-size 2", "global_batch=7 world_size=2"),
    "train: samples": Row(
        f"{TRAIN} --workload mlp --data synthetic --num-synthetic 1000000000 --global-batch 64",
        "num_synthetic=1000000000 1000000",
    ),
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
    "choice: size": Session("--size 'smok'", "--size smok"),
    "choice: precision": Session("--precision 'int8'", "--precision int8"),
    "rounds: none": Session("rounds=0", "--rounds 0"),
    "rounds: nan": Session("--rounds 'nan'", "--rounds nan"),
    "seconds: nan": Session("--comm-timeout nan", "--comm-timeout nan"),
    "seconds: budget too short": Session(
        "--case-budget --comm-timeout", "--case-budget 5 --comm-timeout 5"
    ),
    "seed: negative": Session("--seed -1", "--seed -1"),
    "benchmark: rounds": Session("--benchmark-min-rounds --rounds", "--benchmark-min-rounds 9"),
    "campaign: a keyword in the shell": Session(
        "-k 'strong' weak",
        "--label studies=strong,weak",
        {"PYTEST_ADDOPTS": "-k strong"},
    ),
    "label: no value": Session("--label 'x'", "--label x"),
    "part: too high": Session("--part '4/3'", "--part 4/3"),
    "part: empty": Session("--part 2/3", "-k weak --part 2/3"),
    "case: unknown study": Session("weka", "-m weka"),
    "workload: unknown": Session("resnet19 resnet18", "-k weak --workload resnet19"),
    "workload: option": Session("wide", "-k weak --workload mlp:wide=3"),
    "workload: exits": Session("sys:exit", "-k weak --workload sys:exit"),
    "journal: no folder": Session(
        "/proc/x/journal.jsonl --journal", "-k weak --journal /proc/x/journal.jsonl", code=78
    ),
    "journal: a folder": Session("--journal .", "-k weak --journal ."),
    "json: the journal": Session(
        "--journal --benchmark-json", "-k weak --journal own/../x.json --benchmark-json x.json"
    ),
    "json: no folder": Session(
        "/proc/x.json --benchmark-json", "-k weak --benchmark-json /proc/x.json", code=78
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
    [
        ("-n 2", "-n"),
        ("--lf", "--lf --resume"),
        ("--pdb", "--pdb"),
        ("-m strong --global-batch 7", "global_batch=7 world_size=2"),
    ],
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


# torch as it is built without a part of it
WITHOUT = {
    "gloo": "distributed.distributed_c10d._GLOO_AVAILABLE = False",
    "torch.distributed": "distributed.is_available = lambda: False\n"
    "del distributed.HashStore, distributed.is_initialized",
}
IN_RANKS = """
import sys
if "lockstep.launch.hooks" in sys.orig_argv and "torch.distributed.run" not in sys.orig_argv:
    import less
"""


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("part", WITHOUT)
def test_a_torch_without_what_ranks_speak_through_is_refused(part, tmp_path):
    (tmp_path / "less.py").write_text(f"from torch import distributed\n{WITHOUT[part]}\n")
    (tmp_path / "sitecustomize.py").write_text(IN_RANKS)
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    measured = start(Session("", "-p less -k weak --device cpu", path), tmp_path / "here")
    trained = train("--workload mlp:width=64 --data digits --global-batch 64", tmp_path)
    assert (measured.returncode, trained.returncode) == (78, 3)
    for text in (measured.stdout, trained.stderr):
        assert re.search(f"rank 0 on .*torch .* without (the backend )?{part}", text), text
    assert_nothing_kept(tmp_path / "here")


def train(options, folder):
    command = [COMMAND, "run", "train", *options.split(), "--device", "cpu"]
    return finish(command, cwd=folder, env=environ(ROOT, PYTHONPATH=f"{folder}:{ROOT}"))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--workload resnet50:image=10000 --local-batch 1000000",
        "--workload mlp:width=1000000,depth=1",
    ],
)
def test_what_no_memory_holds_fails_before_it_is_allocated(options, tmp_path):
    ended = start(Session("", f"-k weak --device cpu {options}"), tmp_path / "here")
    assert ended.returncode == 1
    assert re.search(r"ValueError: rank 0 on \S+ needs .* GiB", ended.stdout), ended.stdout


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_whose_cases_are_all_skipped_measures_nothing_and_says_so(tmp_path):
    smallest = changed(CAMPAIGN, "[1, 8]\nrepeats = 2", "[1]\nrepeats = 1")
    (tmp_path / "fp16.toml").write_text(f'{smallest}device = "cpu"\nprecision = "fp16"\n')
    for _ in range(2):
        ended = lockstep("run fp16.toml", tmp_path, os.environ["PATH"])
        assert (ended.returncode, "fp16 needs a GPU" in ended.stderr) == (1, True)


NOISY = """
import os
from lockstep.workloads import make

def noisy():
    os.write(2, b"\\xff said\\n")
    return make("mlp:width=64,depth=1")
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_ranks_that_print_what_is_no_text_train(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    options = "--workload noisy:noisy --data digits --global-batch 64 --max-steps 1"
    ended = train(options, tmp_path)
    assert ended.returncode == 0, ended.stderr
    (log,) = tmp_path.glob("results/run/launches/*/log.txt")
    assert b"\xff said\n" in log.read_bytes()
