"""Rules about the commands of a batch script, and about the variables that it sets.

Rules about what starts the ranks: srun, and torch's own launchers on each node.

Whether a batch script ends with an error when the ranks that it starts do.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from lockstep.before.lint.batch import (
    BATCH,
    CONTAINERS,
    LAUNCH,
    PROFILERS,
    SAYING,
    STARTERS,
    Job,
    Step,
    step_of,
)
from lockstep.before.lint.rules import Hit
from lockstep.before.lint.shell import Command, base_name, tokens_of, value_of
from lockstep.before.lint.variables import Kind, problems
from lockstep.core.processes import INTERFACE_NAMES

SACCT = (
    "take the numbers after the job's end: lockstep status --collect, or sacct from the login node"
)

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
# What says that a script trains by torch.distributed, one process for each GPU.
OF_TORCH = re.compile(r"ddp|fsdp|distributed|lightning|torch|MASTER_(ADDR|PORT)", re.IGNORECASE)
# What tells a launcher of the other nodes: torchrun's options, and accelerate's.
NUM_NODES = ("nnodes", "num_machines")
MEETING = ("rdzv_endpoint", "master_addr", "main_process_ip")


def torch_launch(tokens: list[str]) -> str | None:
    """Return the launcher of torch's own among some words."""
    for at, token in enumerate(tokens):
        name = base_name(token)
        if name in TORCH_LAUNCHERS:
            return name
        if name == "accelerate" and "launch" in tokens[at + 1 : at + 2]:
            return "accelerate launch"
    return None


def option_values(tokens: list[str], *names: str) -> Iterator[str]:
    """Yield the values of a program's option, written with _ or -."""
    for at, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") in names:
            yield value if equals else "".join(tokens[at + 1 : at + 2])


@BATCH.rule(
    "TASKS-X-NPROC", "error", "several ranks then share a GPU, or never meet",
    "use --ntasks-per-node=1 with torchrun, or start python itself in each task",
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
    "TORCHRUN-ONE-NODE", "error", "the other nodes idle or are waited for",
    "start it with srun --ntasks-per-node=1",
)  # fmt: skip
def one_node_only(job: Job) -> Iterator[Hit]:
    for command in job.commands if (job.nodes or 1) > 1 else ():
        launcher = torch_launch(command.tokens)
        if launcher and LAUNCH.fullmatch(command.name):
            yield Hit(command.line, f"{launcher} runs on the first of {job.nodes} nodes only")


