/* Implements kvdim/attention.h on the CPU, for development. Attention converts the whole cache to
 * float32. */
#include <string.h>

#include "common/half.h"
#include "common/memory.h"
#include "kernels/attention_ref.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/library/backend.h"

static kvdim_status check(kvd_err *err)
{
    (void)err;
    return KVDIM_OK;
}

static kvdim_status workspace(const kvdim_plan *p, size_t *bytes, kvd_err *err)
{
    (void)p;
    (void)err;
    *bytes = 0;
    return KVDIM_OK;
}

static kvdim_status plan(kvdim_plan *p, void *stream, kvd_err *err)
{
    (void)p;
    (void)stream;
    (void)err;
    return KVDIM_OK;
}

/* Fails if the page table of a request has a page number outside the pool. If `only_new` is true,
 * checks only pages with new tokens. */
static kvdim_status check_pages(const kvdim_plan *p, bool only_new, kvd_err *err)
{
    for (int b = 0; b < p->batch.batch; b++) {
        const int32_t first = only_new ? p->kv_len[b] - p->q_len[b] : 0;
        for (int32_t j = first / KVD_PAGE_TOKENS; j <= (p->kv_len[b] - 1) / KVD_PAGE_TOKENS; j++) {
            const int32_t page = p->page_table[(size_t)b * (size_t)p->max_pages + (size_t)j];
            if (page < 0 || page >= p->pool_pages) {
                kvd_fail(err, "page_table[%d][%d] is %d, but the pool has %d pages", b, (int)j,
                         (int)page, (int)p->pool_pages);
                return KVDIM_ERROR_ARGUMENT;
            }
        }
    }
    return KVDIM_OK;
}

/* Returns the page of token t of request b, which check_pages has checked. */
static uint16_t *page_of(const kvdim_plan *p, const void *pool, int b, size_t t)
{
    const int32_t page = p->page_table[(size_t)b * (size_t)p->max_pages + t / KVD_PAGE_TOKENS];
    return (uint16_t *)(uintptr_t)pool + (size_t)page * (size_t)p->layer->map.page_elements;
}

/* Stores `row` as token t of a matrix of 8 x 8 blocks. Zeros the later tokens in its group of 8. */
static void put_row(int dtype, const double *row, size_t d, size_t t, uint16_t *to)
{
    uint16_t line[KVD_WIDTH_MAX];
    float f[KVD_WIDTH_MAX] = {0};
    for (size_t i = 0; i < d; i++)
        f[i] = (float)row[i];
    kvd_from_f32((kvd_dtype)dtype, f, line, d);
    for (size_t i = 0; i < d; i += 8)
        memcpy(to + kvd_blocked_index(t, i, d), line + i, 8 * sizeof *line);
    memset(line, 0, sizeof line);
    for (size_t u = t + 1; u % 8; u++)
        for (size_t i = 0; i < d; i += 8)
            memcpy(to + kvd_blocked_index(u, i, d), line, 8 * sizeof *line);
}

static void store(const kvdim_plan *p, const double *k, const double *v, void *pool)
{
    const kvd_attn_map *const map = &p->layer->map;
    for (int g = 0; g < map->n_kv_heads; g++) {
        const size_t d_qk = (size_t)map->d_qk[g], d_v = (size_t)map->d_v[g];
        for (int b = 0; b < p->batch.batch; b++)
            for (int32_t i = 0; i < p->q_len[b]; i++, k += d_qk, v += d_v) {
                const size_t t = (size_t)(p->kv_len[b] - p->q_len[b] + i);
                uint16_t *const page = page_of(p, pool, b, t) + map->kv_offset[g];
                put_row(p->layer->dtype, k, d_qk, t % KVD_PAGE_TOKENS, page);
                put_row(p->layer->dtype, v, d_v, t % KVD_PAGE_TOKENS,
                        page + KVD_PAGE_TOKENS * d_qk);
            }
    }
}

