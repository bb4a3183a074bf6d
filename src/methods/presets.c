#include "methods/presets.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "methods/keys.h"

const char *const kvd_ranks_name[KVD_N_RANKS] = {"eq6", "eq6-energy", "error", "loss"};

static const kvd_dims_method *const dims[] = {&kvd_dims_zack,     &kvd_dims_fdc,    &kvd_dims_uniform,
                                              &kvd_dims_balanced, &kvd_dims_fisher, &kvd_dims_matryoshka};
static const kvd_layers_method *const layers[] = {&kvd_layers_minicache, &kvd_layers_xkv};
static const kvd_tokens_method *const tokens[] = {
    &kvd_tokens_h2o,    &kvd_tokens_keyformer,  &kvd_tokens_scissorhands, &kvd_tokens_snapkv,
    &kvd_tokens_leankv, &kvd_tokens_importance, &kvd_tokens_lower};
static const kvd_dims_maker *const makers[] = {&kvd_dims_palu};
static const kvd_channels_method *const channels[] = {&kvd_channels_think, &kvd_channels_strawman};
static const kvd_bits_method *const bits[] = {&kvd_bits_kivi, &kvd_bits_hetero,  &kvd_bits_zipcache,
                                              &kvd_bits_gear, &kvd_bits_kvquant, &kvd_bits_rotatekv,
                                              &kvd_bits_allot};

/* Names that stand for members of several axes, with values of keys where they are not the members' own. */
static const struct {
    const char *name, *stands_for, *usual, *summary;
    kvd_rate rate; /* keys are NAME.key */
} several[] = {
    {"leankv",
     "sparsity+hetero",
     NULL,
     "LeanKV whole: sparsity and hetero",
     {"sparsity.th", 0.02, 0.95, true, "sparsity.tl", 0, 0.1}},
    {"zdc",
     "importance+zack",
     NULL,
     "ZDC whole: importance and zack at two levels; p_i (or p) and p_u, or p_i.qk, p_i.v, p_u.qk, p_u.v",
     {"p", 0.1, 0.7, false, "p_u", 0.15, 1}},
    {"mikv",
     "lower+hetero",
     "k=8,v=8,lk=2,lv=2,balance=1",
     "MiKV: lower and hetero at 8 and 2 bits",
     {"lower.heavy", 0.45, 0.01, true, "lower.recent", 0, 1}},
};

enum {
    N_DIMS = sizeof dims / sizeof *dims,
    N_LAYERS = sizeof layers / sizeof *layers,
    N_TOKENS = sizeof tokens / sizeof *tokens,
    N_MAKERS = sizeof makers / sizeof *makers,
    N_CHANNELS = sizeof channels / sizeof *channels,
    N_BITS = sizeof bits / sizeof *bits,
    N_SEVERAL = sizeof several / sizeof *several
};

int kvd_method_count(void)
{
    return N_DIMS;
}

const kvd_dims_method *kvd_method_at(int i)
{
    assert(i >= 0 && i < N_DIMS);
    return dims[i];
}

const char *kvd_method_name(const kvd_method *m)
{
    return m->name;
}

bool kvd_method_is_none(const kvd_method *m)
{
    return !m->layers && !m->tokens && !m->dims && !m->maker && !m->channels && !m->bits;
}

bool kvd_preset_at(int i, kvd_preset *out)
{
    if (i < N_DIMS)
        *out = (kvd_preset){dims[i]->name, "dims", dims[i]->summary, NULL, true};
    else if ((i -= N_DIMS) < N_MAKERS)
        *out = (kvd_preset){makers[i]->name, "dims", makers[i]->summary, makers[i]->parameter, true};
    else if ((i -= N_MAKERS) < N_CHANNELS)
        *out = (kvd_preset){channels[i]->name, "dims", channels[i]->summary, channels[i]->parameter, true};
    else if ((i -= N_CHANNELS) < N_LAYERS)
        *out = (kvd_preset){layers[i]->name, "layers", layers[i]->summary, layers[i]->parameter, true};
    else if ((i -= N_LAYERS) < N_TOKENS)
        *out = (kvd_preset){tokens[i]->name, "tokens", tokens[i]->summary, tokens[i]->parameter,
                            !tokens[i]->only_lowers};
    else if ((i -= N_TOKENS) < N_BITS)
        *out = (kvd_preset){bits[i]->name, "bits", bits[i]->summary, bits[i]->parameter, true};
    else if ((i -= N_BITS) < N_SEVERAL)
        *out = (kvd_preset){several[i].name, several[i].stands_for, several[i].summary, NULL, true};
    else
        return false;
    return true;
}

