"""The table `[command]` of a campaign: a command line, and the numbers to read from its output."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

from lockstep.core.factors import format_value
from lockstep.core.inputs import Table, key
from lockstep.core.studies import WorkScaling

Launcher = Literal["srun", "mpirun", "alone"]

# Units of time that a metric may have, in seconds.
TIMES_S = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PER_SECOND = "/s"
# Seconds for the start of a launch, and for the end of a run after its timeout.
START_S, GRACE_S = 300.0, 10.0
# Names that have a value in every line; only `threads` may also be a factor.
GIVEN = ("ranks", "nodes", "ranks_per_node", "threads", "seed", "repeat", "out")
WALL = "wall"
MAX_TIMEOUT_S = 1e6
MAX_NAME = 64
# `{name}`, but not the shell's `${name}`; `{{name}}` becomes the text `{name}`.
_MARK = re.compile(r"(?<!\$)\{(\{[^{}]*\}|[A-Za-z_]\w*)\}")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"the text is not a valid regular expression: {error}") from None
    return text


Timeout = Annotated[StrictFloat, Field(gt=0, le=MAX_TIMEOUT_S)]
Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]


class Metric(Table):
    """A number that a program prints or writes into a file."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="name of the metric")
    unit: str = Field(
        min_length=1, description="unit of the metric, such as s, ms, rows/s or GFLOP/s"
    )
    regex: Pattern | None = key(
        "regular expression with a group (...) around the number; the last match in the output "
        "is used"
    )
    json_path: str | None = key(
        "keys of the number in the last JSON line of the output, joined by dots: results.time",
        alias="json",
        min_length=1,
    )
    file: str | None = key(
        "file that holds the number; by default the number is read from the output", min_length=1
    )
    better: Literal["higher", "lower"] | None = key(
        "whether higher or lower values are better; by default lower for a time, higher for any "
        "other unit"
    )
    primary: StrictBool = key("compute speed-ups from this metric", default=False)
    curve: StrictBool = key(
        "draw all matches of the regex as a curve, for example of the training loss", default=False
    )

    @model_validator(mode="after")
    def _can_be_read(self) -> Self:
        if (self.regex is None) == (self.json_path is None):
            raise ValueError(
                f"metric {self.name!r} needs either regex or json; give exactly one of them"
            )
        if self.regex is not None and not re.compile(self.regex).groups:
            raise ValueError(
                f"the regex of metric {self.name!r} has no group (...) around its number"
            )
        if self.curve and self.regex is None:
            raise ValueError(f"metric {self.name!r} has curve = true, which needs regex; set regex")
        if self.name == WALL:
            raise ValueError(
                f"the metric name {WALL!r} is reserved for the wall time of a run; choose another "
                "name"
            )
        is_time, is_rate = self.unit in TIMES_S, self.unit.endswith(PER_SECOND)
        if self.primary and not (
            (is_time and self.is_lower_better) or (is_rate and not self.is_lower_better)
        ):
            times = ", ".join(TIMES_S)
            raise ValueError(
                f"the primary metric {self.name!r} with the unit {self.unit} gives no speed-up; "
                f'use a unit of time ({times}) with better = "lower", or a rate such as rows/s '
                'with better = "higher"'
            )
        return self

    @property
    def is_lower_better(self) -> bool:
        return (self.better or ("lower" if self.unit in TIMES_S else "higher")) == "lower"


