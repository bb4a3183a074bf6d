/*
 * Joining neighbours, best pair first: the loop that both kinds of byte pair encoding share.
 * A heap keeps the candidates, so a text of n symbols takes O(n log n) steps.
 */
#ifndef KVD_MODEL_TOKENIZER_MERGE_H
#define KVD_MODEL_TOKENIZER_MERGE_H

#include "model/tokenizer/pieces.h"

typedef struct {
    uint32_t id;
    uint32_t before, after; /* neighbours; UINT32_MAX: none */
    bool gone;              /* joined into the symbol before */
} kvd_symbol;

typedef struct {
    uint64_t order; /* priority, then position */
    uint32_t id;    /* that the pair becomes */
} kvd_merge_candidate;

typedef struct {
    kvd_symbol *symbol;
    size_t n, capacity;
    kvd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} kvd_merge_work;

/* Whether left and right join, into which id, with which priority (smaller goes first). */
typedef bool (*kvd_merge_rule)(const void *context, uint32_t left, uint32_t right, uint32_t *priority,
                               uint32_t *id);

/* Appends a symbol; n = 0 starts a new sequence. */
int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err);

/*
 * Joins until no pair is left: each time the pair of smallest priority, leftmost on ties.
 * Afterwards symbol[0..n).id are the ids.
 */
int kvd_merge_all(kvd_merge_work *w, kvd_merge_rule rule, const void *context, kvd_err *err);

void kvd_merge_release(kvd_merge_work *w);

#endif
