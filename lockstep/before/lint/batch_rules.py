"""Rules about batch scripts: launchers and ranks, exit codes, variables, directives, images."""

import ast
import re
import sys
from collections.abc import Collection, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from lockstep.before.lint import training
from lockstep.before.lint.batch import (
    CONTAINERS,
    LAUNCH,
    PRINTERS,
    PROFILERS,
    SHORT,
    STARTERS,
    TORCHRUN,
    Job,
    option_values,
    options,
    runs_python,
    step_of,
    torch_launcher,
)
from lockstep.before.lint.rules import Hit, Rules
from lockstep.before.lint.shell import Command, Word, base_name, split_words, tokens_of, value_of
from lockstep.before.lint.variables import problems
from lockstep.core import files
from lockstep.core.formats import counted

BATCH = Rules()
# Programs that start ranks in their own way, and words of scripts that do so.
OTHER_LAUNCHERS = re.compile(
    r"\b(mpirun|mpiexec|horovodrun|deepspeed|accelerate|composer|ray|dask|pdsh|clush|parallel|ssh|submitit)\b"
)
SPAWNING = re.compile(
    r"spawn|multiprocess|n?gpus?\b|n_?proc|devices|mirrored|parallel|--tp\b|vllm|server|"
    r"Trainer|accelerate\b|device_map|jax|pmap",
    re.IGNORECASE,
)
# Words of a script that trains by torch.distributed, one process for each GPU.
OF_TORCH = re.compile(r"ddp|fsdp|distributed|lightning|torch|MASTER_(ADDR|PORT)", re.IGNORECASE)


@BATCH.rule("TASKS-X-NPROC", "error", "several ranks share a GPU, or wait for each other for ever",
            "set --ntasks-per-node=1 for torchrun, or start python without torchrun")  # fmt: skip
def tasks_times_workers(job: Job) -> Iterator[Hit]:
    for step in job.steps:
        launcher, tasks = torch_launcher(step.tokens), job.tasks_per_node(step)
        workers = next(option_values(step.tokens, "nproc_per_node", "num_processes"), "1")
        number = job.number(workers)
        if launcher and step.is_certain and tasks not in (None, 1) and number != 1:
            total = f", in all {tasks * number}" if tasks and number else ""
            fact = f"srun starts {tasks} tasks on a node, and each task starts {workers} ranks"
            yield Hit(step.line, fact + total)


@BATCH.rule("TORCHRUN-ONE-NODE", "error",
            "the other nodes of the job stay idle, or the first node waits for them for ever",
            "start the launcher with srun --ntasks-per-node=1")  # fmt: skip
def one_node_only(job: Job) -> Iterator[Hit]:
    for command in job.commands if job.num_nodes() > 1 else ():
        launcher = torch_launcher(command.tokens)
        if launcher and LAUNCH.fullmatch(command.name):
            fact = (
                f"{launcher} runs only on the first of {job.nodes} nodes, so the other nodes stay "
                "idle, or the first node waits for them for ever"
            )
            command_line = " ".join(["srun", *_options_of_launcher(job), launcher, "..."])
            yield Hit(command.line, fact, f"start it on each node: {command_line}")


def _options_of_launcher(job: Job) -> Iterator[str]:
    """Yield srun's options for one launcher on each node, as NO-KILL and NO-CPUS ask for them."""
    if job.directive("ntasks"):
        yield f"--ntasks={job.nodes}"
    yield "--ntasks-per-node=1"
    if "SLURM_KILL_BAD_EXIT" not in job.settings:
        yield "--kill-on-bad-exit=1"
    cpus, tasks = job.request("cpus-per-task"), job.tasks_per_node() or 1
    if cpus:
        yield f"--cpus-per-task={cpus * tasks}"
    elif job.has_gpus and not job.directive("cpus-per-gpu", "exclusive"):
        yield "--cpus-per-task=CORES_OF_A_NODE"


@BATCH.rule("NO-SRUN", "error",
            "the program runs only once, and it may wait for ever for the missing ranks",
            "start the program with srun, or start torchrun on each node with srun")  # fmt: skip
def no_srun(job: Job) -> Iterator[Hit]:
    tasks = job.num_tasks() or 1
    for command in started_once(job)[: tasks > 1]:
        fact = f"the job asks for {tasks} tasks, but the script starts {command.name} only once"
        yield Hit(command.line, fact, severity=None if job.num_nodes() > 1 else "warning")


def started_once(job: Job) -> list[Command]:
    """Return the Python programs that the batch shell starts, if nothing else starts ranks."""
    if job.launches or any(not step.is_certain for step in job.steps) or not job.directives:
        return []
    if OTHER_LAUNCHERS.search(job.text):
        return []
    return [command for command in job.commands if LAUNCH.fullmatch(command.name)
            and runs_python(command.tokens) and not torch_launcher(command.tokens)]  # fmt: skip


def _source(job: Job, command: Command) -> str:
    """Return a Python program without names of DDP; empty if it is not on this machine."""
    name = next((token for token in command.tokens if token.endswith(".py")), "")
    path = Path(job.value("chdir") or Path(job.path).parent, name)
    text = files.text(path) if name and path.is_file() else ""
    return re.sub(r"DistributedDataParallel|nn\.parallel", "", text)


@BATCH.rule("TASKS-GPUS", "warning", "each rank uses only one GPU, so the other GPUs stay idle",
            "set --ntasks-per-node to the number of GPUs of a node")  # fmt: skip
