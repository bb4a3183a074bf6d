/* Attributes of HDF5 objects, and messages of HDF5 errors. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/h5_internal.h"
#include "common/utf8.h"

/* largest length in bytes of a text attribute in an HDF5 file */
enum { MAX_TEXT = 60000 };

static herr_t first_reason(unsigned n, const H5E_error2_t *e, void *ctx)
{
    (void)n;
    const char **desc = ctx;
    if (!*desc && e->desc && *e->desc)
        *desc = e->desc;
    return 0;
}

int kvd_h5_fail(kvd_err *err, const char *fmt, ...)
{
    const char *desc = NULL;
    (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_reason, &desc);
    char text[sizeof err->msg], reason[256] = "";
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* Extracts the system's reason from HDF5's text "... error message = '...', ...". */
    const char *system = desc ? strstr(desc, "error message = '") : NULL;
    if (system) {
        system += strlen("error message = '");
        (void)snprintf(reason, sizeof reason, "%.*s", (int)strcspn(system, "'"), system);
    } else if (desc) {
        (void)snprintf(reason, sizeof reason, "%s", desc);
    }
    return reason[0] ? kvd_fail(err, "%s: %s", text, reason) : kvd_fail(err, "%s", text);
}

static const char *spot(const char *where)
{
    return strcmp(where, "/") ? where : "";
}

static hid_t object_made(kvd_h5 *f, const char *where)
{
    if (!strcmp(where, "/") || kvd_h5_exists(f, where))
        return H5Oopen(f->id, where, H5P_DEFAULT);
    const hid_t links = H5Pcreate(H5P_LINK_CREATE), creation = kvd_h5_creation(H5P_GROUP_CREATE);
    hid_t group = H5I_INVALID_HID;
    if (links >= 0 && creation >= 0 && H5Pset_create_intermediate_group(links, 1) >= 0)
        group = H5Gcreate2(f->id, where, links, creation, H5P_DEFAULT);
    /* Closes nothing after a failure, because that would overwrite HDF5's error message. */
    if (group >= 0) {
        kvd_h5_drop(creation);
        kvd_h5_drop(links);
    }
    return group;
}

/* Writes an attribute. If the attribute exists, overwrites its value in place, so that the file
 * stays readable if the process is killed. */
