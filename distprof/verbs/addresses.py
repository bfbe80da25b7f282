"""Addresses that the user enters: of a server, or to listen on."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urlsplit

from distprof.errors import InputError, UsageError

_MOST_PORT = 65_535


def is_web_address(text: str) -> bool:
    """Whether a text is a complete ``http`` or ``https`` URL."""
    try:
        parts = urlsplit(text)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        return False
    return is_fine and text.isprintable() and " " not in text


def listen_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``PORT`` into host and port; the host defaults to loopback."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isdecimal() and port.isascii() and len(port) <= 5 and int(port) <= _MOST_PORT):
        raise UsageError(f"{text!r} is not an address such as 127.0.0.1:9464")
    return host, int(port)


def cannot_listen(host: str, port: int, error: Exception) -> InputError:
    """The error for an address that the operating system refuses."""
    return InputError(
        f"{host}:{port}",
        expected="a free address of this machine",
        found=getattr(error, "strerror", None) or str(error),
        fix="choose another port with --listen",
    )


def direct_opener() -> urllib.request.OpenerDirector:
    """An opener for addresses from the user, which does not follow redirects."""
    return urllib.request.build_opener(_NoRedirect)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **keywords: Any) -> None:  # noqa: ARG002
        return None
