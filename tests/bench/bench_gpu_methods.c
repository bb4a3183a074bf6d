/* usage: bench_gpu_methods SHAPE CONTEXT BATCH ours|papers|stock METHOD...
 * Times decode steps and a prompt. Attention is divided among thread blocks by estimated cost
 * (ours) or as in the papers of ZACK and FDC (papers), or all heads are padded to the widest
 * (stock). */

#include "gpu_case.h"
#include "model/model_info.h"
#include "serving/jct/jct_methods.h"

enum { BATCH = 64, STEPS = 8 };

static size_t context;

static void print(const char *what, size_t n, const kvd_phase_times *sum, int runs)
{
    printf("  %s of %zu: %.3f ms:", what, n, 1e3 * sum->total / runs);
    for (int p = 0; p < KVD_PHASES; p++)
        if (sum->part[p] > 0)
            printf(" %s %.3f", kvd_phase_column((kvd_phase)p), 1e3 * sum->part[p] / runs);
    printf("\n");
}

static void steps(kvd_engine *e, size_t n, const uint32_t *id)
{
    kvd_err err;
    kvd_slice slice[BATCH];
    const kvd_iteration it = {.n_slices = n, .n_steps = n, .slice = slice, .n_tokens = n};
    kvd_phase_times sum = {.total = 0};
    uint32_t next[BATCH];
    for (size_t i = 0; i < n; i++)
        slice[i] =
            (kvd_slice){.slot = (uint32_t)i, .before = (uint32_t)context - 1, .n = 1, .emits = 1};
    for (int i = -2; i < STEPS; i++) {
        kvd_phase_times t;
        end_on(e->step(e, &it, id, next, &t, &err), &err);
        if (i >= 0)
            kvd_phase_add(&sum, &t);
    }
    print("step", n, &sum, STEPS);
}

/* Times a prompt of CONTEXT tokens after a short prompt for warm-up. */
static void prompt(kvd_engine *e, const uint32_t *id)
{
    kvd_err err;
    kvd_phase_times t;
    uint32_t next;
    for (int i = 0; i < 2; i++) {
        const uint32_t n = i ? (uint32_t)context : context < 512 ? (uint32_t)context : 512;
        const kvd_slice slice = {.n = n, .emits = 1, .last = 1};
        const kvd_iteration it = {.n_slices = 1, .slice = &slice, .n_tokens = n};
        end_on(e->step(e, &it, id, &next, &t, &err), &err);
    }
    print("prompt", context, &t, 1);
}

static void bench(const kvd_checkpoint *c, kvd_jct_methods *m, size_t i, size_t batch,
                  kvd_attention_choice attention, const uint32_t *id)
{
    kvd_err err;
    kvd_plan plan;
    const kvd_engine_spec spec = {.limits = {.max_batch = batch, .max_tokens = context},
                                  .max_len = context,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .attention = attention,
                                  .graphs = true,
                                  .phases = true};
    end_on(kvd_jct_method_plan(m, i, c, true, KVD_BF16, context, 1, &plan, &err), &err);
    kvd_engine *const e = kvd_engine_open_cuda(c, &plan, &spec, &err);
    if (!e) {
        printf("%s: %s\n", m->item[i].label, err.msg);
    } else {
        printf("%s: %s; %zu pages, %.0f bytes per token, %.1f GB\n", m->item[i].label,
               e->facts.what, e->facts.pages, e->facts.bytes_per_token, e->facts.peak_bytes / 1e9);
        steps(e, 1, id);
        if (batch > 1 && e->facts.pages >= batch * ((context + 63) / 64))
            steps(e, batch, id);
        else if (batch > 1)
            printf("  no room for %zu requests\n", batch);
        prompt(e, id);
        e->free(e);
    }
    kvd_plan_close(&plan);
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    static kvd_jct_options cfg;
    static kvd_jct_methods methods;
    kvd_err err = {""};
    kvd_model_info info;
    int attention = 0;
    const size_t batch = argc > 5 ? strtoul(argv[3], NULL, 10) : 0;
    while (argc > 5 && attention < KVD_N_ATTENTIONS &&
           strcmp(argv[4], kvd_jct_attention_name[attention]))
        attention++;
    if (argc < 6 || batch < 1 || batch > BATCH || attention == KVD_N_ATTENTIONS) {
        fprintf(stderr,
                "usage: bench_gpu_methods SHAPE CONTEXT BATCH ours|papers|stock METHOD...\n");
        return 2;
    }
    if (!gpu_devices("methods", 1))
        return 0;
    context = strtoul(argv[2], NULL, 10);
    end_on(!(cfg.shape = kvd_shape_find(argv[1], &err)), &err);
    for (int i = 5; i < argc && cfg.n_methods < KVD_JCT_METHODS; i++, cfg.n_methods++) {
        cfg.method_text[cfg.n_methods] = argv[i];
        end_on(kvd_method_parse(argv[i], &cfg.method[cfg.n_methods], &err), &err);
    }
    kvd_checkpoint *const c = kvd_checkpoint_of_shape(cfg.shape, KVD_SHAPE_SEED, &err);
    end_on(!c, &err);
    kvd_model_info_set(&info, kvd_checkpoint_config(c), kvd_checkpoint_path(c), "", "");
    end_on(kvd_jct_methods_load(&methods, &cfg, kvd_checkpoint_config(c), &info, &err), &err);
    uint32_t *const id = need(context * sizeof *id);
    for (size_t i = 0; i < context; i++)
        id[i] = (uint32_t)((i * 2654435761u) % (size_t)kvd_checkpoint_config(c)->vocab_size);
    for (size_t i = 0; i < methods.n; i++)
        bench(c, &methods, i, batch, (kvd_attention_choice)attention, id);
    free(id);
    kvd_jct_methods_release(&methods);
    kvd_checkpoint_close(c);
    return 0;
}
