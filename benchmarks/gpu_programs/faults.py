"""The faults: the one setting that each changes, and which first findings are right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from benchmarks.gpu_programs.settings import Settings

__all__ = ["FAULTS", "MODELS", "Case", "Fault", "cases"]

Need = Literal["", "cuda", "compiler", "transformers", "two ranks"]
MODELS = ("transformer", "convolution", "moe")
SYNCHRONISES = ("HST102",)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that is wrong.

    Args:
        name: Its name.
        change: Settings of the faulty program that differ from the healthy one.
        both: Settings of both programs that differ from the defaults.
        right: Codes of which one must be the first finding's.
        words: Or the first finding's message has one of these words, whatever its code.
        models: The models that can have it.
        needs: What it needs beside a CPU.
        is_alone: Whether its pair must be measured in a process without others.
    """

    name: str
    change: dict[str, Any]
    both: dict[str, Any] = field(default_factory=dict)
    right: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    models: tuple[str, ...] = MODELS
    needs: Need = ""
    is_alone: bool = False


LOADED = {"load_ms": 64, "workers": 8}
GRAPHED = {"small": True, "graphed": True}

FAULTS = (
    # The loader, and copies to the GPU
    Fault(name="loader", both=LOADED, change={"workers": 0}, right=("INP103", "INP101")),
    Fault(
        name="item",
        both={"norm": "device"},
        change={"norm": "item"},
        right=SYNCHRONISES,
    ),
    Fault(name="collect", both={"objects": 200_000}, change={"collect": True}, right=("HST103",)),
    Fault(
        name="pageable",
        both={"extra_mb": 64},
        change={"pinned": False},
        right=("INP104", "MEM101"),
        words=("pageable",),
        needs="cuda",
    ),
    Fault(
        name="small",
        both=GRAPHED,
        change={"graphed": False},
        right=("HST101",),
        needs="cuda",
    ),
    Fault(
        name="empty-cache",
        change={"empty_cache": True},
        words=("empty_cache", "cudamalloc", "cudafree", "allocat"),
        needs="cuda",
    ),
    Fault(
        name="checkpoint",
        both={"annotated": True},
        change={"save_every": 10},
        right=("HST105",),
        words=("save_checkpoint",),
    ),
    Fault(name="workers", both=LOADED, change={"workers": 1}, right=("INP101",)),
    Fault(
        name="neighbour", change={"neighbour": True}, right=("TEL107",), words=("another process",)
    ),
    Fault(
        name="sync-layers",
        change={"sync_layers": True},
        right=SYNCHRONISES,
        words=("synchron",),
        needs="cuda",
    ),
    Fault(
        name="images-annotated",
        both={"preparing": "images", "annotated": True},
        change={"prepared_by": "thread"},
        right=("INP103",),
        words=("prepare_batch",),
    ),
    Fault(
        name="spin",
        change={"spin_ms": 30},
        right=("HST101", "HST109", "HST112"),
        words=("python",),
    ),
    Fault(
        name="evaluate",
        both={"annotated": True},
        change={"evaluate_every": 10},
        right=("HST105",),
        words=("evaluat",),
    ),
    Fault(
        name="contention",
        both={"cpus": 2},
        change={"competitors": 4},
        right=("HST110",),
        is_alone=True,
    ),
    Fault(
        name="check",
        both={"check": "device"},
        change={"check": "host"},
        right=SYNCHRONISES,
        words=("synchron",),
    ),
    # The same causes in other clothes, and more
    Fault(name="log-item", change={"log": "item"}, right=SYNCHRONISES),
    Fault(
        name="precision",
        change={"precision": "fp32"},
        right=("HST107",),
        models=("transformer", "moe"),
        needs="cuda",
    ),
    Fault(
        name="save",
        change={"save_every": 10},
        right=("HST105",),
        words=("checkpoint", "written", "saving"),
    ),
    Fault(
        name="limited",
        both={"ragged": True},
        change={"limited": True},
        right=("MEM103",),
        words=("cudamalloc", "retries"),
        needs="cuda",
        is_alone=True,
    ),
    Fault(
        name="images",
        both={"preparing": "images"},
        change={"prepared_by": "thread"},
        right=("INP103", "HST109", "HST112"),
        words=("on the cpu", "cpu operator", "python"),
    ),
    Fault(
        name="text",
        both={"preparing": "text"},
        change={"prepared_by": "thread"},
        right=("INP103", "HST101", "HST109", "HST112"),
        words=("python",),
    ),
    Fault(
        name="text-annotated",
        both={"preparing": "text", "annotated": True},
        change={"prepared_by": "thread"},
        right=("INP103",),
        words=("prepare_batch",),
    ),
    Fault(
        name="sleep",
        change={"sleep_ms": 30},
        right=("HST101", "HST109", "HST112"),
        words=("python", "sleep"),
    ),
    Fault(
        name="offload",
        change={"offload": True},
        right=("MEM101", "INP104", "HST102"),
        words=("optimizer", "copies", "offload", "adam"),
    ),
    Fault(
        name="blocking",
        both={"extra_mb": 64},
        change={"non_blocking": False},
        right=("HST102", "MEM101", "INP104"),
        needs="cuda",
    ),
    Fault(
        name="metrics",
        both={"accuracy": "device"},
        change={"accuracy": "list"},
        right=SYNCHRONISES,
    ),
    Fault(
        name="mask",
        both={"masked": "multiply"},
        change={"masked": "index"},
        right=SYNCHRONISES,
        words=("nonzero",),
    ),
    Fault(name="print", change={"log": "print"}, right=SYNCHRONISES),
    Fault(name="log-many", change={"log": "many"}, right=SYNCHRONISES),
    Fault(
        name="tiny-kernels",
        both={"penalty": "vector"},
        change={"penalty": "loop"},
        right=("HST101",),
    ),
    Fault(
        name="naive",
        change={"naive": True},
        words=("attention",),
        models=("transformer", "moe"),
    ),
    Fault(name="recompute", change={"recompute": True}, right=("MEM107",)),
    Fault(
        name="unfused",
        both={"small": True},
        change={"fused": False},
        right=("HST101",),
        words=("optimizer", "foreach"),
    ),
    Fault(
        name="evaluate-plain",
        change={"evaluate_every": 10},
        right=("HST105",),
        words=("evaluat",),
    ),
    Fault(
        name="graphed-item",
        both=GRAPHED,
        change={"log": "item"},
        right=SYNCHRONISES,
        needs="cuda",
    ),
    Fault(
        name="graphed-loader",
        both=GRAPHED | LOADED,
        change={"workers": 0},
        right=("INP103", "INP101"),
        needs="cuda",
    ),
    Fault(
        name="tf32-check",
        both={"precision": "tf32", "check": "device"},
        change={"check": "host"},
        right=SYNCHRONISES,
        needs="cuda",
    ),
    Fault(
        name="recompile",
        both={"guarded": "same"},
        change={"guarded": "changing"},
        words=("compil",),
    ),
    Fault(
        name="compiled-check",
        both={"compiled": True, "check": "device"},
        change={"check": "host"},
        right=SYNCHRONISES,
        needs="compiler",
    ),
    Fault(
        name="compiled-loader",
        both=LOADED | {"compiled": True},
        change={"workers": 0},
        right=("INP103", "INP101"),
        needs="compiler",
    ),
    # Other programs
    Fault(
        name="loader",
        both=LOADED,
        change={"workers": 0},
        right=("INP103", "INP101"),
        models=("trainer",),
        needs="transformers",
    ),
    Fault(
        name="save",
        change={"save_every": 10},
        right=("HST105",),
        words=("checkpoint", "sav"),
        models=("trainer",),
        needs="transformers",
    ),
    Fault(
        name="log-item",
        change={"log": "item"},
        right=SYNCHRONISES,
        models=("trainer",),
        needs="transformers",
    ),
    Fault(
        name="late-python",
        change={"late_rank": "python"},
        right=("STR101", "STR112"),
        models=("ranks",),
        needs="two ranks",
        is_alone=True,
    ),
    Fault(
        name="late-loader",
        both=LOADED,
        change={"late_rank": "loader"},
        right=("INP102", "STR101", "INP103", "INP101"),
        models=("ranks",),
        needs="two ranks",
        is_alone=True,
    ),
)


