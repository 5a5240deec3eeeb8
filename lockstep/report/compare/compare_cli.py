"""The command `lockstep compare`."""

import json
from pathlib import Path

import click

from lockstep.report.bundle import opening

EXAMPLES = """
\b
Examples:
  lockstep compare results/before results/after
  lockstep compare results/before results/after --margin 0.01
  lockstep compare results/fp32 results/bf16 --allow precision
  lockstep compare results/campaign results/spread --allow layout  # what do more nodes cost?
  lockstep compare results/runs results/tuned --allow training  # other rate, epochs, loader
  lockstep compare results/before results/after --markdown > comparison.md
  lockstep compare results/before results/after --json

\b
To rule out that the machine drifted, measure A and B in turn: A B B A. Where launches vary by
2 %, five a side find a point that is slower by 5 % nine times of ten.
--allow layout compares as many ranks on fewer and on more nodes: measure twice, the second time
with a lower max_ranks_per_node in the site file. Set threads_per_rank in the campaign, or ranks
that have a node to themselves use all of its CPUs.
A point is blocked where lockstep check finds an error in the results of a side behind it. Where a
point cannot be judged, the text says which change it could have seen, and how many launches would
be enough.
Exit code: 0 nothing is slower, 1 some point is slower or blocked, 2 the sides cannot be compared.
"""
# Keys of pairing.MUST_AGREE, here so that --help needs no numpy; a test compares them.
ALLOWABLE = ("workload", "scaling", "precision", "batch", "unit", "origin", "layout", "device",
             "training")  # fmt: skip


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--margin", type=float, default=0.03, show_default=True,
    help="Largest relative difference that counts as the same.",
)  # fmt: skip
@click.option(
    "--allow", "allowed", multiple=True, type=click.Choice(ALLOWABLE),
    help="Compare although this differs; may be given again.",
)  # fmt: skip
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@opening.of_bundles()
def compare(
    a: Path, b: Path, margin: float, allowed: tuple[str, ...], as_markdown: bool, as_json: bool
) -> int:
    """Say of each point that A and B share whether B is faster, slower or the same.

    A and B are anything that `lockstep report` reads. A point is a case at one world size; its
    ratio is the rate of B over that of A, so above 1 B is faster.
    """
    from lockstep.report.check import checker, terminal
    from lockstep.report.compare import compare_wording, comparison
    from lockstep.report.load.reading import load

    if as_markdown and as_json:
        raise ValueError("--markdown and --json both want stdout; choose one")
    first = load([a])
    sides = first, comparison.renamed(first, load([b]))
    findings = checker.check(sides[0]), checker.check(sides[1])
    made = comparison.compare(*sides, margin, allowed, findings)
    for why in (why for side in sides for why in side.unread):
        click.echo(f"left out: {why}", err=True)
    for name, of_side in zip("AB", findings, strict=True):
        terminal.say_errors(of_side, f"{name}: ")
    if as_json:
        document = comparison.document(made, (str(a), str(b)))
        click.echo(json.dumps(document, indent=1, allow_nan=False))
    else:
        for line in compare_wording.text(made, (str(a), str(b)), as_markdown):
            click.echo(line)
    return 1 if made.slower or made.blocked else 0
