"""XMP sidecars: a caption merged into what a photo manager already wrote about a picture.

Styles write dc:description; alt also the IPTC's Iptc4xmpCore:AltTextAccessibility; tags dc:subject.
All else in the file stays: other properties, languages, namespaces, the packet's wrapper.

XMP has no standard term for who wrote a description: Iptc4xmpExt:DigitalSourceType and
xmp:CreatorTool speak of the picture. So argus notes in its own namespace what it wrote, under the
same name (argus:description), and in argus:captionModel the model and revision that wrote last.
Where note and property agree, the text is the machine's own and may be renewed; any other is a
person's and stays unless overwriting is asked for. xmp:MetadataDate is set, as for any edit.

Nothing outside the file is ever read, and a file with a DOCTYPE is refused.
"""

import codecs
import re
from datetime import datetime
from typing import Any

from lxml import etree

from argus_cli.errors import InputError
from argus_cli.output.sidecars import Mode, joined, joined_tags, one_line, split_tags
from argus_cli.schema import Caption

NAMESPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "Iptc4xmpCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "argus": "urn:argus-vlm:xmp/1.0/",
}
DESCRIPTION, SUBJECT, ALT_TEXT = "dc:description", "dc:subject", "Iptc4xmpCore:AltTextAccessibility"
_BY_STYLE = {"alt": (DESCRIPTION, ALT_TEXT), "tags": (SUBJECT,)}
_ENCODING = re.compile(rb"""<\?xml\s[^>]*?\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]*)["']""")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
_EMPTY = b"""<?xpacket begin="\xef\xbb\xbf" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="argus">
  <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
    <rdf:Description rdf:about=""/>
  </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""


class XmpContent:
    """The Content of an .xmp file."""

    def __init__(self, mode: Mode, style: str):
        self._mode, self._names = mode, _BY_STYLE.get(style, (DESCRIPTION,))

    def is_there(self, old: bytes) -> bool:
        packet = Packet(old)
        return all(packet.values(name) for name in self._names)

    def update(self, old: bytes | None, text: str, caption: Caption) -> str | None:
        packet = Packet(old)
        changes = [self._tell(packet, name, text) for name in self._names]
        if not any(changes):
            return None
        writer = one_line(f"{caption.model} {caption.revision}")
        packet.set_simple("argus:captionModel", writer)
        packet.set_simple("xmp:MetadataDate", datetime.now().astimezone().isoformat("T", "seconds"))
        return packet.to_xml()

    def _tell(self, packet: "Packet", name: str, text: str) -> bool:
        """Put the text into one property, unless a person's words are kept; whether it changed."""
        there = packet.values(name)
        note = f"argus:{name.partition(':')[2]}"
        if there and self._mode is Mode.keep and ", ".join(there) != packet.simple(note):
            return False
        if name == SUBJECT:
            told = joined_tags([], split_tags(text), Mode.overwrite)
            wanted = joined_tags(there, told, self._mode)
        else:
            told = [text]
            wanted = [joined("".join(there), text, self._mode)]
        if not told or wanted == there:
            return False
        packet.set_values(name, wanted)
        packet.set_simple(note, ", ".join(told))
        return True


