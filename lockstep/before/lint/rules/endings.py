"""Whether a batch script ends with an error when the ranks that it starts do."""

import re
from collections.abc import Iterator

from lockstep.before.lint.batch import LAUNCH, SAYING, Job, step_of, tokens_of
from lockstep.before.lint.rules.launchers import torch_launch
from lockstep.before.lint.shell.shell_commands import Command


def hidden_by_a_pipe(job: Job) -> Iterator[Command]:
    """Yield each launch whose exit code a pipe hides."""
    if "pipefail" in _settings(job) or "PIPESTATUS" in job.script.text:
        return
    for command in job.commands if job.is_batch else ():
        step = step_of(command)
        is_launch = step.is_launch if step else _starts_ranks(command)
        if is_launch and command.is_piped:
            yield command


def _starts_ranks(command: Command) -> bool:
    """Return whether a command is a launcher of torch's, without srun."""
    return bool(LAUNCH.fullmatch(command.name) and torch_launch(tokens_of(command.words)))


def hidden_by_the_end(job: Job) -> Command | None:
    """Return the last command, where it hides how a launch has ended that nothing else hears of."""
    commands = [one for one in job.sequence if one.depth == 0]
    top = [at for at, one in enumerate(commands) if one.words and not one.function]
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
    given = [word.text for one in job.commands if one.name == "set" for word in one.words[1:]]
    given += job.script.lines[0].split()[1:]
    letters = any(re.match("-[a-zA-Z]*e", text) for text in given)
    traps = any(one.name == "trap" and one.words[-1].text == "ERR" for one in job.commands)
    return {"pipefail", "errexit"} & {*given, "errexit" if letters or traps else ""}
