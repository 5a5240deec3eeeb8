"""`lockstep explain`: where the time of a profiled step goes, in the words of the card."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lockstep.core import files
from lockstep.core.formats import counted, number, percent
from lockstep.core.phases import Phases
from lockstep.measure.causes.bound import BOUND, LITTLE, NAMES
from lockstep.measure.causes.card import KINDS
from lockstep.report.profiles.profiles import Kernel, Profile, read

MILLI = 1e3
# Field of Phases -> its name, as the card has it where it has it.
ROWS = {
    "compute_s": "compute",
    "exposed_s": NAMES["exposed"],
    "copy_s": "copies to and from the device",
    "input_s": NAMES["input"],
    "idle_s": "nothing of these ran",
}
# What bounds a step whose largest loss this is, and what to try.
BOUNDS = {
    "exposed_s": (KINDS["communication"], "a larger batch a rank, or another bucket_cap_mb in DDP"),
    "copy_s": ("copies", "pin_memory=True and non_blocking=True, or keep the data on the device"),
    "input_s": (KINDS["input"], "more workers: DataLoader(num_workers=N, persistent_workers=True)"),
    "idle_s": (
        "idle time",
        "torch.compile or a CUDA graph; no .item() or print in a step",
    ),
}
MOST_KERNELS = 8
CARD = "lockstep.explain"


@click.command()
@click.argument("profiles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    help="A second profile: each phase is compared with it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def explain(*, profiles: tuple[Path, ...], against: Path | None, as_json: bool) -> int:
    """Say where the time of a profiled step goes, one column a rank.

    PROFILES are traces of torch.profiler (.json, .json.gz), Nsight Systems (`nsys export --type
    sqlite`, `nsys stats --format csv`) or Nsight Compute (`ncu --csv`), and lockstep-explain.json,
    which lockstep.explain writes. A profiler slows what it sees: use its shares, not its times.

    \b
    Examples:
      lockstep explain traces/test_strong-w2-r0.json.gz traces/test_strong-w2-r1.json.gz
      lockstep explain one-node.sqlite --against two-nodes.sqlite
      lockstep explain trace.json lockstep-explain.json   profile and card, side by side
    """
    read_files = [_read(path) for path in [*profiles, *([against] if against else [])]]
    columns = [(_title(one), one.phases) for one in read_files if one.phases]
    if against and len(columns) != 2:
        raise ValueError("--against compares two profiles of steps; give one file and --against")
    if as_json:
        records = [_record(one) for one in read_files]
        click.echo(json.dumps({"schema": 1, "profiles": records}, indent=1))
        return 0
    profiled = [(_title(one), one.phases) for one in read_files if one.phases and one.tool != CARD]
    blocks = [_table(columns)] if columns else []
    if against:
        blocks.append(_differences(columns[0][1], columns[1][1]))
    elif profiled:
        blocks.append(_sentences(profiled))
    elif columns:
        blocks.append(["--against shows what changed between two cards."])
    blocks += [_sums(one) for one in read_files if one.busy_s]
    blocks += [_kernels(one) for one in read_files if one.kernels]
    click.echo("\n\n".join("\n".join(block) for block in blocks if block))
    return 0


def _read(path: Path) -> Profile:
    """Read a profile, or the card that `lockstep.explain` keeps."""
    if path.suffix == ".json" and b'"bound"' in files.content(path)[:4096]:
        return Profile(path, None, CARD, _phases_of_card(path))
    return read(path)


def _phases_of_card(path: Path) -> Phases:
    """Return what `lockstep.explain` measured, as phases; causes without one are parts."""
    try:
        bound = files.parse(files.content(path))["bound"]
        seconds = {one["cause"]: float(one["seconds"]) for one in bound["shares"]}
        step_s, compute_s = float(bound["step_s"]), float(bound["compute_s"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: no record of lockstep.explain: {error} is missing") from error
    exposed_s, input_s = (max(seconds.pop(cause, 0.0), 0.0) for cause in ("exposed", "input"))
    compute_s += sum(max(seconds.pop(cause, 0.0), 0.0) for cause in ("fixed", "ddp"))
    idle_s = max(step_s - compute_s - exposed_s - input_s, 0.0)
    parts = {NAMES[cause]: each_s for cause, each_s in seconds.items() if each_s > 0}
    return Phases(1, step_s, compute_s, exposed_s, 0.0, input_s, idle_s, 0.0, parts)


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
        row("communication hidden", [_overlap(each) for _, each in columns])
    for part in dict.fromkeys(part for _, each in columns for part in each.parts):
        row(f"of it {part}", [_share(each.parts.get(part), each) for _, each in columns])
    return lines


def _overlap(each: Phases) -> str:
    return "-" if each.overlap is None else f"{percent(each.overlap)} %"


def _share(seconds: float | None, each: Phases) -> str:
    return "-" if seconds is None else f"{_ms(seconds)} {percent(seconds / each.step_s):>5} %"


def _sentences(columns: Sequence[tuple[str, Phases]]) -> list[str]:
    """Say what takes most of the slowest column's step, and what to try."""
    title, each = max(columns, key=lambda column: column[1].step_s)
    name = max(BOUNDS, key=lambda one: getattr(each, one))
    share = getattr(each, name) / each.step_s
    if share < LITTLE:
        kept = percent(each.compute_s / each.step_s)
        return [f"Little is lost: {kept} % of a step of {_ms(each.step_s)} computes ({title})."]
    kind, todo = BOUNDS[name]
    start = f"{kind.capitalize()}-bound" if share >= BOUND else f"Loses most to {kind}"
    steps = counted(each.num_steps, "step")
    return [
        f"{start}: {percent(share)} % of a step of {_ms(each.step_s)} is {ROWS[name]} ({title}).",
        f"next      {todo}",
        f"trust     {steps} under a profiler, which slows them, without an interval; "
        "lockstep.explain measures the same with one",
    ]


