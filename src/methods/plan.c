#include "methods/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvd_plan_members(const kvd_plan *p, kvd_plan_member out[KVD_PLAN_MEMBERS])
{
    kvd_plan *const m = (kvd_plan *)(uintptr_t)p;
    int n = 0;
    if (m->layers)
        out[n++] = (kvd_plan_member){"layers", &m->layers->info, &m->layers_values};
    if (m->tokens)
        out[n++] = (kvd_plan_member){"tokens", &m->tokens->info, &m->tokens_values};
    if (m->levels)
        out[n++] = (kvd_plan_member){"tokens", &m->levels->info, &m->levels_values};
    if (m->maker)
        out[n++] = (kvd_plan_member){"dims", &m->maker->info, &m->maker_values};
    if (m->channels)
        out[n++] = (kvd_plan_member){"dims", &m->channels->info, &m->channels_values};
    if (m->bits)
        out[n++] = (kvd_plan_member){"bits", &m->bits->info, &m->bits_values};
    return n;
}

void kvd_plan_name(const kvd_plan *p, char *name, size_t size)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(p, all);
    (void)snprintf(name, size, "%s", p->dims && !p->maker ? p->dims->method : "");
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(name);
        (void)snprintf(name + used, size - used, "%s%s", used ? "+" : "", all[i].info->name);
    }
}

int kvd_parameter_index(const kvd_method_info *m, const char *key)
{
    for (int i = 0; m->parameter[i].key; i++)
        if (!strcmp(m->parameter[i].key, key))
            return i;
    return -1;
}

static unsigned needs_of(const kvd_plan *p, const kvd_method_info *m)
{
    const bool calibrated = p->bits && m == &p->bits->info && p->bits->calibrated &&
                            p->bits->calibrated(&p->bits_values);
    return m->needs | (calibrated ? KVD_NEEDS_ACTIVATIONS : 0);
}

unsigned kvd_plan_needs(const kvd_plan *p)
{
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    unsigned needs = 0;
    for (int i = kvd_plan_members(p, all); i-- > 0;)
        needs |= needs_of(p, all[i].info);
    return needs;
}

bool kvd_plan_stepwise(const kvd_plan *p)
{
    return p->layers || p->tokens || p->channels || p->bits ||
           (p->maker && p->keep_first + p->keep_last > 0);
}

const kvd_plan *kvd_plan_of_layer(const kvd_plan *p, int layer)
{
    return p->kept && (layer < p->keep_first || layer >= p->n_layers - p->keep_last) ? p->kept : p;
}

bool kvd_plan_changes_nothing(const kvd_plan *p)
{
    return !p->dims && !kvd_plan_beyond_widths(p) && p->type == KVD_F32;
}

bool kvd_plan_beyond_widths(const kvd_plan *p)
{
    return p->layers || p->tokens || p->maker || p->channels || p->bits;
}

bool kvd_plan_first_pass(const kvd_plan *p)
{
    return p->layers || kvd_plan_ranker(p, NULL);
}

const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self)
{
    if (self)
        *self = p->levels ? p->levels_self : p->tokens_self;
    return p->levels ? p->levels : p->tokens && p->tokens->rank ? p->tokens : NULL;
}

size_t kvd_plan_copies(const kvd_plan *p)
{
    const kvd_tokens_method *const ranker = kvd_plan_ranker(p, NULL);
    return ranker && ranker->repeats ? 2 : 1;
}

bool kvd_plan_heads_together(const kvd_plan *p)
{
    return p->tokens && (p->tokens->prompt_heads || p->tokens->step_heads);
}

size_t kvd_plan_block(const kvd_plan *p)
{
    size_t most = 1;
    for (int side = 0; p->bits && p->bits->window && side < KVD_N_SIDES; side++) {
        size_t newest = 0, block = 1;
        p->bits->window(&p->bits_values, (kvd_side)side, &newest, &block);
        most = block > most ? block : most;
    }
    return most;
}

