"""How GPUs and network cards of a machine are connected: output of ``nvidia-smi topo -m``.

Also how fast GPUs copy to each other: matrices of CUDA's p2pBandwidthLatencyTest and nvbandwidth.

It is read as users save it: with the terminal's escape codes, from one host or many, one after
another or with the host name before each line, and with other output around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from statistics import median

import msgspec
from msgspec.structs import replace

from distprof.artefacts.fabric_file import GpuCopies
from distprof.bounds import Bound, patterns_beside
from distprof.ingest.files import beginning, refusing, whole
from distprof.ingest.kinds import Source, keep
from distprof.run.evidence import Machine, Machines
from distprof.run.run import Run

BOUND = Bound(reads="output of nvidia-smi topo -m", num_bytes=1 << 24, names=512)
MAX_DEVICES = 512
_SNIFFED_BYTES = 1 << 18
_JSON = (b"{", b"{}", b'{"', b"[", b"[{", b"[[", b'["')
_SIGNS = (b"GPU0", b"P2P=", b"GPU(row)", b"CPU(row)", b"to Device Bandwidth", b"bandwidth in GB/s")
# Output of nccl-tests, which is for ``distprof fabric`` unless NCCL's initialisation is in it.
TEST_SIGNS = (b"out-of-place", b"algbw", b"busbw")
_LONGEST_LINE = 1 << 16
_LINKED = 1.5
_SAID_AS = {"escape": "", "control": "", "bar": "  ", "soc": "SYS", "moved": r"0 \1"}
_SAID_AS |= {way: f"CPU(row) {way} GPU bandwidth (GB/s)" for way in ("->", "<-")}
_SAYS = patterns_beside(__package__, "topology.toml")


_refuse = refusing(
    expected=BOUND.reads,
    fix="save only the output of `nvidia-smi topo -m` on each host, with the host name on the line "
    "before it",
)


def fits_machine(source: str) -> bool:
    """Whether a source begins with a matrix of ``nvidia-smi topo -m``, even after other output."""
    start = beginning(source, _SNIFFED_BYTES)
    if start.lstrip()[:2].rstrip() in _JSON or not any(sign in start for sign in _SIGNS):
        return False
    if all(sign in start for sign in TEST_SIGNS):  # what was measured says more than the topology
        return False
    found = parse_machines(start.decode("utf-8", "replace"))
    return bool(found.machines or found.copies)


def read_machine(source: str) -> Machines:
    """Read a file about one or many machines."""
    data = whole(source, BOUND.num_bytes, _refuse)
    found = parse_machines(data.decode("utf-8", "replace"))
    if not (found.machines or found.copies):
        _refuse(source, "; ".join(found.notes) or "no GPU matrix")
    return found


def parse_machines(text: str) -> Machines:
    """The machines in a text; none if it holds no matrix."""
    from distprof.ingest.sensors.collect import host_named

    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    for name, instead in _SAID_AS.items():
        lines = [_SAYS[name].sub(instead, line) for line in lines]
    lines = [line.rstrip() for line in lines]
    headers = [match for line in lines if (match := _SAYS["header"].fullmatch(line))]
    prefixes = {match["prefix"] for match in headers} - {None}
    blocks: dict[str, list[_Block]] = {}
    before: dict[str, str] = {}  # last line of each host's output that is not a ruler
    for line in lines:
        match = _SAYS["line"].fullmatch(line)  # with the host name, if headers have it as well
        is_named = match is not None and match["prefix"] in prefixes
        prefix, rest = (match["prefix"], match["rest"]) if match and is_named else ("", line)
        header = _SAYS["header"].fullmatch(line)
        if header is not None:
            is_task = prefix.isdecimal() or prefix.startswith("[")  # of a launcher, not a host
            above = before.get(prefix, "")
            titled = _SAYS["title"].fullmatch(above)
            host = ("" if is_task else prefix) or host_named(above)
            block = _Block(host, header["names"].split(), titled[1] if titled else "")
            blocks.setdefault(prefix, []).append(block)
        elif prefix in blocks:
            blocks[prefix][-1].take(rest)
        if not _SAYS["ruler"].fullmatch(rest):
            before[prefix] = rest
    every = [block for several in blocks.values() for block in several]
    notes = tuple(
        f"A matrix of nvidia-smi topo -m{f' of {block.host}' if block.host else ''} lacks the rows "
        f"of {block.num_missing_gpus} of {len(block.gpus)} GPUs, which are left out."
        for block in every
        if block.num_missing_gpus
    )
    known = [block for block in map(_Block.shown, every) if block.is_whole]
    machines = dict.fromkeys(block.machine(is_one_of=len(known)) for block in known)  # each once
    return Machines(machines=tuple(machines), copies=tuple(_copies(lines)), notes=notes)


def _copies(lines: Sequence[str]) -> Iterator[GpuCopies]:
    """The first matrix of copies with access to each other's memory, and the first without."""
    matrices: dict[tuple[str, bool, bool], dict[int, list[float]]] = {}
    rows: dict[int, list[float]] = {}
    for line in lines:
        if title := _SAYS["copies"].search(line):
            rows = {}
            host = {"->": "from", "<-": "to"}[title["way"]] if title["host"] else ""
            key = (host, bool(title["both"]), not title["off"])
            matrices[key] = matrices.get(key) or rows  # what has no rows is no title
        elif _SAYS["other_matrix"].search(line):
            rows = {}
        elif (row := _SAYS["speeds"].fullmatch(line)) and int(row[1]) == len(rows) < MAX_DEVICES:
            rows[len(rows)] = [0.0 if cell == "N/A" else float(cell) for cell in row[2].split()]
    refusals = [bool(said[1]) for said in map(_SAYS["access"].search, lines) if said]
    for (host, is_both_ways, is_direct), matrix in sorted(matrices.items()):
        pairs = [
            (speed, (other if host else gpu, other))
            for gpu, speeds in matrix.items()
            for other, speed in enumerate(speeds)
            if gpu != other or host
        ]
        if pairs:
            least, slowest = min(pairs)
            usual = median(one[0] for one in sorted(pairs)[bool(host) :] or pairs)
            # Of pairs that a link connects, while the others have none
            fast = [speed for speed, _ in pairs if speed > _LINKED * usual and not host]
            yield GpuCopies(
                is_both_ways=is_both_ways,
                is_direct=is_direct and not (refusals and all(refusals)),
                num_gpus=max(map(len, matrix.values())),
                bytes_per_s=(median(fast) if fast else usual) * 1e9,
                slowest_bytes_per_s=least * 1e9,
                slowest=slowest,
                host=host,
            )


