/* usage: gpu_decode_plan [CASE]
 * Tests how decode attention is divided: exactly one CTA must read each cache page. Only the
 * schedule `ours`, which gives all CTAs equally many bytes, may divide a request. */
#include <math.h>

#include "kernels/cuda/decode.h"
#include "kernels/cuda/decode_work.h"

#include "gpu_case.h"

enum { N_KV = 8, GROUP = 4, LAYERS = 4, CUT = 32 };

static const char *const schedule_name[] = {"none", "papers", "ours"};
enum { N_WAYS = sizeof schedule_name / sizeof *schedule_name };

typedef struct {
    const char *name;
    int batch, n_len, n_ctas;
    int32_t len[8];
} test_case;

typedef struct {
    kvd_decode_args args;
    kvd_decode_work work;
    char *host;
} plan;

static void plan_make(plan *p, const int (*width)[2], const test_case *c, const int32_t *kv_len)
{
    memset(p, 0, sizeof *p);
    kvd_attn_heads heads = {GROUP * N_KV, N_KV, 128, {0}, {0}, 0};
    for (int g = 0; g < N_KV; g++) {
        heads.d_qk[g] = width[g][0];
        heads.d_v[g] = width[g][1];
    }
    or_end(kvd_attn_map_make(&heads, &p->args.map), "decode_plan", "heads refused");
    p->args.dtype = KVD_BF16;
    p->args.batch = c->batch;
    p->args.max_pages = 1;
    p->args.n_ctas = c->n_ctas;
    p->args.kv_len = kv_len;
    kvd_decode_work_lay(&p->args.map, c->batch, c->n_ctas, NULL, &p->work);
    p->host = need(p->work.bytes);
    p->args.workspace = on_device(NULL, p->work.bytes);
}

static void plan_read(plan *p)
{
    to_host(p->host, p->args.workspace, p->work.bytes);
    kvd_decode_work_lay(&p->args.map, p->args.batch, p->args.n_ctas, p->host, &p->work);
}

static void plan_release(plan *p)
{
    check(cudaFree(p->args.workspace), "cudaFree");
    free(p->host);
}

static const char *wrong(const plan *p, const int32_t *len, kvd_schedule schedule)
{
    const int tasks = p->args.batch * N_KV, n_ctas = p->args.n_ctas;
    const kvd_decode_segment *last[1024] = {NULL};
    size_t n_pages = 0;
    int *begin = need((size_t)(tasks + 1) * sizeof *begin);
    for (int t = 0; t < tasks; t++)
        begin[t + 1] = begin[t] + (len[t / N_KV] + CUT - 1) / CUT;
    n_pages = (size_t)begin[tasks];
    /* for each half page of the cache: 0, or 1 + index of the CTA that reads it */
    int *owner = need(n_pages * sizeof *owner);
    const char *why = NULL;
    for (int c = 0; c < n_ctas && !why; c++) {
        const kvd_decode_cta *cta = &p->work.cta[c];
        if (p->work.arrived[c])
            why = "a counter of arrivals is not zero";
        if (cta->count < 0 ||
            (cta->count > 1 && (cta->next < 0 || cta->next + cta->count - 1 > tasks + n_ctas)))
            why = "a list lies outside the workspace";
        for (int k = 0; k < cta->count && !why; k++) {
            const kvd_decode_segment *s =
                k ? &p->work.list[cta->next + k - 1] : &cta->first_segment;
            last[c] = s;
            if (s->request < 0 || s->request >= p->args.batch || s->head < 0 || s->head >= N_KV) {
                why = "a segment of no interval";
                break;
            }
            const int t = s->request * N_KV + s->head, all = len[s->request],
                      end = s->page * KVD_PAGE_TOKENS + s->n_tokens;
            if (s->page < 0 || s->skip < 0 || s->skip % CUT || s->skip >= KVD_PAGE_TOKENS ||
                s->n_tokens <= s->skip || end > all || (end < all && end % CUT)) {
                why = "a segment that is not whole pages of its interval";
                break;
            }
            if (s->live == 1 ? s->n_tokens != all || s->skip : k > 0 && k < cta->count - 1)
                why = "a cut that its neighbours do not share";
            if (s->live > 1 &&
                (schedule != KVD_SCHEDULE_OURS || s->first_cta > c || s->first_cta + s->span <= c))
                why = "a cut interval that does not span its CTA";
            for (int j = begin[t] + (s->page * KVD_PAGE_TOKENS + s->skip) / CUT;
                 j < begin[t] + (end + CUT - 1) / CUT; j++) {
                if (owner[j])
                    why = "a page in two segments";
                owner[j] = c + 1;
            }
        }
    }
    for (int t = 0; t < tasks && !why; t++) {
        int live = 0;
        for (int j = begin[t]; j < begin[t + 1] && !why; j++) {
            if (!owner[j])
                why = "a page in no segment";
            live += j == begin[t] || owner[j] != owner[j - 1];
        }
        for (int j = begin[t]; j < begin[t + 1] && !why && live > 1; j++) {
            const int c = owner[j] - 1;
            const kvd_decode_segment *first = &p->work.cta[c].first_segment,
                                     *s =
                                         first->request * N_KV + first->head == t ? first : last[c];
            if (s->live != live || s->first_cta != owner[begin[t]] - 1 ||
                s->first_cta + s->span != owner[begin[t + 1] - 1])
                why = "a cut interval with wrong CTAs";
        }
    }
    for (int c = 0; c < n_ctas && !why && schedule == KVD_SCHEDULE_OURS; c++)
        for (int h = 0; h < GROUP; h++)
            if (!p->work.cta[c].count && !(p->work.slot_ml[2 * (2 * c * GROUP + h)] == -INFINITY))
                why = "a CTA without work whose slot would count";
    host_free(begin, owner);
    return why;
}

