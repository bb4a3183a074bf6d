#include "evaluate/tasks/journal.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/files/output.h"
#include "common/run.h"

struct kvd_journal {
    char *path;
    FILE *file;
    /* JSON array; each element has the results of sequences that ran together, and the file and
     * line that store them */
    json_t *groups;
    size_t n_saved;
    char **part;
    size_t n_parts;
    bool empty; /* true if this run created the file and has saved nothing */
};

/* bytes of a line's checksum: a space, 16 digits of XXH3, a line feed */
enum { CHECKSUM = 18 };

static void checksum(char *to, const char *text, size_t n)
{
    (void)snprintf(to, CHECKSUM + 1, " %016llx\n", (unsigned long long)XXH3_64bits(text, n));
}

static int write_line(kvd_journal *j, json_t *line, kvd_err *err)
{
    char *const text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text)
        return kvd_fail(err, "cannot write '%s': no text for a line", j->path);
    char end[CHECKSUM + 1];
    checksum(end, text, strlen(text));
    const bool ok =
        fprintf(j->file, "%s%s", text, end) > 0 && !fflush(j->file) && !fsync(fileno(j->file));
    free(text);
    return ok ? 0 : kvd_fail_errno(err, "cannot write '%s'", j->path);
}

static int check_key(const char *path, const json_t *first, const kvd_run_key *key, kvd_err *err)
{
    const char *const then = json_string_value(json_object_get(first, "key"));
    if (!then)
        return kvd_fail(err,
                        "'%s' does not begin with the key of a run; remove it, or run without "
                        "--resume",
                        path);
    return kvd_run_key_resume(path, then, key, err);
}

/* Reads a line of the journal. Fails if the first line has other options than this run, or if a
 * later line does not match its checksum. */
static int take_line(kvd_journal *j, const char *path, const char *line, size_t n, size_t number,
                     const kvd_run_key *key, kvd_err *err)
{
    char end[CHECKSUM + 1] = "";
    json_error_t why;
    const size_t text = n > CHECKSUM ? n - CHECKSUM : 0;
    checksum(end, line, text);
    const bool matches = text && !memcmp(line + text, end, CHECKSUM);
    if (number > 1 && !matches)
        return kvd_fail(err,
                        "'%s', line %zu does not match its checksum; remove the file, or run "
                        "without --resume",
                        path, number);
    json_t *const x = json_loadb(line, matches ? text : n, 0, &why);
    int status = 0;
    if (!x)
        status = kvd_fail(err, "'%s', line %zu: %s; remove the file, or run without --resume", path,
                          number, why.text);
    else if (number == 1)
        status = check_key(path, x, key, err);
    else if (json_object_set_new(x, "file", json_string(path)) ||
             json_object_set_new(x, "line", json_integer((json_int_t)number)) ||
             json_array_append(j->groups, x))
        status = kvd_no_memory(err, "saved sequences", n);
    else
        j->n_saved += json_array_size(json_object_get(x, "sequences"));
    json_decref(x);
    return status;
}

/* Reads all lines of a journal. *whole: number of bytes in complete lines; a killed run may have
 * left an incomplete last line. */
static int read_lines(kvd_journal *j, const char *path, FILE *f, const kvd_run_key *key,
                      long *whole, kvd_err *err)
{
    static const char begins[] = "{\"key\":";
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t n;
    int status = 0;
    *whole = 0;
    errno = 0;
    while (!status && (n = getline(&line, &room, f)) > 0) {
        const size_t same = (size_t)n < sizeof begins - 1 ? (size_t)n : sizeof begins - 1;
        number++;
        if (line[n - 1] == '\n') {
            status = take_line(j, path, line, (size_t)n, number, key, err);
            *whole += n;
        } else if (number == 1 && memcmp(line, begins, same)) {
            status = kvd_fail(err,
                              "'%s' is no file of saved sequences; remove it, or run without "
                              "--resume",
                              path);
        }
    }
    if (!status && !feof(f))
        status = kvd_fail_errno(err, "cannot read '%s'", path);
    free(line);
    return status;
}

