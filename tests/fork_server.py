"""A process that has imported torch once, and forks into what tests start with Python.

A rank of a test spends seconds on imports and tenths of a second on its cases. `serving()` gives a
stand-in for the interpreter: started as `python -m pytest ...` or `python script.py ...`, it hands
its arguments, folder, environment, limits and streams to this server, forwards signals and ends as
the forked process does; the commands of `COMMANDS` lie in its folder. What the server does not
serve (`-c`, other modules, a `sitecustomize.py` on PYTHONPATH) it runs with the real interpreter.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = {"pytest": "pytest", "lockstep": "lockstep", "torchrun": "torch.distributed.run"}
SERVED = (
    *(*COMMANDS.values(), "lockstep.before.screen.screening"),
    *("lockstep.campaign.program", "lockstep.ranks.store"),
)
HEAVY = (
    # First, since a thread of its ends once the fonts of this machine are listed.
    *("matplotlib.figure", "matplotlib.font_manager", "matplotlib.backends.backend_svg"),
    *("torch", "torch.distributed.run", "torch.nn.parallel", "torch.utils.flop_counter"),
    *("torchvision.models", "numpy", "scipy.stats"),
    *("pytest", "click", "jinja2", "psutil", "pydantic", "rich.progress"),
)
SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
PR_SET_PDEATHSIG = 1  # prctl(2)
MAX_MESSAGE_BYTES = 1 << 20
STAND_IN = """#!{python} -IS
import json, os, resource, signal, socket, sys
words, is_safe = sys.argv[1:], False
while words[:1] in (["-u"], ["-P"]):
    is_safe |= words.pop(0) == "-P"
usual = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
changed = [name for name in os.environ if name.startswith("PYTHON") and name not in usual]
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    is_module = words[:1] == ["-m"] and words[1] in {served}
    is_script = not is_safe and words and words[0].endswith(".py")
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    hooked = any(os.path.exists(os.path.join(path, "sitecustomize.py")) for path in paths if path)
    if changed or hooked or not (is_module or is_script):
        raise OSError
    server.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
numbers = [getattr(signal, name) for name in {forwarded}]
ignored = [number for number in numbers if signal.getsignal(number) == signal.SIG_IGN]
limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
if is_safe:  # a rank of Lockstep's own launch, which does not outlive its torchrun
    import ctypes
    ctypes.CDLL(None).prctl({pdeathsig}, signal.SIGTERM)
request = dict(
    words=words, is_safe=is_safe, folder=os.getcwd(), environ=dict(os.environ), umask=os.umask(0),
    ignored=ignored, limits=[(limit, resource.getrlimit(limit)) for limit in limits],
    cores=list(os.sched_getaffinity(0)),
)
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
for number in numbers:
    if number not in ignored:
        signal.signal(number, lambda number, frame: server.send(b"%d" % number))
code = int(server.recv(16) or -signal.SIGKILL)
if code < 0:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """Run a server, and give its stand-in for the interpreter."""
    address, stand_in = str(folder / "server"), folder / "python"
    text = STAND_IN.format(
        python=sys.executable,
        address=address,
        served=SERVED,
        pdeathsig=PR_SET_PDEATHSIG,
        forwarded=FORWARDED,
    )
    _write(stand_in, text)
    for name, module in COMMANDS.items():
        _write(folder / name, f'#!/bin/sh\nexec {stand_in} -m {module} "$@"\n')
    with subprocess.Popen(
        [sys.executable, __file__, address, stand_in],
        env=os.environ | SINGLE_THREADED,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        try:
            yield stand_in
        finally:
            server.kill()


def _write(path: Path, script: str) -> None:
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)


def serve(address: str, stand_in: str) -> None:
    """Fork for every request, for ever."""
    _die_with_parent()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    import cpuinfo

    for name in HEAVY:
        importlib.import_module(name)
    # What pytest-benchmark asks about the processor, in each session anew.
    processor = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: processor
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lose threads"
    gc.collect()
    gc.freeze()
    sys.executable = stand_in
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            _supervise(connection)
        connection.close()


def _supervise(connection: socket.socket) -> NoReturn:
    """Fork into what a stand-in asks for, pass its signals on and report the exit code."""
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    content, streams, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(content), streams)
    for stream in streams:
        os.close(stream)
    end, poll = os.pidfd_open(pid), select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(end, select.POLLIN)
    while end not in {descriptor for descriptor, _ in poll.poll()}:
        number = connection.recv(16)
        os.kill(pid, int(number or signal.SIGKILL))
        if not number:  # the stand-in was killed
            poll.unregister(connection)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        connection.send(b"%d" % code)
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a module or a script as the interpreter would, in the surroundings of the stand-in."""
    _take_surroundings(request, streams)
    code = 0
    try:
        _run(request["words"])
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001, as the interpreter does
        traceback.print_exc()
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def _take_surroundings(request: dict[str, Any], streams: list[int]) -> None:
    os.setsid()
    _die_with_parent()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for limit, values in request["limits"]:
        resource.setrlimit(limit, values)
    os.sched_setaffinity(0, request["cores"])
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    added = os.environ.get("PYTHONPATH", "")
    folder = [] if request["is_safe"] else [request["folder"]]
    sys.path[:1] = [*folder, *filter(None, added.split(os.pathsep))]


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    serve(*sys.argv[1:])
