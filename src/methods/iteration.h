/*
 * One iteration of a serving engine, as a KV cache sees it: the tokens of every running request
 * that go through the model together.
 */
#ifndef KVD_METHODS_ITERATION_H
#define KVD_METHODS_ITERATION_H

#include <stddef.h>
#include <stdint.h>

/*
 * Tokens of one request that an iteration processes: n tokens, the first of which has index
 * `before` in the sequence.
 */
typedef struct {
    /* Index of the request in the list of requests. */
    uint32_t request;
    /* cache slot of the request, below max_batch */
    uint32_t slot;
    /* Number of tokens of the request that are already in the cache. */
    uint32_t before;
    uint32_t n;
    /*
     * Number of input and output tokens of the request. Token budgets of methods and the longrope
     * tables depend on this number. 0: the engine's max_len.
     */
    uint32_t whole;
    /*
     * 1 if a token is sampled after this slice. 0 if the slice ends before the end of the prompt.
     */
    int emits;
    /* 1 if the sampled token is the request's last token. The slot is free afterwards. */
    int last;
} kvd_slice;

typedef struct {
    size_t n_slices;
    /* The first n_steps slices are decode steps (n = 1), the rest parts of prompts. */
    size_t n_steps;
    /* [n_slices] Slices of the iteration. Valid until the next iteration. */
    const kvd_slice *slice;
    /* Sum of n over all slices. */
    size_t n_tokens;
} kvd_iteration;

/*
 * Attention kernels of a CUDA engine. KVD_ATTENTION_STOCK leaves out the optimisations that the
 * papers call ZACK/KE and FDC/KE.
 */
typedef enum {
    /* Kernels that process each head at its own number of dimensions and divide work by cost. */
    KVD_ATTENTION_OURS,
    /*
     * The kernels of KVD_ATTENTION_OURS, but work is divided between thread blocks as the ZACK and
     * FDC papers describe.
     */
    KVD_ATTENTION_PAPERS,
    /*
     * Ordinary kernels: every head is padded to the widest head of the layer, and decode steps are
     * divided among CTAs by their numbers of tokens. K and V are restored from latents before
     * attention.
     */
    KVD_ATTENTION_STOCK
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

#endif
