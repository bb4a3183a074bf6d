/* libkvdim-attention: checks arguments and calls the CPU or GPU code. */
#include "kvdim/attention.h"

#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/version.h"
#include "kernels/library/backend.h"

_Static_assert((int)KVDIM_PAGE_TOKENS == (int)KVD_PAGE_TOKENS, "tokens of a page");

static _Thread_local kvd_err last;

/* Sets the calling thread's last error message, and has the value `status`. */
#define FAIL(status, ...) (kvd_fail(&last, __VA_ARGS__), (status))

int kvdim_attention_abi(void)
{
    return KVDIM_ATTENTION_ABI;
}

const char *kvdim_attention_version(void)
{
    return KVD_VERSION;
}

const char *kvdim_last_error(void)
{
    return last.msg;
}

/* Returns false and sets the error message if a pointer is NULL or struct_size is wrong. */
static bool is_given(const char *object, const void *o, const char *name, const char *type,
                     const void *s, size_t expected)
{
    if (!o || !s)
        return FAIL(false, "%s is NULL", o ? name : object);
    const size_t given = *(const size_t *)s;
    return given == expected ||
           FAIL(false,
                "%s.struct_size is %zu, expected %zu: compile with the header of this library",
                type, given, expected);
}

static kvdim_status check_aligned(const char *name, const void *address, size_t bytes)
{
    return (uintptr_t)address % bytes
               ? FAIL(KVDIM_ERROR_ARGUMENT,
                      "%s is at address %p, which is not aligned to %zu bytes", name, address,
                      bytes)
               : KVDIM_OK;
}

static kvdim_status check_heads(const kvdim_heads *h)
{
    if (h->device != KVDIM_CPU && h->device != KVDIM_CUDA)
        return FAIL(KVDIM_ERROR_ARGUMENT, "device is %d, expected KVDIM_CPU or KVDIM_CUDA",
                    (int)h->device);
    if (h->dtype != KVDIM_F16 && h->dtype != KVDIM_BF16)
        return FAIL(KVDIM_ERROR_ARGUMENT, "dtype is %d, expected KVDIM_F16 or KVDIM_BF16",
                    (int)h->dtype);
    if (h->n_heads < 1 || h->n_heads > KVD_HEADS_MAX || h->n_kv_heads < 1 ||
        h->n_kv_heads > h->n_heads || h->n_heads % h->n_kv_heads)
        return FAIL(KVDIM_ERROR_ARGUMENT,
                    "n_heads is %d and n_kv_heads %d: the second must divide the first, at most %d",
                    (int)h->n_heads, (int)h->n_kv_heads, KVD_HEADS_MAX);
    if (!kvd_width_fits(h->d_head, KVD_WIDTH_MAX))
        return FAIL(KVDIM_ERROR_ARGUMENT, "d_head is %d, expected a multiple of %d of at most %d",
                    (int)h->d_head, KVD_WIDTH_STEP, KVD_WIDTH_MAX);
    if (!h->d_qk || !h->d_v)
        return FAIL(KVDIM_ERROR_ARGUMENT, "%s is NULL", h->d_qk ? "d_v" : "d_qk");
    if (check_aligned("d_qk", h->d_qk, sizeof *h->d_qk) ||
        check_aligned("d_v", h->d_v, sizeof *h->d_v))
        return KVDIM_ERROR_ARGUMENT;
    for (int g = 0; g < h->n_kv_heads; g++)
        for (int v = 0; v < 2; v++) {
            const int32_t d = (v ? h->d_v : h->d_qk)[g];
            if (!kvd_width_fits(d, h->d_head))
                return FAIL(KVDIM_ERROR_ARGUMENT,
                            "%s[%d] is %d, expected a multiple of %d from %d to d_head (%d)",
                            v ? "d_v" : "d_qk", g, (int)d, KVD_WIDTH_STEP, KVD_WIDTH_STEP,
                            (int)h->d_head);
        }
    return KVDIM_OK;
}

