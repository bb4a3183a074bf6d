#include "methods/method.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/options.h"
#include "methods/plugin/plugin.h"

typedef struct {
    /* Must be the first member. info.tradeoff names parameters as "p", "p_u" or "METHOD.KEY", for
     * example "sparsity.th". */
    kvd_method_info info;
    const char *members;
    /* Default parameters of the combined methods, "KEY=VALUE,...". NULL: each method in `members`
     * keeps its own defaults. */
    const char *usual;
} combination;

static const combination leankv = {
    .info = {.name = "leankv",
             .summary = "LeanKV whole: sparsity and hetero",
             .tradeoff =
                 &(const kvd_tradeoff){"sparsity.th", 0.02, 0.95, true, "sparsity.tl", 0, 0.1}},
    .members = "sparsity+hetero",
};

static const combination zdc = {
    .info = {.name = "zdc",
             .summary = "ZDC whole: importance and zack at two levels; p_i (or p) and p_u, or "
                        "p_i.qk, p_i.v, p_u.qk, p_u.v",
             .tradeoff = &(const kvd_tradeoff){"p", 0.1, 0.7, false, "p_u", 0.15, 1}},
    .members = "importance+zack",
};

static const combination mikv = {
    .info = {.name = "mikv",
             .summary = "MiKV: lower and hetero at 8 and 2 bits",
             .tradeoff =
                 &(const kvd_tradeoff){"lower.heavy", 0.45, 0.01, true, "lower.recent", 0, 1}},
    .members = "lower+hetero",
    .usual = "k=8,v=8,lk=2,lv=2,balance=1",
};

typedef enum { DIMS, MAKER, CHANNELS, LAYERS, TOKENS, BITS, COMBINATION } method_kind;
static const char *const axis_of[] = {"dims", "dims", "dims", "layers", "tokens", "bits"};

/* Every method except "none", in the order of --help. */
static const struct {
    method_kind kind;
    const kvd_method_info *info;
} registry[] = {
    {DIMS, &kvd_dims_zack.info},
    {DIMS, &kvd_dims_fdc.info},
    {DIMS, &kvd_dims_uniform.info},
    {DIMS, &kvd_dims_balanced.info},
    {DIMS, &kvd_dims_fisher.info},
    {DIMS, &kvd_dims_matryoshka.info},
    {MAKER, &kvd_dims_palu.info},
    {MAKER, &kvd_dims_projected.info},
    {CHANNELS, &kvd_channels_think.info},
    {CHANNELS, &kvd_channels_strawman.info},
    {LAYERS, &kvd_layers_minicache.info},
    {LAYERS, &kvd_layers_xkv.info},
    {TOKENS, &kvd_tokens_h2o.info},
    {TOKENS, &kvd_tokens_keyformer.info},
    {TOKENS, &kvd_tokens_scissorhands.info},
    {TOKENS, &kvd_tokens_snapkv.info},
    {TOKENS, &kvd_tokens_leankv.info},
    {TOKENS, &kvd_tokens_importance.info},
    {TOKENS, &kvd_tokens_received.info},
    {TOKENS, &kvd_tokens_lower.info},
    {TOKENS, &kvd_tokens_streaming.info},
    {TOKENS, &kvd_tokens_tova.info},
    {TOKENS, &kvd_tokens_pyramidkv.info},
    {TOKENS, &kvd_tokens_adakv.info},
    {TOKENS, &kvd_tokens_expectedattention.info},
    {TOKENS, &kvd_tokens_knorm.info},
    {TOKENS, &kvd_tokens_keydiff.info},
    {TOKENS, &kvd_tokens_quest.info},
    {TOKENS, &kvd_tokens_d2o.info},
    {TOKENS, &kvd_tokens_cake.info},
    {TOKENS, &kvd_tokens_kvzip.info},
    {TOKENS, &kvd_tokens_kvmerger.info},
    {TOKENS, &kvd_tokens_prefixkv.info},
    {TOKENS, &kvd_tokens_windowkv.info},
    {TOKENS, &kvd_tokens_kvcrush.info},
    {TOKENS, &kvd_tokens_ems.info},
    {TOKENS, &kvd_tokens_elasticcache.info},
    {TOKENS, &kvd_tokens_taskkv.info},
    {TOKENS, &kvd_tokens_a2ats.info},
    {TOKENS, &kvd_tokens_mpcache.info},
    {TOKENS, &kvd_tokens_alisa.info},
    {TOKENS, &kvd_tokens_shadowkv.info},
    {TOKENS, &kvd_tokens_locret.info},
    {BITS, &kvd_bits_kivi.info},
    {BITS, &kvd_bits_hetero.info},
    {BITS, &kvd_bits_zipcache.info},
    {BITS, &kvd_bits_gear.info},
    {BITS, &kvd_bits_kvquant.info},
    {BITS, &kvd_bits_rotatekv.info},
    {BITS, &kvd_bits_allot.info},
    {BITS, &kvd_bits_fp8.info},
    {BITS, &kvd_bits_mxfp4.info},
    {BITS, &kvd_bits_nvfp4.info},
    {BITS, &kvd_bits_turboquant.info},
    {BITS, &kvd_bits_cachegen.info},
    {BITS, &kvd_bits_kvtc.info},
    {BITS, &kvd_bits_comet.info},
    {BITS, &kvd_bits_vidkv.info},
    {BITS, &kvd_bits_xquant.info},
    {BITS, &kvd_bits_waterfill.info},
    {COMBINATION, &leankv.info},
    {COMBINATION, &zdc.info},
    {COMBINATION, &mikv.info},
};
enum { N_NAMES = sizeof registry / sizeof *registry };

