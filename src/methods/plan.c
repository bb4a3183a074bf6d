#include "methods/plan.h"

unsigned kvd_plan_needs(const kvd_plan *p)
{
    return (p->layers ? p->layers->needs : 0) | (p->maker ? p->maker->needs : 0) |
           (p->channels ? p->channels->needs : 0) | (p->tokens ? p->tokens->needs : 0) |
           (p->levels ? p->levels->needs : 0) | (p->bits ? p->bits->needs : 0);
}

bool kvd_plan_stepwise(const kvd_plan *p)
{
    return p->layers || p->tokens || p->channels || p->bits;
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
    const void *self;
    return p->layers || kvd_plan_ranker(p, &self);
}

const kvd_tokens_method *kvd_plan_ranker(const kvd_plan *p, const void **self)
{
    *self = p->levels ? p->levels_self : p->tokens_self;
    return p->levels ? p->levels : p->tokens && p->tokens->rank ? p->tokens : NULL;
}

double kvd_plan_entry_bits(const kvd_plan *p)
{
    return (p->tokens ? p->tokens->entry_bits : 0) + (p->levels ? p->levels->entry_bits : 0);
}

bool kvd_plan_two_levels(const kvd_plan *p)
{
    return p->dims_low || (p->bits && p->bits->two_levels);
}

bool kvd_plan_draws(const kvd_plan *p)
{
    return p->tokens && p->tokens->regularise;
}

static const char *prompt_method(const kvd_plan *p)
{
    if (p->tokens && p->tokens->needs & KVD_NEEDS_PROMPT)
        return p->tokens->name;
    if (p->levels)
        return p->levels->name;
    return p->layers ? p->layers->name : p->channels->name;
}

static int check_needs(const char *name, unsigned needs, const kvd_method_setup *s, kvd_err *err)
{
    if ((needs & KVD_NEEDS_SPECTRUM) && !s->spectrum)
        return kvd_fail(err, "method '%s' needs bases: give --spectrum", name);
    if ((needs & KVD_NEEDS_ACTIVATIONS) && !s->calibration && !s->drawn)
        return kvd_fail(err, "method '%s' needs activations of calibration text: give --calibration", name);
    if ((needs & KVD_NEEDS_FISHER) && !s->fisher)
        return kvd_fail(err, "method '%s' needs squared gradients: give --fisher", name);
    return 0;
}

/* Entries at the low level are cut further, by bases that begin alike. */
static int check_low(const kvd_plan *p, kvd_err *err)
{
    if (!p->levels && (!p->tokens || !p->tokens->lowers))
        return kvd_fail(
            err, "widths of a low level want a method that lowers entries: importance, sparsity, lower");
    if (p->bits && (p->bits->keys_before_rope || p->bits->needs & KVD_NEEDS_ACTIVATIONS))
        return kvd_fail(err, "'%s' codes entries of one width, not of two levels", p->bits->name);
    for (int i = 0; i < p->dims->n_layers * p->dims->n_kv_heads; i++) {
        const kvd_dims_head *const high = &p->dims->head[i], *const low = &p->dims_low->head[i];
        if (low->d_qk > high->d_qk || low->d_v > high->d_v)
            return kvd_fail(
                err, "layer %d, KV head %d: widths of the low level %d, %d, of the high one %d, %d",
                i / p->dims->n_kv_heads, i % p->dims->n_kv_heads, low->d_qk, low->d_v, high->d_qk, high->d_v);
    }
    return 0;
}

int kvd_plan_open(kvd_plan *p, const kvd_method_setup *setup, kvd_err *err)
{
    kvd_method_setup s = *setup;
    /* A maker's matrices or a bits method's tables are drawn, not tables of what drawn matrices leave. */
    s.drawn = s.drawn && !s.calibration && (p->bits ? p->bits->drawn && !p->maker : p->maker != NULL);
    if ((p->layers && check_needs(p->layers->name, p->layers->needs, &s, err)) ||
        (p->tokens && check_needs(p->tokens->name, p->tokens->needs, &s, err)) ||
        (p->maker && check_needs(p->maker->name, p->maker->needs, &s, err)) ||
        (p->bits && check_needs(p->bits->name, p->bits->needs, &s, err)))
        return -1;
    if (p->layers && (p->dims || p->maker || p->channels || p->bits))
        return kvd_fail(err,
                        "method '%s' goes with methods of the tokens axis alone: what it stores is not what "
                        "they would cut or code",
                        p->layers->name);
    if (p->bits && p->bits->all_heads && (p->tokens || p->dims || p->maker || p->channels))
        return kvd_fail(err, "method '%s' codes all heads of a layer together: it goes with no other method",
                        p->bits->name);
    if (p->bits && p->bits->balances && p->bits->balances(&p->bits_values) &&
        (p->dims || p->maker || p->channels))
        return kvd_fail(err, "'%s' balances whole heads: give balance=0 with a method of the dims axis",
                        p->bits->name);
    if ((kvd_plan_needs(p) & KVD_NEEDS_PROMPT) && p->prompt == 0)
        return kvd_fail(err, "method '%s' decides at the end of a prompt: give --prompt", prompt_method(p));
    if (p->channels && p->bits && p->bits->keys_before_rope)
        return kvd_fail(err, "'%s' prunes keys after RoPE, '%s' codes them before", p->channels->name,
                        p->bits->name);
    if (p->channels && p->channels->project && p->bits)
        return kvd_fail(err, "'%s' projects rows anew at every step: it goes with no method of the bits axis",
                        p->channels->name);
    if (p->tokens && p->tokens->only_lowers && !kvd_plan_two_levels(p))
        return kvd_fail(
            err,
            "nothing stores less of what '%s' lowers: give a method of the dims axis with p_u, or hetero",
            p->tokens->name);
    if (p->levels && !kvd_plan_two_levels(p))
        return kvd_fail(err, "nothing stores less of what '%s' lowers: give p_u, or hetero", p->levels->name);
    if (p->dims_low && check_low(p, err))
        return -1;
    if (p->maker) {
        if (p->maker->make(&p->maker_values, &s, &p->made, err)) {
            kvd_dims_release(&p->made);
            return kvd_in(err, "method '%s'", p->maker->name);
        }
        p->dims = &p->made;
    }
    s.dims = p->dims;
    if (p->tokens && p->tokens->open && p->tokens->open(&p->tokens_values, &s, &p->tokens_self, err)) {
        kvd_plan_close(p);
        return kvd_in(err, "method '%s'", p->tokens->name);
    }
    if (p->levels && p->levels->open(&p->levels_values, &s, &p->levels_self, err)) {
        kvd_plan_close(p);
        return kvd_in(err, "method '%s'", p->levels->name);
    }
    if (p->bits && p->bits->open && p->bits->open(&p->bits_values, &s, &p->bits_self, err)) {
        kvd_plan_close(p);
        return kvd_in(err, "method '%s'", p->bits->name);
    }
    return 0;
}

void kvd_plan_close(kvd_plan *p)
{
    if (p->tokens && p->tokens->close && p->tokens_self)
        p->tokens->close(p->tokens_self);
    if (p->bits && p->bits->close && p->bits_self)
        p->bits->close(p->bits_self);
    p->tokens_self = p->levels_self = p->bits_self = NULL;
    if (p->maker) {
        kvd_dims_release(&p->made);
        p->dims = NULL;
    }
}
