import pickle

import pytest

from distprof.config import CommunicationConfig, NamePattern
from distprof.ingest.communication import Classifier, collective_kind, is_wait, shipped_patterns
from distprof.schema import Coded
from distprof.terms import CollectiveKind as Kind

COMMUNICATION = [
    # name, kind, library; kernel names as their libraries spell them
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Kind.ALL_REDUCE, "nccl"),
    (
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        Kind.SEND_RECV,
        "nccl",
    ),
    (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        Kind.REDUCE_SCATTER,
        "nccl",
    ),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.ALL_GATHER, "nccl"),
    ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.BROADCAST, "nccl"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", Kind.REDUCE, "nccl"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", Kind.UNKNOWN, "nccl"),
    (
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs)",
        Kind.ALL_REDUCE,
        "nccl",
    ),
    ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", Kind.UNKNOWN, "rccl"),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        Kind.ALL_REDUCE,
        "symmetric-memory",
    ),
    (
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<float, 16, 8>(float*)",
        Kind.ALL_REDUCE,
        "symmetric-memory",
    ),
    (
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float>(float*)",
        Kind.ALL_REDUCE,
        "symmetric-memory",
    ),
    (
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long)",
        Kind.BARRIER,
        "symmetric-memory",
    ),
    (
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        Kind.ALL_REDUCE,
        "custom-all-reduce",
    ),
    (
        "void aiter::cross_device_reduce_2stage<half, 8>(aiter::RankData*)",
        Kind.ALL_REDUCE,
        "custom-all-reduce",
    ),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<5>(int)",
        Kind.ALL_REDUCE,
        "custom-all-reduce",
    ),
    (
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(int)",
        Kind.ALL_REDUCE,
        "custom-all-reduce",
    ),
    ("void acme::ring::reduceScatterPush<half>(int)", Kind.REDUCE_SCATTER, "custom-collective"),
    ("my_allgather_v2_kernel_bf16", Kind.ALL_GATHER, "custom-collective"),
    ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", Kind.ALL_TO_ALL, "deepep"),
    (
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)",
        Kind.ALL_TO_ALL,
        "deepep",
    ),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*)", Kind.ALL_TO_ALL, "deepep"),
    ("nvshmemi_reduce_kernel_on_stream(int)", Kind.REDUCE, "nvshmem"),
    ("void nvshmem_barrier_all_kernel(int)", Kind.BARRIER, "nvshmem"),
    ("mscclKernel_Sum_half_Simple_true(ncclDevComm*, mscclAlgo*)", Kind.UNKNOWN, "msccl"),
    ("void mscclpp::allreduce7<__half>(int)", Kind.ALL_REDUCE, "msccl"),
    ("userbuffers_fp16_sum_inplace_gpu_mc(int)", Kind.UNKNOWN, "userbuffers"),
    ("hcom_allReduce__123_0", Kind.ALL_REDUCE, "ccl"),
    ("gloo:all_gather", Kind.ALL_GATHER, "gloo"),
    ("gloo:recv", Kind.RECV, "gloo"),
]

