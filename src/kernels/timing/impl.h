/*
 * Interface between kvdim-attn and an implementation of attention: a name, the supported cases, and
 * functions that prepare, launch and read back. Each family has one file impl_*.c that converts a
 * case into the family's layout; impl.c lists all families.
 */
#ifndef KVD_KERNELS_TIMING_IMPL_H
#define KVD_KERNELS_TIMING_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"
#include "kernels/timing/floors.h"
#include "kernels/timing/problem.h"
#include "kernels/timing/row_check.h"

/*
 * Helpers shared by the CUDA implementations of the benchmark, in addition to common/cuda/memory.h.
 * Compiled only in builds with CUDA.
 */

/*
 * Returns a page table [batch][max_pages] in host memory whose pages are scattered over a pool of
 * *n_pages pages, all of them used, as in the cache of a server that has run for a while. The
 * caller frees it. On failure returns NULL and fills *err.
 */
int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err);

/* Returns the largest q_len (`queries` true) or kv_len (`queries` false) of a request. */
int32_t kvd_problem_longest(const kvd_problem *p, bool queries);
/* Returns true if the requests differ in kv_len. */
bool kvd_problem_ragged(const kvd_problem *p);

/*
 * Schedulers, numbered as kvd_schedule of kernels/cuda/prefill_plan.h. KVD_BY_ITSELF: the
 * implementation offers no choice of scheduler.
 */
typedef enum {
    KVD_BY_NONE,
    KVD_BY_PAPERS,
    KVD_BY_OURS,
    KVD_BY_ITSELF,
    KVD_N_SCHEDULERS
} kvd_scheduler;
extern const char *const kvd_scheduler_name[KVD_N_SCHEDULERS]; /* "none", "papers", "ours", "-" */

/* Widths at which an implementation computes a case. */
typedef enum {
    KVD_WIDTH_USE_OWN,    /* every head at its own width */
    KVD_WIDTH_USE_PADDED, /* every head padded to the widest: same answer, more work */
    /* every head at d_head: the uncompressed problem, with its own data and its own answer */
    KVD_WIDTH_USE_DENSE,
    /*
     * latents shared by groups of heads, with the same number of elements, from which K is rebuilt:
     * its own answer
     */
    KVD_WIDTH_USE_LATENT,
    KVD_N_RUNS
} kvd_width_use;
extern const char *const kvd_width_use_name[KVD_N_RUNS]; /* "own", "padded", "dense", "latent" */

typedef struct {
    /*
     * [n] microseconds that each worker (SM or CTA) was busy in one launch; owned by the
     * implementation
     */
    const double *us;
    size_t n;
} kvd_busy;

/* One implementation. `self` is the pointer that `open` stored in *self. */
typedef struct {
    const char *name, *summary;
    bool cuda;
    unsigned phases; /* supported phases, bits 1 << kvd_attn_phase */
    unsigned dtypes; /* supported types, bits 1 << kvd_dtype */
    /* schedulers, bits 1 << kvd_scheduler; KVD_BY_ITSELF alone if there is no choice */
    unsigned schedulers;
    kvd_width_use runs;
    /*
     * Functions of KVD_WIDTH_USE_LATENT implementations, NULL for all others. `stored` returns the
     * widths stored per KV head. `answer` returns the widths of the attention that the answer is
     * checked against, and `make_rows` makes the rows of its inputs. `count` sets bytes, flop and
     * exps of *f.
     */
    kvd_attn_heads (*stored)(const kvd_problem *p);
    kvd_attn_heads (*answer)(const kvd_problem *p);
    kvd_row_maker make_rows;
    void (*count)(const kvd_problem *p, kvd_floors *f);

    /*
     * Returns 0 if the implementation can compute this case on this machine. Otherwise returns -1
     * and fills *why with the reason. The caller has already checked phase and dtype.
     */
    int (*can)(const kvd_problem *p, kvd_err *why);
    /*
     * Creates the inputs and everything else that a launch needs, and stores it in *self. *p must
     * outlive *self. The inputs are created on `stream`, a cudaStream_t (NULL on the CPU), and all
     * later work runs on it. Returns 0, or -1 and fills *err.
     */
    int (*open)(const kvd_problem *p, kvd_scheduler scheduler, void *stream, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Computes the assignment of work to workers from the lengths, for plan_layers [phase] layers
     * of equal widths at once (for 1 layer if that is 0). NULL means the implementation needs no
     * plan. Timed separately from `launch`.
     */
    int (*plan)(void *self, void *stream, kvd_err *err);
    int plan_layers[KVD_N_ATTN_PHASES];
    /*
     * Restores the state that a plan prepares for one launch and that a launch consumes. Runs
     * before each launch and is not timed. NULL means nothing to restore.
     */
    int (*prepare)(void *self, void *stream, kvd_err *err);
    /*
     * Computes attention once. On a GPU, enqueues the work on `stream`; on the CPU, the work is
     * complete on return.
     */
    int (*launch)(void *self, void *stream, kvd_err *err);
    /* Fills the output with NaN. */
    int (*poison)(void *self, void *stream, kvd_err *err);
    /*
     * Copies the output to the host. The caller must have waited for the stream. `row` may be
     * called afterwards.
     */
    int (*fetch)(void *self, kvd_err *err);
    /* Copies one row of the fetched output to `row`; a kvd_row_source. */
    void (*row)(const void *self, int request, int head, size_t t, int d_v, float *row);
    /*
     * Computes attention once more with clocks in the kernel, waits for the stream and fills *out
     * with the busy times. NULL if not measured.
     */
    int (*busy)(void *self, void *stream, kvd_busy *out, kvd_err *err);
    /*
     * Returns a description of the code that ran, such as "sm_90a", "cuDNN 9.19.0 ..." or "avx512,
     * 16 threads". Valid until close.
     */
    const char *(*engine)(const void *self);
} kvd_impl;

/* All implementations, in families. */
extern const kvd_impl kvd_impl_ref, kvd_impl_cpu;
#ifdef KVD_CUDA
extern const kvd_impl kvd_impl_cuda, kvd_impl_cuda_mma, kvd_impl_cuda_dense;
extern const kvd_impl kvd_impl_cudnn, kvd_impl_cudnn_padded, kvd_impl_cudnn_grouped;
extern const kvd_impl kvd_impl_palu;
#endif

int kvd_impl_count(void);
const kvd_impl *kvd_impl_at(int i);
/*
 * Returns the implementation with this name. Returns NULL and fills *err if there is none, or if it
 * is not part of this build.
 */
const kvd_impl *kvd_impl_find(const char *name, kvd_err *err);

/*
 * Returns 0 if the implementation supports the case: its phase, its dtype, and then whatever `can`
 * checks. Otherwise returns -1 and fills *why.
 */
int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);

/*
 * Returns the widths by which the work of an implementation is counted: d_head for
 * KVD_WIDTH_USE_DENSE, otherwise the widths of the case, because work on padding is not useful.
 */
kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p);
/* Sets f->bytes, f->flop and f->exps to the work that the implementation does for the case. */
void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f);
/*
 * Computes the reference rows that the implementation's output is checked against. Implementations
 * with the same answer can share them, such as KVD_WIDTH_USE_PADDED and KVD_WIDTH_USE_OWN. Returns
 * 0, or -1 and fills *err.
 */
int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err);

#endif
