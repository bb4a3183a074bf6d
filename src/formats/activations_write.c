/* Writes kvdim/activations files: reserves disk space first, then writes tokens in any order. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "common/files/fields.h"
#include "formats/activations_internal.h"

enum { WRITE_BYTES = 1 << 19 };

static int pwrite_all(int fd, const char *from, size_t n, off_t at)
{
    while (n) {
        const ssize_t put = pwrite(fd, from, n, at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        from += put;
        at += put;
        n -= (size_t)put;
    }
    return 0;
}

/* Finds the byte position of every tensor, which must be contiguous for pwrite. */
static int locate_all(kvd_activations *a, kvd_err *err)
{
    kvd_activations_locate(a);
    for (int x = 0; x < KVD_N_X; x++)
        if (a->x[x] >= 0 && a->at[x] == UINT64_MAX)
            return kvd_fail(err, "'%s': %s has no place in the file", a->file.path, kvd_x_name[x]);
    return 0;
}

static int reserve_all(kvd_activations *a, kvd_err *err)
{
    kvd_h5 *f = &a->file;
    for (int set = 0; set < KVD_N_SETS; set++) {
        const kvd_h5_spec spec = kvd_activations_spec(a, set);
        hid_t id = H5I_INVALID_HID;
        if (!kvd_activations_has(a, set))
            continue;
        if (kvd_h5_reserve(f, &spec, &id, err) ||
            kvd_checksums_reserve(&a->checksums[set], f, &spec, err)) {
            kvd_activations_drop(&id);
            return -1;
        }
        if (set < KVD_N_X)
            a->x[set] = id;
        else if (set < KVD_SET_TOKEN)
            *(set == KVD_SET_W_O ? &a->w_o : &a->w_v) = id;
        else
            kvd_activations_drop(&id);
        const bool pre = set == KVD_X_Q_PRE || set == KVD_X_K_PRE;
        if (set < KVD_N_X && set != KVD_X_V &&
            kvd_h5_put_text(f, spec.path, "rope", kvd_model_info_rope(&a->model, pre), err))
            return -1;
    }
    return locate_all(a, err);
}

int kvd_activations_create(kvd_activations *a, const char *path, const kvd_run *run, bool have_lock,
                           kvd_err *err)
{
    kvd_h5 *f = &a->file;
    kvd_activations_forget(a);
    if (have_lock ? kvd_h5_create_locked(f, &kvd_schema_activations, err)
                  : kvd_h5_create(f, path, &kvd_schema_activations, run, err))
        return -1;
    if (kvd_model_info_write(f, &a->model, err) ||
        kvd_h5_put_text(f, "/", "label", a->label, err) ||
        kvd_field_write_corpus_hash(f, a->corpus_hash, err) ||
        kvd_h5_put_int(f, "/", "n_sequences", (int64_t)a->n_sequences, err) ||
        kvd_h5_put_int(f, "/", "seq_len", (int64_t)a->seq_len, err) ||
        kvd_h5_put_int(f, "/", "first_layer", a->first_layer, err) || reserve_all(a, err)) {
        kvd_activations_abandon(a, false);
        return -1;
    }
    return 0;
}

/* Marks checksums as unknown, because an unfinished file has no valid ones. */
static int clear_checksums(kvd_activations *a, kvd_err *err)
{
    for (int set = 0; set < KVD_N_SETS; set++) {
        kvd_checksums *const c = &a->checksums[set];
        if (!kvd_activations_has(a, set))
            continue;
        if (!c->sum)
            return kvd_fail(err, "'%s' has no checksums of %s: run without --resume",
                            a->file.output.partial, kvd_activations_path[set]);
        for (size_t l = 0; l < c->n_layers; l++)
            for (size_t h = 0; h < c->n_heads; h++)
                kvd_checksums_clear(c, l, h);
    }
    return 0;
}

