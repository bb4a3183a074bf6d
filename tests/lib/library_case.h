/* Compares the public library (include/kvdim/attention.h) with reference code. */
#ifndef KVD_TESTS_LIBRARY_CASE_H
#define KVD_TESTS_LIBRARY_CASE_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/rng.h"
#include "kernels/attention_ref.h"
#include "kvdim/attention.h"

/* Functions for memory of the device. They end the test if they fail. */
typedef struct {
    int device;
    void *(*take)(size_t bytes);
    void (*release)(void *p);
    void (*put)(void *to, const void *from, size_t bytes);
    /* Waits until the device has finished, then copies memory from the device to the host. */
    void (*get)(void *to, const void *from, size_t bytes);
} case_memory;

typedef struct {
    int dtype, n_heads, n_kv_heads, d_head;
    const int32_t *d_qk, *d_v;
    int n_requests;
    const int32_t *prompt; /* tokens of each prompt, [n_requests] */
    int steps;
    int rope_dim, rope_interleaved;
    bool rotate; /* passes rotation matrices for K and V to the library */
    bool lse;
    int64_t o_stride;
} library_case;

/* Returns n random numbers in a 16-bit type, and in *f as float32. */
static uint16_t *case_random(kvd_rng *rng, int dtype, size_t n, float scale, float **f)
{
    uint16_t *const p = malloc(n * sizeof *p);
    *f = malloc(n * sizeof **f);
    for (size_t i = 0; i < n; i++)
        (*f)[i] = scale * (float)kvd_rng_normal(rng);
    kvd_from_f32((kvd_dtype)dtype, *f, p, n);
    kvd_to_f32((kvd_dtype)dtype, p, *f, n);
    return p;
}

static void case_round(int dtype, const double *from, float *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (float)from[i];
    uint16_t *const h = malloc(n * sizeof *h);
    kvd_from_f32((kvd_dtype)dtype, to, h, n);
    kvd_to_f32((kvd_dtype)dtype, h, to, n);
    free(h);
}

static void case_free(void *const *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(p[i]);
}

/* Runs attention by the public library. Returns the largest relative error ||o - ref|| / ||ref|| of
 * outputs, or a negative number if a call fails or memory that must stay unchanged changes. */
