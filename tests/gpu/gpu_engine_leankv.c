/* Compares the method LeanKV in the CUDA engine with the CPU engine. Rounding may change which
 * tokens are quantised or dropped. */
#include <math.h>

#include "engine_schedule.h"

static served run(const kvd_checkpoint *c, const load *l, const kvd_plan *plan, const setting *set,
                  bool gpu, int times)
{
    const kvd_engine_spec spec = spec_of(set, l->max_len, 4 * l->max_len);
    const serving_order by = order_of(set);
    kvd_err err = {""};
    served o = {0};
    kvd_engine *const e = gpu ? kvd_engine_open_cuda(c, plan, &spec, &err)
                              : kvd_engine_open_cpu(c, plan, &spec, &err);
    int status = !e;
    for (int i = 0; i < times && !status; i++)
        status = serve_recorded(e, l, &by, &o, &err);
    or_end(status, "engine leankv", err.msg);
    e->free(e);
    return o;
}

typedef struct {
    double mean, worst;
} apart;

static apart compare(const load *l, const served *x, const served *y, int steps_only)
{
    apart a = {0, 0};
    size_t n = 0;
    for (size_t r = 0; r < l->n; r++)
        for (size_t i = l->first[r] + (size_t)steps_only; i < l->first[r + 1]; i++) {
            const size_t at = i * l->vocab;
            const double e = distance(x->logits + at, y->logits + at, l->vocab);
            a.mean += e;
            a.worst = worse(a.worst, e);
            n++;
        }
    a.mean /= (double)n;
    return a;
}

/* Returns true if the logits of GPU and CPU are close enough.
 *
 * - is: distance between the logits of GPU and CPU
 * - rounding: this distance with an uncompressed cache
 * - does: distance between the CPU's logits with the method and with an uncompressed cache */
static bool near(const apart *is, const apart *rounding, const apart *does)
{
    return is->mean < 2 * rounding->mean + does->mean / 2 &&
           is->worst < 3 * rounding->worst + does->worst;
}

static bool same(const load *l, const served *x, const served *y)
{
    return x->n_held == y->n_held && !memcmp(x->held, y->held, x->n_held * sizeof *x->held) &&
           !memcmp(x->logits, y->logits, l->outputs * l->vocab * sizeof(float));
}

static int plan_of(const char *text, kvd_method *m, kvd_plan *plan, const kvd_config *config,
                   kvd_err *err)
{
    const kvd_method_setup setup = {.config = config};
    if (kvd_method_parse(text, m, err))
        return -1;
    *plan = m->plan;
    plan->type = KVD_BF16;
    plan->prompt = SIZE_MAX;
    return kvd_plan_open(plan, &setup, err);
}

static void check_bytes(const char *name, const served *gpu, const served *cpu, size_t d, size_t k,
                        size_t v)
{
    const double plain = (double)(d * (k + v)) / 8 + 8 + 6, ratio = (plain + 2) / plain;
    const double low = (double)(d * (k + v)) / 16 + 8 + 6, low_ratio = (low + 2) / low;
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < gpu->n_held; i++) {
        least = fmin(least, gpu->held[i] / cpu->held[i]);
        most = worse(most, gpu->held[i] / cpu->held[i]);
    }
    test_result(gpu->n_held == cpu->n_held && least > 0.97 * ratio && most < 1.03 * low_ratio, name,
                "%.4f to %.4f of what the CPU holds; scores of 32 bits make it %.4f to %.4f", least,
                most, ratio, low_ratio);
}

