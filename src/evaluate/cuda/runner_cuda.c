/* Runs the models of an evaluation, with and without compression, on a GPU. Hidden states and
 * logits stay in GPU memory. */
#include <assert.h>
#include <stdlib.h>

#include "evaluate/cuda/differences.h"
#include "evaluate/cuda/quality.h"
#include "evaluate/model_runner.h"
#include "methods/cuda/cache.h"
#include "methods/prompts.h"
#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/host_hook.h"

#define LOGITS ((size_t)512 << 20)

typedef struct {
    kvd_model_runner hook;
    kvd_gpu_forward *forward;
    kvd_gpu_caches *caches;
    kvd_gpu_quality *quality;
    cudaStream_t stream;
    kvd_device_memory memory;
    /* logits of the tokens that are compared at once: [0] of the uncompressed model, [1] of a
     * compressed one */
    float *logits[2];
    int *flag;
    kvd_change *change;
    /* [n_layers][KVD_ERROR_PARTS][n_heads] sums of attention errors. The tokens are divided into
     * KVD_ERROR_PARTS ranges, each with its own sums. */
    kvd_error_sums *error;
    kvd_device_memory kept;
    /* [n_layers][kept_tokens][n_heads * d_head] uncompressed attention outputs to compare with, or
     * NULL */
    char *kept_out;
    size_t kept_tokens;
    void *host; /* copy of a kernel's partial sums in host memory */
} runner;

static const char what[] = "evaluation";

static runner *self_of(kvd_model_runner *r)
{
    return (runner *)(void *)r;
}

static float *rows_new(kvd_model_runner *r, size_t n, const char *name, kvd_err *err)
{
    const size_t row = (size_t)r->config->d_model * sizeof(float);
    void *rows = NULL;
    if (n > SIZE_MAX / row) {
        kvd_fail(err, "%s: %zu rows of %zu bytes overflow", name, n, row);
        return NULL;
    }
    if (kvd_cuda_check(cudaMalloc(&rows, n ? n * row : 1), "on the device", err))
        kvd_in(err, "%s: %zu bytes", name, n * row);
    return rows;
}

static void rows_free(kvd_model_runner *r, float *rows)
{
    (void)r;
    (void)cudaFree(rows);
}

/* Returns half of the free GPU memory. Methods that project Q, K and V need the other half. */
static size_t spare(const kvd_model_runner *r)
{
    size_t available = 0, total = 0;
    (void)r;
    return cudaMemGetInfo(&available, &total) ? 0 : available / 2;
}

static size_t kept_row_bytes(const kvd_model_runner *r)
{
    return (size_t)r->config->n_heads * (size_t)r->config->d_head * kvd_dtype_bytes(r->compute);
}

static size_t attention_bytes(const kvd_model_runner *r)
{
    return (size_t)r->config->n_layers * kept_row_bytes(r);
}

static int keep_attention(kvd_model_runner *r, size_t n_tokens, kvd_err *err)
{
    runner *const self = self_of(r);
    assert(!self->kept_out);
    self->kept_tokens = n_tokens;
    self->kept_out = kvd_device_new(&self->kept, n_tokens * attention_bytes(r),
                                    "attention outputs of a batch", err);
    return self->kept_out ? 0 : -1;
}

static char *kept_at(const runner *self, int layer)
{
    return self->kept_out +
           ((size_t)layer * self->kept_tokens + self->hook.kept_row) * kept_row_bytes(&self->hook);
}

static void drop_attention(kvd_model_runner *r)
{
    runner *const self = self_of(r);
    kvd_device_release(&self->kept);
    self->kept_out = NULL;
}

static int save_output(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err)
{
    runner *const self = ctx;
    const size_t bytes = in->n_tokens * (size_t)in->config->n_heads * (size_t)in->config->d_head *
                         kvd_dtype_bytes(in->type);
    return kvd_queue_copy(kept_at(self, in->layer), out, bytes, in->stream, what, err);
}

