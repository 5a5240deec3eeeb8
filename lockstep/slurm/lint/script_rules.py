"""The rules of `lockstep lint`: each a small function from a script to what it breaks.

A rule that cannot know says nothing: what a variable holds is put in where the script sets it to a
plain text, and what only a shell could say is not judged.
"""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from lockstep.slurm.lint.batch import (
    CONTAINERS,
    PROFILERS,
    SAYING,
    STARTERS,
    Container,
    Hit,
    Job,
    step_of,
    tokens_of,
)
from lockstep.slurm.lint.endings import hidden_by_a_pipe, hidden_by_the_end
from lockstep.slurm.lint.launchers import option_values, torch_launch
from lockstep.slurm.lint.shell import SBATCH_OPTIONS, Command, Script, base_name, value_of
from lockstep.slurm.lint.variables import INTERFACE_VARIABLES, Kind, problems

INSTALLERS = {"pip", "pip3", "conda", "mamba", "micromamba", "uv", "apt", "apt-get"}
# What a task's own shell must expand: in the batch shell each of them is 0.
RANK_VARIABLES = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}
RANK_NAMES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK", "CUDA_VISIBLE_DEVICES"),
}
RANK_OPTION = re.compile(r"--(node|machine|local|global)?[_-]?rank\b")
TIME = re.compile(
    r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|INFINITE|UNLIMITED|-1", re.IGNORECASE
)
CONDA = "an environment of conda"
# What ml does besides loading.
ML_WORDS = {"", "list", "avail", "use", "unuse", "spider", "show", "unload", "help", "save"}
OWN_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"}
PURGES_NOTHING = re.compile(r"^/etc/|/init/|/activate$|/?\.\w*(bashrc|profile)$")
LOCAL_ADDRESSES = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104, none is bound
MISSPELT = re.compile(r"\s*#+\s*sbatch\s*-", re.IGNORECASE)
HANDED_ON = re.compile(r"(APPTAINER|SINGULARITY)ENV_(SLURM|MASTER|RANK|LOCAL|WORLD|\$|\{)")


# --- the directives -------------------------------------------------------------------------------


def no_shebang(job: Job) -> Iterator[Hit]:
    """Look at the first line."""
    if not job.script.text.startswith("#!"):
        yield Hit(1, "the first line is not #!")


def dos_lines(job: Job) -> Iterator[Hit]:
    """Look for the line ends of Windows."""
    found = [n for n, line in enumerate(job.script.lines, start=1) if line.endswith("\r")]
    if found:
        yield Hit(found[0], f"{len(found)} lines end as on Windows, in CR LF")


def late_directive(job: Job) -> Iterator[Hit]:
    """Look for directives after the first command."""
    first = job.script.first_command
    for line, text in job.script.reader.comments:
        if line > first and text.startswith("#SBATCH"):
            yield Hit(line, f"{text[:60].strip()} comes after the first command, in line {first}")


def misspelt_directive(job: Job) -> Iterator[Hit]:
    """Look for comments that were meant to be directives."""
    for line, text in job.script.reader.comments:
        if MISSPELT.match(text) and not text.startswith(("#SBATCH", "##")):
            yield Hit(line, f"{text[:60].rstrip()!r} does not begin with #SBATCH")


def disabled_directive(job: Job) -> Iterator[Hit]:
    """Look for directives behind a second #."""
    for line, text in job.script.reader.comments:
        if MISSPELT.match(text) and text.startswith("##"):
            yield Hit(line, f"{text[:60].strip()!r} is a comment")


def unknown_option(job: Job) -> Iterator[Hit]:
    """Look for options that sbatch does not have but nearly so; others may be a site's plugin's."""
    for one in job.script.directives:
        # --container-image and its like are those of Pyxis, a plugin that many sites have.
        foreign = len(one.name) == 1 or one.name.startswith("container-")
        if not foreign and one.name not in SBATCH_OPTIONS:
            near = get_close_matches(one.name[:60], SBATCH_OPTIONS, n=1, cutoff=0.75)
            if near:
                yield Hit(one.line, f"sbatch has no --{one.name}", f"did you mean --{near[0]}?")


