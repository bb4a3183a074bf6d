/*
 * cuDNN's fused attention through its backend API. The library is loaded at run time; only types and enumerations come
 * from its headers. The graphs that its attention engines recognise are those that cudnn-frontend builds.
 */
#include "kernels/rivals/cudnn.h"

#include <string.h>

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

#if defined(KVD_CUDA) && defined(__has_include)
#if __has_include(<cudnn_graph.h>)
#define HAVE_CUDNN 1
#endif
#endif

#ifdef HAVE_CUDNN

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/half.h"

enum {
    FORMS_MAX = 4,
    CANDIDATES_MAX = 96,
    OPS_MAX = 24,
    BACKEND_MAX = 4096, /* descriptors of a plan */
    TIMED = 7,
    /* unique ids of the tensors that are given at run time */
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_SCALE,
    UID_Q_LEN,
    UID_KV_LEN,
    UID_NO_PADDING, /* -inf of the padding select */
    UID_NO_FUTURE,  /* -inf of the causal select  */
    UID_LAST,
    UID_VIRTUAL = 100
};

typedef cudnnBackendDescriptor_t desc;

/* ---- the library ---------------------------------------------------------------------------- */

static struct {
    void *so;
    __typeof__(cudnnGetVersion) *version;
    __typeof__(cudnnGetErrorString) *error_string;
    __typeof__(cudnnGetLastErrorString) *last_error;
    __typeof__(cudnnCreate) *create;
    __typeof__(cudnnDestroy) *destroy;
    __typeof__(cudnnSetStream) *set_stream;
    __typeof__(cudnnBackendCreateDescriptor) *desc_create;
    __typeof__(cudnnBackendDestroyDescriptor) *desc_destroy;
    __typeof__(cudnnBackendFinalize) *finalize;
    __typeof__(cudnnBackendSetAttribute) *set;
    __typeof__(cudnnBackendGetAttribute) *get;
    __typeof__(cudnnBackendExecute) *execute;
} lib;

static int load(kvd_err *err)
{
    if (lib.so)
        return 0;
    void *so = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return kvd_fail(err, "cuDNN: libcudnn.so.9 is not there (%s)", dlerror());
    const struct {
        const char *name;
        void *to; /* a function pointer: filled through memcpy, C has no such conversion */
    } want[] = {
        {"cudnnGetVersion", &lib.version},
        {"cudnnGetErrorString", &lib.error_string},
        {"cudnnGetLastErrorString", &lib.last_error},
        {"cudnnCreate", &lib.create},
        {"cudnnDestroy", &lib.destroy},
        {"cudnnSetStream", &lib.set_stream},
        {"cudnnBackendCreateDescriptor", &lib.desc_create},
        {"cudnnBackendDestroyDescriptor", &lib.desc_destroy},
        {"cudnnBackendFinalize", &lib.finalize},
        {"cudnnBackendSetAttribute", &lib.set},
        {"cudnnBackendGetAttribute", &lib.get},
        {"cudnnBackendExecute", &lib.execute},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(so, want[i].name);
        if (!f) {
            dlclose(so);
            return kvd_fail(err, "cuDNN: libcudnn.so.9 has no '%s'", want[i].name);
        }
        memcpy(want[i].to, &f, sizeof f);
    }
    lib.so = so;
    return 0;
}

int kvd_cudnn_version(int *version, kvd_err *err)
{
    if (load(err))
        return -1;
    *version = (int)lib.version();
    return 0;
}

/* ---- a plan --------------------------------------------------------------------------------- */

/* One way to ask: a finished operation graph. */
typedef struct {
    const char *name;
    desc graph;
    int64_t rows; /* query rows per head: q_len, or the group when a decode step is folded */
    int uids[UID_LAST], n_uids;
} form;

typedef struct {
    int form;
    desc config, plan; /* plan is NULL until it is needed */
    int64_t workspace;
    int refused;
    double us;
    char name[192];
} candidate;

struct kvd_cudnn_plan {
    kvd_cudnn_shape shape;
    cudnnHandle_t handle;
    desc *made; /* every descriptor, in order of creation */
    size_t n_made;
    form forms[FORMS_MAX];
    int n_forms;
    candidate *list;
    int n_list, chosen;
    int32_t *rows_dev; /* [batch] query rows, ragged decode; per form its part of [FORMS_MAX][batch] */
    float scale, minus_inf;
    int32_t q_len, kv_len;
    char name[256];
};

