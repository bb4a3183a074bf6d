#include "model/pass/cuda/forward.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_forward {
    kvd_config config;
    kvd_gpu_forward_spec spec;
    kvd_gpu_worker *worker; /* [n_gpus] */
    kvd_gpu_sum *sum;
    /* token ids, positions and RoPE table rows, max_tokens each, in pinned memory */
    uint32_t *rows;
    /* [n_gpus] place of the first NaN or infinity on each GPU, in pinned memory */
    kvd_gpu_bad *bad;
    char engine[512];
};

size_t kvd_gpu_forward_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s)
{
    kvd_gpu_share share;
    kvd_err unused;
    if (kvd_gpu_share_of(c, KVD_GPU_PASS, 0, s->n_gpus, &share, &unused))
        return 0;
    const size_t resident = kvd_gpu_worker_bytes(c, s, &share, true, false);
    return c->n_experts && s->memory && resident > s->memory
               ? kvd_gpu_worker_bytes(c, s, &share, true, true)
               : resident;
}

static int check_spec(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s, kvd_err *err)
{
    int devices = 0;
    if (s->type != KVD_F32 && s->type != KVD_BF16)
        return kvd_fail(err, "a forward pass in %s, on a GPU it runs in f32 or bf16",
                        kvd_dtype_name(s->type));
    if (kvd_batch_limits(c, s->max_tokens, s->max_len, err) ||
        kvd_cuda_check(cudaGetDeviceCount(&devices), "forward pass", err))
        return -1;
    if (s->n_gpus < 1 || s->n_gpus > KVD_GPUS_MAX || s->first_gpu < 0 ||
        s->first_gpu > devices - s->n_gpus)
        return kvd_fail(err, "%d GPUs from number %d on were asked for, there are %d", s->n_gpus,
                        s->first_gpu, devices);
    return 0;
}

static int name_engine(kvd_gpu_forward *f, kvd_err *err)
{
    struct cudaDeviceProp prop;
    int version = 0;
    char count[16] = "";
    const kvd_gpu_worker *w = &f->worker[0];
    if (kvd_cuda_check(cudaGetDeviceProperties(&prop, f->spec.first_gpu), "forward pass", err) ||
        kvd_cublas_check(w->lib->cublasGetVersion_v2(w->blas, &version), "forward pass", err))
        return -1;
    if (f->sum)
        (void)snprintf(count, sizeof count, "%d x ", f->spec.n_gpus);
    (void)snprintf(f->engine, sizeof f->engine, "%s%s, %s, cuBLAS %d.%d.%d%s%s, attention: %s%s",
                   count, prop.name, kvd_dtype_name(f->spec.type), version / 10000,
                   version / 100 % 100, version % 100, f->sum ? ", " : "",
                   f->sum ? kvd_gpu_sum_engine(f->sum) : "", kvd_gpu_dense_engine(w->dense),
                   w->weights.streamed ? ", experts streamed" : "");
    return 0;
}

static int open_all(kvd_gpu_forward *f, const kvd_checkpoint *c, kvd_err *err)
{
    const kvd_gpu_forward_spec *s = &f->spec;
    const size_t n = (size_t)s->n_gpus;
    if (!(f->worker = calloc(n, sizeof *f->worker)))
        return kvd_no_memory(err, "the forward pass", n * sizeof *f->worker);
    /* Opens the first GPU last, so that it is the current device afterwards. */
    for (int g = s->n_gpus - 1; g >= 0; g--) {
        kvd_gpu_share share;
        if (kvd_gpu_share_of(&f->config, KVD_GPU_PASS, g, s->n_gpus, &share, err) ||
            kvd_gpu_worker_open(&f->worker[g], c, s, &share, true, err))
            return -1;
    }
    if (s->n_gpus > 1 && !(f->sum = kvd_gpu_sum_new(s->first_gpu, s->n_gpus, err)))
        return -1;
    for (int g = 0; g < s->n_gpus; g++)
        f->worker[g].sum = f->sum;
    if (kvd_cuda_check(cudaSetDevice(s->first_gpu), "forward pass", err) ||
        !(f->rows = kvd_pinned_new(3 * s->max_tokens * sizeof *f->rows, "token ids", err)) ||
        !(f->bad = kvd_pinned_new(n * sizeof *f->bad, "a flag", err)))
        return -1;
    return name_engine(f, err);
}

