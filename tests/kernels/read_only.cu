// Kernels that read as many bytes as a decode step does, with its grid and its launch, and do nothing else: the bound for what
// tests/gpu_short_rows.py measures. A block reads contiguous memory, each warp in chunks of 8 KiB through a ring of its own.
#include <stdint.h>

struct ReadArgs {
    const uint8_t* from;
    uint64_t bytes;  // of a block
    uint32_t* sink;
    int early;       // whether it reads before the previous kernel has ended
    int piece;       // bytes of one bulk copy
};

constexpr int CHUNK = 8192, MOST_STAGES = 8;
extern __shared__ __align__(128) uint8_t shared_memory[];

__device__ __forceinline__ uint32_t address_of(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }
__device__ __forceinline__ void wait_prior() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

struct Share {
    const uint8_t* from;
    int64_t bytes;
    int warp, lane, chunks;

    __device__ __forceinline__ explicit Share(const ReadArgs& a) {
        const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<uint64_t>(gridDim.y) * blockIdx.z);
        from = a.from + block * a.bytes, bytes = a.bytes;
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int warps = blockDim.x / 32, all = static_cast<int>((bytes + CHUNK - 1) / CHUNK);
        chunks = (all - warp + warps - 1) / warps;
    }

    __device__ __forceinline__ int64_t at(int chunk) const {
        return (static_cast<int64_t>(chunk) * (blockDim.x / 32) + warp) * CHUNK;
    }
};

__device__ __forceinline__ void finish(const ReadArgs& a, uint32_t seen) {
    if (a.early) wait_prior();
    if (seen == 0x12345678u) *a.sink = seen;  // so that the compiler omits no read
}

template <int STAGES>
__device__ __forceinline__ void read_copies(const ReadArgs& a) {
    const Share mine(a);
    const uint32_t ring = address_of(shared_memory) + mine.warp * STAGES * CHUNK;
    launch_dependents();
    if (!a.early) wait_prior();
    auto ask = [&](int chunk, int stage) {
        if (chunk < mine.chunks) {
#pragma unroll
            for (int n = 0; n < CHUNK / 512; n++) {
                const int64_t at = mine.at(chunk) + n * 512 + mine.lane * 16;
                const int bytes = at < mine.bytes ? 16 : 0;
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                                 ring + stage * CHUNK + n * 512 + mine.lane * 16),
                             "l"(mine.from + (bytes ? at : 0)), "r"(bytes)
                             : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int n = 0; n < STAGES; n++) ask(n, n);
    uint32_t seen = 0;
    for (int n = 0, stage = 0; n < mine.chunks; n++, stage = stage == STAGES - 1 ? 0 : stage + 1) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        __syncwarp();
        seen ^= *reinterpret_cast<const uint32_t*>(shared_memory + (mine.warp * STAGES + stage) * CHUNK + mine.lane * 4);
        __syncwarp();
        ask(n + STAGES, stage);
    }
    finish(a, seen);
}

template <int STAGES>
__device__ __forceinline__ void read_bulk(const ReadArgs& a) {
    __shared__ __align__(8) uint64_t gates[4 * MOST_STAGES];
    const Share mine(a);
    const uint32_t ring = address_of(shared_memory) + mine.warp * STAGES * CHUNK;
    const uint32_t gate = address_of(gates) + mine.warp * MOST_STAGES * 8;
    if (mine.lane < STAGES) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(gate + mine.lane * 8) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    launch_dependents();
    if (!a.early) wait_prior();
    auto ask = [&](int chunk, int stage) {
        if (chunk >= mine.chunks) return;
        const int64_t left = mine.bytes - mine.at(chunk);
        const int bytes = left < CHUNK ? static_cast<int>(left) : CHUNK;
        if (mine.lane == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(gate + stage * 8), "r"(bytes) : "memory");
        __syncwarp();
        for (int at = mine.lane * a.piece; at < bytes; at += 32 * a.piece)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                             ring + stage * CHUNK + at),
                         "l"(mine.from + mine.at(chunk) + at), "r"(min(a.piece, bytes - at)), "r"(gate + stage * 8)
                         : "memory");
    };
#pragma unroll
    for (int n = 0; n < STAGES; n++) ask(n, n);
    uint32_t seen = 0;
    for (int n = 0, stage = 0, odd = 0; n < mine.chunks; n++) {
        uint32_t done = 0;
        while (!done)
            asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(gate + stage * 8), "r"(odd)
                         : "memory");
        seen ^= *reinterpret_cast<const uint32_t*>(shared_memory + (mine.warp * STAGES + stage) * CHUNK + mine.lane * 4);
        __syncwarp();
        ask(n + STAGES, stage);
        if (++stage == STAGES) stage = 0, odd ^= 1;
    }
    finish(a, seen);
}

extern "C" __global__ void read_words(const __grid_constant__ ReadArgs a) {
    const Share mine(a);
    launch_dependents();
    if (!a.early) wait_prior();
    uint32_t seen = 0;
#pragma unroll 16
    for (int64_t at = threadIdx.x * 16; at < mine.bytes; at += blockDim.x * 16) {
        const uint4 four = __ldcs(reinterpret_cast<const uint4*>(mine.from + at));
        seen ^= four.x ^ four.y ^ four.z ^ four.w;
    }
    finish(a, seen);
}

#define READS(STAGES)                                                                                      \
    extern "C" __global__ void read_copies_##STAGES(const __grid_constant__ ReadArgs a) { read_copies<STAGES>(a); } \
    extern "C" __global__ void read_bulk_##STAGES(const __grid_constant__ ReadArgs a) { read_bulk<STAGES>(a); }
READS(2)
READS(3)
READS(4)
READS(6)
