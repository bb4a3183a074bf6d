/* usage: bench_palu [REPEATS]
 * Times Palu's decode kernel. Prints a CSV line per shape, with the shortest times that the GPU's
 * arithmetic and memory bandwidth allow. */
#include "common/stats.h"
#include "gpu_case.h"
#include "kernels/rivals/palu_decode.h"

/* BLOCK: number of random elements that are made; copies of them fill the cache */
enum { HALF = KVD_PALU_D_HEAD / 2, BLOCK = 1 << 24 };

/* throughput of one H200 (results/h200): matrix products and memory reads */
static const double gemm_flops = 790e12, bytes_per_s = 4.3e12;

static kvd_rng rng;

static uint16_t *numbers(size_t n, int dtype, double gain)
{
    uint16_t *const h = need(n * sizeof *h);
    for (size_t i = 0; i < n; i++) {
        const float x = (float)(gain * kvd_rng_normal(&rng));
        kvd_from_f32((kvd_dtype)dtype, &x, h + i, 1);
    }
    return h;
}

static void bench(const kvd_palu_shape *s, int dtype, int batch, int len, int repeats,
                  const uint16_t *random)
{
    const int max_pages = (len + 63) / 64, rows = max_pages * 64;
    const size_t pages = (size_t)batch * (size_t)max_pages,
                 cache = pages * kvd_palu_page_elements(s) * 2;
    const size_t n_q = (size_t)batch * (size_t)s->n_heads * KVD_PALU_D_HEAD;
    kvd_palu_decode_args a = {.dtype = dtype, .shape = *s, .batch = batch, .max_pages = max_pages};
    /* pages in random order, as on a server after some time */
    int32_t *kv_len = need((size_t)batch * sizeof *kv_len), *table = shuffled(&rng, (int)pages);
    float *cosine = need((size_t)rows * HALF * sizeof *cosine),
          *sine = need((size_t)rows * HALF * sizeof *sine);
    double *us = need((size_t)repeats * sizeof *us);
    for (int b = 0; b < batch; b++)
        kv_len[b] = len;
    rope_tables((size_t)rows, KVD_PALU_D_HEAD, cosine, sine);
    a.n_clusters = kvd_palu_decode_clusters();
    a.kv_len = on_device(kv_len, (size_t)batch * sizeof *kv_len);
    a.page_table = on_device(table, pages * sizeof *table);
    uint16_t *q = numbers(n_q, dtype, 1),
             *up = numbers(kvd_palu_up_elements(s), dtype, 1 / sqrt(s->rank_k));
    a.q = on_device(q, n_q * 2);
    a.up = on_device(up, kvd_palu_up_elements(s) * 2);
    a.rope_cos = on_device(cosine, (size_t)rows * HALF * sizeof *cosine);
    a.rope_sin = on_device(sine, (size_t)rows * HALF * sizeof *sine);
    char *const pool = on_device(NULL, cache);
    for (size_t done = 0; done < cache; done += 2 * (size_t)BLOCK) {
        const size_t n = cache - done < 2 * (size_t)BLOCK ? cache - done : 2 * (size_t)BLOCK;
        to_device(pool + done, random, n);
    }
    a.pool = pool;
    a.o = on_device(NULL, (size_t)batch * (size_t)s->n_heads * (size_t)s->rank_v * 2);
    a.workspace = on_device(NULL, kvd_palu_decode_workspace_bytes(s, batch, a.n_clusters));
    check(kvd_palu_decode_plan(&a, 0), "plan");

    for (int i = -5; i < repeats; i++) {
        timer_start(0);
        check(kvd_palu_decode(&a, 0), "launch");
        us[i < 0 ? 0 : i] = 1e3 * timer_ms(0);
    }
    kvd_sort(us, (size_t)repeats);
    const double tokens = (double)batch * len;
    const double flop = tokens * s->n_kv_heads * s->rank_k * 256.0;
    const double bytes = tokens * (s->n_kv_heads / 4) * (s->rank_k + s->rank_v) * 2.0;
    const double rebuild = flop / gemm_flops * 1e6, read = bytes / bytes_per_s * 1e6,
                 median = us[repeats / 2];
    printf("%s,%d,%d,%d,%d,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f,%.3f,%.1f,%.0f\n",
           kvd_dtype_name((kvd_dtype)dtype), batch, len, s->n_heads, s->n_kv_heads, s->rank_k,
           s->rank_v, median, us[repeats / 10], us[repeats * 9 / 10], rebuild, read,
           fmax(rebuild, read) / median, flop / median * 1e-6, bytes / median * 1e-3);
    fflush(stdout);

    device_free(a.kv_len, a.page_table, a.q, a.pool, a.up, a.rope_cos, a.rope_sin, a.o,
                a.workspace);
    host_free(kv_len, table, cosine, sine, us, q, up);
}

int main(int argc, char **argv)
{
    static const struct {
        kvd_palu_shape shape;
        int dtype, batch, len;
    } all[] = {
        {{32, 8, 256, 256}, KVD_BF16, 64, 8192},  {{32, 8, 208, 208}, KVD_BF16, 64, 8192},
        {{32, 8, 192, 192}, KVD_BF16, 64, 8192},  {{32, 8, 256, 256}, KVD_F16, 64, 8192},
        {{32, 8, 256, 256}, KVD_BF16, 16, 32768}, {{32, 8, 256, 256}, KVD_BF16, 1, 65536},
        {{32, 8, 256, 256}, KVD_BF16, 1, 131072}, {{32, 8, 208, 208}, KVD_BF16, 1, 131072},
        {{32, 32, 256, 256}, KVD_F16, 1, 4096},   {{32, 32, 256, 256}, KVD_F16, 1, 16384},
        {{32, 32, 256, 256}, KVD_F16, 1, 65536},  {{32, 32, 256, 256}, KVD_F16, 1, 131072},
        {{32, 32, 208, 208}, KVD_F16, 1, 65536},
    };
    const int repeats = argc > 1 ? atoi(argv[1]) : 50;
    if (argc > 2 || repeats < 10) {
        fprintf(stderr, "usage: bench_palu [REPEATS >= 10]\n");
        return 2;
    }
    if (kvd_palu_decode_clusters() < 0) {
        printf("skip bench_palu: no Hopper device\n");
        return 0;
    }
    kvd_rng_seed(&rng, 1, 0);
    uint16_t *random = numbers(BLOCK, KVD_BF16, 1);
    printf(
        "dtype,batch,tokens,n_heads,n_kv_heads,rank_k,rank_v,median_us,p10_us,p90_us,rebuild_floor_us,"
        "bytes_floor_us,"
        "floor_share,tflops,gb_per_s\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (i > 0 && all[i].dtype != all[i - 1].dtype) {
            free(random);
            random = numbers(BLOCK, all[i].dtype, 1);
        }
        bench(&all[i].shape, all[i].dtype, all[i].batch, all[i].len, repeats, random);
    }
    free(random);
    return 0;
}
