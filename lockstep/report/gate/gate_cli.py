"""The command `lockstep gate`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.report.bundle import opening
from lockstep.report.compare.compare_cli import ALLOWABLE

if TYPE_CHECKING:
    from lockstep.report.check.checker import Finding
    from lockstep.report.gate.verdicts import Verdict
    from lockstep.report.looks import Look

EXAMPLES = """
\b
Examples:
  lockstep gate results/node --targets proposal
  lockstep gate results/node --targets my.targets.toml
  lockstep gate results/after --targets my.targets.toml --against results/before
  lockstep gate results/cited --targets my.targets.toml --json

\b
A targets file:
  schema = 1
  strong_efficiency = {2 = 0.90, 4 = 0.80, 8 = 0.70}
  weak_time_increase = 0.10
  speedup = {4 = [3.5, 3.8]}
  throughput_gain = -0.05  # with --against: at most 5 % less throughput
All keys are in the built-in file, proposal.
Exit code: 0 all targets are met, 1 one is missed, not shown or blocked, 2 a file cannot be read.
"""
_HEADER = ["verdict", "target", "wanted: value (interval); where"]


@click.command("gate", epilog=EXAMPLES)
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--targets", required=True, help="A targets file, or the built-in one: proposal.")
@click.option("--against", type=click.Path(path_type=Path), help="Results to gain over.")
@click.option(
    "--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
    help="What may differ from --against; may be given again.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@opening.of_bundles()
def gate(
    path: Path, targets: str, against: Path | None, allowed: tuple[str, ...], as_json: bool
) -> int:
    """Say of each target whether the results meet it, miss it, or do not show it.

    DIR is anything that `lockstep report` reads. A target is met where the whole 95 % interval
    reaches it, missed where none of it does, and not shown between, nor by a single launch, nor by
    repeats of one Slurm job, unless is_machine under [jobs] says that its nodes are meant. A look
    at more launches than before claims less: looks.jsonl has them. An accuracy is a mean over
    training runs that agree in all but their seed and repeat; any other value is of medians over
    launches, as in a report, the interval of their geometric mean. Where the check finds an error
    in the results behind a target, it is blocked. A ratio is not shown where its whole interval
    lies above 100 %, or a warning of the check may make it wrong.
    """
    from lockstep.report import looks
    from lockstep.report.check import checker, terminal
    from lockstep.report.compare.comparison import compare, renamed
    from lockstep.report.gate import gates, verdicts
    from lockstep.report.gate.targets import load
    from lockstep.report.load import reading

    wanted = load(targets)
    results = reading.gather([path])
    findings = checker.check(results)
    base = None if against is None else renamed(results, reading.gather([against]))
    compared = None if base is None else compare(base, results, allowed=allowed)
    judged = gates.verdicts(wanted, results, compared, findings)
    judged = verdicts.block(judged, results, findings)
    if base is not None:
        base_findings = checker.check(base)
        judged = verdicts.block(judged, base, base_findings)
        findings = [*findings, *base_findings]
    sides = [side for side in (results, base) if side is not None]
    if not all(map(looks.is_machine, sides)):
        judged = list(map(verdicts.of_one_job, judged))
    history = looks.history("gate", [one for one in (against, path) if one is not None])
    judged, look = verdicts.at_look(judged, history, sides)
    terminal.say_errors(findings)
    warnings = verdicts.heard(judged, findings)
    if as_json:
        click.echo(json.dumps(verdicts.document(judged, warnings, look), indent=1, allow_nan=False))
    else:
        _print(judged, warnings, look)
    return 0 if all(one.verdict == verdicts.MET for one in judged) else 1


def _print(judged: "list[Verdict]", warnings: "list[Finding]", look: "Look | None") -> None:
    from lockstep.report.gate import verdicts
    from lockstep.report.words import lines

    for line in lines.table([_HEADER, *map(verdicts.row, judged)]):
        click.echo(line)
    click.echo()
    for text in [*([look.sentence] if look else []), *verdicts.notes(judged, warnings)]:
        click.echo("\n".join(lines.sentence(text)))
