"""Output of ``nvidia-smi -q`` and ``-q -x``: of one host, of many, real, damaged and hostile."""

from __future__ import annotations

import gzip
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import distprof
from distprof.errors import InputError
from distprof.ingest.kinds.logs import fits_device_log, read_device_log
from distprof.ingest.sensors import _Dispatcher
from distprof.ingest.sensors.collect import Collector
from distprof.ingest.sensors.smi import SmiXml
from distprof.run.logs import DeviceLog
from distprof.run.records import TELEMETRY
from tests.smi_outputs import GOLDEN, Gpu, labelled, node, text_of, two_nodes, xml_of

OUTPUTS = pytest.mark.parametrize("output", [text_of, xml_of], ids=["text", "xml"])


def log_of(tmp_path: Path, text: str, name: str = "gpu.txt") -> DeviceLog:
    path = tmp_path / name
    path.write_text(text)
    assert fits_device_log(str(path))
    return read_device_log(str(path))


def lines_of(text: str) -> DeviceLog:
    """What the lines tell, however they are damaged."""
    collector = Collector("x")
    dispatcher = _Dispatcher(collector)
    for line in text.split("\n"):
        dispatcher.take(line)
    dispatcher.close()
    return collector.result()


def facts_of(log: DeviceLog) -> list[object]:
    """Everything but the file's name."""
    columns = [
        {c.name: one.table[c.name].tolist() for c in TELEMETRY if c.dtype != "category"}
        for one in log.series
    ]
    reasons = [one.table.coded("throttle_reasons").decode() for one in log.series]
    who = [(one.host, one.index, one.uuid, one.bus_id, one.name, one.clock) for one in log.series]
    states = [replace(one, file="") for one in log.states]
    return [who, [str(one) for one in columns], reasons, states]


def real_text(start: int, end: int) -> str:
    lines = gzip.decompress((GOLDEN / "nvidia-smi-h200.txt.gz").read_bytes()).decode().split("\n")
    return "\n".join(lines[start:end])


def test_real_output_says_the_same_as_the_query_of_the_same_moment(tmp_path):
    log = log_of(tmp_path, real_text(1824, 2099))
    (one,) = log.series
    assert (one.index, one.bus_id, one.name) == (0, "00000000:83:00.0", "NVIDIA H200")
    assert (one.clock, one.table["t_ns"].tolist()) == ("local", [1_783_116_669 * 10**9])
    table = one.table
    assert [table[name].tolist() for name in ("sm_clock_mhz", "memory_clock_mhz")] == [
        [1980], [3201],
    ]  # fmt: skip
    assert table["power_w"].tolist() == [625.24]
    assert table["temperature_c"].tolist() == [52]
    assert table["gpu_utilization_ratio"].tolist() == [1.0]
    assert table["memory_used_bytes"].tolist() == [32_362 << 20]
    assert table["pcie_tx_bytes_per_s"].tolist() == [4_217_000]
    assert table["ecc_uncorrected"].tolist() == [0]
    assert table["num_processes"].tolist() == [3]
    assert table.coded("throttle_reasons").decode() == ["none"]
    (state,) = log.states
    assert (state.driver, state.cuda, state.is_in_use) == ("590.48.01", "13.1", True)
    assert (state.pcie_generation, state.pcie_generation_max) == (5, 5)
    assert (state.pcie_width, state.pcie_width_max) == (16, 16)
    assert (state.is_repair_pending, state.has_repair_failed, state.recovery) == (False, False, "")
    assert log.notes == ()


def test_in_a_file_with_a_query_the_query_has_the_samples_and_the_output_the_state():
    log = read_device_log(str(GOLDEN / "nvidia-smi-h200.txt.gz"))
    assert [(one.clock, len(one.table)) for one in log.series] == [("local", 2), ("none", 10)]
    assert [(one.index, one.pcie_width) for one in log.states] == [(0, 16)]


