"""Figures as files, and what a redacted report leaves out."""

import re

from click.testing import CliRunner
from data.report_samples import document, full_tree, provenance, record, strong_tree, write

from lockstep import content
from lockstep.cli import lockstep
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load.reading import load
from lockstep.report.load.redaction import Redactor
from lockstep.report.page import figures as drawn
from lockstep.report.page.content_of_page import page
from lockstep.report.page.figures import SERIES_COLOURS, curves, draw


def page_of(root):
    results = load([root])
    return page(evaluate(results), 0.7, "lockstep report DIR")


def test_figures_are_written_in_every_format_with_their_basis_and_the_same_bytes(tmp_path):
    whole = page_of(strong_tree(tmp_path / "tree"))
    one = {
        "source": whole["source"],
        "sections": [{"figures": whole["sections"][0]["figures"][:1]}],
    }
    found = drawn.write(one, tmp_path / "a")
    assert [path.name for path in found] == [f"strong-speedup.{k}" for k in ("svg", "pdf", "png")]
    again = drawn.write(one, tmp_path / "b")
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in again]
    svg = found[0].read_text()
    assert "lockstep report DIR" in svg
    assert "H100" in svg
    assert "var(--" not in svg


def test_no_factor_s_name_leads_out_of_the_folder(tmp_path):
    factor = "../../../out"
    known = {"metrics": {}, "over": [factor]}
    cases = {
        f"program[{value}]": record(
            step_s=0.1 / value, details={"command": known},
            factors={"workload": "own", factor: value},
        )
        for value in (1, 2, 4)
    }  # fmt: skip
    write(tmp_path / "tree", document("w1-r0", 1, cases))
    figures = tmp_path / "a" / "b" / "figures"
    made = drawn.write(page_of(tmp_path / "tree"), figures, ["svg"])
    assert any("speedup" in path.name for path in made)
    assert {path.resolve().parent for path in made} == {figures}
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "a"}


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_colour_is_seen_on_white_and_in_the_dark():
    style = (content.ROOT / "reports" / "templates" / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\n\s*\}", style, re.DOTALL)
    values = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]
    for found in (one for one in values if "c0" in one):
        colours = [found[f"c{i}"] for i in range(len(SERIES_COLOURS))]
        assert min(contrast(colour, found["paper"]) for colour in colours) >= 3
    assert min(contrast(colour, "#ffffff") for colour in SERIES_COLOURS) >= 3


def test_one_launch_far_above_the_ideal_leaves_room_for_the_others():
    series = {
        "label": "mlp", "x": [1, 2, 4], "y": [1.0, 3.33, 0.8], "intervals": [None] * 3, "ideal": [],
        "dots": [[2, 3.33]],
    }  # fmt: skip
    spec = {
        "kind": "curve", "id": "e", "title": "e", "desc": "e", "xlabel": "Ranks", "ylabel": "E (%)",
        "ylog": False, "ticks": [1, 2, 4], "series": [series], "lines": [], "percent": True,
        "cap": 1.5,
    }  # fmt: skip
    assert curves(spec, "").figure.axes[0].get_ylim()[1] < 1.5
    assert ">333 %<" in draw(spec)


def test_labels_that_would_overlap_are_left_out_and_the_last_one_stays():
    sizes = [2.0**power for power in range(10, 30)]
    series = {
        "label": "all_reduce", "x": sizes, "y": sizes, "intervals": [None] * 20, "ideal": [],
        "dots": [],
    }  # fmt: skip
    spec = {
        "kind": "curve", "id": "e", "title": "e", "desc": "e", "xlabel": "Message", "ylabel": "B",
        "ylog": True, "ticks": sizes, "series": [series], "lines": [], "size_ticks": True,
    }  # fmt: skip
    found = re.findall(r">(\d+ [KM]iB)<", draw(spec))
    assert found[-1] == "512 MiB"
    assert 5 <= len(found) <= 10


def test_a_redacted_page_or_pack_names_no_host_user_path_or_variable(tmp_path):
    ranks = provenance(1)["ranks"][0] | {"host": "jupiter07.fzj.de"}
    facts = provenance(
        1, hostname="jupiter07", image_path="/home/alice/images/a.sif", ranks=[ranks],
        environment={"USER": "alice", "SECRET_TOKEN": "xyzzy"}, command=["/home/alice/bin/pytest"],
    )  # fmt: skip
    root = strong_tree(tmp_path, {1: (0.1, 0.11)}, provenance=facts)
    results = load([root])
    redactor = Redactor(results)
    text = str(redactor(page(evaluate(results), 0.7, "lockstep report DIR")))
    pack = tmp_path / "pack"
    wanted = ("--proposal", "generic", "--despite", "--redact", "--to", pack)
    CliRunner().invoke(lockstep, ["report", *map(str, (root, *wanted))], catch_exceptions=False)
    text += "".join(path.read_text() for path in pack.iterdir() if path.is_file())
    assert "proposal.tex" in {path.name for path in pack.iterdir()}
    for secret in ("jupiter07", "alice", "SECRET_TOKEN", "xyzzy", "/home"):
        assert secret not in text
    assert "host1" in text
    assert "images/s" in text


def test_hosts_keep_their_order_under_other_names(tmp_path):
    results = load([full_tree(tmp_path)])
    results.rows[0].rank_hosts = ["node10", "node9"]
    assert Redactor(results)(["node9", "node10", "renode9"]) == ["host2", "host3", "renode9"]
