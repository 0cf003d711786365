// wgmma, products of a warpgroup (128 threads): c [64, N] = a [64, 16] · b [16, N], or c plus that with `more`, of
// bfloat16 with float32 accumulators. b, and a where it is not in registers, are in shared memory: see `matrix` in
// hopper.cuh. A thread's values of c, and its part of an a in registers, are as mma.sync has them for each warp's 16
// lines.
#pragma once

// A thread's accumulators, as an instruction names them and as operands of `asm`.
#define SUMS_OF_96 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
#define SUMS_OF_64 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define SUMS_OF_128 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
#define SUMS_OF_192 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
#define FOUR_FROM(kind, c, n) kind(c[n]), kind(c[n + 1]), kind(c[n + 2]), kind(c[n + 3])
#define EIGHT_FROM(kind, c, n) FOUR_FROM(kind, c, n), FOUR_FROM(kind, c, n + 4)
#define HELD_OF_64(kind, c) \
    EIGHT_FROM(kind, c, 0), EIGHT_FROM(kind, c, 8), EIGHT_FROM(kind, c, 16), EIGHT_FROM(kind, c, 24)
#define HELD_OF_128(kind, c) \
    EIGHT_FROM(kind, c, 0), EIGHT_FROM(kind, c, 8), EIGHT_FROM(kind, c, 16), EIGHT_FROM(kind, c, 24), \
    EIGHT_FROM(kind, c, 32), EIGHT_FROM(kind, c, 40), EIGHT_FROM(kind, c, 48), EIGHT_FROM(kind, c, 56)
#define HELD_OF_96(kind, c) \
    EIGHT_FROM(kind, c, 0), EIGHT_FROM(kind, c, 8), EIGHT_FROM(kind, c, 16), EIGHT_FROM(kind, c, 24), \
    EIGHT_FROM(kind, c, 32), EIGHT_FROM(kind, c, 40)
#define HELD_OF_192(kind, c) \
    EIGHT_FROM(kind, c, 0), EIGHT_FROM(kind, c, 8), EIGHT_FROM(kind, c, 16), EIGHT_FROM(kind, c, 24), \
    EIGHT_FROM(kind, c, 32), EIGHT_FROM(kind, c, 40), EIGHT_FROM(kind, c, 48), EIGHT_FROM(kind, c, 56), \
    EIGHT_FROM(kind, c, 64), EIGHT_FROM(kind, c, 72), EIGHT_FROM(kind, c, 80), EIGHT_FROM(kind, c, 88)

__device__ __forceinline__ void multiply(float (&c)[48], uint64_t a, uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 " SUMS_OF_96 "%48, %49, p, 1, 1, 0, 0;\n}"
        : HELD_OF_96("+f", c)
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void multiply(float (&c)[48], const uint32_t (&a)[4], uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 " SUMS_OF_96 "{%48, %49, %50, %51}, %52, p, 1, 1, 0;\n}"
        : HELD_OF_96("+f", c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

__device__ __forceinline__ void multiply(float (&c)[96], uint64_t a, uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 " SUMS_OF_192 "%96, %97, p, 1, 1, 0, 0;\n}"
        : HELD_OF_192("+f", c)
        : "l"(a), "l"(b), "r"(more));
}

// a [64, 32] · b [32, N] of eight bits with integer accumulators: as many bytes, so a and b are laid out as above.
__device__ __forceinline__ void multiply(int (&c)[96], uint64_t a, uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k32.s32.s8.s8 " SUMS_OF_192 "%96, %97, p;\n}"
        : HELD_OF_192("+r", c)
        : "l"(a), "l"(b), "r"(more));
}

// The product of bfloat16 again, with float32 accumulators in registers that held integers before.
__device__ __forceinline__ void multiply_floats(int (&c)[96], uint64_t a, uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 " SUMS_OF_192 "%96, %97, p, 1, 1, 0, 0;\n}"
        : HELD_OF_192("+r", c)
        : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void multiply(float (&c)[64], uint64_t a, uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SUMS_OF_128 "%64, %65, p, 1, 1, 0, 0;\n}"
        : HELD_OF_128("+f", c)
        : "l"(a), "l"(b), "r"(more));
}

// b is from `swizzled_lines`.
__device__ __forceinline__ void multiply_turned(float (&c)[32], const uint32_t (&a)[4], uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " SUMS_OF_64 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : HELD_OF_64("+f", c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
__device__ __forceinline__ void multiply_turned(float (&c)[64], const uint32_t (&a)[4], uint64_t b, int more) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SUMS_OF_128 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
        : HELD_OF_128("+f", c)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

#undef SUMS_OF_64
#undef SUMS_OF_96
#undef SUMS_OF_128
#undef SUMS_OF_192
#undef FOUR_FROM
#undef EIGHT_FROM
#undef HELD_OF_64
#undef HELD_OF_96
#undef HELD_OF_128
#undef HELD_OF_192
