"""A film's segments as subtitles: SRT, WebVTT and TSV. Text in, text out.

Times rise, no cue is empty or without length, and nothing in a caption can end its cue.
"""

import re
from collections.abc import Callable, Iterator
from html import escape

from argus_cli.output.records import printable
from argus_cli.schema import VideoCaption

NOTE = "NOTE made by argus with"
_SHORTEST = 0.5  # seconds: a film of a single frame still shows its caption


def to_srt(video: VideoCaption) -> str:
    """SubRip: numbered cues, a comma before the milliseconds."""
    return "".join(
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{_untagged(text)}\n\n"
        for number, (start, end, text) in enumerate(_cues(video), 1)
    )


def to_vtt(video: VideoCaption) -> str:
    """WebVTT (W3C): provenance in a note, markup characters escaped."""
    note = _one_line(f"{video.model} {video.revision} {video.dtype}, prompt: {video.prompt}")
    cues = (
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{escape(text, quote=False)}\n\n"
        for start, end, text in _cues(video)
    )
    return f"WEBVTT\n\n{NOTE} {note}\n\n{''.join(cues)}"


def to_tsv(video: VideoCaption) -> str:
    """Milliseconds and text, as whisper writes them."""
    rows = (f"{_ms(start)}\t{_ms(end)}\t{text}\n" for start, end, text in _cues(video))
    return "start\tend\ttext\n" + "".join(rows)


SUBTITLES: dict[str, Callable[[VideoCaption], str]] = {"srt": to_srt, "vtt": to_vtt, "tsv": to_tsv}


def _cues(video: VideoCaption) -> Iterator[tuple[float, float, str]]:
    for segment in video.segments:
        if text := _one_line(segment.caption):
            end = segment.end
            if end - segment.start < _SHORTEST and segment is video.segments[-1]:
                end = segment.start + _SHORTEST
            yield segment.start, end, text


def _untagged(text: str) -> str:
    """SubRip has no escapes: what isn't closely followed begins no <tag> and no {command}."""
    return re.sub(r"([<{])(?=\S)", r"\1 ", text)


def _one_line(text: str) -> str:
    return re.sub(r"-{2,}>", "->", " ".join(printable(text).split()))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _clock(seconds: float, point: str) -> str:
    """hh:mm:ss and milliseconds."""
    rest, ms = divmod(_ms(seconds), 1000)
    minutes, s = divmod(rest, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{s:02d}{point}{ms:03d}"
