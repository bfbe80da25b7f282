"""Output of ``nvidia-smi -q`` and ``nvidia-smi -q -x``, generated, not recorded.

Sections, elements and their order are those of real output: the text of driver 590 in
``tests/golden/gpu/nvidia-smi-h200.txt.gz``, the XML of drivers 535 and 590
(``nvsmi_device_v12.dtd`` and ``v13``) in the test data of influxdata/telegraf,
``plugins/inputs/nvidia_smi/testdata``. Values are made up. ``python -m tests.smi_outputs`` writes
the golden files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

GOLDEN = Path(__file__).parent / "golden" / "gpu"
REASONS = (
    ("Idle", "gpu_idle", ""),
    ("Applications Clocks Setting", "applications_clocks_setting", ""),
    ("SW Power Cap", "sw_power_cap", ""),
    ("HW Slowdown", "hw_slowdown", ""),
    ("HW Thermal Slowdown", "hw_thermal_slowdown", "    "),
    ("HW Power Brake Slowdown", "hw_power_brake_slowdown", "    "),
    ("Sync Boost", "sync_boost", ""),
    ("SW Thermal Slowdown", "sw_thermal_slowdown", ""),
    ("Display Clock Setting", "display_clocks_setting", ""),
)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU says of itself; None is N/A."""

    bus: str = "00000000:83:00.0"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    name: str = "NVIDIA H200"
    generation: int | None = 5
    width: int | None = 16
    state: str = "P0"
    reasons: tuple[str, ...] = ()
    sm_mhz: int | None = 1980
    use: int | None = 100
    memory_mib: int | None = 32_362
    errors: int | None = 0
    pending: bool | None = False
    failed: bool | None = False
    heat: int | None = 52
    power: float | None = 625.24
    recovery: str = "None"
    processes: tuple[str, ...] = ("C", "C", "G")


def fact(indent: int, key: str, value: object) -> str:
    """A line of the text, with its column of colons."""
    return f"{' ' * indent}{key:<{55 - indent}}: {value}"


def unit(value: object, unit: str) -> str:
    """A value with its unit, or what stands there where it is not known."""
    return "N/A" if value is None else f"{value} {unit}"


def answer(value: bool | None) -> str:
    """Yes, No, or not known."""
    return "N/A" if value is None else "Yes" if value else "No"


def known(value: object) -> object:
    """A value without a unit."""
    return "N/A" if value is None else value


def text_of(
    gpus: Sequence[Gpu], attached: int | None = None, when: str = "Fri Jul  3 22:11:09 2026"
) -> str:
    """What ``nvidia-smi -q`` prints."""
    head = [
        "",
        "==============NVSMI LOG==============",
        "",
        fact(0, "Timestamp", when),
        fact(0, "Driver Version", "590.48.01"),
        fact(0, "CUDA Version", "13.1"),
        "",
        fact(0, "Attached GPUs", len(gpus) if attached is None else attached),
    ]
    return "\n".join([*head, *(line for gpu in gpus for line in _text_of_gpu(gpu)), ""])


