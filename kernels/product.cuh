// Products of a prompt: a tile of rows times 128 outputs. Tensor cores in f16 with f32 sums, weights unpacked in shared memory; F32
// weights are multiplied in f32. Whatever the tile, an output is one chain of sums over ascending steps of 16 inputs.

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

#if __CUDA_ARCH__ >= 800
#define ROW_STAGES 3
#else
#define ROW_STAGES 2
#endif

#ifndef HAS_WIDE_PRODUCTS
// ROWS rows in a grid of DOWN x (8 / DOWN) warps.
template <class Q, int ROWS, int DOWN> struct Product {
    enum {
        ACROSS = 8 / DOWN,
        WARP_ROWS = ROWS / DOWN,
        WARP_OUTPUTS = TILE_OUTPUTS / ACROSS,
        HIGH = WARP_ROWS / 16,
        WIDE = WARP_OUTPUTS / 8,
        CHUNKS = ROWS * 8 / 256 > 0 ? ROWS * 8 / 256 : 1,
        SHARED = (2 * TILE_OUTPUTS + ROW_STAGES * ROWS) * STEP * 2,
    };

    // `row_of(i)` is the row of x that row i of the tile takes, or negative; `store(i, output, sum)` gets every sum, with sums of x's rows
    // still shrunk as the rows are.
    template <class RowOf, class Store>
    static __device__ __forceinline__ void run(u8* shared, const u16* x, int stride, RowOf row_of, const u8* weight, int outputs,
                                               int first, int cols, Store store) {
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
            int row = at < ROWS ? row_of(at) : -1;
            there[i] = row >= 0;
            from[i] = x + (u64)(row < 0 ? 0 : row) * stride + 8 * chunk;
        }
        auto copy_rows = [&](int step) {
            u16* stage = rows + step % ROW_STAGES * ROWS * STEP;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++) {
                int at = (thread >> 3) + 32 * i;
                if (at < ROWS) copy_async(swizzled(stage, at, chunk), from[i] + step * STEP, there[i]);
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
            for (int k = 0; k < 4; k++) {
                int at = warp_row + 16 * i + (lane >> 2) + 8 * (k >> 1);
#pragma unroll
                for (int j = 0; j < WIDE; j++) {
                    int o = first + warp_output + 8 * j + 2 * (lane & 3) + (k & 1);
                    if (o < outputs) store(at, o, sum[i][j][k] * Source<Q>::restore());
                }
            }
    }
};

#else
// Where a format's rows are brought to shared memory as they are, CHUNK weights at a time: whole 16 bytes around them, so that every copy is
// aligned; the bytes then lie as far past 16 as they do in the weight. Formats of whole 16 bytes and two-byte floats are read where
// they are, a step ahead.
template <class Q> struct Chunks {
    enum {
        STAGED = Q::BYTES % 16 != 0,
        CHUNK = Q::BLOCK == 32 ? 128 : 256,
        BYTES = CHUNK / Q::BLOCK * Q::BYTES,
        PIECES = (BYTES + 30) / 16,
        // An odd number of pieces, so that rows begin in different banks.
        PITCH = (PIECES | 1) * 16,
        STEPS = CHUNK / STEP,
    };
};
struct NoChunks { enum { STAGED = 0, CHUNK = STEP, BYTES = 0, PIECES = 0, PITCH = 0, STEPS = 1 }; };
template <> struct Chunks<F16> : NoChunks {};
template <> struct Chunks<BF16> : NoChunks {};

