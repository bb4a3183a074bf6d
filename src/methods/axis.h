/*
 * Declarations that all axes of a KV cache share: levels of entries, keys of methods, and inputs
 * that a method may need.
 *
 * A cache is a block of numbers with four axes. They are shortened in this order: layers (which
 * layers share entries), tokens (which entries stay, and at which level), dims (which subspace of a
 * head is kept), bits (how the remaining numbers are coded). A method shortens one axis; a
 * combination (method.h) shortens several.
 *
 * The rows of a sequence come in two parts. The prompt is one piece: its rows attend to each other
 * uncompressed, then it is compressed. Every row after the prompt is a step: it is appended,
 * attends to the stored entries, and may change what is stored.
 */
#ifndef KVD_METHODS_AXIS_H
#define KVD_METHODS_AXIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/activations.h"
#include "formats/fisher.h"
#include "formats/model_info.h"
#include "formats/spectrum.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"

typedef enum { KVD_KEYS, KVD_VALUES, KVD_N_SIDES } kvd_side;

/*
 * Level of an entry of the cache. Tokens methods assign it; dims and bits methods store fewer bits
 * at KVD_LEVEL_LOW.
 */
enum { KVD_LEVEL_DROPPED, KVD_LEVEL_LOW, KVD_LEVEL_HIGH, KVD_N_LEVELS };

/* Parameter of a method, set by a key in its text: "p" of "zack,p=0.5". */
typedef struct kvd_parameter {
    const char *key;
    double value;  /* default; NaN: the key is required, or another key replaces it */
    double lo, hi; /* range of allowed values, ends included */
    bool whole;    /* true: only whole numbers are allowed */
    const char *meaning;
} kvd_parameter;

/*
 * Parameter that trades stored bytes for quality. Sweeps and searches vary it from `most`, the
 * value that stores the most bytes, to `least`. A second parameter may follow the first one unless
 * the user sets it.
 */
typedef struct kvd_tradeoff {
    const char *key;
    double most, least;
    bool geometric;   /* true: values of a sweep have equal ratios instead of equal differences */
    const char *with; /* second key, which follows as at + slope * (first key); NULL: none */
    double at, slope;
} kvd_tradeoff;

/* Values of the parameters of one method, in the order of its kvd_parameter array. */
enum { KVD_PARAMETERS_MAX = 16, KVD_PARAMETER_TEXT = 200 };
typedef struct kvd_parameter_values {
    double value[KVD_PARAMETERS_MAX];
    bool given[KVD_PARAMETERS_MAX];
    char text[KVD_PARAMETER_TEXT];        /* value of kvd_method_info.text_key; "": not given */
    const struct kvd_method_info *method; /* method that declares the parameters */
} kvd_parameter_values;

/*
 * Inputs that a method needs in addition to K and V, as bits of a mask. If a program lacks one, it
 * fails with a message that names the option.
 */
typedef enum {
    KVD_NEEDS_SPECTRUM = 1,       /* bases, --spectrum */
    KVD_NEEDS_PRE_ROPE = 2,       /* K before RoPE */
    KVD_NEEDS_ACTIVATIONS = 4,    /* activations of calibration text, --calibration */
    KVD_NEEDS_FISHER = 8,         /* squared gradients of the loss, --fisher */
    KVD_NEEDS_PROBABILITIES = 16, /* sums of the prompt's attention probabilities */
    KVD_NEEDS_PROMPT = 32,        /* a prompt, at whose end the method decides */
    KVD_NEEDS_QUERIES = 64,       /* Q of the prompt */
    KVD_NEEDS_INPUT = 128         /* inputs of layers, and the weights that multiply them */
} kvd_needs;

/*
 * Name, parameters and required inputs of a method. It is the first field of the structure of every
 * method.
 */
typedef struct kvd_method_info {
    const char *name;    /* "h2o" */
    const char *summary; /* one line for --help and docs */
    /*
     * Parameters of the method, ended by one with key NULL. NULL for dims methods with widths,
     * whose keys method.h lists.
     */
    const kvd_parameter *parameter;
    const kvd_tradeoff *tradeoff; /* NULL: no key trades bytes for quality */
    /*
     * Key whose value is a path, such as "file", and its meaning; NULL: none. A path may contain
     * '/', which separates the values of other keys. Programs record the file as an input.
     */
    const char *text_key, *text_meaning;
    unsigned needs; /* bits of kvd_needs */
    /*
     * GPU code that runs plans with this member (cuda/gpu_method.h). NULL: there is none, or the
     * program is linked without the CUDA engine.
     */
    const struct kvd_gpu_kind *gpu;
} kvd_method_info;

/*
 * Declares a symbol whose address is NULL in programs linked without the object file that defines
 * it. Programs without the CUDA engine thus contain no GPU code of methods.
 */
#define KVD_IF_LINKED __attribute__((weak))

/*
 * Inputs for opening a plan. All pointers are borrowed; a pointer is NULL if the input is not
 * given.
 */
typedef struct kvd_method_setup {
    const kvd_config *config;
    const kvd_model_info *model;      /* model to which files of methods must belong */
    const char *model_path;           /* path of the model in messages */
    const kvd_checkpoint *checkpoint; /* weights of the model, as it runs */
    const struct kvd_dims *dims; /* projections that are applied before bits; NULL: whole heads */
    const kvd_spectrum *spectrum;
    kvd_activations *calibration; /* activations of calibration text */
    kvd_fisher *fisher;           /* squared gradients of the loss */
    uint64_t seed;                /* seed of methods that draw random numbers */
    /*
     * True if the model's weights are random, so there is no calibration text. Methods then draw
     * random matrices and tables, which suffice to measure times.
     */
    bool drawn;
} kvd_method_setup;

#endif
