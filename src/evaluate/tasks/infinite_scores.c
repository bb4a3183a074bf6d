#include "evaluate/tasks/text_scores.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "evaluate/tasks/characters.h"

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

bool kvd_is_whole_number(const char *s)
{
    s += *s == '-';
    return *s && !s[digits(s)];
}

static bool same_digits(const char *s, size_t n, const char *number)
{
    for (; n > 1 && *s == '0'; s++)
        n--;
    for (; number[0] == '0' && number[1]; number++)
        ;
    return strlen(number) == n && !memcmp(s, number, n);
}

/* Returns true if Python's int(word) gives the integer `reference`. */
static bool is_number(const kvd_characters *word, const char *reference)
{
    char *const plain = malloc(word->n + 1);
    const bool sign = word->n && (word->c[0] == '-' || word->c[0] == '+');
    size_t n = 0;
    bool good = plain != NULL && word->n > sign;
    for (size_t i = sign; good && i < word->n; i++) {
        const uint32_t c = word->c[i];
        const bool between = i > sign && i + 1 < word->n && word->c[i - 1] != '_';
        good = (c >= '0' && c <= '9') || (c == '_' && between);
        if (good && c != '_')
            plain[n++] = (char)c;
    }
    const bool zero = good && same_digits(plain, n, "0");
    const bool minus = good && !zero && word->c[0] == '-', wanted = reference[0] == '-';
    good = good && (zero ? same_digits(reference + wanted, strlen(reference + wanted), "0")
                         : minus == wanted && same_digits(plain, n, reference + wanted));
    free(plain);
    return good;
}

int kvd_last_integer(const char *answer, const char *reference, double *score, kvd_err *err)
{
    kvd_characters x = {0};
    kvd_words words = {0};
    *score = 0;
    if (kvd_characters_of(answer, strlen(answer), &x, err))
        return -1;
    for (size_t i = 0; i < x.n; i++)
        if (x.c[i] < 128 && x.c[i] && strchr("\n.`'\":", (int)x.c[i]))
            x.c[i] = ' ';
    const int status = kvd_words_of(&x, &words, err);
    if (!status && words.n)
        *score = is_number(&words.word[words.n - 1], reference);
    free(words.word);
    free(x.c);
    return status;
}

/* Returns a copy of `s` with the digits of all scripts replaced by 0 to 9, because Python's \d and
 * int() accept the digits of any script. */
static char *plain_digits(const char *s)
{
    char *const out = malloc(strlen(s) + 1);
    size_t n = 0;
    while (out && *s) {
        utf8proc_int32_t c = 0;
        const utf8proc_ssize_t width = utf8proc_iterate((const utf8proc_uint8_t *)s, -1, &c);
        if (width > 1 && utf8proc_category(c) == UTF8PROC_CATEGORY_ND) {
            int before = 0; /* Digits of a script follow each other. */
            while (utf8proc_category(c - 1 - before) == UTF8PROC_CATEGORY_ND)
                before++;
            out[n++] = (char)('0' + before % 10);
            s += width;
        } else {
            out[n++] = *s++;
        }
    }
    if (out)
        out[n] = '\0';
    return out;
}

int kvd_first_number(const char *answer, const char *reference, double *score, kvd_err *err)
{
    char *const text = plain_digits(answer);
    if (!text)
        return kvd_no_memory(err, "an answer", strlen(answer));
    char *const at = text + strcspn(text, "0123456789");
    const size_t whole = digits(at), rest = at[whole] == '.' ? digits(at + whole + 1) : 0;
    *score = 0;
    if (whole && kvd_is_whole_number(reference)) {
        *score = !rest && reference[0] != '-' && same_digits(at, whole, reference);
    } else if (whole) {
        at[whole + (rest ? 1 + rest : 0)] = '\0';
        const double x = strtod(at, NULL), y = strtod(reference, NULL);
        *score = x >= y && x <= y;
    }
    free(text);
    return 0;
}

