"""The command `lockstep system`."""

import json
from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  lockstep system                        print this machine's entry
  lockstep system --output SYSTEM.md     add or renew it in the file
  srun lockstep system --json            read a compute node, for a program
  lockstep system --known-gpus           GPUs whose peaks are known, with their sources
"""


@click.command("system", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the entry into this Markdown file; other machines' entries stay.",
)
@click.option("--known-gpus", is_flag=True, help="List the GPUs whose datasheet MFU can rest on.")
def system(as_json: bool, output: Path | None, *, known_gpus: bool) -> None:
    """Read what this machine is: hardware, network, software and settings.

    Prints a Markdown entry for SYSTEM.md in which nothing is left to fill in; what cannot be read
    is a dash. torch need not be installed.
    """
    from lockstep.machine import system as machine

    if as_json and output:
        raise click.UsageError("--json prints and --output writes Markdown; give one of the two")
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
