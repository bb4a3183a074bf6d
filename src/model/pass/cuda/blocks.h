/*
 * The operations of the forward pass of all model families on the device (model/pass/blocks.h
 * defines each computation). Rows of arrays are tokens. The residual stream, gains, biases and
 * tables are float32; matrices and the inputs of products have the element type of the pass,
 * KVD_F32 or KVD_BF16.
 *
 * The functions launch a kernel on the stream and return its error; they never synchronise,
 * allocate or print. Pointers are to memory of the current device.
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
 * Position of the first value that is not finite: the smallest (stage << 40 | token row), or all
 * ones if there is none. The stage is the number of the check that found it.
 */
typedef unsigned long long kvd_gpu_bad;
static inline kvd_gpu_bad kvd_gpu_bad_at(unsigned stage, size_t row)
{
    return (kvd_gpu_bad)stage << 40 | row;
}

/*
 * Fills x [n][width] with the rows of `table` (the embedding) for n token ids, multiplied by
 * `scale`; 0 means no factor. If `positions` is not NULL (OPT), row position[i] + 2 of `positions`
 * is added to row i of x.
 */
cudaError_t kvd_gpu_embed(kvd_dtype type, const void *table, float scale, const uint32_t *id,
                          const float *positions, const uint32_t *position, size_t n, size_t width,
                          float *x, cudaStream_t stream);

/*
 * y [n][d], of `type`, is the norm of x; with KVD_F32 it may be x itself. If `add` [d] is not NULL,
 * it is first added to every row of x, in place. If `gain` is NULL, y receives x without a norm; in
 * that case y may also be NULL. The first row of x that is not finite is recorded in *bad with the
 * check number `stage`.
 */
cudaError_t kvd_gpu_norm(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                         const float *gain, const float *bias, double eps, size_t n, size_t d,
                         void *y, unsigned stage, kvd_gpu_bad *bad, cudaStream_t stream);
/*
 * Computes kvd_gpu_norm for rows first .. first + n - 1 only; x and y point to row 0, not to row
 * `first`. Row i of x is increased by the d values at add + i * add_ld. If add_ld is 0, the same
 * values are added to all rows. The row in *bad is counted from row 0.
 */
