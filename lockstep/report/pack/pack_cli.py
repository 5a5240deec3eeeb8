"""What `lockstep report --proposal` does: it writes the pack of a programme."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lockstep.report.compute.evaluation import Evaluation

# The files of `reports/pack`.
FORMS = ("eurohpc", "generic", "development", "paper", "slides")
# What every form draws. A section of a form may name further figures of the page.
FIGURES = ("strong-efficiency", "weak-efficiency")

EXAMPLES = """
\b
  lockstep report results/campaign --proposal eurohpc --work work.toml
  lockstep report results/first --proposal generic --work example --to pack --despite

--proposal writes a folder that answers a programme's headings: two pages of text as Markdown and
LaTeX, figures as SVG, PDF and PNG, and numbers as JSON. The forms development, paper and slides
make a longer proposal, a paper and five slides. No pack is written (exit code 1) if the check finds
errors or doubts the production point, if points are flagged or have only one launch, if results
come from CPUs or the recorded demo, or if the plans are those of `example`. With --despite, the
pack is written and its text lists these objections. --work names your own TOML file of what you
apply for, which gives the milestones:

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
  hours = 0.75                  # or steps = N, timed by the measured step or by step_s
"""


def write(
    evaluation: "Evaluation", paths: Sequence[Path], threshold: float, force: bool,
    redact: Callable[[Any], Any], pack: dict[str, Any],
) -> int:  # fmt: skip
    """Write the pack and return 0, or print what forbids it and return 1."""
    from lockstep.report.columns import table
    from lockstep.report.pack import choices, texts
    from lockstep.report.page import by_study, parts
    from lockstep.report.words import method, verdict_card

    results, series = evaluation.results, evaluation.series
    work = choices.read_planned_runs(pack["work"])
    unused = choices.unused_statements(work, pack["work"] or "", pack["proposal"], FORMS)
    chosen = choices.choose(series, work.production, threshold)
    # An unchanged copy of the example is no plan of the applicant's either.
    is_example = bool(pack["work"]) and work == choices.read_planned_runs("example")
    against = list(choices.objections(evaluation, chosen, is_example))
    for objection in against:
        click.echo(f"objection: {objection.text}", err=True)
    if against and not pack["despite"]:
        click.echo(
            "Nothing was written. Fix these problems and measure again, or pass --despite to write "
            "the text with the objections in it.",
            err=True,
        )
        return 1
    findings = evaluation.findings
    plan = choices.plan_node_hours(work, chosen.series, chosen.production, findings)
    warned = choices.warnings(findings, chosen)
    jobs = choices.jobs(results)
    programme = pack["proposal"]
    first = paths[0].resolve()
    folder = pack["to"] or first.with_name(f"{first.stem}-{programme}")
    texts.refuse_foreign(folder, force)
    panels = by_study.panels(results, chosen.shown, threshold, {})
    reasons = method.recorded(results) or [f"{each.text}." for each in against[:2]]
    more = f" {len(against)} objections are in the text." if len(against) > len(reasons) else ""
    warning = f"No evidence: {' '.join(reasons)}{more}" if against else None
    drawn = {spec["id"]: spec for panel in panels for spec in panel["figures"]}
    form = choices.read_form(programme)
    further = [name for section in form["sections"] for name in section.get("figures", [])]
    specs = [drawn[name] for name in (*FIGURES, *further) if name in drawn]
    marks = parts.MARKS
    for spec in specs:
        spec["basis"] = [warning] if warning else []  # the text states all else
        if spec["kind"] == "curve":
            spec["note"] = f"{spec.get('note') or ''} {marks}".strip()
            marks = ""
    text = texts.document(
        form, results, chosen, work, plan, jobs, specs, against,
        verdict_card.judge(series, threshold), threshold, warned=warned,
    )  # fmt: skip
    point = chosen.production
    numbers = {
        "schema": 1,
        "programme": programme,
        "threshold": threshold,
        "points": table(series),
        "production": {
            "case": chosen.series.case,
            "world_size": point.world_size,
            "time_of_1e6_samples_s": texts.time_of_samples_s(point),
            "node_hours_of_1e6_samples": texts.node_hours_of_samples(point),
        },
        "agreements": chosen.agreements,
        "budget": plan,
        "jobs": jobs,
        "warnings": [finding.record() for finding in warned],
        "objections": [each.facts | {"kind": each.kind} for each in against],
    }
    for path in texts.write(folder, *redact((text, specs, numbers))):
        click.echo(click.format_filename(path))
    if text["missing"]:
        missing = ", ".join(text["missing"])
        click.echo(f"not written, because [statements] lacks: {missing}", err=True)
    if unused:
        named = ", ".join(unused)
        click.echo(
            f"the form {programme} does not use these keys of [statements]: {named}", err=True
        )
    if plan is None:
        click.echo(
            "the pack has no milestones; name a file with your planned runs by --work (see --help)",
            err=True,
        )
    return 0
