/* Interface of compression methods in the CUDA engine that do more than project heads. Callbacks
 * queue work and never wait.
 *
 * A layer stores new K and V, calls `appended`, computes attention of prompts, then of decode
 * steps, and calls `attended`.
 *
 * Decode steps are CUDA graphs, so lengths, slots and positions must be read from device memory.
 * Dummy requests that pad a batch use slot number n_slots. */
#ifndef KVD_METHODS_CUDA_GPU_METHOD_H
#define KVD_METHODS_CUDA_GPU_METHOD_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/iteration.h"
#include "methods/plan.h"

struct kvd_host_codes;
struct kvd_host_entries;
struct kvd_paged_cache;
typedef struct kvd_gpu_method kvd_gpu_method;

typedef struct {
    int layer;
    /* Q, K and V of the new tokens, after RoPE unless hook.wants_raw is set. */
    const void *x;
    size_t ld;
    /* Q and K before RoPE, ld_pre elements per token. NULL unless hook.wants_pre is set. */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /* Layer inputs, bf16 [tokens][d_model]. NULL unless hook.wants_input is set. */
    const void *input;
    /* Number of decode steps, which come first in the batch. */
    size_t steps;
    /* Number of prompts or chunks; 0 during capture of a CUDA graph. */
    size_t prompts;
    cudaStream_t stream;
} kvd_paged_rows;

/* Page tables, one per KV head. Row b * n_kv_heads + g: KV head g of the b-th decoding request. */
typedef struct {
    /* Dimensions and offsets of one KV head and its query heads. */
    kvd_attn_map map;
    /* Number of page table rows: largest number of requests per iteration times n_kv_heads. */
    size_t rows;
    /* [layers][rows] in device memory: number of cached tokens, the new one included. */
    const int32_t *kv_len;
    /* [1] in device memory: number of page table rows in use, one per KV head of each decoding
     * request. */
    const int32_t *live;
    /* [layers][rows][max_pages] in device memory: numbers of the pages that hold the tokens. */
    const int32_t *table;
    void *pool;
} kvd_gpu_heads;