def variable_in_directive(job: Job) -> Iterator[Hit]:
    """Look for what only a shell expands."""
    for one in job.script.directives:
        value = one.value or ""
        if "$" in value or value.startswith("~"):
            yield Hit(one.line, f"--{one.name}={value} holds what only a shell expands")


def no_time(job: Job) -> Iterator[Hit]:
    """Look for the time limit."""
    if job.script.directives and not job.script.directive("time"):
        yield Hit(1, "--time is not given")


def wrong_time(job: Job) -> Iterator[Hit]:
    """Look for a time limit in a form that sbatch does not take (sbatch(1), --time)."""
    option = job.script.directive("time")
    value = (option and option.value) or ""
    if option and "$" not in value and not TIME.fullmatch(value):
        yield Hit(option.line, f"--time={value} is no time to sbatch")


def no_tasks_per_node(job: Job) -> Iterator[Hit]:
    """Look for tasks that Slurm may spread over nodes as it likes."""
    tasks = job.asked("ntasks")
    by_step = any("ntasks-per-node" in step.options for step in job.steps)
    if (job.nodes or 1) == 1 or by_step or job.script.directive("ntasks-per-node"):
        return
    if tasks not in (None, job.nodes):
        yield Hit(1, f"{tasks} tasks on {job.nodes} nodes have no --ntasks-per-node")
    elif tasks is None and job.has_gpus and any(not torch_launch(s.tokens) for s in job.launches):
        yield Hit(1, f"{job.nodes} nodes have no --ntasks-per-node, so each gets one task")


def missing_folder(job: Job) -> Iterator[Hit]:
    """Look for the folders of --output and --error, as far as this machine can tell."""
    for name in ("output", "error"):
        option = job.script.directive(name)
        folder = Path(option.value).parent if option and option.value else Path()
        if option and not _may_exist(folder, job.script):
            yield Hit(option.line, f"the folder {folder} of --{name} does not exist")


def _may_exist(folder: Path, script: Script) -> bool:
    """Return whether a folder exists, or cannot be judged from here."""
    if "$" in str(folder) or str(folder).startswith("~"):
        return True  # another rule says that it is not expanded
    try:
        if folder.is_absolute():
            # Another machine's file system is not to be judged by this one's.
            return folder.is_dir() or folder.parent == Path("/") or not folder.parent.is_dir()
        chdir = script.directive("chdir")
        bases = [Path(chdir.value)] if chdir and chdir.value else [Path(), Path(script.path).parent]
        return any((base / folder).is_dir() for base in bases)
    except OSError:
        return True  # a name that no file can have


def one_gpu_per_task(job: Job) -> Iterator[Hit]:
    """Look for what shows each of several tasks of a node its own GPU only."""
    option = job.script.directive("gpus-per-task")
    if option and (job.tasks_per_node() or 1) > 1:
        yield Hit(option.line, "--gpus-per-task shows each task one GPU")
    for step in job.steps:
        bind = step.options.get("gpu-bind") or ""
        several = step.is_certain and (job.tasks_per_node(step) or 2) > 1
        several = several and not job.is_single(step)
        if several and "gpus-per-task" in step.options:
            yield Hit(step.line, "srun --gpus-per-task shows each task one GPU")
        elif several and bind.startswith(("single", "per_task")):
            yield Hit(step.line, f"srun --gpu-bind={bind} shows each task one GPU")
        elif any(re.match(r"CUDA_VISIBLE_DEVICES=\S*LOCAL", one) for one in step.tokens):
            yield Hit(step.line, "CUDA_VISIBLE_DEVICES is set to one GPU in each task")


def signal_to_steps(job: Job) -> Iterator[Hit]:
    """Look for a warning before the time limit that goes to the ranks."""
    option = job.script.directive("signal")
    target, colon, _ = ((option and option.value) or "").partition(":")
    if option and not (colon and "B" in target):
        yield Hit(option.line, f"--signal={option.value} goes to the ranks, not to this script")