class Packet:
    """One XMP document; None begins one.

    Names are prefix:name, by the prefixes above, whatever the file's own are. Raises InputError
    for what is no well-formed XML, has a DOCTYPE or holds no XMP.
    """

    def __init__(self, document: bytes | None):
        self._is_new = document is None
        document = document or _EMPTY
        self._root = _parsed(document)
        if self._root.getroottree().docinfo.internalDTD is not None:
            raise InputError("left as it is, it has a DOCTYPE")
        rdf = next(self._root.iter(_full("rdf:RDF")), None)
        if rdf is None:
            raise InputError("left as it is, no XMP (rdf:RDF) in it")
        self._declared = re.match(rb"(\xef\xbb\xbf)?<\?xml\s", document) is not None
        self._parts = rdf.findall(_full("rdf:Description"))
        if not self._parts:
            self._parts = [_add(rdf, "rdf:Description")]
            self._parts[0].set(_full("rdf:about"), "")

    def to_xml(self) -> str:
        """The document as text, to be written as UTF-8."""
        root = self._root
        if self._is_new:
            etree.indent(root)
        nodes = [*reversed([*root.itersiblings(preceding=True)]), root, *root.itersiblings()]
        lines = [etree.tostring(node, encoding="unicode", with_tail=False) for node in nodes]
        if self._declared:
            lines.insert(0, '<?xml version="1.0" encoding="UTF-8"?>')
        return "\n".join(lines) + "\n"

    def values(self, name: str) -> list[str]:
        """The items of a list, or a text in its default language: none or one."""
        element = self._element(name)
        if element is None:
            found = [self.simple(name)]
        else:
            items = element.findall(f"*/{_full('rdf:li')}")
            if name != SUBJECT:
                items = [li for li in items if li.get(_LANG) == "x-default"] or items[:1]
            found = [_text(item) for item in items or [element]]
        return [text for text in found if text]

    def set_values(self, name: str, values: list[str]) -> None:
        """Replace the items of a list, or a text in its default language and in no other."""
        element = self._element(name)
        if element is None:
            element = _add(self._parts[0], name)
            for part in self._parts:  # some write a text as an attribute, against the rules
                part.attrib.pop(_full(name), None)
        container = element.find("*")
        if container is None:
            element.text = None
            container = _add(element, "rdf:Bag" if name == SUBJECT else "rdf:Alt")
        container[:] = [li for li in container if name != SUBJECT and li.get(_LANG) != "x-default"]
        for number, value in enumerate(values):
            item = _add(container, "rdf:li")
            item.text = value
            if name != SUBJECT:
                item.set(_LANG, "x-default")
                container.insert(number, item)  # the default language comes first

    def simple(self, name: str) -> str:
        """A property that is one bare text; "" where it is missing."""
        element = self._element(name)
        if element is not None:
            return _text(element)
        return next((part.get(_full(name)) for part in self._parts if part.get(_full(name))), "")

    def set_simple(self, name: str, value: str) -> None:
        """Set it where it stands, be it an element or an attribute, or add it."""
        for part in self._parts:
            if _full(name) in part.attrib:
                part.set(_full(name), value)
                return
        element = self._element(name)
        (_add(self._parts[0], name) if element is None else element).text = value

    def _element(self, name: str) -> Any:
        found = (part.find(_full(name)) for part in self._parts)
        return next((element for element in found if element is not None), None)


def _parsed(document: bytes) -> Any:
    """The root of well-formed XML in the encoding that it declares."""
    declared = _ENCODING.match(document)
    encoding = declared[1].decode() if declared else None
    try:
        return etree.fromstring(document, _parser(encoding))
    except LookupError:
        raise InputError(f"left as it is, in an unknown encoding, {encoding}") from None
    except etree.XMLSyntaxError as error:
        reason = " ".join(str(error.msg).split())  # some come with a line end
        supposed = encoding or ("UTF-16" if document[:2] in _UTF16 else "UTF-8")
        raise InputError(f"left as it is, no well-formed XML in {supposed} ({reason})") from None


def _parser(encoding: str | None) -> etree.XMLParser:
    """Raises LookupError."""
    options = {"resolve_entities": False, "no_network": True, "strip_cdata": False}
    try:
        return etree.XMLParser(encoding=encoding, **options)
    except LookupError:  # it may know another name of the same, such as of latin-1
        return etree.XMLParser(encoding=codecs.lookup(str(encoding)).name, **options)


def _full(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"


def _add(parent: Any, name: str) -> Any:
    prefix = name.partition(":")[0]
    return etree.SubElement(parent, _full(name), nsmap={prefix: NAMESPACES[prefix]})


def _text(element: Any) -> str:
    return str(element.xpath("string()")).strip()