size_t kvd_plan_exact(const kvd_plan *p)
{
    return p->bits && p->bits->exact_key
               ? (size_t)
                     p->bits_values.value[kvd_parameter_index(&p->bits->info, p->bits->exact_key)]
               : 0;
}

double kvd_plan_entry_bits(const kvd_plan *p)
{
    return (p->tokens ? p->tokens->entry_bits : 0) + (p->levels ? p->levels->entry_bits : 0);
}

bool kvd_plan_two_levels(const kvd_plan *p)
{
    return p->dims_low || p->widths_low || (p->bits && p->bits->two_levels);
}

bool kvd_plan_draws(const kvd_plan *p)
{
    return (p->tokens && p->tokens->regularise) || kvd_plan_needs(p) & KVD_NEEDS_SEED;
}

static const char *prompt_method(const kvd_plan *p)
{
    if (p->tokens && p->tokens->info.needs & KVD_NEEDS_PROMPT)
        return p->tokens->info.name;
    if (p->levels)
        return p->levels->info.name;
    return p->layers ? p->layers->info.name : p->channels->info.name;
}

static int check_needs(const kvd_method_info *m, unsigned needs, const kvd_method_setup *s,
                       kvd_err *err)
{
    if ((needs & KVD_NEEDS_SPECTRUM) && !s->spectrum)
        return kvd_fail(err, "method '%s' needs bases: give --spectrum", m->name);
    if ((needs & KVD_NEEDS_ACTIVATIONS) && !s->calibration && !s->drawn)
        return kvd_fail(
            err, "method '%s' needs activations of calibration text: give --calibration", m->name);
    if ((needs & KVD_NEEDS_INPUT) && !s->checkpoint)
        return kvd_fail(err,
                        "method '%s' multiplies inputs of layers by weights of the model, which "
                        "were not given",
                        m->name);
    if ((needs & KVD_NEEDS_FISHER) && !s->fisher && !(s->drawn && m->needs & KVD_NEEDS_FISHER))
        return kvd_fail(err, "method '%s' needs squared gradients: give --fisher", m->name);
    return 0;
}

static int check_low(const kvd_plan *p, const kvd_dims *dims, const kvd_dims *dims_low,
                     kvd_err *err)
{
    if (!p->levels && (!p->tokens || !p->tokens->lowers))
        return kvd_fail(
            err,
            "widths of the low level need a method that lowers entries: add importance, sparsity "
            "or lower");
    if (p->bits && (p->bits->keys_before_rope || p->bits->info.needs & KVD_NEEDS_ACTIVATIONS))
        return kvd_fail(err, "'%s' codes entries of one width, not of two levels",
                        p->bits->info.name);
    for (int i = 0; i < dims->n_layers * dims->n_kv_heads; i++) {
        const kvd_dims_head *const high = &dims->head[i], *const low = &dims_low->head[i];
        if (low->d_qk > high->d_qk || low->d_v > high->d_v)
            return kvd_fail(
                err, "layer %d, KV head %d: widths of the low level %d, %d, of the high one %d, %d",
                i / dims->n_kv_heads, i % dims->n_kv_heads, low->d_qk, low->d_v, high->d_qk,
                high->d_v);
    }
    return 0;
}

static int check_merge(const kvd_plan *p, kvd_err *err)
{
    const char *const name = p->tokens->info.name;
    const bool steps = p->tokens->merges_steps;
    if (p->layers)
        return kvd_fail(err, "'%s' merges tokens of one layer, '%s' stores several together", name,
                        p->layers->info.name);
    if (p->channels && steps)
        return kvd_fail(err, "'%s' merges whole keys and values, '%s' shortens those of the prompt",
                        name, p->channels->info.name);
    if (p->maker)
        return kvd_fail(err, "'%s' merges keys after RoPE, '%s' stores latents before it", name,
                        p->maker->info.name);
    if (p->levels || p->dims_low)
        return kvd_fail(err, "'%s' merges entries of one width, not of two levels", name);
    if (p->bits && p->bits->keys_before_rope)
        return kvd_fail(err, "'%s' merges keys after RoPE, '%s' codes them before", name,
                        p->bits->info.name);
    if (p->bits && steps)
        return kvd_fail(err,
                        "'%s' merges tokens into older ones at every step, which '%s' has coded by "
                        "then",
                        name, p->bits->info.name);
    return 0;
}

