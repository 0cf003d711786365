// Several positions a row over its paged keys and values, causal, as prefill.cu, but by wgmma: for long prefills.
//
// A warpgroup has 64 queries of a row and key-value head; one or two of them share a block's keys and values, which a warp of
// another warpgroup copies, 128 positions at a time. While the tensor cores weigh the values of one tile, they already score
// the next, and while one warpgroup computes its softmax, the other uses the tensor cores: they take turns. Blocks are
// persistent and process one item after another until there are no more.
#include "prefill_wgmma.cuh"

constexpr int SCORES = KEYS / 2, SUMS = DIM / 2;  // of a thread: a quarter of each of two queries'

__device__ __forceinline__ void arrive_once_a_warp(shared_t barrier) {
    __syncwarp();  // all lanes are done
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// A thread's part of the online softmax of its two queries, lane / 4 of its warp's sixteen and eight further: the running
// maximum `best`, of scores times the scale, and the running sum `weight` relative to it.
struct Softmax {
    float best[2], weight[2];
    int sees[2];  // the last position that each query sees
    int least;    // the lowest of these in this warp

    __device__ __forceinline__ void start(int one, int other) {
        sees[0] = one, sees[1] = other, least = min(one, other);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) least = min(least, __shfl_xor_sync(ALL, least, step));
#pragma unroll
        for (int i = 0; i < 2; i++) best[i] = from_bits(0xff800000u), weight[i] = 0.0f;
    }

    __device__ __forceinline__ void hide(float (&s)[SCORES], int first) const {
        const int column = first + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < SCORES; n++)
            if (column + n / 4 * 8 + n % 2 > sees[n / 2 % 2]) s[n] = from_bits(0xff800000u);
    }

    // Turn scores of the tile that begins at position `first` into weights → `factor`, for what was accumulated before.
    __device__ __forceinline__ void weigh(float (&s)[SCORES], float (&factor)[2], int first, float scale) {
        if (first + KEYS - 1 > least) hide(s, first);
        float highest[2] = {from_bits(0xff800000u), from_bits(0xff800000u)};
#pragma unroll
        for (int n = 0; n < SCORES; n++) highest[n / 2 % 2] = fmaxf(highest[n / 2 % 2], s[n]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            highest[i] = fmaxf(highest[i], __shfl_xor_sync(ALL, highest[i], 1));
            highest[i] = fmaxf(highest[i], __shfl_xor_sync(ALL, highest[i], 2));
            highest[i] = fmaxf(best[i], highest[i] * scale);
            factor[i] = power_of_two(best[i] - (highest[i] < -1e30f ? 0.0f : highest[i]));
            best[i] = highest[i];
            highest[i] = highest[i] < -1e30f ? 0.0f : highest[i];  // a query that has seen nothing yet has weights of 0
        }
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < SCORES; n++) {
            s[n] = power_of_two(fmaf(s[n], scale, -highest[n / 2 % 2]));
            sum[n / 2 % 2] += s[n];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) weight[i] = weight[i] * factor[i] + sum[i];
    }

    // The factor that normalizes the sum of weighted values: 0 for a query without weights, which has seen nothing.
    __device__ __forceinline__ float share_of(int i) {
        weight[i] += __shfl_xor_sync(ALL, weight[i], 1);
        weight[i] += __shfl_xor_sync(ALL, weight[i], 2);
        return weight[i] > 0.0f ? 1.0f / weight[i] : 0.0f;
    }
};

// A warpgroup that multiplies.
template <int GROUPS>
struct Consumer {
    const PrefillWgmmaArgs& a;
    Room<GROUPS> room;
    int group;
    Cursor<STAGES> stage = {};

    __device__ __forceinline__ void meet() const { turn_wait(1 + group, GROUP); }
    __device__ __forceinline__ void wait_turn() const {
        if (GROUPS == 2) turn_wait(1 + GROUPS + group, 2 * GROUP);
    }
    __device__ __forceinline__ void give_turn() const {
        if (GROUPS == 2) turn_give(1 + GROUPS + (1 - group), 2 * GROUP);
    }

