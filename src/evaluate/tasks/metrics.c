#include "evaluate/tasks/metrics.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "evaluate/tasks/characters.h"
#include "evaluate/tasks/text_scores.h"

const char *const kvd_metric_words[KVD_N_METRICS + 1] = {"match-all",
                                                         "match-part",
                                                         "exact",
                                                         "qa-f1",
                                                         "rouge-1",
                                                         "rouge-l",
                                                         "code",
                                                         "classification",
                                                         "retrieval",
                                                         "retrieval-zh",
                                                         "count",
                                                         "number",
                                                         "choice",
                                                         "letter",
                                                         "first-integer",
                                                         "word",
                                                         "last-integer",
                                                         "first-number",
                                                         "leading-numbers",
                                                         "option",
                                                         "characters-f1",
                                                         NULL};

static const char paragraph[] = "Paragraph ", paragraph_zh[] = "\xe6\xae\xb5\xe8\x90\xbd";
static const char result[] = "#### ";

static int contains(const char *text, const char *part, bool *found, kvd_err *err)
{
    kvd_characters x = {0}, y = {0};
    const int status = kvd_characters_of(text, strlen(text), &x, err) ||
                       kvd_characters_of(part, strlen(part), &y, err) ||
                       kvd_characters_lower(&x, err) || kvd_characters_lower(&y, err);
    *found = !status && kvd_characters_find(&x, &y) != SIZE_MAX;
    free(x.c);
    free(y.c);
    return status ? -1 : 0;
}

static int exact(const char *answer, const char *reference, double *score, kvd_err *err)
{
    kvd_characters x[2] = {{0}, {0}};
    const char *const text[] = {answer, reference};
    for (int k = 0; k < 2; k++) {
        if (kvd_characters_of(text[k], strlen(text[k]), &x[k], err)) {
            free(x[0].c);
            return -1;
        }
    }
    kvd_characters cut[2];
    for (int k = 0; k < 2; k++) {
        cut[k] = x[k];
        for (; cut[k].n && kvd_character_is_space(*cut[k].c); cut[k].c++)
            cut[k].n--;
        for (; cut[k].n && kvd_character_is_space(cut[k].c[cut[k].n - 1]);)
            cut[k].n--;
    }
    *score = kvd_words_order(&cut[0], &cut[1]) == 0;
    free(x[0].c);
    free(x[1].c);
    return 0;
}

/* Scores the class names in an answer as LongBench's code does, which removes names from a list
 * while it loops over that list, and so skips the name after each removed one. */
static int classification(const char *answer, const char *reference, const kvd_metric_key *key,
                          double *score, kvd_err *err)
{
    const char **const in = malloc((key->n_choices + 1) * sizeof *in);
    size_t n = 0;
    if (!in)
        return kvd_no_memory(err, "classes of an answer", key->n_choices * sizeof *in);
    for (size_t k = 0; k < key->n_choices; k++)
        if (strstr(answer, key->choice[k]))
            in[n++] = key->choice[k];
    for (size_t i = 0; i < n; i++)
        if (strstr(reference, in[i]) && strcmp(reference, in[i])) {
            size_t first = 0;
            while (strcmp(in[first], in[i]))
                first++;
            memmove(in + first, in + first + 1, (n - first - 1) * sizeof *in);
            n--;
        }
    *score = 0;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(in[i], reference))
            *score = 1.0 / (double)n;
    free(in);
    return 0;
}

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* Returns the number of bytes of the digits at the start of `s`. Accepts digits of any script, as
 * Python's \d+ does. */
static size_t digits_of_any_script(const char *s)
{
    size_t n = digits(s);
    utf8proc_int32_t c;
    for (utf8proc_ssize_t width; (unsigned char)s[n] >= 0x80;
         n += (size_t)width + digits(s + n + width)) {
        width = utf8proc_iterate((const utf8proc_uint8_t *)s + n, -1, &c);
        if (width <= 0 || utf8proc_category(c) != UTF8PROC_CATEGORY_ND)
            break;
    }
    return n;
}

