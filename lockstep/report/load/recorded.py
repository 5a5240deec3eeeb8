"""A recorded campaign in one compressed file, without logs and journals, for `lockstep demo`.

`tests/validation/record_demo.py` writes one.
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
# Key of campaign.json with the facts that `pack` received.
KEY = "recorded"
_LAUNCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def list_shipped() -> dict[str, Path]:
    """Return the recordings that ship with Lockstep, name -> file."""
    folder = content.ROOT / "reports" / "recorded"
    return {path.name.removesuffix(SUFFIX): path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def pack(folder: Path, facts: Mapping[str, Any]) -> bytes:
    """Return a campaign's folder as a recording, the same bytes for the same results.

    The facts say how the campaign was measured: `kind` "links" for `num_nodes` nodes on one machine
    with links of `rate_bit_per_s`; `ms_per_item` if the devices are simulated.
    """
    paths = sorted(folder.glob(f"{LAUNCHES}/*/{RESULT}"))
    document = {
        "campaign": files.parse(files.content(folder / CAMPAIGN)) | {KEY: dict(facts)},
        "launches": {path.parent.name: files.parse(files.content(path)) for path in paths},
    }
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def unpack(recording: Path, folder: Path) -> None:
    """Write a recording's campaign into an empty folder, or in place of another recording.

    Raises:
        ValueError: The file is no recording, or the folder holds something else.
    """
    document = _read(recording)
    if folder.is_dir() and any(folder.iterdir()):
        path = folder / CAMPAIGN
        known = files.parse(files.content(path)) if path.is_file() else None
        if not isinstance(known, dict) or KEY not in known:
            raise ValueError(
                f"{folder} holds files that lockstep demo did not write; choose another folder "
                "with --to"
            )
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
        f"{path} is not a recorded campaign; record one by tests/validation/record_demo.py of "
        "Lockstep's source"
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
