/* Creates, writes and reads HDF5 datasets, and defines two 16-bit float types. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/h5_internal.h"

static const size_t chunk_bytes = (size_t)4 << 20;
/* size in bytes below which datasets are stored in the object header, without filters */
static const size_t filter_bytes = 256;
/* size in bytes above which all threads compress a dataset */
static const size_t large_bytes = (size_t)16 << 20;

static hid_t float16(size_t exponent_bits, size_t mantissa_bits, size_t bias)
{
    const hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0 || H5Tset_fields(t, 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
        H5Tset_precision(t, 16) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, bias) < 0 ||
        H5Tlock(t) < 0)
        return H5I_INVALID_HID;
    return t;
}

hid_t kvd_h5_type_f16(void)
{
    static hid_t t = H5I_INVALID_HID;
    if (t < 0)
        t = float16(5, 10, 15);
    return t;
}

hid_t kvd_h5_type_bf16(void)
{
    static hid_t t = H5I_INVALID_HID;
    if (t < 0)
        t = float16(8, 7, 127);
    return t;
}

bool kvd_h5_known_number(hid_t type)
{
    const hid_t known[] = {H5T_IEEE_F32LE, H5T_IEEE_F64LE, H5T_IEEE_F32BE,    H5T_IEEE_F64BE,
                           H5T_STD_I8LE,   H5T_STD_I16LE,  H5T_STD_I32LE,     H5T_STD_I64LE,
                           H5T_STD_U8LE,   H5T_STD_U16LE,  H5T_STD_U32LE,     H5T_STD_U64LE,
                           H5T_STD_I16BE,  H5T_STD_I32BE,  H5T_STD_I64BE,     H5T_STD_U16BE,
                           H5T_STD_U32BE,  H5T_STD_U64BE,  kvd_h5_type_f16(), kvd_h5_type_bf16()};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (H5Tequal(type, known[i]) > 0)
            return true;
    return false;
}

void kvd_h5_slab_dims(int rank, const hsize_t *dims, size_t type_size, size_t limit, hsize_t *slab)
{
    hsize_t inner = 1;
    const hsize_t most = limit / type_size > 0 ? limit / type_size : 1;
    for (int i = rank - 1; i >= 0; i--) {
        const hsize_t fit = most / inner > 0 ? most / inner : 1;
        slab[i] = dims[i] < fit ? dims[i] : fit;
        if (slab[i] == 0)
            slab[i] = 1;
        inner *= slab[i];
        if (slab[i] < dims[i])
            /* The chunk covers only a part of axis i, so axes 0 to i - 1 get length 1. */
            inner = most;
    }
}

static int spec_bytes(const kvd_h5_spec *s, size_t *bytes, kvd_err *err)
{
    if (!s->path || s->path[0] != '/' || !s->long_name || !*s->long_name || !s->units || !*s->units)
        return kvd_fail(err, "dataset '%s' needs a path, a long_name and units",
                        s->path ? s->path : "");
    if (s->rank < 0 || s->rank > KVD_MAX_RANK)
        return kvd_fail(err, "dataset '%s' has rank %d, at most %d is possible", s->path, s->rank,
                        KVD_MAX_RANK);
    size_t n = H5Tget_size(s->type);
    if (n == 0)
        return kvd_fail(err, "dataset '%s' has no type", s->path);
    for (int i = 0; i < s->rank; i++) {
        if (!s->axes[i] || !*s->axes[i])
            return kvd_fail(err, "dataset '%s' has no name for axis %d", s->path, i);
        if (s->dims[i] && n > SIZE_MAX / 2 / s->dims[i])
            return kvd_fail(err, "dataset '%s' is too large", s->path);
        n *= (size_t)s->dims[i];
    }
    *bytes = n;
    return 0;
}

static bool is_filtered(const kvd_h5_spec *s, size_t bytes)
{
    return bytes > filter_bytes && s->rank > 0;
}

hid_t kvd_h5_layout(const kvd_h5_spec *s, size_t bytes, bool reserve)
{
    const hid_t made = H5Pcreate(H5P_DATASET_CREATE);
    if (made < 0)
        return made;
    herr_t rc = 0;
    if (reserve) {
        rc = H5Pset_fill_time(made, H5D_FILL_TIME_NEVER);
        rc = rc < 0 ? rc : H5Pset_layout(made, H5D_CONTIGUOUS);
        rc = rc < 0 ? rc : H5Pset_alloc_time(made, H5D_ALLOC_TIME_EARLY);
    } else if (is_filtered(s, bytes)) {
        hsize_t chunk[KVD_MAX_RANK];
        kvd_h5_slab_dims(s->rank, s->dims, H5Tget_size(s->type), chunk_bytes, chunk);
        rc = H5Pset_chunk(made, s->rank, chunk);
        rc = rc < 0 ? rc : H5Pset_shuffle(made);
        rc = rc < 0 ? rc : H5Pset_deflate(made, 1);
        rc = rc < 0 ? rc : H5Pset_fletcher32(made);
    } else {
        /* Stores small data in the object header, whose checksum protects them too. */
        rc = H5Pset_layout(made, H5D_COMPACT);
    }
    if (rc < 0) {
        kvd_h5_drop(made);
        return H5I_INVALID_HID;
    }
    return made;
}