static double share_of_numbers(const char *answer, const char *number, size_t n)
{
    size_t all = 0, right = 0;
    for (const char *s = answer; *s;) {
        const size_t width = digits_of_any_script(s);
        all += width > 0;
        right += width && width == n && !memcmp(s, number, n);
        s += width ? width : 1;
    }
    return all ? (double)right / (double)all : 0;
}

static const char *number_after(const char *reference, const char *word)
{
    for (const char *at = reference; (at = strstr(at, word)); at++)
        if (digits(at + strlen(word)))
            return at + strlen(word);
    return NULL;
}

static double first_integer(const char *answer, const char *reference)
{
    const char *const at = answer + strcspn(answer, "0123456789");
    return digits(at) == strlen(reference) && !memcmp(at, reference, strlen(reference));
}

/* Returns the length of the match of (-?[$0-9.,]{2,})|(-?[0-9]+) at the start of `s`, or 0 if there
 * is none. */
static size_t number_width(const char *s)
{
    const size_t sign = *s == '-', wide = strspn(s + sign, "$0123456789.,");
    const size_t narrow = digits(s + sign);
    return wide >= 2 ? sign + wide : narrow ? sign + narrow : 0;
}

/* Copies the number in s [n] to `out` without commas, dollar signs and a final point. */
static void plain_number(const char *s, size_t n, char *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] != ',' && s[i] != '$')
            out[m++] = s[i];
    m -= m && out[m - 1] == '.';
    out[m] = '\0';
}

static int last_number(const char *answer, const char *reference, double *score, kvd_err *err)
{
    const char *const right = strstr(reference, result) + strlen(result);
    const char *found = answer;
    size_t n = 0;
    for (const char *s = answer; *s;) {
        const size_t width = number_width(s);
        if (width) {
            found = s;
            n = width;
        }
        s += width ? width : 1;
    }
    char *const a = malloc(n + 1), *const b = malloc(strlen(right) + 1);
    if (a && b) {
        plain_number(found, n, a);
        plain_number(right, strlen(right), b);
        *score = n && !strcmp(a, b);
    } else {
        kvd_no_memory(err, "a number", n);
    }
    const int status = a && b ? 0 : -1;
    free(a);
    free(b);
    return status;
}

/* Returns the letter X if the answer has "The correct answer is (X)", else 0. */
static char chosen(const char *answer)
{
    static const char words[] = "The correct answer is ";
    for (int bracket = 1; bracket >= 0; bracket--)
        for (const char *at = answer; (at = strstr(at, words)); at++) {
            const char *const c = at + strlen(words) + bracket;
            if ((!bracket || (c[-1] == '(' && *c && c[1] == ')')) && *c >= 'A' && *c <= 'D')
                return *c;
        }
    return 0;
}

static int choice(const char *answer, const char *reference, double *score, kvd_err *err)
{
    char *const bare = strdup(answer), *to = bare;
    if (!bare)
        return kvd_no_memory(err, "an answer", strlen(answer));
    for (const char *s = answer; *s; s++)
        if (*s != '*')
            *to++ = *s;
    *to = '\0';
    const char letter = chosen(bare);
    *score = letter && reference[0] == letter && !reference[1];
    free(bare);
    return 0;
}

static bool is_reference(const kvd_metric_key *key, const char *s, size_t n)
{
    for (size_t i = 0; i < key->n_references; i++)
        if (strlen(key->reference[i]) == n && !memcmp(key->reference[i], s, n))
            return true;
    return false;
}

/* Returns a copy of `s` with blanks in place of the characters of `drop` and, if `spaces` is true,
 * of all white space. Consecutive blanks become one blank. */
