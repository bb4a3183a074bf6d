/*
 * One case of the benchmark: widths, lengths, type, and the data that follow from a seed (kernels/timing/values.h).
 */
#ifndef KVD_KERNELS_PROBLEM_H
#define KVD_KERNELS_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/half.h"
#include "kernels/layout.h"
#include "kernels/timing/values.h"

typedef enum { KVD_PREFILL, KVD_DECODE, KVD_N_ATTN_PHASES } kvd_attn_phase;
extern const char *const kvd_attn_phase_name[KVD_N_ATTN_PHASES]; /* "prefill", "decode" */

typedef enum {
    KVD_LENGTHS_EQUAL, /* every request has seq_len tokens                                                   */
    KVD_LENGTHS_LOGNORMAL, /* median below seq_len, sigma 0.8, mean seq_len, at most 4 seq_len                   */
    KVD_LENGTHS_ONE_LONG, /* the first has seq_len, the others 1/16 of it                                       */
    KVD_LENGTHS_FILE, /* given                                                                              */
    KVD_N_LENGTHS
} kvd_lengths;
extern const char *const kvd_lengths_name[KVD_N_LENGTHS]; /* "equal", "lognormal", "one-long", "file" */

enum { KVD_WIDTHS_NAME = 64 };

typedef struct {
    kvd_attn_phase phase;
    kvd_dtype dtype;
    uint64_t seed;
    bool sharp;                   /* data with outliers                                             */
    kvd_attn_heads heads;         /* widths                                                         */
    char widths[KVD_WIDTHS_NAME]; /* what the widths are called                                     */
    kvd_lengths lengths;
    size_t seq_len; /* asked for: the longest with lengths from a file                */
    int batch;
    int32_t *q_len, *kv_len; /* [batch]; q_len is kv_len in prefill and 1 in decode            */
} kvd_problem;

/* Sets batch and lengths; `given` [batch] with KVD_LENGTHS_FILE, else NULL. The other fields are the caller's. */
int kvd_problem_lengths(kvd_problem *p, kvd_lengths lengths, int batch, size_t seq_len, const int32_t *given,
                        kvd_err *err);
void kvd_problem_release(kvd_problem *p);

kvd_attn_batch kvd_problem_batch(const kvd_problem *p);
size_t kvd_problem_tokens(const kvd_problem *p, bool queries); /* sum of q_len or of kv_len */

/* 1 - sum(d_qk + d_v) / (2 d_head n_kv_heads) of the widths as they are. */
double kvd_heads_p(const kvd_attn_heads *heads);
double kvd_heads_mean(const int *width, int n);
int kvd_heads_widest(const kvd_attn_heads *heads);
/* All heads at d_head. */
kvd_attn_heads kvd_heads_dense(const kvd_attn_heads *heads);

/*
 * Rows [n][d] of one matrix, rounded to p->dtype, as float32. For Q, `head` is the query head and `first` counts from the
 * request's first key, as positions do.
 */
void kvd_problem_rows(const kvd_problem *p, kvd_tensor tensor, int request, int head, size_t first, size_t n,
                      int d, float *rows);

/* A whole tensor in layout PLAIN; NULL with *err when memory runs out. The caller frees it. */
float *kvd_problem_plain(const kvd_problem *p, kvd_tensor tensor, kvd_err *err);

#endif
