/* Tests kernels that compute K and V from low-rank latent vectors, compared with a reference in
 * double precision. Memory that the kernels must not read is filled with NaN. */
#include <math.h>
#include <stdbool.h>

#include "gpu_case.h"
#include "methods/dims/cuda/latents.h"
#include "worst.h"

enum { MOST = 6, PAGES = 60, MAX_PAGES = 10 };

static void report(int ok, const char *name, const char *what, double off, double bar)
{
    printf("%s latents %s, %s: off by %.3g of %.3g\n", ok ? "ok" : "not ok", name, what, off, bar);
    failures += !ok;
}

typedef struct {
    const char *name;
    int d, kv, group, heads, rank[2], direct, turns, interleaved, slots, n;
    int32_t kv_len[MOST], q_len[MOST];
} latent_case;

typedef struct {
    const latent_case *c;
    kvd_attn_map map;
    kvd_latent_head head[16], *device_head;
    int32_t table[MOST * MAX_PAGES], start[MOST], slot[MOST];
    int32_t *device_table, *device_start, *device_q_len, *device_kv_len, *device_slot;
    size_t latent_page, page, matrix_n, rows;
    int32_t positions; /* element of a page of latents at which the positions of tokens begin */
    uint16_t *latents, *matrix;
    void *device_latents, *device_matrix, *pages;
    float *cosine, *sine, *device_cosine, *device_sine;
    /* host copies of token positions, biases and norm factors; NULL except in test_finished */
    const int32_t *position;
    const float *bias, *gain;
    bool stored; /* the positions in the pages are used */
} problem;

static kvd_rng rng;

static uint16_t *random_bf16(size_t n, double scale)
{
    uint16_t *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_of(scale * kvd_rng_normal(&rng));
    return x;
}

static size_t latent_index(const problem *p, int b, int t, int g, int side, int r)
{
    return (size_t)p->table[b * MAX_PAGES + t / 64] * p->latent_page +
           (size_t)p->head[g].latent[side] +
           (size_t)(r / 8 * 512 + t % 64 / 8 * 64 + t % 8 * 8 + r % 8);
}

static size_t page_index(const problem *p, int b, int t, int g, int side, int i)
{
    const size_t w = (size_t)(side ? p->map.d_v[g] : p->map.d_qk[g]);
    return (size_t)p->table[b * MAX_PAGES + t / 64] * p->page + (size_t)p->head[g].page[side] +
           kvd_blocked_index((size_t)(t % 64), (size_t)i, w);
}

static void make(problem *p, const latent_case *c)
{
    kvd_attn_heads widths = {c->heads, c->kv, c->d, {0}, {0}, 0};
    size_t at = 0, m = 0;
    memset(p, 0, sizeof *p);
    p->c = c;
    for (int g = 0; g < c->kv; g++) {
        widths.d_qk[g] = c->d;
        widths.d_v[g] = c->direct ? c->rank[1] : c->d;
    }
    or_end(kvd_attn_map_make(&widths, &p->map), c->name, "no such heads");
    for (int g = 0; g < c->kv; g++)
        for (int side = 0; side < 2; side++) {
            kvd_latent_head *const h = &p->head[g];
            h->latent[side] = (int32_t)(g % c->group ? p->head[g - 1].latent[side] : (int)at);
            at += g % c->group ? 0 : (size_t)(64 * c->rank[side]);
            h->page[side] = p->map.kv_offset[g] + (side ? 64 * p->map.d_qk[g] : 0);
            h->rank[side] = c->rank[side];
            h->matrix[side] = side && c->direct ? -1 : (int32_t)m;
            m += (size_t)(c->d * c->rank[side]);
        }
    p->positions = (int32_t)at;
    p->latent_page = at + (size_t)(2 * KVD_PAGE_TOKENS * c->kv);
    p->matrix_n = m;
    p->page = (size_t)p->map.page_elements;
    int32_t *const order = shuffled(&rng, PAGES);
    for (int b = 0, rows = 0; b < c->n; b++) {
        for (int i = 0; i < MAX_PAGES; i++)
            p->table[b * MAX_PAGES + i] =
                i * 64 < c->kv_len[b] ? order[b * MAX_PAGES + i] : 1 << 30;
        p->start[b] = rows;
        p->slot[b] = c->slots ? (b * 5 + 2) % c->slots : 0;
        rows += c->q_len[b];
        p->rows = (size_t)rows;
    }
    free(order);
    const size_t half = (size_t)c->d / 2, most = MAX_PAGES * 64;
    p->cosine = need(2 * most * half * sizeof *p->cosine);
    p->sine = p->cosine + most * half;
    size_t longest = 0;
    for (int b = 0; b < c->n; b++)
        longest = (size_t)c->kv_len[b] > longest ? (size_t)c->kv_len[b] : longest;
    rope_tables(longest, (size_t)c->d, p->cosine, p->sine);
    p->latents = random_bf16(PAGES * p->latent_page, 1);
    p->matrix = random_bf16((size_t)(c->slots ? c->slots : 1) * m, 1 / sqrt((double)c->rank[0]));
    p->device_latents = on_device(p->latents, PAGES * p->latent_page * 2);
    p->device_matrix = on_device(p->matrix, (size_t)(c->slots ? c->slots : 1) * m * 2);
    p->pages = on_device(NULL, PAGES * p->page * 2);
    p->device_cosine = on_device(p->cosine, longest * half * sizeof(float));
    p->device_sine = on_device(p->sine, longest * half * sizeof(float));
    p->device_head = on_device(p->head, sizeof p->head);
    p->device_table = on_device(p->table, sizeof p->table);
    p->device_start = on_device(p->start, sizeof p->start);
    p->device_q_len = on_device(c->q_len, sizeof c->q_len);
    p->device_kv_len = on_device(c->kv_len, sizeof c->kv_len);
    p->device_slot = on_device(p->slot, sizeof p->slot);
}

