// Runs a GPU's blocks on one CPU thread, for the source of our CUDA kernels: every thread of a block is a fibre, which runs
// until it must wait for others. Which one runs next is drawn, and so is when an asynchronous copy, or a store into another
// block's memory, arrives: at once, when it is awaited, or in between; shared memory is NaN at first. So a missing barrier or
// wait makes results wrong. Blocks run one after another or, if they are in clusters or wait for each other, all at once.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "formats_on_cpu.h"

#define __device__
#define __global__ inline  // so that only the requested kernel is compiled
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
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
typedef uint32_t shared_t;
static constexpr int MOST_SHARED = 232448;
static uint8_t* shared_memory;  // of the block that runs

struct Copy {
    shared_t to;
    const void* from;
    bool there;
};

// Threads that wait for each other: `come` of them have reached the next barrier, `behind` barriers are behind them all.
struct Barrier {
    int members = 0, come = 0, behind = 0;

    void arrive() { come++, settle(); }
    void leave() { members--, settle(); }
    void settle() {
        if (members > 0 && come == members) come = 0, behind++;
    }
};

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done;
    int warp_waits, block_waits, cluster_waits;  // how many barriers it has reached
    std::function<bool()> until;                 // what else it waits for
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
    uint32_t left[2][8];  // words that it shows to its warp; a lane can be only one barrier ahead of the slowest
};

// An mbarrier.
struct Gate {
    int count = 0, missing_arrivals = 0;
    int64_t missing_bytes = 0;  // negative while more have arrived than are expected yet
    uint32_t turns = 0;

    void settle() {
        if (missing_arrivals == 0 && missing_bytes == 0) missing_arrivals = count, turns++;
    }
};

struct Turn {
    int come = 0, behind = 0;
};

struct Block {
    Index index;
    uint8_t* memory;
    Barrier barrier;
    std::map<shared_t, Gate> gates;
    std::map<int, Turn> turns;
};

struct Bulk {
    int block;
    shared_t to, gate;
    const void* from;
    uint32_t bytes;
};

struct Word {
    void* to;
    uint64_t word;
    int bytes;
};

struct Push {
    int block;
    shared_t to, gate;
    uint32_t words[2];
    int count;
};

struct Machine {
    std::vector<Fibre> fibres;
    std::vector<Block> blocks;  // that run now
    std::vector<Barrier> warps, clusters;
    std::vector<Push> pushes;  // in flight
    std::vector<Bulk> bulks;
    std::vector<Word> words;
    ucontext_t scheduler;
    int current = 0, shared_bytes = 0, threads = 0, cluster = 0;
    int64_t events = 0;  // after each of them, a thread that has found a gate closed looks again
    uint32_t clock = 0;
    std::mt19937 draws;
    std::function<void()> body;
};
static Machine machine;

static inline Fibre& me() { return machine.fibres[machine.current]; }
static inline int my_block() { return machine.current / machine.threads; }
static inline Barrier& my_warp() { return machine.warps[machine.current / 32]; }
static inline Barrier& my_cluster() { return machine.clusters[my_block() / machine.cluster]; }
static inline void rest() { swapcontext(&me().context, &machine.scheduler); }
static void begin() {
    machine.body();
    me().done = true;
    my_warp().leave(), machine.blocks[my_block()].barrier.leave();
    rest();
}

