/*
 * kvdim attention: causal attention on a paged KV cache whose heads keep different numbers of
 * dimensions, on the CPU and on NVIDIA GPUs.
 *
 * Terms. A layer has n_heads query heads and n_kv_heads KV heads of d_head dimensions. KV head g
 * keeps d_qk[g] dimensions of Q and K and d_v[g] dimensions of V. Query head h reads KV head h /
 * (n_heads / n_kv_heads) and has the widths of that KV head. Scores keep the scale 1/sqrt(d_head).
 * Request b of a batch has kv_len[b] tokens in the cache, the last q_len[b] of which are new in
 * this call. New token t has position kv_len[b] - q_len[b] + t and attends to the tokens up to
 * itself. A batch in which every q_len is 1 is decode; any other batch is prefill.
 *
 * Use. Create a layer object once per layer of the model. In every step create a plan, which
 * divides the attention of the batch among processors (or advance the last plan by one token). Then
 * call kvdim_append and kvdim_attend for each layer. A plan belongs to one layer object; layers
 * with equal widths may use the same layer object and plans.
 *
 * Memory. The caller owns every buffer. On a CUDA layer, all pointers but those marked "host" are
 * device memory of the current device. Calls launch work on `stream` (a cudaStream_t) and return
 * without waiting for it. On a CPU layer, all pointers are host memory, `stream` is ignored and
 * calls return when the work is done. Elements of Q, K, V and O have the layer's 16-bit type. On a
 * CUDA layer, x, q, o, r_qk and r_v must be aligned to 16 bytes. Every array must be aligned to its
 * elements.
 *
 * Cache. The pool of one layer is an array of pages of KVDIM_PAGE_TOKENS tokens, each
 * kvdim_layer_sizes.page_bytes bytes, aligned to 128 bytes. page_table[b][j] is the index of the
 * page that holds tokens 64 j .. 64 j + 63 of request b. A page holds K and V of all KV heads
 * without padding; docs/kernels.md gives the order of the elements. Memory of a page after the last
 * token of its request may hold anything.
 *
 * Errors. Functions that can fail return a kvdim_status. Errors of a kernel that was launched
 * successfully appear in the CUDA calls that follow, as with every CUDA library.
 *
 * Threads. Objects are not locked. Only one thread may use a plan at a time; many threads may read
 * a layer object.
 *
 * Source: ZACK and FDC, arXiv 2408.04107.
 */
#ifndef KVDIM_ATTENTION_H
#define KVDIM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Version of the library's binary interface. A program must not use a library if its
 * kvdim_attention_abi() returns another number.
 */
#define KVDIM_ATTENTION_ABI 1

int kvdim_attention_abi(void);
const char *kvdim_attention_version(void); /* Returns the version of kvdim, "1.0.0". */

typedef enum {
    KVDIM_OK = 0,
    KVDIM_ERROR_ARGUMENT = 1,
    KVDIM_ERROR_MEMORY = 2, /* host memory ran out, or the workspace of a plan is too small */
    /* no CUDA in this library, no GPU, or its compute capability is neither 8.x nor 9.0 */
    KVDIM_ERROR_DEVICE = 3,
    KVDIM_ERROR_CUDA = 4
} kvdim_status;

/*
 * Describes the last failure in the calling thread in one line; "" if there was none. The text
 * stays valid until the next failure in this thread.
 */
const char *kvdim_last_error(void);

enum { KVDIM_CPU = 0, KVDIM_CUDA = 1 };
enum { KVDIM_F16 = 0, KVDIM_BF16 = 1 };
enum { KVDIM_PAGE_TOKENS = 64, KVDIM_STRIDE_ELEMENTS = 8 };

