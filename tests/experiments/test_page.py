"""The page as a browser shows it."""

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.sweeps.report.conftest import Written
from tests.sweeps.report.made_up import LISTOPS_SIZES, LRT_SIZES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT TESTED: chromium is not installed, so no page was looked at"
)

# Tells of the page inside: its width, the rows of its tables, and errors and requests that it caused.
_HARNESS = """<!doctype html><meta charset="utf-8"><pre id="found"></pre>
<iframe id="page" style="border:0;width:{width}px;height:800px" srcdoc="{page}"></iframe>
<script>
const frame = document.getElementById("page");
frame.addEventListener("load", () => {{
  const inside = frame.contentDocument, root = inside.documentElement;
  const rows = [...inside.querySelectorAll("table")].map(table => table.tBodies).map(
    bodies => [...bodies].reduce((sum, body) => sum + body.rows.length, 0));
  const wide = [...inside.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).length;
  const sizes = [...inside.querySelectorAll("p, li, td, th, dd, dt, figcaption")].map(
    each => parseFloat(frame.contentWindow.getComputedStyle(each).fontSize));
  const fetched = frame.contentWindow.performance.getEntriesByType("resource").length;
  const figures = [...inside.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().width > 250).length;
  document.getElementById("found").textContent =
    `width=${{root.scrollWidth}} rows=${{rows}} wide=${{wide}} smallest=${{Math.min(...sizes)}} ` +
    `fetched=${{fetched}} figures=${{figures}}`;
}});
</script>"""


@pytest.fixture(scope="module")
def page(written: Written) -> Path:
    return written.folder / "report.html"


def browse(file: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *quiet, "--disable-sync"]
    command += ["--enable-logging=stderr", f"--user-data-dir={profile}", *flags, file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def found(page: Path, width: int, folder: Path) -> dict[str, str]:
    harness = folder / "harness.html"
    harness.write_text(
        _HARNESS.format(width=width, page=html.escape(page.read_text(encoding="utf-8"))), encoding="utf-8"
    )
    done = browse(harness, folder / "profile", "--dump-dom")
    assert "CONSOLE" not in done.stderr, done.stderr
    match = re.search(r'<pre id="found">([^<]+)</pre>', done.stdout)
    assert match is not None, done.stdout[:500]
    return dict(part.split("=", 1) for part in match[1].split())


def test_on_a_phone_nothing_but_the_tables_moves_sideways_and_text_is_large_enough(page: Path, tmp_path: Path) -> None:
    seen = found(page, 390, tmp_path)
    assert int(seen["width"]) == 390
    assert int(seen["wide"]) == 5  # the tables, within their own boxes
    assert float(seen["smallest"]) >= 16


def test_a_browser_finds_all_rows_and_figures_and_fetches_nothing(page: Path, tmp_path: Path) -> None:
    seen = found(page, 1200, tmp_path)
    assert seen["rows"] == f"7,4,7,{len(LRT_SIZES)},{len(LISTOPS_SIZES)}"
    assert int(seen["width"]) == 1200 and int(seen["fetched"]) == 0
    assert int(seen["figures"]) == len(list(page.parent.glob("*.svg"))) == 9


def test_the_page_alone_causes_no_message_in_the_console(page: Path, tmp_path: Path) -> None:
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in done.stderr and "Table II: ListOps" in done.stdout
