/* Reads tables of results, whose columns need not be known, from HDF5 files. */
#include "formats/rows_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"
#include "common/utf8.h"

_Static_assert(sizeof(kvd_cell_value) == 8, "a cell is as large as an int64 and a double");

static void free_cells(kvd_cell_value *data, kvd_column_kind kind, size_t n)
{
    for (size_t i = 0; data && kind == KVD_COL_TEXT && i < n; i++)
        free(data[i].text);
    free(data);
}

static int read_cells(kvd_h5 *f, hid_t dataset, kvd_column_kind kind, size_t n, kvd_cell_value *out,
                      const char *name, kvd_err *err)
{
    char path[256];
    const hsize_t dim = n;
    snprintf(path, sizeof path, "/rows/%s", name);
    if (kind == KVD_COL_TEXT) {
        char **const text = calloc(n, sizeof *text);
        const int status = text ? kvd_field_read_texts(dataset, f->path, path, n, text, err)
                                : kvd_no_memory(err, path, n * sizeof *text);
        for (size_t i = 0; text && i < n; i++)
            out[i].text = text[i];
        free(text);
        for (size_t i = 0; !status && i < n; i++) {
            const size_t control = kvd_utf8_first_control(out[i].text);
            if (out[i].text[control])
                return kvd_fail(err, "'%s': byte %zu of '%s' row %zu is a control character",
                                f->path, control + 1, path, i);
        }
        return status;
    }
    return kvd_h5_read(f, path, 1, &dim, kind == KVD_COL_INT ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE,
                       out, err);
}

static char *text_attribute(kvd_h5 *f, const char *path, const char *name)
{
    kvd_err ignored;
    char *text = NULL;
    if (kvd_h5_get_text(f, path, name, &text, &ignored))
        return strdup("");
    return text;
}

static int describe(kvd_h5 *f, const char *name, kvd_column *col, kvd_err *err)
{
    char path[256];
    /* The caller accepts only names below 200 bytes, so the path is never cut. */
    snprintf(path, sizeof path, "/rows/%s", name);
    col->name = strdup(name);
    col->units = text_attribute(f, path, "units");
    col->long_name = text_attribute(f, path, "long_name");
    return col->name && col->units && col->long_name ? 0
                                                     : kvd_no_memory(err, "a column", sizeof *col);
}

/* Appends a column of n cells. On success the table owns `data` and the texts in *col. */
static int append(kvd_rows *r, const kvd_column *col, kvd_cell_value *data, size_t n, kvd_err *err)
{
    const size_t columns = (size_t)r->n_columns + 1;
    kvd_column *const grown = realloc(r->owned, columns * sizeof *grown);
    if (grown)
        r->columns = r->owned = grown;
    kvd_cell_value **const all = realloc(r->data, columns * sizeof *all);
    if (all)
        r->data = all;
    if (!grown || !all)
        return kvd_no_memory(err, "a column", sizeof *col);
    r->owned[r->n_columns] = *col;
    r->data[r->n_columns++] = data;
    r->n = r->capacity = n;
    return 0;
}

/* Checks the length of a column. *n receives its number of rows, or 0 if the dataset has several
 * axes, so that it is no column. */
static int check_extent(kvd_h5 *f, const kvd_rows *r, hid_t dataset, hid_t space, const char *name,
                        size_t *n, kvd_err *err)
{
    hsize_t dims[H5S_MAX_RANK] = {0};
    const int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    *n = 0;
    if (rank < 1 || dims[0] == 0 || dims[0] > SIZE_MAX / sizeof(kvd_cell_value))
        return kvd_fail(err, "'%s': '/rows/%s' has no rows", f->path, name);
    if (r->n_columns && r->n != (size_t)dims[0])
        return kvd_fail(err, "'%s': '/rows/%s' has %llu rows, other columns %zu", f->path, name,
                        (unsigned long long)dims[0], r->n);
    if (rank > 1)
        return 0;
    /* Checks that the file is long enough for column `name`, before memory is allocated. */
    char path[256];
    snprintf(path, sizeof path, "/rows/%s", name);
    if (kvd_h5_check_stored(dataset, f->path, path, err))
        return -1;
    *n = (size_t)dims[0];
    return 0;
}

static int load_values(kvd_h5 *f, kvd_rows *r, hid_t dataset, hid_t type, size_t n,
                       const char *name, kvd_err *err)
{
    const H5T_class_t kind = H5Tget_class(type);
    if (kind != H5T_STRING && kind != H5T_INTEGER && kind != H5T_FLOAT)
        return kvd_fail(err, "'%s': '/rows/%s' is neither text, integer nor real", f->path, name);
    kvd_column col = {.kind = kind == H5T_STRING    ? KVD_COL_TEXT
                              : kind == H5T_INTEGER ? KVD_COL_INT
                                                    : KVD_COL_REAL};
    kvd_cell_value *const data = calloc(n, sizeof *data);
    if (!data)
        return kvd_no_memory(err, "a column", (unsigned long long)n * sizeof *data);
    if (read_cells(f, dataset, col.kind, n, data, name, err) || describe(f, name, &col, err) ||
        append(r, &col, data, n, err)) {
        free_cells(data, col.kind, n);
        free((char *)col.name);
        free((char *)col.units);
        free((char *)col.long_name);
        return -1;
    }
    return 0;
}

