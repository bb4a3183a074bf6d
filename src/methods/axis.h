/*
 * Declarations shared by all kinds of compression methods: precision levels of cached tokens,
 * parameters of methods, and inputs that a method may need.
 *
 * A KV cache is a block of numbers with four axes. They are shortened in this order: layers (which
 * layers share data), tokens (which tokens stay, and at which precision), dims (which subspace of a
 * head is kept), bits (how the remaining numbers are coded). A method shortens one axis; a
 * combination (method.h) shortens several.
 *
 * The tokens of a sequence come in two parts. The prompt is processed as a whole: its tokens attend
 * to each other uncompressed, then it is compressed. Every token after the prompt is a step: it is
 * appended to the cache, attends to the cached tokens, and may change what is stored.
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
 * Precision level of a cached token. Methods of the tokens axis assign it; dims and bits methods
 * store fewer numbers or bits for a token at KVD_LEVEL_LOW.
 */
enum { KVD_LEVEL_DROPPED, KVD_LEVEL_LOW, KVD_LEVEL_HIGH, KVD_N_LEVELS };

/* Parameter of a method, set by KEY=VALUE in the method's text: "p" of "zack,p=0.5". */
typedef struct kvd_parameter {
    const char *key;
    /* Default value. NaN: the user must give the parameter, or another parameter replaces it. */
    double value;
    /* Range of allowed values, ends included. */
    double lo, hi;
    bool whole; /* true: only whole numbers are allowed */
    const char *meaning;
} kvd_parameter;

/*
 * Parameter that trades stored bytes for quality. Sweeps and searches vary it from `most`, the
 * value that stores the most bytes, to `least`, the value that stores the fewest. The value of a
 * second parameter may be computed from it, unless the user sets the second one.
 */
typedef struct kvd_tradeoff {
    const char *key;
    double most, least;
    /* True: a sweep multiplies the parameter by a constant ratio. False: it adds a constant. */
    bool geometric;
    /* Name of a second parameter, whose value is at + slope * (value of the first). NULL: none. */
    const char *with;
    double at, slope;
} kvd_tradeoff;

/*
 * Largest number of parameters of one method, and size in bytes of its text parameter with the
 * final 0.
 */
enum { KVD_PARAMETERS_MAX = 16, KVD_PARAMETER_TEXT = 200 };
typedef struct kvd_parameter_values {
    double value[KVD_PARAMETERS_MAX];
    bool given[KVD_PARAMETERS_MAX];
    /* Value of the parameter named by kvd_method_info.text_key; "" if the user did not give it. */
    char text[KVD_PARAMETER_TEXT];
    const struct kvd_method_info *method; /* method that declares these parameters */
} kvd_parameter_values;

/*
 * Inputs that a method needs in addition to K and V, as bits of a mask. If a program lacks one, it
 * fails with a message that names the option.
 */
typedef enum {
    KVD_NEEDS_SPECTRUM = 1,       /* rotations and singular values of the heads, --spectrum */
    KVD_NEEDS_PRE_ROPE = 2,       /* K before RoPE */
    KVD_NEEDS_ACTIVATIONS = 4,    /* recorded Q, K and V of calibration text, --calibration */
    KVD_NEEDS_FISHER = 8,         /* squared gradients of the loss, --fisher */
    KVD_NEEDS_PROBABILITIES = 16, /* sums of the attention probabilities of the prompt */
    KVD_NEEDS_PROMPT = 32,        /* a prompt, at whose end the method chooses tokens */
    KVD_NEEDS_QUERIES = 64,       /* Q of the prompt's tokens */
    KVD_NEEDS_INPUT = 128         /* inputs of the layers, and the weights that multiply them */
} kvd_needs;

/*
 * Name, parameters and required inputs of a method. It must be the first field of the structure of
 * every method.
 */
typedef struct kvd_method_info {
    /* Name of the method in --method, such as "h2o". */
    const char *name;
    const char *summary; /* one line about the method for --help and docs */
    /*
     * Parameters of the method; the last element has key NULL. NULL for methods that take their
     * rotations from a spectrum file (zack, fdc, ...): method.h lists their parameters.
     */
    const kvd_parameter *parameter;
    const kvd_tradeoff *tradeoff; /* NULL: no parameter trades bytes for quality */
    /*
     * Name of a parameter whose value is a path, such as "file", and its meaning for --help. NULL:
     * none. A path may contain '/', which separates alternative values of other parameters.
     * Programs record the file as an input of the run.
     */
    const char *text_key, *text_meaning;
    unsigned needs; /* inputs that the method needs: bits of kvd_needs */
    /*
     * GPU code that runs plans with this method (cuda/gpu_method.h). NULL: there is none, or the
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
 * Inputs that a program offers to the methods of a plan when it opens the plan. All pointers are
 * borrowed; a pointer is NULL if the input was not given.
 */
typedef struct kvd_method_setup {
    const kvd_config *config;
    /* Model to which the files of the methods must belong. */
    const kvd_model_info *model;
    const char *model_path; /* path of the model, for error messages */
    /* Weights of the model that runs. */
    const kvd_checkpoint *checkpoint;
    /*
     * Projections of the heads that are applied before quantisation. NULL: heads keep all
     * dimensions.
     */
    const struct kvd_dims *dims;
    const kvd_spectrum *spectrum;
    kvd_activations *calibration; /* recorded Q, K and V of calibration text */
    kvd_fisher *fisher;           /* squared gradients of the loss */
    uint64_t seed;                /* seed of methods that draw random numbers */
    /*
     * True if the model's weights are random, so there is no calibration text. Methods then draw
     * random matrices and tables, which suffice to measure times.
     */
    bool drawn;
} kvd_method_setup;

#endif
