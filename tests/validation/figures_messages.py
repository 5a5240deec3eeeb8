"""List every sentence that the program can print, from the sources: what `make messages` prints.

`--sample N --seed S` draws N of them, for a reader to rate. The end counts the words of documents.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST_WORDS = 4
# A word of a sentence, neither a name in code nor a place that is filled in.
WORD = re.compile(r"[(\"']?[A-Za-z][a-z'-]*[)\"'.,;:?!]*")
# Most words of README and docs/ outside code blocks, and of one cell of a table.
MOST_WORDS, MOST_OF_CELL = 12_000, 30


def documents() -> dict[str, str]:
    """Return page -> its text outside code blocks, without the targets of links."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    block = re.compile(r"^```.*?^```", re.M | re.S)
    return {page: re.sub(r"\]\([^)]*\)", "]", block.sub("", text)) for page, text in texts.items()}


def num_words(text: str) -> int:
    """Return how many words a text has; a word has a letter, so figures and signs are none."""
    return len(re.findall(r"\S*[A-Za-z]\S*", text))


def long_cells(text: str) -> list[str]:
    """Return the cells of a page's tables that have too many words."""
    rows = (line for line in text.splitlines() if line.startswith("|"))
    cells = (cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row))
    return [cell for cell in cells if num_words(cell) > MOST_OF_CELL]


def messages() -> list[tuple[str, str]]:
    """Return (file:line, sentence) of each string of the product that is a sentence to read."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for path in sorted((ROOT / "lockstep").rglob("*.py"))
        for line, text in _strings(ast.parse(path.read_text()))
        if not text.startswith((",", ";"))  # the rest of another sentence
        if sum(bool(WORD.fullmatch(part)) for part in text.split()) >= LEAST_WORDS
    ]


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each string but docstrings; `{name}` stands for what is filled in.

    A click command's docstring is its help, which a user reads.
    """
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() if node.body:
                first = node.body[0]
                is_help = isinstance(node, ast.FunctionDef) and any(
                    "command" in ast.unparse(one) for one in node.decorator_list
                )
                if isinstance(first, ast.Expr) and not is_help:
                    skipped.add(id(first.value))
            case ast.JoinedStr():
                skipped.update(id(below) for below in ast.walk(node))
                parts = (
                    str(part.value) if isinstance(part, ast.Constant) else _field(part)
                    for part in node.values
                )
                yield node.lineno, " ".join("".join(parts).split())
            case ast.Constant(value=str(text)):
                yield node.lineno, " ".join(text.split())


def _field(part: ast.expr) -> str:
    assert isinstance(part, ast.FormattedValue)
    return "{" + ast.unparse(part.value).split("(")[0].split(".")[-1] + "}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="how many to draw; all by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    printed = messages()
    if options.sample:
        printed = random.Random(options.seed).sample(printed, options.sample)  # noqa: S311, no secret
    for place, text in printed:
        print(f"{place}: {text}")
    counts = [num_words(text) for text in documents().values()]
    print(f"{sum(counts):,} words in {len(counts)} documents, of at most {MOST_WORDS:,}")


if __name__ == "__main__":
    main()
