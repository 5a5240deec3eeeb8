"""The table `[command]` of a campaign: a command line, and what is read of its output."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

Launcher = Literal["srun", "mpirun", "alone"]

# Units of time that a metric may have, in seconds.
TIMES_S = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PER_SECOND = "/s"
# Beside its runs: a launch starts, a run that is late ends.
START_S, GRACE_S = 300.0, 10.0
# What always has a value in a line; a factor may be called `threads` alone of them.
GIVEN = ("ranks", "nodes", "ranks_per_node", "threads", "seed", "repeat", "out")
WALL = "wall"
MAX_TIMEOUT_S = 1e6
MAX_NAME = 64
# `{name}`, but not the shell's `${name}`; `{{name}}` stands for `{name}` itself.
_MARK = re.compile(r"(?<!\$)\{(\{[^{}]*\}|[A-Za-z_]\w*)\}")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from None
    return text


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]


class Metric(BaseModel):
    """A number that a program prints, or leaves in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="name of the metric")
    unit: str = Field(min_length=1, description="its unit: s, ms, rows/s, GFLOP/s, ...")
    regex: Pattern | None = Field(
        default=None, description="regular expression whose first group is the number, last match"
    )
    json_path: str | None = Field(
        default=None,
        alias="json",
        min_length=1,
        description="keys with dots between them, into the last line of output that is JSON",
    )
    file: str | None = Field(
        default=None, min_length=1, description="file to read in place of the output"
    )
    better: Literal["higher", "lower"] | None = Field(
        default=None, description="which is better; lower of a time, else higher"
    )
    primary: StrictBool = Field(default=False, description="what speed-ups are made of")

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if (self.regex is None) == (self.json_path is None):
            raise ValueError(f"metric {self.name!r} needs a regex or a json path, one of them")
        if self.regex is not None and not re.compile(self.regex).groups:
            raise ValueError(f"the regex of {self.name!r} has no group (...) around its number")
        if self.name == WALL:
            raise ValueError(f"{WALL!r} is the wall time, which every run has; take another name")
        is_time, is_rate = self.unit in TIMES_S, self.unit.endswith(PER_SECOND)
        if self.primary and not (
            (is_time and self.is_lower_better) or (is_rate and not self.is_lower_better)
        ):
            raise ValueError(
                f"primary metric {self.name!r} in {self.unit}: speed-ups need a time "
                f"({', '.join(TIMES_S)}), the lower the better, or a rate such as rows/s, the "
                "higher the better"
            )
        return self

    @property
    def is_lower_better(self) -> bool:
        """Whether a smaller value is the better one."""
        return (self.better or ("lower" if self.unit in TIMES_S else "higher")) == "lower"