cudaError_t kvd_gpu_norm_rows(kvd_norm kind, kvd_dtype type, float *x, const float *add,
                              size_t add_ld, const float *gain, const float *bias, double eps,
                              size_t first, size_t n, size_t d, void *y, unsigned stage,
                              kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Adds the output of a branch (attention or feed-forward block), after its RMS norm, to the
 * residual stream, and computes the norm of the sum, the input of the next matrix product, in the
 * same launch.
 */
typedef struct {
    size_t n, d;
    /* Residual stream [n][d], changed; all pointers are aligned to 16 bytes. */
    float *x;
    const float *branch;      /* output of the branch, [n][d] */
    const float *gain_branch; /* gain of the branch's norm, [d] */
    const float *gain;        /* gain [d] of the norm of x; if NULL, y is x without a norm */
    double eps;
    void *y; /* bf16 [n][d] */
    /* The first row that is not finite is recorded in *bad with the check number `stage`. */
    unsigned stage;
    kvd_gpu_bad *bad;
} kvd_gpu_branch;
/* Returns true if kvd_gpu_branch_add supports rows of d elements. */
bool kvd_gpu_branch_takes(size_t d);
cudaError_t kvd_gpu_branch_add(const kvd_gpu_branch *a, cudaStream_t stream);

/*
 * Arguments of one launch that computes the RMS norms of up to 8 rows of the residual stream and
 * multiplies them by the matrix of the router (routed experts).
 */
enum { KVD_ROUTE_ROWS = 8 };
typedef struct {
    size_t n, d, n_experts; /* d is a multiple of 4 */
    const float *x;         /* residual stream [n][d] */
    /* [d], or NULL: is added to every row before the norm, but not stored in x. */
    const float *add;
    const float *gain;
    double eps;
    const float *router; /* [n_experts][d]; no kernel on the stream may write it */
    bool overlaps; /* true on compute capability 9: the launch overlaps the preceding kernel */
    void *normed;  /* output: the norm in bf16, [n][d] */
    float *logit;  /* output: [n][n_experts] */
    /* The first row that is not finite is recorded in *bad with the check number `stage`. */
    unsigned stage;
    kvd_gpu_bad *bad;
} kvd_gpu_norm_route;
/* Returns true if kvd_gpu_norm_route_run supports n rows of d elements on the current device. */
bool kvd_gpu_norm_route_takes(size_t n, size_t d);
cudaError_t kvd_gpu_norm_route_run(const kvd_gpu_norm_route *a, cudaStream_t stream);

/*
 * Adds bias, norms and RoPE to the output of the QKV projection. A token has n_heads * d_head
 * numbers of Q, then n_kv_heads * d_head each of K and V.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /* Bias [(n_heads + 2 n_kv_heads) * d_head], or NULL. */
    const float *bias;
    /* Gains of the RMS norms of each head of Q and of K: [d_head], or NULL. */
    const float *gain_q, *gain_k;
    double eps;
    /*
     * Scratch for the factors 1 / rms of Q and of K of each token, [n][2], if one norm covers all
     * heads of a token's Q (or K); otherwise NULL. If it is not NULL, gain_q is [n_heads * d_head]
     * and gain_k is [n_kv_heads * d_head].
     */
    float *factor;
    const float *cosine, *sine; /* kvd_rope_tables [..][d_head / 2]; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables for each token: [n] */
    kvd_rope_layout layout;
    int rope_dims; /* leading dimensions of a head that RoPE rotates; 0: all */
    void *qkv;     /* in and out: [n][(n_heads + 2 n_kv_heads) * d_head] */
    /* Output: Q and K before RoPE, [n][(n_heads + n_kv_heads) * d_head], or NULL. */
    void *pre;
    /* Output: GPU time in ns (%globaltimer) when the preceding kernels have ended. May be NULL. */
    unsigned long long *began;
} kvd_gpu_qkv;
cudaError_t kvd_gpu_qkv_finish(const kvd_gpu_qkv *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                               cudaStream_t stream);

/* Input and output of kvd_gpu_latent_rows, for latent attention (model/pass/latent.h). */
typedef struct {
    kvd_dtype type;
    int n_heads, d_head, rope_dims, d_nope;
    const float *down; /* the latent, then the rotated key, of n tokens: [n][d_head] */
    const float *gain; /* gains of the latent's RMS norm: [d_head - rope_dims] */
    double eps;
    /* Queries [n][n_heads][d_nope + rope_dims]; RoPE rotates the last rope_dims dimensions. */
    const void *q_raw;
    void *qkv; /* queries, key and value: [n][(n_heads + 2) * d_head] */
} kvd_gpu_latents;
/*
 * Writes queries, keys and values of n tokens to a->qkv. In queries, only the first rope_dims
 * dimensions of each head are written. The other dimensions are computed elsewhere, by a product
 * with W_UK, the matrix that maps them to the latent.
 */
cudaError_t kvd_gpu_latent_rows(const kvd_gpu_latents *a, size_t n, cudaStream_t stream);

/*
 * Applies the activation function to the sum of `in` and bias, and stores the result in y [n][ffn].
 * For activations with a gate, `in` is [n][2 ffn] (the gate, then the up projection), else
 * [n][ffn]. bias has the length of a row of `in`, or is NULL.
 */
cudaError_t kvd_gpu_activate(kvd_activation kind, kvd_dtype type, const void *in, const float *bias,
                             size_t n, size_t ffn, void *y, cudaStream_t stream);

/* Parameters of the attention scores of a block of queries. A unit is one head of one sequence. */
typedef struct {
    float scale, softcap; /* softcap 0: none */
    const float *sinks;   /* logits of the attention sinks: [n_heads], or NULL */
    /* Unit i belongs to head (first + i) % n_heads. */
    size_t first, n_heads;
} kvd_gpu_scores;

