/* usage: gpu_prefill_plan [-t]
 * Tests the division of attention into tiles of queries: each query must be in exactly one tile.
 * With schedule `ours`, a head's tiles must be in order of falling cost. -t: times the division. */

#include "kernels/cuda/prefill_plan.h"

#include "gpu_case.h"

static const char *const schedule_name[] = {"none", "papers", "ours"};

typedef struct {
    const kvd_attn_heads *heads;
    const kvd_attn_batch *batch;
    kvd_prefill_args args;
    size_t n_max;
    int32_t *q_len, *kv_len, *first, *next;
    kvd_prefill_tile *tile;
    void *scratch;
} layer;

typedef struct {
    size_t n;
    kvd_prefill_tile *tile;
    int32_t *first, next;
} lists;

static void layer_make(layer *l, const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                       int n_ctas)
{
    memset(l, 0, sizeof *l);
    l->heads = heads;
    l->batch = batch;
    or_end(kvd_attn_map_make(heads, &l->args.map), "prefill_plan", "heads refused");
    const size_t bytes = (size_t)batch->batch * sizeof(int32_t);
    l->n_max = kvd_prefill_max_tiles(&l->args.map, batch);
    l->q_len = on_device(batch->q_len, bytes);
    l->kv_len = on_device(batch->kv_len, bytes);
    l->first = on_device(NULL, (size_t)(n_ctas + 1) * sizeof *l->first);
    l->next = on_device(NULL, sizeof *l->next);
    l->tile = on_device(NULL, l->n_max * sizeof *l->tile);
    l->scratch = on_device(NULL, kvd_prefill_plan_bytes(&l->args.map, batch, n_ctas));
    l->args.dtype = KVD_BF16;
    l->args.batch = batch->batch;
    l->args.work.n_ctas = n_ctas;
    l->args.q_len = l->q_len;
    l->args.kv_len = l->kv_len;
}

static void layer_release(layer *l)
{
    device_free(l->q_len, l->kv_len, l->first, l->next, l->tile, l->scratch);
}

static void layer_plan(layer *l, kvd_schedule schedule)
{
    check(kvd_prefill_plan(&l->args, l->batch, schedule, &kvd_prefill_cost_sm90, l->tile, l->first,
                           l->next, l->scratch, 0),
          "plan");
}

static void layer_describe(layer *l, kvd_schedule schedule, void *to)
{
    check(kvd_prefill_plan_describe(&l->args, l->batch, schedule, &kvd_prefill_cost_sm90, l->tile,
                                    l->first, l->next, l->scratch, to),
          "describe");
}

static void lists_read(lists *r, const layer *l, kvd_schedule schedule)
{
    const size_t n_ctas = (size_t)l->args.work.n_ctas;
    check(cudaDeviceSynchronize(), "plan kernel");
    r->tile = from_device(l->tile, l->n_max * sizeof *r->tile);
    r->first = from_device(l->first, (n_ctas + 1) * sizeof *r->first);
    to_host(&r->next, l->next, sizeof r->next);
    r->n = schedule == KVD_SCHEDULE_OURS ? (size_t)l->args.work.n_tiles : (size_t)r->first[n_ctas];
}

static void lists_release(lists *r)
{
    host_free(r->tile, r->first);
}

static int tiles_once(const layer *l, const lists *r)
{
    const kvd_attn_batch *batch = l->batch;
    const size_t n_heads = (size_t)l->heads->n_heads;
    size_t longest = 0;
    int bad = 0;
    for (int b = 0; b < batch->batch; b++)
        longest = (size_t)batch->q_len[b] > longest ? (size_t)batch->q_len[b] : longest;
    unsigned char *seen = need((size_t)batch->batch * n_heads * longest);
    for (size_t i = 0; i < r->n && !bad; i++) {
        const kvd_prefill_tile t = r->tile[i];
        bad |= t.request < 0 || t.request >= batch->batch || t.head < 0 || t.head >= (int)n_heads ||
               t.n_rows < 1 || t.n_rows > KVD_PREFILL_ROWS || t.row < 0 || t.row % 64 ||
               t.row + t.n_rows > batch->q_len[t.request];
        for (int row = 0; row < t.n_rows && !bad; row++)
            bad |= seen[((size_t)t.request * n_heads + (size_t)t.head) * longest +
                        (size_t)(t.row + row)]++;
    }
    for (int b = 0; b < batch->batch && !bad; b++)
        for (size_t h = 0; h < n_heads && !bad; h++)
            for (int row = 0; row < batch->q_len[b] && !bad; row++)
                bad |= !seen[((size_t)b * n_heads + h) * longest + (size_t)row];
    free(seen);
    return !bad;
}

