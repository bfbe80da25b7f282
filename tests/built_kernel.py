"""The compiled kernel as its sources are now, whatever is installed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")


@cache
def built_kernel() -> ModuleType:
    """The extension, compiled without a warning; skips the test where nothing can compile."""
    sys.path.insert(0, str(ROOT))
    try:
        import hatch_build
    finally:
        sys.path.remove(str(ROOT))
    sources = [ROOT / name for name in (hatch_build.SOURCE, *hatch_build.HEADERS)]
    digest = hashlib.sha1(b"".join(path.read_bytes() for path in sources)).hexdigest()
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    folder = private_folder(ROOT / ".pytest_cache" / f"kernel-{digest[:16]}")
    target = folder / Path(hatch_build.EXTENSION).name
    if not target.exists():
        try:
            hatch_build.compile_extension(target, *STRICT)
        except hatch_build.CannotCompileError as error:
            if "failed" in str(error):
                raise
            pytest.skip(f"the kernel cannot be compiled here: {error}")
    spec = importlib.util.spec_from_file_location("distprof._kernel", target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def private_folder(path: Path) -> Path:
    """A folder of a known name that only this user can enter, made if it is not there.

    Anyone can make a folder of a name that can be guessed, and whoever owns it chooses what is
    loaded from it: PermissionError if it is no folder, or another user owns it or may enter it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    if not stat.S_ISDIR(found.st_mode) or not is_own or (os.name != "nt" and found.st_mode & 0o077):
        raise PermissionError(
            f"{path}: expected a folder of mode 0700 that this user owns; delete it, or set TMPDIR "
            "to another folder"
        )
    return path