// Four warps take 64 rows by all outputs; fewer rows leave the second four to unpacking. While the products of a step run, the weights
// of the next are unpacked and the rows and raw weights of later ones are on their way.
template <class Q, int ROWS, int DOWN> struct Product {
    // Stages of rows: two blocks a processor must fit its shared memory.
    enum { HELD = ROWS < 64 ? 64 : ROWS, COPIES = HELD * 8 / 256, KEPT = Chunks<Q>::STAGED ? 2 : 3 };

    template <class RowOf, class Store>
    static __device__ __forceinline__ void run(u8* shared, const u16* x, int stride, RowOf row_of, const u8* weight, int outputs,
                                               int first, int cols, Store store) {
        typedef Chunks<Q> C;
        u16* weights = (u16*)shared;                        // [2][TILE_OUTPUTS][STEP]
        u16* rows = weights + 2 * TILE_OUTPUTS * STEP;      // [KEPT][HELD][STEP]
        u8* raws = (u8*)(rows + KEPT * HELD * STEP);           // [2][TILE_OUTPUTS][PITCH]
        int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
        int group_row = (warp >> 2) * 64;
        bool multiplies = HELD >= 128 || group_row < HELD;

        int chunk = thread & 7;
        u32 from[COPIES];
        u32 there = 0;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int at = (thread >> 3) + 32 * i;
            int row = at < ROWS ? row_of(at) : -1;
            there |= (row >= 0) << i;
            from[i] = (u32)(row < 0 ? 0 : row) * (u32)stride + 8 * chunk;
        }
        auto copy_rows = [&](int step) {
            u16* stage = rows + step % KEPT * HELD * STEP;
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                copy_async(swizzled(stage, (thread >> 3) + 32 * i, chunk), x + from[i] + step * STEP, there >> i & 1);
            }
        };

        u64 bytes = row_bytes<Q>(cols);
        auto copy_raw = [&](int number) {
            if (!C::STAGED || number * C::CHUNK >= cols) return;
            u8* stage = raws + (number & 1) * TILE_OUTPUTS * C::PITCH;
            for (int i = thread; i < TILE_OUTPUTS * C::PIECES; i += 256) {
                int o = i / C::PIECES, piece = i - o * C::PIECES;
                int output = first + o < outputs ? first + o : outputs - 1;
                const u8* at = weight + output * bytes + (u64)number * C::BYTES;
                copy_async(stage + o * C::PITCH + 16 * piece, (const u8*)((u64)at & ~15ull) + 16 * piece, true);
            }
        };

        int mine = thread >> 1, side = thread & 1;
        const u8* weight_row = weight + (first + mine < outputs ? first + mine : outputs - 1) * bytes;
        auto load = [&](int step) {
            int run = 2 * step + side;
            if (!C::STAGED) return Source<Q>::load(weight_row, run, cols);
            int number = step / C::STEPS;
            const u8* at = raws + (number & 1) * TILE_OUTPUTS * C::PITCH + mine * C::PITCH;
            at += (u32)(u64)(weight_row + (u64)number * C::BYTES) & 15u;
            int last = cols / 32 - 1;
            return Source<Q>::load(at, (run < last ? run : last) - number * (C::CHUNK / 32), 1 << 30);
        };
        auto unpack = [&](const typename Source<Q>::Raw& raw, int step) {
            u32 h[16];
            Source<Q>::halves(raw, 2 * step + side, cols, h);
            u16* stage = weights + (step & 1) * TILE_OUTPUTS * STEP;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                *(uint4*)swizzled(stage, mine, 4 * side + i) = make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
            }
        };

        float sum[64];
#pragma unroll
        for (int i = 0; i < 64; i++) sum[i] = 0.0f;
        int steps = stride / STEP;
        typename Source<Q>::Raw early;
        if (!C::STAGED) early = load(0);
        copy_raw(0);
        copy_raw(1);
#pragma unroll
        for (int s = 0; s < KEPT - 1; s++) {
            if (s < steps) copy_rows(s);
            copy_commit();
        }
        if (C::STAGED) {
            copy_wait<KEPT - 2>();
            __syncthreads();
            early = load(0);
        }
        unpack(early, 0);
        if (!C::STAGED && steps > 1) early = load(1);

        auto begin = [&](int step) {
            copy_wait<KEPT - 2>();
            publish_shared();
            meet();
        };
        auto prepare = [&](int step) {
            if (step + KEPT - 1 < steps) copy_rows(step + KEPT - 1);
            // The chunk before was unpacked to its end in the step before this one.
            if ((step + 1) % C::STEPS == 0) copy_raw((step + 1) / C::STEPS + 1);
            copy_commit();
            if (step + 1 < steps) {
                if (C::STAGED) {
                    unpack(load(step + 1), step + 1);
                } else {
                    unpack(early, step + 1);
                    if (step + 2 < steps) early = load(step + 2);
                }
            }
        };
        // Two loops, since products that only some threads start would wait for each other; so the barrier has two places, too.
        if (!multiplies) {
            for (int step = 0; step < steps; step++) begin(step), prepare(step);
            return;
        }
        for (int step = 0; step < steps; step++) {
            begin(step);
            u64 a = describe_rows(rows + (step % KEPT * HELD + group_row) * STEP);
            u64 b = describe_rows(weights + (step & 1) * TILE_OUTPUTS * STEP);
            settle(sum);
            wide_begin();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) wide_multiply_add(sum, a + 2 * k, b + 2 * k);
            wide_commit();
            prepare(step);
            wide_wait<0>();
            settle(sum);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int at = group_row + (warp & 3) * 16 + (lane >> 2) + 8 * (k >> 1);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int o = first + 8 * j + 2 * (lane & 3) + (k & 1);
                if (at < ROWS && o < outputs) store(at, o, sum[4 * j + k] * Source<Q>::restore());
            }
        }
    }
};
#endif

