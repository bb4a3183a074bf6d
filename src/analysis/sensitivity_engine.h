/*
 * What runs the backward pass for kvdim-sensitivity and adds up what it gives: one on the CPU (sensitivity_cpu.c), one on a GPU
 * (cuda/sensitivity_cuda.c).
 */
#ifndef KVD_ANALYSIS_SENSITIVITY_ENGINE_H
#define KVD_ANALYSIS_SENSITIVITY_ENGINE_H

#include "analysis/sensitivity.h"
#include "common/half.h"

typedef struct {
    const kvd_checkpoint
        *checkpoint;              /* borrowed while it is made; on the CPU as long as the engine is there */
    kvd_sensitivity *sums;        /* borrowed, of 0 at first                                             */
    kvd_dtype compute;            /* KVD_F32, on a GPU also KVD_BF16                                      */
    uint64_t seed;                /* of drawn tokens                                                      */
    size_t max_tokens, max_len;   /* of a batch, of a sequence                                            */
    int (*give_up)(kvd_err *err); /* asked before every layer, both ways                                  */
} kvd_sensitivity_spec;

typedef struct kvd_sensitivity_engine kvd_sensitivity_engine;
struct kvd_sensitivity_engine {
    double loss; /* of the drawn tokens of all batches, nats */
    size_t n_predicted;
    /* One batch. */
    int (*run)(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err);
    /* After the last: all sums are in *sums. */
    int (*settle)(kvd_sensitivity_engine *e, kvd_err *err);
    /* What computes, for provenance; valid until free. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/* NULL with *err. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
/* On device 0. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
