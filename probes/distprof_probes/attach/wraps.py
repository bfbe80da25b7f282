"""Wraps the torch functions that a capture observes, without changing what they do."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distprof_probes.attach.hook import Capture

_MARK = "_distprof_wrapped"


def wrap_group_functions(capture: Capture) -> None:
    """Notify the capture before a process group is created or destroyed."""
    distributed = sys.modules.get("torch.distributed")
    make = getattr(distributed, "init_process_group", None)
    destroy = getattr(distributed, "destroy_process_group", None)
    if make is None or destroy is None:  # torch was built without distributed
        return

    @functools.wraps(make)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        capture.joins_group(*_asked_place(make, args, kwargs))
        return make(*args, **kwargs)

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        capture.leaves_group()
        return destroy(*args, **kwargs)

    _replace_in_torch("init_process_group", make, init_process_group)
    _replace_in_torch("destroy_process_group", destroy, destroy_process_group)


def _replace_in_torch(name: str, original: object, replacement: object) -> None:
    """Replace the function in every torch module that has imported it."""
    for place, module in list(sys.modules.items()):
        if place.startswith("torch.distributed") and vars(module).get(name) is original:
            setattr(module, name, replacement)


def _asked_place(function: Any, args: Any, kwargs: Any) -> tuple[int | None, int | None]:
    """Rank and world size that the program passed; None if the environment decides."""
    try:
        given = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # torch will report what is wrong with the call
        return None, None
    rank, world_size = given.get("rank", -1), given.get("world_size", -1)
    if not isinstance(rank, int) or rank < 0:
        return None, None
    return rank, world_size if isinstance(world_size, int) and world_size > 0 else None


def wrap_step(kind: type, capture: Capture) -> None:
    """Notify the capture when an optimizer of this class starts and ends ``step``."""
    original: Any = getattr(kind, "step", None)
    if original is None or hasattr(original, _MARK):
        return
    torch: Any = sys.modules["torch"]

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # do not change the compiler's view of it
            return original(*args, **kwargs)
        capture.call_begins()
        try:
            return original(*args, **kwargs)
        finally:
            capture.call_ends()

    setattr(step, _MARK, True)
    kind.step = step  # type: ignore[attr-defined]


def with_closure(
    args: Any, kwargs: Any, wrap: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[Any, Any] | None:
    """Arguments of ``optimizer.step`` with the closure wrapped; None if it has no closure."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def wrap_backward(torch: Any, capture: Capture) -> None:
    """Notify the capture of backward passes; ``Tensor.backward`` looks up this name per call."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # do not change the compiler's view of it
            original(*args, **kwargs)
            return
        capture.backward_begins()
        try:
            original(*args, **kwargs)
        finally:
            capture.backward_ends()

    torch.autograd.backward = backward
