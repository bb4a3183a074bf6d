/*
 * Schedulers of prefill on the device: every query row of every (request, head) lies in exactly one tile, tiles start at
 * multiples of 64, static lists are whole, `ours` falls in cost. Also prints what the plan costs, with -t.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "kernels/cuda/prefill_plan.h"

static int failed;

static void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("not ok prefill_plan: %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static void *device(const void *from, size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    check(from ? cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0xff, bytes), "fill");
    return p;
}

static void one(const char *name, const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                kvd_schedule schedule, int n_ctas, int time_it)
{
    static const char *const schedule_name[] = {"none", "papers", "ours"};
    kvd_prefill_args a;
    memset(&a, 0, sizeof a);
    a.dtype = KVD_BF16;
    if (kvd_attn_map_make(heads, &a.map)) {
        printf("not ok prefill_plan %s: heads refused\n", name);
        exit(1);
    }
    a.batch = batch->batch;
    a.work.n_ctas = n_ctas;
    const size_t bytes = (size_t)batch->batch * sizeof(int32_t), n_max = kvd_prefill_max_tiles(&a.map, batch);
    int32_t *q_len = device(batch->q_len, bytes), *kv_len = device(batch->kv_len, bytes);
    a.q_len = q_len;
    a.kv_len = kv_len;
    kvd_prefill_tile *tile = device(NULL, n_max * sizeof *tile), *t = malloc(n_max * sizeof *t);
    int32_t *first = device(NULL, (size_t)(n_ctas + 1) * sizeof *first),
            *f = malloc((size_t)(n_ctas + 1) * sizeof *f), *next = device(NULL, sizeof *next);
    void *scratch = device(NULL, kvd_prefill_plan_bytes(&a.map, batch, n_ctas));
    check(kvd_prefill_plan(&a, batch, schedule, &kvd_prefill_cost_sm90, tile, first, next, scratch, 0),
          "plan");
    check(cudaDeviceSynchronize(), "plan kernel");
    check(cudaMemcpy(t, tile, n_max * sizeof *t, cudaMemcpyDeviceToHost), "tiles");
    size_t n = (size_t)a.work.n_tiles;
    int bad = 0;
    if (schedule != KVD_SCHEDULE_OURS) {
        check(cudaMemcpy(f, first, (size_t)(n_ctas + 1) * sizeof *f, cudaMemcpyDeviceToHost), "first");
        bad |= f[0] != 0 || (size_t)f[n_ctas] > n_max;
        for (int c = 0; c < n_ctas; c++)
            bad |= f[c] > f[c + 1];
        n = (size_t)f[n_ctas];
    } else {
        int32_t zero = -1;
        check(cudaMemcpy(&zero, next, sizeof zero, cudaMemcpyDeviceToHost), "next");
        bad |= zero != 0;
    }
    size_t longest = 0;
    for (int b = 0; b < batch->batch; b++)
        longest = (size_t)batch->q_len[b] > longest ? (size_t)batch->q_len[b] : longest;
    unsigned char *seen = calloc((size_t)batch->batch * (size_t)heads->n_heads, longest);
    for (size_t i = 0; i < n && !bad; i++) {
        bad |= t[i].request < 0 || t[i].request >= batch->batch || t[i].head < 0 ||
               t[i].head >= heads->n_heads || t[i].n_rows < 1 || t[i].n_rows > KVD_PREFILL_ROWS ||
               t[i].row < 0 || t[i].row % 64 || t[i].row + t[i].n_rows > batch->q_len[t[i].request];
        for (int r = 0; r < t[i].n_rows && !bad; r++)
            bad |= seen[((size_t)t[i].request * (size_t)heads->n_heads + (size_t)t[i].head) * longest +
                        (size_t)(t[i].row + r)]++ != 0;
    }
    for (int b = 0; b < batch->batch && !bad; b++)
        for (int h = 0; h < heads->n_heads && !bad; h++)
            for (int r = 0; r < batch->q_len[b] && !bad; r++)
                bad |= !seen[((size_t)b * (size_t)heads->n_heads + (size_t)h) * longest + (size_t)r];
    printf("%s prefill_plan %s %s, %zu tiles\n", bad ? "not ok" : "ok", name, schedule_name[schedule], n);
    failed |= bad;
    if (time_it) { /* back to back, so that the launches hide one another's gaps and the clock is up */
        enum { WARM = 300, RUNS = 200 };
        cudaEvent_t e[2];
        float ms;
        check(cudaEventCreate(&e[0]), "event");
        check(cudaEventCreate(&e[1]), "event");
        for (int i = 0; i < WARM + RUNS; i++) {
            if (i == WARM)
                check(cudaEventRecord(e[0], 0), "record");
            check(
                kvd_prefill_plan(&a, batch, schedule, &kvd_prefill_cost_sm90, tile, first, next, scratch, 0),
                "plan");
        }
        check(cudaEventRecord(e[1], 0), "record");
        check(cudaEventSynchronize(e[1]), "wait");
        check(cudaEventElapsedTime(&ms, e[0], e[1]), "elapsed");
        /* 32 layers in one launch, each into lists of its own */
        enum { LAYERS = 32 };
        const size_t each = kvd_prefill_plan_layer_bytes(),
                     sb = kvd_prefill_plan_bytes(&a.map, batch, n_ctas);
        char *host = malloc(LAYERS * each);
        kvd_prefill_tile *tiles = device(NULL, LAYERS * n_max * sizeof *tiles);
        int32_t *firsts = device(NULL, LAYERS * (size_t)(n_ctas + 1) * sizeof *firsts),
                *nexts = device(NULL, LAYERS * sizeof *nexts);
        char *scratches = device(NULL, LAYERS * sb);
        for (int l = 0; l < LAYERS; l++)
            check(kvd_prefill_plan_describe(&a, batch, schedule, &kvd_prefill_cost_sm90,
                                            tiles + (size_t)l * n_max, firsts + l * (n_ctas + 1), nexts + l,
                                            scratches + (size_t)l * sb, host + (size_t)l * each),
                  "describe");
        void *layers = device(host, LAYERS * each);
        float ms32;
        for (int i = 0; i < 2 * RUNS; i++) {
            if (i == RUNS)
                check(cudaEventRecord(e[0], 0), "record");
            check(kvd_prefill_plan_layers(layers, LAYERS, 0), "plan of layers");
        }
        check(cudaEventRecord(e[1], 0), "record");
        check(cudaEventSynchronize(e[1]), "wait");
        check(cudaEventElapsedTime(&ms32, e[0], e[1]), "elapsed");
        printf("# %s %s: plan %.1f us; %d layers in one launch %.1f us\n", name, schedule_name[schedule],
               1e3 * (double)ms / RUNS, LAYERS, 1e3 * (double)ms32 / RUNS);
        free(host);
        cudaFree(tiles);
        cudaFree(firsts);
        cudaFree(nexts);
        cudaFree(scratches);
        cudaFree(layers);
    }
    free(seen);
    free(t);
    free(f);
    cudaFree(tile);
    cudaFree(first);
    cudaFree(next);
    cudaFree(scratch);
    cudaFree(q_len);
    cudaFree(kv_len);
}

