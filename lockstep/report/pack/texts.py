"""From results to a pack's folder: Markdown, LaTeX, figures, and the numbers as JSON.

`reports/pack/*.toml` has a programme's headings with their parts, `parts.j2` the sentences of each
part. A text is sections of blocks, dicts of kind `text`, `lines`, `table` or `figure`, which
`proposal.md.j2` and `proposal.tex.j2` write. A heading without blocks is left out.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lockstep.core import formats, record
from lockstep.core.files import write_atomically
from lockstep.core.formats import counted, in_words, listed, number, percent
from lockstep.core.metrics import GIGA
from lockstep.core.record import Basis
from lockstep.measure.causes.card import busy
from lockstep.report.check import checker
from lockstep.report.check.checker import Finding
from lockstep.report.compute import quantities
from lockstep.report.compute.scaling import SECONDS_PER_HOUR, Point, Series
from lockstep.report.compute.statistics import WIDE
from lockstep.report.load.results import Results
from lockstep.report.pack.choices import FOLDER, Chosen, Objection, Work
from lockstep.report.page import figures, parts
from lockstep.report.page.parts import CELLS, MILLI, shown
from lockstep.report.words import headline, lines, method
from lockstep.report.words.verdict_card import Judged

NUMBERS = "numbers.json"
TEXTS = ("proposal.md", "proposal.tex")
REFERENCES = "references.bib"
COST_SAMPLES = 1e6
STALLS = 1.05  # mean / median step; above it, stalls cost node-hours that the median hides
MAX_NAMED = 6  # objections that a text names
WIDTH = 96  # letters of a line of the card; more would leave the page
MARK = "\u25a0"  # a month in which something is done
SOFTWARE = {
    "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "driver": "driver",
    "python": "Python", "os": "",
}  # fmt: skip
Block = dict[str, Any]


def document(
    form: Mapping[str, Any], results: Results, chosen: Chosen, work: Work,
    plan: dict[str, Any] | None, jobs: dict[str, Any] | None,
    specs: Iterable[Mapping[str, Any]], against: Sequence[Objection], card: Judged | None,
    threshold: float, extra: Mapping[str, list[Block]] | None = None,
    warned: Sequence[Finding] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return a text under the headings of its form: title, objections, sections.

    A figure is in the section of the form that names it, else where `[[figures]]` is. `extra` maps
    NAME to the blocks that replace the paragraph `[[NAME]]`.
    """
    production, provenance = chosen.production, results.provenance
    row = production.rows[0]
    noun, title = ("rank", "Rank") if results.on_cpus else ("GPU", "GPU")
    known = (record.basis_of(row.details) for p in chosen.points for row in p.rows)
    bases = list(dict.fromkeys(filter(None, known)))
    nodes = [point.rows[0].num_nodes for point in chosen.points]
    per_node = [point.rows[0].ranks_per_node for point in chosen.points]
    days = method.days(results.days) or "on an unknown date"
    devices = listed(results.device_names, 4) or formats.DASH
    planned = results.campaign.get("launches") or []
    context: dict[str, Any] = {
        "is_comparison": extra is not None,
        "work": work, "chosen": chosen, "production": production, "row": row, "plan": plan,
        "jobs": jobs, "noun": noun, "goal": f"{100 * threshold:.0f} %",
        "threshold": threshold,
        "campaign": {"name": None} | results.campaign, "on_cpus": results.on_cpus,
        "measured_on": f"The results were measured on {devices}, {days}, in "
        f"{counted(len(results.launches), 'launch')}",
        "software": [
            f"{title} {provenance[name]}".strip() for name, title in SOFTWARE.items()
            if provenance.get(name)
        ],
        "image": provenance.get("image_sha256"),
        "doi": results.doi,
        "backend": provenance.get("backend") or formats.DASH,
        "basis_text": method.basis(bases),
        "times_input": tuple({basis.times_input for basis in bases}),
        "warned": [
            f"lockstep check warns of {group.first.rule} ({group.where()}): {group.message(2)}."
            for group in checker.group_findings(warned)
        ],
        "noisy": [
            f"{curve.row.study} scaling on {counted(point.world_size, noun)}"
            for curve in chosen.shown for point in curve.points if point.is_noisy
        ],
        "wide": f"{WIDE:g}",
        "ranks_per_node": method.span_of(filter(None, per_node)),
        "gradient_mb": listed(dict.fromkeys(
            number(float(size), scale=1 / 1e6) for own in production.rows
            if (size := own.details.get("gradient_bytes"))
        )),
        "agreements": [
            f"{100 * (each['ratio'] - 1):+.1f} % (95 % interval {100 * (each['low'] - 1):+.1f} to "
            f"{100 * (each['high'] - 1):+.1f} %) on {counted(each['world_size'], noun)}"
            for each in chosen.agreements
        ],
        "stalls": [
            f"{formats.ratio(point.mean_over_median)} in {curve.row.study} scaling on "
            f"{counted(point.world_size, noun)}"
            for curve in chosen.shown for point in curve.points
            if (point.mean_over_median or 1.0) > STALLS
        ],
        "tables_in": list(dict.fromkeys(str(curve.row.precision) for curve in chosen.shown)),
        "time_of_samples_s": time_of_samples_s(production),
        "sizes": sorted({point.world_size for point in chosen.points}),
        "nodes": method.span_of(nodes) if all(nodes) else "",
        "timing": method.timing(results, chosen.points),
        "has_intervals": any(p.step_interval or p.efficiency_interval for p in chosen.points),
        "measured_times": [
            f"{each['type']} on {counted(each['world_size'], 'rank')} at global batch "
            f"{each['global_batch']} of the production series"
            for each in (plan["milestones"] if plan else ()) if each["source"] == "measured"
        ],
        "overlaps": [
            f"{percent(share)} % on {counted(point.world_size, noun)} ("
            + (f"95 % interval {formats.percent_span(ends)} %)" if ends else "no interval)")
            for point in chosen.series.points if not point.blocked_by
            for share, ends in [quantities.pool(point.rows, "overlap")] if share is not None
        ],
        "num_planned": len(planned) or len(results.launches),
        "num_resumed": sum(len(each.facts.get("sessions") or []) > 1 for each in results.launches),
        "kept_beside": [
            name for name, kept in (("versions", provenance), ("Slurm's accounting", jobs)) if kept
        ],
    }  # fmt: skip
    environment = _environment()
    environment.filters.update({
        "counted": counted, "listed": listed, "number": number, "percent": percent,
        "percent_span": formats.percent_span, "in_words": in_words, "exact": exact,
        "milliseconds": lambda value: number(value, scale=MILLI),
        "gigabytes": lambda value: number(value, scale=1 / GIGA),
    })  # fmt: skip
    macros = environment.get_template("parts.j2").make_module(context)

    def sentences(name: str, *arguments: object) -> list[str]:
        paragraphs = re.split(r"\n[ \n]*\n", str(getattr(macros, name)(*arguments)))
        texts = [re.sub(r"[ \n]+", " ", paragraph).strip() for paragraph in paragraphs]
        return [text for text in texts if text]

    def ladder(curve: Series) -> list[Block]:
        is_smallest = all(point.world_size >= curve.baseline for point in curve.points)
        (caption,), (note,) = sentences("caption", curve), sentences("baseline", curve, is_smallest)
        drawn = _point_table(curve, production, caption, _scaling_columns(curve, title), note)
        judged = headline.judge(curve, threshold)
        texts = []
        if judged.kind not in ("good", "blocked"):
            text = f"{curve.row.study.capitalize()} scaling: {judged.gives}."
            texts.append({"kind": "text", "text": text})
        points = [production] if curve is chosen.series else []
        points += [judged.loss_point] if judged.loss_point is not production else []
        for point in points if parts.sound([curve]) else []:
            why = quantities.reason(curve, point)
            if lost := replace(judged, loss_point=point, why=why).lost:
                size = counted(point.world_size, noun)
                text = f"In {curve.row.study} scaling on {size}, {lost}."
                if card and card.point is point and card.bound.is_busy:
                    text += f" The machine was busy: {busy(card.bound)[0]}."
                texts.append({"kind": "text", "text": text})
        return [drawn, *texts]

    dated = [run for run in work.runs if run.start_month is not None]
    placed = {name for section in form["sections"] for name in section.get("figures", [])}
    drawn: dict[str, Callable[[], list[Block]]] = {
        "[[ladders]]": lambda: [block for curve in chosen.shown for block in ladder(curve)],
        "[[production ladder]]": lambda: ladder(chosen.series),
        "[[figures]]": lambda: [
            {**spec, "kind": "figure"} for spec in specs if spec["id"] not in placed
        ],
        "[[bottleneck]]": lambda: (
            [{"kind": "lines", "title": card.title, "lines": [
                part for line in card.lines(has_next=False)
                for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 10)
            ]}] if card else []
        ),
        "[[gantt]]": lambda: [_gantt(dated)] if dated else [],
        "[[milestones]]": lambda: [_milestones(plan)] if plan else [],
        "[[unit_costs]]": lambda: [
            _point_table(curve, production, sentences("caption", curve)[0],
                         _cost_columns(curve, title), "Times and hours use the mean step.")
            for curve in chosen.shown
        ],
        "[[jobs]]": lambda: [
            parts.table(
                "Jobs of this campaign, as Slurm accounts for them",
                ("State", "Jobs", "Node-hours"),
                [[each["state"], str(each["num_jobs"]), number(each["node_hours"])]
                 for each in jobs["outcomes"]], 1, "",
            )
        ] if jobs else [],
        "[[conditions]]": lambda: [_conditions(chosen, bases[0] if bases else Basis())],
    } | {name: partial(list, blocks) for name, blocks in (extra or {}).items()}  # fmt: skip

    missing: list[str] = []
    sections = []
    for section in form["sections"]:
        texts = []
        for part in section.get("parts", []):
            # A part that is neither a macro nor a block has the applicant's own statements alone.
            if hasattr(macros, part):
                texts += sentences(part)
            elif f"[[{part}]]" in drawn:
                texts.append(f"[[{part}]]")
            elif part not in work.statements:
                missing.append(part)
            texts += [work.statements[part]] if part in work.statements else []
        blocks = [
            {"kind": "table", "note": "", "bold": None} | block for text in texts
            for block in (drawn[text]() if text in drawn else [{"kind": "text", "text": text}])
        ]  # fmt: skip
        blocks += [
            {"note": "", **spec, "kind": "figure"} for spec in specs
            if spec["id"] in section.get("figures", [])
        ]  # fmt: skip
        if blocks:
            sections.append({
                "heading": section["heading"], "level": section.get("level", 2),
                "annex": section.get("annex", False), "blocks": blocks,
            })  # fmt: skip
    more = f"; and {len(against) - MAX_NAMED} more" if len(against) > MAX_NAMED else ""
    objections = "; ".join(objection.text for objection in against[:MAX_NAMED]) + more
    num_objections = counted(len(against), "objection")
    despite = " ".join([
        "These results are no evidence for a proposal.", *method.recorded(results),
        f"The text was written despite {num_objections}: {objections}.",
    ])  # fmt: skip
    return {
        "title": form["title"],
        "slides": form.get("slides", False),
        "is_paper": form.get("paper", False),
        "against": despite if against else "",
        "source": f"{context['measured_on']}. {context['basis_text']}",
        "sections": sections,
        "missing": missing,
    }


