#include "model/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/filemap.h"
#include "model/llama2c.h"

static const char embedding_name[] = "model.embed_tokens.weight", head_name[] = "lm_head.weight";

typedef struct {
    const char *tensor;
    size_t shard;
} place;

struct kvd_checkpoint {
    char *path;
    bool folder; /* path is a folder */
    kvd_config config;
    kvd_dtype dtype;
    kvd_filemap llama2c; /* .len 0 when the tensors are in shards */
    kvd_safetensors **shards;
    char **shard_files; /* names within the folder; NULL for a single file */
    size_t n_shards;
    place *places; /* every tensor of every shard, by name */
    size_t n_places;
};

/* ---- names of files --------------------------------------------------------------------- */

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

static char *in_folder(const char *folder, const char *name, kvd_err *err)
{
    const size_t len = strlen(folder);
    return join(folder, len, len > 0 && folder[len - 1] == '/' ? "" : "/", name, err);
}

/* A file in the folder that holds the file `path`. */
static char *beside(const char *path, const char *name, kvd_err *err)
{
    const char *slash = strrchr(path, '/');
    return join(path, slash ? (size_t)(slash - path) + 1 : 0, name, "", err);
}

/* path with its ending (".bin") replaced. */
static char *with_ending(const char *path, const char *old, const char *new, kvd_err *err)
{
    return join(path, strlen(path) - strlen(old), new, "", err);
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

/* 1: there; 0: not there; -1: cannot tell. */
static int exists(const char *path, kvd_err *err)
{
    struct stat st;
    if (stat(path, &st) == 0)
        return 1;
    if (errno == ENOENT || errno == ENOTDIR)
        return 0;
    return kvd_fail_errno(err, "cannot stat '%s'", path);
}

/* Puts `path` into *found when it exists and *found is still NULL. Takes the text, which may be
 * NULL when it could not be made. */
static int take_existing(char *path, char **found, kvd_err *err)
{
    const int there = !path ? -1 : *found ? 0 : exists(path, err);
    if (there > 0)
        *found = path;
    else
        free(path);
    return there < 0 ? -1 : 0;
}

/* ---- shards ----------------------------------------------------------------------------- */

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const place *)a)->tensor, ((const place *)b)->tensor);
}

static int tensor_order(const void *key, const void *p)
{
    return strcmp(key, ((const place *)p)->tensor);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_places(kvd_checkpoint *c, kvd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_shards; i++)
        n += kvd_safetensors_count(c->shards[i]);
    c->places = calloc(n ? n : 1, sizeof *c->places);
    if (!c->places)
        return kvd_no_memory(err, "the list of tensors", n * sizeof *c->places);
    for (size_t i = 0; i < c->n_shards; i++)
        for (size_t j = 0; j < kvd_safetensors_count(c->shards[i]); j++)
            c->places[c->n_places++] = (place){kvd_safetensors_name(c->shards[i], j), i};
    qsort(c->places, n, sizeof *c->places, by_tensor);
    for (size_t i = 1; i < n; i++)
        if (strcmp(c->places[i - 1].tensor, c->places[i].tensor) == 0)
            return kvd_fail(err, "'%s': tensor '%s' is in '%s' and in '%s'", c->path, c->places[i].tensor,
                            c->shard_files[c->places[i - 1].shard], c->shard_files[c->places[i].shard]);
    return 0;
}

static const place *find_place(const kvd_checkpoint *c, const char *name)
{
    return bsearch(name, c->places, c->n_places, sizeof *c->places, tensor_order);
}

static int open_single(kvd_checkpoint *c, const char *path, kvd_err *err)
{
    c->shards = calloc(1, sizeof *c->shards);
    if (!c->shards)
        return kvd_no_memory(err, "the list of shards", sizeof *c->shards);
    c->shards[0] = kvd_safetensors_open(path, err);
    if (!c->shards[0])
        return -1;
    c->n_shards = 1;
    return list_places(c, err);
}

/* File names of an index are names in its folder, never ways out of it. */
static int check_shard_name(const char *tensor, const json_t *file, kvd_err *err)
{
    const char *name = json_string_value(file);
    if (!name)
        return kvd_fail(err, "weight_map: the file of '%s' is not a string", tensor);
    if (!name[0] || strchr(name, '/') || strstr(name, ".."))
        return kvd_fail(err, "weight_map: '%s' for tensor '%s' is not a plain file name", name, tensor);
    return 0;
}

