#include "formats/error_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_error_table = {
    "error-table", 1, "Error of cutting one head of one pair to a given width"};

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err)
{
    const hsize_t L = (hsize_t)t->n_layers, H = (hsize_t)t->n_kv_heads, W = t->n_widths;
    const kvd_h5_spec width = {
        "/width", "kept dimensions that were tried", "1", H5T_STD_I32LE, 1, {W}, {"width"}};
    if (kvd_model_info_write(f, &t->model, err) ||
        kvd_h5_put_text(f, "/", "method", t->method, err) ||
        kvd_h5_put_text(f, "/", "pair_qk", kvd_pair_name[t->pair[0]], err) ||
        kvd_h5_put_text(f, "/", "pair_v", kvd_pair_name[t->pair[1]], err) ||
        kvd_h5_put_text(f, "/", "bases_hash", t->bases_hash, err) ||
        kvd_h5_write(f, &width, H5T_NATIVE_INT32, t->width, err))
        return -1;
    const size_t per_side = (size_t)L * H * t->n_widths;
    for (int side = 0; side < 2; side++) {
        char path[32];
        snprintf(path, sizeof path, "/%s/error", kvd_pair_name[t->pair[side]]);
        const kvd_h5_spec error = {
            path,
            "mean Kullback-Leibler divergence from the uncut model with only this head cut to this width",
            "nat",
            H5T_IEEE_F64LE,
            3,
            {L, H, W},
            {"layer", "kv_head", "width"}};
        if (kvd_h5_write(f, &error, H5T_NATIVE_DOUBLE, t->error + (size_t)side * per_side, err))
            return -1;
    }
    return 0;
}

/* Fails if a loss is negative, or not 0 although all dimensions are kept. */
static int check_errors(kvd_h5 *f, const kvd_error_table *t, int side, kvd_err *err)
{
    const size_t heads = (size_t)t->n_layers * (size_t)t->n_kv_heads;
    for (size_t i = 0; i < heads * t->n_widths; i++) {
        const size_t head = i / t->n_widths, w = i % t->n_widths;
        const double e = t->error[(size_t)side * heads * t->n_widths + i];
        const bool whole = w == t->n_widths - 1;
        if (e < -1e-6 || (whole && fabs(e) > 0))
            return kvd_fail(err, "'%s': /%s/error[%zu][%zu][%zu] is %g, %s", f->path,
                            kvd_pair_name[t->pair[side]], head / (size_t)t->n_kv_heads,
                            head % (size_t)t->n_kv_heads, w, e,
                            whole ? "not 0 at the whole width" : "below 0");
    }
    return 0;
}

static int read_table(kvd_h5 *f, kvd_error_table *t, kvd_err *err)
{
    if (kvd_model_info_read(f, &t->model, err) ||
        kvd_field_text(f, "/", "method", t->method, sizeof t->method, err) ||
        kvd_pair_attributes(f, t->pair, err) ||
        kvd_field_text_or_none(f, "bases_hash", t->bases_hash, sizeof t->bases_hash, err))
        return -1;
    t->n_layers = t->model.n_layers;
    t->n_kv_heads = t->model.n_kv_heads;
    t->d_head = t->model.d_head;

    hsize_t n;
    if (kvd_h5_shape(f, "/width", 1, &n, err))
        return -1;
    if (n < 1 || n > (hsize_t)t->d_head)
        return kvd_fail(err, "'%s': %llu widths for heads of %d dimensions", f->path,
                        (unsigned long long)n, t->d_head);
    t->n_widths = (size_t)n;
    const size_t per_side = (size_t)t->n_layers * (size_t)t->n_kv_heads * t->n_widths;
    t->width = malloc(t->n_widths * sizeof *t->width);
    t->error = calloc(per_side, 2 * sizeof *t->error);
    if (!t->width || !t->error)
        return kvd_no_memory(err, "an error table", per_side * 2 * sizeof *t->error);
    if (kvd_h5_read(f, "/width", 1, &n, H5T_NATIVE_INT32, t->width, err))
        return -1;
    for (size_t i = 0; i < t->n_widths; i++)
        if (t->width[i] < 1 || (i && t->width[i] <= t->width[i - 1]))
            return kvd_fail(err, "'%s': /width[%zu] is %d: widths must rise from at least 1",
                            f->path, i, (int)t->width[i]);
    if (t->width[t->n_widths - 1] != t->d_head)
        return kvd_fail(err, "'%s': the last width is %d, not d_head = %d", f->path,
                        (int)t->width[t->n_widths - 1], t->d_head);
    const hsize_t dims[3] = {(hsize_t)t->n_layers, (hsize_t)t->n_kv_heads, n};
    for (int side = 0; side < 2; side++) {
        char path[32];
        snprintf(path, sizeof path, "/%s/error", kvd_pair_name[t->pair[side]]);
        if (kvd_h5_read_finite(f, path, 3, dims, t->error + (size_t)side * per_side, err) ||
            check_errors(f, t, side, err))
            return -1;
    }
    return 0;
}

int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err)
{
    kvd_h5 f;
    memset(t, 0, sizeof *t);
    if (kvd_h5_open(&f, path, &kvd_schema_error_table, err))
        return -1;
    const int status = read_table(&f, t, err);
    kvd_h5_close(&f, false);
    if (status)
        kvd_error_table_release(t);
    return status;
}

void kvd_error_table_release(kvd_error_table *t)
{
    free(t->width);
    free(t->error);
    memset(t, 0, sizeof *t);
}
