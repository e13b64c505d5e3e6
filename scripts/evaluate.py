"""Score a model on Flickr8k as its users meet it: photos in, captions out, CIDEr and BLEU-4.

  python scripts/evaluate.py --split dev --photos data/photos/flickr8k -o runs/dev.jsonl

Metrics are pycocoevalcap's, with its tokenizer (needs Java). The last line is one JSON document.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from glimpse_data import Photo, flickr8k
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

import argus_cli


def caption_all(photos: list[Photo], options: argparse.Namespace) -> list[argus_cli.Caption]:
    captioner = argus_cli.load(options.model, dtype=options.dtype)
    results, started = [], time.monotonic()
    for number, photo in enumerate(photos, 1):
        results.append(captioner.caption(photo.path))
        if number % 100 == 0:
            print(f"{number} photos, {time.monotonic() - started:.0f} s", flush=True)
    return results


def score(photos: list[Photo], captions: list[str]) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="glimpse")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--split", choices=("train", "dev", "test"), default="dev")
    parser.add_argument("--labels", type=Path, default=Path("../shared/data/labels"))
    parser.add_argument("--photos", type=Path, default=Path("data/photos/flickr8k"))
    parser.add_argument("--limit", type=int)
    parser.add_argument("-o", "--output", type=Path, help="captions as JSON lines")
    options = parser.parse_args()
    photos = flickr8k(options.labels, options.photos, options.split)[: options.limit]
    results = caption_all(photos, options)
    captions = [result.caption for result in results]
    if options.output:
        lines = [
            json.dumps({"photo": photo.path.name, "caption": text, "confidence": result.confidence})
            for photo, text, result in zip(photos, captions, results, strict=True)
        ]
        options.output.write_text("\n".join(lines) + "\n")
    report = {
        "model": results[0].model,
        "revision": results[0].revision,
        "dtype": results[0].dtype,
        "split": options.split,
        "photos": len(photos),
        **score(photos, captions),
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
