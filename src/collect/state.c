#include "collect/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/files/output.h"

static const char magic[] = "kvdim-collect state 2";
static const kvd_g summed[] = {KVD_G_Q, KVD_G_K, KVD_G_V, KVD_G_Q_PRE, KVD_G_K_PRE};
enum { N_SUMMED = sizeof summed / sizeof *summed };

/* An open state file (a run's progress, for --resume), with the hash of all bytes so far. */
typedef struct {
    FILE *f;
    XXH3_state_t *hash;
    const char *path;
} stream;

static int put(stream *s, const void *data, size_t bytes, kvd_err *err)
{
    if (XXH3_64bits_update(s->hash, data, bytes) == XXH_ERROR)
        return kvd_fail(err, "cannot hash '%s'", s->path);
    if (fwrite(data, 1, bytes, s->f) != bytes)
        return kvd_fail_errno(err, "cannot write '%s'", s->path);
    return 0;
}

static int get(stream *s, void *data, size_t bytes, kvd_err *err)
{
    if (fread(data, 1, bytes, s->f) != bytes)
        return ferror(s->f) ? kvd_fail_errno(err, "cannot read '%s'", s->path)
                            : kvd_fail(err, "'%s' is damaged: it ends too early", s->path);
    return 0;
}

static int open_stream(stream *s, const char *path, bool writing, kvd_err *err)
{
    s->path = path;
    if (!(s->f = writing ? kvd_output_create(path, err) : fopen(path, "rb")))
        return writing ? -1 : kvd_fail_errno(err, "cannot open '%s'", path);
    if (!(s->hash = XXH3_createState()) || XXH3_64bits_reset(s->hash) == XXH_ERROR)
        return kvd_fail(err, "cannot hash '%s'", path);
    return 0;
}

static int close_stream(stream *s)
{
    const int status = s->f ? fclose(s->f) : 0;
    XXH3_freeState(s->hash);
    s->f = NULL;
    s->hash = NULL;
    return status;
}

/* Compares the hash of the file's content with the hash in its last 8 bytes, then rewinds. */
static int verify(stream *s, kvd_err *err)
{
    char block[1 << 13];
    uint64_t hash = 0;
    off_t left = 0;
    if (!fseeko(s->f, 0, SEEK_END) && (left = ftello(s->f) - (off_t)sizeof hash) < 0)
        return kvd_fail(err, "'%s' is damaged: it ends too early", s->path);
    rewind(s->f);
    while (left) {
        const size_t n = left < (off_t)sizeof block ? (size_t)left : sizeof block;
        if (get(s, block, n, err))
            return -1;
        if (XXH3_64bits_update(s->hash, block, n) == XXH_ERROR)
            return kvd_fail(err, "cannot hash '%s'", s->path);
        left -= (off_t)n;
    }
    if (get(s, &hash, sizeof hash, err))
        return -1;
    if (hash != XXH3_64bits_digest(s->hash))
        return kvd_fail(err, "'%s' is damaged: its checksum differs", s->path);
    rewind(s->f);
    return 0;
}

static int sync_folder(const char *path, kvd_err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder)
        return kvd_no_memory(err, "a path", strlen(path));
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: the file system cannot sync folders */
    const bool failed = fd < 0 || (fsync(fd) && errno != EINVAL);
    if (failed)
        kvd_fail_errno(err, "cannot sync folder '%s'", folder);
    if (fd >= 0)
        close(fd);
    free(folder);
    return kvd_status(failed);
}

static size_t total_sums(const kvd_moments *sums, const kvd_attention_stats *stats)
{
    size_t n = stats ? stats->n_words : 0;
    for (int i = 0; i < N_SUMMED && sums; i++)
        n += kvd_moments_count(sums, summed[i]);
    return n;
}

static char *name_of_new(const char *path, kvd_err *err)
{
    char *name;
    if (asprintf(&name, "%s.new", path) >= 0)
        return name;
    kvd_no_memory(err, "a path", strlen(path) + 5);
    return NULL;
}

int kvd_state_check(const char *path, kvd_err *err)
{
    char *const partial = name_of_new(path, err);
    const int status = kvd_status(!partial || kvd_output_check_derived(path, err) ||
                                  kvd_output_check_derived(partial, err));
    free(partial);
    return status;
}