def _text_of_gpu(gpu: Gpu) -> Iterable[str]:
    yield f"GPU {gpu.bus}"
    yield fact(4, "Product Name", gpu.name)
    yield "    MIG Mode"
    yield fact(8, "Current", "Disabled")
    yield fact(8, "Pending", "Disabled")
    yield fact(4, "GPU UUID", gpu.uuid)
    yield fact(4, "GPU Recovery Action", gpu.recovery)
    yield "    PCI"
    yield fact(8, "Bus Id", gpu.bus)
    yield "        GPU Link Info"
    yield "            PCIe Generation"
    yield fact(16, "Max", 5)
    yield fact(16, "Current", known(gpu.generation))
    yield fact(16, "Device Max", 5)
    yield "            Link Width"
    yield fact(16, "Max", "16x")
    yield fact(16, "Current", "N/A" if gpu.width is None else f"{gpu.width}x")
    yield fact(8, "Tx Throughput", "4217 KB/s")
    yield fact(8, "Rx Throughput", "8691 KB/s")
    yield fact(4, "Performance State", gpu.state)
    yield "    Clocks Event Reasons"
    for key, name, deeper in REASONS:
        yield fact(8 + len(deeper), key, "Active" if name in gpu.reasons else "Not Active")
    yield "    Clocks Event Reasons Counters"
    yield fact(8, "SW Power Capping", "0 us")
    yield "    FB Memory Usage"
    yield fact(8, "Total", "143771 MiB")
    yield fact(8, "Used", unit(gpu.memory_mib, "MiB"))
    yield "    BAR1 Memory Usage"
    yield fact(8, "Used", "7 MiB")
    yield "    Utilization"
    yield fact(8, "GPU", unit(gpu.use, "%"))
    yield fact(8, "Memory", "7 %")
    yield "    ECC Errors"
    yield "        Volatile"
    yield fact(12, "SRAM Correctable", 9)
    yield fact(12, "SRAM Uncorrectable Parity", known(None if gpu.errors is None else 0))
    yield fact(12, "DRAM Uncorrectable", known(gpu.errors))
    yield "        Aggregate"
    yield fact(12, "DRAM Uncorrectable", 77)
    yield "    Remapped Rows"
    yield fact(8, "Pending", answer(gpu.pending))
    yield fact(8, "Remapping Failure Occurred", answer(gpu.failed))
    yield "    Temperature"
    yield fact(8, "GPU Current Temp", unit(gpu.heat, "C"))
    yield fact(8, "Memory Current Temp", "41 C")
    yield "    GPU Power Readings"
    yield fact(8, "Average Power Draw", "1.00 W")
    yield fact(8, "Instantaneous Power Draw", unit(gpu.power, "W"))
    yield fact(8, "Current Power Limit", "700.00 W")
    yield "    Clocks"
    yield fact(8, "Graphics", "1 MHz")
    yield fact(8, "SM", unit(gpu.sm_mhz, "MHz"))
    yield fact(8, "Memory", "3201 MHz")
    yield "    Max Clocks"
    yield fact(8, "SM", "1980 MHz")
    yield "    Processes" if gpu.processes else fact(4, "Processes", "None")
    for number, kind in enumerate(gpu.processes):
        yield fact(8, "Process ID", 10_000 + number)
        yield fact(12, "Type", kind)
        yield fact(12, "Name", "/usr/bin/python : x")


def xml_of(
    gpus: Sequence[Gpu], attached: int | None = None, when: str = "Fri Jul  3 22:11:09 2026"
) -> str:
    """What ``nvidia-smi -q -x`` prints."""
    inside = "".join(f'\t<gpu id="{gpu.bus}">\n{_xml_of_gpu(gpu)}\t</gpu>\n' for gpu in gpus)
    return (
        '<?xml version="1.0" ?>\n'
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
        "<nvidia_smi_log>\n"
        f"\t<timestamp>{when}</timestamp>\n"
        "\t<driver_version>590.48.01</driver_version>\n"
        "\t<cuda_version>13.1</cuda_version>\n"
        f"\t<attached_gpus>{len(gpus) if attached is None else attached}</attached_gpus>\n"
        f"{inside}</nvidia_smi_log>\n"
    )


