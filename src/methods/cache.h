/*
 * A KV cache as an attention door: it takes K and V of a running sequence, stores them shortened,
 * and computes attention from what it stored. A method is a choice for each of the four axes
 * layers, tokens, dimensions, bits; the axes are applied in that order, and the cache alone
 * counts bytes. So far the dims axis has members (dims/), and the bits axis has the type of the
 * stored numbers; layers and tokens are identity.
 *
 * Prefill attends to what was stored, the current token included (ZACK leaves this open, Z-19): the
 * probabilities of row i come from K' and the output from V' for all keys 0 .. i.
 */
#ifndef KVD_METHODS_CACHE_H
#define KVD_METHODS_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "methods/dims/dims.h"
#include "model/attention.h"

/* What was done, so that a run can prove that its method acted (evaluations check it). */
typedef struct {
    size_t calls;          /* (sequence, layer) pairs compressed and attended            */
    size_t tokens;         /* sum over calls of tokens stored                            */
    size_t elements_kept;  /* numbers stored, K and V                                    */
    size_t elements_dense; /* what the uncompressed cache would have stored              */
    size_t bytes_stored;   /* elements_kept in the type of the store                     */
} kvd_cache_account;

typedef struct {
    kvd_attention door;
    const kvd_dims *dims; /* borrowed; NULL: the identity (method none)                 */
    kvd_dtype type;       /* of the stored numbers                                      */
    kvd_cache_account account;
    /* private */
    void *store; /* K' and V' of one layer of one sequence, head after head     */
    size_t store_n;
    float *work; /* the same as float32, and scratch for every thread           */
    size_t work_n;
} kvd_cache;

/* config's shape must match dims; max_len is the longest sequence. Numbers that overflow `type` become
 * infinite and are found in the logits. */
int kvd_cache_init(kvd_cache *c, const kvd_config *config, const kvd_dims *dims, kvd_dtype type,
                   size_t max_len, kvd_err *err);
void kvd_cache_release(kvd_cache *c);

/*
 * The account must be that of n_sequences with n_tokens tokens in all run once through layers
 * first_layer .. n_layers-1: one call per sequence and layer, the kept elements equal to the widths.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_dims *dims,
                    size_t n_sequences, size_t n_tokens, int first_layer, kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

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
