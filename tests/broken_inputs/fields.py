"""Valid JSON whose fields hold what no profiler should write."""

from __future__ import annotations

from typing import Any

from tests.broken_inputs.intact import EITHER, FINE, TOLD, Build, Cases, Trace, changed

CASES = Cases()


def kernel(**fields: Any) -> Build:
    """The intact trace, the first kernel's fields replaced; ``...`` removes a field."""

    def change(trace: Trace) -> None:
        _replace(_first_kernel(trace), fields)

    return changed(change)


def argument(name: str, value: Any, *, of: str = "ncclDevKernel_AllReduce") -> Build:
    """The intact trace, one argument of the first event named ``of`` replaced."""

    def change(trace: Trace) -> None:
        event = next(e for e in trace["traceEvents"] if e["name"] == of)
        _replace(event["args"], {name: value})

    return changed(change)


def _first_kernel(trace: Trace) -> Trace:
    event: Trace = next(e for e in trace["traceEvents"] if e.get("cat") == "kernel")
    return event


def _replace(target: Trace, fields: Trace) -> None:
    for name, value in fields.items():
        if value is ...:
            del target[name]
        else:
            target[name] = value


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


ODD_TIMES = {
    "null": None,
    "a word": "soon",
    "a list": [1, 2],
    "an object": {"us": 1},
    "true": True,
    "removed": ...,
    "1e300": 1e300,
    "-1e300": -1e300,
    "400 digits": 10**400,
    "beyond int64": 2**63,
    "negative": -5.0,
    "NaN": float("nan"),
    "Infinity": float("inf"),
}
for _name, _value in ODD_TIMES.items():
    CASES.add(f"ts is {_name}", EITHER, kernel(ts=_value))
    CASES.add(f"dur is {_name}", EITHER, kernel(dur=_value))
CASES.add("ts and dur are strings of numbers", EITHER, kernel(ts="18.125", dur="80.5"))
CASES.add("dur of three years", TOLD, kernel(dur=1e14))
CASES.add("dur is negative by much", TOLD, kernel(dur=-1e9))

ODD_NAMES = {
    "null": None,
    "a number": 7,
    "a list": ["gemm"],
    "removed": ...,
    "empty": "",
    "a megabyte": "k" * (1 << 20),
    "escape codes": "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "markup": "[bold red]gemm[/bold red] [link=http://x]y[/link]",
    "HTML": "<script>alert(1)</script>",
    "Markdown": "| a | `b` | <!-- c --> **d** |",
    "newlines": "gemm\nverdict: all is well\r\n",
    "NUL": "ge\x00mm",
    "C1 control": "gemm\x9b31m",
    "right-to-left override": "gemm\u202egpj.exe",
    "lone surrogate": "gemm\ud800",
    "emoji": "gemm 🚀",
    "a path": "../../../etc/passwd",
    "format specifiers": "%s %n {0} {__class__} ${HOME}",
}
for _name, _value in ODD_NAMES.items():
    CASES.add(f"name is {_name}", EITHER, kernel(name=_value))

ODD_FIELDS: dict[str, dict[str, Any]] = {
    "cat": {"null": None, "a number": 3, "unknown": "quantum_kernel", "removed": ..., "a list": []},
    "ph": {"null": None, "a number": 88, "removed": ..., "lower case": "x"},
    "pid": {"null": None, "an object": {}, "a word": "Spans", "negative": -1, "huge": 2**70},
    "tid": {"null": None, "a float": 7.5, "a word": "stream 7", "removed": ..., "huge": 2**70},
    "args": {"null": None, "a list": [1], "a word": "args", "a number": 3, "removed": ...},
}
for _field, _values in ODD_FIELDS.items():
    for _name, _value in _values.items():
        CASES.add(f"{_field} is {_name}", EITHER, kernel(**{_field: _value}))

ODD_ARGUMENTS: dict[str, dict[str, Any]] = {
    "stream": {"null": None, "hexadecimal": "0x0", "a word": "default", "2^32-1": 2**32 - 1},
    "correlation": {"null": None, "a word": "x", "huge": 2**70, "minus two": -2, "zero": 0},
    "device": {"null": None, "a word": "cuda:0", "huge": 2**40, "negative": -7},
    "Group size": {"nan": "nan", "zero": 0, "negative": -8, "huge": 2**62, "a list": [8]},
    "Process Group Ranks": {
        "cut": "[0, 1, ",
        "words": "zero, one",
        "nested": [[[0]]],
        "negative": "[-1]",
        "a huge range": list(range(0, 100_000)),
        "huge number": f"[{10**30}]",
    },
    "In msg nelems": {"a word": "many", "negative": -4, "2^63": 2**63, "1e300": 1e300},
    "dtype": {"unknown": "Float3", "a number": 6, "null": None},
    "Collective name": {"unknown": "all_to_some", "wait": "wait", "a number": 1, "null": None},
    "Seq": {"a word": "next", "negative": -1, "huge": 2**80, "a float": 1.5},
    "In split size": {"cut": "[1, 2", "huge": "[99999999999999999999]", "an object": {}},
    "Input Dims": {"deep": nested(200), "a number": 3, "huge number": [[2**70]]},
}
for _field, _values in ODD_ARGUMENTS.items():
    for _name, _value in _values.items():
        CASES.add(f"argument {_field} is {_name}", EITHER, argument(_field, _value))
CASES.add("bytes of a copy is a string", FINE, argument("bytes", "4096", of="Memcpy HtoD"))
CASES.add("bytes of a copy is negative", EITHER, argument("bytes", -4096, of="Memcpy HtoD"))


# Metadata ----------------------------------------------------------------------------------------


def top(key: str, value: Any) -> Build:
    return changed(lambda trace: _replace(trace, {key: value}))


def info(key: str, value: Any) -> Build:
    return changed(lambda trace: _replace(trace["distributedInfo"], {key: value}))


NONSENSE: dict[str, Any] = {
    "null": None,
    "a word": "nonsense",
    "a number": 3.5,
    "a list": [1, None, "x"],
    "an empty object": {},
    "nested": nested(150),
}
for _key in ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion"):
    for _name, _value in NONSENSE.items():
        CASES.add(f"{_key} is {_name}", EITHER, top(_key, _value))
for _name, _value in {
    **NONSENSE,
    "a string": "0",
    "negative": -1,
    "huge": 2**70,
    "beyond the world size": 9,
    "true": True,
}.items():
    CASES.add(f"rank is {_name}", EITHER, info("rank", _value))
    CASES.add(f"world size is {_name}", EITHER, info("world_size", _value))
    CASES.add(f"pg_config is {_name}", EITHER, info("pg_config", _value))
CASES.add("a group of nobody", EITHER, info("pg_config", [{"pg_name": "0", "ranks": []}]))
CASES.add("a group of strings", EITHER, info("pg_config", [{"pg_name": 0, "ranks": ["0", "x"]}]))
CASES.add("a group of unknown ranks", EITHER, info("pg_config", [{"pg_name": "0", "ranks": [77]}]))
CASES.add("groups without names", EITHER, info("pg_config", [{"ranks": [0]}, {}, None]))
CASES.add("base time is negative", EITHER, top("baseTimeNanoseconds", -(2**62)))
CASES.add("base time beyond int64", EITHER, top("baseTimeNanoseconds", 2**64))
