/* Compares prompts with prompts made by the benchmarks' own code
 * (tests/oracle/make_benchmark_prompts.py). */
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

#include "evaluate/tasks/benchmark_run.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_checkpoint *checkpoint;
static kvd_tokenizer *tokenizer;

static int set_up(void **state)
{
    (void)state;
    kvd_err err = {""};
    char *path = NULL;
    checkpoint = kvd_checkpoint_open("data/models/kvdim-6m", &err);
    path = checkpoint ? kvd_checkpoint_tokenizer_path(checkpoint, &err) : NULL;
    tokenizer = path ? kvd_tokenizer_open(path, 8192, &err) : NULL;
    free(path);
    if (!tokenizer)
        print_error("%s\n", err.msg);
    return tokenizer ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_tokenizer_free(tokenizer);
    kvd_checkpoint_close(checkpoint);
    return 0;
}

static const kvd_benchmark_settings plain = {.metric = -1};

static void read_one(const char *name, json_t *item, kvd_benchmark *b)
{
    const char *const path = temp_file(name);
    kvd_err err = {""};
    assert_int_equal(json_dump_file(item, path, JSON_COMPACT), 0);
    *b = (kvd_benchmark){0};
    OK(kvd_benchmark_read(b, path, &plain, &err));
    assert_int_equal(b->n, 1);
}

static void assert_prompt(const kvd_benchmark_item *x, const char *want)
{
    char *prompt = NULL;
    assert_true(
        asprintf(&prompt, "%s%s%s", x->context, x->turn[0].question, x->turn[0].answer_prefix) > 0);
    assert_string_equal(prompt, want);
    free(prompt);
}

static const char *text_of(const json_t *x, const char *field)
{
    return json_string_value(json_object_get(x, field));
}

TEST(prompts_as_the_authors)
{
    json_error_t why;
    json_t *const all = json_load_file("tests/data/benchmark_prompts.json", 0, &why);
    assert_true(json_array_size(all) > 40);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *const x = json_array_get(all, i), *const later = json_object_get(x, "later");
        kvd_benchmark b;
        read_one(text_of(x, "file"), json_object_get(x, "item"), &b);
        const kvd_benchmark_item *const item = &b.item[0];
        assert_prompt(item, text_of(x, "prompt"));
        const char *const end = strstr(item->context, "two lines.");
        if (!end || strcmp(end, "two lines."))
            fail_msg("%s: the context is '%s'", item->task, item->context);
        assert_int_equal(item->max_new_tokens,
                         json_integer_value(json_object_get(x, "max_new_tokens")));
        assert_int_equal(item->n_turns, 1 + json_array_size(later));
        for (size_t t = 1; t < item->n_turns; t++)
            assert_string_equal(item->turn[t].question,
                                json_string_value(json_array_get(later, t - 1)));
        kvd_benchmark_release(&b);
    }
    json_decref(all);
}

TEST(infinitebench_as_the_authors)
{
    json_error_t why;
    json_t *const root = json_load_file("tests/data/infinitebench.json", 0, &why),
                  *const all = json_object_get(root, "prompts");
    assert_int_equal(json_array_size(all), 5);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *const x = json_array_get(all, i);
        const json_t *const references = json_object_get(x, "references");
        const char *const task = text_of(x, "task");
        char name[80];
        kvd_benchmark b;
        snprintf(name, sizeof name, "%s.jsonl", task);
        read_one(name, json_object_get(x, "item"), &b);
        const kvd_benchmark_item *const item = &b.item[0];
        assert_string_equal(item->task, task);
        assert_prompt(item, text_of(x, "prompt"));
        assert_int_equal(item->max_new_tokens,
                         json_integer_value(json_object_get(x, "max_new_tokens")));
        assert_int_equal(item->turn[0].n_references, json_array_size(references));
        for (size_t k = 0; k < item->turn[0].n_references; k++)
            assert_string_equal(item->turn[0].reference[k],
                                json_string_value(json_array_get(references, k)));
        kvd_benchmark_release(&b);
    }
    json_decref(root);
    /* AddressSanitizer ends the test if `input` is read beyond its end. */
    const char *const path = temp_file("code_run.jsonl");
    kvd_benchmark b = {0};
    kvd_err err = {""};
    unit_write_text(path, "{\"input\": \"Run func_1\", \"context\": \"c\", \"answer\": 4,"
                          " \"options\": []}\n");
    FAILS_WITH(kvd_benchmark_read(&b, path, &plain, &err), "has no call func_N(N)");
    kvd_benchmark_release(&b);
}