static void test(const char *path, const char *model, const char *method, const request *r,
                 size_t n, int quick)
{
    static const setting plain = {.max_batch = 5},
                         graphs = {.max_batch = 5, .graphs = true, .phases = true},
                         mixed = {.max_batch = 4, .mixed = true, .graphs = true};
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    kvd_method m;
    kvd_plan plan;
    char name[200];
    kvd_checkpoint *const c = checkpoint_or_end(path);
    if (plan_of(method, &m, &plan, kvd_checkpoint_config(c), &err)) {
        test_result(0, model, "%s", err.msg);
        return;
    }
    load l = load_make(c, r, n, 23);
    served dense = run(c, &l, &none, &plain, false, 1),
           dense_gpu = run(c, &l, &none, &plain, true, 1);
    served want = run(c, &l, &plan, &plain, false, 1), got = run(c, &l, &plan, &plain, true, 1);
    const apart rounding = compare(&l, &dense_gpu, &dense, 1), does = compare(&l, &want, &dense, 1),
                is = compare(&l, &got, &want, 1), there = compare(&l, &got, &dense, 1);
    (void)snprintf(name, sizeof name, "%s, %s", model, method);
    test_result(
        near(&is, &rounding, &does) && there.mean > does.mean / 2 && there.mean < 2 * does.mean,
        name,
        "steps off by %.2g, at most %.2g; bf16 alone %.2g, at most %.2g; the method %.2g, at most "
        "%.2g, here %.2g",
        is.mean, is.worst, rounding.mean, rounding.worst, does.mean, does.worst, there.mean);
    check_bytes(name, &got, &want, (size_t)kvd_checkpoint_config(c)->d_head, 8, 4);
    if (!quick) {
        served again = run(c, &l, &plan, &plain, true, 2);
        test_result(same(&l, &again, &got), name,
                    "the same bits in a second run, whose pages are others' that went");
        free(again.logits);
    }
    served replayed = run(c, &l, &plan, &graphs, true, 1);
    test_result(same(&l, &replayed, &got) && replayed.sum.part[KVD_PHASE_COMPRESS] > 0, name,
                "the same bits with graphs; compress %.2g s, decode %.2g s, schedule %.2g s",
                replayed.sum.part[KVD_PHASE_COMPRESS], replayed.sum.part[KVD_PHASE_DECODE],
                replayed.sum.part[KVD_PHASE_SCHEDULE]);
    served beside = run(c, &l, &plan, &mixed, true, 1);
    const apart other = compare(&l, &beside, &want, 0);
    test_result(near(&other, &rounding, &does), name,
                "prompts beside steps in 4 slots: off by %.2g, at most %.2g", other.mean,
                other.worst);
    host_free(beside.logits, replayed.logits, got.logits, want.logits, dense_gpu.logits,
              dense.logits);
    load_release(&l);
    kvd_plan_close(&plan);
    kvd_checkpoint_close(c);
}

static void refused(const char *path, const char *method, size_t chunk, const char *why)
{
    kvd_err err = {""};
    kvd_method m;
    kvd_plan plan;
    kvd_checkpoint *const c = checkpoint_or_end(path);
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 2, .chunk = chunk}, 64, 64);
    kvd_engine *e = NULL;
    if (!plan_of(method, &m, &plan, kvd_checkpoint_config(c), &err)) {
        e = kvd_engine_open_cuda(c, &plan, &spec, &err);
        kvd_plan_close(&plan);
    }
    test_result(!e && strstr(err.msg, why), "refused", "%s", e ? why : err.msg);
    engine_free(e);
    kvd_checkpoint_close(c);
}

static void test_refused(void)
{
    static const char demo[] = "data/models/kvdim-6m";
    refused(demo, "leankv", 32, "one piece");
    refused(demo, "leankv,lk=2", 0, "K2V2");
    refused("tests/data/families/llama-biases", "leankv", 0, "heads of 16");
    refused(demo, "leankv,window=0", 0, "window");
    refused(demo, "sparsity", 0, "sparsity");
}

/* usage: gpu_engine_leankv [quick]; quick: a small case, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const request long_ones[] = {{70, 9},  {1, 30},  {300, 3}, {64, 12},
                                        {13, 70}, {129, 1}, {200, 8}, {63, 20},
                                        {40, 40}, {5, 64},  {1, 1},   {448, 33}};
    static const request short_ones[] = {{40, 9}, {1, 20}, {60, 3}, {28, 12}, {33, 11}, {25, 1}};
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    if (!gpu_devices("engine leankv", 1))
        return 0;
    test("tests/data/families/qwen3-gqa", "qwen3-gqa", "leankv,th=0.3,tl=0.05,window=8", short_ones,
         6, quick);
    if (quick)
        return failures ? 1 : 0;
    test("tests/data/families/qwen2-gqa", "qwen2-gqa", "leankv,th=0.5,tl=0.2,window=4", short_ones,
         6, 0);
    test("data/models/kvdim-6m", "kvdim-6m", "leankv,th=0.3,tl=0.03,window=16", long_ones, 12, 0);
    test("data/models/kvdim-6m", "kvdim-6m", "leankv", long_ones, 12, 0);
    test_refused();
    return failures ? 1 : 0;
}
