/* usage: bench_gpu_leankv [CONTEXT]
 * Compares LeanKV's decode kernel with the dense one for Llama 3.1 8B. "equal": all heads keep
 * equal fractions of the tokens; "uneven": fractions from 0 to twice the mean. */

#include "gpu_case.h"
#include "kernels/cuda/ceilings.h"
#include "kernels/cuda/decode.h"
#include "kernels/timing/bench.h"
#include "methods/tokens/cuda/leankv.h"
#include "model/checkpoint/cuda/random.h"

enum { D = 128, KV = 8, GROUP = 4, LAYERS = 32, BATCH_MAX = 64, SAMPLES = 30, RIVALS = 24 };

typedef struct {
    const char *what;
    int k_bits[KVD_LEANKV_LEVELS], v_bits[KVD_LEANKV_LEVELS];
    double high, low; /* fractions of tokens at high and low precision */
    int uneven;
} rival_case;

static const rival_case cases[] = {
    {"K8V8", {8, 8}, {8, 8}, 1, 0, 0},
    {"K8V4", {8, 4}, {4, 4}, 1, 0, 0},
    {"K4V4", {4, 4}, {4, 4}, 1, 0, 0},
    {"K4V2", {4, 4}, {2, 2}, 1, 0, 0},
    {"K8V4 K4V2", {8, 4}, {4, 2}, 0.3, 0.7, 0},
    {"K8V8", {8, 8}, {8, 8}, 0.5, 0, 0},
    {"K8V4", {8, 4}, {4, 4}, 0.5, 0, 0},
    {"K4V4", {4, 4}, {4, 4}, 0.5, 0, 0},
    {"K4V2", {4, 4}, {2, 2}, 0.5, 0, 0},
    {"K8V4", {8, 4}, {4, 4}, 0.25, 0, 0},
    {"K4V2", {4, 4}, {2, 2}, 0.25, 0, 0},
    {"K8V4", {8, 4}, {4, 4}, 0.5, 0, 1},
    {"K8V4 K4V2", {8, 4}, {4, 2}, 0.15, 0.35, 1},
};

typedef struct {
    const rival_case *c;
    kvd_leankv_steps s;
    kvd_decode_args dense;
    enum { ATTEND, UPDATE, GROW, DENSE } what;
    double bytes, share;
    char name[32];
} launch;

static int context = 8192, n_sms;

/* Returns random bytes that are finite numbers when read as any of the tested types. */
static void *random_bytes(size_t bytes)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, "bench", 1, 0);
    void *const p = on_device(NULL, bytes);
    check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / 2, p, 0), "random numbers");
    return p;
}

static void set_positions(const kvd_leankv_pool *p, const kvd_leankv_head *head, size_t heads)
{
    char *const page = need((size_t)p->layout.page_bytes);
    int32_t *const table = need(heads * (size_t)p->table_length * sizeof *table);
    to_host(table, p->table, heads * (size_t)p->table_length * sizeof *table);
    kvd_leankv_head *const got = from_device(p->head, heads * sizeof(kvd_leankv_head));
    for (size_t h = 0; h < heads; h++)
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
            for (int k = 0; k * p->layout.level[l].tokens < head[h].n[l]; k++) {
                const kvd_leankv_precision *const y = &p->layout.level[l];
                char *const to =
                    p->page + (size_t)table[h * (size_t)p->table_length +
                                            (size_t)(l ? p->table_length - 1 - k : k)] *
                                  (size_t)p->layout.page_bytes;
                int32_t *const position = (int32_t *)(void *)page;
                float *const score = (float *)(void *)page + y->tokens;
                for (int t = 0; t < y->tokens; t++) {
                    position[t] = k * y->tokens + t;
                    score[t] = 1;
                }
                check(cudaMemcpyAsync(to + y->score, score, 4 * (size_t)y->tokens,
                                      cudaMemcpyHostToDevice, 0),
                      "scores");
                check(cudaMemcpyAsync(to + y->position, position, 4 * (size_t)y->tokens,
                                      cudaMemcpyHostToDevice, 0),
                      "positions");
            }
    check(cudaDeviceSynchronize(), "positions");
    host_free(page, table, got);
}

