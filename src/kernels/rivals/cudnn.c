/* Attention by cuDNN's backend API, loaded at run time. */
#include "kernels/rivals/cudnn.h"

#include <string.h>

#include "common/stats.h"
#include "kernels/layout.h"
#include "kernels/rivals/cudnn_form.h"

void kvd_cudnn_packed(kvd_cudnn_shape *shape)
{
    int64_t q_len = shape->q_len, kv_len = shape->kv_len, heads = shape->n_heads,
            kv_heads = shape->n_kv_heads;
    int64_t d_qk = shape->d_qk, d_v = shape->d_v;
    shape->q = (kvd_cudnn_stride){heads * q_len * d_qk, q_len * d_qk, d_qk};
    shape->o = (kvd_cudnn_stride){heads * q_len * d_v, q_len * d_v, d_v};
    shape->k = (kvd_cudnn_stride){kv_heads * kv_len * d_qk, kv_len * d_qk, d_qk};
    shape->v = (kvd_cudnn_stride){kv_heads * kv_len * d_v, kv_len * d_v, d_v};
}

#ifdef KVD_HAVE_CUDNN

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/half.h"

enum { FORMS_MAX = 4, CANDIDATES_MAX = 96, TIMED = 9 };

int kvd_cudnn_version(int *version, kvd_err *err)
{
    if (kvd_cudnn_load(err))
        return -1;
    *version = (int)kvd_cudnn_lib.version();
    return 0;
}

typedef struct {
    int form;
    desc config, plan;
    int64_t workspace;
    int refused;
    double us;
    char name[192];
} candidate;

struct kvd_cudnn_plan {
    kvd_cudnn_shape shape;
    cudnnHandle_t handle;
    kvd_cudnn_heap heap;
    kvd_cudnn_form forms[FORMS_MAX];
    int n_forms;
    candidate *list;
    int n_list, chosen;
    /* [FORMS_MAX][batch] Device memory: number of query rows of each request in each graph. */
    int32_t *rows_dev;
    float scale, minus_inf;
    int32_t q_len, kv_len;
    char name[256];
};

static kvd_cudnn_steps fresh(kvd_cudnn_plan *p)
{
    return (kvd_cudnn_steps){.heap = &p->heap, .status = CUDNN_STATUS_SUCCESS};
}

/* Sets c->name: name of the cuDNN graph, then engine number and settings, such as "engine 5 knobs
 * 24=33". */
static void name_config(kvd_cudnn_steps *b, const kvd_cudnn_form *f, candidate *c)
{
    int64_t n = 0, index = -1;
    desc engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine"), knob[CUDNN_KNOB_TYPE_COUNTS];
    get(b, c->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine,
        "engine");
    get(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index, "engine index");
    int at = snprintf(c->name, sizeof c->name, "%s engine %lld", f->name, (long long)index);
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++)
        knob[i] = make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob");
    n = 0;
    if (ok(b) && kvd_cudnn_lib.get(c->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS, &n,
                                   knob) != CUDNN_STATUS_SUCCESS)
        n = 0;
    for (int64_t i = 0; i < n && ok(b) && at > 0 && (size_t)at < sizeof c->name; i++) {
        cudnnBackendKnobType_t type;
        int64_t value = 0, got = 0;
        if (kvd_cudnn_lib.get(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                              &got, &type) ||
            kvd_cudnn_lib.get(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &got,
                              &value))
            continue;
        at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s%d=%lld", i ? " " : " knobs ",
                       (int)type, (long long)value);
    }
}

/* Adds the engines that cuDNN's heuristics propose for cuDNN graph number fi to the candidates. */
static void gather(kvd_cudnn_plan *p, int fi, kvd_cudnn_steps *b)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    desc configs[24];
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        kvd_cudnn_steps h = fresh(p);
        int64_t n = 0;
        desc heur = make(&h, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
        set_desc(&h, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->forms[fi].graph, "heuristics");
        set(&h, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &modes[m], "heuristics");
        finish(&h, heur, "heuristics");
        get(&h, heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL,
            "heuristics");
        if (n > (int64_t)(sizeof configs / sizeof *configs))
            n = (int64_t)(sizeof configs / sizeof *configs);
        for (int64_t i = 0; i < n; i++)
            configs[i] = make(&h, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
        if (n > 0)
            get(&h, heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n,
                configs, "heuristics");
        if (!ok(&h)) {
            note(b, h.status, h.what);
            continue;
        }
        for (int64_t i = 0; i < n && p->n_list < CANDIDATES_MAX; i++) {
            candidate *c = &p->list[p->n_list];
            *c = (candidate){.form = fi, .config = configs[i], .us = NAN};
            name_config(&h, &p->forms[fi], c);
            int seen = 0;
            for (int j = 0; j < p->n_list && !seen; j++)
                seen = strcmp(p->list[j].name, c->name) == 0;
            p->n_list += !seen;
        }
    }
}

