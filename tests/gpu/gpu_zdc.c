/* Tests kernels of the methods zdc, which stores important tokens with more dimensions than others,
 * and think, which drops channels of keys. */
#include <math.h>
#include <stdbool.h>

#include "methods/dims/dims.h"
#include "worst.h"
#include "zdc_case.h"

/* Replaces each log-sum-exp lse by alike * lse + (1 - alike) * a random number. If the test case
 * asks for equal log-sum-exps, sets all of them to 1.5. */
static void draw(const fixture *f, float *lse, double alike)
{
    for (size_t i = 0; i < (size_t)f->c->n_heads * (size_t)f->n_q8; i++)
        lse[i] = f->c->equal
                     ? 1.5F
                     : (float)(alike * (double)lse[i] + (1 - alike) * 9 * kvd_rng_normal(&rng));
}

static double value_of(const fixture *f, const float *lse, int b, int t)
{
    double x = (double)lse[f->start[b] + t];
    for (int h = 1; h < f->c->n_heads; h++) {
        const double y = (double)lse[h * f->n_q8 + f->start[b] + t], top = fmax(x, y);
        x = top + log(exp(x - top) + exp(y - top));
    }
    return x - (f->c->mean ? log((double)t + 1) : 0);
}

/* Checks that the right number of tokens is important and that their importance is highest. Among
 * equally important tokens, earlier ones must be chosen. */
static int chosen_well(const fixture *f, const float *lse, const uint8_t *level, int b)
{
    const int n = f->len[b], want = (int)lround(f->c->share * n);
    double least = INFINITY, most = -INFINITY;
    int high = 0, last = -1, first = n;
    for (int t = 0; t < n; t++) {
        const double x = value_of(f, lse, b, t);
        const int is = level[f->start[b] + t] & 1;
        high += is;
        least = is ? fmin(least, x) : least;
        most = is ? most : fmax(most, x);
        last = is ? t : last;
        first = !is && first == n ? t : first;
    }
    return high == want && least > most - 1e-5 && (!f->c->equal || last < first);
}

/* Returns true if two layers have so many important tokens in common that the later layer must use
 * the important tokens of the earlier layer. */
static int lends(const fixture *f, const uint8_t *before, const uint8_t *now, int b)
{
    int in_a = 0, in_b = 0, both = 0;
    const int n = f->len[b];
    for (int t = 0; t < n; t++) {
        const int x = before[f->start[b] + t] & 1, y = now[f->start[b] + t] & 1;
        in_a += x;
        in_b += y;
        both += x && y;
    }
    const int high = in_a > in_b ? in_a : in_b, low = n - (in_a < in_b ? in_a : in_b);
    return (high ? (double)both / high : 1) >= f->c->overlap &&
           (low ? (double)(n - in_a - in_b + both) / low : 1) >= f->c->overlap;
}

static void test_choice(fixture *f)
{
    const size_t n = (size_t)f->n_q8;
    float *const lse = need((size_t)f->c->n_heads * n * sizeof *lse);
    uint8_t *const before = need(n);
    int wrong = 0, lent = 0, places = 0, all = 0;
    for (int l = 0; l < LAYERS; l++) {
        draw(f, lse, l == 1 ? 0.9 : 0);
        float *const there = on_device(lse, (size_t)f->c->n_heads * n * sizeof *lse);
        const kvd_zdc_choose_args a = {.pages = pages_of(f, l),
                                       .batch = f->c->n_len,
                                       .n_heads = f->c->n_heads,
                                       .n_q8 = f->n_q8,
                                       .longest = f->longest,
                                       .q_start = f->dev_start,
                                       .q_len = f->dev_len,
                                       .lse = there,
                                       .mean = f->c->mean,
                                       .share = f->c->share,
                                       .overlap = f->c->overlap,
                                       .span = 1,
                                       .value = f->dev_value,
                                       .level = f->dev_level,
                                       .place = f->dev_place};
        memcpy(before, f->level, n);
        check(kvd_zdc_choose(&a, 0), "choose");
        to_host(f->level, f->dev_level, n);
        to_host(f->place, f->dev_place, n * sizeof *f->place);
        to_host(f->n_low, f->dev_low, sizeof f->n_low);
        check(cudaFree(there), "cudaFree");
        for (int b = 0; b < f->c->n_len; b++, all++) {
            const int takes = l > 0 && f->c->overlap < NEVER_LENT && lends(f, before, f->level, b);
            int count[2] = {0, 0};
            wrong += !chosen_well(f, lse, f->level, b);
            lent += takes;
            for (int t = 0; t < f->len[b]; t++) {
                const int i = f->start[b] + t, high = f->level[i] >> 1 & 1;
                wrong += high != (takes ? before[i] >> 1 & 1 : f->level[i] & 1);
                places += f->place[i] != count[!high]++;
            }
            wrong += count[1] != f->n_low[f->slot[b]][l];
        }
    }
    test_result(!wrong && !places && (f->c->overlap >= NEVER_LENT || lent), f->c->name,
                "choice: %d sets of %d prompts in %d layers, %d lent; %d wrong, %d wrong places",
                all, f->c->n_len, LAYERS, lent, wrong, places);
    free(lse);
    free(before);
}