static kvd_leankv_steps shared;

static void make_case(launch *x, const rival_case *c, int batch, kvd_rng *rng)
{
    kvd_leankv_pool p = {.n_slots = batch, .n_layers = 1, .n_kv_heads = KV};
    p.table_length = context / KVD_LEANKV_PAGE_TOKENS + 4;
    if (kvd_leankv_layout_make(D, c->k_bits, c->v_bits, &p.layout))
        exit(1);
    const size_t heads = (size_t)(batch * KV);
    kvd_leankv_head *const head = need(heads * sizeof *head);
    double bytes = 0, kept = 0, pages = 0;
    for (size_t h = 0; h < heads; h++) {
        const double times = c->uneven ? 2 * kvd_rng_uniform(rng) : 1;
        head[h].n[0] = (int32_t)(c->high * times * context);
        head[h].n[1] = (int32_t)(c->low * times * context);
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
            bytes += (double)head[h].n[l] * ((double)D * (c->k_bits[l] + c->v_bits[l]) / 8 + 8);
            kept += head[h].n[l];
            pages += head[h].n[l] / p.layout.level[l].tokens + 2;
        }
    }
    p.n_pages = (int32_t)pages;
    p.list = on_device(NULL, (size_t)p.n_pages * sizeof *p.list);
    p.table = on_device(NULL, heads * (size_t)p.table_length * sizeof *p.table);
    p.head = on_device(NULL, heads * sizeof *p.head);
    p.state = on_device(NULL, sizeof *p.state);
    p.page = random_bytes((size_t)p.n_pages * (size_t)p.layout.page_bytes);
    check(kvd_leankv_reset(&p, 0), "reset");
    to_device(p.head, head, heads * sizeof *head);
    check(kvd_leankv_grow(&p, shared.slot, batch, 0, 1, 1, 0), "grow");
    check(cudaDeviceSynchronize(), "grow");
    if (c->low > 0 && !c->uneven)
        set_positions(&p, head, heads);
    *x = (launch){.c = c,
                  .s = shared,
                  .what = ATTEND,
                  .bytes = bytes,
                  .share = kept / ((double)heads * context)};
    x->s.pool = p;
    x->s.n = batch;
    x->s.splits = kvd_leankv_splits(batch, KV, n_sms);
    (void)snprintf(x->name, sizeof x->name, "%s", c->what);
    free(head);
}

static void free_case(const launch *x)
{
    device_free(x->s.pool.list, x->s.pool.table, x->s.pool.head, x->s.pool.state, x->s.pool.page);
}

static void make_shared(kvd_attn_map *map)
{
    kvd_attn_heads heads = {.n_heads = KV * GROUP, .n_kv_heads = KV, .d_head = D};
    int32_t slot[BATCH_MAX], table[BATCH_MAX];
    uint32_t at[BATCH_MAX];
    for (int g = 0; g < KV; g++)
        heads.d_qk[g] = heads.d_v[g] = D;
    for (int i = 0; i < BATCH_MAX; i++) {
        slot[i] = table[i] = i;
        at[i] = (uint32_t)context;
    }
    if (kvd_attn_map_make(&heads, map))
        exit(1);
    const size_t rows = BATCH_MAX;
    shared = (kvd_leankv_steps){.group = GROUP,
                                .room = context + 64,
                                .scale = map->scale,
                                .slot = on_device(slot, sizeof slot),
                                .at = on_device(at, sizeof at),
                                .page_table = on_device(table, sizeof table),
                                .max_pages = 1,
                                .fresh = random_bytes(rows * (size_t)map->page_elements * 2),
                                .q = random_bytes(rows * (size_t)map->q_pitch * 2),
                                .o = zeros(rows * (size_t)map->o_pitch * 2),
                                .score = zeros(rows * KV * (size_t)(context + 64) * GROUP * 4),
                                .lse2 = zeros(rows * KV * 8 * 4),
                                .partial = zeros(rows * KV * 32 * 8 * (D + 2) * 4),
                                .arrived = zeros(rows * KV * 4),
                                .window = 64};
}

