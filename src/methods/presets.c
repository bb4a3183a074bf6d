#include "methods/presets.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "methods/keys.h"

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

/* ---- what a method says of itself --------------------------------------------------------------------- */

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
        if (kvd_method_set_key(m, key, value, &seen, err))
            return kvd_in(err, "method '%s'", name);
    }
    kvd_method_set_usual(m);
    if (kvd_method_check(m, seen, err))
        return kvd_in(err, "method '%s'", name);
    kvd_method_describe(m);
    return 0;
}
