/*
 * Work list of decode attention in args->workspace, also called its plan: the structs and their
 * offsets. decode_plan.cu writes the list and decode.cu reads it. Internal to these two files;
 * plain C.
 */
#ifndef KVD_KERNELS_CUDA_DECODE_WORK_H
#define KVD_KERNELS_CUDA_DECODE_WORK_H

#include "kernels/cuda/decode.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Segment: consecutive tokens of one KV head of one request that one CTA reads. An interval is all
 * tokens of one KV head of one request. If an interval is not split, `live` is 1. If it is split,
 * the CTAs first_cta .. first_cta + span - 1 share it: `live` of them have a segment of the
 * interval, and the others have no work at all.
 */
typedef struct {
    int32_t request, head;
    int32_t page; /* index in the request of the segment's first page */
    /* Number of tokens from the start of the first page to the end of the segment. */
    int32_t n_tokens;
    int32_t first_cta, span, live;
    /*
     * Number of tokens of the first page that precede the segment. It is a multiple of 32, unless
     * the segment begins with the oldest token of a sliding window. The tokens between the last
     * multiple of 32 and `skip` are then read and masked.
     */
    int32_t skip;
} kvd_decode_segment;

/*
 * Work of one CTA: `first_segment`, then the segments list[next] .. list[next + count - 2]. 48
 * bytes.
 */
typedef struct {
    int32_t count, next, unused[2];
    kvd_decode_segment first_segment;
} kvd_decode_cta;

/*
 * Addresses of the parts of the workspace. A CTA has at most two segments of split intervals (an
 * interval is all tokens of one KV head of one request): one that continues an interval of the
 * preceding CTA (its partial result is in slot 2 c) and one that begins an interval (slot 2 c + 1).
 * A slot holds the output O before the division by the sum, and per query head the largest raw
 * score and the sum of the exponentials relative to it.
 */
typedef struct {
    kvd_decode_cta *cta; /* [n_ctas] work of each CTA */
    uint32_t *arrived;   /* [n_ctas] finished CTAs per interval, at first_cta; 0 between launches */
    /* [batch * n_kv_heads + n_ctas] Segments after the first of each CTA. */
    kvd_decode_segment *list;
    float *slot_ml; /* [2 n_ctas][group][2] slots: largest raw score, sum of exponentials */
    float *slot_o;  /* [2 n_ctas][group][d_v_max] slots: O before the division */
    /* Used by the planner only: sort keys (their number is a power of 2) or prefix sums. */
    unsigned long long *scratch;
    /*
     * Used by the planner only: [batch * n_kv_heads] CTA << 16 | index of the task within the CTA.
     */
    uint32_t *assigned;
    size_t bytes;
} kvd_decode_work;

static inline size_t kvd_decode_pow2(size_t n)
{
    size_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static inline int kvd_decode_d_v_max(const kvd_attn_map *map)
{
    int d = 0;
    for (int g = 0; g < map->n_kv_heads; g++)
        d = map->d_v[g] > d ? map->d_v[g] : d;
    return d;
}

/*
 * Fills *work with the addresses of the parts of a workspace at `base`, and sets work->bytes to its
 * size. If `base` is NULL, sets work->bytes only.
 */
static inline void kvd_decode_work_lay(const kvd_attn_map *map, int batch, int n_ctas, void *base,
                                       kvd_decode_work *work)
{
    const size_t tasks = (size_t)batch * (size_t)map->n_kv_heads, n = (size_t)n_ctas;
    const size_t group = (size_t)map->group, d_v = (size_t)kvd_decode_d_v_max(map);
    const size_t keys = kvd_decode_pow2(tasks > (size_t)batch + 1 ? tasks : (size_t)batch + 1);
    const size_t part[7] = {n * sizeof(kvd_decode_cta),
                            n * sizeof(uint32_t),
                            (tasks + n) * sizeof(kvd_decode_segment),
                            2 * n * group * 2 * sizeof(float),
                            2 * n * group * d_v * sizeof(float),
                            keys * sizeof(unsigned long long),
                            tasks * sizeof(uint32_t)};
    size_t at[8] = {0};
    for (int i = 0; i < 7; i++)
        at[i + 1] = at[i] + (part[i] + 255) / 256 * 256;
    char *b = (char *)base;
    work->bytes = at[7];
    if (!b)
        return;
    work->cta = (kvd_decode_cta *)b;
    work->arrived = (uint32_t *)(b + at[1]);
    work->list = (kvd_decode_segment *)(b + at[2]);
    work->slot_ml = (float *)(void *)(b + at[3]);
    work->slot_o = (float *)(void *)(b + at[4]);
    work->scratch = (unsigned long long *)(b + at[5]);
    work->assigned = (uint32_t *)(b + at[6]);
}

/* Returns cudaErrorInvalidValue if `args` is outside the limits of the kernel, else cudaSuccess. */
cudaError_t kvd_decode_check(const kvd_decode_args *args);

#ifdef __cplusplus
}
#endif
#endif
