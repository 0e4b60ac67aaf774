// The block formats: 32 consecutive weights of a row as signed bytes with a scale and, where the format has them, an offset for each
// half: weight i is scale[i / 16] * code i + offset[i / 16].
//
// A format has two steps, so that the loads of the next weights can be under way while these are used: `load` reads the raw bytes
// of a run, `unpack` makes codes of them. `run` counts 32 weights along the row. Loads are of whole aligned words: they may
// touch up to 3 bytes before and after a block, which the card's arena has room for.

struct Codes {
    u32 code[8];
    float scale[2];
    float offset[2];
};

__device__ __forceinline__ u32 bytes2(const u8* p) { return *(const u16*)p; }
__device__ __forceinline__ u32 bytes4(const u8* p) { return *(const u32*)p; }

// n words at any address.
template <int n> __device__ __forceinline__ void load_words(u32* to, const u8* p) {
    u32 past = (u32)(u64)p & 3u, shift = past * 8;
    const u32* base = (const u32*)(p - past);
    u32 word = base[0];
#pragma unroll
    for (int i = 0; i < n; i++) {
        u32 next = base[i + 1];
        to[i] = __funnelshift_r(word, next, shift);
        word = next;
    }
}

template <int n> __device__ __forceinline__ void load_aligned4(u32* to, const u8* p) {
#pragma unroll
    for (int i = 0; i < n; i++) to[i] = bytes4(p + 4 * i);
}

template <int n> __device__ __forceinline__ void load_aligned16(u32* to, const u8* p) {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
        uint4 v = *(const uint4*)(p + 4 * i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    }
}

__device__ __forceinline__ void one_scale(Codes& out, float scale) {
    out.scale[0] = out.scale[1] = scale;
    out.offset[0] = out.offset[1] = 0.0f;
}

// Subtracts `by` from each of four bytes below 128.
__device__ __forceinline__ u32 bytes_minus(u32 bytes, u32 by) {
    return ((bytes | 0x80808080u) - by * 0x01010101u) ^ 0x80808080u;
}

// Low nibbles of 16 bytes are codes 0 to 15, high ones 16 to 31.
__device__ __forceinline__ void nibbles(u32* code, const u32* packed) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        code[i] = packed[i] & 0x0f0f0f0fu;
        code[i + 4] = packed[i] >> 4 & 0x0f0f0f0fu;
    }
}

// Bits 0 to 3 of `bits` to bit 4 of four bytes.
__device__ __forceinline__ u32 fifth_bits(u32 bits) {
    return (bits & 1) << 4 | (bits & 2) << 11 | (bits & 4) << 18 | (bits & 8) << 25;
}

// The entries of a table of 16 signed bytes for four nibbles, each in a byte of its own.
__device__ __forceinline__ u32 look_up(u32 nibble, u32 t0, u32 t1, u32 t2, u32 t3) {
    u32 select = (nibble & 7u) | (nibble >> 4 & 0x70u) | (nibble >> 8 & 0x700u) | (nibble >> 12 & 0x7000u);
    u32 low = __byte_perm(t0, t1, select);
    u32 high = __byte_perm(t2, t3, select);
    u32 mask = (nibble >> 3 & 0x01010101u) * 0xffu;
    return (low & ~mask) | (high & mask);
}

// Byte i (of four, none of them zero, so that nothing carries) is negated where bit i is set.
__device__ __forceinline__ u32 negate(u32 bytes, u32 bits) {
    u32 mask = ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) * 0xffu;
    return (bytes ^ mask) + (mask & 0x01010101u);
}

// The 8 sign bits of a 7-bit index: the eighth makes their number even.
__device__ __forceinline__ u32 sign_bits(u32 index) {
    index &= 127u;
    return index | (__popc(index) & 1) << 7;
}

struct Q8_0 {
    enum { BLOCK = 32, BYTES = 34, HAS_OFFSET = 0 };
    struct Raw { u32 q[8]; u32 d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + run * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<8>(raw.q, b + 2);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = raw.q[i];
        one_scale(out, float_from((u16)raw.d));
    }
};

struct Q4_0 {
    enum { BLOCK = 32, BYTES = 18, HAS_OFFSET = 0 };
    struct Raw { u32 q[4]; u32 d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + run * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<4>(raw.q, b + 2);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = bytes_minus(out.code[i], 8);
        one_scale(out, float_from((u16)raw.d));
    }
};

