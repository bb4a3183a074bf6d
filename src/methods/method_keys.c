/* Reads and writes the parameters of methods as text, and sets values for sweeps and searches. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "methods/method.h"

const char *const kvd_width_rule_name[KVD_N_WIDTH_RULES] = {"eq6", "eq6-energy", "error", "loss"};

/* For key "h2o.heavy" and name "h2o", returns "heavy". Returns NULL if the key has no such
 * prefix. */
static const char *key_of(const char *key, const char *name)
{
    const size_t n = strlen(name);
    return !strncmp(key, name, n) && key[n] == '.' ? key + n + 1 : NULL;
}

static void append(char *to, size_t room, const char *separator, const char *fmt, ...)
    KVD_PRINTF(4, 5);
static void append(char *to, size_t room, const char *separator, const char *fmt, ...)
{
    va_list ap;
    if (*to)
        strncat(to, separator, room - strlen(to) - 1);
    const size_t used = strlen(to);
    va_start(ap, fmt);
    (void)vsnprintf(to + used, room - used, fmt, ap);
    va_end(ap);
}

static int index_of(const char *const *name, int n, const char *text)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(text, name[i]))
            return i;
    return -1;
}

static const char keep_layers[] = "keep_layers";

static int set_keep_layers(kvd_method *m, const char *value, unsigned *seen, unsigned bit,
                           kvd_err *err)
{
    int end = 0;
    if (*seen & bit)
        return kvd_fail(err, "key '%s' is given twice", keep_layers);
    *seen |= bit;
    if (sscanf(value, "%4d:%4d%n", &m->plan.keep_first, &m->plan.keep_last, &end) != 2 ||
        value[end] || m->plan.keep_first < 0 || m->plan.keep_last < 0)
        return kvd_fail(err,
                        "keep_layers = %s is not FIRST:LAST, the numbers of first and of last "
                        "layers that are kept whole, such as 1:1",
                        value);
    return 0;
}

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
    KEY_KEEP_LAYERS = 512,
    KEY_ONLINE = 1024,
    KEY_EXPLICIT = 2048,
    KEYS_P_SIDES = KEY_P_QK | KEY_P_V,
    KEYS_P_U_SIDES = KEY_P_U_QK | KEY_P_U_V
};

/* Parameters of methods that read rotation matrices from a file (--spectrum). `p_i` is an alias of
 * `p`. */
static const struct {
    const char *key;
    unsigned bit;
    size_t rate;
} dims_key[] = {
    {"ranks", KEY_RANKS, 0},
    {"cut", KEY_CUT, 0},
    {"online", KEY_ONLINE, 0},
    {"explicit", KEY_EXPLICIT, 0},
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
static const char keys_of_dims[] = "p, p.qk, p.v, r, ranks, cut, online, explicit";
static const char keys_of_low[] = "p_u, p_u.qk, p_u.v";

static const char *const cut_name[] = {"both", "qk", "v"};

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
        const int rule = index_of(kvd_width_rule_name, KVD_N_WIDTH_RULES, value);
        if (rule < 0)
            return kvd_fail(err, "ranks '%s' is none of eq6, eq6-energy, error, loss", value);
        m->ranks = (kvd_width_rule)rule;
        return 0;
    }
    if (bit == KEY_CUT) {
        const int cut = index_of(cut_name, 3, value);
        if (cut < 0)
            return kvd_fail(err, "cut '%s' is none of both, qk, v", value);
        m->cut = (kvd_cut)cut;
        return 0;
    }
    if (bit == KEY_ONLINE || bit == KEY_EXPLICIT) {
        if (strcmp(value, "0") && strcmp(value, "1"))
            return kvd_fail(err, "%s = %s is neither 0 nor 1", key, value);
        if (*value == '1' && m->plan.channels)
            return kvd_fail(err, "online=1 cuts and rebuilds rows explicitly: leave out explicit");
        if (*value == '1')
            m->plan.channels = bit == KEY_ONLINE ? &kvd_channels_online : &kvd_channels_explicit;
        return 0;
    }
    double *const to = (double *)(void *)((char *)m + dims_key[at].rate);
    if (kvd_arg_double(key, value, 0, 1, to, err))
        return -1;
    if (*to >= 1)
        return kvd_fail(err, "%s = %s removes everything, it must be below 1", key, value);
    return 0;
}

static bool lowers(const kvd_method *m)
{
    return m->plan.levels || (m->plan.tokens && m->plan.tokens->lowers);
}

