#include "methods/keys.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"

const char *const kvd_ranks_name[KVD_N_RANKS] = {"eq6", "eq6-energy", "error", "loss"};

/* ---- keys of the dims axis -------------------------------------------------------------------------------- */

enum {
    KEY_P = 1,
    KEY_R = 2,
    KEY_RANKS = 4,
    KEY_CUT = 8,
    KEY_P_QK = 16,
    KEY_P_V = 32,
    KEY_P_U = 64,
    KEY_P_U_QK = 128,
    KEY_P_U_V = 256,
    KEYS_P_SIDES = KEY_P_QK | KEY_P_V,
    KEYS_P_U_SIDES = KEY_P_U_QK | KEY_P_U_V
};

/* Keys of dims, those that are rates with the field that takes them; p_i is p as ZDC writes it. */
static const struct {
    const char *key;
    unsigned bit;
    size_t rate;
} dims_key[] = {
    {"ranks", KEY_RANKS, 0},
    {"cut", KEY_CUT, 0},
    {"p", KEY_P, offsetof(kvd_method, p)},
    {"p_i", KEY_P, offsetof(kvd_method, p)},
    {"p.qk", KEY_P_QK, offsetof(kvd_method, p_side[0])},
    {"p_i.qk", KEY_P_QK, offsetof(kvd_method, p_side[0])},
    {"p.v", KEY_P_V, offsetof(kvd_method, p_side[1])},
    {"p_i.v", KEY_P_V, offsetof(kvd_method, p_side[1])},
    {"r", KEY_R, offsetof(kvd_method, r)},
    {"p_u", KEY_P_U, offsetof(kvd_method, p_low)},
    {"p_u.qk", KEY_P_U_QK, offsetof(kvd_method, p_low_side[0])},
    {"p_u.v", KEY_P_U_V, offsetof(kvd_method, p_low_side[1])},
};
static const char keys_of_dims[] = "p, p.qk, p.v, r, ranks, cut";
static const char keys_of_low[] = "p_u, p_u.qk, p_u.v";

static const char *const cut_name[] = {"both", "qk", "v"};

/* Index of a key of dims; -1: it is none. */
static int find_dims_key(const char *key)
{
    for (int i = 0; i < (int)(sizeof dims_key / sizeof *dims_key); i++)
        if (!strcmp(key, dims_key[i].key))
            return i;
    return -1;
}

static int set_dims(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err)
{
    const int at = find_dims_key(key);
    if (at < 0)
        return kvd_fail(err, "unknown key '%s', known are %s, %s", key, keys_of_dims, keys_of_low);
    const unsigned bit = dims_key[at].bit;
    if (*seen & bit)
        return kvd_fail(err, "key '%s' is given twice", key);
    *seen |= bit;
    if (bit == KEY_RANKS) {
        for (int i = 0; i < KVD_N_RANKS; i++)
            if (!strcmp(value, kvd_ranks_name[i])) {
                m->ranks = (kvd_ranks)i;
                return 0;
            }
        return kvd_fail(err, "ranks '%s' is none of eq6, eq6-energy, error, loss", value);
    }
    if (bit == KEY_CUT) {
        for (int i = 0; i < 3; i++)
            if (!strcmp(value, cut_name[i])) {
                m->cut = (kvd_cut)i;
                return 0;
            }
        return kvd_fail(err, "cut '%s' is none of both, qk, v", value);
    }
    double *const to = (double *)(void *)((char *)m + dims_key[at].rate);
    if (kvd_arg_double(key, value, 0, 1, to, err))
        return -1;
    if (*to >= 1)
        return kvd_fail(err, "%s = %s removes everything, it must be below 1", key, value);
    return 0;
}

/* ---- keys of the members ------------------------------------------------------------------------------ */

static bool lowers(const kvd_method *m)
{
    return m->levels || (m->tokens && m->tokens->lowers);
}

int kvd_method_members(kvd_method *m, kvd_keyed out[KVD_MEMBERS])
{
    int n = 0;
    if (m->layers)
        out[n++] = (kvd_keyed){m->layers->name, m->layers->parameter, m->layers->rate, &m->layers_values};
    if (m->tokens)
        out[n++] = (kvd_keyed){m->tokens->name, m->tokens->parameter, m->tokens->rate, &m->tokens_values};
    if (m->levels)
        out[n++] = (kvd_keyed){m->levels->name, m->levels->parameter, m->levels->rate, &m->levels_values};
    if (m->maker)
        out[n++] = (kvd_keyed){m->maker->name, m->maker->parameter, m->maker->rate, &m->maker_values};
    if (m->channels)
        out[n++] =
            (kvd_keyed){m->channels->name, m->channels->parameter, m->channels->rate, &m->channels_values};
    if (m->bits)
        out[n++] = (kvd_keyed){m->bits->name, m->bits->parameter, m->bits->rate, &m->bits_values};
    return n;
}

