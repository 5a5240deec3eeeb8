"""Launches of ranks that misbehave, forked by the server of the tests (fork_server.py).

A rank then costs tenths of a second, so that thousands of launches can be made. The supervisor ends
the other ranks soon after one has died, as torchrun and srun do, and starts the launch again as
`lockstep.campaign.ladder` does.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence as Many
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import launched  # noqa: E402, since the paths above make it known
from fuzz_ranks_plan import Plan  # noqa: E402

from lockstep.core import journal  # noqa: E402

CASES = ROOT / "tests" / "samples" / "fuzzed_cases.py"
KILL_AFTER_S = 0.5  # between SIGTERM and SIGKILL; the launchers' own 30 s would only take longer
LIMIT_S = 60.0  # times the plan's patience; no launch ever takes so long: it hangs
LEFT_S = 2.0  # so long what was killed may still end
POLL_S = 0.01
MAX_IDLE_LAUNCHES = 3
MAX_UNMET_LAUNCHES = 12
PYTEST_OPTIONS = (
    *("--size=smoke", "--rounds=1", "--warmup-rounds=0", "--steps-per-round=1", "--device=cpu"),
    *("--threads-per-rank=1", "--benchmark-json=out.json", "--resume", "--assert=plain"),
    "--benchmark-quiet",
    # These look for what other tests need, and cost more than the launch.
    *("-p", "no:hypothesispytest", "-p", "no:unraisableexception", "-p", "no:threadexception"),
)


@dataclass(frozen=True)
class Ended:
    """How a rank ended.

    Attributes:
        rank: Which one.
        code: Its exit code, or minus the signal that ended it.
        is_ours: Whether the supervisor had told it to.
    """

    rank: int
    code: int
    is_ours: bool

    def __str__(self) -> str:
        if self.code < 0:
            return f"rank {self.rank} was ended by {signal.Signals(-self.code).name}"
        return f"rank {self.rank} ended with code {self.code}"


@dataclass(frozen=True)
class Launched:
    """One launch of a sequence.

    Attributes:
        ranks: How they ended, in that order.
        seconds: From the start to the end of the last.
        has_met: Whether its ranks met, which is when they write the first line.
        num_ended: Cases that ended in it, whatever that end.
        num_failed: Those of them that failed.
        is_hung: Whether it had to be ended at its limit.
        num_left: Processes that outlived their ranks.
    """

    ranks: list[Ended]
    seconds: float
    has_met: bool
    num_ended: int
    num_failed: int
    is_hung: bool
    num_left: int


@dataclass
class Sequence:
    """A plan in a folder, and what became of its launches."""

    plan: Plan
    folder: Path
    launches: list[Launched] = field(default_factory=list)

    @property
    def num_unmet(self) -> int:
        """Launches whose ranks did not meet in time, as on a machine that is too slow for them."""
        return sum(not one.has_met for one in self.launches)


def run(plan: Plan, folder: Path) -> Sequence:
    """Make the launches of a plan: again with what failed left out, while that brings more."""
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    sequence = Sequence(plan, folder)
    words, idle, address, pid = "", 0, "", 0
    with launched.started(folder) as started, ExitStack() as stores:
        while len(ends(folder)) < len(plan.cases) and idle < MAX_IDLE_LAUNCHES:
            if sequence.num_unmet == MAX_UNMET_LAUNCHES:
                break
            if plan.store == "outside" and not _answers(address):
                address, pid = stores.enter_context(launched.store(folder))
            latest = _launch(sequence, started, words, address, pid)
            sequence.launches.append(latest)
            if latest.has_met:
                words = _words(sequence)
                idle = 0 if latest.num_ended else idle + 1
    return sequence


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port or 0))).close()
    except OSError:
        return False
    return True


def _launch(
    sequence: Sequence, started: launched.Started, words: str, address: str, store_pid: int
) -> Launched:
    plan, folder, number = sequence.plan, sequence.folder, len(sequence.launches)
    options = [f"--comm-timeout={plan.comm_timeout_s}", f"--case-budget={plan.case_budget_s}"]
    options += ["--skip-failed", f"--after={words}"] if words else []
    before, bytes_before = ends(folder), journal_bytes(folder)
    # The store is two processes here, a stand-in and what the server forked for it.
    others = set(launched.inside(folder))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launched.free_port())}
    if address:
        meeting = {"LOCKSTEP_STORE": address, "LOCKSTEP_STORE_PREFIX": f"launch {number}"}
    environ = launched.environ(ROOT, PYTHONPATH=f"{ROOT}:{ROOT / 'tests' / 'chaos'}") | meeting
    environ |= {"FAULT_PLAN": str(folder / "plan.json"), "FAULT_STORE_PID": str(store_pid)}
    environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(plan.world_size))
    environ["GLOO_SOCKET_IFNAME"] = "lo"
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", str(CASES), *PYTEST_OPTIONS, *options]
    alive = [
        (rank, started.start(command, environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)}))
        for rank in range(plan.world_size)
    ]
    ranks, is_hung = _supervise(alive, start, plan)
    seconds = time.monotonic() - start
    now = [kind for case, kind in ends(folder).items() if case not in before]
    return Launched(
        ranks,
        seconds,
        has_met=journal_bytes(folder) > bytes_before,
        num_ended=len(now),
        num_failed=now.count("fail"),
        is_hung=is_hung,
        num_left=_end_the_rest(folder, others),
    )


def _supervise(
    ranks: Many[tuple[int, "subprocess.Popen[bytes]"]], start: float, plan: Plan
) -> tuple[list[Ended], bool]:
    """Wait for the ranks, and end the others once one has failed.

    Returns:
        How they ended, and whether that took for ever.
    """
    ended: list[Ended] = []
    limit_s = LIMIT_S * plan.patience
    told_at = float("inf")
    alive = dict(ranks)
    while alive:
        now = time.monotonic()
        for rank, process in list(alive.items()):
            code = process.poll()
            if code is not None:
                del alive[rank]
                ended.append(Ended(rank, code, now >= told_at))
                if code != 0:
                    told_at = min(told_at, now + plan.grace_s)
        for process in alive.values():
            if now - start > limit_s or now > told_at + KILL_AFTER_S:
                process.kill()
            elif now > told_at:
                process.terminate()
        time.sleep(POLL_S)
    return ended, time.monotonic() - start > limit_s


def _end_the_rest(folder: Path, others: set[int]) -> int:
    """End what the ranks left behind, beside processes of others; return how much that was."""
    deadline = time.monotonic() + LEFT_S
    while (left := set(launched.inside(folder)) - others) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for pid in left:
        launched.kill(pid)
    return len(left)


def _words(sequence: Sequence) -> str:
    """Return how the latest launch ended: what its ranks say, else what their ends say.

    Ranks say so themselves where they can reach nobody.
    """
    number, ranks = len(sequence.launches) - 1, sequence.launches[-1].ranks
    lines = [line for one in ranks for line in said(sequence, number, one.rank)]
    own = "; ".join(line for line in lines if line.startswith("lockstep: rank "))
    ends = "; ".join(str(one) for one in ranks if one.code and not one.is_ours)
    return (own or ends or "its ranks ended before their last case")[:300]


def said(sequence: Sequence, launch: int, rank: int) -> list[str]:
    path = sequence.folder / f"out-{launch * sequence.plan.world_size + rank}.log"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return text.splitlines()


def journal_bytes(folder: Path) -> int:
    path = folder / "out.journal.jsonl"
    return path.stat().st_size if path.exists() else 0


def ends(folder: Path) -> dict[int, str]:
    """Return case -> how it last ended, by the suite's own reader."""
    found = journal.outcomes(folder / "out.journal.jsonl")
    return {case_number(case): kind for case, kind in found.items()}


def case_number(case: str) -> int:
    return int(case.partition("::test_")[2].partition("[")[0])