/* Building goes on after a failure and does nothing: one check at the end. The first failure is kept. */
typedef struct {
    kvd_cudnn_plan *p;
    cudnnStatus_t status;
    const char *what;
    char words[256]; /* cuDNN's */
    int64_t uid;
    int64_t score[4], score_stride[4], row[4], row_stride[4];
    desc ops[OPS_MAX];
    int n_ops;
} builder;

static int ok(const builder *b)
{
    return b->status == CUDNN_STATUS_SUCCESS;
}

static void note(builder *b, cudnnStatus_t s, const char *what)
{
    if (s == CUDNN_STATUS_SUCCESS || !ok(b))
        return;
    b->status = s;
    b->what = what;
    b->words[0] = '\0';
    lib.last_error(b->words, sizeof b->words);
    b->words[sizeof b->words - 1] = '\0';
}

static int fail(const builder *b, kvd_err *err)
{
    return kvd_fail(err, "cuDNN: %s: %s (%d) %s", b->what, lib.error_string(b->status), (int)b->status,
                    b->words);
}

static desc make(builder *b, cudnnBackendDescriptorType_t type, const char *what)
{
    desc d = NULL;
    if (!ok(b))
        return NULL;
    if (b->p->n_made == BACKEND_MAX) {
        note(b, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "too many descriptors");
        return NULL;
    }
    note(b, lib.desc_create(type, &d), what);
    if (ok(b))
        b->p->made[b->p->n_made++] = d;
    return d;
}

static void set(builder *b, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *values, const char *what)
{
    if (ok(b))
        note(b, lib.set(d, name, type, n, values), what);
}

static void set_desc(builder *b, desc d, cudnnBackendAttributeName_t name, desc value, const char *what)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finish(builder *b, desc d, const char *what)
{
    if (ok(b))
        note(b, lib.finalize(d), what);
}

/* ---- tensors and operations ----------------------------------------------------------------- */

enum { REAL, VIRTUAL, BY_VALUE };

static desc tensor(builder *b, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                   const int64_t stride[4], int kind)
{
    const int64_t align = 16;
    const bool yes = true;
    desc d = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    set(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "tensor type");
    set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim, "tensor dimensions");
    set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride, "tensor strides");
    set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, "tensor id");
    set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align, "tensor alignment");
    if (kind == VIRTUAL)
        set(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, "virtual tensor");
    if (kind == BY_VALUE)
        set(b, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, "tensor by value");
    finish(b, d, "tensor");
    return d;
}

/* An intermediate of the shape of the scores, or (per_row) of one number for each of their rows. */
static desc inner(builder *b, cudnnDataType_t type, int per_row)
{
    return tensor(b, b->uid++, type, per_row ? b->row : b->score, per_row ? b->row_stride : b->score_stride,
                  VIRTUAL);
}

static desc number(builder *b, form *f, int uid, cudnnDataType_t type)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    f->uids[f->n_uids++] = uid;
    return tensor(b, uid, type, one, one, BY_VALUE);
}

static void add_op(builder *b, desc op, const char *what)
{
    finish(b, op, what);
    if (!ok(b))
        return;
    if (b->n_ops == OPS_MAX) {
        note(b, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
        return;
    }
    b->ops[b->n_ops++] = op;
}

/* y = mode(x, other, select); other and select may be NULL. axis matters to GEN_INDEX alone. */
static desc pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis, desc x,
                      desc other, desc select, desc y)
{
    const float one = 1.0F;
    const char *what = "pointwise operation";
    desc pw = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(b, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(b, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(b, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finish(b, pw, what);
    desc op = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    if (other)
        set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other, what);
    if (select)
        set_desc(b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, select, what);
    set(b, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one, what);
    set(b, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one, what);
    add_op(b, op, what);
    return y;
}

static desc reduce(builder *b, cudnnReduceTensorOp_t how, desc x)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const char *what = "reduction";
    desc y = inner(b, CUDNN_DATA_FLOAT, 1);
    desc r = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(b, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    set(b, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how, what);
    finish(b, r, what);
    desc op = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    add_op(b, op, what);
    return y;
}

/* c = a b, the true sizes of ragged requests in m and in n or k (NULL where not ragged). */
static void matmul(builder *b, desc a, desc bb, desc c, desc m, desc n, desc k)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const char *what = "matmul";
    desc mm = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(b, mm, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    finish(b, mm, what);
    desc op = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, bb, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mm, what);
    if (m)
        set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m, what);
    if (n)
        set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n, what);
    if (k)
        set_desc(b, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k, what);
    add_op(b, op, what);
}

