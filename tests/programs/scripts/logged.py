"""What a training logger wrote, read by its own library, as JSON on standard output.

Its argument is the name of the logger. The working directory holds what it wrote.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32_768
_FULL, _LAST = 1, 4


def tensorboard() -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator("tensorboard")
    events.Reload()
    tags = events.Tags()
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]
    }
    return {
        "metrics": {tag: events.Scalars(tag)[0].value for tag in tags["scalars"]},
        "steps": sorted({events.Scalars(tag)[0].step for tag in tags["scalars"]}),
        "texts": texts,
    }


def wandb() -> dict[str, Any]:
    """The transaction log of an offline run: records of protobuf in the log format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    history: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for data in _records(file.read_bytes()):
        record = Record.FromString(data)
        for kind, found in (("history", history), ("summary", summary)):
            part = getattr(record, kind) if record.HasField(kind) else None
            for item in (part.item if kind == "history" else part.update) if part else ():
                name = item.key or "/".join(item.nested_key)
                found[name] = json.loads(item.value_json)
    pages = [path.read_text() for path in Path("wandb").rglob("*.html")]
    return {"metrics": history, "texts": summary, "pages": pages}


def _records(data: bytes) -> Iterator[bytes]:
    place, whole = 7, b""  # seven bytes say what the file is
    while place + 7 <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < 7:  # too little for a header: the next block goes on
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (_FULL, _LAST):
            yield whole
            whole = b""


def mlflow() -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    (run,) = client.search_runs(["0"])
    names = run.data.metrics
    steps = {
        point.step for name in names for point in client.get_metric_history(run.info.run_id, name)
    }
    kept = {item.path for item in client.list_artifacts(run.info.run_id, "distprof")}
    texts = {
        path: Path(client.download_artifacts(run.info.run_id, path)).read_text() for path in kept
    }
    return {"metrics": dict(names), "steps": sorted(steps), "texts": {**texts, **run.data.tags}}


if __name__ == "__main__":
    print(json.dumps({"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}[sys.argv[1]]()))
