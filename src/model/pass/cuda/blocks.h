/*
 * Operations of the forward pass on the device (model/pass/blocks.h defines them); rows are tokens.
 * Residual stream, gains, biases and tables are float32; matrices and inputs of products have the
 * type of the pass, KVD_F32 or KVD_BF16.
 *
 * Functions launch a kernel on the stream and return its error. A row that is not finite is
 * recorded in *bad with the number `stage` of the check.
 */
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

/*
 * Position of the first value that is not finite, stage << 40 | token row. All bits are 1 if there
 * is none.
 */
typedef unsigned long long kvd_gpu_bad;
static inline kvd_gpu_bad kvd_gpu_bad_at(unsigned stage, size_t row)
{
    return (kvd_gpu_bad)stage << 40 | row;
}

/*
 * Fills x [n][width] with the embeddings of n tokens, times `scale` if that is not 0. Adds row
 * position[i] + 2 of `positions`, if not NULL (OPT).
 */
cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale, const uint32_t *id,
                          const float *positions, const uint32_t *position, size_t n, size_t width,
                          float *x, cudaStream_t stream);

/*
 * Computes y [n][d], the norm of x. First adds `add` [d] to x if it is not NULL. If gain is NULL, y
 * is x without norm.
 */
cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                         const float *gain, const float *bias, double eps, size_t n, size_t d,
                         void *y, unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
/*
 * Computes kvd_gpu_norm for rows first .. first + n - 1; row i is increased by the d values at add
 * + i * add_ld.
 */
cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                              size_t add_ld, const float *gain, const float *bias, double eps,
                              size_t first, size_t n, size_t d, void *y, unsigned stage,
                              kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Arguments to add the RMS norm of a block's output (attention or feed-forward) to the residual
 * stream.
 */
typedef struct {
    size_t n, d;
    /* Residual stream [n][d], which is changed. All pointers must be multiples of 16 bytes. */
    float *x;
    const float *branch;      /* output of the branch, [n][d] */
    const float *gain_branch; /* gain of the branch's norm, [d] */
    const float *gain;        /* gain [d] of the norm of x; if NULL, y is x */
    double eps;
    void *y; /* bf16 [n][d] */
    unsigned stage;
    kvd_gpu_bad *bad;
} kvd_gpu_branch;
/* Returns true if kvd_gpu_branch_add supports rows of d elements. */
bool kvd_gpu_branch_takes(size_t d);
cudaError_t kvd_gpu_branch_add(const kvd_gpu_branch *a, cudaStream_t stream);

/*
 * Arguments to compute RMS norms of up to 8 rows, and their products with the router's matrix, in
 * one launch.
 */
enum { KVD_ROUTE_ROWS = 8 };
typedef struct {
    size_t n, d, n_experts; /* d is a multiple of 4 */
    const float *x;         /* residual stream [n][d] */
    /* Vector [d] that is added to all rows before the norm, or NULL. */
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
/* Returns true if kvd_gpu_norm_route_run supports n rows of d elements on the current device. */
bool kvd_gpu_norm_route_takes(size_t n, size_t d);
cudaError_t kvd_gpu_norm_route_run(const kvd_gpu_norm_route *a, cudaStream_t stream);

/* Arguments to apply bias, norms and RoPE to the output of the QKV projection. */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /* Bias of Q, K and V, [(n_heads + 2 n_kv_heads) * d_head], or NULL. */
    const float *bias;
    /* Gains of the RMS norms of each head of Q and of K: [d_head], or NULL. */
    const float *gain_q, *gain_k;
    double eps;
    /* Scratch memory [n][2] if one norm covers all heads of Q or K, or NULL. */
    float *factor;
    const float *cosine, *sine; /* kvd_rope_tables [..][d_head / 2]; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables of each token, [n] */
    kvd_rope_layout layout;
    int rope_dims; /* number of leading dimensions that RoPE rotates, or 0 for all */
    void *qkv;     /* in and out: [n][(n_heads + 2 n_kv_heads) * d_head] */
    /* Output array for Q and K before RoPE, or NULL. */
    void *pre;
    /* Receives the GPU time in ns at which preceding kernels have ended; may be NULL. */
    unsigned long long *began;
} kvd_gpu_qkv;
cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                               cudaStream_t stream);