TEST(shots_as_the_harness)
{
    json_error_t why;
    json_t *const all = json_load_file("tests/data/gsm8k_shots.json", 0, &why);
    const char *const path = temp_file("gsm8k.jsonl");
    assert_int_equal(json_array_size(all), 3);
    for (size_t i = 0; i < json_array_size(all); i++) {
        const json_t *const x = json_array_get(all, i);
        json_t *const item = json_pack("{s:O, s:s}", "question", json_object_get(x, "question"),
                                       "answer", "2 + 3\n#### 5");
        const kvd_benchmark_settings s = {
            .metric = -1, .shots = (size_t)json_integer_value(json_object_get(x, "shots"))};
        kvd_benchmark b = {0};
        kvd_err err = {""};
        assert_int_equal(json_dump_file(item, path, JSON_COMPACT), 0);
        OK(kvd_benchmark_read(&b, path, &s, &err));
        assert_string_equal(b.item[0].context, text_of(x, "context"));
        assert_prompt(&b.item[0], text_of(x, "prompt"));
        assert_string_equal(b.item[0].stop, text_of(x, "stop"));
        assert_int_equal(b.item[0].max_new_tokens, 256);
        assert_int_equal(b.item[0].metric, KVD_METRIC_NUMBER);
        kvd_benchmark_release(&b);
        json_decref(item);
    }
    json_decref(all);
}

static void encode(const char *text, bool special, kvd_ids *ids)
{
    kvd_err err = {""};
    *ids = (kvd_ids){0};
    OK(kvd_tokenizer_encode(tokenizer, text, strlen(text), special, ids, &err));
}

static void start(kvd_benchmark_run *r, const kvd_benchmark *b, kvd_compress_at at,
                  kvd_benchmark_turns turns, size_t max_len)
{
    const kvd_benchmark_run_settings s = {
        .compress_at = at, .turns = turns, .max_len = max_len, .generator = {.max_tokens = 512}};
    kvd_err err = {""};
    OK(kvd_benchmark_run_init(r, b, checkpoint, tokenizer, &s, &err));
}

TEST(the_middle_is_cut)
{
    static const char text[] = "One two three four five six seven eight nine ten. Eleven twelve "
                               "thirteen fourteen fifteen sixteen seventeen eighteen nineteen.",
                      question[] = " What comes next?";
    enum { NEW = 3, ROOM = 20, HALF = ROOM / 2 };
    kvd_ids whole, context, asked;
    kvd_benchmark b;
    kvd_benchmark_run r;
    char *both = NULL;
    json_t *const item =
        json_pack("{s:s, s:s, s:[s], s:s, s:i}", "context", text, "question", question,
                  "references", "x", "metric", "exact", "max_new_tokens", NEW);
    read_one("own.jsonl", item, &b);
    assert_true(asprintf(&both, "%s%s", text, question) > 0);
    encode(both, true, &whole);
    encode(text, true, &context);
    encode(question, false, &asked);
    assert_true(whole.n > ROOM + 5 && asked.n < HALF);

    start(&r, &b, KVD_COMPRESS_PROMPT, KVD_TURNS_FOLLOW, ROOM + NEW);
    assert_true(r.cut[0]);
    assert_int_equal(r.run.offset[1], ROOM);
    assert_memory_equal(r.run.id, whole.id, HALF * sizeof *whole.id);
    assert_memory_equal(r.run.id + HALF, whole.id + whole.n - HALF, HALF * sizeof *whole.id);
    assert_int_equal(r.run.end[1], NEW);
    kvd_benchmark_run_release(&r);

    start(&r, &b, KVD_COMPRESS_CONTEXT, KVD_TURNS_FOLLOW, ROOM + NEW);
    const size_t tail = HALF - asked.n;
    assert_true(r.cut[0]);
    assert_int_equal(r.run.offset[1], HALF + tail);
    assert_memory_equal(r.run.id, context.id, HALF * sizeof *context.id);
    assert_memory_equal(r.run.id + HALF, context.id + context.n - tail, tail * sizeof *context.id);
    assert_int_equal(r.run.end[1], asked.n + NEW);
    assert_memory_equal(r.run.forced, asked.id, asked.n * sizeof *asked.id);
    kvd_benchmark_run_release(&r);

    start(&r, &b, KVD_COMPRESS_PROMPT, KVD_TURNS_FOLLOW, whole.n + NEW);
    assert_false(r.cut[0]);
    assert_int_equal(r.run.offset[1], whole.n);
    kvd_benchmark_run_release(&r);
    kvd_ids_release(&whole);
    kvd_ids_release(&context);
    kvd_ids_release(&asked);
    kvd_benchmark_release(&b);
    json_decref(item);
    free(both);
}

