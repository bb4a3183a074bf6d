/*
 * The bits axis: how the numbers that stay are coded. A method turns blocks of rows into what a later read finds, and says how many
 * bits the code takes, side information (scales, zero points, tables, indices, outliers) included. One file per method; the registry
 * is in presets.c.
 */
#ifndef KVD_METHODS_BITS_H
#define KVD_METHODS_BITS_H

#include "common/quantise.h"
#include "methods/axis.h"

/* Rows of one KV head of one layer of one sequence, keys or values, that are coded together. */
typedef struct {
    kvd_side side;
    int layer, kv_head;   /* kv_head 0 with all_heads                                            */
    size_t n, d;          /* tokens and dimensions, after the dims axis; with all_heads n_kv_heads * d_head */
    const float *x;       /* [n][d]                                                              */
    const uint8_t *level; /* [n] KVD_LEVEL_LOW or _HIGH                                          */
    const uint32_t *position; /* [n] of the tokens in their sequence */
    const double
        *mass; /* [n] attention probability received so far, of all query heads, when the method needs it */
    const double *seen;   /* [n] rows and query heads that it comes from                          */
    const float *balance; /* [d] of keys, of a method that balances, after a prompt; else NULL           */
    bool prompt;          /* all that is old enough of a prompt, in one block                     */
} kvd_bits_block;

/* What a code took, in bits. */
typedef struct {
    double payload; /* codes themselves                                */
    double side;    /* scales, zero points, tables, indices, outliers  */
} kvd_bits_count;

typedef struct kvd_bits_method kvd_bits_method;
struct kvd_bits_method {
    const char *name, *summary;
    const kvd_parameter *parameter; /* ends with key NULL */
    const kvd_rate *rate;           /* NULL: none of its keys trades bytes for quality */
    unsigned needs;
    const char *
        fisher_key; /* of the keys, the one that is 1 unless given where squared gradients are, and no dims; NULL: none */
    bool
        drawn; /* without calibration it can be opened on tables of normal numbers, where setup.drawn allows it */
    bool keys_before_rope;  /* keys are coded before RoPE and turned when they are read */
    bool two_levels;        /* entries at the low level are coded otherwise than those at the high one */
    const char *low_key[4]; /* keys that are of entries at the low level alone; ends with NULL */
    /* A block is of all KV heads of the layer, side by side, and so are its bits. Then no other axis may be filled, and the code of a token
     * depends on nothing but the rows of its block: every head asks for it and takes its part. */
    bool all_heads;
    /*
     * Of m tokens of a side the first (m - window) / block * block are coded, block by block as they come to be; the others are
     * as they were, in the cache's type. A prompt is coded in one call, up to where this rule puts the end.
     * NULL: window 0 and block 1, every token as it comes.
     */
    void (*window)(const kvd_values *v, kvd_side side, size_t *window, size_t *block);
    /*
     * Whether blocks of keys get a factor per channel, sqrt(max |q| / max |k|) over the queries of all query heads and the keys of the
     * prompt (MiKV's balancer); 16 bits each are counted once. NULL: no. Not with methods that change dims or code before RoPE.
     */
    bool (*balances)(const kvd_values *v);
    int (*open)(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err);
    void (*close)(void *self);
    /*
     * decoded [n][d] receives what a read finds. Constant rows, zeros and n smaller than a group are no special cases for the
     * caller. Thread-safe on one self. Fails on values that are not finite, naming layer, head and row.
     */
    int (*code)(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err);
};

extern const kvd_bits_method kvd_bits_kivi, kvd_bits_kvquant, kvd_bits_gear, kvd_bits_hetero,
    kvd_bits_zipcache, kvd_bits_rotatekv, kvd_bits_allot;

#endif
