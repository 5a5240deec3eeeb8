"""Looks: what a verdict may claim once others were asked for while launches were added."""

import json
import re
from functools import partial

import commands
import pytest
from data.report_samples import document, provenance, record, strong_tree, write

from lockstep.report import looks
from lockstep.report.check.check_cli import check as gate
from lockstep.report.compare.compare_cli import compare

STEADY = (0.1, 0.101, 0.099, 0.1002, 0.0998)
run = partial(commands.run, compare)


def asked(*paths):
    """Return the look that a comparison of folders says it is, and the error rate it is made at."""
    made = json.loads(run(*paths, "--json").stdout)
    return made["look"]["number"], round(1 - made["level"], 6)


@pytest.mark.parametrize("command", looks.SPENDING)
@pytest.mark.parametrize("planned_at", [0, 3, 40])
def test_all_looks_together_may_claim_no_more_than_one_alone(command, planned_at):
    spent = [
        looks.spend(command, [at == planned_at for at in range(number)], number == planned_at).share
        for number in range(40)
    ]
    most = sum(looks.SPENDING[command])
    assert 0 < sum(spent) <= most
    assert planned_at >= 40 or spent[planned_at] == looks.SPENDING[command][0]


def test_a_look_at_the_same_launches_is_the_same_and_one_at_more_claims_less(tmp_path):
    a, b, c = (strong_tree(tmp_path / name, {1: STEADY[:3]}) for name in "abc")
    for path in c.rglob("result.json"):  # measured at another time: launches of another question
        path.write_text(path.read_text().replace("2026-", "2027-"))
    assert [asked(a, b), asked(a, b), asked(b, a), asked(a, c)] == [(1, 0.045)] * 4
    strong_tree(b, {1: STEADY[:4]})
    assert [asked(a, b), asked(a, b)] == [(2, 0.0025)] * 2
    strong_tree(a, {1: STEADY})
    strong_tree(b, {1: STEADY})
    assert asked(a, b) == (3, 0.00125)


def test_the_look_at_the_planned_launches_keeps_its_share_after_earlier_ones(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for count, expected in ((3, (1, 0.0025)), (4, (2, 0.00125)), (5, (3, 0.045))):
        for folder in folders:
            strong_tree(folder, {1: STEADY[:count]})
            (folder / "campaign.json").write_text('{"schema": 1, "repeats": 5}')
        assert asked(*folders) == expected


@pytest.mark.parametrize("line", ["{", "[]", '{"command": "compare"}', '{"launches": [[1]]}'])
def test_a_file_of_looks_that_somebody_edited_is_refused_by_its_path(tmp_path, line):
    a, b = (strong_tree(tmp_path / name, {1: STEADY}) for name in "ab")
    (b / looks.FILE).write_text(line + "\n")
    with pytest.raises(ValueError, match=re.escape(str(b / looks.FILE))):
        run(a, b)


@pytest.mark.parametrize(("jobs", "is_machine", "verdict", "reasons"), [
    ([7] * 5, False, "not-shown", ["one-job"]),
    ([7] * 5, True, "met", []),
    ([7, 7, 7, 8, 8], False, "met", []),
    ([None] * 5, False, "met", []),  # no scheduler: the machine is what is meant
])  # fmt: skip
def test_repeats_of_one_job_meet_a_target_only_where_its_nodes_are_meant(
    tmp_path, jobs, is_machine, verdict, reasons
):
    for size, step_s in ((1, 0.1), (2, 0.055)):
        for repeat, (job, noise) in enumerate(zip(jobs, STEADY, strict=True)):
            slurm = {"SLURM_JOB_ID": str(job)} if job else {}
            case = record("strong", size, step_s * noise * 10)
            facts = {"provenance": provenance(size, slurm=slurm)}
            write(tmp_path / "c", document(f"w{size}-r{repeat}", size, {"s": case}, **facts))
    plan = {"schema": 1, "jobs": {"is_machine": is_machine}}
    (tmp_path / "c" / "campaign.json").write_text(json.dumps(plan))
    (tmp_path / "t.toml").write_text("schema = 1\nparallel_efficiency = {2 = 0.7}\n")
    done = commands.run(gate, tmp_path / "c", "--targets", tmp_path / "t.toml", "--json")
    (found,) = json.loads(done.stdout)["verdicts"]
    assert (found["verdict"], [why["kind"] for why in found["reasons"]]) == (verdict, reasons)
