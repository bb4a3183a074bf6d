/*
 * Interface between kvdim-attn and an implementation of attention: a name, the supported cases, and
 * functions that prepare, launch and read back. Each family of implementations has one file
 * impl_*.c, which converts a benchmark case into the family's layout; impl.c lists all families.
 */
#ifndef KVD_KERNELS_TIMING_IMPL_H
#define KVD_KERNELS_TIMING_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/kernels.h"
#include "kernels/timing/problem.h"

/*
 * Correctness check of an output. The reference computes query rows of a benchmark case, all of
 * them or a sample, once, in double, from the same rounded inputs. The rows that an implementation
 * wrote are compared with them.
 */

typedef enum { KVD_CHECK_AUTO, KVD_CHECK_ROWS, KVD_CHECK_ALL, KVD_CHECK_NONE } kvd_check_mode;

typedef struct {
    int request, head; /* indices of the request and of the query head */
    size_t t;          /* index of the query in the request */
    /* Index in kvd_row_check.ref of the row's reference output, which has d_v elements. */
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
    /* Largest relative error of a single row. In rel_err a row of small norm has little weight. */
    double worst;
    size_t rows;
} kvd_row_error;

/*
 * Function that makes rows of Q, K or V, with the arguments of kvd_problem_rows. An implementation
 * whose inputs differ from those of the benchmark case supplies its own function.
 */
typedef void (*kvd_row_maker)(const kvd_problem *p, kvd_operand tensor, int request, int head,
                              size_t first, size_t n, int d, float *rows);

/*
 * Chooses query rows to check and computes their reference outputs. The inputs are generated again,
 * so no input of the kernels is read. `heads` has the numbers of dimensions in use, at most 256.
 *
 * KVD_CHECK_AUTO takes all rows of cases with at most 2^26 (query, key) combinations, and a sample
 * of larger ones. A sample has up to 8 requests (the shortest and the longest among them) with up
 * to 8 KV heads each. In prefill it has one query head per KV head, at positions near tile borders,
 * at both ends and between; in decode it has all query heads.
 *
 * Returns 0, or -1 and fills *err.
 */
int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err);
void kvd_row_check_release(kvd_row_check *c);

/* Function that copies row [d_v] of an implementation's output, as float32. */
typedef void (*kvd_row_source)(const void *ctx, int request, int head, size_t t, int d_v,
                               float *row);

/*
 * Compares the output rows that `source` returns with the references and fills *out. If c->n is 0,
 * both errors are NaN. Returns 0. Returns -1 and fills *err if a reference row is zero or not
 * finite.
 */
int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx,
                          kvd_row_error *out, kvd_err *err);

/*
 * Returns the largest rel_err at which an output passes the check: 4e-3 for bf16, 1e-3 for fp16,
 * 1e-5 for float32. The limit for `worst` is three times as large.
 */
double kvd_row_tolerance(kvd_dtype dtype);

/*
 * Lower bounds on the time of a benchmark case: the bytes of memory, floating-point operations and
 * exponentials that it needs at the dimensions in use, divided by the rates that the same machine
 * reached in the same run.
 * - pairs: number of (query, key) combinations: sum over requests, queries t and query heads of the
 *   number of keys that the query attends to, kv_len - q_len + t + 1, or the window if that is
 *   smaller.
 * - flop: sum over query heads of 2 (d_qk + d_v) times the pairs of that head, for the two matrix
 *   products under the causal mask. Softmax is not counted.
 * - exps: equal to pairs, one exponential per score.
 * - bytes: Q, K and V read once and O written once, at the size of the element type. K and V of
 *   tokens before the window of a request's first query are not read.
 */

typedef struct {
    double bytes, flop, exps; /* bytes, floating-point operations and exponentials of the case */
    /*
     * Microseconds that the bytes, the floating-point operations and the exponentials take at the
     * machine's peak rates; NaN if the rate was not measured.
     */
    double bytes_us, flop_us, exps_us;
    double us; /* lower bound of the time in microseconds: the largest of the times above */
} kvd_floors;

/*
 * Sets f->bytes, f->flop and f->exps to the work of a benchmark case. `heads` has the dimensions in
 * use; these differ from those of the case for implementations that compute at d_head.
 */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/*
 * Sets the times of *f from its amounts of work. Decode reads much and writes little, so its bytes
 * are divided by the read rate (read_bytes) if that is known.
 */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

/*
 * Measures the peak rates of this CPU and fills *c with the best of 3 measurements on all threads:
 * sgemm of 1536^3, memcpy and a sum over 128 MiB, and exp of float32 by a polynomial of degree 5 in
 * registers (the rate of the vector units; libm is slower). Takes some tenths of a second. Returns
 * 0, or -1 and fills *err.
 */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

/*
 * Measures the peak rates of the current GPU (kernels/cuda/ceilings.h) and fills *c with those of a
 * copy, a read, the bf16 product of 8192^3 through cuBLAS, and exponentials. Takes about a second.
 * Returns 0, or -1 and fills *err; always fails in a build without CUDA.
 */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

/* Helpers of the CUDA implementations of the benchmark, in addition to common/cuda/memory.h. */

/*
 * Returns a page table [batch][max_pages] in host memory whose pages are scattered over a pool of
 * *n_pages pages, as in the cache of a server that has run for a while. All pages of the pool are
 * used. The caller frees the table. On failure returns NULL and fills *err.
 */
int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err);

/* Returns the largest q_len (if `queries`) or kv_len (if not) of a request. */
int32_t kvd_problem_longest(const kvd_problem *p, bool queries);
/* Returns true if the requests differ in kv_len, their number of keys. */
bool kvd_problem_ragged(const kvd_problem *p);

