"""What a style makes of an answer, and what placeholders make of a prompt."""

import os
from datetime import datetime
from pathlib import Path

import pytest
from conftest import draw
from PIL import ExifTags, Image

import argus_cli
from argus_cli.captioner.template import check_template, fill
from argus_cli.captioner.wording import ALT_LIMIT, reworded, word
from argus_cli.errors import UsageError
from argus_cli.smolvlm.prompt import STYLES

PROMPT = "Describe this image in one sentence."
TRIMMED = [
    ("The image shows a dog on a beach.", "A dog on a beach."),
    ("This image depicts two men talking.", "Two men talking."),
    ("In this image, we can see a dog.", "A dog."),
    ("In the photo we can see a dog.", "A dog."),
    ("In this picture, a dog runs.", "A dog runs."),
    ("In the image, there is a cat.", "There is a cat."),
    ("A photo of a cat asleep.", "A cat asleep."),
    ("an image of the sea", "The sea"),
    ("The picture features the Eiffel Tower.", "The Eiffel Tower."),
    ("This is a photo. In it, a dog.", "This is a photo. In it, a dog."),
    (f"{PROMPT} The image shows a red car.", "A red car."),
    (f"{PROMPT.upper()}\nA red car.", "A red car."),
]
UNTOUCHED = [
    "A dog runs through the grass.",
    "The image shows.",
    "The image shows that it rains.",
    "The image shows how to fold a paper crane.",
    "The image shows dogs.",
    "The photographer looks at a picture of a dog.",
    "In this imagery, nothing moves.",
    "A photographic plate lies on a table.",
    "İstanbul: the image shows a mosque.",
    "The image",
    "In this image, ",
]


@pytest.mark.parametrize(("text", "expected"), TRIMMED)
def test_boilerplate_and_echo_are_trimmed(text: str, expected: str) -> None:
    assert word(text, "caption", PROMPT) == expected


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_is_no_boilerplate_stays(text: str) -> None:
    assert word(text, "caption", PROMPT) == text.strip()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("text", [*UNTOUCHED, *(text for text, _ in TRIMMED), "", "  \n", PROMPT])
def test_pieces_make_up_the_text_however_it_was_cut(text: str, style: str) -> None:
    for size in (1, 3, 1000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert "".join(reworded(pieces, style, PROMPT)).strip() == word(text, style, PROMPT)


@pytest.mark.parametrize(("style", "live"), [("caption", True), ("detailed", True), ("alt", False)])
def test_text_is_held_back_only_while_it_may_change(style: str, live: bool) -> None:
    pieces = ["The", " image", " shows", " a", " dog", " and", " a", " cat."]
    assert len(list(reworded(pieces, style, PROMPT))) == (3 if live else 1)
    assert len(list(reworded(["A", " dog", " runs."], style, PROMPT))) == (2 if live else 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog. A cat.", "A dog."),
        ("The image shows a dog. It runs.", "A dog."),
        ("Dr. Smith meets J. R. Ewing at St. Mary. They talk.",
         "Dr. Smith meets J. R. Ewing at St. Mary."),
        ("A man says \"Stop!\" The car stops.", "A man says \"Stop!\""),
        ("A room of 3.5 by 2.5 metres", "A room of 3.5 by 2.5 metres"),
        ("A dog\non the\ngrass. Yes.", "A dog on the grass."),
    ],
)  # fmt: skip
def test_short_is_one_sentence(text: str, expected: str) -> None:
    assert word(text, "short", PROMPT) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog runs", "A dog runs."),
        ("Alt text: A dog runs!", "A dog runs."),
        ('"A dog runs."', "A dog runs."),
        ('A sign says "Stop."', 'A sign says "Stop".'),
        ("Black and white photo of a man. He smiles.", "A man."),
        ("A close-up image of a flower", "A flower."),
        ("A man holding a picture of a dog.", "A man holding a picture of a dog."),
        ("", ""),
        ("...", ""),
    ],
)
def test_alt_is_what_a_screen_reader_needs(text: str, expected: str) -> None:
    assert word(text, "alt", PROMPT) == expected


CLAUSES = (
    "A man in a red coat stands beside a very long wooden dinner table full of bread, "
    + "cheese " * 30
)
WORDS = "somebody " * 15 + "walks the dog " * 10


@pytest.mark.parametrize("text", [CLAUSES, WORDS, "A" * 149 + ".", "A " * 90, "x" * 149 + " y"])
def test_long_alt_is_cut_between_words(text: str) -> None:
    alt = word(text, "alt", PROMPT)
    assert len(alt) <= ALT_LIMIT and alt.endswith(".") and not alt.endswith("..")
    if " " in alt:
        assert text.split()[: len(alt.split())] == alt[:-1].split() or alt[:-1] in text


def test_alt_prefers_to_end_with_a_clause_and_never_on_an_article() -> None:
    assert word(CLAUSES, "alt", PROMPT).endswith("full of bread.")
    assert not word(WORDS, "alt", PROMPT).endswith("the.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dog, grass, Dog, sky.", "dog, grass, sky"),
        ("Tags: a dog; the grass, and sky", "dog, grass, sky"),
        ("- Dog\n- Green grass\n* sky", "dog, green grass, sky"),
        ("1. Dog\n2. Sky\n10) Sun", "dog, sky, sun"),
        ("• dog • cat · well-known face", "dog, cat, well-known face"),
        ("#dog, #cat,, ,", "dog, cat"),
        ("", ""),
        ("A dog runs.", "dog runs"),
    ],
)
def test_tags_are_a_plain_list(text: str, expected: str) -> None:
    assert word(text, "tags", PROMPT) == expected


