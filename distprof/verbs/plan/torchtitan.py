"""Resolves torchtitan's configurations, which are Python functions, without running them.

A launch command names a function (``--module llama3 --config llama3_8b``) and overrides single
values (``--parallelism.tensor_parallel_degree 8``). The function is in the checkout. It is read as
a syntax tree, because configurations come from untrusted folders and importing one needs torch.
Only straight-line code is followed. Values set by other code are unknown and reported as such.

Source:
    torchtitan: ``torchtitan/config/manager.py`` (how the command line is read),
    ``torchtitan/config/README.md`` (where configurations live), each model's
    ``config_registry.py``.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from distprof.bounds import read_plain
from distprof.errors import InputError

UNKNOWN = "set by code that is not followed"

_SECTIONS = frozenset({"training", "parallelism", "activation_checkpoint", "model_spec"})
"""Parts of a configuration that decide a layout."""

_MOST_CALLS = 20
_FOLDERS = ("torchtitan/models", "torchtitan/experiments")

Values = dict[str, Any]


class _Place(msgspec.Struct, frozen=True):
    """A module in which names are looked up."""

    file: Path  # The module.
    root: Path  # Top folder of the checkout.
    most_bytes: int  # Maximum size of a file that is read.


def is_launch(text: str) -> bool:
    """Whether a command line or script starts torchtitan."""
    return bool(re.search(r"(--config|\bCONFIG)[= ]", text)) and bool(
        re.search(r"torchtitan|run_train|(--module|\bMODULE)[= ]", text)
    )


def names_function(source: str) -> bool:
    """Whether ``source`` is a function in a file: ``config_registry.py:llama3_8b``."""
    return bool(re.search(r"\.py:[A-Za-z_]\w*$", source))


def launch_values(text: str, path: Path, most_bytes: int) -> Values:
    """Values of a launch: those of its function, overridden by its command line.

    The script is inside the checkout, or in the folder from which it is started.
    """
    try:
        words = words_of_script(text)
    except ValueError as error:
        raise _unresolved(str(path), str(error)) from error
    typed = dict(_typed(words))
    module, function = typed.pop("module", None), typed.pop("config", None)
    if not (module and function):
        raise _unresolved(str(path), "a command that does not name both --module and --config")
    if "$" in module + function:
        raise _unresolved(str(path), f"shell variables: --module {module} --config {function}")
    file, root = _module_file(module, path)
    place = _Place(file=file, root=root, most_bytes=most_bytes)
    return {**_layout_values(_configured(place, function)), **_overrides(typed)}


MOST_CHARACTERS = 1 << 16
"""Of a script: the time for which ``shlex`` reads a word grows with the square of its length."""


def words_of_script(text: str) -> list[str]:
    """Words of a shell script, without its comments; ValueError if a quotation has no end."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a script of more than {MOST_CHARACTERS:,} characters")
    return shlex.split(text.replace("\\\n", " "), comments=True)


def values_of_function(source: str, most_bytes: int) -> Values:
    """Values of one function of a file, given as ``FILE.py:FUNCTION``."""
    name, _, function = source.rpartition(":")
    file = Path(name)
    root = next((up for up in file.absolute().parents if (up / "torchtitan").is_dir()), file.parent)
    return _layout_values(
        _configured(_Place(file=file, root=root, most_bytes=most_bytes), function)
    )


# The command line ---------------------------------------------------------------------------------

_LAUNCHER = {"NGPU": "nproc-per-node", "MODULE": "module", "CONFIG": "config"}


def _typed(words: list[str]) -> Iterator[tuple[str, str]]:
    """The variables of ``run_train.sh``, then the options, which take precedence."""
    variables = (re.fullmatch(r"(NGPU|MODULE|CONFIG)=(.+)", word) for word in words)
    yield from ((_LAUNCHER[found[1]], found[2]) for found in variables if found)
    for name, value in options_typed(words):
        yield (name if "." in name else name.replace("_", "-")), value or "True"


