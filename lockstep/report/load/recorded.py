"""A recorded campaign in one compressed file: what `lockstep demo` makes its page of.

The file holds what a campaign's folder holds, without logs and journals, and how it came about:
`tests/validation/record_demo.py` writes one. Those that ship lie in `reports/recorded/`.
"""

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep import content
from lockstep.core import files
from lockstep.core.files import write_atomically
from lockstep.report.load.sources import CAMPAIGN, LAUNCHES, RESULT

SUFFIX = ".json.gz"
# The key of campaign.json that says how the results came about.
KEY = "recorded"
_LAUNCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def shipped() -> dict[str, Path]:
    """Return the recordings that ship, name -> file."""
    folder = content.ROOT / "reports" / "recorded"
    return {path.name.removesuffix(SUFFIX): path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def pack(folder: Path, facts: Mapping[str, Any]) -> bytes:
    """Return a campaign's folder as a recording, the same bytes for the same results.

    The facts say how they came about: `kind` is `links` for nodes of one machine that links of a
    known rate join; then there are `num_nodes`, `rate_bit_per_s`, and `ms_per_item` where the
    devices are stand-ins.
    """
    paths = sorted(folder.glob(f"{LAUNCHES}/*/{RESULT}"))
    document = {
        "campaign": files.parse(files.content(folder / CAMPAIGN)) | {KEY: dict(facts)},
        "launches": {path.parent.name: files.parse(files.content(path)) for path in paths},
    }
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def unpack(recording: Path, folder: Path) -> None:
    """Write a recording's campaign into a folder that holds a recording already, or nothing.

    Launches of the one before are removed, so that no page mixes two recordings.

    Raises:
        ValueError: The file is no recording, or the folder holds something else.
    """
    document = _read(recording)
    if folder.is_dir() and any(folder.iterdir()) and not _is_recorded(folder / CAMPAIGN):
        raise ValueError(f"{folder} holds something else than a demo; give --to another folder")
    for old in folder.glob(f"{LAUNCHES}/*/{RESULT}"):
        if old.parent.name not in document["launches"]:
            old.unlink()
            if not any(old.parent.iterdir()):
                old.parent.rmdir()
    for name, launch in document["launches"].items():
        path = folder / LAUNCHES / name / RESULT
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(launch))
    write_atomically(folder / CAMPAIGN, json.dumps(document["campaign"], indent=1))


def _read(path: Path) -> dict[str, Any]:
    wrong = ValueError(
        f"{path}: no recorded campaign; record one by tests/validation/record_demo.py"
    )
    unpacked = zlib.decompressobj(wbits=31)
    try:
        document = files.parse(unpacked.decompress(files.content(path), files.LIMIT_BYTES))
    except (zlib.error, UnicodeDecodeError, json.JSONDecodeError):
        raise wrong from None
    if not isinstance(document, dict):
        raise wrong
    campaign, launches = document.get("campaign"), document.get("launches")
    if not isinstance(campaign, dict) or not isinstance(launches, dict) or KEY not in campaign:
        raise wrong
    if not launches or not all(map(_LAUNCH.fullmatch, launches)):
        raise wrong
    return document


def _is_recorded(path: Path) -> bool:
    if not path.is_file():
        return False
    known = files.parse(files.content(path))
    return isinstance(known, dict) and KEY in known