void kvd_method_plan(const kvd_method *m, kvd_plan *plan)
{
    plan->layers = m->layers;
    plan->tokens = m->tokens;
    plan->levels = m->levels;
    plan->maker = m->maker;
    plan->channels = m->channels;
    plan->bits = m->bits;
    plan->layers_values = m->layers_values;
    plan->tokens_values = m->tokens_values;
    plan->levels_values = m->levels_values;
    plan->maker_values = m->maker_values;
    plan->channels_values = m->channels_values;
    plan->bits_values = m->bits_values;
}

/* ---- names ---------------------------------------------------------------------------------------- */

static void defaults(const kvd_parameter *p, kvd_values *v)
{
    for (int i = 0; p[i].key; i++)
        v->value[i] = p[i].value;
}

static int unknown(const char *name, kvd_err *err)
{
    char known[400] = "none";
    kvd_preset p;
    for (int i = 0; kvd_preset_at(i, &p); i++) {
        strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, p.name, sizeof known - strlen(known) - 1);
    }
    return kvd_fail(err, "unknown method '%s', known are %s", name, known);
}

static int twice(const char *axis, const char *name, const char *was, kvd_err *err)
{
    return kvd_fail(err, "'%s' and '%s' both choose %s", was, name, axis);
}

static int add(const char *name, kvd_method *m, kvd_err *err);

/* One that ranks the tokens of prompts goes beside one that drops tokens, whichever is named first. */
static int add_tokens(const kvd_tokens_method *x, kvd_method *m, kvd_err *err)
{
    const bool beside =
        m->tokens && !m->levels && !x->rank != !m->tokens->rank && !x->lowers != !m->tokens->lowers;
    if (m->tokens && !beside)
        return twice("tokens", x->name, m->tokens->name, err);
    if (beside && x->rank) {
        m->levels = x;
        defaults(x->parameter, &m->levels_values);
        return 0;
    }
    if (beside) {
        m->levels = m->tokens;
        m->levels_values = m->tokens_values;
    }
    m->tokens = x;
    defaults(x->parameter, &m->tokens_values);
    return 0;
}

/* NAME+NAME..., whose text is taken apart. */
static int add_all(char *names, kvd_method *m, kvd_err *err)
{
    for (char *name; (name = strsep(&names, "+"));)
        if (add(name, m, err))
            return -1;
    return 0;
}

/* What has chosen dims already; NULL: nothing. */
static const char *dims_name(const kvd_method *m)
{
    return m->dims ? m->dims->name : m->maker ? m->maker->name : m->channels ? m->channels->name : NULL;
}

static int add(const char *name, kvd_method *m, kvd_err *err)
{
    m->rate = NULL;
    for (int i = 0; i < N_DIMS; i++)
        if (!strcmp(name, dims[i]->name)) {
            if (dims_name(m))
                return twice("dims", name, dims_name(m), err);
            m->dims = dims[i];
            return 0;
        }
    for (int i = 0; i < N_MAKERS; i++)
        if (!strcmp(name, makers[i]->name)) {
            if (dims_name(m))
                return twice("dims", name, dims_name(m), err);
            m->maker = makers[i];
            defaults(makers[i]->parameter, &m->maker_values);
            return 0;
        }
    for (int i = 0; i < N_CHANNELS; i++)
        if (!strcmp(name, channels[i]->name)) {
            if (dims_name(m))
                return twice("dims", name, dims_name(m), err);
            m->channels = channels[i];
            defaults(channels[i]->parameter, &m->channels_values);
            return 0;
        }
    for (int i = 0; i < N_LAYERS; i++)
        if (!strcmp(name, layers[i]->name)) {
            if (m->layers)
                return twice("layers", name, m->layers->name, err);
            m->layers = layers[i];
            defaults(layers[i]->parameter, &m->layers_values);
            return 0;
        }
    for (int i = 0; i < N_TOKENS; i++)
        if (!strcmp(name, tokens[i]->name)) {
            return add_tokens(tokens[i], m, err);
        }
    for (int i = 0; i < N_BITS; i++)
        if (!strcmp(name, bits[i]->name)) {
            if (m->bits)
                return twice("bits", name, m->bits->name, err);
            m->bits = bits[i];
            defaults(bits[i]->parameter, &m->bits_values);
            return 0;
        }
    for (int i = 0; i < N_SEVERAL; i++)
        if (!strcmp(name, several[i].name)) {
            char copy[64];
            snprintf(copy, sizeof copy, "%s", several[i].stands_for);
            m->usual = several[i].usual;
            if (add_all(copy, m, err))
                return -1;
            m->rate = &several[i].rate;
            return 0;
        }
    return !strcmp(name, "none") ? kvd_fail(err, "'none' cannot be combined") : unknown(name, err);
}