/* The distinct file names of the map, sorted, into c->shard_files. */
static int list_shards(kvd_checkpoint *c, json_t *map, kvd_err *err)
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
    c->shards = calloc(count, sizeof *c->shards);
    c->shard_files = calloc(count, sizeof *c->shard_files);
    if (!c->shards || !c->shard_files) {
        kvd_no_memory(err, "the list of shards", count * (sizeof *c->shards + sizeof *c->shard_files));
        goto done;
    }
    c->n_shards = count;
    for (i = 0; i < count; i++) {
        c->shard_files[i] = strdup(files[i]);
        if (!c->shard_files[i]) {
            kvd_no_memory(err, "a shard's name", strlen(files[i]) + 1);
            goto done;
        }
    }
    status = 0;
done:
    free(files);
    return status;
}

/* Map and shards say the same, in both directions. */
static int check_map(const kvd_checkpoint *c, json_t *map, kvd_err *err)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(map, tensor, file)
    {
        const place *p = find_place(c, tensor);
        if (!p || strcmp(c->shard_files[p->shard], json_string_value(file)) != 0)
            return kvd_fail(err, "tensor '%s' is not in '%s', where the index has it%s%s%s", tensor,
                            json_string_value(file), p ? ", but in '" : "", p ? c->shard_files[p->shard] : "",
                            p ? "'" : "");
    }
    for (size_t i = 0; i < c->n_places; i++)
        if (!json_object_get(map, c->places[i].tensor))
            return kvd_fail(err, "tensor '%s' of '%s' is not in the index", c->places[i].tensor,
                            c->shard_files[c->places[i].shard]);
    return 0;
}

static int open_shards(kvd_checkpoint *c, const char *index_path, kvd_err *err)
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
    if (list_shards(c, map, err)) {
        kvd_in(err, "'%s'", index_path);
        goto done;
    }
    for (size_t i = 0; i < c->n_shards; i++) {
        char *path = in_folder(c->path, c->shard_files[i], err);
        c->shards[i] = path ? kvd_safetensors_open(path, err) : NULL;
        free(path);
        if (!c->shards[i]) {
            kvd_in(err, "shard %zu of %zu", i + 1, c->n_shards);
            goto done;
        }
    }
    if (list_places(c, err))
        goto done;
    if (check_map(c, map, err)) {
        kvd_in(err, "'%s'", index_path);
        goto done;
    }
    status = 0;
done:
    json_decref(root);
    kvd_filemap_release(&text);
    return status;
}

/* ---- what kind of checkpoint -------------------------------------------------------------- */

static int open_folder(kvd_checkpoint *c, kvd_err *err)
{
    int status = -1, single, sharded;
    char *config = in_folder(c->path, "config.json", err);
    char *file = config ? in_folder(c->path, "model.safetensors", err) : NULL;
    char *index = file ? in_folder(c->path, "model.safetensors.index.json", err) : NULL;
    if (!index || kvd_config_read(config, &c->config, err))
        goto done;
    if ((single = exists(file, err)) < 0 || (sharded = exists(index, err)) < 0)
        goto done;
    if (single)
        status = open_single(c, file, err);
    else if (sharded)
        status = open_shards(c, index, err);
    else
        kvd_fail(err, "'%s' holds neither model.safetensors nor model.safetensors.index.json", c->path);
done:
    free(config);
    free(file);
    free(index);
    return status;
}

static int open_file(kvd_checkpoint *c, kvd_err *err)
{
    int status = -1;
    char *config = NULL;
    if (take_existing(with_ending(c->path, ".safetensors", ".config.json", err), &config, err) ||
        take_existing(beside(c->path, "config.json", err), &config, err))
        goto done;
    if (!config) {
        kvd_fail(err, "'%s' needs its configuration beside it, as NAME.config.json or config.json", c->path);
        goto done;
    }
    if (kvd_config_read(config, &c->config, err) || open_single(c, c->path, err))
        goto done;
    status = 0;
done:
    free(config);
    return status;
}

/* ---- what a Llama model has --------------------------------------------------------------- */

static bool is_layer_tensor(const kvd_config *config, const char *name)
{
    static const char *const known[] = {
        "input_layernorm.weight",        "self_attn.q_proj.weight", "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",       "self_attn.o_proj.weight", "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",          "mlp.up_proj.weight",      "mlp.down_proj.weight",
        "self_attn.rotary_emb.inv_freq", /* written by old exports; follows from the configuration */
    };
    static const char prefix[] = "model.layers.";
    char *rest;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0 || name[sizeof prefix - 1] < '0' ||
        name[sizeof prefix - 1] > '9')
        return false;
    const unsigned long layer = strtoul(name + sizeof prefix - 1, &rest, 10);
    if (*rest != '.' || layer >= (unsigned long)config->n_layers)
        return false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(rest + 1, known[i]) == 0)
            return true;
    return false;
}

