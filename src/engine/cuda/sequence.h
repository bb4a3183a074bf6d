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
 * State of one GPU for methods with two widths of tokens (zdc, layers=N): its copy of the token
 * sets of the running prompt, which are equal on all GPUs.
 */
typedef struct {
    /* Device [n][rows]: importance of each row, by the heads of each GPU. */
    float *sum;
    /* Device: received rows of K and V, ordered by sender. */
    char *in;
    /* Pinned [n]: place of the first token of each slice. */
    int32_t *place;
    /* Pinned [n]: level (high or low) of the first token of each slice. */
    uint8_t *level;
    /* [n + 1]: number of high and low tokens before each slice. */
    int32_t (*before)[2];
    /* True if `before` describes the sets of the latest layer. */
    bool fetched;
} kvd_sequence_sets;

/* State of one GPU. */
typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /*
     * Engine whose worker has all weights. Its cache stores Q, K and V of this GPU's slice and of
     * all heads, one layer at a time.
     */
    kvd_cuda_engine *slice;
    /*
     * A view of slice->w with the share of heads whose attention over all tokens this GPU computes.
     */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /*
     * Page tables without pages: page k of a prompt has number k, and a slice counts from its own
     * first page.
     */
    kvd_pages slice_pages, own_pages;
    int32_t *pages; /* device: the numbers -max_pages .. max_pages */
    /* Buffers of an exchange: pages by receiver; rows of Q or of P V' by sender. */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* First token and number of tokens of the slice. */
    size_t first, n;
    /* Bytes sent to other GPUs in the running iteration. */
    double sent[2];
    /* Token sets; `in` is NULL if all tokens have one width. */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* Pages of the longest prompt, and tokens of the running prompt. */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* [n] */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* ---- slices of the running prompt: whole pages of it; a short prompt leaves some empty ---- */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu); /* returns the slice's first token */
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Returns the number of rows of blocked Q for a number of tokens. */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the GPU that has the last token of the prompt. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* ---- a layer (sequence_layer.c) ---- */

/*
 * Computes the attention output of the slice, out [n][o_pitch] of all heads, from its Q, K and V.
 * If `in` is NULL, the slice is empty and `out` is not used. Collective: all GPUs must call it at
 * once.
 */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * The two exchanges of kvd_sequence_attend. Collective: all GPUs must call them at once.
 * kvd_sequence_to_heads sends Q', K' and V' of the slice and all heads from the slice's cache, and
 * fills `own` with those of all tokens and the heads of this GPU's share. kvd_sequence_to_tokens
 * sends P V' of the share's heads, [tokens][o_pitch] in own.o, and fills `out` with P V' of the
 * slice and all heads. Every piece consists of whole rows of 8 tokens, of pages, or of rows whose
 * widths are multiples of 16, so it is a multiple of 16 bytes in both memories.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/*
 * kvd_sequence_piece adds a piece to a list. kvd_sequence_exchange sends and receives the pieces of
 * the lists; `kind` is the element of `sent` that counts their bytes.
 */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/*
 * Connects the GPUs now. NCCL otherwise connects two GPUs when the first piece is sent between them
 * and waits for both, which would block in an iteration that one GPU may not reach.
 */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* ---- two widths of tokens (sequence_sets.c) ---- */

/*
 * Allocates the state of the token sets. Call it after both caches are allocated. Does nothing for
 * methods with one width.
 */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
void kvd_sequence_sets_free(kvd_sequence_rank *r);
/*
 * Returns true if a layer uses the token sets of an earlier layer, so that rows can be narrowed
 * before they are sent.
 */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* Call it after the attention of a layer that forms token sets. */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/*
 * Exchange of K and V of the slice when the token sets are known. kvd_sequence_sets_send adds the
 * rows to the lists of an exchange; kvd_sequence_sets_take then copies the received rows to the
 * pages of the share's heads.
 */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
