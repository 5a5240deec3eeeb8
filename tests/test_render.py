import base64
import dataclasses
import gzip
import json
import re
from html.parser import HTMLParser

import pytest
from data.report_samples import document, full_tree, provenance, record, strong_tree, sweep, write

from lockstep.core import formats
from lockstep.core.flags import Flag
from lockstep.report.compute import slow
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.compute.quantities import Loss, Part, Reason
from lockstep.report.compute.scaling import series_of
from lockstep.report.compute.slow import Slowest
from lockstep.report.load.imports import read
from lockstep.report.load.imports import write as write_import
from lockstep.report.load.reading import load
from lockstep.report.load.redaction import Redactor
from lockstep.report.page import content_of_page
from lockstep.report.page.content_of_page import CPU_BAND, page
from lockstep.report.page.render import embed, html
from lockstep.report.page.settings import settings_panel
from lockstep.report.words import headline

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"q\""


def data_of(*roots, command=""):
    return page(evaluate(load(roots)), 0.7, command)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return data_of(full_tree(tmp_path_factory.mktemp("tree")))


@pytest.fixture(scope="module")
def full_html(full):
    return html(full)


def section(data, key):
    return next(part for part in data["sections"] if part["id"] == key)


def cells(table):
    labels = [" ".join([c["label"], c["unit"]]).strip() for c in table["columns"]]
    return [dict(zip(labels, row, strict=True)) for row in table["rows"]]


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def elements(text):
    parser = Elements()
    parser.feed(text)
    return parser.found


# Results to data


def test_the_strong_table_by_hand(tmp_path):
    # 64 images in 0.1 s and 0.0625 s: 640 and 1024 images/s; 1e6 images cost 1/(3600*640) h * 1e6.
    table, costs, sizes = section(data_of(strong_tree(tmp_path)), "strong")["tables"]
    assert list(cells(table)[0]) == [
        "Ranks", "Launches", "Step time ms", "95 % interval ms", "Throughput images/s", "Speed-up",
        "Efficiency %", "95 % interval %",
    ]  # fmt: skip
    assert table["rows"] == [
        ["1", "2", "100", "100 to 100", "640", "1.00", "100.0", "\u2013"],
        ["2", "2", "62.5", "62.5 to 62.5", "1020", "1.60", "80.0", "80.0 to 80.0"],
    ]
    hours = ("Ranks", "Local batch", "GPU-hours per 10\u2076 images", "Extra GPU-hours %",
             "Memory GB")  # fmt: skip
    assert cells(costs) == [
        dict(zip(hours, ("1", "64", "0.434", "\u2013", "1.00"), strict=True)),
        dict(zip(hours, ("2", "32", "0.543", "25.0", "1.00"), strict=True)),
    ]
    assert table["note"] == "Ratios are relative to 1 rank at 640 images/s."
    assert [row[:2] for row in sizes["rows"]] == [
        ["Fewest device-hours", "1"], ["70 % efficiency or more", "2"], ["Shortest time", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "threshold", "kind", "size", "told_at"),
    [
        ({1: (0.1, 0.1), 2: (0.0625, 0.0626)}, 0.7, "good", 2, 2),
        ({1: (0.1, 0.1001), 2: (0.06, 0.0601), 4: (0.05, 0.0501)}, 0.7, "good", 2, 4),
        ({1: (0.1, 0.1001), 2: (0.0625, 0.0626)}, 0.9, "below", 2, 2),
        ({1: (0.1,), 2: (0.051,)}, 0.7, "open", 2, 2),
        ({4: (0.1, 0.1001)}, 0.7, "alone", 4, 4),
    ],
)
def test_a_headline_is_of_the_largest_good_size_and_tells_the_loss_where_it_begins(
    tmp_path, steps, threshold, kind, size, told_at
):
    (series,) = series_of(load([strong_tree(tmp_path, steps)]).rows)
    found = headline.judge(series, threshold)
    sizes = found.point.world_size, found.loss_point.world_size
    assert (found.kind, *sizes) == (kind, size, told_at)


