/*
 * How kvdim-attn sees an implementation of attention: a name, what it can do, and six functions. One small file per family,
 * impl_*.c, turns a case into its layout; impl.c lists them all.
 */
#ifndef KVD_KERNELS_IMPL_H
#define KVD_KERNELS_IMPL_H

#include <stdbool.h>

#include "kernels/timing/floors.h"
#include "kernels/timing/problem.h"
#include "kernels/timing/row_check.h"

/* Numbered as kvd_schedule (kernels/cuda/prefill_plan.h); KVD_BY_ITSELF: the implementation has no choice to offer. */
typedef enum { KVD_BY_NONE, KVD_BY_PAPERS, KVD_BY_OURS, KVD_BY_ITSELF, KVD_N_SCHEDULERS } kvd_scheduler;
extern const char *const kvd_scheduler_name[KVD_N_SCHEDULERS]; /* "none", "papers", "ours", "-" */

/* What an implementation makes of the widths of a case. */
typedef enum {
    KVD_RUNS_OWN, /* computes on them                                                                       */
    KVD_RUNS_PADDED, /* every head at the widest: the same answer, more work                                   */
    KVD_RUNS_DENSE, /* every head at d_head: the uncompressed problem, with its own data and its own answer   */
    KVD_RUNS_LATENT, /* latents of groups of heads with as many numbers, K rebuilt from them: its own answer   */
    KVD_N_RUNS
} kvd_runs;
extern const char *const kvd_runs_name[KVD_N_RUNS]; /* "own", "padded", "dense", "latent" */

typedef struct {
    const double
        *us; /* [n] time that each worker (SM, CTA) was busy in the last launch; the implementation's */
    size_t n;
} kvd_busy;

/* `self` is what open returned. */
typedef struct {
    const char *name, *summary;
    bool cuda;
    unsigned phases; /* bits 1 << kvd_attn_phase                                                           */
    unsigned dtypes; /* bits 1 << kvd_dtype                                                           */
    unsigned schedulers; /* bits 1 << kvd_scheduler; only KVD_BY_ITSELF where there is no choice          */
    kvd_runs runs;
    /* Only of KVD_RUNS_LATENT, else NULL: widths as they are stored per KV head; widths and rows of the attention that the
     * answer is checked against; bytes, flop, exps. */
    kvd_attn_heads (*stored)(const kvd_problem *p);
    kvd_attn_heads (*answer)(const kvd_problem *p);
    kvd_row_maker make_rows;
    void (*count)(const kvd_problem *p, kvd_floors *f);

    /* 0, or -1 with the reason in *why: what of this case it cannot do on this machine. Phase and dtype are checked before. */
    int (*can)(const kvd_problem *p, kvd_err *why);
    /*
     * Makes inputs and everything else that a launch needs; *p outlives it. stream is a cudaStream_t (NULL on the CPU)
     * on which data are made and on which everything that follows runs.
     */
    int (*open)(const kvd_problem *p, kvd_scheduler scheduler, void *stream, void **self, kvd_err *err);
    void (*close)(void *self);
    /* Who does what, made anew from the lengths, for plan_layers [phase] layers of the same widths at once (1 where that is 0).
     * NULL: nothing of the kind. Timed by itself. */
    int (*plan)(void *self, void *stream, kvd_err *err);
    int plan_layers[KVD_N_ATTN_PHASES];
    /* What a plan leaves ready for one launch and a launch uses up; before each launch, not timed. NULL: nothing. */
    int (*prepare)(void *self, void *stream, kvd_err *err);
    /* Attention once. Work for the stream, or done on return on the CPU. */
    int (*launch)(void *self, void *stream, kvd_err *err);
    /* Fills the output (and busy times) with NaN. */
    int (*poison)(void *self, void *stream, kvd_err *err);
    /* Brings the output to the host, after the stream was waited for; then row gives rows of it. */
    int (*fetch)(void *self, kvd_err *err);
    void (*row)(const void *self, int request, int head, size_t t, int d_v,
                float *row); /* a kvd_row_source */
    /* Busy times of the last launch, after the stream was waited for. NULL: not measured. */
    int (*busy)(void *self, kvd_busy *out, kvd_err *err);
    /* What ran, for people: "sm_90a", "cuDNN 9.19.0 ...", "avx512, 16 threads". Valid until close. */
    const char *(*engine)(const void *self);
} kvd_impl;

/* The families. */
extern const kvd_impl kvd_impl_ref, kvd_impl_cpu;
#ifdef KVD_CUDA
extern const kvd_impl kvd_impl_cuda, kvd_impl_cuda_mma, kvd_impl_cuda_dense;
extern const kvd_impl kvd_impl_cudnn, kvd_impl_cudnn_padded, kvd_impl_cudnn_grouped;
extern const kvd_impl kvd_impl_palu;
#endif

int kvd_impl_count(void);
const kvd_impl *kvd_impl_at(int i);
/* NULL with *err when there is none of this name, or when it was left out of this build. */
const kvd_impl *kvd_impl_find(const char *name, kvd_err *err);

/* Whether it takes the case at all: phase, dtype, then `can`. */
int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);

/* The widths by which its work is counted: d_head where it runs dense, else those of the case (padding is no useful work). */
kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p);
/* bytes, flop, exps of f. */
void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f);
/* The references of its answer; implementations of the same answer can share them: KVD_RUNS_PADDED with KVD_RUNS_OWN. */
int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode, kvd_row_check *check,
                        kvd_err *err);

#endif
