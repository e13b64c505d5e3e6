"""A model's words in every format that argus writes: strict readers must find them, and no more."""

import csv
import json
import os
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from xml.etree import ElementTree

from seeds import CAPTION

from argus_cli.captioner.wording import word
from argus_cli.output.gallery import to_gallery
from argus_cli.output.lines import LINES, Result, to_record
from argus_cli.output.records import WRITERS, printable
from argus_cli.output.sidecars import Mode, TextContent, one_line
from argus_cli.output.storyboard import to_html
from argus_cli.output.subtitles import to_srt, to_tsv, to_vtt
from argus_cli.output.xmp import NAMESPACES, XmpContent
from argus_cli.schema import Caption, Segment, VideoCaption, VideoTimings
from argus_cli.smolvlm.prompt import STYLES
from argus_cli.undecoded import escaped

CLOCK = r"\d\d:\d\d:\d\d{}\d{{3}}"


def write_and_read(data: bytes) -> None:
    """A file's name and a model's words, parted by a zero byte, through every format and back."""
    before, _, after = data.partition(b"\0")
    name = os.fsdecode(before.replace(b"\0", b"")) or "photo.jpg"
    words = after.decode("utf-8", "replace")
    caption = Caption(**vars(CAPTION) | {"path": name, "caption": words, "prompt": words})
    told = words if words.strip() else "nothing"
    film = VideoCaption(
        path=name, duration=2.0, width=16, height=12, frames=(), frames_reused=0,
        segments=(Segment(0, 1, told, -0.5), Segment(1, 2, "End.", -0.5)), summary=told,
        model="tiny", revision="abc123", dtype="float32", device="cpu", prompt=words, seed=None,
        seconds=VideoTimings(0, 0, 0),
    )  # fmt: skip
    _read_records(caption)
    _read_subtitles(film, told)
    _read_pages(name, told, caption, film)
    _read_sidecars(caption, one_line(words))
    for style in STYLES:
        word(words, style, "")


def _read_records(caption: Caption) -> None:
    for of in ("jsonl", "json"):
        record = json.loads(_written(of, caption), parse_constant=_refuse)
        record = record[0] if of == "json" else record
        assert (record["path"], record["caption"]) == (caption.path, caption.caption)
    assert _written("jsonl", caption).count("\n") == 1
    header, cells = csv.reader(StringIO(_written("csv", caption), newline=""), strict=True)
    assert len(header) == len(cells)
    cell = dict(zip(header, cells, strict=True))
    for key in ("path", "caption", "prompt"):
        assert cell[key][:1] not in tuple("=+-@\t\r\n")
        assert cell[key] in (told := escaped(getattr(caption, key)), f"'{told}")
    _, row = _written("csv", caption).encode().decode().split("\r\n", 1)
    entry = LINES["csv"](None).read(row)
    assert entry and (entry.path, entry.made_by) == (
        caption.path,
        ("tiny", "abc123", "", caption.prompt),
    )
    text = _written("text", caption)
    assert (
        text.encode()
        and text
        == f"{printable(escaped(caption.path))}\t{' '.join(printable(caption.caption).split())}\n"
    )


def _written(of: str, result: Result) -> str:
    stream = StringIO(newline="")
    writer = WRITERS[of](stream, True)
    writer.write(result)
    writer.close()
    return stream.getvalue()


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _read_subtitles(film: VideoCaption, told: str) -> None:
    cue = rf"{CLOCK} --> {CLOCK}\n(?P<text>(?!.*-->).+)\n\n"
    note = r"WEBVTT\n\nNOTE (?!.*-->).+\n\n"
    for written, begin, pattern, read in (
        (to_srt(film), "", r"\d+\n" + cue.format(",", ","), str),
        (to_vtt(film), note, cue.format(".", "."), unescape),
        (to_tsv(film), r"start\tend\ttext\n", r"\d+\t\d+\t(?P<text>[^\t\n]+)\n", str),
    ):
        assert re.fullmatch(begin + f"({re.sub('[?]P<text>', '', pattern)})*", written), written
        texts = [match["text"] for match in re.finditer(pattern, written)]
        expected = [text for text in (_bare(told), "End.") if text]
        assert [_bare(read(text)) for text in texts] == expected
        assert read is str or not any("<" in text or ">" in text for text in texts)


def _bare(text: str) -> str:
    """What of a text counts: subtitles shorten arrows, and no format keeps controls."""
    return re.sub(r"-+>", ">", "".join(printable(text).split()))


def _read_pages(name: str, told: str, caption: Caption, film: VideoCaption) -> None:
    records = [to_record(caption), to_record(film)]
    harmless = [record | {"path": "a", "caption": "a"} for record in records[:1]]
    harmless += [records[1] | {"path": "a", "summary": "a", "segments": [
        segment | {"caption": "a"} for segment in records[1]["segments"]]}]  # fmt: skip
    plain = VideoCaption(**vars(film) | {
        "path": "a", "summary": "a", "segments": (Segment(0, 1, "a", -0.5),) * 2})  # fmt: skip
    for page, twin in (
        (to_html(film, {}), to_html(plain, {})),
        (to_gallery(name, records, lambda _: "a"), to_gallery("a", harmless, lambda _: "a")),
    ):
        seen, expected = Page(page), Page(twin)
        assert seen.marks == expected.marks
        assert _bare(told) in _bare(seen.text)


class Page(HTMLParser):
    """A page's tags with the names of their attributes, and its text."""

    def __init__(self, page: str):
        super().__init__()
        self.marks: list[object] = []
        self.text = ""
        page.encode()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.marks.append((tag, [name for name, _ in attrs]))

    def handle_endtag(self, tag: str) -> None:
        self.marks.append(tag)

    def handle_comment(self, data: str) -> None:
        self.marks.append("comment")

    def handle_data(self, data: str) -> None:
        self.text += data


def _read_sidecars(caption: Caption, line: str) -> None:
    if not line:  # an empty caption gets none
        return
    contents: dict[str, Callable[[str], str | None]] = {
        "txt": lambda text: text.removesuffix("\n"),
        "xmp": lambda text: ElementTree.fromstring(text).findtext(
            ".//dc:description/rdf:Alt/rdf:li", namespaces=NAMESPACES
        ),
    }
    for kind, read in contents.items():
        content = TextContent if kind == "txt" else XmpContent
        text = content(Mode.keep, "caption").update(None, line, caption)
        assert text and read(text.encode().decode()) == line
