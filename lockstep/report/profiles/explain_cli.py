"""The command `lockstep explain`: where the time of a profiled step goes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lockstep.core import files
from lockstep.core.formats import number
from lockstep.core.phases import Phases
from lockstep.measure.causes.bound import NAMES
from lockstep.report.profiles import roofline, step_shares
from lockstep.report.profiles import timeline as timelines
from lockstep.report.profiles.profiles import NCU, Profile, read
from lockstep.report.profiles.step_shares import MILLI, ROWS, ms, percent_cell

MOST_KERNELS = 8
CARD = "lockstep.explain"
SUMS = "nsys stats gives only sums; use nsys export --type sqlite for steps, overlap and idle time."


@click.command()
@click.argument("profiles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path),
              help="Second profile, to compare each phase with the first.")  # fmt: skip
@click.option("--timeline", type=click.Path(path_type=Path),
              help="Draw a step of each profile into this file (.svg, .pdf or .png).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    *, profiles: tuple[Path, ...], against: Path | None, timeline: Path | None, as_json: bool
) -> int:
    """Print where the time of a profiled step goes, one column per rank.

    PROFILES are traces of torch.profiler (.json, .json.gz), Nsight Systems (`nsys export --type
    sqlite`, `nsys stats --format csv`) or Nsight Compute (`ncu --csv --page raw`), and
    lockstep-explain.json, which lockstep.explain writes. A profiler slows the program, so trust
    its shares and not its times.

    \b
    Examples:
      lockstep explain traces/test_strong-w2-r0.json.gz traces/test_strong-w2-r1.json.gz
      lockstep explain one-node.sqlite --against two-nodes.sqlite
      lockstep explain one-node.sqlite --timeline step.svg
      lockstep explain trace.json lockstep-explain.json   profile beside lockstep.explain's result
      lockstep explain kernels.csv                        occupancy, bandwidth, roofline
    """
    every = [_read(path) for path in [*profiles, *([against] if against else [])]]
    columns = [(_title(profile), profile.phases) for profile in every if profile.phases]
    if against and len(columns) != 2:
        raise ValueError(
            "--against compares two profiles; give one as PROFILE and the other after --against"
        )
    if timeline:
        timelines.draw(every, timeline)
    if as_json:
        records = [_record(profile) for profile in every]
        click.echo(json.dumps({"schema": 1, "profiles": records}, indent=1))
        return 0
    profiled = [(_title(each), each.phases) for each in every if each.phases and each.tool != CARD]
    blocks = [_table(columns)] if columns else []
    if against:
        blocks.append(_differences(columns[0][1], columns[1][1]))
    elif profiled:
        blocks.append(step_shares.verdict(profiled))
    elif columns:
        blocks.append(["To see what changed, pass a second lockstep-explain.json with --against."])
    blocks += [[busy, SUMS] for each in every if (busy := step_shares.busy(each))]
    for profile in every:
        blocks += [_kernels(profile)] if profile.kernels else []
        blocks += [roofline.lines(profile)] if profile.tool == NCU else []
    blocks += [[f"timeline: {timeline}"]] if timeline else []
    click.echo("\n\n".join("\n".join(block) for block in blocks))
    return 0


def _read(path: Path) -> Profile:
    """Read a profile, or a card of `lockstep.explain`, whose other causes become parts."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, but lockstep explain reads a profile or lockstep-explain.json; "
            f"if it is a folder of results, run lockstep report {path} or lockstep check {path}"
        )
    if path.suffix != ".json" or b'"bound"' not in files.content(path)[:4096]:
        return read(path)
    try:
        bound = files.parse(files.content(path))["bound"]
        seconds = {share["cause"]: float(share["seconds"]) for share in bound["shares"]}
        step_s, compute_s = float(bound["step_s"]), float(bound["compute_s"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: the file is no valid lockstep-explain.json; key {error} is missing or wrong"
        ) from error
    exposed_s, input_s = (max(seconds.pop(cause, 0.0), 0.0) for cause in ("exposed", "input"))
    compute_s += sum(max(seconds.pop(cause, 0.0), 0.0) for cause in ("fixed", "ddp"))
    idle_s = max(step_s - compute_s - exposed_s - input_s, 0.0)
    parts = {NAMES[cause]: each_s for cause, each_s in seconds.items() if each_s > 0}
    phases = Phases(1, step_s, compute_s, exposed_s, 0.0, input_s, idle_s, 0.0, parts)
    return Profile(path, None, CARD, phases)


def _title(profile: Profile) -> str:
    is_card = profile.tool == CARD
    return f"card of {profile.path.name}" if is_card else step_shares.title(profile)


def _record(profile: Profile) -> dict[str, Any]:
    facts: dict[str, Any] = {"file": str(profile.path), "rank": profile.rank, "tool": profile.tool}
    if profile.phases:
        facts["phases"] = asdict(profile.phases) | {"overlap": profile.phases.overlap}
    if profile.busy_s:
        facts["busy_s"] = profile.busy_s
    return facts | {"kernels": [asdict(kernel) for kernel in profile.kernels]}


def _table(columns: Sequence[tuple[str, Phases]]) -> list[str]:
    width = max(18, *(len(title) + 2 for title, _ in columns))
    lines = [("", [title for title, _ in columns]), *step_shares.rows(columns)]
    return [f"{name:<32}" + "".join(f"{x:>{width}}" for x in texts) for name, texts in lines]


def _differences(first: Phases, second: Phases) -> list[str]:
    lines = ["time of each phase, first -> second profile:"]
    sides = [
        (title, getattr(first, name), getattr(second, name))
        for name, title in {"step_s": "step", **ROWS}.items()
    ]
    sides += [
        (f"of it {part}", first.parts.get(part, 0.0), second.parts.get(part, 0.0))
        for part in step_shares.parts([first, second])
    ]
    for title, before, after in sides:
        if before > 0 or after > 0:
            change = f"{number(after / before)}x" if before > 0 else "only there"
            lines.append(
                f"  {title:<30}{ms(before):>12} -> {ms(after):>9}  "
                f"{number((after - before) * MILLI):>8} ms  {change}"
            )
    end = (
        "Two profiles give no interval for the change in time; to get an interval, measure both "
        "versions and run lockstep compare."
    )
    return [*lines, end]


def _kernels(profile: Profile) -> list[str]:
    """Return the longest kernels, with the counters of Nsight Compute."""
    whole = sum(kernel.seconds for kernel in profile.kernels)
    lines = [
        f"kernels of {profile.path.name}, the longest first",
        f"{'share':>7}{'launches':>10}{'ms':>9}{'occupancy':>11}{'memory':>8}{'GB/s':>8}"
        f"{'compute':>9}{'FLOP/byte':>11}{'GFLOP/s':>9}  name",
    ]
    for kernel in profile.kernels[:MOST_KERNELS]:
        intensity = rate = traffic = None
        if kernel.num_bytes and kernel.seconds:
            traffic = kernel.num_bytes / kernel.seconds / 1e9
            if kernel.flop:
                intensity, rate = kernel.flop / kernel.num_bytes, kernel.flop / kernel.seconds / 1e9
        lines.append(
            f"{percent_cell(kernel.seconds / whole):>7}{kernel.count:>10}"
            f"{number(kernel.seconds * MILLI):>9}{percent_cell(kernel.occupancy):>11}"
            f"{percent_cell(kernel.memory):>8}{number(traffic):>8}{percent_cell(kernel.compute):>9}"
            f"{number(intensity):>11}{number(rate):>9}  {kernel.name[:60]}"
        )
    return lines
