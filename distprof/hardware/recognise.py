"""Which entry of the hardware sheet a device is, by the name that its driver gives it."""

from __future__ import annotations

import re

from distprof.hardware.sheet import Gpu, Sheet

__all__ = ["recognise_gpu"]

_WORDS = re.compile(r"[a-z0-9]+")
_SLOWER_KINDS = frozenset({"pcie", "nvl", "fhhl", "dgxs", "mig", "max", "laptop"})
"""Words for other chips, or cut ones, of the same family: their peaks are not those of SXM."""


def recognise_gpu(sheet: Sheet, device: str) -> Gpu | None:
    """The sheet's entry for a device, for example ``NVIDIA H100 80GB HBM3``.

    All words of an entry's name must be words of the device's; the entry with most words wins. A
    PCIe, NVL or MIG variant is not its SXM sibling: it needs an entry of its own that says so.

    Args:
        sheet: With what the user added.
        device: As the driver calls it.

    Returns:
        None where no entry fits: a peak is never guessed.
    """
    words = _words_of(device)
    fitting = [
        gpu
        for gpu in sheet.gpus.values()
        if (name := _words_of(gpu.name)) and name <= words and _is_same_kind(name, words)
    ]
    return max(fitting, key=lambda gpu: len(_words_of(gpu.name)), default=None)


def _words_of(name: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(name.lower()))


def _is_same_kind(name: frozenset[str], words: frozenset[str]) -> bool:
    return words & _SLOWER_KINDS <= name