def test_the_trust_of_a_headline_counts_the_points_that_the_check_warns_of(tmp_path):
    evaluation = evaluate(load([strong_tree(tmp_path, {1: (0.1, 0.1001), 2: (0.06, 0.3)})]))
    assert "launches-apart" in {finding.rule for finding in evaluation.findings}
    backed = headline.judge(evaluation.series[0], 0.7)
    assert backed.flagged == "none of its 2 points flagged, check warns about 1 point"


@pytest.mark.parametrize(("cause", "names_host"), [("exposed", False), ("imbalance", True)])
def test_the_tile_of_a_loss_gives_all_of_it_and_its_cause_not_whoever_is_slow(
    tmp_path, monkeypatch, cause, names_host
):
    (series,) = series_of(load([strong_tree(tmp_path)]).rows)
    judged = headline.judge(series, 0.7)
    assert not any(tile["label"].startswith("Lost") for tile in content_of_page.tiles(judged, ""))
    why = Reason("named", Loss(0.04, 0.02, None, ()), (Part(cause, 0.015, None),), None)
    slowest = Slowest("node7", None, 3, 3, 1.12, (1.1, 1.14), is_elsewhere=True)
    monkeypatch.setattr(slow, "slowest", lambda _: slowest)
    tiles = content_of_page.tiles(dataclasses.replace(judged, why=why), "")
    (tile,) = [one for one in tiles if one["label"].startswith("Lost")]
    assert tile["value"] == "20.0 of 40.0 ms"
    assert headline.PHRASES[cause].format(milliseconds="15.0 ms") in tile["note"]
    assert ("node7" in tile["note"]) == names_host


def test_no_ratio_is_to_another_setting_than_the_studys_or_of_a_point_that_check_forbids(tmp_path):
    for size, missing in ((1, None), (2, "fp32"), (4, None)):
        cases = {
            f"test_precision[{name}]": record(
                "precision", size, precision=name, factors={"workload": "mlp", "precision": name}
            )
            for name in ("fp32", "tf32", "bf16")
            if name != missing
        }
        write(tmp_path, document(f"w{size}-r0", size, cases))
    series = series_of(load([tmp_path]).rows)
    forbidden = next(p for one in series for p in one.points if p.world_size == 4)
    forbidden.blocked_by.append("not-measured")
    tables = settings_panel("precision", series)["tables"]
    assert [{row.get("Ratio") for row in cells(table)} for table in tables] == [
        {None}, {"1.00"}, {None},
    ]  # fmt: skip


def loader_case(workers, pinned, step_s, **ignored):
    return record(
        "loader", 1, step_s, workload="memmap", scaling=None, precision=None,
        factors={"dataset": "memmap", "num_workers": workers, "pin_memory": pinned},
        details={"ignored": ignored},
    )  # fmt: skip


def test_the_loader_names_its_knee_and_what_had_no_effect(tmp_path):
    # 64 images in 10, 5.2, 5 and 8 ms: 2 workers reach 5/5.2 = 96 % of what 4 do; 0 reach 50 %.
    no_gpu, no_workers = "there is no GPU to copy to", "there are no workers"
    cases = {
        "a": loader_case(0, True, 0.010, prefetch_factor=no_workers, pin_memory=no_gpu),
        "b": loader_case(4, False, 0.005),
        "c": loader_case(2, True, 0.0052, pin_memory=no_gpu),
        "d": loader_case(2, False, 0.008),
    }
    write(tmp_path, document("w1-r0", 1, cases))
    part = section(data_of(tmp_path), "loader")
    assert part["lead"] == [
        "For memmap on 1 rank, num_workers=2 (12\u202f300 images/s) is the smallest "
        "number of workers whose throughput is within 5 % of the best."
    ]
    for settings, why in (
        ("1 of 4 settings", f"{no_workers}: prefetch_factor."),
        ("2 of 4 settings", f"{no_gpu}: pin_memory."),
    ):
        said = f"Some options have no effect in {settings}, because {why}"
        assert said in part["tables"][0]["note"]


