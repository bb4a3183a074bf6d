/*
 * The bits axis: codes for the numbers that the other axes keep. A method codes blocks of rows,
 * writes the numbers that a later read finds, and counts the bits of the code, including side
 * information (scales, zero points, tables, indices, outliers). One file per method; the registry
 * is in method.c.
 */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* Block: rows of K or V of one KV head of one layer of one sequence that are coded together. */
typedef struct {
    kvd_side side;
    int layer, kv_head; /* kv_head is 0 with all_heads */
    /*
     * Number of tokens, and of dimensions after the dims axis. With all_heads d is n_kv_heads *
     * d_head.
     */
    size_t n, d;
    const float *x; /* [n][d] */
    /*
     * Inputs of the layer [n][d_model] in the data type of the cache, if the method needs them
     * (KVD_NEEDS_INPUT); else NULL.
     */
    const float *input;
    const uint8_t *level;     /* [n] KVD_LEVEL_LOW or _HIGH */
    const uint32_t *position; /* [n] positions of the tokens in their sequence */
    /*
     * [n] sum of the attention probabilities that each token has received, over all query heads, if
     * the method needs it.
     */
    const double *mass;
    const double *seen; /* [n] number of probabilities in `mass` */
    /* [d] scale factors of key channels after a prompt, for methods that balance; else NULL. */
    const float *balance;
    /*
     * State of the entropy coder at the end of the stream of this head and side; 0 before its first
     * block. A method with one stream for all blocks updates it. NULL: every block is its own
     * stream.
     */
    uint32_t *state;
    bool prompt; /* true: the block holds all coded tokens of a prompt */
} kvd_bits_block;

/* Size of the code of a block in bits. */
typedef struct {
    double payload; /* codes */
    double side;    /* scales, zero points, tables, indices, outliers */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    kvd_method_info info; /* must be the first member */
    /*
     * Parameter that is set to 1, unless the user gives it, if squared gradients are available and
     * the dims axis is empty. NULL: none.
     */
    const char *fisher_key;
    /*
     * True if the method can be opened without calibration when setup.drawn is set; it then uses
     * tables for normally distributed numbers.
     */
    bool drawn;
    bool keys_before_rope; /* keys are coded before RoPE, which is applied when they are read */
    /* True if entries at the low level have other codes than those at the high level. */
    bool two_levels;
    const char *low_key[4]; /* parameters for entries at the low level; ends with NULL */
    /*
     * True if a block holds the rows of all KV heads of the layer side by side, and its bits are
     * those of all heads. Then no other axis may be filled, and the code of a token may depend only
     * on the rows of its block: every head codes the block and takes its part.
     */
    bool all_heads;
    /*
     * True if a block is one stream of bits that must be read from its beginning, so a coded entry
     * cannot be dropped. The method cannot be combined with methods that drop entries at steps.
     */
    bool stream;
    bool draws; /* results depend on random numbers that `open` draws from setup.seed */
    /*
     * Returns true if the method, with these parameters, needs activations of calibration text
     * although info.needs does not say so. NULL: never.
     */
    bool (*calibrated)(const kvd_parameter_values *v);
    /*
     * Sets *window and *block, which tell how many tokens are coded: of m tokens the first (m -
     * window) / block * block, block by block as they fill up. The others stay exact in the data
     * type of the cache. A prompt is coded in one call up to that end. NULL: window 0 and block 1.
     */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Returns true if key channels are scaled by factors sqrt(max |q| / max |k|), over the queries
     * of all query heads and the keys of the prompt (MiKV's balancer). The factors take 16 bits per
     * channel once. Not allowed with methods of the dims axis or codes before RoPE. NULL: never.
     */
    bool (*balances)(const kvd_parameter_values *v);
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Codes a block: writes the numbers that a read finds to decoded [n][d], and the size of the
     * code to *count. Must handle constant rows, zeros, and n smaller than a group. Thread-safe on
     * one self. All input numbers are finite.
     */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot, kvd_bits_fp8, kvd_bits_mxfp4,
    kvd_bits_nvfp4, kvd_bits_turboquant, kvd_bits_cachegen, kvd_bits_kvtc, kvd_bits_comet,
    kvd_bits_vidkv, kvd_bits_xquant, kvd_bits_waterfill;

/* GPU code of kivi, kvquant, fp8, mxfp4, nvfp4 and turboquant; NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;

#endif
