"""The chat template and the image expansion, as lists of pieces. Knows nothing of token ids.

A piece is either a Special (one token of the checkpoint, by its spelling) or a plain string that
is encoded as ordinary text. That is how a user's text stays text, whatever it spells.
Source: chat_template.json and transformers' Idefics3Processor / SmolVLMProcessor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from argus_cli.schema import TileGrid


class Special(str):
    """The spelling of a token that the template, not the user, puts there."""


FAKE = Special("<fake_token_around_image>")
GLOBAL = Special("<global-img>")
IMAGE = Special("<image>")
START = Special("<|im_start|>")
END = Special("<end_of_utterance>")

Piece = Special | str

# What `--style` asks.
STYLES = {
    "caption": "Describe this image in one sentence.",
    "short": "Describe this image in a few words.",
    "detailed": "Can you describe this image?",
    "alt": "Write alt text for this image: one sentence for someone who can't see it.",
    "tags": "List what is in this image as a few comma-separated keywords.",
}


@dataclass(frozen=True)
class Message:
    """One turn: what each part says is either text or the grid of a picture."""

    role: str
    parts: tuple[str | TileGrid, ...]


def chat(messages: Sequence[Message], tokens_per_tile: int) -> list[Piece]:
    """A conversation, ending where the model is to answer."""
    pieces: list[Piece] = [START]
    for message in messages:
        first_is_image = isinstance(message.parts[0], TileGrid)
        pieces.append(message.role.capitalize() + (":" if first_is_image else ": "))
        for part in message.parts:
            pieces += expand(part, tokens_per_tile) if isinstance(part, TileGrid) else [part]
        pieces += [END, "\n"]
    return merge([*pieces, "Assistant:"])


def expand(grid: TileGrid, tokens_per_tile: int) -> list[Piece]:
    """What stands for one picture: its tiles row by row, then the global one."""
    image = [IMAGE] * tokens_per_tile
    pieces: list[Piece] = []
    for row in range(1, grid.rows + 1):
        for col in range(1, grid.cols + 1):
            pieces += [FAKE, Special(f"<row_{row}_col_{col}>"), *image]
        pieces.append("\n")
    if grid.rows:
        pieces.append("\n")  # beside the last row's: "\n\n" is one token
    return [*pieces, FAKE, GLOBAL, *image, FAKE]


def film_parts(
    times: Sequence[float], duration: float, grid: TileGrid
) -> tuple[str | TileGrid, ...]:
    """What a turn about a film begins with: its length, then each frame after its time.

    ``times`` and ``duration`` are seconds of the whole film; ``grid`` is a frame's, unsplit.
    Source: transformers' SmolVLMProcessor.replace_video_token.
    """
    length = timedelta(seconds=int(duration))  # prints as H:MM:SS
    parts: list[str | TileGrid] = [
        f"You are provided the following series of {in_words(len(times))} frames "
        f"from a {length} [H:MM:SS] video.\n"
    ]
    for time in times:
        minutes, seconds = divmod(int(time), 60)
        parts += [f"\nFrame from {minutes:02d}:{seconds:02d}:", grid]
    return (*parts, "\n\n")


def in_words(number: int) -> str:
    """1 to 999 in English words, as the package num2words spells them."""
    if number >= 100:
        rest = f" and {in_words(number % 100)}" if number % 100 else ""
        return f"{_ONES[number // 100]} hundred{rest}"
    if number >= 20:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    return _ONES[number]


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def merge(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring texts, since the tokenizer must see them as one."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and not isinstance(piece, Special) and not isinstance(merged[-1], Special):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged
