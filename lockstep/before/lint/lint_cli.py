"""The command `lockstep lint`."""

import json
import re
from typing import Any

import click

from lockstep.core.findings import SYMPTOMS
from lockstep.core.processes import answer

TIMEOUT_S = 5
# A note that most scripts get; it is printed once for all of them.
COMMON = "REQUEUE"
EXAMPLES = """\b
Examples:
  lockstep lint train.sbatch
  lockstep lint examples/plain_ddp.py   a training script of Python
  lockstep lint jobs/*.sh --json
  lockstep lint --rules

\b
Each line reads FILE:LINE: RULE SEVERITY: what is wrong: why; what to do.
Shell scripts need the extra [lint], as pip install '/path/to/checkout[lint]'.
Exit code: 0 no error or warning (notes alone give 0), 1 some, 2 a script cannot be read.
"""


@click.command("lint", epilog=EXAMPLES)
@click.argument("scripts", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", "lists_rules", is_flag=True, help="List the rules.")
@click.pass_context
def lint(ctx: click.Context, scripts: tuple[str, ...], as_json: bool, lists_rules: bool) -> None:
    """Find errors in your own sbatch SCRIPTS and Python training scripts before they run.

    Lint reads the scripts and runs nothing.
    """
    import socket

    from lockstep.before.lint import batch, training
    from lockstep.before.lint.batch_rules import BATCH
    from lockstep.before.lint.rules import Finding, Rule, judge

    if lists_rules:
        every_rule: list[Rule[Any]] = [*BATCH, *training.TRAINING]
        rules = [
            {"rule": rule.name, "severity": rule.severity, "why": rule.why, "action": rule.action}
            for rule in every_rule
        ]
        lines = [f"{rule['rule']:22}{rule['severity']:9}{rule['why']}" for rule in rules]
        click.echo(json.dumps({"rules": rules}, indent=1) if as_json else "\n".join(lines))
        return
    if not scripts:
        raise click.UsageError("Missing argument 'SCRIPTS...'; give a batch script, or --rules.")
    interfaces = [name for _, name in socket.if_nameindex()]
    version = re.match(r"slurm\S* (\d+)\.(\d+)", answer(["sbatch", "--version"], TIMEOUT_S) or "")
    slurm = (int(version[1]), int(version[2])) if version else None
    findings: list[Finding] = []
    for path in scripts:
        if path.endswith(".py"):
            findings += judge(training.load(path), training.TRAINING)
        else:
            findings += judge(batch.load(path, interfaces, slurm), BATCH)
    if as_json:
        click.echo(json.dumps({"findings": [vars(finding) for finding in findings]}, indent=1))
    else:
        common = [finding for finding in findings if finding.rule == COMMON]
        for finding in findings:
            if finding.rule != COMMON:
                click.echo(str(finding))
        if common:
            more = len(common) - 1
            others = f" (and in {more} more script{'s' * (more > 1)})" if more else ""
            click.echo(f"{common[0]}{others}")
        severities = [finding.severity for finding in findings]
        counts = {name: severities.count(name) for name in ("error", "warning", "note")}
        counted = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
        num_scripts = len(scripts)
        click.echo(f"{num_scripts} script{'s' * (num_scripts != 1)}: {counted}", err=True)
        if counts["error"] or counts["warning"]:
            click.echo(SYMPTOMS, err=True)
    ctx.exit(any(finding.severity != "note" for finding in findings))
