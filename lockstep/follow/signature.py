"""Who may tell of a job's end: whoever has the key, within five minutes, and once.

A sender signs `TIMESTAMP.BODY` by HMAC-SHA256 (RFC 2104) and gives timestamp and signature in two
headers; `slurm_templates/lib/epilog.sh` is one.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from lockstep.core import files

TIMESTAMP_HEADER = "X-Lockstep-Timestamp"
SIGNATURE_HEADER = "X-Lockstep-Signature"
# How far the clocks of sender and receiver may differ, and a message may be under way.
WINDOW_S = 300
LEAST_KEY_BYTES = 16

Refusal = Literal["unsigned", "forged", "late", "replayed"]


def sign(key: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a message, as hexadecimal digits."""
    return hmac.new(key, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def read_key(path: Path) -> bytes:
    """Return the key in a file, which is made with a new key where there is none.

    Raises:
        ValueError: It cannot be read, is too short, or others may read it.
        OSError: It cannot be made.
    """
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
    key = files.content(path).strip()
    if len(key) < LEAST_KEY_BYTES:
        raise ValueError(f"{path}: a key has {LEAST_KEY_BYTES} characters or more")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: others may read this key; chmod 600 it, better make a new one")
    return key


class Guard:
    """Says of each message whether it may be believed; for one thread at a time.

    Args:
        seen: Signature -> timestamp of messages taken before, as after a restart.
    """

    def __init__(
        self, key: bytes, seen: Mapping[str, int], clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._seen = dict(seen)
        self._clock = clock

    def refuse(self, timestamp: str | None, signature: str | None, body: bytes) -> Refusal | None:
        """Return why a message is not believed; None of one that is, until it is noted."""
        if not timestamp or not signature:
            return "unsigned"
        # A signature of other characters than ASCII cannot be compared.
        if not re.fullmatch("[0-9]{1,12}", timestamp) or not signature.isascii():
            return "forged"
        if not hmac.compare_digest(sign(self._key, timestamp, body), signature):
            return "forged"
        now = self._clock()
        if abs(now - int(timestamp)) > WINDOW_S:
            return "late"
        self._seen = {s: at for s, at in self._seen.items() if now - at <= WINDOW_S}
        return "replayed" if signature in self._seen else None

    def note(self, timestamp: str, signature: str) -> None:
        """Believe a message no more, for it is kept."""
        self._seen[signature] = int(timestamp)
