/* Tests tokenizers against Hugging Face (tests/oracle/make_tokenizers.py). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "tokenizer_case.h"
#include "unit.h"

TEST(test_fixtures)
{
    json_t *cases = load_json(TOKENIZERS "cases.json"), *texts = json_object_get(cases, "texts"),
           *v;
    size_t i, k;
    kvd_err err;
    kvd_ids ids = {0};
    size_t compared = 0;
    json_array_foreach(json_object_get(cases, "variants"), i, v)
    {
        kvd_tokenizer *t =
            variant(json_string_value(json_object_get(v, "base")), json_object_get(v, "patch"));
        json_t *text;
        json_array_foreach(texts, k, text)
        {
            const char *s = json_string_value(text);
            const size_t len = json_string_length(text);
            char what[200];
            (void)snprintf(what, sizeof what, "%s, text %zu",
                           json_string_value(json_object_get(v, "name")), k);
            const json_t *with = json_array_get(json_object_get(v, "ids"), k);
            const json_t *plain = json_array_get(json_object_get(v, "plain"), k);
            for (int special = 0; special < 2; special++) {
                ids.n = 0;
                if (kvd_tokenizer_encode(t, s, len, special, &ids, &err))
                    fail_msg("%s: %s", what, err.msg);
                expect_ids(what, &ids, special || json_is_null(plain) ? with : plain);
                compared += ids.n;
            }
            const json_t *decoded = json_array_get(json_object_get(v, "decoded"), k);
            decoded = json_is_null(decoded) ? text : decoded;
            expect_decoded(what, t, &ids, json_string_value(decoded), json_string_length(decoded));
        }
    }
    kvd_ids_release(&ids);
    assert_true(compared > 100000);
}

/* Encodes the first `cut` bytes of a text and returns the number of ids. The ids must equal the
 * first ids of the whole text, given in `whole`. */
static size_t expect_start(const char *what, const kvd_tokenizer *t, const char *text, size_t cut,
                           const kvd_ids *whole)
{
    kvd_err err;
    kvd_ids start = {0};
    if (kvd_tokenizer_encode_start(t, text, cut, true, &start, &err))
        fail_msg("%s: %s", what, err.msg);
    if (start.n > whole->n)
        fail_msg("%s: %zu ids of the first %zu bytes, %zu of all", what, start.n, cut, whole->n);
    for (size_t i = 0; i < start.n; i++)
        if (start.id[i] != whole->id[i])
            fail_msg("%s: id %zu of the first %zu bytes is %u, of all it is %u: '%.*s'", what, i,
                     cut, start.id[i], whole->id[i], (int)cut, text);
    const size_t n = start.n;
    kvd_ids_release(&start);
    return n;
}

static uint64_t random_state;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* Checks that a prefix of a random text gives the first ids of the whole text. Returns the ids per
 * byte of all prefixes, relative to the whole texts. */
static double expect_starts(const char *what, const kvd_tokenizer *t, const char *const *parts,
                            uint32_t n_parts, const json_t *texts)
{
    kvd_ids whole = {0};
    kvd_err err;
    size_t found = 0, all = 0;
    for (int round = 0; round < 60; round++) {
        char doc[1 << 15];
        size_t len = 0;
        const size_t want = round % 20 ? 1 + next_random(200) : 10000;
        while (len < want) {
            const json_t *text =
                texts ? json_array_get(texts, next_random((uint32_t)json_array_size(texts))) : NULL;
            const bool part = !texts || next_random(3) == 0;
            const char *s = part ? parts[next_random(n_parts)] : json_string_value(text);
            const size_t n = part ? strlen(s) : json_string_length(text);
            memcpy(doc + len, s, n);
            len += n;
        }
        whole.n = 0;
        if (kvd_tokenizer_encode(t, doc, len, true, &whole, &err))
            fail_msg("%s: %s", what, err.msg);
        const size_t step = len > 1000 ? 331 : 1;
        for (size_t cut = 0; cut < len; cut += step) {
            found += expect_start(what, t, doc, cut, &whole);
            all += whole.n * cut / len;
        }
    }
    kvd_ids_release(&whole);
    return (double)found / (double)all;
}

