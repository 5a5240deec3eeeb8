import re
from xml.etree import ElementTree as ET

import pytest
from data.report_samples import document, full_tree, record, strong_tree, write
from matplotlib.figure import Figure

from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.page.by_study import panels
from lockstep.report.page.figures import SERIES_COLOURS, draw, one_curve


def specs_of(root, threshold=0.7):
    results = load([root])
    found = panels(results, series_of(results.rows), threshold, "GPU-hours")
    return {spec["id"]: spec for panel in found for spec in panel["figures"]}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    return specs_of(full_tree(tmp_path_factory.mktemp("tree")))


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_every_study_has_its_figure(specs):
    assert set(specs) == {
        "strong-throughput", "strong-speedup", "strong-efficiency", "weak-step-time",
        "weak-efficiency",
        "precision-0", "bucket-0", "loader-0", "sensitivity-0", "collective-bandwidth",
    }  # fmt: skip


def test_the_same_data_give_the_same_bytes(specs):
    for spec in specs.values():
        assert draw(spec) == draw(spec)


def test_a_figure_is_named_for_those_who_do_not_see_it(specs):
    for key, spec in specs.items():
        svg = draw(spec)
        root = ET.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314, it is our own
        assert root.get("role") == "img"
        assert root.get("aria-labelledby") == f"{key}-title {key}-desc"
        assert root.find("title").text == spec["title"]
        assert root.find("desc").text == spec["desc"]


def test_a_figure_names_no_address_and_no_date(specs):
    for spec in specs.values():
        svg = draw(spec)
        assert "http" not in svg
        assert "<metadata" not in svg
        assert not re.search(r"20\d\d-\d\d", svg)


def test_a_figure_keeps_where_it_comes_from(specs):
    source = "Report <demo>. Measured 2026-11-20. Made with: lockstep report 'a & b'"
    spec = specs["strong-throughput"]
    svg = draw(spec, source)
    root = ET.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314, it is our own
    assert [one.text for one in root.iter("metadata")] == [source]
    assert draw(spec, source) == svg
    assert "http" not in svg


def test_text_stays_text_and_ticks_are_the_sizes_measured(specs):
    found = texts(draw(specs["strong-throughput"]))
    assert {"1", "2", "4", "Ranks"} <= set(found)
    assert "Throughput (images/s)" in found


def test_colours_are_variables_with_the_palette_behind_them(specs):
    svg = draw(specs["strong-throughput"])
    assert f"var(--c0, {SERIES_COLOURS[0]})" in svg
    assert not re.search(r"(?:stroke|fill): #(?!ffffff|none)", svg)


@pytest.mark.parametrize(("study", "lines"), [("strong", [1.0, 0.75]), ("weak", [1.0, 0.9, 0.75])])
def test_efficiency_starts_at_zero_and_shows_what_it_is_held_to(tmp_path, study, lines):
    spec = specs_of(full_tree(tmp_path), threshold=0.75)[f"{study}-efficiency"]
    found = texts(draw(spec))
    assert {"0", "100 %", "75 %"} <= set(found)
    assert [line["y"] for line in spec["lines"]] == lines


def test_each_curve_of_weak_step_time_has_its_horizontal_and_ten_per_cent(tmp_path):
    for size in (1, 2):
        cases = {
            f"weak[workload={name}]": record("weak", size, step_s * size**0.1)
            for name, step_s in (("mlp", 0.1), ("gpt", 0.02))
        }
        write(tmp_path, document(f"w{size}-r0", size, cases))
    spec = specs_of(tmp_path)["weak-step-time"]
    for series in spec["series"]:
        base = series["y"][0]
        assert [y for _, y in series["ideal"]] == [base, base]
        assert [y for _, y in series["limit"]] == pytest.approx([1.1 * base] * 2)
    assert len(spec["series"]) == 2
    assert "+10 %" in texts(draw(spec))


def solid_lines(svg):
    """Return how many solid lines of a series' width a figure has."""
    return len(re.findall(r"stroke: var\(--c0[^;]*; stroke-width: 1\.6", svg))


def test_two_sizes_are_not_joined_and_three_are(tmp_path, specs):
    two = specs_of(strong_tree(tmp_path))["strong-throughput"]
    assert solid_lines(draw(two)) < solid_lines(draw(specs["strong-throughput"]))


def test_the_bar_spans_the_interval_though_the_median_lies_outside(tmp_path):
    # Four of ten launches took twice the time: the median is 640, the mean lies below it.
    skewed = (0.1,) * 6 + (0.2,) * 4
    spec = specs_of(strong_tree(tmp_path, {1: (0.0999, 0.1001), 2: skewed}))["strong-throughput"]
    (series,) = spec["series"]
    low, high = series["intervals"][1]
    assert low < high < series["y"][1] == pytest.approx(640)
    figure = Figure()
    one_curve(figure.add_subplot(), series, 0)
    bars = [list(line.get_ydata()) for line in figure.axes[0].lines if line.get_marker() == "_"]
    assert bars[0][3:5] == [low, high]


def test_every_repeat_is_a_dot_and_a_single_launch_has_none(tmp_path, specs):
    assert len(specs["strong-throughput"]["series"][0]["dots"]) == 6
    one = specs_of(strong_tree(tmp_path, {1: (0.1,), 2: (0.06,)}))["strong-throughput"]
    assert one["series"][0]["dots"] == []
    assert one["series"][0]["intervals"] == [None, None]


def test_hostile_labels_stay_text(specs):
    hostile = "<script>alert(1)</script> $\\frac{1}{0}$ & \"'"
    spec = specs["strong-speedup"] | {"title": hostile, "desc": hostile}
    spec["series"] = [spec["series"][0] | {"label": hostile}]
    svg = draw(spec)
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg


def test_bandwidth_is_of_the_largest_size_against_message_sizes(specs):
    spec = specs["collective-bandwidth"]
    assert spec["title"] == "Collectives: busbw on 4 ranks"
    assert spec["series"][0]["y"] == [1.5, 1.5]
    assert all(low < 1.5 < high for low, high in spec["series"][0]["intervals"])
    assert {"1 KiB", "1 MiB"} <= set(texts(draw(specs["collective-bandwidth"])))


def test_a_figure_holds_six_series_and_says_which_it_leaves_out(tmp_path):
    for size in (1, 2):
        cases = {
            f"strong[{i}]": record("strong", size, 0.1, factors={"workload": "mlp", "i": i})
            for i in range(8)
        }
        write(tmp_path, document(f"w{size}-r0", size, cases))
    results = load([tmp_path])
    panel = panels(results, series_of(results.rows), 0.7, "GPU-hours")[0]
    assert [len(spec["series"]) for spec in panel["figures"]] == [6, 6, 6]
    assert "left out: mlp, i=6, mlp, i=7" in panel["notes"][0]
    assert len(panel["tables"]) == 16  # two of each series: its scaling, and what it takes
