#include "model/checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>
#include <xxhash.h>

#include "model/checkpoint/family.h"
#include "model/checkpoint/filemap.h"
#include "model/checkpoint/gguf.h"
#include "model/checkpoint/llama2c.h"
#include "model/checkpoint/shards.h"
#include "model/checkpoint/streaming.h"

struct kvd_checkpoint {
    /* paths of the weights and of config.json; config_path is NULL for GGUF and llama2.c files,
     * which contain the configuration */
    char *path, *config_path;
    bool folder;
    kvd_config config;
    char embedding_name[KVD_PART_NAME], head_name[KVD_PART_NAME];
    /* Prefix of tensor names in the file, such as "language_model.model.". */
    const char *base;
    const char *dtype;
    kvd_filemap llama2c;
    kvd_gguf_model *gguf;
    /* Hash that identifies the random weights; NULL if the weights come from a file. */
    char *random_hash;
    uint64_t seed;
    kvd_shards shards;
    /* Bits per weight set by kvd_checkpoint_quantise; 0 if weights are not rounded. */
    int weight_bits;
    size_t weight_group;
};

/* Fails if `folder` is a model's folder in Hugging Face's cache, which holds several revisions of
 * the model. */
static int check_not_cache(const char *folder, const char *config, kvd_err *err)
{
    struct stat st;
    char *const inner = kvd_path_in_folder(folder, "snapshots", err);
    if (!inner)
        return -1;
    const bool cache = stat(config, &st) && !stat(inner, &st) && S_ISDIR(st.st_mode);
    free(inner);
    return cache
               ? kvd_fail(err, "'%s' holds revisions of a model: give one folder of its snapshots/",
                          folder)
               : 0;
}

static int open_folder(kvd_checkpoint *c, kvd_err *err)
{
    int status = -1, single, sharded;
    char *config = kvd_path_in_folder(c->path, "config.json", err);
    char *file = config ? kvd_path_in_folder(c->path, "model.safetensors", err) : NULL;
    char *index = file ? kvd_path_in_folder(c->path, "model.safetensors.index.json", err) : NULL;
    if (!index || check_not_cache(c->path, config, err) || kvd_config_read(config, &c->config, err))
        goto done;
    if ((single = kvd_path_exists(file, err)) < 0 || (sharded = kvd_path_exists(index, err)) < 0)
        goto done;
    if (single)
        status = kvd_shards_open_file(&c->shards, file, err);
    else if (sharded)
        status = kvd_shards_open_index(&c->shards, c->path, index, err);
    else
        kvd_fail(err, "'%s' holds neither model.safetensors nor model.safetensors.index.json",
                 c->path);
done:
    c->config_path = config;
    free(file);
    free(index);
    return status;
}

static int open_file(kvd_checkpoint *c, kvd_err *err)
{
    int status = -1;
    char *config = NULL;
    if (kvd_path_take_existing(kvd_path_with_ending(c->path, ".safetensors", ".config.json", err),
                               &config, err) ||
        kvd_path_take_existing(kvd_path_beside(c->path, "config.json", err), &config, err))
        goto done;
    if (!config) {
        kvd_fail(err, "'%s' needs its configuration next to it, as NAME.config.json or config.json",
                 c->path);
        goto done;
    }
    if (kvd_config_read(config, &c->config, err) || kvd_shards_open_file(&c->shards, c->path, err))
        goto done;
    status = 0;
done:
    c->config_path = config;
    return status;
}

static int find_random(const kvd_checkpoint *c, const char *name, kvd_tensor *out)
{
    kvd_part part;
    bool bias;
    kvd_place place;
    if (!kvd_family_place(&c->config, name, &part, &bias, &place) ||
        (part == KVD_PART_HEAD && c->config.tied_head))
        return 1;
    const bool vector = place.cols == 0;
    *out = (kvd_tensor){.name = name,
                        .dtype = KVD_BF16,
                        .packing = KVD_RANDOM,
                        .rank = vector ? 1 : 2,
                        .dims = {place.stored_rows, place.cols},
                        .n = place.stored_rows * (vector ? 1 : place.cols),
                        .file = c->path};
    out->random = kvd_random_tensor_of(c->seed, name,
                                       vector ? 0 : (float)(1 / sqrt((double)place.cols)), !bias);
    return 0;
}

