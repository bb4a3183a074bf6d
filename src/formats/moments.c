#include "formats/moments.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_moments = {"moments", 1,
                                       "Second moments of Q, K, V and of the weights per head"};

const char *const kvd_g_name[KVD_N_G] = {"q", "k", "v", "q_pre", "k_pre", "w_o", "w_v"};

static const char *const long_name[KVD_N_G] = {
    "sum over tokens of q q^T, after RoPE",
    "sum over tokens of k k^T, after RoPE",
    "sum over tokens of v v^T",
    "sum over tokens of q q^T, before RoPE",
    "sum over tokens of k k^T, before RoPE",
    "output projection of a head times its transpose",
    "transposed value projection of a head times itself"};

static bool is_pre(kvd_g g)
{
    return g == KVD_G_Q_PRE || g == KVD_G_K_PRE;
}

static bool is_weight(kvd_g g)
{
    return g == KVD_G_W_O || g == KVD_G_W_V;
}

int kvd_moments_heads(const kvd_moments *m, kvd_g g)
{
    return g == KVD_G_Q || g == KVD_G_Q_PRE || g == KVD_G_W_O ? m->model.n_heads
                                                              : m->model.n_kv_heads;
}

double *kvd_moments_at(const kvd_moments *m, kvd_g g, int layer, int head)
{
    const size_t d = (size_t)m->model.d_head, heads = (size_t)kvd_moments_heads(m, g);
    assert(m->gram[g] && layer >= 0 && layer < m->n_layers && head >= 0 && (size_t)head < heads);
    return m->gram[g] + ((size_t)layer * heads + (size_t)head) * d * d;
}

/* Sets *n to the number of values of tensor g. Returns -1 on overflow, because sizes may come from
 * a damaged file. */
static int count_of(const kvd_moments *m, kvd_g g, size_t *n)
{
    size_t bytes;
    return kvd_status(
        __builtin_mul_overflow((size_t)m->n_layers, (size_t)kvd_moments_heads(m, g), n) ||
        __builtin_mul_overflow(*n, (size_t)m->model.d_head, n) ||
        __builtin_mul_overflow(*n, (size_t)m->model.d_head, n) ||
        __builtin_mul_overflow(*n, sizeof(double), &bytes));
}

size_t kvd_moments_count(const kvd_moments *m, kvd_g g)
{
    size_t n;
    return m->gram[g] && !count_of(m, g, &n) ? n : 0;
}

double kvd_moments_bytes(const kvd_moments *m)
{
    double elements = 0;
    for (int g = 0; g < KVD_N_G; g++)
        if (!is_pre((kvd_g)g) || m->has_pre)
            elements += (double)m->n_layers * kvd_moments_heads(m, (kvd_g)g) * m->model.d_head *
                        m->model.d_head;
    return elements * sizeof(double);
}

int kvd_moments_alloc(kvd_moments *m, kvd_err *err)
{
    for (int g = 0; g < KVD_N_G; g++)
        m->gram[g] = NULL;
    for (int g = 0; g < KVD_N_G; g++) {
        size_t n;
        if (is_pre((kvd_g)g) && !m->has_pre)
            continue;
        if (count_of(m, (kvd_g)g, &n)) {
            kvd_moments_release(m);
            return kvd_fail(err, "moments of %d layers, %d heads, d_head %d are too large",
                            m->n_layers, kvd_moments_heads(m, (kvd_g)g), m->model.d_head);
        }
        if (!(m->gram[g] = calloc(n, sizeof(double)))) {
            kvd_moments_release(m);
            return kvd_no_memory(err, "second moments", n * sizeof(double));
        }
    }
    return 0;
}

void kvd_moments_release(kvd_moments *m)
{
    for (int g = 0; g < KVD_N_G; g++) {
        free(m->gram[g]);
        m->gram[g] = NULL;
    }
}

static void set_dims(const kvd_moments *m, kvd_g g, hsize_t *dims)
{
    dims[0] = (hsize_t)m->n_layers;
    dims[1] = (hsize_t)kvd_moments_heads(m, g);
    dims[2] = dims[3] = (hsize_t)m->model.d_head;
}

static void set_path(kvd_g g, char path[16])
{
    snprintf(path, 16, "/gram/%s", kvd_g_name[g]);
}

