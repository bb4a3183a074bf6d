#include "model/checkpoint/cuda/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "kernels/layout.h"
#include "model/checkpoint/cuda/random.h"
#include "model/checkpoint/streaming.h"
#include "model/checkpoint/weights.h"

enum {
    ALIGN = 256,
    CHUNK = 65536,
    /* bytes of each pinned host buffer for copies to the device */
    BUFFER = 16 * 1024 * 1024,
    BUFFERS = 2,
    SLOTS = 2,
};

static const char *no_gradients(const kvd_config *c)
{
    return c->latent > 0                                  ? "latent attention"
           : c->n_experts > 0                             ? "routed experts"
           : c->sinks                                     ? "attention sinks"
           : c->score_softcap > 0 || c->logit_softcap > 0 ? "capped scores or logits"
           : c->score_scale > 0                           ? "a scale of scores of its own"
           : c->embed_scale > 0                           ? "a scaled embedding"
           : kvd_config_norms_branches(c)                 ? "norms after the branches of a layer"
           : c->qk_norm_whole                             ? "norms over all heads of Q and K"
           : isinf(c->rope_local_theta)                   ? "layers without RoPE"
           : c->rope_local_theta > 0                      ? "two RoPE bases"
           : c->rope_dims && c->rope_dims < c->d_head     ? "partial RoPE"
           : c->norm_no_bias                              ? "layer norms without bias"
           : c->activation == KVD_GEGLU_TANH              ? "GELU with a gate"
                                                          : NULL;
}

/* Returns the name of a feature of the model that GPU code does not support for `use`, or NULL if
 * it supports all. */
static const char *not_computed(const kvd_config *c, kvd_gpu_use use)
{
    if (use == KVD_GPU_GRADIENTS)
        return no_gradients(c);
    return use == KVD_GPU_PASS    ? NULL
           : c->latent > 0        ? "latent attention"
           : c->score_softcap > 0 ? "capped scores"
                                  : NULL;
}

int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err)
{
    static const char *const name[] = {[KVD_GPU_PASS] = "forward pass",
                                       [KVD_GPU_GRADIENTS] = "backward pass",
                                       [KVD_GPU_SERVING] = "serving engine"};
    const char *const missing = not_computed(c, use);
    if (missing)
        return kvd_fail(err,
                        "a %s model has %s, which the %s on GPUs does not compute: use "
                        "--device cpu",
                        c->family, missing, name[use]);
    if (c->qk_norm_whole && count > 1)
        return kvd_fail(err,
                        "norms over all heads of Q and K of an %s model cannot be divided by %d "
                        "GPUs: use --gpus 1",
                        c->family, count);
    if (c->latent && count > 1)
        return kvd_fail(err, "the latent of a %s model cannot be divided by %d GPUs: use --gpus 1",
                        c->family, count);
    if (c->n_kv_heads % count)
        return kvd_fail(err, "%d KV heads do not divide by %d GPUs", c->n_kv_heads, count);
    if (c->d_ffn % count)
        return kvd_fail(err, "a feed-forward block of width %d does not divide by %d GPUs",
                        c->d_ffn, count);
    if (c->d_expert % count || c->d_shared % count)
        return kvd_fail(err, "experts of widths %d and %d do not divide by %d GPUs", c->d_expert,
                        c->d_shared, count);
    const int kv_heads = c->n_kv_heads / count, heads = c->n_heads / count, ffn = c->d_ffn / count,
              expert = c->d_expert / count, shared = c->d_shared / count;
    if (use == KVD_GPU_SERVING && heads > KVD_HEADS_MAX)
        return kvd_fail(err,
                        "%d query heads for each of %d GPUs: the serving engine takes up to %d, so "
                        "use more GPUs",
                        heads, count, KVD_HEADS_MAX);
    *out = (kvd_gpu_share){.index = index,
                           .count = count,
                           .first_head = index * heads,
                           .n_heads = heads,
                           .first_kv_head = index * kv_heads,
                           .n_kv_heads = kv_heads,
                           .first_ffn = index * ffn,
                           .n_ffn = ffn,
                           .first_expert = index * expert,
                           .n_expert = expert,
                           .first_shared = index * shared,
                           .n_shared = shared};
    return 0;
}

