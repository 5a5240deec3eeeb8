"""Rules about batch scripts: launchers and ranks, exit codes, variables, directives, images."""

import re
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from lockstep.before.lint.batch import (
    CONTAINERS,
    LAUNCH,
    PROFILERS,
    SAYING,
    SBATCH_OPTIONS,
    SHORT,
    STARTERS,
    Job,
    options,
    step_of,
)
from lockstep.before.lint.rules import Hit, Rules
from lockstep.before.lint.shell import Command, Word, base_name, split_words, tokens_of, value_of
from lockstep.before.lint.variables import Kind, problems

BATCH: "Rules[Job]" = Rules()

TORCHRUN = ("torchrun", "torch.distributed.run")
TORCH_LAUNCHERS = {*TORCHRUN, "torch.distributed.launch", "torchrun_jsc"}
# Programs that start ranks in a way of their own, and words of scripts that do.
OTHER_LAUNCHERS = re.compile(
    r"\b(mpirun|mpiexec|horovodrun|deepspeed|accelerate|composer|ray|dask|pdsh|clush|parallel|ssh|submitit)\b"
)
SPAWNING = re.compile(
    r"spawn|multiprocess|n?gpus?\b|n_?proc|devices|mirrored|parallel|--tp\b|vllm|server",
    re.IGNORECASE,
)
# Words of a script that trains by torch.distributed, one process for each GPU.
OF_TORCH = re.compile(r"ddp|fsdp|distributed|lightning|torch|MASTER_(ADDR|PORT)", re.IGNORECASE)
# Options of torchrun and accelerate that name the number of nodes and the meeting point.
NUM_NODES = ("nnodes", "num_machines")
MEETING = ("rdzv_endpoint", "master_addr", "main_process_ip")


def torch_launch(tokens: list[str]) -> str | None:
    """Return the first launcher of torch among the words of a command."""
    for at, token in enumerate(tokens):
        name = base_name(token)
        if name in TORCH_LAUNCHERS:
            return name
        if name == "accelerate" and "launch" in tokens[at + 1 : at + 2]:
            return "accelerate launch"
    return None


def option_values(tokens: list[str], *names: str) -> Iterator[str]:
    """Yield the values of a program's options; their names may be written with _ or -."""
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in names:
            yield value if equals else "".join(tokens[at + 1 : at + 2])


@BATCH.rule(
    "TASKS-X-NPROC", "error", "several ranks share a GPU, or wait for each other for ever",
    "use --ntasks-per-node=1 with torchrun, or start python without torchrun in each task",
)  # fmt: skip
def tasks_times_workers(job: Job) -> Iterator[Hit]:
    for step in job.steps:
        launcher, tasks = torch_launch(step.tokens), job.tasks_per_node(step)
        workers = next(option_values(step.tokens, "nproc_per_node", "num_processes"), "1")
        number = job.number(workers)
        if not launcher or not step.is_certain or tasks in (None, 1) or number == 1:
            continue
        many = f", {tasks * number} in all" if tasks and number else ""
        yield Hit(
            step.line,
            f"srun starts {tasks} tasks on a node and each {launcher} {workers} workers{many}",
        )


@BATCH.rule(
    "TORCHRUN-ONE-NODE", "error", "the other nodes idle, or the ranks wait for them for ever",
    "start it with srun --ntasks-per-node=1",
)  # fmt: skip
def one_node_only(job: Job) -> Iterator[Hit]:
    for command in job.commands if (job.nodes or 1) > 1 else ():
        launcher = torch_launch(command.tokens)
        if launcher and LAUNCH.fullmatch(command.name):
            yield Hit(command.line, f"{launcher} runs on the first of {job.nodes} nodes only")


@BATCH.rule(
    "NO-SRUN", "error", "only the first node runs it, and ranks that wait for the others hang",
    "start it with srun, or with srun torchrun on each node",
)  # fmt: skip
def no_srun(job: Job) -> Iterator[Hit]:
    tasks = job.num_tasks() or 1
    if tasks == 1 or job.launches or any(not step.is_certain for step in job.steps):
        return
    if OTHER_LAUNCHERS.search(job.text) or not job.directives:
        return
    for command in job.commands:
        tokens = command.tokens
        if _runs_script(tokens) and LAUNCH.fullmatch(command.name) and not torch_launch(tokens):
            severity = "" if (job.nodes or 1) > 1 else "warning"
            fact = f"the job asks for {tasks} tasks, but starts {command.name} once"
            yield Hit(command.line, fact, severity=severity)
            return


def _runs_script(tokens: Sequence[str]) -> bool:
    """Return whether a command's words start a Python script or module."""
    for at, token in enumerate(tokens):
        if re.fullmatch(r"python[0-9.]*", base_name(token)):
            rest = [word for word in tokens[at + 1 :] if word not in ("-u", "-O", "-B", "-E", "-s")]
            return bool(rest) and (rest[0].endswith(".py") or rest[0] == "-m")
    return False


@BATCH.rule(
    "TASKS-GPUS", "warning", "one rank drives one GPU",
    "set --ntasks-per-node to the number of GPUs of a node",
)  # fmt: skip
def tasks_against_gpus(job: Job) -> Iterator[Hit]:
    for step in job.launches if OF_TORCH.search(job.text) else ():
        tasks, gpus = job.tasks_per_node(step), job.gpus_per_node(step)
        text = " ".join(step.tokens)
        if job.number(step.options.get("ntasks")) == 1:
            continue  # a step next to the training
        by_itself = torch_launch(step.tokens) or OTHER_LAUNCHERS.search(text)
        if by_itself or SPAWNING.search(text) or not _runs_script(step.tokens) or not gpus:
            continue
        if tasks and tasks < gpus:
            fact = f"srun starts {tasks} ranks on a node with {gpus} GPUs"
            yield Hit(step.line, f"{fact}, so {gpus - tasks} idle")
        elif tasks and tasks > gpus:
            yield Hit(step.line, f"srun starts {tasks} ranks on a node with {gpus} GPUs")


