/* Compresses large datasets in chunks with all threads, because HDF5 itself uses one. */
#include <hdf5_hl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/files/h5_internal.h"
#include "common/threads.h"

/* Shape of a dataset's chunks. A chunk has length 1 along each axis before axis `cut`, length
 * `piece` along axis `cut`, and full length along each axis after `cut`. */
typedef struct {
    int rank, cut;
    hsize_t dims[KVD_MAX_RANK];
    /* length of a chunk, and number of chunks, along the axis on which the dataset is cut */
    size_t piece, per_row;
    /* product of the lengths of all axes after the axis on which the dataset is cut into chunks */
    size_t inner;
    size_t size;
    size_t n;
} layout;

static layout layout_of(const kvd_h5_spec *s, const hsize_t *chunk)
{
    layout l = {.rank = s->rank, .size = H5Tget_size(s->type), .inner = 1, .n = 1};
    memcpy(l.dims, s->dims, (size_t)s->rank * sizeof *l.dims);
    while (l.cut < s->rank - 1 && chunk[l.cut] == 1)
        l.cut++;
    for (int i = l.cut + 1; i < s->rank; i++)
        l.inner *= (size_t)s->dims[i];
    l.piece = (size_t)chunk[l.cut];
    l.per_row = ((size_t)s->dims[l.cut] + l.piece - 1) / l.piece;
    for (int i = 0; i < l.cut; i++)
        l.n *= (size_t)s->dims[i];
    l.n *= l.per_row;
    return l;
}

/* Writes chunk i's position to `offset`, its number of elements inside the dataset to *valid.
 * Returns the index of its first element. */
static size_t place(const layout *l, size_t i, hsize_t *offset, size_t *valid)
{
    const size_t first = i % l->per_row * l->piece, left = (size_t)l->dims[l->cut] - first;
    size_t row = i / l->per_row;
    const size_t element = (row * (size_t)l->dims[l->cut] + first) * l->inner;
    memset(offset, 0, (size_t)l->rank * sizeof *offset);
    offset[l->cut] = first;
    for (int a = l->cut - 1; a >= 0; a--) {
        offset[a] = row % l->dims[a];
        row /= (size_t)l->dims[a];
    }
    *valid = (left < l->piece ? left : l->piece) * l->inner;
    return element;
}

/* Reorders bytes as HDF5's shuffle filter does: byte 0 of all elements, then byte 1, ... */
static void shuffle(const uint8_t *from, size_t valid, size_t n, size_t size, uint8_t *to)
{
    for (size_t j = 0; j < size; j++) {
        for (size_t i = 0; i < valid; i++)
            to[j * n + i] = from[i * size + j];
        memset(to + j * n + valid, 0, n - valid);
    }
}

