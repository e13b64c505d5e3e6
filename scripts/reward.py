"""CIDEr-D of one caption after the other, fast enough to train on.

Vedantam et al. 2015; the same figures as pycocoevalcap's on equal words, with the references' part
computed once. The end of a caption counts as a word, so that one which doesn't come to it loses.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

_LONGEST, _SIGMA = 4, 6.0
Grams = Counter[tuple[str, ...]]
Vectors = list[dict[tuple[str, ...], float]]


def words(caption: str, *, ended: bool = True) -> list[str]:
    """Lower case, no punctuation, and the end if the caption came to it."""
    found = re.findall(r"[a-z0-9]+(?:['-][a-z0-9]+)*", caption.lower())
    return [*found, "</s>"] if ended else found


# What a sentence may say twice, and what none ends with.
_SMALL = frozenset(
    """a an and the of in on at with to for from by up down is are be being his her their its two
    three one some into while near next front other""".split()
)


def faults(tokens: Sequence[str]) -> int:
    """Words that say again what was said, as in "a man in a hat is wearing a hat", and a break in
    the middle of a sentence, as in "two dogs are": CIDEr hardly minds them."""
    told = [token for token in tokens if token not in _SMALL and token != "</s>"]
    broken = tokens[-1:] == ["</s>"] and len(tokens) > 1 and tokens[-2] in _SMALL - {"up", "down"}
    return len(told) - len(set(told)) + broken


def ngrams(tokens: Sequence[str]) -> Grams:
    """How often each run of one to four words occurs."""
    return Counter(
        tuple(tokens[start : start + size])
        for size in range(1, _LONGEST + 1)
        for start in range(len(tokens) - size + 1)
    )


class Cider:
    """Rewards against the references of many photos, which also say how rare a phrase is."""

    def __init__(self, references: Sequence[Sequence[Sequence[str]]]):
        """``references``: the tokenised captions of each photo."""
        cooked = [[ngrams(tokens) for tokens in photo] for photo in references]
        seen = Counter(gram for photo in cooked for gram in set().union(*photo))
        log_photos = math.log(len(cooked))
        self._rarity = {gram: log_photos - math.log(number) for gram, number in seen.items()}
        self._unseen = log_photos
        self._references = [
            [(*self._vectors(grams), len(tokens)) for grams, tokens in zip(*pair, strict=True)]
            for pair in zip(cooked, references, strict=True)
        ]

    def __call__(self, photo: int, tokens: Sequence[str]) -> float:
        """The score of a tokenised caption of one photo, 0 to 10."""
        vectors, norms = self._vectors(ngrams(tokens))
        total = 0.0
        for theirs, their_norms, length in self._references[photo]:
            penalty = math.exp(-((len(tokens) - length) ** 2) / (2 * _SIGMA**2))
            for ours, other, norm in zip(
                vectors, theirs, (a * b for a, b in zip(norms, their_norms, strict=True)),
                strict=True,
            ):  # fmt: skip
                shared = sum(
                    min(weight, other[gram]) * other[gram]
                    for gram, weight in ours.items()
                    if gram in other
                )
                total += penalty * (shared / norm if norm else shared)
        return 10 * total / _LONGEST / len(self._references[photo])

    def _vectors(self, grams: Grams) -> tuple[Vectors, list[float]]:
        vectors: Vectors = [{} for _ in range(_LONGEST)]
        for gram, count in grams.items():
            vectors[len(gram) - 1][gram] = count * self._rarity.get(gram, self._unseen)
        return vectors, [math.sqrt(sum(w * w for w in v.values())) for v in vectors]
