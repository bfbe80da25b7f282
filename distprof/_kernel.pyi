"""The compiled kernel; its sources are in ``native/``. Columns are bytes of the machine's order."""

from typing import TypedDict, final

from typing_extensions import Buffer

class DeviceColumns(TypedDict):
    start_ns: bytes  # int64, the file's base not added; so are all times
    end_ns: bytes
    name: bytes  # int32 codes into `names`; so are all codes
    kind: bytes  # int8
    stream: bytes  # int64
    device: bytes  # int32
    correlation: bytes  # int64
    bytes: bytes  # int64
    blocks: bytes  # int32

class HostColumns(TypedDict):
    start_ns: bytes
    end_ns: bytes
    name: bytes
    category: bytes
    thread: bytes
    correlation: bytes
    sequence: bytes  # int32
    inputs: bytes

class CommColumns(TypedDict):
    start_ns: bytes
    end_ns: bytes
    name: bytes
    category: bytes
    thread: bytes
    stream: bytes
    correlation: bytes
    integers: list[bytes]  # in the order of `comm_integers`
    texts: list[bytes]  # codes into the `raw_texts` at the same place

class Chunk(TypedDict):
    num_events: int
    num_clamped: int
    # texts that no chunk had before, and the code of the first; 0 where the decoder began again
    names: tuple[int, list[str | bytes]]  # bytes: a JSON string with escapes, quotes included
    categories: tuple[int, list[str]]
    threads: tuple[int, list[str]]  # process/thread
    inputs: tuple[
        int, list[bytes]
    ]  # sizes, types and values of operators' inputs, NUL between them
    raw_texts: list[tuple[int, list[bytes]]]  # JSON values as they stand in the chunk
    thread_names: list[tuple[str, str, str | bytes]]  # process, thread, name
    device: DeviceColumns
    host: HostColumns
    comm: CommColumns

@final
class Decoder:
    def __new__(
        cls,
        *,
        categories: dict[str, int],
        module_prefix: str,
        step_prefix: str,
        without_inputs: tuple[str, ...],
        comm_prefixes: tuple[str, ...],
        skipped_phases: str,
        arguments: tuple[str, ...],
        comm_integers: tuple[tuple[int, ...], ...],
        comm_texts: tuple[tuple[int, ...], ...],
        longest_ns: int,
        largest_ns: int,
        exact_below_us: int,
    ) -> Decoder: ...
    def decode(self, data: Buffer, stop: int, exact: bool, device_only: bool) -> Chunk | None: ...
    def forget(self) -> None: ...

def select(
    data: Buffer,
    stop: int,
    edge: bytes,
    opening: int,
    category: bytes,
    on_device: tuple[bytes, ...],
    step: bytes,
) -> tuple[bytes, int]: ...
def holds_any(data: Buffer, stop: int, words: tuple[bytes, ...]) -> bool: ...
def simulate(
    num_operations: int,
    width: int,  # simulations at once
    is_float: bool,  # times are float64, else int64
    source: Buffer,
    target: Buffer,
    edge: Buffer,
    duration: Buffer,
    delay: Buffer | None,
    start: Buffer,
    end: Buffer,
) -> None: ...
def depths(num_operations: int, source: Buffer, target: Buffer) -> tuple[bytes, bytes]: ...
