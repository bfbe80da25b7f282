"""A device is recognised by its driver's name, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.hardware import load_sheet, recognise_gpu

SHEET = load_sheet()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_drivers_names(device, name):
    assert recognise_gpu(SHEET, device).name == name


@pytest.mark.parametrize(
    "device",
    [
        "",
        "cpu",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA H800",
        "NVIDIA L40",
        "AMD Radeon Graphics",
    ],
)
def test_what_is_not_on_the_sheet_has_no_peak(device):
    assert recognise_gpu(SHEET, device) is None


def test_an_entry_of_the_users_own_is_found_by_the_words_of_its_name():
    numbers = {"bf16_tflops": 756, "memory_tb_per_s": 2, "memory_gb": 80, "scale_up_gb_per_s": 32}
    sheet = load_sheet({"gpus": {"H100 PCIe": numbers}})
    assert recognise_gpu(sheet, "NVIDIA H100 PCIe").bf16_flops == 756e12
    assert recognise_gpu(sheet, "NVIDIA H100 80GB HBM3").name == "h100"


@given(st.text(max_size=80))
def test_any_name_is_taken(device):
    assert recognise_gpu(SHEET, device) is None or any(c.isdigit() for c in device)
