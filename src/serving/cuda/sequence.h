/* What the files of the sequence parallel engine share: who has which tokens, and a layer's exchanges. engine_sequence.c says what it does. */
#ifndef KVD_SERVING_CUDA_SEQUENCE_H
#define KVD_SERVING_CUDA_SEQUENCE_H

#include "serving/cuda/engine_parts.h"
#include "serving/cuda/hands.h"

typedef struct kvd_sequence kvd_sequence;

/* Two widths of tokens (zdc, layers=N): what a GPU knows of the sets of the running prompt, which all have alike. */
typedef struct {
    float *sum;           /* device [n][rows] importance by the heads of each GPU    */
    char *in;             /* device: rows of K and V by sender                       */
    int32_t *place;       /* pinned [n], of the first token of each slice            */
    uint8_t *level;       /* pinned [n] likewise                                     */
    int32_t (*before)[2]; /* [n + 1] high and low tokens in front of each slice      */
    bool fetched;         /* `before` is of the sets of the latest layer             */
} kvd_sequence_sets;

/* One GPU. */
typedef struct {
    kvd_gpu_attention door; /* first */
    kvd_sequence *all;
    int gpu;
    /* Its worker has all weights; its cache stores Q, K and V of its slice and of all heads, one layer at a time. */
    kvd_cuda_engine *slice;
    /* Attention of the heads of its share over all tokens, and their pages. */
    kvd_gpu_worker of_share; /* a view of slice->w, with that share */
    kvd_serving_cache own;
    kvd_step_batch batch;
    kvd_pages slice_pages,
        own_pages;  /* page tables alone: page k of a prompt is page k, in a slice counted from its first */
    int32_t *pages; /* device: -max_pages, .. , max_pages                     */
    char *out_pages, *in_rows; /* of an exchange: pages by receiver; rows of Q or of P V' by sender */
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    size_t first, n;        /* tokens of the slice                     */
    double sent[2];         /* bytes to others, of the running iteration */
    kvd_sequence_sets sets; /* in NULL: one width */
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* first */
    int n, failed;
    size_t max_pages, len; /* of the longest prompt; tokens of the running one */
    kvd_gpu_sum *sum;
    kvd_hands *hands;
    kvd_sequence_rank *rank; /* [n] */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* ---- slices of the running prompt: whole pages of it; a short prompt leaves some empty ---- */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu); /* token */
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Rows of blocked Q. */
size_t kvd_sequence_rows(size_t tokens);
/* Who has the last token. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* ---- a layer (sequence_layer.c) ---- */

/*
 * What stands between Q, K and V of the slice and its attention output, out [n][o_pitch] of all heads. in NULL: the slice is empty, out is not
 * read. On all GPUs at once.
 */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * Its two exchanges, for all GPUs at once. Q', K' and V' of the slice and all heads, where the slice's cache has put them, become those of
 * all tokens and the share's heads, in `own`; P V' of those, [tokens][o_pitch] in own.o, becomes that of the slice and all heads in out.
 * Every piece is whole rows of 8 tokens, pages, or rows of widths that are multiples of 16: of 16 bytes, in both memories.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream, kvd_err *err);
/* Adds a piece to a list, and sends and receives what the lists hold; kind: of `sent`. */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/* NCCL connects GPUs when the first piece goes from one to the other, and waits for both: now, and not in an iteration that one may not reach. */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* ---- two widths of tokens (sequence_sets.c) ---- */

/* When both caches are there. Does nothing for other methods. */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
void kvd_sequence_sets_free(kvd_sequence_rank *r);
/* Whether the sets of a layer are those of one before it, so that rows can be narrow before they are sent. */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* Behind the attention of a layer that forms sets. */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/* K and V of the slice, of known sets: into the lists of an exchange, and after it from what came in to the pages of the share's heads. */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
