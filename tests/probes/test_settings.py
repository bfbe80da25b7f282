"""How a job is set up: what is found among its objects, and that it stays as it was."""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from distprof_probes.probes import torch_objects
from distprof_probes.probes.settings import SettingsProbe

from distprof.artefacts.run_file import SettingsFile
from tests.probes.sessions import open_session, status_of

torch = pytest.importorskip("torch")
dist = torch.distributed

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    if not dist.is_available() or dist.is_initialized():
        pytest.skip("needs torch.distributed without a group")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def clean() -> None:
    """Nothing of other tests is found."""
    gc.collect()


def settings_of(run_dir: Path) -> SettingsFile:
    data = (run_dir / "rank00000" / "settings.json").read_bytes()
    return msgspec.json.decode(data, type=SettingsFile)


def trained(run_dir: Path | None, model: Any, steps: int = 3, optimizer: Any = None) -> list[str]:
    """Losses of a training, to the last bit."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    session = open_session(run_dir, [SettingsProbe()]) if run_dir else None
    losses = []
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        if session:
            session.step()
    if session:
        session.close()
    return losses


class Two(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two layers, of which one may be left unused."""

    def __init__(self, is_second_used: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.is_second_used = is_second_used

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x)) if self.is_second_used else self.first(x)


def test_losses_are_the_same_to_the_last_bit(tmp_path: Path) -> None:
    assert trained(None, Two(), steps=12) == trained(tmp_path, Two(), steps=12)