@BATCH.rule(
    "WORKERS-GPUS", "error", 'the extra ranks fail with "invalid device ordinal"',
    "start one rank for each GPU: --nproc-per-node",
)  # fmt: skip
def workers_against_gpus(job: Job) -> Iterator[Hit]:
    for command in job.commands if job.is_batch else ():
        step, tokens, launcher = step_of(command), command.tokens, torch_launch(command.tokens)
        workers = job.number(next(option_values(tokens, "nproc_per_node"), None))
        gpus = job.gpus_per_node(step)
        if command.name in SAYING or not launcher or not (workers and gpus):
            continue
        if workers > gpus:
            yield Hit(command.line, f"{launcher} starts {workers} ranks on a node with {gpus} GPUs")
        elif workers < gpus and (job.tasks_per_node(step) or 1) == 1 and workers > 1:
            idle = f"so {gpus - workers} idle"
            fact = f"{launcher} starts {workers} ranks on a node with {gpus} GPUs, {idle}"
            yield Hit(command.line, fact, "start one rank for each GPU", "warning")


@BATCH.rule(
    "WORLD-SIZE", "error", "the ranks wait for others that do not exist, or are refused",
    'set it from Slurm: export WORLD_SIZE="$SLURM_NTASKS"',
)  # fmt: skip
def world_size(job: Job) -> Iterator[Hit]:
    if any(torch_launch(command.tokens) for command in job.commands):
        return  # which sets it itself
    for command in job.shell.commands:
        for name, word in command.assigns:
            given = job.number(value_of(word)) if name == "WORLD_SIZE" else None
            for step in job.launches if given else ():
                tasks = job.num_tasks(step) if _runs_script(step.tokens) else None
                if tasks and tasks != given:
                    yield Hit(word.line, f"WORLD_SIZE is {given}, but srun starts {tasks} tasks")
                    return


@BATCH.rule(
    "GLOO", "warning", "gloo copies each gradient through the host",
    "use nccl, torch's default for GPUs",
)  # fmt: skip
def gloo_for_gpus(job: Job) -> Iterator[Hit]:
    for command in job.commands if job.has_gpus else ():
        values = option_values(command.tokens, "backend", "dist_backend", "ddp_backend")
        if "gloo" in values and command.name not in SAYING:
            yield Hit(command.line, "the job asks for GPUs, but the backend is gloo")


@BATCH.rule(
    "TORCHRUN-APART", "error", "each node trains alone, but the result looks like that of all",
    'add --nnodes="$SLURM_NNODES" --rdzv-backend=c10d --rdzv-endpoint="$first_host:$port"',
)  # fmt: skip
def nodes_apart(job: Job) -> Iterator[Hit]:
    # Variables may give the launcher what its options do not.
    if any(name.startswith(("PET_", "ACCELERATE_")) for name in job.settings):
        return
    for step in job.steps:
        launcher = torch_launch(step.tokens)
        nodes = job.number(step.options.get("nodes")) or job.nodes or 1
        may_be_hidden = any(token.startswith(("$", '"$')) for token in step.tokens)
        may_be_hidden = may_be_hidden or "config_file" in " ".join(step.tokens)
        if launcher and step.is_certain and not may_be_hidden and nodes > 1:
            lacks = [
                f"--{names[0].replace('_', '-')}"
                for names in (NUM_NODES, MEETING)
                if next(option_values(step.tokens, *names), None) is None
            ]
            if lacks:
                fact = f"{launcher} on each of {nodes} nodes has no {' or '.join(lacks)}"
                yield Hit(step.line, fact)


def _starts_ranks(command: Command) -> bool:
    """Return whether a command is a launcher of torch, without srun."""
    return bool(LAUNCH.fullmatch(command.name) and torch_launch(command.tokens))


def _ends_as_ranks(commands: list[Command], heard: set[int]) -> dict[int, bool]:
    """Return index -> whether it surely runs ranks, for commands with a step's exit code."""
    found: dict[int, bool] = {}
    functions: dict[str, bool] = {}
    is_beside = False
    for at, command in enumerate(commands):
        step = step_of(command)
        if step:
            found[at] = step.is_launch and step.is_certain
            is_beside = is_beside or (found[at] and command.ends == "&")
        elif _starts_ranks(command):
            found[at] = True
            is_beside = is_beside or command.ends == "&"
        elif command.name in functions:
            found[at] = functions[command.name]
        elif _waits(command):
            found[at] = is_beside
        if command.function and at in found and at not in heard:
            functions[command.function] = found[at] or functions.get(command.function, False)
    return found


def _heard(commands: list[Command]) -> set[int]:
    """Return the indices of commands whose exit code the script uses."""
    found = set()
    is_heard = is_awaited = False
    following = None
    for at, command in reversed([*enumerate(commands)]):
        if command.ends not in ("&&", "|", "|&"):  # else what it leads to is heard or not
            is_heard = command.ends == "||" or (following is not None and _reads_status(following))
        if command.is_condition or (is_awaited if command.ends == "&" else is_heard):
            found.add(at)
        is_awaited = is_awaited or _waits(command)
        following = command
    return found