static void release(problem *p)
{
    device_free(p->device_latents, p->device_matrix, p->pages, p->device_cosine, p->device_sine,
                p->device_head, p->device_table, p->device_start, p->device_q_len, p->device_kv_len,
                p->device_slot);
    host_free(p->latents, p->matrix, p->cosine);
}

static kvd_latent_slices slices(const problem *p)
{
    int32_t most = 1;
    for (int b = 0; b < p->c->n; b++)
        most = p->c->q_len[b] > most ? p->c->q_len[b] : most;
    return (kvd_latent_slices){p->c->n,         MAX_PAGES,        most,           p->device_start,
                               p->device_q_len, p->device_kv_len, p->device_table};
}

static kvd_latent_restore_args restored(const problem *p)
{
    const latent_case *const c = p->c;
    return (kvd_latent_restore_args){.n = c->n,
                                     .max_pages = MAX_PAGES,
                                     .n_kv_heads = c->kv,
                                     .d_head = c->d,
                                     .max_rank = c->rank[0] > c->rank[1] ? c->rank[0] : c->rank[1],
                                     .kv_len = p->device_kv_len,
                                     .page_table = p->device_table,
                                     .slot = c->slots ? p->device_slot : NULL,
                                     .matrix_slot = p->matrix_n,
                                     .head = p->device_head,
                                     .latents = p->device_latents,
                                     .matrix = p->device_matrix,
                                     .latent_page = p->latent_page,
                                     .page = p->page,
                                     .cosine = c->turns ? p->device_cosine : NULL,
                                     .sine = c->turns ? p->device_sine : NULL,
                                     .interleaved = c->interleaved,
                                     .pages = p->pages,
                                     .n_sms = 5};
}

static const uint16_t *matrix_of(const problem *p, int b, int g, int side)
{
    return p->matrix + (size_t)p->slot[b] * (p->c->slots ? p->matrix_n : 0) +
           p->head[g].matrix[side];
}

static void turn(const problem *p, int t, double *x)
{
    const int half = p->c->d / 2;
    for (int i = 0; i < half; i++) {
        const int a = p->c->interleaved ? 2 * i : i, b = p->c->interleaved ? 2 * i + 1 : i + half;
        const double cs = (double)p->cosine[t * half + i], sn = (double)p->sine[t * half + i],
                     x0 = x[a];
        x[a] = x0 * cs - x[b] * sn;
        x[b] = x[b] * cs + x0 * sn;
    }
}

static uint16_t *fetch(const void *from, size_t n)
{
    check(cudaDeviceSynchronize(), "the kernel");
    return from_device(from, n * sizeof(uint16_t));
}

typedef struct {
    double off, square, n;
    int zeros;
} restored_head;

/* Returns the stored position of token t of KV head g of request b, in the host's pages. */
static int32_t *stored_position(const problem *p, int b, int g, int t)
{
    uint16_t *const page =
        p->latents + (size_t)p->table[b * MAX_PAGES + t / 64] * p->latent_page + p->positions;
    return (int32_t *)(void *)page + g * 64 + t % 64;
}

/* Returns the RoPE position of row t in KV head g of request b's cache. If row t holds no token,
 * returns t. */
static int position_of(const problem *p, int b, int g, int t)
{
    return t >= p->c->kv_len[b] ? t
           : p->stored          ? *stored_position(p, b, g, t)
           : p->position        ? p->position[b * MAX_PAGES * 64 + t]
                                : t;
}

static void finish_row(const problem *p, int g, int side, double *y)
{
    const int d = p->c->d;
    double sum = 0;
    for (int i = 0; p->bias && i < d; i++)
        y[i] += (double)p->bias[(side * p->c->kv + g) * d + i];
    for (int i = 0; i < d; i++)
        sum += y[i] * y[i];
    for (int i = 0; p->gain && side == 0 && i < d; i++)
        y[i] *= (double)p->gain[i] / sqrt(sum / d + 1e-5);
}

