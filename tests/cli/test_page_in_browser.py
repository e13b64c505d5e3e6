"""Our pages in headless Chromium: nothing broken, too wide or asked for, no foreign script."""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from conftest import draw

from argus_cli.output.gallery import to_gallery
from argus_cli.output.page import to_page
from argus_cli.output.storyboard import to_html
from argus_cli.schema import Frame, Segment, VideoCaption, VideoTimings

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
LONG = "a-very-long-file-name-without-any-break-" * 3
FILM = VideoCaption(
    path=LONG, duration=30.0, width=64, height=48,
    frames=tuple(Frame(float(n), n) for n in range(30)), frames_reused=0,
    segments=(Segment(0.0, 20.0, HOSTILE, -0.5), Segment(20.0, 30.0, "Two cats.", -0.5)),
    summary=HOSTILE, model="tiny", revision="local", dtype="float32", device="cpu",
    prompt="?", seed=None, seconds=VideoTimings(0, 0, 0),
)  # fmt: skip
WIDE = "document.documentElement.scrollWidth > innerWidth"
BROKEN = "[...document.images].filter(i => i.complete && !i.naturalWidth).length"
SHOWN = "[...document.querySelectorAll('.record')].filter(r => r.offsetHeight).length"
SAID = "document.querySelector('output').value"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def show(browser: Browser, tmp_path: Path):  # type: ignore[no-untyped-def]
    def open_page(page: str, width: int = 1200) -> Browser:
        (tmp_path / "page.html").write_text(page)
        browser.open(tmp_path / "page.html", width)
        return browser

    return open_page


def gallery(folder: Path) -> str:
    """300 pictures, of which the first has a hostile caption, the last a low confidence."""
    draw(160, 90).save(folder / "a.jpg")
    paths = [f"{LONG}{n}.jpg" for n in range(300)]
    captions = [HOSTILE, *(f"Picture {n} of a dog." for n in range(1, 300))]
    records = [
        {"path": path, "caption": caption, "confidence": -0.5}
        for path, caption in zip(paths, captions, strict=True)
    ]
    records[-1]["confidence"] = -3.0
    failed = {"path": LONG + "bad.jpg", "error": {"message": HOSTILE}}
    return to_gallery("out.jsonl", [*records, failed], lambda path: "a.jpg")


@pytest.mark.parametrize("width", [1200, 390])
def test_film_page(show, width: int) -> None:  # type: ignore[no-untyped-def]
    jpeg = BytesIO()
    draw(160, 90).save(jpeg, "JPEG")
    page = show(to_html(FILM, {frame.time: jpeg.getvalue() for frame in FILM.frames}), width)
    assert page.run(f"[{WIDE}, {BROKEN}, document.images.length]") == [False, 0, 30]
    assert page.run("document.title").startswith("a-very-long")
    assert not page.complaints()


@pytest.mark.parametrize("width", [1200, 390])
def test_gallery_page(show, tmp_path: Path, width: int) -> None:  # type: ignore[no-untyped-def]
    page = show(gallery(tmp_path), width)
    assert page.run(f"[{WIDE}, {BROKEN}, document.title]") == [False, 0, "out.jsonl"]
    assert page.run("document.querySelector('.record').className") == "record failed"
    assert not page.complaints()
    asked = {url.rpartition("/")[2] for url in page.requests()}
    assert asked <= {"page.html", "a.jpg"} and all(u.startswith("file:") for u in page.requests())


def test_more_is_shown_as_one_scrolls(show, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = show(gallery(tmp_path))
    assert page.run(SHOWN) == 200
    at = page.run("scrollTo(0, document.documentElement.scrollHeight), scrollY")
    page.run(f"new Promise(done => setInterval(() => {SHOWN} > 200 && done(), 20))")
    assert page.run(SHOWN) == 301 and page.run("scrollY") == at


def test_far_pictures_are_not_loaded_before_they_are_near(show, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = show(gallery(tmp_path))
    last = "document.images[198]"
    assert page.run(f"{last}.complete") is False
    assert page.run(f"{last}.scrollIntoView(), {last}.decode().then(() => true)")


@pytest.mark.parametrize(
    ("typed", "found"), [("PICTURE 299", 1), ("dog 29", 13), ("owned", 2), ("zebra", 0)]
)
def test_search_box(show, tmp_path: Path, typed: str, found: int) -> None:  # type: ignore[no-untyped-def]
    page = show(gallery(tmp_path))
    page.run("document.querySelector('input[type=search]').focus()")
    page.call("Input.insertText", text=typed)
    page.run(f"new Promise(done => setInterval(() => {SAID} && done(), 20))")
    assert page.run(f"[{SHOWN}, {SAID}]") == [found, f"{found} of 301 found"]


def test_only_low_confidence_from_the_keyboard(show, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = show(gallery(tmp_path))
    page.run("document.querySelector('input[type=search]').focus()")
    page.press("Tab")
    page.press(" ")
    assert page.run(f"[{SHOWN}, {SAID}]") == [1, "1 of 301 found"]
    assert page.run("[...document.querySelectorAll('h2')].filter(h => h.offsetHeight).length") == 1


def test_the_probes_see_what_is_wrong(show) -> None:  # type: ignore[no-untyped-def]
    """A page that let text through unescaped would be noticed, and the policy would stop it."""
    page = show(to_html(replace(FILM, summary="X"), {0.0: b"no jpeg"}).replace("X", HOSTILE))
    assert page.run(BROKEN) and page.complaints()
    assert page.run("document.title") != "owned"
    unguarded = to_page("t", [HOSTILE, f"<pre>{LONG * 9}</pre>"], "").replace("Content-Sec", "")
    assert show(unguarded).run(f"[document.title, {WIDE}]") == ["owned", True]
