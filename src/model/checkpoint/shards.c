#include "model/checkpoint/shards.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/checkpoint/filemap.h"

static char *join(const char *a, size_t a_len, const char *b, const char *c, kvd_err *err)
{
    const size_t len = a_len + strlen(b) + strlen(c) + 1;
    char *s = malloc(len);
    if (!s)
        kvd_no_memory(err, "a path", len);
    else
        (void)snprintf(s, len, "%.*s%s%s", (int)a_len, a, b, c);
    return s;
}

char *kvd_path_in_folder(const char *folder, const char *name, kvd_err *err)
{
    const size_t len = strlen(folder);
    return join(folder, len, len > 0 && folder[len - 1] == '/' ? "" : "/", name, err);
}

char *kvd_path_beside(const char *path, const char *name, kvd_err *err)
{
    const char *slash = strrchr(path, '/');
    return join(path, slash ? (size_t)(slash - path) + 1 : 0, name, "", err);
}

char *kvd_path_with_ending(const char *path, const char *old, const char *fresh, kvd_err *err)
{
    return join(path, strlen(path) - strlen(old), fresh, "", err);
}

bool kvd_path_ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

int kvd_path_exists(const char *path, kvd_err *err)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return 1;
    if (errno == ENOENT || errno == ENOTDIR)
        return 0;
    return kvd_fail_errno(err, "cannot stat '%s'", path);
}

int kvd_path_take_existing(char *path, char **found, kvd_err *err)
{
    const int there = !path ? -1 : *found ? 0 : kvd_path_exists(path, err);
    if (there > 0)
        *found = path;
    else
        free(path);
    return there < 0 ? -1 : 0;
}

int kvd_path_tok_bin(const char *path, char **found, kvd_err *err)
{
    int status = -1;
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = kvd_path_beside(path, ".", err),
         *start = kvd_path_with_ending(base, ".bin", ".tok", err), *name = NULL;
    DIR *dir = NULL;
    *found = NULL;
    if (!folder || !start)
        goto done;
    dir = opendir(folder);
    if (!dir) {
        kvd_fail_errno(err, "cannot list '%s'", folder);
        goto done;
    }
    for (;;) {
        errno = 0;
        const struct dirent *d = readdir(dir);
        if (!d && errno) {
            kvd_fail_errno(err, "cannot list '%s'", folder);
            goto done;
        }
        if (!d)
            break;
        if (strncmp(d->d_name, start, strlen(start)) != 0 || !kvd_path_ends_with(d->d_name, ".bin"))
            continue;
        if (name) {
            kvd_fail(err, "'%s' has two tokenizers next to it, '%s' and '%s': name one", path, name,
                     d->d_name);
            goto done;
        }
        name = strdup(d->d_name);
        if (!name) {
            kvd_no_memory(err, "a path", strlen(d->d_name) + 1);
            goto done;
        }
    }
    if (name && !(*found = kvd_path_beside(path, name, err)))
        goto done;
    status = 0;
done:
    if (dir)
        (void)closedir(dir);
    free(name);
    free(start);
    free(folder);
    return status;
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const kvd_shard_entry *)a)->tensor, ((const kvd_shard_entry *)b)->tensor);
}

