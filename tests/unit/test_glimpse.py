"""The bundled model as it is shipped."""

from pathlib import Path

import pytest

import argus_cli
from argus_cli.zoo.catalog import default_model, find, named, verify
from argus_cli.zoo.manifest import FileState

PHOTOS = Path(__file__).parents[1] / "photos"


@pytest.fixture(scope="module")
def captioner() -> argus_cli.Captioner:
    return argus_cli.load("glimpse", dtype="float32")


def test_it_is_complete_and_small() -> None:
    folder = find("glimpse")
    assert set(verify(named("glimpse")).values()) == {FileState.OK}
    assert (folder.path / "model.safetensors").stat().st_size < 60e6


def test_it_is_the_default_on_a_fresh_machine() -> None:
    folder, reason = default_model()
    assert folder.name == "glimpse" and "bundled" in reason


def test_it_sees_who_is_there(captioner: argus_cli.Captioner) -> None:
    result = captioner.caption(PHOTOS / "astronaut.jpg")
    # Who it is, it guesses; that it is a person, it sees.
    assert {"woman", "man", "girl", "boy", "person"} & set(result.caption.split())
    assert result.finish_reason == "stop" and result.tiles == 1
    cat = captioner.caption(PHOTOS / "cat.jpg")
    assert "cat" in cat.caption.lower() and result.confidence < cat.confidence < 0


def test_captions_are_sentences_and_differ(captioner: argus_cli.Captioner) -> None:
    captions = [captioner.caption(path).caption for path in sorted(PHOTOS.glob("*.jpg"))]
    assert len(set(captions)) == len(captions)
    for caption in captions:
        assert caption[0].isupper() and caption.endswith(".") and 2 <= len(caption.split()) <= 40


def test_bfloat16_captions_too(captioner: argus_cli.Captioner) -> None:
    half = argus_cli.load("glimpse", dtype="bfloat16")
    assert half.caption(PHOTOS / "astronaut.jpg").caption.endswith(".")


def test_stream_pieces_are_the_caption(captioner: argus_cli.Captioner) -> None:
    stream = captioner.stream(PHOTOS / "astronaut.jpg")
    pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces).strip() == stream.result.caption
