"""The command `lockstep doctor`."""

import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.core.findings import SYMPTOMS, Level, wrapped
from lockstep.slurm.submit.cli_options import FoundSite, say_site, site_option

if TYPE_CHECKING:
    from lockstep.before.doctor.cluster_checks import Diagnosis

STATUS_WIDTH, NAME_WIDTH = 12, 18
# Of 80 columns; a path that is to be copied stays whole.
wrap = partial(wrapped, width=80, splits_words=False)
LEVELS: tuple[Level, ...] = ("ok", "warning", "missing", "not needed")


@click.command()
@site_option("found_site", "Site file, or a built-in one, to examine as well")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder of training data: its file system and space.",
)
@click.option(
    "--to",
    "results",
    type=click.Path(path_type=Path, file_okay=False),
    default="results",
    show_default=True,
    help="Folder that results would go to.",
)
@click.option("--slurm", is_flag=True, help="Start a job of a minute on two nodes.")
@click.option(
    "--system",
    "describes",
    is_flag=True,
    help="Print instead what this machine is, as an entry for SYSTEM.md; torch is not needed.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --system: write the entry into this file; other machines' entries stay.",
)
@click.option("--known-gpus", is_flag=True, help="List the GPUs whose datasheet MFU can rest on.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def doctor(
    context: click.Context,
    found_site: FoundSite | None,
    data: Path | None,
    results: Path,
    *,
    slurm: bool,
    describes: bool,
    output: Path | None,
    known_gpus: bool,
    as_json: bool,
) -> None:
    """Check whether this machine, a site and its image are fit to measure.

    Exit code: 0 if they are, 1 if something is missing, 3 if nothing can be measured from here.

    \b
    Examples:
      lockstep doctor                            this machine
      lockstep doctor --site site.toml           and a site, its image and Slurm
      lockstep doctor --site site.toml --slurm   and two of its nodes
      lockstep doctor --data /scratch/me         and where data lie
      lockstep doctor --system --output SYSTEM.md   add or renew this machine's entry
      srun lockstep doctor --system --json       a compute node's hardware, network and settings
    """
    if describes or known_gpus:
        _describe(output, known_gpus=known_gpus, as_json=as_json)
        return
    if output:
        raise click.UsageError("--output needs --system; give both")
    from lockstep.before.doctor.cluster_checks import examine
    from lockstep.before.doctor.machine_checks import Subject
    from lockstep.slurm import client
    from lockstep.slurm import site as sites

    if found_site:
        say_site(found_site)
    chosen = sites.load(found_site.source, is_draft=True) if found_site else None
    client.on_cluster(chosen.cluster if chosen else None)
    with _watched() as say:
        diagnosis = examine(Subject(os.environ, results, chosen, data, slurm), say)
    if as_json:
        click.echo(json.dumps(diagnosis.facts(), indent=1))
        context.exit(diagnosis.exit_code)
    click.echo(page(diagnosis))
    if diagnosis.exit_code == 0:
        ready = "run"
        if found_site and diagnosis.submits:
            ready = f"plan campaign.toml --site {shlex.quote(found_site.source)}"
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
    from lockstep.machine import system as machine

    if as_json and output:
        raise click.UsageError("--json and --output exclude each other; give one of the two")
    if known_gpus:
        click.echo(machine.known_gpus())
        return
    facts = machine.system_facts(Path.cwd())
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    elif output:
        machine.write_entry(output, machine.to_markdown(facts))
        click.echo(f"Wrote the entry of {facts['hostname']} to {output}", err=True)
    else:
        click.echo(machine.to_markdown(facts), nl=False)


@contextmanager
def _watched() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the name of the current check, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("checking") as line:
        yield lambda name: line.update(f"checking: {name}")
