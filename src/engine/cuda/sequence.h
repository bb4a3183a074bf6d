/*
 * Shared by the files of the sequence parallel engine (engine_sequence.c). The tokens of a prompt
 * are divided among the GPUs. The heads of the attention are divided too.
 */
#ifndef KVD_ENGINE_CUDA_SEQUENCE_H
#define KVD_ENGINE_CUDA_SEQUENCE_H

#include "engine/cuda/engine_parts.h"
#include "engine/cuda/gpu_threads.h"

typedef struct kvd_sequence kvd_sequence;

/*
 * State of one GPU for method zdc with the parameter layers=N, with which N consecutive layers
 * share one division of the tokens. The tokens of the prompt are divided into important ones (level
 * high) and others (level low), which keep fewer dimensions. All GPUs use the same division.
 */
typedef struct {
    /*
     * Importance of each token of the prompt, summed over the heads of a GPU: [n][rows], one array
     * of `rows` tokens for each of n GPUs. Device memory.
     */
    float *sum;
    /* Rows of K and V received from other GPUs, on the device, in the order of the sending GPUs. */
    char *in;
    /*
     * For the first token t of each GPU's part of the prompt: number of tokens before t that have
     * the same level as t. Pinned memory, [n + 1].
     */
    int32_t *place;
    /*
     * Level (high or low) of the first token of each GPU's part of the prompt. Pinned memory, [n +
     * 1].
     */
    uint8_t *level;
    /* Numbers of important and of other tokens before each GPU's part of the prompt, [n + 1]. */
    int32_t (*before)[2];
    /* True if `before` was copied from the device for the current division of tokens. */
    bool fetched;
} kvd_sequence_sets;

typedef struct {
    kvd_gpu_attention hook; /* must be the first field */
    kvd_sequence *all;
    int gpu;
    /*
     * Engine that computes this GPU's part of the prompt and has all weights. Its cache stores Q, K
     * and V of one layer at a time, for all heads.
     */
    kvd_cuda_engine *slice;
    /*
     * Copy of slice->w (the weights and buffers of `slice`) that is restricted to this GPU's share
     * of the heads.
     */
    kvd_gpu_worker of_share;
    kvd_paged_cache own;
    kvd_step_batch batch;
    /*
     * Page tables, which are parts of the array `pages`: slice_pages of this GPU's part of the
     * prompt, whose first page has number 0, and own_pages of all tokens of the prompt.
     */
    kvd_pages slice_pages, own_pages;
    /*
     * The numbers -max_pages .. max_pages - 1 in device memory, of which the page tables are parts.
     */
    int32_t *pages;
    /*
     * Buffers for exchanges between GPUs. out_pages: pages to send, in the order of the receiving
     * GPUs. in_rows: received rows of Q or of attention output, in the order of the sending GPUs.
     */
    char *out_pages, *in_rows;
    kvd_gpu_piece *out, *in;
    size_t n_out, n_in;
    /* Position of the first token of this GPU's part of the prompt, and number of its tokens. */
    size_t first, n;
    /*
     * Bytes sent to other GPUs in the latest iteration: sent[0] of Q, K and V, sent[1] of attention
     * output.
     */
    double sent[2];
    /*
     * State for method zdc with the parameter layers=N. If all tokens keep equally many dimensions,
     * sets.in is NULL and the state is unused.
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
    kvd_sequence_rank *rank; /* [n], one per GPU */
    const kvd_checkpoint *checkpoint;
    const kvd_plan *plan;
    const uint32_t *id;
};

/*
 * Returns the first page of a GPU's part of the prompt. Each part begins at a page boundary, and
 * may be empty.
 */

size_t kvd_sequence_first_page(const kvd_sequence *q, int gpu);
/* Returns the position of the first token of a GPU's part of the prompt. */
size_t kvd_sequence_first(const kvd_sequence *q, int gpu);
size_t kvd_sequence_tokens(const kvd_sequence *q, int gpu);
/*
 * Returns the number of rows of Q for `tokens` tokens. It is rounded up to a multiple of 8, because
 * Q is stored in groups of 8 tokens.
 */
size_t kvd_sequence_rows(size_t tokens);
/* Returns the GPU that has the last token of the prompt. */
kvd_sequence_rank *kvd_sequence_last(const kvd_sequence *q);

/*
 * Computes the attention output [n][o_pitch] of this GPU's part of the prompt for all heads. If
 * `in` is NULL, this GPU has no tokens, and `out` is not used. Collective: all GPUs must call it at
 * the same time.
 */
int kvd_sequence_attend(kvd_sequence_rank *r, int layer, const kvd_gpu_attention_in *in, void *out,
                        kvd_err *err);
/*
 * Exchanges between the GPUs. Collective: all GPUs must call these functions at the same time.
 *
 * kvd_sequence_to_heads sends the projected Q, K and V of this GPU's part of the prompt to the
 * other GPUs. From the others it receives Q, K and V of all tokens for this GPU's heads, and stores
 * them in r->own. kvd_sequence_to_tokens sends the attention output r->own.o of this GPU's heads.
 * It fills `out` with the output of this GPU's part of the prompt for all heads.
 *
 * Every block that is sent has a multiple of 16 bytes.
 */
int kvd_sequence_to_heads(kvd_sequence_rank *r, int layer, cudaStream_t stream, kvd_err *err);
int kvd_sequence_to_tokens(kvd_sequence_rank *r, int layer, void *out, cudaStream_t stream,
                           kvd_err *err);
/*
 * kvd_sequence_piece adds a block of memory to a list of blocks to send or receive.
 * kvd_sequence_exchange sends and receives all blocks, and adds the bytes sent to r->sent[kind];
 * `kind` is 0 for Q, K and V and 1 for attention output.
 */
void kvd_sequence_piece(kvd_gpu_piece *list, size_t *n, int gpu, void *at, size_t bytes);
int kvd_sequence_exchange(kvd_sequence_rank *r, int kind, cudaStream_t s, kvd_err *err);
/*
 * Connects all GPUs with each other. Collective, before the first iteration. NCCL otherwise
 * connects two GPUs at their first exchange and waits for both, which blocks if one GPU has failed.
 */
int kvd_sequence_connect(kvd_sequence_rank *r, kvd_err *err);

/*
 * Allocates r->sets. Must be called after r->own and the cache of r->slice are allocated. Does
 * nothing for methods that do not divide tokens by importance.
 */
int kvd_sequence_sets_make(kvd_sequence_rank *r, kvd_err *err);
void kvd_sequence_sets_free(kvd_sequence_rank *r);
/*
 * Returns true if a layer uses the division into important and unimportant tokens that an earlier
 * layer chose. Unimportant tokens can then be sent with fewer dimensions.
 */
bool kvd_sequence_sets_known(const kvd_sequence_rank *r, int layer);
/*
 * Records the division into important and unimportant tokens that a layer chose. Must be called
 * after the layer's attention.
 */
int kvd_sequence_sets_formed(kvd_sequence_rank *r, cudaStream_t s, kvd_err *err);
/*
 * Exchange K and V in a layer that uses an earlier layer's division into important and unimportant
 * tokens. kvd_sequence_sets_send lists the rows to send. After the exchange, kvd_sequence_sets_take
 * copies the received rows to the pages.
 */
int kvd_sequence_sets_send(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);
int kvd_sequence_sets_take(kvd_sequence_rank *r, int layer, cudaStream_t s, kvd_err *err);

#endif
