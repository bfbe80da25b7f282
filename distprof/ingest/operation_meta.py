"""The few lines beside an operation table that say how large the job was (``meta-NAME.yaml``).

Only what such files hold is read: one ``key: value`` per line, sizes as positive integers. That is
no YAML parser, on purpose: whatever else a line holds is refused, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import InputError

__all__ = ["JobSizes", "find_sizes", "read_sizes"]

MAX_BYTES = 65_536
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):[ \t]+(\S.*)")
_SIZE = re.compile(r"[0-9]{1,9}")
_SIZES = {"pp_size": "pp", "dp_size": "dp", "dsp_size": "dsp", "tp_size": "tp"}
_FIX = "write one `key: value` per line, sizes as positive integers, or remove the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSizes:
    """What a meta file says.

    Args:
        mesh: Axis to size, slowest varying first; axes that the file does not name are left out.
        chunks: Model chunks (virtual stages) per stage, None where the file does not say.
        world_size: None where the file does not say.
    """

    mesh: dict[str, int]
    chunks: int | None = None
    world_size: int | None = None


def find_sizes(table: str) -> Path | None:
    """The meta file beside ``trace-NAME.parquet`` or ``NAME.parquet``; None where there is none."""
    if "://" in table:
        return None
    path = Path(table)
    names = dict.fromkeys((path.stem.removeprefix("trace-"), path.stem))
    places = (path.with_name(f"meta-{name}.{end}") for name in names for end in ("yaml", "yml"))
    return next((place for place in places if place.is_file()), None)


def read_sizes(path: Path) -> JobSizes:
    """Sizes of the job.

    Raises:
        InputError: If a line is no ``key: value``, a size is none, or sizes contradict each other.
    """
    values = _values(path)
    sizes = {key: _size(path, key, values[key]) for key in values if key.endswith("_size")}
    mesh = {axis: sizes[key] for key, axis in _SIZES.items() if key in sizes}
    world = sizes.get("world_size")
    product = 1
    for size in mesh.values():
        product *= size
    if world is not None and len(mesh) == len(_SIZES) and product != world:
        raise InputError(
            str(path),
            expected=f"a world_size of {product}, the product of the other sizes",
            found=f"world_size: {world}",
            fix="correct the sizes, or remove the file: sizes are then taken from the table",
        )
    return JobSizes(mesh=mesh, chunks=sizes.get("vpp_size"), world_size=world)


def _values(path: Path) -> dict[str, str]:
    """Keys and values as they stand there."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            str(path), expected="a text file", found=f"{type(error).__name__}: {error}", fix=_FIX
        ) from error
    if len(raw) > MAX_BYTES:
        raise InputError(
            str(path), expected="a few lines", found=f"more than {MAX_BYTES:,} bytes", fix=_FIX
        )
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None or match.group(1) in values:
            what = "a second value of a key" if match else "something else"
            raise InputError(
                str(path),
                expected="lines of `key: value`, each key once",
                found=f"{what} in line {number}: {line[:60]!r}",
                fix=_FIX,
            )
        values[match.group(1)] = match.group(2)
    return values


def _size(path: Path, key: str, value: str) -> int:
    if not _SIZE.fullmatch(value) or int(value) < 1:
        raise InputError(
            str(path), expected="sizes as positive integers", found=f"{key}: {value[:60]}", fix=_FIX
        )
    return int(value)
