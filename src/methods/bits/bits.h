/* Interface of the quantisation methods. The table of all methods is in method.c. */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* K or V of some tokens of one sequence, in one KV head of one layer, coded together. */
typedef struct {
    kvd_side side;
    int layer, kv_head; /* kv_head is 0 for a method with all_heads */
    /*
     * `n` is the number of tokens. `d` is the number of dimensions stored per token: n_kv_heads *
     * d_head if kvd_bits_method.all_heads is set.
     */
    size_t n, d;
    const float *x; /* [n][d] numbers to code */
    /*
     * [n][d_model] Inputs of the layer, rounded to the data type of the cache. NULL unless the
     * method sets KVD_NEEDS_INPUT.
     */
    const float *input;
    const uint8_t *level;     /* [n] KVD_LEVEL_LOW or KVD_LEVEL_HIGH */
    const uint32_t *position; /* [n] position of each token in its sequence */
    /*
     * [n] Sum of the attention probabilities that each token has received, over all query heads.
     * Valid only if the method sets KVD_NEEDS_PROBABILITIES.
     */
    const double *mass;
    const double *seen; /* [n] number of probabilities summed in `mass` */
    /* [d] Factors by which key channels are multiplied (kvd_bits_method.balances), or NULL. */
    const float *balance;
    /*
     * State of the entropy coder [kvd_bits_method.states], 0 before the first block. A method that
     * continues its stream of codes in the next block writes its new state here. NULL: every block
     * is a stream of its own.
     */
    uint32_t *state;
    bool prompt; /* true: the block holds all coded tokens of a prompt */
} kvd_bits_block;

typedef struct {
    double payload;
    double side; /* bits of scales, zero points, tables, indices, outliers */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    kvd_method_info info; /* must be the first member */
    /*
     * Name of a parameter whose default is not 0 but 1 if the spectrum has squared gradients and no
     * method removes dimensions. NULL: no such parameter.
     */
    const char *fisher_key;
    /*
     * True if the method can be opened without calibration when setup.drawn is set (timing with
     * random weights).
     */
    bool drawn;
    /* True if the method codes keys before RoPE. RoPE is applied when keys are read. */
    bool keys_before_rope;
    /*
     * Returns true if tokens at KVD_LEVEL_LOW take fewer bits than others with these parameters.
     * NULL: all tokens are coded alike.
     */
    bool (*two_levels)(const kvd_parameter_values *v);
    /*
     * Name of the parameter that holds the number of first tokens of a sequence that are stored
     * exactly. NULL: the method codes every token of a block.
     */
    const char *exact_key;
    /* Names of the parameters that apply to tokens at KVD_LEVEL_LOW, then NULL. */
    const char *low_key[4];
    /*
     * True if a block holds all KV heads of the layer next to each other. Such a method cannot be
     * combined with methods of other axes. The function `code` is called with the same block for
     * every KV head, so the code of a token may depend only on the numbers in the block.
     * kvd_bits_count has the bits of all KV heads.
     */
    bool all_heads;
    /*
     * True if a block can only be decoded from its first token on. Such a method cannot be combined
     * with methods that drop tokens during decoding.
     */
    bool stream;
    /* Returns the number of elements of kvd_bits_block.state. NULL: 1. */
    size_t (*states)(const void *self);
    bool draws; /* true: `open` draws random numbers from setup.seed */
    /*
     * Returns true if the method needs calibration activations with these parameters although
     * info.needs does not include them. NULL: never.
     */
    bool (*calibrated)(const kvd_parameter_values *v);
    /*
     * Sets `*window` and `*block`. Tokens are coded in whole blocks of `block` tokens, and at least
     * the newest `window` of m tokens are not coded: the first (m - window) / block * block are.
     * The later tokens stay exact. All coded tokens of a prompt come in one call of `code`. If
     * NULL, `*window` is 0 and `*block` is 1.
     */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Returns true if each key channel is multiplied by sqrt(max |q| / max |k|), where the maxima
     * are over the tokens of the prompt (MiKV's balancer). The factors are stored once per sequence
     * and take 16 bits per channel. Must return false if `keys_before_rope` is set or a method that
     * removes dimensions is used. NULL: never.
     */
    bool (*balances)(const kvd_parameter_values *v);
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Codes a block of finite numbers. Writes the decoded numbers to decoded [n][d] and the size of
     * the code to `*count`. Must handle constant vectors, zeros, and blocks smaller than a group
     * with a common scale. Several threads may call it with the same `self`.
     */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot, kvd_bits_fp8, kvd_bits_mxfp4,
    kvd_bits_nvfp4, kvd_bits_turboquant, kvd_bits_cachegen, kvd_bits_kvtc, kvd_bits_comet,
    kvd_bits_vidkv, kvd_bits_xquant, kvd_bits_waterfill;

/*
 * Matrices of method xquant for K or V of one layer with inputs X. The cache stores Y = X down^T. V
 * is restored as Y up^T + `bias`. K is restored in the same way, followed by the RMS norm of K if
 * the model has one. The open method owns the arrays.
 */
typedef struct {
    const float *down; /* [rank][d_model]; NULL: Y is X, and rank is d_model */
    const float *up;   /* [n_kv_heads * d_head][rank] */
    size_t rank;
    const float *bias; /* [n_kv_heads * d_head], or NULL */
    const float *norm; /* gains of the norm of K, or NULL */
} kvd_xquant_matrices;
kvd_xquant_matrices kvd_xquant_matrices_of(const void *self, int layer, kvd_side side);

/* Group of principal components that method kvtc chose, for tests and reports. */
typedef struct {
    uint16_t first, size; /* index of the first component, and number of components */
    uint8_t bits;         /* bits per component; 0 if the group is not stored */
} kvd_kvtc_group;

/*
 * Sets `*groups` to the groups of K or V of one layer, in ascending order of components, and
 * returns their number. The open method owns `*groups`. The groups contain all n_kv_heads * d_head
 * components.
 */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);

/*
 * Set of numbers that method fp8 or nvfp4 divides by a common scale before coding: all numbers (the
 * scale is then 1), the numbers of one layer, or those of one KV head of one layer.
 */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* Calibrated scales. Must be the first member of the private data of fp8 and nvfp4. */
typedef struct {
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/*
 * Sets the scales so that the largest magnitude among the first `rows` calibration tokens, divided
 * by the scale, is `largest`. Keys and values have separate scales. If all numbers that share a
 * scale are 0, the scale is 1. With KVD_SCALE_ONE, `*s` is not read. The caller must call
 * kvd_scales_release, after a failure too.
 */
int kvd_scales_make(kvd_scales *scales, kvd_scale_of of, const kvd_method_setup *s, size_t rows,
                    float largest, kvd_err *err);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);
void kvd_scales_release(kvd_scales *scales);

/*
 * Implementation on the GPU of kivi, kvquant, fp8, mxfp4, nvfp4, turboquant, comet, allot, gear,
 * hetero, rotatekv, zipcache and vidkv. The address is NULL in a build without CUDA.
 */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;
/*
 * GPU code of waterfill and kvtc, and of cachegen. The addresses are NULL in a build without CUDA.
 */
extern const struct kvd_gpu_kind kvd_gpu_streams KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_cachegen KVD_IF_LINKED;
/* GPU code of xquant. The address is NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_xquant KVD_IF_LINKED;

#endif
