/*
 * Two widths of tokens on the device (methods/tokens importance, ZDC section 5). Important tokens
 * of a prompt (high tokens) are stored in pages at the widths of `dims`, all other tokens (low
 * tokens) in pages at the widths of `dims_low`. The columns of a low row are the first columns of
 * the wider row. Launchers follow the conventions of model/pass/cuda/blocks.h.
 *
 * A slot has a list of pages: one page of its own, then the pages of its row of the page table. In
 * every layer the first pages, at least one, hold the low tokens; the following pages hold the high
 * tokens and then the tokens after the prompt. A page of either kind takes the memory of a high
 * page. Both stores keep the order of the tokens. RoPE is applied to the keys, so no record is kept
 * of which token is in which row.
 *
 * Attention of steps is one launch (kernels/cuda/decode.h, second_len). For this launch a layer has
 * twice its number of heads; the second half of them reads the low rows with the first columns of
 * the same queries. kvd_zdc_merge then weights the outputs of the two halves by their softmax
 * denominators.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_ZDC_HIGH, KVD_ZDC_LOW, KVD_ZDC_STORES };
/*
 * Bits of a token's level. KVD_ZDC_RAW: important (high) by the importance computed in its own
 * layer. KVD_ZDC_USED: high in the sets that the layer uses, which may be another layer's.
 */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/* Layout of a KV head in the two stores. Index [2]: 0 is K (and Q), 1 is V (and O). */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2];   /* columns stored, multiples of 16 */
    int16_t kept[2];                    /* number of columns of low rows that are not 0 */
    int32_t in_page[KVD_ZDC_STORES][2]; /* element of a page at which the head starts */
    /* Column in a row of O, in each half, at which the group's first query head starts. */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

/* Page lists of the slots of a batch. */
typedef struct {
    const int32_t *slot;  /* device [batch] */
    const int32_t *table; /* device [batch][pitch] */
    int32_t pitch, own;   /* own: page number of slot 0's own page; slot s has page own + s */
    int32_t *n_low;       /* device [slots][n_layers]: number of low tokens */
    int32_t n_layers, layer;
} kvd_zdc_pages;

/* Arguments of kvd_zdc_choose and kvd_zdc_value: the whole prompts of a layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest; /* longest: the largest q_len */
    const int32_t *q_start, *q_len;        /* device [batch] */
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [n_heads][n_q8].
     */
    const float *lse;
    int32_t mean; /* 1: every softmax denominator is divided by its number of keys */
    double share; /* fraction of the layer's tokens that are important */
    int32_t span; /* number of layers that use the sets: this layer and the following ones */
    /*
     * Smallest overlap at which this layer uses the token sets of the preceding layer: both the
     * high sets and the low sets of the two layers must overlap by at least this fraction. A value
     * above 1 disables the reuse.
     */
    double overlap;
    /* Scratch for the importance of tokens, kept from layer to layer of an iteration. */
    float *value;   /* device [n_q8] */
    uint8_t *level; /* output, device [n_q8]: KVD_ZDC_RAW, KVD_ZDC_USED */
    /* Output, device [n_q8]: index of the token's row in its store. */
    int32_t *place;
} kvd_zdc_choose_args;

/*
 * Chooses the high tokens of whole prompts in a layer. The importance of a token is the logarithm
 * of the sum over heads of exp(lse). The `share` of tokens with the largest importance is high;
 * among equal tokens the earlier ones come first. If another layer's sets are used, the number of
 * high tokens is that of the other layer.
 */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/*
 * Writes the importance of tokens, over this GPU's heads, to `to` [n_q8]. If kvd_zdc_choose gets
 * these arrays of all GPUs in place of lse, it uses the importance over all GPUs.
 */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/* Arguments of kvd_zdc_move and kvd_zdc_narrow: the whole prompts of a layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    const int32_t *q_start, *q_len; /* device [batch] */
    const uint8_t *level;           /* output of kvd_zdc_choose */
    const int32_t *place;
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    /* Pages of the prompts at the high widths, device, listed in pages.table. */
    const void *from;
    void *store; /* device, pages of the layer */
    size_t page; /* elements per page, equal for both kinds */
} kvd_zdc_move_args;

/*
 * Copies rows of prompts from their pages to both stores, and fills zeros after the last row of
 * each store up to a multiple of 8 rows.
 */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/*
 * Sets the columns that low rows do not keep to 0, in `pages`: the prompts' pages at the high
 * widths, which are also the `from` of `args`.
 */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/*
 * Rows of tokens first .. first + n - 1 in some KV heads of one prompt, to be sent to or received
 * from another GPU.
 */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t n_kv_heads, first, n;
    int32_t before[KVD_ZDC_STORES]; /* number of high and of low tokens before `first` */
    int32_t count[KVD_ZDC_STORES];  /* number of high and of low tokens among the n */
    int32_t entry[KVD_ZDC_STORES];  /* elements per high and per low token, in these heads */
    /* device, levels of all tokens of the prompt, outputs of kvd_zdc_choose */
    const uint8_t *level;
    const int32_t *place;
    /*
     * Packed rows, device: [count[HIGH]][entry[HIGH]], then [count[LOW]][entry[LOW]]; within a row
     * head after head, K before V.
     */
    void *rows;
    /*
     * Pages of 64 tokens at the high widths, device. Page table[0] has tokens 0 .. 63 of the
     * prompt.
     */
    void *pages;
    const int32_t *table; /* device */
    size_t page;          /* elements of a page */
} kvd_zdc_rows_args;

/*
 * kvd_zdc_pack copies rows from `pages` to `rows`. kvd_zdc_unpack copies them back; it fills low
 * rows with zeros up to the high widths, and the group of 8 rows after the last row with zeros.
 */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_lists, which fills the lists of a batch of decode steps. */
typedef struct {
    kvd_zdc_pages pages;   /* page lists; `layer` is ignored, all layers are covered */
    int32_t batch, rows;   /* rows: number of rows of the arrays below, at least batch */
    const int32_t *kv_len; /* device [batch]: number of tokens, including the newest */
    /* Inputs of kvd_decode: kv_len and second_len of all layers, and the slots' page lists. */
    int32_t *end, *low_len; /* output, device [n_layers][rows] */
    int32_t *table;         /* output, device [rows][pitch + 1] */
} kvd_zdc_lists_args;

/*
 * Fills the page lists and lengths of a batch of decode steps. `end` counts the newest token's row
 * as the last one, so that append can take `end` as kv_len.
 */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_merge: the outputs of both halves of the heads of a layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1: on sm_90 */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t pitch, out_pitch;
    const void *o;    /* device [batch][pitch], outputs of both halves */
    const float *lse; /* device [batch][2 n_heads], natural logarithms */
    void *out;        /* output, device [batch][out_pitch] at the high widths */
} kvd_zdc_merge_args;

/*
 * Adds the attention outputs over both stores, weighted by their softmax denominators. An empty low
 * store has weight 0.
 */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
