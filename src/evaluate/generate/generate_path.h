/*
 * How a generator (generate.h) runs the rows of sequences that are generated together, and where
 * the cache of the plan is. generate.c decides the tokens; a path computes the logits and keeps the
 * cache.
 */
#ifndef KVD_EVALUATE_GENERATE_GENERATE_PATH_H
#define KVD_EVALUATE_GENERATE_GENERATE_PATH_H

#include "evaluate/generate/generate.h"
#include "model/pass/batch.h"

typedef struct kvd_generate_path kvd_generate_path;
struct kvd_generate_path {
    /* Largest number of rows whose logits one call of `read` returns. */
    size_t piece;
    /* Returns the number of sequences of *c, from `first` on, that run together; at least 1. */
    size_t (*together)(const kvd_generate_path *p, const kvd_continuations *c, size_t first);
    /* Begins n sequences, in slots 0 .. n-1. The plan is open and stays open until `end`. */
    int (*begin)(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err);
    /*
     * Runs a batch: the prompts of all sequences, or one row of each of some sequences. slot
     * [b->n_sequences]: slots of the sequences.
     */
    int (*run)(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err);
    /*
     * Writes the tokens with the largest logits after the last rows of sequences from .. from+n-1
     * of the latest batch, of equal logits the first, and unless `logits` is NULL the logits
     * [n][vocab_size].
     */
    int (*read)(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *logits,
                kvd_err *err);
    /* Returns the bits that the sequence in a slot holds (kvd_sequence_cache_bits). */
    double (*bits)(const kvd_generate_path *p, size_t slot);
    /* Ends all sequences, also after a failure, and adds their account to *account unless NULL. */
    void (*end)(kvd_generate_path *p, kvd_stepwise_account *account);
    void (*free)(kvd_generate_path *p);
};

/* Products of a model for the path by rows. */
typedef struct kvd_generate_pass kvd_generate_pass;
struct kvd_generate_pass {
    /*
     * Runs the prompts alone through all layers, for plans with kvd_plan_first_pass. If `twice` is
     * true, the batch holds every prompt two times.
     */
    int (*first)(kvd_generate_pass *p, const kvd_batch *b, kvd_prompts *prompts, bool twice,
                 kvd_err *err);
    /* Runs a batch through the hook, and keeps the last row of every sequence. */
    int (*run)(kvd_generate_pass *p, const kvd_batch *b, kvd_attention *hook, kvd_err *err);
    /* Writes the logits [n][vocab_size] of kept rows from .. from+n-1. */
    int (*logits)(kvd_generate_pass *p, size_t from, size_t n, float *logits, kvd_err *err);
    void (*free)(kvd_generate_pass *p);
};

/*
 * Return the products of a checkpoint, which is borrowed, on the CPU in float32 or on the first GPU
 * in s->compute. `piece` is the largest number of rows of one call of `logits`. On failure return
 * NULL and fill *err.
 */
kvd_generate_pass *kvd_generate_pass_cpu(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                         kvd_err *err);
#ifdef KVD_CUDA
kvd_generate_pass *kvd_generate_pass_cuda(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                          size_t piece, kvd_err *err);
#endif

/* Returns the path by rows: the cache is on the CPU. On failure returns NULL and fills *err. */
kvd_generate_path *kvd_generate_rows(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                     kvd_err *err);

#ifdef KVD_CUDA
/*
 * Returns true if the engine on a GPU generates with the plan, which may be closed. Otherwise
 * writes the reason.
 */
bool kvd_generate_engine_runs(const kvd_config *c, const kvd_generator_spec *s, const kvd_plan *p,
                              char why[KVD_GENERATOR_WHY]);
/*
 * Returns the path through the engine for this plan alone and at most n_sequences sequences
 * together. scores: true if `read` must give logits. On failure returns NULL and fills *err.
 */
kvd_generate_path *kvd_generate_engine(const kvd_checkpoint *c, const kvd_generator_spec *s,
                                       const kvd_plan *plan, size_t n_sequences, bool scores,
                                       kvd_err *err);
#endif

/* Returns the index of the largest of x [n], of equal ones the first. */
size_t kvd_generate_largest(const float *x, size_t n);

#endif