typedef struct {
    const kvd_checkpoint *checkpoint;
    cudaStream_t stream;
    size_t buffer;
    void *pinned[BUFFERS];
    cudaEvent_t copied[BUFFERS];
    int turn;
    /* [threads][CHUNK] buffers to convert weights from the file's number type to the GPU's */
    float *scratch;
} loader;

static int loader_open(loader *l, const kvd_checkpoint *c, size_t most, kvd_err *err)
{
    const size_t scratch = kvd_thread_count() * CHUNK * sizeof *l->scratch;
    *l = (loader){.checkpoint = c, .buffer = most < BUFFER ? most : BUFFER};
    if (kvd_cuda_check(cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking),
                       "loading weights", err))
        return -1;
    for (int i = 0; i < BUFFERS; i++)
        if (kvd_cuda_check(cudaMallocHost(&l->pinned[i], l->buffer), "a buffer for weights", err) ||
            kvd_cuda_check(cudaEventCreateWithFlags(&l->copied[i], cudaEventDisableTiming),
                           "loading weights", err))
            return -1;
    l->scratch = malloc(scratch);
    return l->scratch ? 0 : kvd_no_memory(err, "converting weights", scratch);
}

static int loader_close(loader *l, kvd_err *err)
{
    const cudaError_t e = l->stream ? cudaStreamSynchronize(l->stream) : cudaSuccess;
    for (int i = 0; i < BUFFERS; i++) {
        if (l->copied[i])
            (void)cudaEventDestroy(l->copied[i]);
        if (l->pinned[i])
            (void)cudaFreeHost(l->pinned[i]);
    }
    if (l->stream)
        (void)cudaStreamDestroy(l->stream);
    free(l->scratch);
    return kvd_cuda_check(e, "loading weights", err);
}

/* rectangular part of a weight matrix that one GPU needs; it begins at row first_row and column
 * first_col */
typedef struct {
    kvd_weight weight;
    size_t first_row, first_col, cols;
    kvd_dtype type;
    /* the matrix in the mapped file, or NULL if it must be converted to the GPU's number type */
    const char *stored;
} cut;

/* Writes n elements of the whole matrix, beginning with element `first`, to `to`, in the GPU's
 * number type. */
static void read_run(const cut *c, size_t first, size_t n, char *to, float *scratch)
{
    const size_t bytes = kvd_dtype_bytes(c->type);
    if (c->stored) {
        memcpy(to, c->stored + first * bytes, n * bytes);
    } else if (c->type == KVD_F32) {
        kvd_weight_read(&c->weight, first, n, (float *)(void *)to);
    } else {
        kvd_weight_read(&c->weight, first, n, scratch);
        kvd_from_f32(c->type, scratch, to, n);
    }
}

/* Writes n <= CHUNK elements of *c, a rectangular part of a matrix, to `to`. Counts elements row by
 * row and begins with number `first`. */
static void read_cut(const cut *c, size_t first, size_t n, char *to, float *scratch)
{
    const size_t bytes = kvd_dtype_bytes(c->type), cols = c->weight.cols;
    if (c->cols == cols) {
        read_run(c, c->first_row * cols + first, n, to, scratch);
        return;
    }
    while (n > 0) {
        const size_t row = c->first_row + first / c->cols, col = first % c->cols;
        const size_t left = c->cols - col, now = left < n ? left : n;
        read_run(c, row * cols + c->first_col + col, now, to, scratch);
        to += now * bytes;
        first += now;
        n -= now;
    }
}

static int make(loader *l, const cut *c, size_t rows, char *to, kvd_err *err)
{
    const kvd_weight *w = &c->weight;
    size_t done = 0;
    while (done < rows) {
        const size_t row = c->first_row + done, left = w->block - row % w->block;
        const size_t now = left < rows - done ? left : rows - done;
        const cudaError_t e = kvd_gpu_random_fill_rows(
            c->type, &w->tensor.random, kvd_weight_at(w, row, c->first_col), w->cols, now, c->cols,
            to + done * c->cols * kvd_dtype_bytes(c->type), c->cols, l->stream);
        if (kvd_cuda_check(e, "random weights", err))
            return -1;
        done += now;
    }
    return 0;
}

/* Copies n weights of *c, a rectangular part of a matrix, to address `to` on the device. Random
 * weights are generated on the device. */