/* Input and output of latent attention (model/pass/latent.h). */
typedef struct {
    kvd_dtype type;
    int n_heads, d_head, rope_dims, d_nope;
    const float *down; /* latent, then rotated key: [n][d_head] */
    const float *gain; /* gains of the latent's RMS norm: [d_head - rope_dims] */
    double eps;
    /* Queries [n][n_heads][d_nope + rope_dims] before RoPE, which rotates the last rope_dims. */
    const void *q_raw;
    void *qkv; /* queries, key and value: [n][(n_heads + 2) * d_head] */
} kvd_gpu_latents;
/*
 * Writes the queries, keys and values of latent attention, except the query dimensions that a
 * product with W_UK gives.
 */
cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream);

/*
 * Computes the activation y [n][ffn] of `in` + bias. If it has a gate, `in` is [n][2 ffn] with the
 * gate before up.
 */
cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in, const float *bias,
                             size_t n, size_t ffn, void *y, cudaStream_t stream);
/* Applies an activation to x [n] in place, without a gate even if `kind` has one. */
cudaError_t kvd_gpu_activate_plain(kvd_activation kind, float *x, size_t n, cudaStream_t stream);

/*
 * Parameters of the softmax of attention scores of a block of queries. A unit is one head of one
 * sequence.
 */
typedef struct {
    float scale, softcap; /* no softcap if it is 0 */
    const float *sinks;   /* logits of the attention sinks: [n_heads], or NULL */
    /* Unit i of this call belongs to head (first + i) % n_heads. */
    size_t first, n_heads;
} kvd_gpu_scores;

/*
 * Writes the softmax of products [units][rows][ld] to prob. A unit is one head of a sequence. Row i
 * sees the keys max(0, first + i - window + 1) .. first + i, from 0 on if window is 0. With
 * KVD_F32, prob may be `products`.
 */
cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows, size_t ld,
                            size_t first, size_t n_keys, size_t window,
                            const kvd_gpu_scores *scores, void *prob, cudaStream_t stream);

/* Replaces x [n] by softcap * tanh(x / softcap). Values that are not finite become NaN. */
cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream);

/*
 * Chooses the routed experts of n tokens (model/pass/layer.h).
 *
 *   in   logit   [n][n_experts]     overwritten if experts form groups
 *        bias    [n_experts]        added to the logits, or NULL
 *   out  expert  [n][n_chosen]      experts of each token, best first
 *        factor  [n][n_chosen]      factors on the outputs of these experts
 *        count   [n_experts]        tokens of each expert
 *        row     [n * n_chosen]     tokens of expert 0 in ascending order, then of expert 1, ...
 *        weight  [n * n_chosen]     factor for each element of `row`
 */
typedef struct {
    size_t n, n_experts, n_chosen;
    int add_up; /* 1 if a token's factors are divided by their sum */
    const float *bias;
    /*
     * Number of groups of experts (0 if they form none), and number of groups from which a token's
     * experts come.
     */
    size_t groups, groups_chosen;
    /* 1 if the scores of experts are sigmoids of the logits, 0 if they are their softmax. */
    int sigmoid;
    double scale; /* with groups: factor on all router weights */
    /* Bias [n_experts] that counts only for choosing experts from groups, or NULL. */
    const float *bias_choice;
    float *logit, *factor, *weight;
    uint32_t *expert, *count, *row;
} kvd_gpu_routes;
cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream);

