"""Hostile folders, files and names, through the commands that read them."""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil

import commands
import pytest
from data.job_samples import small
from data.report_samples import document, full_tree, provenance, record, strong_tree, write
from job_runs import HARMFUL, STUBS, execute, made, plain, seen
from stand_ins import leave, send
from test_page import browse, chromium  # noqa: F401, a fixture
from test_render import elements

from lockstep.campaign.folder import Folder
from lockstep.core import files, journal
from lockstep.report.load import imports
from lockstep.slurm.status.sent import Results
from lockstep.slurm.submit.job import jobs, launches_of
from lockstep.slurm.submit.script import render


def lockstep(*words, cwd):
    """Run the command with no program on its PATH, and return how it ended: never a traceback."""
    env = os.environ | {"PATH": "", "PYTHONIOENCODING": "utf-8:strict"}
    ended = commands.lockstep(*words, cwd=cwd, env=env, text=False)  # with its carriage returns
    said = ended.stderr.decode()
    assert "Traceback" not in said
    assert ended.returncode in (0, 1, 2, 3), said
    assert said.count("Error: ") == (ended.returncode > 1)
    return ended.returncode, ended.stdout.decode(), said


def campaign_folder(here):
    """Make a campaign of which one job of Slurm has measured some, and ended badly."""
    folder = here / "results"
    Folder(folder).claim(small(), launches_of(small()))
    strong_tree(folder)
    send(folder, "ladder", "17", ["w1-r0"])
    leave(folder, "17", 1)
    (folder / "jobs" / "site.json").write_text(plain().model_dump_json(by_alias=True))
    return folder


@pytest.mark.parametrize("name", ["../../secret", "", "a\0b", "a\nb"])
def test_a_launch_never_leads_out_of_its_folder(name, tmp_path):
    with pytest.raises(ValueError, match="the launch name"):
        Folder(tmp_path).journal(name)
    send(tmp_path, "ladder", "17", [name])
    with pytest.raises(ValueError, match="the launch name"):
        Results(tmp_path).jobs()


def test_the_id_of_a_job_is_a_number(tmp_path):
    send(tmp_path, "ladder", "17,--all")
    with pytest.raises(ValueError, match="a line has the invalid value"):
        Results(tmp_path).jobs()


# Too much


def test_a_journal_beyond_the_limits_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.touch()
    os.truncate(path, files.LIMIT_BYTES + 1)
    with pytest.raises(ValueError, match=r"journal\.jsonl:1.* 64 MiB"):
        journal.read(path)
    os.truncate(path, journal.LIMIT_BYTES + 1)
    with pytest.raises(ValueError, match=r"journal\.jsonl.* 1024 MiB"):
        journal.read(path)


# What others wrote, on a terminal


TERMINAL = "\x1b]0;title\x07\x9b2J\r\u202e\u2028\ud800"


@pytest.mark.slow
def test_no_text_of_results_acts_on_a_terminal(tmp_path):
    case = record(workload=f"mlp{TERMINAL}", flags=[TERMINAL], factors={TERMINAL: TERMINAL})
    facts = provenance(hostname=TERMINAL)
    write(tmp_path, document("w1-r0", 1, {f"case{TERMINAL}": case}, provenance=facts))
    for options in ([], ["--csv"], ["--json"]):
        code, said, errors = lockstep("report", tmp_path, *options, cwd=tmp_path)
        assert code == 0, errors
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", said + errors)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "mlp\\x1b]0;title" in page
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", page)


@pytest.mark.slow
def test_no_name_of_a_launch_acts_on_a_terminal(tmp_path):
    folder, name = campaign_folder(tmp_path), "\x1b]0;x\x07\x1b[2J"
    send(folder, "ladder", "18", [name])
    (folder / "launches" / "w1-r0").rename(folder / "launches" / name)
    (folder / "launches" / name / "journal.jsonl").touch()
    _, shown, said = lockstep("status", folder, cwd=tmp_path)
    assert "\x1b" not in shown + said


# A page of what others wrote


PAYLOAD = (
    "\"'><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
    "<svg onload=document.title='ran'></svg><iframe srcdoc=\"<script>top.document.title='ran'"
    '</script>"></iframe><a href="javascript:document.title=\'ran\'">x</a><base href=//x.invalid>'
    "</title></style></textarea></script>--><meta http-equiv=refresh content=0;url=//x.invalid>"
    '<link rel=stylesheet href=//x.invalid>#0072b2 xmlns="x id="text_1"{{7*7}}{% raw %}&lt;'
    "script&gt;&#0;"
)
# What a reader decides by, and so refuses or leaves aside where it is something else.
KEPT = {"study", "scaling", "kind", "schema", "device", "launch", "name", "fullname", "case", "id"}


def poisoned(value, key=""):
    """Return a JSON value whose texts, and the names of what is free, are hostile."""
    if isinstance(value, dict):
        free = key in ("factors", "environment", "details", "checks", "provenance")
        return {
            f"{name}{PAYLOAD}" * free or name: poisoned(value[name], name) for name in value
        } | (value if key == "provenance" else {})
    if isinstance(value, list):
        return [poisoned(one, key) for one in value]
    return f"{value}{PAYLOAD}" if isinstance(value, str) and key not in KEPT else value


