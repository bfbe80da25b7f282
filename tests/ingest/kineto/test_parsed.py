"""Texts of a trace: one code for each, long ones cut but still distinct, memory bounded."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import distprof
from distprof.ingest.kineto import parsed
from distprof.ingest.kineto.parsed import MOST_OF_A_NAME, Symbols, SymbolTable
from distprof.run.tables import ACTIVITY

LONG = "kernel<" * 100_000


def test_a_long_text_is_cut_and_keeps_its_code():
    symbols = Symbols(most=100)
    short, long = symbols["gemm"], symbols[LONG]
    assert symbols[LONG] == long != short
    assert symbols["gemm"] == short
    assert [len(text) for text in symbols.texts] == [4, 100]
    assert symbols.texts[long].startswith("kernel<kernel<")
    assert LONG not in symbols  # its length is not kept either


def test_long_texts_that_differ_at_the_end_stay_different():
    symbols = Symbols(most=100)
    codes = [symbols[LONG + end] for end in ("", "a", "b", "\ud800")]
    assert len(set(codes)) == 4
    assert len(set(symbols.texts)) == 4


def test_the_longest_names_of_real_kernels_are_kept():
    """The longest of the real traces in the tests has 1,817 characters."""
    name = "k" * MOST_OF_A_NAME
    symbols = Symbols(most=MOST_OF_A_NAME)
    code = symbols[name]
    assert symbols.texts[code] == name


@pytest.mark.parametrize(
    "batches",
    [
        [["a", "b"], ["c", "d"]],
        [["a", "b"], ["b", "c", "c"]],
        [["a", LONG], [LONG, "b"]],
        [["a", "b", "c"], ["d", "e", "f"], ["g", "a"]],  # more than are allowed
        [["a" * 90], ["b" * 90], ["c", "d"]],  # and more characters
    ],
)
def test_texts_have_the_same_codes_together_and_one_by_one(batches, monkeypatch):
    monkeypatch.setattr(parsed, "MAX_NAMES", 4)
    monkeypatch.setattr(parsed, "MAX_NAME_CHARACTERS", 160)
    together, alone = Symbols(most=100), Symbols(most=100)
    for batch in batches:
        assert together.of(batch) == [alone[key] for key in batch]
    assert together.texts == alone.texts
    assert together.is_full == alone.is_full


INPUTS = {
    b"": "",  # no sizes
    b'[[[8, 2], []],["float", "Scalar"],["", "1"]]': '[[[8,2],[]],["float","Scalar"],["","1"]]',
    b'[[[8]],[],["[1, 2]"]]': '[[[8]],[],["[1, 2]"]]',
    b'[[ [ 8 ] ],["\\u00b5, b"],[]]': r'[[[8]],["\u00b5, b"],[]]',
    '[[[4]],["float"],[]]': '[[[4]],["float"],[]]',  # from the kernel
    # damaged
    b"[[[8,[],[]]": "",
    b"[[8]],[[9],[],[]]": "",
    b'[[8],["\xff"],[]]': "",
    b'[["],[],[]]': "",
}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_inputs_have_the_same_text_together_and_one_by_one(most):
    for keys in itertools.permutations(INPUTS, most):
        together, alone = SymbolTable().inputs, SymbolTable().inputs
        codes = together.of(keys)
        assert codes == [alone[key] for key in keys]
        assert [together.texts[code] for code in codes] == [INPUTS[key] for key in keys]


def trace_of(names: list[str]) -> bytes:
    events = [
        {
            **{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1_000 * i},
            **{"dur": 900, "args": {"stream": 7, "correlation": i + 1, "device": 0}},
        }
        for i, name in enumerate(names)
    ]
    return gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode())


def test_both_readers_cut_names_alike(tmp_path: Path, monkeypatch):
    (tmp_path / "trace.json.gz").write_bytes(trace_of([LONG, "gemm", LONG + "x", LONG]))
    names = []
    for kernel in ("on", "off"):
        monkeypatch.setenv("DISTPROF_KERNEL", kernel if kernel == "off" else "")
        run = distprof.open_run(tmp_path / "trace.json.gz", use_cache=False)
        table = run.ranks[0].tables.load().activity
        assert table.schema is ACTIVITY
        names.append(table.coded("name").decode())
    assert names[0] == names[1]
    assert [len(name) for name in names[0]] == [MOST_OF_A_NAME, 4, MOST_OF_A_NAME, MOST_OF_A_NAME]
    assert names[0][0] == names[0][3] != names[0][2]


def test_a_small_file_with_a_name_of_megabytes_takes_little_memory(tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(trace_of(["k" * 3_000_000, *(f"gemm {i}" for i in range(200))]))
    assert path.stat().st_size < 100_000
    program = (
        "import re, sys; from pathlib import Path; from distprof.cli import main; "
        "main(sys.argv[1:]); status = Path('/proc/self/status').read_text(); "
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', status)[1]) // 1024, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "analyze", str(path), "--no-cache"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert int(done.stderr.split()[-1]) < 400
