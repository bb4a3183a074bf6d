/* Implements include/kvdim/attention.h with the CUDA kernels of kernels/cuda/. */
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/prefill_plan.h"
#include "kernels/library/backend.h"

enum { Q_LEN, KV_LEN, ROW, FIRST_TOKEN, N_LENGTHS };

/* Byte offsets of the parts of the caller's workspace, multiples of 256. */
typedef struct {
    size_t lengths, plan, first, next, tiles, total;
} parts;

typedef struct {
    bool sm90;
    int n_ctas;
    parts at;
    int32_t *host; /* lengths [N_LENGTHS][n_requests], stored after this struct */
    const int32_t *device[N_LENGTHS];
    kvd_decode_args decode;
    kvd_prefill_args prefill;
} cuda_state;

static kvdim_status failed(cudaError_t e, const char *what, kvd_err *err)
{
    kvd_fail(err, "%s: %s", what, cudaGetErrorString(e));
    return KVDIM_ERROR_CUDA;
}

static kvdim_status attribute(enum cudaDeviceAttr which, int *value, kvd_err *err)
{
    int device = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (!e)
        e = cudaDeviceGetAttribute(value, which, device);
    if (!e)
        return KVDIM_OK;
    (void)cudaGetLastError();
    kvd_fail(err, "no CUDA device: %s", cudaGetErrorString(e));
    return KVDIM_ERROR_DEVICE;
}

static kvdim_status capability(int *major, int *minor, kvd_err *err)
{
    const kvdim_status status = attribute(cudaDevAttrComputeCapabilityMajor, major, err);
    return status ? status : attribute(cudaDevAttrComputeCapabilityMinor, minor, err);
}

static kvdim_status check(kvd_err *err)
{
    int major = 0, minor = 0;
    const kvdim_status status = capability(&major, &minor, err);
    if (status)
        return status;
    if (!kvd_cuda_has_code(major, minor)) {
        kvd_fail(err, "the kernels need compute capability 8.x or 9.0, this GPU has %d.%d", major,
                 minor);
        return KVDIM_ERROR_DEVICE;
    }
    return KVDIM_OK;
}

static size_t reserve(size_t *total, size_t bytes)
{
    const size_t at = *total;
    *total += (bytes + 255) / 256 * 256;
    return at;
}

static kvdim_status place(const kvdim_plan *p, parts *at, int *n_ctas, kvd_err *err)
{
    const kvd_attn_map *const map = &p->layer->map;
    const kvdim_status status = attribute(cudaDevAttrMultiProcessorCount, n_ctas, err);
    if (status)
        return status;
    *at = (parts){0};
    at->lengths = reserve(&at->total, (size_t)p->batch.batch * N_LENGTHS * sizeof(int32_t));
    if (p->decode) {
        *n_ctas = kvd_decode_ctas(map);
        if (*n_ctas < 1)
            return failed(cudaGetLastError(), "the number of CTAs of a decode launch", err);
        at->plan =
            reserve(&at->total, kvd_decode_workspace_bytes(
                                    map, p->batch.batch, p->max_pages * KVD_PAGE_TOKENS, *n_ctas));
        return KVDIM_OK;
    }
    at->plan = reserve(&at->total, kvd_prefill_plan_bytes(map, &p->batch, *n_ctas));
    at->first = reserve(&at->total, ((size_t)*n_ctas + 1) * sizeof(int32_t));
    at->next = reserve(&at->total, sizeof(int32_t));
    at->tiles =
        reserve(&at->total, kvd_prefill_max_tiles(map, &p->batch) * sizeof(kvd_prefill_tile));
    return KVDIM_OK;
}

static kvdim_status workspace(const kvdim_plan *p, size_t *bytes, kvd_err *err)
{
    parts at;
    int n_ctas = 0;
    const kvdim_status status = place(p, &at, &n_ctas, err);
    *bytes = status ? 0 : at.total;
    return status;
}

static kvdim_status open_state(kvdim_plan *p, kvd_err *err)
{
    const kvdim_layer *const l = p->layer;
    const size_t n = (size_t)p->batch.batch;
    int major = 0, minor = 0;
    kvdim_status status = capability(&major, &minor, err);
    if (status)
        return status;
    const size_t bytes = sizeof(cuda_state) + N_LENGTHS * n * sizeof(int32_t);
    cuda_state *const s = p->state = calloc(1, bytes);
    if (!s)
        return kvd_no_memory(err, "a plan", bytes), KVDIM_ERROR_MEMORY;
    s->host = (int32_t *)(s + 1);
    s->sm90 = major == 9 && minor == 0;
    if ((status = place(p, &s->at, &s->n_ctas, err)))
        return status;
    for (size_t i = 0; i < N_LENGTHS; i++)
        s->device[i] = (const int32_t *)(p->workspace + s->at.lengths) + i * n;
    s->decode = (kvd_decode_args){.dtype = l->dtype,
                                  .map = l->map,
                                  .batch = p->batch.batch,
                                  .max_pages = p->max_pages,
                                  .kv_len = s->device[KV_LEN],
                                  .page_table = p->page_table,
                                  .n_ctas = s->n_ctas,
                                  .workspace = p->workspace + s->at.plan};
    if (p->decode)
        s->decode.ctas_per_task = kvd_decode_ctas_per_task(&s->decode, 0);
    s->prefill = (kvd_prefill_args){.dtype = l->dtype,
                                    .map = l->map,
                                    .batch = p->batch.batch,
                                    .max_pages = p->max_pages,
                                    .n_q8 = p->n_rows,
                                    .q_start = s->device[ROW],
                                    .q_len = s->device[Q_LEN],
                                    .kv_len = s->device[KV_LEN],
                                    .page_table = p->page_table,
                                    .work = {.n_ctas = s->n_ctas}};
    return KVDIM_OK;
}