@BATCH.rule(
    "NO-SRUN", "error", "it runs on the first node only, and ranks that wait for others hang",
    "start it with srun, or with torchrun on each node",
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
            fact = f"{tasks} tasks are asked for and {command.name} is started once"
            yield Hit(command.line, fact, severity=severity)
            return


def _runs_script(tokens: Sequence[str]) -> bool:
    """Return whether some words start a script of Python's, or a module."""
    for at, token in enumerate(tokens):
        if re.fullmatch(r"python[0-9.]*", base_name(token)):
            rest = [one for one in tokens[at + 1 :] if one not in ("-u", "-O", "-B", "-E", "-s")]
            return bool(rest) and (rest[0].endswith(".py") or rest[0] == "-m")
    return False


@BATCH.rule(
    "TASKS-GPUS", "warning", "one rank drives one GPU",
    "ask for as many tasks a node as GPUs: --ntasks-per-node",
)  # fmt: skip
def tasks_against_gpus(job: Job) -> Iterator[Hit]:
    for step in job.launches if OF_TORCH.search(job.text) else ():
        tasks, gpus = job.tasks_per_node(step), job.gpus_per_node(step)
        text = " ".join(step.tokens)
        if job.number(step.options.get("ntasks")) == 1:
            continue  # a step beside the training
        by_itself = torch_launch(step.tokens) or OTHER_LAUNCHERS.search(text)
        if by_itself or SPAWNING.search(text) or not _runs_script(step.tokens) or not gpus:
            continue
        if tasks and tasks < gpus:
            idle = f"srun starts {tasks} of each node's {gpus} possible ranks"
            yield Hit(step.line, f"{idle}, so {gpus - tasks} of its GPUs idle")
        elif tasks and tasks > gpus:
            yield Hit(step.line, f"srun starts {tasks} ranks on a node with {gpus} GPUs")


@BATCH.rule(
    "WORKERS-GPUS", "error", 'the ranks beyond them fail with "invalid device ordinal"',
    "start one rank for each GPU: --nproc-per-node",
)  # fmt: skip
def workers_against_gpus(job: Job) -> Iterator[Hit]:
    for command in job.commands if job.is_batch else ():
        step, tokens = step_of(command), command.tokens
        workers = job.number(next(option_values(tokens, "nproc_per_node"), None))
        gpus = job.gpus_per_node(step)
        if command.name in SAYING or not torch_launch(tokens) or not (workers and gpus):
            continue
        if workers > gpus:
            yield Hit(command.line, f"{workers} ranks are started on a node with {gpus} GPUs")
        elif workers < gpus and (job.tasks_per_node(step) or 1) == 1 and workers > 1:
            fact = f"{workers} ranks are started on a node with {gpus} GPUs: {gpus - workers} idle"
            yield Hit(command.line, fact, "start one rank for each GPU", "warning")


@BATCH.rule(
    "WORLD-SIZE", "error", "the ranks wait for some that never come, or are refused",
    'set it from Slurm: export WORLD_SIZE="$SLURM_NTASKS"',
)  # fmt: skip
def world_size(job: Job) -> Iterator[Hit]:
    if any(torch_launch(one.tokens) for one in job.commands):
        return  # which sets it itself
    for command in job.shell.commands:
        for name, word in command.assigns:
            given = job.number(value_of(word)) if name == "WORLD_SIZE" else None
            for step in job.launches if given else ():
                tasks = job.num_tasks(step) if _runs_script(step.tokens) else None
                if tasks and tasks != given:
                    yield Hit(word.line, f"WORLD_SIZE is {given} and srun starts {tasks} tasks")
                    return


@BATCH.rule(
    "GLOO", "warning", "gloo copies each gradient through the host",
    "use nccl, which is torch's default for GPUs",
)  # fmt: skip
def gloo_for_gpus(job: Job) -> Iterator[Hit]:
    for command in job.commands if job.has_gpus else ():
        values = option_values(command.tokens, "backend", "dist_backend", "ddp_backend")
        if "gloo" in values and command.name not in SAYING:
            yield Hit(command.line, "GPUs are asked for and the backend is gloo")


@BATCH.rule(
    "TORCHRUN-APART", "error", "each node then trains alone, and its result passes for all",
    'add --nnodes="$SLURM_NNODES" --rdzv-backend=c10d --rdzv-endpoint="$first_host:$port"',
)  # fmt: skip
def nodes_apart(job: Job) -> Iterator[Hit]:
    for step in job.steps:
        launcher = torch_launch(step.tokens)
        if launcher and step.is_certain and not _may_be_told(job, step) and _nodes(job, step) > 1:
            lacks = [
                f"--{names[0].replace('_', '-')}"
                for names in (NUM_NODES, MEETING)
                if next(option_values(step.tokens, *names), None) is None
            ]
            if lacks:
                what = " or ".join(lacks)
                yield Hit(
                    step.line, f"{launcher} on each of {_nodes(job, step)} nodes has no {what}"
                )


def _nodes(job: Job, step: Step) -> int:
    return job.number(step.options.get("nodes")) or job.nodes or 1


def _may_be_told(job: Job, step: Step) -> bool:
    """Return whether variables may tell the launcher what its options do not."""
    by_variable = any(name.startswith(("PET_", "ACCELERATE_")) for name in job.settings)
    hidden = any(token.startswith(("$", '"$')) for token in step.tokens)
    return by_variable or hidden or "config_file" in " ".join(step.tokens)


def hidden_by_a_pipe(job: Job) -> Iterator[Command]:
    """Yield each launch whose exit code a pipe hides."""
    if "pipefail" in _settings(job) or "PIPESTATUS" in job.text:
        return
    for command in job.commands if job.is_batch else ():
        step = step_of(command)
        is_launch = step.is_launch if step else _starts_ranks(command)
        if is_launch and command.is_piped:
            yield command


def _starts_ranks(command: Command) -> bool:
    """Return whether a command is a launcher of torch's, without srun."""
    return bool(LAUNCH.fullmatch(command.name) and torch_launch(command.tokens))


def hidden_by_the_end(job: Job) -> Command | None:
    """Return the last command, where it hides how a launch has ended that nothing else hears of."""
    commands = [command for command in job.sequence if command.depth == 0]
    top = [at for at, command in enumerate(commands) if command.words and not command.function]
    if not top or "errexit" in _settings(job):
        return None
    last, heard = commands[top[-1]], _heard(commands)
    if last.name.startswith("-"):
        return None  # a part of the command before it, as another rule says
    ends = _ends_as_ranks(commands, heard)
    if last.name in ("exit", "return") or top[-1] in ends:
        return None
    begin = len(top) - 1
    while begin and commands[top[begin - 1]].ends == "&&":
        begin -= 1  # a && b: where a fails, the script ends as a does
    return last if any(ends.get(at) for at in top[:begin] if at not in heard) else None


def _ends_as_ranks(commands: list[Command], heard: set[int]) -> dict[int, bool]:
    """Return which commands end as a step does, and whether it is certain that ranks are in it."""
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
    """Return the commands whose exit code the script looks at."""
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
    """Return whether a command ends as what it waits for; without a name it ends with 0."""
    return command.name == "wait" and len(command.words) > 1


def _reads_status(command: Command) -> bool:
    words = (*command.words, *(word for _, word in command.assigns))
    read = any("$?" in word.text or "PIPESTATUS" in word.text for word in words)
    return read and command.name not in SAYING


def _settings(job: Job) -> set[str]:
    """Return which of pipefail and errexit the script sets; a trap on ERR does as errexit."""
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
# What a task's own shell must expand: in the batch shell each of them is 0.
RANK_VARIABLES = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}
RANK_NAMES = {
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK", "CUDA_VISIBLE_DEVICES"),
}
RANK_OPTION = re.compile(r"--(node|machine|local|global)?[_-]?rank\b")
CONDA = "an environment of conda"
# What ml does besides loading.
ML_WORDS = {"", "list", "avail", "use", "unuse", "spider", "show", "unload", "help", "save"}
OWN_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"}
PURGES_NOTHING = re.compile(r"^/etc/|/init/|/activate$|/?\.\w*(bashrc|profile)$")
# What says that a machine is Cray's; Perlmutter's GPUs are asked for by --constraint=gpu.
CRAY = re.compile(r"PrgEnv-|\bcray|\bcpe\b|\bLUMI\b|frontier|perlmutter|nersc|olcf", re.IGNORECASE)
CRAY_GPUS = re.compile(r"gpu($|&)")
CASE = re.compile(r"\s*\(?-[\w-]*\*?(\s*\|\s*[\w*-]+)*\s*\)")  # patterns of a case
NODE_LIST = re.compile(r"\$\{?SLURM_(JOB_)?NODELIST\}?")
# What each task that expands it gets another value of.
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
    """Look for a program that starts srun."""
    for command in job.commands:
        names = [base_name(token) for token in command.tokens]
        outer = next((name for name in names if name not in STARTERS - {*programs}), "")
        if outer in programs and "srun" in names:
            yield Hit(command.line, f"{outer} is around srun")


