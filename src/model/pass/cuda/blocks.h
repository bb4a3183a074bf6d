/* GPU versions of the forward-pass operations in model/pass/blocks.h. Rows are tokens.
 *
 * Functions launch a kernel on the stream and return its error. If a row has a NaN or infinity,
 * *bad gets the row's number and `stage`, a number by which the caller identifies the operation. */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/cuda/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* first NaN or infinity: high 24 bits are the number of the check that found it, low 40 bits the
 * token; all bits are 1 if none was found */
typedef unsigned long long kvd_gpu_bad;
static inline kvd_gpu_bad kvd_gpu_bad_at(unsigned stage, size_t row)
{
    return (kvd_gpu_bad)stage << 40 | row;
}

/* Fills x [n][width] with the embeddings of n tokens, multiplied by `scale` unless it is 0. Adds
 * the vectors of learned positions if `positions` is not NULL. */
cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale, const uint32_t *id,
                          const float *positions, const uint32_t *position, size_t n, size_t width,
                          float *x, cudaStream_t stream);

/* Adds the vector `add` [d] to each row of x [n][d], unless `add` is NULL. Then writes the
 * normalised rows (RMS norm or layer norm) to y; if `gain` is NULL, copies the rows to y
 * unchanged. */
cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                         const float *gain, const float *bias, double eps, size_t n, size_t d,
                         void *y, unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
/* Adds a vector to each of the rows first .. first + n - 1 of x, and writes the normalised rows to
 * y, as kvd_gpu_norm does. The vector for row i begins at add + i * add_ld. */
cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                              size_t add_ld, const float *gain, const float *bias, double eps,
                              size_t first, size_t n, size_t d, void *y, unsigned stage,
                              kvd_gpu_bad *bad, cudaStream_t stream);

/* arguments of a kernel that normalises a block's output (RMS norm), adds it to the residual
 * stream, and then normalises the residual stream */
typedef struct {
    size_t n, d;
    /* residual stream [n][d], in and out; all pointers must be multiples of 16 bytes */
    float *x;
    const float *branch;      /* output of the branch, [n][d] */
    const float *gain_branch; /* gain of the branch's norm, [d] */
    const float *gain;        /* gain [d] of the norm of x; if NULL, y is a copy of x */
    double eps;
    void *y; /* bf16 [n][d] */
    unsigned stage;
    kvd_gpu_bad *bad;
} kvd_gpu_branch;
bool kvd_gpu_branch_takes(size_t d);
cudaError_t kvd_gpu_branch_add(const kvd_gpu_branch *a, cudaStream_t stream);

/* largest number of tokens for which one kernel computes a norm and its product with the router's
 * matrix */
enum { KVD_ROUTE_ROWS = 8 };
typedef struct {
    size_t n, d, n_experts; /* d is a multiple of 4 */
    const float *x;         /* residual stream [n][d] */
    /* vector [d] added to all tokens before the norm, or NULL */
    const float *add;
    const float *gain;
    double eps;
    const float *router; /* [n_experts][d]; no kernel on the stream writes it */
    bool overlaps;       /* true if the launch overlaps the preceding kernel */
    void *normed;        /* output, bf16 [n][d] */
    float *logit;        /* output: [n][n_experts] */
    unsigned stage;
    kvd_gpu_bad *bad;
} kvd_gpu_norm_route;
/* Returns true if kvd_gpu_norm_route_run supports n tokens of d elements on the current device. */
bool kvd_gpu_norm_route_takes(size_t n, size_t d);
cudaError_t kvd_gpu_norm_route_run(const kvd_gpu_norm_route *a, cudaStream_t stream);

