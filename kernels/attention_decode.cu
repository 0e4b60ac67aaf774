// Attention of decode on tensor cores, for one head size and cell type (as in attention_tile.cuh). A block
// computes one tile of 64 cells for up to 16 heads that read the same key head, as `attend_tiles` does.

#define DECODE_HEADS 16
#define DECODE_THREADS 128

__device__ __forceinline__ u16* chance_chunk(u16* tile, int head, int chunk) {
    return tile + head * ATTENTION_TILE + ((chunk ^ (head & 7)) << 3);
}

extern "C" __global__ void __launch_bounds__(DECODE_THREADS)
    decode_tiles(const float* q, PromptHeads of, Cells cells, int first, int first_tile, int tiles, float* results) {
    follow();
    DYNAMIC_SHARED(shared);
    u16* keys = (u16*)shared;                             // [64][HEAD_DIM]
    u16* values = keys + TILE_HALVES;                     // the same
    u16* queries = values + TILE_HALVES;                  // [16][HEAD_DIM]
    u16* chances = queries + DECODE_HEADS * HEAD_DIM;     // [16][64]
    float* scores = (float*)(chances + DECODE_HEADS * ATTENTION_TILE);  // [16][68]
    float* scales = scores + DECODE_HEADS * 68;           // [2][64], for int8 only

    int group = of.heads / of.kv_heads, parts = (group + DECODE_HEADS - 1) / DECODE_HEADS;
    int kv_head = blockIdx.y / parts, from = blockIdx.y % parts * DECODE_HEADS;
    int heads = group - from < DECODE_HEADS ? group - from : DECODE_HEADS;
    int head = kv_head * group + from, tile = first_tile + blockIdx.x;
    u64 row = blockIdx.z;
    int sees = first + (int)row + 1, end = cells_end(cells);
    if (sees > end) sees = end;
    int cell = tile * ATTENTION_TILE;
    if (cell >= sees) return;
    const CellSpan& span = span_of(cells, cell);
    int count = span.first + span.count - cell;
    if (count > sees - cell) count = sees - cell;
    if (count > ATTENTION_TILE) count = ATTENTION_TILE;
    const u8* at = span.at + (u64)(cell - span.first) * cells.cell_bytes;
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;

#if KV_KIND == 1
#pragma unroll 4
    for (int i = thread; i < ATTENTION_TILE * CHUNKS; i += DECODE_THREADS) {
        int c = i / CHUNKS, chunk = i % CHUNKS;
        bool there = c < count;
        const u8* cell_at = at + (u64)(there ? c : 0) * cells.cell_bytes + kv_head * HEAD_DIM * 2 + 16 * chunk;
        copy_async(cell_chunk(keys, c, chunk), cell_at, there);
        copy_async(cell_chunk(values, c, chunk), cell_at + cells.value_offset, there);
    }
    copy_commit();
#else
#pragma unroll 4
    for (int i = thread; i < ATTENTION_TILE * (HEAD_DIM / 16); i += DECODE_THREADS) {
        int c = i / (HEAD_DIM / 16), piece = i % (HEAD_DIM / 16);
        bool there = c < count;
        const u8* cell_at = at + (u64)(there ? c : 0) * cells.cell_bytes + kv_head * HEAD_DIM + 16 * piece;
        codes_to_cell(there ? *(const uint4*)cell_at : make_uint4(0, 0, 0, 0), keys, c, piece);
        codes_to_cell(there ? *(const uint4*)(cell_at + cells.value_offset) : make_uint4(0, 0, 0, 0), values, c, piece);
    }
    {
        int c = thread & 63, is_value = thread >> 6;
        float scale = 0.0f;
        if (c < count) scale = ((const float*)(at + (u64)c * cells.cell_bytes + cells.scales_offset))[is_value * of.kv_heads + kv_head];
        scales[thread] = scale * (is_value ? VALUE_SCALE : 1.0f);
    }
#endif
    for (int i = thread; i < DECODE_HEADS * CHUNKS; i += DECODE_THREADS) {
        int h = i / CHUNKS, chunk = i % CHUNKS;
        u32 two[4] = {0, 0, 0, 0};
        if (h < heads) {
            const float* of_head = q + (row * of.heads + head + h) * HEAD_DIM + 8 * chunk;
#pragma unroll
            for (int k = 0; k < 4; k++) two[k] = half2_from(of_head[2 * k], of_head[2 * k + 1]);
        }
        *(uint4*)cell_chunk(queries, h, chunk) = make_uint4(two[0], two[1], two[2], two[3]);
    }
    copy_wait<0>();
    __syncthreads();

    // Each warp scores 16 cells.
    float score[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll
    for (int d = 0; d < HEAD_DIM / 16; d++) {
        u32 a[4], b[4];
        load_tiles(a, cell_chunk(queries, lane & 15, 2 * d + (lane >> 4)));
        load_tiles(b, cell_chunk(keys, 16 * warp + (lane & 7) + (lane >> 4 << 3), 2 * d + (lane >> 3 & 1)));
        multiply_add(score[0], a, b[0], b[1]);
        multiply_add(score[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = 16 * warp + 8 * j + 2 * (lane & 3) + (i & 1);
            float s = score[j][i] * of.scale;
#if KV_KIND == 2
            s *= scales[c];
#endif
            scores[((lane >> 2) + 8 * (i >> 1)) * 68 + c] = c < count ? s : NEGATIVE_INFINITY;
        }
    __syncthreads();

    // Eight threads a head, eight cells each.
    {
        int h = thread >> 3, part = thread & 7;
        float s[8], largest = NEGATIVE_INFINITY, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            s[i] = scores[h * 68 + 8 * part + i];
            largest = fmaxf(largest, s[i]);
        }
#pragma unroll
        for (int step = 4; step > 0; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            s[i] = power_of_two((s[i] - largest) * LOG2_E);
            sum += s[i];
#if KV_KIND == 2
            s[i] *= scales[64 + 8 * part + i];
#endif
        }
#pragma unroll
        for (int step = 4; step > 0; step >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        *(uint4*)chance_chunk(chances, h, part) =
            make_uint4(half2_from(s[0], s[1]), half2_from(s[2], s[3]), half2_from(s[4], s[5]), half2_from(s[6], s[7]));
        if (part == 0 && h < heads) {
            float* to = results + ((row * of.heads + head + h) * tiles + blockIdx.x) * (2 + HEAD_DIM);
            to[0] = largest, to[1] = sum;
        }
    }
    __syncthreads();

    // Each warp weighs a quarter of the values.
    float value[HEAD_DIM / 32][4];
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) value[j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        u32 a[4];
        load_tiles(a, chance_chunk(chances, lane & 15, 2 * c + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 32; j += 2) {
            u32 b[4];
            load_tiles_transposed(b, cell_chunk(values, 16 * c + (lane & 7) + (lane >> 3 & 1) * 8, warp * (HEAD_DIM / 32) + j + (lane >> 4)));
            multiply_add(value[j], a, b[0], b[1]);
            multiply_add(value[j + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int h = (lane >> 2) + 8 * (i >> 1), d = warp * (HEAD_DIM / 4) + 8 * j + 2 * (lane & 3) + (i & 1);
            if (h < heads) {
                results[((row * of.heads + head + h) * tiles + blockIdx.x) * (2 + HEAD_DIM) + 2 + d] =
                    value[j][i] * (KV_KIND == 2 ? 1.0f / VALUE_SCALE : 1.0f);
            }
        }
}