def _differences(first: Phases, second: Phases) -> list[str]:
    lines = ["phase by phase, the second over the first:"]
    for name, title in {"step_s": "step", **ROWS}.items():
        before, after = getattr(first, name), getattr(second, name)
        if before > 0 or after > 0:
            change = f"{number(after / before)}x" if before > 0 else "only there"
            lines.append(
                f"  {title:<30}{_ms(before):>12} -> {_ms(after):>9}  "
                f"{number((after - before) * MILLI):>8} ms  {change}"
            )
    return [
        *lines,
        "One launch a side has no interval; lockstep compare of two ladders has one.",
    ]


def _sums(profile: Profile) -> list[str]:
    whole = sum(profile.busy_s.values())
    shares = ", ".join(
        f"{name} {percent(seconds / whole)} %" for name, seconds in profile.busy_s.items()
    )
    return [
        f"{profile.path.name}: of {_ms(whole)} that the device was busy: {shares}.",
        "nsys stats has sums alone; nsys export --type sqlite has steps, overlap and idle time.",
    ]


def _kernels(profile: Profile) -> list[str]:
    """Return the longest kernels, with what Nsight Compute counted of each."""
    whole = sum(kernel.seconds for kernel in profile.kernels)
    lines = [
        f"kernels of {profile.path.name}, the longest first",
        f"{'share':>7}{'launches':>10}{'ms':>9}{'occupancy':>11}{'memory':>8}{'compute':>9}"
        f"{'FLOP/byte':>11}{'GFLOP/s':>9}  name",
    ]
    for kernel in profile.kernels[:MOST_KERNELS]:
        shares = [_percent(kernel.occupancy), _percent(kernel.memory), _percent(kernel.compute)]
        intensity, rate = _roofline(kernel)
        lines.append(
            f"{_percent(kernel.seconds / whole):>7}{kernel.count:>10}"
            f"{number(kernel.seconds * MILLI):>9}{shares[0]:>11}{shares[1]:>8}{shares[2]:>9}"
            f"{number(intensity):>11}{number(rate):>9}  {kernel.name[:60]}"
        )
    return lines


def _roofline(kernel: Kernel) -> tuple[float | None, float | None]:
    """Return FLOP per byte of device memory and 10^9 FLOP/s, where both were counted."""
    if not kernel.flop or not kernel.num_bytes or not kernel.seconds:
        return None, None
    return kernel.flop / kernel.num_bytes, kernel.flop / kernel.seconds / 1e9


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{percent(share)} %"


def _ms(seconds: float) -> str:
    return f"{number(seconds, scale=MILLI)} ms"
