"""MCP server over stdio: :class:`~distprof.verbs.mcp.tools.Tools` in the official SDK."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distprof.errors import DistprofError, InputError, MissingExtraError
from distprof.escape import plain, shorten
from distprof.verbs.mcp.tools import Root, Tools, bounded
from distprof.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

_MAX_ERROR = 600

_INSTRUCTIONS = (
    "Diagnoses distributed PyTorch training from recordings below {root}. Start with analyze; "
    "list_findings and explain_rule go deeper. Unknown values are reported as unknown, never as 0."
)


def make_server(root: Root) -> MCPServer[Any]:
    """A server whose tools read files below ``root`` and do not write any."""
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
    annotations = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    # Calls arrive on separate threads, and two analyses at once would need twice the memory
    lock = threading.Lock()
    for tool in Tools(root).all:
        server.add_tool(
            _answering(tool, lock),
            description=inspect.getdoc(tool),
            annotations=annotations,
            structured_output=False,
        )
    return server


def _answering(tool: Callable[..., str], lock: threading.Lock) -> Callable[..., str]:
    """Wrap a tool: one call at a time, and every failure as an SDK error of one sentence."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(**arguments: Any) -> str:
        try:
            with lock:
                return bounded(tool(**arguments))
        except Exception as error:
            raise ToolError(one_sentence(error)) from error

    return answer


def one_sentence(error: Exception) -> str:
    """Message of an error, on one line of bounded length."""
    if isinstance(error, InputError):
        fix = f"; try: {error.fix}" if error.fix else ""
        message = f"{error.source}: expected {error.expected}, found {error.found}{fix}"
    elif isinstance(error, DistprofError):
        message = str(error)
    else:
        message = f"unexpected error in distprof ({type(error).__name__}: {error})"
    return shorten(plain(" ".join(message[: 4 * _MAX_ERROR].split())), _MAX_ERROR)
