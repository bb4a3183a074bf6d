#include "common/files/checksums.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/files/fields.h"

enum { ROWS = KVD_CHECKSUM_ROWS };

static uint64_t sum_of(const kvd_checksums *c, size_t first, size_t n, const void *rows)
{
    const char *row = rows;
    uint64_t sum = 0;
    for (size_t t = first; t < first + n; t++, row += c->row_bytes)
        sum += (2 * (uint64_t)t + 1) * XXH3_64bits(row, c->row_bytes);
    return sum;
}

static uint64_t *head_sums(const kvd_checksums *c, size_t layer, size_t head)
{
    assert(layer < c->n_layers && head < c->n_heads);
    return c->sum + (layer * c->n_heads + head) * c->n_blocks;
}

void kvd_checksums_add(kvd_checksums *c, size_t layer, size_t head, size_t first, size_t n,
                       const void *rows)
{
    uint64_t *const sum = head_sums(c, layer, head);
    assert(first <= c->n_rows && n <= c->n_rows - first);
    for (size_t at = first; at < first + n;) {
        const size_t left = first + n - at, room = ROWS - at % ROWS, m = left < room ? left : room;
        const uint64_t part = sum_of(c, at, m, (const char *)rows + (at - first) * c->row_bytes);
        __atomic_fetch_add(&sum[at / ROWS], part, __ATOMIC_RELAXED);
        at += m;
    }
}

void kvd_checksums_clear(kvd_checksums *c, size_t layer, size_t head)
{
    memset(head_sums(c, layer, head), 0, c->n_blocks * sizeof *c->sum);
}

uint64_t kvd_checksums_total(const kvd_checksums *c)
{
    uint64_t total = 0;
    const size_t n = c->sum ? c->n_layers * c->n_heads * c->n_blocks : 0;
    for (size_t i = 0; i < n; i++)
        total += (2 * (uint64_t)i + 1) * c->sum[i];
    return total;
}

static void describe(kvd_checksums *c, const kvd_h5_spec *data)
{
    assert(data->rank == 1 || data->rank == 4);
    assert(strlen(data->path) < sizeof c->path);
    *c = (kvd_checksums){.by_head = data->rank == 4, .n_layers = 1, .n_heads = 1};
    (void)snprintf(c->path, sizeof c->path, "%s", data->path);
    c->row_bytes = H5Tget_size(data->type);
    if (c->by_head) {
        c->n_layers = (size_t)data->dims[0];
        c->n_heads = (size_t)data->dims[1];
        c->row_bytes *= (size_t)data->dims[3];
    }
    c->row_name = data->axes[c->by_head ? 2 : 0];
    c->n_rows = (size_t)data->dims[c->by_head ? 2 : 0];
    c->n_blocks = c->n_rows / ROWS + (c->n_rows % ROWS > 0);
}

static int allocate(kvd_checksums *c, kvd_err *err)
{
    size_t n;
    if (__builtin_mul_overflow(c->n_layers, c->n_heads, &n) ||
        __builtin_mul_overflow(n, c->n_blocks, &n))
        return kvd_fail(err, "checksums of %zu rows of %zu heads are too many", c->n_rows,
                        c->n_heads);
    c->sum = calloc(n ? n : 1, sizeof *c->sum);
    return c->sum ? 0 : kvd_no_memory(err, "checksums", (unsigned long long)n * sizeof *c->sum);
}

static int shape(const kvd_checksums *c, char path[64], hsize_t *dims)
{
    int rank = 0;
    (void)snprintf(path, 64, "/checksums%s", c->path);
    if (c->by_head) {
        dims[rank++] = c->n_layers;
        dims[rank++] = c->n_heads;
    }
    dims[rank++] = c->n_blocks;
    return rank;
}

