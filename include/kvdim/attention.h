/*
 * kvdim attention: causal attention on a paged KV cache whose heads keep different numbers of
 * dimensions, on the CPU and on NVIDIA GPUs. Requires neither kvdim's programs nor HDF5 or LAPACK.
 *
 * Terms. A layer has n_heads query heads and n_kv_heads KV heads of d_head dimensions. KV head g
 * keeps d_qk[g] dimensions of Q and K and d_v[g] dimensions of V; query head h reads KV head
 * h / (n_heads / n_kv_heads) and has its widths. Scores keep the scale 1/sqrt(d_head). Request b of
 * a batch has kv_len[b] tokens in the cache, the last q_len[b] of which are new in this call. New
 * token t has position kv_len[b] - q_len[b] + t and attends to the tokens up to itself. A batch in
 * which every q_len is 1 is decode; any other batch is prefill.
 *
 * Use. Create a layer object once per layer of the model. In every step create a plan of the batch
 * (or advance the last plan by one token), then for each layer call kvdim_append, which applies
 * RoPE, rotates, cuts and stores the new tokens, and kvdim_attend. A plan belongs to one layer
 * object; layers with equal widths may share a layer object and its plans.
 *
 * Memory. The caller owns every buffer. On a CUDA layer, all pointers but those marked "host" are
 * device memory of the current device, calls launch work on `stream` (a cudaStream_t) and return
 * without waiting for it. On a CPU layer, all pointers are host memory, `stream` is ignored and
 * calls return when the work is done. Elements of Q, K, V and O have the layer's 16-bit type.
 *
 * Cache. The pool of one layer is an array of pages of KVDIM_PAGE_TOKENS tokens, each
 * kvdim_layer_sizes.page_bytes bytes, aligned to 128 bytes. page_table[b][j] is the index of the
 * page that holds tokens 64 j .. 64 j + 63 of request b. A page holds K and V of all KV heads at
 * their own widths and no padding; docs/kernels.md gives the order of the elements. Memory of a
 * page after the last token of its request may hold anything.
 *
 * Errors. Functions that can fail return a kvdim_status. kvdim_last_error() then describes the last
 * failure of the calling thread in one line. Errors of a kernel that was launched successfully
 * appear in the CUDA calls that follow, as with every CUDA library.
 *
 * Threads. Objects are not locked: a plan is used by one thread at a time, a layer object may be
 * read by many.
 *
 * Source of the method: ZACK and FDC, arXiv 2408.04107; docs/kernels.md gives measured times.
 */
#ifndef KVDIM_ATTENTION_H
#define KVDIM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of the library's binary interface. It changes when a program that was compiled with an
 * older header would misbehave. Compare it with kvdim_attention_abi() after loading the library at
 * run time.
 */
#define KVDIM_ATTENTION_ABI 1

int kvdim_attention_abi(void);             /* Returns the KVDIM_ATTENTION_ABI of the library. */
const char *kvdim_attention_version(void); /* Returns the version of kvdim, "1.0.0". */

typedef enum {
    KVDIM_OK = 0,
    KVDIM_ERROR_ARGUMENT = 1, /* a number or a pointer argument is not valid */
    KVDIM_ERROR_MEMORY = 2,   /* host memory ran out, or the workspace of a plan is too small */
    KVDIM_ERROR_DEVICE = 3,   /* no CUDA in this library, no GPU, or a GPU older than sm_80 */
    KVDIM_ERROR_CUDA = 4      /* the CUDA runtime reported an error */
} kvdim_status;

/*
 * Returns the description of the last failure in the calling thread; "" if there was none. The text
 * stays valid until the next failure in this thread.
 */
const char *kvdim_last_error(void);

/* Values of kvdim_heads.device: where attention is computed. */
enum { KVDIM_CPU = 0, KVDIM_CUDA = 1 };
/* Values of kvdim_heads.dtype: element type of Q, K, V and O. */
enum { KVDIM_F16 = 0, KVDIM_BF16 = 1 };
enum { KVDIM_PAGE_TOKENS = 64, KVDIM_STRIDE_ELEMENTS = 8 };

