#include "analysis/pairs.h"

#include <assert.h>
#include <cblas.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"

/* number of vectors that are passed to a callback at a time: 2 MiB at d_head 128 */
enum { BLOCK_ROWS = 4096 };

static int group_of(const kvd_model_info *m)
{
    return m->n_heads / m->n_kv_heads;
}

/* heads whose vectors form one decomposed matrix: KV head number kv, and q_count query heads from
 * number q_first on */
typedef struct {
    int q_first, q_count, kv;
} members;

static members members_of(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, int h)
{
    const int group = group_of(m);
    if (kvd_pair_heads(m, pair, pairing) == m->n_kv_heads)
        return (members){h * group, group, h};
    return (members){h, 1, h / group};
}

static bool has_queries(kvd_pair p)
{
    return p == KVD_PAIR_QK || p == KVD_PAIR_Q || p == KVD_PAIR_BQK;
}

static bool has_keys(kvd_pair p)
{
    return p == KVD_PAIR_QK || p == KVD_PAIR_K || p == KVD_PAIR_BQK;
}

static bool has_values(kvd_pair p)
{
    return p == KVD_PAIR_VW || p == KVD_PAIR_V || p == KVD_PAIR_BVW;
}

static bool has_w_o(kvd_pair p)
{
    return p == KVD_PAIR_VW || p == KVD_PAIR_BVW;
}

size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens)
{
    const size_t q = (size_t)members_of(m, pair, pairing, 0).q_count, width = (size_t)m->d_model;
    switch (pair) {
    case KVD_PAIR_QK:
        return (q + 1) * n_tokens;
    case KVD_PAIR_Q:
        return q * n_tokens;
    case KVD_PAIR_VW:
        return n_tokens + q * width;
    case KVD_PAIR_WV:
        return width;
    case KVD_PAIR_BQK:
        return q * n_tokens * n_tokens;
    case KVD_PAIR_BVW:
        return n_tokens * q * width;
    default:
        return n_tokens;
    }
}

typedef struct {
    float *rows;
    void *scratch;
} buffers;

static int get_buffers(const kvd_model_info *m, buffers *b, kvd_err *err)
{
    const size_t d = (size_t)m->d_head, width = (size_t)m->d_model;
    const size_t n = width > BLOCK_ROWS ? width : BLOCK_ROWS;
    b->rows = malloc(n * d * sizeof *b->rows);
    b->scratch = malloc(n * d * sizeof *b->rows);
    if (b->rows && b->scratch)
        return 0;
    free(b->rows);
    free(b->scratch);
    *b = (buffers){0};
    return kvd_no_memory(err, "a block of rows", 2 * n * d * sizeof(float));
}

static void drop_buffers(buffers *b)
{
    free(b->rows);
    free(b->scratch);
}

static int send_spans(const kvd_source *from, buffers *b, kvd_x x, int layer, int head,
                      kvd_row_sink sink, void *ctx, kvd_err *err)
{
    const kvd_span whole = {0, from->n_tokens}, *span = from->span ? from->span : &whole;
    const size_t n_spans = from->span ? from->n_spans : 1, d = (size_t)from->dump->model.d_head;
    size_t filled = 0;
    for (size_t i = 0; i < n_spans; i++)
        for (size_t t = 0; t < span[i].n;) {
            const size_t room = BLOCK_ROWS - filled, left = span[i].n - t,
                         n = left < room ? left : room;
            if (kvd_activations_rows(from->dump, x, layer, head, span[i].first + t, n,
                                     b->rows + filled * d, b->scratch, err))
                return -1;
            t += n;
            filled += n;
            if (filled == BLOCK_ROWS) {
                if (sink(ctx, b->rows, filled, err))
                    return -1;
                filled = 0;
            }
        }
    return filled ? sink(ctx, b->rows, filled, err) : 0;
}

static int send_rows(const kvd_source *from, buffers *b, kvd_x x, int layer, int head,
                     kvd_row_sink sink, void *ctx, kvd_err *err)
{
    const kvd_layer_rows *r = from->rows;
    if (!r)
        return send_spans(from, b, x, layer, head, sink, ctx, err);
    assert(head < r->n_heads[x]);
    const size_t n_rows = r->n_rows[x][head];
    for (size_t t = 0; t < n_rows; t += BLOCK_ROWS)
        if (sink(ctx, r->rows[x][head] + t * r->d_head,
                 n_rows - t < BLOCK_ROWS ? n_rows - t : BLOCK_ROWS, err))
            return -1;
    return 0;
}

