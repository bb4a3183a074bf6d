/* For prompts of method zdc: chooses the important tokens and copies all tokens to their pages. */
#include "methods/tokens/cuda/radix_select.cuh"
#include "methods/tokens/cuda/zdc.h"

namespace
{

enum { VALUE = 256, CHOOSE = 1024, MOVE = 256 };

__global__ void __launch_bounds__(VALUE)
    value_kernel(const __grid_constant__ kvd_zdc_choose_args a, float *to, int mean)
{
    const int t = (int)(blockIdx.x * VALUE + threadIdx.x), b = (int)blockIdx.y;
    if (t >= a.q_len[b])
        return;
    const float *const x = a.lse + a.q_start[b] + t;
    float top = -INFINITY, sum = 0;
    if (a.sums) {
        for (int h = 0; h < a.n_heads; h++)
            sum += x[(size_t)h * a.n_q8];
        to[a.q_start[b] + t] = sum;
        return;
    }
    for (int h = 0; h < a.n_heads; h++)
        top = fmaxf(top, x[(size_t)h * a.n_q8]);
    for (int h = 0; h < a.n_heads; h++)
        sum += expf(x[(size_t)h * a.n_q8] - top);
    to[a.q_start[b] + t] = top + logf(sum) - (mean ? logf((float)t + 1) : 0);
}

/* Returns a sort key that is larger for a larger value or, if values are equal, for a smaller t. */
__device__ __forceinline__ unsigned long long key_of(float value, int t, int n)
{
    const unsigned bits = __float_as_uint(value);
    return (unsigned long long)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 |
           (unsigned)(n - 1 - t);
}

__device__ int sum_of(int x)
{
    __shared__ int sum;
    if (threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    x = __reduce_add_sync(0xffffffffu, x);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&sum, x);
    __syncthreads();
    const int all = sum;
    __syncthreads();
    return all;
}

/* Returns the overlap of two sets: the number of common members (`both`), divided by the larger of
 * the set sizes a and b. */
__device__ double share_of(int both, int a, int b)
{
    return max(a, b) ? (double)both / (double)max(a, b) : 1;
}

__global__ void __launch_bounds__(CHOOSE)
    choose_kernel(const __grid_constant__ kvd_zdc_choose_args a)
{
    const int b = (int)blockIdx.x, n = a.q_len[b], k = min(n, (int)round(a.share * (double)n));
    const float *const value = a.value + a.q_start[b];
    uint8_t *const level = a.level + a.q_start[b];
    int32_t *const place = a.place + a.q_start[b];
    int32_t *const n_low =
        a.pages.n_low + (size_t)a.pages.slot[b] * a.pages.n_layers + a.pages.layer;
    const auto key = [value, n](int t) { return key_of(value[t], t, n); };
    const unsigned long long least = select_least<CHOOSE>(key, n, k);
    if (a.pages.layer > 0 && a.overlap <= 1) {
        int before = 0, both = 0;
        for (int t = (int)threadIdx.x; t < n; t += CHOOSE) {
            const bool high = key(t) >= least, was = level[t] & KVD_ZDC_RAW;
            before += was;
            both += high && was;
            level[t] = (uint8_t)((level[t] & KVD_ZDC_USED) | (high ? KVD_ZDC_RAW : 0));
        }
        before = sum_of(before);
        both = sum_of(both);
        if (share_of(both, before, k) >= a.overlap &&
            share_of(n - before - k + both, n - before, n - k) >= a.overlap) {
            if (threadIdx.x == 0)
                *n_low = n_low[-1];
            return;
        }
    }
    for (int first = 0, so_far = 0; first < n; first += CHOOSE) {
        const int t = first + (int)threadIdx.x;
        const bool high = t < n && key(t) >= least;
        int all;
        const int i = so_far + select_place<CHOOSE>(high, &all);
        so_far += all;
        if (t < n) {
            level[t] = high ? KVD_ZDC_RAW | KVD_ZDC_USED : 0;
            place[t] = high ? i : t - i;
        }
    }
    for (int l = (int)threadIdx.x; l < a.span; l += CHOOSE)
        n_low[l] = n - k;
}

/* Returns the page-pool index of dimensions 8 * block to 8 * block + 7 of one token. i: number of
 * the token, counted from the beginning of page `first` of request b. */
__device__ __forceinline__ size_t piece(const kvd_zdc_move_args &a, int b, int first, int i, int at,
                                        int width, int block)
{
    return (size_t)zdc_page(a.pages, b, first + i / KVD_PAGE_TOKENS) * a.page +
           (at + zdc_in_page(i % KVD_PAGE_TOKENS, width, block));
}

/* Returns the 8 dimensions x, of which all but the first `kept` are set to 0. */
__device__ __forceinline__ uint4 cut(uint4 x, int kept)
{
    unsigned *const pair = reinterpret_cast<unsigned *>(&x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] &= kept >= 2 * i + 2 ? ~0u : kept == 2 * i + 1 ? 0xffffu : 0u;
    return x;
}

__device__ void end_store(const kvd_zdc_move_args &a, int b, int g, int store, int first, int count)
{
    const kvd_zdc_head &head = a.head[g];
    const int rest = (8 - count % 8) % 8;
    for (int side = 0; side < 2; side++) {
        const int width = head.width[store][side];
        for (int i = (int)threadIdx.x; i < rest * (width / 8); i += MOVE)
            *reinterpret_cast<uint4 *>(
                static_cast<uint16_t *>(a.store) +
                piece(a, b, first, count + i % rest, head.in_page[store][side], width, i / rest)) =
                make_uint4(0, 0, 0, 0);
    }
}

/* Returns 8 channels of the key of token i. `order` is the order in which channels are stored. */
__device__ uint4 reordered(const uint16_t *keys, const int16_t *order, int i, int wide, int block)
{
    uint32_t two[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int x = order[8 * block + 2 * e], y = order[8 * block + 2 * e + 1];
        two[e] = keys[zdc_in_page(i, wide, x / 8) + x % 8] |
                 (uint32_t)keys[zdc_in_page(i, wide, y / 8) + y % 8] << 16;
    }
    return make_uint4(two[0], two[1], two[2], two[3]);
}

__global__ void __launch_bounds__(MOVE) move_kernel(const __grid_constant__ kvd_zdc_move_args a)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, n = a.q_len[b], n_low = zdc_low(a.pages, b);
    const int low_pages = zdc_low_pages(n_low);
    if (blockIdx.x == gridDim.x - 1) {
        end_store(a, b, g, KVD_ZDC_HIGH, low_pages, n - n_low);
        end_store(a, b, g, KVD_ZDC_LOW, 0, n_low);
        return;
    }
    const int i = (int)threadIdx.x % KVD_PAGE_TOKENS, t = (int)blockIdx.x * KVD_PAGE_TOKENS + i;
    if (t >= n)
        return;
    const kvd_zdc_head head = a.head[g];
    const int store = a.level[a.q_start[b] + t] & KVD_ZDC_USED ? KVD_ZDC_HIGH : KVD_ZDC_LOW,
              place = a.place[a.q_start[b] + t], first = store == KVD_ZDC_HIGH ? low_pages : 0;
    const uint16_t *const page =
        static_cast<const uint16_t *>(a.from) +
        (size_t)a.pages.table[(size_t)b * a.pages.pitch + blockIdx.x] * a.page;
    for (int side = 0; side < 2; side++) {
        const int wide = head.width[KVD_ZDC_HIGH][side], width = head.width[store][side];
        const uint16_t *const rows = page + head.in_page[KVD_ZDC_HIGH][side];
        for (int block = (int)threadIdx.x / KVD_PAGE_TOKENS; block < width / 8;
             block += MOVE / KVD_PAGE_TOKENS) {
            const uint4 x =
                a.order && side == 0
                    ? reordered(rows, a.order + zdc_order_at(a.pages, b, a.n_kv_heads, g, wide), i,
                                wide, block)
                    : *reinterpret_cast<const uint4 *>(rows + zdc_in_page(i, wide, block));
            *reinterpret_cast<uint4 *>(
                static_cast<uint16_t *>(a.store) +
                piece(a, b, first, place, head.in_page[store][side], width, block)) =
                store == KVD_ZDC_LOW ? cut(x, head.kept[side] - 8 * block) : x;
        }
    }
}

