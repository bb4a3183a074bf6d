#ifndef KVD_SERVING_JCT_JCT_OPTIONS_H
#define KVD_SERVING_JCT_JCT_OPTIONS_H

#include "common/half.h"
#include "common/options.h"
#include "engine/engine.h"
#include "methods/points.h"
#include "model/checkpoint/shapes.h"

enum { KVD_JCT_METHODS = 64 };

typedef struct {
    kvd_common_options common;
    const char *model;
    /* built-in shape of a model to run with random weights; NULL without --shape */
    const kvd_shape *shape;
    kvd_method method[KVD_JCT_METHODS];
    char *method_text[KVD_JCT_METHODS]; /* text of each --method as typed, allocated */
    size_t n_methods;
    kvd_method_paths files;
    const char *spread; /* file of singular values for random rotation matrices, or NULL */
    size_t *input, *output, *batch;
    size_t n_inputs, n_outputs, n_batches;
    const char *input_text, *output_text, *batch_text;
    /* batch sizes of the decode steps to measure (--step-batch), allocated; NULL if not given */
    size_t *step_batch, n_step_batches;
    const char *step_batch_text;
    /* allocated array: numbers of bits per model weight, 16 or 4, to measure with
     * (--weights-bits) */
    size_t *weight_bits, n_weight_bits;
    /* requests: trace file or "poisson:RATE"; lengths: source of the requests' lengths if arrivals
     * are Poisson */
    const char *requests, *lengths;
    size_t n_requests;                   /* 0 if not given */
    size_t max_batch, max_tokens, pages; /* 0 if not given */
    size_t chunk;
    kvd_admission admission;
    size_t gpus;
    bool sequence; /* true if GPUs divide the tokens of a prompt */
    size_t repeats;
    bool graphs_given;
    size_t steps; /* decode steps of a job to compute (--steps); 0 means all */
    kvd_attention_choice attention;
    bool graphs, phases, iterations, resume;
    kvd_dtype type;
    bool type_given;
    const char *timeline;
} kvd_jct_options;

/* Names of attention implementations (values of --attention), ended by NULL. */
extern const char *const kvd_jct_attention_name[KVD_N_ATTENTIONS + 1];

/* Parses the command line into *cfg, which must be zeroed. Wrong usage ends the program with status
 * 2. */
void kvd_jct_parse(int argc, char **argv, kvd_jct_options *cfg);
void kvd_jct_options_release(kvd_jct_options *cfg);

#endif