TEST(test_starts)
{
    static const char *const parts[] = {" ",
                                        "\n\n",
                                        "   ",
                                        "'",
                                        "'r",
                                        "a",
                                        "e\xcc\x81",
                                        "\xcc\x81",
                                        "\xcc\xa3",
                                        "12",
                                        "\xe1\x84\x80\xe1\x85\xa1",
                                        "\xe1\x86\xa8",
                                        "\xe4\xbd\xa0",
                                        "<|endo",
                                        "ftext|>",
                                        "\r",
                                        "<s",
                                        ">",
                                        "the",
                                        "\xe2\x96\x81",
                                        "-"};
    json_t *cases = load_json(TOKENIZERS "cases.json"), *v;
    size_t i;
    random_state = 3;
    json_array_foreach(json_object_get(cases, "variants"), i, v)
    {
        const char *name = json_string_value(json_object_get(v, "name"));
        kvd_tokenizer *t =
            variant(json_string_value(json_object_get(v, "base")), json_object_get(v, "patch"));
        const double share = expect_starts(name, t, parts, sizeof parts / sizeof *parts,
                                           json_object_get(cases, "texts"));
        if (share < 0.5)
            fail_msg("%s: starts have %.3f of their ids", name, share);
    }
}

/* Tests tokenizers for which later text can change the ids of a prefix. Ids that can still change
 * must not be returned. */
TEST(test_starts_that_wait)
{
#define LETTERS                                                                                    \
    "'a':0,'b':1,'x':2,'y':3,'z':4,' ':5,'\\u0301':6,'\\u0323':7,'\\u00e1':8,'\\u1ea1':9"
#define ADDED(content, single, left, right)                                                        \
    "'added_tokens':[{'id':11,'content':'" content "','single_word':" single ",'lstrip':" left     \
    ",'rstrip':" right ",'normalized':false,'special':true}]"
    static const struct {
        const char *pieces, *merges, *more;
    } tokenizers[] = {
        {",'ax':10", "['a x']",
         "'pre_tokenizer':{'type':'Split','pattern':{'Regex':'x(?=[^z]*z)|b'},"
         "'behavior':'Isolated','invert':false}"},
        {",'ab':10", "['a b']", "'normalizer':{'type':'NFC'}"},
        {",'ab':10", "['a b']", "'normalizer':{'type':'NFD'}"},
        {",'ab':10", "['a b']",
         "'normalizer':{'type':'Strip','strip_left':true,'strip_right':true}"},
        {",'ab':10", "['a b']",
         "'normalizer':{'type':'Replace','pattern':{'String':'xyz'},'content':'a'}"},
        {",'ab':10", "['a b']",
         "'normalizer':{'type':'Replace','pattern':{'Regex':'xy[^z]*z|b+$'},'content':'a'}"},
        {",'ab':10", "['a b']", ADDED("zzz", "false", "true", "false")},
        {",'ab':10", "['a b']", ADDED("zz", "false", "false", "true")},
        {",'ab':10", "['a b']", ADDED("xyz", "true", "false", "false")},
        {",'ab':10,'aabb':11", "['a b'],'ignore_merges':true", "'normalizer':null"},
        {",'ab':10,'ba':11,'aba':12,'xx':13", "['b a','a b','a ba','x x']", "'normalizer':null"},
    };
    static const char *const parts[] = {"a",        "b",        "x",   "y",  "z", " ",
                                        "\xcc\x81", "\xcc\xa3", "xyz", "zz", "ab"};
    random_state = 5;
    for (size_t i = 0; i < sizeof tokenizers / sizeof *tokenizers; i++) {
        char text[2000];
        (void)snprintf(text, sizeof text,
                       "{'model':{'type':'BPE','vocab':{" LETTERS "%s},'merges':%s},%s}",
                       tokenizers[i].pieces, tokenizers[i].merges, tokenizers[i].more);
        kvd_tokenizer *t = must_parse("x", double_quotes(text), strlen(text));
        (void)expect_starts(text, t, parts, sizeof parts / sizeof *parts, NULL);
        kvd_ids whole = {0};
        kvd_err err;
        OK(kvd_tokenizer_encode(t, "aabb", 4, true, &whole, &err));
        for (size_t cut = 0; cut < 4; cut++)
            (void)expect_start(text, t, "aabb", cut, &whole);
        kvd_ids_release(&whole);
    }
}

static uint32_t crc32_of(const uint32_t *v, size_t n)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < n; i++)
        for (unsigned b = 0; b < 32; b += 8) {
            crc ^= v[i] >> b & 0xff;
            for (int k = 0; k < 8; k++)
                crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
        }
    return ~crc;
}

static char *read_start(const char *path, size_t len)
{
    FILE *f = fopen(path, "rb");
    char *s = f ? malloc(len + 1) : NULL;
    if (s && fread(s, 1, len, f) != len) {
        free(s);
        s = NULL;
    }
    if (f)
        (void)fclose(f);
    return s;
}

