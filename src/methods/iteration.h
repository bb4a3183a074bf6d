/*
 * One iteration of a serving engine, as a cache sees it: the tokens of every running request that
 * go through the model together, and which attention kernels process them. The engines and the
 * scheduler of src/serving fill these structures.
 */
#ifndef KVD_METHODS_ITERATION_H
#define KVD_METHODS_ITERATION_H

#include <stddef.h>
#include <stdint.h>

/* Work of one request in an iteration: its tokens before .. before + n - 1 enter the model. */
typedef struct {
    uint32_t request; /* index in the list of requests */
    uint32_t slot;    /* number below max_batch, held by the request while it runs */
    uint32_t before;  /* number of tokens of the request that are already in the cache */
    uint32_t n;       /* number of new tokens */
    /*
     * Number of input plus output tokens of the request, on which the token budgets of methods and
     * the longrope tables depend; 0: the engine's max_len.
     */
    uint32_t whole;
    /* 1 if a token is sampled after these tokens: the end of the prompt, or a decode step */
    int emits;
    int last; /* 1 if that sampled token is the request's last; its slot is free afterwards */
} kvd_slice;

typedef struct {
    size_t n_slices;
    size_t n_steps; /* slice[0 .. n_steps - 1] are decode steps (n = 1), the others prompt pieces */
    const kvd_slice *slice; /* [n_slices] work of each request; valid until the next call */
    size_t n_tokens;        /* sum of n over all slices */
} kvd_iteration;

/*
 * Attention kernels of a CUDA engine. `stock` leaves out the kernel optimisations of the papers
 * (ZACK/KE, FDC/KE).
 */
typedef enum {
    KVD_ATTENTION_OURS, /* our kernels: heads at their own widths, work divided by cost */
    /*
     * the kernels of KVD_ATTENTION_OURS, with the division of work between blocks that the papers
     * describe
     */
    KVD_ATTENTION_PAPERS,
    /*
     * Ordinary kernels: every head of a layer is padded to the widest one, prompts run in tile
     * order, decode steps are split by length, and latents are restored before attention.
     */
    KVD_ATTENTION_STOCK
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

#endif
