"""Tools for AI assistants: a server of the Model Context Protocol on stdio, in the official SDK."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distprof.errors import DistprofError, InputError, MissingExtraError, UsageError
from distprof.escape import on_one_line, plain, plain_lines, shorten
from distprof.formats import RenderOptions, find_reporter
from distprof.units import fold_ranks
from distprof.version import __version__

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from distprof.documents.saved import Report
    from distprof.rules.base import Finding

MAX_ENTRIES = 100_000
"""Maximum number of files and folders below a path that are checked for links out of the root."""
_PATTERN = "*?["
_SCHEMES = ("://", "::")


class Root:
    """The folder that was given when the server started; no file outside it is ever opened."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.folder = Path(folder).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"--root {os.fspath(folder)}: {_reason(error)}") from None
        if not self.folder.is_dir():
            raise UsageError(f"--root {os.fspath(folder)}: not a folder")

    def find(self, name: str) -> str:
        """Resolve the path that a caller names to an absolute path without links.

        It is refused if it is a URL or a pattern, does not exist, or if it or any link below it
        leads out of the root. For paths outside the root, the message does not depend on which
        files exist.
        """
        if any(sign in name for sign in _SCHEMES):
            raise self._refusal(name, "a URL", "copy the files below the root first")
        if any(sign in name for sign in _PATTERN):
            raise self._refusal(name, "a pattern", "name a file or a folder")
        try:
            path = (self.folder / name).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise self._refusal(name, _reason(error)) from None
        if not path.is_relative_to(self.folder):
            raise self._refusal(name, "a path that leads out of it")
        if not os.path.exists(path):  # noqa: PTH110 - False if the name is too long for a file
            raise self._refusal(name, "no file or folder with that name")
        # A dump or run.json is read together with the files next to it
        folder = path if path.is_dir() else path.parent
        for number, target in enumerate(_found_below(folder)):
            if number >= MAX_ENTRIES:
                found = f"more than {MAX_ENTRIES:,} files in {folder}"
                raise self._refusal(name, found, "name a folder with fewer files")
            if target is not None and not target.is_relative_to(self.folder):
                raise self._refusal(name, "a link inside it that leads out of the root")
        return str(path)

    def _refusal(self, name: str, found: str, fix: str = "") -> InputError:
        return InputError(name, expected=f"a path inside {self.folder}", found=found, fix=fix)


