/* usage: gpu_decode [CASE [LAUNCHES [WINDOW]]]
 * Compares decode attention with a reference in double precision.
 * CASE      part of a case's name
 * LAUNCHES  launches of each kernel configuration (default 10); all must give equal bits
 * WINDOW    length of the sliding window, in tokens */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/attention_ref.h"
#include "kernels/cuda/decode.h"

#include "gpu_case.h"
#include "worst.h"

typedef struct {
    const char *name;
    int dtype, n_heads, n_kv_heads, batch, sharp;
    int len[8]; /* tokens per request, repeated over the batch */
    int n_len;
    int width[8][2]; /* (d_qk, d_v) per KV head, repeated over heads */
    int n_width;
} test_case;

static const test_case cases[] = {
    {"one token", KVD_BF16, 8, 8, 1, 0, {1}, 1, {{16, 16}}, 1},
    {"odd lengths", KVD_BF16, 8, 2, 5, 0, {1, 7, 64, 65, 1000}, 5, {{64, 48}, {16, 128}}, 2},
    {"odd lengths, f16", KVD_F16, 8, 2, 5, 0, {1, 7, 64, 65, 1000}, 5, {{64, 48}, {16, 128}}, 2},
    {"every width",
     KVD_BF16,
     32,
     8,
     3,
     0,
     {129, 200, 8},
     3,
     {{16, 128}, {32, 112}, {48, 96}, {64, 80}, {80, 64}, {96, 48}, {112, 32}, {128, 16}},
     8},
    {"group 1", KVD_BF16, 32, 32, 3, 0, {333, 64, 1025}, 3, {{128, 128}, {48, 64}, {16, 16}}, 3},
    {"group 3", KVD_BF16, 12, 4, 4, 0, {500, 33, 90, 63}, 4, {{80, 64}, {32, 96}}, 2},
    {"group 8", KVD_BF16, 64, 8, 4, 0, {500, 33, 90, 63}, 4, {{80, 64}, {32, 96}, {128, 128}}, 3},
    {"group 10", KVD_F16, 20, 2, 4, 0, {500, 33, 90, 63}, 4, {{80, 64}, {32, 96}}, 2},
    {"group 16", KVD_BF16, 32, 2, 4, 0, {700, 1, 2049, 63}, 4, {{128, 128}, {32, 96}}, 2},
    {"group 17", KVD_F16, 34, 2, 3, 0, {500, 33, 90}, 3, {{80, 64}, {32, 96}}, 2},
    {"group 29", KVD_BF16, 58, 2, 4, 0, {700, 1, 2049, 63}, 4, {{64, 64}, {32, 96}}, 2},
    {"group 71", KVD_BF16, 71, 1, 3, 0, {129, 1025, 8}, 3, {{64, 48}}, 1},
    {"one long request", KVD_BF16, 32, 8, 1, 0, {20000}, 1, {{64, 48}, {80, 64}, {48, 64}}, 3},
    {"one long, one head", KVD_BF16, 4, 1, 1, 0, {30011}, 1, {{128, 112}}, 1},
    {"one long, many short",
     KVD_BF16,
     32,
     8,
     40,
     0,
     {9000, 17, 130, 5, 64, 300, 12, 99},
     8,
     {{64, 64}, {32, 80}},
     2},
    {"many requests", KVD_BF16, 16, 4, 300, 0, {130, 70, 1, 256}, 4, {{32, 48}, {16, 32}}, 2},
    {"sharp softmax", KVD_BF16, 32, 8, 3, 1, {1000, 65, 4099}, 3, {{128, 128}, {64, 48}}, 2},
    {"sharp softmax, f16", KVD_F16, 32, 8, 3, 1, {1000, 65, 4099}, 3, {{128, 128}, {64, 48}}, 2},
    {"wide 256", KVD_BF16, 8, 4, 5, 0, {1, 7, 64, 65, 1000}, 5, {{256, 256}}, 1},
    {"wide mix", KVD_BF16, 16, 4, 3, 0, {129, 200, 8}, 3, {{16, 256}, {144, 240}, {256, 16}}, 3},
    {"wide mix, f16", KVD_F16, 16, 4, 3, 0, {129, 700, 8}, 3, {{240, 144}, {256, 256}}, 2},
    {"wide by 1", KVD_BF16, 8, 8, 3, 0, {333, 64, 1025}, 3, {{256, 256}, {240, 16}, {144, 176}}, 3},
    {"wide by 8", KVD_BF16, 16, 2, 4, 0, {500, 33, 90, 63}, 4, {{256, 256}, {208, 192}}, 2},
    {"wide by 16", KVD_BF16, 32, 2, 4, 0, {700, 1, 2049, 63}, 4, {{256, 256}, {160, 224}}, 2},
    {"wide by 16, f16", KVD_F16, 20, 2, 4, 0, {500, 33, 90, 63}, 4, {{128, 144}, {32, 256}}, 2},
    {"wide by 24", KVD_BF16, 24, 1, 3, 0, {500, 33, 90}, 3, {{256, 256}}, 1},
    {"wide long", KVD_BF16, 4, 1, 1, 0, {20011}, 1, {{256, 256}}, 1},
    {"wide short", KVD_BF16, 8, 2, 40, 0, {17, 130, 5, 48, 300, 12, 33, 40}, 8, {{256, 128}}, 1},
    {"wide sharp", KVD_BF16, 8, 2, 3, 1, {1000, 65, 4099}, 3, {{256, 256}, {240, 144}}, 2},
};

