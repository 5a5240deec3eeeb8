"""The commands of a shell text, as a reader sees them.

Nothing is run. The reader goes over the text once, character by character, and takes anything: what
it does not understand becomes a word.

A batch script: its directives, its commands, and what its variables hold.

The words of a shell text: quotes taken off, variables and `$( )` noted, nothing expanded.

Options of sbatch and srun: their names, and how a command line of them is read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

# Text in $( ), ` ` and arrays is read so deep, and no deeper.
MAX_DEPTH = 4
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[[^]]*\])?\+?=")
EXPANDED = re.compile(r"\$\{?[!#]?(\w+)")
CLOSING = {"(": ")", "{": "}", "`": "`", '"': '"'}


@dataclass(frozen=True)
class Word:
    """A word of the shell.

    Attributes:
        line: Where it begins, from 1.
        live: Names of the variables that this shell expands in it, not a later one.
        quoted: Whether a part of it was in quotes.
        inner: Commands in its `$( )`, each as (line, text).
        items: The words of an array, where it sets one.
    """

    line: int
    text: str
    live: tuple[str, ...] = ()
    quoted: bool = False
    inner: tuple[tuple[int, str], ...] = ()
    items: "tuple[Word, ...] | None" = None


def base_name(text: str) -> str:
    """Return the last part of a path."""
    return text.rpartition("/")[2]


def value_of(word: Word) -> str:
    """Return what a word `NAME=value` sets."""
    match = ASSIGNMENT.match(word.text)
    return word.text[match.end() :] if match else ""


def closing(text: str, at: int) -> int:
    """Return where the bracket or quote at `at` has been closed: after its end, or the text's."""
    stack = [CLOSING[text[at]]]
    at += 1
    while at < len(text) and stack:
        char, in_quotes = text[at], stack[-1] == '"'
        if char == "\\":
            at += 1
        elif char == stack[-1]:
            stack.pop()
        elif char == "'" and not in_quotes:
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        elif char in '"`' or (char == "(" and not in_quotes) or text.startswith(("$(", "${"), at):
            at += char == "$"
            stack.append(CLOSING[text[at]])
        at += 1
    return min(at, len(text))


@dataclass
class _Parts:
    """A word that is still being read."""

    text: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    inner: list[tuple[int, str]] = field(default_factory=list)
    items: tuple[Word, ...] | None = None
    quoted: bool = False

    def word(self, line: int) -> Word:
        """Return it as it is now."""
        live, inner = tuple(self.live), tuple(self.inner)
        return Word(line, "".join(self.text), live, self.quoted, inner, self.items)


