/*
 * A plan: the compression methods that act on a model's cache, at most one per axis (layers,
 * tokens, dimensions, bits), with their parameters. All sequences and threads share an open plan.
 */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/*
 * Value of kvd_plan.prompt that means: every sequence has a prompt length of its own (text
 * generation).
 */
#define KVD_PROMPT_OF_SEQUENCE SIZE_MAX

/*
 * Compression of a cache. If all fields but `type` are zero, the cache is uncompressed. Pointers
 * are borrowed, except on_gpu and those that kvd_plan_close frees: `made`, `kept`, `moments` and
 * the `self` pointers.
 */
typedef struct kvd_plan {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    /*
     * Method that lowers the precision level of tokens at the end of a prompt (such as importance).
     * It is used together with the method in `tokens`, must have no state and needs no `close`.
     * NULL: none.
     */
    const kvd_tokens_method *levels;
    /*
     * Projections of the heads. If a `maker` computes the projections, the pointer is NULL until
     * the plan is open.
     */
    const kvd_dims *dims;
    /* Method that makes its own projections, such as palu, or NULL. */
    const kvd_dims_maker *maker;
    /*
     * Method that removes dimensions or channels of K and V anew for each prompt. Set only if
     * `dims` and `maker` are NULL.
     */
    const kvd_channels_method *channels;
    /*
     * Numbers of dimensions that every head keeps, used by a method in `channels` whose `width` is
     * NULL. widths_low has the numbers for tokens at KVD_LEVEL_LOW. It is NULL if all tokens keep
     * the same dimensions.
     */
    const kvd_dims *widths, *widths_low;
    /*
     * Second moments of W_O (kvd_channels_moments) while the plan is open. NULL unless the method
     * in `channels` decomposes W_O together with values (`stacks`) and the setup has a checkpoint.
     */
    double *moments;
    /*
     * Projections of tokens at KVD_LEVEL_LOW, from the same rotations as `dims` and with at most as
     * many columns. NULL: these tokens use `dims`.
     */
    const kvd_dims *dims_low;
    const kvd_bits_method *bits;
    kvd_parameter_values layers_values, tokens_values, levels_values, maker_values, channels_values,
        bits_values;
    /* Projections that `maker` computed; valid while the plan is open. */
    kvd_dims made;
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* data type of numbers that are not quantised */
    /*
     * Number of layers at the start and at the end of the model whose cache stays uncompressed
     * (parameter keep_layers). `dims` must not project in these layers.
     */
    int keep_first, keep_last;
    /*
     * Plan of the layers that stay uncompressed, while this plan is open. NULL: every layer is
     * compressed.
     */
    struct kvd_plan *kept;
    int n_layers;
    /*
     * Number of tokens of the prompt. In a sequence of at most `prompt` tokens, all tokens but the
     * last are the prompt. Generation ignores this field.
     */
    size_t prompt;
    uint64_t seed;
    /* The plan's matrices in GPU memory (cuda/cache.h), or NULL. */
    struct kvd_gpu_cache *on_gpu;
} kvd_plan;

/*
 * Fails if an input that the plan needs is missing, or if two methods cannot be combined. No method
 * is opened, so the check is fast.
 */
int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
/* Checks the plan as kvd_plan_check does, and opens its methods. On failure the plan is closed. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/*
 * Returns the plan of one layer: p itself, or the uncompressed plan if parameter keep_layers
 * excludes the layer. p must be open.
 */
const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer);

/*
 * Returns true if the cache must process one token at a time, because the stored numbers depend on
 * the order of tokens. Plans that only project heads or store latents in all layers process whole
 * sequences.
 */
bool kvd_plan_stepwise(const kvd_plan *p);

/*
 * Returns true if the model must process all prompts once before it processes the whole sequences,
 * because a method needs results of the prompts from all layers (prompts.h).
 */
bool kvd_plan_first_pass(const kvd_plan *p);

/*
 * Returns the method that ranks the prompt's tokens by data of all layers, and its private data in
 * `*self`. Returns NULL if there is none.
 */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/*
 * Returns the number of times that the model reads a prompt. It is 2 if a method appends a copy of
 * the prompt, from whose attention it ranks the prompt's tokens (kvd_tokens_method.repeats),
 * otherwise 1.
 */
size_t kvd_plan_copies(const kvd_plan *p);

/*
 * Returns true if a method decides for all KV heads of a layer together. All these KV heads must
 * then process a token before any of them processes the next token.
 */
bool kvd_plan_heads_together(const kvd_plan *p);

/*
 * Returns the number of tokens that leave a sliding window together, because the bits method codes
 * them as one block; 1 if the bits method codes tokens one by one. Blocks begin at multiples of
 * this number.
 */
size_t kvd_plan_block(const kvd_plan *p);

/*
 * Returns the number of first tokens of a sequence that the bits method stores exactly
 * (kvd_bits_method.exact_key); 0 if there is none.
 */
size_t kvd_plan_exact(const kvd_plan *p);

/* Returns the bits that methods store per cached token in addition to K and V. */
double kvd_plan_entry_bits(const kvd_plan *p);

/* Returns true if tokens at KVD_LEVEL_LOW take fewer bits than other tokens. */
bool kvd_plan_two_levels(const kvd_plan *p);

/* Returns true if results depend on the plan's seed. */
bool kvd_plan_draws(const kvd_plan *p);

/* Returns true if attention reads K and V in float32 exactly as the model computes them. */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/* Returns true if the plan does more than reduce heads to fixed numbers of dimensions (`dims`). */
bool kvd_plan_beyond_widths(const kvd_plan *p);

/* Returns the inputs that the plan's methods need, as a mask of kvd_needs bits. */
unsigned kvd_plan_needs(const kvd_plan *p);

#endif
