/*
 * Interface between the generator, which decides the tokens, and its two implementations: the
 * CUDA engine, and a cache in host memory.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_PATH_H
#define KVD_EVALUATE_GENERATE_GENERATE_PATH_H

#include <pthread.h>

#include "evaluate/generate/generate.h"
#include "model/pass/batch.h"

struct kvd_gpu_weights;

typedef struct kvd_generate_path kvd_generate_path;
struct kvd_generate_path {
    /* Largest number of sequences whose logits one call of `read` can return. */
    size_t piece;
    /*
     * Callback for progress reports, or NULL; set by the caller of `run`. After the attention of a
     * layer, `run` may call it with the number of layers that are done.
     */
    void (*layer_done)(void *ctx, int n_layers);
    void *layer_ctx;
    /* Returns the number of sequences of *c, from `first` on, that run together; at least 1. */
    size_t (*together)(const kvd_generate_path *p, const kvd_continuations *c, size_t first);
    /*
     * Called after `run` has failed and after the call of `end` that follows. Returns 1 if it has
     * made more room, so that the sequences can be run again, 0 if that would not help, and -1 with
     * *err filled on failure. If the pointer is NULL, the path cannot make more room.
     */
    int (*grow)(kvd_generate_path *p, kvd_err *err);
    /*
     * Returns how many of n sequences of *c, from `first` on, run together; at least 1. After a
     * call of `grow` this may be fewer than `together` returned. If the pointer is NULL, all n run
     * together.
     */
    size_t (*fits)(const kvd_generate_path *p, const kvd_continuations *c, size_t first, size_t n);
    /* Begins n sequences, in slots 0 .. n - 1. The plan must stay open until `end`. */
    int (*begin)(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err);
    /*
     * Runs the prompts of all sequences, or the next token of some. `slot` [b->n_sequences] is the
     * slot of each sequence of the batch.
     */
    int (*run)(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err);
    /*
     * Returns results for sequences from .. from + n - 1 of the latest batch: the token with the
     * largest logit (the first of equal ones), and logits [n][vocab_size] unless `logits` is NULL.
     */
    int (*read)(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err);
    /* Returns the bits that the cache of a slot takes (kvd_sequence_cache_bits). */
    double (*bits)(const kvd_generate_path *p, size_t slot);
    /*
     * Ends the generation that `begin` began, also if `begin` or `run` failed. If `account` is not
     * NULL, adds the statistics to *account.
     */
    void (*end)(kvd_generate_path *p, kvd_stepwise_account *account);
    void (*free)(kvd_generate_path *p);
};

/*
 * Returns true if sequence s outgrows the short RoPE table of a longrope model. K and V of all its
 * tokens are then computed again, as the Hugging Face library does.
 */
bool kvd_generate_outgrows(const kvd_config *config, const kvd_continuations *c, size_t s);

/*
 * Generates n sequences of *c together; n must not exceed path->together. A sequence for which
 * kvd_generate_outgrows is true must be alone. `lock` is held while c->ended or c->advanced runs.
 */
int kvd_generate_group(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                       const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                       pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err);

/* Forward pass of a model, with an attention callback on the CPU. */
typedef struct kvd_generate_pass kvd_generate_pass;
struct kvd_generate_pass {
    /*
     * Runs only the prompts and records them in *prompts, for methods with kvd_plan_first_pass. If
     * `twice` is true, the batch holds every prompt two times.
     */
    int (*first)(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err);
    /*
     * Runs the batch, and keeps the hidden state of the last token of every sequence, after the
     * final norm.
     */
    int (*run)(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err);
    /* Computes logits [n][vocab_size] from the hidden states that `run` kept. */
    int (*logits)(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err);
    void (*free)(kvd_generate_pass *p);
};

/*
 * Return a pass that computes on the CPU in float32, or on GPU s->first_gpu in type s->compute. The
 * checkpoint must outlive the pass. `piece` is the largest n of `logits`. On failure return NULL
 * and fill *err.
 */
kvd_generate_pass *kvd_generate_pass_cpu(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                         kvd_err *err);
#ifdef KVD_CUDA
kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          const struct kvd_gpu_weights *weights, size_t piece,
                                          kvd_err *err);
#endif

/*
 * Returns a path whose cache is in CPU memory. `weights` are in GPU memory and borrowed; if they
 * are NULL, the path computes on the CPU. On failure returns NULL and fills *err.
 */
kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     const struct kvd_gpu_weights *weights, kvd_err *err);

#ifdef KVD_CUDA
/*
 * Returns true if the GPU engine supports the plan, which need not be open. If it returns false,
 * `why` holds the reason.
 */
bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY]);
/*
 * Returns a path that runs the CUDA engine for this plan and n_sequences sequences. `weights` is
 * borrowed. kvd_generate_path.read can return logits only if `scores` is true. On failure returns
 * NULL and fills *err.
 */
kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const struct kvd_gpu_weights *weights, const kvd_plan *plan,
                                       size_t n_sequences, bool scores, kvd_err *err);

/*
 * Loads the weights in type s->compute on GPU s->first_gpu. On failure returns NULL and fills *err.
 */
struct kvd_gpu_weights *kvd_generate_weights_new(const kvd_checkpoint *c,
                                                 const kvd_generator_spec *s, kvd_err *err);
void kvd_generate_weights_free(struct kvd_gpu_weights *w, const kvd_generator_spec *s);
/* Makes GPU s->first_gpu current for the calling thread. */
void kvd_generate_use_gpu(const kvd_generator_spec *s);
#endif

/* Returns the index of the largest element, the first one if several are equal. */
size_t kvd_generate_largest(const float *x, size_t n);

#endif