/* Returns the index, in the memory of all pages, of element i of a token's K (side 0) or V (side
 * 1). place: index of the token among the important (KVD_ZDC_HIGH) or among the unimportant tokens
 * (KVD_ZDC_LOW). */
static size_t cell(const fixture *f, int b, int g, int side, int store, int page0, int place, int i)
{
    const int w = f->head[g].width[store][side];
    return (size_t)page_of(f, b, page0 + place / KVD_PAGE_TOKENS) * (size_t)f->high.page_elements +
           (size_t)f->head[g].in_page[store][side] +
           kvd_blocked_index((size_t)(place % KVD_PAGE_TOKENS), (size_t)i, (size_t)w);
}

static size_t source_at(const fixture *f, int b, int g, int side, int t, int i)
{
    const int w = f->head[g].width[KVD_ZDC_HIGH][side];
    return (size_t)f->table[b * f->pitch + t / KVD_PAGE_TOKENS] * (size_t)f->high.page_elements +
           (size_t)f->head[g].in_page[KVD_ZDC_HIGH][side] +
           kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, (size_t)w);
}

static uint16_t source(const fixture *f, int b, int g, int side, int t, int i)
{
    return f->scratch[source_at(f, b, g, side, t, i)];
}

static int list_pages(int n_low)
{
    return n_low ? (n_low + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS : 1;
}

static int low_pages(const fixture *f, int b)
{
    return list_pages(f->n_low[f->slot[b]][LAYERS - 1]);
}

static void fill_store(fixture *f)
{
    for (int b = 0; b < f->c->n_len; b++)
        for (int g = 0; g < f->c->n_kv_heads; g++)
            for (int side = 0; side < 2; side++) {
                int count[KVD_ZDC_STORES] = {0, 0};
                for (int t = 0; t < f->len[b]; t++) {
                    const int s = f->level[f->start[b] + t] & 2 ? KVD_ZDC_HIGH : KVD_ZDC_LOW;
                    const int page0 = s == KVD_ZDC_HIGH ? low_pages(f, b) : 0, place = count[s]++;
                    for (int i = 0; i < f->head[g].width[s][side]; i++)
                        f->store[cell(f, b, g, side, s, page0, place, i)] =
                            s == KVD_ZDC_LOW && i >= f->head[g].kept[side]
                                ? 0
                                : source(f, b, g, side, t, i);
                }
                for (int s = 0; s < KVD_ZDC_STORES; s++)
                    for (int place = count[s]; place % 8; place++)
                        for (int i = 0; i < f->head[g].width[s][side]; i++)
                            f->store[cell(f, b, g, side, s, s == KVD_ZDC_HIGH ? low_pages(f, b) : 0,
                                          place, i)] = 0;
            }
}

/* Returns arguments for kvd_zdc_move. The caller must still set place, from and store. */
static kvd_zdc_move_args move_args(const fixture *f)
{
    return (kvd_zdc_move_args){.pages = pages_of(f, LAYERS - 1),
                               .batch = f->c->n_len,
                               .n_kv_heads = f->c->n_kv_heads,
                               .longest = f->longest,
                               .q_start = f->dev_start,
                               .q_len = f->dev_len,
                               .level = f->dev_level,
                               .head = f->dev_head,
                               .page = (size_t)f->high.page_elements};
}

static uint16_t *test_stores(fixture *f)
{
    uint16_t *const from = on_device(f->scratch, f->pool_n * 2), *const to =
                                                                     on_device(NULL, f->pool_n * 2);
    kvd_zdc_move_args a = move_args(f);
    a.place = f->dev_place;
    a.from = from;
    a.store = to;
    size_t wrong = 0;
    check(kvd_zdc_move(&a, 0), "move");
    uint16_t *const got = from_device(to, f->pool_n * 2);
    fill_store(f);
    for (size_t i = 0; i < f->pool_n; i++)
        wrong += got[i] != f->store[i];
    test_result(!wrong, f->c->name, "stores: %zu of %zu elements differ", wrong, f->pool_n);
    check(cudaFree(from), "cudaFree");
    free(got);
    return to;
}

static void test_narrow(const fixture *f)
{
    uint16_t *const want = need(f->pool_n * sizeof *want), *const there =
                                                               on_device(f->scratch, f->pool_n * 2);
    const kvd_zdc_move_args a = move_args(f);
    size_t wrong = 0;
    check(kvd_zdc_narrow(&a, there, 0), "narrow");
    uint16_t *const got = from_device(there, f->pool_n * 2);
    memcpy(want, f->scratch, f->pool_n * sizeof *want);
    for (int b = 0; b < f->c->n_len; b++)
        for (int t = 0; t < f->len[b]; t++)
            for (int g = 0; !(f->level[f->start[b] + t] & KVD_ZDC_USED) && g < f->c->n_kv_heads;
                 g++)
                for (int side = 0; side < 2; side++)
                    for (int i = f->head[g].kept[side]; i < f->head[g].width[KVD_ZDC_HIGH][side];
                         i++)
                        want[source_at(f, b, g, side, t, i)] = 0;
    for (size_t i = 0; i < f->pool_n; i++)
        wrong += got[i] != want[i];
    test_result(!wrong, f->c->name, "rows cut in place: %zu of %zu elements differ", wrong,
                f->pool_n);
    check(cudaFree(there), "cudaFree");
    free(got);
    free(want);
}

static kvd_zdc_rows_args rows_of(const fixture *f, int b, int first, int n)
{
    kvd_zdc_rows_args a = {.head = f->dev_head,
                           .n_kv_heads = f->c->n_kv_heads,
                           .first = first,
                           .n = n,
                           .level = f->dev_level + f->start[b],
                           .place = f->dev_place + f->start[b],
                           .table = f->dev_table + b * f->pitch,
                           .page = (size_t)f->high.page_elements};
    for (int t = 0; t < first + n; t++) {
        const int store = f->level[f->start[b] + t] & KVD_ZDC_USED ? KVD_ZDC_HIGH : KVD_ZDC_LOW;
        *(t < first ? &a.before[store] : &a.count[store]) += 1;
    }
    for (int g = 0; g < f->c->n_kv_heads; g++)
        for (int store = 0; store < KVD_ZDC_STORES; store++)
            a.entry[store] += f->head[g].width[store][0] + f->head[g].width[store][1];
    return a;
}

static void expect_rows(const fixture *f, int b, const kvd_zdc_rows_args *a, uint16_t *to,
                        uint16_t *pages)
{
    int count[KVD_ZDC_STORES] = {0, 0};
    for (int t = a->first; t < (a->first + a->n + 7) / 8 * 8; t++) {
        const bool behind = t >= a->first + a->n;
        const int store =
            !behind && f->level[f->start[b] + t] & KVD_ZDC_USED ? KVD_ZDC_HIGH : KVD_ZDC_LOW;
        uint16_t *row =
            to + (store == KVD_ZDC_LOW ? a->count[KVD_ZDC_HIGH] * a->entry[KVD_ZDC_HIGH] : 0) +
            (behind ? 0 : count[store]++ * a->entry[store]);
        for (int g = 0; g < f->c->n_kv_heads; g++)
            for (int side = 0; side < 2; row += f->head[g].width[store][side], side++)
                for (int i = 0; i < f->head[g].width[KVD_ZDC_HIGH][side]; i++) {
                    const bool kept =
                        !behind && (store == KVD_ZDC_HIGH || i < f->head[g].kept[side]);
                    const uint16_t x = kept ? source(f, b, g, side, t, i) : 0;
                    pages[source_at(f, b, g, side, t, i)] = x;
                    if (!behind && i < f->head[g].width[store][side])
                        row[i] = x;
                }
    }
}

static void test_rows(const fixture *f)
{
    uint16_t *const want_rows = need(f->pool_n * 2), *const got = need(f->pool_n * 2),
                    *const want_pages = need(f->pool_n * 2);
    uint16_t *const from = on_device(f->scratch, f->pool_n * 2),
                    *const to = on_device(NULL, f->pool_n * 2),
                    *const rows = on_device(NULL, f->pool_n * 2);
    size_t wrong[2] = {0, 0};
    memset(want_pages, 0xff, f->pool_n * 2);
    for (int b = 0; b < f->c->n_len; b++)
        for (int part = 0; part < 2; part++) {
            const int edge = f->len[b] / 128 * 64, first = part ? edge : 0,
                      n = part ? f->len[b] - edge : edge;
            kvd_zdc_rows_args a = rows_of(f, b, first, n);
            const size_t all = (size_t)(a.count[0] * a.entry[0] + a.count[1] * a.entry[1]);
            expect_rows(f, b, &a, want_rows, want_pages);
            a.rows = rows;
            a.pages = from;
            check(kvd_zdc_pack(&a, 0), "pack");
            to_host(got, rows, all * 2);
            for (size_t i = 0; i < all; i++)
                wrong[0] += got[i] != want_rows[i];
            a.pages = to;
            check(kvd_zdc_unpack(&a, 0), "unpack");
        }
    to_host(got, to, f->pool_n * 2);
    for (size_t i = 0; i < f->pool_n; i++)
        wrong[1] += got[i] != want_pages[i];
    test_result(!wrong[0] && !wrong[1], f->c->name,
                "rows on their way: %zu elements of rows differ, %zu of pages", wrong[0], wrong[1]);
    device_free(from, to, rows);
    host_free(want_rows, want_pages, got);
}

typedef struct {
    int32_t *end, *low_len, *table;
    void *q, *o, *out;
    float *lse, *sinks; /* sinks: device, or NULL */
    uint16_t *host_q;
    const float *host_sinks;
} steps;

static void test_lists(const fixture *f, steps *s)
{
    const int n = f->c->n_len, rows = n + 1, pitch = f->pitch + 1;
    const size_t all = (size_t)(LAYERS * rows) * sizeof(int32_t),
                 lists = (size_t)(rows * pitch) * sizeof(int32_t);
    int wrong = 0;
    s->end = on_device(NULL, all);
    s->low_len = on_device(NULL, all);
    s->table = on_device(NULL, lists);
    const kvd_zdc_lists_args a = {.pages = pages_of(f, 0),
                                  .batch = n,
                                  .rows = rows,
                                  .kv_len = f->dev_len,
                                  .end = s->end,
                                  .low_len = s->low_len,
                                  .table = s->table};
    check(kvd_zdc_lists(&a, 0), "lists");
    int32_t *const end = from_device(s->end, all), *const low = from_device(s->low_len, all),
                   *const table = from_device(s->table, lists);
    for (int l = 0; l < LAYERS; l++)
        for (int b = 0; b < n; b++) {
            const int n_low = f->n_low[f->slot[b]][l], n_high = f->len[b] - n_low,
                      row = l * rows + b;
            wrong += end[row] != list_pages(n_low) * KVD_PAGE_TOKENS + n_high;
            wrong += low[row] != (n_low ? n_low : 1);
            for (int i = 0; i * KVD_PAGE_TOKENS < end[row]; i++)
                wrong += table[b * pitch + i] != page_of(f, b, i);
        }
    test_result(!wrong, f->c->name, "lists: %d entries are wrong", wrong);
    host_free(end, low, table);
}

static void attend(const fixture *f, const steps *s, int b, int h, double *o)
{
    const int g = h / f->high.group, n_low = f->n_low[f->slot[b]][LAYERS - 1], n = f->len[b],
              d = f->head[g].width[KVD_ZDC_HIGH][0], dv = f->head[g].width[KVD_ZDC_HIGH][1];
    const uint16_t *const q = s->host_q + (size_t)b * (size_t)f->high.q_pitch + f->high.q_offset[h];
    double *const p = need((size_t)n * sizeof *p), top = -INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            const int store = i < n_low ? KVD_ZDC_LOW : KVD_ZDC_HIGH,
                      place = i < n_low ? i : i - n_low, page0 = i < n_low ? 0 : low_pages(f, b);
            if (pass == 0)
                for (int k = 0; k < f->head[g].width[store][0] && k < d; k++)
                    p[i] += (double)bf16_wide(q[k]) *
                            (double)bf16_wide(f->store[cell(f, b, g, 0, store, page0, place, k)]);
            else
                for (int k = 0; k < f->head[g].width[store][1] && k < dv; k++)
                    o[k] += p[i] *
                            (double)bf16_wide(f->store[cell(f, b, g, 1, store, page0, place, k)]);
            if (pass == 0 && i == n - 1) {
                for (int j = 0; j < n; j++)
                    top = fmax(top, p[j] *= (double)f->high.scale);
                for (int j = 0; j < n; j++)
                    sum += p[j] = exp(p[j] - top);
                sum += s->host_sinks ? exp((double)s->host_sinks[h] - top) : 0;
                for (int j = 0; j < n; j++)
                    p[j] /= sum;
            }
        }
    free(p);
}

