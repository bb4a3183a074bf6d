/* usage: bench_gpu_generate [SHAPE|FOLDER [ITEMS [PROMPT [NEW [METHOD...]]]]]
 * Times generation of NEW tokens after ITEMS prompts of PROMPT random tokens. */

#include "common/clock.h"
#include "common/device.h"
#include "dims_fixture.h"
#include "evaluate/generate/generate.h"
#include "gpu_case.h"
#include "methods/points.h"
#include "model/checkpoint/shapes.h"

typedef struct {
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_generator *generator;
    kvd_continuations run;
    kvd_spectrum spectrum; /* random rotation matrices, made when a method needs them */
    bool made;
} bench;

static void time_method(bench *b, const char *text)
{
    kvd_err err = {""};
    kvd_method m;
    kvd_point *point = NULL;
    size_t n_points = 0;
    char why[KVD_GENERATOR_WHY];
    end_on(kvd_method_parse(text, &m, &err), &err);
    if (m.dims && !b->made)
        end_on(fixture_spectrum(&b->spectrum, b->config, 5, &err), &err);
    b->made = b->made || m.dims;
    m.spectrum = m.dims ? &b->spectrum : NULL;
    m.spectrum_path = "random bases";
    end_on(kvd_points_make(&m, &point, &n_points, &err), &err);
    kvd_plan plan = kvd_point_plan(point);
    plan.type = KVD_BF16;
    plan.prompt = 1;
    const kvd_method_setup setup = {.config = b->config,
                                    .spectrum = m.spectrum,
                                    .checkpoint = b->checkpoint,
                                    .drawn = true,
                                    .seed = 1};
    end_on(kvd_plan_open(&plan, &setup, &err), &err);
    const size_t n = b->run.n_sequences, places = b->run.end[n];
    const kvd_continued out = {.token = need(places * sizeof *out.token),
                               .cost = need(n * sizeof *out.cost)};
    const char *const path = kvd_generator_path(b->generator, &plan, why);
    const double started = kvd_clock_s();
    if (kvd_generate(b->generator, &plan, &b->run, &out, NULL, NULL, NULL, &err))
        printf("%-28s %s%s%s: %s\n", text, path, *why ? ", because " : "", why, err.msg);
    else {
        double prompts = 0, steps = 0;
        for (size_t s = 0; s < n; s++) {
            prompts += out.cost[s].prompt_s;
            steps += out.cost[s].steps_s;
        }
        const double tokens = (double)(b->run.offset[1] + b->run.end[1] - 1);
        printf("%-28s %8.1f s, of them prompts %.1f and steps %.1f; %.0f bytes of cache per token; "
               "%s%s%s\n",
               text, kvd_clock_s() - started, prompts, steps, out.cost[0].bits / 8 / tokens, path,
               *why ? ", because " : "", why);
    }
    (void)fflush(stdout);
    host_free(out.token, out.cost);
    kvd_plan_close(&plan);
    kvd_points_free(point, n_points);
}

static void make_items(bench *b, size_t items, size_t prompt, size_t new)
{
    size_t *const offset = need((items + 1) * sizeof *offset), *const end =
                                                                   need((items + 1) * sizeof *end);
    uint32_t *const id = need(items * prompt * sizeof *id);
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (size_t i = 0; i < items * prompt; i++)
        id[i] = (uint32_t)kvd_rng_below(&r, (uint32_t)b->config->vocab_size);
    for (size_t s = 0; s < items; s++) {
        offset[s + 1] = offset[s] + prompt;
        end[s + 1] = end[s] + new;
    }
    b->run = (kvd_continuations){.n_sequences = items, .offset = offset, .id = id, .end = end};
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"none", "zack,p=0.5", "kivi,bits=4", "kvquant,outliers=0",
                                        "h2o",  "keyformer",  "snapkv"};
    const char *const model = argc > 1 ? argv[1] : "llama-3.1-8b";
    const size_t items = argc > 2 ? strtoull(argv[2], NULL, 10) : 500,
                 prompt = argc > 3 ? strtoull(argv[3], NULL, 10) : 4096,
                 new = argc > 4 ? strtoull(argv[4], NULL, 10) : 64;
    char name[128];
    kvd_err err = {""};
    bench b = {.made = false};
    if (kvd_cuda_here(name, sizeof name, &err)) {
        printf("skip: %s\n", err.msg);
        return 0;
    }
    const kvd_shape *const shape = strchr(model, '/') ? NULL : kvd_shape_find(model, &err);
    end_on(!strchr(model, '/') && !shape, &err);
    b.checkpoint = shape ? kvd_checkpoint_of_shape(shape, KVD_SHAPE_SEED, &err)
                         : kvd_checkpoint_open(model, &err);
    end_on(!b.checkpoint || !items || !prompt || !new, &err);
    b.config = kvd_checkpoint_config(b.checkpoint);
    make_items(&b, items, prompt, new);
    const kvd_generator_spec spec = {
        .gpu = true, .compute = KVD_BF16, .n_gpus = 1, .max_tokens = 8192, .max_len = prompt + new};
    end_on(!(b.generator = kvd_generator_new(b.checkpoint, &spec, &err)), &err);
    printf("%s: %s, %zu items of %zu tokens and %zu new ones, bf16\n", name, model, items, prompt,
           new);
    if (argc > 5)
        for (int i = 5; i < argc; i++)
            time_method(&b, argv[i]);
    else
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
            time_method(&b, usual[i]);
    kvd_generator_free(b.generator);
    kvd_spectrum_release(&b.spectrum);
    kvd_checkpoint_close(b.checkpoint);
    host_free((void *)(uintptr_t)b.run.offset, (void *)(uintptr_t)b.run.end,
              (void *)(uintptr_t)b.run.id);
    return 0;
}
