// Number formats that a GPU converts by itself: bfloat16, half precision and e4m3, two or four to a word.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
// One of a word's two factors: half precision where the cache has eight bits, else bfloat16.
static inline float half_of(uint32_t word, int which) {
#if KV_BYTES == 1
    const uint16_t bits = which ? word >> 16 : word;
    _Float16 half;
    memcpy(&half, &bits, 2);
    return half;
#else
    return from_bits(which ? word & 0xffff0000u : word << 16);
#endif
}
static inline uint32_t rounded_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t pack(float low, float high) { return rounded_bits(high) << 16 | rounded_bits(low); }
static inline uint32_t pack_factors(float low, float high) {
#if KV_BYTES == 1
    const _Float16 both[2] = {static_cast<_Float16>(low), static_cast<_Float16>(high)};
    uint32_t word;
    memcpy(&word, both, 4);
    return word;
#else
    return pack(low, high);
#endif
}
static inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, rest = bits & 7;
    if ((bits & 127) == 127) return NAN;
    const float size = exponent ? ldexpf(8 + rest, exponent - 10) : ldexpf(rest, -9);
    return bits & 128 ? -size : size;
}
static inline uint8_t to_e4m3(float x) {  // the nearest number; of two, the even one
    if (x != x) return 127;
    int best = 0;
    for (int bits = 1; bits < 127; bits++) {
        const float nearer = fabsf(from_e4m3(best) - fabsf(x)) - fabsf(from_e4m3(bits) - fabsf(x));
        if (nearer > 0 || (nearer == 0 && bits % 2 == 0)) best = bits;
    }
    return best | (x < 0 ? 128 : 0);
}
static inline void widen(uint32_t (&to)[2], uint32_t four) {
    for (int n = 0; n < 2; n++) to[n] = pack_factors(from_e4m3(four >> 16 * n), from_e4m3(four >> (16 * n + 8)));
}
static inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t order) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    uint32_t made = 0;
    for (int n = 0; n < 4; n++) made |= static_cast<uint32_t>(both >> 8 * (order >> 4 * n & 7) & 255) << 8 * n;
    return made;
}
