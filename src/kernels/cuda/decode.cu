/* Decode attention on a paged cache whose heads have different numbers of dimensions. A CTA's last
 * warp copies pages into a ring buffer; the other warps compute. */
#include "common/cuda/launch.cuh"
#include "common/half.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_merge.cuh"
#include "kernels/cuda/decode_tile.cuh"
#include "kernels/cuda/decode_work.h"

enum {
    PAGES_IN_FLIGHT = 64, /* largest number of pages in the ring, a power of 2 */
    /* Number of concurrent copies, of up to BATCH pages each, for which the ring buffer has
     * room. */
    BATCHES = 5,
    BATCH = 8,
    SHORT = 4, /* largest number of pages of a KV head that one warp computes alone */
    GROUPS = 4 /* groups of 8 tokens that a warp computes at a time */
};

/* Number of computing warps. Wide heads have fewer, because their pages need more shared memory. */
template <int HALVES, int WIDTH16>
static constexpr int n_warps = WIDTH16 > KVD_WIDTH_NARROW / 16 ? 4
                               : HALVES == 2                   ? 7
                                                               : 8;

typedef struct {
    uint32_t ring, full, empty;
    uint32_t *offset; /* [PAGES_IN_FLIGHT] byte offset of each page in the ring */
} pipes;

typedef struct {
    int n_segments, next;
    kvd_decode_segment segment;
    int32_t pages; /* numbers of the first 32 pages, one per lane */
} first_work;

static __device__ __forceinline__ kvd_decode_segment load_segment(const kvd_decode_segment *at)
{
    union {
        int4 word[2];
        kvd_decode_segment segment;
    } u;
    u.word[0] = __ldg(reinterpret_cast<const int4 *>(at));
    u.word[1] = __ldg(reinterpret_cast<const int4 *>(at) + 1);
    return u.segment;
}

