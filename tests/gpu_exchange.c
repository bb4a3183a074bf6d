/* Exchanges between two GPUs (model/cuda/sum.h): ragged pieces, to oneself too, arrive as they were, and come back the same. */
#include <string.h>

#include "common/rng.h"
#include "gpu_case.h"
#include "serving/cuda/hands.h"

enum { GPUS = 2, PIECES = 3, ROUNDS = 20, ROOM = 1 << 20 };

typedef struct {
    kvd_gpu_sum *sum;
    char *from[GPUS], *there[GPUS], *back[GPUS];
    cudaStream_t stream[GPUS];
    int round;
} both;

/* Of GPU a for GPU b. */
static size_t bytes_of(const both *x, int a, int b, int piece)
{
    return (size_t)(1 + 16 * a + 4000 * b + 37 * piece) * (size_t)(1 + x->round % 4 * 17);
}

static size_t list(const both *x, int gpu, int outgoing, char *at, kvd_gpu_piece *to)
{
    size_t n = 0;
    for (int g = 0; g < GPUS; g++)
        for (int i = 0; i < PIECES; i++) {
            const size_t bytes = outgoing ? bytes_of(x, gpu, g, i) : bytes_of(x, g, gpu, i);
            to[n++] = (kvd_gpu_piece){g, at, bytes};
            at += bytes;
        }
    return n;
}

static int there_and_back(void *ctx, int gpu, kvd_err *err)
{
    const both *const x = ctx;
    kvd_gpu_piece out[GPUS * PIECES], in[GPUS * PIECES];
    check(cudaSetDevice(gpu), "device");
    size_t n_out = list(x, gpu, 1, x->from[gpu], out), n_in = list(x, gpu, 0, x->there[gpu], in);
    if (kvd_gpu_sum_exchange(x->sum, gpu, out, n_out, in, n_in, x->stream[gpu], err))
        return -1;
    n_out = list(x, gpu, 1, x->back[gpu], out);
    return kvd_gpu_sum_exchange(x->sum, gpu, in, n_in, out, n_out, x->stream[gpu], err) ||
                   kvd_gpu_sum_wait(x->sum, gpu, x->stream[gpu], err)
               ? -1
               : 0;
}

static size_t sent(const both *x, int gpu)
{
    size_t n = 0;
    for (int g = 0; g < GPUS; g++)
        for (int i = 0; i < PIECES; i++)
            n += bytes_of(x, gpu, g, i);
    return n;
}

static int same(const both *x, char *const *what, char *const *as, int print)
{
    int equal = 1;
    char *const a = need(ROOM), *const b = need(ROOM);
    for (int g = 0; g < GPUS; g++) {
        const size_t n = sent(x, g);
        check(cudaSetDevice(g), "device");
        check(cudaMemcpy(a, what[g], n, cudaMemcpyDeviceToHost), "copy");
        check(cudaMemcpy(b, as[g], n, cudaMemcpyDeviceToHost), "copy");
        for (size_t i = 0; i < n && print; i++)
            if (a[i] != b[i]) {
                printf("# round %d, GPU %d: byte %zu of %zu\n", x->round, g, i, n);
                break;
            }
        equal = equal && !memcmp(a, b, n);
    }
    free(a);
    free(b);
    return equal;
}

int main(void)
{
    int devices = 0;
    kvd_err err = {""};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < GPUS) {
        printf("skip exchanges between GPUs: %d devices\n", devices);
        return 0;
    }
    both x = {.sum = kvd_gpu_sum_new(0, GPUS, &err)};
    kvd_hands *const hands = x.sum ? kvd_hands_new(0, GPUS, x.sum, &err) : NULL;
    int status = !hands, good = 1;
    for (int g = 0; g < GPUS; g++) {
        kvd_rng r;
        char *const host = need(ROOM);
        kvd_rng_seed(&r, 5, (uint64_t)g);
        for (size_t i = 0; i < ROOM; i++)
            host[i] = (char)kvd_rng_below(&r, 256);
        check(cudaSetDevice(g), "device");
        check(cudaStreamCreateWithFlags(&x.stream[g], cudaStreamNonBlocking), "stream");
        x.from[g] = on_device(host, ROOM);
        x.there[g] = on_device(NULL, ROOM);
        x.back[g] = on_device(NULL, ROOM);
        free(host);
    }
    for (x.round = 0; x.round < ROUNDS && !status; x.round++) {
        status = kvd_hands_run(hands, there_and_back, &x, &err);
        good = good && same(&x, x.back, x.from, 1) && !same(&x, x.there, x.from, 0);
    }
    printf("%s exchanges between GPUs: %s\n", !status && good ? "ok" : "not ok",
           status ? err.msg : "20 rounds of ragged pieces came back as they were");
    kvd_hands_free(hands);
    kvd_gpu_sum_free(x.sum);
    return status || !good;
}
