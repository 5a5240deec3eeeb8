"""The page in a real browser: Debian's chromium, with no network."""

import csv
import io
import json
import re
import shutil
import subprocess
import zlib
from html import unescape
from importlib import resources

import commands
import pytest
from cluster import missing
from data.report_samples import full_tree
from test_status_page import campaign_at, look

from lockstep.report.compare.compare_cli import compare
from lockstep.report.compute.evaluation import evaluate
from lockstep.report.load import recorded
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page
from lockstep.report.page.render import html

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
NARROW = 390
# Of the browser's own clock, which runs ahead of what it unpacks and draws beside it.
PATIENCE_MS = 600_000
# Chromium has a least window width above that of a phone, so the page is looked at, and used, in a
# frame; what is found is the title of the document around it.
FRAME = """<!doctype html><title>waiting</title><body style="margin:0">
<iframe id="f" style="width:{width}px;height:800px;border:0" src="page.html"></iframe>
<script>
f.onload = async () => {{
  const w = f.contentWindow, d = f.contentDocument, e = d.documentElement;
  const all = (selector, root = d) => [...root.querySelectorAll(selector)];
  let found;
  d.querySelector("#again")?.click();  // a page of a status is to stay as it is
  try {{ found = await (async () => {{ {probe} }})(); }} catch (error) {{ found = String(error); }}
  document.title = JSON.stringify(found);
}};
</script>"""
LAYOUT = """return {
    client: e.clientWidth, scroll: e.scrollWidth, height: e.scrollHeight,
    wide: all("body *").filter(
      n => !n.closest(".scroll") && !n.closest("svg") && !n.closest("pre") &&
        n.getBoundingClientRect().right > e.clientWidth + 1).map(n => n.tagName),
    requests: w.performance.getEntriesByType("resource").map(r => r.name),
    scrolls: all(".scroll").filter(n => n.scrollWidth > n.clientWidth).length,
    figure: all("figure svg")[0].getBoundingClientRect().top,
  };"""
# What is saved and copied is kept in place of being written.
USED = """
  const saved = [], copied = [], seen = {}, press = n => n.click();
  const real = w.URL.createObjectURL;
  w.URL.createObjectURL = blob => { saved.push(blob); return real(blob); };
  w.HTMLAnchorElement.prototype.click = function () { (seen.names ??= []).push(this.download); };
  Object.defineProperty(w.navigator, "clipboard",
    { value: { writeText: async text => { copied.push(text); } } });
  const named = (label, root = d) => all("button", root).find(b => b.ariaLabel === label);
  const until = async (test) => { while (!test()) await new Promise(r => setTimeout(r, 20)); };
  const table = all("#strong table")[0], steps = () =>
    all("tbody tr", table).map(row => row.cells[2].textContent);
  const sort = all("thead button", table)[2];
  seen.unsorted = steps();
  press(sort); seen.up = steps(); seen.state = sort.closest("th").ariaSort;
  press(sort); seen.down = steps();
  press(sort); seen.again = steps();
  for (const kind of ["Markdown", "LaTeX", "CSV"]) press(named(`Copy the table as ${kind}`, table));
  await until(() => copied.length === 3);
  const input = all("#filter")[0];
  input.value = "bf16"; input.dispatchEvent(new w.Event("input"));
  seen.matches = all("tbody tr").filter(r => r.offsetHeight).map(r => r.textContent);
  input.value = ""; input.dispatchEvent(new w.Event("input"));
  seen.hidden = all("[hidden]:not(.tip)").length;
  const svg = all("figure svg")[0], tip = all(".tip")[0];
  svg.dispatchEvent(new w.KeyboardEvent("keydown", { key: "ArrowRight" }));
  seen.tips = [tip.textContent];
  svg.dispatchEvent(new w.Event("blur")); seen.gone = tip.hidden;
  all("circle[pointer-events]", svg)[1].dispatchEvent(new w.PointerEvent("pointerenter"));
  seen.tips.push(tip.textContent);
  press(named("Save all points as JSON")); await until(() => saved.length === 1);
  press(named("Save all points as CSV")); await until(() => saved.length === 2);
  press(named("Save the figure as SVG")); await until(() => saved.length === 3);
  press(named("Save the figure as PNG")); await until(() => saved.length === 5);
  seen.texts = await Promise.all(saved.slice(0, 3).map(blob => blob.text()));
  seen.png = [...new Uint8Array(await saved[4].slice(0, 4).arrayBuffer())];
  seen.svg = new DOMParser().parseFromString(seen.texts[2], "image/svg+xml")
    .querySelector("parsererror, script") === null;
  return { copied, ...seen };"""
# All that axe-core calls serious or critical, with nothing folded.
AXE = """
  for (const n of all("details")) n.open = true;
  const { violations, passes } = await w.axe.run(d, RULES);
  if (!passes.length) throw new Error("axe-core looked at nothing");
  return violations.filter(v => ["serious", "critical"].includes(v.impact)).map(
    v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]);"""
AT_WIDTHS = """
  const found = [];
  for (const width of WIDTHS) {
    f.style.width = `${width}px`;
    found.push((() => { PROBE })());
  }
  return found;"""


@pytest.fixture(scope="module")
def chromium():
    if (found := shutil.which("chromium")) is None:
        missing("no chromium on PATH; install the package chromium to look at the page")
    return found