static __device__ __forceinline__ int pages_of(int n_tokens)
{
    return (n_tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/* Loads one page table entry per lane: lane i returns entry i, counted from page `from` of the
 * CTA's token range. */
static __device__ __forceinline__ int32_t load_pages(const params &p, const kvd_decode_segment &s,
                                                     int from, int lane)
{
    const int shift = p.log2_pieces, i = (from << shift) + lane;
    const size_t first = (size_t)s.request * (size_t)p.args.max_pages + (size_t)s.page;
    return i << (6 - shift) < s.n_tokens ? __ldg(p.args.page_table + (first << shift) + (size_t)i)
                                         : 0;
}

static __device__ __forceinline__ bool copies_tokens(const params &p)
{
    return p.log2_pieces > 3;
}

/* Sets token[i] to the index in the pool of one token of a page: token number 8 * i + lane % 8.
 * Sets -1 if this token is after the CTA's token range. */
static __device__ __forceinline__ void load_tokens(const params &p, const kvd_decode_segment &s,
                                                   int page, int lane,
                                                   int32_t (&token)[KVD_PAGE_TOKENS / 8])
{
    const int log2_tokens = 6 - p.log2_pieces, in_piece = lane & ((1 << log2_tokens) - 1);
    const int32_t *const table =
        p.args.page_table +
        (((size_t)s.request * (size_t)p.args.max_pages + (size_t)(s.page + page)) << p.log2_pieces);
#pragma unroll
    for (int i = 0; i < KVD_PAGE_TOKENS / 8; i++) {
        const int t = 8 * i + lane % 8;
        token[i] = KVD_PAGE_TOKENS * page + t < s.n_tokens
                       ? (__ldg(table + (t >> log2_tokens)) << log2_tokens) + in_piece
                       : -1;
    }
}

/* Returns the groups of 8 tokens that this lane copies. A page is divided among 1 << shift lanes,
 * and this lane has index `piece` among them. */
static __device__ __forceinline__ piece_groups groups_of(int32_t entry, int piece, int shift,
                                                         int group, int groups)
{
    const int each = 8 >> shift, first = piece * each, from = max(first, group),
              to = min(first + each, group + groups);
    return {(entry & ((1 << shift) - 1)) * each + from - first, from, to - from};
}

static __device__ __forceinline__ first_work load_first(const params &p, int lane)
{
    const kvd_decode_cta *cta = p.work.cta + blockIdx.x;
    union {
        int4 word[2];
        kvd_decode_segment segment;
    } u;
    first_work w;
    const int4 head = load_now4(cta);
    u.word[0] = load_now4(&cta->first_segment);
    u.word[1] = load_now4((const char *)&cta->first_segment + sizeof(int4));
    w.n_segments = head.x;
    w.next = head.y;
    w.segment = u.segment;
    w.pages = 0;
    if (w.n_segments && lane == 0)
        stamp(p, AT_WORK);
    if (w.n_segments)
        w.pages = load_pages(p, w.segment, 0, lane);
    return w;
}

/* Waits until the computing warps have read n pages, so that their room can be reused. All lanes
 * poll, because the tool racecheck requires it. */
static __device__ __forceinline__ void wait_for_room(const pipes &pipe, uint32_t first, int n)
{
    uint32_t all;
    do {
        all = 1;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const uint32_t page = first + (uint32_t)min(i, n - 1);
            all &= pipe_try(pipe.empty + 8 * (page % PAGES_IN_FLIGHT), page / PAGES_IN_FLIGHT & 1);
        }
    } while (!all);
}

/* Pages that are copied together into the ring buffer. The first `fit` of them start at byte `head`
 * of the buffer, the others at byte 0. */
typedef struct {
    int first, count, fit, head;
    uint32_t before;
} page_batch;

static __device__ __forceinline__ void copy_batch(const params &p, const pipes &pipe,
                                                  const kvd_decode_segment &s, const char *pool,
                                                  int32_t pages, const page_batch &batch,
                                                  int k_bytes, int v_bytes, uint64_t policy,
                                                  int lane)
{
    const int shift = p.log2_pieces, place = lane >> shift, piece = lane & ((1 << shift) - 1),
              page = batch.first + place, bytes = k_bytes + v_bytes;
    const int32_t entry = __shfl_sync(~0u, pages, ((batch.first << shift) + lane) % 32);
    const uint32_t mine = (batch.before + (uint32_t)place) % PAGES_IN_FLIGHT;
    const int at = place < batch.fit ? batch.head + place * bytes : (place - batch.fit) * bytes;
    const int tokens = min(KVD_PAGE_TOKENS, s.n_tokens - KVD_PAGE_TOKENS * page);
    const char *from = pool + 2 * (size_t)(entry >> shift) * (size_t)p.args.map.page_elements;
    if (place < batch.count && piece == 0)
        pipe.offset[mine] = (uint32_t)at;
    /* First group of 8 tokens to copy. Rounded down to a multiple of GROUPS, because a warp reads
     * GROUPS groups at once. */
    const int group = page ? 0 : s.skip / (8 * GROUPS) * GROUPS;
    const int groups = (tokens + 7) / 8 - group;
    if (shift == 0)
        copy_pages(pipe.ring + (uint32_t)at, from, k_bytes, v_bytes, group, groups,
                   pipe.full + 8 * mine, policy, lane, batch.count);
    else
        copy_pieces(pipe.ring + (uint32_t)at, from, k_bytes, v_bytes,
                    groups_of(entry, piece, shift, group, groups), groups, pipe.full + 8 * mine,
                    policy, lane, 1 << shift, batch.count);
}

static __device__ void produce(const params &p, const pipes &pipe, const first_work &first,
                               int lane)
{
    kvd_decode_segment s = first.segment, s1 = s;
    const int n_segments = first.n_segments;
    if (!n_segments)
        return;
    const kvd_decode_segment *list = p.work.list + first.next;
    const uint64_t policy = read_once_policy();
    const int ring = p.ring_bytes, held = 32 >> p.log2_pieces;
    const bool tokens_alone = copies_tokens(p);
    uint32_t n = 0, oldest = 0;
    int head = 0, tail = 0;
    if (n_segments > 1)
        s1 = load_segment(list);
    int32_t pages = first.pages;
    if (lane == 0 && pages >= 0)
        stamp(p, AT_TABLE);
    for (int k = 0; k < n_segments; k++) {
        const int32_t pages1 = k + 1 < n_segments ? load_pages(p, s1, 0, lane) : 0;
        kvd_decode_segment s2 = s1;
        if (k + 2 < n_segments)
            s2 = load_segment(list + k + 1);

        const int k_bytes = 2 * KVD_PAGE_TOKENS * p.args.map.d_qk[s.head];
        const int v_bytes = 2 * KVD_PAGE_TOKENS * p.args.map.d_v[s.head];
        const int bytes = k_bytes + v_bytes, count = pages_of(s.n_tokens);
        const char *pool = (const char *)p.args.pool + 2 * (size_t)p.args.map.kv_offset[s.head];
        int batch = tokens_alone ? 1 : min((int)BATCH, held);
        while (BATCHES * batch * bytes > ring && batch > 1)
            batch /= 2;
        for (int j0 = 0; j0 < count; j0 += batch) {
            const int now = min(batch, count - j0);
            int32_t token[KVD_PAGE_TOKENS / 8] = {};
            if (tokens_alone)
                load_tokens(p, s, j0, lane, token);
            else if (j0 && (j0 & (held - 1)) == 0)
                pages = load_pages(p, s, j0, lane);
            int fit;
            for (;;) {
                if (oldest == n)
                    head = tail = 0;
                fit = now;
                if (n + (uint32_t)now - oldest <= PAGES_IN_FLIGHT) {
                    if (oldest == n || head > tail) {
                        fit = __popc(
                            __ballot_sync(~0u, lane < now && head + (lane + 1) * bytes <= ring));
                        if ((now - fit) * bytes <= tail)
                            break;
                    } else if (tail - head >= now * bytes) {
                        break;
                    }
                }
                const int some = min(batch, (int)(n - oldest));
                wait_for_room(pipe, oldest, some);
                __syncwarp();
                oldest += (uint32_t)some;
                if (oldest != n)
                    tail = (int)pipe.offset[oldest % PAGES_IN_FLIGHT];
            }
            if (tokens_alone) {
                const uint32_t mine = n % PAGES_IN_FLIGHT, at = (uint32_t)(fit ? head : 0);
                if (lane == 0)
                    pipe.offset[mine] = at;
                copy_tokens(pipe.ring + at, pool, token, 2 * (size_t)p.args.map.page_elements,
                            k_bytes, v_bytes, pipe.full + 8 * mine, lane);
            } else {
                copy_batch(p, pipe, s, pool, pages, {j0, now, fit, head, n}, k_bytes, v_bytes,
                           policy, lane);
            }
            if (lane == 0 && n == 0)
                stamp(p, AT_FIRST_COPY);
            n += (uint32_t)now;
            head = fit == now ? head + now * bytes : (now - fit) * bytes;
        }
        s = s1;
        s1 = s2;
        pages = pages1;
    }
    if (lane == 0)
        stamp(p, AT_LAST_COPY);
}

template <int HALVES, int WIDTH16>
static __device__ __forceinline__ void load_q(uint32_t (&q)[WIDTH16][2 * HALVES], const params &p,
                                              int request, int head, int lane)
{
    const kvd_attn_map &map = p.args.map;
    load_q<HALVES>(q,
                   (const uint16_t *)p.args.q + (size_t)request * (size_t)map.q_pitch +
                       map.q_offset[head_of(p, head, 0)],
                   q_stride(map, head), p.rows, map.d_qk[head], lane);
}

/* Returns one word of *at per lane. All words in one lane would spill registers. */
static __device__ __forceinline__ int32_t load_segment_word(const kvd_decode_segment *at, int lane)
{
    return __ldg(reinterpret_cast<const int32_t *>(at) + lane % 8);
}

static __device__ __forceinline__ kvd_decode_segment whole_segment(int32_t word)
{
    kvd_decode_segment s;
    s.request = __shfl_sync(~0u, word, 0);
    s.head = __shfl_sync(~0u, word, 1);
    s.page = __shfl_sync(~0u, word, 2);
    s.n_tokens = __shfl_sync(~0u, word, 3);
    s.first_cta = __shfl_sync(~0u, word, 4);
    s.span = __shfl_sync(~0u, word, 5);
    s.live = __shfl_sync(~0u, word, 6);
    s.skip = __shfl_sync(~0u, word, 7);
    return s;
}

template <bool BF, int HALVES, bool WINDOW, int WIDTH16>
static __device__ void consume(const params &p, const pipes &pipe, const merge_area &area, int warp,
                               int lane, int2 list, int32_t word)
{
    constexpr uint32_t WARPS = n_warps<HALVES, WIDTH16>;
    constexpr uint32_t UNITS = 8 / GROUPS;
    int32_t word1 = 0;
    if (!list.x)
        return;
    uint32_t q[WIDTH16][2 * HALVES];
    uint32_t n0 = 0, n1;
    /* Bit 0: parity of the next wait on barrier area.free. Bits 1 to 31: number of token ranges so
     * far that a single warp computed. */
    uint32_t turn = 1;
    load_q<HALVES>(q, p, __shfl_sync(~0u, word, 0), __shfl_sync(~0u, word, 1), lane);
    for (; list.x; list.x--, list.y++, n0 = n1) {
        if (list.x > 1)
            word1 = load_segment_word(p.work.list + list.y, lane);
        const int head = __shfl_sync(~0u, word, 1), n_tokens = __shfl_sync(~0u, word, 3);
        const int d_qk = p.args.map.d_qk[head], d_v = p.args.map.d_v[head];
        const int skip = __shfl_sync(~0u, word, 7);
        n1 = n0 + UNITS * (uint32_t)pages_of(n_tokens);
        const bool is_short = n_tokens <= SHORT * KVD_PAGE_TOKENS &&
                              __shfl_sync(~0u, word, 6) == 1 &&
                              8 * n_tokens * (d_qk + d_v) <= p.ring_bytes;
        const bool mine = !is_short || turn / 2 % WARPS == (uint32_t)warp;
        turn += is_short ? 2 : 0;
        /* Index of this warp's first unit in the token range. A unit is 8 * GROUPS tokens, and
         * warps process units in turn. */
        const uint32_t place = is_short ? 0 : ((uint32_t)warp + WARPS - n0 % WARPS) % WARPS;
        state<HALVES, WIDTH16> st;
        clear(st);
        const uint32_t step = is_short ? 1 : WARPS;
        for (uint32_t n = mine ? n0 + place : n1; n < n1; n += step) {
            const uint32_t page = n / UNITS, at = page % PAGES_IN_FLIGHT;
            pipe_wait(pipe.full + 8 * at, page / PAGES_IN_FLIGHT & 1);
            if (warp == 0 && lane == 0 && n == 0)
                stamp(p, AT_FIRST_PAGE);
            const int first = 8 * GROUPS * (int)(n - n0);
            const int tokens = n_tokens - first;
            /* Skips units of 8 * GROUPS tokens that are outside the CTA's token range. */
            if (tokens > 0 && (WINDOW ? first + 8 * GROUPS > skip : first >= skip)) {
                const uint32_t k = pipe.ring + pipe.offset[at];
                const uint32_t v = k + (uint32_t)(2 * KVD_PAGE_TOKENS * d_qk);
                const uint32_t unit = n % UNITS * (16 * GROUPS);
                consume_unit<BF, HALVES, GROUPS, WINDOW>(st, q, k + unit * (uint32_t)d_qk,
                                                         v + unit * (uint32_t)d_v, d_qk, d_v,
                                                         tokens, skip - first, p.scale_log2, lane);
#if __CUDA_ARCH__ >= 900
                /* The warp has stored zeros to V in this page. The next bulk copy into the page
                 * must not overtake these stores. */
                if (tokens < 8 * GROUPS)
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
            }
            if (warp == 0 && lane == 0 && n == 0)
                stamp(p, AT_FIRST_DONE);
            /* Each lane signals that it has read the page. The next copy into the page waits for
             * all lanes. */
            pipe_arrive(pipe.empty + 8 * at);
        }
        if (is_short) {
            if (mine)
                put_short<BF>(st, p, __shfl_sync(~0u, word, 0), head, d_v, lane);
            word = word1;
            if (list.x > 1)
                load_q<HALVES>(q, p, __shfl_sync(~0u, word1, 0), __shfl_sync(~0u, word1, 1), lane);
            continue;
        }
        /* After this wait, all warps have read the results of the previous token range, so they may
         * be overwritten. */
        pipe_wait(area.free, turn & 1);
        turn ^= 1;
        if (warp == 0 && lane == 0)
            stamp(p, AT_LAST_DONE);
        if (place < n1 - n0)
            put_state(st, area.o + (size_t)place * (size_t)(p.rows * p.o_pitch),
                      area.ml + place * KVD_GROUP_MAX, p.rows, p.o_pitch, d_v, lane);
        const kvd_decode_segment s = whole_segment(word);
        word = word1;
        if (list.x > 1)
            load_q<HALVES>(q, p, __shfl_sync(~0u, word1, 0), __shfl_sync(~0u, word1, 1), lane);
        consumers_sync<WARPS>();
        const int tid = 32 * warp + lane;
        merge_warps<BF, WARPS, WIDTH16>(p, area, s, (int)min(n1 - n0, WARPS), s.live == 1, tid);
        if (tid == 0)
            stamp(p, AT_WARPS_MERGED);
        if (s.live > 1) {
            consumers_sync<WARPS>();
            if (tid == 0) {
                uint32_t before;
                asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                             : "=r"(before)
                             : "l"(p.work.arrived + s.first_cta)
                             : "memory");
                *area.is_last = before + 1 == (uint32_t)s.live;
                if (*area.is_last)
                    p.work.arrived[s.first_cta] = 0; /* reset for the next launch */
                stamp(p, AT_ARRIVED);
            }
            consumers_sync<WARPS>();
            if (*area.is_last) {
                const int places = merge_slots<WARPS, WIDTH16>(p, area, s, warp, lane);
                consumers_sync<WARPS>();
                if (tid == 0)
                    stamp(p, AT_SLOTS_READ);
                merge_warps<BF, WARPS, WIDTH16>(p, area, s, places, true, tid);
            }
        }
        pipe_arrive(area.free);
    }
}

