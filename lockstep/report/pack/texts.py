"""From results to a pack's folder: Markdown, LaTeX, figures, and the numbers as JSON.

`reports/pack/*.toml` says which parts stand under a programme's headings, `parts.j2` what a part
says. A text is sections of blocks, each a dict of kind `text`, `lines`, `table` or `figure`, which
`proposal.md.j2` and `proposal.tex.j2` write. A part of which nothing is known gives no block, and a
heading without blocks is left out.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lockstep.core import formats, record
from lockstep.core.files import write_atomically
from lockstep.core.formats import (
    counted,
    in_words,
    listed,
    number,
    percent,
    percent_span,
    ratio,
    span,
)
from lockstep.core.record import Basis
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.load.results import Results
from lockstep.report.pack.choices import FOLDER, Budget, Chosen, Objection, Work
from lockstep.report.page import figures, parts
from lockstep.report.page.parts import GIGA, MILLI, allowed, shown
from lockstep.report.words import escapes, method
from lockstep.report.words.verdict_card import Judged

NUMBERS = "numbers.json"
TEXTS = ("proposal.md", "proposal.tex")
COST_SAMPLES = 1e6
STALLS = 1.05  # beyond it, stalls cost node-hours that a median does not show
MAX_NAMED = 6  # objections that a text names
MARK = "\u25a0"  # a month in which something is done
SOFTWARE = {
    "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "driver": "driver",
    "python": "Python", "os": "",
}  # fmt: skip
Block = dict[str, Any]


def document(
    programme: Path,
    results: Results,
    chosen: Chosen,
    work: Work,
    plan: Budget | None,
    jobs: dict[str, Any] | None,
    specs: Iterable[Mapping[str, Any]],
    against: Sequence[Objection],
    card: Judged | None,
    threshold: float,
) -> dict[str, Any]:
    """Return the text of a programme: a title, what speaks against it, and sections of blocks.

    `programme` is the file of its headings, `jobs` how the campaign's jobs ended, and `card` what
    bounds the step, each None where it is not known.
    """
    production, provenance = chosen.production, results.provenance
    row = production.rows[0]
    noun, title = ("rank", "Rank") if results.on_cpus else ("GPU", "GPU")
    known = (record.basis_of(row.details) for p in chosen.points for row in p.rows)
    bases = list(dict.fromkeys(basis for basis in known if basis))
    nodes = [point.rows[0].num_nodes for point in chosen.points]
    days = method.days(results.days) or "on an unknown date"
    devices = listed(results.device_names, 4) or formats.DASH
    planned = results.campaign.get("launches") or []
    mfu = [row.mfu for row in production.rows if row.mfu is not None]
    context: dict[str, Any] = {
        "work": work, "chosen": chosen, "production": production, "row": row, "plan": plan,
        "jobs": jobs, "noun": noun, "goal": f"{100 * threshold:.0f} %",
        "campaign": {"name": None} | results.campaign, "on_cpus": results.on_cpus,
        "measured_on": f"Measured on {devices}, {days}, in "
        f"{counted(len(results.launches), 'launch')}",
        "software": [
            f"{title} {provenance[name]}".strip() for name, title in SOFTWARE.items()
            if provenance.get(name)
        ],
        "image": provenance.get("image_sha256"),
        "backend": provenance.get("backend") or formats.DASH,
        "basis_text": method.basis(bases),
        "times_input": tuple({basis.times_input for basis in bases}),
        "agreements": [
            f"{100 * (each['ratio'] - 1):+.1f} % on {counted(each['world_size'], noun)}"
            for each in chosen.agreements
        ],
        "stalls": [
            f"{ratio(point.mean_over_median)} times in {curve.row.study} scaling on "
            f"{counted(point.world_size, noun)}"
            for curve in chosen.shown for point in curve.points
            if (point.mean_over_median or 1.0) > STALLS
        ],
        "tables_in": list(dict.fromkeys(str(curve.row.precision) for curve in chosen.shown)),
        "time_of_samples_s": time_of_samples_s(production),
        "sizes": sorted({point.world_size for point in chosen.points}),
        "nodes": method.span_of(nodes) if all(nodes) else "",
        "timing": method.timing(
            chosen.points, str(provenance.get("lockstep_version", formats.DASH)),
            [launch.facts.get("warmup_rounds") for launch in results.launches], bool(planned),
        ),
        "has_intervals": any(p.step_interval or p.efficiency_interval for p in chosen.points),
        "mfu": median(mfu) if mfu else None,
        "measured_times": [
            f"{each.type} on {counted(each.world_size or 0, 'rank')} at global batch "
            f"{each.global_batch} of the production series"
            for each in (plan.milestones if plan else ()) if each.source == "measured"
        ],
        "num_planned": len(planned) or len(results.launches),
        "num_resumed": sum(len(each.facts.get("sessions") or []) > 1 for each in results.launches),
        "kept_beside": [
            name for name, kept in (("versions", provenance), ("Slurm's accounting", jobs)) if kept
        ],
    }  # fmt: skip
    environment = Environment(  # noqa: S701, since each format escapes the paragraphs
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update({
        "counted": counted, "listed": listed, "number": number, "percent": percent,
        "percent_span": percent_span, "in_words": in_words, "exact": exact,
        "milliseconds": lambda value: number(value, scale=MILLI),
        "gigabytes": lambda value: number(value, scale=1 / GIGA),
    })  # fmt: skip
    macros = environment.get_template("parts.j2").make_module(context)

    def sentences(name: str, *arguments: object) -> list[str]:
        paragraphs = re.split(r"\n[ \n]*\n", str(getattr(macros, name)(*arguments)))
        texts = [re.sub(r"[ \n]+", " ", paragraph).strip() for paragraph in paragraphs]
        return [text for text in texts if text]

    def ladder(curve: Series) -> Block:
        base = curve.base.world_size
        is_smallest = all(point.world_size >= base for point in curve.points)
        (caption,), (note,) = sentences("caption", curve), sentences("baseline", curve, is_smallest)
        return _scaling_table(curve, production, title, caption, note)

    dated = [run for run in work.runs if run.start_month is not None]
    drawn: dict[str, Callable[[], list[Block]]] = {
        "[[ladders]]": lambda: [ladder(curve) for curve in chosen.shown],
        "[[production ladder]]": lambda: [ladder(chosen.series)],
        "[[figures]]": lambda: [
            {"kind": "figure", "id": spec["id"], "title": spec["title"],
             "note": spec.get("note", "")} for spec in specs
        ],
        "[[card]]": lambda: (
            [{"kind": "lines", "title": card.title, "lines": card.lines}] if card else []
        ),
        "[[gantt]]": lambda: [_gantt(dated)] if dated else [],
        "[[milestones]]": lambda: [_milestones(plan)] if plan else [],
        "[[unit costs]]": lambda: [
            _unit_costs(curve, production, title, *sentences("caption", curve))
            for curve in chosen.shown
        ],
        "[[jobs]]": lambda: [
            table(
                "Jobs of this campaign, as Slurm accounts for them",
                ("State", "Jobs", "Node-hours"),
                [[each["state"], str(each["num_jobs"]), number(each["node_hours"])]
                 for each in jobs["outcomes"]], texts=1,
            )
        ] if jobs else [],
        "[[conditions]]": lambda: [_conditions(chosen, bases[0] if bases else Basis())],
    }  # fmt: skip

    def blocks_of(part: str) -> list[Block]:
        # A part that only its author can write has a place, and no words of ours.
        texts = sentences(part) if hasattr(macros, part) else []
        texts += [work.statements[part]] if part in work.statements else []
        return [
            block for text in texts
            for block in (drawn[text]() if text in drawn else [{"kind": "text", "text": text}])
        ]  # fmt: skip

    form = tomllib.loads(programme.read_text(encoding="utf-8"))
    sections = [
        {
            "heading": section["heading"], "level": section.get("level", 2),
            "annex": section.get("annex", False),
            "blocks": [block for part in section.get("parts", []) for block in blocks_of(part)],
        }
        for section in form["sections"]
    ]  # fmt: skip
    more = f"; and {len(against) - MAX_NAMED} more" if len(against) > MAX_NAMED else ""
    despite = (
        "No proposal evidence. This text was written despite "
        f"{counted(len(against), 'objection')}: "
        f"{'; '.join(objection.text for objection in against[:MAX_NAMED])}{more}."
    )
    return {
        "title": form["title"],
        "slides": form.get("slides", False),
        "against": despite if against else "",
        "source": f"{context['measured_on']}. {context['basis_text']}",
        "sections": [section for section in sections if section["blocks"]],
    }


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 0,
    bold: int | None = None, note: str = "",
) -> Block:  # fmt: skip
    """Return a table, its first `texts` columns text; columns of unknown cells are left out."""
    return parts.table(caption, columns, rows, texts, "", kind="table", bold=bold, note=note)


def _scaling_table(series: Series, production: Point, title: str, caption: str, note: str) -> Block:
    """Return the table of one ladder, its production row in bold."""
    unit = series.row.sample_unit or "samples"
    columns = (
        f"{title}s", "Nodes", "Global batch", "Local batch", "Step (ms)",
        "95 % interval (ms)", "Mean step (ms)", f"Throughput ({unit}/s)", "Speed-up",
        "Efficiency (%)", "95 % interval (%)", "Memory (GB)", "Launches",
    )  # fmt: skip
    rows = [
        [
            str(point.world_size), shown(point.rows[0].num_nodes),
            shown(point.rows[0].global_batch), shown(point.rows[0].local_batch),
            number(point.step_s, scale=MILLI), span(point.step_interval, MILLI),
            number(point.mean_step_s, scale=MILLI), number(point.throughput_samples_per_s),
            allowed(point, ratio(point.speedup)),
            allowed(point, percent(point.parallel_efficiency)),
            allowed(point, percent_span(point.efficiency_interval)),
            number(point.peak_memory_bytes, scale=1 / GIGA), str(point.num_launches),
        ]
        for point in series.points
    ]  # fmt: skip
    bold = next((i for i, point in enumerate(series.points) if point is production), None)
    return table(caption, columns, rows, bold=bold, note=note)


def time_of_samples_s(point: Point) -> float | None:
    """Return the time that 10^6 samples take at the mean step."""
    rate, stalls = point.throughput_samples_per_s, point.mean_over_median or 1.0
    return None if rate is None else COST_SAMPLES / rate * stalls


def node_hours_of_samples(point: Point) -> float | None:
    """Return the node-hours that 10^6 samples take at the mean step."""
    seconds, nodes = time_of_samples_s(point), point.rows[0].num_nodes
    return None if seconds is None or not nodes else seconds * nodes / SECONDS_PER_HOUR


def _unit_costs(series: Series, production: Point, title: str, caption: str) -> Block:
    """Return what 10^6 samples cost at each size."""
    per = f"per 10\u2076 {series.row.sample_unit or 'samples'}"
    columns = (
        f"{title}s", "Nodes", "Global batch", f"Time {per} (s)", f"Node-hours {per}",
        f"{title}-hours {per}",
    )  # fmt: skip
    rows = [
        [str(p.world_size), shown(p.rows[0].num_nodes), shown(p.rows[0].global_batch),
         number(time_of_samples_s(p)), number(node_hours_of_samples(p)), number(p.device_hours)]
        for p in series.points
    ]  # fmt: skip
    bold = next((i for i, point in enumerate(series.points) if point is production), None)
    return table(caption, columns, rows, bold=bold)


def _milestones(plan: Budget) -> Block:
    """Return the milestones, with the columns that EuroHPC's form has."""
    columns = (
        "Run type", "Code(s)", "No. of runs", "No. of nodes", "No. of steps per run",
        "Time per step (s)", "Hours per run", "Total node hours",
    )  # fmt: skip
    rows = [
        [
            milestone.type, milestone.code or formats.DASH, str(milestone.num_runs),
            shown(milestone.num_nodes), shown(milestone.num_steps), number(milestone.step_s),
            number(milestone.hours), exact(milestone.node_hours),
        ]
        for milestone in plan.milestones
    ]  # fmt: skip
    rows.append(["Sum", *([""] * (len(columns) - 2)), exact(plan.node_hours)])
    return table("Milestones", columns, rows, texts=2, bold=len(rows) - 1)