/* ---- keys ----------------------------------------------------------------------------------------- */

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

static bool lowers(const kvd_method *m)
{
    return m->levels || (m->tokens && m->tokens->lowers);
}

int kvd_method_members(kvd_method *m, kvd_keyed out[5])
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

static int set(kvd_method *m, const char *key, const char *value, unsigned *seen, kvd_err *err)
{
    kvd_keyed all[5];
    const int n = kvd_method_members(m, all);
    const bool of_dims = find_dims_key(key) >= 0;
    const char *const dot = of_dims ? NULL : strchr(key, '.'); /* p.qk has one of its own */
    int member = -1, at = -1;
    if (dot) {
        const size_t len = (size_t)(dot - key);
        if (m->dims && strlen(m->dims->name) == len && !strncmp(key, m->dims->name, len))
            return set(m, dot + 1, value, seen, err);
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

static int check(const kvd_method *m, unsigned seen, kvd_err *err)
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
    kvd_keyed all[5];
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

/* A preset's own values, for keys that were not given. */
static void set_usual(kvd_method *m)
{
    char copy[64];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", m->usual ? m->usual : "");
    kvd_keyed all[5];
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
    kvd_keyed all[5];
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

void kvd_method_with_fisher(kvd_method *m)
{
    if (!m->bits || !m->bits->fisher_key || dims_name(m))
        return;
    for (int i = 0; m->bits->parameter[i].key; i++)
        if (!strcmp(m->bits->parameter[i].key, m->bits->fisher_key) && !m->bits_values.given[i])
            m->bits_values.value[i] = 1;
    kvd_method_describe(m);
}

bool kvd_method_reads_fisher(const kvd_method *m)
{
    if (m->maker && m->maker->reads_fisher && m->maker->reads_fisher(&m->maker_values))
        return true;
    for (int i = 0; m->bits && m->bits->fisher_key && m->bits->parameter[i].key; i++)
        if (!strcmp(m->bits->parameter[i].key, m->bits->fisher_key))
            return m->bits_values.value[i] > 0;
    return false;
}

unsigned kvd_method_needs(const kvd_method *m)
{
    return (m->layers ? m->layers->needs : 0) | (m->maker ? m->maker->needs : 0) |
           (m->channels ? m->channels->needs : 0) | (m->tokens ? m->tokens->needs : 0) |
           (m->levels ? m->levels->needs : 0) | (m->bits ? m->bits->needs : 0);
}

int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err)
{
    char copy[256], names[64];
    *m = (kvd_method){.p = NAN,
                      .p_low = NAN,
                      .p_side = {NAN, NAN},
                      .p_low_side = {NAN, NAN},
                      .r = NAN,
                      .ranks = KVD_RANKS_EQ6};
    if (strlen(text) >= sizeof copy)
        return kvd_fail(err, "method text of %zu characters is too long", strlen(text));
    strcpy(copy, text);
    char *rest = copy;
    const char *const name = strsep(&rest, ",");
    if (strlen(name) >= sizeof names)
        return kvd_fail(err, "method name of %zu characters is too long", strlen(name));
    strcpy(m->name, name);
    strcpy(names, name);
    if (strcmp(name, "none") && add_all(names, m, err))
        return strchr(name, '+') ? kvd_in(err, "method '%s'", name) : -1;
    unsigned seen = 0;
    while (rest) {
        char *value = strsep(&rest, ",");
        const char *const key = strsep(&value, "=");
        if (!value)
            return kvd_fail(err, "method '%s': '%s' is not key=value", name, key);
        if (set(m, key, value, &seen, err))
            return kvd_in(err, "method '%s'", name);
    }
    set_usual(m);
    if (check(m, seen, err))
        return kvd_in(err, "method '%s'", name);
    kvd_method_describe(m);
    return 0;
}