static int set_value(const kvd_plan_member *k, int i, const char *value, kvd_err *err)
{
    const kvd_parameter *const p = &k->info->parameter[i];
    double *const to = &k->values->value[i];
    if (k->values->given[i])
        return kvd_fail(err, "key '%s' is given twice", p->key);
    if (kvd_arg_double(p->key, value, p->lo, p->hi, to, err))
        return -1;
    if (p->whole && (*to < floor(*to) || *to > floor(*to)))
        return kvd_fail(err, "%s = %s is not a whole number", p->key, value);
    if (!p->whole && p->hi >= KVD_BUDGET_MOST && fabs(*to - 1) <= 0 && strchr(value, '.'))
        return kvd_fail(err, "%s = %s: write 1 for one token, or a fraction of the tokens below 1",
                        p->key, value);
    k->values->given[i] = true;
    return 0;
}

static int unknown_key(const kvd_method *m, const kvd_plan_member *all, int n, const char *key,
                       kvd_err *err)
{
    char known[400] = "";
    if (kvd_method_is_none(m))
        return kvd_fail(err, "it takes no keys");
    if (m->dims)
        append(known, sizeof known, ", ", "%s", keys_of_dims);
    if (m->dims && lowers(m))
        append(known, sizeof known, ", ", "%s", keys_of_low);
    for (int k = 0; k < n; k++)
        if (all[k].info->text_key)
            append(known, sizeof known, ", ", "%s", all[k].info->text_key);
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].info->parameter[i].key; i++)
            append(known, sizeof known, ", ", "%s", all[k].info->parameter[i].key);
    return kvd_fail(err, "unknown key '%s', known are %s%s%s", key, known, *known ? ", " : "",
                    keep_layers);
}

static int find_text_key(const kvd_plan_member *all, int n, const char *key)
{
    for (int k = 0; k < n; k++) {
        const char *const text = all[k].info->text_key;
        const char *const of_member = key_of(key, all[k].info->name);
        if (text && (!strcmp(key, text) || (of_member && !strcmp(of_member, text))))
            return k;
    }
    return -1;
}

static int set_text(const kvd_plan_member *k, const char *value, kvd_err *err)
{
    const char *const key = k->info->text_key;
    if (*k->values->text)
        return kvd_fail(err, "key '%s' is given twice", key);
    if (!*value || strlen(value) >= sizeof k->values->text)
        return kvd_fail(err, "%s has %zu characters, not 1 .. %zu", key, strlen(value),
                        sizeof k->values->text - 1);
    strcpy(k->values->text, value);
    return 0;
}

/* Finds parameter NAME.KEY of a combined method. Returns its index, or -1. */
static int find_dotted(const kvd_method *m, const char *dotted, kvd_plan_member *member)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    for (int k = 0; k < n; k++) {
        const char *const key = key_of(dotted, all[k].info->name);
        const int i = key ? kvd_parameter_index(all[k].info, key) : -1;
        if (i >= 0) {
            *member = all[k];
            return i;
        }
    }
    return -1;
}

static int shared_key(const char *key, const char *one, const char *other, kvd_err *err)
{
    return kvd_fail(err, "key '%s' belongs to '%s' and '%s': write %s.%s", key, one, other, other,
                    key);
}

static int set_key(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS], found = {0};
    const int n = kvd_plan_members(&m->plan, all), with_text = find_text_key(all, n, key);
    int at = -1;
    if (with_text >= 0)
        return set_text(&all[with_text], value, err);
    if (!strcmp(key, keep_layers) && !kvd_method_is_none(m))
        return set_keep_layers(m, value, seen, KEY_KEEP_LAYERS, err);
    const bool of_dims = find_dims_key(key) >= 0;
    if (!of_dims && strchr(key, '.')) {
        const char *const rest = m->dims ? key_of(key, m->dims->info.name) : NULL;
        if (rest && find_dims_key(rest) >= 0)
            return set_dims(m, rest, value, seen, err);
        at = find_dotted(m, key, &found);
    } else {
        for (int k = 0; k < n; k++) {
            const int i = kvd_parameter_index(all[k].info, key);
            if (i >= 0 && at >= 0)
                return shared_key(key, found.info->name, all[k].info->name, err);
            if (i >= 0) {
                found = all[k];
                at = i;
            }
        }
        if (m->dims && of_dims)
            return at >= 0 ? shared_key(key, m->dims->info.name, found.info->name, err)
                           : set_dims(m, key, value, seen, err);
    }
    return at >= 0 ? set_value(&found, at, value, err) : unknown_key(m, all, n, key, err);
}