static int tensor_order(const void *key, const void *p)
{
    return strcmp(key, ((const kvd_shard_entry *)p)->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_entries(kvd_shards *s, kvd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++)
        n += kvd_safetensors_count(s->file[i]);
    s->entries = calloc(n ? n : 1, sizeof *s->entries);
    if (!s->entries)
        return kvd_no_memory(err, "the list of tensors", n * sizeof *s->entries);
    for (size_t i = 0; i < s->n_files; i++)
        for (size_t j = 0; j < kvd_safetensors_count(s->file[i]); j++)
            s->entries[s->n_entries++] = (kvd_shard_entry){kvd_safetensors_name(s->file[i], j), i};
    qsort(s->entries, n, sizeof *s->entries, by_tensor);
    for (size_t i = 1; i < n; i++)
        if (strcmp(s->entries[i - 1].tensor, s->entries[i].tensor) == 0)
            return kvd_fail(err, "tensor '%s' is in '%s' and in '%s'", s->entries[i].tensor,
                            s->name[s->entries[i - 1].file], s->name[s->entries[i].file]);
    return 0;
}

static const kvd_shard_entry *find_entry(const kvd_shards *s, const char *name)
{
    return bsearch(name, s->entries, s->n_entries, sizeof *s->entries, tensor_order);
}

int kvd_shards_open_file(kvd_shards *s, const char *path, kvd_err *err)
{
    s->file = calloc(1, sizeof *s->file);
    if (!s->file)
        return kvd_no_memory(err, "the list of shards", sizeof *s->file);
    s->file[0] = kvd_safetensors_open(path, err);
    if (!s->file[0])
        return -1;
    s->n_files = 1;
    return list_entries(s, err);
}

/* Fails if an index file names a safetensors file in another folder. */
static int check_shard_name(const char *tensor, const json_t *file, kvd_err *err)
{
    const char *name = json_string_value(file);
    if (!name)
        return kvd_fail(err, "weight_map: the file of '%s' is not a string", tensor);
    if (!name[0] || strchr(name, '/') || strstr(name, ".."))
        return kvd_fail(err, "weight_map: '%s' for tensor '%s' is not a plain file name", name,
                        tensor);
    return 0;
}

static int list_files(kvd_shards *s, json_t *map, kvd_err *err)
{
    const size_t n = json_object_size(map);
    const char *tensor, **files = NULL;
    json_t *file;
    int status = -1;
    size_t i = 0, count = 0;
    if (n == 0)
        return kvd_fail(err, "weight_map is empty");
    files = calloc(n, sizeof *files);
    if (!files)
        return kvd_no_memory(err, "the list of shards", n * sizeof *files);
    json_object_foreach(map, tensor, file)
    {
        if (check_shard_name(tensor, file, err))
            goto done;
        files[i++] = json_string_value(file);
    }
    qsort(files, n, sizeof *files, by_text);
    for (i = 0; i < n; i++)
        if (i == 0 || strcmp(files[i], files[count - 1]) != 0)
            files[count++] = files[i];
    s->file = calloc(count, sizeof *s->file);
    s->name = calloc(count, sizeof *s->name);
    if (!s->file || !s->name) {
        kvd_no_memory(err, "the list of shards", count * (sizeof *s->file + sizeof *s->name));
        goto done;
    }
    s->n_files = count;
    for (i = 0; i < count; i++) {
        s->name[i] = strdup(files[i]);
        if (!s->name[i]) {
            kvd_no_memory(err, "a shard's name", strlen(files[i]) + 1);
            goto done;
        }
    }
    status = 0;
done:
    free(files);
    return status;
}

static int check_map(const kvd_shards *s, json_t *map, kvd_err *err)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file)
    {
        const kvd_shard_entry *p = find_entry(s, tensor);
        if (!p || strcmp(s->name[p->file], json_string_value(file)) != 0)
            return kvd_fail(err, "tensor '%s' is not in '%s', where the index has it%s%s%s", tensor,
                            json_string_value(file), p ? ", but in '" : "",
                            p ? s->name[p->file] : "", p ? "'" : "");
    }
    for (size_t i = 0; i < s->n_entries; i++)
        if (!json_object_get(map, s->entries[i].tensor))
            return kvd_fail(err, "tensor '%s' of '%s' is not in the index", s->entries[i].tensor,
                            s->name[s->entries[i].file]);
    return 0;
}