@BATCH.rule(
    "PROFILER-AROUND-SRUN", "error", "it sees the launcher and none of the ranks",
    "write srun ... nsys profile -o NAME-%q{SLURM_PROCID} ... python",
)  # fmt: skip
def profiler_around_srun(job: Job) -> Iterator[Hit]:
    return around_srun(job, PROFILERS)


@BATCH.rule(
    "CONTAINER-AROUND-SRUN", "error", "an image has no srun, or one that is not this Slurm's",
    "write srun ... apptainer exec IMAGE ...",
)  # fmt: skip
def container_around_srun(job: Job) -> Iterator[Hit]:
    return around_srun(job, CONTAINERS)


@BATCH.rule(
    "NODE-RANK-BATCH", "error", "it is 0 on every node and in every task",
    "let each task expand it: srun bash -c '... $SLURM_PROCID ...' in single quotes",
)  # fmt: skip
def rank_in_batch_shell(job: Job) -> Iterator[Hit]:
    handed_on = _functions_of_tasks(job)
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
            # With c10d the nodes are numbered as they come, and this number is not read.
            severity = "warning" if re.search("c10d", job.text) else ""
            yield Hit(line, f"the batch shell expands {listed}", severity=severity)


def _functions_of_tasks(job: Job) -> set[str]:
    """Return the functions that the script hands on to other shells, as with export -f."""
    given = [
        command.words
        for command in job.commands
        if command.name in ("export", "declare", "typeset")
    ]
    hands = [words for words in given if re.match("-[a-z]*f", words[1].text if words[1:] else "")]
    return {word.text for words in hands for word in words[2:]}


