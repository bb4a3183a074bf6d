/*
 * A KV cache as an attention door: it takes K and V of a running sequence, stores them as a plan says (plan.h), and computes
 * attention from what it stored. The cache alone counts bytes.
 *
 * With plan.prompt = 0 every row is a step: it attends to what is stored, itself included (ZACK leaves this open, Z-19). Plans that
 * change nothing but the dims axis (latents too) do not depend on the order of rows and run in blocks; the others go row by row
 * (stepwise.h), sequences and KV heads side by side.
 */
#ifndef KVD_METHODS_CACHE_H
#define KVD_METHODS_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "methods/plan.h"
#include "methods/stepwise.h"
#include "model/attention.h"

/* What was done, so that a run can prove that its method acted (evaluations check it). */
typedef struct {
    size_t calls;               /* (sequence, layer) pairs compressed and attended            */
    size_t tokens;              /* sum over calls of tokens stored                            */
    size_t elements_kept;       /* numbers stored, K and V                                    */
    size_t elements_dense;      /* what the uncompressed cache would have stored              */
    size_t bytes_stored;        /* elements_kept in the type of the store                     */
    kvd_stepwise_account steps; /* of plans that go row by row, whose elements are counted here instead */
} kvd_cache_account;

typedef struct {
    kvd_attention door;
    const kvd_plan *plan;       /* borrowed, open                                                        */
    const kvd_prompts *prompts; /* borrowed; set before a batch is run with a plan with kvd_plan_first_pass */
    kvd_cache_account account;
    /* private */
    void *store; /* K' and V' of one layer of one sequence, head after head     */
    size_t store_n;
    float *work; /* the same as float32, and scratch for every thread           */
    size_t work_n;
    /* where keys before RoPE are turned: for sequences of rope_len */
    float *cosine, *sine;
    uint32_t *position;
    size_t rope_len;
} kvd_cache;

/* config's shape must match the plan's dims; max_len is the longest sequence. Numbers that overflow the plan's type become
 * infinite and are found in the logits. */
int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_plan *plan, size_t max_len,
                   kvd_err *err);
void kvd_cache_release(kvd_cache *c);

/*
 * The account must be that of n_sequences with n_tokens tokens in all run once through layers
 * first_layer .. n_layers-1: one call per sequence and layer; in blocks the kept elements equal to the widths; row by row n_steps
 * rows after the prompts, and every axis has done something: some entry was dropped, lowered or coded.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer, kvd_err *err);

/* The part of it that plans which go row by row have: so many rows were steps, and every axis has done something. */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows, kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/* What a cache without widths adds in a run of all layers over n_sequences with n_tokens together. */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, size_t n_sequences, size_t n_tokens,
                             kvd_cache_account *sum);

/* Bytes per token of the whole model, for stored elements of element_bytes each. */
typedef struct {
    double dense;   /* 2 * n_layers * n_kv_heads * d_head * element_bytes             */
    double nominal; /* sum(d_qk + d_v) * element_bytes                                */
    double padded;  /* widths rounded up to multiples of 16, as kernels store them    */
    double basis;   /* projection matrices of Q-K for the whole model, not per token; those of V are
                       folded into W_V and W_O (DESIGN reading 2) and cost nothing; without RoPE
                       those of Q-K fold into W_Q and W_K, and this is 0               */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
