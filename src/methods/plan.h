/*
 * A plan: what is done on each axis of the cache of a model. It is made once per evaluated point and shared by all
 * sequences and threads.
 */
#ifndef KVD_METHODS_PLAN_H
#define KVD_METHODS_PLAN_H

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/layers/layers.h"
#include "methods/tokens/tokens.h"

/* All zero but type: the uncompressed cache. Pointers are borrowed but for the selves, which kvd_plan_close gives back. */
typedef struct {
    const kvd_layers_method *layers;
    const kvd_tokens_method *tokens;
    const kvd_tokens_method *
        levels; /* beside one that drops: lowers at the end of a prompt (importance), and has no state; NULL: none */
    const kvd_dims *dims; /* with a maker NULL until the plan is open */
    const kvd_dims_maker *maker;
    const kvd_channels_method *channels; /* without dims or maker */
    const kvd_dims *
        dims_low; /* widths of entries at KVD_LEVEL_LOW, below those of dims and of the same bases; NULL: the same */
    const kvd_bits_method *bits;
    kvd_values layers_values, tokens_values, levels_values, maker_values, channels_values, bits_values;
    kvd_dims made; /* what the maker made   */
    void *tokens_self, *levels_self, *bits_self;
    kvd_dtype type; /* of numbers that are not coded                                                */
    size_t prompt;  /* rows before this one are the prompt, of shorter sequences all but the last   */
    uint64_t seed;
} kvd_plan;

/* Opens the members of the axes that have something to open. setup gives what they need; fails naming what is missing. */
int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err);
void kvd_plan_close(kvd_plan *p);

/*
 * Whether what rows store and read depends on the order in which they come: then they go one by one. Widths and latents
 * do not, and a prompt that attends to itself uncompressed does not change that.
 */
bool kvd_plan_stepwise(const kvd_plan *p);

/* Whether the prompts must run through all layers before the sequences do (prompts.h). */
bool kvd_plan_first_pass(const kvd_plan *p);

/* Of tokens and levels, the one that ranks prompts in all layers, and its self; NULL: none. */
const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self);

/* What an entry stores beside K and V, in bits: of tokens and levels. */
double kvd_plan_entry_bits(const kvd_plan *p);

/* Whether an entry at the low level is stored otherwise than one at the high level: cut further, or in other codes. */
bool kvd_plan_two_levels(const kvd_plan *p);

/* Whether it draws random numbers, so that what it does depends on the seed. */
bool kvd_plan_draws(const kvd_plan *p);

/* Whether every row reads K and V as the pass hands them out, in float32. */
bool kvd_plan_changes_nothing(const kvd_plan *p);

/* Whether it does anything but cut to the widths of dims: then those do not say what is stored. */
bool kvd_plan_beyond_widths(const kvd_plan *p);

/* The union of what its members need. */
unsigned kvd_plan_needs(const kvd_plan *p);

#endif