@BATCH.rule(
    "SACCT-IN-JOB", "warning", "its numbers are not complete yet",
    SACCT,
)  # fmt: skip
def accounting_of_itself(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        asks_others = any(word.text.startswith(("-j", "--job")) for word in command.words)
        is_own = command.live & OWN_JOB or (not asks_others and command.name == "sacct")
        if command.name in ("sacct", "seff") and is_own:
            yield Hit(command.line, f"{command.name} asks about the job that runs it")


@BATCH.rule(
    "INSTALL-IN-JOB", "warning", "nodes often have no network, ranks race for the files, "
    "and no two runs are alike",
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
    "VERSION-AS-FILE", "error", "the version is not asked for",
    "quote it: 'package>=1.0'",
)  # fmt: skip
def version_as_file(job: Job) -> Iterator[Hit]:
    for operator, target in job.shell.redirects:
        if operator in (">", ">>") and target.text.startswith("=") and not target.is_quoted:
            yield Hit(target.line, f"unquoted {operator}{target.text} writes into a file")


def _settings_of(job: Job, variable: str, *names: str) -> Iterator[tuple[int, str]]:
    """Yield lines and values of a variable, and of options that say the same."""
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
    "MASTER-PORT", "warning", "another job or step on the node may have it",
    "derive it: export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
)  # fmt: skip
def fixed_port(job: Job) -> Iterator[Hit]:
    found = list(_settings_of(job, "MASTER_PORT", "master_port", "main_process_port"))
    found += [(n, v.rpartition(":")[2]) for n, v in _settings_of(job, "", "rdzv_endpoint")]
    facts: dict[str, int] = {}  # said once, where it is first set
    for line in _default_port(job):
        facts.setdefault("torchrun before 2.12 takes its default port, 29500", line)
    for line, value in found:
        known = job.resolve(value)
        if "RANDOM" in known or "shuf" in known:
            facts.setdefault("the port is a random one", line)
        elif known.isdigit() and known != "0" and not job.directive("exclusive"):
            facts.setdefault(f"the port is always {known[:9]}", line)
    yield from (Hit(line, fact) for fact, line in facts.items())


