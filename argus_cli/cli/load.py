"""Opens the model that the options ask for, fetching it if it was named, and says so on stderr."""

import logging
import os
import sys
import time

import typer

from argus_cli.captioner import Captioner, load
from argus_cli.errors import ModelMissing
from argus_cli.zoo.catalog import BUNDLED, ModelFolder, default_model, find
from argus_cli.zoo.manifest import load_manifests


def open_captioner(
    model: str | None,
    device: str,
    dtype: str,
    threads: int | None,
    *,
    offline: bool,
    quiet: bool,
    verbose: bool,
) -> Captioner:
    """A model that is on disk or was named; only the latter is ever downloaded."""
    if quiet:
        logging.getLogger().setLevel(logging.ERROR)
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    start = time.perf_counter()
    folder, reason = default_model() if model is None else (_found_or_pulled(model, quiet), "named")
    captioner = load(folder, device=device, dtype=dtype, threads=threads)
    if verbose:
        typer.echo(
            f"argus: {folder.name} ({reason}), revision {folder.revision}, "
            f"{captioner.model.dtype} on {captioner.model.device}, "
            f"loaded in {time.perf_counter() - start:.2f} s",
            err=True,
        )
    elif folder.name == BUNDLED and model is None and not quiet and sys.stderr.isatty():
        typer.echo(
            "argus: this is glimpse, the small bundled model; for much better answers run "
            "`argus models pull smolvlm2-500m` once",
            err=True,
        )
    return captioner


def _found_or_pulled(model: str, quiet: bool) -> ModelFolder:
    try:
        return find(model)
    except ModelMissing:
        manifest = load_manifests().get(model)
        if manifest is None:
            raise
    from argus_cli.zoo.download import pull

    return pull(manifest, progress=not quiet)