def _waits(command: Command) -> bool:
    """Return whether a command is a wait that returns the exit code of a named process."""
    return command.name == "wait" and len(command.words) > 1


def _reads_status(command: Command) -> bool:
    words = (*command.words, *(word for _, word in command.assigns))
    read = any("$?" in word.text or "PIPESTATUS" in word.text for word in words)
    return read and command.name not in SAYING


def _settings(job: Job) -> set[str]:
    """Return which of pipefail and errexit the script sets; a trap on ERR counts as errexit."""
    given = [
        word.text for command in job.commands if command.name == "set" for word in command.words[1:]
    ]
    given += job.lines[0].split()[1:]
    letters = any(re.match("-[a-zA-Z]*e", text) for text in given)
    traps = any(
        command.name == "trap" and command.words[-1].text == "ERR" for command in job.commands
    )
    return {"pipefail", "errexit"} & {*given, "errexit" if letters or traps else ""}


INSTALLERS = {"pip", "pip3", "conda", "mamba", "micromamba", "uv", "apt", "apt-get"}
# Variables that a task's own shell must expand: in the batch shell each of them is 0.
RANK_VARIABLES = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}
RANK_NAMES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK", "CUDA_VISIBLE_DEVICES"),
}
RANK_OPTION = re.compile(r"--(node|machine|local|global)?[_-]?rank\b")
CONDA = "an environment of conda"
# Subcommands of ml that load nothing.
ML_WORDS = {"", "list", "avail", "use", "unuse", "spider", "show", "unload", "help", "save"}
OWN_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"}
PURGES_NOTHING = re.compile(r"^/etc/|/init/|/activate$|/?\.\w*(bashrc|profile)$")
# Words of a Cray's scripts; Perlmutter's GPUs are asked for by --constraint=gpu.
CRAY = re.compile(r"PrgEnv-|\bcray|\bcpe\b|\bLUMI\b|frontier|perlmutter|nersc|olcf", re.IGNORECASE)
CRAY_GPUS = re.compile(r"gpu($|&)")
CASE = re.compile(r"\s*\(?-[\w-]*\*?(\s*\|\s*[\w*-]+)*\s*\)")  # patterns of a case
NODE_LIST = re.compile(r"\$\{?SLURM_(JOB_)?NODELIST\}?")
# Expressions whose value differs between tasks that expand them.
OF_ONE_TASK = {
    "host": re.compile(
        r"\$\(\s*hostname\b[^)]*\)|`\s*hostname\b[^`]*`|\$\{?(HOSTNAME|SLURMD_NODENAME)\b"
    ),
    "number": re.compile(r"\$\{?RANDOM\b|\$\(\s*(shuf|uuidgen|date)\b|\$\$"),
}
FIRST_HOST = 'take the first host: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
MEETING_OPTIONS = ("rdzv_endpoint", "master_addr", "rdzv_id", "master_port")
LOCAL_ADDRESSES = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104, none is bound


def around_srun(job: Job, programs: Collection[str]) -> Iterator[Hit]:
    """Yield each command in which a program starts srun."""
    for command in job.commands:
        names = [base_name(token) for token in command.tokens]
        outer = next((name for name in names if name not in STARTERS - {*programs}), "")
        if outer in programs and "srun" in names:
            yield Hit(command.line, f"{outer} starts srun")


@BATCH.rule(
    "PROFILER-AROUND-SRUN", "error", "the profiler sees the launcher, but not the ranks",
    "write srun ... nsys profile -o NAME-%q{SLURM_PROCID} ... python",
)  # fmt: skip
def profiler_around_srun(job: Job) -> Iterator[Hit]:
    return around_srun(job, PROFILERS)


@BATCH.rule(
    "CONTAINER-AROUND-SRUN", "error", "an image has no srun, or one of another Slurm version",
    "write srun ... apptainer exec IMAGE ...",
)  # fmt: skip
def container_around_srun(job: Job) -> Iterator[Hit]:
    return around_srun(job, CONTAINERS)


@BATCH.rule(
    "NODE-RANK-BATCH", "error", "its value is then 0 on every node and in every task",
    "let each task expand it: srun bash -c '... $SLURM_PROCID ...' in single quotes",
)  # fmt: skip
def rank_in_batch_shell(job: Job) -> Iterator[Hit]:
    # Functions that the script exports to other shells, as with export -f, run in the tasks.
    handed_on = {
        word.text
        for command in job.commands
        if command.name in ("export", "declare", "typeset")
        and command.words[1:]
        and re.match("-[a-z]*f", command.words[1].text)
        for word in command.words[2:]
    }
    words = [
        word
        for command in (job.shell.commands if job.is_batch else ())
        for name, word in command.assigns
        if command.function not in handed_on
        and (name in RANK_NAMES or RANK_OPTION.search(word.text))
    ]
    for command in job.commands if job.is_batch else ():
        if step_of(command) or torch_launch(command.tokens):
            words += command.words
    found: dict[int, set[str]] = {}
    for word in words:
        found.setdefault(word.line, set()).update(RANK_VARIABLES & {*word.live})
    for line, names in found.items():
        if names:
            listed = " and ".join(f"${name}" for name in sorted(names))
            # With c10d the rendezvous numbers the nodes, and this number is not read.
            severity = "warning" if re.search("c10d", job.text) else ""
            yield Hit(line, f"the batch shell expands {listed}", severity=severity)