def _point_table(
    series: Series, production: Point, caption: str, columns: parts.Columns, note: str = ""
) -> Block:
    bold = next((i for i, point in enumerate(series.points) if point is production), None)
    return parts.point_table(caption, columns, series.points, prints_all="", bold=bold, note=note)


def _scaling_columns(series: Series, title: str) -> parts.Columns:
    unit = series.row.sample_unit or "samples"
    return (
        (f"{title}s", CELLS["Ranks"]), "Nodes", "Global batch", "Local batch",
        ("Step (ms)", CELLS["Step time (ms)"]), "95 % interval (ms)",
        ("Mean step (ms)", lambda p: number(p.mean_step_s, scale=MILLI)),
        (f"Throughput ({unit}/s)", lambda p: number(p.throughput_samples_per_s)),
        "Speed-up", "Efficiency (%)", "95 % interval (%)", "Memory (GB)", "Launches",
    )  # fmt: skip


def time_of_samples_s(point: Point) -> float | None:
    """Return the time that 10^6 samples take at the mean step."""
    rate, stalls = point.throughput_samples_per_s, point.mean_over_median or 1.0
    return None if rate is None else COST_SAMPLES / rate * stalls


def node_hours_of_samples(point: Point) -> float | None:
    """Return the node-hours that 10^6 samples take at the mean step."""
    seconds, nodes = time_of_samples_s(point), point.rows[0].num_nodes
    return None if seconds is None or not nodes else seconds * nodes / SECONDS_PER_HOUR


