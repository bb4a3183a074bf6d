/* usage: bench_forward MODEL [SEQ_LEN]
 * Times the CPU's forward pass on 4096 random tokens, then only its matrix products. */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/blas.h"
#include "common/clock.h"
#include "common/stats.h"
#include "common/threads.h"
#include "model/pass/blocks.h"
#include "model/pass/forward.h"

enum { BATCH = 4096, REPEATS = 5 };

static double median(double *x)
{
    kvd_sort(x, REPEATS);
    return x[REPEATS / 2];
}

static float *some_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x) {
        fprintf(stderr, "bench_forward: cannot allocate %zu floats\n", n);
        exit(1);
    }
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i * 2654435761u) % 1000) / 1000.0f - 0.5f;
    return x;
}

typedef struct {
    const kvd_config *c;
    size_t n, seq_len;
    float *x, *w, *y, *q, *k, *scores;
} bare;

static void product(const bare *b, int in, int out)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)b->n, out, in, 1.0f, b->x, in, b->w,
                in, 0.0f, b->y, out);
}

static void bare_attention(const bare *b)
{
    const size_t d = (size_t)b->c->d_head, heads = (size_t)b->c->n_heads,
                 kv = (size_t)b->c->n_kv_heads;
    const size_t tall = KVD_ATTEND_ROWS, blocks = (b->seq_len + tall - 1) / tall;
    const size_t ldq = heads * d, ldk = kv * d;
    const int saved = kvd_blas_serial();
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (size_t s = 0; s < b->n / b->seq_len; s++)
        for (size_t block = 0; block < blocks; block++)
            for (size_t h = 0; h < heads; h++) {
                const size_t first = (blocks - 1 - block) * tall, at = s * b->seq_len;
                const size_t rows = b->seq_len - first < tall ? b->seq_len - first : tall;
                float *scores = b->scores + kvd_thread_index() * tall * b->seq_len;
                const float *k = b->k + at * ldk + h / (heads / kv) * d;
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)(first + rows),
                            (int)d, 1.0f, b->q + (at + first) * ldq + h * d, (int)ldq, k, (int)ldk,
                            0.0f, scores, (int)(first + rows));
                cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)d,
                            (int)(first + rows), 1.0f, scores, (int)(first + rows), k, (int)ldk,
                            0.0f, b->y + (at + first) * ldq + h * d, (int)ldq);
            }
    kvd_blas_restore(saved);
}

static void bare_run(const bare *b)
{
    const kvd_config *c = b->c;
    const int q = c->n_heads * c->d_head, k = c->n_kv_heads * c->d_head;
    for (int l = 0; l < c->n_layers; l++) {
        product(b, c->d_model, q);
        product(b, c->d_model, k);
        product(b, c->d_model, k);
        bare_attention(b);
        product(b, q, c->d_model);
        product(b, c->d_model, c->d_ffn);
        product(b, c->d_model, c->d_ffn);
        product(b, c->d_ffn, c->d_model);
    }
}

static int bench(const char *path, size_t seq_len, kvd_err *err)
{
    const int threads = (int)kvd_thread_count();
    openblas_set_num_threads(threads);
    kvd_checkpoint *checkpoint = kvd_checkpoint_open(path, err);
    if (!checkpoint)
        return -1;
    const kvd_config *c = kvd_checkpoint_config(checkpoint);
    const size_t n_sequences = seq_len < BATCH ? BATCH / seq_len : 1, n = n_sequences * seq_len;
    kvd_forward *f = kvd_forward_new(checkpoint, n, seq_len, err);
    if (!f) {
        kvd_checkpoint_close(checkpoint);
        return -1;
    }

    uint32_t *id = malloc(n * sizeof *id);
    size_t *offset = malloc((n_sequences + 1) * sizeof *offset);
    float *hidden = some_floats(n * (size_t)c->d_model);
    int status = -1;
    const size_t q = (size_t)c->n_heads * (size_t)c->d_head,
                 k = (size_t)c->n_kv_heads * (size_t)c->d_head;
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn;
    const size_t in = d > ffn ? (d > q ? d : q) : (ffn > q ? ffn : q);
    const bare b = {.c = c,
                    .n = n,
                    .seq_len = seq_len,
                    .x = some_floats(n * in),
                    .w = some_floats(d * in),
                    .y = some_floats(n * in),
                    .q = some_floats(n * q),
                    .k = some_floats(n * k),
                    .scores = some_floats((size_t)threads * KVD_ATTEND_ROWS * seq_len)};
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    if (!id || !offset) {
        kvd_no_memory(err, "a batch", n * sizeof *id);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)((i * 2654435761u) % (size_t)c->vocab_size);
    for (size_t s = 0; s <= n_sequences; s++)
        offset[s] = s * seq_len;
    const kvd_batch batch = {.n_sequences = n_sequences, .offset = offset, .id = id};

    double own[REPEATS], plain[REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        const double t0 = kvd_clock_s();
        if (kvd_forward_run(f, &batch, &dense.hook, -1, hidden, err))
            goto done;
        const double t1 = kvd_clock_s();
        bare_run(&b);
        const double t2 = kvd_clock_s();
        if (r >= 0) {
            own[r] = t1 - t0;
            plain[r] = t2 - t1;
        }
    }
    const double flop = (double)n * kvd_forward_flop_per_token(c, (double)seq_len);
    const double t_own = median(own), t_plain = median(plain);
    printf(
        "forward without head, seq_len %zu, batch %zu tokens, %d threads: %.0f tokens/s, %.1f GFLOP/s in "
        "matrix "
        "products (median of %d, %.0f to %.0f tokens/s)\n",
        seq_len, n, threads, (double)n / t_own, flop / t_own / 1e9, REPEATS,
        (double)n / own[REPEATS - 1], (double)n / own[0]);
    printf("the same products bare through cblas_sgemm: %.1f GFLOP/s (median of %d)\n",
           flop / t_plain / 1e9, REPEATS);
    printf("ratio: %.2f\n", t_plain / t_own);
    status = 0;
done:
    kvd_dense_attention_release(&dense);
    free(b.x);
    free(b.w);
    free(b.y);
    free(b.q);
    free(b.k);
    free(b.scores);
    free(hidden);
    free(id);
    free(offset);
    kvd_forward_free(f);
    kvd_checkpoint_close(checkpoint);
    return status;
}

int main(int argc, char **argv)
{
    kvd_blas_choose_core(argv);
    kvd_err err = {""};
    const size_t seq_len = argc > 2 ? strtoul(argv[2], NULL, 10) : 512;
    if (argc < 2 || argc > 3 || seq_len == 0) {
        fprintf(stderr, "usage: bench_forward MODEL [SEQ_LEN]\n");
        return 2;
    }
    if (bench(argv[1], seq_len, &err)) {
        fprintf(stderr, "bench_forward: %s\n", err.msg);
        return 1;
    }
    return 0;
}
