#include "model/pass/cuda/sum.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"

#ifdef KVD_NCCL_HERE

typedef struct {
    ncclComm_t comm;
    int device;
    void (*destroy_graphs)(void *ctx);
    void *ctx;
} member;

struct kvd_gpu_sum {
    const kvd_nccl *lib;
    int n;
    member *gpu;
    atomic_int failed; /* 1 + index of the first GPU that failed, or 0 if none failed */
    char engine[32];
};

static int check(const kvd_gpu_sum *s, ncclResult_t r, kvd_err *err)
{
    return r == ncclSuccess
               ? 0
               : kvd_fail(err, "sum over GPUs: NCCL: %s", s->lib->ncclGetErrorString(r));
}

static int connect_all(kvd_gpu_sum *s, int first_gpu, kvd_err *err)
{
    const size_t n = (size_t)s->n;
    int *const device = malloc(n * sizeof *device), version = 0;
    ncclComm_t *const comm = calloc(n, sizeof(ncclComm_t));
    if (!device || !comm) {
        free(device);
        free(comm);
        return kvd_no_memory(err, "a list of GPUs", n * sizeof(ncclComm_t));
    }
    for (int i = 0; i < s->n; i++)
        device[i] = first_gpu + i;
    /* Switches off NVLink multicast in NCCL, because hosts have few multicast groups. */
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    (void)setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    (void)setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
    const int status = check(s, s->lib->ncclCommInitAll(comm, s->n, device), err);
    for (int i = 0; i < s->n; i++)
        s->gpu[i] = (member){.comm = comm[i], .device = device[i]};
    free(device);
    free(comm);
    if (status || check(s, s->lib->ncclGetVersion(&version), err))
        return -1;
    (void)snprintf(s->engine, sizeof s->engine, "NCCL %d.%d.%d", version / 10000,
                   version / 100 % 100, version % 100);
    return 0;
}

kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err)
{
    const kvd_nccl *lib = kvd_nccl_load(err);
    if (!lib)
        return NULL;
    kvd_gpu_sum *s = calloc(1, sizeof *s);
    if (s) {
        s->lib = lib;
        s->n = n;
        s->gpu = calloc((size_t)n, sizeof *s->gpu);
    }
    if (!s || !s->gpu) {
        kvd_no_memory(err, "the sum over GPUs", (size_t)n * sizeof *s->gpu);
        free(s);
        return NULL;
    }
    if (connect_all(s, first_gpu, err)) {
        kvd_gpu_sum_free(s);
        return NULL;
    }
    return s;
}

static int lives(int device)
{
    const cudaError_t e = cudaSetDevice(device);
    const cudaError_t asked = e ? e : cudaStreamQuery(0);
    return asked == cudaSuccess || asked == cudaErrorNotReady;
}

/* Aborts a GPU's NCCL communicator. Does nothing if the GPU's CUDA context is lost, because
 * ncclCommAbort would never return. */
static void end(const kvd_gpu_sum *s, member *m)
{
    if (!m->comm || !lives(m->device))
        return;
    if (m->destroy_graphs)
        m->destroy_graphs(m->ctx);
    (void)s->lib->ncclCommAbort(m->comm);
    m->comm = NULL;
}

void kvd_gpu_sum_free(kvd_gpu_sum *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n; i++)
        if (atomic_load(&s->failed))
            end(s, &s->gpu[i]);
        else if (s->gpu[i].comm)
            (void)s->lib->ncclCommDestroy(s->gpu[i].comm);
    free(s->gpu);
    free(s);
}

void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx)
{
    s->gpu[index].destroy_graphs = destroy;
    s->gpu[index].ctx = ctx;
}

const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s)
{
    return s->engine;
}

static int alive(const kvd_gpu_sum *s, int index, kvd_err *err)
{
    return s->gpu[index].comm && !atomic_load(&s->failed)
               ? 0
               : kvd_fail(err, "sum over GPUs: ended by an error on one of them");
}

int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err)
{
    return kvd_status(
        alive(s, index, err) ||
        check(s, s->lib->ncclAllReduce(x, x, n, ncclFloat, ncclSum, s->gpu[index].comm, stream),
              err));
}

int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err)
{
    return kvd_status(
        alive(s, index, err) ||
        check(s, s->lib->ncclBroadcast(x, x, n, ncclFloat, 0, s->gpu[index].comm, stream), err));
}

/* Queues all transfers in one NCCL group, because single calls could deadlock. */
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err)
{
    if (alive(s, index, err))
        return -1;
    const ncclComm_t comm = s->gpu[index].comm;
    ncclResult_t r = s->lib->ncclGroupStart();
    for (size_t i = 0; i < n_out && r == ncclSuccess; i++)
        r = s->lib->ncclSend(out[i].at, out[i].bytes, ncclChar, out[i].gpu, comm, stream);
    for (size_t i = 0; i < n_in && r == ncclSuccess; i++)
        r = s->lib->ncclRecv(in[i].at, in[i].bytes, ncclChar, in[i].gpu, comm, stream);
    const ncclResult_t ended = s->lib->ncclGroupEnd();
    return check(s, r == ncclSuccess ? ended : r, err);
}

/* Waits until the work on `stream` has ended. Polls without sleeping for about 20 ms, the time of
 * two decode steps, and then sleeps between polls. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err)
{
    /* number of times that the stream is queried before the first sleep, about a microsecond
     * each */
    enum { AWAKE = 20000 };
    const struct timespec pause = {.tv_nsec = 20000};
    cudaError_t e;
    for (int i = 0; (e = cudaStreamQuery(stream)) == cudaErrorNotReady; i++) {
        if (atomic_load(&s->failed))
            end(s, &s->gpu[index]);
        if (i < AWAKE)
            (void)sched_yield();
        else
            (void)nanosleep(&pause, NULL);
    }
    if (e)
        kvd_gpu_sum_fail(s, index);
    return kvd_cuda_check(e, "work on a GPU", err) || alive(s, index, err) ? -1 : 0;
}

void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index)
{
    int none = 0;
    (void)atomic_compare_exchange_strong(&s->failed, &none, index + 1);
}

int kvd_gpu_sum_failed(const kvd_gpu_sum *s)
{
    return atomic_load(&s->failed) - 1;
}

#else

kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err)
{
    kvd_fail(err, "%d GPUs from %d on: this program was built without NCCL", n, first_gpu);
    return NULL;
}

void kvd_gpu_sum_free(kvd_gpu_sum *s)
{
    (void)s;
}

const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s)
{
    (void)s;
    return "";
}

int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err)
{
    (void)s, (void)index, (void)x, (void)n, (void)stream;
    return kvd_fail(err, "this program was built without NCCL");
}

int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err)
{
    return kvd_gpu_sum_add(s, index, x, n, stream, err);
}

int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err)
{
    (void)out, (void)n_out, (void)in, (void)n_in;
    return kvd_gpu_sum_add(s, index, NULL, 0, stream, err);
}

int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err)
{
    return kvd_gpu_sum_add(s, index, NULL, 0, stream, err);
}

void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx)
{
    (void)s, (void)index, (void)destroy, (void)ctx;
}

void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index)
{
    (void)s, (void)index;
}

int kvd_gpu_sum_failed(const kvd_gpu_sum *s)
{
    (void)s;
    return -1;
}

#endif
