"""Kernels of several engines and libraries are known by the names they have in real traces."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from sonant.profiling.kernels import Work, classify, short

MULTIPLICATION = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>"
)
NAMES = {
    Work.GEMM: [
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false>",
        "void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, 4>",
        "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
        "triton_mm_12",
        "aten::addmm",
        "_gemv",
        "_small_m_gemm",
        "_skinny",
        "_few",
        "frame_pass",
        "paged_pass",
    ],
    Work.ATTENTION: [
        "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, false>(Flash_fwd_params)",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<CollectiveMainloop>>>",
        "void vllm::paged_attention_v2_kernel<__nv_bfloat16, __nv_bfloat16, 128, 16, 128>",
        "kernel_unified_attention_2d",
        "_fwd_grouped_kernel_stage1",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<cutlass>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "_attention",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
    ],
    Work.NORM: [
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",
        "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "_rms_norm",
    ],
    Work.ROPE: ["void vllm::rotary_embedding_kernel<c10::BFloat16, true>", "_qk_rope"],
    Work.CACHE: ["void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "_write", "store_kvcache_kernel"],
    Work.ACTIVATION: ["void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", "_swiglu"],
    Work.SAMPLING: [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>",
        "void at::native::(anonymous namespace)::sampleMultinomialOnce<float, float>",
        "_sample",
        "_frame_step",
    ],
    Work.CODEC: [
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, __nv_bfloat16, float>",
        "void conv_depthwise2d_forward_kernel<1, float, int>",
        "_snake_beta",
        "_depthwise",
        "aten::mkldnn_convolution",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_execute_kernel__5x_cudnn",
    ],
    Work.COMMUNICATION: ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "cross_device_reduce_1stage"],
    Work.FILL: [
        "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >",
        "aten::zero_",
        "triton_poi_fused_fill_3",
    ],
    Work.TO_HOST: ["Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pinned)"],
    Work.TO_DEVICE: ["Memcpy HtoD (Pinned -> Device)"],
    Work.COPY: [
        "Memcpy DtoD (Device -> Device)",
        "void at::native::elementwise_kernel<128, 4, gpu_kernel_impl<at::native::direct_copy_kernel_cuda(x)> >",
    ],
    Work.CAST: [
        "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(x), 4>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(x), memory::LoadWithCast<1>>",
        "triton_poi_fused_cast_2",
    ],
    Work.CAT: ["void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 3, 64, 64>"],
    Work.EMBEDDING: [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "void at::native::index_elementwise_kernel<128, 4, gpu_index_kernel>",
        "void at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl<OpaqueType<4> >(x)>",
    ],
    Work.ELEMENTWISE: [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>",
        "triton_poi_fused_add_mul_7",
        "void at::native::vectorized_elementwise_kernel<2, masked_fill_kernel(TensorIterator&, Scalar const&)>",
        MULTIPLICATION,
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<int>, 4, memory::LoadWithoutCast>",
        "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<long>, 4, memory::LoadWithCast<2> >",
    ],
    Work.MOE: ["fused_moe_kernel", "void vllm::moe::topkGating<8, 128, 4, 16, 32>"],
    Work.OTHER: ["my_own_thing"],
}  # fmt: skip


@pytest.mark.parametrize(("work", "name"), [(work, name) for work, names in NAMES.items() for name in names])
def test_a_kernel_is_known_by_its_name(work: Work, name: str) -> None:
    assert classify(name) is work


def test_none_of_our_own_kernels_is_a_stranger() -> None:
    sources = (resources.files("sonant.kernels") / "triton").iterdir()
    launched = {
        name
        for s in sources
        if s.name.endswith(".py")
        for name in re.findall(r"\b(_\w+)\[\w*\(?.*?\]\(", s.read_text())
    }
    assert {"_gemv", "_small_m_gemm", "_conv", "_short_attention"} <= launched
    assert [name for name in launched if classify(name) is Work.OTHER] == []


def test_names_are_shortened_to_what_tells_them_apart() -> None:
    long = NAMES[Work.FILL][1]
    assert short(long) == "vectorized_elementwise_kernel<FillFunctor>"
    assert short(MULTIPLICATION) == "elementwise_kernel<MulFunctor>"
    assert short(NAMES[Work.EMBEDDING][3]) == "index_elementwise_kernel<index_copy_kernel_impl>"
    assert len(short("x" * 500)) == 80