/* Makes a candidate engine ready to run. The first call compiles it, which may take long. */
static int ready(kvd_cudnn_plan *p, candidate *c, kvd_err *err)
{
    if (c->plan)
        return 0;
    kvd_cudnn_steps b = fresh(p);
    const char *what = "execution plan";
    int64_t n = 0;
    desc d = make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
    set(&b, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->handle, what);
    set_desc(&b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, c->config, what);
    finish(&b, d, what);
    get(&b, d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &c->workspace,
        "workspace size");
    if (!ok(&b)) {
        c->refused = 1;
        c->us = -1.0;
        fail(&b, err);
        return kvd_in(err, "%s", c->name);
    }
    c->plan = d;
    return 0;
}

int kvd_cudnn_choose(kvd_cudnn_plan *p, int i, kvd_err *err)
{
    if (i < 0 || i >= p->n_list)
        return kvd_fail(err, "cuDNN: candidate %d of %d", i, p->n_list);
    if (ready(p, &p->list[i], err))
        return -1;
    size_t v = kvd_cudnn_lib.version();
    p->chosen = i;
    snprintf(p->name, sizeof p->name, "%zu.%zu.%zu %s", v / 10000, v / 100 % 100, v % 100,
             p->list[i].name);
    return 0;
}

static int check_stride(const char *what, kvd_cudnn_stride s, int batch, int heads, int tokens,
                        kvd_err *err)
{
    if ((batch > 1 && (s.batch < 1 || s.batch % 8)) || (heads > 1 && (s.head < 1 || s.head % 8)) ||
        (tokens > 1 && (s.token < 1 || s.token % 8)))
        return kvd_fail(err, "cuDNN: strides %lld, %lld, %lld of %s, want multiples of 8",
                        (long long)s.batch, (long long)s.head, (long long)s.token, what);
    return 0;
}

static int check(const kvd_cudnn_shape *s, kvd_err *err)
{
    if (s->dtype != KVD_BF16 && s->dtype != KVD_F16)
        return kvd_fail(err, "cuDNN: dtype %d is neither bf16 nor f16", s->dtype);
    if (s->batch < 1 || s->n_heads < 1 || s->n_kv_heads < 1 || s->n_heads % s->n_kv_heads)
        return kvd_fail(err, "cuDNN: batch %d, %d heads, %d kv heads", s->batch, s->n_heads,
                        s->n_kv_heads);
    if (s->d_qk < 8 || s->d_qk > KVD_WIDTH_MAX || s->d_qk % 8 || s->d_v < 8 ||
        s->d_v > KVD_WIDTH_MAX || s->d_v % 8)
        return kvd_fail(err, "cuDNN: widths %d and %d, want multiples of 8 up to %d", s->d_qk,
                        s->d_v, (int)KVD_WIDTH_MAX);
    if (s->q_len < 1 || s->kv_len < 1 || (s->causal && s->q_len > s->kv_len))
        return kvd_fail(err, "cuDNN: %d queries, %d keys", s->q_len, s->kv_len);
    if (!(s->scale > 0.0F) || !isfinite(s->scale))
        return kvd_fail(err, "cuDNN: scale %g", (double)s->scale);
    if (check_stride("q", s->q, s->batch, s->n_heads, s->q_len, err) ||
        check_stride("k", s->k, s->batch, s->n_kv_heads, s->kv_len, err) ||
        check_stride("v", s->v, s->batch, s->n_kv_heads, s->kv_len, err) ||
        check_stride("o", s->o, s->batch, s->n_heads, s->q_len, err))
        return -1;
    return 0;
}

