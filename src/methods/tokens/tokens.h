/*
 * The tokens axis: which entries of a KV head stay, and at which level. A method decides once for the prompt and then after every
 * step; decisions are per KV head, from the attention of the query heads that read it. One file per method; the
 * registry is in presets.c.
 */
#ifndef KVD_METHODS_TOKENS_H
#define KVD_METHODS_TOKENS_H

#include "methods/axis.h"

/* What the prompt's attention says of one KV head. Rows are prompt tokens; probabilities are those of exact attention. */
typedef struct {
    int layer, kv_head, group; /* query heads that read it                                            */
    size_t n;                  /* tokens of the prompt                                                */
    size_t n_expected;         /* tokens of the whole sequence where known (teacher forcing), else n  */
    const double *mass;        /* [n] sum of probabilities over all rows and query heads              */
    size_t window;             /* rows of `recent`, as the method asked                               */
    const double *recent;      /* [group][n] sum over the last `window` rows, each query head         */
    const double
        *below; /* [n] rows and query heads among these whose probability is below the mean of their row */
    const double *log_denominator; /* [n] mean over query heads of log sum exp(score) of row t          */
    const double *score_mass; /* [n] sum of regularised probabilities, when the method has `regularise` */
    const float *k, *v;       /* [n][d_head] after RoPE, rows ld apart */
    size_t ld;
    const uint8_t *ranked; /* [n] what `rank` said of this layer, when the method has it */
} kvd_prompt_attention;

/* One prompt in all layers, from a first pass over the prompts. */
typedef struct {
    int n_layers;
    size_t n;
    const double
        *log_denominator; /* [n_layers][n] log of the sum over all query heads of sum exp(score) of row t */
} kvd_prompt_layers;

/* One step: the newest entry is the last, its own row attended to all n entries. */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position;  /* [n] in the sequence, rising                            */
    const float *prob;         /* [group][n] probabilities of this step                  */
    const float *score;        /* [group][n] scaled scores                               */
    size_t now;                /* position of the newest                                 */
    size_t prompt, n_expected; /* rows of the prompt, of the whole sequence           */
} kvd_step_attention;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    const char *name, *summary;
    const kvd_parameter *parameter;
    const kvd_rate *rate; /* NULL: none of its keys trades bytes for quality */
    unsigned needs;
    bool lowers, only_lowers;              /* some entries get KVD_LEVEL_LOW; none is dropped            */
    double entry_bits;                     /* what an entry stores beside K and V: scores, positions     */
    size_t (*window)(const kvd_values *v); /* rows of kvd_prompt_attention.recent; NULL: none          */
    /* Noise added to the score of a row before its regularised softmax (Keyformer); NULL: none.         */
    double (*regularise)(const kvd_values *v, uint64_t seed, int layer, int head, uint32_t token,
                         double score, double progress);
    int (*open)(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err);
    void (*close)(void *self);
    /* State of one KV head of one sequence: bytes for at most n entries, zeroed by the cache. */
    size_t (*state_bytes)(const void *self, size_t n);
    /* Before the run, of one prompt in all layers: level [n_layers][n], which `prompt` finds as `ranked`. NULL: no first pass. */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /* level [n] of every token of the prompt; the state is filled for what stays. */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level, kvd_err *err);
    /*
     * After a step. level [n]: in, what each entry has (the newest KVD_LEVEL_HIGH); out, what it has from now on; it never rises.
     * The state's arrays are compacted by the cache through `forget` with the indices that stay.
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level, kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
};

extern const kvd_tokens_method kvd_tokens_h2o, kvd_tokens_keyformer, kvd_tokens_scissorhands,
    kvd_tokens_snapkv, kvd_tokens_leankv, kvd_tokens_importance, kvd_tokens_lower;

/* Of `importance`: which share of a layer's tokens is important. */
double kvd_tokens_important(const kvd_values *v, int layer, int n_layers);
/* And its key `layers`. */
int kvd_tokens_layers(const kvd_values *v);

/* A budget as methods state it: below 1 a share of `of` tokens, rounded down, else so many tokens. */
size_t kvd_tokens_budget(double value, size_t of);

/* Of the value of key: a number of tokens is whole. */
int kvd_tokens_check_budget(const char *key, double value, kvd_err *err);

/* Drops of the first n tokens all but the k with the largest scores, of equals the later. */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/* The first of the smallest scores; n > 0. */
size_t kvd_tokens_least(const double *score, size_t n);

#endif
