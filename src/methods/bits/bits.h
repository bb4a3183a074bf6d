/* Interface of the quantisation methods for the KV cache. Functions return nonzero and fill *err on
 * failure. */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* K or V of some tokens of one KV head, which a method quantises together. */
typedef struct {
    kvd_side side;
    int layer, kv_head;
    /* n: number of tokens. d: number of elements per token, in one KV head or, if the method sets
     * all_heads, in all KV heads. */
    size_t n, d;
    const float *x;
    /* Layer inputs [n][d_model] of the tokens, in the cache's data type. NULL unless the method's
     * info.needs has KVD_NEEDS_INPUT. */
    const float *input;
    const uint8_t *level; /* [n] KVD_LEVEL_LOW or KVD_LEVEL_HIGH */
    const uint32_t *position;
    /* [n] Attention that each token received. Only set if the method's info.needs has
     * KVD_NEEDS_PROBABILITIES. */
    const double *mass;
    const double *seen;
    /* [d] Factor by which each key channel is multiplied before quantisation. NULL: no factors. */
    const float *balance;
    /* State of the entropy coder, which the method carries from block to block. It is 0 in the
     * first block. NULL if blocks share no state. */
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
    /* Name of a parameter whose default is 1 if the user gives squared gradients (--fisher). NULL:
     * there is no such parameter. */
    const char *fisher_key;
    /* True if random numbers can take the place of calibration data in timing runs. */
    bool drawn;
    /* True if keys are quantised before RoPE, which is then applied to decoded keys. */
    bool keys_before_rope;
    /* Returns true if the parameters give less important tokens (level KVD_LEVEL_LOW) fewer bits
     * than important ones. NULL: all tokens have equally many bits. */
    bool (*two_levels)(const kvd_parameter_values *v);
    /* Name of the parameter that sets how many of a request's first tokens are not quantised. NULL:
     * there is no such parameter. */
    const char *exact_key;
    /* Names of the parameters that apply only to less important tokens (level KVD_LEVEL_LOW). The
     * last element is NULL. */
    const char *low_key[4];
    /* True if all KV heads are quantised together. If so, the method cannot be combined with
     * methods that drop tokens or dimensions. */
    bool all_heads;
    /* True if decompression must begin with the first token. If so, the method cannot be combined
     * with methods that drop tokens. */
    bool stream;
    /* Returns the number of elements of kvd_bits_block.state. NULL: there is one element. */
    size_t (*states)(const void *self);
    /* Returns true if the method requires calibration data with these parameters. NULL: info.needs
     * tells if calibration data are required. */
    bool (*calibrated)(const kvd_parameter_values *v);
    /* Sets *window and *block. The newest `window` tokens stay exact; older tokens are quantised in
     * complete blocks of `block` tokens. NULL: all tokens are quantised. */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /* Returns true if each key channel is scaled by sqrt(max |q| / max |k|) before quantisation.
     * NULL: never. */
    bool (*balances)(const kvd_parameter_values *v);
    /* Fails if the parameters are invalid. Not called for methods that define `open`, which must
     * check them itself. NULL: never fails. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /* Fails if the method cannot run on the model or with the given files. Does no calibration.
     * NULL: never fails. */
    int (*fits)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err);
    /* Prepares the method for a run and sets *self to its private data, such as scales. NULL:
     * nothing needs preparing, and *self is set to the parameters. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /* Quantises a block of finite numbers. Writes the decoded numbers to decoded [n][d], and the
     * number of bits to *count. Must accept constant vectors and incomplete groups. Must be
     * thread-safe. */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot, kvd_bits_fp8, kvd_bits_mxfp4,
    kvd_bits_nvfp4, kvd_bits_turboquant, kvd_bits_cachegen, kvd_bits_kvtc, kvd_bits_comet,
    kvd_bits_vidkv, kvd_bits_xquant, kvd_bits_waterfill;

/* Fails if kvd_bits_open would fail, apart from failures of the calibration itself. */
int kvd_bits_check(const kvd_bits_method *m, const kvd_parameter_values *v,
                   const kvd_method_setup *s, kvd_err *err);
/* Prepares method m for a run and sets *self, the private data for m->code. After success the
 * caller must call kvd_bits_close. */
int kvd_bits_open(const kvd_bits_method *m, const kvd_parameter_values *v,
                  const kvd_method_setup *s, void **self, kvd_err *err);
void kvd_bits_close(const kvd_bits_method *m, void *self);

