/* usage: bench_gpu_engine [-gN] [-nN[,N]...] MODEL|shape:NAME [CONTEXT
 * [WIDTHS.csv[:NAME]|METHOD]...]
 * Measures the speed of prompts, relative to matrix products of cuBLAS. Measures the speed of
 * decode steps of 1 to 64 requests, relative to the memory bandwidth of the GPU.
 *
 * -gN: uses N GPUs. -nN,...: only decode steps of N requests. shape:NAME: a published model's shape
 * with random weights. WIDTHS.csv: cuts K and V of each head to the number of dimensions that the
 * file lists for this head. WIDTHS.csv:NAME: reads only rows of the file that begin with NAME.
 * METHOD: compression method, such as kivi,bits=4. */
#include <math.h>
#include <time.h>

#include "common/stats.h"
#include "engine/engine.h"
#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "model/checkpoint/shapes.h"
#include "model/pass/forward.h"

enum { BATCH = 64, PREFILLS = 4, STEPS = 24 };

static size_t context = 8192;
static int n_gpus = 1;
static const char *sizes; /* argument of -n; NULL: powers of two */
static kvd_ceiling gemm, bandwidth;

enum { WIDTHS = 128 };
typedef struct {
    int n, d_qk[WIDTHS], d_v[WIDTHS];
} widths;

static void read_widths(widths *w, const char *text, int d_head)
{
    char line[64], path[512];
    const char *const suffix = strstr(text, ".csv:"), *const name = suffix ? suffix + 5 : "";
    const int length = suffix ? (int)(suffix + 4 - text) : (int)strlen(text);
    snprintf(path, sizeof path, "%.*s", length, text);
    FILE *const f = fopen(path, "r");
    w->n = 0;
    while (f && w->n < WIDTHS && fgets(line, sizeof line, f)) {
        int *const qk = &w->d_qk[w->n], *const v = &w->d_v[w->n];
        const size_t skip = *name ? strlen(name) + 1 : 0;
        if (skip && (strncmp(line, name, skip - 1) || line[skip - 1] != ','))
            continue;
        if (sscanf(line + skip, "%d,%d", qk, v) == 2 && *qk > 0 && *qk <= d_head && *v > 0 &&
            *v <= d_head)
            w->n++;
    }
    if (f)
        (void)fclose(f);
    if (w->n == 0) {
        fprintf(stderr, "bench_gpu_engine: no widths of heads of %d in '%s'\n", d_head, text);
        exit(1);
    }
}

static void make_dims(kvd_dims *d, const kvd_config *c, const widths *w)
{
    const size_t n = (size_t)c->n_layers * (size_t)c->n_kv_heads, dh = (size_t)c->d_head;
    kvd_rng r;
    kvd_rng_seed(&r, 3, 0);
    *d = (kvd_dims){.method = "zack",
                    .n_layers = c->n_layers,
                    .n_kv_heads = c->n_kv_heads,
                    .d_head = c->d_head};
    d->pair[0] = KVD_PAIR_QK;
    d->pair[1] = KVD_PAIR_VW;
    d->head = need(n * sizeof *d->head);
    for (size_t i = 0; i < n; i++) {
        kvd_dims_head *const h = &d->head[i];
        h->d_qk = w->d_qk[i % (size_t)c->n_kv_heads % (size_t)w->n];
        h->d_v = w->d_v[i % (size_t)c->n_kv_heads % (size_t)w->n];
        h->a_q = h->a_k = need(dh * (size_t)h->d_qk * sizeof(float));
        h->a_v = need(dh * (size_t)h->d_v * sizeof(float));
        h->b_v = need(dh * (size_t)h->d_v * sizeof(float));
        for (size_t k = 0; k < dh * (size_t)h->d_qk; k++)
            h->a_q[k] = (float)(kvd_rng_normal(&r) / sqrt((double)dh));
        for (size_t k = 0; k < dh * (size_t)h->d_v; k++)
            h->a_v[k] = h->b_v[k] = (float)(kvd_rng_normal(&r) / sqrt((double)dh));
    }
}

