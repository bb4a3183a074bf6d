#include "formats/rates.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_rates = {"rates", 1, "Kept dimensions per pair, layer and KV head"};

int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err)
{
    assert(n_layers > 0 && n_kv_heads > 0 && d_head > 0);
    const size_t heads = (size_t)n_layers * (size_t)n_kv_heads;
    *w = (kvd_widths){.n_layers = n_layers, .n_kv_heads = n_kv_heads, .d_head = d_head};
    for (int side = 0; side < 2; side++) {
        w->kept[side] = calloc(heads, sizeof *w->kept[side]);
        if (!w->kept[side]) {
            kvd_widths_release(w);
            return kvd_no_memory(err, "the widths of every head", heads * sizeof(int32_t));
        }
    }
    return 0;
}

void kvd_widths_release(kvd_widths *w)
{
    free(w->kept[0]);
    free(w->kept[1]);
    memset(w, 0, sizeof *w);
}

int32_t kvd_pad16(int32_t kept, int d_head)
{
    const int32_t up = (kept + 15) / 16 * 16;
    return up < d_head ? up : (int32_t)d_head;
}

double kvd_widths_p(const kvd_widths *w, int padded)
{
    const size_t heads = (size_t)w->n_layers * (size_t)w->n_kv_heads;
    double kept = 0;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < heads; i++)
            kept += padded ? kvd_pad16(w->kept[side][i], w->d_head) : w->kept[side][i];
    return 1 - kept / (2.0 * (double)heads * (double)w->d_head);
}

double kvd_widths_side_p(const kvd_widths *w, int side)
{
    const size_t heads = (size_t)w->n_layers * (size_t)w->n_kv_heads;
    double kept = 0;
    for (size_t i = 0; i < heads; i++)
        kept += w->kept[side][i];
    return 1 - kept / ((double)heads * (double)w->d_head);
}

kvd_widths_range kvd_widths_range_of(const kvd_widths *w, int side)
{
    const size_t n = (size_t)w->n_layers * (size_t)w->n_kv_heads;
    kvd_widths_range x = {w->d_head, 0, 0};
    for (size_t i = 0; i < n; i++) {
        const int kept = w->kept[side][i];
        x.least = kept < x.least ? kept : x.least;
        x.most = kept > x.most ? kept : x.most;
        x.mean += kept;
    }
    x.mean /= (double)n;
    return x;
}

static size_t heads_of(const kvd_rates *r)
{
    return (size_t)r->widths[0].n_layers * (size_t)r->widths[0].n_kv_heads;
}

static int write_points(kvd_h5 *f, const kvd_rates *r, kvd_err *err)
{
    const struct {
        const char *path, *long_name;
        const double *data;
    } column[] = {
        {"/removal_rate",
         "singular value removal rate r of Eq. 6; NaN where the rule is not Eq. 6 with one r",
         r->removal_rate},
        {"/overall_p", "fraction of the stored elements that is removed", r->overall_p},
        {"/overall_p16", "the same with every width rounded up to a multiple of 16, at most d_head",
         r->overall_p16},
    };
    for (size_t i = 0; i < sizeof column / sizeof *column; i++)
        if (kvd_field_write_reals(f, column[i].path, column[i].long_name, "point", column[i].data,
                                  r->n_points, err))
            return -1;
    return 0;
}

static int write_kept(kvd_h5 *f, const kvd_rates *r, int side, int padded, kvd_err *err)
{
    const size_t heads = heads_of(r);
    const kvd_widths *w = &r->widths[0];
    int32_t *all = malloc(r->n_points * heads * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "kept dimensions", r->n_points * heads * sizeof *all);
    for (size_t i = 0; i < r->n_points; i++)
        for (size_t h = 0; h < heads; h++) {
            const int32_t kept = r->widths[i].kept[side][h];
            all[i * heads + h] = padded ? kvd_pad16(kept, w->d_head) : kept;
        }
    char path[32];
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[r->pair[side]], padded ? "kept16" : "kept");
    const kvd_h5_spec spec = {
        path,
        padded ? "leading dimensions kept, rounded up to a multiple of 16, at most d_head"
               : "leading dimensions kept",
        "1",
        H5T_STD_I32LE,
        3,
        {r->n_points, (hsize_t)w->n_layers, (hsize_t)w->n_kv_heads},
        {"point", "layer", "kv_head"}};
    const int status = kvd_h5_write(f, &spec, H5T_NATIVE_INT32, all, err);
    free(all);
    return status;
}

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err)
{
    if (kvd_model_info_write(f, &r->model, err) ||
        kvd_h5_put_text(f, "/", "label", r->label, err) ||
        kvd_h5_put_text(f, "/", "rule", r->rule, err) ||
        kvd_h5_put_text(f, "/", "pair_qk", kvd_pair_name[r->pair[0]], err) ||
        kvd_h5_put_text(f, "/", "pair_v", kvd_pair_name[r->pair[1]], err) ||
        kvd_h5_put_text(f, "/", "bases_hash", r->bases_hash, err) || write_points(f, r, err))
        return -1;
    for (int side = 0; side < 2; side++)
        if (write_kept(f, r, side, 0, err) || write_kept(f, r, side, 1, err))
            return -1;
    if (r->n_table == 0)
        return 0;
    return kvd_status(kvd_field_write_reals(f, "/f_p/removal_rate",
                                            "removal rates at which some width changes", "step",
                                            r->table_r, r->n_table, err) ||
                      kvd_field_write_reals(f, "/f_p/overall_p",
                                            "overall p from this removal rate up to the next one",
                                            "step", r->table_p, r->n_table, err));
}

