"""The pack of a proposal: node-hours, headings, numbers that are the JSON's, and LaTeX."""

import json
import os
import re
import shutil
from functools import partial

import commands
import pytest
from commands import finish
from data.report_samples import document, full_tree, record, strong_tree, write

from lockstep.cli import lockstep
from lockstep.core import formats
from lockstep.core.studies import LADDERS
from lockstep.report.load import recorded
from lockstep.report.pack import choices, texts
from lockstep.report.pack.choices import plan_node_hours
from lockstep.report.page import parts
from lockstep.report.words import lines

EUROHPC = (
    *("Testing of your code on the requested machine", "Strong and weak scalability"),
    *("Precision reported", "Time-to-solution", "System scale", "Measurement mechanism"),
    *("Memory usage", "Milestones and node hours", "Parallel programming", "I/O requirements"),
    *("Software workflow solution", "Data management"),
)
LADDER = {"type": "ladder", "runs": 3, "repeats": 3, "nodes": 10, "hours": 0.75}
NODES = [{"type": t, "runs": r, "nodes": 8, "hours": h} for t, r, h in (("a", 2, 10), ("b", 3, 8))]
LUMPS = [{"type": t, "node_hours": hours} for t, hours in (("c", 50), ("d", 100))]


run = partial(commands.run, lockstep, "report")


@pytest.mark.parametrize(
    ("given", "hours", "asked"),
    [
        ({"runs": [LADDER]}, 67.5, 67.5),
        ({"runs": [LADDER], "overhead": 0.2, "failed_share": 0.1, "charge_factor": 2}, 67.5, 180),
        ({"runs": [{"type": "x", "runs": 8, "nodes": 4, "hours": 10}]}, 320, 320),
        ({"runs": [*NODES, *LUMPS]}, 502, 502),
        ({"runs": [{"type": "x", "nodes": 2, "steps": 7200, "step_s": 0.5}]}, 2, 2),
    ],
)
def test_node_hours_are_runs_times_hours_times_nodes(given, hours, asked):
    found = plan_node_hours(choices.Work.model_validate({"schema": 1} | given), None, None)
    assert found["node_hours"] == pytest.approx(hours)
    assert found["charged"] == pytest.approx(asked)


