"""Durations and texts of others: read and written in one place for all rooms."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import files, formats, processes
from lockstep.core.formats import one_line


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2-03:04:05.678", 2 * 86400 + 3 * 3600 + 4 * 60 + 5.678),
        ("04:05", 245),
        ("", None),
        ("UNLIMITED", None),
        ("9" * 400 + ":00", None),
    ],
)
def test_a_duration_is_read_as_slurm_and_its_users_write_it(text, seconds):
    assert formats.parse_duration(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(86399, "23:59:59"), (183845, "2-03:04:05")])
def test_a_time_limit_is_written_as_it_is_read(seconds, text):
    assert formats.clock(seconds) == text
    assert formats.parse_limit(text) == seconds


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\n  b\r\n\tc", "a b c"),
        ("\x1b]0;title\x07 \u202e\ud800", r"\x1b]0;title\x07 \u202e\ud800"),
    ],
)
def test_one_line_cannot_act_on_a_terminal(text, line):
    assert one_line(text) == line
    assert one_line(text).isprintable()


def test_what_a_program_prints_cannot_act_on_a_terminal():
    said = r"print('\x1b[31mred\x1b[0m\x1b[2J\tbell\x07\nend')"
    assert processes.output([sys.executable, "-c", said], 60) == "red\\x1b[2J\tbell\\x07\nend\n"


@given(text=st.text())
def test_a_text_of_a_json_file_cannot_act_on_a_terminal(text):
    controls = {*range(9), *range(11, 32), *range(127, 160)}
    safe = "".join(f"\\x{ord(c):02x}" if ord(c) in controls else c for c in text)
    for document in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        assert files.parse(document.encode()) == safe


@pytest.mark.parametrize(
    ("content", "num_bytes", "start", "end"),
    [
        ("abc\ndef\n", 6, 0, "def\n"),  # the limit cuts the first line
        ("x" * 100 + "\n", 10, 0, "x" * 9 + "\n"),  # one line, which a progress bar may be
    ],
)
def test_the_end_of_a_file_has_whole_lines_where_it_can(tmp_path, content, num_bytes, start, end):
    (path := tmp_path / "output").write_text(content)
    assert files.tail(path, num_bytes, start) == end