static int static_lists_whole(const layer *l, const lists *r)
{
    const int n_ctas = l->args.work.n_ctas;
    int ok = r->first[0] == 0 && (size_t)r->first[n_ctas] <= l->n_max;
    for (int c = 0; c < n_ctas; c++)
        ok &= r->first[c] <= r->first[c + 1];
    return ok;
}

/* Returns 1 if, in each head, later tiles have fewer keys than earlier tiles, apart from small
 * deviations. */
static int ours_falls(const layer *l, const lists *r)
{
    const size_t n_heads = (size_t)l->heads->n_heads;
    int *last = need((size_t)l->batch->batch * n_heads * sizeof *last), longest = 0,
        ok = r->next == 0;
    for (int b = 0; b < l->batch->batch; b++)
        longest = l->batch->kv_len[b] > longest ? l->batch->kv_len[b] : longest;
    for (size_t i = 0; i < r->n && ok; i++) {
        const kvd_prefill_tile t = r->tile[i];
        const int end = l->batch->kv_len[t.request] - l->batch->q_len[t.request] + t.row + t.n_rows;
        int *before = &last[(size_t)t.request * n_heads + (size_t)t.head];
        ok &= !*before || end <= *before + longest / 30 + 256;
        *before = end;
    }
    free(last);
    return ok;
}

static void one(const char *name, const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                kvd_schedule schedule, int n_ctas)
{
    layer l;
    lists r;
    layer_make(&l, heads, batch, n_ctas);
    layer_plan(&l, schedule);
    lists_read(&r, &l, schedule);
    const int once = tiles_once(&l, &r), listed = schedule == KVD_SCHEDULE_OURS
                                                      ? ours_falls(&l, &r)
                                                      : static_lists_whole(&l, &r);
    test_result(once && listed, name, "%s, %zu tiles: rows %s, lists %s", schedule_name[schedule],
                r.n, once ? "ok" : "wrong", listed ? "ok" : "wrong");
    lists_release(&r);
    layer_release(&l);
}

static int by_place(const void *a, const void *b)
{
    const kvd_prefill_tile *x = a, *y = b;
    return x->request != y->request ? (x->request > y->request) - (x->request < y->request)
           : x->head != y->head     ? (x->head > y->head) - (x->head < y->head)
                                    : (x->row > y->row) - (x->row < y->row);
}

/* Tests that a single launch for all layers computes the same tiles of queries as one launch per
 * layer. */
static void many_layers(const kvd_attn_heads *heads, int n_layers, const kvd_attn_batch *batch,
                        kvd_schedule schedule)
{
    enum { MOST = 8, CTAS = 132 };
    const size_t each = kvd_prefill_plan_layer_bytes();
    layer together[MOST];
    char *described = need((size_t)n_layers * each);
    for (int i = 0; i < n_layers; i++) {
        layer_make(&together[i], &heads[i], batch, CTAS);
        layer_describe(&together[i], schedule, described + (size_t)i * each);
    }
    void *on_card = on_device(described, (size_t)n_layers * each);
    check(kvd_prefill_plan_layers(on_card, n_layers, 0), "plan of layers");
    int differ = -1;
    for (int i = 0; i < n_layers; i++) {
        layer alone;
        lists a, b;
        layer_make(&alone, &heads[i], batch, CTAS);
        layer_plan(&alone, schedule);
        lists_read(&a, &alone, schedule);
        lists_read(&b, &together[i], schedule);
        int same = a.n == b.n && a.next == b.next &&
                   !memcmp(a.first, b.first, (CTAS + 1) * sizeof *a.first);
        if (same && schedule == KVD_SCHEDULE_OURS) {
            same = ours_falls(&together[i], &b);
            qsort(a.tile, a.n, sizeof *a.tile, by_place);
            qsort(b.tile, b.n, sizeof *b.tile, by_place);
        }
        same = same && !memcmp(a.tile, b.tile, a.n * sizeof *a.tile);
        differ = same ? differ : i;
        lists_release(&a);
        lists_release(&b);
        layer_release(&alone);
    }
    test_result(differ < 0, "layers in one launch", "%d, %s; layer with another plan: %d", n_layers,
                schedule_name[schedule], differ);
    for (int i = 0; i < n_layers; i++)
        layer_release(&together[i]);
    check(cudaFree(on_card), "cudaFree");
    free(described);
}