def options_typed(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and values of the options of a command line; a flag has an empty value."""
    for word, after in zip_longest(words, words[1:], fillvalue=""):
        if not word.startswith("--") or word == "--":
            continue
        name, has_value, value = word[2:].partition("=")
        if not has_value and not after.startswith("--"):
            value = after
        yield name, value


def number_or_text(value: str) -> int | str:
    """The value of an option, as an integer if it is one."""
    return int(value) if re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _overrides(typed: Mapping[str, str]) -> Values:
    found: Values = {}
    for name, value in typed.items():
        key = f"launch.{name}" if name in ("nproc-per-node", "nnodes") else name.replace("-", "_")
        found[key] = number_or_text(value)
    return found


# The checkout -------------------------------------------------------------------------------------


def _module_file(module: str, script: Path) -> tuple[Path, Path]:
    """The file of a module and the root of its checkout, above the script or the working folder."""
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        raise _unresolved(str(script), f"--module {module[:80]}")
    path = module.replace(".", "/")
    wanted = [f"{folder}/{path}/config_registry.py" for folder in _FOLDERS if "." not in module]
    wanted += [f"{path}/config_registry.py", f"{path}.py", f"{path}/__init__.py"]
    for root in (*script.absolute().parents, Path.cwd(), *Path.cwd().parents):
        for name in wanted:
            if (root / name).is_file():
                return root / name, root
    raise _unresolved(
        str(script),
        f"--module {module}, but no {wanted[0]} in or above its folder or the working folder",
    )


def _unresolved(source: str, found: str) -> InputError:
    return InputError(
        source,
        expected="a torchtitan launch whose configuration can be resolved: keep the script inside"
        " the checkout, name FILE.py:FUNCTION, or pass the JSON of --debug.save_config_file",
        found=found[:200],
    )


# A function that returns a configuration ----------------------------------------------------------


def _configured(place: _Place, function: str) -> Values:
    found = _Reader(place).called(function)
    if not isinstance(found, dict):
        raise _unresolved(
            f"{place.file}:{function}", "a function that does not return a configuration"
        )
    return found


class _Reader:
    """Follows the functions of one module, up to a number of nested calls."""

    def __init__(self, place: _Place, calls: int = 0) -> None:
        self._place = place
        self._calls = calls
        self._tree = _parsed(place)
        self._functions = {
            node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)
        }
        self._imports = dict(_imports(self._tree))

    def called(self, name: str) -> Any:
        """The value that a function of this module returns, as far as it can be followed."""
        if name not in self._functions:
            known = ", ".join(sorted(n for n in self._functions if not n.startswith("_"))[:20])
            raise _unresolved(
                f"{self._place.file}:{name}", f"functions of the file: {known or 'none'}"
            )
        local: Values = {}
        for statement in self._functions[name].body:
            if isinstance(statement, ast.Return):
                return self._value(statement.value, local)
            self._follow(statement, local)
        return UNKNOWN

    def _follow(self, statement: ast.stmt, local: Values) -> None:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            _set(local, statement.targets[0], self._value(statement.value, local))
            return
        for node in ast.walk(statement):  # variables set in loops and branches are unknown
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    _set(local, target, UNKNOWN)

    def _value(self, node: ast.expr | None, local: Values) -> Any:
        if isinstance(node, ast.Name):
            return local.get(node.id, UNKNOWN)
        if isinstance(node, ast.Call):
            return self._call(node, local)
        try:
            return ast.literal_eval(node) if node is not None else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return UNKNOWN

    def _call(self, node: ast.Call, local: Values) -> Any:
        name = ast.unparse(node.func)
        if name.split(".")[-1] == "deepcopy" and node.args:
            return self._value(node.args[0], local)
        if name == "model_registry" and node.args:
            return {"name": self._family(), "flavor": self._value(node.args[0], local)}
        if name.split(".")[-1].endswith("Config"):
            return {word.arg: self._value(word.value, local) for word in node.keywords if word.arg}
        if node.args or node.keywords or self._calls >= _MOST_CALLS:
            return UNKNOWN
        if name in self._functions:
            return _Reader(self._place, self._calls + 1).called(name)
        return self._imported(name)

    def _imported(self, name: str) -> Any:
        file = self._file_of(self._imports.get(name, ""))
        if file is None:
            return UNKNOWN
        return _Reader(msgspec.structs.replace(self._place, file=file), self._calls + 1).called(
            name
        )

    def _family(self) -> str:
        """Name of the model: the folder that ``model_registry`` comes from."""
        module = self._imports.get("model_registry", "").strip(".")
        return module.split(".")[-1] if module else self._place.file.parent.name

    def _file_of(self, module: str) -> Path | None:
        dots = len(module) - len(module.lstrip("."))
        folder = self._place.file.parents[dots - 1] if dots else self._place.root
        path = folder / module.lstrip(".").replace(".", "/")
        found = [path.with_suffix(".py"), path / "__init__.py"] if path.name else []
        return next((file for file in found if file.is_file()), None)


def _parsed(place: _Place) -> ast.Module:
    try:
        text = read_plain(place.file, place.most_bytes).decode("utf-8")
        return ast.parse(text)
    except (OSError, UnicodeDecodeError) as error:
        raise _unresolved(str(place.file), str(error)) from error
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _unresolved(str(place.file), f"not valid Python: {error}") from error


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Imported names with their modules; relative modules keep their leading dots."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((alias.asname or alias.name, module) for alias in node.names)


def _set(local: Values, target: ast.expr, value: Any) -> None:
    """Assign to a name, or to part of the configuration that a name holds."""
    path: list[str] = []
    while isinstance(target, ast.Attribute):
        path.insert(0, target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        return
    if not path:
        local[target.id] = value
        return
    inside = local.get(target.id)
    for part in path[:-1]:
        if not isinstance(inside, dict):
            return
        inside = inside.setdefault(part, {})
    if isinstance(inside, dict):
        inside[path[-1]] = value


def _layout_values(values: Mapping[str, Any]) -> Values:
    """Values of the sections that decide a layout, by dotted name."""
    return flat({key: value for key, value in values.items() if key in _SECTIONS})


def flat(values: Mapping[str, Any], before: str = "") -> Values:
    """Values of nested tables by dotted name."""
    found: Values = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{before}{key}."))
        else:
            found[f"{before}{key}"] = value
    return found
