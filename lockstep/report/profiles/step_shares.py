"""Where the time of profiled steps goes, as the rows that the terminal and the page show."""

from collections.abc import Iterator, Sequence

from lockstep.core.formats import counted, number, percent
from lockstep.core.phases import BUCKET, Phases
from lockstep.measure.causes.bound import BOUND, LITTLE, NAMES
from lockstep.measure.causes.card import KINDS
from lockstep.report.profiles.profiles import Profile

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
MOST_BUCKETS = 8
UNKNOWN = "-"
Titled = tuple[str, Phases]  # a column


def title(profile: Profile) -> str:
    """Return the heading of a column: its rank, or else the file."""
    return profile.path.name if profile.rank is None else f"rank {profile.rank}"


def rows(columns: Sequence[Titled]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each row, and its cell in each column."""
    every = [each for _, each in columns]
    yield "step", [ms(each.step_s) for each in every]
    for name, what in ROWS.items():
        if any(getattr(each, name) > 0 for each in every):
            yield f"  {what}", [_share(getattr(each, name), each) for each in every]
    if any(each.overlap is not None for each in every):
        yield "communication hidden", [percent_cell(each.overlap) for each in every]
    for part in parts(every):
        yield f"of it {part}", [_share(each.parts.get(part), each) for each in every]


def parts(columns: Sequence[Phases]) -> list[str]:
    """Return the names of all parts, but only of the first buckets; JSON has every bucket."""
    names = list(dict.fromkeys(part for each in columns for part in each.parts))
    numbers = sorted(int(name.removeprefix(BUCKET)) for name in names if name.startswith(BUCKET))
    others = [name for name in names if not name.startswith(BUCKET)]
    return [*others, *(f"{BUCKET}{number}" for number in numbers[:MOST_BUCKETS])]


def verdict(columns: Sequence[Titled]) -> list[str]:
    """Return the bottleneck of the slowest column's step, and what to try."""
    profile, each = max(columns, key=lambda column: column[1].step_s)
    name = max(BOUNDS, key=lambda field: getattr(each, field))
    share = getattr(each, name) / each.step_s
    if share < LITTLE:
        kept = percent(each.compute_s / each.step_s)
        return [
            f"Little time is lost: {kept} % of a step of {ms(each.step_s)} is compute ({profile})."
        ]
    kind, todo = BOUNDS[name]
    bottleneck = f"Most time is lost to {kind}"
    if share >= BOUND:
        bottleneck = f"{kind.capitalize()}-bound"
    steps, phase = counted(each.num_steps, "step"), ROWS[name]
    trust = (
        f"the profiler slowed these {steps}, and the numbers have no interval; lockstep.explain "
        "gives an interval"
    )
    return [
        f"{bottleneck}: {percent(share)} % of a step of {ms(each.step_s)} is {phase} ({profile}).",
        f"next      {todo}",
        f"trust     {trust}",
    ]


def busy(profile: Profile) -> str:
    """Return the shares of a file that has only sums; empty for any other."""
    whole = sum(profile.busy_s.values())
    kinds = profile.busy_s.items()
    shares = ", ".join(f"{name} {percent(seconds / whole)} %" for name, seconds in kinds)
    return f"{profile.path.name}: the device was busy for {ms(whole)}: {shares}." if whole else ""


def percent_cell(share: float | None) -> str:
    """Return a share in per cent as a cell."""
    return UNKNOWN if share is None else f"{percent(share)} %"


def ms(seconds: float) -> str:
    """Return a time in milliseconds as a cell."""
    return f"{number(seconds, scale=MILLI)} ms"


def _share(seconds: float | None, each: Phases) -> str:
    return UNKNOWN if seconds is None else f"{ms(seconds)} {percent(seconds / each.step_s):>5} %"
