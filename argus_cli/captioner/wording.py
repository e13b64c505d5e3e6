"""What a style makes of the model's words. Pure: text in, text out.

caption and detailed lose the prompt's echo and a boilerplate opener, short is cut to one sentence
as well, alt becomes what a screen reader needs, tags a plain list.
"""

import re
from collections.abc import Iterable, Iterator

ALT_LIMIT = 149  # characters, the full stop included

_AN_IMAGE = ("an image", "a picture", "a photo", "a photograph")
_THE_IMAGE = [
    f"{the} {image}"
    for the in ("the", "this")
    for image in ("image", "picture", "photo", "photograph", "scene")
]
_SHOWS = (
    "shows", "depicts", "features", "captures", "displays", "presents", "portrays", "showcases",
    "illustrates", "contains", "is of", "is showing", *(f"is {image} of" for image in _AN_IMAGE),
)  # fmt: skip
_WE_SEE = ("we can see", "you can see", "we see", "you see")
_OPENERS = (
    *(f"{image} {shows} " for image in _THE_IMAGE for shows in _SHOWS),
    *(f"this is {image} of " for image in _AN_IMAGE),
    *(f"in {image}, " for image in _THE_IMAGE),
    *(
        f"in {image}{comma} {see} "
        for image in _THE_IMAGE
        for comma in (",", "")
        for see in _WE_SEE
    ),
    *(f"{image} of " for image in _AN_IMAGE),
    *(f"{see} " for see in _WE_SEE[:2]),
)
# With one of these first, what follows an opener is no sentence: "The image shows how ...".
_NO_BEGINNING = frozenset(
    "and as at but by from how in of off on or that to up what when where whether which who why "
    "with".split()
)
_DANGLING = frozenset(
    "a an the and or but of with in on at to by for from while as is are that which who".split()
)
_LABEL = re.compile(r"^(?:alt(?:ernative)?(?:[ -]text)?|caption|keywords|tags)\s*:\s*", re.I)
_ALT_OPENER = re.compile(
    r"^(?:(?:an?|the|this)\s+)?(?:(?:black[ -]and[ -]white|close-up|colou?r|old)\s+)?"
    r"(?:image|picture|photo(?:graph)?)\s+(?:of|showing)\s+(?=\S)", re.I,
)  # fmt: skip
# A full stop that ends no abbreviation, white space, and what a sentence begins with.
_SENTENCE_END = re.compile(
    r"""(?:(?<![.\s][A-Z])(?<!^[A-Z])(?<!\b(?:Mr|Ms|Dr|St|Mt|Jr|Sr|vs))(?<!\bMrs)\.|[!?])"""
    r"""["'”’)]*\s+(?=["'“‘(]*[A-Z])"""
)
_TAG_BREAK = re.compile(r"[,;\n•·、，；]|(?:^|\s)[*-]\s")
_TAG_START = re.compile(r"(?:\d+[.)]\s+|#|(?:and|an?|the)\s+)*")


def word(text: str, style: str, prompt: str) -> str:
    """What a style makes of an answer to ``prompt``."""
    return _STYLES[style](_trimmed(text.strip(), prompt))


def reworded(pieces: Iterable[str], style: str, prompt: str) -> Iterator[str]:
    """The same piece by piece, each as soon as nothing to come can change it.

    That is right after the beginning for caption and detailed, at the end for the other styles.
    """
    held, begun = "", False
    for piece in pieces:
        if begun:
            yield piece
            continue
        held += piece
        if style in ("caption", "detailed") and _decided(held, prompt):
            begun = True
            yield _trimmed(held, prompt)
    if not begun:
        yield word(held, style, prompt)


def _decided(text: str, prompt: str) -> bool:
    """Whether ``_trimmed`` will begin with the same words however ``text`` goes on."""
    lower = _without_echo(text, prompt).lower()
    if prompt.lower().startswith(text.lstrip().lower()):
        return False
    if any(opener.startswith(lower) for opener in _OPENERS):
        return False
    opener = _opener(lower)
    return not opener or len(lower[len(opener) :].split()) > 2


def _trimmed(text: str, prompt: str) -> str:
    """Without the prompt's echo, and without an opener before what is a sentence on its own."""
    text = _without_echo(text, prompt)
    rest = text[len(_opener(text.lower())) :].lstrip()
    words = rest.split(maxsplit=2)
    if len(rest) == len(text) or len(words) < 2 or words[0].lower() in _NO_BEGINNING:
        return text
    return _capitalised(rest)


def _without_echo(text: str, prompt: str) -> str:
    text = text.lstrip()
    if prompt and text.lower().startswith(prompt.lower()):
        return text[len(prompt) :].lstrip()
    return text


def _opener(lower: str) -> str:
    """The longest opener that lower-case text begins with, or nothing."""
    return max((o for o in _OPENERS if lower.startswith(o)), key=len, default="")


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    return text


def _short(text: str) -> str:
    """The first sentence, on one line."""
    line = " ".join(_LABEL.sub("", text).split())
    end = _SENTENCE_END.search(line)
    return line[: end.end()].rstrip() if end else line


def _alt(text: str) -> str:
    """One sentence of at most ALT_LIMIT characters that ends with a full stop."""
    text = _unquoted(_short(text))
    if opener := _ALT_OPENER.match(text):
        text = _capitalised(text[opener.end() :])
    text = re.sub(r"""[\s.,;:!?]+(["'”’)]*)$""", r"\1", text)
    if len(text) >= ALT_LIMIT:
        text = _shortened(text, ALT_LIMIT - 1)
    return f"{text}." if text else ""


def _unquoted(text: str) -> str:
    inside = text[1:-1]
    quoted = text[:1] + text[-1:] in ('""', "''", "“”") and text[:1] not in inside
    return inside if quoted else text


def _shortened(text: str, most: int) -> str:
    """Cut at the last clause that leaves half of it, else at the last word that can end one."""
    head = text[: most + 1]
    clause = max(head.rfind(mark) for mark in (", ", "; ", ": ", " - ", " – ", " — "))
    if clause >= most // 2:
        return head[:clause].rstrip()
    words = head.split(" ")[:-1]
    while words and words[-1].lower() in _DANGLING:
        words.pop()
    return " ".join(words).rstrip(" ,;:-–—") or text[:most]  # a script without spaces


def _tags(text: str) -> str:
    """Lower-case, each once, separated by commas."""
    parts = _TAG_BREAK.split(_LABEL.sub("", text))
    found = (part.strip(" \t\r\"'`.*-").lower() for part in parts)
    tags = (tag[begin.end() :] for tag in found if (begin := _TAG_START.match(tag)))
    return ", ".join(dict.fromkeys(filter(None, tags)))


_STYLES = {"caption": _plain, "short": _short, "detailed": _plain, "alt": _alt, "tags": _tags}
