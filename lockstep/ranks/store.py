"""The store where the ranks of a job meet, in a process of its own: it outlives any rank.

The process serves until its standard input ends; the job script holds the other end of that pipe.
"""

import argparse
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO

from lockstep.core import files
from lockstep.core.errors import EXIT_MACHINE
from lockstep.core.formats import one_line

# Time-out of the store's connection to itself by its host's name, which takes milliseconds.
CONNECT_S = 30.0


def serve(host: str, address_file: Path, life: IO[bytes]) -> None:
    """Serve a store until `life` ends, and write `HOST:PORT` once ranks may connect."""
    from torch.distributed import TCPStore

    socket.getaddrinfo(host, None)  # torch would try an unknown name until its time-out
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
    files.write_atomically(address_file, f"{host}:{store.port}\n")
    while life.read(1):
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a store by the command line; a fault of the machine prints a line and gives 3."""
    parser = argparse.ArgumentParser(prog="lockstep.ranks.store", description=serve.__doc__)
    parser.add_argument(
        "--host",
        required=True,
        help="host name or address by which the other ranks reach this machine",
    )
    parser.add_argument("--address-file", required=True, type=Path, help="file for HOST:PORT")
    options = parser.parse_args(arguments)
    try:
        serve(options.host, options.address_file, sys.stdin.buffer)
    except (RuntimeError, OSError) as error:
        reason = one_line(str(error))
        sys.stderr.write(f"lockstep: cannot open the ranks' store on {options.host}: {reason}\n")
        return EXIT_MACHINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