static void restore_row(const problem *p, int b, int g, int side, int t, double *y)
{
    const int rank = p->c->rank[side], w = side ? p->map.d_v[g] : p->c->d;
    const uint16_t *const m = p->head[g].matrix[side] < 0 ? NULL : matrix_of(p, b, g, side);
    for (int i = 0; i < w; i++)
        y[i] = m ? 0 : (double)bf16_wide(p->latents[latent_index(p, b, t, g, side, i)]);
    for (int r = 0; m && r < rank; r++) {
        const double x = (double)bf16_wide(p->latents[latent_index(p, b, t, g, side, r)]);
        for (int i = 0; i < w; i++)
            y[i] += x * (double)bf16_wide(m[i * rank + r]);
    }
    if (m)
        finish_row(p, g, side, y);
    if (side == 0 && p->c->turns && t < p->c->kv_len[b])
        turn(p, position_of(p, b, g, t), y);
}

static restored_head check_restored(const problem *p, const uint16_t *got, int b, int g, int side)
{
    const int w = side ? p->map.d_v[g] : p->c->d;
    restored_head h = {.zeros = 1};
    double y[KVD_WIDTH_MAX];
    for (int t = 0; t < (p->c->kv_len[b] + 7) / 8 * 8; t++) {
        const bool stays = position_of(p, b, g, t) < 0 || (p->position && t >= p->c->kv_len[b]);
        for (int i = 0; stays && i < w; i++)
            h.zeros = h.zeros && got[page_index(p, b, t, g, side, i)] == 0xffff;
        if (stays)
            continue;
        restore_row(p, b, g, side, t, y);
        for (int i = 0; i < w; i++) {
            const double x = (double)bf16_wide(got[page_index(p, b, t, g, side, i)]);
            if (t >= p->c->kv_len[b]) {
                h.zeros = h.zeros && x >= 0 && x <= 0;
                continue;
            }
            const double e = fabs(x - y[i]) / (1 + fabs(y[i]));
            h.off = worse(h.off, e);
            h.square += y[i] * y[i];
            h.n++;
        }
    }
    return h;
}

static void test_restored(const problem *p, const kvd_latent_restore_args *a, const char *what)
{
    const latent_case *const c = p->c;
    check(kvd_latent_restore(a, NULL), "restore");
    uint16_t *const got = fetch(p->pages, PAGES * p->page);
    const int heads = c->n * c->kv * 2;
    restored_head *const h = need((size_t)heads * sizeof *h), sum = {.zeros = 1};
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < heads; i++)
        h[i] = check_restored(p, got, i / 2 / c->kv, i / 2 % c->kv, i % 2);
    for (int i = 0; i < heads; i++) {
        sum.off = !(h[i].off <= sum.off) ? h[i].off : sum.off;
        sum.zeros = sum.zeros && h[i].zeros;
        sum.square += h[i].square;
        sum.n += h[i].n;
    }
    report(sum.off < 0x1p-8 && sum.zeros && sum.square > 0.1 * sum.n, c->name, what, sum.off,
           0x1p-8);
    free(h);
    free(got);
}

/* Tests that the kernel does not restore the newest 3 tokens if the argument `newest` is 3. */
static void test_newest(const problem *p, const kvd_latent_restore_args *from)
{
    const latent_case *const c = p->c;
    const size_t n = PAGES * p->page;
    kvd_latent_restore_args a = *from;
    uint16_t *const all = fetch(p->pages, n);
    a.newest = 3;
    fill_bytes(p->pages, 0xff, n * sizeof *all);
    check(kvd_latent_restore(&a, NULL), "restore");
    uint16_t *const got = fetch(p->pages, n);
    size_t wrong = 0, rows = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < (c->kv_len[b] + 7) / 8 * 8; t++)
            for (int h = 0; h < 2 * c->kv; h++)
                for (int i = 0; i < (h % 2 ? p->map.d_v[h / 2] : c->d); i++, rows++) {
                    const size_t at = page_index(p, b, t, h / 2, h % 2, i);
                    wrong += got[at] != (t < c->kv_len[b] - 3 ? all[at] : 0xffff);
                }
    report(rows && !wrong, c->name, "newest tokens left out", (double)wrong, 0);
    check(kvd_latent_restore(from, NULL), "restore");
    free(all);
    free(got);
}

/* Tests a kernel that computes K and V from latent vectors, with a sliding window. The kernel must
 * not change pages before the window. */
static void test_window(const problem *p, const kvd_latent_restore_args *from)
{
    enum { WINDOW = 70 };
    const latent_case *const c = p->c;
    const size_t n = PAGES * p->page;
    kvd_latent_restore_args a = *from;
    uint16_t *const all = fetch(p->pages, n);
    a.window = WINDOW;
    a.q_len = p->device_q_len;
    fill_bytes(p->pages, 0xff, n * sizeof *all);
    check(kvd_latent_restore(&a, NULL), "restore");
    uint16_t *const got = fetch(p->pages, n);
    size_t wrong = 0;
    for (int b = 0; b < c->n; b++) {
        const int seen = c->kv_len[b] - c->q_len[b] + 1 - WINDOW,
                  first = seen > 0 ? seen / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS : 0;
        for (int t = 0; t < (c->kv_len[b] + 7) / 8 * 8; t++)
            for (int h = 0; h < 2 * c->kv; h++)
                for (int i = 0; i < (h % 2 ? p->map.d_v[h / 2] : c->d); i++) {
                    const size_t at = page_index(p, b, t, h / 2, h % 2, i);
                    wrong += got[at] != (t < first ? 0xffff : all[at]);
                }
    }
    report(!wrong, c->name, "rows in a sliding window", (double)wrong, 0);
    check(kvd_latent_restore(from, NULL), "restore");
    free(all);
    free(got);
}