    // Where a query and its result lie; the query must exist.
    __device__ __forceinline__ int64_t query_at(const Item& item, int n) const {
        const int share = a.heads / a.kv_heads, at = n / share;
        const int64_t position = static_cast<int64_t>(item.row) * a.length + at;
        return (position * a.heads + item.kv_head * share + n - at * share) * DIM;
    }
    // Where a piece of 16 bytes lies in this warpgroup's lines.
    __device__ __forceinline__ uint32_t place(int line, int piece) const {
        return piece / 8 * 64 * LINE_BYTES + line * LINE_BYTES + ((piece % 8 ^ line % 8) << 4);
    }

    __device__ __forceinline__ void take_queries(const Item& item, int queries) const {
        const shared_t to = room.queries(group);
        const int first = item.first + 64 * group;
        meet();  // all threads have stored the results that were there
#pragma unroll
        for (int n = threadIdx.x % GROUP; n < 64 * DIM / 8; n += GROUP) {
            const int line = n / (DIM / 8), piece = n % (DIM / 8);
            uint4 value = {0, 0, 0, 0};
            if (first + line < queries) value = read16(a.q + query_at(item, first + line) + piece * 8);
            store16(to + place(line, piece), value);
        }
        show_to_products();
        meet();
    }

    __device__ __forceinline__ void score(float (&s)[SCORES], int slot) const {
        const uint64_t left = swizzled_matrix(room.queries(group)), right = swizzled_matrix(room.keys(slot));
#pragma unroll
        for (int k = 0; k < DIM / 16; k++)
            multiply(s, left + k / 4 * (64 * LINE_BYTES / 16) + k % 4 * 2, right + k / 4 * (LINES_BYTES / 16) + k % 4 * 2, k > 0);
        products_commit();
    }
    __device__ __forceinline__ void gather(float (&sums)[SUMS], const uint32_t (&weights)[KEYS / 16][4], int slot, bool more) const {
        const uint64_t right = swizzled_lines(room.values(slot), LINES_BYTES);
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) multiply_turned(sums, weights[k], right + k * (16 * LINE_BYTES / 16), more || k > 0);
        products_commit();
    }
    __device__ __forceinline__ void round_weights(uint32_t (&to)[KEYS / 16][4], const float (&s)[SCORES]) const {
#pragma unroll
        for (int n = 0; n < SCORES / 2; n++) to[n / 4][n % 4] = pack(s[2 * n], s[2 * n + 1]);
    }

    // Clear values that no query sees: their weights are 0, but they may be anything, even NaN.
    __device__ __forceinline__ void clear_values(int slot, int seen) const {
        if (seen >= KEYS) return;
        for (int n = threadIdx.x % GROUP; n < (KEYS - seen) * HALVES * 8; n += GROUP) {
            const int line = seen + n / 8 % (KEYS - seen), half = n / 8 / (KEYS - seen);
            store16(room.values(slot) + half * LINES_BYTES + line * LINE_BYTES + n % 8 * 16, {0, 0, 0, 0});
        }
        show_to_products();
        meet();
    }

    __device__ __forceinline__ void attend(const Item& item, Softmax& softmax, float (&sums)[SUMS]) {
        const int tiles = (item.end + KEYS - 1) / KEYS;
        float s[SCORES], factor[2];
        uint32_t weights[KEYS / 16][4];
        barrier_wait(room.keys_there(stage.slot), stage.round);
        products_begin();
        score(s, stage.slot);
        products_wait<0>();
        settled(s);
        arrive_once_a_warp(room.keys_used(stage.slot));
        softmax.weigh(s, factor, 0, a.scale);
        round_weights(weights, s);
        for (int tile = 1; tile < tiles; tile++) {
            const Cursor<STAGES> before = stage;
            stage.next();
            barrier_wait(room.keys_there(stage.slot), stage.round);
            wait_turn();
            settled(weights);
            products_begin();
            score(s, stage.slot);
            barrier_wait(room.values_there(before.slot), before.round);
            gather(sums, weights, before.slot, tile > 1);
            give_turn();
            products_wait<1>();
            settled<1>(s);
            arrive_once_a_warp(room.keys_used(stage.slot));
            softmax.weigh(s, factor, tile * KEYS, a.scale);
            products_wait<0>();
            settled(sums);
            arrive_once_a_warp(room.values_used(before.slot));
#pragma unroll
            for (int n = 0; n < SUMS; n++) sums[n] *= factor[n / 2 % 2];
            round_weights(weights, s);
        }
        barrier_wait(room.values_there(stage.slot), stage.round);
        clear_values(stage.slot, item.end - (tiles - 1) * KEYS);
        settled(weights);
        settled(sums);
        products_begin();
        gather(sums, weights, stage.slot, tiles > 1);
        products_wait<0>();
        settled(sums);
        arrive_once_a_warp(room.values_used(stage.slot));
        stage.next();
    }

    // Store results by way of the queries' memory, so that whole lines are written; each warp has its own sixteen.
    __device__ __forceinline__ void leave(const Item& item, Softmax& softmax, const float (&sums)[SUMS], int queries) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
        uint8_t* lines = shared_memory + group * QUERIES_BYTES;
        const float share[2] = {softmax.share_of(0), softmax.share_of(1)};
        meet();  // no warp's products read the queries any more
