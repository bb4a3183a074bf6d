/*
 * Two widths of tokens on the device (methods/tokens importance, ZDC section 5): important tokens of a prompt stand in pages at the widths of
 * dims, the others in pages at those of dims_low, whose columns are the first ones of the wider rows. Launchers as in model/cuda/blocks.h.
 *
 * A slot has a list of pages: one of its own, then those of its row of the page table. In every layer the first ones, one at least, hold the
 * low tokens, those behind them the high ones, at whose end the tokens behind the prompt follow; a page of either kind takes the room of a
 * high one. Both keep the order of the tokens. RoPE is in the keys, so nothing else says which token stands where.
 *
 * Attention of steps is one launch (kernels/cuda/decode.h, second_len): to it a layer has twice as many heads, the second half of which read
 * the low rows, with the first columns of the same queries. merge weighs what the two halves give by their denominators.
 */
#ifndef KVD_SERVING_CUDA_ZDC_H
#define KVD_SERVING_CUDA_ZDC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_ZDC_HIGH, KVD_ZDC_LOW, KVD_ZDC_STORES };
/* Bits of a token's level: high by what its layer says, high by the sets that the layer uses. */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/* A KV head of a layer; [2]: K (and Q), V (and O). */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2];   /* columns in memory, multiples of 16                        */
    int16_t kept[2];                    /* of low rows the columns that are not 0                    */
    int32_t in_page[KVD_ZDC_STORES][2]; /* element of a page                                       */
    int32_t in_row[KVD_ZDC_STORES]; /* of either half, column of the group's first query head in rows of O */
} kvd_zdc_head;

/* Pages of the slots of a batch. */
typedef struct {
    const int32_t *slot;  /* device [batch]                                                  */
    const int32_t *table; /* device [batch][pitch]                                           */
    int32_t pitch, own;   /* page of slot s alone: own + s                                   */
    int32_t *n_low;       /* device [slots][n_layers] low tokens                             */
    int32_t n_layers, layer;
} kvd_zdc_pages;

typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest; /* longest of q_len             */
    const int32_t *q_start, *q_len;        /* device [batch]               */
    const float *lse;                      /* device [n_heads][n_q8] natural log, of the attention kernel */
    int32_t mean;                          /* 1: denominators are divided by their number of keys         */
    double share;                          /* of the layer's tokens that are important                    */
    int32_t span; /* layers that use the sets: this one and those behind it                        */
    double
        overlap; /* of both sets with those of the layer before, from which on its are used; above 1: never */
    /* work, which stays as it is from layer to layer of an iteration */
    float *value;   /* device [n_q8]                                                                      */
    uint8_t *level; /* device [n_q8] KVD_ZDC_RAW, KVD_ZDC_USED                    out */
    int32_t *place; /* device [n_q8] in its store                                                    out */
} kvd_zdc_choose_args;

/*
 * Importance of a layer's prompts, whole ones: log sum over heads of exp(lse). The share with the largest is high (of equals the earlier
 * tokens), or as many as are where another layer's sets are used.
 */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/* That sum alone, of heads that are not all: to [n_q8], from which as from lse of other heads the sum over all follows. */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    const int32_t *q_start, *q_len; /* device [batch]                                     */
    const uint8_t *level;           /* of kvd_zdc_choose                                  */
    const int32_t *place;
    const kvd_zdc_head *head; /* device [n_kv_heads]                                      */
    const void *from;         /* device, pages of the prompts at the high widths, by pages.table */
    void *store;              /* device, pages of the layer                               */
    size_t page;              /* elements of a page of either                             */
} kvd_zdc_move_args;

/* Rows of prompts from their pages to both stores, zeros behind the last ones to a multiple of 8. */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/* In pages of prompts at the high widths, rows of low tokens lose what they do not keep: as in `from`, which they are. */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/* Tokens first .. first + n - 1 of one prompt and some KV heads of it, on their way to or from another GPU. */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads]                                                   */
    int32_t n_kv_heads, first, n;
    int32_t before[KVD_ZDC_STORES]; /* tokens of either kind in front of `first`                       */
    int32_t count[KVD_ZDC_STORES];  /* of either kind among the n                                      */
    int32_t entry[KVD_ZDC_STORES];  /* elements of a token of either kind, these heads                 */
    const uint8_t *level;           /* device, of all tokens, as kvd_zdc_choose makes them             */
    const int32_t *place;
    void *
        rows; /* device: [count[HIGH]][entry[HIGH]], then [count[LOW]][entry[LOW]], head after head, K and V */
    void *
        pages; /* device, pages of 64 tokens at the high widths; tokens 0 .. 63 of the prompt in page table[0] */
    const int32_t *table; /* device */
    size_t page;          /* elements of a page */
} kvd_zdc_rows_args;

/* From pages to rows, and back, where rows of low tokens are filled with zeros up to the high widths, and the group of 8 behind the last row. */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

typedef struct {
    kvd_zdc_pages pages;   /* layer is not read: of all layers                                  */
    int32_t batch, rows;   /* rows of the arrays below, >= batch                                */
    const int32_t *kv_len; /* device [batch] tokens, the newest included                        */
    /* what kvd_decode reads: kv_len and second_len of all layers, and the slots' lists of pages */
    int32_t *end, *low_len; /* device [n_layers][rows]                                     out  */
    int32_t *table;         /* device [rows][pitch + 1]                                    out  */
} kvd_zdc_lists_args;

/* Of a batch of steps. The newest token's row is the last of `end` as well: `end` is what append takes for kv_len. */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1: on sm_90                                          */
    const kvd_zdc_head *head; /* device [n_kv_heads]                                  */
    int32_t pitch, out_pitch;
    const void *o;    /* device [batch][pitch] of both halves                         */
    const float *lse; /* device [batch][2 n_heads] natural log                        */
    void *out;        /* device [batch][out_pitch] at the high widths            out  */
} kvd_zdc_merge_args;

/* An empty low store counts for nothing. */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
