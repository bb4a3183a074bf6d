/* Reads files of published benchmarks (JSON lines) and makes prompts from them. */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/utf8.h"
#include "evaluate/tasks/benchmark.h"
#include "evaluate/tasks/benchmark_tables.h"
#include "evaluate/tasks/characters.h"

const char *const kvd_benchmark_form_words[KVD_N_FORMS + 1] = {
    "auto",  "ruler",   "longbench", "longbench-v2", "infinitebench",
    "gsm8k", "scbench", "kvpress",   "general",      NULL};

typedef struct {
    kvd_benchmark *b;
    kvd_benchmark_item *item;
    const kvd_benchmark_settings *s;
    const char *file_task;
    size_t number; /* number of the JSON object, from 1 */
    const json_t *x;
} reader;

static int optional_text(const json_t *x, const char *field, const char **text, kvd_err *err)
{
    const json_t *const value = json_object_get(x, field);
    *text = json_string_value(value);
    return *text || !value || json_is_null(value) ? 0
                                                  : kvd_fail(err, "field '%s' is no string", field);
}

static bool has(const json_t *x, const char *fields)
{
    char word[40];
    for (int n; sscanf(fields, "%39s%n", word, &n) == 1; fields += n)
        if (!json_object_get(x, word))
            return false;
    return true;
}

static char *scalar(const json_t *x)
{
    return json_is_string(x)   ? strdup(json_string_value(x))
           : json_is_number(x) ? json_dumps(x, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))
                               : NULL;
}

static int push_scalar(char ***list, size_t *n, const json_t *x, const char *field, kvd_err *err)
{
    char *const text = scalar(x);
    if (!text)
        return kvd_fail(err, "field '%s' holds a value that is no string and no number", field);
    const int status = kvd_benchmark_push(list, n, text, err);
    free(text);
    return status;
}

static int push_field(char ***list, size_t *n, const json_t *x, const char *field, kvd_err *err)
{
    const json_t *const value = json_object_get(x, field);
    if (!value)
        return kvd_fail(err, "field '%s' is missing", field);
    if (!json_is_array(value))
        return push_scalar(list, n, value, field, err);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (push_scalar(list, n, json_array_get(value, i), field, err))
            return -1;
    return 0;
}

static int need_text(const json_t *x, const char *field, const char **text, kvd_err *err)
{
    *text = json_string_value(json_object_get(x, field));
    return *text ? 0 : kvd_fail(err, "field '%s' is missing, or is no string", field);
}

static int set(char **to, const char *text, kvd_err *err)
{
    free(*to);
    *to = strdup(text);
    return *to ? 0 : kvd_no_memory(err, "a text", strlen(text));
}

typedef struct {
    const char *name; /* name of the field, such as "context" for {context} */
    const char *text;
} slot;

static char *filled(const char *template, size_t n, const slot *slots, kvd_err *err)
{
    char *out = NULL;
    size_t size;
    FILE *const f = open_memstream(&out, &size);
    for (size_t i = 0; f && i < n;) {
        const slot *found = NULL;
        for (const slot *s = slots; template[i] == '{' && s->name; s++)
            if (!strncmp(template + i + 1, s->name, strlen(s->name)) &&
                template[i + 1 + strlen(s->name)] == '}')
                found = s;
        if (found)
            fputs(found->text, f);
        else
            fputc(template[i], f);
        i += found ? strlen(found->name) + 2 : 1;
    }
    if (!f || fclose(f)) {
        free(out);
        kvd_no_memory(err, "a prompt", n);
        return NULL;
    }
    return out;
}

/* Fills a prompt template. Text up to and including {context} becomes the item's context, text
 * after {context} its question. */
static int fill(reader *r, const char *template, const slot *slots, kvd_err *err)
{
    static const char name[] = "{context}";
    const char *const at = strstr(template, name);
    const size_t n = at ? (size_t)(at - template) + strlen(name) : strlen(template);
    kvd_benchmark_turn *const turn = kvd_benchmark_add_turn(r->b, err);
    return turn && (r->item->context = filled(template, n, slots, err)) &&
                   (turn->question = filled(template + n, strlen(template + n), slots, err)) &&
                   (turn->answer_prefix || !set(&turn->answer_prefix, "", err))
               ? 0
               : -1;
}

