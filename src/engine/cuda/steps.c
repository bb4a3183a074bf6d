/* Queues the kernels of an iteration on the GPU, from the embedding of tokens to the next
 * tokens. */
#include <string.h>

#include "engine/cuda/engine_parts.h"
#include "engine/cuda/small.h"

static const char what[] = "steps";

/* Records the end of phase p on the GPU's clock. The ends of attention phases are recorded
 * elsewhere. */
static void queued(void *ctx, kvd_gpu_phase p, cudaStream_t stream)
{
    static const int phase[KVD_GPU_PHASES] = {[KVD_GPU_EMBED] = KVD_PHASE_EMBED,
                                              [KVD_GPU_NORM] = KVD_PHASE_NORM,
                                              [KVD_GPU_QKV] = KVD_PHASE_QKV,
                                              [KVD_GPU_ROPE] = KVD_PHASE_ROPE,
                                              [KVD_GPU_ATTENTION] = -1,
                                              [KVD_GPU_O] = KVD_PHASE_O,
                                              [KVD_GPU_GATE_UP] = -1,
                                              [KVD_GPU_ACTIVATION] = -1,
                                              [KVD_GPU_DOWN] = KVD_PHASE_MLP,
                                              [KVD_GPU_SUM] = KVD_PHASE_COMM,
                                              [KVD_GPU_FINAL] = -1};
    kvd_cuda_engine *const e = ctx;
    /* Errors of the clock can be ignored here, because the next kernel launch reports them. */
    kvd_err unused;
    if (phase[p] >= 0 && phase[p] != (int)kvd_paged_cache_behind(&e->cache))
        (void)kvd_clock_end(&e->clock, (kvd_phase)phase[p], stream, &unused);
}

typedef struct {
    void *w;
    kvd_few_codes *codes;
    size_t rows, in;
    bool gated;
} matrix;

enum { MATRICES = 4 };

static void matrices_of(kvd_cuda_engine *e, int l, matrix m[MATRICES])
{
    kvd_gpu_layer *const w = &e->w.weights.layer[l];
    kvd_layer_codes *const c = &e->codes[l];
    const size_t model = (size_t)e->w.config.d_model, ffn = (size_t)e->w.weights.share.n_ffn;
    const bool gated = kvd_config_gated(&e->w.config);
    m[0] = (matrix){w->qkv, &c->qkv, (size_t)w->n_qkv, model, false};
    m[1] = (matrix){w->o, &c->o, model, (size_t)w->n_o, false};
    m[2] = (matrix){w->gate_up, &c->gate_up, gated ? 2 * ffn : ffn, model, gated};
    m[3] = (matrix){w->down, &c->down, model, ffn, false};
}

static int check_codes(const kvd_cuda_engine *e, kvd_err *err)
{
    const kvd_config *const c = &e->w.config;
    const int ffn = e->w.weights.share.n_ffn;
    if (c->n_experts || c->latent)
        return kvd_fail(err,
                        "weights of 4 bits: a %s model has %s, whose matrices are not quantised",
                        c->family, c->n_experts ? "routed experts" : "latent attention");
    for (int l = 0; l < c->n_layers; l++) {
        const int o = e->w.weights.layer[l].n_o;
        if (c->d_model % KVD_FEW_UNIT || ffn % KVD_FEW_UNIT || o % KVD_FEW_UNIT)
            return kvd_fail(err,
                            "weights of 4 bits: layer %d has matrices of %d, %d and %d columns, "
                            "which must be multiples of %d",
                            l, c->d_model, o, ffn, KVD_FEW_UNIT);
    }
    return 0;
}

/* Quantises a matrix to 4 bits and stores it at memory + *at. Adds the size of the stored data to
 * *at. If `memory` is NULL, stores nothing. */
