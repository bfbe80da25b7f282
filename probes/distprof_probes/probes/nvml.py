"""Samples the GPU's sensors on a separate thread: clocks, power, memory, links, errors.

The sampled GPU is the one on which the training thread uses CUDA. Sampling starts when this is
known, at the latest at the end of the first step, so that no sample comes from another job's GPU. A
process that never uses CUDA records nothing, and the probe says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from distprof.artefacts import NVML_FILE
from distprof.artefacts.run_file import ProbeStatus
from distprof_probes.probe import Probe, Recording, Unavailable
from distprof_probes.probes.nvml_device import (
    SLOW_FIELDS,
    DeviceHint,
    DeviceLostError,
    NoDeviceError,
    NvmlDevice,
    device_hint,
    find_device,
)
from distprof_probes.records import RecordWriter

SLOW_PERIOD_S = 1.0
STOP_WITHIN_S = 2.0  # a driver that hangs delays the end of training by no more than this


class NvmlProbe(Probe):
    """Samples one GPU every ``options.nvml_period_s`` seconds into ``nvml.jsonl``.

    Args:
        nvml: Used in place of the module ``pynvml``.
        which_device: Returns the GPU on which the calling thread computes, None before it does.
    """

    name = "nvml"

    def __init__(
        self, nvml: Any = None, which_device: Callable[[], DeviceHint | None] | None = None
    ) -> None:
        super().__init__()
        self._nvml = nvml
        self._which_device = which_device or _own_device
        self._session: Recording | None = None
        self._sampler: _Sampler | None = None
        self._trouble = "this process used no GPU"  # until a sampler runs

    def start(self, session: Recording) -> None:
        """Open NVML, and start to sample if the GPU is already known."""
        self._nvml = _initialised(self._nvml)
        self._session = session
        self._begin()

    def step_ended(self, step: int) -> None:  # noqa: ARG002
        """Start to sample if CUDA is in use by now."""
        if self._sampler is None:
            self._begin()

    def pause(self) -> None:
        """Stop calling the driver."""
        if self._sampler is not None:
            self._sampler.running.clear()

    def resume(self) -> None:
        """Sample again."""
        if self._sampler is not None:
            self._sampler.running.set()

    def stop(self) -> None:
        """End the thread and write the remaining samples."""
        ended = self._sampler is None or self._sampler.end(STOP_WITHIN_S)
        if self._session is not None and ended:
            _quietly(self._nvml, self._nvml.nvmlShutdown)
        self._session = None

    def status(self) -> ProbeStatus:
        """``unavailable`` if there was no GPU to sample, ``failed`` if it stopped answering."""
        if self._sampler is None:
            return ProbeStatus(name=self.name, state="unavailable", reason=self._trouble)
        self.remark = self._sampler.remarks()
        trouble = self._sampler.trouble
        own = super().status()
        return msgspec.structs.replace(own, state="failed", reason=trouble) if trouble else own

    def _begin(self) -> None:
        session, hint = self._session, self._which_device()
        if session is None or hint is None:
            return
        try:
            handle, found_by = find_device(self._nvml, hint)
        except NoDeviceError as error:
            self._trouble = str(error)
            return
        self._sampler = _Sampler(
            device=NvmlDevice(self._nvml, handle),
            open_writer=functools.partial(self.open_writer, session, NVML_FILE, "distprof.nvml/1"),
            found_by=found_by,
            period_s=session.options.nvml_period_s,
        )
        self._sampler.start()


class _Sampler(threading.Thread):
    """The thread that reads one GPU.

    Args:
        device: The GPU to read.
        open_writer: Creates the file for the samples from the fields of its header.
        found_by: How the GPU was identified.
        period_s: Seconds between two samples.
    """

    def __init__(
        self,
        *,
        device: NvmlDevice,
        open_writer: Callable[[dict[str, Any]], RecordWriter],
        found_by: str,
        period_s: float,
    ) -> None:
        super().__init__(name="distprof-nvml", daemon=True)
        self.running = threading.Event()
        self.running.set()
        self.trouble = ""
        self._device = device
        self._open_writer = open_writer
        self._found_by = found_by
        self._period_s = max(period_s, 0.001)
        self._ended = threading.Event()
        self._num_read = 0

    def remarks(self) -> str:
        """Sensors that the GPU does not report, and failed readings."""
        parts = []
        if self._device.unreadable:
            parts.append(f"the GPU does not report {', '.join(sorted(self._device.unreadable))}")
        if self._device.num_errors:
            parts.append(f"{self._device.num_errors} readings failed")
        return "; ".join(parts)

    def run(self) -> None:
        """Read until ended, or until the GPU is gone."""
        try:
            self._read_all()
        except DeviceLostError as error:
            self.trouble = f"the GPU stopped answering after {self._num_read} samples: {error}"
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"

    def end(self, within_s: float) -> bool:
        """Stop reading; return False if the driver blocks the thread longer than ``within_s``."""
        self._ended.set()
        self.running.set()
        self.join(within_s)
        if self.is_alive():
            self.trouble = f"the driver did not answer for {within_s:.0f} s"
            return False
        self._device.close()
        return True

    def _read_all(self) -> None:
        first = self._device.read(slow=True)  # finds out which sensors work, for the header
        writer = self._open_writer(self._about())
        writer.put(first)
        self._num_read = 1
        began = slow_at = time.monotonic()
        num = 0
        while not self._ended.is_set():
            # Skip late samples instead of catching up: the period stays as in the header.
            num = max(num, int((time.monotonic() - began) / self._period_s)) + 1
            if self._ended.wait(max(began + num * self._period_s - time.monotonic(), 0)):
                return
            self.running.wait()
            now = time.monotonic()
            slow = now - slow_at >= SLOW_PERIOD_S
            slow_at = now if slow else slow_at
            if not self._ended.is_set():
                writer.put(self._device.read(slow=slow))
                self._num_read += 1

    def _about(self) -> dict[str, Any]:
        return {
            **self._device.describe(),
            "found_by": self._found_by,
            "period_s": self._period_s,
            "slow_period_s": SLOW_PERIOD_S,
            "slow_fields": sorted(SLOW_FIELDS),
            "not_supported": dict(self._device.unreadable),
            "watches_xid": self._device.watches_xid,
        }


def _own_device() -> DeviceHint | None:
    return device_hint(sys.modules.get("torch"), os.environ)


def _initialised(nvml: Any) -> Any:
    """The module pynvml, ready to use; Unavailable with a readable reason."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            raise Unavailable("pynvml is not installed: pip install 'distprof[run]'") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unavailable(_why(nvml, error)) from None
    except (AttributeError, OSError) as error:  # another package named pynvml, or a broken library
        raise Unavailable(f"NVML cannot be loaded: {error}") from None
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        _quietly(nvml, nvml.nvmlShutdown)
        raise Unavailable(_why(nvml, error)) from None
    if not count:
        _quietly(nvml, nvml.nvmlShutdown)
        raise Unavailable("NVML found no GPU")
    return nvml


def _why(nvml: Any, error: Exception) -> str:
    reasons = {
        "NVMLError_LibraryNotFound": "no NVML library: the NVIDIA driver is not installed",
        "NVMLError_DriverNotLoaded": "the NVIDIA driver is not loaded",
        "NVMLError_NoPermission": "no permission to query the NVIDIA driver",
        "NVMLError_LibRmVersionMismatch": "NVML and driver versions differ: restart the machine",
    }
    for name, reason in reasons.items():
        if isinstance(error, getattr(nvml, name, ())):
            return reason
    return f"NVML: {error}"


def _quietly(nvml: Any, call: Callable[[], object]) -> None:
    with contextlib.suppress(nvml.NVMLError):
        call()
