"""Counts of tokens per expert: the three forms, what is refused and how that is said."""

import json
from pathlib import Path

import numpy as np
import pytest

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds.small_tables import fits_expert_counts, read_expert_counts

OLMOE = Path(__file__).parents[2] / "golden/moe/olmoe-1b-7b/expert_counts_top8.json"


def written(folder, content):
    path = folder / "counts.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_list_of_layers(tmp_path):
    counts = read_expert_counts(written(tmp_path, [[1, 2], [3, 4], [5, 6]]))
    assert counts.layers == ("0", "1", "2")
    assert counts.top_k is None
    assert counts.tokens[""].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_layers_under_a_key(tmp_path):
    counts = read_expert_counts(written(tmp_path, {"layers": [[1, 2]], "top_k": 2, "model": "m"}))
    assert (counts.layers, counts.top_k, counts.model) == (("0",), 2, "m")


def test_domains_of_a_real_model():
    counts = read_expert_counts(str(OLMOE))
    assert list(counts.tokens) == ["c4", "github", "arxiv", "book", "wikipedia", "tulu"]
    assert (counts.layers, counts.top_k, counts.model) == (("0", "7", "15"), 8, "OLMoE-1B-7B")
    assert all(table.shape == (3, 64) for table in counts.tokens.values())
    assert all(table.dtype == np.int64 for table in counts.tokens.values())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"domains": {}}, r"length >= 1 - at `\$.domains`"),
        ({"domains": {"a": [[1, 2]], "b": [[1]]}}, "domains.b"),
        ({"domains": {"a": [[1, 2], [1]]}}, r"domains.a\[1\]"),
        ({"layers": [[1, -2]]}, r">= 0 - at `\$.layers\[0\]\[1\]`"),
        ({"layers": [[1, 2.5]]}, r"`float` - at `\$.layers\[0\]\[1\]`"),
        ({"layers": [[1, True]]}, r"`bool` - at `\$.layers\[0\]\[1\]`"),
        ({"layers": [[1, 1 << 60]]}, r"layers\[0\]\[1\]"),
        ({"layers": [[]]}, r"length >= 1 - at `\$.layers\[0\]`"),
        ({"layers": []}, r"length >= 1 - at `\$.layers`"),
        ({"model": "x"}, "no layers under layers"),
        ({"layers": [[1, 2]], "num_experts": 3}, "num_experts is 3"),
        ({"layers": [[1, 2]], "top_k": 0}, r">= 1 - at `\$.top_k`"),
        ({"domains": {"a": [[1], [2]]}, "layers": [7]}, "1 different names under layers"),
        ({"domains": {"a": [[1], [2]]}, "layers": [7, 7, 8]}, "2 different names under layers"),
        ({"domains": {"a": [[1], [2]]}, "layers": [7, 7]}, "1 different names"),
        ({"domains": {"a": [[1]]}, "layers": [None]}, r"at `\$.layers\[0\]`"),
        ("[[1, 2", "truncated"),
        ('"text"', "got `str`"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_and_a_way_out(tmp_path, content, named):
    with pytest.raises(InputError, match=named) as caught:
        read_expert_counts(written(tmp_path, content))
    assert caught.value.fix


def test_a_file_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="FileNotFoundError"):
        read_expert_counts(str(tmp_path / "none.json"))
    assert not fits_expert_counts(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("content", "fits"),
    [
        ([[1, 2]], True),
        ({"layers": [[1, 2]]}, True),
        ({"model": "m", "top_k": 8, "domains": {"a": [[1, 2]]}}, True),
        ({"traceEvents": [], "layers": [[1, 2]]}, False),
        ({"schemaVersion": 1, "traceEvents": []}, False),
        ([{"ph": "X"}], False),
        ({"layers": [0, 7]}, False),
        ({"schema": "distprof.report/2"}, False),
        ("", False),
    ],
)
def test_only_counts_fit(tmp_path, content, fits):
    assert fits_expert_counts(written(tmp_path, content)) is fits


def test_a_trace_or_a_folder_is_left_to_other_readers(tmp_path):
    folder = tmp_path / "counts.json"
    folder.mkdir()
    assert not fits_expert_counts(str(folder))
    assert not fits_expert_counts(str(tmp_path))
    assert not fits_expert_counts("nowhere://x/counts.json")


def test_a_report_of_counts_compares_ranks_that_could_share_the_experts():
    moe = distprof.analyze(str(OLMOE), debug=True).moe
    assert len(moe.layers) == 18
    assert moe.origin == "expert counts"
    by_key = {(row.part, row.layer, row.num_ranks): row for row in moe.placement}
    assert {row.num_ranks for row in moe.placement} == {2, 4, 8, 16, 32}
    row = by_key["github", "7", 8]
    assert round(row.max_over_mean, 2) == 2.14
    assert row.replaced_max_over_mean < 1.02
    (layer,) = (la for la in moe.layers if (la.part, la.layer) == ("github", "7"))
    assert (round(layer.max_over_mean, 2), round(layer.min_over_mean, 3)) == (6.16, 0.013)
    assert layer.lost_ns_per_step is None
    assert any("no times" in text for text in moe.unavailable)


def test_rules_judge_counts():
    findings = {f.code: f for f in distprof.analyze(str(OLMOE), debug=True).findings}
    assert "up to 7.8 times" in findings["MOE101"].headline
    assert "expert 0 of layer 0 (arxiv)" in findings["MOE101"].message
    assert findings["MOE102"].headline.startswith("4 of 64 experts")
    assert "layer 15 (arxiv)" in findings["MOE102"].message
    assert findings["MOE104"].headline.endswith("2.14 times the mean")
    assert "layer 7 (github)" in findings["MOE104"].message
    assert "MOE103" not in findings


def test_a_layer_that_nobody_used_is_left_out_and_said(tmp_path):
    path = written(tmp_path, {"layers": [[0, 0], [4, 2]]})
    moe = distprof.analyze(path, debug=True).moe
    assert [layer.layer for layer in moe.layers] == ["1"]
    assert any("Layer 0" in text for text in moe.unavailable)
