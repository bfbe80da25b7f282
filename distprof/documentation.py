"""Addresses of documentation pages: the site, a folder for each version, the page.

The site is ``Documentation`` under ``[project.urls]`` in pyproject.toml, read from the metadata of
the installed package. ``documentation`` in ``distprof.toml`` overrides it, for example with a copy
inside a cluster. If neither names a site, findings have no link.
"""

from __future__ import annotations

import re

from distprof.installed import headers
from distprof.version import __version__

_ADDRESS = re.compile(r"https?://[\w.:@-]+(/[\w.~%+@:-]*)*(#[\w.~%-]*)?", re.ASCII)


def is_web_address(text: str) -> bool:
    """Whether ``text`` is an ``http(s)`` address that needs no escaping in any document."""
    return _ADDRESS.fullmatch(text) is not None


def published_site() -> str:
    """The site in the metadata of the installed package; empty without one."""
    urls = (url.partition(", ") for url in headers("distprof", "Project-URL"))
    return next((address for name, _, address in urls if name == "Documentation"), "")


def page_url(page: str, site: str) -> str:
    """The address of a page of this version; empty without a site.

    Args:
        page: Path of the page's source, relative to the documentation.
        site: The site, with or without a trailing slash.
    """
    if not site:
        return ""
    return f"{site.rstrip('/')}/{__version__}/{page.removesuffix('.md')}.html"
