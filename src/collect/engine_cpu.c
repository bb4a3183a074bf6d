/* CPU engine of kvdim-collect: adds up statistics of Q, K and V, and writes Q, K and V to files. */
#include <stdlib.h>

#include "collect/collect.h"
#include "collect/dump.h"
#include "collect/sums.h"
#include "common/clock.h"
#include "common/device.h"
#include "common/run.h"

typedef struct {
    kvd_collect_engine engine;
    kvd_collect_spec spec;
    kvd_forward *forward;
    kvd_dense_attention dense;
    kvd_capture capture;
    kvd_dump dump;
    kvd_accumulator accumulator;
    kvd_tally tally;
    kvd_information *information;
    /* true to record the current batch in the second moments (add), in the activations file
     * (to_dump), or in the attention statistics (to_stats) */
    bool add, to_dump, to_stats;
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} cpu;

static int record(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    cpu *c = ctx;
    if (c->give_up(c->ctx, err) || (c->to_dump && kvd_dump_record(&c->dump, in, err)))
        return -1;
    if (c->to_stats && kvd_tally_record(&c->tally, in, err))
        return -1;
    return c->add ? kvd_accumulator_record(&c->accumulator, in, err) : 0;
}

static int weights(kvd_collect_engine *e, kvd_err *err)
{
    cpu *c = (cpu *)e;
    const kvd_config *m = kvd_checkpoint_config(c->spec.checkpoint);
    const size_t n = (size_t)m->n_heads * (size_t)m->d_head * (size_t)m->d_model;
    float *w_o = malloc(n * sizeof *w_o), *w_v = malloc(n * sizeof *w_v);
    int status = w_o && w_v ? 0 : kvd_no_memory(err, "weights of a layer", n * sizeof *w_o);
    for (int l = c->spec.first_layer; l <= c->spec.last_layer && !status; l++) {
        const int at = l - c->spec.first_layer;
        status = (kvd_interrupted() && kvd_fail_interrupted(err)) ||
                 kvd_forward_weights_o(c->forward, l, w_o, err) ||
                 kvd_forward_weights_v(c->forward, l, w_v, err) ||
                 (c->spec.dump && kvd_activations_put_weights(c->spec.dump, at, w_o, w_v, err)) ||
                 (c->spec.sums && kvd_accumulator_weights(&c->accumulator, at, w_o, w_v, err));
    }
    free(w_o);
    free(w_v);
    return kvd_status(status);
}

static int run(kvd_collect_engine *e, const kvd_batch *b, size_t first_token, kvd_moments *into,
               bool to_dump, int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err)
{
    cpu *c = (cpu *)e;
    const kvd_collect_times before = e->times;
    const double start = kvd_clock_s();
    c->add = into != NULL;
    c->accumulator.sums = into;
    c->to_dump = to_dump && c->spec.dump;
    c->to_stats = to_dump && c->spec.stats;
    c->dump.first_token = first_token;
    c->give_up = give_up;
    c->ctx = ctx;
    int status = 0;
    if (c->add || c->to_dump || c->to_stats)
        status = kvd_forward_run(c->forward, b, &c->capture.hook, c->spec.last_layer, NULL, err);
    c->accumulator.sums = c->spec.sums;
    e->times.record = c->dump.convert_s + c->accumulator.seconds + c->tally.seconds;
    e->times.write = c->dump.write_s;
    e->times.forward +=
        kvd_clock_s() - start - (e->times.record - before.record) - (e->times.write - before.write);
    if (!status && to_dump && c->information) {
        const double then = kvd_clock_s();
        status = kvd_information_run(c->information, b, first_token, give_up, ctx, err);
        e->times.backward += kvd_clock_s() - then;
    }
    return status;
}

/* Writes the sums of squared gradients of W_K and W_V to spec.fisher. `run` has already stored all
 * other results. */
static int flush(kvd_collect_engine *e, kvd_err *err)
{
    cpu *c = (cpu *)e;
    (void)err;
    if (c->information)
        kvd_information_flush(c->information);
    return 0;
}

static const char *describe(const kvd_collect_engine *e)
{
    (void)e;
    return "the CPU, f32, OpenBLAS";
}

static void release(kvd_collect_engine *e)
{
    cpu *c = (cpu *)e;
    kvd_dump_release(&c->dump);
    kvd_accumulator_release(&c->accumulator);
    kvd_tally_release(&c->tally);
    kvd_information_free(c->information);
    kvd_dense_attention_release(&c->dense);
    kvd_forward_free(c->forward);
    free(c);
}

kvd_collect_engine *kvd_collect_engine_cpu(const kvd_collect_spec *s, kvd_err *err)
{
    cpu *c = kvd_new(1, sizeof *c, "the forward pass", err);
    if (!c)
        return NULL;
    c->engine = (kvd_collect_engine){
        .weights = weights, .run = run, .flush = flush, .free = release, .describe = describe};
    c->spec = *s;
    kvd_dense_attention_init(&c->dense);
    kvd_capture_init(&c->capture, &c->dense.hook);
    c->capture.record = record;
    c->capture.ctx = c;
    c->capture.hook.wants_pre = s->pre;
    if (!(c->forward = kvd_forward_new(s->checkpoint, s->max_tokens, s->max_len, err)) ||
        (s->dump && kvd_dump_init(&c->dump, s->dump, err)) ||
        (s->sums && kvd_accumulator_init(&c->accumulator, s->sums, s->threads, err)) ||
        (s->stats && kvd_tally_init(&c->tally, s->stats, s->threads, err)) ||
        (s->fisher && !(c->information = kvd_information_new(s->checkpoint, s->max_tokens,
                                                             s->max_len, s->fisher, err)))) {
        release(&c->engine);
        return NULL;
    }
    return &c->engine;
}

#ifndef KVD_CUDA
kvd_collect_engine *kvd_collect_engine_cuda(const kvd_collect_spec *s, kvd_err *err)
{
    (void)s;
    kvd_fail(err, "no CUDA: it " KVD_LEFT_OUT);
    return NULL;
}

int kvd_engine_cuda_batch(const kvd_config *c, kvd_dtype compute, int first_gpu, int n_gpus,
                          size_t seq_len, size_t *batch, kvd_err *err)
{
    (void)c;
    (void)compute;
    (void)first_gpu;
    (void)n_gpus;
    (void)seq_len;
    (void)batch;
    return kvd_fail(err, "no CUDA: it " KVD_LEFT_OUT);
}
#endif
