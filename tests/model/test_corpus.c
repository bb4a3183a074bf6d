#include <stdio.h>
#include <string.h>

#include "common/rng.h"
#include "model/text/corpus.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_tokenizer *tok;

static const char *put_file(const char *name, const char *text, size_t len)
{
    unit_write(temp_file(name), text, len);
    return temp_file(name);
}

static const char *put(const char *name, const char *text)
{
    return put_file(name, text, strlen(text));
}

static void refused(const kvd_corpus_spec *spec, const char *end)
{
    kvd_err err = {""};
    assert_null(kvd_corpus_open(spec, tok, &err));
    const size_t n = strlen(err.msg), m = strlen(end);
    if (n < m || strcmp(err.msg + n - m, end))
        fail_msg("'%s' does not end with '%s'", err.msg, end);
    assert_null(strchr(err.msg, '\n'));
}

static void end_corpus(void *c)
{
    kvd_corpus_close(c);
}

/* Opens a corpus, which is closed when the test ends. */
static kvd_corpus *opened(const kvd_corpus_spec *spec)
{
    kvd_err err = {""};
    kvd_corpus *c = kvd_corpus_open(spec, tok, &err);
    if (!c)
        fail_msg("%s", err.msg);
    unit_at_end(end_corpus, c);
    return c;
}

/* Checks the numbers of tokens of a corpus's sequences, listed like "4 4 2". */
static void assert_lengths(const kvd_corpus *c, const char *want)
{
    char got[256] = "";
    size_t sum = 0;
    for (size_t s = 0; s < kvd_corpus_n_sequences(c); s++) {
        assert_int_equal(kvd_corpus_offset(c, s), sum);
        sum += kvd_corpus_length(c, s);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%zu", s ? " " : "",
                 kvd_corpus_length(c, s));
    }
    assert_int_equal(kvd_corpus_n_tokens(c), sum);
    assert_string_equal(got, want);
}

TEST(test_random)
{
    kvd_corpus_spec spec = {.n_random = 1003, .seed = 7, .seq_len = 100, .vocab_size = 50};
    kvd_corpus *a = opened(&spec), *b = opened(&spec);
    kvd_err err;
    assert_lengths(a, "100 100 100 100 100 100 100 100 100 100 3");
    assert_int_equal(kvd_corpus_n_documents(a), 1);
    assert_string_equal(kvd_corpus_hash(a), kvd_corpus_hash(b));
    assert_int_equal(strlen(kvd_corpus_hash(a)), 5 + 32);

    uint32_t id[1003];
    kvd_rng rng;
    kvd_rng_seed(&rng, 7, 0);
    OK(kvd_corpus_read(a, 0, 11, id, &err));
    for (size_t i = 0; i < 1003; i++)
        assert_int_equal(id[i], kvd_rng_below(&rng, 50));
    spec.seed = 8;
    b = opened(&spec);
    assert_string_not_equal(kvd_corpus_hash(a), kvd_corpus_hash(b));
    spec.seed = 7, spec.seq_len = 99;
    b = opened(&spec);
    assert_string_not_equal(kvd_corpus_hash(a), kvd_corpus_hash(b));
}

TEST(test_windows_of_ids)
{
    const char *path = put("ids.csv", "1,2,3,4,5,6,7,8,9\n10,11\n12\n13, 14 ,15,16,17\r\n");
    kvd_corpus_spec spec = {.ids = path, .seq_len = 4, .vocab_size = 18};
    kvd_corpus *c = opened(&spec);
    kvd_err err;
    uint32_t id[32];
    /* Texts are cut into sequences of at most 4 tokens, and sequences of 1 token are dropped. */
    assert_lengths(c, "4 4 2 4");
    assert_int_equal(kvd_corpus_n_documents(c), 4);
    assert_int_equal(kvd_corpus_n_dropped(c), 3);
    OK(kvd_corpus_read(c, 1, 3, id, &err));
    const uint32_t want[] = {5, 6, 7, 8, 10, 11, 13, 14, 15, 16};
    assert_memory_equal(id, want, sizeof want);
}