kvdim_status kvdim_layer_create(const kvdim_heads *heads, kvdim_layer **layer)
{
    if (layer)
        *layer = NULL;
    if (!is_given("layer", layer, "heads", "kvdim_heads", heads, sizeof *heads))
        return KVDIM_ERROR_ARGUMENT;
    kvdim_status status = check_heads(heads);
    if (status)
        return status;
    kvdim_layer *const l = calloc(1, sizeof *l);
    if (!l)
        return kvd_no_memory(&last, "a layer", sizeof *l), KVDIM_ERROR_MEMORY;
    l->dtype = heads->dtype == KVDIM_F16 ? KVD_F16 : KVD_BF16;
    l->heads = (kvd_attn_heads){
        .n_heads = heads->n_heads, .n_kv_heads = heads->n_kv_heads, .d_head = heads->d_head};
    for (int g = 0; g < heads->n_kv_heads; g++) {
        l->heads.d_qk[g] = heads->d_qk[g];
        l->heads.d_v[g] = heads->d_v[g];
    }
    if (kvd_attn_map_make(&l->heads, &l->map))
        status = FAIL(KVDIM_ERROR_ARGUMENT, "widths outside the limits of kernels/layout.h");
    else if (heads->device == KVDIM_CPU)
        l->backend = &kvd_backend_cpu;
    else
#ifdef KVD_CUDA
        l->backend = &kvd_backend_cuda;
#else
        status = FAIL(KVDIM_ERROR_DEVICE, "this library was built without CUDA");
#endif
    if (!status)
        status = l->backend->check(&last);
    if (status)
        free(l);
    else
        *layer = l;
    return status;
}

void kvdim_layer_destroy(kvdim_layer *layer)
{
    free(layer);
}

kvdim_status kvdim_layer_get_sizes(const kvdim_layer *layer, kvdim_layer_sizes *sizes)
{
    if (!is_given("layer", layer, "sizes", "kvdim_layer_sizes", sizes, sizeof *sizes))
        return KVDIM_ERROR_ARGUMENT;
    sizes->page_bytes = (size_t)layer->map.page_elements * sizeof(uint16_t);
    sizes->x_columns = (layer->heads.n_heads + 2 * layer->heads.n_kv_heads) * layer->heads.d_head;
    sizes->q_columns = layer->map.q_pitch;
    sizes->o_columns = layer->map.o_pitch;
    return KVDIM_OK;
}

int32_t kvdim_layer_o_column(const kvdim_layer *layer, int32_t head)
{
    return layer && head >= 0 && head < layer->map.n_heads ? layer->map.o_offset[head] : -1;
}

static kvdim_status check_batch(const kvdim_layer *layer, const kvdim_batch *b)
{
    if (!is_given("layer", layer, "batch", "kvdim_batch", b, sizeof *b))
        return KVDIM_ERROR_ARGUMENT;
    if (b->n_requests < 1 || b->max_pages < 1 || b->pool_pages < 1)
        return FAIL(KVDIM_ERROR_ARGUMENT,
                    "n_requests is %d, max_pages %d, pool_pages %d: each must be at least 1",
                    (int)b->n_requests, (int)b->max_pages, (int)b->pool_pages);
    if (b->max_pages > INT32_MAX / KVD_PAGE_TOKENS)
        return FAIL(KVDIM_ERROR_ARGUMENT, "max_pages is %d, at most %d", (int)b->max_pages,
                    INT32_MAX / KVD_PAGE_TOKENS);
    if (!b->kv_len || !b->page_table)
        return FAIL(KVDIM_ERROR_ARGUMENT, "%s is NULL", b->kv_len ? "page_table" : "kv_len");
    if (check_aligned("q_len", b->q_len, sizeof *b->q_len) ||
        check_aligned("kv_len", b->kv_len, sizeof *b->kv_len) ||
        check_aligned("page_table", b->page_table, sizeof *b->page_table))
        return KVDIM_ERROR_ARGUMENT;
    int64_t rows = 0;
    for (int i = 0; i < b->n_requests; i++) {
        const int32_t q = b->q_len ? b->q_len[i] : 1, kv = b->kv_len[i];
        if (q < 1 || kv < q || kv > b->max_pages * KVD_PAGE_TOKENS)
            return FAIL(KVDIM_ERROR_ARGUMENT,
                        "request %d has %d new of %d tokens; expected 1 <= q_len <= kv_len <= %d",
                        i, (int)q, (int)kv, (int)(b->max_pages * KVD_PAGE_TOKENS));
        rows += ((int64_t)q + 7) / 8 * 8;
    }
    if (rows > INT32_MAX)
        return FAIL(KVDIM_ERROR_ARGUMENT, "the batch has %lld rows, at most %d", (long long)rows,
                    INT32_MAX);
    return KVDIM_OK;
}

