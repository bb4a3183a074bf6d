#include "model/text/documents.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/files/csv.h"
#include "common/utf8.h"
#include "model/checkpoint/filemap.h"

enum { MAX_FIELDS = 8 };

typedef struct {
    const char *path;
    char *name[MAX_FIELDS];
    int n_names;
    char *names;
    bool default_field;
    char *joined;
    size_t joined_size;
    kvd_document document;
    void *ctx;
    size_t count;
    bool stopped;
    /* column number of each wanted field in a CSV file */
    int column[MAX_FIELDS];
    size_t n_columns;
} reader;

static int split_field(reader *r, const char *field, kvd_err *err)
{
    r->default_field = !field;
    if (!(r->names = strdup(field ? field : "text")))
        return kvd_no_memory(err, "field names", strlen(field ? field : "text") + 1);
    char *rest = r->names, *part;
    while ((part = strsep(&rest, ","))) {
        if (!*part)
            return kvd_fail(err, "field '%s' has an empty name in it", field);
        if (r->n_names == MAX_FIELDS)
            return kvd_fail(err, "field '%s' has more than %d names", field, (int)MAX_FIELDS);
        r->name[r->n_names++] = part;
    }
    return 0;
}

static int join(reader *r, char *const *part, const size_t *len, const char **text,
                size_t *text_len, kvd_err *err)
{
    if (r->n_names == 1) {
        *text = part[0];
        *text_len = len[0];
        return 0;
    }
    size_t total = (size_t)r->n_names - 1;
    for (int i = 0; i < r->n_names; i++)
        total += len[i];
    if (total > r->joined_size) {
        char *p = realloc(r->joined, total);
        if (!p)
            return kvd_no_memory(err, "a document", total);
        r->joined = p;
        r->joined_size = total;
    }
    char *at = r->joined;
    for (int i = 0; i < r->n_names; i++) {
        if (i)
            *at++ = '\n';
        memcpy(at, part[i], len[i]);
        at += len[i];
    }
    *text = r->joined;
    *text_len = total;
    return 0;
}

/* Passes a document to the callback r->document. Returns 0 to continue, 1 to stop, or -1 with *err.
 *
 * - unit, where: place of the document for error messages, such as "line" and 3; unit may be
 *   NULL */
static int hand_out(reader *r, const char *unit, size_t where, const char *text, size_t len,
                    kvd_err *err)
{
    const int status =
        len ? r->document(r->ctx, text, len, err) : kvd_fail(err, "the text is empty");
    if (status < 0)
        return unit ? kvd_in(err, "'%s' %s %zu", r->path, unit, where) : -1;
    r->count++;
    r->stopped = status > 0;
    return status;
}

static void list_keys(const json_t *row, char *text, size_t size)
{
    const char *key;
    json_t *value;
    size_t used = 0;
    text[0] = '\0';
    json_object_foreach((json_t *)row, key, value)
    {
        const int n = snprintf(text + used, size - used, "%s%s", used ? ", " : "", key);
        if (n < 0 || (size_t)n >= size - used)
            return;
        used += (size_t)n;
    }
}

static int json_row(reader *r, const json_t *row, const char *unit, size_t where, kvd_err *err)
{
    char *part[MAX_FIELDS];
    size_t len[MAX_FIELDS];
    if (json_is_string(row) && r->default_field) {
        part[0] = (char *)json_string_value(row);
        len[0] = json_string_length(row);
    } else if (json_is_object(row)) {
        for (int i = 0; i < r->n_names; i++) {
            const json_t *value = json_object_get(row, r->name[i]);
            if (!value) {
                char keys[200];
                list_keys(row, keys, sizeof keys);
                return kvd_fail(err, "'%s' %s %zu: no key '%s'; keys: %s", r->path, unit, where,
                                r->name[i], keys);
            }
            if (!json_is_string(value))
                return kvd_fail(err, "'%s' %s %zu: key '%s' is not a string", r->path, unit, where,
                                r->name[i]);
            part[i] = (char *)json_string_value(value);
            len[i] = json_string_length(value);
        }
    } else {
        return kvd_fail(err, "'%s' %s %zu: not an object%s", r->path, unit, where,
                        r->default_field ? ", nor a string" : "");
    }
    const char *text;
    size_t text_len;
    if (join(r, part, len, &text, &text_len, err))
        return -1;
    return hand_out(r, unit, where, text, text_len, err);
}

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", s[i]) || !s[i])
            return false;
    return true;
}

