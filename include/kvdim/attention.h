/* kvdim attention: causal attention on a paged KV cache whose heads keep different numbers of
 * dimensions, on CPUs and NVIDIA GPUs.
 *
 * Terms. A layer has n_heads query heads and n_kv_heads KV heads of d_head dimensions. KV head g
 * keeps d_qk[g] dimensions of Q and K, and d_v[g] dimensions of V. Query head h reads KV head
 * h / (n_heads / n_kv_heads), and has the numbers of dimensions of this KV head. Scores keep the
 * scale 1/sqrt(d_head). Request b has kv_len[b] tokens in the cache, the last q_len[b] of which are
 * new. New token t has the position kv_len[b] - q_len[b] + t, and attends to the tokens up to
 * itself. If every q_len of a batch is 1, the batch is a decode step, otherwise prefill.
 *
 * Use. Create a layer object per layer of the model. A plan divides the attention of a batch among
 * processors, for one layer object. In every step, create a plan or advance the last plan by one
 * token. Then call kvdim_append and kvdim_attend for each layer. Layers whose heads keep the same
 * numbers of dimensions may share one layer object and its plan.
 *
 * Memory. The caller owns every buffer. On a CUDA layer, pointers not marked "host" are device
 * memory of the current device; calls launch work on `stream` (a cudaStream_t) and do not wait; x,
 * q, o and the rotation matrices r_qk and r_v are aligned to 16 bytes. On a CPU layer, pointers are
 * host memory, `stream` is ignored and calls return when the work is done. Q, K, V and O have the
 * layer's 16-bit type. Arrays are aligned to their elements.
 *
 * Cache. A layer's pool is an array of pages of KVDIM_PAGE_TOKENS tokens, each
 * kvdim_layer_sizes.page_bytes bytes, aligned to 128 bytes. page_table[b][j] is the page of tokens
 * 64 j .. 64 j + 63 of request b. A page holds K and V of all KV heads without padding, in the
 * order that docs/kernels.md describes. In a request's last page, the places of tokens after the
 * last token may hold any bytes.
 *
 * Errors. Functions that can fail return a kvdim_status. Errors of a launched kernel appear in
 * later CUDA calls.
 *
 * Threads. Objects are not locked. One thread at a time may use a plan; many threads may read a
 * layer object.
 *
 * Source of the idea: the paper on ZACK and FDC, arXiv 2408.04107. */
#ifndef KVDIM_ATTENTION_H
#define KVDIM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this binary interface. A library fits this header if kvdim_attention_abi() returns the
 * same number. */
#define KVDIM_ATTENTION_ABI 1

int kvdim_attention_abi(void);
const char *kvdim_attention_version(void); /* Returns kvdim's version, such as "1.0.0". */

typedef enum {
    KVDIM_OK = 0,
    KVDIM_ERROR_ARGUMENT = 1,
    KVDIM_ERROR_MEMORY = 2, /* host memory ran out, or the workspace of a plan is too small */
    /* The library was built without CUDA, or there is no supported GPU. */
    KVDIM_ERROR_DEVICE = 3,
    KVDIM_ERROR_CUDA = 4
} kvdim_status;

/* Returns one line that describes the last failed call of this thread, or "" if none has failed. */
const char *kvdim_last_error(void);

enum { KVDIM_CPU = 0, KVDIM_CUDA = 1 };
enum { KVDIM_F16 = 0, KVDIM_BF16 = 1 };
enum { KVDIM_PAGE_TOKENS = 64, KVDIM_STRIDE_ELEMENTS = 8 };

typedef struct kvdim_heads {
    size_t struct_size; /* set by the caller: sizeof(kvdim_heads) */
    int32_t device;     /* KVDIM_CPU or KVDIM_CUDA */
    int32_t dtype;      /* KVDIM_F16 or KVDIM_BF16 */
    int32_t n_heads;    /* 1 .. 128 */
    int32_t n_kv_heads; /* number of KV heads; must divide n_heads */
    int32_t d_head;     /* 16 .. 256, a multiple of 16 */
    /* Host arrays [n_kv_heads]: dimensions that each KV head keeps of Q and K (d_qk) and of V
     * (d_v). Multiples of 16 from 16 to d_head. */
    const int32_t *d_qk, *d_v;
} kvdim_heads;

typedef struct kvdim_layer kvdim_layer;

/* Creates *layer from a copy of *heads. The caller must destroy all plans of a layer before the
 * layer itself. */
kvdim_status kvdim_layer_create(const kvdim_heads *heads, kvdim_layer **layer);
void kvdim_layer_destroy(kvdim_layer *layer); /* NULL is ignored */

typedef struct kvdim_layer_sizes {
    size_t struct_size; /* set by the caller: sizeof(kvdim_layer_sizes) */
    size_t page_bytes;  /* bytes of one cache page (KVDIM_PAGE_TOKENS tokens of one layer) */
    /* Elements per token of the input x of kvdim_append: (n_heads + 2 n_kv_heads) d_head. */
    int32_t x_columns;
    int32_t q_columns; /* Elements per row of Q: sum of d_qk over the query heads. */
    int32_t o_columns; /* Elements per row of the output O: sum of d_v over the query heads. */
} kvdim_layer_sizes;

/* Fills *sizes. The caller must have set sizes->struct_size. */
kvdim_status kvdim_layer_get_sizes(const kvdim_layer *layer, kvdim_layer_sizes *sizes);