@dataclass(frozen=True)
class Case:
    """A program with a fault."""

    program: str
    fault: Fault

    @property
    def name(self) -> str:
        """Name of both."""
        return f"{self.program}/{self.fault.name}"

    def settings(self, *, faulty: bool, tiny: bool) -> dict[str, Any]:
        """What differs from a default training."""
        changed = self.fault.both | (self.fault.change if faulty else {})
        if tiny:
            changed = {"tiny": True, "workers": 1} | shrunk(changed)
        usual = asdict(Settings())
        return {name: value for name, value in changed.items() if value != usual[name]}


def shrunk(settings: dict[str, Any]) -> dict[str, Any]:
    """The same settings for a step of a few milliseconds."""
    smaller = {"load_ms": 8, "extra_mb": 1, "objects": 1000, "spin_ms": 2, "sleep_ms": 2}
    fewer = {"workers": min(settings.get("workers", 0), 2), "competitors": 1}
    return {
        name: (smaller | fewer)[name] if value and name in smaller | fewer else value
        for name, value in settings.items()
    }


def cases() -> Iterator[Case]:
    """All cases; first each fault in one of its models, then each in the next."""
    for turn in range(len(MODELS)):
        for number, fault in enumerate(FAULTS):
            if turn < len(fault.models):
                yield Case(fault.models[(number + turn) % len(fault.models)], fault)
