"""XMP sidecars: what photo managers wrote stays, what a person wrote wins, exiftool reads it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from argus_cli.errors import InputError
from argus_cli.media.sources import Source
from argus_cli.output.sidecars import Mode, Sidecars, plan
from argus_cli.schema import Caption, Timings

CAPTION = Caption(
    path="photo.jpg", caption="A dog & a <cat> run.", width=8, height=8, tiles=1, grid=(0, 0),
    image_tokens=64, prompt_tokens=80, new_tokens=5, finish_reason="stop", confidence=-0.5,
    model="tiny", revision="abc123", dtype="float32", device="cpu", style="caption",
    prompt="Describe.", seed=None,
    seconds=Timings(0, 0, 0, 0, 0),
)  # fmt: skip
RDF = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"'
DC = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'

# As Lightroom writes: values as attributes, a wrapper, and fields that argus has never heard of.
LIGHTROOM = f"""\
<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<!-- a comment before -->
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0">
 <rdf:RDF {RDF}>
  <rdf:Description rdf:about=""
    xmlns:xap="http://ns.adobe.com/xap/1.0/"
    {DC}
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"
   xap:Rating="5"
   xap:MetadataDate="2020-01-02T03:04:05+01:00"
   crs:Exposure2012="+0.35">
   <dc:subject><rdf:Bag><rdf:li>Anna</rdf:li><rdf:li>Smith, John</rdf:li></rdf:Bag></dc:subject>
   <dc:title><rdf:Alt><rdf:li xml:lang="x-default">T</rdf:li></rdf:Alt></dc:title>
   <crs:Look><rdf:Description crs:Name="Vivid"/></crs:Look><?own instruction?><!-- inside -->
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""


def described(inner: str, attributes: str = "") -> str:
    """A small packet without a wrapper."""
    about = f'rdf:about="" {DC} {attributes}'
    return f"<rdf:RDF {RDF}><rdf:Description {about}>{inner}</rdf:Description></rdf:RDF>"


def alt(*items: tuple[str, str]) -> str:
    lis = "".join(f'<rdf:li xml:lang="{lang}">{text}</rdf:li>' for lang, text in items)
    return f"<dc:description><rdf:Alt>{lis}</rdf:Alt></dc:description>"


def canonical(document: str) -> str:
    """With comments, instructions and prefixes; whatever the date of the last change."""
    document = re.sub(r'xap:MetadataDate="[^"]*"', "", document)
    return ElementTree.canonicalize(document, with_comments=True, strip_text=True)


class Photo:
    """A picture in a folder, with the metadata that it has."""

    def __init__(self, folder: Path):
        self.path, self.xmp = folder / "photo.jpg", folder / "photo.xmp"
        self.path.write_bytes(b"\xff\xd8\xff\0")
        self.source = Source(str(self.path), self.path)

    def plan(self, mode: Mode = Mode.keep, style: str = "caption") -> Sidecars:
        return plan([self.source], "xmp", mode=mode, style=style)

    def told(
        self, text: str = CAPTION.caption, mode: Mode = Mode.keep, style: str = "caption",
        model: str = "tiny",
    ) -> str:  # fmt: skip
        """The sidecar after a caption, whether it was written or kept."""
        self.plan(mode, style).write(self.source, replace(CAPTION, caption=text, model=model))
        return self.xmp.read_text("utf-8")

    def exiftool(self) -> dict[str, Any]:
        """What an independent reader sees, by family 1 group and name."""
        if not shutil.which("exiftool"):
            pytest.skip("needs exiftool (Debian: libimage-exiftool-perl)")
        command = ["exiftool", "-j", "-G1", "-struct", "-a", "-all", "-validate", "-warning"]
        done = subprocess.run([*command, str(self.xmp)], capture_output=True, check=True)
        [tags] = json.loads(done.stdout)
        return dict(tags)


@pytest.fixture
def photo(tmp_path: Path) -> Photo:
    return Photo(tmp_path)


def test_a_new_sidecar_as_exiftool_reads_it(photo: Photo) -> None:
    photo.told()
    tags = photo.exiftool()
    assert tags["XMP-dc:Description"] == CAPTION.caption
    assert tags["XMP-argus:CaptionModel"] == "tiny abc123"
    assert re.fullmatch(
        r"\d{4}(:\d\d){2} (\d\d:){2}\d\d[+-]\d\d:\d\d", tags["XMP-xmp:MetadataDate"]
    )
    assert tags["ExifTool:Validate"] == "OK"
    assert "XMP-iptcCore:AltTextAccessibility" not in tags


def test_alt_text_as_exiftool_reads_it(photo: Photo) -> None:
    photo.told(style="alt")
    tags = photo.exiftool()
    assert tags["XMP-iptcCore:AltTextAccessibility"] == CAPTION.caption
    assert tags["XMP-dc:Description"] == CAPTION.caption


def test_tags_as_exiftool_reads_them(photo: Photo) -> None:
    photo.told("dog, grass, Dog", style="tags")
    tags = photo.exiftool()
    assert tags["XMP-dc:Subject"] == ["dog", "grass"]
    assert "XMP-dc:Description" not in tags


