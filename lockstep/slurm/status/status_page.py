"""A campaign's status as one self-contained HTML page, made from the status record."""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lockstep.core.formats import counted, in_words, listed, number, percent, ratio, size_of
from lockstep.report.check import evidence
from lockstep.report.page.parts import Panel, Table, panel, shown, table
from lockstep.report.page.render import environment, own
from lockstep.slurm.status.status_record import PLACE, SOFTWARE

# kind of a script -> when to submit it
WHEN = {
    "stage": (
        "submit after the jobs that the script names in --dependency; the job runs your own command"
    ),
    "fallback": "submit only if an earlier job fails; the job then runs your own command",
    "preflight": "submit first; within minutes the job checks that nodes and ranks communicate",
    "ladder": "submit at once; the job measures one repeat of all world sizes on the same nodes",
    "job": "submit in the order of the list; each job measures one world size",
    "array": "submit at once; each element measures one case, and elements run side by side",
    "profile": "submit at any time; the job shows where a step's time goes, and adds no results",
    "collect": "submit last; the job waits for all others, gathers results and makes the report",
}
QUANTITIES = {
    "time_s": "time of a run",
    "step_s": "time of a step",
    "speedup": "speed-up",
    "parallel_efficiency": "efficiency, %",
    "device_hours": "device-hours of a run",
}
AGES = {
    "slurm": "states of jobs, from squeue and sacct",
    "events": "states of jobs, from events that Slurm sent",
    "results": "results, from the launches' journals",
    "accounting": "accounting, from lockstep status --collect",
    "inventory": "the cluster, from scontrol",
    "expectation": "expected values",
}
CONFIGURATION = (
    "studies", "tests", "world_sizes", "repeats", "size", "workload", "precision", "device",
    "global_batch", "local_batch", "rounds", "threads_per_rank", "factors", "seed",
)  # fmt: skip


def _summarize(record: Mapping[str, Any]) -> str:
    launches = f"{record['num_complete']} of {record['num_planned']} launches complete."
    if not record["jobs"]:
        num_scripts = len(record["prepared"])
        ready = f"No job was submitted yet. Scripts ready to submit: {num_scripts}."
        what = ready if record["prepared"] else "No jobs."
        return f"{what} {launches}"
    states = Counter[str]()
    for job in record["jobs"]:
        states.update(job.get("elements") or {job["state"]: 1})
    jobs = ", ".join(f"{count} {name}" for name, count in states.items())
    return f"Jobs: {jobs}. {launches}"


def _warnings(record: Mapping[str, Any]) -> Iterator[str]:
    if record.get("failed_look"):
        yield f"The last update failed; this page is from {record['time']}. {record['failed_look']}"
    if record["errors"]:
        time = record["as_of"]["slurm"]
        states = f"the states below are from {time}" if time else "no state is known"
        yield f"Slurm does not answer; {states}. {listed(record['errors'])}"
    for name, why in record["refused"].items():
        yield f"{name} was not submitted: {why}"
    if record["abandoned"]:
        yield (
            f'No job will measure these launches: {listed(record["abandoned"])}; see "What to do" '
            "below."
        )
    for size in record["measured"]["below_floor"]:
        yield (
            f"At {counted(size['world_size'], 'rank')} the best parallel efficiency of any case "
            f"is {percent(size['parallel_efficiency'])} %, below the floor of "
            f"{percent(size['floor'])} %. Find out why before you measure larger world sizes: "
            f"lockstep report {shlex.quote(record['folder'])}"
        )


def _sections(record: Mapping[str, Any]) -> list[Panel]:
    campaign, jobs = record["campaign"], record["campaign"].get("jobs") or {}
    configuration = [
        *_pairs(campaign, {key: key.replace("_", " ") for key in CONFIGURATION}),
        *_pairs(jobs, {key: f"jobs.{key}" for key in jobs if jobs[key] and key != "stage"}),
        *([f"stage {stage['name']}", f"{stage['when']}, {stage['dependency']}: {stage['command']}"]
          for stage in jobs.get("stage") or ()),
    ]  # fmt: skip
    ages = [[name, at] for key, name in AGES.items() if (at := record["as_of"][key])]
    ages.append(["this page", record["time"]])
    machine = dict(record["machine"] or {})
    if isinstance(machine.get("memory_bytes"), int):
        machine["memory_bytes"] = size_of(machine["memory_bytes"])
    what = ["What", "Value"]
    technology = [
        *_table("Where the jobs run", what, _pairs(record["site"] or {}, PLACE), 2),
        *_table("Hardware and software of the last launch", what, _pairs(machine, SOFTWARE), 2),
    ]
    parts = [
        panel("jobs", "Jobs", tables=_jobs(record),
              lead=[] if record["jobs"] else ["No job was submitted from this folder."]),
        panel("prepared", "Prepared, not submitted", tables=_prepared_tables(record)),
        _expected_panel(record),
        panel("configuration", "Configuration",
              tables=_table("What is measured", ["Key", "Value"], configuration, 2)),
        panel("technology", "Technology", tables=technology),
        panel("inventory", "The cluster", tables=_inventory(record["inventory"])),
        panel("ages", "As of", tables=_table("How old each fact is", ["What", "When"], ages, 2)),
    ]  # fmt: skip
    for part in parts:
        for count, each in enumerate(part["tables"], start=1):
            each["key"] = f"{part['id']}-table-{count}"
    return [part for part in parts if part["tables"] or part["lead"]]


