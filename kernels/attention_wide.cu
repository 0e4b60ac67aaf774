// Attention of a prompt where four warps multiply together (Hopper), for heads of 64 and 128. A block takes two times 64 rows of one head.
// Four warps bring tiles of 64 cells to shared memory as f16; two readers of four warps take 64 rows each through the tiles, in ascending
// order: while a tile's values are summed, the next tile's scores are computed and weighed. The readers take turns to start products, so
// that one multiplies while the other weighs.

#if defined(HAS_WIDE_PRODUCTS) && HEAD_DIM <= 128

#define READERS 2
#define STAGES 4
#define WIDE_THREADS ((READERS + 1) * 128)
#define READER_ROWS 64
#define BLOCK_ROWS (READERS * READER_ROWS)
// Threads of a warp that arrive at a stage's barriers: a lane for its warp, or, where threads read what others wrote beside the products (the
// scales), each for itself.
#define ARRIVING (KV_KIND == 2 ? 32 : 1)
// Registers of a thread that reads, and of one that brings.
#define READER_REGISTERS 208
#define BRINGER_REGISTERS 88

// Eight halves of a cell in a tile made of blocks of 64 columns, each 64 rows long, as the products want it.
__device__ __forceinline__ u16* wide_chunk(u16* tile, int cell, int chunk) {
    return tile + (chunk >> 3) * (ATTENTION_TILE * 64) + cell * 64 + (((chunk ^ cell) & 7) << 3);
}

// The four warps that bring tiles.
struct Bringer {
    const Cells& cells;
    u16* keys;
    u16* values;
    float* scales;
    u64* full;
    u64* empty;
    int kv_head;
    int kv_heads;
    int thread;

    // A stage's earlier tile has been read by all.
    __device__ __forceinline__ void wait_empty(int n) const {
        if (n >= STAGES) barrier_wait(empty + n % STAGES, (n / STAGES - 1) & 1);
    }

    // What this warp wrote into a stage is seen by products that start after its barrier.
    __device__ __forceinline__ void publish(int n) const {
        publish_shared();
        __syncwarp();
        if ((thread & 31) < ARRIVING) barrier_arrive(full + n % STAGES);
    }

#if KV_KIND == 1
    __device__ __forceinline__ void bring(int first_tile, int tiles) const {
        const int behind = 2;
        for (int n = 0; n < tiles; n++) {
            wait_empty(n);
            int cell = (first_tile + n) * ATTENTION_TILE;
            const CellSpan& span = span_of(cells, cell);
            int count = span.first + span.count - cell;
            const u8* at = span.at + (u64)(cell - span.first) * cells.cell_bytes + kv_head * HEAD_DIM * 2;
            u16* k = keys + n % STAGES * TILE_HALVES;
            u16* v = values + n % STAGES * TILE_HALVES;
#pragma unroll 4
            for (int i = 0; i < ATTENTION_TILE * CHUNKS / 128; i++) {
                int c = (thread + i * 128) / CHUNKS, chunk = (thread + i * 128) % CHUNKS;
                bool there = c < count;
                const u8* from = at + (u64)(there ? c : 0) * cells.cell_bytes + 16 * chunk;
                copy_async(wide_chunk(k, c, chunk), from, there);
                copy_async(wide_chunk(v, c, chunk), from + cells.value_offset, there);
            }
            copy_commit();
            if (n >= behind) {
                copy_wait<behind>();
                publish(n - behind);
            }
        }
        copy_wait<0>();
        for (int n = tiles > behind ? tiles - behind : 0; n < tiles; n++) publish(n);
    }
#else
    // Sixteen codes each: of eight neighbouring threads four take a cell and four the next, so that they write to different banks.
    static const int each = ATTENTION_TILE * HEAD_DIM / 16 / 128;

    __device__ __forceinline__ int cell_of(int i) const {
        int n = thread + i * 128;
        return HEAD_DIM == 128 ? (n >> 2 & 1) | n >> 4 << 1 : n >> 2;
    }

