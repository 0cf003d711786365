// The PTX that our kernels need, in one place, so that a test can implement the same functions on a CPU
// (tests/kernels/cuda_on_cpu.h) and run the very source of the kernels.
#pragma once

#ifdef SONANT_ON_CPU
#include "cuda_on_cpu.h"
#else

#include "machine.cuh"

// The type of products' factors: bfloat16 or, where keys and values have eight bits, half precision, in which all of
// these are exact: no product takes eight bits with a wider left operand and float32 accumulators.
#if KV_BYTES == 1
#define FACTOR "f16"
#else
#define FACTOR "bf16"
#endif

// Start a copy of 16 bytes to shared memory; where `there` is false it writes zeros and reads nothing.
__device__ __forceinline__ void copy16(shared_t to, const void* from, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], shared_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_turned(uint32_t (&to)[4], shared_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// Transpose a matrix of 8 by 8 with two neighbours of a row in each lane.
__device__ __forceinline__ uint32_t turn(uint32_t two) {
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
    return turned;
}

// c [16, 8] += a [16, 16] · b [16, 8], factors with float32 accumulators.
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." FACTOR "." FACTOR ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same without adding: c = a · b.
__device__ __forceinline__ void multiply_first(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." FACTOR "." FACTOR ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Two factors of a product.
__device__ __forceinline__ uint32_t pack_factors(float low, float high) {
    uint32_t both;
    asm("cvt.rn." FACTOR "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Four values of eight bits (e4m3) as factors: the first two, and the last two.
__device__ __forceinline__ void widen(uint32_t (&to)[2], uint32_t four) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(to[0]), "=r"(to[1])
        : "r"(four));
}

// A value as e4m3; what is too large becomes the largest there is.
__device__ __forceinline__ uint8_t to_e4m3(float x) {
    uint16_t both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return static_cast<uint8_t>(both);
}

// Copy 16 bytes by one load and one store.
__device__ __forceinline__ void move16(void* to, const void* from) {
    *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}

#endif

__device__ __forceinline__ float bf16(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }
__device__ __forceinline__ uint16_t to_bf16(float x) { return static_cast<uint16_t>(pack(x, 0.0f)); }
__device__ __forceinline__ float rounded(float x) { return bf16(to_bf16(x)); }
