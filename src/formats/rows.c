#include "formats/rows_internal.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"
#include "common/json.h"
#include "common/utf8.h"

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
    for (int i = 0; i < r->n_samples; i++)
        free(r->samples[i].value);
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
    for (int i = 0; i < r->n_samples; i++) {
        const size_t width = r->samples[i].width;
        double *const grown = capacity > SIZE_MAX / sizeof *grown / width
                                  ? NULL
                                  : realloc(r->samples[i].value, capacity * width * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "samples of all rows",
                                 (unsigned long long)capacity * width * sizeof *grown);
        r->samples[i].value = grown;
    }
    r->capacity = capacity;
    return 0;
}

int kvd_rows_add_samples(kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err)
{
    assert(r->n_samples < KVD_MAX_SAMPLES && spec->rank > 1 && spec->rank <= KVD_MAX_RANK);
    size_t width = 1;
    for (int i = 1; i < spec->rank; i++) {
        if (spec->dims[i] == 0 || spec->dims[i] > SIZE_MAX / sizeof(double) / width)
            return kvd_fail(err, "samples '%s' have %llu values on axis %d", spec->path,
                            (unsigned long long)spec->dims[i], i);
        width *= (size_t)spec->dims[i];
    }
    r->samples[r->n_samples].spec = *spec;
    r->samples[r->n_samples].spec.type = H5T_IEEE_F64LE;
    r->samples[r->n_samples].value = NULL;
    r->samples[r->n_samples++].width = width;
    return r->capacity ? reserve(r, r->capacity, err) : 0;
}

double *kvd_rows_samples(const kvd_rows *r, int index, size_t row)
{
    assert(index >= 0 && index < r->n_samples && row < r->capacity);
    return r->samples[index].value + row * r->samples[index].width;
}

const kvd_h5_spec *kvd_rows_samples_spec(const kvd_rows *r, int index)
{
    assert(index >= 0 && index < r->n_samples);
    return &r->samples[index].spec;
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
    for (int i = 0; i < r->n_samples; i++)
        for (size_t k = 0; k < r->samples[i].width; k++)
            kvd_rows_samples(r, i, r->n)[k] = NAN;
    r->n++;
    return 0;
}

int kvd_rows_find(const kvd_rows *r, const char *column)
{
    /* Compares the first characters before calling strcmp, because reports look up columns millions
     * of times. */
    for (int c = 0; c < r->n_columns; c++)
        if (*r->columns[c].name == *column && !strcmp(r->columns[c].name, column))
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

/* Returns a copy of a cell's text without control characters. The caller frees the copy. */
static char *copy_of(const char *value)
{
    char *const copy = strdup(value);
    if (copy)
        kvd_utf8_make_printable(copy);
    return copy;
}

void kvd_rows_text(kvd_rows *r, const char *column, const char *value)
{
    kvd_cell_value *x = last(r, column, KVD_COL_TEXT);
    char *copy = copy_of(value);
    if (!copy) {
        r->lost_text = true;
        return;
    }
    free(x->text);
    x->text = copy;
}

int kvd_rows_replace_text(kvd_rows *r, size_t row, int column, const char *value, kvd_err *err)
{
    assert(row < r->n && column >= 0 && r->columns[column].kind == KVD_COL_TEXT);
    char *const copy = copy_of(value);
    if (!copy)
        return kvd_no_memory(err, "a text of a table", strlen(value) + 1);
    free(r->data[column][row].text);
    r->data[column][row].text = copy;
    return 0;
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

int kvd_rows_take(kvd_rows *r, const kvd_rows *from, size_t row, kvd_err *err)
{
    if (kvd_rows_begin(r, err))
        return -1;
    for (int c = 0; c < r->n_columns; c++) {
        const kvd_column *const column = &r->columns[c];
        const int at = kvd_rows_find(from, column->name);
        if (at < 0 || from->columns[at].kind != column->kind)
            return kvd_fail(err, "column '%s' is missing or has another type", column->name);
        if (column->kind == KVD_COL_TEXT)
            kvd_rows_text(r, column->name, kvd_rows_get_text(from, row, at));
        else
            r->data[c][r->n - 1] = from->data[at][row];
    }
    assert(r->n_samples == from->n_samples);
    for (int i = 0; i < r->n_samples; i++) {
        assert(r->samples[i].width == from->samples[i].width);
        memcpy(kvd_rows_samples(r, i, r->n - 1), kvd_rows_samples(from, i, row),
               r->samples[i].width * sizeof(double));
    }
    return 0;
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
    const size_t size = col->kind == KVD_COL_TEXT ? sizeof(char *) : sizeof(kvd_cell_value);
    void *const values = malloc(r->n * size);
    const char **const texts = values;
    int64_t *const ints = values;
    double *const reals = values;
    if (!values)
        return kvd_no_memory(err, path, (unsigned long long)r->n * size);
    for (size_t i = 0; i < r->n; i++)
        if (col->kind == KVD_COL_TEXT)
            texts[i] = kvd_rows_get_text(r, i, c);
        else if (col->kind == KVD_COL_INT)
            ints[i] = r->data[c][i].integer;
        else
            reals[i] = r->data[c][i].real;
    spec.type = col->kind == KVD_COL_INT ? H5T_STD_I64LE : H5T_IEEE_F64LE;
    const int status =
        col->kind == KVD_COL_TEXT
            ? kvd_field_write_texts(f, path, col->long_name, "row", texts, r->n, err)
            : kvd_h5_write(f, &spec,
                           col->kind == KVD_COL_INT ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, values,
                           err);
    free(values);
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
    for (int i = 0; i < r->n_samples; i++) {
        kvd_h5_spec spec = r->samples[i].spec;
        spec.dims[0] = r->n;
        if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, r->samples[i].value, err))
            return -1;
    }
    return 0;
}

const char *kvd_real_text(char *to, size_t size, const char *format, double x)
{
    if (isnan(x))
        snprintf(to, size, "-");
    else
        snprintf(to, size, format, x);
    return to;
}

const char *kvd_interval_text(char *to, size_t size, const char *format, double lo, double hi)
{
    if (isnan(lo) || isnan(hi))
        snprintf(to, size, "-");
    else
        snprintf(to, size, format, lo, hi);
    return to;
}

json_t *kvd_rows_json(const kvd_rows *r)
{
    json_t *const list = json_array();
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        json_t *const row = json_object();
        for (int c = 0; c < kvd_rows_columns(r); c++) {
            const kvd_column *const col = kvd_rows_column(r, c);
            json_object_set_new(row, col->name,
                                col->kind == KVD_COL_TEXT ? json_string(kvd_rows_get_text(r, i, c))
                                : col->kind == KVD_COL_INT
                                    ? json_integer(kvd_rows_get_int(r, i, c))
                                    : kvd_json_real(kvd_rows_get_real(r, i, c)));
        }
        json_array_append_new(list, row);
    }
    return list;
}