static int begin(kvd_journal *j, const kvd_run_key *key, kvd_err *err)
{
    if (kvd_output_check_derived(j->path, err))
        return -1;
    FILE *const earlier = fopen(j->path, "r+");
    long whole = 0;
    if (!earlier && errno != ENOENT)
        return kvd_fail_errno(err, "cannot open '%s'", j->path);
    if (earlier) {
        j->file = earlier;
        if (read_lines(j, j->path, earlier, key, &whole, err))
            return -1;
        if (fseek(earlier, whole, SEEK_SET) || ftruncate(fileno(earlier), whole))
            return kvd_fail_errno(err, "cannot shorten '%s'", j->path);
    } else if (!(j->file = kvd_output_create(j->path, err))) {
        return -1;
    }
    if (whole)
        return 0;
    json_t *const first = json_pack("{s:s}", "key", key->text);
    const int status = first ? write_line(j, first, err) : kvd_no_memory(err, "a key", key->used);
    json_decref(first);
    j->empty = true;
    return status;
}

/* Reads the journal of one part of the run (--part), whose process may still be running. */
static int read_part(kvd_journal *j, char *path, const kvd_run_key *key, kvd_err *err)
{
    char **const grown = realloc(j->part, (j->n_parts + 1) * sizeof *grown);
    long whole;
    if (!grown) {
        free(path);
        return kvd_no_memory(err, "parts", (j->n_parts + 1) * sizeof *grown);
    }
    j->part = grown;
    grown[j->n_parts++] = path;
    if (kvd_output_check_derived(path, err))
        return -1;
    FILE *const f = fopen(path, "r");
    if (!f)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    const int status = read_lines(j, path, f, key, &whole, err);
    fclose(f);
    return status;
}

/* Returns true if `name` is PATH.I-of-N, the journal of part I of a run in N parts (--part). */
static bool is_part(const kvd_journal *j, const char *name)
{
    const char *const slash = strrchr(j->path, '/'), *const own = slash ? slash + 1 : j->path;
    const size_t n = strlen(own);
    unsigned part, parts;
    int end = 0;
    return !strncmp(name, own, n) && sscanf(name + n, ".%u-of-%u%n", &part, &parts, &end) == 2 &&
           end > 0 && !name[n + (size_t)end];
}

static int read_parts(kvd_journal *j, const kvd_run_key *key, kvd_err *err)
{
    const char *const slash = strrchr(j->path, '/');
    const int folder = slash ? (int)(slash - j->path) + 1 : 0;
    struct dirent **entry = NULL;
    char *where;
    if (asprintf(&where, "%.*s", folder ? folder : 1, folder ? j->path : ".") < 0)
        return kvd_no_memory(err, "a path", strlen(j->path));
    /* Sorts the names, so that the result does not depend on the order in the folder. */
    const int n = scandir(where, &entry, NULL, alphasort);
    int status = n < 0 ? kvd_fail_errno(err, "cannot read the folder '%s'", where) : 0;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (!status && is_part(j, entry[i]->d_name))
            status = asprintf(&path, "%.*s%s", folder, j->path, entry[i]->d_name) < 0
                         ? kvd_no_memory(err, "a path", strlen(j->path))
                         : read_part(j, path, key, err);
        free(entry[i]);
    }
    free(entry);
    free(where);
    return status;
}

kvd_journal *kvd_journal_open(const char *path, bool parts, const kvd_run_key *key, kvd_err *err)
{
    kvd_journal *const j = calloc(1, sizeof *j);
    if (!j || !(j->groups = json_array()) || !(j->path = strdup(path))) {
        kvd_journal_close(j);
        kvd_no_memory(err, "a journal", strlen(path) + sizeof *j);
        return NULL;
    }
    if (begin(j, key, err) || (parts && read_parts(j, key, err))) {
        kvd_journal_close(j);
        return NULL;
    }
    return j;
}

size_t kvd_journal_n_saved(const kvd_journal *j)
{
    return j->n_saved;
}

const char *kvd_journal_path(const kvd_journal *j)
{
    return j->path;
}

size_t kvd_journal_n_parts(const kvd_journal *j)
{
    return j->n_parts;
}

int kvd_journal_remove(kvd_journal *j, kvd_err *err)
{
    for (size_t i = 0; i < j->n_parts; i++)
        if (unlink(j->part[i]))
            return kvd_fail_errno(err, "cannot remove '%s'", j->part[i]);
    j->empty = false;
    j->n_saved = 0;
    return unlink(j->path) ? kvd_fail_errno(err, "cannot remove '%s'", j->path) : 0;
}