/* Returns the name of the compression method that makes the cache hold other vectors than K and V,
 * or NULL. */
static const char *other_form(const kvd_plan *p)
{
    return p->layers     ? p->layers->info.name
           : p->maker    ? p->maker->info.name
           : p->channels ? p->channels->info.name
           : p->bits     ? p->bits->info.name
                         : NULL;
}

static int check_rebuild(const kvd_plan *p, kvd_err *err)
{
    const char *other = other_form(p);
    other = other || !p->dims ? other : p->dims->method;
    return other ? kvd_fail(err,
                            "'%s' stores the keys of a prompt in low rank: it cannot be combined "
                            "with '%s', which stores them in another form",
                            p->tokens->info.name, other)
                 : 0;
}

static int check_layers(const kvd_plan *p, const kvd_config *c, kvd_err *err)
{
    int most = 1;
    for (int l = 0, n; l < c->n_layers; l += n) {
        n = p->layers->group(&p->layers_values, c, l);
        most = n > most ? n : most;
    }
    return most > 1 ? 0
                    : kvd_fail(err,
                               "'%s' stores no two of the %d layers together: use a smaller start "
                               "(minicache) or more layers (xkv)",
                               p->layers->info.name, c->n_layers);
}

static int check_kept(const kvd_plan *p, const kvd_config *c, kvd_err *err)
{
    char name[128];
    if (p->keep_first + p->keep_last == 0)
        return 0;
    kvd_plan_name(p, name, sizeof name);
    const int first = p->keep_first, last = c->n_layers - p->keep_last;
    if (first >= last)
        return kvd_fail(err,
                        "method '%s': keep_layers=%d:%d keeps all %d layers of the model whole: "
                        "nothing is left to compress",
                        name, p->keep_first, p->keep_last, c->n_layers);
    if (p->dims && p->bits == &kvd_bits_allot)
        return kvd_fail(err,
                        "method '%s': 'allot' gives bits to the dimensions of all layers by one "
                        "spectrum: leave out keep_layers",
                        name);
    for (int l = 0, n; p->layers && l < c->n_layers; l += n) {
        n = p->layers->group(&p->layers_values, c, l);
        if (n > 1 && ((l < first && l + n > first) || (l < last && l + n > last)))
            return kvd_fail(err,
                            "method '%s': keep_layers=%d:%d divides layers %d to %d, which '%s' "
                            "stores together",
                            name, p->keep_first, p->keep_last, l, l + n - 1, p->layers->info.name);
    }
    return 0;
}

static int open_kept(kvd_plan *p, const kvd_config *c, kvd_err *err)
{
    if (p->keep_first + p->keep_last == 0)
        return 0;
    p->n_layers = c->n_layers;
    if (!(p->kept = calloc(1, sizeof *p->kept)))
        return kvd_no_memory(err, "a plan", sizeof *p->kept);
    *p->kept =
        (kvd_plan){.n_layers = c->n_layers, .type = p->type, .prompt = p->prompt, .seed = p->seed};
    return 0;
}

/* Rejects methods that change K and V separately if the model caches one latent vector. */
static int check_latent(const kvd_plan *p, const kvd_config *c, kvd_err *err)
{
    const bool merges = p->tokens && p->tokens->merge;
    const char *name = other_form(p);
    name = name || !merges ? name : p->tokens->info.name;
    if (!c || !c->latent)
        return 0;
    if (p->dims)
        return kvd_dims_fits(p->dims, c, err);
    return name ? kvd_fail(err,
                           "method '%s' changes keys and values apart, but a %s model caches one "
                           "latent per token that is both: use none, or a method that only drops "
                           "tokens",
                           name, c->family)
                : 0;
}

