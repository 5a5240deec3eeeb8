"""Launches of ranks that are forked from a process that has imported all they need.

A rank then costs tenths of a second, so that thousands of launches can be made. The supervisor ends
the other ranks soon after one has died, as torchrun and srun do, and starts the launch again as
`lockstep.campaign.ladder` does.
"""

import atexit
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fuzz_ranks_plan import Plan

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "samples" / "fuzzed_cases.py"
KILL_AFTER_S = 0.5  # between SIGTERM and SIGKILL; the launchers' own 30 s would only take longer
LIMIT_S = 60.0  # times the plan's patience; no launch ever takes so long: it hangs
POLL_S = 0.01
MAX_IDLE_LAUNCHES = 3
MAX_UNMET_LAUNCHES = 12
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
RAISED = 99  # a process whose work raised, pytest itself on a rank
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
        after_s: Seconds after the start of its launch.
        is_ours: Whether the supervisor had told it to.
    """

    rank: int
    code: int
    after_s: float
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
        return sum(not launched.has_met for launched in self.launches)


def prepare() -> None:
    """Import all that ranks need, with no thread that a fork would lose."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import cpuinfo
    import pytest  # noqa: F401
    import pytest_benchmark.plugin
    import torch
    import torch.distributed

    import lockstep.launch.preflight
    import lockstep.launch.session
    import lockstep.measure.harness
    import lockstep.workloads
    from lockstep.machine import provenance

    torch.set_num_threads(1)
    lockstep.workloads.make("mlp:width=64,depth=2")
    # What stays the same for all launches is asked for once.
    _remember(provenance, "git_facts", ROOT)
    _remember(provenance, "software_facts")
    _remember(provenance, "machine_facts")
    _remember(provenance, "cpu_model")
    _remember(cpuinfo, "get_cpu_info")
    _remember(pytest_benchmark.plugin, "get_commit_info")
    gc.collect()
    gc.freeze()
    threads = list(Path("/proc/self/task").iterdir())
    if len(threads) > 1:
        raise RuntimeError(f"{len(threads)} threads run where only one can be forked")


def _remember(module: object, name: str, *arguments: object) -> None:
    remembered = cache(getattr(module, name))
    remembered(*arguments)
    setattr(module, name, remembered)


def fork(work: Callable[[], int]) -> int:
    """Return the id of a process that does the work and ends with its code."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = RAISED
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        code = work()
    except BaseException:  # noqa: BLE001, whatever it was, this process must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class OutsideStore:
    """A store in a process of its own, started again where it has died."""

    def __init__(self) -> None:
        self.pid = self.port = 0

    def ensure(self) -> None:
        """Start it if it does not run."""
        if self.pid and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            return
        reader, writer = os.pipe()
        self.pid = fork(lambda: _serve(writer))
        os.close(writer)
        with os.fdopen(reader) as told:
            self.port = int(told.read())

    def end(self) -> None:
        """End it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _serve(writer: int) -> int:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(writer, str(store.port).encode())
    os.close(writer)
    signal.pause()
    return 0