typedef struct kvdim_heads {
    size_t struct_size; /* the caller must set this to sizeof(kvdim_heads) */
    int32_t device;     /* KVDIM_CPU or KVDIM_CUDA */
    int32_t dtype;      /* KVDIM_F16 or KVDIM_BF16 */
    int32_t n_heads;    /* 1 .. 128 */
    /*
     * Number of KV heads; must divide n_heads. On CUDA, at most 16 query heads may share a KV head.
     */
    int32_t n_kv_heads;
    int32_t d_head; /* 16 .. 256, a multiple of 16 */
    /*
     * Number of kept dimensions of Q and K (d_qk) and of V (d_v) in each KV head: host arrays
     * [n_kv_heads]. Each number is a multiple of 16 from 16 to d_head.
     */
    const int32_t *d_qk, *d_v;
} kvdim_heads;

typedef struct kvdim_layer kvdim_layer;

/*
 * Creates a layer object with copies of *heads and its arrays. On failure *layer is NULL. The
 * caller must release *layer with kvdim_layer_destroy after destroying the plans that use it.
 */
kvdim_status kvdim_layer_create(const kvdim_heads *heads, kvdim_layer **layer);
void kvdim_layer_destroy(kvdim_layer *layer); /* NULL is ignored */

typedef struct kvdim_layer_sizes {
    /* The caller must set this to sizeof(kvdim_layer_sizes). */
    size_t struct_size;
    size_t page_bytes; /* bytes of one cache page (KVDIM_PAGE_TOKENS tokens of one layer) */
    /* Number of elements in a row of kvdim_append_args.x: (n_heads + 2 n_kv_heads) d_head. */
    int32_t x_columns;
    /*
     * Number of elements in a row of Q that kvdim_append writes: the sum of d_qk over the query
     * heads.
     */
    int32_t q_columns;
    /*
     * Number of elements in a row of the attention output O: the sum of d_v over the query heads.
     */
    int32_t o_columns;
} kvdim_layer_sizes;

/* Fills *sizes. The caller must set sizes->struct_size before the call. */
kvdim_status kvdim_layer_get_sizes(const kvdim_layer *layer, kvdim_layer_sizes *sizes);

/*
 * Returns the first column of query head `head` in a row of the attention output O, or -1 if `head`
 * is not one of 0 .. n_heads - 1. The head's d_v columns are consecutive.
 */
int32_t kvdim_layer_o_column(const kvdim_layer *layer, int32_t head);

