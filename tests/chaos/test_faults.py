"""The table of faults: a row that raises is one that does not hold, and every row is logged."""

import sys

import faults
import pytest
from fault import Fault, Seen


def fault(number, inject):
    return Fault(number, f"fault {number}", "so", "this | that", inject)


def raising(folder):
    raise RuntimeError("first line\nsecond line")


HOLDS = fault(2, lambda folder: Seen(f"{len(list(folder.iterdir()))} files", True, 1.25))
FAILS = fault(1, lambda folder: Seen("other", False))
RAISES = fault(3, raising)


def run(monkeypatch, tmp_path, rows, *arguments, lack=None):
    module = type(sys)("faults_sample")
    module.FAULTS = rows
    module.missing = lambda: lack
    monkeypatch.setitem(sys.modules, "faults_sample", module)
    (tmp_path / "faults_sample.py").touch()
    monkeypatch.setattr(faults, "__file__", str(tmp_path / "faults.py"))
    monkeypatch.setattr(sys, "argv", ["faults.py", *arguments])
    return faults.main()


def test_every_row_is_logged_in_order_and_one_that_raises_ends_nothing(monkeypatch, tmp_path):
    log = tmp_path / "logs" / "faults.md"
    assert run(monkeypatch, tmp_path, [RAISES, HOLDS, FAILS], "--log", str(log)) == 1
    *_, one, two, three, _, summary = log.read_text().splitlines()
    assert one.startswith("| 1 | fault 1 | so | this / that | other | - | **NO** |")
    assert two.startswith("| 2 | fault 2 | so | this / that | 0 files | 1.2 s | yes |")
    assert "RuntimeError: first line second line" in three
    assert summary.startswith("1 of 3 rows hold, ")


def test_some_rows_are_chosen_by_number(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, [RAISES, HOLDS], "--only", "2") == 0
    assert "fault 3" not in capsys.readouterr().out


def test_what_a_row_lacks_has_an_exit_code_of_its_own(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, [HOLDS], lack="no testbed is up") == 3
    assert capsys.readouterr().err == "faults_sample: no testbed is up\n"


def test_a_number_that_is_no_row_is_refused(monkeypatch, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, tmp_path, [HOLDS], "--only", "2,9")
    assert ended.value.code == 2
    assert "--only 9 is no row" in capsys.readouterr().err
