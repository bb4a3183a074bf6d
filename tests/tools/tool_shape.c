/* usage: tool_shape NAME FOLDER [KEY=VALUE]...
 *
 * Writes a published model shape with random weights as a Hugging Face folder.
 *
 * dtype=bf16|f16|f32  type of the weights (default bf16)
 * shard-mb=N          size of a file in MB (default 5000)
 * seed=N              seed of the weights (default 1)
 * config=1            config.json alone
 * tokenizer=FILE      also tokenizer.json: BPE tokenizer FILE, extended to vocab_size tokens
 * KEY=NUMBER          replaces KEY in config.json */
#include <jansson.h>

#include "write_shape.h"

typedef struct {
    kvd_dtype dtype;
    size_t shard_bytes;
    uint64_t seed;
    bool config_only;
    const char *tokenizer;
    json_t *json;
} settings;

static int set(settings *s, const char *text, kvd_err *err)
{
    const char *equals = strchr(text, '=');
    char key[64];
    if (!equals || equals - text >= (int)sizeof key)
        return kvd_fail(err, "'%s' is not KEY=VALUE", text);
    (void)snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    const char *value = equals + 1;
    if (strcmp(key, "dtype") == 0) {
        for (int t = KVD_F32; t <= KVD_BF16; t++)
            if (strcmp(value, kvd_dtype_name((kvd_dtype)t)) == 0) {
                s->dtype = (kvd_dtype)t;
                return 0;
            }
        return kvd_fail(err, "no dtype '%s'", value);
    }
    if (strcmp(key, "tokenizer") == 0) {
        s->tokenizer = value;
        return 0;
    }
    char *end;
    const long long number = strtoll(value, &end, 10);
    if (*end || end == value || number < 0)
        return kvd_fail(err, "'%s' is no number", text);
    if (strcmp(key, "shard-mb") == 0)
        s->shard_bytes = (size_t)number * 1000000;
    else if (strcmp(key, "seed") == 0)
        s->seed = (uint64_t)number;
    else if (strcmp(key, "config") == 0)
        s->config_only = number != 0;
    else if (!json_object_get(s->json, key))
        return kvd_fail(err, "config.json has no '%s'", key);
    else
        (void)json_object_set_new(s->json, key, json_integer(number));
    return 0;
}

static int write_tokenizer(const settings *s, const char *folder, kvd_err *err)
{
    char path[4096], piece[32];
    json_error_t why;
    json_t *const all = json_load_file(s->tokenizer, 0, &why);
    json_t *const vocab = json_object_get(json_object_get(all, "model"), "vocab");
    const json_int_t size = json_integer_value(json_object_get(s->json, "vocab_size"));
    if (!json_is_object(vocab)) {
        json_decref(all);
        return kvd_fail(err, "'%s': %s", s->tokenizer, all ? "no BPE vocabulary" : why.text);
    }
    for (json_int_t id = (json_int_t)json_object_size(vocab); id < size; id++) {
        (void)snprintf(piece, sizeof piece, "<further_%lld>", (long long)id);
        (void)json_object_set_new(vocab, piece, json_integer(id));
    }
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    const int status = json_dump_file(all, path, JSON_COMPACT);
    json_decref(all);
    return status ? kvd_fail_errno(err, "cannot write '%s'", path) : 0;
}

static int make(const kvd_shape *published, const char *folder, int n, char **more, kvd_err *err)
{
    settings s = {.dtype = KVD_BF16, .shard_bytes = 5000000000, .seed = 1};
    int status = 0;
    s.json = json_loads(published->json, 0, NULL);
    for (int i = 0; i < n && !status; i++)
        status = set(&s, more[i], err);
    char *text = status ? NULL : json_dumps(s.json, JSON_INDENT(2));
    if (!text) {
        json_decref(s.json);
        return status ? status : kvd_fail(err, "cannot write the configuration as text");
    }
    kvd_shape shape = *published;
    shape.json = text;
    if (s.config_only)
        status = written_folder(folder, err) || written_config(folder, text, err) ? -1 : 0;
    else
        status = write_shape(folder, &shape, s.seed, s.dtype, s.shard_bytes, err);
    status = status || (s.tokenizer && write_tokenizer(&s, folder, err)) ? -1 : 0;
    json_decref(s.json);
    free(text);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        (void)fprintf(stderr, "usage: tool_shape NAME FOLDER [KEY=VALUE]...\n");
        return 2;
    }
    kvd_err err = {""};
    const kvd_shape *shape = kvd_shape_find(argv[1], &err);
    if (!shape || make(shape, argv[2], argc - 3, argv + 3, &err)) {
        (void)fprintf(stderr, "tool_shape: %s\n", err.msg);
        return 1;
    }
    return 0;
}
