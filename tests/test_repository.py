"""What holds for the repository as a whole: who imports whom, what a file may name and how long."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import figures_house
import figures_messages
import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    [*(path for room in ("bench", "lockstep") for path in (ROOT / room).rglob("*.py"))]
)
# Which rooms of the package a room may import, beside itself; and the files beside the rooms.
MAY_IMPORT = {
    "core": set(),
    "content": set(),
    "workloads": {"core"},
    "machine": {"core", "content"},
    "ranks": {"core", "machine"},
    "measure.causes": {"core"},
    "measure": {"core", "machine", "ranks", "workloads", "measure.causes"},
    "measure.explain": {"core", "measure.causes", "machine", "ranks", "measure", "workloads"},
    "launch": {"core", "content", "machine", "ranks", "workloads", "measure"},
    "campaign": {"core", "content", "ranks", "workloads", "report", "report.tracker"},
    "campaign.program": {"core", "content", "machine", "campaign"},
    "trainer": {
        *("core", "content", "machine", "ranks", "workloads", "measure", "launch"),
        *("campaign", "report.tracker"),
    },
    "image": {"core", "content", "machine"},
    "slurm": {"core", "content", "campaign", "machine", "image", "report", "report.tracker"},
    "before": {*("core", "content", "ranks", "measure", "campaign", "machine", "image", "slurm")},
    "report": {"core", "content", "measure.causes", "report.profiles"},
    # A roofline needs the peaks of the datasheets, which import no torch.
    "report.profiles": {"core", "machine", "measure.causes"},
    "report.tracker": {"core", "content", "report"},
    "plugin": {"core", "launch", "measure", "ranks", "report"},
    "cli": {"core"},  # it names the commands, and loads each when it is asked for
    "__main__": {"cli"},
    "__init__": {"measure.explain", "report"},
}
# What a login node loads.
WITHOUT_TORCH = ("lockstep.core", "lockstep.campaign", "lockstep.machine.hardware")
MEASURING = {"torch", "torchvision", "numpy", "pytest", "pytest_benchmark", "psutil", "pynvml"}


def ids(path):
    return str(path.relative_to(ROOT))


def tracked():
    """Return the files of the repository, new ones included, ignored ones not."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("no git, or no checkout: which files are ours is not known")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


