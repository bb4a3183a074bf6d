/* Section of the report: summary at the top of the page. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/rows.h"
#include "report/studies/studies.h"

enum { MOST_METHODS = 6 };

typedef struct {
    size_t first, last;
    kvd_target_result x;
    bool known;    /* true if `x` comes from --target or from at least KVD_FEWEST_POINTS rows */
    bool searched; /* true if `x` comes from --target */
    bool elements; /* true if the file counts no bytes, so that the removed fraction p is shown */
} candidate;

typedef struct {
    candidate *item;
    size_t n, n_known;
    const char *label;
} candidates;

static double saved(const candidate *c)
{
    return c->elements ? c->x.value : isnan(c->x.saving) ? 0 : c->x.saving;
}

static double removed(const kvd_accuracy_entry *e)
{
    const double bytes = kvd_entry_saving(e);
    return isnan(bytes) ? kvd_entry_real(e, "overall_p") : bytes;
}

static const char no_share[] = "no share: the uncompressed model predicts no token right";

static bool has_share(const kvd_accuracy_entries *all, const candidate *c)
{
    return !isnan(kvd_entry_real(&all->item[c->first], "top1_share"));
}

/* Returns the accuracy result that saves the most cache bytes with at least 99 % of the
 * uncompressed accuracy. If none is so accurate, returns the most accurate result; NULL if no
 * accuracy is known. */
static const kvd_accuracy_entry *best_point(const kvd_accuracy_entries *all, const candidate *c)
{
    const kvd_accuracy_entry *best = NULL;
    for (size_t i = c->first; i <= c->last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double share = kvd_entry_real(e, "top1_share"),
                     before = best ? kvd_entry_real(best, "top1_share") : -1;
        if (share >= 0.99 && before >= 0.99 ? removed(e) > removed(best) : share > before)
            best = e;
    }
    return best;
}

/* Returns true if the summary lists method `a` before method `b`. Methods that save more cache
 * bytes at 99 % of the uncompressed accuracy come first. */
static bool precedes(const kvd_accuracy_entries *all, const candidate *a, const candidate *b)
{
    if (a->known || b->known)
        return a->known && (!b->known || saved(a) > saved(b));
    const kvd_accuracy_entry *const x = best_point(all, a), *const y = best_point(all, b);
    if (!x || !y)
        return x && !y;
    const double p = kvd_entry_real(x, "top1_share"), q = kvd_entry_real(y, "top1_share");
    return p >= 0.99 && q >= 0.99 ? removed(x) > removed(y) : p > q;
}

static candidate judge(const kvd_accuracy_entries *all, size_t first)
{
    candidate c = {.first = first, .last = all->item[first].last};
    for (size_t i = c.first; i <= c.last && !c.searched; i++) {
        const kvd_target_result *const x = kvd_entry_search(&all->item[i], 0.99);
        if (x) {
            c.x = *x;
            c.searched = c.known = true;
        }
    }
    c.elements = c.searched && isnan(c.x.saving) && !isnan(c.x.value) && !strcmp(c.x.key, "p");
    if (!c.searched && c.last - c.first + 1 >= KVD_FEWEST_POINTS) {
        kvd_target_from_points(all, c.first, c.last, &c.x);
        c.known = has_share(all, &c);
    }
    return c;
}

static const char *name_of(const kvd_accuracy_entries *all, const candidate *c)
{
    return all->item[c->first].name;
}

static bool comparable(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    static const char *const numbers[] = {"n_predictions", "prompt"};
    bool equal = !strcmp(kvd_entry_text(a, "label"), kvd_entry_text(b, "label")) &&
                 !strcmp(kvd_entry_text(a, "cache"), kvd_entry_text(b, "cache")) &&
                 !strcmp(a->file->model.hash, b->file->model.hash);
    for (int k = 0; k < 2; k++) {
        const double x = kvd_entry_real(a, numbers[k]), y = kvd_entry_real(b, numbers[k]);
        equal = equal && !(x < y) && !(x > y);
    }
    return equal;
}

