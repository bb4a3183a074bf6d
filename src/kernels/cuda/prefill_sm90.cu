/* Prefill attention on Hopper. Three warpgroups of a CTA compute 64 query rows each; the fourth
 * copies Q, K and V.
 *
 * prefill_window_sm90.cu and prefill_wide_sm90.cu include this file. */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/prefill_fetch.cuh"

namespace
{
/* State of a computing warpgroup. Bits:
 *
 * - 0-3: shared-memory slot of the next block of K and V; 4: parity of the slot's mbarriers
 * - 5-6: shared-memory slot of the tile's description; 7: parity of the slot's mbarriers
 * - 8: parity of the mbarrier of Q
 * - 9-10: index of the warpgroup */
struct worker {
    uint32_t bits;
};
__device__ __forceinline__ uint32_t slot_at(const worker &w)
{
    return w.bits & 15;
}
__device__ __forceinline__ const tile_info &tile_of(const worker &w)
{
    return SH.tile[w.bits >> 5 & 3];
}
__device__ __forceinline__ int group_of(const worker &w)
{
    return (int)(w.bits >> 9);
}
__device__ __forceinline__ void step_slot(worker &w)
{
    w.bits++;
    if (slot_at(w) == SLOTS)
        w.bits = (w.bits & ~15u) ^ 16;
}
__device__ __forceinline__ void step_tile(worker &w)
{
    w.bits += 32;
    if ((w.bits >> 5 & 3) == TILES)
        w.bits = (w.bits & ~96u) ^ 128;
}
__device__ __forceinline__ void wait_slot(const worker &w)
{
    mbar_wait(kvd_smem(&SH.slot_full[slot_at(w)]), w.bits >> 4 & 1);
}
/* Arrives at barrier `bar`: this warp has finished reading the buffer that `bar` guards. */
__device__ __forceinline__ void release(const unsigned long long *bar)
{
    __syncwarp();
    if (elect_one())
        mbar_arrive(kvd_smem(bar));
}
__device__ __forceinline__ void release_slot(worker &w)
{
    release(&SH.slot_empty[slot_at(w)]);
    step_slot(w);
}
__device__ __forceinline__ void turn_begin(const worker &w)
{
    bar_sync(BAR_TURN + group_of(w), 256);
}
__device__ __forceinline__ void turn_end(const worker &w)
{
    bar_arrive(BAR_TURN + (group_of(w) == WARPGROUPS - 1 ? 0 : group_of(w) + 1), 256);
}

/* Computes S = Q K^T and, if PV, also O += P V. PV is a compile-time constant, because a branch
 * would make the wgmma instructions run one after the other. */
template <bool BF16, int DV, int DQ, bool PV, int N2>
__device__ __forceinline__ void turn(float (&S)[N2], float (&O)[DV / 2], uint32_t (&P)[N2 / 2],
                                     uint32_t q, uint32_t k, uint32_t v, int d_v, const worker &w)
{
    if constexpr (PV) {
        hold(O);
        hold(P);
    }
    if constexpr (DQ > 0)
        hold(S);
    wgmma_begin();
    if constexpr (PV) {
        const uint32_t row8 = WIDE ? (uint32_t)d_v * 16 : DV * 16;
        const uint64_t b = wgmma_desc(v, row8, 128);
#pragma unroll
        for (int i = 0; i < N2 / 8; i++)
            wgmma_rs<BF16>(O, P[4 * i], P[4 * i + 1], P[4 * i + 2], P[4 * i + 3],
                           b + (uint64_t)(i * row8 * 2 >> 4));
    }
    const uint64_t a = wgmma_desc(q, 128, DQ * 16), b = wgmma_desc(k, 128, DQ * 16);
#pragma unroll
    for (int i = 0; i < DQ / 16; i++)
        wgmma_ss<BF16>(S, a + (uint64_t)(i * 256 >> 4), b + (uint64_t)(i * 256 >> 4), i);
    wgmma_commit();
    turn_end(w);
    wgmma_wait<0>();
    if constexpr (PV) {
        hold(O);
        hold(P);
    }
    if constexpr (DQ > 0)
        hold(S);
}

template <bool BF16, int DV, bool PV, int N2>
__device__ __forceinline__ void turn_any(int d_qk, float (&S)[N2], float (&O)[DV / 2],
                                         uint32_t (&P)[N2 / 2], uint32_t q, uint32_t k, uint32_t v,
                                         int d_v, const worker &w)
{
#define TURN(DQ)                                                                                   \
    case DQ:                                                                                       \
        turn<BF16, DV, DQ, PV>(S, O, P, q, k, v, d_v, w);                                          \
        break;
    if constexpr (WIDE) {
        switch (d_qk) {
            TURN(16)
            TURN(32)
            TURN(48)
            TURN(64)
            TURN(80)
            TURN(96)
            TURN(112)
            TURN(128)
            TURN(144)
            TURN(160)
            TURN(176)
            TURN(192)
            TURN(208)
            TURN(224)
            TURN(240)
        default:
            turn<BF16, DV, 256, PV>(S, O, P, q, k, v, d_v, w);
            break;
        }
    } else {
        switch (d_qk) {
            TURN(16)
            TURN(32)
            TURN(48)
            TURN(64)
            TURN(80)
            TURN(96)
            TURN(112)
        default:
            turn<BF16, DV, 128, PV>(S, O, P, q, k, v, d_v, w);
            break;
        }
    }
#undef TURN
}

template <bool BF16, int N2>
__device__ __forceinline__ void again_qk(float (&S)[N2], uint32_t q, uint32_t k, int d_qk)
{
#pragma unroll
    for (int i = 0; i < N2; i++)
        S[i] = 0;
    const uint32_t thread = thread_of_group(), row = thread % 8 * 16, m = thread % 32 / 8,
                   group = (uint32_t)d_qk * 16;
    q += row + (thread / 32 * 2 + (m & 1)) * group + (m >> 1) * 128;
    k += row + (m >> 1) * group + (m & 1) * 128;
#pragma unroll 1
    for (int d = 0; d < d_qk; d += 16, q += 256, k += 256) {
        uint32_t x[4], y[4];
        ldmatrix(q, x);
#pragma unroll
        for (int i = 0; i < N2 / 8; i++) {
            ldmatrix(k + (uint32_t)i * 2 * group, y);
            mma_in_order<BF16>(&S[8 * i], x, y[0], y[1]);
            mma_in_order<BF16>(&S[8 * i + 4], x, y[2], y[3]);
        }
    }
    /* Waits for the lanes of the warp. A barrier replaces __syncwarp, which the tool racecheck does
     * not understand. */
    mbar_meet(kvd_smem(&SH.reread[warp_now()]));
}

/* Replaces each score s of row r by its softmax weight exp2(c s - m[r]). sums[r]: sum of the
 * weights that this thread computed. */
template <int N2>
__device__ __forceinline__ void exponentiate(float (&S)[N2], float c, const float (&m)[2],
                                             float (&sums)[2])
{
#pragma unroll
    for (int i = 0; i < N2; i++)
        S[i] = kvd_exp2_in_order(fmaf(S[i], c, -m[i / 2 % 2]));
    float even[2] = {0, 0}, odd[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < N2; i += 4)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            even[r] += S[i + 2 * r];
            odd[r] += S[i + 2 * r + 1];
        }
    sums[0] = even[0] + odd[0];
    sums[1] = even[1] + odd[1];
}

