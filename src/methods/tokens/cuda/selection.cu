/*
 * Selection at read time. A group of d_qk / 8 threads computes the bounds of a selection page, a
 * warp its score, and a CTA the choice of a KV head. Sums are float32.
 */
#include "methods/tokens/cuda/evict_rank.cuh"
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/selection.h"

namespace
{

enum { BOUND = 128, SCORE = 256, SCORE_PAGES = 64, CHOOSE = 512, COPY = 256 };

/* Numbers of selection pages of a request: all, and those that are chosen by score. */
struct pages {
    int all, chosen;
};

__device__ __forceinline__ pages pages_of(const kvd_selection &s, int n)
{
    const size_t most = s.budget < 1 ? (size_t)(s.budget * (double)n) : (size_t)s.budget,
                 wanted = (most + (size_t)s.page - 1) / (size_t)s.page;
    pages p;
    p.all = (n + s.page - 1) / s.page;
    p.chosen = wanted > 1 ? (int)min(wanted - 1, (size_t)(p.all - 1)) : 0;
    return p;
}

__device__ __forceinline__ int tokens_of(const kvd_selection &s, const pages &p, int n)
{
    return p.chosen * s.page + n - (p.all - 1) * s.page;
}

/* Returns the first of the bounds of selection page i of KV head g of request b. */
__device__ __forceinline__ size_t bounds_at(const kvd_selection &s, int b, int g, int i)
{
    const int each = KVD_PAGE_TOKENS / s.page,
              page = s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(i / each)];
    return (((size_t)page * (size_t)s.map.n_kv_heads + (size_t)g) * (size_t)each +
            (size_t)(i % each)) *
           (size_t)(2 * s.map.d_qk[0]);
}

/* Returns the first element of K of KV head g in the page of token t. */
__device__ __forceinline__ size_t keys_at(const kvd_selection &s, int b, int g, int t)
{
    return (size_t)s.page_table[(size_t)b * (size_t)s.max_pages + (size_t)(t / KVD_PAGE_TOKENS)] *
               (size_t)s.map.page_elements +
           (size_t)s.map.kv_offset[g];
}

__device__ __forceinline__ void unpack(const uint4 &w, float x[8])
{
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int e = 0; e < 8; e++)
        x[e] = __uint_as_float(e % 2 ? word[e / 2] & 0xffff0000u : word[e / 2] << 16);
}

/* Converts eight floats that bf16 can represent exactly. */
__device__ __forceinline__ uint4 pack(const float x[8])
{
    uint32_t word[4];
#pragma unroll
    for (int e = 0; e < 4; e++)
        word[e] = __float_as_uint(x[2 * e]) >> 16 | (__float_as_uint(x[2 * e + 1]) & 0xffff0000u);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__global__ void __launch_bounds__(BOUND)
    bounds_kernel(const __grid_constant__ kvd_selection s, const int32_t *q_len)
{
    const int d = s.map.d_qk[0], threads = d / 8, each = BOUND / threads, g = (int)blockIdx.y,
              b = (int)blockIdx.z, block = (int)threadIdx.x % threads;
    if (s.slot[b] >= s.n_slots || (int)threadIdx.x >= each * threads)
        return;
    const int n = s.kv_len[b],
              page = (n - q_len[b]) / s.page + (int)blockIdx.x * each + (int)threadIdx.x / threads,
              first = page * s.page, end = min(n, first + s.page);
    if (first >= end)
        return;
    const uint16_t *const keys = static_cast<const uint16_t *>(s.pool) + keys_at(s, b, g, first);
    float low[8], high[8];
    for (int t = first; t < end; t++) {
        float x[8];
        unpack(*reinterpret_cast<const uint4 *>(keys + piece(t, block, d)), x);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            low[e] = t == first ? x[e] : fminf(low[e], x[e]);
            high[e] = t == first ? x[e] : fmaxf(high[e], x[e]);
        }
    }
    uint16_t *const to = static_cast<uint16_t *>(s.bounds) + bounds_at(s, b, g, page) + 8 * block;
    *reinterpret_cast<uint4 *>(to) = pack(low);
    *reinterpret_cast<uint4 *>(to + d) = pack(high);
}