static int compare_output(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err)
{
    runner *const self = ctx;
    const int heads = in->config->n_heads;
    return kvd_cuda_check(
        kvd_error_parts(
            in->type, kept_at(self, in->layer), out, in->n_tokens, heads, in->config->d_head,
            self->error + (size_t)in->layer * KVD_ERROR_PARTS * (size_t)heads, in->stream),
        what, err);
}

static int reference(kvd_model_runner *r, const kvd_batch *b, float *hidden, kvd_err *err)
{
    runner *const self = self_of(r);
    kvd_gpu_capture capture;
    kvd_gpu_capture_init(&capture, kvd_gpu_forward_dense(self->forward, 0));
    if (self->kept_out) {
        capture.output = save_output;
        capture.ctx = self;
    }
    kvd_gpu_attention *const hook = &capture.hook;
    return kvd_gpu_forward_run(self->forward, b, &hook, -1, hidden, err);
}

static int below(kvd_model_runner *r, const kvd_batch *b, int layer, float *residual, kvd_err *err)
{
    return kvd_gpu_forward_residual(self_of(r)->forward, b, NULL, layer, residual, err);
}

static int plan_load(kvd_model_runner *r, kvd_plan *plan, kvd_err *err)
{
    plan->on_gpu = kvd_gpu_cache_new(self_of(r)->caches, plan, err);
    return plan->on_gpu ? 0 : -1;
}

static void plan_unload(kvd_model_runner *r, kvd_plan *plan)
{
    (void)r;
    kvd_gpu_cache_free(plan->on_gpu);
    plan->on_gpu = NULL;
}

static const char *plan_engine(const kvd_plan *plan)
{
    return kvd_gpu_cache_engine(plan->on_gpu);
}

static int add_errors(runner *self, size_t n_tokens, int first_layer, kvd_attention_error *error,
                      kvd_err *err)
{
    const size_t heads = (size_t)error->n_heads,
                 n = (size_t)error->n_layers * KVD_ERROR_PARTS * heads;
    kvd_error_sums *const part = self->host;
    if (kvd_queue_get(part, self->error, n * sizeof *part, self->stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(self->stream), what, err))
        return -1;
    for (size_t l = (size_t)first_layer; l < (size_t)error->n_layers; l++)
        for (size_t h = 0; h < heads; h++) {
            kvd_error_sums sum = {0, 0, 0, 0};
            for (size_t p = 0; p < KVD_ERROR_PARTS; p++) {
                const kvd_error_sums *const x = &part[(l * KVD_ERROR_PARTS + p) * heads + h];
                sum.diff2 += x->diff2;
                sum.norm2 += x->norm2;
                sum.relative += x->relative;
                sum.n_zero += x->n_zero;
            }
            const size_t at = l * heads + h;
            error->diff2[at] += sum.diff2;
            error->norm2[at] += sum.norm2;
            error->relative[at] += sum.relative;
            error->n_zero[at] += sum.n_zero;
            error->n[at] += (double)n_tokens * error->d_head - sum.n_zero;
        }
    return 0;
}

static int run_prompts(void *ctx, const kvd_batch *first, kvd_prompts *prompts, kvd_err *err)
{
    runner *const self = ctx;
    kvd_model_runner *const r = &self->hook;
    const kvd_gpu_share *const share = &kvd_gpu_forward_weights(self->forward, 0)->share;
    kvd_host_hook bridge = {.inner = NULL};
    kvd_gpu_attention *const hook = &bridge.hook;
    const int status = kvd_host_hook_init(&bridge, r->config, share, r->compute,
                                          first->offset[first->n_sequences], &prompts->hook, err) ||
                       kvd_gpu_forward_run(self->forward, first, &hook, -1, NULL, err);
    kvd_host_hook_release(&bridge);
    return status ? -1 : 0;
}