/* Computes the largest number of pages and of segments (token ranges) that a CTA gets. Adds to
 * *split the number of KV heads that several CTAs share. */
static void measure(const plan *p, int *pages, int *segments, int *split)
{
    for (int c = 0; c < p->args.n_ctas; c++) {
        const kvd_decode_cta *cta = &p->work.cta[c];
        int n = 0;
        for (int k = 0; k < cta->count; k++) {
            const kvd_decode_segment *s =
                k ? &p->work.list[cta->next + k - 1] : &cta->first_segment;
            n += (s->n_tokens + CUT - 1) / CUT - s->skip / CUT;
            *split += s->live > 1 && s->first_cta == c;
        }
        *pages = n > *pages ? n : *pages;
        *segments = cta->count > *segments ? cta->count : *segments;
    }
}

static int same(const plan *a, const plan *b)
{
    const size_t n = (size_t)a->args.n_ctas, tasks = (size_t)a->args.batch * N_KV;
    return !memcmp(a->work.cta, b->work.cta, n * sizeof *a->work.cta) &&
           !memcmp(a->work.arrived, b->work.arrived, n * sizeof *a->work.arrived) &&
           !memcmp(a->work.list, b->work.list, (tasks + n) * sizeof *a->work.list) &&
           !memcmp(a->work.slot_ml, b->work.slot_ml, 2 * n * GROUP * 2 * sizeof *a->work.slot_ml);
}

/* Only the first `live` requests of a batch are in use. Tests that the lengths of the others do not
 * change how the work is divided. */
static void run_live(const test_case *c, int w)
{
    const kvd_schedule schedule = (kvd_schedule)w;
    static const int width[N_KV][2] = {{80, 64}, {64, 48}, {64, 64},   {96, 80},
                                       {48, 32}, {64, 48}, {128, 112}, {16, 16}};
    int32_t *len = need((size_t)c->batch * sizeof *len);
    for (int b = 0; b < c->batch; b++)
        len[b] = c->len[b % c->n_len];
    int32_t *kv_len = on_device(len, (size_t)c->batch * sizeof *len);
    const char *why = NULL;
    const int live[] = {1, (c->batch + 1) / 2, c->batch};
    for (int i = 0; i < 3 && !why; i++) {
        test_case first = *c;
        plan alone, all;
        first.batch = live[i];
        plan_make(&alone, width, &first, kv_len);
        plan_make(&all, width, c, kv_len);
        int32_t *n = on_device(&live[i], sizeof *live);
        all.args.live = n;
        check(kvd_decode_plan(&alone.args, schedule, 0), "plan");
        check(kvd_decode_plan(&all.args, schedule, 0), "plan");
        check(cudaDeviceSynchronize(), "plan");
        plan_read(&alone);
        plan_read(&all);
        why = wrong(&alone, len, schedule);
        if (!why && !same(&alone, &all))
            why = "not the plan of the requests that take part";
        check(cudaFree(n), "cudaFree");
        plan_release(&alone);
        plan_release(&all);
    }
    test_result(!why, c->name, "%s, some take part%s%s", schedule_name[w], why ? ": " : "",
                why ? why : "");
    check(cudaFree(kv_len), "cudaFree");
    free(len);
}