kvd_gpu_forward *kvd_gpu_forward_new(const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                                     kvd_err *err)
{
    if (check_spec(c, s, err))
        return NULL;
    kvd_gpu_forward *f = kvd_new(1, sizeof *f, "the forward pass", err);
    if (!f)
        return NULL;
    f->config = *kvd_checkpoint_config(c);
    f->spec = *s;
    if (open_all(f, c, err)) {
        kvd_gpu_forward_free(f);
        return NULL;
    }
    return f;
}

void kvd_gpu_forward_free(kvd_gpu_forward *f)
{
    if (!f)
        return;
    kvd_gpu_sum_free(f->sum);
    for (int g = f->spec.n_gpus - 1; f->worker && g >= 0; g--)
        kvd_gpu_worker_close(&f->worker[g]);
    if (f->rows)
        (void)cudaFreeHost(f->rows);
    if (f->bad)
        (void)cudaFreeHost(f->bad);
    free(f->worker);
    free(f);
}

const kvd_gpu_weights *kvd_gpu_forward_weights(const kvd_gpu_forward *f, int gpu)
{
    return &f->worker[gpu].weights;
}

cudaStream_t kvd_gpu_forward_stream(const kvd_gpu_forward *f, int gpu)
{
    return f->worker[gpu].stream;
}

kvd_gpu_attention *kvd_gpu_forward_dense(kvd_gpu_forward *f, int gpu)
{
    return kvd_gpu_dense_hook(f->worker[gpu].dense);
}

const char *kvd_gpu_forward_engine(const kvd_gpu_forward *f)
{
    return f->engine;
}

const char *kvd_gpu_phase_name(kvd_gpu_phase p)
{
    static const char *const name[KVD_GPU_PHASES] = {"embedding",
                                                     "norms",
                                                     "product of Q, K and V",
                                                     "rotation",
                                                     "attention",
                                                     "product of O",
                                                     "product of gate and up",
                                                     "activation",
                                                     "product of down",
                                                     "sum over GPUs",
                                                     "final norm"};
    return name[p];
}

void kvd_gpu_forward_watch(kvd_gpu_forward *f, kvd_gpu_queued queued, void *ctx)
{
    f->worker[0].queued = queued;
    f->worker[0].queued_ctx = ctx;
}

typedef struct {
    kvd_gpu_forward *f;
    const kvd_batch *b;
    kvd_gpu_attention *const *hook;
    int first, last;
    int whole;
    /* input of layer `first`; if NULL, the pass begins with the tokens' embeddings */
    const float *from;
    float *residual, *hidden;
} job;

static int queue_work(const job *j, kvd_gpu_worker *w, int gpu, kvd_err *err)
{
    const size_t n = j->b->offset[j->b->n_sequences];
    kvd_gpu_attention *hook = j->hook ? j->hook[gpu] : kvd_gpu_dense_hook(w->dense);
    if (kvd_cuda_check(cudaSetDevice(w->device), "forward pass", err) ||
        kvd_gpu_worker_begin(w, j->f->rows, n, err) ||
        (j->from ? kvd_gpu_residual_in(w, j->from, j->first, n, err)
                 : kvd_gpu_embedding(w, n, err)))
        return -1;
    for (int l = j->first; l <= j->last; l++)
        if (kvd_gpu_layer_run(w, j->b, l, hook, l == j->last && !j->whole, err))
            return -1;
    if (gpu == 0 && ((j->residual && kvd_gpu_residual_out(w, n, j->residual, err)) ||
                     (j->hidden && kvd_gpu_hidden_out(w, n, j->hidden, err))))
        return -1;
    return 0;
}

static void note_failure(const job *j, int gpu)
{
    if (j->f->sum)
        kvd_gpu_sum_fail(j->f->sum, gpu);
}

/* Runs the forward pass on one GPU, and waits for the GPU even after a failure. */
static int work(job *j, int gpu, kvd_err *err)
{
    kvd_gpu_worker *w = &j->f->worker[gpu];
    kvd_err second;
    const int status = queue_work(j, w, gpu, err);
    if (status)
        note_failure(j, gpu);
    if (!kvd_gpu_worker_wait(w, &j->f->bad[gpu], status ? &second : err))
        return status;
    note_failure(j, gpu);
    return -1;
}

typedef struct {
    job *job;
    int gpu;
    /* OpenMP threads that the host thread of this GPU may use */
    int threads;
    pthread_t thread;
    kvd_err err;
} hand;

