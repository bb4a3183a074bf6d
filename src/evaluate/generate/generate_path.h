/*
 * Interface between the generator (generate.h), which decides the tokens, and its two
 * implementations: the CUDA engine, and a cache in host memory. An implementation runs the tokens
 * of several sequences through the model, computes the logits and keeps the compressed cache.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_PATH_H
#define KVD_EVALUATE_GENERATE_GENERATE_PATH_H

#include <pthread.h>

#include "evaluate/generate/generate.h"
#include "model/pass/batch.h"

struct kvd_gpu_weights;

typedef struct kvd_generate_path kvd_generate_path;
struct kvd_generate_path {
    /* Largest number of token positions whose logits one call of `read` returns. */
    size_t piece;
    /*
     * Callback that `run` may call after the attention of a layer, with the number of layers so
     * far, for progress reports; NULL: none. The caller of `run` sets it.
     */
    void (*layer_done)(void *ctx, int n_layers);
    void *layer_ctx;
    /* Returns the number of sequences of *c, from `first` on, that run together; at least 1. */
    size_t (*together)(const kvd_generate_path *p, const kvd_continuations *c, size_t first);
    /*
     * Begins n sequences. Later calls name each by its slot number, 0 .. n - 1. The cache plan
     * (compression setting) is open and stays open until `end`.
     */
    int (*begin)(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err);
    /*
     * Runs a batch: the prompts of all sequences, or the next token of some sequences. slot
     * [b->n_sequences] has the number, given by `begin`, of each sequence of the batch.
     */
    int (*run)(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err);
    /*
     * For sequences from .. from + n - 1 of the latest batch, writes to `token` the token with the
     * largest logit after the last input; the first if several are equal. Also writes the logits
     * [n][vocab_size], unless `logits` is NULL.
     */
    int (*read)(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err);
    /* Returns how many bits the cache of sequence number `slot` takes (kvd_sequence_cache_bits). */
    double (*bits)(const kvd_generate_path *p, size_t slot);
    /*
     * Ends all sequences. Also called if `begin` or `run` failed. Unless `account` is NULL, adds to
     * *account the cache sizes and the bits that attention read.
     */
    void (*end)(kvd_generate_path *p, kvd_stepwise_account *account);
    void (*free)(kvd_generate_path *p);
};

/*
 * Returns true if sequence s outgrows the RoPE table for short sequences of a longrope model. K and
 * V of all its tokens are then computed again with the table for long sequences, as the Hugging
 * Face library does.
 */
bool kvd_generate_outgrows(const kvd_config *config, const kvd_continuations *c, size_t s);

/*
 * Generates n sequences of *c together, from number `first` on. n is at most what path->together
 * returns. A sequence for which kvd_generate_outgrows is true must be the only one of its group.
 * Adds to *account the cache sizes and the bits that attention read. `lock` is held while c->ended
 * or c->advanced runs.
 */
int kvd_generate_group(kvd_generate_path *path, const kvd_config *config, const kvd_plan *plan,
                       const kvd_continuations *c, const kvd_continued *out, size_t first, size_t n,
                       pthread_mutex_t *lock, kvd_stepwise_account *account, kvd_err *err);

/* Forward pass of a model whose attention is a callback on the CPU. */
typedef struct kvd_generate_pass kvd_generate_pass;
struct kvd_generate_pass {
    /*
     * Runs only the prompts through all layers, before the actual run, and records them in
     * *prompts. Compression methods for which kvd_plan_first_pass is true need this. If `twice`,
     * the batch holds every prompt two times.
     */
    int (*first)(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err);
    /*
     * Runs a batch with its attention in `hook`. Keeps the hidden state of the last token of every
     * sequence, after the final norm.
     */
    int (*run)(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err);
    /*
     * Writes the logits [n][vocab_size] after the last token of sequences from .. from + n - 1 of
     * the latest batch, from the hidden states that `run` kept.
     */
    int (*logits)(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err);
    void (*free)(kvd_generate_pass *p);
};

/*
 * Return the forward pass of a model: kvd_generate_pass_cpu on the CPU in float32,
 * kvd_generate_pass_cuda on GPU s->first_gpu in number type s->compute. The checkpoint must outlive
 * the pass. `piece` is the largest number of sequences whose logits one call of `logits` computes.
 * On failure return NULL and fill *err.
 */
kvd_generate_pass *kvd_generate_pass_cpu(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                         kvd_err *err);
#ifdef KVD_CUDA
kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          const struct kvd_gpu_weights *weights, size_t piece,
                                          kvd_err *err);
#endif

/*
 * Returns the generator implementation with the cache on the CPU. `weights` are in GPU memory,
 * borrowed; NULL to compute on the CPU. On failure returns NULL and fills *err.
 */
kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     const struct kvd_gpu_weights *weights, kvd_err *err);

#ifdef KVD_CUDA
/*
 * Returns true if the CUDA engine can generate with the cache plan (compression setting), which
 * need not be open. Otherwise returns false and writes the reason to `why`.
 */
bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY]);
/*
 * Returns the generator implementation with the CUDA engine, for this cache plan (compression
 * setting) and a call with n_sequences sequences. `weights` is borrowed. If `scores` is true, the
 * function kvd_generate_path.read can return logits; otherwise it returns only tokens. On failure
 * returns NULL and fills *err.
 */
kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const struct kvd_gpu_weights *weights, const kvd_plan *plan,
                                       size_t n_sequences, bool scores, kvd_err *err);

/*
 * Loads the model's weights in number type s->compute onto GPU s->first_gpu. kvd_generate_rows and
 * kvd_generate_engine take them. On failure returns NULL and fills *err.
 */
struct kvd_gpu_weights *kvd_generate_weights_new(const kvd_checkpoint *c,
                                                 const kvd_generator_spec *s, kvd_err *err);
void kvd_generate_weights_free(struct kvd_gpu_weights *w, const kvd_generator_spec *s);
/* Makes GPU s->first_gpu the current device of the calling thread. */
void kvd_generate_use_gpu(const kvd_generator_spec *s);
#endif

/* Returns the index of the largest element of x [n], the first if several are equal. */
size_t kvd_generate_largest(const float *x, size_t n);

#endif