template <bool BF16, int DV>
__device__ __forceinline__ void store_rows(const kvd_prefill_args &a, const worker &w,
                                           float (&O)[DV / 2], const float (&m)[2], float (&l)[2])
{
    const tile_info &t = tile_of(w);
    const int d_v = WIDE ? uniform(t.d_v) : DV;
    const int thread = (int)thread_of_group(),
              row = 64 * group_of(w) + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool mine = row + 8 * r < t.n_rows;
        float top = m[r], fall = 1;
        if (a.sinks) {
            top = fmaxf(m[r], t.sink);
            fall = kvd_exp2_in_order(m[r] - top);
            l[r] = fmaf(l[r], fall, kvd_exp2_in_order(t.sink - top));
        }
        const float inv = fall / l[r];
        uint16_t *o = (uint16_t *)a.o + t.o_first + (size_t)(row + 8 * r) * a.map.o_pitch;
        /* Neighbouring lanes exchange half of their output columns, so that each store fills whole
         * 32-byte sectors. */
        o += (thread & 1) * 8 + (thread & 2) * 2;
#pragma unroll
        for (int i = 0; i < DV / 2; i += 8) {
            if (WIDE && 2 * i >= d_v)
                break;
            const uint32_t c0 = pack<BF16>(O[i + 2 * r] * inv, O[i + 2 * r + 1] * inv);
            const uint32_t c1 = pack<BF16>(O[i + 2 * r + 4] * inv, O[i + 2 * r + 5] * inv);
            const uint32_t other = __shfl_xor_sync(~0u, thread & 1 ? c0 : c1, 1);
            if (mine)
                *(uint2 *)(o + 2 * i) = thread & 1 ? make_uint2(other, c1) : make_uint2(c0, other);
        }
        if (a.lse && mine && (thread & 3) == 0)
            a.lse[t.lse + row + 8 * r] = 0.69314718056f * (top + __log2f(l[r]));
    }
}