static int send(loader *l, const cut *c, size_t n, char *to, kvd_err *err)
{
    const size_t bytes = kvd_dtype_bytes(c->type), most = l->buffer / bytes;
    if (c->weight.tensor.packing == KVD_RANDOM)
        return make(l, c, n / c->cols, to, err);
    for (size_t first = 0; first < n; first += most, l->turn = (l->turn + 1) % BUFFERS) {
        const size_t now = n - first < most ? n - first : most;
        char *buffer = l->pinned[l->turn];
        if (kvd_cuda_check(cudaEventSynchronize(l->copied[l->turn]), "loading weights", err))
            return -1;
#pragma omp parallel for schedule(dynamic) if (now > CHUNK)
        for (size_t i = 0; i < now; i += CHUNK)
            read_cut(c, first + i, now - i < CHUNK ? now - i : CHUNK, buffer + i * bytes,
                     l->scratch + kvd_thread_index() * CHUNK);
        if (kvd_queue_put(to + first * bytes, buffer, now * bytes, l->stream, "loading weights",
                          err) ||
            kvd_cuda_check(cudaEventRecord(l->copied[l->turn], l->stream), "loading weights", err))
            return -1;
    }
    return 0;
}

/* State of placing weights in device memory from address `base` on. If base is NULL, bytes are only
 * counted. */
typedef struct {
    const kvd_config *c;
    const kvd_gpu_share *share;
    kvd_dtype type;
    char *base;
    size_t used;
    loader *load;
    int expert;
    bool streamed;
} walk;

typedef enum { WHOLE, ROWS, COLUMNS } extent;
typedef struct {
    kvd_part part;
    extent extent;
    int first, n;
} piece;

/* Places n weights one after another in device memory. *to receives their address, or NULL if the
 * model has none of them. */
static int place(walk *w, int layer, bool bias, kvd_dtype type, const piece *p, int n, void *to,
                 kvd_err *err)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        size_t rows, cols;
        if (!kvd_part_shape(w->c, p[i].part, bias, &rows, &cols))
            continue;
        cols = cols ? cols : 1;
        const size_t some = (size_t)p[i].n, first = (size_t)p[i].first;
        const bool by_rows = p[i].extent == ROWS, by_cols = p[i].extent == COLUMNS;
        const size_t elements = (by_rows ? some : rows) * (by_cols ? some : cols);
        if (w->base) {
            cut c = {.first_row = by_rows ? first : 0,
                     .first_col = by_cols ? first : 0,
                     .cols = by_cols ? some : cols,
                     .type = type};
            if (p[i].part < KVD_N_PARTS
                    ? kvd_weight_find(w->load->checkpoint, p[i].part, bias, layer, &c.weight, err)
                    : kvd_weight_find_expert(w->load->checkpoint, p[i].part, bias, layer, w->expert,
                                             &c.weight, err))
                return -1;
            c.stored = kvd_weight_stored(&c.weight, type);
            if (send(w->load, &c, elements, w->base + w->used + bytes, err))
                return -1;
            kvd_tensor_drop(&c.weight.tensor);
        }
        bytes += elements * kvd_dtype_bytes(type);
    }
    void *const at = w->base && bytes ? w->base + w->used : NULL;
    memcpy(to, &at, sizeof at);
    w->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return 0;
}

static int matrix(walk *w, int layer, const piece *p, int n, void **to, kvd_err *err)
{
    return place(w, layer, false, w->type, p, n, to, err);
}

static int vector(walk *w, int layer, bool bias, const piece *p, int n, float **to, kvd_err *err)
{
    return place(w, layer, bias, KVD_F32, p, n, to, err);
}

/* Loads n hidden units of one expert, beginning with unit `first`, to the GPU. */
static int place_expert(walk *w, int l, kvd_part part, int first, int n, kvd_gpu_expert *to,
                        kvd_err *err)
{
    const kvd_part last = (kvd_part)(part + 2);
    const piece gate_up[] = {{part, ROWS, first, n}, {(kvd_part)(part + 1), ROWS, first, n}};
    const piece down = {last, COLUMNS, first, n}, all_down = {last, WHOLE, 0, 0};
    return kvd_status(matrix(w, l, gate_up, 2, &to->gate_up, err) ||
                      vector(w, l, true, gate_up, 2, &to->bias_gate_up, err) ||
                      matrix(w, l, &down, 1, &to->down, err) ||
                      vector(w, l, true, &all_down, 1, &to->bias_down, err));
}

static int place_routed(walk *w, int l, kvd_gpu_expert *to, kvd_err *err)
{
    return place_expert(w, l, KVD_PART_EXPERT_GATE, w->share->first_expert, w->share->n_expert, to,
                        err);
}

