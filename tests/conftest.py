"""Real ranks for the tests: processes with a launcher's variables, and each one's own output."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import fork_server
import hypothesis
import measured as campaigns
import pytest
from launched import FEW_PLUGINS, SAMPLES, environ, free_port

HERE = Path(__file__).parent
ROOT = HERE.parent
# Tests of one folder use the helpers of another.
sys.path[:0] = [str(HERE / name) for name in ("system", "chaos", "validation")]
Ended = subprocess.CompletedProcess[str]
# Which case follows which is random; the tests of ranks need to know it.
IN_FILE_ORDER = f"{FEW_PLUGINS} -p in_file_order"
# Enough for ranks that import torch on a machine that does other things as well.
RANKS_TIMEOUT_S = 300
STAND_IN = pytest.StashKey[Path]()
# How long an example takes on a loaded machine, or until a busy disk has it, says nothing.
hypothesis.settings.register_profile("lockstep", deadline=None)
hypothesis.settings.load_profile("lockstep")


def pytest_configure() -> None:
    """Let Ctrl-C be heard: a shell's background job ignores it, and so would all that it starts.

    What a test starts is no worker of pytest-xdist, beside which pytest-benchmark measures nothing.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count what waits for real launches among the slow tests.

    Processes that share the tests by files take those with most slow tests first, so that at the
    end none of them waits long for another.
    """
    for item in items:
        if {"measured", "run_ranks"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    if hasattr(config, "workerinput"):
        num_slow = Counter(item.path for item in items if _is_forked(item))
        items.sort(key=lambda item: -num_slow[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import torch once for all processes that the slow tests start, and meanwhile begin."""
    config = session.config
    if not config.option.collectonly and any(_is_forked(item) for item in session.items):
        stack = ExitStack()
        folder = config._tmp_path_factory.mktemp("fork-server")
        config.stash[STAND_IN] = stack.enter_context(fork_server.serving(folder))
        config.add_cleanup(stack.close)
    # The modules that collection has imported live as long as the session: hypothesis collects
    # garbage between examples, and would look at all of them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a slow test start its processes by the fork server; chaos strikes real interpreters."""
    with pytest.MonkeyPatch.context() as patch:
        if _is_forked(item):
            patch.setattr(sys, "executable", str(item.config.stash[STAND_IN]))
        return (yield)


def _is_forked(item: pytest.Item) -> bool:
    markers = {marker.name for marker in item.iter_markers()}
    return "slow" in markers and "chaos" not in markers


@pytest.fixture(scope="session")
def clean_environ() -> dict[str, str]:
    """This process's variables without those of a launcher or of pytest, and with tests' own."""
    return environ(ROOT)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """The folder of the campaigns of `measured.py`, measured once; read only, so copy to change.

    The workers of pytest-xdist share it: the first that needs it measures, and others wait.
    """
    shared = tmp_path_factory.getbasetemp()
    is_worker = hasattr(pytestconfig, "workerinput")
    folder = campaigns.kept((shared.parent if is_worker else shared) / "measured")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return campaigns.measure(folder)


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[Ended]]:
    """Start one Python process per list of arguments, as ranks of one launch on this machine."""
    return _run_ranks


def _run_ranks(
    arguments: Sequence[Sequence[str | Path]],
    cwd: Path,
    launcher: str = "torchrun",
    **variables: str,
) -> list[Ended]:
    world_size, port = len(arguments), free_port()
    variables["PYTHONPATH"] = f"{variables.get('PYTHONPATH', ROOT)}:{SAMPLES}"
    started = [
        subprocess.Popen(
            [sys.executable, *own],
            cwd=cwd,
            env=environ(ROOT, PYTEST_ADDOPTS=IN_FILE_ORDER)
            | _variables(launcher, rank, world_size, port)
            | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, own in enumerate(arguments)
    ]
    try:
        with ThreadPoolExecutor(world_size) as pool:  # a full pipe would stop its rank
            texts = list(pool.map(lambda p: p.communicate(timeout=RANKS_TIMEOUT_S), started))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *text)
        for process, text in zip(started, texts, strict=True)
    ]


def _variables(launcher: str, rank: int, world_size: int, port: int) -> dict[str, str]:
    values = map(str, (rank, rank, world_size, world_size))
    names = {
        "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        "slurm": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    }[launcher]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return meeting | {"LOCKSTEP_LAUNCHER": launcher} | dict(zip(names, values, strict=True))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a shell script on PATH under a command's name, with nothing else but the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/sbin:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def group() -> Iterator[None]:
    from lockstep.ranks import process_group

    process_group.join(device="cpu", threads_per_rank=1)
    yield
    process_group.leave()
