"""A campaign's status as one self-contained HTML page, made of its record."""

import base64
import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lockstep.core.formats import counted, in_words, listed, number, percent, ratio, size_of
from lockstep.report.check import evidence
from lockstep.report.page.parts import Panel, Table, panel, shown, table
from lockstep.report.page.render import environment, own
from lockstep.slurm import client as slurm
from lockstep.slurm.status.status_record import (
    PLACE,
    SOFTWARE,
    by_whom,
    elements,
    ran,
    whose,
)

# kind of a script -> when it is of use
WHEN = {
    "stage": "as its dependency says: a command of your own, before or after what measures",
    "fallback": "where a job before it fails: a command of your own",
    "preflight": "first: in minutes it shows that nodes answer and ranks meet",
    "ladder": "now: it measures one repeat of all world sizes on the same nodes",
    "job": "in the order of the list: each measures a world size once the smaller ones are done",
    "array": "now: each element measures one case, and elements run side by side",
    "profile": "to see where a step's time goes; it adds nothing to what is measured",
    "collect": "last: once the others have ended it gathers results and makes the report",
}
QUANTITIES = {
    "time_s": "time of a run",
    "step_s": "time of a step",
    "speedup": "speed-up",
    "parallel_efficiency": "efficiency, %",
    "device_hours": "device-hours of a run",
}
MEETS = {
    "pending": "not measured yet",
    "met": "as expected",
    "below": "less than expected",
    "above": "more than expected",
    "blocked": "no verdict",
    None: "",
}
AGES = {
    "slurm": "jobs, from squeue and sacct",
    "events": "jobs, from events of their ends",
    "results": "results, from the launches' journals",
    "accounting": "accounting, from lockstep status --collect",
    "inventory": "the cluster, from scontrol",
    "expectation": "what is expected",
}
CONFIGURATION = {
    "studies": "studies", "tests": "tests", "world_sizes": "world sizes", "repeats": "repeats",
    "size": "size", "workload": "workload", "precision": "precision", "device": "device",
    "global_batch": "global batch", "local_batch": "local batch", "rounds": "rounds",
    "threads_per_rank": "threads per rank", "factors": "factors", "seed": "seed",
}  # fmt: skip


def summary(record: Mapping[str, Any]) -> list[str]:
    """Return the state of a campaign in one or two sentences."""
    launches = f"{record['num_complete']} of {record['num_planned']} launches complete."
    if not record["jobs"]:
        ready = counted(len(record["prepared"]), "script")
        what = f"Nothing is submitted; {ready} ready." if record["prepared"] else "No jobs."
        return [f"{what} {launches}"]
    states: dict[str, int] = {}
    for job in record["jobs"]:
        for name, count in (job.get("elements") or {job["state"]: 1}).items():
            states[name] = states.get(name, 0) + count
    jobs = ", ".join(f"{count} {slurm.SHORT.get(name, name)}" for name, count in states.items())
    return [f"Jobs: {jobs}. {launches}"]


