"""The command `lockstep check`."""

import json
from pathlib import Path

import click

from lockstep.report.bundle import opening

WIDTH = 100

EXAMPLES = """
\b
Examples:
  lockstep check results/laptop
  lockstep check results/cited --json
  lockstep check --rules

\b
A PATH is what lockstep report reads: a campaign, pytest-benchmark files, or an imported table.
Of tables, times and throughput that one import brought in for the same sizes are taken for one
run, unless a model, precision, scaling or source that they state parts them.
The text names the first places and facts of a kind; --json prints all, as {"findings": [...]}, of
each its rule, level, kind, cases, world_sizes, launches and
values, and where, message and action as text.
Exit code: 0 nothing found or warnings alone, 1 an error found, 2 a file cannot be read.
"""


@click.command("check", epilog=EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", "lists_rules", is_flag=True, help="List what is looked for.")
@click.pass_context
@opening.of_bundles()
def check(ctx: click.Context, paths: tuple[Path, ...], as_json: bool, lists_rules: bool) -> None:
    """Say whether results are a valid scaling study, and what to mend where they are not.

    Measures nothing and changes nothing.
    """
    if lists_rules:
        _print_rules(as_json)
        return
    if not paths:
        raise click.UsageError("Missing argument 'PATHS...'; give results, or --rules.")
    from lockstep.report.check import checker, terminal
    from lockstep.report.load.reading import gather

    found = checker.check(gather(paths))
    if as_json:
        click.echo(json.dumps({"findings": [one.record() for one in found]}, indent=1))
    else:
        for line in terminal.lines(found):
            click.echo(line)
        click.echo(terminal.counts(found))
    ctx.exit(any(one.level == "error" for one in found))


def _print_rules(as_json: bool) -> None:
    from lockstep.report.check.checker import RULES
    from lockstep.report.check.recorded_facts import MAY_DIFFER

    rows = [
        {"rule": one.name, "level": one.level, "what": one.what, "why": one.why,
         "action": one.action}
        for one in RULES
    ]  # fmt: skip
    if as_json:
        click.echo(json.dumps({"rules": rows, "may_differ": MAY_DIFFER}, indent=1))
        return
    for row in rows:
        head = f"{row['rule']:23}{row['level']:9}"
        click.echo(click.wrap_text(row["what"], WIDTH, head, " " * len(head)))
