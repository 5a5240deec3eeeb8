"""How ranks are started on this machine: the command before theirs, and their environment.

Needs no torch.
"""

import os
import socket
import sys
from collections.abc import Mapping

from bench import world
from bench.provenance import SUITE_ROOT


def torchrun(nproc: int) -> list[str]:
    """Return the start of a command, for `-m module` to follow: `nproc` ranks of one launch.

    They meet by address: the host's name, which torchrun would take, may resolve nowhere.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    return [sys.executable, *launcher, f"--nproc-per-node={nproc}"]


def local_environment(environ: Mapping[str, str], threads_per_rank: int) -> dict[str, str]:
    """Return the environment of ranks on this machine, free of an outer launcher's variables.

    Args:
        environ: This process's variables.
        threads_per_rank: CPU threads of a rank, as it will tell torch when it joins.
    """
    outer = {"LOCKSTEP_LAUNCHER", *world.VARIABLES["torchrun"]}
    kept = {name: value for name, value in environ.items() if name not in outer}
    # gloo would look up the host's name, which a laptop or a sandbox may not resolve.
    if "lo" in (name for _, name in socket.if_nameindex()):
        kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    paths = [str(SUITE_ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return kept | {
        "OMP_NUM_THREADS": str(threads_per_rank),
        "PYTHONPATH": os.pathsep.join(paths),
    }