int kvd_checksums_reserve(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err)
{
    char path[64];
    hid_t dataset = H5I_INVALID_HID;
    describe(c, data);
    if (allocate(c, err))
        return -1;
    kvd_h5_spec spec = {.path = path,
                        .long_name =
                            "checksums of 64 rows each (docs/formats.md says how they are made)",
                        .units = "1",
                        .type = H5T_STD_U64LE,
                        .axes = {"block"}};
    spec.rank = shape(c, path, spec.dims);
    if (c->by_head) {
        spec.axes[0] = data->axes[0];
        spec.axes[1] = data->axes[1];
        spec.axes[2] = "block";
    }
    if (kvd_h5_reserve(f, &spec, &dataset, err))
        return -1;
    (void)H5Idec_ref(dataset);
    return 0;
}

int kvd_checksums_load(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err)
{
    char path[64];
    hsize_t dims[3];
    describe(c, data);
    const int rank = shape(c, path, dims);
    if (!kvd_h5_exists(f, path))
        return 0;
    return kvd_status(kvd_field_shape(f, path, rank, dims, err) || allocate(c, err) ||
                      kvd_h5_read(f, path, rank, dims, H5T_NATIVE_UINT64, c->sum, err));
}

int kvd_checksums_write(const kvd_checksums *c, kvd_h5 *f, kvd_err *err)
{
    char path[64];
    hsize_t dims[3];
    const hsize_t start[3] = {0};
    const int rank = shape(c, path, dims);
    hid_t dataset = H5Dopen2(f->id, path, H5P_DEFAULT);
    if (dataset < 0)
        return kvd_fail(err, "'%s': cannot open %s", f->path, path);
    if (kvd_h5_write_slab(dataset, path, rank, start, dims, H5T_NATIVE_UINT64, c->sum, err)) {
        (void)H5Idec_ref(dataset);
        return kvd_in(err, "'%s'", f->path);
    }
    return kvd_h5_close_dataset(f, &dataset, path, err);
}

void kvd_checksums_release(kvd_checksums *c)
{
    free(c->sum);
    *c = (kvd_checksums){.sum = NULL};
}

static int fail_block(const kvd_checksums *c, const char *file, size_t layer, size_t head,
                      size_t start, size_t end, kvd_err *err)
{
    char where[64] = "";
    if (c->by_head)
        (void)snprintf(where, sizeof where, " layer %zu head %zu", layer, head);
    return kvd_fail(
        err,
        "'%s' is damaged: %s%s %ss %zu to %zu do not match their checksum; copy or make the file "
        "again",
        file, c->path, where, c->row_name, start, end - 1);
}

int kvd_checksums_verify(const kvd_checksums *c, const char *file, size_t layer, size_t head,
                         size_t first, size_t n, const void *rows, kvd_row_reader reader, void *ctx,
                         kvd_err *err)
{
    if (!c->sum || !n)
        return 0;
    assert(first <= c->n_rows && n <= c->n_rows - first);
    const uint64_t *const sum = head_sums(c, layer, head);
    const size_t last = (first + n - 1) / ROWS, from = first / ROWS * ROWS;
    const size_t end = (last + 1) * ROWS < c->n_rows ? (last + 1) * ROWS : c->n_rows;
    const size_t before = first - from, after = end - first - n,
                 most = before > after ? before : after;
    char *const other = most ? malloc(most * c->row_bytes) : NULL;
    if (most && !other)
        return kvd_no_memory(err, "rows of a checksum", most * c->row_bytes);
    int status = 0;
    for (size_t start = from; !status && start < end; start += ROWS) {
        const size_t stop = start + ROWS < end ? start + ROWS : end;
        const size_t lo = start < first ? first : start, hi = stop < first + n ? stop : first + n;
        uint64_t found = sum_of(c, lo, hi - lo, (const char *)rows + (lo - first) * c->row_bytes);
        if (lo > start && !(status = reader(ctx, start, lo - start, other, err)))
            found += sum_of(c, start, lo - start, other);
        if (!status && hi < stop && !(status = reader(ctx, hi, stop - hi, other, err)))
            found += sum_of(c, hi, stop - hi, other);
        if (!status && found != sum[start / ROWS])
            status = fail_block(c, file, layer, head, start, stop, err);
    }
    free(other);
    return kvd_status(status);
}
