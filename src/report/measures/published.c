/* Checks published tables about rotation matrices for contradictory and for copied numbers.
 *
 * epsilon  mean |R_ij| of a rotation matrix R
 * delta    mean |R_ij - S_ij| of two rotation matrices R and S */
#include "report/measures/ledger.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"
#include "model/checkpoint/shards.h"

enum { MOST_FIELDS = 16 };

typedef struct {
    char name[64];
    /* [rows][columns] cells of a published table, as text; row 0 is the heading */
    char (*cell)[MOST_FIELDS][40];
    size_t n_rows, n_fields, n_keys; /* n_keys: number of leading columns with texts */
} sheet;

static int take_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                    kvd_err *err)
{
    sheet *const s = ctx;
    (void)len;
    if (n_fields > MOST_FIELDS)
        return kvd_fail(err, "%zu fields, at most %d are read", n_fields, (int)MOST_FIELDS);
    if (line > 1 && n_fields != s->n_fields)
        return kvd_fail(err, "%zu fields, the heading has %zu", n_fields, s->n_fields);
    s->n_fields = n_fields;
    void *const all = realloc(s->cell, (s->n_rows + 1) * sizeof *s->cell);
    if (!all)
        return kvd_no_memory(err, "a published table", (s->n_rows + 1) * sizeof *s->cell);
    s->cell = all;
    for (size_t j = 0; j < n_fields; j++)
        if (snprintf(s->cell[s->n_rows][j], sizeof s->cell[s->n_rows][j], "%s", field[j]) >=
            (int)sizeof s->cell[s->n_rows][j])
            return kvd_fail(err, "field %zu has more than %zu bytes", j + 1,
                            sizeof s->cell[s->n_rows][j] - 1);
    s->n_rows++;
    return 0;
}

static int read_sheet(const char *paper, const char *name, sheet *s, kvd_err *err)
{
    *s = (sheet){0};
    char *const path = kvd_path_in_folder(paper, "tables.csv", err);
    if (!path)
        return -1;
    snprintf(s->name, sizeof s->name, "%s", name);
    int status = kvd_csv_read_table(path, name, take_row, s, err);
    if (!status && s->n_rows < 2)
        status = kvd_fail(err, "'%s' has no row in the table '%s'", path, name);
    free(path);
    s->n_keys = s->n_fields > 1 && s->n_rows && !strcmp(s->cell[0][1], "dataset") ? 2 : 1;
    return kvd_status(status);
}

/* Parses a printed number and the bound of its rounding error: "6.43e-2" is 0.0643 +- 0.00005. */
static int printed(const char *text, kvd_printed *out, kvd_err *err)
{
    if (kvd_arg_double("published number", text, -1e300, 1e300, &out->value, err))
        return -1;
    const char *const e = strpbrk(text, "eE"), *const dot = strchr(text, '.');
    const long exponent = e ? strtol(e + 1, NULL, 10) : 0;
    const long digits = dot ? (long)((e ? e : text + strlen(text)) - dot) - 1 : 0;
    out->half = 0.5 * pow(10, (double)(exponent - digits));
    return 0;
}

static kvd_published_model *model_of(kvd_published_table *t, const char *name, kvd_err *err)
{
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->model[i].model, name))
            return &t->model[i];
    kvd_published_model *const all = realloc(t->model, (t->n + 1) * sizeof *all);
    if (!all) {
        kvd_no_memory(err, "a published table", (t->n + 1) * sizeof *all);
        return NULL;
    }
    t->model = all;
    all[t->n] = (kvd_published_model){.n = 0};
    snprintf(all[t->n].model, sizeof all[t->n].model, "%.63s", name);
    return &all[t->n++];
}

static int take_model(kvd_published_table *t, char row[MOST_FIELDS][40], kvd_err *err)
{
    kvd_published_model *const m = model_of(t, row[0], err);
    if (!m)
        return -1;
    if (!strcmp(row[2], "N/A"))
        return 0;
    if (m->n == KVD_MOST_DATASETS)
        return kvd_fail(err, "'%s' has more than %d datasets", row[0], (int)KVD_MOST_DATASETS);
    snprintf(m->dataset[m->n], sizeof m->dataset[m->n], "%.31s", row[1]);
    if (printed(row[2], &m->epsilon[m->n], err) || printed(row[3], &m->delta[m->n], err))
        return -1;
    m->n++;
    return 0;
}

