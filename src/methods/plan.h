/* Compression methods of a model's cache, at most one per axis (layers, tokens, dimensions, bits).
 * Sequences and threads share an open kvd_plan. */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/dims/dims.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/* Value of kvd_plan.prompt: every sequence has its own prompt length. */
#define KVD_PROMPT_OF_SEQUENCE SIZE_MAX

/* Compression methods of a cache, with their parameters. Without methods, the cache is
 * uncompressed. kvd_plan_close frees `made`, `kept`, `moments` and the `self` pointers. Whoever
 * sets on_gpu frees it; other pointers are borrowed. */
typedef struct kvd_plan {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    /* Method that lowers the precision of prompt tokens, if it is combined with a method that drops
     * tokens. Otherwise NULL. */
    const kvd_tokens_method *levels;
    /* Projections of the heads, or NULL. If `maker` is not NULL, kvd_plan_open computes the
     * projections with it. */
    const kvd_dims *dims;
    const kvd_dims_maker *maker;
    /* Method that chooses the removed dimensions anew for each prompt, for example `think`, or
     * NULL. */
    const kvd_channels_method *channels;
    const kvd_dims *widths, *widths_low;
    /* Second moments of the output weights W_O, computed by kvd_plan_open. NULL if no method needs
     * them. */
    double *moments;
    /* Projections for tokens at low precision. NULL if all tokens have the same projections. */
    const kvd_dims *dims_low;
    const kvd_bits_method *bits;
    kvd_parameter_values layers_values, tokens_values, levels_values, maker_values, channels_values,
        bits_values;
    kvd_dims made;
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* data type of numbers that are not quantised */
    /* Numbers of layers at the start and at the end of the model that are not compressed. */
    int keep_first, keep_last;
    /* Plan that compresses nothing, used in the layers that stay uncompressed. NULL if all layers
     * are compressed. */
    struct kvd_plan *kept;
    int n_layers;
    /* Number of tokens at the start of each sequence that are its prompt. The last token of a
     * sequence is never part of the prompt. Ignored in text generation. */
    size_t prompt;
    uint64_t seed;
    struct kvd_gpu_cache *on_gpu;
} kvd_plan;

/* Fails if two methods of the plan cannot be combined, whatever the model and the given files. */
int kvd_plan_check_pairs(const kvd_plan *p, kvd_err *err);
/* Checks methods without opening them. Fails for a missing input or a bad combination. */
int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
/* Checks the compression methods, and opens them. On failure they are closed. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/* Returns the plan for `layer`: p, or a plan that compresses nothing if the layer stays
 * uncompressed. kvd_plan_open must have opened p. */
const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer);

/* Returns true if a method changes the cache token by token, for example by dropping or quantising
 * tokens. */
bool kvd_plan_stepwise(const kvd_plan *p);

/* Returns true if the model must first run over all prompts without compression, because a method
 * needs Q, K and V of all layers before it compresses. */
bool kvd_plan_first_pass(const kvd_plan *p);

/* Returns the compression method that ranks tokens over all layers, or NULL. Sets *self, unless
 * `self` is NULL, to the state of that method. */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/* Returns how often each prompt is fed to the model: 2 if a method appends a copy of it, else 1. */
size_t kvd_plan_copies(const kvd_plan *p);

/* Returns true if each token must be processed in all KV heads before the next token. */
bool kvd_plan_heads_together(const kvd_plan *p);

/* Returns how many tokens leave a sliding window at a time: the tokens of a block that is quantised
 * together, or 1. */
size_t kvd_plan_block(const kvd_plan *p);

/* Returns how many tokens at the start of a sequence are never quantised. */
size_t kvd_plan_exact(const kvd_plan *p);

/* Returns the bits that are stored per cached token in addition to K and V, such as a score. */
double kvd_plan_entry_bits(const kvd_plan *p);

/* Returns true if tokens at low precision take fewer bits than other tokens. */
bool kvd_plan_two_levels(const kvd_plan *p);

bool kvd_plan_draws(const kvd_plan *p);

/* Returns true if attention reads K and V exactly as the model computed them. */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/* Returns true if *p compresses K and V in any other way than by a precomputed projection of each
 * head. */
bool kvd_plan_beyond_widths(const kvd_plan *p);

unsigned kvd_plan_needs(const kvd_plan *p);

enum { KVD_PLAN_MEMBERS = 6 };
typedef struct {
    const char *axis; /* "layers", "tokens", "dims" or "bits" */
    const kvd_method_info *info;
    kvd_parameter_values *values;
} kvd_plan_member;
/* Writes the compression methods of plan *p, with their parameters, to `out`. Returns their
 * number. */
int kvd_plan_members(const kvd_plan *p, kvd_plan_member out[KVD_PLAN_MEMBERS]);

/* Writes the names of a plan's methods, such as "zack+h2o", to `name`. */
void kvd_plan_name(const kvd_plan *p, char *name, size_t size);

/* Returns the index of parameter `key` of a method, or -1. */
int kvd_parameter_index(const kvd_method_info *m, const char *key);

#endif
