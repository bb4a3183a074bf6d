/* Runs the forward pass on GPUs and copies all activations to the host. */
#ifndef KVD_TESTS_GPU_FORWARD_CASE_H
#define KVD_TESTS_GPU_FORWARD_CASE_H

#include "expected.h"
#include "gpu_case.h"
#include "make_checkpoint.h"
#include "model/checkpoint/shapes.h"
#include "model/pass/cuda/forward.h"
#include "temp_folder.h"

static inline kvd_checkpoint *opened_or_end(kvd_checkpoint *c, const kvd_err *err)
{
    or_end(!c, "model", err->msg);
    return c;
}

static inline kvd_checkpoint *checkpoint_or_end(const char *path)
{
    kvd_err err = {""};
    return opened_or_end(kvd_checkpoint_open(path, &err), &err);
}

static inline kvd_checkpoint *shape_or_end(const kvd_shape *s, uint64_t seed)
{
    kvd_err err = {""};
    return opened_or_end(kvd_checkpoint_of_shape(s, seed, &err), &err);
}

/* Writes a made-up model to a temporary folder, or ends the program. path [128]: its path. */
static inline void made_or_end(const char *name, const made_spec *s, char *path)
{
    kvd_err err = {""};
    (void)snprintf(path, 128, "%s/%s", temp_folder(), name);
    if (make_checkpoint(path, s, &err))
        (void)opened_or_end(NULL, &err);
}

/* Writes a model with heads of 128 dimensions, the only size that palu_decode supports. */
static inline void wide_or_end(const char *name, int layers, int heads, int kv_heads, char *path)
{
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = layers;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.d_head = 128;
    s.d_model = 256;
    s.positions = 1024;
    s.rope = "llama3";
    made_or_end(name, &s, path);
}

/* Opens a model of make_family_fixtures.py, or ends the program. */
static inline kvd_checkpoint *family_or_end(const char *name)
{
    char path[256];
    (void)snprintf(path, sizeof path, "tests/data/families/%s", name);
    return checkpoint_or_end(path);
}

/* Copies one kind of activations (queries, keys, ...) of one layer from the GPU. Rows of `from` are
 * ld elements apart. */
static inline int fetch(recording *to, const kvd_gpu_attention_in *in, int kind, int first,
                        int heads, const void *from, size_t ld, kvd_err *err)
{
    const size_t d = (size_t)to->c->d_head, n = (size_t)heads * d, width = width_of(to->c, kind);
    const size_t bytes = kvd_dtype_bytes(in->type);
    char *bits = need(to->n * n * bytes);
    int status = kvd_cuda_check(cudaMemcpy2DAsync(bits, n * bytes, from, ld * bytes, n * bytes,
                                                  to->n, cudaMemcpyDeviceToHost, in->stream),
                                kind_name[kind], err);
    if (!status)
        status = kvd_cuda_check(cudaStreamSynchronize(in->stream), kind_name[kind], err);
    for (size_t t = 0; t < to->n; t++)
        kvd_to_f32(in->type, bits + t * n * bytes,
                   to->x[kind] + ((size_t)in->layer * to->n + t) * width + (size_t)first * d, n);
    free(bits);
    return status;
}

static inline int record(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err)
{
    recording *to = ctx;
    const kvd_gpu_share *s = in->share;
    const int q = s->first_head, n_q = s->n_heads, k = s->first_kv_head, n_k = s->n_kv_heads;
    to->layers += s->index == 0;
    return fetch(to, in, Q_PRE, q, n_q, in->q_pre, in->ld_pre, err) ||
                   fetch(to, in, K_PRE, k, n_k, in->k_pre, in->ld_pre, err) ||
                   fetch(to, in, Q, q, n_q, in->q, in->ld, err) ||
                   fetch(to, in, K, k, n_k, in->k, in->ld, err) ||
                   fetch(to, in, V, k, n_k, in->v, in->ld, err)
               ? -1
               : 0;
}

static inline int output(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err)
{
    const kvd_gpu_share *s = in->share;
    return fetch(ctx, in, O, s->first_head, s->n_heads, out,
                 (size_t)s->n_heads * (size_t)in->config->d_head, err);
}

