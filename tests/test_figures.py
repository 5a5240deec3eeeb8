"""Figures: what they show, as inline SVG and as files, and what a redacted report leaves out."""

import re
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from data.report_samples import document, full_tree, provenance, record, strong_tree, write
from matplotlib.figure import Figure
from test_render import data_of

from lockstep.cli import lockstep
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.load.redaction import Redactor
from lockstep.report.page import figures
from lockstep.report.page.by_study import panels
from lockstep.report.page.content_of_page import page
from lockstep.report.page.figures import SERIES_COLOURS, draw, draw_curve


def specs_of(root, threshold=0.7):
    results = load([root])
    found = panels(results, series_of(results.rows), threshold, {})
    return {spec["id"]: spec for panel in found for spec in panel["figures"]}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    return specs_of(full_tree(tmp_path_factory.mktemp("tree")))


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_figure_is_named_for_those_who_do_not_see_it_and_has_no_address_and_no_date(specs):
    source = "Report <demo>. Made with: lockstep report 'a & b'"
    for key, spec in specs.items():
        svg = draw(spec, source)
        assert draw(spec, source) == svg
        root = ET.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314, it is our own
        assert (root.get("role"), root.get("aria-labelledby")) == ("img", f"{key}-title {key}-desc")
        named = [root.find(name).text for name in ("title", "desc", "metadata")]
        assert named == [spec["title"], spec["desc"], source]
        assert not re.search(r"http|20\d\d-\d\d", svg)


def test_text_stays_text_and_colours_are_variables_with_the_palette_behind_them(specs):
    svg = draw(specs["strong-throughput"])
    assert {"1", "2", "4", "Ranks", "Throughput (images/s), log scale"} <= set(texts(svg))
    assert f"var(--c0, {SERIES_COLOURS[0]})" in svg
    assert not re.search(r"(?:stroke|fill): #(?!ffffff|none)", svg)


def test_the_bar_spans_the_interval_though_the_median_lies_outside(tmp_path):
    # Four of ten launches took twice the time: the median is 640, the mean lies below it.
    skewed = (0.1,) * 6 + (0.2,) * 4
    spec = specs_of(strong_tree(tmp_path, {1: (0.0999, 0.1001), 2: skewed}))["strong-throughput"]
    (series,) = spec["series"]
    low, high = series["intervals"][1]
    assert low < high < series["y"][1] == pytest.approx(640)
    figure = Figure()
    draw_curve(figure.add_subplot(), series, 0)
    bars = [list(line.get_ydata()) for line in figure.axes[0].lines if line.get_marker() == "_"]
    assert bars[0][3:5] == [low, high]
    assert figure.axes[0].lines[-1].get_linestyle() == "None"  # two sizes are not joined


def test_figures_are_written_in_every_format_with_their_basis_and_the_same_bytes(tmp_path):
    whole = data_of(strong_tree(tmp_path / "tree"), command="lockstep report DIR")
    one = {
        "source": whole["source"],
        "sections": [{"figures": whole["sections"][0]["figures"][:1]}],
    }
    found = figures.write(one, tmp_path / "a")
    assert [path.name for path in found] == [f"strong-speedup.{k}" for k in ("svg", "pdf", "png")]
    again = figures.write(one, tmp_path / "b")
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
    folder = tmp_path / "a" / "b" / "figures"
    made = figures.write(data_of(tmp_path / "tree"), folder, ["svg"])
    assert any("speedup" in path.name for path in made)
    assert {path.resolve().parent for path in made} == {folder}
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "a"}


def test_a_redacted_page_or_pack_names_no_host_user_path_or_variable(tmp_path):
    ranks = provenance(1)["ranks"][0] | {"host": "jupiter07.fzj.de"}
    facts = provenance(
        1, hostname="jupiter07", image_path="/home/alice/images/a.sif", ranks=[ranks],
        environment={"USER": "alice", "SECRET_TOKEN": "xyzzy"}, command=["/home/alice/bin/pytest"],
    )  # fmt: skip
    root = strong_tree(tmp_path, {1: (0.1, 0.11)}, provenance=facts)
    results = load([root])
    redactor = Redactor(results)  # takes facts out of the results, too
    text = str(redactor(page(evaluate(results), 0.7)))
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