static void make_dense(launch *x, const kvd_attn_map *map, int batch)
{
    const int pages = (context + 63) / 64;
    int32_t *const table = need((size_t)(batch * pages) * sizeof *table), len[BATCH_MAX];
    for (int i = 0; i < batch * pages; i++)
        table[i] = i;
    for (int i = 0; i < batch; i++)
        len[i] = context;
    *x = (launch){.what = DENSE, .share = 1, .bytes = 2.0 * 2 * D * KV * (double)context * batch};
    (void)snprintf(x->name, sizeof x->name, "bf16");
    x->dense = (kvd_decode_args){
        .dtype = KVD_BF16,
        .map = *map,
        .batch = batch,
        .max_pages = pages,
        .kv_len = on_device(len, sizeof len),
        .page_table = on_device(table, (size_t)(batch * pages) * sizeof *table),
        .q = shared.q,
        .pool = random_bytes((size_t)(batch * pages) * (size_t)map->page_elements * 2),
        .o = shared.o,
        .n_ctas = n_sms};
    const size_t bytes = kvd_decode_workspace_bytes(map, batch, context, n_sms);
    x->dense.workspace = zeros(bytes);
    check(kvd_decode_plan(&x->dense, KVD_SCHEDULE_OURS, 0), "plan");
    check(cudaDeviceSynchronize(), "plan");
    free(table);
}

static void free_dense(const launch *x)
{
    device_free((void *)x->dense.kv_len, (void *)x->dense.page_table, (void *)x->dense.pool,
                x->dense.workspace);
}

static int run_launch(void *ctx, void *stream, kvd_err *err)
{
    const launch *const x = ctx;
    const cudaStream_t s = stream;
    const cudaError_t e = x->what == DENSE    ? kvd_decode(&x->dense, s)
                          : x->what == UPDATE ? kvd_leankv_update(&x->s, s)
                          : x->what == GROW   ? kvd_leankv_grow(&x->s.pool, x->s.slot, x->s.n, 0,
                                                                x->s.pool.n_layers, 1, s)
                                              : kvd_leankv_attend(&x->s, s);
    return e == cudaSuccess ? 0 : kvd_fail(err, "%s: %s", x->name, cudaGetErrorString(e));
}

/* Restores the heads' state from before the decode step, so that the step can run again. */
static int restore_heads(void *ctx, void *stream, kvd_err *err)
{
    const launch *const x = ctx;
    const size_t bytes = (size_t)(x->s.n * KV) * sizeof(kvd_leankv_head);
    return cudaMemcpyAsync(x->s.pool.head, x->s.partial, bytes, cudaMemcpyDeviceToDevice,
                           (cudaStream_t)stream) == cudaSuccess
               ? 0
               : kvd_fail(err, "heads");
}

