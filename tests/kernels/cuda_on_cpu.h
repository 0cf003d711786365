// A GPU's block on one CPU thread, for the source of our CUDA kernels: every thread of a block is a fibre, which runs
// until it must wait for others. Who runs next is drawn, and so is when an asynchronous copy arrives: at once, when it is
// waited for, or between; shared memory is NaN at first. So what lacks a barrier or a wait comes out wrong.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <random>
#include <vector>

#include "formats_on_cpu.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct Index {
    int x, y, z;
};
static Index threadIdx, blockIdx, gridDim;
struct int2 {
    int x, y;
};
struct float4 {
    float x, y, z, w;
};
typedef uint32_t shared_t;
alignas(1024) static uint8_t shared_memory[232448];

struct Copy {
    shared_t to;
    const void* from;
    bool there;
};

struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    int warp_waits, block_waits;  // how many barriers it has reached
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
    uint32_t left[2][8];  // what it shows to its warp; one barrier ahead of the slowest is as far as a lane can be
};

struct Machine {
    std::vector<Fibre> fibres;
    ucontext_t scheduler;
    int current = 0, shared_bytes = 0;
    std::mt19937 draws;
    std::function<void()> body;
};
static Machine machine;

static inline Fibre& me() { return machine.fibres[machine.current]; }
static inline void rest() { swapcontext(&me().context, &machine.scheduler); }
static void begin() {
    machine.body();
    me().done = true;
    rest();
}

static bool ready(int index) {
    const Fibre& mine = machine.fibres[index];
    if (mine.done) return false;
    for (int n = index / 32 * 32; n < index / 32 * 32 + 32; n++)
        if (!machine.fibres[n].done && machine.fibres[n].warp_waits < mine.warp_waits) return false;
    for (const Fibre& other : machine.fibres)
        if (!other.done && other.block_waits < mine.block_waits) return false;
    return true;
}

static void check(shared_t at, int bytes) {
    if (at + bytes > static_cast<uint32_t>(machine.shared_bytes)) abort();
}

static void arrive(const Copy& copy) {
    check(copy.to, 16);
    if (copy.to % 16 || reinterpret_cast<uintptr_t>(copy.from) % 16) abort();
    if (copy.there) memcpy(shared_memory + copy.to, copy.from, 16);
    else memset(shared_memory + copy.to, 0, 16);
}

// Copies on their way may arrive at any time.
static void some_arrive() {
    if (machine.draws() % 4) return;
    for (auto& group : me().groups) {
        for (const Copy& copy : group) arrive(copy);
        group.clear();
    }
}

static inline void __syncwarp() { me().warp_waits++, rest(), some_arrive(); }
static inline void __syncthreads() { me().block_waits++, rest(), some_arrive(); }
static inline void __threadfence() {}

// Each lane shows some words; all can read everybody's.
static inline int shown(const uint32_t* words, int count) {
    const int turn = me().warp_waits & 1;
    memcpy(me().left[turn], words, 4 * count);
    __syncwarp();
    return turn;
}
static inline const uint32_t* of_lane(int lane, int turn) {
    return machine.fibres[machine.current / 32 * 32 + lane].left[turn];
}