/* Sets the item's limit of answer tokens from the JSON field max_new_tokens. Without this field, an
 * item that has no limit gets 128. */
static int answer_tokens(reader *r, kvd_err *err)
{
    const json_t *const most = json_object_get(r->x, "max_new_tokens");
    const json_int_t n = most ? json_integer_value(most) : 128;
    if (n < 1 || n > KVD_BENCHMARK_MAX_NEW_TOKENS)
        return kvd_fail(err, "field 'max_new_tokens' is no whole number of 1 to %d",
                        KVD_BENCHMARK_MAX_NEW_TOKENS);
    if (most || !r->item->max_new_tokens)
        r->item->max_new_tokens = (size_t)n;
    return 0;
}

static int use_row(reader *r, const kvd_benchmark_row *row, kvd_err *err)
{
    r->item->metric = row->metric;
    r->item->max_new_tokens = row->max_new_tokens;
    return set(&r->item->stop, row->stop ? row->stop : "", err);
}

static int read_ruler(reader *r, kvd_err *err)
{
    const char *input, *prefix;
    if (need_text(r->x, "input", &input, err) || optional_text(r->x, "answer_prefix", &prefix, err))
        return -1;
    kvd_benchmark_turn *const turn = kvd_benchmark_add_turn(r->b, err);
    /* The last line of RULER's field `input` is the question; all text before is the context. */
    const char *const line = strrchr(input, '\n');
    const size_t n = line ? (size_t)(line + 1 - input) : strlen(input);
    if (!turn || !(r->item->context = strndup(input, n)))
        return kvd_no_memory(err, "a prompt", n);
    return set(&turn->question, input + n, err) ||
           set(&turn->answer_prefix, prefix ? prefix : "", err) ||
           push_field(&turn->reference, &turn->n_references, r->x, "outputs", err) ||
           use_row(r, kvd_ruler_row(r->item->task), err);
}

static int read_kvpress(reader *r, kvd_err *err)
{
    const kvd_benchmark_row *const row = kvd_ruler_row(r->item->task);
    const char *context, *question, *prefix;
    if (need_text(r->x, "context", &context, err) || need_text(r->x, "question", &question, err) ||
        need_text(r->x, "answer_prefix", &prefix, err) || use_row(r, row, err) ||
        answer_tokens(r, err))
        return -1;
    if (strncmp(row->task, r->item->task, strlen(row->task)) != 0)
        return kvd_fail(err, "task '%s' of the form kvpress is none of RULER's", r->item->task);
    kvd_benchmark_turn *const turn = kvd_benchmark_add_turn(r->b, err);
    return !turn || set(&r->item->context, context, err) || set(&turn->question, question, err) ||
           (asprintf(&turn->answer_prefix, "\n%s", prefix) < 0 &&
            kvd_no_memory(err, "a prefix", strlen(prefix))) ||
           push_field(&turn->reference, &turn->n_references, r->x, "answer", err);
}

static int read_longbench(reader *r, kvd_err *err)
{
    const char *context, *input, *dataset;
    if (optional_text(r->x, "dataset", &dataset, err) ||
        (dataset && set(&r->item->task, dataset, err)))
        return -1;
    size_t n = strlen(r->item->task);
    if (n > 2 && !strcmp(r->item->task + n - 2, "_e"))
        r->item->task[n - 2] = '\0';
    const kvd_benchmark_row *const row = kvd_longbench_row(r->item->task);
    if (!row)
        return kvd_fail(err,
                        "LongBench's dataset '%s' is not supported: give items of your own in the "
                        "form general (docs/tasks.md); LongBench's multifieldqa_zh, dureader and "
                        "vcsum are refused",
                        r->item->task);
    if (need_text(r->x, "context", &context, err) || need_text(r->x, "input", &input, err))
        return -1;
    const slot slots[] = {{"context", context}, {"input", input}, {0}};
    return fill(r, row->prompt, slots, err) || use_row(r, row, err) ||
           push_field(&r->item->turn->reference, &r->item->turn->n_references, r->x, "answers",
                      err) ||
           (json_is_array(json_object_get(r->x, "all_classes")) &&
            push_field(&r->item->choice, &r->item->n_choices, r->x, "all_classes", err));
}