def tasks_against_gpus(job: Job) -> Iterator[Hit]:
    alone, own, on_node = started_once(job), job.tasks_per_node() or 1, job.gpus_per_node() or 1
    # Several programs may share the GPUs, and a program may start its own ranks.
    sources = [text for command in alone if (text := _source(job, command))]
    texts = [*(" ".join(command.tokens) for command in alone), *sources]
    is_shared = any(command.ends == "&" for command in alone) or any(map(SPAWNING.search, texts))
    if alone and own < on_node and not is_shared:
        fact = (
            f"without srun only one rank starts on a node with {on_node} GPUs; the rank drives one "
            f"GPU and leaves {on_node - 1} idle"
        )
        action = f"set --ntasks-per-node={on_node}, and start the program with srun"
        is_sure = own > 1 or any(map(OF_TORCH.search, [job.text, *sources]))
        yield Hit(alone[0].line, fact, action, None if is_sure else "note")
    for step in job.launches if OF_TORCH.search(job.text) else ():
        tasks, gpus = job.tasks_per_node(step), job.gpus_per_node(step)
        text = " ".join(step.tokens)
        is_one_task = job.number(step.options.get("ntasks")) == 1  # runs beside the training
        has_launcher = torch_launcher(step.tokens) or OTHER_LAUNCHERS.search(text)
        if is_one_task or has_launcher or SPAWNING.search(text) or not runs_python(step.tokens):
            continue
        if tasks and gpus and tasks != gpus:
            idle = f" and leaves {gpus - tasks} idle" if tasks < gpus else ""
            num_ranks, num_gpus = counted(tasks, "rank"), counted(gpus, "GPU")
            fact = (
                f"srun starts {num_ranks} on a node with {num_gpus}{idle}; each rank can use only "
                "one GPU"
            )
            yield Hit(step.line, fact, f"set --ntasks-per-node={gpus}")


@BATCH.rule("WORKERS-GPUS", "error",
            'the ranks without a GPU of their own fail with "invalid device ordinal"',
            "set --nproc-per-node to the number of GPUs of a node")  # fmt: skip
def workers_against_gpus(job: Job) -> Iterator[Hit]:
    for command in job.active if job.is_batch else ():
        step, launcher = step_of(command), torch_launcher(command.tokens)
        workers = job.number(next(option_values(command.tokens, "nproc_per_node"), None))
        gpus = job.gpus_per_node(step)
        if not (launcher and workers and gpus):
            continue
        started = f"{launcher} starts {workers} ranks on a node with {gpus} GPUs"
        if workers > gpus:
            fact = f'{started}: ranks without a GPU fail with "invalid device ordinal"'
            yield Hit(command.line, fact, f"set --nproc-per-node={gpus}")
        elif 1 < workers < gpus and (job.tasks_per_node(step) or 1) == 1:
            fact = f"{started} and leaves {gpus - workers} idle"
            yield Hit(command.line, fact, f"set --nproc-per-node={gpus}", "warning")


@BATCH.rule("WORLD-SIZE", "error",
            "if WORLD_SIZE is too large, ranks wait for ever; if WORLD_SIZE is too small, ranks "
            "fail",
            'set WORLD_SIZE from Slurm: export WORLD_SIZE="$SLURM_NTASKS"')  # fmt: skip
def world_size(job: Job) -> Iterator[Hit]:
    if any(torch_launcher(command.tokens) for command in job.commands):
        return  # torch's launchers set WORLD_SIZE
    values = [word for command in job.shell.commands for name, word in command.assigns
              if name == "WORLD_SIZE"]  # fmt: skip
    for word in values:
        size = job.number(value_of(word))
        for step in job.launches:
            tasks = job.num_tasks(step) if runs_python(step.tokens) else None
            if size and tasks and tasks != size:
                yield Hit(word.line, f"WORLD_SIZE is {size}, but srun starts {tasks} tasks")
                return


# Packages outside Python's standard library that set no variable by which ranks meet.
PLAIN_PACKAGES = {"torch", "torchvision", "torchaudio", "numpy", "tqdm", "matplotlib", "PIL"}


@BATCH.rule("INIT-VARIABLES", "error",
            "init_process_group fails without RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            "start the ranks with torchrun, or set MASTER_ADDR and MASTER_PORT in this script and "
            "set RANK=$SLURM_PROCID and WORLD_SIZE=$SLURM_NTASKS in each task")  # fmt: skip
def missing_variables(job: Job) -> Iterator[Hit]:
    """Yield each srun of a Python file for which nothing sets the variables that ranks need.

    Files that the shell sources, and packages that Python imports, may set these variables, so such
    scripts are not judged.
    """
    if OTHER_LAUNCHERS.search(job.text) or any(c.name in ("source", ".") for c in job.commands):
        return
    for step in job.launches:
        tokens = step.tokens
        name = next((token for token in tokens if token.endswith(".py")), "")
        is_python = re.fullmatch("python[0-9.]*", base_name(tokens[0])) and "-m" not in tokens
        if not is_python or not name or (job.num_tasks(step) or 1) == 1:
            continue
        try:
            script = training.load(str(Path(job.value("chdir") or Path(job.path).parent, name)))
        except ValueError:  # the file is not on this machine
            continue
        needed, text = script.find_variables(), ast.unparse(script.tree)
        absent = [variable for variable in needed if variable not in job.text]
        others = script.packages - sys.stdlib_module_names - PLAIN_PACKAGES
        may_set = bool(others) or any(variable in text for variable in needed)
        if absent and not may_set:
            missing_variables = " and ".join(absent)
            fact = f"{name} calls init_process_group, but nothing sets {missing_variables}"
            yield Hit(step.line, fact)


