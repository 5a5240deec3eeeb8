"""Bad input by theme, given to the commands: one sentence, its exit code, nothing changed."""

import contextlib
import io
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
import torch
from cluster import missing, need_testbed
from data.report_samples import provenance, strong_tree
from launched import environ
from stand_ins import ROOT, StandIns

from lockstep import cli

COMMAND = Path(sys.executable).with_name("lockstep")
# So that what is read without a bound fails here, and takes no other's memory.
MEMORY_KIB = 16 * 2**20
BOUNDED = ("/bin/sh", "-c", f'ulimit -v {MEMORY_KIB} && exec "$@"', "sh")
TIMEOUT_S = 120
SESSION_TIMEOUT_S = 300
AT_ONCE = 3

CAMPAIGN = """schema = 1
name = "ladder"
studies = ["weak"]
world_sizes = [1, 8]
repeats = 2
size = "smoke"
"""
SITE = """schema = 1
name = "here"
partition = "gpu"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
[container]
image = "/images/lockstep.sif"
"""
TEMPLATE = """{% extends "base.sh.j2" %}
{% block before %}
module load {{ acount }}
{% endblock %}
"""
DEFINITION = "Bootstrap: docker\nFrom: {{ BASE }}\n"
ENTRY = {
    "name": "a",
    "stats": {"rounds": 3, "mean": 1.0, "median": 1.0, "min": 1.0, "max": 1.0, "stddev": 0.0},
}
# A header as Apptainer writes it: magic word, architecture arm64, where its data end.
SIF = bytearray(200)
SIF[32:42], SIF[45:48] = b"SIF_MAGIC\0", b"04\0"
struct.pack_into("<2q", SIF, 112, 150, 50)

A100 = provenance(device_names=["A100"])
# What a command leaves that has begun to work in the folder of the results.
CLAIMED = ("results", "results/ladder", "results/ladder/.lock", "results/ladder/jobs")
# What a submission keeps even where Slurm refuses it.
SUBMITTED = (
    *CLAIMED,
    "results/ladder/campaign.json",
    *(
        f"results/ladder/jobs/{name}"
        for name in ("ladder-r0.sh", "ladder-r1.sh", "lib", "lib/job.sh")
    ),
    "results/ladder/jobs/scripts.json",
    "results/ladder/jobs/site.json",
    "results/ladder/jobs/submitted.jsonl",
)

Content = str | bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Row:
    """A command line over bad input, and how it must end.

    Attributes:
        line: What is typed after `lockstep`.
        says: What the one sentence matches.
        files: Name -> content, or what makes the file.
        code: The exit code.
        commands: Name -> shell lines of the only commands on PATH; None leaves PATH.
        leaves: What may be there afterwards that was not.
    """

    line: str
    says: str
    files: Mapping[str, Content] = field(default_factory=dict)
    code: int = 2
    commands: Mapping[str, str] | None = None
    leaves: tuple[str, ...] = ()


def changed(text, old, new):
    assert text.count(old) == 1, old
    return text.replace(old, new)


def campaign(old, new, says, command="run bad.toml --dry-run"):
    """A campaign file of which a part reads otherwise."""
    return Row(command, rf"^bad\.toml: {says}", {"bad.toml": changed(CAMPAIGN, old, new)})


def site(old, new, says, line="plan campaign.toml --site bad.toml", leaves=()):
    """A site file of which a part reads otherwise."""
    text = changed(SITE, old, new)
    return Row(line, says, {"campaign.toml": CAMPAIGN, "bad.toml": text}, leaves=leaves)


def planned(says, options="", text=CAMPAIGN, **more):
    """A good site, and a campaign or options that do not fit it."""
    files = {"campaign.toml": text, "site.toml": SITE} | more.pop("files", {})
    line = more.pop("line", "plan")
    return Row(f"{line} campaign.toml --site site.toml {options}", says, files, **more)


def refused(said, says, site_file=SITE, **answers):
    """A submission to a Slurm that refuses it and says what it has."""
    commands = {"squeue": "exit 0", "sbatch": f"printf '%b\\n' {shlex.quote(said)} >&2; exit 1"} | {
        name: f"echo {shlex.quote(text)}" for name, text in answers.items()
    }
    return planned(
        says,
        line="submit",
        commands=commands,
        files={"site.toml": site_file},
        leaves=SUBMITTED,
    )


def report(content, says, line="report x.json"):
    """A report on one file."""
    return Row(line, says, {"x.json": content})


def result(**changes):
    return json.dumps({"benchmarks": [ENTRY | changes]})


def table(text, says, options="--to cited"):
    """An import of one table."""
    return Row(f"import x.csv {options}", says, {"x.csv": text})


def image(line, says, code=2, **files):
    """A command about an image."""
    named = {name.replace("_", "."): content for name, content in files.items()}
    return Row(f"image {line}", says, named, code)


def sparse(num_bytes):
    def make(path):
        with path.open("wb") as file:
            file.truncate(num_bytes)

    return make


def link(target):
    return lambda path: path.symlink_to(target)


def claimed(text, line="run smoke"):
    """What is said of a folder whose campaign file holds a text."""
    file = "results/smoke/campaign.json"
    return {"line": line, "files": {file: text}, "leaves": ("results/smoke/.lock",)}


