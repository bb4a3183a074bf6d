/*
 * A plan: the methods that act on each axis of a model's cache, with the values of their keys. It
 * is opened once per evaluated point and shared by all sequences and threads.
 */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/* Value of kvd_plan.prompt for generation, where every sequence has its own prompt length. */
#define KVD_PROMPT_OF_SEQUENCE SIZE_MAX

/*
 * A plan in which all fields but `type` are zero is the uncompressed cache. Pointers are borrowed,
 * except `made`, `kept`, the `self` pointers and on_gpu; kvd_plan_close frees the first three.
 */
typedef struct kvd_plan {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    /*
     * Method that lowers entries at the end of a prompt (importance), used together with the method
     * in `tokens`, which drops entries. It has no state. NULL: none.
     */
    const kvd_tokens_method *levels;
    const kvd_dims *dims; /* if `maker` is set, NULL until the plan is open */
    const kvd_dims_maker *maker;
    const kvd_channels_method *channels; /* set only without `dims` and `maker` */
    /*
     * Projections of entries at KVD_LEVEL_LOW: no wider than those of `dims`, and cut from the same
     * bases. NULL: the projections of `dims`.
     */
    const kvd_dims *dims_low;
    const kvd_bits_method *bits;
    kvd_parameter_values layers_values, tokens_values, levels_values, maker_values, channels_values,
        bits_values;
    kvd_dims made; /* projections made by the maker; valid while the plan is open */
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* data type of numbers that are not coded */
    /*
     * Number of first and of last layers whose cache is kept uncompressed (key keep_layers). `dims`
     * must not project in these layers.
     */
    int keep_first, keep_last;
    /* plan of the uncompressed layers, while the plan is open; NULL: none */
    struct kvd_plan *kept;
    int n_layers; /* number of layers of the model, while the plan is open */
    /*
     * Number of rows of the prompt. In a sequence with fewer rows all but the last are the prompt.
     * Generation ignores this field, which may then be KVD_PROMPT_OF_SEQUENCE.
     */
    size_t prompt;
    uint64_t seed;
    /* Matrices of the plan on a GPU (cuda/cache.h); NULL: none. */
    struct kvd_gpu_cache *on_gpu;
} kvd_plan;

/*
 * Fails if an input that the plan needs is missing from *setup, or if two of its methods cannot be
 * combined. The message names them. No method is opened, so the check is fast.
 */
int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
/* Checks the plan as kvd_plan_check does, and opens its methods with the inputs in *setup. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/*
 * Returns the plan that acts on a layer: p itself, or the uncompressed cache in layers that key
 * keep_layers leaves alone. p must be open.
 */
const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer);

/*
 * Returns true if the stored numbers depend on the order of rows, so that the cache must run row by
 * row. Plans that only project or store latents run in blocks, with or without a prompt, unless
 * some layers lack the latents.
 */
bool kvd_plan_stepwise(const kvd_plan *p);

/* Returns true if the prompts must run through all layers before the sequences do (prompts.h). */
bool kvd_plan_first_pass(const kvd_plan *p);

/*
 * Returns the method that ranks the prompt's tokens from all layers, and writes its `self` pointer
 * to *self. Returns NULL if the plan has none.
 */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/* Returns true if all KV heads of a layer must run together, row by row. */
bool kvd_plan_heads_together(const kvd_plan *p);

/* Returns the bits that tokens methods store per entry in addition to K and V. */
double kvd_plan_entry_bits(const kvd_plan *p);

/*
 * Returns true if entries at the low level take fewer bits, through narrower widths or other codes.
 */
bool kvd_plan_two_levels(const kvd_plan *p);

/* Returns true if the plan draws random numbers, so that results depend on its seed. */
bool kvd_plan_draws(const kvd_plan *p);

/* Returns true if every row reads K and V as the model computes them, in float32. */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/*
 * Returns true if the plan does more than project to the widths of dims, so that the widths do not
 * give the stored size.
 */
bool kvd_plan_beyond_widths(const kvd_plan *p);

/* Returns the inputs that any method of the plan needs, as a mask of kvd_needs bits. */
unsigned kvd_plan_needs(const kvd_plan *p);

#endif