def _default_port(job: Job) -> Iterator[int]:
    """Yield the lines of torchrun that say no port, on nodes that others may use."""
    told = ("standalone", "rdzv_endpoint", "master_port", "rdzv_conf", "$")
    if job.directive("exclusive") or "PET_" in job.text:
        return
    for command in job.commands:
        tokens = command.tokens
        is_told = any(token.lstrip("-").replace("-", "_").startswith(told) for token in tokens)
        if torch_launch(tokens) in TORCHRUN and command.name not in SAYING and not is_told:
            yield command.line


@BATCH.rule(
    "MASTER-ADDR", "error", "those of other nodes wait until their time is out",
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
    "MEETS-ITSELF", "error", "the nodes never meet, and wait until their time is out",
    "let the batch shell expand it once, before srun",
)  # fmt: skip
def meets_itself(job: Job) -> Iterator[Hit]:
    for command in job.shell.commands if (job.nodes or 1) > 1 else ():
        if not any(base_name(word.text) == "srun" for word in command.words):
            continue
        held = [job.known[name] for name in command.live if name in job.known]
        words = [one for word in (*command.words, *held) for one in (word, *(word.items or ()))]
        for word in words:
            tokens = tokens_of([word]) if not word.has_command else []  # else this shell expands it
            found = [*option_values(tokens, *MEETING_OPTIONS)]
            found += [token.partition("=")[2] for token in tokens if token.startswith("MASTER_")]
            for what, pattern in OF_ONE_TASK.items():
                own = next((match[0] for one in found if (match := pattern.search(one))), "")
                if own and own.strip("${}") not in word.live:
                    yield Hit(command.line, f"each task expands {own}, to a {what} of its own")


@BATCH.rule(
    "NO-KILL", "warning", "when one rank fails the others wait, and the nodes are billed",
    "add --kill-on-bad-exit=1",
)  # fmt: skip
def no_kill(job: Job) -> Iterator[Hit]:
    for step in job.launches if "SLURM_KILL_BAD_EXIT" not in job.settings else ():
        value = step.options.get("kill-on-bad-exit", "0")
        if value == "0" and not job.is_single(step):
            yield Hit(step.line, "srun has no --kill-on-bad-exit")


