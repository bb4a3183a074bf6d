/* usage: bench_gpu_packed [CONTEXT [BATCH [METHOD...]]]
 * Compares decode attention on quantised caches with the dense kernel, for a layer of Llama 3.1 8B
 * with a cold L2. */

#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/decode.h"
#include "kernels/timing/bench.h"
#include "methods/bits/cuda/packed.h"
#include "methods/bits/levels.h"
#include "methods/method.h"
#include "model/checkpoint/cuda/random.h"
#include "model/pass/blocks.h"

enum { D = 128, KV = 8, GROUP = 4, SAMPLES = 30, RIVALS = 16 };

typedef struct {
    const char *name;
    kvd_packed_args a; /* arguments of the kernel on quantised codes */
    kvd_packed_decode_args d;
    kvd_decode_args dense; /* arguments of the bf16 kernel */
    double bytes;
} launch;

static int context = 8192, batch = 64, n_sms;
static kvd_config config = {.n_layers = 1,
                            .n_heads = KV * GROUP,
                            .n_kv_heads = KV,
                            .d_head = D,
                            .d_model = KV * GROUP * D,
                            .positions = KVD_POSITIONS_ROPE,
                            .rope_theta = 500000};
static kvd_attn_map map;
static int32_t *len, *table, *slot;
static void *q, *o;
static float *cosine, *sine;

/* Returns random bytes that are finite numbers when read as any of the tested types. */
static void *random_bytes(size_t bytes)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, "bench", 1, 0);
    void *const p = on_device(NULL, bytes);
    check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / 2, p, 0), "random numbers");
    return p;
}

static void *ones(size_t bytes)
{
    return on_device(NULL, bytes);
}