def _cost_columns(series: Series, title: str) -> parts.Columns:
    per = f"per 10\u2076 {series.row.sample_unit or 'samples'}"
    return (
        (f"{title}s", CELLS["Ranks"]), "Nodes", "Global batch",
        (f"Time {per} (s)", lambda p: number(time_of_samples_s(p))),
        (f"Node-hours {per}", lambda p: number(node_hours_of_samples(p))),
        (f"{title}-hours {per}", lambda p: number(p.device_hours)),
    )  # fmt: skip


def _milestones(plan: Mapping[str, Any]) -> Block:
    columns = (
        "Run type", "Code(s)", "No. of runs", "No. of nodes", "No. of steps per run",
        "Time per step (s)", "Hours per run", "Total node hours",
    )  # fmt: skip
    rows = [
        [
            line["type"], line["code"] or formats.DASH,
            *(shown(line[key]) for key in ("num_runs", "num_nodes", "num_steps")),
            number(line["step_s"])
            + (f" ({line['source']})" if line["source"] in ("given", "predicted") else ""),
            number(line["hours"]), exact(line["node_hours"]),
        ]
        for line in plan["milestones"]
    ]  # fmt: skip
    rows.append(["Sum", *([""] * (len(columns) - 2)), exact(plan["node_hours"])])
    return parts.table("Milestones", columns, rows, 2, "", bold=len(rows) - 1)


