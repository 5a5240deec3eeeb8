"""One launch of a program: its cases, each run so many times, in the journal that any launch has.

`lockstep run` and a job's script start `python -m lockstep.campaign.program.driver`, once a launch;
it is no rank, and starts the ranks itself. It exits with 0, 1 where a case has failed, 4 where it
cannot begin, or 75 where the stop file ended it.
"""

import argparse
import json
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from lockstep.campaign.program import programs
from lockstep.campaign.program.programs import Case, Failure, RunError, Start
from lockstep.campaign.program.table import WALL, Command, fill
from lockstep.core import errors, journal, sizes
from lockstep.core.journal import Journal
from lockstep.core.record import KEY, SCHEMA_VERSION, FailureCause

EXIT_FAILED, EXIT_USAGE, EXIT_STOPPED, EXIT_ENDED = 1, 4, 75, 143
RUNS = "runs"
# A pipe whose program fails fails: `./solve | tee log` is no success of tee.
SHELL = ("bash", "-o", "pipefail", "-c")
# Of a case's name, at the beginning of its folder's.
MAX_SHOWN = 40


@dataclass(frozen=True)
class Driver:
    """What a launch is to do.

    Attributes:
        source: Digest of the program as it is before any run.
    """

    given: argparse.Namespace
    command: Command
    factors: dict[str, list[Any]]
    rounds: int
    warmups: int
    start: Start
    source: str

    @property
    def labels(self) -> dict[str, str]:
        """What the launch is called."""
        return dict(label.split("=", 1) for label in self.given.label)

    def cases(self) -> list[Case]:
        """Return all cases of the launch's part, in the order of the factors."""
        rows = [
            dict(zip(self.factors, row, strict=True)) for row in product(*self.factors.values())
        ]
        cases = [Case(f"{self.command.name}[{sizes.case_id(row)}]", row) for row in rows]
        if not self.factors:
            cases = [Case(str(self.command.name), {})]
        number, num_parts = map(int, (self.given.part or "1/1").split("/"))
        return cases[number - 1 :: num_parts]

    def threads(self, case: Case) -> int:
        """Return the threads of a rank in a case."""
        return int(case.factors.get("threads", self.given.threads_per_rank))

    def measure(self) -> int:
        """Measure what the journal lacks, and return the exit code."""
        kept = Journal(self.given.journal)
        errors.keep_in(kept.path.parent, 0)
        cases = self.cases()
        seed = self._begin(kept, [case.name for case in cases])
        code = 0
        for position, case in enumerate(sizes.shuffled(cases, lambda one: one.name, seed)):
            if case.name in self._settled():
                continue
            if self.given.stop_file and self.given.stop_file.exists():
                return EXIT_STOPPED
            kept.begin(case.name)
            end = self._end_of(case, position)
            kept.append({"case": case.name, **end})
            code = EXIT_FAILED if end["kind"] == "fail" else code
        kept.restore()
        return code

    def _settled(self) -> set[str]:
        """Return the cases that this launch leaves as they are."""
        done = journal.settled(self.given.journal)
        leave = {"case", "skip"} | ({"fail"} if self.given.skip_failed else set())
        return {case for case, kind in done.items() if kind in leave}

    def _begin(self, kept: Journal, expected: list[str]) -> int:
        """Write the head of this session, and return the seed of the order of cases."""
        path = self.given.journal
        is_there = self.given.resume and bool(journal.current(journal.read(path)))
        block = journal.rebuild(path)[KEY] if is_there else {}
        flight = block.get("in_flight")
        if is_there:
            self._refuse_other_source(path)
        drawn = self.given.order_seed
        drawn = secrets.randbits(32) if drawn is None else drawn
        seed = int(block.get("order_seed", drawn))
        kept.append({
            "kind": "launch", "schema": SCHEMA_VERSION, "resumed": is_there,
            "skips_failed": self.given.skip_failed, "expected": expected,
            "document": programs.document(), "launch": self._facts(seed),
        })  # fmt: skip
        if flight and self.given.skip_failed:
            kept.append(journal.crash(flight, self.given.after))
        return seed

    def _refuse_other_source(self, path: Path) -> None:
        """Refuse to go on where the program was edited since; one name would be two programs."""
        for case, entry in journal.measured(path).items():
            if entry["extra_info"][KEY]["workload_sha256"] != self.source:
                raise ValueError(
                    f"{path} holds {case}, measured before the command or a program that it names "
                    "was changed; put it back, or measure into another folder"
                )

    def _facts(self, order_seed: int) -> dict[str, Any]:
        given, start = self.given, self.start
        # A case of more threads than cores has a flag; it is none against the others.
        threads = min(map(self.threads, self.cases()))
        return {
            **self.labels,
            "size": given.size,
            "rounds": self.rounds,
            "warmup_rounds": self.warmups,
            "part": given.part and [int(part) for part in given.part.split("/")],
            "order_seed": order_seed,
            "world_size": given.world_size,
            "num_nodes": len(set(start.hosts)),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "provenance": programs.provenance_of(start, threads, given.device, given.seed),
        }

    def _end_of(self, case: Case, position: int) -> dict[str, Any]:
        """Run a case and return how it ended, as the journal is to hold it."""
        runs: list[dict[str, float]] = []
        for number in range(1, self.warmups + self.rounds + 1):
            try:
                values = self._run(case, number)
            except RunError as error:
                return self._failed(case, error.of_run(number))
            if number > self.warmups:
                runs.append(values)
        flags = programs.flags_of(self.start, self.threads(case))
        launch = {
            "position": position,
            "workload_sha256": self.source,
            "flags": [flag.to_dict() for flag in flags],
        }
        line = fill(self.command.line, self._given(case, 0) | {"out": "OUT"})
        try:
            case_record = programs.record(self.command, case, self.start, runs, line, launch)
            entry = journal.fixed({"benchmark": programs.entry(case, case_record)})
        except ValueError as error:
            return {"kind": "fail", "reason": f"the result cannot be kept: {error}"}
        sys.stdout.write(f"{case.name}: {', '.join(_shown(self.command, runs))}\n")
        return {"kind": "case", **entry}

    def _run(self, case: Case, number: int) -> dict[str, float]:
        """Return the metrics of one run, its wall time among them.

        Raises:
            RunError: It does not count.
        """
        given = self._given(case, number)
        words = [*self.start.words, *SHELL, fill(self.command.line, given)]
        environ = programs.environment(self.threads(case), os.environ)
        ended = programs.run(
            words, Path(given["out"]), self.command.workdir or ".", environ, self.command.timeout
        )
        return {WALL: ended.wall_s} | programs.values(self.command, ended, given)

    def _given(self, case: Case, number: int) -> dict[str, Any]:
        """Return what the names in the line stand for."""
        hosts = self.start.hosts
        name = f"{case.name.replace('/', '_')[:MAX_SHOWN]}-{sizes.case_digest(case.name)}"
        folder = self.given.journal.absolute().parent / RUNS / name
        return {
            "ranks": len(hosts),
            "nodes": len(set(hosts)),
            "ranks_per_node": max(hosts.count(host) for host in set(hosts)),
            "threads": self.threads(case),
            "seed": self.given.seed,
            "repeat": self.labels.get("repeat", "0"),
            "out": str(folder / str(number)),
            **case.factors,
        }

    def _failed(self, case: Case, failure: Failure) -> dict[str, Any]:
        sys.stdout.write(f"{case.name} failed: {failure}\n")
        cause = FailureCause(0, self.start.hosts[0], self.given.device, "fault", str(failure))
        return {
            "kind": "fail", "reason": str(failure), "failure": failure.to_dict(),
            "causes": [asdict(cause)],
        }  # fmt: skip