static char *blanked(const char *s, const char *drop, bool spaces)
{
    char *const out = malloc(strlen(s) + 1);
    size_t n = 0;
    while (out && *s) {
        const size_t space = spaces ? kvd_space_width(s) : 0;
        const char c = space || strchr(drop, *s) ? ' ' : *s;
        if (c != ' ' || !n || out[n - 1] != ' ')
            out[n++] = c;
        s += space ? space : 1;
    }
    if (out)
        out[n] = '\0';
    return out;
}

/* Finds the option letter (A to D) in an answer, as InfiniteBench does. Returns true if the letter
 * is right. */
static bool letter_within(const char *text, const kvd_metric_key *key)
{
    static const char *const prefix[] = {"answer is:", "answer:", "answer is", "option is"};
    for (size_t k = 0; k < sizeof prefix / sizeof *prefix; k++) {
        const char *const at = strstr(text, prefix[k]);
        if (!at)
            continue;
        /* InfiniteBench ignores the one character after a prefix such as "answer is:". */
        const char *after = at + strlen(prefix[k]);
        after += *after != '\0';
        while ((*after & 0xC0) == 0x80)
            after++;
        for (size_t i = 0; *after && i < key->n_references; i++)
            if (!strncmp(after, key->reference[i], strlen(key->reference[i])))
                return true;
        return false;
    }
    for (const char *s = text; *s;) {
        const size_t space = kvd_space_width(s);
        size_t n = 0;
        while (s[n] && !kvd_space_width(s + n))
            n++;
        for (const char *all = "ABCD"; n && strlen(all) >= n; all++)
            if (!strncmp(all, s, n))
                return is_reference(key, s, n);
        s += n + space;
    }
    return false;
}

static int letter(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err)
{
    size_t n;
    const char *const s = kvd_trimmed(answer, &n);
    *score = 0;
    if (!n)
        return 0;
    if (*s >= 'A' && *s <= 'D') {
        *score = is_reference(key, s, 1);
        return 0;
    }
    if (is_reference(key, s, n)) {
        *score = 1;
        return 0;
    }
    char *const text = blanked(s, "\n\"'.,?!{}", false);
    if (!text)
        return kvd_no_memory(err, "an answer", n);
    *score = letter_within(text, key);
    free(text);
    return 0;
}

static int is_word(const char *answer, const char *reference, double *score, kvd_err *err)
{
    char *const text = blanked(answer, "\n:\"'.,?!{}", true), *rest = text, *word;
    if (!text)
        return kvd_no_memory(err, "an answer", strlen(answer));
    *score = 0;
    while ((word = strsep(&rest, " ")))
        if (*word && !strcmp(word, reference))
            *score = 1;
    free(text);
    return 0;
}

/* Fails if the metric cannot use reference `r`. Every answer would then get the same score. */
static int check_searched(kvd_metric metric, const char *r, kvd_err *err)
{
    const bool compares = metric >= KVD_METRIC_EXACT && metric <= KVD_METRIC_CODE;
    const char *const number = strstr(r, result);
    const size_t n = strlen(r);
    if (!n && !compares)
        return kvd_fail(err, "metric %s needs a reference that is not empty",
                        kvd_metric_words[metric]);
    if (metric == KVD_METRIC_NUMBER && !(number && strpbrk(number, "0123456789")))
        return kvd_fail(err, "metric number needs '#### N' at the end of the reference");
    if (metric == KVD_METRIC_CHOICE && (n != 1 || *r < 'A' || *r > 'D'))
        return kvd_fail(err, "metric choice needs a reference of A, B, C or D, not '%.40s'", r);
    return 0;
}

