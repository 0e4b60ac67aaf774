// Products of a prompt: a tile of rows times 128 outputs. Tensor cores in f16 with f32 sums, weights unpacked in shared memory (on Hopper by
// `product_wide.cuh`); F32 weights are multiplied in f32. Whatever the tile, an output is one chain of sums over ascending steps of 16 inputs.

#define TILE_OUTPUTS 128
#define STEP 64
// Codes times scale are kept 2^6 larger in f16, so that small scales stay normal numbers.
#define WEIGHT_SCALE 64.0f

// A weight row as runs of 32 halves.
template <class Q> struct Source {
    typedef typename Q::Raw Raw;
    static __device__ __forceinline__ float restore() { return 1.0f / WEIGHT_SCALE; }
    static __device__ __forceinline__ Raw load(const u8* row, int run, int cols) {
        int last = cols / 32 - 1;
        return Q::load(row, run < last ? run : last);
    }
    static __device__ __forceinline__ void halves(const Raw& raw, int run, int cols, u32 (&h)[16]) {
        Codes codes;
        Q::unpack(raw, run, codes);
        bool there = run * 32 < cols;
#pragma unroll
        for (int g = 0; g < 2; g++) {
            float factor = there ? WEIGHT_SCALE : 0.0f;
            u32 scale = half2_from(codes.scale[g] * factor, codes.scale[g] * factor);
            u32 offset = Q::HAS_OFFSET ? half2_from(codes.offset[g] * factor, codes.offset[g] * factor) : 0u;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // 1024 + 128 + code is a half whose low byte is code + 128.
                u32 biased = codes.code[4 * g + i] ^ 0x80808080u;
                u32 low = half2_subtract(__byte_perm(biased, 0x64646464u, 0x4140), 0x64806480u);
                u32 high = half2_subtract(__byte_perm(biased, 0x64646464u, 0x4342), 0x64806480u);
                h[8 * g + 2 * i] = half2_fma(low, scale, offset);
                h[8 * g + 2 * i + 1] = half2_fma(high, scale, offset);
            }
        }
    }
};

// Two-byte floats as they are.
struct Pairs { u32 two[16]; };
__device__ __forceinline__ Pairs load_pairs(const u8* row, int run, int cols) {
    Pairs raw;
    if ((cols & 7) == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool there = run * 32 + 8 * i < cols;
            uint4 v = there ? *(const uint4*)(row + run * 64 + 16 * i) : make_uint4(0, 0, 0, 0);
            raw.two[4 * i] = v.x, raw.two[4 * i + 1] = v.y, raw.two[4 * i + 2] = v.z, raw.two[4 * i + 3] = v.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int k = run * 32 + 2 * i;
            u32 low = k < cols ? bytes2(row + 2 * k) : 0u;
            u32 high = k + 1 < cols ? bytes2(row + 2 * k + 2) : 0u;
            raw.two[i] = low | high << 16;
        }
    }
    return raw;
}

struct F16 { enum { BLOCK = 1, BYTES = 2 }; };
struct BF16 { enum { BLOCK = 1, BYTES = 2 }; };
struct F32 { enum { BLOCK = 1, BYTES = 4 }; };

template <> struct Source<F16> {
    typedef Pairs Raw;
    static __device__ __forceinline__ float restore() { return 1.0f; }
    static __device__ __forceinline__ Raw load(const u8* row, int run, int cols) { return load_pairs(row, run, cols); }
    static __device__ __forceinline__ void halves(const Raw& raw, int, int, u32 (&h)[16]) {
#pragma unroll
        for (int i = 0; i < 16; i++) h[i] = raw.two[i];
    }
};

template <> struct Source<BF16> {
    typedef Pairs Raw;
    static __device__ __forceinline__ float restore() { return 1.0f / WEIGHT_SCALE; }
    static __device__ __forceinline__ Raw load(const u8* row, int run, int cols) { return load_pairs(row, run, cols); }
    static __device__ __forceinline__ void halves(const Raw& raw, int, int, u32 (&h)[16]) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float low = __int_as_float((int)(raw.two[i] << 16)), high = __int_as_float((int)(raw.two[i] & 0xffff0000u));
            h[i] = half2_from(low * WEIGHT_SCALE, high * WEIGHT_SCALE);
        }
    }
};

template <class Q> __device__ __forceinline__ u64 row_bytes(int cols) { return (u64)(cols / Q::BLOCK) * Q::BYTES; }

// Rows of 64 halves, in chunks of 8 that are swapped around so that neither stores nor tile loads meet in a bank.
__device__ __forceinline__ u16* swizzled(u16* tile, int row, int chunk) { return tile + row * STEP + ((chunk ^ (row & 7)) << 3); }

