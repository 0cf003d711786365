// The PTX for kernels of several warpgroups on a Hopper GPU. All of it is here, in machine.cuh and in warpgroup_products.cuh,
// so that a test can implement the same functions on a CPU and run the very source of the kernels
// (tests/kernels/hopper_on_cpu.h).
#pragma once

#ifdef SONANT_ON_CPU
#include "hopper_on_cpu.h"
#else

#include "machine.cuh"

// Start a copy of 16 bytes to shared memory.
__device__ __forceinline__ void copy16(shared_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Volatile, so that the compiler does not move it up: until it is needed, what is read occupies registers.
__device__ __forceinline__ uint4 read16(const void* from) {
    uint4 value;
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from)
                 : "memory");
    return value;
}
__device__ __forceinline__ void write16(void* to, uint4 value) { *static_cast<uint4*>(to) = value; }
__device__ __forceinline__ void store16(shared_t to, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

// Make what this thread has written to shared memory visible to wgmma; a barrier must follow.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Mbarriers in shared memory, 8 bytes each: a phase ends when `count` threads have arrived.
__device__ __forceinline__ void barrier_start(shared_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(shared_t barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// Wait until the phase of this parity has ended; phases are counted from 0.
__device__ __forceinline__ void barrier_wait(shared_t barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra.uni finished;\nbra.uni again;\nfinished:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Make barriers that were started visible to copies, too; a barrier of all threads must follow.
__device__ __forceinline__ void barriers_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrive, and have the phase wait for so many bytes, too.
__device__ __forceinline__ void barrier_expect(shared_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Rows of lines in memory, as the driver encodes them for TMA, with the size of the part (box) of a row that one copy takes.
struct alignas(64) TensorMap {
    uint64_t words[16];
};
// Start a TMA copy of the part that begins at this column and line of a row to shared memory; what lies outside of the row is
// zero. Its bytes arrive at the barrier.
__device__ __forceinline__ void copy_part(shared_t to, const TensorMap& from, int column, int line, int row,
                                          shared_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
            "r"(to),
        "l"(&from), "r"(column), "r"(line), "r"(row), "r"(barrier)
        : "memory");
}
// Prefetch bytes, a multiple of 16, into the L2 cache.
__device__ __forceinline__ void fetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Named barriers, for turns among warpgroups: `turn_wait` returns when `count` threads have called either with this number.
__device__ __forceinline__ void turn_wait(int number, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}
__device__ __forceinline__ void turn_give(int number, int count) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory");
}

// A wgmma descriptor of a matrix in shared memory, for a product over 16 of its columns: pieces of 8 lines by 16 bytes, each
// 128 contiguous bytes, so lines may begin at any multiple of 16 bytes. `across`: bytes from one piece to the next along the
// depth.
__device__ __forceinline__ uint64_t matrix(shared_t start, int across) {
    const uint64_t along = 128;
    return static_cast<uint64_t>(start >> 4) | static_cast<uint64_t>(across >> 4) << 16 | (along >> 4) << 32;
}
// The same for lines of 128 bytes, whose pieces of 16 bytes are swizzled as TMA copies leave them: piece p of the n-th line
// from a multiple of 1,024 bytes on (n = 0…7) lies in the place of p ^ n. It may begin at any line: add 8 to the descriptor for
// each. Add 2 for the next 16 columns.
__device__ __forceinline__ uint64_t swizzled_matrix(shared_t start) {
    const uint64_t along = 1024, swizzled = 1;
    return static_cast<uint64_t>(start >> 4) | static_cast<uint64_t>(1) << 16 | (along >> 4) << 32 | swizzled << 62;
}
// Such lines as the depth of a product and their columns as its columns, for `multiply_turned`: 16 lines of 64 columns, and the
// next 64 columns so many bytes further. Add 128 for the next 16 lines.
__device__ __forceinline__ uint64_t swizzled_lines(shared_t start, int to_next_columns) {
    const uint64_t along = 1024, swizzled = 1;
    return static_cast<uint64_t>(start >> 4) | static_cast<uint64_t>(to_next_columns >> 4) << 16 | (along >> 4) << 32 | swizzled << 62;
}
// As `swizzled_matrix` for lines of 64 bytes: add 4 for each, and piece p lies in the place of p ^ (n / 2 % 4).
__device__ __forceinline__ uint64_t half_swizzled_matrix(shared_t start) {
    const uint64_t along = 512, swizzled = 2;
    return static_cast<uint64_t>(start >> 4) | static_cast<uint64_t>(1) << 16 | (along >> 4) << 32 | swizzled << 62;
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait until all but the last `LEFT` groups of products are done. Their registers must not be touched before.
template <int LEFT>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// A compiler fence for a product's registers, before `products_begin` and after the wait: what is computed with them must not
// be moved in between. `LEFT`: groups of other products that may still be in flight.
template <int LEFT = 0, int N>
__device__ __forceinline__ void settled(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
template <int N>
__device__ __forceinline__ void settled(int (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(c[i])::"memory");
}
template <int N>
__device__ __forceinline__ void settled(uint32_t (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

template <int COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Accurate to 2^-14 up to angles of 300, and to 2^-20 near zero; bfloat16 has eight bits.
__device__ __forceinline__ float sine(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#include "warpgroup_products.cuh"

#endif

__device__ __forceinline__ float low_of(uint32_t both) { return from_bits(both << 16); }
__device__ __forceinline__ float high_of(uint32_t both) { return from_bits(both & 0xffff0000u); }