@BATCH.rule(
    "NO-CPUS", "warning", "since Slurm 22.05 a task may get one core for all its loaders",
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
            yield Hit(step.line, f"srun has no --cpus-per-task; sbatch's {option.value} is not its")


def _no_cpus_at_all(job: Job) -> Iterator[Hit]:
    """Look for ranks with GPUs whose number of cores is not given."""
    if not job.has_gpus or job.directive("cpus-per-gpu", "exclusive"):
        return
    for step in job.launches:
        if not {"cpus-per-task", "cpus-per-gpu"} & {*step.options}:
            yield Hit(
                step.line,
                "neither sbatch nor srun is given --cpus-per-task, so a task may get one core",
                "give it to both, such as the cores of a node over its tasks",
            )
            return


@BATCH.rule(
    "MODULE-PURGE", "warning", "modules of the shell that submits stay loaded",
    "write module purge before it",
)  # fmt: skip
def modules_on_top(job: Job) -> Iterator[Hit]:
    """Look for modules on top of those that the submitting shell had.

    On a Cray a purge takes the programming environment away.
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
            yield Hit(command.line, f"{' '.join([first, *rest])[:60]} comes without module purge")
            return


@BATCH.rule(
    "TWO-ENVIRONMENTS", "warning", "packages of one are found in the other",
    "keep exactly one: modules, a venv, or an image",
)  # fmt: skip
def two_environments(job: Job) -> Iterator[Hit]:
    found = [(command.line, kind) for command in job.commands if (kind := _activates(command))]
    if found and job.containers:
        line = job.containers[0].line
        yield Hit(found[0][0], f"{found[0][1]} is entered outside of the image of line {line}")
    elif len({kind for _, kind in found}) > 1:
        yield Hit(found[-1][0], f"{found[-1][1]} is entered on top of {found[0][1]}")


def _activates(command: Command) -> str | None:
    first, *rest = [word.text for word in command.words]
    if first in ("source", ".") and rest and base_name(rest[0]) == "activate":
        begins_conda = re.search("conda|mamba|miniforge", rest[0], re.IGNORECASE)
        return CONDA if len(rest) > 1 or begins_conda else "a venv"
    if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
        return CONDA
    return None


@BATCH.rule(
    "EXIT-CODE", "warning", "a failed run is then COMPLETED to Slurm and to afterok",
    "set -eo pipefail, or keep it: srun ... || failed=1, and end with exit",
)  # fmt: skip
def lost_exit_code(job: Job) -> Iterator[Hit]:
    piped = [*hidden_by_a_pipe(job)]
    for command in piped:
        what = "srun" if step_of(command) else torch_launch(command.tokens)
        yield Hit(command.line, f"the exit code of {what} is lost in a pipe without pipefail")
    last = hidden_by_the_end(job)
    if last and last.line not in [one.line for one in piped]:
        yield Hit(last.line, f"the script ends with {last.name[:40]}, however its ranks ended")


@BATCH.rule(
    "BROKEN-LINE", "error", "what follows is no part of the command",
    "let the backslash be the line's last character",
)  # fmt: skip
def broken_line(job: Job) -> Iterator[Hit]:
    cut: dict[int, str] = {}
    for command in job.shell.commands:
        if command.cut_in:
            cut[command.cut_in] = "a blank behind the backslash ends the command"
        first = command.words[0].text if command.words else ""
        line, before = job.lines[command.line - 1], command.line - 1  # its text, the line above
        begins = re.match("--?[a-zA-Z]", first) and line.lstrip().startswith(first)
        text = job.lines[before - 1].strip() if begins and before and not CASE.match(line) else ""
        if text.startswith("#"):
            cut[before] = "a comment between the lines of a command ends it"
        elif text and before not in cut and not text.endswith(("|", "&&")):
            cut[before] = "the line has no backslash at its end"
    yield from (Hit(line, f"{fact}; the next line is run by itself") for line, fact in cut.items())


@BATCH.rule(
    "NOT-READ", "note", "findings behind it may be missing or wrong",
    "try bash -n on the script",
)  # fmt: skip
def not_read(job: Job) -> Iterator[Hit]:
    if job.shell.unread:
        yield Hit(job.shell.unread, f"the shell is not read from line {job.shell.unread} on")


def _problems(job: Job, *kinds: Kind) -> Iterator[Hit]:
    """Yield what is wrong with the variables of NCCL and such, if it is of some kinds."""
    values = {name: value for name, (_, value) in job.environ.items()}
    for problem in problems(values, job.interfaces):
        if problem.kind in kinds:
            yield Hit(job.environ[problem.name][0], problem.message, problem.action)


@BATCH.rule(
    "NCCL-VARIABLE", "warning", "what NCCL does not know it passes over without a word",
    "correct it",
)  # fmt: skip
def wrong_variable(job: Job) -> Iterator[Hit]:
    return _problems(job, "name", "value")


@BATCH.rule(
    "INTERFACE-MISSING", "note", "ranks that find no interface do not meet",
    "look on a compute node",
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
    "DEBUG-IN-TIMING", "warning", "a measured time then holds the debugging too",
    "leave it out",
)  # fmt: skip
def debugging(job: Job) -> Iterator[Hit]:
    return _problems(job, "slow")


@BATCH.rule(
    "HARD-INTERFACE", "note", "on another machine the name is another",
    "keep it in one site file (lockstep init)",
)  # fmt: skip
def own_interface(job: Job) -> Iterator[Hit]:
    for name in INTERFACE_NAMES if not job.is_rendered else ():
        line, value = job.environ.get(name, (0, ""))
        if value and "$" not in value and not value.startswith("^"):
            yield Hit(line, f"the script sets {name}={value}")
