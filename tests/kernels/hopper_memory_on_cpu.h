// Memory, copies and products of a Hopper GPU on a CPU: the part of hopper_on_cpu.h, which includes it, that the
// scheduling of fibres does not need. What is in flight happens when it is awaited, or at any time before.
#pragma once

static inline shared_t shared_base() { return 0; }
static inline void show_to_products() {}
static inline uint4 read16(const void* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("a read at no multiple of 16");
    uint4 value;
    memcpy(&value, from, 16);
    return value;
}
template <class T>
T read_fresh(const T* from) { return *from; }
static inline uint32_t count(uint32_t* counter, uint32_t most) {
    const uint32_t before = *counter;
    *counter = before >= most ? 0 : before + 1;
    return before;
}
static inline void write16(void* to, uint4 value) {
    if (reinterpret_cast<uintptr_t>(to) % 16) fail("a write at no multiple of 16");
    memcpy(to, &value, 16);
}
static inline void store16(shared_t to, uint4 value) {
    check(to, 16);
    write16(shared_memory + to, value);
}
static inline void copy16(shared_t to, const void* from) {
    check(to, 16);
    const auto arrive = [=] { store16(to, read16(from)); };
    if (draws() & 1) arrive();
    else me().copies.back().push_back(arrive);
}
// On a CPU: address, rows, lines, columns, values from row to row, and the lines and columns of a part.
struct alignas(64) TensorMap {
    uint64_t words[16];
};
// Swizzling: pieces of 16 bytes are exchanged by address, among eight in lines of 128 bytes, among four in lines of 64.
static inline shared_t exchanged(shared_t at, int line_bytes) { return at ^ (at >> 7 & (line_bytes / 16 - 1)) << 4; }
static inline void copy_part(shared_t to, const TensorMap& from, int column, int line, int row, shared_t barrier) {
    const auto word = [&](int n) { return static_cast<int64_t>(from.words[n]); };
    const int64_t rows = word(1), lines = word(2), columns = word(3), stride = word(4), count = word(5);
    const int line_bytes = static_cast<int>(2 * word(6));
    const uint16_t* start = reinterpret_cast<const uint16_t*>(from.words[0]);
    if (to % 128) fail("a part at no multiple of 128");
    parts.push_back([=] {
        for (int n = 0; n < count; n++)
            for (int byte = 0; byte < line_bytes; byte += 16) {
                const int64_t l = line + n, c = column + byte / 2;
                const bool there = l >= 0 && l < lines && c < columns && row < rows;
                const shared_t at = exchanged(to + n * line_bytes + byte, line_bytes);
                store16(at, there ? read16(start + row * stride + l * columns + c) : uint4{});
            }
        barrier_change(barrier, 0, static_cast<int>(-count * line_bytes));
    });
}
static inline void fetch(const void*, int bytes) {
    if (bytes % 16) fail("a fetch of no multiple of 16");
}
static inline void copies_commit() { me().copies.emplace_back(); }
template <int LEFT>
void copies_wait() { flush(me().copies, LEFT); }