def test_optimizers_and_threads_are_read(tmp_path: Path) -> None:
    model = Two()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    trained(tmp_path, model, optimizer=optimizer)
    found = settings_of(tmp_path)
    assert (found.rank, found.num_steps, found.notes) == (0, 3, ())
    (one,) = [one for one in found.optimizers if one.name == "AdamW"]
    assert (one.num_parameters, one.foreach, one.fused) == (144, False, None)
    assert found.threads.num_threads == torch.get_num_threads()
    assert found.threads.cpus
    assert found.allow_tf32 is not None
    assert status_of(tmp_path, "settings").state == "on"


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("is_used", "unused"), [(True, 0), (False, 288)])
def test_what_ddp_leaves_unused_is_counted(tmp_path: Path, is_used: bool, unused: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(Two(is_used), find_unused_parameters=True)
    trained(tmp_path, model, steps=5)
    (one,) = settings_of(tmp_path).ddp
    assert (one.module, one.group_size, one.find_unused_parameters) == ("Two", 1, True)
    assert (one.num_parameters, one.parameter_bytes, one.dtypes) == (144, 576, ("float32",))
    assert (one.bucket_cap_bytes, one.comm_hook) == (25 << 20, "")
    assert one.num_looks >= 3
    assert one.max_unused_bytes == unused


@pytest.mark.usefixtures("group")
def test_ddp_with_a_hook_that_does_not_search_is_never_asked(tmp_path: Path) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = torch.nn.parallel.DistributedDataParallel(Two())
    model.register_comm_hook(None, fp16_compress_hook)
    trained(tmp_path, model, steps=4)
    (one,) = settings_of(tmp_path).ddp
    assert (one.comm_hook, one.num_looks) == ("fp16_compress_hook", 0)
    assert one.max_unused_bytes is None


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("reshards", [True, False])
def test_sharded_modules_are_one_record(tmp_path: Path, reshards: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = torch.nn.Sequential(Two(), Two(), torch.nn.Linear(8, 4))
    about: dict[str, Any] = {
        "mesh": init_device_mesh("cpu", (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "reshard_after_forward": reshards,
    }
    for part in model[:2]:
        fully_shard(part, **about)
    fully_shard(model, **about)
    trained(tmp_path, model)
    (one,) = settings_of(tmp_path).fsdp
    assert (one.api, one.num_units, one.group_size) == ("fully_shard", 3, 1)
    assert one.num_parameters == 2 * 144 + 36
    assert one.parameter_bytes == 4 * one.num_parameters
    assert one.reshard_after_forward is reshards
    assert (one.param_dtype, one.reduce_dtype, one.is_offloaded) == ("bfloat16", "", False)


@pytest.mark.usefixtures("group")
def test_a_unit_of_several_modules_is_one_and_so_is_one_that_is_wrapped(tmp_path: Path) -> None:
    """``fully_shard`` gives modules of a list one state, and its class to what wraps a module."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    wrapped = checkpoint_wrapper(Two())
    model = torch.nn.Sequential(Two(), wrapped, torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    fully_shard(model[0], mesh=mesh)
    fully_shard(wrapped, mesh=mesh)
    fully_shard([model[2], model[3]], mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained(tmp_path, model)
    (one,) = settings_of(tmp_path).fsdp
    assert one.num_units == 3
    assert one.num_parameters == 2 * 144 + 72 + 36


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_older_way_to_shard_is_another_record(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

    model = FullyShardedDataParallel(
        Two(),
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision=MixedPrecision(reduce_dtype=torch.float32),
    )
    trained(tmp_path, model)
    (one,) = settings_of(tmp_path).fsdp
    assert (one.api, one.num_units, one.group_size) == ("FullyShardedDataParallel", 1, 1)
    assert (one.num_parameters, one.parameter_bytes) == (144, 576)
    assert (one.param_dtype, one.reduce_dtype) == ("", "float32")
    assert one.num_prefetching == 0


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sharded_optimizer_is_one_with_what_it_wraps(tmp_path: Path) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = Two()
    trained(tmp_path, model, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD))
    found = [one for one in settings_of(tmp_path).optimizers if one.num_parameters == 144]
    assert [(one.name, one.is_sharded) for one in found] == [("ZeroRedundancyOptimizer", True)]


def test_compiled_modules_are_counted(tmp_path: Path) -> None:
    before = len(torch_objects.find().compiled)
    model = torch.compile(Two(), backend="eager")
    trained(tmp_path, model)
    assert settings_of(tmp_path).num_compiled == before + 1


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_the_newer_setting_of_tf32_is_read_where_the_older_cannot_be(
    tmp_path: Path, precision: str
) -> None:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, "fp32_precision", None)
    if before is None:
        pytest.skip("this torch has the older setting only")
    matmul.fp32_precision = precision
    try:
        trained(tmp_path, Two())
    finally:
        matmul.fp32_precision = before
    assert settings_of(tmp_path).allow_tf32 == (precision == "tf32")
    assert status_of(tmp_path, "settings").state == "on"


def test_nothing_is_kept_alive(tmp_path: Path) -> None:
    session = open_session(tmp_path, [SettingsProbe()])
    model = Two()
    kept = weakref.ref(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.step()
    del model, optimizer
    gc.collect()
    assert kept() is None
    session.close()


def test_what_cannot_be_read_is_noted_and_the_rest_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(torch.optim.SGD):  # type: ignore[misc,name-defined]
        """An optimizer without groups."""

    model = Two()
    odd, good = Odd(model.parameters()), torch.optim.Adam(model.parameters())
    monkeypatch.delattr(odd, "param_groups")
    session = open_session(tmp_path, [SettingsProbe()])
    session.step()
    session.close()
    found = settings_of(tmp_path)
    assert "Adam" in {one.name for one in found.optimizers}
    assert any(note.startswith("Odd cannot be read: AttributeError") for note in found.notes)
    assert good.param_groups


def test_a_job_without_a_step_is_read_at_its_end(tmp_path: Path) -> None:
    open_session(tmp_path, [SettingsProbe()]).close()
    assert settings_of(tmp_path).num_steps == 0


def test_reading_belongs_to_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = torch_objects.find()
    now = [1_000_000_000]

    def slow() -> Any:
        now[0] += 80_000_000
        return found

    monkeypatch.setattr("distprof_probes.probes.torch_objects.find", slow)
    session = open_session(tmp_path, [SettingsProbe()], clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        now[0] += 5_000_000
        session.step()
    session.close()
    from tests.probes.sessions import steps_of

    assert [line.end_ns - line.start_ns for line in steps_of(tmp_path)] == [5_000_000] * 3


def test_a_step_costs_less_than_ten_microseconds() -> None:
    """Beyond the step in which objects are read: between two steps there is nothing to do."""
    probe = SettingsProbe()
    probe._file = SettingsFile(rank=0)
    times = []
    for step in range(101, 151):
        before = time.thread_time_ns()
        probe.between_steps(step)
        times.append(time.thread_time_ns() - before)
    probe._loaders.remove()
    assert statistics.median(times) < 10_000