static kvdim_status plan(kvdim_plan *p, void *stream, kvd_err *err)
{
    if (!p->state) {
        const kvdim_status status = open_state(p, err);
        if (status)
            return status;
    }
    cuda_state *const s = p->state;
    const size_t n = (size_t)p->batch.batch;
    for (size_t i = 0, token = 0; i < n; token += (size_t)p->q_len[i++]) {
        s->host[Q_LEN * n + i] = p->q_len[i];
        s->host[KV_LEN * n + i] = p->kv_len[i];
        s->host[ROW * n + i] = p->row[i];
        s->host[FIRST_TOKEN * n + i] = (int32_t)token;
    }
    cudaError_t e =
        cudaMemcpyAsync(p->workspace + s->at.lengths, s->host, N_LENGTHS * n * sizeof(int32_t),
                        cudaMemcpyHostToDevice, stream);
    if (e)
        return failed(e, "copying the lengths", err);
    if (!p->decode)
        e = kvd_prefill_plan(&s->prefill, &p->batch, KVD_SCHEDULE_OURS,
                             s->sm90 ? &kvd_prefill_cost_sm90 : &kvd_prefill_cost_mma,
                             (kvd_prefill_tile *)(p->workspace + s->at.tiles),
                             (int32_t *)(p->workspace + s->at.first),
                             (int32_t *)(p->workspace + s->at.next), p->workspace + s->at.plan,
                             stream);
    else if (!s->decode.ctas_per_task)
        e = kvd_decode_plan(&s->decode, KVD_SCHEDULE_OURS, stream);
    return e ? failed(e, "planning the batch", err) : KVDIM_OK;
}

static kvdim_status append(const kvdim_plan *p, const kvdim_append_args *a, void *stream,
                           kvd_err *err)
{
    const cuda_state *const s = p->state;
    const kvd_append_args args = {.dtype = p->layer->dtype,
                                  .map = p->layer->map,
                                  .d_head = p->layer->heads.d_head,
                                  .batch = p->batch.batch,
                                  .n_tokens = p->n_new,
                                  .token_start = s->device[FIRST_TOKEN],
                                  .q_len = s->device[Q_LEN],
                                  .kv_len = s->device[KV_LEN],
                                  .q_start = p->decode ? NULL : s->device[ROW],
                                  .n_q8 = p->decode ? 0 : p->n_rows,
                                  .page_table = p->page_table,
                                  .max_pages = p->max_pages,
                                  .x = a->x,
                                  .rope_cos = a->rope_cos,
                                  .rope_sin = a->rope_sin,
                                  .rope_dim = a->rope_dim,
                                  .rope_interleaved = a->rope_interleaved,
                                  .r_qk = a->r_qk,
                                  .r_v = a->r_v,
                                  .q = a->q,
                                  .pool = a->pool};
    const cudaError_t e = kvd_append(&args, stream);
    return e ? failed(e, "append", err) : KVDIM_OK;
}

static kvdim_status attend(const kvdim_plan *p, const kvdim_attend_args *a, void *stream,
                           kvd_err *err)
{
    const cuda_state *const s = p->state;
    const int32_t stride = a->o_stride ? (int32_t)a->o_stride : p->layer->map.o_pitch;
    cudaError_t e;
    if (p->decode) {
        kvd_decode_args args = s->decode;
        args.map.o_pitch = stride;
        args.q = a->q;
        args.pool = a->pool;
        args.o = a->o;
        args.lse = a->lse;
        e = kvd_decode(&args, stream);
        return e ? failed(e, "decode attention", err) : KVDIM_OK;
    }
    kvd_prefill_args args = s->prefill;
    args.map.o_pitch = stride;
    args.q = a->q;
    args.pool = a->pool;
    args.o = a->o;
    args.lse = a->lse;
    /* CTAs take tiles of query rows by incrementing the counter work.next, which must be 0 at each
     * launch. If work.first is set, tiles are assigned to CTAs in advance instead. */
    e = args.work.first ? cudaSuccess
                        : cudaMemsetAsync(args.work.next, 0, sizeof *args.work.next, stream);
    if (!e)
        e = (s->sm90 ? kvd_prefill_sm90 : kvd_prefill_mma)(&args, stream);
    return e ? failed(e, "prefill attention", err) : KVDIM_OK;
}

const kvd_backend kvd_backend_cuda = {check, workspace, plan, append, attend};
