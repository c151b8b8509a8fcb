// What each operation does to the elements of a word: the arithmetic of verbs/src/calc, bit for bit.
//
// Plain C++11 without any header, for the device's compiler and the host's: the tests compile it for the host and compare
// it with verbs/src/calc. What runs on a device only, between `#ifdef __CUDA_ARCH__` and `#else`, is a conversion with the
// reason why its bits are those of the host's.
//
// Elements of 1 to 4 bytes are worked on in words of 4 bytes, so of 4, 2 or 1 at a time, larger ones in words of 8. Where
// a word's elements are treated together, no carry passes from one to the next.
#pragma once

// Before a loop over an array of constant length, which is then kept in registers.
#ifdef __CUDA_ARCH__
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

namespace qpair {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

template <class To, class From> inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    union {
        From from;
        To to;
    } both;
    both.from = from;
    return both.to;
}

// One word of several elements of `BITS` bits each.
template <u32 BITS> struct Lanes {
    // The lowest bit of each element, its highest, and all but the highest. Enumerated, as constants here are: of others
    // the device's compiler makes variables.
    enum : u32 { ONE = BITS == 8 ? 0x01010101 : 0x00010001, SIGN = u32(ONE) << (BITS - 1), REST = SIGN - ONE };

    // All bits of each element whose highest bit is set in `signs`, which has no others.
    static u32 spread(u32 signs) { return (signs - (signs >> (BITS - 1))) | signs; }

    // All bits of each element of `a` that is at least that of `b`, as numbers without sign.
    static u32 at_least(u32 a, u32 b) {
        u32 rest = (a | SIGN) - (b & REST);
        return spread(((~(a ^ b) & rest) | (a & ~b)) & SIGN);
    }

    // The highest bit of each element that is not 0.
    static u32 not_zero(u32 a) { return (((a & REST) + REST) | a) & SIGN; }
};

inline u32 choose(u32 mask, u32 set, u32 unset) { return (set & mask) | (unset & ~mask); }

// Integers of 8 bits. `FLIP` has the bits that turn them to be in the order of numbers without sign.
template <u32 FLIP> struct Bytes {
    typedef u8 Element;
    typedef u32 Word;
    typedef Lanes<8> L;

    static Word sum(Word a, Word b) { return ((a & L::REST) + (b & L::REST)) ^ ((a ^ b) & L::SIGN); }

    static Word prod(Word a, Word b) {
        Word all = 0;
        UNROLLED for (int shift = 0; shift < 32; shift += 8) {
            all |= (((a >> shift) * (b >> shift)) & 0xff) << shift;
        }
        return all;
    }

    static Word min(Word a, Word b) { return choose(L::at_least(a ^ FLIP, b ^ FLIP), b, a); }
    static Word max(Word a, Word b) { return choose(L::at_least(a ^ FLIP, b ^ FLIP), a, b); }
    static Word land(Word a, Word b) { return (L::not_zero(a) & L::not_zero(b)) >> 7; }
    static Word lor(Word a, Word b) { return L::not_zero(a | b) >> 7; }
    static Word lxor(Word a, Word b) { return (L::not_zero(a) ^ L::not_zero(b)) >> 7; }
    static Word band(Word a, Word b) { return a & b; }
    static Word bor(Word a, Word b) { return a | b; }
    static Word bxor(Word a, Word b) { return a ^ b; }

    // By a product, since a number of at most 2^8, times this, is 2^16 times its quotient and less than that times
    // 1/divisor more.
    struct Divide {
        u32 reciprocal;
        explicit Divide(u32 divisor) : reciprocal((1 << 16) / divisor + 1) {}
        Word operator()(Word a) const {
            u32 negative = FLIP ? L::spread(a & L::SIGN) : 0;
            u32 magnitude = turned(a, negative);
            u32 all = 0;
            UNROLLED for (int shift = 0; shift < 32; shift += 8) {
                all |= ((((magnitude >> shift) & 0xff) * reciprocal) >> 16) << shift;
            }
            return turned(all, negative);
        }
        // Minus each element that the mask has.
        static u32 turned(u32 a, u32 negative) { return sum(a ^ negative, negative & L::ONE); }
    };

    struct Multiply {
        typedef long long Factor;
        u32 factor;
        explicit Multiply(Factor factor) : factor(factor & 0xff) {}
        Word operator()(Word a) const {
            const u32 EVEN = 0x00ff00ff;
            return (((a & EVEN) * factor) & EVEN) | ((((a >> 8) & EVEN) * factor) & EVEN) << 8;
        }
    };
};