static kvd_method_setup setup_of(const kvd_plan *p, const kvd_method_setup *setup)
{
    kvd_method_setup s = *setup;
    /* True if methods use random numbers in place of missing calibration data, in timing runs. */
    s.drawn = s.drawn && !s.calibration &&
              (p->bits ? p->bits->drawn : p->maker || (p->tokens && p->tokens->drawn));
    s.drops = p->tokens && !p->tokens->select && !p->tokens->only_lowers;
    return s;
}

int kvd_plan_check_pairs(const kvd_plan *p, kvd_err *err)
{
    if (p->layers && (p->dims || p->maker || p->channels || p->bits))
        return kvd_fail(
            err,
            "method '%s' can be combined only with methods of the tokens axis: it stores several "
            "layers together",
            p->layers->info.name);
    if (p->bits && p->bits->all_heads && (p->tokens || p->dims || p->maker || p->channels))
        return kvd_fail(
            err,
            "method '%s' codes all heads of a layer together: it cannot be combined with another "
            "method",
            p->bits->info.name);
    if (p->bits && p->bits->stream && p->tokens && (p->tokens->step || p->tokens->select))
        return kvd_fail(err,
                        "'%s' codes a block of entries as one stream, from which '%s' cannot %s "
                        "entries at a step: use a method that decides at the end of the prompt",
                        p->bits->info.name, p->tokens->info.name,
                        p->tokens->select ? "choose" : "drop");
    if (p->bits && p->bits->balances && p->bits->balances(&p->bits_values) &&
        (p->dims || p->maker || p->channels))
        return kvd_fail(err,
                        "'%s' balances whole heads: give balance=0 with a method of the dims axis",
                        p->bits->info.name);
    if (p->channels && p->bits && p->bits->keys_before_rope)
        return kvd_fail(err, "'%s' prunes keys after RoPE, '%s' codes them before",
                        p->channels->info.name, p->bits->info.name);
    if (p->channels && !p->channels->prune && p->bits)
        return kvd_fail(
            err,
            "'%s' projects rows anew at every step: it cannot be combined with a method of the "
            "bits axis",
            p->channels->info.name);
    if ((p->levels || (p->tokens && p->tokens->lowers)) && p->bits && p->bits->two_levels &&
        !p->bits->two_levels(&p->bits_values))
        return kvd_fail(err,
                        "'%s' gives entries at the low level as many bits as others, or more: "
                        "lower lk and lv, or raise k and v",
                        p->bits->info.name);
    if (p->tokens && p->tokens->only_lowers && !kvd_plan_two_levels(p))
        return kvd_fail(
            err,
            "entries that '%s' lowers take no fewer bits: add a method of the dims axis with p_u, "
            "or hetero",
            p->tokens->info.name);
    if (p->levels && !kvd_plan_two_levels(p))
        return kvd_fail(err, "entries that '%s' lowers take no fewer bits: give p_u, or add hetero",
                        p->levels->info.name);
    if (p->layers && p->tokens && p->tokens->repeats)
        return kvd_fail(err, "'%s' and '%s' both need a first pass over the prompts of their own",
                        p->tokens->info.name, p->layers->info.name);
    return kvd_status((p->tokens && p->tokens->merge && check_merge(p, err)) ||
                      (p->tokens && p->tokens->rebuild && check_rebuild(p, err)));
}