static desc index_of(builder *b, int64_t axis, cudnnDataType_t math, desc x)
{
    return pointwise(b, CUDNN_POINTWISE_GEN_INDEX, math, axis, x, NULL, NULL, inner(b, CUDNN_DATA_INT32, 0));
}

static desc compare(builder *b, cudnnPointwiseMode_t mode, desc x, desc y)
{
    return pointwise(b, mode, CUDNN_DATA_BOOLEAN, 0, x, y, NULL, inner(b, CUDNN_DATA_BOOLEAN, 0));
}

static desc float_op(builder *b, cudnnPointwiseMode_t mode, desc x, desc other, desc select)
{
    return pointwise(b, mode, CUDNN_DATA_FLOAT, 0, x, other, select, inner(b, CUDNN_DATA_FLOAT, 0));
}

/* Scores of keys and queries beyond a request's lengths become -inf. */
static desc mask_padding(builder *b, form *f, desc s, desc q_len, desc kv_len)
{
    desc row = index_of(b, 2, CUDNN_DATA_INT32, s), col = index_of(b, 3, CUDNN_DATA_INT32, s);
    desc in_rows = compare(b, CUDNN_POINTWISE_CMP_LT, row, q_len);
    desc in_cols = compare(b, CUDNN_POINTWISE_CMP_LT, col, kv_len);
    desc in_both = compare(b, CUDNN_POINTWISE_LOGICAL_AND, in_rows, in_cols);
    return float_op(b, CUDNN_POINTWISE_BINARY_SELECT, s, number(b, f, UID_NO_PADDING, CUDNN_DATA_FLOAT),
                    in_both);
}

/* Scores of keys after the query become -inf: row + kv_len - q_len >= col stays. Without lengths (NULL) both are equal. */
static desc mask_future(builder *b, form *f, desc s, desc q_len, desc kv_len)
{
    desc row = index_of(b, 2, CUDNN_DATA_FLOAT, s), col = index_of(b, 3, CUDNN_DATA_FLOAT, s);
    if (kv_len) {
        row = pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, 0, row, kv_len, NULL,
                        inner(b, CUDNN_DATA_INT32, 0));
        row = pointwise(b, CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, 0, row, q_len, NULL,
                        inner(b, CUDNN_DATA_INT32, 0));
    }
    desc seen = compare(b, CUDNN_POINTWISE_CMP_GE, row, col);
    return float_op(b, CUDNN_POINTWISE_BINARY_SELECT, s, number(b, f, UID_NO_FUTURE, CUDNN_DATA_FLOAT), seen);
}