static int check_tensors(const kvd_checkpoint *c, kvd_err *err)
{
    for (size_t i = 0; i < c->n_places; i++) {
        const char *name = c->places[i].tensor;
        if (strcmp(name, embedding_name) && strcmp(name, head_name) && strcmp(name, "model.norm.weight") &&
            strcmp(name, "model.rotary_emb.inv_freq") && !is_layer_tensor(&c->config, name))
            return kvd_fail(err, "tensor '%s' is not part of a Llama model of %d layers without biases", name,
                            c->config.n_layers);
    }
    const bool embedding = find_place(c, embedding_name), head = find_place(c, head_name);
    if (c->config.tied_head && !embedding && !head)
        return kvd_fail(err, "neither '%s' nor '%s' is there", embedding_name, head_name);
    if (!c->config.tied_head && !embedding)
        return kvd_fail(err, "tensor '%s' is missing", embedding_name);
    if (!c->config.tied_head && !head)
        return kvd_fail(err, "tensor '%s' is missing, and tie_word_embeddings is false", head_name);
    return 0;
}

/* 0 found, 1 not there, -1 error; exactly this name. */
static int find_stored(const kvd_checkpoint *c, const char *name, kvd_tensor *out, kvd_err *err)
{
    if (c->llama2c.len)
        return kvd_llama2c_find(c->path, c->llama2c.bytes, &c->config, name, out);
    const place *p = find_place(c, name);
    return p ? kvd_safetensors_find(c->shards[p->shard], name, out, err) : 1;
}

/* Tied by the configuration, but stored twice: then the two must not differ. */
static int check_tied(const kvd_checkpoint *c, kvd_err *err)
{
    kvd_tensor e, h;
    if (!c->config.tied_head || !find_place(c, embedding_name) || !find_place(c, head_name))
        return 0;
    if (find_stored(c, embedding_name, &e, err) || find_stored(c, head_name, &h, err))
        return -1;
    if (e.dtype != h.dtype || e.rank != h.rank || memcmp(e.dims, h.dims, sizeof e.dims) != 0 ||
        memcmp(e.data, h.data, e.n * kvd_dtype_bytes(e.dtype)) != 0)
        return kvd_fail(err, "'%s' and '%s' differ, but tie_word_embeddings is true", embedding_name,
                        head_name);
    return 0;
}

static kvd_dtype most_common_dtype(const kvd_checkpoint *c)
{
    size_t elements[] = {[KVD_F32] = 0, [KVD_F16] = 0, [KVD_BF16] = 0};
    kvd_dtype best = KVD_F32;
    kvd_tensor t;
    kvd_err ignored; /* dtypes that are not ours do not count here; asking for one fails later */
    for (size_t i = 0; i < c->n_places; i++)
        if (find_stored(c, c->places[i].tensor, &t, &ignored) == 0)
            elements[t.dtype] += t.n;
    if (elements[KVD_F16] > elements[best])
        best = KVD_F16;
    if (elements[KVD_BF16] > elements[best])
        best = KVD_BF16;
    return best;
}

/* ---- the public side ---------------------------------------------------------------------- */

static int open_any(kvd_checkpoint *c, kvd_err *err)
{
    static const char accepted[] =
        "a folder with config.json and safetensors, a .safetensors file, or a llama2.c .bin file";
    struct stat st;
    if (stat(c->path, &st))
        return kvd_fail_errno(err, "cannot open '%s'", c->path);
    c->folder = S_ISDIR(st.st_mode);
    if (!c->folder && ends_with(c->path, ".bin")) {
        if (kvd_filemap_load(&c->llama2c, c->path, err))
            return -1;
        return kvd_llama2c_parse(c->path, c->llama2c.bytes, c->llama2c.len, &c->config, err);
    }
    if (!c->folder && !ends_with(c->path, ".safetensors"))
        return kvd_fail(err, "'%s' is no checkpoint: give %s", c->path, accepted);
    if (c->folder ? open_folder(c, err) : open_file(c, err))
        return -1;
    if (check_tensors(c, err) || check_tied(c, err))
        return kvd_in(err, "'%s'", c->path);
    c->dtype = most_common_dtype(c);
    return 0;
}

kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err)
{
    kvd_checkpoint *c = calloc(1, sizeof *c);
    if (!c) {
        kvd_no_memory(err, "a checkpoint", sizeof *c);
        return NULL;
    }
    c->path = strdup(path);
    if (!c->path)
        kvd_no_memory(err, "a path", strlen(path) + 1);
    else if (open_any(c, err) == 0)
        return c;
    kvd_checkpoint_close(c);
    return NULL;
}

void kvd_checkpoint_close(kvd_checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_shards; i++) {
        kvd_safetensors_close(c->shards[i]);
        if (c->shard_files)
            free(c->shard_files[i]);
    }
    free(c->shards);
    free(c->shard_files);
    free(c->places);
    kvd_filemap_release(&c->llama2c);
    free(c->path);
    free(c);
}

