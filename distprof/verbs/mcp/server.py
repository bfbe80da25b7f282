"""The server: the official SDK around :class:`~distprof.verbs.mcp.tools.Tools`, over stdio."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distprof.errors import DistprofError, InputError, MissingExtraError
from distprof.escape import plain, shorten
from distprof.verbs.mcp.root import Root
from distprof.verbs.mcp.tools import Tools, bounded
from distprof.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

__all__ = ["make_server", "one_sentence"]

_MAX_ERROR = 600

_INSTRUCTIONS = (
    "Diagnoses distributed PyTorch training from recordings below {root}. Start with analyze; "
    "list_findings and explain_rule go deeper. Unknown is said to be unknown and is never 0."
)


def make_server(root: Root) -> MCPServer[Any]:
    """A server whose tools read what is below ``root`` and write nothing there.

    Raises:
        MissingExtraError: If the package ``mcp`` is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp_types import ToolAnnotations
    except ImportError as error:
        raise MissingExtraError("distprof mcp", "mcp") from error
    server: MCPServer[Any] = MCPServer(
        name="distprof",
        version=__version__,
        instructions=_INSTRUCTIONS.format(root=root.folder),
        log_level="ERROR",
    )
    says = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    # Calls come in threads of their own; two analyses at once would need twice the memory
    turns = threading.Lock()
    for tool in Tools(root).all:
        server.add_tool(
            _answering(tool, turns),
            description=inspect.getdoc(tool),
            annotations=says,
            structured_output=False,
        )
    return server


def _answering(tool: Callable[..., str], turns: threading.Lock) -> Callable[..., str]:
    """The tool, one call at a time, with every failure as the SDK's own error in one sentence."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(**arguments: Any) -> str:
        try:
            with turns:
                return bounded(tool(**arguments))
        except Exception as error:
            raise ToolError(one_sentence(error)) from error

    return answer


def one_sentence(error: Exception) -> str:
    """What went wrong, on one line of bounded length."""
    if isinstance(error, InputError):
        way_out = f"; try: {error.fix}" if error.fix else ""
        said = f"{error.source}: expected {error.expected}, found {error.found}{way_out}"
    elif isinstance(error, DistprofError):
        said = str(error)
    else:
        said = f"unexpected error in distprof ({type(error).__name__}: {error})"
    return shorten(plain(" ".join(said[: 4 * _MAX_ERROR].split())), _MAX_ERROR)
