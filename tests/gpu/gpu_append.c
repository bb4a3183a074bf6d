/* Compares the kernel kvd_append, which rotates Q, K and V of new tokens and stores K and V in the
 * cache, with a reference in double precision. */
#include <math.h>

#include "kernels/attention_ref.h"
#include "kernels/cuda/append.h"

#include "gpu_case.h"

/* LATE: number that some tests add to RoPE positions. POISON: a NaN in bf16 and f16. */
enum { MAX_BATCH = 300, LATE = 24, POISON = 0x7fff };

typedef struct {
    const char *name;
    kvd_dtype dtype;
    int n_heads, n_kv, d_head;
    /* 0: all heads keep d_head dimensions; 1: the number of kept dimensions differs from head to
     * head */
    int widths;
    int rope_dim, rope_kind; /* 0: pairs (i, i + half), 1: pairs (2i, 2i + 1), -1: no RoPE */
    /* r_qk: 1 if the kernel rotates Q and K by matrices; r_v: 1 if it rotates V */
    int r_qk, r_v;
    /* index of the requests' lengths in array `lists`; -1: 256 requests of 1 new token, -2: 37
     * requests of 1 to 40 */
    int lengths;
} scenario;

typedef struct {
    scenario c;
    kvd_attn_heads heads;
    kvd_attn_map map;
    int batch, max_pages, n_pages;
    int32_t q_len[MAX_BATCH], kv_len[MAX_BATCH], start[MAX_BATCH];
    int32_t *page_table;
    /* n_q: number of new tokens; row: number of elements of a token's Q, K and V */
    size_t n_q, row;
    float *x, *cos, *sin, *r_qk, *r_v;
    uint16_t *x16;
    void *dev_r_qk, *dev_r_v, *dev_cos, *dev_sin, *dev_table;
    /* 1 if each token's RoPE position is its index in the cache plus LATE */
    int late;
    void *late_cos, *late_sin;
    size_t pool_elements;
    uint16_t *pool;
} fixture;

static void make_batch(fixture *f, kvd_rng *rng)
{
    static const int lists[][8][2] = {
        {{1, 1}, {0}},
        {{64, 64}, {0}},
        {{5, 69}, {8, 8}, {17, 140}, {1, 64}, {1, 65}, {63, 63}, {0}},
        {{200, 200}, {129, 300}, {7, 71}, {0}},
        {{61, 190}, {3, 11}, {66, 67}, {2, 8}, {0}},
        {{1, 1}, {1, 8}, {1, 9}, {1, 64}, {1, 65}, {1, 128}, {1, 200}, {0}},
        {{1000, 1003}, {0}},
    };
    if (f->c.lengths < 0) {
        f->batch = f->c.lengths == -1 ? 256 : 37;
        for (int b = 0; b < f->batch; b++) {
            f->q_len[b] = f->c.lengths == -2 ? 1 + (int32_t)kvd_rng_below(rng, 40) : 1;
            f->kv_len[b] = f->q_len[b] + (int32_t)kvd_rng_below(rng, 200);
        }
        return;
    }
    for (f->batch = 0; f->batch < 8 && lists[f->c.lengths][f->batch][0]; f->batch++) {
        f->q_len[f->batch] = lists[f->c.lengths][f->batch][0];
        f->kv_len[f->batch] = lists[f->c.lengths][f->batch][1];
    }
}

/* Copies a RoPE table to the device. In front of it are LATE rows of NaN, which the kernel must not
 * read. */
static void *late_table(const float *x, size_t n, size_t half)
{
    float *to = need((LATE * half + n) * sizeof *to);
    for (size_t i = 0; i < LATE * half + n; i++)
        to[i] = i < LATE * half ? NAN : x[i - LATE * half];
    void *dev = on_device(to, (LATE * half + n) * sizeof *to);
    free(to);
    return dev;
}

static float *matrices(const int *d, int n, int d_head, kvd_dtype dtype, kvd_rng *rng, void **dev)
{
    size_t elements = 0;
    for (int g = 0; g < n; g++)
        elements += (size_t)(d_head * d[g]);
    float *r = need(elements * sizeof *r);
    for (size_t i = 0; i < elements; i++)
        r[i] = (float)(kvd_rng_normal(rng) / sqrt((double)d_head));
    uint16_t *const r16 = round_to(dtype, r, elements);
    *dev = on_device(r16, elements * sizeof *r16);
    free(r16);
    return r;
}

