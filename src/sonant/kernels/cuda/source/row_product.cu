// A product with one row, with the norm before it and SwiGLU or the residual sum after it.
//
// What such a kernel costs beside its bytes is what comes one after another once the kernel before it has ended. So all
// weights are in registers before it waits; then comes the row, by all threads to shared memory, and one barrier. Each
// warp owns its columns over the whole depth, so no sum crosses warps, and each works the norm out by itself.
//
// DEPTH, COLUMNS of a warp, WARPS, NORM and GATED are given when it is compiled.
#include "row.cuh"

struct RowArgs {
    const uint16_t *x, *weight, *gain, *residual;  // without a norm or a sum: null
    uint16_t* out;
    int columns;  // of the result; gated, the weight has twice as many
    float eps;
};
static_assert(sizeof(RowArgs) == 48, "as row_product.py packs it");

// The row's values of chunk k, normed; each result is rounded where the reference rounds it.
__device__ __forceinline__ void normed(float (&values)[8], const Words& gain, float scale) {
#pragma unroll
    for (int e = 0; e < 8; e++) values[e] = rounded(half_word(gain, e) * rounded(values[e] * scale));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 16 / WARPS) row_product(const __grid_constant__ RowArgs a) {
    launch_dependents();
    const int lane = threadIdx.x & 31, first = (blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    Held held, up;
    held.read(a.weight, first, a.columns, lane);
    if (GATED) up.read(a.weight + static_cast<int64_t>(a.columns) * DEPTH, first, a.columns, lane);
    Words gains[CHUNKS];
    if (NORM)
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) gains[k] = read_weights(a.gain + k * 256 + lane * 8);
    wait_prior();

    uint16_t* row = reinterpret_cast<uint16_t*>(shared_memory);
    for (int piece = threadIdx.x; piece < DEPTH / 8; piece += 32 * WARPS)
        put_words(row + piece * 8, read_fresh_words(a.x + piece * 8));
    const bool mine = lane < COLUMNS && first + lane < a.columns;
    const float before = mine && a.residual ? bf16(read_fresh(a.residual + first + lane)) : 0.0f;
    __syncthreads();

    float values[8], scale = 1.0f;
    if (NORM) {
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            values_of(values, row, k, lane);
#pragma unroll
            for (int e = 0; e < 8; e++) squares += values[e] * values[e];
        }
        scale = rsqrtf(sum_of_lanes(squares) / DEPTH + a.eps);
    }
    float totals[COLUMNS] = {}, others[COLUMNS] = {};
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        values_of(values, row, k, lane);
        if (NORM) normed(values, gains[k], scale);
        held.add_products(totals, values, k);
        if (GATED) up.add_products(others, values, k);
    }
    float result = rounded(own_total(totals, lane));
    if (GATED) {
        const float silu = rounded(result / (1.0f + power_of_two(-result * LOG2_E)));
        result = rounded(silu * rounded(own_total(others, lane)));
    }
    if (mine) a.out[first + lane] = to_bf16(a.residual ? before + result : result);
}
