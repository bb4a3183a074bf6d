#include "collect/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char magic[] = "kvdim-collect state 1";
static const kvd_g summed[] = {KVD_G_Q, KVD_G_K, KVD_G_V, KVD_G_Q_PRE, KVD_G_K_PRE};
enum { N_SUMMED = sizeof summed / sizeof *summed };

/* ---- files ----------------------------------------------------------- */

/* A file and the hash of what went through it. */
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
    if (XXH3_64bits_update(s->hash, data, bytes) == XXH_ERROR)
        return kvd_fail(err, "cannot hash '%s'", s->path);
    return 0;
}

static int open_stream(stream *s, const char *path, const char *mode, kvd_err *err)
{
    s->path = path;
    if (!(s->f = fopen(path, mode)))
        return kvd_fail_errno(err, "cannot open '%s'", path);
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

static int sync_folder(const char *path, kvd_err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder)
        return kvd_no_memory(err, "a path", strlen(path));
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync a folder (EINVAL); the rename is then as safe as they make it. */
    const bool failed = fd < 0 || (fsync(fd) && errno != EINVAL);
    if (failed)
        kvd_fail_errno(err, "cannot sync folder '%s'", folder);
    if (fd >= 0)
        close(fd);
    free(folder);
    return failed ? -1 : 0;
}

/* Numbers of 8 bytes. */
static size_t total_sums(const kvd_moments *sums, const kvd_attention_stats *stats)
{
    size_t n = stats ? stats->n_words : 0;
    for (int i = 0; i < N_SUMMED && sums; i++)
        n += kvd_moments_count(sums, summed[i]);
    return n;
}

int kvd_state_save(const char *path, const kvd_state *s, const kvd_moments *sums,
                   const kvd_attention_stats *stats, kvd_err *err)
{
    stream to = {0};
    int status = -1;
    char head[sizeof s->key + 512];
    char *partial = NULL;
    if (asprintf(&partial, "%s.new", path) < 0)
        return kvd_no_memory(err, "a path", strlen(path) + 5);
    const int n =
        snprintf(head, sizeof head, "%s\nrun_id=%s\nsequences=%zu\ntokens=%zu\nsums=%zu\nkey=%zu\n%s", magic,
                 s->run_id, s->n_sequences, s->n_tokens, total_sums(sums, stats), strlen(s->key), s->key);
    if (open_stream(&to, partial, "wb", err) || put(&to, head, (size_t)n, err))
        goto done;
    for (int i = 0; i < N_SUMMED && sums; i++)
        if (sums->gram[summed[i]] &&
            put(&to, sums->gram[summed[i]], kvd_moments_count(sums, summed[i]) * sizeof(double), err))
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
        unlink(partial); /* frees what a full disk needs; a failure leaves a file that nobody reads */
    }
    free(partial);
    return status;
}

/* The text lines in front of the sums. */
static int get_head(stream *from, kvd_state *s, size_t *n_sums, kvd_err *err)
{
    char line[128], *end;
    size_t key = 0;
    const char *const name[] = {"run_id", "sequences", "tokens", "sums", "key"};
    for (int i = -1; i < 5; i++) {
        if (!fgets(line, sizeof line, from->f) || !(end = strchr(line, '\n')))
            return kvd_fail(err, "'%s' is damaged: line %d of its head", from->path, i + 2);
        if (XXH3_64bits_update(from->hash, line, strlen(line)) == XXH_ERROR)
            return kvd_fail(err, "cannot hash '%s'", from->path);
        *end = '\0';
        if (i < 0) {
            if (strcmp(line, magic))
                return kvd_fail(err, "'%s' is not a '%s' file", from->path, magic);
            continue;
        }
        const size_t n = strlen(name[i]);
        if (strncmp(line, name[i], n) || line[n] != '=')
            return kvd_fail(err, "'%s' is damaged: no %s in line %d", from->path, name[i], i + 2);
        const char *value = line + n + 1;
        const size_t number = strtoull(value, &end, 10);
        if (i == 0)
            snprintf(s->run_id, sizeof s->run_id, "%.*s", (int)sizeof s->run_id - 1, value);
        else if (*end || end == value)
            return kvd_fail(err, "'%s' is damaged: %s is '%s'", from->path, name[i], value);
        else
            *(i == 1 ? &s->n_sequences : i == 2 ? &s->n_tokens : i == 3 ? n_sums : &key) = number;
    }
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
    if (open_stream(&from, path, "rb", err) || get_head(&from, s, &n_sums, err))
        goto done;
    if (strcmp(s->key, now->text)) {
        status = 0;
        goto done;
    }
    if (n_sums != total_sums(sums, stats)) {
        kvd_fail(err, "'%s' is damaged: %zu sums, should be %zu", path, n_sums, total_sums(sums, stats));
        goto done;
    }
    for (int i = 0; i < N_SUMMED && sums; i++)
        if (sums->gram[summed[i]] &&
            get(&from, sums->gram[summed[i]], kvd_moments_count(sums, summed[i]) * sizeof(double), err))
            goto done;
    if (stats && get(&from, stats->word, stats->n_words * sizeof *stats->word, err))
        goto done;
    const uint64_t want = XXH3_64bits_digest(from.hash);
    uint64_t hash;
    if (get(&from, &hash, sizeof hash, err))
        goto done;
    if (hash != want || fgetc(from.f) != EOF) {
        kvd_fail(err, "'%s' is damaged: its checksum differs", path);
        goto done;
    }
    status = 0;
done:
    close_stream(&from);
    return status;
}