/* Writes the number of query rows per request, for each cuDNN graph, to p->rows_dev in device
 * memory. */
static int fill_rows(kvd_cudnn_plan *p, kvd_err *err)
{
    const size_t batch = (size_t)p->shape.batch;
    int32_t *host = malloc(FORMS_MAX * batch * sizeof *host);
    if (!host)
        return kvd_no_memory(err, "cuDNN: query lengths", FORMS_MAX * batch * sizeof *host);
    for (size_t i = 0; i < FORMS_MAX * batch; i++)
        host[i] = (int32_t)p->forms[i / batch].rows;
    cudaError_t e = cudaMalloc((void **)&p->rows_dev, FORMS_MAX * batch * sizeof *host);
    if (e == cudaSuccess)
        e = cudaMemcpy(p->rows_dev, host, FORMS_MAX * batch * sizeof *host, cudaMemcpyHostToDevice);
    free(host);
    return e == cudaSuccess ? 0 : kvd_fail(err, "cuDNN: query lengths: %s", cudaGetErrorString(e));
}

static int add_form(kvd_cudnn_plan *p, int folded, int whole, kvd_err *err)
{
    if (kvd_cudnn_form_build(&p->shape, p->handle, p->n_forms, folded, whole, &p->heap,
                             &p->forms[p->n_forms], err))
        return -1;
    p->n_forms++;
    return 0;
}

int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **out, kvd_err *err)
{
    int rc = -1, any = 0;
    *out = NULL;
    if (check(shape, err) || kvd_cudnn_load(err))
        return -1;
    kvd_cudnn_plan *p = calloc(1, sizeof *p);
    if (!p)
        return kvd_no_memory(err, "cuDNN plan", sizeof *p);
    p->shape = *shape;
    p->scale = shape->scale;
    p->minus_inf = -INFINITY;
    p->q_len = shape->q_len;
    p->kv_len = shape->kv_len;
    p->list = kvd_new(CANDIDATES_MAX, sizeof *p->list, "cuDNN plan", err);
    if (!p->list)
        goto done;
    if (kvd_cudnn_heap_init(&p->heap, err))
        goto done;
    cudnnStatus_t s = kvd_cudnn_lib.create(&p->handle);
    if (s != CUDNN_STATUS_SUCCESS) {
        p->handle = NULL;
        kvd_fail(err, "cuDNN: cannot start: %s (%d)", kvd_cudnn_lib.error_string(s), (int)s);
        goto done;
    }

    /* Builds up to four cuDNN graphs of the same attention. Only the first must succeed; each
     * further graph adds cuDNN engines to choose from. */
    const int decode = shape->q_len == 1, folds = decode && shape->n_heads > shape->n_kv_heads;
    kvd_err ignored;
    if (add_form(p, 0, 0, err))
        goto done;
    if (folds)
        (void)add_form(p, 1, 0, &ignored);
    if (decode || !shape->causal) {
        (void)add_form(p, 0, 1, &ignored);
        if (folds)
            (void)add_form(p, 1, 1, &ignored);
    }
    kvd_cudnn_steps b = fresh(p);
    for (int i = 0; i < p->n_forms; i++)
        gather(p, i, &b);
    if (shape->ragged && decode && fill_rows(p, err))
        goto done;
    if (p->n_list == 0) {
        if (ok(&b))
            kvd_fail(err, "cuDNN: no engine is named for this shape");
        else
            fail(&b, err);
        goto done;
    }
    for (int i = 0; i < p->n_list && !any; i++)
        any = kvd_cudnn_choose(p, i, err) == 0;
    rc = any ? 0 : -1;
done:
    if (rc)
        kvd_cudnn_close(p);
    else
        *out = p;
    return rc;
}

void kvd_cudnn_close(kvd_cudnn_plan *p)
{
    if (!p)
        return;
    kvd_cudnn_heap_release(&p->heap);
    if (p->handle)
        kvd_cudnn_lib.destroy(p->handle);
    cudaFree(p->rows_dev);
    free(p->list);
    free(p);
}

size_t kvd_cudnn_workspace(const kvd_cudnn_plan *p)
{
    return (size_t)p->list[p->chosen].workspace;
}

