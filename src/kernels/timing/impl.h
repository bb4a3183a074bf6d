/* Interface between kvdim-attn and implementations of attention (impl_*.c, listed in impl.c). */
#ifndef KVD_KERNELS_TIMING_IMPL_H
#define KVD_KERNELS_TIMING_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/kernels.h"
#include "kernels/timing/problem.h"

/* Output rows to compare with a reference: all (ALL), a sample (ROWS) or none (NONE). AUTO means
 * all in a small case and a sample in a large one. */
typedef enum { KVD_CHECK_AUTO, KVD_CHECK_ROWS, KVD_CHECK_ALL, KVD_CHECK_NONE } kvd_check_mode;

typedef struct {
    int request, head; /* indices of request and query head */
    size_t t;          /* index of the query in the request */
    /* Index of this output row's first element in kvd_row_check.ref. */
    size_t at;
    int d_v;
} kvd_checked_row;

typedef struct {
    size_t n; /* number of rows to check, which may be 0 */
    kvd_checked_row *row;
    double *ref;
} kvd_row_check;

typedef struct {
    double rel_err; /* ||out - ref|| / ||ref|| over all rows; NaN if an output is not finite */
    /* Largest relative error ||out - ref|| / ||ref|| of a single row. */
    double worst;
    size_t rows;
} kvd_row_error;

typedef void (*kvd_row_maker)(const kvd_problem *p, kvd_operand tensor, int request, int head,
                              size_t first, size_t n, int d, float *rows);

/* Chooses the output rows to check, and computes their expected values. KVD_CHECK_AUTO chooses all
 * rows in a small case and a sample in a large one. */
int kvd_row_check_make(kvd_row_check *c, const kvd_problem *p, const kvd_attn_heads *heads,
                       kvd_row_maker make, kvd_check_mode mode, kvd_err *err);
void kvd_row_check_release(kvd_row_check *c);

/* Copies the output row of query t and query head `head` to `row` [d_v], in float32. */
typedef void (*kvd_row_source)(const void *ctx, int request, int head, size_t t, int d_v,
                               float *row);

/* Compares output rows with their expected values. If there are no rows to check, the errors are
 * NaN. Fails if an expected row is all zeros. */
int kvd_row_check_compare(const kvd_row_check *c, kvd_row_source source, const void *ctx,
                          kvd_row_error *out, kvd_err *err);

/* Returns the largest relative error that a whole attention output may have: 4e-3 for bf16, 1e-3
 * for fp16, 1e-5 for float32. Each row of the output may have 3 times this error. */
double kvd_row_tolerance(kvd_dtype dtype);

/* Lower bounds on a case's time: its bytes, FLOP and exponentials, each divided by the machine's
 * peak rate. Q, K and V are read once, and O is written once. Each pair of a query and a key takes
 * 2 (d_qk + d_v) FLOP and one exponential. */
typedef struct {
    double bytes, flop, exps;
    /* Times in microseconds that the bytes, FLOP and exponentials take at the machine's peak rates.
     * NaN if the rate was not measured. */
    double bytes_us, flop_us, exps_us;
    double us; /* largest of bytes_us, flop_us and exps_us */
} kvd_floors;

/* Counts the bytes, FLOP and exponentials of attention problem *p for the head dimensions in
 * `heads`. */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/* Divides the bytes, FLOP and exponentials in *f by peak rates, which gives minimum times. The rate
 * for bytes is the copy rate or, in decode, the read rate if it was measured. */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

/* Measures the CPU's peak rates of copying, reading, FLOP and exponentials, with all threads. */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

/* Measures the GPU's peak rates of copying, reading, FLOP and exponentials, in about a second.
 * Fails in a build without CUDA. */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

/* Returns a page table [batch][max_pages] whose pages are in random order. The caller frees it. */
int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err);

/* Returns the largest q_len of a request if `queries` is true, else the largest kv_len. */
int32_t kvd_problem_longest(const kvd_problem *p, bool queries);
bool kvd_problem_ragged(const kvd_problem *p);

/* Ways to divide attention among CTAs. KVD_BY_ITSELF means that an implementation, such as cuDNN,
 * has its own fixed way. */
typedef enum {
    KVD_BY_NONE,
    KVD_BY_PAPERS,
    KVD_BY_OURS,
    KVD_BY_ITSELF,
    KVD_N_SCHEDULERS
} kvd_scheduler;
extern const char *const kvd_scheduler_name[KVD_N_SCHEDULERS]; /* "none", "papers", "ours", "-" */

/* Ways in which an implementation treats heads that keep different numbers of dimensions. */
typedef enum {
    KVD_WIDTH_USE_OWN,    /* every head at its own d_qk and d_v */
    KVD_WIDTH_USE_PADDED, /* every head padded with zeros to the widest head */
    KVD_WIDTH_USE_DENSE,  /* every head has d_head dimensions, also in the reference */
    /* Latent vectors of groups of KV heads replace K and V. A token's latents have as many elements
     * as its compressed K and V in other methods. */
    KVD_WIDTH_USE_LATENT,
    KVD_N_RUNS
} kvd_width_use;
extern const char *const kvd_width_use_name[KVD_N_RUNS]; /* "own", "padded", "dense", "latent" */

