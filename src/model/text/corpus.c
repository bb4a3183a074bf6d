#include "model/text/corpus.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/files/csv.h"
#include "common/rng.h"
#include "common/run.h"
#include "common/utf8.h"
#include "model/text/documents.h"

enum { BEGIN_BYTES = 256 };

struct kvd_corpus {
    FILE *ids; /* temporary file with all token ids as uint32 */
    FILE *starts;
    /* array [n_sequences + 1] in a mapped file: number of tokens before each sequence, then the
     * number of all tokens */
    const uint64_t *start;
    size_t start_bytes;
    size_t n_tokens, n_sequences, n_documents, n_dropped;
    /* text_first [n_texts + 1]: number of sequences before each text; the last element is
     * n_sequences */
    size_t n_texts, *text_first;
    char hash[KVD_CORPUS_HASH_TEXT];
    char begin[BEGIN_BYTES]; /* first bytes of the texts */
    size_t n_begin;
};

/* state while documents are cut into sequences of at most seq_len tokens */
typedef struct {
    const kvd_corpus_spec *spec;
    const kvd_tokenizer *tok;
    kvd_corpus *c;
    XXH3_state_t *hash;
    uint32_t *window;
    size_t n_window;
    kvd_ids ids;
    /* number of tokens left out, because a sequence needs at least 2 tokens */
    size_t passed_over;
    /* true if the previous sequence was cut one token early, so that the current sequence can have
     * 2 tokens */
    bool shortened;
    bool full;
    /* number of tokens, from earlier texts, that the limit max_tokens does not count */
    size_t before;
} cutter;