static int load_column(kvd_h5 *f, kvd_rows *r, hid_t dataset, const char *name, kvd_err *err)
{
    const hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
    size_t n = 0;
    int status = space < 0 || type < 0
                     ? kvd_fail(err, "'%s': cannot read '/rows/%s'", f->path, name)
                     : check_extent(f, r, dataset, space, name, &n, err);
    if (!status && n)
        status = load_values(f, r, dataset, type, n, name, err);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return status;
}

/* Returns the order in which columns are read: by creation if the file recorded it, else by
 * name. */
static H5_index_t order_of(hid_t group)
{
    const hid_t plist = H5Gget_create_plist(group);
    unsigned flags = 0;
    const bool kept = plist >= 0 && H5Pget_link_creation_order(plist, &flags) >= 0 &&
                      (flags & H5P_CRT_ORDER_INDEXED);
    if (plist >= 0)
        H5Pclose(plist);
    return kept ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
}

static int load_link(kvd_h5 *f, kvd_rows *r, hid_t group, H5_index_t order, hsize_t i, kvd_err *err)
{
    char name[200];
    H5L_info_t link;
    hid_t object = H5I_INVALID_HID;
    const ssize_t length =
        H5Lget_name_by_idx(group, ".", order, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
    if (length <= 0 || (size_t)length >= sizeof name)
        return kvd_fail(err, "'%s': a name under '/rows' has %zd bytes, at most %zu are allowed",
                        f->path, length, sizeof name - 1);
    /* Accepts only hard links, because an external link could lead into another file. */
    if (H5Lget_info(group, name, &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD)
        object = H5Oopen(group, name, H5P_DEFAULT);
    if (object < 0)
        return kvd_fail(err, "'%s': cannot open '/rows/%s'", f->path, name);
    const int status = H5Iget_type(object) == H5I_DATASET
                           ? load_column(f, r, object, name, err)
                           : kvd_fail(err, "'%s': '/rows/%s' is no dataset", f->path, name);
    H5Oclose(object);
    return status;
}

static int load_group(kvd_h5 *f, kvd_rows *r, kvd_err *err)
{
    H5G_info_t info;
    const hid_t group = H5Gopen2(f->id, "/rows", H5P_DEFAULT);
    int status = group < 0 || H5Gget_info(group, &info) < 0
                     ? kvd_fail(err, "'%s': cannot open '/rows'", f->path)
                     : 0;
    for (hsize_t i = 0; !status && i < info.nlinks; i++)
        status = load_link(f, r, group, order_of(group), i, err);
    if (group >= 0)
        H5Gclose(group);
    return status || r->n_columns ? status : kvd_fail(err, "'%s': '/rows' has no columns", f->path);
}

kvd_rows *kvd_rows_load(kvd_h5 *f, kvd_err *err)
{
    if (!kvd_h5_exists(f, "/rows")) {
        kvd_fail(err, "'%s' has no group '/rows'", f->path);
        return NULL;
    }
    kvd_rows *const r = kvd_rows_blank(NULL, 1);
    if (!r) {
        kvd_no_memory(err, "a table", sizeof *r);
        return NULL;
    }
    r->n_columns = 0;
    if (load_group(f, r, err)) {
        kvd_rows_free(r);
        return NULL;
    }
    return r;
}

int kvd_rows_load_samples(kvd_h5 *f, kvd_rows *r, const kvd_h5_spec *spec, kvd_err *err)
{
    kvd_h5_spec all = *spec;
    all.dims[0] = r->n;
    return kvd_status(kvd_rows_add_samples(r, spec, err) ||
                      kvd_h5_read(f, all.path, all.rank, all.dims, H5T_NATIVE_DOUBLE,
                                  r->samples[r->n_samples - 1].value, err));
}

static int check_needed(const kvd_rows *r, const char *path, const kvd_column *columns,
                        int n_columns, const char *name, kvd_err *err)
{
    const int found = kvd_rows_find(r, name);
    for (int c = 0; found >= 0 && c < n_columns; c++)
        if (!strcmp(columns[c].name, name) && columns[c].kind == r->columns[found].kind)
            return 0;
    return kvd_fail(err, "'%s': no column '/rows/%s' of the type wanted", path, name);
}

int kvd_rows_check(const kvd_rows *r, const char *path, const kvd_column *columns, int n_columns,
                   const char *const *needed,
                   bool (*refused)(const kvd_rows *r, size_t row, const char *column, double x),
                   kvd_err *err)
{
    for (; *needed; needed++)
        if (check_needed(r, path, columns, n_columns, *needed, err))
            return -1;
    for (int c = 0; c < n_columns; c++) {
        const int found = kvd_rows_find(r, columns[c].name);
        const bool text = columns[c].kind == KVD_COL_TEXT;
        if (found >= 0 && (r->columns[found].kind == KVD_COL_TEXT) != text)
            return kvd_fail(err, "'%s': /rows/%s has %s, should have %s", path, columns[c].name,
                            text ? "numbers" : "text", text ? "text" : "numbers");
    }
    for (int c = 0; c < r->n_columns; c++)
        for (size_t i = 0; r->columns[c].kind != KVD_COL_TEXT && i < r->n; i++) {
            const double x = kvd_rows_get_real(r, i, c);
            if (refused(r, i, r->columns[c].name, x))
                return kvd_fail(err, "'%s': '/rows/%s' is %g in row %zu", path, r->columns[c].name,
                                x, i);
        }
    return 0;
}