static int place_experts(walk *w, int l, kvd_gpu_layer *to, kvd_err *err)
{
    const kvd_gpu_share *s = w->share;
    const piece router = {KVD_PART_ROUTER, WHOLE, 0, 0},
                choice = {KVD_PART_ROUTER_BIAS, WHOLE, 0, 0},
                scale = {KVD_PART_SHARED_SCALE, WHOLE, 0, 0};
    kvd_gpu_expert unused;
    if (vector(w, l, false, &router, 1, &to->router, err) ||
        vector(w, l, true, &router, 1, &to->bias_router, err) ||
        vector(w, l, false, &choice, 1, &to->bias_choice, err) ||
        place_expert(w, l, KVD_PART_SHARED_GATE, s->first_shared, s->n_shared, &to->shared, err) ||
        vector(w, l, false, &scale, 1, &to->shared_scale, err))
        return -1;
    if (w->base && !(to->expert = calloc((size_t)w->c->n_experts, sizeof *to->expert)))
        return kvd_no_memory(err, "the list of experts",
                             (size_t)w->c->n_experts * sizeof *to->expert);
    for (w->expert = 0; w->expert < w->c->n_experts && !w->streamed; w->expert++)
        if (place_routed(w, l, w->base ? &to->expert[w->expert] : &unused, err))
            return -1;
    return 0;
}

static int place_feed_forward(walk *w, int l, kvd_gpu_layer *to, kvd_err *err)
{
    const kvd_gpu_share *s = w->share;
    const piece gate_up[] = {{KVD_PART_GATE, ROWS, s->first_ffn, s->n_ffn},
                             {KVD_PART_UP, ROWS, s->first_ffn, s->n_ffn}};
    const piece down = {KVD_PART_DOWN, COLUMNS, s->first_ffn, s->n_ffn};
    const piece all_down = {KVD_PART_DOWN, WHOLE, 0, 0};
    return kvd_status(matrix(w, l, gate_up, 2, &to->gate_up, err) ||
                      vector(w, l, true, gate_up, 2, &to->bias_gate_up, err) ||
                      matrix(w, l, &down, 1, &to->down, err) ||
                      vector(w, l, true, &all_down, 1, &to->bias_down, err));
}

static int place_latent(walk *w, int l, kvd_gpu_latent *to, kvd_err *err)
{
    const piece q_down = {KVD_PART_Q_DOWN, WHOLE, 0, 0}, q = {KVD_PART_Q, WHOLE, 0, 0},
                norm_q = {KVD_PART_NORM_Q_DOWN, WHOLE, 0, 0}, down = {KVD_PART_LATENT, WHOLE, 0, 0},
                norm = {KVD_PART_NORM_LATENT, WHOLE, 0, 0}, up = {KVD_PART_LATENT_UP, WHOLE, 0, 0};
    return kvd_status(matrix(w, l, &q_down, 1, &to->q_down, err) ||
                      vector(w, l, false, &norm_q, 1, &to->norm_q_down, err) ||
                      matrix(w, l, &q, 1, &to->q, err) || matrix(w, l, &down, 1, &to->down, err) ||
                      vector(w, l, false, &norm, 1, &to->norm, err) ||
                      matrix(w, l, &up, 1, &to->up, err));
}

static int place_qkv(walk *w, int l, kvd_gpu_layer *to, kvd_err *err)
{
    const kvd_gpu_share *s = w->share;
    const int d = w->c->d_head, kv = s->n_kv_heads * d, first_kv = s->first_kv_head * d;
    const piece qkv[] = {{KVD_PART_Q, ROWS, s->first_head * d, s->n_heads * d},
                         {KVD_PART_K, ROWS, first_kv, kv},
                         {KVD_PART_V, ROWS, first_kv, kv}};
    return kvd_status(matrix(w, l, qkv, 3, &to->qkv, err) ||
                      vector(w, l, true, qkv, 3, &to->bias_qkv, err));
}

