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
#include "formats/kernels.h"
#include "kernels/timing/problem.h"

/*
 * Correctness check of an output. The reference computes query rows of a case, all of them or a
 * sample, once, in double, from the same rounded inputs. The rows that an implementation wrote are
 * compared with them.
 */

typedef enum { KVD_CHECK_AUTO, KVD_CHECK_ROWS, KVD_CHECK_ALL, KVD_CHECK_NONE } kvd_check_mode;

typedef struct {
    int request, head; /* request and query head */
    size_t t;          /* index of the query in the request */
    size_t at; /* index in kvd_row_check.ref of the row's reference, which is d_v elements long */
    int d_v;
} kvd_checked_row;

typedef struct {
    size_t n; /* number of rows; 0 means nothing is checked */
    kvd_checked_row *row;
    double *ref;
} kvd_row_check;

typedef struct {
    double rel_err; /* ||out - ref|| / ||ref|| over all rows; NaN if an output is not finite */
    /* largest relative error of a single row; in rel_err a row of small norm has little weight */
    double worst;
    size_t rows;
} kvd_row_error;

/*
 * Function that makes rows of Q, K or V, with the arguments of kvd_problem_rows. An implementation
 * whose inputs differ from those of the case supplies its own.
 */
typedef void (*kvd_row_maker)(const kvd_problem *p, kvd_operand tensor, int request, int head,
                              size_t first, size_t n, int d, float *rows);

/*
 * Chooses rows and computes their references. The inputs are generated again, so no input of the
 * kernels is read. `heads` has the widths in use, at most 256.
 *
 * KVD_CHECK_AUTO takes all rows of cases with at most 2^26 pairs of query and key, and a sample of
 * larger ones. A sample has up to 8 requests (the shortest and the longest among them) with up to 8
 * KV heads each. In prefill it has one query head per KV head, at positions near tile borders, at
 * both ends and between; in decode it has all query heads.
 *
 * Returns 0, or -1 and fills *err.
 */
int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err);
/* Frees the rows and references of *c. */
void kvd_row_check_release(kvd_row_check *c);

/* Function that copies row [d_v] of the output, as float32. */
typedef void (*kvd_row_source)(const void *ctx, int request, int head, size_t t, int d_v,
                               float *row);

/*
 * Compares the rows that `source` returns with the references and fills *out. If c->n is 0, both
 * errors are NaN. Returns 0. Returns -1 and fills *err if a reference row is zero or not finite.
 */
int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx,
                          kvd_row_error *out, kvd_err *err);

/*
 * Returns the largest rel_err that passes: 4e-3 for bf16, 1e-3 for fp16, 1e-5 for float32. The
 * limit for `worst` is three times as large.
 */
double kvd_row_tolerance(kvd_dtype dtype);

/*
 * Lower bounds on the time of a case: the bytes of memory, floating-point operations and
 * exponentials that it needs at the widths in use, divided by the rates that the same machine
 * reached in the same run.
 * - pairs: sum over requests, queries t and query heads of the number of keys that the query
 *   attends to, kv_len - q_len + t + 1.
 * - flop: sum over query heads of 2 (d_qk + d_v) times the pairs of that head, for the two matrix
 *   products under the causal mask. Softmax is not counted.
 * - exps: equal to pairs, one exponential per score.
 * - bytes: Q, K and V read once and O written once, at the size of the element type.
 */

typedef struct {
    double bytes, flop, exps; /* amounts of the case */
    /* each amount divided by its peak rate; NaN if that was not measured */
    double bytes_us, flop_us, exps_us;
    double us; /* largest of the three times */
} kvd_floors;

/*
 * Sets f->bytes, f->flop and f->exps. `heads` has the widths in use, which differ from those of the
 * case for implementations that compute at full width.
 */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/*
 * Sets the times of *f from its amounts. Decode reads much and writes little, so its bytes are
 * divided by read_bytes if that is known.
 */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

/* Peak rates of this CPU, from which the lower bounds of the times (kvd_floors) are computed. */

/*
 * Fills *c with the best of 3 measurements on all threads: sgemm of 1536^3, memcpy and a sum over
 * 128 MiB, and exp of float32 by a polynomial of degree 5 in registers (the rate of the vector
 * units; libm is slower). Takes some tenths of a second. Returns 0, or -1 and fills *err.
 */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

/* Peak rates of the current GPU, measured by kernels/cuda/ceilings.h. */

/*
 * Fills *c with the rates of a copy, a read, the bf16 product of 8192^3 through cuBLAS, and
 * exponentials. Takes about a second. Returns 0, or -1 and fills *err; always fails in a build
 * without CUDA.
 */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

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
    KVD_WIDTH_USE_PADDED, /* every head padded with zeros to the widest: same output, more work */
    /* every head at d_head: the uncompressed problem, with its own inputs and reference output */
    KVD_WIDTH_USE_DENSE,
    /*
     * latents shared by groups of heads, as many elements as the case stores, from which K is
     * rebuilt; the reference output is its own
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

/* All implementations of attention, grouped by source file. */
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