static const method_kind kind_of[] = {[KVD_PLUGIN_TOKENS] = TOKENS,
                                      [KVD_PLUGIN_BITS] = BITS,
                                      [KVD_PLUGIN_MAKER] = MAKER,
                                      [KVD_PLUGIN_CHANNELS] = CHANNELS,
                                      [KVD_PLUGIN_LAYERS] = LAYERS};

/* Returns the compression method with index i, built-in methods first, or NULL. */
static const kvd_method_info *name_at(int i, method_kind *kind)
{
    kvd_plugin_kind of_plugin;
    if (i < N_NAMES) {
        *kind = registry[i].kind;
        return registry[i].info;
    }
    const kvd_method_info *const info = kvd_plugin_method_at(i - N_NAMES, &of_plugin);
    if (info)
        *kind = kind_of[of_plugin];
    return info;
}

bool kvd_method_entry_at(int i, kvd_method_entry *out)
{
    method_kind kind;
    const void *const method = i < 0 ? NULL : name_at(i, &kind);
    if (!method)
        return false;
    *out = (kvd_method_entry){.info = method, .alone = true};
    out->axis = kind == COMBINATION ? ((const combination *)method)->members : axis_of[kind];
    if (kind == DIMS)
        out->dims = method;
    if (out->info->text_key)
        out->alone = false;
    if (kind == TOKENS)
        out->alone = !((const kvd_tokens_method *)method)->only_lowers &&
                     !((const kvd_tokens_method *)method)->select;
    return true;
}

const char *kvd_method_nearest(const char *name)
{
    const char *nearest = NULL;
    size_t distance = 0;
    char lower[KVD_ARG_FIELD];
    method_kind kind;
    const kvd_method_info *info;
    kvd_arg_field(name, strlen(name), lower);
    for (char *c = lower; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    for (int i = 0; (info = name_at(i, &kind)); i++)
        kvd_option_nearest(lower, info->name, &nearest, &distance);
    return nearest;
}

static int unknown(const char *name, kvd_err *err)
{
    const char *const nearest = kvd_method_nearest(name);
    return kvd_fail(err, "unknown method '%s'%s%s; --list-methods lists all", name,
                    nearest ? ", nearest: " : "", nearest ? nearest : "");
}

/* Returns the method in *m that acts on `axis` ("layers", "tokens", "dims" or "bits"), or NULL. */
static const kvd_method_info *occupant(const kvd_method *m, const char *axis)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    if (m->dims && !strcmp(axis, "dims"))
        return &m->dims->info;
    for (int i = 0; i < n; i++)
        if (!strcmp(all[i].axis, axis))
            return all[i].info;
    return NULL;
}

