"""The command `lockstep lint`."""

import json
import re
from pathlib import Path

import click

from lockstep.core.findings import SYMPTOMS
from lockstep.core.formats import counted
from lockstep.core.processes import answer

TIMEOUT_S = 5
EXAMPLES = """\b
Examples:
  lockstep lint train.sbatch
  lockstep lint examples/plain_ddp.py   a training script of Python
  lockstep lint jobs/*.sh --json
  lockstep lint --rules

\b
Each printed line has the form FILE:LINE: RULE SEVERITY: what is wrong: why; what to do.
A folder stands for its .sh, .sbatch, .slurm and .py files, without those of its subfolders.
Shell scripts need the extra [lint]: pip install '/path/to/checkout[lint]'.
Exit code: 0 if there is no error and no warning, 1 if there is one, 2 if a script cannot be read.
"""


SUFFIXES = (".sh", ".sbatch", ".slurm", ".py")


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    if not files:
        endings = ", ".join(SUFFIXES)
        raise ValueError(f"folder {path} has no file that ends in {endings}; give a script")
    return files


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
    from lockstep.before.lint.rules import judge

    if lists_rules:
        rules = [
            {"rule": rule.name, "severity": rule.severity, "why": rule.why, "action": rule.action}
            for rule in {rule.name: rule for rule in (*BATCH, *training.TRAINING)}.values()
        ]
        lines = [f"{rule['rule']:22}{rule['severity']:9}{rule['why']}" for rule in rules]
        click.echo(json.dumps({"rules": rules}, indent=1) if as_json else "\n".join(lines))
        return
    if not scripts:
        raise click.UsageError("Missing argument 'SCRIPTS...'; give a batch script, or --rules.")
    interfaces = [name for _, name in socket.if_nameindex()]
    version = re.match(r"slurm\S* (\d+)\.(\d+)", answer(["sbatch", "--version"], TIMEOUT_S) or "")
    slurm = (int(version[1]), int(version[2])) if version else None
    files = [file for path in scripts for file in _files(Path(path))]
    findings = [
        finding
        for path in map(str, files)
        for finding in (
            judge(training.load(path), training.TRAINING)
            if path.endswith(".py")
            else judge(batch.load(path, interfaces, slurm), BATCH)
        )
    ]
    severities = [finding.severity for finding in findings]
    is_bad = "error" in severities or "warning" in severities
    if as_json:
        click.echo(json.dumps({"findings": [vars(finding) for finding in findings]}, indent=1))
    else:
        for finding in findings:
            click.echo(str(finding))
        counts = [counted(severities.count(name), name) for name in ("error", "warning", "note")]
        inside = (child for path in map(Path, scripts) if path.is_dir() for child in path.iterdir())
        is_deeper = any(child.is_dir() and not child.name.startswith(".") for child in inside)
        unread = "; subfolders were not read" * is_deeper
        click.echo(f"{counted(len(files), 'script')}: {', '.join(counts)}{unread}", err=True)
        if is_bad:
            click.echo(SYMPTOMS, err=True)
    ctx.exit(is_bad)
