#include "evaluate/tasks/benchmark_run.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const kvd_compress_at_words[3] = {"prompt", "context", NULL};
const char *const kvd_benchmark_turns_words[3] = {"follow", "apart", NULL};

static int encode(const kvd_benchmark_run *r, const char *text, size_t len, bool special,
                  kvd_ids *ids, kvd_err *err)
{
    return kvd_tokenizer_encode(r->tokenizer, text, len, special, ids, err);
}

/* Returns the prompt for a question, in the chat template if there is one. *split: number of bytes
 * before the question. */
static char *turn_text(const kvd_benchmark_run *r, const char *context, const kvd_benchmark_turn *t,
                       bool first, size_t *split, kvd_err *err)
{
    char *user, *whole = NULL;
    if (asprintf(&user, "%s%s", context, t->question) < 0) {
        kvd_no_memory(err, "a prompt", strlen(context));
        return NULL;
    }
    const kvd_chat_pieces p = kvd_chat_around(r->settings.chat, user, first);
    const size_t begin = (size_t)(p.text - user), end = begin + p.len, n = strlen(context);
    *split = n < begin ? 0 : (n < end ? n : end) - begin;
    for (size_t i = 0; i < sizeof p.before / sizeof *p.before; i++)
        *split += strlen(p.before[i]);
    if (asprintf(&whole, "%s%s%s%.*s%s%s", p.before[0], p.before[1], p.before[2], (int)p.len,
                 p.text, p.after, t->answer_prefix) < 0) {
        kvd_no_memory(err, "a prompt", p.len);
        whole = NULL;
    }
    free(user);
    return whole;
}

static int encode_later(const kvd_benchmark_run *r, const kvd_benchmark_turn *t, kvd_ids *ids,
                        kvd_err *err)
{
    size_t split;
    if (r->settings.chat && r->settings.chat->one_turn)
        return kvd_fail(err,
                        "the chat template of '%s' removes reasoning from earlier answers, which "
                        "the cache holds: use --turns apart",
                        r->settings.chat->name);
    char *const text = turn_text(r, "", t, false, &split, err);
    const int status = text ? encode(r, text, strlen(text), false, ids, err) : -1;
    free(text);
    return status;
}

/* Tokenizes a prompt. `prompt` receives the tokens before the place where the cache is compressed,
 * `question` those after it. */
static int encode_pieces(const kvd_benchmark_run *r, const kvd_benchmark_item *x, size_t turn,
                         kvd_ids *prompt, kvd_ids *question, kvd_err *err)
{
    const bool special = !r->settings.no_special && !r->settings.chat;
    size_t split;
    char *const text = turn_text(r, x->context, &x->turn[turn], true, &split, err);
    int status = text ? 0 : -1;
    if (!status && r->settings.compress_at == KVD_COMPRESS_CONTEXT) {
        status = encode(r, text, split, special, prompt, err) ||
                 encode(r, text + split, strlen(text + split), false, question, err);
        if (!status && !question->n)
            status = kvd_fail(err, "--compress-at context: the item has no question apart "
                                   "from its context");
    } else if (!status)
        status = encode(r, text, strlen(text), special, prompt, err);
    free(text);
    return status ? -1 : 0;
}

/* Cuts tokens out of the middle of `prompt`, so that `prompt`, `question` and answers have at most
 * max_len tokens. `taken`: number of tokens for answers and later questions. */
static int cut_middle(kvd_ids *prompt, const kvd_ids *question, size_t max_len, size_t taken,
                      bool *cut, kvd_err *err)
{
    const size_t room = max_len > taken ? max_len - taken : 0;
    const size_t all = prompt->n + question->n, half = room / 2;
    if (all <= room)
        return 0;
    if (question->n >= half || !half)
        return kvd_fail(
            err,
            "the prompt has %zu tokens and %zu after its context, but answers and later questions "
            "take %zu of --seq-len %zu; raise --seq-len or lower --max-new-tokens",
            prompt->n, question->n, taken, max_len);
    const size_t tail = half - question->n;
    memmove(prompt->id + half, prompt->id + prompt->n - tail, tail * sizeof *prompt->id);
    prompt->n = half + tail;
    *cut = true;
    return 0;
}

static int add_answer(kvd_benchmark_run *r, kvd_sequences *b, size_t item, size_t turn, bool last,
                      kvd_err *err)
{
    const size_t n = r->items->item[item].max_new_tokens;
    kvd_benchmark_answer *const grown = realloc(r->answer, (r->n_answers + 1) * sizeof *grown);
    if (!grown)
        return kvd_no_memory(err, "answers", (r->n_answers + 1) * sizeof *grown);
    r->answer = grown;
    grown[r->n_answers++] = (kvd_benchmark_answer){.item = item,
                                                   .turn = turn,
                                                   .sequence = b->n,
                                                   .at = b->forced.n,
                                                   .end = b->forced.n + n,
                                                   .last = last};
    for (size_t i = 0; i < n; i++)
        if (kvd_ids_push(&b->forced, KVD_FREE_TOKEN, err))
            return -1;
    return 0;
}