static int place_codes(const kvd_cuda_engine *e, const matrix *m, char *memory, size_t *at,
                       kvd_err *err)
{
    enum { ALIGNED = 256 };
    size_t sides;
    const size_t codes = kvd_few_codes_bytes(m->rows, m->in, &sides);
    if (memory)
        *m->codes = (kvd_few_codes){memory + *at, memory + *at + codes};
    *at += (codes + sides + ALIGNED - 1) / ALIGNED * ALIGNED;
    return memory ? kvd_cuda_check(
                        kvd_few_codes_pack(m->w, m->rows, m->in, m->gated, m->codes, e->w.stream),
                        "weights of 4 bits", err)
                  : 0;
}

int kvd_cuda_codes_make(kvd_cuda_engine *e, kvd_err *err)
{
    const size_t layers = (size_t)e->w.config.n_layers;
    char *memory = NULL;
    if (check_codes(e, err))
        return -1;
    e->codes = kvd_device_host(&e->memory, layers * sizeof *e->codes, "weights of 4 bits", err);
    if (!e->codes)
        return -1;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (size_t l = 0; l < layers; l++) {
            matrix m[MATRICES];
            matrices_of(e, (int)l, m);
            for (int i = 0; i < MATRICES; i++)
                if (place_codes(e, &m[i], memory, &at, err))
                    return -1;
        }
        e->codes_bytes = at;
        if (!pass && !(memory = kvd_device_new(&e->memory, at, "weights of 4 bits", err)))
            return -1;
    }
    return 0;
}

double kvd_cuda_codes_replace(kvd_cuda_engine *e)
{
    matrix m[MATRICES];
    double bytes = 0;
    for (int l = 0; l < e->w.config.n_layers; l++) {
        matrices_of(e, l, m);
        for (int i = 0; i < MATRICES; i++)
            bytes += (double)(m[i].rows * m[i].in) * sizeof(uint16_t);
    }
    return bytes;
}

static int restore_layer(kvd_cuda_engine *e, int l, kvd_err *err)
{
    matrix m[MATRICES];
    matrices_of(e, l, m);
    for (int i = 0; i < MATRICES; i++)
        if (kvd_cuda_check(kvd_few_codes_restore(m[i].codes, m[i].rows, m[i].in, m[i].gated, m[i].w,
                                                 e->w.stream),
                           "weights of 4 bits", err))
            return -1;
    return kvd_clock_end(&e->clock, KVD_PHASE_RESTORE, e->w.stream, err);
}

void kvd_cuda_layers_begin(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at)
{
    kvd_gpu_worker *const w = &e->w;
    w->id = (uint32_t *)id;
    w->position = w->rope_row = (uint32_t *)at;
    w->queued = e->clock.on ? queued : NULL;
    w->queued_ctx = e;
}

int kvd_cuda_layers(kvd_cuda_engine *e, const uint32_t *id, const uint32_t *at, size_t n,
                    kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    const size_t offset[2] = {0, n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset};
    kvd_cuda_layers_begin(e, id, at);
    if (kvd_gpu_embedding(w, n, err))
        return -1;
    for (int l = 0; l < w->config.n_layers; l++)
        if ((e->codes && restore_layer(e, l, err)) ||
            kvd_gpu_layer_run(w, &b, l, &e->cache.hook, 0, err))
            return -1;
    return 0;
}

/* Returns 1 on the first GPU, the only one that computes logits, else 0. */
int kvd_cuda_has_head(const kvd_cuda_engine *e)
{
    return e->w.weights.share.index == 0;
}

static int sample(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    const cudaStream_t s = e->w.stream;
    return kvd_status(
        kvd_clock_end(&e->clock, KVD_PHASE_HEAD, s, err) ||
        kvd_cuda_check(cudaMemsetAsync(e->key, 0, n * sizeof *e->key, s), what, err) ||
        kvd_cuda_check(kvd_largest(e->logits, n, (size_t)e->w.config.vocab_size, e->key,
                                   kvd_gpu_stage_final(&e->w.config), e->w.bad, s),
                       what, err) ||
        kvd_clock_end(&e->clock, KVD_PHASE_SAMPLE, s, err));
}

