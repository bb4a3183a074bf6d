#include "formats/activations_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "common/files/fields.h"

const kvd_schema kvd_schema_activations = {
    "activations", 1, "Q, K and V of every token, with the weights W_O and W_V"};

const char *const kvd_x_name[KVD_N_X] = {"q", "k", "v", "q_pre", "k_pre"};

const char *const kvd_activations_path[KVD_N_SETS] = {
    "/q",   "/k",   "/v",         "/q_pre",           "/k_pre",
    "/w_o", "/w_v", "/tokens/id", "/tokens/sequence", "/tokens/position"};
static const char *const set_long_name[KVD_N_SETS] = {
    "queries after RoPE",
    "keys after RoPE",
    "values",
    "queries before RoPE",
    "keys before RoPE",
    "output projection of a head, rows are dimensions of the head",
    "value projection of a head, rows are dimensions of the head",
    "token id",
    "index of the sequence of the token",
    "position of the token in its sequence"};

hid_t kvd_activations_type(kvd_dtype t)
{
    return t == KVD_F32 ? H5T_IEEE_F32LE : t == KVD_F16 ? kvd_h5_type_f16() : kvd_h5_type_bf16();
}

bool kvd_activations_has(const kvd_activations *a, int set)
{
    return a->has_pre || (set != KVD_X_Q_PRE && set != KVD_X_K_PRE);
}

int kvd_activations_heads(const kvd_activations *a, kvd_x x)
{
    return x == KVD_X_Q || x == KVD_X_Q_PRE ? a->model.n_heads : a->model.n_kv_heads;
}

kvd_h5_spec kvd_activations_spec(const kvd_activations *a, int set)
{
    kvd_h5_spec s = {
        .path = kvd_activations_path[set], .long_name = set_long_name[set], .units = "1"};
    if (set >= KVD_SET_TOKEN) {
        s.type = H5T_STD_U32LE;
        s.rank = 1;
        s.dims[0] = a->n_tokens;
        s.axes[0] = "token";
        return s;
    }
    const bool tensor = set < KVD_N_X;
    const bool query = set == KVD_X_Q || set == KVD_X_Q_PRE || set == KVD_SET_W_O;
    s.type = kvd_activations_type(a->dtype);
    s.rank = 4;
    s.dims[0] = (hsize_t)a->n_layers;
    s.dims[1] = (hsize_t)(query ? a->model.n_heads : a->model.n_kv_heads);
    s.dims[2] = tensor ? a->n_tokens : (hsize_t)a->model.d_head;
    s.dims[3] = (hsize_t)(tensor ? a->model.d_head : a->model.d_model);
    s.axes[0] = "layer";
    s.axes[1] = query ? "head" : "kv_head";
    s.axes[2] = tensor ? "token" : "dim";
    s.axes[3] = tensor ? "dim" : "d_model";
    return s;
}

void kvd_activations_drop(hid_t *id)
{
    if (*id > 0)
        H5Idec_ref(*id);
    *id = H5I_INVALID_HID;
}

void kvd_activations_forget(kvd_activations *a)
{
    for (int x = 0; x < KVD_N_X; x++) {
        a->x[x] = H5I_INVALID_HID;
        a->at[x] = UINT64_MAX;
    }
    a->fd = -1;
    a->w_o = a->w_v = H5I_INVALID_HID;
    memset(a->checksums, 0, sizeof a->checksums);
}

void kvd_activations_release(kvd_activations *a)
{
    for (int x = 0; x < KVD_N_X; x++)
        kvd_activations_drop(&a->x[x]);
    kvd_activations_drop(&a->w_o);
    kvd_activations_drop(&a->w_v);
    for (int i = 0; i < KVD_N_SETS; i++)
        kvd_checksums_release(&a->checksums[i]);
}

/* Finds the byte positions of datasets, so that several threads can read them with pread instead of
 * HDF5. */