static int read_longbench_v2(reader *r, kvd_err *err)
{
    static const char *const fields[] = {"context",  "question", "choice_A",
                                         "choice_B", "choice_C", "choice_D"};
    static const char *const names[] = {"context", "input", "A", "B", "C", "D"};
    slot slots[7] = {{0}};
    char *text[6] = {NULL};
    int status = set(&r->item->task, kvd_longbench_v2_row.task, err);
    for (size_t i = 0; !status && i < 6; i++) {
        const char *value;
        size_t n;
        if (!(status = need_text(r->x, fields[i], &value, err))) {
            value = kvd_trimmed(value, &n);
            status = (text[i] = strndup(value, n)) ? 0 : kvd_no_memory(err, fields[i], n);
        }
        slots[i] = (slot){names[i], text[i]};
    }
    status =
        status || fill(r, kvd_longbench_v2_row.prompt, slots, err) ||
        use_row(r, &kvd_longbench_v2_row, err) ||
        push_field(&r->item->turn->reference, &r->item->turn->n_references, r->x, "answer", err);
    for (size_t i = 0; i < 6; i++)
        free(text[i]);
    return status;
}

static int options_of(const json_t *x, slot *slots, bool required, kvd_err *err)
{
    static const char *const names[] = {"A", "B", "C", "D"};
    const json_t *const options = json_object_get(x, "options");
    for (size_t i = 0; i < 4; i++) {
        const char *const text = json_string_value(json_array_get(options, i));
        if (required && !text)
            return kvd_fail(err, "field 'options' has not four texts");
        slots[i] = (slot){names[i], text ? text : ""};
    }
    return 0;
}

static int push_choice(kvd_benchmark_turn *turn, const json_t *x, kvd_err *err)
{
    const json_t *const options = json_object_get(x, "options");
    if (push_field(&turn->reference, &turn->n_references, x, "answer", err))
        return -1;
    for (size_t i = 0; turn->n_references == 1 && i < 4; i++) {
        const char *const text = json_string_value(json_array_get(options, i));
        const char letter[] = {(char)('A' + i), '\0'};
        if (text && !strcmp(text, turn->reference[0]))
            return kvd_benchmark_push(&turn->reference, &turn->n_references, letter, err);
    }
    return turn->n_references > 1 ? 0
                                  : kvd_fail(err, "the answer '%.40s' is none of the options",
                                             turn->n_references ? turn->reference[0] : "");
}

/* Copies the part of an InfiniteBench task's `input` that the prompt repeats: for example
 * "func_12(-3)" in task code_run, "The largest number" in task math_find. *out is NULL if there is
 * none. */
static int named_part(const char *task, const char *input, char **out, kvd_err *err)
{
    const char *at = input;
    size_t n = 0;
    if (!strcmp(task, "code_run")) {
        for (; (at = strstr(at, "func_")) && !n; at += n ? 0 : 5) {
            const size_t number = strspn(at + 5, "0123456789");
            const char *const open = at + 5 + number, *value = open + (*open == '(');
            value += value > open && *value == '-';
            const size_t width = value > open ? strspn(value, "0123456789") : 0;
            if (number && width && value[width] == ')') {
                n = (size_t)(value + width + 1 - at);
                break;
            }
        }
    } else if ((at = strstr(input, "The "))) {
        const size_t line = strcspn(at, "\n");
        for (size_t i = 5; i + 3 <= line; i++)
            n = !strncmp(at + i, " of", 3) ? i : n;
    }
    *out = n ? strndup(at, n) : NULL;
    if (n && !*out)
        return kvd_no_memory(err, "a prompt", n);
    return 0;
}

