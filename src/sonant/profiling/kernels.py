"""Tells what a kernel does by its name: torch's, cuBLAS, CUTLASS, cuDNN, Triton, vLLM, SGLang, FlashInfer and ours.

Order matters: specific patterns come first ("fused_add_rms_norm" is a norm and not an addition). The names of CPU
operators are recognised too, for traces without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from sonant.profiling.events import Events, Ints, Kind


class Work(StrEnum):
    GEMM = "matrix product"
    ATTENTION = "attention"
    NORM = "norm"
    ROPE = "rotary embedding"
    ACTIVATION = "activation"
    SAMPLING = "sampling"
    CODEC = "codec and convolution"
    CACHE = "KV cache write"
    EMBEDDING = "embedding and index"
    MOE = "expert routing"
    QUANT = "quantisation"
    COMMUNICATION = "communication"
    FILL = "fill"
    COPY = "copy on the device"
    CAST = "cast"
    CAT = "concatenation"
    TO_HOST = "device to host"
    TO_DEVICE = "host to device"
    REDUCE = "reduction"
    ELEMENTWISE = "elementwise"
    OTHER = "other"


# Kinds that move or set bytes and compute nothing.
NO_SOUND = (Work.FILL, Work.COPY, Work.CAST, Work.CAT)

_NAMES: tuple[tuple[Work, str], ...] = (
    (Work.TO_HOST, r"memcpy dtoh|memcpy atoh"),
    (Work.TO_DEVICE, r"memcpy htod|memcpy htoa"),
    (Work.COPY, r"^memcpy"),
    (Work.FILL, r"^memset|fillfunctor|(?<!masked_)fill_kernel|zero_kernel|aten::(fill_|zero_|zeros|full|ones)\b|"
                r"triton_\w*_fill_\d|^fill\b"),
    (Work.COMMUNICATION, r"nccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|nvshmem|custom_ar"),
    (Work.CACHE, r"reshape_and_cache|store_kv|set_kv_buffer|append_paged_kv|kv_cache_kernel|concat_and_cache|^_write$|"
                 r"copy_blocks"),
    (Work.ROPE, r"rotary|rope|apply_rotary"),
    (Work.ATTENTION, r"flash_?(fwd|bwd|attn|mla)|fmha|attention|paged_attn|attn_(fwd|bwd)|\bmha\b|splitkv|"
                     r"decode_att|batchprefill|batchdecode|singleprefill|unified_att|merge_state|mla_(decode|prefill)|flashattn|"
                     r"_fwd_(grouped_)?kernel(_stage)?|_fwd_kernel_ep64|sdpa"),
    (Work.NORM, r"rms_?norm|layer_?norm|group_?norm|batch_norm|vectorized_layer|add_norm|instance_norm"),
    (Work.MOE, r"moe|expert|topkgating|token_permut|align_block"),
    (Work.SAMPLING, r"sampl|multinomial|argmax|top_?k|top_?p|softmax|gumbel|exponential|radixsort|sort_|bitonic|penalt|"
                    r"cumsum|philox|distribution_|^_uniforms$|^_normals$|^_(delay|frame)_step$|gathertopk|sbtopk|mbtopk|"
                    r"aten::sort"),
    (Work.CODEC, r"implicit_gemm|xmma_(fprop|dgrad|wgrad)"),  # convolutions as products
    # "_skinny" and "_few" are what recordings of earlier versions call our "_gemv" and "_small_m_gemm"
    (Work.GEMM, r"gemm|gemv|cublas|cutlass|nvjet|\bmma\b|wgmma|splitk|matmul|_mm_|triton_mm|sgemm|hgemm|bgemm|xmma|"
                r"marlin|machete|dot_kernel|linear|_skinny|^_few$|deep_gemm|aten::(mm|addmm|bmm|baddbmm|linear|matmul|mv)|"
                r"mkldnn_linear|wvsplitk|ampere_|hopper_|sm\d\d_xmma|^(frame|paged)_pass$"),  # passes: mostly weights
    (Work.CODEC, r"conv|^_depthwise$|dgrad|wgrad|fprop|im2col|col2im|snake|vocoder|nchwtonhwc|nhwctonchw|cudnn|"
                 r"winograd|istft|\bfft|dft_|vector_fft|upsample|interpolat"),
    (Work.QUANT, r"quant|fp8|int8|nvfp4|mxfp"),
    (Work.ACTIVATION, r"silu|swiglu|gelu|act_and_mul|glu_kernel|relu|sigmoid|tanh"),
    (Work.CAT, r"catarray|cat_kernel|aten::cat|aten::stack|triton_\w*_cat_"),
    (Work.CAST, r"(bfloat16|float16|float8|half)_copy_kernel|convert_element|to_copy|(?<![a-z])cast|aten::_to_copy"),
    (Work.COPY, r"(?<!index_)copy_kernel|memcpy|copy_device|aten::(copy_|clone|contiguous)|copyfunctor|"
                r"triton_\w*_(clone|copy)_\d|(?<!aten::)transpose"),
    (Work.EMBEDDING, r"embedding|index_?(select|put|get|copy|kernel|elementwise)|indexselect|gather|scatter|take_|"
                     r"nonzero|masked_(?!fill)|aten::index|vectorized_gather|arange|^_host_rows$"),
    (Work.REDUCE, r"reduce|_sum|mean|triton_(red|per)_"),
    (Work.ELEMENTWISE, r"elementwise|pointwise|triton_poi|vectorized|unrolled|foreach|multi_tensor|binary|unary|"
                       r"guided_step|^_flow_turn$|^_patch_step$|^_pcm16$|^_pass_(begins|ends)$|^_weights_(wanted|there)$|"
                       r"aten::(add|sub|mul|div|pow|exp|sin|cos|neg|sqrt|rsqrt|where|clamp|eq|ne|lt|le|gt|ge|"
                       r"logical_\w+|bitwise_\w+|remainder|floor_divide)"),
)  # fmt: skip
_PATTERNS = tuple((work, re.compile(pattern, re.IGNORECASE)) for work, pattern in _NAMES)
# a copy kernel from or to another type; torch names only the target in some versions, both types in others
_ELEMENTWISE_CAST = re.compile(r"copy_kernel_cuda.*\b(LoadWithCast|StoreWithCast)|LoadWithCast.*copy_kernel", re.DOTALL)
# torch writes kernels of one functor as elementwise_kernel<…, Functor>: the functor tells more than the loop around it
_INNER = re.compile(
    r"(FillFunctor|direct_copy_kernel_cuda|bfloat16_copy_kernel_cuda|float16_copy_kernel_cuda|CatArray\w*)"
)


@lru_cache(maxsize=65536)
def classify(name: str) -> Work:
    inner = _INNER.search(name)
    if inner is not None:
        found = inner[1]
        if found.startswith("Fill"):
            return Work.FILL
        if found.startswith("Cat"):
            return Work.CAT
        return Work.CAST if "float16" in found or _ELEMENTWISE_CAST.search(name) else Work.COPY
    return next((work for work, pattern in _PATTERNS if pattern.search(name)), Work.OTHER)


ORDER = tuple(Work)  # a kind's index is its number in columns


class Works:
    """The kind of work of each event on the device. Each name is classified once."""

    def __init__(self, events: Events, names: Sequence[str]) -> None:
        table = np.full(len(names), ORDER.index(Work.OTHER))
        for number in np.unique(events.name):
            table[number] = ORDER.index(classify(names[number]))
        self.code = table[events.name]
        self.code[events.kind == Kind.MEMSET] = ORDER.index(Work.FILL)

    def among(self, works: Iterable[Work], events: Ints | slice = slice(None)) -> npt.NDArray[np.bool_]:
        mask: npt.NDArray[np.bool_] = np.isin(self.code[events], [ORDER.index(work) for work in works])
        return mask


_NOISE = re.compile(r"^void |at::native::|\(anonymous namespace\)::|<unnamed>::|c10::|std::array<char\*, \d+ul?>")

_FUNCTOR = re.compile(r"\w+(?:Functor\w*|_kernel_cuda|_kernel_impl|_kernel|_scalar)\b")
# wrappers of the functor that says what is done
_WRAPPERS = ("BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "gpu_kernel_impl", "gpu_index_kernel")


def short(name: str, width: int = 80) -> str:
    """A kernel's name for people: without namespaces, parameters and most template arguments."""
    text = _NOISE.sub("", name)
    inner = _INNER.search(text)
    if inner is not None and "elementwise" in text:
        text = f"{text.split('<')[0]}<{inner[1]}>"
    elif "elementwise_kernel<" in text:
        functors = [n for n in _FUNCTOR.findall(text) if n not in _WRAPPERS and not n.endswith("elementwise_kernel")]
        text = f"{text.split('<')[0]}<{functors[0]}>" if functors else text
    return text if len(text) <= width else text[: width - 1] + "…"
