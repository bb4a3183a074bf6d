/* Tests that hostile tokenizers and texts are refused within seconds. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "common/run.h"
#include "tokenizer_case.h"
#include "unit.h"

/* Returns the JSON text of a small tokenizer with `field` replaced by `value`. */
static char *small(const char *field, const char *value)
{
    json_t *const j = load_json(TOKENIZERS "unknown.json");
    assert_int_equal(json_object_set(j, field, json_of(value)), 0);
    return json_dumps(j, JSON_COMPACT);
}

static void expect_refused(const char *text, size_t len, const char *message)
{
    kvd_err err = {.msg = "nothing"};
    kvd_tokenizer *t = kvd_tokenizer_parse("x.json", text, len, 0, &err);
    if (t)
        fail_msg("accepted, not refused with '%s'", message);
    if (!strstr(err.msg, message) || strncmp(err.msg, "tokenizer 'x.json': ", 20))
        fail_msg("'%s' does not say '%s'", err.msg, message);
}

TEST(test_refused_fields)
{
#define MODEL(more) "{'type':'BPE','vocab':{'a':0,'b':1,'ab':2}," more "}"
#define SPLIT(regex, more)                                                                         \
    "{'type':'Split','pattern':{'Regex':'" regex "'},'behavior':'Isolated','invert':false" more "}"
#define TOKEN(id, content)                                                                         \
    "{'id':" id ",'content':'" content "','single_word':false,'lstrip':false,'rstrip':false,"      \
    "'normalized':false,'special':true}"
    static const struct {
        const char *field, *value, *message;
    } bad[] = {
        {"extra", "1", "field 'extra' is not supported"},
        {"", "1", "field '' is not supported"},
        {"mode", "1", "field 'mode' is not supported"},
        {"version", "'2.0'", "field 'version' is not"},
        {"truncation", "{'max_length':8}", "field 'truncation' is set"},
        {"padding", "{}", "field 'padding' is set"},
        {"model", "{'type':'Unigram','vocab':[]}", "model 'Unigram' is not supported"},
        {"model", "[]", "model: not a JSON object"},
        {"model", "{'type':'BPE','merges':[]}", "field 'vocab' is missing"},
        {"model", "{'type':'BPE','vocab':{}}", "field 'merges' is missing"},
        {"model", "{'type':'BPE','vocab':['a'],'merges':[]}", "field 'vocab' is not an object"},
        {"model", "{'type':'BPE','vocab':{'a':'0'},'merges':[]}", "a: not an integer"},
        {"model", "{'type':'BPE','vocab':{'a':0.5},'merges':[]}", "a: not an integer"},
        {"model", "{'type':'BPE','vocab':{'a':-1},'merges':[]}", "-1 is not in 0..2147483647"},
        {"model", "{'type':'BPE','vocab':{'a':2147483648},'merges':[]}", "2147483648 is not in"},
        {"model", "{'type':'BPE','vocab':{'a':7,'b':7},'merges':[]}", "two pieces have id 7"},
        {"model", MODEL("'merges':{}"), "field 'merges' is not an array"},
        {"model", MODEL("'merges':['ab']"), "merge 0: 'ab' is not two pieces"},
        {"model", MODEL("'merges':['a b','a b c']"), "merge 1: 'a b c' is not two pieces"},
        {"model", MODEL("'merges':['a b',['a','b']]"), "merge 1: not a string"},
        {"model", MODEL("'merges':[['a','b'],'a b']"), "merge 1: not a pair of strings"},
        {"model", MODEL("'merges':[['a','b','c']]"), "merge 0: not a pair of strings"},
        {"model", MODEL("'merges':[['a','q']]"), "merge 0: 'q' is not in the vocabulary"},
        {"model", MODEL("'merges':[['b','a']]"),
         "merge 0: its product 'ba' is not in the vocabulary"},
        {"model", MODEL("'merges':[],'dropout':0.1"), "'dropout' other than null or 0"},
        {"model", MODEL("'merges':[],'end_of_word_suffix':'</w>'"),
         "'end_of_word_suffix' other than"},
        {"model", MODEL("'merges':[],'continuing_subword_prefix':'##'"),
         "'continuing_subword_prefix'"},
        {"model", MODEL("'merges':[],'fuse_unk':1"), "field 'fuse_unk' is not true or false"},
        {"model", MODEL("'merges':[],'unk_token':3"), "field 'unk_token' is not a string"},
        {"model", MODEL("'merges':[],'nonsense':3"), "model: field 'nonsense' is not supported"},
        {"normalizer", "{'type':'BertNormalizer'}", "normalizer 'BertNormalizer' is not supported"},
        {"normalizer", "{'type':'Precompiled'}", "normalizer 'Precompiled' is not supported"},
        {"normalizer", "{'prepend':'x'}", "normalizer: field 'type' is missing"},
        {"normalizer", "{'type':'Sequence','normalizers':[{'type':'Nmt'}]}", "normalizer 'Nmt'"},
        {"normalizer", "{'type':'Strip','strip_left':true}", "'strip_right' is missing"},
        {"normalizer", "{'type':'Replace','pattern':'x','content':''}",
         "pattern: not a JSON object"},
        {"pre_tokenizer", "{'type':'Punctuation','behavior':'x'}",
         "pre_tokenizer Punctuation: behavior 'x'"},
        {"pre_tokenizer", "{'type':'UnicodeScripts'}", "pre_tokenizer 'UnicodeScripts' is not"},
        {"pre_tokenizer", "3", "pre_tokenizer: not a JSON object"},
        {"pre_tokenizer",
         "{'type':'Sequence','pretokenizers':[{'type':'ByteLevel','add_prefix_space':false},"
         "{'type':'Whitespace'}]}",
         "'Whitespace' after ByteLevel is not supported"},
        {"pre_tokenizer", "{'type':'Metaspace','replacement':'__'}", "is not one character"},
        {"pre_tokenizer", "{'type':'Metaspace','replacement':'_','prepend_scheme':'x'}",
         "'x' is not"},
        {"pre_tokenizer", "{'type':'Metaspace','replacement':'_','add_prefix_space':false}",
         "is 'always'"},
        {"pre_tokenizer", SPLIT("a", ",'more':1"), "field 'more' is not supported"},
        {"pre_tokenizer", SPLIT("(", ""), "does not compile: missing closing parenthesis"},
        {"pre_tokenizer", SPLIT("a**", ""), "does not compile"},
        {"pre_tokenizer", SPLIT("\\\\p{Klingon}", ""), "does not compile"},
        {"pre_tokenizer", SPLIT("\\\\h", ""), "this escape at byte 0 is not supported"},
        {"pre_tokenizer", SPLIT("a\\\\b", ""), "this escape at byte 1 is not supported"},
        {"pre_tokenizer", SPLIT("(a)\\\\1", ""), "this escape at byte 3 is not supported"},
        {"pre_tokenizer", SPLIT("[a[b]]", ""), "a class in a class at byte 2"},
        {"pre_tokenizer", SPLIT("[a-z&&[^b]]", ""), "&& in a class at byte 4"},
        {"pre_tokenizer", SPLIT("(?m:a.b)", ""), "this group at byte 0"},
        {"pre_tokenizer", SPLIT("a(?i)b", ""), "this group at byte 1"},
        {"pre_tokenizer", SPLIT("(?R)", ""), "this group at byte 0"},
        {"pre_tokenizer", SPLIT("a{,3}", ""), "this brace at byte 1"},
        {"pre_tokenizer", SPLIT("a{1,3}+", ""), "a repeated or lazy interval at byte 1"},
        {"pre_tokenizer", SPLIT("(?i:strasse)", ""), "ignoring case, at byte 4"},
        {"pre_tokenizer", SPLIT("", ""), "pattern of 0 bytes"},
        {"post_processor", "{'type':'BertProcessing'}",
         "post_processor 'BertProcessing' is not supported"},
        {"post_processor", "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}}]}",
         "special token 'x' is not defined"},
        {"post_processor", "{'type':'TemplateProcessing','single':[{'Sequence':{'id':'B'}}]}",
         "sequence 'B' in the template for one sequence"},
        {"post_processor",
         "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}}],"
         "'special_tokens':{'x':{'id':'x','ids':[99999]}}}",
         "id 99999 is not in the vocabulary"},
        {"decoder", "{'type':'WordPiece'}", "decoder 'WordPiece' is not supported"},
        {"decoder", "{'type':'Strip','content':'ab'}", "content 'ab' is not one character"},
        {"added_tokens", "{}", "field 'added_tokens' is not an array"},
        {"added_tokens", "[{'id':0}]", "field 'content' is missing"},
        {"added_tokens", "[{'content':'x'}]", "field 'id' is missing"},
        {"added_tokens", "[" TOKEN("7", "<unk>") "]",
         "'<unk>' has id 7, loaders that number added tokens give it 0"},
        {"added_tokens", "[" TOKEN("70000", "new") "]", "'new' has id 70000, loaders"},
        {"added_tokens", "[" TOKEN("0", "<unk>") "," TOKEN("0", "<unk>") "]",
         "two added tokens have id 0"},
        {"added_tokens", "[" TOKEN("0", "") "]", "0 bytes, 1 to 4096"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *text = small(bad[i].field, bad[i].value);
        expect_refused(text, strlen(text), bad[i].message);
        free(text);
    }
}

TEST(test_refused_bytes)
{
    expect_refused("", 0, "not JSON, and a llama2.c tokenizer needs the vocabulary size");
    expect_refused("[]", 2, "not JSON");
    expect_refused("  {", 3, "not valid JSON");
    expect_refused("{}", 2, "field 'model' is missing");
    expect_refused("{\"a\":\"\xff\"}", 9, "not valid JSON");
    expect_refused("{\"a\":1,\"a\":2}", 13, "duplicate object key");
    static const char empty[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}";
    expect_refused(empty, strlen(empty), "the vocabulary is empty");
    static const char same[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}";
    expect_refused(same, strlen(same), "duplicate object key");

    const size_t deep = 100000;
    char *text = unit_alloc(60 * deep);
    memcpy(text, "{\"x\":", 5);
    memset(text + 5, '[', deep);
    expect_refused(text, deep + 5, "not valid JSON: maximum parsing depth");
    char *p = text;
    p += sprintf(p, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":");
    for (int i = 0; i < 100; i++)
        p += sprintf(p, "{\"type\":\"Sequence\",\"decoders\":[");
    p += sprintf(p, "{\"type\":\"Fuse\"}");
    for (int i = 0; i < 100; i++)
        p += sprintf(p, "]}");
    p += sprintf(p, "}");
    expect_refused(text, (size_t)(p - text), "decoder: nested deeper than 32");

    json_t *j = load_json(TOKENIZERS "llama3.json");
    char *whole = json_dumps(j, JSON_COMPACT);
    kvd_err err;
    for (size_t len = 0; len < strlen(whole); len += 97)
        assert_null(kvd_tokenizer_parse("cut", whole, len, 0, &err));
    free(whole);
    assert_null(kvd_tokenizer_open("tests/data/tokenizers", 0, &err));
    SAYS("'tests/data/tokenizers' is a folder, not a file");
    assert_null(kvd_tokenizer_open("/nonexistent", 0, &err));
    assert_string_equal(err.msg, "cannot open '/nonexistent': No such file or directory");
}

TEST(test_sparse_ids)
{
    static const char text[] = "{\"model\":{\"vocab\":{\"a\":2147483647,\"b\":5,\"ab\":1000000000},"
                               "\"merges\":[\"#version: 0.2\",\"a b\"]}}";
    kvd_tokenizer *t = must_parse("sparse", text, strlen(text));
    kvd_ids ids = {0};
    kvd_err err;
    assert_int_equal(kvd_tokenizer_size(t), 2147483648u);
    OK(kvd_tokenizer_encode(t, "aabb", 4, true, &ids, &err));
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.id[0], 2147483647);
    assert_int_equal(ids.id[1], 1000000000);
    assert_int_equal(ids.id[2], 5);
    size_t n;
    const uint32_t hole = 6;
    char *const nothing = kvd_tokenizer_decode(t, &hole, 1, true, &n, &err);
    assert_non_null(nothing);
    assert_int_equal(n, 0);
    free(nothing);
    kvd_ids_release(&ids);
    assert_null(kvd_tokenizer_parse("sparse", text, strlen(text), 1000, &err));
    SAYS("ids go up to 2147483647, the model's vocabulary has 1000");
}

