"""Which data loaders are iterated, in what order, and whether two got the same first batch."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from distprof_probes.probes.loader_log import MAX_LOADERS, LoaderLog, checksum_of

from distprof.artefacts.run_file import LoaderSettings

torch = pytest.importorskip("torch")
data = torch.utils.data
Dataset: Any = data.Dataset


class Rows(Dataset):  # type: ignore[misc]
    """Sixteen samples of sixteen numbers each."""

    def __init__(self, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(16, 16, generator=generator)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index


class Steps:
    """Counts steps of a training."""

    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def log(steps: Steps) -> Iterator[LoaderLog]:
    before = dict(vars(data.dataloader._BaseDataLoaderIter))
    log = LoaderLog(steps)
    log.install()
    yield log
    log.remove()
    assert dict(vars(data.dataloader._BaseDataLoaderIter)) == before


def only(log: LoaderLog) -> LoaderSettings:
    (settings,) = log.settings()
    return settings


def iterate(loader: Any, steps: Steps, epochs: int) -> None:
    for _ in range(epochs):
        for _ in loader:
            steps.now += 1


def test_a_loader_that_is_not_iterated_says_nothing(log: LoaderLog) -> None:
    data.DataLoader(Rows())
    assert log.settings() == ()


def test_what_a_loader_was_given(log: LoaderLog) -> None:
    list(data.DataLoader(Rows(), batch_size=4, shuffle=True))
    one = only(log)
    assert (one.dataset, one.batch_size, one.sampler) == ("Rows", 4, "RandomSampler")
    assert (one.num_workers, one.pin_memory, one.prefetch_factor) == (0, False, None)
    assert one.is_plain
    assert (one.num_replicas, one.shuffle, one.num_orders) == (None, None, None)
    assert len(one.first_batch) == 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_of_workers_counts_once(log: LoaderLog, steps: Steps, persistent: bool) -> None:
    loader = data.DataLoader(
        Rows(), batch_size=8, num_workers=1, persistent_workers=persistent, prefetch_factor=3
    )
    iterate(loader, steps, 3)
    one = only(log)
    assert (one.num_workers, one.prefetch_factor, one.num_epochs) == (1, 3, 3)
    assert one.persistent_workers == persistent
    assert one.first_batch


@pytest.mark.parametrize(("sets_epoch", "num_orders"), [(True, 3), (False, 1)])
def test_orders_are_the_epoch_numbers_of_the_sampler(
    log: LoaderLog, steps: Steps, sets_epoch: bool, num_orders: int
) -> None:
    sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=1)
    loader = data.DataLoader(Rows(), batch_size=4, sampler=sampler)
    for epoch in range(3):
        if sets_epoch:
            sampler.set_epoch(epoch)
        iterate(loader, steps, 1)
    one = only(log)
    assert (one.num_epochs, one.num_orders) == (3, num_orders)
    assert (one.num_replicas, one.shuffle, one.is_plain) == (2, True, False)


def test_the_sampler_is_the_one_that_draws_for_given_batches(log: LoaderLog, steps: Steps) -> None:
    sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=1)
    loader = data.DataLoader(Rows(), batch_sampler=data.BatchSampler(sampler, 4, False))
    iterate(loader, steps, 2)
    one = only(log)
    assert (one.sampler, one.is_plain, one.num_orders) == ("DistributedSampler", False, 1)


@pytest.mark.parametrize(("number", "num_orders"), [(torch.tensor, 2), (str, 2), (chr, None)])
def test_epochs_may_be_numbers_of_any_kind(
    log: LoaderLog, steps: Steps, number: Any, num_orders: int | None
) -> None:
    sampler = data.DistributedSampler(Rows(), num_replicas=2, rank=1, shuffle=False)
    loader = data.DataLoader(Rows(), batch_size=4, sampler=sampler)
    for epoch in (65, 66):
        sampler.set_epoch(number(epoch))
        iterate(loader, steps, 1)
    assert only(log).num_orders == num_orders


def test_a_look_at_the_first_batch_before_training_is_no_epoch_of_its_own(
    log: LoaderLog, steps: Steps
) -> None:
    loader = data.DataLoader(Rows(), batch_size=4)
    next(iter(loader))
    iterate(loader, steps, 1)
    assert only(log).num_epochs == 1


def test_loaders_of_the_same_settings_are_one(log: LoaderLog) -> None:
    for _ in range(3):
        list(data.DataLoader(Rows(), batch_size=4))
    assert only(log).num_loaders == 3


def test_no_loader_is_kept_and_no_more_are_listed_than_matter(log: LoaderLog) -> None:
    loader = data.DataLoader(Rows())
    kept = weakref.ref(loader)
    for _ in range(MAX_LOADERS + 9):
        next(iter(loader))
        loader = data.DataLoader(Rows())
    del loader
    gc.collect()
    assert kept() is None
    assert only(log).num_loaders == MAX_LOADERS


def test_batches_and_randomness_are_those_without_it(steps: Steps) -> None:
    def run() -> tuple[list[Any], Any, Any]:
        torch.manual_seed(3)
        random.seed(3)
        batches = [x.clone() for x, _ in data.DataLoader(Rows(), batch_size=3, shuffle=True)]
        return batches, torch.get_rng_state(), random.getstate()

    plain, rng, state = run()
    log = LoaderLog(steps)
    log.install()
    watched, rng_after, state_after = run()
    log.remove()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(rng, rng_after)
    assert state == state_after
    assert log.settings()


def test_a_loader_with_a_sampler_that_breaks_trains_on(log: LoaderLog) -> None:
    class Odd(data.DataLoader):  # type: ignore[misc,name-defined]
        def __getattribute__(self, name: str) -> Any:
            if name == "prefetch_factor":
                raise RuntimeError("not today")
            return super().__getattribute__(name)

    odd = object.__new__(Odd)
    odd.__dict__.update(vars(data.DataLoader(Rows(), batch_size=4, num_workers=0)))
    odd.__dict__["num_workers"] = 0
    assert len(list(odd)) == 4


def test_who_wrapped_over_us_stays(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = data.dataloader._BaseDataLoaderIter
    monkeypatch.setattr(owner, "_reset", vars(owner)["_reset"])  # put back after the test
    log = LoaderLog(steps)
    log.install()
    ours = vars(owner)["_reset"]

    def theirs(*args: Any) -> None:
        ours(*args)

    owner._reset = theirs
    log.remove()
    assert vars(owner)["_reset"] is theirs


# Checksums ----------------------------------------------------------------------------------------


def test_equal_batches_have_equal_checksums_and_others_do_not() -> None:
    def batch(seed: int) -> Any:
        rows = Rows(seed).rows
        return {"x": rows, "rest": [rows.to(torch.bfloat16), ("name", rows[:2] > 0)]}

    assert checksum_of(batch(1)) == checksum_of(batch(1)) != checksum_of(batch(2))
    assert checksum_of(batch(1)["x"]) != checksum_of(batch(1)["x"].view(32, 8))


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(64, 64),
        torch.full((64,), 1.5),
        torch.tensor([1, 2]),  # two ranks may agree on so little by chance
        torch.empty(0),
        torch.randn(8, 8).to_sparse(),
        torch.randn(64, 64).t(),
        ["text"],
        None,
        [[[[[[torch.randn(64)]]]]]],
    ],
    ids=["zeros", "constant", "little", "empty", "sparse", "strided", "text", "none", "deep"],
)
def test_what_tells_nothing_has_no_checksum(batch: Any) -> None:
    assert checksum_of(batch) == ""
