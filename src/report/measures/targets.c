/* Estimates how many bytes of cache each method saves while keeping 99 % of the uncompressed
 * model's accuracy. */
#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target)
{
    for (size_t k = 0; k < e->file->accuracy.n_targets; k++) {
        const kvd_target_result *const x = &e->file->accuracy.target[k];
        if (kvd_row_is_of_target(e->rows, e->row, x) && fabs(x->target - target) < 1e-4)
            return x;
    }
    return NULL;
}

/* Returns the name of the compression method's parameter that the user varied. Older files do not
 * name it; in these files it is p, the fraction of dimensions that is removed. */
static const char *key_of(const kvd_accuracy_entry *e)
{
    const char *const key = kvd_entry_text(e, "rate_key");
    return *key ? key : "p";
}

static double value_of(const kvd_accuracy_entry *e)
{
    return strcmp(key_of(e), "p") ? kvd_entry_real(e, "rate_value")
                                  : kvd_entry_real(e, "overall_p");
}

enum { KEYS = 32, KEY = 64 };

/* parameters of a method, parsed from text such as "zack.p=0.5"; a parameter without "=" has value
 * 0 */
typedef struct {
    char key[KEYS][KEY];
    double value[KEYS];
    size_t n;
} setting;

static void read_setting(const kvd_accuracy_entry *e, setting *s)
{
    const char *at = kvd_entry_text(e, "settings");
    for (s->n = 0; *at && s->n < KEYS; s->n++) {
        const size_t all = strcspn(at, ","), name = strcspn(at, "=,");
        snprintf(s->key[s->n], KEY, "%.*s", (int)(name < KEY ? name : KEY - 1), at);
        s->value[s->n] = name < all ? strtod(at + name + 1, NULL) : 0;
        at += all + (at[all] == ',');
    }
}

/* Returns true if, over results first to last (inclusive), parameter number k is a monotonic
 * function of the parameter that the user varied. */
static bool follows(const kvd_accuracy_entries *all, size_t first, size_t last, size_t k)
{
    bool up = true, down = true;
    for (size_t i = first; i <= last && (up || down); i++) {
        setting a, b;
        read_setting(&all->item[i], &a);
        for (size_t j = first; j < i && (up || down); j++) {
            read_setting(&all->item[j], &b);
            const double rate = value_of(&all->item[i]) - value_of(&all->item[j]),
                         other = a.value[k] - b.value[k];
            const bool level = !(rate < 0) && !(rate > 0), moves = other < 0 || other > 0;
            up = up && (level ? !moves : rate * other >= 0);
            down = down && (level ? !moves : rate * other <= 0);
        }
    }
    return up || down;
}

static bool is_line(const kvd_accuracy_entries *all, size_t first, size_t last)
{
    setting a, b;
    bool differs[KEYS] = {false};
    size_t n = 0, with = 0;
    read_setting(&all->item[first], &a);
    for (size_t i = first + 1; i <= last; i++) {
        read_setting(&all->item[i], &b);
        if (a.n != b.n || strcmp(key_of(&all->item[i]), key_of(&all->item[first])))
            return false;
        for (size_t k = 0; k < a.n; k++) {
            if (strcmp(a.key[k], b.key[k]))
                return false;
            differs[k] = differs[k] || a.value[k] < b.value[k] || a.value[k] > b.value[k];
        }
    }
    for (size_t k = 0; k < a.n; k++)
        if (differs[k] && strcmp(a.key[k], key_of(&all->item[first]))) {
            n++;
            with = k;
        }
    return n == 0 || (n == 1 && follows(all, first, last, with));
}

static double larger(double a, double b)
{
    return isnan(a) || b > a ? b : a;
}

static void best_of_grid(const kvd_accuracy_entries *all, size_t first, size_t last,
                         kvd_target_result *x)
{
    double may = (double)NAN;
    bool intervals = true;
    x->grid = true;
    x->value = x->value_lo = (double)NAN;
    x->n_points = (int)(last - first + 1);
    for (size_t i = first; i <= last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double saving = kvd_entry_saving(e), hi = kvd_entry_real(e, "top1_share_hi");
        if (kvd_entry_real(e, "top1_share") >= x->target)
            x->saving = larger(x->saving, saving);
        if (kvd_entry_real(e, "top1_share_lo") >= x->target)
            x->saving_lo = larger(x->saving_lo, saving);
        if (hi >= x->target)
            may = larger(may, saving);
        intervals = intervals && !isnan(hi);
    }
    for (size_t i = first; i <= last && intervals; i++) {
        const double saving = kvd_entry_saving(&all->item[i]);
        if (kvd_entry_real(&all->item[i], "top1_share_hi") < x->target && !(saving <= may) &&
            !(x->saving_hi <= saving))
            x->saving_hi = saving;
    }
    if (!intervals)
        x->saving_lo = (double)NAN;
}

void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x)
{
    const double none = (double)NAN;
    *x = (kvd_target_result){.target = 0.99,
                             .value_misses = none,
                             .value_hi = none,
                             .saving_misses = none,
                             .saving_hi = none,
                             .monotone = true};
    snprintf(x->key, sizeof x->key, "%s", key_of(&all->item[first]));
    snprintf(x->metric, sizeof x->metric, "%s", KVD_TARGET_TOP1);
    if (strcmp(x->key, "p"))
        /* For the parameter p (fraction of dimensions that is removed), the value 0 always keeps
         * the accuracy. For other parameters, no such value is known: NaN. */
        x->value = x->value_lo = none;
    if (isnan(kvd_entry_real(&all->item[first], "top1_share"))) {
        /* The uncompressed model predicts no token correctly, so accuracies cannot be divided by
         * its accuracy. */
        x->value = x->saving = x->value_lo = x->saving_lo = none;
        x->n_points = (int)(last - first + 1);
        return;
    }
    if (!is_line(all, first, last)) {
        best_of_grid(all, first, last, x);
        return;
    }
    bool missed = false, unsure = false, intervals = true;
    for (size_t i = first; i <= last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double value = value_of(e), saving = kvd_entry_saving(e),
                     share = kvd_entry_real(e, "top1_share"),
                     lo = kvd_entry_real(e, "top1_share_lo"),
                     hi = kvd_entry_real(e, "top1_share_hi");
        if (share < x->target && !missed) {
            missed = true;
            x->value_misses = value;
            x->saving_misses = saving;
        } else if (share >= x->target && missed) {
            x->monotone = false;
        } else if (!missed) {
            x->value = value;
            x->saving = saving;
        }
        unsure = unsure || !(lo >= x->target);
        if (!unsure) {
            x->value_lo = value;
            x->saving_lo = saving;
        }
        intervals = intervals && !isnan(lo);
        if (isnan(x->value_hi) && hi < x->target) {
            x->value_hi = value;
            x->saving_hi = saving;
        }
        x->n_points++;
    }
    if (!intervals)
        x->value_lo = x->saving_lo = none;
}
