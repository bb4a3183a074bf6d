/*
 * The bits axis: how the remaining numbers are coded. A method codes blocks of rows, writes the
 * numbers that a later read finds, and counts the bits of the code, including side information
 * (scales, zero points, tables, indices, outliers). One file per method; the registry is in
 * method.c.
 */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* Rows of K or V of one KV head of one layer of one sequence that are coded together. */
typedef struct {
    kvd_side side;
    int layer, kv_head; /* kv_head is 0 with all_heads */
    /*
     * Number of tokens and of dimensions after the dims axis; with all_heads d is n_kv_heads *
     * d_head.
     */
    size_t n, d;
    const float *x; /* [n][d] */
    /*
     * [n][d_model] inputs of the layer in the type of the cache, if the method needs them
     * (KVD_NEEDS_INPUT); else NULL
     */
    const float *input;
    const uint8_t *level;     /* [n] KVD_LEVEL_LOW or _HIGH */
    const uint32_t *position; /* [n] positions of the tokens in their sequence */
    /*
     * [n] sum of the attention probabilities received so far, over all query heads, if the method
     * needs them.
     */
    const double *mass;
    const double *seen; /* [n] number of probabilities in `mass` */
    /* [d] factors of channels of keys, for methods that balance, after a prompt; else NULL */
    const float *balance;
    /*
     * State of the entropy coder at the end of the stream of this head and side, 0 before its first
     * block. A method with one stream for all blocks updates it. NULL: the block is the stream.
     */
    uint32_t *state;
    bool prompt; /* the block holds all tokens of a prompt that are coded */
} kvd_bits_block;

/* Size of a code in bits. */
typedef struct {
    double payload; /* codes */
    double side;    /* scales, zero points, tables, indices, outliers */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    kvd_method_info info; /* must be the first member */
    /*
     * Key that is set to 1, unless the user gives it, if squared gradients are there and the dims
     * axis is empty. NULL: none.
     */
    const char *fisher_key;
    /*
     * The method can be opened without calibration, on tables of normally distributed numbers, if
     * setup.drawn is set.
     */
    bool drawn;
    bool keys_before_rope; /* keys are coded before RoPE, which is applied when they are read */
    /* Entries at the low level have other codes than those at the high level. */
    bool two_levels;
    const char *low_key[4]; /* keys of entries at the low level; ends with NULL */
    /*
     * A block holds the rows of all KV heads of the layer side by side, and its bits are those of
     * all heads. Then no other axis may be filled, and the code of a token may depend on the rows
     * of its block only: every head codes the block and takes its part.
     */
    bool all_heads;
    /*
     * A block is one stream of bits that is read from its beginning, so an entry that is coded
     * cannot be dropped. The method cannot be combined with methods that drop entries at steps.
     */
    bool stream;
    bool draws; /* results depend on random numbers that `open` draws from setup.seed */
    /*
     * Returns true if the method, with these values of its keys, needs activations of calibration
     * text, although info.needs does not say so. NULL: never.
     */
    bool (*calibrated)(const kvd_parameter_values *v);
    /*
     * Sets *window and *block: of m tokens of a side the first (m - window) / block * block are
     * coded, block by block as they fill up; the others stay exact in the type of the cache. A
     * prompt is coded in one call up to that end. NULL: window 0 and block 1.
     */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Returns true if keys get a factor per channel, sqrt(max |q| / max |k|) over the queries of
     * all query heads and the keys of the prompt (MiKV's balancer), which takes 16 bits per channel
     * once. Not allowed with methods of the dims axis or codes before RoPE. NULL: never.
     */
    bool (*balances)(const kvd_parameter_values *v);
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Codes a block: writes the numbers that a read finds to decoded [n][d], and the size of the
     * code to *count. Handles constant rows, zeros, and n smaller than a group. Thread-safe on one
     * self. All numbers are finite.
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