FILES = {
    "campaign: not there": Row("run gone.toml", r"^gone\.toml: No such file or directory; give a "),
    "campaign: a folder": Row("run .", r"^\.: Is a directory; give a campaign file, or a built-in"),
    "campaign: a loop of links": Row(
        "run x.toml", r"^x\.toml: Too many levels of symbolic links", {"x.toml": link("x.toml")}
    ),
    "campaign: 2 GB": Row("run x.toml", r"^x\.toml: larger than", {"x.toml": sparse(2**31)}),
    "campaign: 2 MB": Row("run x.toml", r"larger than 1 MiB", {"x.toml": "#" * 2**21}),
    "campaign: empty": Row("run x.toml", r"^x\.toml: key 'schema' is missing$", {"x.toml": ""}),
    "campaign: not UTF-8": Row("run x.toml", "not a TOML file: .*; save it", {"x.toml": b"\xff"}),
    "campaign: NUL": Row("run x.toml", r"not a TOML file: .*line 1", {"x.toml": b"a\0b"}),
    "campaign: deep": Row("run x.toml", "nested too deep", {"x.toml": "x = " + "[" * 10_000}),
    "campaign: a name of two lines": Row("run 'a\nb'", r"^a\\nb: No such file or directory"),
    "campaign: syntax": campaign("[1, 8]", "[1, 8", r"not a TOML file: .*\(at line 5, column 1\)"),
    "site: not there": Row("plan smoke --site gone", r"^gone: No such .*: example, testbed$"),
    "folder: not there": Row("status gone", "^gone does not exist; give the results folder"),
    "folder: a file": Row("collect x", "^x is a file; give the results folder", {"x": ""}),
    "folder: empty": Row("cancel .", r"^\. holds no campaign; give the results folder"),
    "folder: nothing sent": Row("resume .", "no jobs were sent from here; lockstep submit CAMP"),
    "folder: run here": Row(
        "resume .",
        "no jobs were sent from here; run lockstep run again$",
        {"campaign.json": '{"schema": 1}', "launches/w1-r0/journal.jsonl": ""},
    ),
    "folder: below a file": Row("run smoke --to x/y", "x/y/smoke: Not a directory", {"x": ""}, 3),
    "script: not there": Row("lint gone.sh", r"^gone\.sh: No such file or directory; give a batch"),
    "init: a file is there": Row(
        "init --site example", r"^site\.toml exists already; --force", {"site.toml": "mine"}
    ),
    "files: swapped": Row(
        "plan site.toml --site campaign.toml",
        r"^site\.toml: this is a site file; give a campaign file$",
        {"site.toml": SITE, "campaign.toml": CAMPAIGN},
    ),
}
KEYS = {
    "key: given twice": campaign(
        'size = "smoke"\n', 'size = "smoke"\nname = "x"\n', r"not a TOML file: .*\(at line 7"
    ),
    "key: schema of a campaign": campaign(
        "schema = 1", "schema = true", "schema = true: input should be 1$"
    ),
    "key: schema of a site": site(
        "schema = 1", "schema = 1.0", r"bad\.toml: schema = 1\.0: input should be 1$"
    ),
    "key: misspelt": campaign("repeats", "repeat", r"unknown key 'repeat'; did you mean 'repeats'"),
    "key: unknown": campaign("repeats", "colour", "unknown key 'colour'; known keys: schema, name"),
    "key: of two lines": campaign("repeats", r'"a\nb"', r"unknown key 'a\\nb'; known keys: "),
    "key: table misspelt": campaign(
        "repeats = 2\n", "[job]\n", "unknown key 'job'; did you mean 'jobs'"
    ),
    "key: missing": campaign("schema = 1\n", "", "key 'schema' is missing$"),
    "key: newer schema": campaign("schema = 1", "schema = 2", "schema = 2: input should be 1$"),
    "key: site misspelt": site(
        "partition", "partitio", r"^bad\.toml: unknown key 'partitio'; did you mean 'partition'"
    ),
    "key: site missing": site('image = "/images/lockstep.sif"', "", "'container.image' is missing"),
}
VALUES = {
    "value: text for a list": campaign("[1, 8]", '"two"', "world_sizes = 'two': input should be a"),
    "value: empty axis": campaign("[1, 8]", "[]", r"world_sizes = \[\]: the list is empty; give"),
    "value: nothing to measure": campaign('["weak"]', "[]", "give either studies, such as"),
    "value: zero": campaign("[1, 8]", "[1, 0]", r"world_sizes\.1 = 0: .* or equal to 1$"),
    "value: negative": campaign("[1, 8]", "[-1]", r"world_sizes\.0 = -1: .* or equal to 1$"),
    "value: true": campaign("[1, 8]", "[true]", r"world_sizes\.0 = (?i:true): .* valid integer$"),
    "value: 1e9": campaign("[1, 8]", "[1_000_000_000]", r".* = 1000000000: .* equal to 1000000$"),
    "value: fraction": campaign("[1, 8]", "[1.5]", r"world_sizes\.0 = 1\.5: .* valid integer$"),
    "value: nan": campaign("repeats = 2", "rounds = nan", "rounds = nan: .* valid integer$"),
    "value: inf": campaign("repeats = 2", "rounds = inf", "rounds = inf: .* valid integer$"),
    "value: no rounds": campaign("repeats = 2", "rounds = 0", "rounds = 0: .* or equal to 1$"),
    "value: warm-up -1": campaign(
        "repeats = 2", "warmup_rounds = -1", ".* = -1: .* or equal to 0$"
    ),
    "value: warm-up 1e9": campaign(
        "repeats = 2", "warmup_rounds = 1_000_000_000", "warmup_rounds = 1000000000: .* 1000000$"
    ),
    "value: budget true": campaign(
        "repeats = 2", "case_budget = true", "case_budget = true: .* valid number$"
    ),
    "value: budget a text": campaign(
        "repeats = 2", 'case_budget = "900"', "case_budget = '900': .* valid number$"
    ),
    "value: seed": campaign("repeats = 2", "seed = -1", "seed = -1: .* or equal to 0$"),
    "value: large seed": campaign("repeats = 2", f"seed = {2**70}", "seed = [0-9]+: .* less than"),
    "value: endless number": campaign(
        "repeats = 2", f"seed = {'9' * 5000}", "not a TOML file: a number"
    ),
    "value: a number for a text": campaign('"ladder"', "3", "name = 3 is not allowed; write the"),
    "value: a number for a table": campaign("repeats = 2", "jobs = 3", "jobs = 3: .* be a table$"),
    "value: a number for a truth": campaign(
        "repeats = 2", "jobs.collect = 1", r"jobs\.collect = 1: .* valid boolean$"
    ),
    "value: size": campaign('"smoke"', '"smok"', "size = 'smok': .*; did you mean 'smoke'"),
    "value: study": campaign('"weak"', '"wek"', r"studies\.0 = 'wek': .*; did you mean 'weak'"),
    "value: collective": campaign(
        '"weak"', '"colective"', r"studies\.0 = 'colective': .* did you mean 'collective'"
    ),
    "value: precision": campaign(
        "repeats = 2", 'precision = "fp31"', r"precision = 'fp31': .*; did you mean 'fp32'\?$"
    ),
    "value: device": campaign("repeats = 2", 'device = "tpu"', "device = 'tpu': .* 'cpu' or 'cuda"),
    "value: too many launches": campaign(
        "repeats = 2",
        "repeats = 1_000_000",
        "2 world sizes x 1,000,000 repeats make 2,000,000 launches, over the limit of 10,000",
    ),
    "value: too many elements": campaign(
        "repeats = 2",
        'repeats = 6000\njobs.allocation = "array"',
        "2 world sizes x 6,000 repeats x 1 cases make 12,000 launches, over the limit",
    ),
    "value: site's GPUs": site(
        "per_node = 4", "per_node = -1", "gpus_per_node = -1: .* equal to 0"
    ),
    "value: site's CPUs": site("per_node = 64", "per_node = 0", "cpus_per_node = 0: .* equal to 1"),
    "value: site's true": site("per_node = 64", "per_node = true", "cpus_per_node = (?i:true): "),
    "value: site's cost": site(
        "time =", 'currency = "EUR"\ncost_per_gpu_hour = nan\ntime =', "gpu_hour = nan: .* finite"
    ),
    "value: site's cost true": site(
        "time =", 'currency = "EUR"\ncost_per_gpu_hour = true\ntime =', "= true: .* valid number$"
    ),
    "value: site's cost a text": site(
        "time =", 'currency = "EUR"\ncost_per_node_hour = "2"\ntime =', "= '2': .* valid number$"
    ),
    "value: site's huge cost": site(
        "time =",
        'currency = "EUR"\ncost_per_gpu_hour = 1e308\ntime =',
        r"gpu_hour = 1e\+308: input should be less than or equal to 1000000",
        "plan campaign.toml --site bad.toml --json",
    ),
    "value: site's memory": site(
        "time =", 'mem = "lots"\ntime =', "mem = 'lots' is not allowed; w"
    ),
    "value: relative image": site(
        '"/images/', '"', r"container\.image = 'lockstep\.sif': not an ab"
    ),
    "value: relative scratch": site(
        "time =", 'scratch = "x"\ntime =', "scratch = 'x': not an absol"
    ),
    "value: unknown directive": site(
        "time =", 'extra_directives = ["--nodess=3"]\ntime =', "'--nodess=3': .* --nodelist"
    ),
}
TIMES = {
    "time: in words": site(
        '"01:30:00"', '"2h"', r"time = '2h' is not allowed; .* \[days-\]HH:MM:SS"
    ),
    "time: a number": site('"01:30:00"', "90", r"time = 90 is not allowed; .* \[days-\]HH:MM:SS$"),
    "time: TOML's": site(
        '"01:30:00"', "01:30:00", "time = 01:30:00 is not allowed; write the limit"
    ),
    "time: seconds": site('"01:30:00"', '"00:00:30"', "time = '00:00:30': shorter than a minute"),
    "time: for ever": site(
        '"01:30:00"', '"9999-00:00:00"', "time = '9999-00:00:00': longer than a"
    ),
    "time: of a launch": campaign(
        "repeats = 2", 'jobs.launch_time = "5m"', r"jobs\.launch_time = '5m' is not allowed; write"
    ),
}
NAMES = {
    "name: line break": campaign(
        '"ladder"', r'"a\nb"', r"name = 'a\\nb' is not allowed; write the"
    ),
    "name: shell": campaign('"ladder"', '"a b;$(x)"', r"name = 'a b;\$\(x\)' is not allowed"),
    "name: up": Row(
        "run smoke --name ../up", r"name = '\.\./up' is not allowed; write the name of"
    ),
    "name: long": campaign('"ladder"', f'"{"x" * 5000}"', r"name = 'x{79}\.\.\. is not allowed"),
    "name: empty": campaign('"ladder"', '""', "name = '' is not allowed; write the name"),
    "name: partition": site('"gpu"', '"gpu; rm -rf"', "partition = 'gpu; rm -rf': a value for sba"),
    "name: partition of two lines": site('"gpu"', r'"g\nu"', r"partition = 'g\\nu': a line break"),
    "name: account": site(
        "time =", 'account = "$(id)"\ntime =', r"account = '\$\(id\)': a value fo"
    ),
    "name: variable": site("time =", 'env = {"A B" = "0"}\ntime =', "not a variable's name"),
    "name: variable of two lines": site("time =", 'env = {A = "a\\nb"}\ntime =', "a line break or"),
    "name: shell lines of DOS": site(
        "time =", 'shell_before = "echo a\\r\\necho b"\ntime =', "carriage return or NUL breaks a"
    ),
    "name: shell lines that bash cannot read": site(
        "time =",
        "shell_before = 'echo a; fi # here'\ntime =",
        r"^shell_before or shell_after makes .*: syntax error near unexpected token `fi', in line "
        r"[0-9]+: echo a; fi # here$",
        "render campaign.toml --site bad.toml",
        CLAIMED,
    ),
    "name: shell lines without an end": site(
        "time =",
        "shell_before = 'if true; then'\ntime =",
        "bash does not read: syntax error: unexpected end of file, after its last line$",
        "render campaign.toml --site bad.toml",
        CLAIMED,
    ),
    "name: undefined in a template": Row(
        "render campaign.toml --site site.toml",
        r"own\.sh\.j2:3: not a template over base\.sh\.j2: 'acount' is undefined$",
        {
            "campaign.toml": CAMPAIGN,
            "own.sh.j2": TEMPLATE,
            "site.toml": lambda path: path.write_text(
                changed(SITE, "time =", f'template = "{path.with_name("own.sh.j2")}"\ntime =')
            ),
        },
        leaves=CLAIMED,
    ),
    "name: option of two lines": Row("run '--x\ny'", r"^No such option '--x\\ny'"),
    "name: command": Row("rum", r"^No such command 'rum'"),
    "name: workload": Row(
        "run smoke -n --workload mlp:depth", "workload 'mlp:depth': 'depth' is not key="
    ),
    "name: workload that exits": Row(
        "run smoke -n --workload sys:exit", "workload 'sys:exit' raised SystemExit; it must name a"
    ),
    "name: workload that is a command": Row(
        "run smoke -n --workload os:system", "workload 'os:system' raised TypeError: .*'command'"
    ),
    "name: built-in site": Row(
        "init --site exmple", "^no built-in site 'exmple'; choose from exam"
    ),
}
OPTIONS = {
    "option: no sizes": Row("run smoke --world-sizes ''", "'' is not a list of numbers such as"),
    "option: no studies": Row(
        "run smoke --studies ''", r"studies\.0 = '': input should be 'strong'"
    ),
    "option: nan hours": planned("--budget nan is no number of hours", "--budget nan"),
    "option: endless hours": planned("--budget inf is no number of hours", "--budget inf"),
    "option: negative hours": planned(r"'--budget': -1\.0 is not in the range", "--budget=-1"),
    "option: nan overhead": planned("--overhead nan is no fraction", "--overhead nan --json"),
    "option: huge overhead": planned(
        r"--overhead 1e\+308 is no fraction from 0 to 1000000; write", "--overhead 1e308 --json"
    ),
    "option: site missing": Row("plan smoke", "^Missing option '--site'"),
    "option: watch": Row("status . --watch=-1", "^--watch -1 is no number of seconds; give"),
    "option: nan watch": Row("status . --watch=nan", "^--watch nan is no number of seconds; give"),
    "option: endless watch": Row("status . --watch=inf", "^--watch inf is no number of seconds"),
    "option: huge watch": Row(
        "status . --watch=1e308", r"^--watch 1e\+308 is no number of seconds; give .* to 86400$"
    ),
    "option: element": Row("cancel . --point -1", "'--point': -1 is not in the range"),
    "option: baseline 0": report(
        result(), "no series has the baseline 0", "report x.json --baseline 0"
    ),
    "option: threshold 2": report(result(), "'--threshold': 2.0 is", "report x.json --threshold 2"),
    "option: price inf": report(
        result(),
        "^--cost-per-gpu-hour inf is no price; give one from 0 to",
        "report x.json --cost-per-gpu-hour inf",
    ),
    "option: price nan": report(
        result(), "^--cost-per-gpu-hour nan is no", "report x.json --cost-per-gpu-hour nan"
    ),
    "option: threshold nan": report(
        result(), "^--threshold nan is", "report x.json --threshold nan"
    ),
    "option: two outputs": report(result(), "both want stdout", "report x.json --csv --json"),
}
SHAPES = {
    "shape: nodes not filled": planned(
        "world size 6 does not fill nodes of 4 ranks on here; choose 4 or 8",
        text=changed(CAMPAIGN, "[1, 8]", "[6]"),
    ),
    "shape: batch": campaign(
        'studies = ["weak"]',
        'studies = ["strong"]\nglobal_batch = 100',
        "global_batch=100 does not divide by world_size=8; choose 96 or 104",
    ),
    "shape: batch too small": campaign(
        'studies = ["weak"]',
        'studies = ["strong"]\nglobal_batch = 4',
        "global_batch=4 does not divide by world_size=8; choose 8, or",
    ),
    "shape: partition too small": site(
        "[container]",
        "[partitions.gpu]\nmax_nodes = 1\n[container]",
        "world size 8 needs 2 nodes, but partition gpu of site here gives 1, for up to 4 ranks",
    ),
    "shape: partition unknown": planned(
        r"no partition 'gpuu'; choose from gpu, or add \[partitions\.gpuu\]", "--partition gpuu"
    ),
}
SLURM = {
    "slurm: not installed": planned(
        "^squeue is not installed here; use a login node",
        line="submit",
        code=3,
        commands={},
        leaves=CLAIMED,
    ),
    "slurm: sbatch not installed": planned(
        "^sbatch is not installed here; use a login node",
        line="submit",
        code=3,
        commands={"squeue": "exit 0"},
        leaves=CLAIMED,
    ),
    "slurm: partition": refused(
        "sbatch: error: invalid partition specified: gpu",
        r"^sbatch said: .*gpu; change partition in the site file \(partitions: debug\)$",
        sinfo="debug",
    ),
    "slurm: nodes": refused(
        "sbatch: error: Batch job submission failed: Node count specification invalid",
        "change world_sizes in the campaign file .*gpu has 1 nodes",
        sinfo="gpu has 1 nodes, jobs of 1-1",
    ),
    "slurm: time": refused(
        "sbatch: error: Batch job submission failed: Requested time limit is invalid",
        r"change time in the site file or the campaign file|change time in .*limits: gpu 1:00:00",
        sinfo="gpu 1:00:00",
    ),
    "slurm: GPUs": refused(
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        r"change gpu_type or gpus_per_node in the site file \(gres of a node: gpu:h100:4\)",
        sinfo="gpu:h100:4",
    ),
    "slurm: account": refused(
        "sbatch: error: Batch job submission failed: Invalid account or account/partition "
        "combination specified",
        "^sbatch said: .*: Invalid account or account/partition combination specified; change "
        r"account in the site file \(sent with account nobody, no qos; your accounts: project\)$",
        changed(SITE, "time =", 'account = "nobody"\ntime ='),
        sacctmgr="project",
    ),
    "slurm: QOS": refused(
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        r"change qos in the site file \(sent with account a, qos high; your QOS: normal, tiny\)$",
        changed(SITE, "time =", 'account = "a"\nqos = "high"\ntime ='),
        sacctmgr="normal,tiny\nnormal",
    ),
    "slurm: policy": refused(
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job "
        "submit limit, user's size and/or time limits)",
        r"change qos, account, time, or jobs.share_job .* \(sent with no account, no qos\)$",
    ),
    "slurm: not UTF-8": refused(
        "sbatch: error: invalid partition specified: \\0377",
        "^sbatch said: .*\ufffd; change partition in the site file",
        sinfo="gpu",
    ),
}
IMAGES = {
    "image: not there": image(
        "inspect gone.sif", r"^there is no image file gone\.sif; lockstep im"
    ),
    "image: a device": image("verify /dev/zero", "^there is no image file /dev/zero"),
    "image: a folder": image("hash .", r"File '\.' is a directory"),
    "image: no SIF": image("inspect x.sif", r"^x\.sif is no SIF image; build", x_sif="text"),
    "image: empty": image("verify x.sif", r"^x\.sif is no SIF image", x_sif=""),
    "image: cut short": image(
        "inspect x.sif", r"^x\.sif is cut short: 10 bytes of it are missing", x_sif=bytes(SIF[:190])
    ),
    "image: another machine's": image(
        "verify x.sif", "built for arm64, and this machine is ", 1, x_sif=bytes(SIF)
    ),
    "image: foreign record": image(
        "hash x.sif", r"^x\.sif\.json is no record", x_sif=bytes(SIF), x_sif_json="{"
    ),
    "image: somebody's": image(
        "build cpu x.sif", r"is there and is not what x\.sif\.", x_sif="mine"
    ),
    "definition: not there": image(
        "build gone", "^there is no definition gone; give a file or one"
    ),
    "definition: an image": image("build x.sif", r"^x\.sif is an image; the def", x_sif="text"),
    "definition: empty": image("build x.def -n", r"^x\.def does not say where its", x_def=""),
    "definition: 2 MB": image("build x.def", r"larger than 1 MiB", x_def=sparse(2**21)),
    "argument: undefined": image(
        "build x.def",
        r"^x\.def needs a value of BASE; add --build-arg BASE=VALUE",
        x_def=DEFINITION,
    ),
    "argument: unused": image(
        "build x.def --build-arg NOPE=1",
        r"^x\.def has no build argument NOPE; it has BASE$",
        x_def=DEFINITION,
    ),
    "argument: of two lines": image(
        "build x.def --build-arg 'BASE=a\nb'", "BASE holds a newline; give it", x_def=DEFINITION
    ),
    "argument: no value": image("build cpu --build-arg BASE", "'BASE' is not NAME=VALUE"),
    "argument: unquoted": image(
        'build cpu --apptainer-options "\'"', "is no command line: No clos"
    ),
    "apptainer: not installed": Row(
        "image build cpu x.sif", "^apptainer is not installed here", code=3, commands={}
    ),
    "apptainer: says nothing": Row(
        "image build cpu x.sif",
        "^apptainer --version failed: it ended with exit code 0 and said nothing; load or install",
        code=3,
        commands={"apptainer": "exit 0"},
    ),
    "apptainer: too old": Row(
        "image build cpu x.sif",
        r"^apptainer 1\.1\.9 is installed here, and build arguments need 1\.2 or newer; load or",
        code=3,
        commands={"apptainer": "echo apptainer version 1.1.9"},
    ),
}
RESULTS = {
    "results: another campaign": Row(
        says="holds results measured with size node, now it is smoke; give the campaign another",
        **claimed('{"schema": 1, "size": "node"}'),
    ),
    "results: another campaign, dry": Row(
        "run smoke --size laptop --dry-run",
        "^results/smoke holds results measured with size smoke, now it is laptop; ",
        {"results/smoke/campaign.json": '{"schema": 1, "size": "smoke"}'},
    ),
    "results: no campaign": Row(says="campaign.json: not a campaign: ", **claimed("[]")),
    "results: cut short": Row(says="campaign.json: not a campaign: ", **claimed('{"schema": ')),
    "results: newer": Row(says="schema 99 is not the schema 1", **claimed('{"schema": 99}')),
    "results: corrupt journal": Row(
        "run smoke",
        r"launches/w1-r0/journal\.jsonl:1: not a journal line: .*; put back a whole copy of the fi",
        {"results/smoke/launches/w1-r0/journal.jsonl": "garbage\n"},
        leaves=("results/smoke/.lock", "results/smoke/campaign.json"),
    ),
    "results: journal gone": Row(
        "run smoke",
        r"^results/smoke/launches/w1-r0/result\.json holds measured cases that no journal beside",
        {"results/smoke/launches/w1-r0/result.json": '{"benchmarks": [{"name": "a"}]}'},
        leaves=("results/smoke/.lock",),
    ),
    "report: not there": Row("report gone", "^gone: no such file or folder$"),
    "report: nothing": Row(
        "report .", r"^\.: holds no launch, no pytest-benchmark file and no imp"
    ),
    "report: foreign": report('{"a": 1}', r"^x\.json: not a pytest-benchmark file: it has no list"),
    "report: newer": report(
        '{"benchmarks": [], "lockstep": {"schema": 99}}', r"^x\.json: lockstep schema 99 is not the"
    ),
    "report: older": report(
        '{"benchmarks": [], "lockstep": {"schema": 0}}', r"^x\.json: lockstep schema 0 is not the"
    ),
    "report: empty": report("", r"^x\.json: the file is empty; delete it or measure again$"),
    "report: cut short": report('{"benchmarks": [', r"^x\.json: not valid JSON, perhaps cut short"),
    "report: NaN": report(
        result(stats={"rounds": float("nan")}), "has no stats; measure it again$"
    ),
    "report: no mean": report(
        result(stats={k: v for k, v in ENTRY["stats"].items() if k != "mean"}),
        r"^x\.json: entry a .*'?mean",
    ),
    "report: not UTF-8": report(b'{"benchmarks": "\xff"}', r"^x\.json: not valid JSON"),
    "report: deep": report("[" * 100_000, r"^x\.json: not valid JSON.*nested too deep"),
    "report: 2 GB": report(sparse(2**31), r"^x\.json: larger than the limit of 64 MiB"),
    "report: page is a folder": report(
        result(), r"^\. is a folder; name the page in it", "report x.json --output ."
    ),
    "report: page is somebody's": Row(
        "report x.json --output x.html",
        r"^x\.html is no Lockstep report; choose --output or pass --force$",
        {"x.json": result(), "x.html": "mine"},
    ),
    "compare: other devices": Row(
        "compare a b",
        "^A was measured on H100 and B on A100, so .*; pass --allow device to compare all the",
        {"a": strong_tree, "b": lambda path: strong_tree(path, provenance=A100)},
    ),
    "compare: nothing in common": Row(
        "compare a b",
        "^A and B have no point in common: A holds .* at 1 .*; B holds .* at 4 .*; measure the",
        {"a": strong_tree, "b": lambda path: strong_tree(path, {4: (0.1,)})},
    ),
    "import: not there": Row(
        "import gone.csv --to cited", r"^gone\.csv: cannot be read: it does not"
    ),
    "import: a folder": Row("import . --to cited", r"^\.: cannot be read: it is a folder"),
    "import: empty": table("", r"^x\.csv: the table is empty; it needs a header and at least one"),
    "import: columns": table("a,b\n1,2\n", r"^x\.csv: no column n, value, metric, unit; a table"),
    "import: no number": table("n,value,metric,unit\nx,1,time,s\n", "n is 'x', not a number$"),
    "import: nan": table("n,value,metric,unit\n1,nan,time,s\n", "value is 'nan', not a positive"),
    "import: 1e22 ranks": table("n,value,metric,unit\n1e22,1,time,s\n", "n is '1e22', more than"),
    "import: unit": table("n,value,metric,unit\n1,1,time,y\n", "unit 'y' is not one of ms, s, sec"),
    "import: endless cell": table(f'n,value\n1,"{"x" * 200_000}', r"^x\.csv: not CSV after line 1"),
    "import: into a file": table("n\n", "'--to': Directory 'x.csv' is a file", "--to x.csv"),
    "import: size 0": table("n\n", "'--dataset-size': 0 is not in", "--to cited --dataset-size 0"),
}
ROWS = FILES | KEYS | VALUES | TIMES | NAMES | OPTIONS | SHAPES | SLURM | IMAGES | RESULTS


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it left."""

    code: int
    out: str
    err: str
    before: dict[str, tuple[int, ...]]
    after: dict[str, tuple[int, ...]]


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


def end(row, place):
    """Run a row's command in a folder of its own, in this process."""
    folder = place / "here"
    folder.mkdir(parents=True)
    make(folder, row.files)
    environ = dict(os.environ)
    if row.commands is not None:
        stand_ins = StandIns(place / "bin")
        for name, lines in row.commands.items():
            stand_ins.act(name, lines)
        environ["PATH"] = str(place / "bin")
    before = look(folder)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environ),
        mock.patch.object(sys, "argv", [str(COMMAND), *shlex.split(row.line)]),
        pytest.raises(SystemExit) as left,
    ):
        cli.main()
    return Ended(left.value.code, out.getvalue(), err.getvalue(), before, look(folder))


