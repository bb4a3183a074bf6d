#include "model/checkpoint/family.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/families/families.h"

static const kvd_family *const families[] = {
    kvd_llama_families,  kvd_qwen_families,    kvd_opt_families,
    kvd_falcon_families, kvd_gemma_families,   kvd_olmo_families,
    kvd_glm_families,    kvd_gpt_oss_families, kvd_deepseek_families};
enum { N_FILES = sizeof families / sizeof families[0] };

/* tensor names that most model families use */
static const kvd_stored usual[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_Q, "self_attn.q_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_K, "self_attn.k_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_V, "self_attn.v_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_Q, "self_attn.q_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_K, "self_attn.k_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_O, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_GATE, "mlp.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_UP, "mlp.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.down_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_DOWN, "post_feedforward_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_ROUTER, "mlp.gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_GATE, "mlp.shared_experts.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_UP, "mlp.shared_experts.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_DOWN, "mlp.shared_experts.down_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_SCALE, "mlp.shared_expert_gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_SINKS, "self_attn.sinks", KVD_ROWS_ALL, NULL},
    {KVD_PART_ROUTER_BIAS, "mlp.gate.e_score_correction_bias", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "model.embed_tokens", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "model.norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_HEAD, "lm_head", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "mlp.experts.#.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_UP, "mlp.experts.#.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_DOWN, "mlp.experts.#.down_proj", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const kvd_family *kvd_family_at(size_t i)
{
    for (size_t t = 0; t < N_FILES; t++)
        for (const kvd_family *f = families[t]; f->name; f++)
            if (i-- == 0)
                return f;
    return NULL;
}

const kvd_family *kvd_family_find(const char *model_type, const char *architecture)
{
    for (size_t t = 0; t < N_FILES; t++)
        for (const kvd_family *f = families[t]; f->name; f++)
            if ((!model_type || strcmp(model_type, f->name) == 0 ||
                 (f->other_name && strcmp(model_type, f->other_name) == 0)) &&
                (!architecture || strcmp(architecture, f->architecture) == 0))
                return f;
    return NULL;
}

const kvd_family *kvd_family_of(const kvd_config *c)
{
    const kvd_family *f =
        kvd_family_find(strcmp(c->family, "llama2.c") ? c->family : "llama", NULL);
    assert(f);
    return f;
}

static bool has_bias(const kvd_config *c, kvd_part part)
{
    switch (part) {
    case KVD_PART_NORM_ATTENTION:
    case KVD_PART_NORM_FFN:
    case KVD_PART_NORM_O:
    case KVD_PART_NORM_DOWN:
    case KVD_PART_NORM_FINAL:
        return c->norm == KVD_NORM_LAYER && !c->norm_no_bias;
    case KVD_PART_Q:
    case KVD_PART_K:
    case KVD_PART_V:
        return c->bias_qkv;
    case KVD_PART_O:
        return c->bias_o;
    case KVD_PART_GATE:
    case KVD_PART_UP:
    case KVD_PART_DOWN:
        return c->bias_ffn;
    case KVD_PART_ROUTER:
    case KVD_PART_EXPERT_GATE:
    case KVD_PART_EXPERT_UP:
    case KVD_PART_EXPERT_DOWN:
        return c->bias_experts;
    default:
        return false;
    }
}

static bool is_of_expert(kvd_part part)
{
    return part >= KVD_PART_EXPERT_GATE;
}

static bool in_layer(const kvd_config *c, kvd_part part, int layer)
{
    switch (part) {
    case KVD_PART_GATE:
    case KVD_PART_UP:
    case KVD_PART_DOWN:
        return !kvd_config_routed(c, layer);
    case KVD_PART_ROUTER:
    case KVD_PART_ROUTER_BIAS:
    case KVD_PART_SHARED_GATE:
    case KVD_PART_SHARED_UP:
    case KVD_PART_SHARED_DOWN:
    case KVD_PART_SHARED_SCALE:
    case KVD_PART_EXPERT_GATE:
    case KVD_PART_EXPERT_UP:
    case KVD_PART_EXPERT_DOWN:
        return kvd_config_routed(c, layer);
    default:
        return true;
    }
}

static size_t layers_with(const kvd_config *c, kvd_part part)
{
    size_t n = 0;
    for (int l = 0; l < c->n_layers; l++)
        n += in_layer(c, part, l);
    return n;
}

static bool has_part(const kvd_config *c, kvd_part part)
{
    const bool narrow = kvd_config_d_embed(c) != c->d_model;
    switch (part) {
    case KVD_PART_NORM_Q:
    case KVD_PART_NORM_K:
        return c->qk_norm;
    case KVD_PART_NORM_ATTENTION:
        return c->order != KVD_ORDER_BRANCH;
    case KVD_PART_NORM_FFN:
        return !c->shared_norm && c->order != KVD_ORDER_BRANCH;
    case KVD_PART_NORM_O:
    case KVD_PART_NORM_DOWN:
        return kvd_config_norms_branches(c);
    case KVD_PART_GATE:
        return kvd_config_gated(c);
    case KVD_PART_ROUTER:
    case KVD_PART_EXPERT_GATE:
    case KVD_PART_EXPERT_UP:
    case KVD_PART_EXPERT_DOWN:
        return c->n_experts > 0;
    case KVD_PART_SHARED_GATE:
    case KVD_PART_SHARED_UP:
    case KVD_PART_SHARED_DOWN:
        return c->d_shared > 0;
    case KVD_PART_SHARED_SCALE:
        return c->shared_gate;
    case KVD_PART_SINKS:
        return c->sinks;
    case KVD_PART_ROUTER_BIAS:
        return c->route_sigmoid;
    case KVD_PART_K:
    case KVD_PART_V:
        return !c->latent;
    case KVD_PART_Q_DOWN:
    case KVD_PART_NORM_Q_DOWN:
        return c->q_rank > 0;
    case KVD_PART_LATENT:
    case KVD_PART_NORM_LATENT:
    case KVD_PART_LATENT_UP:
        return c->latent > 0;
    case KVD_PART_POSITIONS:
        return c->positions == KVD_POSITIONS_LEARNED;
    case KVD_PART_PROJECT_IN:
    case KVD_PART_PROJECT_OUT:
        return narrow;
    case KVD_PART_NORM_FINAL:
        return !c->no_final_norm;
    default:
        return true;
    }
}

bool kvd_part_shape(const kvd_config *c, kvd_part part, bool bias, size_t *rows, size_t *cols)
{
    const size_t d = (size_t)c->d_model, ffn = (size_t)c->d_ffn,
                 embed = (size_t)kvd_config_d_embed(c);
    const size_t d_head = (size_t)c->d_head, q = (size_t)c->n_heads * d_head;
    const size_t kv = (size_t)c->n_kv_heads * d_head, vocab = (size_t)c->vocab_size;
    const size_t experts = (size_t)c->n_experts, expert = (size_t)c->d_expert,
                 shared = (size_t)c->d_shared;
    const size_t heads = (size_t)c->n_heads, rope = (size_t)c->rope_dims,
                 latent = (size_t)c->latent, nope = (size_t)c->d_nope, value = (size_t)c->d_value,
                 q_rank = (size_t)c->q_rank;
    const size_t shape[KVD_N_ALL_PARTS][2] = {
        [KVD_PART_NORM_ATTENTION] = {d, 0},
        [KVD_PART_Q] = {latent ? heads * (nope + rope) : q, q_rank ? q_rank : d},
        [KVD_PART_K] = {kv, d},
        [KVD_PART_V] = {kv, d},
        [KVD_PART_NORM_Q] = {c->qk_norm_whole ? q : d_head, 0},
        [KVD_PART_NORM_K] = {c->qk_norm_whole ? kv : d_head, 0},
        [KVD_PART_O] = {d, latent ? heads * value : q},
        [KVD_PART_NORM_O] = {d, 0},
        [KVD_PART_NORM_FFN] = {d, 0},
        [KVD_PART_GATE] = {ffn, d},
        [KVD_PART_UP] = {ffn, d},
        [KVD_PART_DOWN] = {d, ffn},
        [KVD_PART_NORM_DOWN] = {d, 0},
        [KVD_PART_ROUTER] = {experts, d},
        [KVD_PART_SHARED_GATE] = {shared, d},
        [KVD_PART_SHARED_UP] = {shared, d},
        [KVD_PART_SHARED_DOWN] = {d, shared},
        [KVD_PART_SHARED_SCALE] = {1, d},
        [KVD_PART_SINKS] = {heads, 0},
        [KVD_PART_ROUTER_BIAS] = {experts, 0},
        [KVD_PART_Q_DOWN] = {q_rank, d},
        [KVD_PART_NORM_Q_DOWN] = {q_rank, 0},
        [KVD_PART_LATENT] = {latent + rope, d},
        [KVD_PART_NORM_LATENT] = {latent, 0},
        [KVD_PART_LATENT_UP] = {heads * (nope + value), latent},
        [KVD_PART_EXPERT_GATE] = {expert, d},
        [KVD_PART_EXPERT_UP] = {expert, d},
        [KVD_PART_EXPERT_DOWN] = {d, expert},
        [KVD_PART_EMBEDDING] = {vocab, embed},
        [KVD_PART_POSITIONS] = {(size_t)c->max_positions + 2, d},
        [KVD_PART_PROJECT_IN] = {d, embed},
        [KVD_PART_NORM_FINAL] = {d, 0},
        [KVD_PART_PROJECT_OUT] = {embed, d},
        [KVD_PART_HEAD] = {vocab, embed},
    };
    *rows = *cols = 0;
    if (!has_part(c, part) || (bias && !has_bias(c, part)))
        return false;
    *rows = shape[part][0];
    *cols = bias ? 0 : shape[part][1];
    return true;
}

static const kvd_stored *stored_of(const kvd_family *f, const kvd_config *c, kvd_part part)
{
    for (const kvd_stored *s = f->stored; s && s->name; s++)
        if (s->part == part && (!s->when || s->when(c)))
            return s;
    for (const kvd_stored *s = usual; s->name; s++)
        if (s->part == part)
            return s;
    return NULL;
}

/* Finds the rows of one matrix in a tensor that stacks several matrices. */
static void stack(const kvd_family *f, const kvd_config *c, const kvd_stored *s, bool bias,
                  kvd_place *place)
{
    place->first = place->stored_rows = 0;
    for (int p = 0; p < KVD_N_ALL_PARTS; p++) {
        const kvd_stored *other = stored_of(f, c, (kvd_part)p);
        size_t rows, cols;
        if (!other || strcmp(other->name, s->name) != 0 ||
            !kvd_part_shape(c, (kvd_part)p, bias, &rows, &cols))
            continue;
        place->first += (kvd_part)p < s->part ? rows : 0;
        place->stored_rows += rows;
    }
}

static void group(const kvd_config *c, const kvd_stored *s, kvd_place *place)
{
    const size_t d = (size_t)c->d_head, queries = (size_t)kvd_config_group(c);
    assert(s->part == KVD_PART_Q || s->part == KVD_PART_K || s->part == KVD_PART_V);
    place->first = s->part == KVD_PART_Q   ? 0
                   : s->part == KVD_PART_K ? queries * d
                                           : (queries + 1) * d;
    place->block = s->part == KVD_PART_Q ? queries * d : d;
    place->stride = (queries + 2) * d;
    place->stored_rows = (size_t)c->n_kv_heads * place->stride;
}

static void interleave(const kvd_stored *s, kvd_place *place)
{
    place->first = s->part == KVD_PART_EXPERT_UP;
    place->block = 1;
    place->stride = 2;
    place->stored_rows = 2 * place->rows;
}

static void name_in_layer(const kvd_family *f, const kvd_stored *s, const char *ending, int layer,
                          int expert, char *to, size_t size)
{
    const char *const mark = strchr(s->name, '#');
    if (s->part == KVD_PART_SINKS || s->part == KVD_PART_ROUTER_BIAS)
        (void)snprintf(to, size, "%s%d.%s", f->layers, layer, s->name);
    else if (mark)
        (void)snprintf(to, size, "%s%d.%.*s%d%s.%s", f->layers, layer, (int)(mark - s->name),
                       s->name, expert, mark + 1, ending);
    else
        (void)snprintf(to, size, "%s%d.%s.%s", f->layers, layer, s->name, ending);
}

bool kvd_expert_place(const kvd_config *c, kvd_part part, bool bias, int layer, int expert,
                      kvd_place *place)
{
    const kvd_family *f = kvd_family_of(c);
    const kvd_stored *s = stored_of(f, c, part);
    const bool of_layer = part < KVD_N_LAYER_PARTS || is_of_expert(part);
    memset(place, 0, sizeof *place);
    if (!kvd_part_shape(c, part, bias, &place->rows, &place->cols) ||
        (of_layer && !in_layer(c, part, layer)))
        return false;
    assert(s);
    const char *ending = bias ? "bias" : "weight";
    if (of_layer)
        name_in_layer(f, s, ending, layer, expert, place->name, sizeof place->name);
    else
        (void)snprintf(place->name, sizeof place->name, "%s.%s", s->name, ending);
    place->stored_rows = place->block = place->stride = place->rows;
    if (s->rows == KVD_ROWS_STACKED)
        stack(f, c, s, bias, place);
    else if (s->rows == KVD_ROWS_GROUPED)
        group(c, s, place);
    else if (s->rows == KVD_ROWS_INTERLEAVED)
        interleave(s, place);
    return true;
}

bool kvd_part_place(const kvd_config *c, kvd_part part, bool bias, int layer, kvd_place *place)
{
    assert(part < KVD_N_PARTS);
    return kvd_expert_place(c, part, bias, layer, 0, place);
}

/* Splits the name of a tensor, for example "model.layers.12.mlp.up_proj.weight". Sets *layer to 12,
 * and returns "mlp.up_proj.weight". Returns NULL if the name has no layer. */
static const char *split_layer(const kvd_family *f, const char *name, unsigned long *layer)
{
    const size_t len = strlen(f->layers);
    char *rest;
    if (strncmp(name, f->layers, len) != 0 || name[len] < '0' || name[len] > '9')
        return NULL;
    *layer = strtoul(name + len, &rest, 10);
    return *rest == '.' ? rest + 1 : NULL;
}

/* Returns the expert number in a tensor name, such as 7 for "mlp.experts.7.up_proj.weight". Returns
 * -1 for a tensor name without an expert number. */
static int expert_in(const kvd_config *c, const char *of_layer, const kvd_stored *s)
{
    const char *const mark = s ? strchr(s->name, '#') : NULL;
    const size_t len = mark ? (size_t)(mark - s->name) : 0;
    if (!mark || strncmp(of_layer, s->name, len) != 0 || of_layer[len] < '0' || of_layer[len] > '9')
        return -1;
    const unsigned long n = strtoul(of_layer + len, NULL, 10);
    return n < (unsigned long)c->n_experts ? (int)n : -1;
}

bool kvd_family_place(const kvd_config *c, const char *tensor, kvd_part *part, bool *bias,
                      kvd_place *place)
{
    const kvd_family *f = kvd_family_of(c);
    unsigned long layer = 0;
    const char *of_layer = split_layer(f, tensor, &layer);
    if (of_layer && layer >= (unsigned long)c->n_layers)
        return false;
    for (int p = 0; p < KVD_N_ALL_PARTS; p++) {
        const bool expert = is_of_expert((kvd_part)p);
        if ((of_layer != NULL) != (p < KVD_N_LAYER_PARTS || expert))
            continue;
        const int number = expert ? expert_in(c, of_layer, stored_of(f, c, (kvd_part)p)) : 0;
        for (int b = 0; b < 2 && number >= 0; b++)
            if (kvd_expert_place(c, (kvd_part)p, b, (int)layer, number, place) &&
                strcmp(place->name, tensor) == 0) {
                *part = (kvd_part)p;
                *bias = b;
                return true;
            }
    }
    return false;
}

/* Returns true if `list`, names separated by spaces, contains the name. */
static bool is_listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

bool kvd_family_knows(const kvd_config *c, const char *tensor)
{
    const kvd_family *f = kvd_family_of(c);
    unsigned long layer = 0;
    const char *of_layer = split_layer(f, tensor, &layer),
               *ignored = of_layer ? f->ignored_layer : f->ignored;
    if (of_layer && layer >= (unsigned long)c->n_layers)
        return layer - (unsigned long)c->n_layers < (unsigned long)c->extra_layers;
    if (is_listed(ignored, of_layer ? of_layer : tensor))
        return true;
    kvd_part part;
    bool bias;
    kvd_place place;
    return kvd_family_place(c, tensor, &part, &bias, &place);
}

size_t kvd_family_elements(const kvd_config *c)
{
    size_t sum = 0;
    for (int p = 0; p < KVD_N_ALL_PARTS; p++)
        for (int bias = 0; bias < 2; bias++) {
            size_t rows, cols, times = 1;
            if (p < KVD_N_LAYER_PARTS || is_of_expert((kvd_part)p))
                times = layers_with(c, (kvd_part)p);
            if (is_of_expert((kvd_part)p))
                times *= (size_t)c->n_experts;
            if ((p != KVD_PART_HEAD || !c->tied_head) &&
                kvd_part_shape(c, (kvd_part)p, bias, &rows, &cols))
                sum += times * rows * (cols ? cols : 1);
        }
    return sum;
}