void kvd_activations_locate(kvd_activations *a)
{
    void *handle = NULL;
    if (H5Fget_vfd_handle(a->file.id, H5P_DEFAULT, &handle) < 0 || !handle)
        return;
    a->fd = *(const int *)handle;
    for (int x = 0; x < KVD_N_X; x++) {
        if (a->x[x] < 0 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
            continue;
        const kvd_h5_spec s = kvd_activations_spec(a, x);
        const haddr_t at = H5Dget_offset(a->x[x]);
        if (at != HADDR_UNDEF && H5Dget_storage_size(a->x[x]) == s.dims[0] * s.dims[1] * s.dims[2] *
                                                                     s.dims[3] *
                                                                     kvd_dtype_bytes(a->dtype))
            a->at[x] = at;
    }
}

off_t kvd_activations_place(const kvd_activations *a, kvd_x x, int layer, int head, size_t first)
{
    const size_t heads = (size_t)kvd_activations_heads(a, x);
    const size_t row = ((size_t)layer * heads + (size_t)head) * a->n_tokens + first;
    return (off_t)(a->at[x] + row * (size_t)a->model.d_head * kvd_dtype_bytes(a->dtype));
}

/* Reads n bytes. On failure errno is 0 if the file is too short. */
static int pread_all(int fd, char *to, size_t n, off_t at)
{
    while (n) {
        const ssize_t got = pread(fd, to, n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got ? errno : 0;
            return -1;
        }
        to += got;
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

int kvd_activations_read_raw(void *ctx, size_t first, size_t n, void *rows, kvd_err *err)
{
    const kvd_head_rows *const h = ctx;
    const kvd_activations *const a = h->a;
    const kvd_h5_spec s = kvd_activations_spec(a, h->set);
    if (h->set < KVD_N_X && a->at[h->set] != UINT64_MAX) {
        const size_t bytes = n * (size_t)s.dims[3] * kvd_dtype_bytes(a->dtype);
        if (!pread_all(a->fd, rows, bytes,
                       kvd_activations_place(a, (kvd_x)h->set, h->layer, h->head, first)))
            return 0;
        return errno ? kvd_fail_errno(err, "cannot read '%s'", a->file.path)
                     : kvd_fail(err, "'%s' is cut short within %s", a->file.path, s.path);
    }
    const hsize_t start[4] = {(hsize_t)h->layer, (hsize_t)h->head, first, 0},
                  count[4] = {1, 1, n, s.dims[3]};
    /* A dataset of rank 1 lacks the first two axes: layer and head. */
    const int skip = s.rank == 1 ? 2 : 0;
    return kvd_h5_read_slab(h->dataset, s.path, s.rank, start + skip, count + skip, s.type, rows,
                            err)
               ? kvd_in(err, "'%s'", a->file.path)
               : 0;
}

static int read_checked(kvd_head_rows *h, size_t first, size_t n, void *rows, kvd_err *err)
{
    return kvd_status(kvd_activations_read_raw(h, first, n, rows, err) ||
                      kvd_checksums_verify(&h->a->checksums[h->set], h->a->file.path,
                                           (size_t)h->layer, (size_t)h->head, first, n, rows,
                                           kvd_activations_read_raw, h, err));
}

/* Opens a dataset. If *dtype is -1, sets *dtype to the number type of the dataset; otherwise fails
 * if the dataset has another type. */
static int open_checked(kvd_activations *a, int set, int *dtype, hid_t *id, kvd_err *err)
{
    const char *const path = kvd_activations_path[set];
    const kvd_h5_spec spec = kvd_activations_spec(a, set);
    if (kvd_field_shape(&a->file, path, 4, spec.dims, err))
        return -1;
    if ((*id = H5Dopen2(a->file.id, path, H5P_DEFAULT)) < 0)
        return kvd_fail(err, "'%s': cannot open %s", a->file.path, path);
    const hid_t type = H5Dget_type(*id);
    int found = -1;
    for (int t = KVD_F32; t <= KVD_BF16 && type >= 0; t++)
        if (H5Tequal(type, kvd_activations_type((kvd_dtype)t)) > 0)
            found = t;
    if (type >= 0)
        H5Tclose(type);
    if (found < 0)
        return kvd_fail(err, "'%s': %s is not float32, float16 or bfloat16", a->file.path, path);
    if (*dtype >= 0 && found != *dtype)
        return kvd_fail(err, "'%s': %s is %s, /q is %s", a->file.path, path,
                        kvd_dtype_name((kvd_dtype)found), kvd_dtype_name((kvd_dtype)*dtype));
    *dtype = found;
    return kvd_h5_check_stored(*id, a->file.path, path, err);
}

int kvd_activations_describe(kvd_activations *a, kvd_err *err)
{
    kvd_h5 *f = &a->file;
    hsize_t n_tokens;
    if (kvd_model_info_read(f, &a->model, err) ||
        kvd_field_text(f, "/", "label", a->label, sizeof a->label, err) ||
        kvd_field_corpus_hash(f, a->corpus_hash, err) ||
        kvd_h5_shape(f, kvd_activations_path[KVD_SET_TOKEN + TOKEN_ID], 1, &n_tokens, err))
        return -1;
    if (n_tokens < 1 || n_tokens > SIZE_MAX / 8)
        return kvd_fail(err, "'%s': %llu tokens", f->path, (unsigned long long)n_tokens);
    a->n_tokens = (size_t)n_tokens;
    if (kvd_field_layers(f, "/q", 4, a->model.n_layers, &a->n_layers, err) ||
        kvd_field_small(f, "/", "first_layer", 0, a->model.n_layers - a->n_layers, &a->first_layer,
                        err) ||
        kvd_field_size(f, "/", "n_sequences", 1, a->n_tokens, &a->n_sequences, err) ||
        kvd_field_size(f, "/", "seq_len", 1, (size_t)a->model.max_positions, &a->seq_len, err))
        return -1;
    a->has_pre = kvd_h5_exists(f, "/q_pre") || kvd_h5_exists(f, "/k_pre");
    for (int i = TOKEN_SEQUENCE; i < N_TOKEN; i++)
        if (kvd_field_shape(f, kvd_activations_path[KVD_SET_TOKEN + i], 1, &n_tokens, err))
            return -1;
    int dtype = -1;
    for (int set = 0; set < KVD_SET_TOKEN; set++) {
        hid_t *const id = set < KVD_N_X ? &a->x[set] : set == KVD_SET_W_O ? &a->w_o : &a->w_v;
        if (kvd_activations_has(a, set) && open_checked(a, set, &dtype, id, err))
            return -1;
    }
    a->dtype = (kvd_dtype)dtype;
    for (int set = 0; set < KVD_N_SETS; set++) {
        const kvd_h5_spec spec = kvd_activations_spec(a, set);
        if (kvd_activations_has(a, set) && kvd_checksums_load(&a->checksums[set], f, &spec, err))
            return -1;
    }
    kvd_activations_locate(a);
    return 0;
}

static int check_tokens(kvd_activations *a, kvd_err *err)
{
    enum { BLOCK = 1 << 16 };
    kvd_h5 *f = &a->file;
    hid_t d[N_TOKEN] = {H5I_INVALID_HID, H5I_INVALID_HID, H5I_INVALID_HID};
    uint32_t *value = malloc(N_TOKEN * BLOCK * sizeof *value);
    /* sequence and position that the next token in the file must have, unless the token begins a
     * new sequence */
    uint64_t sequence = 0, position = 0;
    int status = -1;
    if (!value) {
        kvd_no_memory(err, "tokens", N_TOKEN * BLOCK * sizeof *value);
        goto done;
    }
    for (int k = 0; k < N_TOKEN; k++) {
        const char *const path = kvd_activations_path[KVD_SET_TOKEN + k];
        if ((d[k] = H5Dopen2(f->id, path, H5P_DEFAULT)) < 0) {
            kvd_fail(err, "'%s': cannot open %s", f->path, path);
            goto done;
        }
        if (kvd_h5_check_stored(d[k], f->path, path, err))
            goto done;
    }
    for (hsize_t at = 0; at < a->n_tokens; at += BLOCK) {
        const hsize_t n = a->n_tokens - at < BLOCK ? a->n_tokens - at : BLOCK;
        for (int k = 0; k < N_TOKEN; k++) {
            kvd_head_rows h = {.a = a, .set = KVD_SET_TOKEN + k, .dataset = d[k]};
            if (read_checked(&h, at, n, value + k * BLOCK, err))
                goto done;
        }
        for (size_t i = 0; i < n; i++) {
            const uint32_t id = value[TOKEN_ID * BLOCK + i], s = value[TOKEN_SEQUENCE * BLOCK + i],
                           p = value[TOKEN_POSITION * BLOCK + i];
            if (position && s == sequence + 1) {
                sequence++;
                position = 0;
            }
            if (s != sequence || p != position || position == a->seq_len) {
                kvd_fail(
                    err,
                    "'%s': token %llu is sequence %lu, position %lu; %llu, %llu come next, with seq_len %zu",
                    f->path, (unsigned long long)(at + i), (unsigned long)s, (unsigned long)p,
                    (unsigned long long)sequence, (unsigned long long)position, a->seq_len);
                goto done;
            }
            if (id >= (uint32_t)a->model.vocab_size) {
                kvd_fail(err, "'%s': token %llu has id %lu, the vocabulary %d", f->path,
                         (unsigned long long)(at + i), (unsigned long)id, a->model.vocab_size);
                goto done;
            }
            position++;
        }
    }
    if (sequence + 1 != a->n_sequences) {
        kvd_fail(err, "'%s': attribute n_sequences of / is %zu, the tokens are in %llu", f->path,
                 a->n_sequences, (unsigned long long)sequence + 1);
        goto done;
    }
    status = 0;
done:
    for (int k = 0; k < N_TOKEN; k++)
        kvd_activations_drop(&d[k]);
    free(value);
    return status;
}

int kvd_activations_open(kvd_activations *a, const char *path, kvd_err *err)
{
    memset(a, 0, sizeof *a);
    kvd_activations_forget(a);
    if (kvd_h5_open(&a->file, path, &kvd_schema_activations, err))
        return -1;
    if (kvd_activations_describe(a, err) || check_tokens(a, err)) {
        kvd_activations_close(a);
        return -1;
    }
    return 0;
}

void kvd_activations_close(kvd_activations *a)
{
    kvd_activations_abandon(a, false);
}

static size_t convert(kvd_dtype t, const char *raw, float *to, size_t n)
{
    enum { BLOCK = 4096 };
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        const char *from = raw + at * kvd_dtype_bytes(t);
        const size_t bad = kvd_first_nonfinite(t, from, m);
        if (bad < m)
            return at + bad;
        if (t != KVD_F32)
            kvd_to_f32(t, from, to + at, m);
    }
    return n;
}

static int read_floats(kvd_head_rows *h, size_t first, size_t n, size_t width, float *rows,
                       void *scratch, kvd_err *err)
{
    const kvd_activations *const a = h->a;
    void *const raw = a->dtype == KVD_F32 ? (void *)rows : scratch;
    if (read_checked(h, first, n, raw, err))
        return -1;
    const size_t bad = convert(a->dtype, raw, rows, n * width);
    if (bad < n * width)
        return kvd_fail(err, "'%s': %s layer %d head %d %s %zu dim %zu is not finite", a->file.path,
                        kvd_activations_path[h->set] + 1, h->layer, h->head,
                        h->set < KVD_N_X ? "token" : "row", first + bad / width, bad % width);
    return 0;
}

int kvd_activations_rows(kvd_activations *a, kvd_x x, int layer, int head, size_t first, size_t n,
                         float *rows, void *scratch, kvd_err *err)
{
    /* number of bytes that a thread reads at a time, small enough for the cache of a core */
    enum { PIECE_BYTES = 1 << 16 };
    assert(layer >= 0 && layer < a->n_layers && head >= 0 && head < kvd_activations_heads(a, x));
    assert(first <= a->n_tokens && n <= a->n_tokens - first && a->x[x] >= 0);
    assert(scratch || a->dtype == KVD_F32);
    const size_t width = (size_t)a->model.d_head, bytes = width * kvd_dtype_bytes(a->dtype);
    /* number of blocks that a thread reads at a time; a block is KVD_CHECKSUM_ROWS tokens, which
     * have one checksum */
    const size_t blocks = PIECE_BYTES / bytes / KVD_CHECKSUM_ROWS;
    const size_t piece = (blocks ? blocks : 1) * KVD_CHECKSUM_ROWS;
    const size_t from = first / piece, to = n ? (first + n - 1) / piece + 1 : from;
    /* index of the first piece of the file that could not be read, or `to` if all could */
    size_t failed = to;
#pragma omp parallel for schedule(static) if (a->at[x] != UINT64_MAX && to - from >= 8)
    for (size_t p = from; p < to; p++) {
        const size_t lo = p * piece < first ? first : p * piece;
        const size_t hi = (p + 1) * piece < first + n ? (p + 1) * piece : first + n;
        kvd_head_rows h = {a, (int)x, layer, head, a->x[x]};
        kvd_err mine = {""};
        if (read_floats(&h, lo, hi - lo, width, rows + (lo - first) * width,
                        scratch ? (char *)scratch + (lo - first) * bytes : NULL, &mine)) {
#pragma omp critical(kvd_activations_read)
            if (p < failed) {
                failed = p;
                *err = mine;
            }
        }
    }
    return kvd_status(failed < to);
}

int kvd_activations_sequences(kvd_activations *a, size_t n_tokens, size_t **start, size_t *n,
                              kvd_err *err)
{
    assert(n_tokens >= 1 && n_tokens <= a->n_tokens);
    *start = NULL;
    uint32_t *sequence = malloc(n_tokens * sizeof *sequence);
    size_t *at = malloc((a->n_sequences + 1) * sizeof *at);
    const hid_t d =
        H5Dopen2(a->file.id, kvd_activations_path[KVD_SET_TOKEN + TOKEN_SEQUENCE], H5P_DEFAULT);
    int status = -1;
    if (!sequence || !at)
        kvd_no_memory(err, "sequences",
                      n_tokens * sizeof *sequence + (a->n_sequences + 1) * sizeof *at);
    else if (d < 0)
        kvd_fail(err, "'%s': cannot open %s", a->file.path,
                 kvd_activations_path[KVD_SET_TOKEN + TOKEN_SEQUENCE]);
    else
        status = read_checked(
            &(kvd_head_rows){.a = a, .set = KVD_SET_TOKEN + TOKEN_SEQUENCE, .dataset = d}, 0,
            n_tokens, sequence, err);
    if (!status) {
        *n = 0;
        for (size_t t = 0; t < n_tokens; t++)
            if (t == 0 || sequence[t] != sequence[t - 1])
                at[(*n)++] = t;
        at[*n] = n_tokens;
        *start = at;
    } else {
        free(at);
    }
    if (d >= 0)
        H5Idec_ref(d);
    free(sequence);
    return status;
}

static int read_weights(kvd_activations *a, int set, int layer, int head, float *w, kvd_err *err)
{
    const size_t d = (size_t)a->model.d_head, width = (size_t)a->model.d_model;
    kvd_head_rows h = {a, set, layer, head, set == KVD_SET_W_O ? a->w_o : a->w_v};
    void *scratch = NULL;
    if (a->dtype != KVD_F32 && !(scratch = malloc(d * width * 2)))
        return kvd_no_memory(err, "weights of a head", d * width * 2);
    const int status = read_floats(&h, 0, d, width, w, scratch, err);
    free(scratch);
    return status;
}

int kvd_activations_w_o(kvd_activations *a, int layer, int head, float *w, kvd_err *err)
{
    assert(layer >= 0 && layer < a->n_layers && head >= 0 && head < a->model.n_heads);
    return read_weights(a, KVD_SET_W_O, layer, head, w, err);
}

int kvd_activations_w_v(kvd_activations *a, int layer, int kv_head, float *w, kvd_err *err)
{
    assert(layer >= 0 && layer < a->n_layers && kv_head >= 0 && kv_head < a->model.n_kv_heads);
    return read_weights(a, KVD_SET_W_V, layer, kv_head, w, err);
}
