"""The commands and words of a shell text, read from the syntax tree of tree-sitter-bash.

Nothing is run. After text that the parser does not understand, the tree continues.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Nodes that are one word for the shell.
WORDS = {
    *("word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "regex"),
    *("concatenation", "simple_expansion", "expansion", "arithmetic_expansion", "variable_name"),
    *("command_substitution", "process_substitution", "brace_expression", "extglob_pattern"),
    *("variable_assignment", "special_variable_name", "test_operator"),
}
# Nodes that consist of other words.
JOINED = {"concatenation", "command_name", "string", "translated_string", "variable_assignment"}
COMMANDS = {
    *("command", "declaration_command", "unset_command", "test_command"),
    *("variable_assignment", "variable_assignments"),
}
SUBSTITUTIONS = {"command_substitution", "process_substitution"}
QUOTES = {"string", "translated_string", "raw_string", "ansi_c_string", "\\"}
# Nodes after a command that are not commands.
BEHIND = ("comment", "file_redirect", "heredoc_redirect", "heredoc_body", "heredoc_end")
# Keyword -> whether a condition begins (True) or ends (False) after it.
CONDITIONS = {"if": True, "elif": True, "while": True, "until": True, "then": False, "do": False}
DECLARING = ("export", "declare", "typeset", "local", "readonly", "unset", "unsetenv")
# Operators that join two commands so that both have one exit code.
JOINTS = ("&&", "||", "|", "|&")
ENDS = {*JOINTS, ";", "&", ";;"}
ESCAPED = re.compile(r"\\(?:\n|(.))", re.DOTALL)
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
CUT = re.compile(r"\s*\\[ \t]+(#.*)?$")
EXPANDED = re.compile(r"\$\{?[!#]?(\w+)")


@dataclass(frozen=True)
class Word:
    """A word of the shell, without its quotes.

    Attributes:
        line: Line of its beginning, from 1.
        live: Names of the variables in it that this shell expands, not a later shell.
        is_quoted: Whether a part of it is in quotes.
        has_command: Whether this shell runs a `$( )` in it.
        items: The words of the array that it sets, or None.
    """

    line: int
    text: str
    live: tuple[str, ...] = ()
    is_quoted: bool = False
    has_command: bool = False
    items: "tuple[Word, ...] | None" = None


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: The command and its arguments; empty for an assignment alone.
        assigns: Variables that it sets or declares, with the word `NAME=value`.
        depth: Number of `$( )` around it.
        ends: The operator after it, or after the group that it ends: `||`, `&&`, `|`, `&` or such.
        is_condition: Whether it comes after `if`, `while`, `until` or `!`.
        function: Name of the function around it; empty outside of functions.
        cut_in: Line where a backslash followed by blanks ends the command, else 0.
    """

    line: int
    words: tuple[Word, ...] = ()
    assigns: tuple[tuple[str, Word], ...] = ()
    depth: int = 0
    ends: str = ""
    is_condition: bool = False
    function: str = ""
    cut_in: int = 0

    @property
    def name(self) -> str:
        return base_name(self.words[0].text) if self.words else ""

    @cached_property
    def tokens(self) -> list[str]:
        return tokens_of(self.words)

    @property
    def live(self) -> set[str]:
        return {name for word in self.words for name in word.live}


@dataclass(frozen=True)
class Shell:
    """The parsed text of a shell script.

    Attributes:
        commands: In order; commands in a `$( )` come after the command around it.
        comments: (line, text) of each comment on a line of its own.
        redirects: (operator, file) of each redirection.
        unread: The first line that could not be parsed, or None.
    """

    commands: list[Command]
    comments: list[tuple[int, str]]
    redirects: list[tuple[str, Word]]
    unread: int | None


def base_name(text: str) -> str:
    return text.rpartition("/")[2]


def value_of(word: Word) -> str:
    return word.text.partition("=")[2]


def split_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that is not closed
        return line.split()


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise ValueError(
            "tree-sitter-bash, which reads shell scripts, is not installed; "
            "run pip install '/path/to/checkout[lint]'"
        ) from None
    return Parser(Language(tree_sitter_bash.language()))


def _parse(text: str) -> "Node":
    """Return the tree of a text, with ASCII alone: tree-sitter-bash crashes on some characters."""
    return _parser().parse(NOT_ASCII.sub("_", text).encode("ascii")).root_node


@lru_cache(maxsize=1000)
def words_of(text: str) -> tuple[Word, ...]:
    """Return all words of a text, without the operators between them."""
    words = []
    nodes = [_parse(text)]
    while nodes:
        node = nodes.pop()
        if node.type in WORDS:
            words.append(read_word(node, text))
        else:
            nodes += reversed(node.children)
    return tuple(words)


def tokens_of(words: Iterable[Word]) -> list[str]:
    """Return all words, also those within quoted text; a `$( )` stays a part of its word."""
    tokens = []
    for word in words:
        parts = word.text.split()
        tokens += parts if len(parts) < 2 else [part.text for part in words_of(word.text)]
    return tokens