def _table(
    caption: str, columns: Sequence[str], rows: Iterable[list[str]], texts: int
) -> list[Table]:
    """Return a list with one table, whose first `texts` columns are texts; empty without rows."""
    rows = list(rows)
    return [table(caption, columns, rows, texts=texts)] if rows else []


def _jobs(record: Mapping[str, Any]) -> list[Table]:
    rows = []
    for job in record["jobs"]:
        words = job["words"] if "elements" in job else job["meaning"]
        if (last := job.get("last_known")) and "elements" not in job:
            words += f"; last known: {last['state']} at {last['time']}"
        waited_s = job["queue_wait_s"]
        waited_s = job["since_submission_s"] if waited_s is None else waited_s
        rows.append([
            f"{job['job']}{job['owner']}", shown(job["id"]), job["state"], words,
            job["advice"] or "", in_words(waited_s), job["ran"], job["progress"],
            _shape(job), shown(job["time_limit"]),
        ])  # fmt: skip
    rows += [
        [shown(element["launch"]), shown(element["id"]), element["state"], element["meaning"],
         element["advice"] or "", *[""] * 5]
        for job in record["jobs"] for element in job.get("ended_badly", ())
    ]  # fmt: skip
    columns = ["Job", "Id", "State", "In words", "What to do", "Waited", "Ran", "Launches", "Nodes",
               "Limit"]  # fmt: skip
    return _table("Each job", columns, rows, 5)


def _prepared_tables(record: Mapping[str, Any]) -> list[Table]:
    rows = [
        [script["job"], WHEN.get(script["kind"], ""), script["command"], _shape(script),
         shown(script.get("time_limit")),
         str(len(script["launches"]) - script["num_complete"] or "")]
        for script in record["prepared"]
    ]  # fmt: skip
    columns = ["Script", "When to submit the script", "Command", "Nodes", "Limit", "Launches left"]
    return _table("Scripts that are ready to submit", columns, rows, 3)


def _shape(script: Mapping[str, Any]) -> str:
    """Return a script's nodes x GPUs, or its nodes alone without GPUs."""
    nodes, gpus = script.get("num_nodes"), script.get("gpus_per_node")
    if not nodes:
        return shown(None)
    return f"{nodes} x {counted(gpus, 'GPU')}" if gpus else counted(nodes, "node")


def _expected_panel(record: Mapping[str, Any]) -> Panel:
    measured, rows = record["measured"], []
    for row in measured["expected"]:
        quantity = row["quantity"]
        value, low, high = (
            None if row[key] is None else _format(quantity, row[key])
            for key in ("value", "low", "high")
        )
        limits = f"at least {low}" if low else f"at most {high}" if high else ""
        limits = f"{low} to {high}" if low and high else limits
        deviation = row["deviation"]
        rows.append([
            shown(row["series"]), QUANTITIES.get(quantity, f"{row['sample_unit']}/s"),
            str(row["world_size"]), f"{value} ({limits})" if value and limits else value or limits,
            _format(quantity, row["measured"]),
            shown(None) if deviation is None else f"{100 * deviation:+.1f}",
            _why_blocked(row),
        ])  # fmt: skip
    tables = []
    if rows:
        columns = ["Series", "Quantity", "Ranks", "Expected", "Measured", "Deviation (%)", ""]
        note = f"Expected values are from {measured['expectation']}. "
        note += "The deviation is measured / expected - 1."
        tables.append(table("Expected beside measured", columns, rows, texts=2, note=note))
    for unit in dict.fromkeys(point["sample_unit"] for point in measured["points"]):
        points = [point for point in measured["points"] if point["sample_unit"] == unit]
        tables.append(_points(unit, points, record["campaign"].get("repeats")))
    lead = [measured["problem"]] if measured["problem"] else []
    if not tables and not lead:
        has_begun = any(launch["measured"] for launch in record["launches"].values())
        lead = [
            "No world size of a ladder is measured yet."
            if has_begun
            else "Nothing is measured yet."
        ]
    return panel("expected", "Expected and measured", tables=tables, lead=lead)


