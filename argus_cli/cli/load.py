"""Opens the model that the options ask for, fetching it if it was named, and says so on stderr."""

import logging
import os
import sys
import time
from contextlib import suppress

from argus_cli.captioner import Captioner, load
from argus_cli.cli.stderr import say, say_what_the_hub_says
from argus_cli.device import available_threads, choose_device
from argus_cli.errors import ModelMissing
from argus_cli.zoo.catalog import BUNDLED, ModelFolder, default_model, find, named
from argus_cli.zoo.download import pull


def open_captioner(
    model: str | None,
    device: str,
    dtype: str,
    quantize: str | None,
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
    choose_device(device)  # refuse it before a model is fetched for it
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = available_threads()
    start = time.perf_counter()
    folder, reason = default_model() if model is None else (_found_or_pulled(model, quiet), "named")
    captioner = load(folder, device=device, dtype=dtype, threads=threads, quantize=quantize)
    if verbose:
        say(
            f"{folder.name} ({reason}), revision {folder.revision}, "
            f"{captioner.provenance['dtype']} on {captioner.model.device}, "
            f"loaded in {time.perf_counter() - start:.2f} s"
        )
    elif folder.name == BUNDLED and model is None and not quiet and sys.stderr.isatty():
        say(
            "this is glimpse, the small bundled model; for much better answers run "
            "`argus models pull smolvlm2-500m` once"
        )
    return captioner


def warn_unread(
    captioner: Captioner, prompt: str | None, system: str | None, style: str = "caption"
) -> None:
    """Say so when the user asks something of a model that only captions."""
    given = {"--prompt": prompt, "--system": system}
    if style in ("detailed", "tags"):  # the others can be made of a caption
        given[f"--style {style}"] = style
    unread = [option for option, value in given.items() if value is not None]
    if unread and captioner.config.model.captions_only:
        say(f"{captioner.folder.name} only captions: it doesn't follow {' and '.join(unread)}")


def warn_unguarded(timeout: float | None) -> None:
    """Say what the user has given up."""
    if timeout == 0:
        say(
            "--timeout 0: inputs are read in this process; one that hangs, crashes its decoder or "
            "eats memory takes the run with it"
        )


def _found_or_pulled(model: str, quiet: bool) -> ModelFolder:
    try:
        return find(model)
    except ModelMissing as missing:
        with suppress(ModelMissing):  # not in the zoo either
            manifest = named(model)
            say_what_the_hub_says()
            return pull(manifest, progress=not quiet)
        raise missing from None