static void expect_encode_error(const kvd_tokenizer *t, const char *s, size_t len,
                                const char *message)
{
    kvd_err err;
    kvd_ids ids = {0};
    OK(kvd_ids_push(&ids, 77, &err));
    assert_int_equal(kvd_tokenizer_encode(t, s, len, true, &ids, &err), -1);
    SAYS(message);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.id[0], 77);
    kvd_ids_release(&ids);
}

TEST(test_bad_texts)
{
    kvd_tokenizer *t = open_tokenizer(TOKENIZERS "gpt2.json");
    static const struct {
        const char *s;
        size_t len, at;
    } bad[] = {
        {"\x80", 1, 0},
        {"abcdefgh\xff", 9, 8},
        {"\xc3", 1, 0},
        {"a\xe4\xbd", 3, 1},
        {"\xc0\x80", 2, 0},
        {"\xe0\x80\x80", 3, 0},
        {"x\xed\xa0\x80", 4, 1},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xf0\x8f\xbf\xbf", 4, 0},
        {"\xc3\xa4\xc3(", 4, 2},
        {"\xf8\x88\x80\x80\x80", 5, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char message[100];
        (void)snprintf(message, sizeof message, "text is not valid UTF-8 at byte %zu", bad[i].at);
        expect_encode_error(t, bad[i].s, bad[i].len, message);
    }

    /* The match limit of PCRE2 must stop a regular expression that takes exponential time. */
    t = variant("unknown",
                json_of("{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'(?:a|a)+$'},"
                        "'behavior':'Isolated','invert':false}}"));
    expect_encode_error(t, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 51,
                        "match limit exceeded");

    static const char *const certain[][3] = {
        {"{'normalizer':{'type':'Lowercase'}}", "ab\xcd\xb8",
         "normalizer 'Lowercase': U+0378 at byte 2 is not in Unicode "},
        {"{'normalizer':{'type':'Replace','pattern':{'Regex':'x*'},'content':'y'}}", "ab",
         "matches the empty text at byte 0"},
    };
    for (size_t i = 0; i < 2; i++) {
        json_t *const patch = json_of(certain[i][0]);
        json_object_set_new(patch, "added_tokens", json_array());
        t = variant("unknown", patch);
        expect_encode_error(t, certain[i][1], strlen(certain[i][1]), certain[i][2]);
    }

    static const char text[] =
        "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"?\"}}";
    t = must_parse("x", text, strlen(text));
    expect_encode_error(t, "ab", 2, "neither is the unk_token");
}

static kvd_tokenizer *splits_at(const char *base, const char *regex)
{
    char text[400];
    (void)snprintf(text, sizeof text,
                   "{'pre_tokenizer':{'type':'Split','pattern':{'Regex':'%s'},"
                   "'behavior':'Isolated','invert':false}}",
                   regex);
    return variant(base, json_of(text));
}

TEST(test_slow_patterns)
{
    const size_t len = 2000000;
    char *s = unit_alloc(len);
    memset(s, 'a', len);
    static const char *const slow[] = {"a{0,60000}[bx]", "a{0,60000}[bx]|a"};
    for (size_t i = 0; i < 2; i++) {
        kvd_tokenizer *t = splits_at("unknown", slow[i]);
        char message[100];
        (void)snprintf(message, sizeof message,
                       "tokenizer 'unknown': pattern '%s' is too slow for the text: ", slow[i]);
        const clock_t start = clock();
        expect_encode_error(t, s, len, message);
        assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10);
    }
    kvd_tokenizer *t = splits_at("unknown", "[bx]a{0,60000}");
    kvd_err err;
    kvd_ids ids = {0};
    OK(kvd_tokenizer_encode(t, s, len, true, &ids, &err));
    kvd_ids_release(&ids);
}

