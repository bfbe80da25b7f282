"""Reads the job's configuration from live objects: data loaders, parallel modules, optimizers.

It reads once, after the first step, in time that belongs to no step. It asks torch's logger of a
``DistributedDataParallel`` module a few more times for unused parameters. It changes nothing and
keeps no object alive.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from distprof.artefacts import SETTINGS_FILE
from distprof.artefacts.files import write_atomically
from distprof.artefacts.run_file import DdpSettings, SettingsFile, ThreadSettings
from distprof_probes.probe import Recording, Tracer
from distprof_probes.probes.loader_log import LoaderLog
from distprof_probes.probes.torch_objects import (
    TorchObjects,
    ddp_settings,
    find,
    fsdp_settings,
    optimizer_settings,
    unused_bytes,
)
from distprof_probes.processors import Processors

MAX_OF_A_KIND = 64
_LOOKS = frozenset(range(1, 11))  # torch's logger samples the first ten iterations …
_LOOK_EVERY = 100  # … and then every hundredth

_Settings = TypeVar("_Settings")


class SettingsProbe(Tracer):
    """Writes ``settings.json``."""

    name = "settings"

    def __init__(self) -> None:
        super().__init__()
        self._session: Recording | None = None
        self._file: SettingsFile | None = None
        self._ddp: list[_Ddp] = []
        self._notes: list[str] = []
        self._loaders = LoaderLog(self._step)
        self._processors: Processors | None = None

    def start(self, session: Recording) -> None:
        """Start to observe data loaders."""
        self._session = session
        self._loaders.install()

    def between_steps(self, next_step: int) -> bool:
        """Read the objects after the first step, and DDP's unused parameters for longer."""
        self._loaders.install()  # torch may have been imported only now
        is_first = self._file is None and next_step > 0
        if is_first:
            self._gather()
        if next_step in _LOOKS or next_step % _LOOK_EVERY == 0:
            for module in self._ddp:
                module.look()
        if is_first:
            self._write()
        return is_first

    def stop(self) -> None:
        """Write the settings found since."""
        self._loaders.remove()
        if self._file is None:
            self._gather()
        self._write()
        self._ddp.clear()

    def _step(self) -> int:
        return self._session.current_step if self._session is not None else 0

    def _gather(self) -> None:
        """Read everything except loaders and unused parameters, which change."""
        assert self._session is not None
        self._processors = Processors(self._session.placement.local_world_size)
        found = find()
        self._ddp = self._each(
            found.ddp, lambda module: _Ddp(weakref.ref(module), ddp_settings(module))
        )
        sharded = self._each([found], fsdp_settings)
        optimizers = tuple(self._each(found.optimizers, optimizer_settings))
        if gc.get_freeze_count() and not (self._ddp or optimizers):
            self._notes.append(
                "gc.freeze() was called before the first step ended: parallel modules and "
                "optimizers cannot be found"
            )
        self._file = SettingsFile(
            rank=self._session.rank,
            fsdp=sharded[0] if sharded else (),
            optimizers=optimizers,
            num_compiled=len(found.compiled),
            num_checkpointed=len(found.checkpointed),
        )
        self._file = _with_switches(self._file)

    def _each(self, things: Iterable[Any], read: Callable[[Any], _Settings]) -> list[_Settings]:
        """The settings that can be read; a note gives the reason for others."""
        results = []
        for thing in list(things)[:MAX_OF_A_KIND]:
            try:
                results.append(read(thing))
            except (
                Exception
            ) as error:  # a private attribute of another torch version, or a subclass
                kind = (
                    "sharded modules" if isinstance(thing, TorchObjects) else type(thing).__name__
                )
                self._notes.append(f"{kind} cannot be read: {type(error).__name__}: {error}"[:300])
        return results

    def _write(self) -> None:
        assert self._file is not None
        assert self._session is not None
        self._file = msgspec.structs.replace(
            self._file,
            num_steps=self._session.current_step,
            loaders=self._loaders.settings(),
            threads=self._processors.settings() if self._processors else ThreadSettings(),
            ddp=tuple(module.settings for module in self._ddp),
            notes=tuple(self._notes),
        )
        data = msgspec.json.format(msgspec.json.encode(self._file), indent=2) + b"\n"
        write_atomically(self._session.rank_dir / SETTINGS_FILE, data)
        self.num_records = 1


class _Ddp:
    """A ``DistributedDataParallel`` module, which may disappear at any time.

    Args:
        module: Reference to it.
        settings: Its settings.
    """

    def __init__(self, module: weakref.ref[Any], settings: DdpSettings) -> None:
        self._module = module
        self.settings = settings

    def look(self) -> None:
        """Read its unused parameters."""
        module = self._module() if self.settings.find_unused_parameters else None
        size = None if module is None else unused_bytes(module)
        if size is not None:
            self.settings = msgspec.structs.replace(
                self.settings,
                num_looks=self.settings.num_looks + 1,
                max_unused_bytes=max(size, self.settings.max_unused_bytes or 0),
            )


def _with_switches(file: SettingsFile) -> SettingsFile:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return file
    return msgspec.structs.replace(
        file,
        allow_tf32=_asked(lambda: _allows_tf32(torch.backends.cuda.matmul)),
        cudnn_benchmark=_asked(lambda: torch.backends.cudnn.benchmark),
        is_deterministic=_asked(torch.are_deterministic_algorithms_enabled),
    )


def _allows_tf32(matmul: Any) -> bool:
    """Whether TF32 is allowed; if torch's newer setting is set, the older one cannot be read."""
    precision = getattr(matmul, "fp32_precision", "none")
    return bool(matmul.allow_tf32) if precision == "none" else precision == "tf32"


def _asked(ask: Callable[[], Any]) -> bool | None:
    """The answer, None if this torch lacks the function."""
    try:
        return bool(ask())
    except (AttributeError, RuntimeError):
        return None
