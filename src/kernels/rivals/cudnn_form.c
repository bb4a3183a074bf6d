/* Builds attention as a graph of operations that cuDNN's engines recognise. */
#include "kernels/rivals/cudnn_form.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#ifdef KVD_HAVE_CUDNN

kvd_cudnn_library kvd_cudnn_lib;

int kvd_cudnn_load(kvd_err *err)
{
    if (kvd_cudnn_lib.so)
        return 0;
    void *so = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return kvd_fail(err, "cuDNN: libcudnn.so.9 is not there (%s)", dlerror());
    const struct {
        const char *name;
        /* Address of the variable that receives the pointer to the libcudnn function `name`. */
        void *to;
    } want[] = {
        {"cudnnGetVersion", &kvd_cudnn_lib.version},
        {"cudnnGetErrorString", &kvd_cudnn_lib.error_string},
        {"cudnnGetLastErrorString", &kvd_cudnn_lib.last_error},
        {"cudnnCreate", &kvd_cudnn_lib.create},
        {"cudnnDestroy", &kvd_cudnn_lib.destroy},
        {"cudnnSetStream", &kvd_cudnn_lib.set_stream},
        {"cudnnBackendCreateDescriptor", &kvd_cudnn_lib.desc_create},
        {"cudnnBackendDestroyDescriptor", &kvd_cudnn_lib.desc_destroy},
        {"cudnnBackendFinalize", &kvd_cudnn_lib.finalize},
        {"cudnnBackendSetAttribute", &kvd_cudnn_lib.set},
        {"cudnnBackendGetAttribute", &kvd_cudnn_lib.get},
        {"cudnnBackendExecute", &kvd_cudnn_lib.execute},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *f = dlsym(so, want[i].name);
        if (!f) {
            dlclose(so);
            return kvd_fail(err, "cuDNN: libcudnn.so.9 has no '%s'", want[i].name);
        }
        memcpy(want[i].to, &f, sizeof f);
    }
    kvd_cudnn_lib.so = so;
    return 0;
}

int kvd_cudnn_heap_init(kvd_cudnn_heap *heap, kvd_err *err)
{
    heap->n = 0;
    heap->made = calloc(KVD_CUDNN_DESCS_MAX, sizeof *heap->made);
    return heap->made
               ? 0
               : kvd_no_memory(err, "cuDNN descriptors", KVD_CUDNN_DESCS_MAX * sizeof *heap->made);
}

void kvd_cudnn_heap_release(kvd_cudnn_heap *heap)
{
    while (heap->n > 0)
        kvd_cudnn_lib.desc_destroy(heap->made[--heap->n]);
    free(heap->made);
    heap->made = NULL;
}

#endif

#ifdef KVD_HAVE_CUDNN

#include <stdbool.h>

#include "common/half.h"

/* OPS_MAX: largest number of operations in a cuDNN operation graph. UID_INNER: smallest id of a
 * tensor that passes from one operation to another. */
enum { OPS_MAX = 24, UID_INNER = 100 };

typedef struct {
    kvd_cudnn_steps steps;
    int64_t uid;
    int64_t score[4], score_stride[4], row[4], row_stride[4];
    desc ops[OPS_MAX];
    int n_ops;
} builder;

enum { REAL, VIRTUAL, BY_VALUE };

static desc tensor(builder *b, int64_t uid, cudnnDataType_t type, const int64_t dim[4],
                   const int64_t stride[4], int kind)
{
    const int64_t align = 16;
    const bool yes = true;
    desc d = make(&b->steps, CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor");
    set(&b->steps, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, "tensor type");
    set(&b->steps, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim, "tensor dimensions");
    set(&b->steps, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride, "tensor strides");
    set(&b->steps, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, "tensor id");
    set(&b->steps, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align,
        "tensor alignment");
    if (kind == VIRTUAL)
        set(&b->steps, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes,
            "virtual tensor");
    if (kind == BY_VALUE)
        set(&b->steps, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes,
            "tensor by value");
    finish(&b->steps, d, "tensor");
    return d;
}

/* Adds an intermediate tensor to the graph: one element per score or, if `per_row`, per query
 * row. */
static desc inner(builder *b, cudnnDataType_t type, int per_row)
{
    return tensor(b, b->uid++, type, per_row ? b->row : b->score,
                  per_row ? b->row_stride : b->score_stride, VIRTUAL);
}

static desc number(builder *b, kvd_cudnn_form *f, int uid, cudnnDataType_t type)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    f->uids[f->n_uids++] = uid;
    return tensor(b, uid, type, one, one, BY_VALUE);
}