def test_of_a_gpu_with_mig_its_instances_are_not_its_own_memory_and_errors():
    text = gzip.decompress((GOLDEN / "nvidia-smi-h100-mig.txt.gz").read_bytes()).decode()
    log = lines_of("\n".join(text.split("\n")[1938:]).split("####")[0])
    (one,) = log.series
    assert one.table["memory_used_bytes"].tolist()[0] > 11_091 << 20
    assert one.table["gpu_utilization_ratio"].tolist() != [0.0]


@OUTPUTS
def test_the_golden_output_of_two_nodes_is_what_the_generator_writes(output):
    name = f"nvidia-smi-q-2nodes.{'txt' if output is text_of else 'xml'}"
    text = "".join(labelled(host, output(gpus)) for host, gpus in two_nodes().items())
    assert (GOLDEN / name).read_text() == text


@OUTPUTS
def test_what_is_wrong_on_one_of_two_nodes_is_found(output):
    name = f"nvidia-smi-q-2nodes.{'txt' if output is text_of else 'xml'}"
    report = distprof.analyze(str(GOLDEN / name))
    assert [finding.code for finding in report.findings] == ["TEL101", "TEL103", "TEL103", "TEL110"]
    assert all(
        "GPU 1 of node-2" in f"{finding.headline} {finding.message}" for finding in report.findings
    )
    assert "PCIe 5.0 x8, but the GPU and its host allow PCIe 5.0 x16" in report.findings[3].message


FORMS = {
    "pdsh": lambda texts: "".join(labelled(host, text) for host, text in texts.items()),
    "dshbak": lambda texts: "".join(
        f"{'-' * 16}\n{host}\n{'-' * 16}\n{text}" for host, text in texts.items()
    ),
    "ansible": lambda texts: "".join(
        f"{host} | CHANGED | rc=0 >>\n{text}\n" for host, text in texts.items()
    ),
    "headings": lambda texts: "".join(f"=== {host} ===\n{text}" for host, text in texts.items()),
    "mixed": lambda texts: "".join(
        f"{host}: {line}\n"
        for lines in zip_longest(*(text.splitlines() for text in texts.values()), fillvalue="")
        for host, line in zip(texts, lines, strict=True)
    ),
}


@OUTPUTS
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_many_hosts_in_one_file_are_kept_apart(form, output, tmp_path):
    texts = {f"node-{n}": output(node(n)) for n in range(1, 4)}
    log = log_of(tmp_path, form(texts))
    expected = [(f"node-{n}", gpu) for n in range(1, 4) for gpu in (0, 1)]
    assert [(one.host, one.index) for one in log.series] == expected
    assert [(one.host, one.uuid) for one in log.states] == [
        (h, f"GPU-{h[-1]}{i}") for h, i in expected
    ]
    assert log.notes == ()


@OUTPUTS
def test_tasks_of_srun_have_numbers(output, tmp_path):
    log = log_of(tmp_path, "".join(labelled(str(n), output(node(n))) for n in (0, 1)))
    assert [one.host for one in log.series] == ["task 0", "task 0", "task 1", "task 1"]


@OUTPUTS
def test_of_some_of_the_gpus_no_index_is_known(output, tmp_path):
    (one,) = log_of(tmp_path, output([Gpu()], attached=8)).series
    assert (one.index, one.bus_id) == (None, "00000000:83:00.0")


@OUTPUTS
def test_output_that_repeats_gives_samples_and_the_state_in_which_the_gpu_worked(output, tmp_path):
    idle = Gpu(state="P8", generation=1, use=0)
    moments = [(idle, "Fri Jul  3 22:11:09 2026"), (Gpu(width=8), "Fri Jul  3 22:11:10 2026")]
    moments.append((idle, "Fri Jul  3 22:11:11 2026"))
    log = log_of(tmp_path, "".join(output([gpu], when=when) for gpu, when in moments))
    assert [len(one.table) for one in log.series] == [3]
    assert [(one.is_in_use, one.pcie_width) for one in log.states] == [(True, 8)]


def test_each_active_reason_has_the_name_that_a_query_has(tmp_path):
    gpu = Gpu(reasons=("gpu_idle", "hw_slowdown", "hw_thermal_slowdown", "display_clocks_setting"))
    told = "hw_slowdown,hw_thermal_slowdown,display_clock_setting"
    for output in (text_of, xml_of):
        (one,) = log_of(tmp_path, output([gpu])).series
        assert one.table.coded("throttle_reasons").decode() == [told]


