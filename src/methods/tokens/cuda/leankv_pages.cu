/*
 * Memory manager of LeanKV's pages. One CTA assigns pages by an exclusive prefix sum over all KV
 * heads, so locks are not needed. The assignment depends only on the order of the heads.
 */
#include "methods/tokens/cuda/leankv.cuh"

namespace
{

enum { THREADS = 1024, WARPS = THREADS / 32 };

__device__ int heads_of(const kvd_leankv_pool &p, int n, int n_layers)
{
    return n * n_layers * p.n_kv_heads;
}

/* Returns the index of the i-th KV head in the pool, or -1 if its slot has no request. */
__device__ int head_of(const kvd_leankv_pool &p, const int32_t *slot, int first_layer, int n_layers,
                       int i)
{
    const int per = n_layers * p.n_kv_heads, s = slot[i / per], rest = i % per;
    return s < 0 || s >= p.n_slots
               ? -1
               : (s * p.n_layers + first_layer + rest / p.n_kv_heads) * p.n_kv_heads +
                     rest % p.n_kv_heads;
}

__device__ int pages_wanted(const kvd_leankv_pool &p, const kvd_leankv_head &h, int level,
                            int spare)
{
    const int tokens = p.layout.level[level].tokens,
              wanted = (h.n[level] + spare + tokens - 1) / tokens;
    return max(wanted - h.pages[level], 0);
}

/* Removes from *h the tokens for which the KV head has no pages. */
__device__ void cut(const kvd_leankv_pool &p, kvd_leankv_head *h)
{
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        const int less = max(h->n[l] - h->pages[l] * p.layout.level[l].tokens, 0);
        h->n[l] -= less;
        if (less)
            atomicAdd((unsigned long long *)&p.state->entries[l],
                      (unsigned long long)-(long long)less);
    }
}

__global__ void __launch_bounds__(THREADS)
    grow_kernel(const kvd_leankv_pool p, const int32_t *slot, int n, int first_layer, int n_layers,
                int spare)
{
    const int heads = heads_of(p, n, n_layers), rounds = (heads + THREADS - 1) / THREADS;
    const uint64_t start = p.state->start, left = p.state->end - start;
    uint64_t wanted = 0;
    for (int r = 0; r < rounds; r++) {
        const int i = r * THREADS + (int)threadIdx.x;
        const int at = i < heads ? head_of(p, slot, first_layer, n_layers, i) : -1;
        const kvd_leankv_head h = at < 0 ? kvd_leankv_head{} : p.head[at];
        int all;
        leankv::scan<WARPS>(at < 0 ? 0
                                   : pages_wanted(p, h, KVD_LEANKV_HIGH, spare) +
                                         pages_wanted(p, h, KVD_LEANKV_LOW, spare),
                            &all);
        wanted += (uint64_t)all;
    }
    if (wanted == 0)
        return;
    uint64_t given = start;
    for (int r = 0; r < rounds; r++) {
        const int i = r * THREADS + (int)threadIdx.x;
        const int at = i < heads ? head_of(p, slot, first_layer, n_layers, i) : -1;
        kvd_leankv_head h = at < 0 ? kvd_leankv_head{} : p.head[at];
        if (wanted > left) {
            if (at >= 0) {
                cut(p, &h);
                p.head[at] = h;
            }
            continue;
        }
        const int high = at < 0 ? 0 : pages_wanted(p, h, KVD_LEANKV_HIGH, spare);
        const int low = at < 0 ? 0 : pages_wanted(p, h, KVD_LEANKV_LOW, spare);
        int all;
        uint64_t from = given + (uint64_t)leankv::scan<WARPS>(high + low, &all);
        given += (uint64_t)all;
        if (high + low == 0)
            continue;
        int32_t *const table = p.table + (size_t)at * (size_t)p.table_length;
        for (int k = 0; k < high; k++)
            table[h.pages[KVD_LEANKV_HIGH]++] = p.list[from++ % (uint64_t)p.n_pages];
        for (int k = 0; k < low; k++)
            table[p.table_length - 1 - h.pages[KVD_LEANKV_LOW]++] =
                p.list[from++ % (uint64_t)p.n_pages];
        p.head[at] = h;
    }
    if (threadIdx.x)
        return;
    if (wanted <= left) {
        p.state->start = given;
    } else if (!p.state->wanted) {
        p.state->wanted = wanted;
        p.state->left = left;
    }
}

