/* usage: bench_gpu_dump FOLDER [GB]
 * Measures the seconds to write Q, K and V of Llama 3.1 8B from the GPU to a file, and the seconds
 * to write and fsync as many bytes from memory. GB: gigabytes to write, 6.4 by default. */
#include <fcntl.h>
#include <unistd.h>

#include "collect/cuda/dump.h"
#include "common/clock.h"
#include "common/run.h"
#include "common/stats.h"
#include "gpu_case.h"
#include "model/model_info.h"

enum { BATCH = 16384, REPEATS = 3, HEADS = 32, KV_HEADS = 8, D = 128, PIECE = 1 << 20 };
enum { ROW = (HEADS + 2 * KV_HEADS) * D };

typedef struct {
    char dump[300], plain[300];
    kvd_run run;
    int n_layers;
    size_t n_tokens, bytes;
    void *qkv;
    char *piece;
    /* seconds in which threads wrote to the file, summed over the threads */
    double written_s;
} bench;

static int write_dump(bench *b, double *seconds, kvd_err *err)
{
    const kvd_config config = {.n_layers = b->n_layers,
                               .n_heads = HEADS,
                               .n_kv_heads = KV_HEADS,
                               .d_head = D,
                               .d_model = 1,
                               .vocab_size = 1,
                               .max_positions = BATCH,
                               .rope_theta = 1};
    const kvd_gpu_share share = {.count = 1, .n_heads = HEADS, .n_kv_heads = KV_HEADS};
    kvd_activations a = {.n_tokens = b->n_tokens,
                         .n_sequences = b->n_tokens / BATCH,
                         .seq_len = BATCH,
                         .n_layers = b->n_layers,
                         .dtype = KVD_BF16};
    kvd_gpu_dump *dump = NULL;
    int status = -1;
    unlink(b->dump);
    const double start = kvd_clock_s();
    kvd_model_info_set(&a.model, &config, "bench", "xxh3:0", "bf16");
    if (kvd_activations_create(&a, b->dump, &b->run, false, err) || kvd_h5_sync(&a.file, err) ||
        !(dump = kvd_gpu_dump_new(&a, &share, BATCH, err)))
        goto done;
    const char *q = b->qkv;
    for (size_t first = 0; first < b->n_tokens; first += BATCH)
        for (int l = 0; l < b->n_layers; l++) {
            const kvd_gpu_attention_in in = {.share = &share,
                                             .layer = l,
                                             .n_tokens = BATCH,
                                             .type = KVD_BF16,
                                             .q = q,
                                             .k = q + HEADS * D * 2,
                                             .v = q + (HEADS + KV_HEADS) * D * 2,
                                             .ld = ROW};
            if (kvd_gpu_dump_add(dump, &in, first, err))
                goto done;
        }
    if (kvd_gpu_dump_flush(dump, err))
        goto done;
    b->written_s = kvd_gpu_dump_time(dump).write;
    if (kvd_activations_finish(&a, err))
        goto done;
    *seconds = kvd_clock_s() - start;
    status = 0;
done:
    kvd_gpu_dump_free(dump);
    kvd_activations_abandon(&a, false);
    return status;
}

static int write_plain(const bench *b, double *seconds, kvd_err *err)
{
    unlink(b->plain);
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
    const int failed = fsync(fd);
    if (close(fd) || failed)
        return kvd_fail_errno(err, "cannot write '%s'", b->plain);
    *seconds = kvd_clock_s() - start;
    unlink(b->plain);
    return 0;
}

static int measure(bench *b, kvd_err *err)
{
    double dump[REPEATS], plain[REPEATS], written = 0, t = 0, u = 0;
    for (int r = -1; r < REPEATS; r++) {
        if (write_dump(b, &t, err) || unlink(b->dump))
            return -1;
        sync();
        if (write_plain(b, &u, err))
            return -1;
        sync();
        if (r >= 0) {
            dump[r] = t;
            plain[r] = u;
            written += b->written_s / REPEATS;
        }
    }
    kvd_sort(dump, REPEATS);
    kvd_sort(plain, REPEATS);
    const double gb = (double)b->bytes / 1e9, own = dump[REPEATS / 2], theirs = plain[REPEATS / 2];
    printf(
        "dump from the device, %.1f GB: %.2f GB/s (%.2f to %.2f), plain write and fsync %.2f GB/s (%.2f "
        "to %.2f), ratio "
        "%.2f; a thread at %.2f GB/s\n",
        gb, gb / own, gb / dump[REPEATS - 1], gb / dump[0], gb / theirs, gb / plain[REPEATS - 1],
        gb / plain[0], theirs / own, gb / written);
    return 0;
}

int main(int argc, char **argv)
{
    kvd_common_options options = {.seed = 1};
    kvd_err err = {""};
    bench b = {.n_layers = 32};
    const double gb = argc > 2 ? strtod(argv[2], NULL) : 6.4;
    if (argc < 2 || argc > 3 || !(gb >= 0.2 && gb <= 1000)) {
        fprintf(stderr, "usage: bench_gpu_dump FOLDER [GB]\n");
        return 2;
    }
    if (!gpu_devices("dump from the device", 1))
        return 0;
    snprintf(b.dump, sizeof b.dump, "%.250s/bench-gpu-dump.h5", argv[1]);
    snprintf(b.plain, sizeof b.plain, "%.250s/bench-gpu-dump.raw", argv[1]);
    int status = kvd_run_start(&b.run, "bench_gpu_dump", argc, argv, &options, &err);
    const double per_batch = 2.0 * ROW * BATCH * b.n_layers;
    const size_t batches = gb * 1e9 >= per_batch ? (size_t)(gb * 1e9 / per_batch) : 1;
    if (gb * 1e9 < per_batch)
        b.n_layers =
            gb * 1e9 / per_batch * b.n_layers < 1 ? 1 : (int)(gb * 1e9 / per_batch * b.n_layers);
    b.n_tokens = batches * BATCH;
    b.bytes = b.n_tokens * ROW * 2 * (size_t)b.n_layers;
    uint16_t *host = need((size_t)ROW * BATCH * 2);
    uint32_t x = 1;
    for (size_t i = 0; i < (size_t)ROW * BATCH; i++) {
        x = x * 1664525u + 1013904223u;
        host[i] = (uint16_t)(0x3f80 | x >> 25); /* bf16 numbers from 1 to 2 */
    }
    b.qkv = on_device(host, (size_t)ROW * BATCH * 2);
    b.piece = (char *)host;
    if (!status)
        status = measure(&b, &err);
    unlink(b.dump);
    unlink(b.plain);
    free(host);
    check(cudaFree(b.qkv), "cudaFree");
    kvd_run_release(&b.run);
    return kvd_run_exit("bench_gpu_dump", status, &err);
}