typedef struct {
    /* [n] Busy time of each CTA in microseconds, owned by the implementation. */
    const double *us;
    size_t n;
} kvd_busy;

/* Size in bytes of the buffer for the name of a kernel and its settings. */
enum { KVD_IMPL_ENGINE = 256 };

/* Array of attention output, owned by the implementation. Most implementations have one such array,
 * some have one per group of heads. */
typedef struct {
    void *data;     /* in memory of the implementation's device */
    uint16_t *host; /* copy of data on a GPU; NULL before kvd_impl_fetch */
    size_t bytes;
} kvd_impl_output;

typedef struct kvd_impl kvd_impl;
struct kvd_impl {
    const char *name, *summary;
    bool cuda;
    unsigned phases; /* supported phases, bits 1 << kvd_attn_phase */
    unsigned dtypes; /* supported types, bits 1 << kvd_dtype */
    /* Supported ways to divide attention among CTAs, as bits 1 << kvd_scheduler. */
    unsigned schedulers;
    kvd_width_use runs;
    bool windows; /* true if a sliding window is supported */
    /* `stored` returns the head dimensions of the stored vectors, `answer` the head dimensions of
     * the output. They are NULL unless latent vectors replace K and V. */
    kvd_attn_heads (*stored)(const kvd_problem *p);
    kvd_attn_heads (*answer)(const kvd_problem *p);
    kvd_row_maker make_rows;
    void (*count)(const kvd_problem *p, kvd_floors *f);

    /* Fails, with the reason in *why, if the implementation does not support the case. If this
     * function is NULL, every case is supported. */
    int (*can)(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);
    /* Creates the private data *self for problem *p, which must outlive *self. `stream` is a
     * cudaStream_t, or NULL on the CPU. `engine` receives the name of the kernel and its
     * settings. */
    int (*open)(const kvd_impl *impl, const kvd_problem *p, kvd_scheduler scheduler, void *stream,
                char engine[KVD_IMPL_ENGINE], void **self, kvd_err *err);
    void (*close)(void *self);
    /* Assigns attention work to CTAs. Timed separately from `launch`. May be NULL. */
    int (*plan)(void *self, void *stream, kvd_err *err);
    /* in prefill and in decode: number of layers for which one call of `plan` assigns the work */
    int plan_layers[KVD_N_ATTN_PHASES];
    /* Resets data that a launch changes, such as the counter of taken tiles, before the next
     * launch. Not timed. May be NULL. */
    int (*prepare)(void *self, void *stream, kvd_err *err);
    /* Launches attention once. On the CPU the work is complete on return. */
    int (*launch)(void *self, void *stream, kvd_err *err);
    /* Returns array i of the attention output, which may consist of several arrays. Returns NULL if
     * there is no array i. */
    kvd_impl_output *(*output)(void *self, int i);
    /* Copies one row [d_v] of the output to `row`. On a GPU, kvd_impl_fetch must have copied the
     * output to host memory. */
    void (*row)(const void *self, int request, int head, size_t t, int d_v, float *row);
    /* Computes attention once and measures for how long each CTA is busy. Waits for the result. May
     * be NULL. */
    int (*busy)(void *self, void *stream, kvd_busy *out, kvd_err *err);
};

extern const kvd_impl kvd_impl_ref, kvd_impl_cpu;
#ifdef KVD_CUDA
extern const kvd_impl kvd_impl_cuda, kvd_impl_cuda_mma, kvd_impl_cuda_dense;
extern const kvd_impl kvd_impl_cudnn, kvd_impl_cudnn_padded, kvd_impl_cudnn_grouped;
extern const kvd_impl kvd_impl_palu;
#endif

int kvd_impl_count(void);
const kvd_impl *kvd_impl_at(int i);
/* Returns the attention implementation `name`. If the build lacks it, returns NULL, fills *err. */
const kvd_impl *kvd_impl_find(const char *name, kvd_err *err);

/* Returns 0 if the implementation supports the case, else -1 with the reason in *why. */
int kvd_impl_takes(const kvd_impl *impl, const kvd_problem *p, kvd_err *why);

/* Returns how many dimensions of each head the implementation processes, without padding: the kept
 * dimensions, all d_head dimensions, or the dimensions of latent vectors. */
kvd_attn_heads kvd_impl_heads(const kvd_impl *impl, const kvd_problem *p);
void kvd_impl_count_work(const kvd_impl *impl, const kvd_problem *p, kvd_floors *f);
/* Fills the implementation's output with NaN, so that unwritten elements are found. */
int kvd_impl_poison(const kvd_impl *impl, void *self, void *stream, kvd_err *err);
/* Copies the GPU's output to host memory. The caller must have waited for the stream. */
int kvd_impl_fetch(const kvd_impl *impl, void *self, kvd_err *err);
/* Chooses which output rows of the implementation are checked, and computes their expected values.
 * Implementations that have equal output can share *check. */
int kvd_impl_check_make(const kvd_impl *impl, const kvd_problem *p, kvd_check_mode mode,
                        kvd_row_check *check, kvd_err *err);

#endif
