"""A film's timeline as one self-contained HTML page: thumbnails, times, captions, summary."""

import base64
from collections.abc import Mapping
from html import escape
from pathlib import PurePath

from argus_cli.output.records import printable
from argus_cli.schema import Segment, VideoCaption, stamp

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1.25rem; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
.facts, footer { color: #777; font-size: .875rem; overflow-wrap: anywhere; }
.summary { font-size: 1.125rem; border-left: 4px solid #48c; padding-left: .875rem; }
ol { list-style: none; padding: 0; }
li { border-top: 1px solid var(--line); padding: 1rem 0; }
time { font-variant-numeric: tabular-nums; color: #777; font-size: .875rem; }
li p { margin: .125rem 0 .625rem; }
.frames { display: flex; gap: .5rem; overflow-x: auto; padding-bottom: .25rem; }
figure { margin: 0; flex: none; }
img { height: 7.5rem; border-radius: .25rem; background: var(--soft); display: block; }
figcaption { color: #777; font-size: .75rem; font-variant-numeric: tabular-nums; }
@media (max-width: 36rem) { img { height: 5.5rem; } body { padding: .875rem; } }
"""


def to_html(video: VideoCaption, thumbnails: Mapping[float, bytes]) -> str:
    """The page. ``thumbnails`` are JPEG bytes by frame time."""
    name = _text(PurePath(video.path).name)
    minutes = stamp(video.duration)
    facts = f"{minutes} · {video.width}×{video.height} · {len(video.frames)} frames looked at"
    summary = f'<p class="summary">{_text(video.summary)}</p>' if video.summary else ""
    items = "\n".join(_item(segment, video, thumbnails) for segment in video.segments)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{_STYLE}</style>
<h1>{name}</h1>
<p class="facts">{facts}</p>
{summary}
<ol>
{items}
</ol>
<footer>Written by {_text(video.model)} ({_text(video.revision)}) through argus;
it may name things that aren't there.</footer>
</html>
"""


def _item(segment: Segment, video: VideoCaption, thumbnails: Mapping[float, bytes]) -> str:
    first, last = segment is video.segments[0], segment is video.segments[-1]
    inside = (
        _figure(time, thumbnails[time])
        for time in sorted(thumbnails)
        if (segment.start <= time or first) and (time < segment.end or last)
    )
    return (
        f"<li><time>{stamp(segment.start)}-{stamp(segment.end)}</time>"
        f"<p>{_text(segment.caption)}</p>"
        f'<div class="frames">{"".join(inside)}</div></li>'
    )


def _figure(time: float, jpeg: bytes) -> str:
    data = base64.b64encode(jpeg).decode("ascii")
    return (
        f'<figure><img loading="lazy" alt="frame at {stamp(time)}" '
        f'src="data:image/jpeg;base64,{data}"><figcaption>{stamp(time)}</figcaption></figure>'
    )


def _text(text: str) -> str:
    return escape(printable(text).encode("utf-8", "replace").decode("utf-8"))
