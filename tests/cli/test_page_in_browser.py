"""The film page in headless Chromium: no script runs, nothing is broken or too wide."""

import shutil
import subprocess
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from conftest import draw

from argus_cli.output.storyboard import to_html
from argus_cli.schema import Frame, Segment, VideoCaption, VideoTimings

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
FILM = VideoCaption(
    path="a-very-long-file-name-without-any-break-" * 3, duration=30.0, width=64, height=48,
    frames=tuple(Frame(float(n), n) for n in range(30)), frames_reused=0,
    segments=(Segment(0.0, 20.0, HOSTILE, -0.5), Segment(20.0, 30.0, "Two cats.", -0.5)),
    summary=HOSTILE, model="tiny", revision="local", dtype="float32", device="cpu",
    prompt="?", seed=None, seconds=VideoTimings(0, 0, 0),
)  # fmt: skip
# Reports what the page became into its own text, where --dump-dom shows it.
PROBE = """<script>addEventListener("load", () => {
  const wide = document.documentElement.scrollWidth > innerWidth;
  const broken = [...document.images].filter(i => i.complete && !i.naturalWidth).length;
  document.body.append(`PROBE wide=${wide} broken=${broken} images=${document.images.length}
    title=${document.title}`);
});</script>"""


def in_browser(page: str, tmp_path: Path, width: int) -> str:
    path = tmp_path / "page.html"
    path.write_text(page + PROBE)
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},800", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(words, capture_output=True, text=True, timeout=100).stdout


@pytest.mark.parametrize("width", [1200, 500])  # Chromium's window is no narrower than 500
def test_page(tmp_path: Path, width: int) -> None:
    jpeg = BytesIO()
    draw(160, 90).save(jpeg, "JPEG")
    thumbnails = {frame.time: jpeg.getvalue() for frame in FILM.frames}
    dom = in_browser(to_html(FILM, thumbnails), tmp_path, width)
    assert "PROBE wide=false broken=0 images=30" in dom
    assert "title=a-very-long" in dom


def test_the_probe_sees_what_is_wrong(tmp_path: Path) -> None:
    """A page that lets text through unescaped would be noticed."""
    page = to_html(replace(FILM, summary="X"), {0.0: b"no jpeg"}).replace("X", HOSTILE)
    dom = in_browser(page, tmp_path, 500)
    assert "title=owned" in dom and "broken=0 images=1" not in dom
