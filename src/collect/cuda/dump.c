#include "collect/cuda/dump.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "collect/cuda/slabs.h"
#include "common/clock.h"

/* number of buffers, bytes of each, and number of writer threads: while one thread waits for the
 * disk, another works */
enum { BUFFERS = 5, BUFFER_BYTES = 64 << 20, WRITERS = 2 };

typedef struct {
    /* device memory, and its copy on the host: first Q, K and V in the file's number type, then, at
     * byte bad_at, a description of the first value that is not finite */
    void *device, *host;
    /* CUDA events: before waiting for a free buffer (asked), before and after Q, K and V are
     * transposed into it (begin, made), and after its copy to the host (copied) */
    cudaEvent_t asked, begin, made, copied;
    int layer;
    size_t first_token, n_rows;
} buffer;

typedef struct {
    int at[BUFFERS], first, n;
} queue;

struct kvd_gpu_dump {
    kvd_activations *file;
    kvd_gpu_share share;
    kvd_device_memory memory;
    int device;
    size_t piece; /* number of tokens that fit into a buffer */
    size_t bad_at;
    int n_parts, n_heads[KVD_SLAB_PARTS], first_head[KVD_SLAB_PARTS];
    cudaStream_t copies;
    /* CUDA event that marks when the wait for a free buffer begins */
    cudaEvent_t asked;
    buffer buffer[BUFFERS];
    pthread_t writer[WRITERS];
    int n_writers;
    pthread_mutex_t lock; /* protects the fields after it */
    pthread_cond_t changed;
    queue idle, full;
    bool stop, failed;
    kvd_err err; /* first error of a writer thread */
    kvd_gpu_dump_times times;
};

static void push(queue *q, int i)
{
    q->at[(q->first + q->n++) % BUFFERS] = i;
}

static int pop(queue *q)
{
    const int i = q->at[q->first];
    q->first = (q->first + 1) % BUFFERS;
    q->n--;
    return i;
}

static int blame(const kvd_gpu_dump *d, const buffer *b, const kvd_slab_bad *bad, kvd_err *err)
{
    const int x = (int)bad->part, h = d->first_head[x] + (int)bad->head;
    const size_t token = b->first_token + bad->row, dim = bad->dim;
    if (!isfinite(bad->value))
        return kvd_fail(err, "layer %d head %d token %zu dim %zu: %s is not finite", b->layer, h,
                        token, dim, kvd_x_name[x]);
    return kvd_fail(
        err, "layer %d head %d token %zu dim %zu: %s is %g, which overflows %s; use --dtype %s",
        b->layer, h, token, dim, kvd_x_name[x], (double)bad->value, kvd_dtype_name(d->file->dtype),
        d->file->dtype == KVD_F16 ? "bf16 or f32" : "f32");
}

static int write_buffer(kvd_gpu_dump *d, const buffer *b, kvd_err *err)
{
    const char *slab = b->host;
    const size_t bytes =
        b->n_rows * (size_t)d->file->model.d_head * kvd_dtype_bytes(d->file->dtype);
    const kvd_slab_bad *bad = (const kvd_slab_bad *)(slab + d->bad_at);
    if (bad->found != UINT64_MAX)
        return blame(d, b, bad, err);
    for (int x = 0; x < d->n_parts; x++)
        for (int h = 0; h < d->n_heads[x]; h++, slab += bytes)
            if (kvd_activations_put_rows(d->file, (kvd_x)x, b->layer - d->file->first_layer,
                                         d->first_head[x] + h, b->first_token, b->n_rows, slab,
                                         err))
                return -1;
    /* Asks the operating system to start writing to disk, without waiting for it. */
    (void)sync_file_range(d->file->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return 0;
}

static double between(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0;
    return cudaEventElapsedTime(&ms, from, to) ? 0 : 1e-3 * (double)ms;
}

/* Thread that writes full buffers to the file, or discards them after an error. */
static void *write_all(void *ctx)
{
    kvd_gpu_dump *d = ctx;
    kvd_err err = {""};
    int status = kvd_cuda_check(cudaSetDevice(d->device), "the dump", &err);
    (void)pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->full.n && !d->stop)
            (void)pthread_cond_wait(&d->changed, &d->lock);
        if (d->stop)
            break;
        const int i = pop(&d->full);
        const bool skip = d->failed;
        (void)pthread_mutex_unlock(&d->lock);
        /* Waits until the GPU has copied the buffer to host memory. */
        if (!status)
            status = kvd_cuda_check(cudaEventSynchronize(d->buffer[i].copied), "the dump", &err);
        const double start = kvd_clock_s();
        if (!status && !skip)
            status = write_buffer(d, &d->buffer[i], &err);
        (void)pthread_mutex_lock(&d->lock);
        d->times.write += kvd_clock_s() - start;
        d->times.wait += status ? 0 : between(d->buffer[i].asked, d->buffer[i].begin);
        d->times.convert += status ? 0 : between(d->buffer[i].begin, d->buffer[i].made);
        if (status && !d->failed) {
            d->failed = true;
            d->err = err;
        }
        push(&d->idle, i);
        (void)pthread_cond_broadcast(&d->changed);
    }
    (void)pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Waits for n free buffers. The caller holds the lock of *d. */