def run(plan: Plan, folder: Path) -> Sequence:
    """Make the launches of a plan: again with what failed left out, while that brings more."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    sequence = Sequence(plan, folder)
    with _store(plan) as store:
        words, idle = "", 0
        while len(ends(folder)) < len(plan.cases) and idle < MAX_IDLE_LAUNCHES:
            if sequence.num_unmet == MAX_UNMET_LAUNCHES:
                break
            launched = _launch(sequence, store, words)
            sequence.launches.append(launched)
            if launched.has_met:
                words = _words(sequence)
                idle = 0 if launched.num_ended else idle + 1
    return sequence


@contextmanager
def _store(plan: Plan) -> Iterator[OutsideStore | None]:
    if plan.store == "rank-0":
        yield None
        return
    store = OutsideStore()
    try:
        yield store
    finally:
        store.end()


def _launch(sequence: Sequence, store: OutsideStore | None, words: str) -> Launched:
    plan, folder, number = sequence.plan, sequence.folder, len(sequence.launches)
    if store:
        store.ensure()
    meeting = _meeting(store, number)
    limits = [f"--comm-timeout={plan.comm_timeout_s}", f"--case-budget={plan.case_budget_s}"]
    options = [*limits, *(["--skip-failed", f"--after={words}"] if words else [])]
    before, bytes_before = ends(folder), journal_bytes(folder)
    start = time.monotonic()
    pids = {}
    for rank in range(plan.world_size):
        place = _place(rank, plan.world_size) | meeting
        log = _log(folder, number, rank)
        pids[fork(lambda p=place, g=log: _rank(plan, folder, p, g, options))] = rank
    ranks, is_hung = _supervise(pids, start, plan)
    seconds = time.monotonic() - start
    now = [kind for case, kind in ends(folder).items() if case not in before]
    return Launched(
        ranks,
        seconds,
        has_met=journal_bytes(folder) > bytes_before,
        num_ended=len(now),
        num_failed=now.count("fail"),
        is_hung=is_hung,
        num_left=_end_the_rest(store),
    )


def _meeting(store: OutsideStore | None, number: int) -> dict[str, str]:
    if store is None:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return {
        "LOCKSTEP_STORE": f"127.0.0.1:{store.port}",
        "LOCKSTEP_STORE_PREFIX": f"launch {number}",
        "FAULT_STORE_PID": str(store.pid),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _place(rank: int, world_size: int) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return dict(zip(names, map(str, (rank, rank, world_size, world_size)), strict=True))


def _rank(plan: Plan, folder: Path, place: dict[str, str], log: Path, options: list[str]) -> int:
    """Be one rank, until its hooks at exit have run: what it says goes to its log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(folder)
    os.environ |= place | {"FAULT_PLAN": str(folder / "plan.json"), "GLOO_SOCKET_IFNAME": "lo"}
    import pytest

    import lockstep.launch.session

    lockstep.launch.session.MIN_PATIENCE_S = plan.end_s
    atexit._clear()  # those of the process that this one was forked from
    code = int(pytest.main([str(CASES), *PYTEST_OPTIONS, *options]))
    atexit._run_exitfuncs()
    return code


def _supervise(pids: dict[int, int], start: float, plan: Plan) -> tuple[list[Ended], bool]:
    """Wait for the ranks, and end the others once one has failed.

    Returns:
        How they ended, and whether that took for ever.
    """
    ended: list[Ended] = []
    limit_s = LIMIT_S * plan.patience
    told_at = float("inf")
    alive = dict(pids)
    while alive:
        now = time.monotonic()
        for pid in list(alive):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
                ended.append(Ended(alive.pop(pid), code, now - start, now >= told_at))
                if code != 0:
                    told_at = min(told_at, now + plan.grace_s)
        if now - start > limit_s or now > told_at + KILL_AFTER_S:
            _signal(alive, signal.SIGKILL)
        elif now > told_at:
            _signal(alive, signal.SIGTERM)
        time.sleep(POLL_S)
    return ended, time.monotonic() - start > limit_s


def _signal(pids: dict[int, int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _end_the_rest(store: OutsideStore | None) -> int:
    """End what the ranks left behind, and return how much that was."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    left = set(map(int, path.read_text(encoding="ascii").split()))
    left -= {store.pid} if store else set()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(left)


def _words(sequence: Sequence) -> str:
    """Return how the latest launch ended: what its ranks say, else what their ends say."""
    number, ranks = len(sequence.launches) - 1, sequence.launches[-1].ranks
    said = "; ".join(_said_by_ranks(sequence.folder, number, sequence.plan.world_size))
    own = "; ".join(str(one) for one in ranks if one.code and not one.is_ours)
    return (said or own or "its ranks ended before their last case")[:300]


def _said_by_ranks(folder: Path, number: int, world_size: int) -> list[str]:
    """Return the sentences of ranks that could reach nobody."""
    lines = (line for rank in range(world_size) for line in _lines(_log(folder, number, rank)))
    return [line for line in lines if line.startswith("lockstep: rank ")]


def last_line(folder: Path, launch: int, rank: int) -> str:
    """Return the last that a rank said."""
    return (_lines(_log(folder, launch, rank)) or [""])[-1]


def _log(folder: Path, launch: int, rank: int) -> Path:
    return folder / f"launch-{launch}-rank-{rank}.log"


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def journal_bytes(folder: Path) -> int:
    """Return the size of the journal."""
    path = folder / "out.journal.jsonl"
    return path.stat().st_size if path.exists() else 0


def ends(folder: Path) -> dict[int, str]:
    """Return case -> how it last ended, by the suite's own reader."""
    from lockstep.core import journal

    found = journal.outcomes(folder / "out.journal.jsonl")
    return {case_number(case): kind for case, kind in found.items()}


def case_number(case: str) -> int:
    """Return the number of a case in its plan."""
    return int(case.partition("::test_")[2].partition("[")[0])
