"""The hook as any Python takes it up; without torch, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
from distprof_probes.attach.diary import read_diary
from distprof_probes.attach.environment import captured_environment
from distprof_probes.options import ProbeOptions

FAKE_TORCH = """
from . import optim
__version__ = "0.fake"
"""
FAKE_OPTIM = """
class Optimizer:
    pass
"""


def _python(
    folder: Path, code: str, *flags: str, python: str = sys.executable, pythonpath: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` under the hook, as the child of a capture into ``folder``."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    before = {**clean, "PYTHONPATH": pythonpath} if pythonpath else clean
    environment = captured_environment(before, folder, ProbeOptions())
    return subprocess.run(
        [python, *flags, "-c", textwrap.dedent(code)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A folder with a package called torch."""
    package = tmp_path / "packages" / "torch"
    (package / "optim").mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_TORCH)
    (package / "optim" / "__init__.py").write_text(FAKE_OPTIM)
    return tmp_path / "packages"


def test_a_python_without_torch_only_says_that_it_was_there(tmp_path: Path) -> None:
    done = _python(tmp_path, "import sys; print('probes' in sys.modules)")
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)
    assert [line.event for line in read_diary(tmp_path)] == ["python"]


def test_any_text_gets_into_the_diary(tmp_path: Path) -> None:
    """It is written without the module json, whose import every Python of the job would pay."""
    code = 'pass # "quoted" \\ tab\tümläut \x1b[31m 🎉'
    done = _python(tmp_path, code)
    assert (done.stderr, done.returncode) == ("", 0)
    (line,) = read_diary(tmp_path)
    assert line.program == f"-c {code}".replace("🎉", "?")


def test_a_sitecustomize_that_is_hidden_still_runs(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("MARK = 'theirs'\nprint('customised')\n")
    done = _python(
        tmp_path, "import sitecustomize; print(sitecustomize.MARK)", pythonpath=str(theirs)
    )
    assert (done.stdout, done.stderr) == ("customised\ntheirs\n", "")


def test_torch_is_hooked_once_and_looks_as_before(tmp_path: Path, fake_torch: Path) -> None:
    code = """
        import importlib, sys, torch
        print(hasattr(torch, "_distprof_capture"), type(torch.__loader__).__name__)
        print("exec_module" in vars(torch.__loader__))
        print([f for f in sys.meta_path if type(f).__name__ == "_AfterTorch"])
        first = torch.optim.Optimizer.__init__
        importlib.reload(torch)
        print(torch.optim.Optimizer.__init__ is first)
    """
    done = _python(tmp_path, code, pythonpath=str(fake_torch))
    assert done.stderr == ""
    assert done.stdout == "True SourceFileLoader\nFalse\n[]\nTrue\n"


def test_an_environment_without_distprof_sees_our_packages_and_no_others(
    tmp_path: Path, fake_torch: Path
) -> None:
    """The program has an environment of its own, as with uv or another venv."""
    venv.create(tmp_path / "other", with_pip=False, symlinks=True)
    code = """
        import importlib.util, torch
        print(hasattr(torch, "_distprof_capture"))
        print([bool(importlib.util.find_spec(n)) for n in ("msgspec", "numpy", "click", "pytest")])
    """
    python = str(tmp_path / "other" / "bin" / "python")
    done = _python(tmp_path, code, python=python, pythonpath=str(fake_torch))
    assert done.stderr == ""
    assert done.stdout == "True\n[True, False, False, False]\n"


def test_a_program_with_a_module_called_probes_keeps_it_and_is_captured(
    tmp_path: Path, fake_torch: Path
) -> None:
    (tmp_path / "probes.py").write_text("WHOSE = 'theirs'\n")
    code = "import torch, probes; print(probes.WHOSE, hasattr(torch, '_distprof_capture'))"
    done = _python(tmp_path, code, pythonpath=str(fake_torch))
    assert (done.stdout, done.stderr) == ("theirs True\n", "")


def test_a_torch_that_cannot_be_imported_fails_as_before(tmp_path: Path) -> None:
    done = _python(tmp_path, "import torch", "-S")
    hooked = _python(tmp_path, "import sys; sys.modules['torch'] = None\nimport torch")
    for each in (done, hooked):
        assert each.returncode == 1
        assert each.stderr.strip().splitlines()[-1].startswith("ModuleNotFoundError")


def test_a_run_directory_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    environment = captured_environment({"PATH": os.environ["PATH"]}, folder, ProbeOptions())
    done = subprocess.run(
        [sys.executable, "-c", "print('fine')"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_only_the_hooks_folder_is_put_on_the_path(tmp_path: Path) -> None:
    environment = captured_environment({"PYTHONPATH": "/theirs"}, tmp_path, ProbeOptions())
    ours, theirs = environment["PYTHONPATH"].split(os.pathsep)
    assert theirs == "/theirs"
    assert [file.name for file in Path(ours).glob("*.py")] == ["sitecustomize.py"]
    assert json.loads(environment["DISTPROF_PROBES"])["mode"] == "window"


def test_broken_lines_of_the_diary_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "capture.jsonl").write_bytes(
        b'{"event":"torch","t_ns":1,"pid":2}\n\xff\xfe\n{"event":"nonsense"}\n{"event":"tor'
    )
    assert [line.pid for line in read_diary(tmp_path)] == [2]


LOOKED_FOR = {
    "found and not loaded": "importlib.util.find_spec('torch')",
    "found twice": "importlib.util.find_spec('torch'); importlib.util.find_spec('torch')",
    "only a module was made": (
        "importlib.util.module_from_spec(importlib.util.find_spec('torch'))"
    ),
    "by the finders": "[f.find_spec('torch', None) for f in list(sys.meta_path)]",
    "after a failed import": """
try:
    import torch
except ImportError:
    del os.environ['BROKEN']
""",
    "lazily": """
spec = importlib.util.find_spec('torch')
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules['torch'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['torch'])
sys.modules['torch'].__version__
""",
}


@pytest.mark.parametrize("how", LOOKED_FOR)
def test_a_torch_that_was_looked_for_first_is_still_hooked(
    tmp_path: Path, fake_torch: Path, how: str
) -> None:
    """As transformers and datasets do, which ask whether torch is there before they import it."""
    init = fake_torch / "torch" / "__init__.py"
    broken = "import os\nif 'BROKEN' in os.environ:\n    raise ImportError('broken')\n"
    init.write_text(broken + FAKE_TORCH)
    lines = [
        "import importlib.util, os, sys",
        "os.environ.update(BROKEN='1')" if "failed" in how else "",
        LOOKED_FOR[how],
        "import torch",
        "print(hasattr(torch, '_distprof_capture'), 'exec_module' in vars(torch.__loader__))",
        "print([f for f in sys.meta_path if type(f).__name__ == '_AfterTorch'])",
    ]
    done = _python(tmp_path, "\n".join(lines), pythonpath=str(fake_torch))
    assert (done.stdout, done.stderr) == ("True False\n[]\n", "")
    assert [line.event for line in read_diary(tmp_path)] == ["python", "torch"]


def test_a_program_that_only_looks_for_torch_does_not_import_it(
    tmp_path: Path, fake_torch: Path
) -> None:
    code = """
        import importlib.util, sys
        print(importlib.util.find_spec('torch').name, 'torch' in sys.modules)
    """
    done = _python(tmp_path, code, pythonpath=str(fake_torch))
    assert (done.stdout, done.stderr) == ("torch False\n", "")
    assert [line.event for line in read_diary(tmp_path)] == ["python"]
