/* Sequence-parallel engine: each GPU computes Q, K and V of a part of a prompt's tokens, and
 * attention of a part of the heads. */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"

typedef struct kvd_sequence kvd_sequence;

/* State, on one GPU, of compression method zdc with parameter layers=N: groups of N layers choose
 * important tokens once. */
typedef struct {
    /* [GPUs][tokens] importance of each token, summed over the heads of each GPU, in GPU memory */
    float *sum;
    /* K and V that this GPU received, in the order of the GPUs that sent them */
    char *in;
    /* [GPUs + 1] in pinned memory, for each GPU's first token: its index among the important tokens
     * or, if it is not important, among all others. Last element: the index of the prompt's last
     * token. */
    int32_t *place;
    /* [GPUs + 1] in pinned memory: class of each GPU's first token, important (high) or other
     * (low). Last element: class of the prompt's last token. */
    uint8_t *level;
    /* [GPUs + 1] number of important tokens, and of other tokens, before each GPU's part of the
     * prompt. Last element: numbers in the whole prompt. */
    int32_t (*before)[2];
    /* true if the counts of important tokens in the field `before` are up to date */
    bool fetched;
} kvd_sequence_sets;

typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /* engine that computes this GPU's part of the prompt, layer by layer */
    kvd_cuda_engine *slice;
    /* weights and stream of this GPU, restricted to the attention heads that this GPU computes */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /* slice_pages: page table for all heads of this GPU's tokens. own_pages: page table for this
     * GPU's heads of all tokens. */
    kvd_pages slice_pages, own_pages;
    /* [2 * max_pages] in device memory: element i is i - max_pages. Parts of this array serve as
     * page tables. */
    int32_t *pages;
    /* K and V to send to other GPUs, and Q or attention output received from them, ordered by
     * GPU */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* position of the first token of this GPU's part of the prompt, and number of its tokens */
    size_t first, n;
    /* bytes that this GPU sent to other GPUs: bytes of Q, K and V, and bytes of attention output */
    double sent[2];
    /* State for layers that share their important tokens (method zdc with layers=N). For other
     * methods, sets.in is NULL. */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* number of pages of the longest possible prompt, and number of tokens of the current prompt */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* [n], one per GPU */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* Returns the index of the first page in a GPU's part of the prompt. The part may be empty. */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
size_t kvd_sequence_first(const kvd_sequence *q, int gpu);
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/* Returns `tokens` rounded up to a multiple of 8, because Q is stored in groups of 8 tokens. */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the GPU whose part of the prompt contains the last token. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* Computes the attention output `out` [n][o_pitch] of all heads for the tokens of this GPU. All
 * GPUs call it. */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/* kvd_sequence_to_heads sends Q, K and V of this GPU's tokens to the GPUs that compute their heads.
 * kvd_sequence_to_tokens sends attention outputs back to the GPUs of their tokens.
 *
 * All GPUs must call each function. */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/* Appends the `bytes` bytes of memory at address `at` to the list of memory pieces that are sent
 * to, or received from, GPU `gpu`. */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/* Connects all GPUs by exchanging a few bytes. Called on every GPU before the first prompt, because
 * connecting during a prompt could hang if a GPU had failed. */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* Allocates r->sets, which stores the important tokens that layers share (method zdc with
 * layers=N). r->own and r->slice must exist. */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
/* Returns true if a layer uses the important tokens that an earlier layer has chosen (method zdc
 * with layers=N). */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/* Must be called after the attention of a layer that chose its important tokens. Records these
 * tokens, which later layers reuse (method zdc with layers=N). */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/* kvd_sequence_sets_send packs K and V to send to other GPUs. kvd_sequence_sets_take copies
 * received K and V to cache pages. */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
