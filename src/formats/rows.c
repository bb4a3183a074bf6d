#include "formats/rows_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvd_rows *kvd_rows_blank(const kvd_column *columns, int n_columns)
{
    kvd_rows *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->columns = columns;
    r->n_columns = n_columns;
    r->data = calloc((size_t)n_columns, sizeof *r->data);
    if (!r->data) {
        free(r);
        return NULL;
    }
    return r;
}

kvd_rows *kvd_rows_new(const kvd_column *columns, int n_columns, kvd_err *err)
{
    assert(n_columns > 0);
    kvd_rows *r = kvd_rows_blank(columns, n_columns);
    if (!r)
        kvd_no_memory(err, "a table", sizeof *r);
    return r;
}

void kvd_rows_free(kvd_rows *r)
{
    if (!r)
        return;
    for (int c = 0; c < r->n_columns; c++) {
        if (r->columns[c].kind == KVD_COL_TEXT && r->data[c])
            for (size_t i = 0; i < r->n; i++)
                free(r->data[c][i].text);
        free(r->data[c]);
    }
    free(r->data);
    if (r->owned)
        for (int c = 0; c < r->n_columns; c++) {
            free((char *)r->owned[c].name);
            free((char *)r->owned[c].units);
            free((char *)r->owned[c].long_name);
        }
    free(r->owned);
    free(r);
}

size_t kvd_rows_count(const kvd_rows *r)
{
    return r->n;
}

static int reserve(kvd_rows *r, size_t capacity, kvd_err *err)
{
    if (capacity > SIZE_MAX / sizeof(kvd_cell_value))
        return kvd_no_memory(err, "a table", (unsigned long long)-1);
    for (int c = 0; c < r->n_columns; c++) {
        kvd_cell_value *grown = realloc(r->data[c], capacity * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "a table", (unsigned long long)capacity * sizeof *grown);
        r->data[c] = grown;
    }
    r->capacity = capacity;
    return 0;
}

int kvd_rows_begin(kvd_rows *r, kvd_err *err)
{
    if (r->n == r->capacity && reserve(r, r->capacity ? 2 * r->capacity : 16, err))
        return -1;
    for (int c = 0; c < r->n_columns; c++)
        switch (r->columns[c].kind) {
        case KVD_COL_TEXT:
            r->data[c][r->n].text = NULL;
            break;
        case KVD_COL_INT:
            r->data[c][r->n].integer = 0;
            break;
        case KVD_COL_REAL:
            r->data[c][r->n].real = NAN;
            break;
        }
    r->n++;
    return 0;
}

int kvd_rows_find(const kvd_rows *r, const char *column)
{
    for (int c = 0; c < r->n_columns; c++)
        if (!strcmp(r->columns[c].name, column))
            return c;
    return -1;
}

static kvd_cell_value *last(kvd_rows *r, const char *column, kvd_column_kind kind)
{
    const int c = kvd_rows_find(r, column);
    assert(c >= 0 && r->columns[c].kind == kind && r->n > 0);
    (void)kind;
    return &r->data[c][r->n - 1];
}

void kvd_rows_text(kvd_rows *r, const char *column, const char *value)
{
    kvd_cell_value *x = last(r, column, KVD_COL_TEXT);
    char *copy = strdup(value);
    if (!copy) {
        r->lost_text = true;
        return;
    }
    free(x->text);
    x->text = copy;
}

void kvd_rows_int(kvd_rows *r, const char *column, int64_t value)
{
    last(r, column, KVD_COL_INT)->integer = value;
}

void kvd_rows_real(kvd_rows *r, const char *column, double value)
{
    last(r, column, KVD_COL_REAL)->real = value;
}

void kvd_rows_interval(kvd_rows *r, const char *column, const kvd_interval *x)
{
    char end[64];
    kvd_rows_real(r, column, x->value);
    snprintf(end, sizeof end, "%s_lo", column);
    kvd_rows_real(r, end, x->lo);
    snprintf(end, sizeof end, "%s_hi", column);
    kvd_rows_real(r, end, x->hi);
}

int kvd_rows_columns(const kvd_rows *r)
{
    return r->n_columns;
}

const kvd_column *kvd_rows_column(const kvd_rows *r, int i)
{
    assert(i >= 0 && i < r->n_columns);
    return &r->columns[i];
}

static const kvd_cell_value *at(const kvd_rows *r, size_t row, int column)
{
    assert(column >= 0 && column < r->n_columns && row < r->n);
    return &r->data[column][row];
}