static double library_case_run(const library_case *c, const case_memory *m, double *lse_error)
{
    enum { MAX_PAGES = 8 };
    const int dtype = c->dtype == KVDIM_F16 ? KVD_F16 : KVD_BF16;
    const size_t n_b = (size_t)c->n_requests, d_head = (size_t)c->d_head,
                 capacity = MAX_PAGES * KVDIM_PAGE_TOKENS;
    kvd_rng rng;
    kvd_rng_seed(&rng, 7, 0);
    double worst = -1;
    *lse_error = 0;
    kvdim_heads heads = {sizeof heads,  m->device, c->dtype, c->n_heads,
                         c->n_kv_heads, c->d_head, c->d_qk,  c->d_v};
    kvdim_layer *layer;
    kvdim_layer_sizes sizes = {.struct_size = sizeof sizes};
    if (kvdim_layer_create(&heads, &layer) || kvdim_layer_get_sizes(layer, &sizes)) {
        printf("# %s\n", kvdim_last_error());
        return -1;
    }
    kvd_attn_heads ref = {.n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .d_head = c->d_head};
    size_t n_qk = 0, n_v = 0;
    for (int g = 0; g < c->n_kv_heads; g++) {
        n_qk += (size_t)(ref.d_qk[g] = c->d_qk[g]);
        n_v += (size_t)(ref.d_v[g] = c->d_v[g]);
    }
    const size_t pool_pages = n_b * MAX_PAGES + 1, pool_bytes = pool_pages * sizes.page_bytes;
    int32_t *const table = malloc(n_b * MAX_PAGES * sizeof *table);
    for (size_t i = 0; i < n_b * MAX_PAGES; i++)
        table[i] = (int32_t)(pool_pages - 1 - i);
    unsigned char *const raw = malloc(pool_bytes);
    memset(raw, 0xff, pool_bytes);
    void *const pool = m->take(pool_bytes);
    m->put(pool, raw, pool_bytes);
    void *const table_device = m->take(n_b * MAX_PAGES * sizeof *table);
    m->put(table_device, table, n_b * MAX_PAGES * sizeof *table);
    float *r_qk, *r_v;
    const float scale = 1 / sqrtf((float)d_head);
    uint16_t *const r_qk16 = case_random(&rng, dtype, d_head * n_qk, scale, &r_qk);
    uint16_t *const r_v16 = case_random(&rng, dtype, d_head * n_v, scale, &r_v);
    void *const r_qk_device = m->take(d_head * n_qk * 2), *const r_v_device =
                                                              m->take(d_head * n_v * 2);
    m->put(r_qk_device, r_qk16, d_head * n_qk * 2);
    m->put(r_v_device, r_v16, d_head * n_v * 2);
    const size_t half = (size_t)c->rope_dim / 2;
    float *const cosine = calloc(capacity * half + 1, sizeof *cosine), *const sine = calloc(
                                                                           capacity * half + 1,
                                                                           sizeof *sine);
    for (size_t s = 0; s < capacity; s++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)s * pow(10000, -(double)i / (double)half);
            cosine[s * half + i] = (float)cos(angle);
            sine[s * half + i] = (float)sin(angle);
        }
    void *const cos_device = m->take((capacity * half + 1) * 4), *const sin_device = m->take(
                                                                     (capacity * half + 1) * 4);
    m->put(cos_device, cosine, (capacity * half + 1) * 4);
    m->put(sin_device, sine, (capacity * half + 1) * 4);
    const kvd_rope_table rope = {c->rope_dim ? cosine : NULL, c->rope_dim ? sine : NULL,
                                 c->rope_dim, c->rope_interleaved};
    float *const k_past = calloc(n_b * capacity * n_qk, sizeof *k_past), *const v_past = calloc(
                                                                             n_b * capacity * n_v,
                                                                             sizeof *v_past);
    int32_t *const q_len = malloc(n_b * 4), *const kv_len = calloc(n_b, 4),
                   *const start = malloc(n_b * 4);
    kvdim_plan *plan = NULL;
    void *workspace = NULL;
    kvdim_status status = KVDIM_OK;
    for (int step = 0; step <= c->steps && !status; step++) {
        int32_t n_new = 0, n_kv = 0;
        for (size_t b = 0; b < n_b; b++) {
            start[b] = n_new;
            n_new += q_len[b] = step ? 1 : c->prompt[b];
            n_kv += kv_len[b] += q_len[b];
        }
        const kvd_attn_batch batch = {c->n_requests, q_len, kv_len};
        const kvdim_batch call = {sizeof call, c->n_requests, MAX_PAGES,   (int32_t)pool_pages,
                                  q_len,       kv_len,        table_device};
        /* The prompt and the first decode step each make a new plan of how the work is divided.
         * Later decode steps reuse the plan and only advance it by a token. */
        if (step < 2) {
            size_t bytes = 0;
            kvdim_plan_destroy(plan);
            plan = NULL;
            if (workspace)
                m->release(workspace);
            status = kvdim_workspace_bytes(layer, &call, &bytes);
            workspace = bytes ? m->take(bytes) : NULL;
            if (!status)
                status = kvdim_plan_create(layer, &call, workspace, bytes, NULL, &plan);
        } else {
            status = kvdim_plan_advance(plan, NULL);
        }
        if (status)
            break;
        const size_t rows = (size_t)kvdim_plan_rows(plan),
                     n_x = (size_t)n_new * (size_t)sizes.x_columns;
        const size_t stride = c->o_stride ? (size_t)c->o_stride : (size_t)sizes.o_columns;
        float *x;
        uint16_t *const x16 = case_random(&rng, dtype, n_x, 1, &x);
        void *const x_device = m->take(n_x * 2),
                    *const q_device = m->take(rows * (size_t)sizes.q_columns * 2),
                    *const o_device = m->take(rows * stride * 2);
        const size_t n_lse = (size_t)c->n_heads * rows;
        void *const lse_device = c->lse ? m->take(n_lse * 4) : NULL;
        m->put(x_device, x16, n_x * 2);
        const kvdim_append_args append = {sizeof append,
                                          x_device,
                                          c->rope_dim ? cos_device : NULL,
                                          c->rope_dim ? sin_device : NULL,
                                          c->rope_dim,
                                          c->rope_interleaved,
                                          c->rotate ? r_qk_device : NULL,
                                          c->rotate ? r_v_device : NULL,
                                          q_device,
                                          pool};
        const kvdim_attend_args attend = {sizeof attend, q_device,    pool,
                                          o_device,      c->o_stride, lse_device};
        status = kvdim_append(plan, &append, NULL);
        if (!status)
            status = kvdim_attend(plan, &attend, NULL);
        const size_t q_total = (size_t)n_new * (size_t)sizes.q_columns,
                     o_total = (size_t)n_new * (size_t)sizes.o_columns;
        double *const wide = malloc((q_total + (size_t)n_new * (n_qk + n_v)) * sizeof *wide),
                      *const o_ref = malloc((o_total + n_lse) * sizeof *o_ref);
        double *const k_new = wide + q_total, *const v_new = k_new + (size_t)n_new * n_qk;
        float *const q = malloc(q_total * sizeof *q),
                     *const k = malloc(((size_t)n_new * n_qk + (size_t)n_kv * n_qk) * sizeof *k),
                     *const v = malloc(((size_t)n_new * n_v + (size_t)n_kv * n_v) * sizeof *v);
        kvd_err err = {0};
        if (!status && kvd_append_ref(&ref, &batch, start, x, &rope, c->rotate ? r_qk : NULL,
                                      c->rotate ? r_v : NULL, wide, k_new, v_new, &err))
            status = KVDIM_ERROR_ARGUMENT;
        if (!status) {
            case_round(dtype, wide, q, q_total);
            float *const k_rounded = k + (size_t)n_kv * n_qk, *const v_rounded =
                                                                  v + (size_t)n_kv * n_v;
            case_round(dtype, k_new, k_rounded, (size_t)n_new * n_qk);
            case_round(dtype, v_new, v_rounded, (size_t)n_new * n_v);
            float *to[2] = {k, v};
            const float *from[2] = {k_rounded, v_rounded};
            float *past[2] = {k_past, v_past};
            for (int g = 0; g < c->n_kv_heads; g++)
                for (int side = 0; side < 2; side++) {
                    const size_t d = (size_t)(side ? c->d_v : c->d_qk)[g];
                    for (size_t b = 0; b < n_b; b++) {
                        float *const mine = past[side] + b * capacity * d;
                        memcpy(mine + (size_t)(kv_len[b] - q_len[b]) * d, from[side],
                               (size_t)q_len[b] * d * sizeof *mine);
                        from[side] += (size_t)q_len[b] * d;
                        memcpy(to[side], mine, (size_t)kv_len[b] * d * sizeof *mine);
                        to[side] += (size_t)kv_len[b] * d;
                    }
                    past[side] += n_b * capacity * d;
                }
            if (kvd_attention_ref(&ref, &batch, q, k, v, o_ref, o_ref + o_total, &err))
                status = KVDIM_ERROR_ARGUMENT;
        }
        if (err.msg[0])
            printf("# reference: %s\n", err.msg);
        uint16_t *const o16 = malloc(rows * stride * 2);
        float *const lse = malloc(n_lse * 4);
        if (!status) {
            m->get(o16, o_device, rows * stride * 2);
            if (c->lse)
                m->get(lse, lse_device, n_lse * 4);
            const double *want = o_ref, *want_lse = o_ref + o_total;
            for (int h = 0; h < c->n_heads; h++) {
                const int g = h / (c->n_heads / c->n_kv_heads);
                const size_t d = (size_t)c->d_v[g], column = (size_t)kvdim_layer_o_column(layer, h);
                double difference = 0, norm = 0;
                for (size_t b = 0; b < n_b; b++)
                    for (int32_t t = 0; t < q_len[b]; t++, want += d, want_lse++) {
                        const size_t row = (size_t)(kvdim_plan_first_row(plan, (int32_t)b) + t);
                        float got[256];
                        kvd_to_f32((kvd_dtype)dtype, o16 + row * stride + column, got, d);
                        for (size_t i = 0; i < d; i++) {
                            difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
                            norm += want[i] * want[i];
                        }
                        if (c->lse) {
                            const float l = rows == n_b && q_len[b] == 1 && step
                                                ? lse[row * (size_t)c->n_heads + (size_t)h]
                                                : lse[(size_t)h * rows + row];
                            *lse_error = fmax(*lse_error, fabs((double)l - *want_lse));
                        }
                    }
                worst = fmax(worst, isfinite(difference) ? sqrt(difference / norm) : INFINITY);
            }
        }
        case_free((void *[]){x, x16, wide, o_ref, q, k, v, o16, lse}, 9);
        m->release(x_device);
        m->release(q_device);
        m->release(o_device);
        if (lse_device)
            m->release(lse_device);
    }
    if (status)
        printf("# status %d: %s\n", (int)status, kvdim_last_error());
    kvdim_plan_destroy(plan);
    kvdim_layer_destroy(layer);
    void *const device[] = {pool, table_device, r_qk_device, r_v_device, cos_device, sin_device};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        m->release(device[i]);
    if (workspace)
        m->release(workspace);
    case_free((void *[]){table, raw, r_qk, r_v, r_qk16, r_v16, cosine, sine, k_past, v_past, q_len,
                         kv_len, start},
              13);
    return status ? -1 : worst;
}