int kvd_shards_open_index(kvd_shards *s, const char *folder, const char *index_path, kvd_err *err)
{
    int status = -1;
    json_t *root = NULL;
    kvd_filemap text;
    json_error_t where;
    if (kvd_filemap_load(&text, index_path, err))
        return -1;
    root = json_loadb(text.bytes, text.len, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        kvd_fail(err, "'%s', line %d: %s", index_path, where.line, where.text);
        goto done;
    }
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        kvd_fail(err, "'%s': no object 'weight_map'", index_path);
        goto done;
    }
    if (list_files(s, map, err)) {
        kvd_in(err, "'%s'", index_path);
        goto done;
    }
    for (size_t i = 0; i < s->n_files; i++) {
        char *path = kvd_path_in_folder(folder, s->name[i], err);
        s->file[i] = path ? kvd_safetensors_open(path, err) : NULL;
        free(path);
        if (!s->file[i]) {
            kvd_in(err, "shard %zu of %zu", i + 1, s->n_files);
            goto done;
        }
    }
    if (list_entries(s, err) || check_map(s, map, err)) {
        kvd_in(err, "'%s'", index_path);
        goto done;
    }
    status = 0;
done:
    json_decref(root);
    kvd_filemap_release(&text);
    return status;
}

void kvd_shards_release(kvd_shards *s)
{
    for (size_t i = 0; i < s->n_files; i++) {
        kvd_safetensors_close(s->file[i]);
        if (s->name)
            free(s->name[i]);
    }
    free(s->file);
    free(s->name);
    free(s->entries);
    *s = (kvd_shards){0};
}

int kvd_shards_find(const kvd_shards *s, const char *tensor, kvd_tensor *out, kvd_err *err)
{
    const kvd_shard_entry *e = find_entry(s, tensor);
    return e ? kvd_safetensors_find(s->file[e->file], tensor, out, err) : 1;
}

int kvd_shards_stored(const kvd_shards *s, const char *tensor, kvd_tensor_spec *spec,
                      const void **data, size_t *bytes, const char **file)
{
    const kvd_shard_entry *e = find_entry(s, tensor);
    return e ? kvd_safetensors_stored_of(s->file[e->file], tensor, spec, data, bytes, file) : 1;
}

static const char mark[] = ".experts.", blocks[] = "_blocks", scales[] = "_scales",
                  biases[] = "_bias", weight[] = ".weight", bias[] = ".bias";
/* number of bytes of a tensor name, and of an MXFP4 block's codes without the scale */
enum { NAME = 160, CODES = 16 };

bool kvd_stacked_name(const char *stored, char *name, size_t size)
{
    const char *const at = strstr(stored, mark);
    if (!at)
        return false;
    const char *const part = at + strlen(mark), *const end =
                                                    kvd_path_ends_with(part, blocks)   ? blocks
                                                    : kvd_path_ends_with(part, scales) ? scales
                                                    : kvd_path_ends_with(part, biases) ? biases
                                                                                       : "";
    const int n = snprintf(name, size, "%.*s%s0.%.*s%s", (int)(at - stored), stored, mark,
                           (int)(strlen(part) - strlen(end)), part, end == biases ? bias : weight);
    return n > 0 && (size_t)n < size;
}

/* Splits the tensor name "x.experts.7.y.weight" into expert 7 and the stored name "x.experts.y". */
static bool split(const char *name, size_t *expert, bool *of_bias, char *stored)
{
    const char *const at = strstr(name, mark);
    char *rest;
    if (!at || at[strlen(mark)] < '0' || at[strlen(mark)] > '9')
        return false;
    *expert = strtoul(at + strlen(mark), &rest, 10);
    *of_bias = kvd_path_ends_with(name, bias);
    const char *const end = *of_bias ? bias : weight;
    if (*rest != '.' || !kvd_path_ends_with(rest, end))
        return false;
    const int n = snprintf(stored, NAME, "%.*s%.*s", (int)(at - name + (long)strlen(mark)), name,
                           (int)(strlen(rest) - 1 - strlen(end)), rest + 1);
    return n > 0 && n < NAME;
}