/* Shape, device and element type of one attention layer. */
typedef struct kvdim_heads {
    size_t struct_size; /* size of this structure: the caller must set it to sizeof(kvdim_heads) */
    int32_t device;     /* device that computes: KVDIM_CPU or KVDIM_CUDA */
    int32_t dtype;      /* element type of Q, K, V and O: KVDIM_F16 or KVDIM_BF16 */
    int32_t n_heads;    /* number of query heads, 1 .. 128 */
    /* Number of KV heads; divides n_heads; CUDA: at most 16 query heads per KV head. */
    int32_t n_kv_heads;
    int32_t d_head; /* dimensions per head, 16 .. 128, a multiple of 16 */
    /*
     * Number of kept dimensions of Q and K (d_qk) and of V (d_v) in each KV head: host arrays
     * [n_kv_heads] of multiples of 16 from 16 to d_head.
     */
    const int32_t *d_qk, *d_v;
} kvdim_heads;

typedef struct kvdim_layer kvdim_layer;

/*
 * Creates a layer object for the shape *heads, which is copied together with its arrays. On failure
 * *layer is NULL. The caller must release *layer with kvdim_layer_destroy after destroying the
 * plans that use it.
 */
kvdim_status kvdim_layer_create(const kvdim_heads *heads, kvdim_layer **layer);
void kvdim_layer_destroy(kvdim_layer *layer); /* Releases a layer object; NULL is ignored. */

typedef struct kvdim_layer_sizes {
    /* Size of this structure: the caller must set it to sizeof(kvdim_layer_sizes). */
    size_t struct_size;
    size_t page_bytes; /* bytes of one page of the cache: KVDIM_PAGE_TOKENS tokens of one layer */
    /* Elements of a row of kvdim_append_args.x, (n_heads + 2 n_kv_heads) d_head. */
    int32_t x_columns;
    /* Elements of a row of Q as kvdim_append writes it: sum of d_qk over query heads. */
    int32_t q_columns;
    /* Elements of a row of the attention output O: sum of d_v over the query heads. */
    int32_t o_columns;
} kvdim_layer_sizes;

/* Fills *sizes for `layer`. The caller must set sizes->struct_size before the call. */
kvdim_status kvdim_layer_get_sizes(const kvdim_layer *layer, kvdim_layer_sizes *sizes);

/*
 * Returns the first column of query head `head` in a row of the attention output O, or -1 if there
 * is no such head. The head's d_v columns are consecutive.
 */
int32_t kvdim_layer_o_column(const kvdim_layer *layer, int32_t head);

/* Requests that one step of the model processes together: their lengths and cache pages. */
typedef struct kvdim_batch {
    size_t struct_size; /* size of this structure: the caller must set it to sizeof(kvdim_batch) */
    int32_t n_requests; /* number of requests in the batch, at least 1 */
    /*
     * Number of columns of page_table: the most cache pages that one request can have. A plan can
     * be advanced until a request has 64 max_pages tokens.
     */
    int32_t max_pages;
    /* Number of pages in kvdim_append_args.pool; a CPU layer refuses page numbers above it. */
    int32_t pool_pages;
    /*
     * Number of new tokens of each request in this call: host [n_requests], each at least 1. NULL
     * means 1 for each request, that is decode.
     */
    const int32_t *q_len;
    /*
     * Number of tokens of each request in the cache, new ones included: host [n_requests], at
     * least q_len, at most 64 max_pages.
     */
    const int32_t *kv_len;
    /*
     * Page numbers [n_requests][max_pages]: element [b][j] is the page of tokens 64 j .. 64 j + 63
     * of request b. The array is not copied; kvdim_append and kvdim_attend read it.
     */
    const int32_t *page_table;
} kvdim_batch;

/*
 * Stores in *bytes the size of the device workspace that a plan of this batch needs, also after
 * kvdim_plan_advance. The size is 0 on a CPU layer.
 */
kvdim_status kvdim_workspace_bytes(const kvdim_layer *layer, const kvdim_batch *batch,
                                   size_t *bytes);

typedef struct kvdim_plan kvdim_plan;

/*
 * Creates a plan, which divides the attention of one batch among the processors of the device.
 * `workspace` must be aligned to 256 bytes, have at least the size that kvdim_workspace_bytes
 * returns, and remain valid until the plan is destroyed. It may be NULL if that size is 0. On CUDA
 * the call copies the lengths and launches one kernel on `stream`. On failure *plan is NULL.
 */