static void place_rows(kvdim_plan *p)
{
    p->n_new = 0;
    for (int i = 0; i < p->batch.batch; i++)
        p->n_new += p->q_len[i];
    if (!p->decode) {
        p->n_rows = (int32_t)kvd_blocked_rows(&p->batch, p->row);
        return;
    }
    p->n_rows = p->batch.batch;
    for (int i = 0; i < p->batch.batch; i++)
        p->row[i] = i;
}

/* Creates a plan: the division of a batch's attention among processors. On failure returns NULL. */
static kvdim_plan *new_plan(const kvdim_layer *layer, const kvdim_batch *b)
{
    const size_t n = (size_t)b->n_requests;
    kvdim_plan *const p = calloc(1, sizeof *p);
    int32_t *const lengths = malloc(3 * n * sizeof *lengths);
    if (!p || !lengths) {
        free(p);
        free(lengths);
        kvd_no_memory(&last, "a plan", 3 * n * sizeof *lengths);
        return NULL;
    }
    *p = (kvdim_plan){.layer = layer,
                      .decode = true,
                      .max_pages = b->max_pages,
                      .pool_pages = b->pool_pages,
                      .page_table = b->page_table,
                      .q_len = lengths,
                      .kv_len = lengths + n,
                      .row = lengths + 2 * n,
                      .batch = {b->n_requests, lengths, lengths + n}};
    for (size_t i = 0; i < n; i++) {
        p->q_len[i] = b->q_len ? b->q_len[i] : 1;
        p->kv_len[i] = b->kv_len[i];
        p->decode = p->decode && p->q_len[i] == 1;
    }
    place_rows(p);
    return p;
}

void kvdim_plan_destroy(kvdim_plan *plan)
{
    if (!plan)
        return;
    free(plan->state);
    free(plan->q_len);
    free(plan);
}

kvdim_status kvdim_workspace_bytes(const kvdim_layer *layer, const kvdim_batch *batch,
                                   size_t *bytes)
{
    kvdim_status status = check_batch(layer, batch);
    if (status)
        return status;
    if (!bytes)
        return FAIL(KVDIM_ERROR_ARGUMENT, "bytes is NULL");
    kvdim_plan *const p = new_plan(layer, batch);
    if (!p)
        return KVDIM_ERROR_MEMORY;
    status = layer->backend->workspace(p, bytes, &last);
    kvdim_plan_destroy(p);
    return status;
}