/* The graph of one form. folded: the heads of a group are rows of one head (decode). whole: the one-operation form. */
static int build_form(kvd_cudnn_plan *p, int folded, int whole, kvd_err *err)
{
    const kvd_cudnn_shape *s = &p->shape;
    const int64_t group = s->n_heads / s->n_kv_heads, batch = s->batch;
    const int64_t heads = folded ? s->n_kv_heads : s->n_heads, rows = folded ? group : s->q_len;
    const cudnnDataType_t io = s->dtype == KVD_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const int64_t len_dim[4] = {batch, 1, 1, 1}, len_stride[4] = {1, 1, 1, 1};
    builder b = {.p = p,
                 .status = CUDNN_STATUS_SUCCESS,
                 .uid = UID_VIRTUAL + 100 * p->n_forms,
                 .score = {batch, heads, rows, s->kv_len},
                 .score_stride = {heads * rows * s->kv_len, rows * s->kv_len, s->kv_len, 1},
                 .row = {batch, heads, rows, 1},
                 .row_stride = {heads * rows, rows, 1, 1}};
    form *f = &p->forms[p->n_forms];
    *f = (form){.rows = rows, .uids = {UID_Q, UID_K, UID_V, UID_O}, .n_uids = 4};
    f->name =
        whole ? (folded ? "sdpa groups" : "sdpa heads") : (folded ? "composite groups" : "composite heads");

    const int64_t q_head = folded ? group * s->q.head : s->q.head, q_row = folded ? s->q.head : s->q.token;
    const int64_t o_head = folded ? group * s->o.head : s->o.head, o_row = folded ? s->o.head : s->o.token;
    desc q = tensor(&b, UID_Q, io, (int64_t[]){batch, heads, rows, s->d_qk},
                    (int64_t[]){s->q.batch, q_head, q_row, 1}, REAL);
    /* The composite graph multiplies Q by K transposed; the whole one takes K as it is. */
    desc k = whole ? tensor(&b, UID_K, io, (int64_t[]){batch, s->n_kv_heads, s->kv_len, s->d_qk},
                            (int64_t[]){s->k.batch, s->k.head, s->k.token, 1}, REAL)
                   : tensor(&b, UID_K, io, (int64_t[]){batch, s->n_kv_heads, s->d_qk, s->kv_len},
                            (int64_t[]){s->k.batch, s->k.head, 1, s->k.token}, REAL);
    desc v = tensor(&b, UID_V, io, (int64_t[]){batch, s->n_kv_heads, s->kv_len, s->d_v},
                    (int64_t[]){s->v.batch, s->v.head, s->v.token, 1}, REAL);
    desc o = tensor(&b, UID_O, io, (int64_t[]){batch, heads, rows, s->d_v},
                    (int64_t[]){s->o.batch, o_head, o_row, 1}, REAL);
    desc scale = number(&b, f, UID_SCALE, CUDNN_DATA_FLOAT);
    desc q_len = NULL, kv_len = NULL;
    const int causal = s->causal && s->q_len > 1;
    if (s->ragged) {
        q_len = tensor(&b, UID_Q_LEN, CUDNN_DATA_INT32, len_dim, len_stride, REAL);
        kv_len = tensor(&b, UID_KV_LEN, CUDNN_DATA_INT32, len_dim, len_stride, REAL);
        f->uids[f->n_uids++] = UID_Q_LEN;
        f->uids[f->n_uids++] = UID_KV_LEN;
    }

    if (whole) {
#if CUDNN_VERSION >= 91500
        const char *what = "attention operation";
        desc op = make(&b, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, what);
        set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q, what);
        set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k, what);
        set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v, what);
        set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o, what);
        set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale, what);
        if (s->ragged) {
            set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, q_len, what);
            set_desc(&b, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, kv_len, what);
        }
        add_op(&b, op, what);
#else
        return kvd_fail(err, "cuDNN: headers of version %d have no whole attention operation", CUDNN_VERSION);
#endif
    } else {
        desc x = inner(&b, CUDNN_DATA_FLOAT, 0);
        matmul(&b, q, k, x, q_len, kv_len, NULL);
        x = float_op(&b, CUDNN_POINTWISE_MUL, x, scale, NULL);
        if (s->ragged)
            x = mask_padding(&b, f, x, q_len, kv_len);
        if (causal && !s->ragged && s->q_len == s->kv_len) {
            x = mask_future(&b, f, x, NULL, NULL);
        } else if (causal && s->ragged) {
            x = mask_future(&b, f, x, q_len, kv_len);
        } else if (causal) {
            desc ql = number(&b, f, UID_Q_LEN, CUDNN_DATA_INT32),
                 kl = number(&b, f, UID_KV_LEN, CUDNN_DATA_INT32);
            x = mask_future(&b, f, x, ql, kl);
        }
        desc top = reduce(&b, CUDNN_REDUCE_TENSOR_MAX, x);
        desc e = float_op(&b, CUDNN_POINTWISE_SUB, x, top, NULL);
        e = float_op(&b, CUDNN_POINTWISE_EXP, e, NULL, NULL);
        desc sum = reduce(&b, CUDNN_REDUCE_TENSOR_ADD, e);
        /* Nobody reads max + log sum, but the engines know the softmax by it. */
        desc log_sum = pointwise(&b, CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, 0, sum, NULL, NULL,
                                 inner(&b, CUDNN_DATA_FLOAT, 1));
        pointwise(&b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, 0, top, log_sum, NULL,
                  inner(&b, CUDNN_DATA_FLOAT, 1));
        desc prob = pointwise(&b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, 0, e, sum, NULL, inner(&b, io, 0));
        matmul(&b, prob, v, o, q_len, NULL, kv_len);
    }

    f->graph = make(&b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    set(&b, f->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.n_ops, b.ops,
        "operation graph");
    set(&b, f->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->handle, "operation graph");
    finish(&b, f->graph, "operation graph");
    if (!ok(&b))
        return fail(&b, err);
    p->n_forms++;
    return 0;
}

