// Several warpgroups of a Hopper GPU on one CPU thread, for the source of our CUDA kernels (hopper.cuh). Every thread
// of a block is a fibre, which runs until it must wait; who runs next is drawn. Copies and products that are under way
// happen at any time until they are waited for, and shared memory is NaN at first: so what lacks a barrier or a wait
// comes out wrong, and what waits for ever is told. Blocks of a cluster run at once.
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
static constexpr int MOST_SHARED = 232448;
static uint8_t* shared_memory;  // of the block that runs

struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    std::function<bool()> can_go;
    int shows = 0, cluster_turn = 0;
    uint32_t shown[2][4];
    std::vector<Group> copies, products;  // the last group is open
};
struct Phases {
    int count, arrived, ended;
};
struct Turn {
    int arrived, ended;
};
struct Push {
    shared_t to, gate;
    float words[2];
    int count;
};
static std::vector<Fibre> fibres;
static ucontext_t scheduler;
static int current, shared_bytes, threads_of_block;
static std::vector<std::vector<uint8_t>> memories;  // of the blocks of a cluster
static std::mt19937 draws;
static std::function<void()> body;
static std::map<shared_t, Phases> barriers;
static std::map<shared_t, int64_t> gates;  // bytes that they still expect
static std::vector<Push> pushes;           // on their way
static std::map<std::pair<int, int>, Turn> turns;  // by block and number
static constexpr int WHOLE_CLUSTER = -1;