class _Block(msgspec.Struct):
    """One matrix while it is read."""

    host: str  # Host name, empty if unknown.
    names: list[str]  # Devices in the order of the columns.
    title: str  # What the text calls it.
    num_cut: int = 0  # GPUs whose rows are cut off.
    rows: dict[str, list[str]] = msgspec.field(default_factory=dict)
    affinity: dict[str, list[str]] = msgspec.field(default_factory=dict)
    card_names: dict[str, str] = msgspec.field(default_factory=dict)

    def take(self, line: str) -> None:
        """Read one more line of the same host's output; other output is ignored."""
        legend = _SAYS["card_name"].fullmatch(line)
        if legend is not None:
            self.card_names.setdefault(legend[1], legend[2])
            return
        name, *cells = line.split() or [""]
        width = len(self.names)
        if name not in self.names or name in self.rows or width > MAX_DEVICES:
            return
        known = len(list(takewhile(_SAYS["path"].fullmatch, cells[:width])))
        if known < width and known + 1 >= len(cells) and self.num_missing_gpus == 1:  # cut off
            cells, known = [*cells[:known], *self._column(name)[known:]], width
        if known == width:
            cells = ["" if cell == "N/A" else cell for cell in cells]
            self.rows[name] = cells[:width]
            self.affinity[name] = cells[width:]

    def shown(self) -> _Block:
        """The part of the matrix that has rows, without GPUs whose rows are cut off."""
        names = [name for name in self.names if name in self.rows or name not in self.gpus]
        kept = [self.names.index(name) for name in names]
        rows = {name: [cells[place] for place in kept] for name, cells in self.rows.items()}
        return replace(self, names=names, rows=rows, num_cut=self.num_missing_gpus)

    @property
    def gpus(self) -> list[str]:
        return [name for name in self.names if _SAYS["gpu"].fullmatch(name)]

    @property
    def num_missing_gpus(self) -> int:
        return sum(name not in self.rows for name in self.gpus)

    @property
    def is_whole(self) -> bool:
        unique = len(set(self.names)) == len(self.names)
        fewest = 1 + bool(self.num_cut)
        return unique and len(self.names) <= MAX_DEVICES and len(self.gpus) >= fewest

    def machine(self, *, is_one_of: int) -> Machine:
        """The machine, GPUs before network cards; a title names it among several."""
        gpus = self.gpus
        cards = [name for name in self.names if name not in gpus]
        order = [self.names.index(name) for name in (*gpus, *cards)]
        # a card without a row gets the links in the GPUs' rows
        rows = (self.rows.get(name) or self._column(name) for name in (*gpus, *cards))
        return Machine(
            host=self.host or self.title * (is_one_of > 1),
            gpus=tuple(gpus),
            cards=tuple(self.card_names.get(name, name) for name in cards),
            links=tuple(tuple(row[column] for column in order) for row in rows),
            cpus=tuple("".join(self.affinity[name][:1]) for name in gpus),
            numa=tuple("".join(self.affinity[name][1:2]) for name in gpus),
            num_cut=self.num_cut,
        )

    def _column(self, name: str) -> list[str]:
        """What the rows say of a device: a path is the same both ways."""
        at = self.names.index(name)
        return [self.rows[other][at] if other in self.rows else "" for other in self.names]


def _join(run: Run, shown: Machines) -> Run:
    """The run with these machines; if two files show a host, the later one counts."""
    before = run.get(Machines)
    again = {machine.host for machine in shown.machines} - {""}
    kept = [one for one in before.machines if one.host not in again] if before else []
    copies = shown.copies or (before.copies if before else ())
    both = Machines(machines=(*kept, *shown.machines), copies=copies, notes=shown.notes)
    return keep(run, both, notes="damaged")


SOURCES = (
    Source(
        bound=BOUND,
        place=70,
        origin="output of nvidia-smi topo -m",
        name="output of nvidia-smi topo -m",
        fits=fits_machine,
        read=read_machine,
        notes="damaged",
        join=_join,
    ),
)
