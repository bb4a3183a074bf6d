/* Tables read back, whatever their columns are. */
#include "formats/rows_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

_Static_assert(sizeof(kvd_cell_value) == 8, "a cell is as large as an int64 and a double");

/* ---- cells -------------------------------------------------------------------------------------- */

static void free_cells(kvd_cell_value *data, kvd_column_kind kind, size_t n)
{
    for (size_t i = 0; data && kind == KVD_COL_TEXT && i < n; i++)
        free(data[i].text);
    free(data);
}

static int read_text_column(hid_t dataset, hid_t type, size_t n, kvd_cell_value *out, const char *file,
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

static int read_cells(hid_t dataset, hid_t type, kvd_column_kind kind, size_t n, kvd_cell_value *out,
                      const char *file, const char *name, kvd_err *err)
{
    if (kind == KVD_COL_TEXT)
        return read_text_column(dataset, type, n, out, file, name, err);
    return H5Dread(dataset, kind == KVD_COL_INT ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL,
                   H5P_DEFAULT, out) < 0
               ? kvd_fail(err, "'%s': cannot read '/rows/%s'", file, name)
               : 0;
}

/* ---- columns ------------------------------------------------------------------------------------ */

/* An attribute of a dataset, or "" when it has none: foreign columns may lack it. */
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
    snprintf(path, sizeof path, "/rows/%s", name); /* names are shorter, see kvd_rows_load */
    col->name = strdup(name);
    col->units = text_attribute(f, path, "units");
    col->long_name = text_attribute(f, path, "long_name");
    return col->name && col->units && col->long_name ? 0 : kvd_no_memory(err, "a column", sizeof *col);
}

/* The table owns what *col points to, and data, when it returns 0. */
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

/* *n: its rows; 0 for what is no column, raw samples of higher rank beside them. */
static int check_extent(kvd_h5 *f, const kvd_rows *r, hid_t dataset, hid_t space, const char *name, size_t *n,
                        kvd_err *err)
{
    hsize_t dim = 0;
    *n = 0;
    if (H5Sget_simple_extent_ndims(space) != 1)
        return 0;
    if (H5Sget_simple_extent_dims(space, &dim, NULL) != 1 || dim == 0 ||
        dim > SIZE_MAX / sizeof(kvd_cell_value))
        return kvd_fail(err, "'%s': '/rows/%s' has no rows", f->path, name);
    if (r->n_columns && r->n != (size_t)dim)
        return kvd_fail(err, "'%s': '/rows/%s' has %llu rows, other columns %zu", f->path, name,
                        (unsigned long long)dim, r->n);
    /* What is announced must be stored: a header alone cannot make us allocate gigabytes. */
    if (H5Dget_storage_size(dataset) == 0)
        return kvd_fail(err, "'%s': '/rows/%s' announces %llu rows but stores none", f->path, name,
                        (unsigned long long)dim);
    *n = (size_t)dim;
    return 0;
}

static int load_values(kvd_h5 *f, kvd_rows *r, hid_t dataset, hid_t type, size_t n, const char *name,
                       kvd_err *err)
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
    if (read_cells(dataset, type, col.kind, n, data, f->path, name, err) || describe(f, name, &col, err) ||
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
    int status = space < 0 || type < 0 ? kvd_fail(err, "'%s': cannot read '/rows/%s'", f->path, name)
                                       : check_extent(f, r, dataset, space, name, &n, err);
    if (!status && n)
        status = load_values(f, r, dataset, type, n, name, err);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return status;
}

/* ---- the group ---------------------------------------------------------------------------------- */

/* In the order they were made where the file kept it, else by name. */
static H5_index_t order_of(hid_t group)
{
    const hid_t plist = H5Gget_create_plist(group);
    unsigned flags = 0;
    const bool kept =
        plist >= 0 && H5Pget_link_creation_order(plist, &flags) >= 0 && (flags & H5P_CRT_ORDER_INDEXED);
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
        return kvd_fail(err, "'%s': a name under '/rows' has %zd bytes, at most %zu are allowed", f->path,
                        length, sizeof name - 1);
    /* A soft or external link could lead into another file. */
    if (H5Lget_info(group, name, &link, H5P_DEFAULT) >= 0 && link.type == H5L_TYPE_HARD)
        object = H5Oopen(group, name, H5P_DEFAULT);
    if (object < 0)
        return kvd_fail(err, "'%s': cannot open '/rows/%s'", f->path, name);
    const int status = H5Iget_type(object) == H5I_DATASET ? load_column(f, r, object, name, err) : 0;
    H5Oclose(object);
    return status;
}

static int load_group(kvd_h5 *f, kvd_rows *r, kvd_err *err)
{
    H5G_info_t info;
    const hid_t group = H5Gopen2(f->id, "/rows", H5P_DEFAULT);
    int status =
        group < 0 || H5Gget_info(group, &info) < 0 ? kvd_fail(err, "'%s': cannot open '/rows'", f->path) : 0;
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