/* Returns true if the estimated cache saving of `a` is more reliable than that of `b`. */
static bool says_more(const candidate *a, const candidate *b)
{
    return a->searched != b->searched ? a->searched
           : a->known != b->known     ? a->known
                                      : a->last - a->first > b->last - b->first;
}

static int collect(const kvd_accuracy_entries *all, size_t like, candidates *to, kvd_err *err)
{
    *to = (candidates){.item = calloc(all->n, sizeof *to->item),
                       .label = kvd_entry_text(&all->item[like], "label")};
    if (!to->item)
        return kvd_no_memory(err, "methods of the summary", all->n * sizeof *to->item);
    for (size_t i = 0; i < all->n; i = all->item[i].last + 1) {
        if (kvd_entry_is_none(&all->item[i]) || !comparable(&all->item[i], &all->item[like]))
            continue;
        const candidate c = judge(all, i);
        size_t k = 0;
        while (k < to->n && strcmp(name_of(all, &to->item[k]), name_of(all, &c)))
            k++;
        if (k == to->n)
            to->item[to->n++] = c;
        else if (says_more(&c, &to->item[k]))
            to->item[k] = c;
    }
    for (size_t i = 0; i < to->n; i++) {
        const candidate c = to->item[i];
        size_t k = i;
        for (; k > 0 && precedes(all, &c, &to->item[k - 1]); k--)
            to->item[k] = to->item[k - 1];
        to->item[k] = c;
        to->n_known += c.known;
    }
    return 0;
}

static const candidate *plain(const kvd_accuracy_entries *all, const candidates *some,
                              const char *method)
{
    const candidate *found = NULL;
    for (size_t i = 0; i < some->n; i++)
        if (!strcmp(kvd_entry_text(&all->item[some->item[i].first], "method"), method) &&
            (!found || says_more(&some->item[i], found)))
            found = &some->item[i];
    return found;
}

static int n_references(const kvd_accuracy_entries *all, const candidates *some)
{
    return !!plain(all, some, "zack") + !!plain(all, some, "uniform");
}

/* Chooses the evaluated text and model with the largest number of methods whose cache savings are
 * known. */
static int choose_text(const kvd_accuracy_entries *all, candidates *to, kvd_err *err)
{
    *to = (candidates){0};
    for (size_t i = 0; i < all->n; i = all->item[i].last + 1) {
        candidates some;
        if (kvd_entry_is_none(&all->item[i]))
            continue;
        if (collect(all, i, &some, err)) {
            free(to->item);
            *to = (candidates){0};
            return -1;
        }
        if (!to->item || some.n_known > to->n_known ||
            (some.n_known == to->n_known && n_references(all, &some) > n_references(all, to))) {
            free(to->item);
            *to = some;
        } else {
            free(some.item);
        }
    }
    return 0;
}

static bool is_reference(const kvd_accuracy_entries *all, const candidates *some, size_t i)
{
    return &some->item[i] == plain(all, some, "zack") ||
           &some->item[i] == plain(all, some, "uniform");
}

/* Keeps the methods zack and uniform in the list, because readers compare other methods with
 * them. */
static void keep_references(const kvd_accuracy_entries *all, candidates *some)
{
    size_t end = MOST_METHODS;
    for (size_t i = MOST_METHODS; i < some->n; i++) {
        if (!is_reference(all, some, i))
            continue;
        do
            end--;
        while (is_reference(all, some, end));
        const candidate moved = some->item[i];
        some->item[i] = some->item[end];
        some->item[end] = moved;
    }
}