// Where a row's outputs go, and what is done with a sum on the way.
struct Target {
    float* at;          // of output 0
    float restore;      // the row's power of two
    const float* bias;  // of output 0, or null
    int add;            // to what is there

    __device__ __forceinline__ void put(int output, float sum) const {
        sum *= restore;
        if (bias) sum += bias[output];
        at[output] = add ? at[output] + sum : sum;
    }

    // Two neighbours of `outputs`.
    __device__ __forceinline__ void put_pair(int output, int outputs, float a, float b) const {
        float2* both = (float2*)(at + output);
        if (output + 1 < outputs && ((u64)both & 7) == 0) {
            a *= restore, b *= restore;
            if (bias) a += bias[output], b += bias[output + 1];
            float2 there = add ? *both : make_float2(0.0f, 0.0f);
            *both = add ? make_float2(there.x + a, there.y + b) : make_float2(a, b);
        } else {
            if (output < outputs) put(output, a);
            if (output + 1 < outputs) put(output + 1, b);
        }
    }
};

#if __CUDA_ARCH__ >= 800
#define ROW_STAGES 3
#else
#define ROW_STAGES 2
#endif

template <class Q, int ROWS> struct Product;

#ifndef HAS_WIDE_PRODUCTS
// ROWS rows in a grid of DOWN x ACROSS warps.
template <class Q, int ROWS> struct Product {
    enum {
        DOWN = ROWS < 64 ? 1 : 2,
        ACROSS = 8 / DOWN,
        WARP_ROWS = ROWS / DOWN,
        WARP_OUTPUTS = TILE_OUTPUTS / ACROSS,
        HIGH = WARP_ROWS / 16,
        WIDE = WARP_OUTPUTS / 8,
        CHUNKS = ROWS / 32,
    };

    // `row_of(i)` is the row of x that row i of the tile takes, `target(i)` where its sums go, for i below `count` and ROWS.
    template <class RowOf, class ToTarget>
    static __device__ __forceinline__ void run(u8* shared, const u16* x, int stride, int count, RowOf row_of, const u8* weight,
                                               int outputs, int first, int cols, ToTarget target) {
        u16* weights = (u16*)shared;
        u16* rows = weights + 2 * TILE_OUTPUTS * STEP;
        int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        int warp_row = warp / ACROSS * WARP_ROWS, warp_output = warp % ACROSS * WARP_OUTPUTS;

        int chunk = thread & 7;
        const u16* from[CHUNKS];
        bool there[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            int at = (thread >> 3) + 32 * i;
            there[i] = at < count;
            from[i] = x + (u64)(there[i] ? row_of(at) : 0) * stride + 8 * chunk;
        }
        auto copy_rows = [&](int step) {
            u16* stage = rows + step % ROW_STAGES * ROWS * STEP;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                int at = (thread >> 3) + 32 * i;
                copy_async(swizzled(stage, at, chunk), from[i] + step * STEP, there[i]);
            }
            copy_commit();
        };

        int mine = thread >> 1, side = thread & 1;
        int output = first + mine < outputs ? first + mine : outputs - 1;
        const u8* weight_row = weight + (u64)output * row_bytes<Q>(cols);
        auto unpack = [&](const typename Source<Q>::Raw& raw, int step) {
            u32 h[16];
            Source<Q>::halves(raw, 2 * step + side, cols, h);
            u16* stage = weights + (step & 1) * TILE_OUTPUTS * STEP;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                *(uint4*)swizzled(stage, mine, 4 * side + i) = make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
            }
        };

        float sum[HIGH][WIDE][4];
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) sum[i][j][k] = 0.0f;

        int steps = stride / STEP;
#pragma unroll
        for (int s = 0; s < ROW_STAGES - 1; s++) {
            if (s < steps) copy_rows(s);
            else copy_commit();
        }
        unpack(Source<Q>::load(weight_row, side, cols), 0);

        for (int step = 0; step < steps; step++) {
            copy_wait<ROW_STAGES - 2>();
            __syncthreads();
            bool more = step + 1 < steps;
            typename Source<Q>::Raw raw;
            if (more) raw = Source<Q>::load(weight_row, 2 * (step + 1) + side, cols);
            if (step + ROW_STAGES - 1 < steps) copy_rows(step + ROW_STAGES - 1);
            else copy_commit();
            u16* row_stage = rows + step % ROW_STAGES * ROWS * STEP;
            u16* weight_stage = weights + (step & 1) * TILE_OUTPUTS * STEP;
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) {
                u32 a[HIGH][4];
#pragma unroll
                for (int i = 0; i < HIGH; i++) {
                    load_tiles(a[i], swizzled(row_stage, warp_row + 16 * i + (lane & 15), 2 * k + (lane >> 4)));
                }
#pragma unroll
                for (int j = 0; j < WIDE; j += 2) {
                    u32 b[4];
                    int at = warp_output + 8 * j + (lane & 7) + (lane >> 4 << 3);
                    load_tiles(b, swizzled(weight_stage, at, 2 * k + (lane >> 3 & 1)));
#pragma unroll
                    for (int i = 0; i < HIGH; i++) {
                        multiply_add(sum[i][j], a[i], b[0], b[1]);
                        multiply_add(sum[i][j + 1], a[i], b[2], b[3]);
                    }
                }
            }
            if (more) unpack(raw, step + 1);
        }
