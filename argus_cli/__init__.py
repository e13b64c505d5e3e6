"""argus: caption pictures and understand videos on your own machine.

    import argus_cli
    captioner = argus_cli.load("glimpse")
    print(captioner.caption("photo.jpg").caption)

Names are resolved when first used (PEP 562), so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argus_cli.captioner import Captioner, Request, Stream, load
    from argus_cli.errors import (
        ArgusError,
        ImageError,
        InputError,
        ModelDamaged,
        ModelError,
        ModelMissing,
        PromptTooLong,
        UsageError,
    )
    from argus_cli.schema import Caption, Failure, Sampling, TileGrid, Timings

__all__ = [
    "ArgusError",
    "Caption",
    "Captioner",
    "Failure",
    "ImageError",
    "InputError",
    "ModelDamaged",
    "ModelError",
    "ModelMissing",
    "PromptTooLong",
    "Request",
    "Sampling",
    "Stream",
    "TileGrid",
    "Timings",
    "UsageError",
    "load",
]

_HOMES = {
    "argus_cli.captioner": ("Captioner", "Request", "Stream", "load"),
    "argus_cli.schema": ("Caption", "Failure", "Sampling", "TileGrid", "Timings"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "argus_cli.errors")
    return getattr(import_module(home), name)
