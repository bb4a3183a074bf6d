/*
 * One iteration of a serving engine, as a KV cache sees it: the tokens of every running request
 * that go through the model together, and which attention kernels process them. The engines and the
 * scheduler of src/serving fill these structures.
 */
#ifndef KVD_METHODS_ITERATION_H
#define KVD_METHODS_ITERATION_H

#include <stddef.h>
#include <stdint.h>

/*
 * Work of one request in an iteration: tokens before .. before + n - 1 of the request enter the
 * model.
 */
typedef struct {
    /* Index of the request in the list of requests. */
    uint32_t request;
    /* Cache slot that the request holds while it runs, below max_batch. */
    uint32_t slot;
    /* Number of tokens of the request that are already in the cache. */
    uint32_t before;
    /* Number of tokens of the request that enter the model in this iteration. */
    uint32_t n;
    /*
     * Number of input plus output tokens of the request. Token budgets of methods and the longrope
     * tables depend on it. 0: the engine's max_len is used.
     */
    uint32_t whole;
    /* 1 if a token is sampled after these tokens: they end the prompt, or are a decode step. */
    int emits;
    /* 1 if the sampled token is the request's last; the slot of the request is free afterwards. */
    int last;
} kvd_slice;

typedef struct {
    size_t n_slices;
    /* slice[0 .. n_steps - 1] are decode steps (n = 1); the other slices are parts of prompts. */
    size_t n_steps;
    /* Work of each request, [n_slices]. Valid until the next iteration. */
    const kvd_slice *slice;
    /* Number of tokens that enter the model: the sum of n over all slices. */
    size_t n_tokens;
} kvd_iteration;

/*
 * Attention kernels of a CUDA engine. KVD_ATTENTION_STOCK leaves out the kernel optimisations of
 * the papers (named ZACK/KE and FDC/KE there).
 */
typedef enum {
    /*
     * Our kernels: each head is processed at its own number of kept dimensions, and work is divided
     * by cost.
     */
    KVD_ATTENTION_OURS,
    /*
     * The kernels of KVD_ATTENTION_OURS, with the division of work between thread blocks that the
     * papers describe.
     */
    KVD_ATTENTION_PAPERS,
    /*
     * Ordinary kernels: every head of a layer is padded to the widest head, prompts run in tile
     * order, decode steps are split by length, and latents are restored before attention.
     */
    KVD_ATTENTION_STOCK
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

#endif