/* Writes the name that a tensor has in the file: "language_model.model.x" for "model.x". */
static const char *stored_form(const kvd_checkpoint *c, const char *name, char *out, size_t size)
{
    const char *base = kvd_family_of(&c->config)->base;
    const size_t len = strlen(base), stored = strlen(c->base);
    const bool inside = stored > len && strcmp(c->base + stored - len, base) == 0 &&
                        c->base[stored - len - 1] == '.';
    const int outer = inside ? (int)(stored - len) : 0;
    if (strncmp(name, base, len) == 0)
        (void)snprintf(out, size, "%s%s", c->base, name + len);
    else
        (void)snprintf(out, size, "%.*s%s", outer, c->base, name);
    return out;
}

static int find_in_files(const kvd_checkpoint *c, const char *name, kvd_tensor *out, kvd_err *err)
{
    if (c->llama2c.len)
        return kvd_llama2c_find(c->path, c->llama2c.bytes, &c->config, name, out);
    if (c->gguf)
        return kvd_gguf_model_find(c->gguf, name, out, err);
    char stored[2 * KVD_PART_NAME];
    (void)stored_form(c, name, stored, sizeof stored);
    if (kvd_family_of(&c->config)->experts_together) {
        const int status =
            kvd_stacked_find(&c->shards, stored, (size_t)c->config.n_experts, out, err);
        if (status <= 0)
            return status;
    }
    return kvd_shards_find(&c->shards, stored, out, err);
}

static int find_stored(const kvd_checkpoint *c, const char *name, kvd_tensor *out, kvd_err *err)
{
    const int status =
        c->random_hash ? find_random(c, name, out) : find_in_files(c, name, out, err);
    if (status == 0)
        out->mapped = !c->random_hash;
    return status;
}

static bool is_stored(const kvd_checkpoint *c, const char *name)
{
    kvd_tensor t;
    kvd_err ignored;
    /* A tensor of an unsupported type counts as stored. */
    return find_stored(c, name, &t, &ignored) != 1;
}

static void name_embedding_and_head(kvd_checkpoint *c)
{
    kvd_place place;
    (void)kvd_part_place(&c->config, KVD_PART_EMBEDDING, false, 0, &place);
    memcpy(c->embedding_name, place.name, sizeof place.name);
    (void)kvd_part_place(&c->config, KVD_PART_HEAD, false, 0, &place);
    memcpy(c->head_name, place.name, sizeof place.name);
}

static bool begins_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool belongs(const kvd_checkpoint *c, const char *tensor)
{
    char name[2 * KVD_PART_NAME], head[2 * KVD_PART_NAME], expert[2 * KVD_PART_NAME];
    const kvd_family *const family = kvd_family_of(&c->config);
    if (family->experts_together && kvd_stacked_name(tensor, expert, sizeof expert))
        tensor = expert;
    for (size_t i = 0; family->other_models && family->other_models[i]; i++)
        if (begins_with(tensor, family->other_models[i]))
            return true;
    if (strcmp(tensor, stored_form(c, c->head_name, head, sizeof head)) == 0)
        return kvd_family_knows(&c->config, c->head_name);
    if (!begins_with(tensor, c->base))
        return false;
    const int len = snprintf(name, sizeof name, "%s%s", family->base, tensor + strlen(c->base));
    return len > 0 && (size_t)len < sizeof name && kvd_family_knows(&c->config, name);
}

/* Sets c->base to the prefix, such as "model.", of the tensor names in the checkpoint file. Tries
 * known prefixes until the file has a tensor with the embedding's name. */
static void find_base(kvd_checkpoint *c)
{
    const kvd_family *const family = kvd_family_of(&c->config);
    c->base = family->base;
    for (size_t i = 0;
         !is_stored(c, c->embedding_name) && family->other_bases && family->other_bases[i]; i++)
        c->base = family->other_bases[i];
    if (!is_stored(c, c->embedding_name))
        c->base = "";
    if (!is_stored(c, c->embedding_name))
        c->base = family->base;
}