__global__ void lengths_kernel(const __grid_constant__ kvd_selection s, const int32_t *live,
                               int32_t *len, int32_t *heads)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), kv = s.map.n_kv_heads;
    if (i >= s.batch * kv)
        return;
    const int n = s.kv_len[i / kv];
    len[i] = tokens_of(s, pages_of(s, n), n);
    if (i == 0)
        heads[0] = live[0] * kv;
}

/*
 * The sum over the query heads of max(q low, q high) is `rise` high + `fall` low, where rise and
 * fall are the sums of the positive and of the negative q.
 */
__global__ void __launch_bounds__(SCORE)
    score_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    __shared__ float rise[KVD_WIDTH_MAX], fall[KVD_WIDTH_MAX];
    const int d = s.map.d_qk[0], kv = s.map.n_kv_heads, group = s.map.group, g = (int)blockIdx.y,
              b = (int)blockIdx.z, me = (int)threadIdx.x;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], first = (int)blockIdx.x * SCORE_PAGES;
    const pages p = pages_of(s, n);
    if (first >= p.all - 1 || p.chosen == 0 || p.chosen == p.all - 1)
        return;
    if (me < d) {
        const uint16_t *const q =
            static_cast<const uint16_t *>(to.q) + (size_t)b * (size_t)s.map.q_pitch + me;
        float up = 0, down = 0;
        for (int h = g * group; h < (g + 1) * group; h++) {
            const float x = __uint_as_float((uint32_t)q[s.map.q_offset[h]] << 16);
            up += fmaxf(x, 0);
            down += fminf(x, 0);
        }
        rise[me] = up;
        fall[me] = down;
    }
    __syncthreads();
    const size_t most = (size_t)s.max_pages * (size_t)(KVD_PAGE_TOKENS / s.page);
    float *const score = to.score + ((size_t)b * (size_t)kv + (size_t)g) * most;
    const int end = min(first + SCORE_PAGES, p.all - 1);
    for (int i = first + me / 32; i < end; i += SCORE / 32) {
        const uint16_t *const low = static_cast<const uint16_t *>(s.bounds) + bounds_at(s, b, g, i);
        float sum = 0;
        for (int j = me % 32 * 2; j < d; j += 64) {
            const uint32_t x = *reinterpret_cast<const uint32_t *>(low + j),
                           y = *reinterpret_cast<const uint32_t *>(low + d + j);
            sum = fmaf(rise[j], __uint_as_float(y << 16), sum);
            sum = fmaf(fall[j], __uint_as_float(x << 16), sum);
            sum = fmaf(rise[j + 1], __uint_as_float(y & 0xffff0000u), sum);
            sum = fmaf(fall[j + 1], __uint_as_float(x & 0xffff0000u), sum);
        }
        for (int step = 1; step < 32; step *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (me % 32 == 0)
            score[i] = sum;
    }
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    __shared__ unsigned bin[KVD_SELECT_BINS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, kv = s.map.n_kv_heads;
    if (s.slot[b] >= s.n_slots)
        return;
    const pages p = pages_of(s, s.kv_len[b]);
    const size_t row = (size_t)b * (size_t)kv + (size_t)g,
                 most = (size_t)s.max_pages * (size_t)(KVD_PAGE_TOKENS / s.page);
    const float *const score = to.score + row * most;
    const int32_t *const page = s.page_table + (size_t)b * (size_t)s.max_pages;
    const bool some = p.chosen > 0 && p.chosen < p.all - 1;
    unsigned long long least = p.chosen > 0 ? 0 : ~0ull;
    if (some)
        least = select_key<CHOOSE>([score](int i) { return key_of(score[i], i); }, p.all - 1,
                                   p.chosen, bin);
    int place = 0;
    for (int first = 0; first < p.all; first += CHOOSE) {
        const int i = first + (int)threadIdx.x;
        const bool stays =
            i < p.all && (i == p.all - 1 || (some ? key_of(score[i], i) >= least : least == 0));
        int all;
        const int at = place + select_place<CHOOSE>(stays, &all);
        place += all;
        if (stays)
            to.chosen[row * most + (size_t)at] = i;
        if (stays && s.page == KVD_PAGE_TOKENS)
            to.table[row * (size_t)s.max_pages + (size_t)at] = page[i] * kv + g;
    }
}

/* Copies 64 tokens of the chosen selection pages to a page of one KV head. */
__global__ void __launch_bounds__(COPY)
    gather_kernel(const __grid_constant__ kvd_selection s, const __grid_constant__ kvd_selected to)
{
    const int g = (int)blockIdx.x, part = (int)blockIdx.y, b = (int)blockIdx.z,
              first = part * KVD_PAGE_TOKENS;
    if (s.slot[b] >= s.n_slots)
        return;
    const int n = s.kv_len[b], m = tokens_of(s, pages_of(s, n), n);
    if (first >= m)
        return;
    const int d_k = s.map.d_qk[0], d_v = s.map.d_v[0];
    const size_t row = (size_t)b * (size_t)s.map.n_kv_heads + (size_t)g,
                 most = (size_t)s.max_pages * (size_t)(KVD_PAGE_TOKENS / s.page);
    const int32_t *const chosen = to.chosen + row * most;
    const uint16_t *const pool = static_cast<const uint16_t *>(s.pool);
    uint16_t *const page =
        static_cast<uint16_t *>(to.rows) +
        (row * (size_t)to.row_pages + (size_t)part) * (size_t)(KVD_PAGE_TOKENS * (d_k + d_v));
    copy_page<COPY>(
        page, d_k, d_v, first, m, [&](int i) { return chosen[i / s.page] * s.page + i % s.page; },
        [&](int t) { return pool + keys_at(s, b, g, t); });
}

bool fits(const kvd_selection *s)
{
    for (int g = 1; g < s->map.n_kv_heads; g++)
        if (s->map.d_qk[g] != s->map.d_qk[0] || s->map.d_v[g] != s->map.d_v[0])
            return false;
    return s->batch > 0 && s->batch <= 65535 && s->page > 0 && KVD_PAGE_TOKENS % s->page == 0 &&
           s->max_pages > 0 && s->kv_len && s->slot;
}

} // namespace

