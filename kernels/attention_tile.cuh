// What prompt and decode attention share, for one head size and cell type: HEAD_DIM 64, 128 or 256 (values as large), KV_KIND 1 (f16)
// or 2 (int8 with a scale a head).

#define CHUNKS (HEAD_DIM / 8)
#define TILE_HALVES (ATTENTION_TILE * HEAD_DIM)
// V's scales are kept 2^6 larger in f16.
#define VALUE_SCALE 64.0f

struct PromptHeads {
    int heads;
    int kv_heads;
    float scale;
};

// Eight halves of a cell in a tile of whole rows.
__device__ __forceinline__ u16* cell_chunk(u16* tile, int cell, int chunk) { return tile + cell * HEAD_DIM + ((chunk ^ (cell & 7)) << 3); }

#if KV_KIND == 2
// Sixteen codes to sixteen halves, eight at each place.
__device__ __forceinline__ void codes_to_halves(uint4 codes, u16* low, u16* high) {
    u32 from[4] = {codes.x, codes.y, codes.z, codes.w}, to[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 biased = from[i] ^ 0x80808080u;
        to[2 * i] = half2_subtract(__byte_perm(biased, 0x64646464u, 0x4140), 0x64806480u);
        to[2 * i + 1] = half2_subtract(__byte_perm(biased, 0x64646464u, 0x4342), 0x64806480u);
    }
    *(uint4*)low = make_uint4(to[0], to[1], to[2], to[3]);
    *(uint4*)high = make_uint4(to[4], to[5], to[6], to[7]);
}

__device__ __forceinline__ void codes_to_cell(uint4 codes, u16* tile, int cell, int piece) {
    codes_to_halves(codes, cell_chunk(tile, cell, 2 * piece), cell_chunk(tile, cell, 2 * piece + 1));
}
#endif

// A warp's sixteen rows of queries of one head, as `multiply_add` takes them; `row` are this thread's two rows.
#if HEAD_DIM <= 128
__device__ __forceinline__ void load_queries(u32 (&query)[HEAD_DIM / 16][4], const float* q, const int (&row)[2], int rows, int heads, int head) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row[i & 1], d = 16 * k + 2 * (lane & 3) + 8 * (i >> 1);
            float2 v = make_float2(0.0f, 0.0f);
            if (r < rows) v = *(const float2*)(q + ((u64)r * heads + head) * HEAD_DIM + d);
            query[k][i] = half2_from(v.x, v.y);
        }
}
#endif
