/* Computes the attention of decode steps to a KV cache in which each token was quantised alone
 * (method hetero). */
#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

struct no_words {
    __device__ __forceinline__ void begin(int, const char *, int = 0)
    {
    }
};

struct records {
    int k_words, v_words;

    __device__ __host__ __forceinline__ records(const kvd_packed_args &a)
        : k_words(kvd_packed_row_words(&a.row.of, 0, a.map.d_qk[0])),
          v_words(kvd_packed_row_words(&a.row.of, 1, a.map.d_v[0]))
    {
    }

    __device__ __host__ __forceinline__ int bytes() const
    {
        return 4 * KVD_PAGE_TOKENS * (k_words + v_words);
    }
};

/* Writes the quantised numbers of 16 tokens in 32 channels as mma operands. */
template <int MOST>
__device__ __forceinline__ void tiles_of(const uint32_t *low, const uint32_t *high, int bits,
                                         uint32_t (&a)[2][4], int lane)
{
    uint32_t code[2][2];
    pairs_of_planes<MOST>(low, bits, lane % 4, code[0]);
    pairs_of_planes<MOST>(high, bits, lane % 4, code[1]);
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t byte = (uint32_t)(2 * u + r / 2);
            a[u][r] =
                __byte_perm(code[r % 2][0], code[r % 2][1], 0x0400u + 0x0101u * byte) & 0x00ff00ffu;
        }
}

/* Decodes pages of method hetero, in which keys have K bits and values V bits per number. A KV head
 * has 16 N dimensions. */
template <int K, int V, int N> struct rows_page : code_reader<N> {
    using code_reader<N>::code_reader;
    static constexpr bool ZEROS = true;
    typedef no_words words;
    queries<N> q;
    float sum[2]; /* sums of the elements of query heads 2 c and 2 c + 1, c = lane % 4 */

    static __device__ constexpr float outputs()
    {
        return 1 << 24;
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, p.d.q, at.b, at.g, lane, q);
        float mine = 0;
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            mine += half_of(q.half[i / 2][i % 2], 0) + half_of(q.half[i / 2][i % 2], 1);
        of_columns(sum_of_head(mine), sum, lane);
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &,
                                                const char *codes, uint32_t stage, int lane)
    {
        copy_ahead(stage, codes, p.newest_at, lane);
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &,
                                           const char *stage, words &, const char *,
                                           float (&s)[4][4], int lane)
    {
        const int bits = p.a.row.of.bits[0], each = records(p.a).k_words;
        const uint32_t *const first = reinterpret_cast<const uint32_t *>(stage) + lane / 4 * each;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t *const low = first + 16 * m * each, *const high = low + 8 * each;
            float x[4] = {};
#pragma unroll
            for (int u = 0; u < N; u += 2) {
                uint32_t a[2][4];
                tiles_of<K>(low + u / 2 * bits, high + u / 2 * bits, bits, a, lane);
                mma_pure<false>(x, a[0], q.half[u][0], q.half[u][1]);
                mma_pure<false>(x, a[1], q.half[u + 1][0], q.half[u + 1][1]);
            }
            const uint32_t scale[2] = {low[each - 1], high[each - 1]};
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[m][i] = p.scale_log2 * q.unit[i % 2] *
                          fmaf(x[i] * outputs(), half_of(scale[i / 2], 0),
                               sum[i % 2] * half_of(scale[i / 2], 1));
        }
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &,
                                           const char *stage, words &, const char *, const char *,
                                           const uint32_t (&prob)[8], state<N> &st, int lane)
    {
        const records of(p.a);
        const int bits = p.a.row.of.bits[1], each = of.v_words;
        const uint32_t *const page = reinterpret_cast<const uint32_t *>(stage) +
                                     KVD_PAGE_TOKENS * of.k_words,
                              *const first = page + lane / 4 * each,
                              *const scales = page + lane % 4 * 2 * each + each - 1;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t step[2], zero[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t *const two = scales + (16 * k + 8 * h) * each;
                step[h] = times(prob[2 * k + h], __byte_perm(two[0], two[each], 0x5410));
                zero[h] = lane < 4 ? __byte_perm(two[0], two[each], 0x7632) : 0;
            }
            const uint32_t rows[4] = {zero[0], 0, zero[1], 0};
            mma_pure<false>(st.zero, rows, prob[2 * k], prob[2 * k + 1]);
#pragma unroll
            for (int u = 0; u < N; u += 2) {
                const uint32_t *const low = first + 16 * k * each + u / 2 * bits;
                uint32_t a[2][4];
                tiles_of<V>(low, low + 8 * each, bits, a, lane);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t x[4] = {exchanged(a[i][0]), exchanged(a[i][2]),
                                           exchanged(a[i][1]), exchanged(a[i][3])};
                    mma_pure<false>(st.o[u + i], x, step[0], step[1]);
                }
            }
        }
    }
};

template <int N> kvd_packed_decode_kernel of_bits(int k, int v)
{
    return k > 4   ? v > 4 ? packed_decode_kernel<rows_page<8, 8, N>>
                           : packed_decode_kernel<rows_page<8, 4, N>>
             : v > 4 ? packed_decode_kernel<rows_page<4, 8, N>>
                   : packed_decode_kernel<rows_page<4, 4, N>>;
}

} // namespace

kvd_packed_decode_kernel kvd_packed_rows_kernel(const kvd_packed_args *a)
{
    const kvd_packed_rows *const r = &a->row.of;
    if (r->joint || r->group || a->row.turned || a->row.clip > 0 || a->before_rope || a->n_sink ||
        r->bits[0] > 8 || r->bits[1] > 8)
        return NULL;
    return a->map.d_qk[0] == 64 ? of_bits<4>(r->bits[0], r->bits[1])
                                : of_bits<8>(r->bits[0], r->bits[1]);
}

void kvd_packed_rows_lay_out(kvd_packed_decode_params *p)
{
    p->newest_at = records(p->a).bytes();
}