@BATCH.rule(*training.GLOO)
def gloo_for_gpus(job: Job) -> Iterator[Hit]:
    for command in job.active if job.has_gpus else ():
        if "gloo" in option_values(command.tokens, "backend", "dist_backend", "ddp_backend"):
            yield Hit(command.line, "the job asks for GPUs, but the backend is gloo")


@BATCH.rule("TORCHRUN-APART", "error",
            "each node trains a model of its own, but the output looks like one common training",
            'add --nnodes="$SLURM_NNODES" --rdzv-backend=c10d '
            '--rdzv-endpoint="$first_host:$port"')  # fmt: skip
def nodes_apart(job: Job) -> Iterator[Hit]:
    # Variables may replace missing options of the launcher.
    if any(name.startswith(("PET_", "ACCELERATE_")) for name in job.settings):
        return
    wanted = {
        "--nnodes": ("nnodes", "num_machines"),
        "--rdzv-endpoint": ("rdzv_endpoint", "master_addr", "main_process_ip"),
    }
    for step in job.steps:
        tokens, nodes = step.tokens, job.num_nodes(step)
        launcher = torch_launcher(tokens)
        is_hidden = any(token.startswith(("$", '"$')) or "config_file" in token for token in tokens)
        lacks = [name for name, words in wanted.items() if not [*option_values(tokens, *words)]]
        if launcher and step.is_certain and not is_hidden and nodes > 1 and lacks:
            missing_options = " or ".join(lacks)
            fact = f"{launcher} starts on {nodes} nodes without {missing_options}"
            yield Hit(step.line, fact)


def find_starters(job: Job, programs: Collection[str]) -> Iterator[Hit]:
    """Yield each command in which one of `programs` starts srun."""
    for command in job.commands:
        names = [base_name(token) for token in command.tokens]
        outer = next((name for name in names if name not in STARTERS - {*programs}), "")
        if outer in programs and "srun" in names:
            yield Hit(command.line, f"{outer} starts srun")


BATCH.rule(
    "PROFILER-AROUND-SRUN", "error",
    "the profiler profiles srun, and not the ranks that srun starts",
    "let srun start the profiler: srun ... nsys profile -o NAME-%q{SLURM_PROCID} ... python",
)(partial(find_starters, programs=PROFILERS))  # fmt: skip
BATCH.rule(
    "CONTAINER-AROUND-SRUN", "error",
    "the image contains no srun, or contains another version of srun than the cluster",
    "let srun start the container: srun ... apptainer exec IMAGE ...",
)(partial(find_starters, programs=CONTAINERS))  # fmt: skip


# Variables that a task's own shell must expand, because each is 0 in the batch shell.
RANK_VARIABLES = {"SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"}
RANK_NAMES = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK",
              "CUDA_VISIBLE_DEVICES")  # fmt: skip
MAX_EXAMPLE = 120  # characters of a command in a message
RANK_OPTION = re.compile(r"--(node|machine|local|global)?[_-]?rank\b")


@BATCH.rule("NODE-RANK-BATCH", "error",
            "in the batch script itself, the numbers of node and task are 0 for every task",
            "let each task expand the variable, between the single quotes of srun bash -c '...'"
            )  # fmt: skip
def rank_in_batch_shell(job: Job) -> Iterator[Hit]:
    if not job.is_batch:
        return
    # Functions that the script exports, as with export -f, run in the tasks.
    exported = {
        word.text
        for command in job.commands
        if command.name in ("export", "declare", "typeset")
        and re.match("-[a-z]*f", "".join(word.text for word in command.words[1:2]))
        for word in command.words[2:]
    }
    words = [
        word
        for command in job.shell.commands
        for name, word in command.assigns
        if command.function not in exported
        and (name in RANK_NAMES or RANK_OPTION.search(word.text))
    ]
    for command in job.commands:
        if step_of(command) or torch_launcher(command.tokens):
            words += command.words
    expanded: dict[int, list[Word]] = {}  # line -> words
    for word in words:
        if RANK_VARIABLES & {*word.live}:
            expanded.setdefault(word.line, []).append(word)
    launcher = next(filter(None, (torch_launcher(command.tokens) for command in job.commands)), "")
    option = RANK_OPTION.search(job.text)
    for line, wrong in expanded.items():
        names = RANK_VARIABLES & {name for word in wrong for name in word.live}
        variables, text = " and ".join(f"${name}" for name in sorted(names)), wrong[0].text
        if " " in text:  # the text of bash -c
            inner = text if len(text) < MAX_EXAMPLE else f"... {variables.split()[0]} ..."
        elif re.match(r"\w+=", text):
            inner = f"export {text}; {launcher or 'python'} ..."
        elif launcher:
            inner = (
                f"{launcher} ... {text if '=' in text or not option else f'{option[0]}={text}'} ..."
            )
        else:
            inner = f"python ... {text} ..."
        fact = (
            f"the batch shell, not a task, expands {variables}; there the number of a node or task "
            "is always 0"
        )
        action = f"let each task expand it: srun bash -c '{inner}'"
        if launcher and option:
            action += f", or leave out {option[0]} and use --rdzv-backend=c10d"
        # With c10d the rendezvous numbers the nodes, so this number is not used.
        yield Hit(line, fact, action, "warning" if "c10d" in job.text else None)


OWN_JOB = {"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"}


@BATCH.rule("SACCT-IN-JOB", "warning",
            "Slurm's accounting of a job is incomplete until the job has ended",
            "run lockstep status --collect or sacct after the job has ended")  # fmt: skip
