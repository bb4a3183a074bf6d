#include "report/kernels_rows.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------ */

static int read_machine(kvd_machine_rates *m, kvd_h5 *f, const char *where, kvd_err *err)
{
    kvd_err absent = {""};
    char *device = NULL;
    if (kvd_h5_get_text(f, where, "device", &device, &absent))
        return 0;
    snprintf(m->device, sizeof m->device, "%s", device);
    kvd_series_clean(m->device);
    free(device);
    if (kvd_h5_get_double(f, where, "copy_bytes_per_s", &m->copy_bytes, err) ||
        kvd_h5_get_double(f, where, "read_bytes_per_s", &m->read_bytes, err) ||
        kvd_h5_get_double(f, where, "flop_per_s", &m->flop, err) ||
        kvd_h5_get_double(f, where, "exps_per_s", &m->exps, err))
        return -1;
    const double all[] = {m->copy_bytes, m->read_bytes, m->flop, m->exps};
    for (int i = 0; i < 4; i++)
        if (!(all[i] > 0) || !isfinite(all[i]))
            return kvd_fail(err, "'%s': a rate of '%s' is %g", f->path, where, all[i]);
    return 0;
}

static int check_rows(const kvd_rows *r, const char *path, kvd_err *err)
{
    static const char *const texts[] = {"phase",  "impl", "schedule", "dtype",
                                        "widths", "runs", "l2",       "lengths"};
    static const char *const reals[] = {"case_p", "p", "median_us", "bytes", "flop", "speedup", "rel_err"};
    static const char *const ints[] = {"batch", "seq_len", "ok"};
    static const struct {
        const char *const *name;
        int n;
        kvd_column_kind kind;
    } wanted[] = {{texts, 8, KVD_COL_TEXT}, {reals, 7, KVD_COL_REAL}, {ints, 3, KVD_COL_INT}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < wanted[i].n; k++) {
            const int c = kvd_rows_find(r, wanted[i].name[k]);
            if (c < 0 || kvd_rows_column(r, c)->kind != wanted[i].kind)
                return kvd_fail(err, "'%s': no column '/rows/%s' of the type wanted", path,
                                wanted[i].name[k]);
        }
    for (int c = 0; c < kvd_rows_columns(r); c++)
        for (size_t i = 0; kvd_rows_column(r, c)->kind != KVD_COL_TEXT && i < kvd_rows_count(r); i++) {
            const double x = kvd_rows_get_real(r, i, c);
            if (isinf(x) || x < 0)
                return kvd_fail(err, "'%s': '/rows/%s' is %g in row %zu", path, kvd_rows_column(r, c)->name,
                                x, i);
        }
    return 0;
}

int kvd_kernels_read(kvd_kernels_result *k, kvd_h5 *f, kvd_err *err)
{
    k->rows = kvd_rows_load(f, err);
    if (!k->rows || check_rows(k->rows, f->path, err) ||
        read_machine(&k->machine[0], f, "/ceilings/cpu", err) ||
        read_machine(&k->machine[1], f, "/ceilings/gpu", err))
        return -1;
    return 0;
}

/* ---- rows --------------------------------------------------------------------------------------- */

double kvd_kernels_real(const kvd_kernels_entry *e, const char *column)
{
    return kvd_row_real(e->file->kernels.rows, e->row, column);
}

const char *kvd_kernels_text(const kvd_kernels_entry *e, const char *column)
{
    return kvd_row_text(e->file->kernels.rows, e->row, column);
}

/* "kvdim25m-p50" belongs to "kvdim25m", "64" and "128" to "equal widths"; anything else is its own family. */
static void family(const char *widths, char *to, size_t size)
{
    const char *const dash = strrchr(widths, '-'), *const point = strstr(widths, " p=");
    size_t n = strlen(widths);
    if (widths[0] && strspn(widths, "0123456789") == n) {
        snprintf(to, size, "equal widths");
        return;
    }
    if (point)
        n = (size_t)(point - widths);
    else if (dash && dash[1] == 'p' && isdigit((unsigned char)dash[2]) &&
             strspn(dash + 2, "0123456789") == strlen(dash + 2))
        n = (size_t)(dash - widths);
    snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), widths);
}

static void describe(kvd_kernels_entry *e)
{
    char widths[64];
    const char *const lengths = kvd_kernels_text(e, "lengths"), *const schedule =
                                                                    kvd_kernels_text(e, "schedule");
    const char *const data = kvd_kernels_text(e, "data");
    snprintf(e->place, sizeof e->place, "%.20s %.0f x %.0f %.10s%s%.20s%s %.10s",
             kvd_kernels_text(e, "phase"), kvd_kernels_real(e, "batch"), kvd_kernels_real(e, "seq_len"),
             kvd_kernels_text(e, "dtype"), strcmp(lengths, "equal") ? " " : "",
             strcmp(lengths, "equal") ? lengths : "", strcmp(data, "sharp") ? "" : " sharp",
             kvd_kernels_text(e, "l2"));
    family(kvd_kernels_text(e, "widths"), widths, sizeof widths);
    snprintf(e->series, sizeof e->series, "%.40s%s%.20s on %s", kvd_kernels_text(e, "impl"),
             strcmp(schedule, "-") ? " by " : "", strcmp(schedule, "-") ? schedule : "", widths);
    kvd_series_clean(e->place);
    kvd_series_clean(e->series);
}

int kvd_kernels_collect(const kvd_results *r, kvd_kernels_entries *out, kvd_err *err)
{
    size_t n = 0;
    *out = (kvd_kernels_entries){0};
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_KERNELS)
            n += kvd_rows_count(r->item[i].kernels.rows);
    if (n == 0)
        return 0;
    out->item = calloc(n, sizeof *out->item);
    if (!out->item)
        return kvd_no_memory(err, "rows of kernels", (unsigned long long)n * sizeof *out->item);
    for (size_t i = 0; i < r->n; i++)
        for (size_t k = 0;
             r->item[i].kind == KVD_RESULT_KERNELS && k < kvd_rows_count(r->item[i].kernels.rows); k++) {
            kvd_kernels_entry *const e = &out->item[out->n++];
            e->file = &r->item[i];
            e->row = k;
            describe(e);
        }
    return 0;
}

void kvd_kernels_entries_release(kvd_kernels_entries *e)
{
    free(e->item);
    *e = (kvd_kernels_entries){0};
}