static int fill_infinitebench(reader *r, const kvd_benchmark_row *row, const char *context,
                              const char *input, slot *slots, kvd_err *err)
{
    const bool run = !strcmp(row->task, "code_run"), find = !strcmp(row->task, "math_find");
    char *part = NULL, *prefix = NULL, *name = NULL;
    int status = run || find ? named_part(row->task, input, &part, err) : 0;
    if (!status && (run || find) && !part)
        status =
            kvd_fail(err, "field 'input' has no %s", run ? "call func_N(N)" : "text 'The ... of'");
    slot *last = slots + 2;
    if (!status && run) {
        name = strndup(part, strcspn(part, "("));
        *last++ = (slot){"func_call", part};
        *last++ = (slot){"func", name};
        status = name ? 0 : kvd_no_memory(err, "a prompt", strlen(part));
    }
    if (!status && find) {
        for (char *c = part; *c; c++)
            *c = *c >= 'A' && *c <= 'Z' ? (char)(*c + 32) : *c;
        if (asprintf(&prefix, "What is %s in the following list?", part) < 0) {
            prefix = NULL;
            status = kvd_no_memory(err, "a prompt", strlen(part));
        }
        *last++ = (slot){"prefix", prefix};
    }
    slots[0] = (slot){"context", context};
    slots[1] = (slot){"input", input};
    status = status || fill(r, row->prompt, slots, err) || use_row(r, row, err);
    free(part);
    free(name);
    free(prefix);
    return status ? -1 : 0;
}

static int read_infinitebench(reader *r, kvd_err *err)
{
    const kvd_benchmark_row *const row = kvd_infinitebench_row(r->item->task);
    const char *context, *input;
    slot slots[7] = {{0}};
    if (!row)
        return kvd_fail(err,
                        "InfiniteBench's task '%s' is not supported (the name is that of the "
                        "file); all are but longbook_sum_eng, whose score is ROUGE-Lsum",
                        r->item->task);
    const bool letters = row->metric == KVD_METRIC_LETTER || row->metric == KVD_METRIC_OPTION;
    if (need_text(r->x, "context", &context, err) || need_text(r->x, "input", &input, err) ||
        options_of(r->x, slots + 2, letters, err) ||
        fill_infinitebench(r, row, context, input, slots, err))
        return -1;
    kvd_benchmark_turn *const turn = r->item->turn;
    return letters ? push_choice(turn, r->x, err)
                   : push_field(&turn->reference, &turn->n_references, r->x, "answer", err);
}

static int read_gsm8k(reader *r, kvd_err *err)
{
    const size_t shots = r->s->shots;
    const kvd_benchmark_row *const row = shots ? &kvd_gsm8k_cot_row : &kvd_gsm8k_row;
    const char *question;
    if (need_text(r->x, "question", &question, err) || set(&r->item->task, "gsm8k", err))
        return -1;
    char *const examples = kvd_gsm8k_shots(shots, err);
    const slot slots[] = {{"context", examples}, {"input", question}, {0}};
    const int status = examples ? fill(r, row->prompt, slots, err) : -1;
    free(examples);
    return status || use_row(r, row, err) ||
           set(&r->item->turn->answer_prefix, shots ? "A:" : "Answer:", err) ||
           push_field(&r->item->turn->reference, &r->item->turn->n_references, r->x, "answer", err);
}

static int add_turn(reader *r, const kvd_benchmark_row *row, const json_t *turn,
                    const char *context, bool first, kvd_err *err)
{
    const char *input;
    slot slots[7] = {{0}};
    if (need_text(turn, "input", &input, err) ||
        options_of(turn, slots + 2, row && row->metric == KVD_METRIC_LETTER, err))
        return -1;
    slots[0] = (slot){"context", context};
    slots[1] = (slot){"input", input};
    const char *const next = row ? kvd_scbench_next(row->task) : "\n\n{input}";
    if (first) {
        if (fill(r, row ? row->prompt : "{context}\n\n{input}", slots, err))
            return -1;
    } else {
        kvd_benchmark_turn *const t = kvd_benchmark_add_turn(r->b, err);
        if (!t || !(t->question = filled(next, strlen(next), slots, err)) ||
            set(&t->answer_prefix, "", err))
            return -1;
    }
    kvd_benchmark_turn *const t = &r->item->turn[r->item->n_turns - 1];
    return row && row->metric == KVD_METRIC_LETTER
               ? push_choice(t, turn, err)
               : push_field(&t->reference, &t->n_references, turn, "answer", err);
}

