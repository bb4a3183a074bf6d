/* Records Q, K and V of prompts once, so that methods need not compute them again. */
#include "evaluate/model_runner.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { Q, K, V, K_PRE, N_KEPT };

size_t kvd_prompt_rows(size_t prompt, size_t n)
{
    return prompt < n ? prompt : n - 1;
}

static size_t width_of(const kvd_config *c, int which)
{
    return (size_t)(which == Q ? c->n_heads : c->n_kv_heads) * (size_t)c->d_head;
}

size_t kvd_kept_prompts_row_bytes(const kvd_config *c)
{
    size_t width = 0;
    for (int i = 0; i < N_KEPT; i++)
        width += width_of(c, i);
    return (size_t)c->n_layers * width * sizeof(float);
}

int kvd_kept_prompts_init(kvd_kept_prompts *p, const kvd_config *c, size_t prompt, size_t rows,
                          size_t max_tokens, kvd_err *err)
{
    *p = (kvd_kept_prompts){.config = c, .prompt = prompt, .rows = rows, .max_tokens = max_tokens};
    bool failed = !(p->out = malloc(max_tokens * width_of(c, Q) * sizeof *p->out));
    if (c->sinks)
        failed =
            !(p->sinks = malloc((size_t)c->n_layers * (size_t)c->n_heads * sizeof *p->sinks)) ||
            failed;
    for (int i = 0; i < N_KEPT; i++)
        failed =
            !(p->kept[i] = malloc((size_t)c->n_layers * rows * width_of(c, i) * sizeof(float))) ||
            !(p->whole[i] = malloc(max_tokens * width_of(c, i) * sizeof(float))) || failed;
    return failed ? kvd_no_memory(err, "rows of prompts", rows * kvd_kept_prompts_row_bytes(c)) : 0;
}

void kvd_kept_prompts_release(kvd_kept_prompts *p)
{
    for (int i = 0; i < N_KEPT; i++) {
        free(p->kept[i]);
        free(p->whole[i]);
    }
    free(p->sinks);
    free(p->out);
    *p = (kvd_kept_prompts){0};
}

static float *kept_at(const kvd_kept_prompts *p, int which, int layer, size_t row)
{
    return p->kept[which] + ((size_t)layer * p->rows + p->first + row) * width_of(p->config, which);
}

static float *sinks_at(const kvd_kept_prompts *p, int layer)
{
    return p->sinks ? p->sinks + (size_t)layer * (size_t)p->config->n_heads : NULL;
}

int kvd_kept_prompts_save(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    kvd_kept_prompts *const p = ctx;
    const float *const from[N_KEPT] = {in->q, in->k, in->v, in->k_pre};
    size_t at = 0;
    if (p->sinks)
        memcpy(sinks_at(p, in->layer), in->sinks, (size_t)p->config->n_heads * sizeof *p->sinks);
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t n = kvd_prompt_rows(p->prompt, in->offset[s + 1] - in->offset[s]);
        if (n > p->rows - p->first - at)
            return kvd_fail(err, "prompts are kept of %zu rows, and there are more", p->rows);
        for (int i = 0; i < N_KEPT; i++) {
            const size_t width = width_of(p->config, i);
            memcpy(kept_at(p, i, in->layer, at), from[i] + in->offset[s] * width,
                   n * width * sizeof(float));
        }
        at += n;
    }
    return 0;
}

int kvd_kept_prompts_show(kvd_kept_prompts *p, const kvd_batch *prompts, kvd_attention *hook,
                          kvd_err *err)
{
    const size_t n = prompts->offset[prompts->n_sequences];
    for (int l = 0; l < p->config->n_layers; l++) {
        const kvd_attention_in in = {.config = p->config,
                                     .layer = l,
                                     .n_sequences = prompts->n_sequences,
                                     .offset = prompts->offset,
                                     .first_sequence = prompts->first_sequence,
                                     .n_tokens = n,
                                     .q = kept_at(p, Q, l, 0),
                                     .k = kept_at(p, K, l, 0),
                                     .v = kept_at(p, V, l, 0),
                                     .k_pre = kept_at(p, K_PRE, l, 0),
                                     .window = kvd_config_window(p->config, l),
                                     .sinks = sinks_at(p, l)};
        if (hook->run(hook, &in, p->out, err))
            return -1;
    }
    return 0;
}

