#include "formats/similarity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_similarity = {"similarity", 1,
                                          "Likeness of the bases found on different texts"};

static int put(kvd_h5 *f, const kvd_comparison *c, const char *name, const char *long_name,
               int rank, const hsize_t *dims, const char *const *axes, const double *data,
               kvd_err *err)
{
    char path[64];
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[c->pair], name);
    kvd_h5_spec spec = {
        .path = path, .long_name = long_name, .units = "1", .type = H5T_IEEE_F64LE, .rank = rank};
    for (int i = 0; i < rank; i++) {
        spec.dims[i] = dims[i];
        spec.axes[i] = axes[i];
    }
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, data, err);
}

int kvd_comparison_write(kvd_h5 *f, const kvd_comparison *c, const char *h_axis, kvd_err *err)
{
    const hsize_t mean_dims[] = {c->n_others, c->d},
                  head_dims[] = {c->n_others, c->n_layers, c->n_h, c->d},
                  matrix_dims[] = {c->n_files, c->n_files}, file_dims[] = {c->n_files};
    const char *const mean_axes[] = {"other", "dim"},
                      *const head_axes[] = {"other", "layer", h_axis, "dim"},
                      *const matrix_axes[] = {"basis_file", "data_file"},
                      *const file_axes[] = {"data_file"};
    const struct {
        const char *name, *long_name;
        int rank;
        const hsize_t *dims;
        const char *const *axes;
        const double *data;
    } row[] = {
        {"epsilon", "mean |R| of the file: ZACK section 4", 1, mean_dims, mean_axes, c->epsilon},
        {"delta", "mean |R_reference - R|: ZACK section 4", 1, mean_dims, mean_axes, c->delta},
        {"delta_aligned", "delta after matching the sign of every column", 1, mean_dims, mean_axes,
         c->delta_aligned},
        {"overlap",
         "mean squared cosine of the principal angles of the leading m = dim + 1 columns", 2,
         mean_dims, mean_axes, c->overlap},
        {"energy_kept",
         "energy of the file's data in the leading m = dim + 1 columns of the reference's basis", 2,
         mean_dims, mean_axes, c->energy_kept},
        {"energy_own", "the same in the file's own basis: the most that any basis keeps", 2,
         mean_dims, mean_axes, c->energy_own},
        {"per_head/epsilon", "epsilon per head", 3, head_dims, head_axes, c->head_epsilon},
        {"per_head/delta", "delta per head", 3, head_dims, head_axes, c->head_delta},
        {"per_head/delta_aligned", "delta_aligned per head", 3, head_dims, head_axes,
         c->head_delta_aligned},
        {"per_head/overlap", "overlap per head", 4, head_dims, head_axes, c->head_overlap},
        {"per_head/energy_kept", "energy_kept per head", 4, head_dims, head_axes,
         c->head_energy_kept},
        {"matrix/delta_over_epsilon", "delta between the files over epsilon of the data file", 2,
         matrix_dims, matrix_axes, c->delta_over_epsilon},
        {"matrix/delta_aligned_over_epsilon", "the same with signs of columns matched", 2,
         matrix_dims, matrix_axes, c->aligned_over_epsilon},
        {"matrix/overlap_half", "overlap of the leading halves", 2, matrix_dims, matrix_axes,
         c->overlap_half},
        {"matrix/energy_kept_half", "energy of the data file in the leading half of the basis file",
         2, matrix_dims, matrix_axes, c->energy_kept_half},
        {"matrix/means_over_epsilon",
         "difference of the mean |R| over all heads, over epsilon of the data file", 2, matrix_dims,
         matrix_axes, c->means_over_epsilon},
        {"matrix/head_means_over_epsilon",
         "difference of the mean |R| of each head, mean over heads, over epsilon of the data file",
         2, matrix_dims, matrix_axes, c->head_means_over_epsilon},
        {"random/delta_over_epsilon", "delta of a random basis over epsilon of the file", 1,
         file_dims, file_axes, c->random[0]},
        {"random/delta_aligned_over_epsilon", "the same with signs of columns matched", 1,
         file_dims, file_axes, c->random[1]},
        {"random/overlap_half", "overlap with the leading half of a random basis", 1, file_dims,
         file_axes, c->random[2]},
        {"random/energy_kept_half", "energy of the file in the leading half of a random basis", 1,
         file_dims, file_axes, c->random[3]},
        {"random/means_over_epsilon", "difference of the mean |R| over all heads, random basis", 1,
         file_dims, file_axes, c->random[4]},
        {"random/head_means_over_epsilon", "the same of each head, mean over heads", 1, file_dims,
         file_axes, c->random[5]},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (put(f, c, row[i].name, row[i].long_name, row[i].rank, row[i].dims, row[i].axes,
                row[i].data, err))
            return -1;
    return 0;
}

int kvd_similarity_write_files(kvd_h5 *f, const char *const *path, const kvd_spectrum *s, size_t n,
                               kvd_err *err)
{
    const char **const label = calloc(3 * n, sizeof *label);
    uint64_t *const n_tokens = calloc(n, sizeof *n_tokens);
    char(*const plain)[KVD_CORPUS_HASH_TEXT] = calloc(n, sizeof *plain);
    int status = -1;
    if (!label || !n_tokens || !plain) {
        kvd_no_memory(err, "the list of spectra",
                      n * (3 * sizeof *label + sizeof *n_tokens + sizeof *plain));
        goto done;
    }
    const char **const hash = label + n, **const method = hash + n;
    for (size_t i = 0; i < n; i++) {
        label[i] = s[i].label;
        /* Writes the hash of a text only if the decomposition used all tokens of the text. */
        if (kvd_spectrum_text(&s[i], path[i]).n_tokens == s[i].n_tokens)
            snprintf(plain[i], sizeof plain[i], "%.*s", (int)strcspn(s[i].corpus_hash, "+"),
                     s[i].corpus_hash);
        hash[i] = plain[i];
        method[i] = s[i].method;
        n_tokens[i] = s[i].n_tokens;
    }
    const kvd_h5_spec tokens = {
        "/files/n_tokens", "tokens that the spectrum was made from", "1", H5T_STD_U64LE, 1, {n},
        {"file"}};
    if (kvd_model_info_write(f, &s[0].model, err) ||
        kvd_h5_put_text(f, "/", "reference", s[0].label, err) ||
        kvd_h5_put_int(f, "/", "reference_tokens", (int64_t)s[0].n_tokens, err) ||
        kvd_h5_put_text(f, "/", "rope", s[0].rope, err) ||
        kvd_h5_put_text(f, "/", "pairing", kvd_pairing_name[s[0].pairing], err) ||
        kvd_h5_put_int(f, "/", "first_layer", s[0].first_layer, err) ||
        kvd_field_write_texts(f, "/files/label",
                              "label of each text in tables; file 0 is the reference", "file",
                              label, n, err) ||
        kvd_field_write_texts(f, "/files/path", "spectrum file as given", "file", path, n, err) ||
        kvd_field_write_texts(f, "/files/hash", "hash of the texts", "file", hash, n, err) ||
        kvd_field_write_texts(f, "/files/method", "svd, tsqr or gram", "file", method, n, err) ||
        kvd_h5_write(f, &tokens, H5T_NATIVE_UINT64, n_tokens, err))
        goto done;
    status = 0;
done:
    free(label);
    /* cppcheck-suppress autovarInvalidDeallocation */
    free(plain);
    free(n_tokens);
    return status;
}

void kvd_similarity_release(kvd_similarity *s)
{
    for (size_t p = 0; p < s->n_pairs; p++) {
        kvd_similarity_pair *x = &s->pair[p];
        free(x->epsilon);
        free(x->delta);
        free(x->delta_ratio);
        free(x->aligned_ratio);
        free(x->overlap);
        free(x->energy);
        free(x->means);
        free(x->head_means);
        for (int k = 0; k < 4; k++)
            free(x->random[k]);
    }
    free(s->pair);
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->label)
            free(s->label[i]);
        if (s->hash)
            free(s->hash[i]);
    }
    free(s->label);
    free(s->hash);
    free(s->n_tokens);
    *s = (kvd_similarity){0};
}

