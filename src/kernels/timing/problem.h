/* One case of the attention benchmark, generated from a seed (kernels/timing/values.h). */
#ifndef KVD_KERNELS_TIMING_PROBLEM_H
#define KVD_KERNELS_TIMING_PROBLEM_H

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
    KVD_LENGTHS_EQUAL,     /* every request has seq_len tokens */
    KVD_LENGTHS_LOGNORMAL, /* log-normal, sigma 0.8 and mean seq_len, at most 4 seq_len */
    /* The first request has seq_len tokens, others seq_len / 16. */
    KVD_LENGTHS_ONE_LONG,
    KVD_LENGTHS_FILE,
    KVD_N_LENGTHS
} kvd_lengths;
/* Names of the rules for request lengths: "equal", "lognormal", "one-long", "file". */
extern const char *const kvd_lengths_name[KVD_N_LENGTHS];

enum { KVD_WIDTHS_NAME = 64 };

typedef struct {
    kvd_attn_phase phase;
    kvd_dtype dtype;
    uint64_t seed;
    bool sharp; /* true if Q and K have outliers (kernels/timing/values.h) */
    kvd_attn_heads heads;
    char widths[KVD_WIDTHS_NAME]; /* name of this set of kept dimensions */
    kvd_lengths lengths;
    /* Number of tokens of the longest request, or of the mean request if lengths are log-normal. */
    size_t seq_len;
    int batch;
    int32_t *q_len, *kv_len; /* [batch] q_len is kv_len in prefill, 1 in decode. */
} kvd_problem;

/* Sets p->batch, and the length of each request by the rule `lengths`. `given` [batch]: the lengths
 * if this rule is KVD_LENGTHS_FILE, else NULL. */
int kvd_problem_lengths(kvd_problem *p, kvd_lengths lengths, int batch, size_t seq_len,
                        const int32_t *given, kvd_err *err);
void kvd_problem_release(kvd_problem *p);

kvd_attn_batch kvd_problem_batch(const kvd_problem *p);
/* Returns the number of queries of all requests if `queries` is true, else the number of keys. */
size_t kvd_problem_tokens(const kvd_problem *p, bool queries);

/* Returns the fraction of K and V that is removed: 1 - sum(d_qk + d_v) / (2 d_head n_kv_heads). */
double kvd_heads_p(const kvd_attn_heads *heads);
double kvd_heads_mean(const int *width, int n);
int kvd_heads_widest(const kvd_attn_heads *heads);
/* Returns a copy of *heads with every d_qk and d_v set to d_head. */
kvd_attn_heads kvd_heads_dense(const kvd_attn_heads *heads);

/* Generates n rows [n][d] of Q, K or V from position `first` on. `head` is a query head for Q, a KV
 * head for K and V. */
void kvd_problem_rows(const kvd_problem *p, kvd_operand tensor, int request, int head, size_t first,
                      size_t n, int d, float *rows);

/* Returns generated Q, K or V, one float32 matrix per head, which the caller frees, or NULL. */
float *kvd_problem_plain(const kvd_problem *p, kvd_operand tensor, kvd_err *err);

#endif