class WordReader:
    """Reads the words of a shell text from its beginning to its end.

    Attributes:
        depth: In how many `$( )` the text lies.
    """

    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        self.text = text
        self.line = line
        self.depth = depth
        self.at = 0

    def words(self) -> Iterator[Word]:
        """Yield all words, whatever is between them; for the text of an array."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|<>()":
                self.line += char == "\n"
                self.at += 1
            elif char == "#":
                self.at = self.line_end()
            else:
                yield self.word()

    def word(self) -> Word:
        """Read one word."""
        start = self.line
        parts = _Parts()
        while self.at < len(self.text) and not self._ends_word(parts):
            self._part(parts)
        return parts.word(start)

    def substitutes_process(self) -> bool:
        """Return whether `<( )` or `>( )` comes next."""
        return self.text.startswith(("<(", ">("), self.at)

    def line_end(self) -> int:
        """Return where the line that is being read ends."""
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _ends_word(self, parts: _Parts) -> bool:
        char = self.text[self.at]
        if char in "<>" and self.substitutes_process() and not parts.text:
            return False
        if char == "(":
            return not ASSIGNMENT.fullmatch("".join(parts.text[-1:])[-200:])
        return char in " \t\r\n;&|<>)"

    def _part(self, parts: _Parts) -> None:
        char = self.text[self.at]
        if char == "\\":
            self._escape(parts)
        elif char == "'" or self.text.startswith("$'", self.at):
            self._single_quotes(parts)
        elif char == '"':
            self._double_quotes(parts)
        elif char in "`$<>":
            self._expansion(parts)
        elif char == "(":
            self._array(parts)
        else:
            end = self.at + 1
            while end < len(self.text) and self.text[end] not in " \t\r\n;&|<>()\\'\"`$":
                end += 1
            parts.text.append(self.text[self.at : end])
            self.at = end

    def _escape(self, parts: _Parts) -> None:
        after = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if after == "\n":
            self.line += 1
        else:
            parts.text.append(after)
            parts.quoted = True

    def _single_quotes(self, parts: _Parts) -> None:
        begin = self.text.index("'", self.at) + 1
        end = self.text.find("'", begin)
        end = len(self.text) if end < 0 else end
        self._keep(parts, begin, end)
        parts.quoted = True
        self.at = min(end + 1, len(self.text))

    def _keep(self, parts: _Parts, begin: int, end: int) -> None:
        parts.text.append(self.text[begin:end])
        self.line += self.text.count("\n", begin, end)

    def _double_quotes(self, parts: _Parts) -> None:
        parts.quoted = True
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                self._escape(parts)
            elif char in "$`":
                self._expansion(parts)
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in '"\\$`':
                    end += 1
                self._keep(parts, self.at, end)
                self.at = end
        self.at = min(self.at + 1, len(self.text))

    def _expansion(self, parts: _Parts) -> None:
        """Take $NAME, ${ }, $( ), ` ` or a process's <( ) as it is written."""
        begin = self.at
        name = EXPANDED.match(self.text, begin)
        if name:
            parts.live.append(name[1])
        following = self.text[begin + 1 : begin + 2]
        if self.text[begin] == "`" or following in ("(", "{"):
            offset = begin + (self.text[begin] != "`")
            end = closing(self.text, offset)
            if following != "{" and not self.text.startswith("((", offset):
                parts.inner.append((self.line, self.text[offset + 1 : end - 1]))
        else:
            end = name.end() if name else begin + 1
        self._keep(parts, begin, end)
        self.at = end

    def _array(self, parts: _Parts) -> None:
        end = closing(self.text, self.at)
        if self.depth < MAX_DEPTH:
            inner = WordReader(self.text[self.at + 1 : end - 1], self.line, self.depth + 1)
            parts.items = tuple(inner.words())
        self._keep(parts, self.at, end)
        self.at = end


OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "(", ")")
REDIRECTIONS = ("<<<", "&>>", "<<-", "<<", ">>", ">&", "<&", "&>", ">|", "<>", ">", "<")
# What joins a command to the next so that one exit code holds for both.
JOINTS = ("&&", "||", "|", "|&")
# Words before and after a command that are not commands themselves.
KEYWORDS = {
    *("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "time"),
    "coproc",
}
CONDITIONS = {"if": True, "elif": True, "while": True, "until": True, "then": False, "do": False}
DECLARING = {"export", "declare", "typeset", "local", "readonly"}


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: The command and its arguments; none for an assignment alone.
        assigns: Variables that are set before it or that it declares, with the word `NAME=value`.
        redirects: Operators and where they lead.
        depth: How many `$( )` it is inside of.
        ends: The operator after it, or after the group that it ends: `||`, `&&`, `|`, `&` or such.
        is_condition: Whether it comes after `if`, `while`, `until` or `!`.
        function: The function that it is a part of, or nothing.
    """

    line: int
    words: tuple[Word, ...] = ()
    assigns: tuple[tuple[str, Word], ...] = ()
    redirects: tuple[tuple[str, Word], ...] = ()
    depth: int = 0
    ends: str = ""
    is_condition: bool = False
    function: str = ""

    @property
    def is_piped(self) -> bool:
        """Whether another command takes what it prints, and its exit code's place."""
        return self.ends in ("|", "|&")

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return base_name(self.words[0].text) if self.words else ""

    @property
    def live(self) -> set[str]:
        """Names of all variables that this shell expands in its words."""
        return {name for word in self.words for name in word.live}


@dataclass
class _Draft:
    """A command that is still being read."""

    words: list[Word] = field(default_factory=list)
    redirects: list[tuple[str, Word]] = field(default_factory=list)
    is_negated: bool = False


class CommandReader(WordReader):
    """Reads the commands of a shell text.

    Attributes:
        comments: (line, text) of each comment that has a line to itself.
    """

    def __init__(self, text: str, line: int = 1, depth: int = 0) -> None:
        super().__init__(text, line, depth)
        self.commands: list[Command] = []
        self.comments: list[tuple[int, str]] = []
        self._draft = _Draft()
        self._heredocs: list[tuple[str, bool]] = []
        self._case_depth = 0
        self._parentheses = 0
        self._is_condition = False
        # The function that is about to begin, and that of each brace that is open.
        self._defined = ""
        self._braces: list[str] = []
        # Where in `commands` the last one of this text is; those of its `$( )` come after it.
        self._last = -1

    def read(self) -> "CommandReader":
        """Read all of the text."""
        while self.at < len(self.text):
            self._next()
        self._end_command()
        return self

    def _next(self) -> None:
        char = self.text[self.at]
        if char == "\n":
            self._newline()
        elif char in " \t\r":
            self.at += 1
        elif self.text.startswith("\\\n", self.at):
            self.at += 2
            self.line += 1
        elif char == "#":
            self._comment()
        elif (operator := self._one_of(REDIRECTIONS)) and not self.substitutes_process():
            self._redirection(operator)
        elif operator := self._one_of(OPERATORS):
            self._operator(operator)
        else:
            self._take(self.word())

    def _one_of(self, operators: tuple[str, ...]) -> str:
        return next(
            (operator for operator in operators if self.text.startswith(operator, self.at)), ""
        )

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        self._end_command()
        for delimiter, strips_tabs in self._heredocs:
            self._skip_heredoc(delimiter, strips_tabs)
        self._heredocs.clear()

    def _skip_heredoc(self, delimiter: str, strips_tabs: bool) -> None:
        while self.at < len(self.text):
            end = self.line_end()
            line = self.text[self.at : end].rstrip("\r")
            self.at = min(end + 1, len(self.text))
            self.line += 1
            if (line.lstrip("\t") if strips_tabs else line) == delimiter:
                return

    def _comment(self) -> None:
        end = self.line_end()
        start = self.text.rfind("\n", 0, self.at) + 1
        if not self.text[start : self.at].strip():
            self.comments.append((self.line, self.text[start:end]))
        self.at = end

    def _redirection(self, operator: str) -> None:
        self.at += len(operator)
        self._skip_blanks()
        target = self.word()
        if operator in ("<<", "<<-"):
            self._heredocs.append((target.text, operator == "<<-"))
        words = self._draft.words
        if words and words[-1].text.isdigit() and not words[-1].quoted:
            words.pop()  # the number of a file, as in 2>&1
        self._draft.redirects.append((operator, target))

    def _skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def _operator(self, operator: str) -> None:
        words = self._draft.words
        if self.text.startswith("((", self.at) and (not words or words[0].text == "for"):
            self._arithmetic()
            return
        self.at += len(operator)
        if operator == "(":
            self._parentheses += 1
            if len(words) == 1:  # name() defines a function
                self._defined = words[0].text
                self._draft = _Draft()
        elif operator == ")" and self._parentheses:
            self._parentheses -= 1
        elif operator == ")" and self._case_depth:
            self._draft = _Draft()  # the pattern of a case
            return
        self._end_command(operator)

    def _arithmetic(self) -> None:
        end = closing(self.text, self.at)
        self._draft.words.append(Word(self.line, self.text[self.at : end], quoted=True))
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _take(self, word: Word) -> None:
        words = self._draft.words
        if not words and word.text in KEYWORDS and not word.quoted:
            self._keyword(word.text)
            return
        if len(words) == 1 and words[0].text == "function":
            self._defined = word.text
            self._draft = _Draft()
            return
        if word.text == "in" and words and words[0].text == "case":
            self._case_depth += 1
            self._draft = _Draft()
            return
        if word.text == "esac" and not words:
            self._case_depth = max(0, self._case_depth - 1)
            return
        words.append(word)

    def _keyword(self, word: str) -> None:
        self._is_condition = CONDITIONS.get(word, self._is_condition)
        if word == "!":
            self._draft.is_negated = True
        elif word == "{":
            self._braces.append(self._defined or "".join(self._braces[-1:]))
            self._defined = ""
        elif word == "}" and self._braces:
            self._braces.pop()

    def _end_command(self, ends: str = "") -> None:
        draft, self._draft = self._draft, _Draft()
        if not draft.words and not draft.redirects:
            if ends in JOINTS and self._last >= 0:  # as in (a; b) || c
                self.commands[self._last] = replace(self.commands[self._last], ends=ends)
            return
        command = replace(
            _command(draft),
            depth=self.depth,
            ends=ends,
            is_condition=self._is_condition or draft.is_negated,
            function="".join(self._braces[-1:]),
        )
        self._last, self._defined = len(self.commands), ""
        self.commands.append(command)
        for word in (*draft.words, *(target for _, target in draft.redirects)):
            for one in (word, *(word.items or ())):
                self._read_inner(one)

    def _read_inner(self, word: Word) -> None:
        for line, text in word.inner if self.depth < MAX_DEPTH else ():
            self.commands += CommandReader(text, line, self.depth + 1).read().commands


def _command(draft: _Draft) -> Command:
    words = draft.words
    first = 0
    while first < len(words) and ASSIGNMENT.match(words[first].text[:200]):
        first += 1
    assigns, rest = words[:first], words[first:]
    if rest and rest[0].text in DECLARING:
        assigns = assigns + [word for word in rest[1:] if ASSIGNMENT.match(word.text[:200])]
    named = tuple((_assigned(word), word) for word in assigns)
    line = (words or [target for _, target in draft.redirects])[0].line
    return Command(line, tuple(rest), named, tuple(draft.redirects))


def _assigned(word: Word) -> str:
    match = ASSIGNMENT.match(word.text[:200])
    assert match is not None
    return match[1]


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


# A variable is replaced in so many words, of so many characters.
MAX_WORDS = 500
MAX_LENGTH = 4000
MAX_VALUE = 300
ADDING = re.compile(r"\w+(?:\[[^]]*\])?\+=")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-([^${}]*))?\})")
# What each component of a heterogeneous job asks for on its own, and what parts them; "Slurm
# Workload Manager - Heterogeneous Job Support".
SIZES = {
    *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gres"),
    *("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"),
}
HETEROGENEOUS = (["#SBATCH", "hetjob"], ["#SBATCH", "packjob"])
# Slurm's variable -> the directive that it repeats
SLURM_VALUES = {
    "SLURM_NNODES": "nodes",
    "SLURM_JOB_NUM_NODES": "nodes",
    "SLURM_NTASKS": "ntasks",
    "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_CPUS_PER_TASK": "cpus-per-task",
    "SLURM_GPUS_PER_NODE": "gpus-per-node",
    "SLURM_GPUS_ON_NODE": "gpus-per-node",
}