TEST(test_max_tokens)
{
    const char *path = put("ids.csv", "1,2,3,4,5,6,7,8,9\n10,11\n12,13,14,15,16\n");
    const char *const lengths[] = {"2",     "3",     "4",     "3 2",     "4 2",     "4 3",    "4 4",
                                   "4 3 2", "4 4 2", "4 4 3", "4 4 2 2", "4 4 2 3", "4 4 2 4"};
    for (size_t max = 2; max <= 14; max++) {
        kvd_corpus_spec spec = {.ids = path, .seq_len = 4, .vocab_size = 18, .max_tokens = max};
        kvd_corpus *c = opened(&spec);
        assert_lengths(c, lengths[max - 2]);
    }
    for (size_t max = 2; max < 60; max++)
        for (size_t seq_len = 3; seq_len < 9; seq_len++) {
            kvd_corpus_spec spec = {
                .n_random = 64, .seq_len = seq_len, .vocab_size = 18, .max_tokens = max};
            kvd_corpus *c = opened(&spec);
            assert_int_equal(kvd_corpus_n_tokens(c), max);
            for (size_t s = 0; s < kvd_corpus_n_sequences(c); s++)
                assert_in_range(kvd_corpus_length(c, s), 2, seq_len);
        }
}

TEST(test_by_text)
{
    const char *paths[3] = {
        put("p.txt", "one two three four five six seven eight nine ten"),
        put("p.jsonl", "{\"a\": \"one two three\"}\n{\"a\": \"four five six seven\"}\n"),
        put("q.jsonl", "{\"b\": \"ten nine eight seven six five four\"}\n")};
    const char *const fields[3] = {NULL, "a", "b"};
    kvd_corpus_spec spec = {.text = paths,
                            .n_text = 3,
                            .fields = fields,
                            .seq_len = 4,
                            .vocab_size = 8192,
                            .max_tokens = 5,
                            .by_text = true,
                            .no_special = true};
    kvd_corpus *c = opened(&spec);
    const size_t *const first = kvd_corpus_text_first(c);
    assert_int_equal(kvd_corpus_n_texts(c), 3);
    assert_int_equal(kvd_corpus_n_tokens(c), 15);
    assert_int_equal(first[3], kvd_corpus_n_sequences(c));
    for (size_t t = 0; t < 3; t++)
        assert_int_equal(kvd_corpus_offset(c, first[t]), 5 * t);
    spec.max_tokens = 500;
    kvd_err err = {""};
    assert_null(kvd_corpus_open(&spec, tok, &err));
    SAYS("p.txt'");
    SAYS("fewer than the 500 asked for");
}

TEST(test_texts_that_give_nothing)
{
    const char *paths[2] = {put("p.txt", "one two three four five six seven eight nine ten"),
                            put("r.txt", "a")};
    kvd_corpus_spec spec = {
        .text = paths, .n_text = 2, .seq_len = 4, .vocab_size = 8192, .no_special = true};
    kvd_err err = {""};
    assert_null(kvd_corpus_open(&spec, tok, &err));
    SAYS("r.txt': no sequence of at least 2 tokens");
    spec.max_tokens = 6;
    kvd_corpus *c = opened(&spec);
    assert_true(kvd_corpus_is_partial(c, paths, 2, &err));
    SAYS("1 of 2 texts are not read, from '");
    SAYS("r.txt' on: those before it have 6 tokens");
    assert_false(kvd_corpus_is_partial(c, paths, 1, &err));
}

TEST(test_batches)
{
    kvd_corpus_spec spec = {.n_random = 1003, .seq_len = 100, .vocab_size = 50};
    kvd_corpus *c = opened(&spec);
    assert_int_equal(kvd_corpus_batch(c, 0, 1), 1); /* a batch has at least one sequence */
    assert_int_equal(kvd_corpus_batch(c, 0, 100), 1);
    assert_int_equal(kvd_corpus_batch(c, 0, 299), 2);
    assert_int_equal(kvd_corpus_batch(c, 0, 300), 3);
    assert_int_equal(kvd_corpus_batch(c, 9, 300), 2);
    assert_int_equal(kvd_corpus_batch(c, 0, SIZE_MAX), 11);
    assert_int_equal(kvd_corpus_batch(c, 11, 300), 0);
}

TEST(test_plain_text_is_what_the_tokenizer_gives)
{
    const char *text = "One fine day,\nthe cat sat.";
    const char *path = put("a.txt", text);
    kvd_err err;
    kvd_ids ids = {0};
    uint32_t id[64];
    OK(kvd_tokenizer_encode(tok, text, strlen(text), true, &ids, &err));
    assert_in_range(ids.n, 4, 64);
    kvd_corpus_spec spec = {.text = &path, .n_text = 1, .seq_len = 64, .vocab_size = 8192};
    kvd_corpus *c = opened(&spec);
    assert_int_equal(kvd_corpus_n_tokens(c), ids.n);
    OK(kvd_corpus_read(c, 0, 1, id, &err));
    assert_memory_equal(id, ids.id, ids.n * sizeof *id);
    kvd_ids_release(&ids);
}