/* Skips the blocks of keys j, j - 1, ..., end + 1, and frees their slots in the ring buffer. */
__device__ __forceinline__ void pass_over(worker &w, int &j, int end)
{
    for (; j > end; j--) {
        wait_slot(w);
        release_slot(w);
        wait_slot(w);
        release_slot(w);
        turn_begin(w);
        turn_end(w);
    }
}

template <bool BF16, bool WINDOW, int DV>
__device__ __forceinline__ void compute(const kvd_prefill_args &a, worker &w)
{
    constexpr int N = block_keys(DV);
    const float c = a.map.scale * 1.44269504089f;
    const int position = uniform(tile_of(w).position) + 64 * group_of(w);
    const int d_qk = uniform(tile_of(w).d_qk), d_v = WIDE ? uniform(tile_of(w).d_v) : DV;
    /* In the blocks of keys 0 .. clear - 1, the causal mask hides no key from any row of this
     * warpgroup. */
    const int clear = (int)((uint32_t)(position + 1) / N);
    const bool active = 64 * group_of(w) < uniform(tile_of(w).n_rows);
    int j = uniform(tile_of(w).n_blocks) - 1;
    const int bottom = WINDOW ? (int)((uint32_t)max(0, position - a.map.window + 1) / N) : 0;
    /* Blocks 0 .. too_old - 1 have keys outside the sliding window of at least one query row. */
    const int too_old =
        WINDOW ? (int)((uint32_t)(max(0, position + 64 - a.map.window) + N - 1) / N) : 0;
    const int top = active   ? min(j, (int)((uint32_t)(position + 63) / N))
                    : WINDOW ? uniform(tile_of(w).first_block) - 1
                             : -1;

    pass_over(w, j, top);
    if (!active) {
        turn_begin(w);
        turn_end(w);
        return;
    }

    float S[N / 2], O[DV / 2], m[2] = {-1e30f, -1e30f}, l[2] = {0, 0};
    uint32_t P[N / 4];
#pragma unroll
    for (int i = 0; i < DV / 2; i++)
        O[i] = 0;

    mbar_wait(kvd_smem(&SH.q_full[group_of(w)]), w.bits >> 8 & 1);
    w.bits ^= 256;
    wait_slot(w);
    turn_begin(w);
    turn_any<BF16, DV, false>(d_qk, S, O, P, kvd_smem(SH.q[group_of(w)]),
                              kvd_smem(SH.slot[slot_at(w)]), 0, d_v, w);

    for (;; j--) {
        const bool masked = j >= clear || (WINDOW && j < too_old);
        bool exact = masked;
        float sums[2];
        if (!masked) {
            exponentiate(S, c, m, sums);
            exact = __any_sync(~0u, !(sums[0] + sums[1] <= SUM_LIMIT));
            if (exact)
                again_qk<BF16>(S, kvd_smem(SH.q[group_of(w)]), kvd_smem(SH.slot[slot_at(w)]), d_qk);
        }
        if (exact) {
            if (masked) {
                const int thread = (int)thread_of_group();
                const int seen = tile_of(w).position + 64 * group_of(w) + thread / 32 * 16 +
                                 thread % 32 / 4 - j * N - (thread & 3) * 2;
#pragma unroll
                for (int i = 0; i < N / 2; i++)
                    if (i / 4 * 8 + i % 2 > seen + i % 4 / 2 * 8 ||
                        (WINDOW && i / 4 * 8 + i % 2 <= seen - a.map.window + i % 4 / 2 * 8))
                        S[i] = -INFINITY;
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float most = S[2 * r];
#pragma unroll
                for (int i = 0; i < N / 2; i += 4)
                    most = fmaxf(most, fmaxf(S[i + 2 * r], S[i + 2 * r + 1]));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                const float m_new = fmaxf(m[r], most * c), fall = kvd_exp2_in_order(m[r] - m_new);
                m[r] = m_new;
                l[r] *= fall;
#pragma unroll
                for (int i = 0; i < DV / 2; i += 4) {
                    O[i + 2 * r] *= fall;
                    O[i + 2 * r + 1] *= fall;
                }
            }
            exponentiate(S, c, m, sums);
        }
        l[0] += sums[0];
        l[1] += sums[1];
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            P[i] = pack<BF16>(S[2 * i], S[2 * i + 1]);
        release_slot(w);
        if (j == bottom)
            break;

        wait_slot(w);
        const uint32_t v = slot_at(w);
        step_slot(w);
        wait_slot(w);
        turn_begin(w);
        turn_any<BF16, DV, true>(d_qk, S, O, P, kvd_smem(SH.q[group_of(w)]),
                                 kvd_smem(SH.slot[slot_at(w)]), kvd_smem(SH.slot[v]), d_v, w);
        release(&SH.slot_empty[v]);
    }
    mbar_arrive(kvd_smem(&SH.q_empty[group_of(w)]));
    wait_slot(w);
    turn_begin(w);
    turn<BF16, DV, 0, true>(S, O, P, 0, 0, kvd_smem(SH.slot[slot_at(w)]), d_v, w);
    release_slot(w);
    if (WINDOW) {
        j--;
        pass_over(w, j, uniform(tile_of(w).first_block) - 1);
    }
    store_rows<BF16, DV>(a, w, O, m, l);
}