static void decode(const fixture *f, const steps *s, kvd_schedule schedule, void *pool)
{
    const size_t row = (size_t)(LAYERS - 1) * (size_t)(f->c->n_len + 1);
    kvd_decode_args a = {.dtype = KVD_BF16,
                         .map = f->both,
                         .batch = f->c->n_len,
                         .max_pages = f->pitch + 1,
                         .kv_len = s->end + row,
                         .second_len = s->low_len + row,
                         .page_table = s->table,
                         .q = s->q,
                         .pool = pool,
                         .o = s->o,
                         .lse = s->lse};
    a.n_ctas = kvd_decode_ctas(&a.map);
    const size_t bytes = kvd_decode_workspace_bytes(&a.map, a.batch, f->longest, a.n_ctas);
    check(cudaMalloc(&a.workspace, bytes), "cudaMalloc");
    fill_bytes(a.workspace, 0, bytes);
    check(kvd_decode_plan(&a, schedule, 0), "plan");
    check(kvd_decode(&a, 0), "decode");
    check(cudaDeviceSynchronize(), "decode");
    check(cudaFree(a.workspace), "cudaFree");
}

/* Returns the largest error of attention outputs on the GPU, relative to the largest output of the
 * head. */
static double distance(const fixture *f, const steps *s, const uint16_t *got)
{
    double worst = 0;
    for (int b = 0; b < f->c->n_len; b++)
        for (int h = 0; h < f->c->n_heads && f->n_low[f->slot[b]][LAYERS - 1] < f->len[b]; h++) {
            const int width = f->high.d_v[h / f->high.group];
            double o[KVD_WIDTH_MAX] = {0}, size = 0;
            attend(f, s, b, h, o);
            for (int i = 0; i < width; i++)
                size = fmax(size, fabs(o[i]));
            for (int i = 0; i < width; i++) {
                const size_t at =
                    (size_t)b * (size_t)f->high.o_pitch + (size_t)(f->high.o_offset[h] + i);
                const double e = fabs((double)bf16_wide(got[at]) - o[i]) / size;
                if (isnan(e))
                    return e;
                worst = worse(worst, e);
            }
        }
    return worst;
}

