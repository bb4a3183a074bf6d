/* Writes a checkpoint whose weights were multiplied by projections. */
#include "export/export.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/run.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shards.h"
#include "model/checkpoint/streaming.h"

static json_t *load(const char *path, kvd_err *err)
{
    json_error_t where;
    json_t *const root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        kvd_fail(err, "'%s': %s", path, where.text);
    else if (json_is_object(root))
        return root;
    else
        kvd_fail(err, "'%s': it is not an object", path);
    json_decref(root);
    return NULL;
}

static int store(const json_t *root, const char *name, const kvd_output *folder, kvd_err *err)
{
    char *const text = json_dumps(root, JSON_INDENT(2));
    if (!text)
        return kvd_no_memory(err, name, 0);
    const int status = kvd_output_folder_text(folder, name, text, strlen(text), err);
    free(text);
    return status;
}

/* Writes model.safetensors.index.json. `bytes`: total size of the written weights. */
static int write_index(const kvd_checkpoint *c, size_t bytes, const kvd_output *folder,
                       kvd_err *err)
{
    static const char name[] = "model.safetensors.index.json";
    char *const path = kvd_path_in_folder(kvd_checkpoint_path(c), name, err);
    json_t *const root = path ? load(path, err) : NULL;
    free(path);
    if (!root)
        return -1;
    json_t *metadata = json_object_get(root, "metadata");
    if (!json_is_object(metadata)) {
        metadata = json_object();
        json_object_set_new(root, "metadata", metadata);
    }
    int status = json_object_set_new(metadata, "total_size", json_integer((json_int_t)bytes))
                     ? kvd_no_memory(err, name, 0)
                     : store(root, name, folder, err);
    json_decref(root);
    return status;
}

/* Writes the key "dtype", which Transformers before 4.56 calls "torch_dtype". */
static int name_dtype(json_t *root, kvd_dtype dtype, kvd_err *err)
{
    static const char *const key[] = {"dtype", "torch_dtype"};
    const char *const name = dtype == KVD_F32   ? "float32"
                             : dtype == KVD_F16 ? "float16"
                                                : "bfloat16";
    bool named = false;
    int status = 0;
    for (int i = 0; i < 2; i++)
        if (json_object_get(root, key[i])) {
            status = status || json_object_set_new(root, key[i], json_string(name));
            named = true;
        }
    if (!named)
        status = json_object_set_new(root, key[1], json_string(name));
    return status ? kvd_no_memory(err, "config.json", 0) : 0;
}

/* Writes config.json with the number type *dtype or, if `dtype` is NULL, as an exact copy. */
static int write_config(const kvd_checkpoint *c, const kvd_dtype *dtype, const kvd_output *folder,
                        kvd_err *err)
{
    const char *const path = kvd_checkpoint_config_path(c);
    if (!dtype)
        return kvd_output_folder_copy(folder, "config.json", path, err);
    json_t *const root = load(path, err);
    if (!root)
        return -1;
    const int status = name_dtype(root, *dtype, err) || store(root, "config.json", folder, err);
    json_decref(root);
    return kvd_status(status);
}

/* Returns true for files to copy from the checkpoint. Model cards are left out, because they
 * describe the uncompressed model. */