/*
 * Computes the softmax of scores. `products` [units][rows][ld] holds q . k in float32; a unit is
 * one head of one sequence. Row i of a unit is query first + i, which sees keys max(0, first + i -
 * window + 1) .. first + i. If window is 0, it sees all keys from 0 on. The other columns below
 * n_keys become 0.
 *
 * prob has `type` and the layout of `products`; with KVD_F32 it may be `products`.
 */
cudaError_t kvd_gpu_softmax(kvd_dtype type, float *products, size_t units, size_t rows, size_t ld,
                            size_t first, size_t n_keys, size_t window,
                            const kvd_gpu_scores *scores, void *prob, cudaStream_t stream);

/*
 * Computes x [n] = softcap * tanh(x / softcap). Values that are not finite become NaN, so that
 * later checks find them.
 */
cudaError_t kvd_gpu_softcap(float *x, size_t n, float softcap, cudaStream_t stream);

/*
 * Chooses the routed experts of n tokens (model/pass/layer.h).
 *
 *   in   logit   [n][n_experts]     the router's logits; overwritten if experts form groups
 *        bias    [n_experts]        added to the logits, or NULL
 *   out  expert  [n][n_chosen]      experts of each token, best first
 *        factor  [n][n_chosen]      factors on the outputs of these experts
 *        count   [n_experts]        tokens of each expert
 *        row     [n * n_chosen]     tokens of expert 0 in ascending order, then of expert 1, ...
 *        weight  [n * n_chosen]     for each element of `row`, the factor on the expert's output
 */
typedef struct {
    size_t n, n_experts, n_chosen;
    int add_up; /* 1 if the factors of a token are divided by their sum */
    const float *bias;
    /*
     * Number of groups of experts (0: none), and number of groups from which a token's experts
     * come.
     */
    size_t groups, groups_chosen;
    /* 1 if scores are sigmoids of the logits, 0 if they are the softmax. */
    int sigmoid;
    double scale; /* with groups: factor on all router weights */
    /* With groups: bias [n_experts] that is added to the scores only to choose experts, or NULL. */
    const float *bias_choice;
    float *logit, *factor, *weight;
    uint32_t *expert, *count, *row;
} kvd_gpu_routes;
cudaError_t kvd_gpu_route(const kvd_gpu_routes *r, cudaStream_t stream);

/*
 * Computes the routed experts of a batch without copying the routing to the host, so that a CUDA
 * graph can contain the computation. Only the weights of the chosen experts are read, once for
 * every group of tokens. Products have bf16 inputs and float32 sums.
 *
 * The tokens of an expert are divided into groups. A group has up to KVD_MANY_TOKENS tokens if the
 * GPU has compute capability 9 and an expert has more than KVD_FEW_TOKENS tokens on average, else
 * up to KVD_FEW_TOKENS. A pair is one token with one of its experts; pairs are numbered in the
 * order of the groups.
 */
