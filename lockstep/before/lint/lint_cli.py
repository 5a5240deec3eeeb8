"""The command `lockstep lint`."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lockstep.before.lint.rules import Finding

# A note that most scripts get; of several scripts it is printed once.
COMMON = "REQUEUE"
EXAMPLES = """\b
Examples:
  lockstep lint train.sbatch
  lockstep lint examples/plain_ddp.py   a training script of Python
  lockstep lint jobs/*.sh --json
  lockstep lint --rules

\b
Each line reads FILE:LINE: RULE SEVERITY: what is wrong; what to do.
Shell scripts need the extra [lint], as pip install '/path/to/checkout[lint]'.
Exit code: 0 no error or warning, 1 some, 2 a script cannot be read. Notes alone give 0.
"""


@click.command("lint", epilog=EXAMPLES)
@click.argument("scripts", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", "lists_rules", is_flag=True, help="List what is looked for.")
@click.pass_context
def lint(ctx: click.Context, scripts: tuple[str, ...], as_json: bool, lists_rules: bool) -> None:
    """Find errors in your own sbatch SCRIPTS, and training scripts of Python, before they run.

    Reads the scripts and runs nothing.
    """
    if lists_rules:
        _print_rules(as_json)
        return
    if not scripts:
        raise click.UsageError("Missing argument 'SCRIPTS...'; give a batch script, or --rules.")
    findings = _findings(scripts)
    if as_json:
        click.echo(json.dumps({"findings": [vars(finding) for finding in findings]}, indent=1))
    else:
        for text in _lines(findings):
            click.echo(text)
        click.echo(_summary(findings, len(scripts)), err=True)
    ctx.exit(any(finding.severity != "note" for finding in findings))


def _findings(scripts: tuple[str, ...]) -> "list[Finding]":
    import socket

    from lockstep.before.lint import batch, training
    from lockstep.before.lint.batch_rules import BATCH
    from lockstep.before.lint.rules import judge

    interfaces = [name for _, name in socket.if_nameindex()]
    slurm = _slurm_version()
    # All are read before the first is judged, so that a wrong name costs no output.
    judges: list[Callable[[], list[Finding]]] = []
    for path in scripts:
        if path.endswith(".py"):
            judges.append(partial(judge, training.load(path), training.TRAINING))
        else:
            judges.append(partial(judge, batch.load(path, interfaces, slurm), BATCH))
    return [finding for judge_script in judges for finding in judge_script()]


def _slurm_version() -> tuple[int, ...] | None:
    """Return the version of the sbatch of this machine, as (23, 2); None where there is none."""
    try:
        text = subprocess.run(
            ["sbatch", "--version"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"slurm\S* (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _lines(findings: "list[Finding]") -> Iterator[str]:
    """Yield a line for each finding; the one that nearly every script has, once for all scripts."""
    common = [finding for finding in findings if finding.rule == COMMON]
    yield from (str(finding) for finding in findings if finding.rule != COMMON)
    if common:
        more = len(common) - 1
        yield f"{common[0]}" + f" (and in {more} more script{'s' * (more > 1)})" * bool(more)


def _summary(findings: "list[Finding]", num_scripts: int) -> str:
    counts = {
        name: sum(finding.severity == name for finding in findings)
        for name in ("error", "warning", "note")
    }
    counted = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    return f"{num_scripts} script{'s' * (num_scripts != 1)}: {counted}"


def _print_rules(as_json: bool) -> None:
    from lockstep.before.lint.batch_rules import BATCH
    from lockstep.before.lint.training import TRAINING

    rows = [
        {"rule": rule.name, "severity": rule.severity, "why": rule.why, "action": rule.action}
        for rule in (*BATCH, *TRAINING)
    ]
    if as_json:
        click.echo(json.dumps({"rules": rows}, indent=1))
        return
    for row in rows:
        click.echo(f"{row['rule']:22}{row['severity']:9}{row['why']}")
