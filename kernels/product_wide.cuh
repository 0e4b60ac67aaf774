// Products of a prompt where four warps multiply together (Hopper). A block takes ROWS rows by 128 outputs. Eight warps bring steps of 64
// inputs to shared memory: rows are copied as they are, weights are unpacked to f16. Eight warps multiply: two groups of four, each with every
// second 64 rows. The bringing warps are stages ahead, so that the tensor cores wait for neither copies nor unpacking.

#ifdef HAS_WIDE_PRODUCTS

#define BRINGERS 256
#define WIDE_PRODUCT_THREADS (BRINGERS + 256)
// Registers of a thread that brings, and of one that multiplies: on average the 128 that each begins with.
#define BRINGER_REGISTERS 88
#define MULTIPLIER_REGISTERS 168

// Where a format's rows are brought to shared memory as they are, CHUNK weights at a time: whole 16 bytes around them, so that every copy is
// aligned; the bytes then lie as far past 16 as they do in the weight. Formats of whole 16 bytes and two-byte floats are read where
// they are, two steps ahead. A weight's last chunk may reach past its end, by less than the arena's margin of 256 bytes.
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

// Shared memory: COUNT stages of [ROWS][STEP] rows and [TILE_OUTPUTS][STEP] weights, raw weights [2][TILE_OUTPUTS][PITCH], then two barriers a stage.
// There are as many stages as a processor's shared memory holds.
template <class Q, int ROWS> struct Stages {
    enum {
        COUNT = ROWS > 128 ? (Chunks<Q>::STAGED ? 3 : 4) : (Chunks<Q>::STAGED ? 5 : 6),
        WEIGHTS = ROWS * STEP * 2,
        BYTES = WEIGHTS + TILE_OUTPUTS * STEP * 2,
        RAWS = COUNT * BYTES,
        BARRIERS = RAWS + 2 * TILE_OUTPUTS * Chunks<Q>::PITCH,
    };
};

// The stage of a step, and the parity of the barrier phase that is waited for: both change as steps go by.
template <int COUNT> struct Turn {
    int stage;
    u32 parity;
    __device__ __forceinline__ void next() {
        if (++stage == COUNT) stage = 0, parity ^= 1;
    }
};

// The eight warps that bring steps.
template <class Q, int ROWS> struct StepBringer {
    typedef Chunks<Q> C;
    typedef Stages<Q, ROWS> S;
    typedef typename Source<Q>::Raw Raw;

    u64* full;
    u64* empty;
    const u16* x;
    const u8* own;  // the weight row that this thread unpacks
    int cols;
    int steps;
    int blocks;  // of 64 rows
    int thread;
    u32 from[ROWS / 32];

    __device__ __forceinline__ void copy_rows(int step, int stage) const {
        DYNAMIC_SHARED(shared);
        u16* to = swizzled((u16*)(shared + stage * S::BYTES), thread >> 3, thread & 7);
        const u16* at = x + step * STEP;
#pragma unroll
        for (int i = 0; i < ROWS / 32; i++) {
            if (i == 4 && blocks <= 2) break;
            copy_async(to + i * 32 * STEP, at + from[i]);
        }
    }

    __device__ __forceinline__ void copy_raw(int number) const {
        if (!C::STAGED || number * C::CHUNK >= cols) return;
        DYNAMIC_SHARED(shared);
        u8* to = shared + S::RAWS + ((number & 1) * TILE_OUTPUTS + (thread >> 1)) * C::PITCH;
        const u8* at = own + (u64)number * C::BYTES;
        at -= (u64)at & 15;
        // The two threads of a row take its pieces in turns.
#pragma unroll
        for (int i = 0; i < C::PIECES; i += 2) {
            int piece = i + (thread & 1);
            if (i + 1 < C::PIECES || piece < C::PIECES) copy_async(to + 16 * piece, at + 16 * piece);
        }
    }

    // The raw weights of this thread: half a step of one output.
    __device__ __forceinline__ Raw load(int step) const {
        int run = 2 * step + (thread & 1);
        if (!C::STAGED) return Source<Q>::load(own, run, cols);
        DYNAMIC_SHARED(shared);
        int number = step / C::STEPS, last = cols / 32 - 1;
        u32 at = S::RAWS + ((number & 1) * TILE_OUTPUTS + (thread >> 1)) * C::PITCH;
        at += (u32)(u64)(own + (u64)number * C::BYTES) & 15u;
        return Source<Q>::load(shared + at, (run < last ? run : last) - number * (C::CHUNK / 32), 1 << 30);
    }

    __device__ __forceinline__ void unpack(const Raw& raw, int step, int stage) const {
        DYNAMIC_SHARED(shared);
        u32 h[16];
        int mine = thread >> 1, side = thread & 1;
        Source<Q>::halves(raw, 2 * step + side, cols, h);
        // `swizzled`: chunks 4 side + i.
        u32 to = stage * S::BYTES + S::WEIGHTS + mine * STEP * 2 + ((4 * side ^ (mine & 7)) << 4);
#pragma unroll
        for (int i = 0; i < 4; i++) *(uint4*)(shared + (to ^ i << 4)) = make_uint4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]);
    }

    // What this warp wrote for a step is seen by products that start after its barrier. Publishing waits for all that is on its way to this
    // thread: nothing may have begun just before.
    __device__ __forceinline__ void publish(int stage) const {
        copy_wait<0>();
        publish_shared();
        __syncwarp();
        if ((thread & 31) == 0) barrier_arrive(full + stage);
    }

    // One step. Its rows are on their way until the next one. Of weights that are read where they are, `raw` holds this step's and gets those of the
    // step after the next.
    __device__ __forceinline__ void bring(int step, Turn<S::COUNT>& turn, int& before, Raw& raw) const {
        barrier_wait(empty + turn.stage, turn.parity);
        if (C::STAGED && step % C::STEPS == 0) {
            // This chunk has arrived, and the one before has been unpacked by all.
            copy_wait<0>();
            meet();
        }
        if (C::STAGED) raw = load(step);
        unpack(raw, step, turn.stage);
        if (step > 0) publish(before);
        copy_rows(step, turn.stage);
        if (C::STAGED && step % C::STEPS == 0) copy_raw(step / C::STEPS + 1);
        copy_commit();
        if (!C::STAGED && step + 2 < steps) raw = load(step + 2);
        before = turn.stage;
        turn.next();
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
        // A new barrier's phase before the first counts as ended.
        Turn<S::COUNT> turn = {0, 1};
        int before = 0;
        for (int step = 0; step < steps; step += 2) {
            bring(step, turn, before, even);
            if (step + 1 < steps) bring(step + 1, turn, before, odd);
        }
        publish(before);
    }
};

