#include "formats/fisher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_fisher = {
    "fisher", 1, "Squared gradients of the loss with respect to K, V and their weights"};

static const struct {
    const char *path, *long_name;
} sums[KVD_N_F] = {
    {"/gradient2/k",
     "sum over tokens of the squared gradient of the loss with respect to k, after RoPE"},
    {"/gradient2/k_pre",
     "sum over tokens of the squared gradient of the loss with respect to k, before RoPE"},
    {"/gradient2/v", "sum over tokens of the squared gradient of the loss with respect to v"},
};
static const struct {
    const char *path, *long_name;
} weights[KVD_F_SIDES] =
    {
        {"/gradient2/w_k",
         "sum over sequences and elements of W_K of a head of the squared gradient"},
        {"/gradient2/w_v",
         "sum over sequences and elements of W_V of a head of the squared gradient"},
},
  roots[KVD_F_SIDES] =
      {
          {"/rms/w_k",
           "mean over elements of W_K of a head of the root mean square over sequences of the gradient"},
          {"/rms/w_v",
           "mean over elements of W_V of a head of the root mean square over sequences of the gradient"},
},
  rows_of[KVD_F_SIDES] = {
      {"/tokens/k_pre", "squared gradient of the loss with respect to k, before RoPE"},
      {"/tokens/v", "squared gradient of the loss with respect to v"},
};

static const struct {
    const char *path, *long_name;
} moments[KVD_F_SIDES] = {
    {"/moment/k_pre",
     "sum over tokens of products of the gradient with respect to k of all KV heads, before RoPE"},
    {"/moment/v", "sum over tokens of products of the gradient with respect to v of all KV heads"},
};

static size_t heads_of(const kvd_fisher *f)
{
    return (size_t)f->n_layers * (size_t)f->model.n_kv_heads;
}

static size_t moments_of(const kvd_fisher *f)
{
    const size_t wide = (size_t)f->model.n_kv_heads * (size_t)f->model.d_head;
    return (size_t)f->n_layers * wide * wide;
}

static void set_moment_dims(const kvd_fisher *f, hsize_t *dims)
{
    dims[0] = (hsize_t)f->n_layers;
    dims[1] = dims[2] = (hsize_t)f->model.n_kv_heads * (hsize_t)f->model.d_head;
}

static int allocate(kvd_fisher *f, kvd_err *err)
{
    const size_t heads = heads_of(f), d = (size_t)f->model.d_head;
    bool good = true;
    for (int i = 0; i < KVD_N_F; i++)
        good = (f->sum[i] = calloc(heads * d, sizeof(double))) && good;
    for (int side = 0; side < KVD_F_SIDES; side++) {
        good = (f->weight[side] = calloc(heads, sizeof(double))) && good;
        good = (f->root[side] = calloc(heads, sizeof(double))) && good;
        good = (f->moment[side] = calloc(moments_of(f), sizeof(double))) && good;
    }
    return good ? 0
                : kvd_no_memory(err, "squared gradients",
                                (2 * moments_of(f) + heads * (KVD_N_F * d + 4)) * sizeof(double));
}

static void set_dims(const kvd_fisher *f, hsize_t *dims)
{
    dims[0] = (hsize_t)f->n_layers;
    dims[1] = (hsize_t)f->model.n_kv_heads;
    dims[2] = (hsize_t)f->n_rows;
    dims[3] = (hsize_t)f->model.d_head;
}

static kvd_h5_spec rows_spec(const kvd_fisher *f, int side)
{
    kvd_h5_spec spec = {.path = rows_of[side].path,
                        .long_name = rows_of[side].long_name,
                        .units = "1",
                        .type = H5T_IEEE_F32LE,
                        .rank = 4,
                        .axes = {"layer", "kv_head", "token", "dim"}};
    set_dims(f, spec.dims);
    return spec;
}

static void close_rows(kvd_fisher *f)
{
    for (int side = 0; side < KVD_F_SIDES; side++) {
        if (f->row[side] > 0)
            H5Dclose(f->row[side]);
        f->row[side] = H5I_INVALID_HID;
        kvd_checksums_release(&f->checksums[side]);
    }
}

void kvd_fisher_close(kvd_fisher *f)
{
    close_rows(f);
    if (f->file.path)
        kvd_h5_close(&f->file, false);
    for (int i = 0; i < KVD_N_F; i++)
        free(f->sum[i]);
    for (int side = 0; side < KVD_F_SIDES; side++) {
        free(f->weight[side]);
        free(f->root[side]);
        free(f->moment[side]);
    }
    memset(f, 0, sizeof *f);
}