int kvd_published_load(const char *paper, const char *name, kvd_published_table *out, kvd_err *err)
{
    sheet s;
    *out = (kvd_published_table){0};
    snprintf(out->name, sizeof out->name, "%s", name);
    int status = read_sheet(paper, name, &s, err);
    if (!status && (s.n_fields < 4 || s.n_keys != 2 || strncmp(s.cell[0][2], "eps", 3) ||
                    strncmp(s.cell[0][3], "delta", 5)))
        status =
            kvd_fail(err, "'%s' in '%s/tables.csv' has no columns model, dataset, eps..., delta...",
                     name, paper);
    for (size_t i = 1; !status && i < s.n_rows; i++)
        status = take_model(out, s.cell[i], err)
                     ? kvd_in(err, "'%s/tables.csv', row %zu of '%s'", paper, i + 1, name)
                     : 0;
    free(s.cell);
    return kvd_status(status);
}

void kvd_published_release(kvd_published_table *t)
{
    free(t->model);
    *t = (kvd_published_table){0};
}

kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b)
{
    const double gap = fabs(m->epsilon[a].value - m->epsilon[b].value),
                 rounding =
                     m->epsilon[a].half + m->epsilon[b].half + m->delta[a].half + m->delta[b].half,
                 most = m->delta[a].value + m->delta[b].value + rounding;
    return (kvd_published_triangle){1, gap > most * (1 + 1e-9)};
}

/* Returns true if |epsilon - x| = delta up to rounding.
 *
 * - epsilon: published number of data set i
 * - delta: published number of data set order[i]
 * - x: number to be tried */
static bool explains(const kvd_published_model *m, const size_t *order, size_t i, double x)
{
    const kvd_printed *const e = &m->epsilon[i], *const d = &m->delta[order[i]];
    return fabs(fabs(x - e->value) - d->value) <= (e->half + d->half) * (1 + 1e-9);
}

/* Returns true if one number x satisfies delta = |epsilon - x| for all pairs (epsilon, delta) that
 * a published table prints for a model. */
static bool one_epsilon(const kvd_published_model *m, const size_t *order)
{
    static const double sign[] = {-1, 1};
    for (size_t i = 0; i < m->n; i++)
        for (int k = 0; k < 4; k++) {
            const kvd_printed *const e = &m->epsilon[i], *const d = &m->delta[order[i]];
            const double x = e->value + sign[k % 2] * d->value + sign[k / 2] * (e->half + d->half);
            bool all = true;
            for (size_t j = 0; j < m->n && all; j++)
                all = explains(m, order, j, x);
            if (all)
                return true;
        }
    return false;
}

bool kvd_published_one_epsilon(const kvd_published_model *m)
{
    static const size_t as_printed[KVD_MOST_DATASETS] = {0, 1, 2, 3, 4, 5};
    return one_epsilon(m, as_printed);
}

/* Tries all permutations of order[k] and later elements.
 *
 * - n: counts the permutations
 * - fit: counts the permutations for which a single number x satisfies |epsilon - x| = delta for
 *   all pairs of published numbers (epsilon, delta) */
static void permute(const kvd_published_model *m, size_t *order, size_t k, size_t *n, size_t *fit)
{
    if (k == m->n) {
        ++*n;
        *fit += one_epsilon(m, order);
        return;
    }
    for (size_t i = k; i < m->n; i++) {
        const size_t a = order[k], b = order[i];
        order[k] = b;
        order[i] = a;
        permute(m, order, k + 1, n, fit);
        order[k] = a;
        order[i] = b;
    }
}

