"""Whether a machine, a site and an image are fit to measure: the checks, in a table, and a page."""

import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from lockstep.before.doctor import cluster_checks as cluster
from lockstep.before.doctor import cluster_checks as image
from lockstep.before.doctor import machine_checks as machine
from lockstep.before.doctor.checks import Finding, Status, Subject, not_needed, ok, warning
from lockstep.before.lint import variables
from lockstep.before.lint.shell import split_words
from lockstep.core.processes import COMMUNICATION_PREFIXES, steers_torch

WIDTH = 80
STATUS_WIDTH = 12
NAME_WIDTH = 18


def nccl_variables(subject: Subject) -> Finding:
    """Whether the variables of NCCL and gloo exist, can have their values and reach the ranks."""
    set_before = exported(subject.site.shell_before) if subject.site else {}
    in_site = subject.site.rank_environment() if subject.site else {}
    environ = dict(subject.environ) | set_before | in_site
    problems = variables.problems(environ)
    if problems:
        details = [f"{problem.message}; {problem.action}" for problem in problems]
        action = "correct them in the site's [env], or where they are exported"
        return warning(f"{len(problems)} doubtful", action, *details)
    if subject.site and subject.site.container and (dropped := _dropped(set_before, in_site)):
        return warning(
            f"the image does not get {', '.join(dropped)} of shell_before",
            "set them in the site's [env]",
        )
    names = [name for name in environ if name.startswith(COMMUNICATION_PREFIXES)]
    return ok(f"{len(names)} set, all known") if names else not_needed("none is set")


def exported(lines: str) -> dict[str, str]:
    """Return the variables that shell lines export and set, with the values that are written."""
    names: set[str] = set()
    values: dict[str, str] = {}
    for line in lines.splitlines():
        words = [word.rstrip(";") for word in split_words(line)]
        if "export" in words:
            names |= {word.partition("=")[0] for word in words[words.index("export") :]}
        values |= dict(word.split("=", 1) for word in words if "=" in word)
    return {name: value for name, value in values.items() if name in names}


def _dropped(names: Iterable[str], in_site: Collection[str]) -> list[str]:
    """Return what steers torch, but is neither handed on into an image nor in the site's [env]."""
    steering = filter(steers_torch, names)
    handed_on = COMMUNICATION_PREFIXES
    return sorted(
        name for name in steering if name not in in_site and not name.startswith(handed_on)
    )


@dataclass(frozen=True)
class Check:
    """One row of the table: a check, what it is called and where it is listed."""

    group: str
    name: str
    run: Callable[[Subject], Finding]


CHECKS = (
    Check("This machine", "Python", machine.python),
    Check("This machine", "lockstep run", machine.measuring),
    Check("This machine", "GPUs", machine.gpus),
    Check("This machine", "Threads", machine.threads),
    Check("This machine", "Open files", machine.open_files),
    Check("This machine", "Locked memory", machine.locked_memory),
    Check("This machine", "Foreign packages", machine.foreign_packages),
    Check("This machine", "Clock", machine.clock),
    Check("Network", "Interface", machine.interface),
    Check("Network", "NCCL variables", nccl_variables),
    Check("Storage", "Data", machine.data_storage),
    Check("Storage", "Scratch", machine.scratch_storage),
    Check("Storage", "Results", machine.results_storage),
    Check("Image", "Apptainer", image.apptainer),
    Check("Image", "User namespaces", image.namespaces),
    Check("Image", "FUSE", image.fuse),
    Check("Image", "Image file", image.image),
    Check("Image", "Image's Python", image.image_runs),
    Check("Image", "GPU driver", image.gpu_driver),
    Check("Slurm", "Site file", cluster.site_file),
    Check("Slurm", "Slurm", cluster.answers),
    Check("Slurm", "Partition", cluster.partition),
    Check("Slurm", "Time limit", cluster.time_limit),
    Check("Slurm", "Account", cluster.account),
    Check("Slurm", "Job limits", cluster.job_limits),
    Check("Slurm", "Accounting", cluster.accounting),
    Check("Slurm", "Job arrays", cluster.array_size),
    Check("Slurm", "Nodes", cluster.nodes),
)


