/*
 * A plan: compression methods of a model's cache, at most one per axis (layers, tokens, dimensions,
 * bits). Sequences and threads share an open plan.
 */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/* Value of kvd_plan.prompt: every sequence has its own prompt length. */
#define KVD_PROMPT_OF_SEQUENCE SIZE_MAX

/*
 * Compression of a cache; uncompressed if all fields but `type` are zero. kvd_plan_close frees
 * `made`, `kept`, `moments` and the `self` pointers. The caller that sets on_gpu frees it; other
 * pointers are borrowed.
 */
typedef struct kvd_plan {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    /* method that lowers the precision of prompt tokens, stateless, or NULL */
    const kvd_tokens_method *levels;
    /* projections of the heads; if made by `maker`, NULL until the plan is open */
    const kvd_dims *dims;
    const kvd_dims_maker *maker;
    /* method that removes dimensions anew for each prompt; requires `dims` and `maker` NULL */
    const kvd_channels_method *channels;
    const kvd_dims *widths, *widths_low;
    /* second moments of W_O (kvd_channels_moments) while the plan is open, or NULL */
    double *moments;
    /* projections at KVD_LEVEL_LOW, at most as wide as `dims`; NULL: `dims` */
    const kvd_dims *dims_low;
    const kvd_bits_method *bits;
    kvd_parameter_values layers_values, tokens_values, levels_values, maker_values, channels_values,
        bits_values;
    kvd_dims made;
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* data type of numbers that are not quantised */
    /* numbers of uncompressed first and last layers (keep_layers) */
    int keep_first, keep_last;
    /* Plan of the uncompressed layers, while open. NULL: every layer is compressed. */
    struct kvd_plan *kept;
    int n_layers;
    /* Prompt tokens; in shorter sequences all but the last. Generation ignores the field. */
    size_t prompt;
    uint64_t seed;
    struct kvd_gpu_cache *on_gpu;
} kvd_plan;

/* Fails if an input is missing, or if two methods cannot be combined. Opens no method. */
int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
/* Checks the plan as kvd_plan_check does, and opens its methods. On failure the plan is closed. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/* Returns one layer's plan: p itself, or the uncompressed one (keep_layers). p must be open. */
const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer);

/* Returns true if stored numbers depend on the order of tokens. */
bool kvd_plan_stepwise(const kvd_plan *p);

/* Returns true if a method needs a first pass over all prompts (prompts.h). */
bool kvd_plan_first_pass(const kvd_plan *p);

/* Returns the method that ranks prompt tokens over all layers, or NULL. `self` may be NULL. */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/* Returns 2 if a method ranks tokens by a repeated prompt (kvd_tokens_method.repeats), else 1. */
size_t kvd_plan_copies(const kvd_plan *p);

/* Returns true if all KV heads of a layer must process a token before the next token. */
bool kvd_plan_heads_together(const kvd_plan *p);

/* Returns the number of tokens that leave a sliding window together: one coded block, or 1. */
size_t kvd_plan_block(const kvd_plan *p);

/* Returns how many first tokens of a sequence are stored exactly (kvd_bits_method.exact_key). */
size_t kvd_plan_exact(const kvd_plan *p);

/* Returns the bits stored per cached token in addition to K and V. */
double kvd_plan_entry_bits(const kvd_plan *p);

/* Returns true if tokens at KVD_LEVEL_LOW take fewer bits than other tokens. */
bool kvd_plan_two_levels(const kvd_plan *p);

bool kvd_plan_draws(const kvd_plan *p);

/* Returns true if attention reads K and V in float32 exactly as the model computes them. */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/* Returns true if the plan does more than reduce heads to fixed numbers of dimensions (`dims`). */
bool kvd_plan_beyond_widths(const kvd_plan *p);

unsigned kvd_plan_needs(const kvd_plan *p);

enum { KVD_PLAN_MEMBERS = 6 };
typedef struct {
    const char *axis; /* "layers", "tokens", "dims" or "bits" */
    const kvd_method_info *info;
    kvd_parameter_values *values;
} kvd_plan_member;
/* Writes the plan's methods with parameters to `out`, a quantiser last. Returns their number. */
int kvd_plan_members(const kvd_plan *p, kvd_plan_member out[KVD_PLAN_MEMBERS]);

/* Returns the index of parameter `key` of a method, or -1. */
int kvd_parameter_index(const kvd_method_info *m, const char *key);

#endif
