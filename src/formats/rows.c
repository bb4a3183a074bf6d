#include "formats/rows.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

typedef union {
    char *text;
    int64_t integer;
    double real;
} cell;

struct kvd_rows {
    const kvd_column *columns;
    kvd_column *owned; /* columns of a table that was loaded; NULL when they are borrowed */
    int n_columns;
    size_t n, capacity;
    cell **data;    /* [n_columns][capacity] */
    bool lost_text; /* a text could not be copied: the table cannot be written */
};

static kvd_rows *rows_new(const kvd_column *columns, int n_columns)
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
    kvd_rows *r = rows_new(columns, n_columns);
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
    if (capacity > SIZE_MAX / sizeof(cell))
        return kvd_no_memory(err, "a table", (unsigned long long)-1);
    for (int c = 0; c < r->n_columns; c++) {
        cell *grown = realloc(r->data[c], capacity * sizeof *grown);
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

static cell *last(kvd_rows *r, const char *column, kvd_column_kind kind)
{
    const int c = kvd_rows_find(r, column);
    assert(c >= 0 && r->columns[c].kind == kind && r->n > 0);
    (void)kind;
    return &r->data[c][r->n - 1];
}

void kvd_rows_text(kvd_rows *r, const char *column, const char *value)
{
    cell *x = last(r, column, KVD_COL_TEXT);
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

static const cell *at(const kvd_rows *r, size_t row, int column)
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
    const cell *x = at(r, row, column);
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

/* ---- reading ---------------------------------------------------------------------------------- */

static int read_text_column(hid_t dataset, hid_t type, size_t n, cell *out, const char *file,
                            const char *name, kvd_err *err)
{
    int status = -1;
    hid_t mem = H5I_INVALID_HID;
    char *fixed = NULL;
    const size_t size = H5Tget_size(type);
    if (H5Tis_variable_str(type) > 0) {
        kvd_fail(err, "'%s': '/rows/%s' has texts of variable length, wanted fixed", file, name);
        goto done;
    }
    if (size == 0 || n > SIZE_MAX / size) {
        kvd_fail(err, "'%s': '/rows/%s' has texts of %zu bytes", file, name, size);
        goto done;
    }
    fixed = malloc(n * size);
    if (!fixed) {
        kvd_no_memory(err, "texts of a table", (unsigned long long)n * size);
        goto done;
    }
    mem = H5Tcopy(type);
    if (mem < 0 || H5Tset_strpad(mem, H5T_STR_NULLPAD) < 0 ||
        H5Dread(dataset, mem, H5S_ALL, H5S_ALL, H5P_DEFAULT, fixed) < 0) {
        kvd_fail(err, "'%s': cannot read '/rows/%s'", file, name);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        out[i].text = strndup(fixed + i * size, size);
        if (!out[i].text) {
            kvd_no_memory(err, "a text of a table", size + 1);
            goto done;
        }
        const size_t length = strlen(out[i].text), bad = kvd_utf8_first_bad(out[i].text, length);
        if (bad < length) {
            kvd_fail(err, "'%s': '/rows/%s' row %zu is not valid UTF-8 at byte %zu", file, name, i, bad);
            goto done;
        }
    }
    status = 0;
done:
    free(fixed);
    if (mem >= 0)
        H5Tclose(mem);
    return status;
}

/* An attribute of a dataset, or "" when it has none: foreign columns may lack it. */
static char *text_attribute(kvd_h5 *f, const char *path, const char *name)
{
    kvd_err ignored;
    char *text = NULL;
    if (kvd_h5_get_text(f, path, name, &text, &ignored))
        return strdup("");
    return text;
}

static int load_column(kvd_h5 *f, kvd_rows *r, size_t *n, bool *known_n, hid_t dataset, const char *name,
                       kvd_err *err)
{
    int status = -1;
    hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
    hsize_t dim = 0;
    cell *data = NULL;
    kvd_column col = {0};
    char *path = NULL;
    if (space < 0 || type < 0) {
        kvd_fail(err, "'%s': cannot read '/rows/%s'", f->path, name);
        goto done;
    }
    if (H5Sget_simple_extent_ndims(space) != 1) { /* raw samples beside the columns */
        status = 0;
        goto done;
    }
    if (H5Sget_simple_extent_dims(space, &dim, NULL) != 1 || dim == 0 || dim > SIZE_MAX / sizeof *data) {
        kvd_fail(err, "'%s': '/rows/%s' has no rows", f->path, name);
        goto done;
    }
    if (*known_n && *n != (size_t)dim) {
        kvd_fail(err, "'%s': '/rows/%s' has %llu rows, other columns %zu", f->path, name,
                 (unsigned long long)dim, *n);
        goto done;
    }
    /* What is announced must be stored: a header alone cannot make us allocate gigabytes. */
    if (H5Dget_storage_size(dataset) == 0) {
        kvd_fail(err, "'%s': '/rows/%s' announces %llu rows but stores none", f->path, name,
                 (unsigned long long)dim);
        goto done;
    }
    const H5T_class_t kind = H5Tget_class(type);
    if (kind != H5T_STRING && kind != H5T_INTEGER && kind != H5T_FLOAT) {
        kvd_fail(err, "'%s': '/rows/%s' is neither text, integer nor real", f->path, name);
        goto done;
    }
    col.kind = kind == H5T_STRING ? KVD_COL_TEXT : kind == H5T_INTEGER ? KVD_COL_INT : KVD_COL_REAL;
    data = calloc((size_t)dim, sizeof *data);
    path = malloc(strlen(name) + 8);
    if (!data || !path) {
        kvd_no_memory(err, "a column", (unsigned long long)dim * sizeof *data);
        goto done;
    }
    memcpy(path, "/rows/", 6);
    strcpy(path + 6, name);
    _Static_assert(sizeof(cell) == 8, "a cell is as large as an int64 and a double");
    if (col.kind == KVD_COL_TEXT) {
        if (read_text_column(dataset, type, (size_t)dim, data, f->path, name, err)) {
            for (size_t i = 0; i < (size_t)dim; i++)
                free(data[i].text);
            goto done;
        }
    } else if (H5Dread(dataset, col.kind == KVD_COL_INT ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, H5S_ALL,
                       H5S_ALL, H5P_DEFAULT, data) < 0) {
        kvd_fail(err, "'%s': cannot read '/rows/%s'", f->path, name);
        goto done;
    }
    col.name = strdup(name);
    col.units = text_attribute(f, path, "units");
    col.long_name = text_attribute(f, path, "long_name");
    kvd_column *columns = realloc(r->owned, ((size_t)r->n_columns + 1) * sizeof *columns);
    if (columns)
        r->columns = r->owned = columns;
    cell **grown = realloc(r->data, ((size_t)r->n_columns + 1) * sizeof *grown);
    if (grown)
        r->data = grown;
    if (!col.name || !col.units || !col.long_name || !columns || !grown) {
        if (col.kind == KVD_COL_TEXT)
            for (size_t i = 0; i < (size_t)dim; i++)
                free(data[i].text);
        kvd_no_memory(err, "a column", sizeof col);
        goto done;
    }
    r->owned[r->n_columns] = col;
    r->data[r->n_columns] = data;
    r->n_columns++;
    col = (kvd_column){0};
    data = NULL;
    *n = (size_t)dim;
    *known_n = true;
    status = 0;
done:
    free((char *)col.name);
    free((char *)col.units);
    free((char *)col.long_name);
    free(data);
    free(path);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return status;
}

kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err)
{
    kvd_rows *r = NULL;
    hid_t group = H5I_INVALID_HID;
    H5G_info_t info;
    size_t n = 0;
    bool known_n = false, ok = false;
    if (!kvd_h5_exists(f, "/rows")) {
        kvd_fail(err, "'%s' has no group '/rows'", f->path);
        return NULL;
    }
    r = rows_new(NULL, 1);
    if (!r) {
        kvd_no_memory(err, "a table", sizeof *r);
        return NULL;
    }
    r->n_columns = 0;
    group = H5Gopen2(f->id, "/rows", H5P_DEFAULT);
    if (group < 0 || H5Gget_info(group, &info) < 0) {
        kvd_fail(err, "'%s': cannot open '/rows'", f->path);
        goto done;
    }
    /* In the order they were made where the file kept it, else by name. */
    H5_index_t order = H5_INDEX_NAME;
    hid_t plist = H5Gget_create_plist(group);
    unsigned flags = 0;
    if (plist >= 0 && H5Pget_link_creation_order(plist, &flags) >= 0 && (flags & H5P_CRT_ORDER_INDEXED))
        order = H5_INDEX_CRT_ORDER;
    if (plist >= 0)
        H5Pclose(plist);
    for (hsize_t i = 0; i < info.nlinks; i++) {
        char name[200];
        const ssize_t length =
            H5Lget_name_by_idx(group, ".", order, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
        if (length <= 0 || (size_t)length >= sizeof name) {
            kvd_fail(err, "'%s': a name under '/rows' has %zd bytes, at most %zu are allowed", f->path,
                     length, sizeof name - 1);
            goto done;
        }
        H5L_info_t link;
        hid_t object = H5I_INVALID_HID;
        /* A soft or external link could lead into another file. */
        if (H5Lget_info(group, name, &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD)
            object = H5Oopen(group, name, H5P_DEFAULT);
        if (object < 0) {
            kvd_fail(err, "'%s': cannot open '/rows/%s'", f->path, name);
            goto done;
        }
        const int failed =
            H5Iget_type(object) == H5I_DATASET && load_column(f, r, &n, &known_n, object, name, err) != 0;
        H5Oclose(object);
        if (failed)
            goto done;
    }
    if (!known_n) {
        kvd_fail(err, "'%s': '/rows' has no columns", f->path);
        goto done;
    }
    r->n = r->capacity = n;
    ok = true;
done:
    if (group >= 0)
        H5Gclose(group);
    if (!ok) {
        if (r)
            r->n = known_n ? n : 0;
        kvd_rows_free(r);
        return NULL;
    }
    return r;
}
