// Keys and values in blocks: how a warp brings sixteen positions of one head into shared memory, and how a tile of them
// lies there. A row is one position's head; its 16-byte pieces are permuted by the row's number, so that the eight rows
// which a matrix load reads at once lie in different banks.
#pragma once
#include "ptx.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif

constexpr int DIM = HEAD_DIM;
constexpr int ROW_BYTES = 2 * DIM;
constexpr int PIECES = ROW_BYTES / 16;
constexpr int CHUNK = 16;  // positions that a warp copies at once
constexpr int CHUNK_BYTES = CHUNK * ROW_BYTES;
constexpr int WARPS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr uint32_t ALL = 0xffffffffu;
static_assert(DIM == 64 || DIM == 128, "rows of 128 or 256 bytes");

__device__ __forceinline__ float lowest() { return from_bits(0xff800000u); }  // minus infinity

__device__ __forceinline__ uint32_t place(int row, int piece) {
    return row * ROW_BYTES + ((piece ^ (row & 7)) << 4);
}

__device__ __forceinline__ int64_t read_position(const void* positions, int64_t index, int wide) {
    return wide ? read_fresh(static_cast<const int64_t*>(positions) + index)
                : static_cast<int64_t>(read_fresh(static_cast<const int*>(positions) + index));
}

struct Pages {
    const uint8_t* keys;    // of this head
    int64_t plane_bytes;    // from keys to values
    int64_t token_bytes;    // from one position to the next
    const int* table;       // of this row
    int block_tokens;
    uint32_t block_magic;   // 2³² / block_tokens, rounded up: exact below 2³² / block_tokens positions; 0: one each
    int end;                // first position that is not to be read

    // Of position `first` + lane % 16: where it lies in the cache, or -1 where there is nothing to read.
    __device__ __forceinline__ int slot(int first, int lane) const {
        const int at = first + (lane & 15);
        if (at >= end) return -1;
        const int block = block_magic ? static_cast<int>(__umulhi(static_cast<uint32_t>(at), block_magic)) : at;
        return read_fresh(table + block) * block_tokens + at - block * block_tokens;
    }

    // Sixteen positions by one warp, `slot` being each lane's own as above; the copies are not committed.
    __device__ __forceinline__ void copy(shared_t to_keys, shared_t to_values, int slot, int lane) const {
#pragma unroll
        for (int turn = 0; turn < CHUNK * PIECES / 32; turn++) {
            const int row = (turn * 32 + lane) / PIECES, piece = lane % PIECES;
            const int from = __shfl_sync(ALL, slot, row);
            const bool there = from >= 0;
            const uint8_t* source = keys + (there ? from : 0) * token_bytes + piece * 16;
            copy16(to_keys + place(row, piece), source, there);
            copy16(to_values + place(row, piece), source + plane_bytes, there);
        }
    }
};

// Where a lane points a matrix load, as an offset into a tile whose first row is a multiple of 8.
// Rows 0…15 and two pieces: matrices are (rows 0…7, first), (8…15, first), (0…7, second), (8…15, second).
__device__ __forceinline__ uint32_t by_rows(int row, int piece, int lane) {
    return place(row + (lane & 15), piece + (lane >> 4));
}

// The same with the second and third in each other's place: a product's right side, whose columns are the rows here.
__device__ __forceinline__ uint32_t by_pieces(int row, int piece, int lane) {
    return place(row + (lane & 7) + (lane >> 4) * 8, piece + ((lane >> 3) & 1));
}