def test_the_fields_of_others_as_exiftool_reads_them(photo: Photo) -> None:
    photo.xmp.write_text(LIGHTROOM, "utf-8")
    before = photo.exiftool()
    photo.told(style="alt")
    after = photo.exiftool()
    own = {key for key in after if key.startswith("XMP-argus:")} | {
        "XMP-dc:Description", "XMP-iptcCore:AltTextAccessibility", "XMP-xmp:MetadataDate",
    }  # fmt: skip
    assert before["XMP-xmp:Rating"] == 5 and before["XMP-crs:Exposure2012"] == "+0.35"
    volatile = {key for key in before if key.startswith(("System:", "ExifTool:"))}
    for key in before.keys() - own - volatile:
        assert after[key] == before[key]
    assert after.keys() - before.keys() <= own
    assert after["XMP-xmp:MetadataDate"] != before["XMP-xmp:MetadataDate"]
    assert after["ExifTool:Validate"] == "OK"


def test_a_merge_adds_and_changes_nothing_else(photo: Photo) -> None:
    photo.xmp.write_text(LIGHTROOM, "utf-8")
    text = photo.told()
    stripped = re.sub(r"<(dc:description|argus:\w+)[ >].*?</\1>", "", text, flags=re.DOTALL)
    assert canonical(stripped) == canonical(LIGHTROOM)
    assert text.splitlines()[:2] == LIGHTROOM.splitlines()[:2]
    assert "2020-01-02" not in text


def test_the_default_language_changes_alone(photo: Photo) -> None:
    photo.xmp.write_text(described(alt(("de", "Anna"), ("x-default", " "), ("fr", "A"))))
    text = photo.told("A dog.", mode=Mode.overwrite)
    items = re.findall(r'<rdf:li[^>]*xml:lang="([^"]*)"[^>]*>([^<]*)<', text)
    assert items == [("x-default", "A dog."), ("de", "Anna"), ("fr", "A")]


HUMAN = (
    described(alt(("x-default", "Anna"))),
    described(alt(("de", "Anna"))),
    described("<dc:description>Anna</dc:description>"),
    described("", 'dc:description="Anna"'),
)


@pytest.mark.parametrize("document", HUMAN)
def test_a_persons_words_are_kept(photo: Photo, document: str) -> None:
    photo.xmp.write_text(document)
    sidecars = photo.plan()
    assert not sidecars.todo(photo.source)
    assert sidecars.write(photo.source, CAPTION) is None
    assert photo.xmp.read_text() == document


@pytest.mark.parametrize("document", HUMAN)
def test_overwriting_is_explicit(photo: Photo, document: str) -> None:
    photo.xmp.write_text(document)
    photo.told("A dog.", mode=Mode.overwrite)
    description = photo.exiftool()["XMP-dc:Description"]
    assert description in ("A dog.", {"x-default": "A dog.", "de": "Anna"})


def test_text_that_a_person_edited_is_a_persons(photo: Photo) -> None:
    photo.xmp.write_text(photo.told("A dog.").replace(">A dog.</rdf:li>", ">Rex.</rdf:li>"))
    text = photo.told("A cat.")
    assert "Rex." in text and "A cat." not in text


def test_the_machines_own_text_is_kept_from_work_but_may_be_renewed(photo: Photo) -> None:
    photo.told("A dog.")
    assert not photo.plan().todo(photo.source)
    text = photo.told("A brown dog.", model="larger")
    assert "A dog." not in text and text.count("A brown dog.") == 2  # the text and the note
    assert "larger abc123" in text and "tiny" not in text


def test_alt_text_is_added_where_only_a_description_is(photo: Photo) -> None:
    photo.xmp.write_text(described(alt(("x-default", "Anna"))))
    assert photo.plan(style="alt").todo(photo.source)
    text = photo.told("A girl.", style="alt")
    assert not photo.plan(style="alt").todo(photo.source)
    description, alt_text = re.findall(r"<rdf:li[^>]*>([^<]*)<", text)
    assert (description, alt_text) == ("Anna", "A girl.")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode.keep, ["Anna", "Smith, John"]),
        (Mode.append, ["Anna", "Smith, John", "dog"]),
        (Mode.prepend, ["anna", "dog", "Smith, John"]),
        (Mode.overwrite, ["anna", "dog"]),
    ],
)
def test_tags_meet_keywords(photo: Photo, mode: Mode, expected: list[str]) -> None:
    photo.xmp.write_text(LIGHTROOM, "utf-8")
    photo.told("anna, dog", mode=mode, style="tags")
    assert photo.exiftool()["XMP-dc:Subject"] == expected


def test_a_list_without_tags_empties_no_keywords(photo: Photo) -> None:
    photo.xmp.write_text(LIGHTROOM, "utf-8")
    assert photo.told(", ,", mode=Mode.overwrite, style="tags") == LIGHTROOM