static int read_scbench(reader *r, kvd_err *err)
{
    const kvd_benchmark_row *const row = kvd_scbench_row(r->item->task);
    const json_t *const turns = json_object_get(r->x, "multi_turns");
    const char *context;
    if (need_text(r->x, "context", &context, err))
        return -1;
    if (!json_array_size(turns))
        return kvd_fail(err, "field 'multi_turns' has no question");
    if (!row && r->s->metric < 0)
        return kvd_fail(err,
                        "SCBench's task '%s' (the name of the file) has no metric here: give "
                        "--metric, or one of scbench_kv, scbench_prefix_suffix, "
                        "scbench_choice_eng, scbench_qa_eng, scbench_vt, scbench_many_shot",
                        r->item->task);
    r->item->max_new_tokens = 128;
    if (row ? use_row(r, row, err) : set(&r->item->stop, "", err))
        return -1;
    for (size_t i = 0; i < json_array_size(turns); i++)
        if (add_turn(r, row, json_array_get(turns, i), context, i == 0, err))
            return kvd_in(err, "question %zu", i + 1);
    return 0;
}

static int metric_named(const char *name, kvd_metric *metric, kvd_err *err)
{
    for (int k = 0; k < KVD_N_METRICS; k++)
        if (!strcmp(kvd_metric_words[k], name)) {
            *metric = (kvd_metric)k;
            return 0;
        }
    return kvd_fail(err, "metric '%.40s' is unknown; docs/tasks.md lists all", name);
}

/* Returns true if two field names differ only in case, '_', '-' and a plural s. */
static bool nearly_same(const char *a, const char *b)
{
    for (;;) {
        a += strspn(a, "_-");
        b += strspn(b, "_-");
        if (!*a || !*b || tolower((unsigned char)*a) != tolower((unsigned char)*b))
            break;
        a++;
        b++;
    }
    return (!*a || !strcasecmp(a, "s")) && (!*b || !strcasecmp(b, "s"));
}

static int check_spelling(const json_t *x, kvd_err *err)
{
    static const char *const fields[] = {"prompt",  "context",       "question",
                                         "metric",  "references",    "max_new_tokens",
                                         "choices", "answer_prefix", "stop"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)x, name, value)
    {
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            if (strcmp(name, fields[i]) && nearly_same(name, fields[i]))
                return kvd_fail(err, "field '%.40s' is not read: it is spelt '%s'", name,
                                fields[i]);
    }
    return 0;
}

static int read_general(reader *r, kvd_err *err)
{
    const char *prompt, *context, *question, *prefix, *metric, *stop;
    if (check_spelling(r->x, err) || optional_text(r->x, "prompt", &prompt, err) ||
        optional_text(r->x, "context", &context, err) ||
        optional_text(r->x, "question", &question, err) ||
        optional_text(r->x, "answer_prefix", &prefix, err) ||
        optional_text(r->x, "metric", &metric, err) || optional_text(r->x, "stop", &stop, err) ||
        answer_tokens(r, err))
        return -1;
    if (!prompt == !context)
        return kvd_fail(err, "one of the fields 'prompt' and 'context' is needed, not both");
    if (!metric && r->s->metric < 0)
        return kvd_fail(err, "field 'metric' is missing: add it, or give --metric");
    kvd_benchmark_turn *const turn = kvd_benchmark_add_turn(r->b, err);
    return !turn || (metric && metric_named(metric, &r->item->metric, err)) ||
           set(&r->item->context, prompt ? prompt : context, err) ||
           set(&turn->question, question ? question : "", err) ||
           set(&turn->answer_prefix, prefix ? prefix : "", err) ||
           set(&r->item->stop, stop ? stop : "", err) ||
           push_field(&turn->reference, &turn->n_references, r->x, "references", err) ||
           (json_object_get(r->x, "choices") &&
            push_field(&r->item->choice, &r->item->n_choices, r->x, "choices", err));
}

static kvd_benchmark_form recognise(const json_t *x)
{
    return has(x, "context multi_turns")                          ? KVD_FORM_SCBENCH
           : has(x, "context question answer_prefix answer task") ? KVD_FORM_KVPRESS
           : has(x, "question choice_A choice_B context answer")  ? KVD_FORM_LONGBENCH_V2
           : has(x, "input context answers")                      ? KVD_FORM_LONGBENCH
           : has(x, "input context answer options")               ? KVD_FORM_INFINITEBENCH
           : has(x, "input outputs")                              ? KVD_FORM_RULER
           : has(x, "references") && (has(x, "prompt") || has(x, "context")) ? KVD_FORM_GENERAL
           : has(x, "question answer") && !has(x, "context")                 ? KVD_FORM_GSM8K
                                                                             : KVD_FORM_AUTO;
}