def test_main_effects_by_hand(full):
    # Time is 0.1 (1 + rate) (1 + momentum): 0.2 against 0.1 costs 1.1/1.2, 0.9 against 0 1/1.9.
    part = section(full, "sensitivity")
    effects = {(r["Factor"], r["Level"]): r["Effect %"] for r in cells(part["tables"][0])}
    assert effects[("learning_rate", "0.2")] == "-8.3"
    assert effects[("momentum", "0.9")] == "-47.4"
    assert "learning_rate=0.1, momentum=0.0" in part["lead"][0]


@pytest.mark.parametrize(("spread", "is_best"), [(0.001, True), (0.5, False)])
def test_a_setting_is_best_where_launches_tell_it_from_the_others(tmp_path, spread, is_best):
    sweep(tmp_path, "sensitivity", "learning_rate", {0.1: 0.1, 0.12: 0.12}, drift=spread)
    part = section(data_of(tmp_path), "sensitivity")
    assert part["lead"][0].startswith("Best setting") == is_best
    assert ("others too noisy to rank" in part["tables"][-1]["finding"]) != is_best


def test_flags_are_listed_with_their_points_which_lead_to_them(full, full_html):
    (table,) = section(full, "flags")["tables"]
    (row,) = cells(table)
    assert (row["Number"], row["Flag"], row["Points"]) == ("1", str(Flag("bf16-emulated")), "3")
    told = [one for one in cells(section(full, "precision")["tables"][0]) if one["Flags"]]
    assert [(one["precision"], one["Flags"]) for one in told] == [("bf16", "1")]
    assert full_html.count('<tr id="flag-1">') == 1
    assert full_html.count('<a href="#flag-1" aria-label="Flag 1">1</a></td>') == 3
    assert f"3 of {len(full['data']['points'])} points flagged" in full["warnings"]
    # A headline counts the points of its own series, and says so.
    assert "none of its 3 points flagged" in full["headlines"][0]["text"]


def test_gaps_name_skips_and_launches_that_never_ran(full):
    rows = cells(section(full, "gaps")["tables"][0])
    assert rows[0] == {
        "What": "every case at world size 8", "Why": "the launch was planned but has no result",
        "Launches": "w8-r0, w8-r1",
    }  # fmt: skip
    assert rows[1]["Why"] == "skipped: fp16 needs a GPU"


def test_what_was_expected_and_is_not_there_is_a_gap(tmp_path):
    expected = ["x.py::a", "x.py::b", "c"]
    failed = [{"case": "x.py::b", "reason": "rank 1 on node1: out of memory"}]
    write(tmp_path, document("w1-r0", 1, {"a": record()}, expected=expected, failed=failed,
                             complete=False))  # fmt: skip
    data = data_of(tmp_path)
    rows = cells(section(data, "gaps")["tables"][0])
    assert [row["What"] for row in rows] == ["b", "c"]
    assert rows[0]["Why"] == "failed: rank 1 on node1: out of memory"
    assert data["next"].startswith("Fix the errors of lockstep check. Begin with ")


def test_cpus_bring_the_band_and_rank_hours(tmp_path, full):
    assert full["band"] is None
    data = data_of(full_tree(tmp_path, device="cpu"))
    assert data["band"] == CPU_BAND
    text = html(data)
    assert CPU_BAND in text
    assert "Rank-hours" in text
    assert "GPU-hours" not in text


def test_facts_that_differ_between_launches_name_the_launches(tmp_path):
    for repeat, seed in ((0, 1), (1, 2)):
        facts = provenance(seed=seed)
        write(tmp_path, document(f"w1-r{repeat}", 1, {"a": record()}, provenance=facts))
    table = section(data_of(tmp_path), "provenance")["tables"][1]
    values = {row["Fact"]: row["Value"] for row in cells(table)}
    assert values["seed"] == "1 (w1-r0); 2 (w1-r1)"
    assert values["torch"] == "2.7.0"