const char *kvd_rows_get_text(const kvd_rows *r, size_t row, int column)
{
    assert(r->columns[column].kind == KVD_COL_TEXT);
    const char *text = at(r, row, column)->text;
    return text ? text : "";
}

int64_t kvd_rows_get_int(const kvd_rows *r, size_t row, int column)
{
    assert(r->columns[column].kind == KVD_COL_INT);
    return at(r, row, column)->integer;
}

double kvd_rows_get_real(const kvd_rows *r, size_t row, int column)
{
    const kvd_cell_value *x = at(r, row, column);
    assert(r->columns[column].kind != KVD_COL_TEXT);
    return r->columns[column].kind == KVD_COL_INT ? (double)x->integer : x->real;
}

double kvd_row_real(const kvd_rows *r, size_t row, const char *column)
{
    const int c = kvd_rows_find(r, column);
    return c < 0 || r->columns[c].kind == KVD_COL_TEXT ? (double)NAN : kvd_rows_get_real(r, row, c);
}

const char *kvd_row_text(const kvd_rows *r, size_t row, const char *column)
{
    const int c = kvd_rows_find(r, column);
    return c < 0 || r->columns[c].kind != KVD_COL_TEXT ? "" : kvd_rows_get_text(r, row, c);
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* Texts are zero-padded UTF-8 of the longest value: fixed length is what every reader of HDF5 takes. */
static hid_t text_type(size_t length)
{
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t >= 0 && H5Tset_size(t, length) >= 0 && H5Tset_strpad(t, H5T_STR_NULLPAD) >= 0 &&
        H5Tset_cset(t, H5T_CSET_UTF8) >= 0)
        return t;
    if (t >= 0)
        H5Tclose(t);
    return H5I_INVALID_HID;
}

static int write_column(kvd_h5 *f, const kvd_rows *r, int c, kvd_err *err)
{
    const kvd_column *col = &r->columns[c];
    char path[256];
    const int length = snprintf(path, sizeof path, "/rows/%s", col->name);
    assert(length > 0 && (size_t)length < sizeof path);
    (void)length;
    kvd_h5_spec spec = {.path = path,
                        .long_name = col->long_name,
                        .units = col->units,
                        .rank = 1,
                        .dims = {r->n},
                        .axes = {"row"}};
    int status = -1;
    void *values = NULL;
    hid_t type = H5I_INVALID_HID;
    if (col->kind == KVD_COL_TEXT) {
        size_t longest = 1;
        for (size_t i = 0; i < r->n; i++) {
            const size_t len = strlen(kvd_rows_get_text(r, i, c));
            longest = len > longest ? len : longest;
        }
        type = text_type(longest);
        if (type < 0)
            return kvd_fail(err, "cannot make a text type of %zu bytes for '%s'", longest, path);
        char *texts = values = calloc(r->n, longest);
        if (!texts) {
            kvd_no_memory(err, path, (unsigned long long)r->n * longest);
            goto done;
        }
        for (size_t i = 0; i < r->n; i++) {
            const char *text = kvd_rows_get_text(r, i, c);
            memcpy(texts + i * longest, text, strlen(text));
        }
        spec.type = type;
        status = kvd_h5_write(f, &spec, type, texts, err);
    } else if (col->kind == KVD_COL_INT) {
        int64_t *ints = values = malloc(r->n * sizeof *ints);
        if (!ints) {
            kvd_no_memory(err, path, (unsigned long long)r->n * sizeof *ints);
            goto done;
        }
        for (size_t i = 0; i < r->n; i++)
            ints[i] = r->data[c][i].integer;
        spec.type = H5T_STD_I64LE;
        status = kvd_h5_write(f, &spec, H5T_NATIVE_INT64, ints, err);
    } else {
        double *reals = values = malloc(r->n * sizeof *reals);
        if (!reals) {
            kvd_no_memory(err, path, (unsigned long long)r->n * sizeof *reals);
            goto done;
        }
        for (size_t i = 0; i < r->n; i++)
            reals[i] = r->data[c][i].real;
        spec.type = H5T_IEEE_F64LE;
        status = kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, reals, err);
    }
done:
    free(values);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

int kvd_rows_write(kvd_h5 *f, const kvd_rows *r, kvd_err *err)
{
    if (r->n == 0)
        return kvd_fail(err, "'%s': no rows to write", f->path);
    if (r->lost_text)
        return kvd_fail(err, "'%s': out of memory while a text of the table was set", f->path);
    for (int c = 0; c < r->n_columns; c++)
        if (write_column(f, r, c, err))
            return -1;
    return 0;
}