# Kernels that move data or wait for other ranks, by the public source that defines them.
FROM_SOURCES = {
    "DeepEP csrc/kernels/intranode.cu": [
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", Kind.ALL_TO_ALL),
        ("void deep_ep::intranode::cached_notify_dispatch<8>(int const*)", Kind.ALL_TO_ALL),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", Kind.ALL_TO_ALL),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**)", Kind.ALL_TO_ALL),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(int)", Kind.ALL_TO_ALL),
        ("void deep_ep::intranode::barrier<8>(int**, int)", Kind.BARRIER),
    ],
    "DeepEP csrc/kernels/internode.cu": [
        ("void deep_ep::internode::notify_dispatch<false, 2>(int const*)", Kind.ALL_TO_ALL),
        ("void deep_ep::internode::cached_notify<false>(int, int)", Kind.ALL_TO_ALL),
        ("void deep_ep::internode::dispatch<false, 2, true, 8>(int4*)", Kind.ALL_TO_ALL),
        ("void deep_ep::internode::combine<false, 2, __nv_bfloat16>(int4*)", Kind.ALL_TO_ALL),
    ],
    "deepseek-ai/profile-data": [
        ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)", Kind.ALL_TO_ALL),
        ("void dpsk::ep::internode::cached_notify<false>(int, int)", Kind.ALL_TO_ALL),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", Kind.ALL_TO_ALL),
        ("void dpsk::ep::internode::combine<false, 4, __nv_bfloat16>(int4*)", Kind.ALL_TO_ALL),
        ("void dpsk::ep::internode::dispatch_ll<3, 10, 7168>(void*)", Kind.ALL_TO_ALL),
        ("void dpsk::ep::internode::combine_ll<3, 10, 7168>(void*)", Kind.ALL_TO_ALL),
    ],
    "DeepEP csrc/kernels/internode_ll.cu": [
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", Kind.ALL_TO_ALL),
        ("void deep_ep::internode_ll::combine<false, 7168, 9>(void*)", Kind.ALL_TO_ALL),
        # cleans between two barriers of all ranks
        ("void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*)", Kind.BARRIER),
    ],
    "DeepEP deep_ep/include/deep_ep/impls": [
        ("void deep_ep::ep::dispatch_impl<true, false, 24>(void*)", Kind.ALL_TO_ALL),
        ("void deep_ep::ep::hybrid_dispatch_impl<false, 24>(void*)", Kind.ALL_TO_ALL),
        ("void deep_ep::elastic::combine_impl<true, 24>(void*)", Kind.ALL_TO_ALL),
        ("void deep_ep::elastic::barrier_impl<true, 24>(void*)", Kind.BARRIER),
        ("void deep_ep::elastic::pp_send_impl<8, 2, 1, 1, 1>(void*)", Kind.SEND),
        ("void deep_ep::elastic::pp_recv_impl<8, 2, 1, 1, 1>(void*)", Kind.RECV),
        ("void deep_ep::engram::engram_fetch_impl<8, 2>(void*)", Kind.SEND_RECV),
        ("void deep_ep::engram::engram_fetch_wait_impl<8, 2>(ncclDevComm)", Kind.SEND_RECV),
        ("void deep_ep::ep::lb_prefetch_weights<8, 4, 8>(int const*)", Kind.SEND_RECV),
        ("void deep_ep::ep::lb_reduce_grads<8, 4, 8>(int const*)", Kind.SEND_RECV),
        ("void deep_ep::bucket::nvlink_all_reduce<8, 24>(ncclDevComm)", Kind.ALL_REDUCE),
        ("void deep_ep::bucket::hybrid_all_reduce<2, 8, 24>(ncclDevComm)", Kind.ALL_REDUCE),
        ("void deep_ep::bucket::rdma_reduce_scatter<8, 24>(int)", Kind.REDUCE_SCATTER),
        ("void deep_ep::bucket::hybrid_all_gather<8, 24>(int)", Kind.ALL_GATHER),
    ],
    "DeepEP csrc/hybrid_ep/backend/hybrid_ep_backend.cuh": [
        ("void hybrid_ep::dispatch_kernel<unsigned short, 8>(int)", Kind.ALL_TO_ALL),
        ("void hybrid_ep::combine_kernel<8, 2>(int)", Kind.ALL_TO_ALL),
        ("hybrid_ep::device_sync_kernel(unsigned int*, unsigned int*)", Kind.BARRIER),
    ],
    "uccl and Primus-Turbo, which keep DeepEP's names": [
        ("void uccl::intranode::cached_notify_combine<8>(void**)", Kind.ALL_TO_ALL),
        ("void primus_turbo::deep_ep::intranode::dispatch<8, 768>(int4*)", Kind.ALL_TO_ALL),
        ("void nccl_ep::internode_ll::combine<7168>(void*)", Kind.ALL_TO_ALL),
    ],
    "torch symm_mem/CUDASymmetricMemoryOps.cu": [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>()", Kind.ALL_REDUCE),
        (
            "void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>()",
            Kind.ALL_REDUCE,
        ),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", Kind.ALL_GATHER),
        ("void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>()", Kind.ALL_REDUCE),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>()",
            Kind.ALL_REDUCE,
        ),
    ],
    "torch symm_mem/nvshmem_extension.cu": [
        ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)", Kind.ALL_TO_ALL),
        ("void c10d::nvshmem_extension::exchangeSplitAndOffset_2d<true>(long*)", Kind.ALL_TO_ALL),
        ("c10d::nvshmem_extension::allToAllV(void*, void*, long*)", Kind.ALL_TO_ALL),
    ],
    "torch symm_mem/nccl_extension.cu": [
        ("c10d::nccl_extension::lsa_put_kernel(void**, int)", Kind.SEND_RECV),
        ("c10d::nccl_extension::lsa_get_kernel(void**, int)", Kind.SEND_RECV),
        ("c10d::nccl_extension::lsa_put_signal_kernel(void**, void**)", Kind.SEND_RECV),
        ("c10d::nccl_extension::nccl_wait_for_signal_kernel(void**, int)", Kind.SEND_RECV),
    ],
    "torch symm_mem/ops": [
        ("c10d::nccl_extension::all_gather_offset_push_kernel(ncclWindow_t)", Kind.ALL_GATHER),
        ("c10d::nccl_extension::all_gather_offset_mm_kernel(ncclWindow_t)", Kind.ALL_GATHER),
        (
            "void c10d::nccl_extension::reduce_scatter_offset_kernel<float, true>(int)",
            Kind.REDUCE_SCATTER,
        ),
        (
            "void c10d::nccl_extension::reduce_scatter_columns_kernel<float, true>(int)",
            Kind.REDUCE_SCATTER,
        ),
        ("c10d::nccl_extension::all_to_all_lsa_kernel(ncclWindow_t)", Kind.ALL_TO_ALL),
    ],
    "mscclpp src/ext/collectives and src/ext/ep": [
        (
            "void mscclpp::collective::allreduceNvlsBlockPipeline<__half>(void const*)",
            Kind.ALL_REDUCE,
        ),
        ("void mscclpp::collective::allgatherFullmesh2<false>(void*)", Kind.ALL_GATHER),
        ("void mscclpp::executionKernel<float, mscclpp::LL16Packet>(int)", Kind.UNKNOWN),
        ("void mscclpp::ep::expertMajorDispatchKernel<7168, 0, 128>(void*)", Kind.ALL_TO_ALL),
    ],
    "mori src/ops/dispatch_combine": [
        ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(int)", Kind.ALL_TO_ALL),
        ("void mori::moe::EpCombineInterNodeKernel<hip_bfloat16>(int)", Kind.ALL_TO_ALL),
    ],
    "rccl": [
        ("void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", Kind.UNKNOWN),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", Kind.UNKNOWN),
    ],
}