int kvd_cuda_tokens(kvd_cuda_engine *e, float *x, size_t n, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    if (!kvd_cuda_has_head(e))
        return 0;
    /* number that is reported if the GPU finds a NaN or infinity in x */
    const unsigned stage =
        kvd_config_norms_branches(&w->config) ? kvd_gpu_stage_final(&w->config) : w->stage;
    const cudaError_t status =
        kvd_gpu_norm(w->config.norm, w->weights.type, x, w->pending, w->weights.norm_final,
                     w->weights.norm_final_bias, w->config.norm_eps, n, (size_t)w->config.d_model,
                     w->normed, stage, w->bad, w->stream);
    w->pending = NULL;
    return kvd_status(kvd_cuda_check(status, "final norm", err) ||
                      kvd_gpu_head_of(w, w->normed, n, e->logits, err) || sample(e, n, err));
}

int kvd_cuda_fetch(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    const cudaStream_t s = e->w.stream;
    return kvd_status((n && kvd_cuda_has_head(e) &&
                       kvd_queue_get(e->host_key, e->key, n * sizeof *e->key, s, what, err)) ||
                      kvd_queue_get(e->host_bad, e->w.bad, sizeof *e->host_bad, s, what, err) ||
                      kvd_clock_fetch(&e->clock, s, err));
}

static int few_takes_layer(const kvd_cuda_engine *e, const kvd_gpu_layer *l, size_t n)
{
    const kvd_config *const c = &e->w.config;
    if (!kvd_few_rows_take(KVD_FEW_ADD, n, (size_t)l->n_o))
        return 0;
    if (l->expert)
        return !kvd_config_norms_branches(c) && kvd_gpu_experts_norm(&e->w, l, n);
    return !c->bias_o && !c->bias_ffn &&
           kvd_few_rows_take(KVD_FEW_ADD, n, (size_t)e->w.weights.share.n_ffn);
}

int kvd_cuda_few(const kvd_cuda_engine *e, size_t n)
{
    const kvd_config *const c = &e->w.config;
    const size_t model = (size_t)c->d_model;
    const int branches = kvd_config_norms_branches(c);
    const bool pre =
        e->cache.hook.wants_pre && !(e->cache.method && e->cache.method->pre_of_prompts);
    if (pre || e->cache.exact_prompts || c->norm != KVD_NORM_RMS ||
        (c->order != KVD_ORDER_BEFORE && !branches) ||
        (c->activation != KVD_SWIGLU && c->activation != KVD_GEGLU_TANH) || c->latent ||
        c->no_final_norm || kvd_config_d_embed(c) != c->d_model ||
        (branches && !kvd_gpu_branch_takes(model)))
        return 0;
    for (int l = 0; l < c->n_layers; l++)
        if (!few_takes_layer(e, &e->w.weights.layer[l], n))
            return 0;
    return kvd_few_rows_take(KVD_FEW_STORE, n, model);
}

/* Queues the matrix product *p, whose input is the normalised residual stream. If `normed` is true,
 * e->w.normed already holds this input. */
static int norm_and(kvd_cuda_engine *e, kvd_few_rows *p, size_t n, const float *gain, bool normed,
                    unsigned stage, kvd_phase before, kvd_err *err)
{
    p->n = n;
    p->in = (size_t)e->w.config.d_model;
    p->x = normed ? e->w.normed : NULL;
    p->residual = e->w.x;
    p->gain = gain;
    p->eps = e->w.config.norm_eps;
    p->stage = stage;
    p->bad = e->w.bad;
    p->began = kvd_clock_end_by(&e->clock, before);
    return kvd_cuda_check(kvd_few_rows_run(p, e->w.stream), what, err);
}

/* Replaces `rows` [n][d_model] on every GPU by the sum of this array over all GPUs. Does nothing on
 * one GPU. *open: phase whose time is being measured; becomes KVD_PHASE_COMM. */
static int sum_up(kvd_cuda_engine *e, float *rows, size_t n, kvd_phase *open, kvd_err *err)
{
    const kvd_gpu_worker *const w = &e->w;
    if (!w->sum)
        return 0;
    if (kvd_clock_end(&e->clock, *open, w->stream, err))
        return -1;
    *open = KVD_PHASE_COMM;
    return kvd_gpu_sum_add(w->sum, w->weights.share.index, rows, n * (size_t)w->config.d_model,
                           w->stream, err);
}

