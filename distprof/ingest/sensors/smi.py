"""Output of ``nvidia-smi``: its default tables, and ``-q`` as text, or as XML with ``-x``.

Each output is a snapshot of all GPUs of a host, read into facts, which map the format's name of a
value to its text: levels of text and XML are joined by slashes. The XML is untrusted: expat neither
expands entities nor loads files, and reading stops at declarations, nesting or unclosed tags that
nvidia-smi never writes.

Source: ``nvidia-smi`` manual, "GPU Attributes"; ``nvidia-smi --help-query-gpu``; output of drivers
418 to 590 (``nvsmi_device_v11.dtd`` to ``v13``), which renamed throttle reasons to event reasons in
535 and split the power readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NoReturn
from xml.parsers import expat

import msgspec
from msgspec.structs import asdict

from distprof.bounds import patterns_beside
from distprof.ingest.sensors.collect import (
    Collector,
    bus_id,
    columns_of,
    number,
    state_names,
    time_of,
    whole,
)
from distprof.ingest.sensors.messages import local_time
from distprof.run.logs import Clock, DeviceState, Identity
from distprof.run.records import NO_THROTTLING

_REPAIRS_AND_LINKS = ("generation", "width", "repair_pending", "repair_failed", "recovery")
_REASONS = ("clocks_event_reasons/", "clocks_throttle_reasons/")
_SAYS = patterns_beside(__package__, "smi.toml")
_IDLE = ("idle", "gpu_idle")
_OF_DEVICE = ("product_name", "gpu_uuid", "uuid", "pci/bus_id", "pci/pci_bus_id")
_FAST = ("P0", "P1", "P2")  # states of a busy GPU; in higher ones the link is slowed down as well
_BUSY = 10.0  # a GPU of unknown performance state is in use from this utilisation on, in per cent
_DEPRECATED = "Requested functionality has been deprecated"
_MAX_FACT = 200
_ANSWERS = {"yes": True, "1": True, "no": False, "0": False}


@cache
def _used() -> frozenset[str]:
    return frozenset((*chain(*state_names().values()), *_OF_DEVICE, *columns_of("smi_report")))


def is_used(name: str) -> bool:
    """Whether a fact is used, so a reader should keep its text."""
    return name in _used() or name.startswith(_REASONS)


def state_columns(names: Sequence[str]) -> list[tuple[int, str]]:
    """Positions and names of the columns of a query that describe a GPU's state."""
    known = state_names()
    if not set(names).intersection(chain(*(known[what] for what in _REPAIRS_AND_LINKS))):
        return []
    states = set(chain(*known.values()))
    return [(i, name) for i, name in enumerate(names) if name in states]


def device_of(facts: Mapping[str, str], bus: str, index: int | None) -> Identity:
    """The GPU, with ``index`` if the output lists all GPUs in their order."""
    return Identity(
        index=index,
        uuid=_fact(facts, ("gpu_uuid", "uuid")),
        bus_id=bus_id(_fact(facts, ("pci/bus_id", "pci/pci_bus_id")) or bus),
        name=_fact(facts, ("product_name",)),
    )


def values_of(facts: Mapping[str, str]) -> dict[str, float | None]:
    """Values of the TELEMETRY columns that the facts contain."""
    values: dict[str, float | None] = {}
    for name, (column, scale) in columns_of("smi_report").items():
        cell = _fact(facts, (name,))
        if cell and column not in values:
            value = number(cell)
            values[column] = value if value is None or "iB" in cell else value * scale
    values = {column: value for column, value in values.items() if value is not None}
    errors = _errors(facts)
    return values if errors is None else {**values, "ecc_uncorrected": errors}


def reasons_in(facts: Mapping[str, str]) -> str:
    """Throttling reasons joined by commas; empty if unknown."""
    reasons: dict[str, str] = {}  # by their names in ``--query-gpu``
    for name, text in facts.items():
        if name.startswith(_REASONS) and text in ("Active", "Not Active"):
            last = _SAYS["reason_tag"].sub("", name.rpartition("/")[2])
            reasons[last.replace("display_clocks_", "display_clock_")] = text
    active = [name for name, text in reasons.items() if text == "Active" and name not in _IDLE]
    return "" if not reasons else ",".join(active) or NO_THROTTLING