static int describe(kvd_fisher *f, kvd_err *err)
{
    kvd_h5 *const h = &f->file;
    hsize_t dims[4];
    if (kvd_model_info_read(h, &f->model, err) ||
        kvd_field_text(h, "/", "label", f->label, sizeof f->label, err) ||
        kvd_field_corpus_hash(h, f->corpus_hash, err) ||
        kvd_field_size(h, "/", "n_tokens", 2, (size_t)1 << 60, &f->n_tokens, err) ||
        kvd_field_size(h, "/", "n_sequences", 1, f->n_tokens / 2, &f->n_sequences, err) ||
        kvd_field_size(h, "/", "seq_len", 2, (size_t)f->model.max_positions, &f->seq_len, err) ||
        kvd_field_layers(h, sums[KVD_F_K].path, 3, f->model.n_layers, &f->n_layers, err) ||
        kvd_field_small(h, "/", "first_layer", 0, f->model.n_layers - f->n_layers, &f->first_layer,
                        err) ||
        kvd_h5_read(h, "/loss", 0, NULL, H5T_NATIVE_DOUBLE, &f->loss, err))
        return -1;
    f->n_predicted = f->n_tokens - f->n_sequences;
    if (!kvd_h5_exists(h, rows_of[0].path))
        return 0;
    if (kvd_h5_shape(h, rows_of[0].path, 4, dims, err))
        return -1;
    if (dims[2] > f->n_tokens)
        return kvd_fail(err, "'%s': %s has %llu tokens of %zu", h->path, rows_of[0].path,
                        (unsigned long long)dims[2], f->n_tokens);
    f->n_rows = (size_t)dims[2];
    set_dims(f, dims);
    return kvd_status(kvd_field_shape(h, rows_of[0].path, 4, dims, err) ||
                      kvd_field_shape(h, rows_of[1].path, 4, dims, err));
}

static int read_sums(kvd_h5 *h, const char *path, int rank, const hsize_t *dims, double *to,
                     kvd_err *err)
{
    size_t n = 1;
    if (kvd_h5_read_finite(h, path, rank, dims, to, err))
        return -1;
    for (int i = 0; i < rank; i++)
        n *= (size_t)dims[i];
    for (size_t i = 0; i < n; i++)
        if (to[i] < 0)
            return kvd_fail(err, "'%s': %s: number %zu is %g, below 0", h->path, path, i, to[i]);
    return 0;
}

static int read_all(kvd_fisher *f, kvd_err *err)
{
    hsize_t dims[4];
    set_dims(f, dims);
    dims[2] = dims[3];
    for (int i = 0; i < KVD_N_F; i++)
        if (kvd_field_shape(&f->file, sums[i].path, 3, dims, err))
            return -1;
    if (allocate(f, err))
        return -1;
    for (int i = 0; i < KVD_N_F; i++)
        if (read_sums(&f->file, sums[i].path, 3, dims, f->sum[i], err))
            return -1;
    for (int side = 0; side < KVD_F_SIDES; side++)
        if (read_sums(&f->file, weights[side].path, 2, dims, f->weight[side], err) ||
            read_sums(&f->file, roots[side].path, 2, dims, f->root[side], err))
            return -1;
    set_moment_dims(f, dims);
    for (int side = 0; side < KVD_F_SIDES; side++)
        if (!kvd_h5_exists(&f->file, moments[side].path)) {
            free(f->moment[side]);
            f->moment[side] = NULL;
        } else if (kvd_field_shape(&f->file, moments[side].path, 3, dims, err) ||
                   kvd_h5_read_finite(&f->file, moments[side].path, 3, dims, f->moment[side],
                                      err)) {
            return -1;
        }
    for (int side = 0; f->n_rows && side < KVD_F_SIDES; side++) {
        const kvd_h5_spec spec = rows_spec(f, side);
        if ((f->row[side] = H5Dopen2(f->file.id, spec.path, H5P_DEFAULT)) < 0)
            return kvd_fail(err, "'%s': cannot open %s", f->file.path, spec.path);
        if (kvd_h5_check_stored(f->row[side], f->file.path, spec.path, err) ||
            kvd_checksums_load(&f->checksums[side], &f->file, &spec, err))
            return -1;
    }
    return 0;
}

int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err)
{
    memset(f, 0, sizeof *f);
    f->row[0] = f->row[1] = H5I_INVALID_HID;
    if (kvd_h5_open(&f->file, path, &kvd_schema_fisher, err))
        return -1;
    if (describe(f, err) || read_all(f, err)) {
        kvd_fisher_close(f);
        return -1;
    }
    return 0;
}

typedef struct {
    kvd_fisher *f;
    int side, layer, kv_head;
} head_rows;

static int read_rows(void *ctx, size_t first, size_t n, void *rows, kvd_err *err)
{
    const head_rows *const h = ctx;
    const hsize_t start[] = {(hsize_t)h->layer, (hsize_t)h->kv_head, (hsize_t)first, 0},
                  count[] = {1, 1, (hsize_t)n, (hsize_t)h->f->model.d_head};
    return kvd_h5_read_slab(h->f->row[h->side], rows_of[h->side].path, 4, start, count,
                            H5T_NATIVE_FLOAT, rows, err)
               ? kvd_in(err, "'%s'", h->f->file.path)
               : 0;
}