double kvd_leading_numbers(const char *answer, const kvd_metric_key *key)
{
    size_t right = 0;
    for (const char *s = answer; right < key->n_references; right++) {
        s += strcspn(s, "0123456789");
        const size_t n = digits(s);
        if (!n || !same_digits(s, n, key->reference[right]))
            break;
        s += n;
    }
    return (double)right / (double)key->n_references;
}

/* Returns a copy of s [n] in which line feeds, quotes, hyphens, asterisks and the word "Option" are
 * blanks. */
static char *cleaned(const char *s, size_t n)
{
    char *const out = malloc(n + 1);
    size_t m = 0;
    for (size_t i = 0; out && i < n;) {
        const bool word =
            n - i >= 6 && (!memcmp(s + i, "Option", 6) || !memcmp(s + i, "option", 6));
        const char c = word || strchr("\n`'\"-*", s[i]) ? ' ' : s[i];
        if (c != ' ' || !m || out[m - 1] != ' ')
            out[m++] = c;
        i += word ? 6 : 1;
    }
    if (out)
        out[m] = '\0';
    return out;
}

int kvd_option_named(const char *answer, const kvd_metric_key *key, double *score, kvd_err *err)
{
    static const char *const prefix[] = {"answer is:", "is:", "answer:"};
    size_t n;
    const char *const name = key->reference[0], *const letter = key->reference[1],
                      *const s = kvd_trimmed(answer, &n);
    *score = *letter && s[0] == *letter && (s[1] == '.' || s[1] == ':');
    if (*score > 0)
        return 0;
    char *const text = cleaned(s, n);
    if (!text)
        return kvd_no_memory(err, "an answer", n);
    for (size_t k = 0; k < sizeof prefix / sizeof *prefix; k++) {
        const char *after = strstr(text, prefix[k]);
        if (!after)
            continue;
        after += strlen(prefix[k]);
        /* InfiniteBench ignores the one character after a prefix such as "answer is:". */
        after += *after != '\0';
        while ((*after & 0xC0) == 0x80)
            after++;
        *score = *after &&
                 (!strncmp(after, letter, strlen(letter)) || !strncmp(after, name, strlen(name)));
        break;
    }
    free(text);
    return 0;
}

/* Chinese punctuation, which scores ignore like ASCII punctuation. */
static const char chinese_marks[] =
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛"
    "〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

static int order(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Copies the characters of text `s` to *out, in lower case and sorted. Leaves out white space,
 * ASCII punctuation and the characters in *marks. */
static int counted(const char *s, const kvd_characters *marks, kvd_characters *out, kvd_err *err)
{
    if (kvd_characters_of(s, strlen(s), out, err))
        return -1;
    if (kvd_characters_lower(out, err)) {
        free(out->c);
        out->c = NULL;
        return -1;
    }
    size_t n = 0;
    for (size_t i = 0; i < out->n; i++) {
        const uint32_t c = out->c[i];
        bool mark = kvd_character_is_space(c) ||
                    (c > 32 && c < 127 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)c));
        for (size_t k = 0; k < marks->n && !mark; k++)
            mark = marks->c[k] == c;
        if (!mark)
            out->c[n++] = c;
    }
    out->n = n;
    if (n)
        qsort(out->c, n, sizeof *out->c, order);
    return 0;
}

int kvd_characters_f1(const char *answer, const char *reference, double *score, kvd_err *err)
{
    kvd_characters marks = {0}, a = {0}, b = {0};
    size_t same = 0;
    const int status = kvd_characters_of(chinese_marks, strlen(chinese_marks), &marks, err) ||
                       counted(answer, &marks, &a, err) || counted(reference, &marks, &b, err);
    for (size_t i = 0, j = 0; !status && i < a.n && j < b.n;) {
        same += a.c[i] == b.c[j];
        const bool next_a = a.c[i] <= b.c[j], next_b = b.c[j] <= a.c[i];
        i += next_a;
        j += next_b;
    }
    *score = kvd_f1((double)same, (double)a.n, (double)b.n);
    free(marks.c);
    free(a.c);
    free(b.c);
    return status ? -1 : 0;
}