def state_of(facts: Mapping[str, str], device: Identity, file: str) -> DeviceState | None:
    """The GPU's state; None if the facts contain none of it."""
    names = state_names()
    recovery = _fact(facts, names["recovery"]) or ("Reset" if _any(facts, names["reset"]) else "")
    state = DeviceState(
        file=file,
        driver=_fact(facts, names["driver"]),
        cuda=_fact(facts, names["cuda"]),
        is_in_use=_is_in_use(facts),
        pcie_generation=_whole(facts, names["generation"]),
        pcie_generation_max=_whole(facts, names["generation_max"]),
        pcie_width=_whole(facts, names["width"]),
        pcie_width_max=_whole(facts, names["width_max"]),
        ecc_uncorrected=_errors(facts),
        is_repair_pending=_any(facts, names["repair_pending"]),
        has_repair_failed=_any(facts, names["repair_failed"]),
        recovery=recovery if recovery != "None" else "",
        **asdict(device),
    )
    reported = (state.driver, state.pcie_generation, state.pcie_width, state.ecc_uncorrected)
    repairs = (state.is_repair_pending, state.has_repair_failed, state.recovery)
    return state if any(one not in (None, "") for one in (*reported, *repairs)) else None


def _is_in_use(facts: Mapping[str, str]) -> bool | None:
    names = state_names()
    state = _fact(facts, names["performance"])
    if state:
        return state in _FAST
    use = number(_fact(facts, names["use"]))
    return None if use is None else use >= _BUSY


def _errors(facts: Mapping[str, str]) -> int | None:
    """Uncorrected errors since the driver was loaded."""
    names = state_names()
    total = _whole(facts, names["ecc_total"])
    parts = [count for name in names["ecc_parts"] if (count := _whole(facts, (name,))) is not None]
    return total if total is not None else sum(parts) if parts else None


def _any(facts: Mapping[str, str], names: Sequence[str]) -> bool | None:
    """Whether the answer to any of these is yes; None if none is answered."""
    answers = [
        answer for n in names if (answer := _ANSWERS.get(_fact(facts, (n,)).lower())) is not None
    ]
    return any(answers) if answers else None