static int wait_for(kvd_gpu_dump *d, int n, kvd_err *err)
{
    while (d->idle.n < n && !d->failed)
        (void)pthread_cond_wait(&d->changed, &d->lock);
    if (d->failed)
        *err = d->err;
    return d->failed ? -1 : 0;
}

static int fill(kvd_gpu_dump *d, buffer *b, const kvd_gpu_attention_in *in, size_t first,
                kvd_err *err)
{
    const void *const from[KVD_N_X] = {in->q, in->k, in->v, in->q_pre, in->k_pre};
    const size_t width = (size_t)d->file->model.d_head;
    size_t rows = 0;
    kvd_slab_args a = {.from = in->type,
                       .to = d->file->dtype,
                       .d = d->file->model.d_head,
                       .n_parts = d->n_parts,
                       .n_rows = b->n_rows,
                       .slabs = b->device,
                       .bad = (kvd_slab_bad *)((char *)b->device + d->bad_at)};
    for (int x = 0; x < d->n_parts; x++) {
        const size_t ld = x <= KVD_X_V ? in->ld : in->ld_pre;
        a.part[x].x = (const char *)from[x] + first * ld * kvd_dtype_bytes(in->type);
        a.part[x].ld = ld;
        a.part[x].n_heads = d->n_heads[x];
        rows += (size_t)d->n_heads[x] * b->n_rows;
    }
    const cudaError_t e[] = {cudaEventRecord(b->begin, in->stream),
                             kvd_make_slabs(&a, in->stream),
                             cudaEventRecord(b->made, in->stream),
                             cudaStreamWaitEvent(d->copies, b->made, 0),
                             cudaMemcpyAsync(b->host, b->device,
                                             rows * width * kvd_dtype_bytes(a.to),
                                             cudaMemcpyDeviceToHost, d->copies),
                             cudaMemcpyAsync((char *)b->host + d->bad_at, a.bad, sizeof *a.bad,
                                             cudaMemcpyDeviceToHost, d->copies),
                             cudaEventRecord(b->copied, d->copies)};
    for (size_t i = 0; i < sizeof e / sizeof *e; i++)
        if (kvd_cuda_check(e[i], "the dump", err))
            return -1;
    return 0;
}

int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err)
{
    const kvd_activations *a = d->file;
    if (in->layer < a->first_layer || in->layer >= a->first_layer + a->n_layers)
        return 0;
    for (size_t first = 0; first < in->n_tokens; first += d->piece) {
        if (kvd_cuda_check(cudaEventRecord(d->asked, in->stream), "the dump", err))
            return -1;
        (void)pthread_mutex_lock(&d->lock);
        int status = wait_for(d, 1, err);
        const int i = status ? 0 : pop(&d->idle);
        (void)pthread_mutex_unlock(&d->lock);
        if (status)
            return -1;
        buffer *b = &d->buffer[i];
        cudaEvent_t free_again = b->asked;
        b->asked = d->asked;
        d->asked = free_again;
        b->layer = in->layer;
        b->first_token = first_token + first;
        b->n_rows = in->n_tokens - first < d->piece ? in->n_tokens - first : d->piece;
        status = fill(d, b, in, first, err);
        (void)pthread_mutex_lock(&d->lock);
        if (status && !d->failed) {
            d->failed = true;
            d->err = *err;
        }
        push(status ? &d->idle : &d->full, i);
        (void)pthread_cond_broadcast(&d->changed);
        (void)pthread_mutex_unlock(&d->lock);
        if (status)
            return -1;
    }
    return 0;
}

int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err)
{
    (void)pthread_mutex_lock(&d->lock);
    const int status = wait_for(d, BUFFERS, err);
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d)
{
    (void)pthread_mutex_lock(&d->lock);
    const kvd_gpu_dump_times t = d->times;
    (void)pthread_mutex_unlock(&d->lock);
    return t;
}