/* Tests latent vectors whose page numbers differ from those of K and V. */
static void test_tables(const problem *p, const kvd_latent_restore_args *from)
{
    const latent_case *const c = p->c;
    const size_t n = PAGES * p->page, latents = PAGES * p->latent_page;
    int32_t table[MOST * MAX_PAGES];
    uint16_t *const all = fetch(p->pages, n), *const x = need(latents * sizeof *x);
    kvd_latent_restore_args a = *from;
    for (int i = 0; i < MOST * MAX_PAGES; i++)
        table[i] = PAGES - 1 - p->table[i];
    for (size_t i = 0; i < PAGES; i++)
        memcpy(x + (PAGES - 1 - i) * p->latent_page, p->latents + i * p->latent_page,
               p->latent_page * sizeof *x);
    int32_t *const latent_table = on_device(table, sizeof table);
    void *const moved = on_device(x, latents * sizeof *x);
    a.latent_table = latent_table;
    a.latents = moved;
    fill_bytes(p->pages, 0xff, n * sizeof *all);
    check(kvd_latent_restore(&a, NULL), "restore");
    uint16_t *const got = fetch(p->pages, n);
    size_t wrong = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->kv_len[b]; t++)
            for (int i = 0; i < 2 * c->kv * c->d; i++) {
                const int g = i / c->d / 2, side = i / c->d % 2;
                if (side && i % c->d >= p->map.d_v[g])
                    continue;
                const size_t at = page_index(p, b, t, g, side, i % c->d);
                wrong += got[at] != all[at];
            }
    report(!wrong, c->name, "latents in other pages", (double)wrong, 0);
    device_free(latent_table, moved);
    host_free(all, x, got);
}

static void test_restore(const problem *p)
{
    const kvd_latent_restore_args a = restored(p);
    test_restored(p, &a, "restore");
    test_newest(p, &a);
    test_window(p, &a);
    test_tables(p, &a);
}

/* Copies to the device an array of matrices B^T, which restore K or V from latent vectors, for all
 * heads that share head g's latent vectors. The array has `columns` columns; unused ones are
 * NaN. */
static uint16_t *shared_matrix(const problem *p, size_t slot, int g, int side, size_t columns)
{
    const latent_case *const c = p->c;
    const size_t rank = (size_t)c->rank[side], each = (size_t)c->d * rank, n = columns * rank;
    uint16_t *const x = need(n * sizeof *x);
    memset(x, 0xff, n * sizeof *x);
    for (int i = 0; i < c->group; i++)
        memcpy(x + (size_t)i * each,
               p->matrix + slot * p->matrix_n + (size_t)p->head[g + i].matrix[side],
               each * sizeof *x);
    uint16_t *const device = on_device(x, n * sizeof *x);
    free(x);
    return device;
}

static bool joins(const problem *p)
{
    return !p->c->direct && kvd_latent_joins(p->c->group, p->c->d);
}

/* Tests that the kernel leaves V unchanged if only K is computed from latent vectors. */
static void test_joint_keys(const problem *p, const kvd_latent_restore_args *from)
{
    const latent_case *const c = p->c;
    const size_t n = PAGES * p->page;
    kvd_latent_restore_args a = *from;
    uint16_t *const all = fetch(p->pages, n);
    a.keys_alone = true;
    fill_bytes(p->pages, 0xff, n * sizeof *all);
    check(kvd_latent_restore(&a, NULL), "restore");
    uint16_t *const got = fetch(p->pages, n);
    size_t wrong = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->kv_len[b]; t++)
            for (int i = 0; i < 2 * c->kv * c->d; i++) {
                const int h = i / c->d;
                const size_t at = page_index(p, b, t, h / 2, h % 2, i % c->d);
                wrong += got[at] != (h % 2 ? 0xffff : all[at]);
            }
    report(!wrong, c->name, "keys of all heads alone", (double)wrong, 0);
    free(all);
    free(got);
}

typedef struct {
    uint16_t *matrix;
    kvd_latent_head *head;
} joint_matrices;

/* Joins the matrices that restore K and V from latents: one matrix for all heads of a group. *a
 * receives pointers to the returned matrices, which the caller frees. */