def accounting_of_itself(job: Job) -> Iterator[Hit]:
    for command in job.commands:
        names_jobs = any(word.text.startswith(("-j", "--job")) for word in command.words)
        is_own = command.live & OWN_JOB or (not names_jobs and command.name == "sacct")
        if command.name in ("sacct", "seff") and is_own:
            yield Hit(
                command.line,
                f"the script calls {command.name} for the job in which the script itself runs",
            )


INSTALLERS = {"pip", "pip3", "conda", "mamba", "micromamba", "uv", "apt", "apt-get"}


@BATCH.rule("INSTALL-IN-JOB", "warning",
            "nodes often have no internet, ranks write the same files at once, and versions change "
            "from run to run",
            "install the packages once, into an image or a venv")  # fmt: skip
def install_in_job(job: Job) -> Iterator[Hit]:
    for command in job.active:
        tokens = command.tokens
        names = [
            base_name(token)
            for at, token in enumerate(tokens)
            if base_name(token) in INSTALLERS and "install" in tokens[at + 1 : at + 3]
        ]
        if names and "--no-index" not in tokens:
            yield Hit(command.line, f"the job installs packages with {names[0]}")


@BATCH.rule("VERSION-AS-FILE", "error",
            "pip does not see the required version, so pip installs any version",
            "add quotes: 'package>=1.0'")  # fmt: skip
def version_as_file(job: Job) -> Iterator[Hit]:
    for operator, target in job.shell.redirects:
        if operator in (">", ">>") and target.text.startswith("=") and not target.is_quoted:
            yield Hit(
                target.line,
                f"the shell reads {operator}{target.text} as a redirection, and writes the output "
                "to a file",
            )


def meeting_values(job: Job, variable: str, *names: str) -> Iterator[tuple[int, str]]:
    """Yield line and value of each setting of a variable such as MASTER_ADDR, or of its options."""
    for command in job.shell.commands:
        for name, word in command.assigns:
            if name == variable:
                yield word.line, job.resolve(value_of(word))
    for command in job.active:
        for value in option_values(command.tokens, *names):
            yield command.line, job.resolve(value)
        for value in option_values(command.tokens, "rdzv_endpoint"):
            host, _, port = job.resolve(value).rpartition(":")
            yield command.line, port if variable == "MASTER_PORT" else host


@BATCH.rule("MASTER-PORT", "warning",
            "another job or job step on the node may already use this port",
            "derive the port from the job's id: "
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))")  # fmt: skip
def fixed_port(job: Job) -> Iterator[Hit]:
    facts: dict[str, int] = {}  # fact -> the first line that sets it
    options_of_port = ("standalone", "rdzv_endpoint", "master_port", "rdzv_conf", "$")
    is_shared = not job.directive("exclusive")
    for command in job.active if is_shared and "PET_" not in job.text else ():
        words = [token.lstrip("-").replace("-", "_") for token in command.tokens]
        is_given = any(word.startswith(options_of_port) for word in words)
        if torch_launcher(command.tokens) in TORCHRUN and not is_given:
            facts.setdefault("torchrun before PyTorch 2.12 always uses port 29500", command.line)
    for line, port in meeting_values(job, "MASTER_PORT", "master_port", "main_process_port"):
        if "RANDOM" in port or "shuf" in port:
            facts.setdefault("the rendezvous port is random", line)
        elif port.isdigit() and port != "0" and is_shared:
            facts.setdefault(f"the rendezvous port is always {port[:9]}", line)
    yield from (Hit(line, fact) for fact, line in facts.items())


LOCAL_ADDRESSES = {"localhost", "127.0.0.1", "0.0.0.0", "::1"}  # noqa: S104, none is bound
NODE_LIST = re.compile(r"\$\{?SLURM_(JOB_)?NODELIST\}?")


@BATCH.rule("MASTER-ADDR", "error",
            "the ranks of the other nodes cannot connect, and wait until they time out",
            'set the address to the first host: scontrol show hostnames "$SLURM_JOB_NODELIST" | '
            'head -1'
            )  # fmt: skip
def local_address(job: Job) -> Iterator[Hit]:
    values = meeting_values(job, "MASTER_ADDR", "master_addr", "main_process_ip")
    for line, address in values if job.num_nodes() > 1 else ():
        if address in LOCAL_ADDRESSES:
            yield Hit(line, f"{address} makes each of the {job.nodes} nodes connect to itself")
            return  # options that repeat the address would be the same error
        if NODE_LIST.fullmatch(address):
            yield Hit(line, f"{address} is a list of hosts, such as n[01-02], and not one host")
            return


MEETING_OPTIONS = ("rdzv_endpoint", "master_addr", "rdzv_id", "master_port")
# Expressions whose value differs between tasks that expand them.
OF_ONE_TASK = {
    "host": re.compile(
        r"\$\(\s*hostname\b[^)]*\)|`\s*hostname\b[^`]*`|\$\{?(HOSTNAME|SLURMD_NODENAME)\b"
    ),
    "number": re.compile(r"\$\{?RANDOM\b|\$\(\s*(shuf|uuidgen|date)\b|\$\$"),
}


@BATCH.rule("MEETS-ITSELF", "error", "the nodes wait for each other until they time out",
            "set the rendezvous address, port and id in the batch script before srun; use "
            "$SLURM_JOB_ID as the id"
            )  # fmt: skip