int kvd_activations_reopen(kvd_activations *a, const char *path, const kvd_run *run, kvd_err *err)
{
    memset(a, 0, sizeof *a);
    kvd_activations_forget(a);
    if (kvd_h5_reopen(&a->file, path, &kvd_schema_activations, run, err))
        return -1;
    if (a->file.id >= 0 &&
        (kvd_activations_describe(a, err) || locate_all(a, err) || clear_checksums(a, err))) {
        kvd_activations_abandon(a, true);
        return -1;
    }
    return 0;
}

static int recount_head(kvd_activations *a, kvd_x x, int layer, int head, size_t n_tokens,
                        kvd_err *err)
{
    const size_t bytes = (size_t)a->model.d_head * kvd_dtype_bytes(a->dtype);
    const size_t piece = WRITE_BYTES / bytes ? WRITE_BYTES / bytes : 1;
    kvd_head_rows h = {a, (int)x, layer, head, a->x[x]};
    char *const rows = malloc(piece * bytes);
    int status = rows ? 0 : kvd_no_memory(err, "rows of a head", piece * bytes);
    for (size_t at = 0; !status && at < n_tokens; at += piece) {
        const size_t n = n_tokens - at < piece ? n_tokens - at : piece;
        if (!(status = kvd_activations_read_raw(&h, at, n, rows, err)))
            kvd_checksums_add(&a->checksums[x], (size_t)layer, (size_t)head, at, n, rows);
    }
    free(rows);
    return status;
}

int kvd_activations_recount(kvd_activations *a, size_t n_tokens, uint64_t *total, kvd_err *err)
{
    int status = 0;
    for (int x = 0; x < KVD_N_X && !status; x++) {
        const int heads = kvd_activations_heads(a, (kvd_x)x),
                  n = kvd_activations_has(a, x) ? a->n_layers * heads : 0;
#pragma omp parallel for schedule(dynamic)
        for (int i = 0; i < n; i++) {
            kvd_err mine = {""};
            if (recount_head(a, (kvd_x)x, i / heads, i % heads, n_tokens, &mine)) {
#pragma omp critical(kvd_activations_read)
                {
                    status = -1;
                    *err = mine;
                }
            }
        }
    }
    *total = kvd_activations_checksum(a);
    return status;
}

uint64_t kvd_activations_checksum(const kvd_activations *a)
{
    uint64_t total = 0;
    for (int x = 0; x < KVD_N_X; x++)
        total += (2 * (uint64_t)x + 1) * kvd_checksums_total(&a->checksums[x]);
    return total;
}

int kvd_activations_put_rows(kvd_activations *a, kvd_x x, int layer, int head, size_t first,
                             size_t n, const void *rows, kvd_err *err)
{
    assert(layer >= 0 && layer < a->n_layers && head >= 0 && head < kvd_activations_heads(a, x));
    assert(first <= a->n_tokens && n <= a->n_tokens - first && a->x[x] >= 0);
    const size_t bytes = (size_t)a->model.d_head * kvd_dtype_bytes(a->dtype);
    const size_t piece = WRITE_BYTES / bytes ? WRITE_BYTES / bytes : 1;
    for (size_t at = 0; at < n; at += piece) {
        const size_t m = n - at < piece ? n - at : piece;
        const char *const from = (const char *)rows + at * bytes;
        kvd_checksums_add(&a->checksums[x], (size_t)layer, (size_t)head, first + at, m, from);
        if (pwrite_all(a->fd, from, m * bytes,
                       kvd_activations_place(a, x, layer, head, first + at)))
            return kvd_fail_errno(err, "cannot write '%s'", a->file.path);
    }
    return 0;
}

