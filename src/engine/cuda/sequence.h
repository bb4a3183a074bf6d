/*
 * Types and functions shared by the files of the sequence parallel engine: the division of a
 * prompt's tokens among GPUs, and the exchanges of data between GPUs in a layer. engine_sequence.c
 * describes the algorithm. The part of the tokens that one GPU has is called its slice, the part of
 * the heads its share.
 */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"
#include "engine/cuda/gpu_threads.h"

typedef struct kvd_sequence kvd_sequence;

/*
 * State of one GPU for methods that keep fewer dimensions of unimportant ("low") tokens (zdc,
 * layers=N). It describes the sets of high and low tokens of the running prompt. All GPUs have the
 * same sets.
 */
typedef struct {
    /*
     * Importance of each token, summed over the heads of each of the n GPUs, in device memory,
     * [n][rows].
     */
    float *sum;
    /* Received rows of K and V in device memory, in the order of the sending GPUs. */
    char *in;
    /*
     * For each GPU's part of the prompt: if the first token of the part is a high token (important,
     * more kept dimensions), the number of high tokens before it; if it is a low token, the number
     * of low tokens before it. Pinned host memory, [n + 1].
     */
    int32_t *place;
    /*
     * For each GPU's part of the prompt, the set of its first token: high (important, more kept
     * dimensions) or low. Pinned host memory, [n + 1].
     */
    uint8_t *level;
    /*
     * Numbers of high tokens (important, more kept dimensions) and of low tokens before each GPU's
     * part of the prompt, [n + 1].
     */
    int32_t (*before)[2];
    /*
     * True if the array `before` (numbers of high and low tokens) is up to date. The array is
     * recomputed after a layer has divided the tokens anew into high and low ones.
     */
    bool fetched;
} kvd_sequence_sets;

/* State of one GPU of the sequence parallel engine. */
typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /*
     * Engine that computes this GPU's part of the prompt, with all weights. Its cache stores Q, K
     * and V of these tokens and of all heads, one layer at a time.
     */
    kvd_cuda_engine *slice;
    /*
     * Copy of the state of this GPU's forward pass (slice->w), restricted to this GPU's share of
     * the heads. It computes the attention of these heads over all tokens.
     */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /*
     * Page tables that point into the array `pages` of this structure. The k-th page of a prompt
     * has page number k in own_pages, and page number k less the number of pages before this GPU's
     * part of the prompt in slice_pages.
     */
    kvd_pages slice_pages, own_pages;
    /*
     * The numbers -max_pages .. max_pages - 1 in device memory. Page tables are parts of this
     * array. The pages of a GPU's part of the prompt are numbered from 0 in slice_pages, so pages
     * before that part have negative numbers.
     */
    int32_t *pages;
    /*
     * Buffers of an exchange. out_pages: pages to send, ordered by receiving GPU. in_rows: received
     * rows of Q or of attention output, ordered by sending GPU.
     */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /*
     * This GPU's part of the prompt: position of its first token (first), and number of its tokens
     * (n).
     */
    size_t first, n;
    /*
     * Bytes sent to other GPUs in the running iteration: sent[0] of Q, K and V, sent[1] of
     * attention outputs.
     */
    double sent[2];
    /*
     * Sets of high tokens (important, more kept dimensions) and low tokens. If all tokens keep
     * equally many dimensions, there are no sets, and sets.in is NULL.
     */
    kvd_sequence_sets sets;
} kvd_sequence_rank;

struct kvd_sequence {
    kvd_engine engine; /* must be the first field */
    int n, failed;
    /* Number of pages of the longest prompt, and number of tokens of the running prompt. */
    size_t max_pages, len;
    kvd_gpu_sum *sum;
    kvd_gpu_threads *gpu_threads;
    kvd_sequence_rank *rank; /* state of each GPU, [n] */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/* ---- slices of the running prompt: whole pages; a short prompt leaves some slices empty ---- */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
/* Returns the position of the first token of a GPU's part of the prompt. */
size_t kvd_sequence_first(const kvd_sequence *q, int gpu);
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/*
 * Returns the number of rows that the queries of `tokens` tokens take in the engine's layout of Q,
 * which stores tokens in groups of 8: `tokens` rounded up to a multiple of 8.
 */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the state of the GPU that has the last token of the prompt. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/* ---- attention of a layer (sequence_layer.c) ---- */

/*
 * Computes the attention output `out` [n][o_pitch] of this GPU's part of the prompt for all heads,
 * from the Q, K and V of that part in *in. If `in` is NULL, this GPU has no tokens and `out` is not
 * used. Collective: all GPUs must call it at the same time.
 */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * These functions exchange data among the GPUs for kvd_sequence_attend. Collective: all GPUs must
 * call them at the same time.
 *
 * Before attention, kvd_sequence_to_heads sends the projected Q, K and V of this GPU's part of the
 * prompt and of all heads. It receives those of all tokens and of this GPU's heads and stores them
 * in this GPU's cache r->own. After attention, kvd_sequence_to_tokens sends the attention output of
 * this GPU's heads and all tokens, which is in r->own.o. It fills `out` with the attention output
 * of this GPU's part of the prompt and all heads.
 *
 * The size of every block that is sent is a multiple of 16 bytes. A block of Q is whole groups of 8
 * tokens, a block of K and V is whole pages, and a row of attention output has a multiple of 16
 * columns.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/*
 * kvd_sequence_piece adds a block of memory to a list of blocks to send or receive.
 * kvd_sequence_exchange sends and receives the blocks of both lists; `kind` is the index in r->sent
 * of the counter of their bytes.
 */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/*
 * Connects all GPUs with each other at the start. NCCL otherwise connects two GPUs when data are
 * first sent between them, and waits for both. That would block in an iteration that one GPU does
 * not reach.
 */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/* ---- methods that keep fewer dimensions of unimportant tokens (sequence_sets.c) ---- */

/*
 * Allocates the lists that say which tokens of the prompt are high (important, more kept
 * dimensions) and which are low. Must be called after r->own and the cache of r->slice are
 * allocated. Does nothing for methods whose tokens all keep equally many dimensions.
 */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
void kvd_sequence_sets_free(kvd_sequence_rank *r);
/*
 * Returns true if a layer reuses the sets of important (high) and unimportant (low) tokens of an
 * earlier layer. The GPUs can then send fewer dimensions of K and V for low tokens.
 */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/*
 * Records that a layer has divided the tokens anew into important (high) and unimportant (low)
 * ones. Must be called after the layer's attention.
 */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/*
 * These functions exchange K and V in a layer that reuses the division into high (important) and
 * low tokens of an earlier layer, so that low tokens are sent with fewer dimensions.
 * kvd_sequence_sets_send adds K and V of this GPU's part of the prompt to the lists of blocks to
 * exchange. After the exchange kvd_sequence_sets_take copies the received K and V to the pages of
 * this GPU's heads.
 */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