/* Returns the size in bytes of all weights but the input embedding. */
static double read_bytes(const kvd_config *c, const kvd_dims *d)
{
    const double model = c->d_model, dh = c->d_head, group = (double)c->n_heads / c->n_kv_heads;
    double bytes = 2 * model * c->vocab_size;
    for (int l = 0; l < c->n_layers; l++) {
        double v = c->n_kv_heads * dh;
        if (d) {
            v = 0;
            for (int g = 0; g < c->n_kv_heads; g++)
                v += kvd_pad16(d->head[l * c->n_kv_heads + g].d_v, c->d_head);
        }
        bytes +=
            2 * model * (c->n_heads * dh + c->n_kv_heads * dh + v + group * v + 3.0 * c->d_ffn);
    }
    return bytes;
}

static void print_phases(const kvd_phase_times *sum, int n)
{
    printf("   ");
    for (int p = 0; p < KVD_PHASES; p++)
        if (sum->part[p] > 0)
            printf(" %s %.3f", kvd_phase_column((kvd_phase)p), 1e3 * sum->part[p] / n);
    printf(" ms; residue %.2g\n", kvd_phase_residue(sum) / sum->total);
}

static double prefill(kvd_engine *e, const uint32_t *id, kvd_phase_times *sum)
{
    kvd_err err;
    const kvd_slice slice = {.n = (uint32_t)context, .emits = 1, .last = 1};
    const kvd_iteration it = {.n_slices = 1, .slice = &slice, .n_tokens = context};
    double second[PREFILLS] = {0};
    uint32_t next;
    *sum = (kvd_phase_times){0};
    for (int i = -1; i < PREFILLS; i++) {
        kvd_phase_times t;
        end_on(e->step(e, &it, id, &next, &t, &err), &err);
        if (i >= 0) {
            second[i] = t.total;
            kvd_phase_add(sum, &t);
        }
    }
    return kvd_quantile(second, PREFILLS, 0.5);
}

/* Returns the median seconds of a decode step of n requests, whose caches hold arbitrary K and V.
 * *sum: time of each phase, summed over the steps. */
static double decode(kvd_engine *e, size_t n, const uint32_t *id, kvd_phase_times *sum)
{
    kvd_err err;
    kvd_slice slice[BATCH];
    const kvd_iteration it = {.n_slices = n, .n_steps = n, .slice = slice, .n_tokens = n};
    double second[STEPS] = {0};
    uint32_t next[BATCH];
    for (size_t i = 0; i < n; i++)
        slice[i] = (kvd_slice){.slot = (uint32_t)i, .n = 1, .emits = 1};
    *sum = (kvd_phase_times){0};
    for (int i = -3; i < STEPS; i++) {
        kvd_phase_times t;
        for (size_t k = 0; k < n; k++)
            slice[k].before = (uint32_t)(context - STEPS) + (uint32_t)i;
        end_on(e->step(e, &it, id, next, &t, &err), &err);
        if (i >= 0) {
            second[i] = t.total;
            kvd_phase_add(sum, &t);
        }
    }
    return kvd_quantile(second, STEPS, 0.5);
}

static size_t next_size(size_t n, size_t factor)
{
    static const char *at;
    char *end = NULL;
    if (!sizes)
        return !n ? 1 : n * factor <= BATCH ? n * factor : 0;
    at = n ? at : sizes;
    const size_t next = *at ? strtoul(at, &end, 10) : 0;
    at = end && *end == ',' ? end + 1 : "";
    return next <= BATCH ? next : 0;
}