__global__ void __launch_bounds__(THREADS)
    give_back_kernel(const kvd_leankv_pool p, const int32_t *slot, int n)
{
    const int heads = heads_of(p, n, p.n_layers), rounds = (heads + THREADS - 1) / THREADS;
    uint64_t end = p.state->end;
    for (int r = 0; r < rounds; r++) {
        const int i = r * THREADS + (int)threadIdx.x;
        const int at = i < heads ? head_of(p, slot, 0, p.n_layers, i) : -1;
        const kvd_leankv_head h = at < 0 ? kvd_leankv_head{} : p.head[at];
        int all;
        uint64_t to = end + (uint64_t)leankv::scan<WARPS>(
                                h.pages[KVD_LEANKV_HIGH] + h.pages[KVD_LEANKV_LOW], &all);
        end += (uint64_t)all;
        if (at < 0)
            continue;
        const int32_t *const table = p.table + (size_t)at * (size_t)p.table_length;
        for (int k = 0; k < h.pages[KVD_LEANKV_HIGH]; k++)
            p.list[to++ % (uint64_t)p.n_pages] = table[k];
        for (int k = 0; k < h.pages[KVD_LEANKV_LOW]; k++)
            p.list[to++ % (uint64_t)p.n_pages] = table[p.table_length - 1 - k];
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
            if (h.n[l])
                atomicAdd((unsigned long long *)&p.state->entries[l],
                          (unsigned long long)-(long long)h.n[l]);
        p.head[at] = kvd_leankv_head{};
    }
    __syncthreads(); /* all threads have read p.state->end */
    if (threadIdx.x == 0)
        p.state->end = end;
}

__global__ void reset_kernel(const kvd_leankv_pool p)
{
    const int first = (int)(blockIdx.x * blockDim.x + threadIdx.x),
              step = (int)(gridDim.x * blockDim.x);
    const int heads = p.n_slots * p.n_layers * p.n_kv_heads;
    for (int i = first; i < p.n_pages; i += step)
        p.list[i] = i;
    for (int i = first; i < heads; i += step)
        p.head[i] = kvd_leankv_head{};
    if (first == 0) {
        *p.state = kvd_leankv_state{};
        p.state->end = (uint64_t)p.n_pages;
    }
}

} // namespace

extern "C" size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p)
{
    return (size_t)p->n_layers * (size_t)p->n_kv_heads *
           (sizeof(kvd_leankv_head) + (size_t)p->table_length * sizeof(int32_t) +
            KVD_LEANKV_SPARE_PAGES * ((size_t)p->layout.page_bytes + sizeof(int32_t)));
}

extern "C" size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits)
{
    return (size_t)(d * (k_bits + v_bits) / 8) + 2 * 2 * sizeof(uint16_t) + sizeof(float) +
           sizeof(int32_t);
}

extern "C" int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[],
                                      kvd_leankv_layout *out)
{
    *out = kvd_leankv_layout{};
    out->d = d;
    if (d != 32 && d != 64 && d != 128)
        return -1;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        kvd_leankv_precision *const p = &out->level[l];
        if ((k_bits[l] != 8 && k_bits[l] != 4) ||
            (v_bits[l] != 8 && v_bits[l] != 4 && v_bits[l] != 2) ||
            kvd_leankv_entry_bytes(d, k_bits[l], v_bits[l]) >
                kvd_leankv_entry_bytes(d, k_bits[0], v_bits[0]))
            return -1;
        const int bytes = (int)kvd_leankv_entry_bytes(d, k_bits[l], v_bits[l]);
        if (l == KVD_LEANKV_HIGH)
            out->page_bytes = KVD_LEANKV_PAGE_TOKENS * bytes;
        p->k_bits = k_bits[l];
        p->v_bits = v_bits[l];
        p->tokens = out->page_bytes / bytes / KVD_LEANKV_TILE * KVD_LEANKV_TILE;
        p->k_meta = p->tokens * d * k_bits[l] / 8;
        p->v = p->k_meta + 4 * p->tokens;
        p->v_meta = p->v + p->tokens * d * v_bits[l] / 8;
        p->score = p->v_meta + 4 * p->tokens;
        p->position = p->score + 4 * p->tokens;
    }
    return 0;
}

extern "C" cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream)
{
    reset_kernel<<<256, 256, 0, stream>>>(*p);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                       int first_layer, int n_layers, int spare,
                                       cudaStream_t stream)
{
    grow_kernel<<<1, THREADS, 0, stream>>>(*p, slot, n, first_layer, n_layers, spare);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                            cudaStream_t stream)
{
    give_back_kernel<<<1, THREADS, 0, stream>>>(*p, slot, n);
    return cudaGetLastError();
}
