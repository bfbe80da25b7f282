"""Most kernel time is products on tensor cores."""

from distprof.sections.kernels.result import CategoryTime, KernelRow, KernelsResult
from tests.rules.samples import MS, Results, changed, healthy


def results() -> Results:
    kernel = KernelRow(
        name="ampere_s16816gemm_bf16_128x64_ldg8_f2f_tn",
        kind="computation",
        count=100,
        total_ns=60 * MS,
        median_ns=MS // 2,
        slowest_rank=None,
        spread=None,
    )
    category = CategoryTime(kind="computation", count=500, total_ns=100 * MS)
    return changed(healthy(), KernelsResult, categories=(category,), kernels=(kernel,))
