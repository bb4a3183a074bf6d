#include "report/rows.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jct.h"
#include "report/measures/measures.h"

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column)
{
    return kvd_row_text(e->rows, e->row, column);
}

double kvd_entry_real(const kvd_accuracy_entry *e, const char *column)
{
    return kvd_row_real(e->rows, e->row, column);
}

kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column)
{
    char lo[64], hi[64];
    snprintf(lo, sizeof lo, "%s_lo", column);
    snprintf(hi, sizeof hi, "%s_hi", column);
    return (kvd_interval){kvd_entry_real(e, column), kvd_entry_real(e, lo), kvd_entry_real(e, hi)};
}

kvd_interval kvd_entry_ratio(const kvd_accuracy_entry *e)
{
    return e->file->accuracy.ratio[e->row];
}

bool kvd_entry_is_none(const kvd_accuracy_entry *e)
{
    return strcmp(kvd_entry_text(e, "method"), "none") == 0;
}

bool kvd_entry_is_search_point(const kvd_accuracy_entry *e)
{
    return strcmp(kvd_entry_text(e, "purpose"), "target-search") == 0;
}

void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size)
{
    const char *const key = kvd_entry_text(e, "rate_key");
    *text = '\0';
    if (*key && !isnan(kvd_entry_real(e, "rate_value")))
        snprintf(text, size, "%.60s = %.4g", key, kvd_entry_real(e, "rate_value"));
}

bool kvd_row_is_of_target(const kvd_rows *rows, size_t row, const kvd_target_result *x)
{
    char name[160];
    const char *const rule = kvd_row_text(rows, row, "rule"), *const method =
                                                                  kvd_row_text(rows, row, "method");
    const bool plain = !strcmp(rule, "eq6") || !strcmp(rule, "uniform") || !strcmp(rule, "none");
    snprintf(name, sizeof name, "%s%s%s", method, plain ? "" : "-", plain ? "" : rule);
    return !strcmp(x->name, name);
}

bool kvd_row_has_codes(const kvd_rows *rows, size_t row)
{
    kvd_method m;
    kvd_err unused;
    return kvd_method_parse(kvd_row_text(rows, row, "method"), &m, &unused) || m.plan.bits ||
           (m.plan.tokens && m.plan.tokens->read_codes);
}

double kvd_row_saving_of_16_bits(const kvd_rows *rows, size_t row, double saving)
{
    return strcmp(kvd_row_text(rows, row, "cache"), "f32") || !kvd_row_has_codes(rows, row)
               ? saving
               : 1 - 2 * (1 - saving);
}

double kvd_entry_saving(const kvd_accuracy_entry *e)
{
    kvd_method m;
    kvd_err unused;
    const bool read =
        !kvd_method_parse(kvd_entry_text(e, "method"), &m, &unused) && kvd_method_selects(&m);
    return kvd_row_saving_of_16_bits(
        e->rows, e->row,
        1 - kvd_entry_real(e, read ? "bytes_per_token_read" : "bytes_per_token_stored") *
                kvd_entry_real(e, "element_bytes") / kvd_entry_real(e, "bytes_per_token_dense") /
                kvd_entry_real(e, "stored_element_bytes"));
}

static int by_series(const void *a, const void *b)
{
    const kvd_accuracy_entry *x = a, *y = b;
    int c = strcmp(kvd_entry_text(x, "label"), kvd_entry_text(y, "label"));
    if (!c)
        /* Puts results of the uncompressed model before results of compression methods. */
        c = kvd_entry_is_none(y) - kvd_entry_is_none(x);
    if (!c)
        c = strcmp(x->series, y->series);
    if (!c)
        /* Sorts by calibration too, because two long curve names may be cut to the same text. */
        c = strcmp(kvd_entry_text(x, "calibration"), kvd_entry_text(y, "calibration"));
    if (!c)
        c = (kvd_entry_real(x, "overall_p") > kvd_entry_real(y, "overall_p")) -
            (kvd_entry_real(x, "overall_p") < kvd_entry_real(y, "overall_p"));
    /* Sorts accuracy results with larger caches first. */
    if (!c)
        c = (kvd_entry_real(x, "cache_share") < kvd_entry_real(y, "cache_share")) -
            (kvd_entry_real(x, "cache_share") > kvd_entry_real(y, "cache_share"));
    return c ? c : strcmp(x->file->path, y->file->path);
}