TEST(test_shared_inputs)
{
    const char *shared = getenv("KVDIM_SHARED");
    shared = shared ? shared : "../shared";
    json_t *rows = load_json(TOKENIZERS "shared.json"), *row;
    kvd_tokenizer *t = NULL;
    char open_now[600] = "";
    kvd_ids ids = {0};
    kvd_err err;
    size_t i, compared = 0;
    json_array_foreach(rows, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "tokenizer"));
        const size_t len = (size_t)json_integer_value(json_object_get(row, "bytes"));
        char path[600];
        const int here = !strncmp(name, "data/", 5);
        (void)snprintf(path, sizeof path, "%s%s%s", here ? "" : shared, here ? "" : "/", name);
        if (strcmp(open_now, path)) {
            kvd_tokenizer_free(t);
            t = kvd_tokenizer_open(path, 0, &err);
            (void)snprintf(open_now, sizeof open_now, "%s", path);
        }
        (void)snprintf(path, sizeof path, "%s/%s", shared,
                       json_string_value(json_object_get(row, "text")));
        char *text = read_start(path, len);
        if (!t || !text) {
            free(text);
            continue;
        }
        ids.n = 0;
        if (kvd_tokenizer_encode(t, text, len, true, &ids, &err))
            fail_msg("%s: %s", path, err.msg);
        assert_int_equal(ids.n, json_integer_value(json_object_get(row, "n")));
        assert_int_equal(crc32_of(ids.id, ids.n),
                         json_integer_value(json_object_get(row, "crc32")));
        compared += ids.n;
        for (size_t cut = 1000; cut < len; cut = 3 * cut + 1) {
            const size_t n = expect_start(path, t, text, cut, &ids);
            assert_true((double)n > 0.5 * (double)(cut - 500) / (double)len * (double)ids.n);
        }
        free(text);
    }
    kvd_tokenizer_free(t);
    kvd_ids_release(&ids);
    if (!compared)
        skip();
}

TEST(test_lowercase)
{
    kvd_err err;
    kvd_ids upper = {0}, lower = {0};
    kvd_tokenizer *t =
        variant("unknown", json_of("{'normalizer':{'type':'Lowercase'},'added_tokens':[]}"));
    static const char a[] = "Hello \xc3\x84\xc3\x97 WORLD", b[] = "hello \xc3\xa4\xc3\x97 world";
    OK(kvd_tokenizer_encode(t, a, strlen(a), true, &upper, &err));
    OK(kvd_tokenizer_encode(t, b, strlen(b), true, &lower, &err));
    assert_int_equal(upper.n, lower.n);
    assert_memory_equal(upper.id, lower.id, upper.n * sizeof *upper.id);
    kvd_ids_release(&upper);
    kvd_ids_release(&lower);
}

/* Tests which characters are punctuation in Unicode 8.0. The tokenizer removes punctuation, so
 * "a$a" gives only 2 ids. */
TEST(test_punctuation)
{
    kvd_err err;
    kvd_tokenizer *t =
        variant("gpt2", json_of("{'pre_tokenizer':{'type':'Sequence','pretokenizers':["
                                "{'type':'Punctuation','behavior':'Removed'},"
                                "{'type':'ByteLevel','add_prefix_space':false}]}}"));
    static const struct {
        const char *text;
        size_t n; /* ids left of 'a', the character and 'a' */
    } cases[] = {{"a$a", 2},
                 {"a\xd8\x9e"
                  "a",
                  2}, /* U+061E */
                 {"a\xe1\x99\xad"
                  "a",
                  2}, /* U+166D, since then a symbol */
                 {"a\xd8\x9d"
                  "a",
                  4}, /* U+061D, of Unicode 14.0 */
                 {"a\xe2\xb9\x92"
                  "a",
                  5}}; /* U+2E52, of Unicode 13.0 */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvd_ids ids = {0};
        OK(kvd_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), false, &ids, &err));
        assert_int_equal(ids.n, cases[i].n);
        kvd_ids_release(&ids);
    }
}

TEST(test_long_documents)
{
    static const char *const files[] = {"gpt2", "llama3", "llama2"};
    const size_t len = 1 << 20;
    char *s = unit_alloc(len);
    for (size_t f = 0; f < 3; f++) {
        char path[100];
        kvd_err err;
        kvd_ids ids = {0};
        (void)snprintf(path, sizeof path, TOKENIZERS "%s.json", files[f]);
        kvd_tokenizer *t = open_tokenizer(path);
        for (int kind = 0; kind < 4; kind++) {
            random_state = 1;
            for (size_t i = 0; i < len; i++)
                s[i] = kind == 0   ? ' '
                       : kind == 1 ? 'e'
                       : kind == 2 ? "th e"[i % 4]
                                   : (char)('a' + next_random(4));
            const clock_t start = clock();
            ids.n = 0;
            OK(kvd_tokenizer_encode(t, s, len, false, &ids, &err));
            expect_decoded("the text", t, &ids, s, len);
            assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
        }
        kvd_ids_release(&ids);
    }
}