static joint_matrices use_joint(const problem *p, kvd_latent_restore_args *a)
{
    const latent_case *const c = p->c;
    const size_t columns = (size_t)(c->group * c->d) + 256, slots = c->slots ? (size_t)c->slots : 1,
                 groups = (size_t)(c->kv / c->group),
                 each = groups * columns * (size_t)(c->rank[0] + c->rank[1]);
    uint16_t *const matrix = on_device(NULL, slots * each * sizeof *matrix);
    kvd_latent_head head[16];
    size_t at = 0;
    memcpy(head, p->head, sizeof head);
    for (int g = 0; g < c->kv; g += c->group)
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < c->group; i++)
                head[g + i].matrix[side] = (int32_t)at + i * c->d * 8;
            for (size_t s = 0; s < slots; s++) {
                uint16_t *const from = shared_matrix(p, s, g, side, columns);
                check(kvd_latent_join(from, columns, (size_t)c->rank[side], matrix + s * each + at,
                                      NULL),
                      "join");
                check(cudaDeviceSynchronize(), "join");
                device_free(from);
            }
            at += columns * (size_t)c->rank[side];
        }
    kvd_latent_head *const device_head = on_device(head, sizeof head);
    a->head = device_head;
    a->matrix = matrix;
    a->matrix_slot = each;
    a->columns = (int32_t)columns;
    return (joint_matrices){matrix, device_head};
}

/* Tests the kernel that computes K and V from latent vectors for all heads of a group together. */
static void test_joint(const problem *p)
{
    kvd_latent_restore_args a = restored(p);
    const joint_matrices m = use_joint(p, &a);
    fill_bytes(p->pages, 0xff, PAGES * p->page * sizeof(uint16_t));
    test_restored(p, &a, "restore of all heads together");
    test_newest(p, &a);
    test_joint_keys(p, &a);
    device_free(m.matrix, m.head);
}

/* Tests the kernel that computes K and V from latent vectors for all heads of a group together. In
 * this test the kernel also adds biases and normalises keys. */
static void test_joint_finished(const problem *p, kvd_latent_restore_args a)
{
    const joint_matrices m = use_joint(p, &a);
    fill_bytes(p->pages, 0xff, PAGES * p->page * sizeof(uint16_t));
    test_restored(p, &a, "biases and norms of all heads together");
    device_free(m.matrix, m.head);
}

/* Tests the kernel that computes K and V from latent vectors, with biases, key norms and given RoPE
 * positions. It must not change rows with position -1. */
static void test_finished(problem *p)
{
    const latent_case *const c = p->c;
    const size_t heads = (size_t)(2 * c->kv * c->d), rows = MOST * MAX_PAGES * 64;
    float *const bias = need(heads * sizeof *bias), *const gain = need((size_t)c->d * sizeof *gain);
    int32_t *const position = need(rows * sizeof *position);
    kvd_latent_restore_args a = restored(p);
    for (size_t i = 0; i < heads; i++)
        bias[i] = (float)kvd_rng_normal(&rng);
    for (int i = 0; i < c->d; i++)
        gain[i] = (float)(1 + 0.3 * kvd_rng_normal(&rng));
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < MAX_PAGES * 64; t++)
            position[b * MAX_PAGES * 64 + t] =
                t % 5 == 3 || t >= c->kv_len[b] ? -1 : c->kv_len[b] - 1 - t;
    void *const device[] = {on_device(bias, heads * sizeof *bias),
                            on_device(gain, (size_t)c->d * sizeof *gain),
                            on_device(position, rows * sizeof *position)};
    p->bias = bias;
    p->gain = gain;
    a.bias = device[0];
    a.gain = device[1];
    a.eps = 1e-5F;
    if (joins(p))
        test_joint_finished(p, a);
    p->position = position;
    a.position = device[2];
    fill_bytes(p->pages, 0xff, PAGES * p->page * sizeof(uint16_t));
    test_restored(p, &a, "positions, biases and norms");
    p->bias = p->gain = NULL;
    p->position = NULL;
    a = restored(p);
    check(kvd_latent_restore(&a, NULL), "restore");
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        check(cudaFree(device[i]), "cudaFree");
    host_free(bias, gain, position);
}

/* Tests that the GPU restores keys whose positions are stored in pages and differ between KV
 * heads. */
static void test_stored(problem *p)
{
    const latent_case *const c = p->c;
    kvd_latent_restore_args a = restored(p);
    for (int b = 0; b < c->n; b++)
        for (int g = 0; g < c->kv; g++)
            for (int t = 0; t < c->kv_len[b]; t++)
                *stored_position(p, b, g, t) = (c->kv_len[b] - 1 - t + 3 * g) % c->kv_len[b];
    device_free(p->device_latents);
    p->device_latents = on_device(p->latents, PAGES * p->latent_page * 2);
    a.latents = p->device_latents;
    a.positions = p->positions;
    p->stored = true;
    fill_bytes(p->pages, 0xff, PAGES * p->page * sizeof(uint16_t));
    test_restored(p, &a, "positions in the pages");
    p->stored = false;
    a = restored(p);
    check(kvd_latent_restore(&a, NULL), "restore");
}

