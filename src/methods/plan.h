/*
 * A plan: the compression methods that act on a model's cache, at most one per axis (layers,
 * tokens, dimensions, bits), with the values of their parameters. It is opened once per evaluated
 * setting and shared by all sequences and threads.
 */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/* Value of kvd_plan.prompt for text generation, where every sequence has its own prompt length. */
#define KVD_PROMPT_OF_SEQUENCE SIZE_MAX

/*
 * A plan in which all fields but `type` are zero is the uncompressed cache. Pointers are borrowed,
 * except `made`, `kept`, the `self` pointers and on_gpu; kvd_plan_close frees the first three.
 */
typedef struct kvd_plan {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    /*
     * Method that lowers the precision of tokens at the end of a prompt (importance). It is used
     * together with the method in `tokens`, which drops tokens. It has no state. NULL: none.
     */
    const kvd_tokens_method *levels;
    /* Projections of the heads. If `maker` is set, NULL until the plan is open. */
    const kvd_dims *dims;
    /* Method that makes its own projections, such as palu. NULL: none. */
    const kvd_dims_maker *maker;
    /*
     * Method that shortens heads by what it sees in each prompt. Set only if `dims` and `maker` are
     * NULL.
     */
    const kvd_channels_method *channels;
    /*
     * Projections of tokens at KVD_LEVEL_LOW. They have no more columns than those of `dims` and
     * are made from the same rotations. NULL: low-level tokens use the projections of `dims`.
     */
    const kvd_dims *dims_low;
    const kvd_bits_method *bits;
    kvd_parameter_values layers_values, tokens_values, levels_values, maker_values, channels_values,
        bits_values;
    /* Projections that `maker` computed; valid while the plan is open. */
    kvd_dims made;
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* data type of stored numbers that are not quantised */
    /*
     * Number of layers at the start (keep_first) and at the end (keep_last) of the model whose
     * cache stays uncompressed (parameter keep_layers). `dims` must not project in these layers.
     */
    int keep_first, keep_last;
    /*
     * Plan of the layers that stay uncompressed, while this plan is open. NULL: every layer is
     * compressed.
     */
    struct kvd_plan *kept;
    int n_layers; /* number of layers of the model, while the plan is open */
    /*
     * Number of tokens of the prompt. In a sequence of at most `prompt` tokens, all but the last
     * token are the prompt. Generation ignores this field, which may then be
     * KVD_PROMPT_OF_SEQUENCE.
     */
    size_t prompt;
    uint64_t seed;
    /* The plan's matrices in GPU memory (cuda/cache.h). NULL: they are not on a GPU. */
    struct kvd_gpu_cache *on_gpu;
} kvd_plan;

/*
 * Fails if an input that the plan needs is missing from *setup, or if two of its methods cannot be
 * combined. The message names the input or the methods. No method is opened, so the check is
 * fast.
 */
int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
/* Checks the plan as kvd_plan_check does, and opens its methods with the inputs in *setup. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/*
 * Returns the plan that acts on a layer: p itself, or the uncompressed cache in layers that
 * parameter keep_layers leaves alone. p must be open.
 */
const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer);

/*
 * Returns true if the stored numbers depend on the order in which tokens arrive, so the cache must
 * be run token by token. Plans that only project heads or store latents run in blocks, with or
 * without a prompt, unless some layers lack the latents.
 */
bool kvd_plan_stepwise(const kvd_plan *p);

/*
 * Returns true if all prompts must run through the model once before the sequences do
 * (prompts.h).
 */
bool kvd_plan_first_pass(const kvd_plan *p);

/*
 * Returns the method that ranks the prompt's tokens by data of all layers, and writes the pointer
 * to its private data to *self. Returns NULL if the plan has no such method.
 */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/*
 * Returns true if a method decides for all KV heads of a layer together, so that these must run
 * token by token in step.
 */
bool kvd_plan_heads_together(const kvd_plan *p);

/*
 * Returns the number of bits that token-choosing methods store per cached token in addition to K
 * and V.
 */
double kvd_plan_entry_bits(const kvd_plan *p);

/*
 * Returns true if tokens at the low precision level take fewer bits than others, through fewer
 * dimensions or shorter codes.
 */
bool kvd_plan_two_levels(const kvd_plan *p);

/* Returns true if the plan draws random numbers, so that results depend on its seed. */
bool kvd_plan_draws(const kvd_plan *p);

/*
 * Returns true if the cache is lossless: attention reads K and V in float32 exactly as the model
 * computes them.
 */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/*
 * Returns true if the plan does more than keep some dimensions of every head (`dims`), so that the
 * numbers of kept dimensions do not give the stored size.
 */
bool kvd_plan_beyond_widths(const kvd_plan *p);

/* Returns the inputs that any method of the plan needs, as a mask of kvd_needs bits. */
unsigned kvd_plan_needs(const kvd_plan *p);

#endif
