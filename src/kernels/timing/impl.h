/*
 * Interface between kvdim-attn and an implementation of attention. Each family of implementations
 * has one file impl_*.c, which converts a case into the family's layout. impl.c lists all
 * implementations. Functions of type int return 0, or -1 with *err or *why filled.
 */
#ifndef KVD_KERNELS_TIMING_IMPL_H
#define KVD_KERNELS_TIMING_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/kernels.h"
#include "kernels/timing/problem.h"

/*
 * Selection of the query rows whose outputs are checked. KVD_CHECK_AUTO: all rows of a small case,
 * a sample of a large one. KVD_CHECK_ROWS: a sample. KVD_CHECK_ALL, KVD_CHECK_NONE: all or none.
 */

typedef enum { KVD_CHECK_AUTO, KVD_CHECK_ROWS, KVD_CHECK_ALL, KVD_CHECK_NONE } kvd_check_mode;

typedef struct {
    int request, head; /* indices of request and query head */
    size_t t;          /* index of the query in the request */
    /* Index in kvd_row_check.ref of the reference output of this query row. */
    size_t at;
    int d_v;
} kvd_checked_row;

typedef struct {
    size_t n; /* number of rows to check; 0: nothing is checked */
    kvd_checked_row *row;
    double *ref;
} kvd_row_check;

typedef struct {
    double rel_err; /* ||out - ref|| / ||ref|| over all rows; NaN if an output is not finite */
    /* Largest relative error of a single row. A row of small norm has little weight in rel_err. */
    double worst;
    size_t rows;
} kvd_row_error;

/* Generates rows of Q, K or V. The arguments are those of kvd_problem_rows. */
typedef void (*kvd_row_maker)(const kvd_problem *p, kvd_operand tensor, int request, int head,
                              size_t first, size_t n, int d, float *rows);

/*
 * Chooses query rows to check and computes their reference outputs. Inputs are generated anew, not
 * read from the device; a head has at most 256 dimensions.
 *
 * KVD_CHECK_AUTO takes all rows of cases with at most 2^26 (query, key) combinations, and a sample
 * of larger ones: up to 8 requests (the shortest and the longest among them) with up to 8 KV heads
 * each.
 */
int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err);
void kvd_row_check_release(kvd_row_check *c);

/* Copies the output row of one query and head to `row` as float32. */
typedef void (*kvd_row_source)(const void *ctx, int request, int head, size_t t, int d_v,
                               float *row);

/*
 * Compares the outputs of the chosen rows with their references. If c->n is 0, the errors in *out
 * are NaN. Fails if a reference row is zero or not finite.
 */
int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx,
                          kvd_row_error *out, kvd_err *err);

/*
 * Returns the largest rel_err that passes: 4e-3 for bf16, 1e-3 for fp16, 1e-5 for float32. The
 * limit for `worst` is three times as large.
 */
double kvd_row_tolerance(kvd_dtype dtype);

/*
 * Lower bounds on the time of a case: bytes, floating-point operations and exponentials, divided by
 * the rates that the same machine reached in the same run.
 *
 * - pairs: (query, key) combinations. Query t of a request counts min(kv_len - q_len + t + 1,
 *   window) keys; the sum is over requests, queries and query heads.
 * - flop: sum over query heads of 2 (d_qk + d_v) times the pairs of that head. Softmax is not
 *   counted.
 * - exps: equal to pairs.
 * - bytes: Q, K and V read once and O written once. With a sliding window, keys before the window
 *   of a request's first query are not read.
 */

typedef struct {
    double bytes, flop, exps;
    /* Times in microseconds at the machine's peak rates; NaN if a rate was not measured. */
    double bytes_us, flop_us, exps_us;
    double us; /* largest of these times */
} kvd_floors;

/*
 * Sets bytes, flop and exps of *f. `heads` has the dimensions at which the implementation computes,
 * which may exceed those of the case.
 */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/*
 * Sets the times of *f from bytes, flop and exps, which must be set. In decode, memory time is
 * computed from the read rate if that is known, else from the copy rate.
 */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

/*
 * Measures the rates of the CPU on all threads and stores the best of 3 measurements in *c.
 * Floating-point operations: sgemm of 1536^3. Bandwidth: memcpy of 128 MiB and a sum over 128 MiB.
 * Exponentials: a polynomial of degree 5.
 */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

/*
 * Fills *c with measured peak rates of the GPU, which takes about a second. Always fails in a build
 * without CUDA.
 */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

/*
 * Returns a page table [batch][max_pages] in host memory, which the caller frees. Its pages are
 * scattered over a pool of *n_pages pages, as on a server after many requests have come and gone.
 * All pages of the pool are used. On failure returns NULL and fills *err.
 */
int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err);

/* Returns the largest q_len if `queries` is true, else the largest kv_len. */
int32_t kvd_problem_longest(const kvd_problem *p, bool queries);
/* Returns true if the requests differ in kv_len. */
bool kvd_problem_ragged(const kvd_problem *p);

/*
 * Ways to divide work among CTAs. KVD_BY_NONE, KVD_BY_PAPERS and KVD_BY_OURS have the same values
 * as KVD_SCHEDULE_NONE, KVD_SCHEDULE_PAPERS and KVD_SCHEDULE_OURS. KVD_BY_ITSELF means that the
 * implementation offers no choice.
 */
