"""The ranks of a launch: hosts, devices, and the process group between them."""

import contextlib
import gc
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from lockstep.core.errors import OtherRankError, RankError
from lockstep.core.processes import die_with_parent, hostname
from lockstep.machine import provenance
from lockstep.ranks.control import Control, LostError, refuse_silent
from lockstep.ranks.placement import SHOWN_CHARACTERS, Placement, integer, placement

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

PORTS = range(1, 2**16)
# Longest wait for a host that has no address, or does not answer.
NO_WAY_S = 6.0
# Printed once if the CPU is measured without --device.
NO_GPU = (
    "torch sees no GPU, so the CPU is measured; pass --device cpu if this is intended, or --device "
    "cuda to stop on a machine without a GPU"
)


@dataclass(frozen=True, kw_only=True)
class World(Placement):
    """A rank that has joined: its device, its share of the cores, its process group."""

    device: "torch.device"
    backend: str
    threads_per_rank: int
    control: Control  # exchanges with the other ranks through the store
    group_timeout_s: float  # time-out of a collective that lacks a rank


def usable_cores() -> int:
    return len(provenance.usable_cores())


def join(
    timeout_s: float = 300.0,
    *,
    device: str | None = None,
    threads_per_rank: int | None = None,
    nccl_timeout_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> World:
    """Take this rank's device and join the process group: nccl on GPUs, gloo on CPUs.

    A collective that lacks a rank raises after `timeout_s`; under NCCL it ends the process, after
    `nccl_timeout_s`. By default a rank takes a GPU if there is one, and OMP_NUM_THREADS or its
    share of the usable cores as threads.

    Raises:
        ValueError: The launcher's variables or an option's value are wrong.
        RuntimeError: There are fewer GPUs than ranks on this host, or the ranks do not meet.
    """
    import torch

    place = placement(environ)
    if "TORCHELASTIC_RUN_ID" in environ:  # torchrun's agent may be killed before its ranks
        die_with_parent()
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"the device is {device!r}, but must be cpu or cuda")
    threads = _threads(threads_per_rank, place.ranks_per_node, environ)
    torch.set_num_threads(threads)
    control = Control(_store(place, timeout_s, environ), place.rank, place.world_size, timeout_s)
    own_device = _device(device, place.local_rank, control, timeout_s, environ)
    backend = "nccl" if own_device.type == "cuda" else "gloo"
    group_timeout_s = (nccl_timeout_s or timeout_s) if backend == "nccl" else timeout_s
    joined = World(
        **vars(place), device=own_device, backend=backend, threads_per_rank=threads,
        control=control, group_timeout_s=group_timeout_s,
    )  # fmt: skip
    _open_process_group(joined, epoch=0)
    return joined


def _open_process_group(world: World, epoch: int) -> None:
    from torch import distributed

    distributed.init_process_group(
        world.backend, store=distributed.PrefixStore(f"process_group/{epoch}", world.control.store),
        rank=world.rank, world_size=world.world_size,
        timeout=timedelta(seconds=world.group_timeout_s),
    )  # fmt: skip


def rebuild(world: World, epoch: int) -> None:
    """Replace the process group, which a failed case leaves out of step, and test the new one.

    `epoch` is the number of earlier process groups, equal on all ranks.
    """
    import torch
    from torch import distributed

    leave()
    gc.collect()  # else objects that refer to the old group keep its connections open
    _open_process_group(world, epoch)
    total = torch.tensor(float(world.rank), device=world.device)
    distributed.all_reduce(total)
    wanted = float(sum(range(world.world_size)))
    if float(total) != wanted:
        result = float(total)
        raise RuntimeError(
            "the rebuilt process group is wrong: an all-reduce of the rank numbers gives "
            f"{result}, not {wanted}"
        )


def has_group() -> bool:
    from torch import distributed

    return distributed.is_initialized()


def num_collectives() -> int:
    """Return how many collectives this rank has called; for gloo, sends and receives count."""
    from torch import distributed

    if not distributed.is_initialized():
        return 0
    group: Any = distributed.group.WORLD
    return int(group._get_sequence_number_for_group())  # noqa: SLF001, torch has no public name


