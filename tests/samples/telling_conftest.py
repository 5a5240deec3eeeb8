"""Lets every rank tell how its cases ended, for only rank 0 prints and writes.

`FAULT=clock` sets the clock of the rank that `FAULT_RANK` names an hour ahead, and `FAULT=internal`
breaks it between two phases of a case, where a signal's handler may raise.
"""

import json
import os
import time
from pathlib import Path

from lockstep.core import sizes

sizes.shuffle = lambda items, name_of, seed: list(items)
RANK = os.environ.get("RANK", "0")
AHEAD_S = 3600.0
# Opened now, for a rank that breaks may be unable to open any file.
TOLD = Path(f"told-{RANK}.jsonl").open("a", encoding="utf-8", buffering=1)  # noqa: SIM115

IS_FAULTY = os.environ.get("FAULT_RANK", "1") == RANK

if os.environ.get("FAULT") == "clock" and IS_FAULTY:
    _time = time.time
    time.time = lambda: _time() + AHEAD_S


def pytest_runtest_logreport(report):
    if os.environ.get("FAULT") == "internal" and IS_FAULTY and report.when == "call":
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
    told = {"case": report.nodeid, "when": report.when, "outcome": report.outcome}
    TOLD.write(json.dumps(told) + "\n")