static int unrecognised(const json_t *x, kvd_err *err)
{
    char fields[300] = "";
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)x, name, value)
    {
        const size_t used = strlen(fields);
        snprintf(fields + used, sizeof fields - used, "%s%.40s", used ? ", " : "", name);
    }
    return kvd_fail(err,
                    "the fields are those of no benchmark known here: %s; docs/tasks.md lists the "
                    "forms, and --form general has the fields prompt, references, metric",
                    *fields ? fields : "none");
}

/* Fails if a JSON object has a field that would be ignored in this benchmark: metric,
 * max_new_tokens or stop. */
static int check_unread(const reader *r, kvd_benchmark_form form, kvd_err *err)
{
    static const struct {
        const char *field, *option;
    } general[] = {{"metric", "--metric NAME"},
                   {"max_new_tokens", "--max-new-tokens N"},
                   {"stop", "--stop TEXT"}};
    const bool replaced[] = {r->s->metric >= 0, r->s->max_new_tokens > 0, r->s->stop != NULL};
    for (size_t i = 0; form != KVD_FORM_GENERAL && i < sizeof general / sizeof *general; i++)
        if (json_object_get(r->x, general[i].field) && !replaced[i] &&
            (i != 1 || form != KVD_FORM_KVPRESS))
            return kvd_fail(err, "field '%s' is not read in the form %s: remove it, or give %s",
                            general[i].field, kvd_benchmark_form_words[form], general[i].option);
    return 0;
}

static int check_task(const char *task, kvd_err *err)
{
    const size_t n = strlen(task);
    if (!n)
        return kvd_fail(err, "field 'task' is empty");
    if (n > KVD_BENCHMARK_TASK_BYTES)
        return kvd_fail(err, "the name of the task has %zu bytes, at most %d are allowed", n,
                        KVD_BENCHMARK_TASK_BYTES);
    const size_t control = kvd_utf8_first_control(task);
    return control == n
               ? 0
               : kvd_fail(err, "byte %zu of the name of the task is the control character %u",
                          control + 1, kvd_utf8_decode(task + control, &(unsigned){0}));
}

static int name_item(reader *r, kvd_err *err)
{
    static const char *const ids[] = {"_id", "id", "index", "task_id"};
    const char *task;
    char number[24];
    if (optional_text(r->x, "task", &task, err))
        return -1;
    snprintf(number, sizeof number, "%zu", r->number);
    for (size_t i = 0; !r->item->id && i < sizeof ids / sizeof *ids; i++)
        r->item->id = scalar(json_object_get(r->x, ids[i]));
    return (!r->item->id && set(&r->item->id, number, err)) ||
           set(&r->item->task, task ? task : r->file_task, err);
}

int kvd_benchmark_change(kvd_benchmark_item *x, const kvd_benchmark_settings *s, kvd_err *err)
{
    if (s->metric >= 0)
        x->metric = (kvd_metric)s->metric;
    if (s->max_new_tokens)
        x->max_new_tokens = s->max_new_tokens;
    if (s->stop && set(&x->stop, s->stop, err))
        return -1;
    if (!*x->context)
        return kvd_fail(err, "the prompt is empty");
    for (size_t t = 0; t < x->n_turns; t++) {
        const kvd_metric_key key = {x->turn[t].reference, x->turn[t].n_references, x->choice,
                                    x->n_choices};
        if (kvd_metric_check(x->metric, &key, err))
            return -1;
    }
    return 0;
}

static int read_item(reader *r, kvd_err *err)
{
    static int (*const read[KVD_N_FORMS])(reader *, kvd_err *) = {
        NULL,       read_ruler,   read_longbench, read_longbench_v2, read_infinitebench,
        read_gsm8k, read_scbench, read_kvpress,   read_general};
    if (!json_is_object(r->x))
        return kvd_fail(err, "no JSON object");
    const kvd_benchmark_form form = r->s->form ? r->s->form : recognise(r->x);
    if (form == KVD_FORM_AUTO)
        return unrecognised(r->x, err);
    if (r->s->shots && form != KVD_FORM_GSM8K)
        return kvd_fail(err,
                        "--shots %zu is for GSM8K, and this item has the form %s: leave --shots "
                        "out, or put examples into the item's context",
                        r->s->shots, kvd_benchmark_form_words[form]);
    return check_unread(r, form, err) || !(r->item = kvd_benchmark_add(r->b, err)) ||
           name_item(r, err) || read[form](r, err) || check_task(r->item->task, err) ||
           kvd_benchmark_change(r->item, r->s, err);
}