static void test_attention(const fixture *f, const steps *s, kvd_schedule schedule,
                           const char *name, void *pool, int hopper)
{
    const size_t bytes = (size_t)f->c->n_len * (size_t)f->high.o_pitch * sizeof(uint16_t);
    const kvd_zdc_merge_args merge = {.pages = pages_of(f, LAYERS - 1),
                                      .batch = f->c->n_len,
                                      .n_kv_heads = f->c->n_kv_heads,
                                      .group = f->high.group,
                                      .hopper = hopper,
                                      .head = f->dev_head,
                                      .pitch = f->both.o_pitch,
                                      .out_pitch = f->high.o_pitch,
                                      .o = s->o,
                                      .lse = s->lse,
                                      .sinks = s->sinks,
                                      .out = s->out};
    decode(f, s, schedule, pool);
    check(kvd_zdc_merge(&merge, 0), "merge");
    uint16_t *const got = from_device(s->out, bytes);
    const double worst = distance(f, s, got);
    test_result(worst < 0.02, f->c->name, "%s: off by %.2g of the largest of a head's row", name,
                worst);
    free(got);
}

static void test_steps(const fixture *f, void *pool)
{
    const size_t n = (size_t)f->c->n_len, q = n * (size_t)f->high.q_pitch * sizeof(uint16_t);
    steps s = {.host_q = need(q)};
    float *const sinks = need((size_t)f->c->n_heads * sizeof *sinks);
    int some_high = 1;
    for (size_t i = 0; i < q / sizeof(uint16_t); i++)
        s.host_q[i] = some(2);
    test_lists(f, &s);
    s.q = on_device(s.host_q, q);
    s.o = on_device(NULL, n * (size_t)f->both.o_pitch * sizeof(uint16_t));
    s.out = on_device(NULL, n * (size_t)f->high.o_pitch * sizeof(uint16_t));
    s.lse = on_device(NULL, 2 * n * (size_t)f->c->n_heads * sizeof(float));
    for (size_t b = 0; b < n; b++)
        some_high = some_high && f->n_low[f->slot[b]][LAYERS - 1] < f->len[b];
    if (some_high) {
        test_attention(f, &s, KVD_SCHEDULE_OURS, "attention over both stores", pool, on_hopper());
        test_attention(f, &s, KVD_SCHEDULE_PAPERS, "attention, work shared as the papers say", pool,
                       on_hopper());
        test_attention(f, &s, KVD_SCHEDULE_NONE, "attention, work not shared", pool, on_hopper());
        for (int h = 0; h < f->c->n_heads; h++)
            sinks[h] = (float)(3 * kvd_rng_normal(&rng));
        s.host_sinks = sinks;
        s.sinks = on_device(sinks, (size_t)f->c->n_heads * sizeof *sinks);
        test_attention(f, &s, KVD_SCHEDULE_OURS, "attention with sinks", pool, on_hopper());
        device_free(s.sinks);
    }
    device_free(s.q, s.o, s.out, s.lse, s.end, s.low_len, s.table);
    host_free(s.host_q, sinks);
}

