/* Text, tables, figures and sections of a report page. */
#include "report/report.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/csv.h"
#include "common/utf8.h"
#include "report/results.h"

/* Makes room for `more` bytes and a terminating zero byte. Returns false if memory ran out. */
static bool room(kvd_text *t, size_t more)
{
    size_t size = t->size ? t->size : 256;
    while (size - t->len <= more)
        size *= 2;
    if (size != t->size && !t->failed) {
        char *const s = realloc(t->s, size);
        t->failed = !s;
        t->s = s ? s : t->s;
        t->size = s ? size : t->size;
    }
    return !t->failed;
}

void kvd_text_raw(kvd_text *t, const char *s)
{
    size_t n = strlen(s);
    if (!room(t, n))
        return;
    memcpy(t->s + t->len, s, n + 1);
    t->len += n;
}

void kvd_text_add(kvd_text *t, const char *fmt, ...)
{
    char *s;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&s, fmt, args) < 0) {
        t->failed = true;
    } else {
        kvd_text_raw(t, s);
        free(s);
    }
    va_end(args);
}

static void byte(kvd_text *t, char c)
{
    char s[2] = {c, '\0'};
    kvd_text_raw(t, s);
}

/* Returns the number of bytes of the UTF-8 character at s, or 0 if it is malformed. */
static size_t utf8(const char *s)
{
    const size_t n = kvd_utf8_width(*s);
    return kvd_utf8_first_bad(s, n) == n ? n : 0;
}

static void escaped(kvd_text *t, const char *s, bool markdown)
{
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        size_t n = utf8((const char *)p);
        if (n > 1) {
            kvd_text_add(t, "%.*s", (int)n, (const char *)p);
        } else if (*p == '&') {
            kvd_text_raw(t, "&amp;");
        } else if (*p == '<') {
            kvd_text_raw(t, "&lt;");
        } else if (*p == '>') {
            kvd_text_raw(t, "&gt;");
        } else if (*p == '"' && !markdown) {
            kvd_text_raw(t, "&quot;");
        } else if (*p == '\'' && !markdown) {
            kvd_text_raw(t, "&#39;");
        } else if (markdown && (*p == '|' || *p == '\\' || *p == '`')) {
            byte(t, '\\');
            byte(t, (char)*p);
        } else if (*p == '\n' || *p == '\t') {
            byte(t, markdown ? ' ' : (char)*p);
        } else {
            byte(t, n == 0 || *p < 0x20 || *p == 0x7f ? '?' : (char)*p);
        }
        p += n ? n : 1;
    }
}

void kvd_text_html(kvd_text *t, const char *s)
{
    escaped(t, s, false);
}

void kvd_text_item(kvd_text *t, size_t i, size_t n, size_t most, const char *item)
{
    if (i < most)
        kvd_text_add(t, "%s%s", i == 0 ? "" : i + 1 == n ? " and " : ", ", item);
    else if (i + 1 == n)
        kvd_text_add(t, " and %zu more", n - most);
}

const char *kvd_text_get(const kvd_text *t)
{
    return t->s ? t->s : "";
}

int kvd_text_check(const kvd_text *t, kvd_err *err)
{
    return t->failed ? kvd_no_memory(err, "text of the report", t->len) : 0;
}

void kvd_text_release(kvd_text *t)
{
    free(t->s);
    *t = (kvd_text){0};
}

static char *copy(kvd_table *t, const char *s)
{
    char *c = strdup(s);
    if (!c)
        t->failed = true;
    return c;
}

void kvd_table_init(kvd_table *t, const char *name, const char *title)
{
    *t = (kvd_table){0};
    assert(strlen(name) < sizeof t->name);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->title = copy(t, title);
}

void kvd_table_note(kvd_table *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    free(t->note);
    if (vasprintf(&t->note, fmt, args) < 0) {
        t->note = NULL;
        t->failed = true;
    }
    va_end(args);
}

