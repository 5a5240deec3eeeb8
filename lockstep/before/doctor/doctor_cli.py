"""The command `lockstep doctor`."""

import json
import os
import shlex
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.core.files import default_folder
from lockstep.core.findings import SYMPTOMS, Level, wrapped
from lockstep.slurm.submit.cli_options import site_option

if TYPE_CHECKING:
    from lockstep.before.doctor.cluster_checks import Diagnosis

STATUS_WIDTH, NAME_WIDTH = 12, 18
# 80 columns; a path stays in one piece, so that it can be copied.
wrap = partial(wrapped, width=80, splits_words=False)
LEVELS: tuple[Level, ...] = ("ok", "warning", "missing", "not needed")


@click.command()
@site_option(
    "chosen_site", "Also check this site; give a site file or the name of a built-in site."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Also check this folder of training data: its file system and its free space.",
)
@click.option(
    "--to",
    "results",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_folder("results"),
    show_default=True,
    help="Results folder; its file system and free space are checked.",
)
@click.option("--slurm", is_flag=True, help="Also check two nodes by a one-minute Slurm job.")
@click.option(
    "--system",
    "describes",
    is_flag=True,
    help=(
        "Only print this machine's hardware and settings, as an entry for SYSTEM.md. The "
        "command then needs no torch."
    ),
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --system: write the entry into this file, and keep other machines' entries.",
)
@click.option(
    "--known-gpus", is_flag=True, help="Only list the GPU models for which MFU can be computed."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def doctor(
    context: click.Context,
    chosen_site: str | None,
    data: Path | None,
    results: Path,
    *,
    slurm: bool,
    describes: bool,
    output: Path | None,
    known_gpus: bool,
    as_json: bool,
) -> None:
    """Check whether this machine, a site and its image are ready to measure.

    Exit code: 0 if ready, 1 if something is missing, 3 if nothing can be measured.

    \b
    Examples:
      lockstep doctor                           # check this machine
      lockstep doctor --site site.toml          # check also a site, its image and Slurm
      lockstep doctor --site site.toml --slurm  # check also two of the site's nodes
      lockstep doctor --data /scratch/me        # check also a folder of training data
      lockstep doctor --system --output SYSTEM.md  # write or renew this machine's entry
      srun lockstep doctor --system --json      # print a compute node's hardware and settings
    """
    if describes or known_gpus:
        _describe(output, known_gpus=known_gpus, as_json=as_json)
        return
    if output:
        raise click.UsageError("--output needs --system; give both")
    from rich.console import Console

    from lockstep.before.doctor.cluster_checks import examine
    from lockstep.before.doctor.machine_checks import Subject
    from lockstep.slurm import client
    from lockstep.slurm import site as sites

    chosen = sites.load(chosen_site, is_draft=True) if chosen_site else None
    client.set_cluster(chosen.cluster if chosen else None)
    console = Console(stderr=True)
    with console.status("checking") as status:  # on a terminal only

        def say(name: str, is_long: bool) -> None:
            status.update(f"checking: {name}")
            if is_long and not (console.is_terminal or as_json):
                click.echo(f"checking: {name}", err=True)

        subject = Subject(os.environ, results, chosen, data, slurm)
        diagnosis = examine(subject, say)
    if as_json:
        click.echo(json.dumps(diagnosis.facts(), indent=1))
        context.exit(diagnosis.exit_code)
    click.echo(page(diagnosis))
    if diagnosis.exit_code == 0:
        ready = "run"
        if chosen_site and diagnosis.submits:
            ready = f"plan campaign.toml --site {shlex.quote(chosen_site)}"
        click.echo(f"Next: lockstep {ready}")
    context.exit(diagnosis.exit_code)


def page(diagnosis: "Diagnosis") -> str:
    """Return the findings by group, and the verdict, as text of 80 columns."""
    rest = " " * (2 + STATUS_WIDTH + NAME_WIDTH)
    lines: list[str] = []
    group = ""
    for finding in diagnosis.findings:
        if finding.group != group:
            lines += ["", finding.group]
            group = finding.group
        head = f"  {finding.level:{STATUS_WIDTH}}{finding.kind:{NAME_WIDTH}}"
        lines.append(wrap(finding.text, head, rest))
        lines += [wrap(text, f"{rest}- ", f"{rest}  ") for text in finding.details]
        if finding.action:
            lines.append(wrap(finding.action, f"{rest}-> ", f"{rest}   "))
    levels = Counter(finding.level for finding in diagnosis.findings)
    counts = [f"{levels[level]} {level}" for level in LEVELS if levels[level]]
    verdict = wrap(diagnosis.verdict, "", "")
    pointer = [SYMPTOMS] if levels["warning"] or levels["missing"] else []
    return "\n".join([*lines[1:], "", f"{', '.join(counts)}.", verdict, *pointer])


def _describe(output: Path | None, *, known_gpus: bool, as_json: bool) -> None:
    """Print or write the facts of this machine; a fact that cannot be read is a dash."""
    from lockstep.core.files import write_atomically
    from lockstep.machine import system as machine

    if as_json and output:
        raise click.UsageError("give either --json or --output, not both")
    if known_gpus:
        click.echo(machine.known_gpus())
        return
    facts = machine.system_facts(Path.cwd())
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    elif output:
        old = output.read_text(encoding="utf-8") if output.exists() else ""
        write_atomically(output, machine.merge_entry(old, machine.to_markdown(facts)))
        click.echo(f"Wrote the entry of machine {facts['hostname']} to {output}", err=True)
    else:
        click.echo(machine.to_markdown(facts), nl=False)