static inline uint64_t matrix(shared_t start, int across) {
    if (start % 16 || across % 16) fail("a matrix at no multiple of 16");
    return start >> 4 | static_cast<uint64_t>(across >> 4) << 16 | static_cast<uint64_t>(8) << 32;
}
static inline uint64_t swizzled_matrix(shared_t start) {
    if (start % 1024) fail("a swizzled matrix at no multiple of 1024");
    return start >> 4 | static_cast<uint64_t>(64) << 32 | static_cast<uint64_t>(1) << 62;
}
static inline uint64_t swizzled_lines(shared_t start, int to_next_columns) {
    if (to_next_columns % 1024) fail("columns at no multiple of 1024");
    return swizzled_matrix(start) | static_cast<uint64_t>(to_next_columns >> 4) << 16;
}
static inline uint64_t half_swizzled_matrix(shared_t start) {
    if (start % 512) fail("a swizzled matrix at no multiple of 512");
    return start >> 4 | static_cast<uint64_t>(32) << 32 | static_cast<uint64_t>(2) << 62;
}
static inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
// Where byte `along` of a line lies, by a matrix's descriptor.
static inline shared_t byte_of(uint64_t matrix, int line, int along) {
    const auto bytes = [=](int from) { return static_cast<uint32_t>(matrix >> from & 0x3fff) << 4; };
    const int line_bytes = matrix >> 62 ? 256 >> (matrix >> 62) : 16, swizzled = matrix >> 62 != 0;
    shared_t at = bytes(0) + line / 8 * bytes(32) + line % 8 * line_bytes + along / 16 * (swizzled ? 16 : bytes(16));
    if (swizzled) at = exchanged(at, line_bytes);
    check(at, 16);
    return at + along % 16;
}
static inline float element(uint64_t matrix, int line, int k) {
    uint16_t bits;
    memcpy(&bits, shared_memory + byte_of(matrix, line, 2 * k), 2);
    return from_bits(static_cast<uint32_t>(bits) << 16);
}
static inline int element8(uint64_t matrix, int line, int k) {
    return static_cast<int8_t>(shared_memory[byte_of(matrix, line, k)]);
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
template <int LEFT = 0, class T, int N>
void settled(T (&c)[N]) {
    if (me().products.size() > LEFT + 1) fail("products are still under way");
}

template <int DEPTH, class T, int N>
void multiply_by(T (&c)[N], std::function<T(int, int)> left, std::function<T(int, int)> right_of, int more) {
    const int lane = current % 32, top = current % 128 / 32 * 16 + lane / 4;
    me().products.back().push_back([=, &c] {
        T right[DEPTH];
        for (int column = 0; column < 2 * N; column++) {
            if (column % 8 / 2 != lane % 4) continue;
            for (int k = 0; k < DEPTH; k++) right[k] = right_of(column, k);
            for (int half = 0; half < 2; half++) {
                T sum = 0;
                for (int k = 0; k < DEPTH; k++) sum += left(top + 8 * half, k) * right[k];
                T& to = c[column / 8 * 4 + 2 * half + column % 2];
                to = more ? to + sum : sum;
            }
        }
    });
}
template <int N>
void multiply(float (&c)[N], uint64_t a, uint64_t b, int more) {
    const auto of = [](uint64_t matrix) { return [=](int line, int k) { return element(matrix, line, k); }; };
    multiply_by<16, float, N>(c, of(a), of(b), more);
}
template <int N>
void multiply(int (&c)[N], uint64_t a, uint64_t b, int more) {
    const auto of = [](uint64_t matrix) { return [=](int line, int k) { return element8(matrix, line, k); }; };
    multiply_by<32, int, N>(c, of(a), of(b), more);
}
template <int N>
void multiply_floats(int (&c)[N], uint64_t a, uint64_t b, int more) {
    multiply(reinterpret_cast<float(&)[N]>(c), a, b, more);
}
// An element of a matrix whose lines are the depth of a product.
static inline float turned_element(uint64_t matrix, int column, int k) {
    const auto bytes = [=](int from) { return static_cast<uint32_t>(matrix >> from & 0x3fff) << 4; };
    const shared_t at = exchanged(bytes(0) + column / 64 * bytes(16) + k / 8 * bytes(32) + k % 8 * 128 + column % 64 * 2, 128);
    check(at, 2);
    uint16_t bits;
    memcpy(&bits, shared_memory + at, 2);
    return from_bits(static_cast<uint32_t>(bits) << 16);
}
// a is in registers; `of` gives b's elements.
template <int N>
void multiply_held(float (&c)[N], const uint32_t (&a)[4], std::function<float(int, int)> of, int more) {
    const int turn = show(a, 4), warp = current / 32 * 32;
    std::vector<uint32_t> all(128);
    for (int lane = 0; lane < 32; lane++) memcpy(&all[4 * lane], fibres[warp + lane].shown[turn], 16);
    show(a, 4);
    const auto left = [=](int line, int k) {
        const uint32_t word = all[4 * (line % 8 * 4 + k % 8 / 2) + line % 16 / 8 + k / 8 * 2];
        return from_bits(k % 2 ? word & 0xffff0000u : word << 16);
    };
    multiply_by<16, float, N>(c, left, of, more);
}
template <int N>
void multiply(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int more) {
    multiply_held(c, a, [=](int line, int k) { return element(b, line, k); }, more);
}
template <int N>
void multiply_turned(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int more) {
    multiply_held(c, a, [=](int column, int k) { return turned_element(b, column, k); }, more);
}