@BATCH.rule(
    "SACCT-IN-JOB", "warning", "the job's accounting is not complete yet",
    "read it after the job's end: lockstep status --collect, or sacct on the login node",
)  # fmt: skip
def accounting_of_itself(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        asks_others = any(word.text.startswith(("-j", "--job")) for word in command.words)
        is_own = command.live & OWN_JOB or (not asks_others and command.name == "sacct")
        if command.name in ("sacct", "seff") and is_own:
            yield Hit(command.line, f"{command.name} asks about the job that runs it")


@BATCH.rule(
    "INSTALL-IN-JOB", "warning", "nodes often have no network, ranks race for the files, "
    "and the versions change from run to run",
    "install once, into an image or a venv",
)  # fmt: skip
def install_in_job(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        tokens = command.tokens
        for at, token in enumerate(tokens if command.name not in SAYING else []):
            following = tokens[at + 1 : at + 3]
            if base_name(token) in INSTALLERS and "install" in following:
                if "--no-index" not in tokens:
                    yield Hit(command.line, f"{base_name(token)} install runs in the job")
                break


@BATCH.rule(
    "VERSION-AS-FILE", "error", "pip installs any version",
    "quote it: 'package>=1.0'",
)  # fmt: skip
def version_as_file(job: Job) -> Iterator[Hit]:
    for operator, target in job.shell.redirects:
        if operator in (">", ">>") and target.text.startswith("=") and not target.is_quoted:
            yield Hit(target.line, f"unquoted {operator}{target.text} writes into a file")


def _settings_of(job: Job, variable: str, *names: str) -> Iterator[tuple[int, str]]:
    """Yield line and value of each setting of a variable, or of an option that means the same."""
    for command in job.shell.commands:
        for name, word in command.assigns:
            if name == variable:
                yield word.line, value_of(word)
    for command in job.commands:
        if command.name in SAYING:
            continue
        for value in option_values(command.tokens, *names):
            yield command.line, job.resolve(value)


@BATCH.rule(
    "MASTER-PORT", "warning", "another job or step on the node may use this port",
    "derive it: export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
)  # fmt: skip
def fixed_port(job: Job) -> Iterator[Hit]:
    found = list(_settings_of(job, "MASTER_PORT", "master_port", "main_process_port"))
    found += [(n, v.rpartition(":")[2]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    facts: dict[str, int] = {}  # fact -> the first line that sets it
    chosen = ("standalone", "rdzv_endpoint", "master_port", "rdzv_conf", "$")
    is_shared = not job.directive("exclusive")
    for command in job.commands if is_shared and "PET_" not in job.text else ():
        tokens = command.tokens
        is_given = any(token.lstrip("-").replace("-", "_").startswith(chosen) for token in tokens)
        if torch_launch(tokens) in TORCHRUN and command.name not in SAYING and not is_given:
            fact = "torchrun before 2.12 uses its default port, 29500"
            facts.setdefault(fact, command.line)
    for line, value in found:
        known = job.resolve(value)
        if "RANDOM" in known or "shuf" in known:
            facts.setdefault("the port is random", line)
        elif known.isdigit() and known != "0" and is_shared:
            facts.setdefault(f"the port is always {known[:9]}", line)
    yield from (Hit(line, fact) for fact, line in facts.items())


@BATCH.rule(
    "MASTER-ADDR", "error", "the ranks of the other nodes wait until they time out",
    FIRST_HOST,
)  # fmt: skip
def local_address(job: Job) -> Iterator[Hit]:
    found = list(_settings_of(job, "MASTER_ADDR", "master_addr", "main_process_ip"))
    found += [(n, v.rpartition(":")[0]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    for line, value in found if (job.nodes or 1) > 1 else ():
        known = job.resolve(value)
        if known in LOCAL_ADDRESSES:
            yield Hit(line, f"the ranks of {job.nodes} nodes meet at {known}")
            return  # the options that repeat it say nothing new
        if NODE_LIST.fullmatch(known):
            fact = f"{known} is a list of hosts, such as n[01-02], where one host is needed"
            yield Hit(line, fact, FIRST_HOST)
            return


@BATCH.rule(
    "MEETS-ITSELF", "error", "the nodes wait for each other until they time out",
    "set it once in the batch script, before srun",
)  # fmt: skip
def meets_itself(job: Job) -> Iterator[Hit]:
    for command in job.shell.commands if (job.nodes or 1) > 1 else ():
        if not any(base_name(word.text) == "srun" for word in command.words):
            continue
        held = [job.known[name] for name in command.live if name in job.known]
        words = [part for word in (*command.words, *held) for part in (word, *(word.items or ()))]
        for word in words:
            tokens = tokens_of([word]) if not word.has_command else []  # else this shell expands it
            found = [*option_values(tokens, *MEETING_OPTIONS)]
            found += [token.partition("=")[2] for token in tokens if token.startswith("MASTER_")]
            for what, pattern in OF_ONE_TASK.items():
                own = next((match[0] for text in found if (match := pattern.search(text))), "")
                if own and own.strip("${}") not in word.live:
                    yield Hit(command.line, f"each task expands {own} to its own {what}")


@BATCH.rule(
    "NO-KILL", "warning", "if one rank fails, the others wait and the nodes are billed",
    "add --kill-on-bad-exit=1",
)  # fmt: skip
def no_kill(job: Job) -> Iterator[Hit]:
    for step in job.launches if "SLURM_KILL_BAD_EXIT" not in job.settings else ():
        value = step.options.get("kill-on-bad-exit", "0")
        if value == "0" and not job.is_single(step):
            yield Hit(step.line, "srun has no --kill-on-bad-exit")


@BATCH.rule(
    "NO-CPUS", "warning", "since Slurm 22.05 srun ignores sbatch's value and may give one core",
    'add --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK',
)  # fmt: skip
def no_cpus(job: Job) -> Iterator[Hit]:
    option = job.directive("cpus-per-task")
    if "SRUN_CPUS_PER_TASK" in job.settings:
        return
    if not option:
        yield from _no_cpus_at_all(job)
        return
    for step in job.launches:
        if "cpus-per-task" not in step.options and option.value != "1":
            yield Hit(step.line, f"srun has no --cpus-per-task, only sbatch has ({option.value})")


def _no_cpus_at_all(job: Job) -> Iterator[Hit]:
    """Yield the first step with GPUs whose number of cores is not given."""
    if not job.has_gpus or job.directive("cpus-per-gpu", "exclusive"):
        return
    for step in job.launches:
        if not {"cpus-per-task", "cpus-per-gpu"} & {*step.options}:
            yield Hit(
                step.line,
                "neither sbatch nor srun has --cpus-per-task, so a task may get one core",
                "give it to both: cores of a node / tasks on it",
            )
            return


@BATCH.rule(
    "MODULE-PURGE", "warning", "modules of the submitting shell stay loaded",
    "write module purge before it",
)  # fmt: skip
def modules_on_top(job: Job) -> Iterator[Hit]:
    """Yield the first module loaded on top of those of the submitting shell.

    A Cray is left out: there a purge removes the programming environment.
    """
    constraint = job.directive("constraint")
    if CRAY.search(job.text) or (constraint and CRAY_GPUS.match(constraint.value or "")):
        return
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
            yield Hit(
                command.line, f"{' '.join([first, *rest])[:60]} has no module purge before it"
            )
            return


@BATCH.rule(
    "TWO-ENVIRONMENTS", "warning", "packages of one environment shadow those of the other",
    "keep exactly one: modules, a venv, or an image",
)  # fmt: skip
def two_environments(job: Job) -> Iterator[Hit]:
    found = [(command.line, kind) for command in job.commands if (kind := _activates(command))]
    if found and job.containers:
        line = job.containers[0].line
        yield Hit(found[0][0], f"{found[0][1]} is activated outside of the image of line {line}")
    elif len({kind for _, kind in found}) > 1:
        yield Hit(found[-1][0], f"{found[-1][1]} is activated on top of {found[0][1]}")


def _activates(command: Command) -> str | None:
    first, *rest = [word.text for word in command.words]
    if first in ("source", ".") and rest and base_name(rest[0]) == "activate":
        begins_conda = re.search("conda|mamba|miniforge", rest[0], re.IGNORECASE)
        return CONDA if len(rest) > 1 or begins_conda else "a venv"
    if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
        return CONDA
    return None


@BATCH.rule(
    "EXIT-CODE", "warning", "Slurm then reports a failed run as COMPLETED, and afterok jobs start",
    "write set -eo pipefail, or srun ... || code=$? and at the end exit ${code:-0}",
)  # fmt: skip
def lost_exit_code(job: Job) -> Iterator[Hit]:
    """Yield the pipes, or the last command, that hide the ranks' exit code."""
    settings = _settings(job)
    piped = set()
    is_seen = "pipefail" in settings or "PIPESTATUS" in job.text or not job.is_batch
    for command in job.commands if not is_seen else ():
        step = step_of(command)
        is_launch = step.is_launch if step else _starts_ranks(command)
        if is_launch and command.is_piped:
            piped.add(command.line)
            what = "srun" if step else torch_launch(command.tokens)
            yield Hit(command.line, f"the exit code of {what} is lost in a pipe without pipefail")
    commands = [command for command in job.sequence if command.depth == 0]
    top = [at for at, command in enumerate(commands) if command.words and not command.function]
    if not top or "errexit" in settings:
        return
    last, heard = commands[top[-1]], _heard(commands)
    ends = _ends_as_ranks(commands, heard)
    is_cut_off = last.name.startswith("-")  # a part of the command before it: BROKEN-LINE
    if is_cut_off or last.name in ("exit", "return") or top[-1] in ends or last.line in piped:
        return
    begin = len(top) - 1
    while begin and commands[top[begin - 1]].ends == "&&":
        begin -= 1  # a && b: where a fails, the script ends as a does
    if any(ends.get(at) for at in top[:begin] if at not in heard):
        yield Hit(
            last.line,
            f"the exit code of the script is that of {last.name[:40]}, not that of the ranks",
        )


@BATCH.rule(
    "BROKEN-LINE", "error", "the next line is not part of the command",
    "let the backslash be the line's last character",
)  # fmt: skip
def broken_line(job: Job) -> Iterator[Hit]:
    cut: dict[int, str] = {}
    for command in job.shell.commands:
        if command.cut_in:
            cut[command.cut_in] = "a space after the backslash ends the command"
        first = command.words[0].text if command.words else ""
        line, before = job.lines[command.line - 1], command.line - 1  # its text, the line above
        begins = re.match("--?[a-zA-Z]", first) and line.lstrip().startswith(first)
        text = job.lines[before - 1].strip() if begins and before and not CASE.match(line) else ""
        if text.startswith("#"):
            cut[before] = "a comment between the lines of a command ends it"
        elif text and before not in cut and not text.endswith(("|", "&&")):
            cut[before] = "the line has no backslash at its end"
    yield from (Hit(line, fact) for line, fact in cut.items())


@BATCH.rule(
    "NOT-READ", "note", "later findings may be missing or wrong",
    "try bash -n on the script",
)  # fmt: skip
def not_read(job: Job) -> Iterator[Hit]:
    if job.shell.unread:
        yield Hit(job.shell.unread, f"lint cannot parse the shell from line {job.shell.unread} on")


def _problems(job: Job, *kinds: Kind) -> Iterator[Hit]:
    """Yield the problems of these kinds with variables of NCCL, Gloo and torch."""
    values = {name: value for name, (_, value) in job.environ.items()}
    for problem in problems(values, job.interfaces):
        if problem.kind in kinds:
            yield Hit(job.environ[problem.name][0], problem.message, problem.action)


@BATCH.rule(
    "NCCL-VARIABLE", "warning", "NCCL ignores what it does not know, without a message",
    "correct it",
)  # fmt: skip
def wrong_variable(job: Job) -> Iterator[Hit]:
    return _problems(job, "name", "value")


@BATCH.rule(
    "INTERFACE-MISSING", "note", "ranks without a common interface cannot connect",
    "check on a compute node",
)  # fmt: skip
def missing_interface(job: Job) -> Iterator[Hit]:
    return _problems(job, "interface")


@BATCH.rule(
    "COSTLY-VARIABLE", "warning", "every step is slower",
    "leave it out",
)  # fmt: skip
def costly_variable(job: Job) -> Iterator[Hit]:
    return _problems(job, "costly")


@BATCH.rule(
    "DEBUG-IN-TIMING", "warning", "measured times then include the debugging",
    "leave it out",
)  # fmt: skip
def debugging(job: Job) -> Iterator[Hit]:
    return _problems(job, "slow")


TIME = re.compile(
    r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|INFINITE|UNLIMITED|-1", re.IGNORECASE
)
# A misspelt directive, and one that is commented out.
MISSPELT = re.compile(r"(?:\s*#sbatch|\s+#SBATCH)(\s+-.*)", re.IGNORECASE)
OFF = re.compile(r"\s*(?:##+\s*|#\s+)SBATCH\s+-")
# The first version of Slurm that makes the folders of --output and --error.
MAKES_FOLDERS = (23, 2)


@BATCH.rule(
    "SHEBANG", "error", "sbatch refuses the script",
    "begin the script with #!/bin/bash",
)  # fmt: skip
def no_shebang(job: Job) -> Iterator[Hit]:
    if not job.text.startswith("#!"):
        yield Hit(1, "the first line does not begin with #!")


@BATCH.rule(
    "CRLF", "error", "sbatch refuses the script",
    "run dos2unix on the script",
)  # fmt: skip
def dos_lines(job: Job) -> Iterator[Hit]:
    found = [n for n, line in enumerate(job.lines, start=1) if line.endswith("\r")]
    if found:
        yield Hit(found[0], f"{len(found)} lines have Windows line ends (CR LF)")


@BATCH.rule(
    "DIRECTIVE-LATE", "error", "sbatch ignores it without a message",
    "move it above the first command",
)  # fmt: skip
def late_directive(job: Job) -> Iterator[Hit]:
    first = job.first_command
    for line, text in job.shell.comments:
        if line > first and text.startswith("#SBATCH"):
            yield Hit(line, f"{text[:60].strip()} comes after the first command, in line {first}")


@BATCH.rule(
    "DIRECTIVE-SPELLING", "error", "sbatch reads it as a comment",
    "write #SBATCH in capitals at the start of the line",
)  # fmt: skip
def misspelt_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        match = MISSPELT.fullmatch(text)
        if match and not text.startswith("#SBATCH"):
            words = [Word(line, word) for word in split_words(match[1])]
            if not options(words, SHORT)[1]:
                yield Hit(line, f"{text[:60].rstrip()!r} does not begin with #SBATCH")


@BATCH.rule(
    "DIRECTIVE-OFF", "note", "sbatch ignores it",
    "remove the extra # if you want the option",
)  # fmt: skip
def disabled_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        if OFF.match(text):
            yield Hit(line, f"{text[:60].strip()!r} is a comment")


@BATCH.rule(
    "DIRECTIVE-OPTION", "error", "sbatch refuses the script",
    "correct it",
)  # fmt: skip
def unknown_option(job: Job) -> Iterator[Hit]:
    for option in job.directives:
        # --container-image and its like are those of Pyxis, a plugin that many sites have.
        foreign = len(option.name) == 1 or option.name.startswith("container-")
        if not foreign and option.name not in SBATCH_OPTIONS:
            near = get_close_matches(option.name[:60], SBATCH_OPTIONS, n=1, cutoff=0.75)
            if near:
                yield Hit(
                    option.line, f"sbatch has no --{option.name}", f"did you mean --{near[0]}?"
                )


@BATCH.rule(
    "DIRECTIVE-VARIABLE", "error", "sbatch does not expand variables",
    "write the value itself, or use %j, %x or %u of sbatch",
)  # fmt: skip
def variable_in_directive(job: Job) -> Iterator[Hit]:
    for option in job.directives:
        value = option.value or ""
        if "$" in value or value.startswith("~"):
            yield Hit(option.line, f"--{option.name}={value} contains a shell variable")


@BATCH.rule(
    "NO-TIME", "warning", "the job gets the partition's limit and waits longer, or is refused",
    "add #SBATCH --time=HH:MM:SS",
)  # fmt: skip
def no_time(job: Job) -> Iterator[Hit]:
    if job.directives and not job.directive("time"):
        yield Hit(1, "--time is not given")


@BATCH.rule(
    "TIME", "error", "sbatch refuses the script",
    "write minutes, HH:MM:SS or D-HH:MM:SS",
)  # fmt: skip
def wrong_time(job: Job) -> Iterator[Hit]:
    option = job.directive("time")
    value = job.value("time")
    is_filled_in = re.search(r"[${}<>@#%]", value)  # by the shell's user, or by a template
    if option and not is_filled_in and not TIME.fullmatch(value):
        yield Hit(option.line, f"--time={value} is not a time that sbatch reads")


@BATCH.rule(
    "NO-TASKS-PER-NODE", "warning", "Slurm may fill one node before it uses the next",
    "add #SBATCH --ntasks-per-node, one task for each GPU",
)  # fmt: skip
def no_tasks_per_node(job: Job) -> Iterator[Hit]:
    tasks = job.asked("ntasks")
    by_step = any("ntasks-per-node" in step.options for step in job.steps)
    if (job.nodes or 1) == 1 or by_step or job.directive("ntasks-per-node"):
        return
    if tasks not in (None, job.nodes):
        yield Hit(1, f"{tasks} tasks on {job.nodes} nodes have no --ntasks-per-node")
    elif tasks is None and job.has_gpus and any(not torch_launch(s.tokens) for s in job.launches):
        yield Hit(1, f"{job.nodes} nodes have no --ntasks-per-node, so each gets one task")


@BATCH.rule(
    "OUTPUT-FOLDER", "note", "Slurm before 23.02 does not create it, and the job fails at "
    "once (0:53) without a log",
    "create the folder before you submit",
)  # fmt: skip
def missing_folder(job: Job) -> Iterator[Hit]:
    """Yield the missing folders of --output and --error, as far as this machine can see.

    Slurm creates them since 23.02 (its release notes), also with %j in their name.
    """
    if job.slurm and job.slurm >= MAKES_FOLDERS:
        return
    for name in ("output", "error"):
        option = job.directive(name)
        folder = Path(option.value).parent if option and option.value else Path()
        if option and not _may_exist(folder, job):
            is_sure = folder.is_absolute() or bool(job.value("chdir"))
            where = "" if is_sure else ", here or beside the script"
            fact = f"the folder {folder} of --{name} does not exist{where}"
            yield Hit(option.line, fact, severity="error" if job.slurm and is_sure else "")


def _may_exist(folder: Path, job: Job) -> bool:
    """Return whether a folder exists, or cannot be judged from here."""
    if "$" in str(folder) or str(folder).startswith("~"):
        return True  # another rule says that it is not expanded
    try:
        if folder.is_absolute():
            # Another machine's file system is not to be judged by this one's.
            return folder.is_dir() or folder.parent == Path("/") or not folder.parent.is_dir()
        chdir = job.value("chdir")
        bases = [Path(chdir)] if chdir else [Path(), Path(job.path).parent]
        return any((base / folder).is_dir() for base in bases)
    except OSError:
        return True  # a name that no file can have


@BATCH.rule(
    "GPU-PER-TASK", "warning", 'a rank that asks for cuda:LOCAL_RANK fails with "invalid '
    'device ordinal"; other ranks work, but NCCL cannot use NVLink and P2P',
    "use --gpus-per-node, with one task for each GPU and cuda:LOCAL_RANK",
)  # fmt: skip
def one_gpu_per_task(job: Job) -> Iterator[Hit]:
    if "allow-task-sharing" in job.value("gres-flags"):
        return
    option = job.directive("gpus-per-task")
    if option and (job.tasks_per_node() or 1) > 1:
        yield Hit(option.line, "--gpus-per-task shows each task one GPU")
    for step in job.steps:
        bind, nearest = (step.options.get(name) or "" for name in ("gpu-bind", "accel-bind"))
        if "allow-task-sharing" in (step.options.get("gres-flags") or ""):
            continue
        several = step.is_certain and (job.tasks_per_node(step) or 2) > 1
        several = several and not job.is_single(step)
        if several and "gpus-per-task" in step.options:
            yield Hit(step.line, "srun --gpus-per-task shows each task one GPU")
        elif several and bind.startswith(("single", "per_task")):
            yield Hit(step.line, f"srun --gpu-bind={bind} shows each task one GPU")
        elif several and "g" in nearest:
            yield Hit(step.line, f"srun --accel-bind={nearest} shows each task its nearest GPU")
        elif any(re.match(r"CUDA_VISIBLE_DEVICES=\S*LOCAL", token) for token in step.tokens):
            yield Hit(step.line, "CUDA_VISIBLE_DEVICES is set to one GPU in each task")


@BATCH.rule(
    "SIGNAL-STEPS", "warning", "the signal ends ranks that do not handle it, and the "
    "script continues",
    "write --signal=B:USR1@120 and trap USR1 in this script, unless the ranks handle it",
)  # fmt: skip
def signal_to_steps(job: Job) -> Iterator[Hit]:
    if re.search("lightning", job.text, re.IGNORECASE):
        return
    option = job.directive("signal")
    target, colon, _ = job.value("signal").partition(":")
    if option and not (colon and "B" in target):
        yield Hit(option.line, f"--signal={option.value} goes to the ranks, not to this script")


@BATCH.rule(
    "TASKS-CONTRADICT", "error", "Slurm follows one of them only",
    "give --nodes and --ntasks-per-node, and leave --ntasks out",
)  # fmt: skip
def tasks_contradict(job: Job) -> Iterator[Hit]:
    tasks, per_node = job.directive("ntasks"), job.directive("ntasks-per-node")
    numbers = [job.number(option.value) if option else None for option in (tasks, per_node)]
    if not (tasks and numbers[0] and numbers[1]):
        return
    num_tasks, num_of_node = numbers[0], numbers[1]
    if num_tasks < num_of_node or (job.nodes and num_tasks > job.nodes * num_of_node):
        nodes = f" on {job.nodes} node{'s' * (job.nodes > 1)}" if job.nodes else ""
        fact = f"--ntasks={num_tasks} contradicts --ntasks-per-node={num_of_node}{nodes}"
        yield Hit(tasks.line, fact)


@BATCH.rule(
    "EXPORT-NAMES", "error", "tasks without PATH cannot find their program",
    "use --export=ALL and set variables in the script",
)  # fmt: skip
def exported_names(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        if value and names[0] not in ("ALL", "NONE", "NIL") and "ALL" not in names:
            yield Hit(line, f"--export={value} removes every other variable, including PATH")


@BATCH.rule(
    "EXPORT-COMMA", "error", "the variable gets only the text before the comma",
    "export the variable in the script, in quotes",
)  # fmt: skip
def export_with_comma(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        cut = [b for a, b in pairwise(names) if "=" in a and "=" not in b]
        if "ALL" in names and cut and cut[0] != "ALL":
            yield Hit(line, f"--export={value} cuts a value at its comma, before {cut[0]!r}")


def _exports(job: Job) -> Iterator[tuple[int, str]]:
    option = job.directive("export")
    if option and option.value:
        yield option.line, option.value
    for step in job.steps:
        if value := step.options.get("export"):
            yield step.line, value


@BATCH.rule(
    "REQUEUE", "note", "after a node failure Slurm may run the whole script again",
    "add #SBATCH --no-requeue, or --requeue with --open-mode=append",
)  # fmt: skip
def requeue_unsaid(job: Job) -> Iterator[Hit]:
    if job.directives and not job.directive("no-requeue", "requeue"):
        yield Hit(1, "neither --no-requeue nor --requeue is given")


# Programs that use no GPU.
TOOLS = {
    *("cat", "cp", "curl", "date", "du", "echo", "env", "find", "grep", "head", "hostname", "id"),
    *("ldd", "ls", "mkdir", "mv", "ompi_info", "pip", "pip3", "printenv", "rm", "rsync", "tar"),
    *("test", "true", "uname", "unzip", "wget", "which"),
}
HANDED_ON = re.compile(r"(APPTAINER|SINGULARITY)ENV_(SLURM|MASTER|RANK|LOCAL|WORLD|\$|\{)")


@BATCH.rule(
    "CLEANENV", "error", "no rank gets its number or the master's address",
    "pass them as APPTAINERENV_NAME, or with --env-file",
)  # fmt: skip
def clean_environment(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        cleans = container.has("--cleanenv", "-e") and not container.has("--env", "--env-file")
        is_rank = container.step is not None and not job.is_single(container.step)
        if cleans and is_rank and not HANDED_ON.search(job.text):
            yield Hit(container.line, "--cleanenv removes SLURM_* and MASTER_*")


@BATCH.rule(
    "CONTAINALL", "error", "NCCL and gloo cannot use shared memory, and /tmp has 64 MiB",
    "use --no-home instead",
)  # fmt: skip
def contained(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        tasks = job.tasks_per_node(container.step) if container.step else 1
        if container.has("--containall", "-C", "--ipc", "-i") and (tasks or 1) > 1:
            yield Hit(container.line, f"each of the {tasks} ranks on a node gets its own /dev/shm")


@BATCH.rule(
    "NO-NV", "error", "torch sees no GPU, and Apptainer does not warn",
    "add --nv, or --rocm for AMD",
)  # fmt: skip
def no_gpus_inside(job: Job) -> Iterator[Hit]:
    """Yield each image that sees no GPU.

    AMD is left out: Apptainer binds the host's /dev, and the image brings ROCm.
    """
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    if job.is_amd or not job.has_gpus or switches & set(job.settings):
        return
    for container in job.containers:
        is_given = container.has("--nv", "--nvccli", "--rocm")
        may_be_given = any("$" in option and "=" not in option for option in container.options)
        # A command that only prints a version or a file needs no GPU.
        program = container.program
        name = base_name(program[0]) if program else ""
        asks_version = any(re.search(r"--version|__version__|^-V$", word) for word in program)
        is_client = name == "ray" and "start" not in program
        if not (is_given or may_be_given or name in TOOLS or asks_version or is_client):
            yield Hit(
                container.line, "the job asks for GPUs, but the image is started without --nv"
            )


@BATCH.rule(
    "DOCKER-SHM", "warning", "the container has 64 MB of /dev/shm, and loaders or NCCL fail "
    "with a bus error",
    "add --ipc=host, or --shm-size=8g",
)  # fmt: skip
def docker_without_shared_memory(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        tokens = command.tokens
        names = [base_name(token) for token in tokens]
        for name in ("docker", "podman", "nvidia-docker"):
            at = names.index(name) if name in names else len(tokens)
            given = any(token.startswith(("--ipc", "--shm-size", "$")) for token in tokens)
            if "run" in tokens[at + 1 : at + 3] and not given and command.name not in SAYING:
                fact = f"{name} run has neither --ipc=host nor --shm-size"
                yield Hit(command.line, fact)