static int check_rope(const kvd_activations *a, bool before_rope, kvd_err *err)
{
    if (before_rope && !a->has_pre)
        return kvd_fail(err, "'%s' has no Q and K before RoPE", a->file.path);
    return 0;
}

int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err)
{
    buffers b;
    const bool pre = x == KVD_X_Q_PRE || x == KVD_X_K_PRE;
    if (check_rope(from->dump, pre, err) || get_buffers(&from->dump->model, &b, err))
        return -1;
    const int status = send_rows(from, &b, x, layer, head, sink, ctx, err);
    drop_buffers(&b);
    return status;
}

/* Passes a head's W_O or W_V [d_head][d_model], transposed, to the callback `sink`. */
static int send_weight(kvd_activations *a, buffers *b, bool w_o, int layer, int head,
                       kvd_row_sink sink, void *ctx, kvd_err *err)
{
    const size_t d = (size_t)a->model.d_head, width = (size_t)a->model.d_model;
    float *w = b->scratch;
    if (w_o ? kvd_activations_w_o(a, layer, head, w, err)
            : kvd_activations_w_v(a, layer, head, w, err))
        return -1;
    for (size_t i = 0; i < width; i++)
        for (size_t j = 0; j < d; j++)
            b->rows[i * d + j] = w[j * width + i];
    return sink(ctx, b->rows, width, err);
}

int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err)
{
    const members who = members_of(&from->dump->model, pair, pairing, h);
    buffers b;
    assert(!kvd_pair_balanced(pair) && (from->rows || from->n_tokens <= from->dump->n_tokens));
    if (((has_queries(pair) || has_keys(pair)) && check_rope(from->dump, before_rope, err)) ||
        get_buffers(&from->dump->model, &b, err))
        return -1;
    int status = 0;
    for (int i = 0; !status && has_queries(pair) && i < who.q_count; i++)
        status = send_rows(from, &b, before_rope ? KVD_X_Q_PRE : KVD_X_Q, layer, who.q_first + i,
                           sink, ctx, err);
    if (!status && has_keys(pair))
        status =
            send_rows(from, &b, before_rope ? KVD_X_K_PRE : KVD_X_K, layer, who.kv, sink, ctx, err);
    if (!status && has_values(pair))
        status = send_rows(from, &b, KVD_X_V, layer, who.kv, sink, ctx, err);
    drop_buffers(&b);
    return status;
}

int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err)
{
    const members who = members_of(&a->model, pair, pairing, h);
    buffers b;
    assert(!kvd_pair_balanced(pair));
    if (!has_w_o(pair) && pair != KVD_PAIR_WV)
        return 0;
    if (get_buffers(&a->model, &b, err))
        return -1;
    int status = 0;
    for (int i = 0; !status && has_w_o(pair) && i < who.q_count; i++)
        status = send_weight(a, &b, true, layer, who.q_first + i, sink, ctx, err);
    if (!status && pair == KVD_PAIR_WV)
        status = send_weight(a, &b, false, layer, who.kv, sink, ctx, err);
    drop_buffers(&b);
    return status;
}

typedef struct {
    double *gram, *scratch;
    size_t d;
} gram_sink;

static int add_to_gram(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    gram_sink *s = ctx;
    return kvd_gram_add(s->gram, s->d, rows, n, s->d, s->scratch, err);
}

static const kvd_x x_of[] = {[KVD_G_Q] = KVD_X_Q,
                             [KVD_G_K] = KVD_X_K,
                             [KVD_G_V] = KVD_X_V,
                             [KVD_G_Q_PRE] = KVD_X_Q_PRE,
                             [KVD_G_K_PRE] = KVD_X_K_PRE};

void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X])
{
    memset(need, 0, KVD_N_X * sizeof *need);
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        if (!wanted[p])
            continue;
        const bool pre = before_rope && !kvd_pair_balanced((kvd_pair)p);
        need[pre ? KVD_X_Q_PRE : KVD_X_Q] |= has_queries((kvd_pair)p);
        need[pre ? KVD_X_K_PRE : KVD_X_K] |= has_keys((kvd_pair)p);
        need[KVD_X_V] |= has_values((kvd_pair)p);
    }
}