/* Returns the checksum of HDF5's Fletcher-32 filter, over 16-bit words, high byte first. */
static uint32_t fletcher32(const uint8_t *x, size_t bytes)
{
    /* number of steps after which a Fletcher-32 sum must be reduced, before it overflows 32 bits */
    enum { ROUND = 360 };
    uint32_t a = 0, b = 0;
    for (size_t words = bytes / 2; words;) {
        const size_t n = words < ROUND ? words : ROUND;
        for (size_t i = 0; i < n; i++, x += 2) {
            a += (uint32_t)x[0] << 8 | x[1];
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
        words -= n;
    }
    if (bytes % 2) {
        a += (uint32_t)*x << 8;
        b += a;
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    return b << 16 | a;
}

/* HDF5's filter mask for a chunk without deflate; size of a Fletcher-32 checksum in bytes */
enum { DEFLATE_SKIPPED = 1 << 1, SUM_BYTES = 4 };

typedef struct {
    uint8_t *shuffled, *packed;
    size_t bytes;
    uint32_t mask;
} work;

/* Compresses a chunk, or stores it without deflate if deflate would enlarge it. */
static void pack(const layout *l, const uint8_t *from, size_t valid, size_t room, work *w)
{
    const size_t n = l->piece * l->inner, raw = n * l->size;
    uLongf packed = room - SUM_BYTES;
    shuffle(from, valid, n, l->size, w->shuffled);
    w->mask = 0;
    if (compress2(w->packed, &packed, w->shuffled, raw, 1) != Z_OK || packed >= raw) {
        memcpy(w->packed, w->shuffled, raw);
        packed = raw;
        w->mask = DEFLATE_SKIPPED;
    }
    const uint32_t sum = fletcher32(w->packed, packed);
    for (int i = 0; i < SUM_BYTES; i++)
        w->packed[packed + (size_t)i] = (uint8_t)(sum >> 8 * i);
    w->bytes = packed + SUM_BYTES;
}

int kvd_h5_write_chunks(hid_t dataset, const kvd_h5_spec *spec, const hsize_t *chunk,
                        const void *data, kvd_err *err)
{
    const layout l = layout_of(spec, chunk);
    const size_t raw = l.piece * l.inner * l.size, room = compressBound(raw) + SUM_BYTES;
    const size_t at_once = kvd_thread_count();
    work *w = calloc(at_once, sizeof *w);
    int status = w ? 0 : kvd_no_memory(err, "chunks", at_once * sizeof *w);
    for (size_t i = 0; i < at_once && !status; i++)
        if (!(w[i].shuffled = malloc(raw)) || !(w[i].packed = malloc(room)))
            status = kvd_no_memory(err, "chunks", raw + room);
    for (size_t first = 0; first < l.n && !status; first += at_once) {
        const size_t m = l.n - first < at_once ? l.n - first : at_once;
        hsize_t offset[KVD_MAX_RANK];
        size_t valid;
#pragma omp parallel for schedule(static) private(offset, valid)
        for (size_t i = 0; i < m; i++) {
            const size_t element = place(&l, first + i, offset, &valid);
            pack(&l, (const uint8_t *)data + element * l.size, valid, room, &w[i]);
        }
        for (size_t i = 0; i < m && !status; i++) {
            (void)place(&l, first + i, offset, &valid);
            if (H5Dwrite_chunk(dataset, H5P_DEFAULT, w[i].mask, offset, w[i].bytes, w[i].packed) <
                0)
                status = kvd_h5_fail(err, "cannot write %s", spec->path);
        }
    }
    for (size_t i = 0; w && i < at_once; i++) {
        free(w[i].shuffled);
        free(w[i].packed);
    }
    free(w);
    return status;
}

/* length of the longest axis whose indices 0, 1, ... are stored as an HDF5 dimension scale */
static const hsize_t indexed = 60000 / sizeof(int32_t);

/* Opens the dimension scale `path` if its length is n; otherwise returns H5I_INVALID_HID. */
static hid_t open_scale(const kvd_h5 *f, const char *path, hsize_t n)
{
    hid_t scale = H5I_INVALID_HID;
    if (H5Lexists(f->id, path, H5P_DEFAULT) > 0)
        scale = H5Dopen2(f->id, path, H5P_DEFAULT);
    if (scale < 0)
        return H5I_INVALID_HID;
    const hid_t space = H5Dget_space(scale);
    hsize_t length = 0;
    const bool fits = H5DSis_scale(scale) > 0 && H5Sget_simple_extent_ndims(space) == 1 &&
                      H5Sget_simple_extent_dims(space, &length, NULL) == 1 && length == n;
    kvd_h5_drop(space);
    if (fits)
        return scale;
    kvd_h5_drop(scale);
    return H5I_INVALID_HID;
}

static hid_t make_scale(kvd_h5 *f, const char *path, const char *axis, hsize_t n, kvd_err *err)
{
    /* text by which netCDF marks a dimension that has no coordinates */
    char none[80];
    (void)snprintf(none, sizeof none, "This is a netCDF dimension but not a netCDF variable.%10llu",
                   (unsigned long long)n);
    int32_t *const index = n <= indexed ? malloc((size_t)n * sizeof *index + 1) : NULL;
    if (n <= indexed && !index)
        return H5I_INVALID_HID;
    const kvd_h5_spec spec = {.type = H5T_STD_I32LE, .rank = 1, .dims = {n}};
    const hid_t space = H5Screate_simple(1, &n, NULL),
                made = index ? kvd_h5_layout(&spec, (size_t)n * sizeof *index, false)
                             : H5Pcreate(H5P_DATASET_CREATE);
    const hid_t scale =
        made < 0 || (!index && H5Pset_fill_time(made, H5D_FILL_TIME_NEVER) < 0)
            ? H5I_INVALID_HID
            : H5Dcreate2(f->id, path, H5T_STD_I32LE, space, H5P_DEFAULT, made, H5P_DEFAULT);
    for (hsize_t i = 0; index && i < n; i++)
        index[i] = (int32_t)i;
    const bool bad =
        scale < 0 ||
        (index && H5Dwrite(scale, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, index) < 0) ||
        H5DSset_scale(scale, index ? axis : none) < 0 ||
        kvd_h5_put_text(f, path, "long_name", "index along the axis", err) ||
        kvd_h5_put_text(f, path, "units", "1", err);
    free(index);
    kvd_h5_drop(space);
    kvd_h5_drop(made);
    if (!bad)
        return scale;
    kvd_h5_drop(scale);
    return H5I_INVALID_HID;
}

int kvd_h5_put_axes(kvd_h5 *f, hid_t dataset, const kvd_h5_spec *s)
{
    kvd_err ignored; /* not used, because the caller's message names the dataset */
    for (unsigned i = 0; i < (unsigned)s->rank; i++) {
        char path[96];
        (void)snprintf(path, sizeof path, "/%s", s->axes[i]);
        hid_t scale = open_scale(f, path, s->dims[i]);
        if (scale < 0 && H5Lexists(f->id, path, H5P_DEFAULT) > 0) {
            (void)snprintf(path, sizeof path, "/%s_%llu", s->axes[i],
                           (unsigned long long)s->dims[i]);
            scale = open_scale(f, path, s->dims[i]);
        }
        if (scale < 0)
            scale = make_scale(f, path, s->axes[i], s->dims[i], &ignored);
        const bool bad = scale < 0 || H5DSattach_scale(dataset, scale, i) < 0 ||
                         H5DSset_label(dataset, i, s->axes[i]) < 0;
        if (bad)
            kvd_h5_drop(scale);
        if (bad || H5Dclose(scale) < 0) /* HDF5 writes the indices when it closes the dataset. */
            return -1;
    }
    return 0;
}
