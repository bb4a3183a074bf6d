/* Compares logits of the CUDA engine with those of the forward pass. Also checks the measured times
 * of an iteration's phases, and how many bytes GPUs send to each other. */
#ifndef KVD_TESTS_ENGINE_CASE_H
#define KVD_TESTS_ENGINE_CASE_H

#include <math.h>

#include "engine_schedule.h"
#include "worst.h"

static int n_gpus = 1;

static void use_gpus(int gpus)
{
    static char subject[32];
    n_gpus = gpus;
    (void)snprintf(subject, sizeof subject, "engine on %d GPU%s", gpus, gpus > 1 ? "s" : "");
    test_subject = subject;
}

typedef struct {
    double worst;
    /* rows: number of compared logit vectors. steps: number of decode steps. other: number of
     * output tokens that do not have the largest logit. */
    size_t rows, steps, other;
    double sent[2];
    /* least_part: shortest measured phase of an iteration in seconds. residue: largest fraction of
     * an iteration's time that belongs to no phase. */
    double least_part, residue;
    kvd_phase_times sum;
} outcome;

static void compare(outcome *o, const float *got, const float *want, size_t vocab, uint32_t token,
                    double bar)
{
    double norm = 0;
    for (size_t i = 0; i < vocab; i++)
        norm += (double)want[i] * (double)want[i];
    const double e = distance(got, want, vocab), sure = 4 * bar * sqrt(norm / (double)vocab);
    const uint32_t best = largest(want, vocab);
    o->worst = worse(o->worst, e);
    o->other += token != largest(got, vocab) || (double)(want[best] - want[token]) > sure;
    o->rows++;
}

static void note_phases(outcome *o, const kvd_phase_times *t)
{
    const double residue = fabs(kvd_phase_residue(t)) / t->total;
    o->residue = residue > o->residue ? residue : o->residue;
    for (int p = 0; p < KVD_PHASES; p++)
        o->least_part = t->part[p] < o->least_part ? t->part[p] : o->least_part;
    kvd_phase_add(&o->sum, t);
}

typedef struct {
    const load *l;
    outcome *o;
    float *got;
} watched;

static int watch(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                 const kvd_phase_times *t, kvd_err *err)
{
    const watched *const w = ctx;
    note_phases(w->o, t);
    if (e->sent) {
        double bytes[2];
        e->sent(e, bytes);
        w->o->sent[0] += bytes[0];
        w->o->sent[1] += bytes[1];
    }
    w->o->steps += it->n_steps;
    for (size_t i = 0; i < it->n_slices; i++) {
        if (!it->slice[i].emits)
            continue;
        if (e->logits(e, i, w->got, err))
            return -1;
        compare(w->o, w->got, w->l->want + token_row(w->l, &it->slice[i]) * w->l->vocab,
                w->l->vocab, token[i], w->l->bar);
    }
    return 0;
}

static kvd_engine_spec spec_on_gpus(const setting *set, size_t max_len)
{
    kvd_engine_spec s = spec_of(set, max_len, 4 * max_len);
    s.n_gpus = n_gpus;
    return s;
}

/* Returns the first token of the part of the prompt that GPU `gpu` processes, a multiple of 64. If
 * gpu is n_gpus, returns the prompt length. */
static size_t slice_at(size_t len, int gpu)
{
    const size_t first = (len + 63) / 64 * (size_t)gpu / (size_t)n_gpus * 64;
    return first < len ? first : len;
}

/* Checks how many bytes the GPUs sent to each other. Q is padded to 8 tokens, K and V to whole
 * pages; attention outputs are not padded. */