static int read_texts(size_t n, kvd_h5 *f, const char *path, char ***out, kvd_err *err)
{
    const hid_t dataset = H5Dopen2(f->id, path, H5P_DEFAULT);
    *out = calloc(n, sizeof **out);
    const int status = dataset < 0 ? kvd_fail(err, "'%s': cannot read '%s'", f->path, path)
                       : !*out     ? kvd_no_memory(err, path, n * sizeof **out)
                                   : kvd_field_read_texts(dataset, f->path, path, n, *out, err);
    if (dataset >= 0)
        H5Dclose(dataset);
    return status;
}

static int read_tokens(kvd_similarity *s, kvd_h5 *f, kvd_err *err)
{
    const hsize_t dims[] = {s->n_files};
    uint64_t *n = malloc(s->n_files * sizeof *n);
    s->n_tokens = calloc(s->n_files, sizeof *s->n_tokens);
    int status = !n || !s->n_tokens
                     ? kvd_no_memory(err, "token counts", s->n_files * sizeof *n)
                     : kvd_h5_read(f, "/files/n_tokens", 1, dims, H5T_NATIVE_UINT64, n, err);
    for (size_t i = 0; !status && i < s->n_files; i++)
        s->n_tokens[i] = (size_t)n[i];
    free(n);
    return status;
}

