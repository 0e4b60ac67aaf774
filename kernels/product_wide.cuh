// Products of a prompt where four warps multiply together (Hopper). A block takes ROWS rows by 128 outputs. Eight warps bring steps of 64
// inputs to shared memory: rows are copied as they are, weights are unpacked to f16. Eight warps multiply: two groups of four, each with every
// second 64 rows. The bringing warps are stages ahead, so that the tensor cores wait for neither copies nor unpacking.

#ifdef HAS_WIDE_PRODUCTS

#define BRINGERS 256
#define WIDE_PRODUCT_THREADS (BRINGERS + 256)
// Registers of a thread that brings, and of one that multiplies.
#define BRINGER_REGISTERS 88
#define MULTIPLIER_REGISTERS 168

// Where a format's rows are brought to shared memory as they are, CHUNK weights at a time: whole 16 bytes around them, so that every copy is
// aligned; the bytes then lie as far past 16 as they do in the weight. Formats of whole 16 bytes and two-byte floats are read where
// they are, two steps ahead.
template <class Q> struct Chunks {
    enum {
        STAGED = Q::BYTES % 16 != 0,
        CHUNK = Q::BLOCK == 32 ? 128 : 256,
        BYTES = CHUNK / Q::BLOCK * Q::BYTES,
        PIECES = (BYTES + 30) / 16,
        // An odd number of pieces, so that rows begin in different banks.
        PITCH = STAGED ? (PIECES | 1) * 16 : 0,
        STEPS = CHUNK / STEP,
    };
};
struct NoChunks { enum { STAGED = 0, CHUNK = STEP, BYTES = 0, PIECES = 0, PITCH = 0, STEPS = 1 }; };
template <> struct Chunks<F16> : NoChunks {};
template <> struct Chunks<BF16> : NoChunks {};

// Stages of a tile: as many as a processor's shared memory holds beside raw weights.
template <class Q, int ROWS> struct Stages {
    enum {
        COUNT = ROWS > 128 ? (Chunks<Q>::STAGED ? 3 : 4) : (Chunks<Q>::STAGED ? 5 : 6),
        HALVES = (ROWS + TILE_OUTPUTS) * STEP,
    };
};

// The eight warps that bring steps.
template <class Q, int ROWS> struct StepBringer {
    typedef Chunks<Q> C;
    typedef Stages<Q, ROWS> S;
    typedef typename Source<Q>::Raw Raw;

    u16* stages;
    u8* raws;
    u64* full;
    u64* empty;
    const u16* x;
    const u8* weight;
    u64 bytes;      // of a weight row
    int outputs;
    int first;
    int cols;
    int steps;
    int blocks;     // of 64 rows
    int thread;
    u32 there;      // bit i: there is row thread / 8 + 32 i
    u32 from[ROWS / 32];

    __device__ __forceinline__ u16* rows(int step) const { return stages + step % S::COUNT * S::HALVES; }

    __device__ __forceinline__ void copy_rows(int step) const {
        u16* to = rows(step);
#pragma unroll
        for (int i = 0; i < ROWS / 32; i++) {
            if (i < 2 * blocks) copy_async(swizzled(to, (thread >> 3) + 32 * i, thread & 7), x + from[i] + step * STEP, there >> i & 1);
        }
    }

    __device__ __forceinline__ void copy_raw(int number) const {
        if (!C::STAGED || number * C::CHUNK >= cols) return;
        u8* stage = raws + (number & 1) * TILE_OUTPUTS * C::PITCH;
        for (int i = thread; i < TILE_OUTPUTS * C::PIECES; i += BRINGERS) {
            int o = i / C::PIECES, piece = i - o * C::PIECES;
            int output = first + o < outputs ? first + o : outputs - 1;
            const u8* at = weight + output * bytes + (u64)number * C::BYTES;
            copy_async(stage + o * C::PITCH + 16 * piece, (const u8*)((u64)at & ~15ull) + 16 * piece, true);
        }
    }

    // The raw weights of this thread: half a step of one output.
    __device__ __forceinline__ Raw load(int step) const {
        int mine = thread >> 1, run = 2 * step + (thread & 1);
        const u8* row = weight + (first + mine < outputs ? first + mine : outputs - 1) * bytes;
        if (!C::STAGED) return Source<Q>::load(row, run, cols);
        int number = step / C::STEPS, last = cols / 32 - 1;
        const u8* at = raws + (number & 1) * TILE_OUTPUTS * C::PITCH + mine * C::PITCH;
        at += (u32)(u64)(row + (u64)number * C::BYTES) & 15u;
        return Source<Q>::load(at, (run < last ? run : last) - number * (C::CHUNK / 32), 1 << 30);
    }

    __device__ __forceinline__ void unpack(const Raw& raw, int step) const {
        u32 h[16];
        Source<Q>::halves(raw, 2 * step + (thread & 1), cols, h);
        u16* to = rows(step) + ROWS * STEP;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            *(uint4*)swizzled(to, thread >> 1, 4 * (thread & 1) + i) = make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
        }
    }

    // What this warp wrote for a step is seen by products that start after its barrier. Publishing waits for all that is on its way to this
    // thread: nothing may have begun just before.
    __device__ __forceinline__ void publish(int step) const {
        copy_wait<0>();
        publish_shared();
        __syncwarp();
        if ((thread & 31) == 0) barrier_arrive(full + step % S::COUNT);
    }

    // One step; `raw` holds its weights, and gets those of the step after the next. Its rows are on their way until the step after it.
    __device__ __forceinline__ void bring(int step, Raw& raw) const {
        if (step >= S::COUNT) barrier_wait(empty + step % S::COUNT, (step / S::COUNT - 1) & 1);
        if (C::STAGED && step % C::STEPS == 0) {
            // This chunk has arrived, and the one before has been unpacked by all.
            copy_wait<0>();
            meet();
        }
        unpack(C::STAGED ? load(step) : raw, step);
        if (step > 0) publish(step - 1);
        copy_rows(step);
        if (C::STAGED && step % C::STEPS == 0) copy_raw(step / C::STEPS + 1);
        copy_commit();
        if (!C::STAGED && step + 2 < steps) raw = load(step + 2);
    }

    __device__ __forceinline__ void run() const {
        Raw even, odd;
        if (C::STAGED) {
            copy_raw(0);
            copy_commit();
        } else {
            even = load(0);
            if (steps > 1) odd = load(1);
        }
        for (int step = 0; step < steps; step += 2) {
            bring(step, even);
            if (step + 1 < steps) bring(step + 1, odd);
        }
        publish(steps - 1);
    }
};