static int run_plan(runner *self, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, bool errors, kvd_err *err)
{
    kvd_gpu_capture capture;
    kvd_gpu_capture_init(&capture, kvd_gpu_cache_hook(plan->on_gpu));
    if (errors) {
        capture.output = compare_output;
        capture.ctx = self;
    }
    kvd_gpu_attention *const hook = &capture.hook;
    return first_layer ? kvd_gpu_forward_run_from(self->forward, b, &hook, first_layer, residual,
                                                  hidden, err)
                       : kvd_gpu_forward_run(self->forward, b, &hook, -1, hidden, err);
}

static int plan_run(kvd_model_runner *r, const kvd_batch *b, const kvd_plan *plan, int first_layer,
                    const float *residual, float *hidden, kvd_cache_account *account,
                    kvd_attention_error *error, kvd_err *err)
{
    runner *const self = self_of(r);
    kvd_prompts prompts = {0};
    int status = 0;
    if (kvd_plan_first_pass(plan)) {
        status = kvd_prompts_make(&prompts, r->config, plan, b, r->max_len, run_prompts, self, err);
        kvd_gpu_cache_set_prompts(plan->on_gpu, &prompts);
    }
    status = status || run_plan(self, b, plan, first_layer, residual, hidden, error != NULL, err);
    kvd_gpu_cache_take_account(plan->on_gpu, account);
    kvd_prompts_release(&prompts);
    return status || !error ? (status ? -1 : 0)
                            : add_errors(self, b->offset[b->n_sequences], first_layer, error, err);
}

static int rows_copy(kvd_model_runner *r, float *to, const float *from, size_t n, kvd_err *err)
{
    return kvd_queue_copy(to, from, n * (size_t)r->config->d_model * sizeof *to, self_of(r)->stream,
                          what, err);
}

static int differ(kvd_model_runner *r, const float *a, const float *b, size_t n, bool *yes,
                  kvd_err *err)
{
    runner *const self = self_of(r);
    int found = 0;
    if (kvd_cuda_check(cudaMemsetAsync(self->flag, 0, sizeof *self->flag, self->stream), what,
                       err) ||
        kvd_cuda_check(kvd_differ(a, b, n * (size_t)r->config->d_model, self->flag, self->stream),
                       what, err) ||
        kvd_queue_get(&found, self->flag, sizeof found, self->stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(self->stream), what, err))
        return -1;
    *yes = found != 0;
    return 0;
}

static int reference_logits(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err)
{
    runner *const self = self_of(r);
    return kvd_gpu_forward_logits(self->forward, rows, n, self->logits[0], err);
}

static int score(kvd_model_runner *r, const float *rows, const kvd_predictions *p,
                 kvd_quality *per_sequence, kvd_err *err)
{
    runner *const self = self_of(r);
    return (rows && kvd_gpu_forward_logits(self->forward, rows, p->n, self->logits[1], err)) ||
           kvd_gpu_quality_add(self->quality, self->logits[rows ? 1 : 0],
                               rows ? self->logits[0] : NULL, p->target, p->sequence, p->n,
                               (size_t)r->config->vocab_size, per_sequence, p->each, self->stream,
                               err);
}

static int logit_change(kvd_model_runner *r, const float *rows, size_t n, double *largest,
                        double *sum2, kvd_err *err)
{
    runner *const self = self_of(r);
    kvd_change *const part = self->host;
    if (kvd_gpu_forward_logits(self->forward, rows, n, self->logits[1], err) ||
        kvd_cuda_check(kvd_change_parts(self->logits[0], self->logits[1],
                                        n * (size_t)r->config->vocab_size, self->change,
                                        self->stream),
                       what, err) ||
        kvd_queue_get(part, self->change, KVD_CHANGE_PARTS * sizeof *part, self->stream, what,
                      err) ||
        kvd_cuda_check(cudaStreamSynchronize(self->stream), what, err))
        return -1;
    *largest = 0;
    for (size_t i = 0; i < KVD_CHANGE_PARTS; i++) {
        *largest = part[i].largest > *largest ? part[i].largest : *largest;
        *sum2 += part[i].sum2;
    }
    return 0;
}