void kvd_table_add_column(kvd_table *t, kvd_cell_kind kind, int digits, const char *name,
                          const char *heading)
{
    assert(t->n_rows == 0 && t->at == 0);
    kvd_table_col *col = t->failed ? NULL : realloc(t->col, (t->n_cols + 1) * sizeof *col);
    if (!col) {
        t->failed = true;
        return;
    }
    t->col = col;
    t->col[t->n_cols++] = (kvd_table_col){
        .name = copy(t, name), .heading = copy(t, heading), .kind = kind, .digits = digits};
}

void kvd_table_shade(kvd_table *t, double lo, double hi)
{
    if (t->failed)
        return;
    const bool interval = t->n_cols > 2 && t->col[t->n_cols - 3].interval;
    kvd_table_col *const last = &t->col[t->n_cols - (interval ? 3 : 1)];
    last->shade_lo = lo;
    last->shade_hi = hi;
}

void kvd_table_add_interval(kvd_table *t, int digits, const char *name, const char *heading)
{
    char end[KVD_LABEL + 24];
    kvd_table_add_column(t, KVD_CELL_REAL, digits, name, heading);
    if (!t->failed)
        t->col[t->n_cols - 1].interval = true;
    for (int k = 0; k < 2; k++) {
        snprintf(end, sizeof end, "%s_%s", name, k ? "hi" : "lo");
        kvd_table_add_column(t, KVD_CELL_REAL, digits, end, "");
    }
}

static size_t after(const kvd_table *t, size_t j)
{
    return j + (t->col[j].interval ? 3 : 1);
}

static kvd_cell *next(kvd_table *t, kvd_cell_kind kind)
{
    if (t->failed)
        return NULL;
    assert(t->n_cols > 0 && t->col[t->at].kind == kind);
    (void)kind;
    if (t->at == 0 && t->n_rows == t->size) {
        size_t size = t->size ? 2 * t->size : 16;
        kvd_cell *cell = size > (size_t)-1 / sizeof *cell / t->n_cols
                             ? NULL
                             : realloc(t->cell, size * t->n_cols * sizeof *cell);
        if (!cell) {
            t->failed = true;
            return NULL;
        }
        t->cell = cell;
        t->size = size;
    }
    kvd_cell *c = t->cell + t->n_rows * t->n_cols + t->at;
    *c = (kvd_cell){0};
    if (++t->at == t->n_cols) {
        t->at = 0;
        t->n_rows++;
    }
    return c;
}

void kvd_table_text(kvd_table *t, const char *value)
{
    kvd_cell *c = next(t, KVD_CELL_TEXT);
    if (c)
        c->text = copy(t, value);
}

void kvd_table_series(kvd_table *t, const char *value)
{
    kvd_cell *c = next(t, KVD_CELL_TEXT);
    if (c && (c->text = copy(t, value)))
        kvd_series_clean(c->text);
}

void kvd_table_int(kvd_table *t, int64_t value)
{
    kvd_cell *c = next(t, KVD_CELL_INT);
    if (c)
        c->number = value;
}

void kvd_table_no_int(kvd_table *t)
{
    kvd_cell *c = next(t, KVD_CELL_INT);
    if (c)
        c->real = (double)NAN;
}

void kvd_table_count(kvd_table *t, double value)
{
    if (!(fabs(value) < 0x1p63))
        kvd_table_no_int(t);
    else
        kvd_table_int(t, (int64_t)value);
}

void kvd_table_real(kvd_table *t, double value)
{
    kvd_cell *c = next(t, KVD_CELL_REAL);
    if (c)
        c->real = value;
}

void kvd_table_real_cells(kvd_table *t, const double *value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kvd_table_real(t, value[i]);
}

void kvd_table_bounded(kvd_table *t, kvd_interval x)
{
    kvd_table_reals(t, x.value, x.lo, x.hi);
}

void kvd_table_row(kvd_table *t, const kvd_rows *rows, size_t row, size_t n)
{
    for (size_t i = 0; i < n && !t->failed; i++) {
        const kvd_table_col *const col = &t->col[t->at];
        if (col->kind == KVD_CELL_TEXT)
            kvd_table_text(t, kvd_row_text(rows, row, col->name));
        else if (col->kind == KVD_CELL_INT)
            kvd_table_count(t, kvd_row_real(rows, row, col->name));
        else
            kvd_table_real(t, kvd_row_real(rows, row, col->name));
    }
}

