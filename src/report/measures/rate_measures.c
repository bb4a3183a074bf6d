#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char prefix[] = "p99-", less[] = "-less-";

bool kvd_rate_measure_known(const char *name)
{
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && name[sizeof prefix - 1];
}

/* Returns the search of a method for 99 %, or NULL. */
static const kvd_target_result *search_of(const kvd_result *x, const char *method, size_t len)
{
    for (size_t i = 0; i < x->accuracy.n_targets; i++) {
        const kvd_target_result *const t = &x->accuracy.target[i];
        if (strlen(t->name) == len && !strncmp(t->name, method, len) &&
            fabs(t->target - 0.99) < 1e-6)
            return t;
    }
    return NULL;
}

/* The share removed with its interval; an end that was not found is that of all shares. */
static kvd_interval removed(const kvd_target_result *t)
{
    const bool elements = isnan(t->saving);
    const double lo = elements ? t->value_lo : t->saving_lo,
                 hi = elements ? t->value_hi : t->saving_hi;
    return (kvd_interval){elements ? t->value : t->saving, isnan(lo) ? 0 : lo, isnan(hi) ? 1 : hi};
}

int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err)
{
    const char *const a = name + sizeof prefix - 1, *const b = strstr(a, less);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *const x = &r->item[i];
        if (x->kind != KVD_RESULT_ACCURACY || !x->corpus_label ||
            !strcasestr(x->corpus_label, text))
            continue;
        const kvd_target_result *const t = search_of(x, a, b ? (size_t)(b - a) : strlen(a));
        const kvd_target_result *const u =
            b ? search_of(x, b + sizeof less - 1, strlen(b + sizeof less - 1)) : NULL;
        if (!t || (b && !u))
            continue;
        kvd_interval p = removed(t);
        if (u) {
            const kvd_interval q = removed(u);
            p = (kvd_interval){p.value - q.value, p.lo - q.hi, p.hi - q.lo};
        }
        if (isnan(p.value))
            continue;
        if (kvd_values_put(out, p.value, err, "%s, %s", x->model.name, x->corpus_label))
            return -1;
        kvd_values_interval(out, p.lo, p.hi);
    }
    return 0;
}
