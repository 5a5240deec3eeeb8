"""How large the house is: what `make house` prints. No figure fails it."""

import ast
from collections.abc import Iterable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lockstep"
MAX_MODULE, MAX_CLASS, MAX_CHILDREN = 400, 200, 10
# The package itself has what the design lists, however many that is.
TOP = {
    *("plugin", "cli", "content", "__main__"),
    *("core", "machine", "ranks", "measure", "workloads", "trainer", "launch", "campaign"),
    *("image", "slurm", "before", "report"),
}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def main() -> None:
    product = [*PACKAGE.rglob("*.py"), ROOT / "conftest.py", *(ROOT / "bench").rglob("*.py")]
    tests = sorted((ROOT / "tests").rglob("*.py"))
    _print_modules(product)
    print(f"tests: {num_lines(tests):,} lines in {len(tests)} modules, {num_tests(tests):,} tests")
    golden = [path for path in (ROOT / "tests/data/golden").rglob("*") if path.is_file()]
    print(f"golden files: {num_lines(golden):,} lines in {len(golden)} files")
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        children = {path.stem for path in folder.iterdir() if is_code(path)}
        print(f"  {folder.relative_to(ROOT)}: {len(children)} children{_mark(folder, children)}")


def _mark(folder: Path, children: set[str]) -> str:
    if folder == PACKAGE:
        others = ", ".join(sorted(children - TOP))
        return f" (not in the design: {others})" if others else ""
    return f" (more than {MAX_CHILDREN})" if len(children) > MAX_CHILDREN else ""


def _print_modules(product: list[Path]) -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in product}
    print(f"product: {num_lines(product):,} lines in {len(product)} modules")
    _print_longest("module", {name_of(path): num_lines([path]) for path in product}, MAX_MODULE)
    classes = spans(trees, (ast.ClassDef,))
    _print_longest("class", classes, MAX_CLASS)
    functions = spans(trees, (ast.FunctionDef, ast.AsyncFunctionDef))
    _print_longest("function", functions, 40)
    print(f"functions: {len(functions):,}, the median has {median(functions.values()):.0f} lines")
    raises = sum(isinstance(node, ast.Raise) for tree in trees.values() for node in ast.walk(tree))
    print(f"raises: {raises:,}")


def _print_longest(kind: str, lengths: dict[str, int], limit: int) -> None:
    longest = max(lengths, key=lambda name: lengths[name])
    over = sum(length > limit for length in lengths.values())
    print(f"longest {kind}: {longest}, {lengths[longest]} lines; {over} over {limit}")


def spans(trees: dict[Path, ast.Module], kinds: tuple[type[Definition], ...]) -> dict[str, int]:
    """Return module:name:line -> lines of every definition of the kinds."""
    return {
        f"{name_of(path)}:{node.name}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    }


def num_tests(paths: Iterable[Path]) -> int:
    """Return the number of test functions, each counted once however many parameters it has."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in paths)
    nodes = (node for tree in trees for node in ast.walk(tree))
    names = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return sum(name.startswith("test_") for name in names)


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def is_code(path: Path) -> bool:
    is_module = path.suffix == ".py" and path.name != "__init__.py"
    return is_module or (path.is_dir() and any(path.glob("*.py")))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