@pytest.fixture(scope="module")
def pack(measured, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "eurohpc"
    ended = run(
        *(measured / "fp32", "--proposal", "eurohpc", "--work", "example", "--despite"),
        *("--to", folder),
    )
    assert ended.return_value == 0, ended.output
    return folder


def test_it_answers_every_heading_in_order_and_each_cell_is_a_number_of_the_json(pack, measured):
    text = (pack / "proposal.md").read_text()
    heads = re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    assert [head for head in heads if head in EUROHPC] == list(EUROHPC)
    points = json.loads((pack / "numbers.json").read_text())["points"]
    assert points == json.loads(run(measured / "fp32", "--json").stdout)["points"]
    assert min(point["all_reduce_s_low"] or 0.0 for point in points) >= 0.0
    rows = [re.split(r" \| ", line.replace("*", "").strip("| ")) for line in text.splitlines()]
    ladders = [point for point in points if point["study"] in LADDERS]
    assert {point["study"] for point in ladders} == {*LADDERS}
    for point in ladders:
        cells = (
            str(point["world_size"]), str(point["global_batch"]),
            formats.number(1e3 * point["step_s"]), formats.number(1e3 * point["mean_step_s"]),
            formats.number(point["throughput_samples_per_s"]), formats.ratio(point["speedup"]),
            formats.percent(point["parallel_efficiency"]),
        )  # fmt: skip
        assert any(set(cells) <= set(row) for row in rows)


def test_it_refuses_what_is_no_evidence_and_says_so_where_it_is_forced(measured, tmp_path, pack):
    refused = run(measured / "fp32", "--proposal", "generic", "--to", tmp_path / "none")
    assert (refused.return_value, (tmp_path / "none").exists()) == (1, False)
    kinds = {one["kind"] for one in json.loads((pack / "numbers.json").read_text())["objections"]}
    assert "cpus" in kinds
    for name in ("proposal.md", "proposal.tex"):
        assert "no evidence for a proposal" in (pack / name).read_text()


def test_one_launch_a_recording_and_the_example_are_objections(tmp_path):
    folder = strong_tree(tmp_path / "demo", {1: (0.1,), 2: (0.06,)})
    (folder / "campaign.json").write_text('{"schema": 1, "name": "demo", "recorded": {}}')
    to = tmp_path / "pack"
    run(folder, "--proposal", "eurohpc", "--work", "example", "--despite", "--to", to)
    found = json.loads((to / "numbers.json").read_text())["objections"]
    assert {"recorded", "no-interval", "example"} <= {one["kind"] for one in found}
    text = (to / "proposal.md").read_text()
    assert re.search("Student|warm-up", text) is None


def test_evidence_needs_no_force_and_the_production_row_is_the_largest_good_size(tmp_path):
    folder = strong_tree(tmp_path / "good", {1: (0.1, 0.101), 2: (0.06, 0.061), 4: (0.05, 0.051)})
    ended = run(folder, "--proposal", "generic")
    assert ended.return_value == 0, ended.output
    text = (tmp_path / "good-generic" / "proposal.md").read_text()
    assert re.search(r"^\| \*\*2\*\* \| \*\*1\*\* \| \*\*64\*\*", text, re.MULTILINE)
    assert "no evidence for a proposal" not in text
    figure = (tmp_path / "good-generic" / "figures" / "strong-efficiency.svg").read_text()
    assert (figure.count("Basis:"), "\u2026" in figure) == (1, False)
    assert run(folder, "--proposal", "generic").return_value == 0  # its own folder again
    apart = strong_tree(tmp_path / "apart", {1: (0.1, 0.14), 2: (0.05, 0.051)})
    assert "objection: launches-apart: " in run(apart, "--proposal", "generic").output
    assert "70 % efficiency or more: not shown" in " ".join(run(apart).output.split())
    with pytest.raises(ValueError, match="holds files that are not a pack"):
        run(folder, "--proposal", "generic", "--to", tmp_path)


def test_the_production_point_is_in_the_tables_and_may_be_objected_to(tmp_path):
    work, to = tmp_path / "work.toml", tmp_path / "pack"
    work.write_text("schema = 1\n[production]\nworld_size = 8\n")
    ladders = {"a": (1, 2, 4), "b": (1, 2, 4), "c": (1, 8)}
    for size, repeat in ((1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (8, 0)):
        cases = {
            f"strong[{name}]": record("strong", size, (0.1 + 0.01 * repeat) / size, workload=name)
            for name, sizes in ladders.items() if size in sizes
        }  # fmt: skip
        write(tmp_path / "c", document(f"w{size}-r{repeat}", size, cases, repeat=repeat))
    asked = ("--proposal", "generic", "--work", work, "--to", to)
    assert run(tmp_path / "c", *asked).return_value == 1
    run(tmp_path / "c", *asked, "--despite")
    (found,) = json.loads((to / "numbers.json").read_text())["objections"]
    assert (found["kind"], found["num_points"]) == ("no-interval", 1)
    assert re.search(r"^\| \*\*8\*\* \|", (to / "proposal.md").read_text(), re.MULTILINE)


def test_steps_take_the_mean_measured_on_as_many_nodes_and_are_never_extrapolated(tmp_path):
    folder = full_tree(tmp_path / "demo")
    plan = tmp_path / "work.toml"
    plan.write_text('schema = 1\n[[runs]]\ntype = "x"\nnodes = 1\nsteps = 3600\n')
    run(folder, "--proposal", "generic", "--despite", "--work", plan, "--to", tmp_path / "p")
    numbers = json.loads((tmp_path / "p" / "numbers.json").read_text())
    (line,) = numbers["budget"]["milestones"]
    point = max(
        (one for one in numbers["points"] if one["study"] == "strong"),
        key=lambda one: one["world_size"],
    )
    assert line["node_hours"] == pytest.approx(point["mean_step_s"])
    assert (line["case"], line["global_batch"]) == (point["case"], point["global_batch"])
    given = plan.read_text()
    for planned, refusal in (
        ("nodes = 64", r"production series .* was measured on \[1\] nodes, but not on 64"),
        ("predicted = true\nnodes = 1", "4 ranks were measured; remove predicted"),
    ):
        plan.write_text(given.replace("nodes = 1", planned))
        with pytest.raises(ValueError, match=refusal):
            run(folder, "--proposal", "generic", "--despite", "--work", plan)


WORK = """schema = 1
[[runs]]
type = "Ablations"
nodes = 4
steps = 1000
[[runs]]
type = "Long"
nodes = 8
steps = 9
step_s = 0.206
[statements]
io = "Our own."
introduction = "More."
"""


def test_the_text_claims_only_what_was_measured_and_its_card_fits_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "WIDTH", 60)
    (shipped, *_) = recorded.list_shipped().values()
    recorded.unpack(shipped, tmp_path / "demo")
    work, to = tmp_path / "work.toml", tmp_path / "pack"
    work.write_text(f'{WORK}[[runs]]\ntype = "Far"\nnodes = 8\nsteps = 9\npredicted = true\n')
    asked = ("--proposal", "development", "--work", work, "--despite", "--to", to)
    ended = run(tmp_path / "demo", *asked)
    assert "does not use these keys of [statements]: introduction\n" in ended.output
    assert "[statements] lacks: objectives, validity, optimisation, plan\n" in ended.output
    text = (to / "proposal.md").read_text()
    for claim in (
        "ideal step; 101 ms (94.7 to 107) of them are spent waiting for communication.",
        "The step time of Long (0.206 s, 8 nodes) is given by the applicant and was not measured",
        "predicts 206 ms from the production series, 90 % interval 153 to 278 ms", "%), below 70 %",
        "overlap is 10.8 % on 2 ranks (95 % interval 2.4 to 19.1 %), 9.2 % on 4 ranks (95 % inter",
        "scaling on 2 ranks, a step takes 340 ms", "| 0.206 (given) |", "waits 8.00 ms per",
        "use 4 ranks at global batch 64, where efficiency is 53.0 %, below 70 %.", "use 207 ms,",
    ):  # fmt: skip
        assert claim in text
    assert "No evidence: " in (to / "figures" / "strong-efficiency.svg").read_text()
    card = re.findall(r"^    (.*)$", text, re.MULTILINE)
    assert any(line.startswith("trust") for line in card)
    assert max(map(len, card)) <= 60
    assert "lockstep run" not in text


def test_an_unknown_statement_is_refused_with_the_known_ones(tmp_path):
    work = tmp_path / "work.toml"
    work.write_text('schema = 1\n[statements]\nobjectivs = "x"\n')
    folder = strong_tree(tmp_path / "good")
    with pytest.raises(ValueError, match=r"'statements.objectivs'; known keys .* objectives,"):
        run(folder, "--proposal", "eurohpc", "--work", work)


def latex(folder, name="proposal.tex"):
    if not shutil.which("pdflatex") and not os.environ.get("CI"):
        pytest.skip("pdflatex is not here")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", name]
    return finish(command, cwd=folder, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", ["development", "paper", "slides"])
def test_the_other_forms_compile(measured, tmp_path, form):
    run(
        *(measured / "fp32", "--proposal", form, "--work", "example", "--despite"),
        *("--to", tmp_path / form),
    )
    (pages,) = re.findall(r"Output written on proposal.pdf \((\d+) page", latex(tmp_path / form))
    assert (tmp_path / form / "references.bib").exists() == (form == "paper")
    has_more_figures = "figures/strong-speedup" in (tmp_path / form / "proposal.tex").read_text()
    assert has_more_figures == (form != "slides")
    # A slide a page; the longest takes two where what was measured needs more words.
    assert int(pages) in (5, 6) or form != "slides"


@pytest.mark.slow
def test_the_latex_compiles_and_what_the_form_limits_takes_two_pages(pack):
    # What a stranger's table may hold is set as it is.
    hostile = lines.tex('\\input{x} $%&#_{}^~<>|"` \u00e9 \u0142 \u4e2d \u2013 10\u2076\x00')
    text = (pack / "proposal.tex").read_text()
    (pack / "hostile.tex").write_text(text.replace("Time-to-solution", hostile))
    cells = [["[1]", "*"], ["*", "a\n\nb"], ["[x", "y"]]
    table = parts.table("A", ("B", "C"), cells, kind="table", bold=1, note="")
    section = {"heading": "A", "level": 2, "annex": False, "blocks": [table]}
    form = {"title": "A", "slides": False, "against": "", "sections": [section]}
    made = texts.write(pack / "cells", form, [], {})
    shutil.copy(made[1], pack / "cells.tex")
    for name in ("proposal.tex", "hostile.tex", "cells.tex"):
        latex(pack, name)
    assert (pack / "proposal.pdf").read_bytes().startswith(b"%PDF")
    (page,) = re.findall(r"main-ends\}\{\{.*?\}\{(\d+)\}", (pack / "proposal.aux").read_text())
    assert int(page) <= 2
