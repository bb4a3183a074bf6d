/*
 * The prompts of one batch in all layers: a first pass over the prompts alone records, for methods that store several layers together, keys and
 * values, which are merged, and the run itself takes the entries of its prompts from here; for methods that rank tokens in all layers,
 * softmax denominators, from which levels follow.
 */
#ifndef KVD_METHODS_PROMPTS_H
#define KVD_METHODS_PROMPTS_H

#include "methods/plan.h"
#include "model/attention.h"
#include "model/forward.h"

typedef struct {
    kvd_attention door; /* of the first pass: exact attention; first member */
    /* private */
    kvd_dense_attention dense;
    const kvd_config *config;
    const kvd_plan *plan;
    size_t n_sequences,
        *offset;           /* [n_sequences + 1] rows of the prompts                                       */
    float *x[KVD_N_SIDES]; /* [n_layers][rows][n_kv_heads * d_head]                                       */
    double *share
        [KVD_N_SIDES]; /* [n_layers][n_sequences] bits stored over those of whole rows; NaN: not merged */
    double *
        log_denominator; /* of a method that ranks, else NULL; of sequence s [n_layers][its rows], from n_layers * offset[s] on */
    uint8_t *level; /* likewise */
} kvd_prompts;

/* Room for prompts of the given lengths [n_sequences]; the plan has kvd_plan_first_pass. Safe to release afterwards, whatever
 * it returned. */
int kvd_prompts_init(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const size_t *length,
                     size_t n_sequences, kvd_err *err);
void kvd_prompts_release(kvd_prompts *p);

/* After the first pass over the first rows of every sequence. whole [n_sequences]: lengths of the sequences, for RoPE. */
int kvd_prompts_finish(kvd_prompts *p, const size_t *whole, kvd_err *err);

/* Both around the first pass of a batch: pass runs the prompts it is given through p->door, on whatever runs the model. The rows of
 * sequences that begin to run (b->whole) are prompts as they are. */
typedef int (*kvd_prompts_pass)(void *ctx, const kvd_batch *prompts, kvd_prompts *p, kvd_err *err);
int kvd_prompts_make(kvd_prompts *p, const kvd_config *c, const kvd_plan *plan, const kvd_batch *b,
                     kvd_prompts_pass pass, void *ctx, kvd_err *err);

/* Row 0 of the prompt of a sequence: [rows][n_kv_heads * d_head], after RoPE. */
const float *kvd_prompts_rows(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);
/* Bits stored over those of whole rows; more than 1 when the merged form is the larger one. */
double kvd_prompts_share(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

/* What the method that ranks said of a prompt [rows]. */
const uint8_t *kvd_prompts_levels(const kvd_prompts *p, int layer, size_t sequence);

bool kvd_prompts_merged(const kvd_prompts *p, kvd_side side, int layer, size_t sequence);

#endif