def test_how_the_gpus_are_joined_is_shown_as_it_was_printed(tmp_path):
    text = "        GPU0    GPU1\nGPU0     X      NV18\nGPU1    NV18     X"
    facts = provenance(gpu_topology=text.split("\n"), nvlink=["GPU 0: H100 (UUID: GPU-7)"])
    write(tmp_path, document("w1-r0", 1, {"a": record()}, provenance=facts))
    data = data_of(tmp_path)
    captions = {one["caption"]: one for one in section(data, "provenance")["tables"]}
    assert captions["GPUs of launch w1-r0 by nvidia-smi topo -m"]["text"] == text
    assert f'<pre class="scroll" tabindex="0">{text}</pre>' in html(data)
    results = load([tmp_path])
    Redactor(results)
    assert "GPU-7" not in html(page(evaluate(results), 0.7))


# Imported numbers


@pytest.fixture
def imported(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "table_id,n,value,metric,unit,scaling,global_batch,steps,note\n"
        "pub,1,73.48,time,s,fixed epochs,16,18750,\npub,2,42.06,time,s,fixed epochs,32,9375,\n"
        'goal,1,12,time,h,,,,"EXPECTED, NOT MEASURED"\ngoal,2,6.5,time,h,,,,EXPECTED\n'
    )
    write_import(read([table], 50_000), [table], tmp_path / "imp")
    return tmp_path / "imp"


def test_cited_and_target_tables_carry_their_label_everywhere(imported, tmp_path):
    data = data_of(strong_tree(tmp_path / "tree"), imported)
    assert data["title"].endswith("(measured, with cited and target numbers)")
    text = html(data)
    for origin, label in (("cited", "cited, not measured"), ("target", "target")):
        block = text[text.index(f'<section id="{origin}"') :]
        block = block[: block.index("</section>")]
        # Once beside the heading and once beside each table.
        assert block.count(f'<span class="origin">{label}</span>') == 1 + block.count("<table")


# Data to HTML


def test_the_page_asks_the_network_for_nothing_and_every_link_leads_to_what_is_there(full_html):
    assert "http" not in full_html.replace("http-equiv", "")
    assert "@import" not in full_html
    assert not re.search(r"url\((?!#)", full_html)
    anchors = [a["id"] for tag, a in elements(full_html)
               if "id" in a and tag not in ("path", "clippath")]  # fmt: skip
    assert len(set(anchors)) == len(anchors)
    ids = {a["id"] for _, a in elements(full_html) if "id" in a}
    for tag, attributes in elements(full_html):
        assert tag not in {"link", "iframe", "img", "object", "embed", "base", "form"}
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        links = [attributes[name] for name in ("href", "xlink:href") if name in attributes]
        assert {link[0] for link in links} <= {"#"}
        assert {link[1:] for link in links} <= ids
    assert set(re.findall(r"url\(#([^)]+)\)", full_html)) <= ids


def test_every_number_of_a_table_is_on_the_page(full, full_html):
    tables = [table for part in full["sections"] for table in part["tables"]]
    for cell in {cell for table in tables for row in table["rows"] for cell in row}:
        assert f">{cell}</".replace("'", "&#39;") in full_html


def test_large_data_are_in_the_page_packed_and_read_back():
    data = {"points": [{"case": f"{HOSTILE}[{i}]", "step_s": i / 7} for i in range(20_000)]}
    text = embed(data)
    assert "<" not in text
    assert len(text) < len(json.dumps(data)) / 4
    assert json.loads(gzip.decompress(base64.b64decode(text))) == data
    assert embed(data) == text


def test_a_normal_campaign_stays_small_and_the_same(full, full_html):
    assert len(full_html.encode()) < 500_000
    assert html(full) == full_html


@pytest.mark.parametrize(
    ("write_number", "value", "text"),
    [
        *((formats.number, *known) for known in (
            (None, "\u2013"), (0, "0"), (9.999, "10.0"), (12345, "12\u202f300"),
            (1e-9, "1.00e-09"), (-5.5, "-5.50"),
        )),
        *((formats.trimmed, *known) for known in ((12.0, "12"), (0.31, "0.31"), (None, "\u2013"))),
        *((formats.size_of, *known) for known in ((8, "8 B"), (3 << 20, "3 MiB"))),
    ],
)  # fmt: skip
def test_numbers_are_written_with_three_digits(write_number, value, text):
    assert write_number(value) == text