static void *work_in_thread(void *ctx)
{
    hand *h = ctx;
    kvd_threads_limit(h->threads);
    (void)work(h->job, h->gpu, &h->err);
    return NULL;
}

static int work_on_all(job *j, kvd_err *err)
{
    hand h[KVD_GPUS_MAX] = {0};
    int started = 0;
    const int threads = (int)kvd_thread_count(), n = j->f->spec.n_gpus;
    for (int g = 0; g < n; g++)
        h[g] = (hand){.job = j, .gpu = g, .threads = threads > n ? threads / n : 1};
    for (int g = 1; g < j->f->spec.n_gpus; g++, started++)
        if (pthread_create(&h[g].thread, NULL, work_in_thread, &h[g])) {
            note_failure(j, g);
            break;
        }
    (void)work_in_thread(&h[0]);
    kvd_threads_limit(threads);
    for (int g = 1; g <= started; g++)
        (void)pthread_join(h[g].thread, NULL);
    if (started < j->f->spec.n_gpus - 1)
        return kvd_fail(err, "no thread for GPU %d", started + 1);
    const int failed = kvd_gpu_sum_failed(j->f->sum);
    if (failed < 0)
        return 0;
    *err = h[failed].err;
    return -1;
}

static int execute(job *j, kvd_err *err)
{
    kvd_gpu_forward *f = j->f;
    const size_t max = f->spec.max_tokens, n_gpus = (size_t)f->spec.n_gpus;
    char where[32];
    if (kvd_batch_check(&f->config, j->b, max, f->spec.max_len, f->rows + max, f->rows + 2 * max,
                        err))
        return -1;
    memcpy(f->rows, j->b->id, j->b->offset[j->b->n_sequences] * sizeof *f->rows);
    if (n_gpus > 1 ? work_on_all(j, err) : work(j, 0, err))
        return -1;
    kvd_gpu_bad bad = f->bad[0];
    for (size_t g = 1; g < n_gpus; g++)
        bad = f->bad[g] < bad ? f->bad[g] : bad;
    if (bad == ~0ULL)
        return 0;
    kvd_gpu_stage_name(&f->config, (unsigned)(bad >> 40), where, sizeof where);
    return kvd_batch_not_finite(&f->config, j->b, where, (size_t)(bad & ((1ULL << 40) - 1)), err);
}

int kvd_gpu_forward_run(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                        int last_layer, float *hidden, kvd_err *err)
{
    const int end = f->config.n_layers - 1, last = last_layer < 0 ? end : last_layer;
    if (last > end || (hidden && last != end))
        return kvd_fail(err, "layers 0 .. %d asked for%s, the model has %d", last,
                        hidden ? " with the final state" : "", f->config.n_layers);
    job j = {.f = f, .b = b, .hook = hook, .last = last, .whole = hidden != NULL, .hidden = hidden};
    return execute(&j, err);
}

int kvd_gpu_forward_residual(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int layer, float *residual, kvd_err *err)
{
    job j = {.f = f, .b = b, .hook = hook, .last = layer - 1, .whole = 1, .residual = residual};
    return kvd_layer_check(&f->config, layer, err) ? -1 : execute(&j, err);
}

int kvd_gpu_forward_run_from(kvd_gpu_forward *f, const kvd_batch *b, kvd_gpu_attention *const *hook,
                             int first_layer, const float *residual, float *hidden, kvd_err *err)
{
    job j = {.f = f,
             .b = b,
             .hook = hook,
             .first = first_layer,
             .last = f->config.n_layers - 1,
             .whole = 1,
             .from = residual,
             .hidden = hidden};
    return kvd_layer_check(&f->config, first_layer, err) ? -1 : execute(&j, err);
}

int kvd_gpu_forward_logits(kvd_gpu_forward *f, const float *hidden, size_t n, float *logits,
                           kvd_err *err)
{
    const size_t d = (size_t)f->config.d_model, vocab = (size_t)f->config.vocab_size,
                 max = f->spec.max_tokens;
    if (kvd_cuda_check(cudaSetDevice(f->spec.first_gpu), "head", err))
        return -1;
    for (size_t i = 0; i < n; i += max)
        if (kvd_gpu_head(&f->worker[0], hidden + i * d, n - i < max ? n - i : max,
                         logits + i * vocab, err))
            return -1;
    return 0;
}
