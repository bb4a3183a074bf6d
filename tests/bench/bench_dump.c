/* usage: bench_dump FOLDER [MB]
 * Times writing and reading kvdim's files of Q, K and V, against plain write(2) and read(2) of as
 * many bytes. Reads come from the page cache. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collect/dump.h"
#include "common/clock.h"
#include "common/rng.h"
#include "common/run.h"
#include "common/stats.h"
#include "model/model_info.h"

enum { BATCH = 2048, REPEATS = 5, LAYERS = 8, HEADS = 4, KV_HEADS = 2, D = 128, PIECE = 1 << 20 };

typedef struct {
    const char *dump, *plain;
    kvd_run run;
    float *q, *k, *v; /* Q, K and V of one batch */
    kvd_dtype dtype;
    size_t n_tokens;
    size_t bytes; /* bytes of Q, K and V in the file */
    /* PIECE bytes, not all 0; write(2) writes them again and again, to compare its speed with the
     * speed of writing kvdim's files */
    char *piece;
    float *rows;
    void *scratch;
} bench;

static double median(double *x)
{
    kvd_sort(x, REPEATS);
    return x[REPEATS / 2];
}

static float *some_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    kvd_rng rng;
    kvd_rng_seed(&rng, 1, n);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)kvd_rng_uniform(&rng) - 0.5f;
    return x;
}

static int put_tokens(const bench *b, kvd_activations *a, kvd_err *err)
{
    static uint32_t id[BATCH], sequence[BATCH], position[BATCH];
    int status = 0;
    for (size_t first = 0; first < b->n_tokens && !status; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            sequence[i] = (uint32_t)(first / BATCH);
            position[i] = i;
        }
        status = kvd_activations_put_tokens(a, first, BATCH, id, sequence, position, err);
    }
    return status;
}

static int write_dump(bench *b, bool to_disk, double *seconds, kvd_err *err)
{
    static const kvd_config config = {.n_layers = LAYERS,
                                      .n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .d_head = D,
                                      .d_model = 1,
                                      .vocab_size = 1,
                                      .max_positions = BATCH,
                                      .rope_theta = 1};
    kvd_activations a = {.n_tokens = b->n_tokens,
                         .n_sequences = b->n_tokens / BATCH,
                         .seq_len = BATCH,
                         .n_layers = LAYERS,
                         .dtype = b->dtype};
    kvd_dump dump = {0};
    int status = -1;
    const double start = kvd_clock_s();
    kvd_model_info_set(&a.model, &config, "bench", "xxh3:0", "f32");
    if (kvd_activations_create(&a, b->dump, &b->run, false, err) || kvd_dump_init(&dump, &a, err))
        goto done;
    if (to_disk && kvd_h5_sync(&a.file, err))
        goto done;
    for (; dump.first_token < b->n_tokens; dump.first_token += BATCH)
        for (int l = 0; l < LAYERS; l++) {
            const kvd_attention_in in = {
                .config = &config, .layer = l, .n_tokens = BATCH, .q = b->q, .k = b->k, .v = b->v};
            if (kvd_dump_record(&dump, &in, err))
                goto done;
        }
    if (to_disk && (put_tokens(b, &a, err) || kvd_activations_finish(&a, err)))
        goto done;
    if (!to_disk)
        kvd_activations_abandon(&a, true);
    *seconds = kvd_clock_s() - start;
    status = 0;
done:
    kvd_dump_release(&dump);
    kvd_activations_abandon(&a, true);
    return status;
}

static int write_plain(bench *b, bool to_disk, double *seconds, kvd_err *err)
{
    const double start = kvd_clock_s();
    const int fd = open(b->plain, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return kvd_fail_errno(err, "cannot create '%s'", b->plain);
    for (size_t left = b->bytes; left;) {
        const ssize_t n = write(fd, b->piece, left < PIECE ? left : PIECE);
        if (n < 0) {
            close(fd);
            return kvd_fail_errno(err, "cannot write '%s'", b->plain);
        }
        left -= (size_t)n;
    }
    const int failed = to_disk && fsync(fd);
    if (close(fd) || failed)
        return kvd_fail_errno(err, "cannot write '%s'", b->plain);
    *seconds = kvd_clock_s() - start;
    return 0;
}

static int read_dump(bench *b, double *seconds, kvd_err *err)
{
    enum { ROWS = 4096 }; /* rows that kvdim-spectrum reads at once */
    kvd_activations a;
    if (kvd_activations_open(&a, b->dump, err))
        return -1;
    const double start = kvd_clock_s();
    int status = 0;
    for (int x = KVD_X_Q; x <= KVD_X_V; x++)
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < kvd_activations_heads(&a, (kvd_x)x); h++)
                for (size_t first = 0; first < a.n_tokens && !status; first += ROWS) {
                    const size_t n = a.n_tokens - first < ROWS ? a.n_tokens - first : ROWS;
                    status = kvd_activations_rows(&a, (kvd_x)x, l, h, first, n, b->rows, b->scratch,
                                                  err);
                }
    *seconds = kvd_clock_s() - start;
    kvd_activations_close(&a);
    return status;
}