/* A normalizer must not make a text more than about 64 times as long as it was. */
TEST(test_growing_normalizer)
{
    char long_a[1001] = "", *patch_text = NULL;
    memset(long_a, 'a', 1000);
    for (int times = 1; times <= 3; times += 2) {
        assert_true(asprintf(&patch_text,
                             "{'added_tokens':[],'normalizer':{'type':'Sequence',"
                             "'normalizers':[{'type':'Replace','pattern':{'String':'a'},"
                             "'content':'%s'}]}}",
                             long_a) > 0);
        json_t *const patch = json_of(patch_text);
        json_t *list = json_object_get(json_object_get(patch, "normalizer"), "normalizers");
        for (int k = 1; k < times; k++)
            assert_int_equal(json_array_append(list, json_array_get(list, 0)), 0);
        kvd_tokenizer *t = variant("unknown", patch);
        free(patch_text);
        char *s = unit_alloc(30000);
        memset(s, 'a', 30000);
        expect_encode_error(
            t, s, 30000,
            "tokenizer 'unknown': normalizer Replace: 30000 bytes of text become more than 1985536");
        kvd_err err;
        kvd_ids ids = {0};
        if (times == 1)
            OK(kvd_tokenizer_encode(t, s, 60, true, &ids, &err));
        kvd_ids_release(&ids);
    }
}