static void add_op(builder *b, desc op, const char *what)
{
    finish(&b->steps, op, what);
    if (!ok(&b->steps))
        return;
    if (b->n_ops == OPS_MAX) {
        note(&b->steps, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
        return;
    }
    b->ops[b->n_ops++] = op;
}

/* Adds an elementwise operation on x to the graph, and returns its output y. The second operand
 * `other` and the condition `select` may be NULL. */
static desc pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t math, int64_t axis,
                      desc x, desc other, desc select, desc y)
{
    const float one = 1.0F;
    const char *what = "pointwise operation";
    desc pw = make(&b->steps, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(&b->steps, pw, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(&b->steps, pw, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(&b->steps, pw, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
    finish(&b->steps, pw, what);
    desc op = make(&b->steps, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pw, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    if (other)
        set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other, what);
    if (select)
        set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, select, what);
    set(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one, what);
    set(&b->steps, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one, what);
    add_op(b, op, what);
    return y;
}

static desc reduce(builder *b, cudnnReduceTensorOp_t how, desc x)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const char *what = "reduction";
    desc y = inner(b, CUDNN_DATA_FLOAT, 1);
    desc r = make(&b->steps, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(&b->steps, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    set(&b->steps, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how,
        what);
    finish(&b->steps, r, what);
    desc op = make(&b->steps, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    add_op(b, op, what);
    return y;
}

/* Adds the matrix product c = a b to the cuDNN graph. Tensors m, n and k hold each request's matrix
 * sizes; they are NULL if all requests have equal lengths. */
static void matmul(builder *b, desc a, desc bb, desc c, desc m, desc n, desc k)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    const char *what = "matmul";
    desc mm = make(&b->steps, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(&b->steps, mm, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &math, what);
    finish(&b->steps, mm, what);
    desc op = make(&b->steps, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, bb, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, mm, what);
    if (m)
        set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m, what);
    if (n)
        set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n, what);
    if (k)
        set_desc(&b->steps, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k, what);
    add_op(b, op, what);
}

static desc index_of(builder *b, int64_t axis, cudnnDataType_t math, desc x)
{
    return pointwise(b, CUDNN_POINTWISE_GEN_INDEX, math, axis, x, NULL, NULL,
                     inner(b, CUDNN_DATA_INT32, 0));
}

static desc compare(builder *b, cudnnPointwiseMode_t mode, desc x, desc y)
{
    return pointwise(b, mode, CUDNN_DATA_BOOLEAN, 0, x, y, NULL, inner(b, CUDNN_DATA_BOOLEAN, 0));
}

static desc float_op(builder *b, cudnnPointwiseMode_t mode, desc x, desc other, desc select)
{
    return pointwise(b, mode, CUDNN_DATA_FLOAT, 0, x, other, select, inner(b, CUDNN_DATA_FLOAT, 0));
}

/* Sets scores to -inf in rows after each request's last query and in columns after its last key. */
static desc mask_padding(builder *b, kvd_cudnn_form *f, desc s, desc q_len, desc kv_len)
{
    desc row = index_of(b, 2, CUDNN_DATA_INT32, s), col = index_of(b, 3, CUDNN_DATA_INT32, s);
    desc in_rows = compare(b, CUDNN_POINTWISE_CMP_LT, row, q_len);
    desc in_cols = compare(b, CUDNN_POINTWISE_CMP_LT, col, kv_len);
    desc in_both = compare(b, CUDNN_POINTWISE_LOGICAL_AND, in_rows, in_cols);
    return float_op(b, CUDNN_POINTWISE_BINARY_SELECT, s,
                    number(b, f, UID_NO_PADDING, CUDNN_DATA_FLOAT), in_both);
}

/* Masks future keys: keeps scores with row + kv_len - q_len >= col. If kv_len is NULL, keeps scores
 * with row >= col. */
static desc mask_future(builder *b, kvd_cudnn_form *f, desc s, desc q_len, desc kv_len)
{
    desc row = index_of(b, 2, CUDNN_DATA_FLOAT, s), col = index_of(b, 3, CUDNN_DATA_FLOAT, s);
    if (kv_len) {
        row = pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, 0, row, kv_len, NULL,
                        inner(b, CUDNN_DATA_INT32, 0));
        row = pointwise(b, CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, 0, row, q_len, NULL,
                        inner(b, CUDNN_DATA_INT32, 0));
    }
    desc seen = compare(b, CUDNN_POINTWISE_CMP_GE, row, col);
    return float_op(b, CUDNN_POINTWISE_BINARY_SELECT, s,
                    number(b, f, UID_NO_FUTURE, CUDNN_DATA_FLOAT), seen);
}

int kvd_cudnn_form_build(const kvd_cudnn_shape *s, cudnnHandle_t handle, int number_of_form,
                         int folded, int whole, kvd_cudnn_heap *heap, kvd_cudnn_form *f,
                         kvd_err *err)
{
    const int64_t group = s->n_heads / s->n_kv_heads, batch = s->batch;
    const int64_t heads = folded ? s->n_kv_heads : s->n_heads, rows = folded ? group : s->q_len;
    const cudnnDataType_t io = s->dtype == KVD_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const int64_t len_dim[4] = {batch, 1, 1, 1}, len_stride[4] = {1, 1, 1, 1};
    builder b = {.steps = {.heap = heap},
                 .uid = UID_INNER * (1 + number_of_form),
                 .score = {batch, heads, rows, s->kv_len},
                 .score_stride = {heads * rows * s->kv_len, rows * s->kv_len, s->kv_len, 1},
                 .row = {batch, heads, rows, 1},
                 .row_stride = {heads * rows, rows, 1, 1}};
    *f = (kvd_cudnn_form){.rows = rows, .uids = {UID_Q, UID_K, UID_V, UID_O}, .n_uids = 4};
    f->name = whole ? (folded ? "sdpa groups" : "sdpa heads")
                    : (folded ? "composite groups" : "composite heads");

    const int64_t q_head = folded ? group * s->q.head : s->q.head,
                  q_row = folded ? s->q.head : s->q.token;
    const int64_t o_head = folded ? group * s->o.head : s->o.head,
                  o_row = folded ? s->o.head : s->o.token;
    desc q = tensor(&b, UID_Q, io, (int64_t[]){batch, heads, rows, s->d_qk},
                    (int64_t[]){s->q.batch, q_head, q_row, 1}, REAL);
    /* K has layout [kv_len][d_qk] if attention is a single cuDNN operation (`whole`), else the
     * transposed layout. */
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
        desc op = make(&b.steps, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, what);
        set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q, what);
        set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k, what);
        set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v, what);
        set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o, what);
        set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale, what);
        if (s->ragged) {
            set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_QDESC, q_len, what);
            set_desc(&b.steps, op, CUDNN_ATTR_OPERATION_SDPA_FWD_SEQ_LEN_KVDESC, kv_len, what);
        }
        add_op(&b, op, what);
#else
        return kvd_fail(err, "cuDNN: headers of version %d have no whole attention operation",
                        CUDNN_VERSION);
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
        /* cuDNN recognises softmax by this logarithm of the sum. No later operation uses it. */
        desc log_sum = pointwise(&b, CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, 0, sum, NULL, NULL,
                                 inner(&b, CUDNN_DATA_FLOAT, 1));
        pointwise(&b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, 0, top, log_sum, NULL,
                  inner(&b, CUDNN_DATA_FLOAT, 1));
        desc prob =
            pointwise(&b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, 0, e, sum, NULL, inner(&b, io, 0));
        matmul(&b, prob, v, o, q_len, NULL, kv_len);
    }

    f->graph = make(&b.steps, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "operation graph");
    set(&b.steps, f->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b.n_ops,
        b.ops, "operation graph");
    set(&b.steps, f->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle,
        "operation graph");
    finish(&b.steps, f->graph, "operation graph");
    if (!ok(&b.steps))
        return fail(&b.steps, err);
    return 0;
}

#endif
