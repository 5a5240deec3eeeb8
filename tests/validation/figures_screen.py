"""How often `lockstep screen` names what is slow, and how often what is not.

    python tests/validation/figures_screen.py [--draws 20] [--only simulated|testbed|links]

First simulated nodes; then real screenings of the testbed's four nodes, one of them with half of a
core, and of four network namespaces, one of them with half of the others' link; slowed and clean
ones in a random order. The real ones need root.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import parts  # noqa: E402, this script's own folder
import screened  # noqa: E402
from simulated_screens import Noise, Slow  # noqa: E402
from simulated_screens import screened as simulated  # noqa: E402

SEED = 18
NUM_CLEAN, NUM_SLOW = 2_000, 300
SIZES = (2, 3, 4, 8, 16)
NODES = tuple(f"node{i}" for i in range(1, screened.NUM_NODES + 1))


def of_simulated() -> None:
    """Print false alarms by the number of nodes, and what is found by how slow it is."""
    for num_nodes in SIZES:
        noise = Noise(Random(SEED))  # noqa: S311, no secret
        found = [simulated(num_nodes, 2, noise) for _ in range(NUM_CLEAN // len(SIZES))]
        alarms = sum(bool(one.findings) for one in found)
        print(f"simulated, {num_nodes} nodes of 2 ranks, clean: {alarms} of {len(found)} name any")
    for factor in (1.06, 1.1, 1.3):
        for kind, nodes, rank in (
            ("slow-node", ("n1",), None),
            ("slow-device", ("n1",), 3),
            ("slow-link", ("n1",), None),
        ):
            slow = Slow(kind, nodes, rank, factor)
            noise = Noise(Random(SEED))  # noqa: S311, no secret
            found = [simulated(8, 2, noise, slow) for _ in range(NUM_SLOW)]
            right = sum({f.row.nodes for f in one.findings} == {nodes} for one in found)
            print(f"simulated, 8 nodes, one {kind} {factor:g}: {right} of {len(found)} name it")


def of_real(what: str, screen: Callable[[int | None], screened.Ended], draws: int) -> int:
    """Print how real screenings end, slowed and clean ones in turn at random; return those lost."""
    order = Random(SEED)  # noqa: S311, no secret
    slowed = [i % screened.NUM_NODES for i in range(draws)]
    plan = order.sample([*slowed, *[None] * draws], 2 * draws)
    right = beside = alarms = lost = 0
    for number, slow in enumerate(plan):
        ended = parts.attempt(f"{number} {what}, slowed {slow}", partial(screen, slow))
        if ended is None:
            lost += 1
            continue
        names = {list(ended.lines)[slow]} if slow is not None else set()
        right += slow is not None and names <= set(ended.kinds)
        beside += slow is not None and bool(set(ended.kinds) - names)
        alarms += slow is None and bool(ended.kinds)
        print(f"  {number:>2} {what}, slowed {slow}: {ended.kinds}", flush=True)
    if lost:
        print(f"{what}: {lost} of {2 * draws} screenings were not measured, and count as not named")
    print(f"{what}, one slowed: named in {right} of {draws}, another beside it in {beside}")
    print(f"{what}, clean: anything named in {alarms} of {draws}")
    return lost


def main() -> int:
    """Print all that is asked for; return 1 where a screening could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--only", choices=["simulated", "testbed", "links"])
    asked = parser.parse_args()
    if asked.only in (None, "simulated"):
        of_simulated()
    lost = 0
    if asked.only in (None, "testbed"):
        lost += of_real(
            "testbed",
            lambda slow: screened.on_testbed(None if slow is None else NODES[slow]),
            asked.draws,
        )
    if asked.only in (None, "links"):
        lost += of_real("links", screened.over_links, asked.draws)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