void kvd_journal_close(kvd_journal *j)
{
    if (!j)
        return;
    if (j->file)
        fclose(j->file);
    if (j->empty)
        unlink(j->path);
    json_decref(j->groups);
    for (size_t i = 0; i < j->n_parts; i++)
        free(j->part[i]);
    free(j->part);
    free(j->path);
    free(j);
}

static json_t *account_json(const kvd_stepwise_account *a)
{
    return json_pack("[I,f,f,f,f,f,f,I,I,I,I,I,I]", (json_int_t)a->rows, a->payload, a->side,
                     a->entries, a->dense, a->peak, a->read, (json_int_t)a->dropped,
                     (json_int_t)a->lowered, (json_int_t)a->coded, (json_int_t)a->merged,
                     (json_int_t)a->pruned, (json_int_t)a->unread);
}

static int account_of(json_t *x, kvd_stepwise_account *a)
{
    json_int_t n[7];
    *a = (kvd_stepwise_account){0};
    if (json_unpack(x, "[I,F,F,F,F,F,F,I,I,I,I,I,I]", &n[0], &a->payload, &a->side, &a->entries,
                    &a->dense, &a->peak, &a->read, &n[1], &n[2], &n[3], &n[4], &n[5], &n[6]))
        return -1;
    a->rows = (size_t)n[0];
    a->dropped = (size_t)n[1];
    a->lowered = (size_t)n[2];
    a->coded = (size_t)n[3];
    a->merged = (size_t)n[4];
    a->pruned = (size_t)n[5];
    a->unread = (size_t)n[6];
    return 0;
}

static json_t *sequence_json(const kvd_continued *out, size_t sequence, size_t from, size_t to)
{
    json_t *const x = json_object(), *const token = json_array(), *const log_p = json_array(),
                  *const rank = json_array();
    for (size_t i = from; i < to; i++) {
        if (out->token)
            json_array_append_new(token, json_integer(out->token[i]));
        if (out->log_p)
            json_array_append_new(log_p, json_real(out->log_p[i]));
        if (out->rank)
            json_array_append_new(rank, json_integer(out->rank[i]));
    }
    json_object_set_new(x, "s", json_integer((json_int_t)sequence));
    json_object_set_new(x, "token", token);
    json_object_set_new(x, "log_p", log_p);
    json_object_set_new(x, "rank", rank);
    if (out->cost) {
        const kvd_continued_cost *const k = &out->cost[sequence];
        json_object_set_new(x, "cost",
                            json_pack("[f,f,f,f,I]", k->prompt_bits, k->bits, k->prompt_s,
                                      k->steps_s, (json_int_t)k->steps));
    }
    return x;
}

static int sequence_of(json_t *x, const kvd_continued *out, size_t sequence, size_t from, size_t to)
{
    json_t *const token = json_object_get(x, "token"), *const log_p = json_object_get(x, "log_p"),
                  *const rank = json_object_get(x, "rank");
    const size_t n = to - from;
    json_int_t steps;
    if ((out->token && json_array_size(token) != n) ||
        (out->log_p && json_array_size(log_p) != n) || (out->rank && json_array_size(rank) != n))
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (out->token)
            out->token[from + i] = (uint32_t)json_integer_value(json_array_get(token, i));
        if (out->log_p)
            out->log_p[from + i] = json_real_value(json_array_get(log_p, i));
        if (out->rank)
            out->rank[from + i] = (uint32_t)json_integer_value(json_array_get(rank, i));
    }
    if (out->cost) {
        kvd_continued_cost *const k = &out->cost[sequence];
        if (json_unpack(json_object_get(x, "cost"), "[F,F,F,F,I]", &k->prompt_bits, &k->bits,
                        &k->prompt_s, &k->steps_s, &steps))
            return -1;
        k->steps = (size_t)steps;
    }
    return 0;
}

typedef struct {
    kvd_journal *journal;
    const char *run;
    const kvd_continuations *c;
    const kvd_continued *out;
    bool *done; /* [c->n_sequences] */
    /* [c->n_sequences] cache statistics of a batch of sequences that ran together, at the index of
     * the batch's first sequence; 0 at all other indices */
    kvd_stepwise_account *account;
    kvd_progress *progress;
} saved_call;

