"""Addresses that a user types: of a server, or to listen on."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urlsplit

from distprof.errors import InputError, UsageError

__all__ = ["cannot_listen", "direct_opener", "is_web_address", "listen_address"]

_MOST_PORT = 65_535


def is_web_address(text: str) -> bool:
    """Whether it is a complete ``http`` or ``https`` URL."""
    try:
        parts = urlsplit(text)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        return False
    return is_fine and text.isprintable() and " " not in text


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of a typed ``HOST:PORT`` or ``PORT``; loopback without a host.

    Raises:
        UsageError: If it is neither.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isdecimal() and port.isascii() and len(port) <= 5 and int(port) <= _MOST_PORT):
        raise UsageError(f"{text!r} is not an address such as 127.0.0.1:9464")
    return host, int(port)


def cannot_listen(host: str, port: int, error: Exception) -> InputError:
    """What to say where the operating system refuses an address."""
    return InputError(
        f"{host}:{port}",
        expected="an address of this machine that is free",
        found=getattr(error, "strerror", None) or str(error),
        fix="choose another port with --listen",
    )


def direct_opener() -> urllib.request.OpenerDirector:
    """Opens an address that the user gave, and follows no redirect away from it."""
    return urllib.request.build_opener(_NoRedirect)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **keywords: Any) -> None:  # noqa: ARG002
        return None