/* Last matrix product of attention (W_O) or of feed-forward (down), which is added to the residual
 * stream. */
typedef struct {
    const void *matrix;
    kvd_few_codes codes; /* codes of the matrix, or zeros */
    size_t width;
    kvd_phase phase;
    unsigned stage;            /* number of the check after the product */
    unsigned long long *began; /* as in kvd_few_rows */
    /* Gains of two norms: of the matrix product (`gain`), and of its sum with the residual stream
     * (`next`). NULL: the model lacks the norm. */
    const float *gain, *next;
} last_product;

static int add_normed(kvd_cuda_engine *e, size_t n, const last_product *l, kvd_err *err)
{
    const kvd_gpu_worker *const w = &e->w;
    const kvd_gpu_branch a = {.n = n,
                              .d = (size_t)w->config.d_model,
                              .x = w->x,
                              .branch = w->branch,
                              .gain_branch = l->gain,
                              .gain = l->next,
                              .eps = w->config.norm_eps,
                              .y = w->normed,
                              .stage = l->stage,
                              .bad = w->bad};
    return kvd_cuda_check(kvd_gpu_branch_add(&a, w->stream), what, err);
}

/* Multiplies the output of attention or of the activation function by l->matrix, and sums the
 * product over all GPUs. Adds the sum to the residual stream. */
static int into_residual(kvd_cuda_engine *e, size_t n, const last_product *l, kvd_phase *open,
                         kvd_err *err)
{
    const int branches = kvd_config_norms_branches(&e->w.config);
    float *const to = branches ? e->w.branch : e->w.x;
    const kvd_few_rows p = {.kind =
                                branches || e->w.weights.share.index ? KVD_FEW_PUT : KVD_FEW_ADD,
                            .n = n,
                            .in = l->width,
                            .out = (size_t)e->w.config.d_model,
                            .w = l->matrix,
                            .codes = l->codes,
                            .x = e->w.narrow,
                            .y = to,
                            .began = l->began};
    if (kvd_cuda_check(kvd_few_rows_run(&p, e->w.stream), what, err))
        return -1;
    *open = l->phase;
    return sum_up(e, to, n, open, err) || (branches && add_normed(e, n, l, err)) ? -1 : 0;
}

/* Returns the gain of the norm before layer l or, if l is n_layers, before the output head. NULL if
 * the model has no norms before layers. */
static const float *gain_before(const kvd_gpu_worker *w, int l)
{
    return l == w->config.n_layers               ? w->weights.norm_final
           : kvd_config_norms_inputs(&w->config) ? w->weights.layer[l].norm[0]
                                                 : NULL;
}

static int write_input(const kvd_gpu_worker *w, int l, size_t n, kvd_err *err)
{
    return kvd_cuda_check(kvd_gpu_norm(KVD_NORM_RMS, KVD_BF16, w->x, NULL, gain_before(w, l), NULL,
                                       w->config.norm_eps, n, (size_t)w->config.d_model, w->normed,
                                       kvd_gpu_stage_before(l), w->bad, w->stream),
                          what, err);
}

static kvd_layer_codes codes_of(const kvd_cuda_engine *e, int l)
{
    static const kvd_layer_codes none = {0};
    return e->codes ? e->codes[l] : none;
}