// Integers of 32 and 64 bits: `T` to compare and divide, `U` without sign to calculate, which wraps.
template <class T, class U> struct Integers {
    typedef U Element;
    typedef U Word;
    enum : bool { SIGNED = T(~U(0)) < T(1) };

    static Word sum(Word a, Word b) { return a + b; }
    static Word prod(Word a, Word b) { return a * b; }
    static Word min(Word a, Word b) { return T(a) < T(b) ? a : b; }
    static Word max(Word a, Word b) { return T(a) > T(b) ? a : b; }
    static Word land(Word a, Word b) { return a != 0 && b != 0; }
    static Word lor(Word a, Word b) { return (a | b) != 0; }
    static Word lxor(Word a, Word b) { return (a != 0) != (b != 0); }
    static Word band(Word a, Word b) { return a & b; }
    static Word bor(Word a, Word b) { return a | b; }
    static Word bxor(Word a, Word b) { return a ^ b; }

    // Toward zero: the least number divided by 1 is its own magnitude.
    struct Divide {
        u32 divisor;
        explicit Divide(u32 divisor) : divisor(divisor) {}
        Word operator()(Word a) const {
            bool negative = SIGNED && a >> (sizeof(U) * 8 - 1) != 0;
            Word quotient = (negative ? Word(0) - a : a) / divisor;
            return negative ? Word(0) - quotient : quotient;
        }
    };

    struct Multiply {
        typedef long long Factor;
        Word factor;
        explicit Multiply(Factor factor) : factor(Word(factor)) {}
        Word operator()(Word a) const { return a * factor; }
    };
};

// `float` and `double`, in words `U`.
template <class T, class U, class Signed> struct Floats {
    typedef U Element;
    typedef U Word;
    enum : U { MOST = ~U(0) >> 1, INFINITE = (sizeof(U) == 4 ? U(0xff) << 23 : U(0x7ff) << (sizeof(U) * 8 - 12)) };

    static bool is_nan(U a) { return (a & MOST) > INFINITE; }

    // As an integer, in the order of the floats, -0.0 before +0.0. (A mask made by an arithmetic shift NVRTC 11.8 takes for a
    // bit field, and fills it with zeros.)
    static Signed in_order(U a) { return Signed(a) < 0 ? Signed(a ^ MOST) : Signed(a); }

    // Of NaN, which of them devices and processors differ in, the one.
    static U one_nan(T value) {
        U a = bits_as<U>(value);
        return is_nan(a) ? ~U(0) : a;
    }

    static U sum(U a, U b) { return one_nan(bits_as<T>(a) + bits_as<T>(b)); }
    static U prod(U a, U b) { return one_nan(bits_as<T>(a) * bits_as<T>(b)); }
    static U min(U a, U b) { return is_nan(a) || is_nan(b) ? ~U(0) : in_order(a) < in_order(b) ? a : b; }
    static U max(U a, U b) { return is_nan(a) || is_nan(b) ? ~U(0) : in_order(a) > in_order(b) ? a : b; }

    struct Divide {
        T divisor;
        explicit Divide(u32 divisor) : divisor(T(divisor)) {}
        U operator()(U a) const { return one_nan(bits_as<T>(a) / divisor); }
    };

    struct Multiply {
        typedef double Factor;
        T factor;
        explicit Multiply(Factor factor) : factor(T(factor)) {}
        U operator()(U a) const { return one_nan(bits_as<T>(a) * factor); }
    };
};