static int pages(void)
{
    return (context + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

static void make_shared(void)
{
    kvd_attn_heads heads = {.n_heads = KV * GROUP, .n_kv_heads = KV, .d_head = D};
    int32_t *const t = need((size_t)(batch * pages()) * sizeof *t),
                   *const l = need((size_t)batch * sizeof *l),
                   *const s = need((size_t)batch * sizeof *s);
    const size_t turns = (size_t)context * D / 2;
    float *const c = need(2 * turns * sizeof *c);
    for (int g = 0; g < KV; g++)
        heads.d_qk[g] = heads.d_v[g] = D;
    if (kvd_attn_map_make(&heads, &map))
        exit(1);
    for (int i = 0; i < batch * pages(); i++)
        t[i] = i;
    for (int i = 0; i < batch; i++) {
        l[i] = context;
        s[i] = i;
    }
    config.max_positions = context;
    kvd_rope_tables(&config, false, (size_t)context, (size_t)context, c, c + turns);
    table = on_device(t, (size_t)(batch * pages()) * sizeof *t);
    len = on_device(l, (size_t)batch * sizeof *l);
    slot = on_device(s, (size_t)batch * sizeof *s);
    cosine = on_device(c, turns * sizeof *c);
    sine = on_device(c + turns, turns * sizeof *c);
    q = random_bytes((size_t)batch * (size_t)map.q_pitch * 2);
    o = ones((size_t)batch * (size_t)map.o_pitch * 2);
    host_free(t, l, s, c);
}

static void make_dense(launch *x)
{
    *x = (launch){.name = "bf16", .bytes = 4.0 * D * KV * (double)context * batch};
    x->dense = (kvd_decode_args){
        .dtype = KVD_BF16,
        .map = map,
        .batch = batch,
        .max_pages = pages(),
        .kv_len = len,
        .page_table = table,
        .q = q,
        .pool = random_bytes((size_t)(batch * pages()) * (size_t)map.page_elements * 2),
        .o = o,
        .n_ctas = n_sms};
    x->dense.workspace = ones(kvd_decode_workspace_bytes(&map, batch, context, n_sms));
    check(kvd_decode_plan(&x->dense, KVD_SCHEDULE_OURS, 0), "plan");
}

static double page_bytes(const kvd_packed_form *f, int outliers)
{
    const kvd_packed_parts p = kvd_packed_parts_of(f, D, D);
    return p.k_list + (f->k_apart ? 16 + 4 * outliers : 0);
}

static void make_case(launch *x, const char *text, kvd_plan *plan)
{
    const kvd_method_setup setup = {.config = &config, .drawn = true};
    kvd_method m;
    kvd_err err;
    *x = (launch){.name = text};
    end_on(kvd_method_parse(text, &m, &err), &err);
    *plan = m.plan;
    plan->type = KVD_BF16;
    plan->prompt = (size_t)context;
    end_on(kvd_plan_open(plan, &setup, &err), &err);
    kvd_gpu_packed_describe(plan, &config, &map, NULL, 0, &x->a);
    kvd_packed_args *const a = &x->a;
    const size_t n_pages = (size_t)(batch * pages()),
                 row = (size_t)map.page_elements / KVD_PAGE_TOKENS * 2;
    const int outliers =
        /* expected outliers of K per page; the room for outliers, k_apart, is 4 * (expected +
         * 16) */
        a->form.k_apart ? (a->form.k_apart / 4 - 16) : 0;
    a->codes = random_bytes(n_pages * a->page_bytes);
    a->ring = random_bytes((size_t)(batch * a->ring_pages * KVD_PAGE_TOKENS) * row);
    a->sink = random_bytes((size_t)(batch * a->n_sink) * row + 16);
    a->max_pages = pages();
    a->n = batch;
    a->kv_len = len;
    a->slot = slot;
    a->page_table = table;
    if (plan->bits->keys_before_rope) {
        kvd_kvquant_tables t;
        kvd_kvquant_tables_of(plan->bits_self, &t);
        a->level = on_device(t.levels, ((size_t)4 << a->form.bits) * sizeof(float));
        a->range = on_device(t.range, KV * t.range_width * 2 * sizeof(float));
        a->range_width = (int32_t)t.range_width;
        a->before_rope = true;
        a->cosine = cosine;
        a->sine = sine;
        uint32_t *const turn = ones(kvd_packed_rope_table_bytes(D));
        check(kvd_packed_rope_table(cosine, sine, D, turn, NULL), "turns");
        a->turn = turn;
    }
    if (kvd_gpu_packed_is_turned(plan)) {
        kvd_packed_turned t;
        end_on(kvd_gpu_packed_turned_make(plan, a, &t, &err), &err);
        a->level = on_device(t.level, t.n_level * sizeof(float));
        a->range = on_device(t.range, t.n_range * sizeof(float));
        kvd_gpu_packed_turned_free(&t);
    }
    if (a->form.k_apart || a->form.v_apart || a->form.exponent)
        check(kvd_packed_make_plausible(a, n_pages, outliers, NULL), "outliers");
    if (!kvd_packed_decodes(a)) {
        fprintf(stderr, "bench_gpu_packed: no kernel for '%s'\n", text);
        exit(1);
    }
    x->d = (kvd_packed_decode_args){.q = q,
                                    .sketched = q,
                                    .o = o,
                                    .pages_before = ones((size_t)(batch + 1) * 4),
                                    .partial = ones(kvd_packed_decode_bytes(n_sms)),
                                    .n_ctas = n_sms};
    check(kvd_packed_decode_plan(a, &x->d, NULL), "plan");
    check(cudaDeviceSynchronize(), "plan");
    x->bytes = (double)n_pages * KV * page_bytes(&a->form, outliers);
}

static int run_launch(void *ctx, void *stream, kvd_err *err)
{
    const launch *const x = ctx;
    const cudaError_t e = x->a.codes ? kvd_packed_decode(&x->a, &x->d, (cudaStream_t)stream)
                                     : kvd_decode(&x->dense, (cudaStream_t)stream);
    return e == cudaSuccess ? 0 : kvd_fail(err, "%s: %s", x->name, cudaGetErrorString(e));
}

int main(int argc, char **argv)
{
    static char *const usual[] = {"kivi,bits=2",
                                  "kivi,bits=3",
                                  "kivi,bits=4",
                                  "kivi,bits=8",
                                  "kvquant,bits=2",
                                  "kvquant,bits=3",
                                  "kvquant,bits=4",
                                  "kvquant,bits=4,outliers=0",
                                  "fp8",
                                  "mxfp4",
                                  "nvfp4",
                                  "turboquant,bits=4,qjl=0"};
    static launch x[RIVALS];
    static kvd_plan plan[RIVALS];
    static double us[RIVALS][SAMPLES];
    kvd_bench_rival rival[RIVALS];
    kvd_bench *bench = NULL;
    kvd_ceiling bandwidth;
    kvd_err err = {""};
    int n = 1;
    context = argc > 1 ? atoi(argv[1]) : context;
    batch = argc > 2 ? atoi(argv[2]) : batch;
    if (!gpu_devices("bench_gpu_packed", 1))
        return 0;
    if (context < 64 || context > 1 << 20 || batch < 1 || batch > 256) {
        fprintf(stderr, "bench_gpu_packed: CONTEXT is 64 .. 1048576, BATCH 1 .. 256\n");
        return 2;
    }
    n_sms = device_attribute(cudaDevAttrMultiProcessorCount);
    end_on(kvd_ceiling_read(0, &bandwidth, &err) || kvd_bench_open(true, &bench, &err), &err);
    make_shared();
    make_dense(&x[0]);
    if (argc > 3)
        for (int i = 3; i < argc && n < RIVALS; i++, n++)
            make_case(&x[n], argv[i], &plan[n]);
    else
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++, n++)
            make_case(&x[n], usual[i], &plan[n]);
    for (int i = 0; i < n; i++)
        rival[i] = (kvd_bench_rival){
            .name = x[i].name, .cuda = true, .launch = run_launch, .ctx = &x[i], .us = us[i]};
    const kvd_bench_plan rounds = {.warmup = 3, .samples = SAMPLES, .cold = true};
    end_on(kvd_bench_run(bench, &rounds, rival, n, &err), &err);
    kvd_bench_stats stats[RIVALS];
    for (int i = 0; i < n; i++)
        end_on(kvd_bench_summarise(&rival[i], SAMPLES, &stats[i], &err), &err);
    printf("# context %d, %d KV heads of %d, %d query heads each; %.0f GB/s are read\n", context,
           KV, D, GROUP, bandwidth.rate * 1e-9);
    printf("batch,method,median_us,mad_us,bytes,of_bandwidth,faster_than_bf16\n");
    for (int i = 0; i < n; i++)
        printf("%d,\"%s\",%.2f,%.2f,%.0f,%.3f,%.2f\n", batch, x[i].name, stats[i].median_us,
               stats[i].mad_us, x[i].bytes, x[i].bytes / stats[i].median_us * 1e6 / bandwidth.rate,
               stats[0].median_us / stats[i].median_us);
    for (int i = 1; i < n; i++)
        kvd_plan_close(&plan[i]);
    kvd_bench_close(bench);
    return 0;
}
