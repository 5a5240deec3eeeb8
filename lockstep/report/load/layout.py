"""What a launch's ranks were given: nodes, ranks on each, threads, cores, NCCL's variables.

Launches of one case at one world size are repeats of one point only where they agree in this. The
nodes and the ranks on each always count; a setting counts where it differs at one world size, since
between world sizes some differ by design, and `lockstep.report.check` speaks of those. A setting
that is kept over world sizes makes ladders, see `ladders`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.formats import counted
from lockstep.report.load.results import Row

PREFIX = "NCCL_"
# Variables that name a launch's own files or meeting place, not what it measures.
OWN = ("NCCL_COMM_ID", "NCCL_HOSTID")
OWN_ENDING = "_FILE"


@dataclass(frozen=True)
class Layout:
    """Where the ranks of a point were placed, and what else parts it from others of its size.

    Attributes:
        ranks_per_node: Most ranks on one host; None where nobody says.
        settings: (name, value) of what differs between launches of this case and world size.
    """

    num_nodes: int | None = None
    ranks_per_node: int | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Nodes and settings, for a reader; empty where nothing is known."""
        nodes = [f"on {counted(self.num_nodes, 'node')}"] if self.num_nodes else []
        return ", ".join([*nodes, *map(_setting, self.settings)])


def _setting(given: tuple[str, str]) -> str:
    return "=".join(given) if given[1] else f"{given[0]} not set"


def ranks_per_node(world_size: int, num_nodes: int, hosts: Iterable[str]) -> int:
    """Return the most ranks on one node; where not all have a host, as if spread evenly."""
    counts = Counter(hosts)
    if len(counts) == num_nodes and counts.total() == world_size:
        return max(counts.values())
    return -(-world_size // num_nodes)


def settings(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return what a launch gave its ranks beside nodes, by the name of each setting."""
    variables = provenance.get("environment") or {}
    found = {
        name: str(value) for name, value in variables.items()
        if name.startswith(PREFIX) and name not in OWN and not name.endswith(OWN_ENDING)
    }  # fmt: skip
    ranks = provenance.get("ranks") or []
    cores = {len(rank["cores"]) for rank in ranks if isinstance(rank.get("cores"), list)}
    found["threads_per_rank"] = str(provenance.get("threads_per_rank") or "")
    found["cores_per_rank"] = " or ".join(map(str, sorted(cores)))
    return {name: value for name, value in found.items() if value}


def differing(rows: Sequence[Row]) -> list[str]:
    """Return the settings in which rows differ, those first that come first in their launches."""
    # Rows of one launch share one dict.
    distinct = list({id(row.settings): row.settings for row in rows}.values())
    if len(distinct) == 1:
        return []
    names = dict.fromkeys(name for one in distinct for name in one)
    return [name for name in names if len({one.get(name) for one in distinct}) > 1]


def layout(row: Row, names: Iterable[str] = ()) -> Layout:
    """Return a row's layout, with the settings named."""
    chosen = tuple((name, row.settings.get(name, "")) for name in names)
    return Layout(row.num_nodes, row.ranks_per_node, chosen)


def ladders(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of a case by what tells their ladder from the main one; that comes first.

    The main ladder has the most sizes, then the most launches. A setting makes ladders where it
    differs at one world size and has no other values elsewhere: what differs from size to size by
    design, such as the cores of a rank, is no ladder's.
    """
    names = []
    for name in differing(rows):
        values: dict[int, set[str]] = {}
        for row in rows:
            values.setdefault(row.world_size, set()).add(row.settings.get(name, ""))
        several = set().union(*(own for own in values.values() if len(own) > 1))
        if several and several == set().union(*values.values()):
            names.append(name)
    found: dict[Layout, list[Row]] = {}
    for row in rows:
        found.setdefault(Layout(settings=layout(row, names).settings), []).append(row)
    sizes = {ladder: len({row.world_size for row in own}) for ladder, own in found.items()}
    main, *others = sorted(found, key=lambda one: (-sizes[one], -len(found[one]), one.settings))
    return {"": found[main]} | {suffix(other, main): found[other] for other in others}


def split_by_layout(rows: Sequence[Row]) -> dict[Layout, list[Row]]:
    """Return the points that rows of one case and world size are, by their layout."""
    names = differing(rows)
    found: dict[Layout, list[Row]] = {}
    for row in rows:
        found.setdefault(layout(row, names), []).append(row)
    return found


def densest(layouts: Collection[Layout], rows: Sequence[Row]) -> Layout:
    """Return the layout of the main series: fewest nodes, then what most launches were given."""
    if len(layouts) == 1:
        return next(iter(layouts))
    uses = Counter(item for row in rows for item in row.settings.items())

    def order(one: Layout) -> tuple[Any, ...]:
        common = sum(uses[item] for item in one.settings)
        return (one.num_nodes or 0, one.ranks_per_node or 0, -common, one.settings)

    return min(layouts, key=order)


def suffix(one: Layout, main: Layout) -> str:
    """Return what tells a layout from the main one of its size, for a series' label."""
    parts = [_setting(given) for given in one.settings if given not in main.settings]
    if (one.num_nodes, one.ranks_per_node) != (main.num_nodes, main.ranks_per_node):
        per_node = one.ranks_per_node
        parts.insert(0, f"{counted(per_node, 'rank')} per node" if per_node else one.text)
    return ", ".join(parts)
