"""Plain measurements of a job at several sizes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.measurements import fits_measurements, read_measurements


def table(tmp_path, text, name="m.csv"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def sizes_and_steps(path):
    return [(s.fingerprint.world_size, s.step_ns) for s in read_measurements(path)]


@pytest.mark.parametrize(
    "text",
    [
        "ranks,step_ms\n1,812\n2,421.5\n2,425\n",
        "\ufeffGPUs;Step (ms)\r\n1;812\r\n2;421.5\r\n2;425\r\n",
        "# timed by hand\nn\ttime_s\n1\t0.812\n\n2\t0.4215\n2\t0.425\n",
        json.dumps([{"n": 1, "ms": 812}, {"n": 2, "ms": 421.5}, {"n": 2, "ms": 425}]),
        '{"world_size": 1, "step_time": 0.812}\n{"world_size": 2, "step_time": 0.4215}\n'
        '{"world_size": 2, "step_time": 0.425}\n',
    ],
)
def test_tables_in_many_spellings(tmp_path, text):
    path = table(tmp_path, text)
    assert fits_measurements(path)
    assert sizes_and_steps(path) == [(1, (812_000_000,)), (2, (421_500_000,)), (2, (425_000_000,))]


def test_a_rate_without_a_batch_is_that_of_one_sample_per_rank(tmp_path):
    one, four = read_measurements(table(tmp_path, "gpus,throughput\n1,100\n4,370\n"))
    assert (one.step_ns, one.samples_per_step) == ((10_000_000,), 1)
    assert (four.step_ns, four.samples_per_step) == ((round(4e9 / 370),), 4)


def test_work_per_step_is_kept(tmp_path):
    (one,) = read_measurements(table(tmp_path, "gpus,tokens_per_s,tokens_per_step\n8,1000,500\n"))
    assert (one.step_ns, one.tokens_per_step) == ((500_000_000,), 500)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ranks,step_ms\n1,0\n", "step_ms of row 1"),
        ("ranks,step_ms\n1,5\n2,-3\n", "step_ms of row 2"),
        ("ranks,step_ms\n1.5,5\n", "whole number in ranks"),
        ("ranks,step_ms\n0,5\n", "ranks of row 1"),
        ("ranks,step_ms\n1,nan\n", "'nan'"),
        ("ranks,step_ms\n1\n", "None"),
        ("ranks,step_ms\n", "without rows"),
        ("ranks,step_s\n1,1e308\n", "step_s of row 1, below 1e.18"),
        ("ranks,step_s\n1,1e12\n", "less than 1e.09 s in row 1"),
        ("ranks,tokens_per_s\n1,1e-300\n", "less than 1e.09 s in row 1"),
        ("ranks,step_ms\n1e300,1\n", "ranks of row 1"),
        ("ranks,colour\n1,red\n", "columns ranks, colour"),
        ("colour,step_ms\n1,3\n", "columns colour"),
        ("nothing at all", "no columns"),
        ("", "no columns"),
        ('[{"n": 1}, 3]', "something other than objects"),
        ('{"n": ', "Expecting"),
        ('[{"ranks": 1, "step_ms": %s}]' % ("9" * 400), "step_ms of row 1"),
        ('[{"ranks": %s, "step_ms": 1}]' % ("9" * 5_000), "integer string"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        read_measurements(table(tmp_path, text))


def test_a_table_without_rows_is_still_such_a_table(tmp_path):
    assert fits_measurements(table(tmp_path, "# mine\nranks;step_ms\n"))
    assert not fits_measurements(table(tmp_path, "rank,stream,name\n"))


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes(b"\xff\xfe\x00ranks")
    assert not fits_measurements(str(path))
    with pytest.raises(InputError):
        read_measurements(str(path))


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "m.csv"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    fits_measurements(str(path))
    try:
        found = read_measurements(str(path))
    except InputError:
        return
    assert all(summary.step_ns[0] > 0 for summary in found)


def test_a_cell_of_megabytes_is_refused_with_a_sentence(tmp_path):
    path = table(tmp_path, f"ranks,step_ms\n1,{'8' * 300_000}\n")
    with pytest.raises(InputError, match="field larger than field limit"):
        read_measurements(path)