COMPUTATION = [
    "triton_poi_fused_all_gather_into_tensor_cat_kernel_0",
    "FSDP::all_gather (layers.0)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)",
    "void deep_ep::internode::get_dispatch_layout<256, 32, 8>(long const*)",
    "void deep_ep::internode_ll::query_mask_buffer<256>(int*, int, int*)",
    "void deep_ep::internode_ll::update_mask_buffer<256>(int*, int, bool)",
    "void deep_ep::internode_ll::clean_mask_buffer<256>(int*, int)",
    "void deep_ep::ep::dispatch_copy_epilogue_impl<true, false, 24>(void*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<true, 24>(void*)",
    "void deep_ep::elastic::dispatch_deterministic_prologue_impl<24, 8>(long*)",
    "void hybrid_ep::scan<128, 8>(bool const*)",
    "void hybrid_ep::update_expected_value_kernel<true>(int)",
    "void hybrid_ep::permute_kernel<8>(int)",
    "void cdpsk::ep::CUB_200400_900_NS::DeviceScanKernel<int>(int)",
    "__amd_rocclr_copyBuffer",
    "void fused_dispatch_moe_kernel<8>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)",
    "void at::native::(anonymous namespace)::gather_kernel<float>(float*)",
    "void at::native::index_elementwise_kernel<128, 4, scatter_add>(int)",
    "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>::Policy600>(float*)",
    "void cublasLt::splitKreduce_kernel<32, 16, int>(int)",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
    "Cijk_Ailk_Bljk_SB_MT64x64x16_SN_GRVW4",
    "hipLaunchKernel",
    "deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "triton_red_fused_sum_broadcast_0",
    "void flash::flash_fwd_kernel<128>(flash::Flash_fwd_params)",
    "void vllm::reshape_and_cache_flash_kernel<half>(half const*)",
    "aten::all_close",
    "",
]


