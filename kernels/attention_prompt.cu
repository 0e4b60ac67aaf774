// Attention of a prompt on the tensor cores of a warp. A warp takes 16 rows of one head; of heads of 256 two warps do, each for half of the
// values. A block walks the tiles of 64 cells in ascending order. Where four warps multiply together, attention_wide.cu takes its place for
// smaller heads.

#if !defined(HAS_WIDE_PRODUCTS) || HEAD_DIM > 128

#if __CUDA_ARCH__ >= 800 && HEAD_DIM <= 128
#define STAGES 2
#else
#define STAGES 1
#endif
#define VALUE_PARTS (HEAD_DIM > 128 ? 2 : 1)
#define VALUE_DIMS (HEAD_DIM / VALUE_PARTS)
#ifndef ATTENTION_THREADS
#define ATTENTION_THREADS 256
#endif
#define BLOCK_ROWS (ATTENTION_THREADS / 2 / VALUE_PARTS)

extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attend_prompt(const float* q, int rows, int first, PromptHeads of, Cells cells, int resume, float* state, float* out) {
    follow();
    DYNAMIC_SHARED(shared);
    u16* keys = (u16*)shared;                    // [STAGES][64][HEAD_DIM]
    u16* values = keys + STAGES * TILE_HALVES;   // the same
    u16* queries = values + STAGES * TILE_HALVES;  // [BLOCK_ROWS][HEAD_DIM], for heads of 256 only
    float* scales = (float*)(queries + (HEAD_DIM > 128 ? BLOCK_ROWS * HEAD_DIM : 0));  // [STAGES][2][64], for int8 only

    // The blocks with the most tiles start first.
    int block = gridDim.y - 1 - blockIdx.y;
    int head = blockIdx.x, kv_head = head / (of.heads / of.kv_heads);
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    int block_row = block * BLOCK_ROWS;
    int last_row = (block_row + BLOCK_ROWS < rows ? block_row + BLOCK_ROWS : rows) - 1;
    int end = cells_end(cells);
    int sees = first + last_row + 1 < end ? first + last_row + 1 : end;
    int first_tile = cells.span[0].first / ATTENTION_TILE;
    int tiles_end = (sees + ATTENTION_TILE - 1) / ATTENTION_TILE;

    // This thread's two rows of the warp's sixteen.
    int warp_row = warp / VALUE_PARTS * 16, first_dim = warp % VALUE_PARTS * VALUE_DIMS;
    int row[2] = {block_row + warp_row + (lane >> 2), block_row + warp_row + (lane >> 2) + 8};
    int seen[2];
#pragma unroll
    for (int r = 0; r < 2; r++) seen[r] = row[r] < rows ? (first + row[r] + 1 < end ? first + row[r] + 1 : end) : 0;

#if HEAD_DIM <= 128
    u32 query[HEAD_DIM / 16][4];
    load_queries(query, q, row, rows, of.heads, head);
#else
    for (int i = thread; i < BLOCK_ROWS * CHUNKS; i += ATTENTION_THREADS) {
        int r = i / CHUNKS, chunk = i % CHUNKS;
        u32 h[4] = {0, 0, 0, 0};
        if (block_row + r < rows) {
            const float* from = q + ((u64)(block_row + r) * of.heads + head) * HEAD_DIM + 8 * chunk;
#pragma unroll
            for (int k = 0; k < 4; k++) h[k] = half2_from(from[2 * k], from[2 * k + 1]);
        }
        *(uint4*)cell_chunk(queries, r, chunk) = make_uint4(h[0], h[1], h[2], h[3]);
    }
#endif

    int whole_rows = block_row + warp_row + 16 <= rows;
    int all_seen = whole_rows ? (first + block_row + warp_row + 1 < end ? first + block_row + warp_row + 1 : end) : 0;
    float unit = of.scale * LOG2_E;

    float largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, sum[2] = {0.0f, 0.0f};
    float value[VALUE_DIMS / 8][4];
    float* kept[2];
#pragma unroll
    for (int r = 0; r < 2; r++) kept[r] = state + ((u64)row[r] * of.heads + head) * (2 + HEAD_DIM);
#pragma unroll
    for (int j = 0; j < VALUE_DIMS / 8; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            value[j][k] = 0.0f;
            if (resume && row[k >> 1] < rows) value[j][k] = kept[k >> 1][2 + first_dim + 8 * j + 2 * (lane & 3) + (k & 1)] * (KV_KIND == 2 ? VALUE_SCALE : 1.0f);
        }
    if (resume) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row[r] < rows) largest[r] = kept[r][0], sum[r] = kept[r][1];
        }
    }