/* Copies rows of the tokens after the prompts into an array of whole sequences. If `out` is true,
 * copies these rows out of such an array instead. */
static void move_steps(const kvd_attention_in *in, const size_t *offset, size_t width,
                       const float *from, float *to, bool out)
{
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t n = in->offset[s + 1] - in->offset[s], step = in->offset[s] * width,
                     all = (offset[s + 1] - n) * width;
        memcpy(to + (out ? step : all), from + (out ? all : step), n * width * sizeof *to);
    }
}

static int run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_kept_prompts *const p =
        (kvd_kept_prompts *)(void *)((char *)self - offsetof(kvd_kept_prompts, hook));
    const float *const steps[N_KEPT] = {in->q, in->k, in->v, in->k_pre};
    kvd_attention_in whole = *in;
    for (int i = 0; i < N_KEPT; i++) {
        const size_t width = width_of(p->config, i);
        if (!steps[i])
            continue;
        for (size_t s = 0, at = 0; s < in->n_sequences; at += in->start[s++])
            memcpy(p->whole[i] + p->offset[s] * width, kept_at(p, i, in->layer, at),
                   in->start[s] * width * sizeof(float));
        move_steps(in, p->offset, width, steps[i], p->whole[i], false);
    }
    whole.offset = p->offset;
    whole.n_tokens = p->offset[in->n_sequences];
    whole.q = p->whole[Q];
    whole.k = p->whole[K];
    whole.v = p->whole[V];
    whole.q_pre = NULL;
    whole.k_pre = in->k_pre ? p->whole[K_PRE] : NULL;
    whole.start = whole.whole = NULL;
    if (p->inner->run(p->inner, &whole, p->out, err))
        return -1;
    move_steps(in, p->offset, width_of(p->config, Q), p->out, out, true);
    return 0;
}

/* Copies batch *b to *steps without the prompt of each sequence. The caller frees *lengths and
 * *ids. */
static int cut_batch(const kvd_kept_prompts *p, const kvd_batch *b, kvd_batch *steps,
                     size_t **lengths, uint32_t **ids, kvd_err *err)
{
    const size_t n = b->n_sequences, tokens = b->offset[n];
    size_t *const start = *lengths = malloc((3 * n + 1) * sizeof *start);
    uint32_t *const id = *ids = malloc(tokens * sizeof *id);
    if (!start || !id)
        return kvd_no_memory(err, "a batch after its prompts", tokens * sizeof *id);
    size_t *const whole = start + n, *const offset = whole + n;
    offset[0] = 0;
    for (size_t s = 0; s < n; s++) {
        whole[s] = b->offset[s + 1] - b->offset[s];
        start[s] = kvd_prompt_rows(p->prompt, whole[s]);
        offset[s + 1] = offset[s] + whole[s] - start[s];
        memcpy(id + offset[s], b->id + b->offset[s] + start[s], (whole[s] - start[s]) * sizeof *id);
    }
    *steps = (kvd_batch){.n_sequences = n,
                         .offset = offset,
                         .first_sequence = b->first_sequence,
                         .id = id,
                         .start = start,
                         .whole = whole};
    return 0;
}

int kvd_kept_prompts_run(kvd_kept_prompts *p, kvd_forward *f, const kvd_batch *b,
                         kvd_attention *inner, float *hidden, kvd_err *err)
{
    const size_t d_model = (size_t)p->config->d_model;
    kvd_batch steps;
    size_t *lengths;
    uint32_t *ids;
    p->hook = (kvd_attention){.run = run, .wants_pre = inner->wants_pre};
    p->inner = inner;
    p->offset = b->offset;
    int status = cut_batch(p, b, &steps, &lengths, &ids, err);
    status = status || kvd_forward_run(f, &steps, &p->hook, -1, hidden, err);
    for (size_t s = b->n_sequences; !status && s-- > 0;) {
        const size_t n = steps.offset[s + 1] - steps.offset[s];
        memmove(hidden + (b->offset[s + 1] - n) * d_model, hidden + steps.offset[s] * d_model,
                n * d_model * sizeof *hidden);
    }
    free(lengths);
    free(ids);
    return status ? -1 : 0;
}