def meets_itself(job: Job) -> Iterator[Hit]:
    for command in job.shell.commands if job.num_nodes() > 1 else ():
        if not any(base_name(word.text) == "srun" for word in command.words):
            continue
        settings = [job.known[name] for name in command.live if name in job.known]
        for word in (*command.words, *settings):
            for part in (word, *(word.items or ())):
                # The batch shell itself expands a word with a $( ).
                tokens = tokens_of([part]) if not part.has_command else []
                values = [*option_values(tokens, *MEETING_OPTIONS)]
                values += [text.partition("=")[2] for text in tokens if text.startswith("MASTER_")]
                for noun, pattern in OF_ONE_TASK.items():
                    matches = (match[0] for text in values if (match := pattern.search(text)))
                    expression = next(matches, "")
                    if expression and expression.strip("${}") not in part.live:
                        fact = f"each task expands {expression} to a different {noun}"
                        yield Hit(command.line, fact)


@BATCH.rule("NO-KILL", "warning",
            "if one rank fails, the other ranks keep waiting, and all nodes are billed meanwhile",
            "add --kill-on-bad-exit=1")  # fmt: skip
def no_kill(job: Job) -> Iterator[Hit]:
    for step in job.launches if "SLURM_KILL_BAD_EXIT" not in job.settings else ():
        if step.options.get("kill-on-bad-exit", "0") == "0" and not job.is_single(step):
            yield Hit(step.line, "srun has no --kill-on-bad-exit")


@BATCH.rule("NO-CPUS", "warning",
            "since Slurm 22.05 srun ignores sbatch's --cpus-per-task, so each task may get only "
            "one core",
            'add --cpus-per-task="$SLURM_CPUS_PER_TASK", or export SRUN_CPUS_PER_TASK')  # fmt: skip
def no_cpus(job: Job) -> Iterator[Hit]:
    if "SRUN_CPUS_PER_TASK" in job.settings:
        return
    if option := job.directive("cpus-per-task"):
        for step in job.launches:
            if "cpus-per-task" not in step.options and option.value != "1":
                fact = f"sbatch has --cpus-per-task={option.value}, but srun has no --cpus-per-task"
                yield Hit(step.line, fact)
    elif job.has_gpus and not job.directive("cpus-per-gpu", "exclusive"):
        for step in job.launches:
            if not {"cpus-per-task", "cpus-per-gpu"} & {*step.options}:
                fact = "neither sbatch nor srun has --cpus-per-task, so tasks may get only one core"
                action = (
                    "set --cpus-per-task of sbatch and srun to a node's cores divided by the "
                    "tasks of a node"
                )
                yield Hit(step.line, fact, action)
                return


@BATCH.rule("TWO-ENVIRONMENTS", "warning",
            "packages of one environment hide the packages of the other",
            "use only one of these: modules, a venv or an image")  # fmt: skip
def two_environments(job: Job) -> Iterator[Hit]:
    activated: list[tuple[int, str]] = []  # line, kind of environment
    for command in job.commands:
        first, *rest = [word.text for word in command.words]
        if first in ("conda", "mamba", "micromamba") and rest[:1] == ["activate"]:
            activated.append((command.line, "a conda environment"))
        elif first in ("source", ".") and rest and base_name(rest[0]) == "activate":
            is_conda = len(rest) > 1 or re.search("conda|mamba|miniforge", rest[0], re.IGNORECASE)
            activated.append((command.line, "a conda environment" if is_conda else "a venv"))
    if activated and job.containers:
        (line, environment), image = activated[0], job.containers[0]
        fact = f"{environment} is activated outside the image that line {image.line} starts"
        yield Hit(line, fact)
    elif len({kind for _, kind in activated}) > 1:
        (_, earlier), (line, environment) = activated[0], activated[-1]
        yield Hit(line, f"the script activates {environment} on top of {earlier}")


@BATCH.rule("EXIT-CODE", "warning",
            "Slurm reports a failed run as COMPLETED, and starts the jobs that depend on its "
            "success",
            "add set -eo pipefail, or keep srun's exit code: srun ... || code=$?; ...; exit "
            "${code:-0}"
            )  # fmt: skip
def lost_exit_code(job: Job) -> Iterator[Hit]:
    """Yield the pipes, or the last command, that hide the ranks' exit code."""
    sets = [command.words[1:] for command in job.commands if command.name == "set"]
    settings = [*(word.text for words in sets for word in words), *job.lines[0].split()[1:]]
    has_errexit = "errexit" in settings or any(re.match("-[a-zA-Z]*e", text) for text in settings)
    has_errexit = has_errexit or any(
        command.name == "trap" and command.words[-1].text == "ERR" for command in job.commands
    )
    piped = set()
    is_used = "pipefail" in settings or "PIPESTATUS" in job.text or not job.is_batch
    for command in job.commands if not is_used else ():
        step = step_of(command)
        is_launch = step.is_launch if step else _starts_ranks(command)
        if is_launch and command.ends in ("|", "|&"):
            piped.add(command.line)
            launcher = "srun" if step else torch_launcher(command.tokens)
            fact = f"the pipe loses the exit code of {launcher}, because pipefail is not set"
            yield Hit(command.line, fact)
    commands = [command for command in job.sequence if command.depth == 0]
    top = [at for at, command in enumerate(commands) if command.words and not command.function]
    if not top or has_errexit:
        return
    last, checked = commands[top[-1]], _find_checked(commands)
    runs_ranks = _find_ranks(commands, checked)
    is_cut_off = last.name.startswith("-")  # an option of the command before it, see BROKEN-LINE
    if is_cut_off or last.name in ("exit", "return") or top[-1] in runs_ranks or last.line in piped:
        return
    begin = len(top) - 1
    while begin and commands[top[begin - 1]].ends == "&&":
        begin -= 1  # a && b: if a fails, the script ends with a's exit code
    if any(runs_ranks.get(at) for at in top[:begin] if at not in checked):
        fact = f"the script ends with the exit code of {last.name[:40]} instead of the ranks' code"
        yield Hit(last.line, fact)