def test_older_drivers_use_other_names(tmp_path):
    text = """\
==============NVSMI LOG==============

Timestamp                                 : Tue Jun 21 12:58:00 2022
Driver Version                            : 470.103.01
CUDA Version                              : 11.4

Attached GPUs                             : 1
GPU 00000000:D8:00.0
    Product Name                          : Tesla V100-PCIE-32GB
    Clocks Throttle Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
    ECC Errors
        Volatile
            Double Bit
                Device Memory             : 3
                Total                     : 4
    Retired Pages
        Pending Page Blacklist            : Yes
    GPU Reset Status
        Reset Required                    : Yes
    Power Readings
        Power Draw                        : 24.98 W
"""
    log = log_of(tmp_path, text)
    (one,), (state,) = log.series, log.states
    assert one.table.coded("throttle_reasons").decode() == ["hw_slowdown"]
    assert one.table["power_w"].tolist() == [24.98]
    assert (state.ecc_uncorrected, state.is_repair_pending, state.recovery) == (4, True, "Reset")
    assert (state.has_repair_failed, state.pcie_width, state.is_in_use) == (None, None, None)


def test_a_query_tells_the_state_where_it_has_the_columns(tmp_path):
    head = (
        "index, uuid, pstate, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, "
        "pcie.link.width.max, remapped_rows.pending, remapped_rows.failure, driver_version, "
        "clocks.sm [MHz]"
    )
    text = f"{head}\n0, GPU-a, P0, 3, 4, 16, 16, No, Yes, 550.54, 1410 MHz\n"
    (state,) = log_of(tmp_path, text, "gpu.csv").states
    assert (state.index, state.uuid, state.driver, state.is_in_use) == (0, "GPU-a", "550.54", True)
    assert (state.pcie_generation, state.pcie_generation_max) == (3, 4)
    assert (state.is_repair_pending, state.has_repair_failed) == (False, True)


def test_a_query_of_sensors_alone_tells_no_state(tmp_path):
    head = "index, pstate, clocks.sm [MHz], ecc.errors.uncorrected.volatile.total"
    assert log_of(tmp_path, f"{head}\n0, P0, 1410 MHz, 1\n", "gpu.csv").states == ()


def test_links_of_nvlink_behind_a_label_are_of_that_host(tmp_path):
    status = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n"
    text = labelled("node-7", text_of([Gpu()]) + status)
    (links,) = log_of(tmp_path, text).links
    assert links.host == "node-7"


GPUS = st.builds(
    Gpu,
    generation=st.none() | st.integers(1, 5),
    width=st.none() | st.sampled_from((1, 4, 8, 16)),
    state=st.sampled_from(("P0", "P2", "P8")),
    reasons=st.lists(st.sampled_from(("gpu_idle", "hw_slowdown", "sw_power_cap")), unique=True).map(
        tuple
    ),
    sm_mhz=st.none() | st.integers(0, 3_000),
    use=st.none() | st.integers(0, 100),
    memory_mib=st.none() | st.integers(0, 200_000),
    errors=st.none() | st.integers(0, 10**9),
    pending=st.none() | st.booleans(),
    failed=st.none() | st.booleans(),
    heat=st.none() | st.integers(0, 120),
    power=st.none() | st.floats(0, 2_000).map(lambda watts: round(watts, 2)),
    recovery=st.sampled_from(("None", "Reset", "Drain and Reset")),
    processes=st.lists(st.sampled_from(("C", "G", "C+G")), max_size=3).map(tuple),
)


@given(st.lists(GPUS, min_size=1, max_size=4))
def test_text_and_xml_say_the_same(gpus):
    several = [
        replace(gpu, uuid=f"GPU-{n}", bus=f"00000000:{n:02X}:00.0") for n, gpu in enumerate(gpus)
    ]
    text, xml = lines_of(text_of(several)), lines_of(xml_of(several))
    assert facts_of(text) == facts_of(xml)
    assert [one.index for one in text.series] == list(range(len(gpus)))
    assert [one.pcie_width for one in text.states] == [gpu.width for gpu in gpus]
    assert [one.table["num_processes"].tolist() for one in text.series] == [
        [sum("C" in kind for kind in gpu.processes)] for gpu in gpus
    ]


