"""The commands of a shell text, as a reader sees them.

Nothing is run. The reader goes over the text once, character by character, and takes anything: what
it does not understand becomes a word.
"""

from dataclasses import dataclass, field, replace

from lockstep.before.lint.shell.shell_words import (
    ASSIGNMENT,
    MAX_DEPTH,
    Word,
    WordReader,
    base_name,
    closing,
)

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
        return next((one for one in operators if self.text.startswith(one, self.at)), "")

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
        assigns = assigns + [one for one in rest[1:] if ASSIGNMENT.match(one.text[:200])]
    named = tuple((_assigned(word), word) for word in assigns)
    line = (words or [target for _, target in draft.redirects])[0].line
    return Command(line, tuple(rest), named, tuple(draft.redirects))


def _assigned(word: Word) -> str:
    match = ASSIGNMENT.match(word.text[:200])
    assert match is not None
    return match[1]