static void interval_text(double lo, double hi, char *text, size_t size)
{
    if (isnan(lo) && isnan(hi))
        snprintf(text, size, "no interval in the file");
    else if (isnan(hi))
        snprintf(text, size, "95 %% interval: at least %.1f %%", 100 * lo);
    else if (isnan(lo))
        snprintf(text, size, "95 %% interval: at most %.1f %%", 100 * hi);
    else
        snprintf(text, size, "95 %% interval %.1f to %.1f %%", 100 * lo, 100 * hi);
}

static void card(const kvd_accuracy_entries *all, const candidate *c, const char *heading,
                 const char *method, kvd_text *t)
{
    char interval[80], below[160] = "";
    const kvd_accuracy_entry *const e = c->known ? NULL : best_point(all, c);
    kvd_text_raw(t, "<div class=\"card\"><span>");
    kvd_text_html(t, heading);
    kvd_text_html(t, method);
    if (c->known) {
        interval_text(c->elements ? c->x.value_lo : c->x.saving_lo,
                      c->elements ? c->x.value_hi : c->x.saving_hi, interval, sizeof interval);
        snprintf(below, sizeof below, "of the %s at 99 %% of top-1 accuracy%s",
                 c->elements ? "dimensions removed" : "bytes saved",
                 c->x.grid ? " (best of its settings, chosen on this text)" : "");
        kvd_text_add(t,
                     "</span><b>%.1f %%</b><span>%s</span><span class=\"soft\">%s</span></div>\n",
                     100 * saved(c), below, interval);
    } else if (e) {
        interval_text(kvd_entry_real(e, "top1_share_lo"), kvd_entry_real(e, "top1_share_hi"),
                      interval, sizeof interval);
        snprintf(below, sizeof below,
                 "of top-1 accuracy kept with %.1f %% of the bytes saved; too few points for the "
                 "bytes saved at 99 %%",
                 100 * removed(e));
        kvd_text_add(t,
                     "</span><b>%.1f %%</b><span>%s</span><span class=\"soft\">%s</span></div>\n",
                     100 * kvd_entry_real(e, "top1_share"), below, interval);
    } else {
        kvd_text_add(t, "</span><b>-</b><span>%s</span></div>\n", no_share);
    }
}

/* Writes a card (box with main results) for the best method, and one for each of the methods zack
 * and uniform that was measured. */
static void cards(const kvd_accuracy_entries *all, const candidates *some, kvd_text *t)
{
    static const char *const references[] = {"zack", "uniform"};
    const candidate *const best = &some->item[0];
    const bool first = best->known || !is_reference(all, some, 0);
    kvd_text_raw(t, "<div class=\"cards\">\n");
    if (first)
        card(all, best, best->known ? "Best method: " : "", name_of(all, best), t);
    for (int k = 0; k < 2; k++) {
        const candidate *const c = plain(all, some, references[k]);
        if (c && (!first || c != best))
            card(all, c, "", references[k], t);
    }
    kvd_text_raw(t, "</div>\n");
}