static void on_advance(void *ctx, double n)
{
    kvd_progress *const progress = ctx;
    if (progress)
        kvd_progress_step(progress, progress->done + n);
}

static int check_interrupted(void *ctx, size_t first, size_t n, const kvd_stepwise_account *account,
                             kvd_err *err)
{
    (void)ctx;
    (void)first;
    (void)n;
    (void)account;
    return kvd_interrupted() ? kvd_fail_interrupted(err) : 0;
}

/* Copies the saved results of sequences that ran together. Copies nothing if one of these sequences
 * already has a result. */
static int take_group(saved_call *r, json_t *group, size_t *n)
{
    json_t *const sequences = json_object_get(group, "sequences");
    const size_t all = r->c->n_sequences, count = json_array_size(sequences);
    const json_int_t first = json_integer_value(json_object_get(json_array_get(sequences, 0), "s"));
    kvd_stepwise_account a;
    *n = 0;
    if (account_of(json_object_get(group, "account"), &a) || first < 0 || !count ||
        (size_t)first >= all || count > all - (size_t)first)
        return -1;
    for (size_t k = 0; k < count; k++)
        if (r->done[(size_t)first + k])
            return 0;
    for (size_t k = 0; k < count; k++) {
        const size_t s = (size_t)first + k;
        json_t *const x = json_array_get(sequences, k);
        if (json_integer_value(json_object_get(x, "s")) != (json_int_t)s ||
            sequence_of(x, r->out, s, r->c->end[s], r->c->end[s + 1]))
            return -1;
        r->done[s] = true;
    }
    r->account[first] = a;
    *n = count;
    return 0;
}

static int take_saved(saved_call *r, kvd_err *err)
{
    size_t i, n;
    json_t *group;
    json_array_foreach(r->journal->groups, i, group)
    {
        const char *const run = json_string_value(json_object_get(group, "run"));
        if (!run || strcmp(run, r->run))
            continue;
        if (take_group(r, group, &n))
            return kvd_fail(err,
                            "'%s', line %lld does not fit this run; remove the file, or run "
                            "without --resume",
                            json_string_value(json_object_get(group, "file")),
                            (long long)json_integer_value(json_object_get(group, "line")));
        if (!n)
            continue;
        on_advance(r->progress, (double)n);
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
    }
    return 0;
}

static int save_step(void *ctx, size_t first, size_t n, const kvd_stepwise_account *account,
                     kvd_err *err)
{
    saved_call *const r = ctx;
    json_t *const sequences = json_array();
    for (size_t s = first; s < first + n; s++)
        json_array_append_new(sequences, sequence_json(r->out, s, r->c->end[s], r->c->end[s + 1]));
    json_t *const line = json_pack("{s:s, s:o, s:o}", "run", r->run, "account",
                                   account_json(account), "sequences", sequences);
    const int status =
        line ? write_line(r->journal, line, err) : kvd_no_memory(err, "a line of the journal", n);
    json_decref(line);
    r->journal->empty = false;
    r->journal->n_saved += n;
    r->account[first] = *account;
    return status || check_interrupted(NULL, first, n, account, err) ? -1 : 0;
}

int kvd_journal_generate(kvd_journal *j, const char *run, kvd_generator *g, const kvd_plan *plan,
                         const kvd_continuations *c, const kvd_continued *out,
                         kvd_stepwise_account *account, kvd_progress *progress, kvd_err *err)
{
    kvd_continuations counted = *c;
    counted.advanced = on_advance;
    counted.advanced_ctx = progress;
    if (!j)
        return kvd_generate(g, plan, &counted, out, account, check_interrupted, NULL, err);
    const size_t n = c->n_sequences;
    saved_call r = {.journal = j,
                    .run = run,
                    .c = c,
                    .out = out,
                    .done = calloc(n + 1, sizeof *r.done),
                    .account = calloc(n + 1, sizeof *r.account),
                    .progress = progress};
    counted.done = r.done;
    int status = r.done && r.account ? 0 : kvd_no_memory(err, "sequences", n * sizeof *r.account);
    status = status || take_saved(&r, err) ||
             kvd_generate(g, plan, &counted, out, NULL, save_step, &r, err);
    for (size_t s = 0; account && !status && s < n; s++)
        kvd_stepwise_account_add(account, &r.account[s]);
    free(r.done);
    free(r.account);
    return status ? -1 : 0;
}
