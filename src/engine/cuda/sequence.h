/*
 * Types and functions shared by the files of the sequence parallel engine: the division of the
 * tokens among GPUs, and the exchanges of a layer. engine_sequence.c describes the algorithm.
 */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"
#include "engine/cuda/gpu_threads.h"

typedef struct kvd_sequence kvd_sequence;

/*
 * State of one GPU for methods with two widths of tokens (zdc, layers=N): its copy of the sets of
 * high and low tokens of the running prompt. All GPUs have the same sets.
 */
typedef struct {
    /* Device [n][rows]: importance of each token, summed over the heads of each GPU. */
    float *sum;
    /* Device: received rows of K and V, in the order of the sending GPUs. */
    char *in;
    /*
     * Pinned host memory [n + 1]: number of tokens of the same level before the first token of each
     * slice.
     */
    int32_t *place;
    /* Pinned host memory [n + 1]: level (high or low) of the first token of each slice. */
    uint8_t *level;
    /* Numbers of high and low tokens before each slice, [n + 1]. */
    int32_t (*before)[2];
    /* True if `before` belongs to the sets of the latest layer. */
    bool fetched;
} kvd_sequence_sets;

/* State of one GPU of the sequence parallel engine. */
typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /*
     * Engine that computes this GPU's slice of the tokens, with all weights. Its cache stores Q, K
     * and V of the slice and of all heads, one layer at a time.
     */
    kvd_cuda_engine *slice;
    /*
     * Copy of slice->w restricted to this GPU's share of the heads, whose attention over all tokens
     * it computes.
     */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /*
     * Page tables without memory: page k of a prompt has number k, and a slice counts from its own
     * first page.
     */
    kvd_pages slice_pages, own_pages;
    int32_t *pages; /* device: the numbers -max_pages .. max_pages */
    /*
     * Buffers of an exchange: pages to send, by receiver; received rows of Q or of P V', by sender.
     */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* Index of the slice's first token in the prompt, and number of tokens of the slice. */
    size_t first, n;
    /*
     * Bytes sent to other GPUs in the running iteration: [0] of Q, K and V, [1] of attention
     * outputs.
     */
    double sent[2];
    /* Sets of high and low tokens; `in` is NULL if all tokens have one width. */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* Number of pages of the longest prompt, and number of tokens of the running prompt. */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* [n] */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* ---- slices of the running prompt: whole pages; a short prompt leaves some slices empty ---- */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu); /* returns the slice's first token */
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Returns the number of rows that Q takes, in blocks of rows, for this number of tokens. */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the GPU whose slice contains the last token of the prompt. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* ---- attention of a layer (sequence_layer.c) ---- */

/*
 * Computes the attention output `out` [n][o_pitch] of this GPU's slice for all heads, from the
 * slice's Q, K and V in *in. If `in` is NULL, the slice is empty and `out` is not used. Collective:
 * all GPUs must call it at once.
 */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * Exchange data among the GPUs for kvd_sequence_attend. Collective: all GPUs must call them at
 * once.
 *
 * kvd_sequence_to_heads sends Q', K' and V' of the slice and all heads from the slice's cache, and
 * fills `own` with those of all tokens and the heads of this GPU's share. kvd_sequence_to_tokens
 * sends P V' of the share's heads, [tokens][o_pitch] in own.o, and fills `out` with P V' of the
 * slice and all heads. The unit of every piece is 8 tokens, a page, or a row whose width is a
 * multiple of 16, so pieces are multiples of 16 bytes on both GPUs.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/*
 * kvd_sequence_piece adds a block of memory to a list of blocks to send or receive.
 * kvd_sequence_exchange sends and receives the blocks of both lists; `kind` is the element of
 * `sent` that counts their bytes.
 */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/*
 * Connects all GPUs with each other at the start. NCCL otherwise connects two GPUs when the first
 * data are sent between them and waits for both, which would block in an iteration that one GPU may
 * not reach.
 */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* ---- methods with two widths of tokens (sequence_sets.c) ---- */

/*
 * Allocates the state of the sets of high and low tokens. Call it after both caches are allocated.
 * Does nothing for methods with one width.
 */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
void kvd_sequence_sets_free(kvd_sequence_rank *r);
/*
 * Returns true if a layer reuses the token sets of an earlier layer. Its rows of K and V can then
 * be narrowed before they are sent.
 */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* Records that a layer has formed new token sets. Call it after the layer's attention. */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/*
 * Exchange K and V of the slice in a layer whose token sets are known. kvd_sequence_sets_send adds
 * the rows to the lists of an exchange. After the exchange kvd_sequence_sets_take copies the
 * received rows to the pages of this GPU's heads.
 */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