static void test_sent(const kvd_config *c, const load *l, const kvd_plan *plan, const outcome *o)
{
    const kvd_dims *const dims = plan ? plan->dims : NULL;
    const int group = c->n_heads / c->n_kv_heads, own = c->n_kv_heads / n_gpus;
    double want[2] = {0, 0};
    for (size_t r = 0; r < l->n; r++)
        for (int i = 0; i < c->n_layers * c->n_kv_heads * n_gpus; i++) {
            const int head = i / n_gpus, slice = i % n_gpus;
            if (head % c->n_kv_heads / own == slice)
                continue;
            const size_t tokens =
                slice_at(l->r[r].input, slice + 1) - slice_at(l->r[r].input, slice);
            const int d_qk = dims ? kvd_pad16(dims->head[head].d_qk, c->d_head) : c->d_head;
            const int d_v = dims ? kvd_pad16(dims->head[head].d_v, c->d_head) : c->d_head;
            want[0] += 2.0 * (double)((tokens + 7) / 8 * 8 * (size_t)(group * d_qk) +
                                      (tokens + 63) / 64 * 64 * (size_t)(d_qk + d_v));
            want[1] += 2.0 * (double)(tokens * (size_t)(group * d_v));
        }
    test_result(fabs(o->sent[0] - want[0]) + fabs(o->sent[1] - want[1]) < 0.5 && want[0] > 0,
                "bytes sent", "%.0f of Q, K and V, %.0f of the output; %.0f and %.0f by hand",
                o->sent[0], o->sent[1], want[0], want[1]);
}

static void test(const kvd_checkpoint *c, const char *model, const load *l, const kvd_plan *plan,
                 const char *method, const setting *set)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    char name[160], text[256];
    outcome o = {0};
    watched w = {l, &o, need(l->vocab * sizeof *w.got)};
    const serving_order by = order_of(set);
    const kvd_engine_spec spec = spec_on_gpus(set, l->max_len);
    kvd_engine *const e = kvd_engine_open_cuda(c, plan ? plan : &none, &spec, &err);
    const int status = !e || serve(e, l, &by, watch, &w, &err);
    free(w.got);
    (void)snprintf(name, sizeof name, "%s, %s, %s", model, method, set->name);
    (void)snprintf(text, sizeof text,
                   "%zu rows, %zu of steps, off by %.2g of %.2g, %zu other tokens", o.rows, o.steps,
                   o.worst, l->bar, o.other);
    test_result(!status && o.worst <= l->bar && o.other == 0 && o.rows == l->outputs &&
                    (o.steps > 0) != set->sequence,
                name, "%s", status ? err.msg : text);
    if (set->sequence && !status)
        test_sent(kvd_checkpoint_config(c), l, plan, &o);
    if (set->phases) {
        test_result(
            !status && o.residue < 0.03 && o.least_part > -2e-6 &&
                o.sum.part[KVD_PHASE_PREFILL] > 0 &&
                (o.sum.part[KVD_PHASE_DECODE] > 0) != set->sequence &&
                o.sum.part[KVD_PHASE_MLP] > 0 && o.sum.part[KVD_PHASE_SAMPLE] > 0 &&
                (o.sum.part[KVD_PHASE_COMM] > 0) == (n_gpus > 1),
            "phases",
            "residue %.2g of the total, least part %.2g s; prefill %.2g s, decode %.2g s, host %.2g s of "
            "%.2g s",
            o.residue, o.least_part, o.sum.part[KVD_PHASE_PREFILL], o.sum.part[KVD_PHASE_DECODE],
            o.sum.part[KVD_PHASE_HOST], o.sum.total);
    }
    engine_free(e);
}

/* For each engine setting in `set`, serves the requests and compares the logits with those of the
 * forward pass. */
static void test_requests(const kvd_checkpoint *c, const char *model, const request *r, size_t n,
                          uint64_t seed, const kvd_plan *plan, const char *method,
                          const setting *const *set)
{
    kvd_err err = {""};
    load l = load_make(c, r, n, seed);
    if (expect(&l, c, plan, &err))
        test_result(0, model, "%s", err.msg);
    else
        for (; *set; set++)
            test(c, model, &l, plan, method, *set);
    load_release(&l);
}

#endif