TEST(test_kinds_of_text)
{
    const struct {
        const char *name, *field, *text;
    } files[] = {
        {"d.jsonl", NULL,
         "{\"text\": \"first one\\nhere\"}\n\n{\"n\": 3, \"text\": \"second \\u00e4, here\"}"},
        {"d.json", NULL, "[\"first one\\nhere\", \"second \xc3\xa4, here\"]"},
        {"e.json", NULL,
         "[{\"text\": \"first one\\nhere\"}, {\"text\": \"second \xc3\xa4, here\"}]"},
        {"d.csv", "body", "id,body\n1,\"first one\nhere\"\n2,\"second \xc3\xa4, here\"\n"},
        {"f.jsonl", NULL,
         "\xEF\xBB\xBF{\"text\": \"first one\\nhere\"}\n{\"text\": \"second \\u00e4, here\"}"},
        {"f.json", NULL, "\xEF\xBB\xBF[\"first one\\nhere\", \"second \xc3\xa4, here\"]"},
        {"e.jsonl", "a,b", "{\"b\": \"here\", \"a\": \"first one\"}\n"},
    };
    char hash[KVD_CORPUS_HASH_TEXT] = "";
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *path = put(files[i].name, files[i].text);
        kvd_corpus_spec spec = {
            .text = &path, .n_text = 1, .field = files[i].field, .seq_len = 64, .vocab_size = 8192};
        kvd_corpus *c = opened(&spec);
        if (!i)
            snprintf(hash, sizeof hash, "%s", kvd_corpus_hash(c));
        assert_int_equal(kvd_corpus_n_documents(c), i < 6 ? 2 : 1);
        if (i < 6)
            assert_string_equal(kvd_corpus_hash(c), hash);
    }
    const char *paths[2] = {put("1.txt", "first one\nhere"), put("2.txt", "second \xc3\xa4, here")};
    kvd_corpus_spec spec = {.text = paths, .n_text = 2, .seq_len = 64, .vocab_size = 8192};
    kvd_corpus *c = opened(&spec);
    assert_string_equal(kvd_corpus_hash(c), hash);

    paths[0] = paths[1] = put("c.csv", "a,b\nthe first one,the second one\n");
    const char *fields[2] = {"a", "b"};
    spec = (kvd_corpus_spec){
        .text = paths, .n_text = 2, .fields = fields, .seq_len = 64, .vocab_size = 8192};
    assert_int_equal(kvd_corpus_n_texts(opened(&spec)), 2);
    fields[1] = "a";
    refused(&spec, "c.csv' are one text, which would count twice");
}

/* A text's hash ends with '+' and a hash of the text's beginning. This second hash must not depend
 * on max_tokens and seq_len. */
TEST(test_hash_of_beginning)
{
    enum { LONG = 600 };
    char text[2][LONG + 1] = {"", ""}, plus[2][32];
    for (int i = 0; i < LONG; i++)
        text[0][i] = text[1][i] = (char)('a' + i * i % 23);
    text[1][255] = '!';
    for (int i = 0; i < 2; i++) {
        const char *path = put("long.txt", text[i]);
        for (size_t k = 0; k < 3; k++) {
            const kvd_corpus_spec spec = {.text = &path,
                                          .n_text = 1,
                                          .max_tokens = (size_t[]){0, 0, 90}[k],
                                          .seq_len = k ? 50 : 64,
                                          .vocab_size = 8192};
            const char *const at = strchr(kvd_corpus_hash(opened(&spec)), '+');
            assert_non_null(at);
            assert_int_equal(strlen(at), 17);
            if (!k)
                snprintf(plus[i], sizeof plus[i], "%s", at);
            assert_string_equal(at, plus[i]);
        }
    }
    assert_string_not_equal(plus[0], plus[1]);
    text[0][255] = '\0';
    const char *path = put("short.txt", text[0]);
    const kvd_corpus_spec spec = {.text = &path, .n_text = 1, .seq_len = 64, .vocab_size = 8192};
    assert_null(strchr(kvd_corpus_hash(opened(&spec)), '+'));
}

static void refuse_text(const char *name, const char *field, const char *text, size_t len,
                        const char *end)
{
    const char *path = put_file(name, text, len);
    char want[512];
    kvd_corpus_spec spec = {
        .text = &path, .n_text = 1, .field = field, .seq_len = 64, .vocab_size = 8192};
    snprintf(want, sizeof want, "'%s' %s", path, end);
    kvd_err err = {""};
    assert_null(kvd_corpus_open(&spec, tok, &err));
    if (strncmp(err.msg, want, strlen(want)))
        fail_msg("'%s' does not start with '%s'", err.msg, want);
}