#if KV_KIND == 1
    auto fetch = [&](int tile) {
        int cell = tile * ATTENTION_TILE;
        const CellSpan& span = span_of(cells, cell);
        int count = span.first + span.count - cell;
        const u8* at = span.at + (u64)(cell - span.first) * cells.cell_bytes + kv_head * HEAD_DIM * 2;
        u16* k = keys + tile % STAGES * TILE_HALVES;
        u16* v = values + tile % STAGES * TILE_HALVES;
#pragma unroll
        for (int i = 0; i < ATTENTION_TILE * CHUNKS / ATTENTION_THREADS; i++) {
            int c = (thread + i * ATTENTION_THREADS) / CHUNKS, chunk = (thread + i * ATTENTION_THREADS) % CHUNKS;
            bool there = c < count;
            const u8* from = at + (u64)(there ? c : 0) * cells.cell_bytes + 16 * chunk;
            copy_async(cell_chunk(k, c, chunk), from, there);
            copy_async(cell_chunk(v, c, chunk), from + cells.value_offset, there);
        }
        copy_commit();
    };
#else
#define PIECES (HEAD_DIM / 16)
#define EACH (ATTENTION_TILE * PIECES / ATTENTION_THREADS)
    uint4 raw_key[EACH], raw_value[EACH];
    float raw_scale;
    auto fetch = [&](int tile) {
        int cell = tile * ATTENTION_TILE;
        const CellSpan& span = span_of(cells, cell);
        int count = span.first + span.count - cell;
        const u8* at = span.at + (u64)(cell - span.first) * cells.cell_bytes;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = (thread + i * ATTENTION_THREADS) / PIECES, piece = (thread + i * ATTENTION_THREADS) % PIECES;
            bool there = c < count;
            const u8* from = at + (u64)(there ? c : 0) * cells.cell_bytes + kv_head * HEAD_DIM + 16 * piece;
            raw_key[i] = there ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
            raw_value[i] = there ? *(const uint4*)(from + cells.value_offset) : make_uint4(0, 0, 0, 0);
        }
        raw_scale = 0.0f;
        if (thread < 128) {
            int c = thread & 63, is_value = thread >> 6;
            if (c < count) {
                raw_scale = ((const float*)(at + (u64)c * cells.cell_bytes + cells.scales_offset))[is_value * of.kv_heads + kv_head];
            }
        }
    };
    auto unpack = [&](int tile) {
        int stage = tile % STAGES;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = (thread + i * ATTENTION_THREADS) / PIECES, piece = (thread + i * ATTENTION_THREADS) % PIECES;
            codes_to_cell(raw_key[i], keys + stage * TILE_HALVES, c, piece);
            codes_to_cell(raw_value[i], values + stage * TILE_HALVES, c, piece);
        }
        if (thread < 128) scales[stage * 128 + thread] = raw_scale * (thread < 64 ? 1.0f : VALUE_SCALE);
    };
