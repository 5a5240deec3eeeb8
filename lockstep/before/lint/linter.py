"""Errors that a reader of a batch script can find before the job has waited in the queue.

A rule is one function of `command_rules` or `directive_rules`, with its name, severity, reason and
action above it. Nothing is run.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from lockstep.before.lint import command_rules, directive_rules
from lockstep.before.lint.batch import BATCH, Hit, Job, Rule, Subject
from lockstep.before.lint.shell import Script
from lockstep.core.formats import one_line

MAX_FACT = 300
MAX_SCRIPT_BYTES = 4 * 1024**2  # that of Slurm's SchedulerParameters max_script_size


@dataclass(frozen=True)
class Finding:
    """A rule that a script breaks, and where."""

    path: str
    line: int
    rule: str
    severity: str
    message: str
    action: str

    def __str__(self) -> str:
        """Return it as compilers write an error, in one line."""
        return (
            f"{self.path}:{self.line}: {self.rule} {self.severity}: {self.message}; {self.action}"
        )


def rules() -> list[Rule[Job]]:
    """Return the rules for batch scripts, in the order of their modules."""
    assert command_rules and directive_rules  # each adds its rules as it is imported
    return BATCH


def load(path: str) -> Script:
    """Read a script.

    Raises:
        ValueError: There is no such file, or it cannot be a script.
    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_SCRIPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: {reason}; give a batch script") from error
    if len(content) > MAX_SCRIPT_BYTES:
        raise ValueError(f"{path}: over {MAX_SCRIPT_BYTES} bytes, which sbatch refuses; is it one?")
    if b"\0" in content:
        raise ValueError(f"{path}: holds zero bytes, so it is no script; give a batch script")
    return Script(path, content.decode("utf-8", "replace"))


def lint(
    script: Script,
    interfaces: Collection[str] | None = None,
    slurm: tuple[int, ...] | None = None,
) -> list[Finding]:
    """Return what is wrong with a script, from its first line to its last.

    Args:
        script: What is judged.
        interfaces: Network interfaces of this machine, or None not to look for those it names.
        slurm: The version of Slurm that it is for, as (23, 2); None where it is not known.
    """
    return judged(script.path, Job(script, interfaces, slurm), rules())


def judged(path: str, subject: Subject, known: Iterable[Rule[Subject]]) -> list[Finding]:
    """Return what rules find in the script of a path, in the order of its lines."""
    findings = [_finding(path, rule, hit) for rule in known for hit in rule.check(subject)]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line)


def _finding(path: str, rule: Rule[Subject], hit: Hit) -> Finding:
    fact = one_line(hit.fact[:MAX_FACT])
    message = fact if hit.action else f"{fact}: {rule.why}"
    action = one_line(hit.action[:MAX_FACT]) or rule.action
    return Finding(path, hit.line, rule.name, hit.severity or rule.severity, message, action)
