"""Readers that misbehave, for the tests to put in the place of those that workers call."""

import os
import signal
import time
from pathlib import Path
from typing import BinaryIO

from argus_cli import picture_reader

READ = picture_reader.read_picture


def read_picture(image: object, look: picture_reader.Look) -> picture_reader.CutPicture:
    """As the picture's name says: hang, crash, starve, or read it."""
    match Path(str(image)).stem:
        case "hang":
            time.sleep(600)
        case "crash":
            signal.raise_signal(signal.SIGSEGV)
        case "starve":
            bytearray(2**40)
        case "defect":
            raise ZeroDivisionError
    return READ(image, look)  # type: ignore[arg-type]


def read_slowly(film: BinaryIO) -> int:
    """A film's size, found in steps that are short."""
    total = 0
    while piece := film.read(2**19):
        total += len(piece)
        time.sleep(0.3)
    return total


def read_in_circles(film: BinaryIO) -> None:
    """Always at it, never done."""
    while True:
        film.seek(0)
        film.read()


def hang(film: BinaryIO) -> None:
    time.sleep(600)


def parent(film: BinaryIO) -> int:
    """Who reads it, if not us."""
    return os.getppid()