TEST(test_refused_texts)
{
#define REFUSE(name, field, text, end) refuse_text(name, field, text, strlen(text), end)
    REFUSE("x.txt", NULL, "", "is empty: no document in it");
    REFUSE("x.jsonl", NULL, "\n \n", "is empty: no document in it");
    REFUSE("x.json", NULL, "[]", "is empty: no document in it");
    REFUSE("x.csv", NULL, "text\n", "is empty: no document in it");
    REFUSE("x.csv", NULL, "", "is empty: no document in it");
    REFUSE("x.jsonl", NULL, "{\"text\": \"a b c\"}\n{\"text\": \n", "line 2: not JSON: ");
    REFUSE("x.jsonl", NULL, "{\"text\": \"a b c\"}\n{\"txt\": \"a\", \"n\": 1}\n",
           "line 2: no key 'text'; keys: txt, n");
    REFUSE("x.jsonl", NULL, "{\"text\": \"a\", \"text\": \"b\"}\n",
           "line 1: not JSON: duplicate object key");
    REFUSE("x.json", NULL, "[{\"text\": \"a\", \"text\": \"b\"}]",
           "line 1: not JSON: duplicate object key");
    REFUSE("x.csv", NULL, "text,id,text\na,1,b\n", "row 1: two columns 'text': 1 and 3");
    REFUSE("x.jsonl", NULL, "{\"text\": 17}\n", "line 1: key 'text' is not a string");
    REFUSE("x.jsonl", NULL, "{\"text\": \"\"}\n", "line 1: the text is empty");
    REFUSE("x.jsonl", NULL, "[1]\n", "line 1: not an object, nor a string");
    REFUSE("x.json", "body", "[\"a\"]", "entry 1: not an object");
    REFUSE("x.json", NULL, "{\"text\": \"a\"}", "is not a JSON list");
    REFUSE("x.json", NULL, "[\"a\",\n\"b]", "line 2: not JSON: ");
    REFUSE("x.csv", NULL, "review,label\na,b\n", "row 1: no column 'text'; columns: review, label");
    REFUSE("x.csv", "review", "review,label\na,b\na\n", "row 3: 1 fields, the header has 2");
    REFUSE("x.csv", "review", "review,label\n,b\n", "row 2: the text is empty");
    const char *path = put("bad.txt", "abc\xff\xfe");
    kvd_corpus_spec spec = {.text = &path, .n_text = 1, .seq_len = 64, .vocab_size = 8192};
    refused(&spec, "bad.txt': text is not valid UTF-8 at byte 3");
    spec.field = "review";
    refused(&spec, "bad.txt' has no fields, so no 'review' (.jsonl, .json and .csv files have)");
    const char *const fields[] = {"review"};
    spec.fields = fields;
    refused(&spec, "bad.txt' has no fields, so no 'review' (.jsonl, .json and .csv files have)");
    spec.fields = NULL;
    path = put("x.jsonl", "{}");
    spec.field = "a,,b";
    refused(&spec, "field 'a,,b' has an empty name in it");
    spec.field = NULL;
    path = put("x.ndjson", "{\"text\": \"a\"}");
    refused(&spec, "x.ndjson': .ndjson files are not read; rename it to .jsonl");
    path = put("x.TSV", "text\ta\n");
    refused(&spec, "x.TSV': .tsv files are not read; save it as .csv");
    spec.field = "review";
    path = put("x.jsonl.gz", "\x1f\x8b");
    refused(&spec, "x.jsonl.gz': .gz files are not read; decompress it");
    spec.field = NULL;
    path = temp_folder();
    refused(&spec, "is a folder, not a text");
    path = "/nonexistent/x.txt";
    refused(&spec, "cannot open '/nonexistent/x.txt': No such file or directory");
    path = put("x.txt", "one fine day");
    spec.vocab_size = 3;
    refused(&spec, ", the model's vocabulary has 3");
}

static void refuse_ids(const char *text, size_t max_tokens, const char *end)
{
    const char *path = put("x.csv", text);
    char want[512];
    kvd_corpus_spec spec = {.ids = path, .seq_len = 8, .vocab_size = 100, .max_tokens = max_tokens};
    snprintf(want, sizeof want, "'%s'%s", path, end);
    refused(&spec, want);
}