    __device__ __forceinline__ int piece_of(int i) const {
        int n = thread + i * 128;
        return HEAD_DIM == 128 ? (n & 3) | (n >> 3 & 1) << 2 : n & 3;
    }

    __device__ __forceinline__ void bring(int first_tile, int tiles) const {
        uint4 key[each], value[each];
        float scale = 0.0f;
        const u8* at = 0;
        int count = 0;
        auto find = [&](int n) {
            int cell = (first_tile + n) * ATTENTION_TILE;
            const CellSpan& span = span_of(cells, cell);
            count = span.first + span.count - cell;
            at = span.at + (u64)(cell - span.first) * cells.cell_bytes;
        };
        auto load = [&](int i) {
            int c = cell_of(i);
            bool there = c < count;
            const u8* from = at + (u64)(there ? c : 0) * cells.cell_bytes + kv_head * HEAD_DIM + 16 * piece_of(i);
            key[i] = there ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
            value[i] = there ? *(const uint4*)(from + cells.value_offset) : make_uint4(0, 0, 0, 0);
        };
        auto load_scale = [&]() {
            int c = thread & 63, is_value = thread >> 6;
            scale = 0.0f;
            if (c < count) scale = ((const float*)(at + (u64)c * cells.cell_bytes + cells.scales_offset))[is_value * kv_heads + kv_head];
        };
        if (tiles > 0) {
            find(0);
#pragma unroll
            for (int i = 0; i < each; i++) load(i);
            load_scale();
        }
        for (int n = 0; n < tiles; n++) {
            wait_empty(n);
            u16* k = keys + n % STAGES * TILE_HALVES;
            u16* v = values + n % STAGES * TILE_HALVES;
            scales[n % STAGES * 128 + thread] = scale * (thread < 64 ? 1.0f : VALUE_SCALE);
            bool more = n + 1 < tiles;
            if (more) {
                find(n + 1);
                load_scale();
            }
#pragma unroll
            for (int i = 0; i < each; i++) {
                int c = cell_of(i), chunk = 2 * piece_of(i);
                codes_to_halves(key[i], wide_chunk(k, c, chunk), wide_chunk(k, c, chunk + 1));
                codes_to_halves(value[i], wide_chunk(v, c, chunk), wide_chunk(v, c, chunk + 1));
                if (more) load(i);
            }
            publish(n);
        }
    }
#endif
};

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1)
    attend_prompt(const float* q, int rows, int first, PromptHeads of, const __grid_constant__ Cells cells, int resume, float* state, float* out) {
    follow();
    DYNAMIC_SHARED(shared);
    u16* keys = (u16*)shared;                               // [STAGES][64][HEAD_DIM]
    u16* values = keys + STAGES * TILE_HALVES;              // the same
    float* scales = (float*)(values + STAGES * TILE_HALVES);  // [STAGES][2][64], used for int8 only
    u64* full = (u64*)(scales + STAGES * 128);              // [STAGES]
    u64* empty = full + STAGES;                             // the same

    // The blocks with the most tiles start first.
    int block = gridDim.y - 1 - blockIdx.y;
    int head = blockIdx.x, kv_head = head / (of.heads / of.kv_heads);
    int thread = threadIdx.x, lane = thread & 31;
    int block_row = block * BLOCK_ROWS;
    int last_row = (block_row + BLOCK_ROWS < rows ? block_row + BLOCK_ROWS : rows) - 1;
    int end = cells_end(cells);
    int sees = first + last_row + 1 < end ? first + last_row + 1 : end;
    int first_tile = cells.span[0].first / ATTENTION_TILE;
    int tiles = (sees + ATTENTION_TILE - 1) / ATTENTION_TILE - first_tile;
    if (tiles < 0) tiles = 0;

    if (thread < STAGES) {
        barrier_begin(full + thread, 4 * ARRIVING);
        barrier_begin(empty + thread, READERS * 4 * ARRIVING);
    }
    __syncthreads();

    if (thread < 128) {
        keep_registers<BRINGER_REGISTERS>();
        Bringer bringer = {cells, keys, values, scales, full, empty, kv_head, of.kv_heads, thread};
        bringer.bring(first_tile, tiles);
    } else {
        take_registers<READER_REGISTERS>();
        int reader = thread / 128 - 1;
        int first_row = block_row + reader * READER_ROWS, warp_row = first_row + (thread >> 5 & 3) * 16;
        // This thread's two rows of the warp's sixteen.
        int row[2] = {warp_row + (lane >> 2), warp_row + (lane >> 2) + 8};
        int seen[2];
#pragma unroll
        for (int r = 0; r < 2; r++) seen[r] = row[r] < rows ? (first + row[r] + 1 < end ? first + row[r] + 1 : end) : 0;
        int all_seen = warp_row + 16 <= rows ? (first + warp_row + 1 < end ? first + warp_row + 1 : end) : 0;
        // The tiles that any of the 64 rows sees.
        int own_last = (first_row + READER_ROWS < rows ? first_row + READER_ROWS : rows) - 1;
        int own_sees = first + own_last + 1 < end ? first + own_last + 1 : end;
        int own = first_row < rows ? (own_sees + ATTENTION_TILE - 1) / ATTENTION_TILE - first_tile : 0;
        if (own < 0) own = 0;
        float unit = of.scale * LOG2_E;

        u32 query[HEAD_DIM / 16][4];
        load_queries(query, q, row, rows, of.heads, head);

        float largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, sum[2] = {0.0f, 0.0f};
        float value[HEAD_DIM / 2], score[32];
        u32 chance[4][4];
        float keep[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float* kept = state + ((u64)row[r] * of.heads + head) * (2 + HEAD_DIM);
            bool there = resume && row[r] < rows;
            if (there) largest[r] = kept[0], sum[r] = kept[1];
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    value[4 * j + 2 * r + i] = there ? kept[2 + 8 * j + 2 * (lane & 3) + i] * (KV_KIND == 2 ? VALUE_SCALE : 1.0f) : 0.0f;
        }

        // Starts the scores of the n-th tile.
        auto start_scores = [&](int n) {
            const u16* k = keys + n % STAGES * TILE_HALVES;
            barrier_wait(full + n % STAGES, n / STAGES & 1);
            settle(score);
            wide_begin();
#pragma unroll
            for (int d = 0; d < HEAD_DIM / 16; d++) {
                wide_scores(score, query[d], describe_rows(k + (d >> 2) * (ATTENTION_TILE * 64)) + 2 * (d & 3), d > 0);
            }
            wide_commit();
        };
        // Starts to add the n-th tile's values.
        auto start_values = [&](int n) {
            u64 v = describe_columns(values + n % STAGES * TILE_HALVES);
            settle(value);
#pragma unroll
            for (int c = 0; c < 4; c++) settle(chance[c]);
            wide_begin();
#pragma unroll
            for (int c = 0; c < 4; c++) wide_values(value, chance[c], v + 128 * c);
            wide_commit();
        };
        // Makes the n-th tile's scores to probabilities. Powers are taken of scores in units of log2, in which the state keeps its largest, too.
        auto weigh = [&](int n) {
            settle(score);
            int cell = (first_tile + n) * ATTENTION_TILE + 2 * (lane & 3);
#if KV_KIND == 2
            const float* key_scales = scales + n % STAGES * 128 + 2 * (lane & 3);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float2 s = *(const float2*)(key_scales + 8 * j);
                score[4 * j] *= s.x, score[4 * j + 1] *= s.y, score[4 * j + 2] *= s.x, score[4 * j + 3] *= s.y;
            }
#endif
            if ((first_tile + n + 1) * ATTENTION_TILE > all_seen) {
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (cell + 8 * j + (i & 1) >= seen[i >> 1]) score[4 * j + i] = NEGATIVE_INFINITY;
                    }
            }
            float tile_largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, tile_sum[2] = {0.0f, 0.0f}, shift[2];
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) tile_largest[i >> 1] = fmaxf(tile_largest[i >> 1], score[4 * j + i]);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                tile_largest[r] = fmaxf(tile_largest[r], __shfl_xor_sync(ALL_LANES, tile_largest[r], 1));
                tile_largest[r] = fmaxf(tile_largest[r], __shfl_xor_sync(ALL_LANES, tile_largest[r], 2));
                float both = fmaxf(largest[r], tile_largest[r] * unit);
                shift[r] = both == NEGATIVE_INFINITY ? 0.0f : both;
                keep[r] = both == NEGATIVE_INFINITY ? 1.0f : power_of_two(largest[r] - both);
                largest[r] = both;
                sum[r] *= keep[r];
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    score[4 * j + i] = power_of_two(fmaf(score[4 * j + i], unit, -shift[i >> 1]));
                    tile_sum[i >> 1] += score[4 * j + i];
                }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                tile_sum[r] += __shfl_xor_sync(ALL_LANES, tile_sum[r], 1);
                tile_sum[r] += __shfl_xor_sync(ALL_LANES, tile_sum[r], 2);
                sum[r] += tile_sum[r];
            }
