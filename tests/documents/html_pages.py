"""A page of HTML as a parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "hr"}


class Seen(HTMLParser):
    """What a parser finds: elements, attributes, ids, links, text; whether all is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.raw: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == [], "elements are left open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        known = dict(attrs)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.links += [known["href"] or ""] if "href" in known else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.raw[self.open[-1]] = data
        else:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).replace("\u00a0", " ").split())
