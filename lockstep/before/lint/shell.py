"""The commands and words of a shell text, read from its syntax tree.

Nothing is run. The tree is tree-sitter-bash's, which reads on behind what it does not understand.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Nodes that are one word to the shell.
WORDS = {
    *("word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "regex"),
    *("concatenation", "simple_expansion", "expansion", "arithmetic_expansion", "variable_name"),
    *("command_substitution", "process_substitution", "brace_expression", "extglob_pattern"),
    *("variable_assignment", "special_variable_name", "test_operator"),
}
# Nodes that are no more than their parts.
JOINED = {"concatenation", "command_name", "string", "translated_string", "variable_assignment"}
COMMANDS = {
    *("command", "declaration_command", "unset_command", "test_command"),
    *("variable_assignment", "variable_assignments"),
}
SUBSTITUTIONS = ("command_substitution", "process_substitution")
# Nodes behind a command that are no command themselves.
BEHIND = ("comment", "file_redirect", "heredoc_redirect", "heredoc_body", "heredoc_end")
# Keywords after which a condition begins or ends.
CONDITIONS = {"if": True, "elif": True, "while": True, "until": True, "then": False, "do": False}
DECLARING = ("export", "declare", "typeset", "local", "readonly", "unset", "unsetenv")
# What joins a command to the next so that one exit code holds for both.
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
        line: Where it begins, from 1.
        live: Names of the variables that this shell expands in it, not a later one.
        is_quoted: Whether a part of it is in quotes.
        has_command: Whether this shell runs a `$( )` in it.
        items: The words of an array, where it sets one.
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
        words: The command and its arguments; none for an assignment alone.
        assigns: Variables that it sets or declares, with the word `NAME=value`.
        depth: How many `$( )` it is inside of.
        ends: The operator after it, or after the group that it ends: `||`, `&&`, `|`, `&` or such.
        is_condition: Whether it comes after `if`, `while`, `until` or `!`.
        function: The function that it is a part of, or nothing.
        cut_in: The line where a backslash with blanks behind it ends the command, else 0.
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
    def is_piped(self) -> bool:
        """Whether another command takes what it prints, and its exit code's place."""
        return self.ends in ("|", "|&")

    @property
    def name(self) -> str:
        """The program, without its folder."""
        return base_name(self.words[0].text) if self.words else ""

    @cached_property
    def tokens(self) -> list[str]:
        """All of its words, those in quoted text too."""
        return tokens_of(self.words)

    @property
    def live(self) -> set[str]:
        """Names of all variables that this shell expands in its words."""
        return {name for word in self.words for name in word.live}


@dataclass(frozen=True)
class Shell:
    """A shell text as it was read.

    Attributes:
        commands: In order; those in a `$( )` after the command that holds it.
        comments: (line, text) of each comment that has a line to itself.
        redirects: (operator, file) of each redirection.
        unread: The line from which on the text could not be read, or None.
    """

    commands: list[Command]
    comments: list[tuple[int, str]]
    redirects: list[tuple[str, Word]]
    unread: int | None


def base_name(text: str) -> str:
    """Return the last part of a path."""
    return text.rpartition("/")[2]


def value_of(word: Word) -> str:
    """Return what a word `NAME=value` sets."""
    return word.text.partition("=")[2]


def split_words(line: str) -> list[str]:
    """Return the words of one line without substitutions, such as one with #SBATCH."""
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
    """Return the tree of a text, whose bytes are the text's characters.

    tree-sitter-bash 0.25 crashes on some characters that are not ASCII, so it gets none.
    """
    return _parser().parse(NOT_ASCII.sub("_", text).encode("ascii")).root_node


@lru_cache(maxsize=1000)
def words_of(text: str) -> tuple[Word, ...]:
    """Return all words of a text, whatever is between them."""
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
    """Return all words, those in quoted text too; a `$( )` belongs to the word that holds it."""
    tokens = []
    for word in words:
        parts = word.text.split()
        tokens += parts if len(parts) < 2 else [part.text for part in words_of(word.text)]
    return tokens


def read_word(node: "Node", source: str) -> Word:
    """Return a node's word of the source: quotes and backslashes taken off, nothing expanded."""
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
    is_quoted = bool(types & {"string", "translated_string", "raw_string", "ansi_c_string", "\\"})
    has_command = bool(types & {"command_substitution", "process_substitution"})
    line = node.start_point.row + 1
    return Word(line, "".join(parts), tuple(live), is_quoted, has_command, items)


