"""The gallery: what it reads, what it shows first, what it marks, what can't break out of it."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_records import DONE, FAILED, FILM

from argus_cli.output.gallery import low_confidence, read_results, to_gallery
from argus_cli.output.lines import to_record

HOSTILE = "</script></style><img src=x onerror=alert(1)>\"'><script>alert(1)</script>\u202e"


class Page(HTMLParser):
    """Tags with their attributes, and what stands between them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def record(path: str = "a.jpg", **changes: object) -> dict[str, object]:
    return to_record(DONE) | {"path": path} | changes


def shown(*records: dict[str, object], picture: Callable[[str], str | None] = str) -> Page:
    return Page(to_gallery("out.jsonl", records, picture))


def test_the_last_record_of_an_input_counts_and_broken_lines_are_numbered(tmp_path: Path) -> None:
    records = [to_record(FAILED), record("a"), to_record(FILM), record(FAILED.path, caption="new")]
    lines = [json.dumps(each) for each in records]
    lines[1:1] = ['{"schema": 1, "pa', "", "\0", "[" * 100_000, '{"path": "x", "caption": "y"}']
    (tmp_path / "out.jsonl").write_bytes("\n".join(lines).encode() + b"\n\xff")
    read, broken = read_results(tmp_path / "out.jsonl")
    assert [(each["path"], each.get("caption")) for each in read] == [
        (FAILED.path, "new"), ("a", DONE.caption), (FILM.path, None),
    ]  # fmt: skip
    assert broken == [2, 4, 5, 6, 10]


def test_failures_come_first_and_without_their_path_twice() -> None:
    page = shown(record("good.jpg"), to_record(FAILED), to_record(FILM))
    order = [page.text.index(each) for each in ("Failed", "no picture", "bad.jpg", "good.jpg")]
    assert order == sorted(order)
    assert "1 captioned · 1 failed · 1 film · by tiny" in page.text


def test_a_picture_is_lazy_linked_and_told_to_a_screen_reader() -> None:
    page = shown(record("a b.jpg"), picture=lambda path: f"up/{path}")
    assert page.all("img") == [{"loading": "lazy", "alt": DONE.caption, "src": "up/a b.jpg"}]
    assert page.all("a") == [{"href": "up/a b.jpg"}]
    assert {DONE.caption, "a b.jpg"} <= set(page.text)


def test_a_picture_that_is_gone_is_said_to_be() -> None:
    page = shown(record(), picture=lambda path: None)
    assert not page.all("img") and "no picture there" in page.text and DONE.caption in page.text


def test_outliers_of_confidence_are_marked() -> None:
    usual = [record(f"{n}.jpg", confidence=-0.5 - n / 100) for n in range(20)]
    page = shown(*usual, record("odd.jpg", confidence=-2.0))
    assert [text for text in page.text if text.startswith("low")] == ["low confidence -2.00"]
    assert any("1 of low confidence, below -0." in text for text in page.text)
    assert [li["class"] for li in page.all("li")][-1] == "record low"


@pytest.mark.parametrize("values", [[], [-9.0], [-1.0] * 7, [-1.0] * 50])
def test_nothing_stands_out_among_few_or_equals(values: list[float]) -> None:
    assert not [value for value in values if value < low_confidence(values)]


def test_a_films_segments_are_listed() -> None:
    page = shown(to_record(FILM))
    assert "00:00-00:03 A dog." in page.text and "1 segments" not in page.text[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"confidence": "x"}, {"confidence": float("nan")}, {"confidence": 10**400},
        {"confidence": None}, {"model": None}, {"width": HOSTILE},
    ],
)  # fmt: skip
def test_odd_values_cost_nothing(changes: dict[str, object]) -> None:
    assert DONE.caption in shown(*[record(str(n), **changes) for n in range(9)]).text


def test_nothing_breaks_out_of_the_page() -> None:
    film = to_record(FILM) | {"path": HOSTILE, "summary": HOSTILE}
    film["segments"] = [{"start": 0.0, "end": 1.0, "caption": HOSTILE}, 7, {"start": 1e999}]
    failed = {"path": HOSTILE, "error": {"type": HOSTILE, "message": HOSTILE}}
    text = to_gallery(HOSTILE, [record(HOSTILE, caption=HOSTILE, model=HOSTILE), film, failed], str)
    page = Page(text)
    assert len(page.all("script")) == 1 and len(page.all("img")) == 1
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "\u202e" not in text


def test_the_policy_allows_our_script_and_style_alone() -> None:
    text = to_gallery("out.jsonl", [record()], str)
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1]  # type: ignore[index]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "http" not in policy
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
