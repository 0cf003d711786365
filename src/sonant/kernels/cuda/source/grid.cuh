// The PTX for grids whose blocks all run at once: clusters, stores into another block's shared memory that arrive at an
// mbarrier, a barrier of all blocks, and posts in global memory. A test implements the same functions on a CPU, as for
// ptx.cuh.
#pragma once
#include "ptx.cuh"

// Sixteen bytes in registers: eight values of a row, a lane's share of the depth (k) of two products of sixteen.
struct alignas(16) Piece {
    uint32_t word[4];
};

constexpr uint32_t EMPTY = 0xffffffffu;  // memory without a post; no instruction leaves this NaN in a result

#ifndef SONANT_ON_CPU

// Hides where a value comes from, so that what follows from it is computed where it is needed. The compiler would
// otherwise compute all of that once, before a long loop, and have no registers left to keep it in.
__device__ __forceinline__ uint32_t anew(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

// A barrier of all threads of a cluster; what they wrote to any of its blocks before is visible after it.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same address in the shared memory of another block of the cluster.
__device__ __forceinline__ shared_t in_block(shared_t at, int rank) {
    shared_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

// A gate is an mbarrier: it opens when `count` threads have arrived and all bytes that they expect have been pushed,
// and closes again at once for the next turn; turns are told apart by parity.
__device__ __forceinline__ void gate_make(shared_t at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(at), "r"(count)
                 : "memory");
}
__device__ __forceinline__ void gate_arrive(shared_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void gate_expect(shared_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool gate_passed(shared_t at, uint32_t odd) {
    uint32_t over;
    asm volatile("{\n.reg .pred over;\n"
                 "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n}"
                 : "=r"(over)
                 : "r"(at), "r"(odd)
                 : "memory");
    return over;
}

// Both addresses are in the same block, and come from in_block.
__device__ __forceinline__ void push(shared_t to, shared_t gate, float value) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
                 "r"(__float_as_uint(value)), "r"(gate)
                 : "memory");
}
__device__ __forceinline__ void push(shared_t to, shared_t gate, float first, float second) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(__float_as_uint(first)), "r"(__float_as_uint(second)), "r"(gate)
                 : "memory");
}

// Two values at a time, each result rounded to bfloat16.
__device__ __forceinline__ uint32_t product2(uint32_t a, uint32_t b) {
    uint32_t made;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}
__device__ __forceinline__ uint32_t sum2(uint32_t a, uint32_t b) {
    uint32_t made;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}
__device__ __forceinline__ uint32_t difference2(uint32_t a, uint32_t b) {
    uint32_t made;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
    return made;
}
__device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Start a copy of weights, which no kernel writes, to shared memory.
__device__ __forceinline__ void copy_weights16(shared_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Read what other blocks have written, from the L2 cache, where all writes go.
__device__ __forceinline__ void read_fresh16(void* to, const void* from) {
    *static_cast<uint4*>(to) = __ldcg(static_cast<const uint4*>(from));
}
__device__ __forceinline__ uint32_t read_fresh(const uint32_t* from) { return __ldcg(from); }

__device__ __forceinline__ uint32_t ticks() {
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

// As copies_wait, with a number that is not a constant: afterwards at most `left` groups are in flight.
__device__ __forceinline__ void copies_wait_for(int left) {
    if (left >= 8) copies_wait<8>();
    else if (left >= 6) copies_wait<6>();
    else if (left == 5) copies_wait<5>();
    else if (left == 4) copies_wait<4>();
    else if (left == 3) copies_wait<3>();
    else if (left == 2) copies_wait<2>();
    else if (left == 1) copies_wait<1>();
    else copies_wait<0>();
}

// The grid's barrier: behind a barrier of its block, one thread signals that all of the block's writes are done, ...
__device__ __forceinline__ void count_in(uint32_t* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Traps after seconds of polling: a grid of which not all blocks run would hang.
struct Patience {
    uint64_t began = 0;
    uint32_t looks = 0;

    __device__ __forceinline__ void look_again() {
        constexpr uint64_t MOST_NS = 4000000000ull;
        uint64_t now;
        if (++looks % 4096) return;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (!began) began = now;
        if (now - began > MOST_NS) asm volatile("trap;");
    }
};

// ... and waits until the counter has reached `goal`.
__device__ __forceinline__ void count_wait(const uint32_t* counter, uint32_t goal) {
    for (Patience patience;; patience.look_again()) {
        uint32_t count;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
        if (static_cast<int32_t>(count - goal) >= 0) return;
    }
}

// Post four words for another block. None is EMPTY, so each shows by itself that it has arrived.
__device__ __forceinline__ void post(float* to, float4 words) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(words.x), "f"(words.y), "f"(words.z),
                 "f"(words.w)
                 : "memory");
}

// Poll until all of them have arrived.
template <int COUNT>
__device__ __forceinline__ void await_posts(float4 (&found)[COUNT], const float* const (&from)[COUNT]) {
    for (Patience patience;; patience.look_again()) {
        bool there = true;
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(found[n].x), "=f"(found[n].y), "=f"(found[n].z), "=f"(found[n].w)
                         : "l"(from[n])
                         : "memory");
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            there &= __float_as_uint(found[n].x) != EMPTY && __float_as_uint(found[n].y) != EMPTY &&
                     __float_as_uint(found[n].z) != EMPTY && __float_as_uint(found[n].w) != EMPTY;
        if (there) return;
    }
}

#endif

__device__ __forceinline__ float empty() { return from_bits(EMPTY); }
__device__ __forceinline__ float low(uint32_t word) { return from_bits(word << 16); }
__device__ __forceinline__ float high(uint32_t word) { return from_bits(word & 0xffff0000u); }

__device__ __forceinline__ Piece read_fresh16(const uint16_t* from) {
    Piece piece;
    read_fresh16(&piece, from);
    return piece;
}

__device__ __forceinline__ Piece read_piece(const uint8_t* from) {
    Piece piece;
    move16(&piece, from);
    return piece;
}