def _gantt(runs: Sequence[Any]) -> Block:
    spans = [range(run.start_month, run.start_month + run.months) for run in runs]
    months = range(1, max(span.stop for span in spans))
    rows = [
        [run.type, *(MARK if month in own else " " for month in months)]
        for run, own in zip(runs, spans, strict=True)
    ]
    return parts.table("Work plan by month", ("Run type", *map(str, months)), rows, 1, "")


def _conditions(chosen: Chosen, basis: Basis) -> Block:
    row = chosen.production.rows[0]
    timed = {True: "timed", False: "not timed", None: ""}[basis.times_input]
    known = {"Data": basis.data, "Input": timed, "Optimizer": basis.optimizer}
    rows = [
        ["Model", row.workload], ["Precision", str(row.precision)],
        ["Global batch", str(row.global_batch)],
        *([name, value] for name, value in known.items() if value),
        ["Checkpoints", "no checkpoint is written in a timed step"],
    ]  # fmt: skip
    columns = ("Condition", "As measured")
    return parts.table("Conditions of the measurement", columns, rows, 2, "")


def exact(hours: float) -> str:
    """Return node-hours with two decimals at most, since a form's sums are checked."""
    return f"{hours:.2f}".rstrip("0").rstrip(".")


def refuse_foreign(folder: Path, force: bool, option: str = "--to") -> None:
    """Refuse to write among files that are no pack.

    Raises:
        ValueError: The folder holds other files, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose a folder with {option}")
    is_free = not folder.exists() or not any(folder.iterdir()) or (folder / NUMBERS).exists()
    if not (is_free or force):
        raise ValueError(
            f"{folder} holds files that are not a pack; choose another folder with {option}, or "
            "pass --force"
        )


def write(
    folder: Path, text: Mapping[str, Any], specs: Iterable[dict[str, Any]],
    numbers: Mapping[str, Any],
) -> list[Path]:  # fmt: skip
    """Write a pack and return its files, the texts first."""
    files: dict[str, str | bytes] = {}
    for name in TEXTS:
        is_tex = name.endswith(".tex")
        # LaTeX uses braces, so Jinja has other delimiters.
        own: dict[str, Any] = {
            "block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<",
            "variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>",
        } if is_tex else {}  # fmt: skip
        environment = _environment(keep_trailing_newline=True, **own)
        escape = lines.tex if is_tex else lines.markdown
        environment.filters["text"] = escape
        environment.filters["cell"] = lambda value, escape=escape: escape(
            " ".join(str(value).splitlines())
        )
        rendered = environment.get_template(f"{name}.j2").render(text=text)
        files[name] = rendered.encode("utf-8", "backslashreplace")
    if text.get("is_paper"):
        files[REFERENCES] = (FOLDER / REFERENCES).read_bytes()
    for spec in specs:
        for kind in figures.FORMATS:
            saved = figures.save({**spec, "has_caption": True}, text.get("source", ""), kind)
            files[f"figures/{spec['id']}.{kind}"] = saved
    # Written last: a folder with this file is a complete pack.
    files[NUMBERS] = json.dumps(numbers, indent=1, allow_nan=False)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return [folder / name for name in files]


def _environment(**options: Any) -> Environment:
    return Environment(  # noqa: S701, since filters escape each text, and none is HTML
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, **options,
    )  # fmt: skip