static inline Fibre& me() { return fibres[current]; }
static inline int my_block() { return current / threads_of_block; }
static inline uint8_t* memory_of(int block) {
    uint8_t* start = memories[block].data();
    return start + (1024 - reinterpret_cast<uintptr_t>(start) % 1024) % 1024;
}
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
static inline void until(std::function<bool()> can_go) {
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
// As on the machine, an address has its block's rank in the highest byte.
static inline shared_t shared_base() { return static_cast<shared_t>(my_block()) << 24; }
static inline int rank_of(shared_t at) { return static_cast<int>(at >> 24); }
static inline shared_t place_of(shared_t at) { return at & 0xffffff; }
static void check(shared_t at, int bytes) {
    if (rank_of(at) >= static_cast<int>(memories.size())) fail("no such block in the cluster");
    if (place_of(at) + bytes > static_cast<uint32_t>(shared_bytes)) fail("outside of its shared memory");
}
static inline uint8_t* memory_at(shared_t at) { return memory_of(rank_of(at)) + place_of(at); }

// Lanes of a warp.
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
template <class T>
T __shfl_xor_sync(uint32_t, T value, int step) {
    static_assert(sizeof(T) == 4);
    uint32_t word;
    memcpy(&word, &value, 4);
    const int turn = show(&word, 1);
    memcpy(&value, fibres[current ^ step].shown[turn], 4);
    show(&word, 1);  // nobody shows more before all have read
    return value;
}

static inline void arrive(std::pair<int, int> which, int count) {
    Turn& turn = turns[which];
    if (++turn.arrived == count) turn = {0, turn.ended + 1};
}
static inline void turn_give(int number, int count) { arrive({my_block(), number}, count); }
static inline void turn_wait(int number, int count) {
    const std::pair<int, int> which = {my_block(), number};
    const int before = turns[which].ended;
    arrive(which, count);
    until([=] { return turns[which].ended != before; });
}
static inline void __syncthreads() { turn_wait(0, threads_of_block); }

static inline void cluster_arrive() {
    const std::pair<int, int> all = {WHOLE_CLUSTER, 0};
    me().cluster_turn = turns[all].ended;
    arrive(all, static_cast<int>(fibres.size()));
}
static inline void cluster_wait() {
    until([before = me().cluster_turn] { return turns[{WHOLE_CLUSTER, 0}].ended != before; });
}
static inline void cluster_meet() { cluster_arrive(), cluster_wait(); }
static inline shared_t in_block(shared_t at, int rank) { return place_of(at) | static_cast<shared_t>(rank) << 24; }
static inline float2 read_block(shared_t at, int rank) {
    const shared_t there = in_block(at, rank);
    check(there, 8);
    if (at % 8) fail("two values at no multiple of 8");
    float2 value;
    memcpy(&value, memory_at(there), 8);
    return value;
}

static inline void gate_make(shared_t at, uint32_t bytes) {
    check(at, 8);
    if (at % 8) fail("a gate at no multiple of 8");
    gates[at] = static_cast<int64_t>(bytes);
}
static inline void gate_wait(shared_t at) {
    if (!gates.count(at)) fail("no such gate");
    until([=] { return gates[at] == 0; });
}
static void land(const Push& push) {
    memcpy(memory_at(push.to), push.words, 4 * push.count);
    gates[push.gate] -= 4 * push.count;
}
static inline void push_words(const Push& push) {
    check(push.to, 4 * push.count);
    if (push.to % (4 * push.count)) fail("a push to no multiple of its size");
    if (rank_of(push.to) != rank_of(push.gate) || !gates.count(push.gate)) fail("a push without a gate");
    if (draws() & 1) land(push);
    else pushes.push_back(push);
}
static inline void push(shared_t to, shared_t gate, float value) { push_words({to, gate, {value}, 1}); }
static inline void push(shared_t to, shared_t gate, float a, float b) { push_words({to, gate, {a, b}, 2}); }
// In another order than they were sent in.
static bool some_land(bool all) {
    std::shuffle(pushes.begin(), pushes.end(), draws);
    const size_t left = all ? 0 : pushes.size() / 2, before = pushes.size();
    for (; pushes.size() > left; pushes.pop_back()) land(pushes.back());
    return before > left;
}

static inline void barrier_start(shared_t at, int count) {
    check(at, 8);
    if (at % 8) fail("a barrier at no multiple of 8");
    barriers[at] = {count, 0, 0};
}
static inline void barrier_arrive(shared_t at) {
    if (!barriers.count(at)) fail("no such barrier");
    Phases& phases = barriers[at];
    if (++phases.arrived == phases.count) phases = {phases.count, 0, phases.ended + 1};
}
static inline void barrier_wait(shared_t at, int parity) {
    if (!barriers.count(at)) fail("no such barrier");
    until([=] { return (barriers[at].ended & 1) != parity; });
}

static inline void show_to_products() {}
static inline uint4 read16(const void* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("a read at no multiple of 16");
    uint4 value;
    memcpy(&value, from, 16);
    return value;
}
static inline void fetch128(const void*) {}
static inline void write16(void* to, uint4 value) {
    if (reinterpret_cast<uintptr_t>(to) % 16) fail("a write at no multiple of 16");
    memcpy(to, &value, 16);
}
static inline void store16(shared_t to, uint4 value) {
    check(to, 16);
    if (rank_of(to) != my_block()) fail("a plain store into another block");
    write16(memory_at(to), value);
}
static inline void copy16(shared_t to, const void* from) {
    check(to, 16);
    const auto arrive = [=] { store16(to, read16(from)); };
    if (draws() & 1) arrive();
    else me().copies.back().push_back(arrive);
}
static inline void copies_commit() { me().copies.emplace_back(); }
template <int LEFT>
void copies_wait() { flush(me().copies, LEFT); }

static inline uint64_t matrix(shared_t start, int across) {
    if (start % 16 || across % 16) fail("a matrix at no multiple of 16");
    return place_of(start) >> 4 | static_cast<uint64_t>(across >> 4) << 16 | static_cast<uint64_t>(8) << 32;
}
static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
// Of a matrix as the machine reads it.
static inline float element(uint64_t matrix, int line, int k) {
    const auto bytes = [=](int from) { return static_cast<uint32_t>(matrix >> from & 0x3fff) << 4; };
    const shared_t at = bytes(0) + k / 8 * bytes(16) + line / 8 * bytes(32) + line % 8 * 16 + k % 8 * 2;
    check(at, 2);
    uint16_t bits;
    memcpy(&bits, memory_of(my_block()) + at, 2);
    return from_bits(static_cast<uint32_t>(bits) << 16);
}
static inline void products_begin() {}
static inline void products_commit() { me().products.emplace_back(); }
template <int LEFT>
void products_wait() {  // a warp's lanes do so together
    flush(me().products, LEFT);
    const uint32_t nothing = 0;
    show(&nothing, 1);
}
template <int N>
void settled(uint32_t (&a)[N][4]) {}
template <int N>
void settled(float (&c)[N]) {
    if (me().products.size() > 1) fail("products are still under way");
}

template <int N>
void multiply_by(float (&c)[N], std::function<float(int, int)> left, uint64_t b, int more) {
    const int lane = current % 32, top = current % 128 / 32 * 16 + lane / 4;
    me().products.back().push_back([=, &c] {
        float right[16];
        for (int column = 0; column < 2 * N; column++) {
            if (column % 8 / 2 != lane % 4) continue;
            for (int k = 0; k < 16; k++) right[k] = element(b, column, k);
            for (int half = 0; half < 2; half++) {
                float sum = 0.0f;
                for (int k = 0; k < 16; k++) sum += left(top + 8 * half, k) * right[k];
                float& to = c[column / 8 * 4 + 2 * half + column % 2];
                to = more ? to + sum : sum;
            }
        }
    });
}
template <int N>
void multiply(float (&c)[N], uint64_t a, uint64_t b, int more) {
    multiply_by(c, [=](int line, int k) { return element(a, line, k); }, b, more);
}
template <int N>
void multiply(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int more) {
    const int turn = show(a, 4), warp = current / 32 * 32;
    std::vector<uint32_t> all(128);
    for (int lane = 0; lane < 32; lane++) memcpy(&all[4 * lane], fibres[warp + lane].shown[turn], 16);
    show(a, 4);
    const auto left = [=](int line, int k) {
        const uint32_t word = all[4 * (line % 8 * 4 + k % 8 / 2) + line % 16 / 8 + k / 8 * 2];
        return from_bits(k % 2 ? word & 0xffff0000u : word << 16);
    };
    multiply_by(c, left, b, more);
}

template <int COUNT>
void more_registers() {}
template <int COUNT>
void fewer_registers() {}
static inline float sine(float x) { return sinf(x); }
static inline float power_of_two(float x) { return exp2f(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline uint32_t read4(const uint32_t* from) { return *from; }
static inline uint32_t rounded_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t pack(float low, float high) { return rounded_bits(high) << 16 | rounded_bits(low); }
static inline int uniform(int value) { return value; }
static inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    const uint32_t top = 0xffff0000u;
    return pack(from_bits(a << 16) * from_bits(b << 16), from_bits(a & top) * from_bits(b & top));
}
static inline int min(int a, int b) { return a < b ? a : b; }
static inline void launch_dependents() {}
static inline void wait_prior() {}

static void run_blocks(unsigned first) {
    for (auto& memory : memories) std::fill(memory.begin(), memory.end(), 0xff);
    barriers.clear();
    gates.clear();
    turns.clear();
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
            current = n;
            shared_memory = memory_of(my_block());
            if (fibre.done || (fibre.can_go && !fibre.can_go())) continue;
            moved = true;
            threadIdx = {static_cast<unsigned>(n % threads_of_block), 0, 0};
            blockIdx = {first + my_block(), 0, 0};
            swapcontext(&scheduler, &fibre.context);
        }
        if (draws() % 4 == 0 || !moved) moved |= some_land(!moved);
    }
    for (current = 0; current < static_cast<int>(fibres.size()); current++)
        if (!me().done) fail("waits for ever");
    for (const auto& turn : turns)
        if (turn.second.arrived) fail("a turn that nobody took");
    for (const auto& gate : gates)
        if (gate.second) fail("a gate that was left closed");
}

static void run_grid(std::function<void()> kernel, const int* grid, int threads, int cluster, int bytes, unsigned seed) {
    body = kernel;
    shared_bytes = bytes;
    threads_of_block = threads;
    draws.seed(seed);
    gridDim = {static_cast<unsigned>(grid[0]), 1, 1};
    memories.assign(cluster, std::vector<uint8_t>(MOST_SHARED + 1024));
    if (gridDim.x % cluster) fail("no whole clusters");
    for (unsigned x = 0; x < gridDim.x; x += cluster) {
        fibres = std::vector<Fibre>(cluster * threads);
        run_blocks(x);
    }
}