/* Returns the mean time of a launch in microseconds. Launches are queued one after the other, which
 * hides their latency. */
static double time_launches(layer *l, kvd_schedule schedule, const void *layers, int n_layers)
{
    enum { WARM = 300, RUNS = 200 };
    for (int i = 0; i < WARM + RUNS; i++) {
        if (i == WARM)
            timer_start(0);
        if (layers)
            check(kvd_prefill_plan_layers(layers, n_layers, 0), "plan of layers");
        else
            layer_plan(l, schedule);
    }
    return 1e3 * timer_ms(0) / RUNS;
}

static void time_plans(const char *name, const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                       kvd_schedule schedule, int n_ctas)
{
    enum { LAYERS = 32 };
    const size_t each = kvd_prefill_plan_layer_bytes();
    layer l[LAYERS];
    char *described = need(LAYERS * each);
    for (int i = 0; i < LAYERS; i++) {
        layer_make(&l[i], heads, batch, n_ctas);
        layer_describe(&l[i], schedule, described + (size_t)i * each);
    }
    void *layers = on_device(described, LAYERS * each);
    const double alone = time_launches(&l[0], schedule, NULL, 1),
                 together = time_launches(&l[0], schedule, layers, LAYERS);
    printf("# %s %s: plan %.1f us; %d layers in one launch %.1f us\n", name,
           schedule_name[schedule], alone, LAYERS, together);
    for (int i = 0; i < LAYERS; i++)
        layer_release(&l[i]);
    check(cudaFree(layers), "cudaFree");
    free(described);
}

int main(int argc, char **argv)
{
    const int time_it = argc > 1 && !strcmp(argv[1], "-t");
    if (!gpu_devices("prefill_plan", 1))
        return 0;
    kvd_attn_heads h = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128},
                   one_head = {1, 1, 64, {64}, {16}, 0};
    const int qk[] = {80, 64, 80, 64, 48, 80, 96, 64}, v[] = {48, 64, 64, 48, 32, 80, 64, 48};
    for (int g = 0; g < 8; g++) {
        h.d_qk[g] = qk[g];
        h.d_v[g] = v[g];
    }
    kvd_attn_heads wide = h, turned = h, widest = h;
    widest.d_head = 256;
    for (int g = 0; g < 8; g++) {
        wide.d_qk[g] = wide.d_v[g] = g % 2 ? 128 : 16;
        turned.d_qk[g] = 16 * (g + 1);
        turned.d_v[g] = qk[7 - g];
        widest.d_qk[g] = g % 3 ? 256 : 16;
        widest.d_v[g] = g % 2 ? 240 : 256;
    }
    enum { MANY = 200 };
    int32_t n8k[] = {8192}, n16k[] = {16384}, pair[] = {8192, 8192},
            ragged_q[] = {1, 63, 64, 65, 191, 192, 193, 1000},
            ragged_kv[] = {1, 100, 64, 4000, 191, 200, 193, 1000}, many[MANY], tiny[] = {1};
    for (int b = 0; b < MANY; b++)
        many[b] = 1 + b * 7;
    const struct {
        const char *name;
        const kvd_attn_heads *heads;
        kvd_attn_batch batch;
        int n_ctas;
    } c[] = {{"1 x 8192", &h, {1, n8k, n8k}, 132},
             {"1 x 16384", &h, {1, n16k, n16k}, 132},
             {"2 x 8192", &h, {2, pair, pair}, 132},
             {"wide 1 x 8192", &wide, {1, n8k, n8k}, 132},
             {"ragged", &h, {8, ragged_q, ragged_kv}, 132},
             {"256 1 x 8192", &widest, {1, n8k, n8k}, 132},
             {"256 ragged", &widest, {8, ragged_q, ragged_kv}, 132},
             {"200 requests", &wide, {MANY, many, many}, 108},
             {"one row", &one_head, {1, tiny, tiny}, 132},
             {"one SM", &one_head, {1, n8k, n8k}, 1}};
    const kvd_attn_heads layers[] = {h, wide, turned, widest};
    const kvd_attn_batch ragged = {8, ragged_q, ragged_kv};
    for (int s = 0; s < 3; s++) {
        for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
            one(c[i].name, c[i].heads, &c[i].batch, (kvd_schedule)s, c[i].n_ctas);
            if (time_it)
                time_plans(c[i].name, c[i].heads, &c[i].batch, (kvd_schedule)s, c[i].n_ctas);
        }
        many_layers(layers, 4, &ragged, (kvd_schedule)s);
    }
    return failures != 0;
}