static int put_scalar(kvd_h5 *f, const char *where, const char *name, hid_t file_type,
                      hid_t mem_type, const void *value, kvd_err *err)
{
    assert(f->writing);
    int rc = -1;
    hid_t attr = H5I_INVALID_HID, space = H5I_INVALID_HID, type = H5I_INVALID_HID;
    const hid_t object = object_made(f, where);
    if (object < 0) {
        kvd_h5_fail(err, "cannot write '%s' %s", f->path, where);
        goto done;
    }
    htri_t there = H5Aexists(object, name);
    if (there > 0) {
        attr = H5Aopen(object, name, H5P_DEFAULT);
        type = attr < 0 ? attr : H5Aget_type(attr);
        if (type >= 0 && H5Tequal(type, file_type) <= 0) {
            kvd_h5_drop(attr);
            attr = H5I_INVALID_HID;
            there = H5Adelete(object, name) < 0 ? -1 : 0;
        }
    }
    if (there == 0) {
        space = H5Screate(H5S_SCALAR);
        attr = space < 0 ? space
                         : H5Acreate2(object, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    }
    if (there < 0 || attr < 0 || H5Awrite(attr, mem_type, value) < 0) {
        kvd_h5_fail(err, "cannot write '%s' attribute '%s/%s'", f->path, spot(where), name);
        goto done;
    }
    rc = 0;
done:
    kvd_h5_drop(type);
    kvd_h5_drop(space);
    kvd_h5_drop(attr);
    kvd_h5_drop(object);
    return rc;
}

/* Returns how many bytes an existing text attribute of fixed length can hold, or 0 if there is
 * none. */
static size_t room_there(kvd_h5 *f, const char *where, const char *name)
{
    size_t size = 0;
    if (!strcmp(where, "/") || kvd_h5_exists(f, where)) {
        const hid_t attr = H5Aexists_by_name(f->id, where, name, H5P_DEFAULT) > 0
                               ? H5Aopen_by_name(f->id, where, name, H5P_DEFAULT, H5P_DEFAULT)
                               : H5I_INVALID_HID;
        const hid_t type = attr < 0 ? attr : H5Aget_type(attr);
        if (type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0)
            size = H5Tget_size(type);
        kvd_h5_drop(type);
        kvd_h5_drop(attr);
    }
    return size;
}

int kvd_h5_put_text_room(kvd_h5 *f, const char *where, const char *name, const char *value,
                         size_t capacity, kvd_err *err)
{
    const size_t len = strlen(value), there = room_there(f, where, name);
    size_t size = capacity > len + 1 ? capacity : len + 1;
    if (there >= len + 1)
        size = there;
    if (size > MAX_TEXT)
        return kvd_fail(err,
                        "cannot write '%s' attribute '%s/%s': a text of %zu bytes is more than %d",
                        f->path, spot(where), name, size, MAX_TEXT);
    int rc = -1;
    char *padded = calloc(size, 1);
    const hid_t type = H5Tcopy(H5T_C_S1);
    if (!padded) {
        kvd_no_memory(err, "a text", size);
        goto done;
    }
    memcpy(padded, value, len);
    if (type < 0 || H5Tset_size(type, size) < 0 || H5Tset_strpad(type, H5T_STR_NULLTERM) < 0 ||
        H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        kvd_h5_fail(err, "cannot describe a text of %zu bytes", size);
        goto done;
    }
    rc = put_scalar(f, where, name, type, type, padded, err);
done:
    kvd_h5_drop(type);
    free(padded);
    return rc;
}

int kvd_h5_put_text(kvd_h5 *f, const char *where, const char *name, const char *value, kvd_err *err)
{
    return kvd_h5_put_text_room(f, where, name, value, 0, err);
}

int kvd_h5_put_int(kvd_h5 *f, const char *where, const char *name, int64_t value, kvd_err *err)
{
    return put_scalar(f, where, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, err);
}

int kvd_h5_put_u64(kvd_h5 *f, const char *where, const char *name, uint64_t value, kvd_err *err)
{
    return put_scalar(f, where, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value, err);
}

int kvd_h5_put_double(kvd_h5 *f, const char *where, const char *name, double value, kvd_err *err)
{
    return put_scalar(f, where, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value, err);
}

/* Opens an attribute with a single value. The caller closes the id and *type. */
static hid_t open_scalar(kvd_h5 *f, const char *where, const char *name, hid_t *type, kvd_err *err)
{
    *type = H5I_INVALID_HID;
    if (strcmp(where, "/") && !kvd_h5_exists(f, where)) {
        kvd_fail(err, "'%s' has no %s", f->path, where);
        return H5I_INVALID_HID;
    }
    if (H5Aexists_by_name(f->id, where, name, H5P_DEFAULT) <= 0) {
        kvd_fail(err, "'%s' has no attribute '%s/%s'", f->path, spot(where), name);
        return H5I_INVALID_HID;
    }
    const hid_t attr = H5Aopen_by_name(f->id, where, name, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t space = attr < 0 ? attr : H5Aget_space(attr);
    const hssize_t n = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
    *type = n == 1 ? H5Aget_type(attr) : H5I_INVALID_HID;
    kvd_h5_drop(space);
    if (*type < 0) {
        kvd_fail(err, "'%s' attribute '%s/%s' does not hold one value", f->path, spot(where), name);
        kvd_h5_drop(attr);
        return H5I_INVALID_HID;
    }
    return attr;
}

int kvd_h5_get_text(kvd_h5 *f, const char *where, const char *name, char **value, kvd_err *err)
{
    int rc = -1;
    hid_t type;
    char *text = NULL;
    const hid_t attr = open_scalar(f, where, name, &type, err);
    if (attr < 0)
        return -1;
    if (H5Tget_class(type) != H5T_STRING) {
        kvd_fail(err, "'%s' attribute '%s/%s' is not a text", f->path, spot(where), name);
        goto done;
    }
    if (H5Tis_variable_str(type) > 0) {
        char *shared = NULL;
        if (H5Aread(attr, type, &shared) < 0) {
            kvd_h5_fail(err, "cannot read '%s' attribute '%s/%s'", f->path, spot(where), name);
            goto done;
        }
        text = strdup(shared ? shared : "");
        (void)H5free_memory(shared);
    } else {
        const size_t size = H5Tget_size(type);
        text = calloc(size + 1, 1);
        if (text && H5Aread(attr, type, text) < 0) {
            kvd_h5_fail(err, "cannot read '%s' attribute '%s/%s'", f->path, spot(where), name);
            goto done;
        }
        /* Removes the blanks with which Fortran programs pad texts. */
        if (text && H5Tget_strpad(type) == H5T_STR_SPACEPAD)
            for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--)
                text[n - 1] = '\0';
    }
    if (!text) {
        kvd_no_memory(err, name, H5Tget_size(type));
        goto done;
    }
    const size_t length = strlen(text), bad = kvd_utf8_first_bad(text, length);
    if (bad < length) {
        kvd_fail(err, "'%s' attribute '%s/%s' is not valid UTF-8 at byte %zu", f->path, spot(where),
                 name, bad);
        goto done;
    }
    *value = text;
    text = NULL;
    rc = 0;
done:
    free(text);
    kvd_h5_drop(type);
    kvd_h5_drop(attr);
    return rc;
}

bool kvd_h5_has_attribute(kvd_h5 *f, const char *where, const char *name)
{
    return (!strcmp(where, "/") || kvd_h5_exists(f, where)) &&
           H5Aexists_by_name(f->id, where, name, H5P_DEFAULT) > 0;
}

int kvd_h5_get_text_or_none(kvd_h5 *f, const char *where, const char *name, char **value,
                            kvd_err *err)
{
    *value = NULL;
    return kvd_h5_has_attribute(f, where, name) ? kvd_h5_get_text(f, where, name, value, err) : 0;
}

static hid_t open_number(kvd_h5 *f, const char *where, const char *name, bool whole, hid_t *type,
                         kvd_err *err)
{
    const hid_t attr = open_scalar(f, where, name, type, err);
    if (attr < 0)
        return attr;
    const H5T_class_t class = H5Tget_class(*type);
    if (class == H5T_INTEGER || (class == H5T_FLOAT && !whole))
        return attr;
    kvd_fail(err, "'%s' attribute '%s/%s' is not a %s", f->path, spot(where), name,
             whole ? "whole number" : "number");
    kvd_h5_drop(*type);
    kvd_h5_drop(attr);
    return H5I_INVALID_HID;
}

int kvd_h5_get_int(kvd_h5 *f, const char *where, const char *name, int64_t *value, kvd_err *err)
{
    hid_t type;
    const hid_t attr = open_number(f, where, name, true, &type, err);
    if (attr < 0)
        return -1;
    /* Reads unsigned values as uint64_t, because HDF5 would silently reduce large values to
     * INT64_MAX. */
    int rc = 0;
    uint64_t wide = 0;
    const bool is_unsigned = H5Tget_sign(type) == H5T_SGN_NONE;
    if ((is_unsigned ? H5Aread(attr, H5T_NATIVE_UINT64, &wide)
                     : H5Aread(attr, H5T_NATIVE_INT64, value)) < 0)
        rc = kvd_h5_fail(err, "cannot read '%s' attribute '%s/%s'", f->path, spot(where), name);
    else if (wide > INT64_MAX)
        rc = kvd_fail(err, "'%s' attribute '%s/%s' is %llu, more than %lld", f->path, spot(where),
                      name, (unsigned long long)wide, (long long)INT64_MAX);
    else if (is_unsigned)
        *value = (int64_t)wide;
    kvd_h5_drop(type);
    kvd_h5_drop(attr);
    return rc;
}

int kvd_h5_get_double(kvd_h5 *f, const char *where, const char *name, double *value, kvd_err *err)
{
    hid_t type;
    const hid_t attr = open_number(f, where, name, false, &type, err);
    if (attr < 0)
        return -1;
    int rc = 0;
    if (H5Aread(attr, H5T_NATIVE_DOUBLE, value) < 0)
        rc = kvd_h5_fail(err, "cannot read '%s' attribute '%s/%s'", f->path, spot(where), name);
    kvd_h5_drop(type);
    kvd_h5_drop(attr);
    return rc;
}