/* Returns a task's name from a file's path: TASK for TASK/validation.jsonl (RULER), else the file's
 * name. */
static char *task_of_path(const char *path)
{
    const char *const slash = strrchr(path, '/'), *const base = slash ? slash + 1 : path,
                      *const dot = strrchr(base, '.');
    const size_t n = dot && dot > base ? (size_t)(dot - base) : strlen(base);
    const bool generic = slash && ((n == 10 && !strncmp(base, "validation", n)) ||
                                   (n == 4 && !strncmp(base, "test", n)));
    if (!generic)
        return strndup(base, n);
    const char *from = slash;
    while (from > path && from[-1] != '/')
        from--;
    return strndup(from, (size_t)(slash - from));
}

static int read_list(reader *r, const char *path, FILE *f, kvd_err *err)
{
    json_error_t why;
    char mark[3];
    if (!kvd_utf8_mark(mark, fread(mark, 1, sizeof mark, f)))
        rewind(f);
    json_t *const all = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    int status = 0;
    if (!json_is_array(all)) {
        json_decref(all);
        return all ? kvd_fail(err, "'%s' holds no JSON list", path)
                   : kvd_fail(err, "'%s', line %d: %s", path, why.line, why.text);
    }
    const size_t n = json_array_size(all), last = r->s->most && r->s->most < n ? r->s->most : n;
    for (r->number = 1; !status && r->number <= last; r->number++) {
        r->x = json_array_get(all, r->number - 1);
        if (read_item(r, err))
            status = kvd_in(err, "'%s', entry %zu", path, r->number);
    }
    json_decref(all);
    return status;
}

static int read_lines(reader *r, const char *path, FILE *f, kvd_err *err)
{
    char *line = NULL;
    size_t room = 0, items = 0, most = r->s->most ? r->s->most : SIZE_MAX;
    ssize_t n = 0;
    int status = 0;
    errno = 0;
    for (size_t number = 1; !status && items < most && (n = getline(&line, &room, f)) > 0;
         number++) {
        json_error_t why;
        const size_t mark = number == 1 ? kvd_utf8_mark(line, (size_t)n) : 0;
        if (mark + strspn(line + mark, " \t\r\n") == (size_t)n)
            continue;
        json_t *const x = json_loadb(line + mark, (size_t)n - mark, JSON_REJECT_DUPLICATES, &why);
        r->x = x;
        r->number = ++items;
        if (!x)
            status = kvd_fail(err, "'%s', line %zu: %s", path, number, why.text);
        else if (read_item(r, err))
            status = kvd_in(err, "'%s', line %zu", path, number);
        json_decref(x);
    }
    /* An error is any end of reading other than the end of the file: when memory runs out, getline
     * sets neither ferror nor feof. */
    if (!status && n < 0 && !feof(f))
        status = kvd_fail_errno(err, "cannot read '%s'", path);
    free(line);
    return status;
}

int kvd_benchmark_read(kvd_benchmark *b, const char *path, const kvd_benchmark_settings *s,
                       kvd_err *err)
{
    const size_t before = b->n;
    const char *const dot = strrchr(path, '.');
    FILE *const f = fopen(path, "r");
    char *const task = task_of_path(path);
    reader r = {.b = b, .s = s, .file_task = task};
    int status = !f                                 ? kvd_fail_errno(err, "cannot open '%s'", path)
                 : !task                            ? kvd_no_memory(err, "a name", strlen(path))
                 : dot && !strcasecmp(dot, ".json") ? read_list(&r, path, f, err)
                                                    : read_lines(&r, path, f, err);
    if (!status && b->n == before)
        status = kvd_fail(err, "'%s' holds no item", path);
    if (f)
        fclose(f);
    free(task);
    return status;
}