const kvd_config *kvd_checkpoint_config(const kvd_checkpoint *c)
{
    return &c->config;
}

const char *kvd_checkpoint_path(const kvd_checkpoint *c)
{
    return c->path;
}

kvd_dtype kvd_checkpoint_dtype(const kvd_checkpoint *c)
{
    return c->dtype;
}

/* find_stored, and with a tied head either of its two names for the other. */
static int find_tensor(const kvd_checkpoint *c, const char *name, kvd_tensor *out, kvd_err *err)
{
    const bool shared = c->config.tied_head && (!strcmp(name, embedding_name) || !strcmp(name, head_name));
    if (!shared)
        return find_stored(c, name, out, err);
    const int status = find_stored(c, embedding_name, out, err);
    return status == 1 ? find_stored(c, head_name, out, err) : status;
}

int kvd_checkpoint_tensor(const kvd_checkpoint *c, const char *name, size_t rows, size_t cols,
                          kvd_tensor *out, kvd_err *err)
{
    const int status = find_tensor(c, name, out, err);
    if (status == 1)
        return kvd_fail(err, "'%s': tensor '%s' is missing", c->path, name);
    if (status)
        return -1;
    if (out->rank == (cols ? 2 : 1) && out->dims[0] == rows && (!cols || out->dims[1] == cols))
        return 0;
    char found[128] = "";
    for (int i = 0, at = 0; i < out->rank; i++)
        at += snprintf(found + at, sizeof found - (size_t)at, "%s%zu", i ? "][" : "", out->dims[i]);
    char columns[32] = "";
    if (cols)
        (void)snprintf(columns, sizeof columns, "][%zu", cols);
    return kvd_fail(err, "'%s': tensor '%s' has shape [%s], the configuration needs [%zu%s]", out->file, name,
                    found, rows, columns);
}

int kvd_checkpoint_has(const kvd_checkpoint *c, const char *name)
{
    kvd_tensor t;
    kvd_err ignored; /* there, though of a dtype that cannot be used */
    return find_tensor(c, name, &t, &ignored) != 1;
}

/* ---- tokenizers --------------------------------------------------------------------------- */

/*
 * The one file in the folder of `path` called STEM.tok*.bin; *found NULL when there is none. The
 * stem is compared, not used as a pattern: it may hold any character.
 */
static int find_tok_bin(const char *path, char **found, kvd_err *err)
{
    int status = -1;
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *folder = beside(path, ".", err), *start = with_ending(base, ".bin", ".tok", err), *name = NULL;
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
        if (strncmp(d->d_name, start, strlen(start)) != 0 || !ends_with(d->d_name, ".bin"))
            continue;
        if (name) {
            kvd_fail(err, "'%s' has two tokenizers beside it, '%s' and '%s': name one", path, name,
                     d->d_name);
            goto done;
        }
        name = strdup(d->d_name);
        if (!name) {
            kvd_no_memory(err, "a path", strlen(d->d_name) + 1);
            goto done;
        }
    }
    if (name && !(*found = beside(path, name, err)))
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

/* `model`, when it exists, is a tokenizer all the same, of a kind that is not read. */
static void fail_no_tokenizer(const char *path, const char *wanted, char *model, kvd_err *err)
{
    struct stat st;
    if (model && stat(model, &st) == 0)
        kvd_fail(err,
                 "no tokenizer for '%s': %s is missing, and '%s' is a SentencePiece model, which is not read",
                 path, wanted, model);
    else if (model)
        kvd_fail(err, "no tokenizer for '%s': %s is missing", path, wanted);
    free(model);
}

char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err)
{
    char *found = NULL;
    if (c->folder) {
        if (!take_existing(in_folder(c->path, "tokenizer.json", err), &found, err) && !found)
            fail_no_tokenizer(c->path, "tokenizer.json", in_folder(c->path, "tokenizer.model", err), err);
    } else if (c->llama2c.len) {
        if (!find_tok_bin(c->path, &found, err) &&
            !take_existing(beside(c->path, "tokenizer.bin", err), &found, err) && !found)
            fail_no_tokenizer(c->path, "NAME.tok*.bin or tokenizer.bin",
                              with_ending(c->path, ".bin", ".tokenizer.model", err), err);
    } else {
        if (!take_existing(with_ending(c->path, ".safetensors", ".tokenizer.json", err), &found, err) &&
            !take_existing(beside(c->path, "tokenizer.json", err), &found, err) && !found)
            fail_no_tokenizer(c->path, "NAME.tokenizer.json or tokenizer.json",
                              with_ending(c->path, ".safetensors", ".tokenizer.model", err), err);
    }
    return found;
}
