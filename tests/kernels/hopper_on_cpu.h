// Runs several warpgroups of a Hopper GPU on one CPU thread, for the source of our CUDA kernels (hopper.cuh). Every
// thread of a block is a fibre, which runs until it must wait; which one runs next is drawn. Copies and products in
// flight happen at any time until they are awaited, and shared memory is NaN at first: so a missing barrier or wait
// makes results wrong, and a thread that waits for ever is reported.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, gridDim;
struct uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
typedef uint32_t shared_t;
typedef std::vector<std::function<void()>> Group;
alignas(1024) static uint8_t shared_memory[232448];

struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    std::function<bool()> can_go;
    int shows = 0;
    uint32_t shown[2][4];
    std::vector<Group> copies, products;  // the last group is open
};
struct Phases {
    int count, arrived, ended, bytes;
};
struct Turn {
    int arrived, ended;
};
static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static int current, shared_bytes;
static std::mt19937 draws;
static std::function<void()> body;
static std::map<shared_t, Phases> barriers;
static std::map<int, Turn> turns;
static Group parts;  // TMA copies in flight, which belong to no thread

static inline Fibre& me() { return fibres[current]; }
static inline void fail(const char* what) {
    fprintf(stderr, "thread %d: %s\n", current, what);
    abort();
}
static void flush(std::vector<Group>& groups, size_t left) {
    while (groups.size() > left + 1) {
        for (auto& one : groups.front()) one();
        groups.erase(groups.begin());
    }
}
static bool arrive_one_part() {
    if (parts.empty()) return false;
    std::swap(parts[draws() % parts.size()], parts.back());
    const auto one = parts.back();
    parts.pop_back();
    one();
    return true;
}
static inline void until(std::function<bool()> can_go) {
    if (draws() % 3 == 0) arrive_one_part();
    if (draws() % 3 == 0) flush(me().copies, draws() % 3);
    if (draws() % 3 == 0) flush(me().products, draws() % 3);
    me().can_go = can_go;
    swapcontext(&me().context, &scheduler);
}
static void begin() {
    body();
    me().done = true;
    swapcontext(&me().context, &scheduler);
}
static void check(shared_t at, int bytes) {
    if (at + bytes > static_cast<uint32_t>(shared_bytes)) fail("outside of its shared memory");
}

// Show words to the other lanes of this warp, and wait until all have done so.
static inline int show(const uint32_t* words, int count) {
    const int turn = me().shows & 1, mine = ++me().shows, warp = current / 32 * 32;
    memcpy(me().shown[turn], words, 4 * count);
    until([=] {
        for (int n = warp; n < warp + 32; n++)
            if (fibres[n].shows < mine) return false;
        return true;
    });
    return turn;
}
// What another thread of this warp shows in the same instruction.
template <class T>
T shown_by(int thread, T value) {
    static_assert(sizeof(T) == 4);
    uint32_t word;
    memcpy(&word, &value, 4);
    const int turn = show(&word, 1);
    memcpy(&value, fibres[thread].shown[turn], 4);
    show(&word, 1);  // no lane shows more before all have read
    return value;
}
template <class T>
T __shfl_xor_sync(uint32_t, T value, int step) { return shown_by(current ^ step, value); }
template <class T>
T __shfl_sync(uint32_t, T value, int from) { return shown_by(current / 32 * 32 + from, value); }
static inline void __syncwarp() {
    const uint32_t nothing = 0;
    show(&nothing, 1);
}

static inline void turn_give(int number, int count) {
    Turn& turn = turns[number];
    if (++turn.arrived == count) turn = {0, turn.ended + 1};
}
static inline void turn_wait(int number, int count) {
    const int before = turns[number].ended;
    turn_give(number, count);
    until([=] { return turns[number].ended != before; });
}
static inline void __syncthreads() { turn_wait(0, static_cast<int>(fibres.size())); }

static inline void barrier_start(shared_t at, int count) {
    check(at, 8);
    if (at % 8) fail("a barrier at no multiple of 8");
    barriers[at] = {count, 0, 0, 0};
}
static inline void barriers_started() {}
static inline void barrier_change(shared_t at, int arrived, int bytes) {
    if (!barriers.count(at)) fail("no such barrier");
    Phases& phases = barriers[at];
    phases.arrived += arrived, phases.bytes += bytes;
    if (phases.arrived > phases.count || phases.bytes < 0) fail("more than a barrier was to wait for");
    if (phases.arrived == phases.count && !phases.bytes) phases = {phases.count, 0, phases.ended + 1, 0};
}
static inline void barrier_arrive(shared_t at) { barrier_change(at, 1, 0); }
static inline void barrier_expect(shared_t at, int bytes) { barrier_change(at, 1, bytes); }
static inline void barrier_wait(shared_t at, int parity) {
    if (!barriers.count(at)) fail("no such barrier");
    until([=] { return (barriers[at].ended & 1) != parity; });
}

#include "hopper_memory_on_cpu.h"

template <int COUNT>
void more_registers() {}
template <int COUNT>
void fewer_registers() {}
static inline float sine(float x) { return sinf(x); }
static inline uint32_t rounded_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t pack(float low, float high) { return rounded_bits(high) << 16 | rounded_bits(low); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float power_of_two(float x) { return exp2f(x); }
static inline void launch_dependents() {}
static inline void wait_prior() {}

static void run_block() {
    memset(shared_memory, 0xff, sizeof shared_memory);
    barriers.clear();
    turns.clear();
    parts.clear();
    std::vector<int> order;
    for (size_t n = 0; n < fibres.size(); n++) {
        Fibre& fibre = fibres[n];
        fibre = Fibre();
        getcontext(&fibre.context);
        fibre.stack.resize(1 << 16);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        fibre.copies.resize(1);
        fibre.products.resize(1);
        makecontext(&fibre.context, begin, 0);
        order.push_back(static_cast<int>(n));
    }
    for (bool moved = true; moved;) {
        moved = false;
        std::rotate(order.begin(), order.begin() + draws() % order.size(), order.end());
        for (int n : order) {
            Fibre& fibre = fibres[n];
            if (fibre.done || (fibre.can_go && !fibre.can_go())) continue;
            moved = true;
            current = n;
            threadIdx = {static_cast<unsigned>(n), 0, 0};
            swapcontext(&scheduler, &fibre.context);
        }
        moved |= !moved && arrive_one_part();
    }
    for (current = 0; current < static_cast<int>(fibres.size()); current++)
        if (!me().done) fail("waits for ever");
    for (const auto& turn : turns)
        if (turn.second.arrived) fail("a turn that nobody took");
}

static void run_grid(std::function<void()> kernel, const int* grid, int threads, int bytes, unsigned seed) {
    body = kernel;
    shared_bytes = bytes;
    draws.seed(seed);
    gridDim = {static_cast<unsigned>(grid[0]), 1, 1};
    for (unsigned x = 0; x < gridDim.x; x++) {
        fibres = std::vector<Fibre>(threads);
        blockIdx = {x, 0, 0};
        run_block();
    }
    fibres.clear();  // with their stacks
}