#pragma unroll
        for (int i = 0; i < HIGH; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int at = warp_row + 16 * i + (lane >> 2) + 8 * k;
                if (at >= count) continue;
                Target to = target(at);
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    float a = sum[i][j][2 * k] * Source<Q>::restore(), b = sum[i][j][2 * k + 1] * Source<Q>::restore();
                    to.put_pair(first + warp_output + 8 * j + 2 * (lane & 3), outputs, a, b);
                }
            }
    }
};

#endif

// F32 weights and rows: 256 threads in two times four warps, each ROWS / 2 rows by 32 outputs. A thread takes every fourth of the warp's rows and
// every eighth of its outputs, four inputs at a time.
template <int ROWS> struct Product<F32, ROWS> {
    // Padding by 16 bytes puts neighbouring rows into different banks.
    enum { DEPTH = 32, PITCH = DEPTH + 4, EACH = ROWS / 8, HELD = ROWS + TILE_OUTPUTS, STAGES = ROW_STAGES };

    template <class RowOf, class ToTarget>
    static __device__ __forceinline__ void run(u8* shared, const float* x, int stride, int count, RowOf row_of, const u8* weight,
                                               int outputs, int first, int cols, ToTarget target) {
        float* stages = (float*)shared;  // [STAGES]: rows [ROWS][PITCH], weights [TILE_OUTPUTS][PITCH]
        int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        int warp_row = (warp >> 2) * (ROWS / 2) + (lane >> 3), warp_output = (warp & 3) * 32 + (lane & 7);
        int column = (thread & 7) * 4;
        bool wide = (cols & 3) == 0;
        const float* from[(HELD + 31) / 32];
#pragma unroll
        for (int i = 0; i < (HELD + 31) / 32; i++) {
            int at = (thread >> 3) + 32 * i, output = first + at - ROWS;
            if (at < ROWS) from[i] = at < count ? x + (u64)row_of(at) * stride : 0;
            else from[i] = at < HELD && output < outputs ? (const float*)weight + (u64)output * cols : 0;
        }
        auto copy = [&](int step) {
            float* stage = stages + step % STAGES * HELD * PITCH;
            int k = step * DEPTH + column;
#pragma unroll
            for (int i = 0; i < (HELD + 31) / 32; i++) {
                int at = (thread >> 3) + 32 * i;
                if (at >= HELD) break;
                float* to = stage + at * PITCH + column;
                if (wide) {
                    bool there = from[i] && k < cols;
                    copy_async(to, there ? from[i] + k : x, there);
                } else {
                    for (int j = 0; j < 4; j++) to[j] = from[i] && k + j < cols ? from[i][k + j] : 0.0f;
                }
            }
        };

        float sum[EACH][4];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] = 0.0f;
        int steps = (cols + DEPTH - 1) / DEPTH;
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < steps) copy(s);
            copy_commit();
        }
        for (int step = 0; step < steps; step++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < steps) copy(step + STAGES - 1);
            copy_commit();
            const float* rows = stages + step % STAGES * HELD * PITCH + warp_row * PITCH;
            const float* weights = stages + (step % STAGES * HELD + ROWS + warp_output) * PITCH;
#pragma unroll
            for (int k = 0; k < DEPTH; k += 4) {
                float4 b[4];
#pragma unroll
                for (int j = 0; j < 4; j++) b[j] = *(const float4*)(weights + 8 * j * PITCH + k);
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    float4 a = *(const float4*)(rows + 4 * i * PITCH + k);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        sum[i][j] = fmaf(a.x, b[j].x, sum[i][j]);
                        sum[i][j] = fmaf(a.y, b[j].y, sum[i][j]);
                        sum[i][j] = fmaf(a.z, b[j].z, sum[i][j]);
                        sum[i][j] = fmaf(a.w, b[j].w, sum[i][j]);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int at = warp_row + 4 * i;
            if (at >= count) continue;
            Target to = target(at);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int output = first + warp_output + 8 * j;
                if (output < outputs) to.put(output, sum[i][j]);
            }
        }
    }
};
