/* Compares RULER prompts with those of RULER's own scripts (tests/oracle/make_ruler.py). */
#include <ctype.h>
#include <jansson.h>
#include <regex.h>
#include <stdbool.h>
#include <string.h>

#include "evaluate/tasks/ruler.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_tokenizer *tokenizer;

static int set_up(void **state)
{
    (void)state;
    kvd_err err = {""};
    tokenizer = kvd_tokenizer_open("data/models/kvdim-6m/tokenizer.json", 8192, &err);
    if (!tokenizer)
        print_error("%s\n", err.msg);
    return tokenizer ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_tokenizer_free(tokenizer);
    return 0;
}

static const kvd_benchmark_settings plain = {.metric = -1};

static size_t task_number(const char *name)
{
    size_t k = 0;
    while (strcmp(kvd_ruler_words[k], name))
        k++;
    return k;
}

/* Returns RULER options for `items` items of task `name`, or of every task if `name` is NULL. */
static kvd_ruler_settings settings(const char *name, size_t length, size_t items, uint64_t seed)
{
    kvd_ruler_settings s = {
        .length = length, .items = items, .seed = seed, .essay = "data/texts/stories.txt"};
    for (size_t k = 0; k < KVD_N_RULER_TASKS; k++)
        s.task[k] = !name || k == task_number(name);
    return s;
}

static void make(kvd_benchmark *b, const kvd_ruler_settings *s)
{
    kvd_err err = {""};
    *b = (kvd_benchmark){0};
    OK(kvd_ruler_make(b, s, &plain, tokenizer, &err));
}

static char *prompt_of(const kvd_benchmark_item *x)
{
    char *text;
    assert_true(
        asprintf(&text, "%s%s%s", x->context, x->turn[0].question, x->turn[0].answer_prefix) > 0);
    unit_at_end(free, text);
    return text;
}

static size_t tokens_of(const char *text)
{
    kvd_ids ids = {0};
    kvd_err err = {""};
    OK(kvd_tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &err));
    const size_t n = ids.n;
    kvd_ids_release(&ids);
    return n;
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    while ((text = strstr(text, part))) {
        text += strlen(part);
        n++;
    }
    return n;
}

static const char needle_start[] = "One of the special magic ";

/* Writes `word`, or a placeholder if RULER chose the word at random: 9 for a number, U for a UUID,
 * K for hyphenated words, V and its length for a variable. */
static void put_shape(FILE *f, const char *word, size_t n)
{
    size_t digits = 0, capitals = 0, hyphens = 0;
    for (size_t i = 0; i < n; i++) {
        digits += isdigit((unsigned char)word[i]) != 0;
        capitals += isupper((unsigned char)word[i]) != 0;
        hyphens += word[i] == '-';
    }
    if (digits == n)
        fputc('9', f);
    else if (hyphens == 4 && n == 36)
        fputc('U', f);
    else if (hyphens)
        fputc('K', f);
    else if (capitals == n && n >= 3 && strncmp(word, "VAR", n) != 0)
        fprintf(f, "V%zu", n);
    else
        fprintf(f, "%.*s", (int)n, word);
}

/* Returns `text` with placeholders, such as 9 for a number, in place of words that RULER chose at
 * random. The result is freed when the test ends. */
static char *shape_of(const char *text, size_t n)
{
    char *out;
    size_t size;
    FILE *const f = open_memstream(&out, &size);
    for (size_t i = 0; i < n;) {
        size_t w = 0;
        while (i + w < n && (isalnum((unsigned char)text[i + w]) || text[i + w] == '-'))
            w++;
        if (w)
            put_shape(f, text + i, w);
        else
            fputc(text[i], f);
        i += w ? w : 1;
    }
    fclose(f);
    unit_at_end(free, out);
    return out;
}

/* distinct lines of a prompt, sorted, with placeholders for random words, such as 9 for a number */
typedef struct {
    char *line[64];
    size_t n;
} shapes;

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void add_shape(shapes *s, const char *text, size_t n)
{
    char *const shape = shape_of(text, n);
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->line[i], shape))
            return;
    assert_true(s->n < 64);
    s->line[s->n++] = shape;
}

static void add_needles(shapes *s, const char *text, size_t n)
{
    const char *const end = text + n;
    while ((text = strstr(text, needle_start)) && text < end) {
        const size_t length = strcspn(text, ".") + 1;
        add_shape(s, text, length);
        text += length;
    }
}

