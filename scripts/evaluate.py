"""Score a model on photos as its users meet it: photos in, captions out.

  python scripts/evaluate.py dev -o runs/dev.jsonl         Flickr8k: CIDEr and BLEU-4
  python scripts/evaluate.py coco                          a twentieth of COCO's: the same
  python scripts/evaluate.py labelled -o runs/labelled.jsonl   is the main thing named?

dev and test are Flickr8k's; they and coco are scored by pycocoevalcap with its tokenizer (needs
Java). labelled is the tenth of the labelled photos that no training saw, as coco is. The last line
is one JSON document.
"""

import argparse
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

from glimpse_data import Photo, caption_files, coco, flickr8k, labelled
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer
from tqdm import tqdm

import argus_cli

# Words that say nothing of what is in a photo.
_EMPTY = set(
    """a an and the of in on at with to for from by up down is are be being its it his her their
    some one two three front close view photo picture inside outside pair rows lot lying while
    other there that this into near over next store sale growing shelf""".split()
)
_ALIKE = {
    "kitten": "cat", "puppy": "dog", "sea": "ocean", "beach": "ocean", "road": "street",
    "city": "building", "corridor": "hallway", "sailboat": "boat", "ship": "boat", "rock": "rocky",
    "tree": "forest", "flower": "flower", "daisies": "daisy", "strawberries": "strawberry",
}  # fmt: skip


def content(text: str) -> set[str]:
    """The words of a caption that say what is in it, in the singular."""
    words = set(re.findall(r"[a-z]+", text.lower())) - _EMPTY
    single = {word[:-1] if word.endswith("s") and len(word) > 3 else word for word in words}
    return {_ALIKE.get(word, word) for word in single}


def is_right(photo: Photo, caption: str, split: str) -> bool:
    """Of a labelled photo: its main thing is named. Of others: people used at least half of the
    caption's words for it."""
    said, known = content(caption), set[str]().union(*map(content, photo.captions))
    if split == "labelled":
        return bool(said & known)
    return len(said & known) >= len(said) / 2


def scores(photos: list[Photo], captions: list[str]) -> dict[str, float]:
    """CIDEr and BLEU-4 of captions against what people wrote."""

    def tokenized(texts: list[tuple[str, ...]]) -> dict[int, list[str]]:
        entries = {n: [{"caption": text} for text in some] for n, some in enumerate(texts)}
        return PTBTokenizer().tokenize(entries)

    truth = tokenized([photo.captions for photo in photos])
    ours = tokenized([(text,) for text in captions])
    return {
        "cider": round(float(Cider().compute_score(truth, ours)[0]), 4),
        "bleu4": round(float(Bleu(4).compute_score(truth, ours, verbose=0)[0][3]), 4),
    }


def photos_of(options: argparse.Namespace) -> list[Photo]:
    """The photos to caption; a few of each label."""
    if options.split == "coco":
        files = caption_files(options.labels, options.captions)
        return coco(files, options.photos, held_out=True)[: options.limit]
    if options.split != "labelled":
        found = flickr8k(options.labels, options.photos / "flickr8k", options.split)
        return found[: options.limit]
    by_label: dict[str, list[Photo]] = defaultdict(list)
    for photo in labelled(options.photos, held_out=True):
        by_label[photo.captions[0]].append(photo)
    return [photo for some in by_label.values() for photo in some[: options.limit or 6]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("split", choices=("dev", "test", "coco", "labelled"))
    parser.add_argument("--model", default="glimpse")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--labels", type=Path, default=Path("../shared/data/labels"))
    parser.add_argument("--photos", type=Path, default=Path("data/photos"))
    parser.add_argument("--captions", type=Path, default=Path("data/captions"), help="of COCO")
    parser.add_argument("--limit", type=int, help="photos, or photos of each label")
    parser.add_argument("-o", "--output", type=Path, help="captions as JSON lines")
    options = parser.parse_args()
    photos = photos_of(options)
    captioner = argus_cli.load(options.model, dtype=options.dtype)
    results = [captioner.caption(photo.path) for photo in tqdm(photos)]
    captions = [result.caption for result in results]
    right = [is_right(*each, options.split) for each in zip(photos, captions, strict=True)]
    if options.output:
        lines = [
            json.dumps({"photo": photo.path.name, "label": photo.captions[0], "right": told,
                        "caption": result.caption, "confidence": result.confidence})
            for photo, result, told in zip(photos, results, right, strict=True)
        ]  # fmt: skip
        options.output.write_text("\n".join(lines) + "\n")
    report = {
        "model": results[0].model,
        "revision": results[0].revision,
        "dtype": results[0].dtype,
        "split": options.split,
        "photos": len(photos),
        **(scores(photos, captions) if options.split != "labelled" else {}),
        "right": round(statistics.mean(right), 4),
        "distinct": round(len(set(captions)) / len(captions), 4),
        "words": round(statistics.mean(len(text.split()) for text in captions), 2),
        "median_seconds": round(
            statistics.median(
                r.seconds.vision + r.seconds.prefill + r.seconds.generate for r in results
            ),
            4,
        ),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
