"""The model of a recorded job: run.json's, the configuration's, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.run_file import RunFile
from distprof.config import parse_config
from distprof.errors import UsageError
from distprof.sections.efficiency.models import known_model

TINY = {
    "preset": "tiny", "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 8, "ffn": 1024,
    "sequence": 128, "vocabulary": 1024,
}  # fmt: skip


def job(workload="ddp", model=TINY, training=None, options=None, **fields):
    config = {"model": model, "training": training or {}, workload: options or {}}
    usual = {
        "distprof_version": "0",
        "kind": "run",
        "command": (),
        "workload": workload,
        "config": config,
        "mesh": {"dp_replicate": 2},
        "world_size": 2,
        "started_ns": 0,
    }
    return RunFile(**{**usual, **fields})


def from_table(table, run=None):
    return known_model(run, parse_config({"model": table}, "distprof.toml").model)


def test_a_reference_run_says_its_own_model():
    model = known_model(job(), None)
    # 4 · (4·256² + 3·256·1024 + 2·256) + 256 + 2 · 1024·256
    assert (model.parameters, model.sequence, model.zero_stage) == (4_720_896, 128, 0)
    assert (model.source, model.recomputation) == ("run.json", "none")


def test_what_reference_runs_say_of_sharding_and_recomputation():
    sharded = job(
        "fsdp",
        options={"zero": "3"},
        training={"checkpoint_activations": True, "precision": "fp32"},
        mesh={"dp_shard": 8},
        world_size=8,
    )
    model = known_model(sharded, None)
    assert (model.zero_stage, model.shards) == (3, 8)
    assert (model.recomputation, model.precision) == ("full", "fp32")


def test_experts_of_a_reference_run_are_counted():
    model = known_model(job("moe", options={"experts": 8, "top_k": 2}), None)
    assert model.active_parameters < model.parameters
    assert model.shape.experts == 8


def test_run_json_comes_before_the_folders_configuration():
    assert from_table({"preset": "llama3-8b"}, job()).source == "run.json"


def test_a_captured_job_takes_the_table():
    captured = job(kind="capture", config={}, workload="")
    assert from_table({"preset": "llama3-8b"}, captured).sequence == 8192
    assert known_model(captured, None) is None
    assert known_model(None, None) is None


def test_blocks_that_sleep_compute_nothing():
    assert known_model(job(training={"compute": "sleep"}), None) is None


def test_a_table_of_parameters_alone():
    model = from_table({"parameters": 7e9, "sequence": 4096, "batch": 512})
    assert (model.active_parameters, model.shape) == (7e9, None)
    assert model.tokens_per_step == 512 * 4096


def test_a_table_of_a_shape():
    table = {"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "vocabulary": 32000}
    model = from_table({**table, "recomputation": "selective", "precision": "fp8"})
    assert model.parameters == 6_738_415_616
    assert (model.recomputation, model.precision) == ("selective", "fp8")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sequence": 128}, "name the model"),
        ({"preset": "lama3-8b"}, "did you mean llama3-8b"),
        ({"preset": "llama3-8b", "layers": 4}, "leave out layers"),
        ({"layers": 4}, "lacks hidden, heads: set them, or choose a preset from"),
        ({"parameters": 7e9, "batch": 8}, "set the length of one"),
        ({"layers": 32, "hidden": 4096, "heads": 32, "ffn": 11008, "parameters": 1e9}, "6,7"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(table, said):
    with pytest.raises(UsageError, match=rf"\[model\].*{said}"):
        from_table(table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"modell": "x"}, "modell"),
        ({"preset": 3}, "a model's name"),
        ({"layers": 0}, "layers must be a whole number from 1"),
        ({"layers": 2.5}, "layers"),
        ({"parameters": True}, "parameters"),
        ({"precision": "fp4"}, "fp4"),
        ({"recomputation": []}, "recomputation"),
        ({"gated": 1}, "true or false"),
    ],
)
def test_the_table_is_checked_key_by_key(table, said):
    with pytest.raises(UsageError, match=said):
        parse_config({"model": table}, "distprof.toml")


nonsense = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


@given(
    model=st.dictionaries(st.sampled_from((*TINY, "experts")), nonsense),
    training=st.dictionaries(
        st.sampled_from(("compute", "precision", "checkpoint_activations")), nonsense
    ),
    options=st.dictionaries(st.sampled_from(("experts", "top_k", "zero")), nonsense),
    workload=st.sampled_from(("ddp", "fsdp", "moe", "3d", "")),
)
def test_a_run_json_of_nonsense_is_a_model_or_none(model, training, options, workload):
    found = known_model(job(workload, {**TINY, **model}, training, options), None)
    assert found is None or found.flop_per_token > 0
