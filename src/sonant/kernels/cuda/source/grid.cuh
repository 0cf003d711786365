// What a grid whose blocks all run at once asks of the machine: clusters, stores into another block's shared memory
// that tell when they have landed, and a barrier of all blocks. A test puts the same functions on a CPU, as for
// ptx.cuh.
#pragma once
#include "ptx.cuh"

// Sixteen bytes in registers: eight values of a row, which are the k of two products of sixteen.
struct alignas(16) Piece {
    uint32_t word[4];
};

constexpr uint32_t EMPTY = 0xffffffffu;  // where nothing has been posted; no instruction leaves such a NaN in a result

#ifndef SONANT_ON_CPU

// What follows from such a value is computed where it is needed. A compiler that knows it would rather compute all of
// it once, before a long loop, and then has no registers left to keep it in.
__device__ __forceinline__ uint32_t anew(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

// All threads of a cluster, with all that they wrote before to any of its blocks.
__device__ __forceinline__ void cluster_meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ shared_t in_block(shared_t at, int rank) {
    shared_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}

// A gate in shared memory opens when so many have arrived and all bytes that they expect have been pushed, and is
// closed again at once for the next turn; turns are told apart by whether their number is odd.
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

// Both addresses are of the same block, from in_block.
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

// What nobody writes, on its way to shared memory.
__device__ __forceinline__ void copy_weights16(shared_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// What other blocks have written: it is asked of the second-level cache, where all of them write.
__device__ __forceinline__ void read_fresh16(void* to, const void* from) {
    *static_cast<uint4*>(to) = __ldcg(static_cast<const uint4*>(from));
}
__device__ __forceinline__ uint32_t read_fresh(const uint32_t* from) { return __ldcg(from); }

__device__ __forceinline__ uint32_t ticks() {
    uint32_t now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

// As copies_wait, where only the run knows how many groups may still be on their way: at most so many are.
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

// One thread says for its block that all it wrote is there, which a barrier of the block has told it, ...
__device__ __forceinline__ void count_in(uint32_t* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// An error ends what seconds could not: a grid that is not all there would hang.
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

// ... and waits until so many have.
__device__ __forceinline__ void count_wait(const uint32_t* counter, uint32_t goal) {
    for (Patience patience;; patience.look_again()) {
        uint32_t count;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
        if (static_cast<int32_t>(count - goal) >= 0) return;
    }
}

// Four words for another block, which tell by themselves that they are there: none is EMPTY.
__device__ __forceinline__ void post(float* to, float4 words) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(words.x), "f"(words.y), "f"(words.z),
                 "f"(words.w)
                 : "memory");
}

// Until all of them are there.
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