def _xml_of_gpu(gpu: Gpu) -> str:
    reasons = "".join(
        f"\t\t\t<clocks_event_reason_{name}>{'Active' if name in gpu.reasons else 'Not Active'}"
        f"</clocks_event_reason_{name}>\n"
        for _, name, _ in REASONS
    )
    processes = "".join(
        f"\t\t\t<process_info>\n\t\t\t\t<pid>{10_000 + number}</pid>\n\t\t\t\t<type>{kind}</type>\n"
        "\t\t\t\t<process_name>/usr/bin/python</process_name>\n\t\t\t</process_info>\n"
        for number, kind in enumerate(gpu.processes)
    )
    width = "N/A" if gpu.width is None else f"{gpu.width}x"
    parity = known(None if gpu.errors is None else 0)
    return f"""\
\t\t<product_name>{gpu.name}</product_name>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<uuid>{gpu.uuid}</uuid>
\t\t<gpu_recovery_action>{gpu.recovery}</gpu_recovery_action>
\t\t<pci>
\t\t\t<pci_bus_id>{gpu.bus}</pci_bus_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>5</max_link_gen>
\t\t\t\t\t<current_link_gen>{known(gpu.generation)}</current_link_gen>
\t\t\t\t\t<max_device_link_gen>5</max_device_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>{width}</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t\t<tx_util>4217 KB/s</tx_util>
\t\t\t<rx_util>8691 KB/s</rx_util>
\t\t</pci>
\t\t<performance_state>{gpu.state}</performance_state>
\t\t<clocks_event_reasons>
{reasons}\t\t</clocks_event_reasons>
\t\t<clocks_event_reasons_counters>
\t\t\t<clocks_event_reasons_counters_sw_power_cap>0 us</clocks_event_reasons_counters_sw_power_cap>
\t\t</clocks_event_reasons_counters>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t\t<used>{unit(gpu.memory_mib, "MiB")}</used>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<used>7 MiB</used>
\t\t</bar1_memory_usage>
\t\t<utilization>
\t\t\t<gpu_util>{unit(gpu.use, "%")}</gpu_util>
\t\t\t<memory_util>7 %</memory_util>
\t\t</utilization>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>9</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>{parity}</sram_uncorrectable_parity>
\t\t\t\t<dram_uncorrectable>{known(gpu.errors)}</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<dram_uncorrectable>77</dram_uncorrectable>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_pending>{answer(gpu.pending)}</remapped_row_pending>
\t\t\t<remapped_row_failure>{answer(gpu.failed)}</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>{unit(gpu.heat, "C")}</gpu_temp>
\t\t\t<memory_temp>41 C</memory_temp>
\t\t</temperature>
\t\t<gpu_power_readings>
\t\t\t<average_power_draw>1.00 W</average_power_draw>
\t\t\t<instant_power_draw>{unit(gpu.power, "W")}</instant_power_draw>
\t\t</gpu_power_readings>
\t\t<clocks>
\t\t\t<graphics_clock>1 MHz</graphics_clock>
\t\t\t<sm_clock>{unit(gpu.sm_mhz, "MHz")}</sm_clock>
\t\t\t<mem_clock>3201 MHz</mem_clock>
\t\t</clocks>
\t\t<max_clocks>
\t\t\t<sm_clock>1980 MHz</sm_clock>
\t\t</max_clocks>
\t\t<processes>
{processes}\t\t</processes>
"""


def node(number: int, **changes: object) -> list[Gpu]:
    """Two GPUs of a node; the changes are of the second."""
    first = Gpu(uuid=f"GPU-{number}0", bus="00000000:83:00.0")
    second = {"uuid": f"GPU-{number}1", "bus": "00000000:84:00.0", **changes}
    return [first, Gpu(**second)]  # type: ignore[arg-type]


def two_nodes() -> dict[str, list[Gpu]]:
    """Two nodes: GPU 1 of the second has half its lanes, and waits for a row to be remapped."""
    bad = {"width": 8, "pending": True, "errors": 2, "reasons": ("hw_slowdown",), "sm_mhz": 1200}
    return {"node-1": node(1), "node-2": node(2, **bad)}


def labelled(host: str, text: str) -> str:
    """Lines behind a host's name, as pdsh and clush print them."""
    return "".join(f"{host}: {line}\n" for line in text.splitlines())


def write_golden() -> None:
    """Write the golden files."""
    for name, output in (("txt", text_of), ("xml", xml_of)):
        lines = "".join(labelled(host, output(gpus)) for host, gpus in two_nodes().items())
        (GOLDEN / f"nvidia-smi-q-2nodes.{name}").write_text(lines)


if __name__ == "__main__":
    write_golden()