def chosen_rows(request, fixture):
    """Return the rows that this run is to test by a fixture."""
    items = [item for item in request.session.items if item.path == request.path]
    return [item.callspec.params["name"] for item in items if fixture in item.fixturenames]


@pytest.mark.parametrize("name", ROWS)
def test_bad_input_ends_in_one_sentence_and_changes_nothing(name, tmp_path):
    assert_one_sentence(ROWS[name], end(ROWS[name], tmp_path))


def assert_one_sentence(row, ended):
    assert "Traceback" not in ended.out + ended.err
    errors = re.findall("^Error: (.*)$", ended.err, re.MULTILINE)
    assert len(errors) == 1, ended.err
    assert ended.err.endswith(f"Error: {errors[0]}\n")
    assert re.search(row.says, errors[0]), errors[0]
    assert ended.code == row.code
    assert "Error" not in ended.out
    kept = {path: facts for path, facts in ended.after.items() if path not in row.leaves}
    assert kept == ended.before


# What starts torch takes seconds each.

RANK_0_OF_2 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
ALLOCATION = {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@dataclass(frozen=True)
class Session:
    """A session of pytest that is refused before its first case.

    Attributes:
        says: What the one sentence matches.
        options: What pytest is told beside the folder and the smallest size.
        environ: Variables, as a launcher sets them.
        code: The exit code.
    """

    says: str
    options: str = "-k weak"
    environ: Mapping[str, str] = field(default_factory=dict)
    code: int = 4


def ranked(says, code=4, **environ):
    """A session in an environment that no launcher makes."""
    return Session(says, environ=environ, code=code)


SESSIONS = {
    "ranks: no integer": ranked(
        r"^RANK='abc' is not an integer; start with torchrun \(seen: RANK='abc', .*SIZE='2'\)$",
        **RANK_0_OF_2 | {"RANK": "abc"},
    ),
    "ranks: no integer of srun": ranked(
        r"^SLURM_PROCID='abc' is not an integer; start with srun "
        r"\(seen: LOCKSTEP_LAUNCHER='slurm', SLURM_PROCID='abc', .*, SLURM_NTASKS='2'\)$",
        LOCKSTEP_LAUNCHER="slurm",
        SLURM_STEP_NUM_TASKS="2",
        SLURM_NTASKS="2",
        SLURM_PROCID="abc",
        SLURM_LOCALID="0",
    ),
    "ranks: one too many": ranked("^RANK=2, .* WORLD_SIZE=2 .*", **RANK_0_OF_2 | {"RANK": "2"}),
    "ranks: no local rank": ranked("^LOCAL_RANK is not set although", RANK="0", WORLD_SIZE="2"),
    "ranks: a size alone": ranked("^RANK is not set although a launcher's", WORLD_SIZE="4"),
    "ranks: no address": ranked("^world size 2 but MASTER_ADDR and MASTER_PORT not", **RANK_0_OF_2),
    "ranks: no address under srun": ranked(
        "^world size 2 but MASTER_ADDR and MASTER_PORT not set; set them to rank 0's host and a fr",
        LOCKSTEP_LAUNCHER="slurm",
        SLURM_NTASKS="2",
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
    ),
    "ranks: no port": ranked(
        "^MASTER_PORT='abc' is not a port from 1 to 65535; set it",
        **RANK_0_OF_2,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="abc",
    ),
    "ranks: port 99999": ranked(
        "^MASTER_PORT='99999' is not a port",
        **RANK_0_OF_2,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="99999",
    ),
    "ranks: no store": ranked(
        "^LOCKSTEP_STORE='x' is not HOST:P", **RANK_0_OF_2, LOCKSTEP_STORE="x"
    ),
    "ranks: launcher": ranked("^LOCKSTEP_LAUNCHER='x' is not one of torch", LOCKSTEP_LAUNCHER="x"),
    "ranks: no srun": ranked(
        "^SLURM_NTASKS=8, but this process is task 0 of 1; start with srun and LOCKSTEP_LAUNCHER",
        **ALLOCATION,
    ),
    "ranks: a shell in a step": ranked(
        "^SLURM_NTASKS=8, but this process is task 0 of 1; start with srun and LOCKSTEP_LAUNCHER",
        **ALLOCATION,
        SLURM_STEP_NUM_TASKS="1",
    ),
    "ranks: srun alone": ranked(
        "^srun started 8 tasks, but LOCKSTEP_LAUNCHER is not set, so each would work alone; set",
        **ALLOCATION,
        SLURM_STEP_NUM_TASKS="8",
    ),
    "device: no GPU": Session(
        "needs GPU 0, but 0 are visible on this host; start one rank per GPU, or pass --device cpu",
        "-k weak --device cuda",
        {"CUDA_VISIBLE_DEVICES": ""},
        code=78,
    ),
    "device: unknown": Session("--device: invalid choice: 'tpu'", "--device tpu"),
    "size: unknown": Session("--size: invalid choice: 'smok'", "--size smok"),
    "precision: unknown": Session("--precision: .*'int8'", "--precision int8"),
    "rounds: none": Session("^rounds=0 is not 1 or more", "--rounds 0"),
    "rounds: 1e9": Session("^rounds=1000000000 is not 1000000 or less", "--rounds 1000000000"),
    "rounds: nan": Session("--rounds: invalid int value: 'nan'", "--rounds nan"),
    "rounds: warm-up": Session("^warmup_rounds=-1 is not 0 or more", "--warmup-rounds -1"),
    "seconds: nan": Session("^--comm-timeout nan must be above 0", "--comm-timeout nan"),
    "seconds: endless": Session("^--comm-timeout inf must be above 0", "--comm-timeout inf"),
    "seconds: no budget": Session("^--case-budget 0 must be above 0", "--case-budget 0"),
    "seconds: budget too short": Session(
        "^--case-budget 5 is not above the 5 s of --comm-timeout",
        "--case-budget 5 --comm-timeout 5",
    ),
    "seed: negative": Session("^--seed -1 is not from 0 to", "--seed -1"),
    "threads: none": Session(
        "^threads_per_rank=0 is not 1 or more", "-k weak --threads-per-rank 0"
    ),
    "benchmark: a histogram": Session(
        "^--benchmark-histogram draws with pygal, which this Python does not have; pip install",
        "--benchmark-histogram",
    ),
    "benchmark: rounds": Session(
        "^--benchmark-min-rounds does nothing here, for rounds are fixed; give --rounds",
        "--benchmark-min-rounds 9",
    ),
    "benchmark: a warm-up": Session(
        "^--benchmark-warmup does nothing here, .* give --warmup-rounds$", "--benchmark-warmup on"
    ),
    "benchmark: a profile": Session(
        "^--benchmark-cprofile does nothing here, .*; profile from outside, as with `py-spy",
        "--benchmark-cprofile tottime",
    ),
    "campaign: a keyword in the shell": Session(
        "^-k 'strong' leaves out 1 cases of this campaign's launch, the first is .*weak",
        "--label studies=strong,weak",
        {"PYTEST_ADDOPTS": "-k strong"},
    ),
    "campaign: all skipped in the shell": Session(
        "^--benchmark-skip leaves out every case of this campaign's launch; unset it in PYTEST_AD",
        "-k weak --label studies=weak",
        {"PYTEST_ADDOPTS": "--benchmark-skip"},
    ),
    "label: no value": Session("^--label 'x' is not NAME=VALUE", "--label x"),
    "part: none": Session("^--part '0/2' is not K/N with K from 1 to N", "--part 0/2"),
    "part: too high": Session("^--part '4/3' is not K/N with K from 1 to N", "--part 4/3"),
    "part: no number": Session("^--part 'one' is not K/N with K from 1 to N", "--part one"),
    "part: empty": Session(
        "^--part 2/3 holds no case, for 1 are selected; choose a part from ", "-k weak --part 2/3"
    ),
    "case: unknown": Session(
        "^no case matches -k all_redcue; closest: all_reduce", "-k all_redcue"
    ),
    "case: unknown study": Session(r"^Unknown marker\(s\) in '-m' expression: weka", "-m weka"),
    "workload: unknown": Session(
        "^no workload 'resnet19': did you mean resnet18 or", "-k weak --workload resnet19"
    ),
    "workload: option": Session("takes no option 'wide'", "-k weak --workload mlp:wide=3"),
    "workload: exits": Session("^workload 'sys:exit' raised Sy", "-k weak --workload sys:exit"),
    "journal: no folder": Session(
        "cannot write /proc/x/journal.jsonl: .*; give --journal a folder",
        "-k weak --journal /proc/x/journal.jsonl",
        code=78,
    ),
    "json: the journal": Session(
        r"^--journal and --benchmark-json are both own/\.\./x\.json; give each its own file",
        "-k weak --journal own/../x.json --benchmark-json x.json",
    ),
    "json: empty": Session(r"^--benchmark-json \. names no file; give", "--benchmark-json="),
    "json: the root": Session("^--benchmark-json / names no file; give", "--benchmark-json /"),
    "journal: a folder": Session(r"^--journal \. names no file; give", "-k weak --journal ."),
    "json: no folder": Session(
        "cannot write /proc/x.json: .*; give --benchmark-json",
        "-k weak --benchmark-json /proc/x.json",
        code=78,
    ),
}


def start(session, folder, environ):
    folder.mkdir()
    journal = () if "--journal" in session.options else ("--journal", "kept/journal.jsonl")
    own = ("--size", "smoke", *journal, *shlex.split(session.options))
    return subprocess.run(
        [*BOUNDED, sys.executable, "-m", "pytest", ROOT / "bench", *own],
        cwd=folder,
        env={**environ, **session.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=SESSION_TIMEOUT_S,
    )


def assert_nothing_kept(folder):
    # pytest-benchmark makes the empty folder of its storage before anything else.
    assert {path.name for path in folder.rglob("*")} <= {".benchmarks"}


@pytest.fixture(scope="module")
def sessions_ended(request, tmp_path_factory, clean_environ):
    """How the chosen sessions ended, a few at a time, each in a folder of its own."""
    place = tmp_path_factory.mktemp("sessions")
    chosen = chosen_rows(request, "sessions_ended")
    folders = [place / str(number) for number in range(len(chosen))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = pool.map(start, map(SESSIONS.get, chosen), folders, [clean_environ] * len(chosen))
        return dict(zip(chosen, zip(ended, folders, strict=True), strict=True))


# The rest are options and variables that are malformed, each in a session of its own.
IN_CI = ("benchmark: ", "campaign: ", "ranks: srun alone", "device: no GPU")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name.startswith(IN_CI) else pytest.param(name, marks=pytest.mark.chaos)
        for name in SESSIONS
    ],
)
def test_a_session_that_cannot_measure_says_why_before_its_first_case(name, sessions_ended):
    (ended, folder), row = sessions_ended[name], SESSIONS[name]
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    found = re.findall(
        r"^ERROR: (?!usage:)(.*)$|: error: (.*)$|outcomes\.Exit: (.*?) !+$", said, re.M
    )
    assert len(found) == 1, said
    assert re.search(row.says, "".join(found[0])), found
    assert ended.returncode == row.code
    assert_nothing_kept(folder)


REFUSED = "is not for several ranks"
# Name -> options, and what two ranks say of them.
PARTING = {
    "ranks: workers": ("-n 2", f"^-n {REFUSED}: .*workers would join as that.*; start more ranks$"),
    "ranks: failed first": ("--lf", f"^--lf {REFUSED}: .*its own list .*; give --resume$"),
    "ranks: failures before": ("--ff", f"^--ff {REFUSED}: .*its own list .*; give --resume$"),
    "ranks: tracing": ("--trace", f"^--trace {REFUSED}: a rank in a .*; measure one rank$"),
    "ranks: named workers": (
        "--dist load --tx 2*popen",
        f"^--tx {REFUSED}: .*workers would join as that.*; start more ranks$",
    ),
    "ranks: stepwise": ("--sw", f"^--sw {REFUSED}: .*its own list .*; give --resume$"),
    "ranks: debugger": ("--pdb", f"^--pdb {REFUSED}: a rank in a .*; measure one rank$"),
    "ranks: uneven batch": (
        "-m strong --global-batch 7",
        "^global_batch=7 does not divide by world_size=2; choose 6",
    ),
}
# What ranks refuse once they have met, and know of each other.
AGREED = {"ranks: uneven batch"}


@pytest.fixture(scope="module")
def launches_ended(request, tmp_path_factory, run_ranks):
    """How both ranks of the chosen launches ended, a few at a time, each in a folder of its own."""

    def launch(row):
        folder = tmp_path_factory.mktemp("launch")
        options = ("--size", "smoke", "--journal", "kept/journal.jsonl", *shlex.split(row[0]))
        arguments = ["-m", "pytest", ROOT / "bench", *options]
        return run_ranks([arguments] * 2, folder), folder

    chosen = chosen_rows(request, "launches_ended")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = pool.map(launch, map(PARTING.get, chosen))
        return dict(zip(chosen, ended, strict=True))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("name", PARTING)
def test_what_several_ranks_cannot_do_is_said_once(name, launches_ended):
    (zero, one), folder = launches_ended[name]
    assert [zero.returncode, one.returncode] == [4, 4], zero
    said = zero.stdout + zero.stderr
    assert "Traceback" not in said + one.stderr
    (error,) = re.findall("^ERROR: (.*)$", said, re.MULTILINE)
    assert re.search(PARTING[name][1], error), error
    assert one.stdout == ""
    # No launcher has ended rank 1, as it would once rank 0 has: for all it knows, it is alone.
    alone = rf"lockstep: rank 1 on \S+: {re.escape(error)}\n"
    assert re.fullmatch("" if name in AGREED else alone, one.stderr)
    assert_nothing_kept(folder)


@pytest.mark.chaos
@pytest.mark.slow
def test_workers_do_not_measure_beside_each_other(clean_environ, tmp_path):
    ended = start(Session("", "-k weak -n 2"), tmp_path / "here", clean_environ)
    assert ended.returncode == 1
    assert "\n-n would measure several cases at once, each slowed down by" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert_nothing_kept(tmp_path / "here")


def apart(namespace):
    """Return the command that gives another one a namespace of its own."""
    command = ("unshare", "--user", "--map-root-user", namespace)
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        missing(f"this user may not make a namespace: {shlex.join(command)}")
    return command


# A rank whose host has a file system of its own where the others share one.
UNSHARED = """
import os, sys
mounted = 'mount -t tmpfs none shared && exec "$@"'
apart, session = sys.argv[1].split(), [sys.executable, *sys.argv[2:]]
os.execvp("unshare", [*apart, "sh", "-c", mounted, "sh", *session])
"""


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("journal", ["shared/journal.jsonl", "shared/results/journal.jsonl"])
def test_results_that_a_host_does_not_share_are_refused_by_all(journal, run_ranks, tmp_path):
    (tmp_path / "shared").mkdir()
    options = shlex.split(f"--size smoke -k weak --device cpu --comm-timeout 6 --journal {journal}")
    session = ("-m", "pytest", ROOT / "bench", *options)
    mount = shlex.join(apart("--mount"))
    zero, one = run_ranks([session, ("-c", UNSHARED, mount, *session)], tmp_path)
    assert (zero.returncode, one.returncode) == (78, 78), one.stderr
    says = (
        f"rank 1 on {socket.gethostname()} (cpu) cannot write {journal}: this host does not see "
        f"{(tmp_path / journal).parent / 'stacks'}, which rank 0 has made; give --journal a folder "
        "that every node sees and may write to"
    )
    assert says in zero.stdout
    assert (tmp_path / journal).read_text() == ""


# A rank takes the part out of its torch, and the command that starts it needs none.
WITHOUT_IN_RANKS = """
import sys
if "lockstep.trainer.trainer" in sys.orig_argv:
    import less
"""
# torch as it is built without a part of it
WITHOUT = {
    "gloo": "distributed.distributed_c10d._GLOO_AVAILABLE = False",
    "torch.distributed": """
distributed.is_available = lambda: False
del distributed.HashStore, distributed.is_initialized
""",
}


@pytest.fixture(params=WITHOUT)
def less(request, tmp_path):
    """What is said of a torch without a part, and the folder of a module that takes it out."""
    (tmp_path / "less.py").write_text(f"from torch import distributed\n{WITHOUT[request.param]}\n")
    version = re.escape(torch.__version__)
    says = rf"rank 0 on \S+: torch {version} is built without {request.param}; install one with it"
    return says, tmp_path


@pytest.mark.chaos
@pytest.mark.slow
def test_a_torch_without_what_ranks_speak_through_is_refused(less, clean_environ):
    says, folder = less
    options = "-p less -k weak --device cpu"
    row = Session(says, options, {"PYTHONPATH": f"{folder}:{ROOT}"})
    ended = start(row, folder / "here", clean_environ)
    assert ended.returncode == 78
    assert re.search(f"Exit: {says}", ended.stdout), ended.stdout
    assert_nothing_kept(folder / "here")


@pytest.mark.chaos
@pytest.mark.slow
def test_training_with_a_torch_without_what_ranks_speak_through_is_refused(less):
    says, folder = less
    (folder / "sitecustomize.py").write_text(WITHOUT_IN_RANKS)
    line = "train --workload mlp:width=64 --data digits --global-batch 64 --device cpu"
    ended = subprocess.run(
        [COMMAND, *line.split()],
        cwd=folder,
        env=environ(ROOT, PYTHONPATH=f"{folder}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3
    assert re.fullmatch(f"Error: {says}\n", ended.stderr), ended.stderr


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--workload resnet50:image=10000 --local-batch 1000000",
            r"the model resnet50:image=10000 and \d+\.\d GiB for its batch of 1000000, but ",
        ),
        (
            "--workload mlp:width=1000000,depth=1",
            r"14901\.3 GiB for the model mlp:width=1000000,depth=1 and 0\.\d GiB for its batch of ",
        ),
    ],
)
def test_what_no_memory_holds_fails_before_it_is_allocated(options, says, clean_environ, tmp_path):
    ended = start(Session("", f"-k weak --device cpu {options}"), tmp_path / "h", clean_environ)
    assert ended.returncode == 1
    assert re.search(rf"ValueError: rank 0 on \S+ needs .*{says}", ended.stdout), ended.stdout


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--workload nosuch --data digits --global-batch 64", "^no workload 'nosuch': choose from"),
        (
            "--workload mlp --data nowhere --global-batch 64",
            "^no data set 'nowhere'; choose from d",
        ),
        (
            "--workload mlp --data digits --global-batch 0",
            "^global_batch must be at least 1, got 0",
        ),
        ("--workload mlp --data digits", "^give either the global batch or the local batch, not"),
        (
            "--workload mlp --data digits --global-batch 7 --world-size 2",
            "^global_batch=7 does not divide by world_size=2; choose 6 or 8",
        ),
        (
            "--workload mlp:width=1000000,depth=1 --data digits --global-batch 64",
            r"^rank 0 on \S+ needs 14901\.3 GiB for the model mlp:width=1000000,depth=1 and ",
        ),
        (
            "--workload mlp --data synthetic --num-synthetic 1000000000 --global-batch 64",
            r"^rank 0 on \S+ needs 4777\.\d GiB for 1250000000 synthetic items and ",
        ),
    ],
)
def test_training_that_cannot_begin_says_why(options, says, tmp_path):
    row = Row(f"train {options} --device cpu", says)
    assert_one_sentence(row, end(row, tmp_path))


@pytest.mark.chaos
@pytest.mark.slow
def test_a_campaign_whose_cases_are_all_skipped_measures_nothing_and_says_so(tmp_path):
    only_one = changed(CAMPAIGN, "[1, 8]\nrepeats = 2", "[1]\nrepeats = 1")
    (tmp_path / "fp16.toml").write_text(f'{only_one}device = "cpu"\nprecision = "fp16"\n')
    for plan in ("1 launch to make", "0 launches to make"):
        ended = subprocess.run(
            [COMMAND, "run", "fp16.toml"],
            cwd=tmp_path,
            env=environ(ROOT),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert plan in ended.stderr
        assert re.search(
            r"\nNothing was measured, for every case was skipped \(fp16 needs a GPU; .*\); change "
            r"the campaign to measure here\n$",
            ended.stderr,
        )
        assert ended.returncode == 1


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
    options = "--workload noisy:noisy --data digits --global-batch 64 --max-steps 1 --device cpu"
    ended = subprocess.run(
        [COMMAND, "train", *options.split()],
        cwd=tmp_path,
        env=environ(ROOT, PYTHONPATH=f"{tmp_path}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 0, ended.stderr
    assert "\ufffd said\n" in ended.stderr


def test_a_series_without_one_rank_is_relative_to_its_smallest(tmp_path):
    strong_tree(tmp_path, {2: (0.1,), 4: (0.06,)})
    said = {}
    for options in ((), ("--baseline", "1")):
        asked = [COMMAND, "report", ".", "--json", *options]
        said[options] = subprocess.run(
            asked, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    of_itself, of_one = said.values()
    assert {point["baseline_world_size"] for point in json.loads(of_itself.stdout)["points"]} == {2}
    assert (of_one.returncode, of_one.stderr) == (
        2,
        "Error: no series has the baseline 1; measured sizes are [2, 4]\n",
    )


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"gpu"', '"gpuu"', r"change partition in the site file \(partitions: .*gpu"),
        ('"fake"', '"h100"', r"change gpus_per_node, gpu_type, .* in the site file \(.*gpu:fake:2"),
        ('"gpu"', '"debug"', r"change .*world_sizes.* \(partitions: .*debug has 2 nodes"),
        (
            "time =",
            'account = "nobody"\ntime =',
            r"change account .* \(sent with account nobody, no q",
        ),
    ],
)
def test_a_real_slurm_s_refusal_names_the_key_and_what_there_is(old, new, says, tmp_path):
    need_testbed()
    text = (
        'schema = 1\nname = "testbed"\npartition = "gpu"\ngpus_per_node = 2\ngpu_type = "fake"\n'
        'cpus_per_node = 2\ntime = "00:05:00"\n[container]\nimage = "/gone.sif"\n'
    )
    files = {
        "campaign.toml": changed(CAMPAIGN, "[1, 8]", "[8]"),
        "site.toml": changed(text, old, new),
    }
    row = Row("submit campaign.toml --site site.toml", says, files, leaves=SUBMITTED)
    assert_one_sentence(row, end(row, tmp_path))