def leave() -> None:
    from torch import distributed

    # A torch that is built without torch.distributed has only `is_available`.
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _threads(wanted: int | None, ranks_per_node: int, environ: Mapping[str, str]) -> int:
    if wanted is not None and wanted < 1:
        raise ValueError(f"threads_per_rank={wanted} must be 1 or more")
    if wanted:
        return wanted
    # If a node has several ranks, torchrun sets OMP_NUM_THREADS to 1 unless a user has set it.
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    of_user = int(first) if first.isdecimal() else 0
    if of_user and not (of_user == 1 and "TORCHELASTIC_RUN_ID" in environ):
        return of_user
    if environ.get("LOCKSTEP_LAUNCHER") == "slurm" and "SLURM_CPUS_PER_TASK" in environ:
        # Under srun the usable cores may be those of one task.
        return integer(environ, "SLURM_CPUS_PER_TASK")
    return max(1, usable_cores() // ranks_per_node)


def _device(
    wanted: str | None, local_rank: int, control: Control, timeout_s: float,
    environ: Mapping[str, str],
) -> "torch.device":  # fmt: skip
    """Take this rank's device, once all ranks are here and each has a device."""
    import torch
    from torch import distributed

    num_visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    is_cpu = wanted == "cpu" or not torch.cuda.is_available()
    backend = "gloo" if is_cpu else "nccl"
    is_built = {"gloo": distributed.is_gloo_available, "nccl": distributed.is_nccl_available}
    problem = ""
    if wanted != "cpu" and local_rank >= num_visible and (wanted or num_visible):
        problem = (
            f"local rank {local_rank} needs GPU {local_rank}, but {num_visible} GPU(s) are visible "
            "on this host; start one rank per GPU, or pass --device cpu"
        )
    elif not is_built[backend]():
        instead = "" if is_cpu else ", or pass --device cpu"
        problem = (
            f"torch {torch.__version__} is built without the backend {backend}; install a torch "
            f"that has this backend{instead}"
        )
    if problem and wanted == "cuda":
        _record_mend("device", environ)
    problem = problem or _missing_interface(backend, environ)
    answers = control.exchange("join", {"host": hostname(), "problem": problem})
    try:
        refuse_silent(
            answers,
            lambda ranks: (
                f"{ranks} did not join the process group within {timeout_s:g} s; check that the "
                "rank's process and node run"
            ),
        )
        for rank, answer in enumerate(answers):
            if answer["problem"]:
                raise RankError(f"rank {rank} on {answer['host']}: {answer['problem']}", rank)
    except RankError:
        # The store ends with rank 0, so rank 0 waits until all ranks have read the answers.
        with contextlib.suppress(LostError):
            control.leave_together()
        raise
    if is_cpu:
        return torch.device("cpu")
    own_device = torch.device("cuda", local_rank)
    torch.cuda.set_device(own_device)
    return own_device


def _missing_interface(backend: str, environ: Mapping[str, str]) -> str:
    """Return an error if this host lacks the interface set for a backend, else an empty text.

    gloo needs every named interface, NCCL one whose name begins so; ^ excludes (their
    documentation).
    """
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    named = environ.get(variable, "")
    here = [name for _, name in socket.if_nameindex()]
    if backend == "gloo":
        is_here = set(named.split(",")) <= {"", *here}
    else:
        names = tuple(part.partition(":")[0] for part in named.removeprefix("=").split(","))
        is_here = named.startswith("^") or any(name.startswith(names) for name in here)
    if is_here:
        return ""
    _record_mend(variable, environ)
    interfaces = ", ".join(here)
    return f"{variable}={named} is not a network interface of this host; choose from {interfaces}"


def _record_mend(key: str, environ: Mapping[str, str]) -> None:
    """Write the setting to correct into the job's file; `lockstep status` shows it."""
    if "LOCKSTEP_MEND" in environ:
        with contextlib.suppress(OSError):  # other code refuses a folder that cannot be written
            Path(environ["LOCKSTEP_MEND"]).write_text(f"{key}\n")


def _store(place: Placement, timeout_s: float, environ: Mapping[str, str]) -> "Store":
    """Return the store that all ranks see: the job's, torchrun's, or one that rank 0 serves."""
    import torch
    from torch import distributed

    if not distributed.is_available():
        raise RankError(
            f"rank {place.rank} on {hostname()}: torch {torch.__version__} is built without "
            "torch.distributed; install a torch that has torch.distributed",
            place.rank,
        )
    if place.world_size == 1:
        return distributed.HashStore()
    serves = False
    if (address := environ.get("LOCKSTEP_STORE")) is not None:
        host, _, text = address.rpartition(":")
        port = int(text) if host and text.isdecimal() else 0
        if port not in PORTS:
            raise ValueError(f"LOCKSTEP_STORE={address!r} is not HOST:PORT; unset this variable")
        prefix = environ.get("LOCKSTEP_STORE_PREFIX", "")
        if not prefix:  # else ranks would read the keys of an earlier launch
            raise ValueError(
                "LOCKSTEP_STORE is set without LOCKSTEP_STORE_PREFIX; unset LOCKSTEP_STORE"
            )
    else:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
        if missing:
            is_torchrun = environ.get("LOCKSTEP_LAUNCHER", "torchrun") == "torchrun"
            other = "set MASTER_ADDR to rank 0's host, and MASTER_PORT to a free port"
            todo = "start the ranks with torchrun" if is_torchrun else other
            variables = " and ".join(missing)
            raise ValueError(
                f"world size {place.world_size} needs the environment variable(s) "
                f"{variables}; {todo}, or unset the launcher's variables"
            )
        host, text = environ["MASTER_ADDR"], environ["MASTER_PORT"]
        port = int(text) if text.isdecimal() else 0
        if port not in PORTS:
            raise ValueError(
                f"MASTER_PORT={text[:SHOWN_CHARACTERS]!r} is not a port from 1 to 65535; set "
                "MASTER_PORT to a free port"
            )
        prefix = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        # torchrun's agent serves the store itself; under other launchers rank 0 does.
        serves = place.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _connect(place.rank, host, port, timeout_s, serves=serves)
    return distributed.PrefixStore(f"lockstep/{prefix}", store)


def _connect(rank: int, host: str, port: int, timeout_s: float, *, serves: bool) -> "Store":
    from torch import distributed

    began = time.monotonic()
    try:
        if serves:
            socket.getaddrinfo(host, port)
        else:
            _wait_for_port(host, port, timeout_s)
        with _hide_stderr():
            limit = timedelta(seconds=timeout_s)
            return distributed.TCPStore(
                host, port, is_master=serves, wait_for_workers=False, timeout=limit
            )
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        serve_or_reach, waited_s = "serve" if serves else "reach", time.monotonic() - began
        raise RankError(
            f"rank {rank} on {hostname()} could not {serve_or_reach} the ranks' store at "
            f"{host}:{port} within {waited_s:.0f} s ({_way_to(host)}; {reason}); check this "
            "address, and whether the nodes reach each other",
            rank,
        ) from error


def _wait_for_port(host: str, port: int, timeout_s: float) -> None:
    """Wait until a port of another host takes connections, or raise OSError.

    A host that refuses may serve the port soon; without address or answer it gets `NO_WAY_S`.
    """
    began = time.monotonic()
    while True:
        try:
            socket.create_connection((host, port), min(timeout_s, NO_WAY_S)).close()
            return
        except OSError as error:
            limit_s = timeout_s if isinstance(error, ConnectionRefusedError) else NO_WAY_S
            if time.monotonic() - began >= min(timeout_s, limit_s):
                raise
        time.sleep(0.2)


@contextlib.contextmanager
def _hide_stderr() -> Iterator[None]:
    """Hide the fifty lines that torch's C++ prints before our own error."""
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _way_to(host: str) -> str:
    """Return the interface through which this host would reach another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # a UDP connection sends nothing
            own = probe.getsockname()[0]
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    for name, addresses in psutil.net_if_addrs().items():
        if own in (address.address for address in addresses):
            return f"through {name}, {own}"
    return f"from {own}"


def refuse_in_case(world: World, hosts: Sequence[str], problem: str) -> None:
    """Raise this rank's `problem`, or OtherRankError of another rank's; a collective call."""
    problems = [problem] * world.world_size
    if world.world_size > 1:
        from torch import distributed

        distributed.all_gather_object(problems, problem)
    if problem:
        raise ValueError(problem)
    for rank, other in enumerate(problems):
        if other:
            raise OtherRankError(f"rank {rank} on {hosts[rank]}: {other}", rank)