// F32 weights and rows: 256 threads, each ROWS / 16 rows by 8 outputs. Both sides are kept transposed, so that a thread's rows and outputs are
// neighbours.
template <int ROWS, int DOWN> struct Product<F32, ROWS, DOWN> {
    enum { DEPTH = 32, EACH = ROWS / 16, ROW_PITCH = ROWS + 4, OUTPUT_PITCH = TILE_OUTPUTS + 4, LOADS = ROWS / 32 };

    static __device__ __forceinline__ float4 four(const float* from, int k, int cols, bool there, bool wide) {
        if (!there) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (wide) return *(const float4*)(from + k);
        return make_float4(from[k], k + 1 < cols ? from[k + 1] : 0.0f, k + 2 < cols ? from[k + 2] : 0.0f,
                           k + 3 < cols ? from[k + 3] : 0.0f);
    }

    template <class RowOf, class Store>
    static __device__ __forceinline__ void run(u8* shared, const float* x, int stride, RowOf row_of, const u8* weight, int outputs,
                                               int first, int cols, Store store) {
        float* rows = (float*)shared;                 // [DEPTH][ROW_PITCH]
        float* weights = rows + DEPTH * ROW_PITCH;    // [DEPTH][OUTPUT_PITCH]
        int thread = threadIdx.x, across = thread & 15, down = thread >> 4;
        int line = thread >> 3, k4 = (thread & 7) * 4;
        bool wide = (cols & 3) == 0;
        const float* row_from[LOADS];
        bool row_there[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int row = row_of(line + 32 * i);
            row_there[i] = row >= 0;
            row_from[i] = x + (u64)(row < 0 ? 0 : row) * stride;
        }
        const float* weight_from[4];
        bool weight_there[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int o = first + line + 32 * i;
            weight_there[i] = o < outputs;
            weight_from[i] = (const float*)weight + (u64)(o < outputs ? o : 0) * cols;
        }
        float sum[EACH][8];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum[i][j] = 0.0f;

        float4 next_rows[LOADS], next_weights[4];
        auto load = [&](int start) {
            int k = start + k4;
#pragma unroll
            for (int i = 0; i < LOADS; i++) next_rows[i] = four(row_from[i], k, cols, row_there[i] && k < cols, wide);
#pragma unroll
            for (int i = 0; i < 4; i++) next_weights[i] = four(weight_from[i], k, cols, weight_there[i] && k < cols, wide);
        };
        load(0);
        for (int start = 0; start < cols; start += DEPTH) {
            __syncthreads();
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                float* to = rows + k4 * ROW_PITCH + line + 32 * i;
                to[0] = next_rows[i].x, to[ROW_PITCH] = next_rows[i].y;
                to[2 * ROW_PITCH] = next_rows[i].z, to[3 * ROW_PITCH] = next_rows[i].w;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float* to = weights + k4 * OUTPUT_PITCH + line + 32 * i;
                to[0] = next_weights[i].x, to[OUTPUT_PITCH] = next_weights[i].y;
                to[2 * OUTPUT_PITCH] = next_weights[i].z, to[3 * OUTPUT_PITCH] = next_weights[i].w;
            }
            __syncthreads();
            if (start + DEPTH < cols) load(start + DEPTH);
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                float a[EACH], b[8];
#pragma unroll
                for (int i = 0; i < EACH; i += 2) {
                    float2 v = *(const float2*)(rows + d * ROW_PITCH + EACH * down + i);
                    a[i] = v.x, a[i + 1] = v.y;
                }
#pragma unroll
                for (int j = 0; j < 8; j += 4) {
                    float4 v = *(const float4*)(weights + d * OUTPUT_PITCH + 4 * across + 16 * j);
                    b[j] = v.x, b[j + 1] = v.y, b[j + 2] = v.z, b[j + 3] = v.w;
                }
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int o = first + 4 * across + (j & 3) + 16 * (j & 4);
                if (o < outputs) store(EACH * down + i, o, sum[i][j]);
            }
    }
};