enum {
    KVD_FEW_TOKENS = 32,
    KVD_MANY_TOKENS = 128,
    KVD_FEW_EXPERTS = 1024 /* largest number of experts of a layer */
};
typedef struct {
    /*
     * A group of tokens of one expert: number of the expert, and the (token, expert) pairs first ..
     * first + n - 1.
     */
    uint32_t expert, first, n;
} kvd_gpu_expert_group;
typedef struct {
    /*
     * Input and scratch arrays of the routing, as kvd_gpu_route uses them, except that `count` and
     * `weight` are not used. row[i] is the token of (token, expert) pair i.
     */
    kvd_gpu_routes routes;
    const kvd_gpu_expert *expert; /* device [n_experts] */
    int sms;                      /* multiprocessors of the device */
    bool overlaps; /* true on compute capability 9: launches overlap the preceding kernel */
    /* d_model, and hidden units of an expert on this GPU: multiples of 8. */
    size_t d, ffn;
    float alpha, limit; /* parameters of kvd_gpu_swiglu_clamped; limit 0: SwiGLU */
    /*
     * True on the first of several GPUs: the outputs are added to y, and so are the biases of the
     * down matrices. False: the outputs overwrite y.
     */
    bool first;
    const void *x;    /* input, bf16 [n][d] */
    const float *add; /* [d], or NULL: is also added to every row of y */
    float *y;         /* [n][d]: receives the experts' weighted outputs */
    /*
     * Scratch memory: groups of tokens of one expert, [kvd_gpu_few_groups], and their number [1].
     */
    kvd_gpu_expert_group *group;
    uint32_t *n_groups;
    uint32_t group_tokens; /* most tokens of a group; set by kvd_gpu_few_experts_add */
    /* scratch memory: the number of the pair (token, its j-th expert), [n][n_chosen] */
    uint32_t *place;
    void *hidden; /* scratch: bf16 [n * n_chosen][ffn] */
    float *out;   /* scratch memory: outputs of the experts, [n * n_chosen][d] */
} kvd_gpu_few_experts;
/*
 * Returns the largest number of groups (of tokens of one expert) into which n tokens can be
 * divided.
 */
size_t kvd_gpu_few_groups(size_t n, size_t n_chosen, size_t n_experts);
/*
 * Chooses the experts from the router's product routes.logit, and adds their weighted outputs to y.
 * Equal batches give equal bits.
 */
cudaError_t kvd_gpu_few_experts_add(const kvd_gpu_few_experts *a, cudaStream_t stream);
/*
 * Computes `hidden` and `out` of *a on compute capability 9. Groups have up to KVD_MANY_TOKENS
 * tokens, and there are at most `most_groups` groups. Called by kvd_gpu_few_experts_add.
 */
cudaError_t kvd_gpu_many_products(const kvd_gpu_few_experts *a, size_t most_groups,
                                  cudaStream_t stream);

/* Copies the rows of x with the indices `row` [n] to y [n][d]. */
cudaError_t kvd_gpu_gather(kvd_dtype type, const void *x, const uint32_t *row, size_t n, size_t d,
                           void *y, cudaStream_t stream);

/*
 * Adds weight[i] * (y[i] + bias) to row row[i] of x, for the n rows of y [n][d]. The indices in
 * `row` must differ. bias [d] may be NULL. If `row` is NULL, row i of y is added to row i of x. If
 * `weight` is NULL, all weights are 1.
 */
cudaError_t kvd_gpu_scatter(const float *y, const float *bias, const uint32_t *row,
                            const float *weight, size_t n, size_t d, float *x, cudaStream_t stream);

/* Computes factor [n] = sigmoid(x [n][d] . w [d]), the factor on the shared expert's output. */
cudaError_t kvd_gpu_gate(const float *x, const float *w, size_t n, size_t d, float *factor,
                         cudaStream_t stream);

/*
 * Computes y [n][ffn] = g sigmoid(alpha g) (1 + u), where g and u are the first and second half of
 * `in` [n][2 ffn] plus bias [2 ffn] (or NULL), g clamped to at most `limit`, and u to -limit ..
 * limit, as in kvd_swiglu_clamped.
 */
cudaError_t kvd_gpu_swiglu_clamped(kvd_dtype type, const void *in, const float *bias, size_t n,
                                   size_t ffn, float alpha, float limit, void *y,
                                   cudaStream_t stream);

/* Converts n elements to to_type (KVD_F32, KVD_F16, KVD_BF16), rounded to nearest. */
cudaError_t kvd_gpu_convert(kvd_dtype from_type, const void *from, kvd_dtype to_type, void *to,
                            size_t n, cudaStream_t stream);

/* Records the first row of x [n][d] that is not finite in *bad, with the check number `stage`. */
cudaError_t kvd_gpu_check(const float *x, size_t n, size_t d, unsigned stage, kvd_gpu_bad *bad,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