static void bench(const kvd_checkpoint *c, const kvd_plan *plan, const char *name, bool phases)
{
    kvd_err err;
    const kvd_config *const m = kvd_checkpoint_config(c);
    const kvd_dims *const dims = plan->dims;
    const kvd_engine_spec spec = {.limits = {.max_batch = BATCH, .max_tokens = context},
                                  .max_len = context,
                                  .type = KVD_BF16,
                                  .n_gpus = n_gpus,
                                  .graphs = true,
                                  .phases = phases};
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, &err);
    end_on(!e, &err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    uint32_t *id = need(context * sizeof *id);
    for (size_t i = 0; i < context; i++)
        id[i] = (uint32_t)((i * 2654435761u) % (size_t)m->vocab_size);
    printf("%s%s: %s; %zu pages, %.0f bytes per token, %.1f GB; ready after %.2f s\n", name,
           phases ? ", with phases" : "", e->facts.what, e->facts.pages, e->facts.bytes_per_token,
           e->facts.peak_bytes / 1e9,
           (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
    kvd_phase_times sum;
    const size_t factor = kvd_plan_beyond_widths(plan) ? 8 : 2;
    for (size_t n = next_size(0, factor); n; n = next_size(n, factor)) {
        if (sizes && n * ((context + 63) / 64) > e->facts.pages) {
            printf("  step of %zu: no room\n", n);
            continue;
        }
        const double s = decode(e, n, id, &sum);
        const double bytes = read_bytes(m, dims) + (double)(n * context) * e->facts.bytes_per_token;
        printf("  step of %zu: %.3f ms, %.1f GB, %.2f TB/s, %.1f %% of the bound\n", n, 1e3 * s,
               bytes / 1e9, bytes / s / 1e12, 100 * bytes / s / bandwidth.rate);
        if (phases)
            print_phases(&sum, STEPS);
    }
    if (sizes) {
        free(id);
        e->free(e);
        return;
    }
    const double t = prefill(e, id, &sum),
                 flop = (double)context * kvd_forward_flop_per_token(m, (double)context);
    printf("  prompt of %zu: %.2f ms, %.0f tokens/s", context, 1e3 * t, (double)context / t);
    if (!dims)
        printf(", %.1f TFLOP/s in products, %.1f %% of the ceiling", flop / t / 1e12,
               100 * flop / t / gemm.rate);
    printf("\n");
    if (phases)
        print_phases(&sum, PREFILLS);
    free(id);
    e->free(e);
    (void)fflush(stdout);
}

static void bench_widths(const kvd_checkpoint *c, const char *path)
{
    const kvd_config *const m = kvd_checkpoint_config(c);
    widths w;
    kvd_dims d;
    const kvd_plan plan = {.type = KVD_BF16, .dims = &d};
    read_widths(&w, path, m->d_head);
    make_dims(&d, m, &w);
    bench(c, &plan, path, false);
    kvd_dims_release(&d);
}

static void bench_method(const kvd_checkpoint *c, const char *text)
{
    const kvd_method_setup setup = {.config = kvd_checkpoint_config(c), .drawn = true};
    kvd_method m;
    kvd_err err;
    end_on(kvd_method_parse(text, &m, &err), &err);
    kvd_plan plan = m.plan;
    plan.type = KVD_BF16;
    plan.prompt = context;
    end_on(kvd_plan_open(&plan, &setup, &err), &err);
    bench(c, &plan, text, !sizes);
    kvd_plan_close(&plan);
}

int main(int argc, char **argv)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    for (; argc > 1 && argv[1][0] == '-'; argv++, argc--)
        if (argv[1][1] == 'n')
            sizes = argv[1] + 2;
        else
            n_gpus = atoi(argv[1] + 2);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_gpu_engine [-gN] [-nN[,N]...] MODEL|shape:NAME [CONTEXT "
                        "[WIDTHS.csv[:NAME]|METHOD]...]\n");
        return 2;
    }
    if (!gpu_devices("engine", 1))
        return 0;
    context = argc > 2 ? strtoul(argv[2], NULL, 10) : context;
    const int shaped = strncmp(argv[1], "shape:", 6) == 0;
    const kvd_shape *const shape = shaped ? kvd_shape_find(argv[1] + 6, &err) : NULL;
    kvd_checkpoint *const c = !shaped ? kvd_checkpoint_open(argv[1], &err)
                              : shape ? kvd_checkpoint_of_shape(shape, KVD_SHAPE_SEED, &err)
                                      : NULL;
    end_on(!c, &err);
    end_on(kvd_ceiling_gemm(0, &gemm, &err) || kvd_ceiling_read(0, &bandwidth, &err), &err);
    gemm.rate *= n_gpus;
    bandwidth.rate *= n_gpus;
    printf("ceilings: %.1f TFLOP/s, %.3f TB/s read\n", gemm.rate / 1e12, bandwidth.rate / 1e12);
    bench(c, &none, "none", false);
    if (argc < 4)
        bench(c, &none, "none", true);
    for (int i = 3; i < argc; i++) {
        if (strstr(argv[i], ".csv"))
            bench_widths(c, argv[i]);
        else
            bench_method(c, argv[i]);
    }
    kvd_checkpoint_close(c);
    return 0;
}