static int place_layer(walk *w, int l, kvd_gpu_layer *to, kvd_err *err)
{
    const kvd_gpu_share *s = w->share;
    const int d = w->c->d_head, d_o = w->c->latent ? w->c->d_value : d;
    to->n_o = s->n_heads * d_o;
    to->n_qkv = (s->n_heads + 2 * s->n_kv_heads) * d;
    const piece o = {KVD_PART_O, COLUMNS, s->first_head * d_o, s->n_heads * d_o};
    const piece all_o = {KVD_PART_O, WHOLE, 0, 0};
    const piece norm[] = {{KVD_PART_NORM_ATTENTION, WHOLE, 0, 0}, {KVD_PART_NORM_FFN, WHOLE, 0, 0}};
    const piece branch[] = {{KVD_PART_NORM_O, WHOLE, 0, 0}, {KVD_PART_NORM_DOWN, WHOLE, 0, 0}};
    const piece norm_q = {KVD_PART_NORM_Q, WHOLE, 0, 0}, norm_k = {KVD_PART_NORM_K, WHOLE, 0, 0};
    const piece sinks = {KVD_PART_SINKS, ROWS, s->first_head, s->n_heads};
    for (int i = 0; i < 2; i++)
        if (vector(w, l, false, &norm[i], 1, &to->norm[i], err) ||
            vector(w, l, true, &norm[i], 1, &to->norm_bias[i], err) ||
            vector(w, l, false, &branch[i], 1, &to->branch[i], err) ||
            vector(w, l, true, &branch[i], 1, &to->branch_bias[i], err))
            return -1;
    return (w->c->latent ? place_latent(w, l, &to->latent, err) : place_qkv(w, l, to, err)) ||
                   vector(w, l, false, &norm_q, 1, &to->norm_q, err) ||
                   vector(w, l, false, &norm_k, 1, &to->norm_k, err) ||
                   vector(w, l, false, &sinks, 1, &to->sinks, err) ||
                   matrix(w, l, &o, 1, &to->o, err) ||
                   vector(w, l, true, &all_o, 1, &to->bias_o, err) ||
                   (kvd_config_routed(w->c, l) ? place_experts(w, l, to, err)
                                               : place_feed_forward(w, l, to, err))
               ? -1
               : 0;
}

static int place_rest(walk *w, kvd_gpu_weights *to, kvd_err *err)
{
    const piece embedding = {KVD_PART_EMBEDDING, WHOLE, 0, 0}, head = {KVD_PART_HEAD, WHOLE, 0, 0};
    const piece positions = {KVD_PART_POSITIONS, WHOLE, 0, 0},
                norm = {KVD_PART_NORM_FINAL, WHOLE, 0, 0};
    const piece in = {KVD_PART_PROJECT_IN, WHOLE, 0, 0}, out = {KVD_PART_PROJECT_OUT, WHOLE, 0, 0};
    if (matrix(w, 0, &embedding, 1, &to->embedding, err) ||
        vector(w, 0, false, &positions, 1, &to->positions, err) ||
        matrix(w, 0, &in, 1, &to->project_in, err) ||
        vector(w, 0, false, &norm, 1, &to->norm_final, err) ||
        vector(w, 0, true, &norm, 1, &to->norm_final_bias, err))
        return -1;
    to->project_out = to->head = NULL;
    if (w->share->index > 0)
        return 0;
    to->head = to->embedding;
    return kvd_status(matrix(w, 0, &out, 1, &to->project_out, err) ||
                      (!w->c->tied_head && matrix(w, 0, &head, 1, &to->head, err)));
}

static size_t expert_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share)
{
    walk w = {.c = c, .share = share, .type = type};
    kvd_gpu_expert expert;
    kvd_err unused;
    (void)place_routed(&w, 0, &expert, &unused);
    return w.used;
}

size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed)
{
    walk w = {.c = c, .share = share, .type = type, .streamed = streamed};
    kvd_gpu_layer layer;
    kvd_gpu_weights rest;
    kvd_err unused;
    for (int l = 0; l < c->n_layers; l++)
        (void)place_layer(&w, l, &layer, &unused);
    (void)place_rest(&w, &rest, &unused);
    return w.used + (streamed ? SLOTS * expert_bytes(c, type, share) : 0);
}

static const char what[] = "streamed experts";

struct kvd_gpu_expert_stream {
    kvd_config config;
    kvd_gpu_share share;
    loader load;
    walk place;
    char *slot[SLOTS];
    /* for each buffer, an event at the end of the last work that reads it */
    cudaEvent_t used[SLOTS];
    cudaEvent_t copied;
    int turn;
};