int kvd_find_key(const kvd_keyed *k, const char *key)
{
    for (int i = 0; k->parameter[i].key; i++)
        if (!strcmp(k->parameter[i].key, key))
            return i;
    return -1;
}

static int set_value(const kvd_keyed *k, int i, const char *value, kvd_err *err)
{
    const kvd_parameter *const p = &k->parameter[i];
    double *const to = &k->values->value[i];
    if (k->values->given[i])
        return kvd_fail(err, "key '%s' is given twice", p->key);
    if (kvd_arg_double(p->key, value, p->lo, p->hi, to, err))
        return -1;
    if (p->whole && (*to < floor(*to) || *to > floor(*to)))
        return kvd_fail(err, "%s = %s is no whole number", p->key, value);
    k->values->given[i] = true;
    return 0;
}

static int unknown_key(const kvd_method *m, const kvd_keyed *all, int n, const char *key, kvd_err *err)
{
    char known[400] = "";
    if (kvd_method_is_none(m))
        return kvd_fail(err, "it takes no key");
    if (m->dims)
        snprintf(known, sizeof known, "%s%s%s", keys_of_dims, lowers(m) ? ", " : "",
                 lowers(m) ? keys_of_low : "");
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].parameter[i].key; i++) {
            if (*known)
                strncat(known, ", ", sizeof known - strlen(known) - 1);
            strncat(known, all[k].parameter[i].key, sizeof known - strlen(known) - 1);
        }
    return kvd_fail(err, "unknown key '%s', known are %s", key, known);
}

int kvd_method_set_key(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err)
{
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members(m, all);
    const bool of_dims = find_dims_key(key) >= 0;
    const char *const dot = of_dims ? NULL : strchr(key, '.'); /* p.qk has one of its own */
    int member = -1, at = -1;
    if (dot) {
        const size_t len = (size_t)(dot - key);
        if (m->dims && strlen(m->dims->name) == len && !strncmp(key, m->dims->name, len))
            return kvd_method_set_key(m, dot + 1, value, seen, err);
        for (int k = 0; k < n; k++)
            if (strlen(all[k].name) == len && !strncmp(key, all[k].name, len) &&
                (at = kvd_find_key(&all[k], dot + 1)) >= 0)
                member = k;
    } else {
        for (int k = 0; k < n; k++)
            if (kvd_find_key(&all[k], key) >= 0) {
                if (member >= 0)
                    return kvd_fail(err, "key '%s' belongs to '%s' and '%s': write %s.%s", key,
                                    all[member].name, all[k].name, all[k].name, key);
                member = k;
                at = kvd_find_key(&all[k], key);
            }
        if (m->dims && of_dims)
            return member >= 0 ? kvd_fail(err, "key '%s' belongs to '%s' and '%s': write %s.%s", key,
                                          m->dims->name, all[member].name, all[member].name, key)
                               : set_dims(m, key, value, seen, err);
    }
    return member >= 0 ? set_value(&all[member], at, value, err) : unknown_key(m, all, n, key, err);
}

/* ---- what fits together -------------------------------------------------------------------------------- */

/* One rate for both pairs or one for each, at either level. */
static int check_rates(const kvd_method *m, unsigned seen, kvd_err *err)
{
    if ((seen & KEY_P) && (seen & KEY_R))
        return kvd_fail(err, "p and r exclude each other");
    if ((seen & KEYS_P_SIDES) && (seen & (KEY_P | KEY_R)))
        return kvd_fail(err, "p.qk and p.v exclude %s, which is of both pairs", seen & KEY_P ? "p" : "r");
    if ((seen & KEYS_P_U_SIDES) && (seen & KEY_P_U))
        return kvd_fail(err, "p_u.qk and p_u.v exclude p_u, which is of both pairs");
    if ((seen & KEYS_P_SIDES) && (seen & KEYS_P_SIDES) != KEYS_P_SIDES)
        return kvd_fail(err, "p.qk and p.v go together: 0 leaves a pair whole");
    if ((seen & KEYS_P_U_SIDES) && (seen & KEYS_P_U_SIDES) != KEYS_P_U_SIDES)
        return kvd_fail(err, "p_u.qk and p_u.v go together");
    const bool by_pair = (seen & (KEYS_P_SIDES | KEYS_P_U_SIDES)) != 0;
    if (by_pair && m->cut != KVD_CUT_BOTH)
        return kvd_fail(err, "cut=%s goes with p or r: a pair whose own rate is 0 is left whole",
                        cut_name[m->cut]);
    if (by_pair && m->dims && m->dims->one_p)
        return kvd_fail(err, "it has one width for both pairs: give p");
    return 0;
}