template <bool BF16, bool WINDOW>
__device__ __forceinline__ void compute_any(const kvd_prefill_args &a, worker &w, int d_v)
{
#define COMPUTE(DV)                                                                                \
    case DV:                                                                                       \
        compute<BF16, WINDOW, DV>(a, w);                                                           \
        break;
    if constexpr (WIDE) {
        switch ((d_v + 63) / 64 * 64) {
            COMPUTE(256)
            COMPUTE(192)
        default:
            compute<BF16, WINDOW, 128>(a, w);
            break;
        }
    } else {
        switch (d_v) {
            COMPUTE(16)
            COMPUTE(32)
            COMPUTE(48)
            COMPUTE(64)
            COMPUTE(80)
            COMPUTE(96)
            COMPUTE(112)
        default:
            compute<BF16, WINDOW, 128>(a, w);
            break;
        }
    }
#undef COMPUTE
}

template <bool BF16, bool WINDOW>
__global__ void __launch_bounds__(THREADS, 1) prefill(const __grid_constant__ kvd_prefill_args a)
{
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4,
              lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        for (int i = 0; i < SLOTS; i++) {
            mbar_init(kvd_smem(&SH.slot_full[i]), 1);
            mbar_init(kvd_smem(&SH.slot_empty[i]), 4 * WARPGROUPS);
        }
        for (int i = 0; i < WARPGROUPS; i++) {
            mbar_init(kvd_smem(&SH.q_full[i]), 1);
            mbar_init(kvd_smem(&SH.q_empty[i]), 32 * 4);
        }
        for (int i = 0; i < TILES; i++) {
            mbar_init(kvd_smem(&SH.tile_full[i]), 1);
            mbar_init(kvd_smem(&SH.tile_empty[i]), 32 * (4 * WARPGROUPS + 2));
        }
        for (int i = 0; i < 4 * WARPGROUPS; i++)
            mbar_init(kvd_smem(&SH.reread[i]), 32);
        SH.begun = 0;
        fence_mbar_init();
    }
    /* Sets the shared memory of Q to 0, because matrix products also read rows that no query
     * fills. */
    for (int i = threadIdx.x; i < WARPGROUPS * Q_BYTES / 16; i += THREADS)
        ((uint4 *)SH.q)[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    __syncthreads();

    if (group == WARPGROUPS) {
        registers_down<PRODUCER_REGISTERS>();
        if (warp % 4 == 0 && lane == 0)
            take_tiles(a);
        else if (warp % 4 == 1)
            fetch_q(a, lane);
        else if (warp % 4 == 2)
            fetch_kv<WINDOW>(a, lane);
    } else {
        registers_up<REGISTERS>();
        worker w = {(uint32_t)group << 9};
        if (group == WARPGROUPS - 1)
            turn_end(w);
        for (;;) {
            mbar_wait(kvd_smem(&SH.tile_full[w.bits >> 5 & 3]), w.bits >> 7 & 1);
            const int d_v = uniform(tile_of(w).d_v);
            if (d_v == 0)
                break;
            compute_any<BF16, WINDOW>(a, w, d_v);
            mbar_arrive(kvd_smem(&SH.tile_empty[w.bits >> 5 & 3]));
            step_tile(w);
        }
        if (group == 0)
            turn_begin(w);
        bar_sync(BAR_END, 128 * WARPGROUPS);
        if (threadIdx.x == 0 && a.busy)
            a.busy[blockIdx.x] = SH.begun ? now_ns() - SH.begun : 0;
    }
}