kvd_published_fit kvd_published_fit_of(const kvd_published_table *t)
{
    enum { MOST_MODELS = 32 };
    /* p[k]: probability that one_epsilon() is true for exactly k models if their published numbers
     * are shuffled */
    double p[MOST_MODELS + 1] = {1};
    kvd_published_fit x = {0};
    const size_t n_models = t->n < MOST_MODELS ? t->n : MOST_MODELS;
    for (size_t i = 0; i < n_models; i++) {
        size_t order[KVD_MOST_DATASETS] = {0, 1, 2, 3, 4, 5}, n = 0, fit = 0;
        x.fits += kvd_published_one_epsilon(&t->model[i]);
        permute(&t->model[i], order, 0, &n, &fit);
        const double one = (double)fit / (double)n;
        x.expected += one;
        for (size_t k = i + 1; k > 0; k--)
            p[k] = p[k] * (1 - one) + p[k - 1] * one;
        p[0] *= 1 - one;
    }
    for (size_t k = x.fits; k <= n_models; k++)
        x.probability += p[k];
    return x;
}

static bool is_number(const char *text)
{
    char *end;
    strtod(text, &end);
    return *text && !*end;
}

static void free_sheets(sheet *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(s[i].cell);
    free(s);
}

enum { MOST_TABLES = 64 };
typedef struct {
    char name[MOST_TABLES][64];
    size_t n;
} table_names;

static int take_name(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                     kvd_err *err)
{
    table_names *const t = ctx;
    (void)line;
    (void)len;
    if (!n_fields || strstr(field[0], "traces") || !strcmp(field[0], KVD_CSV_END) ||
        (t->n && !strcmp(t->name[t->n - 1], field[0])))
        return 0;
    if (t->n == MOST_TABLES)
        return kvd_fail(err, "more than %d tables", (int)MOST_TABLES);
    snprintf(t->name[t->n++], sizeof t->name[0], "%.63s", field[0]);
    return 0;
}

static int read_sheets(const char *paper, sheet **out, size_t *n, kvd_err *err)
{
    table_names names = {.n = 0};
    *out = NULL;
    *n = 0;
    char *const path = kvd_path_in_folder(paper, "tables.csv", err);
    if (!path)
        return -1;
    int status = kvd_csv_read(path, take_name, &names, err);
    if (!status && !names.n)
        status = kvd_fail(err, "'%s' holds no published table", path);
    free(path);
    if (!status && !(*out = calloc(names.n, sizeof **out)))
        status = kvd_no_memory(err, "published tables", names.n * sizeof **out);
    for (size_t i = 0; !status && i < names.n; i++)
        status = read_sheet(paper, names.name[i], &(*out)[(*n)++], err);
    return kvd_status(status);
}

static size_t same_row(const sheet *a, size_t i, const sheet *b)
{
    for (size_t j = 1; a->n_keys == b->n_keys && j < b->n_rows; j++) {
        bool same = true;
        for (size_t k = 0; k < a->n_keys; k++)
            same = same && !strcmp(a->cell[i][k], b->cell[j][k]);
        if (same)
            return j;
    }
    return 0;
}

static bool twin_columns(const sheet *a, size_t x, const sheet *b, size_t y,
                         kvd_published_twin *out)
{
    enum { FEWEST = 4 };
    *out = (kvd_published_twin){.shared = 0};
    for (size_t i = 1; i < a->n_rows; i++) {
        const size_t j = same_row(a, i, b);
        if (!j || !is_number(a->cell[i][x]) || !is_number(b->cell[j][y]))
            continue;
        out->shared++;
        out->equal += !strcmp(a->cell[i][x], b->cell[j][y]);
    }
    snprintf(out->table[0], sizeof out->table[0], "%s", a->name);
    snprintf(out->table[1], sizeof out->table[1], "%s", b->name);
    snprintf(out->column[0], sizeof out->column[0], "%s", a->cell[0][x]);
    snprintf(out->column[1], sizeof out->column[1], "%s", b->cell[0][y]);
    return out->shared >= FEWEST && 4 * out->equal >= 3 * out->shared;
}