def _found_below(folder: Path) -> Iterator[Path | None]:
    """For each entry below a folder, its target if it is a link, or else None; follows links."""
    waiting, known = [folder], {folder}
    while waiting:
        for entry in _entries(waiting.pop()):
            if not entry.is_symlink():
                yield None
                path = Path(entry.path)
            else:
                path = Path(os.path.realpath(entry.path))
                yield path
            if entry.is_dir() and path not in known:
                known.add(path)
                waiting.append(path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:  # a folder that cannot be listed cannot be read either
        return


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


MAX_CHARACTERS = 24_000
"""Maximum length of an answer."""
MAX_FINDINGS = 50
"""Maximum number of findings in one answer; ``offset`` selects the next ones."""
_MAX_TEXT = 600
_SEVERITIES = ("info", "warning", "error")


class Tools:
    """The tools of one server, which may read one folder."""

    def __init__(self, root: Root) -> None:
        self._root = root

    @property
    def all(self) -> Sequence[Callable[..., str]]:
        """Every tool; a tool has the name of its function."""
        return (self.analyze, self.list_findings, self.explain_rule, self.compare, self.hang)

    def analyze(self, path: str) -> str:
        """Say where the time of a training step goes, what causes it and what to fix first.

        The answer has at most 1,500 tokens: verdict, plan, findings, evidence, unknown values and
        next commands. The first analysis of a large recording takes minutes.

        Args:
            path: Kineto trace, folder of traces (one per rank), run directory, saved report.json,
                or log of a training program; absolute or relative to the server's root.
        """
        return find_reporter("brief")(self._report(path), RenderOptions())

    def list_findings(
        self, path: str, severity: str = "info", offset: int = 0, limit: int = 20
    ) -> str:
        """List the findings of the rules on a recording, most important first, as JSON.

        Times are nanoseconds per step; null means unknown, never 0. ``next_offset`` is null at
        the end.

        Args:
            path: As for analyze.
            severity: Minimum severity: info, warning or error.
            offset: Number of findings to skip.
            limit: Number of findings to return, at most 50.
        """
        if severity not in _SEVERITIES:
            raise UsageError(f"severity {severity!r} is not one of {', '.join(_SEVERITIES)}")
        if offset < 0 or not 1 <= limit <= MAX_FINDINGS:
            raise UsageError(f"offset must be at least 0, and limit from 1 to {MAX_FINDINGS}")
        least = _SEVERITIES.index(severity)
        report = self._report(path)
        chosen = [f for f in report.findings if _SEVERITIES.index(f.severity.value) >= least]
        return _listed(chosen, offset, limit, num_not_checked=len(report.not_checked))

    def explain_rule(self, rule: str) -> str:
        """Explain a rule: what it detects, its cost, how to fix it, when it is wrong. Markdown.

        Args:
            rule: Code or name, for example STR101 or persistent-straggler.
        """
        from distprof.rules import find_rule

        return find_rule(rule).page

    def compare(self, first: str, second: str) -> str:
        """Say what changed between two runs, and which parts of a step explain the difference.

        Args:
            first: The reference run, in any form that analyze takes.
            second: The run to compare with it.
        """
        from distprof.verbs.compare.show import COMPARISON, compare_reports

        reports = [self._report(path) for path in (first, second)]
        comparison = compare_reports(reports[0], reports[1], names=(first, second))
        return COMPARISON.reporter("brief")(comparison, RenderOptions())

    def hang(self, path: str) -> str:
        """Say in which operation a job is stuck, and which ranks the others wait for.

        Args:
            path: Folder with dumps of torch's Flight Recorder, one per rank, and logs and Python
                stacks if there are any; or a run directory.
        """
        from distprof.verbs.functions import hang
        from distprof.verbs.hang.show import HANG

        return HANG.reporter("brief")(hang(self._root.find(path)), RenderOptions())

    def _report(self, path: str) -> Report:
        """The saved report of a run, or else a new analysis."""
        from distprof.artefacts.files import cache_root
        from distprof.verbs.summaries import open_report

        return open_report(self._root.find(path), cache_dir=cache_root(None, None))


def _listed(findings: Sequence[Finding], offset: int, limit: int, *, num_not_checked: int) -> str:
    rows: list[dict[str, Any]] = []
    size = 0
    for finding in findings[offset : offset + limit]:
        row = {
            "code": finding.code,
            "name": finding.name,
            "severity": finding.severity.value,
            "confidence": finding.confidence.value,
            "headline": finding.headline,
            "message": _bounded_text(finding.message),
            "fix": _bounded_text(finding.fix),
            "ranks": _bounded_text(fold_ranks(finding.ranks)) if finding.ranks else "all",
            "cost_ns_per_step": finding.cost_ns_per_step,
            "recoverable_ns_per_step": finding.recoverable_ns,
            "remaining_ns_per_step": finding.remaining_ns,
        }
        size += len(msgspec.json.encode(row))
        if rows and size > MAX_CHARACTERS // 2:  # indented, it takes up to twice as much
            break
        rows.append(row)
    end = offset + len(rows)
    answer = {
        "findings": rows,
        "num_findings": len(findings),
        "next_offset": end if end < len(findings) else None,
        "num_rules_not_checked": num_not_checked,
    }
    return msgspec.json.format(msgspec.json.encode(answer), indent=1).decode()


def _bounded_text(text: str) -> str:
    return shorten(plain(text[: 4 * _MAX_TEXT]), _MAX_TEXT)


def bounded(text: str) -> str:
    """The text without control characters, with at most :data:`MAX_CHARACTERS` characters."""
    return shorten(plain_lines(text[: 2 * MAX_CHARACTERS]), MAX_CHARACTERS)


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
    message = f"unexpected error in distprof ({type(error).__name__}: {error})"
    if isinstance(error, InputError):
        fix = f"; try: {error.fix}" if error.fix else ""
        message = f"{error.source}: expected {error.expected}, found {error.found}{fix}"
    elif isinstance(error, DistprofError):
        message = str(error)
    return on_one_line(message, _MAX_ERROR)
