"""Output of ``nvidia-smi``: its default tables, and ``-q`` as text, or as XML with ``-x``.

Each output is a snapshot of all GPUs of a host. The XML is untrusted: expat neither expands
entities nor loads files, and reading stops at declarations, nesting or unclosed tags that
nvidia-smi never writes.

Source: ``nvidia-smi`` manual; output of drivers 418 to 590.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn
from xml.parsers import expat

import msgspec

from distprof.ingest.sensors.collect import Collector, Identity, bus_id, number, time_of, whole
from distprof.ingest.sensors.facts import device_of, is_used, reasons_in, state_of, values_of
from distprof.ingest.sensors.kernel import parsed_time
from distprof.run.logs import Clock

TITLE = "| NVIDIA-SMI "
_WHEN = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\s*")
_FIRST = re.compile(
    r"\|\s+(\d{1,4})\s{1,4}(\S.{0,60}?)\s+(?:On|Off|N/A)\s*\|\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]{5,9})\s"
    r"+(?:On|Off|N/A)\s*\|\s*(\S{1,12})\s*\|\s*"
)
_SECOND = re.compile(
    r"\|\s*\S{1,5}\s+(\d{1,4}C|N/A|ERR!)\s+\S{1,4}\s+(\S{1,8})\s*/\s*\S{1,8}\s*\|\s*(\S{1,12})\s*/"
    r"\s*\S{1,12}\s*\|\s*(\d{1,3}%|N/A|ERR!)\s.{0,40}\|\s*"
)


def date_of(line: str) -> tuple[int, Clock] | None:
    """The time of a date such as ``Fri Jul  3 22:10:46 2026``; None for another line."""
    match = _WHEN.fullmatch(line) if line[:1].isupper() else None
    if match is None:
        return None
    month, day, time, year = match.groups()
    t_ns = parsed_time(f"{month} {day} {year} {time}", "%b %d %Y %H:%M:%S")
    return None if t_ns is None else (t_ns, "local")


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
        first = _FIRST.fullmatch(line)
        if first is not None:
            index, name, bus, ecc = first.groups()
            device = Identity(index=whole(index), bus_id=bus_id(bus), name=name)
            self._gpu = (device, number(ecc))
            return True
        second = _SECOND.fullmatch(line)
        if second is not None and self._gpu is not None:
            temperature, power, memory, use = (number(cell) for cell in second.groups())
            device, ecc_errors = self._gpu
            values = {
                "temperature_c": temperature,
                "power_w": power,
                "memory_used_bytes": memory,
                "gpu_utilization_ratio": None if use is None else use / 100,
                "ecc_uncorrected": ecc_errors,
            }
            self._collector.sample(device, self._when, values, origin="table")
            self._gpu = None
        return True


_TITLE = re.compile(r"=+NVSMI LOG=+\s*")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*")
_FACT = re.compile(r"( *)([A-Za-z][^:|,]{0,80}?)\s*(?:\s: (.*))?")
_SPACES = re.compile(r"\s+")
_XML = ("<?xml", "<!DOCTYPE nvidia_smi_log", "<nvidia_smi_log")
_ROOT = "nvidia_smi_log"
_PROCESS_TYPES = ("processes/process_id/type", "processes/process_info/type")  # text, XML
_MAX_GPUS = 1_024
_MAX_FACTS = 1_000
_MAX_DEPTH = 16
_MAX_TEXT = 1_000
_MAX_TAG = 1 << 18


def begins_query(line: str) -> bool:
    """Whether a line is the first line of the text form."""
    return line.startswith("=") and _TITLE.fullmatch(line) is not None


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
            state = state_of({**self.about, **gpu.facts}, device, collector.file)
            if state is not None:
                collector.state(state)


class SmiText:
    """Reader of the text output of one host."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._snapshot: _Snapshot | None = None
        self._levels: list[tuple[int, str]] = []

    def take(self, line: str) -> bool:
        """Read a line; False if it is not part of the output, which then ends."""
        if begins_query(line):
            self.close()
            self._snapshot = _Snapshot()
            return True
        if self._snapshot is None:
            return False
        if not line.strip():
            return True
        gpu = _GPU.fullmatch(line)
        if gpu is not None:
            self._levels.clear()
            if len(self._snapshot.gpus) < _MAX_GPUS:
                self._snapshot.gpus.append(_Gpu(gpu[1]))
            return True
        fact = _FACT.fullmatch(line) if len(line) <= _MAX_TEXT else None
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
        name = _SPACES.sub("_", key.strip().lower())
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