// Where a narrow float keeps its parts: as `Layout` in verbs/src/calc/narrow.rs.
template <u32 BITS, u32 MANTISSA, u32 BIAS, u32 FIRST_SPECIAL, u32 MOST> struct Layout {
    enum : u32 { EXPONENT = 0x7f800000 };

    // `narrow::decode`
    static float decode(u32 code) {
        const u32 SIGN = 1u << (BITS - 1), LEAST_NORMAL = (128 - BIAS) << 23;
        u32 sign = (code & SIGN) << (32 - BITS);
        u32 magnitude = code & (SIGN - 1);
        u32 shifted = magnitude << (23 - MANTISSA);
        u32 value = shifted + ((127 - BIAS) << 23);
        if (magnitude < 1u << MANTISSA) {
            value = bits_as<u32>(bits_as<float>(shifted + LEAST_NORMAL) - bits_as<float>(LEAST_NORMAL));
        }
        if (magnitude >= FIRST_SPECIAL) {
            value = shifted | EXPONENT;
        }
        return bits_as<float>(value | sign);
    }

    // `narrow::encode`
    static u32 encode(float value) {
        const u32 SHIFT = 23 - MANTISSA, UNIT = (127 + 24 - BIAS - MANTISSA) << 23;
        u32 bits = bits_as<u32>(value);
        u32 sign = (bits >> 31) << (BITS - 1);
        u32 magnitude = bits & 0x7fffffff;
        u32 code = ((magnitude + ((magnitude >> SHIFT) & 1) + ((1u << (SHIFT - 1)) - 1)) >> SHIFT) - ((127 - BIAS) << MANTISSA);
        code = code < MOST ? code : MOST;
        if (magnitude < (128 - BIAS) << 23) {
            code = bits_as<u32>(bits_as<float>(magnitude) + bits_as<float>(UNIT)) - UNIT;
        }
        return magnitude > EXPONENT ? ~0u >> (32 - BITS) : code | sign;
    }
};

// Each format unpacks a word to `float`, exactly, and packs it, rounding to nearest even, any NaN to all ones. `INFINITE`
// is the greatest magnitude that is not NaN.

// The conversions of devices round to nearest even, keep subnormal numbers on both sides without .ftz, and overflow to
// infinity, as IEEE 754 has it, and as the host's do. They differ only in which NaN they make.
struct F16 {
    typedef u16 Element;
    enum : u32 { BITS = 16, INFINITE = 0x7c00 };
    typedef Layout<16, 10, 15, 0x7c00, 0x7c00> Code;

    static void unpack(u32 word, float* values) {
        UNROLLED for (int i = 0; i < 2; i++) {
            u16 code = u16(word >> (16 * i));
#ifdef __CUDA_ARCH__
            asm("cvt.f32.f16 %0, %1;" : "=f"(values[i]) : "h"(code));
#else
            values[i] = Code::decode(code);
#endif
        }
    }

    static u32 pack(const float* values) {
        u32 word = 0;
        UNROLLED for (int i = 0; i < 2; i++) {
            u16 code;
#ifdef __CUDA_ARCH__
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(values[i]));
            code = values[i] != values[i] ? 0xffff : code;
#else
            code = u16(Code::encode(values[i]));
#endif
            word |= u32(code) << (16 * i);
        }
        return word;
    }
};

struct Bf16 {
    typedef u16 Element;
    enum : u32 { BITS = 16, INFINITE = 0x7f80 };

    static void unpack(u32 word, float* values) {
        values[0] = bits_as<float>(word << 16);
        values[1] = bits_as<float>(word & 0xffff0000);
    }

    static u32 pack(const float* values) { return encode(values[0]) | encode(values[1]) << 16; }

    // `narrow::encode_bf16`
    static u32 encode(float value) {
        u32 bits = bits_as<u32>(value);
        return value != value ? 0xffff : (bits + ((bits >> 16) & 1) + 0x7fff) >> 16;
    }
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QPAIR_FP8_CONVERTS 1
#endif

// With conversions of the device, where it has them. All numbers of both formats, infinity and NaN are halves too, so that
// the way through a half to a single is exact. Backwards it goes from the single at once, rounded once to nearest even,
// subnormal numbers kept. .satfinite makes the greatest number of what is beyond it, infinity too, and 0x7f of any NaN,
// which no other result has in its lower bits: of it all ones are made. The sign stays, that of zero too.
#ifdef QPAIR_FP8_CONVERTS
inline void single_of_halves(u32 halves, float* values) {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(values[0]), "=f"(values[1])
        : "r"(halves));
}

inline u32 join_one_nan(u16 low, u16 high) {
    u32 word = u32(low) | u32(high) << 16;
    return word | (((word & Lanes<8>::REST) + Lanes<8>::ONE) & Lanes<8>::SIGN);
}
#endif

template <class Code> struct Fp8 {
    typedef u8 Element;
    enum : u32 { BITS = 8 };

    static void unpack(u32 word, float* values) {
        UNROLLED for (int i = 0; i < 4; i++) {
            values[i] = Code::decode((word >> (8 * i)) & 0xff);
        }
    }

    static u32 pack(const float* values) {
        u32 word = 0;
        UNROLLED for (int i = 0; i < 4; i++) {
            word |= Code::encode(values[i]) << (8 * i);
        }
        return word;
    }
};

