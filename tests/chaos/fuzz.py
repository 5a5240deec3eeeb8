"""Hostile contents for every reader of files that others may have written: `make fuzz`.

A content is good when its reader returns, or refuses it in a sentence, within its time and memory.
What else happens is a finding: the least content that shows it is written into tests/data/fuzz,
where tests/chaos/test_fuzz.py reads it from then on.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from data.report_samples import document, full_tree, provenance, record, strong_tree  # noqa: E402
from stand_ins import keep, leave, sacct, send  # noqa: E402

from lockstep.campaign import campaign  # noqa: E402
from lockstep.campaign.folder import Folder  # noqa: E402
from lockstep.core import journal  # noqa: E402
from lockstep.launch import preflight  # noqa: E402
from lockstep.report.check import checker  # noqa: E402
from lockstep.report.columns import table  # noqa: E402
from lockstep.report.compare import comparison  # noqa: E402
from lockstep.report.compute.evaluation import evaluate  # noqa: E402
from lockstep.report.compute.scaling import series_of  # noqa: E402
from lockstep.report.gate import gates, targets  # noqa: E402
from lockstep.report.load import imports  # noqa: E402
from lockstep.report.load.reading import gather, load  # noqa: E402
from lockstep.report.page.content_of_page import page  # noqa: E402
from lockstep.report.page.render import html  # noqa: E402
from lockstep.report.predict import prediction  # noqa: E402
from lockstep.report.words.console import console_table  # noqa: E402
from lockstep.slurm.status import accounting, collection, standing  # noqa: E402
from lockstep.slurm.status.sent import Results  # noqa: E402

DATA = ROOT / "tests" / "data"
FOUND = DATA / "fuzz"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108, contents are written a thousand times a second
LIMIT_S = 5.0  # of processor time for a content, so that a busy machine makes no finding
WAIT_S = 60.0
MEMORY_BYTES = 1 << 30  # beyond what the libraries have taken
EXAMPLES = 100  # between two looks at the clock
LAUNCH = "w1-r0"
MEASURED_WITH = {"world_size": 1, "seed": 0, "batches": [1, 2]}
# Drawing takes a hundred times as long as reading.
DRAWN = 200


@dataclass(frozen=True)
class Reader:
    """One kind of file, and all that reads it.

    Attributes:
        name: What `--only` calls it.
        samples: Makes valid contents.
        place: Where the file stands in a folder of results.
        read: Reads a folder that holds the file.
        refusals: What it may raise: ValueError for a file, RuntimeError for what Slurm says.
        before: Writes what stands beside the file, once for each folder.
    """

    name: str
    samples: Callable[[], list[bytes]]
    place: str
    read: Callable[[Path], object]
    refusals: tuple[type[Exception], ...] = (ValueError,)
    before: Callable[[Path], object] = field(default=lambda folder: None)


def _made(make: Callable[[Path], object], *places: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        return [path.read_bytes() for place in places for path in sorted(folder.glob(place))]


def _each(*reads: Callable[[], object]) -> None:
    """Read in every way, whatever the ways before refused; the last refusal is raised."""
    refused = None
    for read in reads:
        try:
            read()
        except ValueError as error:
            refused = error
    if refused:
        raise refused


# Results


def _read_journal(folder: Path) -> None:
    path = folder / "launches" / LAUNCH / "journal.jsonl"
    here = Folder(folder)
    _each(
        lambda: journal.read(path),
        lambda: journal.outcomes(path),
        lambda: journal.in_flight(path),
        lambda: json.dumps(journal.rebuild(path), allow_nan=False),
        lambda: preflight.resumable(path, MEASURED_WITH, provenance(), {}),
        lambda: here.outcome(LAUNCH, ("weak",)),
        lambda: here.write_result(LAUNCH),
        lambda: collection._rank_hours(Results(folder)),
        lambda: _report(folder),
    )


def _journals() -> list[bytes]:
    content = document(LAUNCH, 1, {"strong[64]": record(), "weak[64]": record("weak")})
    cases = [
        {"kind": "case", "case": one["name"], "benchmark": one} for one in content["benchmarks"]
    ]
    head = {"kind": "launch", "schema": 1, "document": {"version": "5"}}
    facts = content["lockstep"] | {"measured_with": MEASURED_WITH}
    head |= {"launch": facts, "expected": [*(one["case"] for one in cases), "b", "c"]}

    def measured(folder: Path) -> None:
        _write_journal(folder, [head | {"resumed": False}, *cases])

    def resumed(folder: Path) -> None:
        _write_journal(folder, [head | {"resumed": False}, cases[0]])
        skip = {"kind": "skip", "case": "b", "reason": "no bf16"}
        fail = {"kind": "fail", "case": "c", "reason": "rank 1: boom", "crashed": True}
        _write_journal(folder, [head | {"resumed": True}, skip, fail], in_flight="d")

    return [sample for make in (resumed, measured) for sample in _made(make, "launches/*/*.jsonl")]


def _write_journal(folder: Path, entries: list[dict[str, object]], in_flight: str = "") -> None:
    kept = journal.Journal(folder / "launches" / LAUNCH / "journal.jsonl")
    for entry in entries:
        kept.append(entry)
    if in_flight:
        kept.begin(in_flight)
    kept.close()


def _results() -> list[bytes]:
    def small(folder: Path) -> None:
        strong_tree(folder, {1: (0.1,)})

    stats = {"median": 0.2, "mean": 0.25, "min": 0.1, "max": 0.4, "stddev": 0.1, "rounds": 7}
    foreign = {"benchmarks": [{"name": "test_sort", "stats": stats}]}
    whole = _made(full_tree, "launches/w1-r0/result.json")
    return [*_made(small, "launches/*/result.json"), json.dumps(foreign).encode(), *whole]


def _report(folder: Path) -> None:
    """Make all that a report is, its figures only now and then."""
    results = load([folder])
    series = series_of(results.rows)
    json.dumps(table(series), allow_nan=False)
    "\n".join(console_table(results, series)).encode()
    made = page(evaluate(results), 0.7, "lockstep report")
    text = json.dumps(made, allow_nan=False)
    if zlib.crc32(text.encode()) % DRAWN == 0:
        html(made).encode()


def _judge(folder: Path) -> None:
    results = gather([folder])
    json.dumps([one.record() for one in checker.check(results)], allow_nan=False)
    found = gates.verdicts(targets.load("proposal"), results, None)
    json.dumps(gates.document(found), allow_nan=False)
    json.dumps(comparison.document(comparison.compare(results, results), ("a", "b")))
    for one in filter(prediction.can_be_modelled, series_of(results.rows)):
        ladder = prediction.ladder_of(one, results.tables.get(one.case) or {})
        for at in (1, 2 * ladder.sizes[-1]):
            json.dumps(prediction.predict(ladder, at, force=True).record(), allow_nan=False)


def _report_and_judge(folder: Path) -> None:
    _each(lambda: _report(folder), lambda: _judge(folder))


# Tables of others


def _read_table(folder: Path) -> None:
    path = folder / "table.csv"
    imported = imports.read([path], 50_000)
    imports.write(imported, [path], folder / "out", force=True)
    _report(folder / "out")


def _imported() -> list[bytes]:
    def make(folder: Path) -> None:
        paths = [DATA / "hours.csv", DATA / "fixed_epochs.csv"]
        imports.write(imports.read(paths, 50_000), paths, folder)

    return _made(make, "imported.json")


# What Slurm says


def _sacct() -> list[bytes]:
    job = {
        "JobID": "17", "JobIDRaw": "17", "State": "COMPLETED", "ExitCode": "0:0",
        "Elapsed": "1-02:00:00", "Submit": "1000", "Start": "1030", "End": "8230",
        "AllocTRES": "cpu=16,gres/gpu=4,mem=64G,node=1", "AllocCPUS": "16", "NNodes": "1",
        "ReqMem": "4Gc", "NodeList": "node[1-2]",
    }  # fmt: skip
    step = {"JobID": "17.0", "JobIDRaw": "17.0", "State": "CANCELLED by 1001", "MaxRSS": "28.5G",
            "TotalCPU": "06:42:00.5", "NTasks": "4", "TRESUsageInTot": "mem=48G"}  # fmt: skip
    array = {"JobID": "25_[4-9%2]", "JobIDRaw": "25", "State": "PENDING", "Submit": "Unknown"}
    return [
        sacct(job, step, array, {"JobID": "25_3", "JobIDRaw": "31", "State": "FAILED"}).encode()
    ]


def _read_sacct(folder: Path) -> None:
    said = (folder / "said.txt").read_bytes().decode(errors="replace")
    for account in accounting.read(said).values():
        json.dumps(account, allow_nan=False)
        standing.state_of(None, account, None)


# What jobs leave


def _campaign_folder(folder: Path) -> None:
    send(folder, "ladder", "17", [LAUNCH, "w4-r0"])
    send(folder, "array", "25", ["w8-r0"], kind="array")
    send(folder, "lost", None)
    keep(folder, LAUNCH, "a", job_id="17")
    leave(folder, "17", 0)
    leave(folder, "25", 1, lost="node2")


def _read_jobs(folder: Path) -> None:
    results = Results(folder)
    _each(
        lambda: results.jobs(),
        lambda: results.submissions(),
        lambda: results.staging(),
        lambda: standing.Board(results).look().is_bad,
        lambda: json.dumps(_collected(results), allow_nan=False),
        lambda: results.missing(campaign.load("smoke"), campaign.plan(campaign.load("smoke"))),
    )


def _collected(results: Results) -> object:
    try:
        return collection.collect(results)
    finally:  # so that the next content finds none
        results.accounting_file.unlink(missing_ok=True)


READERS = {
    one.name: one
    for one in (
        Reader("journal", _journals, f"launches/{LAUNCH}/journal.jsonl", _read_journal),
        Reader("result", _results, f"launches/{LAUNCH}/result.json", _report_and_judge,
               before=lambda folder: strong_tree(folder, {2: (0.06,)})),
        Reader("imported", _imported, "imported.json", _report_and_judge),
        Reader("table", lambda: [path.read_bytes()[:3000] for path in sorted(DATA.glob("*.csv"))],
               "table.csv", _read_table),
        Reader("sacct", _sacct, "said.txt", _read_sacct, (RuntimeError,)),
        Reader("submitted", lambda: _made(_campaign_folder, "jobs/submitted.jsonl"),
               "jobs/submitted.jsonl", _read_jobs, before=_campaign_folder),
    )
}  # fmt: skip


@cache
def samples(name: str) -> list[bytes]:
    return READERS[name].samples()


# What stands where a word or a number should: JSON first, since most readers read it.
TOKENS = (
    b"null", b"true", b"[]", b"{}", b'""', b"[[]]", b"[{}]", b'{"a":{}}', b'"x"', b"-1", b"0",
    b"0.5", b"1e-320", b"1e308", b"1e999", b"NaN", b"Infinity", b"nan", b"1_000", b"0x10",
    b"9" * 400, b"9" * 5000, b"18446744073709551616", b"2147483648", b"01", b'"1"', b'"""',
    b"\\", b'"\\ud800"', b'"\\u0000"', b'"\\u001b[2J"', "\"\u202e\u2028\u0130\"".encode(),
    b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\r\n", b"\r", b"\xef\xbb\xbf", b"|", b",",
    b"=", b"../../etc/passwd", b"/dev/zero", b"{{7*7}}", b"$(id)", b"node[1-99999999]",
    b"7_[1-9%2]", b"99999999999999-00:00:00", b"1024E", b"Unknown", b"CANCELLED by 0",
    b"9999-12-31T23:59:59", b"0001-01-01T00:00:00", b"\xd9\xa3", b"\xc2\xb2",
    b"launch", b"case", b"fail",
)  # fmt: skip
_PIECE = re.compile(rb'"(?:[^"\\]|\\.)*"|[^\s|,:=\[\]{}()"]+|\s+|.', re.DOTALL)
_BRACKETS = ((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"))


@st.composite
def contents(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Draw a valid sample with one to four things wrong.

    JSON, TOML, CSV and Slurm's tables are alike: words between separators, in lines. What changes
    words keeps most of a sample valid, so that a reader's later parts are reached as well.
    """
    pieces = _PIECE.findall(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(pieces)))
        end = start + draw(st.sampled_from((1, 1, 1, 0, 2, 4, 16, 256)))
        chosen = b"".join(pieces[start:end])
        how = draw(
            st.sampled_from(("token",) * 4 + ("cut", "twice", "bytes", "nest", "long", "end"))
        )
        if how == "token":
            put = draw(st.sampled_from(TOKENS))
        elif how == "twice":
            put = b",".join([chosen] * draw(st.sampled_from((2, 2, 100))))
        elif how == "bytes":
            put = draw(st.binary(max_size=8))
        elif how == "nest":
            opening, closing = draw(st.sampled_from(_BRACKETS))
            depth = draw(st.sampled_from((2, 64, 65, 3000)))
            put = opening * depth + (chosen or b"1") + closing * depth
        elif how == "long":
            put = draw(st.sampled_from((b"x", b"9", b"a|", b"1,", b"[", b"\n"))) * 20_000
        else:
            put, end = b"", len(pieces) if how == "end" else end
        pieces[start:end] = [put]
    return b"".join(pieces)


class TooSlowError(BaseException):
    """A content took more than its time; no reader catches this by accident."""


def fault_of(reader: Reader, folder: Path, content: bytes) -> tuple[str, bool]:
    """Read a content, and return what went wrong, or nothing, and whether it was refused."""
    (folder / reader.place).write_bytes(content)
    for number, timer, limit_s in (
        (signal.SIGPROF, signal.ITIMER_PROF, LIMIT_S),
        (signal.SIGALRM, signal.ITIMER_REAL, WAIT_S),
    ):
        signal.signal(number, _too_slow)
        signal.setitimer(timer, limit_s)
    try:
        reader.read(folder)
    except RecursionError as error:
        return _named(error), False
    except reader.refusals:
        return "", True
    except BaseException as error:  # noqa: BLE001, whatever it is, it is a finding
        return _named(error), False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "", False


def _too_slow(number: int, frame: object) -> None:
    raise TooSlowError


def _named(error: BaseException) -> str:
    """Name an error by its type and the last line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [one for one in frames if Path(one.filename).is_relative_to(ROOT)][-1]
    if isinstance(error, TooSlowError | RecursionError):  # which line it hits is chance
        return type(error).__name__
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} in {last.name}"


def prepare(reader: Reader, folder: Path) -> None:
    """Make a folder in which a reader can read, with none of Slurm's commands on PATH."""
    (folder / reader.place).parent.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = ""
    reader.before(folder)


@dataclass
class Seen:
    """What became of one reader: contents read and refused, and fault -> the least content."""

    num_read: int = 0
    num_refused: int = 0
    faults: dict[str, bytes] = field(default_factory=dict)


def fuzz(name: str, seconds: float, number: int) -> Seen:
    """Feed one reader until its time is over; hypothesis makes what goes wrong smaller."""
    reader, seen, give_up = READERS[name], Seen(), time.monotonic() + seconds
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        folder = Path(temporary)
        prepare(reader, folder)

        def read(content: bytes) -> None:
            if time.monotonic() > give_up and not seen.faults:
                return
            fault, refused = fault_of(reader, folder, content)
            seen.num_read += 1
            seen.num_refused += refused
            if fault:
                seen.faults[fault] = min(seen.faults.get(fault, content), content, key=len)
                raise AssertionError(fault)

        while time.monotonic() < give_up and not seen.faults:
            asked = settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            try:
                seed(number)(asked(given(contents(samples(name)))(read)))()
            except (AssertionError, ExceptionGroup):
                break
            number += 1
    return seen


def _keep(name: str, seen: Seen) -> None:
    """Write what shows each fault into a file, and say where."""
    for fault, content in seen.faults.items():
        path = FOUND / name / f"{zlib.crc32(content):08x}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {"fault": fault, "content": content.decode("latin-1")}  # which has all bytes
        path.write_text(json.dumps(found, indent=1) + "\n")
        sys.stdout.write(f"  {fault}: {path.relative_to(ROOT)} ({len(content)} bytes)\n")


def main() -> int:
    """Fuzz the readers one after the other; return 1 where one has a finding."""
    parser = argparse.ArgumentParser(description="Feed hostile contents to every reader.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader [60]")
    parser.add_argument("--only", default=",".join(READERS), help="readers, by commas")
    parser.add_argument("--seed", type=int, default=1, help="of what is changed, and how [1]")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := set(names) - set(READERS):
        parser.error(f"no reader {unknown}; choose from {', '.join(READERS)}")
    warnings.simplefilter("error")
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = taken * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout.write("reader          inputs  refused  findings\n")
    is_well = True
    for name in names:
        seen = fuzz(name, asked.seconds, asked.seed)
        refused = seen.num_refused / max(1, seen.num_read)
        row = f"{name:<11} {seen.num_read:>10} {refused:>8.0%} {len(seen.faults):>9}\n"
        sys.stdout.write(row)
        _keep(name, seen)
        sys.stdout.flush()
        is_well &= not seen.faults
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
