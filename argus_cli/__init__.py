"""argus: caption pictures and understand videos on your own machine.

    import argus_cli
    captioner = argus_cli.load("glimpse")
    print(captioner.caption("photo.jpg").caption)

Names are resolved when first used (PEP 562), so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argus_cli.captioner import Captioner, FilmRequest, FilmStream, Request, Stream, load
    from argus_cli.cluster import CaptionActor
    from argus_cli.errors import (
        ArgusError,
        DownloadError,
        ImageError,
        InputError,
        ModelDamaged,
        ModelError,
        ModelMissing,
        PromptTooLong,
        UsageError,
        VideoError,
    )
    from argus_cli.schema import (
        Caption,
        Failure,
        Frame,
        Sampling,
        Segment,
        TileGrid,
        Timings,
        VideoCaption,
        VideoTimings,
    )

__all__ = [
    "ArgusError",
    "Caption",
    "CaptionActor",
    "Captioner",
    "DownloadError",
    "Failure",
    "FilmRequest",
    "FilmStream",
    "Frame",
    "ImageError",
    "InputError",
    "ModelDamaged",
    "ModelError",
    "ModelMissing",
    "PromptTooLong",
    "Request",
    "Sampling",
    "Segment",
    "Stream",
    "TileGrid",
    "Timings",
    "UsageError",
    "VideoCaption",
    "VideoError",
    "VideoTimings",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for home in ("schema", "errors", "captioner", "cluster"):  # those with torch come last
        module = import_module(f"argus_cli.{home}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is promised and nowhere to be found")
