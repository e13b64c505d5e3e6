"""Where argus takes in what strangers made: each door, what it may raise, files to begin from.

A door takes bytes. Whatever they are, it ends within SECONDS, the process keeps below MEMORY_BYTES,
nothing is said on the terminal, and nothing is raised but the errors that the function promises,
each in one line.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image
from seeds import CAPTION, FAILURE, XMP, checkpoint, films, pictures
from words import Page, write_and_read

from argus_cli.captioner import load
from argus_cli.captioner.template import fill
from argus_cli.errors import (
    ImageError,
    InputError,
    ModelDamaged,
    PromptTooLong,
    UsageError,
    VideoError,
)
from argus_cli.media.images import open_image
from argus_cli.media.scenes import scene_cuts
from argus_cli.media.sources import Source
from argus_cli.media.videos import frames, plan_times, probe
from argus_cli.output.gallery import read_results, to_gallery
from argus_cli.output.journal import open_journal
from argus_cli.output.lines import LINES, JsonLines
from argus_cli.output.sidecars import Mode, plan
from argus_cli.schema import Sampling
from argus_cli.zoo.manifest import models_folder, read_manifest

SECONDS = 10
MEMORY_BYTES = 2 << 30  # the whole process, torch and all
NOISY = (b"II", b"MM")  # TIFF: libtiff prints its errors, and Pillow leaves no way to stop it


@dataclass(frozen=True)
class Door:
    """One of our functions that takes bytes, with valid ones."""

    enter: Callable[[bytes], object]
    promised: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]
    is_text: bool = True


def knock(door: Door, data: bytes) -> None:
    """Enter with these bytes. Raises whatever the door shouldn't."""
    with warnings.catch_warnings(record=True) as warned, _overheard() as noise:
        warnings.simplefilter("always")
        try:
            door.enter(data)
        except door.promised as error:
            message = str(error)
            assert message.splitlines() == [message], repr(message)
    assert not warned, [str(warning.message) for warning in warned]
    assert not noise or data.startswith(NOISY), bytes(noise)


@contextmanager
def _overheard() -> Iterator[bytearray]:
    """What is said on the terminal meanwhile, by C libraries too, once it's over."""
    kept, noise = (os.dup(1), os.dup(2)), bytearray()
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        try:
            yield noise
        finally:
            for number, fd in enumerate(kept, 1):
                os.dup2(fd, number)
                os.close(fd)
        said.seek(0)
        noise += said.read(1000)


def _picture(data: bytes) -> None:
    fill("{date}", data, (1, 1))  # reads EXIF, and takes whatever that raises
    picture = open_image(data)
    assert picture.mode == "RGB" and not picture.info


def _film(data: bytes) -> None:
    info = probe(data)
    times = plan_times(info.duration, max_frames=4)
    seen = [frame.time for frame, _ in frames(data, times)]
    assert seen == sorted(set(seen))
    scene_cuts(data)


def _model(name: str, data: bytes) -> None:
    """A model's folder in which one file is what a stranger made of it."""
    folder = _models()
    path, weights = folder / name, folder / "model.safetensors"
    kept = path.read_bytes() if path.exists() else None
    if path == weights and kept is not None:  # what is made up is the header
        data += kept[_header_end(kept) :]
    if kept is None:
        weights.rename(folder / "shard.safetensors")
    path.unlink(missing_ok=True)  # nothing that is still mapped is written to
    path.write_bytes(data)
    try:
        captioner = load(folder, device="cpu", dtype="float32")
        captioner.caption(_grey(), tiles=1, sampling=Sampling(max_new_tokens=2))
    finally:
        path.unlink()
        if kept is None:
            (folder / "shard.safetensors").rename(weights)
        else:
            path.write_bytes(kept)


def _model_seeds(name: str) -> list[bytes]:
    path = _models() / name
    if not path.exists():
        return [b'{"weight_map": {"lm_head.weight": "shard.safetensors"}}']
    data = path.read_bytes()
    return [data[: _header_end(data)] if name == "model.safetensors" else data]


def _header_end(safetensors: bytes) -> int:
    return 8 + int.from_bytes(safetensors[:8], "little")


def _manifest(data: bytes) -> None:
    path = _folder() / "tiny" / "manifest.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert read_manifest(path).size_bytes >= 0


def _manifest_seeds() -> list[bytes]:
    return [
        path.read_bytes().replace(path.parent.name.encode(), b"tiny")
        for path in models_folder().glob("*/manifest.toml")
    ]