__global__ void __launch_bounds__(MOVE)
    narrow_kernel(const __grid_constant__ kvd_zdc_move_args a, uint16_t *pages)
{
    const int g = (int)blockIdx.y, b = (int)blockIdx.z, n = a.q_len[b];
    const int i = (int)threadIdx.x % KVD_PAGE_TOKENS, t = (int)blockIdx.x * KVD_PAGE_TOKENS + i;
    if (t >= n || a.level[a.q_start[b] + t] & KVD_ZDC_USED)
        return;
    const kvd_zdc_head &head = a.head[g];
    uint16_t *const page =
        pages + (size_t)a.pages.table[(size_t)b * a.pages.pitch + blockIdx.x] * a.page;
    for (int side = 0; side < 2; side++) {
        const int width = head.width[KVD_ZDC_HIGH][side];
        for (int block = head.kept[side] / 8 + (int)threadIdx.x / KVD_PAGE_TOKENS;
             block < width / 8; block += MOVE / KVD_PAGE_TOKENS) {
            uint4 *const x = reinterpret_cast<uint4 *>(page + head.in_page[KVD_ZDC_HIGH][side] +
                                                       zdc_in_page(i, width, block));
            *x = cut(*x, head.kept[side] - 8 * block);
        }
    }
}

/* If PACK, copies K and V of tokens from pages to rows for another GPU, with only the dimensions
 * that each token stores. Otherwise copies them from such rows to pages. */