kvdim_status kvdim_plan_create(const kvdim_layer *layer, const kvdim_batch *batch, void *workspace,
                               size_t workspace_bytes, void *stream, kvdim_plan **plan)
{
    if (!plan)
        return FAIL(KVDIM_ERROR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    kvdim_status status = check_batch(layer, batch);
    if (status)
        return status;
    kvdim_plan *const p = new_plan(layer, batch);
    if (!p)
        return KVDIM_ERROR_MEMORY;
    size_t needed = 0;
    status = layer->backend->workspace(p, &needed, &last);
    if (!status && needed && (uintptr_t)workspace % 256)
        status = FAIL(KVDIM_ERROR_ARGUMENT, "the workspace is not aligned to 256 bytes");
    else if (!status && needed && (!workspace || workspace_bytes < needed))
        status = FAIL(KVDIM_ERROR_MEMORY, "the workspace has %zu bytes, the plan needs %zu",
                      workspace ? workspace_bytes : 0, needed);
    p->workspace = workspace;
    if (!status)
        status = layer->backend->plan(p, stream, &last);
    if (status)
        kvdim_plan_destroy(p);
    else
        *plan = p;
    return status;
}

kvdim_status kvdim_plan_advance(kvdim_plan *plan, void *stream)
{
    if (!plan)
        return FAIL(KVDIM_ERROR_ARGUMENT, "plan is NULL");
    if (!plan->decode)
        return FAIL(KVDIM_ERROR_ARGUMENT, "only a decode plan can be advanced; create a new plan");
    for (int i = 0; i < plan->batch.batch; i++)
        if (plan->kv_len[i] >= plan->max_pages * KVD_PAGE_TOKENS)
            return FAIL(KVDIM_ERROR_ARGUMENT, "request %d fills its %d pages: no room for a token",
                        i, (int)plan->max_pages);
    for (int i = 0; i < plan->batch.batch; i++)
        plan->kv_len[i]++;
    const kvdim_status status = plan->layer->backend->plan(plan, stream, &last);
    for (int i = 0; status && i < plan->batch.batch; i++)
        plan->kv_len[i]--;
    return status;
}

int32_t kvdim_plan_rows(const kvdim_plan *plan)
{
    return plan ? plan->n_rows : 0;
}

int32_t kvdim_plan_first_row(const kvdim_plan *plan, int32_t request)
{
    return plan && request >= 0 && request < plan->batch.batch ? plan->row[request] : -1;
}

/* Returns the alignment in bytes that a 16-bit array needs: `on_cuda` bytes if the layer is on a
 * GPU, 2 if it is on the CPU. */
static size_t alignment(const kvdim_layer *layer, size_t on_cuda)
{
    return layer->backend == &kvd_backend_cpu ? sizeof(uint16_t) : on_cuda;
}

kvdim_status kvdim_append(const kvdim_plan *plan, const kvdim_append_args *args, void *stream)
{
    if (!is_given("plan", plan, "args", "kvdim_append_args", args, sizeof *args))
        return KVDIM_ERROR_ARGUMENT;
    if (!args->x || !args->q || !args->pool)
        return FAIL(KVDIM_ERROR_ARGUMENT, "%s is NULL", !args->x ? "x" : !args->q ? "q" : "pool");
    const size_t aligned = alignment(plan->layer, 16);
    if (check_aligned("x", args->x, aligned) || check_aligned("q", args->q, aligned) ||
        check_aligned("r_qk", args->r_qk, aligned) || check_aligned("r_v", args->r_v, aligned) ||
        check_aligned("pool", args->pool, alignment(plan->layer, 128)) ||
        check_aligned("rope_cos", args->rope_cos, sizeof *args->rope_cos) ||
        check_aligned("rope_sin", args->rope_sin, sizeof *args->rope_sin))
        return KVDIM_ERROR_ARGUMENT;
    if (!args->rope_cos != !args->rope_sin)
        return FAIL(KVDIM_ERROR_ARGUMENT, "rope_cos and rope_sin: one of the two is NULL");
    if (args->rope_cos &&
        (args->rope_dim < 2 || args->rope_dim % 2 || args->rope_dim > plan->layer->heads.d_head))
        return FAIL(KVDIM_ERROR_ARGUMENT, "rope_dim is %d, expected an even number of 2 to %d",
                    (int)args->rope_dim, plan->layer->heads.d_head);
    if (args->rope_cos && args->rope_interleaved != 0 && args->rope_interleaved != 1)
        return FAIL(KVDIM_ERROR_ARGUMENT, "rope_interleaved is %d, expected 0 or 1",
                    (int)args->rope_interleaved);
    return plan->layer->backend->append(plan, args, stream, &last);
}

kvdim_status kvdim_attend(const kvdim_plan *plan, const kvdim_attend_args *args, void *stream)
{
    if (!is_given("plan", plan, "args", "kvdim_attend_args", args, sizeof *args))
        return KVDIM_ERROR_ARGUMENT;
    if (!args->q || !args->pool || !args->o)
        return FAIL(KVDIM_ERROR_ARGUMENT, "%s is NULL",
                    !args->q      ? "q"
                    : !args->pool ? "pool"
                                  : "o");
    const size_t aligned = alignment(plan->layer, 16);
    if (check_aligned("q", args->q, aligned) || check_aligned("o", args->o, aligned) ||
        check_aligned("pool", args->pool, alignment(plan->layer, 128)) ||
        check_aligned("lse", args->lse, sizeof *args->lse))
        return KVDIM_ERROR_ARGUMENT;
    const int64_t columns = plan->layer->map.o_pitch;
    if (args->o_stride && (args->o_stride < columns || args->o_stride % KVDIM_STRIDE_ELEMENTS ||
                           args->o_stride > INT32_MAX))
        return FAIL(
            KVDIM_ERROR_ARGUMENT, "o_stride is %lld, expected a multiple of %d of %lld to %d, or 0",
            (long long)args->o_stride, KVDIM_STRIDE_ELEMENTS, (long long)columns, INT32_MAX);
    return plan->layer->backend->attend(plan, args, stream, &last);
}
