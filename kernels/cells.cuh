// Cells of one sequence and layer: where they lie and what is in them.

#define ATTENTION_TILE 64
#define MOST_SPANS 8
#define LOG2_E 1.4426950408889634f

struct CellSpan {
    const u8* at;
    int first;
    int count;
};

// Consecutive spans; every one but the last ends at a tile's edge.
struct Cells {
    CellSpan span[MOST_SPANS];
    int spans;
    u32 cell_bytes;
    u32 value_offset;
    u32 scales_offset;
};

// The span that holds this cell.
__device__ __forceinline__ const CellSpan& span_of(const Cells& cells, int cell) {
    int s = 0;
    while (s + 1 < cells.spans && cell >= cells.span[s + 1].first) s++;
    return cells.span[s];
}

__device__ __forceinline__ int cells_end(const Cells& cells) {
    const CellSpan& last = cells.span[cells.spans - 1];
    return last.first + last.count;
}
