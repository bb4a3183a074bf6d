/* Computes the attention of decode steps to quantised pages. Divides the pages among warps such
 * that each warp has about equal work. */
#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

template <int MERGERS>
__global__ void __launch_bounds__(32 * MERGERS)
    merge_kernel(const __grid_constant__ packed_params p)
{
    __shared__ float o[MERGERS][KVD_WIDTH_NARROW];
    __shared__ float2 ml[MERGERS];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, row = (int)blockIdx.z,
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int pages = p.d.pages_before[b + 1] - p.d.pages_before[b], each = weight_per_warp(p);
    if (pages == 0)
        return;
    const int weight = page_weight(p, g);
    int x0 = p.d.pages_before[b] * p.weights;
    for (int i = 0; i < g; i++)
        x0 += pages * page_weight(p, i);
    const int first = x0 / each, last = (x0 + (pages - 1) * weight) / each;
    if (first == last)
        return;
    float max = -INFINITY, sum = 0;
    float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int w = first + warp; w <= last; w += MERGERS) {
        if (w > first && x0 + (w * each - x0 + weight - 1) / weight * weight >= (w + 1) * each)
            continue;
        const float *const slot =
            p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
        const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
        const float4 x =
            *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_NARROW + 4 * lane);
        const float most = fmaxf(max, part.x), f = kvd_exp2(max - most),
                    h = kvd_exp2(part.x - most);
        max = most;
        sum = sum * f + part.y * h;
        acc.x = acc.x * f + x.x * h;
        acc.y = acc.y * f + x.y * h;
        acc.z = acc.z * f + x.z * h;
        acc.w = acc.w * f + x.w * h;
    }
    *reinterpret_cast<float4 *>(&o[warp][4 * lane]) = acc;
    if (lane == 0)
        ml[warp] = make_float2(max, sum);
    __syncthreads();
    const int dim = (int)threadIdx.x;
    if (dim >= p.a.map.d_v[g])
        return;
    float most = -INFINITY, all = 0, x = 0;
    for (int w = 0; w < MERGERS; w++)
        most = fmaxf(most, ml[w].x);
#pragma unroll 8
    for (int w = 0; w < MERGERS; w++) {
        const float f = kvd_exp2(ml[w].x - most);
        all += ml[w].y * f;
        x += o[w][dim] * f;
    }
    const int head = g * p.a.map.group + row;
    output_of(p, b, head)[dim] = __float2bfloat16_rn(x / (all + sink_term(p, head, most)));
}

/* Returns how many pages hold the newest `window` of m tokens. If `window` is 0, returns how many
 * hold all m tokens. */
