"""The command `lockstep check`: tell whether results are a valid scaling study and meet targets."""

import json
from pathlib import Path

import click

from lockstep.report.bundle import opening
from lockstep.report.compare.compare_cli import ALLOWABLE

WIDTH = 100
HEADER = ["verdict", "target", "wanted value, measured value (95 % interval), case and world size"]

EXAMPLES = """
\b
Examples:
  lockstep check results/laptop
  lockstep check results/cited --json
  lockstep check --rules
  lockstep check results/node --targets proposal
  lockstep check results/after --targets my.targets.toml --against results/before

\b
A PATH is what lockstep report reads: a campaign, pytest-benchmark files, or an imported table.
Imported tables of times and of throughput at the same sizes count as one run, unless they state
different models, precisions, scalings or sources.
The text shows only the first places and facts of each kind. --json prints all of them:
{"findings": [...]}.
Each finding has rule, level, kind, cases, world_sizes, launches, values, where, message and action.

\b
This is a targets file; the built-in file `proposal` shows every key:
  schema = 1
  strong_efficiency = {2 = 0.90, 4 = 0.80, 8 = 0.70}
  weak_time_increase = 0.10
  speedup = {4 = [3.5, 3.8]}
  throughput_gain = -0.05  # with --against: at most 5 % less throughput
A target is met if the whole 95 % interval reaches it, and missed if no part of the interval does.
In all other cases the target is not shown. A target is blocked if its results have an error.
A single launch cannot meet or miss a target. Repeats in one Slurm job cannot either, unless the
campaign has is_machine = true under [jobs], which says that only these nodes matter.
Each look after more launches needs a wider interval, so looks.jsonl records all looks.

\b
Exit code: 0 without errors (warnings are allowed), 1 with errors, 2 if a file cannot be read.
With --targets: 0 if all targets are met, 1 if one is missed, not shown or blocked.
"""


@click.command("check", epilog=EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", "lists_rules", is_flag=True, help="List the rules.")
@click.option(
    "--targets",
    help="Judge the results by this targets file. The name of the built-in file is `proposal`.",
)
@click.option("--against", type=click.Path(path_type=Path),
              help="With --targets: earlier results to compare with, for the target "
                   "throughput_gain.")  # fmt: skip
@click.option("--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
              help="Recorded fact that may differ between PATHS and --against. Give the "
                   "option once for each fact.")  # fmt: skip
@click.pass_context
@opening.accept_bundles()
def check(
    ctx: click.Context, paths: tuple[Path, ...], as_json: bool, lists_rules: bool,
    targets: str | None, against: Path | None, allowed: tuple[str, ...],
) -> None:  # fmt: skip
    """Check whether results are a valid scaling study, and print what to fix.

    With --targets, print for each target whether the results meet it, miss it, or cannot decide it.
    Nothing is measured, and no result is changed.
    """
    from lockstep.core.findings import exit_code
    from lockstep.report.check import checker
    from lockstep.report.load.reading import gather

    if lists_rules:
        _print_rules(as_json)
        return
    if not paths:
        raise click.UsageError("Missing argument 'PATHS...': give results, or pass --rules.")
    if targets is not None:
        ctx.exit(_judge(paths, targets, against, allowed, as_json=as_json))
    if against is not None or allowed:
        raise click.UsageError("--against and --allow need --targets")
    results = gather(paths)
    findings = checker.check(results)
    if as_json:
        document = {"findings": [finding.record() for finding in findings]}
        click.echo(json.dumps(document, indent=1))
    else:
        click.echo("\n".join([*checker.lines(findings), checker.counts(findings, results)]))
    ctx.exit(exit_code(findings))


def _judge(
    paths: tuple[Path, ...], targets: str, against: Path | None, allowed: tuple[str, ...], *,
    as_json: bool,
) -> int:  # fmt: skip
    """Print how results meet the targets, and return the exit code."""
    from lockstep.report import looks
    from lockstep.report.check import checker
    from lockstep.report.compare.comparison import compare, match_tables
    from lockstep.report.gate import gates
    from lockstep.report.gate.targets import load
    from lockstep.report.load.reading import gather
    from lockstep.report.words import lines

    wanted, results = load(targets), gather(paths)
    sides = [results] if against is None else [results, match_tables(results, gather([against]))]
    findings = [checker.check(side) for side in sides]
    compared = None if against is None else compare(sides[1], results, allowed=allowed)
    verdicts = gates.verdicts(wanted, results, compared, findings[0])
    for side, own in zip(sides, findings, strict=True):
        verdicts = gates.block(verdicts, side, own)
    if not all(map(looks.is_machine, sides)):
        verdicts = list(map(gates.doubt_one_job, verdicts))
    history = looks.history("gate", [path for path in (against, *paths) if path is not None])
    verdicts, look = gates.widen_at_look(verdicts, history, sides)
    of_all = [finding for own in findings for finding in own]
    checker.say_errors(of_all)
    warning = {rule for verdict in verdicts for rule in verdict.warned_by}
    warnings = [each for each in of_all if each.level == "warning" and each.rule in warning]
    document = gates.document(verdicts, warnings, look)
    if as_json:
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        texts = [*([look.sentence] if look else []), *gates.notes(verdicts, warnings)]
        table = lines.table([HEADER, *map(gates.row, verdicts)])
        click.echo("\n".join([*table, "", *(line for t in texts for line in lines.sentence(t))]))
    return 0 if document["met"] else 1


def _print_rules(as_json: bool) -> None:
    from lockstep.report.check.checker import RULES
    from lockstep.report.check.recorded_facts import MAY_DIFFER

    if as_json:
        names = ("level", "what", "why", "action")
        rows = [{"rule": r.name} | {name: getattr(r, name) for name in names} for r in RULES]
        click.echo(json.dumps({"rules": rows, "may_differ": MAY_DIFFER}, indent=1))
        return
    for rule in RULES:
        head = f"{rule.name:23}{rule.level:9}"
        click.echo(click.wrap_text(rule.what, WIDTH, head, " " * len(head)))