@pytest.fixture(scope="module")
def built(measured, tmp_path_factory):
    """Return a function from a name to a folder with that page, which is made once."""
    folders = {}

    def build(name):
        if name not in folders:
            folders[name] = folder = tmp_path_factory.mktemp(name)
            if name == "compared":  # two real campaigns of another batch
                trees = [measured / each for each in ("fp32", "batch")]
                target = folder / "page.html"
                commands.run(compare, *trees, "--allow", "batch", "--html", target)
            else:
                if name == "full":
                    full_tree(folder / "results", device="cpu")
                else:
                    recorded.unpack(recorded.list_shipped()["demo"], folder / "results")
                text = html(page(evaluate(load([folder / "results"])), 0.7))
                (folder / "page.html").write_text(text)
        return folders[name]

    return build


def browse(chromium, profile, url, *flags):
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def framed(chromium, folder, tmp_path, width, probe=LAYOUT, *flags):
    """Return what a probe finds out of a page in a frame of a width."""
    frame = folder / f"frame-{width}-{zlib.crc32(probe.encode())}.html"
    frame.write_text(FRAME.format(width=width, probe=probe))
    dom = browse(
        chromium, tmp_path, frame.as_uri(), "--allow-file-access-from-files", *flags,
        f"--virtual-time-budget={PATIENCE_MS}", "--dump-dom",
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    return json.loads(unescape(title.group(1)))


@pytest.mark.parametrize("name", ["full", "demo", "compared"])
def test_a_page_never_scrolls_sideways_and_hides_no_column_on_a_desktop(
    chromium, built, tmp_path, name
):
    narrow, wide = at_widths(chromium, built(name), tmp_path, LAYOUT, NARROW, 1280)
    for width, found in ((NARROW, narrow), (1280, wide)):
        assert (found["client"], found["wide"], found["requests"]) == (width, [], [])
        assert found["scroll"] <= width
    if name == "full":
        assert narrow["scrolls"] > 0
    else:  # of real campaigns, which begin with a figure
        assert wide["scrolls"] == 0
        assert wide["figure"] < 800


def at_widths(chromium, folder, tmp_path, probe, *widths):
    """Return what a probe finds of a page at each width, from one start of the browser."""
    script = AT_WIDTHS.replace("WIDTHS", json.dumps(widths)).replace("PROBE", probe)
    return framed(chromium, folder, tmp_path, max(widths), script)


def test_what_is_sorted_filtered_copied_and_saved_are_the_data(chromium, built, tmp_path):
    folder = built("full")
    found = framed(chromium, folder, tmp_path, 1280, USED)
    assert isinstance(found, dict), found
    assert found["up"] == sorted(found["unsorted"], key=float) == found["down"][::-1]
    assert (found["state"], found["again"]) == ("ascending", found["unsorted"])
    assert found["matches"]
    assert all("bf16" in row for row in found["matches"])
    assert found["hidden"] == 0
    said = re.findall(r"<circle[^>]*><title>(.*?)</title>", (folder / "page.html").read_text())
    assert (found["tips"], found["gone"]) == ([unescape(text) for text in said[:2]], True)
    markdown, latex, as_csv = found["copied"]
    for step in found["unsorted"]:
        assert all(step in text for text in (markdown, latex, as_csv))
    points = page(evaluate(load([folder / "results"])), 0.7)["data"]["points"]
    as_json, in_csv, svg = found["texts"]
    assert json.loads(as_json)["points"] == json.loads(json.dumps(points))
    rows = list(csv.DictReader(io.StringIO(in_csv)))
    assert [float(row["step_s"]) for row in rows] == [point["step_s"] for point in points]
    assert "var(--" not in svg
    assert found["svg"]
    assert bytes(found["png"]) == b"\x89PNG"


# The dark page differs from the light one in its colours alone; tables scroll on a phone.
@pytest.mark.parametrize(
    ("shown", "width", "scheme"),
    [
        ("full", NARROW, ()),
        ("full", 1280, DARK),
        ("compared", NARROW, ()),
        ("running", NARROW, ()),
        ("running", 1280, DARK),
    ],
)
def test_axe_core_finds_nothing_serious(chromium, built, tmp_path, shown, width, scheme):
    page = status_page(tmp_path) if shown == "running" else built(shown) / "page.html"
    # The script of axe-core replaces the page's policy, which lets no other script run.
    axe = (resources.files("axe_core_python") / "axe.min.js").read_text()
    policy = re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    text, count = policy.subn(lambda _: f"<script>{axe}</script>", page.read_text())
    assert count == 1
    (tmp_path / "page.html").write_text(text)
    script = AXE.replace("RULES", '{runOnly: ["color-contrast"]}' if scheme else "{}")
    assert framed(chromium, tmp_path, tmp_path / "profile", width, script, *scheme) == []


def status_page(folder):
    look(folder, campaign_at("running", folder))
    return folder / "results" / "x" / "status.html"


def test_the_status_page_fits(chromium, tmp_path):
    status_page(tmp_path).rename(tmp_path / "page.html")
    layout = "\n".join(line for line in LAYOUT.splitlines() if "figure" not in line)
    widths = (NARROW, 1280)
    found = at_widths(chromium, tmp_path, tmp_path / "profile", layout, *widths)
    for width, one in zip(widths, found, strict=True):
        assert (one["client"], one["wide"], one["requests"]) == (width, [], [])
        assert one["scroll"] <= width