static void run_batch(kvd_bench *bench, const kvd_attn_map *map, int batch, double bandwidth)
{
    static launch x[RIVALS];
    static double us[RIVALS][SAMPLES];
    kvd_bench_rival rival[RIVALS];
    kvd_rng rng;
    kvd_err err = {""};
    int n = 0;
    kvd_rng_seed(&rng, 1, 0);
    make_dense(&x[n++], map, batch);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        make_case(&x[n++], &cases[i], batch, &rng);
    const int cached = n;
    for (int i = 0; i < cached; i++)
        if (x[i].c && !strcmp(x[i].c->what, "K8V4 K4V2") && !x[i].c->uneven) {
            x[n] = x[i];
            x[n].what = UPDATE;
            x[n].s.partial = on_device(NULL, (size_t)(batch * KV) * sizeof(kvd_leankv_head));
            check(cudaMemcpy(x[n].s.partial, x[i].s.pool.head,
                             (size_t)(batch * KV) * sizeof(kvd_leankv_head),
                             cudaMemcpyDeviceToDevice),
                  "heads");
            x[n].bytes = x[i].share * (double)context * batch * KV * (12 + 4 * GROUP);
            (void)snprintf(x[n++].name, sizeof x->name, "update");
        }
    x[n] = x[1];
    x[n].what = GROW;
    x[n].bytes = 0;
    x[n].s.pool.n_layers = LAYERS;
    x[n].s.pool.head = zeros((size_t)(batch * LAYERS * KV) * sizeof(kvd_leankv_head));
    x[n].s.pool.table = zeros((size_t)(batch * LAYERS * KV) * (size_t)x[n].s.pool.table_length * 4);
    kvd_leankv_head *const head = need((size_t)(batch * LAYERS * KV) * sizeof *head);
    for (int i = 0; i < batch * LAYERS * KV; i++)
        head[i] = (kvd_leankv_head){.n = {10, 10}, .pages = {1, 1}};
    to_device(x[n].s.pool.head, head, (size_t)(batch * LAYERS * KV) * sizeof *head);
    free(head);
    (void)snprintf(x[n++].name, sizeof x->name, "grow of %d layers", LAYERS);
    for (int i = 0; i < n; i++)
        rival[i] = (kvd_bench_rival){.name = x[i].name,
                                     .cuda = true,
                                     .launch = run_launch,
                                     .prepare = x[i].what == UPDATE ? restore_heads : NULL,
                                     .ctx = &x[i],
                                     .us = us[i]};
    const kvd_bench_plan plan = {.warmup = 3, .samples = SAMPLES, .cold = true};
    end_on(kvd_bench_run(bench, &plan, rival, n, &err), &err);
    kvd_bench_stats stats[RIVALS];
    for (int i = 0; i < n; i++)
        end_on(kvd_bench_summarise(&rival[i], SAMPLES, &stats[i], &err), &err);
    for (int i = 0; i < n; i++)
        printf("%d,%s,%.3f,%s,%.2f,%.2f,%.0f,%.3f,%.2f\n", batch, x[i].name, x[i].share,
               x[i].c && x[i].c->uneven ? "uneven" : "equal", stats[i].median_us, stats[i].mad_us,
               x[i].bytes, x[i].bytes / stats[i].median_us * 1e6 / bandwidth,
               stats[0].median_us / stats[i].median_us);
    for (int i = 0; i < n; i++) {
        if (x[i].what == ATTEND)
            free_case(&x[i]);
        if (x[i].what == UPDATE)
            check(cudaFree(x[i].s.partial), "cudaFree");
        if (x[i].what == GROW) {
            device_free(x[i].s.pool.head, x[i].s.pool.table);
        }
    }
    free_dense(&x[0]);
}

int main(int argc, char **argv)
{
    static const int batches[] = {1, 16, 64};
    kvd_err err = {""};
    kvd_bench *bench = NULL;
    kvd_ceiling bandwidth;
    kvd_attn_map map;
    if (argc > 1)
        context = atoi(argv[1]);
    if (!gpu_devices("bench_gpu_leankv", 1))
        return 0;
    if (context < 128 || context > 1 << 20) {
        fprintf(stderr, "bench_gpu_leankv: CONTEXT is 128 .. 1048576\n");
        return 2;
    }
    n_sms = device_attribute(cudaDevAttrMultiProcessorCount);
    end_on(kvd_ceiling_read(0, &bandwidth, &err) || kvd_bench_open(true, &bench, &err), &err);
    make_shared(&map);
    printf("# context %d, %d KV heads of %d, %d query heads each; %.0f GB/s are read\n", context,
           KV, D, GROUP, bandwidth.rate * 1e-9);
    printf("batch,kernel,kept,heads,median_us,mad_us,bytes,of_bandwidth,faster_than_bf16\n");
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        run_batch(bench, &map, batches[i], bandwidth.rate);
    kvd_bench_close(bench);
    return 0;
}