/* Returns the distinct lines of a prompt, with placeholders for randomly drawn words. Shortens
 * essays to their needles (hidden facts) and word lists to their beginnings. */
static shapes shapes_of(const char *task, const char *prompt)
{
    static const char list[] = "1. ", answers[] = "list are: 1. ", coded[] = "coded words. ";
    shapes s = {.n = 0};
    size_t number = 0;
    for (const char *p = prompt; p; number++) {
        const char *const end = strchr(p, '\n');
        const char *const solved = strstr(p, answers);
        const size_t n = end ? (size_t)(end - p) : strlen(p);
        if (number == 1 && kvd_ruler_needs_essay(task_number(task)))
            add_needles(&s, p, n);
        else if (!strcmp(task, "cwe") && !strncmp(p, list, strlen(list)))
            add_shape(&s, p, strlen(list));
        else if (!strcmp(task, "cwe") && solved && solved < p + n)
            add_shape(&s, p, (size_t)(solved - p) + strlen(answers));
        else if (!strcmp(task, "fwe") && number == 0)
            add_shape(&s, p, (size_t)(strstr(p, coded) - p) + strlen(coded));
        else
            add_shape(&s, p, n);
        p = end ? end + 1 : NULL;
    }
    qsort(s.line, s.n, sizeof *s.line, by_text);
    return s;
}

static void compare_shapes(const char *task, const char *ours, const char *rulers)
{
    shapes a = shapes_of(task, ours), b = shapes_of(task, rulers);
    for (size_t i = 0; i < a.n && i < b.n; i++)
        if (strcmp(a.line[i], b.line[i]))
            fail_msg("%s: '%s', RULER has '%s'", task, a.line[i], b.line[i]);
    if (a.n != b.n)
        fail_msg("%s: %zu kinds of lines, RULER has %zu", task, a.n, b.n);
}

static size_t pieces(const char *task, const char *prompt)
{
    return !strcmp(task, "vt")    ? count(prompt, "VAR ")
           : !strcmp(task, "cwe") ? count(strstr(prompt, "\n1. "), ". ")
           : !strcmp(task, "fwe") ? count(prompt, " ")
                                  : count(prompt, needle_start);
}

static double mean(const json_t *numbers)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(numbers); i++)
        sum += (double)json_integer_value(json_array_get(numbers, i));
    return sum / (double)json_array_size(numbers);
}

static const char *text_of(const json_t *x, const char *field)
{
    return json_string_value(json_object_get(x, field));
}

/* Compares prompt lengths with those of RULER, whose prompts grow in steps such as 500 words or 25
 * needles. */
static void compare_lengths(const json_t *x, const kvd_benchmark *b, size_t length)
{
    char field[40];
    double longest = 0, sum = 0, rulers = 0;
    snprintf(field, sizeof field, "lengths_%zu", length);
    const json_t *const lengths = json_object_get(x, field);
    for (size_t i = 0; i < json_array_size(lengths); i++) {
        const double n = (double)json_integer_value(json_array_get(lengths, i));
        rulers = n > rulers ? n : rulers;
    }
    for (size_t i = 0; i < b->n; i++) {
        char *const prompt = prompt_of(&b->item[i]);
        const double n = (double)(tokens_of(prompt) + b->item[i].max_new_tokens);
        assert_true(n <= (double)length);
        longest = n > longest ? n : longest;
        sum += n;
    }
    const bool essay = kvd_ruler_needs_essay(task_number(b->item[0].task));
    const double step = essay ? 820 : 0.15 * (double)length,
                 wide = essay ? 820 : 0.04 * (double)length;
    if (longest < rulers - wide || sum / (double)b->n < mean(lengths) - step)
        fail_msg("%s, %zu tokens: longest %.0f, mean %.0f; RULER has %.0f and %.0f",
                 b->item[0].task, length, longest, sum / (double)b->n, rulers, mean(lengths));
}

