#include "analysis/accuracy_text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char kvd_accuracy_heading[] =
    "method    rule            p    p16        ppl 95 %                  top1  share "
    "95 %               KL/nat  agree  att.err  B/token   stored";

/* "zack", and of key cut the side: "zack/v"; of one seed of several: "keyformer#7". */
static void method_name(const kvd_rows *r, size_t i, char *name, size_t size)
{
    const bool qk = *kvd_row_text(r, i, "pair_qk"), v = *kvd_row_text(r, i, "pair_v");
    char seed[24] = "";
    if (!strcmp(kvd_row_text(r, i, "purpose"), "seed"))
        snprintf(seed, sizeof seed, "#%lld", (long long)kvd_rows_get_int(r, i, kvd_rows_find(r, "seed")));
    snprintf(name, size, "%s%s%s", kvd_row_text(r, i, "method"), qk == v ? "" : v ? "/v" : "/qk", seed);
}

/* "name value [lo, hi]" when the rows have such a column. */
static void add_measure(const kvd_rows *r, size_t i, const char *name, char *line, size_t size)
{
    char lo[48], hi[48];
    const size_t used = strlen(line);
    if (kvd_rows_find(r, name) < 0 || isnan(kvd_row_real(r, i, name)))
        return;
    snprintf(lo, sizeof lo, "%s_lo", name);
    snprintf(hi, sizeof hi, "%s_hi", name);
    snprintf(line + used, size - used, "  %s %.4g [%.4g, %.4g]", name, kvd_row_real(r, i, name),
             kvd_row_real(r, i, lo), kvd_row_real(r, i, hi));
}

const char *kvd_accuracy_free_line(const kvd_rows *r, size_t i, char *line)
{
    static const char *const shown[] = {"rouge1",       "edit_similarity",  "exact",
                                        "agree_prefix", "reference_rouge1", "needle_exact",
                                        "needle_agree", "class_correct",    "class_agree"};
    char name[80];
    method_name(r, i, name, sizeof name);
    snprintf(line, 4 * KVD_ACCURACY_LINE, "%-9s", name);
    const size_t bare = strlen(line);
    for (size_t k = 0; k < sizeof shown / sizeof *shown; k++)
        add_measure(r, i, shown[k], line, 4 * KVD_ACCURACY_LINE);
    return strlen(line) > bare ? line : NULL;
}

const char *kvd_accuracy_line(const kvd_rows *r, size_t i, char *line)
{
    char ppl[40], share[40], name[80];
    method_name(r, i, name, sizeof name);
    snprintf(ppl, sizeof ppl, "[%.4g, %.4g]", kvd_row_real(r, i, "perplexity_lo"),
             kvd_row_real(r, i, "perplexity_hi"));
    snprintf(share, sizeof share, "[%.3f, %.3f]", kvd_row_real(r, i, "top1_share_lo"),
             kvd_row_real(r, i, "top1_share_hi"));
    snprintf(line, KVD_ACCURACY_LINE,
             "%-9s %-10s %6.4f %6.4f  %9.4g %-19s %6.4f %6.4f %-15s %9.3g %6.4f %8.3g %8.0f %8.0f", name,
             kvd_row_text(r, i, "rule"), kvd_row_real(r, i, "overall_p"), kvd_row_real(r, i, "overall_p16"),
             kvd_row_real(r, i, "perplexity"), ppl, kvd_row_real(r, i, "top1"),
             kvd_row_real(r, i, "top1_share"), share, kvd_row_real(r, i, "kl"), kvd_row_real(r, i, "agree"),
             kvd_row_real(r, i, "attention_error"), kvd_row_real(r, i, "bytes_per_token_nominal"),
             kvd_row_real(r, i, "bytes_per_token_stored"));
    return line;
}

const char *kvd_accuracy_target_line(const char *name, const char *key, const kvd_target *t, char *line)
{
    const size_t size = 2 * KVD_ACCURACY_LINE;
    if (isnan(t->kept.value)) {
        snprintf(line, size,
                 "%s misses %g of the accuracy from the first %s = %.4g on, %.1f %% of the bytes saved", name,
                 t->target, key, t->misses.value, 100 * t->misses.saving);
        return line;
    }
    if (isnan(t->misses.value)) {
        snprintf(line, size,
                 "%s keeps %g of the accuracy at every %s tried, up to %.4g, %.1f %% of the bytes saved",
                 name, t->target, key, t->kept.value, 100 * t->kept.saving);
        return line;
    }
    char sure[120] = "", again[120] = "";
    if (!isnan(t->surely_kept.value))
        snprintf(sure, sizeof sure, "; surely kept up to %.4g (%.1f %%), surely lost from %.4g (%.1f %%)",
                 t->surely_kept.value, 100 * t->surely_kept.saving, t->surely_lost.value,
                 100 * t->surely_lost.saving);
    if (!t->monotone)
        snprintf(again, sizeof again, "\n%.40s: not monotone, kept again beyond the miss, last at %s = %.4g",
                 name, key, t->last_kept.value);
    snprintf(
        line, size,
        "%s keeps %g of the accuracy up to %s = %.4g (missed at %.4g), %.1f %% of the bytes saved%s; %zu "
        "points%s",
        name, t->target, key, t->kept.value, t->misses.value, 100 * t->kept.saving, sure, t->n_points, again);
    return line;
}

static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *kvd_accuracy_target_json(const char *key, const kvd_target *t)
{
    const struct {
        const char *suffix;
        const kvd_target_end *end;
    } ends[] = {{"", &t->kept},
                {"_misses", &t->misses},
                {"_lo", &t->surely_kept},
                {"_hi", &t->surely_lost},
                {"_last_kept", &t->last_kept}};
    json_t *const all = json_pack("{s:s, s:o, s:b, s:I}", "key", key, "target", real(t->target), "monotone",
                                  t->monotone, "n_points", (json_int_t)t->n_points);
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