/* arguments of a kernel that applies biases, norms and RoPE to Q, K and V */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /* biases of Q, K and V, [(n_heads + 2 n_kv_heads) * d_head], or NULL */
    const float *bias;
    /* gains of the norms of Q and K, [d_head], or NULL */
    const float *gain_q, *gain_k;
    double eps;
    /* scratch memory [n][2] if one norm covers all heads of Q, and another all heads of K; else
     * NULL */
    float *factor;
    const float *cosine, *sine; /* kvd_rope_tables [..][d_head / 2]; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables of each token, [n] */
    kvd_rope_layout layout;
    int rope_dims; /* number of leading dimensions that RoPE rotates, or 0 for all */
    void *qkv;     /* in and out: [n][(n_heads + 2 n_kv_heads) * d_head] */
    /* output: Q and K before RoPE; NULL if not needed */
    void *pre;
    /* receives the GPU's clock in ns when preceding kernels have ended; may be NULL */
    unsigned long long *began;
} kvd_gpu_qkv;
cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                               cudaStream_t stream);

/* arguments of kvd_gpu_latent_rows, for latent attention */
typedef struct {
    kvd_dtype type;
    int n_heads, d_head, rope_dims, d_nope;
    const float *down; /* latent, then rotated key: [n][d_head] */
    const float *gain; /* gains of the latent's RMS norm: [d_head - rope_dims] */
    double eps;
    /* queries [n][n_heads][d_nope + rope_dims] before RoPE, which rotates their last rope_dims
     * dimensions */
    const void *q_raw;
    void *qkv; /* queries, key and value: [n][(n_heads + 2) * d_head] */
} kvd_gpu_latents;
/* Fills a->qkv with K, V and the last rope_dims dimensions of each query, which RoPE will
 * rotate. */
cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream);

/* Computes y [n][ffn], the activation function of `in` + bias. With a gate, a row of `in` has ffn
 * gate values, then ffn up values. */
cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in, const float *bias,
                             size_t n, size_t ffn, void *y, cudaStream_t stream);
/* Applies an activation function without a gate to x [n] in place. */
cudaError_t kvd_gpu_activate_plain(kvd_activation kind, float *x, size_t n, cudaStream_t stream);

/* arguments of the softmax of a block of attention scores; a unit is one head of one sequence */
typedef struct {
    float scale, softcap; /* no softcap if it is 0 */
    const float *sinks;   /* logits of the attention sinks: [n_heads], or NULL */
    /* unit i, which is one head of one sequence, has head number (first + i) % n_heads */
    size_t first, n_heads;
} kvd_gpu_scores;

/* Writes the softmax of products [units][rows][ld] to prob. A unit is one head of one sequence. Row
 * i sees keys 0 .. first + i, or only the last `window` of these keys if `window` is not 0. With
 * KVD_F32, prob may be `products`. */
cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows, size_t ld,
                            size_t first, size_t n_keys, size_t window,
                            const kvd_gpu_scores *scores, void *prob, cudaStream_t stream);

/* Replaces x by softcap * tanh(x / softcap). Infinity becomes NaN. */
cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream);

/* Chooses the routed experts of n tokens.
 *
 * in   logit   [n][n_experts]     overwritten if experts form groups
 * in   bias    [n_experts]        added to the logits, or NULL
 * out  expert, factor [n][n_chosen]  best first, with the factors on their outputs
 * out  count   [n_experts]        tokens of each expert
 * out  row, weight [n * n_chosen]  tokens sorted by expert, with their factors */
typedef struct {
    size_t n, n_experts, n_chosen;
    int add_up; /* 1 if a token's factors are divided by their sum */
    const float *bias;
    /* number of expert groups, or 0 without groups; number of groups from which a token chooses */
    size_t groups, groups_chosen;
    /* 1 if the router's scores are sigmoids of the logits; 0 if they are their softmax */
    int sigmoid;
    double scale; /* with groups: factor on all router weights */
    /* bias [n_experts] that counts only for choosing experts, or NULL */
    const float *bias_choice;
    float *logit, *factor, *weight;
    uint32_t *expert, *count, *row;
} kvd_gpu_routes;
cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream);

