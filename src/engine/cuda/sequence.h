/* Sequence-parallel engine: GPUs divide a prompt's tokens and the heads. */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"

typedef struct kvd_sequence kvd_sequence;

/* State of method zdc with layers=N, whose N layers share their important tokens. */
typedef struct {
    /* [GPUs][tokens] importance of tokens, summed over each GPU's heads, on the device */
    float *sum;
    /* received K and V, ordered by sending GPU */
    char *in;
    /* [GPUs + 1] pinned: number of tokens before each GPU's first token that are in its class
     * (important or other) */
    int32_t *place;
    /* [GPUs + 1] pinned: class of each GPU's first token, important (high) or other (low) */
    uint8_t *level;
    /* [GPUs + 1] numbers of important and other tokens before each GPU's first token */
    int32_t (*before)[2];
    /* false if `before` must be computed again from `place` and `level` */
    bool fetched;
} kvd_sequence_sets;

typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /* computes this GPU's part of the prompt, layer by layer */
    kvd_cuda_engine *slice;
    /* copy of slice->w with this GPU's share of the heads */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /* page tables of this GPU's part and of the whole prompt */
    kvd_pages slice_pages, own_pages;
    /* [2 max_pages] Element max_pages + i is i. If this GPU's part of the prompt begins at page f,
     * its page table begins at element max_pages - f and maps page j of the prompt to page j - f of
     * the part. */
    int32_t *pages;
    /* K and V to send, and received Q or attention output, one GPU after another */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* first position of this GPU's part of the prompt, and number of its tokens */
    size_t first, n;
    /* bytes sent: [0] Q, K and V, [1] attention output */
    double sent[2];
    /* important tokens that N layers share (method zdc with layers=N); unused if sets.in is NULL */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* pages of the longest prompt, and tokens of the current one */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* [n], one per GPU */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* Returns the first page of a GPU's part of the prompt, which may be empty. */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu);
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Returns `tokens` rounded up to 8, as Q is stored in groups of 8 tokens. */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the GPU with the prompt's last token. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* Computes attention `out` [n][o_pitch] of this GPU's tokens for all heads. All GPUs call it. */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/* Exchange data between GPUs. All GPUs call them.
 *
 * kvd_sequence_to_heads sends Q, K and V of this GPU's tokens, and receives those of its heads.
 * kvd_sequence_to_tokens does the reverse with attention outputs. */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/* Adds `bytes` bytes at `at` to a list of memory to send to, or receive from, a GPU. */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/* Connects the GPUs by a first exchange, because connecting later, after a GPU has failed, could
 * hang. All GPUs call it. */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* Allocates r->sets (important tokens that N layers share). Requires r->own and the cache. */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
/* Returns true if a layer uses an earlier layer's important tokens. */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* Records which tokens are important, after a layer's attention. */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/* Pack K and V to send, and copy received ones to pages. */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