def rename_cases(content):
    """Let the cases' names be hostile, alike in all launches."""
    for one in content["benchmarks"]:
        one["name"] += PAYLOAD
    own = content["lockstep"]
    own["failed"] = [{"case": PAYLOAD, "reason": f"rank 1 on {PAYLOAD}: {PAYLOAD}"}]
    own["launch"] += PAYLOAD
    own["campaign"] = own["started"] = PAYLOAD


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory):
    here = tmp_path_factory.mktemp("hostile")
    folder = full_tree(here / "results", device="cpu")
    for path in folder.rglob("result.json"):
        content = poisoned(json.loads(path.read_text()))
        rename_cases(content)
        content["machine_info"] = content["commit_info"] = {"node": PAYLOAD, "branch": PAYLOAD}
        path.write_text(json.dumps(content))
    table = here / "t.csv"
    quoted = PAYLOAD.replace('"', '""')
    lines = [f'"{quoted}",{n},{9 / n},time,h,"{quoted}","{quoted}"' for n in (1, 2, 4)]
    table.write_text("\n".join(["table_id,n,value,metric,unit,scaling,source", *lines]))
    imports.write(imports.read([table], 50_000), [table], here / "cited")
    accounts = {"state": PAYLOAD, "raw_id": "17", "nodes": PAYLOAD, "elapsed_s": 9.0}
    row = {"id": PAYLOAD, "job": PAYLOAD, "accounting": accounts, "exit": {"lost": PAYLOAD}}
    (folder / "accounting.json").write_text(json.dumps({"schema": 2, "jobs": [row]}))
    code, _, said = lockstep("report", folder, here / "cited", cwd=here)
    assert code == 0, said
    return folder / "report.html"


# The page's own: data as text, a script that the policy names by its hash, a field for a filter.
SCRIPTS = ({}, {"type": "text/plain", "id": "data"})
FILTER = {"type": "search", "id": "filter"}


def assert_harmless(text):
    """Assert that a page has no element that could run, load or lead anywhere."""
    for tag, attributes in elements(text):
        assert tag not in ("iframe", "object", "embed", "base", "link", "img", "form")
        # The page's own field filters rows; what is typed there goes nowhere.
        assert tag != "input" or attributes == FILTER
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "script" or attributes in SCRIPTS
        assert attributes.get("http-equiv") in (None, "Content-Security-Policy")
        for name in ("href", "xlink:href", "src", "srcset", "action"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)


@pytest.mark.slow
def test_nothing_of_a_hostile_folder_becomes_markup(hostile_page):
    text = hostile_page.read_text(encoding="utf-8")
    assert text.count("onerror") > 100  # it is there, as text
    assert_harmless(text)
    assert "49" not in re.findall(
        r"\{\{7\*7\}\}|49", text.partition("<h1>")[2].partition("</h1>")[0]
    )
    found = [a["content"] for _, a in elements(text) if "http-equiv" in a]
    assert len(found) == 1
    assert found[0].startswith("default-src 'none';")
    # One script may run, the page's own, which the policy names by its hash.
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert re.findall(r"script-src ([^;]*)", found[0]) == [f"'sha256-{sha256}'"]


@pytest.mark.slow
@pytest.mark.browser
def test_no_script_of_a_hostile_folder_runs(chromium, hostile_page, tmp_path):  # noqa: F811
    text = hostile_page.read_text(encoding="utf-8")
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert len(policy.findall(text)) == 1
    page = tmp_path / "page.html"
    page.write_text(policy.sub("", text), encoding="utf-8")  # it is safe without it, too
    dom = browse(
        chromium, tmp_path / "profile", page.as_uri(), "--virtual-time-budget=5000", "--dump-dom"
    )
    assert "<title>ran</title>" not in dom
    assert "Scaling report" in re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]
    assert_harmless(dom)
    # The same in a page that escapes nothing runs, so that this would have been seen.
    runs = PAYLOAD.partition("<base")[0]
    page.write_text(f"<!doctype html><title>Scaling report</title><body>{runs}</body>")
    dom = browse(
        chromium, tmp_path / "other", page.as_uri(), "--virtual-time-budget=5000", "--dump-dom"
    )
    assert "<title>ran</title>" in dom


# Scripts of what others wrote


@pytest.mark.parametrize("text", HARMFUL)
def test_what_a_job_finds_around_it_stays_text(text, tmp_path):
    commands = tmp_path / "stubs"
    shutil.copytree(STUBS, commands)
    (commands / "scontrol").write_text(f"#!/bin/bash\nprintf '%s\\n' {shlex.quote(text)}\n")
    (job,) = jobs(small(), plain(), made(tmp_path / "results"))
    around = ("SLURM_JOB_NODELIST", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "SLURM_JOB_PARTITION")
    given = dict.fromkeys(around, text)
    ended = execute(render(job, plain()), commands, tmp_path, **given)
    assert list(tmp_path.rglob("BROKEN")) == []
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"CUDA_VISIBLE_DEVICES={text}" in seen(tmp_path, "environment")
