"""What this host is called."""

import os
import socket


def hostname() -> str:
    """Return this host's name; what is not UTF-8 in it, with replacement characters."""
    return os.fsencode(socket.gethostname()).decode(errors="replace")