@pytest.fixture(scope="module")
def captioner(tiny_folder: Path) -> argus_cli.Captioner:
    return argus_cli.load(tiny_folder, dtype="float32")


def saying(captioner: argus_cli.Captioner, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Make the model say ``text``: its tokens, whatever it sees."""
    from argus_cli.captioner import core
    from argus_cli.generation import Step

    ids = [*captioner.tokenizer.encode([text]), captioner.config.eos_token_ids[0]]
    monkeypatch.setattr(core, "generate", lambda *_: (Step(token, -0.5) for token in ids))


def test_a_style_words_the_record_and_the_stream(captioner, monkeypatch, photo) -> None:  # type: ignore[no-untyped-def]
    saying(captioner, monkeypatch, " The image shows a dog. It runs")
    stream = captioner.stream(photo, style="alt")
    assert "".join(stream) == stream.result.caption == "A dog."
    assert stream.result.prompt == STYLES["alt"]
    assert captioner.caption(photo).caption == "A dog. It runs"


def test_words_asked_for_by_a_prompt_of_ones_own_are_raw(captioner, monkeypatch, photo) -> None:  # type: ignore[no-untyped-def]
    saying(captioner, monkeypatch, " The image shows a dog. ")
    assert captioner.caption(photo, prompt="What?").caption == "The image shows a dog."
    assert captioner.caption(photo, prompt="What?", style="tags").caption.startswith("The image")


def test_placeholders_are_filled_for_the_picture(captioner, photo) -> None:  # type: ignore[no-untyped-def]
    os.utime(photo, (0, datetime(2021, 3, 4, 12).timestamp()))
    result = captioner.caption(photo, prompt="{name} {stem} {folder} {width}x{height} {date}?")
    assert result.prompt == f"photo.jpg photo {photo.parent.name} 90x60 2021-03-04?"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ('Answer as {"a": {"b": 1}}', 'Answer as {"a": {"b": 1}}'),
        ('{"size": {width}, "c": {}}', '{"size": 90, "c": {}}'),
        ("{{name}} is {name}", "{name} is photo.jpg"),
        ('{{"w": {{"x": {width}}}}}', '{"w": {"x": 90}}'),
        ("a lone { or }", "a lone { or }"),
        ("{ name } {0} {name!r}", "{ name } {0} {name!r}"),
    ],
)
def test_braces_that_hold_no_word_are_text(prompt: str, expected: str, photo: Path) -> None:
    check_template(prompt)
    assert fill(prompt, photo, (90, 60)) == expected


def test_what_a_file_is_called_is_not_filled_again(tmp_path: Path) -> None:
    assert fill("{name}", tmp_path / "{width}{{.jpg", (9, 6)) == "{width}{{.jpg"
    assert fill("{name}", tmp_path / "\udcc3\udca9\udcff.jpg", (9, 6)) == "é\ufffd.jpg"


def test_date_is_the_day_it_was_taken(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2019:08:07 23:59:59"
    path = tmp_path / "photo.jpg"
    draw(90, 60).save(path, exif=exif)
    assert fill("{date}", path, (90, 60)) == "2019-08-07"
    assert fill("{date}", path.read_bytes(), (90, 60)) == "2019-08-07"


def test_a_camera_without_a_clock_leaves_the_date_of_the_file(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "0000:00:00 00:00:00"
    path = tmp_path / "photo.jpg"
    draw(90, 60).save(path, exif=exif)
    os.utime(path, (0, datetime(2021, 3, 4, 12).timestamp()))
    assert fill("{date}", path, (90, 60)) == "2021-03-04"


def test_stdin_has_a_name_and_nothing_else() -> None:
    with open(os.devnull, "rb") as stream:
        piped = type("Piped", (), {"name": "<stdin>", "read": stream.read})()
        assert fill("{name}|{stem}|{folder}|{date}", piped, (1, 1)) == "stdin|stdin||"
    assert fill("{name}|{folder}", b"", (1, 1)) == "|"


def test_a_name_that_is_no_utf8_can_be_asked_about(captioner, photo) -> None:  # type: ignore[no-untyped-def]
    odd = photo.rename(photo.with_name(os.fsdecode(b"caf\xe9.jpg")))
    assert captioner.caption(odd, prompt="{name}?").prompt == "caf\ufffd.jpg?"


def test_a_spelling_of_a_special_token_in_a_name_is_text(captioner, photo) -> None:  # type: ignore[no-untyped-def]
    odd = photo.rename(photo.with_name("<image>.jpg"))
    result = captioner.caption(odd, prompt="{stem}")
    assert result.prompt_tokens > captioner.caption(odd, prompt="").prompt_tokens + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "What is {colour}?"}, r"--prompt: \{colour\} is no placeholder; there are "
         r"\{name\} .* \{date\}, and \{\{colour\}\} stands"),
        ({"style": "poem"}, "--style poem: not one of caption, short"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_before_any_model(changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        argus_cli.Request(**changes)