def _resume(schema: str, data: bytes) -> None:
    """Go on with an output that is there already, once more, and lose nothing of it."""
    path = _folder() / "metadata.jsonl"
    path.write_bytes(data)
    lines = LINES[schema](path)
    before = _told(lines, data)
    source = Source(str(_folder() / "new.jpg"), Path("new.jpg"), 1, 2)
    caption = replace(CAPTION, path=source.name)
    made_by = (caption.model, caption.revision, caption.style, caption.prompt)
    for state in ("new", "done"):
        journal = open_journal(path, lines)
        assert journal is not None
        if state == "new":
            journal.pending([source], made_by)
            journal.write(caption)
        else:
            assert not journal.pending([source], made_by).todo
        journal.close()
    assert before <= _told(lines, path.read_bytes())


def _told(lines: JsonLines, data: bytes) -> set[str]:
    """The names of all inputs of which a file of records says something."""
    names = set()
    for row in lines.rows(BytesIO(data)):
        with suppress(ValueError):
            if entry := lines.read(row.decode("utf-8", "surrogateescape")):
                names.add(entry.path)
    return names


def _resume_seeds(schema: str) -> list[bytes]:
    lines = LINES[schema](_folder() / "metadata.jsonl")
    results = [
        replace(CAPTION, path=str(_folder() / "a.jpg")),
        replace(CAPTION, path=str(_folder() / "b.jpg"), caption='=1+1, "two"\nlines'),
        FAILURE,
        replace(CAPTION, path=str(_folder() / "a.jpg"), caption="Once more."),
    ]
    rows = filter(None, (lines.line(result) for result in results))
    return [(lines.header + "".join(rows)).encode()]


def _report(data: bytes) -> None:
    path = _folder() / "captions.jsonl"
    path.write_bytes(data)
    records, _ = read_results(path)
    Page(to_gallery("captions", records, lambda _: "a.jpg"))


def _sidecar(extension: str, data: bytes) -> None:
    """Tell a caption beside what a file says already, twice: nothing changes any more."""
    mode, style = list(Mode)[data[:1][0] % 4 if data else 0], ("tags", "alt", "")[len(data) % 3]
    picture = Source("photo.jpg", _folder() / "photo.jpg")
    sidecar = _folder() / f"photo.{extension}"
    sidecar.write_bytes(data[1:])
    beside = plan([picture], extension, mode=mode, style=style)
    beside.todo(picture)
    beside.write(picture, CAPTION)
    once = sidecar.read_bytes()
    if extension == "xmp" and once != data[1:]:
        ElementTree.fromstring(once)
    beside.write(picture, CAPTION)
    assert sidecar.read_bytes() == once


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="argus-fuzz-"))


@cache
def _models() -> Path:
    return checkpoint(_folder() / "model")


@cache
def _grey() -> Image.Image:
    return Image.new("RGB", (8, 8), "grey")


_MODEL_FILES = {
    "config": "config.json",
    "preprocessor": "preprocessor_config.json",
    "generation": "generation_config.json",
    "tokenizer": "tokenizer.json",
    "weights": "model.safetensors",
    "shards": "model.safetensors.index.json",
}
DOORS = {
    "picture": Door(_picture, (ImageError,), lambda: [*pictures()], is_text=False),
    "film": Door(_film, (VideoError,), lambda: [*films()], is_text=False),
    **{
        door: Door(
            partial(_model, file), (ModelDamaged, PromptTooLong), partial(_model_seeds, file)
        )
        for door, file in _MODEL_FILES.items()
    },
    "manifest": Door(_manifest, (ModelDamaged,), _manifest_seeds),
    **{
        f"resume-{schema}": Door(
            partial(_resume, schema), (UsageError,), partial(_resume_seeds, schema)
        )
        for schema in LINES
    },
    "report": Door(_report, (), partial(_resume_seeds, "argus")),
    "sidecar": Door(
        partial(_sidecar, "txt"),
        (InputError,),
        lambda: [bytes([m]) + b"A cat, Anna" for m in range(4)],
    ),
    "xmp": Door(
        partial(_sidecar, "xmp"), (InputError,), lambda: [bytes([m]) + XMP for m in range(4)]
    ),
    "words": Door(
        write_and_read,
        (),
        lambda: [b"a b.jpg\0A dog & a <b>cat</b> --> ran.", b"=1\0'=1+1\n,\"\r\xe2\x80\xae]]>"],
    ),
}