def _starts_ranks(command: Command) -> bool:
    return bool(LAUNCH.fullmatch(command.name) and torch_launcher(command.tokens))


def _waits(command: Command) -> bool:
    return command.name == "wait" and len(command.words) > 1


def _find_checked(commands: list[Command]) -> set[int]:
    """Return the indices of commands whose exit code the script uses."""
    indices = set()
    is_checked = is_awaited = reads_status = False
    for at, command in reversed([*enumerate(commands)]):
        if command.ends not in ("&&", "|", "|&"):  # else like the command after it
            is_checked = command.ends == "||" or reads_status
        if command.is_condition or (is_awaited if command.ends == "&" else is_checked):
            indices.add(at)
        is_awaited = is_awaited or _waits(command)
        words = (*command.words, *(word for _, word in command.assigns))
        reads_status = command.name not in PRINTERS and any(
            "$?" in word.text or "PIPESTATUS" in word.text for word in words
        )
    return indices


def _find_ranks(commands: list[Command], checked: set[int]) -> dict[int, bool]:
    """Return index -> whether the command surely runs ranks, for commands that run steps."""
    runs_ranks: dict[int, bool] = {}
    functions: dict[str, bool] = {}
    has_background = False
    for at, command in enumerate(commands):
        step = step_of(command)
        if step or _starts_ranks(command):
            runs_ranks[at] = step.is_launch and step.is_certain if step else True
            has_background |= runs_ranks[at] and command.ends == "&"
        elif command.name in functions:
            runs_ranks[at] = functions[command.name]
        elif _waits(command):
            runs_ranks[at] = has_background
        if command.function and at in runs_ranks and at not in checked:
            functions[command.function] = runs_ranks[at] or functions.get(command.function, False)
    return runs_ranks


CASE = re.compile(r"\s*\(?-[\w-]*\*?(\s*\|\s*[\w*-]+)*\s*\)")  # patterns of a case


@BATCH.rule("BROKEN-LINE", "error",
            "the shell does not read the next line as a part of the command",
            "make the backslash the last character of the line")  # fmt: skip
def broken_line(job: Job) -> Iterator[Hit]:
    cut: dict[int, str] = {}
    for command in job.shell.commands:
        if command.cut_in:
            cut[command.cut_in] = "a space after the backslash ends the command too early"
        first = command.words[0].text if command.words else ""
        line, before = job.lines[command.line - 1], command.line - 1  # text, and line above
        begins = re.match("--?[a-zA-Z]", first) and line.lstrip().startswith(first)
        text = job.lines[before - 1].strip() if begins and before and not CASE.match(line) else ""
        if text.startswith("#"):
            cut[before] = "a comment between the lines of a command ends this command too early"
        elif text and before not in cut and not text.endswith(("|", "&&")):
            cut[before] = "the line has no backslash at its end"
    yield from (Hit(line, fact) for line, fact in cut.items())


@BATCH.rule("NOT-READ", "note", "lint may miss errors after this line, or report wrong ones",
            "run bash -n on the script to find the syntax error")  # fmt: skip
def not_read(job: Job) -> Iterator[Hit]:
    if job.shell.unread:
        yield Hit(job.shell.unread, f"lint cannot parse the script from line {job.shell.unread} on")


def variables(job: Job, kinds: Collection[str]) -> Iterator[Hit]:
    """Yield problems of these kinds with variables of NCCL, Gloo and torch."""
    values = {name: value for name, (_, value) in job.environ.items()}
    for problem in problems(values, job.interfaces):
        if problem.kind in kinds:
            yield Hit(job.environ[problem.name][0], problem.message, problem.action)


BATCH.rule(
    "NCCL-VARIABLE", "warning", "NCCL silently ignores variables and values that it does not know",
    "correct the variable",
)(partial(variables, kinds=("name", "value")))  # fmt: skip
BATCH.rule(
    "INTERFACE-MISSING", "note",
    "ranks cannot connect without a network interface that all nodes have",
    "check the interface's name on a compute node",
)(partial(variables, kinds=("interface",)))  # fmt: skip
BATCH.rule(
    "COSTLY-VARIABLE", "warning", "the variable makes every step slower", "unset the variable"
)(partial(variables, kinds=("costly",)))
BATCH.rule(
    "DEBUG-IN-TIMING", "warning", "timed steps include the cost of debugging", "unset the variable"
)(partial(variables, kinds=("slow",)))


@BATCH.rule("CRLF", "error", "sbatch refuses the script", "run dos2unix on the script")
def dos_lines(job: Job) -> Iterator[Hit]:
    numbers = [number for number, line in enumerate(job.lines, start=1) if line.endswith("\r")]
    if numbers:
        num_lines = len(numbers)
        yield Hit(numbers[0], f"the script has Windows line ends (CR LF) in {num_lines} lines")


@BATCH.rule("DIRECTIVE-LATE", "error", "sbatch silently ignores directives after the first command",
            "move the directive above the first command")  # fmt: skip
def late_directive(job: Job) -> Iterator[Hit]:
    first = job.first_command
    for line, text in job.shell.comments:
        if line > first and text.startswith("#SBATCH"):
            directive = text[:60].strip()
            fact = f"{directive} comes after the script's first command, which is in line {first}"
            yield Hit(line, fact)