TEST(items_as_rulers)
{
    json_error_t why;
    json_t *const all = json_load_file("tests/data/ruler.json", 0, &why);
    assert_int_equal(json_array_size(all), KVD_N_RULER_TASKS);
    for (size_t k = 0; k < KVD_N_RULER_TASKS; k++) {
        const json_t *const x = json_array_get(all, k), *const item = json_object_get(x, "item");
        const char *const task = text_of(x, "task");
        assert_string_equal(task, kvd_ruler_words[k]);
        for (size_t length = 4096; length >= 2048; length /= 2) {
            const kvd_ruler_settings s = settings(task, length, 12, 42);
            kvd_benchmark b;
            make(&b, &s);
            compare_lengths(x, &b, length);
            if (length == 2048) {
                char *const ours = prompt_of(&b.item[0]), *rulers;
                assert_true(asprintf(&rulers, "%s%s", text_of(item, "input"),
                                     text_of(item, "answer_prefix")) > 0);
                compare_shapes(task, ours, rulers);
                const double share = (double)pieces(task, ours) / (double)pieces(task, rulers);
                if (share < 0.9 || share > 1.1)
                    fail_msg("%s: %.2f times the pieces of RULER's item", task, share);
                assert_int_equal(b.item[0].turn[0].n_references,
                                 json_array_size(json_object_get(item, "outputs")));
                char *const a = shape_of(b.item[0].turn[0].answer_prefix,
                                         strlen(b.item[0].turn[0].answer_prefix)),
                            *const c = shape_of(text_of(item, "answer_prefix"),
                                                strlen(text_of(item, "answer_prefix")));
                assert_string_equal(a, c);
                assert_int_equal(b.item[0].max_new_tokens,
                                 json_integer_value(json_object_get(x, "tokens_to_generate")));
                assert_int_equal(b.item[0].metric, KVD_METRIC_MATCH_ALL);
                free(rulers);
            }
            kvd_benchmark_release(&b);
        }
    }
    json_decref(all);
}

static bool matches(const char *pattern, const char *text)
{
    regex_t r;
    assert_int_equal(regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB), 0);
    const bool yes = !regexec(&r, text, 0, NULL, 0);
    regfree(&r);
    return yes;
}

TEST(needles_are_unique)
{
    static const char *const uuid =
        "^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$";
    for (size_t k = 0; k <= task_number("niah_multiquery"); k++) {
        const char *const task = kvd_ruler_words[k];
        const bool uuids = !strcmp(task, "niah_single_3") || !strcmp(task, "niah_multikey_3");
        const kvd_ruler_settings s = settings(task, 1024, 20, 3);
        kvd_benchmark b;
        make(&b, &s);
        for (size_t i = 0; i < b.n; i++) {
            const kvd_benchmark_turn *const turn = &b.item[i].turn[0];
            for (size_t a = 0; a < turn->n_references; a++) {
                const char *const value = turn->reference[a];
                char needle[200], key[100] = "";
                snprintf(needle, sizeof needle, " is: %s.", value);
                assert_true(matches(uuids ? uuid : "^[1-9][0-9]{6}$", value));
                assert_int_equal(count(b.item[i].context, needle), 1);
                const char *from = strstr(b.item[i].context, needle);
                while (strncmp(from, " for ", 5))
                    from--;
                assert_int_equal(sscanf(from, " for %99s is: ", key), 1);
                assert_non_null(strstr(turn->question, key));
                snprintf(needle, sizeof needle, " for %s is: ", key);
                assert_int_equal(count(b.item[i].context, needle),
                                 strcmp(task, "niah_multivalue") ? 1 : 4);
            }
        }
        kvd_benchmark_release(&b);
    }
}

TEST(depths_are_uniform)
{
    static const char *const tasks[] = {"niah_single_1", "niah_single_2", "niah_multikey_2"};
    enum { ITEMS = 400, PARTS = 4 };
    for (size_t k = 0; k < 3; k++) {
        const kvd_ruler_settings s = settings(tasks[k], 1024, ITEMS, 5);
        double in[PARTS] = {0}, chi2 = 0;
        kvd_benchmark b;
        make(&b, &s);
        for (size_t i = 0; i < b.n; i++) {
            char needle[100];
            snprintf(needle, sizeof needle, " is: %s.", b.item[i].turn[0].reference[0]);
            const char *const context = strchr(b.item[i].context, '\n') + 1;
            const double at = (double)(strstr(context, needle) - context);
            in[(size_t)(PARTS * at / (double)(strlen(context) + 1))]++;
        }
        for (size_t p = 0; p < PARTS; p++)
            chi2 += (in[p] - ITEMS / PARTS) * (in[p] - ITEMS / PARTS) / (ITEMS / PARTS);
        /* 16.3 is the 99.9 % quantile of the chi-square distribution with 3 degrees of freedom. */
        if (chi2 > 16.3)
            fail_msg("%s: chi2 %.1f: %.0f %.0f %.0f %.0f", tasks[k], chi2, in[0], in[1], in[2],
                     in[3]);
        kvd_benchmark_release(&b);
    }
}

