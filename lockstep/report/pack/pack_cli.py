"""The options of `lockstep report` that write the pack of a programme."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lockstep.report.compute.evaluation import Evaluation
    from lockstep.report.compute.scaling import Series
    from lockstep.report.load.results import Results
    from lockstep.report.pack.sections import Facts

# The files of `reports/pack`.
FORMS = ("eurohpc", "generic", "development", "paper", "slides")
FIGURES = ("strong-efficiency", "weak-efficiency")
Command = TypeVar("Command", bound=Callable[..., Any])

EXAMPLES = """
\b
  lockstep report results/campaign --proposal eurohpc --work work.toml
  lockstep report results/first --proposal generic --work example --to pack --despite

--proposal writes a folder that answers a programme's headings: two pages of text as Markdown and
LaTeX, figures as SVG, PDF and PNG, and all its numbers as JSON; development, paper and slides fill
a longer proposal, a paper and five slides. It refuses, with exit code 1, errors of
the check, flagged points, points of one launch, results of CPUs, the recorded demo
and the plans of `example`; --despite writes it and says so in the text. --work names your own TOML
file of what you apply for, from which the milestones follow:

\b
  schema = 1
  machine = "LUMI-G"
  overhead = 0.3                # restarts, set-up, contingency
  production = { study = "strong", world_size = 16 }
  [[runs]]                      # 3 x 0.75 h x 10 nodes x 3 = 67.5 node-hours
  type = "Ladder"
  runs = 3
  repeats = 3
  nodes = 10
  hours = 0.75                  # or steps, at the measured mean step or at step_s
"""


def options(command: Command) -> Command:
    """Add the pack's options to a command."""
    for option in (
        click.option("--despite", is_flag=True, help="Write a pack in spite of objections."),
        click.option("--work", help="What you apply for: a TOML file, or `example`."),
        click.option(
            "--to", type=click.Path(path_type=Path), help="Folder of the pack [DIR-PROGRAMME]."
        ),
        click.option(
            "--proposal",
            type=click.Choice(FORMS),
            help="Write a pack for a compute-time proposal, or a paper or slides, and no page.",
        ),
    ):
        command = option(command)
    return command


def refuse_alone(pack: dict[str, Any]) -> None:
    """Refuse options that only a pack has.

    Raises:
        ValueError: One of them is given without --proposal.
    """
    given = [name for name in ("to", "work", "despite") if pack[name]]
    if given:
        raise ValueError(f"--{given[0]} is of a pack; say which with --proposal")


def write(
    evaluation: "Evaluation", paths: Sequence[Path], threshold: float, force: bool,
    redact: Callable[[Any], Any], pack: dict[str, Any],
) -> int:  # fmt: skip
    """Write the pack, or say what forbids it.

    Returns:
        The exit code: 1 where something forbids the pack.
    """
    from lockstep.report.pack import choices, sections, writing

    facts = _facts(evaluation, threshold, pack)
    if facts.against:
        _say(facts, pack["despite"])
        if not pack["despite"]:
            return 1
    programme = pack["proposal"]
    first = paths[0].resolve()
    folder = pack["to"] or first.with_name(f"{first.stem}-{programme}")
    writing.refuse_foreign(folder, force)
    document = sections.document(facts, choices.programmes()[programme])
    numbers = _numbers(facts, evaluation.series, programme)
    made = document, list(facts.figures.values()), sections.source(facts), numbers
    for path in writing.write(folder, *redact(made)):
        click.echo(click.format_filename(path))
    if facts.plan is None:
        click.echo("no milestones: give what you plan with --work, as --help shows", err=True)
    return 0


def _facts(evaluation: "Evaluation", threshold: float, pack: dict[str, Any]) -> "Facts":
    from lockstep.report.pack import choices
    from lockstep.report.pack.sections import Facts
    from lockstep.report.words import verdict_card

    results, series = evaluation.results, evaluation.series
    planned = choices.read_planned_runs(pack["work"])
    chosen = choices.choose(series, planned.production, threshold)
    # A copy without a change is no plan of the applicant's either.
    is_example = bool(pack["work"]) and planned == choices.read_planned_runs("example")
    against = choices.objections(
        results, chosen, evaluation.findings, evaluation.left_out, is_example
    )
    plan = choices.plan_node_hours(planned, chosen.series, chosen.production)
    return Facts(
        results, chosen, planned, plan, choices.outcomes(results), threshold,
        _figures(results, chosen.shown, threshold), against, verdict_card.judge(series, threshold),
    )  # fmt: skip


def _figures(
    results: "Results", shown: "Sequence[Series]", threshold: float
) -> dict[str, dict[str, Any]]:
    """Return the figure of efficiency of each ladder, as the page has it."""
    from lockstep.report.page import by_study
    from lockstep.report.words import method

    panels = by_study.panels(results, shown, threshold, "GPU-hours")
    method.put_basis(panels, results, shown)
    specs = {spec["id"]: spec for panel in panels for spec in panel["figures"]}
    return {name: specs[name] for name in FIGURES if name in specs}


def _say(facts: "Facts", despite: bool) -> None:
    from lockstep.report.pack import sections

    for objection in facts.against:
        click.echo(f"objection: {sections.describe_objection(objection)}", err=True)
    if not despite:
        click.echo(
            "No pack is written. Mend what lockstep check names and measure again; --despite "
            "writes it, and says so in the text.",
            err=True,
        )


def _numbers(facts: "Facts", series: "Sequence[Series]", programme: str) -> dict[str, Any]:
    """Return every number of the text, the points as `lockstep report --json` has them."""
    from lockstep.report.columns import table
    from lockstep.report.pack import sections

    point = facts.chosen.production
    return {
        "schema": 1,
        "programme": programme,
        "threshold": facts.threshold,
        "points": table(series),
        "production": {
            "case": facts.chosen.series.case,
            "world_size": point.world_size,
            "time_of_1e6_samples_s": sections.time_of_samples_s(point),
            "node_hours_of_1e6_samples": sections.node_hours_of_samples(point),
        },
        "agreements": [asdict(agreement) for agreement in facts.chosen.agreements],
        "budget": asdict(facts.plan) if facts.plan else None,
        "jobs": asdict(facts.known) if facts.known else None,
        "objections": [objection.record() for objection in facts.against],
    }