int kvd_metric_check(kvd_metric metric, const kvd_metric_key *key, kvd_err *err)
{
    if (!key->n_references)
        return kvd_fail(err, "no reference");
    if (metric == KVD_METRIC_CLASSIFICATION && !key->n_choices)
        return kvd_fail(err, "metric classification needs the classes (all_classes)");
    if (metric == KVD_METRIC_OPTION && key->n_references != 2)
        return kvd_fail(err, "metric option needs two references: the option's text, its letter");
    for (size_t i = 0; i < key->n_references; i++) {
        const char *const r = key->reference[i];
        if ((metric == KVD_METRIC_LAST_INTEGER || metric == KVD_METRIC_LEADING) &&
            !kvd_is_whole_number(r))
            return kvd_fail(err, "metric %s needs whole numbers as references, not '%.40s'",
                            kvd_metric_words[metric], r);
        if (metric == KVD_METRIC_RETRIEVAL && !number_after(r, paragraph))
            return kvd_fail(err, "metric retrieval needs references 'Paragraph N', not '%.40s'", r);
        if (metric == KVD_METRIC_RETRIEVAL_ZH && !number_after(r, paragraph_zh))
            return kvd_fail(err, "metric retrieval-zh needs references '%sN', not '%.40s'",
                            paragraph_zh, r);
        if (check_searched(metric, r, err))
            return -1;
    }
    return 0;
}

static int score_one(kvd_metric metric, const char *answer, const char *reference,
                     const kvd_metric_key *key, double *score, kvd_err *err)
{
    bool found;
    switch (metric) {
    case KVD_METRIC_MATCH_ALL:
    case KVD_METRIC_MATCH_PART:
        if (contains(answer, reference, &found, err))
            return -1;
        *score = found;
        return 0;
    case KVD_METRIC_EXACT:
        return exact(answer, reference, score, err);
    case KVD_METRIC_QA_F1:
        return kvd_qa_f1(answer, reference, score, err);
    case KVD_METRIC_ROUGE_1:
        return kvd_rouge_package(answer, reference, score, NULL, err);
    case KVD_METRIC_ROUGE_L:
        return kvd_rouge_package(answer, reference, NULL, score, err);
    case KVD_METRIC_CODE:
        return kvd_code_similarity(answer, reference, score, err);
    case KVD_METRIC_CLASSIFICATION:
        return classification(answer, reference, key, score, err);
    case KVD_METRIC_RETRIEVAL:
    case KVD_METRIC_RETRIEVAL_ZH: {
        const char *const n =
            number_after(reference, metric == KVD_METRIC_RETRIEVAL ? paragraph : paragraph_zh);
        *score = share_of_numbers(answer, n, digits(n));
        return 0;
    }
    case KVD_METRIC_COUNT:
        *score = share_of_numbers(answer, reference, strlen(reference));
        return 0;
    case KVD_METRIC_NUMBER:
        return last_number(answer, reference, score, err);
    case KVD_METRIC_CHOICE:
        return choice(answer, reference, score, err);
    case KVD_METRIC_LETTER:
        return letter(answer, key, score, err);
    case KVD_METRIC_FIRST_INTEGER:
        *score = first_integer(answer, reference);
        return 0;
    case KVD_METRIC_WORD:
        return is_word(answer, reference, score, err);
    case KVD_METRIC_LAST_INTEGER:
        return kvd_last_integer(answer, reference, score, err);
    case KVD_METRIC_FIRST_NUMBER:
        return kvd_first_number(answer, reference, score, err);
    case KVD_METRIC_LEADING:
        *score = kvd_leading_numbers(answer, key);
        return 0;
    case KVD_METRIC_OPTION:
        return kvd_option_named(answer, key, score, err);
    case KVD_METRIC_CHARACTERS_F1:
        return kvd_characters_f1(answer, reference, score, err);
    case KVD_N_METRICS:
        break;
    }
    return kvd_fail(err, "metric %d is unknown", (int)metric);
}

int kvd_metric_score(kvd_metric metric, const char *answer, const kvd_metric_key *key,
                     double *score, kvd_err *err)
{
    double sum = 0, best = 0;
    if (kvd_metric_check(metric, key, err))
        return -1;
    for (size_t i = 0; i < key->n_references; i++) {
        double x;
        if (score_one(metric, answer, key->reference[i], key, &x, err))
            return -1;
        sum += x;
        best = x > best ? x : best;
    }
    *score = metric == KVD_METRIC_MATCH_ALL ? sum / (double)key->n_references : best;
    return 0;
}