def _shown(command: Command, runs: Sequence[dict[str, float]]) -> Iterator[str]:
    units = {WALL: "s"} | {metric.name: metric.unit for metric in command.metrics}
    for name, unit in units.items():
        yield f"{name} {' '.join(f'{run[name]:.6g}' for run in runs)} {unit}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep.campaign.program.driver", allow_abbrev=False)
    parser.add_argument("--table", type=json.loads, required=True, help="what to run, as JSON")
    parser.add_argument("--world-size", type=int, required=True, help="ranks")
    parser.add_argument("--journal", type=Path, required=True, help="keep finished cases here")
    parser.add_argument("--under", action="append", default=[], help="a word of srun's command")
    parser.add_argument("--inside", action="append", default=[], help="a word before the program")
    parser.add_argument("--label", action="append", default=[], help="a fact to keep, NAME=VALUE")
    parser.add_argument("--device", default="cpu", help="what the program computes on")
    parser.add_argument("--size", help="name of the size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order-seed", type=int, help="seed of the order of cases")
    parser.add_argument("--threads-per-rank", type=int, default=1)
    parser.add_argument("--part", help="K/N, the K-th of N parts of the cases")
    parser.add_argument("--stop-file", type=Path, help="end before the next case once it is there")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--skip-failed", action="store_true")
    parser.add_argument("--after", default="", help="how the session before ended")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a launch; options that are for pytest alone are left aside."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_ENDED))
    given, _ = _parser().parse_known_args(arguments)
    try:
        command = Command.model_validate(given.table["command"])
        most = given.table["most_ranks"]
        start = programs.start(command, given.world_size, most, given.under, given.inside)
        rounds, warmups = given.table["rounds"], given.table["warmup_rounds"]
        source = programs.source_sha256(command)
        driver = Driver(given, command, given.table["factors"], rounds, warmups, start, source)
        code = driver.measure()
    except (ValueError, RuntimeError, OSError) as error:
        _refuse(error)
    sys.exit(code)


def _refuse(error: Exception) -> NoReturn:
    errors.note(str(error))
    sys.stderr.write(f"ERROR: {error}\n")
    sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