/* Computes routed experts without waiting for the host, as CUDA graphs require.
 *
 * A group is up to KVD_FEW_TOKENS tokens of one expert, or up to KVD_MANY_TOKENS in large batches
 * on Hopper. The (token, expert) pairs are sorted by group. */
enum {
    KVD_FEW_TOKENS = 32,
    KVD_MANY_TOKENS = 128,
    KVD_FEW_EXPERTS = 1024 /* largest number of experts in a layer */
};
typedef struct {
    /* pairs (token, expert) first .. first + n - 1 of the list sorted by expert; all have this
     * expert */
    uint32_t expert, first, n;
} kvd_gpu_expert_group;
typedef struct {
    /* result of routing; row[i] is the token of the i-th (token, expert) pair */
    kvd_gpu_routes routes;
    const kvd_gpu_expert *expert; /* device [n_experts] */
    int sms;                      /* multiprocessors of the device */
    bool overlaps;                /* true if launches overlap the preceding kernel */
    /* d: width of a token's hidden state; ffn: number of hidden units per expert; both multiples of
     * 8 */
    size_t d, ffn;
    float alpha, limit; /* as in kvd_gpu_swiglu_clamped; a limit of 0 means SwiGLU */
    /* true on the first GPU, which adds the experts' outputs to y; other GPUs overwrite y */
    bool first;
    const void *x;    /* input, bf16 [n][d] */
    const float *add; /* [d] vector that is also added to every row of y, or NULL */
    float *y;         /* [n][d]: receives the experts' weighted outputs */
    /* scratch: groups of tokens of one expert [kvd_gpu_few_groups], and number of groups [1] */
    kvd_gpu_expert_group *group;
    uint32_t *n_groups;
    uint32_t group_tokens; /* set by kvd_gpu_few_experts_add */
    /* scratch [n][n_chosen]: index of each pair (token, chosen expert) in the list of all pairs,
     * which is sorted by expert */
    uint32_t *place;
    void *hidden; /* scratch: bf16 [n * n_chosen][ffn] */
    float *out;   /* scratch: experts' outputs, [n * n_chosen][d] */
} kvd_gpu_few_experts;
/* Returns the largest possible number of token groups for n tokens. A group has up to
 * KVD_FEW_TOKENS tokens that use the same expert. */
size_t kvd_gpu_few_groups(size_t n, size_t n_chosen, size_t n_experts);
/* Chooses each token's experts by routes.logit, and adds the experts' weighted outputs to y. */
cudaError_t kvd_gpu_few_experts_add(const kvd_gpu_few_experts *a, cudaStream_t stream);
/* Multiplies the experts' matrices with groups of up to KVD_MANY_TOKENS tokens. */
cudaError_t kvd_gpu_many_products(const kvd_gpu_few_experts *a, size_t most_groups,
                                  cudaStream_t stream);

/* Copies n rows of d elements from x to y: y[i] = x[row[i]]. */
cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n, size_t d,
                           void *y, cudaStream_t stream);

/* Adds weight[i] * (y[i] + bias) to the row x[row[i]], for i < n. A row has d elements. The
 * elements of `row` must be distinct. A NULL `bias` means 0, a NULL `weight` means weight[i] = 1, a
 * NULL `row` means row[i] = i. */
cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                            const float *weight, size_t n, size_t d, float *x, cudaStream_t stream);

/* Computes factor [n] = sigmoid(x [n][d] . w [d]). */
cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d, float *factor,
                         cudaStream_t stream);

/* Adds `bias` [2 ffn], unless it is NULL, to each row of `in`, which is gate [ffn] followed by up
 * [ffn]. Then computes y [n][ffn] = kvd_swiglu_clamped(gate, up). */
cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias, size_t n,
                                   size_t ffn, float alpha, float limit, void *y,
                                   cudaStream_t stream);

/* Converts n elements between float32, float16 and bf16, rounded to nearest. */
cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type, void *to,
                            size_t n, cudaStream_t stream);

/* Records in *bad the first row of x [n][d] that is not finite. */
cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage, kvd_gpu_bad *bad,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