extern "C" cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len,
                                            int32_t longest, cudaStream_t stream)
{
    if (!fits(s) || !q_len || longest < 1 || !s->page_table || !s->pool || !s->bounds)
        return cudaErrorInvalidValue;
    const int each = BOUND / (s->map.d_qk[0] / 8), pages = (longest - 1) / s->page + 2;
    bounds_kernel<<<dim3((unsigned)((pages + each - 1) / each), (unsigned)s->map.n_kv_heads,
                         (unsigned)s->batch),
                    BOUND, 0, stream>>>(*s, q_len);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live,
                                             int32_t *len, int32_t *heads, cudaStream_t stream)
{
    if (!fits(s) || !live || !len || !heads)
        return cudaErrorInvalidValue;
    const unsigned n = (unsigned)(s->batch * s->map.n_kv_heads);
    lengths_kernel<<<(n + 255) / 256, 256, 0, stream>>>(*s, live, len, heads);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                            cudaStream_t stream)
{
    const bool copies = s->page < KVD_PAGE_TOKENS;
    if (!fits(s) || !s->page_table || !s->pool || !s->bounds || !to->q || !to->score ||
        !to->chosen || (copies ? !to->rows || to->row_pages < 1 : !to->table))
        return cudaErrorInvalidValue;
    const unsigned kv = (unsigned)s->map.n_kv_heads, batch = (unsigned)s->batch,
                   most = (unsigned)(s->max_pages * (KVD_PAGE_TOKENS / s->page));
    score_kernel<<<dim3((most + SCORE_PAGES - 1) / SCORE_PAGES, kv, batch), SCORE, 0, stream>>>(
        *s, *to);
    choose_kernel<<<dim3(kv, batch), CHOOSE, 0, stream>>>(*s, *to);
    if (copies)
        gather_kernel<<<dim3(kv, (unsigned)to->row_pages, batch), COPY, 0, stream>>>(*s, *to);
    return cudaGetLastError();
}