static int add_sequence(kvd_benchmark_run *r, kvd_sequences *b, size_t item, size_t first,
                        size_t end, kvd_err *err)
{
    const kvd_benchmark_item *const x = &r->items->item[item];
    kvd_ids prompt = {0}, question = {0}, *const later = calloc(end - first + 1, sizeof *later);
    size_t taken = (end - first) * x->max_new_tokens;
    int status = later ? 0 : kvd_no_memory(err, "questions", (end - first) * sizeof *later);
    status = status || encode_pieces(r, x, first, &prompt, &question, err);
    for (size_t t = first + 1; !status && t < end; t++) {
        status = encode_later(r, &x->turn[t], &later[t - first], err);
        taken += later[t - first].n;
    }
    status =
        status || cut_middle(&prompt, &question, r->settings.max_len, taken, &r->cut[item], err);
    if (!status && !prompt.n)
        status = kvd_fail(err, "the prompt has no tokens");
    status = status || kvd_ids_append(&b->prompt, prompt.id, prompt.n, err) ||
             kvd_ids_append(&b->forced, question.id, question.n, err);
    for (size_t t = first; !status && t < end; t++)
        status = (t > first &&
                  kvd_ids_append(&b->forced, later[t - first].id, later[t - first].n, err)) ||
                 add_answer(r, b, item, t, t + 1 == end, err);
    status = status || kvd_sequences_end(b, 0, err);
    for (size_t t = 0; later && t < end - first; t++)
        kvd_ids_release(&later[t]);
    free(later);
    kvd_ids_release(&prompt);
    kvd_ids_release(&question);
    return status ? -1 : 0;
}

static int ended(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err);

static int make_sequences(kvd_benchmark_run *r, kvd_err *err)
{
    kvd_sequences b = {0};
    int status = 0;
    for (size_t i = 0; !status && i < r->items->n; i++) {
        const kvd_benchmark_item *const x = &r->items->item[i];
        const bool apart = r->settings.turns == KVD_TURNS_APART;
        for (size_t t = 0; !status && t < x->n_turns; t = apart ? t + 1 : x->n_turns)
            status = add_sequence(r, &b, i, t, apart ? t + 1 : x->n_turns, err);
        if (status)
            status = kvd_in(err, "task %s, item %s", x->task, x->id);
    }
    r->run = kvd_sequences_take(&b);
    r->run.ended = ended;
    r->run.ended_ctx = r;
    return status ? -1 : 0;
}

static int chat_token(const kvd_benchmark_run *r, const char *text, uint32_t *id, kvd_err *err)
{
    kvd_ids ids = {0};
    int status = encode(r, text, strlen(text), false, &ids, err);
    if (!status && ids.n != 1)
        status = kvd_fail(err,
                          "--chat %s: the tokenizer has no token '%s' of this form: choose the "
                          "form that the model was trained with, or --chat none",
                          r->settings.chat->name, text);
    if (!status)
        *id = ids.id[0];
    kvd_ids_release(&ids);
    return status;
}

static int find_chat_tokens(kvd_benchmark_run *r, kvd_err *err)
{
    const kvd_chat *const chat = r->settings.chat;
    uint32_t bos;
    return chat && ((*chat->bos && chat_token(r, chat->bos, &bos, err)) ||
                    chat_token(r, chat->stop, &r->chat_stop, err));
}

int kvd_benchmark_run_init(kvd_benchmark_run *r, const kvd_benchmark *items,
                           const kvd_checkpoint *c, const kvd_tokenizer *tokenizer,
                           const kvd_benchmark_run_settings *settings, kvd_err *err)
{
    size_t longest = 1;
    *r = (kvd_benchmark_run){.items = items,
                             .config = kvd_checkpoint_config(c),
                             .tokenizer = tokenizer,
                             .settings = *settings};
    if (!(r->cut = calloc(items->n + 1, sizeof *r->cut)))
        return kvd_no_memory(err, "items", items->n);
    if (find_chat_tokens(r, err) || make_sequences(r, err))
        return -1;
    for (size_t s = 0; s < r->run.n_sequences; s++) {
        const size_t n =
            r->run.offset[s + 1] - r->run.offset[s] + r->run.end[s + 1] - r->run.end[s];
        longest = n > longest ? n : longest;
    }
    kvd_generator_spec spec = settings->generator;
    spec.max_len = longest;
    r->generator = kvd_generator_new(c, &spec, err);
    return r->generator ? 0 : -1;
}