/* Number of tested ways to divide the work among CTAs. PLANNED: by kvd_decode_plan, with several
 * schedules and numbers of CTAs. UNPLANNED: with 1, 2, 4, 8 or 16 CTAs per KV head. */
enum { PLANNED = 6, UNPLANNED = 5 };

/* Sets 2^i CTAs per KV head, without a plan from kvd_decode_plan. Returns 0 if the kernel does not
 * support that. */
static int without_plan(kvd_decode_args *args, int i)
{
    const int tasks = args->batch * args->map.n_kv_heads, ctas = 1 << i;
    args->ctas_per_task = ctas;
    args->n_ctas = tasks * ctas;
    return on_hopper() && !args->map.window && args->map.group <= 8 && args->map.n_kv_heads <= 32 &&
           kvd_attn_widest(&args->map) <= KVD_WIDTH_NARROW && tasks * ctas <= 1000;
}

/* Launches decode for the first request alone. Returns 1 if only its output is written and equals
 * `o`. */
static int first_only(kvd_decode_args args, const uint16_t *o)
{
    const int32_t one = 1;
    const size_t row = (size_t)args.map.o_pitch, n = (size_t)args.batch * row;
    uint16_t *const got = need(n * sizeof *got);
    void *const live = on_device(&one, sizeof one);
    args.live = live;
    fill_bytes(args.o, 0xff, n * sizeof *got);
    check(kvd_decode(&args, 0), "decode");
    to_host(got, args.o, n * sizeof *got);
    int ok = !memcmp(got, o, row * sizeof *got);
    for (size_t i = row; i < n; i++)
        ok = ok && got[i] == 0xffff;
    check(cudaFree(live), "free");
    free(got);
    return ok;
}

/* Tests different sink logits for requests with even and with odd index. The expected outputs are
 * from two launches in which all requests have equal sink logits. */
static int own_sinks(kvd_decode_args args, const uint16_t *o)
{
    const size_t heads = (size_t)args.map.n_heads, row = (size_t)args.map.o_pitch,
                 n = (size_t)args.batch * row;
    float *const even = need(2 * heads * sizeof *even);
    uint16_t *const want = need(n * sizeof *want), *const got = need(n * sizeof *got);
    for (size_t h = 0; h < heads; h++)
        even[h] = (float)h / 8 - 1;
    float *const all = on_device(even, 2 * heads * sizeof *even);
    check(cudaMemcpy(all + heads, args.sinks, heads * sizeof *all, cudaMemcpyDeviceToDevice),
          "sinks");
    args.sinks = all;
    check(kvd_decode(&args, 0), "decode");
    to_host(want, args.o, n * sizeof *want);
    args.n_sinks = 2 * args.map.n_heads;
    check(kvd_decode(&args, 0), "decode");
    to_host(got, args.o, n * sizeof *got);
    int ok = 1;
    for (size_t b = 0; b < (size_t)args.batch; b++)
        ok = ok && !memcmp(got + b * row, (b % 2 ? o : want) + b * row, row * sizeof *got);
    check(cudaFree(all), "free");
    host_free(even, want, got);
    return ok;
}

