#include "model/pass/cuda/host_hook.h"

#include <stdlib.h>
#include <string.h>

static const char what[] = "attention on the host";

static float *floats(size_t n, size_t width, kvd_err *err)
{
    float *const p = malloc(n * width * sizeof *p);
    if (!p)
        kvd_no_memory(err, what, (unsigned long long)n * width * sizeof *p);
    return p;
}

/* Copies an array with a row per token from the device to `to` [n_tokens][width], as float32. */
static int fetch(const kvd_host_hook *h, const kvd_gpu_attention_in *in, const void *from,
                 size_t ld, size_t width, float *to, kvd_err *err)
{
    const size_t bytes = kvd_dtype_bytes(in->type);
    void *const back = in->type == KVD_F32 ? to : h->narrow;
    if (kvd_cuda_check(cudaMemcpy2DAsync(back, width * bytes, from, ld * bytes, width * bytes,
                                         in->n_tokens, cudaMemcpyDeviceToHost, in->stream),
                       what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(in->stream), what, err))
        return -1;
    if (in->type != KVD_F32)
        kvd_to_f32(in->type, back, to, in->n_tokens * width);
    return 0;
}

static int put_back(const kvd_host_hook *h, const kvd_gpu_attention_in *in, size_t width, void *out,
                    kvd_err *err)
{
    const void *from = h->out;
    if (in->type != KVD_F32) {
        kvd_from_f32(in->type, h->out, h->narrow, in->n_tokens * width);
        from = h->narrow;
    }
    return kvd_status(kvd_queue_put(out, from, in->n_tokens * width * kvd_dtype_bytes(in->type),
                                    in->stream, what, err) ||
                      kvd_cuda_check(cudaStreamSynchronize(in->stream), what, err));
}

static int run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    kvd_host_hook *const h = (kvd_host_hook *)(void *)self;
    const size_t d = (size_t)in->config->d_head;
    const size_t width_q = (size_t)in->config->n_heads * d,
                 width_k = (size_t)in->config->n_kv_heads * d,
                 width_in = (size_t)in->config->d_model;
    const kvd_attention_in host = {.config = in->config,
                                   .layer = in->layer,
                                   .n_sequences = in->n_sequences,
                                   .offset = in->offset,
                                   .first_sequence = in->first_sequence,
                                   .n_tokens = in->n_tokens,
                                   .q = h->q,
                                   .k = h->k,
                                   .v = h->v,
                                   .q_pre = h->q_pre,
                                   .k_pre = h->k_pre,
                                   .input = h->input,
                                   .start = in->start,
                                   .whole = in->whole,
                                   .window = in->window,
                                   .sinks = in->sinks ? h->sinks : NULL};
    if (in->sinks &&
        kvd_queue_get(h->sinks, in->sinks, (size_t)in->config->n_heads * sizeof *h->sinks,
                      in->stream, what, err))
        return -1;
    return kvd_status(fetch(h, in, in->q, in->ld, width_q, h->q, err) ||
                      fetch(h, in, in->k, in->ld, width_k, h->k, err) ||
                      fetch(h, in, in->v, in->ld, width_k, h->v, err) ||
                      (h->q_pre && (fetch(h, in, in->q_pre, in->ld_pre, width_q, h->q_pre, err) ||
                                    fetch(h, in, in->k_pre, in->ld_pre, width_k, h->k_pre, err))) ||
                      (h->input && fetch(h, in, in->input, width_in, width_in, h->input, err)) ||
                      h->inner->run(h->inner, &host, h->out, err) ||
                      put_back(h, in, width_q, out, err));
}

int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err)
{
    const size_t n = max_tokens, width_q = (size_t)c->n_heads * (size_t)c->d_head;
    const size_t width_k = (size_t)c->n_kv_heads * (size_t)c->d_head,
                 width_in = inner->wants_input ? (size_t)c->d_model : 0;
    memset(h, 0, sizeof *h);
    h->hook.run = run;
    h->hook.wants_pre = inner->wants_pre;
    h->hook.wants_input = inner->wants_input;
    h->inner = inner;
    if (share->count > 1)
        return kvd_fail(err, "%s wants all heads on one GPU, not on %d", what, share->count);
    return (h->q = floats(n, width_q, err)) && (h->k = floats(n, width_k, err)) &&
                   (h->v = floats(n, width_k, err)) && (h->out = floats(n, width_q, err)) &&
                   (pass == KVD_F32 ||
                    (h->narrow = floats(n, width_q > width_in ? width_q : width_in, err))) &&
                   (!c->sinks || (h->sinks = floats(1, (size_t)c->n_heads, err))) &&
                   (!width_in || (h->input = floats(n, width_in, err))) &&
                   (!inner->wants_pre ||
                    ((h->q_pre = floats(n, width_q, err)) && (h->k_pre = floats(n, width_k, err))))
               ? 0
               : -1;
}

void kvd_host_hook_release(kvd_host_hook *h)
{
    void *const all[] = {h->q,     h->k,   h->v,      h->q_pre, h->k_pre,
                         h->input, h->out, h->narrow, h->sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    memset(h, 0, sizeof *h);
}