static kvdim_status append(const kvdim_plan *p, const kvdim_append_args *a, void *stream,
                           kvd_err *err)
{
    (void)stream;
    if (check_pages(p, true, err))
        return KVDIM_ERROR_ARGUMENT;
    const kvdim_layer *const l = p->layer;
    const size_t n = (size_t)p->n_new, d_head = (size_t)l->heads.d_head,
                 group = (size_t)l->map.group;
    const size_t n_x = n * (size_t)(l->heads.n_heads + 2 * l->heads.n_kv_heads) * d_head;
    const size_t d_qk = (size_t)l->map.q_pitch / group, d_v = (size_t)l->map.o_pitch / group;
    kvd_pool pool = {0};
    float *const x = kvd_pool_new(&pool, n_x * sizeof *x),
                 *const q32 = kvd_pool_new(&pool, n * (size_t)l->map.q_pitch * sizeof *q32),
                 *const r_qk = a->r_qk ? kvd_pool_new(&pool, d_head * d_qk * sizeof *r_qk) : NULL,
                 *const r_v = a->r_v ? kvd_pool_new(&pool, d_head * d_v * sizeof *r_v) : NULL;
    double *const out =
        kvd_pool_new(&pool, n * ((size_t)l->map.q_pitch + d_qk + d_v) * sizeof *out);
    int32_t *const start = kvd_pool_new(&pool, (size_t)p->batch.batch * sizeof *start);
    kvdim_status status = KVDIM_ERROR_MEMORY;
    if (!kvd_pool_check(&pool, "new tokens", err)) {
        const kvd_dtype type = (kvd_dtype)l->dtype;
        double *const k = out + n * (size_t)l->map.q_pitch, *const v = k + n * d_qk;
        const kvd_rope_table rope = {a->rope_cos, a->rope_sin, a->rope_dim, a->rope_interleaved};
        for (int32_t b = 0, sum = 0; b < p->batch.batch; sum += p->q_len[b++])
            start[b] = sum;
        kvd_to_f32(type, a->x, x, n_x);
        if (r_qk)
            kvd_to_f32(type, a->r_qk, r_qk, d_head * d_qk);
        if (r_v)
            kvd_to_f32(type, a->r_v, r_v, d_head * d_v);
        status = kvd_append_ref(&l->heads, &p->batch, start, x, &rope, r_qk, r_v, out, k, v, err)
                     ? KVDIM_ERROR_ARGUMENT
                     : KVDIM_OK;
        if (!status)
            store(p, k, v, a->pool);
        for (size_t i = 0; !status && i < n * (size_t)l->map.q_pitch; i++)
            q32[i] = (float)out[i];
        if (!status)
            (p->decode ? kvd_pack_q_decode : kvd_pack_q)(&l->map, &p->batch, l->dtype, q32, a->q);
    }
    kvd_pool_free(&pool);
    return status;
}

static void read_q(const kvdim_plan *p, const uint16_t *q, float *to)
{
    const kvd_attn_map *const map = &p->layer->map;
    const kvd_dtype type = (kvd_dtype)p->layer->dtype;
    for (int h = 0; h < map->n_heads; h++) {
        const size_t d = (size_t)map->d_qk[h / map->group];
        const uint16_t *const head = q + (size_t)map->q_offset[h] * (size_t)p->n_rows;
        for (int b = 0; b < p->batch.batch; b++)
            for (int32_t t = 0; t < p->q_len[b]; t++, to += d) {
                const size_t row = (size_t)(p->row[b] + t);
                if (p->decode)
                    kvd_to_f32(type, q + row * (size_t)map->q_pitch + (size_t)map->q_offset[h], to,
                               d);
                for (size_t i = 0; !p->decode && i < d; i += 8)
                    kvd_to_f32(type, head + kvd_blocked_index(row, i, d), to + i, 8);
            }
    }
}

