"""One reader under the fuzzer, in a process whose memory and time for each input are bounded.

With atheris installed, inputs that reach new code are kept and changed further (libFuzzer);
without it, the valid samples are changed again and again.
"""

import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
ROOMS = ("lockstep",)

try:
    import atheris
except ImportError:
    atheris = None

with atheris.instrument_imports(include=list(ROOMS)) if atheris else contextlib.nullcontext():
    import fuzz_readers

import fuzz_mutations  # noqa: E402, after the path is set

# Of processor time, so that a busy machine makes no finding.
INPUT_LIMIT_S = 5.0
MEMORY_BYTES = 1 << 30  # beyond what the libraries have taken
MINIMISE_S = 10.0
MAX_FINDINGS = 20


class TooSlowError(BaseException):
    """An input took more than its time; no reader catches this by accident."""


@dataclass
class Tally:
    """What was seen of a reader.

    Attributes:
        inputs: Contents that were read.
        refused: Those that were refused in a sentence.
        seconds: How long that took.
        engine: What made them.
        faults: What went wrong -> the least content that shows it.
    """

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    engine: str = "atheris" if atheris else "mutations"
    faults: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it as JSON; contents in Latin-1, which has all bytes."""
        faults = {name: content.decode("latin-1") for name, content in self.faults.items()}
        path.write_text(json.dumps(asdict(self) | {"faults": faults}))


def fault_of(reader: "fuzz_readers.Reader", folder: Path, content: bytes) -> tuple[str, bool]:
    """Read a content, and return what went wrong, or nothing, and whether it was refused."""
    (folder / reader.place).write_bytes(content)
    signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, INPUT_LIMIT_S)
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
    return "", False


def _too_slow(number: int, frame: object) -> None:
    raise TooSlowError(f"more than {INPUT_LIMIT_S} s")


def _named(error: BaseException) -> str:
    """Name an error by its type and the last line of ours that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if Path(one.filename).is_relative_to(ROOT)]
    last = ours[-1] if ours else frames[-1]
    if isinstance(error, TooSlowError | RecursionError):  # which line it hits is chance
        return type(error).__name__
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} in {last.name}"


def minimised(reader: "fuzz_readers.Reader", folder: Path, content: bytes, name: str) -> bytes:
    """Return a part of a content that still shows the same."""
    give_up = time.monotonic() + MINIMISE_S
    size = max(1, len(content) // 2)
    while size and time.monotonic() < give_up:
        start = 0
        while start < len(content) and time.monotonic() < give_up:
            less = content[:start] + content[start + size :]
            if fault_of(reader, folder, less)[0] == name:
                content = less
            else:
                start += size
        size //= 2
    return content


class Run:
    """One reader, read until its time is over."""

    def __init__(self, name: str, seconds: float, seed: int, folder: Path, report: Path) -> None:
        self.reader = fuzz_readers.READERS[name]
        self.samples = fuzz_readers.samples(name)
        self.folder = folder
        self.report = report
        self.random = Random(seed)  # noqa: S311, no secret
        self.tally = Tally()
        (folder / self.reader.place).parent.mkdir(parents=True, exist_ok=True)
        os.environ["PATH"] = str(folder / "bin")  # none of Slurm's commands
        self.reader.before(folder)
        self.began = time.monotonic()
        self.ends = self.began + seconds

    def read(self, content: bytes) -> None:
        """Read one content; ends the process when the time is over."""
        fault, refused = fault_of(self.reader, self.folder, content)
        self.tally.inputs += 1
        self.tally.refused += refused
        if fault and fault not in self.tally.faults:
            self.tally.faults[fault] = minimised(self.reader, self.folder, content, fault)
        if time.monotonic() > self.ends or len(self.tally.faults) >= MAX_FINDINGS:
            self.tally.seconds = time.monotonic() - self.began
            self.tally.write(self.report)
            os._exit(0)  # libFuzzer's own end takes this process's report with it

    def mutate(self, content: bytes, max_size: int, seed: int) -> bytes:
        """Change a content as libFuzzer asks for it."""
        random = Random(seed)  # noqa: S311, no secret
        if random.random() < 0.2:
            return bytes(atheris.Mutate(content, max_size))
        if random.random() < 0.5:  # what was changed ten times is no file of this kind any more
            content = random.choice(self.samples)
        return fuzz_mutations.mutated(content, random, self.samples)[:max_size]

    def endless(self) -> None:
        """Read what the engine makes, until the time is over."""
        for sample in self.samples:
            self.read(sample)
        if atheris:
            self._with_coverage()
        while True:
            sample = self.random.choice(self.samples)
            self.read(fuzz_mutations.mutated(sample, self.random, self.samples))

    def _with_coverage(self) -> None:
        corpus = self.folder.with_name("corpus")
        corpus.mkdir()
        for number, sample in enumerate(self.samples):
            (corpus / str(number)).write_bytes(sample)
        options = [
            str(corpus), f"-seed={self.random.randrange(1, 2**31)}", "-rss_limit_mb=0",
            f"-max_len={fuzz_mutations.MAX_BYTES}", "-timeout=86400", "-verbosity=0",
            f"-artifact_prefix={self.folder}/",
        ]  # fmt: skip
        atheris.Setup(["fuzz", *options], self.read, custom_mutator=self.mutate)
        atheris.Fuzz()


def _bound_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123, it is no file
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))


def main(name: str, seconds: str, seed: str, folder: str, report: str) -> Any:
    """Fuzz one reader in a folder, and leave the tally in a file."""
    warnings.simplefilter("error")
    run = Run(name, float(seconds), int(seed), Path(folder), Path(report))
    _bound_memory()
    run.endless()


if __name__ == "__main__":
    main(*sys.argv[1:])
