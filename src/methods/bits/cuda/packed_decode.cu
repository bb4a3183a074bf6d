/*
 * Attention of decode steps on quantised KV pages:
 *
 *   O[b, h] = softmax(Q[b, h] K[b, g]^T / sqrt(d_head)) V[b, g]
 *
 * The pages of all requests and KV heads form one list that is cut into runs of equal weight, one
 * per warp. A run that ends within a head writes a partial result. A second launch merges partial
 * results in an order that depends on the lengths and the number of requests only, so that the same
 * batch gives the same results.
 */
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
        /* A warp whose share is less than the weight of a page may have none. */
        if (w > first && x0 + (w * each - x0 + weight - 1) / weight * weight >= (w + 1) * each)
            continue;
        const float *const slot =
            p.d.partial + (size_t)(2 * w + (w == first)) * (size_t)p.slot_floats;
        const float2 part = *reinterpret_cast<const float2 *>(slot + 2 * row);
        const float4 x =
            *reinterpret_cast<const float4 *>(slot + 2 * HEADS + row * KVD_WIDTH_NARROW + 4 * lane);
        const float most = fmaxf(max, part.x), f = power_of_two(max - most),
                    h = power_of_two(part.x - most);
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
        const float f = power_of_two(ml[w].x - most);
        all += ml[w].y * f;
        x += o[w][dim] * f;
    }
    const int head = g * p.a.map.group + row;
    output_of(p, b, head)[dim] = __float2bfloat16_rn(x / (all + sink_term(p, head, most)));
}

/* Returns the number of pages with the newest `window` of m tokens; window 0: with all tokens. */
__device__ __forceinline__ int pages_read(int m, int window)
{
    return (m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS -
           (window ? max(m - window, 0) / KVD_PAGE_TOKENS : 0);
}

/*
 * Writes prefix sums of page counts to before[0 .. n]. Requests from number `*live` on are padding
 * and count as empty. Must be launched with one CTA.
 */
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
        int x = i < n_live ? pages_read(kv_len[i], window) : 0;
        for (int k = 1; k < 32; k *= 2) {
            const int y = __shfl_up_sync(~0u, x, k);
            x += lane >= k ? y : 0;
        }
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

/* Returns true if all heads of K and of V have the width d. */
bool has_width(const kvd_attn_map *map, int d)
{
    for (int g = 0; g < map->n_kv_heads; g++)
        if (map->d_qk[g] != d || map->d_v[g] != d)
            return false;
    return true;
}

/* Returns true if the heads need a kernel for any widths. */
bool is_uneven(const kvd_attn_map *map)
{
    return !has_width(map, 64) && !has_width(map, 128);
}

kvd_packed_decode_kernel kernel_of(const kvd_packed_args *a)
{
    if (a->map.group > HEADS || a->form.allotted || a->form.rows || kvd_packed_in_blocks(&a->form))
        return NULL;
    /*
     * The kernel of kivi also reads unquantised tokens. The other kernels expect that all tokens
     * but the newest one are quantised.
     */
    if (!a->form.k_group && (a->k_block != 1 || a->v_newest))
        return NULL;
    if (is_uneven(&a->map))
        return a->form.k_group ? kvd_packed_even_kernel(a, true) : NULL;
    if (a->form.norms)
        return kvd_packed_turned_kernel(a);
    if (a->level)
        return kvd_packed_levels_kernel(a);
    if (a->form.exponent)
        return kvd_packed_floats_kernel(a);
    return kvd_packed_even_kernel(a, false);
}

int log2_of(int x)
{
    int n = 0;
    while (x > 1 << n)
        n++;
    return n;
}

/*
 * Sets `*p`, with as many warps per CTA as fit in shared memory. Returns false if none fits or the
 * device cannot be queried.
 */
bool lay_out(const kvd_packed_args *a, packed_params *p)
{
    int device, most;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess)
        return false;
    *p = {};
    p->a = *a;
    p->parts = kvd_packed_parts_of(&a->form, a->map.d_qk[0], a->map.d_v[0]);
    p->scale_log2 = a->map.scale * 1.4426950408889634f;
    p->slot_floats = HEADS * (2 + KVD_WIDTH_NARROW);
    p->k_shift = log2_of(a->form.k_group / 8);
    p->v_shift = log2_of(a->form.v_group / 16);
    p->newest_at = max(p->parts.v_list - p->parts.k_side, 16);
    p->warps = 8;
    if (a->form.norms)
        kvd_packed_turned_lay_out(p);
    else if (a->level)
        kvd_packed_levels_lay_out(p);
    else if (a->form.exponent)
        kvd_packed_floats_lay_out(p);
    p->uneven = is_uneven(&a->map);
    for (int g = 0; g < a->map.n_kv_heads; g++) {
        const kvd_packed_parts parts = kvd_packed_parts_of(&a->form, a->map.d_qk[g], a->map.d_v[g]);
        p->newest_at = max(p->newest_at, p->uneven ? parts.v_list - parts.k_side : 0);
        p->weights += page_weight(*p, g);
    }
    p->stage_bytes = p->newest_at + (a->form.k_group ? 0 : 4 * a->map.d_qk[0]);
    p->warps = min((most - p->shared_bytes) / (2 * p->stage_bytes + p->scratch_bytes), p->warps);
    return p->warps > 0;
}

} // namespace

bool kvd_packed_decodes(const kvd_packed_args *a)
{
    packed_params p;
    return kernel_of(a) && lay_out(a, &p);
}

size_t kvd_packed_decode_bytes(int n_ctas)
{
    return (size_t)n_ctas * WARPS_MOST * 2 * HEADS * (2 + KVD_WIDTH_NARROW) * sizeof(float);
}

cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream)
{
    if (!kernel_of(a) || a->n < 1)
        return cudaErrorInvalidValue;
    plan_kernel<<<1, 1024, 0, stream>>>(a->kv_len, d->live, a->n, a->map.window, d->pages_before);
    return cudaGetLastError();
}

cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream)
{
    packed_params p;
    const kvd_packed_decode_kernel run = kernel_of(a);
    if (!run || !lay_out(a, &p) || a->n < 1 || a->n > 65535 || d->n_ctas < 1 ||
        (a->form.sketch && !d->sketched))
        return cudaErrorInvalidValue;
    p.d = *d;
    const size_t bytes = (size_t)(p.shared_bytes + p.warps * (2 * p.stage_bytes + p.scratch_bytes));
    cudaError_t e =
        cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    run<<<(unsigned)d->n_ctas, 32 * (unsigned)p.warps, bytes, stream>>>(p);
    e = cudaGetLastError();
    if (e != cudaSuccess)
        return e;
    const dim3 grid((unsigned)a->map.n_kv_heads, (unsigned)a->n, (unsigned)a->map.group);
    /*
     * With few query heads, the tokens of each head are split among many CTAs, so more warps merge
     * their results.
     */
    if (a->map.n_kv_heads * a->n * a->map.group <= 2 * d->n_ctas)
        merge_kernel<32><<<grid, 1024, 0, stream>>>(p);
    else
        merge_kernel<8><<<grid, 256, 0, stream>>>(p);
    return cudaGetLastError();
}
