"""What glimpse learns from: clean captions, photos, their crops, and the stem's maps of them.

Needs the photos (see models/glimpse/README.md for where they come from) and the caption files;
knows nothing of the training itself.
"""

import csv
import json
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

TILE = 512
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
    paths = {path.name: path for path in photos.rglob("*.jpg")}
    if missing := [name for name in names if name not in paths]:
        raise SystemExit(f"{photos}: {len(missing)} photos are missing, {missing[0]} for one")
    return [Photo(paths[name], tuple(by_name[name])) for name in names]


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


# What people photograph and Flickr8k lacks: folder of photos below data/photos -> (noun phrase,
# kind, photos). {} stands for the name of the folder that a photo is in.
LABELLED = {
    "pets/dataset/training_set/cats": ("a cat", "animal", 500),
    "pets/dataset/training_set/dogs": ("a dog", "animal", 150),
    "tf_flowers/*/*_train/daisy": ("daisies", "flower", 90),
    "tf_flowers/*/*_train/dandelion": ("a dandelion", "flower", 90),
    "tf_flowers/*/*_train/roses": ("roses", "flower", 90),
    "tf_flowers/*/*_train/sunflowers": ("sunflowers", "flower", 90),
    "tf_flowers/*/*_train/tulips": ("tulips", "flower", 90),
    "grocery/dataset/train/Fruit/*": ("{}", "food", 260),
    "grocery/dataset/train/Vegetables/*": ("{}", "food", 200),
    "grocery/dataset/train/Packages/*": ("cartons of {}", "food", 80),
} | {
    f"miniplaces/*/*/train/{folder}": (phrase, kind, 26)
    for folder, phrase, kind in (
        ("b/bathroom", "a bathroom", "room"), ("b/bedroom", "a bedroom", "room"),
        ("k/kitchen", "a kitchen", "room"), ("l/living_room", "a living room", "room"),
        ("d/dining_room", "a dining room", "room"), ("o/office", "an office", "room"),
        ("c/classroom", "a classroom", "room"), ("r/restaurant", "a restaurant", "room"),
        ("c/coffee_shop", "a coffee shop", "room"), ("s/supermarket", "a supermarket", "room"),
        ("b/bookstore", "a bookstore", "room"), ("c/corridor", "a corridor", "room"),
        ("b/bridge", "a bridge", "place"), ("c/coast", "a rocky coast", "place"),
        ("h/harbor", "boats in a harbor", "place"), ("h/highway", "a highway", "place"),
        ("l/lighthouse", "a lighthouse", "place"), ("m/mountain", "a mountain", "place"),
        ("p/parking_lot", "cars in a parking lot", "place"), ("r/river", "a river", "place"),
        ("r/railroad_track", "a railroad track", "place"), ("v/valley", "a green valley", "place"),
        ("s/skyscraper", "tall buildings", "place"), ("r/rainforest", "a forest", "place"),
        ("c/church/outdoor", "a church", "place"), ("f/fountain", "a fountain", "place"),
        ("c/corn_field", "a field", "place"), ("d/driveway", "a house with a driveway", "place"),
        ("i/iceberg", "an iceberg", "place"), ("d/desert/sand", "sand dunes", "place"),
    )
}  # fmt: skip

TEMPLATES = {
    "animal": ("{}.", "A close up of {}.", "A photo of {}.", "{} in front of the camera."),
    "flower": ("{}.", "A close up of {}.", "{} in bloom.", "{} growing in a garden."),
    "food": ("{}.", "{} in a store.", "{} for sale at a grocery store.", "A lot of {}."),
    "room": ("{}.", "The inside of {}.", "A view of {}.", "A photo of {}."),
    "place": ("{}.", "A view of {}.", "A photo of {}.", "A picture of {} outside."),
}
_PLURAL = {
    "Mango": "mangoes", "Peach": "peaches", "Tomato": "tomatoes", "Potato": "potatoes",
    "Passion-Fruit": "passion fruit", "Asparagus": "asparagus", "Garlic": "garlic",
    "Ginger": "ginger", "Carrots": "carrots", "Satsumas": "satsumas", "Red-Beet": "beets",
    "Brown-Cap-Mushroom": "mushrooms", "Aubergine": "eggplants", "Cabbage": "cabbage",
}  # fmt: skip


