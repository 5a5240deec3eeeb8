"""How large the house is, feature by feature, beside its budget: what `make house` prints."""

import ast
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lockstep"
TABLE = tomllib.loads((Path(__file__).parent / "features.toml").read_text())
# Aimed at, in lines and modules.
MOST_PRODUCT, MOST_MODULES, MOST_TESTS = 47_000, 250, 32_000


def main() -> None:
    product, tests = modules(product_files()), modules((ROOT / "tests").rglob("*.py"))
    print(f"{'feature':55}{'lines':>8}{'budget':>8}{'modules':>9}{'tests':>8}")
    for feature, of_feature in by_feature(product, tests).items():
        mine, their_tests = of_feature["product"], of_feature["tests"]
        budget, lines = TABLE["features"][feature]["budget"], num_lines(mine)
        mark = "  over" if lines > budget else ""
        print(
            f"{feature:55}{lines or '-':>8}{budget or '-':>8}{len(mine) or '-':>9}"
            f"{num_lines(their_tests):>8}{mark}"
        )
    print()
    print(f"product: {num_lines(product.values()):,} lines, at most {MOST_PRODUCT:,}")
    print(f"modules: {len(product)}, at most {MOST_MODULES}")
    print(f"tests: {num_lines(tests.values()):,} lines, at most {MOST_TESTS:,}")
    print(f"modules in import circles: {len(circles(import_graph()))}")
    for walk, hops in TABLE["walks"].items():
        print(f"{walk}: {len(hops)} hops in {len({hop.split(':')[0] for hop in hops})} modules")


def product_files() -> list[Path]:
    return [*PACKAGE.rglob("*.py"), ROOT / "conftest.py", *(ROOT / "bench").rglob("*.py")]


def modules(paths: Iterable[Path]) -> dict[str, Path]:
    """Return name -> file; a name is as `features.toml` has it: no package, no ending."""
    names = {}
    for path in sorted(paths):
        name = str(path.relative_to(ROOT).with_suffix(""))
        names[name.removeprefix("lockstep/").removeprefix("tests/")] = path
    return names


def by_feature(
    product: dict[str, Path], tests: dict[str, Path]
) -> dict[str, dict[str, list[Path]]]:
    """Return the modules of each feature, each in the first whose pattern fits it.

    Raises:
        ValueError: A module fits none.
    """
    shares: dict[str, dict[str, list[Path]]] = {
        feature: {"product": [], "tests": []} for feature in TABLE["features"]
    }
    for kind, files in (("product", product), ("tests", tests)):
        for name, path in files.items():
            feature = next((f for f, row in TABLE["features"].items() if fits(name, row[kind])), "")
            if not feature:
                raise ValueError(f"{name} belongs to no feature of features.toml")
            shares[feature][kind].append(path)
    return shares


def fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def import_graph() -> dict[str, set[str]]:
    """Return each module of the package with those it imports, in functions and for types, too."""
    return {dotted(path): imported(path) - {dotted(path)} for path in PACKAGE.rglob("*.py")}


def dotted(path: Path) -> str:
    name = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    return name.removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {alias: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if is_module(name) else node.module for name in whole.values()}
    return {name for name in names if name.split(".")[0] == "lockstep"}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules in circles or between two: those that no leaf falls off from."""
    left = dict(graph)
    while True:
        needed = set[str]().union(*left.values())
        inner = {
            name: others & left.keys()
            for name, others in left.items()
            if name in needed and others & left.keys()
        }
        if inner == left:
            return sorted(left)
        left = inner


def missing_hops() -> list[str]:
    """Return the steps of the walks that no module defines any more."""
    hops = [hop.split(":") for walk in TABLE["walks"].values() for hop in walk]
    return [f"{module}:{name}" for module, name in hops if name not in defined(module)]


def defined(module: str) -> set[str]:
    path = (PACKAGE / module).with_suffix(".py")
    body: list[Any] = ast.parse(path.read_text()).body if path.exists() else []
    return {node.name for node in body if hasattr(node, "name") and isinstance(node.name, str)}


def num_lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in paths)


if __name__ == "__main__":
    main()