#pragma unroll
        for (int n = 0; n < SUMS; n += 2) {
            const int i = n / 2 % 2, line = warp * 16 + lane / 4 + 8 * i;
            uint32_t* to = reinterpret_cast<uint32_t*>(lines + place(line, n / 4)) + lane % 4;
            *to = pack(sums[n] * share[i], sums[n + 1] * share[i]);
        }
        __syncwarp();
        const int first = item.first + 64 * group;
#pragma unroll
        for (int n = lane; n < 16 * DIM / 8; n += 32) {
            const int line = warp * 16 + n / (DIM / 8), piece = n % (DIM / 8);
            if (first + line >= queries) continue;
            write16(a.out + query_at(item, first + line) + piece * 8, *reinterpret_cast<const uint4*>(lines + place(line, piece)));
        }
    }

    __device__ __forceinline__ int sees(const Item& item, int n, int queries) const {
        return n < queries ? position_of(a, item.row, n / (a.heads / a.kv_heads)) : NOBODY;
    }

    __device__ __forceinline__ void run() {
        const int queries = a.length * (a.heads / a.kv_heads);
        const int line = threadIdx.x % GROUP / 32 * 16 + threadIdx.x % 32 / 4;
        if (GROUPS == 2 && group == 1) give_turn();  // the first warpgroup begins
        for (Cursor<ITEMS> slot;; slot.next()) {
            barrier_wait(room.item_there(slot.slot), slot.round);
            const Item item = *room.item(slot.slot);
            arrive_once_a_warp(room.item_used(slot.slot));
            if (item.row < 0) break;
            const int mine = item.first + 64 * group + line;
            Softmax softmax;
            softmax.start(sees(item, mine, queries), sees(item, mine + 8, queries));
            take_queries(item, queries);
            float sums[SUMS] = {};
            if (item.end > 0) attend(item, softmax, sums);
            leave(item, softmax, sums, queries);
        }
        if (GROUPS == 2 && group == 0) wait_turn();  // takes the turn that the other warpgroup gave last
    }
};

template <int GROUPS>
__device__ __forceinline__ void prefill(const PrefillWgmmaArgs& a) {
    const Room<GROUPS> room = {shared_base()};
    const int group = threadIdx.x / GROUP;
    launch_dependents();
    if (threadIdx.x < Room<GROUPS>::BARRIERS) {
        const int n = threadIdx.x;
        const bool is_there = n < ITEMS || (n >= 2 * ITEMS && (n - 2 * ITEMS) / STAGES % 2 == 0);
        barrier_start(room.barrier(n), is_there ? 1 : Room<GROUPS>::WARPS);
    }
    barriers_started();
    __syncthreads();
    wait_prior();
    if (group < GROUPS) {
        if (GROUPS == 2) more_registers<232>();
        Consumer<GROUPS>{a, room, group}.run();
        return;
    }
    if (GROUPS == 2) fewer_registers<40>();  // in total what the block was launched with
    if (threadIdx.x % GROUP < 32) Supply<GROUPS>{a, room, static_cast<int>(threadIdx.x) % 32}.run();
}

extern "C" __global__ void __launch_bounds__(2 * GROUP, 1) paged_prefill_wgmma_64(const __grid_constant__ PrefillWgmmaArgs a) {
    prefill<1>(a);
}
extern "C" __global__ void __launch_bounds__(3 * GROUP, 1) paged_prefill_wgmma_128(const __grid_constant__ PrefillWgmmaArgs a) {
    prefill<2>(a);
}
