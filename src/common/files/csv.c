#include "common/files/csv.h"

#include <csv.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/run.h"
#include "common/utf8.h"

static const size_t longest_row = (size_t)64 << 20;

typedef struct {
    const char *name;
    kvd_csv_row row;
    void *ctx;
    kvd_err *err;
    char *text; /* fields of the current row, each followed by a zero byte */
    size_t text_len, text_size;
    size_t *start, *len;
    char **field;
    size_t n_fields, fields_size;
    size_t line, since_row_end;
    bool failed;
} reader;

static int grow_fields(reader *r)
{
    const size_t n = r->fields_size ? 2 * r->fields_size : 64;
    size_t *start = realloc(r->start, n * sizeof *start);
    if (start)
        r->start = start;
    size_t *len = realloc(r->len, n * sizeof *len);
    if (len)
        r->len = len;
    char **field = realloc(r->field, n * sizeof *field);
    if (field)
        r->field = field;
    if (!start || !len || !field)
        return kvd_no_memory(r->err, "the fields of a row", n * sizeof *field);
    r->fields_size = n;
    return 0;
}

static void on_field(void *data, size_t len, void *ctx)
{
    reader *r = ctx;
    if (r->failed)
        return;
    if (r->n_fields == r->fields_size && grow_fields(r)) {
        r->failed = true;
        return;
    }
    if (r->text_size - r->text_len <= len) {
        const size_t size = 2 * (r->text_size + len) + 256;
        char *more = realloc(r->text, size);
        if (!more) {
            kvd_no_memory(r->err, "a row", size);
            r->failed = true;
            return;
        }
        r->text = more;
        r->text_size = size;
    }
    if (len)
        memcpy(r->text + r->text_len, data, len);
    r->text[r->text_len + len] = '\0';
    r->start[r->n_fields] = r->text_len;
    r->len[r->n_fields++] = len;
    r->text_len += len + 1;
}

static void on_row(int end, void *ctx)
{
    (void)end;
    reader *r = ctx;
    if (r->failed)
        return;
    r->line++;
    r->since_row_end = 0;
    for (size_t i = 0; i < r->n_fields; i++)
        r->field[i] = r->text + r->start[i];
    if (r->row(r->ctx, r->line, r->field, r->len, r->n_fields, r->err)) {
        kvd_in(r->err, "'%s' row %zu", r->name, r->line);
        r->failed = true;
    }
    r->n_fields = r->text_len = 0;
}

static int fail_parse(reader *r, struct csv_parser *p)
{
    if (csv_error(p) == CSV_EPARSE)
        return kvd_fail(r->err, "'%s' row %zu: a double quote is out of place or has no end",
                        r->name, r->line + 1);
    return kvd_fail(r->err, "'%s' row %zu: %s", r->name, r->line + 1, csv_strerror(csv_error(p)));
}

static int feed(reader *r, struct csv_parser *p, const char *text, size_t len)
{
    r->since_row_end += len;
    /* In rows over 1 MiB libcsv's buffer grows by 4 MiB, because its default of 128 bytes is
     * slow. */
    if (r->since_row_end > (size_t)1 << 20)
        csv_set_blk_size(p, (size_t)4 << 20);
    if (csv_parse(p, text, len, on_field, on_row, r) != len && !r->failed)
        return fail_parse(r, p);
    if (!r->failed && r->since_row_end > longest_row)
        return kvd_fail(r->err, "'%s' row %zu is longer than %zu bytes", r->name, r->line + 1,
                        longest_row);
    return kvd_status(r->failed);
}

static int start(reader *r, struct csv_parser *p)
{
    if (csv_init(p, CSV_STRICT | CSV_STRICT_FINI))
        return kvd_no_memory(r->err, "a csv parser", sizeof *p);
    return 0;
}

static void release(reader *r, struct csv_parser *p)
{
    csv_free(p);
    free(r->text);
    free(r->start);
    free(r->len);
    free(r->field);
}

static int end(reader *r, struct csv_parser *p)
{
    if (csv_fini(p, on_field, on_row, r) && !r->failed)
        return fail_parse(r, p);
    return kvd_status(r->failed);
}

int kvd_csv_read(const char *path, kvd_csv_row row, void *ctx, kvd_err *err)
{
    enum { BLOCK = 1 << 16 };
    reader r = {.name = path, .row = row, .ctx = ctx, .err = err};
    struct csv_parser p;
    int rc = -1;
    if (start(&r, &p))
        return -1;
    char *block = malloc(BLOCK);
    FILE *f = block ? kvd_run_open_input(path, err) : NULL;
    if (!block)
        kvd_no_memory(err, "reading", BLOCK);
    if (!f)
        goto done;
    bool first = true;
    for (size_t n; (n = fread(block, 1, BLOCK, f)) > 0; first = false) {
        const size_t skip = first ? kvd_utf8_mark(block, n) : 0;
        if (feed(&r, &p, block + skip, n - skip))
            goto done;
    }
    if (ferror(f)) {
        kvd_fail_errno(err, "cannot read '%s'", path);
        goto done;
    }
    rc = end(&r, &p);
done:
    if (f)
        fclose(f);
    free(block);
    release(&r, &p);
    return rc;
}