static bool belongs(const char *name)
{
    static const char *const patterns[] = {"generation_config.json",
                                           "tokenizer*",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab*",
                                           "merges.txt",
                                           "*.tiktoken",
                                           "*.model",
                                           "chat_template*",
                                           "processor_config.json",
                                           "*.py",
                                           "preprocessor_config.json",
                                           "LICENSE*",
                                           "NOTICE*",
                                           "USE_POLICY*"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (fnmatch(patterns[i], name, FNM_PERIOD) == 0)
            return true;
    return false;
}

static int copy_one(const char *folder_path, const char *name, const kvd_output *folder,
                    kvd_err *err)
{
    struct stat st;
    char *const path = kvd_path_in_folder(folder_path, name, err);
    int status = path ? 0 : -1;
    if (!status && stat(path, &st))
        status = kvd_fail_errno(err, "cannot open '%s'", path);
    else if (!status && S_ISREG(st.st_mode))
        status = kvd_output_folder_copy(folder, name, path, err);
    free(path);
    return status;
}

static int copy_folder(const char *path, const kvd_output *folder, kvd_err *err)
{
    DIR *const dir = opendir(path);
    if (!dir)
        return kvd_fail_errno(err, "cannot list '%s'", path);
    int status = 0;
    errno = 0;
    for (const struct dirent *d; !status && (d = readdir(dir)); errno = 0)
        if (belongs(d->d_name))
            status = copy_one(path, d->d_name, folder, err);
    if (!status && errno)
        status = kvd_fail_errno(err, "cannot list '%s'", path);
    closedir(dir);
    return status;
}

static int copy_tokenizer(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err)
{
    kvd_err none;
    char *const path = kvd_checkpoint_tokenizer_path(c, &none);
    const int status = path ? kvd_output_folder_copy(folder, "tokenizer.json", path, err) : 0;
    free(path);
    return status;
}

/* Copies the tokenizer, the licence and similar files of the checkpoint. If its configuration is
 * called NAME.config.json instead of config.json, copies only the tokenizer. */
static int copy_others(const kvd_checkpoint *c, const kvd_output *folder, kvd_err *err)
{
    const char *const config = kvd_checkpoint_config_path(c), *const slash = strrchr(config, '/');
    if (strcmp(slash ? slash + 1 : config, "config.json"))
        return copy_tokenizer(c, folder, err);
    char *const path = slash ? strndup(config, (size_t)(slash - config) + 1) : strdup(".");
    if (!path)
        return kvd_no_memory(err, "a path", strlen(config));
    const int status = copy_folder(path, folder, err);
    free(path);
    return status;
}

/* number of elements that are converted at a time */
enum { PIECE = 1 << 18 };

typedef struct {
    kvd_checkpoint_out *out;
    kvd_safetensors_writer *writer;
    const char *name;
    kvd_dtype from, to;
    size_t at; /* number of tensor elements written so far */
    void *buffer;
    size_t room; /* size of `buffer` in bytes */
} transfer;

static int append(transfer *t, const void *bytes, size_t n, kvd_err *err)
{
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    if (kvd_safetensors_append(t->writer, t->name, bytes, n, err))
        return -1;
    t->out->bytes_done += (double)n;
    kvd_progress_step(t->out->progress, t->out->bytes_done * 1e-6);
    return 0;
}

/* Converts x [n] to number type t->to. Fails if a finite element overflows. If `folded` is true,
 * fails also if x has NaN or infinity. */
static int round_to(transfer *t, const float *x, bool folded, size_t n, kvd_err *err)
{
    kvd_from_f32(t->to, x, t->buffer, n);
    for (size_t i = 0; i < n; i++) {
        float y;
        kvd_to_f32(t->to, (const char *)t->buffer + i * kvd_dtype_bytes(t->to), &y, 1);
        if (isfinite(y) || (!folded && !isfinite(x[i])))
            continue;
        return kvd_fail(err, "tensor '%s': element %zu is %g, which %s cannot hold", t->name,
                        t->at + i, (double)x[i], kvd_dtype_name(t->to));
    }
    return 0;
}

static int take(void *ctx, const float *x, const void *stored, size_t n, kvd_err *err)
{
    transfer *const t = ctx;
    const size_t bytes = n * kvd_dtype_bytes(t->to);
    int status = 0;
    if (stored && t->to == t->from)
        status = append(t, stored, bytes, err);
    else {
        if (bytes > t->room) {
            void *const more = realloc(t->buffer, bytes);
            if (!more)
                return kvd_no_memory(err, "rows of a tensor", bytes);
            t->buffer = more;
            t->room = bytes;
        }
        status = kvd_status(round_to(t, x, !stored, n, err) || append(t, t->buffer, bytes, err));
    }
    t->at += n;
    return status;
}

static int copy_bytes(transfer *t, const void *data, size_t bytes, kvd_err *err)
{
    for (size_t at = 0; at < bytes; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        if (append(t, (const char *)data + at, n, err))
            return -1;
    }
    return 0;
}

static int convert(transfer *t, const kvd_tensor *tensor, kvd_err *err)
{
    float *const x = malloc(PIECE * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "a piece of a tensor", PIECE * sizeof *x);
    int status = 0;
    for (size_t at = 0; !status && at < tensor->n; at += PIECE) {
        const size_t n = tensor->n - at < PIECE ? tensor->n - at : PIECE;
        kvd_tensor_read(tensor, at, n, x);
        status =
            take(t, x, (const char *)tensor->data + at * kvd_dtype_bytes(tensor->dtype), n, err);
    }
    free(x);
    return status;
}

static int transfer_tensor(kvd_checkpoint_out *w, const kvd_safetensors *file, const char *name,
                           const void *data, size_t bytes, kvd_safetensors_writer *writer,
                           kvd_err *err)
{
    kvd_tensor tensor;
    /* reason why a tensor's type is not supported; not reported, because the tensor is copied
     * unchanged */
    kvd_err ignored;
    transfer t = {.out = w, .writer = writer, .name = name};
    const kvd_folded *const f = kvd_folded_find(w->folded, name);
    int status;
    if (!f && (w->as_stored || kvd_safetensors_find(file, name, &tensor, &ignored)))
        return copy_bytes(&t, data, bytes, err);
    t.from = f ? f->tensor.dtype : tensor.dtype;
    t.to = w->as_stored ? t.from : w->dtype;
    if (!f && t.to == t.from)
        return copy_bytes(&t, data, bytes, err);
    status = f ? kvd_folded_run(w->folded, f, take, &t, err) : convert(&t, &tensor, err);
    free(t.buffer);
    return status;
}

static int write_tensor(kvd_checkpoint_out *w, const kvd_safetensors *file, size_t i,
                        kvd_safetensors_writer *writer, kvd_err *err)
{
    kvd_tensor_spec spec;
    const void *data;
    size_t bytes;
    kvd_safetensors_stored(file, i, &spec, &data, &bytes);
    const int status = transfer_tensor(w, file, spec.name, data, bytes, writer, err);
    kvd_mapped_drop(data, bytes);
    return status;
}

typedef struct {
    kvd_tensor_spec spec;
    size_t index;
} planned;

static bool is_float(const char *dtype)
{
    return !strcmp(dtype, "F32") || !strcmp(dtype, "F16") || !strcmp(dtype, "BF16");
}

static planned *plan_file(const kvd_checkpoint_out *w, const kvd_safetensors *file, kvd_err *err)
{
    const size_t n = kvd_safetensors_count(file);
    planned *const all = kvd_new(n ? n : 1, sizeof *all, "a list of tensors", err);
    if (!all)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        const void *data;
        size_t bytes;
        kvd_safetensors_stored(file, i, &all[i].spec, &data, &bytes);
        all[i].index = i;
        if (!w->as_stored && is_float(all[i].spec.dtype))
            all[i].spec.dtype = kvd_safetensors_dtype(w->dtype);
    }
    if (n)
        qsort(all, n, sizeof *all, kvd_tensor_spec_order);
    return all;
}