@pytest.mark.parametrize(("name", "kind", "library"), COMMUNICATION)
def test_communication_is_told_by_name(name, kind, library):
    verdict = Classifier().verdict(name)
    assert verdict.is_communication
    assert (verdict.kind, verdict.library) == (kind, library)


@pytest.mark.parametrize(
    ("source", "name", "kind"),
    [(source, *row) for source, rows in FROM_SOURCES.items() for row in rows],
)
def test_kernels_of_public_sources_that_move_data_or_wait(source, name, kind):
    verdict = Classifier().verdict(name)
    assert verdict.is_communication, source
    assert verdict.kind == kind


@pytest.mark.parametrize("name", COMPUTATION)
def test_computation_that_sounds_like_communication_is_not_taken_for_it(name):
    assert not Classifier().verdict(name).is_communication


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("allreduce", Kind.ALL_REDUCE),
        ("_allgather_base", Kind.ALL_GATHER),
        ("all_gather_into_tensor_coalesced", Kind.ALL_GATHER),
        ("_reduce_scatter_base", Kind.REDUCE_SCATTER),
        ("reduce_scatter_tensor_coalesced", Kind.REDUCE_SCATTER),
        ("all_to_allv", Kind.ALL_TO_ALL),
        ("alltoall_base", Kind.ALL_TO_ALL),
        ("_broadcast_oop", Kind.BROADCAST),
        ("sparse_all_reduce", Kind.ALL_REDUCE),
        ("c10d::reduce_", Kind.REDUCE),
        ("c10d::recv_any_source_", Kind.RECV),
        ("nccl:send 0->1", Kind.SEND),
        ("nccl:recv 0<-1", Kind.RECV),
        ("gather", Kind.GATHER),
        ("scatter", Kind.SCATTER),
        ("barrier", Kind.BARRIER),
        ("coalesced", Kind.UNKNOWN),
        ("", Kind.UNKNOWN),
    ],
)
def test_upstream_spellings_of_a_kind(text, kind):
    assert collective_kind(text) is kind


@pytest.mark.parametrize("text", ["wait", "Wait", "init", "_end"])
def test_waiting_is_no_operation(text):
    assert is_wait(text)


def test_a_user_pattern_comes_before_those_that_ship():
    config = CommunicationConfig(
        patterns=(NamePattern(match="reduce_kernel", library="own", kind=Kind.BROADCAST.label),),
        exclude=("multimem",),
    )
    classifier = Classifier(config)
    verdict = classifier.verdict("void at::native::reduce_kernel<512>(int)")
    assert (verdict.kind, verdict.library) == (Kind.BROADCAST, "own")
    assert not classifier.verdict("multimem_all_gather_kernel").is_communication


def test_a_classifier_crosses_a_process_boundary_with_its_patterns():
    config = CommunicationConfig(patterns=(NamePattern(match="acme"),))
    copy = pickle.loads(pickle.dumps(Classifier(config)))
    assert copy.verdict("acme_all_reduce").kind is Kind.ALL_REDUCE


def test_rows_are_judged_by_distinct_name():
    names = Coded.encode(["gemm", "gloo:barrier", "gemm", "gloo:barrier"])
    classifier = Classifier()
    assert classifier.communication_rows(names).tolist() == [False, True, False, True]
    assert classifier.kinds(names).tolist() == [0, Kind.BARRIER, 0, Kind.BARRIER]


def test_no_rows_are_no_trouble():
    names = Coded.encode([])
    assert Classifier().communication_rows(names).tolist() == []
    assert Classifier().kinds(names).tolist() == []


def test_every_shipped_pattern_is_met_by_an_example():
    """A pattern that no example reaches is dead weight, or hidden by an earlier one."""
    libraries = {library for _, _, library in COMMUNICATION}
    assert {p.library for p in shipped_patterns().patterns} - libraries <= {"mpi", "moe-all-to-all"}