static int few_attention(kvd_cuda_engine *e, int l, size_t n, kvd_phase *open, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    const kvd_gpu_layer *const m = &w->weights.layer[l];
    const kvd_paged_rows rows = {.layer = l,
                                 .x = w->qkv,
                                 .ld = (size_t)m->n_qkv,
                                 .input = e->cache.hook.wants_input ? w->normed : NULL,
                                 .steps = n,
                                 .stream = w->stream};
    const bool branches = kvd_config_norms_branches(&w->config);
    kvd_phase attention;
    const kvd_layer_codes codes = codes_of(e, l);
    kvd_few_rows qkv = {.kind = KVD_FEW_STORE,
                        .out = (size_t)m->n_qkv,
                        .w = m->qkv,
                        .codes = codes.qkv,
                        .y = w->qkv};
    if ((rows.input && !branches && write_input(w, l, n, err)) ||
        norm_and(e, &qkv, n, m->norm[0], rows.input || branches, kvd_gpu_stage_before(l), *open,
                 err) ||
        (!e->cache.hook.wants_raw &&
         kvd_gpu_finish_qkv(w, l, n, &e->cache.hook, kvd_clock_end_by(&e->clock, KVD_PHASE_QKV),
                            err)) ||
        kvd_paged_cache_put(&e->cache, &rows, err) ||
        kvd_paged_cache_attend(&e->cache, &rows, w->narrow, &attention, err))
        return -1;
    const last_product o = {.matrix = m->o,
                            .codes = codes.o,
                            .width = (size_t)m->n_o,
                            .phase = KVD_PHASE_O,
                            .stage = kvd_gpu_stage_before(l + 1),
                            .began = kvd_clock_end_by(&e->clock, attention),
                            .gain = m->branch[0],
                            .next = kvd_config_norms_inputs(&w->config) ? m->norm[1] : NULL};
    return into_residual(e, n, &o, open, err);
}

static int few_experts(kvd_cuda_engine *e, int l, size_t n, kvd_phase *open, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    w->stage = kvd_gpu_stage_before(l + 1);
    w->pending = w->weights.layer[l].bias_o;
    if (kvd_clock_end(&e->clock, *open, w->stream, err) ||
        kvd_gpu_experts_add(w, &w->weights.layer[l], n, err))
        return -1;
    *open = KVD_PHASE_MLP;
    return sum_up(e, w->x, n, open, err);
}

/* Queues layer l of a decode step of n requests. *open: kind of work, such as KVD_PHASE_MLP, whose
 * time is being measured; updated by this function. */
static int few_layer(kvd_cuda_engine *e, int l, size_t n, kvd_phase *open, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    const kvd_gpu_layer *const m = &w->weights.layer[l];
    const size_t ffn = (size_t)w->weights.share.n_ffn;
    const unsigned stage = kvd_gpu_stage_before(l + 1);
    const kvd_layer_codes codes = codes_of(e, l);
    kvd_few_rows gate_up = {.kind = w->config.activation == KVD_SWIGLU ? KVD_FEW_SWIGLU
                                                                       : KVD_FEW_GEGLU_TANH,
                            .out = ffn,
                            .w = m->gate_up,
                            .codes = codes.gate_up,
                            .y = w->narrow};
    const last_product down = {.matrix = m->down,
                               .codes = codes.down,
                               .width = ffn,
                               .phase = KVD_PHASE_MLP,
                               .stage = stage,
                               .gain = m->branch[1],
                               .next = gain_before(w, l + 1)};
    if (few_attention(e, l, n, open, err))
        return -1;
    if (m->expert)
        return few_experts(e, l, n, open, err);
    return kvd_status(norm_and(e, &gate_up, n, m->norm[1], kvd_config_norms_branches(&w->config),
                               stage, *open, err) ||
                      into_residual(e, n, &down, open, err));
}

static int few_logits(kvd_cuda_engine *e, size_t n, kvd_phase open, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    const size_t vocab = (size_t)w->config.vocab_size;
    const double cap = w->config.logit_softcap;
    kvd_few_rows head = {
        .kind = KVD_FEW_LOGITS, .out = vocab, .w = w->weights.head, .y = e->logits};
    if (norm_and(e, &head, n, w->weights.norm_final, kvd_config_norms_branches(&w->config),
                 kvd_gpu_stage_before(w->config.n_layers), open, err))
        return -1;
    return cap > 0 ? kvd_cuda_check(kvd_gpu_softcap(e->logits, n * vocab, (float)cap, w->stream),
                                    what, err)
                   : 0;
}

static int few_steps(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    kvd_gpu_worker *const w = &e->w;
    const int layers = w->config.n_layers;
    kvd_phase open = KVD_PHASE_EMBED;
    w->id = e->batch.device.step_id;
    w->position = w->rope_row = e->batch.device.step_at;
    w->queued = NULL;
    if (kvd_gpu_embedding(w, n, err) ||
        (kvd_config_norms_branches(&w->config) && write_input(w, 0, n, err)))
        return -1;
    for (int l = 0; l < layers; l++)
        if (few_layer(e, l, n, &open, err))
            return -1;
    if (!kvd_cuda_has_head(e))
        return 0;
    return few_logits(e, n, open, err) || sample(e, n, err) ? -1 : 0;
}