static void set_defaults(const kvd_method_info *info, kvd_parameter_values *v)
{
    v->method = info;
    for (int i = 0; info->parameter[i].key; i++)
        v->value[i] = info->parameter[i].value;
}

/* Combines the token method of *m with a second one, *x. Returns false unless one of them drops
 * tokens and the other lowers their precision. */
static bool add_second_tokens(const kvd_tokens_method *x, kvd_method *m)
{
    if (m->plan.levels || x->select || m->plan.tokens->select ||
        !x->rank == !m->plan.tokens->rank || !x->lowers == !m->plan.tokens->lowers ||
        !(x->rank ? x : m->plan.tokens)->lowers)
        return false;
    if (x->rank) {
        m->plan.levels = x;
        set_defaults(&x->info, &m->plan.levels_values);
        return true;
    }
    m->plan.levels = m->plan.tokens;
    m->plan.levels_values = m->plan.tokens_values;
    m->plan.tokens = x;
    set_defaults(&x->info, &m->plan.tokens_values);
    return true;
}

enum { METHOD_TEXT = 256 };

static int add_all(char *names, kvd_method *m, kvd_err *err);

static int add_combination(const combination *c, kvd_method *m, kvd_err *err)
{
    char names[64];
    snprintf(names, sizeof names, "%s", c->members);
    m->usual = c->usual;
    if (add_all(names, m, err))
        return -1;
    m->tradeoff = c->info.tradeoff;
    return 0;
}

static int add(method_kind kind, const kvd_method_info *info, kvd_method *m, kvd_err *err)
{
    const void *const method = info;
    if (kind == COMBINATION)
        return add_combination(method, m, err);
    const kvd_method_info *const was = occupant(m, axis_of[kind]);
    if (kind == TOKENS && was && add_second_tokens(method, m))
        return 0;
    if (was)
        return kvd_fail(err, "'%s' and '%s' both choose %s", was->name, info->name, axis_of[kind]);
    switch (kind) {
    case DIMS:
        m->dims = method;
        break;
    case MAKER:
        m->plan.maker = method;
        set_defaults(info, &m->plan.maker_values);
        break;
    case CHANNELS:
        m->plan.channels = method;
        set_defaults(info, &m->plan.channels_values);
        break;
    case LAYERS:
        m->plan.layers = method;
        set_defaults(info, &m->plan.layers_values);
        break;
    case TOKENS:
        m->plan.tokens = method;
        set_defaults(info, &m->plan.tokens_values);
        break;
    case BITS:
        m->plan.bits = method;
        set_defaults(info, &m->plan.bits_values);
        break;
    case COMBINATION:
        break;
    }
    return 0;
}

/* Returns the compression method whose name is the first n characters of `name`, or NULL. */
static const kvd_method_info *named(const char *name, size_t n, method_kind *kind)
{
    const kvd_method_info *info;
    int i = 0;
    while ((info = name_at(i, kind)) && (strlen(info->name) != n || memcmp(name, info->name, n)))
        i++;
    return info;
}

/* Adds the compression methods in `names`, such as "h2o+kivi", to *m; modifies `names`. */
static int add_all(char *names, kvd_method *m, kvd_err *err)
{
    for (char *name; (name = strsep(&names, "+"));) {
        method_kind kind;
        const kvd_method_info *const info = named(name, strlen(name), &kind);
        if (!info)
            return strcmp(name, "none") ? unknown(name, err)
                                        : kvd_fail(err, "'none' cannot be combined");
        m->tradeoff = NULL;
        if (add(kind, info, m, err))
            return -1;
    }
    return 0;
}

/* Copies `text` to `to`, with all method names before all parameters. For example, "a,p=1+b"
 * becomes "a+b,p=1". */
