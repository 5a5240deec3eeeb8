"""What a fuzzed launch is to do wrong: plans, drawn at random and written down."""

import json
from dataclasses import asdict, dataclass
from random import Random

PHASES = ("set-up", "before", "after", "teardown")
# How often each is drawn.
KINDS = {
    "raise": 4,
    "skip": 4,
    "sleep": 2,
    "many": 2,
    "few": 2,
    "broadcast": 2,
    "shape": 1,
    "exit-0": 2,
    "exit-3": 2,
    "sys-exit": 2,
    "kill": 3,
    "stop": 2,
    "interrupt": 2,
    "store": 1,
}
# Where all ranks do these alike, nothing is wrong.
DIVERGENT = {"many", "few", "broadcast", "shape"}
# A rank that does these tells nobody, its launcher included.
SILENT = {"stop", "exit-0"}
# Within this a rank is to end, and do what it does between two cases.
END_S = 5.0
HEALTHY = 0.55
STUCK = 0.1


@dataclass(frozen=True)
class Fault:
    rank: int
    phase: str
    kind: str


Case = tuple[Fault, ...]


@dataclass(frozen=True)
class Plan:
    """One sequence.

    Attributes:
        world_size: Ranks.
        store: Who serves the store: a process `outside` the ranks, or `rank-0`.
        grace_s: How long after a rank's death its launcher ends the others.
        cases: The faults of each case, none of most.
        patience: What all time-outs are multiplied by, on a machine that does other things as well.
        stuck: Ranks that hang once their launch is over, in a hook at the end of the process.
    """

    world_size: int
    store: str
    grace_s: float
    cases: tuple[Case, ...]
    patience: float = 1.0
    stuck: tuple[int, ...] = ()

    @property
    def comm_timeout_s(self) -> float:
        return 0.7 * self.patience

    @property
    def case_budget_s(self) -> float:
        """Within this a case is to end."""
        return 1.8 * self.patience

    @property
    def end_s(self) -> float:
        """Within this a rank is to end, and do what it does between two cases."""
        return END_S * self.patience

    def to_json(self) -> str:
        """Return the plan as its cases read it."""
        return json.dumps(asdict(self))


def own_number(case: int, phase: str, rank: int) -> int:
    """Return what one rank gives to the sum of a phase: no two sums are alike."""
    return 1000 * (case + 1) + 100 * PHASES.index(phase) + rank + 1


def expected_number(case: int, phase: str, world_size: int) -> int:
    return sum(own_number(case, phase, rank) for rank in range(world_size))


def draw(random: Random, patience: float = 1.0) -> Plan:
    world_size = random.choice((2, 2, 3))
    store = random.choice(("outside", "outside", "rank-0"))
    num_cases = random.randint(3, 6)
    cases = tuple(_draw_case(random, world_size, store) for _ in range(num_cases))
    grace_s = round(random.random(), 2)
    stuck = random.sample(range(world_size), random.randint(1, world_size))
    stuck = sorted(stuck) if random.random() < STUCK else []
    return Plan(world_size, store, grace_s, cases, patience, tuple(stuck))


def _draw_case(random: Random, world_size: int, store: str) -> Case:
    if random.random() < HEALTHY:
        return ()
    ranks = random.sample(range(world_size), random.choice((1, 1, 1, 2, world_size)))
    phase, kind = random.choice(PHASES), _draw_kind(random)
    alike = random.random() < 0.7
    case = tuple(
        Fault(rank, phase, kind)
        if alike
        else Fault(rank, random.choice(PHASES), _draw_kind(random))
        for rank in sorted(ranks)
    )
    return _detectable(case, world_size, store)


def _draw_kind(random: Random) -> str:
    return random.choices(list(KINDS), list(KINDS.values()))[0]


def _detectable(case: Case, world_size: int, store: str) -> Case:
    """Return the case without what nobody could notice.

    Ranks that all diverge may agree again, frozen ranks with nobody beside them wait for ever
    under every launcher, and the store of rank 0 ends with rank 0 alone.
    """
    case = tuple(fault for fault in case if fault.kind != "store" or store == "outside")
    if len(case) == world_size and {fault.kind for fault in case} <= DIVERGENT:
        case = case[1:]
    if len(case) == world_size and {fault.kind for fault in case} <= SILENT:
        case = tuple(fault for fault in case if fault.kind != "stop")
    return case