class Command(BaseModel):
    """A program: how it is called, and how a run of it is judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    line: str = Field(
        pattern=r"\S",
        description="command line for bash; {ranks}, {nodes}, {ranks_per_node}, {threads}, {seed}, "
        "{repeat}, {out} (a folder for this run alone) and {FACTOR} get their values",
    )
    name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name of the program in reports; that of the script in its line by default",
    )
    launcher: Launcher | None = Field(
        default=None,
        description="what starts the ranks: srun under Slurm, else mpirun for a ladder of two or "
        "more where it is there, else alone: one process, which starts its ranks by {ranks}",
    )
    launcher_options: tuple[str, ...] = Field(
        default=(), description="further options of the launcher, such as --mpi=pmix"
    )
    scaling: Literal["strong", "weak"] = Field(
        default="strong", description="weak where each rank brings its own share of work"
    )
    work: Annotated[StrictInt, Field(ge=1, le=10**15)] = Field(
        default=1, description="units of work in a run, of each rank where scaling is weak"
    )
    work_unit: str = Field(default="runs", min_length=1, description="what a unit of work is")
    metrics: tuple[Metric, ...] = Field(
        default=(), description="what is read of a run; the wall time is primary if none is"
    )
    sanity: Pattern | None = Field(
        default=None, description="regular expression that the output of every run must match"
    )
    timeout: Annotated[StrictFloat, Field(gt=0, le=MAX_TIMEOUT_S)] = Field(
        default=900.0, description="seconds that one run may take"
    )
    over: tuple[str, ...] = Field(
        default=("threads",), description="factors over which speed-up and efficiency are shown"
    )
    workdir: str | None = Field(
        default=None, description="folder that it runs in; that of the campaign file by default"
    )

    @field_validator("metrics")
    @classmethod
    def _told_apart(cls, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        for name, count in Counter(metric.name for metric in metrics).items():
            if count > 1:
                raise ValueError(f"two metrics are called {name!r}")
        if sum(metric.primary for metric in metrics) > 1:
            raise ValueError("two metrics are primary; keep one")
        return metrics

    @property
    def primary(self) -> Metric | None:
        """The metric that speed-ups are made of; None for the wall time."""
        return next((metric for metric in self.metrics if metric.primary), None)

    @property
    def rate_unit(self) -> str | None:
        """What the primary metric counts in a second; None where it is a time."""
        primary = self.primary
        if primary is None or primary.unit in TIMES_S:
            return None
        return primary.unit.removesuffix(PER_SECOND)

    def longest_s(self, num_runs: int) -> float:
        """Return how long a case of so many runs may take, and its launch be without a word."""
        return num_runs * (self.timeout + 2 * GRACE_S) + START_S

    def check(self, factors: Mapping[str, Sequence[Any]], most_ranks: int) -> None:
        """Refuse factors that the line does not use, and names in it that have no value.

        Raises:
            ValueError: As said.
        """
        named = marks(self.line)
        if "ranks" in named and self.launcher is None and most_ranks > 1:
            raise ValueError(
                'with {ranks} in its line the command needs a launcher: "alone" where the line '
                'starts its ranks itself, else "srun" or "mpirun"'
            )
        files = [marks(metric.file) for metric in self.metrics if metric.file]
        for name, values in factors.items():
            if name in GIVEN and name != "threads":
                raise ValueError(f"factor {name!r} has a value of its own; take another name")
            if not re.fullmatch(r"[A-Za-z_]\w*", name) or not values:
                raise ValueError(f"factor {name!r} is no name, or has no value")
            if name == "threads" and not all(type(value) is int and value > 0 for value in values):
                raise ValueError(f"threads = {list(values)}: give whole numbers of 1 or more")
            if name != "threads" and name not in named:
                raise ValueError(f"the command's line does not use factor {name!r}: {{{name}}}")
        if unknown := named.union(*files) - {*factors, *GIVEN}:
            known = ", ".join(dict.fromkeys([*factors, *GIVEN]))
            word = min(unknown)
            raise ValueError(
                f"the command has {{{word}}}, which has no value; choose from {known}, or "
                f"write {{{{{word}}}}} for the braces themselves"
            )

    def beside(self, campaign_file: Path) -> "Command":
        """Return the command with its name, and where it runs as an absolute path."""
        folder = Path(campaign_file.parent, self.workdir or "").absolute()
        return self.model_copy(update={"workdir": str(folder), "name": self.name or self._called()})

    def _called(self) -> str:
        """Return the name of the script in the line, or of what the line begins with."""
        words = [Path(word).name for word in self.line.split() if not word.startswith("-")]
        scripts = [word for word in words if re.search(r"\w\.[A-Za-z]\w*$", word)]
        called = next(iter([*scripts, *words]), "")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", called).strip("-._")[:MAX_NAME] or "program"


def marks(line: str) -> set[str]:
    """Return the names in a line that get values."""
    return {found for found in _MARK.findall(line) if not found.startswith("{")}


def fill(line: str, values: Mapping[str, Any], *, quoted: bool = True) -> str:
    """Return a line with each `{name}` replaced by its value, quoted for the shell if asked."""

    def filled(mark: re.Match[str]) -> str:
        if mark[1].startswith("{"):
            return mark[1]
        value = written(values[mark[1]])
        return shlex.quote(value) if quoted else value

    return _MARK.sub(filled, line)


def written(value: Any) -> str:
    """Return a factor's value as a line holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
