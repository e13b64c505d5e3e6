"""A film's timeline as one self-contained HTML page: thumbnails, times, captions, summary."""

from collections.abc import Mapping
from pathlib import PurePath

from argus_cli.output.page import data_uri, to_page, to_text
from argus_cli.schema import Segment, VideoCaption, stamp

_STYLE = """
.summary { font-size: 1.125rem; border-left: 4px solid #48c; padding-left: .875rem; }
li { border-top: 1px solid var(--line); padding: 1rem 0; }
time { font-variant-numeric: tabular-nums; color: var(--dim); font-size: .875rem; }
li p { margin: .125rem 0 .625rem; }
.frames { display: flex; gap: .5rem; overflow-x: auto; padding-bottom: .25rem; }
figure { margin: 0; flex: none; }
img { height: 7.5rem; }
figcaption { color: var(--dim); font-size: .75rem; font-variant-numeric: tabular-nums; }
@media (max-width: 36rem) { img { height: 5.5rem; } }
"""


def to_html(video: VideoCaption, thumbnails: Mapping[float, bytes]) -> str:
    """The page. ``thumbnails`` are JPEG bytes by frame time."""
    name = PurePath(video.path).name
    minutes = stamp(video.duration)
    facts = f"{minutes} · {video.width}×{video.height} · {len(video.frames)} frames looked at"
    summary = f'<p class="summary">{to_text(video.summary)}</p>' if video.summary else ""
    body = [
        f"<h1>{to_text(name)}</h1>",
        f'<p class="facts">{facts}</p>\n{summary}\n<ol>',
        *(_item(segment, video, thumbnails) for segment in video.segments),
        f"</ol>\n<footer>Written by {to_text(video.model)} ({to_text(video.revision)}) through "
        "argus;\nit may name things that aren't there.</footer>",
    ]
    return to_page(name, body, _STYLE)


def _item(segment: Segment, video: VideoCaption, thumbnails: Mapping[float, bytes]) -> str:
    first, last = segment is video.segments[0], segment is video.segments[-1]
    inside = (
        _figure(time, thumbnails[time])
        for time in sorted(thumbnails)
        if (segment.start <= time or first) and (time < segment.end or last)
    )
    return (
        f"<li><time>{stamp(segment.start)}-{stamp(segment.end)}</time>"
        f"<p>{to_text(segment.caption)}</p>"
        f'<div class="frames">{"".join(inside)}</div></li>'
    )


def _figure(time: float, jpeg: bytes) -> str:
    return (
        f'<figure><img loading="lazy" alt="frame at {stamp(time)}" src="{data_uri(jpeg)}">'
        f"<figcaption>{stamp(time)}</figcaption></figure>"
    )
