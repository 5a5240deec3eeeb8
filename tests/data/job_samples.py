"""A campaign and a site as their files say them, for the tests of jobs and their scripts."""

from lockstep.campaign.campaign import Campaign
from lockstep.core.journal import Journal
from lockstep.core.record import KEY, SCHEMA_VERSION
from lockstep.slurm.site import Site

CAMPAIGN = {
    "schema": 1,
    "name": "ladder",
    "studies": ["strong", "weak"],
    "world_sizes": [1, 2, 4, 8],
    "repeats": 2,
    "size": "node",
    "global_batch": 1024,
}
# As files, of a smaller campaign.
CAMPAIGN_FILE = """schema = 1
name = "ladder"
studies = ["weak"]
world_sizes = [1, 8]
repeats = 2
size = "smoke"
"""
SITE_FILE = """schema = 1
name = "here"
partition = "gpu"
gpus_per_node = 4
cpus_per_node = 64
time = "01:30:00"
[container]
image = "/images/lockstep.sif"
"""
CONTAINER = {"image": "/images/lockstep.sif", "binds": ["/scratch"], "args": ["--no-home"]}
SITE = {
    "schema": 1,
    "name": "here",
    "partition": "gpu",
    "account": "project",
    "gpus_per_node": 4,
    "gpu_type": "h100",
    "cpus_per_node": 64,
    "mem": "480G",
    "time": "02:00:00",
    "env": {"NCCL_DEBUG": "WARN"},
    "extra_directives": ["--exclusive"],
    "shell_before": "ulimit -l unlimited",
}


def campaign_of(**changes):
    """Return the campaign with changes.

    Its repeats share a job unless it is said otherwise, so that a script has several launches.
    """
    asked = dict(changes.pop("jobs", {}))
    if asked.get("allocation") != "array":
        asked.setdefault("share_job", True)
    return Campaign.model_validate(CAMPAIGN | changes | {"jobs": asked})


def site_of(**changes):
    return Site.model_validate(SITE | {"container": CONTAINER} | changes)


def small(**changes):
    return campaign_of(**{"world_sizes": [1], "repeats": 1, "studies": ["weak"]} | changes)


def write_lines(path, *lines):
    """Write lines into a journal as a session does, and return its path."""
    journal = Journal(path)
    for line in lines:
        journal.append(line)
    journal.close()
    return path


def write_journal(path, *cases, expected, studies="weak", flags=()):
    """Write the journal of a launch in which some of the expected cases have ended."""
    head = {"kind": "launch", "schema": SCHEMA_VERSION, "resumed": False}
    facts = {"document": {"version": "5"}, "launch": {"world_size": 1, "studies": studies}}
    known = {"stats": {"min": 1.0}, "extra_info": {KEY: {"flags": list(flags)}}}
    ended = [{"kind": "case", "case": one, "benchmark": {"name": one} | known} for one in cases]
    write_lines(path, head | facts | {"expected": list(expected)}, *ended)