int kvd_csv_check_zero_bytes(char *const *field, const size_t *len, size_t n_fields, kvd_err *err)
{
    for (size_t i = 0; i < n_fields; i++)
        if (strlen(field[i]) != len[i])
            return kvd_fail(err, "field %zu has a zero byte", i + 1);
    return 0;
}

typedef struct {
    const char *name; /* NULL: the file is one table */
    kvd_csv_row row;
    void *ctx;
    size_t n_rows;
    /* n_all: number of rows read so far. end: number of rows that the last row of the file states,
     * or SIZE_MAX before that row is read. */
    size_t n_all, end;
} table_reader;

static int table_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                     kvd_err *err)
{
    table_reader *const t = ctx;
    if (t->end != SIZE_MAX)
        return kvd_fail(err, "a row after the last row, '" KVD_CSV_END ",%zu'", t->end);
    if (kvd_csv_check_zero_bytes(field, len, n_fields, err))
        return -1;
    if (n_fields == 2 && !strcmp(field[0], KVD_CSV_END))
        return kvd_arg_size(KVD_CSV_END, field[1], 0, SIZE_MAX - 1, &t->end, err);
    t->n_all = line;
    if (!t->name)
        return t->row(t->ctx, ++t->n_rows, field, len, n_fields, err);
    if (!n_fields || strcmp(field[0], t->name))
        return 0;
    return t->row(t->ctx, ++t->n_rows, field + 1, len + 1, n_fields - 1, err);
}

int kvd_csv_read_table(const char *path, const char *name, kvd_csv_row row, void *ctx, kvd_err *err)
{
    table_reader t = {.name = name, .row = row, .ctx = ctx, .end = SIZE_MAX};
    if (kvd_csv_read(path, table_row, &t, err))
        return -1;
    if (t.end == SIZE_MAX)
        return kvd_fail(err,
                        "'%s' is cut off: it has %zu rows and no last row '" KVD_CSV_END ",%zu'",
                        path, t.n_all, t.n_all);
    if (t.end != t.n_all)
        return kvd_fail(err, "'%s' has %zu rows, its last row '" KVD_CSV_END ",%zu' wants %zu",
                        path, t.n_all, t.end, t.end);
    if (!t.n_rows)
        return name ? kvd_fail(err, "'%s' has no table '%s'", path, name)
                    : kvd_fail(err, "'%s' has no rows", path);
    return 0;
}

int kvd_csv_parse(const char *name, const char *text, size_t len, kvd_csv_row row, void *ctx,
                  kvd_err *err)
{
    enum { BLOCK = 1 << 16 };
    reader r = {.name = name, .row = row, .ctx = ctx, .err = err};
    struct csv_parser p;
    int rc = 0;
    if (start(&r, &p))
        return -1;
    for (size_t at = kvd_utf8_mark(text, len); !rc && at < len; at += BLOCK)
        rc = feed(&r, &p, text + at, len - at < BLOCK ? len - at : BLOCK);
    if (!rc)
        rc = end(&r, &p);
    release(&r, &p);
    return rc;
}

/* Returns true if a CSV field must be written in quotes. Such a field contains a comma, a quote or
 * a line break, or begins or ends with a blank. */
static bool needs_quotes(const char *s)
{
    const size_t n = strlen(s);
    return n > 0 && (s[strcspn(s, ",\"\r\n")] || strchr(" \t", s[0]) || strchr(" \t", s[n - 1]));
}

int kvd_csv_put(FILE *f, const char *field, int last, kvd_err *err)
{
    errno = 0;
    const int bad =
        needs_quotes(field) ? csv_fwrite2(f, field, strlen(field), '"') : fputs(field, f) == EOF;
    if (bad || fputc(last ? '\n' : ',', f) == EOF)
        return kvd_fail_errno(err, "cannot write a csv field");
    return 0;
}

static bool is_formula(const char *s)
{
    char *end;
    if (!s[0] || !strchr("=+-@\t\r", s[0]) || !s[1])
        return false;
    (void)strtod(s, &end);
    return *end || end == s;
}

int kvd_csv_put_text(FILE *f, const char *text, int last, kvd_err *err)
{
    if (!is_formula(text))
        return kvd_csv_put(f, text, last, err);
    char *const safe = malloc(strlen(text) + 2);
    if (!safe)
        return kvd_no_memory(err, "a csv field", strlen(text) + 2);
    safe[0] = '\'';
    strcpy(safe + 1, text);
    const int status = kvd_csv_put(f, safe, last, err);
    free(safe);
    return status;
}
