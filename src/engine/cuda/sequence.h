/*
 * Sequence-parallel engine: GPUs divide the tokens of a prompt, and the heads of attention.
 * Functions whose comments say so must be called on all GPUs at the same time.
 */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"

typedef struct kvd_sequence kvd_sequence;

/* State of method zdc with layers=N, whose N layers share one set of important tokens. */
typedef struct {
    /* Importance of each token, summed over heads, in device memory, [n][rows]. */
    float *sum;
    /* Received rows of K and V, ordered by the GPU that sent them. */
    char *in;
    /*
     * [n + 1], pinned host memory: how many earlier tokens are as important as each GPU's first
     * token (see `level`).
     */
    int32_t *place;
    /*
     * [n + 1], pinned host memory: precision level of each GPU's first token: high for important
     * tokens, low for others.
     */
    uint8_t *level;
    /* [n + 1] Numbers of important and of other prompt tokens before those of each GPU. */
    int32_t (*before)[2];
    /* True if `before` has been copied from the device. */
    bool fetched;
} kvd_sequence_sets;

typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /* Engine that computes this GPU's part of the prompt, one layer at a time. */
    kvd_cuda_engine *slice;
    /* Copy of slice->w restricted to this GPU's share of the heads. */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /* Page tables of this GPU's part and of the whole prompt. */
    kvd_pages slice_pages, own_pages;
    /* Device array of values -max_pages .. max_pages - 1; parts of it are page tables. */
    int32_t *pages;
    /* Pages of K and V to send, and received rows of Q, ordered by the other GPU. */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* Position of the first token of this GPU's part of the prompt, and its number of tokens. */
    size_t first, n;
    /* Bytes sent in the latest iteration: [0] Q, K and V, [1] attention output. */
    double sent[2];
    /* State of method zdc with layers=N; unused if sets.in is NULL. */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* Number of cache pages of the longest prompt, and number of tokens of the running prompt. */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* [n], one per GPU */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* Returns the index of the first page of a GPU's part of the prompt. A part may be empty. */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu);
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Returns `tokens` rounded up to 8, since Q is stored in groups of 8 tokens. */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the state of the GPU that has the last token of the prompt. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* Computes attention `out` [n][o_pitch] of this GPU's n tokens for all heads. All GPUs call it. */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * Exchanges between GPUs, in blocks of multiples of 16 bytes. All GPUs call them.
 *
 * kvd_sequence_to_heads sends Q, K and V of this GPU's tokens, and receives those of its heads in
 * r->own. kvd_sequence_to_tokens sends the attention output r->own.o, and receives that of its
 * tokens in `out`.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/* Adds a block of memory to a list of blocks that kvd_sequence_exchange sends or receives. */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/*
 * Connects all GPUs (which all call it), because the first exchange could hang if a GPU had failed.
 */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* Allocates r->sets (for zdc with layers=N); r->own and the cache must be allocated before. */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
/* Returns true if a layer uses an earlier layer's division into important and other tokens. */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* After a layer's attention, records its division of the tokens into important and other ones. */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/* Packs and lists K and V rows to send. kvd_sequence_sets_take copies received rows to pages. */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