def labelled(root: Path) -> list[Photo]:
    """A few photos of each class, with captions made of templates; a tenth is kept apart."""
    found = []
    for pattern, (phrase, kind, number) in LABELLED.items():
        folders = sorted(root.glob(pattern))
        paths = [p for folder in folders for p in sorted(folder.rglob("*.jpg"))]
        paths = [p for p in paths if zlib.crc32(p.name.encode()) % 10]  # for the evaluation
        random.Random(pattern).shuffle(paths)
        for path in paths[:number]:
            named = next((f.name for f in folders if f in path.parents), "")
            plural = named.replace("-", " ").lower()
            if "Packages" not in pattern:
                plural = _PLURAL.get(named, plural + "s")
            noun = phrase.format(plural)
            texts = (template.format(noun) for template in TEMPLATES[kind])
            found.append(Photo(path, tuple(text[0].upper() + text[1:] for text in texts)))
    return found


def view(picture: Image.Image, variant: int, rng: random.Random) -> tuple[Image.Image, bool]:
    """One view of a photo at TILE px, and whether it is mirrored.

    Variant 0 is the whole photo, squeezed, as the model sees it at work, 1 its mirror image, higher
    ones are random crops of varied aspect, mirrored half of the time.
    """
    box = None
    if variant > 1:
        area = rng.uniform(0.55, 1.0)
        aspect = rng.uniform(0.75, 1.33)
        width, height = min(1.0, (area * aspect) ** 0.5), min(1.0, (area / aspect) ** 0.5)
        left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
        w, h = picture.size
        box = (left * w, top * h, (left + width) * w, (top + height) * h)
    mirrored = variant == 1 or (variant > 1 and rng.random() < 0.5)
    small = picture.resize((TILE, TILE), Image.Resampling.LANCZOS, box=box)
    return (small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else small), mirrored


def usable(captions: tuple[str, ...], mirrored: bool) -> tuple[str, ...]:
    """A mirrored photo loses the captions that say left or right."""
    return tuple(text for text in captions if not (mirrored and _SIDES.search(text)))


def views(photos: list[Photo], variant: int, start: int) -> Iterator[tuple[np.ndarray, bool]]:
    """uint8 [TILE, TILE, 3] of each photo from ``start`` on; the crop depends on the name alone."""
    for photo in photos[start:]:
        rng = random.Random(f"{photo.path.name}/{variant}")
        with Image.open(photo.path) as picture:
            small, mirrored = view(picture.convert("RGB"), variant, rng)
        yield np.asarray(small), mirrored


class FeatureFile:
    """The stem's maps of one set of photos in one variant: float16 [photos, G*G, C] on disk.

    Rows are written in order and counted beside the file, so that a stopped run goes on.
    """

    def __init__(self, path: Path, photos: int, shape: tuple[int, int]):
        self.path, self.meta = path, path.with_suffix(".json")
        mode = "r+" if path.exists() else "w+"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = np.lib.format.open_memmap(
            path, mode=mode, dtype=np.float16, shape=None if mode == "r+" else (photos, *shape)
        )
        self.mirrored: list[bool] = json.loads(self.meta.read_text()) if self.meta.exists() else []

    @property
    def complete(self) -> bool:
        return len(self.mirrored) == len(self.rows)

    def append(self, maps: np.ndarray, mirrored: list[bool]) -> None:
        start = len(self.mirrored)
        self.rows[start : start + len(maps)] = maps
        self.rows.flush()
        self.mirrored += mirrored
        partial = self.meta.with_suffix(".tmp")
        partial.write_text(json.dumps(self.mirrored))
        partial.replace(self.meta)
