"""The command `lockstep explain`: where the time of a profiled step goes."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lockstep.core import files
from lockstep.core.formats import counted, number, percent
from lockstep.core.phases import BUCKET, Phases
from lockstep.measure.causes.bound import BOUND, LITTLE, NAMES
from lockstep.measure.causes.card import KINDS
from lockstep.report.profiles import roofline
from lockstep.report.profiles.profiles import NCU, Profile, read

MILLI = 1e3
# Field of Phases -> its name, as on the card of `lockstep.explain`.
ROWS = {
    "compute_s": "compute", "exposed_s": NAMES["exposed"],
    "copy_s": "copies to and from the device", "input_s": NAMES["input"],
    "idle_s": "idle time",
}  # fmt: skip
# Field of Phases -> the bottleneck if it is the largest loss, and what to try.
BOUNDS = {
    "exposed_s": (KINDS["communication"], "use a larger batch per rank, or another bucket_cap_mb"),
    "copy_s": (
        "copies",
        "use pin_memory=True and non_blocking=True, or keep the data on the device",
    ),
    "input_s": (
        KINDS["input"],
        "use more workers: DataLoader(num_workers=N, persistent_workers=True)",
    ),
    "idle_s": ("idle time", "use torch.compile or a CUDA graph; avoid .item() and print in a step"),
}
MOST_KERNELS = MOST_BUCKETS = 8
CARD = "lockstep.explain"


@click.command()
@click.argument("profiles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path),
              help="Second profile, to compare each phase with the first.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(*, profiles: tuple[Path, ...], against: Path | None, as_json: bool) -> int:
    """Print where the time of a profiled step goes, one column per rank.

    PROFILES are traces of torch.profiler (.json, .json.gz), Nsight Systems (`nsys export --type
    sqlite`, `nsys stats --format csv`) or Nsight Compute (`ncu --csv --page raw`), and
    lockstep-explain.json, which lockstep.explain writes. A profiler slows what it sees: use its
    shares, not its times.

    \b
    Examples:
      lockstep explain traces/test_strong-w2-r0.json.gz traces/test_strong-w2-r1.json.gz
      lockstep explain one-node.sqlite --against two-nodes.sqlite
      lockstep explain trace.json lockstep-explain.json   profile and card, side by side
      lockstep explain kernels.csv                        occupancy, bandwidth, roofline
    """
    every = [_read(path) for path in [*profiles, *([against] if against else [])]]
    columns = [(_title(profile), profile.phases) for profile in every if profile.phases]
    if against and len(columns) != 2:
        raise ValueError(
            "--against compares two profiles of steps; give one PROFILE and one after --against"
        )
    if as_json:
        records = [_record(profile) for profile in every]
        click.echo(json.dumps({"schema": 1, "profiles": records}, indent=1))
        return 0
    profiled = [(_title(each), each.phases) for each in every if each.phases and each.tool != CARD]
    blocks = [_table(columns)] if columns else []
    if against:
        blocks.append(_differences(columns[0][1], columns[1][1]))
    elif profiled:
        blocks.append(_verdict(profiled))
    elif columns:
        blocks.append(["Pass --against CARD to see what changed between two cards."])
    for profile in every:
        if whole := sum(profile.busy_s.values()):
            busy = profile.busy_s.items()
            shares = ", ".join(f"{name} {percent(seconds / whole)} %" for name, seconds in busy)
            blocks.append([
                f"{profile.path.name}: the device was busy for {_ms(whole)}: {shares}.",
                "nsys stats gives only sums; use nsys export --type sqlite for steps, overlap and "
                "idle time.",
            ])  # fmt: skip
    for profile in every:
        blocks += [_kernels(profile)] if profile.kernels else []
        blocks += [roofline.lines(profile)] if profile.tool == NCU else []
    click.echo("\n\n".join("\n".join(block) for block in blocks))
    return 0


def _read(path: Path) -> Profile:
    """Read a profile, or a card of `lockstep.explain`, whose other causes become parts."""
    if path.suffix != ".json" or b'"bound"' not in files.content(path)[:4096]:
        return read(path)
    try:
        bound = files.parse(files.content(path))["bound"]
        seconds = {share["cause"]: float(share["seconds"]) for share in bound["shares"]}
        step_s, compute_s = float(bound["step_s"]), float(bound["compute_s"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: this is no record of lockstep.explain: {error} is missing"
        ) from error
    exposed_s, input_s = (max(seconds.pop(cause, 0.0), 0.0) for cause in ("exposed", "input"))
    compute_s += sum(max(seconds.pop(cause, 0.0), 0.0) for cause in ("fixed", "ddp"))
    idle_s = max(step_s - compute_s - exposed_s - input_s, 0.0)
    parts = {NAMES[cause]: each_s for cause, each_s in seconds.items() if each_s > 0}
    phases = Phases(1, step_s, compute_s, exposed_s, 0.0, input_s, idle_s, 0.0, parts)
    return Profile(path, None, CARD, phases)


def _title(profile: Profile) -> str:
    if profile.tool == CARD:
        return f"card of {profile.path.name}"
    return profile.path.name if profile.rank is None else f"rank {profile.rank}"


def _record(profile: Profile) -> dict[str, Any]:
    facts: dict[str, Any] = {"file": str(profile.path), "rank": profile.rank, "tool": profile.tool}
    if profile.phases:
        facts["phases"] = asdict(profile.phases) | {"overlap": profile.phases.overlap}
    if profile.busy_s:
        facts["busy_s"] = profile.busy_s
    return facts | {"kernels": [asdict(kernel) for kernel in profile.kernels]}


def _table(columns: Sequence[tuple[str, Phases]]) -> list[str]:
    width = max(18, *(len(title) + 2 for title, _ in columns))
    lines = [f"{'':<32}" + "".join(f"{title:>{width}}" for title, _ in columns)]

    def row(name: str, texts: Sequence[str]) -> None:
        lines.append(f"{name:<32}" + "".join(f"{text:>{width}}" for text in texts))

    row("step", [_ms(each.step_s) for _, each in columns])
    for name, title in ROWS.items():
        texts = [_share(getattr(each, name), each) for _, each in columns]
        if any(getattr(each, name) > 0 for _, each in columns):
            row(f"  {title}", texts)
    if any(each.overlap is not None for _, each in columns):
        row("communication hidden", [_percent(each.overlap) for _, each in columns])
    for part in _parts([each for _, each in columns]):
        row(f"of it {part}", [_share(each.parts.get(part), each) for _, each in columns])
    return lines


def _parts(columns: Sequence[Phases]) -> list[str]:
    """Return the names of all parts, but only of the first buckets; JSON has every bucket."""
    names = list(dict.fromkeys(part for each in columns for part in each.parts))
    numbers = sorted(int(name.removeprefix(BUCKET)) for name in names if name.startswith(BUCKET))
    others = [name for name in names if not name.startswith(BUCKET)]
    return [*others, *(f"{BUCKET}{number}" for number in numbers[:MOST_BUCKETS])]


def _share(seconds: float | None, each: Phases) -> str:
    return "-" if seconds is None else f"{_ms(seconds)} {percent(seconds / each.step_s):>5} %"


def _verdict(columns: Sequence[tuple[str, Phases]]) -> list[str]:
    """Return the bottleneck of the slowest column's step, and what to try."""
    title, each = max(columns, key=lambda column: column[1].step_s)
    name = max(BOUNDS, key=lambda field: getattr(each, field))
    share = getattr(each, name) / each.step_s
    if share < LITTLE:
        kept = percent(each.compute_s / each.step_s)
        return [f"Little is lost: {kept} % of a step of {_ms(each.step_s)} is compute ({title})."]
    kind, todo = BOUNDS[name]
    start = f"{kind.capitalize()}-bound" if share >= BOUND else f"Most time is lost to {kind}"
    steps = counted(each.num_steps, "step")
    return [
        f"{start}: {percent(share)} % of a step of {_ms(each.step_s)} is {ROWS[name]} ({title}).",
        f"next      {todo}",
        f"trust     this is from {steps}, slowed by the profiler, and has no interval; "
        "lockstep.explain gives one",
    ]


