"""docs/reference/cheat-sheet.md has every command, and every file of a results folder."""

import re
from fnmatch import fnmatch

from commands import lockstep
from launched import ROOT

from lockstep.cli import COMMANDS

PAGE = (ROOT / "docs" / "reference" / "cheat-sheet.md").read_text()
QUESTIONS, FOLDER = PAGE.split("## A results folder")
NAMED = [name for row in re.findall(r"^\| (`.*?) \|", FOLDER, re.M) for name in row.split("`")]


def unnamed(folder):
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert files
    return [file for file in files if not any(fnmatch(file, name) for name in NAMED)]


def test_every_command_answers_a_question():
    asked = set(re.findall(r"lockstep (\w+)", QUESTIONS))
    assert set(COMMANDS) - asked == set()


def test_every_file_that_measuring_leaves_is_explained(measured):
    assert unnamed(measured / "fp32") == []


def test_every_file_that_rendering_leaves_is_explained(tmp_path):
    ended = lockstep("submit", "--by-hand", "ladder", "--site", "testbed", "--to", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert unnamed(tmp_path / "ladder") == []