static void test_put(problem *p)
{
    const latent_case *const c = p->c;
    /* True with more than 3 requests. Rows of x then have gaps, and the array `source` says where
     * each latent is. */
    const bool gaps = c->n > 3;
    const int wide = (c->rank[0] > c->rank[1] ? c->rank[0] : c->rank[1]) + 16,
              groups = c->kv / c->group;
    const size_t q = (size_t)(c->heads * c->d),
                 ld = q + (size_t)(groups * (gaps ? 2 * wide : c->rank[0] + c->rank[1])),
                 old_n = PAGES * p->latent_page;
    int32_t run[512], source[512], q_start[MOST], n_runs = 0, n_q8 = 0;
    bool steps = true;
    for (int side = 0; side < 2; side++)
        for (int g = 0; g < c->kv; g += c->group)
            for (int r = 0; r < c->rank[side]; r += 8) {
                source[n_runs] = gaps ? (side * groups + g / c->group) * wide + r : 8 * n_runs;
                run[n_runs++] = p->head[g].latent[side] + r * 64;
            }
    uint32_t position[MOST];
    for (int b = 0; b < c->n; b++) {
        q_start[b] = n_q8;
        n_q8 += (c->q_len[b] + 7) / 8 * 8;
        steps = steps && c->q_len[b] == 1;
        position[b] = (uint32_t)(c->kv_len[b] * 5 % 7) % (uint32_t)c->kv_len[b];
    }
    uint16_t *const x = random_bf16(p->rows * ld, 1);
    void *const device_x = on_device(x, p->rows * ld * 2),
                *const device_run = on_device(run, sizeof run),
                *const device_source = on_device(source, sizeof source),
                *const device_start = on_device(q_start, sizeof q_start),
                *const device_position = on_device(position, sizeof position),
                *const to = on_device(NULL, (size_t)n_q8 * q * 2);
    const kvd_latent_put_args a = {.s = slices(p),
                                   .n_heads = c->heads,
                                   .d_head = c->d,
                                   .q = device_x,
                                   .ld_q = ld,
                                   .cosine = c->turns ? p->device_cosine : NULL,
                                   .sine = c->turns ? p->device_sine : NULL,
                                   .interleaved = c->interleaved,
                                   .position = steps ? device_position : NULL,
                                   .q_start = steps ? NULL : device_start,
                                   .n_q8 = n_q8,
                                   .to_q = to,
                                   .latent = (uint16_t *)device_x + q,
                                   .ld_latent = ld,
                                   .run = device_run,
                                   .source = gaps ? device_source : NULL,
                                   .n_runs = n_runs,
                                   .pool = p->device_latents,
                                   .page_elements = p->latent_page,
                                   .positions = p->positions,
                                   .n_kv_heads = c->kv};
    check(kvd_latent_put(&a, NULL), "put");
    uint16_t *const got = fetch(p->device_latents, old_n), *const queries =
                                                               fetch(to, (size_t)n_q8 * q);
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->q_len[b]; t++)
            for (int side = 0, column = 0; side < 2; side++)
                for (int g = 0; g < c->kv; g += c->group)
                    for (int r = 0; r < c->rank[side]; r++, column++)
                        p->latents[latent_index(p, b, c->kv_len[b] - c->q_len[b] + t, g, side, r)] =
                            x[(size_t)(p->start[b] + t) * ld + q +
                              (size_t)(source[column / 8] + column % 8)];
    for (int b = 0; b < c->n; b++)
        for (int t = c->kv_len[b] - c->q_len[b]; t < c->kv_len[b]; t++)
            for (int g = 0; g < c->kv; g++)
                *stored_position(p, b, g, t) = steps ? (int32_t)position[b] : t;
    report(!memcmp(got, p->latents, old_n * sizeof *got), c->name,
           "latents and positions in their places, others as they were", 0, 0);
    double off = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->q_len[b]; t++)
            for (int h = 0; h < c->heads; h++) {
                double y[KVD_WIDTH_MAX];
                for (int i = 0; i < c->d; i++)
                    y[i] = (double)bf16_wide(
                        x[(size_t)(p->start[b] + t) * ld + (size_t)(h * c->d + i)]);
                if (c->turns)
                    turn(p, steps ? (int)position[b] : c->kv_len[b] - c->q_len[b] + t, y);
                for (int i = 0; i < c->d; i++) {
                    const size_t at = steps ? (size_t)b * q + (size_t)(h * c->d + i)
                                            : (size_t)(h * c->d) * (size_t)n_q8 +
                                                  kvd_blocked_index((size_t)(q_start[b] + t),
                                                                    (size_t)i, (size_t)c->d);
                    const double e = fabs((double)bf16_wide(queries[at]) - y[i]) / (1 + fabs(y[i]));
                    off = worse(off, e);
                }
            }
    report(off < 0x1p-8, c->name, steps ? "queries of steps" : "queries of prompts", off, 0x1p-8);
    host_free(x, got, queries);
    device_free(device_x, device_run, device_source, device_start, device_position, to);
}