const char *kvd_cudnn_name(const kvd_cudnn_plan *p)
{
    return p->name;
}

int kvd_cudnn_count(const kvd_cudnn_plan *p)
{
    return p->n_list;
}

const char *kvd_cudnn_candidate(const kvd_cudnn_plan *p, int i, double *us)
{
    *us = p->list[i].us;
    return p->list[i].name;
}

int kvd_cudnn_run(kvd_cudnn_plan *p, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    const candidate *c = &p->list[p->chosen];
    const kvd_cudnn_form *f = &p->forms[c->form];
    const int decode = p->shape.q_len == 1;
    const void *rows = decode && p->shape.ragged
                           ? p->rows_dev + (size_t)c->form * (size_t)p->shape.batch
                           : io->q_len;
    const void *at[UID_LAST] = {[UID_Q] = io->q,
                                [UID_K] = io->k,
                                [UID_V] = io->v,
                                [UID_O] = io->o,
                                [UID_SCALE] = &p->scale,
                                [UID_Q_LEN] = p->shape.ragged ? rows : &p->q_len,
                                [UID_KV_LEN] =
                                    p->shape.ragged ? (const void *)io->kv_len : &p->kv_len,
                                [UID_NO_PADDING] = &p->minus_inf,
                                [UID_NO_FUTURE] = &p->minus_inf};
    int64_t uids[UID_LAST];
    const void *pointers[UID_LAST];
    for (int i = 0; i < f->n_uids; i++) {
        uids[i] = f->uids[i];
        pointers[i] = at[f->uids[i]];
        if (!pointers[i])
            return kvd_fail(err, "cuDNN: a pointer is missing (tensor %d)", f->uids[i]);
    }
    if (c->workspace > 0 && !io->workspace)
        return kvd_fail(err, "cuDNN: no workspace, %lld bytes are needed", (long long)c->workspace);

    kvd_cudnn_steps b = fresh(p);
    const char *what = "variant pack";
    desc pack = make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, f->n_uids, uids, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, f->n_uids,
        (const void *)pointers, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &io->workspace, what);
    finish(&b, pack, what);
    if (ok(&b))
        note(&b, kvd_cudnn_lib.set_stream(p->handle, (cudaStream_t)stream), "stream");
    if (ok(&b))
        note(&b, kvd_cudnn_lib.execute(p->handle, c->plan, pack), c->name);
    if (pack)
        kvd_cudnn_lib.desc_destroy(p->heap.made[--p->heap.n]);
    return ok(&b) ? 0 : fail(&b, err);
}

typedef struct {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *scratch; /* device memory of twice the L2 size, overwritten before each run */
    size_t scratch_bytes;
} stopwatch;

static int time_once(kvd_cudnn_plan *p, int i, const kvd_cudnn_io *io, const stopwatch *w,
                     double *us, kvd_err *err)
{
    float ms = 0.0F;
    if (kvd_cudnn_choose(p, i, err))
        return -1;
    cudaError_t e = cudaMemsetAsync(w->scratch, i & 0xff, w->scratch_bytes, w->stream);
    if (e == cudaSuccess)
        e = cudaEventRecord(w->begin, w->stream);
    if (e == cudaSuccess && kvd_cudnn_run(p, io, w->stream, err))
        return -1;
    if (e == cudaSuccess)
        e = cudaEventRecord(w->end, w->stream);
    if (e == cudaSuccess)
        e = cudaEventSynchronize(w->end);
    if (e == cudaSuccess)
        e = cudaEventElapsedTime(&ms, w->begin, w->end);
    if (e != cudaSuccess)
        return kvd_fail(err, "cuDNN: %s: %s", p->list[i].name, cudaGetErrorString(e));
    *us = (double)ms * 1e3;
    return 0;
}

/* Allocates one workspace that all candidate engines share. Drops the engines whose workspace does
 * not fit into memory. */
