"""The page of a comparison: what it says first, its figures and tables."""

import json
import re
import shutil
from functools import partial

import commands
import pytest
from data.report_samples import provenance, strong_tree

from lockstep.report.compare import compared_page, outcome
from lockstep.report.compare.compare_cli import compare as command
from lockstep.report.compare.comparison import Campaign, Comparison, compare
from lockstep.report.compare.judging import Judged
from lockstep.report.load.reading import load
from lockstep.report.page.render import MARK

run = partial(commands.run, command)
SIZES = (1, 2, 4, 16)
NOISE = (1.0, 1.004, 0.996, 1.001, 0.999)


def campaign(root, factors=(1, 1, 1, 1), **facts):
    """Write a ladder, its largest size first, whose launches vary by 0.3 %."""
    steps = {
        size: tuple(factor * turn * 0.1 / size**0.9 for turn in NOISE)
        for size, factor in zip(reversed(SIZES), reversed(factors), strict=True)
    }
    return load([strong_tree(root / "results", steps, provenance=provenance(**facts))])


def page(sides):
    a, b = (Campaign(name, results, []) for name, results in sides.items())
    return compared_page.page(compare(a.results, b.results), (a, b), "lockstep compare base c0")


def test_the_document_of_an_optimisation_says_what_was_lost_tried_and_gained(measured, tmp_path):
    sides = [shutil.copytree(measured / name, tmp_path / name) for name in ("fp32", "batch")]
    done = run(*sides, "--allow", "batch", "--document", tmp_path / "made")
    assert "differs: global batch: 64 in A, 128 in B" in done.stdout
    text = (tmp_path / "made" / "proposal.md").read_text()
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings[2:6] == [
        "Lost time and its causes", "What was tried", "What it gained", "What is still lost",
    ]  # fmt: skip
    lost, tried, gained = (text.split(f"## {name}")[1].split("\n## ")[0] for name in headings[2:5])
    # Two rounds on a busy machine may be unlike the turns that show causes.
    assert "Lost to" in lost or "no cause of the lost time is shown" in lost
    assert "| global batch | 64 | 128 |" in tried
    assert gained.count("interval") >= 2
    figures = re.findall(r"figures/([a-z0-9-]+)\.svg", gained)
    assert [name.partition("-")[0] for name in figures] == ["strong", "weak"]
    svg = (tmp_path / "made" / "figures" / f"{figures[0]}.svg").read_text()
    assert ">A, fp32<" in svg and ">B, batch<" in svg
    numbers = json.loads((tmp_path / "made" / "numbers.json").read_text())
    assert {each["world_size"] for each in numbers["losses"]} <= {2}


@pytest.mark.parametrize(("verdicts", "kind"), [
    (("same", "slower", "not-enough-evidence"), "differs"),
    (("same", "same"), "same"),
    (("same", "not-enough-evidence"), "unshown"),
    (("blocked", "blocked"), "blocked"),
    (("not-enough-evidence", "blocked"), "unshown"),
])  # fmt: skip
def test_what_points_come_to_and_that_a_blocked_one_is_to_be_mended_first(verdicts, kind):
    points = [(None, Judged(0.9, None, verdict, blocked_by=("unit",))) for verdict in verdicts]
    found = outcome.outcome(points)
    assert (found.kind, found.counts.total()) == (kind, len(verdicts))
    assert found.counts[outcome.BARE] == verdicts.count("not-enough-evidence")
    if "blocked" in verdicts:
        assert "(unit)" in outcome.advice(Comparison(0.03, points, 0.05))


def test_changes_are_drawn_and_listed_by_the_number_of_ranks(tmp_path):
    changed = campaign(tmp_path / "c0", (1.0, 0.9, 1.05, 1.1), driver="575.2")
    made = page({"base": campaign(tmp_path / "base"), "c0": changed})
    items = made["figure"]["items"]
    assert [name.split()[0] for name in made["figure"]["rows"]] == [str(size) for size in SIZES]
    assert [one["kind"] for one in items] == ["same", "faster", "slower", "slower"]
    assert items[3]["value"] == pytest.approx(1 / 1.1 - 1, abs=1e-3)
    differs, strong = made["sections"][:2]
    assert [row[:3] for row in differs["tables"][0]["rows"]] == [["driver", "570.1", "575.2"]]
    assert [row[0] for row in strong["tables"][0]["rows"]] == [str(size) for size in SIZES]
    labels = [column["label"] for column in strong["tables"][0]["columns"]]
    assert {row[labels.index("Peak memory B / A")] for row in strong["tables"][0]["rows"]} == {
        "1.000"
    }
    assert [point["verdict"] for point in made["data"]["points"]] == [o["kind"] for o in items]
    (efficiency,) = strong["figures"]
    assert [one["label"] for one in efficiency["series"]] == ["A, base", "B, c0"]
    assert efficiency["series"][1]["y"][-1] == pytest.approx(16**-0.1 / 1.1, rel=1e-6)


def test_a_page_takes_the_place_of_a_comparison_alone_and_names_no_host(tmp_path):
    trees = [
        strong_tree(tmp_path / name, provenance=provenance(hostname=f"secret-{name}"))
        for name in "ab"
    ]
    target = tmp_path / "page.html"
    target.write_text(MARK)
    with pytest.raises(ValueError, match="pass --force"):
        run(*trees, "--html", target)
    run(*trees, "--html", target, "--force")
    done = run(*trees, "--html", target, "--redact", "--json")
    for text in (done.stdout, target.read_text()):
        assert "secret" not in text
        assert str(tmp_path) not in text
        assert "OMP_NUM" not in text


def test_a_page_whose_name_is_no_page_s_is_refused(tmp_path):
    a, b = (strong_tree(tmp_path / name) for name in "ab")
    with pytest.raises(ValueError, match=r"must end in \.html"):
        run(a, "--html", a / "campaign.json", b)
