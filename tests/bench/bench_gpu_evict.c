/* usage: bench_gpu_evict [BATCH...]
 * Times decode of Llama 3.1 8B after 8192 tokens, with and without evicting 39 to 69 % of them
 * (ZACK paper, Tables 8 to 11). */

#include "common/stats.h"
#include "engine/engine.h"
#include "gpu_case.h"
#include "methods/method.h"
#include "model/checkpoint/shapes.h"

enum { CONTEXT = 8192, OUTPUT = 256, STEPS = 15, MOST = 64 };

static int time_steps(kvd_engine *e, size_t batch, const char *method, kvd_err *err)
{
    static const uint32_t id[MOST];
    uint32_t token[MOST];
    kvd_slice slice[MOST];
    double total[STEPS], attention[STEPS], compress[STEPS];
    for (size_t s = 0; s <= STEPS; s++) {
        kvd_phase_times t;
        for (size_t i = 0; i < batch; i++)
            slice[i] = (kvd_slice){.request = (uint32_t)i,
                                   .slot = (uint32_t)i,
                                   .before = (uint32_t)(CONTEXT + s),
                                   .n = 1,
                                   .whole = CONTEXT + OUTPUT,
                                   .emits = 1,
                                   .last = s == STEPS};
        const kvd_iteration it = {
            .n_slices = batch, .n_steps = batch, .slice = slice, .n_tokens = batch};
        if (e->step(e, &it, id, token, &t, err))
            return -1;
        if (s) {
            total[s - 1] = t.total;
            attention[s - 1] = t.part[KVD_PHASE_DECODE];
            compress[s - 1] = t.part[KVD_PHASE_COMPRESS];
        }
    }
    printf("%-36s %6zu %10.3f %10.3f %10.3f\n", method, batch,
           1e3 * kvd_quantile(total, STEPS, 0.5), 1e3 * kvd_quantile(attention, STEPS, 0.5),
           1e3 * kvd_quantile(compress, STEPS, 0.5));
    return 0;
}

static int bench(const kvd_checkpoint *c, const char *text, const size_t *batch, size_t n,
                 kvd_err *err)
{
    static kvd_method m;
    const kvd_method_setup setup = {.config = kvd_checkpoint_config(c), .seed = 1};
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = batch[i] > most ? batch[i] : most;
    const kvd_engine_spec spec = {.limits = {.max_batch = most, .max_tokens = 64},
                                  .max_len = CONTEXT + OUTPUT,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .graphs = true,
                                  .phases = true};
    if (kvd_method_parse(text, &m, err))
        return -1;
    kvd_plan plan = m.plan;
    plan.type = KVD_BF16;
    plan.seed = 1;
    plan.prompt = CONTEXT;
    if (kvd_plan_open(&plan, &setup, err))
        return -1;
    kvd_engine *const e = kvd_engine_open_cuda(c, &plan, &spec, err);
    int status = e ? 0 : -1;
    for (size_t i = 0; !status && i < n; i++)
        status = time_steps(e, batch[i], text, err);
    if (e)
        e->free(e);
    kvd_plan_close(&plan);
    return status;
}

int main(int argc, char **argv)
{
    static const char *const text[] = {"none",
                                       "h2o",
                                       "h2o,heavy=0.305,recent=0.305",
                                       "h2o,heavy=0.155,recent=0.155",
                                       "keyformer",
                                       "keyformer,keys=0.305,recent=0.305",
                                       "keyformer,keys=0.155,recent=0.155"};
    size_t batch[MOST] = {1, 64}, n = 2;
    kvd_err err = {""};
    if (!gpu_devices("steps with eviction", 1))
        return 0;
    for (int i = 1; i < argc && i <= MOST; i++) {
        batch[i - 1] = strtoul(argv[i], NULL, 10);
        n = (size_t)i;
        if (batch[i - 1] < 1 || batch[i - 1] > MOST) {
            fprintf(stderr, "bench_gpu_evict: batches of 1 to %d\n", MOST);
            return 2;
        }
    }
    const kvd_shape *const shape = kvd_shape_find("llama-3.1-8b", &err);
    kvd_checkpoint *const c = shape ? kvd_checkpoint_of_shape(shape, KVD_SHAPE_SEED, &err) : NULL;
    int status = c ? 0 : -1;
    printf("%-36s %6s %10s %10s %10s\n", "method", "batch", "step/ms", "attention", "compress");
    for (size_t i = 0; !status && i < sizeof text / sizeof *text; i++)
        status = bench(c, text[i], batch, n, &err);
    if (status)
        fprintf(stderr, "bench_gpu_evict: %s\n", err.msg);
    kvd_checkpoint_close(c);
    return status ? 1 : 0;
}
