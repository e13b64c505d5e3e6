"""The errors that a user can meet, and the exit codes they end in. Knows nothing of the rest.

ArgusError
├── UsageError            the command line asks for something impossible        exit 2
├── ModelError            the model can't be had or can't be trusted            exit 3
│   ├── ModelMissing      not on this machine
│   ├── ModelDamaged      files missing, truncated, altered or of another shape
│   └── DownloadError     the hub or the disk refused
└── InputError            one input can't be used; its record is a Failure      exit 1
    ├── ImageError        not a picture, truncated, empty, too many pixels
    ├── VideoError        not a film, no video stream, nothing decodes
    └── PromptTooLong     prompt and answer don't fit the model's context

Every message is one line that names the file (or option) and, where there is one, the way out.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns to the shell."""

    OK = 0
    SOME_FAILED = 1
    USAGE = 2
    MODEL = 3
    INTERRUPTED = 130


class ArgusError(Exception):
    """Anything that argus reports in one line instead of a traceback."""

    exit_code = ExitCode.SOME_FAILED


class UsageError(ArgusError):
    """The request itself is wrong: a missing path, an option out of range."""

    exit_code = ExitCode.USAGE


class ModelError(ArgusError):
    """The model can't be used."""

    exit_code = ExitCode.MODEL


class ModelMissing(ModelError):
    """The model isn't on this machine."""


class ModelDamaged(ModelError):
    """A model file is missing, truncated, altered or doesn't fit its configuration."""


class DownloadError(ModelError):
    """A download was refused by the hub, the network or the disk."""


class InputError(ArgusError):
    """One input can't be used; the others go on."""


class ImageError(InputError):
    """Not a picture, or one that can't be decoded."""


class VideoError(InputError):
    """Not a film, or one of which nothing can be decoded."""


class PromptTooLong(InputError):
    """Prompt and answer don't fit into the model's context."""