static FILE *open_spool(kvd_err *err)
{
    const char *folder[] = {getenv("TMPDIR"), "/var/tmp", "/tmp"};
    int fd = -1;
    for (size_t i = 0; i < sizeof folder / sizeof *folder && fd < 0; i++) {
        if (!folder[i] || !*folder[i])
            continue;
        fd = open(folder[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0) {
            char name[4096];
            if (snprintf(name, sizeof name, "%s/kvdim-ids-XXXXXX", folder[i]) >= (int)sizeof name)
                continue;
            fd = mkostemp(name, O_CLOEXEC);
            if (fd >= 0)
                unlink(name);
        }
    }
    if (fd < 0) {
        kvd_fail_errno(err,
                       "cannot make a temporary file for token ids in $TMPDIR, /var/tmp or /tmp");
        return NULL;
    }
    FILE *f = fdopen(fd, "w+b");
    if (!f) {
        kvd_fail_errno(err, "cannot open a temporary file for token ids");
        close(fd);
    }
    return f;
}

static int spool(FILE *f, const void *data, size_t size, size_t n, kvd_err *err)
{
    if (fwrite(data, size, n, f) != n)
        return kvd_fail_errno(err, "cannot write token ids to a temporary file");
    return 0;
}

static int add_window(XXH3_state_t *hash, const uint32_t *id, size_t n, kvd_err *err)
{
    const uint64_t length = n;
    if (XXH3_128bits_update(hash, &length, sizeof length) == XXH_ERROR ||
        XXH3_128bits_update(hash, id, n * sizeof *id) == XXH_ERROR)
        return kvd_fail(err, "cannot hash token ids");
    return 0;
}

static void put_digest(const kvd_corpus *c, const XXH3_state_t *hash,
                       char text[KVD_CORPUS_HASH_TEXT])
{
    const XXH128_hash_t h = XXH3_128bits_digest(hash);
    const int n = snprintf(text, KVD_CORPUS_HASH_TEXT, "xxh3:%016llx%016llx",
                           (unsigned long long)h.high64, (unsigned long long)h.low64);
    if (c->n_begin == BEGIN_BYTES)
        snprintf(text + n, (size_t)(KVD_CORPUS_HASH_TEXT - n), "+%016llx",
                 (unsigned long long)XXH3_64bits(c->begin, BEGIN_BYTES));
}

static int spool_window(cutter *k, size_t n, kvd_err *err)
{
    kvd_corpus *c = k->c;
    if (kvd_interrupted())
        return kvd_fail_interrupted(err);
    if (add_window(k->hash, k->window, n, err))
        return -1;
    c->n_tokens += n;
    c->n_sequences++;
    const uint64_t end = c->n_tokens;
    if (spool(c->ids, k->window, sizeof *k->window, n, err) ||
        spool(c->starts, &end, sizeof end, 1, err))
        return -1;
    k->full = k->spec->max_tokens && c->n_tokens - k->before == k->spec->max_tokens;
    return 0;
}

/* Writes collected tokens as one sequence, up to the limit max_tokens. Keeps the other tokens for
 * the next sequence. */
static int cut(cutter *k, kvd_err *err)
{
    const size_t max = k->spec->max_tokens;
    size_t take = k->n_window;
    k->shortened = false;
    if (max) {
        const size_t left = max - (k->c->n_tokens - k->before);
        if (take > left)
            take = left;
        if (left - take == 1) {
            /* Only 1 token would remain for the next sequence, which needs at least 2. */
            if (take == 2) {
                k->passed_over += k->n_window;
                k->n_window = 0;
                return 0;
            }
            take--;
            k->shortened = true;
        }
    }
    if (spool_window(k, take, err))
        return -1;
    k->n_window -= take;
    memmove(k->window, k->window + take, k->n_window * sizeof *k->window);
    return 0;
}

static int push(cutter *k, const uint32_t *id, size_t n, kvd_err *err)
{
    while (n && !k->full) {
        size_t m = k->spec->seq_len - k->n_window;
        if (m > n)
            m = n;
        memcpy(k->window + k->n_window, id, m * sizeof *id);
        k->n_window += m;
        id += m;
        n -= m;
        if (k->n_window == k->spec->seq_len && cut(k, err))
            return -1;
    }
    return 0;
}

static int end_document(cutter *k, kvd_err *err)
{
    while (!k->full && k->n_window >= 2)
        if (cut(k, err))
            return -1;
    if (!k->full)
        k->c->n_dropped += k->n_window;
    if (!k->full && k->shortened)
        k->passed_over += k->n_window;
    k->shortened = false;
    k->n_window = 0;
    k->c->n_documents++;
    return 0;
}

static int push_document(cutter *k, kvd_err *err)
{
    return push(k, k->ids.id, k->ids.n, err) || end_document(k, err) ? -1 : 0;
}

/* Appends the ids of a document except the first *pushed, which are appended already. */
static int push_text(cutter *k, const char *text, size_t len, bool start, size_t *pushed,
                     kvd_err *err)
{
    k->ids.n = 0;
    if (start ? kvd_tokenizer_encode_start(k->tok, text, len, !k->spec->no_special, &k->ids, err)
              : kvd_tokenizer_encode(k->tok, text, len, !k->spec->no_special, &k->ids, err))
        return -1;
    for (size_t i = *pushed; i < k->ids.n; i++)
        if (k->ids.id[i] >= k->spec->vocab_size)
            return kvd_fail(err, "the tokenizer gives id %lu, the model's vocabulary has %zu",
                            (unsigned long)k->ids.id[i], k->spec->vocab_size);
    /* Reading more of a text never changes or removes the ids that its beginning gave. */
    assert(k->ids.n >= *pushed);
    if (push(k, k->ids.id + *pushed, k->ids.n - *pushed, err))
        return -1;
    *pushed = k->ids.n;
    return 0;
}

/* Estimates how many more bytes of text must be tokenized to reach max_tokens tokens. */
static size_t likely_bytes(const cutter *k)
{
    const size_t missing = k->spec->max_tokens - (k->c->n_tokens - k->before) + k->spec->seq_len;
    return missing < SIZE_MAX / 16 ? 4096 + 6 * missing : SIZE_MAX;
}

static int add_text(void *ctx, const char *text, size_t len, kvd_err *err)
{
    cutter *k = ctx;
    size_t pushed = 0;
    kvd_corpus *const c = k->c;
    const size_t more = len < BEGIN_BYTES - c->n_begin ? len : BEGIN_BYTES - c->n_begin;
    memcpy(c->begin + c->n_begin, text, more);
    c->n_begin += more;
    if (k->spec->max_tokens)
        for (size_t n = likely_bytes(k); n < len / 2 && !k->full; n *= 2)
            if (push_text(k, text, n, true, &pushed, err))
                return -1;
    if ((!k->full && push_text(k, text, len, false, &pushed, err)) || end_document(k, err))
        return -1;
    return k->full;
}

static int check_amount(const cutter *k, const char *where, kvd_err *err)
{
    const kvd_corpus *c = k->c;
    const size_t max = k->spec->max_tokens, have = c->n_tokens - k->before,
                 n = have + k->passed_over;
    if (!have)
        return kvd_fail(err, "'%s': no sequence of at least 2 tokens", where);
    if (max && n < max)
        return kvd_fail(err, "'%s': %zu tokens, fewer than the %zu asked for", where, n, max);
    if (max && have < max)
        return kvd_fail(err, "'%s': sequences of 2 and more do not add up to %zu tokens", where,
                        max);
    return 0;
}

static int end_text(cutter *k, const char *path, kvd_err *err)
{
    kvd_corpus *const c = k->c;
    c->text_first[++c->n_texts] = c->n_sequences;
    if (!k->full && c->n_sequences == c->text_first[c->n_texts - 1])
        return kvd_fail(err, "'%s': no sequence of at least 2 tokens", path);
    if (!k->spec->by_text)
        return 0;
    if (check_amount(k, path, err))
        return -1;
    k->before = c->n_tokens;
    k->passed_over = 0;
    k->full = false;
    return 0;
}

static int check_fields(const kvd_corpus_spec *s, kvd_err *err)
{
    bool used = !s->field || s->fields;
    for (size_t i = 0; i < s->n_text; i++) {
        const bool have = kvd_documents_have_fields(s->text[i]);
        used = used || have;
        if (s->fields && s->fields[i] && !have)
            return kvd_documents_no_field(s->text[i], s->fields[i], err);
    }
    return used ? 0 : kvd_documents_no_field(s->text[0], s->field, err);
}

/* Fails if two inputs name the same file and the same JSON or CSV field of it, because the text
 * would count twice. */
static int check_distinct(const kvd_corpus_spec *s, kvd_err *err)
{
    struct stat a, b;
    for (size_t i = 1; i < s->n_text; i++)
        for (size_t j = 0; j < i && !stat(s->text[i], &a); j++)
            if (!stat(s->text[j], &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
                (!s->fields || !s->fields[i] || !s->fields[j] ||
                 !strcmp(s->fields[i], s->fields[j])))
                return kvd_fail(err, "'%s' and '%s' are one text, which would count twice",
                                s->text[j], s->text[i]);
    return 0;
}

static int read_texts(cutter *k, kvd_err *err)
{
    const kvd_corpus_spec *const s = k->spec;
    if (check_distinct(s, err))
        return -1;
    if (check_fields(s, err))
        return kvd_in(err, "--field");
    for (size_t i = 0; i < s->n_text && !k->full; i++)
        if (kvd_documents_read(s->text[i], s->fields ? s->fields[i] : s->field, add_text, k, err) <
                0 ||
            end_text(k, s->text[i], err))
            return -1;
    return 0;
}

static int parse_id(const char *text, size_t len, size_t vocab_size, uint32_t *id, kvd_err *err)
{
    uint64_t value = 0;
    size_t first = 0, last = len;
    while (first < last && (text[first] == ' ' || text[first] == '\t'))
        first++;
    while (last > first && (text[last - 1] == ' ' || text[last - 1] == '\t'))
        last--;
    bool number = last > first;
    for (size_t i = first; i < last && number; i++) {
        number = text[i] >= '0' && text[i] <= '9';
        value = value * 10 + (uint64_t)(text[i] - '0');
        if (value > UINT32_MAX)
            value = UINT32_MAX;
    }
    if (!number)
        return kvd_fail(err, "'%.40s' is not a token id", text);
    if (value >= vocab_size)
        return kvd_fail(err, "token id %.*s, the model's ids are 0 to %zu",
                        (int)(last - first > 20 ? 20 : last - first), text + first, vocab_size - 1);
    *id = (uint32_t)value;
    return 0;
}

static int add_id_row(void *ctx, size_t line, char *const *field, const size_t *len,
                      size_t n_fields, kvd_err *err)
{
    cutter *k = ctx;
    (void)line;
    k->ids.n = 0;
    for (size_t i = 0; i < n_fields; i++) {
        uint32_t id = 0;
        if (parse_id(field[i], len[i], k->spec->vocab_size, &id, err) ||
            kvd_ids_push(&k->ids, id, err))
            return -1;
    }
    if (push_document(k, err))
        return -1;
    /* If the corpus already has max_tokens tokens, returns -1 to stop the CSV reader without an
     * error. */
    return k->full ? -1 : 0;
}

static int read_ids(cutter *k, kvd_err *err)
{
    if (kvd_csv_read(k->spec->ids, add_id_row, k, err) && !k->full)
        return -1;
    if (!k->c->n_documents)
        return kvd_fail(err, "'%s' is empty: no sequence in it", k->spec->ids);
    return 0;
}

/* Fails if n token ids do not fit on the disk of the temporary file. */
static int check_disk(const kvd_corpus *c, size_t n, kvd_err *err)
{
    struct statvfs disk;
    if (fstatvfs(fileno(c->ids), &disk))
        return 0;
    const double needed = (double)n * sizeof(uint32_t),
                 left = (double)disk.f_bavail * (double)disk.f_frsize;
    return needed <= left ? 0
                          : kvd_fail(err,
                                     "%zu token ids take %.4g bytes of a temporary file, %.4g are "
                                     "free: ask for fewer tokens, or set TMPDIR to another disk",
                                     n, needed, left);
}

static int make_random(cutter *k, kvd_err *err)
{
    const size_t most = k->spec->max_tokens, n = k->spec->n_random;
    kvd_rng rng;
    if (check_disk(k->c, most && most < n ? most : n, err))
        return -1;
    kvd_rng_seed(&rng, k->spec->seed, 0);
    for (size_t i = 0; i < n && !k->full; i++) {
        const uint32_t id = (uint32_t)kvd_rng_below(&rng, k->spec->vocab_size);
        if (push(k, &id, 1, err))
            return -1;
    }
    return end_document(k, err);
}

static int check_spec(const kvd_corpus_spec *s, const kvd_tokenizer *tok, kvd_err *err)
{
    assert((s->n_text > 0) + (s->ids != NULL) + (s->n_random > 0) == 1);
    assert(!s->n_text || tok);
    (void)tok;
    if (s->seq_len < 2)
        return kvd_fail(err, "sequences of %zu tokens: at least 2 are needed", s->seq_len);
    if (s->max_tokens == 1)
        return kvd_fail(err, "1 token asked for: a sequence has at least 2");
    if (s->seq_len == 2 && s->max_tokens % 2)
        return kvd_fail(err, "%zu tokens cannot be cut into sequences of 2", s->max_tokens);
    if (s->vocab_size < 1 || s->vocab_size > UINT32_MAX)
        return kvd_fail(err, "vocabulary of %zu", s->vocab_size);
    return 0;
}

static const char *whole_of(const kvd_corpus_spec *s)
{
    return s->ids ? s->ids : s->n_text == 1 ? s->text[0] : s->n_text ? "the texts" : "--random";
}

static int resolve(cutter *k, kvd_err *err)
{
    kvd_corpus *c = k->c;
    put_digest(c, k->hash, c->hash);
    if (fflush(c->ids) || fflush(c->starts))
        return kvd_fail_errno(err, "cannot write token ids to a temporary file");
    c->start_bytes = (c->n_sequences + 1) * sizeof *c->start;
    void *p = mmap(NULL, c->start_bytes, PROT_READ, MAP_SHARED, fileno(c->starts), 0);
    if (p == MAP_FAILED)
        return kvd_fail_errno(err, "cannot map the temporary file of %zu sequences",
                              c->n_sequences);
    c->start = p;
    return 0;
}

kvd_corpus *kvd_corpus_open(const kvd_corpus_spec *spec, const kvd_tokenizer *tok, kvd_err *err)
{
    const uint64_t zero = 0;
    cutter k = {.spec = spec, .tok = tok};
    int status = -1;
    if (check_spec(spec, tok, err))
        return NULL;
    if (!(k.c = kvd_new(1, sizeof *k.c, "a corpus", err)))
        return NULL;
    if (!(k.window = kvd_new(spec->seq_len, sizeof *k.window, "a window of tokens", err)))
        goto done;
    const size_t texts = spec->n_text ? spec->n_text : 1;
    if (!(k.c->text_first = kvd_new(texts + 1, sizeof *k.c->text_first, "a corpus", err)))
        goto done;
    if (!(k.hash = XXH3_createState()) || XXH3_128bits_reset(k.hash) == XXH_ERROR) {
        kvd_fail(err, "cannot hash token ids");
        goto done;
    }
    if (!(k.c->ids = open_spool(err)) || !(k.c->starts = open_spool(err)) ||
        spool(k.c->starts, &zero, sizeof zero, 1, err))
        goto done;
    if (spec->n_text ? read_texts(&k, err) : spec->ids ? read_ids(&k, err) : make_random(&k, err))
        goto done;
    if (!spec->n_text)
        k.c->text_first[k.c->n_texts = 1] = k.c->n_sequences;
    if ((!spec->by_text && check_amount(&k, whole_of(spec), err)) || resolve(&k, err))
        goto done;
    status = 0;
done:
    XXH3_freeState(k.hash);
    free(k.window);
    kvd_ids_release(&k.ids);
    if (status) {
        kvd_corpus_close(k.c);
        return NULL;
    }
    return k.c;
}

void kvd_corpus_close(kvd_corpus *c)
{
    if (!c)
        return;
    if (c->start)
        munmap((void *)(uintptr_t)c->start, c->start_bytes);
    if (c->ids)
        fclose(c->ids);
    if (c->starts)
        fclose(c->starts);
    free(c->text_first);
    free(c);
}

size_t kvd_corpus_n_tokens(const kvd_corpus *c)
{
    return c->n_tokens;
}

size_t kvd_corpus_n_sequences(const kvd_corpus *c)
{
    return c->n_sequences;
}

size_t kvd_corpus_n_documents(const kvd_corpus *c)
{
    return c->n_documents;
}

size_t kvd_corpus_n_texts(const kvd_corpus *c)
{
    return c->n_texts;
}

bool kvd_corpus_is_partial(const kvd_corpus *c, const char *const *text, size_t n_text,
                           kvd_err *note)
{
    if (c->n_texts >= n_text)
        return false;
    kvd_fail(note, "%zu of %zu texts are not read, from '%s' on: those before it have %zu tokens",
             n_text - c->n_texts, n_text, text[c->n_texts], c->n_tokens);
    return true;
}

const size_t *kvd_corpus_text_first(const kvd_corpus *c)
{
    return c->text_first;
}

size_t kvd_corpus_n_dropped(const kvd_corpus *c)
{
    return c->n_dropped;
}

size_t kvd_corpus_offset(const kvd_corpus *c, size_t s)
{
    assert(s <= c->n_sequences);
    return (size_t)c->start[s];
}

void kvd_corpus_offsets(const kvd_corpus *c, size_t first, size_t n, size_t *offset)
{
    for (size_t i = 0; i <= n; i++)
        offset[i] = kvd_corpus_offset(c, first + i) - kvd_corpus_offset(c, first);
}

size_t kvd_corpus_length(const kvd_corpus *c, size_t s)
{
    assert(s < c->n_sequences);
    return (size_t)(c->start[s + 1] - c->start[s]);
}

const char *kvd_corpus_hash(const kvd_corpus *c)
{
    return c->hash;
}

int kvd_corpus_read(kvd_corpus *c, size_t first, size_t n, uint32_t *id, kvd_err *err)
{
    assert(first <= c->n_sequences && n <= c->n_sequences - first);
    size_t at = kvd_corpus_offset(c, first) * sizeof *id;
    size_t left = kvd_corpus_offset(c, first + n) * sizeof *id - at;
    char *to = (char *)id;
    while (left) {
        const ssize_t got = pread(fileno(c->ids), to, left, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return kvd_fail_errno(err, "cannot read token ids back from the temporary file");
        to += got;
        at += (size_t)got;
        left -= (size_t)got;
    }
    return 0;
}

int kvd_corpus_hash_first(kvd_corpus *c, size_t n_sequences, char hash[KVD_CORPUS_HASH_TEXT],
                          kvd_err *err)
{
    assert(n_sequences <= c->n_sequences);
    int status = -1;
    size_t longest = 1;
    for (size_t s = 0; s < n_sequences; s++)
        if (kvd_corpus_length(c, s) > longest)
            longest = kvd_corpus_length(c, s);
    uint32_t *id = malloc(longest * sizeof *id);
    XXH3_state_t *state = XXH3_createState();
    if (!id || !state || XXH3_128bits_reset(state) == XXH_ERROR) {
        kvd_no_memory(err, "a hash of token ids", longest * sizeof *id);
        goto done;
    }
    for (size_t s = 0; s < n_sequences; s++)
        if (kvd_corpus_read(c, s, 1, id, err) ||
            add_window(state, id, kvd_corpus_length(c, s), err))
            goto done;
    put_digest(c, state, hash);
    status = 0;
done:
    XXH3_freeState(state);
    free(id);
    return status;
}

size_t kvd_corpus_batch(const kvd_corpus *c, size_t first, size_t max_tokens)
{
    if (first >= c->n_sequences)
        return 0;
    size_t n = 1;
    while (first + n < c->n_sequences && c->start[first + n + 1] - c->start[first] <= max_tokens)
        n++;
    return n;
}

/* Writes names of the text files, joined by '+', to label [size]. */
static void join_names(const kvd_corpus_spec *spec, const char *given, char *label, size_t size)
{
    const char *const *paths = spec->n_text ? spec->text : &spec->ids;
    const size_t n = given ? 0 : spec->n_text ? spec->n_text : spec->ids ? 1 : 0;
    size_t used = 0, after_first = 0;
    snprintf(label, size, "%s", given ? given : "random");
    for (size_t i = 0; i < n; i++) {
        const char *slash = strrchr(paths[i], '/'), *name = slash ? slash + 1 : paths[i];
        const char *dot = strrchr(name, '.');
        const size_t len = dot && dot > name ? (size_t)(dot - name) : strlen(name);
        if (used + len + 1 >= size) {
            char rest[32];
            const int m = snprintf(rest, sizeof rest, "+%zu more", n - 1);
            const size_t keep = after_first + (size_t)m < size ? after_first : size - (size_t)m - 1;
            if (i)
                snprintf(label + keep, size - keep, "%s", rest);
            else
                snprintf(label, size, "%.*s", (int)size - 1, name);
            return;
        }
        snprintf(label + used, size - used, "%s%.*s", i ? "+" : "", (int)len, name);
        used = strlen(label);
        if (!i)
            after_first = used;
    }
}

void kvd_corpus_label(const kvd_corpus_spec *spec, const char *given, char *label, size_t size)
{
    join_names(spec, given, label, size);
    kvd_utf8_drop_cut(label);
    kvd_utf8_make_printable(label);
}
