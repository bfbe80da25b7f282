"""The hook of ``distprof capture``: Python imports it at startup because of ``PYTHONPATH``.

It runs in every Python process that the captured program starts, of any version and environment. So
it needs only the standard library, does almost nothing until torch is imported, and never fails.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # type checkers know this name; importing it from typing takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import
MAX_DIARY_BYTES = 4 * 2**20


def _write_down(event: str, **about: str) -> None:
    """Add a line to the diary of the run. A failed write is ignored."""
    try:
        texts = {"event": event, "host": os.uname().nodename, **about}
        pairs = [f'"t_ns": {time.time_ns()}, "pid": {os.getpid()}']
        pairs += [f'"{name}": {_quoted(text)}' for name, text in texts.items()]
        file = os.path.join(os.environ["DISTPROF_RUN_DIR"], "capture.jsonl")  # noqa: PTH118
        to = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.fstat(to).st_size < MAX_DIARY_BYTES:
                os.write(to, f"{{{', '.join(pairs)}}}\n".encode())
        finally:
            os.close(to)
    except Exception:
        pass


def _quoted(text: str) -> str:
    """``text`` as JSON. Importing the module json would take longer than everything else here."""
    return '"{}"'.format("".join(_escaped(letter) for letter in text[:500]))


def _escaped(letter: str) -> str:
    if " " <= letter <= "~" and letter not in '"\\':
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0xD800 else "?"


def _find_in(name: str, folders: list[str], target: Any = None) -> Any:
    """Find a module in these folders, as Python itself would."""
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == "PathFinder":
            return finder.find_spec(name, folders, target)
    return None


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides, if any."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]  # noqa: PTH100
    spec = _find_in("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _OurPackages:
    """Finds distprof's own packages if the program's environment lacks them.

    It comes last and matches by name, so that nothing else from distprof's environment can reach
    the program.
    """

    def __init__(self, places: list[str]) -> None:
        self._folders = {}
        for place in places:
            folder, name = os.path.split(place)
            self._folders[name.split(".")[0]] = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by the import system."""
        if path is not None or name not in self._folders:
            return None
        return _find_in(name, [self._folders[name]], target)


class _AfterTorch:
    """Calls back once torch has been imported, then removes itself without a trace.

    Many libraries check for torch long before they import it
    (``importlib.util.find_spec("torch")``), so a search for it is not enough: this finder stays
    until the module has been executed.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by the import system."""
        if name != "torch" or path is not None:
            return None
        spec = self._found_by_others(name, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _call_after(spec.loader, self._executed)
        return spec

    def _found_by_others(self, name: str, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, None, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _executed(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            _torch_imported(module)


def _call_after(loader: Any, callback: Callable[[ModuleType], None]) -> None:
    """Call ``callback`` after the loader has executed its module."""
    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)  # restore torch's own loader
        execute(module)
        callback(module)

    try:
        loader.exec_module = execute_and_call
    except AttributeError:  # a loader that does not accept attributes
        _write_down("unusable", detail="torch is loaded in a way that cannot be hooked")


def _torch_imported(torch: ModuleType) -> None:
    try:
        _write_down("torch", detail=str(getattr(torch, "__version__", "")))
        sys.meta_path.append(_OurPackages(_places()))
        try:
            from distprof_probes.attach.hook import install
        except ImportError as error:
            _write_down("unusable", detail=_why_not(error), python=sys.executable)
            return
        install(torch)
    except Exception as error:
        _write_down("unusable", detail=f"the hook failed: {error!r}")


def _places() -> list[str]:
    return [place for place in os.environ.get("DISTPROF_PACKAGES", "").split(os.pathsep) if place]


def _why_not(error: ImportError) -> str:
    """Why the probes cannot be imported, and how to fix it."""
    version = "{}.{}".format(*sys.version_info[:2])
    return f"{error} in Python {version}; {sys.executable} -m pip install distprof"


def _take_up() -> None:
    if not os.environ.get("DISTPROF_RUN_DIR"):
        return
    _write_down(
        "python",
        python=sys.executable or "",
        program=" ".join(sys.orig_argv[1:4])[:300] if hasattr(sys, "orig_argv") else "",
    )
    sys.meta_path.insert(0, _AfterTorch())


_take_up()
_chain()
