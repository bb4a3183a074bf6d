/* One iteration of a serving engine: the tokens of all running requests. */
#ifndef KVD_METHODS_ITERATION_H
#define KVD_METHODS_ITERATION_H

#include <stddef.h>
#include <stdint.h>

/* Tokens of one request in one iteration: n tokens from index `before` of the sequence on. */
typedef struct {
    uint32_t request;
    /* cache slot of the request, below max_batch */
    uint32_t slot;
    /* number of the request's tokens already in the cache */
    uint32_t before;
    uint32_t n;
    /* Input and output tokens, for token budgets and longrope. 0: the engine's max_len. */
    uint32_t whole;
    /* 1 if a token is sampled after the slice */
    int emits;
    /* 1 if the sampled token is the request's last; the slot is then free */
    int last;
} kvd_slice;

typedef struct {
    size_t n_slices;
    /* The first n_steps slices are decode steps (n = 1), the rest parts of prompts. */
    size_t n_steps;
    /* [n_slices] valid until the next iteration */
    const kvd_slice *slice;
    size_t n_tokens;
} kvd_iteration;

/* Attention kernels of a CUDA engine. */
typedef enum {
    /* kernels that support a different width of each head; CTAs get equal estimated cost */
    KVD_ATTENTION_OURS,
    /* same kernels, but work divided as the ZACK and FDC papers describe */
    KVD_ATTENTION_PAPERS,
    /* heads padded to the widest of the layer, as unmodified kernels require */
    KVD_ATTENTION_STOCK
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

#endif