/* Returns the first column of query head `head` in the attention output O, or -1 if there is no
 * such head. */
int32_t kvdim_layer_o_column(const kvdim_layer *layer, int32_t head);

typedef struct kvdim_batch {
    size_t struct_size; /* set by the caller: sizeof(kvdim_batch) */
    int32_t n_requests; /* at least 1 */
    /* Number of columns of page_table, and largest number of pages of a request. A page holds 64
     * tokens. */
    int32_t max_pages;
    /* Number of pages in kvdim_append_args.pool. Entries of page_table must be 0 .. pool_pages - 1.
     * On the CPU, any other entry is an error, and nothing is written. */
    int32_t pool_pages;
    /* Host array [n_requests]: number of new tokens of each request, at least 1. NULL: 1 each. */
    const int32_t *q_len;
    /* Host array [n_requests]: number of tokens of each request, cached and new together, at most
     * 64 * max_pages. */
    const int32_t *kv_len;
    /* [n_requests][max_pages] Entry [b][j] is the number of the page with the 64 tokens of request
     * b from token 64 * j on. The plan keeps this pointer and copies nothing. */
    const int32_t *page_table;
} kvdim_batch;

/* Sets *bytes to the size of the workspace that kvdim_plan_create needs for this batch. The size is
 * 0 on the CPU. */
kvdim_status kvdim_workspace_bytes(const kvdim_layer *layer, const kvdim_batch *batch,
                                   size_t *bytes);

typedef struct kvdim_plan kvdim_plan;

/* Creates a plan, which divides the attention of a batch among processors. `workspace` has the size
 * that kvdim_workspace_bytes gives, is aligned to 256 bytes, and must stay valid until the plan is
 * destroyed. On CUDA, launches at most one kernel on `stream`. */
kvdim_status kvdim_plan_create(const kvdim_layer *layer, const kvdim_batch *batch, void *workspace,
                               size_t workspace_bytes, void *stream, kvdim_plan **plan);
/* Updates the plan of a decode step for the next step, in which every request has one more token.
 * page_table must already have the pages of these tokens. */
kvdim_status kvdim_plan_advance(kvdim_plan *plan, void *stream);
/* Destroys a plan. NULL is ignored. */
void kvdim_plan_destroy(kvdim_plan *plan);

/* Returns the number of rows of Q and of the attention output O. In decode, each request has one
 * row. In prefill, the rows of each request start at a multiple of 8. */
int32_t kvdim_plan_rows(const kvdim_plan *plan);
/* Returns the row of a request's first new token in Q and in the attention output O, or -1 if there
 * is no such request. */
int32_t kvdim_plan_first_row(const kvdim_plan *plan, int32_t request);

typedef struct kvdim_append_args {
    size_t struct_size; /* set by the caller: sizeof(kvdim_append_args) */
    /* Input [sum of q_len][x_columns]: for each new token, Q, K and V of all heads, before RoPE. */
    const void *x;
    /* Cosines and sines of RoPE, float32 [positions][rope_dim / 2]. If NULL, there is no RoPE. */
    const float *rope_cos, *rope_sin;
    int32_t rope_dim; /* Leading dimensions of a head that RoPE rotates; even, at most d_head. */
    /* If 0, RoPE rotates dimensions i and i + rope_dim/2, as in Llama. If 1, 2i and 2i + 1. */
    int32_t rope_interleaved;
    /* Rotation matrices of all KV heads, one after another, row-major. r_qk is [d_head][d_qk], for
     * Q and K after RoPE; r_v is [d_head][d_v], for V. If NULL, the first dimensions are kept as
     * they are. If r_v is given, the caller must multiply the output (or W_O) by the transpose of
     * r_v. */
    const void *r_qk, *r_v;
    /* Output [kvdim_plan_rows][q_columns]: rotated Q, in an order that only kvdim_attend reads. */
    void *q;
    void *pool; /* output: pages of this layer's cache, which receive the new K and V */
} kvdim_append_args;

/* Applies RoPE to Q and K of the batch's new tokens, rotates Q, K and V, and keeps the first
 * dimensions of each head. Writes Q to args->q, and K and V to the cache pages args->pool. */
kvdim_status kvdim_append(const kvdim_plan *plan, const kvdim_append_args *args, void *stream);

typedef struct kvdim_attend_args {
    size_t struct_size; /* set by the caller: sizeof(kvdim_attend_args) */
    const void *q;      /* Q as kvdim_append wrote it with the same plan */
    const void *pool;   /* pages of this layer's cache, filled by kvdim_append */
    /* Attention output [kvdim_plan_rows][o_stride]. The first new token of request b has the row
     * kvdim_plan_first_row(plan, b). */
    void *o;
    /* Elements from one row of `o` to the next: at least o_columns and a multiple of 8. 0 means
     * o_columns. */
    int64_t o_stride;
    /* Output, or NULL if not wanted: float32 natural logs of the softmax denominators,
     * [n_requests][n_heads] in decode, [n_heads][kvdim_plan_rows] in prefill. */
    float *lse;
} kvdim_attend_args;

/* Computes causal attention of each request's new tokens to the request's cached and new tokens. */
kvdim_status kvdim_attend(const kvdim_plan *plan, const kvdim_attend_args *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