/* Checks each method of the plan by itself. */
static int check_methods(const kvd_plan *p, kvd_method_setup s, kvd_err *err)
{
    s.dims = p->maker ? &p->made : p->dims;
    if ((p->layers && ((p->layers->check && p->layers->check(&p->layers_values, s.config, err)) ||
                       check_layers(p, s.config, err))) ||
        check_kept(p, s.config, err))
        return -1;
    if (p->maker && p->maker->fits && p->maker->fits(&p->maker_values, &s, err))
        return kvd_in(err, "method '%s'", p->maker->info.name);
    if (p->tokens && kvd_tokens_check(p->tokens, &p->tokens_values, &s, err))
        return kvd_in(err, "method '%s'", p->tokens->info.name);
    if (p->levels && kvd_tokens_check(p->levels, &p->levels_values, &s, err))
        return kvd_in(err, "method '%s'", p->levels->info.name);
    if (p->bits && kvd_bits_check(p->bits, &p->bits_values, &s, err))
        return kvd_in(err, "method '%s'", p->bits->info.name);
    return 0;
}

int kvd_plan_check(const kvd_plan *p, const kvd_method_setup *setup, kvd_err *err)
{
    const kvd_method_setup s = setup_of(p, setup);
    kvd_plan_member all[KVD_PLAN_MEMBERS];
    const int n = kvd_plan_members(p, all);
    if (check_latent(p, setup->config, err))
        return -1;
    for (int i = 0; i < n; i++)
        if (check_needs(all[i].info, needs_of(p, all[i].info), &s, err))
            return -1;
    if (kvd_plan_check_pairs(p, err))
        return -1;
    if ((kvd_plan_needs(p) & KVD_NEEDS_PROMPT) && p->prompt == 0)
        return kvd_fail(err, "method '%s' decides at the end of a prompt: give --prompt",
                        prompt_method(p));
    return kvd_status((p->dims_low && check_low(p, p->dims, p->dims_low, err)) ||
                      (p->widths_low && check_low(p, p->widths, p->widths_low, err)) ||
                      check_methods(p, s, err));
}

static int open_methods(kvd_plan *p, kvd_method_setup *s, kvd_err *err)
{
    if (p->maker) {
        if (p->maker->make(&p->maker_values, s, &p->made, err))
            return kvd_in(err, "method '%s'", p->maker->info.name);
        p->dims = &p->made;
    }
    if (p->channels && p->channels->stacks && s->checkpoint &&
        !(p->moments = kvd_channels_moments(s->checkpoint, err)))
        return kvd_in(err, "method '%s'", p->channels->info.name);
    s->dims = p->dims;
    if (p->tokens && kvd_tokens_open(p->tokens, &p->tokens_values, s, &p->tokens_self, err))
        return kvd_in(err, "method '%s'", p->tokens->info.name);
    if (p->levels && kvd_tokens_open(p->levels, &p->levels_values, s, &p->levels_self, err))
        return kvd_in(err, "method '%s'", p->levels->info.name);
    if (p->bits && kvd_bits_open(p->bits, &p->bits_values, s, &p->bits_self, err))
        return kvd_in(err, "method '%s'", p->bits->info.name);
    return 0;
}

int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err)
{
    kvd_method_setup s = setup_of(p, setup);
    if (kvd_plan_check(p, setup, err))
        return -1;
    p->layers_values.seed = s.seed;
    if (open_kept(p, s.config, err))
        return -1;
    if (open_methods(p, &s, err)) {
        kvd_plan_close(p);
        return -1;
    }
    return 0;
}

void kvd_plan_close(kvd_plan *p)
{
    if (p->tokens && p->tokens_self)
        kvd_tokens_close(p->tokens, p->tokens_self);
    if (p->levels && p->levels_self)
        kvd_tokens_close(p->levels, p->levels_self);
    if (p->bits)
        kvd_bits_close(p->bits, p->bits_self);
    p->tokens_self = p->levels_self = p->bits_self = NULL;
    free(p->kept);
    free(p->moments);
    p->kept = NULL;
    p->moments = NULL;
    if (p->maker) {
        kvd_dims_release(&p->made);
        p->dims = NULL;
    }
}
