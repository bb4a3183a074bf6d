/*
 * The arithmetic blocks of all families on the device (model/pass/blocks.h has them on the CPU, and
 * defines each computation). Rows are tokens. The residual stream, gains, biases and tables are
 * float32; matrices and the inputs of products have the type of the pass, KVD_F32 or KVD_BF16.
 * Everything between two products is one kernel.
 *
 * Launchers do not repeat the checks of the forward pass, launch on the stream, and return
 * cudaError_t; they never synchronise, allocate or print. Pointers are to device memory of the
 * current device.
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
 * Position of the first value that is not finite: the smallest (stage << 40 | row), or all ones if
 * there is none.
 */
typedef unsigned long long kvd_gpu_bad;
static inline kvd_gpu_bad kvd_gpu_bad_at(unsigned stage, size_t row)
{
    return (kvd_gpu_bad)stage << 40 | row;
}

/*
 * Writes x [n][width] = scale * table[id]; scale 0 is taken as 1. If `positions` (a learned table,
 * width d) is not NULL, adds positions[position + 2].
 */
cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale, const uint32_t *id,
                          const float *positions, const uint32_t *position, size_t n, size_t width,
                          float *x, cudaStream_t stream);

/*
 * Normalises rows. If `add` [d] is not NULL, it is added to every row of x first, and the sum stays
 * in x. Then y [n][d] = norm of x, of the model's kind. y has `type`; it may be x itself if `type`
 * is KVD_F32. If `gain` is NULL, there is no norm: only the addition and the check run, and y, if
 * not NULL, receives x. The first row of x that is not finite is recorded in *bad with `stage`.
 */
cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                         const float *gain, const float *bias, double eps, size_t n, size_t d,
                         void *y, unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
/*
 * Runs kvd_gpu_norm on rows first .. first + n - 1 only; x, y and *bad count from row 0. Row i of x
 * receives the d values at add + i * add_ld; with add_ld 0 all rows receive the same.
 */
cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                              size_t add_ld, const float *gain, const float *bias, double eps,
                              size_t first, size_t n, size_t d, void *y, unsigned stage,
                              kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Input of kvd_gpu_qkv_finish: Q, K and V as one product gives them. A row per token has n_heads *
 * d_head numbers of Q, then n_kv_heads * d_head each of K and V.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    const float *bias;            /* [(n_heads + 2 n_kv_heads) * d_head], or NULL */
    const float *gain_q, *gain_k; /* [d_head] RMS norm of every head, or NULL */
    double eps;                   /* epsilon of the norms of Q and K */
    /*
     * scratch [n][2], or NULL. If it is set, one norm runs over all heads of Q (and of K) together,
     * and gain_q and gain_k have a value for each dimension of all heads.
     */
    float *factor;
    const float *cosine, *sine; /* kvd_rope_tables [..][d_head / 2]; NULL without RoPE */
    const uint32_t *rope_row;   /* [n] row of the RoPE tables for each token */
    kvd_rope_layout layout;
    int rope_dims; /* leading dimensions of a head that are rotated; 0: all */
    void *qkv;     /* in and out: [n][(n_heads + 2 n_kv_heads) * d_head] */
    void *pre;     /* out: [n][(n_heads + n_kv_heads) * d_head], Q and K before RoPE; or NULL */
} kvd_gpu_qkv;
cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                               cudaStream_t stream);

/*
 * Input of kvd_gpu_latent_rows: the products of latent attention's projections
 * (model/pass/latent.h). A head of q_raw has d_nope dimensions, then the rope_dims that are
 * rotated.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, d_head, rope_dims, d_nope;
    const float *down; /* [n][d_head] product of LATENT: the latent, then the rotated key */
    const float *gain; /* [d_head - rope_dims] of the latent's RMS norm */
    double eps;        /* epsilon of that norm */
    const void *q_raw; /* [n][n_heads][d_nope + rope_dims] */
    void *qkv;         /* out: [n][(n_heads + 2) * d_head] */
} kvd_gpu_latents;
/*
 * Writes the queries, keys and values of latent attention for n tokens. Of Q it writes only the
 * leading rope_dims dimensions of every head.
 */
cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream);

/*
 * Computes y [n][ffn] = activation of `in`: [n][2 ffn] for an activation with a gate (gate, then
 * up), else [n][ffn]. bias [2 ffn or ffn] or NULL.
 */
cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in, const float *bias,
                             size_t n, size_t ffn, void *y, cudaStream_t stream);

/*
 * Parameters of the scores of a block of attention: scale and cap (kvd_scores), and the sinks of
 * its units (a unit is one head of one sequence).
 */
typedef struct {
    float scale, softcap;  /* softcap 0: none */
    const float *sinks;    /* [n_heads], or NULL */
    size_t first, n_heads; /* unit i of the block is head (first + i) % n_heads of the sinks */
} kvd_gpu_scores;

/*
 * Computes the softmax of the scores of products q . k for a float32 block of products
 * [units][rows][ld]; a unit is one head of one sequence. Row i of a unit is query first + i and
 * sees columns max(0, first + i - window + 1) .. first + i (window 0: from 0). The other columns
 * below n_keys become 0. prob has `type` and the same layout; it may be the products if `type` is
 * KVD_F32.
 */
cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows, size_t ld,
                            size_t first, size_t n_keys, size_t window,
                            const kvd_gpu_scores *scores, void *prob, cudaStream_t stream);

/*
 * Computes x [n] = softcap * tanh(x / softcap) in place. Values that are not finite become NaN, so
 * that later checks find them.
 */
cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream);

/*
 * Routing of n tokens (model/pass/layer.h). `logit` [n][n_experts] is the router's product; its
 * bias [n_experts] (or NULL) is added to it. The other arrays are written: expert and factor
 * [n][n_chosen] of each token, best first; count [n_experts], the tokens of each expert; row and
 * weight [n * n_chosen], the tokens of expert 0 and their factors, then those of expert 1 and so
 * on. The tokens of an expert are in rising order.
 *
 * If `groups` is not 0, experts are chosen by groups (model/pass/routing.h), and `logit` is
 * overwritten by their scores, in float32.
 */
typedef struct {
    size_t n, n_experts, n_chosen;
    int add_up; /* 1 if factors are divided by their sum */
    const float *bias;
    size_t groups, groups_chosen; /* number of groups, and of those that a token uses */
    int sigmoid;                  /* 1 if scores are sigmoids, 0 for the softmax */
    double scale;                 /* factor on the factors of a grouped choice */
    const float *bias_choice;     /* [n_experts] added for the grouped choice alone, or NULL */
    float *logit, *factor, *weight;
    uint32_t *expert, *count, *row;
} kvd_gpu_routes;
cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream);

/* Copies the rows with indices row [n] of x to y [n][d]. */
cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n, size_t d,
                           void *y, cudaStream_t stream);

/*
 * Adds weight[i] * (y[i] + bias) to row row[i] of x, for the n rows of y [n][d]. The rows must
 * differ. bias [d] may be NULL; row NULL: row i; weight NULL: 1.
 */
cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                            const float *weight, size_t n, size_t d, float *x, cudaStream_t stream);

/* Computes factor [n] = sigmoid(x [n][d] . w [d]), the factor of the shared expert's output. */
cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d, float *factor,
                         cudaStream_t stream);

/*
 * Computes y [n][ffn] = g sigmoid(alpha g) (1 + u) of `in` [n][2 ffn] plus bias [2 ffn] (or NULL),
 * with g and u clamped as in kvd_swiglu_clamped.
 */
cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias, size_t n,
                                   size_t ffn, float alpha, float limit, void *y,
                                   cudaStream_t stream);

/* Converts from [n] to another type (KVD_F32, KVD_F16, KVD_BF16) in to [n], rounded to nearest. */
cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type, void *to,
                            size_t n, cudaStream_t stream);

/* Checks x [n][d] float32: records the first row that is not finite in *bad with `stage`. */
cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage, kvd_gpu_bad *bad,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
