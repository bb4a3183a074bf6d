/*
 * Interface between the generator and its two implementations, which keep the KV cache in the CUDA
 * engine or in host memory.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_PATH_H
#define KVD_EVALUATE_GENERATE_GENERATE_PATH_H

#include <pthread.h>

#include "evaluate/generate/generate.h"
#include "model/pass/batch.h"

struct kvd_gpu_weights;

typedef struct kvd_generate_path kvd_generate_path;
struct kvd_generate_path {
    size_t piece; /* largest number of sequences in one `read` */
    /* Called by `run` after n_layers more layers, to report progress; may be NULL. */
    void (*layer_done)(void *ctx, int n_layers);
    void *layer_ctx;
    /* Returns how many sequences, from `first` on, may run together, at least 1. */
    size_t (*together)(const kvd_generate_path *p, const kvd_continuations *c, size_t first);
    /*
     * Called after `run` failed and `end` was called. Returns 1 if it made more memory available, 0
     * if it cannot, -1 on failure. May be NULL.
     */
    int (*grow)(kvd_generate_path *p, kvd_err *err);
    /*
     * Returns how many of n sequences, from `first` on, fit into memory together, at least 1. NULL
     * means that all fit.
     */
    size_t (*fits)(const kvd_generate_path *p, const kvd_continuations *c, size_t first, size_t n);
    /*
     * Begins n sequences, numbered 0 .. n - 1, under the compression methods of `plan`, which must
     * stay open until `end`.
     */
    int (*begin)(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err);
    /*
     * Runs a batch: all prompts, or the next token of some sequences. slot [b->n_sequences] has the
     * indices of the caches of its sequences.
     */
    int (*run)(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err);
    /*
     * Reads results of sequences from .. from + n - 1 of the latest batch: the token with the
     * largest logit (first of equal ones) and logits [n][vocab_size] (may be NULL).
     */
    int (*read)(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err);
    /*
     * Returns the number of bits that the cache of a running sequence (slot) holds
     * (kvd_sequence_cache_bits).
     */
    double (*bits)(const kvd_generate_path *p, size_t slot);
    /*
     * Frees the caches that `begin` allocated, also after a failure. Adds the bytes of their caches
     * to *account unless it is NULL.
     */
    void (*end)(kvd_generate_path *p, kvd_stepwise_account *account);
    void (*free)(kvd_generate_path *p);
};

/*
 * Returns true if sequence s outgrows the short RoPE table of a LongRoPE model. K and V are then
 * computed again.
 */
bool kvd_generate_outgrows(const kvd_config *config, const kvd_continuations *c, size_t s);

/*
 * Generates n sequences, at most path->together, and only 1 if kvd_generate_outgrows returns true.
 * `lock` is held during c->ended and c->advanced.
 */
int kvd_generate_group(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                       const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                       pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err);

/* Forward pass of a model whose attention is a callback on the CPU. */
typedef struct kvd_generate_pass kvd_generate_pass;
struct kvd_generate_pass {
    /*
     * Records the Q, K and V that the compression methods need before compression
     * (kvd_plan_first_pass). With `twice`, the batch repeats each prompt.
     */
    int (*first)(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err);
    /* Runs a batch. Keeps the final hidden state of each sequence's last token. */
    int (*run)(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err);
    /* Computes logits [n][vocab_size] of the states that `run` kept. */
    int (*logits)(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err);
    void (*free)(kvd_generate_pass *p);
};

#ifdef KVD_CUDA
/*
 * Creates a forward pass in s->compute on GPU s->first_gpu, or returns NULL. Borrows the
 * checkpoint. `piece` is the largest n with which `logits` is called.
 */
kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          const struct kvd_gpu_weights *weights, size_t piece,
                                          kvd_err *err);
#endif

/*
 * Returns an implementation with the KV cache in CPU memory, or NULL on failure. If `weights` is
 * NULL, the model runs on the CPU.
 */
kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     const struct kvd_gpu_weights *weights, kvd_err *err);

#ifdef KVD_CUDA
/*
 * Returns true if the GPU engine supports the compression methods of the plan. Otherwise writes the
 * reason to `why`.
 */
bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY]);
/*
 * Returns a name for the implementation that generates text with these compression methods, which
 * the GPU engine must support, for result files.
 */
const char *kvd_generate_engine_name(const kvd_config *c, const kvd_generator_spec *s,
                                     const kvd_plan *p);
/*
 * Returns the implementation on the CUDA engine, or NULL on failure. Borrows `weights`. If
 * `scores`, its function `read` can return logits.
 */
kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const struct kvd_gpu_weights *weights, const kvd_plan *plan,
                                       size_t n_sequences, bool scores, kvd_err *err);

/* Loads the weights in type s->compute onto GPU s->first_gpu. Returns NULL on failure. */
struct kvd_gpu_weights *kvd_generate_weights_new(const kvd_checkpoint *c,
                                                 const kvd_generator_spec *s, kvd_err *err);
void kvd_generate_weights_free(struct kvd_gpu_weights *w, const kvd_generator_spec *s);
/* Makes GPU s->first_gpu current for the calling thread. */
void kvd_generate_use_gpu(const kvd_generator_spec *s);
#endif

#endif
