// Which row, and which share of its positions, a block of a decode step has.
//
// If rows are few, each is shared by as many blocks as the grid is deep. If they are many, each has one block, and a long one
// would end after all others: so more blocks come last, `helpers` for each 32 rows. They look for long rows among these, and
// share them with the rows' own blocks. All blocks of 32 rows read the same lengths, so they agree on who has what.
#pragma once
#include "paged.cuh"

struct Rows {
    const void* positions;
    int stride, wide;
    int count;
    int capacity;  // positions that a table has room for
    int alone;     // most positions of a row that one block has alone
    int helpers;   // for each 32 rows; 0: the grid's depth is the shares of a row

    // A row's last position, or -1 where no table has room for it.
    __device__ __forceinline__ int last(int row) const {
        const int64_t at = read_position(positions, static_cast<int64_t>(row) * stride, wide);
        return at < 0 || at >= capacity ? -1 : static_cast<int>(at);
    }
};

struct Part {
    int row;           // -1: there is nothing to help with
    int split, splits;
    int last;          // position of the row
};

__device__ __forceinline__ Part helped(const Rows& rows, int block, int lane) {
    const int nth = block - rows.count, cohort = nth < 0 ? block / 32 : nth / rows.helpers;
    const int last = cohort * 32 + lane < rows.count ? rows.last(cohort * 32 + lane) : -1;
    uint32_t longs = __ballot_sync(ALL, last > rows.alone);
    const int count = __popc(longs), each = count ? rows.helpers / count : 0;
    Part part = {block, 0, 1 + each, -1};
    if (nth >= 0) {
        const int helper = nth % rows.helpers;
        if (helper >= each * count) return {-1, 0, 1, -1};
        for (int n = 0; n < helper / each; n++) longs &= longs - 1;
        part.row = cohort * 32 + __ffs(longs) - 1;
        part.split = 1 + helper % each;
    }
    part.last = __shfl_sync(ALL, last, part.row % 32);
    return part;
}
