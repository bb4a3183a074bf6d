/* The key of a method that trades bytes for quality: which it is, and methods with it at other values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "methods/keys.h"

/* What dims methods with widths have. */
static const kvd_rate rate_of_p = {"p", 0.1, 0.8, false, NULL, 0, 0};

/* The member of that name and its key; NULL: none. */
static const kvd_parameter *find(kvd_method *m, const char *name, size_t len, const char *key,
                                 kvd_keyed *member)
{
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members(m, all);
    for (int k = 0; k < n; k++) {
        const int i = kvd_find_key(&all[k], key);
        if (i >= 0 && strlen(all[k].name) == len && !strncmp(all[k].name, name, len)) {
            *member = all[k];
            return &all[k].parameter[i];
        }
    }
    return NULL;
}

/* "NAME.key" in *m. */
static const kvd_parameter *find_dotted(kvd_method *m, const char *dotted, kvd_keyed *member)
{
    const char *const dot = strchr(dotted, '.');
    return dot ? find(m, dotted, (size_t)(dot - dotted), dot + 1, member) : NULL;
}

static void fill(kvd_method_rate *out, const char *name, const kvd_rate *r, bool whole)
{
    const char *const dot = name ? "." : "";
    *out = (kvd_method_rate){.most = r->most,
                             .least = r->least,
                             .whole = whole,
                             .geometric = r->geometric,
                             .at = r->at,
                             .slope = r->slope};
    snprintf(out->name, sizeof out->name, "%s%s%s", name ? name : "", dot, r->key);
    if (r->with)
        snprintf(out->with, sizeof out->with, "%s%s%s", name ? name : "", dot, r->with);
}

/* The rate of the member called name, "key" when not NULL; false: there is none. */
static bool of_member(kvd_method *m, const char *name, const char *key, kvd_method_rate *out)
{
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members(m, all);
    if (m->dims && (!name || !strcmp(name, m->dims->name)) && (!key || !strcmp(key, "p"))) {
        fill(out, NULL, &rate_of_p, false);
        out->p = true;
        return true;
    }
    for (int k = 0; k < n; k++)
        if (all[k].rate && (!name || !strcmp(name, all[k].name)) &&
            (!key || !strcmp(key, all[k].rate->key))) {
            const int i = kvd_find_key(&all[k], all[k].rate->key);
            fill(out, all[k].name, all[k].rate, all[k].parameter[i].whole);
            return true;
        }
    return false;
}

int kvd_method_rate_find(const kvd_method *m, const char *key, kvd_method_rate *out, kvd_err *err)
{
    kvd_method copy = *m;
    char name[64];
    if (key) {
        const char *const dot = strchr(key, '.');
        snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - key) : 0, key);
        if (of_member(&copy, dot ? name : NULL, dot ? dot + 1 : key, out))
            return 0;
        return kvd_fail(err,
                        "method '%s': key '%s' is none that trades bytes for quality (--help lists them)",
                        m->name, key);
    }
    if (m->rate) {
        kvd_keyed member;
        const kvd_parameter *const p = find_dotted(&copy, m->rate->key, &member);
        fill(out, NULL, m->rate, p && p->whole);
        out->p = !p;
        return 0;
    }
    const char *const plus = strrchr(m->name, '+');
    if (of_member(&copy, plus ? plus + 1 : m->name, NULL, out))
        return 0;
    return kvd_fail(err, "method '%s' has no key that trades bytes for quality", m->name);
}

double kvd_method_rate_at(const kvd_method_rate *r, double share)
{
    const double value =
        r->geometric ? r->most * pow(r->least / r->most, share) : r->most + (r->least - r->most) * share;
    /* Six digits: what a user reads in a table is the value that was used. */
    char text[32];
    double rounded = value;
    snprintf(text, sizeof text, "%.6g", value);
    sscanf(text, "%lf", &rounded);
    return r->whole ? nearbyint(value) : rounded;
}

double kvd_method_rate_share(const kvd_method_rate *r, double value)
{
    return r->geometric ? log(value / r->most) / log(r->least / r->most)
                        : (value - r->most) / (r->least - r->most);
}

/* p and p_u of dims, or the key of a member; unless it is given when `only_free`. */
static void set(kvd_method *m, const char *name, double value, bool only_free)
{
    kvd_keyed member;
    if (!strcmp(name, "p")) {
        m->p = value;
        m->r = m->p_side[0] = m->p_side[1] = NAN;
    } else if (!strcmp(name, "p_u")) {
        if (only_free && kvd_method_has_low(m))
            return;
        m->p_low = value;
        m->p_low_side[0] = m->p_low_side[1] = NAN;
    } else {
        const kvd_parameter *const p = find_dotted(m, name, &member);
        const size_t i = (size_t)(p - member.parameter);
        if (!only_free || !member.values->given[i])
            member.values->value[i] = p->whole ? nearbyint(value) : value;
    }
}

bool kvd_method_rate_given(const kvd_method *m, const kvd_method_rate *r)
{
    kvd_method copy = *m;
    kvd_keyed member;
    if (!strcmp(r->name, "p"))
        return !isnan(m->p) || !isnan(m->r);
    const kvd_parameter *const p = find_dotted(&copy, r->name, &member);
    return p && member.values->given[p - member.parameter];
}

void kvd_method_set_rate(const kvd_method *m, const kvd_method_rate *r, double value, kvd_method *out)
{
    *out = *m;
    set(out, r->name, value, false);
    if (*r->with)
        set(out, r->with, r->at + r->slope * value, true);
    kvd_method_describe(out);
}

double kvd_method_rate_value(const kvd_method *m, const kvd_method_rate *r)
{
    kvd_method copy = *m;
    kvd_keyed member;
    const kvd_parameter *const p = find_dotted(&copy, r->name, &member);
    return p ? member.values->value[p - member.parameter] : m->p;
}
