// Products with one weight format, QUANT. Compiled once for each format of the loaded model.

// What the rows of a product are: f32 for F32 weights, else f16 with a power of two a row.
template <class Q> struct Row { typedef u16 Type; };
template <> struct Row<F32> { typedef float Type; };

// F32 weights have no tensor cores: their tiles are smaller.
#define JOINED(a, b) a##b
#define IS(name, format) JOINED(name, format)
#define FORMAT_F32 1
#if IS(FORMAT_, QUANT)
#define PRODUCT_BOUNDS __launch_bounds__(256, 1)
#define TILES(kernel) kernel(16) kernel(32) kernel(64)
#elif defined(HAS_WIDE_PRODUCTS)
#define PRODUCT_BOUNDS __launch_bounds__(WIDE_PRODUCT_THREADS, 1)
#define TILES(kernel) kernel(64) kernel(128) kernel(256)
#else
#define PRODUCT_BOUNDS __launch_bounds__(256, 1)
#define TILES(kernel) kernel(32) kernel(64) kernel(128)
#endif

#define MOST_PARTS 4
struct Part {
    const u8* weight;
    const float* bias;
    float* out;
    int outputs;
    int first_tile;  // tiles of the parts before it
};

struct Parts {
    Part part[MOST_PARTS];
    int count;
    int add;
};

__device__ __forceinline__ const Part& part_of(const Parts& parts, int tile) {
    int p = 0;
    while (p + 1 < parts.count && tile >= parts.part[p + 1].first_tile) p++;
    return parts.part[p];
}

template <int ROWS>
__device__ __forceinline__ void linear_prompt(const void* x, int stride, const float* restore, int rows, int cols, const Parts& parts) {
    follow();
    DYNAMIC_SHARED(shared);
    const Part& part = part_of(parts, blockIdx.x);
    int first_row = blockIdx.y * ROWS;
    Product<QUANT, ROWS>::run(
        shared, (const Row<QUANT>::Type*)x, stride, rows - first_row, [&](int i) { return first_row + i; }, part.weight, part.outputs,
        (blockIdx.x - part.first_tile) * TILE_OUTPUTS, cols, [&](int i) {
            u64 row = first_row + i;
            return Target{part.out + row * part.outputs, restore ? restore[row] : 1.0f, part.bias, parts.add};
        });
}

// The row tiles of dense products and of experts: the same sums in tiles for many and few rows.
#define LINEAR_PROMPT(rows_)                                                                                         \
    extern "C" __global__ void PRODUCT_BOUNDS linear_prompt_##rows_(const void* x, int stride, const float* restore, \
                                                                            int rows, int cols, Parts parts) {       \
        linear_prompt<rows_>(x, stride, restore, rows, cols, parts);                                                 \
    }
TILES(LINEAR_PROMPT)

// Experts, first step: gate (and up) products of the tiles' rows, to f32 [entries][2][hidden]. blockIdx.x walks the outputs of gate and then
// of up; blockIdx.y the tiles. `first_part` 1 is up alone.
template <int ROWS>
__device__ __forceinline__ void experts_in(const void* x, int stride, const float* restore, const u32* groups, const u32* list, int top_k,
                                           const ExpertTable& table, const u32* tiles, u64 gate_offset, u64 up_offset, int first_part,
                                           int hidden, int width, float* products) {
    follow();
    if (blockIdx.y >= tiles[0]) return;
    DYNAMIC_SHARED(shared);
    int place = tiles[2 + 2 * blockIdx.y];
    u32 begin = tiles[3 + 2 * blockIdx.y], end = groups[table.id[place] + 1];
    int across = (hidden + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    int part = first_part + blockIdx.x / across;
    const u8* weight = (const u8*)table.blob[place] + (part ? up_offset : gate_offset);
    Product<QUANT, ROWS>::run(
        shared, (const Row<QUANT>::Type*)x, stride, (int)(end - begin), [&](int i) { return (int)(list[begin + i] / top_k); }, weight,
        hidden, blockIdx.x % across * TILE_OUTPUTS, width, [&](int i) {
            u32 p = begin + i;
            return Target{products + ((u64)p * 2 + part) * hidden, restore ? restore[list[p] / top_k] : 1.0f, 0, 0};
        });
}

#define EXPERTS_IN(rows_)                                                                                                    \
    extern "C" __global__ void PRODUCT_BOUNDS                                                                                \
        experts_in_##rows_(const void* x, int stride, const float* restore, const u32* groups, const u32* list, int top_k,   \
                           ExpertTable table, const u32* tiles, u64 gate_offset, u64 up_offset, int first_part, int hidden,  \
                           int width, float* products) {                                                                     \
        experts_in<rows_>(x, stride, restore, groups, list, top_k, table, tiles, gate_offset, up_offset, first_part, hidden, \
                          width, products);                                                                                  \
    }
TILES(EXPERTS_IN)

// Experts, second step: outputs first..first + count of down, to f32 [entry][count].
template <int ROWS>
__device__ __forceinline__ void experts_out(const void* h, int stride, const float* restore, const u32* groups, const u32* list,
                                            const ExpertTable& table, const u32* tiles, u64 down_offset, int hidden, int first, int count,
                                            float* results) {
    follow();
    if (blockIdx.y >= tiles[0]) return;
    DYNAMIC_SHARED(shared);
    int place = tiles[2 + 2 * blockIdx.y];
    u32 begin = tiles[3 + 2 * blockIdx.y], end = groups[table.id[place] + 1];
    Product<QUANT, ROWS>::run(
        shared, (const Row<QUANT>::Type*)h, stride, (int)(end - begin), [&](int i) { return (int)(begin + i); },
        (const u8*)table.blob[place] + down_offset, first + count, first + blockIdx.x * TILE_OUTPUTS, hidden, [&](int i) {
            u32 p = begin + i;
            return Target{results + (u64)list[p] * count - first, restore ? restore[p] : 1.0f, 0, 0};
        });
}

#define EXPERTS_OUT(rows_)                                                                                              \
    extern "C" __global__ void PRODUCT_BOUNDS                                                                           \
        experts_out_##rows_(const void* h, int stride, const float* restore, const u32* groups, const u32* list,        \
                            ExpertTable table, const u32* tiles, u64 down_offset, int hidden, int first, int count,     \
                            float* results) {                                                                           \
        experts_out<rows_>(h, stride, restore, groups, list, table, tiles, down_offset, hidden, first, count, results); \
    }
TILES(EXPERTS_OUT)