struct E4M3 : Fp8<Layout<8, 3, 7, 0x7f, 0x7e> > {
    enum : u32 { INFINITE = 0x7e };

#ifdef QPAIR_FP8_CONVERTS
    static void unpack(u32 word, float* values) {
        u32 low, high;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"(u16(word)));
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(u16(word >> 16)));
        single_of_halves(low, values);
        single_of_halves(high, values + 2);
    }

    static u32 pack(const float* values) {
        u16 low, high;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
        return join_one_nan(low, high);
    }
#endif
};

struct E5M2 : Fp8<Layout<8, 2, 15, 0x7c, 0x7b> > {
    enum : u32 { INFINITE = 0x7c };

#ifdef QPAIR_FP8_CONVERTS
    static void unpack(u32 word, float* values) {
        u32 low, high;
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(low) : "h"(u16(word)));
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(high) : "h"(u16(word >> 16)));
        single_of_halves(low, values);
        single_of_halves(high, values + 2);
    }

    static u32 pack(const float* values) {
        u16 low, high;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
        return join_one_nan(low, high);
    }
#endif
};

// Floats that calculate in `float`; minimum and maximum compare bits.
template <class Format> struct Narrow {
    typedef typename Format::Element Element;
    typedef u32 Word;
    typedef Lanes<Format::BITS> L;
    enum : int { COUNT = 32 / Format::BITS };

    static Word sum(Word a, Word b) {
        float x[COUNT], y[COUNT];
        Format::unpack(a, x);
        Format::unpack(b, y);
        UNROLLED for (int i = 0; i < COUNT; i++) {
            x[i] = x[i] + y[i];
        }
        return Format::pack(x);
    }

    static Word prod(Word a, Word b) {
        float x[COUNT], y[COUNT];
        Format::unpack(a, x);
        Format::unpack(b, y);
        UNROLLED for (int i = 0; i < COUNT; i++) {
            x[i] = x[i] * y[i];
        }
        return Format::pack(x);
    }

    // Without sign, in the order of the floats, -0.0 before +0.0.
    static Word in_order(Word a) { return a ^ (L::spread(a & L::SIGN) | L::SIGN); }

    // All bits of each element that is NaN in one of the two.
    static Word nan(Word a, Word b) {
        const u32 MORE = L::ONE * ((1u << (Format::BITS - 1)) - 1 - Format::INFINITE);
        return L::spread((((a & L::REST) + MORE) | ((b & L::REST) + MORE)) & L::SIGN);
    }

    static Word min(Word a, Word b) { return choose(L::at_least(in_order(a), in_order(b)), b, a) | nan(a, b); }
    static Word max(Word a, Word b) { return choose(L::at_least(in_order(a), in_order(b)), a, b) | nan(a, b); }

    struct Divide {
        float divisor;
        explicit Divide(u32 divisor) : divisor(float(divisor)) {}
        Word operator()(Word a) const {
            float x[COUNT];
            Format::unpack(a, x);
            UNROLLED for (int i = 0; i < COUNT; i++) {
                x[i] = x[i] / divisor;
            }
            return Format::pack(x);
        }
    };

    struct Multiply {
        typedef double Factor;
        float factor;
        explicit Multiply(Factor factor) : factor(float(factor)) {}
        Word operator()(Word a) const {
            float x[COUNT];
            Format::unpack(a, x);
            UNROLLED for (int i = 0; i < COUNT; i++) {
                x[i] = x[i] * factor;
            }
            return Format::pack(x);
        }
    };
};

// By the names that verbs/src/calc/types.rs prints.
namespace types {
typedef Bytes<0x80808080> i8;
typedef Bytes<0> u8;
typedef Integers<int, qpair::u32> i32;
typedef Integers<qpair::u32, qpair::u32> u32;
typedef Integers<long long, qpair::u64> i64;
typedef Integers<qpair::u64, qpair::u64> u64;
typedef Narrow<F16> f16;
typedef Narrow<Bf16> bf16;
typedef Floats<float, qpair::u32, int> f32;
typedef Floats<double, qpair::u64, long long> f64;
typedef Narrow<E4M3> f8e4m3;
typedef Narrow<E5M2> f8e5m2;
} // namespace types

} // namespace qpair