template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
    static_assert(sizeof(T) == 4);
    uint32_t word;
    memcpy(&word, &value, 4);
    const int turn = shown(&word, 1);
    memcpy(&value, of_lane(lane & 31, turn), 4);
    return value;
}
template <class T>
T __shfl_xor_sync(uint32_t all, T value, int step) { return __shfl_sync(all, value, (machine.current & 31) ^ step); }
static inline bool __any_sync(uint32_t, bool value) {
    const uint32_t word = value;
    const int turn = shown(&word, 1);
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= of_lane(lane, turn)[0] != 0;
    return any;
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline uint32_t atomicInc(uint32_t* at, uint32_t most) {
    const uint32_t old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}

static inline shared_t shared_base() { return 0; }
static inline void copy16(shared_t to, const void* from, bool there) {
    const Copy copy = {to, from, there};
    if (machine.draws() & 1) arrive(copy);
    else me().open.push_back(copy);
}
static inline void copies_commit() {
    me().groups.push_back(me().open);
    me().open.clear();
}
template <int LEFT>
void copies_wait() {
    auto& groups = me().groups;
    while (groups.size() > LEFT) {
        for (const Copy& copy : groups.front()) arrive(copy);
        groups.erase(groups.begin());
    }
}

static inline void matrices(uint32_t (&to)[4], shared_t from, bool turned) {
    check(from, 16);
    if (from % 16) abort();
    const int turn = shown(&from, 1), lane = machine.current & 31;
    for (int m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (int e = 0; e < 2; e++) {
            const int row = turned ? lane % 4 * 2 + e : lane / 4, column = turned ? lane / 4 : lane % 4 * 2 + e;
            memcpy(&pair[e], shared_memory + of_lane(m * 8 + row, turn)[0] + 2 * column, 2);
        }
        memcpy(&to[m], pair, 4);
    }
    __syncwarp();  // all lanes have read before any goes on
}
static inline void load_matrices(uint32_t (&to)[4], shared_t from) { matrices(to, from, false); }
static inline void load_matrices_turned(uint32_t (&to)[4], shared_t from) { matrices(to, from, true); }

static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const int turn = shown(words, 6), lane = machine.current & 31;
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; k++) {
            const uint32_t* left = of_lane(row % 8 * 4 + k % 8 / 2, turn);
            const uint32_t* right = of_lane(column * 4 + k % 8 / 2, turn);
            sum += half_of(left[row / 8 + k / 8 * 2], k % 2) * half_of(right[4 + k / 8], k % 2);
        }
        c[i] += sum;
    }
}

static inline void multiply_first(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    multiply(c, a, b0, b1);
}

static inline float power_of_two(float x) { return exp2f(x); }
template <class T>
T read_fresh(const T* from) { return *from; }
static inline void launch_dependents() {}
static inline void wait_prior() {}
static inline void move16(void* to, const void* from) { memcpy(to, from, 16); }

// All lanes up to their next barrier; whether any could move.
static bool run_warp(int warp) {
    bool moved = false;
    for (int index = warp * 32; index < warp * 32 + 32; index++) {
        if (!ready(index)) continue;
        moved = true;
        machine.current = index;
        threadIdx = {index, 0, 0};
        swapcontext(&machine.scheduler, &me().context);
    }
    return moved;
}

static void run_block() {
    memset(shared_memory, 0xff, sizeof shared_memory);
    for (Fibre& fibre : machine.fibres) {
        getcontext(&fibre.context);
        fibre.stack.resize(1 << 16);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        fibre.done = false;
        fibre.warp_waits = fibre.block_waits = 0;
        fibre.groups.clear();
        fibre.open.clear();
        makecontext(&fibre.context, begin, 0);
    }
    const int warps = static_cast<int>(machine.fibres.size()) / 32;
    for (bool any = true; any;) {  // a warp runs as far as it gets while the others stand still, then another
        any = false;
        const int start = machine.draws() % warps;
        for (int n = 0; n < warps && !any; n++)
            while (run_warp((start + n) % warps)) any = true;
    }
    for (const Fibre& fibre : machine.fibres)
        if (!fibre.done || fibre.block_waits != machine.fibres[0].block_waits) abort();  // somebody waits for ever
}

static void run_grid(std::function<void()> body, const int* grid, int threads, int shared_bytes, unsigned seed) {
    machine.body = body;
    machine.shared_bytes = shared_bytes;
    machine.draws.seed(seed);
    machine.fibres.resize(threads);
    gridDim = {grid[0], grid[1], grid[2]};
    std::vector<Index> blocks;
    for (int z = 0; z < grid[2]; z++)
        for (int y = 0; y < grid[1]; y++)
            for (int x = 0; x < grid[0]; x++) blocks.push_back({x, y, z});
    std::shuffle(blocks.begin(), blocks.end(), machine.draws);
    for (const Index& block : blocks) {
        blockIdx = block;
        run_block();
    }
}