def exported_names(job: Job) -> Iterator[Hit]:
    """Look for --export that leaves out the rest of the environment."""
    for line, value in _exports(job):
        names = value.split(",")
        if value and names[0] not in ("ALL", "NONE", "NIL") and "ALL" not in names:
            yield Hit(line, f"--export={value} drops every other variable, PATH too")


def export_with_comma(job: Job) -> Iterator[Hit]:
    """Look for a value that ends at its comma."""
    for line, value in _exports(job):
        names = value.split(",")
        cut = [b for a, b in pairwise(names) if "=" in a and "=" not in b]
        if "ALL" in names and cut and cut[0] != "ALL":
            yield Hit(line, f"--export={value} ends a value at its comma, before {cut[0]!r}")


def _exports(job: Job) -> Iterator[tuple[int, str]]:
    option = job.script.directive("export")
    if option and option.value:
        yield option.line, option.value
    for step in job.steps:
        if value := step.options.get("export"):
            yield step.line, value


def requeue_unsaid(job: Job) -> Iterator[Hit]:
    """Look for what becomes of the job when a node fails."""
    if job.script.directives and not job.script.directive("no-requeue", "requeue"):
        yield Hit(1, "neither --no-requeue nor --requeue is given")


def own_account(job: Job) -> Iterator[Hit]:
    """Look for an account in the script."""
    option = job.script.directive("account")
    if option and not job.is_rendered:
        yield Hit(option.line, f"--account={option.value} stands in the script")


# --- the commands ---------------------------------------------------------------------------------


def around_srun(job: Job, programs: Collection[str]) -> Iterator[Hit]:
    """Look for a program that starts srun."""
    for command in job.commands:
        names = [base_name(token) for token in tokens_of(command.words)]
        outer = next((name for name in names if name not in STARTERS - {*programs}), "")
        if outer in programs and "srun" in names:
            yield Hit(command.line, f"{outer} is around srun")


def profiler_around_srun(job: Job) -> Iterator[Hit]:
    """Look for a profiler of srun itself."""
    return around_srun(job, PROFILERS)


def container_around_srun(job: Job) -> Iterator[Hit]:
    """Look for srun inside an image."""
    return around_srun(job, CONTAINERS)


def rank_in_batch_shell(job: Job) -> Iterator[Hit]:
    """Look for ranks that the batch shell expands, instead of each task."""
    handed_on = _functions_of_tasks(job)
    words = [
        word
        for command in (job.script.commands if job.is_batch else ())
        for name, word in command.assigns
        if command.function not in handed_on
        and (name in RANK_NAMES or RANK_OPTION.search(word.text))
    ]
    for command in job.commands if job.is_batch else ():
        if step_of(command) or torch_launch(tokens_of(command.words)):
            words += command.words
    found: dict[int, set[str]] = {}
    for word in words:
        found.setdefault(word.line, set()).update(RANK_VARIABLES & {*word.live})
    for line, names in found.items():
        if names:
            listed = " and ".join(f"${name}" for name in sorted(names))
            yield Hit(line, f"the batch shell expands {listed}")


def _functions_of_tasks(job: Job) -> set[str]:
    """Return the functions that the script hands on to other shells, as with export -f."""
    given = [one.words for one in job.commands if one.name in ("export", "declare", "typeset")]
    hands = [words for words in given if re.match("-[a-z]*f", words[1].text if words[1:] else "")]
    return {word.text for words in hands for word in words[2:]}


def accounting_of_itself(job: Job) -> Iterator[Hit]:
    """Look for sacct and seff about the job that runs them."""
    for command in job.commands:
        asks_others = any(word.text.startswith(("-j", "--job")) for word in command.words)
        is_own = command.live & OWN_JOB or (not asks_others and command.name == "sacct")
        if command.name in ("sacct", "seff") and is_own:
            yield Hit(command.line, f"{command.name} asks about the job that runs it")


def install_in_job(job: Job) -> Iterator[Hit]:
    """Look for packages that every run fetches anew."""
    for command in job.commands:
        tokens = tokens_of(command.words)
        for at, token in enumerate(tokens if command.name not in SAYING else []):
            following = tokens[at + 1 : at + 3]
            if base_name(token) in INSTALLERS and "install" in following:
                if "--no-index" not in tokens:
                    yield Hit(command.line, f"{base_name(token)} install runs in the job")
                break