static bool ready(int index) {
    const Fibre& mine = machine.fibres[index];
    const int block = index / machine.threads;
    if (mine.done || mine.warp_waits > machine.warps[index / 32].behind) return false;
    if (mine.block_waits > machine.blocks[block].barrier.behind) return false;
    if (machine.cluster && mine.cluster_waits > machine.clusters[block / machine.cluster].behind) return false;
    return !mine.until || mine.until();
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

// Copies in flight may arrive at any time.
static void some_arrive() {
    if (machine.draws() % 4) return;
    for (auto& group : me().groups) {
        for (const Copy& copy : group) arrive(copy);
        group.clear();
    }
}

static inline void __syncwarp() { me().warp_waits++, my_warp().arrive(), rest(), some_arrive(); }
static inline void __syncthreads() {
    me().block_waits++, machine.blocks[my_block()].barrier.arrive(), rest(), some_arrive();
}
static inline void cluster_meet() { me().cluster_waits++, my_cluster().arrive(), rest(), some_arrive(); }

// Each lane shows some words, which all lanes of its warp can read.
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
static inline bool __all_sync(uint32_t, bool value) {
    const uint32_t word = value;
    const int turn = shown(&word, 1);
    bool all = true;
    for (int lane = 0; lane < 32; lane++) all &= of_lane(lane, turn)[0] != 0;
    return all;
}
static inline bool __any_sync(uint32_t, bool value) {
    const uint32_t word = value;
    const int turn = shown(&word, 1);
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= of_lane(lane, turn)[0] != 0;
    return any;
}

static inline uint32_t __ballot_sync(uint32_t, bool value) {
    const uint32_t word = value;
    const int turn = shown(&word, 1);
    uint32_t all = 0;
    for (int lane = 0; lane < 32; lane++) all |= of_lane(lane, turn)[0] << lane;
    return all;
}

static inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
static inline int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b >> 32; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline uint32_t count(uint32_t* at, uint32_t most) {
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
static inline void copies_wait_for(int left) {
    auto& groups = me().groups;
    while (static_cast<int>(groups.size()) > left) {
        for (const Copy& copy : groups.front()) arrive(copy);
        groups.erase(groups.begin());
    }
}
template <int LEFT>
void copies_wait() { copies_wait_for(LEFT); }

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

static inline uint32_t turn(uint32_t two) {
    const int from = shown(&two, 1), lane = machine.current & 31;
    uint16_t pair[2];
    for (int e = 0; e < 2; e++)
        pair[e] = of_lane((lane % 4 * 2 + e) * 4 + lane / 8, from)[0] >> (lane / 4 % 2 * 16);
    __syncwarp();
    memcpy(&two, pair, 4);
    return two;
}

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
static inline void read_fresh16(void* to, const void* from) { memcpy(to, from, 16); }
static inline void launch_dependents() {}
static inline void wait_prior() {}
static inline void move16(void* to, const void* from) { memcpy(to, from, 16); }

// An address in another block's memory has that block's rank in the cluster in it.
static inline uint32_t anew(uint32_t value) { return value; }
static inline shared_t in_block(shared_t at, int rank) {
    if (rank < 0 || rank >= machine.cluster) abort();
    return at | (rank + 1) << 24;
}
static inline Gate& gate_of(int block, shared_t at) {
    auto found = machine.blocks[block].gates.find(at);
    if (found == machine.blocks[block].gates.end()) abort();  // it is not made yet, or elsewhere
    return found->second;
}
static inline void gate_make(shared_t at, int count) { machine.blocks[my_block()].gates[at] = {count, count}; }
static inline void gate_expect(shared_t at, uint32_t bytes) {
    Gate& gate = gate_of(my_block(), at);
    if (gate.missing_arrivals-- == 0) abort();
    gate.missing_bytes += bytes;
    gate.settle();
    machine.events++;
}
static inline void gate_arrive(shared_t at) { gate_expect(at, 0); }
static inline bool gate_passed(shared_t at, uint32_t odd) {
    const bool passed = (gate_of(my_block(), at).turns & 1) != odd;
    if (!passed) {
        me().until = [seen = machine.events] { return machine.events != seen; };
        rest();
    }
    return passed;
}
static inline bool gate_open(shared_t at, uint32_t odd) { return gate_passed(at, odd); }
static void land(const Push& push) {
    check(push.to, 4 * push.count);
    memcpy(machine.blocks[push.block].memory + push.to, push.words, 4 * push.count);
    Gate& gate = gate_of(push.block, push.gate);
    gate.missing_bytes -= 4 * push.count;
    gate.settle();
    machine.events++;
}
static void land(const Bulk& bulk) {
    check(bulk.to, bulk.bytes);
    memcpy(machine.blocks[bulk.block].memory + bulk.to, bulk.from, bulk.bytes);
    Gate& gate = gate_of(bulk.block, bulk.gate);
    gate.missing_bytes -= bulk.bytes;
    gate.settle();
    machine.events++;
}
static void land(const Word& word) { memcpy(word.to, &word.word, word.bytes); }
static inline void bulk_copy(shared_t to, const void* from, uint32_t bytes, shared_t gate) {
    if (to % 16 || bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16) abort();
    const Bulk bulk = {my_block(), to, gate, from, bytes};
    gate_of(bulk.block, gate);
    if (machine.draws() % 4 == 0) land(bulk);
    else machine.bulks.push_back(bulk);
}
static inline uint64_t cache_policy(bool keeps) { return keeps; }
static inline void bulk_copy(shared_t to, const void* from, uint32_t bytes, shared_t gate, uint64_t) {
    bulk_copy(to, from, bytes, gate);
}
template <class T>
void put_word(T* to, T word) {
    if (reinterpret_cast<uintptr_t>(to) % sizeof(T)) abort();
    const Word sent = {to, word, sizeof(T)};
    if (machine.draws() % 2) land(sent);
    else machine.words.push_back(sent);
}
template <int COUNT>
void await_words(uint32_t (&words)[COUNT][4], const uint32_t* from, int step, uint32_t turn) {
    if (reinterpret_cast<uintptr_t>(from) % 16) abort();
    me().until = [=] {
        for (int n = 0; n < 4 * COUNT; n++)
            if ((from[n / 4 * step + n % 4] & 0xffff) != turn) return false;
        return true;
    };
    rest();
    for (int n = 0; n < COUNT; n++) memcpy(words[n], from + n * step, 16);
}
static inline void await_words(uint64_t (&words)[2], const uint64_t* from, uint32_t turn) {
    if (reinterpret_cast<uintptr_t>(from) % 16) abort();
    me().until = [=] { return static_cast<uint32_t>(from[0]) == turn && static_cast<uint32_t>(from[1]) == turn; };
    rest();
    memcpy(words, from, 16);
}
static inline void post(float* to, float4 words) {
    uint32_t four[4];
    memcpy(four, &words, 16);
    for (int n = 0; n < 4; n++) put_word(reinterpret_cast<uint32_t*>(to) + n, four[n]);
}
template <int COUNT>
void await_posts(float4 (&found)[COUNT], const float* const (&from)[COUNT]) {
    me().until = [from] {
        for (const float* at : from)
            for (int n = 0; n < 4; n++)
                if (reinterpret_cast<const uint32_t*>(at)[n] == 0xffffffffu) return false;
        return true;
    };
    rest();
    for (int n = 0; n < COUNT; n++) memcpy(&found[n], from[n], 16);
}
static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
template <bool LAST>
uint32_t signed_bytes(uint32_t word) {
    const int first = static_cast<int8_t>(word >> (LAST ? 16 : 0)), second = static_cast<int8_t>(word >> (LAST ? 24 : 8));
    return static_cast<uint32_t>(second) << 16 | (first & 0xffff);
}
static inline void turn_wait(int number, int count) {
    Turn& turn = machine.blocks[my_block()].turns[number];
    const int before = turn.behind;
    if (++turn.come == count) turn = {0, before + 1};
    me().until = [&turn, before] { return turn.behind != before; };
    rest(), some_arrive();
}
static inline void push_words(shared_t to, shared_t gate, std::vector<float> values) {
    const int block = my_block() / machine.cluster * machine.cluster + static_cast<int>(to >> 24) - 1;
    if (to >> 24 == 0 || to >> 24 != gate >> 24) abort();
    Push push = {block, to & 0xffffff, gate & 0xffffff, {}, static_cast<int>(values.size())};
    if (push.to % (4 * push.count)) abort();
    gate_of(block, push.gate);
    memcpy(push.words, values.data(), 4 * values.size());
    if (machine.draws() & 1) land(push);
    else machine.pushes.push_back(push);
}
static inline void push(shared_t to, shared_t gate, float value) { push_words(to, gate, {value}); }
static inline void push(shared_t to, shared_t gate, float a, float b) { push_words(to, gate, {a, b}); }
static inline uint32_t ticks() { return machine.clock += machine.draws() % 1000; }
static inline void count_in(uint32_t* counter) { ++*counter, machine.events++; }
static inline void count_wait(const uint32_t* counter, uint32_t goal) {
    me().until = [=] { return static_cast<int32_t>(*counter - goal) >= 0; };
    rest();
}
static inline uint32_t product2(uint32_t a, uint32_t b) {
    return pack(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
static inline uint32_t sum2(uint32_t a, uint32_t b) {
    return pack(half_of(a, 0) + half_of(b, 0), half_of(a, 1) + half_of(b, 1));
}
static inline uint32_t difference2(uint32_t a, uint32_t b) {
    return pack(half_of(a, 0) - half_of(b, 0), half_of(a, 1) - half_of(b, 1));
}
static inline float inverse(float x) { return 1.0f / x; }
static inline void copy_weights16(shared_t to, const void* from) { copy16(to, from, true); }
// Run all lanes of a warp up to their next barrier → whether any could move.
static bool run_warp(int warp) {
    bool moved = false;
    for (int index = warp * 32; index < warp * 32 + 32; index++) {
        if (!ready(index)) continue;
        moved = true;
        machine.current = index;
        me().until = nullptr;
        threadIdx = {index % machine.threads, 0, 0};
        blockIdx = machine.blocks[my_block()].index;
        shared_memory = machine.blocks[my_block()].memory;
        swapcontext(&machine.scheduler, &me().context);
    }
    return moved;
}

static void prepare(Fibre& fibre) {
    constexpr int STACK = 1 << 16;
    getcontext(&fibre.context);
    if (!fibre.stack) fibre.stack.reset(new char[STACK]);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = STACK;
    fibre.context.uc_link = nullptr;
    fibre.done = false;
    fibre.warp_waits = fibre.block_waits = fibre.cluster_waits = 0;
    fibre.until = nullptr;
    fibre.groups.clear();
    fibre.open.clear();
    makecontext(&fibre.context, begin, 0);
}

// Let what is in flight arrive, in another order than it was sent in → whether anything did.
template <class T>
bool some_land(std::vector<T>& sent, bool all) {
    std::shuffle(sent.begin(), sent.end(), machine.draws);
    const size_t left = all ? 0 : sent.size() / 2;
    const bool any = sent.size() > left;
    for (; sent.size() > left; sent.pop_back()) land(sent.back());
    return any;
}
static bool some_land(bool all) {
    const bool pushed = some_land(machine.pushes, all), copied = some_land(machine.bulks, all);
    return some_land(machine.words, all) || pushed || copied;
}

static void give_back_shared_memory() {
    for (Block& block : machine.blocks) free(block.memory);
    machine.blocks.clear();
}

// Run blocks that are all resident at once.
static void run_blocks(const std::vector<Index>& indices) {
    const int blocks = static_cast<int>(indices.size()), warps = blocks * machine.threads / 32;
    give_back_shared_memory();
    machine.blocks.assign(blocks, Block());
    machine.fibres.resize(blocks * machine.threads);
    machine.warps.assign(warps, Barrier{32});
    machine.clusters.assign(machine.cluster ? blocks / machine.cluster : 0, Barrier{machine.cluster * machine.threads});
    for (int n = 0; n < blocks; n++) {
        Block& block = machine.blocks[n];
        block.index = indices[n];
        block.barrier.members = machine.threads;
        block.memory = static_cast<uint8_t*>(aligned_alloc(1024, (MOST_SHARED + 1023) / 1024 * 1024));
        memset(block.memory, 0xff, MOST_SHARED);
    }
    for (Fibre& fibre : machine.fibres) prepare(fibre);
    for (bool any = true; any;) {  // a warp runs as far as it gets while the others stand still, then another
        any = false;
        const int start = machine.draws() % warps;
        for (int n = 0; n < warps && !any; n++)
            while (run_warp((start + n) % warps)) any = true;
        if (machine.draws() % 4 == 0 || !any) any |= some_land(!any);
    }
    for (size_t n = 0; n < machine.fibres.size(); n++) {
        const Fibre &fibre = machine.fibres[n], &first = machine.fibres[n / machine.threads * machine.threads];
        if (!fibre.done || fibre.block_waits != first.block_waits) abort();  // it waits for ever, or missed a barrier
    }
}

// cluster: blocks of a cluster; 0: there are no clusters, and blocks run one after another unless `together`
static void run_grid(
    std::function<void()> body, const int* grid, int threads, int cluster, bool together, int shared_bytes, unsigned seed
) {
    machine.body = body;
    machine.shared_bytes = shared_bytes;
    machine.threads = threads;
    machine.cluster = cluster;
    machine.draws.seed(seed);
    gridDim = {grid[0], grid[1], grid[2]};
    std::vector<Index> blocks;
    for (int z = 0; z < grid[2]; z++)
        for (int y = 0; y < grid[1]; y++)
            for (int x = 0; x < grid[0]; x++) blocks.push_back({x, y, z});
    if (cluster || together) {
        run_blocks(blocks);
    } else {
        std::shuffle(blocks.begin(), blocks.end(), machine.draws);
        for (const Index& block : blocks) run_blocks({block});
    }
    give_back_shared_memory();
    machine.fibres.clear();  // with their stacks: each program is a library of its own, and would keep up to 2 GB
}
