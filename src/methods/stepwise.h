/*
 * One KV head of one layer of one sequence under a plan, row by row: the prompt's rows attend to each other, the prompt is
 * compressed, and each row after it is appended, attends to what is stored, and changes what is stored. The plain definition of
 * what a plan does; cache.c computes plans without tokens and bits in blocks, with the same result.
 */
#ifndef KVD_METHODS_STEPWISE_H
#define KVD_METHODS_STEPWISE_H

#include "methods/prompts.h"
#include "model/attention.h"

/* What a thread's time goes to. */
typedef enum {
    KVD_STEPWISE_PROJECT, /* rotation and cut of Q, K and V, and back           */
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    KVD_STEPWISE_COMPRESS, /* choices of tokens, channels, codes                 */
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/* What was stored, over all rows after the prompt. Bits; dense: what an uncompressed cache holds of the same tokens. */
typedef struct {
    size_t rows; /* steps                                                        */
    double payload, side,
        entries; /* sums over steps of the bits held after each: numbers; scales, tables, indices;
                                      scores and positions                                         */
    double dense;
    double peak; /* most bits at once, the appended row before its eviction included              */
    size_t dropped, lowered, coded, merged, pruned; /* entries that were                           */
    double seconds[KVD_STEPWISE_PARTS];             /* of the threads together                     */
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

/*
 * Writes the attention output of the query heads of KV head g, out as kvd_attention's. On the calling thread, between kvd_blas_serial
 * and kvd_blas_restore. cosine, sine [n][d_head / 2]: tables of kvd_rope_tables for this sequence, for methods that code keys before
 * RoPE; NULL otherwise. prompts, of the same sequences, for plans with kvd_plan_first_pass; else NULL.
 */
int kvd_stepwise_head(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                      size_t sequence, int g, const float *cosine, const float *sine, float *out,
                      kvd_stepwise_account *account, kvd_err *err);

#endif