// Four warps' sums of HIGH times 64 rows, 128 apart, from row `row` of the tile on.
template <class Q, int ROWS, int HIGH, class ToTarget>
__device__ __forceinline__ void multiply_steps(u64* full, u64* empty, int steps, int row, int count, int outputs, int first, ToTarget target) {
    typedef Stages<Q, ROWS> S;
    DYNAMIC_SHARED(shared);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    float sum[HIGH][64];
#pragma unroll
    for (int h = 0; h < HIGH; h++)
#pragma unroll
        for (int i = 0; i < 64; i++) sum[h][i] = 0.0f;
#pragma unroll
    for (int h = 0; h < HIGH; h++) settle(sum[h]);
    Turn<S::COUNT> turn = {0, 0};
    int before = 0;
    for (int step = 0; step < steps; step++) {
        barrier_wait(full + turn.stage, turn.parity);
        const u8* stage = shared + turn.stage * S::BYTES;
        wide_begin();
#pragma unroll
        for (int h = 0; h < HIGH; h++) {
            u64 a = describe_rows(stage + (row + 128 * h) * STEP * 2), b = describe_rows(stage + S::WEIGHTS);
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) wide_multiply_add(sum[h], a + 2 * k, b + 2 * k);
        }
        wide_commit();
        // The step before has been read.
        if (step > 0) {
            wide_wait<1>();
            if (lane == 0) barrier_arrive(empty + before);
        }
        before = turn.stage;
        turn.next();
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

template <class Q, int ROWS> struct Product {
    typedef Stages<Q, ROWS> S;

    template <class RowOf, class ToTarget>
    static __device__ __forceinline__ void run(u8* shared, const u16* x, int stride, int count, RowOf row_of, const u8* weight,
                                               int outputs, int first, int cols, ToTarget target) {
        u64* full = (u64*)(shared + S::BARRIERS);  // [COUNT]
        u64* empty = full + S::COUNT;              // the same
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
            int output = first + (thread >> 1);
            const u8* own = weight + (output < outputs ? output : outputs - 1) * row_bytes<Q>(cols);
            StepBringer<Q, ROWS> bringer = {full, empty, x, own, cols, steps, blocks, thread};
#pragma unroll
            for (int i = 0; i < ROWS / 32; i++) {
                // Rows that are not there are the last one again: nobody looks at their sums.
                int at = (thread >> 3) + 32 * i;
                bringer.from[i] = (u32)row_of(at < count ? at : count - 1) * (u32)stride + 8 * (thread & 7);
            }
            bringer.run();
        } else {
            take_registers<MULTIPLIER_REGISTERS>();
            int group = (thread - BRINGERS) / 128;
            if (ROWS > 128 && group + 2 < blocks) {
                multiply_steps<Q, ROWS, (ROWS > 128 ? 2 : 1)>(full, empty, steps, 64 * group, count, outputs, first, target);
            } else if (group < blocks) {
                multiply_steps<Q, ROWS, 1>(full, empty, steps, 64 * group, count, outputs, first, target);
            }
        }
    }
};
#endif