int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err)
{
    const size_t d = (size_t)f->model.d_head;
    head_rows h = {f, side, layer, kv_head};
    if (first + n > f->n_rows)
        return kvd_fail(err, "'%s' has squared gradients of %zu tokens one by one, %zu are wanted",
                        f->file.path, f->n_rows, first + n);
    if (read_rows(&h, first, n, rows, err) ||
        kvd_checksums_verify(&f->checksums[side], f->file.path, (size_t)layer, (size_t)kv_head,
                             first, n, rows, read_rows, &h, err))
        return -1;
    for (size_t i = 0; i < n * d; i++)
        if (!(rows[i] >= 0 && isfinite(rows[i])))
            return kvd_fail(err, "'%s': %s[%d][%d][%zu][%zu] is %g, no squared gradient",
                            f->file.path, rows_of[side].path, layer, kv_head, first + i / d, i % d,
                            (double)rows[i]);
    return 0;
}

int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err)
{
    f->row[0] = f->row[1] = H5I_INVALID_HID;
    f->n_rows = f->n_rows < f->n_tokens ? f->n_rows : f->n_tokens;
    if (allocate(f, err) || kvd_h5_create(&f->file, path, &kvd_schema_fisher, run, err))
        return -1;
    for (int side = 0; f->n_rows && side < KVD_F_SIDES; side++) {
        const kvd_h5_spec spec = rows_spec(f, side);
        if (kvd_h5_reserve(&f->file, &spec, &f->row[side], err) ||
            kvd_checksums_reserve(&f->checksums[side], &f->file, &spec, err))
            return -1;
    }
    return 0;
}

int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err)
{
    const hsize_t start[] = {(hsize_t)layer, 0, (hsize_t)first, 0},
                  count[] = {1, (hsize_t)f->model.n_kv_heads, (hsize_t)n, (hsize_t)f->model.d_head};
    const size_t values = n * (size_t)f->model.d_head;
    for (int h = 0; h < f->model.n_kv_heads; h++)
        kvd_checksums_add(&f->checksums[side], (size_t)layer, (size_t)h, first, n,
                          rows + (size_t)h * values);
    return kvd_h5_write_slab(f->row[side], rows_of[side].path, 4, start, count, H5T_NATIVE_FLOAT,
                             rows, err)
               ? kvd_in(err, "'%s'", f->file.path)
               : 0;
}

static int write_sums(kvd_fisher *f, const char *path, const char *long_name, int rank,
                      const double *x, kvd_err *err)
{
    const kvd_h5_spec spec = {
        .path = path,
        .long_name = long_name,
        .units = "1",
        .type = H5T_IEEE_F64LE,
        .rank = rank,
        .dims = {(hsize_t)f->n_layers, (hsize_t)f->model.n_kv_heads, (hsize_t)f->model.d_head},
        .axes = {"layer", "kv_head", "dim"}};
    return kvd_h5_write(&f->file, &spec, H5T_NATIVE_DOUBLE, x, err);
}

int kvd_fisher_finish(kvd_fisher *f, kvd_err *err)
{
    kvd_h5 *const h = &f->file;
    const kvd_h5_spec loss = {
        .path = "/loss",
        .long_name = "sum over all rows but the last of each sequence of -log p(next token)",
        .units = "nat",
        .type = H5T_IEEE_F64LE,
        .rank = 0};
    for (int side = 0; f->n_rows && side < KVD_F_SIDES; side++)
        if (kvd_checksums_write(&f->checksums[side], h, err) ||
            kvd_h5_close_dataset(h, &f->row[side], rows_of[side].path, err))
            return -1;
    close_rows(f);
    if (kvd_model_info_write(h, &f->model, err) ||
        kvd_h5_put_text(h, "/", "label", f->label, err) ||
        kvd_field_write_corpus_hash(h, f->corpus_hash, err) ||
        kvd_h5_put_int(h, "/", "n_tokens", (int64_t)f->n_tokens, err) ||
        kvd_h5_put_int(h, "/", "n_sequences", (int64_t)f->n_sequences, err) ||
        kvd_h5_put_int(h, "/", "seq_len", (int64_t)f->seq_len, err) ||
        kvd_h5_put_int(h, "/", "first_layer", f->first_layer, err) ||
        kvd_h5_write(h, &loss, H5T_NATIVE_DOUBLE, &f->loss, err))
        return -1;
    for (int i = 0; i < KVD_N_F; i++)
        if (write_sums(f, sums[i].path, sums[i].long_name, 3, f->sum[i], err))
            return -1;
    for (int side = 0; side < KVD_F_SIDES; side++)
        if (write_sums(f, weights[side].path, weights[side].long_name, 2, f->weight[side], err) ||
            write_sums(f, roots[side].path, roots[side].long_name, 2, f->root[side], err))
            return -1;
    for (int side = 0; side < KVD_F_SIDES; side++) {
        kvd_h5_spec spec = {.path = moments[side].path,
                            .long_name = moments[side].long_name,
                            .units = "1",
                            .type = H5T_IEEE_F64LE,
                            .rank = 3,
                            .axes = {"layer", "wide", "wide"}};
        set_moment_dims(f, spec.dims);
        if (kvd_h5_write(h, &spec, H5T_NATIVE_DOUBLE, f->moment[side], err))
            return -1;
    }
    return kvd_h5_finish(h, err);
}