/*
 * Routed experts without synchronisation with the host, so that a CUDA graph can contain them.
 *
 * The tokens of an expert are divided into groups of up to KVD_MANY_TOKENS or KVD_FEW_TOKENS
 * tokens. (token, expert) pairs are numbered by group.
 */
enum {
    KVD_FEW_TOKENS = 32,
    KVD_MANY_TOKENS = 128,
    KVD_FEW_EXPERTS = 1024 /* largest number of experts in a layer */
};
typedef struct {
    /* A group: (token, expert) pairs first .. first + n - 1, which have the same expert. */
    uint32_t expert, first, n;
} kvd_gpu_expert_group;
typedef struct {
    /* Result of routing. row[i] is the token of (token, expert) pair i. */
    kvd_gpu_routes routes;
    const kvd_gpu_expert *expert; /* device [n_experts] */
    int sms;                      /* multiprocessors of the device */
    bool overlaps;                /* true if launches overlap the preceding kernel */
    /* Width d of the token vectors, and number of hidden units per expert; both multiples of 8. */
    size_t d, ffn;
    float alpha, limit; /* as in kvd_gpu_swiglu_clamped; a limit of 0 means SwiGLU */
    /* True on the first GPU, which adds outputs to y. Other GPUs overwrite y. */
    bool first;
    const void *x;    /* input, bf16 [n][d] */
    const float *add; /* [d] vector that is also added to every row of y, or NULL */
    float *y;         /* [n][d]: receives the experts' weighted outputs */
    /* Scratch memory for the groups [kvd_gpu_few_groups] and for their number [1]. */
    kvd_gpu_expert_group *group;
    uint32_t *n_groups;
    uint32_t group_tokens; /* set by kvd_gpu_few_experts_add */
    /* Scratch memory: the number of the (token, expert) pair of a token and its j-th expert. */
    uint32_t *place;
    void *hidden; /* scratch: bf16 [n * n_chosen][ffn] */
    float *out;   /* scratch: experts' outputs, [n * n_chosen][d] */
} kvd_gpu_few_experts;
/*
 * Returns the largest number of groups into which the (token, expert) pairs of n tokens can be
 * divided.
 */
size_t kvd_gpu_few_groups(size_t n, size_t n_chosen, size_t n_experts);
/* Chooses the experts of tokens by routes.logit, and adds the experts' weighted outputs to y. */
cudaError_t kvd_gpu_few_experts_add(const kvd_gpu_few_experts *a, cudaStream_t stream);
/* Multiplies the experts' matrices with groups of up to KVD_MANY_TOKENS tokens. */
cudaError_t kvd_gpu_many_products(const kvd_gpu_few_experts *a, size_t most_groups,
                                  cudaStream_t stream);

/* Copies rows of x to y [n][d]: row i of y is row row[i] of x. */
cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n, size_t d,
                           void *y, cudaStream_t stream);

/*
 * Adds weight[i] * (y[i] + bias) to row row[i] of x, for n rows. The indices must differ. `bias`,
 * `row` and `weight` may be NULL.
 */
cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                            const float *weight, size_t n, size_t d, float *x, cudaStream_t stream);

/*
 * Computes factor [n] = sigmoid(x [n][d] . w [d]), by which the shared expert's output is
 * multiplied.
 */
cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d, float *factor,
                         cudaStream_t stream);

/*
 * Computes y [n][ffn] = kvd_swiglu_clamped(gate, up), where gate and up are the halves of `in` +
 * bias [2 ffn]; bias may be NULL.
 */
cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias, size_t n,
                                   size_t ffn, float alpha, float limit, void *y,
                                   cudaStream_t stream);

/*
 * Converts n elements between the number types KVD_F32, KVD_F16 and KVD_BF16, rounded to nearest.
 */
cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type, void *to,
                            size_t n, cudaStream_t stream);

/* Checks x [n][d]. If a row is not finite, records the first such row in *bad. */
cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage, kvd_gpu_bad *bad,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
