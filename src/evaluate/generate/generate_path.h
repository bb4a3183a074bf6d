/* Interface of the two generators of tokens: with the KV cache in the CUDA engine, or in host
 * memory. */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_PATH_H
#define KVD_EVALUATE_GENERATE_GENERATE_PATH_H

#include <pthread.h>

#include "evaluate/generate/generate.h"
#include "model/pass/batch.h"

struct kvd_gpu_weights;

typedef struct kvd_generate_path kvd_generate_path;
struct kvd_generate_path {
    size_t piece; /* largest number of sequences in one `read` */
    /* Called by `run` when the first n_layers layers of a pass are done; may be NULL. */
    void (*layer_done)(void *ctx, int n_layers);
    void *layer_ctx;
    /* Returns how many sequences, from number `first` on, may be generated in one batch; at least
     * 1. */
    size_t (*together)(const kvd_generate_path *p, const kvd_continuations *c, size_t first);
    /* Called after `run` failed. Returns 1 if it has got more memory, so that `run` may be called
     * again, otherwise 0 or -1. May be NULL. */
    int (*grow)(kvd_generate_path *p, kvd_err *err);
    /* Returns how many of the n sequences from `first` on fit into memory, at least 1. NULL means
     * that all sequences always fit. */
    size_t (*fits)(const kvd_generate_path *p, const kvd_continuations *c, size_t first, size_t n);
    /* Begins n sequences with the compression methods of `plan`, which must stay open until
     * `end`. */
    int (*begin)(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err);
    /* Runs the model over all prompts, or over the tokens of a decode step. Sequence i of the batch
     * uses cache number slot[i]. */
    int (*run)(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err);
    /* Reads the results of n sequences of the batch, beginning with sequence number `from`. token
     * [n]: token with the largest logit, the lowest id among equals. logits [n][vocab_size]: may be
     * NULL. */
    int (*read)(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err);
    /* Returns how many bits the cache of a sequence holds. */
    double (*bits)(const kvd_generate_path *p, size_t slot);
    /* Frees the caches, also after a failure. Adds their statistics to *account unless it is
     * NULL. */
    void (*end)(kvd_generate_path *p, kvd_stepwise_account *account);
    void (*free)(kvd_generate_path *p);
};

/* Returns true if sequence s grows longer than LongRoPE's short table of factors supports. */
bool kvd_generate_outgrows(const kvd_config *config, const kvd_continuations *c, size_t s);

/* Generates the tokens of n sequences together, beginning with sequence number `first` of *c. The
 * function path->together returns the largest n allowed. A sequence for which kvd_generate_outgrows
 * is true must run alone. Holds `lock` during callbacks. */
int kvd_generate_group(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                       const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                       pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err);

/* forward pass of a model, in which a callback on the CPU computes attention */
typedef struct kvd_generate_pass kvd_generate_pass;
struct kvd_generate_pass {
    /* Runs prompts without compression and records Q, K and V in *prompts. If `twice`, each prompt
     * is followed by a copy of itself. */
    int (*first)(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err);
    /* Runs a batch. Keeps the final hidden state of each sequence's last token for `logits`. */
    int (*run)(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err);
    /* Computes logits [n][vocab_size] of n sequences of the last batch, beginning with sequence
     * number `from`. */
    int (*logits)(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err);
    void (*free)(kvd_generate_pass *p);
};

#ifdef KVD_CUDA
/* Creates a forward pass on GPU s->first_gpu, or returns NULL. Borrows checkpoint and weights.
 * `piece`: largest number of sequences for which one call computes logits. */
kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          const struct kvd_gpu_weights *weights, size_t piece,
                                          kvd_err *err);
#endif

/* Returns a generator that keeps the KV cache in host memory, or NULL on failure. If `weights` is
 * NULL, the model runs on the CPU. */
kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     const struct kvd_gpu_weights *weights, kvd_err *err);

#ifdef KVD_CUDA
/* Returns true if the GPU engine supports the compression methods of plan *p. Otherwise writes the
 * reason to `why`. */
bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY]);
/* Returns the GPU engine's name for result files. The engine must support the methods of `p`. */
const char *kvd_generate_engine_name(const kvd_config *c, const kvd_generator_spec *s,
                                     const kvd_plan *p);
/* Returns a generator that keeps the KV cache in the CUDA engine, or NULL on failure. The generator
 * borrows `weights`. `scores`: true to keep logits, from which log probabilities and ranks of
 * tokens are computed. */
kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const struct kvd_gpu_weights *weights, const kvd_plan *plan,
                                       size_t n_sequences, bool scores, kvd_err *err);

/* Loads the weights onto GPU s->first_gpu, or returns NULL. */
struct kvd_gpu_weights *kvd_generate_weights_new(const kvd_checkpoint *c,
                                                 const kvd_generator_spec *s, kvd_err *err);
void kvd_generate_weights_free(struct kvd_gpu_weights *w, const kvd_generator_spec *s);
void kvd_generate_use_gpu(const kvd_generator_spec *s);
#endif

#endif