static void test_gather(const problem *p)
{
    const latent_case *const c = p->c;
    const size_t ld = 2 * (size_t)(c->kv * c->d);
    const kvd_latent_slices s = slices(p);
    uint16_t *const pages = random_bf16(PAGES * p->page, 1);
    void *const device = on_device(pages, PAGES * p->page * 2), *const rows = on_device(
                                                                    NULL, p->rows * ld * 2);
    check(kvd_latent_gather(&s, p->device_head, c->kv, c->d, device, p->page, rows, NULL),
          "gather");
    uint16_t *const got = fetch(rows, p->rows * ld);
    size_t wrong = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->q_len[b]; t++)
            for (int side = 0; side < 2; side++)
                for (int g = 0; g < c->kv; g++)
                    for (int i = 0; i < c->d; i++)
                        wrong +=
                            got[(size_t)(p->start[b] + t) * ld +
                                (size_t)((side * c->kv + g) * c->d + i)] !=
                            pages[page_index(p, b, c->kv_len[b] - c->q_len[b] + t, g, side, i)];
    report(!wrong, c->name, "rows gathered", (double)wrong, 0);
    free(pages);
    free(got);
    device_free(device, rows);
}

static void test_cut(const problem *p)
{
    const latent_case *const c = p->c;
    uint16_t *const pages = random_bf16(PAGES * p->page, 1);
    void *const device = on_device(pages, PAGES * p->page * 2), *const to = on_device(
                                                                    NULL,
                                                                    PAGES * p->latent_page * 2);
    kvd_latent_restore_args a = restored(p);
    a.pages = device;
    check(kvd_latent_cut(&a, to, NULL), "cut");
    uint16_t *const got = fetch(to, PAGES * p->latent_page);
    double off = 0;
    for (int b = 0; b < c->n; b++)
        for (int g = 0; g < c->kv; g++)
            for (int side = 0; side < 2; side++)
                for (int r = 0; r < c->rank[side]; r++) {
                    const int t = c->kv_len[b] - 1;
                    double y = 0;
                    for (int i = 0; i < c->d; i++)
                        y += (double)bf16_wide(pages[page_index(p, b, t, g, side, i)]) *
                             (double)bf16_wide(matrix_of(p, b, g, side)[i * c->rank[side] + r]);
                    const double e =
                        fabs((double)bf16_wide(got[latent_index(p, b, t, g, side, r)]) - y) /
                        (1 + fabs(y));
                    off = worse(off, e);
                }
    report(off < 0x1p-8, c->name, "steps cut", off, 0x1p-8);
    free(pages);
    free(got);
    device_free(device, to);
}

static void test_gather_queries(const problem *p)
{
    const latent_case *const c = p->c;
    const size_t q = (size_t)(c->heads * c->d);
    int32_t q_start[MOST];
    int n_q8 = 0;
    for (int b = 0; b < c->n; b++) {
        q_start[b] = n_q8;
        n_q8 += (c->q_len[b] + 7) / 8 * 8;
    }
    uint16_t *const x = random_bf16((size_t)n_q8 * q, 1);
    void *const from = on_device(x, (size_t)n_q8 * q * 2),
                *const start = on_device(q_start, sizeof q_start),
                *const to = on_device(NULL, p->rows * q * 2);
    const kvd_latent_slices s = slices(p);
    check(kvd_latent_gather_queries(&s, start, n_q8, c->heads, c->d, from, to, NULL), "queries");
    uint16_t *const got = fetch(to, p->rows * q);
    size_t wrong = 0;
    for (int b = 0; b < c->n; b++)
        for (int t = 0; t < c->q_len[b]; t++)
            for (int h = 0; h < c->heads; h++)
                for (int i = 0; i < c->d; i++)
                    wrong +=
                        got[(size_t)(p->start[b] + t) * q + (size_t)(h * c->d + i)] !=
                        x[(size_t)(h * c->d) * (size_t)n_q8 +
                          kvd_blocked_index((size_t)(q_start[b] + t), (size_t)i, (size_t)c->d)];
    report(!wrong, c->name, "queries gathered", (double)wrong, 0);
    free(x);
    free(got);
    device_free(from, start, to);
}

static void test_leading(void)
{
    enum { N = 3, D = 48, WIDE = 48 };
    static const kvd_latent_basis basis[N] = {{19, 32, 0}, {5, 16, 32 * D}, {41, 48, 48 * D}};
    static const size_t n = 96 * D;
    float *const v = need(N * D * D * sizeof *v);
    for (int i = 0; i < N * D * D; i++)
        v[i] = (float)kvd_rng_normal(&rng);
    void *const from = on_device(v, N * D * D * sizeof *v), *const to = on_device(NULL, n * 2),
                *const padded = on_device(NULL, N * D * WIDE * 2),
                *const places = on_device(basis, sizeof basis);
    check(kvd_latent_leading(from, places, N, D, WIDE, to, padded, NULL), "leading");
    uint16_t *const got = fetch(to, n), *const also = fetch(padded, N * D * WIDE);
    size_t wrong = 0;
    for (int m = 0; m < N; m++)
        for (int i = 0; i < D; i++)
            for (int j = 0; j < WIDE; j++) {
                uint16_t want = 0;
                if (j < basis[m].width)
                    kvd_from_f32(KVD_BF16, v + m * D * D + (D - 1 - j) * D + i, &want, 1);
                wrong += also[(m * D + i) * WIDE + j] != want;
                if (j < basis[m].rank)
                    wrong += got[basis[m].at + i * basis[m].rank + j] != want;
            }
    report(!wrong, "48 dims", "leading eigenvectors", (double)wrong, 0);
    host_free(v, got, also);
    device_free(from, to, padded, places);
}

