"""Files of sensors and errors of devices that are cut, mixed, absurd or made to harm."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from tests.broken_inputs.intact import EITHER, REFUSED, Build, Cases

CASES = Cases()
HEAD = b"timestamp, index, name, clocks.current.sm [MHz], power.draw [W]\n"
ROW = b"2026/07/03 22:10:46.109, 0, NVIDIA H200, 1980 MHz, 626.26 W\n"
EVIL = b"\x1b]0;owned\x07\x1b[2J[bold]\xe2\x80\xae"
XID = b"[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, "


def log(data: bytes, name: str = "gpu.csv") -> Build:
    """A file with these bytes."""

    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data)
        return path

    return build


def random_log(seed: int) -> bytes:
    """Pieces of lines in any order."""
    chance = random.Random(seed)
    pieces = (HEAD, ROW, EVIL, XID, b", ", b"\n", b"\r\n", b"\xff" * 9, b"# gpu pwr\n", b" 0 -1\n")
    return HEAD + ROW + b"".join(chance.choices(pieces, k=2_000))


CASES.add("sensors without a header", REFUSED, log(ROW))
CASES.add("sensors cut in a gzip", EITHER, log(gzip.compress(HEAD + ROW * 9_000)[:-9], "a.csv.gz"))
CASES.add("sensors without an end of line", EITHER, log(HEAD + ROW + b"x" * 900_000))
CASES.add(
    "sensors of a device with control characters",
    EITHER,
    log(HEAD + ROW.replace(b"NVIDIA H200", EVIL)),
)
CASES.add("error of a device with control characters", EITHER, log(XID + EVIL + b"\n", "dmesg.log"))
CASES.add(
    "sensors with absurd numbers",
    EITHER,
    log(HEAD + ROW.replace(b"1980", b"9" * 19).replace(b"626.26", b"-1e99")),
)
CASES.add("sensors of the year 9999", EITHER, log(HEAD + ROW.replace(b"2026/", b"9999/")))
CASES.add(
    "sensors of many devices",
    EITHER,
    log(HEAD + b"".join(ROW.replace(b", 0,", b", %d," % index) for index in range(30_000))),
)
KERNEL = b"Feb 23 16:24:18 node-1 kernel: "
CASES.add(
    "process with control characters that the kernel killed",
    EITHER,
    log(KERNEL + b"Out of memory: Killed process 1 (" + EVIL + b") anon-rss:9kB\n", "dmesg.log"),
)
CASES.add(
    "crash of a process with absurd numbers",
    EITHER,
    log(KERNEL + b"a[" + b"9" * 40 + b"]: segfault at " + b"f" * 5_000 + b"\n", "dmesg.log"),
)
CASES.add(
    "journal with fields of other types",
    EITHER,
    log(
        b'{"__REALTIME_TIMESTAMP": {}, "_HOSTNAME": 7, "MESSAGE": "a[1]: segfault at 0"}\n'
        b'{"__REALTIME_TIMESTAMP": "-1", "_HOSTNAME": "' + EVIL + b'", '
        b'"MESSAGE": [75, 105, "Killed process "]}\n',
        "journal.json",
    ),
)
CASES.add(
    "sensors behind names of very many hosts",
    EITHER,
    log(b"".join(b"node-%d: %snode-%d: %s" % (n, HEAD, n, ROW) for n in range(6_000))),
)
CASES.add(
    "json of AMD's sensors, cut",
    EITHER,
    log(b'[{"gpu": 0, "usage": {"gfx_activity": {"value": 9', "amd.json"),
)
CASES.add(
    "json of AMD's sensors with other types",
    EITHER,
    log(b'[{"gpu": {}, "usage": {"gfx_activity": [1e999, {}]}}, {"gpu": "card9"}, 7]', "amd.json"),
)
XML = b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
STATE = b"<nvidia_smi_log><gpu id='0000:01:00.0'><product_name>" + EVIL + b"</product_name>"
CASES.add("xml of sensors, empty", REFUSED, log(XML, "gpu.xml"))
CASES.add("xml of sensors with control characters", EITHER, log(XML + STATE, "gpu.xml"))
CASES.add(
    "xml of sensors that declares entities in entities",
    REFUSED,
    log(
        b"<?xml version='1.0'?>\n<!DOCTYPE nvidia_smi_log [<!ENTITY a0 'ha'>"
        + b"".join(b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 12))
        + b"]>\n<nvidia_smi_log><uuid>&a11;</uuid></nvidia_smi_log>\n",
        "gpu.xml",
    ),
)
CASES.add(
    "xml of sensors, nested without end", REFUSED, log(XML + b"<nvidia_smi_log>" * 90_000, "a.xml")
)
CASES.add(
    "xml of sensors with a tag without end",
    REFUSED,
    log(XML + b"<nvidia_smi_log>\n<gpu id='" + b"x\n" * 900_000, "a.xml"),
)
CASES.add(
    "text of sensors with control characters and endless lines",
    EITHER,
    log(
        b"==============NVSMI LOG==============\nGPU 00000000:01:00.0\n    Product Name : "
        + EVIL
        + b"\n    "
        + b"a" * 900_000
        + b" : 1\n    Performance State : P0\n    Clocks\n        SM : 1e99 MHz\n",
        "gpu.txt",
    ),
)
for seed in range(5):
    CASES.add(f"pieces of lines of sensors {seed}", EITHER, log(random_log(seed)))
