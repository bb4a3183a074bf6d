/* usage: gpu_palu [CASE]
 * Compares the decode kernel of the method Palu with a reference in double precision. CASE: part of
 * the names of cases to run. */
#include "gpu_case.h"
#include "kernels/rivals/palu_decode.h"
#include "kernels/rivals/palu_layout.h"

enum { BATCH_MAX = 8, HALF = KVD_PALU_D_HEAD / 2 };

typedef struct {
    const char *name;
    kvd_palu_shape shape;
    int dtype, batch;
    int32_t kv_len[BATCH_MAX];
    float q_gain; /* factor of queries; above 1: sharper softmax */
} test;

static kvd_rng rng;

static float *numbers(size_t n, int dtype, float gain, int outliers)
{
    float *x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = gain * (float)kvd_rng_normal(&rng) * (outliers && i % 97 == 0 ? 4 : 1);
    free(round_to((kvd_dtype)dtype, x, n));
    return x;
}

static void run(const test *c, int n_clusters)
{
    const kvd_palu_shape *s = &c->shape;
    const size_t rk = (size_t)s->rank_k, rv = (size_t)s->rank_v, groups = (size_t)s->n_kv_heads / 4;
    const size_t n_q = (size_t)c->batch * (size_t)s->n_heads * KVD_PALU_D_HEAD,
                 n_o = (size_t)c->batch * (size_t)s->n_heads * rv;
    size_t n_kv = 0;
    int longest = 0;
    for (int b = 0; b < c->batch; b++) {
        n_kv += (size_t)c->kv_len[b];
        longest = c->kv_len[b] > longest ? c->kv_len[b] : longest;
    }
    const int max_pages = (longest + 63) / 64 + 1;
    const size_t rows = (size_t)max_pages * 64, n_pages = (size_t)c->batch * (size_t)max_pages + 3;
    float *q = numbers(n_q, c->dtype, c->q_gain, c->q_gain > 1);
    float *kl = numbers(groups * n_kv * rk, c->dtype, 1, c->q_gain > 1),
          *vl = numbers(groups * n_kv * rv, c->dtype, 1, 0);
    float *up = numbers((size_t)s->n_kv_heads * rk * 128, c->dtype, 1 / sqrtf((float)rk), 0);
    float *cosine = need(rows * HALF * sizeof *cosine), *sine = need(rows * HALF * sizeof *sine);
    double *want = need(n_o * sizeof *want);
    const size_t pool_bytes = n_pages * kvd_palu_page_elements(s) * 2,
                 up_bytes = kvd_palu_up_elements(s) * 2;
    uint16_t *pool = need(pool_bytes), *packed = need(up_bytes), *q16 = need(n_q * 2);
    uint16_t *o16 = need(n_o * 2), *again = need(n_o * 2);
    float *o = need(n_o * sizeof *o);
    int32_t *table = need((size_t)c->batch * (size_t)max_pages * sizeof *table);
    rope_tables(rows, KVD_PALU_D_HEAD, cosine, sine);
    memset(pool, 0xff, pool_bytes);
    for (int b = 0; b < c->batch; b++)
        for (int j = 0; j < max_pages; j++)
            table[b * max_pages + j] =
                j < (c->kv_len[b] + 63) / 64 ? (b * max_pages + (max_pages - 1 - j)) : 1 << 30;
    kvd_palu_pack_latents(s, c->batch, c->kv_len, c->dtype, kl, vl, table, max_pages, pool);
    kvd_palu_pack_up(s, c->dtype, up, packed);
    kvd_from_f32((kvd_dtype)c->dtype, q, q16, n_q);
    kvd_err err;
    or_end(kvd_palu_ref(s, c->batch, c->kv_len, q, kl, vl, up, cosine, sine, want, &err), c->name,
           err.msg);

    kvd_palu_decode_args a = {
        .dtype = c->dtype, .shape = *s, .batch = c->batch, .max_pages = max_pages};
    a.n_clusters = n_clusters;
    a.kv_len = on_device(c->kv_len, (size_t)c->batch * sizeof(int32_t));
    a.page_table = on_device(table, (size_t)c->batch * (size_t)max_pages * sizeof *table);
    a.q = on_device(q16, n_q * 2);
    a.pool = on_device(pool, pool_bytes);
    a.up = on_device(packed, up_bytes);
    a.rope_cos = on_device(cosine, rows * HALF * sizeof *cosine);
    a.rope_sin = on_device(sine, rows * HALF * sizeof *sine);
    a.o = on_device(NULL, n_o * 2);
    a.workspace = on_device(NULL, kvd_palu_decode_workspace_bytes(s, c->batch, n_clusters));
    check(kvd_palu_decode_plan(&a, 0), c->name);
    int same = 1;
    for (int i = 0; i < 2; i++) {
        fill_bytes(a.o, 0xff, n_o * 2);
        check(kvd_palu_decode(&a, 0), c->name);
        check(cudaDeviceSynchronize(), c->name);
        to_host(i ? again : o16, a.o, n_o * 2);
    }
    same = memcmp(o16, again, n_o * 2) == 0;
    kvd_to_f32((kvd_dtype)c->dtype, o16, o, n_o);
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n_o; i++) {
        diff += ((double)o[i] - want[i]) * ((double)o[i] - want[i]);
        norm += want[i] * want[i];
    }
    const double error = sqrt(diff / norm), limit = c->dtype == KVD_BF16 ? 4e-3 : 1e-3;
    const int good = error < limit && same;
    if (good)
        printf("ok palu %s, %d clusters (error %.2e)\n", c->name, n_clusters, error);
    else
        printf("not ok palu %s, %d clusters: error %.3e, limit %.0e, repeatable %d\n", c->name,
               n_clusters, error, limit, same);
    failures += !good;

    device_free(a.kv_len, a.page_table, a.q, a.pool, a.up, a.rope_cos, a.rope_sin, a.o,
                a.workspace);
    host_free(q, kl, vl, up, cosine, sine, o, want, pool, packed, q16, o16, again, table);
}

