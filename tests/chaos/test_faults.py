"""The table of faults: a row that raises is one that does not hold, and every row is logged."""

import csv
import importlib
import re
import sys
from types import ModuleType

import faults
import pytest
from fault import Seen

LINES = """number,name,injected,expected,inject
1,other,so,this | that,faults_sample.fails
2,holds,so,this | that,faults_sample.holds
3,raises,so,that,faults_sample.raises
"""


def raises(folder):
    raise RuntimeError("first line\nsecond line")


@pytest.fixture
def run(monkeypatch, tmp_path):
    module = ModuleType("faults_sample")
    module.fails = lambda folder: Seen("other", False)
    module.holds = lambda folder: Seen(f"{len(list(folder.iterdir()))} files", True, 1.25)
    module.raises = raises
    monkeypatch.setitem(sys.modules, "faults_sample", module)
    (tmp_path / "faults.csv").write_text(LINES)
    monkeypatch.setattr(faults, "TABLE", tmp_path / "faults.csv")

    def run(*arguments, lack=None):
        module.missing = lambda: lack
        monkeypatch.setattr(sys, "argv", ["faults.py", *arguments])
        return faults.main()

    return run


def test_every_row_is_logged_in_order_and_one_that_raises_ends_nothing(run, tmp_path):
    log = tmp_path / "logs" / "faults.md"
    assert run("--log", str(log)) == 1
    *_, one, two, three, _, summary = log.read_text().splitlines()
    assert one.startswith("| 1 | other | so | this / that | other | - | **NO** |")
    assert two.startswith("| 2 | holds | so | this / that | 0 files | 1.2 s | yes |")
    assert "RuntimeError: first line second line" in three
    assert summary.startswith("1 of 3 rows hold, ")


def test_some_rows_are_chosen_by_number_and_what_they_lack_is_said(run, capsys):
    assert run("--only", "2") == 0
    assert "raises" not in capsys.readouterr().out
    assert run(lack="no testbed is up") == 3
    assert capsys.readouterr().err == "faults_sample: no testbed is up\n"
    with pytest.raises(SystemExit, match="2"):
        run("--only", "2,9")
    assert re.search("--only 9 is no row", capsys.readouterr().err)


def test_every_row_has_its_function():
    with faults.TABLE.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 50
    for row in rows:
        module, name = row["inject"].split(".")
        assert callable(getattr(importlib.import_module(module), name))