/* Number of barriers in shared memory: full and empty for each page in flight, and area.free. */
enum { N_BARRIERS = 2 * PAGES_IN_FLIGHT + 1 };

static __host__ __device__ constexpr size_t merge_o_bytes(int warps, int rows, int o_pitch)
{
    return (size_t)warps * (size_t)(rows * o_pitch) * sizeof(float);
}

static constexpr size_t small_bytes(int warps)
{
    return (size_t)warps * KVD_GROUP_MAX * sizeof(float2) + (N_BARRIERS + 1) * 8 +
           (PAGES_IN_FLIGHT + 4 + 16) * 4;
}

static __device__ __forceinline__ void prefetch(const params &p, int warp, int lane)
{
    const size_t table =
        ((size_t)p.args.batch * (size_t)p.args.max_pages << p.log2_pieces) * sizeof(int32_t);
    const size_t q = (size_t)p.args.batch * (size_t)p.args.map.q_pitch * sizeof(uint16_t);
    const size_t mine = 32 * ((size_t)blockIdx.x * blockDim.x + threadIdx.x);
    if (warp == 0 && lane < 2)
        prefetch_l2((const char *)(p.work.cta + blockIdx.x) + 32 * lane);
    if (mine < table)
        prefetch_l2((const char *)p.args.page_table + mine);
    if (mine < q)
        prefetch_l2((const char *)p.args.q + mine);
}