@BATCH.rule("DIRECTIVE-SPELLING", "error", "sbatch reads this line as a comment",
            "write #SBATCH in capitals at the start of the line")  # fmt: skip
def misspelt_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        match = re.fullmatch(r"(?:\s*#sbatch|\s+#SBATCH)(\s+-.*)", text, re.IGNORECASE)
        if match and not text.startswith("#SBATCH"):
            words = [Word(line, word) for word in split_words(match[1])]
            if not options(words, SHORT)[1]:
                directive = text[:60].rstrip()
                yield Hit(line, f"the line {directive!r} does not begin with #SBATCH")


@BATCH.rule("DIRECTIVE-OFF", "note", "sbatch ignores this directive, because the line is a comment",
            "remove the extra # if sbatch shall read the line")  # fmt: skip
def disabled_directive(job: Job) -> Iterator[Hit]:
    for line, text in job.shell.comments:
        if re.match(r"\s*(?:##+\s*|#\s+)SBATCH\s+-", text):
            yield Hit(line, f"{text[:60].strip()!r} is a comment")


@BATCH.rule("DIRECTIVE-VARIABLE", "error", "sbatch does not expand shell variables in directives",
            "write the value itself, or sbatch's %j (job id), %x (job name) or %u (user)"
            )  # fmt: skip
def variable_in_directive(job: Job) -> Iterator[Hit]:
    for option in job.directives:
        value = option.value or ""
        if "$" in value or value.startswith("~"):
            yield Hit(option.line, f"--{option.name}={value} contains a shell variable")


# The first version of Slurm that creates the folders of --output and --error, also with %j in the
# name (Slurm's release notes).
MAKES_FOLDERS = (23, 2)


@BATCH.rule("OUTPUT-FOLDER", "note",
            "Slurm before 23.02 does not create the folder, so the job fails at once (exit code "
            "0:53) without a log",
            "create the folder before you submit, and use %j only in the name of the file, not of "
            "the folder")  # fmt: skip
def missing_folder(job: Job) -> Iterator[Hit]:
    """Yield the folders of --output and --error that are missing on this machine."""
    for name in ("output", "error") if not job.slurm or job.slurm < MAKES_FOLDERS else ():
        option = job.directive(name)
        folder = Path(option.value).parent if option and option.value else Path()
        if option and not _may_exist(folder, job):
            is_sure = folder.is_absolute() or bool(job.value("chdir"))
            fact = f"the folder {folder} of --{name} does not exist"
            if not is_sure:
                fact = (
                    f"the folder {folder} of --{name} is neither in the current folder nor "
                    "beside the script"
                )
            yield Hit(option.line, fact, severity="error" if job.slurm and is_sure else None)


def _may_exist(folder: Path, job: Job) -> bool:
    """Return whether a folder exists, or cannot be judged from here."""
    if "$" in str(folder) or str(folder).startswith("~"):
        return True  # DIRECTIVE-VARIABLE
    try:
        if folder.is_absolute():
            # The cluster's file system may not be mounted on this machine.
            return folder.is_dir() or folder.parent == Path("/") or not folder.parent.is_dir()
        chdir = job.value("chdir")
        bases = [Path(chdir)] if chdir else [Path(), Path(job.path).parent]
        return any((base / folder).is_dir() for base in bases)
    except OSError:
        return True  # a name that no file can have


@BATCH.rule("GPU-PER-TASK", "warning",
            'a rank that uses cuda:LOCAL_RANK fails with "invalid device ordinal"; if each rank '
            "uses cuda:0 instead, NCCL cannot use NVLink and P2P",
            "use --gpus-per-node instead, start one task for each GPU, and use cuda:LOCAL_RANK in "
            "each rank")  # fmt: skip
def one_gpu_per_task(job: Job) -> Iterator[Hit]:
    if "allow-task-sharing" in job.value("gres-flags"):
        return
    directive = job.directive("gpus-per-task")
    if directive and (job.tasks_per_node() or 1) > 1:
        yield Hit(directive.line, "with --gpus-per-task each task sees only one GPU")
    for step in job.steps:
        names = ("gpu-bind", "accel-bind", "gres-flags")
        bind, nearest, flags = (step.options.get(name) or "" for name in names)
        is_one = not step.is_certain or job.is_single(step) or job.tasks_per_node(step) == 1
        if "allow-task-sharing" in flags:
            continue
        hiding = {
            "--gpus-per-task": "gpus-per-task" in step.options,
            f"--gpu-bind={bind}": bind.startswith(("single", "per_task")),
            f"--accel-bind={nearest}": "g" in nearest,
        }
        option = next((option for option, is_given in hiding.items() if is_given), "")
        if option and not is_one:
            yield Hit(step.line, f"with srun {option} each task sees only one GPU")
        elif any(re.match(r"CUDA_VISIBLE_DEVICES=\S*LOCAL", token) for token in step.tokens):
            yield Hit(step.line, "CUDA_VISIBLE_DEVICES limits each task to one GPU")


@BATCH.rule("SIGNAL-STEPS", "warning",
            "the signal ends ranks that do not handle it, but the script continues",
            "use --signal=B:USR1@120 and trap USR1 in this script, unless the ranks handle the "
            "signal"
            )  # fmt: skip
def signal_to_steps(job: Job) -> Iterator[Hit]:
    option = job.directive("signal")
    target, colon, _ = job.value("signal").partition(":")
    is_lightning = "lightning" in job.text.lower()  # Lightning handles the signal
    if option and not is_lightning and not (colon and "B" in target):
        yield Hit(option.line, f"--signal={option.value} signals the ranks, and not this script")


