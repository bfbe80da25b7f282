"""The table of how a job is set up."""

from __future__ import annotations

import msgspec

from distprof.sections.settings import FsdpSetup, OptimizerSetup, SettingsResult
from distprof.sections.settings.show import settings_table
from tests.documents.samples import healthy
from tests.rules.samples import ddp, loader, settings


def rows_of(result: SettingsResult, *, show_all: bool = False) -> list[tuple[object, ...]]:
    report = msgspec.structs.replace(healthy(), settings=result)
    table = settings_table(report, show_all=show_all)
    return [] if table is None else [tuple(row) for row in table.rows]


def test_without_settings_there_is_no_table() -> None:
    assert rows_of(SettingsResult()) == []


def test_alike_ranks_are_one_row_and_others_a_row_of_their_own() -> None:
    rows = rows_of(
        settings(
            loaders=(loader(ranks=(0, 1, 2, 3, 4, 5, 6)), loader(ranks=(7,), num_workers=1)),
            ddp=(ddp(comm_hook="bf16_compress_hook", gradient_as_bucket_view=False),),
            hosts=(),
        )
    )
    about = "persistent, 2 ahead each, pinned, batch of 32, DistributedSampler, 3 epochs begun"
    assert rows == [
        (
            "DDP",
            "ResNet: 25,000,000 parameters (100 MB), float32, buckets of 26.2 MB, "
            "bf16_compress_hook",
            "0-7",
        ),
        ("data loader", f"Images: 4 workers, {about}", "0-6"),
        ("data loader", f"Images: 1 worker, {about}", "7"),
    ]


def test_sharding_optimizers_hosts_and_switches() -> None:
    fsdp = FsdpSetup(
        ranks=(0, 1),
        api="fully_shard",
        num_units=1,
        group_size=2,
        num_parameters=10,
        parameter_bytes=40,
        reshard_after_forward=False,
        param_dtype="bfloat16",
        reduce_dtype="float32",
        num_prefetching=1,
        is_offloaded=True,
    )
    adam = OptimizerSetup(
        ranks=(0, 1), name="AdamW", is_sharded=False, num_parameters=10, fused=True, foreach=None
    )
    told = settings(
        fsdp=(fsdp,), optimizers=(adam,), ddp=(), loaders=(), allow_tf32=True, num_compiled=2
    )
    texts = {str(what): text for what, text, _ in rows_of(told)}
    assert texts["FSDP"] == (
        "fully_shard: 1 unit, 10 parameters (40 B), over 2 ranks, reshards: no, computes in "
        "bfloat16, reduces in float32, 1 prefetch, offloaded"
    )
    assert texts["optimizer"] == "AdamW: 10 parameters, fused"
    assert texts["host"] == (
        "node-2: 4 ranks, 8 threads each, 16 loader workers, 64 CPUs, 40.0 % busy"
    )
    assert texts["torch"] == "TF32, 2 compiled modules"


def test_long_tables_and_names_are_cut() -> None:
    many = tuple(loader(dataset=f"{number}" * 500) for number in range(10, 40))
    rows = rows_of(settings(loaders=many))
    assert len(rows) == 12
    assert len(rows_of(settings(loaders=many), show_all=True)) == 1 + 30 + 2
    assert all(len(str(text)) < 320 for _, text, _ in rows)