/* GPU state and callbacks of a compression method. Members that it does not need are NULL or 0. */
struct kvd_gpu_method {
    struct kvd_paged_cache *cache; /* borrowed */
    const kvd_plan *plan;          /* borrowed, open */
    /* Data compressed on the CPU, or NULL. kvd_gpu_method_free frees it. */
    struct kvd_host_codes *codes;
    struct kvd_host_entries *kept; /* kept tokens compressed on the CPU, or NULL */
    /* True if all layers share one set of bf16 pages, which the callback `appended` fills anew for
     * each layer. */
    bool one_layer;
    /* True if layers with a sliding window keep their K and V in bf16 pages, outside the
     * compression method's memory. */
    bool skips_windows;
    /* [n_layers] True for layers without a window that keep uncompressed K and V. NULL: none. */
    const bool *skips;
    /* True if a timing run may begin with a decode step although no prompt was processed. */
    bool anywhere;
    /* True if the compression method must process a prompt at once, not in chunks. */
    bool whole_prompts;
    /* True if only prompts need Q and K before RoPE (hook.wants_pre). */
    bool pre_of_prompts;
    /* True if the callbacks `attended` and `attended_window` need not be called in iterations that
     * have only decode steps. */
    bool attended_prompts;
    /* Bit p is set if the compression method measures phase p (enum kvd_phase) separately, not as a
     * part of another phase. */
    unsigned apart;
    /* Page tables, one per KV head, or NULL if all KV heads cache the same tokens. If not NULL, the
     * callback `appended` must copy new K and V to the pages in these tables. */
    const kvd_gpu_heads *heads;
    /* Name of the kernels that replace the attention of decode steps, or NULL. */
    const char *kernels;
    /* Bytes that the compression method adds to each page, summed over the layers without a sliding
     * window (page_bytes) and with one (near_page_bytes). */
    size_t page_bytes, near_page_bytes;
    /* Bytes that a running request needs outside the pages, summed over layers. */
    size_t slot_bytes;
    /* Allocates memory for `pages` pages per layer and `slots` requests. Layers with a sliding
     * window have cache->near->n_pages pages. */
    int (*make)(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

    /* [n_heads][rows of Q] in device memory: natural log of prompt tokens' softmax denominators. */
    float *lse;
    /* [steps][n_heads] in device memory: natural log of decode steps' softmax denominators. */
    float *lse_steps;

    /* Called before (`begin`) and after (`ended`) each iteration. `begin` may reject the
     * iteration. */
    int (*begin)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    int (*ended)(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
    /* Returns how many tokens are cached for a request that has processed `before` tokens. */
    size_t (*entries)(const kvd_gpu_method *m, size_t slot, size_t before);
    /* Returns the mean number of cached tokens over KV heads and layers. NULL if all KV heads and
     * layers cache equally many. */
    double (*mean)(const kvd_gpu_method *m, size_t slot);
    /* Returns the number of merged tokens, summed over KV heads and layers. NULL means 0. */
    size_t (*merged)(const kvd_gpu_method *m, size_t slot);
    /* Returns the number of low-precision tokens, summed over KV heads and layers. NULL means 0. */
    size_t (*lowered)(const kvd_gpu_method *m, size_t slot);
    /* Returns the number of tokens with pruned keys, over all KV heads and layers. NULL: 0. */
    size_t (*pruned)(const kvd_gpu_method *m, size_t slot);
    /* Frees a running request's memory outside the bf16 pages. */
    void (*drop)(kvd_gpu_method *m, size_t slot);
    /* Returns how many bytes the compressed K and V of all running requests take. */
    double (*held)(const kvd_gpu_method *m);
    /* Returns the number of bits that store a request's K and V, without other data that the method
     * stores per token (entry_bits). NULL if K and V are uncompressed. */
    double (*bits)(const kvd_gpu_method *m, size_t slot);
    /* Returns how many stored bits of a request the latest decode step did not read, because their
     * tokens had left the window. NULL means 0. */
    double (*unseen)(const kvd_gpu_method *m, size_t slot);
    /* Sets *side to the number of bits of data, other than K and V, that a decode step reads to
     * choose tokens. Sets *unread to the mean number of tokens that the step does not read. NULL:
     * steps read all tokens. */
    void (*reads)(const kvd_gpu_method *m, size_t slot, double *side, double *unread);

    /* Returns the buffer size that the latest iteration needed, in key outliers per page or in
     * words per entropy-coded stream. Returns 0 if the buffers were large enough. NULL: the method
     * has no such buffers. */
    size_t (*lacking)(const kvd_gpu_method *m);

    int (*appended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attended)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /* Called after the attention of a layer with a sliding window, if skips_windows is true.
     * Replaces K and V in the layer's bf16 pages by their compressed and decoded values. NULL if
     * they stay as they are. */
    int (*attended_window)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    /* Optional replacements for functions of the paged cache. plan_steps divides the attention of n
     * decode steps among thread blocks, `append` stores new K and V. attend_steps and
     * attend_prompts write attention outputs of decode steps and of prompts to `out`. */
    int (*plan_steps)(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err);
    int (*append)(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err);
    int (*attend_steps)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    int (*attend_prompts)(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err);
    void (*free)(kvd_gpu_method *m);
};

/* Features of models that a method's GPU code may support, for kvd_gpu_kind.computes. */
enum {
    KVD_GPU_WINDOWS = 1,
    KVD_GPU_SINKS = 2,
    KVD_GPU_SCALE = 4, /* a scale of scores other than 1 / sqrt(d_head) */
    KVD_GPU_WIDE = 8   /* heads of more than KVD_WIDTH_NARROW dimensions */
};

/* Description of a method's GPU code. kvd_method_info.gpu of the method points to it. */
typedef struct kvd_gpu_kind {
    /* Returns the model features (KVD_GPU_* bits) that this GPU code supports. NULL: none. */
    unsigned (*computes)(const kvd_plan *plan);
    /* True if several GPUs may divide the tokens of one prompt. */
    bool shares_prompts;
    /* Returns why several GPUs cannot divide the KV heads among them, as a part of a message, or
     * NULL if they can. A method without this function sets `joined` to the reason instead. */
    const char *(*joins_heads)(const kvd_plan *plan);
    const char *joined;
    /* Returns true if this GPU code can run the methods of `plan`. NULL: it always can. */
    bool (*runs)(const kvd_plan *plan);
    /* Returns true if this GPU code can generate text, for which its methods must set the callbacks
     * `entries` and `bits`. NULL means false. */
    bool (*generates)(const kvd_plan *plan);
    /* Returns true if the CPU compresses K and V of generated text. NULL: never. */
    bool (*codes_on_host)(const kvd_plan *plan);
    /* Returns true if kernels support the model's heads. NULL: kvd_gpu_method_check decides. */
    bool (*fits)(const kvd_plan *plan, const kvd_config *config);
    /* Returns true if the method's GPU code can undo RoPE, to get keys before RoPE. NULL means
     * false. */
    bool (*before_rope)(const kvd_plan *plan);
    /* Creates *m, which the cache owns even after a failure. Errors name what is not supported. */
    int (*open)(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                kvd_err *err);
} kvd_gpu_kind;

/* Makes CUDA stream `later` wait for all current work of CUDA stream `earlier`. */
int kvd_gpu_queue_after(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event,
                        const char *what, kvd_err *err);
/* Returns the name of the first compression method in `plan`, or NULL. */
const char *kvd_gpu_method_name(const kvd_plan *plan);

/* Returns the GPU code that runs the compression methods of `plan`, or NULL. */
const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *plan);

/* Returns the code that runs the compression methods of `plan` in text generation on a GPU, or
 * NULL. That code may compress K and V on the CPU. */
const kvd_gpu_kind *kvd_gpu_kind_of_text(const kvd_plan *plan, const kvd_config *config,
                                         size_t max_len);

/* Returns false if methods of `plan` need keys before RoPE, but the GPU code can only get keys
 * after RoPE for this model. */
bool kvd_gpu_has_keys(const kvd_gpu_kind *kind, const kvd_plan *plan, const kvd_config *config);
/* Returns the index of the oldest of a request's n tokens that a layer still stores. window: the
 * layer's sliding window in tokens, or 0. Tokens that are quantised as a block are stored as long
 * as one of them is in the window. */
size_t kvd_gpu_first_held(const kvd_gpu_method *m, size_t window, size_t n);

/* Returns why several GPUs cannot divide the KV heads among them, or NULL if they can. */
const char *kvd_gpu_heads_joined(const kvd_plan *plan);
/* Returns NULL, which means that several GPUs can divide the KV heads among them. Used as the
 * callback joins_heads of struct kvd_gpu_kind. */
const char *kvd_gpu_heads_apart(const kvd_plan *plan);

/* Fails if the GPU code `kind` does not support a feature of the model, such as sliding windows. If
 * `kind` is NULL, no feature (KVD_GPU_*) is supported. */
int kvd_gpu_method_check(const kvd_gpu_kind *kind, const kvd_plan *p, const kvd_config *c,
                         size_t max_len, kvd_err *err);

/* Returns the name of a compression method in `p` that does not choose tokens, or NULL. */
const char *kvd_gpu_method_beside_tokens(const kvd_plan *p);

/* Creates the GPU state *m of the plan's methods. *m is NULL if K and V are uncompressed or only
 * projected. `cache` must have its layers, but no pages yet. */
int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err);

/* Calls the compression method's callback `make`, unless it is NULL. */
int kvd_gpu_method_make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream,
                        kvd_err *err);
int kvd_gpu_method_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
int kvd_gpu_method_ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
/* Waits until the stored bits of all requests' K and V are counted. Must be called before
 * kvd_gpu_method_held and kvd_gpu_method_bits. */
int kvd_gpu_method_finish(kvd_gpu_method *m, kvd_err *err);
void kvd_gpu_method_drop(kvd_gpu_method *m, size_t slot);
double kvd_gpu_method_held(const kvd_gpu_method *m);
/* Returns the number of bits that store a request's K and V, or NaN if they are uncompressed. */
double kvd_gpu_method_bits(const kvd_gpu_method *m, size_t slot);
double kvd_gpu_method_unseen(const kvd_gpu_method *m, size_t slot);
void kvd_gpu_method_free(kvd_gpu_method *m);

/* Replaces x [n] by its sum over all GPUs. The time counts in KVD_PHASE_COMM. */
int kvd_gpu_method_add_up(const kvd_gpu_method *m, float *x, size_t n, cudaStream_t stream,
                          kvd_err *err);

#endif