/* Returns the metadata of a safetensors file plus the entry "format", which Hugging Face
 * requires. */
static kvd_safetensors_note *notes_of(const kvd_safetensors *file, kvd_err *err)
{
    const char *key, *value;
    size_t n = 0;
    bool has_format = false;
    while (kvd_safetensors_metadata(file, n, &value))
        n++;
    kvd_safetensors_note *const notes = kvd_new(n + 2, sizeof *notes, "metadata", err);
    if (!notes)
        return NULL;
    for (size_t i = 0; i < n && (key = kvd_safetensors_metadata(file, i, &value)); i++) {
        notes[i][0] = key;
        notes[i][1] = value;
        has_format = has_format || !strcmp(key, "format");
    }
    if (!has_format) {
        notes[n][0] = "format";
        notes[n][1] = "pt";
    }
    return notes;
}

static int write_file(kvd_checkpoint_out *w, const kvd_safetensors *file, const char *path,
                      kvd_err *err)
{
    const size_t n = kvd_safetensors_count(file);
    planned *const plan = plan_file(w, file, err);
    kvd_safetensors_note *const notes = plan ? notes_of(file, err) : NULL;
    kvd_tensor_spec *const spec = calloc(n ? n : 1, sizeof *spec);
    kvd_safetensors_writer *writer = NULL;
    int status = -1;
    if (plan && notes && !spec)
        kvd_no_memory(err, "a list of tensors", (unsigned long long)n * sizeof *spec);
    if (!plan || !notes || !spec)
        goto done;
    for (size_t i = 0; i < n; i++)
        spec[i] = plan[i].spec;
    writer = kvd_safetensors_create(path, spec, n, (const kvd_safetensors_note *)notes, err);
    if (!writer)
        goto done;
    for (size_t i = 0; i < n; i++)
        if (write_tensor(w, file, plan[i].index, writer, err))
            goto done;
    status = kvd_safetensors_finish(writer, err);
    writer = NULL;
done:
    kvd_safetensors_abandon(writer);
    free(spec);
    free(notes);
    free(plan);
    return status;
}

int kvd_checkpoint_out_bytes(const kvd_checkpoint_out *w, size_t *bytes, kvd_err *err)
{
    const kvd_shards *const s = kvd_checkpoint_shards(w->from);
    *bytes = 0;
    for (size_t f = 0; s && f < s->n_files; f++) {
        const size_t n = kvd_safetensors_count(s->file[f]);
        planned *const plan = plan_file(w, s->file[f], err);
        int status = plan ? 0 : -1;
        for (size_t i = 0; !status && i < n; i++) {
            size_t own;
            status = kvd_tensor_spec_bytes(&plan[i].spec, &own, err);
            *bytes += status ? 0 : own;
        }
        free(plan);
        if (status)
            return -1;
    }
    return 0;
}

int kvd_checkpoint_write(kvd_checkpoint_out *w, const kvd_output *folder, kvd_err *err)
{
    const kvd_shards *const s = kvd_checkpoint_shards(w->from);
    size_t bytes;
    if (!s)
        return kvd_fail(
            err,
            "'%s' is not in safetensors, which is what a Hugging Face checkpoint is written from",
            kvd_checkpoint_path(w->from));
    if (kvd_checkpoint_out_bytes(w, &bytes, err))
        return -1;
    for (size_t f = 0; f < s->n_files; f++) {
        char *const path =
            kvd_output_folder_file(folder, s->name ? s->name[f] : "model.safetensors", err);
        const int status = path ? write_file(w, s->file[f], path, err) : -1;
        free(path);
        if (status)
            return -1;
    }
    if (s->name && write_index(w->from, bytes, folder, err))
        return -1;
    return kvd_status(write_config(w->from, w->as_stored ? NULL : &w->dtype, folder, err) ||
                      copy_others(w->from, folder, err));
}
