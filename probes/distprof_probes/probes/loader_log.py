"""Records which data loaders are iterated, their configuration, and their sampling order.

Two methods of torch's loader iterator are wrapped, each called once per epoch and not per batch.
Only the first batch of a loader is read: the start of each of its tensors goes into a checksum that
shows whether two ranks got the same data.
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from distprof.artefacts.run_file import LoaderSettings

MAX_LOADERS = 64
MAX_EPOCHS = 1_000
_MAX_TENSORS = 16
_MAX_BYTES = 16_384  # of each tensor
_FEWEST_BYTES = 64  # two ranks may agree on fewer bytes by chance
_MAX_DEPTH = 4
_MODULE = "torch.utils.data.dataloader"

_Function = Callable[..., Any]


class LoaderLog:
    """Observes every ``DataLoader`` of the process without keeping any alive."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._installed: list[tuple[type, str, _Function, _Function]] = []
        self._by_loader: weakref.WeakKeyDictionary[Any, _Entry] = weakref.WeakKeyDictionary()
        self._entries: list[_Entry] = []

    def install(self) -> None:
        """Wrap torch's iterator, if torch has imported it."""
        owner = getattr(sys.modules.get(_MODULE), "_BaseDataLoaderIter", None)
        if owner is None or self._installed:
            return
        for name, wrap in (("__init__", self._around_init), ("_reset", self._around_reset)):
            original = vars(owner).get(name)
            if original is not None:  # another torch version: records less, breaks nothing
                wrapped = wrap(original)
                setattr(owner, name, wrapped)
                self._installed.append((owner, name, original, wrapped))

    def remove(self) -> None:
        """Unwrap it, unless other code has wrapped it since."""
        for owner, name, original, wrapped in self._installed:
            if vars(owner)[name] is wrapped:
                setattr(owner, name, original)
        self._installed.clear()

    def settings(self) -> tuple[LoaderSettings, ...]:
        """The loaders so far; loaders with the same settings are merged."""
        counts: dict[LoaderSettings, int] = {}
        for entry in self._entries:
            settings = entry.settings()
            counts[settings] = counts.get(settings, 0) + 1
        return tuple(
            msgspec.structs.replace(settings, num_loaders=count)
            for settings, count in counts.items()
        )

    def _around_init(self, original: _Function) -> _Function:
        @functools.wraps(original)
        def init(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, loader, *args, **kwargs)
            self._begins(iterator, loader)

        return init

    def _around_reset(self, original: _Function) -> _Function:
        @functools.wraps(original)
        def reset(iterator: Any, loader: Any, first_iter: bool = False, **kwargs: Any) -> None:
            original(iterator, loader, first_iter, **kwargs)
            if not first_iter:  # else the iterator is new
                self._begins(iterator, loader)

        return reset

    def _begins(self, iterator: Any, loader: Any) -> None:
        """An iteration starts. Training continues after any error here."""
        try:
            entry = self._by_loader.get(loader)
            if entry is None:
                if len(self._entries) >= MAX_LOADERS:
                    return
                entry = self._by_loader[loader] = _Entry(_described(loader))
                self._entries.append(entry)
                _at_first_batch(iterator, entry)
            entry.begins(self._step(), getattr(_sampler_of(loader), "epoch", None))
        except Exception:
            return


class _Entry:
    """One loader."""

    def __init__(self, described: LoaderSettings) -> None:
        self._described = described
        self._epochs: dict[
            int, int | None
        ] = {}  # step in which an iteration started, to the epoch number
        self.first_batch = ""

    def begins(self, step: int, epoch: Any) -> None:
        if len(self._epochs) < MAX_EPOCHS:
            self._epochs[step] = _number(epoch)

    def settings(self) -> LoaderSettings:
        is_known = self._described.num_replicas is not None and None not in self._epochs.values()
        return msgspec.structs.replace(
            self._described,
            num_epochs=len(self._epochs),
            num_orders=len(set(self._epochs.values())) if is_known else None,
            first_batch=self.first_batch,
        )


def _number(epoch: Any) -> int | None:
    """An epoch's number, from any numeric type."""
    try:
        return None if epoch is None else int(epoch)
    except (TypeError, ValueError):
        return None


def _described(loader: Any) -> LoaderSettings:
    data: Any = sys.modules["torch.utils.data"]
    sampler, batches = _sampler_of(loader), loader.batch_sampler
    is_iterable = isinstance(loader.dataset, data.IterableDataset)
    is_distributed = isinstance(sampler, data.DistributedSampler)
    return LoaderSettings(
        dataset=type(loader.dataset).__name__,
        is_iterable=is_iterable,
        num_workers=int(loader.num_workers),
        pin_memory=bool(loader.pin_memory),
        prefetch_factor=loader.prefetch_factor if loader.num_workers else None,
        persistent_workers=bool(loader.persistent_workers),
        batch_size=loader.batch_size,
        sampler="" if is_iterable else type(sampler).__name__,
        is_plain=not is_iterable
        and type(sampler) in (data.RandomSampler, data.SequentialSampler)
        and type(batches) in (data.BatchSampler, type(None)),
        num_replicas=int(sampler.num_replicas) if is_distributed else None,
        shuffle=bool(sampler.shuffle) if is_distributed else None,
    )


def _sampler_of(loader: Any) -> Any:
    """The object that draws samples; a loader with a batch sampler has another, unused one."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


# The first batch ----------------------------------------------------------------------------------


def _at_first_batch(iterator: Any, entry: _Entry) -> None:
    """Read the first batch, then restore the iterator."""

    def first() -> Any:
        del iterator._next_data  # restore the class's method
        batch = iterator._next_data()
        entry.first_batch = checksum_of(batch)
        return batch

    if hasattr(iterator, "_next_data"):
        iterator._next_data = first


def checksum_of(batch: Any) -> str:
    """Checksum, hexadecimal, of the start of each tensor in a batch's lists and mappings.

    Never raises. Empty if no tensor is on the CPU, or all of them are constant or too small.
    """
    try:
        return _checksum(batch)
    except Exception:
        return ""


def _checksum(batch: Any) -> str:
    code, num_bytes = 0, 0
    for number, tensor in enumerate(_tensors(batch, _MAX_DEPTH)):
        if number == _MAX_TENSORS:
            break
        data = _start_of(tensor)
        code = zlib.crc32(repr((tuple(tensor.shape), str(tensor.dtype))).encode(), code)
        code = zlib.crc32(data, code)
        size = tensor.element_size()
        if data != data[:size] * (len(data) // size):  # a constant carries no information
            num_bytes += len(data)
    return f"{code:08x}" if num_bytes >= _FEWEST_BYTES else ""


def _start_of(tensor: Any) -> bytes:
    torch: Any = sys.modules["torch"]
    count = _MAX_BYTES // tensor.element_size()
    flat = tensor.detach().view(-1)[:count]
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _tensors(batch: Any, depth: int) -> Iterator[Any]:
    """Plain contiguous tensors in CPU memory."""
    torch: Any = sys.modules["torch"]
    if type(batch) is torch.Tensor:
        if batch.device.type == "cpu" and batch.numel() and batch.is_contiguous():
            yield batch
        return
    if depth == 0 or isinstance(batch, str | bytes):
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | list | tuple):
        for part in parts:
            yield from _tensors(part, depth - 1)