/* Converts K (side 0) or V (side 1) from cache pages to row-major float32. */
static void read_pages(const kvdim_plan *p, const void *pool, int side, float *to)
{
    const kvd_attn_map *const map = &p->layer->map;
    for (int g = 0; g < map->n_kv_heads; g++) {
        const size_t d = (size_t)(side ? map->d_v : map->d_qk)[g];
        const size_t first =
            (size_t)map->kv_offset[g] + (side ? (size_t)KVD_PAGE_TOKENS * (size_t)map->d_qk[g] : 0);
        for (int b = 0; b < p->batch.batch; b++)
            for (size_t t = 0; t < (size_t)p->kv_len[b]; t++, to += d) {
                const uint16_t *const page = page_of(p, pool, b, t);
                for (size_t i = 0; i < d; i += 8)
                    kvd_to_f32((kvd_dtype)p->layer->dtype,
                               page + first + kvd_blocked_index(t % KVD_PAGE_TOKENS, i, d), to + i,
                               8);
            }
    }
}

/* Writes the attention output and, unless `lse` is NULL, the logs of the softmax denominators. */
static void write_rows(const kvdim_plan *p, const float *o, const double *lse,
                       const kvdim_attend_args *a)
{
    const kvd_attn_map *const map = &p->layer->map;
    const size_t stride = a->o_stride ? (size_t)a->o_stride : (size_t)map->o_pitch;
    for (int h = 0; h < map->n_heads; h++) {
        const size_t d = (size_t)map->d_v[h / map->group];
        for (int b = 0; b < p->batch.batch; b++)
            for (int32_t t = 0; t < p->q_len[b]; t++, o += d) {
                const size_t row = (size_t)(p->row[b] + t);
                kvd_from_f32((kvd_dtype)p->layer->dtype, o,
                             (uint16_t *)a->o + row * stride + (size_t)map->o_offset[h], d);
                if (lse && p->decode)
                    a->lse[row * (size_t)map->n_heads + (size_t)h] = (float)*lse++;
                else if (lse)
                    a->lse[(size_t)h * (size_t)p->n_rows + row] = (float)*lse++;
            }
    }
}

static kvdim_status attend(const kvdim_plan *p, const kvdim_attend_args *a, void *stream,
                           kvd_err *err)
{
    (void)stream;
    const kvdim_layer *const l = p->layer;
    kvd_attn_plain plain;
    if (check_pages(p, false, err) || kvd_attn_plain_make(&l->heads, &p->batch, &plain, err))
        return KVDIM_ERROR_ARGUMENT;
    const size_t n_lse = (size_t)l->heads.n_heads * plain.n_q;
    kvd_pool pool = {0};
    float *const q = kvd_pool_new(&pool, plain.q_elements * sizeof *q),
                 *const k = kvd_pool_new(&pool, plain.k_elements * sizeof *k),
                 *const v = kvd_pool_new(&pool, plain.v_elements * sizeof *v),
                 *const o = kvd_pool_new(&pool, plain.o_elements * sizeof *o);
    /* Only the float64 reference computes the logarithms of the softmax denominators, lse. */
    double *const exact =
        a->lse ? kvd_pool_new(&pool, (plain.o_elements + n_lse) * sizeof *exact) : NULL;
    kvdim_status status = KVDIM_ERROR_MEMORY;
    if (!kvd_pool_check(&pool, "float32 copies", err)) {
        read_q(p, a->q, q);
        read_pages(p, a->pool, 0, k);
        read_pages(p, a->pool, 1, v);
        status = KVDIM_OK;
        if (exact) {
            double *const lse = exact + plain.o_elements;
            if (kvd_attention_ref(&l->heads, &p->batch, q, k, v, exact, lse, err))
                status = KVDIM_ERROR_MEMORY;
            for (size_t i = 0; !status && i < plain.o_elements; i++)
                o[i] = (float)exact[i];
        } else if (kvd_attention_cpu(&l->heads, &p->batch, KVD_CPU_AUTO, q, k, v, o, err)) {
            status = KVDIM_ERROR_MEMORY;
        }
        if (!status)
            write_rows(p, o, exact ? exact + plain.o_elements : NULL, a);
    }
    kvd_pool_free(&pool);
    return status;
}

const kvd_backend kvd_backend_cpu = {check, workspace, plan, append, attend};