template <bool PACK>
__global__ void __launch_bounds__(MOVE) rows_kernel(const __grid_constant__ kvd_zdc_rows_args a)
{
    const int g = (int)blockIdx.y, i = (int)threadIdx.x % KVD_PAGE_TOKENS,
              t = (a.first / KVD_PAGE_TOKENS + (int)blockIdx.x) * KVD_PAGE_TOKENS + i;
    const int end = a.first + a.n;
    if (t < a.first || t >= (PACK ? end : (end + 7) / 8 * 8))
        return;
    const kvd_zdc_head &head = a.head[g];
    const bool behind = t >= end;
    const int store = behind || a.level[t] & KVD_ZDC_USED ? KVD_ZDC_HIGH : KVD_ZDC_LOW;
    uint16_t *const row =
        static_cast<uint16_t *>(a.rows) +
        (store == KVD_ZDC_LOW ? (size_t)a.count[KVD_ZDC_HIGH] * a.entry[KVD_ZDC_HIGH] : 0) +
        (behind ? 0 : (size_t)(a.place[t] - a.before[store]) * a.entry[store]);
    uint16_t *const page =
        static_cast<uint16_t *>(a.pages) + (size_t)a.table[t / KVD_PAGE_TOKENS] * a.page;
    for (int side = 0; side < 2; side++) {
        const int wide = head.width[KVD_ZDC_HIGH][side],
                  width = behind ? 0 : head.width[store][side];
        uint16_t *const columns =
            row + (head.in_page[store][side] - a.head->in_page[store][0]) / KVD_PAGE_TOKENS;
        for (int block = (int)threadIdx.x / KVD_PAGE_TOKENS; block < (PACK ? width : wide) / 8;
             block += MOVE / KVD_PAGE_TOKENS) {
            uint4 *const there = reinterpret_cast<uint4 *>(page + head.in_page[KVD_ZDC_HIGH][side] +
                                                           zdc_in_page(i, wide, block));
            uint4 *const here = reinterpret_cast<uint4 *>(columns) + block;
            if (PACK)
                *here = store == KVD_ZDC_LOW ? cut(*there, head.kept[side] - 8 * block) : *there;
            else
                *there = block < width / 8 ? *here : make_uint4(0, 0, 0, 0);
        }
    }
}

template <bool PACK> cudaError_t launch_rows(const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    if (a->n_kv_heads < 1 || a->first < 0 || a->n < 0 || !a->head || !a->level || !a->place ||
        !a->rows || !a->pages || !a->table)
        return cudaErrorInvalidValue;
    const int pages =
        (a->first + a->n + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS - a->first / KVD_PAGE_TOKENS;
    if (a->n)
        rows_kernel<PACK><<<dim3(pages, a->n_kv_heads), MOVE, 0, stream>>>(*a);
    return cudaGetLastError();
}

} // namespace

static bool sums_what_is_there(const kvd_zdc_choose_args *a)
{
    return a->batch >= 1 && a->batch <= 65535 && a->n_heads >= 1 && a->longest >= 1 && a->lse;
}

static void launch_value(const kvd_zdc_choose_args *a, float *to, int mean, cudaStream_t stream)
{
    value_kernel<<<dim3(((a->longest + VALUE - 1) / VALUE), a->batch), VALUE, 0, stream>>>(*a, to,
                                                                                           mean);
}

extern "C" cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *a, float *to, cudaStream_t stream)
{
    if (!sums_what_is_there(a) || !to)
        return cudaErrorInvalidValue;
    launch_value(a, to, 0, stream);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *a, cudaStream_t stream)
{
    if (!sums_what_is_there(a) || !a->value || !a->level || !a->place || !a->pages.n_low ||
        a->span < 1 || a->pages.layer + a->span > a->pages.n_layers)
        return cudaErrorInvalidValue;
    launch_value(a, a->value, a->mean, stream);
    choose_kernel<<<a->batch, CHOOSE, 0, stream>>>(*a);
    return cudaGetLastError();
}

static dim3 move_grid(const kvd_zdc_move_args *a, unsigned more)
{
    const unsigned pages = (unsigned)((a->longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS);
    return dim3(pages + more, a->n_kv_heads, a->batch);
}

static bool has_rows(const kvd_zdc_move_args *a)
{
    return a->batch >= 1 && a->batch <= 65535 && a->n_kv_heads >= 1 && a->longest >= 1 && a->head &&
           a->level;
}

extern "C" cudaError_t kvd_zdc_move(const kvd_zdc_move_args *a, cudaStream_t stream)
{
    if (!has_rows(a) || !a->place || !a->from || !a->store)
        return cudaErrorInvalidValue;
    move_kernel<<<move_grid(a, 1), MOVE, 0, stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *a, void *pages, cudaStream_t stream)
{
    if (!has_rows(a) || !pages)
        return cudaErrorInvalidValue;
    narrow_kernel<<<move_grid(a, 0), MOVE, 0, stream>>>(*a, static_cast<uint16_t *>(pages));
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    return launch_rows<true>(a, stream);
}

extern "C" cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *a, cudaStream_t stream)
{
    return launch_rows<false>(a, stream);
}
