"""A file of records as one HTML page: pictures with captions, failures first, a search box.

The page is whole without its script, which keeps what is searched for in it, a part at a time. It
takes the rest out: merely hidden, 10,000 items cost Chromium seconds a search.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from argus_cli.output.lines import JsonLines, parse_record
from argus_cli.output.page import to_page, to_text
from argus_cli.schema import stamp

Record = dict[str, Any]
Picture = Callable[[str], str | None]

_STYLE = """
html { scroll-padding-top: 7rem; }
body { max-width: 96rem; }
h2 { font-size: 1.125rem; margin: 1.25rem 0 0; }
[hidden] { display: none !important; }
[role=search] { position: sticky; top: 0; z-index: 1; background: Canvas;
  padding: .625rem 0; display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center;
  border-bottom: 1px solid var(--line); }
input[type=search] { font: inherit; flex: 1 1 14rem; min-width: 0; padding: .375rem .625rem; }
label { display: flex; gap: .375rem; align-items: center; }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr));
  gap: 1.25rem; margin: .75rem 0; }
.failed { border-left: 4px solid #c33; padding-left: .75rem; }
.record p { margin: .375rem 0 0; }
.record a { display: block; }
.record img, .none { width: 100%; height: 11rem; object-fit: contain; background: var(--soft); }
.none { display: grid; place-items: center; color: var(--dim); font-size: .875rem; }
.path { color: var(--dim); font-size: .8125rem; }
mark { font-size: .8125rem; padding: 0 .375rem; border-radius: .25rem; }
details { font-size: .9375rem; margin-top: .375rem; }
"""
_SCRIPT = """
const box = document.querySelector("input[type=search]");
const low = document.querySelector("input[type=checkbox]");
const said = document.querySelector("output");
const more = document.querySelector("button");
const lists = [...document.querySelectorAll("section > ul")];
const plain = text => text.normalize("NFC").toLowerCase();
const items = lists.flatMap(list => [...list.children].map(
  item => ({ item, list, text: plain(item.textContent), low: item.matches(".low") })));
const step = 200;
const show = most => {
  const words = plain(box.value).split(/\\s+/);
  const found = items.filter(each => (each.low || !low.checked)
    && words.every(word => each.text.includes(word)));
  const shown = found.slice(0, most);
  for (const list of lists) {
    list.replaceChildren(...shown.filter(each => each.list === list).map(each => each.item));
    list.parentElement.hidden = !list.firstChild;
  }
  said.value = found.length === items.length ? "" : `${found.length} of ${items.length} found`;
  more.hidden = found.length <= most;
  more.onclick = () => show(most + step);
};
let timer;
box.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(show, 120, step);
});
low.addEventListener("change", () => show(step));
new IntersectionObserver(([seen]) => seen.isIntersecting && more.click(),
  { rootMargin: "1600px" }).observe(more);
document.querySelector("[role=search]").hidden = false;
show(step);
"""


def read_results(path: Path) -> tuple[list[Record], list[int]]:
    """The last record of each input, in their order, and the numbers of the lines that are none.

    Raises OSError.
    """
    records: dict[tuple[str, bool], Record] = {}
    broken = []
    with path.open("rb") as file:
        for number, row in enumerate(JsonLines().rows(file), 1):
            if not row.strip():
                continue
            try:
                record = parse_record(row.decode("utf-8", "surrogateescape"))
            except ValueError:
                broken.append(number)
            else:
                records[record["path"], "segments" in record] = record
    return list(records.values()), broken


def to_gallery(title: str, records: Iterable[Record], picture: Picture) -> str:
    """The page. ``picture`` gives the URL to show for a record's path, None if there is none."""
    records = list(records)
    failed = [record for record in records if "error" in record]
    films = [record for record in records if "segments" in record]
    captions = [record for record in records if "caption" in record]
    fence = low_confidence([c for r in captions if (c := _number(r.get("confidence"))) is not None])
    low = sum(_is_low(record, fence) for record in captions)
    facts = [f"{len(captions)} captioned", f"{len(failed)} failed"]
    facts += [f"{len(films)} film{'s' if len(films) > 1 else ''}"] if films else []
    facts += [f"{low} of low confidence, below {fence:.2f}"] if low else []
    models = sorted({str(r.get("model")) for r in captions + films})
    facts += [f"by {', '.join(models)}"] if models else []
    return to_page(
        title,
        [
            f"<h1>{to_text(title)}</h1>",
            f'<p class="facts">{to_text(" · ".join(facts))}</p>',
            '<div role="search" hidden><input type="search" aria-label="Search captions and paths" '
            'placeholder="Search captions and paths" autocomplete="off">',
            f'<label{"" if low else " hidden"}><input type="checkbox" autocomplete="off">'
            "only low confidence</label>",
            '<output aria-live="polite"></output></div>',
            *_section("Failed", map(_failed, failed)),
            *_section("Films", map(_film, films)),
            *_section("Pictures", (_captioned(r, picture, _is_low(r, fence)) for r in captions)),
            "<button hidden>Show more</button>",
            "<footer>Written by argus; captions may name things that aren't there.</footer>",
        ],
        _STYLE,
        _SCRIPT,
    )


def low_confidence(values: list[float]) -> float:
    """The confidence below which an answer stands out: Tukey's lower fence, Q1 - 1.5 IQR.

    Relative to the file, since models differ in how sure they are; -inf for fewer than 8 values.
    """
    if len(values) < 8:
        return float("-inf")
    first, _, third = quantiles(values, n=4)
    return first - 1.5 * (third - first)


def _number(value: object) -> float | None:
    fits = isinstance(value, int | float) and abs(value) < 1e9  # nor is it nan
    return float(value) if fits else None  # type: ignore[arg-type]


def _is_low(record: Record, fence: float) -> bool:
    value = _number(record.get("confidence"))
    return value is not None and value < fence


def _section(name: str, items: Iterator[str]) -> list[str]:
    found = list(items)
    return [f"<section><h2>{name}</h2>\n<ul>", *found, "</ul></section>"] if found else []


def _failed(record: Record) -> str:
    message = str(record["error"].get("message")).removeprefix(f"{record['path']}: ")
    return (
        f'<li class="record failed"><p>{to_text(message)}</p>'
        f'<p class="path">{to_text(record["path"])}</p></li>'
    )


def _captioned(record: Record, picture: Picture, low: bool) -> str:
    caption = to_text(record["caption"])
    source = picture(record["path"])
    shown = '<div class="none">no picture there</div>'
    if source is not None:
        shown = f'<img loading="lazy" alt="{caption}" src="{to_text(source)}">'
        if not source.startswith("data:"):
            shown = f'<a href="{to_text(source)}">{shown}</a>'
    mark = f"<p><mark>low confidence {record['confidence']:.2f}</mark></p>" if low else ""
    return (
        f'<li class="record{" low" if low else ""}">{shown}<p>{caption}</p>'
        f'<p class="path">{to_text(record["path"])}</p>{mark}</li>'
    )


def _film(record: Record) -> str:
    lines = "".join(
        f"<li>{stamp(start)}-{stamp(end)} {to_text(str(segment.get('caption')))}</li>"
        for segment in record["segments"]
        if isinstance(segment, dict)
        and (start := _number(segment.get("start"))) is not None
        and (end := _number(segment.get("end"))) is not None
    )
    summary = record.get("summary") or f"{len(record['segments'])} segments"
    return (
        f'<li class="record"><p>{to_text(str(summary))}</p><p class="path">'
        f"{to_text(record['path'])}</p><details><summary>Timeline</summary><ol>{lines}</ol>"
        "</details></li>"
    )