static int check_rates(const kvd_method *m, unsigned seen, kvd_err *err)
{
    if ((seen & KEY_P) && (seen & KEY_R))
        return kvd_fail(err, "p and r exclude each other");
    if ((seen & KEYS_P_SIDES) && (seen & (KEY_P | KEY_R)))
        return kvd_fail(err, "p.qk and p.v exclude %s, which sets both pairs",
                        seen & KEY_P ? "p" : "r");
    if ((seen & KEYS_P_U_SIDES) && (seen & KEY_P_U))
        return kvd_fail(err, "p_u.qk and p_u.v exclude p_u, which sets both pairs");
    if ((seen & KEYS_P_SIDES) && (seen & KEYS_P_SIDES) != KEYS_P_SIDES)
        return kvd_fail(err, "give both p.qk and p.v: 0 leaves a pair whole");
    if ((seen & KEYS_P_U_SIDES) && (seen & KEYS_P_U_SIDES) != KEYS_P_U_SIDES)
        return kvd_fail(err, "give both p_u.qk and p_u.v");
    const bool by_pair = (seen & (KEYS_P_SIDES | KEYS_P_U_SIDES)) != 0;
    if (by_pair && m->cut != KVD_CUT_BOTH)
        return kvd_fail(err, "cut=%s requires p or r: p.qk = 0 or p.v = 0 leaves that pair whole",
                        cut_name[m->cut]);
    if (by_pair && m->dims && m->dims->one_p)
        return kvd_fail(err, "it has one width for both pairs: give p");
    return 0;
}

static int check_rebuilt(const kvd_method *m, kvd_err *err)
{
    const char *const key = m->plan.channels ? m->plan.channels->info.name : NULL;
    if (!m->dims || !key)
        return 0;
    if (m->plan.channels->stacks &&
        (m->dims->pair[0] != KVD_PAIR_QK || m->dims->pair[1] != KVD_PAIR_VW))
        return kvd_fail(err,
                        "%s decomposes [Q; K] and [V; W_O] of every prompt, the pairs of zack and "
                        "uniform, not those of %s",
                        key, m->dims->info.name);
    if (m->dims->biorthogonal)
        return kvd_fail(err, "%s rebuilds rows by the transpose of a rotation, %s has none", key,
                        m->dims->info.name);
    if (m->cut != KVD_CUT_BOTH)
        return kvd_fail(err, "%s cuts Q-K and V: leave out cut=%s", key, cut_name[m->cut]);
    if (m->plan.levels || (m->plan.tokens && !m->plan.tokens->only_lowers))
        return kvd_fail(err, "%s keeps every token: it cannot be combined with '%s'", key,
                        m->plan.tokens->info.name);
    return 0;
}

/* Fails if a parameter that has no effect was set to another value than its default. */
static int check_idle(const kvd_plan_member *k, kvd_err *err)
{
    for (const kvd_idle_key *idle = k->info->idle; idle && idle->key; idle++) {
        const int key = kvd_parameter_index(k->info, idle->key),
                  by = kvd_parameter_index(k->info, idle->by);
        const double value = k->values->value[key], other = k->values->value[by],
                     usual = k->info->parameter[key].value;
        if ((value < usual || value > usual) && other >= idle->lo && other <= idle->hi)
            return kvd_fail(err, "%s = %g has no effect with %s = %g: leave it out", idle->key,
                            value, idle->by, other);
    }
    return 0;
}

static int check(const kvd_method *m, unsigned seen, kvd_err *err)
{
    if (check_rates(m, seen, err) || check_rebuilt(m, err))
        return -1;
    if (m->dims && m->dims->one_p && (seen & (KEY_R | KEY_RANKS)))
        return kvd_fail(
            err, "it takes p, neither r nor ranks: its widths do not depend on the spectrum");
    if ((m->ranks == KVD_WIDTH_RULE_ERROR || m->ranks == KVD_WIDTH_RULE_LOSS) && (seen & KEY_R))
        return kvd_fail(err, "ranks=%s takes p: a removal rate r is defined for Eq. 6 only",
                        kvd_width_rule_name[m->ranks]);
    if (m->ranks == KVD_WIDTH_RULE_LOSS && !kvd_pair_fisher(m->dims->pair[0]))
        return kvd_fail(err,
                        "ranks=loss requires method fisher: only its singular values are in nats");
    if (kvd_method_has_low(m) && !lowers(m))
        return kvd_fail(err, "p_u sets entries at the low level, but no member lowers entries");
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    for (int j = 0; m->plan.bits && !lowers(m) && m->plan.bits->low_key[j]; j++)
        if (m->plan.bits_values
                .given[kvd_parameter_index(&m->plan.bits->info, m->plan.bits->low_key[j])])
            return kvd_fail(err, "%s sets entries at the low level, but no member lowers entries",
                            m->plan.bits->low_key[j]);
    for (int k = 0; k < n; k++)
        if (check_idle(&all[k], err))
            return -1;
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].info->parameter[i].key; i++)
            if (isnan(all[k].values->value[i]))
                return kvd_fail(err, "'%s' needs %s: %s", all[k].info->name,
                                all[k].info->parameter[i].key, all[k].info->parameter[i].meaning);
    return 0;
}