int kvd_moments_write(kvd_h5 *f, const kvd_moments *m, kvd_err *err)
{
    if (kvd_model_info_write(f, &m->model, err) ||
        kvd_h5_put_text(f, "/", "label", m->label, err) ||
        kvd_field_write_corpus_hash(f, m->corpus_hash, err) ||
        kvd_h5_put_int(f, "/", "n_sequences", (int64_t)m->n_sequences, err) ||
        kvd_h5_put_int(f, "/", "seq_len", (int64_t)m->seq_len, err) ||
        kvd_h5_put_int(f, "/", "first_layer", m->first_layer, err) ||
        kvd_field_write_tokens(f, "tokens that the sums run over", m->n_tokens, err))
        return -1;
    for (int g = 0; g < KVD_N_G; g++) {
        if (!m->gram[g])
            continue;
        char path[16];
        set_path((kvd_g)g, path);
        const bool kv = kvd_moments_heads(m, (kvd_g)g) == m->model.n_kv_heads &&
                        !(g == KVD_G_Q || g == KVD_G_Q_PRE || g == KVD_G_W_O);
        kvd_h5_spec spec = {.path = path,
                            .long_name = long_name[g],
                            .units = "1",
                            .type = H5T_IEEE_F64LE,
                            .rank = 4,
                            .axes = {"layer", kv ? "kv_head" : "head", "dim", "dim"}};
        set_dims(m, (kvd_g)g, spec.dims);
        if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, m->gram[g], err))
            return -1;
        if (g != KVD_G_V && !is_weight((kvd_g)g) &&
            kvd_h5_put_text(f, path, "rope", kvd_model_info_rope(&m->model, is_pre((kvd_g)g)), err))
            return -1;
    }
    return 0;
}

static int describe(kvd_h5 *f, kvd_moments *m, kvd_err *err)
{
    if (kvd_model_info_read(f, &m->model, err) ||
        kvd_field_text(f, "/", "label", m->label, sizeof m->label, err) ||
        kvd_field_corpus_hash(f, m->corpus_hash, err) ||
        kvd_field_tokens(f, 1, &m->n_tokens, err) ||
        kvd_field_layers(f, "/gram/q", 4, m->model.n_layers, &m->n_layers, err) ||
        kvd_field_small(f, "/", "first_layer", 0, m->model.n_layers - m->n_layers, &m->first_layer,
                        err) ||
        kvd_field_size(f, "/", "n_sequences", 1, m->n_tokens, &m->n_sequences, err) ||
        kvd_field_size(f, "/", "seq_len", 1, (size_t)m->model.max_positions, &m->seq_len, err))
        return -1;
    if ((m->n_tokens - 1) / m->n_sequences >= m->seq_len)
        return kvd_fail(err, "'%s': %zu tokens do not fit into %zu sequences of at most %zu",
                        f->path, m->n_tokens, m->n_sequences, m->seq_len);
    m->has_pre = kvd_h5_exists(f, "/gram/q_pre") || kvd_h5_exists(f, "/gram/k_pre");
    return 0;
}

/* Fails unless X^T X is symmetric and satisfies the Cauchy-Schwarz inequality. */
static int check_sums(kvd_h5 *f, const kvd_moments *m, kvd_g g, kvd_err *err)
{
    const size_t d = (size_t)m->model.d_head;
    for (int l = 0; l < m->n_layers; l++)
        for (int h = 0; h < kvd_moments_heads(m, g); h++) {
            const double *G = kvd_moments_at(m, g, l, h);
            double largest = 0;
            for (size_t i = 0; i < d; i++) {
                if (G[i * d + i] < 0)
                    return kvd_fail(err,
                                    "'%s': /gram/%s layer %d head %d: diagonal %zu is %g, below 0",
                                    f->path, kvd_g_name[g], l, h, i, G[i * d + i]);
                largest = fmax(largest, G[i * d + i]);
            }
            for (size_t i = 0; i < d; i++)
                for (size_t j = 0; j < i; j++) {
                    const double most = sqrt(G[i * d + i]) * sqrt(G[j * d + j]);
                    if (fabs(G[i * d + j]) > most + 1e-9 * largest)
                        return kvd_fail(
                            err,
                            "'%s': /gram/%s layer %d head %d: entry %zu, %zu is %g, its diagonal allows "
                            "%g",
                            f->path, kvd_g_name[g], l, h, i, j, G[i * d + j], most);
                    if (fabs(G[i * d + j] - G[j * d + i]) > 1e-12 * largest)
                        return kvd_fail(
                            err, "'%s': /gram/%s layer %d head %d is not symmetric at %zu, %zu",
                            f->path, kvd_g_name[g], l, h, i, j);
                }
        }
    return 0;
}