/* Returns " (V alone)" or " (Q-K alone)" if the compression of accuracy result *e reduces the
 * dimensions only of V, or only of Q and K; else "". */
static const char *alone(const kvd_accuracy_entry *e)
{
    const bool qk = *kvd_entry_text(e, "pair_qk"), v = *kvd_entry_text(e, "pair_v");
    return qk == v ? "" : v ? " (V alone)" : " (Q-K alone)";
}

static bool varies(const kvd_accuracy_entries *all, const char *column)
{
    const char *first = NULL;
    for (size_t i = 0; i < all->n; i++) {
        if (kvd_entry_is_none(&all->item[i]) || !*kvd_entry_text(&all->item[i], column))
            continue;
        if (first && strcmp(first, kvd_entry_text(&all->item[i], column)))
            return true;
        first = kvd_entry_text(&all->item[i], column);
    }
    return false;
}

/* Returns true if another result on the same text has another number in `column`. Compares the
 * column "prompt_tokens" between results of one model only, because tokenizers differ. */
static bool varies_on_text(const kvd_accuracy_entries *all, size_t i, const char *column)
{
    const double x = kvd_entry_real(&all->item[i], column);
    const char *const label = kvd_entry_text(&all->item[i], "label");
    const bool one_model = !strcmp(column, "prompt_tokens");
    const kvd_rows *rows = NULL;
    int c = -1;
    for (size_t j = 0; j < all->n && !isnan(x); j++) {
        const kvd_accuracy_entry *const e = &all->item[j];
        if (rows != e->rows)
            c = kvd_rows_find(rows = e->rows, column);
        const double y = c < 0 ? (double)NAN : kvd_rows_get_real(rows, e->row, c);
        if ((x < y || x > y) && !strcmp(label, kvd_entry_text(e, "label")) &&
            !(one_model && strcmp(all->item[i].file->model.hash, e->file->model.hash)))
            return true;
    }
    return false;
}

/* Writes a property of accuracy result i, such as " (prompt 256)" or " (9 predictions)", if other
 * results on the same text differ in it. Otherwise writes "". */
static void scored(const kvd_accuracy_entries *all, size_t i, char *text, size_t size)
{
    static const struct {
        const char *column, *before, *after;
    } note[] = {{"prompt", "prompt ", ""},
                {"n_predictions", "", " predictions"},
                {"n_items", "", " items"},
                {"prompt_tokens", "prompts of ", " tokens"}};
    *text = '\0';
    for (size_t k = 0; k < sizeof note / sizeof *note && !*text; k++)
        if (varies_on_text(all, i, note[k].column))
            snprintf(text, size, " (%s%.0f%s)", note[k].before,
                     kvd_entry_real(&all->item[i], note[k].column), note[k].after);
}

void kvd_accuracy_entries_release(kvd_accuracy_entries *all)
{
    free(all->item);
    free(all->label);
}

static bool same_curve(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    return !strcmp(a->series, b->series) &&
           !strcmp(kvd_entry_text(a, "calibration"), kvd_entry_text(b, "calibration")) &&
           !strcmp(kvd_entry_text(a, "label"), kvd_entry_text(b, "label"));
}

static void find_curves(kvd_accuracy_entries *all)
{
    for (size_t first = 0, last; first < all->n; first = last + 1) {
        for (last = first; last + 1 < all->n; last++)
            if (!same_curve(&all->item[last + 1], &all->item[first]))
                break;
        for (size_t i = first; i <= last; i++) {
            all->item[i].first = first;
            all->item[i].last = last;
        }
    }
}