static int read_widths(kvd_h5 *f, kvd_rates *r, int side, int padded, int n_layers, kvd_err *err)
{
    const int n_kv = r->model.n_kv_heads, d = r->model.d_head;
    const hsize_t dims[3] = {r->n_points, (hsize_t)n_layers, (hsize_t)n_kv};
    const size_t heads = (size_t)n_layers * (size_t)n_kv;
    char path[32];
    snprintf(path, sizeof path, "/%s/%s", kvd_pair_name[r->pair[side]], padded ? "kept16" : "kept");
    int32_t *all = calloc(r->n_points, heads * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "kept dimensions", r->n_points * heads * sizeof *all);
    int status = kvd_h5_read(f, path, 3, dims, H5T_NATIVE_INT32, all, err);
    for (size_t i = 0; !status && i < r->n_points * heads; i++) {
        const size_t point = i / heads, layer = i % heads / (size_t)n_kv, h = i % (size_t)n_kv;
        int32_t *const kept = &r->widths[point].kept[side][i % heads];
        if (!padded && (all[i] < 1 || all[i] > d))
            status = kvd_fail(err, "'%s': %s[%zu][%zu][%zu] is %d, not in 1 .. %d", f->path, path,
                              point, layer, h, (int)all[i], d);
        else if (padded && all[i] != kvd_pad16(*kept, d))
            status =
                kvd_fail(err, "'%s': %s[%zu][%zu][%zu] is %d, a width of %d gives %d", f->path,
                         path, point, layer, h, (int)all[i], (int)*kept, (int)kvd_pad16(*kept, d));
        else if (!padded)
            *kept = all[i];
    }
    free(all);
    return status;
}

static int read_kept(kvd_h5 *f, kvd_rates *r, int n_layers, kvd_err *err)
{
    for (int side = 0; side < 2; side++)
        if (read_widths(f, r, side, 0, n_layers, err) || read_widths(f, r, side, 1, n_layers, err))
            return -1;
    return 0;
}

/* Returns true if `rule`, which chooses the kept dimensions, has no parameter r. r: fraction of the
 * sum of singular values that may be removed. */
static bool without_r(const char *rule)
{
    return !strcmp(rule, "error") || !strcmp(rule, "loss") || !strcmp(rule, "eq6-by-pair");
}

static int check_points(kvd_h5 *f, const kvd_rates *r, kvd_err *err)
{
    const bool no_r = without_r(r->rule);
    for (size_t i = 0; i < r->n_points; i++) {
        for (int padded = 0; padded < 2; padded++) {
            const double said = padded ? r->overall_p16[i] : r->overall_p[i];
            const double p = kvd_widths_p(&r->widths[i], padded);
            if (fabs(p - said) > 1e-9)
                return kvd_fail(err, "'%s': /overall_p%s[%zu] is %.9g, its widths give %.9g",
                                f->path, padded ? "16" : "", i, said, p);
        }
        const double rate = r->removal_rate[i];
        if (no_r ? !isnan(rate) : !(rate >= 0 && rate < 1))
            return kvd_fail(err, "'%s': /removal_rate[%zu] is %g, rule %s has %s", f->path, i, rate,
                            r->rule, no_r ? "none" : "0 <= r < 1");
    }
    return 0;
}

