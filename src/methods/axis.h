/*
 * Declarations shared by all compression methods. A KV cache is shortened along four axes, in this
 * order: layers (which layers share data), tokens (which tokens stay), dims (which subspace of a
 * head is kept), bits (how numbers are coded). A method shortens one axis.
 *
 * The prompt is processed as a whole: its tokens attend to each other uncompressed, then it is
 * compressed. Every token after the prompt is a step: it is appended to the cache, attends to the
 * cached tokens, and may change them.
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
 * Precision level of a cached token. A method that selects tokens assigns the level; methods that
 * remove dimensions or quantise store fewer numbers or bits for a token at KVD_LEVEL_LOW.
 */
enum { KVD_LEVEL_DROPPED, KVD_LEVEL_LOW, KVD_LEVEL_HIGH, KVD_N_LEVELS };

/* Parameter of a method, such as "p" of "zack,p=0.5". */
typedef struct kvd_parameter {
    const char *key;
    /* Default value. NaN: the user must give the parameter, or another parameter replaces it. */
    double value;
    /* Allowed range, ends included. */
    double lo, hi;
    bool whole; /* true: whole numbers only */
    const char *meaning;
} kvd_parameter;

/*
 * Parameter that trades stored bytes for quality. `most` is the value that stores the most bytes,
 * `least` the value that stores the fewest.
 */
typedef struct kvd_tradeoff {
    const char *key;
    double most, least;
    /* True: the next value of a sweep is this value times a constant. False: plus a constant. */
    bool geometric;
    /*
     * Name of a second parameter, or NULL. If that parameter is not given, its value is `at` +
     * `slope` * (value of the parameter `key`).
     */
    const char *with;
    double at, slope;
} kvd_tradeoff;

/* Parameter `key` has no effect while the value of parameter `by` is in the range lo .. hi. */
typedef struct kvd_idle_key {
    const char *key, *by;
    double lo, hi;
} kvd_idle_key;

/* Largest number of parameters of a method, and bytes of a text value including the final 0. */
enum { KVD_PARAMETERS_MAX = 16, KVD_PARAMETER_TEXT = 200 };
typedef struct kvd_parameter_values {
    double value[KVD_PARAMETERS_MAX];
    bool given[KVD_PARAMETERS_MAX];
    /* Value of the parameter named by kvd_method_info.text_key; "" if not given. */
    char text[KVD_PARAMETER_TEXT];
    const struct kvd_method_info *method; /* method that declares these parameters */
} kvd_parameter_values;

/* Inputs that a method needs in addition to K and V, as bits of a mask. */
typedef enum {
    KVD_NEEDS_SPECTRUM = 1, /* rotations and singular values, --spectrum */
    KVD_NEEDS_PRE_ROPE = 2,
    KVD_NEEDS_ACTIVATIONS = 4,    /* Q, K and V of calibration text, --calibration */
    KVD_NEEDS_FISHER = 8,         /* squared gradients of the loss, --fisher */
    KVD_NEEDS_PROBABILITIES = 16, /* sums of attention probabilities of the prompt */
    KVD_NEEDS_PROMPT = 32,        /* a prompt, at whose end the method chooses tokens */
    KVD_NEEDS_QUERIES = 64,       /* Q of the prompt's tokens */
    KVD_NEEDS_INPUT = 128         /* inputs of the layers, and the weights that multiply them */
} kvd_needs;

/* Common part of all methods. Must be the first field of the structure of every method. */
typedef struct kvd_method_info {
    const char *name;
    const char *summary; /* one line for --help */
    /*
     * Parameters; the list ends with key NULL. The pointer is NULL for methods with rotations from
     * a spectrum file (zack, fdc, ...), which share one list of parameters.
     */
    const kvd_parameter *parameter;
    /* Parameter that sets the trade-off of bytes against quality; NULL: no such parameter */
    const kvd_tradeoff *tradeoff;
    /* List that ends with key NULL. NULL: every parameter always has an effect. */
    const kvd_idle_key *idle;
    /*
     * Name of the parameter whose value is a path (such as "file"), and its description for --help.
     * NULL: no such parameter. The file is recorded as an input of the run. The path may contain
     * '/', which separates alternative values of other parameters.
     */
    const char *text_key, *text_meaning;
    unsigned needs; /* bits of kvd_needs */
    /*
     * GPU code that runs plans with this method. NULL: no GPU code, or the program is linked
     * without the CUDA engine.
     */
    const struct kvd_gpu_kind *gpu;
} kvd_method_info;

/*
 * Declares a symbol whose address is NULL if its object file is not linked. Programs without the
 * CUDA engine thus contain no GPU code.
 */
#define KVD_IF_LINKED __attribute__((weak))

/*
 * Inputs that a program offers when it opens a plan. All pointers are borrowed. A pointer is NULL
 * if the input was not given.
 */
typedef struct kvd_method_setup {
    const kvd_config *config;
    /* Model for which the methods' input files must have been made. */
    const kvd_model_info *model;
    const char *model_path;
    const kvd_checkpoint *checkpoint;
    /* Projections that are applied before quantisation. NULL: heads keep all dimensions. */
    const struct kvd_dims *dims;
    const kvd_spectrum *spectrum;
    kvd_activations *calibration;
    kvd_fisher *fisher;
    uint64_t seed;
    /*
     * True if the model's weights are random. Methods then draw random matrices and tables, which
     * are enough to measure times.
     */
    bool drawn;
} kvd_method_setup;

#endif