static void set_usual(kvd_method *m)
{
    char copy[64];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", m->usual ? m->usual : "");
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    while (rest && *rest) {
        char *value = strsep(&rest, ",");
        const char *const key = strsep(&value, "=");
        for (int k = 0; k < n; k++) {
            const int i = kvd_parameter_index(all[k].info, key);
            if (i >= 0 && !all[k].values->given[i])
                all[k].values->value[i] = strtod(value, NULL);
        }
    }
}

void kvd_method_write_settings(kvd_method *m)
{
    enum { ROOM = sizeof m->settings };
    char *const to = m->settings;
    const struct {
        const char *key;
        double value;
    } rate[] = {{"p.qk", m->p_side[0]},
                {"p.v", m->p_side[1]},
                {"p_u", m->p_low},
                {"p_u.qk", m->p_low_side[0]},
                {"p_u.v", m->p_low_side[1]}};
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    *to = 0;
    if (m->cut != KVD_CUT_BOTH)
        append(to, ROOM, ",", "cut=%s", cut_name[m->cut]);
    if (m->dims && m->plan.channels)
        append(to, ROOM, ",", "%s", m->plan.channels->info.name);
    if (m->plan.keep_first + m->plan.keep_last > 0)
        append(to, ROOM, ",", "%s=%d:%d", keep_layers, m->plan.keep_first, m->plan.keep_last);
    for (size_t i = 0; i < sizeof rate / sizeof *rate; i++)
        if (!isnan(rate[i].value))
            append(to, ROOM, ",", "%s.%s=%g", m->dims->info.name, rate[i].key, rate[i].value);
    for (int k = 0; k < n; k++)
        for (int i = 0; all[k].info->parameter[i].key; i++)
            append(to, ROOM, ",", "%s.%s=%g", all[k].info->name, all[k].info->parameter[i].key,
                   all[k].values->value[i]);
    for (int k = 0; k < n; k++)
        if (*all[k].values->text)
            append(to, ROOM, ",", "%s.%s=%s", all[k].info->name, all[k].info->text_key,
                   all[k].values->text);
}

/* Returns true if `setting` is "NAME.KEY=VALUE" with the default value of the parameter. */
static bool is_default(const char *setting, size_t n)
{
    kvd_method_entry e;
    char usual[128];
    for (int i = 0; kvd_method_entry_at(i, &e); i++)
        for (int k = 0; e.info->parameter && e.info->parameter[k].key; k++) {
            const kvd_parameter *const p = &e.info->parameter[k];
            (void)snprintf(usual, sizeof usual, "%s.%s=%g", e.info->name, p->key, p->value);
            if (strlen(usual) == n && !memcmp(usual, setting, n))
                return true;
        }
    return false;
}

const char *kvd_method_changed_settings(const char *name, const char *settings, const char *always,
                                        char *to)
{
    *to = 0;
    for (const char *at = settings; *at;) {
        const size_t n = strcspn(at, ","), key = strcspn(at, "=,"), own = strlen(name);
        const bool wanted = strlen(always) == key && !memcmp(at, always, key);
        const size_t skip = !strncmp(at, name, own) && at[own] == '.' ? own + 1 : 0;
        if (wanted || !is_default(at, n))
            append(to, KVD_SETTINGS, ",", "%.*s", (int)(n - skip), at + skip);
        at += n + (at[n] == ',');
    }
    return to;
}

int kvd_method_set_keys(kvd_method *m, char *text, kvd_err *err)
{
    unsigned seen = 0;
    while (text) {
        char *value = strsep(&text, ",");
        const char *const key = strsep(&value, "=");
        if (!value)
            return kvd_fail(err, "'%s' is not key=value", key);
        if (set_key(m, key, value, &seen, err))
            return -1;
    }
    set_usual(m);
    if (check(m, seen, err))
        return -1;
    kvd_method_write_settings(m);
    return 0;
}

static const kvd_tradeoff tradeoff_of_p = {"p", 0.1, 0.8, false, NULL, 0, 0};