/* Loads the kernel parameters into the constant cache by reading one word per cache line. Returns
 * the sum of the words, without which the compiler would remove the reads. */
template <int WARPS>
static __device__ __forceinline__ uint32_t touch_parameters(const params &p, int warp)
{
    const uint32_t *words = reinterpret_cast<const uint32_t *>(&p);
    constexpr int LINE = 16, N = (int)(sizeof p / 4);
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < (N + LINE * WARPS - 1) / (LINE * WARPS); i++)
        all += words[min(LINE * (warp + WARPS * i), N - 1)];
    return all;
}

template <bool BF, int HALVES, bool WINDOW, int WIDTH16>
static __global__ void __launch_bounds__(32 * (n_warps<HALVES, WIDTH16> + 1), 1)
    decode_kernel(const __grid_constant__ params p)
{
    constexpr int WARPS = n_warps<HALVES, WIDTH16>;
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const kvd_decode_cta *cta = p.work.cta + blockIdx.x;
    const uint32_t sum = touch_parameters<WARPS + 1>(p, warp);
    if (threadIdx.x == 0)
        stamp(p, AT_ENTRY);
    prefetch(p, warp, lane);
    merge_area area;
    pipes pipe;
    pipe.ring = smem_address(smem);
    area.o = reinterpret_cast<float *>(smem + p.ring_bytes);
    area.ml =
        reinterpret_cast<float2 *>(smem + p.ring_bytes + merge_o_bytes(WARPS, p.rows, p.o_pitch));
    const uint32_t barrier = smem_address(area.ml + WARPS * KVD_GROUP_MAX);
    pipe.full = barrier;
    pipe.empty = barrier + 8 * PAGES_IN_FLIGHT;
    area.free = barrier + 16 * PAGES_IN_FLIGHT;
    pipe.offset = reinterpret_cast<uint32_t *>(area.ml + WARPS * KVD_GROUP_MAX + N_BARRIERS + 1);
    area.is_last = pipe.offset + PAGES_IN_FLIGHT;
#if __CUDA_ARCH__ >= 900
    /* The code above runs before preceding kernels end. It must not use their data, but may
     * prefetch it into L2. */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (p.args.busy && threadIdx.x == 0)
        started(area) = now_ns();
    /* Address where a dummy result is stored, so that the compiler keeps the prefetch of kernel
     * parameters. */
    uint32_t *const unused = area.is_last + 4 + warp;
    if (warp == WARPS) {
        const first_work first = load_first(p, lane);
        if (lane == 0)
            *unused = sum;
        asm volatile("bar.sync 2, %0;" ::"n"(32 * (WARPS + 1)) : "memory");
        produce(p, pipe, first, lane);
    } else {
        const int full_arrivals = copies_tokens(p) ? (int)TOKENS_ARRIVALS : (int)FULL_ARRIVALS;
        /* Loads the description of the CTA's work before the barriers are initialised, because the
         * loads take longer. */
        const int4 count_next = load_now4(cta);
        const int32_t word = load_now((const int32_t *)&cta->first_segment + lane % 8);
        /* The barriers are divided among all warps, because lanes of a single warp would initialise
         * them one after the other. */
        for (int i = lane * WARPS + warp; i < N_BARRIERS; i += 32 * WARPS)
            pipe_init(barrier + 8 * (uint32_t)i, i < PAGES_IN_FLIGHT       ? full_arrivals
                                                 : i < 2 * PAGES_IN_FLIGHT ? 32 * (8 / GROUPS)
                                                                           : 32 * WARPS);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        if (lane == 0)
            *unused = sum;
        /* Signals that the barriers are initialised. Only the warp that copies pages waits for
         * this. */
        asm volatile("bar.arrive 2, %0;" ::"n"(32 * (WARPS + 1)) : "memory");
        consumers_sync<WARPS>();
        consume<BF, HALVES, WINDOW, WIDTH16>(p, pipe, area, warp, lane,
                                             make_int2(count_next.x, count_next.y), word);
    }
    if (threadIdx.x == 0)
        stamp(p, AT_END);
    if (p.args.busy) {
        __syncthreads();
        if (threadIdx.x == 0)
            p.args.busy[blockIdx.x] = p.work.cta[blockIdx.x].count ? now_ns() - started(area) : 0;
    }
}

