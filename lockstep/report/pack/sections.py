"""From results to the text of a pack as plain data: headings, each with blocks.

A block is a dict of kind `text`, `lines`, `table` or `figure`. A part is what one heading of a
programme asks for; `reports/pack/*.toml` says which parts stand under which heading. A part of
which nothing is known gives no block, and a heading without blocks is left out.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lockstep.core import formats, record
from lockstep.core.formats import counted, listed
from lockstep.core.record import Basis
from lockstep.report.compute.scaling import Series
from lockstep.report.load.results import Results
from lockstep.report.pack import pack_tables, pack_wording
from lockstep.report.pack.chosen import Chosen
from lockstep.report.pack.node_hours import Budget
from lockstep.report.pack.objections import Objection
from lockstep.report.pack.outcomes import Outcomes
from lockstep.report.pack.planned_runs import Work
from lockstep.report.words import method
from lockstep.report.words.verdict_card import Judged

Block = dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """All that a text is made of.

    Attributes:
        known: What accounting says of the campaign's jobs.
        against: What forbids to hand the results in.
        card: What bounds the step; None where no variants were timed.
    """

    results: Results
    chosen: Chosen
    work: Work
    plan: Budget | None
    known: Outcomes | None
    threshold: float
    figures: Mapping[str, dict[str, Any]]
    against: Sequence[Objection]
    card: Judged | None = None

    @property
    def noun(self) -> str:
        """What a rank computes on."""
        return "rank" if self.results.on_cpus else "GPU"

    @property
    def title_noun(self) -> str:
        """The same as a column begins with it."""
        return "Rank" if self.results.on_cpus else "GPU"

    @property
    def basis(self) -> list[Basis]:
        """What the measured steps read, each kind once."""
        rows = [row for point in self.chosen.points for row in point.rows]
        return list(dict.fromkeys(one for row in rows if (one := record.basis_of(row.details))))

    @property
    def said_basis(self) -> str:
        """The same as a sentence."""
        return method.basis(self.basis)


def document(facts: Facts, programme: Path) -> dict[str, Any]:
    """Return the text: a title, what speaks against it, and sections of blocks."""
    form = tomllib.loads(programme.read_text(encoding="utf-8"))
    made = [_section(one, facts) for one in form["sections"]]
    return {
        "title": form["title"],
        "slides": form.get("slides", False),
        "against": pack_wording.despite(facts.against) if facts.against else "",
        "sections": [one for one in made if one["blocks"]],
    }


def _section(form: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    parts = form.get("parts", [])
    blocks = [block for part in parts for block in _part(part, facts)]
    return {
        "heading": form["heading"], "level": form.get("level", 2),
        "annex": form.get("annex", False), "blocks": blocks,
    }  # fmt: skip


def _part(name: str, facts: Facts) -> list[Block]:
    own = facts.work.statements.get(name)
    # A part that only its author can write has a place, and no words of ours.
    made = PARTS[name](facts) if name in PARTS else []
    return made + (_texts(own) if own else [])


def _texts(*sentences: str) -> list[Block]:
    return [{"kind": "text", "text": one} for one in sentences if one]


def source(facts: Facts) -> str:
    """Say where a figure comes from that is saved apart from its text."""
    return f"{_measured_on(facts)}. {facts.said_basis}"


def _measured_on(facts: Facts) -> str:
    launches = facts.results.launches
    when = method.days(facts.results.days) or "on an unknown day"
    return (
        f"Measured on {listed(facts.results.device_names, 4) or formats.DASH}, {when}, in "
        f"{counted(len(launches), 'launch')}"
    )


def _testing(facts: Facts) -> list[Block]:
    found = facts.results.provenance
    software = listed(
        f"{title} {found[name]}".strip() for name, title in SOFTWARE.items() if found.get(name)
    )
    wanted = f"Requested machine: {facts.work.machine}. " if facts.work.machine else ""
    image = found.get("image_sha256")
    held = f"Container image with SHA-256 {image}" if image else "No container image"
    # No record tells the machine of a call from another; the applicant's own words do.
    open_question = "Whether that is the requested machine is for the applicant to say. "
    said = "" if facts.work.statements.get("testing") else open_question
    return _texts(f"{wanted}{_measured_on(facts)}. {said}Software: {software}. {held}.")


SOFTWARE = {
    "torch": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "driver": "driver",
    "python": "Python", "os": "",
}  # fmt: skip


def _scalability(facts: Facts) -> list[Block]:
    tables = [_table(facts, one) for one in facts.chosen.shown]
    return [*tables, *_job_size(facts), *_drawn(facts)]


def _main_table(facts: Facts) -> list[Block]:
    size = pack_wording.job_size(facts.chosen, facts.threshold, facts.noun)
    return [_table(facts, facts.chosen.series), *_texts(size)]


def _table(facts: Facts, one: Series) -> Block:
    caption, note = pack_wording.caption(one), pack_wording.relative_to(one, facts.noun)
    return pack_tables.scaling(one, facts.chosen, facts.title_noun, caption, note)


def _job_size(facts: Facts) -> list[Block]:
    chosen, noun, more = facts.chosen, facts.noun, facts.chosen.num_others
    return _texts(
        pack_wording.production(chosen, noun),
        pack_wording.job_size(chosen, facts.threshold, noun),
        pack_wording.agreement(chosen.agreements, noun) if chosen.agreements else "",
        pack_wording.stalls(chosen.shown, noun),
        f"{counted(more, 'further ladder')} of these results: numbers.json." if more else "",
    )


def _drawn(facts: Facts) -> list[Block]:
    figures = (
        {name: spec.get(name, "") for name in ("id", "title", "note")}
        for spec in facts.figures.values()
    )
    return [{"kind": "figure"} | figure for figure in figures]


def _abstract(facts: Facts) -> list[Block]:
    noun = facts.noun
    return _texts(
        f"{_measured_on(facts)}: data-parallel training of {facts.chosen.series.row.workload}. "
        f"{pack_wording.scale(facts.chosen, noun)} "
        f"{pack_wording.job_size(facts.chosen, facts.threshold, noun)} "
        f"{facts.said_basis}"
    )


def _bottleneck(facts: Facts) -> list[Block]:
    card = facts.card
    return [{"kind": "lines", "title": card.title, "lines": card.lines}] if card else []


def _gantt(facts: Facts) -> list[Block]:
    dated = [run for run in facts.work.runs if run.start_month is not None]
    return [pack_tables.gantt(dated)] if dated else []


def _mechanism(facts: Facts) -> list[Block]:
    version = str(facts.results.provenance.get("lockstep_version", formats.DASH))
    warmup = [one.facts.get("warmup_rounds") for one in facts.results.launches]
    planned = bool(facts.results.campaign.get("launches"))
    points = facts.chosen.points
    told = method.timing(points, version, warmup, planned)
    return _texts(*told, pack_wording.intervals(points))


def _peak(facts: Facts) -> list[Block]:
    known = [row.mfu for row in facts.chosen.production.rows if row.mfu is not None]
    return _texts(pack_wording.peak(median(known))) if known else []


def _milestones(facts: Facts) -> list[Block]:
    if facts.plan is None:
        return []
    return [
        pack_tables.milestones(facts.plan),
        *_texts(*pack_wording.budget(facts.plan, facts.known)),
    ]


def _unit_costs(facts: Facts) -> list[Block]:
    return [
        pack_tables.unit_costs(one, facts.chosen, facts.title_noun, pack_wording.caption(one))
        for one in facts.chosen.shown
    ]


def _outcomes(facts: Facts) -> list[Block]:
    if facts.known is None:
        return []
    return [pack_tables.outcomes(facts.known), *_texts(pack_wording.waits(facts.known))]


def _parallel(facts: Facts) -> list[Block]:
    backend = facts.results.provenance.get("backend") or formats.DASH
    return _texts(
        "Data parallel training with PyTorch DistributedDataParallel: one process for each "
        "device, each with a replica of the model and its share of the global batch. "
        "Gradients are summed over all ranks by bucketed all-reduce operations that overlap with "
        f"the backward pass (back end {backend})."
    )


def _io(facts: Facts) -> list[Block]:
    known = {one.times_input for one in facts.basis}
    said = "may read files: what they read is not recorded"
    if known in ({True}, {False}):
        said = "read their input" if known == {True} else "read and write no files"
    return _texts(f"The measured steps {said}; checkpoints are outside the timed steps.")


def _workflow(facts: Facts) -> list[Block]:
    name = facts.results.campaign.get("name")
    planned = len(facts.results.campaign.get("launches", [])) or len(facts.results.launches)
    resumed = sum(len(one.facts.get("sessions") or []) > 1 for one in facts.results.launches)
    return _texts(
        f"Lockstep runs the ladder{f' {name}' if name else ''} as {counted(planned, 'launch')}, "
        "each a process group of one world size. A launch that is killed loses no finished case."
        + (f" Resumed where they ended: {counted(resumed, 'launch')}." if resumed else "")
    )


def _data(facts: Facts) -> list[Block]:
    kept = {"versions": facts.results.provenance, "Slurm's accounting": facts.known}
    beside = listed(name for name, known in kept.items() if known)
    return _texts(
        f"Every rank's time of every round is kept as JSON{f', with {beside}' if beside else ''}; "
        "lockstep bundle makes one archive of the folder, with the checksum of every file."
    )


def _conditions(facts: Facts) -> list[Block]:
    row = facts.chosen.production.rows[0]
    basis = facts.basis[0] if facts.basis else Basis()
    timed = {True: "timed", False: "not timed", None: ""}[basis.times_input]
    known = {"Data": basis.data, "Input": timed, "Optimizer": basis.optimizer}
    rows = [
        ["Model", row.workload], ["Precision", str(row.precision)],
        ["Global batch", str(row.global_batch)],
        *([name, value] for name, value in known.items() if value),
        ["Checkpoints", "none in a timed step"],
    ]  # fmt: skip
    columns = ("Condition", "As measured")
    return [pack_tables.table("Conditions of the measurement", columns, rows, texts=2)]


PARTS: dict[str, Callable[[Facts], list[Block]]] = {
    "testing": _testing,
    "abstract": _abstract,
    "scalability": _scalability,
    "main_table": _main_table,
    "figures": _drawn,
    "bottleneck": _bottleneck,
    "gantt": _gantt,
    "precision": lambda facts: _texts(pack_wording.precision(facts.chosen)),
    "time": lambda facts: _texts(pack_wording.time_to_solution(facts.chosen, facts.plan)),
    "scale": lambda facts: _texts(pack_wording.scale(facts.chosen, facts.noun)),
    "mechanism": _mechanism,
    "basis": lambda facts: _texts(facts.said_basis),
    "memory": lambda facts: _texts(pack_wording.memory(facts.chosen, facts.results.on_cpus)),
    "peak": _peak,
    "milestones": _milestones,
    "unit_costs": _unit_costs,
    "outcomes": _outcomes,
    "parallel": _parallel,
    "io": _io,
    "workflow": _workflow,
    "data": _data,
    "conditions": _conditions,
}