/* ---- candidates ----------------------------------------------------------------------------- */

/* "composite heads engine 5 knobs 24=33": which engine a configuration is, and its choices. */
static void name_config(builder *b, const form *f, candidate *c)
{
    int64_t n = 0, index = -1;
    desc engine = make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine"), knob[CUDNN_KNOB_TYPE_COUNTS];
    if (ok(b))
        note(b,
             lib.get(c->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine),
             "engine");
    if (ok(b))
        note(b, lib.get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index),
             "engine index");
    int at = snprintf(c->name, sizeof c->name, "%s engine %lld", f->name, (long long)index);
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; i++)
        knob[i] = make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob");
    n = 0;
    if (ok(b) && lib.get(c->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                         CUDNN_KNOB_TYPE_COUNTS, &n, knob) != CUDNN_STATUS_SUCCESS)
        n = 0;
    for (int64_t i = 0; i < n && ok(b) && at > 0 && (size_t)at < sizeof c->name; i++) {
        cudnnBackendKnobType_t type;
        int64_t value = 0, got = 0;
        if (lib.get(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &got, &type) ||
            lib.get(knob[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &got, &value))
            continue;
        at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s%d=%lld", i ? " " : " knobs ", (int)type,
                       (long long)value);
    }
}

/* What the heuristics name for form number fi, each once. A mode that has nothing to say is no error. */
static void gather(kvd_cudnn_plan *p, int fi, builder *b)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    desc configs[24];
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        builder h = {.p = p, .status = CUDNN_STATUS_SUCCESS};
        int64_t n = 0;
        desc heur = make(&h, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics");
        set_desc(&h, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->forms[fi].graph, "heuristics");
        set(&h, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &modes[m], "heuristics");
        finish(&h, heur, "heuristics");
        if (ok(&h))
            note(&h, lib.get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n, NULL),
                 "heuristics");
        if (n > (int64_t)(sizeof configs / sizeof *configs))
            n = (int64_t)(sizeof configs / sizeof *configs);
        for (int64_t i = 0; i < n; i++)
            configs[i] = make(&h, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
        if (ok(&h) && n > 0)
            note(&h,
                 lib.get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, &n, configs),
                 "heuristics");
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

