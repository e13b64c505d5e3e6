"""The placeholders of a prompt: {name} {stem} {folder} {width} {height} {date}.

Only a word in braces is one, so that a prompt may hold JSON as it is. Whoever writes {{word}} for
a literal {word} doubles every brace.
"""

import os
import re
from contextlib import suppress
from datetime import date
from pathlib import Path

from argus_cli.errors import UsageError
from argus_cli.media.images import ImageSource, day_taken, name_of
from argus_cli.undecoded import replaced

PLACEHOLDERS = ("name", "stem", "folder", "width", "height", "date")
_BRACES = re.compile(r"\{\{|\}\}|\{([^\W\d]\w*)\}")


def check_template(prompt: str) -> None:
    """Raise UsageError for a placeholder that doesn't exist."""
    for match in _BRACES.finditer(prompt):
        if match[1] and match[1] not in PLACEHOLDERS:
            known = " ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise UsageError(
                f"--prompt: {match[0]} is no placeholder; there are {known}, "
                f"and {{{match[0]}}} stands for the word in braces"
            )


def differs(prompt: str) -> bool:
    """Whether what is asked depends on the picture."""
    return any(match[1] for match in _BRACES.finditer(prompt))


def literal(prompt: str) -> str:
    """A prompt without placeholders as the model is asked."""
    doubled = "{{" in prompt
    text = _BRACES.sub(lambda match: match[0][0] if doubled else match[0], prompt)
    return replaced(text)


def fill(prompt: str, image: ImageSource, size: tuple[int, int], taken: str | None = None) -> str:
    """A checked prompt for one upright picture of ``size`` (width, height) in pixels.

    name, stem and folder are those of its file (``stdin`` and nothing for what has none), date the
    day it was taken by its EXIF (``taken``, where that is known), else that of the file's last
    change, as YYYY-MM-DD.
    """
    doubled, path = "{{" in prompt, _path(image)
    name = path.name if path else "stdin" if name_of(image) == "<stdin>" else ""
    values = {
        "name": name,
        "stem": Path(name).stem,
        "folder": path.parent.name if path else "",
        "width": str(size[0]),
        "height": str(size[1]),
    }

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return _date(image, path, taken) if match[1] == "date" else values[match[1]]
        return match[0][0] if doubled else match[0]

    return replaced(_BRACES.sub(one, prompt))


def _path(image: ImageSource) -> Path | None:
    name = name_of(image)
    return None if name.startswith("<") and name.endswith(">") else Path(os.path.abspath(name))


def _date(image: ImageSource, path: Path | None, taken: str | None) -> str:
    if day := day_taken(image) if taken is None else taken:
        return day
    with suppress(OSError):
        return date.fromtimestamp(path.stat().st_mtime).isoformat() if path else ""
    return ""
