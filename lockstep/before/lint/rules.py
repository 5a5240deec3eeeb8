"""The rules of lint and their findings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from lockstep.core.formats import one_line

Severity = Literal["error", "warning", "note"]


class _Script(Protocol):
    @property
    def path(self) -> str: ...


Subject = TypeVar("Subject", bound=_Script)
MAX_FACT = 300


@dataclass(frozen=True)
class Hit:
    """One place where a script breaks a rule. With its own action the fact includes the reason.

    Attributes:
        severity: Error, warning or note, if it differs from the rule's.
    """

    line: int
    fact: str
    action: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """One error to look for, in a batch script or a training script.

    Attributes:
        why: What happens to a job that breaks the rule.
        action: What to do.
    """

    name: str
    severity: Severity
    why: str
    action: str
    check: Callable[[Subject], Iterator[Hit]]


class Rules(list[Rule[Subject]]):
    """The rules for one kind of script, in the order in which `--rules` lists them."""

    def rule(
        self, name: str, severity: Severity, why: str, action: str
    ) -> Callable[[Callable[[Subject], Iterator[Hit]]], Callable[[Subject], Iterator[Hit]]]:
        """Register a function that yields the hits in a script as a rule."""

        def add(check: Callable[[Subject], Iterator[Hit]]) -> Callable[[Subject], Iterator[Hit]]:
            self.append(Rule(name, severity, why, action, check))
            return check

        return add


@dataclass(frozen=True)
class Finding:
    """A hit of a rule, with path, severity and action."""

    path: str
    line: int
    rule: str
    severity: str
    message: str
    action: str

    def __str__(self) -> str:
        """Return one line in the form of a compiler's errors."""
        return (
            f"{self.path}:{self.line}: {self.rule} {self.severity}: {self.message}; {self.action}"
        )


def judge(script: Subject, rules: Iterable[Rule[Subject]]) -> list[Finding]:
    """Return the findings of all rules in a script, by line."""
    findings = []
    for rule in rules:
        for hit in rule.check(script):
            fact = one_line(hit.fact[:MAX_FACT])
            message = fact if hit.action else f"{fact}: {rule.why}"
            action = one_line(hit.action[:MAX_FACT]) or rule.action
            severity = hit.severity or rule.severity
            findings.append(Finding(script.path, hit.line, rule.name, severity, message, action))
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line)