void kvd_benchmark_run_release(kvd_benchmark_run *r)
{
    kvd_continuations_release(&r->run);
    free(r->answer);
    free(r->cut);
    kvd_generator_free(r->generator);
    *r = (kvd_benchmark_run){0};
}

static bool is_end(const kvd_benchmark_run *r, uint32_t token)
{
    return kvd_config_is_eos(r->config, token) || (r->settings.chat && token == r->chat_stop);
}

/* Returns the text of an answer up to its stop text. *stopped: true if the stop text was found. */
static char *answer_text(const kvd_benchmark_run *r, const kvd_benchmark_item *x,
                         const uint32_t *token, size_t n, bool *stopped, kvd_err *err)
{
    size_t len;
    char *const text = kvd_tokenizer_decode(r->tokenizer, token, n, false, &len, err);
    *stopped = false;
    if (!text || !*x->stop)
        return text;
    char *const from = text + (strcmp(x->stop, "\n") ? 0 : strspn(text, "\n"));
    char *const stop = strstr(from, x->stop);
    *stopped = stop != NULL;
    if (stop)
        *stop = '\0';
    memmove(text, from, strlen(from) + 1);
    return text;
}

static int ended(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err)
{
    const kvd_benchmark_run *const r = ctx;
    size_t low = 0, high = r->n_answers;
    bool stopped;
    (void)sequence;
    /* An end token ends the answer. Returns 2 if the chat template adds this token to the cache
     * later, else 1. */
    if (is_end(r, token[at]))
        return r->settings.chat ? 2 : 1;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (r->answer[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    const kvd_benchmark_answer *const a = &r->answer[low];
    const kvd_benchmark_item *const x = &r->items->item[a->item];
    if (!*x->stop)
        return 0;
    char *const text = answer_text(r, x, token + a->at, at + 1 - a->at, &stopped, err);
    free(text);
    return !text ? -1 : stopped;
}

static int score(const kvd_benchmark_run *r, const uint32_t *token, kvd_benchmark_result *out,
                 kvd_err *err)
{
    for (size_t k = 0; k < r->n_answers; k++) {
        const kvd_benchmark_answer *const a = &r->answer[k];
        const kvd_benchmark_item *const x = &r->items->item[a->item];
        const kvd_benchmark_turn *const t = &x->turn[a->turn];
        const kvd_metric_key key = {t->reference, t->n_references, x->choice, x->n_choices};
        bool stopped;
        size_t n = 0;
        while (a->at + n < a->end && token[a->at + n] != KVD_FREE_TOKEN)
            n++;
        out->n_tokens[k] = n;
        n -= n && is_end(r, token[a->at + n - 1]);
        if (!(out->text[k] = answer_text(r, x, token + a->at, n, &stopped, err)) ||
            kvd_metric_score(x->metric, out->text[k], &key, &out->score[k], err))
            return kvd_in(err, "task %s, item %s", x->task, x->id);
    }
    return 0;
}

static size_t steps_of(const kvd_benchmark_run *r, const kvd_benchmark_result *out)
{
    size_t steps = 0;
    for (size_t s = 0; s < r->run.n_sequences; s++)
        steps += out->cost[s].steps;
    return steps * (size_t)r->config->n_layers * (size_t)r->config->n_kv_heads;
}

int kvd_benchmark_run_plan(kvd_benchmark_run *r, const char *name, const kvd_plan *plan,
                           kvd_benchmark_result *out, kvd_progress *progress, kvd_err *err)
{
    const size_t places = r->run.end[r->run.n_sequences], n = r->n_answers;
    uint32_t *const token = calloc(places + 1, sizeof *token);
    out->text = calloc(n + 1, sizeof *out->text);
    out->score = calloc(n + 1, sizeof *out->score);
    out->n_tokens = calloc(n + 1, sizeof *out->n_tokens);
    out->cost = calloc(r->run.n_sequences + 1, sizeof *out->cost);
    int status = token && out->text && out->score && out->n_tokens && out->cost
                     ? 0
                     : kvd_no_memory(err, "answers", places * sizeof *token);
    const kvd_continued to = {.token = token, .cost = out->cost};
    status = status || kvd_journal_generate(r->journal, name, r->generator, plan, &r->run, &to,
                                            &out->account, progress, err);
    if (!status && r->settings.generator.n_parts < 2) {
        out->ran = !score(r, token, out, err);
        status = !out->ran || kvd_cache_check_steps(&out->account, plan, steps_of(r, out), err);
    }
    free(token);
    return status ? -1 : 0;
}

void kvd_benchmark_result_release(const kvd_benchmark_run *r, kvd_benchmark_result *out)
{
    for (size_t k = 0; out->text && k < r->n_answers; k++)
        free(out->text[k]);
    free(out->text);
    free(out->score);
    free(out->n_tokens);
    free(out->cost);
    *out = (kvd_benchmark_result){0};
}