typedef struct kvdim_batch {
    size_t struct_size; /* the caller must set this to sizeof(kvdim_batch) */
    int32_t n_requests; /* at least 1 */
    /*
     * Number of columns of page_table: the most cache pages that one request can have. A plan can
     * be advanced until a request has 64 max_pages tokens.
     */
    int32_t max_pages;
    /*
     * Number of pages in kvdim_append_args.pool. A CPU layer refuses a page table with a page
     * number >= pool_pages.
     */
    int32_t pool_pages;
    /*
     * Number of new tokens of each request: host [n_requests], each at least 1. If NULL, each
     * request has 1 new token (decode).
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
 * Sets *bytes to the size of the device workspace that a plan of this batch needs. Calls of
 * kvdim_plan_advance do not increase the size. The size is 0 on a CPU layer.
 */
kvdim_status kvdim_workspace_bytes(const kvdim_layer *layer, const kvdim_batch *batch,
                                   size_t *bytes);

typedef struct kvdim_plan kvdim_plan;

/*
 * Creates a plan, which divides the attention of one batch among the processors of the device.
 * `workspace` must be aligned to 256 bytes and remain valid until the plan is destroyed. It must
 * have at least the size that kvdim_workspace_bytes gives, and may be NULL if that size is 0. On
 * CUDA the call copies q_len and kv_len and launches at most one kernel on `stream`. On failure
 * *plan is NULL.
 */
kvdim_status kvdim_plan_create(const kvdim_layer *layer, const kvdim_batch *batch, void *workspace,
                               size_t workspace_bytes, void *stream, kvdim_plan **plan);
/*
 * Changes a plan to the decode plan of the next token: every request gets exactly one new token.
 * The page table must have a page for that token. Fails if the plan is a prefill plan.
 */
kvdim_status kvdim_plan_advance(kvdim_plan *plan, void *stream);
/* Destroys a plan. NULL is ignored. */
void kvdim_plan_destroy(kvdim_plan *plan);

/*
 * Returns the number of rows of Q and of the attention output O. In decode it is n_requests. In
 * prefill each request begins at a multiple of 8 rows. The number is then the sum of q_len over
 * requests, each rounded up to a multiple of 8.
 */
int32_t kvdim_plan_rows(const kvdim_plan *plan);
/*
 * Returns the row of Q and O that holds the first new token of a request, or -1 if there is no
 * such request.
 */
int32_t kvdim_plan_first_row(const kvdim_plan *plan, int32_t request);

typedef struct kvdim_append_args {
    /* The caller must set this to sizeof(kvdim_append_args). */
    size_t struct_size;
    /*
     * Input [sum of q_len][x_columns], the requests one after another without gaps. The row of a
     * token holds Q of all query heads, K of all KV heads and V of all KV heads, before RoPE.
     */
    const void *x;
    /*
     * Cosines and sines of RoPE, float32 [positions][rope_dim / 2]. If NULL, kvdim_append does not
     * apply RoPE.
     */
    const float *rope_cos, *rope_sin;
    /* Number of leading dimensions of a head that RoPE rotates; even, at most d_head. */
    int32_t rope_dim;
    /* 0: RoPE rotates dimensions i and i + rope_dim/2 together, as in Llama; 1: 2i and 2i + 1. */
    int32_t rope_interleaved;
    /*
     * Rotation matrices of Q and K (r_qk, applied after RoPE) and of V (r_v). Each KV head has one
     * row-major matrix [d_head][d_qk] or [d_head][d_v], head after head, in the layer's type. If
     * r_qk (or r_v) is NULL, the first d_qk (or d_v) dimensions of each head are kept without a
     * rotation. If r_v is set, the attention output O of each head is in the rotated basis. To undo
     * the rotation, the caller multiplies O or W_O by the transpose of r_v.
     */
    const void *r_qk, *r_v;
    /*
     * Output [kvdim_plan_rows][q_columns]: rotated Q of the new tokens with the kept dimensions.
     * The order of the elements is internal to kvdim_append and kvdim_attend.
     */
    void *q;
    void *pool; /* output: pages of this layer's cache, which receive the new K and V */
} kvdim_append_args;

/*
 * Applies RoPE and the rotation matrices to the new tokens, and keeps the first dimensions of every
 * head. Writes Q for kvdim_attend, and K and V into the pages of the cache.
 */
kvdim_status kvdim_append(const kvdim_plan *plan, const kvdim_append_args *args, void *stream);

typedef struct kvdim_attend_args {
    /* The caller must set this to sizeof(kvdim_attend_args). */
    size_t struct_size;
    const void *q;    /* Q as kvdim_append wrote it with the same plan */
    const void *pool; /* pages of this layer's cache, filled by kvdim_append */
    /*
     * Attention output [kvdim_plan_rows][o_stride]. Row kvdim_plan_first_row(b) + t is new token t
     * of request b. Rows that belong to no token, between the rows of two requests, are not
     * written.
     */
    void *o;
    /*
     * Number of elements from one row of `o` to the next: at least o_columns, a multiple of 8. 0
     * means o_columns.
     */
    int64_t o_stride;
    /*
     * Output, float32: for each new token and query head, the natural logarithm of the sum of the
     * exponentials of its scaled scores. The shape is [n_requests][n_heads] in decode,
     * [n_heads][kvdim_plan_rows] in prefill. NULL if not wanted.
     */
    float *lse;
} kvdim_attend_args;

/* Computes the attention of the new tokens of every request over all its tokens in the cache. */
kvdim_status kvdim_attend(const kvdim_plan *plan, const kvdim_attend_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