def warnings(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader must know before the rest."""
    if record.get("failed_look"):
        yield f"The last look failed; this is of {record['time']}. {record['failed_look']}"
    if record["errors"]:
        known = record["as_of"]["slurm"]
        since = f"the states below are of {known}" if known else "no state is known"
        yield f"Slurm gives no answer; {since}. {listed(record['errors'])}"
    for name, why in record["refused"].items():
        yield f"{name} was not sent: {why}"
    if record["abandoned"]:
        yield f"No job will measure {listed(record['abandoned'])}: see what to do below."
    for one in record["measured"]["below_floor"]:
        yield (
            f"At {counted(one['world_size'], 'rank')} the best parallel efficiency of any case is "
            f"{percent(one['parallel_efficiency'])} %, below the floor of {percent(one['floor'])} "
            f"%. Find out why before a larger size: "
            f"lockstep report {shlex.quote(record['folder'])}"
        )


def sections(record: Mapping[str, Any]) -> list[Panel]:
    """Return the parts of the page that have something to say."""
    made = [
        _jobs(record), _prepared(record), _expected(record), _configuration(record),
        _technology(record), _inventory(record), _ages(record),
    ]  # fmt: skip
    for part in made:
        for count, one in enumerate(part["tables"], start=1):
            one["key"] = f"{part['id']}-table-{count}"
    return [one for one in made if one["tables"] or one["lead"]]


def _part(
    name: str,
    title: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[list[str]],
    texts: int,
) -> Panel:
    """Return a part of one table, whose first columns are texts; an empty one without rows."""
    tables = [table(caption, list(columns), list(rows), texts=texts)] if rows else []
    return panel(name, title, tables=tables)


def _jobs(record: Mapping[str, Any]) -> Panel:
    rows = []
    for job in record["jobs"]:
        words = elements(job) if "elements" in job else job["meaning"]
        if (last := job.get("last_known")) and "elements" not in job:
            words += f"; last known: {last['state']} at {last['time']}"
        waited = job["queue_wait_s"]
        complete = f"{job['num_complete']} of {job['num_launches']}{by_whom(job)}"
        rows.append([
            f"{job['job']}{whose(job)}", shown(job["id"]), job["state"], words, job["advice"] or "",
            in_words(job["since_submission_s"] if waited is None else waited), ran(job),
            complete if job["num_launches"] else "", _shape(job), shown(job["time_limit"]),
        ])  # fmt: skip
    rows += [
        [shown(one["launch"]), shown(one["id"]), one["state"], one["meaning"],
         one["advice"] or "", *[""] * 5]
        for job in record["jobs"] for one in job.get("ended_badly", ())
    ]  # fmt: skip
    columns = ["Job", "Id", "State", "In words", "What to do", "Waited", "Ran", "Launches", "Nodes",
               "Limit"]  # fmt: skip
    if not rows:
        return panel("jobs", "Jobs", lead=["No job was sent from this folder."])
    return _part("jobs", "Jobs", "Each job", columns, rows, 5)


def _prepared(record: Mapping[str, Any]) -> Panel:
    rows = [
        [one["job"], WHEN.get(one["kind"], ""), one["command"], _shape(one),
         shown(one.get("time_limit")), str(len(one["launches"]) - one["num_complete"] or "")]
        for one in record["prepared"]
    ]  # fmt: skip
    columns = ["Script", "When to use it", "Command", "Nodes", "Limit", "Launches left"]
    title, caption = "Prepared, not submitted", "Scripts that are written"
    return _part("prepared", title, caption, columns, rows, 3)


def _shape(script: Mapping[str, Any]) -> str:
    """Return nodes x GPUs, or CPUs where it asks for no GPU."""
    nodes, gpus = script.get("num_nodes"), script.get("gpus_per_node")
    if not nodes:
        return shown(None)
    return f"{nodes} x {counted(gpus, 'GPU')}" if gpus else counted(nodes, "node")


def _expected(record: Mapping[str, Any]) -> Panel:
    found = record["measured"]
    beside = []
    for one in found["expected"]:
        value, low, high = (
            None if one[key] is None else _value(one["quantity"], one[key])
            for key in ("value", "low", "high")
        )
        limits = f"at least {low}" if low else f"at most {high}" if high else ""
        limits = f"{low} to {high}" if low and high else limits
        deviation = one["deviation"]
        beside.append([
            shown(one["series"]), QUANTITIES.get(one["quantity"], f"{one['sample_unit']}/s"),
            str(one["world_size"]), f"{value} ({limits})" if value and limits else value or limits,
            _value(one["quantity"], one["measured"]),
            shown(None) if deviation is None else f"{100 * deviation:+.1f}",
            "; ".join(filter(None, (MEETS[one["meets"]], _blocked(one)))),
        ])  # fmt: skip
    tables = []
    if beside:
        columns = ["Series", "Quantity", "Ranks", "Expected", "Measured", "Deviation (%)", ""]
        note = f"Expected by {found['expectation']}; a deviation is measured over expected, less 1."
        tables.append(table("Expected beside measured", columns, beside, texts=2, note=note))
    for unit in dict.fromkeys(one["sample_unit"] for one in found["points"]):
        points = [one for one in found["points"] if one["sample_unit"] == unit]
        tables.append(_points(unit, points, record["campaign"].get("repeats")))
    lead = [found["problem"]] if found["problem"] else []
    if not tables and not lead:
        has_begun = any(one["measured"] for one in record["launches"].values())
        lead = [
            "What is measured so far is no ladder." if has_begun else "Nothing is measured yet."
        ]
    return panel("expected", "Expected and measured", tables=tables, lead=lead)


def _points(unit: str, points: Sequence[Mapping[str, Any]], repeats: int | None) -> Table:
    """Return the table of points of one unit; at a rate that a program says, without steps.

    A point has all its launches where there are as many as repeats: then its row is final.
    """
    # Trainings of several seeds are launches of one point, too.
    is_counted = repeats is not None and all(point["num_launches"] <= repeats for point in points)
    of_all = f" of {repeats}" if is_counted else ""
    names = {"step_s": "Step", "throughput": f"Throughput ({unit}/s)", "speedup": "Speed-up",
             "parallel_efficiency": "Efficiency (%)"}  # fmt: skip
    if all(point["step_s"] is None for point in points):
        del names["step_s"]
    rows = [
        [point["series"], str(point["world_size"]), f"{point['num_launches']}{of_all}",
         *(_value(name, point[name]) for name in names), _blocked(point)]
        for point in points
    ]  # fmt: skip
    columns = ["Series", "Ranks", "Launches", *names.values(), ""]
    return table("Measured so far", columns, rows, texts=1)


def _blocked(one: Mapping[str, Any]) -> str:
    """Return why a point has no ratios; empty where nothing forbids them."""
    return evidence.blocked(one["blocked_by"]) if one["blocked_by"] else ""


def _value(quantity: str, value: float | None) -> str:
    if quantity == "parallel_efficiency":
        return percent(value)
    if quantity in ("step_s", "time_s"):
        return in_words(value)
    return ratio(value) if quantity == "speedup" else number(value)


def _configuration(record: Mapping[str, Any]) -> Panel:
    rows = list(_pairs(record["campaign"], CONFIGURATION))
    jobs = record["campaign"].get("jobs") or {}
    rows += [
        [f"jobs.{key}", _plain(value)] for key, value in jobs.items() if value and key != "stage"
    ]
    rows += [
        [f"stage {stage['name']}", f"{stage['when']}, {stage['dependency']}: {stage['command']}"]
        for stage in jobs.get("stage") or ()
    ]
    columns = ["Key", "Value"]
    return _part("configuration", "Configuration", "What is measured", columns, rows, 2)


def _technology(record: Mapping[str, Any]) -> Panel:
    tables = []
    if record["site"]:
        rows = list(_pairs(record["site"], PLACE))
        tables.append(table("Where its jobs go", ["What", "Value"], rows, texts=2))
    if record["machine"]:
        machine = dict(record["machine"])
        if isinstance(machine.get("memory_bytes"), int):
            machine["memory_bytes"] = size_of(machine["memory_bytes"])
        rows = list(_pairs(machine, SOFTWARE))
        if rows:  # an earlier version noted none of it
            tables.append(table("What the last launch ran on", ["What", "Value"], rows, texts=2))
    return panel("technology", "Technology", tables=tables)


def _pairs(facts: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[list[str]]:
    for key, name in names.items():
        if facts.get(key) not in (None, "", [], (), {}):
            yield [name, _plain(facts[key])]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_plain(one)}" for key, one in value.items())
    return listed(value) if isinstance(value, list | tuple) else str(value)


def _inventory(record: Mapping[str, Any]) -> Panel:
    found = record["inventory"] or {"rows": [], "cluster": "", "slurm": None}
    rows = [
        [row["partition"], f"{row['num_here']} of {row['num_nodes']}",
         f"{row['gpus_per_node']} x {row['gpu_type'] or 'GPU'}" if row["gpus_per_node"] else "none",
         str(row["cpus"]), number(row["memory_gib"]), shown(row["max_time"]),
         listed(row["features"])]
        for row in found["rows"]
    ]  # fmt: skip
    columns = ["Partition", "Nodes in use or free", "GPUs of a node", "CPUs", "Memory (GiB)",
               "Longest job", "Features"]  # fmt: skip
    version = f", Slurm {found['slurm']}" if found["slurm"] else ""
    return _part("inventory", "The cluster", f"{found['cluster']}{version}", columns, rows, 3)


def _ages(record: Mapping[str, Any]) -> Panel:
    rows = [[name, at] for key, name in AGES.items() if (at := record["as_of"][key])]
    rows.append(["this page", record["time"]])
    return _part("ages", "As of", "How old each fact is", ["What", "When"], rows, 2)


# Whoever reads slowly can keep a page as it is, which a refresh in its head would not let them;
# that of the template is for viewers without scripts.
AGAIN = """
const box = Object.assign(document.createElement("input"), {{
  type: "checkbox", id: "again", checked: true,
}});
const label = document.createElement("label");
label.append(box, " Read it again every {every_s} s");
document.querySelector("#as-of").append(" ", label);
const again = () => {{ if (box.checked) location.reload(); }};
setInterval(again, {every_s} * 1000);
"""
CHANGES_PATH = "/changes"
# A page that is served asks to be told of changes.
LISTEN = f'new EventSource("{CHANGES_PATH}").onmessage = again;'


def html(record: Mapping[str, Any], refresh_s: float | None, *, is_served: bool = False) -> str:
    """Return the page of a record.

    A browser reads the page again after `refresh_s`; a served one is told of changes.
    """
    script = "" if refresh_s is None else AGAIN.format(every_s=round(refresh_s))
    script += LISTEN if is_served else ""
    return (
        environment()
        .get_template("status.html.j2")
        .render(
            title=f"{record['campaign'].get('name') or record['folder']}: status",
            summary=summary(record),
            warnings=list(warnings(record)),
            sections=sections(record),
            next=record["next"],
            monitor=record["monitor"],
            time=record["time"],
            refresh_s=None if refresh_s is None else round(refresh_s),
            style=own("report.css"),
            script=Markup(script),  # noqa: S704, since it is our own constant
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        )
    )