class Command(Table):
    """A program: its command line, and how its runs are checked and measured."""

    line: str = Field(
        pattern=r"\S",
        description="command line for bash, in which {ranks}, {nodes}, {ranks_per_node}, "
        "{threads}, {seed}, {repeat}, {out} (a folder for this run alone) and {FACTOR} "
        "are replaced by their values",
    )
    name: str | None = key(
        "name of the program in reports; by default the name of the script in the command line",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    launcher: Launcher | None = key(
        "program that starts the ranks: srun, mpirun, or alone if the command line starts {ranks} "
        "ranks itself. The default is srun under Slurm. Elsewhere it is mpirun if mpirun is "
        "installed and two or more ranks are measured, otherwise alone"
    )
    launcher_options: tuple[str, ...] = key(
        "further options of the launcher, such as --mpi=pmix", default=()
    )
    scaling: WorkScaling = key(
        "weak if the work grows with the number of ranks, strong if it stays the same",
        default="strong",
    )
    work: Annotated[StrictInt, Field(ge=1, le=10**15)] = key(
        "number of units of work in a run; with weak scaling, the number for each rank", default=1
    )
    work_unit: str = key("name of a unit of work, such as rows", default="runs", min_length=1)
    metrics: tuple[Metric, ...] = key(
        "numbers to read from each run, besides its wall time", default=()
    )
    sanity: Pattern | None = key("regular expression that the output of every run must match")
    timeout: Timeout = key("time limit of one run in seconds", default=900.0)
    over: tuple[str, ...] = key(
        "factors for which the report shows the speed-up of each value", default=("threads",)
    )
    workdir: str | None = key(
        "folder in which the command runs; by default the folder of the campaign file"
    )

    @field_validator("metrics")
    @classmethod
    def _check_metrics(cls, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        for name, count in Counter(metric.name for metric in metrics).items():
            if count > 1:
                raise ValueError(f"two metrics are called {name!r}; rename one of them")
        if sum(metric.primary for metric in metrics) > 1:
            raise ValueError(
                "two metrics have primary = true; set primary = true for one metric only"
            )
        return metrics

    @property
    def primary(self) -> Metric | None:
        return next((metric for metric in self.metrics if metric.primary), None)

    @property
    def rate_unit(self) -> str | None:
        """The unit that the primary metric counts per second; None if the metric is a time."""
        primary = self.primary
        if primary is None or primary.unit in TIMES_S:
            return None
        return primary.unit.removesuffix(PER_SECOND)

    def longest_s(self, num_runs: int) -> float:
        """Return the most seconds for a case of `num_runs` runs and the start of its launch."""
        return num_runs * (self.timeout + 2 * GRACE_S) + START_S

    def check(self, factors: Mapping[str, Sequence[Any]], most_ranks: int) -> None:
        """Refuse factors that the line does not use, and names in the line without a value."""
        named = find_marks(self.line)
        if "ranks" in named and self.launcher is None and most_ranks > 1:
            raise ValueError(
                "the command line contains {ranks}, so the key launcher must be set; set launcher "
                'to "alone" if the line starts the ranks itself, else to "srun" or "mpirun"'
            )
        files = [find_marks(metric.file) for metric in self.metrics if metric.file]
        for name, values in factors.items():
            if name in GIVEN and name != "threads":
                raise ValueError(
                    f"the name {name!r} is reserved for a built-in value, so no factor may have "
                    "this name; rename the factor"
                )
            if not re.fullmatch(r"[A-Za-z_]\w*", name) or not values:
                raise ValueError(
                    f"factor {name!r} needs a name of letters, digits and '_', and at least one "
                    "value"
                )
            if name == "threads" and not all(type(value) is int and value > 0 for value in values):
                raise ValueError(
                    f"the factor threads has the values {list(values)}; give whole "
                    "numbers of 1 or more"
                )
            if name != "threads" and name not in named:
                raise ValueError(
                    f"the command line does not use the factor {name!r}; write {{{name}}} into the "
                    "line"
                )
        if unknown := named.union(*files) - {*factors, *GIVEN}:
            known = ", ".join(dict.fromkeys([*factors, *GIVEN]))
            word = min(unknown)
            raise ValueError(
                f"the command line contains {{{word}}}, which has no value; choose from {known}, "
                f"or write {{{{{word}}}}} to get the text {{{word}}}"
            )

    def resolve_folder(self, campaign_file: Path) -> "Command":
        """Return the command with its name and an absolute working folder."""
        folder = Path(campaign_file.parent, self.workdir or "").absolute()
        name = self.name or self._script_name()
        return self.model_copy(update={"workdir": str(folder), "name": name})

    def _script_name(self) -> str:
        words = [Path(word).name for word in self.line.split() if not word.startswith("-")]
        scripts = [word for word in words if re.search(r"\w\.[A-Za-z]\w*$", word)]
        name = next(iter([*scripts, *words]), "")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_NAME] or "program"


def find_marks(line: str) -> set[str]:
    return {name for name in _MARK.findall(line) if not name.startswith("{")}


def fill(line: str, values: Mapping[str, Any], *, quoted: bool = True) -> str:
    """Return a line with each `{name}` replaced by its value, with `quoted` for the shell."""

    def replace_mark(mark: re.Match[str]) -> str:
        if mark[1].startswith("{"):
            return mark[1]
        value = format_value(values[mark[1]])
        return shlex.quote(value) if quoted else value

    return _MARK.sub(replace_mark, line)