int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err)
{
    stream to = {0};
    int status = -1;
    char head[sizeof s->key + 512];
    char *const partial = name_of_new(path, err);
    if (!partial)
        return -1;
    const int n = snprintf(head, sizeof head,
                           "%s\nrun_id=%s\nsequences=%zu\ntokens=%zu\ndump=%" PRIu64
                           "\nsums=%zu\nkey=%zu\n%s",
                           magic, s->run_id, s->n_sequences, s->n_tokens, s->dump_checksum,
                           total_sums(sums, stats), strlen(s->key), s->key);
    if (open_stream(&to, partial, true, err)) {
        close_stream(&to);
        free(partial);
        return -1;
    }
    if (put(&to, head, (size_t)n, err))
        goto done;
    for (int i = 0; i < N_SUMMED && sums; i++)
        if (sums->gram[summed[i]] && put(&to, sums->gram[summed[i]],
                                         kvd_moments_count(sums, summed[i]) * sizeof(double), err))
            goto done;
    if (stats && put(&to, stats->word, stats->n_words * sizeof *stats->word, err))
        goto done;
    const uint64_t hash = XXH3_64bits_digest(to.hash);
    if (put(&to, &hash, sizeof hash, err))
        goto done;
    if (fflush(to.f) || fdatasync(fileno(to.f))) {
        kvd_fail_errno(err, "cannot write '%s'", partial);
        goto done;
    }
    if (close_stream(&to)) {
        kvd_fail_errno(err, "cannot close '%s'", partial);
        goto done;
    }
    if (rename(partial, path)) {
        kvd_fail_errno(err, "cannot rename '%s' to '%s'", partial, path);
        goto done;
    }
    status = sync_folder(path, err);
done:
    if (status) {
        close_stream(&to);
        /* frees space on a full disk */
        unlink(partial);
    }
    free(partial);
    return status;
}

static int get_head(stream *from, kvd_state *s, size_t *n_sums, kvd_err *err)
{
    enum { RUN_ID, SEQUENCES, TOKENS, DUMP, SUMS, KEY, N_LINES };
    static const char *const name[N_LINES] = {"run_id", "sequences", "tokens",
                                              "dump",   "sums",      "key"};
    char line[128], *end;
    uint64_t number[N_LINES] = {0};
    if (!fgets(line, sizeof line, from->f) || strncmp(line, magic, sizeof magic - 1) ||
        strcmp(line + sizeof magic - 1, "\n"))
        return kvd_fail(err, "'%s' is not a '%s' file", from->path, magic);
    for (int i = 0; i < N_LINES; i++) {
        const size_t n = strlen(name[i]);
        if (!fgets(line, sizeof line, from->f) || !(end = strchr(line, '\n')) ||
            strncmp(line, name[i], n) || line[n] != '=')
            return kvd_fail(err, "'%s' is damaged: no %s in line %d", from->path, name[i], i + 2);
        *end = '\0';
        const char *const value = line + n + 1;
        if (i == RUN_ID) {
            snprintf(s->run_id, sizeof s->run_id, "%.*s", (int)sizeof s->run_id - 1, value);
            continue;
        }
        number[i] = strtoull(value, &end, 10);
        if (*end || end == value)
            return kvd_fail(err, "'%s' is damaged: %s is '%s'", from->path, name[i], value);
    }
    s->n_sequences = (size_t)number[SEQUENCES];
    s->n_tokens = (size_t)number[TOKENS];
    s->dump_checksum = number[DUMP];
    *n_sums = (size_t)number[SUMS];
    const size_t key = (size_t)number[KEY];
    if (key >= sizeof s->key)
        return kvd_fail(err, "'%s' is damaged: key of %zu bytes", from->path, key);
    if (get(from, s->key, key, err))
        return -1;
    s->key[key] = '\0';
    return 0;
}

int kvd_state_load(const char *path, kvd_state *s, const kvd_run_key *now, kvd_moments *sums,
                   kvd_attention_stats *stats, int *found, kvd_err *err)
{
    stream from = {0};
    int status = -1;
    size_t n_sums = 0;
    memset(s, 0, sizeof *s);
    *found = access(path, F_OK) == 0;
    if (!*found)
        return 0;
    if (open_stream(&from, path, false, err) || verify(&from, err) ||
        get_head(&from, s, &n_sums, err))
        goto done;
    if (strcmp(s->key, now->text)) {
        status = 0;
        goto done;
    }
    if (n_sums != total_sums(sums, stats)) {
        kvd_fail(err, "'%s' is damaged: %zu sums, should be %zu", path, n_sums,
                 total_sums(sums, stats));
        goto done;
    }
    for (int i = 0; i < N_SUMMED && sums; i++)
        if (sums->gram[summed[i]] && get(&from, sums->gram[summed[i]],
                                         kvd_moments_count(sums, summed[i]) * sizeof(double), err))
            goto done;
    if (stats && get(&from, stats->word, stats->n_words * sizeof *stats->word, err))
        goto done;
    status = 0;
done:
    close_stream(&from);
    return status;
}