static const library_case library_cases[] = {
    {KVDIM_BF16, 4, 2, 64, (const int32_t[]){48, 16}, (const int32_t[]){32, 64}, 3,
     (const int32_t[]){70, 1, 13}, 5, 64, 0, true, true, 0},
    {KVDIM_F16, 8, 8, 32, (const int32_t[]){16, 32, 16, 16, 32, 32, 16, 32},
     (const int32_t[]){32, 16, 16, 32, 32, 16, 32, 16}, 2, (const int32_t[]){64, 129}, 2, 16, 1,
     true, false, 8 * 32 + 8},
    {KVDIM_BF16, 6, 1, 128, (const int32_t[]){128}, (const int32_t[]){128}, 1,
     (const int32_t[]){100}, 30, 128, 0, false, true, 0},
    {KVDIM_F16, 2, 2, 16, (const int32_t[]){16, 16}, (const int32_t[]){16, 16}, 4,
     (const int32_t[]){1, 2, 3, 4}, 3, 0, 0, false, false, 40},
    {KVDIM_BF16, 4, 2, 256, (const int32_t[]){256, 144}, (const int32_t[]){240, 16}, 3,
     (const int32_t[]){70, 1, 13}, 5, 256, 0, true, true, 0},
    {KVDIM_F16, 8, 1, 240, (const int32_t[]){240}, (const int32_t[]){240}, 1,
     (const int32_t[]){100}, 10, 240, 1, false, false, 0},
};

#endif