int kvd_decode_ctas(const kvd_attn_map *)
{
    int sms;
    return kvd_device_attribute(cudaDevAttrMultiProcessorCount, &sms) == cudaSuccess ? sms : -1;
}

size_t kvd_decode_workspace_bytes(const kvd_attn_map *map, int batch, int, int n_ctas)
{
    kvd_decode_work work;
    kvd_decode_work_lay(map, batch, n_ctas, NULL, &work);
    return work.bytes;
}

cudaError_t kvd_decode_check(const kvd_decode_args *args)
{
    const kvd_attn_map *map = &args->map;
    if ((args->dtype != KVD_BF16 && args->dtype != KVD_F16) || args->batch < 1 ||
        args->max_pages < 1 || args->n_ctas < 1 || args->n_ctas > 1024 || !args->kv_len ||
        !args->workspace || map->n_kv_heads < 1 || map->n_heads > KVD_HEADS_MAX || map->group < 1 ||
        map->window < 0 || (args->second_len && (map->n_kv_heads % 2 || map->window)) ||
        args->piece_tokens < 0 || args->piece_tokens >= KVD_PAGE_TOKENS ||
        args->piece_tokens & (args->piece_tokens - 1))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

template <bool BF, int HALVES, bool WINDOW, int WIDTH16>
static cudaError_t launch(params *p, cudaStream_t stream)
{
    int most, major;
    cudaError_t e = kvd_compute_capability(&major);
    if (e == cudaSuccess)
        e = kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    if (e != cudaSuccess)
        return e;
    constexpr int WARPS = n_warps<HALVES, WIDTH16>;
    int page_bytes = 0;
    const kvd_attn_map *map = &p->args.map;
    for (int g = 0; g < map->n_kv_heads; g++)
        page_bytes = max(page_bytes, 2 * KVD_PAGE_TOKENS * (map->d_qk[g] + map->d_v[g]));
    const int rest = (int)(merge_o_bytes(WARPS, p->rows, p->o_pitch) + small_bytes(WARPS));
    p->ring_bytes = (most - rest) / 128 * 128;
    /* The ring buffer must hold two cache pages, or one page if heads are wide. */
    if (p->ring_bytes < (WIDTH16 > KVD_WIDTH_NARROW / 16 ? 1 : 2) * page_bytes)
        return cudaErrorInvalidConfiguration;
    return kvd_launch_early(major >= 9, decode_kernel<BF, HALVES, WINDOW, WIDTH16>,
                            dim3((unsigned)p->args.n_ctas), 32 * (WARPS + 1),
                            (size_t)(p->ring_bytes + rest), stream, *p);
}

template <bool BF, int WIDTH16> static cudaError_t launch_any(params *p, cudaStream_t stream)
{
    if (p->rows > 8)
        return p->args.map.window ? launch<BF, 2, true, WIDTH16>(p, stream)
                                  : launch<BF, 2, false, WIDTH16>(p, stream);
    return p->args.map.window ? launch<BF, 1, true, WIDTH16>(p, stream)
                              : launch<BF, 1, false, WIDTH16>(p, stream);
}

static cudaError_t launch_width(params *p, int widest, cudaStream_t stream)
{
    const bool bf16 = p->args.dtype == KVD_BF16;
    if (widest > KVD_WIDTH_NARROW)
        return bf16 ? launch_any<true, KVD_WIDTH_MAX / 16>(p, stream)
                    : launch_any<false, KVD_WIDTH_MAX / 16>(p, stream);
    return bf16 ? launch_any<true, KVD_WIDTH_NARROW / 16>(p, stream)
                : launch_any<false, KVD_WIDTH_NARROW / 16>(p, stream);
}

cudaError_t kvd_decode(const kvd_decode_args *args, cudaStream_t stream)
{
    const cudaError_t e = kvd_decode_check(args);
    if (e != cudaSuccess)
        return e;
    if (!args->page_table || !args->q || !args->pool || !args->o)
        return cudaErrorInvalidValue;
    if (args->ctas_per_task)
        return kvd_decode_short(args, stream);
    params p;
    p.args = *args;
    kvd_decode_work_lay(&args->map, args->batch, args->n_ctas, args->workspace, &p.work);
    p.scale_log2 = args->map.scale * 1.4426950408889634f;
    for (p.log2_pieces = 0; args->piece_tokens && args->piece_tokens << p.log2_pieces < 64;)
        p.log2_pieces++;
    p.d_v_max = kvd_decode_d_v_max(&args->map);
    /* The 4 additional columns avoid bank conflicts in shared memory. */
    p.o_pitch = p.d_v_max + 4;
    const int widest = kvd_attn_widest(&args->map);
    if (widest > KVD_WIDTH_MAX)
        return cudaErrorInvalidValue;
    p.rows = kvd_decode_rows(&args->map);
    for (int first = 0; first < args->map.group; first += p.rows) {
        /* If fewer than p.rows query heads remain, the last launch computes some earlier heads
         * again. */
        p.first = min(first, args->map.group - p.rows);
        const cudaError_t status = launch_width(&p, widest, stream);
        if (status != cudaSuccess)
            return status;
    }
    return cudaSuccess;
}