/* Sends SIGTERM to this process after `ms` milliseconds. */
static timer_t stop_after(long ms)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGTERM};
    const struct itimerspec when = {.it_value = {.tv_nsec = ms * 1000000}};
    assert_int_equal(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    assert_int_equal(timer_settime(timer, 0, &when, NULL), 0);
    return timer;
}

TEST(test_interrupted)
{
    static const struct {
        const char *base, *pattern;
        size_t len;
    } slow[] = {
        {"unknown", "a{0,60000}[bx]", 4000000}, {"unknown", "b", 30000000}, {"gpt2", "b", 6000000}};
    char name[] = "test", *arguments[] = {name, NULL};
    for (size_t i = 0; i < sizeof slow / sizeof *slow; i++) {
        const size_t len = slow[i].len;
        char *s = unit_alloc(len);
        memset(s, i < 2 ? 'a' : 'e', len);
        kvd_tokenizer *t = splits_at(slow[i].base, slow[i].pattern);
        kvd_common_options options = {.threads = 1};
        kvd_run run;
        kvd_err err;
        kvd_ids ids = {0};
        OK(kvd_run_start(&run, name, 1, arguments, &options, &err));
        const clock_t start = clock(); /* processor time: other processes do not count */
        const timer_t timer = stop_after(200);
        assert_int_equal(kvd_tokenizer_encode(t, s, len, true, &ids, &err), -1);
        SAYS("': interrupted");
        const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 3)
            fail_msg("%.1f s of processor time", seconds);
        assert_int_equal(timer_delete(timer), 0);
        kvd_run_release(&run);
        OK(kvd_run_start(&run, name, 1, arguments, &options, &err));
        kvd_run_release(&run);
        kvd_ids_release(&ids);
    }
}

TEST_MAIN(NULL, NULL)
