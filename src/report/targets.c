#include "report/targets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The key of a row: files from before there was one cut dims alone. */
static const char *key_of(const kvd_accuracy_entry *e)
{
    const char *const key = kvd_entry_text(e, "rate_key");
    return *key ? key : "p";
}

static double value_of(const kvd_accuracy_entry *e)
{
    return strcmp(key_of(e), "p") ? kvd_entry_real(e, "rate_value") : kvd_entry_real(e, "overall_p");
}

void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last, kvd_target_result *x)
{
    const double none = (double)NAN;
    *x = (kvd_target_result){.target = 0.99,
                             .value_misses = none,
                             .value_hi = none,
                             .saving_misses = none,
                             .saving_hi = none,
                             .monotone = true};
    snprintf(x->key, sizeof x->key, "%s", key_of(&all->item[first]));
    if (strcmp(x->key, "p"))
        x->value = x->value_lo = none; /* of p 0 is the uncompressed model; of other keys nothing is */
    bool missed = false, unsure = false, intervals = true;
    for (size_t i = first; i <= last; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const double value = value_of(e), saving = kvd_entry_saving(e),
                     share = kvd_entry_real(e, "top1_share"), lo = kvd_entry_real(e, "top1_share_lo"),
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