int main(int argc, char **argv)
{
    static const test all[] = {
        {"one page", {32, 8, 256, 256}, KVD_BF16, 1, {64}, 1},
        {"one token", {32, 8, 256, 256}, KVD_BF16, 1, {1}, 1},
        {"ragged", {32, 8, 256, 256}, KVD_BF16, 6, {1, 63, 64, 65, 1000, 300}, 1},
        {"ragged fp16", {32, 8, 256, 256}, KVD_F16, 6, {1, 63, 64, 65, 1000, 300}, 1},
        {"no GQA", {32, 32, 256, 256}, KVD_F16, 2, {515, 130}, 1},
        {"rank 208 and 192", {32, 8, 208, 192}, KVD_BF16, 3, {700, 9, 257}, 1},
        {"rank 80 and 48", {8, 4, 80, 48}, KVD_BF16, 3, {700, 9, 257}, 1},
        {"rank 128 and 256, 3 queries", {24, 8, 128, 256}, KVD_F16, 3, {500, 64, 200}, 1},
        {"rank 112 and 16, long", {16, 8, 112, 16}, KVD_BF16, 2, {4100, 3000}, 1},
        {"sharp fp16", {32, 8, 256, 256}, KVD_F16, 2, {900, 1100}, 3},
        {"long", {32, 8, 256, 256}, KVD_BF16, 1, {6000}, 1},
    };
    const int n = kvd_palu_decode_clusters();
    if (n < 0) {
        printf("skip palu: no Hopper device\n");
        return 0;
    }
    kvd_rng_seed(&rng, 1, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (argc > 1 && !strstr(all[i].name, argv[1]))
            continue;
        run(&all[i], n);
        if (i % 3 == 2)
            run(&all[i], 3);
    }
    return failures != 0;
}