static void fixture_make(fixture *f, const scenario *c)
{
    kvd_rng rng;
    memset(f, 0, sizeof *f);
    f->c = *c;
    kvd_rng_seed(&rng, 7, (uint64_t)(c->lengths + 10));
    f->heads.n_heads = c->n_heads;
    f->heads.n_kv_heads = c->n_kv;
    f->heads.d_head = c->d_head;
    const int steps = c->d_head / KVD_WIDTH_STEP;
    for (int g = 0; g < c->n_kv; g++) {
        f->heads.d_qk[g] = c->widths == 0  ? c->d_head
                           : c->widths > 1 ? c->widths
                                           : 16 * (1 + (g * 3 + 1) % steps);
        f->heads.d_v[g] = c->widths == 0  ? c->d_head
                          : c->widths > 1 ? c->widths
                                          : 16 * (1 + (g * 5 + 2) % steps);
    }
    or_end(kvd_attn_map_make(&f->heads, &f->map), c->name, "no map");
    make_batch(f, &rng);
    int longest = 0, pages = 0;
    for (int b = 0; b < f->batch; b++) {
        f->start[b] = (int32_t)f->n_q;
        f->n_q += (size_t)f->q_len[b];
        pages += (f->kv_len[b] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
        longest = f->kv_len[b] > longest ? f->kv_len[b] : longest;
    }
    f->n_pages = pages + 3;
    f->max_pages = (longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS + 1;
    int32_t *const order = shuffled(&rng, f->n_pages);
    f->page_table = need((size_t)(f->batch * f->max_pages) * sizeof *f->page_table);
    for (int b = 0, next = 0; b < f->batch; b++)
        for (int j = 0; j < f->max_pages; j++)
            f->page_table[b * f->max_pages + j] =
                j * KVD_PAGE_TOKENS < f->kv_len[b] ? order[next++] : -1;
    free(order);
    f->dev_table =
        on_device(f->page_table, (size_t)(f->batch * f->max_pages) * sizeof *f->page_table);

    f->row = (size_t)(c->n_heads + 2 * c->n_kv) * (size_t)c->d_head;
    f->x = need(f->n_q * f->row * sizeof *f->x);
    for (size_t i = 0; i < f->n_q * f->row; i++)
        f->x[i] = (float)(kvd_rng_normal(&rng) * (kvd_rng_below(&rng, 50) ? 1 : 8));
    f->x16 = round_to(c->dtype, f->x, f->n_q * f->row);
    if (c->rope_kind >= 0) {
        const size_t half = (size_t)c->rope_dim / 2, n = (size_t)longest * half;
        f->cos = need(n * sizeof *f->cos);
        f->sin = need(n * sizeof *f->sin);
        rope_tables((size_t)longest, (size_t)c->rope_dim, f->cos, f->sin);
        f->dev_cos = on_device(f->cos, n * sizeof *f->cos);
        f->dev_sin = on_device(f->sin, n * sizeof *f->sin);
        f->late_cos = late_table(f->cos, n, half);
        f->late_sin = late_table(f->sin, n, half);
    }
    if (c->r_qk)
        f->r_qk = matrices(f->heads.d_qk, c->n_kv, c->d_head, c->dtype, &rng, &f->dev_r_qk);
    if (c->r_v)
        f->r_v = matrices(f->heads.d_v, c->n_kv, c->d_head, c->dtype, &rng, &f->dev_r_v);
    f->pool_elements = (size_t)f->n_pages * (size_t)f->map.page_elements;
    f->pool = need(f->pool_elements * sizeof *f->pool);
}

static void fixture_release(fixture *f)
{
    host_free(f->page_table, f->x, f->cos, f->sin, f->r_qk, f->r_v, f->x16, f->pool);
    device_free(f->dev_r_qk, f->dev_r_v, f->dev_cos, f->dev_sin, f->dev_table, f->late_cos,
                f->late_sin);
}

static void *poisoned(size_t elements)
{
    uint16_t *p = need(elements * sizeof *p);
    for (size_t i = 0; i < elements; i++)
        p[i] = POISON;
    void *dev = on_device(p, elements * sizeof *p);
    free(p);
    return dev;
}

/* Runs the append kernel, which stores K and V in the cache, on new tokens from[b] .. from[b] +
 * n[b] - 1 of each request b. Returns the tokens' Q, which the caller frees. */
static uint16_t *append(const fixture *f, const int32_t *from, const int32_t *n, int decode,
                        void *pool, int32_t *q_start, size_t *n_q8)
{
    int32_t start[MAX_BATCH], q_len[MAX_BATCH], kv_len[MAX_BATCH], q0[MAX_BATCH];
    int32_t *table = need((size_t)(f->batch * f->max_pages) * sizeof *table);
    uint16_t *x = need(f->n_q * f->row * sizeof *x);
    const int late = decode && f->late;
    uint32_t position[MAX_BATCH];
    int m = 0;
    size_t tokens = 0, rows = 0;
    for (int b = 0; b < f->batch; b++) {
        if (!n[b])
            continue;
        start[m] = (int32_t)tokens;
        q_len[m] = n[b];
        kv_len[m] = f->kv_len[b] - f->q_len[b] + from[b] + n[b];
        position[m] = (uint32_t)(kv_len[m] - 1 + LATE);
        q_start[b] = q0[m] = (int32_t)(decode ? (size_t)m : rows);
        memcpy(table + m * f->max_pages, f->page_table + b * f->max_pages,
               (size_t)f->max_pages * sizeof *table);
        memcpy(x + tokens * f->row, f->x16 + (size_t)(f->start[b] + from[b]) * f->row,
               (size_t)n[b] * f->row * sizeof *x);
        tokens += (size_t)n[b];
        rows += ((size_t)n[b] + 7) / 8 * 8;
        m++;
    }
    const size_t q_elements = (decode ? (size_t)m : rows) * (size_t)f->map.q_pitch;
    void *dev[] = {on_device(start, (size_t)m * 4),
                   on_device(q_len, (size_t)m * 4),
                   on_device(kv_len, (size_t)m * 4),
                   on_device(q0, (size_t)m * 4),
                   on_device(table, (size_t)(m * f->max_pages) * 4),
                   on_device(x, tokens * f->row * sizeof *x),
                   poisoned(q_elements + 64),
                   on_device(position, (size_t)m * 4)};
    const kvd_append_args args = {
        .dtype = (int32_t)f->c.dtype,
        .map = f->map,
        .d_head = f->c.d_head,
        .batch = m,
        .n_tokens = (int32_t)tokens,
        .token_start = dev[0],
        .q_len = dev[1],
        .kv_len = dev[2],
        .q_start = decode ? NULL : dev[3],
        .n_q8 = decode ? 0 : (int32_t)rows,
        .page_table = dev[4],
        .max_pages = f->max_pages,
        .position = late ? dev[7] : NULL,
        .lists_ready = !f->late,
        .x = dev[5],
        .rope_cos = late ? f->late_cos : f->dev_cos,
        .rope_sin = late ? f->late_sin : f->dev_sin,
        .rope_dim = f->c.rope_dim,
        .rope_interleaved = f->c.rope_kind == 1,
        .r_qk = f->dev_r_qk,
        .r_v = f->dev_r_v,
        .q = dev[6],
        .pool = pool,
    };
    check(kvd_append(&args, NULL), f->c.name);
    check(cudaDeviceSynchronize(), f->c.name);
    uint16_t *q = need((q_elements + 64) * sizeof *q);
    to_host(q, dev[6], (q_elements + 64) * sizeof *q);
    for (size_t i = 0; i < 64; i++)
        or_end(q[q_elements + i] != POISON, f->c.name, "written beyond Q");
    free_all((const void *const *)dev, sizeof dev / sizeof *dev);
    host_free(table, x);
    *n_q8 = rows;
    return q;
}

static size_t pool_index(const fixture *f, int b, int g, int v, size_t pos, size_t i)
{
    const size_t d = (size_t)(v ? f->heads.d_v[g] : f->heads.d_qk[g]);
    const size_t page =
        (size_t)f->page_table[(size_t)b * (size_t)f->max_pages + pos / KVD_PAGE_TOKENS];
    return page * (size_t)f->map.page_elements + (size_t)f->map.kv_offset[g] +
           (v ? (size_t)(KVD_PAGE_TOKENS * f->heads.d_qk[g]) : 0) +
           kvd_blocked_index(pos % KVD_PAGE_TOKENS, i, d);
}

static size_t q_index(const fixture *f, int h, int decode, size_t row, size_t i, size_t n_q8)
{
    const size_t d = (size_t)f->heads.d_qk[h / f->map.group], at = (size_t)f->map.q_offset[h];
    return decode ? row * (size_t)f->map.q_pitch + at + i
                  : at * n_q8 + kvd_blocked_index(row, i, d);
}

typedef struct {
    double error, norm;
} frobenius;

static void differ(frobenius *s, kvd_dtype dtype, uint16_t got, double want)
{
    float x;
    kvd_to_f32(dtype, &got, &x, 1);
    s->error += ((double)x - want) * ((double)x - want);
    s->norm += want * want;
}

/* Runs the kernel once and compares its Q and its cache with a reference. Copies the cache to
 * f->pool. */
static void against_reference(fixture *f, int decode)
{
    const int32_t zero[MAX_BATCH] = {0};
    int32_t q_start[MAX_BATCH];
    size_t n_q8;
    void *pool = poisoned(f->pool_elements);
    uint16_t *q = append(f, zero, f->q_len, decode, pool, q_start, &n_q8);
    to_host(f->pool, pool, f->pool_elements * sizeof *f->pool);
    device_free(pool);

    size_t sum_qk = 0, sum_v = 0;
    for (int g = 0; g < f->c.n_kv; g++) {
        sum_qk += (size_t)f->heads.d_qk[g];
        sum_v += (size_t)f->heads.d_v[g];
    }
    double *want_q = need(f->n_q * (size_t)f->map.q_pitch * sizeof *want_q);
    double *want_k = need(f->n_q * sum_qk * sizeof *want_k),
           *want_v = need(f->n_q * sum_v * sizeof *want_v);
    const kvd_attn_batch batch = {f->batch, f->q_len, f->kv_len};
    const kvd_rope_table rope = {f->cos, f->sin, f->c.rope_dim, f->c.rope_kind == 1};
    kvd_err err = {""};
    or_end(kvd_append_ref(&f->heads, &batch, f->start, f->x, &rope, f->r_qk, f->r_v, want_q, want_k,
                          want_v, &err),
           f->c.name, err.msg);

    /* Copy of the cache, which was filled with POISON before the kernel ran. Expected writes are
     * set back to POISON, so that any other value is a wrong write. */
    uint16_t *left = need(f->pool_elements * sizeof *left);
    memcpy(left, f->pool, f->pool_elements * sizeof *left);
    frobenius sq = {0, 0}, sk = {0, 0}, sv = {0, 0};
    size_t not_zero = 0, touched = 0;
    for (int h = 0; h < f->c.n_heads; h++) {
        const size_t d = (size_t)f->heads.d_qk[h / f->map.group];
        for (int b = 0; b < f->batch; b++) {
            const size_t n = (size_t)f->q_len[b], rows = decode ? 1 : (n + 7) / 8 * 8;
            for (size_t t = 0; t < rows; t++)
                for (size_t i = 0; i < d; i++) {
                    const uint16_t got = q[q_index(f, h, decode, (size_t)q_start[b] + t, i, n_q8)];
                    if (t < n)
                        differ(&sq, f->c.dtype, got,
                               want_q[(size_t)f->map.q_offset[h] * f->n_q +
                                      ((size_t)f->start[b] + t) * d + i]);
                    else
                        not_zero += got != 0;
                }
        }
    }
    const double *k = want_k, *v = want_v;
    for (int g = 0; g < f->c.n_kv; g++)
        for (int is_v = 0; is_v < 2; is_v++) {
            const size_t d = (size_t)(is_v ? f->heads.d_v[g] : f->heads.d_qk[g]);
            const double **want = is_v ? &v : &k;
            for (int b = 0; b < f->batch; b++) {
                const size_t old = (size_t)(f->kv_len[b] - f->q_len[b]), len = (size_t)f->kv_len[b];
                const size_t zeros = (len - 1) / 8 * 8 >= old ? (len + 7) / 8 * 8 : len;
                for (size_t pos = old; pos < zeros; pos++)
                    for (size_t i = 0; i < d; i++) {
                        const size_t at = pool_index(f, b, g, is_v, pos, i);
                        if (pos < len)
                            differ(is_v ? &sv : &sk, f->c.dtype, left[at],
                                   (*want)[(pos - old) * d + i]);
                        else
                            not_zero += left[at] != 0;
                        left[at] = POISON;
                    }
                *want += (size_t)f->q_len[b] * d;
            }
        }
    for (size_t i = 0; i < f->pool_elements; i++)
        touched += left[i] != POISON;
    const double limit = f->c.dtype == KVD_BF16 ? 4e-3 : 1e-3;
    const double eq = sqrt(sq.error / sq.norm), ek = sqrt(sk.error / sk.norm),
                 ev = sqrt(sv.error / sv.norm);
    test_result(eq < limit && ek < limit && ev < limit && !not_zero && !touched, f->c.name,
                "%sQ off by %.2g, K %.2g, V %.2g of %.0e; %zu not zero, %zu touched",
                decode ? "decode, " : "", eq, ek, ev, limit, not_zero, touched);
    host_free(q, want_q, want_k, want_v, left);
}

static void in_pieces(fixture *f, int decode)
{
    const int32_t zero[MAX_BATCH] = {0};
    int32_t whole_start[MAX_BATCH], start[MAX_BATCH], from[MAX_BATCH] = {0}, n[MAX_BATCH];
    size_t whole_rows, rows, wrong = 0;
    void *pool = poisoned(f->pool_elements);
    uint16_t *whole = append(f, zero, f->q_len, 0, pool, whole_start, &whole_rows);
    device_free(pool);
    pool = poisoned(f->pool_elements);
    for (int step = 0;; step++) {
        int any = 0;
        for (int b = 0; b < f->batch; b++) {
            const int left = f->q_len[b] - from[b];
            n[b] = decode ? left > 0 : step == 0 ? (f->q_len[b] * 2 + 2) / 5 : left;
            any |= n[b];
        }
        if (!any)
            break;
        uint16_t *q = append(f, from, n, decode, pool, start, &rows);
        for (int h = 0; h < f->c.n_heads; h++)
            for (int b = 0; b < f->batch; b++)
                for (int t = 0; t < n[b]; t++)
                    for (size_t i = 0; i < (size_t)f->heads.d_qk[h / f->map.group]; i++)
                        wrong += q[q_index(f, h, decode, (size_t)(start[b] + t), i, rows)] !=
                                 whole[q_index(f, h, 0, (size_t)(whole_start[b] + from[b] + t), i,
                                               whole_rows)];
        for (int b = 0; b < f->batch; b++)
            from[b] += n[b];
        free(q);
    }
    uint16_t *got = from_device(pool, f->pool_elements * sizeof(uint16_t));
    device_free(pool);
    size_t bits = 0;
    for (size_t i = 0; i < f->pool_elements; i++)
        bits += got[i] != f->pool[i];
    test_result(!wrong && !bits, f->c.name,
                "%s: %zu elements of Q and %zu of the pool differ from one launch",
                !decode   ? "in two"
                : f->late ? "one by one, late"
                          : "one by one",
                wrong, bits);
    host_free(whole, got);
}

static void refusals(void)
{
    kvd_append_args a = {
        .dtype = KVD_BF16, .batch = 1, .n_tokens = 1, .max_pages = 1, .d_head = 64};
    const kvd_attn_heads heads = {
        .n_heads = 2, .n_kv_heads = 1, .d_head = 64, .d_qk = {32}, .d_v = {32}};
    int32_t *p = on_device(NULL, 256);
    int bad = kvd_attn_map_make(&heads, &a.map);
    a.token_start = a.q_len = a.kv_len = a.page_table = p;
    a.x = a.q = a.pool = p;
    kvd_append_args b[8];
    for (int i = 0; i < 8; i++)
        b[i] = a;
    b[0].dtype = KVD_F32;
    b[1].d_head = 24;
    b[2].x = NULL;
    b[3].rope_cos = a.x;
    b[4].rope_cos = b[4].rope_sin = a.x;
    b[4].rope_dim = 66;
    b[5].map.d_qk[0] = 24;
    b[6].n_tokens = 2;
    b[7].x = (const char *)a.x + 2;
    for (int i = 0; i < 8; i++)
        bad += kvd_append(&b[i], NULL) != cudaErrorInvalidValue;
    test_result(!bad, "refusals", "%d taken", bad);
    device_free(p);
}

int main(int argc, char **argv)
{
    static const scenario cases[] = {
        {"dense_cut_only", KVD_BF16, 4, 2, 128, 64, 0, -1, 0, 0, 3},
        {"dense_rotated", KVD_BF16, 4, 1, 128, 0, 0, -1, 1, 1, 3},
        {"mixed_half", KVD_BF16, 16, 4, 128, 1, 128, 0, 1, 0, 2},
        {"mixed_half_f16", KVD_F16, 16, 4, 128, 1, 128, 0, 1, 1, 4},
        {"mixed_pairs", KVD_BF16, 16, 8, 128, 1, 128, 1, 1, 0, 4},
        {"mixed_pairs_f16", KVD_F16, 12, 4, 128, 1, 128, 1, 1, 0, 2},
        {"half_cut_only", KVD_BF16, 8, 8, 128, 1, 128, 0, 0, 0, 4},
        {"half_cut_v_rotated", KVD_F16, 6, 2, 128, 1, 128, 0, 0, 1, 2},
        {"partial_half", KVD_BF16, 8, 2, 128, 1, 32, 0, 1, 0, 4},
        {"partial_pairs", KVD_BF16, 8, 2, 128, 48, 64, 1, 0, 0, 4},
        {"odd_rope", KVD_F16, 5, 1, 128, 80, 50, 0, 1, 0, 4},
        {"odd_rope_pairs", KVD_BF16, 10, 2, 96, 1, 90, 1, 1, 1, 2},
        {"head_64", KVD_BF16, 8, 4, 64, 1, 64, 0, 1, 0, 4},
        {"head_80", KVD_F16, 8, 8, 80, 1, 80, 0, 1, 0, 2},
        {"head_96", KVD_BF16, 3, 1, 96, 48, 96, 0, 1, 0, 4},
        {"head_16", KVD_F16, 4, 4, 16, 16, 16, 0, 1, 1, 2},
        {"head_48", KVD_BF16, 4, 2, 48, 1, 48, 1, 1, 0, 3},
        {"long", KVD_BF16, 8, 2, 128, 1, 128, 0, 1, 0, 6},
        {"many_short", KVD_BF16, 4, 2, 128, 1, 128, 0, 1, 0, -2},
        {"one_token", KVD_BF16, 32, 8, 128, 1, 128, 0, 1, 0, 0},
        {"steps", KVD_F16, 32, 8, 128, 1, 128, 0, 1, 1, 5},
        {"steps_cut_only", KVD_BF16, 16, 2, 128, 1, 128, 1, 0, 0, 5},
        {"steps_256", KVD_BF16, 8, 4, 128, 1, 128, 0, 1, 0, -1},
        {"one_page", KVD_F16, 4, 2, 128, 1, 128, 0, 1, 0, 1},
        /* Heads wider than 128 have kernels of their own. */
        {"256_half", KVD_BF16, 8, 2, 256, 1, 256, 0, 1, 0, 2},
        {"256_cut_only", KVD_BF16, 8, 4, 256, 0, 0, -1, 0, 0, 3},
        {"256_rotated", KVD_BF16, 4, 1, 256, 0, 0, -1, 1, 1, 3},
        {"256_mixed", KVD_BF16, 16, 8, 256, 1, 0, -1, 1, 1, 4},
        {"256_v_rotated", KVD_BF16, 6, 2, 256, 1, 256, 0, 0, 1, 2},
        {"256_pairs_f16", KVD_F16, 8, 2, 256, 1, 256, 1, 1, 1, 4},
        {"256_rope_128", KVD_BF16, 8, 2, 256, 1, 128, 0, 1, 0, 4},
        {"256_odd_rope", KVD_F16, 5, 1, 256, 208, 50, 0, 1, 0, 4},
        {"head_240", KVD_BF16, 6, 2, 240, 1, 240, 0, 1, 0, 4},
        {"head_144", KVD_F16, 4, 2, 144, 144, 144, 0, 1, 1, 2},
        {"256_long", KVD_BF16, 4, 2, 256, 1, 256, 0, 1, 0, 6},
        {"256_many_short", KVD_BF16, 4, 2, 256, 0, 0, -1, 0, 0, -2},
        {"256_steps", KVD_F16, 8, 4, 256, 1, 256, 0, 1, 1, 5},
        {"256_steps_cut_only", KVD_BF16, 8, 4, 256, 0, 0, -1, 0, 0, 5},
        {"256_steps_256", KVD_BF16, 8, 4, 256, 1, 256, 1, 1, 0, -1},
    };
    const char *only = argc > 1 ? argv[1] : NULL;
    if (!gpu_devices("append", 1))
        return 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (only && strcmp(only, cases[i].name))
            continue;
        fixture f;
        fixture_make(&f, &cases[i]);
        int all_one = 1;
        for (int b = 0; b < f.batch; b++)
            all_one &= f.q_len[b] == 1;
        if (all_one)
            against_reference(&f, 1);
        against_reference(&f, 0);
        if (!all_one)
            in_pieces(&f, 0);
        if (f.n_q <= 300)
            in_pieces(&f, 1);
        f.late = 1;
        if (f.n_q <= 300)
            in_pieces(&f, 1);
        fixture_release(&f);
    }
    if (!only)
        refusals();
    return failures != 0;
}