static int check_tensors(const kvd_checkpoint *c, kvd_err *err)
{
    for (size_t i = 0; i < c->shards.n_entries; i++)
        if (!belongs(c, c->shards.entries[i].tensor))
            return kvd_fail(err, "tensor '%s' is not part of this %s model of %d layers",
                            c->shards.entries[i].tensor, c->config.family, c->config.n_layers);
    const bool embedding = is_stored(c, c->embedding_name), head = is_stored(c, c->head_name);
    if (c->config.tied_head && !embedding && !head)
        return kvd_fail(err, "neither '%s' nor '%s' is there", c->embedding_name, c->head_name);
    if (!c->config.tied_head && !embedding)
        return kvd_fail(err, "tensor '%s' is missing", c->embedding_name);
    if (!c->config.tied_head && !head)
        return kvd_fail(err, "tensor '%s' is missing, and tie_word_embeddings is false",
                        c->head_name);
    return 0;
}

static int check_tied(const kvd_checkpoint *c, kvd_err *err)
{
    kvd_tensor e, h;
    if (!c->config.tied_head || !is_stored(c, c->embedding_name) || !is_stored(c, c->head_name))
        return 0;
    if (find_stored(c, c->embedding_name, &e, err) || find_stored(c, c->head_name, &h, err))
        return -1;
    const bool same = e.dtype == h.dtype && e.rank == h.rank &&
                      memcmp(e.dims, h.dims, sizeof e.dims) == 0 &&
                      memcmp(e.data, h.data, e.n * kvd_dtype_bytes(e.dtype)) == 0;
    kvd_tensor_drop(&e);
    kvd_tensor_drop(&h);
    if (!same)
        return kvd_fail(err, "'%s' and '%s' differ, but tie_word_embeddings is true",
                        c->embedding_name, c->head_name);
    return 0;
}

static size_t count_stored(const kvd_checkpoint *c)
{
    return c->gguf ? kvd_gguf_model_count(c->gguf) : c->shards.n_entries;
}

static const char *stored_name(const kvd_checkpoint *c, size_t i)
{
    return c->gguf ? kvd_gguf_model_name(c->gguf, i) : c->shards.entries[i].tensor;
}

static const char *most_common_dtype(const kvd_checkpoint *c)
{
    /* number of kinds of tensors: plain number types, quantised formats and random weights */
    enum { N_TYPES = KVD_BF16 + 1 + KVD_RANDOM };
    const char *name[N_TYPES] = {NULL};
    size_t elements[N_TYPES] = {0}, best = 0;
    kvd_tensor t;
    /* unused messages about tensors that cannot be read */
    kvd_err ignored;
    for (size_t i = 0; i < count_stored(c); i++) {
        char expert[2 * KVD_PART_NAME];
        const char *name_of = stored_name(c, i);
        size_t times = 1;
        if (kvd_family_of(&c->config)->experts_together && !c->gguf &&
            kvd_stacked_name(name_of, expert, sizeof expert)) {
            name_of = expert;
            times = (size_t)c->config.n_experts;
        }
        if (find_stored(c, name_of, &t, &ignored) == 0) {
            const size_t at =
                t.packing == KVD_PLAIN ? (size_t)t.dtype : (size_t)KVD_BF16 + (size_t)t.packing;
            name[at] = kvd_tensor_type_name(&t);
            elements[at] += times * t.n;
        }
    }
    for (size_t k = 1; k < N_TYPES; k++)
        if (elements[k] > elements[best])
            best = k;
    return name[best] ? name[best] : "f32";
}

