"""List every sentence that the program can print, from the sources: what `make messages` prints.

`--sample N --seed S` draws N of them, for a reader to rate.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST_WORDS = 4


def messages(root: Path = ROOT) -> list[tuple[str, str]]:
    """Return (file:line, sentence) of each string of the product that is a sentence to read."""
    return [
        (f"{path.relative_to(root)}:{line}", text)
        for path in sorted((root / "lockstep").rglob("*.py"))
        for line, text in _strings(ast.parse(path.read_text()))
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= LEAST_WORDS
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
    """Print the sentences, or a sample of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="how many to draw; all by default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    printed = messages()
    if options.sample:
        printed = random.Random(options.seed).sample(printed, options.sample)  # noqa: S311, no secret
    for place, text in printed:
        print(f"{place}: {text}")


if __name__ == "__main__":
    main()