int kvd_activations_put_tokens(kvd_activations *a, size_t first, size_t n, const uint32_t *id,
                               const uint32_t *sequence, const uint32_t *position, kvd_err *err)
{
    const uint32_t *data[N_TOKEN] = {id, sequence, position};
    const hsize_t start = first, count = n;
    for (int i = 0; i < N_TOKEN; i++) {
        const char *const path = kvd_activations_path[KVD_SET_TOKEN + i];
        hid_t dataset = H5Dopen2(a->file.id, path, H5P_DEFAULT);
        if (dataset < 0)
            return kvd_fail(err, "'%s': cannot open %s", a->file.path, path);
        if (kvd_h5_write_slab(dataset, path, 1, &start, &count, H5T_NATIVE_UINT32, data[i], err)) {
            kvd_activations_drop(&dataset);
            return kvd_in(err, "'%s'", a->file.path);
        }
        if (kvd_h5_close_dataset(&a->file, &dataset, path, err))
            return -1;
        kvd_checksums_add(&a->checksums[KVD_SET_TOKEN + i], 0, 0, first, n, data[i]);
    }
    return 0;
}

static int put_weight(kvd_activations *a, int set, int layer, const float *w, void *scratch,
                      kvd_err *err)
{
    const int n_heads = set == KVD_SET_W_O ? a->model.n_heads : a->model.n_kv_heads;
    const hid_t dataset = set == KVD_SET_W_O ? a->w_o : a->w_v;
    const char *const name = kvd_activations_path[set] + 1;
    const size_t d = (size_t)a->model.d_head, width = (size_t)a->model.d_model;
    for (int h = 0; h < n_heads; h++) {
        const float *from = w + (size_t)h * d * width;
        kvd_from_f32(a->dtype, from, scratch, d * width);
        const size_t bad = kvd_first_nonfinite(a->dtype, scratch, d * width);
        if (bad < d * width)
            return kvd_fail(err, "%s layer %d head %d row %zu: value %g does not fit into %s", name,
                            a->first_layer + layer, h, bad / width, (double)from[bad],
                            kvd_dtype_name(a->dtype));
        const hsize_t start[4] = {(hsize_t)layer, (hsize_t)h, 0, 0}, count[4] = {1, 1, d, width};
        if (kvd_h5_write_slab(dataset, name, 4, start, count, kvd_activations_type(a->dtype),
                              scratch, err))
            return kvd_in(err, "'%s'", a->file.path);
        /* Clears the checksums, because a resumed run writes the weights again. */
        kvd_checksums_clear(&a->checksums[set], (size_t)layer, (size_t)h);
        kvd_checksums_add(&a->checksums[set], (size_t)layer, (size_t)h, 0, d, scratch);
    }
    return 0;
}

int kvd_activations_put_weights(kvd_activations *a, int layer, const float *w_o, const float *w_v,
                                kvd_err *err)
{
    const size_t bytes =
        (size_t)a->model.d_head * (size_t)a->model.d_model * kvd_dtype_bytes(a->dtype);
    void *scratch = malloc(bytes);
    if (!scratch)
        return kvd_no_memory(err, "weights of a head", bytes);
    const int status = put_weight(a, KVD_SET_W_O, layer, w_o, scratch, err) ||
                       put_weight(a, KVD_SET_W_V, layer, w_v, scratch, err);
    free(scratch);
    return kvd_status(status);
}

int kvd_activations_finish(kvd_activations *a, kvd_err *err)
{
    for (int set = 0; set < KVD_N_SETS; set++)
        if (kvd_activations_has(a, set) && kvd_checksums_write(&a->checksums[set], &a->file, err))
            return -1;
    if (kvd_h5_close_dataset(&a->file, &a->w_o, kvd_activations_path[KVD_SET_W_O], err) ||
        kvd_h5_close_dataset(&a->file, &a->w_v, kvd_activations_path[KVD_SET_W_V], err))
        return -1;
    kvd_activations_release(a);
    return kvd_h5_finish(&a->file, err);
}

void kvd_activations_abandon(kvd_activations *a, bool keep_partial)
{
    kvd_activations_release(a);
    kvd_h5_close(&a->file, keep_partial);
}