template <bool BF16, bool WINDOW>
cudaError_t launch(const kvd_prefill_args *args, cudaStream_t stream)
{
    return kvd_launch(prefill<BF16, WINDOW>, (unsigned)args->work.n_ctas, THREADS, sizeof(shared),
                      stream, *args);
}

#ifndef KVD_PREFILL_WIDE
cudaError_t launch_type(const kvd_prefill_args *args, cudaStream_t stream)
{
#ifdef KVD_PREFILL_WINDOW
    constexpr bool WINDOW = true;
#else
    constexpr bool WINDOW = false;
#endif
    return args->dtype == KVD_BF16 ? launch<true, WINDOW>(args, stream)
                                   : launch<false, WINDOW>(args, stream);
}
#endif

} // namespace

#if defined(KVD_PREFILL_WIDE)
cudaError_t kvd_prefill_wide_sm90(const kvd_prefill_args *args, cudaStream_t stream)
{
    return args->map.window ? launch<true, true>(args, stream) : launch<true, false>(args, stream);
}
#elif defined(KVD_PREFILL_WINDOW)
cudaError_t kvd_prefill_window_sm90(const kvd_prefill_args *args, cudaStream_t stream)
{
    return launch_type(args, stream);
}
#else
cudaError_t kvd_prefill_sm90(const kvd_prefill_args *args, cudaStream_t stream)
{
    int major;
    const cudaError_t e = kvd_compute_capability(&major);
    if (e != cudaSuccess)
        return e;
    if (major != 9)
        return cudaErrorNotSupported;
    if (!kvd_prefill_valid(args))
        return cudaErrorInvalidValue;
    if (kvd_attn_widest(&args->map) > KVD_WIDTH_NARROW)
        return args->dtype == KVD_BF16 ? kvd_prefill_wide_sm90(args, stream)
                                       : kvd_prefill_mma(args, stream);
    return args->map.window ? kvd_prefill_window_sm90(args, stream) : launch_type(args, stream);
}
#endif
