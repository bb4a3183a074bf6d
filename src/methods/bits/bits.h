/* Interface of the quantisation methods. Functions return nonzero and fill *err on failure. */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* K or V of some tokens of one KV head, quantised together. */
typedef struct {
    kvd_side side;
    int layer, kv_head;
    /* n: tokens. d: numbers per token, of one KV head or, if the method sets all_heads, of all. */
    size_t n, d;
    const float *x;
    /* Layer inputs [n][d_model] in the cache's data type; NULL unless KVD_NEEDS_INPUT is set. */
    const float *input;
    const uint8_t *level; /* [n] KVD_LEVEL_LOW or KVD_LEVEL_HIGH */
    const uint32_t *position;
    /* [n] Attention that each token received, if KVD_NEEDS_PROBABILITIES is set. */
    const double *mass;
    const double *seen;
    /* [d] Factors that multiply the key channels, or NULL. */
    const float *balance;
    /* State of the entropy coder, 0 at first. NULL if blocks share no state. */
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
    /* Name of a parameter whose default changes to 1 if squared gradients are given, or NULL. */
    const char *fisher_key;
    /* True if random numbers can replace the calibration data, for timing. */
    bool drawn;
    /* True if keys are quantised before RoPE. */
    bool keys_before_rope;
    /* Returns true if the parameters give tokens at low precision fewer bits than tokens at high
     * precision. NULL: all tokens have the same precision. */
    bool (*two_levels)(const kvd_parameter_values *v);
    /* Name of the parameter with the number of first tokens that are stored exactly, or NULL. */
    const char *exact_key;
    /* Names of the parameters that apply to tokens at low precision, then NULL. */
    const char *low_key[4];
    /* True if all KV heads are quantised together. Tokens and dimensions cannot be dropped then. */
    bool all_heads;
    /* True if tokens can only be decompressed from the first on, so that none may be dropped. */
    bool stream;
    /* Returns the number of elements of kvd_bits_block.state. If NULL, there is one element. */
    size_t (*states)(const void *self);
    /* Returns true if the parameters require more calibration data than info.needs. NULL: never. */
    bool (*calibrated)(const kvd_parameter_values *v);
    /* Sets *window and *block: of m tokens, the first (m - window) / block * block are quantised.
     * NULL: window 0, block 1. */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /* Returns true if key channels are scaled by sqrt(max |q| / max |k|). NULL: never. */
    bool (*balances)(const kvd_parameter_values *v);
    /* Fails for parameters that a method without `open` cannot use. May be NULL. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /* Opens the method, with private data in *self. NULL: the parameters are the private data. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /* Quantises a block of finite numbers. `decoded` [n][d] gets the decoded numbers, *count the
     * bits. Must accept constant vectors and incomplete groups. Thread-safe. */
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

/* Quantises x [n][d]. A scale is shared by `group` channels of a token or, if by_channel, by tokens
 * of a channel. y may be x. Adds the bits to *count. */
void kvd_bits_code_groups(const float *x, size_t n, size_t d, bool by_channel, size_t group,
                          int bits, float *y, kvd_bits_count *count);
/* Returns the bits that kvd_bits_code_groups takes to store n tokens of d numbers. */
kvd_bits_count kvd_bits_of_groups(size_t n, size_t d, bool by_channel, size_t group, int bits);

/* kvd_bits_take_rows copies tokens from position `sink` on, minus mean [d], to rows [n][d] and
 * returns n. Earlier tokens are stored exactly. kvd_bits_give_rows writes rows + mean to
 * `decoded`. */
size_t kvd_bits_take_rows(const kvd_bits_block *b, size_t sink, const float *mean, float *decoded,
                          float *rows, uint32_t *position, kvd_bits_count *count);
void kvd_bits_give_rows(const kvd_bits_block *b, size_t sink, const float *mean, const float *rows,
                        float *decoded);

/* Matrices of method xquant for K or V of one layer. The cache stores layer inputs times `down`
 * transposed. V is restored by `up`, K by `up` and an RMS norm. */
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

/* Returns the number of groups of principal components in one layer. The method owns *groups. */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);
/* Returns a matrix [wide][wide] with the principal components of K or V in columns. Sets *mean
 * [wide] to the mean vector, which is subtracted from a token before the projection. */
const float *kvd_kvtc_basis(const void *self, int layer, kvd_side side, const float **mean);
/* Adds to *bits the DEFLATE-compressed size of n tokens and their scales. `packed` has [n][size *
 * bits / 8] bytes of each group, lowest bits first, and room for n_groups more bytes. */
int kvd_kvtc_count(const void *self, int layer, kvd_side side, uint8_t *packed, size_t n,
                   double *bits, kvd_err *err);
/* Compresses n bytes as a zlib stream (RFC 1950) into `to` of `room` bytes, of which
 * kvd_kvtc_deflate_room(n) suffice. Returns the number of bytes written, or 0 on failure. */
size_t kvd_kvtc_deflate(const uint8_t *from, size_t n, uint8_t *to, size_t room);
size_t kvd_kvtc_deflate_room(size_t n);

/* Numbers that share a calibrated scale in fp8 and nvfp4: all, a layer's, or a KV head's. */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* Private data of methods fp8 and nvfp4, created by kvd_scales_open. */
typedef struct {
    const kvd_parameter_values *v;
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/* Opens a method with calibrated scales: *self becomes a kvd_scales. A scale is the largest
 * calibration magnitude / `largest`, for K and for V. Parameter number `key` says which numbers
 * share a scale (kvd_scale_of); parameter `key` + 1 is the number of calibration tokens. */
int kvd_scales_open(const kvd_parameter_values *v, int key, const kvd_method_setup *s,
                    float largest, void **self, kvd_err *err);
void kvd_scales_close(void *self);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);

/* GPU code of methods with packed pages (kivi, kvquant, fp8). Its address is NULL without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;
/* GPU code of waterfill, kvtc and cachegen. The addresses are NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_streams KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_cachegen KVD_IF_LINKED;
/* GPU code that lets the CPU quantise after each iteration. Pages hold decoded bf16 numbers. */
extern const struct kvd_gpu_kind kvd_gpu_host_codes KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_xquant KVD_IF_LINKED;

#endif