/* Tests that kvd_decode_ctas_per_task() returns the number of CTAs that was fastest in the
 * measurements of docs/kernels.md. */
static void run_choices(void)
{
    static const struct {
        int batch, tokens, shortest, window, ctas;
    } choice[] = {{1, 1024, 1024, 0, 8}, {1, 1024, 0, 0, 8},        {1, 8192, 8192, 0, 16},
                  {1, 32768, 0, 0, 0},   {1, 131072, 131072, 0, 0}, {2, 1024, 1024, 0, 8},
                  {16, 1024, 1, 0, 0},   {16, 1024, 1024, 0, 1},    {16, 8192, 8192, 0, 1},
                  {16, 8192, 0, 0, 0},   {16, 8192, 100, 0, 0},     {64, 8192, 8192, 0, 0},
                  {1, 1024, 1024, 64, 0}};
    if (!on_hopper() || device_attribute(cudaDevAttrMultiProcessorCount) != 132) {
        printf("skip decode, CTAs per task: needs a Hopper GPU with 132 SMs\n");
        return;
    }
    for (size_t i = 0; i < sizeof choice / sizeof *choice; i++) {
        kvd_attn_heads heads = {32, 8, 128, {0}, {0}, choice[i].window};
        for (int g = 0; g < 8; g++)
            heads.d_qk[g] = heads.d_v[g] = 128;
        kvd_decode_args args = {.dtype = KVD_BF16,
                                .batch = choice[i].batch,
                                .max_pages = choice[i].tokens / KVD_PAGE_TOKENS};
        if (kvd_attn_map_make(&heads, &args.map))
            exit(1);
        args.n_ctas = kvd_decode_ctas(&args.map);
        const int got = kvd_decode_ctas_per_task(&args, choice[i].shortest);
        test_result(got == choice[i].ctas, "CTAs per task",
                    "%d x %d, shortest %d, window %d: %d, wanted %d", choice[i].batch,
                    choice[i].tokens, choice[i].shortest, choice[i].window, got, choice[i].ctas);
    }
}

static kvd_rng rng;

