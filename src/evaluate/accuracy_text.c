#include "evaluate/accuracy_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "methods/method.h"

const char kvd_accuracy_heading[] =
    "method    rule            p    p16        ppl 95 %                  top1  share "
    "95 %             KL, nats  agree  att.err  B/token   cache  settings";

const char kvd_accuracy_legend[] =
    "p: fraction of the dimensions removed; p16: with widths rounded up to multiples of 16\n"
    "share: top1 over that of none; agree: same top prediction as none; att.err: relative error of "
    "attention outputs\n" KVD_CACHE_LEGEND KVD_SETTINGS_LEGEND;

void kvd_print_legend(const char *legend, const kvd_inputs_options *in)
{
    puts(legend);
    if (in->cache == KVD_F32 && !in->cache_given)
        puts(
            "numbers are stored with 32 bits, so the cache of none is 2; --cache f16 stores 16 bits");
}

void kvd_accuracy_method_name(const kvd_rows *r, size_t i, char *name, size_t size)
{
    const bool qk = *kvd_row_text(r, i, "pair_qk"), v = *kvd_row_text(r, i, "pair_v");
    char seed[24] = "";
    if (!strcmp(kvd_row_text(r, i, "purpose"), "seed"))
        snprintf(seed, sizeof seed, "#%lld",
                 (long long)kvd_rows_get_int(r, i, kvd_rows_find(r, "seed")));
    snprintf(name, size, "%s%s%s", kvd_row_text(r, i, "method"),
             qk == v ? ""
             : v     ? "/v"
                     : "/qk",
             seed);
}

void kvd_settings_add(const kvd_rows *r, size_t i, char *line, size_t size)
{
    char settings[KVD_SETTINGS];
    const size_t used = strlen(line);
    kvd_method_changed_settings(kvd_row_text(r, i, "method"), kvd_row_text(r, i, "settings"),
                                kvd_row_text(r, i, "rate_key"), settings);
    if (*settings)
        snprintf(line + used, size - used, "  %s", settings);
}

void kvd_p_and_settings_add(const kvd_rows *r, size_t i, char *line, size_t size)
{
    char p[24] = "", settings[KVD_SETTINGS + 24] = "";
    const size_t used = strlen(line);
    if (kvd_row_real(r, i, "overall_p") > 0)
        snprintf(p, sizeof p, "  p=%.4g", kvd_row_real(r, i, "overall_p"));
    kvd_settings_add(r, i, settings, sizeof settings);
    snprintf(line + used, size - used, "%s%s%s", p, *p && *settings ? "," : "",
             *p && *settings ? settings + 2 : settings);
}

/* Moves *end from the end of a table column to the end of the next column, a blank and `width`
 * characters further. Returns how many characters fit before *end after `used` characters and a
 * blank. */
static int room_of(size_t used, size_t *end, int width)
{
    *end += 1 + (size_t)width;
    return *end > used + 1 ? (int)(*end - used - 1) : 0;
}

const char *kvd_accuracy_line(const kvd_rows *r, size_t i, char *line)
{
    /* columns of the printed table; `interval`: printf format of the column's confidence interval,
     * or NULL for a column without one */
    static const struct {
        const char *column, *format;
        int width;
        const char *interval;
        int interval_width;
    } cells[] = {{"overall_p", "%.4f", 6, NULL, 0},
                 {"overall_p16", "%.4f", 6, NULL, 0},
                 {"perplexity", "%.4g", 10, "[%.4g, %.4g]", 19},
                 {"top1", "%.4f", 6, NULL, 0},
                 {"top1_share", "%.4f", 6, "[%.3f, %.3f]", 15},
                 {"kl", "%.3g", 9, NULL, 0},
                 {"agree", "%.4f", 6, NULL, 0},
                 {"attention_error", "%.3g", 8, NULL, 0},
                 {"bytes_per_token_stored", "%.0f", 8, NULL, 0},
                 {"cache_share", "%.3f", 7, NULL, 0}};
    char name[80], cell[40], column[40];
    kvd_accuracy_method_name(r, i, name, sizeof name);
    /* A cell that is too wide takes its room from the blanks of the cells after it. */
    size_t end = 9, used = (size_t)snprintf(line, KVD_ACCURACY_LINE, "%-9s", name);
    used += (size_t)snprintf(line + used, KVD_ACCURACY_LINE - used, " %-*s",
                             room_of(used, &end, 10), kvd_row_text(r, i, "rule"));
    for (size_t k = 0; k < sizeof cells / sizeof *cells && used < KVD_ACCURACY_LINE; k++) {
        used += (size_t)snprintf(
            line + used, KVD_ACCURACY_LINE - used, " %*s", room_of(used, &end, cells[k].width),
            kvd_real_text(cell, sizeof cell, cells[k].format, kvd_row_real(r, i, cells[k].column)));
        if (!cells[k].interval || used >= KVD_ACCURACY_LINE)
            continue;
        snprintf(column, sizeof column, "%s_lo", cells[k].column);
        const double lo = kvd_row_real(r, i, column);
        snprintf(column, sizeof column, "%s_hi", cells[k].column);
        used += (size_t)snprintf(line + used, KVD_ACCURACY_LINE - used, " %-*s",
                                 room_of(used, &end, cells[k].interval_width),
                                 kvd_interval_text(cell, sizeof cell, cells[k].interval, lo,
                                                   kvd_row_real(r, i, column)));
    }
    kvd_settings_add(r, i, line, KVD_ACCURACY_LINE);
    return line;
}