int kvd_method_check(const kvd_method *m, unsigned seen, kvd_err *err)
{
    if (check_rates(m, seen, err))
        return -1;
    if (m->dims && m->dims->one_p && (seen & (KEY_R | KEY_RANKS)))
        return kvd_fail(err, "it takes p, neither r nor ranks: its widths do not depend on the spectrum");
    if ((m->ranks == KVD_RANKS_ERROR || m->ranks == KVD_RANKS_LOSS) && (seen & KEY_R))
        return kvd_fail(err, "ranks=%s takes p, a removal rate r belongs to Eq. 6", kvd_ranks_name[m->ranks]);
    if (m->ranks == KVD_RANKS_LOSS && !kvd_pair_fisher(m->dims->pair[0]))
        return kvd_fail(err, "ranks=loss is of method fisher: only its singular values are in nats");
    if (kvd_method_has_low(m) && !lowers(m))
        return kvd_fail(err, "p_u is of entries at a low level, which no member of it makes");
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members((kvd_method *)(uintptr_t)m, all);
    for (int j = 0; m->bits && !lowers(m) && m->bits->low_key[j]; j++)
        if (m->bits_values.given[kvd_find_key(&all[n - 1], m->bits->low_key[j])])
            return kvd_fail(err, "%s is of entries at the low level, which no member of it makes",
                            m->bits->low_key[j]);
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].parameter[i].key; i++)
            if (isnan(all[k].values->value[i]))
                return kvd_fail(err, "'%s' needs %s: %s", all[k].name, all[k].parameter[i].key,
                                all[k].parameter[i].meaning);
    return 0;
}

/* ---- presets, and what is written down ------------------------------------------------------------------- */

void kvd_method_set_usual(kvd_method *m)
{
    char copy[64];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", m->usual ? m->usual : "");
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members(m, all);
    while (rest && *rest) {
        char *value = strsep(&rest, ",");
        const char *const key = strsep(&value, "=");
        for (int k = 0; k < n; k++) {
            const int i = kvd_find_key(&all[k], key);
            if (i >= 0 && !all[k].values->given[i])
                all[k].values->value[i] = strtod(value, NULL);
        }
    }
}

void kvd_method_describe(kvd_method *m)
{
    *m->settings = '\0';
    kvd_keyed all[KVD_MEMBERS];
    const int n = kvd_method_members(m, all);
    size_t used = 0;
    if (m->cut != KVD_CUT_BOTH)
        used = (size_t)snprintf(m->settings, sizeof m->settings, "cut=%s", cut_name[m->cut]);
    const struct {
        const char *key;
        double value;
    } rate[] = {{"p.qk", m->p_side[0]},
                {"p.v", m->p_side[1]},
                {"p_u", m->p_low},
                {"p_u.qk", m->p_low_side[0]},
                {"p_u.v", m->p_low_side[1]}};
    for (size_t i = 0; i < sizeof rate / sizeof *rate; i++)
        if (!isnan(rate[i].value))
            used += (size_t)snprintf(m->settings + used, sizeof m->settings - used, "%s%s.%s=%g",
                                     used ? "," : "", m->dims->name, rate[i].key, rate[i].value);
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].parameter[i].key && used < sizeof m->settings; i++)
            used +=
                (size_t)snprintf(m->settings + used, sizeof m->settings - used, "%s%s.%s=%g", used ? "," : "",
                                 all[k].name, all[k].parameter[i].key, all[k].values->value[i]);
}

bool kvd_method_has_sides(const kvd_method *m)
{
    return !isnan(m->p_side[0]);
}

bool kvd_method_has_point(const kvd_method *m)
{
    return !isnan(m->p) || !isnan(m->r) || kvd_method_has_sides(m);
}

bool kvd_method_has_low(const kvd_method *m)
{
    return !isnan(m->p_low) || !isnan(m->p_low_side[0]);
}