@dataclass(frozen=True)
class Result:
    """A check and what it has found."""

    group: str
    name: str
    finding: Finding


@dataclass(frozen=True)
class Diagnosis:
    """All results, and what follows from them.

    Attributes:
        runs_here: Whether `lockstep run` can measure on this machine and keep the results.
        submits: Whether a site is given, nothing that its jobs need is missing, and their results
            can be kept.
    """

    results: tuple[Result, ...]
    runs_here: bool
    submits: bool

    @property
    def counts(self) -> Counter[str]:
        """How many checks have each status."""
        return Counter(result.finding.status for result in self.results)

    @property
    def exit_code(self) -> int:
        """3 where nothing can run, 1 where a check failed, 0 otherwise."""
        if not (self.runs_here or self.submits):
            return 3
        return 1 if self.counts["missing"] else 0

    @property
    def verdict(self) -> str:
        """What can be done here, in one sentence."""
        if self.runs_here and self.submits:
            return "`lockstep run` can measure here, and the site's jobs can be submitted."
        if self.submits:
            return "The site's jobs can be submitted; `lockstep run` cannot measure here."
        if self.runs_here:
            return "`lockstep run` can measure on this machine."
        return "Nothing can be measured from here; you can still plan, render and report."

    def facts(self) -> dict[str, Any]:
        """Return it as JSON would say it."""
        rows = [
            {"group": row.group, "check": row.name, **asdict(row.finding)} for row in self.results
        ]
        return {
            "checks": rows,
            "runs_here": self.runs_here,
            "submits": self.submits,
            "exit_code": self.exit_code,
        }


def examine(subject: Subject, say: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Make every check; `say` is told its name before."""
    results = []
    for check in CHECKS:
        say(check.name)
        results.append(Result(check.group, check.name, _find(check, subject)))
    status = {result.name: result.finding.status for result in results}
    cluster = [r.finding.status for r in results if r.group in ("Image", "Slurm")]
    is_kept = status["Results"] != "missing"
    return Diagnosis(
        results=tuple(results),
        runs_here=is_kept and status["lockstep run"] == "ok",
        submits=is_kept
        and subject.site is not None
        and status["Slurm"] == "ok"
        and "missing" not in cluster,
    )


def _find(check: Check, subject: Subject) -> Finding:
    try:
        return check.run(subject)
    except (OSError, RuntimeError) as error:
        return warning(f"it cannot be checked: {error}", "nothing to do if a trial job works")


def page(diagnosis: Diagnosis) -> str:
    """Return the results as text of 80 columns."""
    lines: list[str] = []
    for group in dict.fromkeys(result.group for result in diagnosis.results):
        lines += [group, *_rows([r for r in diagnosis.results if r.group == group]), ""]
    counted = [(diagnosis.counts[status], status) for status in get_args(Status)]
    counts = ", ".join(f"{number} {status}" for number, status in counted if number)
    return "\n".join([*lines, f"{counts}.", *_wrapped(diagnosis.verdict, "", "")])


def _rows(results: Sequence[Result]) -> Iterator[str]:
    indent = " " * (2 + STATUS_WIDTH + NAME_WIDTH)
    for result in results:
        finding = result.finding
        head = f"  {finding.status:{STATUS_WIDTH}}{result.name:{NAME_WIDTH}}"
        yield from _wrapped(finding.says, head, indent)
        for detail in finding.details:
            yield from _wrapped(detail, f"{indent}- ", f"{indent}  ")
        if finding.action:
            yield from _wrapped(finding.action, f"{indent}-> ", f"{indent}   ")


def _wrapped(text: str, first: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