static void put_names_first(const char *text, char to[METHOD_TEXT])
{
    const size_t names = strcspn(text, ",");
    char keys[METHOD_TEXT] = "";
    snprintf(to, METHOD_TEXT, "%.*s", (int)names, text);
    for (const char *at = text + names; *at;) {
        const size_t n = 1 + strcspn(at + 1, "+,");
        method_kind kind;
        char *const part = *at == '+' && named(at + 1, n - 1, &kind) ? to : keys;
        const size_t used = strlen(part);
        snprintf(part + used, METHOD_TEXT - used, "%.*s", (int)n, at);
        at += n;
    }
    const size_t used = strlen(to);
    snprintf(to + used, METHOD_TEXT - used, "%s", keys);
}

/* Returns true if the methods of m can be combined. */
static bool fit_together(const kvd_method *m)
{
    const kvd_dims any = {.method = "dims"};
    kvd_plan plan = m->plan;
    kvd_err unused;
    if (m->dims)
        plan.dims = &any;
    return !kvd_plan_check_pairs(&plan, &unused);
}

/* If a method name follows a parameter, as in "snapkv,budget=0.25+kivi", adds the right order to
 * the message in *err: "snapkv+kivi,budget=0.25". Returns -1. */
static int hint_at_order(const char *text, kvd_err *err)
{
    const kvd_err why = *err;
    char right[METHOD_TEXT];
    kvd_method m;
    kvd_err unused;
    put_names_first(text, right);
    return strcmp(right, text) && !kvd_method_parse(right, &m, &unused) && fit_together(&m)
               ? kvd_fail(err, "%.300s; names come before keys: %s", why.msg, right)
               : -1;
}

int kvd_method_parse(const char *text, kvd_method *m, kvd_err *err)
{
    char copy[METHOD_TEXT], names[64];
    *m = (kvd_method){.p = NAN,
                      .p_low = NAN,
                      .p_side = {NAN, NAN},
                      .p_low_side = {NAN, NAN},
                      .r = NAN,
                      .ranks = KVD_WIDTH_RULE_EQ6};
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
    if (!kvd_method_set_keys(m, rest, err))
        return 0;
    kvd_in(err, "method '%s'", name);
    return hint_at_order(text, err);
}

const char *kvd_method_name(const kvd_method *m)
{
    return m->name;
}

bool kvd_method_is_none(const kvd_method *m)
{
    return !m->dims && !kvd_plan_beyond_widths(&m->plan);
}

bool kvd_method_selects(const kvd_method *m)
{
    return m->plan.tokens && m->plan.tokens->select;
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

const char *kvd_method_file(const kvd_method *m, int i)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(&m->plan, all);
    for (int k = 0; k < n; k++)
        if (*all[k].values->text && i-- == 0)
            return all[k].values->text;
    return NULL;
}

bool kvd_method_is_text_key(const char *key, size_t length)
{
    const char *const dot = memchr(key, '.', length);
    const char *const last = dot ? dot + 1 : key;
    length -= (size_t)(last - key);
    for (int i = 0; i < N_NAMES; i++) {
        const char *const text = registry[i].info->text_key;
        if (text && strlen(text) == length && !memcmp(text, last, length))
            return true;
    }
    return false;
}

void kvd_method_with_fisher(kvd_method *m)
{
    const kvd_bits_method *const bits = m->plan.bits;
    if (!bits || !bits->fisher_key || occupant(m, "dims"))
        return;
    const int i = kvd_parameter_index(&bits->info, bits->fisher_key);
    if (!m->plan.bits_values.given[i])
        m->plan.bits_values.value[i] = 1;
    kvd_method_write_settings(m);
}

bool kvd_method_reads_fisher(const kvd_method *m)
{
    const kvd_bits_method *const bits = m->plan.bits;
    const kvd_dims_maker *const maker = m->plan.maker;
    return kvd_plan_needs(&m->plan) & KVD_NEEDS_FISHER ||
           (maker && maker->reads_fisher && maker->reads_fisher(&m->plan.maker_values)) ||
           (bits && bits->fisher_key &&
            m->plan.bits_values.value[kvd_parameter_index(&bits->info, bits->fisher_key)] > 0);
}