TEST(chains_are_tracked)
{
    const kvd_ruler_settings s = settings("vt", 1536, 20, 7);
    kvd_benchmark b;
    make(&b, &s);
    for (size_t i = 0; i < b.n; i++) {
        char *const *const name = b.item[i].turn[0].reference;
        char line[60], value[20];
        assert_int_equal(b.item[i].turn[0].n_references, 5);
        assert_int_equal(count(b.item[i].context, "Memorize and track"), 2);
        assert_int_equal(sscanf(strstr(b.item[i].turn[0].question, "the value "),
                                "the value %19[0-9] in", value),
                         1);
        snprintf(line, sizeof line, "\nVAR %s = %s\n", name[0], value);
        const char *at = strstr(b.item[i].context, line);
        for (size_t k = 0; k < 5; k++) {
            assert_non_null(at);
            assert_true(matches("^[A-Z]{5}$", name[k]));
            assert_int_equal(count(b.item[i].context, name[k]), k < 4 ? 2 : 1);
            if (k < 4) {
                snprintf(line, sizeof line, "\nVAR %s = VAR %s \n", name[k + 1], name[k]);
                at = strstr(at, line);
            }
        }
    }
    kvd_benchmark_release(&b);
}

TEST(common_words_are_common)
{
    for (size_t length = 2048; length <= 4096; length *= 2) {
        const kvd_ruler_settings s = settings("cwe", length, 5, 9);
        const size_t often = length < 4096 ? 6 : 30, seldom = length < 4096 ? 1 : 3;
        kvd_benchmark b;
        make(&b, &s);
        for (size_t i = 0; i < b.n; i++) {
            char *const list = strdup(strstr(strstr(b.item[i].context, "\n1. ") + 1, "\n1. "));
            char *const *const common = b.item[i].turn[0].reference;
            size_t words = 0, seen_common = 0;
            char *word[4000], *save = NULL;
            for (char *w = strtok_r(list, " \n", &save); w; w = strtok_r(NULL, " \n", &save))
                if (!isdigit((unsigned char)*w) && words < 4000)
                    word[words++] = w;
            assert_int_equal(b.item[i].turn[0].n_references, 10);
            for (size_t k = 0; k < words; k++) {
                size_t times = 0, is_common = 0;
                for (size_t j = 0; j < words; j++)
                    times += !strcmp(word[k], word[j]);
                for (size_t c = 0; c < 10; c++)
                    is_common += !strcmp(word[k], common[c]);
                assert_int_equal(times, is_common ? often : seldom);
                seen_common += is_common;
            }
            assert_int_equal(seen_common, 10 * often);
            free(list);
        }
        kvd_benchmark_release(&b);
    }
}

TEST(frequent_words_are_frequent)
{
    const kvd_ruler_settings s = settings("fwe", 4096, 5, 11);
    kvd_benchmark b;
    make(&b, &s);
    for (size_t i = 0; i < b.n; i++) {
        char *const *const answer = b.item[i].turn[0].reference;
        size_t times[3];
        assert_int_equal(b.item[i].turn[0].n_references, 3);
        for (size_t k = 0; k < 3; k++) {
            assert_true(matches("^[a-z]{6}$", answer[k]));
            times[k] = count(b.item[i].context, answer[k]);
        }
        /* By Zipf's law with exponent 2, the words of ranks 2, 3, 4 occur n / 4, n / 9,
         * n / 16 times. */
        const double n = 4.0 * (double)times[0];
        assert_true(times[0] > times[1] && times[1] > times[2]);
        assert_float_equal((double)times[1], n / 9, 2);
        assert_float_equal((double)times[2], n / 16, 2);
        assert_float_equal((double)count(b.item[i].context, " ..."), n, 6);
    }
    kvd_benchmark_release(&b);
}

static size_t common_items(const kvd_benchmark *a, const kvd_benchmark *b)
{
    size_t i = 0;
    for (; i < a->n && i < b->n; i++) {
        char *const x = prompt_of(&a->item[i]), *const y = prompt_of(&b->item[i]);
        const bool equal = !strcmp(x, y) && !strcmp(a->item[i].task, b->item[i].task) &&
                           !strcmp(a->item[i].id, b->item[i].id);
        if (!equal)
            break;
    }
    return i;
}