int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err)
{
    bool need[KVD_N_G] = {false}, tensor[KVD_N_X];
    kvd_pair_tensors(wanted, before_rope, tensor);
    for (int g = 0; g < KVD_G_W_O; g++)
        need[g] = tensor[x_of[g]];
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        need[KVD_G_W_O] |= wanted[p] && weights && has_w_o((kvd_pair)p);
        need[KVD_G_W_V] |= wanted[p] && weights && p == KVD_PAIR_WV;
    }
    if ((need[KVD_G_Q_PRE] || need[KVD_G_K_PRE]) && check_rope(from->dump, true, err))
        return -1;

    gram_sink sink = {.d = (size_t)from->dump->model.d_head};
    buffers b;
    assert(m->n_layers == 1);
    if (get_buffers(&from->dump->model, &b, err))
        return -1;
    int status = 0;
    sink.scratch = malloc(kvd_gram_scratch(sink.d) * sizeof *sink.scratch);
    if (!sink.scratch)
        status =
            kvd_no_memory(err, "a block of rows", kvd_gram_scratch(sink.d) * sizeof *sink.scratch);
    for (int g = 0; !status && g < KVD_N_G; g++)
        for (int h = 0; !status && need[g] && h < kvd_moments_heads(m, (kvd_g)g); h++) {
            sink.gram = kvd_moments_at(m, (kvd_g)g, 0, h);
            if (g == KVD_G_W_O || g == KVD_G_W_V)
                status =
                    send_weight(from->dump, &b, g == KVD_G_W_O, layer, h, add_to_gram, &sink, err);
            else
                status = send_rows(from, &b, x_of[g], layer, h, add_to_gram, &sink, err);
        }
    free(sink.scratch);
    drop_buffers(&b);
    return status;
}

static void add_gram(const kvd_moments *m, kvd_g g, int layer, int head, double *sum)
{
    const size_t n = (size_t)m->model.d_head * (size_t)m->model.d_head;
    const double *x = kvd_moments_at(m, g, layer, head);
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err)
{
    const members who = members_of(&m->model, pair, pairing, h);
    const size_t d = (size_t)m->model.d_head;
    const kvd_g q = before_rope ? KVD_G_Q_PRE : KVD_G_Q, k = before_rope ? KVD_G_K_PRE : KVD_G_K;
    assert(!kvd_pair_balanced(pair));
    if ((has_queries(pair) && !m->gram[q]) || (has_keys(pair) && !m->gram[k]))
        return kvd_fail(err, "the moments hold no Q and K before RoPE");
    memset(gram, 0, d * d * sizeof *gram);
    for (int i = 0; i < who.q_count; i++) {
        if (has_queries(pair))
            add_gram(m, q, layer, who.q_first + i, gram);
        if (has_w_o(pair))
            add_gram(m, KVD_G_W_O, layer, who.q_first + i, gram);
    }
    if (has_keys(pair))
        add_gram(m, k, layer, who.kv, gram);
    if (has_values(pair))
        add_gram(m, KVD_G_V, layer, who.kv, gram);
    if (pair == KVD_PAIR_WV)
        add_gram(m, KVD_G_W_V, layer, who.kv, gram);
    return 0;
}

void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr)
{
    const size_t d = (size_t)m->model.d_head;
    const int group = group_of(&m->model);
    assert(kvd_pair_balanced(pair));
    memset(cl, 0, d * d * sizeof *cl);
    memset(cr, 0, d * d * sizeof *cr);
    const bool qk = pair == KVD_PAIR_BQK;
    for (int i = 0; i < group; i++)
        add_gram(m, qk ? KVD_G_Q : KVD_G_W_O, layer, kv_head * group + i, qk ? cl : cr);
    add_gram(m, qk ? KVD_G_K : KVD_G_V, layer, kv_head, qk ? cr : cl);
}

static void multiply(const double *A, const double *B, size_t d, double *C)
{
    const int n = (int)d;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0, A, n, B, n, 0.0, C, n);
}

int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err)
{
    const size_t n = d * d;
    double *work = malloc(6 * n * sizeof *work);
    if (!work)
        return kvd_no_memory(err, "a balanced projection", 6 * n * sizeof *work);
    double *root_l = work, *inverse_l = work + n, *root_r = work + 2 * n, *M = work + 3 * n,
           *U = work + 4 * n, *V = work + 5 * n;
    size_t rank;
    int status = -1;
    if (kvd_sqrt_psd(cl, d, (double)d * DBL_EPSILON, root_l, inverse_l, &rank, err)) {
        kvd_in(err, "left moments");
        goto done;
    }
    if (kvd_sqrt_psd(cr, d, 0, root_r, NULL, &rank, err)) {
        kvd_in(err, "right moments");
        goto done;
    }
    multiply(root_l, root_r, d, M);
    if (kvd_svd_square(M, d, U, sigma, V, err))
        goto done;
    multiply(inverse_l, U, d, left);
    multiply(root_l, U, d, right);
    kvd_fix_signs_two(left, right, d);
    status = 0;
done:
    free(work);
    return status;
}