def read_word(node: "Node", source: str) -> Word:
    """Return the word of a node, without quotes and backslashes, but not expanded."""
    parts: list[str] = []
    live: list[str] = []
    types: set[str] = set()
    items: tuple[Word, ...] | None = None
    nodes = [node]
    while nodes:
        part = nodes.pop()
        text = source[part.start_byte : part.end_byte]
        types.add(part.type)
        if part.type in JOINED and part.children:
            nodes += [child for child in reversed(part.children) if child.type != '"']
        elif part.type in ("raw_string", "ansi_c_string"):
            parts.append(text.partition("'")[2][:-1])
        elif part.type in ("word", "string_content"):
            types |= {"\\"} if "\\" in text else set()
            parts.append(ESCAPED.sub(r"\1", text))
        else:
            parts.append(text)
            if name := EXPANDED.match(text.lstrip()):
                live.append(name[1])
            if part.type == "array":
                items = tuple(read_word(child, source) for child in part.named_children)
    is_quoted, has_command = bool(types & QUOTES), bool(types & SUBSTITUTIONS)
    line = node.start_point.row + 1
    return Word(line, "".join(parts), tuple(live), is_quoted, has_command, items)


def read_shell(text: str) -> Shell:
    """Read the commands, comments and redirections of a text."""
    lines = text.split("\n")
    commands: list[Command] = []
    comments: list[tuple[int, str]] = []
    redirects: list[tuple[str, Word]] = []
    unread: list[int] = []
    # With each node goes a command from which the commands in the node inherit.
    nodes = [(_parse(text), Command(1))]
    while nodes:
        node, heir = nodes.pop()
        (row, column), end = node.start_point, node.end_point
        is_arithmetic = node.type == "compound_statement" and node.children[0].type == "(("
        if node.type == "ERROR" or node.is_missing:
            loose = [part for part in node.children if part.type not in (*COMMANDS, "comment")]
            unread.append((loose or [node])[0].start_point.row + 1)
        if node.type == "comment" and not lines[row][:column].strip():
            comments.append((row + 1, lines[row]))
        elif node.type == "file_redirect" and node.named_children:
            operator = next(child.type for child in node.children if not child.is_named)
            redirects += [(operator, word) for word in _read_words(node, text)[:1]]
        elif node.type in COMMANDS or node.type == "ERROR" or is_arithmetic:
            cut_in = end.row + 1 if CUT.match(lines[end.row][end.column :]) else 0
            words, assigns = _words_and_assigns(node, text)
            if words or assigns:
                command = replace(heir, line=row + 1, words=words, assigns=assigns, cut_in=cut_in)
                commands.append(command)
        if node.type in COMMANDS:
            nodes += [(inner, heir) for inner in _inner(node)]
        elif node.type != "heredoc_body":
            nodes += reversed(list(_children(node, heir, text)))
    return Shell(commands, comments, redirects, min(unread, default=None))


def _read_words(node: "Node", text: str) -> list[Word]:
    return [read_word(part, text) for part in node.named_children if part.type in WORDS]


def _words_and_assigns(
    node: "Node", text: str
) -> tuple[tuple[Word, ...], tuple[tuple[str, Word], ...]]:
    if node.type in ("test_command", "compound_statement"):
        whole = text[node.start_byte : node.end_byte]
        return (Word(node.start_point.row + 1, whole, is_quoted=True),), ()
    words: list[Word] = []
    assigns: list[tuple[str, Word]] = []
    for child in [node] if node.type == "variable_assignment" else node.children:
        if child.type == "variable_assignment":
            word = read_word(child, text)
            assigns.append((re.split(r"[\[+=]", word.text)[0], word))
            words += [word] if words else []
        elif child.type in (*WORDS, "command_name", *DECLARING):
            words.append(read_word(child, text))
    # In the tree, arguments after a redirection are a part of the redirection.
    holder = node.parent
    for part in holder.children if holder and holder.type == "redirected_statement" else ():
        words += _read_words(part, text)[1:] if part.type == "file_redirect" else []
    return tuple(words), tuple(assigns)


def _inner(node: "Node") -> "list[Node]":
    inner: list[Node] = []
    nodes = list(node.children)
    while nodes:
        part = nodes.pop()
        if part.type in {*SUBSTITUTIONS, "file_redirect", "ERROR"}:
            inner.append(part)
        else:
            nodes += part.children
    return inner


def _children(node: "Node", heir: Command, text: str) -> "Iterator[tuple[Node, Command]]":
    """Yield the children of a node that is not a command, each with its commands' heir."""
    if node.type in SUBSTITUTIONS:
        heir = Command(1, depth=heir.depth + 1)
    elif node.type == "function_definition":
        name = node.child_by_field_name("name")
        heir = replace(heir, function=text[name.start_byte : name.end_byte] if name else "")
    is_condition = heir.is_condition or node.type == "negated_command"
    numbers = [
        at for at, part in enumerate(node.children) if part.is_named and part.type not in BEHIND
    ]
    for at, child in enumerate(node.children):
        is_condition = CONDITIONS.get(child.type, is_condition)
        ends = _find_operator(node.children[at + 1 :])
        if at in numbers[-1:] and (not ends or heir.ends in JOINTS):
            ends = heir.ends
        yield child, replace(heir, ends=ends, is_condition=is_condition)


def _find_operator(nodes: "Sequence[Node]") -> str:
    """Return the operator after a command; with a heredoc, it is inside the redirection's node."""
    for node in nodes:
        if node.type in ENDS:
            return node.type
        if node.type in ("heredoc_redirect", "pipeline"):
            return _find_operator(node.children)
        if node.type not in BEHIND and node.type not in ("<<", "<<-", "heredoc_start"):
            break
    return ""