static int shared_workspace(kvd_cudnn_plan *p, void **workspace, kvd_err *err)
{
    for (int i = 0; i < p->n_list; i++)
        (void)ready(p, &p->list[i], err);
    for (;;) {
        int most = -1;
        for (int i = 0; i < p->n_list; i++)
            if (p->list[i].plan && !p->list[i].refused &&
                (most < 0 || p->list[i].workspace > p->list[most].workspace))
                most = i;
        if (most < 0)
            return -1;
        candidate *c = &p->list[most];
        if (c->workspace == 0 || cudaMalloc(workspace, (size_t)c->workspace) == cudaSuccess)
            return 0;
        (void)cudaGetLastError();
        c->refused = 1;
        c->us = -1.0;
        kvd_fail(err, "cuDNN: %s: no room for %lld bytes of workspace", c->name,
                 (long long)c->workspace);
    }
}

/* Times the candidate engines in rounds, one run of each engine per round, so that a change of the
 * GPU's clock affects all of them. */
static int time_all(kvd_cudnn_plan *p, const kvd_cudnn_io *io, const stopwatch *w, kvd_err *err)
{
    double least = INFINITY, us, rounds[CANDIDATES_MAX][TIMED];
    int first = -1, best = -1;
    for (int i = 0; i < p->n_list; i++) {
        candidate *c = &p->list[i];
        if (c->refused)
            continue;
        c->us = INFINITY;
        for (int r = 0; r < 4 && !c->refused; r++) {
            if (time_once(p, i, io, w, &us, err)) {
                c->refused = 1;
                c->us = -1.0;
            } else if (r > 0) {
                c->us = fmin(c->us, us);
            }
        }
        if (!c->refused)
            least = fmin(least, c->us);
        if (first < 0 && !c->refused)
            first = i;
    }
    if (first < 0)
        return -1;
    for (int r = 0; r < TIMED; r++)
        for (int i = 0; i < p->n_list; i++)
            if ((i == first || p->list[i].us <= 1.2 * least) && !p->list[i].refused &&
                time_once(p, i, io, w, &rounds[i][r], err))
                return -1;
    for (int i = 0; i < p->n_list; i++) {
        candidate *c = &p->list[i];
        if (c->refused || (i != first && c->us > 1.2 * least))
            continue;
        kvd_sort(rounds[i], TIMED);
        c->us = rounds[i][TIMED / 2];
        if (best < 0 || c->us < p->list[best].us)
            best = i;
    }
    /* cuDNN's first choice is kept unless another engine is over 2 % faster; less is noise. */
    return kvd_cudnn_choose(p, p->list[best].us < 0.98 * p->list[first].us ? best : first, err);
}

int kvd_cudnn_tune(kvd_cudnn_plan *p, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    int rc = -1, device = 0, l2 = 0;
    const int was = p->chosen;
    kvd_cudnn_io mine = *io;
    stopwatch w = {.stream = (cudaStream_t)stream};
    mine.workspace = NULL;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    w.scratch_bytes = 2 * (size_t)l2 + 4096;
    if (e == cudaSuccess)
        e = cudaMalloc(&w.scratch, w.scratch_bytes);
    if (e == cudaSuccess)
        e = cudaEventCreate(&w.begin);
    if (e == cudaSuccess)
        e = cudaEventCreate(&w.end);
    if (e != cudaSuccess) {
        kvd_fail(err, "cuDNN: %s", cudaGetErrorString(e));
        goto done;
    }
    if (shared_workspace(p, &mine.workspace, err) == 0 && time_all(p, &mine, &w, err) == 0)
        rc = 0;
    else
        /* Restores the engine that was chosen before this function was called. */
        (void)kvd_cudnn_choose(p, was, &(kvd_err){""});
done:
    if (w.begin)
        cudaEventDestroy(w.begin);
    if (w.end)
        cudaEventDestroy(w.end);
    cudaFree(mine.workspace);
    cudaFree(w.scratch);
    return rc;
}

#else /* a build without CUDA or without the cuDNN header */

#ifdef KVD_CUDA
#define WHY "cuDNN: kvdim was built without cudnn_graph.h (cuDNN 9)"
#else
#define WHY "cuDNN: kvdim was built without CUDA"
#endif

int kvd_cudnn_version(int *version, kvd_err *err)
{
    *version = 0;
    return kvd_fail(err, "%s", WHY);
}

int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **plan, kvd_err *err)
{
    (void)shape;
    *plan = NULL;
    return kvd_fail(err, "%s", WHY);
}

void kvd_cudnn_close(kvd_cudnn_plan *plan)
{
    (void)plan;
}

#endif