int kvd_moments_load(kvd_moments *m, const char *path, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    int status = -1;
    memset(m, 0, sizeof *m);
    if (kvd_h5_open(&f, path, &kvd_schema_moments, err))
        return -1;
    if (describe(&f, m, err))
        goto done;
    /* Checks shapes first, because a damaged file may announce any size. */
    for (int g = 0; g < KVD_N_G; g++) {
        char name[16];
        hsize_t want[4];
        if (is_pre((kvd_g)g) && !m->has_pre)
            continue;
        set_path((kvd_g)g, name);
        set_dims(m, (kvd_g)g, want);
        if (kvd_field_shape(&f, name, 4, want, err))
            goto done;
    }
    if (kvd_moments_alloc(m, err)) {
        kvd_in(err, "'%s'", path);
        goto done;
    }
    for (int g = 0; g < KVD_N_G; g++) {
        char name[16];
        hsize_t dims[4];
        if (!m->gram[g])
            continue;
        set_path((kvd_g)g, name);
        set_dims(m, (kvd_g)g, dims);
        if (kvd_h5_read_finite(&f, name, 4, dims, m->gram[g], err) ||
            check_sums(&f, m, (kvd_g)g, err))
            goto done;
    }
    status = 0;
done:
    if (status)
        kvd_moments_release(m);
    kvd_h5_close(&f, false);
    return status;
}

static int same_weights(const kvd_moments *a, const char *file_a, const kvd_moments *b,
                        const char *file_b, kvd_g g, kvd_err *err)
{
    const size_t n = kvd_moments_count(a, g);
    double largest = 0, apart = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(a->gram[g][i]));
        apart = fmax(apart, fabs(a->gram[g][i] - b->gram[g][i]));
    }
    if (apart > 1e-9 * largest)
        return kvd_fail(err, "'%s' and '%s' are of different models: /gram/%s differs by %g",
                        file_a, file_b, kvd_g_name[g], apart);
    return 0;
}

int kvd_moments_add(kvd_moments *sum, const char *sum_path, const kvd_moments *other,
                    const char *other_path, kvd_err *err)
{
    if (kvd_model_info_same(&sum->model, sum_path, &other->model, other_path, err))
        return -1;
    if (sum->first_layer != other->first_layer || sum->n_layers != other->n_layers)
        return kvd_fail(err, "'%s' and '%s' have different layers: %d-%d and %d-%d", sum_path,
                        other_path, sum->first_layer, sum->first_layer + sum->n_layers - 1,
                        other->first_layer, other->first_layer + other->n_layers - 1);
    if (sum->has_pre != other->has_pre)
        return kvd_fail(err, "only '%s' has moments before RoPE, not '%s'",
                        sum->has_pre ? sum_path : other_path, sum->has_pre ? other_path : sum_path);
    for (kvd_g g = KVD_G_W_O; g <= KVD_G_W_V; g++)
        if (same_weights(sum, sum_path, other, other_path, g, err))
            return -1;
    for (int g = 0; g < KVD_N_G; g++) {
        const size_t n = is_weight((kvd_g)g) ? 0 : kvd_moments_count(sum, (kvd_g)g);
        for (size_t i = 0; i < n; i++)
            sum->gram[g][i] += other->gram[g][i];
    }
    sum->n_tokens += other->n_tokens;
    sum->n_sequences += other->n_sequences;
    if (other->seq_len > sum->seq_len)
        sum->seq_len = other->seq_len;
    kvd_field_add_hash(sum->corpus_hash, sizeof sum->corpus_hash, other->corpus_hash);
    kvd_field_add_label(sum->label, sizeof sum->label, other->label);
    return 0;
}