static int collect(const kvd_results *r, kvd_result_kind kind, kvd_accuracy_entries *all,
                   kvd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == kind)
            n += kvd_rows_count(r->item[i].accuracy.rows);
    all->item = calloc(n ? n : 1, sizeof *all->item);
    all->label = calloc(n ? n : 1, sizeof *all->label);
    if (!all->item || !all->label)
        return kvd_no_memory(err, "accuracy rows", n * sizeof *all->item);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_rows *const rows = r->item[i].accuracy.rows;
        for (size_t k = 0; r->item[i].kind == kind && k < kvd_rows_count(rows); k++) {
            const kvd_result *from = kvd_calibration_of(r, &r->item[i], k);
            if (kvd_row_is_point(rows, k) && !kvd_row_is_weights(rows, k) &&
                (!from || !kvd_calibration_reduced(&from->spectrum)))
                all->item[all->n++] =
                    (kvd_accuracy_entry){.file = &r->item[i], .rows = rows, .row = k};
        }
    }
    bool calibrations = varies(all, "calibration");
    all->caches = varies(all, "cache");
    for (size_t i = 1; i < all->n; i++)
        all->models = all->models ||
                      strcmp(all->item[i].file->model.hash, all->item[0].file->model.hash) != 0;
    for (size_t i = 0; i < all->n; i++) {
        kvd_accuracy_entry *e = &all->item[i];
        const char *rule = kvd_entry_text(e, "rule");
        bool plain =
            strcmp(rule, "eq6") == 0 || strcmp(rule, "uniform") == 0 || strcmp(rule, "none") == 0;
        char rows[48];
        scored(all, i, rows, sizeof rows);
        snprintf(e->name, sizeof e->name, "%.100s%s%s%.40s", kvd_entry_text(e, "method"), alone(e),
                 plain ? "" : " ", plain ? "" : rule);
        if (all->models)
            e->model_prefix = strnlen(e->file->model.name, 60) + strlen(": ");
        snprintf(e->method, sizeof e->method, "%.60s%s%.80s%s%.20s%s",
                 all->models ? e->file->model.name : "", all->models ? ": " : "", e->name,
                 all->caches ? " " : "", all->caches ? kvd_entry_text(e, "cache") : "", rows);
        all->prompts = all->prompts || varies_on_text(all, i, "prompt");
        bool named = calibrations && *kvd_entry_text(e, "calibration");
        snprintf(e->series, sizeof e->series, "%.120s%s%.63s", e->method,
                 named ? " calibrated on " : "", named ? kvd_entry_text(e, "calibration") : "");
        kvd_series_clean(e->name);
        kvd_series_clean(e->method);
        kvd_series_clean(e->series);
    }
    qsort(all->item, all->n, sizeof *all->item, by_series);
    find_curves(all);
    for (size_t i = 0; i < all->n; i++)
        if (i == 0 || strcmp(kvd_entry_text(&all->item[i], "label"),
                             kvd_entry_text(&all->item[i - 1], "label")))
            all->label[all->n_labels++] = kvd_entry_text(&all->item[i], "label");
    return 0;
}

int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err)
{
    return collect(r, KVD_RESULT_ACCURACY, all, err);
}

int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err)
{
    return collect(r, KVD_RESULT_TASKS, all, err);
}

double kvd_report_real(const kvd_report_row *e, const char *column)
{
    return kvd_row_real(e->rows, e->row, column);
}

const char *kvd_report_text(const kvd_report_row *e, const char *column)
{
    return kvd_row_text(e->rows, e->row, column);
}

void kvd_report_rows_release(kvd_report_rows *all)
{
    free(all->item);
    *all = (kvd_report_rows){0};
}

static const kvd_rows *rows_of(const kvd_result *file, kvd_result_kind kind)
{
    return file->kind != kind           ? NULL
           : kind == KVD_RESULT_JCT     ? file->jct
           : kind == KVD_RESULT_SERVING ? file->serving
                                        : file->kernels.rows;
}

