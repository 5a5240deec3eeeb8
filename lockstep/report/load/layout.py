"""Where a launch's ranks are placed, and their settings: threads, cores, NCCL variables.

Launches of one case and world size are repeats of one point only if they agree in these.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.formats import counted
from lockstep.report.load.results import Row

# NCCL variables that do not change what is measured: addresses, and names of files.
ADDRESSES = ("NCCL_COMM_ID", "NCCL_HOSTID")


@dataclass(frozen=True)
class Layout:
    """Placement of ranks, and the settings (name, value) in which launches of one size differ."""

    num_nodes: int | None = None
    ranks_per_node: int | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Nodes and settings in words."""
        nodes = [f"on {counted(self.num_nodes, 'node')}"] if self.num_nodes else []
        return ", ".join([*nodes, *map(_setting, self.settings)])


def _setting(setting: tuple[str, str]) -> str:
    return "=".join(setting) if setting[1] else f"{setting[0]} not set"


def ranks_per_node(world_size: int, num_nodes: int, hosts: Iterable[str]) -> int:
    """Return the largest number of ranks on a node; without hosts, as if spread evenly."""
    if num_nodes == 1:
        return world_size
    counts = Counter(hosts)
    if len(counts) == num_nodes and counts.total() == world_size:
        return max(counts.values())
    return -(-world_size // num_nodes)


def settings(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the NCCL variables, threads and cores of a launch's ranks, by name."""
    known = {
        name: str(value) for name, value in (provenance.get("environment") or {}).items()
        if name.startswith("NCCL_") and name not in ADDRESSES and not name.endswith("_FILE")
    }  # fmt: skip
    ranks = provenance.get("ranks") or []
    cores = {len(rank["cores"]) for rank in ranks if isinstance(rank.get("cores"), list)}
    known["threads_per_rank"] = str(provenance.get("threads_per_rank") or "")
    known["cores_per_rank"] = " or ".join(map(str, sorted(cores)))
    return {name: value for name, value in known.items() if value}


def list_differing(rows: Sequence[Row]) -> list[str]:
    """Return the settings in which rows differ, in the launches' order."""
    # Rows of one launch share one dict.
    distinct = list({id(row.settings): row.settings for row in rows}.values())
    if all(each == distinct[0] for each in distinct):
        return []
    names = dict.fromkeys(name for settings in distinct for name in settings)
    return [name for name in names if len({each.get(name) for each in distinct}) > 1]


def layout(row: Row, names: Iterable[str] = ()) -> Layout:
    """Return the layout of a row, with the named settings."""
    chosen = tuple((name, row.settings.get(name, "")) for name in names)
    return Layout(row.num_nodes, row.ranks_per_node, chosen)


def ladders(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the ladders of a case by their label; the main one, labelled "", is first.

    The main ladder has the most sizes, then the most launches. A setting splits a case into
    ladders if it differs at one world size and has no other values elsewhere. A setting that
    changes with the size by design, such as the cores of a rank, does not.
    """
    names = []
    for name in list_differing(rows):
        values: dict[int, set[str]] = {}
        for row in rows:
            values.setdefault(row.world_size, set()).add(row.settings.get(name, ""))
        several = set().union(*(own for own in values.values() if len(own) > 1))
        if several and several == set().union(*values.values()):
            names.append(name)
    if not names:
        return {"": list(rows)}
    groups: dict[Layout, list[Row]] = {}
    for row in rows:
        groups.setdefault(Layout(settings=layout(row, names).settings), []).append(row)

    def order(ladder: Layout) -> tuple[Any, ...]:
        own = groups[ladder]
        return -len({row.world_size for row in own}), -len(own), ladder.settings

    main, *others = sorted(groups, key=order)
    return {"": groups[main]} | {suffix(other, main): groups[other] for other in others}


def layouts(rows: Sequence[Row]) -> dict[str, list[tuple[int, list[Row]]]]:
    """Return label -> (world size, rows) of each point of a ladder.

    The label "" holds the densest layout of each size: fewest nodes, then the settings that most
    launches have.
    """
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row.world_size, []).append(row)
    uses: Counter[tuple[str, str]] = Counter()
    points: dict[str, list[tuple[int, list[Row]]]] = {"": []}
    for size in sorted(sizes):
        if len(sizes[size]) == 1:
            points[""].append((size, sizes[size]))
            continue
        names = list_differing(sizes[size])
        groups: dict[Layout, list[Row]] = {}
        for row in sizes[size]:
            groups.setdefault(layout(row, names), []).append(row)
        if len(groups) > 1 and not uses:
            uses.update(item for row in rows for item in row.settings.items())

        def order(placed: Layout) -> tuple[Any, ...]:
            common = sum(uses[setting] for setting in placed.settings)
            return placed.num_nodes or 0, placed.ranks_per_node or 0, -common, placed.settings

        densest = min(groups, key=order)
        for placed, own in groups.items():
            points.setdefault(suffix(placed, densest), []).append((size, own))
    return points


def suffix(layout: Layout, main: Layout) -> str:
    """Return the label of a layout: how it differs from the main one of its size."""
    parts = [_setting(pair) for pair in layout.settings if pair not in main.settings]
    if (layout.num_nodes, layout.ranks_per_node) != (main.num_nodes, main.ranks_per_node):
        per_node = layout.ranks_per_node
        parts.insert(0, f"{counted(per_node, 'rank')} per node" if per_node else layout.text)
    return ", ".join(parts)