static int check_count(const char *stored, const kvd_tensor *t, int rank, size_t n_experts,
                       kvd_err *err)
{
    if (t->rank != rank)
        return kvd_fail(err, "'%s': tensor '%s' has %d dimensions, not %d", t->file, stored,
                        t->rank, rank);
    if (t->dims[0] != n_experts)
        return kvd_fail(err, "'%s': tensor '%s' has %zu experts, the configuration needs %zu",
                        t->file, stored, t->dims[0], n_experts);
    return 0;
}

static int find_bytes(const kvd_shards *s, const char *name, kvd_tensor *out, kvd_err *err)
{
    kvd_tensor_spec spec;
    const void *data;
    size_t bytes;
    const char *file;
    if (kvd_shards_stored(s, name, &spec, &data, &bytes, &file))
        return 1;
    if (strcmp(spec.dtype, "U8") != 0)
        return kvd_fail(err, "'%s': tensor '%s' is %s, blocks of MXFP4 are stored as U8", file,
                        name, spec.dtype);
    *out =
        (kvd_tensor){.name = spec.name, .rank = spec.rank, .n = bytes, .data = data, .file = file};
    memcpy(out->dims, spec.dims, sizeof out->dims);
    return 0;
}

/* Finds one expert's matrix in a tensor in MXFP4. Returns 1 if the tensor has another format. */
static int find_mxfp4(const kvd_shards *s, const char *stored, size_t expert, size_t n_experts,
                      kvd_tensor *out, kvd_err *err)
{
    char name[2 * NAME];
    kvd_tensor exponents;
    (void)snprintf(name, sizeof name, "%s%s", stored, blocks);
    int status = find_bytes(s, name, out, err);
    if (status)
        return status;
    if (check_count(name, out, 4, n_experts, err))
        return -1;
    const size_t rows = out->dims[1], row_blocks = out->dims[2];
    if (out->dims[3] != CODES)
        return kvd_fail(err, "'%s': tensor '%s' has blocks of %zu bytes, MXFP4 has %d", out->file,
                        name, out->dims[3], CODES);
    (void)snprintf(name, sizeof name, "%s%s", stored, scales);
    status = find_bytes(s, name, &exponents, err);
    if (status > 0)
        return kvd_fail(err, "'%s': tensor '%s' is missing", out->file, name);
    if (status || check_count(name, &exponents, 3, n_experts, err))
        return -1;
    if (exponents.dims[1] != rows || exponents.dims[2] != row_blocks)
        return kvd_fail(err, "'%s': tensor '%s' has %zu x %zu scales, the blocks need %zu x %zu",
                        exponents.file, name, exponents.dims[1], exponents.dims[2], rows,
                        row_blocks);
    out->packing = KVD_MXFP4_APART;
    out->rank = 2;
    out->dims[0] = rows;
    out->dims[1] = 2 * CODES * row_blocks;
    out->n = rows * out->dims[1];
    out->data = (const unsigned char *)out->data + expert * rows * row_blocks * CODES;
    out->scales = (const unsigned char *)exponents.data + expert * rows * row_blocks;
    return 0;
}

int kvd_stacked_find(const kvd_shards *s, const char *name, size_t n_experts, kvd_tensor *out,
                     kvd_err *err)
{
    char stored[NAME + sizeof biases];
    size_t expert;
    bool of_bias;
    if (!split(name, &expert, &of_bias, stored) || expert >= n_experts)
        return 1;
    if (of_bias)
        strcat(stored, biases);
    int status = kvd_shards_find(s, stored, out, err);
    if (status > 0 && !of_bias)
        return find_mxfp4(s, stored, expert, n_experts, out, err);
    if (status || check_count(stored, out, of_bias ? 2 : 3, n_experts, err))
        return status ? status : -1;
    if (kvd_tensor_take_slice(out, n_experts, expert, err))
        return -1;
    if (!of_bias) {
        const size_t in = out->dims[0];
        out->dims[0] = out->dims[1];
        out->dims[1] = in;
        out->order = KVD_ROWS_AS_COLUMNS;
    }
    return 0;
}
