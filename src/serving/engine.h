/*
 * What runs an iteration of a batch of requests: the model on a GPU (cuda/engine_cuda.c) or on the CPU (engine_cpu.c), with the cache of a
 * method. kvdim-jct times it; tests hold its tokens against the plain forward pass.
 */
#ifndef KVD_SERVING_ENGINE_H
#define KVD_SERVING_ENGINE_H

#include "methods/presets.h"
#include "model/checkpoint.h"
#include "serving/batching.h"
#include "serving/phases.h"

/* Which attention a CUDA engine has; `stock` leaves out what the papers' kernels add (ZACK/KE, FDC/KE). */
typedef enum {
    KVD_ATTENTION_OURS,   /* heads at their widths, work shared out by their cost                    */
    KVD_ATTENTION_PAPERS, /* the same kernels, work shared out as the papers say                     */
    KVD_ATTENTION_STOCK /* every head of a layer padded to the widest, prompts in the order of their tiles, steps split by length, latents restored */
} kvd_attention_choice;
enum { KVD_N_ATTENTIONS = 3 };

typedef struct {
    kvd_batching_limits limits; /* pages 0: what memory leaves                                            */
    size_t max_len;             /* input + output of the longest request                                  */
    kvd_dtype type;             /* of weights and cache                                                   */
    int first_gpu, n_gpus;      /* that share the model; the CPU engine ignores both                      */
    bool
        sequence; /* they share prompts by their tokens, each with all weights: prompts alone, one at a time; else tensor parallel */
    bool graphs;  /* steps of decoding are replayed CUDA graphs                             */
    kvd_attention_choice attention; /* the CPU engine ignores it                                      */
    bool phases; /* times of the parts are taken; without, only the total                  */
} kvd_engine_spec;

typedef struct {
    double cache_bytes;     /* of the pages that a full cache has, all layers and GPUs                    */
    double bytes_per_token; /* of the cache, all layers and GPUs, as stored (widths rounded to 16 there)  */
    double weight_bytes, peak_bytes; /* on the devices together                                            */
    size_t pages;   /* of 64 tokens                                                               */
    char what[256]; /* "NVIDIA H200, bf16, cuBLAS 13.1.0, sm_90a kernels, CUDA graphs"            */
    bool
        anywhere; /* a slice may come behind tokens that never went through: random numbers stand for them, and no time depends on them */
    unsigned fused; /* bit p: phase p is 0 because the one after it in kvd_phase does its work    */
} kvd_engine_facts;

typedef struct kvd_engine kvd_engine;
struct kvd_engine {
    kvd_engine_facts facts;
    /*
     * Runs an iteration. id [n_tokens]: the tokens of its slices one after another. next [n_slices]: the token that each slice with
     * `emits` gives out, by largest logit (ties: the smaller id). Fails on activations that are not finite, on CUDA errors; the engine
     * is then good for nothing but free. times may be NULL.
     */
    int (*step)(kvd_engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err);
    /* Bytes that the cache held at the end of the latest iteration, by its own count; NULL: tokens times bytes_per_token, and
     * where it is not, bytes_per_token is what is reserved. */
    double (*held)(const kvd_engine *e);
    /* Bytes that the latest iteration sent from GPU to GPU in exchanges: of Q, K and V, and of attention's output. NULL: none. */
    void (*sent)(const kvd_engine *e, double bytes[2]);
    /* Logits [vocab_size] of slice i of the latest iteration, for tests. */
    int (*logits)(kvd_engine *e, size_t i, float *logits, kvd_err *err);
    void (*free)(kvd_engine *e);
};

/* The plan is open and borrowed. NULL with *err, also for what this engine cannot do with it: it names the method. */
kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                                kvd_err *err);
#ifdef KVD_CUDA
kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                                 kvd_err *err);
#endif

#endif