TEST(test_refused_ids)
{
    refuse_ids("1,2\n3,100\n", 0, " row 2: token id 100, the model's ids are 0 to 99");
    refuse_ids("1,2\n3,4294967297\n", 0,
               " row 2: token id 4294967297, the model's ids are 0 to 99");
    refuse_ids("1,2\n3,99999999999999999999999999\n", 0,
               " row 2: token id 99999999999999999999, the model's ids are 0 to 99");
    refuse_ids("1,x\n", 0, " row 1: 'x' is not a token id");
    refuse_ids("1,-2\n", 0, " row 1: '-2' is not a token id");
    refuse_ids("1,2.5\n", 0, " row 1: '2.5' is not a token id");
    refuse_ids("1,2,\n", 0, " row 1: '' is not a token id");
    refuse_ids("", 0, " is empty: no sequence in it");
    refuse_ids("1\n2\n", 0, ": no sequence of at least 2 tokens");
    refuse_ids("1,2\n4,5\n6,7\n", 5, ": sequences of 2 and more do not add up to 5 tokens");
    refuse_ids("1,2,3\n4,5\n", 6, ": 5 tokens, fewer than the 6 asked for");
    /* The file holds 6 tokens, although 7 are asked for. */
    refuse_ids("1,2,3\n4,5,6\n", 7, ": 6 tokens, fewer than the 7 asked for");
    kvd_corpus_spec spec = {.n_random = 10, .seq_len = 2, .vocab_size = 100, .max_tokens = 5};
    refused(&spec, "5 tokens cannot be cut into sequences of 2");
    spec.seq_len = 1;
    refused(&spec, "sequences of 1 tokens: at least 2 are needed");
}

TEST(test_stops_early)
{
    kvd_corpus_spec spec = {
        .ids = put("x.csv", "1,2,3\n4,5\nx\n"), .seq_len = 8, .vocab_size = 100, .max_tokens = 5};
    kvd_corpus *c = opened(&spec);
    assert_lengths(c, "3 2");
    const char *path = put("x.jsonl", "{\"text\": \"one fine day\"}\nnonsense\n");
    kvd_corpus_spec text = {
        .text = &path, .n_text = 1, .seq_len = 8, .vocab_size = 8192, .max_tokens = 2};
    c = opened(&text);
    assert_lengths(c, "2");
}

TEST(test_start_of_a_long_text)
{
    enum { COPIES = 4000 };
    static const char line[] =
        "One fine day,\nthe cat sat. It's 12,345 o'clock --  \xc3\xa4\xe4\xbd\xa0!\n";
    const size_t n = strlen(line), len = COPIES * n;
    char *text = unit_alloc(len + 2), *ids_text = unit_alloc(len * 8);
    for (size_t i = 0; i < COPIES; i++)
        memcpy(text + i * n, line, n);
    memcpy(text + len, "\xff\xfe", 2);
    kvd_err err;
    kvd_ids ids = {0};
    OK(kvd_tokenizer_encode(tok, text, len, true, &ids, &err));
    size_t used = 0;
    for (size_t i = 0; i < ids.n; i++)
        used += (size_t)sprintf(ids_text + used, "%s%u", i ? "," : "", ids.id[i]);
    const char *plain = put_file("long.txt", text, len), *bad = put_file("bad.txt", text, len + 2);
    const char *list = put_file("long.csv", ids_text, used);
    const size_t max[] = {2, 3, 100, 101, 1000, 4097, ids.n / 2, ids.n - 1, ids.n};
    const size_t seq_len[] = {3, 100, 512};
    for (size_t i = 0; i < sizeof max / sizeof *max; i++)
        for (size_t k = 0; k < 3; k++) {
            kvd_corpus_spec spec = {
                .seq_len = seq_len[k], .vocab_size = 8192, .max_tokens = max[i]};
            spec.ids = list;
            kvd_corpus *want = opened(&spec);
            spec.ids = NULL;
            spec.text = max[i] < 5000 ? &bad : &plain;
            spec.n_text = 1;
            kvd_corpus *got = opened(&spec);
            assert_int_equal(kvd_corpus_n_tokens(got), max[i]);
            assert_true(kvd_corpus_hash_same(kvd_corpus_hash(got), kvd_corpus_hash(want)));
        }
    kvd_corpus_spec spec = {
        .text = &plain, .n_text = 1, .seq_len = 64, .vocab_size = 8192, .max_tokens = ids.n + 1};
    char message[200];
    snprintf(message, sizeof message, ": %zu tokens, fewer than the %zu asked for", ids.n,
             ids.n + 1);
    refused(&spec, message);
    kvd_ids_release(&ids);
}

static int start(void **state)
{
    (void)state;
    kvd_err err;
    tok = kvd_tokenizer_open("data/models/kvdim-6m/tokenizer.json", 0, &err);
    return tok ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    kvd_tokenizer_free(tok);
    return 0;
}

TEST_MAIN(start, stop)