static hid_t create(kvd_h5 *f, const kvd_h5_spec *s, bool reserve, kvd_err *err)
{
    assert(f->writing);
    size_t bytes = 0;
    if (spec_bytes(s, &bytes, err))
        return H5I_INVALID_HID;
    if (kvd_h5_exists(f, s->path)) {
        kvd_fail(err, "'%s' already holds %s", f->path, s->path);
        return H5I_INVALID_HID;
    }
    hid_t dataset = H5I_INVALID_HID;
    const hid_t links = H5Pcreate(H5P_LINK_CREATE), made = kvd_h5_layout(s, bytes, reserve);
    const hid_t space = s->rank ? H5Screate_simple(s->rank, s->dims, NULL) : H5Screate(H5S_SCALAR);
    bool bad = links < 0 || made < 0 || space < 0 || H5Pset_create_intermediate_group(links, 1) < 0;
    if (!bad)
        dataset = H5Dcreate2(f->id, s->path, s->type, space, links, made, H5P_DEFAULT);
    bad = bad || dataset < 0 || kvd_h5_put_axes(f, dataset, s);
    if (bad)
        kvd_h5_fail(err, "cannot create '%s' %s", f->path, s->path);
    bad = bad || kvd_h5_put_text(f, s->path, "long_name", s->long_name, err) ||
          kvd_h5_put_text(f, s->path, "units", s->units, err);
    kvd_h5_drop(space);
    kvd_h5_drop(made);
    kvd_h5_drop(links);
    if (bad) {
        kvd_h5_drop(dataset);
        return H5I_INVALID_HID;
    }
    return dataset;
}