static int part_heads(const kvd_activations *file, const kvd_gpu_share *share, kvd_x x)
{
    if (!file->has_pre && x > KVD_X_V)
        return 0;
    return x == KVD_X_Q || x == KVD_X_Q_PRE ? share->n_heads : share->n_kv_heads;
}

static size_t row_bytes(const kvd_activations *file, const kvd_gpu_share *share)
{
    size_t heads = 0;
    for (int x = 0; x < KVD_N_X; x++)
        heads += (size_t)part_heads(file, share, (kvd_x)x);
    return heads * (size_t)file->model.d_head * kvd_dtype_bytes(file->dtype);
}

static size_t piece_rows(const kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens)
{
    const size_t fit = BUFFER_BYTES / row_bytes(file, share);
    return fit < 1 ? 1 : fit < max_tokens ? fit : max_tokens;
}

static size_t slab_bytes(const kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens)
{
    const size_t n = row_bytes(file, share) * piece_rows(file, share, max_tokens);
    return (n + 255) / 256 * 256;
}

size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens)
{
    return BUFFERS * (slab_bytes(file, share, max_tokens) + sizeof(kvd_slab_bad));
}

static int make_buffers(kvd_gpu_dump *d, kvd_err *err)
{
    const size_t bytes = d->bad_at + sizeof(kvd_slab_bad);
    for (int i = 0; i < BUFFERS; i++) {
        buffer *b = &d->buffer[i];
        if (!(b->device = kvd_device_new(&d->memory, bytes, "the dump", err)))
            return -1;
        if (cudaMallocHost(&b->host, bytes)) {
            (void)cudaGetLastError();
            b->host = NULL;
            return kvd_fail(err, "the dump: no %zu bytes of pinned memory", bytes);
        }
        if (kvd_cuda_check(cudaEventCreate(&b->asked), "the dump", err) ||
            kvd_cuda_check(cudaEventCreate(&b->begin), "the dump", err) ||
            kvd_cuda_check(cudaEventCreate(&b->made), "the dump", err) ||
            kvd_cuda_check(cudaEventCreateWithFlags(&b->copied,
                                                    cudaEventDisableTiming | cudaEventBlockingSync),
                           "the dump", err))
            return -1;
        push(&d->idle, i);
    }
    if (kvd_cuda_check(cudaEventCreate(&d->asked), "the dump", err))
        return -1;
    return kvd_cuda_check(cudaStreamCreateWithFlags(&d->copies, cudaStreamNonBlocking), "the dump",
                          err);
}

kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err)
{
    kvd_gpu_dump *d = kvd_new(1, sizeof *d, "the dump", err);
    if (!d)
        return NULL;
    d->file = file;
    d->share = *share;
    d->piece = piece_rows(file, share, max_tokens);
    d->bad_at = slab_bytes(file, share, max_tokens);
    d->n_parts = file->has_pre ? KVD_N_X : KVD_X_V + 1;
    for (int x = 0; x < d->n_parts; x++) {
        d->n_heads[x] = part_heads(file, share, (kvd_x)x);
        d->first_head[x] =
            x == KVD_X_Q || x == KVD_X_Q_PRE ? share->first_head : share->first_kv_head;
    }
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->changed, NULL);
    int status =
        kvd_cuda_check(cudaGetDevice(&d->device), "the dump", err) || make_buffers(d, err) ? -1 : 0;
    for (; !status && d->n_writers < WRITERS; d->n_writers++)
        if (pthread_create(&d->writer[d->n_writers], NULL, write_all, d)) {
            status = kvd_fail(err, "the dump: no thread");
            break;
        }
    if (status) {
        kvd_gpu_dump_free(d);
        return NULL;
    }
    return d;
}

void kvd_gpu_dump_free(kvd_gpu_dump *d)
{
    if (!d)
        return;
    (void)pthread_mutex_lock(&d->lock);
    d->stop = true;
    (void)pthread_cond_broadcast(&d->changed);
    (void)pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < d->n_writers; i++)
        (void)pthread_join(d->writer[i], NULL);
    if (d->copies) {
        (void)cudaStreamSynchronize(d->copies);
        (void)cudaStreamDestroy(d->copies);
    }
    for (int i = 0; i < BUFFERS; i++) {
        const buffer *b = &d->buffer[i];
        const cudaEvent_t events[] = {b->asked, b->begin, b->made, b->copied};
        for (size_t e = 0; e < sizeof events / sizeof *events; e++)
            if (events[e])
                (void)cudaEventDestroy(events[e]);
        if (b->host)
            (void)cudaFreeHost(b->host);
    }
    if (d->asked)
        (void)cudaEventDestroy(d->asked);
    kvd_device_release(&d->memory);
    (void)pthread_cond_destroy(&d->changed);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}