struct Q4_1 {
    enum { BLOCK = 32, BYTES = 20, HAS_OFFSET = 1 };
    struct Raw { u32 dm, q[4]; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        Raw raw;
        load_aligned4<5>(&raw.dm, row + run * BYTES);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
        out.scale[0] = out.scale[1] = float_from((u16)raw.dm);
        out.offset[0] = out.offset[1] = float_from((u16)(raw.dm >> 16));
    }
};

struct Q5_0 {
    enum { BLOCK = 32, BYTES = 22, HAS_OFFSET = 0 };
    struct Raw { u32 high, q[4]; u32 d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + run * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<5>(&raw.high, b + 2);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = bytes_minus(out.code[i] | fifth_bits(raw.high >> (4 * i)), 16);
        one_scale(out, float_from((u16)raw.d));
    }
};

struct Q5_1 {
    enum { BLOCK = 32, BYTES = 24, HAS_OFFSET = 1 };
    struct Raw { u32 dm, high, q[4]; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        Raw raw;
        load_aligned4<6>(&raw.dm, row + run * BYTES);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] |= fifth_bits(raw.high >> (4 * i));
        out.scale[0] = out.scale[1] = float_from((u16)raw.dm);
        out.offset[0] = out.offset[1] = float_from((u16)(raw.dm >> 16));
    }
};

// Scale and minimum of sub-block j (of 8), six bits each, from the 16 bytes that start a Q4_K or Q5_K block.
__device__ __forceinline__ void scale_and_minimum(const u32* head, int j, Codes& out) {
    int shift = 8 * (j & 3);
    u32 scale, minimum;
    if (j < 4) {
        scale = head[1] >> shift & 63;
        minimum = head[2] >> shift & 63;
    } else {
        scale = (head[3] >> shift & 15) | (head[1] >> (shift + 6) & 3) << 4;
        minimum = (head[3] >> (shift + 4) & 15) | (head[2] >> (shift + 6) & 3) << 4;
    }
    out.scale[0] = out.scale[1] = float_from((u16)head[0]) * (float)scale;
    out.offset[0] = out.offset[1] = -(float_from((u16)(head[0] >> 16)) * (float)minimum);
}

struct Q4_K {
    enum { BLOCK = 256, BYTES = 144, HAS_OFFSET = 1 };
    struct Raw { u32 head[4], q[8]; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        load_aligned16<4>(raw.head, b);
        load_aligned16<8>(raw.q, b + 16 + 32 * ((run & 7) >> 1));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int j = run & 7, shift = 4 * (j & 1);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = raw.q[i] >> shift & 0x0f0f0f0fu;
        scale_and_minimum(raw.head, j, out);
    }
};

struct Q5_K {
    enum { BLOCK = 256, BYTES = 176, HAS_OFFSET = 1 };
    struct Raw { u32 head[4], high[8], q[8]; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        load_aligned16<4>(raw.head, b);
        load_aligned16<8>(raw.high, b + 16);
        load_aligned16<8>(raw.q, b + 48 + 32 * ((run & 7) >> 1));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int j = run & 7, shift = 4 * (j & 1);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out.code[i] = (raw.q[i] >> shift & 0x0f0f0f0fu) | (raw.high[i] >> j & 0x01010101u) << 4;
        }
        scale_and_minimum(raw.head, j, out);
    }
};

struct Q2_K {
    enum { BLOCK = 256, BYTES = 84, HAS_OFFSET = 1 };
    struct Raw { u32 q[8]; u32 d, scales; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        int j = run & 7;
        Raw raw;
        raw.scales = bytes2(b + 2 * j);
        raw.d = bytes4(b + 80);
        load_aligned4<8>(raw.q, b + 16 + 32 * (j >> 2));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int shift = 2 * (run & 3);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = raw.q[i] >> shift & 0x03030303u;
        float d = float_from((u16)raw.d), dmin = float_from((u16)(raw.d >> 16));
#pragma unroll
        for (int g = 0; g < 2; g++) {
            out.scale[g] = d * (float)(raw.scales >> (8 * g) & 15);
            out.offset[g] = -(dmin * (float)(raw.scales >> (8 * g + 4) & 15));
        }
    }
};