static int gather(const kvd_results *r, kvd_result_kind kind, void (*describe)(kvd_report_row *),
                  kvd_report_rows *out, kvd_err *err)
{
    size_t n = 0;
    *out = (kvd_report_rows){0};
    for (size_t i = 0; i < r->n; i++)
        if (rows_of(&r->item[i], kind))
            n += kvd_rows_count(rows_of(&r->item[i], kind));
    if (n == 0)
        return 0;
    out->item = calloc(n, sizeof *out->item);
    if (!out->item)
        return kvd_no_memory(err, "rows of results", (unsigned long long)n * sizeof *out->item);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_rows *const rows = rows_of(&r->item[i], kind);
        for (size_t k = 0; rows && k < kvd_rows_count(rows); k++) {
            kvd_report_row *const e = &out->item[out->n++];
            *e = (kvd_report_row){.file = &r->item[i], .rows = rows, .row = k};
            describe(e);
            kvd_series_clean(e->place);
            kvd_series_clean(e->series);
        }
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const kvd_report_row *x = a, *y = b;
    const int order = strcmp(x->place, y->place);
    if (order)
        return order;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

double kvd_jct_speed_up(const kvd_report_row *e)
{
    kvd_report_row none = *e;
    none.row = kvd_jct_uncompressed(e->file->jct, e->row);
    return none.row == SIZE_MAX ? (double)NAN
                                : kvd_report_real(&none, "jct_s") / kvd_report_real(e, "jct_s");
}

static void describe_jct(kvd_report_row *e)
{
    char batch[32] = "", chunk[48] = "";
    const char *const engine = kvd_report_text(e, "engine");
    const double n = kvd_report_real(e, "batch"), tokens = kvd_report_real(e, "chunk");
    const char *const by_tokens =
        strcmp(kvd_report_text(e, "parallel"), "sequence") ? "" : "; prompts shared by tokens";
    if (n > 0)
        snprintf(batch, sizeof batch, "; batch %.0f", n);
    if (tokens > 0)
        snprintf(chunk, sizeof chunk, "; chunks of %.0f", tokens);
    const char *const stock = strstr(engine, ", stock attention") ? "; stock attention"
                              : strstr(engine, ", work shared out as the papers say")
                                  ? "; the papers' schedule"
                                  : "";
    snprintf(e->place, sizeof e->place, "%.50s on %.*s%s%s%s%s", e->file->model.name,
             (int)strcspn(engine, ",;"), engine, stock, by_tokens, batch, chunk);
    snprintf(e->series, sizeof e->series, "%.100s%s", kvd_report_text(e, "method"),
             kvd_report_real(e, "phases") > 0 ? "" : " (total alone)");
}

int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err)
{
    if (gather(r, KVD_RESULT_JCT, describe_jct, out, err))
        return -1;
    size_t n = 0;
    for (size_t i = 0; i < out->n; i++)
        if (!strcmp(kvd_report_text(&out->item[i], "kind"), kind))
            out->item[n++] = out->item[i];
    out->n = n;
    if (n)
        qsort(out->item, n, sizeof *out->item, by_place);
    return 0;
}

bool kvd_is_job_method(const kvd_rows *rows, size_t i, const kvd_method *m)
{
    return !strcmp(kvd_row_text(rows, i, "method"), m->name) &&
           !strcmp(kvd_row_text(rows, i, "settings"), m->settings) &&
           (isnan(m->p) || fabs(kvd_row_real(rows, i, "p_wanted") - m->p) < 1e-9);
}

const char *const kvd_jct_part_title[KVD_JCT_PARTS] = {"QKV generation",
                                                       "rotation",
                                                       "compression",
                                                       "cache and work lists",
                                                       "attention of prompts",
                                                       "attention of steps",
                                                       "W_O",
                                                       "MLP",
                                                       "between GPUs",
                                                       "host",
                                                       "the rest"};

static const char *const phases[KVD_JCT_PARTS][3] = {{"qkv", "rope"},
                                                     {"rotate"},
                                                     {"compress", "restore"},
                                                     {"append", "schedule"},
                                                     {"prefill"},
                                                     {"decode"},
                                                     {"o"},
                                                     {"mlp"},
                                                     {"comm"},
                                                     {"host"},
                                                     {NULL}};

int kvd_jct_part_of(const char *phase)
{
    for (int p = 0; p < KVD_JCT_PARTS - 1; p++)
        for (int k = 0; k < 3 && phases[p][k]; k++)
            if (!strcmp(phases[p][k], phase))
                return p;
    return KVD_JCT_PARTS - 1;
}

