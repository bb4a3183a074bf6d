/* Declarations shared by all compression methods. A method compresses one axis of the KV cache:
 * layers (sharing), tokens (selection), dims (subspaces) or bits (quantisation). Prompt tokens
 * attend to uncompressed K and V, later tokens to the compressed cache. */
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

/* How a cached token is stored: dropped, at low or at high precision. */
enum { KVD_LEVEL_DROPPED, KVD_LEVEL_LOW, KVD_LEVEL_HIGH, KVD_N_LEVELS };

/* Parameter of a method, such as "p" of "zack,p=0.5". */
typedef struct kvd_parameter {
    const char *key;
    /* Default value of the parameter, or NaN if it has none. */
    double value;
    /* Smallest and largest value that the parameter may have. */
    double lo, hi;
    bool whole; /* true: whole numbers only */
    const char *meaning;
} kvd_parameter;

/* Parameter that trades bytes for quality: the cache is largest at parameter value `most` and
 * smallest at `least`. */
typedef struct kvd_tradeoff {
    const char *key;
    double most, least;
    /* True if a sweep of this parameter takes geometric steps, false for equal steps. */
    bool geometric;
    /* Name of another parameter that a sweep of `key` also changes, or NULL. The sweep sets it to
     * `at` + `slope` * (value of `key`). */
    const char *with;
    double at, slope;
} kvd_tradeoff;

/* Parameter that has no effect while another parameter, `by`, is in the range lo .. hi. */
typedef struct kvd_idle_key {
    const char *key, *by;
    double lo, hi;
} kvd_idle_key;

enum { KVD_PARAMETERS_MAX = 16, KVD_PARAMETER_TEXT = 200 };
typedef struct kvd_parameter_values {
    double value[KVD_PARAMETERS_MAX];
    bool given[KVD_PARAMETERS_MAX];
    char text[KVD_PARAMETER_TEXT];
    uint64_t seed; /* seed of random numbers, set by kvd_plan_open for layers methods */
    const struct kvd_method_info *method;
} kvd_parameter_values;

/* Inputs that a method needs in addition to K and V, as bits of a mask. */
typedef enum {
    KVD_NEEDS_SPECTRUM = 1, /* rotation matrices and singular values, --spectrum */
    KVD_NEEDS_PRE_ROPE = 2,
    KVD_NEEDS_ACTIVATIONS = 4, /* Q, K and V of calibration text, --calibration */
    KVD_NEEDS_FISHER = 8,
    KVD_NEEDS_PROBABILITIES = 16,
    KVD_NEEDS_PROMPT = 32, /* requires a prompt, at whose end the method chooses tokens */
    KVD_NEEDS_QUERIES = 64,
    KVD_NEEDS_INPUT = 128, /* inputs of the layers, and the weights that multiply them */
    KVD_NEEDS_SEED = 256   /* random numbers, drawn from the seed of kvd_method_setup */
} kvd_needs;

/* Common part of all compression methods: the first field of every method's structure. */
typedef struct kvd_method_info {
    const char *name;
    const char *summary;
    /* List of parameters, ended by an entry whose key is NULL. If the pointer is NULL, the method
     * has the common parameters (p, r, ...) of methods that read rotations from a file
     * (--spectrum). */
    const kvd_parameter *parameter;
    /* Parameter that trades stored bytes for quality, or NULL. */
    const kvd_tradeoff *tradeoff;
    /* Parameters that have no effect for some values of another parameter, ended by an entry with
     * key NULL. NULL if there are none. */
    const kvd_idle_key *idle;
    /* Parameter whose value is a file path, and its description for --help. Both are NULL if there
     * is none. */
    const char *text_key, *text_meaning;
    unsigned needs;
    /* GPU code of this compression method. NULL if there is none, or if CUDA is not linked. */
    const struct kvd_gpu_kind *gpu;
} kvd_method_info;

/* Declares a symbol whose address is NULL if its object file is not linked. */
#define KVD_IF_LINKED __attribute__((weak))

/* Inputs for preparing compression methods for a run. Pointers are borrowed; NULL means not
 * given. */
typedef struct kvd_method_setup {
    const kvd_config *config;
    const kvd_model_info *model;
    const char *model_path;
    const kvd_checkpoint *checkpoint;
    /* Matrices that project K and V before they are quantised. NULL if heads keep all
     * dimensions. */
    const struct kvd_dims *dims;
    const kvd_spectrum *spectrum;
    kvd_activations *calibration;
    kvd_fisher *fisher;
    uint64_t seed;
    /* True if the model's weights are random, so that methods may draw random matrices and tables
     * instead of calibrating them. */
    bool drawn;
    /* True if a method drops cached tokens. Each KV head may drop different tokens. */
    bool drops;
} kvd_method_setup;

#endif
