"""What must hold after the launches of a plan, whatever it did wrong.

The journal is read here by rules of its own, not by the suite's reader, which is judged by them.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz_ranks_launch import (
    KILL_AFTER_S,
    MAX_UNMET_LAUNCHES,
    Launched,
    Sequence,
    case_number,
    ends,
    said,
)
from fuzz_ranks_plan import DIVERGENT, PHASES, SILENT, Case, Fault, Plan, expected_number

ENDS = ("case", "skip", "fail")
# Ranks may end with these: pytest's own, and those of a launch that lost a rank, a store or a step.
CODES = {0, 1, 2, 5, 70, 76}
CODE_BEFORE_A_CASE = 78  # ranks that did not meet in time
# Before the first line: those, or a rank that its watchdog ended.
CODES_UNMET = {1, CODE_BEFORE_A_CASE}
# Seconds that a launch may take beside its cases, and a bad case beside its budget: the verdict
# waits for a rank, the survivors for the verdict and their watchdogs.
START_S = 15.0
SLACK_S = 4.0


def findings(sequence: Sequence) -> list[str]:
    """Return what does not hold, in one sentence each."""
    try:
        lines = fenced(sequence.folder / "out.journal.jsonl")
        return [*_of_records(sequence, lines), *_of_launches(sequence), *_of_json(sequence.folder)]
    except (ValueError, OSError, KeyError) as error:
        return [f"a file cannot be read: {error!r}"]


def fenced(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the last chain of sessions, each of the attempt that was its own."""
    if not path.exists():
        return []
    kept: list[dict[str, Any]] = []
    attempt = None
    for text in path.read_bytes().split(b"\n")[:-1]:
        line = json.loads(text)
        if line["kind"] == "launch":
            attempt = line["attempt"]
            kept = kept if line["resumed"] else []
        if line["attempt"] == attempt:
            kept.append(line)
    return kept


def _of_records(sequence: Sequence, lines: list[dict[str, Any]]) -> Iterator[str]:
    plan = sequence.plan
    records = [(case_number(line["case"]), line) for line in lines if line["kind"] in ENDS]
    counted = Counter(number for number, _ in records)
    for number in range(len(plan.cases)):
        if counted[number] != 1:
            yield f"case {number} is recorded {counted[number]} times"
    numbers = _numbers(sequence)
    for number, line in records:
        found = _of_record(plan, number, line, numbers)
        yield from (f"case {number} is recorded as {line['kind']}: {what}" for what in found)
    read = ends(sequence.folder)
    if read != {number: line["kind"] for number, line in records}:
        yield f"the suite reads {read} in its journal"


def _of_record(
    plan: Plan, number: int, line: dict[str, Any], numbers: list[tuple[int, str, int, float]]
) -> Iterator[str]:
    case = plan.cases[number]
    reason = str(line.get("reason", ""))
    if line["kind"] == "case":
        if case:
            yield f"although {case} misbehave"
        yield from _wrong_numbers(plan, number, numbers)
    elif line["kind"] == "skip":
        if {fault.rank for fault in case if fault.kind == "skip"} != set(range(plan.world_size)):
            yield f"although not all ranks skip: {case}"
    elif not case and "wrong number" in reason:
        yield f"its numbers mixed with another case's: {reason}"
    elif case and not _names_a_culprit(plan, case, reason):
        yield f"no culprit of {case} is named: {reason!r}"


def _wrong_numbers(
    plan: Plan, number: int, numbers: list[tuple[int, str, int, float]]
) -> Iterator[str]:
    found = {(phase, rank): value for case, phase, rank, value in numbers if case == number}
    for phase in PHASES:
        expected = expected_number(number, phase, plan.world_size)
        own = [found.get((phase, rank)) for rank in range(plan.world_size)]
        if own != [expected] * plan.world_size:
            yield f"its ranks hold {own} of {phase}, not {expected}"