def _differences(first: Phases, second: Phases) -> list[str]:
    lines = ["each phase, first -> second profile:"]
    sides = [
        (title, getattr(first, name), getattr(second, name))
        for name, title in {"step_s": "step", **ROWS}.items()
    ]
    sides += [
        (f"of it {part}", first.parts.get(part, 0.0), second.parts.get(part, 0.0))
        for part in _parts([first, second])
    ]
    for title, before, after in sides:
        if before > 0 or after > 0:
            change = f"{number(after / before)}x" if before > 0 else "only there"
            lines.append(
                f"  {title:<30}{_ms(before):>12} -> {_ms(after):>9}  "
                f"{number((after - before) * MILLI):>8} ms  {change}"
            )
    end = "One launch per side gives no interval; use lockstep compare of two ladders to get one."
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
            f"{_percent(kernel.seconds / whole):>7}{kernel.count:>10}"
            f"{number(kernel.seconds * MILLI):>9}{_percent(kernel.occupancy):>11}"
            f"{_percent(kernel.memory):>8}{number(traffic):>8}{_percent(kernel.compute):>9}"
            f"{number(intensity):>11}{number(rate):>9}  {kernel.name[:60]}"
        )
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{percent(share)} %"


def _ms(seconds: float) -> str:
    return f"{number(seconds, scale=MILLI)} ms"
