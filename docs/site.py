"""Additions of the documentation site to the pages in ``docs/``: hooks for ``mkdocs.yml``.

The pages themselves stay as GitHub shows them. The hooks order them, add the pages at the top of
the repository, turn links that leave the site into text, and also write each page as Markdown.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from distprof.installed import published_site
from distprof.version import __version__
from docs.contents import (
    DOCS,
    OUTSIDE,
    PROJECT,
    RULES,
    contents,
    outside_code,
    place_of,
    rule_families,
)

__all__ = ["anchor", "on_config", "on_files", "on_page_markdown", "on_post_page", "rewritten"]

ROOT = DOCS.parent
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading as GitHub makes it: lower case, no punctuation, hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the order of the pages, and a folder for each version."""
    config.site_dir = str(ROOT / "build" / "site" / __version__)
    if site := published_site():
        config.site_url = f"{site.rstrip('/')}/{__version__}/"
    sections = contents((DOCS / "index.md").read_text(encoding="utf-8"))
    config.nav = [{"Start": ["index.md", *_placed(sections[0].pages)]}]
    config.nav += [{section.title: _placed(section.pages)} for section in sections[1:]]
    return config


def _placed(pages: tuple[str, ...]) -> list[Any]:
    """Pages of a section. The rules, by family, follow the list of rules."""
    placed: list[Any] = []
    for page in pages:
        families = [{name: rules} for name, rules in rule_families().items()]
        placed.append({"Rules": [page, *families]} if page == RULES else place_of(page))
    return placed


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages at the top of the repository that the index links to."""
    sections = contents((DOCS / "index.md").read_text(encoding="utf-8"))
    for page in (page for section in sections for page in section.pages):
        if page.startswith(OUTSIDE):
            source = DOCS / page
            files.append(File.generated(config, place_of(page), abs_src_path=str(source.resolve())))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Rewrite the links of a page for the site."""
    places = {file.src_uri for file in files if file.inclusion.is_included()}
    return rewritten(markdown, page.file.src_uri, places)


def rewritten(markdown: str, uri: str, places: set[str]) -> str:
    """A page with its links rewritten to pages of the site.

    Args:
        markdown: The page in the repository.
        uri: Its place on the site.
        places: Every place on the site.

    Returns:
        The same text, with links to files that are only in the repository replaced by their text.
    """
    folder = Path(_source(uri)).parent

    def changed(link: re.Match[str]) -> str:
        name, mark, heading = link[2].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return link[0]
        path = os.path.normpath(folder / name)
        place = path.removeprefix("docs/") if path.startswith("docs/") else f"{PROJECT}/{path}"
        if place not in places:
            return link[1] if (ROOT / path).exists() else link[0]
        return f"[{link[1]}]({os.path.relpath(place, Path(uri).parent)}{mark}{heading})"

    return outside_code(_LINK, changed, markdown)


def _source(uri: str) -> str:
    """Path in the repository of a page of the site."""
    inside = uri.removeprefix(f"{PROJECT}/")
    return inside if inside != uri else f"docs/{uri}"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Write the page as Markdown next to the page, for ``llms.txt``."""
    file = Path(config.site_dir, page.file.src_uri)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page.markdown or "", encoding="utf-8")
    return output
