"""Most kernel time is fp32 products."""

from distprof.sections.kernels.result import CategoryTime, KernelRow, KernelsResult
from tests.rules.samples import MS, Results, changed, healthy


def results() -> Results:
    kernel = KernelRow(
        name="ampere_sgemm_128x64_nn",
        kind="computation",
        count=100,
        total_ns=60 * MS,
        median_ns=MS // 2,
        slowest_rank=None,
        spread=None,
    )
    category = CategoryTime(kind="computation", count=500, total_ns=100 * MS)
    return changed(healthy(), KernelsResult, categories=(category,), kernels=(kernel,))