typedef struct {
    kvd_gpu_capture capture[KVD_GPUS_MAX];
    kvd_gpu_attention *hook[KVD_GPUS_MAX];
} captures;

static inline void captures_init(captures *t, kvd_gpu_forward *f, int n_gpus, recording *to)
{
    for (int g = 0; g < n_gpus; g++) {
        kvd_gpu_capture_init(&t->capture[g], kvd_gpu_forward_dense(f, g));
        t->capture[g].hook.wants_pre = 1;
        t->capture[g].record = record;
        t->capture[g].output = output;
        t->capture[g].ctx = to;
        t->hook[g] = &t->capture[g].hook;
    }
}

/* Opens a forward pass for up to n tokens, or ends the program. */
static inline kvd_gpu_forward *open_pass(const kvd_checkpoint *c, kvd_dtype type, int n_gpus,
                                         size_t n)
{
    kvd_err err = {""};
    const size_t most = (size_t)kvd_checkpoint_config(c)->max_positions;
    const kvd_gpu_forward_spec spec = {
        .type = type, .n_gpus = n_gpus, .max_tokens = n, .max_len = n < most ? n : most};
    kvd_gpu_forward *f = kvd_gpu_forward_new(c, &spec, &err);
    or_end(!f, kvd_checkpoint_path(c), err.msg);
    return f;
}

/* Runs the GPU's forward pass up to layer last_layer and records activations in *to. If last_layer
 * < 0, runs all layers and computes logits. The caller must release *to with recording_release. */
static inline int run_on(kvd_gpu_forward *f, const kvd_batch *b, int n_gpus, int last_layer,
                         recording *to, kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences];
    const kvd_config *c = &kvd_gpu_forward_weights(f, 0)->config;
    const size_t size = n * (size_t)c->vocab_size * sizeof(float);
    float *hidden = last_layer < 0 ? on_device(NULL, n * (size_t)c->d_model * sizeof(float)) : NULL;
    captures t;
    recording_init(to, c, n);
    captures_init(&t, f, n_gpus, to);
    int status = kvd_gpu_forward_run(f, b, t.hook, last_layer, hidden, err);
    if (!status && hidden) {
        float *logits = on_device(NULL, size);
        status = kvd_gpu_forward_logits(f, hidden, n, logits, err);
        check(cudaStreamSynchronize(kvd_gpu_forward_stream(f, 0)), "logits");
        to_host(to->x[LOGITS], logits, size);
        check(cudaFree(logits), "cudaFree");
    }
    if (hidden)
        check(cudaFree(hidden), "cudaFree");
    return status;
}

static inline int run_gpu(const kvd_checkpoint *c, kvd_dtype type, const kvd_batch *b,
                          int last_layer, recording *to, kvd_err *err)
{
    kvd_gpu_forward *f = open_pass(c, type, 1, b->offset[b->n_sequences]);
    const int status = run_on(f, b, 1, last_layer, to, err);
    to->c = kvd_checkpoint_config(c);
    kvd_gpu_forward_free(f);
    return status;
}

/* Returns the relative distance of x from y; infinity if y is 0 or a value is not finite. */
static inline double distance(const float *x, const float *y, size_t n)
{
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        square += (double)y[i] * (double)y[i];
    }
    const double relative = sqrt(error / square);
    return square > 0 && isfinite(relative) ? relative : INFINITY;
}

/* Compares token t of *y with token first + t of *x. Returns the largest relative difference of an
 * activation; *kind: name of this activation. */
static inline double worst_distance(const recording *x, size_t first, const recording *y,
                                    const char **kind)
{
    double worst = 0;
    for (int k = 0; k < N_KINDS; k++)
        for (int l = 0; l < (k == LOGITS ? 1 : y->c->n_layers); l++) {
            const size_t width = width_of(y->c, k);
            const double e = distance(x->x[k] + ((size_t)l * x->n + first) * width,
                                      y->x[k] + (size_t)l * y->n * width, y->n * width);
            if (e > worst) {
                worst = e;
                *kind = kind_name[k];
            }
        }
    return worst;
}

#endif