double kvd_jct_part(const kvd_report_row *e, int part, const char *side)
{
    static const char *const sides[] = {"prefill", "decode"};
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        char column[48];
        if (side && strcmp(side, sides[i]))
            continue;
        for (int k = 0; k < 3 && phases[part][k]; k++) {
            snprintf(column, sizeof column, "%s_%s_s", sides[i], phases[part][k]);
            sum += kvd_report_real(e, column);
        }
        if (part == KVD_JCT_PARTS - 1) {
            snprintf(column, sizeof column, "%s_s", sides[i]);
            sum += kvd_report_real(e, column);
            for (int p = 0; p < part; p++)
                sum -= kvd_jct_part(e, p, sides[i]);
        }
    }
    return sum;
}

/* Removes the fraction p from the name of a file of kept dimensions: writes "kvdim25m" for
 * "kvdim25m-p50". If `widths` is a number, which all heads share, writes "equal widths". */
static void family(const char *widths, char *to, size_t size)
{
    const char *const dash = strrchr(widths, '-'), *const point = strstr(widths, " p=");
    size_t n = strlen(widths);
    if (widths[0] && strspn(widths, "0123456789") == n) {
        snprintf(to, size, "equal widths");
        return;
    }
    if (point)
        n = (size_t)(point - widths);
    else if (dash && dash[1] == 'p' && isdigit((unsigned char)dash[2]) &&
             strspn(dash + 2, "0123456789") == strlen(dash + 2))
        n = (size_t)(dash - widths);
    snprintf(to, size, "%.*s", (int)(n < size ? n : size - 1), widths);
}

static void describe_kernels(kvd_report_row *e)
{
    char widths[64];
    const char *const lengths = kvd_report_text(e, "lengths"), *const schedule =
                                                                   kvd_report_text(e, "schedule");
    const char *const data = kvd_report_text(e, "data");
    snprintf(e->place, sizeof e->place, "%.20s %.0f x %.0f %.10s%s%.20s%s %.10s",
             kvd_report_text(e, "phase"), kvd_report_real(e, "batch"),
             kvd_report_real(e, "seq_len"), kvd_report_text(e, "dtype"),
             strcmp(lengths, "equal") ? " " : "", strcmp(lengths, "equal") ? lengths : "",
             strcmp(data, "sharp") ? "" : " sharp", kvd_report_text(e, "l2"));
    family(kvd_report_text(e, "widths"), widths, sizeof widths);
    snprintf(e->series, sizeof e->series, "%.40s%s%.20s on %s", kvd_report_text(e, "impl"),
             strcmp(schedule, "-") ? " by " : "", strcmp(schedule, "-") ? schedule : "", widths);
}

int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err)
{
    return gather(r, KVD_RESULT_KERNELS, describe_kernels, out, err);
}

static void describe_serving(kvd_report_row *e)
{
    char replicas[32] = "", chunk[48] = "";
    const bool stored = !strcmp(kvd_report_text(e, "admission"), "stored");
    const double n = kvd_report_real(e, "replicas"), tokens = kvd_report_real(e, "chunk");
    if (n > 1)
        snprintf(replicas, sizeof replicas, "; %.0f replicas", n);
    if (tokens > 0)
        snprintf(chunk, sizeof chunk, "; chunks of %.0f", tokens);
    const char *const engine = kvd_report_text(e, "engine");
    char device[40]; /* name of the GPU, up to the first comma of `engine` */
    snprintf(device, sizeof device, "%.39s", engine);
    device[strcspn(device, ",;")] = '\0';
    snprintf(e->place, sizeof e->place, "%.48s on %s: %.48s%s%s%s", e->file->model.name, device,
             kvd_report_text(e, "trace"), replicas, chunk,
             stored ? "; admitted by what is stored" : "");
    snprintf(e->series, sizeof e->series, "%.100s", kvd_report_text(e, "method"));
    e->kind = kvd_report_text(e, "kind");
}

static bool other_service(const kvd_report_row *a, const kvd_report_row *b)
{
    static const char *const column[] = {"max_batch",     "max_tokens", "memory_bytes",
                                         "reserve_bytes", "slo_ttft_s", "slo_tbt_s"};
    for (size_t i = 0; i < sizeof column / sizeof *column; i++) {
        const double x = kvd_report_real(a, column[i]), y = kvd_report_real(b, column[i]);
        if (x < y || x > y || isnan(x) != isnan(y))
            return true;
    }
    return strcmp(kvd_report_text(a, "trace"), kvd_report_text(b, "trace")) ||
           strcmp(kvd_report_text(a, "route"), kvd_report_text(b, "route"));
}