/* Quantises x [n][d] and writes the decoded numbers to y, which may be x. `group` channels of a
 * token or, if by_channel, `group` tokens of a channel share a scale. Adds the number of bits to
 * *count. */
void kvd_bits_code_groups(const float *x, size_t n, size_t d, bool by_channel, size_t group,
                          int bits, float *y, kvd_bits_count *count);
/* Returns the number of bits in which kvd_bits_code_groups stores n tokens of d numbers. */
kvd_bits_count kvd_bits_of_groups(size_t n, size_t d, bool by_channel, size_t group, int bits);

/* Copies tokens sink, sink + 1 and so on to rows [n][d], minus mean [d], and returns n. Copies
 * earlier tokens, which are stored exactly, to `decoded`. */
size_t kvd_bits_take_rows(const kvd_bits_block *b, size_t sink, const float *mean, float *decoded,
                          float *rows, uint32_t *position, kvd_bits_count *count);
/* Writes rows [n][d] plus mean [d] to `decoded`, from token `sink` on. */
void kvd_bits_give_rows(const kvd_bits_block *b, size_t sink, const float *mean, const float *rows,
                        float *decoded);

/* Matrices of method xquant for K or V of one layer. The cache stores Y = X down^T, where X is the
 * layer's inputs. K or V is Y up^T + bias; an RMS norm may follow for K. */
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

/* Returns the number of groups into which method kvtc divides the principal components of K or V of
 * one layer. Sets *groups, which the method owns. */
size_t kvd_kvtc_groups(const void *self, int layer, kvd_side side, const kvd_kvtc_group **groups);
/* Returns a matrix [wide][wide] whose columns are the principal components of K or V (method kvtc).
 * Sets *mean [wide] to the vector that is subtracted from a token before the projection. */
const float *kvd_kvtc_basis(const void *self, int layer, kvd_side side, const float **mean);
/* Adds the DEFLATE-compressed size of n tokens and their scales, in bits, to *bits.
 *
 * - packed: codes of the principal components: for each group an array [n][size * bits / 8] of
 *   bytes; after all these arrays, n_groups bytes of free space */
int kvd_kvtc_count(const void *self, int layer, kvd_side side, uint8_t *packed, size_t n,
                   double *bits, kvd_err *err);
/* Compresses n bytes to a zlib stream (RFC 1950). The buffer `to` has `room` bytes;
 * kvd_kvtc_deflate_room(n) bytes always suffice. Returns the number of bytes written, or 0 on
 * failure. */
size_t kvd_kvtc_deflate(const uint8_t *from, size_t n, uint8_t *to, size_t room);
size_t kvd_kvtc_deflate_room(size_t n);

/* Elements of K or V that share one calibrated scale in methods fp8 and nvfp4: all elements of the
 * model, of a layer, or of a KV head. */
typedef enum { KVD_SCALE_ONE, KVD_SCALE_LAYER, KVD_SCALE_HEAD, KVD_N_SCALES } kvd_scale_of;

/* Private data of methods fp8 and nvfp4, which kvd_scales_open creates. */
typedef struct {
    const kvd_parameter_values *v;
    size_t n_kv_heads;
    float *scale; /* [n_layers][n_kv_heads][KVD_N_SIDES]; NULL: every scale is 1 */
} kvd_scales;

/* Prepares method fp8 or nvfp4 for a run, and sets *self to its kvd_scales. A scale is the largest
 * magnitude in the calibration data divided by `largest`. v->value[key] is a kvd_scale_of.
 * v->value[key + 1] is the number of calibration tokens. */
int kvd_scales_open(const kvd_parameter_values *v, int key, const kvd_method_setup *s,
                    float largest, void **self, kvd_err *err);
void kvd_scales_close(void *self);
float kvd_scales_at(const kvd_scales *scales, kvd_side side, int layer, int kv_head);

/* GPU code of methods that store quantised pages, such as kivi, kvquant and fp8. Its address is
 * NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;
/* GPU code of methods waterfill and kvtc (kvd_gpu_streams), and of method cachegen
 * (kvd_gpu_cachegen). In a build without CUDA, the addresses of these variables are NULL. */
extern const struct kvd_gpu_kind kvd_gpu_streams KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_cachegen KVD_IF_LINKED;
/* GPU code of methods whose quantisation runs on the CPU, after each forward pass. Pages on the GPU
 * hold the decoded numbers in bf16. */
extern const struct kvd_gpu_kind kvd_gpu_host_codes KVD_IF_LINKED;
extern const struct kvd_gpu_kind kvd_gpu_xquant KVD_IF_LINKED;

#endif