def _points(unit: str, points: Sequence[Mapping[str, Any]], repeats: int | None) -> Table:
    """Return the table of points of one unit, without the step time if no point has it.

    `Launches` reads `2 of 3` where every point has at most `repeats` launches.
    """
    # Trainings with several seeds are also launches of one point.
    is_counted = repeats is not None and all(point["num_launches"] <= repeats for point in points)
    of_all = f" of {repeats}" if is_counted else ""
    names = {"step_s": "Step", "throughput": f"Throughput ({unit}/s)", "speedup": "Speed-up",
             "parallel_efficiency": "Efficiency (%)"}  # fmt: skip
    if all(point["step_s"] is None for point in points):
        del names["step_s"]
    rows = [
        [point["series"], str(point["world_size"]), f"{point['num_launches']}{of_all}",
         *(_format(name, point[name]) for name in names), _why_blocked(point)]
        for point in points
    ]  # fmt: skip
    columns = ["Series", "Ranks", "Launches", *names.values(), ""]
    return table("Measured so far", columns, rows, texts=1)


def _why_blocked(point: Mapping[str, Any]) -> str:
    """Return why a point has no ratios; empty if it may have them."""
    return evidence.blocked_text(point["blocked_by"]) if point["blocked_by"] else ""


def _format(quantity: str, value: float | None) -> str:
    if quantity == "parallel_efficiency":
        return percent(value)
    if quantity in ("step_s", "time_s"):
        return in_words(value)
    return ratio(value) if quantity == "speedup" else number(value)


def _pairs(facts: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[list[str]]:
    for key, name in names.items():
        if facts.get(key) not in (None, "", [], (), {}):
            yield [name, _plain(facts[key])]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_plain(each)}" for key, each in value.items())
    return listed(value) if isinstance(value, list | tuple) else str(value)


def _inventory(inventory: Mapping[str, Any] | None) -> list[Table]:
    if inventory is None:
        return []
    rows = [
        [row["partition"], f"{row['num_here']} of {row['num_nodes']}",
         f"{row['gpus_per_node']} x {row['gpu_type'] or 'GPU'}" if row["gpus_per_node"] else "none",
         str(row["cpus"]), number(row["memory_gib"]), shown(row["max_time"]),
         listed(row["features"])]
        for row in inventory["rows"]
    ]  # fmt: skip
    columns = ["Partition", "Nodes in use or free", "GPUs of a node", "CPUs", "Memory (GiB)",
               "Longest job", "Features"]  # fmt: skip
    version = f", Slurm {inventory['slurm']}" if inventory["slurm"] else ""
    return _table(f"{inventory['cluster']}{version}", columns, rows, 3)


# A checkbox stops the reload for a reader who needs more time. The refresh tag in the page's head
# is for browsers without scripts.
AGAIN = """
const box = Object.assign(document.createElement("input"), {{
  type: "checkbox", id: "again", checked: true,
}});
const label = document.createElement("label");
label.append(box, " Reload this page every {every_s} s");
document.querySelector("#as-of").append(" ", label);
const again = () => {{ if (box.checked) location.reload(); }};
setInterval(again, {every_s} * 1000);
"""
CHANGES_PATH = "/changes"
# A served page reloads when the server reports a change.
LISTEN = f'new EventSource("{CHANGES_PATH}").onmessage = again;'


def html(record: Mapping[str, Any], refresh_s: float | None, *, is_served: bool = False) -> str:
    """Return the page of a record.

    A browser reloads the page after `refresh_s`; with `is_served`, also after each change.
    """
    script = "" if refresh_s is None else AGAIN.format(every_s=round(refresh_s))
    script += LISTEN if is_served else ""
    return (
        environment()
        .get_template("status.html.j2")
        .render(
            title=f"{record['campaign'].get('name') or record['folder']}: status",
            summary=_summarize(record),
            warnings=list(_warnings(record)),
            sections=_sections(record),
            next=record["next"],
            monitor=record["monitor"],
            time=record["time"],
            refresh_s=None if refresh_s is None else round(refresh_s),
            style=own("report.css"),
            script=Markup(script),  # noqa: S704, since it is our own constant
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        )
    )