static int read_plain(bench *b, double *seconds, kvd_err *err)
{
    const double start = kvd_clock_s();
    const int fd = open(b->plain, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0)
        n = read(fd, b->scratch, PIECE);
    if (n < 0)
        kvd_fail_errno(err, "cannot read '%s'", b->plain);
    if (fd >= 0)
        close(fd);
    *seconds = kvd_clock_s() - start;
    return n < 0 ? -1 : 0;
}

enum { WRITE, WRITE_PLAIN, SYNC, SYNC_PLAIN, READ, READ_PLAIN, N_TIMES };

static int once(bench *b, double t[N_TIMES], kvd_err *err)
{
    char partial[4200];
    snprintf(partial, sizeof partial, "%s.partial", b->dump);
    unlink(b->dump);
    unlink(b->plain);
    if (write_dump(b, false, &t[WRITE], err))
        return -1;
    unlink(partial);
    if (write_plain(b, false, &t[WRITE_PLAIN], err))
        return -1;
    unlink(b->plain);
    sync(); /* pending data must not be part of the next measurement */
    if (write_dump(b, true, &t[SYNC], err) || write_plain(b, true, &t[SYNC_PLAIN], err))
        return -1;
    return read_dump(b, &t[READ], err) || read_plain(b, &t[READ_PLAIN], err) ? -1 : 0;
}

static int measure(bench *b, kvd_err *err)
{
    static const char *const what[] = {"write", "write and fsync", "read"};
    double t[N_TIMES], all[N_TIMES][REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        if (once(b, t, err))
            return -1;
        for (int i = 0; i < N_TIMES && r >= 0; i++)
            all[i][r] = t[i];
    }
    const double gb = (double)b->bytes / 1e9;
    for (int i = 0; i < N_TIMES; i += 2) {
        const double own = median(all[i]), plain = median(all[i + 1]);
        printf(
            "%s %s, %.0f MB: %.2f GB/s (%.2f to %.2f), plain %.2f GB/s (%.2f to %.2f), ratio %.2f\n",
            what[i / 2], kvd_dtype_name(b->dtype), 1e3 * gb, gb / own, gb / all[i][REPEATS - 1],
            gb / all[i][0], gb / plain, gb / all[i + 1][REPEATS - 1], gb / all[i + 1][0],
            plain / own);
    }
    return 0;
}

int main(int argc, char **argv)
{
    kvd_common_options options = {.seed = 1};
    kvd_err err = {""};
    char dump[4096], plain[4096];
    const size_t mb = argc > 2 ? strtoul(argv[2], NULL, 10) : 384;
    if (argc < 2 || argc > 3 || mb < 1 || mb > 1 << 20) {
        fprintf(stderr, "usage: bench_dump FOLDER [MB]\n");
        return 2;
    }
    snprintf(dump, sizeof dump, "%.4000s/bench-dump.h5", argv[1]);
    snprintf(plain, sizeof plain, "%.4000s/bench-dump.raw", argv[1]);
    bench b = {.dump = dump, .plain = plain};
    int status = kvd_run_start(&b.run, "bench_dump", argc, argv, &options, &err);
    b.q = some_floats((size_t)BATCH * HEADS * D);
    b.k = some_floats((size_t)BATCH * KV_HEADS * D);
    b.v = some_floats((size_t)BATCH * KV_HEADS * D);
    b.piece = (char *)some_floats(PIECE / sizeof(float));
    b.rows = malloc((size_t)8192 * D * sizeof(float));
    b.scratch =
        malloc((size_t)8192 * D * sizeof(float) > PIECE ? (size_t)8192 * D * sizeof(float) : PIECE);
    if (!status && (!b.q || !b.k || !b.v || !b.piece || !b.rows || !b.scratch))
        status = kvd_no_memory(&err, "a batch", PIECE);
    printf(
        "%d layers, %d heads, %d KV heads, d_head %d, batches of %d tokens, %d threads, median of %d\n",
        (int)LAYERS, (int)HEADS, (int)KV_HEADS, (int)D, (int)BATCH, b.run.threads, (int)REPEATS);
    for (kvd_dtype t = KVD_F32; t <= KVD_BF16 && !status; t++) {
        const size_t per_token = LAYERS * (HEADS + 2 * KV_HEADS) * D * kvd_dtype_bytes(t);
        b.dtype = t;
        b.n_tokens = (mb * 1000000 / per_token + BATCH - 1) / BATCH * BATCH;
        b.bytes = b.n_tokens * per_token;
        status = measure(&b, &err);
    }
    unlink(dump);
    unlink(plain);
    free(b.q);
    free(b.k);
    free(b.v);
    free(b.piece);
    free(b.rows);
    free(b.scratch);
    kvd_run_release(&b.run);
    return kvd_run_exit("bench_dump", status, &err);
}
