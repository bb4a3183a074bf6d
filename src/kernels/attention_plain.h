/*
 * Where every head lies in the PLAIN layout of kernels/layout.h, and the check of shapes that reference and CPU kernels
 * share: any width >= 1, so more than the CUDA kernels take.
 */
#ifndef KVD_KERNELS_ATTENTION_PLAIN_H
#define KVD_KERNELS_ATTENTION_PLAIN_H

#include "common/err.h"
#include "kernels/layout.h"

typedef struct {
    int group;            /* query heads per KV head                            */
    size_t n_q, n_kv;     /* rows of all requests                               */
    size_t max_q, max_kv; /* the longest request                                */
    size_t q_elements, k_elements, v_elements,
        o_elements;                                  /* of all heads                                   */
    size_t q_at[KVD_HEADS_MAX], o_at[KVD_HEADS_MAX]; /* [n_heads]    first element of query head h         */
    size_t k_at[KVD_HEADS_MAX], v_at[KVD_HEADS_MAX]; /* [n_kv_heads] first element of KV head g            */
} kvd_attn_plain;

/*
 * Fills *plain. Returns 0, or -1 with *err when a count is below 1 or above KVD_HEADS_MAX, n_kv_heads does not divide
 * n_heads, a width or a length is below 1, a request has more queries than keys, or the bytes of a matrix (counted as
 * float64) do not fit in size_t.
 */
int kvd_attn_plain_make(const kvd_attn_heads *heads, const kvd_attn_batch *batch, kvd_attn_plain *plain,
                        kvd_err *err);

#endif