static void run(const test_case *c, int w)
{
    const kvd_schedule schedule = (kvd_schedule)w;
    static const int width[LAYERS][N_KV][2] = {
        {{80, 64}, {64, 48}, {64, 64}, {96, 80}, {48, 32}, {64, 48}, {128, 112}, {16, 16}},
        {{16, 128}, {32, 112}, {48, 96}, {64, 80}, {80, 64}, {96, 48}, {112, 32}, {128, 16}},
        {{128, 128},
         {128, 128},
         {128, 128},
         {128, 128},
         {128, 128},
         {128, 128},
         {128, 128},
         {128, 128}},
        {{16, 16}, {256, 240}, {16, 16}, {256, 256}, {16, 16}, {144, 256}, {16, 16}, {128, 128}},
    };
    int32_t *len = need((size_t)c->batch * sizeof *len);
    for (int b = 0; b < c->batch; b++)
        len[b] = c->len[b % c->n_len];
    int32_t *kv_len = on_device(len, (size_t)c->batch * sizeof *len);
    const size_t each = kvd_decode_plan_layer_bytes();
    char *described = need(LAYERS * each);
    plan together[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        plan_make(&together[i], width[i], c, kv_len);
        check(kvd_decode_plan_describe(&together[i].args, schedule, described + (size_t)i * each),
              "describe");
    }
    void *layers = on_device(described, LAYERS * each);
    check(kvd_decode_plan_layers(&together[LAYERS - 1].args, schedule, layers, LAYERS, 0),
          "plan of layers");
    check(cudaDeviceSynchronize(), "plan of layers");
    const char *why = NULL;
    int at = 0, most_pages = 0, most_segments = 0, n_split = 0;
    for (int i = 0; i < LAYERS && !why; i++) {
        plan alone;
        plan_make(&alone, width[i], c, kv_len);
        check(kvd_decode_plan(&alone.args, schedule, 0), "plan");
        check(cudaDeviceSynchronize(), "plan");
        plan_read(&alone);
        plan_read(&together[i]);
        at = i;
        why = wrong(&alone, len, schedule);
        if (!why && !same(&alone, &together[i]))
            why = "another plan in the launch of many layers";
        if (i == 2 && !why)
            measure(&alone, &most_pages, &most_segments, &n_split);
        plan_release(&alone);
    }
    test_result(
        !why, c->name,
        "%s, %d CTAs, %d layers; layer 2: at most %d half pages and %d segments per CTA, %d "
        "split intervals; layer %d: %s",
        schedule_name[w], c->n_ctas, (int)LAYERS, most_pages, most_segments, n_split, at,
        why ? why : "right");
    for (int i = 0; i < LAYERS; i++)
        plan_release(&together[i]);
    device_free(layers, kv_len);
    host_free(described, len);
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"one token", 1, 1, 132, {1}},
        {"one long", 1, 1, 132, {131072}},
        {"one CTA", 3, 3, 1, {100, 64, 1000}},
        {"equal", 64, 1, 132, {8192}},
        {"one of 8192", 1, 1, 132, {8192}},
        {"one of 1000", 1, 1, 132, {1000}},
        {"16 of 1024", 16, 1, 132, {1024}},
        {"7 of about 3000", 7, 7, 132, {3000, 2900, 3100, 3050, 2950, 3001, 2999}},
        {"ragged", 50, 8, 132, {9000, 17, 130, 5, 64, 300, 12, 99}},
        {"many", 3000, 7, 108, {1, 64, 65, 700, 63, 128, 2049}},
        {"more CTAs than pages", 2, 2, 1000, {200, 4100}},
    };
    if (!gpu_devices("decode_plan", 1))
        return 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int w = 0; w < N_WAYS && (argc < 2 || strstr(cases[i].name, argv[1])); w++) {
            run(&cases[i], w);
            run_live(&cases[i], w);
        }
    return failures != 0;
}