TEST(seeds_decide)
{
    for (size_t k = 0; k < KVD_N_RULER_TASKS; k++) {
        kvd_ruler_settings s = settings(kvd_ruler_words[k], 1536, 3, 13);
        kvd_benchmark a, b;
        make(&a, &s);
        s.items = 5;
        make(&b, &s);
        assert_int_equal(common_items(&a, &b), 3);
        kvd_benchmark_release(&b);
        s.seed = 14;
        make(&b, &s);
        assert_int_equal(common_items(&a, &b), 0);
        kvd_benchmark_release(&a);
        kvd_benchmark_release(&b);
    }
}

TEST(files_read_back)
{
    const kvd_ruler_settings s = settings(NULL, 1024, 2, 17);
    const char *const path = temp_file("items.jsonl");
    kvd_err err = {""};
    kvd_benchmark made, read = {0};
    make(&made, &s);
    OK(kvd_ruler_write(&made, path, tokenizer, false, &err));
    OK(kvd_benchmark_read(&read, path, &plain, &err));
    assert_int_equal(made.n, 2 * KVD_N_RULER_TASKS);
    assert_int_equal(read.n, made.n);
    assert_int_equal(common_items(&made, &read), made.n);
    for (size_t i = 0; i < made.n; i++) {
        const kvd_benchmark_turn *const x = &made.item[i].turn[0], *const y = &read.item[i].turn[0];
        assert_string_equal(made.item[i].context, read.item[i].context);
        assert_string_equal(x->question, y->question);
        assert_int_equal(x->n_references, y->n_references);
        for (size_t k = 0; k < x->n_references; k++)
            assert_string_equal(x->reference[k], y->reference[k]);
        assert_int_equal(made.item[i].max_new_tokens, read.item[i].max_new_tokens);
        assert_int_equal(made.item[i].metric, read.item[i].metric);
    }
    kvd_benchmark_release(&made);
    kvd_benchmark_release(&read);
}

static void refused(const kvd_ruler_settings *s, const char *text)
{
    kvd_benchmark b = {0};
    kvd_err err = {""};
    assert_int_equal(kvd_ruler_make(&b, s, &plain, tokenizer, &err), -1);
    if (!strstr(err.msg, text))
        fail_msg("'%s' does not say '%s'", err.msg, text);
    kvd_benchmark_release(&b);
}

/* If each byte is a token, the solved example in the prompt is longer than the allowed 500
 * tokens. */
TEST(a_tokenizer_of_bytes_is_refused)
{
    const char *const path = temp_file("tokenizer.json");
    kvd_err err = {""};
    FILE *const f = fopen(path, "w");
    fputs("{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
          "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
          f);
    for (int c = 0; c < 256; c++) { /* GPT-2 writes unprintable bytes as U+0100 and above */
        static int beyond = 0x100;
        const bool plain_byte = (c > 32 && c < 127) || (c > 160 && c != 173);
        fprintf(f, "%s\"\\u%04x\": %d", c ? ", " : "", plain_byte ? c : beyond++, c);
    }
    fputs("}}}\n", f);
    fclose(f);
    kvd_tokenizer *const usual = tokenizer;
    tokenizer = kvd_tokenizer_open(path, 256, &err);
    if (!tokenizer)
        fail_msg("%s", err.msg);
    const kvd_ruler_settings s = settings("vt", 4096, 1, 1);
    refused(&s, "--ruler vt: the solved example: the shortest has ");
    kvd_tokenizer_free(tokenizer);
    tokenizer = usual;
}

TEST(too_short_is_refused)
{
    kvd_ruler_settings s = settings("vt", 512, 1, 1);
    refused(&s, "--ruler vt: the shortest prompt has ");
    s = settings("niah_single_1", 100, 1, 1);
    refused(&s, "--ruler niah_single_1: --seq-len 100 leaves no token beside the answer's 128");
    s = settings("fwe", 150, 1, 1);
    refused(&s, "--ruler fwe: a text of ");
    s = settings("cwe", 300, 1, 1);
    refused(&s, "--ruler cwe: the shortest prompt has ");
    s = settings("niah_single_2", 1024, 1, 1);
    s.essay = NULL;
    refused(&s, "--ruler niah_single_2: the needles are hidden in a text: give it with --essay");
    s.essay = temp_file("blank.txt");
    unit_write_text(s.essay, " \n");
    refused(&s, "holds no words: --essay takes a text file");
}

TEST_MAIN(set_up, tear_down)
