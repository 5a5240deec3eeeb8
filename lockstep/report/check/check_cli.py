"""The command `lockstep check`: tell whether results are a valid scaling study and meet targets."""

import json
from pathlib import Path

import click

from lockstep.report.bundle import opening
from lockstep.report.compare.compare_cli import ALLOWABLE

WIDTH = 100
HEADER = ["verdict", "target", "wanted: value (interval); where"]

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
Imported tables of times and of throughput for the same sizes are taken to be of one run, unless
they state different models, precisions, scalings or sources.
The text shows the first places and facts of each kind. --json prints all as {"findings": [...]};
each finding has rule, level, kind, cases, world_sizes, launches and values, and the texts where,
message and action.

\b
A targets file:
  schema = 1
  strong_efficiency = {2 = 0.90, 4 = 0.80, 8 = 0.70}
  weak_time_increase = 0.10
  speedup = {4 = [3.5, 3.8]}
  throughput_gain = -0.05  # with --against: at most 5 % less throughput
All keys are in the built-in file, proposal. A target is met if the whole 95 % interval reaches it,
missed if none of the interval does, and otherwise not shown. A single launch shows nothing, nor do
repeats in one Slurm job, unless is_machine = true under [jobs] says that only these nodes matter.
Judging again after more launches widens the intervals; looks.jsonl records each time. An accuracy
is the mean over training runs that differ only in seed and repeat. Any other value is the median
over launches, as in a report, with the interval of the geometric mean. A target is blocked if the
check finds an error in the results behind it. A ratio is not shown if its whole interval is above
100 %, or a warning of the check may make it wrong.

\b
Exit code: 0 without errors (warnings are allowed), 1 with errors, 2 if a file cannot be read; with
--targets 0 if all targets are met, 1 if one is missed, not shown or blocked.
"""


@click.command("check", epilog=EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--rules", "lists_rules", is_flag=True, help="List the rules.")
@click.option("--targets", help="Judge results by a targets file, or the built-in one: proposal.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help=("With --targets: earlier results, for throughput_gain."),
)
@click.option("--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
              help="Allow this to differ from --against; repeatable.")  # fmt: skip
@click.pass_context
@opening.of_bundles()
def check(
    ctx: click.Context,
    paths: tuple[Path, ...],
    as_json: bool,
    lists_rules: bool,
    targets: str | None,
    against: Path | None,
    allowed: tuple[str, ...],
) -> None:
    """Check whether results are a valid scaling study, and print what to fix.

    With --targets, print for each target whether the results meet it, miss it, or do not show it.
    Nothing is measured, and no result is changed.
    """
    if lists_rules:
        _print_rules(as_json)
        return
    if not paths:
        raise click.UsageError("Missing argument 'PATHS...'; give results or --rules.")
    if targets is not None:
        ctx.exit(_judge(paths, targets, against, allowed, as_json=as_json))
    if against is not None or allowed:
        raise click.UsageError("--against and --allow need --targets")
    from lockstep.core.findings import exit_code
    from lockstep.report.check import checker
    from lockstep.report.load.reading import gather

    findings = checker.check(gather(paths))
    if as_json:
        click.echo(json.dumps({"findings": [finding.record() for finding in findings]}, indent=1))
    else:
        for line in checker.lines(findings):
            click.echo(line)
        click.echo(checker.counts(findings))
    ctx.exit(exit_code(findings))


def _judge(
    paths: tuple[Path, ...],
    targets: str,
    against: Path | None,
    allowed: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Print how results meet the targets, and return the exit code."""
    from lockstep.report import looks
    from lockstep.report.check import checker
    from lockstep.report.compare.comparison import compare, renamed
    from lockstep.report.gate import gates
    from lockstep.report.gate.targets import load
    from lockstep.report.load import reading
    from lockstep.report.words import lines

    wanted = load(targets)
    results = reading.gather(paths)
    findings = checker.check(results)
    base = None if against is None else renamed(results, reading.gather([against]))
    compared = None if base is None else compare(base, results, allowed=allowed)
    verdicts = gates.verdicts(wanted, results, compared, findings)
    verdicts = gates.block(verdicts, results, findings)
    if base is not None:
        base_findings = checker.check(base)
        verdicts = gates.block(verdicts, base, base_findings)
        findings = [*findings, *base_findings]
    sides = [side for side in (results, base) if side is not None]
    if not all(map(looks.is_machine, sides)):
        verdicts = list(map(gates.of_one_job, verdicts))
    history = looks.history("gate", [path for path in (against, *paths) if path is not None])
    verdicts, look = gates.at_look(verdicts, history, sides)
    checker.say_errors(findings)
    warnings = gates.warnings_of(verdicts, findings)
    document = gates.document(verdicts, warnings, look)
    if as_json:
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        for line in [*lines.table([HEADER, *map(gates.row, verdicts)]), ""]:
            click.echo(line)
        for text in [*([look.sentence] if look else []), *gates.notes(verdicts, warnings)]:
            click.echo("\n".join(lines.sentence(text)))
    return 0 if document["met"] else 1


def _print_rules(as_json: bool) -> None:
    from lockstep.report.check.checker import RULES
    from lockstep.report.check.recorded_facts import MAY_DIFFER

    if as_json:
        rows = [
            {"rule": rule.name, "level": rule.level, "what": rule.what, "why": rule.why,
             "action": rule.action}
            for rule in RULES
        ]  # fmt: skip
        click.echo(json.dumps({"rules": rows, "may_differ": MAY_DIFFER}, indent=1))
        return
    for rule in RULES:
        head = f"{rule.name:23}{rule.level:9}"
        click.echo(click.wrap_text(rule.what, WIDTH, head, " " * len(head)))