typedef struct {
    int n, kv, group, d;
    double p, window; /* parameters of method think */
} channels_case;

/* a prompt for the method think, in slot 0 and layer 0; its pages are in ascending order */
typedef struct {
    const channels_case *c;
    kvd_attn_map map;
    int heads, n_q8;
    size_t pages;
    float *q, *k; /* [n][heads][d] and [kv][n][d] */
    kvd_zdc_pages at;
    void *dev_q, *dev_pages, *dev_n, *dev_zero, *dev_order;
} channels;

static size_t query_at(const channels *x, int t, int h, int i)
{
    return (size_t)((t * x->heads + h) * x->c->d + i);
}

static size_t in_pages(const channels *x, int t, int g, int i)
{
    return (size_t)(t / KVD_PAGE_TOKENS) * (size_t)x->map.page_elements +
           (size_t)x->map.kv_offset[g] +
           kvd_blocked_index((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, (size_t)x->c->d);
}

static void make_channels(channels *x, const channels_case *c)
{
    kvd_attn_heads widths = {c->kv * c->group, c->kv, c->d, {0}, {0}, 0};
    const int32_t table[] = {0, 1, 2, 3, 4, 5, 6, 7}, zero = 0;
    for (int g = 0; g < c->kv; g++)
        widths.d_qk[g] = widths.d_v[g] = c->d;
    *x = (channels){.c = c, .heads = c->kv * c->group, .n_q8 = (c->n + 7) / 8 * 8};
    x->pages = (size_t)((c->n + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS);
    check(kvd_attn_map_make(&widths, &x->map) ? cudaErrorInvalidValue : cudaSuccess, "heads");
    const size_t n_q = (size_t)(x->n_q8 * x->heads * c->d),
                 n_k = x->pages * (size_t)x->map.page_elements;
    float *const q = need(n_q * sizeof *q), *const k = need(n_k * sizeof *k);
    x->q = bf16_numbers(&rng, n_q, 1);
    x->k = bf16_numbers(&rng, (size_t)(c->kv * c->n * c->d), 1);
    for (int t = 0; t < c->n; t++)
        for (int i = 0; i < c->d; i++) {
            for (int h = 0; h < x->heads; h++)
                q[(size_t)(x->map.q_offset[h] * x->n_q8) +
                  kvd_blocked_index((size_t)t, (size_t)i, (size_t)c->d)] =
                    x->q[query_at(x, t, h, i)];
            for (int g = 0; g < c->kv; g++)
                k[in_pages(x, t, g, i)] = x->k[(g * c->n + t) * c->d + i];
        }
    x->dev_q = on_device_bf16(q, n_q);
    x->dev_pages = on_device_bf16(k, n_k);
    x->dev_n = on_device(&c->n, sizeof c->n);
    x->dev_zero = on_device(&zero, sizeof zero);
    x->dev_order = on_device(NULL, (size_t)(c->kv * c->d) * sizeof(int16_t));
    x->at = (kvd_zdc_pages){.slot = x->dev_zero,
                            .table = on_device(table, sizeof table),
                            .pitch = 8,
                            .n_low = on_device(&zero, sizeof zero),
                            .n_layers = 1};
    free(q);
    free(k);
}

/* Marks in `keep` the key channels that the CPU keeps in KV head g. The CPU chooses them from the
 * keys of token `from` and later tokens. */
static int mark_kept(const channels *x, int g, int from, uint8_t *keep)
{
    const channels_case *const c = x->c;
    const kvd_parameter_values v = {.value = {c->p, c->window}};
    const kvd_channels_in in = {.group = (size_t)c->group,
                                .d = (size_t)c->d,
                                .n_q = (size_t)c->n,
                                .ldq = (size_t)(x->heads * c->d),
                                .q = x->q + g * c->group * c->d,
                                .n_k = (size_t)(c->n - from),
                                .k = x->k + (g * c->n + from) * c->d};
    size_t newest;
    return kvd_channels_think.prune(&v, &in, keep, &newest, NULL);
}

/* Counts the key channels that the GPU keeps and the CPU drops. For each head, the GPU lists the
 * kept channels first in `order`. */
static int misplaced(const channels *x, const int16_t *order)
{
    const channels_case *const c = x->c;
    uint8_t keep[KVD_WIDTH_MAX];
    int wrong = 0;
    for (int g = 0; g < c->kv; g++) {
        if (mark_kept(x, g, 0, keep))
            return -1;
        for (int i = 0; i < c->d - (int)(c->p * c->d); i++)
            wrong += !keep[order[g * c->d + i]];
    }
    return wrong;
}

/* Tests dropping of key channels in a layer with a sliding window of `near` tokens. The GPU must
 * drop the channels that the CPU drops. */
static void test_pruned(const channels *x, const kvd_zdc_channels_args *from, int near)
{
    const channels_case *const c = x->c;
    const size_t n = x->pages * (size_t)x->map.page_elements * sizeof(uint16_t);
    const int first = c->n > near ? c->n - near : 0, low = c->n - (int)c->window;
    uint16_t *const before = from_device(x->dev_pages, n);
    void *const pages = on_device(before, n);
    kvd_zdc_channels_args a = *from;
    int wrong = 0, zeros = 0;
    a.from = pages;
    check(kvd_zdc_prune(&a, near, c->d - (int)(c->p * c->d), pages, 0), "channels in a window");
    uint16_t *const after = from_device(pages, n);
    for (int g = 0; g < c->kv; g++) {
        uint8_t keep[KVD_WIDTH_MAX];
        wrong += mark_kept(x, g, first, keep) != 0;
        for (int t = 0; t < c->n; t++)
            for (int i = 0; i < c->d; i++) {
                const size_t at = in_pages(x, t, g, i);
                const bool gone = t >= first && t < low && !keep[i];
                zeros += gone;
                wrong += after[at] != (gone ? 0 : before[at]);
            }
    }
    printf("%s think in a window of %d of %d tokens: %d numbers of keys become 0, %d are wrong\n",
           wrong ? "not ok" : "ok", near, c->n, zeros, wrong);
    failures += wrong > 0;
    device_free(pages);
    host_free(before, after);
}

static void test_channels(const channels_case *c)
{
    channels x;
    make_channels(&x, c);
    const size_t n = (size_t)(c->kv * c->d), n_q = (size_t)(x.heads * c->d);
    int moved = 0;
    const kvd_zdc_channels_args a = {.pages = x.at,
                                     .map = x.map,
                                     .batch = 1,
                                     .n_q8 = x.n_q8,
                                     .window = (int32_t)c->window,
                                     .q_start = x.dev_zero,
                                     .q_len = x.dev_n,
                                     .q = x.dev_q,
                                     .from = x.dev_pages,
                                     .order = x.dev_order,
                                     .level = on_device(NULL, (size_t)x.n_q8),
                                     .place = on_device(NULL, (size_t)x.n_q8 * sizeof(int32_t))};
    void *const queries = on_device_bf16(x.q, n_q);
    const kvd_zdc_reorder_args b = {.pages = x.at,
                                    .map = x.map,
                                    .batch = 1,
                                    .pitch = 8,
                                    .end = x.dev_n,
                                    .table = x.at.table,
                                    .order = x.dev_order,
                                    .q = queries,
                                    .store = x.dev_pages};
    test_pruned(&x, &a, 60);
    test_pruned(&x, &a, 1000);
    check(kvd_zdc_channels(&a, 0), "channels");
    check(kvd_zdc_reorder(&b, 0), "order of a step");
    int16_t *const order = from_device(x.dev_order, n * sizeof *order);
    uint16_t *const got = from_device(queries, n_q * sizeof *got);
    for (int h = 0; h < x.heads; h++)
        for (int i = 0; i < c->d; i++)
            moved += got[h * c->d + i] !=
                     bf16_of((double)x.q[query_at(&x, 0, h, order[h / c->group * c->d + i])]);
    const int wrong = misplaced(&x, order);
    printf("%s think, %d tokens, %d heads of %d: %d channels misplaced, %d of a step\n",
           wrong || moved ? "not ok" : "ok", c->n, x.heads, c->d, wrong, moved);
    failures += wrong || moved;
    device_free(x.dev_q, x.dev_pages, x.dev_n, x.dev_zero, x.dev_order, queries, a.level, a.place,
                x.at.table, x.at.n_low);
    host_free(order, got, x.q, x.k);
}

/* usage: gpu_zdc [quick]; tests kernels of zdc and think; quick: less, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const channels_case of_channels[] = {
        {70, 2, 2, 64, 0.4, 80}, {200, 1, 3, 80, 0.8, 8}, {130, 2, 2, 256, 0.5, 16}};
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("zdc", 1))
        return 0;
    kvd_rng_seed(&rng, 11, 0);
    for (size_t i = 0; i < (quick ? 1 : sizeof of_channels / sizeof *of_channels); i++)
        test_channels(&of_channels[i]);
    for (size_t i = 0; i < (quick ? 1 : sizeof cases / sizeof *cases); i++) {
        fixture f = fixture_make(&cases[i]);
        test_choice(&f);
        void *const pool = test_stores(&f);
        test_narrow(&f);
        test_rows(&f);
        test_steps(&f, pool);
        check(cudaFree(pool), "cudaFree");
        fixture_release(&f);
    }
    return failures ? 1 : 0;
}
