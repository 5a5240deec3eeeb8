"""The store where the ranks of a job meet, kept outside them: it outlives any rank.

    python3 -m lockstep.ranks.store --host NAME --address-file FILE

serves until its standard input ends. A job script holds the other end, so that the store ends
with the job, however that does.
"""

import argparse
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO

from lockstep.core import files
from lockstep.core.formats import one_line

# To itself, by the name that the ranks are given: an answer takes milliseconds.
CONNECT_S = 30.0
EXIT_MACHINE = 3


def serve(host: str, address_file: Path, life: IO[bytes]) -> None:
    """Serve a store until `life` ends; `HOST:PORT` is written as soon as ranks may connect.

    Raises:
        RuntimeError: No port can be had, or the name does not lead to this machine.
        OSError: Nobody knows the name, or the address cannot be written.
    """
    from torch.distributed import TCPStore

    socket.getaddrinfo(host, None)  # torch would try an unknown name until its time-out
    store = TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S)
    )
    files.write_atomically(address_file, f"{host}:{store.port}\n")
    while life.read(1):
        pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as the command line asks; what the machine refuses is one line and exit code 3."""
    parser = argparse.ArgumentParser(prog="lockstep.ranks.store", description=serve.__doc__)
    parser.add_argument("--host", required=True, help="this machine's name, as ranks look it up")
    parser.add_argument("--address-file", required=True, type=Path, help="where HOST:PORT goes")
    asked = parser.parse_args(arguments)
    try:
        serve(asked.host, asked.address_file, sys.stdin.buffer)
    except (RuntimeError, OSError) as error:
        text = one_line(str(error))
        sys.stderr.write(f"lockstep: no store can be served as {asked.host}: {text}\n")
        return EXIT_MACHINE
    return 0


if __name__ == "__main__":
    sys.exit(main())
