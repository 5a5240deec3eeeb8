"""Options of sbatch and srun: their names, and how a command line of them is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.before.lint.shell.shell_words import Word

_SHORT = """
A account a array b begin B extra-node-info c cpus-per-task C constraint d dependency D chdir
e error F nodefile G gpus h help H hold i input J job-name k no-kill L licenses M clusters
m distribution n ntasks N nodes o output O overcommit p partition q qos Q quiet s oversubscribe
S core-spec t time v verbose V version w nodelist W wait x exclude
"""
_SRUN_SHORT = """
E preserve-env I immediate K kill-on-bad-exit l label r relative T threads u unbuffered
X disable-status Z no-allocate
"""
# Long options of sbatch, up to Slurm 24.11; "sbatch - Submit a batch script to Slurm", its manual.
_SBATCH = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment
consolidate-segments constraint container container-id contiguous core-spec cores-per-socket
cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
exclusive export export-file extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold ignore-pbs input
job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket oom-kill-step open-mode output overcommit
oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot requeue
reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches tasks
tasks-per-node test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid
usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
"""
# Long options of sbatch and srun that take no value, or one only after =.
_BARE = """
bcast compress container-entrypoint container-mount-home container-readonly container-remap-root
container-writable contiguous disable-status exact exclusive get-user-env help hold ignore-pbs
immediate interactive kill-on-bad-exit label multi-prog nice no-allocate no-container-entrypoint
no-container-mount-home no-container-readonly no-container-remap-root no-kill no-requeue overcommit
overlap oversubscribe parsable preserve-env propagate pty quiet quit-on-interrupt reboot requeue
resv-ports send-libs spread-job stepmgr test-only unbuffered usage use-min-nodes verbose version
whole x11
"""


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


SHORT = _pairs(_SHORT)
SRUN_SHORT = SHORT | _pairs(_SRUN_SHORT)
SBATCH_OPTIONS = _SBATCH.split()
BARE = set(_BARE.split())
BARE_SHORT = set("hHkOQsvVEIKluXZ")
ALIASES = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}


@dataclass(frozen=True)
class Option:
    """An option of sbatch or srun: its long name, and its value where it has one."""

    line: int
    name: str
    value: str | None


def options(
    words: Sequence[Word], short: Mapping[str, str]
) -> tuple[list[Option], tuple[Word, ...]]:
    """Return the options at the beginning of some words, and the words after them."""
    found: list[Option] = []
    at = 0
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        word, at = words[at], at + 1
        if word.text == "--":
            break
        name, value, takes_next = _split(word.text, short)
        if takes_next and at < len(words):
            value, at = words[at].text, at + 1
        found.append(Option(word.line, name, value))
    return found, tuple(words[at:])


def _split(text: str, short: Mapping[str, str]) -> tuple[str, str | None, bool]:
    """Return the name and value in one word, and whether the value is the next word."""
    if text.startswith("--"):
        name, equals, value = text[2:].partition("=")
        name = full_name(name)
        return name, value if equals else None, not equals and name not in BARE
    name, value = short.get(text[1], text[1]), text[2:]
    return name, value or None, not value and text[1] not in BARE_SHORT


def full_name(name: str) -> str:
    """Return the whole of an option's name, which may be cut short as long as it is clear."""
    if name not in SBATCH_OPTIONS and name not in BARE:
        begun = [one for one in SBATCH_OPTIONS if one.startswith(name)]
        name = begun[0] if len(begun) == 1 else name
    return ALIASES.get(name, name)
