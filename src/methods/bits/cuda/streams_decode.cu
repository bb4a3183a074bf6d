/* Decodes entropy-coded blocks of K and V. A warp decodes one stream of a page. */
#include <cuda_bf16.h>

#include "common/cuda/launch.cuh"
#include "methods/bits/cuda/streams.h"

namespace
{

enum {
    FEW_WARPS = 8,
    MANY_WARPS = 16,
    CHUNK = 4 * KVD_LANES,
    RING = 4 * CHUNK,
    TILE = 4,                  /* tokens that a warp collects before it writes them */
    OCTETS = KVD_LANES / TILE, /* groups of 8 components that a warp writes at once */
    /* Distance in elements between successive tokens of a tile in shared memory, padded against
     * bank conflicts. */
    TILE_PITCH = KVD_STREAM_GROUPS * KVD_LANES + 16,
    LARGE_LOOKUP = 1 << 16
};

/* Sizes in bytes of the shared memory of a warp. The ring buffer comes first and is aligned to its
 * size. */
enum {
    RING_BYTES = RING * sizeof(uint16_t),
    TILE_BYTES = TILE * TILE_PITCH * sizeof(uint16_t),
    WARP_BYTES = RING_BYTES + TILE_BYTES
};

/* Words of an entropy-coded stream, which decoding takes from the last to the first. */
struct word_stack {
    const uint16_t *from;
    uint32_t ring; /* shared-memory address; word i is at i % RING */
    int end, at;
    /* Index of the chunk of words that was copied to the ring buffer most recently. Chunks are
     * copied in descending order. */
    int low;
};

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void request(const word_stack &w, int chunk, int lane)
{
    const int i = chunk * CHUNK + 4 * lane;
    if (chunk >= 0 && i < w.end)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(w.ring + i % RING * 2),
                     "l"(w.from + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all copies that were started, except the latest. */
__device__ __forceinline__ void await(void)
{
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncwarp();
}

__device__ __forceinline__ word_stack words_of(const block_of &from, int room, uint32_t ring,
                                               int lane)
{
    const int n = min((int)from.counts[0], room), top = (n - 1) >> 7;
    const word_stack w = {from.word, ring, n, n, top - 3};
    __syncwarp();
    for (int i = 0; i < 4; i++)
        request(w, top - i, lane);
    await();
    return w;
}

/* Waits until the ring buffer has all compressed 16-bit words that the next token may take. */
__device__ __forceinline__ void prepare_token(word_stack &w, int lane)
{
    static_assert(KVD_STREAM_GROUPS * KVD_LANES <= 2 * CHUNK && CHUNK == 1 << 7, "chunks");
    const int low = ((w.at - 1) >> 7) - 3;
    if (low >= w.low)
        return;
    __syncwarp();
    while (w.low > low)
        request(w, --w.low, lane);
    await();
}

/* Takes one word from the stream for each lane whose coder state x is too small. */
__device__ __forceinline__ void refill(word_stack &w, int lane, uint32_t &x)
{
    const bool wants = x < KVD_STREAM_LEAST;
    const uint32_t mask = __ballot_sync(~0u, wants);
    if (wants)
        x = x << KVD_STREAM_WORD_BITS |
            kvd_stream_half(((w.at - __popc(mask >> lane)) * 2 & (RING_BYTES - 1)) | w.ring);
    w.at = max(w.at - __popc(mask), 0);
}

/* Decodes the next integer from the state x of an rANS decoder. Returns the byte offset of its
 * entry in the lookup table, not the integer itself. */
template <int LANES>
__device__ __forceinline__ uint32_t take(kvd_stream_at image, const kvd_stream_lookup &g,
                                         uint32_t lane, uint32_t &x)
{
    uint32_t offset;
    const uint32_t number = x & ((1u << KVD_STREAM_SHIFT) - 1),
                   word = kvd_stream_look_up(image, g, LANES, lane, number, &offset),
                   start = word & 0xffff;
    x = ((word >> 16) - start) * (x >> KVD_STREAM_SHIFT) + (number - start);
    return offset;
}

__device__ __noinline__ int find(const uint16_t *start, int n, uint32_t x)
{
    return kvd_stream_find(start, n, x);
}

/* Decodes one integer from coder state x, with a frequency table in global memory. Returns the
 * integer's index in the table. */
__device__ __forceinline__ uint32_t search(const uint16_t *start, int n, uint32_t &x)
{
    const int i = find(start, n, x);
    x = kvd_stream_take(x, start[i], (uint32_t)(start[i + 1] - start[i]));
    return (uint32_t)i;
}

__device__ __forceinline__ kvd_stream_lookup group_at(kvd_stream_at image, int k)
{
    kvd_stream_lookup g;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(g.bucket), "=r"(g.row), "=r"(g.shift), "=r"(g.least)
                 : "r"(image + (uint32_t)(k * sizeof g)));
    return g;
}

/* Copies the lookup tables of entropy-coded stream i to shared memory. All threads of the CTA must
 * call it. */
__device__ void load_image(const uint32_t *lookup, int i, uint4 *to)
{
    const uint32_t first = __ldg(lookup + i), end = __ldg(lookup + i + 1);
    const uint4 *const from = reinterpret_cast<const uint4 *>(lookup + first);
    for (uint32_t at = threadIdx.x; at < (end - first) / 4; at += blockDim.x)
        to[at] = __ldg(from + at);
    __syncthreads();
}

__device__ __forceinline__ uint16_t bf16_bits(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

struct warp_memory {
    uint32_t ring; /* shared-memory address of the warp's ring of words */
    uint16_t *tile;
    unsigned char *rest;
};

__device__ __forceinline__ warp_memory warp_memory_of(unsigned char *memory)
{
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    unsigned char *const tiles = memory + warps * RING_BYTES;
    return {shared_address(memory) + (uint32_t)(warp * RING_BYTES),
            reinterpret_cast<uint16_t *>(tiles + warp * TILE_BYTES), tiles + warps * TILE_BYTES};
}

__device__ __forceinline__ uint32_t two_bf16(float low, float high)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ int latent_index(int j, int t)
{
    return j / 8 * (8 * KVD_PAGE_TOKENS) + t * 8 + j % 8;
}

__device__ __forceinline__ float decoded(float q, float offset, float step)
{
    return (q + (q > 0 ? offset : q < 0 ? -offset : 0.0f)) * step;
}

__device__ void put_exceptions(const kvd_stream_side &side, const block_of &from, uint16_t *to,
                               int lane)
{
    const int n = min((int)from.counts[1], side.room.exceptions);
    for (int i = lane; i < n; i += KVD_LANES) {
        const kvd_stream_exception e = from.exception[i];
        const int j = (int)(e.place & 0xffff), t = (int)(e.place >> 16) % KVD_PAGE_TOKENS;
        if (j < side.tables.kept)
            to[latent_index(j, t)] = bf16_bits(decoded((float)e.q, side.offset, (float)side.step));
    }
}

/* Entropy-coded stream s of a page, from which tokens `first` to `end` - 1 are decoded. */
struct page_stream {
    const kvd_stream_side &side;
    kvd_stream_at image;
    /* Address in shared memory of a table of bf16 numbers: the decoded number of each integer. */
    uint32_t value;
    int page, s, n, first, end;
    uint16_t *to;
};

__device__ __forceinline__ float scaled_code(__half2 scale, uint32_t code)
{
    /* A float with the bits 0x4b000000 | code is the number 2^23 + code. */
    return scaled(scale, __uint_as_float(0x4b000000 | code) - 8388608.0f);
}

__device__ __forceinline__ uint4 scale_octet(const page_stream &p, const __half2 *scales, int j,
                                             uint4 codes)
{
    const int last = p.side.tables.kept - 1, g = __ldg(p.side.group_of + j);
    uint32_t x[4] = {codes.x, codes.y, codes.z, codes.w};
    if (g == __ldg(p.side.group_of + min(j + 7, last))) {
        const __half2 scale = scales[g];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = two_bf16(scaled_code(scale, x[i] & 0xffff), scaled_code(scale, x[i] >> 16));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = two_bf16(
                scaled_code(scales[__ldg(p.side.group_of + min(j + 2 * i, last))], x[i] & 0xffff),
                scaled_code(scales[__ldg(p.side.group_of + min(j + 2 * i + 1, last))], x[i] >> 16));
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ void prefetch_scales(const page_stream &p, int lane)
{
    const char *const from = reinterpret_cast<const char *>(block_at(p.side, p.page, p.s).scale);
    for (int i = 128 * lane; i < KVD_PAGE_TOKENS * p.side.room.scales * (int)sizeof(__half2);
         i += 128 * KVD_LANES)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

/* Copies the decoded elements of four tokens from shared memory to the page. An entropy-coded
 * stream has only a part of each token's elements. */
template <bool SCALES>
__device__ __forceinline__ void write_tile(const page_stream &p, const uint16_t *tile, int t0,
                                           int lane)
{
    const int t = t0 + lane % TILE, kept = p.side.tables.kept;
    if (t < p.first || t >= p.end)
        return;
    tile += lane % TILE * TILE_PITCH;
#pragma unroll(SCALES ? 2 : 4)
    for (int i = 0; i < KVD_STREAM_GROUPS * KVD_LANES / 8 / OCTETS; i++) {
        const int octet = i * OCTETS + lane / TILE,
                  j = KVD_LANES * (p.s + octet / 4 * p.n) + octet % 4 * 8;
        if (j >= kept)
            continue;
        uint4 x = *reinterpret_cast<const uint4 *>(tile + 8 * octet);
        if (SCALES)
            x = scale_octet(p, block_at(p.side, p.page, p.s).scale + t * p.side.room.scales, j, x);
        *reinterpret_cast<uint4 *>(p.to + latent_index(j, t)) = x;
    }
}

/* Decodes one component of K or V as an integer: number `lane` of the 32 components in group k of a
 * stream. Searches the frequency tables in global memory. */
__device__ __forceinline__ int search_component(const page_stream &p, int k, int lane, uint32_t &x)
{
    const int j = KVD_LANES * (p.s + k * p.n) + lane;
    if (j >= p.side.tables.kept)
        return 0;
    const kvd_stream_component of = p.side.tables.component[j];
    return (int)search(p.side.tables.start + of.at, of.n, x) + of.least;
}

/* Decodes one component of K or V: number `lane` of the 32 components in group k of a stream.
 * Returns bf16 or, if SCALES is true, an integer that is scaled later. WHOLE: all lookup tables are
 * in shared memory. */
template <bool SCALES, bool WHOLE>
__device__ __forceinline__ uint16_t component(const page_stream &p, const kvd_stream_lookup &g,
                                              int k, int lane, uint32_t &x)
{
    if (!WHOLE && !g.bucket) {
        const int q = search_component(p, k, lane, x);
        return SCALES ? (uint16_t)q
                      : bf16_bits(decoded((float)q, p.side.offset, (float)p.side.step));
    }
    const uint32_t row =
        take<KVD_LANES>(p.image, g, (uint32_t)lane, x) / (4 * KVD_LANES) + (uint32_t)g.least;
    return (uint16_t)(SCALES ? row : kvd_stream_half(p.value + 2 * (row + KVD_STREAM_HALF)));
}

/* Decodes the entropy-coded stream `p`, which has some elements of each token's vector. Starts with
 * the newest token. */
template <bool SCALES, bool WHOLE>
__device__ __forceinline__ void decode_stream(const page_stream &p, const warp_memory &m, int lane)
{
    const int groups = (kvd_stream_n_groups(p.side.tables.kept) - p.s + p.n - 1) / p.n;
    const block_of from = block_at(p.side, p.page, p.s);
    if (SCALES)
        prefetch_scales(p, lane);
    word_stack w = words_of(from, p.side.room.words, m.ring, lane);
    uint32_t x = from.state[lane];
    for (int t = p.end - 1; t >= p.first; t--) {
        uint16_t *const tile = m.tile + t % TILE * TILE_PITCH + lane;
        prepare_token(w, lane);
        kvd_stream_lookup g = group_at(p.image, 0);
        /* The loop is not unrolled, so that it fits into the instruction cache. */
#pragma unroll 1
        for (int k = 0; k < groups; k++) {
            tile[KVD_LANES * k] = component<SCALES, WHOLE>(p, g, k, lane, x);
            g = group_at(p.image, (k + 1) % KVD_STREAM_GROUPS);
            refill(w, lane, x);
        }
        if (t % TILE == 0 || t == p.first) {
            __syncwarp();
            write_tile<SCALES>(p, m.tile, t / TILE * TILE, lane);
            __syncwarp();
        }
    }
}

/* Writes the numbers of a page that are not in its entropy-coded stream. Each vector ends with a 1,
 * by which the mean of K or V is multiplied, and zeros. */
__device__ __forceinline__ void end_page(const page_stream &p, int lane)
{
    const int kept = p.side.tables.kept;
    if ((kvd_stream_n_groups(kept) - 1) % p.n == p.s)
        for (int j = kept; j < p.side.rank; j++)
            for (int t = p.first + lane; t < p.end; t += KVD_LANES)
                p.to[latent_index(j, t)] = bf16_bits(j == kept);
    put_exceptions(p.side, block_at(p.side, p.page, p.s), p.to, lane);
}

struct decode_args {
    kvd_stream_batch batch;
    kvd_stream_side side[2];
    uint16_t *latents;
    size_t latent_page;
};

/* Size of the table in shared memory that has the bf16 number to which each integer of K or V
 * decodes. */
enum { VALUES = 2 * KVD_STREAM_HALF, VALUE_BYTES = VALUES * sizeof(uint16_t) };

template <bool SCALES, bool WHOLE>
__global__ void __launch_bounds__(32 * MANY_WARPS, 2)
    decode_kernel(const __grid_constant__ decode_args a)
{
    extern __shared__ __align__(RING_BYTES) unsigned char memory[];
    const kvd_stream_side &side = a.side[blockIdx.z];
    const int s = (int)blockIdx.y, n = side.room.n_streams, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    const warp_memory m = warp_memory_of(memory);
    uint16_t *const value = reinterpret_cast<uint16_t *>(m.rest);
    if (s >= n)
        return;
    for (int i = (int)threadIdx.x; i < VALUES; i += (int)blockDim.x)
        value[i] = bf16_bits(decoded((float)(i - KVD_STREAM_HALF), side.offset, (float)side.step));
    load_image(side.lookup, s, reinterpret_cast<uint4 *>(m.rest + VALUE_BYTES));
    int p = (int)blockIdx.x * warps + warp;
    for (int b = 0; b < a.batch.n; b++) {
        const int coded = __ldg(a.batch.kv_len + b) - 1,
                  pages = max((coded + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, 0);
        for (; p < pages; p += (int)gridDim.x * warps) {
            const int t0 = KVD_PAGE_TOKENS * p, page = page_number(a.batch, b, p);
            const page_stream of = {side,
                                    shared_address(m.rest + VALUE_BYTES),
                                    shared_address(value),
                                    page,
                                    s,
                                    n,
                                    max(a.batch.n_sink - t0, 0),
                                    min(coded - t0, (int)KVD_PAGE_TOKENS),
                                    a.latents + (size_t)page * a.latent_page + side.latent_at};
            if (of.first >= of.end)
                continue;
            decode_stream<SCALES, WHOLE>(of, m, lane);
            end_page(of, lane);
        }
        p -= pages;
    }
}

struct restore_args {
    kvd_stream_batch batch;
    kvd_cachegen_layer layer;
};

/* Sizes in shared memory, in bytes. ROW_BYTES: a row of floats, one for each channel. ROWS_BYTES: a
 * row of quantisation steps, and for each warp a row with a decoded token. */
enum { ROW_BYTES = KVD_WIDTH_NARROW * sizeof(float), ROWS_BYTES = (1 + MANY_WARPS) * ROW_BYTES };

/* Decodes the quantised number of a token in channel 32 k + lane, from coder state x. */
template <bool FIRST, bool WHOLE>
__device__ __forceinline__ float code_of_channel(const head_page &h, kvd_stream_at image,
                                                 const kvd_stream_lookup &g, int k, int lane,
                                                 uint32_t &x)
{
    const int j = KVD_LANES * k + lane;
    if (j >= h.d)
        return 0;
    if (!WHOLE && !g.bucket)
        return (float)search(h.table + (FIRST ? 0 : (1 + j) * KVD_STREAM_TABLE),
                             FIRST ? 256 : KVD_CACHEGEN_CODES, x);
    return (float)(FIRST ? take<1>(image, g, 0, x) / 4
                         : take<KVD_LANES>(image, g, (uint32_t)lane, x) / (4 * KVD_LANES));
}

__device__ __forceinline__ void write_rows(const head_page &h, const uint16_t *tile, int t0,
                                           uint16_t *to, int lane)
{
    tile += lane % TILE * TILE_PITCH;
    for (int octet = lane / TILE; 8 * octet < h.d; octet += OCTETS)
        *reinterpret_cast<uint4 *>(to + blocked(t0 + lane % TILE, 8 * octet, h.d)) =
            *reinterpret_cast<const uint4 *>(tile + 8 * octet);
}

/* Decodes token t of a page. If FIRST is true, the token is the first of its group. Otherwise, its
 * differences from the first token are decoded. WHOLE: all lookup tables are in shared memory. */
template <bool FIRST, bool WHOLE>
__device__ __forceinline__ void decode_token(const head_page &h, kvd_stream_at image,
                                             const float *step, float *anchor, int t,
                                             uint16_t *tile, int lane, word_stack &w, uint32_t &x)
{
    const __half2 scale = FIRST ? h.scale[t / h.l.group] : __half2();
#pragma unroll 1
    for (int k = 0; KVD_LANES * k < h.d; k++) {
        const kvd_stream_lookup g = group_at(image, FIRST ? KVD_CACHEGEN_FIRST : k);
        const int j = KVD_LANES * k + lane;
        const float code = code_of_channel<FIRST, WHOLE>(h, image, g, k, lane, x);
        float y;
        if (FIRST)
            anchor[j] = y = scaled(scale, code);
        else
            y = __fadd_rn(anchor[j], __fmul_rn(step[j], code - KVD_CACHEGEN_ZERO));
        tile[KVD_LANES * k] = bf16_bits(y);
        refill(w, lane, x);
    }
}

/* Decodes the tokens of a page, from the oldest to the newest. Numbers are rounded as on the
 * CPU. */
template <bool WHOLE>
__device__ __forceinline__ void decode_page(const head_page &h, kvd_stream_at image,
                                            const float *step, float *anchor, uint16_t *to,
                                            const warp_memory &m, int lane)
{
    word_stack w = words_of(h.block, h.l.room.words, m.ring, lane);
    uint32_t x = h.block.state[lane];
    for (int t = 0; t < KVD_PAGE_TOKENS; t++) {
        uint16_t *const tile = m.tile + t % TILE * TILE_PITCH + lane;
        prepare_token(w, lane);
        if (t % h.l.group)
            decode_token<false, WHOLE>(h, image, step, anchor, t, tile, lane, w, x);
        else
            decode_token<true, WHOLE>(h, image, step, anchor, t, tile, lane, w, x);
        if (t % TILE == TILE - 1) {
            __syncwarp();
            write_rows(h, m.tile, t - (TILE - 1), to, lane);
            __syncwarp();
        }
    }
}

template <bool WHOLE>
__global__ void __launch_bounds__(32 * MANY_WARPS)
    restore_kernel(const __grid_constant__ restore_args a)
{
    extern __shared__ __align__(RING_BYTES) unsigned char memory[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32,
              warps = (int)blockDim.x / 32;
    const warp_memory room = warp_memory_of(memory);
    float *const step = reinterpret_cast<float *>(room.rest), *const anchor =
                                                                  step +
                                                                  (1 + warp) * KVD_WIDTH_NARROW;
    const kvd_stream_at image = shared_address(room.rest + ROWS_BYTES);
    for (int i = (int)threadIdx.x; i < a.layer.wide; i += (int)blockDim.x)
        step[i] = __ldg(a.layer.step + (size_t)blockIdx.y * (size_t)a.layer.wide + i);
    load_image(a.layer.lookup, (int)blockIdx.y, reinterpret_cast<uint4 *>(room.rest + ROWS_BYTES));
    int p = (int)blockIdx.x * warps + warp;
    for (int b = 0; b < a.batch.n; b++) {
        const int m = __ldg(a.batch.kv_len + b),
                  pages = max((m + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, 0);
        for (; p < pages; p += (int)gridDim.x * warps) {
            const int page = page_number(a.batch, b, p), left = m - KVD_PAGE_TOKENS * p;
            const head_page h = head_page_of(a.layer, page, (int)blockIdx.y);
            uint16_t *const to = rows_of(h, a.layer.rows, (size_t)page);
            if (p < (m - 1) / KVD_PAGE_TOKENS)
                decode_page<WHOLE>(h, image, step, anchor, to, room, lane);
            else
                copy_page(rows_of(h, a.layer.ring, (size_t)a.batch.slot[b]), to, left, h.d, lane);
        }
        p -= pages;
    }
}

cudaError_t most_memory(size_t *bytes)
{
    int device = 0, most = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    *bytes = (size_t)most;
    return e;
}

/* Launches a kernel that decodes entropy-coded pages. y, z: sizes of the grid; y * z is the number
 * of streams per page. */
template <typename ARGS>
cudaError_t launch(void (*kernel)(const ARGS), const ARGS &a, size_t lookup, unsigned y, unsigned z,
                   cudaStream_t stream)
{
    const size_t pages = (size_t)a.batch.n * (size_t)a.batch.max_pages, tables = (size_t)y * z,
                 sms = (size_t)a.batch.n_sms;
    const bool many = lookup > LARGE_LOOKUP || pages * tables > MANY_WARPS * sms;
    const size_t warps = many ? MANY_WARPS : FEW_WARPS, bytes = lookup + warps * WARP_BYTES;
    size_t most = 0;
    const cudaError_t e = most_memory(&most);
    if (e != cudaSuccess || bytes > most)
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    /* Every CTA loads the lookup tables, so no more CTAs are launched than can run at the same
     * time. */
    const size_t at_once = most / bytes * sms / tables, want = (pages + warps - 1) / warps,
                 x = want < at_once ? want : at_once;
    return kvd_launch(kernel, dim3((unsigned)(x ? x : 1), y, z), (unsigned)(32 * warps), bytes,
                      stream, a);
}

} // namespace

cudaError_t kvd_streams_lookup_room(size_t *bytes)
{
    static_assert((int)ROWS_BYTES >= (int)VALUE_BYTES, "the larger of both is left out");
    const cudaError_t e = most_memory(bytes);
    *bytes -= e == cudaSuccess ? MANY_WARPS * WARP_BYTES + ROWS_BYTES : 0;
    return e;
}

cudaError_t kvd_streams_decode(const kvd_stream_batch *b, const kvd_stream_side side[2],
                               uint16_t *latents, size_t latent_page, cudaStream_t stream)
{
    const size_t k = side[0].lookup_size.largest, v = side[1].lookup_size.largest,
                 lookup = k > v ? k : v;
    const decode_args a = {*b, {side[0], side[1]}, latents, latent_page};
    const int n = side[0].room.n_streams > side[1].room.n_streams ? side[0].room.n_streams
                                                                  : side[1].room.n_streams;
    const bool scales = side[0].room.scales != 0,
               whole = side[0].lookup_size.whole && side[1].lookup_size.whole;
    if (bad(b) || side[0].room.n_streams < 1 || side[1].room.n_streams < 1)
        return cudaErrorInvalidValue;
    return launch(scales  ? whole ? decode_kernel<true, true> : decode_kernel<true, false>
                   : whole ? decode_kernel<false, true>
                          : decode_kernel<false, false>,
                  a, lookup + VALUE_BYTES, (unsigned)n, 2, stream);
}

cudaError_t kvd_cachegen_restore(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                                 cudaStream_t stream)
{
    const restore_args a = {*b, *l};
    if (bad(b) || bad_layer(l))
        return cudaErrorInvalidValue;
    return launch(l->lookup_size.whole ? restore_kernel<true> : restore_kernel<false>, a,
                  l->lookup_size.largest + ROWS_BYTES, 2 * (unsigned)l->map.n_kv_heads, 1, stream);
}