static void figure(const kvd_accuracy_entries *all, const candidates *some, kvd_section *s)
{
    static const double lowest = 0.8;
    size_t below = 0, outside = 0;
    kvd_table *const t =
        kvd_section_data(s, "summary-curves", "Top-1 accuracy against bytes removed");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "bytes_removed", "share of bytes removed");
    kvd_table_add_interval(t, 6, "top1_share", "top-1 share");
    for (size_t m = 0; m < some->n && m < MOST_METHODS; m++) {
        const candidate *const c = &some->item[m];
        size_t swept = 0;
        for (size_t i = c->first; i <= c->last; i++)
            swept += !kvd_entry_is_search_point(&all->item[i]);
        for (size_t i = c->first; i <= c->last; i++) {
            const kvd_accuracy_entry *const e = &all->item[i];
            const double x = removed(e), share = kvd_entry_real(e, "top1_share");
            if (kvd_entry_is_search_point(e) && swept > 1)
                continue;
            if (!(x >= 0 && x <= 1) || isnan(share)) {
                outside++;
                continue;
            }
            below += share < lowest;
            kvd_table_text(t, e->name);
            kvd_table_real(t, x);
            kvd_table_row(t, e->rows, e->row, 3);
        }
    }
    if (t->n_rows + outside == 0)
        return;
    kvd_section_figure(
        s, "summary", "summary.gp", 1000,
        kvd_height_with_key(400, 1000, MOST_METHODS, t, 0, SIZE_MAX),
        "Top-1 accuracy over that of the uncompressed model, against the share of the bytes of a "
        "16-bit cache that a method removes (of its dimensions if a file counts no bytes). "
        "Bars are 95 % intervals over sequences; the dashed line is 99 % of the accuracy.",
        "csv='tables/summary-curves.csv'; lowest_share=%g", lowest);
    if (below)
        kvd_section_left_out(s, "Below the panel: %zu of %zu points, with a share under %g.", below,
                             t->n_rows, lowest);
    if (outside)
        kvd_section_left_out(
            s,
            "Left out: %zu points without a share of top-1 or with more bytes than uncompressed.",
            outside);
    if (t->n_rows == 0)
        kvd_section_not_drawn(s, "no point is left.");
    else if (below == t->n_rows)
        kvd_section_not_drawn(s, "every share is under %g.", lowest);
}

static void table(const kvd_accuracy_entries *all, const candidates *some, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "summary", "The methods of the figure");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "calibration", "calibrated on");
    kvd_table_add_interval(t, 3, "saving", "saved at 99 % of top-1 [95 %]");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "of", "counted in");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "how", "found by");
    kvd_table_add_interval(t, 3, "kl", "KL, nats [95 %]");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kl_at", "at share removed");
    for (size_t m = 0; m < some->n && m < MOST_METHODS; m++) {
        const candidate *const c = &some->item[m];
        const kvd_accuracy_entry *half = &all->item[c->first];
        for (size_t i = c->first; i <= c->last; i++)
            if (fabs(removed(&all->item[i]) - 0.5) < fabs(removed(half) - 0.5))
                half = &all->item[i];
        kvd_table_text(t, half->name);
        kvd_table_text(t, kvd_entry_text(half, "calibration"));
        kvd_table_real(t, c->known ? saved(c) : (double)NAN);
        kvd_table_real(t, !c->known ? (double)NAN : c->elements ? c->x.value_lo : c->x.saving_lo);
        kvd_table_real(t, !c->known ? (double)NAN : c->elements ? c->x.value_hi : c->x.saving_hi);
        kvd_table_text(t, c->elements ? "dimensions" : "bytes");
        kvd_table_text(t, !has_share(all, c) ? no_share
                          : !c->known        ? "too few points"
                          : c->searched      ? "search"
                          : c->x.grid        ? "best of a grid"
                                             : "measured points");
        kvd_table_bounded(t, kvd_entry_interval(half, "kl"));
        kvd_table_real(t, removed(half));
    }
    if (some->n > MOST_METHODS)
        kvd_table_note(
            t,
            "%d of the %zu methods that were measured on this text: those that save most, and "
            "zack and uniform. The KL divergence is that of the setting nearest to half of the "
            "bytes.",
            MOST_METHODS, some->n);
    else
        kvd_table_note(t, "The KL divergence is that of the setting nearest to half of the bytes.");
}

static void distinct(const char *const *text, size_t n, size_t most, kvd_text *t)
{
    size_t all = 0, at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            bool again = !text[i][0];
            for (size_t j = 0; j < i && !again; j++)
                again = !strcmp(text[i], text[j]);
            if (again)
                continue;
            if (pass == 0)
                all++;
            else
                kvd_text_item(t, at++, all, most, text[i]);
        }
}

/* Returns the number of different models of the results. */
static size_t count_models(const kvd_accuracy_entries *all)
{
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        bool again = false;
        for (size_t k = 0; k < i && !again; k++)
            again = !strcmp(all->item[k].file->model.hash, all->item[i].file->model.hash);
        n += !again;
    }
    return n;
}