static int open_any(kvd_checkpoint *c, kvd_err *err)
{
    static const char accepted[] =
        "a folder with config.json and safetensors, a .safetensors or .gguf file, or a llama2.c .bin file";
    struct stat st;
    if (stat(c->path, &st))
        return kvd_fail(err,
                        "cannot open '%s': %s; models are read from this machine and not "
                        "downloaded: give %s",
                        c->path, strerror(errno), accepted);
    c->folder = S_ISDIR(st.st_mode);
    if (!c->folder && kvd_path_ends_with(c->path, ".bin")) {
        if (kvd_filemap_load(&c->llama2c, c->path, err))
            return -1;
        if (kvd_llama2c_parse(c->path, c->llama2c.bytes, c->llama2c.len, &c->config, err))
            return -1;
        c->dtype = "f32";
        name_embedding_and_head(c);
        return 0;
    }
    if (!c->folder && kvd_path_ends_with(c->path, ".gguf")) {
        c->gguf = kvd_gguf_model_open(c->path, &c->config, err);
        if (!c->gguf)
            return -1;
        name_embedding_and_head(c);
        c->dtype = most_common_dtype(c);
        return 0;
    }
    if (!c->folder && !kvd_path_ends_with(c->path, ".safetensors"))
        return kvd_fail(err, "'%s' is no checkpoint: give %s", c->path, accepted);
    if (c->folder ? open_folder(c, err) : open_file(c, err))
        return -1;
    name_embedding_and_head(c);
    find_base(c);
    if (check_tensors(c, err) || check_tied(c, err))
        return kvd_in(err, "'%s'", c->path);
    c->dtype = most_common_dtype(c);
    return 0;
}

static kvd_checkpoint *make(const char *path, kvd_err *err)
{
    kvd_checkpoint *c = kvd_new(1, sizeof *c, "a checkpoint", err);
    if (!c)
        return NULL;
    c->path = strdup(path);
    if (c->path)
        return c;
    kvd_no_memory(err, "a path", strlen(path) + 1);
    kvd_checkpoint_close(c);
    return NULL;
}

kvd_checkpoint *kvd_checkpoint_open(const char *path, kvd_err *err)
{
    kvd_checkpoint *c = make(path, err);
    if (!c || open_any(c, err)) {
        kvd_checkpoint_close(c);
        return NULL;
    }
    (void)snprintf(c->config.path, sizeof c->config.path, "%s", c->path);
    return c;
}

kvd_checkpoint *kvd_checkpoint_random(const char *path, const char *hash, const kvd_config *config,
                                      uint64_t seed, kvd_err *err)
{
    kvd_checkpoint *c = make(path, err);
    if (!c)
        return NULL;
    c->config = *config;
    (void)snprintf(c->config.path, sizeof c->config.path, "%s", c->path);
    c->seed = seed;
    c->dtype = "random";
    name_embedding_and_head(c);
    c->random_hash = strdup(hash);
    if (c->random_hash)
        return c;
    kvd_no_memory(err, "a hash", strlen(hash) + 1);
    kvd_checkpoint_close(c);
    return NULL;
}