def _whole(facts: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The number of a text such as ``16x``."""
    return whole(_fact(facts, names).removesuffix("x"))


def _fact(facts: Mapping[str, str], names: Sequence[str]) -> str:
    """The text of the first of these names that has one; empty if none has."""
    for name in names:
        text = facts.get(name, "").strip()[:_MAX_FACT]
        if text and not text.startswith("[") and text != "N/A" and text != _DEPRECATED:
            return text
    return ""


TITLE = "| NVIDIA-SMI "


def date_of(line: str) -> tuple[int, Clock] | None:
    """The time of a date such as ``Fri Jul  3 22:10:46 2026``; None for another line."""
    match = _SAYS["when"].fullmatch(line) if line[:1].isupper() else None
    if match is None:
        return None
    month, day, time, year = match.groups()
    return local_time(f"{month} {day} {year} {time}")


class SmiTables:
    """Reader of the tables of one host."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._when: tuple[int, Clock] | None = None
        self._gpu: tuple[Identity, float | None] | None = None

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of a table."""
        if line[:1] != "|":
            self._when = date_of(line) or self._when
            return False
        first = _SAYS["first"].fullmatch(line)
        if first is not None:
            index, name, bus, ecc = first.groups()
            device = Identity(index=whole(index), bus_id=bus_id(bus), name=name)
            self._gpu = (device, number(ecc))
            return True
        second = _SAYS["second"].fullmatch(line)
        if second is not None:
            temperature, power, memory, use = (number(cell) for cell in second.groups())
            device, ecc_errors = self._gpu or (Identity(), None)  # kept without its first row
            values = {
                "temperature_c": temperature,
                "power_w": power,
                "memory_used_bytes": memory,
                "gpu_utilization_ratio": None if use is None else use / 100,
                "ecc_uncorrected": ecc_errors,
            }
            self._collector.sample(device, self._when, values, origin="table")
            if ecc_errors:
                facts = {state_names()["ecc_total"][0]: f"{ecc_errors:.0f}"}
                self._collector.state(state_of(facts, device, self._collector.file))
            self._gpu = None
        return True


_XML = ("<?xml", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")
_ROOT = "nvidia_smi_log"
_PROCESS_TYPES = ("processes/process_id/type", "processes/process_info/type")  # text, XML
_MAX_GPUS = 1_024
_MAX_FACTS = 1_000
_MAX_DEPTH = 16
_MAX_TEXT = 1_000
_MAX_TAG = 1 << 18


def begins_query(line: str) -> bool:
    """Whether a line is the first line of the text form, or of a part that is cut out of it."""
    return bool(_SAYS["title" if line.lstrip().startswith("=") else "part"].fullmatch(line))


def begins_xml(line: str) -> bool:
    """Whether a line is one of the first lines of the XML form, or the first of any XML."""
    return line.startswith(_XML)


class _Gpu(msgspec.Struct):
    """Data read for one GPU."""

    bus: str
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    num_processes: int | None = None

    def keep(self, name: str, text: str | None) -> None:
        """Keep a fact, if it is used, or count a process that computes (type ``C``)."""
        if name == "processes":
            self.num_processes = self.num_processes or 0
        elif name in _PROCESS_TYPES and text is not None:
            self.num_processes = (self.num_processes or 0) + ("C" in text)
        elif text is not None and is_used(name) and len(self.facts) < _MAX_FACTS:
            self.facts.setdefault(name, text.strip()[:_MAX_TEXT])


class _Snapshot(msgspec.Struct):
    """Data read from one output."""

    about: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: list[_Gpu] = msgspec.field(default_factory=list)

    def deliver(self, collector: Collector) -> None:
        """Pass the data to the collector.

        The output lists GPUs by index. If it lists only some of them (``-i 3``), no index is known.
        """
        is_whole = whole(self.about.get("attached_gpus", "")) == len(self.gpus)
        text = self.about.get("timestamp", "")
        when = date_of(text) or time_of(text)
        for position, gpu in enumerate(self.gpus):
            device = device_of(gpu.facts, gpu.bus, position if is_whole else None)
            values = {**values_of(gpu.facts), "num_processes": gpu.num_processes}
            reasons = reasons_in(gpu.facts)
            if reasons or any(value is not None for value in values.values()):
                collector.sample(device, when, values, reasons, "query")
            collector.state(state_of({**self.about, **gpu.facts}, device, collector.file))


class SmiText:
    """Reader of the text output of one host."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._snapshot: _Snapshot | None = None
        self._levels: list[tuple[int, str]] = []

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of the output, which then ends."""
        if _SAYS["title"].fullmatch(line):
            self.close()
            self._snapshot = _Snapshot()
            return True
        if self._snapshot is None and _SAYS["part"].fullmatch(line):
            self._snapshot = _Snapshot(gpus=[_Gpu("")])
        if self._snapshot is None:
            return False
        if not line.strip():
            return True
        gpu = _SAYS["gpu"].fullmatch(line)
        if gpu is not None:
            self._levels.clear()
            if len(self._snapshot.gpus) < _MAX_GPUS:
                self._snapshot.gpus.append(_Gpu(gpu[1]))
            return True
        fact = _SAYS["fact"].fullmatch(line) if len(line) <= _MAX_TEXT else None
        if fact is None and line[0] != " ":
            self.close()
            return False
        if fact is not None:
            self._keep(self._snapshot, len(fact[1]), fact[2], fact[3])
        return True

    def close(self) -> None:
        """Finish the current output."""
        if self._snapshot is not None:
            self._snapshot.deliver(self._collector)
        self._snapshot = None
        self._levels.clear()

    def _keep(self, snapshot: _Snapshot, indent: int, key: str, text: str | None) -> None:
        """Keep a fact or the name of a level; deeper facts belong to that level."""
        while self._levels and self._levels[-1][0] >= indent:
            self._levels.pop()
        name = _SAYS["spaces"].sub("_", key.strip().lower())
        name = f"{self._levels[-1][1]}/{name}" if self._levels else name
        if len(self._levels) < _MAX_DEPTH:
            self._levels.append((indent, name))
        if not snapshot.gpus or indent == 0:
            if text is not None and len(snapshot.about) < _MAX_FACTS:
                snapshot.about.setdefault(name, text.strip()[:_MAX_TEXT])
            return
        snapshot.gpus[-1].keep(name, text)


class _RefusedError(Exception):
    """nvidia-smi does not write documents such as this one."""


class SmiXml:
    """Reader of the XML output of one host, line by line."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._parser: expat.XMLParserType | None = None
        self._snapshot = _Snapshot()
        self._path: list[str] = []
        self._text = ""
        self._num_fed = 0

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of a document."""
        if line.startswith("<?xml") or (self._parser is None and begins_xml(line)):
            self.close()
            self._open()
        if self._parser is None:
            return False
        data = f"{line}\n".encode("utf-8", "replace")
        self._num_fed += len(data)
        try:
            self._parser.Parse(data)
            parser = self._parser  # None if the document has ended
            # expat buffers an unclosed tag and reads it again with each line
            if parser is not None and self._num_fed - parser.CurrentByteIndex > _MAX_TAG:
                self._end("a tag does not end")
        except expat.ExpatError as error:
            self._end(expat.ErrorString(error.code))
        except _RefusedError as error:
            self._end(f"{error}")
        return True

    def close(self) -> None:
        """Finish the current document."""
        if self._parser is not None:
            self._end("it ends too early")

    def _open(self) -> None:
        """Create a parser that loads no other file and refuses entities."""
        parser = self._parser = expat.ParserCreate(encoding="utf-8")
        parser.buffer_text = True
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.EntityDeclHandler = _refuse_entities
        parser.ExternalEntityRefHandler = _refuse_entities
        parser.StartElementHandler = self._start
        parser.CharacterDataHandler = self._characters
        parser.EndElementHandler = self._finish
        self._snapshot, self._path, self._text, self._num_fed = _Snapshot(), [], "", 0

    def _end(self, damage: str = "") -> None:
        """Pass the data on, unless that has been done; then the line follows the document's end."""
        if self._parser is None:
            return
        if damage:
            what = f"documents of nvidia-smi -q -x read only up to the damage: {damage}"
            self._collector.left_out[what] += 1
        self._snapshot.deliver(self._collector)
        self._parser = None

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if len(self._path) >= _MAX_DEPTH or (not self._path and name != _ROOT):
            raise _RefusedError("something other than the output of nvidia-smi")
        self._path.append(name)
        self._text = ""
        if self._path == [_ROOT, "gpu"] and len(self._snapshot.gpus) < _MAX_GPUS:
            self._snapshot.gpus.append(_Gpu(attributes.get("id", "")[:_MAX_TEXT]))

    def _characters(self, text: str) -> None:
        if len(self._text) < _MAX_TEXT:
            self._text += text

    def _finish(self, _: str) -> None:
        name, text = "/".join(self._path[2:]), self._text.strip()
        if len(self._path) == 2 and self._path[1] != "gpu":
            if len(self._snapshot.about) < _MAX_FACTS:
                self._snapshot.about.setdefault(self._path[1], text[:_MAX_TEXT])
        elif name and self._path[1] == "gpu" and self._snapshot.gpus:
            self._snapshot.gpus[-1].keep(name, text)
        self._path.pop()
        self._text = ""
        if not self._path:
            self._end()


def _refuse_entities(*_: object) -> NoReturn:
    raise _RefusedError("it declares entities")
