// The PTX that kernels of one warpgroup (ptx.cuh) and of several (hopper.cuh) have in common.
#pragma once
#include <stdint.h>

typedef uint32_t shared_t;  // an address in shared memory

extern __shared__ __align__(1024) uint8_t shared_memory[];

__device__ __forceinline__ shared_t shared_base() {
    return static_cast<shared_t>(__cvta_generic_to_shared(shared_memory));
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until all but this thread's last `LEFT` groups have arrived.
template <int LEFT>
__device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float from_bits(uint32_t bits) { return __uint_as_float(bits); }

// Reads from the L2 cache: another block, or a kernel that still runs, may have written there.
__device__ __forceinline__ int read_fresh(const int* from) { return __ldcg(from); }
__device__ __forceinline__ int64_t read_fresh(const int64_t* from) {
    return __ldcg(reinterpret_cast<const long long*>(from));
}
__device__ __forceinline__ float read_fresh(const float* from) { return __ldcg(from); }
__device__ __forceinline__ float4 read_fresh(const float4* from) { return __ldcg(from); }

// Count up to `most` and then from 0 again, with release and acquire: what this block's threads wrote before a barrier
// ahead of it is visible to blocks that find the count higher, and what they write after it is not visible to blocks
// that find it lower.
__device__ __forceinline__ uint32_t count(uint32_t* counter, uint32_t most) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(most) : "memory");
    return before;
}

// Programmatic dependent launch, as in kernels/triton/pdl.py.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_prior() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