/* Reads array `name`, which compares the rotation matrices in several files, into *out. Each value
 * must be from 0 to `most`. If `skip` is 1, *out begins with NaN, because the array has no value
 * for the first file. */
static int numbers(kvd_h5 *f, kvd_pair pair, const char *name, int rank, size_t rows,
                   size_t columns, size_t skip, double most, double **out, kvd_err *err)
{
    char path[96];
    const hsize_t dims[] = {rows, columns};
    size_t n = rows * (rank == 2 ? columns : 1);
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[pair], name);
    *out = malloc((n + skip) * sizeof **out);
    if (!*out)
        return kvd_no_memory(err, path, (n + skip) * sizeof **out);
    for (size_t i = 0; i < skip; i++)
        (*out)[i] = (double)NAN;
    if (kvd_h5_read_finite(f, path, rank, dims, *out + skip, err))
        return -1;
    for (size_t i = 0; i < n; i++)
        if ((*out)[skip + i] < -1e-9 || (*out)[skip + i] > most + 1e-9)
            return kvd_fail(err, "'%s': %s holds %g, not within 0 .. %g", f->path, path,
                            (*out)[skip + i], most);
    return 0;
}

static int read_pair(kvd_similarity *s, kvd_h5 *f, kvd_pair pair, kvd_err *err)
{
    static const char *const random[4] = {"random/delta_over_epsilon",
                                          "random/delta_aligned_over_epsilon",
                                          "random/overlap_half", "random/energy_kept_half"};
    const double any = (double)INFINITY;
    size_t n = s->n_files;
    kvd_similarity_pair *all = realloc(s->pair, (s->n_pairs + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "similarity", (s->n_pairs + 1) * sizeof *all);
    s->pair = all;
    kvd_similarity_pair *x = &s->pair[s->n_pairs++];
    *x = (kvd_similarity_pair){.pair = pair};
    if (numbers(f, pair, "epsilon", 1, n - 1, 1, 1, any, &x->epsilon, err) ||
        numbers(f, pair, "delta", 1, n - 1, 1, 1, any, &x->delta, err) ||
        numbers(f, pair, "matrix/delta_over_epsilon", 2, n, n, 0, any, &x->delta_ratio, err) ||
        numbers(f, pair, "matrix/delta_aligned_over_epsilon", 2, n, n, 0, any, &x->aligned_ratio,
                err) ||
        numbers(f, pair, "matrix/overlap_half", 2, n, n, 0, 1, &x->overlap, err) ||
        numbers(f, pair, "matrix/energy_kept_half", 2, n, n, 0, 1, &x->energy, err))
        return -1;
    char path[64];
    snprintf(path, sizeof path, "/%s/matrix/means_over_epsilon", kvd_pair_name[pair]);
    if (kvd_h5_exists(f, path) &&
        (numbers(f, pair, "matrix/means_over_epsilon", 2, n, n, 0, any, &x->means, err) ||
         numbers(f, pair, "matrix/head_means_over_epsilon", 2, n, n, 0, any, &x->head_means, err)))
        return -1;
    for (int k = 0; k < 4; k++)
        if (numbers(f, pair, random[k], 1, n, 1, 0, k < 2 ? any : 1, &x->random[k], err))
            return -1;
    return 0;
}

int kvd_similarity_read(kvd_similarity *s, kvd_h5 *f, const kvd_model_info *model, kvd_err *err)
{
    enum { MOST_FILES = 10000 };
    hsize_t n = 0;
    char group[16];
    if (kvd_h5_shape(f, "/files/label", 1, &n, err))
        return -1;
    if (n < 2 || n > MOST_FILES)
        return kvd_fail(err, "'%s': %llu files compared, wanted 2 to %d", f->path,
                        (unsigned long long)n, MOST_FILES);
    s->n_files = (size_t)n;
    s->d_head = (size_t)model->d_head;
    if (read_texts(s->n_files, f, "/files/label", &s->label, err) ||
        (kvd_h5_exists(f, "/files/hash") &&
         read_texts(s->n_files, f, "/files/hash", &s->hash, err)) ||
        read_tokens(s, f, err))
        return -1;
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        snprintf(group, sizeof group, "/%s", kvd_pair_name[p]);
        if (kvd_h5_exists(f, group) && read_pair(s, f, (kvd_pair)p, err))
            return -1;
    }
    return s->n_pairs ? 0 : kvd_fail(err, "'%s' compares no pair", f->path);
}