struct Q3_K {
    enum { BLOCK = 256, BYTES = 110, HAS_OFFSET = 0 };
    struct Raw { u32 q[8], high[8]; u32 low4, top2, d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        int j = run & 7;
        Raw raw;
        load_words<8>(raw.high, b);
        load_words<8>(raw.q, b + 32 + 32 * (j >> 2));
        raw.low4 = bytes2(b + 96 + 2 * (j & 3));
        raw.top2 = bytes2(b + 104 + 2 * (j & 1));
        raw.d = bytes2(b + 108);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int j = run & 7, shift = 2 * (j & 3);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out.code[i] = bytes_minus((raw.q[i] >> shift & 0x03030303u) | (raw.high[i] >> j & 0x01010101u) << 2, 4);
        }
#pragma unroll
        for (int g = 0; g < 2; g++) {
            u32 low = raw.low4 >> (8 * g + 4 * (j >> 2)) & 15;
            u32 top = raw.top2 >> (8 * g + 2 * (j >> 1)) & 3;
            out.scale[g] = float_from((u16)raw.d) * (float)((int)(low | top << 4) - 32);
            out.offset[g] = 0.0f;
        }
    }
};

struct Q6_K {
    enum { BLOCK = 256, BYTES = 210, HAS_OFFSET = 0 };
    struct Raw { u32 q[8], high[8]; u32 scales, d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        int j = run & 7;
        Raw raw;
        load_words<8>(raw.q, b + 64 * (j >> 2) + 32 * (j & 1));
        load_words<8>(raw.high, b + 128 + 32 * (j >> 2));
        raw.scales = bytes2(b + 192 + 2 * j);
        raw.d = bytes2(b + 208);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int quarter = run & 3;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 low = raw.q[i] >> (4 * (quarter >> 1)) & 0x0f0f0f0fu;
            out.code[i] = bytes_minus(low | (raw.high[i] >> (2 * quarter) & 0x03030303u) << 4, 32);
        }
        float d = float_from((u16)raw.d);
        out.scale[0] = d * (float)(signed char)(raw.scales & 255);
        out.scale[1] = d * (float)(signed char)(raw.scales >> 8);
        out.offset[0] = out.offset[1] = 0.0f;
    }
};

#define IQ4_TABLE 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u
#define MXFP4_TABLE 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu

struct IQ4_NL {
    enum { BLOCK = 32, BYTES = 18, HAS_OFFSET = 0 };
    typedef Q4_0::Raw Raw;
    static __device__ __forceinline__ Raw load(const u8* row, int run) { return Q4_0::load(row, run); }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = look_up(out.code[i], IQ4_TABLE);
        one_scale(out, float_from((u16)raw.d));
    }
};

struct IQ4_XS {
    enum { BLOCK = 256, BYTES = 136, HAS_OFFSET = 0 };
    struct Raw { u32 head[2], q[4]; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        load_aligned4<2>(raw.head, b);
        load_aligned4<4>(raw.q, b + 8 + 16 * (run & 7));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
        int j = run & 7;
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = look_up(out.code[i], IQ4_TABLE);
        u32 scale = (raw.head[1] >> (4 * j) & 15) | (raw.head[0] >> (16 + 2 * j) & 3) << 4;
        one_scale(out, float_from((u16)raw.head[0]) * (float)((int)scale - 32));
    }
};

struct MXFP4 {
    enum { BLOCK = 32, BYTES = 17, HAS_OFFSET = 0 };
    struct Raw { u32 q[4]; u32 e; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + run * BYTES;
        Raw raw;
        raw.e = b[0];
        load_words<4>(raw.q, b + 1);
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
        nibbles(out.code, raw.q);
#pragma unroll
        for (int i = 0; i < 8; i++) out.code[i] = look_up(out.code[i], MXFP4_TABLE);
        // 2^(e - 128), half of what the exponent byte means: the table holds doubled values.
        u32 bits = raw.e < 2 ? 0x00200000u << raw.e : (raw.e - 1) << 23;
        one_scale(out, __int_as_float((int)bits));
    }
};

