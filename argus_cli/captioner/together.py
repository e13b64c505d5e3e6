"""Several pictures and their prompts -> answers that are written together.

What pays was measured on two CPU cores with glimpse: the tower and the reading of the prompt are
bound by arithmetic and cost a batch as much as its pictures one by one; a token for eight answers
costs twice that for one. So only the writing is shared there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from argus_cli.captioner.picture import Clock, Prepared
from argus_cli.schema import Caption

if TYPE_CHECKING:
    from argus_cli.captioner.core import Captioner

_TOWER_ALONE = ("cpu",)  # devices on which the tower sees one picture after the other


def caption_together(captioner: "Captioner", pictures: Sequence[Prepared]) -> list[Caption]:
    """The captions that each would get alone. May run out of memory.

    Seconds: ``decode``, ``preprocess`` and ``prefill`` are a picture's own, ``vision`` is its own
    or, where the tower sees several at once, its share by tiles, ``generate`` an equal share.
    """
    clock = Clock(captioner.model.device)
    laps: list[dict[str, float]] = []
    reads = []
    alone = captioner.model.device.type in _TOWER_ALONE
    for some in [[picture] for picture in pictures] if alone else [pictures]:
        features = _features(captioner, some)
        vision = clock.lap("vision") / sum(picture.grid.tiles for picture in some)
        for picture, seen in zip(some, features, strict=True):
            reads.append(captioner.read(picture.ids, seen))
            laps.append({"vision": vision * picture.grid.tiles, "prefill": clock.lap("prefill")})
    answers = captioner.answer_together(reads, [p.request.sampling for p in pictures])
    share = clock.lap("generate") / len(pictures)
    return [
        picture.record(captioner, answer, {**own, "generate": share})
        for picture, answer, own in zip(pictures, answers, laps, strict=True)
    ]


def _features(captioner: "Captioner", pictures: Sequence[Prepared]) -> tuple[Tensor, ...]:
    """Image features [N, S, H] of each picture, by way of one call of the tower."""
    tiles = [picture.tiles for picture in pictures]
    features = captioner.features(tiles[0] if len(tiles) == 1 else np.concatenate(tiles))
    return torch.split(features, [len(some) for some in tiles])
