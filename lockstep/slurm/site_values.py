"""What the values of a site file may be: text that a shell, sbatch and Apptainer read as meant."""

import difflib
import re
from typing import Annotated

from pydantic import AfterValidator, Field, StrictFloat, StrictInt

from lockstep.core import inputs

# Of sbatch's options those that change nothing of what Lockstep itself asks for: said twice, the
# last one would win unseen.
EXTRA_OPTIONS = (
    *("acctg-freq", "begin", "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "exclude"),
    *("exclusive", "gpu-freq", "gres-flags", "hint", "licenses", "mail-type", "mail-user"),
    *("network", "nice", "nodelist", "power", "prefer", "propagate", "reboot", "segment"),
    *("sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp"),
    *("use-min-nodes", "wckey"),
)
# Variables of the script itself, of Slurm, and those that bash does not let be set.
OWN_VARIABLES = re.compile(
    "(SLURM|LOCKSTEP|MASTER|APPTAINERENV|BASH)_.*|U?ID|E?UID|PPID|BASHOPTS|SHELLOPTS|PYTHONPATH|"
    "agent|began|by_srun|cache|cache_hits|cache_misses|chosen|driver|failed|floor|had|hand_on|"
    "handed_on|handing|here|hosts|id|image|in_image|inside|job_name|jobs|keeper|launches|leave|"
    "log|lost|measured|meets|mend|name|needs|num_nodes|num_ranks|on_nodes|options|patience|"
    "profiler|results|running|scratch|sent|shape|srun_options|stage_image|stage_in|stage_in_s|"
    "stage_in_script|start|stay|stop|stopping|suite|tests|tool|unfinished|_"
)


# What `lockstep init` could not find begins with it; only what sends or writes jobs refuses it.
FILL_IN = "FILL IN: "


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a line break or control character is not allowed; leave it out")
    return text


def _shell_lines(text: str) -> str:
    if "\r" in text or "\0" in text:
        raise ValueError(
            "a carriage return or NUL breaks a shell script; save it with Unix line ends"
        )
    return text


def _directive_value(text: str) -> str:
    if not re.fullmatch(r"[\w.,:+@&|*()\[\]/=-]+", text):
        raise ValueError("a value for sbatch is made of letters, digits and .,:+@&|*()[]/=_- only")
    return text


def absolute(text: str) -> str:
    """Return a path that is absolute, or still to be filled in.

    Raises:
        ValueError: It is not.
    """
    if text.startswith(FILL_IN):
        return text
    if "://" in text:
        raise ValueError("not a file; build the image first, such as by lockstep image build")
    if not text.startswith("/"):
        raise ValueError("not an absolute path; jobs start in another folder, so begin with /")
    return text


def _scratch(text: str) -> str:
    if not text.startswith("$"):
        return _without_colon(_bindable(absolute(text)))
    if not re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*(/[^:,]*)?", text, re.ASCII):
        raise ValueError("a folder or a variable of a job, such as $TMPDIR or $TMPDIR/mine")
    return text


def _option(text: str) -> str:
    if not re.match(r"--?[A-Za-z]", text):
        raise ValueError("not an option; write --name or --name=value")
    return text


def _bindable(text: str) -> str:
    if "," in text:
        raise ValueError("a comma separates binds in Apptainer; list each bind by itself")
    return text


def _without_colon(text: str) -> str:
    if ":" in text and not text.startswith(FILL_IN):
        raise ValueError("a colon separates the parts of a bind in Apptainer; use another path")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text, re.ASCII):
        raise ValueError("not a variable's name; it is made of letters, digits and _")
    if OWN_VARIABLES.fullmatch(text):
        raise ValueError("the job script or Slurm sets this variable itself; leave it out")
    return text


def _extra(text: str) -> str:
    match = re.fullmatch(r"--([a-z][a-z-]*)(?:=(.+))?", text)
    if match is None:
        raise ValueError("options are taken in their long form; write --name or --name=value")
    if match[1] not in EXTRA_OPTIONS:
        near = difflib.get_close_matches(match[1], EXTRA_OPTIONS, n=1)
        hint = f"did you mean --{near[0]}?" if near else f"known: --{', --'.join(EXTRA_OPTIONS)}"
        raise ValueError(
            f"not an option that may be added to what Lockstep asks for; {hint}; write another "
            "under the key directives, where nothing is checked"
        )
    if match[2]:
        _directive_value(match[2])
    return text


Line = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Word = Annotated[Line, AfterValidator(_directive_value)]
AbsolutePath = Annotated[Line, AfterValidator(absolute)]
Bind = Annotated[AbsolutePath, AfterValidator(_bindable)]
Extra = Annotated[Line, AfterValidator(_extra)]
Scratch = Annotated[Line, AfterValidator(_scratch)]
Option = Annotated[Line, AfterValidator(_option)]
Place = Annotated[Bind, AfterValidator(_without_colon)]
Variable = Annotated[str, AfterValidator(_variable)]
ShellLines = Annotated[str, AfterValidator(_shell_lines)]
Count = Annotated[StrictInt, Field(ge=1, le=100_000)]
Cost = Annotated[StrictFloat, Field(ge=0, le=inputs.MAX_RATE, allow_inf_nan=False)]