def _gantt(runs: Sequence[Any]) -> Block:
    """Return which run types take which months."""
    spans = [range(run.start_month, run.start_month + run.months) for run in runs]
    months = range(1, max(span.stop for span in spans))
    rows = [
        [run.type, *(MARK if month in own else " " for month in months)]
        for run, own in zip(runs, spans, strict=True)
    ]
    return table("Work plan by month", ("Run type", *map(str, months)), rows, texts=1)


def _conditions(chosen: Chosen, basis: Basis) -> Block:
    row = chosen.production.rows[0]
    timed = {True: "timed", False: "not timed", None: ""}[basis.times_input]
    known = {"Data": basis.data, "Input": timed, "Optimizer": basis.optimizer}
    rows = [
        ["Model", row.workload], ["Precision", str(row.precision)],
        ["Global batch", str(row.global_batch)],
        *([name, value] for name, value in known.items() if value),
        ["Checkpoints", "none in a timed step"],
    ]  # fmt: skip
    columns = ("Condition", "As measured")
    return table("Conditions of the measurement", columns, rows, texts=2)


def exact(hours: float) -> str:
    """Return node-hours with two decimals at most, since a form's sums are checked."""
    return f"{hours:.2f}".rstrip("0").rstrip(".")


def refuse_foreign(folder: Path, force: bool) -> None:
    """Refuse to write among files that are no pack.

    Raises:
        ValueError: The folder holds other files, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose another with --to")
    is_free = not folder.exists() or not any(folder.iterdir()) or (folder / NUMBERS).exists()
    if not (is_free or force):
        raise ValueError(
            f"{folder} holds files that are not a pack; choose another with --to, or pass --force"
        )


def write(
    folder: Path,
    text: Mapping[str, Any],
    specs: Iterable[dict[str, Any]],
    numbers: Mapping[str, Any],
) -> list[Path]:
    """Write a pack and return its files, the texts first."""
    files: dict[str, str | bytes] = {}
    for name in TEXTS:
        is_tex = name.endswith(".tex")
        # Braces are LaTeX's own.
        own: dict[str, Any] = {
            "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
            "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>",
        } if is_tex else {}  # fmt: skip
        environment = Environment(  # noqa: S701, since the filter escapes, and this is no HTML
            loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, keep_trailing_newline=True, **own,
        )  # fmt: skip
        escape = escapes.tex if is_tex else escapes.markdown
        environment.filters["text"] = escape
        environment.filters["cell"] = lambda value, escape=escape: escape(
            " ".join(str(value).splitlines())
        )
        rendered = environment.get_template(f"{name}.j2").render(text=text)
        files[name] = rendered.encode("utf-8", "backslashreplace")
    for spec in specs:
        for kind in figures.FORMATS:
            saved = figures.saved(spec, text.get("source", ""), kind)
            files[f"figures/{spec['id']}.{kind}"] = saved
    # Last, since a folder with numbers is a whole pack.
    files[NUMBERS] = json.dumps(numbers, indent=1, allow_nan=False)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]
