/*
 * What the axes of a KV cache share: levels, parameters, and what a method may ask for.
 *
 * A cache is a block of numbers with four axes, shortened in this order: layers (which share entries), tokens (which stay, and
 * at which level), dims (which subspace of a head is kept), bits (how the numbers that stay are coded). A method is a member of
 * one axis; a preset (presets.h) fills several.
 *
 * Rows of one sequence come in two parts. The prompt is one piece: its rows attend to each other, then it is
 * compressed. Every row after it is a step: it is appended, attends to what is stored, and what is stored may then
 * change. With the whole sequence as prompt, rows attend to what is stored if the method is able to say what row t finds there
 * (`stored`), so that a plain forward pass shows the loss.
 */
#ifndef KVD_METHODS_AXIS_H
#define KVD_METHODS_AXIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/activations.h"
#include "formats/fisher.h"
#include "formats/spectrum.h"
#include "methods/dims/dims.h"
#include "model/config.h"

typedef enum { KVD_KEYS, KVD_VALUES, KVD_N_SIDES } kvd_side;

/* How much of an entry is kept. Tokens decide it, dims and bits read it. */
enum { KVD_LEVEL_DROPPED, KVD_LEVEL_LOW, KVD_LEVEL_HIGH, KVD_N_LEVELS };

/* A key of a method: "p" of "zack,p=0.5". */
typedef struct kvd_parameter {
    const char *key;
    double value;  /* when it is not given; NaN: it must be, or something else stands for it */
    double lo, hi; /* allowed, both ends included                                            */
    bool whole;    /* a whole number                                                         */
    const char *meaning;
} kvd_parameter;

/*
 * The key with which a method trades bytes for quality, for sweeps and searches: from the value that stores most of what is worth a
 * look to the one that stores least. A second key may go along with it, unless it is given.
 */
typedef struct kvd_rate {
    const char *key;
    double most, least;
    bool geometric;   /* steps between the two are ratios, not differences */
    const char *with; /* this key is `at` + `slope` times the first one; NULL: none */
    double at, slope;
} kvd_rate;

/* Values of the parameters of one method, in their order. */
enum { KVD_PARAMETERS_MAX = 16 };
typedef struct kvd_values {
    double value[KVD_PARAMETERS_MAX];
    bool given[KVD_PARAMETERS_MAX];
} kvd_values;

/* What a method needs beside K and V, bits. The cache and kvdim-eval provide it, or refuse by name. */
typedef enum {
    KVD_NEEDS_SPECTRUM = 1,       /* bases: --spectrum                                          */
    KVD_NEEDS_PRE_ROPE = 2,       /* K before RoPE                                              */
    KVD_NEEDS_ACTIVATIONS = 4,    /* a dump of calibration text: --calibration                  */
    KVD_NEEDS_FISHER = 8,         /* squared gradients of the loss: --fisher                    */
    KVD_NEEDS_PROBABILITIES = 16, /* attention probabilities (and scores) of every row        */
    KVD_NEEDS_PROMPT = 32,        /* a prompt: it decides there alone                           */
    KVD_NEEDS_QUERIES = 64        /* Q of the prompt                                            */
} kvd_needs;

/* Files and model behind a method that is opened; borrowed. NULL where not given. */
typedef struct kvd_method_setup {
    const kvd_config *config;
    const kvd_dims *dims; /* what stands in front of the bits axis; NULL: the whole heads */
    const kvd_spectrum *spectrum;
    kvd_activations *calibration; /* a dump of calibration text */
    kvd_fisher *fisher;           /* squared gradients of the loss */
    uint64_t seed;                /* of methods that draw */
    /* Weights are random: in place of calibration, matrices and tables are drawn, on which times do not depend. */
    bool drawn;
} kvd_method_setup;

#endif