/* Tests that a byte-level tokenizer decodes the ids of a text to exactly this text. */
TEST(test_round_trip)
{
    kvd_err err;
    kvd_tokenizer *t = open_tokenizer(TOKENIZERS "llama3.json");
    kvd_ids ids = {0};
    random_state = 7;
    for (int round = 0; round < 2000; round++) {
        char s[400];
        size_t len = 0;
        while (len < 200 && next_random(40)) {
            uint32_t c = next_random(3)   ? 1 + next_random(127)
                         : next_random(2) ? next_random(0x800)
                                          : next_random(0x110000);
            if (c >= 0xd800 && c < 0xe000)
                continue;
            if (c < 0x80) {
                s[len++] = (char)c;
            } else if (c < 0x800) {
                s[len++] = (char)(0xc0 | c >> 6);
                s[len++] = (char)(0x80 | (c & 63));
            } else if (c < 0x10000) {
                s[len++] = (char)(0xe0 | c >> 12);
                s[len++] = (char)(0x80 | (c >> 6 & 63));
                s[len++] = (char)(0x80 | (c & 63));
            } else {
                s[len++] = (char)(0xf0 | c >> 18);
                s[len++] = (char)(0x80 | (c >> 12 & 63));
                s[len++] = (char)(0x80 | (c >> 6 & 63));
                s[len++] = (char)(0x80 | (c & 63));
            }
        }
        ids.n = 0;
        OK(kvd_tokenizer_encode(t, s, len, false, &ids, &err));
        expect_decoded("the text", t, &ids, s, len);
    }
    kvd_ids_release(&ids);
}

TEST(test_decode_cut_character)
{
    kvd_err err;
    kvd_tokenizer *t = open_tokenizer(TOKENIZERS "gpt2.json");
    kvd_ids ids = {0};
    static const char s[] = "x\xf0\xa0\x80\x80";
    OK(kvd_tokenizer_encode(t, s, strlen(s), false, &ids, &err));
    assert_int_equal(ids.n, 5);
    size_t n;
    char *back = kvd_tokenizer_decode(t, ids.id, 4, true, &n, &err);
    assert_non_null(back);
    assert_string_equal(back, "x\xef\xbf\xbd");
    free(back);
    /* 600 is the special token <|endoftext|>, 601 is beyond the vocabulary. */
    const uint32_t more[] = {ids.id[0], 600, 601};
    back = kvd_tokenizer_decode(t, more, 3, true, &n, &err);
    assert_string_equal(back, "x<|endoftext|>");
    free(back);
    back = kvd_tokenizer_decode(t, more, 3, false, &n, &err);
    assert_string_equal(back, "x");
    free(back);
    back = kvd_tokenizer_decode(t, NULL, 0, true, &n, &err);
    assert_non_null(back);
    assert_int_equal(n, 0);
    free(back);
    kvd_ids_release(&ids);
}

TEST(test_threads)
{
    kvd_err err;
    kvd_tokenizer *t = open_tokenizer(TOKENIZERS "qwen2.json");
    json_t *cases = load_json(TOKENIZERS "cases.json"), *texts = json_object_get(cases, "texts");
    const size_t n = json_array_size(texts);
    kvd_ids *alone = calloc(n, sizeof *alone);
    assert_non_null(alone);
    for (size_t i = 0; i < n; i++)
        OK(kvd_tokenizer_encode(t, json_string_value(json_array_get(texts, i)),
                                json_string_length(json_array_get(texts, i)), true, &alone[i],
                                &err));
    int wrong = 0;
#pragma omp parallel for reduction(+ : wrong)
    for (size_t k = 0; k < 40 * n; k++) {
        kvd_ids ids = {0};
        kvd_err mine;
        const json_t *text = json_array_get(texts, k % n);
        wrong += kvd_tokenizer_encode(t, json_string_value(text), json_string_length(text), true,
                                      &ids, &mine) ||
                 ids.n != alone[k % n].n ||
                 (ids.n && memcmp(ids.id, alone[k % n].id, ids.n * sizeof *ids.id));
        kvd_ids_release(&ids);
    }
    assert_int_equal(wrong, 0);
    for (size_t i = 0; i < n; i++)
        kvd_ids_release(&alone[i]);
    free(alone);
}

TEST_MAIN(NULL, NULL)