static const latent_case cases[] = {
    {"a token", 64, 2, 1, 4, {32, 48}, 0, 1, 0, 0, 1, {1}, {1}},
    {"groups", 128, 8, 4, 16, {256, 192}, 0, 1, 0, 0, 4, {1, 64, 200, 577}, {1, 64, 31, 5}},
    {"a part of the ranks at a time", 128, 8, 8, 8, {1040, 784}, 0, 1, 0, 0, 2, {70, 300}, {70, 2}},
    {"long ranks", 128, 4, 2, 4, {464, 272}, 0, 1, 0, 0, 3, {31, 64, 545}, {31, 1, 545}},
    {"long ranks of a head", 80, 1, 1, 1, {304, 768}, 0, 1, 1, 0, 2, {33, 100}, {33, 4}},
    {"joint heads", 128, 4, 4, 4, {464, 272}, 0, 1, 0, 0, 3, {31, 64, 545}, {31, 1, 545}},
    {"groups of other ranks", 128, 8, 4, 32, {384, 400}, 0, 1, 0, 0, 3, {600, 64, 129}, {1, 1, 1}},
    {"shared slots", 128, 8, 8, 32, {512, 768}, 0, 1, 0, 3, 3, {577, 2, 256}, {1, 1, 1}},
    {"joint pairs", 128, 2, 2, 2, {1040, 16}, 0, 1, 1, 0, 2, {300, 5}, {1, 1}},
    {"narrow heads, wide latents", 32, 4, 4, 4, {800, 16}, 0, 1, 1, 0, 2, {33, 16}, {1, 1}},
    {"values as latents", 128, 4, 2, 4, {80, 112}, 1, 1, 0, 0, 3, {65, 7, 130}, {65, 7, 100}},
    {"pairs", 96, 2, 2, 6, {144, 96}, 0, 1, 1, 0, 3, {100, 15, 17}, {9, 15, 16}},
    {"wide heads, values as latents", 256, 2, 2, 2, {464, 96}, 1, 1, 0, 0, 2, {33, 300}, {33, 40}},
    {"wide heads", 256, 2, 1, 2, {144, 256}, 0, 1, 0, 0, 2, {33, 100}, {33, 4}},
    {"wide heads, a part of the ranks at a time",
     208,
     2,
     2,
     2,
     {400, 768},
     0,
     1,
     1,
     0,
     2,
     {70, 300},
     {70, 2}},
    {"no RoPE", 80, 3, 1, 3, {16, 64}, 0, 0, 0, 0, 5, {33, 1, 8, 9, 300}, {1, 1, 1, 1, 1}},
    {"a narrow head", 16, 2, 1, 2, {16, 16}, 0, 1, 0, 0, 2, {40, 41}, {40, 3}},
    {"slots", 128, 2, 1, 4, {64, 64}, 0, 0, 0, 5, 4, {63, 129, 400, 2}, {1, 1, 1, 1}},
    {"slots of other ranks", 64, 4, 1, 4, {112, 96}, 0, 0, 0, 3, 3, {63, 129, 5}, {63, 2, 5}},
    {"slots of wide heads", 256, 2, 1, 4, {240, 96}, 0, 0, 0, 3, 3, {63, 129, 5}, {63, 2, 5}},
};

static bool is_quick(const latent_case *c)
{
    static const char *const name[] = {
        "a token",    "pairs", "a narrow head", "slots of other ranks", "long ranks of a head",
        "joint pairs"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!strcmp(c->name, name[i]))
            return true;
    return false;
}

/* usage: gpu_latents [CASE | quick]; quick: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("latents", 1))
        return 0;
    kvd_rng_seed(&rng, 9, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        problem p;
        if (quick ? !is_quick(&cases[i]) : argc > 1 && strcmp(argv[1], cases[i].name) != 0)
            continue;
        make(&p, &cases[i]);
        if (joins(&p))
            test_joint(&p);
        test_restore(&p);
        test_finished(&p);
        test_stored(&p);
        test_put(&p);
        if (!p.c->direct && p.c->group == 1)
            test_gather(&p);
        test_gather_queries(&p);
        if (p.c->slots && p.c->group == 1)
            test_cut(&p);
        release(&p);
    }
    test_leading();
    return failures ? 1 : 0;
}
