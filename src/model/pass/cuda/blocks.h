/*
 * The arithmetic of all model families on the device (model/pass/blocks.h is the CPU version and
 * defines each computation). Rows of arrays are tokens. The residual stream, gains, biases and
 * tables are float32; matrices and the inputs of products have the element type of the pass,
 * KVD_F32 or KVD_BF16. Everything between two products is one kernel.
 *
 * The functions launch a kernel on the stream and return its error; they never synchronise,
 * allocate or print. Pointers are to device memory of the current device. The functions do not
 * repeat the checks of the forward pass.
 */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "model/checkpoint/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Position of the first value that is not finite: the smallest (stage << 40 | token row), or all
 * ones if there is none. The stage is the number of the check that found it.
 */
typedef unsigned long long kvd_gpu_bad;
static inline kvd_gpu_bad kvd_gpu_bad_at(unsigned stage, size_t row)
{
    return (kvd_gpu_bad)stage << 40 | row;
}

/*
 * Writes x [n][width], the rows of the embedding `table` for n token ids, multiplied by `scale`;
 * `scale` 0 means no factor. `positions` is a table of learned positions, or NULL. If it is not
 * NULL, its row position[i] + 2 is added to row i of x: in OPT models, the only ones with such a
 * table, rows 0 and 1 belong to no position.
 */
cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale, const uint32_t *id,
                          const float *positions, const uint32_t *position, size_t n, size_t width,
                          float *x, cudaStream_t stream);

/*
 * Writes y [n][d], the norm of x with the model's kind of norm. y has `type`; it may be x itself if
 * `type` is KVD_F32. If `add` [d] is not NULL, it is added to every row of x first, and x keeps the
 * sum. If `gain` is NULL, there is no norm: only the addition and the check are made, and y, if not
 * NULL, receives x. The first row of x that is not finite is recorded in *bad with the check number
 * `stage`.
 */
cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                         const float *gain, const float *bias, double eps, size_t n, size_t d,
                         void *y, unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
/*
 * Computes kvd_gpu_norm for rows first .. first + n - 1 only. The arguments x and y point to row 0,
 * and the row recorded in *bad is counted from row 0. Row i of x is increased by the d values at
 * add + i * add_ld; if add_ld is 0, all rows by the same values.
 */
cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                              size_t add_ld, const float *gain, const float *bias, double eps,
                              size_t first, size_t n, size_t d, void *y, unsigned stage,
                              kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Input of kvd_gpu_qkv_finish, which adds bias, norms and RoPE to the output of the QKV projection.
 * A token has n_heads * d_head numbers of Q, then n_kv_heads * d_head each of K and V.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /* Bias of the projection: [(n_heads + 2 n_kv_heads) * d_head], or NULL. */
    const float *bias;
    /* Gains of the RMS norms of each head of Q and of K: [d_head], or NULL. */
    const float *gain_q, *gain_k;
    double eps; /* epsilon of the norms of Q and K */
    /*
     * If one norm covers all heads of a token's Q, and another all heads of its K: scratch [n][2]
     * for the scale factors of these two norms of each token. gain_q and gain_k then have a gain
     * for every dimension of every head: [n_heads * d_head] and [n_kv_heads * d_head]. NULL if each
     * head has a norm of its own, or none.
     */
    float *factor;
    const float *cosine, *sine; /* tables of kvd_rope_tables, [..][d_head / 2]; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables for each token: [n] */
    kvd_rope_layout layout;
    int rope_dims; /* leading dimensions of a head that RoPE rotates; 0: all */
    void *qkv;     /* input and output: [n][(n_heads + 2 n_kv_heads) * d_head] */
    /* Output: Q and K before RoPE, [n][(n_heads + n_kv_heads) * d_head], or NULL. */
    void *pre;
} kvd_gpu_qkv;
cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                               cudaStream_t stream);

/*
 * Input of kvd_gpu_latent_rows: outputs of the projections of latent attention
 * (model/pass/latent.h), and the array qkv that it writes.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, d_head, rope_dims, d_nope;
    const float *down; /* the latent, then the rotated key: [n][d_head] */
    const float *gain; /* gains of the latent's RMS norm: [d_head - rope_dims] */
    double eps;        /* epsilon of the latent's RMS norm */
    /*
     * Queries [n][n_heads][d_nope + rope_dims]: in each head d_nope dimensions, then those that
     * RoPE rotates.
     */
    const void *q_raw;
    void *qkv; /* output: queries, key and value, [n][(n_heads + 2) * d_head] */
} kvd_gpu_latents;
/*
 * Writes the queries, keys and values of latent attention for n tokens to a->qkv. Only the leading
 * rope_dims dimensions of each query head are written; the others are a product with W_UK, computed
 * elsewhere.
 */
cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream);

/*
 * Computes y [n][ffn], the activation of a feed-forward block. `in` is [n][2 ffn] for activations
 * with a gate (the gate, then the up projection), else [n][ffn]. bias, of as many elements as a row
 * of `in`, is added to `in` first, unless it is NULL.
 */
cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in, const float *bias,
                             size_t n, size_t ffn, void *y, cudaStream_t stream);

/*
 * Parameters of the attention scores of a block of queries: scale and softcap (kvd_scores), and
 * attention sinks. The scores are those of several units; a unit is one head of one sequence.
 */
typedef struct {
    float scale, softcap; /* softcap 0: none */
    const float *sinks;   /* sink logits: [n_heads], or NULL */
    /*
     * Number of heads, and head of the first unit: unit i (one head of one sequence) belongs to
     * head (first + i) % n_heads.
     */
    size_t first, n_heads;
} kvd_gpu_scores;

/*
 * Computes the softmax of attention scores. `products` is a float32 array [units][rows][ld] of q .
 * k; a unit is one head of one sequence. Row i of a unit is query first + i, and sees the columns
 * (keys) max(0, first + i - window + 1) .. first + i; window 0 means from key 0. The other columns
 * below n_keys become 0. prob has `type` and the layout of `products`; it may be `products` if
 * `type` is KVD_F32.
 */
cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows, size_t ld,
                            size_t first, size_t n_keys, size_t window,
                            const kvd_gpu_scores *scores, void *prob, cudaStream_t stream);

/*
 * Replaces x [n] by softcap * tanh(x / softcap). Values that are not finite become NaN, so that
 * later checks find them.
 */
cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream);

/*
 * Arguments of kvd_gpu_route, which chooses the routed experts of n tokens (model/pass/layer.h).
 * Input: `logit` [n][n_experts], the router's product, to which bias [n_experts] is added unless it
 * is NULL. Output: expert and factor [n][n_chosen] of each token, best first; count [n_experts],
 * the number of tokens of each expert; row [n * n_chosen], the indices of the tokens of expert 0 in
 * ascending order, then those of expert 1 and so on; weight [n * n_chosen], for each element of
 * `row` the factor by which the expert's output for this token is multiplied.
 *
 * If `groups` is not 0, experts are chosen by groups (model/pass/routing.h), and `logit` is
 * overwritten by the experts' scores.
 */
typedef struct {
    size_t n, n_experts, n_chosen;
    int add_up; /* 1 if the factors of a token are divided by their sum */
    const float *bias;
    /* Number of groups of experts, and number of groups from which a token's experts come. */
    size_t groups, groups_chosen;
    /* 1 if scores are sigmoids of the logits, 0 if they are the softmax. */
    int sigmoid;
    double scale; /* with groups: constant by which the factors are multiplied */
    /* With groups: bias [n_experts] that is added to the scores only to choose experts, or NULL. */
    const float *bias_choice;
    float *logit, *factor, *weight;
    uint32_t *expert, *count, *row;
} kvd_gpu_routes;
cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream);

/* Copies the n rows of x whose indices are in `row` to y [n][d]. */
cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n, size_t d,
                           void *y, cudaStream_t stream);

/*
 * Adds weight[i] * (y[i] + bias) to row row[i] of x, for the n rows of y [n][d]. The indices in
 * `row` must differ. bias [d] may be NULL. If row is NULL, row i is added to row i; if weight is
 * NULL, all weights are 1.
 */
cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                            const float *weight, size_t n, size_t d, float *x, cudaStream_t stream);

/*
 * Computes factor [n] = sigmoid(x [n][d] . w [d]), the factor on the shared expert's output for
 * each token.
 */
cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d, float *factor,
                         cudaStream_t stream);

/*
 * Computes y [n][ffn] = g sigmoid(alpha g) (1 + u), where g and u are the gate and up projections
 * in `in` [n][2 ffn], plus bias [2 ffn] (or NULL), clamped as in kvd_swiglu_clamped.
 */
cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias, size_t n,
                                   size_t ffn, float alpha, float limit, void *y,
                                   cudaStream_t stream);

/*
 * Converts n elements at `from` to the type to_type (KVD_F32, KVD_F16, KVD_BF16), rounded to
 * nearest, and writes them to `to`.
 */
cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type, void *to,
                            size_t n, cudaStream_t stream);

/* Records the first row of x [n][d] that is not finite in *bad, with the check number `stage`. */
cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage, kvd_gpu_bad *bad,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