static void run_case(const test_case *c, int launches, int window, bool sinks)
{
    const int d_head = strncmp(c->name, "wide", 4) ? 128 : 256;
    kvd_attn_heads heads = {c->n_heads, c->n_kv_heads, d_head, {0}, {0}, window};
    for (int g = 0; g < c->n_kv_heads; g++) {
        heads.d_qk[g] = c->width[g % c->n_width][0];
        heads.d_v[g] = c->width[g % c->n_width][1];
    }
    kvd_decode_args args = {.dtype = c->dtype, .batch = c->batch};
    or_end(kvd_attn_map_make(&heads, &args.map), c->name, "map");
    kvd_rng_seed(&rng, 1, (uint64_t)c->batch);
    const size_t batch = (size_t)c->batch, n_heads = (size_t)c->n_heads;
    int32_t *len = need(batch * sizeof *len), *one = need(batch * sizeof *one);
    size_t n_kv = 0, n_pages = 0;
    int longest = 0;
    for (size_t b = 0; b < batch; b++) {
        len[b] = c->len[b % (size_t)c->n_len];
        one[b] = 1;
        n_kv += (size_t)len[b];
        n_pages += ((size_t)len[b] + 63) / 64;
        longest = len[b] > longest ? len[b] : longest;
    }
    args.max_pages = (longest + 63) / 64 + 3;

    const size_t pool_pages = n_pages + n_pages / 2 + 7;
    int32_t *order = shuffled(&rng, (int)pool_pages);
    int32_t *table = need(batch * (size_t)args.max_pages * sizeof *table);
    for (size_t b = 0, used = 0; b < batch; b++)
        for (int j = 0; j < args.max_pages; j++)
            table[b * (size_t)args.max_pages + (size_t)j] =
                j < (len[b] + 63) / 64 ? order[used++] : 0x3fffffff;

    size_t k_n = 0, v_n = 0;
    for (int g = 0; g < c->n_kv_heads; g++) {
        k_n += n_kv * (size_t)heads.d_qk[g];
        v_n += n_kv * (size_t)heads.d_v[g];
    }
    const size_t q_n = batch * (size_t)args.map.q_pitch, o_n = batch * (size_t)args.map.o_pitch;
    float *q = rounded_numbers(&rng, (kvd_dtype)c->dtype, q_n, c->sharp ? 12 : 1),
          *k = rounded_numbers(&rng, (kvd_dtype)c->dtype, k_n, 1),
          *v = rounded_numbers(&rng, (kvd_dtype)c->dtype, v_n, 1);
    double *want = need(o_n * sizeof *want), *want_lse = need(batch * n_heads * sizeof *want_lse);
    float *const sink = sinks ? some_sinks(&rng, c->n_heads, c->sharp ? 30 : 3) : NULL;
    const kvd_attn_batch requests = {c->batch, one, len};
    kvd_err why = {""};
    or_end(kvd_attention_ref_sinks(&heads, &requests, sink, q, k, v, want, want_lse, &why), c->name,
           why.msg);

    const size_t pool_n = pool_pages * (size_t)args.map.page_elements;
    uint16_t *q_rows = need(q_n * 2), *pool = need(pool_n * 2);
    memset(pool, 0xff, pool_n * 2);
    kvd_pack_q_decode(&args.map, &requests, c->dtype, q, q_rows);
    kvd_pack_kv(&args.map, &requests, c->dtype, k, v, table, args.max_pages, pool);
    for (size_t b = 0; window && b < batch; b++)
        for (int j = 0; j < (len[b] - window) / KVD_PAGE_TOKENS; j++) {
            const size_t page = (size_t)table[b * (size_t)args.max_pages + (size_t)j];
            memset(pool + page * (size_t)args.map.page_elements, 0xff,
                   (size_t)args.map.page_elements * 2);
        }
    args.q = on_device(q_rows, q_n * 2);
    args.pool = on_device(pool, pool_n * 2);
    args.kv_len = on_device(len, batch * sizeof *len);
    args.page_table = on_device(table, batch * (size_t)args.max_pages * sizeof *table);
    args.sinks = sink ? on_device(sink, n_heads * sizeof *sink) : NULL;
    args.o = on_device(NULL, o_n * 2);
    args.lse = on_device(NULL, batch * n_heads * sizeof(float));

    uint16_t *o_bits = need(o_n * 2), *again = need(o_n * 2);
    float *o = need(o_n * sizeof *o), *lse = need(batch * n_heads * sizeof *lse);
    static const char *const schedule_name[] = {"none", "papers", "ours"};
    const double limit = c->dtype == KVD_BF16 ? 4e-3 : 1e-3;
    for (int run = 0; run < PLANNED + UNPLANNED; run++) {
        const kvd_schedule schedule = run < 3 ? (kvd_schedule)run : KVD_SCHEDULE_OURS;
        const int unplanned = run - PLANNED;
        args.n_ctas = kvd_decode_ctas(&args.map);
        if (unplanned >= 0 && ((launches == 1 && unplanned % 2) || !without_plan(&args, unplanned)))
            continue;
        if (run >= 3 && run < PLANNED)
            args.n_ctas = run == 3 ? 1 : run == 4 ? 7 : 1000;
        const size_t bytes = kvd_decode_workspace_bytes(&args.map, c->batch, longest, args.n_ctas);
        args.workspace = on_device(NULL, bytes);
        args.busy = on_device(NULL, (size_t)args.n_ctas * sizeof *args.busy);
        if (run < PLANNED)
            check(kvd_decode_plan(&args, schedule, 0), "plan");
        double err = 0, norm = 0, err_lse = 0;
        int same = 1;
        for (int repeat = 0; repeat < launches; repeat++) {
            if (run < PLANNED && repeat && repeat == launches / 2)
                check(kvd_decode_plan(&args, schedule, 0), "plan");
            fill_bytes(args.o, 0xff, o_n * 2);
            fill_bytes(args.lse, 0xff, batch * n_heads * sizeof(float));
            check(kvd_decode(&args, 0), "decode");
            to_host(again, args.o, o_n * 2);
            if (repeat)
                same = same && !memcmp(o_bits, again, o_n * 2);
            else
                memcpy(o_bits, again, o_n * 2);
        }
        const int live_ok = run < PLANNED || first_only(args, o_bits);
        to_host(lse, args.lse, batch * n_heads * sizeof *lse);
        const int own_ok = !sinks || own_sinks(args, o_bits);
        kvd_unpack_o(&args.map, &requests, c->dtype, 1, o_bits, o);
        for (size_t i = 0; i < o_n; i++) {
            err += ((double)o[i] - want[i]) * ((double)o[i] - want[i]);
            norm += want[i] * want[i];
        }
        for (size_t b = 0; b < batch; b++)
            for (size_t h = 0; h < n_heads; h++) {
                const double e = fabs((double)lse[b * n_heads + h] - want_lse[h * batch + b]);
                err_lse = worse(err_lse, e);
            }
        unsigned long long *busy = need((size_t)args.n_ctas * sizeof *busy);
        to_host(busy, args.busy, (size_t)args.n_ctas * sizeof *busy);
        int busy_ok = 1;
        for (int i = 0; i < args.n_ctas; i++)
            /* A CTA's measured run time of 60 s or more means a wrong time stamp. */
            busy_ok = busy_ok && busy[i] < 60000000000ull;
        err = sqrt(err / norm);
        test_result(
            err < limit && err_lse < 2e-3 && same && busy_ok && live_ok && own_ok, c->name,
            "window %d%s, %s, %d CTAs, %d per task: error %.2e of %.0e, lse off by %.2e, %s "
            "bits, busy %s, one request alone %s, own sinks %s",
            window, sinks ? ", sinks" : "", schedule_name[schedule], args.n_ctas,
            args.ctas_per_task, err, limit, err_lse, same ? "the same" : "other",
            busy_ok ? "ok" : "wrong", live_ok ? "ok" : "wrong", own_ok ? "ok" : "wrong");
        free(busy);
        device_free(args.workspace, args.busy);
    }
    device_free(args.q, args.pool, args.kv_len, args.page_table, args.sinks, args.o, args.lse);
    host_free(len, one, order, table, q, k, v, want, want_lse, q_rows, pool, o_bits, again, o, lse,
              sink);
}

int main(int argc, char **argv)
{
    static const int windows[] = {1, 17, 64, 100, 1000};
    const int launches = argc > 2 ? atoi(argv[2]) : 10, only = argc > 3 ? atoi(argv[3]) : -1;
    const size_t n_cases = sizeof cases / sizeof *cases;
    bool named = false;
    if (!gpu_devices("decode", 1))
        return 0;
    if (argc < 2)
        run_choices();
    for (size_t i = 0; argc > 1 && i < n_cases; i++)
        named = named || !strcmp(cases[i].name, argv[1]);
    for (size_t i = 0; i < n_cases; i++)
        if (argc < 2 ||
            (named ? !strcmp(cases[i].name, argv[1]) : strstr(cases[i].name, argv[1]) != NULL)) {
            run_case(&cases[i], launches, only > 0 ? only : 0, false);
            run_case(&cases[i], launches < 2 ? launches : 2, only > 0 ? only : 0, true);
            for (size_t w = 0; argc < 2 && w < sizeof windows / sizeof *windows; w++)
                if (cases[i].len[0] < 5000 || windows[w] >= 100)
                    run_case(&cases[i], 2, windows[w], w % 2 == 1);
        }
    return failures ? 1 : 0;
}