#if KV_KIND == 2
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float2 s = *(const float2*)(key_scales + 64 + 8 * j);
                score[4 * j] *= s.x, score[4 * j + 1] *= s.y, score[4 * j + 2] *= s.x, score[4 * j + 3] *= s.y;
            }
#endif
        };
        // The values so far in units of the new largest scores (most tiles leave those as they were), and the probabilities as the next factor.
        auto carry = [&]() {
            settle(value);
            if (__ballot_sync(ALL_LANES, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
                for (int j = 0; j < HEAD_DIM / 2; j++) value[j] *= keep[j >> 1 & 1];
            }
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int i = 0; i < 4; i++) chance[c][i] = half2_from(score[8 * c + 2 * i], score[8 * c + 2 * i + 1]);
        };
        // This warp has read the n-th tile.
        auto release = [&](int n) {
            __syncwarp();
            if (lane < ARRIVING) barrier_arrive(empty + n % STAGES);
        };

        // Turn n of each reader, for the tiles from the second on; the first reader begins.
        auto wait_turn = [&](int n) {
            if (reader == 1 || n > 1) turn_wait(1 + reader);
        };
        auto give_turn = [&](int n) {
            if (reader == 0 || n + 1 < tiles) turn_give(2 - reader);
        };

        if (own > 0) {
            start_scores(0);
            wide_wait<0>();
            weigh(0);
            carry();
            for (int n = 1; n < own; n++) {
                wait_turn(n);
                start_scores(n);
                start_values(n - 1);
                give_turn(n);
                wide_wait<1>();
                weigh(n);
                wide_wait<0>();
                carry();
                release(n - 1);
            }
            start_values(own - 1);
            wide_wait<0>();
            settle(value);
            release(own - 1);
        }
        for (int n = own; n < tiles; n++) {
            if (n > 0) {
                wait_turn(n);
                give_turn(n);
            }
            barrier_wait(full + n % STAGES, n / STAGES & 1);
            release(n);
        }

#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row[r] >= rows) continue;
            float undo = KV_KIND == 2 ? 1.0f / VALUE_SCALE : 1.0f;
            float* kept = state + ((u64)row[r] * of.heads + head) * (2 + HEAD_DIM);
            float* to = out ? out + ((u64)row[r] * of.heads + head) * HEAD_DIM : kept + 2;
            if (!out && (lane & 3) == 0) kept[0] = largest[r], kept[1] = sum[r];
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float x = value[4 * j + 2 * r + i] * undo;
                    to[8 * j + 2 * (lane & 3) + i] = out ? x / sum[r] : x;
                }
        }
    }
}
#endif