/* simulations of one model, GPU and request trace: the adjacent rows first .. end - 1 of `item` */
typedef struct {
    kvd_report_row *item;
    size_t *service; /* for each row, index of the first row with equal server limits */
    size_t first, end;
} same_place;

static size_t service_of(const same_place *p, size_t i)
{
    for (size_t k = p->first; k < i; k++)
        if (p->service[k] == k && !other_service(&p->item[k], &p->item[i]))
            return k;
    return i;
}

/* Returns true if a row of another file has the compression method and the server limits (such as
 * the largest batch) of row i. */
static bool twice(const same_place *p, size_t i)
{
    for (size_t k = p->first; k < p->end; k++)
        if (p->item[k].file != p->item[i].file && p->service[k] == p->service[i] &&
            !strcmp(p->item[k].series, p->item[i].series))
            return true;
    return false;
}

/* Returns true if the label of row i must name the file of row i. This is so if another file has
 * the same simulation, or the same uncompressed baseline. */
static bool is_alone(const same_place *p, size_t i)
{
    bool alone = twice(p, i);
    for (size_t k = p->first; k < p->end && !alone; k++)
        alone = p->item[k].file == p->item[i].file && p->service[k] == p->service[i] &&
                !strcmp(p->item[k].series, "none") && twice(p, k);
    return alone;
}

/* Makes the label `place` of row i unique: appends a file name if rows with this label have
 * different server limits. alone: appends the name of row i's own file in any case. */
static void name_files(const same_place *p, size_t i, bool alone)
{
    kvd_report_row *const e = &p->item[i];
    bool services = false, others = false;
    for (size_t k = p->first; k < p->end; k++) {
        const bool equal = p->service[k] == p->service[i];
        services = services || !equal;
        others = others || (equal && p->item[k].file != p->item[p->service[i]].file);
    }
    const size_t at = strlen(e->place);
    if (alone || services)
        snprintf(e->place + at, KVD_LABEL - at, " (%.160s%s)",
                 alone ? e->file->name : p->item[p->service[i]].file->name,
                 others && !alone ? " and others" : "");
}

/* If results with equal labels `place` have different server limits, such as the largest batch,
 * appends file names to the labels. Results with equal labels must be adjacent. */
static int tell_apart(kvd_report_rows *all, kvd_err *err)
{
    same_place p = {.item = all->item, .service = calloc(all->n, sizeof *p.service)};
    bool *const alone = calloc(all->n, sizeof *alone);
    const int status =
        p.service && alone ? 0 : kvd_no_memory(err, "services", all->n * sizeof *p.service);
    for (; !status && p.first < all->n; p.first = p.end) {
        while (p.end < all->n && !strcmp(all->item[p.end].place, all->item[p.first].place))
            p.end++;
        for (size_t i = p.first; i < p.end; i++)
            p.service[i] = service_of(&p, i);
        for (size_t i = p.first; i < p.end; i++)
            alone[i] = is_alone(&p, i);
        for (size_t i = p.first; i < p.end; i++)
            name_files(&p, i, alone[i]);
    }
    free(p.service);
    free(alone);
    return status;
}

int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err)
{
    if (gather(r, KVD_RESULT_SERVING, describe_serving, out, err))
        return -1;
    if (out->n) {
        qsort(out->item, out->n, sizeof *out->item, by_place);
        if (tell_apart(out, err)) {
            kvd_report_rows_release(out);
            return -1;
        }
        qsort(out->item, out->n, sizeof *out->item, by_place);
    }
    return 0;
}

const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e)
{
    const char *const but = strcmp(e->kind, "point") ? "method,attention,rate" : "method,attention";
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const x = &all->item[i];
        if (!strcmp(x->place, e->place) && !strcmp(x->series, "none") &&
            !kvd_rows_differ(x->file, x->row, e->file, e->row, but))
            return x;
    }
    return NULL;
}