static const char *describe(const kvd_model_runner *r)
{
    return kvd_gpu_forward_engine(((const runner *)(const void *)r)->forward);
}

static void release(kvd_model_runner *r)
{
    runner *const self = self_of(r);
    drop_attention(r);
    kvd_gpu_caches_free(self->caches);
    kvd_gpu_quality_free(self->quality);
    kvd_device_release(&self->memory);
    kvd_gpu_forward_free(self->forward);
    free(self->host);
    free(self);
}

static int make(runner *self, const kvd_checkpoint *c, kvd_err *err)
{
    kvd_model_runner *const r = &self->hook;
    const kvd_gpu_forward_spec spec = {
        .type = r->compute, .n_gpus = 1, .max_tokens = r->max_tokens, .max_len = r->max_len};
    const size_t row = (size_t)r->config->vocab_size * sizeof(float);
    const size_t errors = (size_t)r->config->n_layers * KVD_ERROR_PARTS *
                          (size_t)r->config->n_heads * sizeof *self->error;
    const size_t changes = KVD_CHANGE_PARTS * sizeof *self->change,
                 back = errors > changes ? errors : changes;
    if (!(self->forward = kvd_gpu_forward_new(c, &spec, err)))
        return -1;
    self->stream = kvd_gpu_forward_stream(self->forward, 0);
    if (!(self->host = malloc(back)))
        return kvd_no_memory(err, what, back);
    const kvd_gpu_share *const share = &kvd_gpu_forward_weights(self->forward, 0)->share;
    return (self->caches =
                kvd_gpu_caches_new(r->config, share, r->compute, r->max_tokens, r->max_len, err)) &&
                   (self->quality = kvd_gpu_quality_new(r->piece, err)) &&
                   (self->logits[0] =
                        kvd_device_new(&self->memory, r->piece * row, "logits", err)) &&
                   (self->logits[1] =
                        kvd_device_new(&self->memory, r->piece * row, "logits", err)) &&
                   (self->flag = kvd_device_new(&self->memory, sizeof *self->flag, what, err)) &&
                   (self->change = kvd_device_new(&self->memory, changes, what, err)) &&
                   (self->error = kvd_device_new(&self->memory, errors, what, err))
               ? 0
               : -1;
}

kvd_model_runner *kvd_runner_cuda(const kvd_checkpoint *c, kvd_dtype compute, size_t max_tokens,
                                  size_t max_len, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    runner *const self = kvd_new(1, sizeof *self, what, err);
    if (!self)
        return NULL;
    size_t piece = LOGITS / sizeof(float) / (size_t)config->vocab_size;
    piece = piece < 128 ? 128 : piece;
    self->hook = (kvd_model_runner){.config = config,
                                    .max_tokens = max_tokens,
                                    .max_len = max_len < max_tokens ? max_len : max_tokens,
                                    .piece = piece < max_tokens ? piece : max_tokens,
                                    .compute = compute,
                                    .rows_new = rows_new,
                                    .rows_free = rows_free,
                                    .spare = spare,
                                    .keep_attention = keep_attention,
                                    .attention_bytes = attention_bytes,
                                    .drop_attention = drop_attention,
                                    .reference = reference,
                                    .below = below,
                                    .plan_load = plan_load,
                                    .plan_unload = plan_unload,
                                    .plan_engine = plan_engine,
                                    .plan_run = plan_run,
                                    .rows_copy = rows_copy,
                                    .kept_prompt = KVD_NOT_KEPT,
                                    .differ = differ,
                                    .reference_logits = reference_logits,
                                    .score = score,
                                    .logit_change = logit_change,
                                    .describe = describe,
                                    .free = release};
    if (make(self, c, err)) {
        release(&self->hook);
        return NULL;
    }
    return &self->hook;
}