/* Appends a sentence that names the methods that the summary leaves out because they were measured
 * on another text or under other conditions. */
static void say_elsewhere(const kvd_accuracy_entries *all, const candidates *some, kvd_text *words)
{
    enum { MOST_NAMES = 8 };
    kvd_text text = {0};
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        for (size_t i = 0; i < all->n; i = all->item[i].last + 1) {
            const kvd_accuracy_entry *const e = &all->item[i];
            bool named = kvd_entry_is_none(e);
            for (size_t k = 0; k < some->n && !named; k++)
                named = !strcmp(e->name, name_of(all, &some->item[k]));
            for (size_t k = 0; k < i && !named; k++)
                named = !strcmp(e->name, all->item[k].name);
            if (named)
                continue;
            const char *const label = kvd_entry_text(e, "label");
            char item[2 * KVD_LABEL];
            snprintf(item, sizeof item, "%s%s%s", e->method,
                     strcmp(label, some->label) ? " on " : "",
                     strcmp(label, some->label) ? label : "");
            if (pass == 0)
                n++;
            else
                kvd_text_item(&text, at++, n, MOST_NAMES, item);
        }
    }
    if (n) {
        kvd_text_raw(words, "<p class=\"soft\">Measured under other conditions (model, tokens, "
                            "prompt or number type of the cache) and not compared here: ");
        kvd_text_html(words, kvd_text_get(&text));
        kvd_text_raw(words, ".</p>\n");
    }
    words->failed |= text.failed;
    kvd_text_release(&text);
}

/* If the runs stored 32-bit numbers, and a method stores quantisation codes, appends a sentence on
 * how bytes are counted. */
static void say_32_bits(const kvd_accuracy_entries *all, const candidates *some, kvd_text *words)
{
    bool codes = false;
    for (size_t i = 0; i < some->n && i < MOST_METHODS; i++) {
        const kvd_accuracy_entry *const e = &all->item[some->item[i].first];
        codes = codes || kvd_row_has_codes(e->rows, e->row);
    }
    if (codes && !strcmp(kvd_entry_text(&all->item[some->item[0].first], "cache"), "f32"))
        kvd_text_raw(words,
                     "<p class=\"soft\">These runs stored numbers of 32 bits. Bytes are compared "
                     "with a 16-bit cache: a method that stores numbers alone counts as if they "
                     "had 16 bits, a method that also stores codes counts as it stored them, and "
                     "so saves more with <code>--cache f16</code>.</p>\n");
}