const kvd_cell *kvd_table_cell(const kvd_table *t, size_t row, size_t col)
{
    return t->cell + row * t->n_cols + col;
}

static bool same_row(const kvd_table *t, size_t a, size_t b)
{
    for (size_t j = 0; j < t->n_cols; j++) {
        const kvd_cell *const x = kvd_table_cell(t, a, j), *const y = kvd_table_cell(t, b, j);
        const bool text = t->col[j].kind == KVD_CELL_TEXT;
        if (text ? strcmp(x->text, y->text) != 0
                 : x->number != y->number || isnan(x->real) != isnan(y->real) ||
                       x->real < y->real || x->real > y->real)
            return false;
    }
    return true;
}

void kvd_table_unique(kvd_table *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->n_rows && !t->failed; i++) {
        kvd_cell *const row = t->cell + i * t->n_cols;
        bool again = false;
        for (size_t k = 0; k < kept && !again; k++)
            again = same_row(t, k, i);
        if (again)
            for (size_t j = 0; j < t->n_cols; j++)
                free(row[j].text);
        else
            memmove(t->cell + kept++ * t->n_cols, row, t->n_cols * sizeof *row);
    }
    if (!t->failed)
        t->n_rows = kept;
}

int kvd_table_check(const kvd_table *t, kvd_err *err)
{
    if (t->failed)
        return kvd_no_memory(err, t->name,
                             (unsigned long long)t->n_rows * t->n_cols * sizeof(kvd_cell));
    assert(t->at == 0);
    return 0;
}

/* Writes x with `digits` significant digits. Very small and very large numbers get an exponent. */
static void rounded(double x, int digits, char *buf, size_t size)
{
    if (x == 0) {
        snprintf(buf, size, "0");
        return;
    }
    double a = fabs(x);
    if (digits == 0) {
        snprintf(buf, size, "%.0f", x);
    } else if (a >= 1e-4 && a < 1e7) {
        int before = (int)floor(log10(a)) + 1; /* digits before the decimal point */
        int after = digits - before;
        snprintf(buf, size, "%.*f", after < 0 ? 0 : after, x);
    } else {
        snprintf(buf, size, "%.*g", digits, x);
    }
}

static void show_cell(const kvd_table *t, size_t row, size_t col, char *buf, size_t size)
{
    const kvd_cell *c = kvd_table_cell(t, row, col);
    switch (t->col[col].kind) {
    case KVD_CELL_TEXT:
        snprintf(buf, size, "%s", c->text);
        break;
    case KVD_CELL_INT:
        if (isnan(c->real))
            snprintf(buf, size, "-");
        else
            snprintf(buf, size, "%lld", (long long)c->number);
        break;
    case KVD_CELL_REAL:
        if (isnan(c->real))
            snprintf(buf, size, "-");
        else
            rounded(c->real, t->col[col].digits, buf, size);
        if (t->col[col].interval && !isnan(c[1].real) && !isnan(c[2].real)) {
            char lo[48], hi[48];
            rounded(c[1].real, t->col[col].digits, lo, sizeof lo);
            rounded(c[2].real, t->col[col].digits, hi, sizeof hi);
            size_t n = strlen(buf);
            snprintf(buf + n, size - n, " [%s, %s]", lo, hi);
        }
        break;
    }
}

static int write_csv(const kvd_table *t, FILE *f, kvd_err *err)
{
    char number[48];
    for (size_t j = 0; j < t->n_cols; j++)
        if (kvd_csv_put_text(f, t->col[j].name, j + 1 == t->n_cols, err))
            return -1;
    for (size_t i = 0; i < t->n_rows; i++)
        for (size_t j = 0; j < t->n_cols; j++) {
            const kvd_cell *c = kvd_table_cell(t, i, j);
            const bool last = j + 1 == t->n_cols, text = t->col[j].kind == KVD_CELL_TEXT;
            if (isnan(c->real))
                number[0] = '\0';
            else if (t->col[j].kind == KVD_CELL_INT)
                snprintf(number, sizeof number, "%lld", (long long)c->number);
            else
                snprintf(number, sizeof number, "%.9g", c->real);
            if (text ? kvd_csv_put_text(f, c->text, last, err) : kvd_csv_put(f, number, last, err))
                return -1;
        }
    return 0;
}