static int write_all(kvd_h5 *f, hid_t dataset, const kvd_h5_spec *spec, hid_t mem_type,
                     const void *data, kvd_err *err)
{
    size_t bytes = 0;
    if (spec_bytes(spec, &bytes, err))
        return -1;
    if (bytes >= large_bytes && is_filtered(spec, bytes) && H5Tequal(mem_type, spec->type) > 0) {
        hsize_t chunk[KVD_MAX_RANK];
        kvd_h5_slab_dims(spec->rank, spec->dims, H5Tget_size(spec->type), chunk_bytes, chunk);
        return kvd_h5_write_chunks(dataset, spec, chunk, data, err) ? kvd_in(err, "'%s'", f->path)
                                                                    : 0;
    }
    if (H5Dwrite(dataset, mem_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        return kvd_h5_fail(err, "cannot write '%s' %s", f->path, spec->path);
    return 0;
}

int kvd_h5_write(kvd_h5 *f, const kvd_h5_spec *spec, hid_t mem_type, const void *data, kvd_err *err)
{
    hid_t dataset = create(f, spec, false, err);
    if (dataset < 0)
        return -1;
    int rc = 0;
    bool empty = false;
    for (int i = 0; i < spec->rank; i++)
        empty = empty || spec->dims[i] == 0;
    if (!empty)
        rc = write_all(f, dataset, spec, mem_type, data, err);
    kvd_err why = {0};
    if (kvd_h5_close_dataset(f, &dataset, spec->path, rc ? &why : err))
        rc = -1;
    return rc;
}

int kvd_h5_reserve(kvd_h5 *f, const kvd_h5_spec *spec, hid_t *dataset, kvd_err *err)
{
    *dataset = create(f, spec, true, err);
    return kvd_status(*dataset < 0);
}

int kvd_h5_close_dataset(kvd_h5 *f, hid_t *dataset, const char *path, kvd_err *err)
{
    const hid_t id = *dataset;
    *dataset = H5I_INVALID_HID;
    return id > 0 && H5Dclose(id) < 0 ? kvd_h5_fail(err, "cannot write '%s' %s", f->path, path) : 0;
}

bool kvd_h5_exists(kvd_h5 *f, const char *path)
{
    /* Checks every parent group, because H5Lexists fails if one is missing. */
    char part[512];
    if (strlen(path) >= sizeof part)
        return false;
    for (const char *end = path; *end;) {
        end += 1 + strcspn(end + 1, "/");
        memcpy(part, path, (size_t)(end - path));
        part[end - path] = '\0';
        if (strcmp(part, "/") && H5Lexists(f->id, part, H5P_DEFAULT) <= 0)
            return false;
    }
    return true;
}

/* Counts a dataset's chunks. *stored receives the number of chunks in the file, *all the number of
 * chunks of a fully written dataset. */
static int count_chunks(hid_t dataset, hid_t made, hid_t space, hsize_t *stored, hsize_t *all)
{
    hsize_t dims[H5S_MAX_RANK], chunk[H5S_MAX_RANK];
    const int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    if (rank < 0 || H5Pget_chunk(made, rank, chunk) != rank ||
        H5Dget_num_chunks(dataset, space, stored) < 0)
        return -1;
    *all = 1;
    for (int i = 0; i < rank; i++)
        *all *= dims[i] / chunk[i] + (dims[i] % chunk[i] > 0);
    return 0;
}

int kvd_h5_check_stored(hid_t dataset, const char *file, const char *path, kvd_err *err)
{
    hsize_t stored = 0, all = 1;
    const hid_t made = H5Dget_create_plist(dataset), space = H5Dget_space(dataset);
    int rc = kvd_status(made < 0 || space < 0);
    if (!rc && H5Pget_layout(made) == H5D_CHUNKED)
        rc = count_chunks(dataset, made, space, &stored, &all);
    else if (!rc)
        stored = H5Sget_simple_extent_npoints(space) <= 0 || H5Dget_storage_size(dataset) > 0;
    if (rc)
        kvd_h5_fail(err, "cannot read '%s' %s", file, path);
    else if (stored < all)
        rc = kvd_fail(err, "'%s' %s stores %llu of its %llu blocks of values", file, path,
                      (unsigned long long)stored, (unsigned long long)all);
    kvd_h5_drop(space);
    kvd_h5_drop(made);
    return rc;
}

static hid_t open_dataset(kvd_h5 *f, const char *path, kvd_err *err)
{
    const hid_t dataset =
        kvd_h5_exists(f, path) ? H5Dopen2(f->id, path, H5P_DEFAULT) : H5I_INVALID_HID;
    if (dataset < 0)
        kvd_fail(err, "'%s' has no dataset %s", f->path, path);
    return dataset;
}

static int dataset_shape(kvd_h5 *f, hid_t dataset, const char *path, int rank, hsize_t *dims,
                         kvd_err *err)
{
    const hid_t space = H5Dget_space(dataset);
    const int found = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    int rc = -1;
    if (found < 0)
        kvd_h5_fail(err, "cannot read '%s' %s", f->path, path);
    else if (found != rank)
        kvd_fail(err, "'%s' %s has rank %d, %d is wanted", f->path, path, found, rank);
    else if (rank > 0 && H5Sget_simple_extent_dims(space, dims, NULL) < 0)
        kvd_h5_fail(err, "cannot read '%s' %s", f->path, path);
    else
        rc = 0;
    kvd_h5_drop(space);
    return rc;
}

int kvd_h5_shape(kvd_h5 *f, const char *path, int rank, hsize_t *dims, kvd_err *err)
{
    assert(rank <= KVD_MAX_RANK);
    const hid_t dataset = open_dataset(f, path, err);
    if (dataset < 0)
        return -1;
    const int rc = dataset_shape(f, dataset, path, rank, dims, err);
    kvd_h5_drop(dataset);
    return rc;
}

static void shape_text(int rank, const hsize_t *dims, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "[%llu]", (unsigned long long)dims[i]);
}

/* Makes HDF5 fail on a number that does not fit, instead of storing the nearest one. */
static H5T_conv_ret_t refuse_range(H5T_conv_except_t what, hid_t from, hid_t to, void *src,
                                   void *dst, void *ctx)
{
    (void)from;
    (void)to;
    (void)src;
    (void)dst;
    if (what != H5T_CONV_EXCEPT_RANGE_HI && what != H5T_CONV_EXCEPT_RANGE_LOW)
        return H5T_CONV_UNHANDLED;
    *(bool *)ctx = true;
    return H5T_CONV_ABORT;
}

static int read_all(kvd_h5 *f, hid_t dataset, const char *path, hid_t mem_type, void *data,
                    kvd_err *err)
{
    int rc = -1;
    bool out_of_range = false;
    const hid_t type = H5Dget_type(dataset), transfer = H5Pcreate(H5P_DATASET_XFER);
    const H5T_class_t found = type < 0 ? H5T_NO_CLASS : H5Tget_class(type),
                      wanted = H5Tget_class(mem_type);
    const bool fits = found == wanted || (found == H5T_INTEGER && wanted == H5T_FLOAT);
    if (found == H5T_NO_CLASS || transfer < 0 ||
        H5Pset_type_conv_cb(transfer, refuse_range, &out_of_range) < 0)
        kvd_h5_fail(err, "cannot read '%s' %s", f->path, path);
    else if (!fits)
        kvd_fail(err, "'%s' %s does not hold %s", f->path, path,
                 wanted == H5T_INTEGER ? "whole numbers"
                 : wanted == H5T_FLOAT ? "numbers"
                                       : "what is wanted");
    else if (H5Dread(dataset, mem_type, H5S_ALL, H5S_ALL, transfer, data) < 0 && !out_of_range)
        kvd_h5_fail(err, "cannot read '%s' %s", f->path, path);
    else if (out_of_range)
        kvd_fail(err, "'%s' %s holds a number that is too large for its reader", f->path, path);
    else
        rc = 0;
    kvd_h5_drop(transfer);
    kvd_h5_drop(type);
    return rc;
}

int kvd_h5_read(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, hid_t mem_type,
                void *data, kvd_err *err)
{
    assert(rank <= KVD_MAX_RANK);
    hsize_t found[KVD_MAX_RANK];
    const hid_t dataset = open_dataset(f, path, err);
    if (dataset < 0)
        return -1;
    int rc = dataset_shape(f, dataset, path, rank, found, err);
    size_t n = 1;
    for (int i = 0; !rc && i < rank; i++) {
        n *= (size_t)dims[i];
        if (found[i] != dims[i]) {
            char a[128], b[128];
            shape_text(rank, found, a, sizeof a);
            shape_text(rank, dims, b, sizeof b);
            rc = kvd_fail(err, "'%s' %s has the shape %s, %s is wanted", f->path, path, a, b);
        }
    }
    if (!rc && n > 0)
        rc = kvd_h5_check_stored(dataset, f->path, path, err) ||
             read_all(f, dataset, path, mem_type, data, err);
    kvd_h5_drop(dataset);
    return kvd_status(rc);
}

int kvd_h5_read_finite(kvd_h5 *f, const char *path, int rank, const hsize_t *dims, double *data,
                       kvd_err *err)
{
    if (kvd_h5_read(f, path, rank, dims, H5T_NATIVE_DOUBLE, data, err))
        return -1;
    size_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    for (size_t i = 0; i < n; i++) {
        if (isfinite(data[i]))
            continue;
        hsize_t at[KVD_MAX_RANK];
        size_t rest = i;
        for (int k = rank - 1; k >= 0; k--) {
            at[k] = rest % (size_t)dims[k];
            rest /= (size_t)dims[k];
        }
        char place[128];
        shape_text(rank, at, place, sizeof place);
        return kvd_fail(err, "'%s' %s%s is %s", f->path, path, place,
                        isnan(data[i]) ? "nan" : "infinite");
    }
    return 0;
}

static int slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                const hsize_t *count, hid_t mem_type, void *in, const void *out, kvd_err *err)
{
    assert(rank >= 1 && rank <= KVD_MAX_RANK);
    int rc = -1;
    hid_t memory = H5I_INVALID_HID;
    hsize_t dims[KVD_MAX_RANK];
    const hid_t file = H5Dget_space(dataset);
    if (file < 0 || H5Sget_simple_extent_ndims(file) != rank ||
        H5Sget_simple_extent_dims(file, dims, NULL) < 0) {
        kvd_fail(err, "%s: a slab of rank %d is not part of it", name, rank);
        goto done;
    }
    for (int i = 0; i < rank; i++)
        if (start[i] > dims[i] || count[i] > dims[i] - start[i]) {
            kvd_fail(err, "%s: axis %d ends at %llu, %llu values from %llu are asked for", name, i,
                     (unsigned long long)dims[i], (unsigned long long)count[i],
                     (unsigned long long)start[i]);
            goto done;
        }
    memory = H5Screate_simple(rank, count, NULL);
    if (memory < 0 || H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL) < 0) {
        kvd_h5_fail(err, "%s: cannot select a slab", name);
        goto done;
    }
    if (in ? H5Dread(dataset, mem_type, memory, file, H5P_DEFAULT, in) < 0
           : H5Dwrite(dataset, mem_type, memory, file, H5P_DEFAULT, out) < 0) {
        kvd_h5_fail(err, "cannot %s %s", in ? "read" : "write", name);
        goto done;
    }
    rc = 0;
done:
    kvd_h5_drop(memory);
    kvd_h5_drop(file);
    return rc;
}

int kvd_h5_read_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                     const hsize_t *count, hid_t mem_type, void *data, kvd_err *err)
{
    assert(data);
    return slab(dataset, name, rank, start, count, mem_type, data, NULL, err);
}

int kvd_h5_write_slab(hid_t dataset, const char *name, int rank, const hsize_t *start,
                      const hsize_t *count, hid_t mem_type, const void *data, kvd_err *err)
{
    assert(data);
    return slab(dataset, name, rank, start, count, mem_type, NULL, data, err);
}
