// The kernels: verbs/src/calc's `combine` and `scale` on a device. `regenerate` compiles them.
//
//   qpair_OP_TYPE(T *into, const T *a, const T *b, unsigned long long count)      into[i] = a[i] OP b[i]
//   qpair_divide_TYPE(T *vector, unsigned long long count, unsigned divisor)      the divisor is not 0
//   qpair_multiply_TYPE(T *vector, unsigned long long count, double factor)       of integers: long long factor
//
// OP and TYPE are the names that `Calc` and `DataType` print. A factor of integers is a whole number that the type holds,
// of u64 in the same 64 bits. `into` may be `a` or `b`, and does not overlap them otherwise. Every pointer is a multiple of
// the element's size. Grids and blocks are of one dimension and of any size, up to 1024 threads in a block.
//
// Vectors that lie alike relative to 16 bytes are gone through in pieces of 16, several of each vector in flight per
// thread; those that do not, by elements. Which of the two, and how large the grid is, does not show in the result.
#include "arithmetic.h"

namespace qpair {

struct alignas(16) Piece {
    u32 word[4];
};

inline u64 first() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }
inline u64 step() { return u64(gridDim.x) * blockDim.x; }

// How many elements come before the first piece of 16 bytes.
template <class Element> inline u64 before_pieces(const Element* at) {
    return ((0 - u64(at)) & 15) / sizeof(Element);
}

inline bool alike(const void* one, const void* other) { return ((u64(one) ^ u64(other)) & 15) == 0; }

// What `f` makes of two pieces, or of one, word by word.
template <class F> inline Piece apply(const F& f, const Piece& a, const Piece& b, u32) {
    Piece result;
    UNROLLED for (int i = 0; i < 4; i++) {
        result.word[i] = f(a.word[i], b.word[i]);
    }
    return result;
}

inline u64 join(u32 low, u32 high) { return u64(high) << 32 | low; }

template <class F> inline Piece apply(const F& f, const Piece& a, const Piece& b, u64) {
    Piece result;
    UNROLLED for (int i = 0; i < 4; i += 2) {
        u64 word = f(join(a.word[i], a.word[i + 1]), join(b.word[i], b.word[i + 1]));
        result.word[i] = u32(word);
        result.word[i + 1] = u32(word >> 32);
    }
    return result;
}

// What `f` makes of two elements, the lowest ones of words.
template <class F, class Element, class Word>
inline Element apply(const F& f, const Element& a, const Element& b, Word) {
    return Element(f(Word(a), Word(b)));
}

// Which elements are not in pieces: those before, and those after.
struct Around {
    u64 before, pieces;
    u64 operator()(u64 i) const { return i < before ? i : i + pieces; }
};

struct Each {
    u64 operator()(u64 i) const { return i; }
};

// The items of this thread. What a round loads is loaded before its first store, since the compiler can not know that a
// store does not change what is loaded after it.
template <int ROUND, class Word, class Item, class F, class Where>
inline void sweep(Item* into, const Item* a, const Item* b, u64 count, const Where& where, const F& f) {
    u64 i = first();
    for (const u64 more = (ROUND - 1) * step(); count > more && i < count - more; i += ROUND * step()) {
        Item x[ROUND], y[ROUND];
        UNROLLED for (int k = 0; k < ROUND; k++) {
            x[k] = a[where(i + k * step())];
            y[k] = b[where(i + k * step())];
        }
        UNROLLED for (int k = 0; k < ROUND; k++) {
            into[where(i + k * step())] = apply(f, x[k], y[k], Word());
        }
    }
    if (ROUND > 1) {
        for (; i < count; i += step()) {
            into[where(i)] = apply(f, a[where(i)], b[where(i)], Word());
        }
    }
}

// A vector in pieces, and what is before and after them, or all of it, by elements.
template <int ROUND, class Type, class Element, class F>
inline void all(Element* into, const Element* a, const Element* b, u64 count, const F& f) {
    typedef typename Type::Word Word;
    const u64 EACH = 16 / sizeof(Element);
    u64 before = before_pieces(into), pieces = 0;
    if (alike(into, a) && alike(into, b) && before < count) {
        pieces = (count - before) / EACH;
        sweep<ROUND, Word>((Piece*)(into + before), (const Piece*)(a + before), (const Piece*)(b + before), pieces, Each(), f);
    }
    const Around around = {before, pieces * EACH};
    sweep<(ROUND < 2 ? 1 : 2), Word>(into, a, b, count - pieces * EACH, around, f);
}

// What 1024 threads of a processor have in flight, half of what it holds, is 64 KiB in rounds of two pieces, more than twice
// what the latency of Hopper's memory asks for. Rounds of four, for a grid that leaves most processors to others, where the
// code stays short.
template <class Type, class Element, class F>
inline void combine(Element* into, const Element* a, const Element* b, u64 count, const F& f) {
    all<(sizeof(Element) < 4 ? 2 : 4), Type>(into, a, b, count, f);
}

// An operation on one word as one on two, the second of which it does not look at: it is not loaded either.
template <class F> struct Alone {
    F f;
    template <class Word> Word operator()(Word a, Word) const { return f(a); }
};

// Rounds of one piece: a division takes longer than to load for it, and much code.
template <class Type, class Element, class F> inline void scale(Element* vector, u64 count, const F& f) {
    const Alone<F> alone = {f};
    all<1, Type>(vector, vector, vector, count, alone);
}

} // namespace qpair

// Blocks of up to 1024 threads can be launched whatever registers a kernel would like to have.
#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

#define COMBINE(op, type)                                                                                                    \
    struct op##_##type {                                                                                                     \
        template <class Word> Word operator()(Word a, Word b) const { return qpair::types::type::op(a, b); }                 \
    };                                                                                                                       \
    KERNEL qpair_##op##_##type(qpair::types::type::Element* into, const qpair::types::type::Element* a,                      \
                               const qpair::types::type::Element* b, unsigned long long count) {                             \
        qpair::combine<qpair::types::type>(into, a, b, count, op##_##type());                                                \
    }

#define SCALE(type)                                                                                                          \
    KERNEL qpair_divide_##type(qpair::types::type::Element* vector, unsigned long long count, unsigned divisor) {            \
        qpair::scale<qpair::types::type>(vector, count, qpair::types::type::Divide(divisor));                                \
    }                                                                                                                        \
    KERNEL qpair_multiply_##type(qpair::types::type::Element* vector, unsigned long long count,                              \
                                 qpair::types::type::Multiply::Factor factor) {                                              \
        qpair::scale<qpair::types::type>(vector, count, qpair::types::type::Multiply(factor));                               \
    }

#define ALL(type) COMBINE(sum, type) COMBINE(prod, type) COMBINE(min, type) COMBINE(max, type) SCALE(type)

#define INTEGER(type)                                                                                                        \
    ALL(type)                                                                                                                \
    COMBINE(land, type) COMBINE(lor, type) COMBINE(lxor, type) COMBINE(band, type) COMBINE(bor, type) COMBINE(bxor, type)

INTEGER(i8)
INTEGER(u8)
INTEGER(i32)
INTEGER(u32)
INTEGER(i64)
INTEGER(u64)
ALL(f16)
ALL(bf16)
ALL(f32)
ALL(f64)
ALL(f8e4m3)
ALL(f8e5m2)