int kvd_cuda_steps(kvd_cuda_engine *e, size_t n, const void *works, kvd_err *err)
{
    const cudaStream_t s = e->w.stream;
    if (kvd_clock_start(&e->clock, s, err) ||
        kvd_cuda_check(cudaMemsetAsync(e->w.bad, 0xff, sizeof *e->w.bad, s), what, err) ||
        kvd_paged_cache_plan(&e->cache, n, works, s, err) ||
        kvd_clock_end(&e->clock, KVD_PHASE_SCHEDULE, s, err))
        return -1;
    if (kvd_cuda_few(e, n)
            ? few_steps(e, n, err)
            : kvd_cuda_layers(e, e->batch.device.step_id, e->batch.device.step_at, n, err) ||
                  kvd_cuda_tokens(e, e->w.x, n, err))
        return -1;
    return kvd_cuda_fetch(e, n, err);
}

static int capture(kvd_cuda_engine *e, size_t n, const void *works, cudaGraph_t *graph,
                   kvd_err *err)
{
    const cudaStream_t s = e->w.stream;
    kvd_err second;
    if (kvd_cuda_check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal),
                       "graph of steps", err))
        return -1;
    const int status = kvd_cuda_steps(e, n, works, err);
    return kvd_status(
        kvd_cuda_check(cudaStreamEndCapture(s, graph), "graph of steps", status ? &second : err) ||
        status);
}

static int make_graph(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    kvd_step_graph *const g = &e->graph[n];
    const size_t bytes = kvd_paged_cache_works_bytes(&e->cache);
    cudaGraph_t graph = NULL;
    if (kvd_paged_cache_describe(&e->cache, n, e->host_works, err))
        return -1;
    e->described = 0;
    void *const works =
        kvd_device_copy(&e->graph_memory, e->host_works, bytes, "graph of steps", e->w.stream, err);
    if (!works || kvd_cuda_check(cudaStreamSynchronize(e->w.stream), "graph of steps", err))
        return -1;
    /* Runs the step once before it is captured, because a first run initialises libraries, which a
     * CUDA graph cannot contain. */
    if (kvd_cuda_steps(e, n, works, err) || capture(e, n, works, &graph, err))
        return -1;
    const cudaError_t status = cudaGraphInstantiate(&g->exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (kvd_cuda_check(status, "graph of steps", err) ||
        kvd_cuda_check(cudaGraphUpload(g->exec, e->w.stream), "graph of steps", err))
        return -1;
    if (!e->clock.on)
        return 0;
    g->n_marks = e->clock.n;
    if (!(g->phase = kvd_device_host(&e->graph_memory, g->n_marks + 1, "graph of steps", err)))
        return -1;
    memcpy(g->phase, e->clock.phase, g->n_marks + 1);
    return 0;
}

int kvd_cuda_steps_replay(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    kvd_step_graph *const g = &e->graph[n];
    if (!g->exec && make_graph(e, n, err))
        return -1;
    if (e->clock.on) {
        e->clock.n = g->n_marks;
        memcpy(e->clock.phase, g->phase, g->n_marks + 1);
    }
    return kvd_cuda_check(cudaGraphLaunch(g->exec, e->w.stream), what, err);
}

void kvd_cuda_graphs_destroy(void *engine)
{
    kvd_cuda_engine *const e = engine;
    for (size_t n = 0; e->graph && n <= e->batch.max_slices; n++)
        if (e->graph[n].exec) {
            (void)cudaGraphExecDestroy(e->graph[n].exec);
            e->graph[n].exec = NULL;
        }
}

void kvd_cuda_graphs_release(kvd_cuda_engine *e)
{
    kvd_cuda_graphs_destroy(e);
    kvd_device_release(&e->graph_memory);
}
