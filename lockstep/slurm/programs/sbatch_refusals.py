"""What sbatch refuses, said by the key it is about and what the cluster has instead."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.core import files
from lockstep.core.formats import listed, one_line

SITE = "in the site file"
CAMPAIGN = "in the campaign file"
EITHER = f"{SITE} or {CAMPAIGN}"
MAX_LISTED = 12
CHARGED = ("account", "qos")
_CHARGED = re.compile(rf"^#SBATCH --({'|'.join(CHARGED)})=(.*)$", re.MULTILINE)
# A line of sbatch's own: banners, and what a plugin only tells, begin otherwise.
_OWN_LINE = re.compile(r"sbatch: (error: |fatal: |unrecognized |invalid |option )", re.IGNORECASE)
# The answer was lost, not the job: the controller may have taken it.
_LOST_ANSWER = re.compile(
    "socket timed out|unable to contact|connection|transport|zero bytes", re.IGNORECASE
)


@dataclass(frozen=True)
class Refusal:
    """One thing that sbatch refuses.

    Attributes:
        said: Part of sbatch's message, in lower case.
        key: The key, or keys, that it is about.
        where: The file that holds them.
        ask: A command whose answer lists what is allowed; empty where no single call tells.
        noun: What that answer lists.
        form: How it lists them: a line each, several with commas in a line, as scontrol's records
            of reservations, or as its setting MaxArraySize.
    """

    said: str
    key: str
    where: str = SITE
    ask: tuple[str, ...] = ()
    noun: str = ""
    form: Literal["lines", "commas", "reservations", "array_size"] = "lines"


def _sinfo(columns: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", f"--format={columns}")


# %R partition, %l time limit, %D nodes, %s job sizes, %f features, %G gres, %c CPUs, %m MiB, as
# the page of sinfo(1) lists them.
_PARTITIONS = (_sinfo("%R"), "partitions")
_ACCOUNTS = (("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where",
              "user={user}", "format=Account"), "your accounts")  # fmt: skip
_QOS = (("sacctmgr", "--noheader", "--parsable2", "show", "associations", "where",
         "user={user}", "format=QOS"), "your QOS")  # fmt: skip

# The messages are those of slurm_errno.c and of sbatch's own reading of options, Slurm 22.05 to
# 24.05; the first that fits counts, so the narrower ones come first.
REFUSALS = (
    Refusal("invalid account", "account", SITE, *_ACCOUNTS),
    Refusal("invalid qos", "qos", SITE, *_QOS, form="commas"),
    Refusal("invalid partition", "partition", SITE, *_PARTITIONS),
    Refusal("requested partition configuration", "partition", SITE, *_PARTITIONS),
    Refusal("user's group not permitted", "partition", SITE, *_PARTITIONS),
    Refusal("job violates accounting/qos policy", "qos, account, time, or jobs.share_job for fewer "
            "jobs,", EITHER),
    Refusal("license", "extra_directives (--licenses)"),
    Refusal("invalid feature", "constraint", SITE, _sinfo("%f"), "features",
            form="commas"),
    Refusal("reservation", "reservation", SITE,
            ("scontrol", "show", "reservation", "--oneliner"), "reservations",
            form="reservations"),
    Refusal("time limit", "time", EITHER, _sinfo("%R %l"), "limits"),
    Refusal("invalid --time", "time", EITHER, _sinfo("%R %l"), "limits"),
    Refusal("memory specification", "mem", SITE, _sinfo("%m"), "MiB of a node"),
    Refusal("invalid --mem", "mem", SITE, _sinfo("%m"), "MiB of a node"),
    Refusal("generic resource", "gpu_type or gpus_per_node", SITE, _sinfo("%G"), "gres of a node"),
    Refusal("trackable resource", "gpu_type or gpus_per_node", SITE, _sinfo("%G"),
            "gres of a node"),
    Refusal("invalid gres", "gpu_type or gpus_per_node", SITE, _sinfo("%G"), "gres of a node"),
    Refusal("node configuration", "gpus_per_node, gpu_type, cpus_per_node or mem", SITE,
            _sinfo("%R: %c CPUs, %m MiB, %G"), "a node has"),
    # Said of too many CPUs of a node, and of more nodes than the whole cluster has CPUs for.
    Refusal("more processors", "cpus_per_node", f"{SITE}, or world_sizes {CAMPAIGN}",
            _sinfo("%R has %D nodes of %c CPUs"), "partitions"),
    Refusal("cpu count", "cpus_per_node", SITE, _sinfo("%c"), "CPUs of a node"),
    Refusal("node count", "world_sizes", CAMPAIGN, _sinfo("%R has %D nodes, jobs of %s"),
            "partitions"),
    Refusal("job array", "max_array_size", SITE,
            ("scontrol", "show", "config"), "MaxArraySize", form="array_size"),
    Refusal("invalid node name", "extra_directives", SITE, _sinfo("%N"), "nodes"),
    Refusal("unrecognized option", "extra_directives"),
    Refusal("invalid option", "extra_directives"),
    Refusal("dos line breaks", "shell_before, shell_after or template (save it with Unix line "
            "ends)"),
    Refusal("does not look like a batch script", "template (it must begin with #!/bin/bash)"),
    Refusal("parameter too long", "world_sizes or repeats (a script may have 4 MB)", CAMPAIGN),
)  # fmt: skip


def find(message: str) -> Refusal | None:
    """Return what a message of sbatch is about; None if it is about no key."""
    low = message.lower()
    return next((refusal for refusal in REFUSALS if refusal.said in low), None)


def explain(stderr: str, user: str, ask: Callable[..., str], script: Path) -> str | None:
    """Return sbatch's message with the key to change and what is allowed; None if it is no refusal.

    Only sbatch's own lines of errors count, and the last of them says how the submission ended.

    Args:
        stderr: What sbatch said, line by line; all of it is kept in the message.
        user: Who asks, for what only the user's account may do.
        ask: Runs one of Slurm's commands and returns its output.
        script: What was sent.
    """
    errors = [line for line in stderr.splitlines() if _OWN_LINE.match(line)]
    refusal = find(" ".join(errors))
    if refusal is None or _LOST_ANSWER.search(errors[-1]):
        return None
    facts = "; ".join(filter(None, [_charged(refusal, script), _allowed(refusal, user, ask)]))
    to_do = f"change {refusal.key} {refusal.where}{facts and f' ({facts})'}"
    return f"sbatch said: {one_line(stderr)}; {to_do}"


def _charged(refusal: Refusal, script: Path) -> str:
    """Return the account and QOS that a script asks for, where one may be what is refused."""
    if not any(name in refusal.key for name in CHARGED) or not script.is_file():
        return ""
    charged = dict(_CHARGED.findall(files.text(script)))
    texts = [f"{name} {charged[name]}" if name in charged else f"no {name}" for name in CHARGED]
    return f"sent with {', '.join(texts)}"


def _allowed(refusal: Refusal, user: str, ask: Callable[..., str]) -> str:
    """Return what the cluster has in words; nothing where it does not say."""
    if not refusal.ask:
        return ""
    try:
        lines = ask(*(word.format(user=user) for word in refusal.ask)).splitlines()
    except RuntimeError:
        return ""
    items = _listed(refusal.form, lines)
    return f"{refusal.noun}: {listed(items, MAX_LISTED) or 'none'}"


def _listed(form: str, lines: list[str]) -> list[str]:
    """Return the answers without doubles, in the order of the answer."""
    if form == "array_size":
        lines = [line.partition("=")[2] for line in lines if line.startswith("MaxArraySize")]
    elif form == "reservations":
        names = (line.partition(" ")[0] for line in lines)
        lines = [name.partition("=")[2] for name in names]  # ReservationName=NAME
    elif form == "commas":
        lines = [item for line in lines for item in line.split(",")]
    texts = (line.strip() for line in lines)
    return list(dict.fromkeys(text for text in texts if text not in ("", "(null)", "N/A")))