#endif

    if (first_tile < tiles_end) {
        fetch(first_tile);
#if KV_KIND == 2
        unpack(first_tile);
#endif
    }
    for (int tile = first_tile; tile < tiles_end; tile++) {
        bool more = tile + 1 < tiles_end;
#if KV_KIND == 1
        copy_wait<0>();
#endif
        __syncthreads();
        if (more && STAGES == 2) fetch(tile + 1);
        u16* k = keys + tile % STAGES * TILE_HALVES;
        u16* v = values + tile % STAGES * TILE_HALVES;

        float score[8][4];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[j][i] = 0.0f;
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
            u32 a[4];
#if HEAD_DIM <= 128
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = query[d][i];
#else
            load_tiles(a, cell_chunk(queries, warp_row + (lane & 15), 2 * d + (lane >> 4)));
#endif
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                u32 b[4];
                load_tiles(b, cell_chunk(k, 8 * j + (lane & 7) + (lane >> 4 << 3), 2 * d + (lane >> 3 & 1)));
                multiply_add(score[j], a, b[0], b[1]);
                multiply_add(score[j + 1], a, b[2], b[3]);
            }
        }

        // Powers are taken of scores in units of log2, in which the state keeps its largest, too.
        int cell = tile * ATTENTION_TILE + 2 * (lane & 3);
        float tile_largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY};
#if KV_KIND == 2
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[j][i] *= scales[tile % STAGES * 128 + 8 * j + 2 * (lane & 3) + (i & 1)];
#endif
        if ((tile + 1) * ATTENTION_TILE > all_seen) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (cell + 8 * j + (i & 1) >= seen[i >> 1]) score[j][i] = NEGATIVE_INFINITY;
                }
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) tile_largest[i >> 1] = fmaxf(tile_largest[i >> 1], score[j][i]);
        float shift[2], keep[2];
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
        // Most tiles leave all largest scores as they were: then nothing is rescaled.
        if (__ballot_sync(ALL_LANES, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
            for (int j = 0; j < VALUE_DIMS / 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) value[j][i] *= keep[i >> 1];
        }
        float tile_sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                score[j][i] = power_of_two(fmaf(score[j][i], unit, -shift[i >> 1]));
                tile_sum[i >> 1] += score[j][i];
#if KV_KIND == 2
                score[j][i] *= scales[tile % STAGES * 128 + 64 + 8 * j + 2 * (lane & 3) + (i & 1)];
#endif
            }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            tile_sum[r] += __shfl_xor_sync(ALL_LANES, tile_sum[r], 1);
            tile_sum[r] += __shfl_xor_sync(ALL_LANES, tile_sum[r], 2);
            sum[r] += tile_sum[r];
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            u32 a[4] = {half2_from(score[2 * c][0], score[2 * c][1]), half2_from(score[2 * c][2], score[2 * c][3]),
                        half2_from(score[2 * c + 1][0], score[2 * c + 1][1]), half2_from(score[2 * c + 1][2], score[2 * c + 1][3])};
#pragma unroll
            for (int j = 0; j < VALUE_DIMS / 8; j += 2) {
                u32 b[4];
                load_tiles_transposed(b, cell_chunk(v, 16 * c + (lane & 7) + (lane >> 3 & 1) * 8, first_dim / 8 + j + (lane >> 4)));
                multiply_add(value[j], a, b[0], b[1]);
                multiply_add(value[j + 1], a, b[2], b[3]);
            }
        }
        if (STAGES == 1) __syncthreads();
        if (STAGES == 1 && more) fetch(tile + 1);
#if KV_KIND == 2
        if (more) unpack(tile + 1);
#endif
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] >= rows) continue;
        float undo = KV_KIND == 2 ? 1.0f / VALUE_SCALE : 1.0f;
        if (!out && first_dim == 0 && (lane & 3) == 0) kept[r][0] = largest[r], kept[r][1] = sum[r];
#pragma unroll
        for (int j = 0; j < VALUE_DIMS / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int d = first_dim + 8 * j + 2 * (lane & 3) + i;
                float x = value[j][2 * r + i] * undo;
                if (out) out[((u64)row[r] * of.heads + head) * HEAD_DIM + d] = x / sum[r];
                else kept[r][2 + d] = x;
            }
    }
}
#endif
