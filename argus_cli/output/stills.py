"""A film's frames as JPEG: thumbnails for a page, files in a folder."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from argus_cli.errors import ArgusError
from argus_cli.schema import Frame

if TYPE_CHECKING:
    from PIL.Image import Image

_THUMBNAIL = (480, 240)  # pixels at most: twice the page's height, for dense screens


def thumbnail(picture: "Image") -> bytes:
    """A small JPEG."""
    small = picture.copy()
    small.thumbnail(_THUMBNAIL)
    held = BytesIO()
    small.save(held, "JPEG", quality=80)
    return held.getvalue()


def save_still(folder: Path, film: str, frame: Frame, picture: "Image") -> None:
    """Write film-SECONDS.jpg. Raises ArgusError when the folder can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{Path(film).stem}-{frame.time:09.3f}.jpg"
        path.unlink(missing_ok=True)  # it may be a link that leads anywhere
        picture.save(path, quality=92)
    except OSError as error:
        raise ArgusError(f"--frames-dir {folder}: {error.strerror or error}") from None