static int read_table(kvd_h5 *f, kvd_rates *r, kvd_err *err)
{
    hsize_t n;
    if (without_r(r->rule))
        return 0;
    if (kvd_h5_shape(f, "/f_p/removal_rate", 1, &n, err))
        return -1;
    r->table_r = calloc((size_t)n + 1, sizeof *r->table_r);
    r->table_p = calloc((size_t)n + 1, sizeof *r->table_p);
    if (!r->table_r || !r->table_p)
        return kvd_no_memory(err, "the table F_p", 2 * (n + 1) * sizeof(double));
    if (kvd_h5_read_finite(f, "/f_p/removal_rate", 1, &n, r->table_r, err) ||
        kvd_h5_read_finite(f, "/f_p/overall_p", 1, &n, r->table_p, err))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (i && (r->table_r[i] <= r->table_r[i - 1] || r->table_p[i] < r->table_p[i - 1]))
            return kvd_fail(err, "'%s': /f_p does not rise at step %zu", f->path, i);
        if (r->table_r[i] < 0 || r->table_r[i] > 1 || r->table_p[i] < 0 || r->table_p[i] > 1)
            return kvd_fail(err, "'%s': /f_p step %zu is r = %g, p = %g, not in 0 .. 1", f->path, i,
                            r->table_r[i], r->table_p[i]);
    }
    r->n_table = (size_t)n;
    return 0;
}

static int read_rates(kvd_h5 *f, kvd_rates *r, kvd_err *err)
{
    hsize_t n, dims[3];
    char path[32];
    if (kvd_model_info_read(f, &r->model, err) ||
        kvd_field_text(f, "/", "label", r->label, sizeof r->label, err) ||
        kvd_field_text(f, "/", "rule", r->rule, sizeof r->rule, err) ||
        kvd_pair_attributes(f, r->pair, err) ||
        kvd_field_text_or_none(f, "bases_hash", r->bases_hash, sizeof r->bases_hash, err) ||
        kvd_h5_shape(f, "/removal_rate", 1, &n, err))
        return -1;
    if (strcmp(r->rule, "eq6") && strcmp(r->rule, "eq6-energy") && !without_r(r->rule))
        return kvd_fail(err,
                        "'%s': rule is '%s', none of eq6, eq6-energy, eq6-by-pair, error, loss",
                        f->path, r->rule);
    if (n < 1 || n > 1000000)
        return kvd_fail(err, "'%s': %llu points", f->path, (unsigned long long)n);
    snprintf(path, sizeof path, "/%s/kept", kvd_pair_name[r->pair[0]]);
    if (kvd_h5_shape(f, path, 3, dims, err))
        return -1;
    if (dims[0] != n || dims[1] < 1 || dims[1] > (hsize_t)r->model.n_layers ||
        dims[2] != (hsize_t)r->model.n_kv_heads)
        return kvd_fail(err,
                        "'%s': %s is [%llu][%llu][%llu] for %llu points, %d layers, %d KV heads",
                        f->path, path, (unsigned long long)dims[0], (unsigned long long)dims[1],
                        (unsigned long long)dims[2], (unsigned long long)n, r->model.n_layers,
                        r->model.n_kv_heads);

    r->n_points = (size_t)n;
    r->removal_rate = calloc(r->n_points, sizeof *r->removal_rate);
    r->overall_p = calloc(r->n_points, sizeof *r->overall_p);
    r->overall_p16 = calloc(r->n_points, sizeof *r->overall_p16);
    r->widths = calloc(r->n_points, sizeof *r->widths);
    if (!r->removal_rate || !r->overall_p || !r->overall_p16 || !r->widths)
        return kvd_no_memory(err, "rates", r->n_points * (3 * sizeof(double) + sizeof *r->widths));
    for (size_t i = 0; i < r->n_points; i++)
        if (kvd_widths_alloc(&r->widths[i], (int)dims[1], r->model.n_kv_heads, r->model.d_head,
                             err))
            return -1;
    if (kvd_h5_read(f, "/removal_rate", 1, &n, H5T_NATIVE_DOUBLE, r->removal_rate, err) ||
        kvd_h5_read_finite(f, "/overall_p", 1, &n, r->overall_p, err) ||
        kvd_h5_read_finite(f, "/overall_p16", 1, &n, r->overall_p16, err) ||
        read_kept(f, r, (int)dims[1], err) || check_points(f, r, err))
        return -1;
    return read_table(f, r, err);
}

int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err)
{
    kvd_h5 f;
    memset(r, 0, sizeof *r);
    if (kvd_h5_open(&f, path, &kvd_schema_rates, err))
        return -1;
    const int status = read_rates(&f, r, err);
    kvd_h5_close(&f, false);
    if (status)
        kvd_rates_release(r);
    return status;
}

void kvd_rates_release(kvd_rates *r)
{
    for (size_t i = 0; r->widths && i < r->n_points; i++)
        kvd_widths_release(&r->widths[i]);
    free(r->widths);
    free(r->removal_rate);
    free(r->overall_p);
    free(r->overall_p16);
    free(r->table_r);
    free(r->table_p);
    memset(r, 0, sizeof *r);
}