typedef enum {
    KVD_BY_NONE,
    KVD_BY_PAPERS,
    KVD_BY_OURS,
    KVD_BY_ITSELF,
    KVD_N_SCHEDULERS
} kvd_scheduler;
extern const char *const kvd_scheduler_name[KVD_N_SCHEDULERS]; /* "none", "papers", "ours", "-" */

/* Numbers of dimensions per head with which an implementation computes a benchmark case. */
typedef enum {
    KVD_WIDTH_USE_OWN, /* every head at its own d_qk and d_v */
    /* Every head padded with zeros to the width of the widest head, which is more work */
    KVD_WIDTH_USE_PADDED,
    /*
     * Every head has d_head dimensions; the inputs and the reference output are made for this
     * width.
     */
    KVD_WIDTH_USE_DENSE,
    /*
     * Groups of KV heads share latents. Together the latents have as many elements as K and V with
     * the case's dimensions. The reference output is computed from the latents.
     */
    KVD_WIDTH_USE_LATENT,
    KVD_N_RUNS
} kvd_width_use;
extern const char *const kvd_width_use_name[KVD_N_RUNS]; /* "own", "padded", "dense", "latent" */

typedef struct {
    /* [n] Microseconds that each CTA was busy in one launch, owned by the implementation. */
    const double *us;
    size_t n;
} kvd_busy;

typedef struct {
    const char *name, *summary;
    bool cuda;
    unsigned phases; /* supported phases, bits 1 << kvd_attn_phase */
    unsigned dtypes; /* supported types, bits 1 << kvd_dtype */
    /*
     * Supported schedulers, bits 1 << kvd_scheduler. If the implementation offers no choice, only
     * the bit 1 << KVD_BY_ITSELF is set.
     */
    unsigned schedulers;
    kvd_width_use runs;
    bool windows; /* true if a sliding window is supported */
    /*
     * NULL unless `runs` is KVD_WIDTH_USE_LATENT. `stored` returns the dimensions stored per KV
     * head. `answer` returns the dimensions of the reference output, and `make_rows` generates the
     * inputs of the reference computation. `count` sets bytes, flop and exps of *f.
     */
    kvd_attn_heads (*stored)(const kvd_problem *p);
    kvd_attn_heads (*answer)(const kvd_problem *p);
    kvd_row_maker make_rows;
    void (*count)(const kvd_problem *p, kvd_floors *f);

    /*
     * Fails with the reason in *why if the implementation cannot compute the case on this machine.
     * The caller has already checked phase and element type.
     */
    int (*can)(const kvd_problem *p, kvd_err *why);
    /*
     * Creates the inputs and everything else that a launch needs, in *self. *p must outlive *self.
     * All work runs on `stream`, a cudaStream_t (NULL on the CPU).
     */
    int (*open)(const kvd_problem *p, kvd_scheduler scheduler, void *stream, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Assigns the work of plan_layers[phase] layers (1 layer if the number is 0), which have equal
     * widths, to CTAs. The time of this call is measured separately. May be NULL.
     */
    int (*plan)(void *self, void *stream, kvd_err *err);
    int plan_layers[KVD_N_ATTN_PHASES];
    /*
     * Restores the part of the plan that a launch consumes. Runs before each launch and is not
     * timed. May be NULL.
     */
    int (*prepare)(void *self, void *stream, kvd_err *err);
    /* Launches attention once. On the CPU the work is complete on return. */
    int (*launch)(void *self, void *stream, kvd_err *err);
    /* Fills the output with NaN, so that elements that a launch does not write are found. */
    int (*poison)(void *self, void *stream, kvd_err *err);
    /* Copies the output to host memory. The caller must have waited for the stream. */
    int (*fetch)(void *self, kvd_err *err);
    /* Copies one row [d_v] of the fetched output to `row`. May be called only after `fetch`. */
    void (*row)(const void *self, int request, int head, size_t t, int d_v, float *row);
    /*
     * Computes attention once and measures how long each CTA is busy. Waits for the stream. May be
     * NULL.
     */
    int (*busy)(void *self, void *stream, kvd_busy *out, kvd_err *err);
    /*
     * Describes the code that ran, such as "sm_90a", "cuDNN 9.19.0 ..." or "avx512, 16 threads".
     * Valid until `close`.
     */
    const char *(*engine)(const void *self);
} kvd_impl;

extern const kvd_impl kvd_impl_ref, kvd_impl_cpu;
#ifdef KVD_CUDA
extern const kvd_impl kvd_impl_cuda, kvd_impl_cuda_mma, kvd_impl_cuda_dense;
extern const kvd_impl kvd_impl_cudnn, kvd_impl_cudnn_padded, kvd_impl_cudnn_grouped;
extern const kvd_impl kvd_impl_palu;
#endif

int kvd_impl_count(void);
const kvd_impl *kvd_impl_at(int i);
/* Returns the implementation called `name`. If this build has none, returns NULL and fills *err. */
const kvd_impl *kvd_impl_find(const char *name, kvd_err *err);

/* Returns 0 if the implementation supports the case, else -1 with the reason in *why. */
int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);

/*
 * Returns the dimensions from which operations and bytes are counted. They exclude padding: d_head
 * for KVD_WIDTH_USE_DENSE, else the dimensions of the case.
 */
kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p);
/* Sets bytes, flop and exps of *f to the work of the implementation in this case. */
void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f);
/*
 * Computes the reference outputs of the rows to check. Implementations with the same output can
 * share *c.
 */
int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err);

#endif
