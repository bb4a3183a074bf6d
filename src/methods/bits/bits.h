/*
 * Methods of the bits axis: they code the numbers that the other axes keep with few bits. A method
 * codes blocks of token rows, writes the numbers that a later read of the cache gives, and counts
 * the bits of the code, including side information (scales, zero points, tables, indices,
 * outliers). Each method has its own file; the table of all methods is in method.c.
 */
#ifndef KVD_METHODS_BITS_BITS_H
#define KVD_METHODS_BITS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/*
 * Block of rows that are coded together: K or V of some tokens in one KV head of one layer of one
 * sequence.
 */
typedef struct {
    kvd_side side;
    int layer, kv_head; /* kv_head is 0 if the method has all_heads */
    /*
     * Number of tokens, and of dimensions that the dims axis keeps. If the method has all_heads, d
     * is n_kv_heads * d_head.
     */
    size_t n, d;
    const float *x; /* [n][d] numbers to be coded */
    /*
     * Inputs of the layer [n][d_model], rounded to the data type of the cache, if the method needs
     * them (KVD_NEEDS_INPUT); else NULL.
     */
    const float *input;
    const uint8_t *level;     /* [n] KVD_LEVEL_LOW or _HIGH of each token */
    const uint32_t *position; /* [n] positions of the tokens in their sequence */
    /*
     * [n] Sum of the attention probabilities that each token has received, over all query heads;
     * only if the method needs it.
     */
    const double *mass;
    const double *seen; /* [n] number of probabilities summed in `mass` */
    /*
     * [d] Factors that the method applies to key channels after a prompt (see `balances`); else
     * NULL.
     */
    const float *balance;
    /*
     * State of the entropy coder at the end of the stream of this head's K or V; 0 before the first
     * block. A method with one stream for all blocks updates it. NULL: every block is its own
     * stream.
     */
    uint32_t *state;
    bool prompt; /* true: the block holds all tokens of a prompt that are coded */
} kvd_bits_block;

/* Size of the code of a block in bits. */
typedef struct {
    double payload; /* bits of codes */
    double side;    /* bits of scales, zero points, tables, indices, outliers */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    kvd_method_info info; /* must be the first member */
    /*
     * Name of a parameter that is set to 1, unless the user gives it, if squared gradients are
     * available and the plan has no method that removes dimensions (methods/dims). NULL: no such
     * parameter.
     */
    const char *fisher_key;
    /*
     * True if the method can be opened without calibration when setup.drawn is set (timing with
     * random weights); it then uses tables for normally distributed numbers.
     */
    bool drawn;
    /* true: keys are coded before RoPE, which is applied when they are read. */
    bool keys_before_rope;
    /*
     * True if tokens at the low level (less important ones) are coded differently from those at the
     * high level.
     */
    bool two_levels;
    /* Names of parameters for less important (low) tokens; ends with NULL. */
    const char *low_key[4];
    /*
     * True if a block holds the rows of all KV heads of the layer next to each other, and its bits
     * are counted for all heads. No method of another axis may then be combined, and the code of a
     * token may depend only on the rows of its block: every head codes the whole block and takes
     * its part.
     */
    bool all_heads;
    /*
     * True if a block is one stream of bits that must be read from its beginning, so that no single
     * token can be dropped from it. The method cannot be combined with methods that drop tokens at
     * decode steps.
     */
    bool stream;
    bool draws; /* true: results depend on random numbers that `open` draws from setup.seed */
    /*
     * Returns true if the method, with these parameters, needs activations of calibration text
     * although info.needs does not include them. NULL: never.
     */
    bool (*calibrated)(const kvd_parameter_values *v);
    /*
     * Sets *window and *block, which define how many of m tokens are coded: the first (m - window)
     * / block * block, block by block as they fill up. The other tokens stay exact in the data type
     * of the cache. A prompt is coded in one call up to that number. NULL: window 0 and block 1.
     */
    void (*window)(const kvd_parameter_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Returns true if key channels are multiplied by factors sqrt(max |q| / max |k|), the maxima
     * over the queries of all query heads and the keys of the prompt (MiKV's balancer). The factors
     * take 16 bits per channel once. Not allowed with methods of the dims axis or with
     * keys_before_rope. NULL: never.
     */
    bool (*balances)(const kvd_parameter_values *v);
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Codes a block of rows: writes the numbers that a read of the cache gives to decoded [n][d],
     * and the size of the code to *count. Must handle constant rows, zeros, and n smaller than a
     * group of numbers that share a scale. Several threads may call it with the same `self`. All
     * input numbers are finite.
     */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot, kvd_bits_fp8, kvd_bits_mxfp4,
    kvd_bits_nvfp4, kvd_bits_turboquant, kvd_bits_cachegen, kvd_bits_kvtc, kvd_bits_comet,
    kvd_bits_vidkv, kvd_bits_xquant, kvd_bits_waterfill;

/*
 * GPU code of kivi, kvquant, fp8, mxfp4, nvfp4 and turboquant; its address is NULL in a build
 * without CUDA.
 */
extern const struct kvd_gpu_kind kvd_gpu_packed KVD_IF_LINKED;

#endif