__device__ __forceinline__ int pages_read(int m, int window)
{
    return (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS -
           (window ? max(m - window, 0) / KVD_PAGE_TOKENS : 0);
}

/* Sets before[i] to the number of pages that requests 0 .. i - 1 of the batch read, for i = 0 .. n.
 * Must be launched with one CTA. */
__global__ void __launch_bounds__(1024)
    plan_kernel(const int32_t *kv_len, const int32_t *live, int n, int window, int32_t *before)
{
    __shared__ int32_t warps[32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int n_live = live ? min(*live, n) : n;
    int carried = 0;
    if (threadIdx.x == 0)
        before[0] = 0;
    for (int i0 = 0; i0 < n; i0 += 1024) {
        const int i = i0 + (int)threadIdx.x;
        int x = kvd_sum_to_lane(i < n_live ? pages_read(kv_len[i], window) : 0);
        if (lane == 31)
            warps[warp] = x;
        __syncthreads();
        int all = 0;
        for (int w = 0; w < 32; w++) {
            x += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < n)
            before[i + 1] = carried + x;
        carried += all;
        __syncthreads();
    }
}

bool has_width(const kvd_attn_map *map, int d)
{
    for (int g = 0; g < map->n_kv_heads; g++)
        if (map->d_qk[g] != d || map->d_v[g] != d)
            return false;
    return true;
}

bool is_uneven(const kvd_attn_map *map)
{
    return !has_width(map, 64) && !has_width(map, 128);
}

/* Splits KV heads that have many query heads into several with fewer query heads, which read the
 * same pages. */
void divide_groups(packed_params *p)
{
    kvd_attn_map *const map = &p->a.map;
    p->shares = shares_of(map);
    map->group /= p->shares;
    map->n_kv_heads *= p->shares;
    for (int g = map->n_kv_heads - 1; g >= 0; g--) {
        map->d_qk[g] = map->d_qk[g / p->shares];
        map->d_v[g] = map->d_v[g / p->shares];
        map->kv_offset[g] = map->kv_offset[g / p->shares];
        p->a.head_at[g] = p->a.head_at[g / p->shares];
    }
}

kvd_packed_decode_kernel kernel_of(const kvd_packed_args *a)
{
    if (!shares_of(&a->map) || a->form.allotted || kvd_packed_in_blocks(&a->form))
        return NULL;
    /* Method turboquant rotates all query heads of a KV head together, so they cannot be split
     * up. */
    if (a->form.norms && a->map.group > HEADS)
        return NULL;
    /* If k_group is 0, kernels require that all tokens except the newest are quantised. */
    if (!a->form.k_group && (a->k_block != 1 || a->v_newest))
        return NULL;
    if (is_uneven(&a->map))
        return kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW ? NULL
               : a->form.k_group                           ? kvd_packed_even_kernel(a, true)
               : a->form.exponent                          ? kvd_packed_floats_kernel(a, true)
                                                           : NULL;
    if (a->form.rows)
        return kvd_packed_rows_kernel(a);
    if (a->form.norms)
        return kvd_packed_turned_kernel(a);
    if (a->level)
        return kvd_packed_levels_kernel(a);
    if (a->form.exponent)
        return kvd_packed_floats_kernel(a, false);
    return kvd_packed_even_kernel(a, false);
}

int log2_of(int x)
{
    int n = 0;
    while (x > 1 << n)
        n++;
    return n;
}

/* Sets *p with as many warps per CTA as fit into shared memory. Returns false if not even one
 * fits. */
bool lay_out(const kvd_packed_args *a, packed_params *p)
{
    *p = {};
    p->a = *a;
    divide_groups(p);
    p->parts = kvd_packed_parts_of(&a->form, a->map.d_qk[0], a->map.d_v[0]);
    p->scale_log2 = a->map.scale * 1.4426950408889634f;
    p->slot_floats = HEADS * (2 + KVD_WIDTH_NARROW);
    p->k_shift = log2_of(a->form.k_group / 8);
    p->v_shift = log2_of(a->form.v_group / 16);
    p->newest_at = max(p->parts.v_list - p->parts.k_side, 16);
    p->warps = 8;
    p->uneven = is_uneven(&a->map);
    if (a->form.rows)
        kvd_packed_rows_lay_out(p);
    else if (a->form.norms)
        kvd_packed_turned_lay_out(p);
    else if (a->level)
        kvd_packed_levels_lay_out(p);
    else if (a->form.exponent)
        kvd_packed_floats_lay_out(p);
    for (int g = 0; g < p->a.map.n_kv_heads; g++) {
        const kvd_packed_parts parts =
            kvd_packed_parts_of(&a->form, p->a.map.d_qk[g], p->a.map.d_v[g]);
        p->newest_at = max(p->newest_at, p->uneven ? parts.v_list - parts.k_side : 0);
        p->weights += page_weight(*p, g);
    }
    p->stage_bytes = p->newest_at + (a->form.k_group ? 0 : 4 * kvd_attn_widest(&a->map));
    p->warps =
        min((most_shared() - p->shared_bytes) / (2 * p->stage_bytes + p->scratch_bytes), p->warps);
    return p->warps > 0;
}

__global__ void ring_table(const int32_t *slot, int max_pages, int ring_pages, int32_t *table)
{
    const int b = (int)blockIdx.y, p = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (p < max_pages)
        table[(size_t)b * (size_t)max_pages + (size_t)p] = slot[b] * ring_pages + p % ring_pages;
}

/* Makes random bytes valid for timing: floating-point codes of 8 bits become finite, and scales of
 * blocks become 1. */
__device__ void make_finite(const kvd_packed_form &f, const kvd_packed_parts &parts, char *codes)
{
    uint32_t *const word = reinterpret_cast<uint32_t *>(codes);
    for (int i = (int)threadIdx.x; f.bits == 8 && i < parts.k_side / 4; i += (int)blockDim.x)
        word[i] &= 0xbfbfbfbfu;
    const uint32_t one = f.block == 32 ? 0x7f7f7f7fu : 0x38383838u;
    for (int i = parts.k_side / 4 + (int)threadIdx.x; i < parts.v_list / 4; i += (int)blockDim.x)
        word[i] = one;
}

__global__ void plausible_kernel(const __grid_constant__ kvd_packed_args a, int per_page)
{
    const int g = (int)blockIdx.x, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const kvd_packed_parts parts = kvd_packed_parts_of(&a.form, d_qk, d_v);
    char *const codes = in_codes(a, (int)blockIdx.y, g);
    uint32_t *const list = reinterpret_cast<uint32_t *>(codes + parts.k_list);
    uint32_t *const v_list = reinterpret_cast<uint32_t *>(codes + parts.v_list);
    const uint32_t half = half_bits(2);
    if (a.form.exponent)
        make_finite(a.form, parts, codes);
    for (int i = (int)threadIdx.x; i < a.form.k_apart; i += (int)blockDim.x)
        list[4 + i] =
            half | (uint32_t)(KVD_WIDTH_NARROW * (i * 37 % KVD_PAGE_TOKENS) + i * 11 % d_qk) << 16;
    if (a.form.k_apart && threadIdx.x == 0)
        list[0] = (uint32_t)min(per_page, a.form.k_apart);
    for (int i = (int)threadIdx.x; i < KVD_PAGE_TOKENS * a.form.v_apart; i += (int)blockDim.x)
        v_list[i] = half | (uint32_t)(i * 7 % d_v) << 16;
}

/* Fills a table of RoPE rotations by 0 to 63 positions. */
__global__ void rope_table_kernel(const float *cosine, const float *sine, int half, uint4 *table)
{
    const int lane = (int)threadIdx.x, u = (int)blockIdx.x, t = 8 * (int)blockIdx.y + lane / 4;
    float c[4], s[4];
    for (int k = 0; k < 4; k++) {
        const int i = 16 * u + lane % 4 * 2 + k % 2 + k / 2 * 8;
        const double angle = atan2((double)sine[half + i], (double)cosine[half + i]);
        c[k] = (float)cos(angle * t);
        s[k] = (float)sin(angle * t);
    }
    table[((int)blockIdx.y * (int)gridDim.x + u) * 32 + lane] = make_uint4(
        f16_pair(c[0], c[1]), f16_pair(s[0], s[1]), f16_pair(c[2], c[3]), f16_pair(s[2], s[3]));
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    packed_params p;
    return kvd_packed_attends(a) || (kernel_of(a) && lay_out(a, &p));
}

size_t kvd_packed_decode_bytes(int n_ctas)
{
    return (size_t)n_ctas * WARPS_MOST * 2 * HEADS * (2 + KVD_WIDTH_NARROW) * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream)
{
    if (kvd_packed_attends(a))
        return cudaSuccess;
    if (!kernel_of(a) || a->n < 1)
        return cudaErrorInvalidValue;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, d->live, a->n, a->map.window, d->pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream)
{
    packed_params p;
    if (a->n > 0 && a->n <= 65535 && d->n_ctas > 0 && kvd_packed_attends(a))
        return kvd_packed_attend(a, d, stream);
    const kvd_packed_decode_kernel run = kernel_of(a);
    if (!run || !lay_out(a, &p) || a->n < 1 || a->n > 65535 || d->n_ctas < 1 ||
        (a->form.sketch && !d->sketched))
        return cudaErrorInvalidValue;
    p.d = *d;
    const size_t bytes = (size_t)(p.shared_bytes + p.warps * (2 * p.stage_bytes + p.scratch_bytes));
    const cudaError_t e =
        kvd_launch(run, (unsigned)d->n_ctas, 32 * (unsigned)p.warps, bytes, stream, p);
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)p.a.map.n_kv_heads, (unsigned)a->n, (unsigned)p.a.map.group);
    if (a->map.n_heads * a->n <= 2 * d->n_ctas)
        merge_kernel<32><<<grid, 1024, 0, stream>>>(p);
    else
        merge_kernel<8><<<grid, 256, 0, stream>>>(p);
    return cudaGetLastError();
}

cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream)
{
    if (n < 1 || max_pages < 1)
        return cudaErrorInvalidValue;
    const dim3 grid((unsigned)(max_pages + 127) / 128, (unsigned)n);
    ring_table<<<grid, 128, 0, stream>>>(slot, max_pages, ring_pages, table);
    return cudaGetLastError();
}

cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream)
{
    for (size_t at = 0; at < pages; at += 65535) {
        kvd_packed_args some = *a;
        some.codes += at * a->page_bytes;
        const dim3 grid((unsigned)a->map.n_kv_heads,
                        (unsigned)(pages - at < 65535 ? pages - at : 65535));
        plausible_kernel<<<grid, 128, 0, stream>>>(some, per_page);
    }
    return cudaGetLastError();
}

size_t kvd_packed_rope_table_bytes(int d)
{
    return (size_t)(128 * d);
}

cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream)
{
    if (d % 32)
        return cudaErrorInvalidValue;
    rope_table_kernel<<<dim3((unsigned)d / 32, 8), 32, 0, stream>>>(
        cosine, sine, d / 2, reinterpret_cast<uint4 *>(turn));
    return cudaGetLastError();
}
