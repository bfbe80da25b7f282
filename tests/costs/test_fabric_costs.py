"""α and β: known ones come back within the stated intervals, one regime alone is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.artefacts.fabric_file import FabricCurve, FabricFile
from distprof.costs.collectives import collective_time
from distprof.costs.fabric import NoFitError, expected_busbw, fit_alpha_beta, fitted, point
from distprof.terms import CollectiveKind

SIZES = [4**k for k in range(4, 15)]  # 256 B to 268 MB
KINDS = [
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BROADCAST,
    CollectiveKind.SEND_RECV,
]


def times_ns(kind, ranks, alpha_ns, bandwidth, sizes=SIZES):
    return [
        1e9 * collective_time(kind, ranks, n, alpha_s=alpha_ns / 1e9, bandwidth=bandwidth)
        for n in sizes
    ]


def curve(kind, ranks, alpha_ns, bandwidth, *, num_nodes=1, sizes=SIZES, **fields):
    times = times_ns(kind, ranks, alpha_ns, bandwidth, sizes)
    return fitted(
        FabricCurve(
            kind=kind.label,
            group_size=ranks,
            num_nodes=num_nodes,
            tier="node" if num_nodes == 1 else "across",
            points=tuple(point(kind, ranks, n, [t]) for n, t in zip(sizes, times, strict=True)),
            **fields,
        )
    )


def profile(*curves):
    return FabricFile(origin="distprof bench", curves=curves)


def expected(profile, kind=CollectiveKind.ALL_REDUCE, *, ranks=8, nodes=1, num_bytes=10**7):
    return expected_busbw(profile, kind, group_size=ranks, num_nodes=nodes, num_bytes=num_bytes)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.label)
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_exact_times_give_alpha_and_bandwidth_exactly(kind, ranks):
    fit = fit_alpha_beta(kind, ranks, SIZES, times_ns(kind, ranks, 5_000, 25e9))
    assert fit.alpha_ns == pytest.approx(5_000, rel=1e-6)
    assert fit.bandwidth_bytes_per_s == pytest.approx(25e9, rel=1e-6)
    assert fit.worst_ratio < 1e-6


def test_crossovers_of_the_formula_sheet():
    checks = [(1e3, 450e9, 450_000), (1.5e3, 200e9, 300_000), (5e3, 12.5e9, 62_500)]
    for alpha_ns, bandwidth, crossover in [*checks, (50e3, 12.5e9, 625_000)]:
        kind = CollectiveKind.SEND_RECV
        fit = fit_alpha_beta(kind, 2, SIZES, times_ns(kind, 2, alpha_ns, bandwidth))
        assert fit.crossover_bytes == pytest.approx(crossover, rel=1e-4)


def test_an_all_reduce_crosses_over_where_each_rank_s_share_does():
    kind = CollectiveKind.ALL_REDUCE
    fit = fit_alpha_beta(kind, 8, SIZES, times_ns(kind, 8, 1_500, 200e9))
    assert fit.crossover_bytes == pytest.approx(8 * 300_000, rel=1e-4)
    assert fit.num_steps == 14


@given(
    alpha_ns=st.floats(2e3, 1e5),
    bandwidth=st.floats(1e8, 3e10),
    ranks=st.integers(2, 64),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_noisy_times_give_them_within_a_few_intervals(alpha_ns, bandwidth, ranks, kind, seed):
    sizes = [2**k for k in range(3, 37)]
    noise = np.random.default_rng(seed).lognormal(0, 0.03, len(sizes))
    fit = fit_alpha_beta(
        kind, ranks, sizes, np.array(times_ns(kind, ranks, alpha_ns, bandwidth, sizes)) * noise
    )
    assert abs(fit.alpha_ns - alpha_ns) < 3 * (fit.alpha_high_ns - fit.alpha_ns)
    slope, low, high = (
        1 / fit.bandwidth_bytes_per_s,
        1 / fit.bandwidth_high_bytes_per_s,
        1 / fit.bandwidth_low_bytes_per_s,
    )
    assert abs(slope - 1 / bandwidth) < 1.5 * (high - low)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    kind, random, held = CollectiveKind.ALL_REDUCE, np.random.default_rng(7), 0
    clean = np.array(times_ns(kind, 4, 8_000, 12e9))
    for _ in range(300):
        fit = fit_alpha_beta(kind, 4, SIZES, clean * random.lognormal(0, 0.04, len(clean)))
        held += fit.alpha_low_ns <= 8_000 <= fit.alpha_high_ns
        held += fit.bandwidth_low_bytes_per_s <= 12e9 <= fit.bandwidth_high_bytes_per_s
    assert 0.85 < held / 600 <= 1.0


def test_one_size_gone_wrong_moves_neither_by_much():
    kind = CollectiveKind.ALL_REDUCE
    times = times_ns(kind, 8, 2_000, 100e9)
    times[-2] *= 5
    times[1] *= 5
    fit = fit_alpha_beta(kind, 8, SIZES, times)
    assert fit.alpha_ns == pytest.approx(2_000, rel=0.1)
    assert fit.bandwidth_bytes_per_s == pytest.approx(100e9, rel=0.1)
    assert fit.worst_ratio == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([64, 128, 256, 512, 1024], "all latency-bound"),
        ([2**k for k in range(24, 30)], "too large for a fit"),
        ([64, 2**20, 2**28], "needs 5 sizes, measured: 3"),
    ],
)
def test_sizes_of_one_regime_are_refused(sizes, says):
    kind = CollectiveKind.ALL_REDUCE
    with pytest.raises(NoFitError, match=says):
        fit_alpha_beta(kind, 8, sizes, times_ns(kind, 8, 5_000, 50e9, sizes))


def test_a_flat_curve_is_latency_alone():
    with pytest.raises(NoFitError, match="are all latency-bound"):
        fit_alpha_beta(CollectiveKind.BROADCAST, 2, SIZES, [30_000.0] * len(SIZES))


def test_a_fit_whose_smallest_size_took_longest_can_be_written_as_json():
    times = [426_447, 21_502, 32_009, 81_861, 103_343, 349_100]
    fit = fit_alpha_beta(CollectiveKind.ALL_REDUCE, 2, [4**k for k in range(5, 11)], times)
    assert msgspec.json.decode(msgspec.json.encode(fit), type=type(fit)) == fit


def test_one_rank_alone_sends_nothing():
    with pytest.raises(NoFitError, match="sends nothing"):
        fit_alpha_beta(CollectiveKind.ALL_REDUCE, 1, SIZES, [1.0] * len(SIZES))


def test_a_refusal_is_kept_with_the_curve():
    short = curve(CollectiveKind.ALL_REDUCE, 8, 5_000, 50e9, sizes=SIZES[:3])
    assert short.fit is None
    assert short.refusal == "a fit needs 5 sizes, measured: 3"


def test_spread_is_that_of_the_rounds():
    measured = point(CollectiveKind.ALL_REDUCE, 4, 3_000, [10_000, 12_000, 50_000])
    assert (measured.low_ns, measured.time_ns, measured.high_ns) == (10_000, 12_000, 50_000)
    assert measured.algbw_bytes_per_s == pytest.approx(0.25e9)
    assert measured.busbw_bytes_per_s == pytest.approx(0.375e9)


def test_what_a_size_should_reach_is_read_between_measured_sizes():
    known = profile(curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9))
    for size in SIZES[2:-1]:
        exact = 1.75 * size / times_ns(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9, [size])[0] * 1e9
        assert expected(known, num_bytes=size) == pytest.approx(exact, rel=1e-4)
        between = expected(known, num_bytes=2 * size)
        assert exact < between < expected(known, num_bytes=4 * size)


def test_beyond_the_measured_sizes_only_a_level_curve_answers():
    whole = profile(curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9))
    rising = profile(curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9, sizes=SIZES[:7]))
    assert expected(whole, num_bytes=10**10) == pytest.approx(100e9, rel=0.05)
    assert expected(rising, num_bytes=10**10) is None
    assert expected(whole, num_bytes=100) is None


def test_another_tier_or_kind_is_not_reached():
    known = profile(curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9))
    assert expected(known, nodes=2) is None
    assert expected(known, CollectiveKind.ALL_GATHER) is None


def test_another_group_size_of_the_tier_goes_by_the_fit():
    known = profile(curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9))
    exact = 1e7 / times_ns(CollectiveKind.ALL_REDUCE, 4, 2_000, 100e9, [10**7])[0] * 1.5e9
    assert expected(known, ranks=4) == pytest.approx(exact, rel=1e-4)


def test_without_a_fit_another_group_size_is_not_reached():
    short = curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 100e9, sizes=SIZES[-3:])
    assert expected(profile(short), ranks=4) is None


def test_the_better_of_in_and_out_of_place_counts():
    slow = curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 60e9)
    quick = curve(CollectiveKind.ALL_REDUCE, 8, 2_000, 90e9, in_place=True)
    alone = expected(profile(quick))
    assert expected(profile(slow, quick)) == expected(profile(quick, slow)) == alone


def test_sends_and_receives_are_one_kind_whatever_the_group():
    known = profile(curve(CollectiveKind.SEND_RECV, 2, 2_000, 20e9))
    for kind in (CollectiveKind.SEND, CollectiveKind.RECV):
        assert expected(known, kind, ranks=8) == pytest.approx(20e9, rel=0.01)


def test_bursts_that_a_shaper_lets_pass_hide_neither_rate_nor_delay():
    sizes = [2**k for k in range(9, 22)]
    burst = 1 << 17  # bytes that go at once, at 1 GB/s
    times = [1e6 + 1e9 * (min(n, burst) / 1e9 + max(n - burst, 0) / 25e6) for n in sizes]
    fit = fit_alpha_beta(CollectiveKind.SEND_RECV, 2, sizes, times)
    assert fit.bandwidth_bytes_per_s == pytest.approx(25e6, rel=0.05)
    assert fit.alpha_ns == pytest.approx(1e6, rel=0.05)
    assert fit.worst_ratio > 0.5  # and says that no one line holds


def test_a_protocol_for_small_messages_does_not_bend_the_bandwidth():
    sizes = [4**k for k in range(3, 16)]
    times = [2e3 + n / 5 if n < 65_536 else 20e3 + n / 100 for n in sizes]  # 5 and 100 GB/s
    fit = fit_alpha_beta(CollectiveKind.SEND_RECV, 2, sizes, times)
    assert fit.bandwidth_bytes_per_s == pytest.approx(100e9, rel=0.05)