static int facts(const kvd_results *r, const kvd_accuracy_entries *all, const candidates *some,
                 kvd_text *title, kvd_text *words, kvd_err *err)
{
    kvd_text plain_words = {0};
    const char *first = "", *last = "";
    const char **const text = calloc(r->n + 1, sizeof *text);
    if (!text)
        return kvd_no_memory(err, "facts of the summary", r->n * sizeof *text);
    for (size_t i = 0; i < r->n; i++)
        text[i] = r->item[i].has_model ? r->item[i].model.name : "";
    kvd_text_raw(title, "kvdim report: ");
    distinct(text, r->n, 3, title);
    if (!some->label)
        kvd_text_raw(title, title->len > strlen("kvdim report: ") ? "" : "results without a model");
    if (some->label) {
        const kvd_accuracy_entry *const e = &all->item[some->item[0].first];
        const size_t models = count_models(all) - 1, texts = all->n_labels - 1;
        kvd_text_add(&plain_words,
                     "Methods that shrink the KV cache of %s, compared with its uncompressed cache "
                     "on the text %s, %.0f predicted tokens. ",
                     e->file->model.name, some->label, kvd_entry_real(e, "n_predictions"));
        if (models || texts)
            kvd_text_raw(&plain_words, "Sections below have ");
        if (models)
            kvd_text_add(&plain_words, "%zu further model%s%s", models, models > 1 ? "s" : "",
                         texts ? " and " : ". ");
        if (texts)
            kvd_text_add(&plain_words, "%zu further text%s. ", texts, texts > 1 ? "s" : "");
    }
    for (size_t i = 0; i < r->n; i++) {
        const char *const at = kvd_fact_get(&r->item[i].provenance, "started_utc");
        text[i] = kvd_fact_get(&r->item[i].provenance, "git_revision");
        if (*at && (!*first || strncmp(at, first, 10) < 0))
            first = at;
        if (*at && strncmp(at, last, 10) > 0)
            last = at;
    }
    kvd_text_raw(&plain_words, "Measured by kvdim ");
    distinct(text, r->n, 3, &plain_words);
    if (*first && strncmp(first, last, 10) != 0)
        kvd_text_add(&plain_words, " from %.10s to %.10s.", first, last);
    else if (*first)
        kvd_text_add(&plain_words, " on %.10s.", first);
    kvd_text_raw(words, "<p class=\"soft\">");
    kvd_text_html(words, kvd_text_get(&plain_words));
    kvd_text_raw(words, "</p>\n");
    free(text);
    const int status = kvd_status(kvd_text_check(&plain_words, err) || kvd_text_check(title, err));
    kvd_text_release(&plain_words);
    return status;
}

static void strip(const kvd_ledger *l, kvd_text *t)
{
    size_t count[KVD_N_VERDICTS] = {0};
    for (size_t i = 0; i < l->n; i++)
        count[l->entry[i].verdict]++;
    if (count[KVD_NOT_MEASURED] == l->n) {
        kvd_text_raw(t, "<p class=\"soft\">These files measure none of "
                        "<a href=\"#ledger\">the papers' claims</a>.</p>\n");
        return;
    }
    kvd_text_raw(t, "<div class=\"strip\"><span>Claims of the papers:</span>");
    for (int v = 0; v < KVD_N_VERDICTS; v++)
        kvd_text_add(t,
                     count[v] ? " <a class=\"v%d\" href=\"#verdict-%d\"><b>%zu</b> %s</a>"
                              : " <span class=\"v%d\" id=\"no-verdict-%d\"><b>%zu</b> %s</span>",
                     kvd_verdict_colour((kvd_verdict)v), v, count[v], kvd_verdict_name[v]);
    kvd_text_raw(t, "</div>\n");
}

int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err)
{
    kvd_accuracy_entries all = {0};
    candidates some = {0};
    int status = -1;
    kvd_section *const s = kvd_report_section(report, "summary", "Summary");
    if (kvd_accuracy_collect(r, &all, err) || choose_text(&all, &some, err) ||
        facts(r, &all, &some, &report->title, &s->words, err))
        goto done;
    if (some.n) {
        keep_references(&all, &some);
        cards(&all, &some, &s->words);
        say_elsewhere(&all, &some, &s->words);
        say_32_bits(&all, &some, &s->words);
    } else if (kvd_results_count(r, KVD_RESULT_TASKS)) {
        kvd_text_raw(&s->words, "<p>Scores of tasks are <a href=\"#tasks\">below</a>. No file here "
                                "has next-token predictions, so the bytes saved at 99 % of top-1 "
                                "accuracy are not known.</p>\n");
    } else {
        kvd_text_raw(&s->words, "<p>No file here compares a compressed cache with the uncompressed "
                                "one, so the bytes saved at 99 % of top-1 accuracy are not known. "
                                "<code>kvdim-eval --target 0.99</code> measures them.</p>\n");
    }
    strip(l, &s->words);
    if (some.n) {
        figure(&all, &some, s);
        table(&all, &some, s);
    }
    status = 0;
done:
    free(some.item);
    kvd_accuracy_entries_release(&all);
    return status;
}