int main(int argc, char **argv)
{
    const int time_it = argc > 1 && !strcmp(argv[1], "-t");
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        puts("skip prefill_plan: no CUDA device");
        return 0;
    }
    kvd_attn_heads h = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128}, one_head = {1, 1, 64, {64}, {16}};
    const int qk[] = {80, 64, 80, 64, 48, 80, 96, 64}, v[] = {48, 64, 64, 48, 32, 80, 64, 48};
    for (int g = 0; g < 8; g++) {
        h.d_qk[g] = qk[g];
        h.d_v[g] = v[g];
    }
    kvd_attn_heads wide = h;
    for (int g = 0; g < 8; g++)
        wide.d_qk[g] = wide.d_v[g] = g % 2 ? 128 : 16;
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
    } c[] = {{"1 x 8192", &h, {1, n8k, n8k}, 132},          {"1 x 16384", &h, {1, n16k, n16k}, 132},
             {"2 x 8192", &h, {2, pair, pair}, 132},        {"wide 1 x 8192", &wide, {1, n8k, n8k}, 132},
             {"ragged", &h, {8, ragged_q, ragged_kv}, 132}, {"200 requests", &wide, {MANY, many, many}, 108},
             {"one row", &one_head, {1, tiny, tiny}, 132},  {"one SM", &one_head, {1, n8k, n8k}, 1}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int s = 0; s < 3; s++)
            one(c[i].name, c[i].heads, &c[i].batch, (kvd_schedule)s, c[i].n_ctas, time_it);
    return failed;
}
