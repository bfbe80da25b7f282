"""Well-known XID errors of GPUs, with their meaning and fix.

Source: NVIDIA, "XID Errors" and its catalogue (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import msgspec

_RESET = (
    "Drain the host, and reset the GPU (nvidia-smi -r) or reboot. Replace the GPU if the error "
    "comes back."
)

_PROGRAM = (
    "Run the program with compute-sanitizer, and with CUDA_LAUNCH_BLOCKING=1, to find the kernel. "
    "If several programs fail on this GPU only, run diagnostics (dcgmi diag -r 3)."
)

_LINK = (
    "Reset all GPUs of the host and its switches. If the error comes back, have links and boards "
    "checked."
)


class Meaning(msgspec.Struct, frozen=True):
    """What an XID means."""

    text: str  # Meaning as a clause.
    fix: str  # How to fix it.
    is_hardware: bool = True  # Whether the GPU is usually at fault, not the program.


_NVLINK_5 = Meaning("an NVLink had an error", _LINK)

_MEANINGS = {
    8: Meaning("the GPU stopped processing", _PROGRAM, False),
    13: Meaning(
        "a kernel performed an illegal operation (graphics engine exception)", _PROGRAM, False
    ),
    31: Meaning("a kernel accessed memory outside its allocations (page fault)", _PROGRAM, False),
    32: Meaning("commands that reached the GPU were invalid or corrupted", _PROGRAM, False),
    38: Meaning("the driver's firmware had an error", _RESET),
    43: Meaning(
        "the GPU stopped a program, usually because of a fault in the program", _PROGRAM, False
    ),
    45: Meaning(
        "a program's work was removed, because the program died or after another error",
        "Look for an earlier error in the same log, and for the reason why the program ended.",
        False,
    ),
    48: Meaning(
        "memory had an uncorrectable double-bit error",
        "Drain the host and reset the GPU to remap the row. Replace the GPU if spare rows run out "
        "(nvidia-smi -q -d ROW_REMAPPER).",
    ),
    54: Meaning(
        "auxiliary power is not connected to the GPU board",
        "Check the power cables and supplies of the host.",
    ),
    61: Meaning("the GPU's microcontroller stopped at a breakpoint or a warning", _RESET),
    62: Meaning("the GPU's microcontroller halted", _RESET),
    63: Meaning(
        "a row of memory was remapped, or a page retired, after errors",
        "Reset the GPU soon, because the remapping takes effect only then. Watch for more errors.",
    ),
    64: Meaning(
        "a row of memory could not be remapped, or a page could not be retired",
        "Drain the host and reset the GPU. Replace it if the error comes back.",
    ),
    69: Meaning(
        "a kernel performed an illegal operation (graphics engine class error)", _PROGRAM, False
    ),
    74: Meaning("an NVLink had an error", _LINK),
    79: Meaning(
        "the GPU fell off the bus",
        "Reboot the host. If the error comes back, check power, seating and PCIe, and replace the "
        "GPU.",
    ),
    92: Meaning(
        "memory has many single-bit errors",
        "Watch the GPU (nvidia-smi -q -d ECC), and have it replaced if the rate stays high.",
    ),
    94: Meaning(
        "an uncorrectable memory error was contained in one program",
        "Restart the program, and reset the GPU soon.",
    ),
    95: Meaning(
        "a memory error could be neither corrected nor contained",
        "Drain the host and reset the GPU at once: results of every program on it may be wrong.",
    ),
    109: Meaning("switching between programs took too long (context switch timeout)", _RESET),
    110: Meaning("the GPU reported a security fault", _RESET),
    119: Meaning("the GPU's system processor did not respond in time (GSP)", _RESET),
    120: Meaning("the GPU's system processor had an error (GSP)", _RESET),
    121: Meaning("the link between CPU and GPU had an error (C2C)", _RESET),
    137: Meaning("an access over NVLink was not allowed (fabric linear address)", _PROGRAM, False),
    140: Meaning(
        "memory had an unrecovered error",
        "Drain the host and reset the GPU at once: results of every program on it may be wrong.",
    ),
    143: Meaning("the GPU could not be initialised", _RESET),
    **dict.fromkeys(range(144, 151), _NVLINK_5),
    154: Meaning(
        "the driver requests a recovery action",
        "Follow the text of the error: reset the GPU, drain it, or reboot the host.",
    ),
    156: Meaning(
        "a part of the GPU was marked to be retired",
        "Reset the GPU soon, because the retirement takes effect only then.",
    ),
    157: Meaning(
        "a part of the GPU could not be retired",
        "Drain the host and reset the GPU. Replace it if the error comes back.",
    ),
}

_UNKNOWN = Meaning(
    "see NVIDIA's list of XID errors",
    "Look the number up in NVIDIA's list of XID errors, and run dcgmi diag -r 3 on the host.",
    False,
)


def meaning_of(number: int) -> Meaning:
    """Return what a number means, or where to look it up if it is not well known."""
    return _MEANINGS.get(number, _UNKNOWN)