@pytest.mark.parametrize("style", ["caption", "tags"])
@pytest.mark.parametrize("mode", [Mode.append, Mode.prepend])
def test_adding_the_same_twice_adds_it_once(photo: Photo, mode: Mode, style: str) -> None:
    photo.xmp.write_text(LIGHTROOM, "utf-8")
    once = photo.told("a, b", mode=mode, style=style)
    assert photo.told("a, b", mode=mode, style=style) == once


def test_darktables_sidecar_is_the_one_that_is_merged(photo: Photo) -> None:
    darktable = photo.path.with_name("photo.jpg.xmp")
    darktable.write_text(described("", 'dc:format="image/jpeg"'))
    assert photo.plan().write(photo.source, CAPTION) == darktable
    assert "image/jpeg" in darktable.read_text() and not photo.xmp.exists()


ENTITY = f'<!DOCTYPE r [<!ENTITY e SYSTEM "file:///etc/hostname">]>{described("&e;")}'
LEVELS = zip("bcdefghi", (f"&{name};" for name in "abcdefgh"), strict=True)
LAUGHS = (
    '<!DOCTYPE r [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {name} "{10 * entity}">' for name, entity in LEVELS)
    + "]>"
    + described(alt(("x-default", "&i;")), 'dc:title="&i;"')
)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (described("<dc:title>"), "no well-formed XML"),
        ("Anna at the beach", "no well-formed XML"),
        ("\xff\xd8\xff\0", "no well-formed XML"),
        ("<html><body/></html>", "no XMP"),
        (f"<!DOCTYPE r SYSTEM 'http://example.org/x.dtd'>{described('')}", "DOCTYPE"),
        (ENTITY, "DOCTYPE"),
        (LAUGHS, "no well-formed XML|DOCTYPE"),
    ],
    ids=["torn", "text", "picture", "html", "dtd", "entity", "laughs"],
)  # fmt: skip
def test_what_cannot_be_merged_is_left_alone(
    photo: Photo, mode: Mode, document: str, reason: str
) -> None:
    photo.xmp.write_text(document, "latin-1")
    sidecars = photo.plan(mode)
    assert sidecars.todo(photo.source)
    with pytest.raises(InputError, match=rf"photo\.xmp: left as it is, .*({reason})"):
        sidecars.write(photo.source, CAPTION)
    assert photo.xmp.read_text("latin-1") == document


@pytest.mark.parametrize(
    ("encoding", "declaration"),
    [
        ("utf-8", '<?xml version="1.0" encoding="UTF-8"?>\n'),
        ("utf-8-sig", ""),
        ("utf-16", ""),
        ("latin-1", '<?xml version="1.0" encoding="ISO-8859-1"?>\n'),
        ("latin-1", "<?xml version='1.0' encoding='latin-1' standalone='yes'?>\n"),
        ("cp1252", '<?xml version="1.0" encoding="windows-1252"?>\n'),
        ("mac-roman", '<?xml version="1.0" encoding="macintosh"?>\n'),
        ("gb18030", '<?xml version="1.0" encoding="GB18030"?>\n'),
    ],
)
def test_any_encoding_is_read_and_becomes_utf8(
    photo: Photo, encoding: str, declaration: str
) -> None:
    document = declaration + described("<dc:creator>Jürgen</dc:creator>")
    photo.xmp.write_bytes(document.encode(encoding))
    text = photo.told("図")
    assert "Jürgen" in text and "図" in text
    assert text.startswith("<?xml") == bool(declaration)
    assert photo.exiftool()["XMP-dc:Creator"] == "Jürgen"


@pytest.mark.parametrize(
    ("encoding", "declared", "reason"),
    [
        ("latin-1", "", "no well-formed XML in UTF-8 "),
        ("latin-1", "UTF-8", "no well-formed XML in UTF-8 "),
        ("latin-1", "US-ASCII", "no well-formed XML in US-ASCII "),
        ("utf-8", "UTF-16", "no well-formed XML in UTF-16 "),
        ("utf-8", "klingon", "in an unknown encoding, klingon$"),
        ("utf-8", "base64", "in an unknown encoding, base64$"),
    ],
)
def test_a_wrong_encoding_is_told(photo: Photo, encoding: str, declared: str, reason: str) -> None:
    declaration = f'<?xml version="1.0" encoding="{declared}"?>' if declared else ""
    document = (declaration + described("<dc:creator>Jürgen</dc:creator>")).encode(encoding)
    photo.xmp.write_bytes(document)
    with pytest.raises(InputError, match=rf"photo\.xmp: left as it is, {reason}"):
        photo.plan(Mode.overwrite).write(photo.source, CAPTION)
    assert photo.xmp.read_bytes() == document


def test_a_packet_without_a_description_gets_one(photo: Photo) -> None:
    photo.xmp.write_text(f"<rdf:RDF {RDF}/>")
    photo.told()
    assert photo.exiftool()["XMP-dc:Description"] == CAPTION.caption


def test_the_picture_is_never_written(photo: Photo) -> None:
    before = photo.path.read_bytes(), photo.path.stat().st_mtime_ns
    photo.told(mode=Mode.overwrite)
    assert (photo.path.read_bytes(), photo.path.stat().st_mtime_ns) == before
