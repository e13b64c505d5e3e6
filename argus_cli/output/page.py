"""What our HTML pages share: one file, no requests, and a policy that runs only what we wrote."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from argus_cli.output.records import printable

GENERATOR = '<meta name="generator" content="argus">'
_NONE = "'none'"
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881;
  --dim: light-dark(#666, #aaa); }
body { font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
  max-width: 68rem; margin: 0 auto; padding: 1.25rem; }
h1 { font-size: 1.4rem; margin: 0 0 .25rem; }
.facts, footer { color: var(--dim); font-size: .875rem; }
ol, ul { list-style: none; padding: 0; }
img { border-radius: .25rem; background: var(--soft); display: block; }
@media (max-width: 36rem) { body { padding: .875rem; } }
"""


def to_page(title: str, body: Iterable[str], style: str, script: str = "") -> str:
    """A document. ``body`` is markup, ``title`` plain text."""
    style = _STYLE + style
    policy = (
        f"default-src {_NONE}; img-src 'self' file: data:; style-src {_digest(style)}; "
        f"script-src {_digest(script) if script else _NONE}; base-uri {_NONE}; form-action {_NONE}"
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
            GENERATOR,
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{to_text(title)}</title>\n<style>{style}</style>",
            *body,
            f"<script>{script}</script>\n</html>\n" if script else "</html>\n",
        ]
    )


def to_text(text: str) -> str:
    """Text that is no markup, neither between tags nor in an attribute."""
    return escape(printable(text).encode("utf-8", "replace").decode("utf-8"))


def data_uri(jpeg: bytes) -> str:
    """A picture inside the page."""
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode('ascii')}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