static void fill(kvd_method_tradeoff *out, const char *name, const kvd_tradeoff *t, bool whole)
{
    const char *const dot = name ? "." : "";
    *out = (kvd_method_tradeoff){.most = t->most,
                                 .least = t->least,
                                 .whole = whole,
                                 .geometric = t->geometric,
                                 .at = t->at,
                                 .slope = t->slope};
    snprintf(out->name, sizeof out->name, "%s%s%s", name ? name : "", dot, t->key);
    if (t->with)
        snprintf(out->with, sizeof out->with, "%s%s%s", name ? name : "", dot, t->with);
}

/* Finds a parameter that trades bytes for quality, by the name of its method and its key. A NULL
 * name or key matches any. */
static bool of_member(const kvd_method *m, const char *name, const char *key,
                      kvd_method_tradeoff *out)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    if (m->dims && (!name || !strcmp(name, m->dims->info.name)) && (!key || !strcmp(key, "p"))) {
        fill(out, NULL, &tradeoff_of_p, false);
        out->p = true;
        return true;
    }
    for (int k = 0; k < n; k++)
        if (all[k].info->tradeoff && (!name || !strcmp(name, all[k].info->name)) &&
            (!key || !strcmp(key, all[k].info->tradeoff->key))) {
            const int i = kvd_parameter_index(all[k].info, all[k].info->tradeoff->key);
            fill(out, all[k].info->name, all[k].info->tradeoff, all[k].info->parameter[i].whole);
            return true;
        }
    return false;
}

int kvd_method_tradeoff_find(const kvd_method *m, const char *key, kvd_method_tradeoff *out,
                             kvd_err *err)
{
    char name[64];
    if (key) {
        const char *const dot = strchr(key, '.');
        snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - key) : 0, key);
        if (of_member(m, dot ? name : NULL, dot ? dot + 1 : key, out))
            return 0;
        return kvd_fail(
            err,
            "method '%s': key '%s' is none that trades bytes for quality (--list-methods names "
            "them after --target)",
            m->name, key);
    }
    if (m->tradeoff) {
        kvd_plan_member member;
        const int i = find_dotted(m, m->tradeoff->key, &member);
        fill(out, NULL, m->tradeoff, i >= 0 && member.info->parameter[i].whole);
        out->p = i < 0;
        return 0;
    }
    const char *const plus = strrchr(m->name, '+');
    if (of_member(m, plus ? plus + 1 : m->name, NULL, out))
        return 0;
    return kvd_fail(err, "method '%s' has no key that trades bytes for quality", m->name);
}

double kvd_method_tradeoff_at(const kvd_method_tradeoff *t, double share)
{
    const double value = t->geometric ? t->most * pow(t->least / t->most, share)
                                      : t->most + (t->least - t->most) * share;
    char text[32];
    double rounded = value;
    snprintf(text, sizeof text, "%.6g", value);
    sscanf(text, "%lf", &rounded);
    return t->whole ? nearbyint(value) : rounded;
}

double kvd_method_tradeoff_share(const kvd_method_tradeoff *t, double value)
{
    return t->geometric ? log(value / t->most) / log(t->least / t->most)
                        : (value - t->most) / (t->least - t->most);
}

static void set(kvd_method *m, const char *name, double value, bool only_free)
{
    kvd_plan_member member;
    if (!strcmp(name, "p")) {
        m->p = value;
        m->r = m->p_side[0] = m->p_side[1] = NAN;
    } else if (!strcmp(name, "p_u")) {
        if (only_free && kvd_method_has_low(m))
            return;
        m->p_low = value;
        m->p_low_side[0] = m->p_low_side[1] = NAN;
    } else {
        const int i = find_dotted(m, name, &member);
        if (!only_free || !member.values->given[i])
            member.values->value[i] = member.info->parameter[i].whole ? nearbyint(value) : value;
    }
}

bool kvd_method_tradeoff_given(const kvd_method *m, const kvd_method_tradeoff *t)
{
    kvd_plan_member member;
    if (!strcmp(t->name, "p"))
        return !isnan(m->p) || !isnan(m->r);
    const int i = find_dotted(m, t->name, &member);
    return i >= 0 && member.values->given[i];
}

void kvd_method_tradeoff_set(const kvd_method *m, const kvd_method_tradeoff *t, double value,
                             kvd_method *out)
{
    *out = *m;
    set(out, t->name, value, false);
    if (*t->with)
        set(out, t->with, t->at + t->slope * value, true);
    kvd_method_write_settings(out);
}

double kvd_method_tradeoff_value(const kvd_method *m, const kvd_method_tradeoff *t)
{
    kvd_plan_member member;
    const int i = find_dotted(m, t->name, &member);
    return i >= 0 ? member.values->value[i] : m->p;
}
