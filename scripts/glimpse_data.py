"""What glimpse learns from: clean captions, photos packed into shards, and random views of them.

Needs the photos (see models/glimpse/README.md for where they come from) and the caption files;
knows nothing of the training itself.
"""

import csv
import io
import json
import math
import random
import re
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

SIDE = 256  # of the pictures that the model looks at
_SIDES = re.compile(r"\b(left|right)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Photo:
    """A photo and what people wrote about it."""

    path: Path
    captions: tuple[str, ...]


def clean(caption: str) -> str:
    """One sentence: single spaces, a capital, a full stop, no space before punctuation."""
    text = re.sub(r"\s+", " ", caption.replace("`", "'")).strip(" .\"'")
    text = re.sub(r"\s+([,.;:!?])", r"\1", text)
    text = re.sub(r"\s+'\s?s\b", "'s", text)
    return text[:1].upper() + text[1:] + "." if text else ""


def flickr8k(labels: Path, photos: Path, split: str) -> list[Photo]:
    """The train, dev or test photos of the official split, in its order."""
    by_name: dict[str, list[str]] = {}
    with (labels / "flickr8k_captions.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            by_name.setdefault(row["image"], []).append(clean(row["caption"]))
    names = (labels / f"flickr8k_splits/Flickr_8k.{split}Images.txt").read_text().split()
    names = [name for name in names if name in by_name]  # the lists name a few without captions
    largest = sorted(photos.rglob("*.jpg"), key=lambda path: path.stat().st_size)
    paths = {path.name: path for path in largest}  # some are there in their own shape too
    if missing := [name for name in names if name not in paths]:
        raise SystemExit(f"{photos}: {len(missing)} photos are missing, {missing[0]} for one")
    return [Photo(paths[name], tuple(by_name[name])) for name in names]


def caption_files(labels: Path, more: Path) -> list[Path]:
    """Where COCO's captions are: those of val2017 and what was found besides."""
    return [labels / "coco_captions_val2017.json", *sorted(more.glob("*.*"))]


_COCO_ID = re.compile(r"\d{12}")  # in a photo's file name


def coco(captions: list[Path], photos: Path, *, held_out: bool = False) -> list[Photo]:
    """The photos below ``photos`` that people described in one of the caption files; a twentieth
    is kept apart.

    The files are what COCO publishes (annotations with image_id and caption), that list alone, or
    a CSV with these columns.
    """
    by_id: dict[int, dict[str, str]] = {}  # by its letters: some copies have lost the rest
    for path in captions:
        with path.open(newline="", encoding="utf-8") as file:
            if path.suffix == ".csv":
                rows = list(csv.DictReader(file))
            else:
                content = json.load(file)
                rows = content["annotations"] if isinstance(content, dict) else content
        for row in rows:
            text = clean(row["caption"])
            by_id.setdefault(int(row["image_id"]), {}).setdefault(_letters(text), text)
    paths = {}  # by id: the same photo may be there in several sizes
    for path in sorted(photos.rglob("*.jpg"), key=lambda path: path.stat().st_size):
        if found := _COCO_ID.search(path.stem):
            paths[int(found[0])] = path
    known = sorted(key for key in paths.keys() & by_id.keys() if (key % 20 == 0) == held_out)
    return [Photo(paths[key], tuple(by_id[key].values())) for key in known]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def sentences(labels: Path) -> list[str]:
    """Every caption sentence without its photo: Flickr30k, COCO val, MSVD, Flickr8k train."""
    found: list[str] = []
    for number in range(1, 6):
        found += (labels / f"multi30k/train.{number}.en").read_text("utf-8").splitlines()
    coco = json.loads((labels / "coco_captions_val2017.json").read_text("utf-8"))
    found += [entry["caption"] for entry in coco["annotations"]]
    for entry in json.loads((labels / "msvd/training_label.json").read_text("utf-8")):
        found += entry["caption"]
    held_out = set()
    for split in ("dev", "test"):
        held_out |= set(
            (labels / f"flickr8k_splits/Flickr_8k.{split}Images.txt").read_text().split()
        )
    with (labels / "flickr8k_captions.csv").open(newline="", encoding="utf-8") as file:
        found += [row["caption"] for row in csv.DictReader(file) if row["image"] not in held_out]
    cleaned = (clean(text) for text in found)
    return [text for text in cleaned if 15 <= len(text) <= 160 and text.isascii()]


_PLURAL = {
    "Mango": "mangoes", "Peach": "peaches", "Tomato": "tomatoes", "Potato": "potatoes",
    "Passion-Fruit": "passion fruit", "Asparagus": "asparagus", "Garlic": "garlic",
    "Ginger": "ginger", "Carrots": "carrots", "Satsumas": "satsumas", "Red-Beet": "beets",
    "Brown-Cap-Mushroom": "mushrooms", "Aubergine": "eggplants", "Cabbage": "cabbage",
}  # fmt: skip


@dataclass(frozen=True)
class Label:
    """What the photos of some folders show."""

    pattern: str  # of folders below the photos' root
    phrase: str
    sentences: tuple[str, ...]
    photos: int  # to train on at most


def labels() -> list[Label]:
    """What is in glimpse_labels.toml."""
    kinds = tomllib.loads(Path(__file__).with_name("glimpse_labels.toml").read_text("utf-8"))
    return [
        Label(pattern, phrase, tuple(kind["sentences"]), kind["photos"])
        for kind in kinds.values()
        for pattern, phrase in kind["folders"].items()
    ]


def labelled(root: Path, *, held_out: bool = False) -> list[Photo]:
    """A few photos of each label with captions made of templates; a tenth is kept apart."""
    found = []
    for label in labels():
        folders = sorted(root.glob(label.pattern))
        paths = [p for folder in folders for p in sorted(folder.rglob("*.jpg"))]
        paths = [p for p in paths if (zlib.crc32(p.name.encode()) % 10 == 0) == held_out]
        random.Random(label.pattern).shuffle(paths)
        for path in paths[: label.photos]:
            noun = label.phrase.format(**_names(path, folders))
            texts = (sentence.format(noun) for sentence in label.sentences)
            found.append(Photo(path, tuple(text[0].upper() + text[1:] for text in texts)))
    return found


def _names(path: Path, folders: list[Path]) -> dict[str, str]:
    """What the photo's folder is called, one of them and many."""
    folder = next(folder.name for folder in folders if folder in path.parents)
    name = folder.replace("-", " ").lower()
    return {"name": name, "plural": _PLURAL.get(folder, name + "s")}


# ---------------------------------------------------------------------- shards

SHARD_BYTES = 50 * 2**20
_SHORT_SIDE = 320  # larger photos are packed smaller: the model looks at SIDE px


def pack(photos: list[Photo], prefix: Path) -> None:
    """Write photos and captions as PREFIX-000.zip, PREFIX-001.zip...: each a member n.jpg and
    captions.json, under 60 MB, complete or not there."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for old in prefix.parent.glob(f"{prefix.name}-*.zip"):
        old.unlink()
    waiting, number = list(reversed(photos)), 0
    while waiting:
        shard = prefix.parent / f"{prefix.name}-{number:03}.zip"
        partial, captions, size = shard.with_suffix(".tmp"), [], 0
        with zipfile.ZipFile(partial, "w") as file:
            while waiting and size < SHARD_BYTES:
                photo = waiting.pop()
                content = _small(photo.path)
                file.writestr(f"{len(captions)}.jpg", content)
                captions.append(photo.captions)
                size += len(content)
            file.writestr("captions.json", json.dumps(captions))
        partial.replace(shard)
        number += 1


def _small(path: Path) -> bytes:
    """The photo's bytes, or those of a smaller one."""
    with Image.open(path) as picture:
        if picture.format == "JPEG" and min(picture.size) <= _SHORT_SIDE:
            return path.read_bytes()
        share = min(1.0, _SHORT_SIDE / min(picture.size))
        size = tuple(round(side * share) for side in picture.size)
        file = io.BytesIO()
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        small.save(file, "JPEG", quality=92)
    return file.getvalue()


@dataclass(frozen=True)
class PackedPhoto:
    """A photo's JPEG and what people wrote about it."""

    jpeg: bytes
    captions: tuple[str, ...]

    def open(self) -> Image.Image:
        with Image.open(io.BytesIO(self.jpeg)) as picture:
            return picture.convert("RGB")


def unpack(prefix: Path) -> list[PackedPhoto]:
    """What ``pack`` wrote, all of it in memory."""
    found = []
    for shard in sorted(prefix.parent.glob(f"{prefix.name}-*.zip")):
        with zipfile.ZipFile(shard) as file:
            captions = json.loads(file.read("captions.json"))
            found += [
                PackedPhoto(file.read(f"{number}.jpg"), tuple(texts))
                for number, texts in enumerate(captions)
            ]
    if not found:
        raise SystemExit(f"{prefix}-*.zip: not there, run the stage `pack` first")
    return found


def whole(picture: Image.Image) -> np.ndarray:
    """uint8 [SIDE, SIDE, 3] of the whole photo, squeezed, as the model sees it at work."""
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def view(
    picture: Image.Image, rng: random.Random, smallest: float = 0.5
) -> tuple[np.ndarray, bool]:
    """One random view of a photo, uint8 [SIDE, SIDE, 3], and whether it is mirrored.

    Crops of varied aspect (Flickr8k's copies are squeezed, users' photos are not) and of at least
    ``smallest`` of the photo, colours a bit off, mirrored half of the time; nothing that would make
    a caption wrong.
    """
    box = None
    if rng.random() < 0.75:
        area, aspect = rng.uniform(smallest, 1.0), math.exp(rng.uniform(-0.4, 0.4))
        width, height = min(1.0, (area * aspect) ** 0.5), min(1.0, (area / aspect) ** 0.5)
        left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
        w, h = picture.size
        box = (left * w, top * h, (left + width) * w, (top + height) * h)
    small = picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        if rng.random() < 0.5:
            small = enhance(small).enhance(rng.uniform(0.75, 1.25))
    mirrored = rng.random() < 0.5
    if mirrored:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(small), mirrored


def usable(captions: tuple[str, ...], mirrored: bool) -> tuple[str, ...]:
    """A mirrored photo loses the captions that say left or right."""
    return tuple(text for text in captions if not (mirrored and _SIDES.search(text)))