static void markdown(const kvd_table *t, kvd_text *out)
{
    char buf[1024];
    kvd_text_raw(out, "**");
    escaped(out, t->title, true);
    kvd_text_raw(out, "**\n\n|");
    for (size_t j = 0; j < t->n_cols; j = after(t, j)) {
        kvd_text_raw(out, " ");
        escaped(out, t->col[j].heading, true);
        kvd_text_raw(out, " |");
    }
    kvd_text_raw(out, "\n|");
    for (size_t j = 0; j < t->n_cols; j = after(t, j))
        kvd_text_raw(out, t->col[j].kind == KVD_CELL_TEXT ? " --- |" : " ---: |");
    kvd_text_raw(out, "\n");
    for (size_t i = 0; i < t->n_rows; i++) {
        kvd_text_raw(out, "|");
        for (size_t j = 0; j < t->n_cols; j = after(t, j)) {
            kvd_text_raw(out, " ");
            if (t->col[j].kind == KVD_CELL_TEXT) {
                escaped(out, kvd_table_cell(t, i, j)->text, true);
            } else {
                show_cell(t, i, j, buf, sizeof buf);
                kvd_text_raw(out, buf);
            }
            kvd_text_raw(out, " |");
        }
        kvd_text_raw(out, "\n");
    }
    if (t->note && t->note[0]) {
        kvd_text_raw(out, "\n");
        escaped(out, t->note, true);
        kvd_text_raw(out, "\n");
    }
}

static int write_text(const kvd_table *t, const char *ending, const char *text, size_t len,
                      const kvd_output *out, kvd_err *err)
{
    char name[sizeof t->name + 16];
    snprintf(name, sizeof name, "tables/%s.%s", t->name, ending);
    return kvd_output_folder_text(out, name, text, len, err);
}

int kvd_table_write(const kvd_table *t, const kvd_output *out, kvd_err *err)
{
    char *csv = NULL;
    size_t len = 0;
    kvd_text md = {0};
    int status = -1;

    if (kvd_table_check(t, err))
        return -1;
    FILE *f = open_memstream(&csv, &len);
    if (!f)
        return kvd_no_memory(err, t->name, 0);
    const int failed = write_csv(t, f, err);
    if (fclose(f) && !failed) {
        kvd_no_memory(err, t->name, len);
        goto done;
    }
    if (failed || write_text(t, "csv", csv, len, out, err))
        goto done;
    if (!t->no_markdown)
        markdown(t, &md);
    if (kvd_text_check(&md, err) ||
        (!t->no_markdown && write_text(t, "md", kvd_text_get(&md), md.len, out, err)))
        goto done;
    status = 0;
done:
    kvd_text_release(&md);
    free(csv);
    return status;
}

/* largest number of rows with which a table is shown without a click */
enum { OPEN_ROWS = 6 };

/* Returns the opening HTML tag of a cell with a text of `length` bytes. Short texts are not
 * wrapped; long texts get a wide column. */
static const char *cell_start(size_t length)
{
    return length <= 28 ? "<td class=\"k\">" : length <= 400 ? "<td>" : "<td class=\"l\">";
}

/* Appends the text of a cell. The browser may break the line after each of its commas. */
static void put_breakable(const char *text, kvd_text *out)
{
    kvd_text html = {0};
    kvd_text_html(&html, text);
    for (const char *p = kvd_text_get(&html); *p;) {
        const size_t n = strcspn(p, ",") + 1;
        const bool comma = p[n - 1] == ',';
        kvd_text_add(out, "%.*s%s", (int)n, p, comma && p[n] && p[n] != ' ' ? "<wbr>" : "");
        p += comma ? n : n - 1;
    }
    out->failed |= html.failed;
    kvd_text_release(&html);
}