@dataclass(frozen=True)
class Script:
    """A batch script."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.split("\n")

    @cached_property
    def reader(self) -> CommandReader:
        """Its commands and comments."""
        return CommandReader(self.text.replace("\r\n", "\n")).read()

    @property
    def commands(self) -> list[Command]:
        """Its commands, in order; those in `$( )` after the one that holds them."""
        return self.reader.commands

    @cached_property
    def first_command(self) -> int:
        """The line at which sbatch stops looking for directives."""
        numbered = enumerate(self.lines, start=1)
        found = (number for number, line in numbered if line.strip() and line.lstrip()[0] != "#")
        return next(found, len(self.lines) + 1)

    @cached_property
    def directives(self) -> list[Option]:
        """The options in the `#SBATCH` lines that sbatch reads, under their long names."""
        found = []
        for number, line in enumerate(self.lines[: self.first_command - 1], start=1):
            if line.startswith("#SBATCH"):
                words = [Word(number, word.text) for word in WordReader(line[7:]).words()]
                found += options(words, SHORT)[0]
        return found

    def directive(self, *names: str) -> Option | None:
        """Return the last directive of one of these names, which is the one that counts.

        Each component of a heterogeneous job has a size of its own, so there none is known.
        """
        names = tuple(name for name in names if not (self.is_heterogeneous and name in SIZES))
        return next((option for option in reversed(self.directives) if option.name in names), None)

    @cached_property
    def is_heterogeneous(self) -> bool:
        """Whether its job has components, each with directives of its own."""
        lines = self.lines[: self.first_command - 1]
        return any(line.split()[:2] in HETEROGENEOUS for line in lines)

    @cached_property
    def settings(self) -> dict[str, Word]:
        """The variables that it sets, each with the last word that sets it."""
        return {name: word for command in self.commands for name, word in command.assigns}

    @cached_property
    def known(self) -> dict[str, Word]:
        """The variables that it sets to one value, whatever the way through it."""
        found: dict[str, Word | None] = {}
        for name, word in (assign for command in self.commands for assign in command.assigns):
            old = found.get(name)
            if old and ADDING.match(word.text[:200]):
                found[name] = _joined(old, word)
            elif name not in found or (old and value_of(old) == value_of(word)):
                found[name] = word
            else:
                found[name] = None
        return {name: word for name, word in found.items() if word}

    @cached_property
    def values(self) -> dict[str, str]:
        """The values of variables that are set to a plain text, and of Slurm's own."""
        asked = {name: self.directive(option) for name, option in SLURM_VALUES.items()}
        given = {name: option.value for name, option in asked.items() if option and option.value}
        plain = {name: value_of(word) for name, word in self.known.items() if not word.items}
        return given | {name: text for name, text in plain.items() if len(text) < MAX_VALUE}

    def resolve(self, text: str) -> str:
        """Replace variables by their values, as far as these are known."""
        return VARIABLE.sub(self._value, text) if len(text) < MAX_LENGTH else text

    def _value(self, match: re.Match[str]) -> str:
        default = match[3] if match[3] is not None else match[0]
        return self.values.get(match[1] or match[2], default)

    def expand(self, words: Sequence[Word]) -> tuple[Word, ...]:
        """Replace variables and arrays by the words that they hold."""
        return tuple(self._expand(self._expand(words))[:MAX_WORDS])

    def _expand(self, words: Sequence[Word]) -> list[Word]:
        found: list[Word] = []
        for word in words[:MAX_WORDS]:
            if len(found) < MAX_WORDS:
                found += self._stands_for(word)
        return found

    def _stands_for(self, word: Word) -> list[Word]:
        match = VARIABLE.fullmatch(word.text) if len(word.text) < 200 and word.live else None
        setting = self.known.get(match[1] or match[2]) if match else None
        if setting and setting.items is not None:
            return [replace(one, line=word.line, items=None) for one in setting.items]
        if setting and not word.quoted:
            parts = WordReader(value_of(setting)[:MAX_LENGTH]).words()
            # What a variable holds is not expanded once more.
            return [Word(word.line, one.text) for one in parts]
        return [Word(word.line, self.resolve(word.text), word.live, word.quoted)]


def _joined(old: Word, more: Word) -> Word:
    """Return what `NAME=old` and `NAME+=more` set together."""
    items = (*(old.items or ()), *(more.items or ()))[:MAX_WORDS]
    text = (old.text + value_of(more))[:MAX_LENGTH]
    return Word(old.line, text, items=items if old.items or more.items else None)