static void stream_close(kvd_gpu_expert_stream *s)
{
    kvd_err unused;
    if (!s)
        return;
    (void)loader_close(&s->load, &unused);
    for (int i = 0; i < SLOTS; i++)
        if (s->used[i])
            (void)cudaEventDestroy(s->used[i]);
    if (s->copied)
        (void)cudaEventDestroy(s->copied);
    free(s);
}

/* Prepares two device buffers, at address `slots`, to which experts are copied when they are
 * needed. */
static int stream_open(kvd_gpu_weights *w, const kvd_checkpoint *c, char *slots, kvd_err *err)
{
    const size_t bytes = expert_bytes(&w->config, w->type, &w->share);
    kvd_gpu_expert_stream *const s = w->streamed = calloc(1, sizeof *s);
    if (!s)
        return kvd_no_memory(err, what, sizeof *s);
    s->config = w->config;
    s->share = w->share;
    s->place = (walk){.c = &s->config, .share = &s->share, .type = w->type, .load = &s->load};
    for (int i = 0; i < SLOTS; i++) {
        s->slot[i] = slots + (size_t)i * bytes;
        if (kvd_cuda_check(cudaEventCreateWithFlags(&s->used[i], cudaEventDisableTiming), what,
                           err))
            return -1;
    }
    return kvd_status(
        kvd_cuda_check(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming), what, err) ||
        loader_open(&s->load, c, bytes, err));
}

int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err)
{
    s->place.base = s->slot[s->turn];
    s->place.used = 0;
    s->place.expert = expert;
    return kvd_status(
        kvd_cuda_check(cudaStreamWaitEvent(s->load.stream, s->used[s->turn], 0), what, err) ||
        place_routed(&s->place, layer, to, err) ||
        kvd_cuda_check(cudaEventRecord(s->copied, s->load.stream), what, err) ||
        kvd_cuda_check(cudaStreamWaitEvent(stream, s->copied, 0), what, err));
}

int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err)
{
    const int slot = s->turn;
    s->turn = (s->turn + 1) % SLOTS;
    return kvd_cuda_check(cudaEventRecord(s->used[slot], stream), what, err);
}

static int allocate(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_err *err)
{
    size_t left = 0, total = 0;
    w->layer = calloc((size_t)w->config.n_layers, sizeof *w->layer);
    if (!w->layer)
        return kvd_no_memory(err, "the list of weights",
                             (size_t)w->config.n_layers * sizeof *w->layer);
    if (kvd_cuda_check(cudaMemGetInfo(&left, &total), "weights", err))
        return -1;
    const cudaError_t e = cudaMalloc(&w->arena, w->bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return kvd_fail(err,
                        "'%s': weights of %zu bytes in %s, the device has %zu of %zu bytes left",
                        kvd_checkpoint_path(c), w->bytes, kvd_dtype_name(w->type), left, total);
    }
    return kvd_cuda_check(e, "weights", err);
}

static int fill(kvd_gpu_weights *w, loader *l, kvd_err *err)
{
    walk all = {.c = &w->config,
                .share = &w->share,
                .type = w->type,
                .base = w->arena,
                .load = l,
                .streamed = w->streamed != NULL};
    for (int layer = 0; layer < w->config.n_layers; layer++)
        if (place_layer(&all, layer, &w->layer[layer], err))
            return -1;
    return place_rest(&all, w, err);
}

int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err)
{
    const kvd_config *config = kvd_checkpoint_config(c);
    loader l = {0};
    kvd_err second;
    *w = (kvd_gpu_weights){.config = *config, .type = type, .share = *share};
    w->bytes = kvd_gpu_weights_bytes(config, type, share, streamed);
    if (allocate(w, c, err) ||
        (streamed &&
         stream_open(w, c, (char *)w->arena + w->bytes - SLOTS * expert_bytes(config, type, share),
                     err))) {
        kvd_gpu_weights_release(w);
        return -1;
    }
    const int status = loader_open(&l, c, w->bytes, err) || fill(w, &l, err);
    if (loader_close(&l, status ? &second : err) || status) {
        kvd_gpu_weights_release(w);
        return -1;
    }
    return 0;
}

void kvd_gpu_weights_release(kvd_gpu_weights *w)
{
    stream_close(w->streamed);
    if (w->arena)
        (void)cudaFree(w->arena);
    for (int l = 0; w->layer && l < w->config.n_layers; l++)
        free(w->layer[l].expert);
    free(w->layer);
    *w = (kvd_gpu_weights){0};
}
