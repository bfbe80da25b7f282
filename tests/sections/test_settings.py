"""Settings folded over ranks, and what traces show of loads and copies: by hand."""

import pytest

from distprof.artefacts.run_file import (
    DdpSettings,
    FsdpSettings,
    LoaderSettings,
    OptimizerSettings,
    RankEntry,
    RunFile,
    SettingsFile,
    ThreadSettings,
)
from distprof.sections.settings.measure import combine_settings, with_traces
from tests.builders import RankBuilder
from tests.sections.measured import measured

OWN_LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKER_LOAD = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def job(*hosts, devices="cuda"):
    entries = tuple(
        RankEntry(rank=rank, host=host, node=None, device=devices)
        for rank, host in enumerate(hosts)
    )
    return RunFile(distprof_version="", kind="run", command=(), started_ns=0, ranks=entries)


def files(*settings):
    return [SettingsFile(rank=rank, **fields) for rank, fields in enumerate(settings)]


def test_what_ranks_say_alike_is_one_record():
    adam, sgd = OptimizerSettings(name="Adam"), OptimizerSettings(name="SGD")
    sharded = FsdpSettings(api="fully_shard", group_size=3)
    result = combine_settings(
        files(
            {"optimizers": (adam,), "fsdp": (sharded,), "allow_tf32": True},
            {"optimizers": (sgd, adam), "fsdp": (sharded,), "allow_tf32": True},
            {"optimizers": (adam,), "fsdp": (sharded,), "allow_tf32": False},
        ),
        None,
    )
    assert [(one.name, one.ranks) for one in result.optimizers] == [
        ("Adam", (0, 1, 2)),
        ("SGD", (1,)),
    ]
    assert [one.ranks for one in result.fsdp] == [(0, 1, 2)]
    assert (result.num_ranks, result.allow_tf32, result.cudnn_benchmark) == (3, None, None)


def test_what_became_of_loaders_is_counted_from_the_worst():
    """Fewest epochs, most orders, different first batches."""
    said = [(3, 1, "aa"), (2, 2, "bb"), (3, 1, "aa")]
    result = combine_settings(
        files(
            *(
                {
                    "loaders": (
                        LoaderSettings(
                            num_workers=2, num_epochs=epochs, num_orders=orders, first_batch=batch
                        ),
                    )
                }
                for epochs, orders, batch in said
            )
        ),
        None,
    )
    (one,) = result.loaders
    assert (one.ranks, one.num_epochs, one.num_orders) == ((0, 1, 2), 2, 2)
    assert one.num_first_batches == 2


def test_a_rank_that_cannot_tell_its_first_batch_leaves_it_unknown():
    loaders = [LoaderSettings(num_workers=0, first_batch=batch) for batch in ("aa", "", "aa")]
    result = combine_settings(files(*({"loaders": (one,)} for one in loaders)), None)
    assert result.loaders[0].num_first_batches is None


def test_unused_parameters_are_those_of_any_rank():
    def ddp(looks, unused):
        return {
            "ddp": (
                DdpSettings(find_unused_parameters=True, num_looks=looks, max_unused_bytes=unused),
            )
        }

    (one,) = combine_settings(files(ddp(9, 0), ddp(8, 64)), None).ddp
    assert (one.ranks, one.num_looks, one.max_unused_bytes) == ((0, 1), 8, 64)
    (one,) = combine_settings(files(ddp(9, 0), ddp(0, None)), None).ddp
    assert (one.num_looks, one.max_unused_bytes) == (0, None)


def test_ranks_of_a_host_share_its_processors():
    def on(cpus, busy=None, workers=0):
        threads = ThreadSettings(num_threads=4, cpus=cpus, cpu_busy_ratio=busy)
        return {
            "threads": threads,
            "loaders": (LoaderSettings(num_workers=workers), LoaderSettings(num_workers=1)),
        }

    result = combine_settings(
        files(on("0-3", 0.5, workers=6), on("2-5,8", 0.75), on("0-1")), job("a", "a", "b")
    )
    first, second = result.hosts
    assert (first.host, first.ranks, first.num_cpus) == ("a", (0, 1), 7)
    assert (first.num_workers, first.cpu_busy_ratio) == (6 + 1, 0.75)
    assert (second.ranks, second.num_cpus, second.cpu_busy_ratio) == ((2,), 2, None)
    assert not first.is_cpu