kvdim_status kvdim_plan_create(const kvdim_layer *layer, const kvdim_batch *batch, void *workspace,
                               size_t workspace_bytes, void *stream, kvdim_plan **plan);
/*
 * Turns a plan into the decode plan of the next token: every request becomes one token longer, and
 * that token is its only new one. The page table must have a page for it (kvdim_batch.max_pages).
 * Fails on a prefill plan.
 */
kvdim_status kvdim_plan_advance(kvdim_plan *plan, void *stream);
/* Releases a plan that kvdim_plan_create made; NULL is ignored. */
void kvdim_plan_destroy(kvdim_plan *plan);

/*
 * Returns the number of rows of Q and of the attention output O. In decode it is n_requests. In
 * prefill each request begins at a multiple of 8 rows, so the number is the sum of q_len, each
 * rounded up to a multiple of 8.
 */
int32_t kvdim_plan_rows(const kvdim_plan *plan);
/*
 * Returns the row of Q and O that holds the first new token of a request, or -1 if there is no
 * such request.
 */
int32_t kvdim_plan_first_row(const kvdim_plan *plan, int32_t request);

typedef struct kvdim_append_args {
    /* Size of this structure: the caller must set it to sizeof(kvdim_append_args). */
    size_t struct_size;
    /*
     * Input [sum of q_len][x_columns], requests one after another without gaps: Q of all query
     * heads, K of all KV heads, V of all KV heads, before RoPE, as the product with W_Q, W_K and
     * W_V gives them.
     */
    const void *x;
    /*
     * Cosines and sines of RoPE, float32 [positions][rope_dim / 2]. NULL: kvdim_append does not
     * apply RoPE.
     */
    const float *rope_cos, *rope_sin;
    /* Number of leading dimensions of a head that RoPE rotates; even, at most d_head. */
    int32_t rope_dim;
    /* 0: RoPE rotates dims (i, i + rope_dim/2), as in Llama; 1: dims (2i, 2i + 1). */
    int32_t rope_interleaved;
    /*
     * Rotations of Q and K (after RoPE) and of V: one row-major matrix [d_head][d_qk] or
     * [d_head][d_v] per KV head, head after head, in the layer's type. NULL means no rotation: the
     * first dims are kept. With a rotation r_v, O is in the rotated basis; multiply W_O by the
     * transpose of r_v, or O by it.
     */
    const void *r_qk, *r_v;
    /*
     * Output: Q of the new tokens, rotated and cut, [kvdim_plan_rows][q_columns]. Only
     * kvdim_attend can read the order of its elements.
     */
    void *q;
    void *pool; /* output: pages of this layer's cache, into which the new K and V are written */
} kvdim_append_args;

/*
 * Applies RoPE to the new Q and K, rotates Q, K and V, keeps the first dims of every head, writes Q
 * for kvdim_attend and stores K and V in the pages of the cache.
 */
kvdim_status kvdim_append(const kvdim_plan *plan, const kvdim_append_args *args, void *stream);

typedef struct kvdim_attend_args {
    /* Size of this structure: the caller must set it to sizeof(kvdim_attend_args). */
    size_t struct_size;
    const void *q;    /* Q of the new tokens, as kvdim_append wrote it with the same plan */
    const void *pool; /* pages of this layer's cache, filled by kvdim_append */
    /*
     * Attention output [kvdim_plan_rows][o_stride]: row kvdim_plan_first_row(b) + t is new token t
     * of request b. Rows between two requests are not written.
     */
    void *o;
    /*
     * Distance between consecutive rows of `o` in elements: at least o_columns, a multiple of 8; 0
     * means o_columns.
     */
    int64_t o_stride;
    /*
     * Output, float32: natural logarithm of the sum of the exponentials of the scaled scores of
     * each row, [n_requests][n_heads] in decode, [n_heads][kvdim_plan_rows] in prefill. NULL: not
     * computed.
     */
    float *lse;
} kvdim_attend_args;

/*
 * Computes the attention of the new tokens of every request over all tokens that the request has
 * in the cache.
 */
kvdim_status kvdim_attend(const kvdim_plan *plan, const kvdim_attend_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
