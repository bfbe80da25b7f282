"""Find a GPU in the hardware sheet by the name that its driver reports."""

from __future__ import annotations

import re

from distprof.hardware.sheet import Gpu, Sheet

_WORDS = re.compile(r"[a-z0-9]+")
_SLOWER_KINDS = frozenset({"pcie", "nvl", "fhhl", "dgxs", "mig", "max", "laptop"})
"""Words for other or cut-down chips of the same family, whose peaks differ from the SXM chip's."""


def recognise_gpu(sheet: Sheet, device: str) -> Gpu | None:
    """The sheet's entry for a GPU, for example ``NVIDIA H100 80GB HBM3``.

    All words of an entry's name must occur in the GPU's name; the entry with the most words wins. A
    PCIe, NVL or MIG variant differs from its SXM sibling and needs a separate entry that names it.
    None if no entry fits: a peak is never guessed.
    """
    words = _words_of(device)
    matching = [
        gpu
        for gpu in sheet.gpus.values()
        if (name := _words_of(gpu.name)) and name <= words and _is_same_kind(name, words)
    ]
    return max(matching, key=lambda gpu: len(_words_of(gpu.name)), default=None)


def _words_of(name: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(name.lower()))


def _is_same_kind(name: frozenset[str], words: frozenset[str]) -> bool:
    return words & _SLOWER_KINDS <= name
