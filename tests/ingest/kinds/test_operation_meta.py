"""Sizes beside an operation table: plain lines are read, everything else is refused."""

import pytest

from distprof.errors import InputError
from distprof.ingest.kinds.operation_table import find_sizes, read_sizes

WHOLE = """\
# of the job
trial_name: X
run_id: 0
dp_size: 32
dsp_size: 2
pp_size: 2
tp_size: 1
vpp_size: 3
world_size: 128
"""


def test_sizes_are_read_slowest_axis_first(tmp_path):
    path = tmp_path / "meta-X.yaml"
    path.write_text(WHOLE)
    sizes = read_sizes(path)
    assert list(sizes.mesh.items()) == [("pp", 2), ("dp", 32), ("dsp", 2), ("tp", 1)]
    assert sizes.world_size == 128


def test_sizes_that_are_not_said_are_not_known(tmp_path):
    path = tmp_path / "meta-X.yaml"
    path.write_text("trial_name: X\n")
    sizes = read_sizes(path)
    assert sizes.mesh == {}
    assert sizes.world_size is None


@pytest.mark.parametrize("name", ["meta-X.yaml", "meta-X.yml", "meta-trace-X.yaml"])
def test_the_file_beside_the_table_is_found(tmp_path, name):
    (tmp_path / name).write_text(WHOLE)
    assert find_sizes(str(tmp_path / "trace-X.parquet")) == tmp_path / name
    assert find_sizes(str(tmp_path / "trace-Y.parquet")) is None
    assert find_sizes("s3://bucket/trace-X.parquet") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dp_size: 0\n", "dp_size: 0"),
        ("dp_size: -1\n", "dp_size: -1"),
        ("dp_size: many\n", "dp_size: many"),
        ("dp_size: 1e3\n", "dp_size: 1e3"),
        ("dp_size: 9999999999\n", "dp_size: 9999999999"),
        ("pp_size: 999999999\n", "pp_size: 999999999"),
        ("vpp_size: 1025\n", "vpp_size: 1025"),
        ("dp_size: 2\ndp_size: 2\n", "a second value for a key in line 2"),
        ("- dp_size\n", "something else in line 1"),
        ("job:\n  dp_size: 2\n", "something else in line 1"),
        ("x: !!python/object 1\n  y: 2\n", "something else in line 2"),
        (WHOLE.replace("128", "64"), "world_size: 64"),
        ("x" * 70_000, "more than"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path, text, found):
    path = tmp_path / "meta-X.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        read_sizes(path)
    assert found in error.value.found
    assert error.value.fix