# Damaged and hostile -----------------------------------------------------------------------------

LAUGHS = """\
<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [
 <!ENTITY a "ha">
 <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
]>
<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>
"""
OUTSIDE = """\
<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [<!ENTITY file SYSTEM "file:///etc/passwd">]>
<nvidia_smi_log><gpu id="0"><product_name>&file;</product_name></gpu></nvidia_smi_log>
"""
PARAMETER = """\
<?xml version="1.0"?>
<!DOCTYPE nvidia_smi_log [<!ENTITY % all SYSTEM "http://127.0.0.1:9/x.dtd"> %all;]>
<nvidia_smi_log/>
"""


@pytest.mark.parametrize("text", [LAUGHS, OUTSIDE, PARAMETER], ids=["laughs", "file", "parameter"])
def test_entities_are_refused_and_the_rest_of_the_file_is_read(text, tmp_path):
    log = log_of(tmp_path, text + xml_of([Gpu()]), "gpu.xml")
    assert [one.name for one in log.states] == ["NVIDIA H200"]
    assert "it declares entities" in log.notes[0]


def test_a_document_that_only_declares_entities_is_refused_with_a_sentence(tmp_path):
    path = tmp_path / "gpu.xml"
    path.write_text(LAUGHS)
    with pytest.raises(InputError, match="declares entities"):
        read_device_log(str(path))


def test_an_embedded_dtd_without_entities_is_read(tmp_path):
    declared = "<!DOCTYPE nvidia_smi_log [\n<!ELEMENT nvidia_smi_log (gpu)>\n]>"
    text = xml_of([Gpu()]).replace(
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">', declared
    )
    log = log_of(tmp_path, text, "gpu.xml")
    assert (len(log.states), log.notes) == (1, ())


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_document_that_is_cut_is_read_up_to_there(share, tmp_path):
    text = xml_of(node(1) + node(2) + node(3))
    log = log_of(tmp_path, text[: int(len(text) * share)], "gpu.xml")
    assert 1 <= len(log.states) <= 6
    assert "read only up to the damage" in log.notes[0]


def test_output_that_is_cut_is_read_up_to_there_and_its_gpus_have_no_index():
    text = text_of(node(1) + node(2))
    log = lines_of(text[: len(text) // 2])
    assert {one.index for one in log.series} == {None}
    assert len(log.series) == 2


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ("<a>" * 100, "something other than"),
        (f"<driver_version a='{'x' * 300_000}", "a tag does not end"),
        ("<a></b>", "mismatched tag"),
        ("\x01", "not well-formed"),
    ],
)
def test_what_nvidia_smi_does_not_write_ends_the_reading(inside, why):
    collector = Collector("x")
    reader = SmiXml(collector)
    for line in ("<nvidia_smi_log>", *(inside[i : i + 999] for i in range(0, len(inside), 999))):
        reader.take(line)
    reader.close()
    (what,) = collector.left_out
    assert why in what


def test_xml_of_something_else_is_not_taken(tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text('<?xml version="1.0"?>\n<testsuites><testsuite name="a"/></testsuites>\n')
    assert not fits_device_log(str(path))


def test_a_program_that_prints_the_output_into_its_own_log_keeps_its_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(f"starting the job\niteration 1 loss 2.0\n{text_of([Gpu()])}")
    assert not fits_device_log(str(path))


@given(st.data())
def test_any_damage_is_read_or_counted(data):
    text = data.draw(st.sampled_from((text_of, xml_of)))(node(1))
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(
        st.sampled_from(("", "\0", "\x1b[2J", "<", "&x;", "]]>", ": ", "\n", "9" * 400))
    )
    log = lines_of(text[:at] + put + text[at + data.draw(st.integers(0, 200)) :])
    assert len(log.states) <= 3
