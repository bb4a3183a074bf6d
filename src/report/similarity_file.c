#include "report/similarity_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        for (int k = 0; k < 4; k++)
            free(x->random[k]);
    }
    free(s->pair);
    free(s->label);
    free(s->n_tokens);
    *s = (kvd_similarity){0};
}

/* Labels are texts of fixed length. */
static int read_labels(kvd_similarity *s, kvd_h5 *f, kvd_err *err)
{
    static const char path[] = "/files/label";
    enum { MOST_BYTES = 4096 };
    int status = -1;
    char *all = NULL;
    hid_t mem = H5I_INVALID_HID;
    hid_t dataset = H5Dopen2(f->id, path, H5P_DEFAULT);
    hid_t type = dataset < 0 ? H5I_INVALID_HID : H5Dget_type(dataset);
    size_t size = type < 0 ? 0 : H5Tget_size(type);
    if (type < 0 || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0 || size == 0 ||
        size > MOST_BYTES) {
        kvd_fail(err, "'%s': '%s' does not hold texts of fixed length", f->path, path);
        goto done;
    }
    all = malloc(s->n_files * size);
    s->label = calloc(s->n_files, sizeof *s->label);
    if (!all || !s->label) {
        kvd_no_memory(err, "labels", s->n_files * (size + sizeof *s->label));
        goto done;
    }
    mem = H5Tcopy(type);
    if (mem < 0 || H5Tset_strpad(mem, H5T_STR_NULLPAD) < 0 ||
        H5Dread(dataset, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) < 0) {
        kvd_fail(err, "'%s': cannot read '%s'", f->path, path);
        goto done;
    }
    for (size_t i = 0; i < s->n_files; i++)
        snprintf(s->label[i], KVD_LABEL, "%.*s", (int)size, all + i * size);
    status = 0;
done:
    if (mem >= 0)
        H5Tclose(mem);
    if (type >= 0)
        H5Tclose(type);
    if (dataset >= 0)
        H5Dclose(dataset);
    free(all);
    return status;
}

static int read_tokens(kvd_similarity *s, kvd_h5 *f, kvd_err *err)
{
    const hsize_t dims[] = {s->n_files};
    uint64_t *n = malloc(s->n_files * sizeof *n);
    s->n_tokens = calloc(s->n_files, sizeof *s->n_tokens);
    int status = !n || !s->n_tokens ? kvd_no_memory(err, "token counts", s->n_files * sizeof *n)
                                    : kvd_h5_read(f, "/files/n_tokens", 1, dims, H5T_NATIVE_UINT64, n, err);
    for (size_t i = 0; !status && i < s->n_files; i++)
        s->n_tokens[i] = (size_t)n[i];
    free(n);
    return status;
}

/* One dataset of a pair, of values from 0 to `most`; `skip` values are left NaN in front (file 0 of what is over the other files). */
static int numbers(kvd_h5 *f, kvd_pair pair, const char *name, int rank, size_t rows, size_t columns,
                   size_t skip, double most, double **out, kvd_err *err)
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
            return kvd_fail(err, "'%s': %s holds %g, not within 0 .. %g", f->path, path, (*out)[skip + i],
                            most);
    return 0;
}

static int read_pair(kvd_similarity *s, kvd_h5 *f, kvd_pair pair, kvd_err *err)
{
    static const char *const random[4] = {"random/delta_over_epsilon", "random/delta_aligned_over_epsilon",
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
        numbers(f, pair, "matrix/delta_aligned_over_epsilon", 2, n, n, 0, any, &x->aligned_ratio, err) ||
        numbers(f, pair, "matrix/overlap_half", 2, n, n, 0, 1, &x->overlap, err) ||
        numbers(f, pair, "matrix/energy_kept_half", 2, n, n, 0, 1, &x->energy, err))
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
        return kvd_fail(err, "'%s': %llu files compared, wanted 2 to %d", f->path, (unsigned long long)n,
                        MOST_FILES);
    s->n_files = (size_t)n;
    s->d_head = (size_t)model->d_head;
    if (read_labels(s, f, err) || read_tokens(s, f, err))
        return -1;
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        snprintf(group, sizeof group, "/%s", kvd_pair_name[p]);
        if (kvd_h5_exists(f, group) && read_pair(s, f, (kvd_pair)p, err))
            return -1;
    }
    return s->n_pairs ? 0 : kvd_fail(err, "'%s' compares no pair", f->path);
}