@cache
def nodes(path):
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def libraries(path):
    """Return what a file imports anywhere, by the first part of the name."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found


def test_no_import_is_relative():
    assert [
        ids(path) for path in MODULES for node in nodes(path) if getattr(node, "level", 0)
    ] == []


def room(name):
    parts = name.split(".")[1:]
    inner = ".".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0]


def module_file(name):
    file = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    return file if file.exists() else ROOT.joinpath(*name.split("."), "__init__.py")


def test_rooms_keep_their_directions():
    wrong = {ids(path): others for path in MODULES if (others := may_not_import(path))}
    assert wrong == {}


def may_not_import(path):
    found = {room(name) for name in figures_house.imported(path)}
    if path.is_relative_to(ROOT / "bench"):
        return found - {"core", "workloads", "measure", "trainer"}
    own = room(ids(path).removesuffix(".py").replace("/", "."))
    return found - {own} - MAY_IMPORT[own]


def test_no_module_imports_itself_through_others():
    assert figures_house.circles(figures_house.import_graph()) == []


def test_every_module_belongs_to_a_feature_and_every_walk_can_be_walked():
    product = figures_house.modules(figures_house.product_files())
    tests = figures_house.modules((ROOT / "tests").rglob("*.py"))
    shares = figures_house.by_feature(product, tests)
    assert all(share["product"] or share["tests"] for share in shares.values())
    assert figures_house.missing_hops() == []


def test_no_two_modules_have_one_name():
    names = Counter(path.stem for path in MODULES if path.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def run(*arguments, cwd=ROOT, **environ):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        check=False,
    )


def without_torch():
    names = (ids(path).removesuffix(".py").replace("/", ".") for path in MODULES)
    return [name for name in names if name.startswith(WITHOUT_TORCH) and "__init__" not in name]


def test_the_vocabulary_and_campaigns_load_neither_torch_nor_pytest():
    ended = run("-c", f"import {', '.join(without_torch())}, sys; print(*sys.modules)")
    assert ended.returncode == 0, ended.stderr
    loaded = set(ended.stdout.split())
    assert "lockstep.campaign.ladder" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "pytest", "_pytest"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "smoke", "--dry-run"], ["report", "--help"],
    ],
)  # fmt: skip
def test_the_command_starts_without_the_heavy_libraries(arguments, tmp_path):
    ended = run("-X", "importtime", "-m", "lockstep", *arguments, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    loaded = set(re.findall(r"\|\s+([\w.]+)$", ended.stderr, re.MULTILINE))
    assert "click" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "pandas", "matplotlib", "scipy", "pytest"}


def measuring_path():
    """Return the files that `pytest bench/` loads: hooks, measured files, and all they import.

    Workloads are loaded by name, so all of them belong to it. The report does not: its cards are
    printed after the last case, and left out where what a report needs is not installed.
    """
    seen = set()
    package = ROOT / "lockstep"
    to_see = {package / "launch" / "hooks.py", *(ROOT / "bench").glob("test_*.py")}
    to_see |= set((package / "workloads").glob("*.py"))
    while to_see:
        path = to_see.pop()
        seen.add(path)
        to_see |= {
            module_file(n) for n in figures_house.imported(path) if room(n) != "report"
        } - seen
    return sorted(seen)


def test_the_measuring_path_needs_what_any_pytorch_image_has():
    usual = {*sys.stdlib_module_names, *MEASURING, "lockstep"}
    found = {ids(path): libraries(path) for path in measuring_path()}
    assert "lockstep/measure/harness.py" in found
    assert {name: roots - usual for name, roots in found.items() if roots - usual} == {}


# Modules that read what another program says, which has no records for us.
READS_PROGRAMS = {
    "lockstep/campaign/next.py": "torchrun, srun and pytest",
    "lockstep/core/record.py": "torch, of tensors on two devices",
    "lockstep/image/apptainer.py": "Apptainer",
    "lockstep/launch/verdict.py": "torch's collectives",
    "lockstep/machine/memory.py": "torch's allocator of host memory",
    "lockstep/slurm/client.py": "Slurm",
    "lockstep/slurm/status/standing.py": "Slurm",
}
READS = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "find", "index"),
    *("partition", "rpartition", "split", "rsplit"),
    *("match", "fullmatch", "search", "findall", "finditer", "sub"),
}
# Names of what holds a sentence of ours, and of the sentence.
RECORDS = {"error", "exception", "excinfo", "gap", "flag", "conflict", "failure", "finding"}
SENTENCES = {"message", "reason", "sentence", "why"}


def sentences_read(nodes):
    return [ast.unparse(each) for each in nodes if _reads_a_sentence(each)]


def _reads_a_sentence(node):
    if isinstance(node, ast.Compare):
        is_search = any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
        return is_search and any(map(_is_sentence, node.comparators))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    # The first of several lines is a matter of room, not of meaning.
    is_line = any(isinstance(word, ast.Constant) and word.value == "\n" for word in node.args[:1])
    read = [node.func.value, *node.args]
    return node.func.attr in READS and not is_line and any(map(_is_sentence, read))


def _is_sentence(node):
    if isinstance(node, ast.Call):
        is_text = isinstance(node.func, ast.Name) and node.func.id in ("str", "repr")
        if is_text:
            return any(map(_is_of_a_record, node.args))
        return isinstance(node.func, ast.Attribute) and _is_sentence(node.func.value)
    if isinstance(node, ast.Attribute):
        return node.attr in SENTENCES or (node.attr in ("text", "args") and _is_of_a_record(node))
    if isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return key in SENTENCES or _is_of_a_record(node)
    return isinstance(node, ast.Name) and node.id in SENTENCES | RECORDS


def _is_of_a_record(node):
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in RECORDS


def test_no_code_reads_a_sentence_of_ours():
    found = {ids(path): sentences_read(nodes(path)) for path in MODULES}
    assert {name for name, read in found.items() if read} - READS_PROGRAMS.keys() == set()


def test_python_files_are_ascii():
    found = [
        f"{ids(path)}:{number}"
        for path in tracked()
        if path.suffix == ".py"
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if not line.isascii()
    ]
    assert found == []


def texts():
    for path in tracked():
        content = path.read_bytes()
        if b"\0" not in content:
            yield ids(path), content.decode("utf-8")


def test_no_file_names_a_package_registry():
    # Where packages come from is the installation's own business.
    hosts = re.compile(
        r"\b(?:test[.])?pypi[.]org|pythonhosted[.]org|npmjs[.]|anaconda[.](?:org|com)|"
        r"artifactory|(?:extra-)?index-url|devpi"
    )
    source = ids(Path(__file__))
    found = {name: hosts.findall(text) for name, text in texts() if name != source}
    assert {name: hits for name, hits in found.items() if hits} == {}
    assert hosts.search("https://pypi" + ".org/simple")


def test_no_file_names_a_path_of_this_machine():
    here = {str(ROOT), str(ROOT.parent / "shared")}
    if sys.prefix != sys.base_prefix:
        here.add(sys.prefix)
    found = [(name, path) for name, text in texts() for path in here if path in text]
    assert found == []


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in (path for path in tracked() if path.suffix == ".md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file = target.partition("#")[0]
            if file and not re.match(r"[a-z]+:", file) and not (page.parent / file).exists():
                broken.append(f"{ids(page)}: {target}")
    assert broken == []


def test_the_documents_stay_short():
    texts = figures_messages.documents()
    words = sum(map(figures_messages.num_words, texts.values()))
    assert words <= figures_messages.MOST_WORDS
    assert {page: cells for page, text in texts.items()
            if (cells := figures_messages.long_cells(text))} == {}  # fmt: skip


def test_modules_that_a_page_names_are_there():
    roots = (ROOT, ROOT / "lockstep")
    gone = [
        f"{ids(page)}: {name}"
        for page in (path for path in tracked() if path.suffix == ".md")
        if page.name not in ("CHANGELOG.md", "extending.md")
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
        if not any((root / name).exists() for root in roots)
    ]
    assert gone == []


@pytest.mark.slow
def test_a_plain_pytest_collects_no_measured_case():
    # A few files of tests stand for all, whose imports take a while.
    few = [f"--ignore=tests/{name}" for name in ("chaos", "system", "validation")]
    ended = run("-m", "pytest", "--collect-only", "-q", *few, "--ignore-glob=tests/test_[!r]*")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    collected = [line for line in ended.stdout.splitlines() if "::" in line]
    assert any(line.startswith("tests/test_repository.py::") for line in collected)
    assert all(line.startswith("tests/") for line in collected)


def test_the_version_is_one_everywhere_and_a_tag_has_it():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert json.loads((ROOT / "codemeta.json").read_text())["version"] == version
    listed = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    for tag in listed.stdout.split():
        assert tag == f"v{version}"
        assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