@pytest.mark.parametrize(
    ("cpus", "busy", "crowded"),
    [
        pytest.param(("0-3",) * 3, (1.0, 1.0, 1.0), (0, 1, 2), id="all share"),
        pytest.param(("0-3",) * 3, (0.9, 0.9, 0.9), (), id="some time is left"),
        pytest.param(("0-1", "2-3", "2-3"), (1.0, 1.0, 0.96), (1, 2), id="one has its own"),
        pytest.param(("", "", ""), (1.0, 1.0, 1.0), (), id="unknown CPUs"),
        pytest.param(("0-3",) * 3, (None, None, None), (), id="unknown load"),
    ],
)
def test_ranks_that_share_busy_cpus_are_crowded(cpus, busy, crowded):
    said = [
        {"threads": ThreadSettings(cpus=text, cpu_busy_ratio=part)}
        for text, part in zip(cpus, busy, strict=True)
    ]
    (host,) = combine_settings(files(*said), job(*("a" for _ in cpus))).hosts
    assert host.crowded == crowded


@pytest.mark.parametrize(
    ("cpus", "without_spare"),
    [
        pytest.param(("0-1",) * 2, (0, 1), id="as many ranks as CPUs"),
        pytest.param(("0-1",) * 3, (0, 1, 2), id="more ranks than CPUs"),
        pytest.param(("0-3",) * 3, (), id="a CPU to spare"),
        pytest.param(("0", "1"), (), id="each rank is pinned to a CPU"),
        pytest.param(("0-1", "1"), (), id="one rank is confined"),
        pytest.param(("", ""), (), id="unknown CPUs"),
    ],
)
def test_ranks_without_a_spare_cpu_share_as_few_cpus_as_they_are(cpus, without_spare):
    threads = [{"threads": ThreadSettings(cpus=text)} for text in cpus]
    (host,) = combine_settings(files(*threads), job(*("a" for _ in cpus))).hosts
    assert host.without_spare == without_spare


@pytest.mark.parametrize(
    ("cpus", "confined"),
    [
        (("0-7", "3", "0-7", "0-7"), [(1, 1, 8)]),
        (("0-1", "1"), [(1, 1, 2)]),
        (("0-7", "8-15", "16-23", "24-31"), []),  # each has its own
        (("0-6", "0-7", "0-7"), []),  # a little less is usual
        (("0", "", "0-7", "0-7"), []),
    ],
)
def test_ranks_that_may_use_far_fewer_cpus_than_others_are_confined(cpus, confined):
    said = [{"threads": ThreadSettings(cpus=text)} for text in cpus]
    (host,) = combine_settings(files(*said), job(*("a" for _ in cpus))).hosts
    assert [(one.rank, one.num_cpus, one.usual_cpus) for one in host.confined] == confined


def test_a_host_has_the_model_that_one_of_its_ranks_knows():
    said = [{"threads": ThreadSettings(processor=name)} for name in ("", "EPYC", "")]
    hosts = combine_settings(files(*said), job("a", "a", "b")).hosts
    assert [host.processor for host in hosts] == ["EPYC", ""]


@pytest.mark.parametrize("cpus", ["", "x", "3-1", "0-99999999", "0,-2", "1-", "²"])
def test_nonsense_about_processors_is_not_known(cpus):
    threads = ThreadSettings(cpus=cpus)
    (host,) = combine_settings(files({"threads": threads}), job("a", devices="cpu")).hosts
    assert (host.num_cpus, host.num_threads, host.is_cpu) == (None, None, True)


def test_more_ranks_may_be_on_a_host_than_say_so():
    threads = ThreadSettings(num_local_ranks=8)
    (host,) = combine_settings(files({"threads": threads}), job("a")).hosts
    assert (host.ranks, host.num_local_ranks) == ((0,), 8)


def test_without_any_file_nothing_is_known():
    result = combine_settings([], None, ("no run directory",))
    assert (result.num_ranks, result.loaders, result.hosts) == (0, (), ())
    assert result.unavailable == ("no run directory",)


# Traces -------------------------------------------------------------------------------------------


def test_loads_count_by_who_made_the_batch():
    rank = RankBuilder().kernel("gemm", 0, 40)
    rank.annotation(OWN_LOAD, 5, 10).annotation(WORKER_LOAD, 50, 60).annotation(OWN_LOAD, 300, 310)
    feed = measured(rank, windows=[(0, 100)]).input
    assert (feed.num_own_loads, feed.num_worker_loads, feed.num_pageable) == (1, 1, 0)


def test_pageable_copies_are_exposed_where_nothing_runs_beside_them():
    """Copies in [10, 30) and [20, 50); computation to 20, communication from 40; 20 to 40 alone."""
    rank = RankBuilder().kernel("gemm", 0, 20).comm("nccl", 40, 60)
    rank.copy(PAGEABLE, 10, 30).copy(PAGEABLE, 20, 50).copy("Memcpy HtoD (Pinned -> Device)", 0, 90)
    analysis = measured(rank, windows=[(0, 100)])
    feed = analysis.input
    assert (feed.num_pageable, feed.pageable_ns, feed.exposed_pageable_ns) == (2, 40, 20)
    (row,) = with_traces(combine_settings([], None), {0: analysis}).feed
    assert (row.rank, row.num_pageable, row.exposed_pageable_ns) == (0, 2, 20)
