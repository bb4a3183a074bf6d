/* Interface of the quantisation methods. Functions return nonzero and fill *err on failure. */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* Block: K or V of some tokens that are quantised together, of one KV head, layer and sequence. */
typedef struct {
    kvd_side side;
    int layer, kv_head;
    /* Number of tokens, and numbers stored per token (n_kv_heads * d_head with `all_heads`). */
    size_t n, d;
    const float *x;
    /* Layer inputs [n][d_model] in the cache's data type; NULL unless KVD_NEEDS_INPUT is set. */
    const float *input;
    const uint8_t *level; /* [n] KVD_LEVEL_LOW or KVD_LEVEL_HIGH */
    const uint32_t *position;
    /* Attention that each token received [n], over query heads, if KVD_NEEDS_PROBABILITIES. */
    const double *mass;
    const double *seen;
    /* Factors that multiply the key channels [d] (kvd_bits_method.balances), or NULL. */
    const float *balance;
    /* [kvd_bits_method.states] entropy coder's state, 0 at first; NULL: blocks share no state */
    uint32_t *state;
    bool prompt;
} kvd_bits_block;

typedef struct {
    double payload;
    double side; /* bits of scales, zero points, tables, indices, outliers */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    kvd_method_info info;
    /* Key of a parameter whose default is 1, not 0, if squared gradients are given; or NULL. */
    const char *fisher_key;
    /* True if random numbers can replace the calibration data (setup.drawn, for timing). */
    bool drawn;
    /* True if keys are quantised before RoPE. */
    bool keys_before_rope;
    /* Returns true if tokens at low precision (KVD_LEVEL_LOW) take fewer bits. NULL: never. */
    bool (*two_levels)(const kvd_parameter_values *v);
    /* Key of the parameter with the number of first tokens that are stored exactly, or NULL. */
    const char *exact_key;
    /* Keys of the parameters that apply to tokens at low precision (KVD_LEVEL_LOW), then NULL. */
    const char *low_key[4];
    /*
     * True if the method quantises the numbers of all KV heads together. Methods that drop tokens,
     * dimensions or layers are then refused.
     */
    bool all_heads;
    /* True if decoding must start at the first token, so that no token may be dropped. */
    bool stream;
    /* Returns the number of elements of kvd_bits_block.state. NULL: 1. */
    size_t (*states)(const void *self);
    bool draws; /* true: `open` draws random numbers from setup.seed */
    /* Returns true if the parameters require more calibration data than info.needs. NULL: never. */
    bool (*calibrated)(const kvd_parameter_values *v);
    /*
     * Sets *window and *block: of m tokens, the first (m - window) / block * block are quantised.
     * NULL: window 0, block 1.
     */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Returns true if key channels are multiplied by sqrt(max |q| / max |k|) over the prompt
     * (MiKV's balancer). NULL: never.
     */
    bool (*balances)(const kvd_parameter_values *v);
    /* Fails for parameters that a method without `open` cannot use. May be NULL. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /* Opens the method, with private data in *self. NULL: the parameters are the private data. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Quantises a block of finite numbers. `decoded` [n][d] receives the decoded numbers, *count
     * the bits. Must handle constant vectors and incomplete groups. Thread-safe.
     */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot, kvd_bits_fp8, kvd_bits_mxfp4,
    kvd_bits_nvfp4, kvd_bits_turboquant, kvd_bits_cachegen, kvd_bits_kvtc, kvd_bits_comet,
    kvd_bits_vidkv, kvd_bits_xquant, kvd_bits_waterfill;

/* Opens a method and sets *self for `code`. The caller must call kvd_bits_close after success. */
int kvd_bits_open(const kvd_bits_method *m, const kvd_parameter_values *v,
                  const kvd_method_setup *s, void **self, kvd_err *err);
void kvd_bits_close(const kvd_bits_method *m, void *self);

/*
 * Quantises x [n][d] with kvd_quantise_group, `group` channels of a token or, if by_channel, tokens
 * of a channel per scale. y may be x. Adds the bits to *count.
 */
void kvd_bits_code_groups(const float *x, size_t n, size_t d, bool by_channel, size_t group,
                          int bits, float *y, kvd_bits_count *count);
/* Returns the bits that kvd_bits_code_groups adds. */
kvd_bits_count kvd_bits_of_groups(size_t n, size_t d, bool by_channel, size_t group, int bits);

/*
 * kvd_bits_take_rows stores tokens before position `sink` exactly in `decoded`, counts their bits,
 * and copies the others minus mean [d] to rows [n][d]. Returns n.
 * kvd_bits_give_rows writes rows + mean to `decoded`.
 */
size_t kvd_bits_take_rows(const kvd_bits_block *b, size_t sink, const float *mean, float *decoded,
                          float *rows, uint32_t *position, kvd_bits_count *count);
void kvd_bits_give_rows(const kvd_bits_block *b, size_t sink, const float *mean, const float *rows,
                        float *decoded);

/*
 * Matrices of xquant for K or V of one layer with inputs X. The cache stores Y = X down^T. V is
 * restored as Y up^T + bias, K as the RMS norm of this sum.
 */
typedef struct {
    const float *down; /* [rank][d_model]; NULL: Y is X, and rank is d_model */
    const float *up;   /* [n_kv_heads * d_head][rank] */
    size_t rank;
    const float *bias; /* [n_kv_heads * d_head], or NULL */
    const float *norm;
} kvd_xquant_matrices;
kvd_xquant_matrices kvd_xquant_matrices_of(const void *self, int layer, kvd_side side);

typedef struct {
    uint16_t first, size;
    uint8_t bits;
} kvd_kvtc_group;

/* Returns the number of component groups of K or V in one layer. The open method owns *groups. */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);
/* Returns a basis [wide][wide], component j in column j. *mean [wide]: subtract it first. */
const float *kvd_kvtc_basis(const void *self, int layer, kvd_side side, const float **mean);
/*
 * Adds to *bits the DEFLATE-compressed size of n tokens' codes. `packed` has the codes group by
 * group, [n][size * bits / 8] bytes each, lowest bits first, and room for n_groups more bytes.
 */
int kvd_kvtc_deflate(const void *self, int layer, kvd_side side, uint8_t *packed, size_t n,
                     double *bits, kvd_err *err);

/* Numbers that share a calibrated scale in fp8 and nvfp4: all, a layer's, or a KV head's. */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* Private data of the open methods fp8 and nvfp4. */
typedef struct {
    const kvd_parameter_values *v;
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/*
 * Serves `open`: *self becomes a kvd_scales. Parameter `key` is the kvd_scale_of, the next one the
 * number of calibration tokens. scale = (their largest magnitude) / `largest`, for K and for V.
 */
int kvd_scales_open(const kvd_parameter_values *v, int key, const kvd_method_setup *s,
                    float largest, void **self, kvd_err *err);
void kvd_scales_close(void *self);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);

/* GPU code of the packed methods (kivi, kvquant, fp8, ...). Address NULL without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;
/* GPU code of waterfill, kvtc and cachegen. Address NULL without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_streams KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_cachegen KVD_IF_LINKED;
/*
 * Text generation on a GPU: the CPU quantises rows after each iteration; pages hold decoded bf16.
 */
extern const struct kvd_gpu_kind kvd_gpu_host_codes KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_xquant KVD_IF_LINKED;

#endif
