"""The words of a shell text: quotes taken off, variables and `$( )` noted, nothing expanded."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