const char *kvd_accuracy_target_line(const char *name, const char *key, const char *what,
                                     const kvd_target *t, char *line)
{
    const size_t size = 2 * KVD_ACCURACY_LINE;
    const bool tells = kvd_target_tells(t->surely_kept.saving, t->surely_lost.saving);
    const char *const bytes = t->reads ? "fewer bytes read" : "of the bytes saved";
    char sure[120] = "", again[120] = "";
    if (!tells)
        snprintf(sure, sizeof sure, "; cannot tell: no 95 %% interval limits it");
    else if (!isnan(t->kept.value) && !isnan(t->misses.value))
        snprintf(sure, sizeof sure,
                 "; surely kept up to %.4g (%.1f %%), surely lost from %.4g (%.1f %%)",
                 t->surely_kept.value, 100 * t->surely_kept.saving, t->surely_lost.value,
                 100 * t->surely_lost.saving);
    if (!t->monotone)
        snprintf(again, sizeof again,
                 "\n%.40s: not monotone, kept again beyond the miss, last at %s = %.4g", name, key,
                 t->last_kept.value);
    if (isnan(t->kept.value))
        snprintf(line, size, "%s misses %g of %s from the first %s = %.4g on, %.1f %% %s%s", name,
                 t->target, what, key, t->misses.value, 100 * t->misses.saving, bytes, sure);
    else if (isnan(t->misses.value))
        snprintf(line, size, "%s keeps %g of %s at every %s tried, up to %.4g, %.1f %% %s%s", name,
                 t->target, what, key, t->kept.value, 100 * t->kept.saving, bytes, sure);
    else
        snprintf(line, size,
                 "%s keeps %g of %s up to %s = %.4g (missed at %.4g), %.1f %% %s%s; %zu points%s",
                 name, t->target, what, key, t->kept.value, t->misses.value, 100 * t->kept.saving,
                 bytes, sure, t->n_points, again);
    return line;
}

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *target_json(const char *key, const char *metric, const kvd_target *t)
{
    const struct {
        const char *suffix;
        const kvd_target_end *end;
    } ends[] = {{"", &t->kept},
                {"_misses", &t->misses},
                {"_lo", &t->surely_kept},
                {"_hi", &t->surely_lost},
                {"_last_kept", &t->last_kept}};
    json_t *const all =
        json_pack("{s:s, s:s, s:o, s:b, s:I}", "key", key, "metric", metric, "target",
                  real(t->target), "monotone", t->monotone, "n_points", (json_int_t)t->n_points);
    for (size_t i = 0; all && i < sizeof ends / sizeof *ends; i++) {
        char name[40];
        if (!strcmp(key, "p")) {
            snprintf(name, sizeof name, "p%s", ends[i].suffix);
            json_object_set_new(all, name, real(ends[i].end->value));
        }
        snprintf(name, sizeof name, "value%s", ends[i].suffix);
        json_object_set_new(all, name, real(ends[i].end->value));
        snprintf(name, sizeof name, "saving%s", ends[i].suffix);
        json_object_set_new(all, name, real(ends[i].end->saving));
    }
    return all;
}

json_t *kvd_accuracy_targets_json(const kvd_method_target *t, size_t n, const char *metric)
{
    json_t *const all = json_object();
    for (size_t i = 0; i < n; i++)
        if (!t[i].failed)
            json_object_set_new(all, t[i].name, target_json(t[i].rate.name, metric, &t[i].found));
    return all;
}