TEST(turns_follow_or_stand_apart)
{
    json_t *const item =
        json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "context", "Max is a dog.", "multi_turns",
                  "input", "Who?", "answer", "Max", "input", "What is he?", "answer", "dog");
    enum { NEW = 150 };
    kvd_benchmark b;
    kvd_benchmark_run r;
    kvd_ids second;
    read_one("scbench_kv.jsonl", item, &b);
    encode("\n\nWhat is he?", false, &second);
    start(&r, &b, KVD_COMPRESS_PROMPT, KVD_TURNS_FOLLOW, 1000);
    assert_int_equal(r.run.n_sequences, 1);
    assert_int_equal(r.n_answers, 2);
    assert_int_equal(r.run.end[1], 2 * NEW + second.n);
    assert_memory_equal(r.run.forced + NEW, second.id, second.n * sizeof *second.id);
    assert_int_equal(r.answer[1].at, NEW + second.n);
    assert_false(r.answer[0].last);
    assert_true(r.answer[1].last);
    for (size_t i = 0; i < NEW; i++)
        assert_true(r.run.forced[i] == KVD_FREE_TOKEN);
    kvd_benchmark_run_release(&r);
    start(&r, &b, KVD_COMPRESS_CONTEXT, KVD_TURNS_APART, 1000);
    assert_int_equal(r.run.n_sequences, 2);
    assert_int_equal(r.run.offset[1], r.run.offset[2] - r.run.offset[1]);
    assert_int_equal(r.run.end[2] - r.run.end[1], second.n + NEW);
    assert_memory_equal(r.run.forced + r.run.end[1], second.id, second.n * sizeof *second.id);
    kvd_benchmark_run_release(&r);
    kvd_ids_release(&second);
    kvd_benchmark_release(&b);
    json_decref(item);
}