/* Makes the execution plan of a candidate: cuDNN says here whether it takes the shape, and may compile. */
static int ready(kvd_cudnn_plan *p, candidate *c, kvd_err *err)
{
    if (c->plan)
        return 0;
    builder b = {.p = p, .status = CUDNN_STATUS_SUCCESS};
    const char *what = "execution plan";
    int64_t n = 0;
    desc d = make(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
    set(&b, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->handle, what);
    set_desc(&b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, c->config, what);
    finish(&b, d, what);
    if (ok(&b))
        note(&b, lib.get(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &c->workspace),
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
    size_t v = lib.version();
    p->chosen = i;
    snprintf(p->name, sizeof p->name, "%zu.%zu.%zu %s", v / 10000, v / 100 % 100, v % 100, p->list[i].name);
    return 0;
}

static int check_stride(const char *what, kvd_cudnn_stride s, int batch, int heads, int tokens, kvd_err *err)
{
    if ((batch > 1 && (s.batch < 1 || s.batch % 8)) || (heads > 1 && (s.head < 1 || s.head % 8)) ||
        (tokens > 1 && (s.token < 1 || s.token % 8)))
        return kvd_fail(err, "cuDNN: strides %lld, %lld, %lld of %s, want multiples of 8", (long long)s.batch,
                        (long long)s.head, (long long)s.token, what);
    return 0;
}

static int check(const kvd_cudnn_shape *s, kvd_err *err)
{
    if (s->dtype != KVD_BF16 && s->dtype != KVD_F16)
        return kvd_fail(err, "cuDNN: dtype %d is neither bf16 nor f16", s->dtype);
    if (s->batch < 1 || s->n_heads < 1 || s->n_kv_heads < 1 || s->n_heads % s->n_kv_heads)
        return kvd_fail(err, "cuDNN: batch %d, %d heads, %d kv heads", s->batch, s->n_heads, s->n_kv_heads);
    if (s->d_qk < 8 || s->d_qk > 128 || s->d_qk % 8 || s->d_v < 8 || s->d_v > 128 || s->d_v % 8)
        return kvd_fail(err, "cuDNN: widths %d and %d, want multiples of 8 up to 128", s->d_qk, s->d_v);
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

/* Ragged decode: the rows of a request are the rows of the form, whatever the caller's lengths. */
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

int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **out, kvd_err *err)
{
    int rc = -1, any = 0;
    *out = NULL;
    if (check(shape, err) || load(err))
        return -1;
    kvd_cudnn_plan *p = calloc(1, sizeof *p);
    if (!p)
        return kvd_no_memory(err, "cuDNN plan", sizeof *p);
    p->shape = *shape;
    p->scale = shape->scale;
    p->minus_inf = -INFINITY;
    p->q_len = shape->q_len;
    p->kv_len = shape->kv_len;
    p->made = calloc(BACKEND_MAX, sizeof *p->made);
    p->list = calloc(CANDIDATES_MAX, sizeof *p->list);
    if (!p->made || !p->list) {
        kvd_no_memory(err, "cuDNN plan", BACKEND_MAX * sizeof *p->made);
        goto done;
    }
    cudnnStatus_t s = lib.create(&p->handle);
    if (s != CUDNN_STATUS_SUCCESS) {
        p->handle = NULL;
        kvd_fail(err, "cuDNN: cannot start: %s (%d)", lib.error_string(s), (int)s);
        goto done;
    }

    /* The first graph is the one everybody asks for; that it can be built is required, of the others it is not. */
    const int decode = shape->q_len == 1, folds = decode && shape->n_heads > shape->n_kv_heads;
    kvd_err ignored;
    if (build_form(p, 0, 0, err))
        goto done;
    if (folds)
        (void)build_form(p, 1, 0, &ignored);
    if (decode || !shape->causal) {
        (void)build_form(p, 0, 1, &ignored);
        if (folds)
            (void)build_form(p, 1, 1, &ignored);
    }
    builder b = {.p = p, .status = CUDNN_STATUS_SUCCESS};
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
    while (p->n_made > 0)
        lib.desc_destroy(p->made[--p->n_made]);
    if (p->handle)
        lib.destroy(p->handle);
    cudaFree(p->rows_dev);
    free(p->made);
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

/* ---- running -------------------------------------------------------------------------------- */

int kvd_cudnn_run(kvd_cudnn_plan *p, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    const candidate *c = &p->list[p->chosen];
    const form *f = &p->forms[c->form];
    const int decode = p->shape.q_len == 1;
    const void *rows =
        decode && p->shape.ragged ? p->rows_dev + (size_t)c->form * (size_t)p->shape.batch : io->q_len;
    const void *at[UID_LAST] = {[UID_Q] = io->q,
                                [UID_K] = io->k,
                                [UID_V] = io->v,
                                [UID_O] = io->o,
                                [UID_SCALE] = &p->scale,
                                [UID_Q_LEN] = p->shape.ragged ? rows : &p->q_len,
                                [UID_KV_LEN] = p->shape.ragged ? (const void *)io->kv_len : &p->kv_len,
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

    builder b = {.p = p, .status = CUDNN_STATUS_SUCCESS};
    const char *what = "variant pack";
    desc pack = make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, f->n_uids, uids, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, f->n_uids,
        (const void *)pointers, what);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &io->workspace, what);
    finish(&b, pack, what);
    if (ok(&b))
        note(&b, lib.set_stream(p->handle, (cudaStream_t)stream), "stream");
    if (ok(&b))
        note(&b, lib.execute(p->handle, c->plan, pack), c->name);
    if (pack)
        lib.desc_destroy(p->made[--p->n_made]);
    return ok(&b) ? 0 : fail(&b, err);
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median of TIMED runs of the chosen candidate, us; scratch (bytes of it) is overwritten before each. */
static int time_chosen(kvd_cudnn_plan *p, const kvd_cudnn_io *io, cudaStream_t stream, void *scratch,
                       size_t bytes, cudaEvent_t begin, cudaEvent_t end, double *us, kvd_err *err)
{
    float ms[TIMED];
    for (int i = -2; i < TIMED; i++) {
        cudaError_t e = cudaMemsetAsync(scratch, i & 0xff, bytes, stream);
        if (e == cudaSuccess)
            e = cudaEventRecord(begin, stream);
        if (e == cudaSuccess && kvd_cudnn_run(p, io, stream, err))
            return -1;
        if (e == cudaSuccess)
            e = cudaEventRecord(end, stream);
        if (e == cudaSuccess)
            e = cudaEventSynchronize(end);
        if (e == cudaSuccess && i >= 0)
            e = cudaEventElapsedTime(&ms[i], begin, end);
        if (e != cudaSuccess)
            return kvd_fail(err, "cuDNN: %s: %s", p->list[p->chosen].name, cudaGetErrorString(e));
    }
    qsort(ms, TIMED, sizeof *ms, by_value);
    *us = (double)ms[TIMED / 2] * 1e3;
    return 0;
}

int kvd_cudnn_tune(kvd_cudnn_plan *p, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    int rc = -1, best = -1, device = 0, l2 = 0;
    void *scratch = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
    const size_t bytes = 2 * (size_t)l2 + 4096;
    if (e == cudaSuccess)
        e = cudaMalloc(&scratch, bytes);
    if (e == cudaSuccess)
        e = cudaEventCreate(&begin);
    if (e == cudaSuccess)
        e = cudaEventCreate(&end);
    if (e != cudaSuccess) {
        kvd_fail(err, "cuDNN: %s", cudaGetErrorString(e));
        goto done;
    }
    const int was = p->chosen;
    for (int i = 0; i < p->n_list; i++) {
        kvd_cudnn_io mine = *io;
        candidate *c = &p->list[i];
        if (c->refused || kvd_cudnn_choose(p, i, err))
            continue;
        mine.workspace = NULL;
        if (c->workspace > 0 && cudaMalloc(&mine.workspace, (size_t)c->workspace) != cudaSuccess) {
            (void)cudaGetLastError();
            kvd_fail(err, "cuDNN: %s: no room for %lld bytes of workspace", c->name, (long long)c->workspace);
            continue;
        }
        if (time_chosen(p, &mine, stream, scratch, bytes, begin, end, &c->us, err) == 0 &&
            (best < 0 || c->us < p->list[best].us))
            best = i;
        e = cudaFree(mine.workspace);
        if (e != cudaSuccess) {
            kvd_fail(err, "cuDNN: %s: %s", c->name, cudaGetErrorString(e));
            goto done;
        }
    }
    rc = kvd_cudnn_choose(p, best < 0 ? was : best, best < 0 ? &(kvd_err){""} : err) || best < 0 ? -1 : 0;
done:
    if (begin)
        cudaEventDestroy(begin);
    if (end)
        cudaEventDestroy(end);
    cudaFree(scratch);
    return rc;
}

#else /* no CUDA, or no cuDNN header */

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

/* There is no plan, so nobody can call these with one. */
void kvd_cudnn_close(kvd_cudnn_plan *plan)
{
    (void)plan;
}

size_t kvd_cudnn_workspace(const kvd_cudnn_plan *plan)
{
    (void)plan;
    return 0;
}

const char *kvd_cudnn_name(const kvd_cudnn_plan *plan)
{
    (void)plan;
    return WHY;
}

int kvd_cudnn_run(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    (void)plan, (void)io, (void)stream;
    return kvd_fail(err, "%s", WHY);
}

int kvd_cudnn_tune(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err)
{
    (void)plan, (void)io, (void)stream;
    return kvd_fail(err, "%s", WHY);
}

int kvd_cudnn_count(const kvd_cudnn_plan *plan)
{
    (void)plan;
    return 0;
}

const char *kvd_cudnn_candidate(const kvd_cudnn_plan *plan, int i, double *us)
{
    (void)plan, (void)i;
    *us = 0.0;
    return WHY;
}

int kvd_cudnn_choose(kvd_cudnn_plan *plan, int i, kvd_err *err)
{
    (void)plan, (void)i;
    return kvd_fail(err, "%s", WHY);
}

#endif