// The I formats with codebooks. GRID2 (8 magnitudes an entry) or GRID3 (4) is put in front of this text where one is needed.
#ifdef GRID2
struct IQ2_XXS {
    enum { BLOCK = 256, BYTES = 66, HAS_OFFSET = 0 };
    struct Raw { u32 q[2]; u32 d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<2>(raw.q, b + 2 + 8 * (run & 7));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            uint2 grid = GRID2[raw.q[0] >> (8 * l) & 255];
            u32 signs = sign_bits(raw.q[1] >> (7 * l));
            out.code[2 * l] = negate(grid.x, signs);
            out.code[2 * l + 1] = negate(grid.y, signs >> 4);
        }
        one_scale(out, float_from((u16)raw.d) * (0.5f + (float)(raw.q[1] >> 28)) * 0.25f);
    }
};

__device__ __forceinline__ void two_scales(Codes& out, u32 d, u32 packed) {
    out.scale[0] = float_from((u16)d) * (0.5f + (float)(packed & 15)) * 0.25f;
    out.scale[1] = float_from((u16)d) * (0.5f + (float)(packed >> 4 & 15)) * 0.25f;
    out.offset[0] = out.offset[1] = 0.0f;
}

struct IQ2_XS {
    enum { BLOCK = 256, BYTES = 74, HAS_OFFSET = 0 };
    struct Raw { u32 q[2]; u32 d, scales; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<2>(raw.q, b + 2 + 8 * (run & 7));
        raw.scales = b[66 + (run & 7)];
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            u32 q = raw.q[l >> 1] >> (16 * (l & 1)) & 0xffffu;
            uint2 grid = GRID2[q & 511];
            u32 signs = sign_bits(q >> 9);
            out.code[2 * l] = negate(grid.x, signs);
            out.code[2 * l + 1] = negate(grid.y, signs >> 4);
        }
        two_scales(out, raw.d, raw.scales);
    }
};

struct IQ2_S {
    enum { BLOCK = 256, BYTES = 82, HAS_OFFSET = 0 };
    struct Raw { u32 q, signs, d, high, scales; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        int j = run & 7;
        Raw raw;
        raw.d = bytes2(b);
        load_words<1>(&raw.q, b + 2 + 4 * j);
        load_words<1>(&raw.signs, b + 34 + 4 * j);
        raw.high = b[66 + j];
        raw.scales = b[74 + j];
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
#pragma unroll
        for (int l = 0; l < 4; l++) {
            uint2 grid = GRID2[(raw.q >> (8 * l) & 255) | (raw.high >> (2 * l) & 3) << 8];
            u32 signs = raw.signs >> (8 * l);
            out.code[2 * l] = negate(grid.x, signs);
            out.code[2 * l + 1] = negate(grid.y, signs >> 4);
        }
        two_scales(out, raw.d, raw.scales);
    }
};
#endif

#ifdef GRID3
struct IQ3_XXS {
    enum { BLOCK = 256, BYTES = 98, HAS_OFFSET = 0 };
    struct Raw { u32 q[2]; u32 rest, d; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        Raw raw;
        raw.d = bytes2(b);
        load_words<2>(raw.q, b + 2 + 8 * (run & 7));
        load_words<1>(&raw.rest, b + 66 + 4 * (run & 7));
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Codes& out) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 signs = sign_bits(raw.rest >> (7 * (k >> 1))) >> (4 * (k & 1));
            out.code[k] = negate(GRID3[raw.q[k >> 2] >> (8 * (k & 3)) & 255], signs);
        }
        one_scale(out, float_from((u16)raw.d) * (0.5f + (float)(raw.rest >> 28)) * 0.5f);
    }
};

struct IQ3_S {
    enum { BLOCK = 256, BYTES = 110, HAS_OFFSET = 0 };
    struct Raw { u32 q[2]; u32 signs, d, high, scales; };
    static __device__ __forceinline__ Raw load(const u8* row, int run) {
        const u8* b = row + (run >> 3) * BYTES;
        int j = run & 7;
        Raw raw;
        raw.d = bytes2(b);
        load_words<2>(raw.q, b + 2 + 8 * j);
        raw.high = b[66 + j];
        load_words<1>(&raw.signs, b + 74 + 4 * j);
        raw.scales = b[106 + (j >> 1)];
        return raw;
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int run, Codes& out) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 index = (raw.q[k >> 2] >> (8 * (k & 3)) & 255) | (raw.high >> k & 1) << 8;
            out.code[k] = negate(GRID3[index], raw.signs >> (4 * k));
        }
        one_scale(out, float_from((u16)raw.d) * (float)(1 + 2 * (raw.scales >> (4 * (run & 1)) & 15)));
    }
};
#endif