static int read_jsonl(reader *r, FILE *f, kvd_err *err)
{
    char *line = NULL;
    size_t size = 0, number = 0;
    ssize_t n;
    int status = 0;
    errno = 0;
    while (!status && (n = getline(&line, &size, f)) >= 0) {
        const size_t skip = number++ ? 0 : kvd_utf8_mark(line, (size_t)n);
        if (blank(line + skip, (size_t)n - skip))
            continue;
        json_error_t why;
        json_t *row = json_loadb(line + skip, (size_t)n - skip,
                                 JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
        if (!row) {
            status = kvd_fail(err, "'%s' line %zu: not JSON: %s, byte %d", r->path, number,
                              why.text, why.position);
            break;
        }
        status = json_row(r, row, "line", number, err);
        json_decref(row);
    }
    /* If memory is missing, getline fails without a stream error. */
    if (!status && !feof(f))
        status = kvd_fail_errno(err, "cannot read '%s'", r->path);
    free(line);
    return status;
}

static int read_json(reader *r, FILE *f, kvd_err *err)
{
    json_error_t why;
    char mark[3];
    const size_t n = fread(mark, 1, sizeof mark, f);
    if (!kvd_utf8_mark(mark, n))
        rewind(f);
    json_t *list = json_loadf(f, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
    int status = 0;
    if (!list)
        return kvd_fail(err, "'%s' line %d: not JSON: %s", r->path, why.line, why.text);
    if (!json_is_array(list))
        status = kvd_fail(err, "'%s' is not a JSON list (one document per line is a .jsonl file)",
                          r->path);
    for (size_t i = 0; !status && i < json_array_size(list); i++)
        status = json_row(r, json_array_get(list, i), "entry", i + 1, err);
    json_decref(list);
    return status;
}

static int csv_header(reader *r, char *const *field, size_t n_fields, kvd_err *err)
{
    r->n_columns = n_fields;
    for (int i = 0; i < r->n_names; i++) {
        r->column[i] = -1;
        for (size_t j = 0; j < n_fields; j++) {
            if (strcmp(field[j], r->name[i]))
                continue;
            if (r->column[i] >= 0)
                return kvd_fail(err, "two columns '%s': %d and %zu", r->name[i], r->column[i] + 1,
                                j + 1);
            r->column[i] = (int)j;
        }
        if (r->column[i] >= 0)
            continue;
        char header[300];
        size_t used = 0;
        header[0] = '\0';
        for (size_t j = 0; j < n_fields && used < sizeof header - 1; j++) {
            const int n =
                snprintf(header + used, sizeof header - used, "%s%s", j ? ", " : "", field[j]);
            used += n < 0 ? 0 : (size_t)n;
        }
        return kvd_fail(err, "no column '%s'; columns: %s", r->name[i], header);
    }
    return 0;
}

static int csv_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                   kvd_err *err)
{
    reader *r = ctx;
    if (!r->n_columns)
        return csv_header(r, field, n_fields, err);
    if (n_fields != r->n_columns)
        return kvd_fail(err, "%zu fields, the header has %zu", n_fields, r->n_columns);
    char *part[MAX_FIELDS];
    size_t part_len[MAX_FIELDS];
    for (int i = 0; i < r->n_names; i++) {
        part[i] = field[r->column[i]];
        part_len[i] = len[r->column[i]];
    }
    const char *text;
    size_t text_len;
    if (join(r, part, part_len, &text, &text_len, err))
        return -1;
    /* Returns -1 to stop the CSV reader. If r->stopped, the caller does not treat -1 as an
     * error. */
    return hand_out(r, NULL, line, text, text_len, err) ? -1 : 0;
}

static int read_csv(reader *r, kvd_err *err)
{
    if (kvd_csv_read(r->path, csv_row, r, err))
        return r->stopped ? 1 : -1;
    return 0;
}

/* Maps a plain text file, so that only the used part is read. */
static int read_plain(reader *r, kvd_err *err)
{
    kvd_filemap map;
    if (kvd_filemap_load(&map, r->path, err))
        return -1;
    int status = map.len ? r->document(r->ctx, map.bytes, map.len, err) : 0;
    if (status < 0)
        kvd_in(err, "'%s'", r->path);
    else if (map.len)
        r->count++;
    kvd_filemap_release(&map);
    return status;
}

static bool ends_with(const char *path, const char *end)
{
    const size_t n = strlen(path), m = strlen(end);
    return n > m && !strcasecmp(path + n - m, end);
}

bool kvd_documents_have_fields(const char *path)
{
    return ends_with(path, ".jsonl") || ends_with(path, ".json") || ends_with(path, ".csv");
}

static int check_ending(const char *path, kvd_err *err)
{
    static const struct {
        const char *end, *instead;
    } other[] = {{".ndjson", "rename it to .jsonl"}, {".jsonlines", "rename it to .jsonl"},
                 {".tsv", "save it as .csv"},        {".parquet", "save it as .jsonl"},
                 {".arrow", "save it as .jsonl"},    {".gz", "decompress it"},
                 {".xz", "decompress it"},           {".zst", "decompress it"},
                 {".bz2", "decompress it"},          {".zip", "extract it"}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (ends_with(path, other[i].end))
            return kvd_fail(err, "'%s': %s files are not read; %s", path, other[i].end,
                            other[i].instead);
    return 0;
}

int kvd_documents_no_field(const char *path, const char *field, kvd_err *err)
{
    if (check_ending(path, err))
        return -1;
    return kvd_fail(err, "'%s' has no fields, so no '%s' (.jsonl, .json and .csv files have)", path,
                    field);
}

int kvd_documents_read(const char *path, const char *field, kvd_document document, void *ctx,
                       kvd_err *err)
{
    reader r = {.path = path, .document = document, .ctx = ctx};
    int status = -1;
    struct stat st;
    FILE *f = fopen(path, "rb");
    if (!f)
        return kvd_fail_errno(err, "cannot open '%s'", path);
    if (fstat(fileno(f), &st)) {
        kvd_fail_errno(err, "cannot read '%s'", path);
        goto done;
    }
    if (S_ISDIR(st.st_mode)) {
        kvd_fail(err, "'%s' is a folder, not a text", path);
        goto done;
    }
    if (check_ending(path, err) || split_field(&r, field, err))
        goto done;
    if (ends_with(path, ".jsonl"))
        status = read_jsonl(&r, f, err);
    else if (ends_with(path, ".json"))
        status = read_json(&r, f, err);
    else if (ends_with(path, ".csv"))
        status = read_csv(&r, err);
    else
        status = read_plain(&r, err);
    if (!status && !r.count)
        status = kvd_fail(err, "'%s' is empty: no document in it", path);
done:
    fclose(f);
    free(r.names);
    free(r.joined);
    return status;
}