def read_shell(text: str) -> Shell:
    """Read the commands, comments and redirections of a text."""
    lines = text.split("\n")
    commands: list[Command] = []
    comments: list[tuple[int, str]] = []
    redirects: list[tuple[str, Word]] = []
    unread: list[int] = []
    # Each node comes with a command that holds what the commands in the node inherit.
    nodes = [(_parse(text), Command(1))]
    while nodes:
        node, heir = nodes.pop()
        (row, column), end = node.start_point, node.end_point
        if node.type == "ERROR" or node.is_missing:
            loose = [part for part in node.children if part.type not in (*COMMANDS, "comment")]
            unread.append((loose or [node])[0].start_point.row + 1)
        if node.type == "comment" and not lines[row][:column].strip():
            comments.append((row + 1, lines[row]))
        elif node.type == "file_redirect" and node.named_children:
            operator = next(child.type for child in node.children if not child.is_named)
            targets = [part for part in node.named_children if part.type in WORDS]
            redirects += [(operator, read_word(part, text)) for part in targets[:1]]
        elif node.type in COMMANDS or node.type == "ERROR" or _is_arithmetic(node):
            words, assigns = _words_and_assigns(node, text)
            cut_in = end.row + 1 if CUT.match(lines[end.row][end.column :]) else 0
            if words or assigns:
                commands.append(
                    replace(heir, line=row + 1, words=words, assigns=assigns, cut_in=cut_in)
                )
        if node.type in COMMANDS:
            nodes += [(inner, heir) for inner in _inner(node)]
        elif node.type != "heredoc_body":
            nodes += reversed(list(_children(node, heir, text)))
    return Shell(commands, comments, redirects, min(unread, default=None))


def _is_arithmetic(node: "Node") -> bool:
    return node.type == "compound_statement" and node.children[0].type == "(("


def _words_and_assigns(
    node: "Node", text: str
) -> tuple[tuple[Word, ...], tuple[tuple[str, Word], ...]]:
    if node.type in ("test_command", "compound_statement"):
        return (
            Word(node.start_point.row + 1, text[node.start_byte : node.end_byte], is_quoted=True),
        ), ()
    words: list[Word] = []
    assigns: list[tuple[str, Word]] = []
    for child in [node] if node.type == "variable_assignment" else node.children:
        if child.type == "variable_assignment":
            word = read_word(child, text)
            assigns.append((re.split(r"[\[+=]", word.text)[0], word))
            words += [word] if words else []
        elif child.type in (*WORDS, "command_name", *DECLARING):
            words.append(read_word(child, text))
    # The tree counts arguments behind a redirection as a part of it.
    holder = node.parent
    for part in holder.children if holder and holder.type == "redirected_statement" else ():
        targets = [target for target in part.named_children if target.type in WORDS]
        words += [read_word(target, text) for target in targets[1:] if part.type == "file_redirect"]
    return tuple(words), tuple(assigns)


def _inner(node: "Node") -> "list[Node]":
    """Return the substitutions and redirections in a command, the last first."""
    inner: list[Node] = []
    nodes = list(node.children)
    while nodes:
        part = nodes.pop()
        if part.type in (*SUBSTITUTIONS, "file_redirect", "ERROR"):
            inner.append(part)
        else:
            nodes += part.children
    return inner


def _children(node: "Node", heir: Command, text: str) -> "Iterator[tuple[Node, Command]]":
    """Yield the children of a node that is no command, each with what its commands inherit."""
    if node.type in SUBSTITUTIONS:
        heir = Command(1, depth=heir.depth + 1)
    elif node.type == "function_definition":
        name = node.child_by_field_name("name")
        heir = replace(heir, function=text[name.start_byte : name.end_byte] if name else "")
    elif node.type == "negated_command":
        heir = replace(heir, is_condition=True)
    is_condition = heir.is_condition
    last = max(
        (at for at, part in enumerate(node.children) if part.is_named and part.type not in BEHIND),
        default=-1,
    )
    for at, child in enumerate(node.children):
        is_condition = CONDITIONS.get(child.type, is_condition)
        ends = _operator_behind(node.children[at + 1 :])
        if at == last and (not ends or heir.ends in JOINTS):
            ends = heir.ends
        yield child, replace(heir, ends=ends, is_condition=is_condition)


def _operator_behind(nodes: "Sequence[Node]") -> str:
    """Return the operator after a command; with a heredoc, the tree has it in the redirection."""
    for node in nodes:
        if node.type in ENDS:
            return node.type
        if node.type in ("heredoc_redirect", "pipeline"):
            return _operator_behind(node.children)
        if node.type not in BEHIND and node.type not in ("<<", "<<-", "heredoc_start"):
            break
    return ""
