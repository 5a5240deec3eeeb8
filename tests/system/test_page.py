"""The page in a real browser: Debian's chromium, with no network."""

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from data.report_samples import full_tree

from lockstep.report.compute.scaling import series_of
from lockstep.report.load.reading import load
from lockstep.report.page.content_of_page import page
from lockstep.report.page.render import html

pytestmark = [pytest.mark.browser, pytest.mark.slow]

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
NARROW = 390
# Chromium has a least window width above that of a phone, so the page is measured in a frame.
FRAME = """<!doctype html><title>waiting</title><body style="margin:0">
<iframe id="f" style="width:{width}px;height:800px;border:0" src="page.html"></iframe>
<script>
f.onload = () => {{
  const d = f.contentDocument, e = d.documentElement;
  document.title = JSON.stringify({{
    client: e.clientWidth, scroll: e.scrollWidth,
    wide: [...d.querySelectorAll("body *")].filter(
      n => !n.closest(".scroll") && !n.closest("svg") &&
        n.getBoundingClientRect().right > e.clientWidth + 1).map(n => n.tagName),
    requests: f.contentWindow.performance.getEntriesByType("resource").map(r => r.name),
    scrolls: [...d.querySelectorAll(".scroll")].filter(n => n.scrollWidth > n.clientWidth).length,
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def chromium():
    found = shutil.which("chromium")
    if found is None:
        reason = "no chromium on PATH; install the package chromium to look at the page"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    results = load([full_tree(folder / "results", device="cpu")])
    (folder / "page.html").write_text(html(page(results, series_of(results.rows), 0.7)))
    return folder


def browse(chromium, profile, url, *flags):
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *flags, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def png_size(path: Path) -> tuple[int, int]:
    """Return a PNG's width and height, which stand in its first chunk."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


@pytest.fixture(scope="module")
def of_real_launches(measured, tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    results = load([measured / "fp32"])
    (folder / "page.html").write_text(html(page(results, series_of(results.rows), 0.7)))
    return folder


def framed(chromium, folder, tmp_path, width):
    """Return what the browser says of a page in a frame of a width."""
    frame = folder / f"frame-{width}.html"
    frame.write_text(FRAME.format(width=width))
    dom = browse(
        chromium, tmp_path, frame.as_uri(), "--allow-file-access-from-files",
        "--virtual-time-budget=5000", "--dump-dom",
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    return json.loads(title.group(1).replace("&quot;", '"'))


@pytest.mark.parametrize("width", [NARROW, 768, 1280])
def test_the_page_never_scrolls_sideways(chromium, built, tmp_path, width):
    found = framed(chromium, built, tmp_path, width)
    assert found["client"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["requests"] == []
    if width == NARROW:
        assert found["scrolls"] > 0


@pytest.mark.parametrize("width", [1280, 1920])
def test_no_table_of_real_launches_hides_a_column_on_a_desktop(
    chromium, of_real_launches, tmp_path, width
):
    assert framed(chromium, of_real_launches, tmp_path, width)["scrolls"] == 0


@pytest.mark.parametrize("width", [500, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_drawn(chromium, built, tmp_path, width, dark):
    shot = tmp_path / "shot.png"
    scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    browse(
        chromium, tmp_path / "profile", (built / "page.html").as_uri(), *scheme,
        f"--window-size={width},2000", f"--screenshot={shot}",
    )  # fmt: skip
    assert png_size(shot) == (width, 2000)
    # A blank page of this size takes about 10 kB.
    assert shot.stat().st_size > 60_000


def test_the_browser_keeps_the_whole_page(chromium, built, tmp_path):
    dom = browse(chromium, tmp_path / "profile", (built / "page.html").as_uri(), "--dump-dom")
    assert "Strong scaling" in dom
    assert dom.count("<svg") == 9
    assert dom.rstrip().endswith("</html>")


def test_the_page_prints_on_a_few_sheets(chromium, built, tmp_path):
    sheet = tmp_path / "page.pdf"
    browse(
        chromium, tmp_path / "profile", (built / "page.html").as_uri(), f"--print-to-pdf={sheet}"
    )
    content = sheet.read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 12