int kvd_checkpoint_untrain(kvd_checkpoint *c, uint64_t seed, kvd_err *err)
{
    const kvd_config *const m = &c->config;
    char text[256], hash[40];
    /* In "untrained 1", the number is the version of the random generator. */
    const int n = snprintf(text, sizeof text, "untrained 1, seed %llu, %s %d %d %d %d %d %d",
                           (unsigned long long)seed, m->family, m->n_layers, m->n_heads,
                           m->n_kv_heads, m->d_head, m->d_model, m->vocab_size);
    const XXH128_hash_t h = XXH3_128bits(text, (size_t)n);
    (void)snprintf(hash, sizeof hash, "xxh3:%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
    c->random_hash = strdup(hash);
    if (!c->random_hash)
        return kvd_no_memory(err, "a hash", sizeof hash);
    c->seed = seed;
    c->dtype = "initial";
    return 0;
}

void kvd_checkpoint_close(kvd_checkpoint *c)
{
    if (!c)
        return;
    kvd_shards_release(&c->shards);
    kvd_filemap_release(&c->llama2c);
    kvd_gguf_model_close(c->gguf);
    free(c->random_hash);
    free(c->config_path);
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

const char *kvd_checkpoint_config_path(const kvd_checkpoint *c)
{
    return c->config_path;
}

const kvd_shards *kvd_checkpoint_shards(const kvd_checkpoint *c)
{
    return c->shards.n_files ? &c->shards : NULL;
}

void kvd_checkpoint_quantise(kvd_checkpoint *c, int bits, size_t group)
{
    assert(bits == 0 || (bits >= 2 && bits <= 8 && group >= 1 && group <= KVD_WEIGHT_GROUP));
    c->weight_bits = bits;
    c->weight_group = group;
}

int kvd_checkpoint_weight_bits(const kvd_checkpoint *c, size_t *group)
{
    *group = c->weight_group;
    return c->weight_bits;
}

const char *kvd_checkpoint_dtype(const kvd_checkpoint *c)
{
    return c->dtype;
}

int kvd_checkpoint_add_input(const kvd_checkpoint *c, kvd_run *run, kvd_err *err)
{
    return c->random_hash ? kvd_run_add_made_input(run, c->path, c->random_hash, err)
                          : kvd_run_add_model(run, c->path, err);
}

static int find_tensor(const kvd_checkpoint *c, const char *name, kvd_tensor *out, kvd_err *err)
{
    const bool shared =
        c->config.tied_head && (!strcmp(name, c->embedding_name) || !strcmp(name, c->head_name));
    if (!shared)
        return find_stored(c, name, out, err);
    const int status = find_stored(c, c->embedding_name, out, err);
    return status == 1 ? find_stored(c, c->head_name, out, err) : status;
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
    return kvd_fail(err, "'%s': tensor '%s' has shape [%s], the configuration needs [%zu%s]",
                    out->file, name, found, rows, columns);
}

/* Fails because the tokenizer file `wanted` is missing. model: path where a SentencePiece file may
 * exist, or NULL; the function frees it. */
static void fail_no_tokenizer(const char *path, const char *wanted, char *model, kvd_err *err)
{
    struct stat st;
    if (model && stat(model, &st) == 0)
        kvd_fail(
            err,
            "no tokenizer for '%s': %s is missing, and '%s' is a SentencePiece model, which is not read",
            path, wanted, model);
    else if (model)
        kvd_fail(err, "no tokenizer for '%s': %s is missing", path, wanted);
    free(model);
}

char *kvd_checkpoint_tokenizer_path(const kvd_checkpoint *c, kvd_err *err)
{
    char *found = NULL;
    if (strcmp(c->dtype, "random") == 0) {
        kvd_fail(err, "no tokenizer for '%s': random weights go with token ids", c->path);
    } else if (c->folder) {
        if (!kvd_path_take_existing(kvd_path_in_folder(c->path, "tokenizer.json", err), &found,
                                    err) &&
            !found)
            fail_no_tokenizer(c->path, "tokenizer.json",
                              kvd_path_in_folder(c->path, "tokenizer.model", err), err);
    } else if (c->llama2c.len) {
        if (!kvd_path_tok_bin(c->path, &found, err) &&
            !kvd_path_take_existing(kvd_path_beside(c->path, "tokenizer.bin", err), &found, err) &&
            !found)
            fail_no_tokenizer(c->path, "NAME.tok*.bin or tokenizer.bin",
                              kvd_path_with_ending(c->path, ".bin", ".tokenizer.model", err), err);
    } else if (c->gguf && kvd_gguf_model_has_tokenizer(c->gguf)) {
        found = strdup(c->path);
        if (!found)
            kvd_no_memory(err, "a path", strlen(c->path) + 1);
    } else {
        const char *ending = c->gguf ? ".gguf" : ".safetensors";
        if (!kvd_path_take_existing(kvd_path_with_ending(c->path, ending, ".tokenizer.json", err),
                                    &found, err) &&
            !kvd_path_take_existing(kvd_path_beside(c->path, "tokenizer.json", err), &found, err) &&
            !found)
            fail_no_tokenizer(c->path, "NAME.tokenizer.json or tokenizer.json",
                              kvd_path_with_ending(c->path, ending, ".tokenizer.model", err), err);
    }
    return found;
}