@BATCH.rule("TASKS-CONTRADICT", "error",
            "Slurm starts --ntasks tasks, and uses --ntasks-per-node only as a maximum",
            "give --nodes and --ntasks-per-node, and leave --ntasks out")  # fmt: skip
def tasks_contradict(job: Job) -> Iterator[Hit]:
    option, tasks, per_node = (
        job.directive("ntasks"), job.request("ntasks"), job.request("ntasks-per-node")
    )  # fmt: skip
    if not (option and tasks and per_node):
        return
    if tasks < per_node or (job.nodes and tasks > job.nodes * per_node):
        nodes = f" on {counted(job.nodes, 'node')}" if job.nodes else ""
        fact = f"--ntasks={tasks} contradicts --ntasks-per-node={per_node}{nodes}"
        yield Hit(option.line, fact)


@BATCH.rule("EXPORT-NAMES", "error", "tasks without PATH cannot find their program",
            "use --export=ALL, and set the variables in the script")  # fmt: skip
def exported_names(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        if names[0] not in ("ALL", "NONE", "NIL") and "ALL" not in names:
            yield Hit(line, f"--export={value} removes every other variable, including PATH")


@BATCH.rule("EXPORT-COMMA", "error", "the variable gets only the text before the comma",
            "export the variable in the script, with its value in quotes")  # fmt: skip
def export_with_comma(job: Job) -> Iterator[Hit]:
    for line, value in _exports(job):
        names = value.split(",")
        cut = [b for a, b in pairwise(names) if "=" in a and "=" not in b]
        if "ALL" in names and cut and cut[0] != "ALL":
            yield Hit(line, f"--export={value} ends a value at the comma before {cut[0]!r}")


def _exports(job: Job) -> Iterator[tuple[int, str]]:
    option = job.directive("export")
    if option and option.value:
        yield option.line, option.value
    for step in job.steps:
        if value := step.options.get("export"):
            yield step.line, value


HANDED_ON = re.compile(r"(APPTAINER|SINGULARITY)ENV_(SLURM|MASTER|RANK|LOCAL|WORLD|\$|\{)")


@BATCH.rule("CLEANENV", "error", "the ranks get neither their number nor the address of the master",
            "pass the variables as APPTAINERENV_NAME=VALUE, or use --env-file")  # fmt: skip
def clean_environment(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        cleans = container.has("--cleanenv", "-e") and not container.has("--env", "--env-file")
        is_rank = container.step is not None and not job.is_single(container.step)
        if cleans and is_rank and not HANDED_ON.search(job.text):
            yield Hit(container.line, "--cleanenv removes SLURM_* and MASTER_*")


@BATCH.rule("CONTAINALL", "error", "NCCL and gloo cannot use shared memory between ranks",
            "remove --containall and --ipc; if the home folder must be hidden, use "
            "--no-home")  # fmt: skip
def isolated_ranks(job: Job) -> Iterator[Hit]:
    for container in job.containers:
        tasks = job.tasks_per_node(container.step) if container.step else 1
        if container.has("--containall", "-C", "--ipc", "-i") and (tasks or 1) > 1:
            yield Hit(container.line, f"each of the {tasks} ranks on a node gets its own /dev/shm")


# Words that show AMD GPUs: ROCm and its libraries, names of GPUs, partitions of LUMI.
AMD = re.compile(
    r"rocm|miopen|\brocr_|\bhip_|\bhsa_|amd-?gpu|accel-amd|\bmi(50|100|210|250x?|300[ax]?|325x?|355x?)\b"
    r"|\bgfx9|\b(standard|small|dev)-g\b|\blumi",
    re.IGNORECASE,
)


@BATCH.rule("NO-NV", "error", "torch in the image sees no GPU, and Apptainer gives no warning",
            "add --nv, or add --rocm for AMD GPUs")  # fmt: skip
def no_gpus_inside(job: Job) -> Iterator[Hit]:
    """Yield each image that sees no GPU.

    AMD GPUs need no option: Apptainer binds the host's /dev, and the image brings ROCm.
    """
    switches = {"APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_ROCM", "SINGULARITY_ROCM"}
    if AMD.search(job.text) or not job.has_gpus or switches & set(job.settings):
        return
    for container in job.containers:
        is_given = container.has("--nv", "--nvccli", "--rocm")
        is_given |= any("$" in option and "=" not in option for option in container.options)
        names = [base_name(word) for word in container.program]
        asks_version = any(re.search(r"--version|__version__|^-V$", name) for name in names)
        uses_gpus = any(LAUNCH.fullmatch(name) or name == "nvidia-smi" for name in names)
        if not is_given and not asks_version and (uses_gpus or not names):
            fact = "the job asks for GPUs, but the image is started without --nv"
            yield Hit(container.line, fact)


@BATCH.rule("DOCKER-SHM", "warning",
            "the container has only 64 MB of /dev/shm, so loaders or NCCL fail with a bus error",
            "add --ipc=host, or --shm-size=8g")  # fmt: skip
def docker_without_shared_memory(job: Job) -> Iterator[Hit]:
    for command in job.active:
        tokens = command.tokens
        is_given = any(token.startswith(("--ipc", "--shm-size", "$")) for token in tokens)
        for at, name in enumerate(base_name(token) for token in tokens):
            is_docker = name in ("docker", "podman", "nvidia-docker")
            if is_docker and "run" in tokens[at + 1 : at + 3] and not is_given:
                yield Hit(command.line, f"{name} run has neither --ipc=host nor --shm-size")