def version_as_file(job: Job) -> Iterator[Hit]:
    """Look for >= that the shell takes for a file."""
    for command in job.script.commands:
        for operator, target in command.redirects:
            if operator in (">", ">>") and target.text.startswith("=") and not target.quoted:
                yield Hit(command.line, f"unquoted {operator}{target.text} writes into a file")


def _settings_of(job: Job, variable: str, *names: str) -> Iterator[tuple[int, str]]:
    """Yield lines and values of a variable, and of options that say the same."""
    for command in job.script.commands:
        for name, word in command.assigns:
            if name == variable:
                yield word.line, value_of(word)
    for command in job.commands:
        if command.name in SAYING:
            continue
        for value in option_values(tokens_of(command.words), *names):
            yield command.line, job.script.resolve(value)


def fixed_port(job: Job) -> Iterator[Hit]:
    """Look for a port that another job may have."""
    found = list(_settings_of(job, "MASTER_PORT", "master_port", "main_process_port"))
    found += [(n, v.rpartition(":")[2]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    facts: dict[str, int] = {}  # said once, where it is first set
    for line, value in found:
        known = job.script.resolve(value)
        if "RANDOM" in known or "shuf" in known:
            facts.setdefault("the port is a random one", line)
        elif known.isdigit() and known != "0" and not job.script.directive("exclusive"):
            facts.setdefault(f"the port is always {known[:9]}", line)
    yield from (Hit(line, fact) for fact, line in facts.items())


def local_address(job: Job) -> Iterator[Hit]:
    """Look for ranks that would each meet on their own node."""
    found = list(_settings_of(job, "MASTER_ADDR", "master_addr", "main_process_ip"))
    found += [(n, v.rpartition(":")[0]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    for line, value in found if (job.nodes or 1) > 1 else ():
        known = job.script.resolve(value)
        if known in LOCAL_ADDRESSES:
            yield Hit(line, f"the ranks of {job.nodes} nodes meet at {known}")
            return  # the options that repeat it say nothing new


def no_kill(job: Job) -> Iterator[Hit]:
    """Look for ranks that outlive one that has failed."""
    for step in job.launches if "SLURM_KILL_BAD_EXIT" not in job.script.settings else ():
        value = step.options.get("kill-on-bad-exit", "0")
        if value == "0" and not job.is_single(step):
            yield Hit(step.line, "srun has no --kill-on-bad-exit")


def no_cpus(job: Job) -> Iterator[Hit]:
    """Look for CPUs that sbatch is told of and srun is not."""
    option = job.script.directive("cpus-per-task")
    if "SRUN_CPUS_PER_TASK" in job.script.settings:
        return
    if not option:
        yield from _no_cpus_at_all(job)
        return
    for step in job.launches:
        if "cpus-per-task" not in step.options and option.value != "1":
            yield Hit(step.line, f"srun has no --cpus-per-task; sbatch's {option.value} is not its")


def _no_cpus_at_all(job: Job) -> Iterator[Hit]:
    """Look for ranks with GPUs of which nobody says how many cores each has."""
    if not job.has_gpus or job.script.directive("cpus-per-gpu", "exclusive"):
        return
    for step in job.launches:
        if not {"cpus-per-task", "cpus-per-gpu"} & {*step.options}:
            yield Hit(
                step.line,
                "neither sbatch nor srun is given --cpus-per-task, so a task may get one core",
                "give it to both, such as the cores of a node over its tasks",
            )
            return


def modules_on_top(job: Job) -> Iterator[Hit]:
    """Look for modules on top of those that the submitting shell had."""
    for command in job.commands:
        first, *rest = [word.text for word in command.words]
        if first in ("source", ".") and rest and not PURGES_NOTHING.search(rest[0]):
            return  # a site's own file may have purged them
        if first not in ("module", "ml"):
            continue
        if {"purge", "reset", "restore"} & set(rest):
            return
        named = next((text for text in rest if not text.startswith("-")), "")
        if named in ("load", "add") or (first == "ml" and named not in ML_WORDS):
            yield Hit(command.line, f"{' '.join([first, *rest])[:60]} comes without module purge")
            return


def two_environments(job: Job) -> Iterator[Hit]:
    """Look for an environment outside of an image, or for two of them."""
    found = [(one.line, kind) for one in job.commands if (kind := _activates(one))]
    if found and job.containers:
        line = job.containers[0].line
        yield Hit(found[0][0], f"{found[0][1]} is entered outside of the image of line {line}")
    elif len({kind for _, kind in found}) > 1:
        yield Hit(found[-1][0], f"{found[-1][1]} is entered on top of {found[0][1]}")


def _activates(command: Command) -> str | None:
    first, *rest = [word.text for word in command.words]
    if first in ("source", ".") and rest and base_name(rest[0]) == "activate":
        return CONDA if len(rest) > 1 else "a venv"
    if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
        return CONDA
    return None


def lost_exit_code(job: Job) -> Iterator[Hit]:
    """Look for a pipe, or a last command, that hides how srun ended."""
    for command in hidden_by_a_pipe(job):
        yield Hit(command.line, "the exit code of srun is lost in a pipe without pipefail")
    last = hidden_by_the_end(job)
    if last:
        yield Hit(last.line, f"the script ends with {last.name[:40]}, whatever srun said")


# --- containers -----------------------------------------------------------------------------------


def clean_environment(job: Job) -> Iterator[Hit]:
    """Look for an image in which no rank knows which it is."""
    for one in job.containers:
        cleans = one.has("--cleanenv", "-e") and not one.has("--env", "--env-file")
        is_rank = one.step is not None and not job.is_single(one.step)
        if cleans and is_rank and not HANDED_ON.search(job.script.text):
            yield Hit(one.line, "--cleanenv leaves out SLURM_* and MASTER_*")


def contained(job: Job) -> Iterator[Hit]:
    """Look for ranks of a node that share no memory."""
    for one in job.containers:
        tasks = job.tasks_per_node(one.step) if one.step else 1
        if one.has("--containall", "-C", "--ipc", "-i") and (tasks or 1) > 1:
            yield Hit(one.line, f"each of {tasks} ranks of a node has its own /dev/shm")


def no_gpus_inside(job: Job) -> Iterator[Hit]:
    """Look for an image that sees no GPU."""
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    for one in job.containers if job.has_gpus and not switches & set(job.script.settings) else ():
        if not one.has("--nv", "--nvccli", "--rocm") and not _hides(one):
            yield Hit(one.line, "GPUs are asked for and the image is entered without --nv")


def _hides(container: Container) -> bool:
    """Return whether an option may stand in a variable that nobody knows."""
    return any("$" in one and "=" not in one for one in container.options)


# --- variables ------------------------------------------------------------------------------------


def _problems(job: Job, *kinds: Kind) -> Iterator[Hit]:
    """Yield what is wrong with the variables of NCCL and such, if it is of some kinds."""
    values = {name: value for name, (_, value) in job.environ.items()}
    for one in problems(values, job.interfaces):
        if one.kind in kinds:
            yield Hit(job.environ[one.name][0], one.message, one.action)


def wrong_variable(job: Job) -> Iterator[Hit]:
    """Look for variables that do not exist, and values that they do not take."""
    return _problems(job, "name", "value")


def missing_interface(job: Job) -> Iterator[Hit]:
    """Look for the network interfaces on this machine."""
    return _problems(job, "interface")


def debugging(job: Job) -> Iterator[Hit]:
    """Look for what slows the ranks."""
    return _problems(job, "slow")


def own_interface(job: Job) -> Iterator[Hit]:
    """Look for the name of an interface in the script."""
    for name in INTERFACE_VARIABLES if not job.is_rendered else ():
        line, value = job.environ.get(name, (0, ""))
        if value and "$" not in value and not value.startswith("^"):
            yield Hit(line, f"{name}={value} stands in the script")
