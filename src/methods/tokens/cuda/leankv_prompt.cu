/* Method leankv after a prompt: drops or quantises tokens by the attention that they received from
 * later tokens. */
#include "kernels/cuda/mma.cuh"
#include "methods/tokens/cuda/leankv.cuh"

namespace
{

enum {
    PAGE = 64 /* number of tokens of a bf16 page */,
    MASS_WARPS = 4,
    WARP_KEYS = 32,
    RANK_WARPS = 32,
    CODE_WARPS = 4
};

/* Returns the address of K in a page of a prompt. V follows PAGE * F elements later. */
__device__ __forceinline__ const __nv_bfloat16 *fresh_page(const kvd_leankv_prompts &p, int prompt,
                                                           int g, int page)
{
    const int32_t id = p.page_table[(size_t)prompt * p.max_pages + page];
    return static_cast<const __nv_bfloat16 *>(p.fresh) +
           ((size_t)id * p.pool.n_kv_heads + g) * (size_t)(PAGE * 2 * p.pool.layout.d);
}

template <int F>
__device__ __forceinline__ void load_rows(const uint32_t *block, int lane, uint32_t (&r)[F / 8])
{
#pragma unroll
    for (int i = 0; i < F / 8; i++)
        r[i] = block[i * 32 + lane];
}

/* Sums, for each key, the attention from later queries. CTAs of early keys start first, because
 * these keys have the most queries. */
template <int F>
__global__ void __launch_bounds__(32 * MASS_WARPS) mass_kernel(const kvd_leankv_prompts p)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, head = (int)blockIdx.x,
              prompt = (int)blockIdx.z;
    const int n = p.q_len[prompt], first = ((int)blockIdx.y * MASS_WARPS + warp) * WARP_KEYS;
    if (first >= n)
        return;
    const int start = p.q_start[prompt];
    const __nv_bfloat16 *const keys = fresh_page(p, prompt, head / p.group, first / PAGE);
    uint32_t k[4][F / 8];
#pragma unroll
    /* Queries after the end of the prompt are undefined, but the sums that contain them are
     * discarded. */
    for (int i = 0; i < 4; i++)
        load_rows<F>(reinterpret_cast<const uint32_t *>(keys + (first % PAGE + 8 * i) * F), lane,
                     k[i]);
    const __nv_bfloat16 *const q =
        static_cast<const __nv_bfloat16 *>(p.q) + ((size_t)head * p.n_q8 + start) * F;
    const float *const lse = p.lse + (size_t)head * p.n_q8 + start;
    const float log2_e = 1.44269504088896340736f, scale = p.scale * log2_e;
    float mass[4] = {0, 0, 0, 0};
    for (int i = first; i < n; i += 8) {
        uint32_t b[F / 8];
        load_rows<F>(reinterpret_cast<const uint32_t *>(q + (size_t)i * F), lane, b);
        const int row = i + lane % 4 * 2;
        const float less0 = row < n ? lse[row] * log2_e : 0.0f,
                    less1 = row + 1 < n ? lse[row + 1] * log2_e : 0.0f;
#pragma unroll
        for (int t = 0; t < 2; t++) {
            float s[4] = {0, 0, 0, 0};
#pragma unroll
            for (int j = 0; j < F / 16; j++) {
                const uint32_t a[4] = {k[2 * t][2 * j], k[2 * t + 1][2 * j], k[2 * t][2 * j + 1],
                                       k[2 * t + 1][2 * j + 1]};
                mma_in_order<true>(s, a, b[2 * j], b[2 * j + 1]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int query = row + e % 2, key = first + 16 * t + 8 * (e / 2) + lane / 4;
                const float x = kvd_exp2(s[e] * scale - (e % 2 ? less1 : less0));
                mass[2 * t + e / 2] += query < n && key < query ? x : 0.0f;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        mass[i] += __shfl_xor_sync(~0u, mass[i], 1);
        mass[i] += __shfl_xor_sync(~0u, mass[i], 2);
        const int key = first + 8 * i + lane / 4;
        if (lane % 4 == 0 && key < n)
            p.mass[(size_t)head * p.n_q8 + (start + key)] = mass[i];
    }
}

/* Border between less and more significant tokens. A token is less significant if its significance
 * is below `value`. The first `ties` tokens whose significance equals `value` are less significant
 * too. */
struct border {
    uint32_t value; /* bits of a non-negative float */
    int ties;
};

/* Finds two borders between less and more significant tokens. The significances of the tokens below
 * border out[k] add up to less than target[k]. */
__device__ void find_borders(const float *value, int n, const double (&target)[2], border (&out)[2])
{
    /* Bounds of two bisections, as bit patterns of floats. Bisection k finds the smallest x for
     * which all elements of `value` up to x add up to at least target[k]. */
    uint32_t lo[2] = {0, 0}, hi[2] = {0x7f800000u, 0x7f800000u};
    for (int round = 0; round < 31; round++) {
        const uint32_t mid[2] = {lo[0] + (hi[0] - lo[0]) / 2, lo[1] + (hi[1] - lo[1]) / 2};
        double sum[2] = {0, 0};
        for (int t = (int)threadIdx.x; t < n; t += (int)blockDim.x) {
            const float x = value[t];
            sum[0] += __float_as_uint(x) <= mid[0] ? (double)x : 0;
            sum[1] += __float_as_uint(x) <= mid[1] ? (double)x : 0;
        }
        leankv::sums<RANK_WARPS>(sum);
        for (int k = 0; k < 2; k++) {
            const bool enough = sum[k] >= target[k];
            hi[k] = enough ? mid[k] : hi[k];
            lo[k] = enough || lo[k] == hi[k] ? lo[k] : mid[k] + 1;
        }
    }
    double below[2] = {0, 0};
    for (int t = (int)threadIdx.x; t < n; t += (int)blockDim.x)
        for (int k = 0; k < 2; k++)
            below[k] += __float_as_uint(value[t]) < hi[k] ? (double)value[t] : 0;
    leankv::sums<RANK_WARPS>(below);
    for (int k = 0; k < 2; k++) {
        const double x = (double)__uint_as_float(hi[k]);
        out[k].value = hi[k];
        out[k].ties = x > 0 && target[k] > below[k] ? (int)ceil((target[k] - below[k]) / x) - 1 : 0;
    }
}

__global__ void __launch_bounds__(32 * RANK_WARPS) rank_kernel(const kvd_leankv_prompts p)
{
    /* For each precision, the largest mean attention that a token below this precision received, as
     * float bits. */
    __shared__ uint32_t most[KVD_LEANKV_LEVELS];
    const int g = (int)blockIdx.x, prompt = (int)blockIdx.y, n = p.q_len[prompt],
              start = p.q_start[prompt];
    const int body = max(n - p.window, 0);
    float *const value = p.mass + (size_t)(g * p.group) * p.n_q8 + start;
    int32_t *const source = p.source + (size_t)g * p.n_q8 + start;
    double total[1] = {0};
    for (int t = (int)threadIdx.x; t < n; t += (int)blockDim.x) {
        double sum = 0;
        for (int j = 0; j < p.group; j++)
            sum += (double)value[(size_t)j * p.n_q8 + t];
        value[t] = (float)(sum / p.group / max(n - t - 1, 1));
        total[0] += t < body ? (double)value[t] : 0;
    }
    leankv::sums<RANK_WARPS>(total);
    border at[2];
    const double target[2] = {p.tl * total[0], p.th * total[0]};
    find_borders(value, body, target, at);
    if (threadIdx.x < 2)
        most[threadIdx.x] = 0;
    __syncthreads();
    int n_high = 0, n_low = 0, seen[2] = {0, 0};
    for (int t0 = 0; t0 < n; t0 += 32 * RANK_WARPS) {
        const int t = t0 + (int)threadIdx.x;
        const uint32_t x = t < body ? __float_as_uint(value[t]) : ~0u;
        int all, level = t < n ? KVD_LEANKV_HIGH : -1;
        const int ties =
            leankv::scan<RANK_WARPS>((x == at[0].value) | (x == at[1].value) << 16, &all);
        const bool low =
            x < at[1].value || (x == at[1].value && seen[1] + (ties >> 16) < at[1].ties);
        const bool dropped =
            x < at[0].value || (x == at[0].value && seen[0] + (ties & 0xffff) < at[0].ties);
        seen[0] += all & 0xffff;
        seen[1] += all >> 16;
        level = dropped ? -1 : low ? KVD_LEANKV_LOW : level;
        if (dropped)
            atomicMax(&most[KVD_LEANKV_LOW], x);
        if (dropped || low)
            atomicMax(&most[KVD_LEANKV_HIGH], x);
        const int to = leankv::scan<RANK_WARPS>(
            (level == KVD_LEANKV_HIGH) | (level == KVD_LEANKV_LOW) << 16, &all);
        if (level == KVD_LEANKV_HIGH)
            source[n_high + (to & 0xffff)] = t;
        else if (level == KVD_LEANKV_LOW)
            source[n - 1 - n_low - (to >> 16)] = t;
        n_high += all & 0xffff;
        n_low += all >> 16;
    }
    __syncthreads();
    const int head = leankv::head_of(p.pool, p.slot[prompt], p.layer, g);
    if (threadIdx.x || head < 0)
        return;
    kvd_leankv_head *const h = p.pool.head + head;
    h->n[KVD_LEANKV_HIGH] = n_high;
    h->n[KVD_LEANKV_LOW] = n_low;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        h->cut[l] =
            total[0] > 0 ? (float)((double)__uint_as_float(most[l]) * body / total[0]) : 0.0f;
    atomicAdd((unsigned long long *)&p.pool.state->entries[KVD_LEANKV_HIGH],
              (unsigned long long)n_high);
    atomicAdd((unsigned long long *)&p.pool.state->entries[KVD_LEANKV_LOW],
              (unsigned long long)n_low);
}

template <int F> struct staged {
    uint8_t key[KVD_LEANKV_TILE][F], value[KVD_LEANKV_TILE][F];
};

template <int F>
__device__ void code_token(const kvd_leankv_prompts &p, const kvd_leankv_precision &l, int prompt,
                           int g, int t, int r, const leankv::entry &e, int lane, staged<F> *to)
{
    constexpr int N = F / 32;
    const __nv_bfloat16 *const k = fresh_page(p, prompt, g, t / PAGE);
    float x[N], y[N];
    leankv::load_row<N>(k, t % PAGE, lane, x);
    leankv::load_row<N>(k + PAGE * F, t % PAGE, lane, y);
    const __half2 k_scale = leankv::scale_of<N>(x, l.k_bits),
                  v_scale = leankv::scale_of<N>(y, l.v_bits);
#pragma unroll
    for (int i = 0; i < N; i++) {
        to->key[r][lane + 32 * i] = (uint8_t)leankv::code_of(x[i], k_scale, l.k_bits);
        to->value[r][lane + 32 * i] = (uint8_t)leankv::code_of(y[i], v_scale, l.v_bits);
    }
    if (lane)
        return;
    const int start = p.q_start[prompt], n = p.q_len[prompt];
    *leankv::key_meta_of(l, e) = k_scale;
    *leankv::value_meta_of(l, e) = v_scale;
    *leankv::position_of(l, e) = t;
    *leankv::score_of(l, e) =
        p.mass[(size_t)(g * p.group) * p.n_q8 + (start + t)] * (float)max(n - t - 1, 1);
}

template <int F>
__global__ void __launch_bounds__(32 * CODE_WARPS) code_kernel(const kvd_leankv_prompts p)
{
    __shared__ staged<F> all[CODE_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = (int)blockIdx.y,
              prompt = (int)blockIdx.z, head = leankv::head_of(p.pool, p.slot[prompt], p.layer, g);
    if (head < 0)
        return;
    const kvd_leankv_head h = p.pool.head[head];
    const int high = (h.n[KVD_LEANKV_HIGH] + KVD_LEANKV_TILE - 1) / KVD_LEANKV_TILE;
    int tile = (int)blockIdx.x * CODE_WARPS + warp;
    const int level = tile < high ? KVD_LEANKV_HIGH : KVD_LEANKV_LOW;
    tile -= level == KVD_LEANKV_HIGH ? 0 : high;
    const int first = tile * KVD_LEANKV_TILE, rows = min(h.n[level] - first, (int)KVD_LEANKV_TILE);
    const kvd_leankv_precision &l = p.pool.layout.level[level];
    if (rows <= 0 || first / l.tokens >= h.pages[level])
        return;
    const int32_t *const source = p.source + (size_t)g * p.n_q8 + p.q_start[prompt];
    const int last = p.q_len[prompt] - 1;
    leankv::entry e =
        leankv::entry_of(p.pool, p.pool.table + (size_t)head * p.pool.table_length, level, first);
    const int at = e.at;
    staged<F> *const to = &all[warp];
    for (int r = 0; r < rows; r++) {
        e.at = at + r;
        const int i = first + r;
        code_token<F>(p, l, prompt, g, source[level == KVD_LEANKV_HIGH ? i : last - i], r, e, lane,
                      to);
    }
    for (int r = rows; r < KVD_LEANKV_TILE; r++)
        for (int f = lane; f < F; f += 32)
            to->key[r][f] = to->value[r][f] = 0;
    __syncwarp();
    e.at = at;
    uint32_t *const keys = leankv::keys_of(p.pool.layout, l, e), *const values = leankv::values_of(
                                                                     p.pool.layout, l, e);
    const int per = F * l.k_bits / 128, words = F * l.v_bits / 64;
    for (int w = 0; w < 2 * per; w++)
        keys[kvd_leankv_word(2 * per, lane, w)] =
            leankv::key_word<F>(to->key, l.k_bits, lane / 4 + w / per * 8, lane % 4, w % per);
    for (int w = 0; w < words; w++) {
        int f;
        uint32_t word = 0;
        const int n = leankv::value_features(l.v_bits, lane, w, &f);
        for (int k = 0; k < n; k++)
            for (int i = 0; i < 4; i++) {
                const int r = lane % 4 * 2 + i % 2 + i / 2 * 8;
                word |= (uint32_t)to->value[r][f + 8 * k]
                        << kvd_leankv_value_place(F, l.v_bits, r, f + 8 * k).shift;
            }
        values[kvd_leankv_word(words, lane, w)] = word;
    }
}

template <int F> cudaError_t masses(const kvd_leankv_prompts *p, cudaStream_t stream)
{
    const int keys = MASS_WARPS * WARP_KEYS;
    mass_kernel<F><<<dim3((p->pool.n_kv_heads * p->group), ((p->longest + keys - 1) / keys), p->n),
                     32 * MASS_WARPS, 0, stream>>>(*p);
    return cudaGetLastError();
}

template <int F> cudaError_t codes(const kvd_leankv_prompts *p, cudaStream_t stream)
{
    const int tiles = p->longest / KVD_LEANKV_TILE + 2;
    code_kernel<F><<<dim3(((tiles + CODE_WARPS - 1) / CODE_WARPS), p->pool.n_kv_heads, p->n),
                     32 * CODE_WARPS, 0, stream>>>(*p);
    return cudaGetLastError();
}

enum { THREADS = 1024, WARPS = THREADS / 32 };

__device__ int heads_of(const kvd_leankv_pool &p, int n, int n_layers)
{
    return n * n_layers * p.n_kv_heads;
}

/* Converts index i in an array [slots][n_layers][KV heads] to an index in the pool. slot: slot
 * numbers of this array. Returns -1 if the slot has no request. */
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

/* Reduces the token counts in *h to the numbers of tokens that fit into the KV head's pages. */
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
        int32_t *const table = p.table + (size_t)at * p.table_length;
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
        const int32_t *const table = p.table + (size_t)at * p.table_length;
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
    __syncthreads(); /* all threads must have read p.state->end */
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

extern "C" cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream)
{
    return leankv::with_width(
        p->pool.layout.d, [&](auto width) { return masses<decltype(width)::value>(p, stream); });
}

extern "C" cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream)
{
    rank_kernel<<<dim3(p->pool.n_kv_heads, p->n), 32 * RANK_WARPS, 0, stream>>>(*p);
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess)
        e = kvd_leankv_grow(&p->pool, p->slot, p->n, p->layer, 1, 0, stream);
    if (e != cudaSuccess)
        return e;
    return leankv::with_width(p->pool.layout.d,
                              [&](auto width) { return codes<decltype(width)::value>(p, stream); });
}

extern "C" size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p)
{
    return (size_t)p->n_layers * p->n_kv_heads *
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