/* Returns true if all cells of a column below its header are equal. */
static bool constant(const sheet *s, size_t column)
{
    for (size_t i = 2; i < s->n_rows; i++)
        if (strcmp(s->cell[i][column], s->cell[1][column]))
            return false;
    return true;
}

int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err)
{
    sheet *s;
    size_t n_sheets;
    *out = NULL;
    *n = 0;
    int status = read_sheets(paper, &s, &n_sheets, err);
    for (size_t a = 0; a < n_sheets; a++)
        for (size_t b = a + 1; b < n_sheets; b++)
            for (size_t x = s[a].n_keys; x < s[a].n_fields; x++)
                for (size_t y = s[b].n_keys; !status && y < s[b].n_fields; y++) {
                    kvd_published_twin one;
                    if (constant(&s[a], x) || constant(&s[b], y) ||
                        !twin_columns(&s[a], x, &s[b], y, &one))
                        continue;
                    kvd_published_twin *const all = realloc(*out, (*n + 1) * sizeof *all);
                    if (!all) {
                        status = kvd_no_memory(err, "shared columns", (*n + 1) * sizeof *all);
                        break;
                    }
                    *out = all;
                    all[(*n)++] = one;
                }
    free_sheets(s, n_sheets);
    return status;
}

/* Compares the numbers in row i of table a and in row j of table b, in columns with equal headings.
 * Returns how many numbers are equal, or 0 if any two numbers differ. */
static size_t equal_numbers(const sheet *a, size_t i, const sheet *b, size_t j)
{
    size_t n = 0;
    for (size_t x = a->n_keys; x < a->n_fields; x++)
        for (size_t y = b->n_keys; y < b->n_fields; y++) {
            if (strcmp(a->cell[0][x], b->cell[0][y]) || !is_number(a->cell[i][x]))
                continue;
            if (strcmp(a->cell[i][x], b->cell[j][y]))
                return 0;
            n++;
        }
    return n;
}

int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err)
{
    enum { FEWEST = 2 };
    sheet *s;
    size_t n_sheets;
    *out = NULL;
    *n = 0;
    int status = read_sheets(paper, &s, &n_sheets, err);
    for (size_t a = 0; a < n_sheets; a++)
        for (size_t b = a + 1; b < n_sheets; b++)
            for (size_t i = 1; i < s[a].n_rows; i++)
                for (size_t j = 1; !status && j < s[b].n_rows; j++) {
                    const char *const p = s[a].cell[i][0], *const q = s[b].cell[j][0];
                    const bool rows =
                        s[a].n_keys == s[b].n_keys && strcmp(p, q) &&
                        (s[a].n_keys == 1 || !strcmp(s[a].cell[i][1], s[b].cell[j][1]));
                    const size_t numbers = rows ? equal_numbers(&s[a], i, &s[b], j) : 0;
                    if (numbers < FEWEST)
                        continue;
                    /* index in *out of the entry for models p and q in these tables, or *n if there
                     * is none yet */
                    size_t k = 0;
                    while (k < *n &&
                           (strcmp((*out)[k].model[0], p) || strcmp((*out)[k].model[1], q) ||
                            strcmp((*out)[k].table[0], s[a].name) ||
                            strcmp((*out)[k].table[1], s[b].name)))
                        k++;
                    if (k == *n) {
                        kvd_published_double *const all = realloc(*out, (*n + 1) * sizeof *all);
                        if (!all) {
                            status = kvd_no_memory(err, "equal rows", (*n + 1) * sizeof *all);
                            break;
                        }
                        *out = all;
                        all[k] = (kvd_published_double){.numbers = 0};
                        snprintf(all[k].table[0], sizeof all[k].table[0], "%s", s[a].name);
                        snprintf(all[k].table[1], sizeof all[k].table[1], "%s", s[b].name);
                        snprintf(all[k].model[0], sizeof all[k].model[0], "%s", p);
                        snprintf(all[k].model[1], sizeof all[k].model[1], "%s", q);
                        ++*n;
                    }
                    (*out)[k].numbers += numbers;
                }
    free_sheets(s, n_sheets);
    return status;
}
