"""The shell completes verbs, rules, sections and formats, by the script that the how-to names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
eval "$(_DISTPROF_COMPLETE=bash_source {program})"
COMP_WORDS=({words}) COMP_CWORD={place}
_distprof_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("ana",), {"analyze"}),
        (("rule", "com10"), {"COM101", "COM103", "COM105"}),
        (("rule", "launch-b"), {"launch-bound-host"}),
        (("analyze", "--section", "stra"), {"stragglers"}),
        (("report", "--format", "ht"), {"html"}),
    ],
)
def test_bash_completes(words: tuple[str, ...], completed: set[str]) -> None:
    program = str(Path(sys.executable).parent / "distprof")
    text = ASK.format(program=program, words=" ".join(("distprof", *words)), place=len(words))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert completed <= found
    assert all(word.lower().startswith(words[-1]) for word in found)