/*
 * Schedulers of prefill kernels, numbered as kvd_schedule of kernels/cuda/prefill_plan.h.
 * KVD_BY_ITSELF: the implementation offers no choice of scheduler.
 */
typedef enum {
    KVD_BY_NONE,
    KVD_BY_PAPERS,
    KVD_BY_OURS,
    KVD_BY_ITSELF,
    KVD_N_SCHEDULERS
} kvd_scheduler;
extern const char *const kvd_scheduler_name[KVD_N_SCHEDULERS]; /* "none", "papers", "ours", "-" */

/* Numbers of dimensions at which an implementation computes a benchmark case. */
typedef enum {
    KVD_WIDTH_USE_OWN,    /* every head at its own d_qk and d_v */
    KVD_WIDTH_USE_PADDED, /* every head padded with zeros to the widest: same output, more work */
    /* Every head at d_head: the uncompressed problem, with its own inputs and reference output. */
    KVD_WIDTH_USE_DENSE,
    /*
     * Groups of KV heads share latents, from which K is rebuilt. The latents have as many elements
     * as K and V of the benchmark case. The output is compared with a reference computed from the
     * latents, not with the benchmark case's reference.
     */
    KVD_WIDTH_USE_LATENT,
    KVD_N_RUNS
} kvd_width_use;
extern const char *const kvd_width_use_name[KVD_N_RUNS]; /* "own", "padded", "dense", "latent" */

typedef struct {
    /*
     * [n] Microseconds that each CTA (or SM) was busy in one launch; owned by the implementation.
     */
    const double *us;
    size_t n;
} kvd_busy;

/* One implementation of attention. `self` is the pointer that `open` stored in *self. */
typedef struct {
    const char *name, *summary;
    bool cuda;
    unsigned phases; /* supported phases, bits 1 << kvd_attn_phase */
    unsigned dtypes; /* supported element types, bits 1 << kvd_dtype */
    /* Supported schedulers, bits 1 << kvd_scheduler; KVD_BY_ITSELF alone if there is no choice. */
    unsigned schedulers;
    kvd_width_use runs;
    bool windows; /* true if the implementation computes attention within a sliding window */
    /*
     * Functions of KVD_WIDTH_USE_LATENT implementations, NULL for all others. `stored` returns the
     * numbers of dimensions stored per KV head. `answer` returns those of the attention with which
     * the output is compared, and `make_rows` makes the rows of its inputs. `count` sets bytes,
     * flop and exps of *f.
     */
    kvd_attn_heads (*stored)(const kvd_problem *p);
    kvd_attn_heads (*answer)(const kvd_problem *p);
    kvd_row_maker make_rows;
    void (*count)(const kvd_problem *p, kvd_floors *f);

    /*
     * Returns 0 if the implementation can compute this benchmark case on this machine. Otherwise
     * returns -1 and fills *why with the reason. The caller has already checked phase and element
     * type.
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
     * Assigns the work to CTAs from the lengths of the requests, for plan_layers [phase] layers of
     * equal widths at once (for 1 layer if that is 0). Timed separately from `launch`. NULL: the
     * implementation needs no plan.
     */
    int (*plan)(void *self, void *stream, kvd_err *err);
    int plan_layers[KVD_N_ATTN_PHASES];
    /*
     * Restores the state that `plan` prepares for one launch and that a launch consumes. Runs
     * before each launch and is not timed. NULL: nothing to restore.
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
     * Copies the attention output to the host. The caller must have waited for the stream. `row`
     * may be called afterwards.
     */
    int (*fetch)(void *self, kvd_err *err);
    /* Copies one row [d_v] of the fetched output to `row`, as kvd_row_source describes. */
    void (*row)(const void *self, int request, int head, size_t t, int d_v, float *row);
    /*
     * Computes attention once more with clocks in the kernel, waits for the stream and fills *out
     * with the busy times of the CTAs. NULL: the implementation does not measure them.
     */
    int (*busy)(void *self, void *stream, kvd_busy *out, kvd_err *err);
    /*
     * Returns a description of the code that ran, such as "sm_90a", "cuDNN 9.19.0 ..." or "avx512,
     * 16 threads". Valid until `close`.
     */
    const char *(*engine)(const void *self);
} kvd_impl;

/* All implementations of attention, one line per source file. */
extern const kvd_impl kvd_impl_ref, kvd_impl_cpu;
#ifdef KVD_CUDA
extern const kvd_impl kvd_impl_cuda, kvd_impl_cuda_mma, kvd_impl_cuda_dense;
extern const kvd_impl kvd_impl_cudnn, kvd_impl_cudnn_padded, kvd_impl_cudnn_grouped;
extern const kvd_impl kvd_impl_palu;
#endif

int kvd_impl_count(void);
const kvd_impl *kvd_impl_at(int i);
/*
 * Returns the implementation named `name`. Returns NULL and fills *err if there is none, or if it
 * is not part of this build.
 */
const kvd_impl *kvd_impl_find(const char *name, kvd_err *err);

/*
 * Returns 0 if the implementation supports the benchmark case: its phase, its element type, and
 * then whatever `can` checks. Otherwise returns -1 and fills *why.
 */
int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);

/*
 * Returns the numbers of dimensions by which the work of an implementation is counted: d_head for
 * KVD_WIDTH_USE_DENSE, otherwise the widths of the case, because work on padding is not useful.
 */
kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p);
/*
 * Sets f->bytes, f->flop and f->exps to the work that the implementation does for the benchmark
 * case.
 */
void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f);
/*
 * Computes the reference rows that the implementation's output is compared with. Implementations
 * with the same output can share them, such as those of KVD_WIDTH_USE_PADDED and KVD_WIDTH_USE_OWN.
 * Returns 0, or -1 and fills *err.
 */
int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err);

#endif