// Four warps' sums of HIGH times 64 rows, 128 apart, from row `row` of the tile on.
template <class Q, int ROWS, int HIGH, class ToTarget>
__device__ __forceinline__ void multiply_steps(u16* stages, u64* full, u64* empty, int steps, int row, int count, int outputs, int first,
                                               ToTarget target) {
    typedef Stages<Q, ROWS> S;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    float sum[HIGH][64];
#pragma unroll
    for (int h = 0; h < HIGH; h++)
#pragma unroll
        for (int i = 0; i < 64; i++) sum[h][i] = 0.0f;
#pragma unroll
    for (int h = 0; h < HIGH; h++) settle(sum[h]);
    for (int step = 0; step < steps; step++) {
        int stage = step % S::COUNT;
        barrier_wait(full + stage, step / S::COUNT & 1);
        const u16* rows = stages + stage * S::HALVES;
        wide_begin();
#pragma unroll
        for (int h = 0; h < HIGH; h++) {
            u64 a = describe_rows(rows + (row + 128 * h) * STEP), b = describe_rows(rows + ROWS * STEP);
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) wide_multiply_add(sum[h], a + 2 * k, b + 2 * k);
        }
        wide_commit();
        // The step before has been read.
        if (step > 0) {
            wide_wait<1>();
            if (lane == 0) barrier_arrive(empty + (step - 1) % S::COUNT);
        }
    }
    wide_wait<0>();
#pragma unroll
    for (int h = 0; h < HIGH; h++) settle(sum[h]);
#pragma unroll
    for (int h = 0; h < HIGH; h++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int at = row + 128 * h + warp * 16 + (lane >> 2) + 8 * k;
            if (at >= count) continue;
            Target to = target(at);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                float a = sum[h][4 * j + 2 * k] * Source<Q>::restore(), b = sum[h][4 * j + 2 * k + 1] * Source<Q>::restore();
                to.put_pair(first + 8 * j + 2 * (lane & 3), outputs, a, b);
            }
        }
}

template <class Q, int ROWS, int DOWN> struct Product {
    typedef Chunks<Q> C;
    typedef Stages<Q, ROWS> S;

    template <class RowOf, class ToTarget>
    static __device__ __forceinline__ void run(u8* shared, const u16* x, int stride, int count, RowOf row_of, const u8* weight,
                                               int outputs, int first, int cols, ToTarget target) {
        u16* stages = (u16*)shared;                              // [COUNT]: rows [ROWS][STEP], weights [TILE_OUTPUTS][STEP]
        u8* raws = (u8*)(stages + S::COUNT * S::HALVES);         // [2][TILE_OUTPUTS][PITCH]
        u64* full = (u64*)(raws + 2 * TILE_OUTPUTS * C::PITCH);  // [COUNT]
        u64* empty = full + S::COUNT;                            // the same
        int thread = threadIdx.x, steps = stride / STEP;
        if (count > ROWS) count = ROWS;
        int blocks = (count + 63) / 64;
        if (thread < S::COUNT) {
            barrier_begin(full + thread, BRINGERS / 32);
            barrier_begin(empty + thread, blocks > 1 ? 8 : 4);
        }
        __syncthreads();

        if (thread < BRINGERS) {
            keep_registers<BRINGER_REGISTERS>();
            StepBringer<Q, ROWS> bringer = {stages, raws, full, empty, x, weight, row_bytes<Q>(cols), outputs, first, cols, steps, blocks, thread};
#pragma unroll
            for (int i = 0; i < ROWS / 32; i++) {
                int at = (thread >> 3) + 32 * i;
                bringer.there |= (u32)(at < count) << i;
                bringer.from[i] = (u32)(at < count ? row_of(at) : 0) * (u32)stride + 8 * (thread & 7);
            }
            bringer.run();
        } else {
            take_registers<MULTIPLIER_REGISTERS>();
            int group = (thread - BRINGERS) / 128;
            if (ROWS > 128 && group + 2 < blocks) {
                multiply_steps<Q, ROWS, (ROWS > 128 ? 2 : 1)>(stages, full, empty, steps, 64 * group, count, outputs, first, target);
            } else if (group < blocks) {
                multiply_steps<Q, ROWS, 1>(stages, full, empty, steps, 64 * group, count, outputs, first, target);
            }
        }
    }
};
#endif
