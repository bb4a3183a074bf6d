/* Token ranges of each CTA in decode attention, written by decode_plan.cu, read by decode.cu. */
#ifndef KVD_KERNELS_CUDA_DECODE_WORK_H
#define KVD_KERNELS_CUDA_DECODE_WORK_H

#include "kernels/cuda/decode.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Range of tokens of one KV head that one CTA reads. `span` CTAs share the KV head. */
typedef struct {
    int32_t request, head;
    int32_t page; /* index of the first page in the request */
    /* Number of tokens from the start of the CTA's first page to the end of its token range. */
    int32_t n_tokens;
    int32_t first_cta, span, live;
    /* Number of tokens of the first page that precede the CTA's token range. */
    int32_t skip;
} kvd_decode_segment;

/* Work of a CTA: `count` token ranges. The first is here, the others in kvd_decode_work.list. */
typedef struct {
    int32_t count, next, unused[2];
    kvd_decode_segment first_segment;
} kvd_decode_cta;

/* Addresses of the arrays in the device workspace. CTA c stores up to two partial results, with the
 * indices 2 c and 2 c + 1. */
typedef struct {
    kvd_decode_cta *cta; /* [n_ctas] */
    /* [n_ctas] counters, 0 between launches. arrived[i]: number of CTAs that have finished their
     * part of a KV head, where i is the head's first CTA. */
    uint32_t *arrived;
    /* [batch * n_kv_heads + n_ctas] Second and later token ranges of all CTAs. */
    kvd_decode_segment *list;
    /* Partial results [2 n_ctas][kvd_decode_rows()][2]: largest raw score and sum of
     * exponentials. */
    float *slot_ml;
    float *slot_o;               /* [2 n_ctas][kvd_decode_rows()][d_v_max] partial O, not divided */
    unsigned long long *scratch; /* sort keys or prefix sums of the planner */
    /* [batch * n_kv_heads] scratch memory of the planner: for each KV head, (CTA << 16) | index of
     * the head among that CTA's heads. */
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

/* Returns how many of the query heads that share a KV head one launch computes. All launches for a
 * KV head compute equally many. */
static inline int kvd_decode_rows(const kvd_attn_map *map)
{
    const int launches = (map->group + KVD_GROUP_MAX - 1) / KVD_GROUP_MAX;
    return (map->group + launches - 1) / launches;
}

static inline int kvd_decode_d_v_max(const kvd_attn_map *map)
{
    int d = 0;
    for (int g = 0; g < map->n_kv_heads; g++)
        d = map->d_v[g] > d ? map->d_v[g] : d;
    return d;
}

/* Computes the size of the workspace, work->bytes. If `base` is not NULL, also sets the pointers to
 * its arrays. */
static inline void kvd_decode_work_lay(const kvd_attn_map *map, int batch, int n_ctas, void *base,
                                       kvd_decode_work *work)
{
    const size_t tasks = (size_t)batch * (size_t)map->n_kv_heads, n = (size_t)n_ctas;
    const size_t group = (size_t)kvd_decode_rows(map), d_v = (size_t)kvd_decode_d_v_max(map);
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

cudaError_t kvd_decode_check(const kvd_decode_args *args);
/* Computes decode attention with args->ctas_per_task CTAs per KV head and request. */
cudaError_t kvd_decode_short(const kvd_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
