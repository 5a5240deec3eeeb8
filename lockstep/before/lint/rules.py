"""The rules of lint and their findings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lockstep.core.formats import one_line

Severity = Literal["error", "warning", "note"]
MAX_FACT = 300


@dataclass(frozen=True)
class Hit:
    """A place where a script breaks a rule; with its own `action`, `fact` includes the reason."""

    line: int
    fact: str
    action: str = ""
    severity: Severity | None = None


Check = Callable[[Any], Iterator[Hit]]


@dataclass(frozen=True)
class Rule:
    """An error to look for: `why` is its effect on a job, `action` is what to do."""

    name: str
    severity: Severity
    why: str
    action: str
    check: Check


class Rules(list[Rule]):
    """The rules for one kind of script, in the order of `--rules`."""

    def rule(
        self, name: str, severity: Severity, why: str, action: str
    ) -> Callable[[Check], Check]:
        def register(check: Check) -> Check:
            self.append(Rule(name, severity, why, action, check))
            return check

        return register


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    severity: str
    message: str
    action: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.rule} {self.severity}: {self.message}; {self.action}"
        )


def judge(script: Any, rules: Rules) -> list[Finding]:
    findings: dict[Finding, None] = {}
    for rule in rules:
        for hit in rule.check(script):
            fact, action = one_line(hit.fact[:MAX_FACT]), one_line(hit.action[:MAX_FACT])
            message = fact if action else f"{fact}: {rule.why}"
            severity = hit.severity or rule.severity
            finding = Finding(
                script.path, hit.line, rule.name, severity, message, action or rule.action
            )
            findings[finding] = None
    return sorted(findings, key=lambda finding: finding.line)
