"""Output of ``nvidia-smi topo -m``: how GPUs and network cards of a machine are connected.

It is read as users save it: with the terminal's escape codes, from one host or many, one after
another or with the host name before each line, and with other output around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from distprof.bounds import Bound, within
from distprof.errors import InputError
from distprof.ingest.files import DAMAGE, opened
from distprof.ingest.sensors.collect import host_named
from distprof.ingest.source import Source, keep
from distprof.run.evidence import Machine, Machines
from distprof.run.run import Run

BOUND = Bound(reads="output of nvidia-smi topo -m", num_bytes=1 << 24, names=512, beyond="refused")
MAX_DEVICES = 512
_SNIFFED_BYTES = 1 << 18
_LONGEST_LINE = 1 << 16
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PREFIX = r"(?:(?P<prefix>[A-Za-z0-9][\w.\-]{0,252}|\[[\d,]{1,30}\]<\w{1,12}>):)?"
_HEADER = re.compile(
    _PREFIX
    + r"\s+(?P<names>GPU0(?:\s+(?!(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b)[A-Za-z][\w.\-]*)*?)"
    + r"\s*(?:CPU Affinity.*)?"
)
_LINE = re.compile(_PREFIX + r"(?P<rest>.*)")
_GPU = re.compile(r"GPU\d{1,4}")
_CARD_NAME = re.compile(r"\s*(NIC\d{1,4}):\s*([\w.:\-]{1,64})\s*")
_PATH = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|N/A")
_RULER = re.compile(r"[=#*\-\s]*")


def fits_machine(source: str) -> bool:
    """Whether a source begins with a matrix of ``nvidia-smi topo -m``, even after other output."""
    try:
        start = _read(source, _SNIFFED_BYTES)
    except (*DAMAGE, ImportError):
        return False
    if b"GPU0" not in start or start.lstrip()[:1] in (b"{", b"["):
        return False
    return bool(parse_machines(start.decode("utf-8", "replace")).machines)


def read_machine(source: str) -> Machines:
    """Read a file about one or many machines."""
    try:
        data = within(_read(source, BOUND.num_bytes + 1), BOUND.num_bytes, source)
    except DAMAGE as error:
        raise InputError(
            source,
            expected=BOUND.reads,
            found=str(error),
            fix="name a file that holds only this output",
        ) from error
    found = parse_machines(data.decode("utf-8", "replace"))
    if not found.machines:
        raise InputError(
            source,
            expected="output of nvidia-smi topo -m",
            found="; ".join(found.notes) or "no GPU matrix",
            fix=(
                "save the output of `nvidia-smi topo -m` on each host, with the host name on "
                "the line before it"
            ),
        )
    return found


def parse_machines(text: str) -> Machines:
    """The machines in a text; none if it holds no matrix."""
    lines = [
        _CONTROL.sub("", _ESCAPE.sub("", line[:_LONGEST_LINE])).rstrip()
        for line in text.splitlines()
    ]
    headers = [match for line in lines if (match := _HEADER.fullmatch(line))]
    prefixes = {match["prefix"] for match in headers} - {None}
    blocks: dict[str, list[_Block]] = {}
    before: dict[str, str] = {}  # last line of each host's output that is not a ruler
    for line in lines:
        match = _LINE.fullmatch(line)  # with the host name before it, if headers have it as well
        is_named = match is not None and match["prefix"] in prefixes
        prefix, rest = (match["prefix"], match["rest"]) if match and is_named else ("", line)
        header = _HEADER.fullmatch(line)
        if header is not None:
            is_task = prefix.isdecimal() or prefix.startswith("[")  # of a launcher, not a host
            host = "" if is_task else prefix
            host = host or host_named(before.get(prefix, ""))
            blocks.setdefault(prefix, []).append(_Block(host, header["names"].split()))
        elif prefix in blocks:
            blocks[prefix][-1].take(rest)
        if not _RULER.fullmatch(rest):
            before[prefix] = rest
    every = [block for several in blocks.values() for block in several]
    notes = tuple(
        f"A matrix of nvidia-smi topo -m{f' of {block.host}' if block.host else ''} lacks GPU rows "
        "and was skipped."
        for block in every
        if not block.is_whole
    )
    machines = dict.fromkeys(block.machine() for block in every if block.is_whole)  # each once
    return Machines(machines=tuple(machines), notes=notes)


class _Block(msgspec.Struct):
    """One matrix while it is read."""

    host: str  # Host name, empty if unknown.
    names: list[str]  # Devices in the order of the columns.
    rows: dict[str, list[str]] = msgspec.field(default_factory=dict)
    affinity: dict[str, list[str]] = msgspec.field(default_factory=dict)
    card_names: dict[str, str] = msgspec.field(default_factory=dict)

    def take(self, line: str) -> None:
        """Read one more line of the same host's output; other output is ignored."""
        legend = _CARD_NAME.fullmatch(line)
        if legend is not None:
            self.card_names.setdefault(legend[1], legend[2])
            return
        name, *cells = line.split() or [""]
        width = len(self.names)
        if name not in self.names or name in self.rows or width > MAX_DEVICES:
            return
        if len(cells) >= width and all(_PATH.fullmatch(cell) for cell in cells[:width]):
            self.rows[name] = cells[:width]
            self.affinity[name] = cells[width:]

    @property
    def is_whole(self) -> bool:
        gpus = [name for name in self.names if _GPU.fullmatch(name)]
        unique = len(set(self.names)) == len(self.names)
        return unique and len(self.names) <= MAX_DEVICES and all(g in self.rows for g in gpus)

    def machine(self) -> Machine:
        """The machine, GPUs before network cards."""
        gpus = [name for name in self.names if _GPU.fullmatch(name)]
        cards = [name for name in self.names if not _GPU.fullmatch(name)]
        order = [self.names.index(name) for name in (*gpus, *cards)]
        links = tuple(self._row(name, order) for name in (*gpus, *cards))
        return Machine(
            host=self.host,
            gpus=tuple(gpus),
            cards=tuple(self.card_names.get(name, name) for name in cards),
            links=links,
            cpus=tuple(_cell(self.affinity[name], 0) for name in gpus),
            numa=tuple(_cell(self.affinity[name], 1) for name in gpus),
        )

    def _row(self, name: str, order: Sequence[int]) -> tuple[str, ...]:
        """A row in the order of devices; a card without a row gets the links in the GPUs' rows."""
        row = self.rows.get(name)
        if row is None:
            column = self.names.index(name)
            row = [self.rows[other][column] if other in self.rows else "" for other in self.names]
        return tuple("" if row[column] == "N/A" else row[column] for column in order)


def _cell(cells: Sequence[str], index: int) -> str:
    text = cells[index] if index < len(cells) else ""
    return "" if text == "N/A" else text


def _read(source: str, most: int) -> bytes:
    with opened(source) as stream:
        return stream.read(most)


def _join(run: Run, shown: Machines) -> Run:
    """The run with these machines; if two files show a host, the later one counts."""
    before = run.get(Machines)
    again = {machine.host for machine in shown.machines} - {""}
    kept = [one for one in before.machines if one.host not in again] if before else []
    both = Machines(machines=(*kept, *shown.machines), notes=shown.notes)
    return keep(run, both, notes="damaged")


SOURCE = Source(
    bound=BOUND,
    place=70,
    origin="output of nvidia-smi topo -m",
    name="output of nvidia-smi topo -m",
    fits=fits_machine,
    read=read_machine,
    notes="damaged",
    join=_join,
)