TEST(chat_around_turns)
{
    static const kvd_chat chat = {.name = "test",
                                  .bos = "<|bos|>",
                                  .start = "Be brief. ",
                                  .user = "Q: ",
                                  .header = "<|eos|> A:",
                                  .end = "<|eos|> ",
                                  .stop = "<|eos|>",
                                  .trim = true};
    static const char prompt[] = "<|bos|>Be brief. Q: Max is a dog.\n\nWho?<|eos|> A:",
                      context[] = "<|bos|>Be brief. Q: Max is a dog.",
                      question[] = "\n\nWho?<|eos|> A:", later[] = "<|eos|> Q: And he?<|eos|> A:";
    json_t *const item = json_pack("{s:s, s:[{s:s, s:s}, {s:s, s:s}]}", "context",
                                   " \n Max is a dog.", "multi_turns", "input", "Who? ", "answer",
                                   "Max", "input", "And he?\n", "answer", "dog");
    enum { NEW = 150 };
    const kvd_benchmark_run_settings s = {
        .max_len = 1000, .generator = {.max_tokens = 512}, .chat = &chat};
    kvd_benchmark_run_settings split = s, apart = s, unknown = s;
    kvd_chat other = chat;
    kvd_benchmark b;
    kvd_benchmark_run r;
    kvd_err err = {""};
    kvd_ids whole, head, asked, next;
    read_one("scbench_kv.jsonl", item, &b);
    free(b.item[0].context);
    free(b.item[0].turn[0].question);
    b.item[0].context = strdup(" \n Max is a dog.");
    b.item[0].turn[0].question = strdup("\n\nWho? ");
    encode(prompt, false, &whole);
    encode(context, false, &head);
    encode(question, false, &asked);
    encode(later, false, &next);

    OK(kvd_benchmark_run_init(&r, &b, checkpoint, tokenizer, &s, &err));
    assert_int_equal(r.run.n_sequences, 1);
    assert_int_equal(r.run.offset[1], whole.n);
    assert_memory_equal(r.run.id, whole.id, whole.n * sizeof *whole.id);
    assert_int_equal(r.run.end[1], 2 * NEW + next.n);
    assert_memory_equal(r.run.forced + NEW, next.id, next.n * sizeof *next.id);
    uint32_t token[] = {5, next.id[0]};
    OK(r.run.ended(r.run.ended_ctx, 0, 0, token, &err));
    assert_int_equal(r.run.ended(r.run.ended_ctx, 0, 1, token, &err), 2);
    kvd_benchmark_run_release(&r);

    split.compress_at = KVD_COMPRESS_CONTEXT;
    OK(kvd_benchmark_run_init(&r, &b, checkpoint, tokenizer, &split, &err));
    assert_int_equal(r.run.offset[1], head.n);
    assert_memory_equal(r.run.id, head.id, head.n * sizeof *head.id);
    assert_memory_equal(r.run.forced, asked.id, asked.n * sizeof *asked.id);
    assert_int_equal(r.run.end[1], asked.n + 2 * NEW + next.n);
    kvd_benchmark_run_release(&r);

    apart.turns = KVD_TURNS_APART;
    free(b.item[0].turn[1].answer_prefix);
    b.item[0].turn[1].answer_prefix = strdup(" He is");
    kvd_ids_release(&next);
    encode("<|bos|>Be brief. Q: Max is a dog.\n\nAnd he?<|eos|> A: He is", false, &next);
    OK(kvd_benchmark_run_init(&r, &b, checkpoint, tokenizer, &apart, &err));
    assert_int_equal(r.run.n_sequences, 2);
    assert_int_equal(r.run.offset[2] - r.run.offset[1], next.n);
    assert_memory_equal(r.run.id + r.run.offset[1], next.id, next.n * sizeof *next.id);
    kvd_benchmark_run_release(&r);

    other.stop = "<|im_end|>";
    unknown.chat = &other;
    assert_int_equal(kvd_benchmark_run_init(&r, &b, checkpoint, tokenizer, &unknown, &err), -1);
    assert_non_null(strstr(err.msg, "--chat test: the tokenizer has no token '<|im_end|>'"));
    kvd_benchmark_run_release(&r);
    kvd_ids_release(&whole);
    kvd_ids_release(&head);
    kvd_ids_release(&asked);
    kvd_ids_release(&next);
    kvd_benchmark_release(&b);
    json_decref(item);
}

TEST(columns_of_kvpress)
{
    kvd_benchmark b;
    kvd_err err = {""};
    json_t *const item = json_pack("{ssssssss s[ss] si}", "context", "One two. ", "question",
                                   "Which?", "answer_prefix", "They are", "task", "qa_1", "answer",
                                   "one", "two", "max_new_tokens", 32);
    read_one("kvpress.jsonl", item, &b);
    json_decref(item);
    const kvd_benchmark_item *const x = b.item;
    assert_string_equal(x->task, "qa_1");
    assert_string_equal(x->context, "One two. ");
    assert_string_equal(x->turn->question, "Which?");
    assert_string_equal(x->turn->answer_prefix, "\nThey are");
    assert_string_equal(x->turn->reference[1], "two");
    assert_true(x->metric == KVD_METRIC_MATCH_PART && x->max_new_tokens == 32 && !*x->stop);
    kvd_benchmark_release(&b);

    const char *const path = temp_file("other.jsonl");
    json_t *const other = json_pack("{ss ss ss ss ss}", "context", "c", "question", "q",
                                    "answer_prefix", "", "answer", "a", "task", "longbook_qa_eng");
    assert_int_equal(json_dump_file(other, path, JSON_COMPACT), 0);
    json_decref(other);
    assert_int_equal(kvd_benchmark_read(&b, path, &plain, &err), -1);
    assert_non_null(
        strstr(err.msg, "task 'longbook_qa_eng' of the form kvpress is none of RULER's"));
    kvd_benchmark_release(&b);
}

TEST_MAIN(set_up, tear_down)
