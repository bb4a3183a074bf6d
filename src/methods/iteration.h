/* One iteration of a serving engine: the tokens of all running requests. */
#ifndef KVD_METHODS_ITERATION_H
#define KVD_METHODS_ITERATION_H

#include <stddef.h>
#include <stdint.h>

/* Tokens of one request in one iteration: n tokens from index `before` of the sequence on. */
typedef struct {
    uint32_t request;
    /* Slot of the request in the cache, below max_batch. */
    uint32_t slot;
    /* Number of the request's tokens that are already in the cache. */
    uint32_t before;
    uint32_t n;
    /* Number of the request's input and output tokens together. 0 means the engine's max_len. */
    uint32_t whole;
    /* 1 if the model emits an output token for this request in this iteration. */
    int emits;
    /* 1 if the emitted token is the last one of the request, whose slot is then free. */
    int last;
} kvd_slice;

typedef struct {
    size_t n_slices;
    /* Number of decode steps. They are the first elements of `slice`; the others are prompts or
     * parts of prompts. */
    size_t n_steps;
    /* [n_slices] Tokens of each request in the iteration, valid until the next iteration. */
    const kvd_slice *slice;
    size_t n_tokens;
} kvd_iteration;

/* Attention kernels that a CUDA engine uses. */
typedef enum {
    /* Kernels for heads of different widths. All thread blocks get work of equal estimated cost. */
    KVD_ATTENTION_OURS,
    /* Kernels of KVD_ATTENTION_OURS that divide work among thread blocks as published for methods
     * zack and fdc. */
    KVD_ATTENTION_PAPERS,
    /* All heads of a layer are padded to the widest, as unmodified kernels require. */
    KVD_ATTENTION_STOCK
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

#endif