def _numbers(sequence: Sequence) -> list[tuple[int, str, int, float]]:
    """Return (case, phase, rank, number) as the ranks wrote them."""
    found = []
    for rank in range(sequence.plan.world_size):
        path = sequence.folder / f"numbers-{rank}.jsonl"
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            line = json.loads(text)
            found.append((line["case"], line["phase"], rank, line["number"]))
    return found


def _names_a_culprit(plan: Plan, case: Case, reason: str) -> bool:
    """Return whether a failure names a rank that was the first to misbehave.

    Who sends too much or too little cannot be told, nor who froze the store: any rank will do
    there. A lost store is to be named itself.
    """
    first = min(PHASES.index(fault.phase) for fault in case)
    early = [fault for fault in case if PHASES.index(fault.phase) == first]
    ranks = {fault.rank for fault in early}
    if len(ranks) == plan.world_size and {fault.kind for fault in early} <= SILENT:
        return True  # nobody was left to say so
    is_store_frozen = plan.store == "rank-0" and Fault(0, PHASES[first], "stop") in early
    if is_store_frozen or any(fault.kind in DIVERGENT for fault in early):
        ranks = set(range(plan.world_size))
    serves = plan.store == "rank-0" and 0 in ranks  # then its end is the store's
    if (serves or any(fault.kind == "store" for fault in early)) and "store" in reason:
        return True
    return any(re.search(rf"\brank {rank}\b", reason) for rank in ranks)


def _of_launches(sequence: Sequence) -> Iterator[str]:
    if sequence.num_unmet == MAX_UNMET_LAUNCHES:
        yield f"its ranks did not meet in {MAX_UNMET_LAUNCHES} launches; give them more --patience"
    for number, launched in enumerate(sequence.launches):
        where = f"launch {number}"
        if launched.is_hung:
            yield f"{where} hung: {[str(one) for one in launched.ranks]}"
        elif launched.seconds > (allowed_s := limit_s(launched, sequence.plan)):
            yield f"{where} took {launched.seconds:.1f} s, allowed are {allowed_s:.1f} s"
        if launched.num_left:
            yield f"{where} left {launched.num_left} process(es) behind"
        for one in launched.ranks:
            if _is_odd(one, sequence, launched):
                last = said(sequence, number, one.rank)[-1:]
                yield f"{where}: {one}; the last it said: {last}"


def limit_s(launched: Launched, plan: Plan) -> float:
    """Return how many seconds a launch may take: its bad cases', the one in flight included."""
    num_bad = launched.num_failed + 1
    bad_case_s = plan.case_budget_s + plan.comm_timeout_s + SLACK_S
    end_s = plan.end_s + SLACK_S if plan.stuck else 0.0
    return START_S * plan.patience + plan.grace_s + KILL_AFTER_S + num_bad * bad_case_s + end_s


def _is_odd(one: Any, sequence: Sequence, launched: Launched) -> bool:
    """Return whether a rank ended in a way that neither the plan nor the suite explains."""
    if one.is_ours:
        return False
    if not launched.has_met:
        return one.code not in CODES_UNMET
    if one.code in CODES:
        return False
    if one.code == CODE_BEFORE_A_CASE:
        return launched.num_ended > 0
    planned = {fault.kind for case in sequence.plan.cases for fault in case}
    # What raises in a teardown that pytest makes up for after an interrupt leaves pytest itself.
    explained = {3: "exit-3", -9: "kill", -6: "shape", -2: "interrupt"}.get(one.code)
    return explained not in planned


def _of_json(folder: Path) -> Iterator[str]:
    """Judge the result that pytest-benchmark's readers see."""
    path = folder / "out.json"
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=_refuse_constant)
    for entry in document["benchmarks"]:
        if not all(math.isfinite(value) for value in entry["stats"]["data"]):
            yield f"{entry['name']} holds times that are not finite"
    names = [entry["fullname"] for entry in document["benchmarks"]]
    if len(set(names)) < len(names):
        yield f"out.json holds a case twice: {names}"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