void kvd_table_html(const kvd_table *t, kvd_text *out)
{
    char buf[1024];
    const bool folded = t->n_rows > OPEN_ROWS;
    kvd_text_raw(out, folded ? "<details><summary>" : "<div class=\"wide\"><table><caption>");
    kvd_text_html(out, t->title);
    if (folded)
        kvd_text_add(out,
                     " <span class=\"soft\">(%zu rows)</span></summary>\n"
                     "<div class=\"wide\"><table>",
                     t->n_rows);
    kvd_text_raw(out, folded ? "\n<thead><tr>" : "</caption>\n<thead><tr>");
    for (size_t j = 0; j < t->n_cols; j = after(t, j)) {
        kvd_text_add(out, "<th scope=\"col\"%s>",
                     t->col[j].kind == KVD_CELL_TEXT ? "" : " class=\"n\"");
        kvd_text_html(out, t->col[j].heading);
        kvd_text_raw(out, "</th>");
    }
    kvd_text_raw(out, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < t->n_rows; i++) {
        kvd_text_raw(out, "<tr>");
        for (size_t j = 0; j < t->n_cols; j = after(t, j)) {
            const kvd_table_col *col = &t->col[j];
            const kvd_cell *c = kvd_table_cell(t, i, j);
            if (col->kind == KVD_CELL_TEXT) {
                kvd_text_raw(out, cell_start(strlen(c->text)));
                put_breakable(c->text, out);
            } else {
                double x = col->kind == KVD_CELL_INT ? (double)c->number : c->real;
                if (col->shade_hi > col->shade_lo && !isnan(x)) {
                    double share = (x - col->shade_lo) / (col->shade_hi - col->shade_lo);
                    share = share < 0 ? 0 : share > 1 ? 1 : share;
                    kvd_text_add(out, "<td class=\"n shade\" style=\"--s:%.0f%%\">", 100 * share);
                } else {
                    kvd_text_raw(out, "<td class=\"n\">");
                }
                show_cell(t, i, j, buf, sizeof buf);
                kvd_text_html(out, buf);
            }
            kvd_text_raw(out, "</td>");
        }
        kvd_text_raw(out, "</tr>\n");
    }
    kvd_text_raw(out, "</tbody></table></div>\n");
    if (t->note && t->note[0]) {
        kvd_text_raw(out, "<p class=\"note\">");
        kvd_text_html(out, t->note);
        kvd_text_raw(out, "</p>\n");
    }
    kvd_text_add(out, "<p class=\"files\"><a href=\"tables/%s.csv\">%s.csv</a>", t->name, t->name);
    if (!t->no_markdown)
        kvd_text_add(out, ", <a href=\"tables/%s.md\">%s.md</a>", t->name, t->name);
    kvd_text_raw(out, folded ? "</p>\n</details>\n" : "</p>\n");
}

static size_t columns(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

void kvd_table_plain(const kvd_table *t, kvd_text *out)
{
    char buf[1024];
    for (size_t i = 0; i <= t->n_rows; i++) {
        for (size_t j = 0; j < t->n_cols; j = after(t, j)) {
            size_t width = columns(t->col[j].heading);
            for (size_t k = 0; k < t->n_rows; k++) {
                show_cell(t, k, j, buf, sizeof buf);
                if (columns(buf) > width)
                    width = columns(buf);
            }
            if (i == 0)
                snprintf(buf, sizeof buf, "%s", t->col[j].heading);
            else
                show_cell(t, i - 1, j, buf, sizeof buf);
            /* Replaces control characters, because a terminal would act on them. */
            kvd_utf8_make_printable(buf);
            int pad = (int)(width - columns(buf));
            bool last = after(t, j) >= t->n_cols;
            if (t->col[j].kind == KVD_CELL_TEXT)
                kvd_text_add(out, "%s%*s", buf, last ? 0 : pad + 2, "");
            else
                kvd_text_add(out, "%*s%s%s", pad, "", buf, last ? "" : "  ");
        }
        kvd_text_raw(out, "\n");
    }
}

void kvd_table_release(kvd_table *t)
{
    for (size_t i = 0; i < t->n_rows * t->n_cols + t->at; i++)
        free(t->cell[i].text);
    for (size_t j = 0; j < t->n_cols; j++) {
        free(t->col[j].name);
        free(t->col[j].heading);
    }
    free(t->cell);
    free(t->col);
    free(t->title);
    free(t->note);
    *t = (kvd_table){0};
}
